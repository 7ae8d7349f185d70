//! Recursive distance on a ring, one way: in step *k* every rank sends to the one 2^*k* to its left
//! and receives from the one 2^*k* to its right.
//!
//! As few bytes as on a ring in a logarithmic number of steps, for any number of ranks: the choice
//! for middle and large sizes where that number is no power of two, so that `halving_doubling`
//! would have to fold, or is so large that the steps of a ring cost too much.
//!
//! A block for each rank. The block of rank *b* is combined along a tree of all ranks: who is *d* to
//! the right of *b* sends in the step of the lowest bit of *d*, to the rank that lies nearer by
//! that bit, after all that stand behind it have sent to it. All trees are the same one turned, so
//! every rank sends in step *k* each second, fourth, eighth and so on of the blocks, and all ranks
//! do the same work in each step. Blocks that are sent together lie apart, which costs messages
//! on the link but no copies. All-gather is the same backwards.
//!
//! The HCCL user guide ("Algorithm Overview", Huawei, 2025) has an algorithm of this name, the
//! nonuniform hierarchical ring. It says that its steps are logarithmic in number and when to take
//! it, but not who sends what in which step; so the steps here are our own, and the name says for
//! what it is meant. The trees are those of Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient
//! algorithms for all-to-all communications in multiport message-passing systems", IEEE TPDS 1997.

use hcomm_types::Rank;

use super::blocks::{Step, TwoPhases};
use super::recursive_doubling::gather;
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Operation, RankPlan, Shape};

/// Every rank sends one way, at growing distance.
#[derive(Clone, Copy, Debug)]
pub struct Nhr;

impl Algorithm for Nhr {
    fn name(&self) -> &'static str {
        "nhr"
    }

    fn summary(&self) -> &'static str {
        "every rank sends one way at growing distance; few steps and few bytes on any number of ranks"
    }

    fn supports(&self, shape: &Shape) -> bool {
        matches!(
            shape.operation,
            Operation::AllReduce | Operation::ReduceScatter | Operation::AllGather
        )
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let reduce = steps(shape.ranks, rank);
        let backwards = reduce.iter().rev().map(|step| Step {
            send: step.receive.clone(),
            receive: step.send.clone(),
        });
        let backwards: Vec<Step> = backwards.collect();
        match shape.operation {
            Operation::AllReduce => {
                let phases = TwoPhases {
                    reduce,
                    gather: backwards,
                };
                phases.all_reduce(self, shape, params, rank, (shape.ranks, 1))
            }
            Operation::ReduceScatter => {
                let phases = TwoPhases {
                    reduce,
                    gather: Vec::new(),
                };
                phases.reduce_scatter(self, shape, params, rank)
            }
            _ => gather(self, shape, params, rank, &backwards),
        }
    }
}

/// The steps that combine.
fn steps(ranks: u32, me: Rank) -> Vec<Step> {
    // In 64 bits, as distances beyond the last rank are looked at.
    let (ranks, me) = (u64::from(ranks), u64::from(me.0));
    let turned = |distance: u64| Rank(((me + distance) % ranks) as u32);
    let step = |bit: u32| {
        let by = 1u64 << bit;
        // Distances from the owner at which a rank sends in this step.
        let distances = || (by..ranks).step_by(2 << bit);
        // The owner of a block that is `distance` to the right of it is that far to the left.
        let sent = distances().map(|distance| turned(ranks - distance).0);
        let received = distances().map(|distance| turned(ranks - distance + by).0);
        Step {
            send: Some((turned(ranks - by), sent.collect())),
            receive: Some((turned(by), received.collect())),
        }
    };
    (0..ranks.next_power_of_two().ilog2()).map(step).collect()
}
