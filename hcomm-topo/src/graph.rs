//! The rank graph: who is where, and what joins them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use hcomm_types::{Error, ErrorKind, HostId, Protocol, Rank};
use serde::{Deserialize, Serialize};

use crate::choice::{self, Allowed, Choice, NoLink, RefusedLink, RefusedPair, RefusedRank};
use crate::fabric::Fabric;
use crate::facts::{EndpointFacts, RankFacts};
use crate::host::HostFacts;
use crate::link::{End, Layer, Link, Nearness, ROUTER_NS, Refusal, is_routed, join};
use crate::wired::wired;

/// Ranks, their endpoints, and the layers they form.
///
/// Memory grows with ranks and endpoints, not with pairs: links are computed when asked for.
/// Graphs built from the same facts are equal, whatever the order of the facts, so all ranks that
/// hold the same facts choose alike.
///
/// Queries are total: a rank that is not in the graph has no endpoints, no links and no
/// neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankGraph {
    /// By rank.
    ranks: Vec<RankFacts>,
    /// By rank: number of its host.
    pub(crate) host_of: Vec<u32>,
    /// The ranks of each host, as instances of layer 0.
    pub(crate) hosts: Vec<Instance>,
    /// By layer.
    pub(crate) layers: Vec<Vec<Instance>>,
    /// By layer and rank: number of its instance, or [`NOWHERE`].
    pub(crate) instance_of: Vec<Vec<u32>>,
    /// Wires, where they are known.
    pub(crate) fabric: Option<Fabric>,
}

/// Stands for the instance of a rank that is in none.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// Number of an instance in its layer: instances are counted by their lowest rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceId(pub u32);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Ranks that a layer joins: a net instance. Where wires are not known these are the ranks of one
/// host in layer 0, and all ranks in layer 1. Each network namespace of a machine counts as a host of
/// its own: what joins ranks inside a host ends at it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Its number in the layer.
    pub id: InstanceId,
    /// The layer.
    pub layer: Layer,
    /// Name for people: the host's, `network`, or what a file gives.
    pub name: String,
    /// Its ranks, in order.
    pub ranks: Vec<Rank>,
}

impl RankGraph {
    /// Builds the graph of a communicator from what its ranks told, in any order.
    ///
    /// # Errors
    /// If the facts contradict each other: a rank twice, a rank missing, one process on two hosts.
    pub fn build(mut facts: Vec<RankFacts>) -> Result<Self, GraphError> {
        facts.sort_by_key(|facts| facts.rank);
        check_numbers(&facts)?;
        check_processes(&facts)?;
        share_hosts(&mut facts);

        let mut numbers = HashMap::<HostId, Vec<(Option<&str>, u32)>>::new();
        let mut hosts = Vec::<Instance>::new();
        let mut host_of = Vec::with_capacity(facts.len());
        for RankFacts { rank, host, .. } in &facts {
            let next = Rank::from_index(hosts.len()).0;
            let space = host.network_namespace.as_deref();
            let known = numbers.entry(host.id.clone()).or_default();
            // Unknown namespaces count as equal: without /proc there are rarely several.
            let same = |(other, _): &&(Option<&str>, u32)| {
                *other == space || other.is_none() || space.is_none()
            };
            let number = known.iter().find(same).map_or(next, |(_, number)| *number);
            if number == next {
                let name = match (known.is_empty(), space) {
                    (false, Some(space)) => format!("{} {space}", host.name),
                    _ => host.name.clone(),
                };
                known.push((space, number));
                hosts.push(Instance {
                    id: InstanceId(number),
                    layer: Layer::HOST,
                    name,
                    ranks: Vec::new(),
                });
            }
            hosts[number as usize].ranks.push(*rank);
            host_of.push(number);
        }
        let mut layers = vec![hosts.clone()];
        let mut instance_of = vec![host_of.clone()];
        if hosts.len() > 1 {
            layers.push(vec![Instance {
                id: InstanceId(0),
                layer: Layer::NETWORK,
                name: "network".to_owned(),
                ranks: facts.iter().map(|facts| facts.rank).collect(),
            }]);
            instance_of.push(vec![0; facts.len()]);
        }
        Ok(Self {
            ranks: facts,
            host_of,
            hosts,
            layers,
            instance_of,
            fabric: None,
        })
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        Rank::from_index(self.ranks.len()).0
    }

    /// What a rank told about itself.
    #[must_use]
    pub fn rank(&self, rank: Rank) -> Option<&RankFacts> {
        self.ranks.get(rank.index())
    }

    /// All ranks' facts, in order.
    #[must_use]
    pub fn ranks(&self) -> &[RankFacts] {
        &self.ranks
    }

