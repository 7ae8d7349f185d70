//! Operations in several flows: every algorithm, each of its parts on a thread of its own.

#![allow(
    clippy::unwrap_used,
    reason = "a test ends at whatever it does not expect"
)]

#[allow(dead_code, reason = "the search over all orders uses the rest")]
mod machine;
mod shapes;

use hcomm_coll::algorithms::{Params, algorithms};
use hcomm_coll::plan::{Operation, Plan, Shape, Task};
use hcomm_coll::verify::{verify, verify_sequence};
use hcomm_types::{DataType, Reduction};
use machine::run;
use shapes::operations;

fn plans(ranks: u32, flows: u32, counts: &[u64]) -> Vec<Plan> {
    let params = Params {
        scratch_bytes: 64 << 10,
        slice_bytes: 512,
        groups: None,
        flows,
    };
    let mut plans = Vec::new();
    for algorithm in algorithms() {
        for operation in operations(ranks) {
            for (&count, in_place) in counts.iter().flat_map(|n| [(n, false), (n, true)]) {
                let shape = Shape {
                    operation,
                    ranks,
                    count: count.into(),
                    dtype: DataType::I32,
                    redop: Reduction::Avg,
                    in_place,
                };
                if algorithm.supports(&shape) {
                    plans.push(algorithm.plan(&shape, &params).unwrap());
                }
            }
        }
    }
    plans
}

fn threads(plan: &Plan) -> usize {
    plan.ranks
        .iter()
        .map(|rank| rank.threads.len())
        .max()
        .unwrap_or(0)
}

#[test]
fn every_algorithm_is_right_in_any_number_of_flows() {
    for ranks in [2, 3, 4, 5] {
        for flows in [2, 3, 4] {
            for plan in plans(ranks, flows, &[1, 17, 400, 3001]) {
                let name = format!("{} for {} in {flows} flows", plan.algorithm, plan.shape);
                let proof = verify(&plan).unwrap_or_else(|finding| panic!("{name}: {finding}"));
                let is_message = matches!(plan.shape.operation, Operation::SendRecv { .. });
                assert!(proof.synchronising || is_message, "{name}");
                assert!(threads(&plan) <= flows as usize, "{name}");
            }
        }
    }
}

#[test]
fn large_ones_have_as_many_threads_as_flows_and_small_ones_fewer() {
    let of = |count| {
        let all = plans(3, 4, &[count]);
        let ring = |plan: &Plan| plan.algorithm == "ring" && plan.shape.operation.reduces();
        threads(all.iter().find(|plan| ring(plan)).unwrap())
    };
    // Sixteen elements are a line.
    assert_eq!(
        [of(1), of(16), of(17), of(48), of(49), of(1000)],
        [1, 1, 2, 3, 4, 4]
    );
}

#[test]
fn flows_of_one_operation_follow_those_of_another() {
    for ranks in [2, 3] {
        let (two, three) = (plans(ranks, 2, &[400]), plans(ranks, 3, &[3001]));
        for (first, second) in two.iter().zip(&three) {
            let rows = first.initial_credits.is_empty() && !first.has_packets();
            if rows {
                verify_sequence(&[first, second, first]).unwrap();
            }
        }
    }
}

#[test]
fn a_lost_task_of_any_flow_is_found() {
    let all = plans(3, 3, &[400]);
    let ring = all
        .iter()
        .filter(|plan| plan.algorithm == "ring" && !plan.shape.in_place);
    for plan in ring {
        for thread in 0..threads(plan) {
            let mut damaged = plan.clone();
            let tasks = &mut damaged.ranks[1].threads[thread];
            let Some(at) = tasks
                .iter()
                .position(|task| !matches!(task, Task::Divide { .. }))
            else {
                continue;
            };
            tasks.remove(at);
            verify(&damaged).unwrap_err();
        }
    }
}

#[test]
fn flows_carried_out_on_numbers_give_what_a_loop_gives() {
    let mut seed = 7;
    for ranks in [2, 3, 4] {
        for plan in plans(ranks, 3, &[77, 1021]) {
            seed += 1;
            run(&plan, seed);
        }
    }
}
