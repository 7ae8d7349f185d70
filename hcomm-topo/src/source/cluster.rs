//! Descriptions of clusters: nodes and switches by kind and count, in a file that fits on a page.
//!
//! ```json
//! {"format": "hcomm-cluster", "version": 1,
//!  "switches": [
//!   {"name": "spine"},
//!   {"for": {"rail": 8}, "name": "rail{rail}", "parent": "spine", "gb_per_s": 800, "latency_ns": 500}],
//!  "nodes": [
//!   {"name": "node{node}", "count": 128, "ranks": 8,
//!    "wires": [{"protocol": "hccs", "shape": "mesh", "gb_per_s": 28}],
//!    "ports": [{"protocol": "roce", "switch": "rail{device}", "gb_per_s": 25}]}]}
//! ```
//!
//! | field | meaning |
//! |---|---|
//! | `switches[].for` | a switch for each value of each variable, from 0 on |
//! | `switches[].parent`, `gb_per_s`, `latency_ns` | the switch above, and all wires to it together |
//! | `nodes[].count`, `ranks`, `dies` | nodes of the kind, ranks of each, ranks of a package (1) |
//! | `wires[].shape` | `mesh`, `ring`, `mesh2d` (with `columns`): cables; `switch`: one inside the node |
//! | `wires[].groups` | lists of ranks that are each wired so; all in one if left out |
//! | `wires[].gb_per_s` | of each cable, or of a port at the switch |
//! | `wires[].port_gb_per_s` | of all cables of a rank together; their sum if left out |
//! | `wires[].uplink_gb_per_s` | `switch` with several groups: from a group's switch to the node's |
//! | `ports[].switch` | where each rank of `devices` (all) has a port; with `shared`, one for all |
//! | `layer`, `plane` | 0 and counted for wires, 1 and 0 for ports |
//! | `latency_ns`, `at` | of the first byte; `host` or `device`, as the protocol has it if left out |
//!
//! In names `{node}` is the number of the node, `{device}` that of the rank in it, and variables of
//! `for` are theirs; `{node/16}` and `{node%16}` are quotient and remainder.

use std::collections::BTreeMap;

use hcomm_types::{Address, Location, Protocol, Rank};

use super::builder::{Builder, MAX_RANKS, NewEndpoint, NewRank, nominal, protocol};
use super::json::At;
use super::{Loaded, SourceError};
use crate::fabric::{CableFacts, PortFacts, PortId};
use crate::link::Layer;

/// Switches of one file, at most.
const MAX_SWITCHES: u64 = 1 << 20;

const GB: f64 = 1e9;

pub(super) fn read(root: &At<'_>) -> Result<Loaded, SourceError> {
    let version = root.need("version")?;
    if version.number(0..=u64::from(u32::MAX))? != 1 {
        return Err(version.refuse("version 1 is understood"));
    }
    check_names(root, &["format", "version", "switches", "nodes", "comment"])?;
    let mut cluster = Cluster::default();
    if let Some(switches) = root.get("switches")? {
        for switch in switches.items()? {
            cluster.switches(&switch)?;
        }
        for switch in switches.items()? {
            cluster.parents(&switch)?;
        }
        cluster.check_circles(&switches)?;
    }
    let nodes = root.need("nodes")?;
    for node in nodes.items()? {
        cluster.nodes(&node)?;
    }
    if cluster.rank == 0 {
        return Err(nodes.refuse("no node is listed, so there is no rank"));
    }
    let mut builder = cluster.builder;
    builder.find_nets();
    builder.finish()
}

/// A file of ours has no unknown fields: they are slips.
fn check_names(at: &At<'_>, known: &[&str]) -> Result<(), SourceError> {
    for (name, field) in at.fields()? {
        if !known.contains(&name) {
            return Err(field.refuse(format!("unknown field; {} are known", known.join(", "))));
        }
    }
    Ok(())
}

