//! Runs plans on clusters that are not here: discrete events over the rank graph.
//!
//! [`cost`](crate::cost) predicts what a plan takes where ranks share memory, or are joined by wires of
//! their own. Here wires are what counts: a message takes the link that the graph gives for its two
//! ranks, and shares every port, cable and switch on the way with all messages that are under way
//! there at the time. What is shared is shared fairly: nobody gets more than it can use, and what is
//! left goes to the others (max–min fairness). A message of *n* bytes is at its receiver α + *n*/β after
//! it began, where β is what it gets; messages from one rank to one other follow each other. Copies and
//! reductions take the time of the rank's own memory (γ).
//!
//! ```text
//!  algorithm ── plan_rank ──> tasks ──> steps, kept once for all ranks that do the same (template)
//!  rank graph ── links, path ──> segments, each with a capacity (wires)
//!                                     └──> events in virtual time (run) ──> Outcome
//! ```
//!
//! [`choose`] runs what may be good, and says what is best.
//!
//! Ranks that do the same with other peers share a template, so a plan of 16,384 ranks takes the
//! memory of a few; and each rank's plan is made, looked at and dropped.
//!
//! Times are whole picoseconds; rates are floats, as nothing that ranks have to agree on comes out of
//! this. The same input gives the same outcome on every machine with IEEE arithmetic.

mod choose;
mod outcome;
mod run;
mod template;
mod wires;

use hcomm_topo::RankGraph;
use hcomm_types::Rank;

use crate::algorithms::PlanError;
use crate::plan::{RankPlan, Shape};

pub use choose::{Limits, ORDERED, Way, choose, ways};
pub use outcome::{Load, Outcome, Transfer};

/// How fast a rank works on its own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Bytes copied in a second; 0 for no time at all.
    pub copy_bytes_per_s: u64,
    /// Bytes combined in a second, counted once; 0 for no time at all.
    pub reduce_bytes_per_s: u64,
    /// What each task costs, whatever its size, in nanoseconds.
    pub task_ns: u64,
}

impl Rates {
    /// Wires alone count.
    pub const NOTHING: Self = Self {
        copy_bytes_per_s: 0,
        reduce_bytes_per_s: 0,
        task_ns: 0,
    };

    /// Round numbers of an accelerator of 2024.
    pub const DEVICE: Self = Self {
        copy_bytes_per_s: 600_000_000_000,
        reduce_bytes_per_s: 400_000_000_000,
        task_ns: 200,
    };
}

/// Runs an operation: each rank does what `plan_rank` says.
///
/// # Errors
/// If there is no plan, if two ranks that talk have no link, if ranks wait for ever, or if the plans
/// of the ranks are too many and too different to be kept.
///
/// ```
/// use hcomm_coll::algorithms::{self, Params};
/// use hcomm_coll::plan::{Operation, Shape};
/// use hcomm_coll::simulate::{Rates, simulate};
/// use hcomm_types::{DataType, ReduceOp};
///
/// let cluster = r#"{"format": "hcomm-cluster", "version": 1, "nodes": [{"name": "a", "ranks": 4,
///     "wires": [{"protocol": "hccs", "shape": "ring", "gb_per_s": 10, "latency_ns": 1000}]}]}"#;
/// let graph = hcomm_topo::load(cluster, None)?.graph;
/// let shape = Shape {
///     operation: Operation::AllReduce,
///     ranks: 4,
///     count: (1 << 20).into(),
///     dtype: DataType::F32,
///     redop: ReduceOp::Sum.into(),
///     in_place: true,
/// };
/// let params = Params { scratch_bytes: 16 << 20, slice_bytes: 16 << 20, groups: None, flows: 1 };
/// let ring = algorithms::by_name("ring").expect("ring is built in");
/// let outcome = simulate(&graph, &shape, Rates::NOTHING, |rank| ring.plan_rank(&shape, &params, rank))?;
/// // 6 steps of 1 MiB, at 10 GB/s, and 1 µs each.
/// assert_eq!(outcome.total_ps / 1_000_000, 6 * (104 + 1) + 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn simulate(
    graph: &RankGraph,
    shape: &Shape,
    rates: Rates,
    plan_rank: impl FnMut(Rank) -> Result<RankPlan, PlanError>,
) -> Result<Outcome, SimulateError> {
    simulate_within(graph, shape, rates, u64::MAX, plan_rank)
}

/// [`simulate`], given up when more than `most_ps` picoseconds have passed in virtual time: whoever
/// looks for the fastest way need not see the end of the others.
///
/// # Errors
/// As [`simulate`]; `Longer` if it is given up.
pub fn simulate_within(
    graph: &RankGraph,
    shape: &Shape,
    rates: Rates,
    most_ps: u64,
    plan_rank: impl FnMut(Rank) -> Result<RankPlan, PlanError>,
) -> Result<Outcome, SimulateError> {
    if graph.size() < shape.ranks {
        return Err(SimulateError::Ranks {
            have: graph.size(),
            need: shape.ranks,
        });
    }
    let program = template::Program::compile(shape, rates, plan_rank)?;
    let wires = wires::Wires::of(graph, &program)?;
    run::Run::new(&program, wires).finish(graph, most_ps)
}

/// Why there is no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The graph is too small.
    #[error("the graph has {have} ranks, the operation {need}")]
    Ranks {
        /// Ranks of the graph.
        have: u32,
        /// Ranks of the operation.
        need: u32,
    },
    /// Two ranks that talk to each other have no link.
    #[error(
        "rank {from} sends to rank {to}, and nothing joins them; take an algorithm or groups that keep \
         to the links there are"
    )]
    NoLink {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
    },
    /// The speed of a link is not known.
    #[error("the link from rank {from} to rank {to} has no known speed")]
    NoSpeed {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
    },
    /// Ranks wait for what never comes.
    #[error("rank {rank} waits for ever at step {step} of thread {thread}")]
    Stuck {
        /// One of them.
        rank: Rank,
        /// Its thread.
        thread: usize,
        /// Its step.
        step: usize,
    },
    /// It takes longer than is of interest.
    #[error("it takes more than {} us, and was given up", most_ps / 1_000_000)]
    Longer {
        /// In virtual time, in picoseconds.
        most_ps: u64,
    },
    /// Plans that do not fit.
    #[error(
        "the plans of {ranks} ranks have {steps} different steps, at most {limit} are kept; take an \
         algorithm of fewer steps, or a size that divides evenly"
    )]
    TooLarge {
        /// Ranks that are planned so far.
        ranks: u32,
        /// Their steps.
        steps: usize,
        /// What is kept.
        limit: usize,
    },
}
