//! `hcomm plan simulate`: an operation on a cluster that is described in a file.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use hcomm::RankGraph;
use hcomm_coll::algorithms::{Algorithm, Ordered, Params, by_name, over_wires};
use hcomm_coll::plan::Shape;
use hcomm_coll::simulate::{self, Outcome, Rates, Transfer, Way};
use hcomm_topo::Grouping;
use hcomm_types::{DataType, Error, ErrorKind, Reduction, Result};
use serde_json::{Value, json};

use super::{PlanOp, ShapeArgs};
use crate::sizes::parse_bytes;
use crate::{output, topo};

/// Tasks of all ranks, up to which algorithms are compared where none is named.
const COMPARED_TASKS: u64 = 4_000_000;

/// Pairs of ranks that talk to each other, up to which algorithms are compared: where all meet on the same
/// wires, each message changes what all others get.
const COMPARED_PAIRS: u64 = 100_000;

/// Ranks up to which all of them are tried as one group, too.
const ONE_GROUP: u32 = 256;

/// Wires that are shown, and messages of the critical path.
const SHOWN: usize = 12;

/// Wires in JSON.
const WIRES: usize = 20_000;

/// Runs the plans of an operation on the cluster of a file, in virtual time: messages share the wires
/// that they meet on. All algorithms are compared, or the one that is named, by all divisions of ranks
/// that the graph knows, as far as plans are not too large; the fastest is shown.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// The operation
    #[arg(value_enum)]
    op: PlanOp,
    /// The cluster: any file that `hcomm topo --file` reads
    #[arg(long = "topo", value_name = "FILE")]
    file: PathBuf,
    /// With a rank table: the topology file that says how its ranks are wired
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Ranks that take part, from 0 on [default: all of the cluster]
    #[arg(short = 'p', long = "ranks", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,
    /// Size of the larger buffer, with K, M or G (1024), as in `hcomm perf`
    #[arg(short = 'b', long = "bytes", default_value = "64M", value_parser = parse_bytes)]
    bytes: u64,
    /// Data type
    #[arg(short = 'd', long = "dtype", default_value = "fp32")]
    dtype: DataType,
    /// Reduce operation: sum, prod, max, min or avg
    #[arg(short = 'o', long = "redop", default_value = "sum")]
    redop: Reduction,
    /// Root of rooted operations
    #[arg(short = 'r', long = "root", default_value_t = 0)]
    root: u32,
    /// The algorithm
    #[arg(long, value_name = "NAME")]
    algo: Option<String>,
    /// The group of each rank, for algorithms that go by groups, as 0,0,1,1 [default: all divisions that
    /// the graph knows]
    #[arg(long, value_delimiter = ',')]
    groups: Vec<u32>,
    /// Take ranks in the order that loads the wires least, instead of that of their numbers; where no
    /// algorithm is named, both are tried
    #[arg(long)]
    fit: bool,
    /// Scratch memory of each rank
    #[arg(long, default_value = "400M", value_parser = parse_bytes)]
    scratch: u64,
    /// Bytes of a slice: large operations are cut, and slices follow each other
    #[arg(long, default_value = "4M", value_parser = parse_bytes)]
    slice: u64,
    /// Threads of a rank over which a large operation flows, each with a part of it
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    flows: u32,
    /// Bytes that a rank copies in a second, in 10^9; 0 for no time at all
    #[arg(long, default_value_t = Rates::DEVICE.copy_bytes_per_s / 1_000_000_000)]
    copy_gb_per_s: u64,
    /// Bytes that a rank combines in a second, in 10^9; 0 for no time at all
    #[arg(long, default_value_t = Rates::DEVICE.reduce_bytes_per_s / 1_000_000_000)]
    reduce_gb_per_s: u64,
    /// What each task costs, in nanoseconds
    #[arg(long, default_value_t = Rates::DEVICE.task_ns)]
    task_ns: u64,
    /// Print everything as JSON: also the timeline and the load of every wire
    #[arg(long)]
    json: bool,
}

