//! With `HCOMM_DETERMINISTIC=1` the bits of a reduction depend on its inputs alone.

use hcomm::{Communicator, ErrorKind, Options, ReduceOp, Settings};

use crate::random::Random;
use crate::team;

/// What a rank contributes at a position: numbers whose sum depends on the order.
fn term(rank: u32, position: usize) -> f32 {
    let mut random = Random::new(u64::from(rank) << 32 | position as u64);
    let magnitude = [1e-3f32, 1.0, 3e4, 7e7][random.below(4)];
    magnitude * (random.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0)
}

/// The sum in rank order.
fn sum(ranks: u32, position: usize) -> f32 {
    (1..ranks).fold(term(0, position), |sum, rank| sum + term(rank, position))
}

fn all_bits_are_those_of_rank_order(comm: &Communicator) {
    let (rank, size) = (comm.rank().0, comm.size());
    for algorithm in [None, Some("mesh_one_shot"), Some("mesh_two_shot")] {
        comm.force_algorithm(algorithm).unwrap();
        for count in [1, 14, 500, 9_000, 70_000, 300_000] {
            let mut data: Vec<f32> = (0..count).map(|at| term(rank, at)).collect();
            comm.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
            let wrong = (0..count).find(|&at| data[at].to_bits() != sum(size, at).to_bits());
            assert_eq!(wrong, None, "{algorithm:?}, {count} elements");
        }
    }
    comm.force_algorithm(None).unwrap();
}

fn options(deterministic: bool) -> Options {
    Options::new(Settings::default().with_deterministic(deterministic))
}

#[test]
fn bits_do_not_depend_on_algorithm_or_size() {
    for size in [2, 3, 5] {
        team::run_with(size, &options(true), |comm| {
            all_bits_are_those_of_rank_order(&comm);
            comm.close().unwrap();
        });
    }
}

#[test]
fn what_combines_in_another_order_is_refused_only_if_asked() {
    for deterministic in [true, false] {
        team::run_with(3, &options(deterministic), move |comm| {
            let mut data = [term(comm.rank().0, 0); 100];
            comm.force_algorithm(Some("ring")).unwrap();
            let reduced = comm.all_reduce_in_place(&mut data, ReduceOp::Sum);
            if deterministic {
                let error = reduced.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                assert!(error.to_string().contains("rank order"), "{error}");
            } else {
                reduced.unwrap();
            }
            // What combines nothing is admitted.
            let mut all = [0.0f32; 300];
            comm.all_gather(&data, &mut all).unwrap();
            comm.close().unwrap();
        });
    }
}
