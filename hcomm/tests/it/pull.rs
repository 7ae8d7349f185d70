//! Collectives that read memory which the callers lend: what becomes of them when a lender gives up,
//! and where nobody can lend.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use hcomm::{Communicator, ErrorKind, Options, Rank, Reduction, Settings};

use crate::team;

const COUNT: usize = 40_000;

fn pulls(comm: &Communicator) {
    comm.force_algorithm(Some("pull")).unwrap();
}

/// The one that comes late finds that the loan is over, and never takes what lies there since.
#[test]
fn who_comes_after_a_lender_has_left_gets_an_error_and_no_bytes() {
    let settings = Settings::default().with_exec_timeout(Duration::from_millis(500));
    let (meeting, gone) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
    team::run_with(2, &Options::new(settings), move |comm| {
        pulls(&comm);
        let me = comm.rank();
        let mut output = vec![7_u32; 2 * COUNT];
        if me == Rank(0) {
            let mut input = vec![1_u32; COUNT];
            let error = comm.all_gather(&input, &mut output).unwrap_err();
            assert!(error.culprits().contains(&Rank(1)), "{error}");
            // The caller has its memory back.
            input.fill(2);
            gone.store(true, Ordering::Release);
            meeting.wait();
            // It stays, so that nothing but the loan is gone.
            meeting.wait();
            return;
        }
        meeting.wait();
        assert!(gone.load(Ordering::Acquire));
        let error = comm.all_gather(&vec![3; COUNT], &mut output).unwrap_err();
        assert!(error.to_string().contains("rank 0"), "{error}");
        assert!(output[..COUNT].iter().all(|word| *word == 7));
        meeting.wait();
    });
}

#[test]
fn large_calls_of_all_kinds_take_turns_with_small_ones() {
    team::run(3, |comm| {
        pulls(&comm);
        let me = comm.rank().0;
        let ranks = 3;
        for round in 1..6_u64 {
            let count = 1000 * round as usize + 1;
            let own = |rank: u32| u64::from(rank + 1) * round;
            let input = vec![own(me); ranks * count];
            let mut sums = vec![0; ranks * count];
            comm.all_reduce(&input, &mut sums, Reduction::Sum).unwrap();
            let sum: u64 = (0..3).map(own).sum();
            assert!(sums.iter().all(|found| *found == sum));
            comm.all_reduce_in_place(&mut sums, Reduction::Max).unwrap();
            assert!(sums.iter().all(|found| *found == sum));
            let mut parts: Vec<u64> = (0..ranks * count)
                .map(|at| u64::from(me) << 32 | (at / count) as u64)
                .collect();
            // One in place, the others not.
            if me == 1 {
                comm.all_to_all_in_place(&mut parts).unwrap();
            } else {
                let sent = parts.clone();
                comm.all_to_all(&sent, &mut parts).unwrap();
            }
            let expected = |at: usize| ((at / count) as u64) << 32 | u64::from(me);
            assert!((0..ranks * count).all(|at| parts[at] == expected(at)));
            comm.barrier().unwrap();
        }
        comm.close().unwrap();
    });
}

#[test]
fn links_that_reach_no_memory_of_the_caller_refuse_it() {
    let options = Options::default().transports("delay");
    team::run_with(2, &options, |comm| {
        pulls(&comm);
        let error = comm
            .all_gather(&[1_u8; 20_000], &mut [0; 40_000])
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    });
}
