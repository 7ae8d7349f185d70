//! Which rank should do what: ring orders, and groups that keep heavy traffic on fast links.
//!
//! A training job divides its ranks several ways at once: into groups that share a layer (tensor
//! parallel), a batch (data parallel), and so on. What one group sends in a ring shares wires with what
//! all groups of its kind send at the same time, so the pace of a kind is that of its most crowded wire,
//! or of its slowest link: all others wait for it (the barrel holds no more than its shortest stave
//! lets it). [`RankGraph::pace`] finds that wire. [`RankGraph::advise`] compares a mapping of positions
//! to ranks with one that is made from the graph: ranks that are joined best are put into the groups
//! that send most, those groups into the groups of the next kind, and so on; of a few ranks all pairs
//! are then exchanged to see whether that is better.

use std::collections::{BTreeMap, VecDeque};

use hcomm_types::Rank;

use crate::choice::REFERENCE_BYTES;
use crate::fabric::Segment;
use crate::graph::{NOWHERE, RankGraph};
use crate::link::Link;

/// Ranks of a ring that are ordered by looking at all pairs; more are ordered by where they are.
const ORDERED: usize = 128;

/// Ranks of a mapping in which all pairs are exchanged to see whether that is better, and how often.
const EXCHANGED: usize = 32;
const PASSES: u32 = 4;

/// Ranks that are looked at for the next place of a group.
const LOOKED_AT: usize = 256;

/// A way to divide ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupKind {
    /// Its name: `tp`, `dp`.
    pub name: String,
    /// Ranks of each group.
    pub size: u32,
    /// How much it sends, relative to the others.
    pub weight: u64,
}

/// How long rings take that run in all groups of a kind at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time of an all_reduce, in nanoseconds; none where ranks of a ring are not joined.
    pub time_ns: Option<u64>,
    /// What sets the pace; none where each group is a single rank.
    pub slowest: Option<Slowest>,
    /// Bytes per second of the fastest link of the rings, and of the slowest.
    pub links_bytes_per_s: (u64, u64),
    /// The groups, each in the order of its ring.
    pub rings: Vec<Vec<Rank>>,
}

/// What all others wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slowest {
    /// A message over it.
    pub from: Rank,
    /// Its receiver.
    pub to: Rank,
    /// The link of that; none if nothing joins the two.
    pub link: Option<Link>,
    /// The wire on which messages meet, where wires are known and that is what holds them up.
    pub wire: Option<Segment>,
    /// Messages that share it.
    pub messages: u64,
    /// Bytes per second that each of them gets.
    pub bytes_per_s: u64,
}

/// A mapping with the pace of each kind, in the order of the kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// By position: its rank.
    pub ranks: Vec<Rank>,
    /// By kind.
    pub paces: Vec<Pace>,
}

impl Mapping {
    /// Time of all kinds by weight, in nanoseconds; none where ranks of a ring are not joined.
    #[must_use]
    pub fn weighted_ns(&self, kinds: &[GroupKind]) -> Option<u128> {
        let times = self.paces.iter().zip(kinds);
        let times =
            times.map(|(pace, kind)| Some(u128::from(pace.time_ns?) * u128::from(kind.weight)));
        times.sum()
    }
}

/// What there is, and what would be better.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The mapping that was asked about.
    pub given: Mapping,
    /// A faster one, if one was found.
    pub better: Option<Mapping>,
}

/// Groups that do not fit the ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdviceError {
    /// Sizes whose product is another one.
    #[error("groups of {sizes} make {product} positions, there are {ranks} ranks")]
    Sizes {
        /// The sizes, as `tp=4 x dp=2`.
        sizes: String,
        /// Their product.
        product: u64,
        /// Ranks.
        ranks: usize,
    },
    /// A mapping that is none.
    #[error("rank {rank} is {what} in the mapping")]
    Mapping {
        /// The rank.
        rank: Rank,
        /// `twice`, or `not in the graph and`.
        what: &'static str,
    },
}

impl From<AdviceError> for hcomm_types::Error {
    fn from(error: AdviceError) -> Self {
        Self::new(hcomm_types::ErrorKind::InvalidArgument, error.to_string()).with_source(error)
    }
}

