//! Which candidate a shape gets: the one that the model predicts to be the fastest.
//!
//! Candidates are the algorithms that can plan the shape, those that cut into slices with a few
//! lengths of slices, and for broadcasts messages. All ranks compute the same in whole numbers. What
//! ranks may not agree on, such as whether a rank works in place, has no part in it.
//!
//! Work is bounded. Sizes are taken in steps, four from one power of two to the next, and of each
//! step the largest is predicted. A plan of many slices is predicted from two shorter ones, as each
//! further slice takes as long as the one before. Where even these would have too many tasks, as
//! plans of a message from each rank to each have for hundreds of ranks, a candidate is left out.

use std::cell::RefCell;

use hcomm_types::{DataType, Rank, Reduction};
use rustc_hash::FxHashMap;

use super::machine::{Machine, Touch};
use super::predict::{Prediction, Spent, predict_part};
use super::site::Site;
use crate::algorithms::{self, Algorithm, Params};
use crate::plan::{Operation, Shape};

/// Name of broadcasts by messages in tables.
pub const STREAM: &str = "stream";

/// Lengths of slices that are tried, the one that wins a draw first. Where ranks share a core only the
/// first. That is a correction: of 2 MiB, 8 ranks on 2 cores took 14 to 33 percent longer in slices of
/// 128 KiB, which the model takes for faster there as well.
const SLICES: [u64; 5] = [512 << 10, 256 << 10, 128 << 10, 1 << 20, 2 << 20];

/// Numbers of flows that are tried; more than one only where bytes go over wires. Who maps the peer's
/// memory moves them himself, and flows beside each other win nothing.
const FLOWS: [u32; 3] = [1, 2, 4];

/// What a flow has to move at least. A correction: each flow has messages of its own, of which each side
/// does one at a time, and the model lets them go side by side. Over tcp between two hosts an all_reduce
/// of 8 KiB took 10, 18 and 30 µs with 1, 2 and 4 flows, of 64 KiB 26, 38 and 60, of 1 MiB 304, 297 and
/// 294.
const LEAST_FLOW_BYTES: u64 = 128 << 10;

/// Slices of plans from which longer ones are predicted. Even, as slices use two slots in turn, and
/// enough that slots are used again in the shorter one.
const SHORT: [u64; 2] = [16, 24];

/// Tasks of all ranks: plans with more are predicted from shorter ones, and where these have more
/// than the second number, not at all.
const EXACT_TASKS: usize = 3000;
const MOST_TASKS: usize = 200_000;

/// Lines of a packet up to which packets are candidates. A correction: what a line costs depends on
/// what is done with it and on the processor, and the model has one number. Measured with two ranks
/// on a Zen 5 that share an L3: combining takes 25 ns a line and loses from five on; what is only
/// copied won with ten, and more was not tried.
const PACKET_LINES: u64 = 10;
const COMBINED_PACKET_LINES: u64 = 4;

/// Messages up to this many bytes go in lines with their news; longer ones in pieces of so many.
const CELLS_BYTES: u64 = 2 << 10;
const PIECE_BYTES: u64 = 8 << 10;

/// An algorithm that is so many percent slower than the fastest is not tried with other slices.
const CLOSE_PERCENT: u64 = 30;

/// A candidate that is so many percent slower than the best one counts as equal: the model is no
/// better than that.
const DRAW_PERCENT: u64 = 2;

/// What a candidate may use and has to keep. The same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Scratch memory of each rank for one operation, in bytes.
    pub scratch_bytes: u64,
    /// Bytes that a message link holds.
    pub stream_bytes: u64,
    /// Whether only what combines in rank order is admitted.
    pub deterministic: bool,
    /// Whether each rank can read memory of the others while they lend it.
    pub lends: bool,
}

/// How an operation may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Means {
    /// Name of the algorithm, or [`STREAM`].
    pub name: &'static str,
    /// Its [`Params::slice_bytes`].
    pub slice_bytes: u64,
    /// Its [`Params::flows`].
    pub flows: u32,
}

/// A way that was compared with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The way.
    pub means: Means,
    /// How long it takes.
    pub prediction: Prediction,
}

/// An algorithm that is no candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excluded {
    /// Its name.
    pub name: &'static str,
    /// Why not.
    pub why: String,
}

/// All ways for a shape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Those that could be taken, the fastest first.
    pub candidates: Vec<Candidate>,
    /// The others.
    pub excluded: Vec<Excluded>,
}

/// Chooses for one communicator, and keeps what it has chosen.
#[derive(Debug)]
pub struct Chooser {
    machine: Machine,
    site: Site,
    chosen: RefCell<FxHashMap<Key, Option<Means>>>,
}

