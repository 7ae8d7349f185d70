//! Built-in algorithms: generators of plans.
//!
//! | name | operations | how |
//! |---|---|---|
//! | `mesh_one_shot` | all but send_recv | every rank writes to every other, one step; for small sizes |
//! | `mesh_packet` | all but send_recv | as `mesh_one_shot`, in packets; for the smallest sizes where ranks map each other's memory |
//! | `mesh_two_shot` | all but send_recv and barrier | ranks offer slices in scratch memory and read each other's; for large sizes where ranks map each other's memory |
//! | `ring` | all_reduce, all_gather, reduce_scatter, broadcast | every rank writes to the next one only |
//! | `ring_bidirectional` | all_reduce, all_gather, reduce_scatter | half of everything goes each way round |
//! | `recursive_doubling` | all_reduce, all_gather, barrier | ranks at growing distance exchange all they have; for small sizes on many ranks |
//! | `halving_doubling` | all_reduce, reduce_scatter, all_gather | partners exchange halves of halves; both few steps and few bytes |
//! | `nhr` | all_reduce, reduce_scatter, all_gather | every rank sends one way at growing distance; few steps and few bytes for any number of ranks |
//! | `bruck` | all_gather, all_to_all of one count, barrier | every rank sends at doubling distance; for small sizes and any number of ranks |
//! | `pat` | all_gather, reduce_scatter | a tree for each block, small blocks together; few steps and little scratch memory for any number of ranks |
//! | `binary_tree` | reduce, broadcast, all_reduce | up or down a tree of two children, in slices that follow each other |
//! | `double_tree` | reduce, broadcast, all_reduce | two such trees, half of the data along each; who passes on in one is at the end of the other |
//! | `knomial` | broadcast, reduce, gather, scatter, barrier | a tree of radix 4; for small sizes on many ranks |
//! | `scatter_all_gather` | broadcast | parts go to all ranks, which pass them on along a ring; for large sizes |
//! | `naive` | all_reduce, reduce, broadcast, gather, scatter | one rank does everything: to compare with |
//! | `hierarchical` | all_reduce, all_gather, reduce_scatter, broadcast, barrier | within groups of ranks, across them, within again; for slow links between hosts |
//! | `hierarchical_log` | all_reduce | as `hierarchical`, in a logarithmic number of steps across; for many hosts |
//! | `pairwise` | all_to_all, also where each rank knows only its own counts | in each step one rank to send to and one to receive from |
//! | `rails` | all_to_all of one count | within groups to the rank of the receiver's index, then across between ranks of one index |
//! | `pair` | send_recv | two slots at the receiver, with credits |
//! | `handshake` | send_recv | request, grant, data: to be measured beside |
//!
//! Every rank plans for itself with [`Algorithm::plan_rank`]; [`Algorithm::plan`] puts all ranks
//! together for the verifier. All ranks must use the same [`Params`].
//!
//! What several of them have in common: `layout` (slices), `tasks` (writing down), `links` (messages
//! through slots), `blocks` (exchanges in a logarithmic number of steps), `tree`.
//!
//! Plans of every algorithm but the last two are synchronising, so they may follow each other on two
//! scratch halves used in turn. On every rank an output element has the same bits, and the mesh
//! algorithms combine in rank order, whatever the size.

mod binary_tree;
mod blocks;
mod bruck;
mod double_tree;
mod flows;
mod halving_doubling;
mod handshake;
mod hierarchical;
mod hierarchical_log;
mod knomial;
mod layout;
mod links;
mod mesh_one_shot;
mod mesh_packet;
mod mesh_two_shot;
mod naive;
mod nhr;
mod ordered;
mod pair;
mod pairwise;
mod pat;
mod pull;
mod rails;
mod recursive_doubling;
mod ring;
mod ring_bidirectional;
mod scatter_all_gather;
mod tasks;
mod tree;

use std::sync::Arc;

use hcomm_types::{MAX_NOTIFIES_PER_THREAD, Rank};

use crate::plan::{Buffer, Credit, Loc, Operation, Plan, PlanFormat, RankPlan, Shape, ShapeError};
use crate::verify::notifies_waited;
use tasks::Tasks;

