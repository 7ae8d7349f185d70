//! Ranks that do not call the same: each gets an error that shows what each has called.

use hcomm::algorithms::{Params, by_name};
use hcomm::plan::Operation;
use hcomm::{Communicator, DataType, ErrorKind, Rank, ReduceOp};

use crate::collectives::all_reduce;
use crate::team;

type Call = fn(&Communicator) -> hcomm::Result<()>;

fn sum_of(comm: &Communicator, count: usize) -> hcomm::Result<()> {
    comm.all_reduce_in_place(&mut vec![1.0f32; count], ReduceOp::Sum)
}

/// What the last rank calls, and what all others do, with a word of each that the errors must show.
const PAIRS: &[(Call, &str, Call, &str)] = &[
    // Of the same bytes over the same lines: nothing but the fingerprint tells.
    (
        |comm| sum_of(comm, 2),
        "fp32 (sum)",
        |comm| comm.all_reduce_in_place(&mut [1.0f32; 2], ReduceOp::Max),
        "fp32 (max)",
    ),
    (
        |comm| sum_of(comm, 2),
        "2 fp32",
        |comm| comm.all_reduce_in_place(&mut [1i32; 2], ReduceOp::Sum),
        "2 int32",
    ),
    (
        |comm| sum_of(comm, 2),
        "2 fp32",
        |comm| sum_of(comm, 3),
        "3 fp32",
    ),
    (
        |comm| sum_of(comm, 1000),
        "1000 fp32",
        |comm| sum_of(comm, 1001),
        "1001 fp32",
    ),
    (
        |comm| sum_of(comm, 1_000_000),
        "1000000 fp32",
        |comm| sum_of(comm, 1_000_001),
        "1000001 fp32",
    ),
    (
        |comm| comm.broadcast(&mut [1u8; 5], Rank(0)),
        "broadcast from rank 0 of 5",
        |comm| comm.broadcast(&mut [1u8; 5], Rank(1)),
        "broadcast from rank 1 of 5",
    ),
    (
        |comm| comm.all_gather(&[1u8; 4], &mut vec![0; 4 * comm.size() as usize]),
        "all_gather",
        |comm| {
            comm.all_to_all(
                &vec![1u8; 4 * comm.size() as usize],
                &mut vec![0; 4 * comm.size() as usize],
            )
        },
        "all_to_all",
    ),
    // By other ways: one waits for a packet, the other for a notify.
    (
        |comm| sum_of(comm, 2),
        "2 fp32",
        |comm| sum_of(comm, 1_000_000),
        "1000000 fp32",
    ),
    (
        |comm| comm.barrier(),
        "barrier",
        |comm| sum_of(comm, 1),
        "all_reduce of 1",
    ),
    (
        |comm| comm.barrier(),
        "barrier",
        |comm| comm.reduce(&[1u16; 70_000], &mut [0; 70_000], ReduceOp::Min, Rank(0)),
        "reduce to rank 0 of 70000 uint16 (min)",
    ),
    // Nothing to do for one of them, which finds out in its next call.
    (
        |comm| sum_of(comm, 0).and_then(|()| comm.barrier()),
        "barrier",
        |comm| sum_of(comm, 9).and_then(|()| comm.barrier()),
        "all_reduce of 9",
    ),
    // Of one operation, whose counts only pairs know.
    (
        |comm| {
            let size = comm.size() as usize;
            let counts = vec![2; size];
            let mut output = vec![0u8; 2 * size];
            comm.all_to_all_v(&vec![1u8; 2 * size], &counts, &mut output, &counts)
        },
        "all_to_all",
        |comm| {
            let size = comm.size() as usize;
            let counts = vec![3; size];
            let mut output = vec![0u8; 3 * size];
            comm.all_to_all_v(&vec![1u8; 3 * size], &counts, &mut output, &counts)
        },
        "all_to_all",
    ),
    // What goes by messages: root, length, type, and beside something that goes by plan.
    (
        |comm| comm.broadcast(&mut vec![1u8; 9_000], Rank(0)),
        "broadcast from rank 0 of 9000",
        |comm| comm.broadcast(&mut vec![1u8; 9_000], Rank(1)),
        "broadcast from rank 1 of 9000",
    ),
    (
        |comm| comm.broadcast(&mut vec![1u8; 9_000], Rank(0)),
        "9000 uint8",
        |comm| comm.broadcast(&mut vec![1u8; 9_001], Rank(0)),
        "9001 uint8",
    ),
    (
        |comm| comm.broadcast(&mut [1u32; 16], Rank(0)),
        "16 uint32",
        |comm| comm.broadcast(&mut [1f32; 16], Rank(0)),
        "16 fp32",
    ),
    (
        |comm| comm.broadcast(&mut vec![1u8; 60_000], Rank(0)),
        "broadcast from rank 0 of 60000",
        |comm| sum_of(comm, 15_000),
        "all_reduce of 15000",
    ),
    (
        |comm| comm.broadcast(&mut [1u8; 100], Rank(0)),
        "broadcast from rank 0 of 100",
        |comm| comm.broadcast(&mut vec![1u8; 2_000_000], Rank(0)),
        "broadcast from rank 0 of 2000000",
    ),
    // Too long for messages to several.
    (
        |comm| comm.broadcast(&mut vec![1u8; 2_000_000], Rank(0)),
        "broadcast from rank 0 of 2000000",
        |comm| comm.broadcast(&mut vec![1u8; 2_000_000], Rank(1)),
        "broadcast from rank 1 of 2000000",
    ),
    // Roots.
    (
        |comm| comm.reduce(&[1u16; 9], &mut [0; 9], ReduceOp::Sum, Rank(0)),
        "reduce to rank 0",
        |comm| comm.reduce(&[1u16; 9], &mut [0; 9], ReduceOp::Sum, Rank(1)),
        "reduce to rank 1",
    ),
    (
        |comm| gather_to(comm, 5_000, 0),
        "gather to rank 0",
        |comm| gather_to(comm, 5_000, 1),
        "gather to rank 1",
    ),
    (
        |comm| scatter_from(comm, 300_000, 0),
        "scatter from rank 0",
        |comm| scatter_from(comm, 300_000, 1),
        "scatter from rank 1",
    ),
    // Operations of one size and one root.
    (
        |comm| gather_to(comm, 700, 0),
        "gather to rank 0",
        |comm| scatter_from(comm, 700, 0),
        "scatter from rank 0",
    ),
    (
        |comm| comm.reduce(&[1u16; 700], &mut [0; 700], ReduceOp::Sum, Rank(0)),
        "reduce to rank 0",
        |comm| comm.broadcast(&mut [1u16; 700], Rank(0)),
        "broadcast from rank 0",
    ),
    (
        |comm| {
            let size = comm.size() as usize;
            comm.reduce_scatter(&vec![1i64; 300 * size], &mut [0; 300], ReduceOp::Sum)
        },
        "reduce_scatter of 300",
        |comm| {
            let size = comm.size() as usize;
            comm.all_gather(&[1i64; 300], &mut vec![0; 300 * size])
        },
        "all_gather of 300",
    ),
    // Type and reduction of large ones.
    (
        |comm| sum_of(comm, 900_000),
        "900000 fp32",
        |comm| comm.all_reduce_in_place(&mut vec![1u32; 900_000], ReduceOp::Sum),
        "900000 uint32",
    ),
    (
        |comm| sum_of(comm, 20_000),
        "fp32 (sum)",
        |comm| comm.all_reduce_in_place(&mut vec![1f32; 20_000], ReduceOp::Prod),
        "fp32 (prod)",
    ),
    // In another number of elements, but the same bytes.
    (
        |comm| comm.all_reduce_in_place(&mut [1u64; 64], ReduceOp::Sum),
        "64 uint64",
        |comm| comm.all_reduce_in_place(&mut [1u32; 128], ReduceOp::Sum),
        "128 uint32",
    ),
    // Counts of each rank: one that is larger, two that are swapped, and one for all.
    (
        |comm| all_gather_of(comm, &[5, 7]),
        "all_gather",
        |comm| all_gather_of(comm, &[5, 8]),
        "all_gather",
    ),
    (
        |comm| all_gather_of(comm, &[70_000, 70_001]),
        "all_gather",
        |comm| all_gather_of(comm, &[70_001, 70_000]),
        "all_gather",
    ),
    (
        |comm| reduce_scatter_of(comm, &[300, 0]),
        "reduce_scatter",
        |comm| reduce_scatter_of(comm, &[300, 1]),
        "reduce_scatter",
    ),
    (
        |comm| all_gather_of(comm, &[40, 40]),
        "all_gather",
        |comm| {
            let size = comm.size() as usize;
            comm.all_gather(&[1u8; 40], &mut vec![0; 40 * size])
        },
        "all_gather of 40 uint8",
    ),
    // Who gets more than the other sends, for some of the ranks only.
    (
        |comm| all_to_all_of(comm, 4, 4),
        "all_to_all",
        |comm| all_to_all_of(comm, 4, 900),
        "all_to_all",
    ),
    (
        |comm| all_to_all_of(comm, 50_000, 50_000),
        "all_to_all",
        |comm| all_to_all_of(comm, 49_999, 50_000),
        "all_to_all",
    ),
    // An algorithm that only some have asked for, over the same lines and over others.
    (
        |comm| forced(comm, "mesh_one_shot", 1000),
        "all_reduce of 1000",
        |comm| forced(comm, "mesh_two_shot", 1000),
        "all_reduce of 1000",
    ),
    (
        |comm| forced(comm, "mesh_packet", 2),
        "all_reduce of 2",
        |comm| forced(comm, "ring", 2),
        "all_reduce of 2",
    ),
    (
        |comm| forced(comm, "ring", 500_000),
        "all_reduce of 500000",
        |comm| forced(comm, "halving_doubling", 500_000),
        "all_reduce of 500000",
    ),
    (
        |comm| {
            comm.force_algorithm(Some("binary_tree"))?;
            comm.broadcast(&mut [1u8; 100], Rank(0))
        },
        "broadcast from rank 0",
        |comm| comm.broadcast(&mut [1u8; 100], Rank(0)),
        "broadcast from rank 0",
    ),
    // A plan that only one has.
    (
        |comm| sum_of(comm, 50),
        "all_reduce of 50",
        |comm| {
            let shape = comm.shape(Operation::AllReduce, 50, DataType::F32, ReduceOp::Sum, true);
            let params = Params {
                scratch_bytes: 1 << 16,
                slice_bytes: 1 << 16,
                groups: None,
                flows: 1,
            };
            let plan = by_name("nhr").expect("nhr").plan(&shape, &params);
            comm.use_plan(Some(&plan.expect("a plan")))?;
            sum_of(comm, 50)
        },
        "all_reduce of 50",
    ),
    // One call less, one more.
    (
        |comm| {
            sum_of(comm, 6)
                .and_then(|()| comm.all_gather(&[1u8], &mut vec![0; comm.size() as usize]))
        },
        "all_reduce of 6",
        |comm| comm.all_gather(&[1u8], &mut vec![0; comm.size() as usize]),
        "all_gather",
    ),
];

