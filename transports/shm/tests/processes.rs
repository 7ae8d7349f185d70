//! Between two processes.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod rig;

use hcomm_transport_abi::{
    OP_READ, OP_READ_REDUCE, OP_WRITE, OP_WRITE_REDUCE, STATUS_NO_RESOURCE, STATUS_OK,
    STATUS_OUT_OF_BOUNDS, STATUS_PEER_LOST, STATUS_STALE_KEY, Transport,
};
use hcomm_transport_shm::Shm;
use rig::agent::{self, Agent, hex, unhex};
use rig::{Device, End, Remote, notify, pattern, reducing, transfer, until, with_notify};

/// Sizes around every edge of the ring, and past all of it.
const SIZES: [usize; 10] = [
    0,
    1,
    7,
    8191,
    8192,
    8193,
    100_003,
    64 * 8192,
    64 * 8192 + 1,
    (3 << 20) + 5,
];

#[test]
#[ignore = "the second process of the other tests"]
fn agent() {
    agent::serve();
}

fn pair(notifies: u32) -> (Device, End, Agent) {
    let mut agent = Agent::start();
    let device = Device::open();
    let end = device.channel(notifies);
    agent.connect(&device, &end, notifies);
    (device, end, agent)
}

/// The same where user memory goes through the ring.
fn staged_pair(notifies: u32) -> (Device, End, Agent) {
    let mut agent = Agent::start();
    let device = Device::open();
    hcomm_transport_shm::hook::stage(&device.0);
    assert_eq!(agent.ask("stage"), "staging");
    let end = device.channel(notifies);
    agent.connect(&device, &end, notifies);
    (device, end, agent)
}

/// A pair of which this side reaches the agent's user memory directly; `None`, with a line, where
/// the system forbids it.
fn direct_pair(notifies: u32) -> Option<(Device, End, Agent)> {
    let pair = pair(notifies);
    let how = Shm::describe(&pair.1.0);
    if how.contains("one copy") {
        return Some(pair);
    }
    eprintln!("skipped: {how}");
    None
}

fn import(device: &Device, end: &End, blob: &str) -> Remote {
    end.import(&unhex(blob), || {
        device.progress();
    })
    .unwrap()
}

#[test]
fn notifies_carry_counts_and_fingerprints_both_ways() {
    let (device, end, mut agent) = pair(3);
    assert_eq!(end.post(notify(2, [5, 6])), (true, STATUS_OK));
    assert_eq!(end.post(notify(2, [0, 0])), (true, STATUS_OK));
    assert_eq!(agent.ask("wait 2 2"), "2 [5, 6]");
    assert_eq!(agent.ask("peek 1"), "0 [0, 0]");
    assert_eq!(agent.ask("notify 1"), "0");
    until("notify", || (end.notified(1).0 == 1).then_some(()));
    assert_eq!(device.counters().notifies, 2);
    assert_eq!(end.check(), Ok(()));
}

#[test]
fn mapped_writes_land_while_the_target_stands_still() {
    let (device, end, mut agent) = pair(1);
    let blob = agent.ask("allocate 70001 3");
    let remote = import(&device, &end, &blob);
    assert_eq!(remote.bytes, 70_001);
    assert!(remote.address.is_some());
    assert_eq!(agent.ask("still"), "still");

    let mut data = pattern(9, 60_001);
    let write = transfer(OP_WRITE, data.as_mut_ptr(), &remote, 10_000, data.len());
    assert_eq!(end.post(with_notify(write, 0, [1, 2])), (true, STATUS_OK));
    assert_eq!(agent.ask("peek 0"), "1 [1, 2]");
    assert_eq!(unhex(&agent.ask("bytes 0 10000 60001")), data);
    assert_eq!(unhex(&agent.ask("bytes 0 0 10000")), pattern(3, 10_000));

    let mut back = vec![0; 70_001];
    let read = transfer(OP_READ, back.as_mut_ptr(), &remote, 0, back.len());
    assert_eq!(end.post(read), (true, STATUS_OK));
    assert_eq!(back[..10_000], pattern(3, 10_000));
    assert_eq!(back[10_000..], data);

    for (offset, bytes) in [(70_001, 1), (0, 70_002), (u64::MAX, 2)] {
        let mut beyond = transfer(OP_WRITE, data.as_mut_ptr(), &remote, offset, 0);
        beyond.bytes = bytes;
        assert_eq!(end.post(beyond), (false, STATUS_OUT_OF_BOUNDS));
    }
    assert_eq!(device.counters().bytes_staged, 0);
    assert_eq!(device.counters().bytes_written, 60_001);
    end.release(remote);
}

