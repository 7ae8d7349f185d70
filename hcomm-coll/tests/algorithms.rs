//! Every algorithm, operation and rank count, on sizes around every switch: proven right.

#![allow(
    clippy::unwrap_used,
    reason = "a test ends at whatever it does not expect"
)]

mod shapes;

use std::collections::BTreeSet;
use std::sync::Arc;

use hcomm_coll::algorithms::{Algorithm, Params, PlanError, algorithms, by_name};
use hcomm_coll::plan::{Operation, Plan, Shape};
use hcomm_coll::verify::{Proof, verify, verify_sequence};
use hcomm_types::{DataType, Rank, ReduceOp};
use proptest::prelude::*;
use shapes::{operations, uneven};

const PARAMS: Params = Params {
    scratch_bytes: 4096,
    slice_bytes: 1024,
    groups: None,
    flows: 1,
};

fn shape(operation: Operation, ranks: u32, count: u64, dtype: DataType, in_place: bool) -> Shape {
    Shape {
        operation,
        ranks,
        count: count.into(),
        dtype,
        redop: ReduceOp::Sum.into(),
        in_place,
    }
}

fn plan(algorithm: &dyn Algorithm, shape: &Shape, params: &Params) -> Plan {
    algorithm
        .plan(shape, params)
        .unwrap_or_else(|error| panic!("{shape}: {error}"))
}

fn prove(plan: &Plan) -> Proof {
    verify(plan)
        .unwrap_or_else(|finding| panic!("{} for {}: {finding}", plan.algorithm, plan.shape))
}

/// Counts whose bytes lie on both sides of where slices, slots and parts change.
fn counts(ranks: u64, size: u64) -> BTreeSet<u64> {
    let mut counts: BTreeSet<u64> = [0, 1, 3, 7, 127, 509, 1021].into();
    let n = ranks.max(2);
    let switches = [
        64, // a line
        64 * n,
        PARAMS.slice_bytes,
        PARAMS.slice_bytes / n / 64 * 64 * n,
        PARAMS.scratch_bytes / 2,
        PARAMS.scratch_bytes / (n - 1),
        PARAMS.scratch_bytes,
        PARAMS.slice_bytes * n,
    ];
    for bytes in switches {
        let count = bytes / size;
        counts.extend([count.saturating_sub(1), count, count + 1]);
    }
    counts
}

