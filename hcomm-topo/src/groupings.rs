//! Ways to divide ranks by what joins them: hosts, nets, packages, meshes inside a net.
//!
//! Algorithms that work within groups and across them are as good as their groups. The graph knows
//! several divisions that may be meant; which one is best depends on size and operation, so they are
//! tried.

use std::collections::{BTreeMap, BTreeSet};

use crate::fabric::runs;
use crate::graph::{NOWHERE, RankGraph};

/// A division of all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// What its groups are: `hosts`, `nets of layer 1`, `plane 0 of layer 0`.
    pub name: String,
    /// By rank: its group. Groups are counted by their lowest rank.
    pub groups: Vec<u32>,
}

impl Grouping {
    /// Ranks of the smallest and of the largest group.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize) {
        let mut sorted = self.groups.clone();
        sorted.sort_unstable();
        let sizes: Vec<usize> = runs(&sorted, |group| *group)
            .into_iter()
            .map(|run| run.len())
            .collect();
        let (smallest, largest) = (sizes.iter().min(), sizes.iter().max());
        (
            smallest.copied().unwrap_or(0),
            largest.copied().unwrap_or(0),
        )
    }
}

impl RankGraph {
    /// Ways to divide the first `ranks` ranks, each once, coarse ones last; what is in no group is one
    /// by itself. Divisions into one group, or into single ranks, are left out.
    #[must_use]
    pub fn groupings(&self, ranks: u32) -> Vec<Grouping> {
        let ranks = ranks.min(self.size()) as usize;
        let mut found = Vec::new();
        let mut seen = BTreeSet::new();
        let mut add = |name: String, keys: Vec<u64>| {
            let mut numbers = BTreeMap::new();
            let groups: Vec<u32> = keys
                .into_iter()
                .map(|key| {
                    let next = numbers.len() as u32;
                    *numbers.entry(key).or_insert(next)
                })
                .collect();
            let count = numbers.len();
            if count > 1 && count < groups.len() && seen.insert(groups.clone()) {
                found.push(Grouping { name, groups });
            }
        };
        // Ranks in no group have keys that nobody else has.
        let alone = |rank: usize| (1 << 62) + rank as u64;
        let host = |rank: usize| u64::from(self.host_of[rank]);
        add("hosts".to_owned(), (0..ranks).map(host).collect());
        if let Some(facts) = self.fabric_facts()
            && facts.packages.len() >= ranks
        {
            let package = |rank: usize| host(rank) << 32 | u64::from(facts.packages[rank]);
            add("packages".to_owned(), (0..ranks).map(package).collect());
        }
        for (layer, instances) in self.instance_of.iter().enumerate() {
            let net = |rank: usize| match instances.get(rank) {
                Some(net) if *net != NOWHERE => u64::from(*net),
                _ => alone(rank),
            };
            add(
                format!("nets of layer {layer}"),
                (0..ranks).map(net).collect(),
            );
        }
        for layer in self.layers() {
            // By plane: the group of each rank, numbered through all nets.
            let mut planes = BTreeMap::<u32, (u64, Vec<u64>)>::new();
            for net in self.instances(layer) {
                for structure in self.topology_instances(layer, net.id) {
                    let (next, keys) = planes
                        .entry(structure.plane)
                        .or_insert_with(|| (0, (0..ranks).map(alone).collect()));
                    for group in structure.groups {
                        for rank in group.iter().filter(|rank| rank.index() < ranks) {
                            keys[rank.index()] = *next;
                        }
                        *next += 1;
                    }
                }
            }
            for (plane, (_, keys)) in planes {
                add(format!("plane {plane} of layer {layer}"), keys);
            }
        }
        found
    }
}