#[derive(Default)]
struct Cluster {
    builder: Builder,
    /// Line of each switch.
    lines: BTreeMap<String, usize>,
    node: u64,
    rank: u64,
}

/// Values of the variables in names.
type Values<'a> = Vec<(&'a str, u64)>;

impl Cluster {
    fn switches(&mut self, switch: &At<'_>) -> Result<(), SourceError> {
        let known = ["for", "name", "parent", "gb_per_s", "latency_ns", "comment"];
        check_names(switch, &known)?;
        let at = switch.need("name")?;
        each(switch, |values| {
            let name = fill(&at, values)?;
            if let Some(line) = self.lines.insert(name.clone(), at.line()) {
                return Err(at.refuse(format!("switch {name} is described on line {line} already")));
            }
            self.builder.switch(&name);
            Ok(())
        })
    }

    fn parents(&mut self, switch: &At<'_>) -> Result<(), SourceError> {
        let Some(parent) = switch.get("parent")? else {
            if let Some(at) = switch.get("gb_per_s")? {
                return Err(at.refuse("a switch without a parent has no wires to it"));
            }
            return Ok(());
        };
        let name = switch.need("name")?;
        let bytes_per_s = switch.need("gb_per_s")?.scaled(GB)?;
        let latency_ns = match switch.get("latency_ns")? {
            Some(at) => at.number(0..=1_000_000_000)?,
            None => 500,
        };
        each(switch, |values| {
            let above = fill(&parent, values)?;
            let Some(above) = self.builder.known_switch(&above) else {
                return Err(parent.refuse(format!("no switch {above} is described")));
            };
            let id = self.builder.switch(&fill(&name, values)?);
            let facts = self.builder.switch_mut(id);
            facts.parent = Some(above);
            facts.bytes_per_s = bytes_per_s;
            facts.latency_ns = latency_ns;
            Ok(())
        })
    }

    /// Refuses switches that stand above each other in a circle, at the one that closes it.
    fn check_circles(&mut self, switches: &At<'_>) -> Result<(), SourceError> {
        for switch in switches.items()? {
            let Some(parent) = switch.get("parent")? else {
                continue;
            };
            let name = switch.need("name")?;
            each(&switch, |values| {
                let own = fill(&name, values)?;
                let first = self.builder.switch(&own);
                let mut at = first;
                for _ in 0..64 {
                    match self.builder.switch_mut(at).parent {
                        Some(above) if above == first => {
                            return Err(parent.refuse(format!(
                                "switch {own} stands above itself: parents go round in a circle"
                            )));
                        }
                        Some(above) => at = above,
                        None => return Ok(()),
                    }
                }
                Err(parent.refuse(format!(
                    "more than 64 switches stand above switch {own}, or parents go round in a circle"
                )))
            })?;
        }
        Ok(())
    }

    fn nodes(&mut self, node: &At<'_>) -> Result<(), SourceError> {
        let known = [
            "name", "count", "ranks", "dies", "wires", "ports", "comment",
        ];
        check_names(node, &known)?;
        let count = match node.get("count")? {
            Some(at) => at.number(1..=MAX_RANKS)?,
            None => 1,
        };
        let ranks_at = node.need("ranks")?;
        let ranks = ranks_at.number(1..=4096)?;
        if self.rank + count * ranks > MAX_RANKS {
            return Err(ranks_at.refuse(format!(
                "{} ranks so far, at most {MAX_RANKS} are expected",
                self.rank + count * ranks
            )));
        }
        let dies = match node.get("dies")? {
            Some(at) => at.number(1..=ranks)?,
            None => 1,
        };
        let wires = match node.get("wires")? {
            Some(at) => list(&at, |wires| Wires::read(&wires, ranks))?,
            None => Vec::new(),
        };
        let name = node.need("name")?;
        for _ in 0..count {
            let number = self.node;
            self.node += 1;
            let host = fill(&name, &vec![("node", number)])?;
            let facts = self.builder.host(&host, "a description of a cluster");
            if self
                .lines
                .insert(format!("node {host}"), name.line())
                .is_some()
            {
                return Err(name.refuse(format!(
                    "there is a node {host} already; {{node}} in the name tells them apart"
                )));
            }
            let first = self.rank;
            for device in 0..ranks {
                self.builder.add_rank(NewRank {
                    rank: first + device,
                    host: facts.clone(),
                    local_rank: device as u32,
                    line: name.line(),
                });
                self.builder.package(first + device, (device / dies) as u32);
            }
            self.rank += ranks;
            let place = Place {
                number,
                first,
                ranks,
            };
            let mut planes = BTreeMap::<Layer, u32>::new();
            for wires in &wires {
                self.wire(&host, &place, wires, &mut planes);
            }
            if let Some(ports) = node.get("ports")? {
                for port in ports.items()? {
                    self.plug(&port, &place)?;
                }
            }
        }
        Ok(())
    }