#[test]
fn a_sleeping_peer_is_woken_by_the_bell() {
    let (_device, end, mut agent) = pair(1);
    for round in 1..200 {
        agent.tell(&format!("sleep 0 {round}"));
        assert_eq!(end.post(notify(0, [round, 0])), (true, STATUS_OK));
        assert_eq!(agent.answer(), format!("{round} [{round}, 0]"));
    }
}

#[test]
fn user_memory_is_written_and_read_through_the_ring() {
    let (device, end, mut agent) = staged_pair(1);
    let bytes = SIZES[SIZES.len() - 1] + 3;
    let blob = agent.ask(&format!("register {bytes} 1"));
    let remote = import(&device, &end, &blob);
    assert_eq!(remote.bytes, bytes as u64);
    assert_eq!(remote.address, None);
    let mut expected = pattern(1, bytes);
    let mut staged = 0;
    for (seed, size) in SIZES.into_iter().enumerate() {
        let mut data = pattern(100 + seed as u64, size);
        let write = transfer(OP_WRITE, data.as_mut_ptr(), &remote, 3, size);
        assert_eq!(end.finish(&device, write), STATUS_OK, "{size}");
        expected[3..3 + size].copy_from_slice(&data);
        let mut back = vec![0; bytes];
        let read = transfer(OP_READ, back.as_mut_ptr(), &remote, 0, bytes);
        assert_eq!(end.finish(&device, read), STATUS_OK, "{size}");
        assert!(back == expected, "after a write of {size}");
        staged += size + bytes;
    }
    assert!(unhex(&agent.ask(&format!("bytes 0 0 {bytes}"))) == expected);
    assert_eq!(device.counters().bytes_staged, staged as u64);
    assert_eq!(end.flush(), Ok(true));
    end.release(remote);
}

#[test]
fn user_memory_is_reduced_through_the_ring() {
    let (device, end, agent) = staged_pair(1);
    reductions(&device, &end, agent);
}

#[test]
fn user_memory_is_reduced_directly() {
    let Some((device, end, agent)) = direct_pair(1) else {
        return;
    };
    reductions(&device, &end, agent);
}

/// Sum at the agent, and maximum here, of more elements than any buffer holds.
fn reductions(device: &Device, end: &End, mut agent: Agent) {
    let count = 70_001_usize;
    let blob = agent.ask(&format!("register {} 1", count * 4));
    let remote = import(device, end, &blob);
    let theirs: Vec<i32> = pattern(1, count * 4)
        .chunks_exact(4)
        .map(|four| i32::from_le_bytes(four.try_into().unwrap()))
        .collect();
    let mut ours: Vec<i32> = (0..count as i32)
        .map(|at| at.wrapping_mul(77_777))
        .collect();
    let sum: Vec<i32> = theirs
        .iter()
        .zip(&ours)
        .map(|(x, y)| x.wrapping_add(*y))
        .collect();

    let write = transfer(
        OP_WRITE_REDUCE,
        ours.as_mut_ptr().cast(),
        &remote,
        0,
        count * 4,
    );
    assert_eq!(end.finish(device, reducing(write, 2, 0)), STATUS_OK);
    let mut back = vec![0_i32; count];
    let read = transfer(OP_READ, back.as_mut_ptr().cast(), &remote, 0, count * 4);
    assert_eq!(end.finish(device, read), STATUS_OK);
    assert!(back == sum);

    let read = transfer(
        OP_READ_REDUCE,
        ours.as_mut_ptr().cast(),
        &remote,
        0,
        count * 4,
    );
    assert_eq!(end.finish(device, reducing(read, 2, 2)), STATUS_OK);
    let largest: Vec<i32> = sum
        .iter()
        .enumerate()
        .map(|(at, x)| *x.max(&(at as i32).wrapping_mul(77_777)))
        .collect();
    assert!(ours == largest);
    end.release(remote);
}

