//! Between two ends in one process.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod rig;

use hcomm_transport_abi::{
    CAP_MAP, OP_READ, OP_READ_REDUCE, OP_WRITE, OP_WRITE_REDUCE, STATUS_BAD_BLOB, STATUS_BUSY,
    STATUS_INVALID_ARGUMENT, STATUS_NOT_CONNECTED, STATUS_OK, STATUS_OUT_OF_BOUNDS,
    STATUS_PEER_LOST, STATUS_REFUSED, STATUS_STALE_KEY, STATUS_UNSUPPORTED, Transport,
};
use hcomm_transport_shm::Shm;
use proptest::prelude::*;
use rig::{Device, connect_pair, notify, pattern, reducing, transfer, until, with_notify};

#[test]
fn the_device_says_what_it_is() {
    rig::host::init(hcomm_transport_shm::transport_v1());
    assert_eq!(Shm::device_count(), Ok(1));
    let attributes = Shm::query_device(0).unwrap();
    assert_eq!(attributes.name, "shm0");
    assert_ne!(attributes.attr.capabilities & CAP_MAP, 0);
    assert_ne!(attributes.attr.address, [0; 16]);
    assert_eq!(
        Shm::query_device(1).unwrap_err().status,
        STATUS_INVALID_ARGUMENT
    );
}

#[test]
fn memory_is_reached_at_once_here() {
    let (left, right) = (Device::open(), Device::open());
    let (a, b) = (left.channel(2), right.channel(3));
    assert_eq!(a.check(), Err(STATUS_NOT_CONNECTED));
    connect_pair(&a, &b);
    // Memory of the user has no address: it may be gone at any time, which the link knows.
    for (memory, is_mapped) in [
        (right.allocate(10_001), true),
        (right.register(10_001), false),
    ] {
        memory.put(0, &pattern(1, 10_001));
        let remote = a.import(&right.export(&memory), || {}).unwrap();
        let address = remote.address.map(|at| at.as_ptr());
        assert_eq!(address, is_mapped.then(|| memory.pointer()));
        let mut data = pattern(2, 5_000);
        let write = transfer(OP_WRITE, data.as_mut_ptr(), &remote, 5_001, 5_000);
        let before = b.notified(2).0;
        assert_eq!(a.post(with_notify(write, 2, [4, 5])), (true, STATUS_OK));
        assert_eq!(b.notified(2), (before + 1, [4, 5]));
        assert_eq!(memory.get(5_001, 5_000), data);
        let mut back = vec![0; 10_001];
        let read = transfer(OP_READ, back.as_mut_ptr(), &remote, 0, 10_001);
        assert_eq!(a.post(read), (true, STATUS_OK));
        assert_eq!(back, memory.get(0, 10_001));
        assert_eq!(a.flush(), Ok(true));
        a.release(remote);
    }
    assert_eq!(left.counters().bytes_staged, 0);
    assert_eq!(left.counters().bytes_written, 10_000);
    assert_eq!(left.counters().bytes_read, 20_002);
    assert_eq!(left.counters().descriptors, 4);
}

#[test]
fn reductions_combine_element_by_element() {
    let device = Device::open();
    let (a, b) = (device.channel(1), device.channel(1));
    connect_pair(&a, &b);
    let memory = device.allocate(400);
    let floats: Vec<f32> = (0..100).map(|at| at as f32 / 4.0).collect();
    let bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_ne_bytes()).collect();
    memory.put(0, &bytes);
    let remote = a.import(&device.export(&memory), || {}).unwrap();
    let mut ours = [1.5_f32; 100];
    let write = transfer(OP_WRITE_REDUCE, ours.as_mut_ptr().cast(), &remote, 0, 400);
    assert_eq!(a.post(reducing(write, 10, 0)), (true, STATUS_OK));
    let read = transfer(OP_READ_REDUCE, ours.as_mut_ptr().cast(), &remote, 0, 400);
    assert_eq!(a.post(reducing(read, 10, 0)), (true, STATUS_OK));
    for (found, x) in ours.iter().zip(&floats) {
        assert_eq!(*found, 1.5 + (x + 1.5));
    }
    for (dtype, redop, bytes, offset) in [(12, 0, 8, 0), (10, 4, 8, 0), (10, 0, 7, 0)] {
        let bad = transfer(
            OP_WRITE_REDUCE,
            ours.as_mut_ptr().cast(),
            &remote,
            offset,
            bytes,
        );
        assert_eq!(
            a.post(reducing(bad, dtype, redop)),
            (false, STATUS_INVALID_ARGUMENT)
        );
    }
    // A place that overlaps itself in part cannot be combined.
    let shifted = memory.pointer().wrapping_add(4);
    let bad = transfer(OP_WRITE_REDUCE, shifted, &remote, 0, 100);
    assert_eq!(
        a.post(reducing(bad, 10, 0)),
        (false, STATUS_INVALID_ARGUMENT)
    );
    a.release(remote);
}

