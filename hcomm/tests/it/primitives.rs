//! The data plane's own calls: transfers with notify, windows, memory of the user, limits.

use std::time::Duration;

use hcomm::{
    BatchOp, Communicator, Counters, DataType, ErrorKind, Options, Rank, ReduceOp, Settings, Slice,
    Thread,
};

use crate::job::{self, Job};
use crate::team;

const PART: usize = 4_099 * 4;

/// Bytes that tell rank, use and position.
fn pattern(rank: u32, number: usize, bytes: usize) -> Vec<u8> {
    let seed = (rank as usize * 59 + number * 17) as u8;
    (0..bytes)
        .map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed)
        .collect()
}

fn contents(slice: &Slice) -> Vec<u8> {
    let mut found = vec![0; slice.bytes()];
    slice.copy_to(&mut found).unwrap();
    found
}

fn added(a: &[u8], b: &[u8]) -> Vec<u8> {
    a.iter().zip(b).map(|(a, b)| a.wrapping_add(*b)).collect()
}

/// What moved bytes besides loads and stores.
fn detours(before: Counters, after: Counters) -> (u64, u64) {
    (
        after.control_messages - before.control_messages,
        after.bytes_staged - before.bytes_staged,
    )
}

fn part(slice: &Slice, index: usize) -> Slice {
    slice.sub(index * PART..(index + 1) * PART).unwrap()
}

/// Of each pair, the even rank moves and the odd one looks on and is told.
pub(crate) fn every_kind_with_notify(comm: &Communicator) {
    const PARTS: usize = 9;
    let me = comm.rank().0;
    let partner = Rank(me ^ 1);
    let window = comm.window("kinds", PARTS * PART).unwrap();
    let link = comm.open_channel(partner, 8).unwrap();
    let channel = &link.channel;
    let thread = comm.thread(0).unwrap();
    let mine = |index| part(window.local(), index);
    let theirs = |index: usize| {
        let start = (index * PART) as u64;
        let whole = window.of(partner).unwrap();
        whole.sub(start..start + PART as u64).unwrap()
    };
    for index in 0..PARTS {
        mine(index).copy_from(&pattern(me, index, PART)).unwrap();
    }
    comm.barrier().unwrap();
    let (dtype, redop) = (DataType::U8, ReduceOp::Sum);
    let of = |rank: Rank, index: usize| pattern(rank.0, index, PART);
    let waited = |notify| {
        thread.wait(channel, notify).unwrap();
        thread.synchronize(None).unwrap();
    };
    if me.is_multiple_of(2) {
        (thread.write_with_notify(channel, &theirs(0), &mine(0), 0)).unwrap();
        (thread.read_with_notify(channel, &mine(1), &theirs(1), 1)).unwrap();
        (thread.write_reduce(channel, &theirs(2), &mine(2), dtype, redop, Some(2))).unwrap();
        (thread.read_reduce(channel, &mine(3), &theirs(3), dtype, redop, Some(3))).unwrap();
        let batch = [
            BatchOp::Write {
                dst: theirs(4),
                src: mine(4),
                notify: Some(4),
            },
            BatchOp::Read {
                dst: mine(5),
                src: theirs(5),
                notify: Some(5),
            },
            BatchOp::WriteReduce {
                dst: theirs(6),
                src: mine(6),
                dtype,
                redop,
                notify: Some(6),
            },
            BatchOp::ReadReduce {
                dst: mine(7),
                src: theirs(7),
                dtype,
                redop,
                notify: Some(7),
            },
            BatchOp::Record { notify: 0 },
        ];
        thread.batch(channel, &batch).unwrap();
        thread.fence(channel).unwrap();
        thread.drain().unwrap();
        thread.synchronize(None).unwrap();
        for (index, sums) in [(1, false), (3, true), (5, false), (7, true)] {
            let theirs = of(partner, index);
            let expected = if sums {
                added(&of(comm.rank(), index), &theirs)
            } else {
                theirs
            };
            assert!(contents(&mine(index)) == expected, "part {index}");
        }
        assert_eq!(channel.records(), 9 + 1, "with the handshake's");
    } else {
        for (index, notify) in [
            (0, 0),
            (1, 1),
            (2, 2),
            (3, 3),
            (4, 4),
            (5, 5),
            (6, 6),
            (7, 7),
        ] {
            waited(notify);
            let found = contents(&mine(index));
            let expected = match index {
                0 | 4 => of(partner, index),
                2 | 6 => added(&of(comm.rank(), index), &of(partner, index)),
                _ => of(comm.rank(), index),
            };
            assert!(found == expected, "part {index}");
            if index % 2 == 1 {
                // Its reader has said that it is done: what happens here now changes nothing.
                mine(index).copy_from(&vec![0; PART]).unwrap();
            }
        }
        waited(0);
    }
    comm.barrier().unwrap();
}

