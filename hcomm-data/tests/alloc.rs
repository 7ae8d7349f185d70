//! Nothing is taken from the heap between submission and completion, once all is warm.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod sides;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use hcomm_data::{
    At, BatchOp, Buffers, CpuTs, Engine, Op, Program, ProgramLink, ProgramParts, SlotKind, Thread,
    Turn,
};
use hcomm_types::{DataType, ReduceOp};

use sides::{LINKS, Link, Side, pair};

struct Counting;

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = TAKEN.try_with(|taken| taken.set(taken.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let _ = TAKEN.try_with(|taken| taken.set(taken.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.realloc(address, layout, bytes) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Pieces of the heap that this OS thread takes in 50 rounds, after 10 to warm up.
fn taken_by(mut round: impl FnMut()) -> u64 {
    (0..10).for_each(|_| round());
    let before = TAKEN.get();
    (0..50).for_each(|_| round());
    TAKEN.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(taken_by(|| drop(std::hint::black_box(Box::new(5)))), 50);
}

#[test]
fn tasks_take_nothing() {
    for link in LINKS {
        let [a, b] = pair(link, 10_000);
        let (near, far) = (a.part(0, 2_500), a.far(0, 2_500));
        let (b_one, b_two) = (b.part(0, 2_500), b.part(5_000, 2_500));
        let batch: Vec<BatchOp> = (0..20)
            .map(|i| BatchOp::Write {
                dst: a.far(100 * i, 100),
                src: a.part(100 * i as usize, 100),
                notify: None,
            })
            .chain([BatchOp::Record { notify: 3 }])
            .collect();
        let taken = taken_by(|| {
            // Blocked at first, so that all of it goes through the queue.
            b.thread.wait(&b.channel, 0).unwrap();
            b.thread.copy(&b_two, &b_one).unwrap();
            b.thread
                .reduce(&b_two, &b_two, &b_one, DataType::F16, ReduceOp::Sum)
                .unwrap();
            b.thread.record(&b.channel, 1).unwrap();
            b.thread.wait(&b.channel, 3).unwrap();
            a.thread
                .write_with_notify(&a.channel, &far, &near, 0)
                .unwrap();
            a.thread.wait(&a.channel, 1).unwrap();
            a.thread.read(&a.channel, &near, &far).unwrap();
            a.thread
                .read_reduce(&a.channel, &near, &far, DataType::I32, ReduceOp::Max, None)
                .unwrap();
            a.thread.batch(&a.channel, &batch).unwrap();
            a.thread.fence(&a.channel).unwrap();
            a.thread.synchronize(None).unwrap();
            b.thread.synchronize(None).unwrap();
        });
        assert_eq!(taken, 0, "{link:?}");
    }
}

#[test]
fn handing_tasks_to_a_worker_takes_nothing() {
    for link in LINKS {
        let [a, b] = pair(link, 10_000);
        let (near, far) = (a.part(0, 2_500), a.far(0, 2_500));
        let thread = Thread::new(&a.domain, Engine::CpuTs(CpuTs::default()), 1).unwrap();
        let taken = taken_by(|| {
            thread.wait_thread(0).unwrap();
            thread.write(&a.channel, &far, &near).unwrap();
            thread.record(&a.channel, 0).unwrap();
            thread.copy(&near, &near).unwrap();
            a.thread.record_thread(&thread, 0).unwrap();
            b.thread.wait(&b.channel, 0).unwrap();
            thread.synchronize(None).unwrap();
            b.thread.synchronize(None).unwrap();
        });
        assert_eq!(taken, 0, "{link:?}");
    }
}

const BYTES: usize = 2_000;

const TURN: Turn = Turn {
    scratch_base: 0,
    sequence: 1,
};

fn exchange(side: &Side) -> Arc<Program> {
    let at = |slot| At { slot, offset: 0 };
    let threads = vec![
        vec![
            Op::Write {
                link: 0,
                dst: 0,
                src: at(SlotKind::Input),
                bytes: BYTES as u64,
                notify: Some(0),
            },
            Op::Wait { link: 0, notify: 0 },
            Op::ThreadRecord {
                thread: 1,
                notify: 0,
            },
            Op::ThreadWait { notify: 0 },
            Op::Record { link: 0, notify: 1 },
            Op::Wait { link: 0, notify: 1 },
        ],
        vec![
            Op::ThreadWait { notify: 0 },
            Op::Reduce {
                dst: at(SlotKind::Output),
                a: at(SlotKind::Input),
                b: at(SlotKind::Scratch),
                count: BYTES as u64 / 2,
            },
            Op::ThreadRecord {
                thread: 0,
                notify: 0,
            },
        ],
    ];
    let parts = ProgramParts {
        threads,
        links: vec![ProgramLink {
            channel: side.channel.clone(),
            scratch: Some(side.far(0, BYTES as u64)),
            lent: None,
            packets: None,
            fingerprints: [0; 2],
        }],
        scratch: Some(side.part(0, BYTES)),
        dtype: DataType::Bf16,
        redop: ReduceOp::Sum,
        input_bytes: BYTES as u64,
        output_bytes: BYTES as u64,
        lends: None,
        host_output_bytes: 0,
        scratch_bytes: BYTES as u64,
    };
    Arc::new(Program::new(parts).unwrap())
}

#[test]
fn runs_of_programs_take_nothing() {
    for link in LINKS {
        let [a, b] = pair(link, 10_000);
        let [pa, pb] = [exchange(&a), exchange(&b)];
        let [ha, hb] = [&a, &b].map(|s| [Thread::new(&s.domain, Engine::Cpu, 1).unwrap()]);
        let [ia, ib] = [&a, &b].map(|s| s.part(3_000, BYTES));
        let [oa, ob] = [&a, &b].map(|s| s.part(6_000, BYTES));
        let (mut input, mut output) = (vec![1; BYTES], vec![0; BYTES]);
        let taken = taken_by(|| {
            a.thread.run_team(&ha, &pa, &ia, &oa, TURN, 1).unwrap();
            b.thread.run_team(&hb, &pb, &ib, &ob, TURN, 1).unwrap();
            a.thread.synchronize(None).unwrap();
            b.thread.synchronize(None).unwrap();
            if link != Link::LaterBare {
                b.thread.run_team(&hb, &pb, &ib, &ob, TURN, 1).unwrap();
                let buffers = Buffers::Separate {
                    input: &input,
                    output: &mut output,
                };
                a.thread
                    .run_blocking(&ha, &pa, buffers, TURN, 1, None)
                    .unwrap();
                b.thread.synchronize(None).unwrap();
            }
        });
        assert_eq!(taken, 0, "{link:?}");
        input.clear();
    }
}
