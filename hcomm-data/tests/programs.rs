//! Programs over links of each kind.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod sides;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hcomm_data::{
    At, Buffers, Engine, Op, Program, ProgramLink, ProgramParts, Slice, SlotKind, Thread,
};
use hcomm_types::{DataType, ErrorKind, Rank, ReduceOp, Result};

use sides::{LINKS, Link, Side, later, pair, pattern};

const BYTES: u64 = 4_000;
const COUNT: u64 = BYTES / 4;

const fn at(slot: SlotKind, offset: u64) -> At {
    At { slot, offset }
}

const INPUT: At = at(SlotKind::Input, 0);
const OUTPUT: At = at(SlotKind::Output, 0);
const SCRATCH: At = at(SlotKind::Scratch, 0);

fn parts(side: &Side, threads: Vec<Vec<Op>>) -> ProgramParts {
    ProgramParts {
        threads,
        links: vec![ProgramLink {
            channel: side.channel.clone(),
            scratch: Some(side.far(0, 2 * BYTES)),
        }],
        scratch: Some(side.part(0, 2 * BYTES as usize)),
        dtype: DataType::I32,
        redop: ReduceOp::Sum,
        input_bytes: BYTES,
        output_bytes: BYTES,
        scratch_bytes: BYTES,
    }
}

/// Each side sends its input to the other and adds what arrives; then it tells that the scratch
/// memory is free again.
fn all_reduce(side: &Side) -> Arc<Program> {
    let ops = vec![
        Op::Write {
            link: 0,
            dst: 0,
            src: INPUT,
            bytes: BYTES,
            notify: Some(0),
        },
        Op::Wait { link: 0, notify: 0 },
        Op::Reduce {
            dst: OUTPUT,
            a: INPUT,
            b: SCRATCH,
            count: COUNT,
        },
        Op::Record { link: 0, notify: 1 },
        Op::Wait { link: 0, notify: 1 },
    ];
    Arc::new(Program::new(parts(side, vec![ops])).unwrap())
}

/// Each side shows its input in its scratch memory, and the other one comes and gets it.
fn all_reduce_by_reading(side: &Side) -> Arc<Program> {
    let ops = vec![
        Op::Copy {
            dst: SCRATCH,
            src: INPUT,
            bytes: BYTES,
        },
        Op::Record { link: 0, notify: 0 },
        Op::Wait { link: 0, notify: 0 },
        Op::ReadReduce {
            link: 0,
            dst: OUTPUT,
            a: INPUT,
            src: 0,
            count: COUNT,
        },
        Op::Record { link: 0, notify: 1 },
        Op::Wait { link: 0, notify: 1 },
    ];
    Arc::new(Program::new(parts(side, vec![ops])).unwrap())
}

fn values(seed: i32) -> Vec<u8> {
    (0..COUNT as i32)
        .flat_map(|i| (i * 7 + seed).to_ne_bytes())
        .collect()
}

fn sum(a: i32, b: i32) -> Vec<u8> {
    (0..COUNT as i32)
        .flat_map(|i| (i * 14 + a + b).to_ne_bytes())
        .collect()
}

#[test]
fn two_sides_in_one_os_thread() {
    for link in LINKS {
        let [a, b] = pair(link, 20_000);
        for make in [all_reduce, all_reduce_by_reading] {
            let programs = [make(&a), make(&b)];
            for round in 0..5 {
                for base in [0, BYTES] {
                    for (side, program, seed) in
                        [(&a, &programs[0], round), (&b, &programs[1], 100 * round)]
                    {
                        side.set(8_000, &values(seed));
                        let input = side.part(8_000, BYTES as usize);
                        let output = side.part(12_000, BYTES as usize);
                        side.thread
                            .run(program, 0, input, output, base, [7, round as u64])
                            .unwrap();
                    }
                    a.thread.synchronize(None).unwrap();
                    b.thread.synchronize(None).unwrap();
                    for side in [&a, &b] {
                        assert!(
                            side.get(12_000, BYTES as usize) == sum(round, 100 * round),
                            "{link:?}"
                        );
                        assert_eq!(side.channel.fingerprint(0).unwrap(), [7, round as u64]);
                        assert_eq!(side.channel.fingerprint(1).unwrap(), [0; 2]);
                    }
                }
            }
        }
    }
}

