//! Threads over links of each kind.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod sides;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hcomm_data::{BatchOp, Domain, Engine, Thread};
use hcomm_types::{DataType, Error, ErrorKind, Rank, ReduceOp};

use sides::{LINKS, Link, Side, cause, open, pair, pair_with, pattern, waiter};

fn words(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// Lets both sides go on until both are done.
fn finish(a: &Side, b: &Side) {
    a.thread.synchronize(None).unwrap();
    b.thread.synchronize(None).unwrap();
}

#[test]
fn a_write_is_seen_by_who_waited_for_its_notify() {
    for link in LINKS {
        let [a, b] = pair(link, 40_000);
        // Longer than one descriptor takes, and than the queue holds.
        for (bytes, notify) in [(1usize, 0u32), (999, 1), (17_003, 2), (0, 3)] {
            let sent = pattern(bytes as u8, bytes);
            a.set(0, &sent);
            b.set(20_000, &vec![0xee; bytes + 1]);
            // The wait first: it must not block anybody.
            b.thread.wait(&b.channel, notify).unwrap();
            assert!(!b.thread.is_idle());
            let dst = a.far(20_000, bytes as u64);
            a.thread
                .write_with_notify(&a.channel, &dst, &a.part(0, bytes), notify)
                .unwrap();
            b.thread.synchronize(None).unwrap();
            let found = b.get(20_000, bytes + 1);
            assert_eq!(found[..bytes], sent, "{link:?} {bytes}");
            assert_eq!(found[bytes], 0xee);
            a.thread.synchronize(None).unwrap();
            assert!(a.thread.is_idle());
        }
        assert_eq!(a.channel.records(), 4);
        assert_eq!(b.channel.arrived(0).unwrap(), 0);
    }
}

#[test]
fn single_numbers_and_sums_of_memory() {
    for link in LINKS {
        let [a, b] = pair(link, 4096);
        b.memory.store_u64(16, 1 << 63).unwrap();
        assert_eq!(b.memory.load_u64(16).unwrap(), 1 << 63);
        let far = a.far(8, 16);
        if link == Link::Mapped {
            assert_eq!(far.load_u64(8).unwrap(), 1 << 63);
            far.store_u64(0, 7).unwrap();
            assert_eq!(b.get(8, 8), 7u64.to_ne_bytes());
            // Past the end, and between two words.
            assert_eq!(far.load_u64(9).unwrap_err().kind(), ErrorKind::OutOfBounds);
            let between = a.far(4, 12).store_u64(0, 1).unwrap_err();
            assert_eq!(between.kind(), ErrorKind::InvalidArgument);
        } else {
            assert_eq!(far.load_u64(8).unwrap_err().kind(), ErrorKind::Unsupported);
        }
        let outside = b.memory.load_u64(4089).unwrap_err();
        assert_eq!(outside.kind(), ErrorKind::OutOfBounds);
    }
    let [a, _b] = pair(Link::Mapped, 4096);
    let bytes = pattern(3, 4096);
    a.set(0, &bytes);
    for (start, length) in [(0usize, 0usize), (0, 8), (3, 4001), (5, 7), (8, 4088)] {
        let expected = bytes[start..start + length]
            .chunks(8)
            .fold(0u64, |sum, part| {
                let mut word = [0; 8];
                word[..part.len()].copy_from_slice(part);
                sum.wrapping_add(u64::from_ne_bytes(word))
            });
        assert_eq!(
            a.part(start, length).sum_u64(),
            expected,
            "{start} {length}"
        );
    }
}

#[test]
fn a_read_is_here_before_the_next_local_task_and_the_next_record() {
    for link in LINKS {
        let [a, b] = pair(link, 30_000);
        let there = pattern(9, 5_000);
        b.set(0, &there);
        a.thread
            .read(&a.channel, &a.part(100, 5_000), &a.far(0, 5_000))
            .unwrap();
        a.thread
            .copy(&a.part(10_000, 5_000), &a.part(100, 5_000))
            .unwrap();
        // Sent on from where it was read to, behind a second read into the same place.
        a.thread
            .read(&a.channel, &a.part(100, 10), &a.far(50, 10))
            .unwrap();
        a.thread
            .write(&a.channel, &a.far(20_000, 5_000), &a.part(100, 5_000))
            .unwrap();
        a.thread.record(&a.channel, 4).unwrap();
        b.thread.wait(&b.channel, 4).unwrap();
        finish(&a, &b);
        assert_eq!(a.get(10_000, 5_000), there, "{link:?}");
        let mut second = there.clone();
        second[..10].copy_from_slice(&there[50..60]);
        assert_eq!(b.get(20_000, 5_000), second, "{link:?}");
    }
}

#[test]
fn reductions_here_and_there() {
    for link in LINKS {
        let [a, b] = pair(link, 8_192);
        let mine: Vec<i32> = (0..700).collect();
        let theirs: Vec<i32> = (0..700).map(|i| 1000 - 3 * i).collect();
        a.set(0, &words(&mine));
        b.set(0, &words(&theirs));
        let bytes = 2_800;
        a.thread
            .write_reduce(
                &a.channel,
                &a.far(0, bytes),
                &a.part(0, 2_800),
                DataType::I32,
                ReduceOp::Sum,
                Some(0),
            )
            .unwrap();
        b.thread.wait(&b.channel, 0).unwrap();
        finish(&a, &b);
        let sum: Vec<i32> = mine.iter().zip(&theirs).map(|(x, y)| x + y).collect();
        assert_eq!(b.get(0, 2_800), words(&sum), "{link:?}");
        a.thread
            .read_reduce(
                &a.channel,
                &a.part(0, 2_800),
                &a.far(0, bytes),
                DataType::I32,
                ReduceOp::Max,
                None,
            )
            .unwrap();
        a.thread
            .reduce(
                &a.part(4_000, 2_800),
                &a.part(0, 2_800),
                &a.part(0, 2_800),
                DataType::I32,
                ReduceOp::Prod,
            )
            .unwrap();
        a.thread.synchronize(None).unwrap();
        let max: Vec<i32> = mine.iter().zip(&sum).map(|(x, y)| *x.max(y)).collect();
        assert_eq!(a.get(0, 2_800), words(&max), "{link:?}");
        let square: Vec<i32> = max.iter().map(|x| x.wrapping_mul(*x)).collect();
        assert_eq!(a.get(4_000, 2_800), words(&square), "{link:?}");
    }
}

#[test]
fn a_batch_goes_before_its_notify_and_behind_what_was_queued() {
    for link in LINKS {
        for blocked in [false, true] {
            let [a, b] = pair(link, 60_000);
            a.set(0, &pattern(1, 20_000));
            b.set(50_000, &pattern(2, 3_000));
            let mut ops: Vec<BatchOp> = (0..40)
                .map(|i| BatchOp::Write {
                    dst: a.far(i * 500, 500),
                    src: a.part(i as usize * 500, 500),
                    notify: (i == 20).then_some(1),
                })
                .collect();
            ops.push(BatchOp::Read {
                dst: a.part(30_000, 3_000),
                src: a.far(50_000, 3_000),
                notify: None,
            });
            ops.push(BatchOp::Record { notify: 2 });
            if blocked {
                a.thread.wait_thread(0).unwrap();
            }
            a.thread.batch(&a.channel, &ops).unwrap();
            b.thread.wait(&b.channel, 1).unwrap();
            if blocked {
                assert_eq!(a.channel.records(), 0);
                let other = Thread::new(&a.domain, Engine::Cpu, 0).unwrap();
                other.record_thread(&a.thread, 0).unwrap();
            }
            b.thread.synchronize(None).unwrap();
            let first = 21 * 500;
            assert_eq!(b.get(0, first), pattern(1, 20_000)[..first], "{link:?}");
            b.thread.wait(&b.channel, 2).unwrap();
            b.thread.synchronize(None).unwrap();
            assert_eq!(b.get(0, 20_000), pattern(1, 20_000), "{link:?}");
            assert_eq!(a.get(30_000, 3_000), pattern(2, 3_000), "{link:?}");
            a.thread.synchronize(None).unwrap();
            assert_eq!(a.channel.records(), 2);
        }
    }
}

/// Links that cost something for each piece are asked for few.
#[test]
fn pieces_of_a_batch_that_lie_side_by_side_go_as_one() {
    let [a, b] = pair(Link::Inline, 60_000);
    let sent = pattern(1, 20_000);
    a.set(0, &sent);
    let side_by_side: fn(u64) -> u64 = |piece| piece;
    // At the peer, too; here alone; there in pairs.
    for (place, posted) in [(side_by_side, 1), (|i| 2 * i, 40), (|i| i + i / 2, 20)] {
        let mut ops: Vec<BatchOp> = (0..40)
            .map(|piece| BatchOp::Write {
                dst: a.far(place(piece) * 500, 500),
                src: a.part(piece as usize * 500, 500),
                notify: None,
            })
            .collect();
        ops.push(BatchOp::Record { notify: 1 });
        b.set(0, &vec![0; 60_000]);
        let before = a.device.counters().unwrap().descriptors;
        a.thread.batch(&a.channel, &ops).unwrap();
        b.thread.wait(&b.channel, 1).unwrap();
        finish(&a, &b);
        assert_eq!(a.device.counters().unwrap().descriptors - before, posted);
        for piece in 0..40 {
            let found = b.get(place(piece as u64) as usize * 500, 500);
            assert_eq!(
                found,
                sent[piece * 500..][..500],
                "piece {piece} of {posted}"
            );
        }
    }
}

/// What is read is here before the peer is told that it may change it.
#[test]
fn the_notify_of_a_read_follows_it() {
    for link in LINKS {
        for blocked in [false, true] {
            let [a, b] = pair(link, 20_000);
            let numbers: Vec<i32> = (0..750).map(|i| 7 * i - 1000).collect();
            a.set(0, &pattern(4, 3_000));
            a.set(6_000, &words(&numbers));
            b.set(0, &pattern(5, 3_000));
            b.set(3_000, &words(&numbers));
            // The peer spoils its memory as soon as it may.
            for (notify, offset) in [(0, 0), (1, 3_000)] {
                b.thread.wait(&b.channel, notify).unwrap();
                b.thread
                    .copy(&b.part(offset, 3_000), &b.part(10_000, 3_000))
                    .unwrap();
            }
            if blocked {
                a.thread.wait_thread(0).unwrap();
            }
            a.thread
                .read_with_notify(&a.channel, &a.part(0, 3_000), &a.far(0, 3_000), 0)
                .unwrap();
            a.thread
                .read_reduce(
                    &a.channel,
                    &a.part(6_000, 3_000),
                    &a.far(3_000, 3_000),
                    DataType::I32,
                    ReduceOp::Sum,
                    Some(1),
                )
                .unwrap();
            if blocked {
                assert!(!b.thread.drive().unwrap(), "{link:?}: told before the read");
                let other = Thread::new(&a.domain, Engine::Cpu, 0).unwrap();
                other.record_thread(&a.thread, 0).unwrap();
            }
            finish(&a, &b);
            assert_eq!(a.get(0, 3_000), pattern(5, 3_000), "{link:?}");
            let doubled: Vec<i32> = numbers.iter().map(|n| 2 * n).collect();
            assert_eq!(a.get(6_000, 3_000), words(&doubled), "{link:?}");
            assert_eq!(b.get(0, 6_000), [0; 6_000], "{link:?}");
            assert_eq!(a.channel.records(), 2);
        }
    }
}

/// All kinds in one batch, each with and without a notify.
#[test]
fn a_batch_holds_every_kind_of_piece() {
    const PART: usize = 1_200;
    let (dtype, redop) = (DataType::I32, ReduceOp::Sum);
    let ones = vec![1; PART / 4];
    for link in LINKS {
        let [a, b] = pair(link, 12 * PART);
        let near = |index: usize| a.part(index * PART, PART);
        let far = |index: usize| a.far((index * PART) as u64, PART as u64);
        for side in [&a, &b] {
            (0..8).for_each(|index| side.set(index * PART, &words(&ones)));
        }
        let notifies = [None, Some(0), None, Some(1), None, Some(2), None, Some(3)];
        let mut ops = Vec::new();
        for (index, notify) in notifies.into_iter().enumerate() {
            let (near, far) = (near(index), far(index));
            ops.push(match index / 2 {
                0 => {
                    near.copy_from(&pattern(index as u8, PART)).unwrap();
                    BatchOp::Write {
                        dst: far,
                        src: near,
                        notify,
                    }
                }
                1 => {
                    b.set(index * PART, &pattern(index as u8, PART));
                    BatchOp::Read {
                        dst: near,
                        src: far,
                        notify,
                    }
                }
                2 => BatchOp::WriteReduce {
                    dst: far,
                    src: near,
                    dtype,
                    redop,
                    notify,
                },
                _ => BatchOp::ReadReduce {
                    dst: near,
                    src: far,
                    dtype,
                    redop,
                    notify,
                },
            });
        }
        ops.push(BatchOp::Record { notify: 4 });
        a.thread.batch(&a.channel, &ops).unwrap();
        for notify in 0..5 {
            b.thread.wait(&b.channel, notify).unwrap();
        }
        finish(&a, &b);
        let twos = words(&vec![2; PART / 4]);
        for index in 0..8 {
            let (mine, theirs) = (a.get(index * PART, PART), b.get(index * PART, PART));
            let (expected, there) = match index / 2 {
                0 | 1 => (pattern(index as u8, PART), pattern(index as u8, PART)),
                2 => (words(&ones), twos.clone()),
                _ => (twos.clone(), words(&ones)),
            };
            assert!(mine == expected && theirs == there, "{link:?} {index}");
        }
        assert_eq!(a.channel.records(), 5);
    }
}

/// A mapped peer's memory is an address, and a local copy or reduction moves the data.
#[test]
fn memory_of_a_peer_is_used_like_local_memory_where_it_is_mapped() {
    let (dtype, redop) = (DataType::I32, ReduceOp::Sum);
    for blocked in [false, true] {
        let [a, b] = pair(Link::Mapped, 4_000);
        a.set(0, &words(&[1, 2, 3]));
        b.set(0, &words(&[10, 20, 30]));
        if blocked {
            a.thread.wait_thread(0).unwrap();
        }
        let (near, far) = (a.part(0, 12), a.far(0, 12));
        a.thread.copy(&a.part(100, 12), &far).unwrap();
        a.thread.reduce(&far, &near, &far, dtype, redop).unwrap();
        a.thread.copy(&a.far(200, 12), &near).unwrap();
        a.thread.copy(&a.far(300, 12), &a.far(200, 12)).unwrap();
        a.thread.record(&a.channel, 0).unwrap();
        b.thread.wait(&b.channel, 0).unwrap();
        if blocked {
            let other = Thread::new(&a.domain, Engine::Cpu, 0).unwrap();
            other.record_thread(&a.thread, 0).unwrap();
        }
        finish(&a, &b);
        assert_eq!(a.get(100, 12), words(&[10, 20, 30]));
        assert_eq!(b.get(0, 12), words(&[11, 22, 33]));
        assert_eq!(b.get(200, 12), words(&[1, 2, 3]));
        assert_eq!(b.get(300, 12), words(&[1, 2, 3]));
        let (whole, part) = (a.far(0, 4_000), a.far(64, 1));
        let base = whole.address().unwrap().as_ptr() as usize;
        assert_eq!(part.address().unwrap().as_ptr() as usize, base + 64);
        assert_eq!(base, b.memory.region().address().as_ptr() as usize);
    }
    for link in [Link::Inline, Link::Later] {
        let [a, _b] = pair(link, 100);
        assert_eq!(a.far(0, 4).address(), None);
        let error = a.thread.copy(&a.far(0, 4), &a.part(0, 4)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let (near, far) = (a.part(0, 4), a.far(0, 4));
        let error = a.thread.reduce(&near, &near, &far, dtype, redop);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(a.thread.poisoned().is_none());
    }
}

#[test]
fn fence_and_drain_wait_for_what_is_in_flight() {
    for link in LINKS {
        let [a, b] = pair(link, 10_000);
        a.set(0, &pattern(3, 3_500));
        a.thread
            .write(&a.channel, &a.far(0, 3_500), &a.part(0, 3_500))
            .unwrap();
        a.thread.fence(&a.channel).unwrap();
        a.thread.drain().unwrap();
        a.thread.synchronize(None).unwrap();
        assert_eq!(b.get(0, 3_500), pattern(3, 3_500), "{link:?}");
    }
}

#[test]
fn a_local_task_waits_only_for_what_it_touches() {
    let [a, b] = pair(Link::Later, 10_000);
    let (sent, other) = (pattern(3, 1_000), pattern(4, 1_000));
    a.set(0, &sent);
    a.set(2_000, &other);
    a.thread
        .write(&a.channel, &a.far(0, 1_000), &a.part(0, 1_000))
        .unwrap();
    // Done at once: elsewhere, and from where it is sent from.
    let copy = |to, from| a.thread.copy(&a.part(to, 1_000), &a.part(from, 1_000));
    copy(4_000, 2_000).unwrap();
    copy(5_000, 0).unwrap();
    assert_eq!(a.get(4_000, 1_000), other);
    assert_eq!(a.get(5_000, 1_000), sent);
    assert!(!a.thread.is_idle());
    // To where it is sent from: not before it is gone.
    copy(500, 2_000).unwrap();
    assert_eq!(a.get(500, 500), sent[500..]);
    a.thread.record(&a.channel, 0).unwrap();
    b.thread.wait(&b.channel, 0).unwrap();
    finish(&a, &b);
    assert_eq!(b.get(0, 1_000), sent);
    assert_eq!(a.get(500, 1_000), other);
}

#[test]
fn a_thread_does_not_wait_for_what_another_has_posted() {
    let [a, b] = pair(Link::Later, 10_000);
    let other = Thread::new(&a.domain, Engine::Cpu, 1).unwrap();
    a.set(0, &pattern(3, 2_000));
    other
        .write(&a.channel, &a.far(0, 1_000), &a.part(0, 1_000))
        .unwrap();
    while a.channel.transport().device().progress().unwrap() {}
    a.thread
        .write(&a.channel, &a.far(1_000, 1_000), &a.part(1_000, 1_000))
        .unwrap();
    assert!(other.is_idle(), "its own has completed");
    assert!(!a.thread.is_idle(), "that of this one has not");
    finish(&a, &b);
    assert_eq!(b.get(0, 2_000), pattern(3, 2_000));
}

#[test]
fn two_threads_take_turns_by_their_notifies() {
    let [a, _b] = pair(Link::Mapped, 1_000);
    let other = Thread::new(&a.domain, Engine::Cpu, 2).unwrap();
    a.set(0, &[1, 2, 3, 4]);
    // Enqueued in the wrong order: each waits for the other.
    a.thread.wait_thread(1).unwrap();
    a.thread.copy(&a.part(20, 4), &a.part(10, 4)).unwrap();
    other.wait_thread(0).unwrap();
    other.copy(&a.part(10, 4), &a.part(0, 4)).unwrap();
    other.record_thread(&a.thread, 1).unwrap();
    assert!(!a.thread.is_idle() && !other.is_idle());
    let third = Thread::new(&a.domain, Engine::Cpu, 0).unwrap();
    third.record_thread(&other, 0).unwrap();
    // The submission above has driven them.
    assert!(a.thread.is_idle() && other.is_idle());
    assert_eq!(a.get(20, 4), [1, 2, 3, 4]);
}

#[test]
fn waits_before_their_records_do_not_deadlock_across_domains() {
    for link in LINKS {
        let [a, b] = pair(link, 1_000);
        for round in 0..20u8 {
            // Ping and pong, all waits first, on one OS thread.
            b.thread.wait(&b.channel, 0).unwrap();
            b.thread.copy(&b.part(100, 50), &b.part(0, 50)).unwrap();
            b.thread
                .write_with_notify(&b.channel, &b.far(200, 50), &b.part(100, 50), 1)
                .unwrap();
            a.thread.wait(&a.channel, 1).unwrap();
            assert!(!a.thread.is_idle());
            let pinger = Thread::new(&a.domain, Engine::Cpu, 0).unwrap();
            a.set(0, &pattern(round, 50));
            pinger
                .write_with_notify(&a.channel, &a.far(0, 50), &a.part(0, 50), 0)
                .unwrap();
            a.thread.synchronize(None).unwrap();
            assert_eq!(a.get(200, 50), pattern(round, 50), "{link:?}");
        }
    }
}

#[test]
fn sides_on_two_os_threads() {
    for link in LINKS {
        let [a, b] = pair(link, 4_000);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for round in 0..200u8 {
                    b.thread.wait(&b.channel, 0).unwrap();
                    b.thread
                        .copy(&b.part(2_000, 1_500), &b.part(0, 1_500))
                        .unwrap();
                    b.thread
                        .write_with_notify(
                            &b.channel,
                            &b.far(2_000, 1_500),
                            &b.part(2_000, 1_500),
                            1,
                        )
                        .unwrap();
                    b.thread.synchronize(None).unwrap();
                    assert!(b.get(2_000, 1_500) == pattern(round, 1_500), "{link:?}");
                }
            });
            for round in 0..200u8 {
                a.set(0, &pattern(round, 1_500));
                a.thread
                    .write_with_notify(&a.channel, &a.far(0, 1_500), &a.part(0, 1_500), 0)
                    .unwrap();
                a.thread.wait(&a.channel, 1).unwrap();
                a.thread.synchronize(None).unwrap();
                assert!(a.get(2_000, 1_500) == pattern(round, 1_500), "{link:?}");
            }
        });
    }
}

