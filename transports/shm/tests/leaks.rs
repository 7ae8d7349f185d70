//! Everything is given back. Alone in its file: it counts what the whole process has open.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod rig;

use hcomm_transport_abi::{OP_READ, STATUS_OK};
use rig::agent::{self, Agent, unhex};
use rig::{Device, connect_pair, notify, transfer};

#[test]
#[ignore = "the second process of the other test"]
fn agent() {
    agent::serve();
}

#[test]
fn descriptors_and_mappings_return_to_their_count() {
    let mut agent = Agent::start();
    let mut round = || {
        let (left, right) = (Device::open(), Device::open());
        let ends = (left.channel(4), right.channel(4));
        connect_pair(&ends.0, &ends.1);
        let memory = right.allocate(100_000);
        let remote = ends.0.import(&right.export(&memory), || {}).unwrap();
        ends.0.release(remote);

        let across = left.channel(8);
        agent.connect(&left, &across, 8);
        let mut data = [0; 100];
        for (index, what) in ["allocate 5000 1", "register 5000 1"]
            .into_iter()
            .enumerate()
        {
            let blob = unhex(&agent.ask(what));
            let remote = across
                .import(&blob, || {
                    left.progress();
                })
                .unwrap();
            let read = transfer(OP_READ, data.as_mut_ptr(), &remote, 0, 100);
            assert_eq!(across.finish(&left, read), STATUS_OK, "{index}");
            across.release(remote);
        }
        assert_eq!(across.post(notify(0, [0; 2])), (true, STATUS_OK));
        drop((ends, across, memory));
        left.close().unwrap();
        right.close().unwrap();
    };
    for _ in 0..3 {
        round();
    }
    let before = (count("/proc/self/fd"), mappings());
    for _ in 0..50 {
        round();
    }
    assert_eq!((count("/proc/self/fd"), mappings()), before);
}

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .count()
}