fn prove_all(ranks: u32, dtypes: &[DataType], params: &Params, keep: impl Fn(u64) -> bool) {
    let mut proven = 0;
    for algorithm in algorithms() {
        for operation in operations(ranks) {
            for &dtype in dtypes {
                for count in counts(u64::from(ranks), dtype.size() as u64) {
                    if !keep(count * dtype.size() as u64) {
                        continue;
                    }
                    for in_place in [false, true] {
                        let even = shape(operation, ranks, count, dtype, in_place);
                        let uneven = uneven(&even);
                        for shape in [Some(even), uneven].into_iter().flatten() {
                            if !algorithm.supports(&shape) {
                                continue;
                            }
                            let plan = plan(*algorithm, &shape, params);
                            check(&plan, params);
                            proven += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(proven > 50, "only {proven} plans");
}

fn check(plan: &Plan, params: &Params) {
    let proof = prove(plan);
    let shape = &plan.shape;
    let one_way = matches!(shape.operation, Operation::SendRecv { .. });
    let quiet = shape.ranks == 1 || one_way || plan.is_empty();
    assert!(
        proof.synchronising || quiet,
        "{} for {shape} does not synchronise",
        plan.algorithm
    );
    assert!(
        proof.same_bits,
        "{} for {shape}: bits differ between ranks",
        plan.algorithm
    );
    let algorithm = by_name(&plan.algorithm).unwrap();
    if algorithm.combines_in_rank_order(shape) {
        assert!(
            proof.rank_order,
            "{} for {shape} does not keep the order of ranks",
            plan.algorithm
        );
    }
    assert!(!proof.touches_remote_user_buffers || algorithm.lends());
    for rank in &plan.ranks {
        assert!(
            rank.scratch_bytes <= params.scratch_bytes,
            "{} for {shape}",
            plan.algorithm
        );
    }
}

const SIZES: [DataType; 4] = [DataType::I8, DataType::Bf16, DataType::F32, DataType::F64];

#[test]
fn few_ranks_every_switch() {
    for ranks in 1..=4 {
        prove_all(ranks, &SIZES, &PARAMS, |_| true);
    }
}

#[test]
fn five_to_nine_ranks() {
    for ranks in 5..=9 {
        let dtype = SIZES[ranks as usize % 4];
        prove_all(ranks, &[dtype], &PARAMS, |bytes| bytes <= 4096);
    }
}

#[test]
fn many_ranks() {
    let params = Params {
        scratch_bytes: 16 << 10,
        slice_bytes: 8 << 10,
        groups: None,
        flows: 1,
    };
    for (ranks, dtype) in [(16, DataType::F32), (33, DataType::Bf16)] {
        prove_all(ranks, &[dtype], &params, |bytes| {
            [2, 14, 62, 1024, 1018].contains(&bytes) || bytes == 508
        });
    }
}

#[test]
fn sixty_four_ranks_of_everything_once() {
    let params = Params {
        scratch_bytes: 64 << 10,
        slice_bytes: 16 << 10,
        groups: None,
        flows: 1,
    };
    for algorithm in algorithms() {
        for operation in operations(64) {
            let shape = shape(operation, 64, 509, DataType::I32, false);
            let uneven = uneven(&shape);
            for shape in [Some(shape), uneven].into_iter().flatten() {
                if algorithm.supports(&shape) {
                    check(&plan(*algorithm, &shape, &params), &params);
                }
            }
        }
    }
}

#[test]
fn one_shot_keeps_the_order_of_ranks_and_needs_no_more_scratch_than_said() {
    let shape = shape(Operation::AllReduce, 4, 100, DataType::F32, true);
    let plan = plan(by_name("mesh_one_shot").unwrap(), &shape, &PARAMS);
    let proof = prove(&plan);
    assert!(proof.synchronising && proof.quiescent);
    assert_eq!(proof.channels.len(), 12);
    assert!(
        proof
            .channels
            .iter()
            .all(|channel| channel.bytes_written == 400)
    );
    assert_eq!(proof.ranks[0].scratch_bytes, 3 * 448);
    assert_eq!((proof.notifies, proof.notify_capacity), (1, 1));
}

#[test]
fn two_shot_moves_each_byte_over_a_channel_twice_at_most() {
    let shape = shape(Operation::AllReduce, 2, 65_536, DataType::F32, true);
    let plan = plan(by_name("mesh_two_shot").unwrap(), &shape, &PARAMS);
    let proof = prove(&plan);
    let bytes = shape.count_bytes();
    // Half the input is combined here, and half the result is read from there.
    assert!(
        proof
            .channels
            .iter()
            .all(|channel| channel.bytes_read <= bytes + 64)
    );
    assert!(proof.notify_capacity <= 2);
}

/// What each algorithm writes over the links in all, on eight ranks and on seven: the reason why
/// one takes it.
#[test]
fn as_many_bytes_as_it_should_be() {
    let root = Rank(1);
    let (broadcast, reduce) = (Operation::Broadcast { root }, Operation::Reduce { root });
    let (gather, scatter) = (Operation::Gather { root }, Operation::Scatter { root });
    // In units of a part, or of an eighth of what has no parts.
    let cases = [
        ("recursive_doubling", Operation::AllReduce, [24 * 8, 14 * 8]),
        ("recursive_doubling", Operation::AllGather, [7 * 8, 6 * 7]),
        ("halving_doubling", Operation::AllReduce, [14 * 8, 12 * 8]),
        ("halving_doubling", Operation::ReduceScatter, [7 * 8, 45]),
        ("nhr", Operation::AllReduce, [14 * 8, 12 * 8]),
        ("nhr", Operation::ReduceScatter, [7 * 8, 6 * 7]),
        ("nhr", Operation::AllGather, [7 * 8, 6 * 7]),
        ("bruck", Operation::AllGather, [7 * 8, 6 * 7]),
        ("bruck", Operation::AllToAll, [12 * 8, 9 * 7]),
        ("ring_bidirectional", Operation::AllReduce, [14 * 8, 12 * 8]),
        (
            "ring_bidirectional",
            Operation::ReduceScatter,
            [7 * 8, 6 * 7],
        ),
        ("ring_bidirectional", Operation::AllGather, [7 * 8, 6 * 7]),
        ("binary_tree", Operation::AllReduce, [14 * 8, 12 * 8]),
        ("binary_tree", broadcast, [7 * 8, 6 * 8]),
        ("binary_tree", reduce, [7 * 8, 6 * 8]),
        ("double_tree", Operation::AllReduce, [14 * 8, 12 * 8]),
        ("double_tree", broadcast, [7 * 8, 6 * 8]),
        ("double_tree", reduce, [7 * 8, 6 * 8]),
        ("pat", Operation::ReduceScatter, [7 * 8, 6 * 7]),
        ("pat", Operation::AllGather, [7 * 8, 6 * 7]),
        ("rails", Operation::AllToAll, [7 * 8, 6 * 7]),
        ("knomial", broadcast, [7 * 8, 6 * 8]),
        ("knomial", reduce, [7 * 8, 6 * 8]),
        // The parts of the second level are sent twice.
        ("knomial", gather, [7 + 3, 6 + 2]),
        ("knomial", scatter, [7 + 3, 6 + 2]),
        ("naive", Operation::AllReduce, [14 * 8, 12 * 8]),
        ("naive", gather, [7, 6]),
        ("hierarchical", Operation::AllReduce, [14 * 8, 12 * 8]),
        ("hierarchical_log", Operation::AllReduce, [14 * 8, 12 * 8]),
        ("hierarchical", Operation::ReduceScatter, [7 * 8, 6 * 7]),
        ("hierarchical", Operation::AllGather, [7 * 8, 6 * 7]),
    ];
    // In whole lines when cut in seven, in eight and in halves of these.
    let unit = 64 * 7 * 2;
    let written = |name: &str, operation: Operation, ranks: u32| -> u64 {
        let params = Params {
            scratch_bytes: 64 << 10,
            slice_bytes: 4096,
            groups: None,
            flows: 1,
        };
        let count = match operation {
            Operation::AllReduce | Operation::Reduce { .. } | Operation::Broadcast { .. } => {
                8 * unit
            }
            _ => unit,
        };
        let shape = shape(operation, ranks, count, DataType::U8, false);
        let proof = prove(&plan(by_name(name).unwrap(), &shape, &params));
        proof
            .channels
            .iter()
            .map(|channel| channel.bytes_written)
            .sum()
    };
    for (name, operation, expected) in cases {
        for (ranks, expected) in [8, 7].into_iter().zip(expected) {
            let bytes = written(name, operation, ranks);
            assert_eq!(
                bytes,
                expected * unit,
                "{name}: {operation} on {ranks} ranks"
            );
        }
    }
    // The parts down the tree, and all but one round the ring to all but the root.
    let broadcast = [8, 7].map(|ranks| written("scatter_all_gather", broadcast, ranks));
    assert_eq!(broadcast, [(10 + 49) * unit, (8 + 36) * 8 * unit / 7]);
}

/// What an algorithm says that it needs is what it needs: with that it plans, with less it says the
/// same again.
#[test]
fn too_little_scratch_is_an_error_with_the_numbers() {
    let mut refused = BTreeSet::new();
    for (ranks, groups, count) in [
        (2, None, 100),
        (4, None, 1000),
        (7, None, 100),
        (7, Some([0, 0, 5, 0, 5, 2, 0]), 100),
    ] {
        let params = |scratch_bytes| Params {
            scratch_bytes,
            slice_bytes: 64,
            groups: groups.map(Into::into),
            flows: 1,
        };
        for algorithm in algorithms() {
            for operation in operations(ranks) {
                let shape = shape(operation, ranks, count, DataType::F32, false);
                let uneven = uneven(&shape);
                for shape in [Some(shape), uneven].into_iter().flatten() {
                    if algorithm.supports(&shape) && is_refused(*algorithm, &shape, &params) {
                        refused.insert(algorithm.name());
                    }
                }
            }
        }
    }
    assert_eq!(refused.len(), algorithms().len(), "only {refused:?}");
}

/// Whether there is no plan without scratch memory.
fn is_refused(algorithm: &dyn Algorithm, shape: &Shape, params: &dyn Fn(u64) -> Params) -> bool {
    let Err(error) = algorithm.plan(shape, &params(0)) else {
        return false;
    };
    let PlanError::Scratch { need, limit: 0, .. } = error else {
        panic!("{error}")
    };
    check(&plan(algorithm, shape, &params(need)), &params(need));
    let less = algorithm.plan(shape, &params(need - 1)).unwrap_err();
    assert!(
        matches!(less, PlanError::Scratch { need: again, .. } if again == need),
        "{} for {shape} needs {need}, with one byte less {less}",
        algorithm.name()
    );
    true
}

/// Every number of ranks up to 33, those that are no power of two among them.
#[test]
fn every_number_of_ranks() {
    for ranks in 1..=33 {
        for count in [1, 40] {
            prove_once(ranks, count, 16 << 10);
        }
    }
}

#[test]
fn large_numbers_of_ranks() {
    for ranks in [48, 64, 100, 128] {
        prove_once(ranks, 40, 64 << 10);
    }
}

/// Every operation of every algorithm once, in a few tests, so that cores share them.
const SHARES: usize = 6;

#[test]
fn first_share_of_the_algorithms_on_512_ranks() {
    prove_on_512_ranks(0);
}

#[test]
fn second_share_of_the_algorithms_on_512_ranks() {
    prove_on_512_ranks(1);
}

#[test]
fn third_share_of_the_algorithms_on_512_ranks() {
    prove_on_512_ranks(2);
}

#[test]
fn fourth_share_of_the_algorithms_on_512_ranks() {
    prove_on_512_ranks(3);
}

#[test]
fn fifth_share_of_the_algorithms_on_512_ranks() {
    prove_on_512_ranks(4);
}

#[test]
fn sixth_share_of_the_algorithms_on_512_ranks() {
    prove_on_512_ranks(5);
}

fn prove_on_512_ranks(share: usize) {
    const RANKS: u32 = 512;
    for algorithm in algorithms().iter().skip(share).step_by(SHARES) {
        // In eights, as on hosts: in one group it would have too many peers.
        let by_groups = algorithm.by_groups();
        let groups = by_groups.then(|| (0..RANKS).map(|rank| rank / 8).collect());
        let params = Params {
            scratch_bytes: 1 << 20,
            slice_bytes: 64 << 10,
            groups,
            flows: 1,
        };
        let mut seen = BTreeSet::new();
        // The last of each kind: rooted ones from a rank in the middle.
        for operation in operations(RANKS).into_iter().rev() {
            let shape = shape(operation, RANKS, 7, DataType::I32, false);
            if !algorithm.supports(&shape) || !seen.insert(operation.name()) {
                continue;
            }
            match algorithm.plan(&shape, &params) {
                Ok(plan) => check(&plan, &params),
                // A star of so many.
                Err(PlanError::Notifies { need, .. }) => {
                    assert_eq!((algorithm.name(), need), ("naive", 2 * 511), "{shape}");
                }
                Err(error) => panic!("{}, {shape}: {error}", algorithm.name()),
            }
        }
    }
}

#[test]
fn more_peers_than_a_thread_can_wait_for_are_refused_by_every_rank() {
    let params = |groups: Option<Arc<[u32]>>| Params {
        scratch_bytes: 1 << 20,
        slice_bytes: 64 << 10,
        groups,
        flows: 1,
    };
    let hierarchical = by_name("hierarchical").unwrap();
    let of = |ranks| shape(Operation::AllGather, ranks, 7, DataType::I32, false);
    // One group, and one of all but a single rank.
    let uneven = (0..512).map(|rank| u32::from(rank == 99)).collect();
    for groups in [None, Some(uneven)] {
        for rank in [0, 98, 99, 511] {
            let error = hierarchical
                .plan_rank(&of(512), &params(groups.clone()), Rank(rank))
                .unwrap_err();
            assert!(
                matches!(error, PlanError::Notifies { limit: 640, .. }),
                "{error}"
            );
        }
    }
    // As many as there may be.
    check(&plan(hierarchical, &of(321), &params(None)), &params(None));
    let error = hierarchical.plan(&of(322), &params(None)).unwrap_err();
    assert!(
        matches!(error, PlanError::Notifies { need: 642, .. }),
        "{error}"
    );
}

fn prove_once(ranks: u32, count: u64, scratch_bytes: u64) {
    let params = Params {
        scratch_bytes,
        slice_bytes: 4096,
        groups: None,
        flows: 1,
    };
    for algorithm in algorithms() {
        for operation in operations(ranks) {
            let shape = shape(
                operation,
                ranks,
                count,
                DataType::I32,
                ranks.is_multiple_of(2),
            );
            let uneven = uneven(&shape);
            for shape in [Some(shape), uneven].into_iter().flatten() {
                if algorithm.supports(&shape) {
                    check(&plan(*algorithm, &shape, &params), &params);
                }
            }
        }
    }
}

/// Numbers of elements and bytes around the borders of 31 and of 32 bits, with as much scratch
/// memory as it takes in one piece, and in many slices.
#[test]
fn counts_beyond_32_bits() {
    let mut proven = 0;
    for (scratch_bytes, slice_bytes) in [(1 << 40, 1 << 40), (1 << 29, 1 << 28)] {
        let params = Params {
            scratch_bytes,
            slice_bytes,
            groups: None,
            flows: 1,
        };
        for ranks in [2, 3] {
            for count in [
                (1 << 31) - 1,
                1 << 31,
                (1 << 32) - 1,
                1 << 32,
                (1 << 33) + 7,
            ] {
                for (dtype, in_place) in [(DataType::U8, true), (DataType::F32, false)] {
                    for algorithm in algorithms() {
                        for operation in operations(ranks) {
                            let even = shape(operation, ranks, count, dtype, in_place);
                            let uneven = uneven(&even);
                            for shape in [Some(even), uneven].into_iter().flatten() {
                                if algorithm.supports(&shape) {
                                    let plan = plan(*algorithm, &shape, &params);
                                    check(&plan, &params);
                                    proven += 1;
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(proven > 1000, "only {proven} plans");
}

/// Groups of one size, of several, one in each other, and of one rank each.
#[test]
fn groups_of_all_kinds() {
    let layouts: [&[u32]; 10] = [
        &[0, 0],
        &[4, 1],
        &[0, 0, 1],
        &[0, 1, 0, 1],
        &[0, 1, 2, 3],
        &[2, 2, 2, 0, 0],
        &[0, 1, 1, 1, 1, 1],
        &[0, 1, 2, 0, 1, 2, 0, 2],
        &[0, 0, 0, 1, 1, 1, 2, 2, 2],
        &[5, 5, 5, 5, 5, 9, 9, 9, 9, 9, 9, 9, 1, 1, 3],
    ];
    for layout in layouts {
        let ranks = u32::try_from(layout.len()).unwrap();
        let params = Params {
            scratch_bytes: 5120,
            slice_bytes: 512,
            groups: Some(layout.into()),
            flows: 1,
        };
        for algorithm in algorithms() {
            for operation in operations(ranks) {
                for (count, in_place) in [(1, true), (97, false), (600, true), (1021, false)] {
                    let shape = shape(operation, ranks, count, DataType::I16, in_place);
                    let uneven = uneven(&shape);
                    for shape in [Some(shape), uneven].into_iter().flatten() {
                        if algorithm.supports(&shape) {
                            check(&plan(*algorithm, &shape, &params), &params);
                        }
                    }
                }
            }
        }
    }
}

/// What a rank sends to other groups does not grow with the number of ranks of its own.
#[test]
fn little_goes_from_group_to_group() {
    let params = Params {
        scratch_bytes: 16 << 10,
        slice_bytes: 16 << 10,
        groups: Some([0, 0, 0, 0, 1, 1, 1, 1].into()),
        flows: 1,
    };
    let shape = shape(Operation::AllReduce, 8, 4096, DataType::F32, false);
    let proof = prove(&plan(by_name("hierarchical").unwrap(), &shape, &params));
    let over = |from: Rank, to: Rank| (from.0 < 4) != (to.0 < 4);
    let across: u64 = proof
        .channels
        .iter()
        .filter(|channel| over(channel.from, channel.to))
        .map(|channel| channel.bytes_written)
        .sum();
    // Half of the buffer to be combined and half of the result, each way.
    assert_eq!(across, 2 * shape.count_bytes());
}

/// Operations in a row on two halves, in an order chosen from a seed, with nothing between them.
#[test]
fn operations_may_follow_each_other_on_two_halves() {
    for ranks in [2, 3, 5] {
        let mut plans = Vec::new();
        // Messages of two kinds do not follow each other with nothing between them.
        let all = algorithms().iter().filter(|a| a.name() != "handshake");
        for algorithm in all {
            for operation in operations(ranks) {
                for count in [3, 700] {
                    let shape = shape(operation, ranks, count, DataType::I32, count == 3);
                    let uneven = uneven(&shape);
                    for shape in [Some(shape), uneven].into_iter().flatten() {
                        if algorithm.supports(&shape) {
                            plans.push(plan(*algorithm, &shape, &PARAMS));
                        }
                    }
                }
            }
        }
        let mut random = 0x2545_f491_4f6c_dd1d_u64 + u64::from(ranks);
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            usize::try_from(random >> 33).unwrap()
        };
        for _ in 0..40 {
            let row: Vec<&Plan> = (0..6).map(|_| &plans[next() % plans.len()]).collect();
            if let Err(finding) = verify_sequence(&row) {
                let names: Vec<String> = row
                    .iter()
                    .map(|plan| format!("{} {}", plan.algorithm, plan.shape))
                    .collect();
                panic!("{names:#?}: {finding}");
            }
        }
        for plan in &plans {
            verify_sequence(&[plan; 5])
                .unwrap_or_else(|finding| panic!("{}: {finding}", plan.shape));
        }
    }
}

/// Messages of every length follow each other through the same inbox, though each is cut for
/// itself.
#[test]
fn messages_of_different_lengths_follow_each_other() {
    let operation = Operation::SendRecv {
        from: Rank(1),
        to: Rank(0),
    };
    for algorithm in ["pair", "handshake"].map(|name| by_name(name).unwrap()) {
        messages_follow_each_other(algorithm, operation);
    }
}

fn messages_follow_each_other(algorithm: &dyn Algorithm, operation: Operation) {
    let plans: Vec<Plan> = [1, 64, 1000, 1023, 1024, 1025, 1154, 2048, 2049, 5000]
        .into_iter()
        .map(|count| {
            let shape = shape(operation, 2, count, DataType::U8, false);
            algorithm.plan(&shape, &PARAMS).unwrap()
        })
        .collect();
    for first in &plans {
        for second in &plans {
            verify_sequence(&[first, second, first])
                .unwrap_or_else(|finding| panic!("{}, {}: {finding}", first.shape, second.shape));
        }
    }
}

/// The rule is needed: a plan that lets ranks leave early may not be followed on the same half.
#[test]
fn a_plan_that_does_not_synchronise_may_not_follow_itself() {
    use hcomm_coll::plan::{Loc, RankPlan, Task};
    let shape = shape(
        Operation::Broadcast { root: Rank(0) },
        2,
        4,
        DataType::I32,
        true,
    );
    let write = Task::Write {
        peer: Rank(1),
        dst: Loc::scratch(0),
        src: Loc::input(0),
        bytes: 16,
        notify: Some(0),
    };
    let wait = Task::Wait {
        peer: Rank(0),
        notify: 0,
    };
    let copy = Task::Copy {
        dst: Loc::output(0),
        src: Loc::scratch(0),
        bytes: 16,
    };
    let plan = Plan {
        format: hcomm_coll::plan::PlanFormat::V1,
        algorithm: "push".to_owned(),
        shape,
        initial_credits: Vec::new(),
        ranks: vec![
            RankPlan {
                threads: vec![vec![write]],
                scratch_bytes: 0,
            },
            RankPlan {
                threads: vec![vec![wait, copy]],
                scratch_bytes: 16,
            },
        ],
    };
    let proof = prove(&plan);
    assert!(!proof.synchronising && proof.quiescent);
    verify_sequence(&[&plan, &plan]).expect("two halves, two operations");
    let finding = verify_sequence(&[&plan, &plan, &plan]).unwrap_err();
    assert!(
        finding.to_string().contains("no notify orders"),
        "{finding}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Any shape with any room gives a plan that is right, or an error; never a panic.
    #[test]
    fn any_room(
        which in 0..32usize,
        ranks in 1..10u32,
        count in prop_oneof![0..3000u64, any::<u64>()],
        dtype in 0..12usize,
        in_place: bool,
        differ: bool,
        scratch_bytes in prop_oneof![0..10_000u64, any::<u64>()],
        slice_bytes in prop_oneof![0..3000u64, any::<u64>()],
        groups in proptest::option::of(proptest::collection::vec(0..4u32, 9)),
    ) {
        let operations = operations(ranks);
        let operation = operations[which % operations.len()];
        let even = shape(operation, ranks, count, DataType::ALL[dtype], in_place);
        let shape = uneven(&even).filter(|_| differ).unwrap_or(even);
        let params = Params { scratch_bytes, slice_bytes, groups: groups.map(|groups| groups[..ranks as usize].into()), flows: 1 };
        for algorithm in algorithms() {
            if !algorithm.supports(&shape) {
                continue;
            }
            // Plans of huge buffers in small slices are right as well, but very long.
            if count > 3000 && (scratch_bytes.min(slice_bytes) >> 40) == 0 {
                continue;
            }
            match algorithm.plan(&shape, &params) {
                Ok(plan) => check(&plan, &params),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }
}