#[test]
fn a_thread_moves_with_its_handle() {
    let [a, b] = pair(Link::Later, 1_000);
    b.thread.wait(&b.channel, 0).unwrap();
    let thread = b.thread.clone();
    let other = std::thread::spawn(move || thread.synchronize(None));
    a.thread.record(&a.channel, 0).unwrap();
    a.thread.synchronize(None).unwrap();
    other.join().unwrap().unwrap();
    assert!(b.thread.is_idle());
}

#[test]
fn a_wait_that_times_out_says_what_for_and_takes_nothing() {
    let [a, b] = pair(Link::Mapped, 100);
    b.thread.wait(&b.channel, 5).unwrap();
    b.thread.copy(&b.part(0, 1), &b.part(1, 1)).unwrap();
    let error = b
        .thread
        .synchronize(Some(Duration::from_millis(5)))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.culprits(), [Rank(0)]);
    let text = error.to_string();
    for part in ["wait", "notify 5", "2 queued", "after", "link test"] {
        assert!(text.contains(part), "{text}");
    }
    // Poisoned with it, and the record that comes now is there for somebody else.
    a.thread.record(&a.channel, 5).unwrap();
    assert_eq!(b.thread.drain().unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(b.channel.arrived(5).unwrap(), 1);
    let fresh = Thread::new(&b.domain, Engine::Cpu, 0).unwrap();
    fresh.wait(&b.channel, 5).unwrap();
    assert!(fresh.is_idle());
}

