//! Messages between two sides of one process, over a mapped link.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod sides;

use std::sync::{Arc, Barrier};
use std::time::Duration;

use hcomm_data::{Domain, Engine, MessageLink, Slice, Thread};
use hcomm_transport::{SystemWaiter, WaitPolicy};
use hcomm_types::{DataType, ErrorKind};

use sides::{Link, Side, pair};

const DATA: u64 = 4096;
const INBOX: usize = MessageLink::inbox_bytes(DATA) as usize;
const WAKE: u32 = 7;

struct End {
    side: Side,
    link: MessageLink,
    memory: Slice,
}

fn ends(bytes: usize) -> [End; 2] {
    let mut is_first = true;
    pair(Link::Mapped, INBOX + bytes).map(|side| {
        let inbox = side.part(0, INBOX);
        let remote = side.remote.sub(0..INBOX as u64).unwrap();
        let link = MessageLink::new(&side.channel, &inbox, &remote, DATA, WAKE, is_first).unwrap();
        is_first = false;
        let memory = side.part(INBOX, bytes);
        End { side, link, memory }
    })
}

fn content(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|i| (i * 7 + seed * 13 + i / 251) as u8)
        .collect()
}

fn sizes() -> impl Iterator<Item = usize> {
    let ring = DATA as usize;
    [
        0,
        1,
        2,
        7,
        8,
        9,
        55,
        56,
        57,
        64,
        111,
        112,
        113,
        127,
        500,
        1024,
        ring - 1,
        ring,
        ring + 1,
    ]
    .into_iter()
    .chain([3 * ring, 5 * ring + 17])
}

/// Each size while the ring stands at many places.
#[test]
fn every_size_arrives_wherever_the_ring_stands() {
    let [a, b] = ends(6 * DATA as usize);
    for (number, bytes) in (0..40).flat_map(|_| sizes()).enumerate() {
        let sent = content(number, bytes);
        let (src, dst) = (
            a.memory.sub(0..bytes).unwrap(),
            b.memory.sub(0..bytes).unwrap(),
        );
        src.copy_from(&sent).unwrap();
        if number % 2 == 0 {
            a.side.thread.send(&a.link, &src, DataType::U8).unwrap();
            b.side.thread.recv(&b.link, &dst, DataType::U8).unwrap();
        } else {
            b.side.thread.recv(&b.link, &dst, DataType::U8).unwrap();
            a.side.thread.send(&a.link, &src, DataType::U8).unwrap();
        }
        a.side.thread.synchronize(None).unwrap();
        b.side.thread.synchronize(None).unwrap();
        let mut found = vec![0; bytes];
        dst.copy_to(&mut found).unwrap();
        assert!(found == sent, "message {number} of {bytes} bytes");
    }
}

/// Many are on the way at once; then they are taken, in order.
#[test]
fn messages_that_fit_do_not_wait_and_keep_their_order() {
    let [a, b] = ends(64);
    for round in 0..50 {
        let count = 1 + round % 7;
        for number in 0..count {
            let bytes = content(round + number, 8 * number);
            a.side
                .thread
                .send_blocking(&a.link, &bytes, DataType::U8, None, || ())
                .unwrap();
        }
        for number in 0..count {
            let mut found = vec![0; 8 * number];
            b.side
                .thread
                .recv_blocking(&b.link, &mut found, DataType::U8, None, || ())
                .unwrap();
            assert_eq!(found, content(round + number, 8 * number));
        }
        // As large as the ring.
        let whole = content(round, DATA as usize);
        a.side
            .thread
            .send_blocking(&a.link, &whole, DataType::U8, None, || ())
            .unwrap();
        let mut found = vec![0; whole.len()];
        b.side
            .thread
            .recv_blocking(&b.link, &mut found, DataType::U8, None, || ())
            .unwrap();
        assert!(found == whole, "round {round}");
    }
}

