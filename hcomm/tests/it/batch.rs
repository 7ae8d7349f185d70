//! Several messages in one call.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use hcomm::{
    BatchItem, BatchSlice, Communicator, CpuTs, DataType, Engine, ErrorKind, Options, Rank,
    ReduceOp, Settings,
};

use crate::job::{self, Job};
use crate::random::Random;
use crate::sample::{assert_same, samples, unwritten};
use crate::team;

/// Elements of message `number` between two ranks; the same on both.
fn count(round: u64, from: u32, to: u32, number: usize) -> usize {
    let seed = round << 32 | u64::from(from) << 20 | u64::from(to) << 8 | number as u64;
    let mut random = Random::new(seed);
    [
        0,
        1,
        random.below(50),
        random.below(5_000),
        random.below(100_000),
    ][random.below(5)]
}

fn sent(from: u32, to: u32, number: usize, count: usize) -> Vec<u32> {
    samples(
        ReduceOp::Sum,
        from,
        (to as usize * 10 + number) * 1000,
        count,
    )
}

/// Everybody sends two messages to everybody, itself included, and receives as many; in an order of
/// its own, but that messages between two ranks keep theirs.
pub(crate) fn all_to_all_at_once(comm: &Communicator, rounds: u64) {
    let (me, size) = (comm.rank().0, comm.size());
    for round in 0..rounds {
        let pairs: Vec<(u32, usize)> = (0..2)
            .flat_map(|n| (0..size).map(move |peer| (peer, n)))
            .collect();
        let outgoing: Vec<Vec<u32>> = (pairs.iter())
            .map(|&(to, n)| sent(me, to, n, count(round, me, to, n)))
            .collect();
        let mut incoming: Vec<Vec<u32>> = (pairs.iter())
            .map(|&(from, n)| unwritten(ReduceOp::Sum, count(round, from, me, n)))
            .collect();
        let mut items: Vec<BatchItem<'_>> = Vec::new();
        let sends = pairs.iter().zip(&outgoing);
        items.extend(sends.map(|((to, _), data)| BatchItem::send(data, Rank(*to))));
        let receives = pairs.iter().zip(&mut incoming);
        items.extend(receives.map(|((from, _), data)| BatchItem::recv(data, Rank(*from))));
        // First messages before second ones; else anyhow.
        let mut random = Random::new(round ^ u64::from(me) << 40);
        let all = size as usize;
        for part in items.chunks_mut(all) {
            for last in (1..part.len()).rev() {
                part.swap(last, random.below(last + 1));
            }
        }
        if round % 2 == 1 {
            items.rotate_left(2 * all);
        }
        comm.batch_send_recv(&mut items).unwrap();
        for (&(from, n), data) in pairs.iter().zip(&incoming) {
            let expected = sent(from, me, n, data.len());
            assert_same(
                format!("message {n} from {from} in round {round}"),
                data,
                &expected,
            );
        }
    }
}

#[test]
fn everybody_to_everybody_in_any_order() {
    for size in [1, 2, 3, 5] {
        team::run(size, |comm| {
            all_to_all_at_once(&comm, 30);
            comm.close().unwrap();
        });
    }
}

#[test]
fn between_processes() {
    job::all_succeed(&mut Job::new("batch", 3).start());
}

/// Where nothing is mapped, messages are plans.
#[test]
fn over_links_that_map_no_memory() {
    team::run_with(3, &Options::default().transports("delay"), |comm| {
        all_to_all_at_once(&comm, 4);
        // On a link that carries messages itself, the last ones must have come before a peer goes.
        comm.barrier().unwrap();
        comm.close().unwrap();
    });
}

/// A ring of messages that are larger than all that fits on the way: sent one after the other, all
/// would wait for room.
#[test]
fn a_ring_of_large_messages_does_not_wait_for_itself() {
    team::run_with(4, &team::small_buffer(1 << 20), |comm| {
        let (me, size) = (comm.rank().0, comm.size());
        let (next, before) = (Rank((me + 1) % size), Rank((me + size - 1) % size));
        let data = samples::<u64>(ReduceOp::Sum, me, 0, 1 << 18);
        let mut found = unwritten::<u64>(ReduceOp::Sum, 1 << 18);
        let mut items = [
            BatchItem::send(&data, next),
            BatchItem::recv(&mut found, before),
        ];
        comm.batch_send_recv(&mut items).unwrap();
        assert_same(
            "ring",
            &found,
            &samples(ReduceOp::Sum, before.0, 0, 1 << 18),
        );
        comm.close().unwrap();
    });
}

#[test]
fn a_batch_meets_plain_messages() {
    team::run(2, |comm| {
        let peer = Rank(1 - comm.rank().0);
        let data = samples::<u8>(ReduceOp::Sum, comm.rank().0, 0, 70_000);
        let mut found = unwritten::<u8>(ReduceOp::Sum, 70_000);
        if comm.rank() == Rank(0) {
            let mut items = [
                BatchItem::recv(&mut found, peer),
                BatchItem::send(&data, peer),
            ];
            comm.batch_send_recv(&mut items).unwrap();
        } else {
            comm.send(&data, peer).unwrap();
            comm.recv(&mut found, peer).unwrap();
        }
        assert_same("found", &found, &samples(ReduceOp::Sum, peer.0, 0, 70_000));
        comm.close().unwrap();
    });
}

