//! The simulator against closed forms, what goes over wires, and the algorithm made for many groups.

#![expect(clippy::unwrap_used, reason = "a test that cannot unwrap has failed")]

use std::sync::Arc;

use hcomm_coll::algorithms::{Algorithm, HierarchicalLog, Params, algorithms, by_name};
use hcomm_coll::plan::{Operation, Shape};
use hcomm_coll::simulate::{Outcome, Rates, SimulateError, simulate};
use hcomm_topo::{RankGraph, load};
use hcomm_types::{DataType, Rank, ReduceOp};
use proptest::prelude::*;

const ALPHA_PS: u64 = 2_000_000;
/// Picoseconds a byte of 10 GB/s.
const BETA_PS: u64 = 100;

fn graph(nodes: &str) -> RankGraph {
    let text = format!(
        "{{\"format\": \"hcomm-cluster\", \"version\": 1, \"switches\": [{{\"name\": \"top\"}}, \
         {{\"for\": {{\"leaf\": 4}}, \"name\": \"leaf{{leaf}}\", \"parent\": \"top\", \"gb_per_s\": 10, \
         \"latency_ns\": 500}}], \"nodes\": [{nodes}]}}"
    );
    load(&text, None).unwrap().graph
}

/// All ranks at one switch that holds nobody up.
fn switch(ranks: u32) -> RankGraph {
    graph(&format!(
        "{{\"name\": \"a\", \"ranks\": {ranks}, \"wires\": [{{\"protocol\": \"hccs\", \"shape\": \
         \"switch\", \"gb_per_s\": 10, \"latency_ns\": 2000}}]}}"
    ))
}

fn shape(operation: Operation, ranks: u32, bytes: u64) -> Shape {
    Shape {
        operation,
        ranks,
        count: (bytes / 4 / operation.parts(ranks)).into(),
        dtype: DataType::F32,
        redop: ReduceOp::Sum.into(),
        in_place: true,
    }
}

/// Enough scratch memory for everything in one piece.
fn whole(groups: Option<Vec<u32>>) -> Params {
    Params {
        scratch_bytes: 8 << 30,
        slice_bytes: 8 << 30,
        groups: groups.map(Arc::from),
        flows: 1,
    }
}

fn run(graph: &RankGraph, algorithm: &dyn Algorithm, shape: &Shape, params: &Params) -> Outcome {
    let plan = |rank| algorithm.plan_rank(shape, params, rank);
    simulate(graph, shape, Rates::NOTHING, plan).unwrap()
}

fn named(graph: &RankGraph, name: &str, shape: &Shape) -> Outcome {
    run(graph, by_name(name).unwrap(), shape, &whole(None))
}

fn is_close(found: u64, wanted: u64) {
    let off = found.abs_diff(wanted);
    assert!(
        off * 50 <= wanted,
        "{found} ps is not within 2 % of {wanted}"
    );
}

#[test]
fn a_ring_takes_what_its_formula_says() {
    for ranks in [2u64, 3, 8, 13] {
        for bytes in [64 * ranks, 65_536 * ranks, 1_048_576 * ranks] {
            let all = shape(Operation::AllReduce, ranks as u32, bytes);
            let outcome = named(&switch(ranks as u32), "ring", &all);
            let steps = 2 * (ranks - 1);
            is_close(
                outcome.total_ps,
                steps * (ALPHA_PS + bytes / ranks * BETA_PS),
            );
            assert_eq!(outcome.bytes, steps * bytes);
        }
    }
}

#[test]
fn halving_and_doubling_takes_what_its_formula_says() {
    for bits in 1..6u64 {
        let ranks = 1 << bits;
        for bytes in [64 * ranks, 1 << 20, 1 << 26] {
            let all = shape(Operation::AllReduce, ranks as u32, bytes);
            let outcome = named(&switch(ranks as u32), "halving_doubling", &all);
            let moved = 2 * (ranks - 1) * bytes / ranks;
            is_close(outcome.total_ps, 2 * bits * ALPHA_PS + moved * BETA_PS);
        }
    }
}

