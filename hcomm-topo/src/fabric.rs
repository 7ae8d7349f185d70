//! What is known about wires: switches, ports, cables, and which ranks they join at which layer.
//!
//! A graph of discovered hosts has none of it; one that was read from a rank table, a topology file
//! or a description of a cluster has. Nothing here is stored by pairs of ranks: a switch knows its
//! parent, a port its switch, a cable its two ends.

use std::ops::Range;

use hcomm_types::Rank;
use serde::{Deserialize, Serialize};

use crate::graph::GraphError;
use crate::link::Layer;
use crate::topology::TopologyType;

/// Wires of a cluster, as facts. Lists are named by position: a [`SwitchId`] is one in
/// [`switches`](Self::switches).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricFacts {
    /// Which ranks reach each other at which layer. A rank is in at most one net of a layer.
    pub nets: Vec<NetFacts>,
    /// Structures inside layers whose kind is known; of others it is found out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub planes: Vec<PlaneFacts>,
    /// Switches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<SwitchFacts>,
    /// Ports of ranks and hosts.
    pub ports: Vec<PortFacts>,
    /// By rank, by endpoint: the port that it goes through. Endpoints beyond the list, and those
    /// with none, are joined by what their addresses and their reach say.
    pub attached: Vec<Vec<Option<PortId>>>,
    /// Wires that go from one rank to another without a switch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cables: Vec<CableFacts>,
    /// By rank: number of the package on its host; ranks of one package are dies of it. Empty: each
    /// rank is a package.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<u32>,
}

/// Number of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SwitchId(pub u32);

/// Number of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PortId(pub u32);

/// Number of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CableId(pub u32);

/// Ranks that reach each other at a layer: a net instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetFacts {
    /// The layer.
    pub layer: Layer,
    /// Its name, as files give it.
    pub name: String,
    /// Its ranks.
    pub ranks: Vec<Rank>,
}

/// A structure inside a layer, such as one axis of a mesh or one rail: a topology instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlaneFacts {
    /// The layer.
    pub layer: Layer,
    /// Its number there, the same in all nets.
    pub plane: u32,
    /// What it is.
    pub kind: TopologyType,
}

/// A switch, or as many as act as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchFacts {
    /// Its name.
    pub name: String,
    /// The switch above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SwitchId>,
    /// Bytes per second to that, each way, over all wires together; 0 if unknown or none above.
    #[serde(default)]
    pub bytes_per_s: u64,
    /// Time that the way to the switch above adds, in nanoseconds.
    #[serde(default)]
    pub latency_ns: u64,
}

/// A port of a device or a host. Endpoints that go through one port share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortFacts {
    /// Its name, such as `0/3` or `eth0`.
    pub name: String,
    /// The layer that it serves.
    pub layer: Layer,
    /// The structure that it belongs to.
    #[serde(default)]
    pub plane: u32,
    /// Bytes per second, each way, of all that goes through it; 0 if unknown.
    pub bytes_per_s: u64,
    /// The switch that it is plugged into; none where only cables leave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchId>,
}

/// A wire between two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CableFacts {
    /// One end: a rank and the number of its endpoint.
    pub a: (Rank, u32),
    /// The other end.
    pub b: (Rank, u32),
    /// Bytes per second, each way; 0 for as many as the ports.
    #[serde(default)]
    pub bytes_per_s: u64,
    /// Time that it adds, in nanoseconds.
    #[serde(default)]
    pub latency_ns: u64,
}

/// A part of the way of a link on which it meets others, one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Segment {
    /// Out of a port.
    PortOut(PortId),
    /// Into a port.
    PortIn(PortId),
    /// From a switch to the one above.
    Up(SwitchId),
    /// To a switch from the one above.
    Down(SwitchId),
    /// Over a cable; the flag says from its second end to its first.
    Cable(CableId, bool),
}

/// Facts, and where to find things in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fabric {
    facts: FabricFacts,
    /// By switch: the topmost one above it, and how many are above it.
    roots: Vec<(SwitchId, u32)>,
    /// Cables seen from each end, by rank, endpoint and peer.
    ends: Vec<CableEnd>,
    /// By rank: its cables in `ends`.
    ends_of: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CableEnd {
    rank: Rank,
    peer: Rank,
    endpoint: u32,
    peer_endpoint: u32,
    cable: CableId,
}

