//! Which way an operation should go on a cluster that is not here.
//!
//! A [`Way`] is an algorithm with all that it may be given: groups, an order of ranks, lengths of slices,
//! flows. There are hundreds for a shape. [`choose`] tries each algorithm, by each division of ranks and
//! in each order, in long slices that follow each other and in short ones over several flows, and all
//! other lengths and numbers only for those that come close to the fastest. [`ways`] lists them all, for
//! whoever wants to know what that misses.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use hcomm_topo::RankGraph;
use hcomm_types::Rank;

use super::{Outcome, Rates, SimulateError, simulate_within};
use crate::algorithms::{self, Algorithm, Ordered, Params, PlanError, over_wires};
use crate::plan::{RankPlan, Shape, Task};

/// Lengths of slices that are tried, the longest first.
const SLICES: [u64; 4] = [4 << 20, 1 << 20, 256 << 10, 64 << 10];

/// Numbers of flows that are tried.
const FLOWS: [u32; 3] = [1, 2, 4];

/// Slices and flows for the first comparison: few tasks, and a pipeline that is full.
const FIRST: [(u64, u32); 2] = [(SLICES[0], 1), (64 << 10, 4)];

/// Scratch memory of a rank, so that plans for hundreds of groups fit.
const SCRATCH_BYTES: u64 = 400 << 20;

/// Ranks up to which all of them are tried as one group, too.
const ONE_GROUP: u32 = 256;

/// Ranks up to which orders are tried: of more the graph lays them out by where they are, which is
/// mostly the order that they are in.
pub const ORDERED: u32 = 128;

/// A way that is so many percent slower than the fastest is not tried with other slices and flows.
const CLOSE_PERCENT: u64 = 50;

/// Pairs of ranks that talk to each other in a small plan.
const SMALL_PAIRS: u64 = 20_000;

/// A task of what goes by several groups, beside one unit of [`Limits::work`].
const TASK_WORK: u64 = 200;

/// How large plans may be that are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tasks of all ranks; four times as many of what goes by several groups.
    pub tasks: u64,
    /// Tasks, times the pairs of ranks that talk to each other, of what does not: where all meet on the
    /// same wires, each message changes what all others get. A tenth of the tasks may be more work, of
    /// up to 20,000 pairs.
    pub work: u64,
    /// The same of all ways together: when it is used up, what was found until then counts.
    pub total: u64,
    /// Scratch memory that a plan may take of each rank.
    pub scratch_bytes: u64,
}

impl Limits {
    /// Whatever can be planned in the scratch memory of a choice.
    const NONE: Self = Self {
        tasks: u64::MAX,
        work: u64::MAX,
        total: u64::MAX,
        scratch_bytes: SCRATCH_BYTES,
    };

    /// For a choice: seconds, of some hundred ranks.
    pub const CHOICE: Self = Self {
        tasks: 500_000,
        work: 40_000_000,
        total: u64::MAX,
        scratch_bytes: SCRATCH_BYTES,
    };

    /// Whether a way is looked at: there is a plan, and it is not too large.
    #[must_use]
    pub fn admit(&self, way: &Way, shape: &Shape) -> bool {
        self.work_of(way, shape).is_some()
    }

    /// The work of a way that is looked at.
    fn work_of(&self, way: &Way, shape: &Shape) -> Option<u64> {
        let (tasks, pairs) = way.size(shape).ok()?;
        let work = tasks.saturating_mul(pairs);
        if way.is_divided() {
            let admitted = tasks <= self.tasks.saturating_mul(4);
            return admitted.then(|| work.min(tasks.saturating_mul(TASK_WORK)));
        }
        let is_small = tasks <= self.tasks / 10 && pairs <= SMALL_PAIRS;
        let admitted = tasks <= self.tasks && (work <= self.work || is_small);
        admitted.then_some(work)
    }
}

