//! A table of clusters: how long an all_reduce takes there by a flat ring, and by whatever is best.
//!
//! `cargo run --release -p hcomm-coll --example clusters [FILE...]` takes the fixtures of the graph, or
//! the files that are named. Each algorithm is simulated by each division of ranks that the graph knows,
//! as far as its plan is not too large.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{env, fs};

use hcomm_coll::algorithms::{Params, over_wires};
use hcomm_coll::plan::{Operation, Shape, Task};
use hcomm_coll::simulate::{Rates, simulate};
use hcomm_topo::{RankGraph, load};
use hcomm_types::{DataType, Rank, ReduceOp};

/// Tasks of all ranks, up to which a plan is simulated.
const MOST_TASKS: usize = 6_000_000;

/// Pairs of ranks that talk to each other, likewise for algorithms that know no groups.
const MOST_PAIRS: usize = 20_000;

const BYTES: [u64; 3] = [64 << 10, 4 << 20, 64 << 20];

fn main() -> Result<(), Box<dyn Error>> {
    let mut files: Vec<PathBuf> = env::args().skip(1).map(PathBuf::from).collect();
    if files.is_empty() {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../hcomm-topo/tests/fixtures/clusters");
        let entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
        files = entries.into_iter().map(|entry| entry.path()).collect();
        files.sort();
    }
    println!(
        "{:<14} {:>6} {:>10} {:>12} {:>12}  best",
        "cluster", "ranks", "bytes", "ring µs", "best µs"
    );
    for file in files {
        let start = Instant::now();
        let graph = load(&fs::read_to_string(&file)?, None)?.graph;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        for bytes in BYTES {
            row(&name, &graph, bytes);
        }
        eprintln!("{name}: {} s", start.elapsed().as_secs());
    }
    Ok(())
}

fn row(name: &str, graph: &RankGraph, bytes: u64) {
    let shape = Shape {
        operation: Operation::AllReduce,
        ranks: graph.size(),
        count: (bytes / 4).into(),
        dtype: DataType::F32,
        redop: ReduceOp::Sum.into(),
        in_place: false,
    };
    let mut found: Vec<(u64, String)> = Vec::new();
    for algorithm in over_wires().filter(|it| it.supports(&shape)) {
        let mut groupings = vec![(String::new(), None)];
        if algorithm.by_groups() {
            let known = graph.groupings(shape.ranks).into_iter();
            let known = known.map(|it| (format!(" by {}", it.name), Some(it.groups.into())));
            groupings.extend(known);
            if shape.ranks > 256 {
                groupings.remove(0);
            }
        }
        for (by, groups) in groupings {
            let params = Params {
                scratch_bytes: 400 << 20,
                slice_bytes: 4 << 20,
                groups,
                flows: 1,
            };
            let Ok(first) = algorithm.plan_rank(&shape, &params, Rank(0)) else {
                continue;
            };
            let tasks = first.threads.iter().flatten();
            let peers: BTreeSet<Rank> = tasks.filter_map(Task::peer).collect();
            let times = |each: usize| each.saturating_mul(shape.ranks as usize);
            // What works by groups is meant for many ranks.
            let many = times(peers.len()) > MOST_PAIRS && by.is_empty();
            if times(first.task_count()) > MOST_TASKS || many {
                continue;
            }
            let plan = |rank| algorithm.plan_rank(&shape, &params, rank);
            if let Ok(outcome) = simulate(graph, &shape, Rates::DEVICE, plan) {
                found.push((outcome.total_ps, format!("{}{by}", algorithm.name())));
            }
        }
    }
    found.sort_unstable();
    let shown =
        |ps: Option<u64>| ps.map_or_else(|| "-".to_owned(), |ps| format!("{:.1}", ps as f64 / 1e6));
    let ring = found.iter().find(|(_, name)| name == "ring");
    let best = found.first();
    println!(
        "{name:<14} {:>6} {bytes:>10} {:>12} {:>12}  {}",
        graph.size(),
        shown(ring.map(|(ps, _)| *ps)),
        shown(best.map(|(ps, _)| *ps)),
        best.map_or("", |(_, name)| name)
    );
}
