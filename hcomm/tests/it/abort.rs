//! Giving up, leaving, and what must not be touched by it.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use hcomm::{Communicator, Error, ErrorKind, Membership, Options, Rank, ReduceOp, Settings};

use crate::collectives::all_reduce;
use crate::job::Job;
use crate::team;

/// Ranks 0 and 1 wait for rank 2, which never calls; another thread ends it.
#[test]
fn an_abort_ends_a_blocked_call_on_every_rank_with_the_reason() {
    let comms = Communicator::init_all_with(3, &Options::default()).unwrap();
    let aborter = comms[0].aborter();
    let (begun, begins) = mpsc::channel();
    let killer = thread::spawn(move || {
        for _ in 0..2 {
            begins.recv().unwrap();
        }
        aborter.abort("the user has pressed the red button");
    });
    let errors = team::on_threads(comms, move |comm| {
        if comm.rank() != Rank(2) {
            begun.send(()).unwrap();
        }
        let errors: Vec<_> = (0..2)
            .map(|_| match comm.rank() {
                // Rank 2 does something that waits for the others.
                Rank(2) => comm.recv(&mut [0u8; 10], Rank(1)).unwrap_err(),
                _ => comm
                    .all_reduce_in_place(&mut [1u8; 100], ReduceOp::Sum)
                    .unwrap_err(),
            })
            .collect();
        (comm.rank(), errors)
    });
    killer.join().unwrap();
    for (rank, errors) in errors {
        for error in errors {
            let text = error.to_string();
            assert!(text.contains("red button"), "rank {rank}: {text}");
            assert_eq!(error.kind(), ErrorKind::Aborted, "rank {rank}: {text}");
            // Who has not pressed it hears who has.
            let culprits: &[Rank] = if rank == Rank(0) { &[] } else { &[Rank(0)] };
            assert!(
                error.culprits() == culprits || rank == Rank(0),
                "rank {rank}: {error:?}"
            );
        }
    }
}

/// How a rank can be blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocked {
    Wait,
    ThreadWait,
    AllReduce,
    Recv,
    Channel,
    Window,
}

/// Blocks for something that never comes, and returns how it ended.
fn block(comm: &Communicator, how: Blocked) -> Error {
    let next = Rank((comm.rank().0 + 1) % comm.size());
    match how {
        Blocked::Wait => {
            let link = comm.open_channel(next, 1).unwrap();
            let thread = comm.thread(0).unwrap();
            thread.wait(&link.channel, 0).unwrap();
            thread.synchronize(None).unwrap_err()
        }
        Blocked::ThreadWait => {
            let thread = comm.thread(1).unwrap();
            thread.wait_thread(0).unwrap();
            comm.synchronize(None).unwrap_err()
        }
        Blocked::AllReduce => {
            (comm.all_reduce_in_place(&mut [1u8; 100], ReduceOp::Sum)).unwrap_err()
        }
        Blocked::Recv => comm.recv(&mut [0u8; 10], next).unwrap_err(),
        Blocked::Channel => comm.open_channel(next, 1).unwrap_err(),
        Blocked::Window => comm.window("never", 100).unwrap_err(),
    }
}

/// Waits until an OS thread of this process sleeps in the kernel.
fn wait_until_asleep(thread: rustix::process::Pid) {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    loop {
        let stat = std::fs::read_to_string(&path).unwrap();
        if stat.rsplit_once(") ").unwrap().1.starts_with('S') {
            return;
        }
        thread::yield_now();
    }
}

/// The rank that is aborted sleeps; it and its peer, which never does its part, hear the reason.
#[test]
fn an_abort_wakes_whoever_sleeps_wherever_it_is_blocked() {
    for how in [
        Blocked::Wait,
        Blocked::ThreadWait,
        Blocked::AllReduce,
        Blocked::Recv,
        Blocked::Channel,
        Blocked::Window,
    ] {
        let mut comms = Communicator::init_all_with(2, &Options::default()).unwrap();
        let aborter = comms[0].aborter();
        let (sleeps, sleeper) = mpsc::channel();
        let killer = thread::spawn(move || {
            wait_until_asleep(sleeper.recv().unwrap());
            aborter.abort("the plug was pulled");
        });
        let other = comms.pop().unwrap();
        let members = vec![(comms.pop().unwrap(), Some(sleeps)), (other, None)];
        let errors = team::on_threads(members, move |(comm, sleeps)| match sleeps {
            Some(sleeps) => {
                if how == Blocked::Wait {
                    // The channel takes both; the wait is for nobody.
                    let link = comm.open_channel(Rank(1), 1).unwrap();
                    let thread = comm.thread(0).unwrap();
                    thread.wait(&link.channel, 0).unwrap();
                    sleeps.send(rustix::thread::gettid()).unwrap();
                    thread.synchronize(None).unwrap_err()
                } else {
                    sleeps.send(rustix::thread::gettid()).unwrap();
                    block(&comm, how)
                }
            }
            None => {
                // Kept, because who waits on a channel notices that the other end has gone.
                let link = (how == Blocked::Wait).then(|| comm.open_channel(Rank(0), 1).unwrap());
                let error = block(&comm, Blocked::ThreadWait);
                drop(link);
                error
            }
        });
        killer.join().unwrap();
        for (rank, error) in errors.iter().enumerate() {
            assert_eq!(error.kind(), ErrorKind::Aborted, "{how:?} {rank}: {error}");
            let text = error.to_string();
            assert!(text.contains("plug was pulled"), "{how:?} {rank}: {text}");
        }
        assert_eq!(errors[1].culprits(), [Rank(0)], "{how:?}: {}", errors[1]);
    }
}