/// How an operation may go.
#[derive(Clone)]
pub struct Way {
    /// The algorithm.
    pub algorithm: &'static dyn Algorithm,
    /// What it is given.
    pub params: Params,
    /// What its groups are, where it goes by groups.
    pub groups: Option<Arc<str>>,
    /// By position: its rank, where that is not the order of numbers.
    pub order: Option<Arc<[Rank]>>,
}

impl Way {
    /// Whether it goes by several groups.
    fn is_divided(&self) -> bool {
        let groups = self.params.groups.as_deref().unwrap_or(&[]);
        groups.iter().any(|group| *group != groups[0])
    }

    fn is_same(&self, other: &Self) -> bool {
        self.algorithm.name() == other.algorithm.name()
            && self.params == other.params
            && self.order == other.order
    }

    /// What one rank does.
    ///
    /// # Errors
    /// If there is no plan.
    pub fn plan_rank(&self, shape: &Shape, rank: Rank) -> Result<RankPlan, PlanError> {
        let ordered = self.order.clone();
        match ordered.and_then(|order| Ordered::new(self.algorithm, order)) {
            Some(ordered) => algorithms::plan_rank(&ordered, shape, &self.params, rank),
            None => algorithms::plan_rank(self.algorithm, shape, &self.params, rank),
        }
    }

    /// About how many tasks all ranks have, and how many pairs talk: as rank 0, times the ranks.
    ///
    /// # Errors
    /// If there is no plan.
    pub fn size(&self, shape: &Shape) -> Result<(u64, u64), PlanError> {
        let first = self.plan_rank(shape, Rank(0))?;
        let peers = first.threads.iter().flatten().filter_map(Task::peer);
        let peers: BTreeSet<Rank> = peers.collect();
        let times = |each: usize| (each as u64).saturating_mul(shape.ranks.into());
        Ok((times(first.task_count()), times(peers.len())))
    }

    /// The algorithm, by which groups and in which order, for people.
    #[must_use]
    pub fn name(&self) -> String {
        let mut name = self.algorithm.name().to_owned();
        if let Some(groups) = &self.groups {
            name.push_str(" by ");
            name.push_str(groups);
        }
        if self.order.is_some() {
            name.push_str(" in a fitted order");
        }
        name
    }

    /// Runs it.
    ///
    /// # Errors
    /// As [`simulate`](super::simulate).
    pub fn run(
        &self,
        graph: &RankGraph,
        shape: &Shape,
        rates: Rates,
    ) -> Result<Outcome, SimulateError> {
        self.run_within(graph, shape, rates, u64::MAX)
    }

    /// Runs it, up to so many picoseconds of virtual time.
    ///
    /// # Errors
    /// As [`simulate_within`].
    pub fn run_within(
        &self,
        graph: &RankGraph,
        shape: &Shape,
        rates: Rates,
        most_ps: u64,
    ) -> Result<Outcome, SimulateError> {
        simulate_within(graph, shape, rates, most_ps, |rank| {
            self.plan_rank(shape, rank)
        })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        write!(f, ", slices of {} KiB", self.params.slice_bytes >> 10)?;
        if self.params.flows > 1 {
            write!(f, ", {} flows", self.params.flows)?;
        }
        Ok(())
    }
}

/// All ways for a shape.
#[must_use]
pub fn ways(graph: &RankGraph, shape: &Shape) -> Vec<Way> {
    let plain = plain_ways(graph, shape, &Limits::NONE);
    plain.iter().flat_map(|way| variants(way, shape)).collect()
}

