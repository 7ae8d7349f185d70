//! Orders of ranks for what is sent between positions: a tree, or any other pattern.
//!
//! An algorithm says which position sends how much to which; the graph says what that means for wires
//! when a rank is at each position. An order is as good as the wire that takes longest, all messages
//! together; what is left is balanced. So heavy messages stay on fast links, and ranks behind a slow port
//! come to where little is passed on: to the ends of a tree.
//!
//! Ranks are first laid out by where they are, ranks of one place behind each other. Of not too many ranks
//! all pairs then change places as long as that makes it better.

use std::collections::HashMap;

use hcomm_types::Rank;

use crate::fabric::Segment;
use crate::graph::RankGraph;

/// Ranks of which all pairs are exchanged to see whether that is better, and how often.
const EXCHANGED: usize = 128;
const PASSES: u32 = 8;

/// Bytes that one position sends to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Position of the sender.
    pub from: u32,
    /// Position of the receiver.
    pub to: u32,
    /// How many bytes, all in all.
    pub bytes: u64,
}

impl RankGraph {
    /// Ranks in the order of a binary tree whose heavy edges stay on fast links: the one at position *p*
    /// is above those at 2*p* + 1 and 2*p* + 2, and each edge carries so many bytes each way. What is below
    /// a position lies together.
    #[must_use]
    pub fn tree_order(&self, ranks: &[Rank], bytes: u64) -> Vec<Rank> {
        let placed = self.placed(ranks);
        let count = placed.len();
        // Positions with all below them, one after the other.
        let mut order = placed.clone();
        let mut open = vec![0];
        let mut next = placed.iter().copied();
        while let Some(position) = open.pop() {
            if position < count {
                order[position] = next.next().unwrap_or(Rank(0));
                open.extend([2 * position + 2, 2 * position + 1]);
            }
        }
        let edges = (1..count as u32).map(|child| (child, (child - 1) / 2));
        let both = edges.flat_map(|(a, b)| [(a, b), (b, a)]);
        let messages: Vec<Message> = both.map(|(from, to)| Message { from, to, bytes }).collect();
        self.exchanged_for([order, placed], &messages)
    }

    /// Ranks in an order in which these messages between positions load the wires least, as far as was
    /// found. Of more than a hundred or so ranks it is the order of where they are.
    #[must_use]
    pub fn order_for(&self, ranks: &[Rank], messages: &[Message]) -> Vec<Rank> {
        let placed = self.placed(ranks);
        let backwards = placed.iter().rev().copied().collect();
        self.exchanged_for([placed, backwards], messages)
    }

    /// Ranks by where they are.
    fn placed(&self, ranks: &[Rank]) -> Vec<Rank> {
        let mut placed = ranks.to_vec();
        placed.sort_unstable();
        placed.dedup();
        self.sort_by_place(&mut placed);
        placed
    }

    /// The better of two orders, each after its ranks have changed places; of many ranks the first.
    fn exchanged_for(&self, orders: [Vec<Rank>; 2], messages: &[Message]) -> Vec<Rank> {
        let [first, second] = orders;
        if first.len() > EXCHANGED {
            return first;
        }
        let mut ways = Ways::new(self, &first);
        let number = |rank: &Rank| first.iter().position(|other| other == rank).unwrap_or(0);
        let starts = [
            (0..first.len()).collect(),
            second.iter().map(number).collect(),
        ];
        let ends = starts.map(|start| ways.exchanged(start, messages));
        let best = ends.into_iter().min_by_key(|(cost, _)| *cost);
        let at = best.map_or_else(Vec::new, |(_, at)| at);
        at.into_iter().map(|number| first[number]).collect()
    }
}

/// What a message meets others on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Wire {
    Known(Segment),
    /// Out of an endpoint, or into it, where wires are not known.
    Endpoint(Rank, u32, bool),
}

/// How long messages take, the longest wire first; then how unevenly. Smaller is better.
type Cost = (u128, u128);