/// The program `abort`: each rank is blocked in another way; rank 0 aborts itself from another OS
/// thread once all have come so far.
pub(crate) fn blocked_until_rank_0_is_told_to_abort(comm: &Communicator) -> Error {
    comm.barrier().unwrap();
    let hows = [
        Blocked::Recv,
        Blocked::ThreadWait,
        Blocked::Recv,
        Blocked::Window,
    ];
    let how = hows[comm.rank().index() % hows.len()];
    thread::scope(|scope| {
        if comm.rank() == Rank(0) {
            let (aborter, here) = (comm.aborter(), rustix::thread::gettid());
            scope.spawn(move || {
                wait_until_asleep(here);
                aborter.abort("rank 0 was told to");
            });
        }
        block(comm, how)
    })
}

#[test]
fn an_abort_reaches_other_processes_with_rank_and_reason() {
    let mut ranks = Job::new("abort", 4).start();
    for (number, rank) in ranks.iter_mut().enumerate() {
        let report = rank.wait_for_error();
        report.must_say(&["rank 0 was told to"]);
        assert_eq!(report.kind, "Aborted", "{report:?}");
        if number != 0 {
            assert_eq!(report.culprits, [0], "{report:?}");
        }
    }
}

/// Before anything runs, as well.
#[test]
fn after_an_abort_every_call_fails_with_the_reason() {
    let errors = team::run(2, |comm| {
        if comm.rank() == Rank(0) {
            comm.aborter().abort("no more");
        }
        let first = comm.barrier().unwrap_err();
        let second = comm.send(&[1u8], Rank(1 - comm.rank().0)).unwrap_err();
        [first, second]
    });
    for error in errors.iter().flatten() {
        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
        assert!(error.to_string().contains("no more"), "{error}");
    }
}

#[test]
fn an_abort_of_one_communicator_leaves_the_others_alone() {
    let aborted = Communicator::init_all_with(2, &Options::default()).unwrap();
    let other = Communicator::init_all_with(2, &Options::default()).unwrap();
    let pairs: Vec<_> = aborted.into_iter().zip(other).collect();
    team::on_threads(pairs, |(aborted, other)| {
        all_reduce::<f32>(&aborted, ReduceOp::Sum, 100, false);
        all_reduce::<f32>(&other, ReduceOp::Sum, 100, false);
        if aborted.rank() == Rank(1) {
            aborted.aborter().abort("this one only");
        }
        let error = aborted.barrier().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
        for count in [1, 1000, 50_000] {
            all_reduce::<f32>(&other, ReduceOp::Sum, count, true);
        }
        drop(aborted);
        all_reduce::<f32>(&other, ReduceOp::Max, 100, true);
        other.close().unwrap();
    });
}

/// Many at once, of different sizes, used in turn.
#[test]
fn communicators_of_one_process_do_not_mix() {
    let mut members: Vec<Vec<Communicator>> = (0..3).map(|_| Vec::new()).collect();
    for size in [3, 1, 2, 3, 2] {
        let comms = Communicator::init_all_with(size, &team::small_buffer(256 << 10)).unwrap();
        for (member, comm) in members.iter_mut().zip(comms) {
            member.push(comm);
        }
    }
    team::on_threads(members, |comms| {
        for round in 0..30 {
            for comm in &comms {
                all_reduce::<i64>(
                    comm,
                    ReduceOp::Sum,
                    100 * round + comm.size() as usize,
                    false,
                );
            }
        }
    });
}

