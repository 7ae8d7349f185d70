//! Puts a graph together while a file is read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use hcomm_types::{Address, HostId, Location, ProcessId, Protocol, Rank};

use super::json::At;
use super::{ControlPlace, Loaded, SourceError};
use crate::fabric::{
    CableFacts, FabricFacts, NetFacts, PlaneFacts, PortFacts, PortId, SwitchFacts, SwitchId,
};
use crate::facts::{EndpointFacts, RankFacts, Reach};
use crate::graph::RankGraph;
use crate::host::HostFacts;
use crate::link::Layer;

/// Ranks of one graph, at most.
pub(super) const MAX_RANKS: u64 = 65_536;

/// What stands for the costs of a protocol where a file has none: latency in nanoseconds, bytes per
/// second of a port. Round numbers of devices of 2024; they order protocols, no more.
pub(super) const fn nominal(protocol: Protocol) -> (u64, u64) {
    const GB: u64 = 1_000_000_000;
    match protocol {
        Protocol::Loop => (200, 20 * GB),
        Protocol::Shm => (500, 10 * GB),
        Protocol::Tcp => (25_000, GB),
        Protocol::Roce | Protocol::Uboe => (4_000, 25 * GB),
        Protocol::Hccs => (1_500, 28 * GB),
        Protocol::Pcie => (2_500, 20 * GB),
        Protocol::UbcTp | Protocol::UbcCtp => (1_500, 49 * GB),
        Protocol::UbMem => (800, 49 * GB),
    }
}

/// A rank as a file gives it.
pub(super) struct NewRank {
    pub(super) rank: u64,
    pub(super) host: Arc<HostFacts>,
    pub(super) local_rank: u32,
    /// The line that gives it.
    pub(super) line: usize,
}

/// An endpoint as a file gives it.
pub(super) struct NewEndpoint {
    pub(super) protocol: Protocol,
    pub(super) address: Address,
    pub(super) location: Location,
    pub(super) latency_ns: u64,
    pub(super) bytes_per_s: u64,
    pub(super) device: String,
    pub(super) port: Option<PortId>,
}

#[derive(Default)]
pub(super) struct Builder {
    ranks: BTreeMap<u64, (RankFacts, usize)>,
    hosts: HashMap<String, Arc<HostFacts>>,
    fabric: FabricFacts,
    attached: BTreeMap<u64, Vec<Option<PortId>>>,
    packages: BTreeMap<u64, u32>,
    switches: HashMap<String, SwitchId>,
    notes: BTreeSet<String>,
    root: Option<ControlPlace>,
}

impl Builder {
    /// Says once what had to be assumed.
    pub(super) fn note(&mut self, note: impl Into<String>) {
        self.notes.insert(note.into());
    }

    /// Where rank 0 is reached before there are links.
    pub(super) fn root(&mut self, address: IpAddr, port: Option<u16>) {
        self.root = Some(ControlPlace { address, port });
    }

    /// The host of a name.
    pub(super) fn host(&mut self, name: &str, source: &str) -> Arc<HostFacts> {
        let host = self.hosts.entry(name.to_owned()).or_insert_with(|| {
            Arc::new(HostFacts {
                id: HostId(name.to_owned()),
                name: name.to_owned(),
                cores: Vec::new(),
                numa_nodes: Vec::new(),
                caches: Vec::new(),
                interfaces: Vec::new(),
                pci: Vec::new(),
                infiniband: Vec::new(),
                network_namespace: None,
                notes: vec![format!("from {source}: nothing was looked at")],
            })
        });
        Arc::clone(host)
    }

    /// The line that gives a rank, if it is known.
    pub(super) fn line_of(&self, rank: u64) -> Option<usize> {
        self.ranks.get(&rank).map(|(_, line)| *line)
    }

    pub(super) fn add_rank(&mut self, new: NewRank) {
        let number = u32::try_from(new.rank).unwrap_or(u32::MAX);
        let facts = RankFacts {
            rank: Rank(number),
            process: ProcessId {
                pid: number,
                token: new.rank,
            },
            host: new.host,
            local_rank: new.local_rank,
            endpoints: Vec::new(),
        };
        self.ranks.insert(new.rank, (facts, new.line));
    }