/// How two endpoints are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) layer: Layer,
    pub(crate) plane: u32,
    /// Wires on the way.
    pub(crate) hops: u32,
    /// The slowest of them; `u64::MAX` where none is known.
    pub(crate) bytes_per_s: u64,
    /// What the way adds.
    pub(crate) latency_ns: u64,
}

/// Switches above each other, at most.
const MAX_DEEP: usize = 64;

/// The highest layer.
pub const MAX_LAYER: u8 = 7;

impl Fabric {
    /// Checks the facts against each other and against the number of endpoints of each rank.
    pub(crate) fn new(facts: FabricFacts, endpoints: &[usize]) -> Result<Self, GraphError> {
        let wrong = |problem: String| GraphError::Fabric { problem };
        let size = endpoints.len();
        for net in &facts.nets {
            if net.layer.0 > MAX_LAYER {
                return Err(wrong(format!(
                    "net {} is at layer {}, the highest is {MAX_LAYER}",
                    net.name, net.layer
                )));
            }
            if let Some(rank) = net.ranks.iter().find(|rank| rank.index() >= size) {
                return Err(wrong(format!(
                    "net {} of layer {} has rank {rank}, there are {size} ranks",
                    net.name, net.layer
                )));
            }
        }
        if !facts.packages.is_empty() && facts.packages.len() != size {
            let have = facts.packages.len();
            return Err(wrong(format!("packages of {have} ranks, there are {size}")));
        }
        let roots = roots(&facts.switches)?;
        for port in &facts.ports {
            if let Some(switch) = port.switch
                && switch.0 as usize >= facts.switches.len()
            {
                return Err(wrong(format!(
                    "port {} is at switch {}, there are {}",
                    port.name,
                    switch.0,
                    facts.switches.len()
                )));
            }
        }
        if facts.attached.len() > size {
            return Err(wrong(format!(
                "endpoints of {} ranks are attached, there are {size}",
                facts.attached.len()
            )));
        }
        for (rank, (ports, have)) in facts.attached.iter().zip(endpoints).enumerate() {
            if ports.len() > *have {
                return Err(wrong(format!(
                    "rank {rank} attaches {} endpoints and has {have}",
                    ports.len()
                )));
            }
            if let Some(port) = ports
                .iter()
                .flatten()
                .find(|p| p.0 as usize >= facts.ports.len())
            {
                return Err(wrong(format!(
                    "rank {rank} is attached to port {}, there are {}",
                    port.0,
                    facts.ports.len()
                )));
            }
        }
        let attached = |(rank, endpoint): (Rank, u32)| {
            let ports = facts.attached.get(rank.index());
            ports.and_then(|ports| ports.get(endpoint as usize).copied().flatten())
        };
        let mut ends = Vec::with_capacity(2 * facts.cables.len());
        for (number, cable) in (0..).zip(&facts.cables) {
            for (from, to) in [(cable.a, cable.b), (cable.b, cable.a)] {
                if attached(from).is_none() || cable.a.0 == cable.b.0 {
                    return Err(wrong(format!(
                        "cable {number} joins endpoint {}.{} and endpoint {}.{}: its ends must be \
                         ports of two ranks",
                        cable.a.0, cable.a.1, cable.b.0, cable.b.1
                    )));
                }
                ends.push(CableEnd {
                    rank: from.0,
                    peer: to.0,
                    endpoint: from.1,
                    peer_endpoint: to.1,
                    cable: CableId(number),
                });
            }
        }
        ends.sort_unstable();
        let mut ends_of = vec![0; size + 1];
        for end in &ends {
            ends_of[end.rank.index() + 1] += 1;
        }
        for rank in 0..size {
            ends_of[rank + 1] += ends_of[rank];
        }
        Ok(Self {
            facts,
            roots,
            ends,
            ends_of,
        })
    }

    pub(crate) const fn facts(&self) -> &FabricFacts {
        &self.facts
    }

    pub(crate) fn port_of(&self, rank: Rank, endpoint: u32) -> Option<PortId> {
        let ports = self.facts.attached.get(rank.index())?;
        *ports.get(endpoint as usize)?
    }

    pub(crate) fn port(&self, port: PortId) -> Option<&PortFacts> {
        self.facts.ports.get(port.0 as usize)
    }