#[test]
fn the_domain_has_a_deadline_of_its_own() {
    let [_a, b] = pair_with(Link::Later, 100, Duration::from_millis(5));
    b.thread.wait_thread(1).unwrap();
    let error = b.thread.synchronize(None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("notify 1 of another thread"));
}

#[test]
fn an_abort_from_another_os_thread_wakes_a_sleeper() {
    for link in [Link::Mapped, Link::Later] {
        let [_a, b] = pair(link, 100);
        let second = Thread::new(&b.domain, Engine::Cpu, 0).unwrap();
        let asleep = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (domain, asleep) = (&b.domain, &asleep);
            scope.spawn(move || {
                while !asleep.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                domain.abort(cause("first"));
                domain.abort(cause("second"));
            });
            b.thread.wait(&b.channel, 0).unwrap();
            asleep.store(true, Ordering::Release);
            let error = b.thread.synchronize(None).unwrap_err();
            assert_eq!(error.detail(), "first");
        });
        assert_eq!(b.thread.poisoned().unwrap().detail(), "first");
        assert_eq!(b.domain.aborted().unwrap().detail(), "first");
        assert_eq!(second.drain().unwrap_err().detail(), "first");
        assert!(b.thread.is_idle());
    }
}

#[test]
fn a_lost_peer_ends_who_waits_and_nobody_else() {
    let [a, b] = pair(Link::Later, 100);
    let patient = Thread::new(&b.domain, Engine::Cpu, 0).unwrap();
    b.thread.wait(&b.channel, 0).unwrap();
    let lost = Error::new(ErrorKind::PeerLost, "rank 0 has exited").blame_rank(Rank(0));
    b.peers.0.set(lost).unwrap();
    let error = b.thread.synchronize(None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerLost);
    assert_eq!(error.detail(), "rank 0 has exited");
    // What needs no peer still works.
    patient.copy(&b.part(0, 5), &b.part(50, 5)).unwrap();
    patient.synchronize(None).unwrap();
    drop(a);
}