/// One-sided writes to mapped memory are one message each, from where the user keeps the bytes to
/// where the peer reads them: nobody says anything else, and no byte takes a rest.
pub(crate) fn a_write_is_one_message_without_copies(comm: &Communicator) {
    const WRITES: usize = 100;
    let me = comm.rank().0;
    let partner = Rank(me ^ 1);
    let bytes = 128 << 10;
    let window = comm.window("target", bytes).unwrap();
    let mut source = comm.register("source", pattern(me, 1, bytes)).unwrap();
    let link = comm.open_channel(partner, 1).unwrap();
    let thread = comm.thread(0).unwrap();
    comm.barrier().unwrap();
    let (before, records) = (comm.counters(), link.channel.records());
    for _ in 0..WRITES {
        let (dst, src) = (window.of(partner).unwrap(), source.slice().unwrap());
        (thread.write_with_notify(&link.channel, dst, src, 0)).unwrap();
        thread.wait(&link.channel, 0).unwrap();
        thread.synchronize(None).unwrap();
    }
    let after = comm.counters();
    assert_eq!(detours(before, after), (0, 0), "{before:?} {after:?}");
    assert_eq!(link.channel.records() - records, WRITES as u64);
    assert!(contents(window.local()) == pattern(partner.0, 1, bytes));
    comm.barrier().unwrap();
    assert!(*source.deregister().unwrap() == pattern(me, 1, bytes));
}

