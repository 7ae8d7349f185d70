//! What strangers and broken peers may do: two devices that believe to be in different processes,
//! driven by one thread, so that either side's memory and sockets can be spoiled at will.

use core::sync::atomic::Ordering;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use hcomm_transport_abi::{
    ChannelOptions, Connect, DescriptorV1, Fault, OP_READ, OP_WRITE, STATUS_BUSY, STATUS_LINK_DOWN,
    STATUS_OK, STATUS_PEER_LOST, STATUS_REFUSED, STATUS_STALE_KEY, STATUS_SYSTEM, Transport,
};
use proptest::prelude::*;

use crate::channel::{Channel, Other, Side};
use crate::device::DeviceCore;
use crate::direct::{Move, Place, Stop};
use crate::export::Shm;
use crate::region::{Import, Region, Target};
use crate::segment::{Entry, GATES, PIECE_BYTES, SLOTS, Segment};
use crate::socket::{open_connection, send_frame};
use crate::wire::{ChannelBlob, FRAME_BYTES, Frame, Hello, Identity, Loan, Sample, Token};
use crate::{export, ops};

#[path = "../tests/rig/host.rs"]
#[allow(unsafe_code, dead_code, reason = "the table is handed over by pointer")]
mod host;

const LOW: Token = [1; 16];
const HIGH: Token = [2; 16];
const NO_SAMPLE: Sample = Sample {
    address: 0,
    content: [0; 16],
};

fn open(process: Token) -> Arc<DeviceCore> {
    host::init(crate::transport_v1());
    let host = Shm::open_device(0).unwrap().core.host;
    DeviceCore::open_in(process, host).unwrap()
}

