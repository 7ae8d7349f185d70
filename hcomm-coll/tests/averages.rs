//! Averages: sums of all ranks that are divided once, in every algorithm.

#![allow(
    clippy::unwrap_used,
    reason = "a test ends at whatever it does not expect"
)]

mod shapes;

use hcomm_coll::algorithms::{Params, algorithms};
use hcomm_coll::plan::{Loc, Operation, Plan, Shape, Task};
use hcomm_coll::verify::{Fault, verify};
use hcomm_types::{DataType, Rank, Reduction};
use shapes::uneven;

const OPERATIONS: [Operation; 4] = [
    Operation::AllReduce,
    Operation::ReduceScatter,
    Operation::Reduce { root: Rank(0) },
    Operation::Reduce { root: Rank(1) },
];

/// Plans of all algorithms for averages over so many ranks.
fn plans(ranks: u32, counts: &[u64]) -> Vec<Plan> {
    let params = Params {
        scratch_bytes: 4096,
        slice_bytes: 512,
        groups: None,
        flows: 1,
    };
    let mut plans = Vec::new();
    for algorithm in algorithms() {
        for operation in OPERATIONS {
            for (&count, in_place) in counts.iter().flat_map(|n| [(n, false), (n, true)]) {
                let even = Shape {
                    operation,
                    ranks,
                    count: count.into(),
                    dtype: DataType::F32,
                    redop: Reduction::Avg,
                    in_place,
                };
                if even.validate().is_err() {
                    continue;
                }
                let uneven = uneven(&even);
                for shape in [Some(even), uneven].into_iter().flatten() {
                    if algorithm.supports(&shape) {
                        plans.push(algorithm.plan(&shape, &params).unwrap());
                    }
                }
            }
        }
    }
    plans
}

fn divisions(plan: &Plan) -> Vec<(usize, usize, usize)> {
    let mut found = Vec::new();
    for (rank, own) in plan.ranks.iter().enumerate() {
        for (thread, tasks) in own.threads.iter().enumerate() {
            for (index, task) in tasks.iter().enumerate() {
                if matches!(task, Task::Divide { .. }) {
                    found.push((rank, thread, index));
                }
            }
        }
    }
    found
}

#[test]
fn every_algorithm_divides_each_sum_once() {
    for ranks in 1..=9 {
        for plan in plans(ranks, &[0, 1, 37, 700]) {
            let proof = verify(&plan).unwrap_or_else(|finding| {
                panic!("{} of {}: {finding}", plan.algorithm, plan.shape)
            });
            let moves = ranks > 1 && !plan.is_empty();
            assert_eq!(!divisions(&plan).is_empty(), moves, "{}", plan.shape);
            assert!(proof.same_bits || plan.shape.operation != Operation::AllReduce);
            // The order of a sum is that of the average.
            let mut sums = plan.clone();
            sums.shape.redop = Reduction::Sum;
            for own in &mut sums.ranks {
                for tasks in &mut own.threads {
                    tasks.retain(|task| !matches!(task, Task::Divide { .. }));
                }
            }
            assert_eq!(verify(&sums).unwrap().rank_order, proof.rank_order);
        }
    }
}

#[test]
fn a_division_too_many_too_few_or_of_something_else_is_found() {
    for ranks in [2, 3, 4] {
        for plan in plans(ranks, &[37, 700]) {
            for (rank, thread, index) in divisions(&plan) {
                let mut without = plan.clone();
                without.ranks[rank].threads[thread].remove(index);
                let fault = *verify(&without).unwrap_err().fault;
                // The sum is a result, or is combined with averages of others.
                assert!(matches!(fault, Fault::WrongResult { .. }), "{fault}");
                let mut twice = plan.clone();
                let division = twice.ranks[rank].threads[thread][index];
                twice.ranks[rank].threads[thread].insert(index, division);
                let fault = *verify(&twice).unwrap_err().fault;
                assert!(matches!(fault, Fault::DividesPart { .. }), "{fault}");
            }
        }
    }
}

#[test]
fn only_sums_of_all_ranks_are_divided_and_only_for_averages() {
    let mut plan = plans(2, &[37])
        .into_iter()
        .find(|plan| plan.algorithm == "mesh_one_shot" && !plan.shape.in_place)
        .unwrap();
    let (rank, thread, index) = divisions(&plan)[0];
    let division = plan.ranks[rank].threads[thread][index];
    let mut sums = plan.clone();
    sums.shape.redop = Reduction::Sum;
    let fault = *verify(&sums).unwrap_err().fault;
    assert!(matches!(fault, Fault::DividesNoAverage), "{fault}");
    // The input, copied to the output first.
    let tasks = &mut plan.ranks[rank].threads[thread];
    tasks.splice(
        0..0,
        [
            Task::Copy {
                dst: Loc::output(0),
                src: Loc::input(0),
                bytes: 148,
            },
            division,
        ],
    );
    let fault = *verify(&plan).unwrap_err().fault;
    let Fault::DividesPart { found } = &fault else {
        panic!("{fault}");
    };
    assert_eq!(found, "the input of rank 0");
}
