//! The graph of some of the ranks.

use std::collections::HashMap;

use hcomm_types::Rank;

use crate::fabric::{CableFacts, FabricFacts, NetFacts};
use crate::graph::{GraphError, RankGraph};

impl RankGraph {
    /// The graph of these ranks alone, numbered in this order: what a communicator of some of the
    /// ranks knows. Switches and ports stay as they are, whoever else uses them.
    ///
    /// # Errors
    /// If a rank is not there, or is named twice, or none is named.
    pub fn part(&self, ranks: &[Rank]) -> Result<Self, GraphError> {
        let facts = ranks.iter().zip((0..).map(Rank)).map(|(old, new)| {
            let mut facts = self
                .rank(*old)
                .cloned()
                .ok_or_else(|| no_part(*old, "is not in the graph"))?;
            facts.rank = new;
            Ok(facts)
        });
        let facts = facts.collect::<Result<Vec<_>, GraphError>>()?;
        let numbers: HashMap<Rank, Rank> = ranks.iter().copied().zip((0..).map(Rank)).collect();
        if numbers.len() < ranks.len() {
            let mut places = ranks.iter().enumerate();
            let twin = places.find(|(at, rank)| numbers[*rank].index() != *at);
            let rank = twin.map_or(Rank(0), |(_, rank)| *rank);
            return Err(no_part(rank, "is named twice"));
        }
        let graph = Self::build(facts)?;
        let Some(fabric) = self.fabric_facts() else {
            return Ok(graph);
        };
        let by_rank = |old: &Rank| old.index();
        let nets = fabric.nets.iter().map(|net| NetFacts {
            layer: net.layer,
            name: net.name.clone(),
            ranks: net
                .ranks
                .iter()
                .filter_map(|rank| numbers.get(rank).copied())
                .collect(),
        });
        let end = |(rank, endpoint): (Rank, u32)| Some((*numbers.get(&rank)?, endpoint));
        let cables = fabric.cables.iter().filter_map(|cable| {
            Some(CableFacts {
                a: end(cable.a)?,
                b: end(cable.b)?,
                ..*cable
            })
        });
        let attached = ranks.iter().map(by_rank);
        let attached = attached.map(|at| fabric.attached.get(at).cloned().unwrap_or_default());
        let packages = ranks.iter().map(by_rank);
        let packages = packages.filter_map(|at| fabric.packages.get(at).copied());
        graph.with_fabric(FabricFacts {
            nets: nets.filter(|net| !net.ranks.is_empty()).collect(),
            planes: fabric.planes.clone(),
            switches: fabric.switches.clone(),
            ports: fabric.ports.clone(),
            attached: attached.collect(),
            cables: cables.collect(),
            packages: packages.collect(),
        })
    }
}

fn no_part(rank: Rank, problem: &'static str) -> GraphError {
    GraphError::Part { rank, problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::load;

    const CLUSTER: &str = include_str!("../tests/fixtures/clusters/mixed.json");

    #[test]
    fn a_part_has_the_links_of_the_whole() {
        let whole = load(CLUSTER, None).unwrap().graph;
        let chosen = [21, 6, 17, 1, 9, 16, 20].map(Rank);
        let part = whole.part(&chosen).unwrap();
        assert_eq!(part.size(), 7);
        for (a, old_a) in (0..).map(Rank).zip(chosen) {
            for (b, old_b) in (0..).map(Rank).zip(chosen).filter(|(b, _)| *b != a) {
                let costs = |graph: &RankGraph, a, b| {
                    let links = graph.links(a, b).into_iter();
                    let of = |link: crate::Link| (link.layer, link.latency_ns, link.bytes_per_s);
                    let mut links: Vec<_> = links.map(of).collect();
                    links.sort_unstable();
                    links
                };
                assert!(!costs(&part, a, b).is_empty());
                assert_eq!(costs(&part, a, b), costs(&whole, old_a, old_b));
            }
        }
        assert!(part.same_host(Rank(1), Rank(3)) && !part.same_host(Rank(3), Rank(4)));
        let all: Vec<Rank> = (0..whole.size()).map(Rank).collect();
        assert_eq!(whole.part(&all).unwrap(), whole);
    }

    #[test]
    fn ranks_that_are_not_there_and_twins_are_refused() {
        let whole = load(CLUSTER, None).unwrap().graph;
        for (ranks, words) in [
            (vec![], "at least one rank"),
            (vec![Rank(22)], "rank 22 is not in the graph"),
            (vec![Rank(1), Rank(2), Rank(1)], "rank 1 is named twice"),
        ] {
            let error = whole.part(&ranks).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
