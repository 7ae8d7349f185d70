//! Threads that a worker drives. Some count the OS threads of the process, so each test needs a
//! process of its own, as nextest does it.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod sides;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hcomm_data::{
    At, BatchOp, Buffers, CpuTs, Engine, Op, Program, ProgramLink, ProgramParts, SlotKind, Thread,
};
use hcomm_types::{DataType, Error, ErrorKind, Rank, ReduceOp};

use sides::{LINKS, Link, Side, cause, pair, pair_with, pattern};

const WORKER: Engine = Engine::CpuTs(CpuTs::worker(0));

fn on_worker(side: &Side, notifies: usize) -> Thread {
    Thread::new(&side.domain, WORKER, notifies).unwrap()
}

/// OS threads of this process that are workers.
fn workers() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir("/proc/self/task")
        .unwrap()
        // One may end meanwhile.
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| name.starts_with("hcomm-worker"))
        .collect();
    names.sort();
    names
}

/// An OS thread that was joined is still listed for a moment.
fn until_workers_are<const N: usize>(names: [&str; N]) {
    until(|| workers() == names);
}

/// Lets other OS threads run until something is so.
fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        std::thread::yield_now();
    }
}

#[test]
fn tasks_go_on_beside_the_caller() {
    for link in LINKS {
        let [a, b] = pair(link, 40_000);
        let [ta, tb] = [&a, &b].map(|side| on_worker(side, 0));
        for round in 0..20_u8 {
            let sent = pattern(round, 17_003);
            a.set(0, &sent);
            // The wait first.
            tb.wait(&b.channel, 1).unwrap();
            tb.copy(&b.part(0, 17_003), &b.part(20_000, 17_003))
                .unwrap();
            let dst = a.far(20_000, 17_003);
            ta.write_with_notify(&a.channel, &dst, &a.part(0, 17_003), 1)
                .unwrap();
            // Nobody calls into the library but to look.
            until(|| tb.is_idle() && ta.is_idle());
            assert_eq!(b.get(0, 17_003), sent, "{link:?}");
            ta.synchronize(None).unwrap();
            tb.synchronize(None).unwrap();
        }
        assert_eq!(a.channel.records(), 20, "{link:?}");
    }
}

#[test]
fn batches_and_reductions() {
    for link in LINKS {
        let [a, b] = pair(link, 60_000);
        let [ta, tb] = [&a, &b].map(|side| on_worker(side, 0));
        a.set(0, &pattern(1, 400));
        let pieces: Vec<BatchOp> = (0..300)
            .map(|i| BatchOp::Write {
                dst: a.far(i * 100, 100),
                src: a.part(0, 100),
                notify: (i % 100 == 99).then_some(0),
            })
            .collect();
        // More than there is room for on the way.
        ta.batch(&a.channel, &pieces).unwrap();
        ta.batch(&a.channel, &[]).unwrap();
        ta.fence(&a.channel).unwrap();
        ta.drain().unwrap();
        (0..3).for_each(|_| tb.wait(&b.channel, 0).unwrap());
        ta.reduce(
            &a.part(1000, 400),
            &a.part(0, 400),
            &a.part(0, 400),
            DataType::U8,
            ReduceOp::Max,
        )
        .unwrap();
        ta.synchronize(None).unwrap();
        tb.synchronize(None).unwrap();
        assert_eq!(a.get(1000, 400), a.get(0, 400));
        for i in 0..300 {
            assert_eq!(b.get(i * 100, 100), pattern(1, 400)[..100], "{link:?} {i}");
        }
    }
}

#[test]
fn threads_of_both_engines_follow_each_other() {
    let [a, b] = pair(Link::Mapped, 4096);
    let [first, second] = [on_worker(&a, 3), on_worker(&a, 3)];
    let own = Thread::new(&a.domain, Engine::Cpu, 3).unwrap();
    // A ring through worker and caller, all waits first.
    for round in 0..200_u8 {
        second.wait_thread(0).unwrap();
        second.copy(&a.part(200, 100), &a.part(100, 100)).unwrap();
        second.record_thread(&own, 1).unwrap();
        own.wait_thread(1).unwrap();
        own.copy(&a.part(300, 100), &a.part(200, 100)).unwrap();
        own.record_thread(&first, 2).unwrap();
        a.set(0, &pattern(round, 100));
        first.copy(&a.part(100, 100), &a.part(0, 100)).unwrap();
        first.record_thread(&second, 0).unwrap();
        first.wait_thread(2).unwrap();
        if round % 2 == 0 {
            own.synchronize(None).unwrap();
            first.synchronize(None).unwrap();
        } else {
            // Drives what this OS thread has to drive.
            first.synchronize(None).unwrap();
            assert!(own.is_idle());
        }
        assert_eq!(a.get(300, 100), pattern(round, 100));
    }
    assert!(first.drive().unwrap());
    drop(b);
}