    /// A rank's endpoints; their position is their number.
    #[must_use]
    pub fn endpoints(&self, rank: Rank) -> &[EndpointFacts] {
        self.rank(rank).map_or(&[], |facts| &facts.endpoints)
    }

    /// The layers that the graph has, from 0 on. Where wires are not known: 0, and 1 if there are
    /// several hosts.
    pub fn layers(&self) -> impl Iterator<Item = Layer> + use<> {
        let count = u8::try_from(self.layers.len()).unwrap_or(u8::MAX);
        (0..count).map(Layer)
    }

    /// The instances of a layer, by number; their sizes are the lengths of their lists.
    #[must_use]
    pub fn instances(&self, layer: Layer) -> &[Instance] {
        let instances = self.layers.get(usize::from(layer.0));
        instances.map_or(&[], |instances| instances)
    }

    /// The instance of a layer that a rank belongs to.
    #[must_use]
    pub fn instance_of(&self, layer: Layer, rank: Rank) -> Option<&Instance> {
        let number = *self
            .instance_of
            .get(usize::from(layer.0))?
            .get(rank.index())?;
        self.instances(layer).get(number as usize)
    }

    /// The ranks that share a rank's instance at a layer, itself included, in order.
    #[must_use]
    pub fn ranks_by_layer(&self, layer: Layer, rank: Rank) -> &[Rank] {
        let instance = self.instance_of(layer, rank);
        instance.map_or(&[], |instance| &instance.ranks)
    }

    /// All links from `a` to `b`, best first (see [`choose`](Self::choose)). A rank may be asked
    /// about itself.
    #[must_use]
    pub fn links(&self, a: Rank, b: Rank) -> Vec<Link> {
        self.links_allowed(a, b, &Allowed::All)
    }

    /// The links from `a` to `b` whose transport is allowed, best first.
    pub(crate) fn links_allowed(&self, a: Rank, b: Rank, allowed: &Allowed) -> Vec<Link> {
        let (mut links, _) = self.examine(a.min(b), a.max(b), allowed);
        if a > b {
            links = links.into_iter().map(Link::flipped).collect();
        }
        links
    }

    /// The links from `a` to `b` at one layer, best first. A pair has links at one layer only: the
    /// lowest that joins it.
    #[must_use]
    pub fn links_at(&self, layer: Layer, a: Rank, b: Rank) -> Vec<Link> {
        let mut links = self.links(a, b);
        links.retain(|link| link.layer == layer);
        links
    }

    /// The layer at which two ranks meet: the lowest with a net that has both.
    #[must_use]
    pub fn layer_of(&self, a: Rank, b: Rank) -> Option<Layer> {
        let layers = (0..).map(Layer).zip(&self.instance_of);
        for (layer, instances) in layers {
            let (a, b) = (instances.get(a.index())?, instances.get(b.index())?);
            if a == b && *a != NOWHERE {
                return Some(layer);
            }
        }
        None
    }

    /// Whether two ranks run on one host.
    #[must_use]
    pub fn same_host(&self, a: Rank, b: Rank) -> bool {
        let host = |rank: Rank| self.host_of.get(rank.index());
        host(a).is_some() && host(a) == host(b)
    }

    /// Chooses the link between two ranks: of those whose transport is allowed, the one with the
    /// smallest predicted time for [`REFERENCE_BYTES`](crate::REFERENCE_BYTES); between equals
    /// the lowest protocol number, then the lowest endpoints of the lower rank. Links over
    /// link-local addresses are taken only if there is no other.
    ///
    /// The choice depends on the graph and `allowed` alone and is the same from both ends.
    ///
    /// # Errors
    /// If nothing joins them; the error names the endpoints of both and every refusal.
    pub fn choose(&self, a: Rank, b: Rank, allowed: &Allowed) -> Result<Choice, NoLink> {
        let facts = |rank: Rank| {
            self.rank(rank).ok_or_else(|| NoLink::UnknownRank {
                rank,
                size: self.size(),
            })
        };
        let (low, high) = (facts(a.min(b))?, facts(a.max(b))?);
        let (links, refused) = self.examine(low.rank, high.rank, allowed);
        let why = choice::explain(&links, &refused, low, high);
        let Some(link) = links.into_iter().next() else {
            return Err(NoLink::Refused(Box::new(RefusedPair {
                a: RefusedRank::of(low),
                b: RefusedRank::of(high),
                refused,
            })));
        };
        let link = if a > b { link.flipped() } else { link };
        Ok(Choice { link, why })
    }

