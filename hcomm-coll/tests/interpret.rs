//! Plans carried out on real numbers in random order give what a plain loop gives.

#![allow(
    clippy::unwrap_used,
    reason = "a test ends at whatever it does not expect"
)]

#[allow(dead_code, reason = "the search over all orders uses the rest")]
mod machine;
mod shapes;

use hcomm_coll::algorithms::{Params, algorithms};
use hcomm_coll::plan::Shape;
use hcomm_types::{DataType, Reduction};
use machine::run;
use shapes::{operations, uneven};

fn run_all(ranks: u32, counts: &[u64], dtypes: &[DataType], redops: &[Reduction]) {
    run_grouped(ranks, None, counts, dtypes, redops);
}

fn run_grouped(
    ranks: u32,
    groups: Option<&[u32]>,
    counts: &[u64],
    dtypes: &[DataType],
    redops: &[Reduction],
) {
    let params = Params {
        scratch_bytes: 3072,
        slice_bytes: 512,
        groups: groups.map(Into::into),
        flows: 1,
    };
    let mut seed = u64::from(ranks) << 32;
    for algorithm in algorithms() {
        for operation in operations(ranks) {
            let redops = if operation.reduces() {
                redops
            } else {
                &redops[..1]
            };
            for &redop in redops {
                for &dtype in dtypes {
                    for &count in counts {
                        for in_place in [false, true] {
                            let shape = Shape {
                                operation,
                                ranks,
                                count: count.into(),
                                dtype,
                                redop,
                                in_place,
                            };
                            let uneven = uneven(&shape);
                            for shape in [Some(shape), uneven].into_iter().flatten() {
                                if algorithm.supports(&shape) {
                                    seed += 1;
                                    run(&algorithm.plan(&shape, &params).unwrap(), seed);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_type_and_reduction() {
    run_all(3, &[37], &DataType::ALL, &Reduction::ALL);
}

#[test]
fn one_to_nine_ranks() {
    for ranks in 1..=9 {
        run_all(ranks, &[0, 1, 5, 129], &[DataType::I32], &[Reduction::Sum]);
    }
}

#[test]
fn many_slices() {
    for ranks in [2, 3, 4] {
        run_all(
            ranks,
            &[1021],
            &[DataType::F32, DataType::U8],
            &[Reduction::Max],
        );
    }
}

#[test]
fn groups_of_several_sizes() {
    let layouts: [&[u32]; 4] = [
        &[0, 1, 0],
        &[3, 3, 1, 1],
        &[0, 0, 0, 7, 7, 2],
        &[0, 1, 2, 0, 1, 2, 0, 1, 0],
    ];
    for groups in layouts {
        let (ranks, redops) = (groups.len(), &[Reduction::Sum]);
        let ranks = u32::try_from(ranks).unwrap();
        run_grouped(
            ranks,
            Some(groups),
            &[1, 129, 700],
            &[DataType::I32],
            redops,
        );
    }
}