/// Every rank puts its part into every window, by transfers and by local copies.
pub(crate) fn windows(comm: &Communicator) {
    let (me, size) = (comm.rank().0 as usize, comm.size() as usize);
    let peers: Vec<Rank> = (0..comm.size())
        .map(Rank)
        .filter(|&p| p != comm.rank())
        .collect();
    let first = comm.window("first", size * PART).unwrap();
    let second = comm.window("second", size * PART).unwrap();
    assert_eq!((first.bytes(), first.name()), (size * PART, "first"));
    let thread = comm.thread(0).unwrap();
    let source = comm.allocate("source", PART).unwrap();
    source.copy_from(&pattern(me as u32, 3, PART)).unwrap();
    let links: Vec<_> = peers
        .iter()
        .map(|&peer| comm.open_channel(peer, 1).unwrap())
        .collect();
    for window in [&first, &second] {
        thread.copy(&part(window.local(), me), &source).unwrap();
    }
    let mine = (me * PART) as u64..((me + 1) * PART) as u64;
    for link in &links {
        let dst = first.of(link.peer).unwrap().sub(mine.clone()).unwrap();
        thread.write(&link.channel, &dst, &source).unwrap();
        // Through the memory itself.
        let dst = second.of(link.peer).unwrap().sub(mine.clone()).unwrap();
        thread.copy(&dst, &source).unwrap();
        thread.record(&link.channel, 0).unwrap();
        let (base, part) = (
            first.address_of(link.peer).unwrap(),
            first.of(link.peer).unwrap(),
        );
        assert_eq!(part.address(), Some(base));
        // Later channels know it by its tag.
        assert_eq!(link.memory("first").unwrap().bytes(), first.bytes() as u64);
    }
    assert_eq!(
        first.address_of(comm.rank()),
        Some(first.local().region().address())
    );
    assert_eq!(first.address_of(Rank(comm.size())), None);
    for link in &links {
        thread.wait(&link.channel, 0).unwrap();
    }
    thread.synchronize(None).unwrap();
    for window in [&first, &second] {
        for rank in 0..size {
            let found = contents(&part(window.local(), rank));
            assert!(
                found == pattern(rank as u32, 3, PART),
                "of rank {rank} on {me}"
            );
        }
    }
    for wrong in [comm.rank(), Rank(comm.size())] {
        let error = first.of(wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    // What was dropped everywhere can be made again.
    comm.barrier().unwrap();
    drop((first, second));
    for bytes in [1, 3 * PART, 4096] {
        let again = comm.window("first", bytes).unwrap();
        assert_eq!(contents(again.local()), vec![0; bytes]);
    }
}

/// Everybody hears of it, and goes on.
pub(crate) fn windows_that_differ(comm: &Communicator) {
    let me = comm.rank();
    let odd = Rank(1);
    let is_odd = me == odd;
    let all = |error: hcomm::Error, kind: ErrorKind, words: &[&str]| {
        assert_eq!(error.kind(), kind, "rank {me}: {error}");
        for word in words {
            assert!(error.to_string().contains(word), "`{word}` not in: {error}");
        }
        if comm.size() > 2 {
            let itself = is_odd && error.culprits().is_empty();
            assert!(itself || error.culprits() == [odd], "rank {me}: {error:?}");
        }
    };
    let bytes = if is_odd { 8192 } else { 4096 };
    let error = comm.window("sizes", bytes).unwrap_err();
    all(
        error,
        ErrorKind::Mismatch,
        &["4096 bytes", "rank 1 has 8192 bytes", "`sizes`"],
    );
    let error = comm.window(if is_odd { "b" } else { "a" }, 64).unwrap_err();
    all(error, ErrorKind::Mismatch, &["`a`", "rank 1 has `b`"]);
    let _taken = is_odd.then(|| comm.allocate("taken", 1).unwrap());
    let error = comm.window("taken", 64).unwrap_err();
    all(error, ErrorKind::InvalidArgument, &["tag `taken`"]);
    let error = comm.window("nothing", 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    // Nothing of all this is left.
    for name in ["sizes", "a", "b", "nothing"] {
        comm.window(name, 64).unwrap();
    }
    comm.barrier().unwrap();
}

/// Memory of the user: known under a tag, reached, and given back.
pub(crate) fn memory_of_the_user(comm: &Communicator) {
    let me = comm.rank().0;
    let partner = Rank(me ^ 1);
    let mut memory = comm.register("user", vec![me; PART / 4]).unwrap();
    let address = memory.slice().unwrap().region().address();
    for (tag, words) in [("user", "tag `user`"), ("empty", "at least 1 byte")] {
        let count = if tag == "user" { 1 } else { 0 };
        let error = comm.register(tag, vec![0u64; count]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let link = comm.open_channel(partner, 2).unwrap();
    let theirs = link.memory("user").unwrap();
    let (thread, channel) = (comm.thread(0).unwrap(), &link.channel);
    let near = comm.allocate("near", PART).unwrap();
    near.copy_from(&pattern(me, 5, PART)).unwrap();
    // One way, and back.
    thread
        .write_with_notify(channel, &theirs, &near, 0)
        .unwrap();
    thread.wait(channel, 0).unwrap();
    thread.read_with_notify(channel, &near, &theirs, 1).unwrap();
    thread.wait(channel, 1).unwrap();
    thread.synchronize(None).unwrap();
    assert!(contents(&near) == pattern(me, 5, PART));
    // Somebody still has a part of it.
    let held = memory.slice().unwrap().sub(0..4).unwrap();
    let error = memory.deregister().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("1 other"), "{error}");
    drop(held);
    let back = memory.deregister().unwrap();
    assert_eq!(back.as_ptr().cast(), address.as_ptr().cast_const());
    let bytes: Vec<u8> = back.iter().flat_map(|n| n.to_ne_bytes()).collect();
    assert!(bytes == pattern(partner.0, 5, PART));
    for error in [
        memory.slice().unwrap_err(),
        memory.deregister().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
    comm.register("user", vec![1i8; 10]).unwrap();
    comm.barrier().unwrap();
    // The peer's has ended as well.
    let late = comm.thread(0).unwrap();
    let failed = late
        .write(channel, &theirs, &near)
        .and_then(|()| late.synchronize(None))
        .unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Refused, "{failed}");
    assert_eq!(failed.culprits(), [partner], "{failed}");
    assert!(
        bytes
            == back
                .iter()
                .flat_map(|n| n.to_ne_bytes())
                .collect::<Vec<_>>()
    );
    comm.barrier().unwrap();
}

#[test]
fn every_kind_between_threads() {
    team::run(2, |comm| every_kind_with_notify(&comm));
    team::run(4, |comm| every_kind_with_notify(&comm));
}

#[test]
fn writes_between_threads_are_one_message() {
    team::run(2, |comm| a_write_is_one_message_without_copies(&comm));
}

#[test]
fn windows_of_threads() {
    for size in [1, 2, 5] {
        team::run(size, |comm| windows(&comm));
    }
}

#[test]
fn windows_that_differ_fail_everywhere_and_nothing_else() {
    team::run(2, |comm| windows_that_differ(&comm));
    team::run(4, |comm| windows_that_differ(&comm));
}

#[test]
fn memory_of_the_user_between_threads() {
    team::run(2, |comm| memory_of_the_user(&comm));
}

#[test]
fn primitives_between_processes() {
    job::all_succeed(&mut Job::new("primitives", 2).start());
    job::all_succeed(&mut Job::new("primitives", 4).start());
}

/// Rank 2 never calls.
#[test]
fn a_window_that_a_rank_does_not_make_names_it() {
    let settings = Settings::default().with_connect_timeout(Duration::from_secs(3));
    let errors = team::run_with(3, &Options::new(settings), |comm| {
        let error = (comm.rank() != Rank(2)).then(|| comm.window("lonely", 64).unwrap_err());
        error.or_else(|| comm.barrier().err())
    });
    for error in errors.into_iter().flatten() {
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(error.to_string().contains("lonely"), "{error}");
    }
}

/// Handles keep what they need, and a window may be the last one.
#[test]
fn a_window_may_outlive_its_communicator() {
    let windows = team::run(2, |comm| comm.window("late", 100).unwrap());
    windows[0].local().copy_from(&[7; 100]).unwrap();
    assert_eq!(contents(windows[0].local()), [7; 100]);
    assert!(windows[0].address_of(Rank(1)).is_some());
}

#[test]
fn the_limits_of_threads_and_notifies_are_named() {
    let comm = Communicator::init_all(1).unwrap().remove(0);
    let error = comm.thread(640).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("640") && text.contains("641"), "{text}");
    comm.thread(639).unwrap();
    let mut threads: Vec<Thread> = Vec::new();
    let error = loop {
        match comm.thread(0) {
            Ok(thread) => threads.push(thread),
            Err(error) => break error,
        }
        assert!(threads.len() < 40, "no limit");
    };
    assert_eq!(error.kind(), ErrorKind::LimitReached, "{error}");
    assert!(error.to_string().contains("at most 40 threads"), "{error}");
    // What is given back can be had again.
    threads.pop();
    comm.thread(0).unwrap();
}

/// The deadline is the call's, and the record that comes too late is there for the next wait.
#[test]
fn a_wait_that_times_out_takes_nothing() {
    team::run(2, |comm| {
        let partner = Rank(1 - comm.rank().0);
        let link = comm.open_channel(partner, 1).unwrap();
        let thread = comm.thread(0).unwrap();
        thread.wait(&link.channel, 0).unwrap();
        let error = thread
            .synchronize(Some(Duration::from_millis(10)))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert_eq!(error.culprits(), [partner], "{error}");
        comm.barrier().unwrap();
        let other = comm.thread(0).unwrap();
        other.record(&link.channel, 0).unwrap();
        other.wait(&link.channel, 0).unwrap();
        other.synchronize(None).unwrap();
        assert_eq!(link.channel.arrived(0).unwrap(), 0);
    });
}
