//! Recursive halving, then doubling: ranks whose numbers differ in one bit exchange halves of what
//! is left to combine, and then pass the results back the same way.
//!
//! A logarithmic number of steps and as few bytes as possible, so the choice for middle and large
//! sizes on a power of two of ranks. With other numbers each rank too many gives all it has to the
//! one before it, which acts for both; that costs two steps, and a whole buffer each way for
//! all-reduce: the ring or `nhr` may be better then.
//!
//! All-reduce works in the output and begins with the nearest partner, with whom it exchanges most.
//! Reduce-scatter begins with the farthest, so that blocks end in rank order, and keeps what it
//! combines for others in scratch memory, a slice at a time. All-gather is that of
//! `recursive_doubling`.
//!
//! Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur,
//! Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA
//! 2005.

use hcomm_types::Rank;

use super::blocks::{Folded, Step, TwoPhases};
use super::{Algorithm, Params, PlanError, begin, recursive_doubling};
use crate::plan::{Operation, RankPlan, Shape};

/// Partners exchange halves of halves.
#[derive(Clone, Copy, Debug)]
pub struct HalvingDoubling;

impl Algorithm for HalvingDoubling {
    fn name(&self) -> &'static str {
        "halving_doubling"
    }

    fn summary(&self) -> &'static str {
        "partners exchange halves of halves; few steps and few bytes, best on a power of two"
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
        let folded = Folded::new(shape.ranks);
        match shape.operation {
            Operation::AllReduce => {
                let blocks = folded.acting;
                // Who folds sends the whole buffer, others half of it.
                let joined = if folded.folds() > 0 {
                    blocks
                } else {
                    blocks / 2
                };
                all_reduce(&folded, rank).all_reduce(self, shape, params, rank, (blocks, joined))
            }
            Operation::ReduceScatter => {
                reduce_scatter(&folded, rank).reduce_scatter(self, shape, params, rank)
            }
            _ => recursive_doubling::all_gather(self, shape, params, rank),
        }
    }
}

/// A block for each rank that acts.
pub(super) fn all_reduce(folded: &Folded, me: Rank) -> TwoPhases {
    let all = |_| (0..folded.acting).collect::<Vec<u32>>();
    let mut halving = vec![Step::default(); folded.steps() as usize];
    let mut doubling = halving.clone();
    if let Some(number) = folded.number(me) {
        let (mut first, mut blocks) = (0, folded.acting);
        for bit in 0..folded.steps() {
            blocks /= 2;
            let partner = folded.rank(number ^ (1 << bit));
            let (low, high) = (first, first + blocks);
            let (kept, given) = if number >> bit & 1 == 0 {
                (low, high)
            } else {
                (high, low)
            };
            let half = |first: u32| Some((partner, (first..first + blocks).collect()));
            halving[bit as usize] = Step {
                send: half(given),
                receive: half(kept),
            };
            doubling[(folded.steps() - 1 - bit) as usize] = Step {
                send: half(kept),
                receive: half(given),
            };
            first = kept;
        }
    }
    let mut reduce = folded.fold_in(me, all);
    reduce.extend(halving);
    let mut gather = doubling;
    gather.extend(folded.fold_out(me, all));
    TwoPhases { reduce, gather }
}

/// A block for each rank, which ends there.
fn reduce_scatter(folded: &Folded, me: Rank) -> TwoPhases {
    let mut reduce = folded.fold_in(me, |_| (0..folded.ranks()).collect());
    for bit in (0..folded.steps()).rev() {
        let half = |number: u32| {
            let first = number >> bit << bit;
            folded.behind(first..first + (1 << bit))
        };
        reduce.push(folded.number(me).map_or_else(Step::default, |number| {
            let partner = number ^ (1 << bit);
            Step {
                send: Some((folded.rank(partner), half(partner))),
                receive: Some((folded.rank(partner), half(number))),
            }
        }));
    }
    let gather = folded.fold_out(me, |receiver| vec![receiver.0]);
    TwoPhases { reduce, gather }
}
