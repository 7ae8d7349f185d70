//! Programs over links of each kind.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod sides;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hcomm_data::{
    At, Buffers, Engine, Op, PacketLines, Program, ProgramLink, ProgramParts, Slice, SlotKind,
    Thread, Turn,
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
            lent: None,
            packets: None,
            fingerprints: [0; 2],
        }],
        scratch: Some(side.part(0, 2 * BYTES as usize)),
        dtype: DataType::I32,
        redop: ReduceOp::Sum,
        input_bytes: BYTES,
        output_bytes: BYTES,
        lends: None,
        host_output_bytes: 0,
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
                        let turn = Turn {
                            scratch_base: base,
                            sequence: 1 + round as u64,
                        };
                        side.thread
                            .run(program, 0, input, output, turn, 700 + round as u64)
                            .unwrap();
                    }
                    a.thread.synchronize(None).unwrap();
                    b.thread.synchronize(None).unwrap();
                    for side in [&a, &b] {
                        assert!(
                            side.get(12_000, BYTES as usize) == sum(round, 100 * round),
                            "{link:?}"
                        );
                        // In one of the two words, by the number of the run.
                        for notify in [0, 1] {
                            let found = side.channel.fingerprint(notify).unwrap();
                            assert_eq!(found[(1 + round as usize) % 2], 700 + round as u64);
                        }
                    }
                }
            }
        }
    }
}