/// Simulates.
///
/// # Errors
/// If the file is no graph, or the operation cannot be planned or run there.
pub(crate) fn simulate(args: &SimulateArgs) -> Result<u8> {
    let graph = topo::load(&args.file, args.topology.as_deref())?.graph;
    let shape = args.shape(&graph)?;
    let groupings = args.groupings(&graph, &shape)?;
    let rates = args.rates();
    let run = |way: &Way| {
        way.run(&graph, &shape, rates)
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))
    };
    let named: Option<&dyn Algorithm> = args.algo.as_deref().map(named).transpose()?;
    let mut ways = Vec::new();
    for algorithm in candidates(&shape, named) {
        // Others do the same whatever the groups.
        let by_groups = algorithm.by_groups();
        let groupings = &groupings[..if by_groups { groupings.len() } else { 1 }];
        let plain = groupings.iter().map(|grouping| Way {
            algorithm,
            params: args.params(grouping),
            groups: by_groups.then(|| grouping.name.as_str().into()),
            order: None,
        });
        for way in plain {
            let fitted = args.fitted(&graph, &way, &shape);
            if !args.fit || named.is_none() {
                ways.push(way);
            }
            ways.extend(fitted);
        }
    }
    if ways.is_empty() && args.fit {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "--fit finds no order for this: it is for all_reduce, reduce, broadcast and barrier, of \
             algorithms without groups and up to 128 ranks, where another order than that of the numbers \
             loads the wires less; leave it out"
                .to_owned(),
        ));
    }
    let (mut compared, mut left_out) = (Vec::new(), Vec::new());
    let alone = ways.len() == 1;
    // Who names an algorithm waits for it.
    let patience = if named.is_some() { 16 } else { 1 };
    let (most_tasks, most_pairs) = (COMPARED_TASKS * patience, COMPARED_PAIRS * patience);
    for way in ways {
        match way.size(&shape) {
            Ok((tasks, pairs)) if alone || tasks <= most_tasks && pairs <= most_pairs => {
                match run(&way) {
                    Ok(outcome) => compared.push((way.name(), outcome)),
                    Err(error) if alone => return Err(error),
                    Err(error) => left_out.push((way.name(), error.to_string())),
                }
            }
            Ok((tasks, pairs)) => left_out.push((
                way.name(),
                format!(
                    "about {tasks} tasks of {pairs} pairs are too much to compare; --algo and --groups \
                     name one"
                ),
            )),
            Err(error) => left_out.push((way.name(), error.to_string())),
        }
    }
    compared.sort_by_key(|(_, outcome)| outcome.total_ps);
    let lines = compared
        .iter()
        .map(|(name, outcome)| format!("{name:<36} {}", summary(outcome, &shape)));
    let left_out = left_out
        .iter()
        .map(|(name, why)| format!("{name:<36} {why}"));
    let lines: Vec<String> = lines.chain(left_out).collect();
    if compared.is_empty() {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("nothing can be simulated:\n{}", lines.join("\n")),
        ));
    }
    let (name, outcome) = compared.swap_remove(0);
    let others = if alone { Vec::new() } else { lines };
    let text = if args.json {
        as_json(&name, &outcome, &shape, &others).to_string()
    } else {
        in_words(&name, &outcome, &shape, &others)
    };
    output::print(&text).map(|_| 0)
}

/// Algorithms that may be compared: plans of collectives, which wires carry.
fn candidates(shape: &Shape, named: Option<&'static dyn Algorithm>) -> Vec<&'static dyn Algorithm> {
    if let Some(algorithm) = named {
        return vec![algorithm];
    }
    over_wires()
        .filter(|algorithm| algorithm.supports(shape))
        .collect()
}

fn named(name: &str) -> Result<&'static dyn Algorithm> {
    by_name(name).ok_or_else(|| {
        let names: Vec<&str> = over_wires().map(Algorithm::name).collect();
        Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "there is no algorithm {name}; there are {}",
                names.join(", ")
            ),
        )
    })
}

impl SimulateArgs {
    fn shape(&self, graph: &RankGraph) -> Result<Shape> {
        let ranks = self.ranks.unwrap_or_else(|| graph.size());
        let args = ShapeArgs {
            ranks,
            bytes: self.bytes,
            dtype: self.dtype,
            redop: self.redop,
            root: self.root,
            in_place: false,
            deterministic: false,
            lends: 0,
            scratch: None,
        };
        args.shape(self.op)
    }

    /// The groups to try: as asked for, or all that the graph knows.
    fn groupings(&self, graph: &RankGraph, shape: &Shape) -> Result<Vec<Grouping>> {
        if self.groups.is_empty() {
            let mut found = graph.groupings(shape.ranks);
            if found.is_empty() || shape.ranks <= ONE_GROUP {
                found.push(Grouping {
                    name: "one group".to_owned(),
                    groups: vec![0; shape.ranks as usize],
                });
            }
            return Ok(found);
        }
        if self.groups.len() != shape.ranks as usize {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "--groups names {} ranks, the operation has {}",
                    self.groups.len(),
                    shape.ranks
                ),
            ));
        }
        Ok(vec![Grouping {
            name: "the groups given".to_owned(),
            groups: self.groups.clone(),
        }])
    }

    fn params(&self, grouping: &Grouping) -> Params {
        Params {
            scratch_bytes: self.scratch,
            slice_bytes: self.slice,
            groups: Some(Arc::from(&grouping.groups[..])),
            flows: self.flows,
        }
    }

    /// The same with ranks in the order that the graph fits to what is sent: if it is asked for, or
    /// nothing is and all are compared.
    fn fitted(&self, graph: &RankGraph, way: &Way, shape: &Shape) -> Option<Way> {
        let is_tried = (self.fit || self.algo.is_none())
            && way.groups.is_none()
            && shape.ranks <= simulate::ORDERED;
        if !is_tried {
            return None;
        }
        // Why there is no plan is said beside the plain way.
        let order = Ordered::fitted(graph, way.algorithm, shape, &way.params).ok()??;
        Some(Way {
            order: Some(order),
            ..way.clone()
        })
    }

    const fn rates(&self) -> Rates {
        const GB: u64 = 1_000_000_000;
        Rates {
            copy_bytes_per_s: self.copy_gb_per_s.saturating_mul(GB),
            reduce_bytes_per_s: self.reduce_gb_per_s.saturating_mul(GB),
            task_ns: self.task_ns,
        }
    }
}

