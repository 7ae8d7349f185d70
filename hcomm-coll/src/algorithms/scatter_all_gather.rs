//! Broadcast in two halves: the root scatters parts to all ranks, which then gather them along a
//! ring.
//!
//! The root sends its buffer little more than twice, however many ranks there are, and the others
//! receive it once or twice: the choice for large broadcasts where links do not share a path. For
//! small ones its steps, as many as ranks, cost too much.
//!
//! Parts go down a k-nomial tree, one by one, into the output, and from there round the ring,
//! which ends before the root, as that lacks nothing. One link comes from the parent and one from
//! the left.
//!
//! Barnett, Gupta, Payne, Shuler, van de Geijn, Watts, "Interprocessor collective communication
//! library (InterCom)", SHPCC 1994.

use std::ops::Range;

use hcomm_types::Rank;

use super::knomial;
use super::layout::{Slices, line_up};
use super::links::{Link, Slots};
use super::tasks::length;
use super::tree::Node;
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// Scatter, then a ring.
#[derive(Clone, Copy, Debug)]
pub struct ScatterAllGather;

impl Algorithm for ScatterAllGather {
    fn name(&self) -> &'static str {
        "scatter_all_gather"
    }

    fn summary(&self) -> &'static str {
        "parts go to all ranks, which pass them on along a ring; for large sizes"
    }

    fn supports(&self, shape: &Shape) -> bool {
        matches!(shape.operation, Operation::Broadcast { .. })
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let root = shape.operation.root().unwrap_or(Rank(0));
        let (ranks, bytes) = (u64::from(shape.ranks), shape.count_bytes());
        let cut = Slices::new(bytes, ranks, line_up(bytes));
        let slots = Slots::new(self, params, 2, 0, cut.part_bytes().min(bytes))?;
        // Of each rank, counted from the root.
        let position = |rank: Rank| (u64::from(rank.0) + ranks - u64::from(root.0)) % ranks;
        let part = |position: u64| cut.part(0, position);
        let tree = knomial::tree(shape.ranks, root);
        let mut node = Node::new(&tree, shape, slots, rank, 0);
        node.announce();
        let mine = position(rank);
        node.scatter(&|rank| part(position(rank)), part(mine).start);
        let neighbour = |steps: u64| Rank(((u64::from(rank.0) + steps) % ranks) as u32);
        let (to, from) = (neighbour(1), neighbour(ranks - 1));
        for step in 0..ranks - 1 {
            let sent = [part((mine + ranks - step) % ranks)];
            let received = [part((mine + 2 * ranks - 1 - step) % ranks)];
            let way = |there: bool, peer: Rank, range| -> Option<(Link, &[Range<u64>])> {
                there.then_some((Link::new(peer, 1, 1), range))
            };
            node.links.exchange(
                way(mine + 1 < ranks, to, &sent),
                way(mine > 0, from, &received),
                |offset| {
                    if mine == 0 {
                        Loc::input(offset)
                    } else {
                        Loc::output(offset)
                    }
                },
                |tasks, slot, piece| tasks.copy(Loc::output(piece.start), slot, length(&piece)),
            );
        }
        node.keep_own(Loc::output(0), Loc::input(0), bytes);
        node.release();
        Ok(node.links.finish(false))
    }
}