/// Whatever way each message takes (the exchange line, cells, the data ring), and however many wait
/// in either direction: each side takes them in the order in which they were sent.
#[test]
fn messages_keep_their_order_whatever_way_each_takes() {
    const SIZES: [usize; 8] = [0, 1, 8, 24, 25, 64, 24, 600];
    let ends = ends(64);
    let mut waiting = [const { std::collections::VecDeque::new() }; 2];
    let mut random = 1_u64;
    for number in 0..5000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let (from, draw) = ((random >> 40) as usize % 2, (random >> 50) as usize);
        let [sender, receiver] = [&ends[from], &ends[1 - from]];
        // Long runs in which nearly all is answered at once, and others in which much waits.
        let most = if number % 1000 < 500 { 1 } else { 4 };
        if waiting[from].len() < most && draw % 3 != 0 {
            let sent = content(number, SIZES[draw % SIZES.len()]);
            sender
                .side
                .thread
                .send_blocking(&sender.link, &sent, DataType::U8, None, || ())
                .unwrap();
            waiting[from].push_back(sent);
        } else if let Some(sent) = waiting[from].pop_front() {
            let mut found = vec![0; sent.len()];
            receiver
                .side
                .thread
                .recv_blocking(&receiver.link, &mut found, DataType::U8, None, || ())
                .unwrap();
            assert_eq!(found, sent, "message {number}");
        }
    }
}

/// A peer that writes what it likes into the exchange line.
#[test]
fn a_hostile_exchange_line_breaks_the_link_and_nothing_else() {
    for (header, kind) in [
        // Number 1 before cell 0: 25 bytes; an unknown type; 8 bytes of the type that is expected.
        (1 | 25 << 16, ErrorKind::LinkDown),
        (1 | 16 << 16 | 0xff << 24, ErrorKind::LinkDown),
        (1 | 8 << 16, ErrorKind::Mismatch),
        // Not the next message: nothing is there.
        (2 | 16 << 16, ErrorKind::Timeout),
        (1 | 16 << 16 | 1 << 32, ErrorKind::Timeout),
    ] {
        let [a, b] = ends(64);
        // The line is in the first side's inbox; the second side's half begins at its middle.
        let line = b.side.remote.sub(384 + 32..384 + 40).unwrap();
        let evil = b.memory.sub(0..8).unwrap();
        evil.copy_from(&u64::to_le_bytes(header)).unwrap();
        let thread = &b.side.thread;
        thread.write(&b.side.channel, &line, &evil).unwrap();
        let timeout = Some(Duration::from_millis(1));
        let mut found = [7; 16];
        let error = a
            .side
            .thread
            .recv_blocking(&a.link, &mut found, DataType::U8, timeout, || ())
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{header:#x}: {error}");
        assert_eq!(found, [7; 16]);
    }
}

#[test]
fn two_os_threads_exchange_messages_of_all_sizes() {
    let ends = ends(64);
    std::thread::scope(|scope| {
        for (me, end) in ends.into_iter().enumerate() {
            scope.spawn(move || {
                let thread = &end.side.thread;
                for (number, bytes) in (0..100).flat_map(|_| sizes()).enumerate() {
                    let mut found = vec![0; bytes];
                    let sent = content(number, bytes);
                    for turn in 0..2 {
                        if turn == me {
                            thread
                                .send_blocking(&end.link, &sent, DataType::U8, None, || ())
                                .unwrap();
                        } else {
                            thread
                                .recv_blocking(&end.link, &mut found, DataType::U8, None, || ())
                                .unwrap();
                        }
                    }
                    assert!(found == sent, "message {number} of {bytes} bytes");
                }
            });
        }
    });
}

/// Several OS threads send long messages on one thread, by both calls: each message arrives in one
/// piece, though all have tried, and one has begun, before any of them queues what it has left.
#[test]
fn messages_of_several_os_threads_do_not_mix() {
    const SENDERS: u8 = 3;
    const ROUNDS: usize = 40;
    const BYTES: usize = 3 * DATA as usize + 40;
    let [a, b] = ends(SENDERS as usize * BYTES);
    let all_wait = Barrier::new(usize::from(SENDERS) + 1);
    // A call returns when nothing is queued, whoever has queued it.
    let all_returned = Barrier::new(usize::from(SENDERS));
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let (thread, link) = (a.side.thread.clone(), a.link.clone());
            let (all_wait, all_returned) = (&all_wait, &all_returned);
            let at = usize::from(sender) * BYTES;
            let registered = a.memory.sub(at..at + BYTES).unwrap();
            scope.spawn(move || {
                let lent = [sender; BYTES];
                registered.copy_from(&lent).unwrap();
                let wait = || {
                    all_wait.wait();
                };
                for round in 0..ROUNDS {
                    if round % 2 == 0 {
                        thread.send_blocking(&link, &lent, DataType::U8, None, wait)
                    } else {
                        thread.send_slice_blocking(&link, &registered, DataType::U8, None, wait)
                    }
                    .unwrap();
                    all_returned.wait();
                }
            });
        }
        let mut found = vec![0; BYTES];
        for round in 0..ROUNDS {
            all_wait.wait();
            let mut seen = [false; SENDERS as usize];
            for _ in 0..SENDERS {
                b.side
                    .thread
                    .recv_blocking(&b.link, &mut found, DataType::U8, None, || ())
                    .unwrap();
                let sender = found[0];
                let mixed = found.iter().position(|&byte| byte != sender);
                assert_eq!(mixed, None, "round {round}");
                seen[usize::from(sender)] = true;
            }
            assert_eq!(seen, [true; SENDERS as usize], "round {round}");
        }
    });
}

