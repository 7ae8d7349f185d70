//! Rank tables 2.0: ranks with the nets that they are in at each layer.
//!
//! An address is an endpoint, its ports are the port that it goes through. At a layer of net type
//! `CLOS` the ports of one plane are joined by a switch; at one of `TOPO_FILE_DESC` the topology file
//! says how.

use std::collections::{BTreeMap, BTreeSet};

use hcomm_types::{Address, Location, Protocol, Rank};

use super::builder::{
    Builder, MAX_RANKS, NewEndpoint, NewRank, check_count, eid, ip, new_rank, nominal, port,
};
use super::edges::{Edges, MAX_LOCAL, Net, device, port_names};
use super::json::At;
use super::{Loaded, SourceError};
use crate::fabric::PortFacts;
use crate::link::Layer;

/// Addresses of a rank at a layer, at most.
const MAX_ADDRESSES: usize = 24;

struct Level {
    rank: u64,
    local: u64,
    location: Location,
    /// Wired by the topology file.
    described: bool,
}

pub(super) fn read(root: &At<'_>, edges: Option<&Edges>) -> Result<Loaded, SourceError> {
    if let Some(version) = root.get("version")?
        && version.text()? != "2.0"
    {
        return Err(version.refuse("a table with a rank_list is of version 2.0"));
    }
    let list = root.need("rank_list")?;
    let count = list.items()?.len();
    check_count(root, "rank_count", count, "ranks")?;
    if count == 0 || count as u64 > MAX_RANKS {
        return Err(list.refuse(format!("1 to {MAX_RANKS} ranks are expected")));
    }
    let mut builder = Builder::default();
    // By layer and net: its ranks.
    let mut nets = BTreeMap::<(Layer, String), Vec<Level>>::new();
    let mut servers = BTreeMap::<String, u32>::new();
    for rank in list.items()? {
        read_rank(&rank, &mut builder, &mut nets, &mut servers)?;
    }
    for ((layer, name), levels) in &nets {
        let ranks = levels.iter().map(|level| Rank(level.rank as u32)).collect();
        builder.add_net(*layer, name, ranks);
        if !levels.iter().any(|level| level.described) {
            continue;
        }
        match edges.filter(|edges| edges.has(*layer)) {
            Some(edges) => {
                let ranks = levels.iter().filter(|level| level.described);
                let net = Net {
                    layer: *layer,
                    name,
                    ranks: ranks
                        .map(|level| (level.local, (level.rank, level.location)))
                        .collect(),
                };
                edges.wire(&mut builder, &net);
            }
            None => {
                builder.note(format!(
                    "layer {layer} is wired as a topology file says, and none is given with edges of \
                     it: a switch stands for it"
                ));
                for level in levels {
                    switched(&mut builder, level, *layer, name);
                }
            }
        }
    }
    builder.note("a rank table has no bandwidths and latencies: nominal ones stand for them");
    builder.finish()
}

fn read_rank(
    rank: &At<'_>,
    builder: &mut Builder,
    nets: &mut BTreeMap<(Layer, String), Vec<Level>>,
    servers: &mut BTreeMap<String, u32>,
) -> Result<(), SourceError> {
    let number = new_rank(builder, &rank.need("rank_id")?)?;
    let local = rank.need("local_id")?.number(0..=MAX_LOCAL)?;
    let device_id = rank.need("device_id")?.number(0..=MAX_LOCAL)?;
    port(rank, "device_port")?;
    let host_port = port(rank, "host_port")?;
    let levels = rank.need("level_list")?;
    // The innermost net is the server.
    let mut innermost: Option<(u64, String)> = None;
    for level in levels.items()? {
        let layer = level
            .need("net_layer")?
            .number(0..=u64::from(crate::MAX_LAYER))?;
        let id = level.need("net_instance_id")?.text()?;
        if innermost.as_ref().is_none_or(|(known, _)| layer < *known) {
            innermost = Some((layer, id.to_owned()));
        }
    }
    let Some((_, server)) = innermost else {
        return Err(levels.refuse("at least one layer is expected"));
    };
    let next = servers.len() as u32;
    let server_id = *servers.entry(server.clone()).or_insert(next);
    let host = builder.host(&server, "a rank table");
    builder.add_rank(NewRank {
        rank: number,
        host,
        local_rank: local as u32,
        line: rank.line(),
    });
    builder.package(number, device_id as u32);
    let location = device(device_id, server_id);
    let mut seen = BTreeSet::new();
    for level in levels.items()? {
        let at = level.need("net_layer")?;
        let layer = Layer(at.number(0..=u64::from(crate::MAX_LAYER))? as u8);
        if !seen.insert(layer) {
            return Err(at.refuse("the rank has this layer twice"));
        }
        let id = level.need("net_instance_id")?;
        let name = id.text()?.to_owned();
        let described = match level.get("net_type")? {
            None => false,
            Some(at) => match at.text()? {
                "CLOS" => false,
                "TOPO_FILE_DESC" => true,
                _ => return Err(at.refuse("TOPO_FILE_DESC and CLOS are known")),
            },
        };
        let known = nets.entry((layer, name.clone())).or_default();
        if described && known.iter().any(|level| level.local == local) {
            return Err(rank.need("local_id")?.refuse(format!(
                "another rank of net {name} at layer {layer} has this local_id"
            )));
        }
        known.push(Level {
            rank: number,
            local,
            location,
            described,
        });
        if let Some(list) = level.get("rank_addr_list")? {
            if list.items()?.len() > MAX_ADDRESSES {
                return Err(list.refuse(format!("at most {MAX_ADDRESSES} addresses are expected")));
            }
            for at in list.items()? {
                address(&at, builder, (number, location), (layer, &name), described)?;
            }
        }
    }
    if let Some(control) = rank.get("control_plane")?
        && let Some(at) = control.get("addr")?
        && !at.text()?.is_empty()
    {
        let (latency_ns, bytes_per_s) = nominal(Protocol::Tcp);
        let address = ip(&at)?;
        if number == 0 {
            builder.root(address, port(&control, "listen_port")?.or(host_port));
        }
        builder.endpoint(
            number,
            NewEndpoint {
                protocol: Protocol::Tcp,
                address: Address::Ip(address),
                location: Location::Host,
                latency_ns,
                bytes_per_s,
                device: "control plane".to_owned(),
                port: None,
            },
        );
    }
    Ok(())
}