#[test]
fn a_tree_takes_what_its_formula_says() {
    // A parent's port is shared by its two children, so each level takes twice the time of a message;
    // before that, ranks tell up the tree that they have begun, without bytes.
    for levels in 1..5u64 {
        let ranks = (1 << (levels + 1)) - 1;
        let of = |bytes: u64| {
            let root = Rank(0);
            let shape = shape(Operation::Broadcast { root }, ranks, bytes);
            named(&switch(ranks), "binary_tree", &shape).total_ps
        };
        let (small, large) = (of(4), of(1 << 24));
        is_close(large - small, levels * 2 * ((1 << 24) - 4) * BETA_PS);
        let alphas = (small + ALPHA_PS / 2) / ALPHA_PS;
        assert!(
            (levels..=3 * levels).contains(&alphas),
            "{levels}: {alphas}"
        );
        is_close(small, alphas * ALPHA_PS);
    }
}

#[test]
fn a_shared_wire_is_divided_fairly() {
    // Four ranks on leaf 0 send to four on leaf 1: 10 GB/s up for all of them, 10 GB/s each at ports.
    let across = graph(
        "{\"name\": \"n{node}\", \"count\": 8, \"ranks\": 1, \"ports\": [{\"protocol\": \"roce\", \
         \"switch\": \"leaf{node/4}\", \"gb_per_s\": 10, \"latency_ns\": 2000}]}",
    );
    let one = shape(Operation::AllToAll, 8, 8 * 1_000_000);
    let outcome = named(&across, "mesh_one_shot", &one);
    // 16 MB cross each way at 10 GB/s; three neighbours get theirs beside that.
    is_close(outcome.total_ps, 16_000_000 * BETA_PS + 3_000_000);
    let up = outcome
        .loads
        .iter()
        .find(|load| load.wire == "leaf0, up")
        .unwrap();
    assert_eq!(up.bytes, 16_000_000);
    assert!((0.97..=1.0).contains(&up.share), "{up:?}");
    // Nobody gets more than there is.
    assert!(outcome.loads.iter().all(|load| load.share <= 1.0));
}

#[test]
fn bytes_are_conserved_and_the_critical_path_has_no_holes() {
    let graph = switch(6);
    for algorithm in algorithms() {
        for operation in [
            Operation::AllReduce,
            Operation::AllToAll,
            Operation::AllGather,
        ] {
            let shape = shape(operation, 6, 6 * 30_000);
            if !algorithm.supports(&shape) || algorithm.is_for_messages() {
                continue;
            }
            let name = algorithm.name();
            let params = Params {
                scratch_bytes: 64 << 10,
                slice_bytes: 4 << 10,
                ..whole(None)
            };
            let plan = algorithm.plan(&shape, &params);
            let Ok(plan) = plan else { continue };
            let outcome = run(&graph, *algorithm, &shape, &params);
            assert_eq!(outcome.tasks, plan.task_count() as u64, "{name}");
            assert_eq!(outcome.bytes_over("port out"), outcome.bytes, "{name}");
            assert_eq!(outcome.bytes_over("port in"), outcome.bytes, "{name}");
            // Each rank has to get what it does not have, at least.
            assert!(outcome.bytes >= 5 * 30_000 * 6, "{name}: {}", outcome.bytes);
            let path = &outcome.critical;
            assert_eq!(path.last().unwrap().arrived_ps, outcome.total_ps, "{name}");
            assert_eq!(path[0].posted_ps, 0, "{name}");
            for pair in path.windows(2) {
                // What is asked for is posted by who gets it.
                let ends = [pair[1].from, pair[1].to];
                let follows = pair[1].posted_ps == pair[0].arrived_ps && ends.contains(&pair[0].to)
                    || pair[1].from == pair[0].from && pair[1].began_ps >= pair[0].began_ps;
                assert!(follows, "{name}: {pair:?}");
            }
        }
    }
}

#[test]
fn larger_takes_longer_and_faster_wires_take_less() {
    for name in [
        "ring",
        "halving_doubling",
        "mesh_two_shot",
        "binary_tree",
        "nhr",
    ] {
        let of = |bytes: u64, gigabytes: u32| {
            let graph = graph(&format!(
                "{{\"name\": \"a\", \"ranks\": 8, \"wires\": [{{\"protocol\": \"hccs\", \"shape\": \
                 \"mesh\", \"gb_per_s\": {gigabytes}, \"latency_ns\": 2000}}]}}"
            ));
            named(&graph, name, &shape(Operation::AllReduce, 8, bytes)).total_ps
        };
        let times: Vec<u64> = (6..26).step_by(4).map(|bits| of(1 << bits, 10)).collect();
        assert!(
            times.windows(2).all(|pair| pair[0] <= pair[1]),
            "{name}: {times:?}"
        );
        let times: Vec<u64> = [1, 2, 5, 50].map(|gigabytes| of(1 << 22, gigabytes)).into();
        assert!(
            times.windows(2).all(|pair| pair[0] > pair[1]),
            "{name}: {times:?}"
        );
    }
}