#[test]
fn another_length_or_type_is_an_error_on_both_sides_and_touches_nothing() {
    for (sent, received, dtype) in [
        (8, 16, DataType::U8),
        (16, 8, DataType::U8),
        (2000, 16, DataType::U8),
        (16, 2000, DataType::U8),
        (16, 16, DataType::I32),
        (0, 8, DataType::U8),
    ] {
        let [a, b] = ends(64);
        let bytes = content(1, sent);
        a.side
            .thread
            .send_blocking(&a.link, &bytes, DataType::U8, None, || ())
            .unwrap();
        let mut found = vec![9; received];
        let error = b
            .side
            .thread
            .recv_blocking(&b.link, &mut found, dtype, None, || ())
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        let told = a
            .side
            .thread
            .send_blocking(&a.link, &bytes, DataType::U8, None, || ())
            .unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Mismatch, "{told}");
        for text in [error.to_string(), told.to_string()] {
            assert!(text.contains(&format!("{sent} bytes of uint8")), "{text}");
            assert!(
                text.contains(&format!("{received} bytes of {dtype}")),
                "{text}"
            );
        }
        assert_eq!(found, vec![9; received]);
    }
}

/// A peer that writes what it likes: an error or a wait, never a byte outside.
#[test]
fn a_hostile_peer_breaks_the_link_and_nothing_else() {
    let first = 1024;
    for word in 0..=0xf_u64 {
        for lengths in [
            [0, 0],
            [16, u64::MAX],
            [16, 17],
            [u64::MAX; 2],
            [16, 0],
            [16, 8],
        ] {
            let [a, b] = ends(64);
            let evil = a.memory.sub(0..24).unwrap();
            let header = 1 | word << 16 | 4095 << 20 | 4 << 32;
            let words = [header, lengths[0], lengths[1]].map(u64::to_le_bytes);
            evil.copy_from(words.as_flattened()).unwrap();
            let target = a.side.remote.sub(first..first + 24).unwrap();
            a.side
                .thread
                .write(&a.side.channel, &target, &evil)
                .unwrap();
            let timeout = Some(Duration::from_millis(1));
            let mut found = [7; 16];
            let error = b
                .side
                .thread
                .recv_blocking(&b.link, &mut found, DataType::U8, timeout, || ())
                .unwrap_err();
            let kinds = [ErrorKind::LinkDown, ErrorKind::Mismatch, ErrorKind::Timeout];
            assert!(kinds.contains(&error.kind()), "{word} {lengths:?}: {error}");
        }
    }
}

/// Writes cell `index` into the peer's inbox, by hand.
fn write_cell(end: &End, index: u64, header: u64, payload: &[u8]) {
    let cell = end.memory.sub(0..64).unwrap();
    let mut bytes = header.to_le_bytes().to_vec();
    bytes.extend_from_slice(payload);
    bytes.resize(64, 0);
    cell.copy_from(&bytes).unwrap();
    let at = 1024 + index * 64;
    let target = end.side.remote.sub(at..at + 64).unwrap();
    let thread = &end.side.thread;
    thread.write(&end.side.channel, &target, &cell).unwrap();
}

/// In the first lap.
const fn header(kind: u64, bytes: u64, dtype: DataType) -> u64 {
    1 | kind << 16 | bytes << 20 | (dtype as u64) << 32
}

