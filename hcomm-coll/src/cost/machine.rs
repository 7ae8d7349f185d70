//! What a machine costs: the numbers of the model, built in or from a tuning file.
//!
//! # Format
//!
//! A tuning file is one JSON object, as `hcomm tune` writes it. Unknown fields are errors. Times are
//! whole nanoseconds (`_ns`), or picoseconds a byte (`_ps`), which is 1,000 divided by GB/s.
//!
//! | field | holds |
//! |---|---|
//! | `format` | `"hcomm-tuning-1"` |
//! | `measured` | where and when, for people |
//! | `call_ns` | a call, beside its tasks |
//! | `task_ns` | a task, beside its bytes |
//! | `switch_ns` | until another rank runs on a core that ranks share |
//! | `signals` | `alpha_ns`: from a record to its wait on another core; `late_ns`: a wait for what is there already; `packet_ns`: from a packet to who takes it; `line_ns`: each further line of a packet; `fetch_ns`: the first byte of what another core wrote; `lent_ns`: a copy by the system of what another rank lends |
//! | `memory` | costs a byte, by how much else is touched until the same byte is touched again (see [`Memory`]) |
//! | `combine_ps` | what arithmetic adds to a byte of a result, by data type |

use std::collections::BTreeMap;

use hcomm_types::{DataType, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::plan::file;
use crate::simulate::Rates;

/// Longer tuning files are refused: none that is right comes near.
pub const MAX_TUNING_BYTES: usize = 64 << 10;

/// No cost is larger than this: a second, or a byte in a microsecond.
const MOST_NS: u32 = 1_000_000_000;
const MOST_PS: u32 = 1_000_000;
const MOST_DISTANCES: usize = 32;

/// Version of the format of tuning files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MachineFormat {
    /// The first one.
    #[default]
    #[serde(rename = "hcomm-tuning-1")]
    V1,
}

/// Costs of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Version of the format.
    pub format: MachineFormat,
    /// Where and when it was measured, for people.
    pub measured: String,
    /// A call, beside its tasks, in nanoseconds.
    pub call_ns: u32,
    /// A task, beside its bytes, in nanoseconds.
    pub task_ns: u32,
    /// Until another rank runs on a core that ranks share, in nanoseconds.
    pub switch_ns: u32,
    /// How long news takes between cores that share memory.
    pub signals: Signals,
    /// What it costs to touch a byte.
    pub memory: Memory,
    /// What arithmetic adds to a byte of a result, in picoseconds; types that are not named count as
    /// `fp32`.
    pub combine_ps: BTreeMap<String, u32>,
}

/// How long news takes between cores that share memory, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signals {
    /// From a record until who waits for it goes on.
    pub alpha_ns: u32,
    /// A wait for what is there already.
    pub late_ns: u32,
    /// From a packet of one line until who takes it goes on.
    pub packet_ns: u32,
    /// Each further line of a packet.
    pub line_ns: u32,
    /// Until the first byte comes of what another core wrote.
    pub fetch_ns: u32,
    /// Until the system copies what another rank lends.
    pub lent_ns: u32,
}

/// What it costs to touch a byte, in picoseconds.
///
/// Which cache a byte lies in is told by its *distance*: how many bytes a rank touches from one use
/// of it to the next, itself included. The columns belong to `distances`; between them costs are
/// interpolated over the logarithm of the distance, outside the nearest one holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Distances in bytes, in ascending order.
    pub distances: Vec<u64>,
    /// To load what no other core writes.
    pub read_ps: Vec<u32>,
    /// To store what no other core reads.
    pub write_ps: Vec<u32>,
    /// To load what another core has written.
    pub fetch_ps: Vec<u32>,
    /// To store into the rank's own memory what another core reads, or has written before.
    pub offer_ps: Vec<u32>,
    /// To store into memory of a rank on another core, which reads it.
    pub put_ps: Vec<u32>,
    /// To load, by the system, what another rank lends of its own memory.
    pub lent_ps: Vec<u32>,
}

impl Default for Machine {
    fn default() -> Self {
        Self::built_in()
    }
}

impl Machine {
    /// The numbers that hold without a tuning file: two cores of a Sapphire Rapids in one socket,
    /// 2 MiB of second-level cache each. What is lent, and what is stored past the caches, is of a
    /// Granite Rapids.
    #[must_use]
    pub fn built_in() -> Self {
        let combine = DataType::ALL.map(|dtype| (dtype.name().to_owned(), 0));
        Self {
            format: MachineFormat::V1,
            measured: "built in: 2 cores of a Sapphire Rapids, one socket".to_owned(),
            call_ns: 90,
            task_ns: 20,
            switch_ns: 900,
            signals: Signals {
                alpha_ns: 60,
                late_ns: 30,
                packet_ns: 100,
                line_ns: 8,
                fetch_ns: 110,
                lent_ns: 870,
            },
            memory: Memory {
                distances: vec![
                    12 << 10,
                    96 << 10,
                    768 << 10,
                    3 << 20,
                    6 << 20,
                    24 << 20,
                    96 << 20,
                ],
                read_ps: vec![8, 12, 16, 40, 40, 80, 170],
                write_ps: vec![6, 15, 15, 27, 41, 60, 60],
                fetch_ps: vec![187, 106, 50, 55, 54, 106, 117],
                offer_ps: vec![84, 60, 36, 37, 37, 40, 60],
                put_ps: vec![84, 120, 120, 90, 70, 60, 60],
                lent_ps: vec![25, 25, 25, 40, 70, 100, 170],
            },
            combine_ps: BTreeMap::from(combine),
        }
    }