/// What a choice depends on.
type Key = (Operation, u32, u64, DataType, Reduction, Terms, bool);

impl Chooser {
    /// For ranks of a site on such a machine.
    #[must_use]
    pub fn new(machine: Machine, site: Site) -> Self {
        Self {
            machine,
            site,
            chosen: RefCell::default(),
        }
    }

    /// The machine.
    #[must_use]
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Where the ranks run.
    #[must_use]
    pub const fn site(&self) -> &Site {
        &self.site
    }

    /// The way that a shape goes; `None` if no candidate can plan it.
    #[must_use]
    pub fn choose(&self, shape: &Shape, terms: &Terms) -> Option<Means> {
        if let Some(only) = only_one(shape) {
            return Some(only);
        }
        let step = step_of(shape);
        let key = (
            step.operation,
            step.ranks,
            step.count.largest(),
            step.dtype,
            step.redop,
            *terms,
            shape.count.is_even(),
        );
        if let Some(known) = self.chosen.borrow().get(&key) {
            return *known;
        }
        let mut found = self
            .compare_by(&step, terms, &SLICES[..1], &FLOWS[..1])
            .candidates;
        found.retain(|candidate| {
            let algorithm = algorithms::by_name(candidate.means.name);
            algorithm.is_none_or(|algorithm| algorithm.supports(shape))
        });
        // Other slices do not make the fastest of what is far behind.
        let fastest = found.first().map_or(0, |first| first.prediction.total_ps);
        let close = fastest.saturating_add(fastest / 100 * CLOSE_PERCENT);
        let names: Vec<&str> = found
            .iter()
            .take_while(|candidate| candidate.prediction.total_ps <= close)
            .map(|candidate| candidate.means.name)
            .collect();
        for algorithm in names.into_iter().filter_map(algorithms::by_name) {
            let others = self.by_slices(algorithm, &step, terms, &SLICES[1..], &FLOWS[..1]);
            found.append(&mut others.unwrap_or_default());
            let others = self.by_slices(algorithm, &step, terms, &SLICES, &FLOWS[1..]);
            found.append(&mut others.unwrap_or_default());
        }
        found.sort_by_key(|candidate| candidate.prediction.total_ps);
        let best = best(&found)
            .map(|candidate| candidate.means)
            .or_else(|| self.unpredicted(shape, terms));
        self.chosen.borrow_mut().insert(key, best);
        best
    }

    /// The fastest plan for exactly this shape, where messages do not count.
    #[must_use]
    pub fn plan_for(&self, shape: &Shape, terms: &Terms) -> Option<Means> {
        if let Some(only) = only_one(shape) {
            return Some(only);
        }
        let mut candidates = self.compare(shape, terms).candidates;
        candidates.retain(|candidate| candidate.means.name != STREAM);
        best(&candidates)
            .map(|candidate| candidate.means)
            .or_else(|| self.unpredicted(shape, terms))
    }

    /// Where no candidate can be predicted, as of many hundreds of ranks that move much: the first
    /// algorithm that can plan it, beginning with the one for large sizes.
    fn unpredicted(&self, shape: &Shape, terms: &Terms) -> Option<Means> {
        let first = algorithms::by_name("mesh_two_shot");
        let params = self.params(terms, SLICES[0], 1);
        first
            .into_iter()
            .chain(algorithms::algorithms().iter().copied())
            .filter(|algorithm| self.objection(*algorithm, shape, terms).is_none())
            .find(|algorithm| algorithm.plan_rank(shape, &params, Rank(0)).is_ok())
            .map(|algorithm| Means {
                name: algorithm.name(),
                slice_bytes: SLICES[0],
                flows: 1,
            })
    }

    /// All ways for a shape, with predictions for exactly that shape.
    #[must_use]
    pub fn compare(&self, shape: &Shape, terms: &Terms) -> Comparison {
        self.compare_by(shape, terms, &SLICES, &FLOWS)
    }

    fn compare_by(
        &self,
        shape: &Shape,
        terms: &Terms,
        slices: &[u64],
        flows: &[u32],
    ) -> Comparison {
        let mut comparison = Comparison::default();
        if let Some(prediction) = self.stream(shape, terms) {
            comparison.candidates.push(Candidate {
                means: Means {
                    name: STREAM,
                    slice_bytes: SLICES[0],
                    flows: 1,
                },
                prediction,
            });
        }
        for algorithm in algorithms::algorithms() {
            let name = algorithm.name();
            if let Some(why) = self.objection(*algorithm, shape, terms) {
                let why = why.to_owned();
                comparison.excluded.push(Excluded { name, why });
                continue;
            }
            match self.by_slices(*algorithm, shape, terms, slices, flows) {
                Ok(mut found) => comparison.candidates.append(&mut found),
                Err(why) => comparison.excluded.push(Excluded { name, why }),
            }
        }
        // Stable: of equals the first in the list of algorithms.
        let time = |candidate: &Candidate| candidate.prediction.total_ps;
        comparison.candidates.sort_by_key(time);
        comparison
    }