#[test]
fn more_waits_than_fit_on_the_way_block_nobody() {
    const MANY: usize = 1000;
    let [a, b] = pair(Link::Mapped, 4096);
    let thread = on_worker(&b, 1);
    for _ in 0..MANY {
        thread.wait(&b.channel, 0).unwrap();
    }
    assert!(!thread.is_idle());
    for _ in 0..MANY {
        a.thread.record(&a.channel, 0).unwrap();
    }
    a.thread.synchronize(None).unwrap();
    thread.synchronize(None).unwrap();
    assert_eq!(b.channel.arrived(0).unwrap(), 0);
}

#[test]
fn many_queues_of_several_workers_and_submitters_in_turn() {
    const QUEUES: usize = 6;
    const OS_THREADS: usize = 4;
    const ROUNDS: usize = 300;
    let [a, b] = pair(Link::Mapped, QUEUES * 8);
    let queues: Vec<Thread> = (0..QUEUES)
        .map(|i| {
            let worker = CpuTs::worker(i as u32 % 2);
            Thread::new(&a.domain, Engine::CpuTs(worker), 1).unwrap()
        })
        .collect();
    until_workers_are(["hcomm-worker-0", "hcomm-worker-1"]);
    std::thread::scope(|scope| {
        for os_thread in 0..OS_THREADS {
            let (queues, a) = (&queues, &a);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let index = (round * (os_thread + 1) + os_thread) % QUEUES;
                    let queue = &queues[index];
                    let at = a.part(index * 8, 8);
                    queue
                        .reduce(
                            &at,
                            &at,
                            &a.part(index * 8, 8),
                            DataType::I64,
                            ReduceOp::Max,
                        )
                        .unwrap();
                    queue.record_thread(queue, 0).unwrap();
                    queue.wait_thread(0).unwrap();
                    if round % 10 == 0 {
                        queue.synchronize(None).unwrap();
                    }
                }
            });
        }
    });
    a.domain.synchronize(None).unwrap();
    assert!(queues.iter().all(Thread::is_idle));
    drop(queues);
    until_workers_are([]);
    drop(b);
}

#[test]
fn a_wait_of_its_own_has_the_domains_deadline() {
    let [a, b] = pair_with(Link::Mapped, 4096, Duration::from_millis(30));
    let thread = on_worker(&b, 0);
    thread.wait(&b.channel, 3).unwrap();
    thread.record(&b.channel, 0).unwrap();
    until(|| thread.poisoned().is_some());
    let error = thread.poisoned().unwrap();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("notify 3"), "{error}");
    assert_eq!(error.culprits(), [Rank(0)]);
    // The answer to every call, and nothing of what was queued has run.
    assert_eq!(
        thread.record(&b.channel, 0).unwrap_err().detail(),
        error.detail()
    );
    assert_eq!(
        thread.synchronize(None).unwrap_err().detail(),
        error.detail()
    );
    assert!(thread.is_idle());
    assert_eq!(a.channel.arrived(0).unwrap(), 0);
    // Others of the worker go on.
    let other = on_worker(&b, 0);
    other.record(&b.channel, 0).unwrap();
    other.synchronize(None).unwrap();
}

#[test]
fn a_synchronize_that_is_over_poisons() {
    let [a, b] = pair(Link::Mapped, 4096);
    let thread = on_worker(&b, 0);
    thread.wait(&b.channel, 3).unwrap();
    let error = thread
        .synchronize(Some(Duration::from_millis(5)))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("notify 3"), "{error}");
    // It has taken nothing.
    a.thread.record(&a.channel, 3).unwrap();
    assert_eq!(b.channel.arrived(3).unwrap(), 1);
    drop(thread);
    until_workers_are([]);
}

#[test]
fn failures_of_a_worker_reach_the_caller() {
    let [a, b] = pair(Link::Mapped, 4096);
    let thread = on_worker(&b, 0);
    b.peers.0.set(cause("rank 0 is gone")).unwrap();
    thread.wait(&b.channel, 0).unwrap();
    let error = thread.synchronize(None).unwrap_err();
    assert!(error.to_string().contains("rank 0 is gone"), "{error}");
    drop(a);
}

#[test]
fn an_abort_from_another_os_thread_ends_waits_and_workers() {
    let [a, b] = pair(Link::Mapped, 4096);
    let thread = on_worker(&b, 0);
    thread.wait(&b.channel, 0).unwrap();
    let waiting = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            waiting.store(true, Ordering::Release);
            let error = thread.synchronize(None).unwrap_err();
            assert_eq!(error.detail(), "enough");
        });
        until(|| waiting.load(Ordering::Acquire));
        b.domain.abort(cause("enough"));
    });
    b.domain.join_workers();
    until_workers_are([]);
    assert_eq!(thread.wait(&b.channel, 0).unwrap_err().detail(), "enough");
    assert_eq!(thread.synchronize(None).unwrap_err().detail(), "enough");
    assert_eq!(
        Thread::new(&b.domain, WORKER, 0).unwrap_err().detail(),
        "enough"
    );
    drop(a);
}

