//! `hcomm topo`: the rank graph, discovered on this host or loaded from a file.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use hcomm::{Options, RankGraph};
use hcomm_topo::{Allowed, Layer};
use hcomm_types::{Error, ErrorKind, Rank, Result};

use crate::{output, transports};

/// Shows the rank graph: hosts, endpoints, and the link chosen between each pair of ranks. Without
/// --load it is that of N ranks on this host; under a launcher it is that of its job.
#[derive(Debug, Args)]
pub(crate) struct TopoArgs {
    /// Ranks on this host, when the graph is discovered
    #[arg(short = 'p', long = "ranks", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=4096), conflicts_with = "load")]
    ranks: u32,
    /// Load the graph from this file, written by --dump
    #[arg(long)]
    load: Option<PathBuf>,
    /// Write the graph as JSON to this file; `-` prints it
    #[arg(long, conflicts_with = "dot")]
    dump: Option<PathBuf>,
    /// Print the graph in the language of Graphviz
    #[arg(long)]
    dot: bool,
}

/// Shows the graph.
///
/// # Errors
/// If discovery fails, or the file cannot be read or is no graph.
pub(crate) fn topo(args: &TopoArgs) -> Result<u8> {
    // Of a loaded graph, too, the links are shown that would be chosen here and now.
    let options = Options::from_env()?;
    let allowed = hcomm_ctrl::allowed(options.settings())?;
    let graph = match &args.load {
        Some(path) => load(path)?,
        None => discovered(args, &options)?,
    };
    match (&args.dump, args.dot) {
        (Some(path), _) if path.as_os_str() == "-" => print(&graph.to_json()),
        (Some(path), _) => fs::write(path, graph.to_json() + "\n")
            .map_err(|error| Error::system(format!("writing {}", path.display()), error)),
        (None, true) => print(&graph.to_dot()),
        (None, false) => {
            let mut text = describe(&graph, &allowed);
            if args.load.is_none() {
                text += &tried(&options)?;
            }
            print(&text)
        }
    }
    .map(|()| 0)
}

fn load(path: &Path) -> Result<RankGraph> {
    let text = fs::read_to_string(path)
        .map_err(|error| Error::system(format!("reading {}", path.display()), error))?;
    RankGraph::from_json(&text).map_err(|error| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("{}: {error}", path.display()),
        )
    })
}

fn discovered(args: &TopoArgs, options: &Options) -> Result<RankGraph> {
    if hcomm::launched()?.is_some() {
        let comm = hcomm::Communicator::from_env_with(options)?;
        let graph = comm.graph().clone();
        comm.close()?;
        return Ok(graph);
    }
    hcomm_ctrl::local_graph(
        args.ranks,
        &hcomm::load_transports(options)?,
        options.settings(),
    )
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

fn describe(graph: &RankGraph, allowed: &Allowed) -> String {
    let mut lines = Vec::new();
    for instance in graph.instances(Layer(0)) {
        let ranks: Vec<String> = instance.ranks.iter().map(ToString::to_string).collect();
        lines.push(format!("host {}: ranks {}", instance.name, ranks.join(" ")));
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
    for facts in graph.ranks() {
        let endpoints: Vec<String> = facts
            .endpoints
            .iter()
            .map(|e| format!("{} {} ({})", e.transport, e.device, e.protocol))
            .collect();
        lines.push(format!("rank {}: {}", facts.rank, endpoints.join(", ")));
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
