//! What strangers and broken peers may do: two devices driven by one thread, so that what is said on
//! a connection can be spoiled at will.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use hcomm_transport_abi::{
    ChannelOptions, CompletionV1, Connect, DescriptorV1, FLAG_NOTIFY, OP_NOTIFY, OP_READ, OP_WRITE,
    OP_WRITE_REDUCE, STATUS_LINK_DOWN, STATUS_NO_RESOURCE, STATUS_OK, Transport,
};

use crate::channel::Channel;
use crate::device::{Device, DeviceCore};
use crate::export::Tcp;
use crate::ops;
use crate::region::{Import, Region};
use crate::wire::{ChannelBlob, Frame, Hello, Identity, Kind, NOTIFY};

#[path = "../tests/rig/host.rs"]
#[allow(unsafe_code, reason = "the table is handed over by pointer")]
mod host;

fn open() -> Arc<DeviceCore> {
    host::init(crate::transport_v1());
    // The loopback comes first.
    let Device { core } = Tcp::open_device(0).unwrap();
    core
}

fn channel(device: &Arc<DeviceCore>) -> Channel {
    let options = ChannelOptions {
        notifies: 2,
        queue_depth: 8,
        traffic_class: 0,
        service_level: 0,
    };
    Channel::create(device, &options).unwrap()
}

/// Calls `step` until it gives something: what goes through the kernel takes a moment.
fn until<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    for _ in 0..1_000_000 {
        if let Some(found) = step() {
            return found;
        }
        std::thread::yield_now();
    }
    panic!("{what} does not come");
}

fn connect(a: &Channel, b: &Channel) {
    let (blob_a, blob_b) = (a.blob(), b.blob());
    until("the connection", || {
        let both = (a.connect(&blob_b).unwrap(), b.connect(&blob_a).unwrap());
        (both == (Connect::Connected, Connect::Connected)).then_some(())
    });
}

/// Two ends, the one that dials first.
fn pair() -> (Channel, Channel) {
    let (a, b) = (channel(&open()), channel(&open()));
    connect(&a, &b);
    if a.blob()[5..29] < b.blob()[5..29] {
        (a, b)
    } else {
        (b, a)
    }
}

fn progress(ends: &[&Channel]) {
    for end in ends {
        end.inner.device().progress();
    }
}

fn import(channel: &Channel, owner: &Channel, region: &Region) -> Import {
    let mut import = Import::begin(channel, &region.blob()).unwrap();
    until("the import", || {
        progress(&[channel, owner]);
        import.poll().unwrap().map(drop)
    });
    import
}

fn region(owner: &Channel, memory: &mut [u8]) -> Region {
    let address = core::ptr::NonNull::new(memory.as_mut_ptr()).unwrap();
    Region::register(owner.inner.device(), address, memory.len() as u64).unwrap()
}

fn transfer(opcode: u32, local: &[u8], import: &Import) -> DescriptorV1 {
    DescriptorV1 {
        opcode,
        flags: 0,
        local: local.as_ptr().cast_mut().cast(),
        local_region: core::ptr::null_mut(),
        remote: core::ptr::from_ref(import).cast_mut().cast(),
        remote_offset: 0,
        bytes: local.len() as u64,
        notify: 0,
        dtype: 0,
        redop: 0,
        reserved: 0,
        fingerprint: [0; 2],
        cookie: 7,
    }
}

fn completions(end: &Channel) -> Vec<(u64, i32)> {
    let mut out = [CompletionV1 {
        cookie: 0,
        status: 0,
        reserved: 0,
    }; 64];
    let found = end.inner.device().poll(&mut out);
    out[..found].iter().map(|c| (c.cookie, c.status)).collect()
}

/// How often a notify of an end was recorded.
fn recorded(end: &Channel, index: u32) -> u64 {
    end.inner.lines.recorded(index)
}

/// What comes of a connection that says `words`: whether it is closed from the other side.
fn is_turned_away(device: &DeviceCore, words: &[u8]) -> bool {
    let mut stream = TcpStream::connect(device.address).unwrap();
    stream.write_all(words).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut looks = 0;
    loop {
        device.look_at_door();
        match stream.read(&mut [0; 256]) {
            Ok(0) => return true,
            Ok(bytes) => panic!("it was answered with {bytes} bytes"),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return true,
        }
        looks += 1;
        if looks == 200 {
            return false;
        }
        std::thread::yield_now();
    }
}