impl RankGraph {
    /// Ranks in the order of a ring that stays on fast links where it can: its slowest link is as fast
    /// as was found, and then the sum of all.
    #[must_use]
    pub fn ring_order(&self, ranks: &[Rank]) -> Vec<Rank> {
        let mut ranks = ranks.to_vec();
        ranks.sort_unstable();
        ranks.dedup();
        if ranks.len() > ORDERED {
            self.sort_by_place(&mut ranks);
            return ranks;
        }
        if ranks.len() < 4 {
            return ranks;
        }
        let times: Vec<Vec<u64>> = ranks
            .iter()
            .map(|a| ranks.iter().map(|b| self.time_between(*a, *b)).collect())
            .collect();
        let order = shortest_round(&times);
        order.into_iter().map(|at| ranks[at]).collect()
    }

    /// The pace of rings in all of these groups at once, each of which reduces `bytes` on all its
    /// ranks.
    #[must_use]
    pub fn pace(&self, groups: &[Vec<Rank>], bytes: u64) -> Pace {
        let rings = groups.iter().map(|group| self.ring_order(group));
        self.pace_of(rings.collect(), bytes)
    }

    fn pace_of(&self, rings: Vec<Vec<Rank>>, bytes: u64) -> Pace {
        let mut flows = Vec::new();
        let mut steps = 0;
        for ring in rings.iter().filter(|ring| ring.len() > 1) {
            let count = ring.len() as u64;
            steps = steps.max(2 * (count - 1));
            let each =
                (u128::from(bytes) * u128::from(2 * (count - 1))).div_ceil(count.into()) as u64;
            for (at, from) in ring.iter().enumerate() {
                flows.push((*from, ring[(at + 1) % ring.len()], each));
            }
        }
        let mut pace = Pace {
            time_ns: Some(0),
            slowest: None,
            links_bytes_per_s: (0, u64::MAX),
            rings,
        };
        // By wire: bytes, messages, one of them.
        let mut crowded = BTreeMap::<Segment, (u64, u64, (Rank, Rank))>::new();
        let (mut longest, mut latency_ns) = (0, 0);
        for (from, to, each) in flows {
            let Some(link) = self.links(from, to).into_iter().next() else {
                pace.time_ns = None;
                pace.links_bytes_per_s.1 = 0;
                pace.slowest = Some(Slowest {
                    from,
                    to,
                    link: None,
                    wire: None,
                    messages: 0,
                    bytes_per_s: 0,
                });
                return pace;
            };
            latency_ns = link.latency_ns.max(latency_ns);
            let (fastest, slowest) = &mut pace.links_bytes_per_s;
            *fastest = link.bytes_per_s.max(*fastest);
            *slowest = link.bytes_per_s.min(*slowest);
            for segment in self.path(&link) {
                let crowd = crowded.entry(segment).or_insert((0, 0, (from, to)));
                crowd.0 = crowd.0.saturating_add(each);
                crowd.1 += 1;
            }
            let time = time_ns(each, link.bytes_per_s);
            if time > longest || pace.slowest.is_none() {
                longest = time;
                pace.slowest = Some(Slowest {
                    from,
                    to,
                    wire: None,
                    messages: 1,
                    bytes_per_s: link.bytes_per_s,
                    link: Some(link),
                });
            }
        }
        for (segment, (all, messages, (from, to))) in crowded {
            let capacity = self.capacity(segment);
            let time = time_ns(all, capacity);
            if capacity > 0 && time > longest {
                longest = time;
                pace.slowest = Some(Slowest {
                    from,
                    to,
                    link: self.links(from, to).into_iter().next(),
                    wire: Some(segment),
                    messages,
                    bytes_per_s: capacity / messages,
                });
            }
        }
        pace.time_ns = Some(longest.saturating_add(latency_ns.saturating_mul(steps)));
        if pace.slowest.is_none() {
            pace.links_bytes_per_s = (0, 0);
        }
        pace
    }