    /// The topmost switch above a port.
    pub(crate) fn root_of(&self, port: PortId) -> Option<SwitchId> {
        let switch = self.port(port)?.switch?;
        Some(self.roots[switch.0 as usize].0)
    }

    /// The cables from one rank to another.
    fn cables(&self, rank: Rank, peer: Rank) -> &[CableEnd] {
        let all = self.cables_of(rank);
        let first = all.partition_point(|end| end.peer < peer);
        let beyond = all.partition_point(|end| end.peer <= peer);
        &all[first..beyond]
    }

    fn cables_of(&self, rank: Rank) -> &[CableEnd] {
        let bound = |at: usize| self.ends_of.get(at).map_or(0, |end| *end as usize);
        &self.ends[bound(rank.index())..bound(rank.index() + 1)]
    }

    /// The ranks that cables lead to from a rank at a plane of a layer.
    pub(crate) fn neighbours(
        &self,
        rank: Rank,
        layer: Layer,
        plane: u32,
    ) -> impl Iterator<Item = Rank> + '_ {
        self.cables_of(rank).iter().filter_map(move |end| {
            let port = self.port(self.port_of(rank, end.endpoint)?)?;
            ((port.layer, port.plane) == (layer, plane)).then_some(end.peer)
        })
    }

    fn cable_between(&self, a: (Rank, u32), b: (Rank, u32)) -> Option<(CableId, CableFacts)> {
        let ends = self.cables(a.0, b.0);
        let end = ends
            .iter()
            .find(|end| (end.endpoint, end.peer_endpoint) == (a.1, b.1))?;
        Some((end.cable, self.facts.cables[end.cable.0 as usize]))
    }

    /// How two endpoints with ports are joined, if they are: by a cable, or by switches. Two ranks
    /// behind one port of a host do not need it.
    pub(crate) fn join(&self, a: (Rank, u32), b: (Rank, u32)) -> Option<Joined> {
        let (port_a, port_b) = (self.port_of(a.0, a.1)?, self.port_of(b.0, b.1)?);
        let (from, to) = (self.port(port_a)?, self.port(port_b)?);
        let known = |bytes_per_s: u64| {
            if bytes_per_s == 0 {
                u64::MAX
            } else {
                bytes_per_s
            }
        };
        let ports = known(from.bytes_per_s).min(known(to.bytes_per_s));
        if let Some((_, cable)) = self.cable_between(a, b) {
            return Some(Joined {
                layer: from.layer.max(to.layer),
                plane: from.plane,
                hops: 1,
                bytes_per_s: ports.min(known(cable.bytes_per_s)),
                latency_ns: cable.latency_ns,
            });
        }
        let (up, down) = self.climb(from.switch?, to.switch?)?;
        let mut joined = Joined {
            layer: from.layer.max(to.layer),
            plane: from.plane,
            hops: 2,
            bytes_per_s: ports,
            latency_ns: 0,
        };
        if port_a == port_b {
            // Out and in again at the same place.
            joined.hops = 0;
        }
        for switch in up.into_iter().chain(down) {
            let switch = &self.facts.switches[switch.0 as usize];
            joined.hops += 1;
            joined.bytes_per_s = joined.bytes_per_s.min(known(switch.bytes_per_s));
            joined.latency_ns = joined.latency_ns.saturating_add(switch.latency_ns);
        }
        Some(joined)
    }

    /// The switches whose upward wires lead from one to another: from the first, and to the second,
    /// from the top down.
    fn climb(&self, from: SwitchId, to: SwitchId) -> Option<(Vec<SwitchId>, Vec<SwitchId>)> {
        let [(root_a, deep_a), (root_b, deep_b)] = [from, to].map(|s| self.roots[s.0 as usize]);
        if root_a != root_b {
            return None;
        }
        let parent = |switch: SwitchId| self.facts.switches[switch.0 as usize].parent;
        let ((mut a, mut deep_a), (mut b, mut deep_b)) = ((from, deep_a), (to, deep_b));
        let (mut up, mut down) = (Vec::new(), Vec::new());
        while a != b {
            if deep_a >= deep_b {
                up.push(a);
                a = parent(a)?;
                deep_a -= 1;
            } else {
                down.push(b);
                b = parent(b)?;
                deep_b -= 1;
            }
        }
        down.reverse();
        Some((up, down))
    }

    /// The parts of the way between two joined endpoints, in order.
    pub(crate) fn path(&self, a: (Rank, u32), b: (Rank, u32)) -> Vec<Segment> {
        let (Some(port_a), Some(port_b)) = (self.port_of(a.0, a.1), self.port_of(b.0, b.1)) else {
            return Vec::new();
        };
        let mut path = vec![Segment::PortOut(port_a)];
        if let Some((id, cable)) = self.cable_between(a, b) {
            path.push(Segment::Cable(id, cable.a != a));
        } else {
            let switch = |port| self.port(port).and_then(|port: &PortFacts| port.switch);
            let ways = switch(port_a).zip(switch(port_b));
            let Some((up, down)) = ways.and_then(|(from, to)| self.climb(from, to)) else {
                return Vec::new();
            };
            path.extend(up.into_iter().map(Segment::Up));
            path.extend(down.into_iter().map(Segment::Down));
        }
        path.push(Segment::PortIn(port_b));
        path
    }

    /// Bytes per second of a part of a way; 0 if unknown.
    pub(crate) fn capacity(&self, segment: Segment) -> u64 {
        let facts = &self.facts;
        match segment {
            Segment::PortOut(port) | Segment::PortIn(port) => {
                self.port(port).map_or(0, |port| port.bytes_per_s)
            }
            Segment::Up(switch) | Segment::Down(switch) => {
                let switch = facts.switches.get(switch.0 as usize);
                switch.map_or(0, |switch| switch.bytes_per_s)
            }
            Segment::Cable(cable, _) => {
                let cable = facts.cables.get(cable.0 as usize);
                cable.map_or(0, |cable| cable.bytes_per_s)
            }
        }
    }

    /// The ports of a rank, with the numbers of the endpoints that go through them.
    pub(crate) fn ports_of(&self, rank: Rank) -> impl Iterator<Item = (u32, PortId)> + '_ {
        let ports = self.facts.attached.get(rank.index());
        (0..)
            .zip(ports.into_iter().flatten())
            .filter_map(|(endpoint, port)| Some((endpoint, (*port)?)))
    }
}

