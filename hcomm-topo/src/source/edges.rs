//! Topology files 2.0: how the ranks of a net are wired, by their local numbers.
//!
//! The edges are kept once and applied to each net. An edge from a peer to the net plugs ports into
//! the switch of its layer, net and structure; one between peers is a cable. Where an edge names
//! several protocols there is an endpoint for each, behind one port.

use std::collections::{BTreeMap, BTreeSet};

use hcomm_types::{Address, Location, Protocol, Rank};

use super::builder::{Builder, NewEndpoint, NewRank, check_count, nominal, protocol};
use super::json::At;
use super::{Loaded, SourceError};
use crate::fabric::{CableFacts, PlaneFacts, PortFacts, PortId};
use crate::link::Layer;
use crate::topology::TopologyType;

/// Local numbers go from 0 to this.
pub(super) const MAX_LOCAL: u64 = 64;

/// Ports of an end, at most.
const MAX_PORTS: usize = 16;

/// A topology file.
pub(super) struct Edges {
    pub(super) peers: BTreeSet<u64>,
    edges: Vec<Edge>,
}

struct Edge {
    layer: Layer,
    plane: u32,
    kind: Option<TopologyType>,
    at_host: bool,
    protocols: Vec<Protocol>,
    a: End,
    /// None: the net.
    b: Option<End>,
}

struct End {
    local: u64,
    ports: Vec<String>,
}

/// Ranks to be wired, by local number.
pub(super) struct Net<'a> {
    pub(super) layer: Layer,
    pub(super) name: &'a str,
    pub(super) ranks: BTreeMap<u64, (u64, Location)>,
}

/// Reads a topology file.
pub(super) fn read(root: &At<'_>) -> Result<Edges, SourceError> {
    if let Some(version) = root.get("version")?
        && version.text()? != "2.0"
    {
        return Err(version.refuse("topology files are of version 2.0"));
    }
    let list = root.need("peer_list")?;
    check_count(root, "peer_count", list.items()?.len(), "peers")?;
    let mut peers = BTreeSet::new();
    for peer in list.items()? {
        let id = peer.need("local_id")?;
        if !peers.insert(id.number(0..=MAX_LOCAL)?) {
            return Err(id.refuse("the peer is listed twice"));
        }
    }
    let list = root.need("edge_list")?;
    check_count(root, "edge_count", list.items()?.len(), "edges")?;
    let mut edges = Vec::new();
    for edge in list.items()? {
        edges.push(read_edge(&edge, &peers)?);
    }
    Ok(Edges { peers, edges })
}

fn read_edge(edge: &At<'_>, peers: &BTreeSet<u64>) -> Result<Edge, SourceError> {
    let layer = edge
        .need("net_layer")?
        .number(0..=u64::from(crate::MAX_LAYER))?;
    let link_type = edge.need("link_type")?;
    let between_peers = match link_type.text()? {
        "PEER2PEER" => true,
        "PEER2NET" => false,
        _ => return Err(link_type.refuse("PEER2PEER and PEER2NET are known")),
    };
    let mut protocols = Vec::new();
    let list = edge.need("protocols")?;
    for at in list.items()? {
        let protocol = protocol(&at)?;
        if !protocols.contains(&protocol) {
            protocols.push(protocol);
        }
    }
    if protocols.is_empty() {
        return Err(list.refuse("at least one protocol is expected"));
    }
    let kind = match edge.get("topo_type")? {
        None => None,
        Some(at) => match at.text()? {
            "CLOS" => None,
            "1DMESH" | "2DMESH" => None,
            "A3_SERVER" => Some(TopologyType::PairedDies),
            "A2_AX_SERVER" => Some(TopologyType::TwoMeshes),
            _ => {
                return Err(at.refuse("CLOS, 1DMESH, 2DMESH, A3_SERVER and A2_AX_SERVER are known"));
            }
        },
    };
    let at_host = match edge.get("position")? {
        None => false,
        Some(at) => match at.text()? {
            "DEVICE" => false,
            "HOST" => true,
            _ => return Err(at.refuse("DEVICE and HOST are known")),
        },
    };
    let end = |local: &str, ports: &str| -> Result<End, SourceError> {
        let at = edge.need(local)?;
        let local = at.number(0..=MAX_LOCAL)?;
        if !peers.contains(&local) {
            return Err(at.refuse("no such peer is in the peer_list"));
        }
        let ports = match edge.get(ports)? {
            Some(at) => port_names(&at)?,
            None => Vec::new(),
        };
        Ok(End { local, ports })
    };
    let a = end("local_a", "local_a_ports")?;
    let b = if between_peers {
        let b = end("local_b", "local_b_ports")?;
        if a.local == b.local {
            let at = edge.need("local_b")?;
            return Err(at.refuse("the edge begins and ends at one peer"));
        }
        Some(b)
    } else {
        None
    };
    let plane = match edge.get("topo_instance_id")? {
        Some(at) => at.number(0..=u64::from(u32::MAX))? as u32,
        None => 0,
    };
    Ok(Edge {
        layer: Layer(layer as u8),
        plane,
        kind,
        at_host,
        protocols,
        a,
        b,
    })
}