    /// Every pair of endpoints of two ranks, lower rank first: links, best first, and refusals.
    fn examine(&self, a: Rank, b: Rank, allowed: &Allowed) -> (Vec<Link>, Vec<RefusedLink>) {
        let (mut links, mut refused) = (Vec::new(), Vec::new());
        let (Some(low), Some(high)) = (self.rank(a), self.rank(b)) else {
            return (links, refused);
        };
        let same_host = self.same_host(a, b);
        // Ranks that no net joins may still reach each other by their addresses.
        let layer = self.layer_of(a, b).unwrap_or(Layer::NETWORK);
        let nearness = Nearness::of(&low.process, &high.process, same_host);
        for (i, from) in (0..).zip(&low.endpoints) {
            for (j, to) in (0..).zip(&high.endpoints) {
                if from.protocol != to.protocol {
                    continue;
                }
                if let Some(wires) = self.wires((a, i), (b, j)) {
                    match wired(from, to, wires, allowed) {
                        Ok(joined) => links.push(self.link_over(joined, (a, i), (b, j), from, to)),
                        Err(refusal) => refused.push(RefusedLink {
                            protocol: from.protocol,
                            a_endpoint: Some(i),
                            b_endpoint: Some(j),
                            refusal,
                        }),
                    }
                    continue;
                }
                match admit(low, from, high, to, nearness, allowed) {
                    Ok(last_resort) => {
                        let routed = !same_host && is_routed(low, from, high, to);
                        let router_ns = if routed { ROUTER_NS } else { 0 };
                        links.push(Link {
                            layer,
                            plane: 0,
                            protocol: from.protocol,
                            from: a,
                            to: b,
                            from_endpoint: i,
                            to_endpoint: j,
                            from_port: None,
                            to_port: None,
                            transport: from.transport.clone(),
                            latency_ns: from.latency_ns.max(to.latency_ns) + router_ns,
                            bytes_per_s: from.bytes_per_s.min(to.bytes_per_s),
                            hops: match (same_host, routed) {
                                (true, _) => 1,
                                (_, false) => 2,
                                (_, true) => 3,
                            },
                            last_resort,
                        });
                    }
                    Err(refusal) => refused.push(RefusedLink {
                        protocol: from.protocol,
                        a_endpoint: Some(i),
                        b_endpoint: Some(j),
                        refusal,
                    }),
                }
            }
        }
        refused.extend(alone(low, high).map(|(i, protocol)| RefusedLink {
            protocol,
            a_endpoint: Some(i),
            b_endpoint: None,
            refusal: Refusal::NoCounterpart { protocol, rank: b },
        }));
        refused.extend(alone(high, low).map(|(j, protocol)| RefusedLink {
            protocol,
            a_endpoint: None,
            b_endpoint: Some(j),
            refusal: Refusal::NoCounterpart { protocol, rank: a },
        }));
        if let Some(lowest) = links.iter().map(|link| link.layer).min() {
            links.retain(|link| link.layer == lowest);
        }
        links.sort_by_key(choice::order);
        (links, refused)
    }
}

/// Facts that contradict each other, or a text that is no graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// No ranks at all.
    #[error("a graph needs at least one rank")]
    Empty,
    /// A number that two ranks claim.
    #[error("rank {rank} is claimed twice: by process {first} and by process {second}")]
    DuplicateRank {
        /// The rank.
        rank: Rank,
        /// Process and host of the one.
        first: String,
        /// Process and host of the other.
        second: String,
    },
    /// A number that none claims though a higher one is there.
    #[error("rank {missing} is missing: there are {count} ranks, the highest is {highest}")]
    MissingRank {
        /// The lowest number that is missing.
        missing: Rank,
        /// Ranks that are there.
        count: usize,
        /// The highest of them.
        highest: Rank,
    },
    /// Two ranks with the token of one process are not in one.
    #[error(
        "ranks {a} and {b} show the token of one process but are processes {first} and {second}"
    )]
    SplitProcess {
        /// One rank.
        a: Rank,
        /// The other.
        b: Rank,
        /// Process and host of the one.
        first: String,
        /// Process and host of the other.
        second: String,
    },
    /// The text is no JSON of a graph.
    #[error("line {line}, column {column}: {problem}")]
    Json {
        /// Line, from 1.
        line: usize,
        /// Column, from 1; 0 before the first.
        column: usize,
        /// What is wrong there.
        problem: String,
    },
    /// The JSON is of another kind or version.
    #[error(
        "this is `{format}` version {version}; `{known_format}` version {known_version} is understood"
    )]
    Version {
        /// Format that the text names.
        format: String,
        /// Version that the text names.
        version: u32,
        /// The one format that is understood.
        known_format: &'static str,
        /// The one version that is understood.
        known_version: u32,
    },
    /// Wires that contradict each other or the ranks.
    #[error("the wires make no sense: {problem}")]
    Fabric {
        /// What is wrong, with the values.
        problem: String,
    },
    /// A part that there is not.
    #[error("rank {rank} {problem}")]
    Part {
        /// The rank.
        rank: Rank,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A rank names a host that the text does not list.
    #[error("rank {rank} is on host number {host}, but {hosts} hosts are listed")]
    UnknownHost {
        /// The rank.
        rank: Rank,
        /// The number it names.
        host: usize,
        /// Hosts in the list.
        hosts: usize,
    },
}

