//! What comes out of a simulation.

use std::collections::HashMap;

use hcomm_topo::{PortId, RankGraph, Segment};
use hcomm_types::Rank;
use serde::Serialize;

use super::run::Sent;
use super::template::{NONE, Program};
use super::wires::{Wire, Wires};
use crate::plan::Shape;

/// Messages that the timeline shows, at most.
const TIMELINE: usize = 20_000;

/// Messages of the critical path that are shown, at most.
const CRITICAL: usize = 10_000;

/// What a simulation found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// From the beginning on all ranks to the end of the last one, in picoseconds.
    pub total_ps: u64,
    /// When the first rank ended.
    pub first_ps: u64,
    /// Messages, also those without bytes.
    pub messages: u64,
    /// Bytes of all messages.
    pub bytes: u64,
    /// Tasks of all ranks.
    pub tasks: u64,
    /// Templates that stood for the plans of all ranks.
    pub templates: usize,
    /// What went over each wire, the fullest first.
    pub loads: Vec<Load>,
    /// The messages that each had to wait for the one before, the last of which ended the last rank.
    pub critical: Vec<Transfer>,
    /// The first messages, in the order in which they were sent.
    pub timeline: Vec<Transfer>,
    /// Messages that the timeline leaves out.
    pub left_out: u64,
}

/// What went over a wire, one way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Load {
    /// The wire, for people: `rank 3, port hccs0, out`, `leaf0.1, up`.
    pub wire: String,
    /// What kind of wire: `port out`, `port in`, `up`, `down`, `cable`.
    pub kind: &'static str,
    /// Bytes that went over it.
    pub bytes: u64,
    /// Bytes per second that can; 0 if nobody knows.
    pub bytes_per_s: u64,
    /// The part of the whole time for which that would keep it busy.
    pub share: f64,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Transfer {
    /// Whose bytes.
    pub from: Rank,
    /// To whom.
    pub to: Rank,
    /// How many.
    pub bytes: u64,
    /// When its sender had come so far, in picoseconds.
    pub posted_ps: u64,
    /// When it began to leave.
    pub began_ps: u64,
    /// When it was there.
    pub arrived_ps: u64,
}

impl Outcome {
    /// Bytes per second as nccl-tests count them, on the bus.
    #[must_use]
    pub fn bus_bytes_per_s(&self, shape: &Shape) -> f64 {
        if self.total_ps == 0 {
            return 0.0;
        }
        let bytes = shape.total_bytes() as f64;
        bytes * shape.operation.bus_factor(shape.ranks) / (self.total_ps as f64 / 1e12)
    }

    /// Bytes over all wires of a kind.
    #[must_use]
    pub fn bytes_over(&self, kind: &str) -> u64 {
        let of_kind = self.loads.iter().filter(|load| load.kind == kind);
        of_kind.map(|load| load.bytes).sum()
    }

    pub(super) fn add_loads(&mut self, graph: &RankGraph, wires: &Wires) {
        let mut owners = HashMap::<PortId, Rank>::new();
        for rank in (0..graph.size()).map(Rank) {
            for endpoint in 0..graph.endpoints(rank).len() as u32 {
                if let Some((port, _)) = graph.port(rank, endpoint) {
                    owners.entry(port).or_insert(rank);
                }
            }
        }
        for (number, wire) in wires.names.iter().enumerate() {
            let (bytes, bytes_per_s) = wires.used(number);
            let known = if bytes_per_s.is_finite() {
                bytes_per_s
            } else {
                0.0
            };
            let could = known * self.total_ps as f64 / 1e12;
            let (kind, wire) = shown(graph, &owners, *wire);
            self.loads.push(Load {
                wire,
                kind,
                bytes,
                bytes_per_s: known.round() as u64,
                share: if could > 0.0 {
                    bytes as f64 / could
                } else {
                    0.0
                },
            });
        }
        // Stable: of equals the first that was used.
        self.loads.sort_by(|a, b| b.share.total_cmp(&a.share));
    }

    pub(super) fn add_transfers(
        &mut self,
        program: &Program,
        sent: &[Sent],
        cause: u32,
        messages: u64,
    ) {
        let transfer = |sent: &Sent| {
            let (from, to) = program.ways[sent.way as usize];
            Transfer {
                from,
                to,
                bytes: sent.bytes,
                posted_ps: sent.posted,
                began_ps: sent.began,
                arrived_ps: sent.arrived,
            }
        };
        let mut at = cause;
        while at != NONE && self.critical.len() < CRITICAL {
            let Some(message) = sent.get(at as usize) else {
                break;
            };
            self.critical.push(transfer(message));
            at = message.before;
        }
        self.critical.reverse();
        self.timeline = sent.iter().take(TIMELINE).map(transfer).collect();
        self.left_out = messages - self.timeline.len() as u64;
    }
}

/// A wire for people: its kind and its name.
fn shown(graph: &RankGraph, owners: &HashMap<PortId, Rank>, wire: Wire) -> (&'static str, String) {
    let Some(facts) = graph.fabric_facts() else {
        return endpoint(graph, wire);
    };
    let port = |port: PortId, way: &str| {
        let owner = owners.get(&port).map_or(0, |rank| rank.0);
        let name = facts
            .ports
            .get(port.0 as usize)
            .map_or("", |port| &port.name);
        format!("rank {owner}, port {name}, {way}")
    };
    let switch = |id: hcomm_topo::SwitchId, way: &str| {
        let name = facts.switches.get(id.0 as usize).map_or("", |it| &it.name);
        format!("{name}, {way}")
    };
    match wire {
        Wire::Known(Segment::PortOut(id)) => ("port out", port(id, "out")),
        Wire::Known(Segment::PortIn(id)) => ("port in", port(id, "in")),
        Wire::Known(Segment::Up(id)) => ("up", switch(id, "up")),
        Wire::Known(Segment::Down(id)) => ("down", switch(id, "down")),
        Wire::Known(Segment::Cable(id, back)) => {
            let ends = facts
                .cables
                .get(id.0 as usize)
                .map(|cable| (cable.a.0, cable.b.0));
            let (a, b) = ends.unwrap_or_default();
            let (from, to) = if back { (b, a) } else { (a, b) };
            ("cable", format!("cable from rank {from} to rank {to}"))
        }
        Wire::Endpoint(..) => endpoint(graph, wire),
    }
}

fn endpoint(graph: &RankGraph, wire: Wire) -> (&'static str, String) {
    let Wire::Endpoint(rank, number, out) = wire else {
        return ("wire", String::new());
    };
    let device = graph.endpoints(rank).get(number as usize);
    let device = device.map_or("", |endpoint| &endpoint.device);
    if out {
        ("port out", format!("rank {rank}, {device}, out"))
    } else {
        ("port in", format!("rank {rank}, {device}, in"))
    }
}