#[test]
fn two_sides_on_two_os_threads_with_lent_memory() {
    for link in [Link::Mapped, Link::Inline, Link::Later] {
        let [a, b] = pair(link, 20_000);
        std::thread::scope(|scope| {
            for (me, side) in [a, b].into_iter().enumerate() {
                scope.spawn(move || {
                    for make in [all_reduce, all_reduce_by_reading] {
                        let program = make(&side);
                        for round in 0..100 {
                            let seeds = [round, 3 * round];
                            let expected = sum(seeds[0], seeds[1]);
                            let mut buffer = values(seeds[me]);
                            if round % 2 == 0 {
                                let buffers = Buffers::InPlace {
                                    input_offset: 0,
                                    input_bytes: buffer.len(),
                                    output_offset: 0,
                                    output_bytes: buffer.len(),
                                    buffer: &mut buffer,
                                };
                                side.thread
                                    .run_blocking(&[], &program, buffers, 0, [1, 2], None)
                                    .unwrap();
                                assert!(buffer == expected, "{link:?}");
                            } else {
                                let mut output = vec![0; buffer.len()];
                                let buffers = Buffers::Separate {
                                    input: &buffer,
                                    output: &mut output,
                                };
                                side.thread
                                    .run_blocking(&[], &program, buffers, 0, [1, 2], None)
                                    .unwrap();
                                assert!(output == expected, "{link:?}");
                                assert!(buffer == values(seeds[me]));
                            }
                        }
                    }
                });
            }
        });
    }
}

/// Two threads: the second copies the upper half, after the first says so.
fn two_threads(side: &Side) -> Arc<Program> {
    let half = BYTES / 2;
    let copy = |offset| Op::Copy {
        dst: at(SlotKind::Output, offset),
        src: at(SlotKind::Input, offset),
        bytes: half,
    };
    let threads = vec![
        vec![
            copy(0),
            Op::ThreadRecord {
                thread: 1,
                notify: 2,
            },
            Op::ThreadWait { notify: 0 },
        ],
        vec![
            Op::ThreadWait { notify: 2 },
            copy(half),
            Op::ThreadRecord {
                thread: 0,
                notify: 0,
            },
        ],
    ];
    let program = Program::new(parts(side, threads)).unwrap();
    assert_eq!([0, 1].map(|part| program.thread_notifies(part)), [1, 3]);
    Arc::new(program)
}

#[test]
fn a_program_of_two_threads() {
    let [a, _b] = pair(Link::Mapped, 20_000);
    let program = two_threads(&a);
    let helper = [Thread::new(&a.domain, Engine::Cpu, 3).unwrap()];
    for round in 0..3 {
        let input = pattern(round, BYTES as usize);
        let mut output = vec![0; BYTES as usize];
        let buffers = Buffers::Separate {
            input: &input,
            output: &mut output,
        };
        a.thread
            .run_blocking(&helper, &program, buffers, 0, [0; 2], None)
            .unwrap();
        assert!(input == output);
        let [input, output] = [8_000, 12_000].map(|offset| a.part(offset, BYTES as usize));
        input
            .copy_from(&pattern(round + 9, BYTES as usize))
            .unwrap();
        a.thread
            .run_team(&helper, &program, &input, &output, 0, [0; 2])
            .unwrap();
        a.thread.synchronize(None).unwrap();
        helper[0].synchronize(None).unwrap();
        assert!(a.get(12_000, BYTES as usize) == pattern(round + 9, BYTES as usize));
    }
    let refused = |result: Result<()>, text: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(text), "{error}");
    };
    let slice = a.part(0, BYTES as usize);
    let run = a
        .thread
        .run(&program, 0, slice.clone(), slice.clone(), 0, [0; 2]);
    refused(run, "run_team");
    let team = |others: &[Thread]| {
        a.thread
            .run_team(others, &program, &slice, &slice, 0, [0; 2])
    };
    refused(team(&[]), "2 threads was given 1");
    refused(team(std::slice::from_ref(&a.thread)), "given twice");
    let few = Thread::new(&a.domain, Engine::Cpu, 2).unwrap();
    refused(team(&[few]), "needs 3 notifies and has 2");
}

#[test]
fn a_run_that_times_out_leaves_nothing_behind() {
    let [a, b] = pair(Link::Mapped, 20_000);
    let helper = [Thread::new(&b.domain, Engine::Cpu, 3).unwrap()];
    let program = all_reduce(&b);
    let input = values(1);
    let mut output = values(5);
    let buffers = Buffers::Separate {
        input: &input,
        output: &mut output,
    };
    let error = b
        .thread
        .run_blocking(
            &helper,
            &program,
            buffers,
            0,
            [0; 2],
            Some(Duration::from_millis(5)),
        )
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.culprits(), [Rank(0)]);
    assert!(error.to_string().contains("task 1 of 5"), "{error}");
    // What comes now changes nothing in the memory that was lent.
    a.thread.record(&a.channel, 0).unwrap();
    assert!(b.thread.drive().is_err());
    assert!(output == values(5));
    assert_eq!(b.thread.poisoned().unwrap().kind(), ErrorKind::Timeout);
}

#[test]
fn lent_memory_in_flight_is_waited_for_after_a_timeout() {
    let [_a, b] = pair(Link::Stalling, 20_000);
    let program = all_reduce(&b);
    later::STALLED.store(true, Ordering::Release);
    let released = AtomicBool::new(false);
    let thread = b.thread.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while thread.poisoned().is_none() {
                std::thread::yield_now();
            }
            released.store(true, Ordering::Release);
            later::STALLED.store(false, Ordering::Release);
        });
        let input = values(1);
        let mut output = values(5);
        let buffers = Buffers::Separate {
            input: &input,
            output: &mut output,
        };
        let error = b
            .thread
            .run_blocking(
                &[],
                &program,
                buffers,
                0,
                [0; 2],
                Some(Duration::from_millis(5)),
            )
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(released.load(Ordering::Acquire));
    });
}