    /// A machine on which only news and wires cost: what textbooks compute with.
    #[must_use]
    pub fn ideal(alpha_ns: u32) -> Self {
        let free = vec![0];
        Self {
            format: MachineFormat::V1,
            measured: "ideal".to_owned(),
            call_ns: 0,
            task_ns: 0,
            switch_ns: 0,
            signals: Signals {
                alpha_ns,
                late_ns: 0,
                packet_ns: alpha_ns,
                line_ns: 0,
                fetch_ns: 0,
                lent_ns: 0,
            },
            memory: Memory {
                distances: vec![1],
                read_ps: free.clone(),
                write_ps: free.clone(),
                fetch_ps: free.clone(),
                offer_ps: free.clone(),
                put_ps: free.clone(),
                lent_ps: free,
            },
            combine_ps: BTreeMap::new(),
        }
    }

    /// How fast a rank copies and combines in memory that no cache holds, where wires are what counts.
    pub(crate) fn rates(&self) -> Rates {
        const DISTANCE: u64 = 24 << 20;
        const BYTES: u64 = 1 << 20;
        let cost = |touch| self.memory.cost_ps(touch, DISTANCE, BYTES);
        let (read, write) = (cost(Touch::Read), cost(Touch::Write));
        let combine = BYTES * self.combine_ps(DataType::F32);
        let per_second = |ps: u64| (BYTES * 1_000_000_000_000).checked_div(ps).unwrap_or(0);
        Rates {
            copy_bytes_per_s: per_second(read + write),
            reduce_bytes_per_s: per_second(2 * read + write + combine),
            task_ns: self.task_ns.into(),
        }
    }

    /// Reads a tuning file.
    ///
    /// # Errors
    /// `InvalidArgument` with line, column, the field there, and what was expected.
    pub fn from_json(text: &str) -> Result<Self> {
        if text.len() > MAX_TUNING_BYTES {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{} bytes; a tuning file has at most {MAX_TUNING_BYTES}",
                    text.len()
                ),
            ));
        }
        let machine: Self =
            serde_json::from_str(text).map_err(|error| file::refusal(text, &error))?;
        machine.check()?;
        Ok(machine)
    }

    /// The numbers as a file, in many lines.
    ///
    /// # Errors
    /// `Internal` if that cannot be written down.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map(|text| text + "\n")
            .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
    }

    /// Whether the numbers make sense together.
    fn check(&self) -> Result<()> {
        let wrong = |field: &str, what: String| {
            Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{field}: {what}"),
            ))
        };
        let signals = self.signals;
        for (field, have) in [
            ("call_ns", self.call_ns),
            ("task_ns", self.task_ns),
            ("switch_ns", self.switch_ns),
            ("signals.alpha_ns", signals.alpha_ns),
            ("signals.late_ns", signals.late_ns),
            ("signals.packet_ns", signals.packet_ns),
            ("signals.line_ns", signals.line_ns),
            ("signals.fetch_ns", signals.fetch_ns),
            ("signals.lent_ns", signals.lent_ns),
        ] {
            if have > MOST_NS {
                return wrong(field, format!("{have} is more than {MOST_NS}"));
            }
        }
        let memory = &self.memory;
        let columns = memory.distances.len();
        if columns == 0 || columns > MOST_DISTANCES {
            return wrong(
                "memory.distances",
                format!("{columns} numbers; there are from 1 to {MOST_DISTANCES}"),
            );
        }
        if memory.distances[0] == 0 || !memory.distances.is_sorted_by(|a, b| a < b) {
            return wrong(
                "memory.distances",
                "the numbers do not grow from at least 1".to_owned(),
            );
        }
        for (field, costs) in [
            ("memory.read_ps", &memory.read_ps),
            ("memory.write_ps", &memory.write_ps),
            ("memory.fetch_ps", &memory.fetch_ps),
            ("memory.offer_ps", &memory.offer_ps),
            ("memory.put_ps", &memory.put_ps),
            ("memory.lent_ps", &memory.lent_ps),
        ] {
            if costs.len() != columns {
                return wrong(
                    field,
                    format!("{} numbers for {columns} distances", costs.len()),
                );
            }
            if let Some(have) = costs.iter().find(|have| **have > MOST_PS) {
                return wrong(field, format!("{have} is more than {MOST_PS}"));
            }
        }
        for (name, have) in &self.combine_ps {
            let field = format!("combine_ps.{name}");
            if name.parse::<DataType>().is_err() {
                return wrong(&field, "no data type".to_owned());
            }
            if *have > MOST_PS {
                return wrong(&field, format!("{have} is more than {MOST_PS}"));
            }
        }
        Ok(())
    }

    /// What arithmetic adds to a byte of a result, in picoseconds.
    pub(super) fn combine_ps(&self, dtype: DataType) -> u64 {
        let named = |name: &str| self.combine_ps.get(name).copied();
        named(dtype.name())
            .or_else(|| named(DataType::F32.name()))
            .unwrap_or(0)
            .into()
    }
}