#[test]
fn a_notify_does_not_overtake_staged_bytes() {
    let (device, end, mut agent) = staged_pair(2);
    let bytes = 1 << 20;
    let user = agent.ask(&format!("register {bytes} 0"));
    let mapped = agent.ask("allocate 64 0");
    let remote = import(&device, &end, &user);
    let word = import(&device, &end, &mapped);
    for round in 1..=10_u64 {
        let mut data = pattern(round, bytes);
        let mut flag = round.to_le_bytes();
        assert_eq!(agent.ask("still"), "still");
        // Far more than the ring holds; then a mapped write with its notify, then a notify alone.
        let write = transfer(OP_WRITE, data.as_mut_ptr(), &remote, 0, bytes);
        assert_eq!(end.post(write), (false, STATUS_OK));
        let mapped = transfer(OP_WRITE, flag.as_mut_ptr(), &word, 0, 8);
        assert_eq!(
            end.post(with_notify(mapped, 0, [round, 1])),
            (false, STATUS_OK)
        );
        assert_eq!(end.post(notify(1, [round, 2])), (false, STATUS_OK));
        assert_eq!(
            agent.ask("peek 0"),
            format!("{} [{}, {}]", round - 1, round - 1, u64::from(round > 1))
        );
        assert_eq!(agent.ask("go"), "going");
        agent.tell(&format!("wait 0 {round}"));
        until("flush", || {
            device.progress();
            end.flush().unwrap().then_some(())
        });
        assert_eq!(agent.answer(), format!("{round} [{round}, 1]"));
        assert_eq!(
            agent.ask(&format!("wait 1 {round}")),
            format!("{round} [{round}, 2]")
        );
        let tail = format!("bytes 0 {} 100", bytes - 100);
        assert_eq!(unhex(&agent.ask(&tail)), data[bytes - 100..]);
        let mut completions = 0;
        until("completions", || {
            completions += device.poll().len();
            (completions == 3).then_some(())
        });
    }
    end.release(remote);
    end.release(word);
}

#[test]
fn both_sides_stage_large_transfers_at_once() {
    let (device, end, mut agent) = staged_pair(1);
    let bytes = 2 << 20;
    let blob = agent.ask(&format!("register {bytes} 1"));
    let remote = import(&device, &end, &blob);
    let ours = device.register(bytes);
    ours.put(0, &pattern(2, bytes));
    agent.tell(&format!("import {}", hex(&device.export(&ours))));
    // The owner of a region answers from its progress.
    let peer = std::thread::scope(|scope| {
        let answer = scope.spawn(|| agent.answer());
        until("the agent's import", || {
            device.progress();
            answer.is_finished().then_some(())
        });
        answer.join().unwrap()
    });
    assert_eq!(peer, "imported");
    // The agent reads into memory 1 while we read its memory 0.
    agent.ask(&format!("register {bytes} 5"));
    agent.tell(&format!("move {OP_READ} 1 0 0 {bytes}"));
    let mut back = vec![0; bytes];
    let read = transfer(OP_READ, back.as_mut_ptr(), &remote, 0, bytes);
    assert_eq!(end.finish(&device, read), STATUS_OK);
    assert!(back == pattern(1, bytes));
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| agent.answer());
        until("the agent's read", || {
            device.progress();
            answer.is_finished().then_some(())
        });
        assert_eq!(answer.join().unwrap(), "0");
    });
    assert!(unhex(&agent.ask(&format!("bytes 1 0 {bytes}"))) == pattern(2, bytes));
    end.release(remote);
}

#[test]
fn a_full_queue_is_back_pressure() {
    let mut agent = Agent::start();
    let device = Device::open();
    hcomm_transport_shm::hook::stage(&device.0);
    let end = device.try_channel(1, 4).unwrap();
    agent.connect(&device, &end, 1);
    let blob = agent.ask("register 600000 1");
    let remote = import(&device, &end, &blob);
    let words = agent.ask("allocate 400 9");
    let mapped = import(&device, &end, &words);
    assert_eq!(agent.ask("still"), "still");
    let mut data = pattern(4, 600_000);
    let write = transfer(OP_WRITE, data.as_mut_ptr(), &remote, 0, data.len());
    let posted = Shm::post(&end.0, &[write; 6]);
    assert_eq!((posted.accepted, posted.inline_done), (4, 0));
    assert_eq!(posted.status, STATUS_NO_RESOURCE);
    assert_eq!(end.flush(), Ok(false));
    // A notify would have to queue, so nothing of its descriptor is done: it will be posted again.
    let reduce = transfer(OP_WRITE_REDUCE, data.as_mut_ptr(), &mapped, 0, 400);
    let reduce = with_notify(reducing(reduce, 2, 0), 0, [0; 2]);
    assert_eq!(end.post(reduce), (false, STATUS_NO_RESOURCE));
    assert_eq!(unhex(&agent.ask("bytes 1 0 400")), pattern(9, 400));
    assert_eq!(agent.ask("go"), "going");
    let mut done = 0;
    until("completions", || {
        device.progress();
        done += device.poll().len();
        (done == 4).then_some(())
    });
    assert_eq!(end.flush(), Ok(true));
    assert_eq!(end.post(reduce), (true, STATUS_OK));
    assert_eq!(agent.ask("peek 0"), "1 [0, 0]");
    end.release(mapped);
    end.release(remote);
}

