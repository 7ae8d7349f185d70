//! Within each group of ranks, then across groups, then within again.
//!
//! Ranks of a group share a host, or something else that makes them near each other
//! ([`Params::groups`]). What crosses between groups is as little as can be, and all ranks of a
//! group carry their share of it at once: the choice for middle and large sizes where links within
//! a group are faster than those between groups. With one group it is a mesh of two steps that
//! only writes.
//!
//! There are as many *lanes* as the largest group has ranks. Each lane has one rank in each group;
//! in a smaller group a rank has several lanes, so groups need not be equal.
//!
//! * **all_reduce**: a slice is cut into a part a lane. Within a group each rank combines the
//!   parts of its lanes; across groups the ranks of a lane combine and gather theirs, a piece a
//!   group; then each rank tells its group.
//! * **reduce_scatter**: for each group in turn, beginning with the next one, a group combines the
//!   parts that are for it, each where its lane is, and sends them over.
//! * **all_gather**: the same backwards.
//! * **broadcast**, **barrier**: a tree of radix 4 over the groups, and one within each group.
//!
//! Slices follow each other without a meeting: a rank may be in the next one while others finish
//! the last, as far as the slots allow.
//!
//! Karonis, de Supinski, Foster, Gropp, Lusk, Bresnahan, "Exploiting hierarchy in parallel computer
//! networks to optimize collective operation performance", IPDPS 2000, for trees; the lanes are
//! those of Träff, Hunold, "Decomposing MPI collectives for exploiting multi-lane communication",
//! CLUSTER 2020.

use std::ops::Range;

use hcomm_types::{MAX_NOTIFIES_PER_THREAD, Rank};

use super::knomial;
use super::layout::{Slices, line_up};
use super::links::{Link, Links, Slots};
use super::tasks::length;
use super::tree::Tree;
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// Within groups, across, within.
#[derive(Clone, Copy, Debug)]
pub struct Hierarchical;

impl Algorithm for Hierarchical {
    fn name(&self) -> &'static str {
        "hierarchical"
    }

    fn summary(&self) -> &'static str {
        "within groups of ranks, across them, within again; for slow links between hosts"
    }

    fn by_groups(&self) -> bool {
        true
    }

    fn supports(&self, shape: &Shape) -> bool {
        matches!(
            shape.operation,
            Operation::AllReduce
                | Operation::AllGather
                | Operation::ReduceScatter
                | Operation::Broadcast { .. }
                | Operation::Barrier
        )
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let groups = Groups::new(shape, params)?;
        if let Operation::Broadcast { .. } | Operation::Barrier = shape.operation {
            let root = shape.operation.root().unwrap_or(Rank(0));
            return groups.tree(root).plan(self, shape, params, rank);
        }
        let peers = shape.all_ranks().map(|rank| groups.peers(rank));
        let peers: Vec<Vec<Rank>> = peers.collect();
        let links = peers.iter().map(Vec::len).max().unwrap_or(0).max(1);
        // That data is there, and that a slot is free, of each. All ranks refuse alike.
        if 2 * links > MAX_NOTIFIES_PER_THREAD {
            return Err(PlanError::Notifies {
                algorithm: self.name(),
                need: 2 * links,
                limit: MAX_NOTIFIES_PER_THREAD,
            });
        }
        let links = links as u64;
        let parts = match shape.operation {
            Operation::AllReduce => groups.lanes,
            _ => 1,
        };
        let bytes = shape.count_bytes();
        let slots = Slots::new(self, params, links, 0, bytes.div_ceil(parts))?;
        let slices = Slices::new(bytes, parts, slots.bytes);
        let slots = slots.shrunk(slices.part_bytes());
        let mut member = Member {
            shape,
            slices,
            group: groups.of[rank.index()].0,
            index: groups.of[rank.index()].1,
            groups: &groups,
            peers: &peers,
            me: rank,
            links: Links::new(shape, rank, slots),
        };
        for slice in 0..slices.count() {
            match shape.operation {
                Operation::AllReduce => member.all_reduce(slice),
                Operation::ReduceScatter => member.reduce_scatter(slice),
                _ => member.all_gather(slice),
            }
        }
        Ok(member.links.finish(false))
    }
}

/// Who is near whom.
pub(super) struct Groups {
    /// The group of each rank, and its index there.
    pub(super) of: Vec<(usize, u64)>,
    /// The ranks of each group.
    pub(super) ranks: Vec<Vec<Rank>>,
    /// Ranks of the largest group.
    pub(super) lanes: u64,
}