#[test]
fn slices_on_a_thread_of_either_engine() {
    for engine in [Engine::Cpu, Engine::CpuTs(CpuTs::worker(0))] {
        for transports in ["", "delay"] {
            let options = match transports {
                "" => Options::default(),
                one => Options::default().transports(one),
            };
            team::run_with(3, &options, move |comm| {
                let (me, size) = (comm.rank().0, comm.size());
                let thread = comm.thread_on(engine, 0).unwrap();
                let memory = comm.allocate("memory", 100 * 6).unwrap();
                for round in 0..10u8 {
                    let place = |peer: u32| {
                        let start = 100 * peer as usize;
                        (start..start + 100, start + 300..start + 400)
                    };
                    let mut items = Vec::new();
                    for peer in 0..size {
                        let (out, back) = place(peer);
                        let value = round ^ (me as u8) << 4 ^ peer as u8;
                        memory
                            .sub(out.clone())
                            .unwrap()
                            .copy_from(&[value; 100])
                            .unwrap();
                        let (out, back) = (memory.sub(out).unwrap(), memory.sub(back).unwrap());
                        items.push(BatchSlice::recv(back, Rank(peer), DataType::U8));
                        items.push(BatchSlice::send(out, Rank(peer), DataType::U8));
                    }
                    let request = comm.batch_send_recv_on(&thread, &items).unwrap();
                    request.wait().unwrap();
                    for peer in 0..size {
                        let mut found = [0; 100];
                        memory
                            .sub(place(peer).1)
                            .unwrap()
                            .copy_to(&mut found)
                            .unwrap();
                        assert_eq!(found, [round ^ (peer as u8) << 4 ^ me as u8; 100]);
                    }
                }
                comm.barrier().unwrap();
                comm.close().unwrap();
            });
        }
    }
}

#[test]
fn what_is_wrong_is_refused_before_anything_is_sent() {
    team::run(2, |comm| {
        let (me, peer) = (comm.rank(), Rank(1 - comm.rank().0));
        let refused = |items: &mut [BatchItem<'_>], kind: ErrorKind, words: &str| {
            let error = comm.batch_send_recv(items).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        };
        let (mut one, mut two) = ([0u8; 1], [0u16; 1]);
        let mut items = [
            BatchItem::send(&[1u8], peer),
            BatchItem::send(&[1u8], Rank(2)),
        ];
        refused(&mut items, ErrorKind::InvalidArgument, "no rank 2 among 2");
        let mut items = [BatchItem::send(&[1u8], peer), BatchItem::recv(&mut one, me)];
        refused(
            &mut items,
            ErrorKind::InvalidArgument,
            "sends itself 0 messages and receives 1",
        );
        let mut items = [BatchItem::recv(&mut two, me), BatchItem::send(&[7u8], me)];
        refused(&mut items, ErrorKind::InvalidArgument, "1 bytes of uint8");
        // Nothing has come over, and the communicator is as it was.
        comm.batch_send_recv(&mut []).unwrap();
        all_to_all_at_once(&comm, 1);
        comm.close().unwrap();
    });
}

/// The OS thread that has put it on a thread of the engine `Cpu` makes no further call; whoever waits
/// takes all of it over.
#[test]
fn a_batch_is_waited_for_on_another_os_thread() {
    let gate = Arc::new(Barrier::new(2));
    team::run(2, move |comm| {
        let (me, peer) = (comm.rank(), Rank(1 - comm.rank().0));
        let thread = comm.thread(0).unwrap();
        let memory = comm.allocate("memory", 16).unwrap();
        let (out, back) = (memory.sub(0..8).unwrap(), memory.sub(8..16).unwrap());
        out.copy_from(&[me.0 as u8; 8]).unwrap();
        let items = [
            BatchSlice::recv(back.clone(), peer, DataType::U8),
            BatchSlice::send(out, peer, DataType::U8),
        ];
        let begun = (me == Rank(0)).then(|| comm.batch_send_recv_on(&thread, &items).unwrap());
        let gate = Arc::clone(&gate);
        let elsewhere = std::thread::spawn(move || {
            // Only now does rank 1 begin.
            gate.wait();
            let request = match begun {
                Some(request) => request,
                None => comm.batch_send_recv_on(&thread, &items).unwrap(),
            };
            request.wait().unwrap();
            let mut found = [0xff; 8];
            back.copy_to(&mut found).unwrap();
            assert_eq!(found, [peer.0 as u8; 8]);
            comm.close().unwrap();
        });
        elsewhere.join().unwrap();
    });
}

#[test]
fn a_message_that_never_comes_is_named_at_the_deadline() {
    let settings = Settings::default().with_exec_timeout(Duration::from_secs(1));
    team::run_with(2, &Options::new(settings), |comm| {
        if comm.rank() == Rank(1) {
            // Stays until rank 0 has given up.
            comm.recv(&mut [0u8; 1], Rank(0)).unwrap_err();
            return;
        }
        let thread = comm.thread(0).unwrap();
        let memory = comm.allocate("memory", 8).unwrap();
        let items = [BatchSlice::recv(memory, Rank(1), DataType::U8)];
        let request = comm.batch_send_recv_on(&thread, &items).unwrap();
        let error = request.wait().unwrap_err();
        let kinds = [ErrorKind::Timeout, ErrorKind::Aborted];
        assert!(kinds.contains(&error.kind()), "{error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
        // Nothing goes on behind the program's back.
        comm.barrier().unwrap_err();
    });
}

#[test]
fn a_thread_that_cannot_be_waited_for_is_refused() {
    team::run(2, |comm| {
        let peer = Rank(1 - comm.rank().0);
        // Of the membership: without the notify that the communicator adds.
        let bare = hcomm::Membership::thread(&comm, 0).unwrap();
        let memory = comm.allocate("memory", 8).unwrap();
        let items = [BatchSlice::recv(memory, peer, DataType::U8)];
        let error = comm.batch_send_recv_on(&bare, &items).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        all_to_all_at_once(&comm, 1);
        comm.close().unwrap();
    });
}
