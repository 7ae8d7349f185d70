//! `hcomm topo advise`: whether groups of ranks keep what they send on fast links.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use hcomm::RankGraph;
use hcomm_topo::{Advice, GroupKind, Mapping, Pace, Segment};
use hcomm_types::{Error, Rank, Result};
use serde_json::{Value, json};

use super::{SourceArgs, discovered, load};
use crate::output;
use crate::sizes::parse_bytes;

/// Ranks of a mapping that are printed; --json has all.
const SHOWN: usize = 256;

/// Looks at groups of ranks: what their rings take when all groups of a kind run at once, what sets the
/// pace, and whether another mapping of positions to ranks is faster. Position 0 is the first of all
/// groups; the first kind counts fastest: with tp=4,dp=2 positions 0 to 3 are one group of tp.
#[derive(Debug, Args)]
pub(crate) struct AdviseArgs {
    /// Kinds of groups and their sizes, whose product is the number of ranks; tp=4:9 gives the traffic
    /// of a kind, relative to the others [default: tp and sp 100, ep and cp 50, dp 10, pp 1, others 10]
    #[arg(long, value_delimiter = ',', required = true, value_parser = kind)]
    groups: Vec<GroupKind>,
    #[command(flatten)]
    source: SourceArgs,
    /// The rank at each position, as 0,4,1,5 [default: 0,1,2,...]
    #[arg(long, value_delimiter = ',')]
    mapping: Vec<u32>,
    /// Bytes that each group reduces
    #[arg(short = 'b', long = "bytes", default_value = "64M", value_parser = parse_bytes)]
    bytes: u64,
    /// Write the better mapping, or the given one if it is the best, to this file: a rank a line
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// `tp=4`, `tp=4:9`
fn kind(text: &str) -> std::result::Result<GroupKind, String> {
    let wrong = || format!("`{text}` is no kind of groups: write tp=4, or tp=4:9 with its traffic");
    let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
    let (size, weight) = match rest.split_once(':') {
        Some((size, weight)) => (size, Some(weight.parse().map_err(|_| wrong())?)),
        None => (rest, None),
    };
    let size = size.parse().ok().filter(|size| (1..=65_536).contains(size));
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(wrong());
    }
    Ok(GroupKind {
        name: name.to_owned(),
        size: size.ok_or_else(wrong)?,
        weight: weight.unwrap_or(match name {
            "tp" | "sp" => 100,
            "ep" | "cp" => 50,
            "pp" => 1,
            _ => 10,
        }),
    })
}

/// Advises.
///
/// # Errors
/// If there is no such graph, or the groups do not fit its ranks.
pub(super) fn advise(args: &AdviseArgs) -> Result<u8> {
    let sizes = args.groups.iter().map(|kind| u64::from(kind.size));
    let product = sizes.fold(1, u64::saturating_mul);
    let graph = match &args.source.file {
        Some(path) => load(path, args.source.topology.as_deref())?.graph,
        None => {
            let options = hcomm::Options::from_env()?;
            discovered(
                u32::try_from(product).unwrap_or(4096).clamp(1, 4096),
                &options,
            )?
        }
    };
    let mapping: Vec<Rank> = if args.mapping.is_empty() {
        (0..graph.size()).map(Rank).collect()
    } else {
        args.mapping.iter().copied().map(Rank).collect()
    };
    let advice = graph.advise(&args.groups, &mapping, args.bytes)?;
    if let Some(path) = &args.write {
        let best = advice.better.as_ref().unwrap_or(&advice.given);
        let lines: Vec<String> = best.ranks.iter().map(|rank| format!("{rank}\n")).collect();
        fs::write(path, lines.concat())
            .map_err(|error| Error::system(format!("writing {}", path.display()), error))?;
    }
    let text = if args.json {
        as_json(&graph, &args.groups, &advice).to_string()
    } else {
        in_words(&graph, &args.groups, args.bytes, &advice)
    };
    output::print(&text).map(|_| 0)
}

/// A time in the unit that suits it.
fn time(ns: Option<u64>) -> String {
    match ns {
        None => "no time: ranks are not joined".to_owned(),
        Some(ns) if ns < 1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        Some(ns) => format!("{:.2} ms", ns as f64 / 1e6),
    }
}

fn gigabytes(bytes_per_s: u64) -> String {
    format!("{:.1} GB/s", bytes_per_s as f64 / 1e9)
}

