//! Point to point.

use hcomm::{Communicator, DataType, Rank, ReduceOp};

use crate::job::{self, Job};
use crate::random::Random;
use crate::sample::{assert_same, samples, unwritten};
use crate::team;

fn send(comm: &Communicator, to: u32, number: usize, count: usize) {
    let data = samples::<u16>(ReduceOp::Sum, comm.rank().0, number * 1000, count);
    comm.send(&data, Rank(to))
        .unwrap_or_else(|error| panic!("send {number} to {to}: {error}"));
}

fn recv(comm: &Communicator, from: u32, number: usize, count: usize) {
    let mut data = unwritten::<u16>(ReduceOp::Sum, count);
    comm.recv(&mut data, Rank(from))
        .unwrap_or_else(|error| panic!("recv {number} from {from}: {error}"));
    let expected = samples(ReduceOp::Sum, from, number * 1000, count);
    assert_same(
        format!("message {number} of {count} from {from}"),
        &data,
        &expected,
    );
}

/// Everybody sends before anybody receives: messages that fit in the inbox do not wait.
pub(crate) fn ring_of_sends(comm: &Communicator) {
    let (rank, size) = (comm.rank().0, comm.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let inbox = comm.layout().inbox_bytes() as usize / size_of::<u16>();
    for (number, count) in [0, 1, 3, 1009, inbox / 2, inbox / 2 + 1, inbox]
        .into_iter()
        .cycle()
        .take(21)
        .enumerate()
    {
        send(comm, next, number, count);
        recv(comm, before, number, count);
    }
}

/// Many in a row, small and large mixed, first one way and then the other.
pub(crate) fn many_each_way(comm: &Communicator) {
    let mut random = Random::new(7);
    let inbox = comm.layout().inbox_bytes() as usize / size_of::<u16>();
    for number in 0..120 {
        let count = match number % 4 {
            0 => random.below(5),
            1 => random.below(5_000),
            2 => random.below(2 * inbox),
            _ => 1,
        };
        let (from, to) = if number / 30 % 2 == 0 { (0, 1) } else { (1, 0) };
        if comm.rank() == Rank(from) {
            send(comm, to, number, count);
        } else if comm.rank() == Rank(to) {
            recv(comm, from, number, count);
        }
    }
}

/// Larger than the inbox many times over, between each pair, both ways.
pub(crate) fn large_ones(comm: &Communicator) {
    let count = 5 * comm.layout().inbox_bytes() as usize / size_of::<u16>() + 1;
    for a in 0..comm.size() {
        for b in 0..comm.size() {
            let number = (a * comm.size() + b) as usize;
            if a != b && comm.rank() == Rank(a) {
                send(comm, b, number, count);
            } else if a != b && comm.rank() == Rank(b) {
                recv(comm, a, number, count);
            }
        }
    }
}

/// Into registered memory, which the sender of a long message writes to itself: memory of the
/// communicator, which is mapped at the peer, and the caller's own, which is not.
pub(crate) fn into_registered_memory(comm: &Communicator) {
    const BYTES: usize = 300 << 10;
    let (rank, size) = (comm.rank().0, comm.size());
    let ours = comm.allocate("boxes", 2 * BYTES).unwrap();
    let users = comm
        .register("users", vec![0_u8; BYTES].into_boxed_slice())
        .unwrap();
    let outbox = ours.sub(0..BYTES).unwrap();
    let inboxes = [
        ours.sub(BYTES..2 * BYTES).unwrap(),
        users.slice().unwrap().clone(),
    ];
    let pairs = (0..size).flat_map(|a| (0..size).map(move |b| (a, b)));
    for (number, (from, to)) in pairs.cycle().take(60 * size as usize).enumerate() {
        let bytes = [8, 2048, 70_001, BYTES, 16 << 10][number / 7 % 5];
        let content: Vec<u8> = samples(ReduceOp::Sum, from, number, bytes);
        if from == to {
            continue;
        }
        if rank == from {
            let src = outbox.sub(0..bytes).unwrap();
            src.copy_from(&content).unwrap();
            comm.send_slice(&src, Rank(to), DataType::U8).unwrap();
        } else if rank == to {
            let inbox = &inboxes[usize::from(number % 3 == 0)];
            let dst = inbox.sub(0..bytes).unwrap();
            comm.recv_slice(&dst, Rank(from), DataType::U8).unwrap();
            let mut found = vec![0; bytes];
            dst.copy_to(&mut found).unwrap();
            let what = format!("message {number} of {bytes} bytes from {from}");
            assert_same(what, &found, &content);
        }
    }
    comm.forget("boxes").unwrap();
}

/// Messages between collectives do not get in each other's way.
pub(crate) fn between_collectives(comm: &Communicator) {
    let (rank, size) = (comm.rank().0, comm.size());
    for number in 0..30 {
        let partner = rank ^ 1;
        if partner < size && number % 3 != 2 {
            if rank.is_multiple_of(2) {
                send(comm, partner, number, 10 * number);
            } else {
                recv(comm, partner, number, 10 * number);
            }
        }
        crate::collectives::all_reduce::<i32>(comm, ReduceOp::Sum, 100 + number, true);
    }
}

/// What one message leaves in its slots is not overwritten by the next one, however they are cut.
pub(crate) fn sizes_that_are_cut_differently(comm: &Communicator) {
    let slot = comm.layout().inbox_bytes() as usize / 2 / size_of::<u16>();
    for number in 0..1500 {
        let count = match number % 5 {
            0 | 2 => slot + 1,
            1 | 3 => slot,
            _ => 2 * slot + slot / 3,
        };
        match comm.rank() {
            Rank(0) => send(comm, 1, number, count),
            _ => recv(comm, 0, number, count),
        }
    }
}

#[test]
fn messages_of_different_sizes_follow_each_other() {
    team::run_with(2, &team::small_buffer(64 << 10), |comm| {
        sizes_that_are_cut_differently(&comm);
    });
}

#[test]
fn a_ring_of_sends_does_not_deadlock() {
    for size in [2, 3, 5] {
        team::run(size, |comm| {
            ring_of_sends(&comm);
            comm.close().unwrap();
        });
    }
}

#[test]
fn a_ring_of_sends_through_the_smallest_inboxes() {
    team::run_with(7, &team::small_buffer(64 << 10), |comm| {
        ring_of_sends(&comm);
        comm.close().unwrap();
    });
}

#[test]
fn many_messages_each_way() {
    team::run(2, |comm| many_each_way(&comm));
}

#[test]
fn large_messages_between_all_pairs() {
    team::run_with(3, &team::small_buffer(256 << 10), |comm| large_ones(&comm));
    team::run(2, |comm| large_ones(&comm));
}

#[test]
fn messages_into_registered_memory() {
    for algorithm in [None, Some("handshake")] {
        team::run(3, move |comm| {
            comm.force_algorithm(algorithm).unwrap();
            into_registered_memory(&comm);
        });
    }
}

#[test]
fn messages_between_collectives() {
    team::run(4, |comm| between_collectives(&comm));
    team::run(5, |comm| between_collectives(&comm));
}

/// Request, grant, data: and then without them again.
#[test]
fn messages_with_a_handshake() {
    team::run_with(4, &team::small_buffer(256 << 10), |comm| {
        comm.force_algorithm(Some("handshake")).unwrap();
        between_collectives(&comm);
        many_each_way(&comm);
        large_ones(&comm);
        comm.barrier().unwrap();
        comm.force_algorithm(None).unwrap();
        ring_of_sends(&comm);
        comm.close().unwrap();
    });
}

#[test]
fn messages_between_processes() {
    job::all_succeed(&mut Job::new("messages", 3).start());
}