#[test]
fn what_a_dropped_thread_has_queued_is_done() {
    let [a, b] = pair(Link::Mapped, 4096);
    let thread = on_worker(&b, 0);
    thread.wait(&b.channel, 0).unwrap();
    thread.record(&b.channel, 1).unwrap();
    drop(thread);
    assert_eq!(workers().len(), 1);
    a.thread.record(&a.channel, 0).unwrap();
    a.thread.wait(&a.channel, 1).unwrap();
    a.thread.synchronize(None).unwrap();
    until_workers_are([]);
    // And another one may be started.
    let thread = on_worker(&b, 0);
    thread.record(&b.channel, 1).unwrap();
    thread.synchronize(None).unwrap();
}

#[test]
fn workers_come_and_go_with_their_threads() {
    let [a, b] = pair(Link::Mapped, 4096);
    until_workers_are([]);
    for _ in 0..20 {
        let first = on_worker(&a, 0);
        let second = on_worker(&a, 0);
        until_workers_are(["hcomm-worker-0"]);
        let third = Thread::new(&a.domain, Engine::CpuTs(CpuTs::worker(7)), 0).unwrap();
        until_workers_are(["hcomm-worker-0", "hcomm-worker-7"]);
        assert_eq!(third.engine(), Engine::CpuTs(CpuTs::worker(7)));
        assert_eq!(a.thread.engine(), Engine::Cpu);
        drop(first);
        second.drain().unwrap();
        second.synchronize(None).unwrap();
        drop(third);
        until_workers_are(["hcomm-worker-0"]);
        let another = second.clone();
        drop(second);
        another.drain().unwrap();
        another.synchronize(None).unwrap();
        drop(another);
        until_workers_are([]);
    }
    drop(b);
}