pub use binary_tree::BinaryTree;
pub use bruck::Bruck;
pub use double_tree::DoubleTree;
pub use halving_doubling::HalvingDoubling;
pub use handshake::Handshake;
pub use hierarchical::Hierarchical;
pub use hierarchical_log::HierarchicalLog;
pub use knomial::Knomial;
pub use mesh_one_shot::MeshOneShot;
pub use mesh_packet::MeshPacket;
pub use mesh_two_shot::MeshTwoShot;
pub use naive::Naive;
pub use nhr::Nhr;
pub use ordered::Ordered;
pub use pair::Pair;
pub use pairwise::Pairwise;
pub use pat::Pat;
pub use pull::Pull;
pub use rails::Rails;
pub use recursive_doubling::RecursiveDoubling;
pub use ring::Ring;
pub use ring_bidirectional::RingBidirectional;
pub use scatter_all_gather::ScatterAllGather;

/// What an algorithm may use. The same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Params {
    /// Scratch memory of each rank for one operation, in bytes: one of the two halves.
    pub scratch_bytes: u64,
    /// Bytes that should be under way at once on a rank, so that they stay in its cache. A wish,
    /// kept in multiples of a cache line.
    pub slice_bytes: u64,
    /// The group of each rank, in rank order: ranks of one group share a host, or whatever else
    /// makes them near each other. The numbers mean nothing but that. `None`: all in one group.
    pub groups: Option<Arc<[u32]>>,
    /// Over how many threads a large operation flows, each with a part of every buffer; 1 for one.
    /// Operations whose counts differ from rank to rank, messages and packets go on one.
    pub flows: u32,
}

impl Params {
    /// Scratch memory that a plan may ask for: what there is, within what plans can say.
    pub(crate) fn scratch(&self) -> u64 {
        self.scratch_bytes.min(i64::MAX as u64)
    }
}

/// A generator of plans.
pub trait Algorithm: Send + Sync {
    /// Its name in plans, tables and on the command line.
    fn name(&self) -> &'static str;

    /// What it does and what it is for, in a line.
    fn summary(&self) -> &'static str {
        ""
    }

    /// Whether it can plan this.
    fn supports(&self, shape: &Shape) -> bool;

    /// Whether its plans combine every element in rank order, the input of each rank with all before
    /// it: then the bits of a result do not depend on the algorithm. Of two ranks all do.
    fn combines_in_rank_order(&self, shape: &Shape) -> bool {
        !shape.operation.reduces() || shape.ranks <= 2
    }

    /// Whether its plans may have packets, which need ranks that map each other's memory.
    fn has_packets(&self) -> bool {
        false
    }

    /// Whether its plans read input or output of other ranks, which need ranks that can read each
    /// other's memory.
    fn lends(&self) -> bool {
        false
    }

    /// Whether its plans depend on the groups of ranks ([`Params::groups`]).
    fn by_groups(&self) -> bool {
        false
    }

    /// Whether it plans messages between two ranks and nothing else. A wish for such a one is no
    /// wish for collectives.
    fn is_for_messages(&self) -> bool {
        false
    }

    /// What one rank does, in one flow.
    ///
    /// # Errors
    /// If the shape is impossible or not supported, or does not fit in the scratch memory.
    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError>;

    /// Notifies that begin above zero.
    fn credits(&self, shape: &Shape) -> Vec<Credit> {
        let _ = shape;
        Vec::new()
    }

    /// What all ranks do, in as many [flows](Params::flows) as asked for.
    ///
    /// # Errors
    /// As [`plan_rank`](Self::plan_rank).
    fn plan(&self, shape: &Shape, params: &Params) -> Result<Plan, PlanError> {
        shape.validate()?;
        let ranks = shape
            .all_ranks()
            .map(|rank| flows::plan_rank(self, shape, params, rank));
        Ok(Plan {
            format: PlanFormat::V1,
            algorithm: self.name().to_owned(),
            shape: shape.clone(),
            initial_credits: self.credits(shape),
            ranks: ranks.collect::<Result<_, _>>()?,
        })
    }
}

/// What one rank does, in as many [flows](Params::flows) as asked for.
///
/// # Errors
/// As [`Algorithm::plan_rank`].
pub fn plan_rank(
    algorithm: &dyn Algorithm,
    shape: &Shape,
    params: &Params,
    rank: Rank,
) -> Result<RankPlan, PlanError> {
    flows::plan_rank(algorithm, shape, params, rank)
}

/// Whether an operation by this algorithm can go in several flows.
pub(crate) fn flows(algorithm: &dyn Algorithm, shape: &Shape) -> bool {
    flows::divides(algorithm, shape)
}