    /// Compares a mapping with one that is made from the graph. Position *p* has the coordinates of a
    /// number whose digits are the kinds, the first one the lowest: with `tp=4,dp=2` positions 0 to 3 are
    /// a group of `tp`, and 0 and 4 one of `dp`. `mapping` says which rank is at each position.
    ///
    /// # Errors
    /// If the sizes do not fit the mapping, or it names a rank twice or one that is not there.
    pub fn advise(
        &self,
        kinds: &[GroupKind],
        mapping: &[Rank],
        bytes: u64,
    ) -> Result<Advice, AdviceError> {
        let sizes = kinds.iter().map(|kind| u64::from(kind.size));
        let product = sizes.fold(1, u64::saturating_mul);
        if product != mapping.len() as u64 || product == 0 {
            let sizes: Vec<String> = kinds
                .iter()
                .map(|kind| format!("{}={}", kind.name, kind.size))
                .collect();
            return Err(AdviceError::Sizes {
                sizes: sizes.join(" x "),
                product,
                ranks: mapping.len(),
            });
        }
        let mut sorted = mapping.to_vec();
        sorted.sort_unstable();
        let twice = sorted.windows(2).find(|pair| pair[0] == pair[1]);
        let wrong = twice.map(|pair| (pair[0], "twice")).or_else(|| {
            let last = sorted.last().filter(|rank| rank.0 >= self.size());
            last.map(|rank| (*rank, "not in the graph and"))
        });
        if let Some((rank, what)) = wrong {
            return Err(AdviceError::Mapping { rank, what });
        }
        // Two ranks that change places leave most groups as they are.
        let mut rings = BTreeMap::<Vec<Rank>, Vec<Rank>>::new();
        let mut ring = |mut group: Vec<Rank>| {
            group.sort_unstable();
            if let Some(known) = rings.get(&group) {
                return known.clone();
            }
            let ring = self.ring_order(&group);
            rings.insert(group, ring.clone());
            ring
        };
        let mut with_paces = |ranks: Vec<Rank>| Mapping {
            paces: (0..kinds.len())
                .map(|kind| {
                    let groups = groups_of(kinds, kind, &ranks).into_iter();
                    self.pace_of(groups.map(&mut ring).collect(), bytes)
                })
                .collect(),
            ranks,
        };
        let given = with_paces(mapping.to_vec());
        let mut made = with_paces(self.made(kinds, sorted));
        if mapping.len() <= EXCHANGED {
            made = self.exchanged(kinds, made, &mut with_paces);
        }
        let weight = |mapping: &Mapping| mapping.weighted_ns(kinds).unwrap_or(u128::MAX);
        let better = (weight(&made) < weight(&given)).then_some(made);
        Ok(Advice { given, better })
    }

    /// A mapping in which no two ranks can change places for the better: less time, or as much and
    /// faster links.
    fn exchanged(
        &self,
        kinds: &[GroupKind],
        mut mapping: Mapping,
        with_paces: &mut dyn FnMut(Vec<Rank>) -> Mapping,
    ) -> Mapping {
        let cost = |mapping: &Mapping| {
            let time = mapping.weighted_ns(kinds).unwrap_or(u128::MAX);
            let links = mapping.paces.iter().zip(kinds).map(|(pace, kind)| {
                let rings = pace.rings.iter().flat_map(|ring| {
                    (0..ring.len()).map(|at| (ring[at], ring[(at + 1) % ring.len()]))
                });
                let pairs = rings.filter(|(a, b)| a != b);
                let times = pairs.map(|(a, b)| u128::from(self.time_between(a, b)));
                times.sum::<u128>().saturating_mul(kind.weight.into())
            });
            (time, links.sum::<u128>())
        };
        let mut best = cost(&mapping);
        for _ in 0..PASSES {
            let mut improved = false;
            for a in 0..mapping.ranks.len() {
                for b in a + 1..mapping.ranks.len() {
                    let mut ranks = mapping.ranks.clone();
                    ranks.swap(a, b);
                    let other = with_paces(ranks);
                    let now = cost(&other);
                    if now < best {
                        best = now;
                        mapping = other;
                        improved = true;
                    }
                }
            }
            if !improved {
                break;
            }
        }
        mapping
    }

    /// A mapping made from the graph: by position.
    fn made(&self, kinds: &[GroupKind], mut ranks: Vec<Rank>) -> Vec<Rank> {
        self.sort_by_place(&mut ranks);
        let mut by_weight: Vec<usize> = (0..kinds.len()).collect();
        by_weight.sort_by_key(|kind| std::cmp::Reverse(kinds[*kind].weight));
        // Rows of ranks that are in one place of all kinds so far; equal in length.
        let mut rows: Vec<Vec<Rank>> = ranks.into_iter().map(|rank| vec![rank]).collect();
        for kind in &by_weight {
            rows = self.joined(rows, kinds[*kind].size as usize);
        }
        // One row is left, whose digits are the kinds by weight.
        let row = rows.into_iter().next().unwrap_or_default();
        let mut mapping = vec![Rank(0); row.len()];
        for (number, rank) in row.into_iter().enumerate() {
            let mut rest = number;
            let mut digits = vec![0; kinds.len()];
            for kind in &by_weight {
                digits[*kind] = rest % kinds[*kind].size as usize;
                rest /= kinds[*kind].size as usize;
            }
            let position = digits
                .iter()
                .zip(kinds)
                .rev()
                .fold(0, |position, (digit, kind)| {
                    position * kind.size as usize + digit
                });
            mapping[position] = rank;
        }
        mapping
    }

