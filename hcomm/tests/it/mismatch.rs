//! Ranks that do not call the same: each gets an error that shows what each has called.

use hcomm::{Communicator, ErrorKind, Rank, ReduceOp};

use crate::collectives::all_reduce;
use crate::team;

type Call = fn(&Communicator) -> hcomm::Result<()>;

fn sum_of(comm: &Communicator, count: usize) -> hcomm::Result<()> {
    comm.all_reduce_in_place(&mut vec![1.0f32; count], ReduceOp::Sum)
}

/// What the last rank calls, and what all others do, with a word of each that the errors must show.
const PAIRS: [(Call, &str, Call, &str); 12] = [
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
];

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
