//! A binary tree: reduce goes up, broadcast goes down, all-reduce up and then down.
//!
//! The data is cut into slices that follow each other through the tree, so each link carries every
//! byte once each way, whatever the number of ranks: the choice for middle sizes on many ranks,
//! where the steps of a ring cost too much and the whole buffers of a `knomial` tree as well. A
//! rank with two children receives twice what it sends, so the ring is better for large sizes.
//!
//! Ranks below the root send a few slices up before they take the first result, as many as the
//! scratch memory has slots for and a slice takes to come back.
//!
//! Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice, and
//! experience", Concurrency and Computation 2007; the idea of going on in slices along a tree is
//! older.

use hcomm_types::Rank;

use super::tree::{Tree, goes_along};
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{RankPlan, Shape};

/// Every rank has up to two children.
#[derive(Clone, Copy, Debug)]
pub struct BinaryTree;

impl Algorithm for BinaryTree {
    fn name(&self) -> &'static str {
        "binary_tree"
    }

    fn summary(&self) -> &'static str {
        "up or down a tree of two children, in slices that follow each other"
    }

    fn supports(&self, shape: &Shape) -> bool {
        goes_along(shape.operation)
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let root = shape.operation.root().unwrap_or(Rank(0));
        let tree = Tree::of_positions(shape.ranks, root, |position| (position - 1) / 2);
        tree.plan(self, shape, params, rank)
    }
}