#[test]
fn a_message_whose_cells_come_one_by_one_is_taken_as_they_come() {
    let [a, b] = ends(128);
    let sent = content(1, 100);
    let place = b.memory.sub(0..100).unwrap();
    place.copy_from(&[0; 100]).unwrap();
    write_cell(&a, 0, header(0, 100, DataType::U8), &sent[..56]);
    b.side.thread.recv(&b.link, &place, DataType::U8).unwrap();
    assert!(!b.side.thread.is_idle());
    let mut found = [0; 100];
    place.copy_to(&mut found).unwrap();
    assert_eq!((&found[..56], &found[56..]), (&sent[..56], &[0; 44][..]));
    // Another message does not come in between.
    let other = b.memory.sub(100..108).unwrap();
    b.side.thread.recv(&b.link, &other, DataType::U8).unwrap();
    write_cell(&a, 1, header(1, 0, DataType::U8), &sent[56..]);
    write_cell(&a, 2, header(0, 8, DataType::U8), &[9; 8]);
    b.side.thread.synchronize(None).unwrap();
    place.copy_to(&mut found).unwrap();
    assert_eq!(found, sent[..]);
    let mut next = [0; 8];
    other.copy_to(&mut next).unwrap();
    assert_eq!(next, [9; 8]);
}

#[test]
fn what_is_no_cell_of_the_message_breaks_it() {
    for second in [
        header(0, 44, DataType::U8),
        header(1, 0, DataType::I8),
        header(2, 0, DataType::U8),
        header(9, 0, DataType::U8),
    ] {
        // Before it is asked for, and in the middle of the receive.
        for is_late in [false, true] {
            let [a, b] = ends(128);
            let place = b.memory.sub(0..100).unwrap();
            let thread = &b.side.thread;
            write_cell(&a, 0, header(0, 100, DataType::U8), &[1; 56]);
            let mut asked = Ok(());
            if is_late {
                thread.recv(&b.link, &place, DataType::U8).unwrap();
                assert!(!thread.is_idle());
            }
            write_cell(&a, 1, second, &[1; 44]);
            if !is_late {
                asked = thread.recv(&b.link, &place, DataType::U8);
            }
            let error = asked.and_then(|()| thread.synchronize(None)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LinkDown, "{second:#x}: {error}");
        }
    }
}