#[test]
fn ranks_that_do_the_same_share_a_template() {
    let groups = (0..64).map(|rank| rank / 8).collect();
    let shape = shape(Operation::AllReduce, 64, 1 << 20);
    let outcome = run(&switch(64), &HierarchicalLog, &shape, &whole(Some(groups)));
    assert!(outcome.templates <= 8, "{}", outcome.templates);
    assert!(outcome.tasks > 64 * 30);
}

#[test]
fn links_that_are_not_there_and_graphs_that_are_too_small_are_errors() {
    let ring = graph(
        "{\"name\": \"a\", \"ranks\": 5, \"wires\": [{\"protocol\": \"hccs\", \"shape\": \"ring\", \
         \"gb_per_s\": 10}]}",
    );
    let all = shape(Operation::AllReduce, 5, 1000);
    assert!(named(&ring, "ring", &all).total_ps > 0);
    let of = |graph: &RankGraph, name: &str, ranks: u32| {
        let shape = shape(Operation::AllReduce, ranks, 1000);
        let plan = |rank| by_name(name).unwrap().plan_rank(&shape, &whole(None), rank);
        simulate(graph, &shape, Rates::NOTHING, plan)
    };
    assert!(matches!(
        of(&ring, "mesh_one_shot", 5),
        Err(SimulateError::NoLink { .. })
    ));
    assert_eq!(
        of(&ring, "ring", 6),
        Err(SimulateError::Ranks { have: 5, need: 6 })
    );
    let never = simulate(&ring, &all, Rates::NOTHING, |rank| {
        let mut plan = by_name("ring")
            .unwrap()
            .plan_rank(&all, &whole(None), rank)?;
        if rank == Rank(3) {
            plan.threads[0].truncate(1);
        }
        Ok(plan)
    });
    assert!(
        matches!(never, Err(SimulateError::Stuck { .. })),
        "{never:?}"
    );
}

#[test]
fn of_many_groups_few_are_talked_to() {
    // The same, on every rank, as the paper says: two exchanges for each halving.
    let ranks = 2048;
    let groups: Vec<u32> = (0..ranks).map(|rank| rank / 8).collect();
    let shape = shape(Operation::AllReduce, ranks, 1 << 24);
    let plan = HierarchicalLog
        .plan_rank(&shape, &whole(Some(groups)), Rank(777))
        .unwrap();
    let mut peers: Vec<Rank> = plan.threads[0]
        .iter()
        .filter_map(|task| task.peer())
        .collect();
    peers.sort_unstable();
    peers.dedup();
    assert_eq!(peers.len(), 7 + 8);
    let outside = peers.iter().filter(|peer| peer.0 / 8 != 777 / 8);
    assert!(
        outside.clone().all(|peer| peer.0 % 8 == 777 % 8),
        "{peers:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Shares of wires, seen from outside: no wire carries more than it can, and messages that go
    /// alone are not held up.
    #[test]
    fn no_wire_carries_more_than_it_can(
        ranks in 2u32..12,
        kilobytes in 1u64..200,
        gigabytes in 1u32..40,
        which in 0usize..4,
    ) {
        let graph = graph(&format!(
            "{{\"name\": \"n{{node}}\", \"count\": {ranks}, \"ranks\": 1, \"ports\": [{{\"protocol\": \
             \"roce\", \"switch\": \"leaf{{node%4}}\", \"gb_per_s\": {gigabytes}}}]}}"
        ));
        let name = ["ring", "mesh_one_shot", "bruck", "pairwise"][which];
        let operation = if which == 3 { Operation::AllToAll } else { Operation::AllGather };
        let shape = shape(operation, ranks, kilobytes * 1024 * u64::from(ranks));
        let outcome = named(&graph, name, &shape);
        for load in &outcome.loads {
            prop_assert!(load.share <= 1.0, "{load:?}");
        }
        let least = outcome.loads.iter().map(|load| load.bytes).max().unwrap();
        prop_assert!(outcome.total_ps > least * 1000 / 40);
        prop_assert_eq!(named(&graph, name, &shape), outcome);
    }
}