#[test]
fn stale_keys_are_refused() {
    let (device, end, mut agent) = staged_pair(2);
    let user = agent.ask("register 100000 1");
    let allocated = agent.ask("allocate 100 1");
    let remote = import(&device, &end, &user);
    let mapped = import(&device, &end, &allocated);
    assert_eq!(agent.ask("deregister 0"), "deregistered");
    assert_eq!(agent.ask("deregister 1"), "deregistered");

    // Later imports are refused; so are bytes through the ring, and a notify behind them.
    for blob in [&user, &allocated] {
        let fault = end
            .import(&unhex(blob), || {
                device.progress();
            })
            .err()
            .unwrap();
        assert_eq!(fault.status, STATUS_STALE_KEY);
    }
    let mut data = pattern(7, 100_000);
    let write = transfer(OP_WRITE, data.as_mut_ptr(), &remote, 0, data.len());
    let (_, status) = end.post(with_notify(write, 0, [0; 2]));
    assert_eq!(status, STATUS_OK);
    let (inline, status) = end.post(notify(1, [0; 2]));
    assert!(!inline && (status == STATUS_OK || status == STATUS_STALE_KEY));
    until("the failure", || {
        device.progress();
        (end.flush() == Err(STATUS_STALE_KEY)).then_some(())
    });
    assert_eq!(end.post(notify(1, [0; 2])).1, STATUS_STALE_KEY);
    until("completions", || {
        let all = device.poll();
        assert!(all.iter().all(|one| one.status == STATUS_STALE_KEY));
        (!all.is_empty()).then_some(())
    });
    until("the rest", || {
        device.progress();
        device.poll();
        (end.flush() == Ok(true)).then_some(())
    });
    assert_eq!(agent.ask("peek 0"), "0 [0, 0]");
    assert_eq!(agent.ask("peek 1"), "0 [0, 0]");
    assert_eq!(unhex(&agent.ask("bytes 0 0 100")), pattern(1, 100));

    // A mapping outlives the region, and the channel goes on.
    let write = transfer(OP_WRITE, data.as_mut_ptr(), &mapped, 0, 100);
    assert_eq!(end.post(write), (true, STATUS_OK));
    let again = agent.ask("register 50 3");
    let fresh = import(&device, &end, &again);
    let write = transfer(OP_WRITE, data.as_mut_ptr(), &fresh, 0, 50);
    assert_eq!(
        end.finish(&device, with_notify(write, 1, [3, 4])),
        STATUS_OK
    );
    assert_eq!(agent.ask("peek 1"), "1 [3, 4]");
    assert_eq!(unhex(&agent.ask("bytes 2 0 50")), data[..50]);
    for one in [remote, mapped, fresh] {
        end.release(one);
    }
}

#[test]
fn a_wrong_key_or_size_is_refused() {
    let (device, end, mut agent) = pair(1);
    for what in ["register 100 1", "allocate 100 1"] {
        let blob = unhex(&agent.ask(what));
        let import = |bytes: &[u8]| {
            end.import(bytes, || {
                device.progress();
            })
        };
        // The key lies before the length and the kind at the end.
        let mut forged = blob.clone();
        let key = blob.len() - 10;
        forged[key] ^= 1;
        assert_eq!(import(&forged).err().unwrap().status, STATUS_STALE_KEY);
        let mut longer = blob.clone();
        longer[blob.len() - 9] ^= 128;
        assert!(import(&longer).is_err());
        let good = import(&blob).unwrap();
        end.release(good);
    }
    assert_eq!(end.check(), Ok(()));
}