impl Groups {
    pub(super) fn new(shape: &Shape, params: &Params) -> Result<Self, PlanError> {
        let numbers = params.groups.as_deref();
        if let Some(numbers) = numbers
            && numbers.len() != shape.ranks as usize
        {
            return Err(PlanError::Groups {
                have: numbers.len(),
                need: shape.ranks,
            });
        }
        let mut known = rustc_hash::FxHashMap::default();
        let mut of = Vec::new();
        let mut ranks: Vec<Vec<Rank>> = Vec::new();
        for rank in shape.all_ranks() {
            let number = numbers.map_or(0, |numbers| numbers[rank.index()]);
            let group = *known.entry(number).or_insert(ranks.len());
            if group == ranks.len() {
                ranks.push(Vec::new());
            }
            of.push((group, ranks[group].len() as u64));
            ranks[group].push(rank);
        }
        let lanes = ranks.iter().map(Vec::len).max().unwrap_or(1) as u64;
        Ok(Self { of, ranks, lanes })
    }

    /// Number of ranks of a group.
    pub(super) fn size(&self, group: usize) -> u64 {
        self.ranks[group].len() as u64
    }

    /// The rank of a lane in a group.
    pub(super) fn at(&self, group: usize, lane: u64) -> Rank {
        self.ranks[group][(lane % self.size(group)) as usize]
    }

    /// The lanes of a rank.
    pub(super) fn lanes_of(&self, rank: Rank) -> impl Iterator<Item = u64> + use<> {
        let (group, index) = self.of[rank.index()];
        (index..self.lanes).step_by(self.ranks[group].len())
    }

    /// Whom a rank sends to and receives from: those of its group, and those of its lanes.
    fn peers(&self, rank: Rank) -> Vec<Rank> {
        let (group, _) = self.of[rank.index()];
        let mut across: Vec<Rank> = self
            .lanes_of(rank)
            .flat_map(|lane| (0..self.ranks.len()).map(move |group| (group, lane)))
            .filter(|(other, _)| *other != group)
            .map(|(other, lane)| self.at(other, lane))
            .collect();
        across.sort_unstable();
        across.dedup();
        let near = self.ranks[group].iter().copied();
        near.filter(|near| *near != rank).chain(across).collect()
    }

    /// A tree over the groups, beginning with the root's, and one within each. Ranks of other
    /// groups are sent to first.
    fn tree(&self, root: Rank) -> Tree {
        let (first, root_index) = self.of[root.index()];
        let count = self.ranks.len();
        // The position of a group counts from the root's, that of a rank from its group's first.
        let at = |group: u32, index: u32| {
            let group = (first + group as usize) % count;
            let ranks = &self.ranks[group];
            let begin = if group == first {
                root_index as usize
            } else {
                0
            };
            ranks[(begin + index as usize) % ranks.len()]
        };
        let groups = 0..count as u32;
        let within = groups.clone().flat_map(|group| {
            let size = self.size((first + group as usize) % count) as u32;
            (1..size).map(move |index| (group, index))
        });
        let within =
            within.map(|(group, index)| (at(group, index), at(group, knomial::parent(index))));
        let across = groups
            .skip(1)
            .map(|group| (at(group, 0), at(knomial::parent(group), 0)));
        Tree::new(self.of.len() as u32, within.chain(across))
    }
}

/// A rank in its group, writing down what it does.
struct Member<'s, 'g> {
    shape: &'s Shape,
    slices: Slices,
    groups: &'g Groups,
    /// The peers of each rank.
    peers: &'g [Vec<Rank>],
    me: Rank,
    group: usize,
    index: u64,
    links: Links<'s>,
}

impl Member<'_, '_> {
    /// The number that `sender` has among the peers of `owner`.
    fn inbox(&self, owner: Rank, sender: Rank) -> u64 {
        let peers = &self.peers[owner.index()];
        let inbox = peers.iter().position(|peer| *peer == sender);
        inbox.expect("both are peers of each other") as u64
    }

    fn send(&mut self, to: Rank, src: Loc, bytes: u64) {
        let link = Link::new(to, self.inbox(to, self.me), 0);
        self.links.send(link, src, bytes);
    }

    fn from(&self, peer: Rank) -> Link {
        Link::new(peer, self.inbox(self.me, peer), 0)
    }