/// Names of ports: a list, or one text.
pub(super) fn port_names(at: &At<'_>) -> Result<Vec<String>, SourceError> {
    let mut names: Vec<String> = Vec::new();
    let Ok(items) = at.items() else {
        let name = at.text()?;
        return Ok(if name.is_empty() {
            Vec::new()
        } else {
            vec![name.to_owned()]
        });
    };
    if items.len() > MAX_PORTS {
        return Err(at.refuse(format!("at most {MAX_PORTS} ports are expected")));
    }
    for item in items {
        let name = item.text()?;
        if names.iter().any(|known| known == name) {
            return Err(item.refuse("the port is listed twice"));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

/// A topology file without a rank table: each peer is a rank.
pub(super) fn alone(root: &At<'_>) -> Result<Loaded, SourceError> {
    let edges = read(root)?;
    if edges.peers.is_empty() {
        return Err(root
            .need("peer_list")?
            .refuse("no peer is listed, so there is no rank"));
    }
    let mut builder = Builder::default();
    let host = builder.host("server", "a topology file");
    let mut ranks = BTreeMap::new();
    for (rank, local) in (0..).zip(&edges.peers) {
        builder.add_rank(NewRank {
            rank,
            host: host.clone(),
            local_rank: *local as u32,
            line: 0,
        });
        ranks.insert(*local, (rank, device(*local, 0)));
    }
    builder.note("a topology file alone describes one server, whose peers are its ranks");
    builder.note("it has no bandwidths and latencies: nominal ones stand for them");
    let layers: BTreeSet<Layer> = edges.edges.iter().map(|edge| edge.layer).collect();
    for layer in layers {
        let name = if layer == Layer::HOST {
            "server"
        } else {
            "network"
        };
        let net = Net {
            layer,
            name,
            ranks: ranks.clone(),
        };
        edges.wire(&mut builder, &net);
    }
    builder.find_nets();
    builder.finish()
}

pub(super) const fn device(physical_id: u64, server_id: u32) -> Location {
    Location::Device {
        physical_id: physical_id as u32,
        super_device_id: 0,
        server_id,
        super_pod_id: 0,
    }
}

impl Edges {
    /// Whether some edge is of the layer.
    pub(super) fn has(&self, layer: Layer) -> bool {
        self.edges.iter().any(|edge| edge.layer == layer)
    }

    /// Wires the ranks of a net. Edges of peers that are not there are left out: a job may use some
    /// of the devices of a server.
    pub(super) fn wire(&self, builder: &mut Builder, net: &Net<'_>) {
        for edge in self.edges.iter().filter(|edge| edge.layer == net.layer) {
            if let Some(kind) = edge.kind {
                builder.add_plane(PlaneFacts {
                    layer: edge.layer,
                    plane: edge.plane,
                    kind,
                });
            }
            let there = |end: &End| net.ranks.get(&end.local).copied();
            let Some(a) = there(&edge.a) else { continue };
            let b = match &edge.b {
                None => None,
                Some(end) => {
                    let Some(b) = there(end) else { continue };
                    Some((b, end))
                }
            };
            for protocol in &edge.protocols {
                let from = attach(builder, edge, *protocol, a, &edge.a);
                match &b {
                    None => plug(builder, edge, net, from),
                    Some((b, end)) => {
                        let to = attach(builder, edge, *protocol, *b, end);
                        let lanes = edge.a.ports.len().min(end.ports.len()).max(1) as u64;
                        let (_, each) = nominal(*protocol);
                        builder.add_cable(CableFacts {
                            a: (Rank(a.0 as u32), from.0),
                            b: (Rank(b.0 as u32), to.0),
                            bytes_per_s: each * lanes,
                            latency_ns: 0,
                        });
                    }
                }
            }
        }
    }
}

/// Plugs an endpoint's port into the switch of its net.
fn plug(builder: &mut Builder, edge: &Edge, net: &Net<'_>, (_, port): (u32, PortId)) {
    let switch = builder.switch(&format!("{}/{}/{}", net.layer, net.name, edge.plane));
    builder.port_mut(port).switch = Some(switch);
}

/// The endpoint of a rank for an edge and a protocol, with its port: the one that has the edge's
/// ports; else one that a rank table gives for the layer; else a new one.
fn attach(
    builder: &mut Builder,
    edge: &Edge,
    protocol: Protocol,
    (rank, location): (u64, Location),
    end: &End,
) -> (u32, PortId) {
    let location = if edge.at_host {
        Location::Host
    } else {
        location
    };
    let shown = if end.ports.is_empty() {
        format!("{}/{}", edge.layer, edge.plane)
    } else {
        end.ports.join(",")
    };
    let mut same_port = None;
    let mut found = None;
    for (number, endpoint) in (0u32..).zip(builder.endpoints(rank)) {
        let Some(port) = builder.port_of(rank, number) else {
            continue;
        };
        let facts = builder.port_facts(port);
        if facts.layer != edge.layer {
            continue;
        }
        // Ports of one end are one queue; ports of other ends of the same structure are beside it.
        let shares = end.ports.iter().any(|name| has_port(&facts.name, name));
        let beside = end.ports.is_empty() || facts.plane == edge.plane;
        if shares || end.ports.is_empty() && facts.plane == edge.plane {
            same_port = Some(port);
        }
        if endpoint.protocol == protocol && (shares || beside && endpoint.location == location) {
            let better = shares || found.is_none();
            if better {
                found = Some((number, port, shares));
            }
        }
    }
    let (latency_ns, each) = nominal(protocol);
    if let Some((number, port, shares)) = found {
        if !shares && !end.ports.is_empty() {
            let facts = builder.port_mut(port);
            facts.name = format!("{},{shown}", facts.name);
            facts.bytes_per_s += each * end.ports.len() as u64;
            let total = facts.bytes_per_s;
            builder.endpoint_mut(rank, number).bytes_per_s = total;
        }
        return (number, port);
    }
    let bytes_per_s = each * end.ports.len().max(1) as u64;
    let port = same_port.unwrap_or_else(|| {
        builder.add_port(PortFacts {
            name: shown.clone(),
            layer: edge.layer,
            plane: edge.plane,
            bytes_per_s,
            switch: None,
        })
    });
    // An address that the table gives for these ports serves all protocols over them.
    let twin = (0u32..)
        .zip(builder.endpoints(rank))
        .find(|(number, _)| builder.port_of(rank, *number) == Some(port));
    let address = twin.map_or(Address::Id(rank), |(_, endpoint)| endpoint.address.clone());
    let number = builder.endpoint(
        rank,
        NewEndpoint {
            protocol,
            address,
            location,
            latency_ns,
            bytes_per_s,
            device: format!("{protocol} {shown}"),
            port: Some(port),
        },
    );
    (number, port)
}

fn has_port(names: &str, name: &str) -> bool {
    names.split(',').any(|known| known == name)
}