/// The topmost switch above each, and how many are above it.
fn roots(switches: &[SwitchFacts]) -> Result<Vec<(SwitchId, u32)>, GraphError> {
    let mut roots: Vec<Option<(SwitchId, u32)>> = vec![None; switches.len()];
    for first in 0..switches.len() {
        let mut way = Vec::new();
        let mut at = first;
        let (root, mut above) = loop {
            if let Some(known) = roots[at] {
                break (known.0, known.1 + 1);
            }
            if way.contains(&at) {
                let names: Vec<&str> = way.iter().map(|at| &*switches[*at].name).collect();
                return Err(GraphError::Fabric {
                    problem: format!(
                        "switches stand above each other in a circle: {}",
                        shortened(&names)
                    ),
                });
            }
            if way.len() == MAX_DEEP {
                return Err(GraphError::Fabric {
                    problem: format!(
                        "more than {MAX_DEEP} switches stand above switch {}",
                        switches[first].name
                    ),
                });
            }
            way.push(at);
            match switches[at].parent {
                None => break (SwitchId(at as u32), 0),
                Some(parent) if (parent.0 as usize) < switches.len() => at = parent.0 as usize,
                Some(parent) => {
                    return Err(GraphError::Fabric {
                        problem: format!(
                            "switch {} is below switch {}, there are {}",
                            switches[at].name,
                            parent.0,
                            switches.len()
                        ),
                    });
                }
            }
        };
        for at in way.into_iter().rev() {
            roots[at] = Some((root, above));
            above += 1;
        }
    }
    Ok(roots.into_iter().flatten().collect())
}

fn shortened(names: &[&str]) -> String {
    const SHOWN: usize = 8;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN {
        format!("{shown} and {} more", names.len() - SHOWN)
    } else {
        shown
    }
}

/// Ranges of equal values in a sorted list.
pub(crate) fn runs<T, K: PartialEq>(list: &[T], key: impl Fn(&T) -> K) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let mut start = 0;
    for at in 1..=list.len() {
        if at == list.len() || key(&list[at]) != key(&list[start]) {
            runs.push(start..at);
            start = at;
        }
    }
    runs
}