    pub(super) fn package(&mut self, rank: u64, package: u32) {
        self.packages.insert(rank, package);
    }

    /// Gives a rank an endpoint; its number.
    pub(super) fn endpoint(&mut self, rank: u64, new: NewEndpoint) -> u32 {
        let Some((facts, _)) = self.ranks.get_mut(&rank) else {
            return 0;
        };
        let number = facts.endpoints.len() as u32;
        let far = new.port.is_some_and(|port| {
            let port = self.fabric.ports.get(port.0 as usize);
            port.is_some_and(|port| port.layer != Layer::HOST)
        });
        facts.endpoints.push(EndpointFacts {
            protocol: new.protocol,
            address: new.address,
            location: new.location,
            reach: match new.protocol {
                Protocol::Loop => Reach::Process,
                Protocol::Tcp | Protocol::Roce => Reach::Network,
                Protocol::Shm => Reach::Host,
                _ if far => Reach::Network,
                _ => Reach::Host,
            },
            latency_ns: new.latency_ns,
            bytes_per_s: new.bytes_per_s,
            transport: transport(new.protocol).to_owned(),
            device: new.device,
        });
        self.attached.entry(rank).or_default().push(new.port);
        number
    }

    pub(super) fn endpoints(&self, rank: u64) -> &[EndpointFacts] {
        let facts = self.ranks.get(&rank);
        facts.map_or(&[], |(facts, _)| &facts.endpoints)
    }

    pub(super) fn port_of(&self, rank: u64, endpoint: u32) -> Option<PortId> {
        *self.attached.get(&rank)?.get(endpoint as usize)?
    }

    pub(super) fn port_mut(&mut self, port: PortId) -> &mut PortFacts {
        &mut self.fabric.ports[port.0 as usize]
    }

    pub(super) fn port_facts(&self, port: PortId) -> &PortFacts {
        &self.fabric.ports[port.0 as usize]
    }

    /// An endpoint that is there.
    pub(super) fn endpoint_mut(&mut self, rank: u64, number: u32) -> &mut EndpointFacts {
        let (facts, _) = self
            .ranks
            .get_mut(&rank)
            .expect("who asks has found it there");
        &mut facts.endpoints[number as usize]
    }

    pub(super) fn add_port(&mut self, port: PortFacts) -> PortId {
        self.fabric.ports.push(port);
        PortId(self.fabric.ports.len() as u32 - 1)
    }

    pub(super) fn add_cable(&mut self, cable: CableFacts) {
        self.fabric.cables.push(cable);
    }

    pub(super) fn add_net(&mut self, layer: Layer, name: &str, ranks: Vec<Rank>) {
        self.fabric.nets.push(NetFacts {
            layer,
            name: name.to_owned(),
            ranks,
        });
    }

    pub(super) fn add_plane(&mut self, plane: PlaneFacts) {
        let same = |known: &PlaneFacts| (known.layer, known.plane) == (plane.layer, plane.plane);
        if !self.fabric.planes.iter().any(same) {
            self.fabric.planes.push(plane);
        }
    }

    /// The switch of a name, made when it is first asked for.
    pub(super) fn switch(&mut self, name: &str) -> SwitchId {
        if let Some(known) = self.known_switch(name) {
            return known;
        }
        let next = SwitchId(self.fabric.switches.len() as u32);
        self.fabric.switches.push(SwitchFacts {
            name: name.to_owned(),
            parent: None,
            bytes_per_s: 0,
            latency_ns: 0,
        });
        self.switches.insert(name.to_owned(), next);
        next
    }

    pub(super) fn known_switch(&self, name: &str) -> Option<SwitchId> {
        self.switches.get(name).copied()
    }

    pub(super) fn switch_mut(&mut self, switch: SwitchId) -> &mut SwitchFacts {
        &mut self.fabric.switches[switch.0 as usize]
    }

