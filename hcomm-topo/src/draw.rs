//! The graph as a picture: SVG, without a program to lay it out.
//!
//! Hosts are boxes in rows, ranks are squares in them, switches are bars above, by how far they are
//! from their topmost one. What is too large to be looked at is drawn in part, and says so.

use std::fmt::Write as _;

use crate::fabric::{FabricFacts, SwitchId};
use crate::graph::RankGraph;
use crate::link::Layer;
use hcomm_types::Rank;

/// Hosts and ranks of a host that are drawn.
const HOSTS: usize = 32;
const RANKS: usize = 64;
/// Switches of a row that are drawn.
const SWITCHES: usize = 64;
/// Cables of a host that are drawn.
const CABLES: usize = 512;

const CELL: usize = 34;
const GAP: usize = 18;

impl RankGraph {
    /// The graph as an SVG picture. A cable is a line between two ranks, a port is a line to its
    /// switch; the title of each says what it is and how fast.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let mut body = String::new();
        let hosts = &self.hosts()[..self.hosts().len().min(HOSTS)];
        let largest = hosts.iter().map(|host| host.ranks.len().min(RANKS)).max();
        let largest = largest.unwrap_or(1).max(1);
        let columns = (1..).find(|n| n * n >= largest).unwrap_or(1);
        let (box_wide, box_high) = (
            columns * CELL + GAP,
            largest.div_ceil(columns) * CELL + GAP + 14,
        );
        let in_row = hosts.len().clamp(1, 8);
        let rows = switch_rows(self.fabric_facts());
        let top = 30 + rows.len() * 56;
        let wide = (in_row * (box_wide + GAP)).max(360) + GAP;
        let high = top + hosts.len().div_ceil(in_row) * (box_high + GAP) + 40;
        let place = |rank: Rank| -> Option<(usize, usize)> {
            let host = self.host_of(rank)?.0 as usize;
            let at = hosts.get(host)?.ranks.binary_search(&rank).ok()?;
            (at < RANKS).then(|| {
                let x = GAP + host % in_row * (box_wide + GAP) + GAP / 2 + at % columns * CELL;
                let y = top + host / in_row * (box_high + GAP) + 20 + at / columns * CELL;
                (x + CELL / 2 - 3, y + CELL / 2 - 3)
            })
        };
        let mut switch_at = std::collections::BTreeMap::new();
        for (row, switches) in rows.iter().enumerate() {
            let shown = &switches[..switches.len().min(SWITCHES)];
            let step = wide / (shown.len() + 1);
            for (number, switch) in shown.iter().enumerate() {
                switch_at.insert(*switch, ((number + 1) * step, 24 + row * 56));
            }
        }
        if let Some(facts) = self.fabric_facts() {
            self.draw_wires(&mut body, facts, &place, &switch_at);
        }
        for (number, host) in hosts.iter().enumerate() {
            let x = GAP + number % in_row * (box_wide + GAP);
            let y = top + number / in_row * (box_high + GAP);
            put(
                &mut body,
                format_args!(
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{box_wide}\" height=\"{box_high}\" \
                     class=\"host\"/><text x=\"{}\" y=\"{}\">{}</text>",
                    x + 6,
                    y + 13,
                    escape(&host.name)
                ),
            );
            for &rank in host.ranks.iter().take(RANKS) {
                let Some((x, y)) = place(rank) else { continue };
                let package = self
                    .package_of(rank)
                    .map_or_else(String::new, |package| format!(", package {package}"));
                put(
                    &mut body,
                    format_args!(
                        "<g><title>rank {rank}{package}</title><rect x=\"{}\" y=\"{}\" width=\"22\" \
                         height=\"18\" class=\"rank\"/><text x=\"{x}\" y=\"{}\" class=\"number\">\
                         {rank}</text></g>",
                        x - 11,
                        y - 9,
                        y + 4
                    ),
                );
            }
        }
        let left_out = self.hosts().len() - hosts.len();
        let mut caption = format!("{} ranks on {} hosts", self.size(), self.hosts().len());
        if left_out > 0 {
            caption += &format!("; {left_out} hosts are not drawn");
        }
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" \
             viewBox=\"0 0 {wide} {high}\">\n<style>text{{font:11px sans-serif}}.number{{text-anchor:\
             middle}}.host{{fill:#f4f4f4;stroke:#888}}.rank{{fill:#fff;stroke:#333}}.switch{{fill:\
             #dce6f4;stroke:#446}}line{{stroke:#99a;stroke-width:1}}.cable{{stroke:#b60}}</style>\n\
             {body}<text x=\"{GAP}\" y=\"{}\">{caption}</text>\n</svg>\n",
            high - 14
        )
    }

    fn draw_wires(
        &self,
        body: &mut String,
        facts: &FabricFacts,
        place: &dyn Fn(Rank) -> Option<(usize, usize)>,
        switch_at: &std::collections::BTreeMap<SwitchId, (usize, usize)>,
    ) {
        for cable in facts.cables.iter().take(CABLES * HOSTS) {
            let (Some(from), Some(to)) = (place(cable.a.0), place(cable.b.0)) else {
                continue;
            };
            let title = format!(
                "{} - {}: {} GB/s",
                cable.a.0,
                cable.b.0,
                gigabytes(cable.bytes_per_s)
            );
            draw_line(body, from, to, "cable", &title);
        }
        for rank in (0..self.size()).map(Rank) {
            let Some(from) = place(rank) else { continue };
            for endpoint in 0..self.endpoints(rank).len() as u32 {
                let Some((_, port)) = self.port(rank, endpoint) else {
                    continue;
                };
                let Some(to) = port.switch.and_then(|switch| switch_at.get(&switch)) else {
                    continue;
                };
                let speed = gigabytes(port.bytes_per_s);
                let title = format!("rank {rank}, port {}: {speed} GB/s", port.name);
                draw_line(body, from, *to, "port", &title);
            }
        }
        for (switch, to) in switch_at {
            let Some(own) = facts.switches.get(switch.0 as usize) else {
                continue;
            };
            if let Some(above) = own.parent.and_then(|parent| switch_at.get(&parent)) {
                let title = format!("{}: {} GB/s up", own.name, gigabytes(own.bytes_per_s));
                draw_line(body, *to, *above, "port", &title);
            }
        }
        for (switch, (x, y)) in switch_at {
            let name = facts
                .switches
                .get(switch.0 as usize)
                .map_or("", |own| &own.name);
            let shown: String = name.chars().take(14).collect();
            put(
                body,
                format_args!(
                    "<g><title>{}</title><rect x=\"{}\" y=\"{}\" width=\"84\" height=\"18\" \
                     class=\"switch\"/><text x=\"{x}\" y=\"{}\" class=\"number\">{}</text></g>",
                    escape(name),
                    x.saturating_sub(42),
                    y.saturating_sub(9),
                    y + 4,
                    escape(&shown)
                ),
            );
        }
    }

    /// Switches and what hangs on them, in the language of Graphviz.
    pub(crate) fn draw_switches(&self, dot: &mut String, facts: &FabricFacts) {
        for (number, switch) in facts.switches.iter().enumerate() {
            let name = escape(&switch.name).replace('\\', "/");
            put(
                dot,
                format_args!("  s{number} [shape=ellipse, label=\"{name}\"];"),
            );
            if let Some(parent) = switch.parent {
                let speed = gigabytes(switch.bytes_per_s);
                put(
                    dot,
                    format_args!("  s{number} -- s{} [label=\"{speed} GB/s\"];", parent.0),
                );
            }
        }
        for rank in (0..self.size()).map(Rank) {
            for endpoint in 0..self.endpoints(rank).len() as u32 {
                if let Some((_, port)) = self.port(rank, endpoint)
                    && port.layer != Layer::HOST
                    && let Some(switch) = port.switch
                {
                    let speed = gigabytes(port.bytes_per_s);
                    put(
                        dot,
                        format_args!("  r{rank} -- s{} [label=\"{speed} GB/s\"];", switch.0),
                    );
                }
            }
        }
    }
}

/// Switches by their distance from the topmost ones, those first.
fn switch_rows(facts: Option<&FabricFacts>) -> Vec<Vec<SwitchId>> {
    let Some(facts) = facts else {
        return Vec::new();
    };
    let mut rows: Vec<Vec<SwitchId>> = Vec::new();
    for number in 0..facts.switches.len() {
        let mut deep = 0;
        let mut at = number;
        while let Some(parent) = facts.switches[at].parent {
            at = parent.0 as usize;
            deep += 1;
        }
        if rows.len() <= deep {
            rows.resize_with(deep + 1, Vec::new);
        }
        rows[deep].push(SwitchId(number as u32));
    }
    rows
}

/// With one digit behind the point.
fn gigabytes(bytes_per_s: u64) -> String {
    let tenths = bytes_per_s.saturating_add(50_000_000) / 100_000_000;
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn draw_line(
    body: &mut String,
    from: (usize, usize),
    to: (usize, usize),
    class: &str,
    title: &str,
) {
    put(
        body,
        format_args!(
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"{class}\"><title>{}</title></line>",
            from.0,
            from.1,
            to.0,
            to.1,
            escape(title)
        ),
    );
}

fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("a string takes any text");
}

/// A name from a file inside the picture.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}
