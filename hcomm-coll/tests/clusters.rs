//! Orders of ranks, and what is chosen for clusters that are not here: a sample of the table that
//! `cargo run --release -p hcomm-coll --example clusters` makes.

#![expect(clippy::unwrap_used, reason = "a test that cannot unwrap has failed")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use hcomm_coll::algorithms::{Algorithm, Ordered, Params, by_name, over_wires};
use hcomm_coll::plan::{Operation, Shape};
use hcomm_coll::simulate::{Limits, Rates, Way, choose, ways};
use hcomm_coll::verify::verify;
use hcomm_topo::{RankGraph, load};
use hcomm_types::{DataType, Rank, ReduceOp};

fn cluster(name: &str) -> RankGraph {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../hcomm-topo/tests/fixtures/clusters");
    let text = fs::read_to_string(folder.join(name).with_extension("json")).unwrap();
    load(&text, None).unwrap().graph
}

fn shape(operation: Operation, ranks: u32, bytes: u64) -> Shape {
    Shape {
        operation,
        ranks,
        count: (bytes / 4).into(),
        dtype: DataType::F32,
        redop: ReduceOp::Sum.into(),
        in_place: false,
    }
}

#[test]
fn any_algorithm_is_right_in_any_order() {
    let order: Arc<[Rank]> = [3, 0, 4, 2, 1].map(Rank).into();
    let params = Params {
        scratch_bytes: 16 << 10,
        slice_bytes: 512,
        groups: Some([0, 1, 1, 0, 1].into()),
        flows: 2,
    };
    let mut proven = 0;
    for algorithm in over_wires() {
        let ordered = Ordered::new(algorithm, Arc::clone(&order)).unwrap();
        for root in [1, 3].map(Rank) {
            for operation in [
                Operation::AllReduce,
                Operation::Broadcast { root },
                Operation::Reduce { root },
                Operation::Barrier,
                Operation::AllGather,
            ] {
                let mut shape = shape(operation, 5, 4 * 1021);
                shape.in_place = root == Rank(1);
                if operation == Operation::Barrier {
                    shape.count = 0.into();
                }
                if !ordered.supports(&shape) {
                    continue;
                }
                let plan = ordered.plan(&shape, &params).unwrap();
                let name = algorithm.name();
                let proof = verify(&plan).unwrap_or_else(|e| panic!("{name}, {shape}: {e}"));
                assert!(proof.synchronising && proof.same_bits, "{name}, {shape}");
                proven += 1;
            }
        }
    }
    assert!(proven > 30, "{proven}");
    // Whose part is whose is in the numbers of ranks.
    let ring = Ordered::new(by_name("ring").unwrap(), order).unwrap();
    assert!(!ring.supports(&shape(Operation::AllGather, 5, 4)));
    // An order of other ranks, and one that names a rank twice.
    assert!(!ring.supports(&shape(Operation::AllReduce, 4, 4)));
    for wrong in [[0, 1, 1], [0, 1, 3]] {
        let wrong: Arc<[Rank]> = wrong.map(Rank).into();
        assert!(Ordered::new(by_name("ring").unwrap(), wrong).is_none());
    }
}

/// As in the table, but for fewer clusters and with smaller plans.
#[test]
fn what_is_chosen_is_nearly_the_best_and_beats_a_flat_ring() {
    let limits = Limits {
        tasks: 60_000,
        work: 20_000_000,
        ..Limits::CHOICE
    };
    for (name, bytes, least) in [
        ("mesh8", 64 << 10, 3.0),
        ("cards4x4", 1 << 20, 1.2),
        ("odd", 64 << 10, 1.0),
        ("odd", 8 << 20, 1.15),
        ("mixed", 64 << 10, 3.0),
        ("mixed", 8 << 20, 1.3),
    ] {
        let graph = cluster(name);
        let shape = shape(Operation::AllReduce, graph.size(), bytes);
        let time = |way: &Way| {
            if !limits.admit(way, &shape) {
                return None;
            }
            Some(way.run(&graph, &shape, Rates::DEVICE).ok()?.total_ps)
        };
        let all: Vec<(Way, u64)> = ways(&graph, &shape)
            .into_iter()
            .filter_map(|way| time(&way).map(|ps| (way, ps)))
            .collect();
        let best = all.iter().map(|(_, ps)| *ps).min().unwrap();
        let is_flat = |way: &Way| way.algorithm.name() == "ring" && way.order.is_none();
        let ring = all
            .iter()
            .filter(|(way, _)| is_flat(way))
            .map(|(_, ps)| *ps)
            .min();
        let (way, outcome) = choose(&graph, &shape, Rates::DEVICE, limits).unwrap();
        let chosen = outcome.total_ps;
        assert!(
            chosen * 10 <= best * 11,
            "{name}, {bytes} bytes: {way} takes {chosen} ps, the best {best}"
        );
        let ratio = ring.unwrap() as f64 / chosen as f64;
        assert!(ratio > least, "{name}, {bytes} bytes: {way}, {ratio}");
    }
}