fn in_words(graph: &RankGraph, kinds: &[GroupKind], bytes: u64, advice: &Advice) -> String {
    let mut lines = vec![format!(
        "all_reduce of {bytes} bytes in rings, in all groups of a kind at once:"
    )];
    for (number, kind) in kinds.iter().enumerate() {
        let pace = &advice.given.paces[number];
        lines.push(format!(
            "{}={}, traffic {}: {}",
            kind.name,
            kind.size,
            kind.weight,
            time(pace.time_ns)
        ));
        lines.extend(barrel(graph, pace));
        for ring in pace.rings.iter().take(2).filter(|ring| ring.len() > 1) {
            lines.push(format!("    ring: {}", shown(ring)));
        }
    }
    let Some(better) = &advice.better else {
        lines.push("no better mapping was found".to_owned());
        return lines.join("\n");
    };
    lines.push("a better mapping (the rank at each position):".to_owned());
    lines.push(format!("    {}", shown(&better.ranks)));
    for (number, kind) in kinds.iter().enumerate() {
        let (was, now) = (&advice.given.paces[number], &better.paces[number]);
        lines.push(format!(
            "{}={}: {} instead of {}",
            kind.name,
            kind.size,
            time(now.time_ns),
            time(was.time_ns)
        ));
        lines.extend(barrel(graph, now));
    }
    let weights = (advice.given.weighted_ns(kinds), better.weighted_ns(kinds));
    if let (Some(was), Some(now)) = weights
        && now > 0
    {
        lines.push(format!(
            "by traffic, that is {:.2} times as fast",
            was as f64 / now as f64
        ));
    }
    lines.join("\n")
}

/// What sets the pace of a kind, and what others could do.
fn barrel(graph: &RankGraph, pace: &Pace) -> Option<String> {
    let slowest = pace.slowest.as_ref()?;
    let (from, to) = (slowest.from, slowest.to);
    let Some(link) = &slowest.link else {
        return Some(format!("    nothing joins rank {from} and rank {to}"));
    };
    let shared = match slowest.wire {
        Some(wire) => format!(
            "{} messages share {}, {} for each",
            slowest.messages,
            wire_name(graph, wire),
            gigabytes(slowest.bytes_per_s)
        ),
        None => gigabytes(slowest.bytes_per_s),
    };
    let mut text = format!(
        "    the pace is that of {from} to {to} ({}, layer {}): {shared}",
        link.protocol, link.layer
    );
    let (fastest, _) = pace.links_bytes_per_s;
    if fastest > slowest.bytes_per_s {
        text += &format!(
            "; other links of these rings could do {}, and wait for it",
            gigabytes(fastest)
        );
    }
    Some(text)
}

fn wire_name(graph: &RankGraph, wire: Segment) -> String {
    let facts = graph.fabric_facts();
    let port = |number: u32| {
        let port = facts.and_then(|facts| facts.ports.get(number as usize));
        port.map_or("a port", |port| &port.name)
    };
    let switch = |number: u32| {
        let switch = facts.and_then(|facts| facts.switches.get(number as usize));
        switch.map_or("a switch", |switch| &switch.name)
    };
    match wire {
        Segment::PortOut(id) => format!("the way out of port {}", port(id.0)),
        Segment::PortIn(id) => format!("the way into port {}", port(id.0)),
        Segment::Up(id) => format!("the way up from switch {}", switch(id.0)),
        Segment::Down(id) => format!("the way down to switch {}", switch(id.0)),
        Segment::Cable(..) => "a cable".to_owned(),
    }
}

fn shown(ranks: &[Rank]) -> String {
    let list: Vec<String> = ranks.iter().take(SHOWN).map(ToString::to_string).collect();
    let mut text = list.join(",");
    if ranks.len() > SHOWN {
        text += &format!(" and {} more", ranks.len() - SHOWN);
    }
    text
}

fn as_json(graph: &RankGraph, kinds: &[GroupKind], advice: &Advice) -> Value {
    let mapping = |mapping: &Mapping| {
        let paces = mapping.paces.iter().zip(kinds).map(|(pace, kind)| {
            let slowest = pace.slowest.as_ref().map(|slowest| {
                json!({
                    "from": slowest.from,
                    "to": slowest.to,
                    "protocol": slowest.link.as_ref().map(|link| link.protocol),
                    "wire": slowest.wire.map(|wire| wire_name(graph, wire)),
                    "messages": slowest.messages,
                    "bytes_per_s": slowest.bytes_per_s,
                })
            });
            json!({
                "kind": kind.name,
                "size": kind.size,
                "traffic": kind.weight,
                "time_ns": pace.time_ns,
                "slowest": slowest,
                "fastest_link_bytes_per_s": pace.links_bytes_per_s.0,
                "rings": pace.rings,
            })
        });
        json!({"ranks": mapping.ranks, "kinds": paces.collect::<Vec<_>>()})
    };
    json!({
        "given": mapping(&advice.given),
        "better": advice.better.as_ref().map(mapping),
    })
}