impl From<GraphError> for Error {
    fn from(error: GraphError) -> Self {
        let kind = match &error {
            GraphError::DuplicateRank { .. }
            | GraphError::MissingRank { .. }
            | GraphError::SplitProcess { .. } => ErrorKind::Mismatch,
            _ => ErrorKind::InvalidArgument,
        };
        let mut outer = Self::new(kind, error.to_string());
        match &error {
            GraphError::DuplicateRank { rank, .. } => outer = outer.blame_rank(*rank),
            GraphError::MissingRank { missing, .. } => outer = outer.blame_rank(*missing),
            GraphError::SplitProcess { a, b, .. } => outer = outer.blame_rank(*a).blame_rank(*b),
            _ => {}
        }
        outer.with_source(error)
    }
}

fn check_numbers(sorted: &[RankFacts]) -> Result<(), GraphError> {
    let highest = sorted.last().ok_or(GraphError::Empty)?.rank;
    for pair in sorted.windows(2) {
        if pair[0].rank == pair[1].rank {
            return Err(GraphError::DuplicateRank {
                rank: pair[0].rank,
                first: place(&pair[0]),
                second: place(&pair[1]),
            });
        }
    }
    let numbers = (0..).map(Rank).zip(sorted);
    match numbers
        .into_iter()
        .find(|(number, facts)| *number != facts.rank)
    {
        None => Ok(()),
        Some((missing, _)) => Err(GraphError::MissingRank {
            missing,
            count: sorted.len(),
            highest,
        }),
    }
}

fn check_processes(sorted: &[RankFacts]) -> Result<(), GraphError> {
    let mut first_of = HashMap::<u64, &RankFacts>::new();
    for facts in sorted {
        let first = *first_of.entry(facts.process.token).or_insert(facts);
        if first.process.pid != facts.process.pid || first.host.id != facts.host.id {
            return Err(GraphError::SplitProcess {
                a: first.rank,
                b: facts.rank,
                first: place(first),
                second: place(facts),
            });
        }
    }
    Ok(())
}

/// Lets ranks with equal facts about their host share one copy.
fn share_hosts(facts: &mut [RankFacts]) {
    let mut copies = HashMap::<HostId, Vec<Arc<HostFacts>>>::new();
    for facts in facts {
        let known = copies.entry(facts.host.id.clone()).or_default();
        let equal = |copy: &&Arc<HostFacts>| Arc::ptr_eq(copy, &facts.host) || **copy == facts.host;
        match known.iter().find(equal) {
            Some(copy) => facts.host = Arc::clone(copy),
            None => known.push(Arc::clone(&facts.host)),
        }
    }
}

fn place(facts: &RankFacts) -> String {
    format!("{} on {}", facts.process.pid, facts.host.name)
}

/// Whether two endpoints of one protocol are a link; if so, whether only as a last resort.
pub(crate) fn admit(
    low: &RankFacts,
    from: &EndpointFacts,
    high: &RankFacts,
    to: &EndpointFacts,
    nearness: Nearness,
    allowed: &Allowed,
) -> Result<bool, Refusal> {
    let not_allowed = [from, to]
        .into_iter()
        .find(|e| !allowed.contains(&e.transport));
    if let Some(endpoint) = not_allowed {
        return Err(Refusal::NotAllowed {
            transport: endpoint.transport.clone(),
            allowed: allowed.to_string(),
        });
    }
    let from = End {
        endpoint: from,
        host: &low.host,
    };
    let to = End {
        endpoint: to,
        host: &high.host,
    };
    join(from, to, nearness)
}

/// Endpoints of `rank` whose protocol `other` does not speak, with their numbers.
fn alone<'a>(
    rank: &'a RankFacts,
    other: &'a RankFacts,
) -> impl Iterator<Item = (u32, Protocol)> + 'a {
    let protocols = rank.endpoints.iter().map(|endpoint| endpoint.protocol);
    (0..)
        .zip(protocols)
        .filter(|(_, protocol)| other.endpoints.iter().all(|e| e.protocol != *protocol))
}