    /// Wires inside a node.
    fn wire(
        &mut self,
        host: &str,
        place: &Place,
        wires: &Wires,
        planes: &mut BTreeMap<Layer, u32>,
    ) {
        let next = planes.entry(wires.layer).or_default();
        let plane = wires.plane.unwrap_or(*next);
        let axes = if matches!(wires.shape, Shape::Mesh2d { .. }) {
            2
        } else {
            1
        };
        *next = (plane + axes).max(*next);
        let root = (wires.shape == Shape::Switch && wires.groups.len() > 1).then(|| {
            self.builder
                .switch(&format!("{host}/{}{plane}", wires.protocol))
        });
        for (number, group) in wires.groups.iter().enumerate() {
            match wires.shape {
                Shape::Switch => {
                    let suffix = root.map_or_else(String::new, |_| format!(".{number}"));
                    let name = format!("{host}/{}{plane}{suffix}", wires.protocol);
                    let switch = self.builder.switch(&name);
                    if let Some(root) = root {
                        let facts = self.builder.switch_mut(switch);
                        facts.parent = Some(root);
                        facts.bytes_per_s = wires.uplink_bytes_per_s;
                    }
                    for device in group {
                        let (_, port) = self.end(place, *device, wires, plane, wires.bytes_per_s);
                        self.builder.port_mut(port).switch = Some(switch);
                    }
                }
                Shape::Mesh => self.cables(place, group, wires, plane, &|_, _| true),
                Shape::Ring => {
                    let count = group.len();
                    let near = |a: usize, b: usize| b == a + 1 || (a == 0 && b == count - 1);
                    self.cables(place, group, wires, plane, &near);
                }
                Shape::Mesh2d { columns } => {
                    let row = |a: usize, b: usize| a / columns == b / columns;
                    let column = |a: usize, b: usize| a % columns == b % columns;
                    self.cables(place, group, wires, plane, &row);
                    self.cables(place, group, wires, plane + 1, &column);
                }
            }
        }
    }

    /// Cables between those of a group that are neighbours, by their positions in it.
    fn cables(
        &mut self,
        place: &Place,
        group: &[u64],
        wires: &Wires,
        plane: u32,
        near: &dyn Fn(usize, usize) -> bool,
    ) {
        let count = group.len();
        let pairs: Vec<(usize, usize)> = (0..count)
            .flat_map(|a| (a + 1..count).map(move |b| (a, b)))
            .filter(|(a, b)| near(*a, *b))
            .collect();
        let mut degrees = vec![0u64; count];
        for (a, b) in &pairs {
            degrees[*a] += 1;
            degrees[*b] += 1;
        }
        let ends: Vec<u32> = group
            .iter()
            .zip(&degrees)
            .map(|(device, degree)| {
                let all = wires.bytes_per_s.saturating_mul((*degree).max(1));
                let port = wires.port_bytes_per_s.unwrap_or(all);
                self.end(place, *device, wires, plane, port).0
            })
            .collect();
        for (a, b) in pairs {
            let end = |at: usize| (Rank((place.first + group[at]) as u32), ends[at]);
            self.builder.add_cable(CableFacts {
                a: end(a),
                b: end(b),
                bytes_per_s: wires.bytes_per_s,
                latency_ns: 0,
            });
        }
    }

