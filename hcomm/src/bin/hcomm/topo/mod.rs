//! `hcomm topo`: the rank graph, discovered on this host or read from a file.

mod advise;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use hcomm::{Options, RankGraph};
use hcomm_topo::{Allowed, Loaded, MAX_SOURCE_BYTES};
use hcomm_types::{Error, ErrorKind, Rank, Result};

use crate::{output, transports};

/// Shows the rank graph: hosts, endpoints, and the link chosen between each pair of ranks. Without
/// --file it is that of N ranks on this host; under a launcher it is that of its job.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct TopoArgs {
    #[command(subcommand)]
    command: Option<TopoCommand>,
    /// Ranks on this host, when the graph is discovered
    #[arg(short = 'p', long = "ranks", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=4096), conflicts_with = "file")]
    ranks: u32,
    #[command(flatten)]
    source: SourceArgs,
    /// Write the graph as JSON to this file; `-` prints it
    #[arg(long, conflicts_with_all = ["dot", "svg", "json"])]
    dump: Option<PathBuf>,
    /// Print the graph as JSON
    #[arg(long, conflicts_with_all = ["dot", "svg"])]
    json: bool,
    /// Print the graph in the language of Graphviz
    #[arg(long, conflicts_with = "svg")]
    dot: bool,
    /// Print the graph as a picture (SVG)
    #[arg(long)]
    svg: bool,
}

#[derive(Debug, Subcommand)]
enum TopoCommand {
    /// Whether groups of ranks keep what they send on fast links, and what mapping would
    Advise(advise::AdviseArgs),
}

/// A graph in files.
#[derive(Debug, Args)]
pub(crate) struct SourceArgs {
    /// Read the graph from this file: one that --dump wrote, a rank table (1.0, 1.2, 2.0), a topology
    /// file (2.0), or a description of a cluster
    #[arg(long, alias = "load", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// With a rank table: the topology file that says how its ranks are wired
    #[arg(long, value_name = "FILE", requires = "file")]
    pub(crate) topology: Option<PathBuf>,
}

/// Shows the graph.
///
/// # Errors
/// If discovery fails, or the file cannot be read or is no graph.
pub(crate) fn topo(args: &TopoArgs) -> Result<u8> {
    if let Some(TopoCommand::Advise(args)) = &args.command {
        return advise::advise(args);
    }
    // Of a loaded graph, too, the links are shown that would be chosen here and now.
    let options = Options::from_env()?;
    let allowed = hcomm_ctrl::allowed(options.settings())?;
    let (graph, notes) = match &args.source.file {
        Some(path) => {
            let Loaded { graph, notes, .. } = load(path, args.source.topology.as_deref())?;
            (graph, notes)
        }
        None => (discovered(args.ranks, &options)?, Vec::new()),
    };
    if let Some(path) = args.dump.as_ref().filter(|path| path.as_os_str() != "-") {
        return fs::write(path, graph.to_json() + "\n")
            .map(|()| 0)
            .map_err(|error| Error::system(format!("writing {}", path.display()), error));
    }
    let text = if args.json || args.dump.is_some() {
        graph.to_json()
    } else if args.dot {
        graph.to_dot()
    } else if args.svg {
        graph.to_svg()
    } else {
        let mut text = describe(&graph, &allowed);
        for note in notes {
            text += &format!("\nnote: {note}");
        }
        if args.source.file.is_none() {
            text += &tried(&options)?;
        }
        text
    };
    print(&text).map(|()| 0)
}

/// The graph in a file, with the topology file beside it if there is one.
///
/// # Errors
/// If they cannot be read, or are no graph: then with line, field and value.
pub(crate) fn load(path: &Path, topology: Option<&Path>) -> Result<Loaded> {
    let text = read(path)?;
    let beside = topology.map(read).transpose()?;
    hcomm_topo::load(&text, beside.as_deref()).map_err(|error| {
        let file = match topology {
            Some(topology) if error.problem.ends_with("(in the topology file)") => topology,
            _ => path,
        };
        Error::new(
            ErrorKind::InvalidArgument,
            format!("{}: {error}", file.display()),
        )
    })
}

/// A file as text; what is longer than any graph is not read to its end.
fn read(path: &Path) -> Result<String> {
    let failed = |error| Error::system(format!("reading {}", path.display()), error);
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MAX_SOURCE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..valid]
            .iter()
            .filter(|b| **b == b'\n')
            .count()
            + 1;
        Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "{}: line {line}: the file is no text (UTF-8)",
                path.display()
            ),
        )
    })
}

fn discovered(ranks: u32, options: &Options) -> Result<RankGraph> {
    if hcomm::launched()?.is_some() {
        let comm = hcomm::Communicator::from_env_with(options)?;
        let graph = comm.graph().clone();
        comm.close()?;
        return Ok(graph);
    }
    hcomm_ctrl::local_graph(ranks, &hcomm::load_transports(options)?, options.settings())
}