fn turn(round: i32) -> Turn {
    Turn {
        scratch_base: 0,
        sequence: 1 + round as u64,
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
                                    .run_blocking(&[], &program, buffers, turn(round), 12, None)
                                    .unwrap();
                                assert!(buffer == expected, "{link:?}");
                            } else {
                                let mut output = vec![0; buffer.len()];
                                let buffers = Buffers::Separate {
                                    input: &buffer,
                                    output: &mut output,
                                };
                                side.thread
                                    .run_blocking(&[], &program, buffers, turn(round), 12, None)
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
            .run_blocking(&helper, &program, buffers, 0, 0, None)
            .unwrap();
        assert!(input == output);
        let [input, output] = [8_000, 12_000].map(|offset| a.part(offset, BYTES as usize));
        input
            .copy_from(&pattern(round + 9, BYTES as usize))
            .unwrap();
        a.thread
            .run_team(&helper, &program, &input, &output, 0, 0)
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
        .run(&program, 0, slice.clone(), slice.clone(), 0, 0);
    refused(run, "run_team");
    let team = |others: &[Thread]| a.thread.run_team(others, &program, &slice, &slice, 0, 0);
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
            0,
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
            .run_blocking(&[], &program, buffers, 0, 0, Some(Duration::from_millis(5)))
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
                .run_blocking(&[], &program, buffers, 0, 0, None)
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
        a.thread.run(&program, 0, input, output, base, 0)
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
        .run_blocking(&[], &program, buffers, 0, 0, None)
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
        .run_blocking(&helper, &two_threads, buffers, 0, 0, None)
        .unwrap_err();
    assert_eq!(error.kind(), out);
    assert!(a.thread.poisoned().is_none() && a.thread.is_idle());
}

/// Where packet lines begin in a side's memory, and how many bytes they are: two sets of 32.
const LINES: (usize, usize) = (16_384, 2 * 32 * 64);

fn packet_parts(side: &Side, ops: Vec<Op>, bytes: u64) -> ProgramParts {
    let mut parts = parts(side, vec![ops]);
    parts.links[0].packets = Some(PacketLines {
        incoming: side.part(LINES.0, LINES.1),
        outgoing: side.far(LINES.0 as u64, LINES.1 as u64),
    });
    (parts.input_bytes, parts.output_bytes) = (bytes, bytes);
    parts
}

/// Each side sends its input in a packet; the second side has the packet as first operand.
fn all_reduce_in_packets(side: &Side, count: u64, swapped: bool) -> Arc<Program> {
    let ops = vec![
        Op::PacketWrite {
            link: 0,
            line: 1,
            src: INPUT,
            bytes: 4 * count,
        },
        Op::PacketReduce {
            link: 0,
            dst: OUTPUT,
            a: INPUT,
            line: 1,
            count,
            swapped,
        },
    ];
    Arc::new(Program::new(packet_parts(side, ops, 4 * count)).unwrap())
}

/// Each side sends its input, and gets the other's.
fn swap_in_packets(side: &Side, count: u64, _swapped: bool) -> Arc<Program> {
    let ops = vec![
        Op::PacketWrite {
            link: 0,
            line: 0,
            src: INPUT,
            bytes: 4 * count,
        },
        Op::PacketRead {
            link: 0,
            dst: OUTPUT,
            line: 0,
            bytes: 4 * count,
        },
    ];
    Arc::new(Program::new(packet_parts(side, ops, 4 * count)).unwrap())
}

#[test]
fn packets_on_two_os_threads_of_every_length() {
    let [a, b] = pair(Link::Mapped, 24_000);
    // Counts around the ends of lines: a line holds 14 elements.
    let counts = [0, 1, 2, 13, 14, 15, 28, 29, 300];
    std::thread::scope(|scope| {
        for (me, side) in [a, b].into_iter().enumerate() {
            scope.spawn(move || {
                let mut sequence = 0;
                for count in counts {
                    let bytes = 4 * count as usize;
                    let programs = [
                        all_reduce_in_packets(&side, count, me == 1),
                        swap_in_packets(&side, count, false),
                    ];
                    for round in 0..200_i32 {
                        sequence += 1;
                        let turn = Turn {
                            scratch_base: 0,
                            sequence,
                        };
                        let seeds = [round, 3 * round + 1];
                        let input = &values(seeds[me])[..bytes];
                        let mut output = vec![7; bytes];
                        let buffers = Buffers::Separate {
                            input,
                            output: &mut output,
                        };
                        let which = (sequence % 3 == 0) as usize;
                        side.thread
                            .run_blocking(&[], &programs[which], buffers, turn, 0, None)
                            .unwrap();
                        let expected = match which {
                            0 => sum(seeds[0], seeds[1]),
                            _ => values(seeds[1 - me]),
                        };
                        assert!(
                            output == expected[..bytes],
                            "{count} elements, run {sequence}"
                        );
                    }
                }
            });
        }
    });
}

#[test]
fn a_packet_comes_in_parts_and_its_reader_goes_on_from_there() {
    let [a, b] = pair(Link::Mapped, 24_000);
    let count = 40;
    let program = all_reduce_in_packets(&b, count, false);
    let bytes = 4 * count as usize;
    b.set(8_000, &values(5)[..bytes]);
    let slice = b.part(8_000, bytes);
    let turn = Turn {
        scratch_base: 0,
        sequence: 1,
    };
    // In place: what is combined twice would show.
    b.thread
        .run(&program, 0, slice.clone(), slice, turn, 0)
        .unwrap();
    let theirs = values(9);
    for line in 0..3_usize {
        assert!(!b.thread.is_idle());
        let offset = LINES.0 + (32 + 1 + line) * 64;
        let payload = &theirs[line * 56..bytes.min((line + 1) * 56)];
        let target = |bytes: usize| a.far(offset as u64, bytes as u64);
        a.set(0, payload);
        a.thread
            .write(
                &a.channel,
                &target(payload.len()),
                &a.part(0, payload.len()),
            )
            .unwrap();
        // Without its flag, or with that of an older run, it is not there.
        b.thread.drive().unwrap();
        a.set(0, &(1_u64 << 20).to_ne_bytes());
        a.thread
            .write(&a.channel, &a.far(offset as u64 + 56, 8), &a.part(0, 8))
            .unwrap();
        b.thread.drive().unwrap();
    }
    b.thread.synchronize(None).unwrap();
    assert!(b.get(8_000, bytes) == sum(5, 9)[..bytes]);
}

/// Two sides that run the same program for different calls: nothing but the fingerprint tells.
#[test]
fn a_peer_in_another_call_is_found_out_by_its_records_and_packets() {
    for packets in [false, true] {
        let [a, b] = pair(Link::Mapped, 24_000);
        let program = |side: &Side| {
            if packets {
                all_reduce_in_packets(side, 40, false)
            } else {
                all_reduce(side)
            }
        };
        let bytes = if packets { 160 } else { BYTES as usize };
        let run = |side: &Side, sequence, fingerprint| {
            let turn = Turn {
                scratch_base: 0,
                sequence,
            };
            let (input, output) = (side.part(8_000, bytes), side.part(14_000, bytes));
            let program = program(side);
            side.thread
                .run(&program, 0, input, output, turn, fingerprint)
        };
        // Run by run, as long as both are in the same one.
        for sequence in 1..=5 {
            run(&a, sequence, 77 + sequence).unwrap();
            run(&b, sequence, 77 + sequence).unwrap();
            a.thread.synchronize(None).unwrap();
            b.thread.synchronize(None).unwrap();
        }
        let begun = [run(&a, 6, 1234), run(&b, 6, 4321)];
        for (side, begun) in [&a, &b].into_iter().zip(begun) {
            let end = begun.and_then(|()| side.thread.synchronize(None));
            let error = end.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert!(error.to_string().contains("fingerprint"), "{error}");
        }
    }
}

#[test]
fn what_an_older_run_left_is_no_packet() {
    let [a, b] = pair(Link::Mapped, 24_000);
    let [pa, pb] = [&a, &b].map(|side| swap_in_packets(side, 2, false));
    let run = |side: &Side, program: &Arc<Program>, sequence| {
        let turn = Turn {
            scratch_base: 0,
            sequence,
        };
        let slice = |offset| side.part(offset, 8);
        side.thread
            .run(program, 0, slice(8_000), slice(12_000), turn, 0)
            .unwrap();
    };
    // Runs 1 and 3 use the same lines; what run 1 has left there is there to be mistaken.
    for sequence in 1..=3 {
        b.set(12_000, &[0; 8]);
        run(&b, &pb, sequence);
        assert!(!b.thread.is_idle(), "run {sequence}");
        assert_eq!(b.get(12_000, 8), [0; 8]);
        a.set(8_000, &sequence.to_ne_bytes());
        run(&a, &pa, sequence);
        b.thread.synchronize(None).unwrap();
        a.thread.synchronize(None).unwrap();
        assert_eq!(b.get(12_000, 8), sequence.to_ne_bytes());
    }
}

#[test]
fn what_packets_cannot_do_is_said_before_they_run() {
    let write = |line, bytes| Op::PacketWrite {
        link: 0,
        line,
        src: INPUT,
        bytes,
    };
    let refused = |parts: ProgramParts, kind: ErrorKind, text: &str| {
        let error = Program::new(parts).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    };
    let [a, b] = pair(Link::Mapped, 24_000);
    let (out, wrong) = (ErrorKind::OutOfBounds, ErrorKind::InvalidArgument);
    let on_a = |op, bytes| packet_parts(&a, vec![op], bytes);
    refused(on_a(write(32, 0), 8), out, "has 32");
    refused(on_a(write(31, 57), 100), out, "2 lines from line 31");
    refused(on_a(write(u32::MAX, 8), 8), out, "has 32");
    refused(on_a(write(0, 9), 8), out, "9 bytes");
    refused(
        parts(&a, vec![vec![write(0, 8)]]),
        ErrorKind::Unsupported,
        "carries no packets",
    );
    let into_input = Op::PacketRead {
        link: 0,
        dst: INPUT,
        line: 0,
        bytes: 8,
    };
    refused(on_a(into_input, 8), wrong, "read only");
    let smeared = Op::PacketReduce {
        link: 0,
        dst: at(SlotKind::Output, 4),
        a: OUTPUT,
        line: 0,
        count: 2,
        swapped: false,
    };
    refused(on_a(smeared, 12), wrong, "in part");

    let with_lines = |incoming: Slice, outgoing| {
        let mut parts = on_a(write(0, 8), 8);
        parts.links[0].packets = Some(PacketLines { incoming, outgoing });
        parts
    };
    let far = a.far(LINES.0 as u64, 128);
    refused(
        with_lines(a.part(LINES.0, 192), far.clone()),
        wrong,
        "192 bytes here and 128",
    );
    refused(
        with_lines(a.part(LINES.0 + 8, 128), far),
        wrong,
        "multiple of 64",
    );
    refused(
        with_lines(a.part(LINES.0, 128), b.far(LINES.0 as u64, 128)),
        wrong,
        "another channel",
    );
    for link in [Link::Inline, Link::Later] {
        let [a, _b] = pair(link, 24_000);
        let parts = packet_parts(&a, vec![write(0, 8)], 8);
        refused(parts, ErrorKind::Unsupported, "mapped");
    }

    // A run has to say which one it is.
    let program = swap_in_packets(&a, 2, false);
    let slice = a.part(0, 8);
    let error = a
        .thread
        .run(&program, 0, slice.clone(), slice, 0, 0)
        .unwrap_err();
    assert_eq!(error.kind(), wrong);
    assert!(error.to_string().contains("number of the run"), "{error}");
}
