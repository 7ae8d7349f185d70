//! Rows, the table, and the JSON.

use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use hcomm::{Communicator, Source};
use hcomm_types::{Error, ErrorKind, Result};
use serde::Serialize;

use super::PerfArgs;
use crate::output::{self, Reader};

/// One size, measured.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) bytes: u64,
    pub(super) count: u64,
    pub(super) algorithm: String,
    /// What the cost model predicted, if it was asked for and knows.
    pub(super) predicted_us: Option<f64>,
    /// Measured iterations, in at most 20 groups of about as many.
    pub(super) iters: u64,
    pub(super) time_us: Times,
    pub(super) algbw_gbps: f64,
    pub(super) busbw_gbps: f64,
    /// Millions of messages a second; none if the operation hands over no messages.
    pub(super) msgrate_mps: Option<f64>,
    /// Time of one cache line from rank to rank, the larger of right before and right after; none
    /// if there are not two ranks that map memory of each other.
    pub(super) handover_ns: Option<f64>,
    /// Percent of a core that a rank uses while it waits for long: of `wake`.
    pub(super) idle_percent: Option<f64>,
    /// What another operation took in turn with this one, if one was asked for.
    pub(super) against: Option<Against>,
    pub(super) wrong: u64,
}

/// Another operation, measured in turn with the first.
#[derive(Debug, Serialize)]
pub(super) struct Against {
    pub(super) op: &'static str,
    pub(super) time_us: Times,
    /// How many times as long as this one the first takes: the median over pairs of groups.
    pub(super) ratio: f64,
}

/// Times of one operation on the slowest rank, in microseconds: each is the mean of one group of
/// iterations.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Times {
    pub(super) min: f64,
    pub(super) median: f64,
    pub(super) avg: f64,
    pub(super) max: f64,
}

impl Times {
    /// From the seconds of each group; there is at least one.
    pub(super) fn new(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let micros = |s: f64| s * 1e6;
        Self {
            min: micros(seconds[0]),
            median: micros(median(seconds.clone())),
            avg: micros(seconds.iter().sum::<f64>() / seconds.len() as f64),
            max: micros(seconds[seconds.len() - 1]),
        }
    }

    /// Gigabytes (10⁹) a second, for so many bytes in the median time.
    pub(super) fn gigabytes_per_second(&self, bytes: u64) -> f64 {
        if self.median > 0.0 {
            bytes as f64 / self.median / 1e3
        } else {
            0.0
        }
    }
}

/// The median; there is at least one.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle - 1], values[middle])
    } else {
        values[middle]
    }
}

/// The JSON of `hcomm perf`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    op: &'static str,
    ranks: u32,
    dtype: &'static str,
    redop: &'static str,
    links: Vec<String>,
    transports: Vec<TransportUse>,
    engine: &'static str,
    memory: &'static str,
    /// Messages of a stream.
    stream: Option<u32>,
    /// Whether the receiver reads what it has received.
    consume: bool,
    /// The core of each rank, if each is bound to one.
    cores: Option<Vec<u32>>,
    rows: &'a [Row],
}

#[derive(Debug, Serialize)]
struct TransportUse {
    name: String,
    source: &'static str,
    path: Option<String>,
}

/// What rank 0 prints while it measures, and the JSON.
#[derive(Debug)]
pub(super) struct Table<'a> {
    args: &'a PerfArgs,
    cores: Option<Vec<u32>>,
    reader: Reader,
}

impl<'a> Table<'a> {
    /// An empty table. `cores` are those of the ranks, if they are bound.
    pub(super) const fn new(args: &'a PerfArgs, cores: Option<Vec<u32>>) -> Self {
        Self {
            args,
            cores,
            reader: Reader::There,
        }
    }

    /// Whether nobody will see what is still to be measured.
    pub(super) fn is_in_vain(&self) -> bool {
        self.reader == Reader::Gone && self.args.json.is_none()
    }

    /// The head, before the first row.
    ///
    /// # Errors
    /// If it cannot be printed for another reason than that nobody reads.
    pub(super) fn head(&mut self, comm: &Communicator) -> Result<()> {
        let args = self.args;
        let mut how = vec![format!("engine: {}", args.engine.name())];
        if !args.op.moves_nothing() {
            how.push(format!("memory: {}", args.memory().name()));
        }
        how.extend(args.in_place.then(|| "in place".to_owned()));
        how.extend(args.stream.map(|stream| format!("streams of {stream}")));
        how.extend(args.against().map(|op| format!("against {}", op.name())));
        how.extend(args.consume.then(|| "consumed".to_owned()));
        how.push(self.cores.as_ref().map_or_else(
            || "not bound to cores".to_owned(),
            |cores| {
                let cores: Vec<String> = cores.iter().map(u32::to_string).collect();
                format!("on cores {}", cores.join(", "))
            },
        ));
        let links = comm.links_in_use();
        self.line(&format!(
            "# {} on {} ranks, links: {}, {}",
            args.op.name(),
            comm.size(),
            if links.is_empty() {
                "none".to_owned()
            } else {
                links.join(", ")
            },
            how.join(", "),
        ))?;
        self.line(&format!(
            "# {:>10} {:>12} {:>6} {:>6} {:>14} {:>12} {:>10} {:>10} {:>9} {:>8}{}{} {:>8}",
            "bytes",
            "count",
            "dtype",
            "op",
            "algorithm",
            "time µs",
            "algbw GB/s",
            "busbw GB/s",
            "Mmsg/s",
            "line ns",
            if args.against().is_some() {
                "     ratio"
            } else {
                ""
            },
            if args.predict { " predicted µs" } else { "" },
            "wrong"
        ))
    }