#[test]
fn strangers_are_turned_away_and_disturb_nobody() {
    let (here, there) = (open(), open());
    let (a, b) = (channel(&here), channel(&there));
    let blob = ChannelBlob::decode(&a.blob()).unwrap();
    let hello = |to: Identity| Hello {
        from: Identity {
            device: [0; 16],
            channel: 1,
        },
        to,
        nonce: [1; 16],
        proof: [2; 32],
    };
    let http = [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".as_slice(); 8].concat();
    assert!(is_turned_away(&here, &http));
    let of_nobody = Identity {
        channel: u64::MAX,
        ..blob.identity
    };
    assert!(is_turned_away(&here, &hello(of_nobody).encode()));
    let of_another_device = Identity {
        device: [9; 16],
        ..blob.identity
    };
    assert!(is_turned_away(&here, &hello(of_another_device).encode()));
    // Whom the end does not know yet is kept, and so is who has said half a sentence; neither keeps
    // others out.
    assert!(!is_turned_away(&here, &hello(blob.identity).encode()));
    let mut silent = TcpStream::connect(here.address).unwrap();
    silent.write_all(b"htcH").unwrap();
    connect(&a, &b);
    assert!(is_turned_away(&here, &hello(blob.identity).encode()));
    assert_eq!(a.inner.check(), Ok(()));
}

#[test]
fn who_does_not_know_the_secrets_is_not_let_in() {
    // As many as it takes for `a` to be the one that is dialled.
    let (a, b) = loop {
        let (a, b) = (channel(&open()), channel(&open()));
        if a.blob()[5..29] > b.blob()[5..29] {
            break (a, b);
        }
    };
    // It is told with whom to connect; somebody else claims to be that one.
    assert_eq!(a.connect(&b.blob()).unwrap(), Connect::InProgress);
    let [from, to] = [&b, &a].map(|end| ChannelBlob::decode(&end.blob()).unwrap().identity);
    let hello = Hello {
        from,
        to,
        nonce: [1; 16],
        proof: [2; 32],
    };
    assert!(is_turned_away(a.inner.device(), &hello.encode()));
    connect(&a, &b);
}

#[test]
fn frames_that_break_the_rules_end_the_channel_at_both_ends() {
    let mut memory = vec![5u8; 4096];
    let write = |handle: u64, offset: u64, bytes: u64| {
        let mut frame = Frame::new(Kind::Write);
        (frame.handle, frame.offset, frame.bytes) = (handle, offset, bytes);
        frame
    };
    let mut no_notify = Frame::new(Kind::Notify);
    (no_notify.flags, no_notify.number) = (NOTIFY, 2);
    let mut odd = write(0, 0, 7);
    (odd.kind, odd.dtype) = (Kind::WriteReduce, 2);
    let mut unknown = write(0, 0, 8);
    (unknown.kind, unknown.dtype) = (Kind::WriteReduce, 12);
    let mut read = write(0, 4095, 2);
    read.kind = Kind::Read;
    let mut flushed = Frame::new(Kind::Flushed);
    flushed.offset = 1;
    for (frame, told) in [
        (write(1, 0, 1), "stale key"),
        (write(1 << 32, 0, 1), "stale key"),
        (write(0, 4096, 1), "beyond"),
        (write(0, u64::MAX, 2), "beyond"),
        (read, "beyond"),
        (no_notify, "beyond"),
        (odd, "no sense"),
        (unknown, "no sense"),
        (Frame::new(Kind::Notify), "closed"),
        (Frame::new(Kind::Data), "closed"),
        (Frame::new(Kind::Imported), "closed"),
        (flushed, "closed"),
    ] {
        let (a, b) = pair();
        let owned = region(&b, &mut memory);
        let target = import(&a, &b, &owned);
        assert_eq!(target.known, Some((0, 4096)));
        let (mut bytes, len) = frame.encode();
        a.inner.say_raw(&bytes[..len]);
        bytes.fill(9);
        a.inner.say_raw(&bytes);
        let state = |end: &Channel| {
            until("the end", || {
                progress(&[end]);
                end.inner.usable().err()
            })
        };
        assert_eq!(state(&b), STATUS_LINK_DOWN, "{frame:?}");
        state(&a);
        let why = a.inner.describe();
        assert!(why.contains(told), "{frame:?}: {why}");
        drop((target, owned));
        assert_eq!(memory, [5; 4096], "{frame:?}");
    }
}

#[test]
fn a_region_that_ends_under_a_write_is_not_touched_any_more() {
    let mut memory = vec![0u8; 32 << 20];
    let (a, b) = pair();
    let owned = region(&b, &mut memory);
    let target = import(&a, &b, &owned);
    let source = vec![1u8; memory.len()];
    let mut descriptor = transfer(OP_WRITE, &source, &target);
    descriptor.flags = FLAG_NOTIFY;
    assert_eq!(ops::post(&a, &[descriptor]).accepted, 1);
    until("the first bytes", || {
        progress(&[&a, &b]);
        (memory[0] == 1).then_some(())
    });
    assert_eq!(memory[memory.len() - 1], 0, "it was not under way any more");
    drop(owned);
    memory.fill(3);
    until("the end of both", || {
        progress(&[&a, &b]);
        let both = (a.inner.usable().is_err(), b.inner.usable().is_err());
        (both == (true, true)).then_some(())
    });
    assert!(memory.iter().all(|byte| *byte == 3));
    assert_eq!(recorded(&b, 0), 0);
    let [(cookie, status)] = completions(&a)[..] else {
        panic!("one completion");
    };
    assert_eq!((cookie, status < 0), (7, true));
    let why = b.inner.describe();
    assert!(why.contains("stale key"), "{why}");
}

#[test]
fn both_sides_send_more_than_the_network_holds_before_either_receives() {
    const BYTES: usize = 24 << 20;
    let (a, b) = pair();
    let [mut at_a, mut at_b] = [vec![0u8; BYTES], vec![0u8; BYTES]];
    let (of_a, of_b) = (region(&a, &mut at_a), region(&b, &mut at_b));
    let (to_b, to_a) = (import(&a, &b, &of_b), import(&b, &a, &of_a));
    let source: Vec<u8> = (0..BYTES).map(|at| (at / 7) as u8).collect();
    for (end, target) in [(&a, &to_b), (&b, &to_a)] {
        let mut whole = transfer(OP_WRITE, &source, target);
        whole.flags = FLAG_NOTIFY;
        // A few are under way, some wait, and then there is no room: for as long as nobody reads.
        let mut accepted = 0;
        loop {
            let posted = ops::post(end, &[whole]);
            accepted += posted.accepted;
            if posted.status != STATUS_OK {
                assert_eq!(posted.status, STATUS_NO_RESOURCE);
                break;
            }
            assert!(accepted < 2000, "it takes without end");
        }
        let mut asked = 0;
        while recorded(end, 0) == 0 && asked < 3 {
            asked += 1;
            progress(&[end]);
        }
    }
    until("both", || {
        progress(&[&a, &b]);
        (recorded(&a, 0) > 0 && recorded(&b, 0) > 0).then_some(())
    });
    assert!(at_a == source && at_b == source);
}

#[test]
fn what_was_posted_before_an_end_arrives_if_there_is_room() {
    const BYTES: usize = 1 << 20;
    let (a, b) = pair();
    let mut memory = vec![0u8; BYTES];
    let owned = region(&b, &mut memory);
    let target = import(&a, &b, &owned);
    let source = vec![6u8; BYTES];
    let whole = transfer(OP_WRITE, &source, &target);
    // Until one stays here, because nobody reads.
    let is_done = || ops::post(&a, &[whole]).inline_done == 1;
    until("a full network", || (!is_done()).then_some(()));
    let mut notify = transfer(OP_NOTIFY, &[], &target);
    notify.bytes = 0;
    assert_eq!(ops::post(&a, &[notify]).accepted, 1);
    // What this end does not read would otherwise have its connection reset.
    assert_eq!(
        ops::post(&b, &[notify]).accepted,
        1,
        "{}",
        b.inner.describe()
    );
    // Room is made, but nothing of what waits has gone when the end comes.
    while b.inner.device().progress() {}
    assert_eq!(recorded(&b, 0), 0);
    drop((target, a));
    until("the notify", || {
        progress(&[&b]);
        (recorded(&b, 0) == 1).then_some(())
    });
    assert!(memory == source);
}

/// Who is told that a descriptor is done may use its memory again.
#[test]
fn a_post_says_of_its_own_descriptors_alone_that_they_are_done() {
    const BYTES: usize = 1 << 20;
    const POSTS: usize = 400;
    let (a, b) = pair();
    let mut memory = vec![0u8; BYTES];
    let owned = region(&b, &mut memory);
    let target = import(&a, &b, &owned);
    let source = vec![1u8; BYTES];
    let (mut pending, mut completed) = (Vec::new(), Vec::new());
    let mut cookie = 0;
    let mut in_turn = 0;
    until("all posts", || {
        let mut write = transfer(OP_WRITE, &source, &target);
        write.cookie = cookie;
        let posted = ops::post(&a, &[write]);
        if posted.accepted == 1 {
            cookie += 1;
            if posted.inline_done == 0 {
                pending.push(write.cookie);
            }
        }
        completed.extend(completions(&a).into_iter().map(|(cookie, _)| cookie));
        // Room comes and goes: the other side reads now and then.
        in_turn += 1;
        if in_turn % 7 == 0 {
            progress(&[&b]);
        }
        (cookie as usize == POSTS).then_some(())
    });
    assert!(pending.len() > 10, "the queue was never full");
    until("all completions", || {
        progress(&[&a, &b]);
        completed.extend(completions(&a).into_iter().map(|(cookie, _)| cookie));
        (completed.len() >= pending.len()).then_some(())
    });
    assert_eq!(completed, pending);
}

#[test]
fn a_notify_waits_for_the_reads_before_it_and_nothing_overtakes_it() {
    let mut memory = vec![4u8; 24 << 20];
    let (a, b) = pair();
    let owned = region(&b, &mut memory);
    let target = import(&a, &b, &owned);
    let into = vec![0u8; memory.len()];
    let small = [8u8; 8];
    let mut notify = transfer(OP_NOTIFY, &[], &target);
    (notify.bytes, notify.notify) = (0, 1);
    let batch = [
        transfer(OP_READ, &into, &target),
        notify,
        transfer(OP_WRITE, &small, &target),
    ];
    let posted = ops::post(&a, &batch);
    assert_eq!((posted.accepted, posted.inline_done), (3, 0));
    // All that `b` has is the question.
    until("the question", || {
        progress(&[&b]);
        b.inner.has_answers().then_some(())
    });
    assert_eq!((recorded(&b, 1), memory[0]), (0, 4));
    until("the notify", || {
        progress(&[&a, &b]);
        (recorded(&b, 1) == 1).then_some(())
    });
    assert!(into.iter().all(|byte| *byte == 4));
    until("the write", || {
        progress(&[&a, &b]);
        (memory[..8] == small).then_some(())
    });
    let done: Vec<i32> = completions(&a)
        .into_iter()
        .map(|(_, status)| status)
        .collect();
    assert_eq!(done, [STATUS_OK; 3]);
}

#[test]
fn reductions_do_not_mind_where_the_stream_is_cut() {
    let mut memory: Vec<u8> = (0..100_003i32).flat_map(i32::to_le_bytes).collect();
    let (a, b) = pair();
    let owned = region(&b, &mut memory);
    let target = import(&a, &b, &owned);
    let more: Vec<u8> = (0..100_003i32)
        .flat_map(|at| (at * 3).to_le_bytes())
        .collect();
    let mut sum = transfer(OP_WRITE_REDUCE, &more, &target);
    (sum.flags, sum.dtype) = (FLAG_NOTIFY, 2);
    // One byte before it, so that no element lies as it should.
    let mut one = transfer(OP_WRITE, &[0], &target);
    one.bytes = 1;
    assert_eq!(ops::post(&a, &[one, sum]).accepted, 2);
    until("the sum", || {
        progress(&[&a, &b]);
        (recorded(&b, 0) == 1).then_some(())
    });
    let expected: Vec<u8> = (0..100_003i32)
        .flat_map(|at| (at * 4).to_le_bytes())
        .collect();
    assert!(memory == expected);
}

#[test]
fn keys_of_regions_cannot_be_guessed() {
    let mut memory = vec![0u8; 64];
    let (a, b) = pair();
    let owned = region(&b, &mut memory);
    let blob = owned.blob();
    for bit in 0..8 * blob.len() {
        let mut changed = blob.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let Ok(mut guess) = Import::begin(&a, &changed) else {
            continue;
        };
        let refused = until("the answer", || {
            progress(&[&a, &b]);
            match guess.poll() {
                Ok(None) => None,
                Ok(Some(_)) => Some(false),
                Err(_) => Some(true),
            }
        });
        assert!(refused, "bit {bit}");
    }
    assert_eq!(a.inner.check(), Ok(()));
}
