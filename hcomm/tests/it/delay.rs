//! Over a link with a latency: what a message costs in messages of the link.

use hcomm::{Communicator, Counters, Options, Rank, ReduceOp};

use crate::collectives::all_reduce;
use crate::sample::{assert_same, samples};
use crate::{team, transfers};

const BYTES: usize = 128 << 10;

fn options() -> Options {
    Options::default().transports("delay")
}

/// What this rank has put on its links since `before`.
fn sent(comm: &Communicator, before: Counters) -> u64 {
    comm.counters().descriptors - before.descriptors
}

/// Who takes a notify may overwrite what was written before it, on whatever channel: so it comes when
/// that has been read.
#[test]
fn a_notify_on_one_link_waits_for_what_is_sent_on_another() {
    const LONG: usize = 32 << 20;
    team::run_with(3, &options(), |comm| {
        let me = comm.rank().0;
        let memory = comm.allocate("memory", LONG + BYTES).unwrap();
        // Each pair makes its channel at the same place in its order.
        let open = |peer| comm.open_channel(Rank(peer), 2).unwrap();
        let thread = comm.thread(0).unwrap();
        let (long, short) = (
            memory.sub(0..LONG).unwrap(),
            memory.sub(LONG..LONG + BYTES).unwrap(),
        );
        let [right, wrong] = [0, 1].map(|seed| samples::<u8>(ReduceOp::Sum, seed, 0, BYTES));
        match me {
            0 => {
                let (one, two) = (open(1), open(2));
                short.copy_from(&right).unwrap();
                comm.barrier().unwrap();
                let target = one.memory("memory").unwrap();
                let part = |from, to| target.sub(from as u64..to as u64).unwrap();
                // The long one keeps the line busy for milliseconds.
                thread.write(&one.channel, &part(0, LONG), &long).unwrap();
                let end = part(LONG, LONG + BYTES);
                thread.write(&one.channel, &end, &short).unwrap();
                thread.record(&two.channel, 0).unwrap();
                thread.wait_blocking(&two.channel, 0, None).unwrap();
                thread.record(&one.channel, 0).unwrap();
                thread.synchronize(None).unwrap();
                comm.barrier().unwrap();
            }
            1 => {
                let zero = open(0);
                comm.barrier().unwrap();
                thread.wait_blocking(&zero.channel, 0, None).unwrap();
                let mut found = vec![0; BYTES];
                short.copy_to(&mut found).unwrap();
                assert_same("written", &found, &right);
                comm.barrier().unwrap();
            }
            _ => {
                let zero = open(0);
                short.copy_from(&wrong).unwrap();
                comm.barrier().unwrap();
                thread.wait_blocking(&zero.channel, 0, None).unwrap();
                let target = zero.memory("memory").unwrap();
                let end = target.sub(LONG as u64..(LONG + BYTES) as u64).unwrap();
                thread
                    .write_with_notify(&zero.channel, &end, &short, 0)
                    .unwrap();
                thread.synchronize(None).unwrap();
                comm.barrier().unwrap();
            }
        }
        comm.close().unwrap();
    });
}

/// A one-sided write is one message; request, grant and data are three.
#[test]
fn a_write_is_one_message_and_a_handshaken_send_is_three() {
    let counts = team::run_with(2, &options(), |comm| {
        let (me, peer) = (comm.rank(), Rank(1 - comm.rank().0));
        let memory = comm.allocate("memory", BYTES).unwrap();
        let link = comm.open_channel(peer, 2).unwrap();
        let target = link.memory("memory").unwrap();
        let thread = comm.thread(0).unwrap();
        let data = samples::<u8>(ReduceOp::Sum, 0, 0, BYTES);
        comm.barrier().unwrap();

        let before = comm.counters();
        if me == Rank(0) {
            memory.copy_from(&data).unwrap();
            thread
                .write_with_notify(&link.channel, &target, &memory, 1)
                .unwrap();
            thread.synchronize(None).unwrap();
        } else {
            thread.wait_blocking(&link.channel, 1, None).unwrap();
            let mut found = vec![0; BYTES];
            memory.copy_to(&mut found).unwrap();
            assert_same("written", &found, &data);
        }
        let write = sent(&comm, before);

        comm.barrier().unwrap();
        comm.force_algorithm(Some("handshake")).unwrap();
        let before = comm.counters();
        if me == Rank(0) {
            comm.send(&data, peer).unwrap();
        } else {
            let mut found = vec![0u8; BYTES];
            comm.recv(&mut found, peer).unwrap();
            assert_same("received", &found, &data);
        }
        let handshake = sent(&comm, before);
        comm.force_algorithm(None).unwrap();
        comm.barrier().unwrap();
        comm.close().unwrap();
        [write, handshake]
    });
    // Request and data go one way, the grant the other.
    assert_eq!(counts, [[1, 2], [0, 1]]);
}

#[test]
fn collectives_and_messages_over_a_link_with_a_latency() {
    team::run_with(3, &options(), |comm| {
        all_reduce::<f32>(&comm, ReduceOp::Sum, 30_011, false);
        all_reduce::<i16>(&comm, ReduceOp::Max, 5, true);
        crate::messages::ring_of_sends(&comm);
        // On a link that carries messages itself, the last ones must have come before a peer goes.
        comm.barrier().unwrap();
        comm.close().unwrap();
    });
}

/// Nothing is mapped: every transfer goes through the transport's queue.
#[test]
fn random_transfers_over_a_link_with_a_latency() {
    team::run_with(3, &options(), |comm| {
        transfers::random(&comm, 3, 1_500);
        comm.close().unwrap();
    });
}