#[test]
fn a_killed_peer_is_seen() {
    let (device, end, mut agent) = staged_pair(1);
    let blob = agent.ask("register 4000000 1");
    let allocated = agent.ask("allocate 4096 1");
    let remote = import(&device, &end, &blob);
    let mapped = import(&device, &end, &allocated);
    assert_eq!(end.check(), Ok(()));
    assert_eq!(agent.ask("still"), "still");
    let mut data = pattern(1, 4_000_000);
    let write = transfer(OP_WRITE, data.as_mut_ptr(), &remote, 0, data.len());
    assert_eq!(end.post(write), (false, STATUS_OK));
    agent.kill();
    assert_eq!(end.check(), Err(STATUS_PEER_LOST));
    assert_eq!(end.post(notify(0, [0; 2])), (false, STATUS_PEER_LOST));
    assert_eq!(end.flush(), Err(STATUS_PEER_LOST));
    let lost = until("completion", || {
        device.progress();
        device.poll().pop()
    });
    assert_eq!((lost.cookie, lost.status), (write.cookie, STATUS_PEER_LOST));
    // What was mapped stays readable.
    let address = mapped.address.unwrap().as_ptr();
    // SAFETY: inside the mapping, which the import keeps.
    let first = unsafe { address.read_volatile() };
    assert_eq!(first, rig::byte(1, 0));
    end.release(remote);
    end.release(mapped);
    drop(end);
    device.close().unwrap();
}

#[test]
fn a_destroyed_end_is_seen() {
    let (device, end, mut agent) = pair(1);
    assert_eq!(agent.ask("destroy"), "destroyed");
    assert_eq!(end.check(), Err(STATUS_PEER_LOST));
    drop(end);
    // The device goes on with another channel.
    let end = device.channel(1);
    agent.connect(&device, &end, 1);
    assert_eq!(end.post(notify(0, [8, 9])), (true, STATUS_OK));
    assert_eq!(agent.ask("peek 0"), "1 [8, 9]");
}

#[test]
fn user_memory_is_written_and_read_directly() {
    let Some((device, end, mut agent)) = direct_pair(1) else {
        return;
    };
    let bytes = SIZES[SIZES.len() - 1] + 3;
    let blob = agent.ask(&format!("register {bytes} 1"));
    let remote = import(&device, &end, &blob);
    assert_eq!((remote.bytes, remote.address), (bytes as u64, None));
    // The owner takes no part.
    assert_eq!(agent.ask("still"), "still");
    let mut expected = pattern(1, bytes);
    for (round, size) in SIZES.into_iter().enumerate() {
        // Odd places on both sides.
        let mut data = pattern(100 + round as u64, size + 5);
        let write = transfer(OP_WRITE, data[5..].as_mut_ptr(), &remote, 3, size);
        let write = with_notify(write, 0, [round as u64 + 1, 0]);
        assert_eq!(end.post(write), (true, STATUS_OK), "{size}");
        expected[3..3 + size].copy_from_slice(&data[5..]);
        let mut back = vec![0; bytes + 1];
        let read = transfer(OP_READ, back[1..].as_mut_ptr(), &remote, 0, bytes);
        assert_eq!(end.post(read), (true, STATUS_OK), "{size}");
        assert!(back[1..] == expected, "after a write of {size}");
    }
    let rounds = SIZES.len();
    assert_eq!(agent.ask("peek 0"), format!("{rounds} [{rounds}, 0]"));
    assert!(unhex(&agent.ask(&format!("bytes 0 0 {bytes}"))) == expected);
    let counted = device.counters();
    assert_eq!(counted.bytes_staged, 0);
    assert_eq!(counted.bytes_read, (rounds * bytes) as u64);
    assert_eq!(end.flush(), Ok(true));
    for (offset, bytes) in [(bytes as u64, 1), (0, bytes as u64 + 1), (u64::MAX, 2)] {
        let mut beyond = transfer(OP_WRITE, expected.as_mut_ptr(), &remote, offset, 0);
        beyond.bytes = bytes;
        assert_eq!(end.post(beyond), (false, STATUS_OUT_OF_BOUNDS));
    }
    end.release(remote);
}

