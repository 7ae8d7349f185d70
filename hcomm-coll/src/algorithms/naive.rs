//! A star: one rank receives from all others, or sends to all others, and nobody else does
//! anything.
//!
//! What one would write down first, and what others are measured against. With two or three ranks
//! it is as good as any; with more the root's link and its core are what all wait for. All-reduce
//! is a reduction to rank 0, in rank order, and a broadcast of the result.

use hcomm_types::{MAX_NOTIFIES_PER_THREAD, Rank};

use super::tree::Tree;
use super::{Algorithm, Params, PlanError, begin, check_notifies};
use crate::plan::{Operation, RankPlan, Shape};

/// One rank does everything.
#[derive(Clone, Copy, Debug)]
pub struct Naive;

impl Algorithm for Naive {
    fn name(&self) -> &'static str {
        "naive"
    }

    fn summary(&self) -> &'static str {
        "one rank does everything; to compare with"
    }

    fn supports(&self, shape: &Shape) -> bool {
        matches!(
            shape.operation,
            Operation::AllReduce
                | Operation::Reduce { .. }
                | Operation::Broadcast { .. }
                | Operation::Gather { .. }
                | Operation::Scatter { .. }
        )
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let root = shape.operation.root().unwrap_or(Rank(0));
        let tree = Tree::of_positions(shape.ranks, root, |_| 0);
        // Of more ranks the root may have to wait for more than it can. All ranks refuse alike.
        if 2 * shape.ranks as usize > MAX_NOTIFIES_PER_THREAD {
            check_notifies(self, root, &tree.plan(self, shape, params, root)?)?;
        }
        tree.plan(self, shape, params, rank)
    }
}
