//! All-to-all along rails: within its group a rank hands what goes elsewhere to the rank that has the
//! index of the receiver, and what crosses between groups stays between ranks of one index.
//!
//! Where devices of one index share a rail, nothing leaves it; and a rank has a message for each group
//! instead of one for each rank, each as many times longer as its group has ranks. The price is that
//! most bytes go over a link of the group before they cross. For many groups whose inner links are faster
//! than those between them, and for small sizes.
//!
//! In groups of different sizes a rank has each lane whose number has its index as the remainder by the
//! size of its group, as in `hierarchical`; so of a receiver there is one rank in each other group that
//! sends to it.
//!
//! Each slice of all blocks goes in two steps. A rank sends one message to each other one of its group:
//! the block for that one, and those for all receivers in the lanes of that one. When it has heard of
//! all of them, it sends the blocks of the whole group to each receiver in its lanes. Blocks wait in the
//! slots in which they came.
//!
//! The idea is known from NCCL as PXN ("PCI x NVLink", NCCL 2.12 release notes, 2022); the lanes are those
//! of Träff, Hunold, "Decomposing MPI collectives for exploiting multi-lane communication", CLUSTER 2020.

use hcomm_types::{MAX_NOTIFIES_PER_THREAD, Rank};

use super::hierarchical::Groups;
use super::layout::{LINE, Slices};
use super::links::{Link, Links, Slots};
use super::tasks::length;
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// Within groups to the index of the receiver, then across.
#[derive(Clone, Copy, Debug)]
pub struct Rails;

impl Algorithm for Rails {
    fn name(&self) -> &'static str {
        "rails"
    }

    fn summary(&self) -> &'static str {
        "within groups to the rank of the receiver's index, then across between ranks of one index"
    }

    fn by_groups(&self) -> bool {
        true
    }

    fn supports(&self, shape: &Shape) -> bool {
        // Who passes a block on has to know its length.
        shape.operation == Operation::AllToAll && shape.count.is_even()
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let groups = Groups::new(shape, params)?;
        let size = |group: usize| groups.size(group) as usize;
        let count = groups.ranks.len();
        // Blocks in a message within a group, and between groups; ranks that a rank sends to there.
        let (mut near, mut far, mut most) = (0, 0, 0);
        for group in 0..count {
            for index in 0..size(group) {
                let receivers = receivers(&groups, group, index as u64).count();
                most = most.max(2 * (size(group) - 1) + receivers + count - 1);
                if size(group) > 1 {
                    near = near.max(1 + receivers);
                }
            }
            if count > 1 {
                far = far.max(size(group));
            }
        }
        // That data is there, of each; and that a slot is free. All ranks refuse alike.
        if most > MAX_NOTIFIES_PER_THREAD {
            return Err(PlanError::Notifies {
                algorithm: self.name(),
                need: most,
                limit: MAX_NOTIFIES_PER_THREAD,
            });
        }
        let lanes = groups.lanes as usize;
        let units = ((lanes - 1) * near + (count - 1) * far) as u64;
        let bytes = shape.count_bytes();
        let params = Params {
            slice_bytes: (params.slice_bytes / near.max(far) as u64).max(LINE),
            ..params.clone()
        };
        let slots = Slots::new(self, &params, units, 0, bytes)?;
        let slices = Slices::new(bytes, 1, slots.bytes);
        let (group, index) = groups.of[rank.index()];
        let mut member = Member {
            shape,
            me: rank,
            group,
            index: index as usize,
            near,
            far,
            groups: &groups,
            links: Links::new(shape, rank, slots.shrunk(slices.part_bytes())),
        };
        for slice in 0..slices.count() {
            let range = slices.slice(slice);
            member.exchange(range.start, length(&range));
        }
        Ok(member.links.finish(false))
    }
}