#[test]
fn both_sides_reach_each_other_directly() {
    let Some((device, end, mut agent)) = direct_pair(1) else {
        return;
    };
    let bytes = 100_003;
    let ours = device.register(bytes);
    ours.put(0, &pattern(2, bytes));
    agent.tell(&format!("import {}", hex(&device.export(&ours))));
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| agent.answer());
        until("the agent's import", || {
            device.progress();
            answer.is_finished().then_some(())
        });
        assert_eq!(answer.join().unwrap(), "imported");
    });
    // From here on this side does nothing but look.
    agent.ask(&format!("register {bytes} 5"));
    assert_eq!(
        agent.ask(&format!("move {OP_READ} 0 0 0 {bytes}")),
        STATUS_OK.to_string()
    );
    assert!(unhex(&agent.ask(&format!("bytes 0 0 {bytes}"))) == pattern(2, bytes));
    agent.ask(&format!("register {bytes} 6"));
    assert_eq!(
        agent.ask(&format!("move {OP_WRITE} 1 0 1 {}", bytes - 1)),
        STATUS_OK.to_string()
    );
    assert!(ours.get(1, bytes - 1) == pattern(6, bytes)[..bytes - 1]);
    assert_eq!(ours.get(0, 1), pattern(2, 1));
    assert_eq!(agent.ask("staged"), "0");
    assert_eq!(end.check(), Ok(()));
}

#[test]
fn what_was_deregistered_is_not_written_to_any_more() {
    let Some((device, end, mut agent)) = direct_pair(1) else {
        return;
    };
    let bytes = 2_000_000;
    let mut data = vec![255; bytes];
    for round in 0..20 {
        let blob = agent.ask(&format!("register {bytes} 1"));
        let remote = import(&device, &end, &blob);
        agent.tell(&format!("retire {round}"));
        // Until the owner has taken it back, in the middle of a transfer as a rule.
        let status = until("the end of the region", || {
            let write = transfer(OP_WRITE, data.as_mut_ptr(), &remote, 0, bytes);
            let (inline, status) = end.post(write);
            assert_eq!(inline, status == STATUS_OK);
            (!inline).then_some(status)
        });
        assert_eq!(status, STATUS_STALE_KEY);
        let write = transfer(OP_WRITE, data.as_mut_ptr(), &remote, 0, 0);
        assert_eq!(
            end.post(with_notify(write, 0, [0; 2])),
            (false, STATUS_STALE_KEY)
        );
        assert_eq!(agent.answer(), "quiet");
        end.release(remote);
    }
    assert_eq!(agent.ask("peek 0"), "0 [0, 0]");
    assert_eq!(end.check(), Ok(()));
}

#[test]
fn a_peer_that_is_killed_while_its_memory_is_reached_is_lost() {
    for opcode in [OP_WRITE, OP_READ, OP_WRITE_REDUCE, OP_READ_REDUCE] {
        let Some((device, end, mut agent)) = direct_pair(1) else {
            return;
        };
        let bytes = 4 << 20;
        let blob = agent.ask(&format!("register {bytes} 1"));
        let remote = import(&device, &end, &blob);
        let mut data = vec![0; bytes];
        let mut rounds = 0;
        let killer = agent.pid();
        let status = until("the loss", || {
            rounds += 1;
            if rounds == 3 {
                let pid = rustix::process::Pid::from_raw(killer.cast_signed()).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            }
            let descriptor = transfer(opcode, data.as_mut_ptr(), &remote, 0, bytes);
            let (inline, status) = end.post(reducing(descriptor, 2, 0));
            (!inline).then_some(status)
        });
        assert_eq!(status, STATUS_PEER_LOST);
        assert_eq!(end.check(), Err(STATUS_PEER_LOST));
        assert_eq!(end.post(notify(0, [0; 2])), (false, STATUS_PEER_LOST));
        end.release(remote);
        drop(end);
        device.close().unwrap();
    }
}

#[test]
fn an_owner_whose_peer_was_killed_inside_gets_its_memory_back() {
    let Some((device, end, mut agent)) = direct_pair(1) else {
        return;
    };
    let mut ours = device.register(8 << 20);
    agent.tell(&format!("import {}", hex(&device.export(&ours))));
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| agent.answer());
        until("the agent's import", || {
            device.progress();
            answer.is_finished().then_some(())
        });
        answer.join().unwrap();
    });
    agent.ask(&format!("register {} 255", 8 << 20));
    // It is killed somewhere inside, or just before or after.
    agent.tell(&format!("move {OP_WRITE} 0 0 0 {}", 8 << 20));
    until("the first bytes", || {
        (ours.get(0, 8) != [0; 8]).then_some(())
    });
    agent.kill();
    device.deregister(&mut ours);
    assert_eq!(end.check(), Err(STATUS_PEER_LOST));
}