#[test]
fn bad_descriptors_are_refused_and_the_prefix_is_taken() {
    let device = Device::open();
    let (a, b) = (device.channel(1), device.channel(1));
    assert_eq!(a.post(notify(0, [0; 2])), (false, STATUS_NOT_CONNECTED));
    connect_pair(&a, &b);
    let memory = device.allocate(100);
    let remote = a.import(&device.export(&memory), || {}).unwrap();
    let of_b = b.import(&device.export(&memory), || {}).unwrap();
    let mut data = [0; 200];
    let good = transfer(OP_WRITE, data.as_mut_ptr(), &remote, 0, 100);
    let mut bad = [good; 7];
    bad[0].bytes = 101;
    bad[1].remote_offset = u64::MAX;
    bad[2].local = core::ptr::null_mut();
    bad[3].remote = core::ptr::null_mut();
    bad[4].opcode = 77;
    bad[5].flags = 2;
    bad[6] = transfer(OP_WRITE, data.as_mut_ptr(), &of_b, 0, 100);
    let expected = [
        STATUS_OUT_OF_BOUNDS,
        STATUS_OUT_OF_BOUNDS,
        STATUS_INVALID_ARGUMENT,
        STATUS_INVALID_ARGUMENT,
        STATUS_UNSUPPORTED,
        STATUS_INVALID_ARGUMENT,
        STATUS_INVALID_ARGUMENT,
    ];
    for (descriptor, status) in bad.into_iter().zip(expected) {
        let posted = Shm::post(&a.0, &[good, descriptor, good]);
        assert_eq!(
            (posted.accepted, posted.inline_done, posted.status),
            (1, 1, status)
        );
    }
    assert_eq!(a.post(notify(1, [0; 2])), (false, STATUS_INVALID_ARGUMENT));
    let beyond = with_notify(good, 1, [0; 2]);
    memory.put(0, &pattern(1, 100));
    assert_eq!(a.post(beyond), (false, STATUS_INVALID_ARGUMENT));
    assert_eq!(
        memory.get(0, 100),
        pattern(1, 100),
        "nothing of it was done"
    );
    a.release(remote);
    b.release(of_b);
}

#[test]
fn user_memory_is_not_touched_after_deregistration() {
    let device = Device::open();
    let (a, b) = (device.channel(1), device.channel(1));
    connect_pair(&a, &b);
    let mut memory = device.register(64);
    let blob = device.export(&memory);
    let remote = a.import(&blob, || {}).unwrap();
    device.deregister(&mut memory);
    let mut data = [1; 64];
    let write = transfer(OP_WRITE, data.as_mut_ptr(), &remote, 0, 64);
    assert_eq!(
        a.post(with_notify(write, 0, [0; 2])),
        (false, STATUS_STALE_KEY)
    );
    assert_eq!(memory.get(0, 64), [0; 64]);
    assert_eq!(b.notified(0).0, 0);
    let fault = a.import(&blob, || {}).err().unwrap();
    assert_eq!(fault.status, STATUS_STALE_KEY);
    a.release(remote);
}

#[test]
fn a_destroyed_end_is_seen_and_close_waits_for_all() {
    let device = Device::open();
    let (a, b) = (device.channel(1), device.channel(1));
    connect_pair(&a, &b);
    let memory = device.allocate(1);
    let remote = a.import(&device.export(&memory), || {}).unwrap();
    let fault = device.try_close().unwrap_err();
    assert_eq!(fault.status, STATUS_BUSY);
    assert!(
        fault.text.contains("1 regions, 2 channels and 1 imports"),
        "{fault}"
    );
    drop(b);
    assert_eq!(a.check(), Err(STATUS_PEER_LOST));
    assert_eq!(a.post(notify(0, [0; 2])), (false, STATUS_PEER_LOST));
    a.release(remote);
    drop(a);
    assert_eq!(device.try_close().unwrap_err().status, STATUS_BUSY);
    drop(memory);
    device.close().unwrap();
}

#[test]
fn ends_that_disagree_are_refused() {
    let device = Device::open();
    let (a, b, c) = (device.channel(1), device.channel(1), device.channel(1));
    assert_eq!(
        a.connect(&a.blob()).unwrap_err().status,
        STATUS_INVALID_ARGUMENT
    );
    let _ = a.connect(&b.blob()).unwrap();
    let _ = b.connect(&c.blob()).unwrap();
    assert_eq!(a.connect(&b.blob()).unwrap_err().status, STATUS_REFUSED);
    assert_eq!(a.check(), Err(STATUS_REFUSED));
    let gone = device.channel(1).blob();
    let d = device.channel(1);
    assert_eq!(d.connect(&gone).unwrap_err().status, STATUS_PEER_LOST);
}

#[test]
fn threads_may_post_both_ways_at_once() {
    const ROUNDS: u64 = 20_000;
    let device = Device::open();
    let (a, b) = (device.channel(1), device.channel(1));
    connect_pair(&a, &b);
    std::thread::scope(|scope| {
        for (own, seed) in [(a, 1_u64), (b, 2)] {
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    assert_eq!(own.post(notify(0, [round * seed, 0])), (true, STATUS_OK));
                    until("the other thread", || {
                        (own.notified(0).0 >= round).then_some(())
                    });
                }
                // The other end may still look at ours.
                until("the other end", || {
                    (own.notified(0).0 == ROUNDS).then_some(())
                });
            });
        }
    });
}

proptest! {
    #[test]
    fn blobs_of_strangers_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>(),
        flip in 1..=255_u8,
    ) {
        let device = Device::open();
        let (a, b) = (device.channel(1), device.channel(1));
        connect_pair(&a, &b);
        let c = device.channel(1);
        prop_assert!(c.connect(&bytes).is_err());
        prop_assert_eq!(a.import(&bytes, || {}).err().unwrap().status, STATUS_BAD_BLOB);
        let memory = device.register(8);
        let mut blob = device.export(&memory);
        let place = at.index(blob.len());
        blob[place] ^= flip;
        let imported = a.import(&blob, || {});
        prop_assert!(imported.is_err());
        let (d, e) = (device.channel(1), device.channel(1));
        let mut peer = e.blob();
        let place = at.index(peer.len());
        peer[place] ^= flip;
        // The other end made no such blob: no panic, and no connection.
        if let Ok(state) = d.connect(&peer) {
            prop_assert_eq!(state, hcomm_transport_abi::Connect::InProgress);
        }
    }
}