#[test]
fn a_second_close_and_a_use_after_close_are_errors() {
    team::run(2, |comm| {
        comm.barrier().unwrap();
        let thread = comm.thread(0).unwrap();
        let aborter = comm.aborter();
        Membership::close(&comm).unwrap();
        let errors = [
            Membership::close(&comm).unwrap_err(),
            comm.barrier().unwrap_err(),
            comm.barrier_on(&thread).unwrap_err(),
            comm.send(&[1u8], Rank(1 - comm.rank().0)).unwrap_err(),
            comm.all_reduce_in_place(&mut [1u8; 3], ReduceOp::Sum)
                .unwrap_err(),
            comm.open_channel(Rank(1 - comm.rank().0), 0).unwrap_err(),
            comm.allocate("late", 64).unwrap_err(),
            comm.forget("late").unwrap_err(),
            comm.thread(0).unwrap_err(),
            comm.close().unwrap_err(),
        ];
        for (number, error) in errors.into_iter().enumerate() {
            assert_eq!(error.kind(), ErrorKind::Closed, "call {number}: {error}");
        }
        // Late, but harmless.
        aborter.abort("too late");
    });
}

/// What a rank has sent arrives even if it has left meanwhile.
#[test]
fn leaving_does_not_disturb_who_still_works() {
    for round in 0..10 {
        let comms = Communicator::init_all_with(3, &Options::default()).unwrap();
        team::on_threads(comms, move |comm| {
            all_reduce::<f64>(&comm, ReduceOp::Sum, 30_011, false);
            match comm.rank() {
                Rank(0) => {
                    comm.send(&[7u32, round], Rank(1)).unwrap();
                    comm.close().unwrap();
                }
                Rank(1) => {
                    (0..50).for_each(|_| thread::yield_now());
                    let mut message = [0u32; 2];
                    comm.recv(&mut message, Rank(0)).unwrap();
                    assert_eq!(message, [7, round]);
                    comm.send(&message, Rank(2)).unwrap();
                    comm.close().unwrap();
                }
                _ => {
                    let mut message = [0u32; 2];
                    comm.recv(&mut message, Rank(1)).unwrap();
                    assert_eq!(message, [7, round]);
                    comm.close().unwrap();
                }
            }
        });
    }
}

/// Who waits for a rank that has left hears that.
#[test]
fn waiting_for_a_rank_that_has_left_is_an_error() {
    let comms = Communicator::init_all_with(2, &Options::default()).unwrap();
    team::on_threads(comms, |comm| {
        comm.barrier().unwrap();
        if comm.rank() == Rank(0) {
            comm.close().unwrap();
            return;
        }
        let error = comm.recv(&mut [0u8; 5], Rank(0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        assert_eq!(error.culprits(), [Rank(0)], "{error}");
        assert!(error.to_string().contains("left"), "{error}");
    });
}

/// Handles keep what they need, whatever ends first.
#[test]
fn handles_may_outlive_their_communicator() {
    let comms = Communicator::init_all_with(2, &Options::default()).unwrap();
    let slices: Vec<_> = comms
        .iter()
        .map(|comm| comm.allocate("memory", 4096).unwrap())
        .collect();
    let links: Vec<_> = comms
        .iter()
        .map(|comm| comm.link(Rank(1 - comm.rank().0)).unwrap())
        .collect();
    let threads: Vec<_> = comms.iter().map(|comm| comm.thread(0).unwrap()).collect();
    drop(comms);
    for (number, slice) in slices.iter().enumerate() {
        slice.copy_from(&[number as u8; 4096]).unwrap();
        let mut back = [9; 4096];
        slice.copy_to(&mut back).unwrap();
        assert_eq!(back, [number as u8; 4096]);
    }
    drop(links);
    drop(threads);
    slices[0].copy_from(&[1; 4096]).unwrap();
}

/// What other threads of the communicator have queued counts as much as collectives.
#[test]
fn closing_waits_for_what_any_thread_has_queued() {
    let comm = Communicator::init_all(1).unwrap().remove(0);
    let (waits, records) = (comm.thread(1).unwrap(), comm.thread(0).unwrap());
    waits.wait_thread(0).unwrap();
    assert!(!waits.is_idle());
    thread::scope(|scope| {
        scope.spawn(|| records.record_thread(&waits, 0).unwrap());
        comm.close().unwrap();
    });
}

#[test]
fn closing_reports_what_never_comes_to_its_end() {
    let settings = Settings::default().with_exec_timeout(Duration::from_millis(100));
    let mut comms = Communicator::init_all_with(1, &Options::new(settings)).unwrap();
    let comm = comms.remove(0);
    let waits = comm.thread(1).unwrap();
    waits.wait_thread(0).unwrap();
    let error = comm.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}
