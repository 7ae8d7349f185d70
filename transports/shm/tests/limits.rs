//! Limits are told, not hit by a crash. Alone in its file: it lowers the limit of the process.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod rig;

use std::fs::File;
use std::os::fd::AsRawFd;

use hcomm_transport_abi::{Connect, Fault, STATUS_LIMIT, Transport};
use hcomm_transport_shm::Shm;
use rig::agent::{self, Agent, hex, unhex};
use rig::{Device, until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
#[ignore = "the second process of the other test"]
fn agent() {
    agent::serve();
}

/// Runs with room for `spare` more descriptors.
fn with_spare<T>(spare: u64, act: impl FnOnce() -> T) -> T {
    let limit = getrlimit(Resource::Nofile);
    // Descriptors are given lowest first: the one after the spare ones is the first that is too
    // many.
    let probes: Vec<File> = (0..=spare)
        .map(|_| File::open("/dev/null").unwrap())
        .collect();
    let low = Rlimit {
        current: probes.last().map(|last| last.as_raw_fd() as u64),
        maximum: limit.maximum,
    };
    drop(probes);
    setrlimit(Resource::Nofile, low).unwrap();
    let result = act();
    setrlimit(Resource::Nofile, limit).unwrap();
    result
}

fn assert_limit<T>(result: Result<T, Fault>) {
    let fault = result.err().unwrap();
    assert_eq!(fault.status, STATUS_LIMIT, "{fault}");
    assert!(fault.text.contains("ulimit -n"), "{fault}");
}

#[test]
fn a_full_descriptor_table_is_told_at_every_step() {
    let mut agent = Agent::start();
    let device = Device::open();
    for spare in 0..2 {
        with_spare(spare, || assert_limit(device.try_channel(1, 1)));
    }
    with_spare(0, || {
        // What needs none works on.
        assert_eq!(Shm::device_count(), Ok(1));
    });
    let end = device.channel(1);

    // Connecting: the segment, the socket, the peer's descriptors; each time with a fresh pair,
    // because a failure is for good.
    let mut failures = 0;
    for spare in 0..8 {
        let end = device.channel(1);
        let blob = unhex(&agent.ask("channel 1"));
        agent.tell(&format!("connect {}", hex(&end.blob())));
        let connected = with_spare(spare, || {
            until("an end of connecting", || match end.connect(&blob) {
                Ok(Connect::InProgress) => None,
                Ok(Connect::Connected) => Some(Ok(())),
                Err(fault) => Some(Err(fault)),
            })
        });
        let connected_here = connected.is_ok();
        if connected_here {
            assert_eq!(agent.answer(), "connected");
            agent.ask("destroy");
            continue;
        }
        failures += 1;
        assert_limit(connected);
        drop(end);
        // The agent may wait for a peer that never knocks, so a fresh one takes its place.
        agent = Agent::start();
    }
    assert!((1..8).contains(&failures), "{failures} of 8 failed");

    agent.connect(&device, &end, 1);
    let blob = unhex(&agent.ask("allocate 100 1"));
    let import = with_spare(0, || {
        end.import(&blob, || {
            device.progress();
        })
    });
    assert_limit(import);
    let remote = end
        .import(&blob, || {
            device.progress();
        })
        .unwrap();
    end.release(remote);
    assert_eq!(end.check(), Ok(()));
}