    /// A rank's endpoint and port for wires.
    fn end(
        &mut self,
        place: &Place,
        device: u64,
        wires: &Wires,
        plane: u32,
        port_bytes_per_s: u64,
    ) -> (u32, PortId) {
        let protocol = wires.protocol;
        let port = self.builder.add_port(PortFacts {
            name: format!("{protocol}{plane}"),
            layer: wires.layer,
            plane,
            bytes_per_s: port_bytes_per_s,
            switch: None,
        });
        let endpoint = self.builder.endpoint(
            place.first + device,
            NewEndpoint {
                protocol,
                address: Address::Id(device),
                location: place.location(wires.at_host, device),
                latency_ns: wires.latency_ns,
                bytes_per_s: wires.bytes_per_s.min(port_bytes_per_s),
                device: format!("{protocol}{device}"),
                port: Some(port),
            },
        );
        (endpoint, port)
    }

    /// Ports of a node to switches outside.
    fn plug(&mut self, port: &At<'_>, place: &Place) -> Result<(), SourceError> {
        check_names(
            port,
            &[
                "protocol",
                "switch",
                "gb_per_s",
                "latency_ns",
                "layer",
                "plane",
                "devices",
                "shared",
                "at",
                "comment",
            ],
        )?;
        let protocol_at = port.need("protocol")?;
        let protocol = protocol(&protocol_at)?;
        let latency_ns = latency(port, protocol)?;
        let bytes_per_s = port.need("gb_per_s")?.scaled(GB)?;
        let layer = layer(port, 1)?;
        let devices = match port.get("devices")? {
            Some(at) => device_list(&at, place.ranks)?,
            None => (0..place.ranks).collect(),
        };
        let shared = match port.get("shared")? {
            Some(at) => truth(&at)?,
            None => false,
        };
        let at_host = at_host(port, &protocol_at, protocol)?;
        let switch_at = port.need("switch")?;
        let plane_at = port.get("plane")?;
        let mut first = None;
        for device in devices {
            let values = vec![("node", place.number), ("device", device)];
            let name = fill(&switch_at, &values)?;
            let Some(switch) = self.builder.known_switch(&name) else {
                return Err(switch_at.refuse(format!("no switch {name} is described")));
            };
            let plane = match &plane_at {
                Some(at) => {
                    let text = fill(at, &values)?;
                    let number = text.parse();
                    number.map_err(|_| at.refuse("a number, or a name that is one, is expected"))?
                }
                None => 0,
            };
            let known = first.filter(|_| shared);
            let id = known.unwrap_or_else(|| {
                self.builder.add_port(PortFacts {
                    name: format!("{protocol}{}", if shared { 0 } else { device }),
                    layer,
                    plane,
                    bytes_per_s,
                    switch: Some(switch),
                })
            });
            first.get_or_insert(id);
            self.builder.endpoint(
                place.first + device,
                NewEndpoint {
                    protocol,
                    address: Address::Id(place.first + device),
                    location: place.location(at_host, device),
                    latency_ns,
                    bytes_per_s,
                    device: format!("{protocol}{}", if shared { 0 } else { device }),
                    port: Some(id),
                },
            );
        }
        Ok(())
    }
}

/// A node: its number, its first rank, and how many it has.
struct Place {
    number: u64,
    first: u64,
    ranks: u64,
}

