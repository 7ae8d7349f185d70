//! Trees of ranks, and what can be done along any of them.
//!
//! Data goes up or down in messages of a slot. A rank passes on what it has received from the slot
//! itself. Nobody leaves before all have begun: where data does not tell, the ranks tell each other
//! up the tree that they have begun, beside the data, and the root tells it to all in the end.

use std::ops::Range;

use hcomm_types::Rank;

use super::layout::{Slices, line_up};
use super::links::{BEGUN, Link, Links, Slots, pieces};
use super::tasks::length;
use super::{Algorithm, Params, PlanError};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// A tree of all ranks.
pub(super) struct Tree {
    parents: Vec<Option<Rank>>,
    /// In the order in which they are named.
    children: Vec<Vec<Rank>>,
}

impl Tree {
    /// A tree of positions, counted from the root in rank order, where `parent` gives one that is
    /// nearer to the root.
    pub(super) fn of_positions(ranks: u32, root: Rank, parent: impl Fn(u32) -> u32) -> Self {
        let at = |position: u32| {
            let rank = (u64::from(root.0) + u64::from(position)) % u64::from(ranks);
            Rank(rank as u32)
        };
        Self::new(
            ranks,
            (1..ranks).map(|position| (at(position), at(parent(position)))),
        )
    }

    /// A tree from pairs of a child and its parent.
    pub(super) fn new(ranks: u32, pairs: impl Iterator<Item = (Rank, Rank)>) -> Self {
        let mut parents = vec![None; ranks as usize];
        let mut children = vec![Vec::new(); ranks as usize];
        for (child, parent) in pairs {
            parents[child.index()] = Some(parent);
            children[parent.index()].push(child);
        }
        Self { parents, children }
    }

    /// Levels below the root.
    pub(super) fn depth(&self) -> u64 {
        let above = |rank: &Rank| self.parents[rank.index()];
        let ranks = (0..self.parents.len()).map(Rank::from_index);
        let levels = ranks.map(|rank| std::iter::successors(Some(rank), above).count() as u64);
        levels.max().unwrap_or(1) - 1
    }

    /// The most children that a rank has.
    pub(super) fn fan(&self) -> u64 {
        self.children.iter().map(Vec::len).max().unwrap_or(0) as u64
    }

    /// A rank and all below it, each before those below it.
    pub(super) fn below(&self, rank: Rank) -> Vec<Rank> {
        let mut open = vec![rank];
        let mut all = Vec::new();
        while let Some(rank) = open.pop() {
            all.push(rank);
            open.extend(self.children[rank.index()].iter().rev());
        }
        all
    }

    /// What a rank does to carry out an operation along the tree.
    ///
    /// # Errors
    /// If there is too little scratch memory.
    pub(super) fn plan(
        &self,
        algorithm: &dyn Algorithm,
        shape: &Shape,
        params: &Params,
        me: Rank,
    ) -> Result<RankPlan, PlanError> {
        let (up, down) = match shape.operation {
            Operation::Gather { .. } => (self.fan(), 0),
            _ => (0, 1),
        };
        let bytes = shape.count_bytes();
        if shape.operation == Operation::Barrier {
            // Nothing is sent that would need a slot.
            let slots = Slots::none();
            let mut node = Node::new(self, shape, slots, me, up);
            node.announce();
            node.release();
            return Ok(node.links.finish(false));
        }
        if goes_along(shape.operation) {
            return plan_along(std::slice::from_ref(self), algorithm, shape, params, me);
        }
        let slots = Slots::new(algorithm, params, up + down, 0, bytes)?;
        let mut node = Node::new(self, shape, slots, me, up);
        node.announce();
        if let Operation::Gather { .. } = shape.operation {
            node.gather();
        } else {
            node.scatter(&|rank| shape.part(rank), 0);
            let own = shape.part(me);
            node.keep_own(Loc::output(0), Loc::input(own.start), length(&own));
        }
        node.release();
        Ok(node.links.finish(false))
    }
}

/// Whether an operation has no parts of ranks, so that all of it goes up or down: what [`plan_along`]
/// plans.
pub(super) const fn goes_along(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Reduce { .. } | Operation::Broadcast { .. } | Operation::AllReduce
    )
}