fn gather_to(comm: &Communicator, count: usize, root: u32) -> hcomm::Result<()> {
    let mut output = vec![0u8; count * comm.size() as usize];
    comm.gather(&vec![1u8; count], &mut output, Rank(root))
}

fn scatter_from(comm: &Communicator, count: usize, root: u32) -> hcomm::Result<()> {
    let input = vec![1u8; count * comm.size() as usize];
    comm.scatter(&input, &mut vec![0u8; count], Rank(root))
}

/// The counts of the first rank and of all others.
fn counts(comm: &Communicator, [first, others]: [usize; 2]) -> Vec<usize> {
    let mut counts = vec![others; comm.size() as usize];
    counts[0] = first;
    counts
}

fn all_gather_of(comm: &Communicator, of: &[usize; 2]) -> hcomm::Result<()> {
    let counts = counts(comm, *of);
    let mut output = vec![0u8; counts.iter().sum()];
    comm.all_gather_v(
        &vec![1u8; counts[comm.rank().index()]],
        &mut output,
        &counts,
    )
}

fn reduce_scatter_of(comm: &Communicator, of: &[usize; 2]) -> hcomm::Result<()> {
    let counts = counts(comm, *of);
    let input = vec![1i32; counts.iter().sum()];
    let mut output = vec![0i32; counts[comm.rank().index()]];
    comm.reduce_scatter_v(&input, &mut output, &counts, ReduceOp::Sum)
}