#[test]
fn a_core_is_one_that_may_be_used() {
    let [a, b] = pair(Link::Mapped, 64);
    let allowed: Vec<u32> = std::fs::read_to_string("/proc/self/status")
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:").map(str::to_owned))
        .unwrap()
        .trim()
        .split([',', '-'])
        .map(|number| number.parse().unwrap())
        .collect();
    let pinned = Engine::CpuTs(CpuTs::worker(0).on_core(allowed[0]));
    let thread = Thread::new(&a.domain, pinned, 0).unwrap();
    thread.record(&a.channel, 0).unwrap();
    thread.synchronize(None).unwrap();
    // The same worker, and one that contradicts.
    Thread::new(&a.domain, WORKER, 0).unwrap();
    let other = Engine::CpuTs(CpuTs::worker(0).on_core(allowed[0] + 1));
    let error = Thread::new(&a.domain, other, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(
        error.to_string().contains("worker 0 runs on core"),
        "{error}"
    );
    for core in [100_000, 1023] {
        let nowhere = Engine::CpuTs(CpuTs::worker(1).on_core(core));
        let error = Thread::new(&a.domain, nowhere, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let text = error.to_string();
        assert!(
            text.contains(&format!("core {core}: this process may use ")),
            "{text}"
        );
    }
    until_workers_are(["hcomm-worker-0"]);
    drop(b);
}

#[test]
fn limits_hold_for_both_engines() {
    let [a, b] = pair(Link::Mapped, 64);
    let error = Thread::new(&a.domain, WORKER, 641).unwrap_err();
    assert!(error.to_string().contains("641"), "{error}");
    assert!(error.to_string().contains("640"), "{error}");
    // One is there already.
    let threads: Vec<Thread> = (0..39).map(|_| on_worker(&a, 640)).collect();
    let error = Thread::new(&a.domain, WORKER, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitReached);
    assert!(error.to_string().contains("40 threads"), "{error}");
    drop(threads);
    drop(on_worker(&a, 0));
    until_workers_are([]);
    drop(b);
}

/// A program of two threads: the second one fetches the input of the peer, the first one adds it to
/// its own, when the second has told it.
fn sum_with_peer(side: &Side, count: u64) -> Arc<Program> {
    let at = |slot, offset| At { slot, offset };
    let bytes = count * 4;
    Arc::new(
        Program::new(ProgramParts {
            threads: vec![
                vec![
                    Op::Write {
                        link: 0,
                        dst: 0,
                        src: at(SlotKind::Input, 0),
                        bytes,
                        notify: Some(0),
                    },
                    Op::ThreadWait { notify: 0 },
                    Op::Reduce {
                        dst: at(SlotKind::Output, 0),
                        a: at(SlotKind::Input, 0),
                        b: at(SlotKind::Scratch, 0),
                        count,
                    },
                    // The peer may not write again before.
                    Op::Record { link: 0, notify: 1 },
                ],
                vec![
                    Op::Wait { link: 0, notify: 0 },
                    Op::ThreadRecord {
                        thread: 0,
                        notify: 0,
                    },
                    Op::Wait { link: 0, notify: 1 },
                ],
            ],
            links: vec![ProgramLink {
                channel: side.channel.clone(),
                scratch: Some(side.far(0, bytes)),
                lent: None,
                packets: None,
                fingerprints: [0; 2],
            }],
            scratch: Some(side.part(0, bytes as usize)),
            input_bytes: bytes,
            output_bytes: bytes,
            lends: None,
            host_output_bytes: 0,
            scratch_bytes: bytes,
            dtype: DataType::I32,
            redop: ReduceOp::Sum,
        })
        .unwrap(),
    )
}

#[test]
fn programs_run_on_workers_also_over_lent_memory() {
    const COUNT: usize = 500;
    for link in [Link::Mapped, Link::Inline, Link::Later] {
        let [a, b] = pair(link, COUNT * 4);
        std::thread::scope(|scope| {
            for (rank, side) in [&a, &b].into_iter().enumerate() {
                scope.spawn(move || {
                    let program = sum_with_peer(side, COUNT as u64);
                    let (first, other) = (on_worker(side, 1), [on_worker(side, 1)]);
                    for round in 0..20 {
                        let value = |rank: usize, i: usize| ((rank + 1) * i + round) as i32;
                        let input: Vec<u8> = (0..COUNT)
                            .flat_map(|i| value(rank, i).to_ne_bytes())
                            .collect();
                        let mut output = vec![0; COUNT * 4];
                        first
                            .run_blocking(
                                &other,
                                &program,
                                Buffers::Separate {
                                    input: &input,
                                    output: &mut output,
                                },
                                0,
                                0,
                                None,
                            )
                            .unwrap();
                        let sum: Vec<u8> = (0..COUNT)
                            .flat_map(|i| (value(0, i) + value(1, i)).to_ne_bytes())
                            .collect();
                        assert_eq!(output, sum);
                    }
                });
            }
        });
    }
}

#[test]
fn lent_memory_comes_back_after_a_timeout_and_after_an_abort() {
    for abort in [false, true] {
        let [a, _b] = pair(Link::Mapped, 4000);
        let program = sum_with_peer(&a, 10);
        let (first, other) = (on_worker(&a, 1), [on_worker(&a, 1)]);
        let mut output = vec![0; 40];
        let buffers = Buffers::Separate {
            input: &[1; 40],
            output: &mut output,
        };
        let begun = AtomicBool::new(false);
        let error = std::thread::scope(|scope| {
            if abort {
                scope.spawn(|| {
                    until(|| begun.load(Ordering::Acquire));
                    a.domain.abort(Error::new(ErrorKind::Aborted, "enough"));
                });
            }
            begun.store(true, Ordering::Release);
            let timeout = (!abort).then_some(Duration::from_millis(10));
            first
                .run_blocking(&other, &program, buffers, 0, 0, timeout)
                .unwrap_err()
        });
        let kind = if abort {
            ErrorKind::Aborted
        } else {
            ErrorKind::Timeout
        };
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(output, [0; 40]);
        // A program that did not end has ended the domain.
        assert!(a.domain.aborted().is_some());
        drop((first, other));
        until_workers_are([]);
    }
}

#[test]
fn a_mark_of_a_worker_is_reached_before_what_comes_later() {
    for link in LINKS {
        let [a, b] = pair(link, 4096);
        let [ta, tb] = [&a, &b].map(|side| on_worker(side, 0));
        for _ in 0..200 {
            ta.wait(&a.channel, 0).unwrap();
            let first = ta.mark();
            ta.wait(&a.channel, 1).unwrap();
            let second = ta.mark();
            assert!(!first.is_reached().unwrap());
            tb.record(&b.channel, 0).unwrap();
            first.wait(None).unwrap();
            assert!(!second.is_reached().unwrap() && !ta.is_idle());
            tb.record(&b.channel, 1).unwrap();
            until(|| second.is_reached().unwrap());
        }
        ta.wait(&a.channel, 0).unwrap();
        let reached = ta.mark();
        tb.record(&b.channel, 0).unwrap();
        assert!(reached.wait_for(Duration::from_secs(60)).unwrap());
        ta.wait(&a.channel, 0).unwrap();
        let never = ta.mark();
        assert!(!never.wait_for(Duration::from_millis(1)).unwrap());
        a.domain
            .abort(Error::new(ErrorKind::Aborted, "by the test"));
        assert_eq!(never.wait(None).unwrap_err().kind(), ErrorKind::Aborted);
        assert!(reached.is_reached().unwrap());
    }
}