/// What a rank does to reduce or broadcast along several trees, each of which carries its part of the
/// data. Where there is a root, it is that of all trees.
///
/// # Errors
/// If there is too little scratch memory.
pub(super) fn plan_along(
    trees: &[Tree],
    algorithm: &dyn Algorithm,
    shape: &Shape,
    params: &Params,
    me: Rank,
) -> Result<RankPlan, PlanError> {
    let most = |of: fn(&Tree) -> u64| trees.iter().map(of).max().unwrap_or(0);
    let (up, down) = match shape.operation {
        Operation::Reduce { .. } => (most(Tree::fan), 0),
        Operation::AllReduce => (most(Tree::fan), 1),
        _ => (0, 1),
    };
    let links = (up + down) * trees.len() as u64;
    let bytes = shape.count_bytes();
    let part = line_up(bytes.div_ceil(trees.len() as u64)).min(bytes);
    let mut slots = Slots::new(algorithm, params, links, 0, part)?;
    let slices = Slices::new(part, 1, slots.bytes);
    if shape.operation == Operation::AllReduce && slices.count() > 1 {
        // As far ahead as a slice takes to come back, within reason.
        let ahead = (2 * most(Tree::depth)).clamp(2, MOST_AHEAD);
        slots = slots.deeper(params, links, ahead);
    }
    // What each tree carries of a slice; nothing where it has come to its end.
    let carried = |tree: usize, slice: u64| {
        let start = (tree as u64 * part).min(bytes);
        let range = slices.slice_of(slice, part.min(bytes - start));
        (start + range.start)..(start + range.end)
    };
    let (count, ahead) = (slices.count(), slots.ahead());
    let mut node = Node::new(&trees[0], shape, slots, me, up);
    if let Operation::Broadcast { .. } = shape.operation {
        node.announce();
    }
    for step in 0..count + ahead {
        for (number, tree) in trees.iter().enumerate() {
            let range = carried(number, step);
            if up > 0 && step < count && !range.is_empty() {
                node.turn_to(tree, number as u32, (up + down) * number as u64);
                node.reduce(&range);
            }
        }
        for (number, tree) in trees.iter().enumerate() {
            // Below the root a slice goes down when `ahead` more have gone up, or none is left.
            let is_root = tree.parents[me.index()].is_none();
            let lag = if up == 0 || is_root { 0 } else { ahead };
            let slice = step.checked_sub(lag).filter(|slice| *slice < count);
            let range = slice.map_or(0..0, |slice| carried(number, slice));
            if down > 0 && !range.is_empty() {
                node.turn_to(tree, number as u32, (up + down) * number as u64);
                node.broadcast(&range, if up > 0 { Loc::output } else { Loc::input });
            }
        }
    }
    node.turn_to(&trees[0], 0, 0);
    match shape.operation {
        Operation::Broadcast { .. } => {
            node.keep_own(Loc::output(0), Loc::input(0), bytes);
            node.release();
        }
        // The root has heard of all.
        Operation::Reduce { .. } => node.release(),
        _ => {}
    }
    Ok(node.links.finish(false))
}

/// Slices that a rank may have sent up before the first result comes down: enough for a tree of
/// depth 8 without a pause, and few enough to stay in cache.
const MOST_AHEAD: u64 = 16;

/// A rank in its tree, writing down what it does.
pub(super) struct Node<'s, 't> {
    tree: &'t Tree,
    shape: &'s Shape,
    me: Rank,
    slot_bytes: u64,
    pub(super) links: Links<'s>,
    /// Tells its links apart from those of other trees.
    lane: u32,
    /// Number of the first link of this tree: of those from children, behind which is the one from the
    /// parent.
    first: u64,
    /// Links from children, at most.
    up: u64,
}

impl<'s, 't> Node<'s, 't> {
    pub(super) fn new(tree: &'t Tree, shape: &'s Shape, slots: Slots, me: Rank, up: u64) -> Self {
        Self {
            tree,
            shape,
            me,
            slot_bytes: slots.bytes,
            links: Links::new(shape, me, slots),
            lane: 0,
            first: 0,
            up,
        }
    }

    /// Goes on along another tree, which has links of its own.
    fn turn_to(&mut self, tree: &'t Tree, lane: u32, first: u64) {
        (self.tree, self.lane, self.first) = (tree, lane, first);
    }

    fn parent(&self) -> Option<Rank> {
        self.tree.parents[self.me.index()]
    }

