//! Whether every rank maps the buffer of every other one, without looking at every pair: ranks that
//! say the same about themselves have the same links, so one pair stands for many.

use hcomm_topo::{Allowed, RankGraph};
use hcomm_types::{ProcessId, Rank};

/// Ranks that differ in number and process only.
struct Kind {
    /// The first of each process, in the order of the ranks.
    firsts: Vec<(ProcessId, Rank)>,
    /// Two of one process, if there are such.
    mates: Option<(Rank, Rank)>,
}

/// Whether the link of each pair joins the endpoints on which both allocate their buffers.
pub(crate) fn maps_all(graph: &RankGraph, mapping: &[Option<u32>], allowed: &Allowed) -> bool {
    let all = (0..graph.size()).map(Rank);
    if all.clone().any(|rank| mapping[rank.index()].is_none()) {
        return false;
    }
    let maps = |a: Rank, b: Rank| {
        graph.choose(a, b, allowed).is_ok_and(|choice| {
            let link = choice.link;
            mapping[a.index()] == Some(link.from_endpoint)
                && mapping[b.index()] == Some(link.to_endpoint)
        })
    };
    let kinds = kinds(graph, mapping);
    kinds.iter().enumerate().all(|(at, kind)| {
        kind.mates.is_none_or(|(a, b)| maps(a, b))
            && pair_apart(kind, kind).is_none_or(|(a, b)| maps(a, b))
            && kinds[at + 1..].iter().all(|other| {
                pair_apart(kind, other).is_none_or(|(a, b)| maps(a, b))
                    && pair_together(kind, other).is_none_or(|(a, b)| maps(a, b))
            })
    })
}

fn kinds(graph: &RankGraph, mapping: &[Option<u32>]) -> Vec<Kind> {
    let mut kinds: Vec<(Rank, Kind)> = Vec::new();
    for rank in (0..graph.size()).map(Rank) {
        let Some(facts) = graph.rank(rank) else {
            continue;
        };
        let is_like = |of: Rank| {
            graph.rank(of).is_some_and(|known| {
                mapping[of.index()] == mapping[rank.index()]
                    && known.endpoints == facts.endpoints
                    && known.host == facts.host
            })
        };
        // Ranks of one kind mostly follow each other.
        let found = kinds.iter().rposition(|(of, _)| is_like(*of));
        let kind = match found {
            Some(at) => &mut kinds[at].1,
            None => {
                let firsts = Vec::new();
                let new = Kind {
                    firsts,
                    mates: None,
                };
                kinds.push((rank, new));
                let Some((_, kind)) = kinds.last_mut() else {
                    continue;
                };
                kind
            }
        };
        match kind.firsts.iter().rev().find(|(p, _)| *p == facts.process) {
            Some((_, mate)) => kind.mates = kind.mates.or(Some((*mate, rank))),
            None => kind.firsts.push((facts.process, rank)),
        }
    }
    kinds.into_iter().map(|(_, kind)| kind).collect()
}

/// Two ranks of these kinds, or of this one, in different processes.
fn pair_apart(a: &Kind, b: &Kind) -> Option<(Rank, Rank)> {
    let (process, first) = *a.firsts.first()?;
    let other = b.firsts.iter().find(|(its, _)| *its != process);
    if let Some((_, other)) = other {
        return Some((first, *other));
    }
    // All of the other kind are in that one process.
    let (process, second) = *b.firsts.first()?;
    let (_, first) = a.firsts.iter().find(|(its, _)| *its != process)?;
    Some((*first, second))
}

/// Two ranks of these kinds in one process.
fn pair_together(a: &Kind, b: &Kind) -> Option<(Rank, Rank)> {
    a.firsts.iter().find_map(|(process, first)| {
        let (_, second) = b.firsts.iter().find(|(its, _)| its == process)?;
        Some((*first, *second))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hcomm_topo::{EndpointFacts, RankFacts, Reach};
    use hcomm_types::{Address, Location, Protocol};
    use proptest::prelude::*;

    use super::*;
    use crate::endpoint::this_host;

    /// Endpoint 0 stays on the host or in the process, endpoint 1 leads everywhere.
    fn rank(number: u32, host: u8, process: u8, reach: Reach) -> RankFacts {
        let mut facts = (*this_host().unwrap()).clone();
        facts.id.0 = format!("host {host}");
        let endpoint = |protocol, address, reach, transport: &str, latency_ns| EndpointFacts {
            protocol,
            address,
            location: Location::Host,
            reach,
            latency_ns,
            bytes_per_s: 1 << 30,
            transport: transport.to_owned(),
            device: transport.to_owned(),
        };
        RankFacts {
            rank: Rank(number),
            process: ProcessId {
                pid: u32::from(process),
                token: u64::from(process) + 100 * u64::from(host),
            },
            host: Arc::new(facts),
            local_rank: number,
            endpoints: vec![
                endpoint(Protocol::Shm, Address::Id(1), reach, "shm", 100),
                endpoint(
                    Protocol::Tcp,
                    Address::Ip("10.0.0.1".parse().unwrap()),
                    Reach::Network,
                    "tcp",
                    10_000,
                ),
            ],
        }
    }

    fn by_pairs(graph: &RankGraph, mapping: &[Option<u32>]) -> bool {
        let all = || (0..graph.size()).map(Rank);
        all().all(|a| {
            mapping[a.index()].is_some()
                && all().filter(|b| a < *b).all(|b| {
                    graph.choose(a, b, &Allowed::All).is_ok_and(|choice| {
                        mapping[a.index()] == Some(choice.link.from_endpoint)
                            && mapping[b.index()] == Some(choice.link.to_endpoint)
                    })
                })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn it_is_what_all_pairs_say(ranks in prop::collection::vec((0u8..2, 0u8..3, prop::bool::weighted(0.2), prop::bool::weighted(0.1), prop::bool::weighted(0.05)), 1..7)) {
            let one_host = ranks.len() % 2 == 0;
            let facts = ranks.iter().zip(0..).map(|(&(host, process, near, ..), number)| {
                let host = if one_host { 0 } else { host };
                rank(number, host, process, if near { Reach::Process } else { Reach::Host })
            });
            let graph = RankGraph::build(facts.collect()).unwrap();
            let mapping: Vec<Option<u32>> = ranks
                .iter()
                .map(|&(_, _, _, other, none)| if none { None } else { Some(u32::from(other)) })
                .collect();
            prop_assert_eq!(maps_all(&graph, &mapping, &Allowed::All), by_pairs(&graph, &mapping));
        }
    }
}