    /// Takes a message to its place.
    fn take(&mut self, peer: Rank, dst: Loc, bytes: u64) {
        self.links.take(self.from(peer), dst, bytes);
    }

    /// The others of the group, with their indices, beginning with the next one.
    fn near(&self) -> Vec<(Rank, u64)> {
        let size = self.groups.size(self.group);
        let others = (1..size).map(|step| (self.index + step) % size);
        let ranks = &self.groups.ranks[self.group];
        others.map(|at| (ranks[at as usize], at)).collect()
    }

    /// The other groups, beginning with the next one.
    fn others(&self) -> Vec<usize> {
        let count = self.groups.ranks.len();
        let others = (1..count).map(|step| (self.group + step) % count);
        others.collect()
    }

    /// Where a row of lanes begins, for rows in which each rank of the group has one lane, up to
    /// `lanes` in all.
    fn rows(&self, lanes: u64) -> impl Iterator<Item = u64> + use<> {
        (0..lanes).step_by(self.groups.ranks[self.group].len())
    }

    /// Combines what comes from `peers` with the own contribution, into `out`.
    fn combine(&mut self, peers: &[Rank], own: Loc, out: Loc, bytes: u64) {
        let from: Vec<Link> = peers.iter().map(|peer| self.from(*peer)).collect();
        self.links.combine(&from, own, out, bytes);
    }

    fn all_reduce(&mut self, slice: u64) {
        let lanes = self.groups.lanes;
        let (slices, near) = (self.slices, self.near());
        let part = |lane: u64| slices.part(slice, lane);
        let near_ranks: Vec<Rank> = near.iter().map(|(rank, _)| *rank).collect();
        for row in self.rows(lanes) {
            for (peer, index) in &near {
                if row + index < lanes {
                    let range = part(row + index);
                    self.send(*peer, Loc::input(range.start), length(&range));
                }
            }
            if row + self.index < lanes {
                let range = part(row + self.index);
                let (own, out) = (Loc::input(range.start), Loc::output(range.start));
                self.combine(&near_ranks, own, out, length(&range));
            }
        }
        for lane in self.groups.lanes_of(self.me) {
            self.across(lane, &part(lane));
        }
        for row in self.rows(lanes) {
            if row + self.index < lanes {
                let range = part(row + self.index);
                for peer in &near_ranks {
                    self.send(*peer, Loc::output(range.start), length(&range));
                }
            }
            for (peer, index) in &near {
                if row + index < lanes {
                    let range = part(row + index);
                    self.take(*peer, Loc::output(range.start), length(&range));
                }
            }
        }
    }

    /// Combines the part of a lane over all groups, in the output: each group's rank a piece.
    fn across(&mut self, lane: u64, part: &Range<u64>) {
        let count = self.groups.ranks.len() as u64;
        let bytes = length(part);
        let cut = (bytes > 0).then(|| Slices::new(bytes, count, line_up(bytes)));
        let piece = |group: usize| {
            let piece = cut.map_or(0..0, |cut| cut.part(0, group as u64));
            part.start + piece.start..part.start + piece.end
        };
        let others: Vec<(usize, Rank)> = self
            .others()
            .into_iter()
            .map(|group| (group, self.groups.at(group, lane)))
            .collect();
        let ranks: Vec<Rank> = others.iter().map(|(_, rank)| *rank).collect();
        for (group, rank) in &others {
            let range = piece(*group);
            self.send(*rank, Loc::output(range.start), length(&range));
        }
        let own = piece(self.group);
        let out = Loc::output(own.start);
        self.combine(&ranks, out, out, length(&own));
        for rank in &ranks {
            self.send(*rank, out, length(&own));
        }
        for (group, rank) in &others {
            let range = piece(*group);
            self.take(*rank, Loc::output(range.start), length(&range));
        }
    }

    /// A slice of a rank's part: within the whole, and within the part.
    fn part(&self, slice: u64, rank: Rank) -> (u64, Range<u64>) {
        let part = self.shape.part(rank);
        let range = self.slices.slice_of(slice, length(&part));
        (part.start + range.start, range)
    }