/// A kind of touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    Read,
    Write,
    Fetch,
    Offer,
    Put,
    Lent,
}

impl Memory {
    /// Picoseconds of `bytes` bytes that are touched at this distance.
    pub(super) fn cost_ps(&self, touch: Touch, distance: u64, bytes: u64) -> u64 {
        let costs = match touch {
            Touch::Read => &self.read_ps,
            Touch::Write => &self.write_ps,
            Touch::Fetch => &self.fetch_ps,
            Touch::Offer => &self.offer_ps,
            Touch::Put => &self.put_ps,
            Touch::Lent => &self.lent_ps,
        };
        let behind = self.distances.partition_point(|at| *at <= distance);
        let last = self.distances.len() - 1;
        if behind == 0 || behind > last {
            return bytes.saturating_mul(costs[behind.min(last)].into());
        }
        let (low, high) = (costs[behind - 1], costs[behind]);
        // In 1,024ths, so that all ranks come to the same.
        let (from, to) = (
            log2(self.distances[behind - 1]),
            log2(self.distances[behind]),
        );
        let part = (log2(distance) - from) * 1024 / (to - from).max(1);
        let between = u64::from(low) * (1024 - part) + u64::from(high) * part;
        bytes.saturating_mul(between) / 1024
    }
}

/// The binary logarithm in 1,024ths, between powers of two by a straight line.
fn log2(number: u64) -> u64 {
    let whole = u64::from(number.max(1).ilog2());
    let rest = number.max(1) - (1 << whole);
    whole * 1024 + ((u128::from(rest) * 1024) >> whole) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_again() {
        for machine in [Machine::built_in(), Machine::ideal(100)] {
            let text = machine.to_json().unwrap();
            assert_eq!(Machine::from_json(&text).unwrap(), machine);
        }
    }

    #[test]
    fn a_wrong_file_is_refused_with_the_place() {
        let text = Machine::built_in().to_json().unwrap();
        for (from, to, words) in [
            ("hcomm-tuning-1", "hcomm-tuning-9", "line 2"),
            ("\"alpha_ns\": ", "\"alpha_ns\": -", "signals.alpha_ns"),
            ("\"alpha_ns\"", "\"beta_ns\"", "unknown field `beta_ns`"),
            ("12288,", "0,", "memory.distances: the numbers do not grow"),
            ("12288,", "", "memory.read_ps: 7 numbers for 6 distances"),
            (
                "\"task_ns\": ",
                "\"task_ns\": 20000000",
                "task_ns: 2000000020",
            ),
            ("\"fp32\"", "\"fp33\"", "combine_ps.fp33: no data type"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = Machine::from_json(&text.replacen(from, to, 1)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(words), "{from}: {error}");
        }
        for text in ["", "{}", "[", "7", "{\"format\": \"hcomm-tuning-1\"}"] {
            assert!(Machine::from_json(text).is_err(), "{text}");
        }
        assert!(Machine::from_json(&" ".repeat(MAX_TUNING_BYTES + 1)).is_err());
    }

    #[test]
    fn costs_between_two_distances_lie_between_theirs() {
        let memory = Memory {
            distances: vec![1 << 10, 1 << 20],
            read_ps: vec![10, 110],
            write_ps: vec![5, 5],
            fetch_ps: vec![0, 0],
            offer_ps: vec![0, 0],
            put_ps: vec![0, 0],
            lent_ps: vec![0, 0],
        };
        let cost = |distance| memory.cost_ps(Touch::Read, distance, 100);
        assert_eq!(
            (cost(1), cost(1 << 10), cost(u64::MAX)),
            (1000, 1000, 11_000)
        );
        assert_eq!(cost(1 << 15), 6000);
        assert_eq!(memory.cost_ps(Touch::Write, 3000, 100), 500);
        let row: Vec<u64> = (0..64).map(|bits| cost(1 << bits)).collect();
        assert!(row.is_sorted());
    }
}