    /// The fastest of these candidates, or the one that wins a draw.
    #[must_use]
    pub fn best<'a>(&self, comparison: &'a Comparison) -> Option<&'a Candidate> {
        best(&comparison.candidates)
    }

    /// How long an algorithm takes for a shape.
    ///
    /// # Errors
    /// Why it is not known, in words.
    pub fn predict(
        &self,
        algorithm: &dyn Algorithm,
        shape: &Shape,
        params: &Params,
    ) -> Result<Prediction, String> {
        let whole = shape.count.largest();
        let total = shape.total_bytes();
        // All flows have one under way.
        let slice = params.slice_bytes.min(params.scratch_bytes).max(64) * u64::from(params.flows);
        let slices = total / slice;
        if slices <= 64 {
            let plan = algorithms::plan_rank(algorithm, shape, params, Rank(0))
                .map_err(|error| error.to_string())?;
            let tasks = plan.task_count().saturating_mul(shape.ranks as usize);
            if tasks <= EXACT_TASKS || slices <= SHORT[1] {
                return self.predict_part(algorithm, shape, shape, params, tasks);
            }
        }
        // Of so many slices each, and then on in a straight line.
        let counts = SHORT.map(|slices| {
            let part = u128::from(whole) * u128::from(slices * slice) / u128::from(total.max(1));
            (part as u64).clamp(1, whole)
        });
        let mut times = [Prediction::default(); 2];
        for (count, time) in counts.into_iter().zip(&mut times) {
            let part = Shape {
                count: count.into(),
                ..shape.clone()
            };
            let tasks = algorithms::plan_rank(algorithm, &part, params, Rank(0))
                .map_err(|error| error.to_string())?
                .task_count()
                .saturating_mul(shape.ranks as usize);
            *time = self.predict_part(algorithm, &part, shape, params, tasks)?;
        }
        let [short, long] = times;
        let on = |short: u64, long: u64| {
            let rise = u128::from(long.saturating_sub(short)) * u128::from(whole - counts[1])
                / u128::from((counts[1] - counts[0]).max(1));
            let further = u128::from(long) + rise;
            u64::try_from(further).unwrap_or(u64::MAX)
        };
        if long.total_ps <= short.total_ps {
            return Err("its time does not grow with its size".to_owned());
        }
        let (a, b) = (short.spent, long.spent);
        Ok(Prediction {
            total_ps: on(short.total_ps, long.total_ps),
            spent: Spent {
                waiting_ps: on(a.waiting_ps, b.waiting_ps),
                moving_ps: on(a.moving_ps, b.moving_ps),
                combining_ps: on(a.combining_ps, b.combining_ps),
                switching_ps: on(a.switching_ps, b.switching_ps),
                calling_ps: on(a.calling_ps, b.calling_ps),
            },
        })
    }

    fn predict_part(
        &self,
        algorithm: &dyn Algorithm,
        part: &Shape,
        whole: &Shape,
        params: &Params,
        tasks: usize,
    ) -> Result<Prediction, String> {
        if tasks > MOST_TASKS {
            return Err(format!(
                "{tasks} tasks of {} ranks are too many to predict",
                part.ranks
            ));
        }
        let plan = algorithm
            .plan(part, params)
            .map_err(|error| error.to_string())?;
        predict_part(&plan, whole, &self.machine, &self.site).map_err(|stuck| stuck.to_string())
    }

    fn params(&self, terms: &Terms, slice_bytes: u64, flows: u32) -> Params {
        Params {
            scratch_bytes: terms.scratch_bytes,
            slice_bytes,
            groups: self.site.hosts.clone(),
            flows,
        }
    }

    /// What speaks against an algorithm, if anything does.
    fn objection(
        &self,
        algorithm: &dyn Algorithm,
        shape: &Shape,
        terms: &Terms,
    ) -> Option<&'static str> {
        let lines = if shape.operation.reduces() {
            COMBINED_PACKET_LINES
        } else {
            PACKET_LINES
        };
        if !algorithm.supports(shape) {
            Some("does not plan this operation")
        } else if algorithm.by_groups() && self.site.hosts.is_none() {
            Some("needs more than one host")
        } else if algorithm.has_packets() && !self.site.maps_all() {
            Some("needs ranks that all map each other's memory")
        } else if algorithm.lends() && !(terms.lends && self.site.maps_all()) {
            Some("needs ranks that can read each other's memory")
        } else if algorithm.lends() && self.loses_by_loans(shape) {
            Some("takes longer than by scratch memory, as measured")
        } else if algorithm.has_packets() && hcomm_data::packet_lines(shape.count_bytes()) > lines {
            Some("has too many lines a packet")
        } else if terms.deterministic && !algorithm.combines_in_rank_order(shape) {
            Some("does not combine in rank order")
        } else {
            None
        }
    }

    /// Where memory that ranks lend is known not to pay. A correction: the model has one number for
    /// what the system's copy costs. Measured on a Granite Rapids beside `mesh_two_shot`: reductions
    /// of 64 KiB 1.8 of the time, of 16 MiB up to 1.2; broadcasts of ranks that share cores 1.3, as
    /// they all go to one rank's memory; and where the outputs are more than the caches hold 1.0 to
    /// 1.9, as others store them past the caches.
    fn loses_by_loans(&self, shape: &Shape) -> bool {
        let shares_cores = self.site.cores_of(shape.ranks).1 > 1;
        let outputs: u64 = shape.all_ranks().map(|rank| shape.output_bytes(rank)).sum();
        shape.operation.reduces()
            || (shape.operation.root().is_some() && shares_cores)
            || outputs >= hcomm_data::MOST_CACHED_BYTES as u64
    }

    /// With each length of slices and number of flows that makes a difference.
    fn by_slices(
        &self,
        algorithm: &dyn Algorithm,
        shape: &Shape,
        terms: &Terms,
        slices: &[u64],
        flows: &[u32],
    ) -> Result<Vec<Candidate>, String> {
        let mut found = Vec::new();
        let mut refusal = None;
        let mut seen = Vec::new();
        let shares_cores = self.site.cores_of(shape.ranks).1 > 1;
        for &flows in flows {
            let is_short = shape.total_bytes() / u64::from(flows) < LEAST_FLOW_BYTES;
            let divides = || !self.site.maps_all() && algorithms::flows(algorithm, shape);
            if flows > 1 && (is_short || !divides()) {
                continue;
            }
            for &slice_bytes in slices {
                // What is smaller than a slice is one in any case: the first stands for all.
                let is_one = shape.total_bytes() <= slice_bytes.min(SLICES[0]);
                if slice_bytes != SLICES[0] && (is_one || shares_cores) {
                    continue;
                }
                let params = self.params(terms, slice_bytes, flows);
                let prediction = match self.predict(algorithm, shape, &params) {
                    Ok(prediction) => prediction,
                    Err(why) => {
                        refusal = Some(why);
                        continue;
                    }
                };
                // Most plans that do not cut into slices are the same whatever their length.
                if seen.contains(&prediction) {
                    continue;
                }
                seen.push(prediction);
                found.push(Candidate {
                    means: Means {
                        name: algorithm.name(),
                        slice_bytes,
                        flows,
                    },
                    prediction,
                });
            }
        }
        match refusal {
            Some(why) if found.is_empty() => Err(why),
            _ => Ok(found),
        }
    }

    /// A broadcast by messages: the root stores what goes into the ring of each receiver and does not
    /// wait for anybody, so that ranks on a core take turns as they like, and a receiver that is
    /// behind finds the next message there.
    pub(crate) fn stream(&self, shape: &Shape, terms: &Terms) -> Option<Prediction> {
        let bytes = shape.count_bytes();
        let is_broadcast = matches!(shape.operation, Operation::Broadcast { .. });
        let fits = shape.ranks == 2 || bytes <= terms.stream_bytes;
        if !is_broadcast || shape.ranks < 2 || shape.is_nothing() || !self.site.maps_all() || !fits
        {
            return None;
        }
        let (cores, sharing) = self.site.cores_of(shape.ranks);
        let root = shape.operation.root().unwrap_or(Rank(0));
        let Machine {
            call_ns,
            task_ns,
            signals,
            memory,
            ..
        } = &self.machine;
        let pieces = if bytes > CELLS_BYTES {
            bytes.div_ceil(PIECE_BYTES)
        } else {
            0
        };
        let user = bytes.saturating_mul(sharing);
        // A ring goes round before a byte of it is touched again, and data goes round beside it.
        let ring = terms.stream_bytes.saturating_mul(2).max(1);
        let cost = |touch, distance| memory.cost_ps(touch, distance, bytes);
        let mut busy = vec![0_u64; cores.len()];
        let mut root_busy = 0;
        for rank in shape.all_ranks() {
            let near = cores[rank.index()] == cores[root.index()];
            let (put, take) = if near {
                (Touch::Write, Touch::Read)
            } else {
                (Touch::Put, Touch::Fetch)
            };
            let own = &mut busy[cores[rank.index()] as usize];
            if rank == root {
                *own += 1000 * u64::from(*call_ns);
                continue;
            }
            let (late, first) = if near {
                (0, 0)
            } else {
                (signals.late_ns, signals.fetch_ns)
            };
            let told = 1000 * pieces.max(1) * u64::from(task_ns + late);
            *own += 1000 * (u64::from(*call_ns) + pieces * u64::from(first)) + told;
            *own += cost(take, ring) + cost(Touch::Write, user);
            root_busy += told + cost(Touch::Read, user) + cost(put, ring);
        }
        busy[cores[root.index()] as usize] += root_busy;
        let total_ps = busy.into_iter().max().unwrap_or(0);
        let calling_ps = 1000 * u64::from(*call_ns);
        Some(Prediction {
            total_ps,
            spent: Spent {
                calling_ps,
                moving_ps: total_ps.saturating_sub(calling_ps),
                ..Spent::default()
            },
        })
    }
}