    fn reduce_scatter(&mut self, slice: u64) {
        let near = self.near();
        for group in self.others() {
            let lanes = self.groups.size(group);
            for row in self.rows(lanes) {
                self.offer(slice, group, row, &near);
                if row + self.index < lanes {
                    let to = self.groups.at(group, row + self.index);
                    self.pass_over(slice, to, &near);
                }
            }
        }
        self.offer(slice, self.group, 0, &near);
        let lane = self.index;
        let across = self.others().into_iter();
        let across = across.map(|group| self.groups.at(group, lane));
        let peers: Vec<Rank> = near.iter().map(|(rank, _)| *rank).chain(across).collect();
        let (start, range) = self.part(slice, self.me);
        let (own, out) = (Loc::input(start), Loc::output(range.start));
        self.combine(&peers, own, out, length(&range));
    }

    /// Sends the parts of a group's ranks to those near who combine them.
    fn offer(&mut self, slice: u64, group: usize, row: u64, near: &[(Rank, u64)]) {
        for (peer, index) in near {
            if row + index < self.groups.size(group) {
                let receiver = self.groups.at(group, row + index);
                let (start, range) = self.part(slice, receiver);
                self.send(*peer, Loc::input(start), length(&range));
            }
        }
    }

    /// Combines the part of a rank of another group, in the slot that was filled first, and sends
    /// it there.
    fn pass_over(&mut self, slice: u64, to: Rank, near: &[(Rank, u64)]) {
        let (start, range) = self.part(slice, to);
        let bytes = length(&range);
        let mut so_far = Loc::input(start);
        let mut first = None;
        for (peer, _) in near {
            let link = self.from(*peer);
            let slot = self.links.receive(link);
            let (_, kept) = *first.get_or_insert((link, slot));
            self.links.tasks.reduce(kept, so_far, slot, bytes);
            so_far = kept;
            if kept != slot {
                self.links.give_back(link);
            }
        }
        self.send(to, so_far, bytes);
        if let Some((link, _)) = first {
            self.links.give_back(link);
        }
    }

    fn all_gather(&mut self, slice: u64) {
        let near = self.near();
        let (start, range) = self.part(slice, self.me);
        let (own, bytes) = (Loc::input(range.start), length(&range));
        for group in self.others() {
            self.send(self.groups.at(group, self.index), own, bytes);
        }
        for (peer, _) in &near {
            self.send(*peer, own, bytes);
        }
        self.links.tasks.keep_own(Loc::output(start), own, bytes);
        for (peer, _) in &near {
            let (start, range) = self.part(slice, *peer);
            self.take(*peer, Loc::output(start), length(&range));
        }
        for group in self.others().into_iter().rev() {
            let lanes = self.groups.size(group);
            for row in self.rows(lanes) {
                if row + self.index < lanes {
                    let origin = self.groups.at(group, row + self.index);
                    let (start, range) = self.part(slice, origin);
                    let link = self.from(origin);
                    let slot = self.links.receive(link);
                    for (peer, _) in &near {
                        self.send(*peer, slot, length(&range));
                    }
                    let dst = Loc::output(start);
                    self.links.tasks.copy(dst, slot, length(&range));
                    self.links.give_back(link);
                }
                for (peer, index) in &near {
                    if row + index < lanes {
                        let origin = self.groups.at(group, row + index);
                        let (start, range) = self.part(slice, origin);
                        self.take(*peer, Loc::output(start), length(&range));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hcomm_types::{DataType, ReduceOp};

    use super::*;

    #[test]
    fn peers_are_those_of_the_group_and_those_of_the_lanes() {
        let shape = Shape {
            operation: Operation::AllReduce,
            ranks: 6,
            count: 1.into(),
            dtype: DataType::U8,
            redop: ReduceOp::Sum.into(),
            in_place: false,
        };
        let mut params = Params {
            scratch_bytes: 0,
            slice_bytes: 0,
            groups: Some([7, 7, 3, 7, 3, 0].into()),
            flows: 1,
        };
        let groups = Groups::new(&shape, &params).unwrap();
        let peers = |rank: u32| -> Vec<u32> {
            groups.peers(Rank(rank)).iter().map(|rank| rank.0).collect()
        };
        // Lanes: 0, 2, 5; 1, 4, 5; 3, 2, 5.
        assert_eq!(peers(0), [1, 3, 2, 5]);
        assert_eq!(peers(2), [4, 0, 3, 5]);
        assert_eq!(peers(5), [0, 1, 2, 3, 4]);
        params.groups = Some([0; 5].into());
        let error = Groups::new(&shape, &params).err().unwrap().to_string();
        assert!(
            error.contains("5 ranks") && error.contains("has 6"),
            "{error}"
        );
    }
}