/// The ranks of other groups to which one of this group and index sends, those of the next group first.
fn receivers(groups: &Groups, group: usize, index: u64) -> impl Iterator<Item = Rank> + use<'_> {
    let count = groups.ranks.len();
    (1..count).flat_map(move |step| {
        let ranks = &groups.ranks[(group + step) % count];
        let lanes = ranks.iter().skip(index as usize);
        lanes.step_by(groups.size(group) as usize).copied()
    })
}

/// A rank in its group, writing down what it does.
struct Member<'s, 'g> {
    shape: &'s Shape,
    me: Rank,
    group: usize,
    index: usize,
    /// Blocks of a message within a group, and between groups, at most.
    near: usize,
    far: usize,
    groups: &'g Groups,
    links: Links<'s>,
}

impl Member<'_, '_> {
    /// The number that a rank has among the others of its group, for one of them.
    fn among_others(of: usize, seen_from: usize) -> usize {
        of - usize::from(of > seen_from)
    }

    /// The link between two ranks of this group, by their indices.
    fn near_link(&self, peer: Rank, sender: usize, receiver: usize) -> Link {
        let number = Self::among_others(sender, receiver);
        Link::new(peer, (number * self.near) as u64, 0)
    }

    /// The link between ranks of two groups.
    fn far_link(&self, peer: Rank, sender: usize, receiver: usize) -> Link {
        let near = (self.groups.lanes as usize - 1) * self.near;
        let number = Self::among_others(sender, receiver);
        Link::new(peer, (near + number * self.far) as u64, 0)
    }

    /// So many bytes of each block, from `start` on.
    fn exchange(&mut self, start: u64, bytes: u64) {
        let (shape, groups, me) = (self.shape, self.groups, self.me);
        let ranks = &groups.ranks[self.group];
        let size = ranks.len();
        let sent = |to: Rank| Loc::input(shape.sent_part(me, to).start + start);
        let received = |from: Rank| Loc::output(shape.received_part(from, me).start + start);
        let near: Vec<usize> = (1..size).map(|step| (self.index + step) % size).collect();
        for &at in &near {
            let receivers = receivers(groups, self.group, at as u64);
            let blocks = std::iter::once(ranks[at]).chain(receivers);
            let parts: Vec<_> = blocks.map(|to| (sent(to), bytes)).collect();
            let link = self.near_link(ranks[at], self.index, at);
            self.links.send_parts(link, &parts);
        }
        let own: Vec<Rank> = receivers(groups, self.group, self.index as u64).collect();
        // By index in the group: what it has for this rank, and then for each receiver.
        let mut slots: Vec<Vec<Loc>> = vec![Vec::new(); size];
        for &at in &near {
            let link = self.near_link(ranks[at], at, self.index);
            slots[at] = self.links.receive_parts(link, 1 + own.len());
        }
        for (number, to) in own.iter().enumerate() {
            let parts = slots.iter().map(|slots| {
                let slot = slots.get(1 + number).copied();
                (slot.unwrap_or_else(|| sent(*to)), bytes)
            });
            let parts: Vec<_> = parts.collect();
            let (group, _) = groups.of[to.index()];
            let link = self.far_link(*to, self.group, group);
            self.links.send_parts(link, &parts);
        }
        // In place this overwrites what has been sent.
        self.links.tasks.keep_own(received(me), sent(me), bytes);
        for &at in &near {
            self.links
                .tasks
                .copy(received(ranks[at]), slots[at][0], bytes);
            let link = self.near_link(ranks[at], at, self.index);
            self.links.give_back(link);
        }
        let count = groups.ranks.len();
        for step in (1..count).rev() {
            let group = (self.group + step) % count;
            let from = &groups.ranks[group];
            let sender = groups.at(group, self.index as u64);
            let link = self.far_link(sender, group, self.group);
            let slots = self.links.receive_parts(link, from.len());
            for (from, slot) in from.iter().zip(slots) {
                self.links.tasks.copy(received(*from), slot, bytes);
            }
            self.links.give_back(link);
        }
    }
}