/// What is there is for somebody else, who does not take it.
#[test]
fn a_wait_for_what_another_queue_has_begun_ends_at_its_deadline() {
    let [a, b] = ends(128);
    let place = b.memory.sub(0..100).unwrap();
    write_cell(&a, 0, header(0, 100, DataType::U8), &[1; 56]);
    b.side.thread.recv(&b.link, &place, DataType::U8).unwrap();
    let timeout = Some(Duration::from_millis(1));
    let error = b.side.thread.synchronize(timeout).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    // The rest comes, but its queue has given up.
    write_cell(&a, 1, header(1, 0, DataType::U8), &[1; 44]);
    let waiter = SystemWaiter::new(WaitPolicy::for_load(1, 2)).unwrap();
    let domain = Domain::new(Arc::new(waiter), b.side.peers.clone(), Duration::ZERO);
    let second = Thread::new(&domain, Engine::Cpu, 0).unwrap();
    let mut found = [0; 8];
    let error = second
        .recv_blocking(&b.link, &mut found, DataType::U8, timeout, || ())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

/// The data ring of a side's inbox.
fn ring(end: &End) -> Slice {
    end.side.part(INBOX - DATA as usize, DATA as usize)
}

/// A message of `bytes` bytes, which the receiver waits for, or which is sent first. Returns whether
/// nothing of it went through the data ring.
fn is_direct(a: &End, b: &End, dst: &Slice, number: usize, receives_first: bool) -> bool {
    const UNTOUCHED: [u8; DATA as usize] = [0xee; DATA as usize];
    ring(b).copy_from(&UNTOUCHED).unwrap();
    let sent = content(number, dst.bytes());
    let src = a.memory.sub(0..sent.len()).unwrap();
    src.copy_from(&sent).unwrap();
    let send = || a.side.thread.send(&a.link, &src, DataType::U8).unwrap();
    if !receives_first {
        send();
    }
    b.side.thread.recv(&b.link, dst, DataType::U8).unwrap();
    if receives_first {
        send();
    }
    a.side.thread.synchronize(None).unwrap();
    b.side.thread.synchronize(None).unwrap();
    let mut found = vec![0; sent.len()];
    dst.copy_to(&mut found).unwrap();
    assert!(found == sent, "message {number} of {} bytes", sent.len());
    let mut left = UNTOUCHED;
    ring(b).copy_to(&mut left).unwrap();
    left == UNTOUCHED
}

#[test]
fn a_receiver_that_waits_gets_long_messages_in_one_copy() {
    let [a, b] = ends(8 * DATA as usize);
    let (short, long) = (2048, 5 * DATA as usize + 100);
    let dst = |bytes| b.memory.sub(64..64 + bytes).unwrap();
    // Until the sender knows the region.
    let first = (0..4).find(|&number| is_direct(&a, &b, &dst(short), number, true));
    assert!(first.is_some_and(|first| first > 0), "{first:?}");
    for number in 4..50 {
        let bytes = if number % 3 == 0 { long } else { short };
        assert!(is_direct(&a, &b, &dst(bytes), number, true), "{number}");
        // Too short, and sent before anybody waited.
        assert!(!is_direct(&a, &b, &dst(2000), number, true), "{number}");
        assert!(!is_direct(&a, &b, &dst(bytes), number, false), "{number}");
    }
}

/// More regions than a link knows at a time, one after the other; each ends before the next one.
#[test]
fn a_region_that_has_ended_makes_room_for_another() {
    const BYTES: usize = 4096;
    let [a, b] = ends(BYTES);
    for number in 0..60 {
        let region = b.side.device.allocate(BYTES).unwrap();
        let dst = Slice::of(&region);
        let tries = (0..6).take_while(|_| !is_direct(&a, &b, &dst, number, true));
        assert!(tries.count() < 6, "region {number}");
    }
}

#[test]
fn a_hostile_grant_or_offer_breaks_the_link_and_nothing_else() {
    // Grant: number, slot, offset, bytes; offer: number, slot, bytes of the blob.
    const WORDS: usize = 64 * 8;
    let bytes = 2048;
    for (words, is_error) in [
        ([1, 0, 0, bytes, 0, 0, 0], true),
        ([1, u64::MAX, 0, bytes, 0, 0, 0], true),
        ([1, 0, u64::MAX, bytes, 0, 0, 0], true),
        ([0, 0, 0, 0, 1, 16, 8], true),
        ([0, 0, 0, 0, 1, 0, 257], true),
        // Of another message, of another length; a blob that says nothing.
        ([2, 0, 0, bytes, 0, 0, 0], false),
        ([1, 0, 0, bytes + 1, 0, 0, 0], false),
        ([0, 0, 0, 0, 7, 3, 256], false),
        ([0, 0, 0, 0, u64::MAX, 3, 0], false),
    ] {
        let [a, b] = ends(64);
        let evil = b.side.part(INBOX, 56);
        evil.copy_from(words.map(u64::to_le_bytes).as_flattened())
            .unwrap();
        let target = b.side.remote.sub(WORDS as u64..WORDS as u64 + 56).unwrap();
        b.side
            .thread
            .write(&b.side.channel, &target, &evil)
            .unwrap();
        let sent = content(1, bytes as usize);
        let result = a
            .side
            .thread
            .send_blocking(&a.link, &sent, DataType::U8, None, || ());
        if is_error {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::LinkDown, "{words:?}");
            continue;
        }
        result.unwrap();
        let mut found = vec![0; sent.len()];
        b.side
            .thread
            .recv_blocking(&b.link, &mut found, DataType::U8, None, || ())
            .unwrap();
        assert!(found == sent, "{words:?}");
    }
}

#[test]
fn an_inbox_that_is_too_small_and_a_link_that_is_not_mapped_are_refused() {
    let [a, _b] = pair(Link::Mapped, INBOX);
    let small = a.part(0, INBOX - 64);
    let error = MessageLink::new(&a.channel, &small, &a.remote, DATA, WAKE, true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let [a, _b] = pair(Link::Inline, INBOX);
    let error = MessageLink::new(&a.channel, &a.memory, &a.remote, DATA, WAKE, true).unwrap_err();
    assert!(
        [ErrorKind::Unsupported, ErrorKind::InvalidArgument].contains(&error.kind()),
        "{error}"
    );
}