/// The first in the order of the list of those that the model cannot tell from the fastest.
fn best(candidates: &[Candidate]) -> Option<&Candidate> {
    let fastest = candidates.first()?.prediction.total_ps;
    let draw = fastest.saturating_add(fastest / 100 * DRAW_PERCENT);
    let rank = |means: &Means| {
        let by_name = algorithms::algorithms()
            .iter()
            .position(|algorithm| algorithm.name() == means.name);
        let by_slice = SLICES.iter().position(|slice| *slice == means.slice_bytes);
        // Messages are in no list, and come first.
        (by_name.map_or(0, |at| at + 1), means.flows, by_slice)
    };
    candidates
        .iter()
        .take_while(|candidate| candidate.prediction.total_ps <= draw)
        .min_by_key(|candidate| rank(&candidate.means))
}

/// Where there is nothing to choose.
fn only_one(shape: &Shape) -> Option<Means> {
    let name = match shape.operation {
        Operation::SendRecv { .. } => "pair",
        // Each pair for itself, as a rank may know no others.
        Operation::AllToAll if !shape.count.is_even() => "pairwise",
        _ if shape.ranks == 1 => "mesh_one_shot",
        Operation::Barrier => return None,
        _ if shape.is_nothing() => "mesh_one_shot",
        _ => return None,
    };
    Some(Means {
        name,
        slice_bytes: SLICES[0],
        flows: 1,
    })
}