/// All built-in algorithms.
#[must_use]
pub fn algorithms() -> &'static [&'static dyn Algorithm] {
    &[
        &MeshOneShot,
        &MeshPacket,
        &MeshTwoShot,
        &Ring,
        &RingBidirectional,
        &RecursiveDoubling,
        &HalvingDoubling,
        &Nhr,
        &Bruck,
        &Pat,
        &BinaryTree,
        &DoubleTree,
        &Knomial,
        &ScatterAllGather,
        &Naive,
        &Hierarchical,
        &HierarchicalLog,
        &Pairwise,
        &Rails,
        &Pull,
        &Pair,
        &Handshake,
    ]
}

/// All whose plans wires can carry: packets and memory that ranks lend are for ranks that map each
/// other's memory.
pub fn over_wires() -> impl Iterator<Item = &'static dyn Algorithm> {
    let all = algorithms().iter().copied();
    all.filter(|algorithm| !algorithm.has_packets() && !algorithm.lends())
}

/// The built-in algorithm of a name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static dyn Algorithm> {
    algorithms()
        .iter()
        .copied()
        .find(|algorithm| algorithm.name() == name)
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The shape makes no sense.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The algorithm does something else.
    #[error("{algorithm} cannot plan {operation}")]
    Unsupported {
        /// Name of the algorithm.
        algorithm: &'static str,
        /// Name of the operation.
        operation: &'static str,
    },
    /// The rank is not there.
    #[error("there is no rank {rank} among {ranks}")]
    NoSuchRank {
        /// The rank.
        rank: Rank,
        /// Number of ranks.
        ranks: u32,
    },
    /// Groups of other ranks.
    #[error("groups were given for {have} ranks, the operation has {need}")]
    Groups {
        /// For how many ranks there is a group.
        have: usize,
        /// Number of ranks.
        need: u32,
    },
    /// Too little scratch memory.
    #[error(
        "{algorithm} needs at least {need} bytes of scratch memory for this and has {limit}; raise \
         the communicator's scratch size"
    )]
    Scratch {
        /// Name of the algorithm.
        algorithm: &'static str,
        /// Least number of bytes it could work with.
        need: u64,
        /// What it was given.
        limit: u64,
    },
    /// More notifies than a thread can wait for, or than a flow has on a link.
    #[error(
        "{algorithm} needs {need} notifies on a thread or for a flow, which has at most {limit}; \
         take another algorithm, groups that leave each rank fewer peers, or one flow"
    )]
    Notifies {
        /// Name of the algorithm.
        algorithm: &'static str,
        /// How many it would wait for.
        need: usize,
        /// What a thread has.
        limit: usize,
    },
}

/// What all plans have in common at the beginning: checks, and the cases without a message.
fn begin(
    algorithm: &dyn Algorithm,
    shape: &Shape,
    rank: Rank,
) -> Result<Option<RankPlan>, PlanError> {
    shape.validate()?;
    if !algorithm.supports(shape) {
        return Err(PlanError::Unsupported {
            algorithm: algorithm.name(),
            operation: shape.operation.name(),
        });
    }
    if rank.0 >= shape.ranks {
        return Err(PlanError::NoSuchRank {
            rank,
            ranks: shape.ranks,
        });
    }
    if shape.is_nothing() && shape.operation != Operation::Barrier {
        return Ok(Some(RankPlan::default()));
    }
    let alone = match shape.operation {
        Operation::SendRecv { from, to } => from == to && from == rank,
        _ => shape.ranks == 1,
    };
    if !alone {
        return Ok(None);
    }
    let mut tasks = Tasks::new(shape, rank);
    if shape.operation != Operation::Barrier {
        tasks.keep_own(Loc::output(0), Loc::input(0), shape.count_bytes());
    }
    Ok(Some(tasks.finish(0)))
}

/// Whether each thread of a rank can wait for all that its plan waits for.
fn check_notifies(algorithm: &dyn Algorithm, rank: Rank, plan: &RankPlan) -> Result<(), PlanError> {
    for (thread, tasks) in plan.threads.iter().enumerate() {
        let need = notifies_waited(rank, thread, tasks);
        if need > MAX_NOTIFIES_PER_THREAD {
            return Err(PlanError::Notifies {
                algorithm: algorithm.name(),
                need,
                limit: MAX_NOTIFIES_PER_THREAD,
            });
        }
    }
    Ok(())
}

/// Whether two places of a rank are the same memory.
fn same_place(shape: &Shape, rank: Rank, a: Loc, b: Loc) -> bool {
    let place = |loc: Loc| -> (Buffer, u64) {
        let (home, base) = shape.home(rank, loc.buffer);
        (home, base + loc.offset)
    };
    place(a) == place(b)
}