    fn children(&self) -> &'t [Rank] {
        &self.tree.children[self.me.index()]
    }

    /// The links from the children.
    fn up_in(&self) -> Vec<Link> {
        let children = (self.first..).zip(self.children());
        children
            .map(|(inbox, child)| Link::new(*child, inbox, self.lane))
            .collect()
    }

    fn up_out(&self) -> Option<Link> {
        let parent = self.parent()?;
        let siblings = &self.tree.children[parent.index()];
        let inbox = siblings.iter().position(|rank| *rank == self.me)?;
        Some(Link::new(parent, self.first + inbox as u64, self.lane))
    }

    fn down_in(&self) -> Option<Link> {
        Some(Link::new(self.parent()?, self.first + self.up, self.lane))
    }

    /// The links to the children, the last child first: it mostly has the most below it.
    fn down_out(&self) -> Vec<Link> {
        let children = self.children().iter().rev();
        children
            .map(|child| Link::new(*child, self.first + self.up, self.lane))
            .collect()
    }

    /// Tells the parent that all from here down have begun.
    pub(super) fn announce(&mut self) {
        for child in self.children() {
            self.links.tasks.wait(*child, BEGUN);
        }
        if let Some(parent) = self.parent() {
            self.links.tasks.record(parent, BEGUN);
        }
    }

    /// Waits until the root knows that all have begun.
    pub(super) fn release(&mut self) {
        if let Some(parent) = self.parent() {
            self.links.tasks.wait(parent, BEGUN);
        }
        for child in self.children().iter().rev() {
            self.links.tasks.record(*child, BEGUN);
        }
    }

    /// What the root has by itself.
    pub(super) fn keep_own(&mut self, dst: Loc, src: Loc, bytes: u64) {
        if self.parent().is_none() {
            self.links.tasks.keep_own(dst, src, bytes);
        }
    }

    /// One slice upwards. What is combined stays in the slot of the first child, so that the
    /// output, which may be the input, is written once and last.
    fn reduce(&mut self, range: &Range<u64>) {
        let bytes = length(range);
        let from = self.up_in();
        let mut so_far = Loc::input(range.start);
        let mut kept = None;
        for (index, link) in from.iter().enumerate() {
            let slot = self.links.receive(*link);
            let kept = *kept.get_or_insert(slot);
            let dst = if index + 1 == from.len() && self.parent().is_none() {
                Loc::output(range.start)
            } else {
                kept
            };
            self.links.tasks.reduce(dst, so_far, slot, bytes);
            so_far = dst;
            if index > 0 {
                self.links.give_back(*link);
            }
        }
        if let Some(link) = self.up_out() {
            self.links.send(link, so_far, bytes);
        }
        if let Some(first) = from.first() {
            self.links.give_back(*first);
        }
    }

    /// One slice downwards, at the root from `src`.
    fn broadcast(&mut self, range: &Range<u64>, src: impl Fn(u64) -> Loc) {
        let bytes = length(range);
        let link = self.down_in();
        let from = link.map_or_else(|| src(range.start), |link| self.links.receive(link));
        for child in self.down_out() {
            self.links.send(child, from, bytes);
        }
        if let Some(link) = link {
            self.links.tasks.copy(Loc::output(range.start), from, bytes);
            self.links.give_back(link);
        }
    }

    /// Parts go up one by one, the own one first.
    fn gather(&mut self) {
        let shape = self.shape;
        let cut = |rank: Rank, most: u64| pieces(&[shape.part(rank)], most);
        let own = shape.part(self.me);
        let up = self.up_out();
        if let Some(link) = up {
            for piece in cut(self.me, self.slot_bytes) {
                let src = Loc::input(piece.start - own.start);
                self.links.send(link, src, length(&piece));
            }
        }
        self.keep_own(Loc::output(own.start), Loc::input(0), length(&own));
        for link in self.up_in() {
            for rank in self.tree.below(link.peer) {
                for piece in cut(rank, self.slot_bytes) {
                    let slot = self.links.receive(link);
                    match up {
                        Some(up) => self.links.send(up, slot, length(&piece)),
                        None => {
                            self.links
                                .tasks
                                .copy(Loc::output(piece.start), slot, length(&piece))
                        }
                    }
                    self.links.give_back(link);
                }
            }
        }
    }

    /// The root's parts of all go down one by one, those of the last child's side first and the
    /// own one last. `own` is where the part of this rank begins in its output.
    pub(super) fn scatter(&mut self, part: &dyn Fn(Rank) -> Range<u64>, own: u64) {
        let cut = |rank: Rank, most: u64| pieces(&[part(rank)], most);
        let from = self.down_in();
        for link in self.down_out() {
            for rank in self.tree.below(link.peer).into_iter().rev() {
                for piece in cut(rank, self.slot_bytes) {
                    let Some(from) = from else {
                        let src = Loc::input(piece.start);
                        self.links.send(link, src, length(&piece));
                        continue;
                    };
                    let slot = self.links.receive(from);
                    self.links.send(link, slot, length(&piece));
                    self.links.give_back(from);
                }
            }
        }
        let Some(from) = from else { return };
        let start = part(self.me).start;
        for piece in cut(self.me, self.slot_bytes) {
            let slot = self.links.receive(from);
            let dst = Loc::output(own + (piece.start - start));
            self.links.tasks.copy(dst, slot, length(&piece));
            self.links.give_back(from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_of_positions_begins_at_its_root() {
        // A chain of pairs: 3 -> 4 -> 1, 3 -> 0 -> 2 on five ranks.
        let tree = Tree::of_positions(5, Rank(3), |position| position.saturating_sub(2));
        let ranks = |numbers: &[u32]| numbers.iter().copied().map(Rank).collect::<Vec<_>>();
        assert_eq!(tree.children[3], ranks(&[4, 0]));
        assert_eq!(tree.below(Rank(3)), ranks(&[3, 4, 1, 0, 2]));
        assert_eq!((tree.fan(), tree.depth()), (2, 2));
        assert_eq!(tree.parents[3], None);
    }
}