/// An address of a rank at a layer: an endpoint, and a port for it.
fn address(
    at: &At<'_>,
    builder: &mut Builder,
    (rank, location): (u64, Location),
    (layer, net): (Layer, &str),
    described: bool,
) -> Result<(), SourceError> {
    let kind = at.need("addr_type")?;
    let addr = at.need("addr")?;
    let (address, protocol) = match kind.text()? {
        "EID" => (Address::Eid(eid(&addr)?), Protocol::UbcCtp),
        "IPV4" | "IPV6" => {
            let ip = ip(&addr)?;
            if ip.is_ipv4() != (kind.text()? == "IPV4") {
                return Err(addr.refuse(format!("this is no {} address", kind.text()?)));
            }
            (Address::Ip(ip), Protocol::Roce)
        }
        _ => return Err(kind.refuse("EID, IPV4 and IPV6 are known")),
    };
    let ports = match at.get("ports")? {
        Some(ports) => port_names(&ports)?,
        None => Vec::new(),
    };
    let plane = match at.get("plane_id")? {
        Some(plane) => plane_number(plane.text()?),
        None => 0,
    };
    let (latency_ns, each) = nominal(protocol);
    let bytes_per_s = each * ports.len().max(1) as u64;
    let switch = (!described).then(|| builder.switch(&format!("{layer}/{net}/{plane}")));
    let port = builder.add_port(PortFacts {
        name: if ports.is_empty() {
            format!("{layer}/{plane}")
        } else {
            ports.join(",")
        },
        layer,
        plane,
        bytes_per_s,
        switch,
    });
    builder.endpoint(
        rank,
        NewEndpoint {
            protocol,
            address,
            location: if ports.iter().any(|port| port == "d2h") {
                Location::Host
            } else {
                location
            },
            latency_ns,
            bytes_per_s,
            device: format!("{protocol} {}", ports.join(","))
                .trim_end()
                .to_owned(),
            port: Some(port),
        },
    );
    Ok(())
}

/// Planes are numbers or names that end in one.
fn plane_number(text: &str) -> u32 {
    let digits = text.len() - text.bytes().rev().take_while(u8::is_ascii_digit).count();
    text[digits..].parse().unwrap_or(0)
}

/// Plugs what a rank has at a layer into one switch; an endpoint stands for it if there is none.
fn switched(builder: &mut Builder, level: &Level, layer: Layer, net: &str) {
    let switch = builder.switch(&format!("{layer}/{net}/0"));
    let mut found = false;
    for number in 0..builder.endpoints(level.rank).len() as u32 {
        if let Some(port) = builder.port_of(level.rank, number)
            && builder.port_facts(port).layer == layer
        {
            builder.port_mut(port).switch = Some(switch);
            found = true;
        }
    }
    if !found {
        let (latency_ns, bytes_per_s) = nominal(Protocol::UbcCtp);
        let port = builder.add_port(PortFacts {
            name: format!("{layer}/0"),
            layer,
            plane: 0,
            bytes_per_s,
            switch: Some(switch),
        });
        builder.endpoint(
            level.rank,
            NewEndpoint {
                protocol: Protocol::UbcCtp,
                address: Address::Id(level.local),
                location: level.location,
                latency_ns,
                bytes_per_s,
                device: "assumed".to_owned(),
                port: Some(port),
            },
        );
    }
}