#[test]
fn a_link_that_ends_is_named_and_what_had_arrived_counts() {
    for link in [Link::Mapped, Link::Later] {
        let [a, b] = pair(link, 100);
        a.thread.record(&a.channel, 0).unwrap();
        a.thread.synchronize(None).unwrap();
        drop(a);
        b.thread.wait(&b.channel, 0).unwrap();
        b.thread.synchronize(None).unwrap();
        b.thread.wait(&b.channel, 0).unwrap();
        let error = b.thread.synchronize(None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{link:?}");
        assert_eq!(error.culprits(), [Rank(0)]);
    }
}

#[test]
fn the_first_failure_is_the_answer_to_everything_later() {
    let [a, b] = pair(Link::Mapped, 100);
    drop(a);
    // Queued behind a wait, so that it fails later, when it runs.
    b.thread.wait_thread(0).unwrap();
    b.thread.record(&b.channel, 0).unwrap();
    b.thread.copy(&b.part(0, 4), &b.part(4, 4)).unwrap();
    b.set(4, &[9; 4]);
    let other = Thread::new(&b.domain, Engine::Cpu, 0).unwrap();
    other.record_thread(&b.thread, 0).unwrap();
    let first = b.thread.synchronize(None).unwrap_err();
    assert_eq!(first.kind(), ErrorKind::PeerLost);
    assert_eq!(first.culprits(), [Rank(0)]);
    for later in [
        b.thread.drain(),
        b.thread.wait(&b.channel, 0),
        b.thread.batch(&b.channel, &[]),
        b.thread.synchronize(None),
        b.thread.drive().map(|_| ()),
    ] {
        assert_eq!(later.unwrap_err().to_string(), first.to_string());
    }
    // Nothing behind the failure ran.
    assert_eq!(b.get(0, 4), [0; 4]);
    assert!(other.poisoned().is_none());
}

#[test]
fn what_is_wrong_is_refused_at_submission_and_poisons_nothing() {
    let [a, b] = pair(Link::Later, 100);
    let [c, _d] = pair(Link::LaterBare, 100);
    let refused = |result: hcomm_types::Result<()>, kind: ErrorKind| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    };
    let t = &a.thread;
    assert_eq!(
        a.memory.sub(50..101).unwrap_err().kind(),
        ErrorKind::OutOfBounds
    );
    assert_eq!(
        a.remote.sub(101..101).unwrap_err().kind(),
        ErrorKind::OutOfBounds
    );
    #[allow(clippy::reversed_empty_ranges, reason = "what is tested")]
    let backwards = a.memory.sub(5..4);
    assert_eq!(backwards.unwrap_err().kind(), ErrorKind::OutOfBounds);
    refused(a.memory.copy_from(&[0; 99]), ErrorKind::OutOfBounds);
    refused(
        t.write(&a.channel, &a.far(0, 9), &a.part(0, 8)),
        ErrorKind::OutOfBounds,
    );
    refused(
        t.write(&a.channel, &b.far(0, 8), &a.part(0, 8)),
        ErrorKind::InvalidArgument,
    );
    refused(t.copy(&a.part(0, 9), &a.part(0, 8)), ErrorKind::OutOfBounds);
    refused(
        t.reduce(
            &a.part(0, 6),
            &a.part(0, 6),
            &a.part(0, 6),
            DataType::I32,
            ReduceOp::Sum,
        ),
        ErrorKind::OutOfBounds,
    );
    refused(t.record(&a.channel, 64), ErrorKind::InvalidArgument);
    refused(t.wait(&a.channel, 8), ErrorKind::InvalidArgument);
    refused(t.wait_thread(4), ErrorKind::InvalidArgument);
    refused(t.record_thread(&b.thread, 4), ErrorKind::InvalidArgument);
    // A device that moves only what it knows, and memory of another one.
    refused(
        c.thread.write(&c.channel, &c.far(0, 8), &a.part(0, 8)),
        ErrorKind::Unsupported,
    );
    let piece = BatchOp::Write {
        dst: a.far(0, 9),
        src: a.part(0, 8),
        notify: None,
    };
    refused(t.batch(&a.channel, &[piece]), ErrorKind::OutOfBounds);
    assert!(t.poisoned().is_none() && t.is_idle());
    // A result that smears over its operand is seen only when it runs.
    refused(
        t.reduce(
            &a.part(0, 8),
            &a.part(4, 8),
            &a.part(50, 8),
            DataType::I32,
            ReduceOp::Sum,
        ),
        ErrorKind::InvalidArgument,
    );
}