    /// Nets of all layers, from the wires: ranks that something joins at a layer are in one.
    pub(super) fn find_nets(&mut self) {
        let mut by_layer = BTreeMap::<Layer, BTreeMap<Key, Vec<Rank>>>::new();
        for (rank, ports) in &self.attached {
            for port in ports.iter().flatten() {
                let facts = &self.fabric.ports[port.0 as usize];
                let key = match facts.switch {
                    Some(switch) => Key::Switch(self.top(switch)),
                    None => Key::Port(*port),
                };
                let keys = by_layer.entry(facts.layer).or_default();
                keys.entry(key).or_default().push(Rank(*rank as u32));
            }
        }
        let count = self
            .ranks
            .keys()
            .next_back()
            .map_or(0, |last| *last as usize + 1);
        let mut cabled = BTreeMap::<Layer, Vec<(Rank, Rank)>>::new();
        for cable in &self.fabric.cables {
            if let Some(port) = self.port_of(cable.a.0.0.into(), cable.a.1) {
                let layer = self.fabric.ports[port.0 as usize].layer;
                cabled
                    .entry(layer)
                    .or_default()
                    .push((cable.a.0, cable.b.0));
            }
        }
        for (layer, keys) in by_layer {
            let mut together = Together::new(count);
            let mut names = BTreeMap::<usize, String>::new();
            for ranks in keys.values() {
                for rank in ranks {
                    together.join(ranks[0].index(), rank.index());
                }
            }
            for (a, b) in cabled.remove(&layer).unwrap_or_default() {
                together.join(a.index(), b.index());
            }
            let mut nets = BTreeMap::<usize, BTreeSet<Rank>>::new();
            for (key, ranks) in &keys {
                let root = together.root(ranks[0].index());
                if let Key::Switch(switch) = key {
                    let name = &self.fabric.switches[switch.0 as usize].name;
                    names.entry(root).or_insert_with(|| name.clone());
                }
                nets.entry(root).or_default().extend(ranks);
            }
            for (root, ranks) in nets {
                let first = ranks
                    .first()
                    .and_then(|rank| self.ranks.get(&rank.0.into()));
                let host = first.map_or("", |(facts, _)| &facts.host.name);
                let name = match names.get(&root) {
                    Some(name) if layer != Layer::HOST => name.clone(),
                    _ => host.to_owned(),
                };
                self.fabric.nets.push(NetFacts {
                    layer,
                    name,
                    ranks: ranks.into_iter().collect(),
                });
            }
        }
        // A layer without wires below one with wires holds each rank alone.
        let highest = self.fabric.nets.iter().map(|net| net.layer.0).max();
        for layer in (0..highest.unwrap_or(0)).map(Layer) {
            if self.fabric.nets.iter().all(|net| net.layer != layer) {
                for (facts, _) in self.ranks.values() {
                    self.fabric.nets.push(NetFacts {
                        layer,
                        name: facts.host.name.clone(),
                        ranks: vec![facts.rank],
                    });
                }
            }
        }
    }

    /// The topmost switch above one; itself where they go round in a circle, which is found later.
    fn top(&self, switch: SwitchId) -> SwitchId {
        let mut at = switch;
        for _ in 0..self.fabric.switches.len() {
            match self.fabric.switches[at.0 as usize].parent {
                Some(parent) => at = parent,
                None => return at,
            }
        }
        switch
    }

    /// The graph.
    ///
    /// # Errors
    /// If ranks are missing, or wires make no sense.
    pub(super) fn finish(mut self) -> Result<Loaded, SourceError> {
        let size = self.ranks.len();
        if let Some(highest) = self.ranks.keys().next_back()
            && *highest as usize + 1 != size
        {
            let missing = (0u64..)
                .zip(self.ranks.keys())
                .find(|(at, rank)| at != *rank);
            return Err(SourceError::whole(format!(
                "rank {} is missing: there are {size} ranks, the highest is {highest} (line {})",
                missing.map_or(0, |(at, _)| at),
                self.ranks.get(highest).map_or(0, |(_, line)| *line)
            )));
        }
        self.fabric.attached = self
            .ranks
            .keys()
            .map(|rank| self.attached.remove(rank).unwrap_or_default())
            .collect();
        if self.packages.len() == size {
            self.fabric.packages = self.packages.into_values().collect();
        }
        let facts = self.ranks.into_values().map(|(facts, _)| facts).collect();
        let graph = RankGraph::build(facts)
            .and_then(|graph| graph.with_fabric(self.fabric))
            .map_err(|error| SourceError::whole(error.to_string()))?;
        Ok(Loaded {
            graph,
            notes: self.notes.into_iter().collect(),
            root: self.root,
        })
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Switch(SwitchId),
    Port(PortId),
}

/// Which ranks are in one set.
struct Together(Vec<usize>);

impl Together {
    fn new(count: usize) -> Self {
        Self((0..count).collect())
    }

