//! A table of clusters: which way an all_reduce takes there, beside the best of all ways and a flat ring.
//!
//! `cargo run --release -p hcomm-coll --example clusters [FILE...]` takes the fixtures of the graph, or
//! the files that are named. What is chosen is what [`choose`] says within bounds on the size of plans;
//! for the best all ways are simulated, as far as their plans are not too large. A flat ring has its best
//! slices and flows, too; of thousands of ranks it is not simulated, and `≥` marks a bound. The program ends with 1 if what is chosen takes more than 1.10 of the time of
//! the best, or if it is not faster than a flat ring although the links of the cluster differ.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use std::{env, fs};

use hcomm_coll::plan::{Operation, Shape};
use hcomm_coll::simulate::{Limits, Rates, choose, ways};
use hcomm_topo::{RankGraph, load};
use hcomm_types::{DataType, Rank, ReduceOp};

/// What is simulated to know the best.
const ALL: Limits = Limits {
    tasks: 600_000,
    work: 60_000_000,
    ..Limits::CHOICE
};

/// A flat ring is simulated in its longest slices when it has many more tasks.
const RING: Limits = Limits {
    tasks: 16_000_000,
    work: u64::MAX,
    ..Limits::CHOICE
};

const BYTES: [u64; 3] = [64 << 10, 4 << 20, 64 << 20];

/// What is chosen may take so many hundredths of the time of the best.
const MOST_OF_BEST: f64 = 1.10;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut files: Vec<PathBuf> = env::args().skip(1).map(PathBuf::from).collect();
    if files.is_empty() {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../hcomm-topo/tests/fixtures/clusters");
        let entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
        files = entries.into_iter().map(|entry| entry.path()).collect();
        files.sort();
    }
    println!(
        "| cluster | ranks | bytes | chosen (µs) | best (µs) | chosen / best | flat ring / chosen | \
         chosen | best |\n|---|---|---|---|---|---|---|---|---|"
    );
    let mut broken = Vec::new();
    for file in files {
        let start = Instant::now();
        let graph = load(&fs::read_to_string(&file)?, None)?.graph;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        for bytes in BYTES {
            broken.extend(row(&name, &graph, bytes));
        }
        eprintln!("{name}: {} s", start.elapsed().as_secs());
    }
    for line in &broken {
        eprintln!("{line}");
    }
    Ok(ExitCode::from(u8::from(!broken.is_empty())))
}

/// Prints a row; says which bounds it breaks.
fn row(name: &str, graph: &RankGraph, bytes: u64) -> Vec<String> {
    let shape = Shape {
        operation: Operation::AllReduce,
        ranks: graph.size(),
        count: (bytes / 4).into(),
        dtype: DataType::F32,
        redop: ReduceOp::Sum.into(),
        in_place: false,
    };
    let mut all: Vec<(u64, String)> = Vec::new();
    let mut ring: Option<u64> = None;
    for way in ways(graph, &shape) {
        let is_ring = way.algorithm.name() == "ring" && way.order.is_none();
        let admitted = ALL.admit(&way, &shape)
            || is_ring && ring.is_none() && way.params.flows == 1 && RING.admit(&way, &shape);
        // A flat ring is followed to its end, others as long as they may be the best.
        let fastest = all.iter().map(|(total, _)| *total).min();
        let most_ps = fastest.filter(|_| !is_ring).unwrap_or(u64::MAX);
        let outcome = admitted.then(|| way.run_within(graph, &shape, Rates::DEVICE, most_ps));
        let Some(Ok(outcome)) = outcome else { continue };
        if is_ring {
            ring = Some(ring.unwrap_or(u64::MAX).min(outcome.total_ps));
        }
        all.push((outcome.total_ps, way.to_string()));
    }
    let chosen = choose(graph, &shape, Rates::DEVICE, Limits::CHOICE);
    let (Some((way, outcome)), Some((best, best_name))) = (chosen, all.into_iter().min()) else {
        return vec![format!("{name}, {bytes} bytes: nothing can be simulated")];
    };
    let chosen = outcome.total_ps;
    let of_best = chosen as f64 / best as f64;
    let is_bound = if ring.is_none() { "≥ " } else { "" };
    let ring = ring.or_else(|| least_of_ring(graph, bytes));
    let of_ring = ring.map(|ring| ring as f64 / chosen as f64);
    println!(
        "| {name} | {} | {} KiB | {:.1} | {:.1} | {of_best:.2} | {} | {way} | {best_name} |",
        shape.ranks,
        bytes >> 10,
        chosen as f64 / 1e6,
        best as f64 / 1e6,
        of_ring.map_or_else(|| "-".to_owned(), |ratio| format!("{is_bound}{ratio:.2}")),
    );
    let mut broken = Vec::new();
    if of_best > MOST_OF_BEST {
        broken.push(format!(
            "{name}, {bytes} bytes: {way} takes {of_best:.2} of the time of {best_name}, more than \
             {MOST_OF_BEST:.2}"
        ));
    }
    if is_mixed(graph)
        && let Some(ratio) = of_ring.filter(|ratio| *ratio <= 1.0)
    {
        broken.push(format!(
            "{name}, {bytes} bytes: {way} is not faster than a flat ring ({ratio:.3})"
        ));
    }
    broken
}

/// What a flat ring takes at least: each block goes round twice but for two steps, one link after the
/// other.
fn least_of_ring(graph: &RankGraph, bytes: u64) -> Option<u64> {
    let ranks = graph.size();
    let links = (1..ranks).map(|rank| graph.links(Rank(rank - 1), Rank(rank)).into_iter().next());
    let step = |link: hcomm_topo::Link| link.predict_ns(bytes / u64::from(ranks)) * 1000;
    let steps = links
        .map(|link| link.map(step))
        .collect::<Option<Vec<u64>>>()?;
    Some(steps.into_iter().min()? * 2 * u64::from(ranks - 1))
}

/// Whether links of some ranks are faster than those of others: of each to the next one, and of all to
/// the first.
fn is_mixed(graph: &RankGraph) -> bool {
    let speed = |from: Rank, to: Rank| Some(graph.links(from, to).first()?.bytes_per_s);
    let others = (1..graph.size()).map(Rank);
    let mut speeds: Vec<u64> = others
        .flat_map(|rank| [speed(Rank(0), rank), speed(Rank(rank.0 - 1), rank)])
        .flatten()
        .collect();
    speeds.sort_unstable();
    speeds.first() != speeds.last()
}