/// The way that is taken, and its outcome; none if nothing within the limits can be simulated. Ways of
/// less than a 10,000th of a difference are equal: the first of the list is taken.
#[must_use]
pub fn choose(
    graph: &RankGraph,
    shape: &Shape,
    rates: Rates,
    limits: Limits,
) -> Option<(Way, Outcome)> {
    // Who is behind the fastest so far is not followed to its end.
    let mut left = limits.total;
    let mut run = |way: &Way, most_ps: u64| {
        let work = limits.work_of(way, shape)?;
        left = left.checked_sub(work)?;
        let outcome = way.run_within(graph, shape, rates, most_ps).ok()?;
        Some((way.clone(), outcome))
    };
    let near = |fastest: u64| fastest.saturating_add(fastest / 100 * CLOSE_PERCENT);
    let equal = |fastest: u64| fastest.saturating_add(fastest / 10_000);
    let is_first = |way: &Way| FIRST.contains(&(way.params.slice_bytes, way.params.flows));
    let mut found: Vec<(Way, Outcome)> = Vec::new();
    let mut close = Vec::new();
    let mut fastest = u64::MAX;
    // What goes by groups comes first: it is quick to look at, and mostly what is fastest.
    let (mut plain, others): (Vec<Way>, Vec<Way>) = plain_ways(graph, shape, &limits)
        .into_iter()
        .partition(Way::is_divided);
    plain.extend(others);
    for plain in plain {
        let all = variants(&plain, shape);
        // Of small sizes there are few.
        let first = all
            .iter()
            .filter(|way| is_first(way) || all.len() <= FLOWS.len());
        let mut own = u64::MAX;
        for way in first {
            let Some(tried) = run(way, near(fastest)) else {
                continue;
            };
            own = own.min(tried.1.total_ps);
            fastest = fastest.min(own);
            found.push(tried);
        }
        close.push((own, all));
    }
    let close = close.into_iter().filter(|(own, _)| *own <= near(fastest));
    let close: Vec<Way> = close.flat_map(|(_, all)| all).collect();
    for way in close {
        if found.iter().any(|(known, _)| known.is_same(&way)) {
            continue;
        }
        if let Some(tried) = run(&way, equal(fastest)) {
            fastest = fastest.min(tried.1.total_ps);
            found.push(tried);
        }
    }
    found
        .into_iter()
        .find(|(_, outcome)| outcome.total_ps <= equal(fastest))
}

/// Each algorithm, by each division and in each order.
fn plain_ways(graph: &RankGraph, shape: &Shape, limits: &Limits) -> Vec<Way> {
    let mut known: Vec<(Arc<str>, Arc<[u32]>)> = graph
        .groupings(shape.ranks)
        .into_iter()
        .map(|it| (it.name.into(), it.groups.into()))
        .collect();
    if known.is_empty() || shape.ranks <= ONE_GROUP {
        let one = std::iter::repeat_n(0, shape.ranks as usize);
        known.push(("one group".into(), one.collect()));
    }
    let mut ways = Vec::new();
    for algorithm in over_wires().filter(|algorithm| algorithm.supports(shape)) {
        let params = |groups| Params {
            scratch_bytes: limits.scratch_bytes,
            slice_bytes: SLICES[0],
            groups,
            flows: 1,
        };
        if algorithm.by_groups() {
            ways.extend(known.iter().map(|(name, groups)| Way {
                algorithm,
                params: params(Some(Arc::clone(groups))),
                groups: Some(Arc::clone(name)),
                order: None,
            }));
            continue;
        }
        let way = Way {
            algorithm,
            params: params(None),
            groups: None,
            order: None,
        };
        if shape.ranks <= ORDERED
            && limits.admit(&way, shape)
            && let Ok(Some(order)) = Ordered::fitted(graph, algorithm, shape, &way.params)
        {
            ways.push(Way {
                order: Some(order),
                ..way.clone()
            });
        }
        ways.push(way);
    }
    ways
}

/// The same with all slices and flows, as far as these make a difference.
fn variants(way: &Way, shape: &Shape) -> Vec<Way> {
    let mut all = Vec::new();
    for flows in FLOWS {
        if flows > 1 && !algorithms::flows(way.algorithm, shape) {
            continue;
        }
        for slice_bytes in SLICES {
            // What is smaller than a slice is one in any case: the first stands for all.
            let is_one = shape.total_bytes() <= slice_bytes;
            if is_one && slice_bytes != SLICES[0] {
                continue;
            }
            let mut other = way.clone();
            other.params.slice_bytes = slice_bytes;
            other.params.flows = flows;
            all.push(other);
        }
    }
    all
}
