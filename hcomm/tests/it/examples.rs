//! The examples, as ranks of one process.

use crate::team;

#[path = "../../examples/custom_all_reduce.rs"]
#[allow(dead_code, reason = "its main")]
mod custom_all_reduce;

#[path = "../../examples/overlap.rs"]
#[allow(dead_code, reason = "its main")]
mod overlap;

#[path = "../../examples/point_to_point.rs"]
#[allow(dead_code, reason = "its main")]
mod point_to_point;

#[test]
fn an_algorithm_of_ones_own_is_proven_and_right() {
    for ranks in [2, 3] {
        team::run(ranks, |comm| custom_all_reduce::race(comm).unwrap());
    }
}

#[test]
fn both_ends_of_a_stream_see_the_same_bytes() {
    let sums = team::run(2, |comm| {
        let sum = point_to_point::operate(&comm).unwrap();
        comm.close().unwrap();
        sum
    });
    assert!(sums[0] > 0 && sums[0] == sums[1], "{sums:?}");
}

/// The example compares its result with the definition itself; how long it took is not looked at.
#[test]
fn what_a_worker_adds_up_beside_a_computation_is_right() {
    team::run(2, |comm| {
        overlap::train(&comm, hcomm::CpuTs::worker(0), 1).unwrap();
        comm.close().unwrap();
    });
}