    fn root(&mut self, mut at: usize) -> usize {
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a.max(b)] = a.min(b);
    }
}

/// The plugin that serves a protocol.
const fn transport(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::UbcTp | Protocol::UbcCtp | Protocol::UbMem | Protocol::Uboe => "ub",
        other => other.name(),
    }
}

/// A protocol by the names of the field and by ours.
pub(super) fn protocol(at: &At<'_>) -> Result<Protocol, SourceError> {
    let text = at.text()?;
    let name = text.trim().to_ascii_lowercase();
    let known = match name.as_str() {
        "ub_ctp" => Some(Protocol::UbcCtp),
        "ub_tp" => Some(Protocol::UbcTp),
        // Reliable transport and the group's own form: the nearest that there is.
        "ub_rtp" => Some(Protocol::UbcTp),
        "ubg" => Some(Protocol::UbcCtp),
        "rdma" => Some(Protocol::Roce),
        name => name.parse().ok(),
    };
    known.ok_or_else(|| {
        at.refuse(
            "unknown protocol; UB_CTP, UB_TP, UB_MEM, UB_RTP, UBG, UBOE, ROCE, HCCS, PCIE, TCP and SHM \
             are known",
        )
    })
}

/// An IP address.
pub(super) fn ip(at: &At<'_>) -> Result<IpAddr, SourceError> {
    let text = at.text()?.trim();
    text.parse()
        .map_err(|_| at.refuse("an IPv4 or IPv6 address is expected"))
}

/// A port, where one is given; 0 stands for none.
pub(super) fn port(parent: &At<'_>, name: &str) -> Result<Option<u16>, SourceError> {
    let Some(at) = parent.get(name)? else {
        return Ok(None);
    };
    let number = at.number(0..=u64::from(u16::MAX))? as u16;
    Ok(Some(number).filter(|number| *number != 0))
}

/// An entity id: 32 hexadecimal digits, perhaps with colons between them.
pub(super) fn eid(at: &At<'_>) -> Result<[u8; 16], SourceError> {
    let text: String = at.text()?.chars().filter(|c| *c != ':').collect();
    let digits = text.strip_prefix("0x").unwrap_or(&text);
    let number = (1..=32)
        .contains(&digits.len())
        .then(|| u128::from_str_radix(digits, 16).ok())
        .flatten();
    let number = number.ok_or_else(|| at.refuse("up to 32 hexadecimal digits are expected"))?;
    Ok(number.to_be_bytes())
}

/// The number of a rank: in range, and claimed by no other.
pub(super) fn new_rank(builder: &Builder, at: &At<'_>) -> Result<u64, SourceError> {
    let rank = at.number(0..=MAX_RANKS - 1)?;
    match builder.line_of(rank) {
        Some(line) => Err(at.refuse(format!("the rank is claimed twice, first on line {line}"))),
        None => Ok(rank),
    }
}

/// A count beside a list: it must be right where it is given.
pub(super) fn check_count(
    parent: &At<'_>,
    name: &str,
    have: usize,
    what: &str,
) -> Result<(), SourceError> {
    let Some(count) = parent.get(name)? else {
        return Ok(());
    };
    if count.number(0..=MAX_RANKS * 64)? == have as u64 {
        Ok(())
    } else {
        Err(count.refuse(format!("the list has {have} {what}")))
    }
}