/// A line for each device: how two processes of this host move bytes over it.
fn tried(options: &Options) -> Result<String> {
    let mut lines = String::new();
    for plugin in hcomm::load_transports(options)?.used() {
        for device in plugin.devices()? {
            if let Some(how) = transports::tried(plugin.name(), &device) {
                let (transport, device) = (plugin.name(), device.name);
                lines += &format!("\nprocesses of this host, {transport} {device}: {how}");
            }
        }
    }
    Ok(lines)
}

/// Hosts and ranks of a graph that are shown.
const HOSTS: usize = 64;
const RANKS: usize = 64;

/// A line for each layer, and for what its first net is made of.
fn describe_layers(graph: &RankGraph) -> Vec<String> {
    let mut lines = Vec::new();
    for layer in graph.layers() {
        let nets = graph.instances(layer);
        let sizes = nets.iter().map(|net| net.ranks.len());
        let (smallest, largest) = (sizes.clone().min(), sizes.max());
        let (smallest, largest) = (smallest.unwrap_or(0), largest.unwrap_or(0));
        let ranks = if smallest == largest {
            format!("{largest}")
        } else {
            format!("{smallest} to {largest}")
        };
        lines.push(format!(
            "layer {layer}: {} net{} of {ranks} rank{}",
            nets.len(),
            if nets.len() == 1 { "" } else { "s" },
            if largest == 1 { "" } else { "s" }
        ));
        let Some(net) = nets.iter().find(|net| net.ranks.len() == largest) else {
            continue;
        };
        let kind = graph.topology_type(layer, net.id);
        let planes = graph.topology_instances(layer, net.id);
        let planes: Vec<String> = planes
            .iter()
            .map(|it| {
                let (plane, kind) = (it.plane, it.kind.name());
                match &it.groups[..] {
                    [group] => format!("plane {plane} {kind} of {}", group.len()),
                    groups => format!("plane {plane} {} times {kind}", groups.len()),
                }
            })
            .collect();
        lines.push(format!(
            "    {}: {}; {}",
            net.name,
            kind.map_or("unknown", hcomm_topo::TopologyType::name),
            planes.join(", ")
        ));
    }
    lines
}

fn describe(graph: &RankGraph, allowed: &Allowed) -> String {
    let mut lines = Vec::new();
    if graph.fabric_facts().is_some() {
        lines.extend(describe_layers(graph));
    }
    for instance in graph.hosts().iter().take(HOSTS) {
        let ranks: Vec<String> = instance.ranks.iter().map(ToString::to_string).collect();
        lines.push(format!("host {}: ranks {}", instance.name, ranks.join(" ")));
        if graph.fabric_facts().is_some() {
            continue;
        }
        if let Some(facts) = instance.ranks.first().and_then(|&rank| graph.rank(rank)) {
            let host = &facts.host;
            lines.push(format!(
                "    {} cores, {} NUMA nodes; interfaces: {}",
                host.cores.len(),
                host.numa_nodes.len(),
                host.interfaces
                    .iter()
                    .map(|i| i.name.as_str())
                    .collect::<Vec<_>>()
                    .join(" ")
            ));
            for note in &host.notes {
                lines.push(format!("    note: {note}"));
            }
        }
    }
    if graph.hosts().len() > HOSTS {
        lines.push(format!("and {} more hosts", graph.hosts().len() - HOSTS));
    }
    for facts in graph.ranks().iter().take(RANKS) {
        let endpoints: Vec<String> = facts
            .endpoints
            .iter()
            .map(|e| format!("{} {} ({})", e.transport, e.device, e.protocol))
            .collect();
        lines.push(format!("rank {}: {}", facts.rank, endpoints.join(", ")));
    }
    if graph.ranks().len() > RANKS {
        lines.push(format!("and {} more ranks", graph.ranks().len() - RANKS));
    }
    // All pairs of a large graph would be a page for nobody.
    const SHOWN: u32 = 16;
    for a in 0..graph.size().min(SHOWN) {
        for b in a + 1..graph.size().min(SHOWN) {
            lines.push(match graph.choose(Rank(a), Rank(b), allowed) {
                Ok(choice) => format!("link {a}-{b}: {}", choice.why),
                Err(none) => format!("link {a}-{b}: none: {none}"),
            });
        }
    }
    if graph.size() > SHOWN {
        lines.push(format!(
            "links of ranks from {SHOWN} on are left out; --dump has everything"
        ));
    }
    lines.join("\n")
}

fn print(text: &str) -> Result<()> {
    output::print(text).map(|_| ())
}