impl Place {
    const fn location(&self, at_host: bool, device: u64) -> Location {
        if at_host {
            return Location::Host;
        }
        Location::Device {
            physical_id: device as u32,
            super_device_id: (self.first + device) as u32,
            server_id: self.number as u32,
            super_pod_id: 0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Mesh,
    Ring,
    Mesh2d { columns: usize },
    Switch,
}

struct Wires {
    protocol: Protocol,
    shape: Shape,
    groups: Vec<Vec<u64>>,
    layer: Layer,
    plane: Option<u32>,
    latency_ns: u64,
    bytes_per_s: u64,
    port_bytes_per_s: Option<u64>,
    uplink_bytes_per_s: u64,
    at_host: bool,
}

impl Wires {
    fn read(wires: &At<'_>, ranks: u64) -> Result<Self, SourceError> {
        check_names(
            wires,
            &[
                "protocol",
                "shape",
                "groups",
                "columns",
                "gb_per_s",
                "port_gb_per_s",
                "uplink_gb_per_s",
                "latency_ns",
                "layer",
                "plane",
                "at",
                "comment",
            ],
        )?;
        let protocol_at = wires.need("protocol")?;
        let protocol = protocol(&protocol_at)?;
        let groups = match wires.get("groups")? {
            Some(at) => list(&at, |group| device_list(&group, ranks))?,
            None => vec![(0..ranks).collect()],
        };
        let shape_at = wires.need("shape")?;
        let shape = match shape_at.text()? {
            "mesh" => Shape::Mesh,
            "ring" => Shape::Ring,
            "switch" => Shape::Switch,
            "mesh2d" => {
                let at = wires.need("columns")?;
                let columns = at.number(1..=ranks)? as usize;
                if let Some(group) = groups.iter().find(|group| group.len() % columns != 0) {
                    let have = group.len();
                    return Err(at.refuse(format!("{have} ranks do not fill rows of so many")));
                }
                Shape::Mesh2d { columns }
            }
            _ => return Err(shape_at.refuse("mesh, ring, mesh2d and switch are known")),
        };
        // A rank of two groups would be two ends of one structure.
        let mut seen: Vec<u64> = groups.iter().flatten().copied().collect();
        seen.sort_unstable();
        if let Some(twice) = seen.windows(2).find(|pair| pair[0] == pair[1]) {
            let at = wires.need("groups")?;
            return Err(at.refuse(format!("rank {} is in two groups", twice[0])));
        }
        let uplink_bytes_per_s = match wires.get("uplink_gb_per_s")? {
            Some(at) => at.scaled(GB)?,
            None if shape == Shape::Switch && groups.len() > 1 => {
                return Err(wires.need("groups")?.refuse(
                    "switches of several groups are joined by wires: give uplink_gb_per_s",
                ));
            }
            None => 0,
        };
        Ok(Self {
            protocol,
            shape,
            groups,
            layer: layer(wires, 0)?,
            plane: match wires.get("plane")? {
                Some(at) => Some(at.number(0..=65_535)? as u32),
                None => None,
            },
            latency_ns: latency(wires, protocol)?,
            bytes_per_s: wires.need("gb_per_s")?.scaled(GB)?,
            port_bytes_per_s: match wires.get("port_gb_per_s")? {
                Some(at) => Some(at.scaled(GB)?),
                None => None,
            },
            uplink_bytes_per_s,
            at_host: at_host(wires, &protocol_at, protocol)?,
        })
    }
}

fn list<T>(
    at: &At<'_>,
    read: impl Fn(At<'_>) -> Result<T, SourceError>,
) -> Result<Vec<T>, SourceError> {
    at.items()?.map(read).collect()
}

/// Numbers of ranks of a node: a list, each once.
fn device_list(at: &At<'_>, ranks: u64) -> Result<Vec<u64>, SourceError> {
    let mut devices = Vec::new();
    for item in at.items()? {
        let device = item.number(0..=ranks - 1)?;
        if devices.contains(&device) {
            return Err(item.refuse("the rank is listed twice"));
        }
        devices.push(device);
    }
    Ok(devices)
}

fn truth(at: &At<'_>) -> Result<bool, SourceError> {
    at.boolean()
        .ok_or_else(|| at.refuse("true or false is expected"))
}

fn layer(at: &At<'_>, usual: u8) -> Result<Layer, SourceError> {
    Ok(Layer(match at.get("layer")? {
        Some(at) => at.number(0..=u64::from(crate::MAX_LAYER))? as u8,
        None => usual,
    }))
}

fn latency(at: &At<'_>, protocol: Protocol) -> Result<u64, SourceError> {
    match at.get("latency_ns")? {
        Some(at) => at.number(0..=1_000_000_000),
        None => Ok(nominal(protocol).0),
    }
}

/// Whether ends are at the host: as it says, or where the protocol may be; devices first.
fn at_host(at: &At<'_>, protocol_at: &At<'_>, protocol: Protocol) -> Result<bool, SourceError> {
    let at_host = match at.get("at")? {
        None => !protocol.serves_device(),
        Some(at) => match at.text()? {
            "host" => true,
            "device" => false,
            _ => return Err(at.refuse("host and device are known")),
        },
    };
    let (serves, place) = if at_host {
        (protocol.serves_host(), "host")
    } else {
        (protocol.serves_device(), "device")
    };
    if serves {
        Ok(at_host)
    } else {
        Err(protocol_at.refuse(format!("{protocol} may not end at a {place}")))
    }
}

/// Calls for each combination of the values of `for`, or once.
fn each(
    switch: &At<'_>,
    mut call: impl FnMut(&Values<'_>) -> Result<(), SourceError>,
) -> Result<(), SourceError> {
    let mut variables = Vec::new();
    let ranges = switch.get("for")?;
    if let Some(ranges) = &ranges {
        let mut product = 1u64;
        for (name, at) in ranges.fields()? {
            let count = at.number(1..=MAX_SWITCHES)?;
            product = product.saturating_mul(count);
            if product > MAX_SWITCHES {
                return Err(at.refuse(format!("more than {MAX_SWITCHES} switches")));
            }
            variables.push((name.to_owned(), count));
        }
    }
    let total: u64 = variables.iter().map(|(_, count)| count).product();
    for mut number in 0..total {
        let mut values: Values<'_> = Vec::with_capacity(variables.len());
        for (name, count) in variables.iter().rev() {
            values.push((name, number % count));
            number /= count;
        }
        call(&values)?;
    }
    Ok(())
}

/// A name with its variables replaced by their values.
fn fill(at: &At<'_>, values: &Values<'_>) -> Result<String, SourceError> {
    let text = at.text()?;
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let Some((inside, after)) = after.split_once('}') else {
            return Err(at.refuse("a { has no }"));
        };
        let value = evaluate(inside.trim(), values).ok_or_else(|| {
            let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
            at.refuse(format!(
                "{{{inside}}} is no variable with / or % and a number; there are: {}",
                if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(", ")
                }
            ))
        })?;
        filled.push_str(&value.to_string());
        rest = after;
    }
    filled.push_str(rest);
    if filled.is_empty() || filled.len() > 256 {
        return Err(at.refuse("a name of 1 to 256 characters is expected"));
    }
    Ok(filled)
}

fn evaluate(text: &str, values: &Values<'_>) -> Option<u64> {
    let value = |name: &str| {
        let found = values.iter().find(|(known, _)| *known == name.trim());
        found.map(|(_, value)| *value)
    };
    let by = |text: &str| text.trim().parse::<u64>().ok().filter(|number| *number > 0);
    if let Some((name, number)) = text.split_once('/') {
        // `{node/16%4}`: the quotient's remainder.
        if let Some((divisor, rest)) = number.split_once('%') {
            return Some(value(name)? / by(divisor)? % by(rest)?);
        }
        Some(value(name)? / by(number)?)
    } else if let Some((name, number)) = text.split_once('%') {
        Some(value(name)? % by(number)?)
    } else {
        value(text)
    }
}