#[test]
fn a_peer_that_goes_ends_a_run() {
    for link in [Link::Mapped, Link::Later] {
        let [a, b] = pair(link, 20_000);
        let program = all_reduce(&b);
        std::thread::scope(|scope| {
            scope.spawn(move || drop(a));
            let input = values(1);
            let mut output = values(5);
            let buffers = Buffers::Separate {
                input: &input,
                output: &mut output,
            };
            let error = b
                .thread
                .run_blocking(&[], &program, buffers, 0, [0; 2], None)
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PeerLost, "{link:?}");
        });
    }
}

#[test]
fn what_a_program_cannot_do_is_said_before_it_runs() {
    let [a, b] = pair(Link::LaterBare, 20_000);
    let refused = |op: Op, kind: ErrorKind, text: &str| {
        let error = Program::new(parts(&a, vec![vec![op]])).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("thread 0, task 0"), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    };
    let copy = |dst, src, bytes| Op::Copy { dst, src, bytes };
    let out = ErrorKind::OutOfBounds;
    let wrong = ErrorKind::InvalidArgument;
    refused(copy(OUTPUT, INPUT, BYTES + 1), out, "4001 bytes");
    refused(
        copy(OUTPUT, at(SlotKind::Scratch, BYTES), 1),
        out,
        "Scratch",
    );
    refused(
        copy(OUTPUT, at(SlotKind::Scratch, u64::MAX), 1),
        out,
        "Scratch",
    );
    refused(copy(INPUT, SCRATCH, 1), wrong, "read only");
    let reduce = |dst, count| Op::Reduce {
        dst,
        a: OUTPUT,
        b: INPUT,
        count,
    };
    refused(reduce(OUTPUT, COUNT + 1), out, "bytes");
    refused(reduce(OUTPUT, u64::MAX), out, "elements");
    refused(reduce(at(SlotKind::Output, 4), 2), wrong, "in part");
    let write = |link, dst, notify| Op::Write {
        link,
        dst,
        src: SCRATCH,
        bytes: 8,
        notify,
    };
    refused(write(1, 0, None), wrong, "no link 1");
    refused(write(0, 2 * BYTES - 7, None), out, "peer's scratch");
    refused(write(0, u64::MAX, None), out, "peer's scratch");
    refused(write(0, 0, Some(64)), wrong, "notify 64");
    refused(Op::Wait { link: 0, notify: 8 }, wrong, "no notify 8");
    let record = Op::ThreadRecord {
        thread: 1,
        notify: 0,
    };
    refused(record, wrong, "no thread 1");

    // The peer's memory of another channel, and more scratch memory than there is.
    let mut strange = parts(&a, vec![]);
    strange.links[0].scratch = Some(b.far(0, 10));
    assert_eq!(Program::new(strange).unwrap_err().kind(), wrong);
    let mut large = parts(&a, vec![]);
    large.scratch_bytes = 2 * BYTES + 1;
    assert_eq!(Program::new(large).unwrap_err().kind(), out);

    // A run brings too little, or memory that the link does not know.
    let program = all_reduce(&a);
    let run = |input: Slice, base| {
        let output = a.part(0, BYTES as usize);
        a.thread.run(&program, 0, input, output, base, [0; 2])
    };
    let full = a.part(0, BYTES as usize);
    assert_eq!(run(a.part(0, 3_999), 0).unwrap_err().kind(), out);
    assert_eq!(run(full.clone(), BYTES + 1).unwrap_err().kind(), out);
    assert_eq!(run(full, u64::MAX).unwrap_err().kind(), out);
    let foreign = b.part(0, BYTES as usize);
    assert_eq!(run(foreign, 0).unwrap_err().kind(), ErrorKind::Unsupported);
    let mut buffer = values(1);
    let buffers = Buffers::InPlace {
        buffer: &mut buffer,
        input_offset: 0,
        input_bytes: BYTES as usize,
        output_offset: 0,
        output_bytes: BYTES as usize,
    };
    let error = a
        .thread
        .run_blocking(&[], &program, buffers, 0, [0; 2], None)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let mut buffer = values(1);
    let buffers = Buffers::InPlace {
        buffer: &mut buffer,
        input_offset: 1,
        input_bytes: BYTES as usize,
        output_offset: 0,
        output_bytes: BYTES as usize,
    };
    let two_threads = two_threads(&a);
    let helper = [Thread::new(&a.domain, Engine::Cpu, 3).unwrap()];
    let error = a
        .thread
        .run_blocking(&helper, &two_threads, buffers, 0, [0; 2], None)
        .unwrap_err();
    assert_eq!(error.kind(), out);
    assert!(a.thread.poisoned().is_none() && a.thread.is_idle());
}
