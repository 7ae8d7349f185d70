//! A k-nomial tree of radix 4: from the root ranks are counted in base 4, and the parent of a rank
//! is the one whose number lacks the lowest digit.
//!
//! The tree has as many levels as the number of ranks has digits, and the root three children a
//! level: the choice for small sizes on many ranks, where a star would have too many messages at
//! the root and a binary tree too many levels. What is below a rank is a row of ranks, so a
//! reduction combines in rank order, counted from the root.
//!
//! Gather and scatter pass the parts of others on one by one, so no rank but the root holds more
//! than a few slots of them; every part is sent once a level.
//!
//! The binomial tree, radix 2, is described by Chan, Heimlich, Purkayastha, van de Geijn,
//! "Collective communication: theory, practice, and experience", Concurrency and Computation 2007;
//! that with another radix is known as the k-nomial tree.

use hcomm_types::Rank;

use super::tree::Tree;
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Operation, RankPlan, Shape};

/// Half as many levels as with 2. The last of the three children of a level is sent to after two
/// others, so one level is faster than two with radix 2 where sending a message takes its sender
/// less than half of the time until it is there; a larger radix needs still less. To be replaced by
/// the cost model.
const RADIX: u64 = 4;

/// A tree of radix 4.
#[derive(Clone, Copy, Debug)]
pub struct Knomial;

impl Algorithm for Knomial {
    fn name(&self) -> &'static str {
        "knomial"
    }

    fn summary(&self) -> &'static str {
        "a tree of radix 4; for small sizes on many ranks"
    }

    fn supports(&self, shape: &Shape) -> bool {
        matches!(
            shape.operation,
            Operation::Broadcast { .. }
                | Operation::Reduce { .. }
                | Operation::Gather { .. }
                | Operation::Scatter { .. }
                | Operation::Barrier
        )
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let root = shape.operation.root().unwrap_or(Rank(0));
        tree(shape.ranks, root).plan(self, shape, params, rank)
    }
}

/// The tree of radix 4.
pub(super) fn tree(ranks: u32, root: Rank) -> Tree {
    Tree::of_positions(ranks, root, parent)
}

/// The position without its lowest digit that is not zero.
pub(super) fn parent(position: u32) -> u32 {
    let position = u64::from(position);
    let mut digit = RADIX;
    while position.is_multiple_of(digit) && position > 0 {
        digit *= RADIX;
    }
    (position - position % digit) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_lacks_the_lowest_digit() {
        let parents = [1, 3, 4, 7, 12, 16, 17, 20, 63, 1 << 30, u32::MAX].map(parent);
        assert_eq!(parents, [0, 0, 0, 4, 0, 0, 16, 16, 60, 0, u32::MAX - 3]);
    }
}