#[test]
fn threads_and_notifies_have_their_limits() {
    let peers = std::sync::Arc::new(sides::Watched::default());
    let domain = Domain::new(waiter(), peers, Duration::ZERO);
    let error = Thread::new(&domain, Engine::Cpu, 641).unwrap_err();
    assert!(error.to_string().contains("640"), "{error}");
    let mut threads: Vec<_> = (0..40)
        .map(|_| Thread::new(&domain, Engine::Cpu, 640).unwrap())
        .collect();
    let error = Thread::new(&domain, Engine::Cpu, 0).unwrap_err();
    assert!(error.to_string().contains("40"), "{error}");
    threads.pop();
    Thread::new(&domain, Engine::Cpu, 0).unwrap();
}

#[test]
fn memory_in_flight_outlives_its_handles() {
    let [a, b] = pair(Link::Later, 4_000);
    let bytes = pattern(7, 4_000);
    // Memory of another device, known to nobody else after this block.
    {
        let region = open(Link::Mapped).allocate(4_000).unwrap();
        let slice = hcomm_data::Slice::of(&region);
        slice.copy_from(&bytes).unwrap();
        a.thread
            .write_with_notify(&a.channel, &a.far(0, 4_000), &slice, 0)
            .unwrap();
    }
    b.thread.wait(&b.channel, 0).unwrap();
    finish(&a, &b);
    assert_eq!(b.get(0, 4_000), bytes);
}

#[test]
fn a_mark_is_reached_before_what_comes_later() {
    for link in LINKS {
        let [a, b] = pair(link, 4096);
        assert!(
            a.thread.mark().is_reached().unwrap(),
            "nothing was put there"
        );
        a.thread.wait(&a.channel, 0).unwrap();
        let first = a.thread.mark();
        a.thread.wait(&a.channel, 1).unwrap();
        let second = a.thread.mark();
        assert!(!first.is_reached().unwrap());
        assert!(!first.wait_for(Duration::from_millis(1)).unwrap());
        b.thread.record(&b.channel, 0).unwrap();
        b.thread.synchronize(None).unwrap();
        first.wait(None).unwrap();
        assert!(!second.is_reached().unwrap() && !a.thread.is_idle());
        // What fails later leaves it reached.
        let timeout = second.wait(Some(Duration::from_millis(1))).unwrap_err();
        assert_eq!(timeout.kind(), ErrorKind::Timeout);
        assert!(first.is_reached().unwrap());
        first.wait(None).unwrap();
        for mark in [second, a.thread.mark()] {
            let again = mark.is_reached().unwrap_err();
            assert_eq!(again.to_string(), timeout.to_string());
        }
    }
}