fn microseconds(ps: u64) -> f64 {
    ps as f64 / 1e6
}

fn summary(outcome: &Outcome, shape: &Shape) -> String {
    format!(
        "{:>12.1} µs {:>9.2} GB/s on the bus",
        microseconds(outcome.total_ps),
        outcome.bus_bytes_per_s(shape) / 1e9
    )
}

fn in_words(name: &str, outcome: &Outcome, shape: &Shape, others: &[String]) -> String {
    let mut lines = vec![format!("{shape}")];
    lines.extend(others.iter().map(|line| format!("  {line}")));
    lines.push(format!("{name}: {}", summary(outcome, shape).trim_start()));
    lines.push(format!(
        "the first rank ends after {:.1} µs; {} messages with {} bytes, {} tasks, {} templates",
        microseconds(outcome.first_ps),
        outcome.messages,
        outcome.bytes,
        outcome.tasks,
        outcome.templates
    ));
    lines.push("bytes by kind of wire, and the fullest of each:".to_owned());
    for kind in ["port out", "port in", "cable", "up", "down"] {
        let mut of_kind = outcome.loads.iter().filter(|load| load.kind == kind);
        if let Some(fullest) = of_kind.next() {
            lines.push(format!(
                "  {kind:<9} {:>16} bytes on {:>6} wires; {:.1} % of {}",
                outcome.bytes_over(kind),
                of_kind.count() + 1,
                fullest.share * 100.0,
                fullest.wire
            ));
        }
    }
    lines.push("the fullest wires:".to_owned());
    for load in outcome.loads.iter().take(SHOWN) {
        lines.push(format!(
            "  {:>5.1} % of {:>7.1} GB/s, {:>14} bytes: {}",
            load.share * 100.0,
            load.bytes_per_s as f64 / 1e9,
            load.bytes,
            load.wire
        ));
    }
    let count = outcome.critical.len();
    lines.push(format!("critical path, {count} messages:"));
    for (number, transfer) in outcome.critical.iter().enumerate() {
        if number == SHOWN && count > 2 * SHOWN {
            lines.push(format!("  ... {} more ...", count - 2 * SHOWN));
        }
        if number < SHOWN || number + SHOWN >= count {
            lines.push(format!("  {}", step(transfer)));
        }
    }
    lines.join("\n")
}

fn step(transfer: &Transfer) -> String {
    let Transfer {
        from,
        to,
        bytes,
        posted_ps,
        began_ps,
        arrived_ps,
    } = transfer;
    let held = began_ps.saturating_sub(*posted_ps);
    let held = if held > 0 {
        format!(", held up for {:.1} µs", microseconds(held))
    } else {
        String::new()
    };
    format!(
        "{:>10.1} to {:>10.1} µs: {from} to {to}, {bytes} bytes{held}",
        microseconds(*began_ps),
        microseconds(*arrived_ps)
    )
}

fn as_json(name: &str, outcome: &Outcome, shape: &Shape, others: &[String]) -> Value {
    let loads = &outcome.loads[..outcome.loads.len().min(WIRES)];
    json!({
        "op": shape.name(),
        "ranks": shape.ranks,
        "dtype": shape.dtype,
        "bytes": shape.total_bytes(),
        "algorithm": name,
        "compared": others,
        "time_us": microseconds(outcome.total_ps),
        "first_us": microseconds(outcome.first_ps),
        "busbw_gbps": outcome.bus_bytes_per_s(shape) / 1e9,
        "messages": outcome.messages,
        "message_bytes": outcome.bytes,
        "tasks": outcome.tasks,
        "templates": outcome.templates,
        "wires": loads,
        "wires_left_out": outcome.loads.len() - loads.len(),
        "critical_path": outcome.critical,
        "timeline": outcome.timeline,
        "timeline_left_out": outcome.left_out,
    })
}
