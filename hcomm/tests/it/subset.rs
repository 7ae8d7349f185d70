//! Communicators of some of the ranks of another one.

use hcomm::{Communicator, ErrorKind, Rank, ReduceOp};

use crate::collectives::{all_gather, all_reduce};
use crate::job::{self, Job};
use crate::team;

/// Even and odd ranks, then all but one in reverse; each group works by itself, and all together.
pub(crate) fn groups(comm: &Communicator) {
    let (me, size) = (comm.rank().0, comm.size());
    let parity = comm.split(Some(me % 2), 0).unwrap().unwrap();
    assert_eq!(
        (parity.rank().0, parity.size()),
        (me / 2, (size + 1 - me % 2) / 2)
    );
    all_reduce::<i32>(&parity, ReduceOp::Sum, 3001, false);
    let rest = comm.split((me != 1).then_some(7), size - me).unwrap();
    assert_eq!(rest.is_none(), me == 1);
    if let Some(rest) = &rest {
        // From the last one to the first.
        let before = (me + 1..size).filter(|rank| *rank != 1).count();
        assert_eq!((rest.rank().index(), rest.size()), (before, size - 1));
        for count in [1, 1000, 70_000] {
            all_gather::<u16>(rest, count, true);
            // One after the other, on all that a rank is in.
            all_reduce::<f32>(&parity, ReduceOp::Sum, count, true);
        }
        rest.barrier().unwrap();
    } else {
        for count in [1, 1000, 70_000] {
            all_reduce::<f32>(&parity, ReduceOp::Sum, count, true);
        }
    }
    all_reduce::<i64>(comm, ReduceOp::Max, 100, true);
    // Of a communicator that is one of some ranks itself.
    let alone = parity.subset(&[Rank(0)]).unwrap();
    assert_eq!(alone.is_some(), parity.rank() == Rank(0));
    if let Some(alone) = alone {
        all_reduce::<u8>(&alone, ReduceOp::Sum, 5, false);
        alone.close().unwrap();
    }
    if let Some(rest) = rest {
        rest.close().unwrap();
    }
    // It ends, and those that it was made of go on.
    parity.close().unwrap();
    comm.barrier().unwrap();
}

#[test]
fn of_ranks_as_threads() {
    for size in [2, 3, 5] {
        team::run(size, |comm| {
            groups(&comm);
            comm.close().unwrap();
        });
    }
}

#[test]
fn of_ranks_as_processes() {
    job::all_succeed(&mut Job::new("subset", 4).start());
}

#[test]
fn one_fails_and_the_others_go_on() {
    team::run(4, |comm| {
        let me = comm.rank().0;
        let half = comm.split(Some(me / 2), me).unwrap().unwrap();
        half.barrier().unwrap();
        if me == 0 {
            half.aborter().abort("by the test");
        }
        if me < 2 {
            let error = half.barrier().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
        } else {
            all_reduce::<f32>(&half, ReduceOp::Sum, 1000, false);
        }
        all_reduce::<i32>(&comm, ReduceOp::Sum, 1000, false);
        // Made anew, as often as one likes.
        let again = comm.split(Some(me / 2), me).unwrap().unwrap();
        all_reduce::<f32>(&again, ReduceOp::Sum, 1000, true);
        again.close().unwrap();
        comm.close().unwrap();
    });
}

/// The costs by which ways are chosen are those of the communicator that a new one is made of.
#[test]
fn costs_go_on() {
    team::run(2, |comm| {
        let mut machine = comm.costs().0;
        machine.call_ns += 7;
        comm.use_costs(&machine);
        let pair = comm.split(Some(0), 0).unwrap().unwrap();
        assert_eq!(pair.costs().0, machine);
        pair.close().unwrap();
        comm.close().unwrap();
    });
}

#[test]
fn lists_that_make_no_sense_or_differ() {
    team::run(3, |comm| {
        let refused = |ranks: &[Rank], words: &str| {
            let error = comm.subset(ranks).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(words), "{error}");
        };
        refused(&[], "at least 1 rank");
        refused(&[Rank(1), Rank(3)], "no rank 3 among 3");
        refused(&[Rank(1), Rank(0), Rank(1)], "rank 1 is named twice");
        let mine = if comm.rank() == Rank(2) {
            [Rank(1), Rank(0)]
        } else {
            [Rank(0), Rank(1)]
        };
        let error = comm.subset(&mine).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(error.to_string().contains("names other ranks"), "{error}");
        // One list makes no sense: who gave it is told so, the others that it differs.
        let mine = if comm.rank() == Rank(1) {
            [Rank(0), Rank(9)]
        } else {
            [Rank(0), Rank(1)]
        };
        let kind = comm.subset(&mine).unwrap_err().kind();
        let refused = comm.rank() == Rank(1);
        assert_eq!(
            kind,
            if refused {
                ErrorKind::InvalidArgument
            } else {
                ErrorKind::Mismatch
            }
        );
        // All of them know, so nobody waits, and all goes on.
        let all = comm.subset(&[Rank(2), Rank(0), Rank(1)]).unwrap().unwrap();
        assert_eq!(all.rank().0, (comm.rank().0 + 1) % 3);
        all_reduce::<i32>(&all, ReduceOp::Sum, 10, false);
        all.close().unwrap();
        comm.close().unwrap();
    });
}