    /// Joins rows, so many to one, those that are nearest to each other.
    fn joined(&self, rows: Vec<Vec<Rank>>, size: usize) -> Vec<Vec<Rank>> {
        let mut free = VecDeque::from(rows);
        let mut joined = Vec::new();
        while let Some(first) = free.pop_front() {
            let mut group = vec![first];
            // The slowest link of each to those that are in the group, and all of them.
            let mut near: VecDeque<(u64, u128)> = VecDeque::new();
            let mut counted = 0;
            while group.len() < size && !free.is_empty() {
                for (at, row) in free.iter().take(LOOKED_AT).enumerate() {
                    let known = at < near.len();
                    let new = &group[if known { counted } else { 0 }..];
                    if !known {
                        near.push_back((0, 0));
                    }
                    for other in new {
                        let time = self.time_between_rows(other, row);
                        let (most, sum) = &mut near[at];
                        *most = time.max(*most);
                        *sum += u128::from(time);
                    }
                }
                counted = group.len();
                // The first of equals.
                let best = near
                    .iter()
                    .enumerate()
                    .min_by_key(|(at, time)| (**time, *at));
                let best = best.map_or(0, |(at, _)| at);
                near.remove(best);
                group.extend(free.remove(best));
            }
            joined.push(group.concat());
        }
        joined
    }

    /// The slowest of the links between ranks that are in one place of two rows.
    fn time_between_rows(&self, a: &[Rank], b: &[Rank]) -> u64 {
        let pairs = a.iter().zip(b);
        let times = pairs.map(|(a, b)| self.time_between(*a, *b));
        times.max().unwrap_or(0)
    }

    fn time_between(&self, a: Rank, b: Rank) -> u64 {
        let links = self.links(a, b);
        links
            .first()
            .map_or(u64::MAX, |link| link.predict_ns(REFERENCE_BYTES))
    }

    /// In the order of nets, the outermost first, then hosts, packages, ranks.
    pub(crate) fn sort_by_place(&self, ranks: &mut [Rank]) {
        ranks.sort_by_cached_key(|rank| {
            let layers = self.instance_of.iter().rev();
            let nets: Vec<u32> = layers
                .map(|layer| layer.get(rank.index()).copied().unwrap_or(NOWHERE))
                .collect();
            (nets, self.host_of(*rank), self.package_of(*rank), *rank)
        });
    }
}

/// The groups of a kind, by position of their lowest.
fn groups_of(kinds: &[GroupKind], kind: usize, ranks: &[Rank]) -> Vec<Vec<Rank>> {
    let below: usize = kinds[..kind]
        .iter()
        .map(|kind| kind.size as usize)
        .product();
    let size = kinds[kind].size as usize;
    let mut groups = Vec::with_capacity(ranks.len() / size.max(1));
    for position in 0..ranks.len() {
        if (position / below).is_multiple_of(size) {
            let places = (0..size).map(|digit| position + digit * below);
            groups.push(places.map(|place| ranks[place]).collect());
        }
    }
    groups
}

fn time_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    let time = (u128::from(bytes) * 1_000_000_000).checked_div(bytes_per_s.into());
    time.map_or(u64::MAX, |time| u64::try_from(time).unwrap_or(u64::MAX))
}

/// A round trip over all, by times between pairs: from each to the nearest that is left, then parts
/// turned round as long as that makes it better.
fn shortest_round(times: &[Vec<u64>]) -> Vec<usize> {
    let count = times.len();
    let mut order = vec![0];
    let mut left: Vec<usize> = (1..count).collect();
    while let Some(at) = (0..left.len()).min_by_key(|at| {
        let last = order.last().copied().unwrap_or(0);
        (times[last][left[*at]], left[*at])
    }) {
        order.push(left.remove(at));
    }
    let cost = |order: &[usize]| {
        let pairs = (0..count).map(|at| (order[at], order[(at + 1) % count]));
        pairs.fold((0, 0u128), |(most, sum), (a, b)| {
            let time = times[a][b];
            (time.max(most), sum + u128::from(time))
        })
    };
    let mut best = cost(&order);
    loop {
        let mut improved = false;
        for from in 1..count - 1 {
            for to in from + 1..count {
                order[from..=to].reverse();
                let now = cost(&order);
                if now < best {
                    best = now;
                    improved = true;
                } else {
                    order[from..=to].reverse();
                }
            }
        }
        if !improved {
            return order;
        }
    }
}
