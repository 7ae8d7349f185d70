//! Two binary trees at once, each for half of the data: who passes on in one is at the end of the other.
//!
//! In one tree the ranks at its ends, half of all, send nothing downwards and receive nothing upwards;
//! their other wire is idle, and the ranks inside send twice what they receive. With a second tree in
//! which these change places every rank sends and receives as much as on a ring, in a logarithmic number
//! of steps: the choice for middle sizes on many ranks, and for broadcast and reduce of large ones.
//!
//! Positions are counted from the root in rank order, and the root is above both trees. The first tree
//! has its positions from left to right: a position whose number is odd has none below it. The second is
//! the same one turned round, or for an odd number of positions moved by one, so that what was odd is
//! even.
//!
//! Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
//! Parallel Computing 35, 2009.

use hcomm_types::Rank;

use super::tree::{Tree, goes_along, plan_along};
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{RankPlan, Shape};

/// Two binary trees, half of the data along each.
#[derive(Clone, Copy, Debug)]
pub struct DoubleTree;

impl Algorithm for DoubleTree {
    fn name(&self) -> &'static str {
        "double_tree"
    }

    fn summary(&self) -> &'static str {
        "two binary trees, half of the data along each; who passes on in one is at the end of the other"
    }

    fn supports(&self, shape: &Shape) -> bool {
        goes_along(shape.operation)
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let root = shape.operation.root().unwrap_or(Rank(0));
        plan_along(&trees(shape.ranks, root), self, shape, params, rank)
    }
}

/// The two trees.
fn trees(ranks: u32, root: Rank) -> [Tree; 2] {
    let last = ranks - 1;
    let first = Tree::of_positions(ranks, root, |position| above(position, last));
    // Where the second tree has what the first has at a position. The root keeps its place.
    let turned = |position: u32| match position {
        0 => 0,
        _ if last.is_multiple_of(2) => last + 1 - position,
        _ => position % last + 1,
    };
    let at = |position: u32| {
        Rank(((u64::from(root.0) + u64::from(turned(position))) % u64::from(ranks)) as u32)
    };
    let pairs = (1..ranks).map(|position| (at(position), at(above(position, last))));
    [first, Tree::new(ranks, pairs)]
}

/// The position above another one among those up to `last`, which have the root at 0 above them. Those
/// below a position are the ones around it that its lowest bit divides evenly.
fn above(position: u32, last: u32) -> u32 {
    let position = u64::from(position);
    let bit = position & position.wrapping_neg();
    let left = position ^ bit;
    let right = left | bit << 1;
    (if right <= u64::from(last) {
        right
    } else {
        left
    }) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_passes_on_in_both_trees() {
        for ranks in 2..200 {
            let root = Rank(ranks / 3);
            let both = trees(ranks, root);
            for tree in &both {
                assert!(tree.fan() <= 2);
                assert!(tree.depth() <= u64::from(ranks.ilog2()) + 1, "{ranks}");
                assert_eq!(tree.below(root).len(), ranks as usize);
            }
            let inside = |rank: Rank| {
                both.iter()
                    .filter(|tree| tree.below(rank).len() > 1)
                    .count()
            };
            for rank in (0..ranks).map(Rank).filter(|rank| *rank != root) {
                assert!(inside(rank) <= 1, "{rank} of {ranks}");
            }
        }
    }
}
