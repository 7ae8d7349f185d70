//! Parallel aggregated trees: each rank's block goes along a tree of its own, all at once, and as many
//! blocks as fit into a slice go in one message.
//!
//! For all_gather and reduce_scatter on any number of ranks. Of small blocks all that go the same
//! distance are sent together, which takes a logarithmic number of steps; of large ones each goes by
//! itself, half of them to the next rank. In between there are steps as many as it takes. A message of
//! several blocks has one notify. Far distances come first when gathering and last when reducing, and few
//! blocks go there.
//!
//! The tree of a block: who is *d* ranks to the right of its owner is below the one at *d* without its
//! lowest bit. Reducing, a rank sends a block on when all below it have sent theirs. The ranks of a tree
//! are gone through from the far end, those below a rank before it, so that at any time a rank holds
//! one sum at most for each level and each of the blocks that go together: scratch memory grows with the
//! logarithm of the number of ranks, where `nhr` and `halving_doubling` hold a block of every rank.
//!
//! What comes is taken only when it is needed, or when its slot is, so a rank may be some steps ahead.
//!
//! Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale",
//! arXiv 2506.20252, 2025; the trees are those of `nhr`.

use std::collections::VecDeque;
use std::ops::Range;

use hcomm_types::Rank;

use super::layout::{LINE, Slices, line_down, line_up};
use super::links::{Link, Links, Slots};
use super::tasks::length;
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// Trees of all blocks at once, blocks together as far as they fit.
#[derive(Clone, Copy, Debug)]
pub struct Pat;

impl Algorithm for Pat {
    fn name(&self) -> &'static str {
        "pat"
    }

    fn summary(&self) -> &'static str {
        "a tree for each block, all at once, small blocks together; few steps and little scratch memory"
    }

    fn supports(&self, shape: &Shape) -> bool {
        matches!(
            shape.operation,
            Operation::AllGather | Operation::ReduceScatter
        )
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let reduces = shape.operation.reduces();
        let bits = u64::from(u64::from(shape.ranks).next_power_of_two().ilog2());
        let bytes = shape.count_bytes();
        let places = |joined: u32| if reduces { bits - u64::from(joined) } else { 0 };
        // As many blocks together, by the power of two, as fit into a slice and twice into the links.
        let fits = |joined: &u32| {
            let units = (2 * bits + places(*joined)) << joined;
            let slice = line_down(params.slice_bytes).max(LINE);
            let block = line_up(bytes).max(LINE);
            block.saturating_mul(1 << joined) <= slice
                && block.saturating_mul(units) <= params.scratch()
        };
        let joined = (0..bits as u32).rev().find(fits).unwrap_or(0);
        let wide = 1 << joined;
        let slots = Slots::new(self, params, bits * wide, places(joined) * wide, bytes)?;
        let slices = Slices::new(bytes, 1, slots.bytes);
        let slots = slots.shrunk(slices.part_bytes());
        let steps = if reduces {
            reducing(shape.ranks, joined)
        } else {
            gathering(shape.ranks, joined)
        };
        let mut member = Member {
            shape,
            me: rank,
            low_bits: bits as u32 - joined,
            wide,
            part: slices.part_bytes(),
            held: vec![false; (places(joined) * wide) as usize],
            sums: false,
            coming: VecDeque::new(),
            ahead: slots.ahead() as usize,
            links: Links::new(shape, rank, slots),
        };
        for slice in 0..slices.count() {
            let cut = |bytes: u64| slices.slice_of(slice, bytes);
            if !reduces {
                let (own, place) = (cut(shape.part_bytes(rank)), shape.part(rank).start);
                let dst = Loc::output(place + own.start);
                let tasks = &mut member.links.tasks;
                tasks.keep_own(dst, Loc::input(own.start), length(&own));
            }
            member.run(&steps, &cut);
        }
        Ok(member.links.finish(false))
    }
}