    /// One row.
    ///
    /// # Errors
    /// As for the head.
    pub(super) fn row(&mut self, row: &Row) -> Result<()> {
        let args = self.args;
        let wrong = if args.checks() {
            row.wrong.to_string()
        } else {
            "-".to_owned()
        };
        let redop = if args.op.reduces() {
            args.redop.name()
        } else {
            "-"
        };
        self.line(&format!(
            "{:>12} {:>12} {:>6} {:>6} {:>14} {:>12.3} {:>10.3} {:>10.3} {:>9} {:>8}{}{} {:>8}",
            row.bytes,
            row.count,
            args.dtype.name(),
            redop,
            row.algorithm,
            row.time_us.median,
            row.algbw_gbps,
            row.busbw_gbps,
            number(row.msgrate_mps, 3),
            number(row.handover_ns, 0),
            row.against
                .as_ref()
                .map_or_else(String::new, |against| format!(" {:>9.3}", against.ratio)),
            if args.predict {
                format!(" {:>12}", number(row.predicted_us, 3))
            } else {
                String::new()
            },
            wrong
        ))
    }

    /// Writes the JSON where it is asked for, and the lines under the table.
    ///
    /// # Errors
    /// If the file cannot be written; as for the head.
    pub(super) fn publish(&mut self, comm: &Communicator, rows: &[Row]) -> Result<()> {
        let args = self.args;
        let report = Report::new(args, self.cores.clone(), comm, rows);
        if let Some(path) = &args.json {
            let text = serde_json::to_string(&report).map_err(|error| {
                Error::new(
                    ErrorKind::Internal,
                    format!("the JSON of the result: {error}"),
                )
            })?;
            if args.json_on_stdout() {
                self.reader = output::print(&text)?;
            } else {
                fs::write(path, text + "\n")
                    .map_err(|error| Error::system(format!("writing {}", path.display()), error))?;
            }
        }
        for percent in rows.iter().filter_map(|row| row.idle_percent) {
            self.line(&format!(
                "# a rank that waits uses {percent:.3} % of a core"
            ))?;
        }
        for transport in &report.transports {
            let path = transport.path.as_deref().unwrap_or("linked in");
            self.line(&format!("# transport {}: {path}", transport.name))?;
        }
        let wrong: u64 = rows.iter().map(|row| row.wrong).sum();
        if wrong > 0 {
            self.line(&format!("# WRONG: {wrong} elements"))?;
        }
        Ok(())
    }

    fn line(&mut self, text: &str) -> Result<()> {
        if self.reader == Reader::There && !self.args.json_on_stdout() {
            self.reader = output::print(text)?;
        }
        Ok(())
    }
}

impl<'a> Report<'a> {
    fn new(args: &PerfArgs, cores: Option<Vec<u32>>, comm: &Communicator, rows: &'a [Row]) -> Self {
        let transports = comm
            .transports_in_use()
            .into_iter()
            .map(|plugin| {
                let (source, path) = match plugin.source() {
                    Source::Linked => ("linked", None),
                    Source::SharedObject(path) => ("so", Some(path.display().to_string())),
                };
                TransportUse {
                    name: plugin.name().to_owned(),
                    source,
                    path,
                }
            })
            .collect();
        Self {
            op: args.op.name(),
            ranks: comm.size(),
            dtype: args.dtype.name(),
            redop: args.redop.name(),
            links: comm.links_in_use(),
            transports,
            engine: args.engine.name(),
            memory: args.memory().name(),
            stream: args.stream,
            consume: args.consume,
            cores,
            rows,
        }
    }
}

/// A number for the table, if there is one.
fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// A line on the terminal that says what a long run is doing. It is gone when this is dropped.
#[derive(Debug)]
pub(super) struct Progress {
    shown: bool,
    /// Rows come on the same screen.
    shares_screen: bool,
}

impl Progress {
    /// To the terminal's start of the line, and empty the line.
    const ERASE: &str = "\r\x1b[K";

    /// Only where stderr is a terminal.
    pub(super) fn new() -> Self {
        Self {
            shown: io::stderr().is_terminal(),
            shares_screen: io::stdout().is_terminal(),
        }
    }

    /// Says which size is being measured.
    pub(super) fn size(&self, number: usize, of: usize, bytes: u64, spent: Duration) {
        let spent = spent.as_secs_f64();
        self.show(&format!(
            "{number}/{of} sizes, {bytes} bytes, {spent:.0} s "
        ));
    }

    /// Makes room for a row.
    pub(super) fn before_row(&self) {
        if self.shares_screen {
            self.show("");
        }
    }

    fn show(&self, text: &str) {
        if self.shown {
            // A terminal that is gone needs no line.
            let _ = write!(io::stderr(), "{}{text}", Self::ERASE);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.show("");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        let times = Times::new(vec![4e-6, 1e-6, 2e-6, 3e-6]);
        assert!((times.median - 2.5).abs() < 1e-9 && (times.avg - 2.5).abs() < 1e-9);
        assert!((times.min - 1.0).abs() < 1e-9 && (times.max - 4.0).abs() < 1e-9);
        assert!((times.gigabytes_per_second(2500) - 1.0).abs() < 1e-9);
    }
}