/// The ways between all pairs of some ranks.
struct Ways {
    count: usize,
    /// By pair: its wires, its latency in nanoseconds and its bytes per second; none if not joined.
    pairs: Vec<Option<(Vec<u32>, u64, u64)>>,
    /// By wire: bytes per second (0 if unknown), and bytes while costs are counted.
    wires: Vec<(u64, u64)>,
    touched: Vec<u32>,
}

impl Ways {
    fn new(graph: &RankGraph, ranks: &[Rank]) -> Self {
        let mut numbers = HashMap::<Wire, u32>::new();
        let mut wires = Vec::new();
        let mut pairs = Vec::with_capacity(ranks.len() * ranks.len());
        for &from in ranks {
            for &to in ranks {
                let link = (from != to).then(|| graph.links(from, to).into_iter().next());
                let way = link.flatten().map(|link| {
                    let mut path: Vec<(Wire, u64)> = graph
                        .path(&link)
                        .into_iter()
                        .map(|segment| (Wire::Known(segment), graph.capacity(segment)))
                        .collect();
                    if path.is_empty() {
                        let speed = |rank: Rank, endpoint: u32| {
                            let endpoint = graph.endpoints(rank).get(endpoint as usize);
                            endpoint.map_or(0, |endpoint| endpoint.bytes_per_s)
                        };
                        let (a, b) = (link.from_endpoint, link.to_endpoint);
                        path.push((Wire::Endpoint(from, a, true), speed(from, a)));
                        path.push((Wire::Endpoint(to, b, false), speed(to, b)));
                    }
                    let path = path.into_iter().map(|(wire, speed)| {
                        let next = wires.len() as u32;
                        let number = *numbers.entry(wire).or_insert(next);
                        if number == next {
                            wires.push((speed, 0));
                        }
                        number
                    });
                    (path.collect(), link.latency_ns, link.bytes_per_s)
                });
                pairs.push(way);
            }
        }
        Self {
            count: ranks.len(),
            pairs,
            wires,
            touched: Vec::new(),
        }
    }

    /// Ranks change places, two by two, as long as that makes it better: the number of the rank at each
    /// position.
    fn exchanged(&mut self, mut at: Vec<usize>, messages: &[Message]) -> (Cost, Vec<usize>) {
        let mut best = self.cost(&at, messages);
        for _ in 0..PASSES {
            let before = best;
            for a in 0..at.len() {
                for b in a + 1..at.len() {
                    at.swap(a, b);
                    let now = self.cost(&at, messages);
                    if now < best {
                        best = now;
                    } else {
                        at.swap(a, b);
                    }
                }
            }
            if best == before {
                break;
            }
        }
        (best, at)
    }

    /// What messages cost when the rank of number `at[p]` is at position *p*.
    fn cost(&mut self, at: &[usize], messages: &[Message]) -> Cost {
        let (mut longest, mut squares) = (0, 0);
        let mut add = |ns: u128| {
            longest = ns.max(longest);
            squares += ns * ns;
        };
        let mut apart = 0;
        for message in messages {
            let (from, to) = (at[message.from as usize], at[message.to as usize]);
            let Some((path, latency_ns, bytes_per_s)) = &self.pairs[from * self.count + to] else {
                apart += 1;
                continue;
            };
            add(u128::from(*latency_ns) + time_ns(message.bytes, *bytes_per_s));
            for &wire in path {
                let (_, bytes) = &mut self.wires[wire as usize];
                if *bytes == 0 {
                    self.touched.push(wire);
                }
                *bytes = bytes.saturating_add(message.bytes);
            }
        }
        for wire in self.touched.drain(..) {
            let (bytes_per_s, bytes) = &mut self.wires[wire as usize];
            add(time_ns(std::mem::take(bytes), *bytes_per_s));
        }
        if apart > 0 {
            // Not joined is worse than anything, and the fewer the better.
            return (u128::MAX, apart);
        }
        (longest, squares)
    }
}

/// Time of so many bytes, in nanoseconds; none where the speed is not known.
fn time_ns(bytes: u64, bytes_per_s: u64) -> u128 {
    let time = (u128::from(bytes) * 1_000_000_000).checked_div(bytes_per_s.into());
    time.unwrap_or(0)
}