/// The shape that stands for all of its step: not in place, with rank 0 as root, with the largest
/// count for all.
pub(crate) fn step_of(shape: &Shape) -> Shape {
    let root = Rank(0);
    let operation = match shape.operation {
        Operation::Reduce { .. } => Operation::Reduce { root },
        Operation::Broadcast { .. } => Operation::Broadcast { root },
        Operation::Scatter { .. } => Operation::Scatter { root },
        Operation::Gather { .. } => Operation::Gather { root },
        other => other,
    };
    let bytes = match operation {
        Operation::Barrier => 0,
        _ => largest_of_step(shape.count_bytes()),
    };
    Shape {
        operation,
        count: bytes.div_ceil(shape.element_bytes()).into(),
        // A broadcast has one buffer, the others have two.
        in_place: matches!(operation, Operation::Broadcast { .. }),
        ..shape.clone()
    }
}

/// The end of the step that a size is in: four of them lead from a power of two to the next.
fn largest_of_step(bytes: u64) -> u64 {
    const STEPS: u64 = 4;
    if bytes <= 64 || bytes > 1 << 62 {
        return bytes;
    }
    let base = bytes.next_power_of_two() / 2;
    let step = base / STEPS;
    base + (bytes - base).div_ceil(step) * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_in_the_step_that_ends_at_or_above_it() {
        for (bytes, end) in [
            (0, 0),
            (1, 1),
            (64, 64),
            (65, 80),
            (80, 80),
            (81, 96),
            (113, 128),
            (128, 128),
            (129, 160),
            (1 << 20, 1 << 20),
            ((1 << 20) + 1, 5 << 18),
        ] {
            assert_eq!(largest_of_step(bytes), end, "{bytes}");
        }
        let ends: Vec<u64> = (0..100_000).map(largest_of_step).collect();
        assert!(ends.is_sorted());
    }
}