fn all_to_all_of(comm: &Communicator, sends: usize, receives: usize) -> hcomm::Result<()> {
    let size = comm.size() as usize;
    let (sends, receives) = (vec![sends; size], vec![receives; size]);
    // What it keeps is of one length.
    let (mut sends, own) = (sends, comm.rank().index());
    sends[own] = receives[own];
    let mut output = vec![0u8; receives.iter().sum()];
    comm.all_to_all_v(
        &vec![1u8; sends.iter().sum()],
        &sends,
        &mut output,
        &receives,
    )
}

fn forced(comm: &Communicator, algorithm: &str, count: usize) -> hcomm::Result<()> {
    comm.force_algorithm(Some(algorithm))?;
    sum_of(comm, count)
}

fn disagree(size: u32, pair: usize) {
    let (others, theirs, last, lasts) = PAIRS[pair];
    let errors = team::run(size, move |comm| {
        // Not at the very first call, and with both halves in use.
        for count in [3, 500, 40_000] {
            all_reduce::<f32>(&comm, ReduceOp::Sum, count, true);
        }
        let call = if comm.rank().0 + 1 == size {
            last
        } else {
            others
        };
        let error = call(&comm)
            .and_then(|()| comm.barrier())
            .expect_err("ranks that do not agree");
        // The same from now on.
        let again = comm.barrier().expect_err("it is given up");
        (error, again)
    });
    for (rank, (error, again)) in errors.iter().enumerate() {
        let text = error.to_string();
        let what = format!("pair {pair}, rank {rank} of {size}: {text}");
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{what}");
        assert_eq!(again.kind(), ErrorKind::Mismatch, "{what}; then {again}");
        assert!(text.contains(theirs) && text.contains(lasts), "{what}");
    }
}