/// What every rank does in one step: it sends what it has of the blocks whose owners are some distances
/// to the left of it, and gets the same of the rank that does so towards it.
struct Step {
    /// How far it is sent: 2 to the power of this.
    bit: u32,
    /// Distances of the owners from the sender, ascending.
    sent: Vec<u64>,
    /// Distances from the receiver.
    into: Vec<u64>,
}

/// Far distances first. Who is below another one is not sent to before that one has it.
fn gathering(ranks: u32, joined: u32) -> Vec<Step> {
    let ranks = u64::from(ranks);
    let mut steps = Vec::new();
    for bit in (0..ranks.next_power_of_two().ilog2()).rev() {
        let by = 1 << bit;
        let senders: Vec<u64> = (0..ranks - by).step_by(2 << bit).collect();
        for sent in senders.chunks(1 << joined) {
            steps.push(Step {
                bit,
                sent: sent.to_vec(),
                into: sent.iter().map(|distance| distance + by).collect(),
            });
        }
    }
    steps
}

/// Trees of the low bits first, those of all high bits together, each from its far end; then the high
/// bits.
fn reducing(ranks: u32, joined: u32) -> Vec<Step> {
    let ranks = u64::from(ranks);
    let bits = ranks.next_power_of_two().ilog2();
    let low = 1 << (bits - joined);
    let step = |sent: Vec<u64>, bit: u32| Step {
        bit,
        into: sent.iter().map(|distance| distance - (1 << bit)).collect(),
        sent,
    };
    let in_trees = (1..low.min(ranks)).rev().map(|distance: u64| {
        let sent = (distance..ranks).step_by(low as usize).collect();
        step(sent, distance.trailing_zeros())
    });
    let between = (bits - joined..bits).map(|bit| {
        let sent = (1 << bit..ranks).step_by(2 << bit).collect();
        step(sent, bit)
    });
    in_trees.chain(between).collect()
}

/// A rank, writing down what it does.
struct Member<'s> {
    shape: &'s Shape,
    me: Rank,
    /// Bits of distances whose trees are gone through one after the other.
    low_bits: u32,
    /// Blocks that go together, at most.
    wide: u64,
    /// Bytes of a slot and of a place.
    part: u64,
    /// By place: whether it holds a sum; and whether the output does.
    held: Vec<bool>,
    sums: bool,
    /// What has not been taken yet.
    coming: VecDeque<(u32, Vec<u64>)>,
    /// Messages of a link that may be under way.
    ahead: usize,
    links: Links<'s>,
}

