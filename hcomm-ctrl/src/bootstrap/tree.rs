//! Which rank hangs where: rank 0 gives every rank that comes a place below one that has come
//! before, so that a place is known at once and nobody has more than a few below it.
//!
//! The ranks of a host hang below the first of them that came, and the first ones of all hosts
//! below each other: the list of ranks crosses to each host once.

use std::collections::{BTreeMap, HashMap, HashSet};

use hcomm_types::{HostId, Rank};

/// Ranks below one rank, on its own host and on others each.
pub(super) const ARITY: usize = 4;

/// The places given so far. The root has one from the beginning.
#[derive(Debug)]
pub(super) struct Tree {
    parents: BTreeMap<Rank, Rank>,
    children: HashMap<Rank, Vec<Rank>>,
    /// Those that others may hang below, in the order in which they came.
    hosts: HashMap<HostId, Row>,
    heads: Row,
}

/// Ranks in the order in which they came: the i-th hangs below the (i-1)/ARITY-th.
#[derive(Debug, Default)]
struct Row {
    ranks: Vec<Rank>,
    /// How many have asked for a place.
    asked: usize,
}

impl Row {
    fn starting_with(rank: Rank) -> Self {
        Self {
            ranks: vec![rank],
            asked: 1,
        }
    }

    /// The place for the next one. One that cannot have others below it fills no place above them.
    fn next(&mut self, rank: Rank, may_bear: bool) -> Rank {
        let place = (self.asked - 1) / ARITY;
        let parent = self.ranks[place.min(self.ranks.len() - 1)];
        self.asked += 1;
        if may_bear {
            self.ranks.push(rank);
        }
        parent
    }
}

impl Tree {
    pub(super) fn new(root: Rank, host: &HostId) -> Self {
        Self {
            parents: BTreeMap::new(),
            children: HashMap::new(),
            hosts: HashMap::from([(host.clone(), Row::starting_with(root))]),
            heads: Row::starting_with(root),
        }
    }

    /// A place for a rank that has none; `may_bear` if others can connect to it.
    pub(super) fn place(&mut self, rank: Rank, host: &HostId, may_bear: bool) -> Rank {
        let parent = match self.hosts.get_mut(host) {
            Some(row) => row.next(rank, may_bear),
            None => {
                if may_bear {
                    self.hosts.insert(host.clone(), Row::starting_with(rank));
                }
                self.heads.next(rank, may_bear)
            }
        };
        self.hang(rank, parent);
        parent
    }

    /// The place that a rank has.
    pub(super) fn parent(&self, rank: Rank) -> Option<Rank> {
        self.parents.get(&rank).copied()
    }

    /// Gives a rank another place, with all that hangs below it.
    pub(super) fn hang(&mut self, rank: Rank, parent: Rank) {
        if let Some(before) = self.parents.insert(rank, parent)
            && let Some(children) = self.children.get_mut(&before)
        {
            children.retain(|child| *child != rank);
        }
        self.children.entry(parent).or_default().push(rank);
    }

    /// `rank` and all below it, but for what hangs below one of `broken`.
    pub(super) fn reached_from(&self, rank: Rank, broken: &[Rank]) -> Vec<Rank> {
        let mut seen = HashSet::from([rank]);
        let mut all = vec![rank];
        let mut at = 0;
        while let Some(&next) = all.get(at) {
            at += 1;
            if broken.contains(&next) {
                continue;
            }
            let below = self.children.get(&next).into_iter().flatten();
            all.extend(below.filter(|child| seen.insert(**child)));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u32) -> HostId {
        HostId(format!("host {number}"))
    }

    fn depth(tree: &Tree, rank: u32) -> usize {
        std::iter::successors(Some(Rank(rank)), |rank| tree.parent(*rank)).count() - 1
    }

    #[test]
    fn nobody_has_many_below_it_and_all_are_near() {
        for (size, per_host) in [(1, 1), (2, 1), (1000, 1), (1000, 8), (1000, 1000)] {
            let mut tree = Tree::new(Rank(0), &host(0));
            for rank in 1..size {
                let parent = tree.place(Rank(rank), &host(rank / per_host), true);
                assert!(parent.0 < rank, "{parent} came before {rank}");
                // Only the first one of a host hangs below another host.
                let crosses = parent.0 / per_host != rank / per_host;
                assert_eq!(crosses, rank % per_host == 0, "{rank} below {parent}");
            }
            for rank in 0..size {
                let below = tree.children.get(&Rank(rank)).map_or(0, Vec::len);
                assert!(below <= 2 * ARITY, "{below} below {rank}");
                assert!(depth(&tree, rank) <= 9, "{rank} is far away");
            }
            assert_eq!(tree.reached_from(Rank(0), &[]).len(), size as usize);
        }
    }

    #[test]
    fn who_takes_no_connections_has_nobody_below_it() {
        let mut tree = Tree::new(Rank(0), &host(0));
        for rank in 1..100 {
            tree.place(Rank(rank), &host(rank / 10), rank.is_multiple_of(3));
        }
        let bearing = |rank: &Rank| rank.0.is_multiple_of(3);
        assert!(tree.children.keys().all(bearing));
        assert_eq!(tree.reached_from(Rank(0), &[]).len(), 100);
    }

    #[test]
    fn what_hangs_below_a_lost_rank_is_not_reached_until_it_moves() {
        let mut tree = Tree::new(Rank(0), &host(0));
        for rank in 1..30 {
            tree.place(Rank(rank), &host(0), true);
        }
        assert_eq!(tree.parent(Rank(5)), Some(Rank(1)));
        let without = tree.reached_from(Rank(0), &[Rank(1)]);
        assert!(without.contains(&Rank(1)) && !without.contains(&Rank(5)));
        tree.hang(Rank(5), Rank(0));
        let with = tree.reached_from(Rank(0), &[Rank(1)]);
        assert!(with.contains(&Rank(5)) && with.contains(&Rank(21)));
    }
}