#[test]
fn two_ranks_that_do_not_agree_are_told_both_calls() {
    for pair in 0..PAIRS.len() {
        disagree(2, pair);
    }
}

#[test]
fn one_of_four_that_does_not_agree_is_named_to_all() {
    for pair in 0..PAIRS.len() {
        disagree(4, pair);
    }
}

/// Same calls in another order.
#[test]
fn calls_in_another_order_are_found_out() {
    let errors = team::run(3, |comm| {
        let mut data = [1.0f32; 8];
        let call = || {
            if comm.rank() == Rank(1) {
                comm.broadcast(&mut data, Rank(0))?;
                comm.all_reduce_in_place(&mut data, ReduceOp::Sum)
            } else {
                comm.all_reduce_in_place(&mut data, ReduceOp::Sum)?;
                comm.broadcast(&mut data, Rank(0))
            }
        };
        let mut call = call;
        call().and_then(|()| comm.barrier()).unwrap_err()
    });
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("broadcast") && text.contains("all_reduce"),
            "{text}"
        );
    }
}

/// One call too few, and then it leaves: the others are told who has left, not left waiting.
#[test]
fn a_rank_that_leaves_instead_of_calling_is_named() {
    let calls: [Call; 5] = [
        |comm| comm.barrier(),
        |comm| sum_of(comm, 2),
        |comm| sum_of(comm, 1_000_000),
        // By messages: a root that only sends may find out in its next call.
        |comm| {
            comm.broadcast(&mut vec![1u8; 5_000], Rank(0))
                .and_then(|()| comm.barrier())
        },
        |comm| comm.broadcast(&mut vec![1u8; 5_000], Rank(comm.size() - 1)),
    ];
    for size in [2, 4] {
        for (number, call) in calls.into_iter().enumerate() {
            let last = Rank(size - 1);
            let errors = team::run(size, move |comm| {
                all_reduce::<f32>(&comm, ReduceOp::Sum, 500, true);
                if comm.rank() == last {
                    comm.close().expect("it leaves in peace");
                    return None;
                }
                Some(call(&comm).expect_err("not all have called"))
            });
            for error in errors.into_iter().flatten() {
                let what = format!("call {number} on {size} ranks: {error}");
                assert_eq!(error.kind(), ErrorKind::PeerLost, "{what}");
                assert_eq!(error.culprits(), [last], "{what}");
            }
        }
    }
}
