//! Nothing is allocated between submit and completion. Alone in its file: it counts the
//! allocations of the whole process.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod rig;

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicU64, Ordering};
use std::alloc::System;

use hcomm_transport_abi::{CompletionV1, OP_READ, OP_WRITE, STATUS_OK, Transport};
use hcomm_transport_shm::Shm;
use rig::agent::{self, Agent, unhex};
use rig::{Device, notify, transfer, with_notify};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
#[ignore = "the second process of the other test"]
fn agent() {
    agent::serve();
}

#[test]
fn nothing_is_allocated_between_submit_and_completion() {
    for stages in [false, true] {
        nothing_is_allocated(stages);
    }
}

fn nothing_is_allocated(stages: bool) {
    let mut agent = Agent::start();
    let device = Device::open();
    if stages {
        hcomm_transport_shm::hook::stage(&device.0);
    }
    let end = device.channel(1);
    agent.connect(&device, &end, 1);
    let mut imports = Vec::new();
    for what in ["allocate 300000 1", "register 300000 1"] {
        let blob = unhex(&agent.ask(what));
        imports.push(
            end.import(&blob, || {
                device.progress();
            })
            .unwrap(),
        );
    }
    let mut data = vec![1; 300_000];
    // The first answer of the agent's output buffer and the like are not what is counted.
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let mut outstanding = 0;
    let mut out = [CompletionV1 {
        cookie: 0,
        status: 0,
        reserved: 0,
    }; 16];
    for round in 0..500 {
        for remote in &imports {
            let write = transfer(OP_WRITE, data.as_mut_ptr(), remote, 0, data.len());
            let read = transfer(OP_READ, data.as_mut_ptr(), remote, 0, 77);
            let batch = [with_notify(write, 0, [round, 1]), read, notify(0, [0; 2])];
            let mut at = 0;
            while at < batch.len() {
                let posted = Shm::post(&end.0, &batch[at..]);
                at += posted.accepted as usize;
                outstanding += posted.accepted - posted.inline_done;
                device.progress();
                let found = Shm::poll(&device.0, &mut out).unwrap();
                assert!(out[..found].iter().all(|one| one.status == STATUS_OK));
                outstanding -= found as u32;
            }
        }
    }
    while outstanding > 0 {
        device.progress();
        outstanding -= Shm::poll(&device.0, &mut out).unwrap() as u32;
    }
    assert_eq!(end.flush(), Ok(true));
    assert_eq!(end.check(), Ok(()));
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before);
    for remote in imports {
        end.release(remote);
    }
}