/// One whose channels reach user memory through the ring.
fn open_staging(process: Token) -> Arc<DeviceCore> {
    let device = open(process);
    device.stage();
    device
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

fn connect(a: &Channel, b: &Channel) -> Result<(), Fault> {
    let (blob_a, blob_b) = (a.blob().unwrap(), b.blob().unwrap());
    // Each side needs a few steps, none of which waits.
    for _ in 0..8 {
        let a = a.connect(&blob_b)?;
        let b = b.connect(&blob_a)?;
        if (a, b) == (Connect::Connected, Connect::Connected) {
            return Ok(());
        }
    }
    panic!("the ends do not find each other");
}

fn other(channel: &Channel) -> &Other {
    match &channel.inner.usable().unwrap().side {
        Side::Other(other) => other,
        Side::Same(_) => panic!("these are in one process"),
    }
}

fn blob_of(channel: &Channel) -> ChannelBlob {
    ChannelBlob::decode(&channel.blob().unwrap()).unwrap()
}

fn import(channel: &Channel, owner: &DeviceCore, region: &Region) -> Import {
    let mut import = Import::begin(channel, &region.blob().encode()).unwrap();
    for _ in 0..4 {
        if import.poll(channel).unwrap().is_some() {
            return import;
        }
        ops::progress(owner);
    }
    panic!("no answer");
}

fn transfer(opcode: u32, local: &mut [u8], import: &Import) -> DescriptorV1 {
    DescriptorV1 {
        opcode,
        flags: 0,
        local: local.as_mut_ptr().cast(),
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

fn registered(device: &Arc<DeviceCore>, memory: &mut [u8]) -> Region {
    let span = export::caller_memory(memory.as_mut_ptr(), memory.len() as u64).unwrap();
    Region::register(device, span).unwrap()
}

#[test]
fn who_does_not_know_the_token_is_refused_and_disturbs_nobody() {
    let (low, high) = (open(LOW), open(HIGH));
    let (a, b) = (channel(&low), channel(&high));
    let stranger = channel(&low);
    let mut forged = blob_of(&b);
    forged.identity.device[0] ^= 1;
    assert_eq!(
        stranger.connect(&forged.encode()),
        Ok(Connect::InProgress),
        "said hello"
    );
    assert!(high.serve_door().unwrap());
    let fault = stranger.connect(&forged.encode()).unwrap_err();
    assert_eq!(fault.status, STATUS_REFUSED);
    assert_eq!(stranger.inner.check(), Err(STATUS_REFUSED));
    connect(&a, &b).unwrap();
}

#[test]
fn who_is_not_the_expected_peer_is_refused() {
    let (low, high) = (open(LOW), open(HIGH));
    let (a, b, c) = (channel(&low), channel(&high), channel(&low));
    let blob_a = a.blob().unwrap();
    assert_eq!(b.connect(&blob_a), Ok(Connect::InProgress));
    let blob_b = b.blob().unwrap();
    assert_eq!(c.connect(&blob_b), Ok(Connect::InProgress));
    // The right one knocks behind the wrong one, before the door is looked at.
    assert_eq!(a.connect(&blob_b), Ok(Connect::InProgress));
    assert_eq!(b.connect(&blob_a), Ok(Connect::Connected));
    assert_eq!(c.connect(&blob_b).unwrap_err().status, STATUS_REFUSED);
    assert_eq!(a.connect(&blob_b), Ok(Connect::Connected));
}

#[test]
fn an_answer_without_proof_is_refused() {
    let (low, high) = (open(LOW), open(HIGH));
    let (a, b) = (channel(&low), channel(&high));
    // Somebody else listens at the address that the blob names.
    let (listener, address) = crate::socket::open_listener().unwrap();
    let blob = ChannelBlob {
        address,
        ..blob_of(&b)
    };
    assert_eq!(a.connect(&blob.encode()), Ok(Connect::InProgress));
    let socket = crate::socket::take_connection(&listener).unwrap().unwrap();
    let memory = crate::limits::reserved_memory("test", 1 << 20).unwrap();
    let mut to = blob_of(&a).identity;
    to.device[15] ^= 1;
    let welcome = Frame::Welcome(Hello {
        to,
        from: blob.identity,
        notifies: 2,
        bell_offset: 0,
        fds: 0,
        sample: NO_SAMPLE,
    });
    assert!(send_frame(&socket, &welcome, &[memory.as_fd()]).unwrap());
    assert_eq!(
        a.connect(&blob.encode()).unwrap_err().status,
        STATUS_REFUSED
    );
}

#[test]
fn garbage_and_silence_at_the_door_disturb_nobody() {
    let (low, high) = (open(LOW), open(HIGH));
    let (a, b) = (channel(&low), channel(&high));
    let address = blob_of(&b).address;
    let mut held: Vec<OwnedFd> = Vec::new();
    for round in 0..300_usize {
        let socket = match open_connection(&address) {
            Ok(socket) => socket,
            // The queue in the kernel is full until the door is served.
            Err(rustix::io::Errno::AGAIN) => {
                assert!(high.serve_door().unwrap());
                open_connection(&address).unwrap()
            }
            Err(errno) => panic!("{errno}"),
        };
        let noise: Vec<u8> = (0..round % (2 * FRAME_BYTES)).map(|at| at as u8).collect();
        if !noise.is_empty() {
            rustix::io::write(&socket, &noise).unwrap();
        }
        held.push(socket);
    }
    // A frame of the right kind that brings a descriptor too many.
    let socket = open_connection(&address).unwrap();
    let ask = Frame::Ask {
        request: 1,
        number: 1,
        key: [0; 16],
    };
    assert!(send_frame(&socket, &ask, &[socket.as_fd()]).unwrap());
    connect(&a, &b).unwrap();
    assert_eq!(a.inner.check(), Ok(()));
    assert_eq!(b.inner.check(), Ok(()));
}

#[test]
fn a_segment_that_could_shrink_is_refused() {
    let (low, high) = (open(LOW), open(HIGH));
    let (a, b) = (channel(&low), channel(&high));
    let (blob_a, blob_b) = (a.blob().unwrap(), blob_of(&b));
    let loose = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&loose, 1 << 22).unwrap();
    let socket = open_connection(&blob_b.address).unwrap();
    let hello = Frame::Hello(Hello {
        to: blob_b.identity,
        from: blob_of(&a).identity,
        notifies: 2,
        bell_offset: 0,
        fds: 0,
        sample: NO_SAMPLE,
    });
    assert!(send_frame(&socket, &hello, &[loose.as_fd()]).unwrap());
    assert_eq!(b.connect(&blob_a).unwrap_err().status, STATUS_REFUSED);
}

#[test]
fn a_bell_that_is_none_is_refused() {
    let pipe = rustix::pipe::pipe().unwrap().1;
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    // Page and event descriptor, offset, and whether that is a bell.
    for (event, offset, good) in [
        (pipe.as_fd(), 0, false),
        (event.as_fd(), 32, false),
        (event.as_fd(), u32::MAX - 63, false),
        (event.as_fd(), 4096 - 64, true),
    ] {
        let (low, high) = (open(LOW), open(HIGH));
        let (a, b) = (channel(&low), channel(&high));
        let (blob_a, blob_b) = (a.blob().unwrap(), blob_of(&b));
        let segment = crate::limits::reserved_memory("test", 1 << 20).unwrap();
        let page = crate::limits::reserved_memory("test", 4096).unwrap();
        let socket = open_connection(&blob_b.address).unwrap();
        let hello = Frame::Hello(Hello {
            to: blob_b.identity,
            from: blob_of(&a).identity,
            notifies: 2,
            bell_offset: offset,
            fds: crate::wire::FD_BELL | crate::wire::FD_EVENT,
            sample: NO_SAMPLE,
        });
        let fds = [segment.as_fd(), page.as_fd(), event];
        assert!(send_frame(&socket, &hello, &fds).unwrap());
        let connected = b.connect(&blob_a);
        if good {
            assert_eq!(connected, Ok(Connect::Connected));
        } else {
            assert_eq!(connected.unwrap_err().status, STATUS_REFUSED);
        }
    }
}

#[test]
fn a_frame_out_of_place_breaks_the_link() {
    for (frame, status) in [
        (
            Frame::Hello(Hello {
                to: Identity {
                    process: LOW,
                    device: LOW,
                    channel: 0,
                },
                from: Identity {
                    process: LOW,
                    device: LOW,
                    channel: 0,
                },
                notifies: 0,
                bell_offset: 0,
                fds: 0,
                sample: NO_SAMPLE,
            }),
            STATUS_LINK_DOWN,
        ),
        (
            Frame::Give {
                request: 99,
                status: -7,
                bytes: 0,
                kind: crate::wire::RegionKind::User,
                loan: None,
            },
            STATUS_LINK_DOWN,
        ),
    ] {
        let (low, high) = (open(LOW), open(HIGH));
        let (a, b) = (channel(&low), channel(&high));
        connect(&a, &b).unwrap();
        let memory = crate::limits::reserved_memory("test", 4096).unwrap();
        let fds = [memory.as_fd()];
        let sent = send_frame(other(&a).socket(), &frame, &fds[..frame.fds()]);
        assert!(sent.unwrap());
        other(&a).segment.mail().fetch_add(1, Ordering::Release);
        ops::progress(&high);
        assert_eq!(b.inner.check(), Err(status));
    }
}

#[test]
fn many_imports_at_once_are_all_answered() {
    let (low, high) = (open(LOW), open(HIGH));
    let (a, b) = (channel(&low), channel(&high));
    connect(&a, &b).unwrap();
    let ours: Vec<Region> = (0..100)
        .map(|_| Region::allocate(&low, 10).unwrap())
        .collect();
    let theirs: Vec<Region> = (0..100)
        .map(|_| Region::allocate(&high, 10).unwrap())
        .collect();
    let begin = |channel: &Channel, regions: &[Region]| -> Vec<Import> {
        regions
            .iter()
            .map(|region| Import::begin(channel, &region.blob().encode()).unwrap())
            .collect()
    };
    let mut at_a = begin(&a, &theirs);
    let mut at_b = begin(&b, &ours);
    // Some are given up while they are asked for.
    for import in &mut at_a[..5] {
        assert_eq!(import.poll(&a), Ok(None));
        import.abandon(&a.inner);
    }
    at_a.drain(..5);
    let mut rounds = 0;
    loop {
        let mut missing = 0;
        for (channel, imports) in [(&a, &mut at_a), (&b, &mut at_b)] {
            for import in imports {
                missing += usize::from(import.poll(channel).unwrap().is_none());
            }
        }
        if missing == 0 {
            break;
        }
        rounds += 1;
        assert!(rounds < 1000, "{missing} without an answer");
    }
    assert_eq!(a.inner.check(), Ok(()));
    // Once all mail is heard, nobody looks at the sockets again.
    for device in [&low, &high] {
        ops::progress(device);
        assert!(!ops::progress(device));
    }
    drop(b);
    assert_eq!(a.inner.check(), Err(STATUS_PEER_LOST));
}

#[test]
fn who_does_not_leave_a_gate_is_named_and_waited_for_no_longer_than_patience() {
    let (low, high) = (open(LOW), open(HIGH));
    let (a, b) = (channel(&low), channel(&high));
    connect(&a, &b).unwrap();
    let mut memory = [5; 100];
    let region = registered(&high, &mut memory);
    let import = import(&a, &high, &region);
    let mut local = [6; 100];
    let posted = ops::post(&a, &[transfer(OP_WRITE, &mut local, &import)]);
    assert_eq!((posted.inline_done, posted.status), (1, STATUS_OK));
    assert_eq!(memory, [6; 100]);
    // As of a peer that is stopped in the middle of a transfer.
    let inside = other(&a).segment.inside();
    inside.store(region.core.number, Ordering::Release);
    let fault = region.close().unwrap_err();
    assert_eq!(fault.status, STATUS_BUSY);
    let pid = std::process::id().to_string();
    assert!(fault.text.contains(&pid), "{fault}");
    // It goes on: the gate is closed.
    local = [7; 100];
    let posted = ops::post(&a, &[transfer(OP_WRITE, &mut local, &import)]);
    assert_eq!((posted.accepted, posted.status), (0, STATUS_STALE_KEY));
    assert_eq!(region.close(), Ok(()));
    // Stopped again, and then gone.
    let region = registered(&high, &mut memory);
    other(&a)
        .segment
        .inside()
        .store(region.core.number, Ordering::Release);
    drop(a);
    assert_eq!(region.close(), Ok(()));
    drop(region);
    assert_eq!(memory, [6; 100]);
}

#[test]
fn an_end_that_is_destroyed_lends_nothing_and_forgets_nobody_inside() {
    let (low, high) = (open(LOW), open(HIGH));
    let (a, b) = (channel(&low), channel(&high));
    connect(&a, &b).unwrap();
    let mut memory = [5; 100];
    let region = registered(&high, &mut memory);
    let import = import(&a, &high, &region);
    let segment = &other(&a).segment;
    segment
        .inside()
        .store(region.core.number, Ordering::Release);
    drop(b);
    assert_eq!(segment.gate(1).unwrap().load(Ordering::Relaxed), 0);
    assert_eq!(high.lenders().len(), 1);
    assert_eq!(region.close().unwrap_err().status, STATUS_BUSY);
    segment.inside().store(0, Ordering::Release);
    assert_eq!(region.close(), Ok(()));
    assert_eq!(high.lenders().len(), 0);
    let mut local = [6; 100];
    let posted = ops::post(&a, &[transfer(OP_WRITE, &mut local, &import)]);
    assert_eq!(posted.accepted, 0);
    assert_eq!(memory, [5; 100]);
}

#[test]
fn false_samples_and_loans_lead_to_errors_only() {
    let nowhere = 16;
    let stranger = [9_u64; 4];
    for address in [nowhere, u64::MAX - 7, stranger.as_ptr() as u64] {
        let (low, high) = (open(LOW), open(HIGH));
        let (a, b) = (channel(&low), channel(&high));
        let (blob_a, blob_b) = (a.blob().unwrap(), blob_of(&b));
        let segment = crate::limits::reserved_memory("test", 1 << 20).unwrap();
        let from = blob_of(&a).identity;
        // The gate to what pretends to be a sample.
        let mapped = Segment::of_peer(&segment, 2).unwrap();
        mapped
            .gate(0)
            .unwrap()
            .store(from.channel, Ordering::Release);
        let socket = open_connection(&blob_b.address).unwrap();
        let hello = Frame::Hello(Hello {
            to: blob_b.identity,
            from,
            notifies: 2,
            bell_offset: 0,
            fds: 0,
            sample: Sample {
                address,
                content: [8; 16],
            },
        });
        assert!(send_frame(&socket, &hello, &[segment.as_fd()]).unwrap());
        assert_eq!(b.connect(&blob_a), Ok(Connect::Connected));
        let how = b.inner.describe();
        assert!(how.contains("through a ring"), "{how}");
        assert!(b.inner.reach().is_none());
    }
    assert_eq!(stranger, [9; 4]);

    let (low, high) = (open(LOW), open(HIGH));
    let (a, b) = (channel(&low), channel(&high));
    connect(&a, &b).unwrap();
    let gate = |index: usize| other(&a).segment.gate(index).unwrap();
    let mut local = [6; 100];
    for (index, address, status) in [
        (1, nowhere, STATUS_SYSTEM),
        (1, u64::MAX - 50, STATUS_SYSTEM),
        (1, 0, STATUS_SYSTEM),
        (2, nowhere, STATUS_STALE_KEY),
        (u32::MAX, nowhere, STATUS_STALE_KEY),
    ] {
        gate(1).store(77, Ordering::Release);
        let moved = a.inner.reach().unwrap().move_bytes(
            &other(&a).segment,
            Place::new(
                77,
                Loan {
                    gate: index,
                    address,
                },
            ),
            0,
            export::caller_memory(local.as_mut_ptr(), 100).unwrap(),
            Move::Write,
        );
        assert_eq!(moved, Err(Stop::Failed(status)), "{index} {address}");
        assert_eq!(other(&a).segment.inside().load(Ordering::Acquire), 0);
    }
    assert_eq!(a.inner.check(), Ok(()));
    drop(b);
}

#[test]
fn regions_without_a_free_gate_go_through_the_ring() {
    let (low, high) = (open(LOW), open(HIGH));
    let (a, b) = (channel(&low), channel(&high));
    connect(&a, &b).unwrap();
    let mut memory = [5; 8];
    let mut regions: Vec<Region> = (0..GATES).map(|_| registered(&high, &mut memory)).collect();
    let mut direct = 0;
    for region in &regions {
        let import = import(&a, &high, region);
        direct += usize::from(matches!(
            import.target,
            Target::User {
                direct: Some(_),
                ..
            }
        ));
    }
    assert_eq!(direct, GATES - 1, "one is the sample's");
    assert!(a.inner.describe().contains("some regions"));
    // A gate that is free again is used again, for a region that had none.
    regions.remove(3).close().unwrap();
    let last = import(&a, &high, regions.last().unwrap());
    assert!(matches!(
        last.target,
        Target::User {
            direct: Some(_),
            ..
        }
    ));
    drop(b);
}

#[test]
fn a_read_through_a_false_outcome_gives_its_status_only() {
    let (low, high) = (open_staging(LOW), open_staging(HIGH));
    let (a, b) = (channel(&low), channel(&high));
    connect(&a, &b).unwrap();
    let mut memory = [5; 100];
    let region = registered(&high, &mut memory);
    let import = import(&a, &high, &region);
    let mut local = [0; 100];
    let posted = ops::post(&a, &[transfer(OP_READ, &mut local, &import)]);
    assert_eq!((posted.accepted, posted.status), (1, STATUS_OK));
    // The owner says "done" with a status that no owner has.
    b.inner
        .own()
        .outcome(0)
        .store(u64::MAX >> 33, Ordering::Relaxed);
    b.inner.own().head().store(1, Ordering::Release);
    let mut out = [hcomm_transport_abi::CompletionV1 {
        cookie: 0,
        status: 0,
        reserved: 0,
    }];
    assert_eq!(ops::poll(&low, &mut out), 1);
    assert_eq!((out[0].cookie, out[0].status), (7, STATUS_LINK_DOWN));
    assert_eq!(local, [0; 100]);
}

fn entry(number: u64, key: Token) -> impl Strategy<Value = Entry> {
    (
        0..7_u32,
        prop_oneof![Just(0), Just(1), Just(1 << 31), any::<u32>()],
        prop_oneof![3 => Just(number), 1 => any::<u64>()],
        prop_oneof![5 => Just(key), 1 => any::<Token>()],
        prop_oneof![0..300_u64, any::<u64>()],
        prop_oneof![0..300_u64, Just(PIECE_BYTES), any::<u64>()],
        prop_oneof![0..3_u32, any::<u32>()],
        0..14_u32,
        0..6_u32,
        any::<[u64; 2]>(),
    )
        .prop_map(
            |(op, flags, region, key, offset, bytes, notify, dtype, redop, fingerprint)| Entry {
                op,
                flags,
                region,
                key,
                offset,
                bytes,
                notify,
                dtype,
                redop,
                fingerprint,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn entries_of_a_broken_peer_stay_in_their_region(
        seeds in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        entries in prop::collection::vec(entry(0, [0; 16]), 40),
        tail in prop_oneof![4 => 0..=SLOTS, 1 => any::<u64>()],
    ) {
        let (low, high) = (open_staging(LOW), open_staging(HIGH));
        let (a, b) = (channel(&low), channel(&high));
        connect(&a, &b).unwrap();
        let mut memory = vec![9_u8; 900];
        let region = registered(&high, &mut memory[300..600]);
        let right = region.blob();
        for (position, index) in seeds.iter().enumerate() {
            let mut entry = *index.get(&entries);
            // Most know the region: only then the fields behind it are looked at.
            if entry.region == 0 {
                entry.region = right.number;
                entry.key = if entry.key == [0; 16] { right.key } else { entry.key };
            }
            other(&a).segment.put_entry(position as u64, &entry);
        }
        other(&a).segment.tail().store(tail, Ordering::Release);
        ops::progress(&high);
        let state = b.inner.usable().err().unwrap_or(STATUS_OK);
        prop_assert_eq!(state, if tail > SLOTS { STATUS_LINK_DOWN } else { STATUS_OK });
        drop(region);
        prop_assert!(memory[..300].iter().chain(&memory[600..]).all(|byte| *byte == 9));
    }

    #[test]
    fn outcomes_of_a_broken_owner_never_panic(
        heads in prop::collection::vec(prop_oneof![0..70_u64, any::<u64>()], 1..20),
        outcome in any::<u64>(),
        bytes in 0..100_000_usize,
    ) {
        let (low, high) = (open_staging(LOW), open_staging(HIGH));
        let (a, b) = (channel(&low), channel(&high));
        connect(&a, &b).unwrap();
        let mut memory = vec![9_u8; 100_000];
        let region = registered(&high, &mut memory);
        let import = import(&a, &high, &region);
        let mut local = vec![0; bytes];
        for (round, head) in heads.into_iter().enumerate() {
            let opcode = if round % 2 == 0 { OP_READ } else { OP_WRITE };
            ops::post(&a, &[transfer(opcode, &mut local, &import)]);
            for position in 0..SLOTS {
                b.inner.own().outcome(position).store(outcome, Ordering::Relaxed);
            }
            b.inner.own().head().store(head, Ordering::Release);
            ops::progress(&low);
            let _ = ops::flush(&a);
            let mut out = [hcomm_transport_abi::CompletionV1 { cookie: 0, status: 0, reserved: 0 }];
            ops::poll(&low, &mut out);
        }
    }
}