impl Member<'_> {
    /// One slice of all blocks: `cut` gives that of a block of so many bytes.
    fn run(&mut self, steps: &[Step], cut: &dyn Fn(u64) -> Range<u64>) {
        self.sums = false;
        for step in steps {
            // What is needed now, and what takes a slot that is, with all before it.
            while self.waits_for(step) {
                self.take_next(cut);
            }
            self.send(step, cut);
            self.coming.push_back((step.bit, step.into.clone()));
        }
        while !self.coming.is_empty() {
            self.take_next(cut);
        }
    }

    /// Whether something that comes has to be taken before this is sent. All ranks are equally far: as
    /// many messages as have not been taken here have not been taken by the receiver.
    fn waits_for(&self, step: &Step) -> bool {
        let of_link = self.coming.iter().filter(|(bit, _)| *bit == step.bit);
        let needed = |into: &[u64]| {
            step.sent
                .iter()
                .any(|sent| into.binary_search(sent).is_ok())
        };
        of_link.count() >= self.ahead || self.coming.iter().any(|(_, into)| needed(into))
    }

    /// The rank that is so far to the left.
    fn left(&self, distance: u64) -> Rank {
        let ranks = u64::from(self.shape.ranks);
        Rank(((u64::from(self.me.0) + ranks - distance) % ranks) as u32)
    }

    /// The link of a step, to the right or to the left.
    fn link(&self, bit: u32, right: bool) -> Link {
        let by = 1 << bit;
        let ranks = u64::from(self.shape.ranks);
        let peer = self.left(if right { ranks - by } else { by });
        Link::new(peer, u64::from(bit) * self.wide, 0)
    }

    /// The slice of the block whose owner is so far to the left, from its beginning, and where the block
    /// begins among all.
    fn block(&self, distance: u64, cut: &dyn Fn(u64) -> Range<u64>) -> (Range<u64>, u64) {
        let part = self.shape.part(self.left(distance));
        (cut(length(&part)), part.start)
    }

    /// Where the sum of a block is held. There is one of each level at a time.
    fn place(&self, distance: u64) -> u64 {
        let (in_tree, tree) = (
            distance & ((1 << self.low_bits) - 1),
            distance >> self.low_bits,
        );
        let level = in_tree.trailing_zeros().min(self.low_bits);
        u64::from(level - 1) * self.wide + tree
    }

    fn send(&mut self, step: &Step, cut: &dyn Fn(u64) -> Range<u64>) {
        let mut parts = Vec::with_capacity(step.sent.len());
        for &distance in &step.sent {
            let (range, start) = self.block(distance, cut);
            let src = if !self.reduces() {
                if distance == 0 {
                    Loc::input(range.start)
                } else {
                    Loc::output(start + range.start)
                }
            } else if distance % 2 == 0 {
                let place = self.place(distance);
                if std::mem::take(&mut self.held[place as usize]) {
                    Loc::scratch(place * self.part)
                } else {
                    Loc::input(start + range.start)
                }
            } else {
                Loc::input(start + range.start)
            };
            parts.push((src, length(&range)));
        }
        let link = self.link(step.bit, !self.reduces());
        self.links.send_parts(link, &parts);
    }

    fn reduces(&self) -> bool {
        self.shape.operation.reduces()
    }

    fn take_next(&mut self, cut: &dyn Fn(u64) -> Range<u64>) {
        let Some((bit, into)) = self.coming.pop_front() else {
            return;
        };
        let link = self.link(bit, self.reduces());
        let slots = self.links.receive_parts(link, into.len());
        for (distance, slot) in into.into_iter().zip(slots) {
            let (range, start) = self.block(distance, cut);
            let bytes = length(&range);
            if !self.reduces() {
                let dst = Loc::output(start + range.start);
                self.links.tasks.copy(dst, slot, bytes);
                continue;
            }
            let (held, dst) = if distance == 0 {
                (&mut self.sums, Loc::output(range.start))
            } else {
                let place = self.place(distance);
                let dst = Loc::scratch(place * self.part);
                (&mut self.held[place as usize], dst)
            };
            let so_far = if std::mem::replace(held, true) {
                dst
            } else {
                Loc::input(start + range.start)
            };
            self.links.tasks.reduce(dst, so_far, slot, bytes);
        }
        self.links.give_back(link);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_block_gets_everywhere_in_as_few_steps_as_fit() {
        for ranks in 2..70 {
            let bits = u64::from(ranks).next_power_of_two().ilog2();
            for joined in 0..bits {
                let mut there = BTreeSet::from([0]);
                let steps = gathering(ranks, joined);
                for step in &steps {
                    assert!(step.sent.len() <= 1 << joined);
                    assert!(step.sent.iter().all(|sent| there.contains(sent)));
                    assert!(step.into.iter().all(|into| there.insert(*into)));
                }
                assert_eq!(there, (0..u64::from(ranks)).collect());
                // Backwards: who has sent on is not sent to any more.
                let mut left = there;
                for step in reducing(ranks, joined) {
                    assert!(step.sent.len() <= 1 << joined);
                    assert!(step.sent.iter().all(|sent| left.remove(sent)));
                    assert!(step.into.iter().all(|into| left.contains(into)));
                }
                assert_eq!(left, BTreeSet::from([0]));
                if joined + 1 == bits {
                    assert_eq!(steps.len(), bits as usize);
                    assert_eq!(reducing(ranks, joined).len(), bits as usize);
                }
            }
        }
    }
}
