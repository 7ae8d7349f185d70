//! Several ranks of one process on one OS thread.

use std::sync::mpsc;
use std::thread;

use hcomm::{Communicator, DataType, ErrorKind, Options, Rank, ReduceOp, Slice, Thread};

use crate::sample::{Sample, assert_same, combined, samples};
use crate::team;

fn several(size: u32) -> (Vec<Communicator>, Vec<Thread>) {
    let comms = Communicator::init_all_with(size, &Options::default()).unwrap();
    let threads = comms.iter().map(|comm| comm.thread(0).unwrap()).collect();
    (comms, threads)
}

fn put<T: Sample>(slice: &Slice, data: &[T]) {
    let mut bytes = Vec::new();
    data.iter()
        .for_each(|element| element.append_to(&mut bytes));
    slice.copy_from(&bytes).unwrap();
}

fn get_i32(slice: &Slice) -> Vec<i32> {
    let mut bytes = vec![0; slice.bytes()];
    slice.copy_to(&mut bytes).unwrap();
    bytes
        .chunks_exact(4)
        .map(|chunk| i32::from_ne_bytes(chunk.try_into().unwrap()))
        .collect()
}

/// Every operation in its asynchronous form, on sizes on both sides of the switch, in every order
/// of the ranks.
#[test]
fn every_operation_of_many_ranks_on_one_os_thread() {
    for size in [1, 2, 3, 5, 8] {
        let (comms, threads) = several(size);
        for count in [0, 1, 1009, 40_009] {
            let whole = count * size as usize;
            let bytes = 4 * count;
            let tag = format!("data {count}");
            let data: Vec<Slice> = comms
                .iter()
                .map(|comm| {
                    comm.allocate(&tag, (4 * whole).max(4))
                        .unwrap()
                        .sub(0..4 * whole)
                })
                .collect::<Result<_, _>>()
                .unwrap();
            let part = |rank: usize| data[rank].sub(rank * bytes..(rank + 1) * bytes).unwrap();
            let op = ReduceOp::Sum;
            for (rank, slice) in data.iter().enumerate() {
                put(slice, &samples::<i32>(op, rank as u32, 0, whole));
            }
            // In place: a reduce_scatter, an all_gather of its results, and there is an all_reduce.
            for rank in (0..size as usize).rev() {
                let (comm, thread) = (&comms[rank], &threads[rank]);
                comm.reduce_scatter_on(thread, &data[rank], &part(rank), DataType::I32, op)
                    .unwrap();
                comm.barrier_on(thread).unwrap();
                comm.all_gather_on(thread, &part(rank), &data[rank], DataType::I32)
                    .unwrap();
            }
            for thread in &threads {
                thread.synchronize(None).unwrap();
            }
            let expected = combined::<i32>(op, size, 0, whole);
            for (rank, slice) in data.iter().enumerate() {
                assert_same(
                    format!("{count} on rank {rank} of {size}"),
                    &get_i32(slice),
                    &expected,
                );
            }
            // A ring of messages, and then the last rank's for all.
            for rank in 0..size as usize {
                let (comm, thread) = (&comms[rank], &threads[rank]);
                put(&data[rank], &samples::<i32>(op, rank as u32, 0, whole));
                if size > 1 {
                    let next = Rank((rank as u32 + 1) % size);
                    let before = Rank((rank as u32 + size - 1) % size);
                    let mine = data[rank].sub(0..bytes).unwrap();
                    comm.send_on(thread, &mine, next, DataType::I32).unwrap();
                    comm.recv_on(thread, &mine, before, DataType::I32).unwrap();
                }
                comm.broadcast_on(thread, &data[rank], Rank(size - 1), DataType::I32)
                    .unwrap();
                comm.all_reduce_on(
                    thread,
                    &data[rank],
                    &data[rank],
                    DataType::I32,
                    ReduceOp::Max,
                )
                .unwrap();
            }
            for thread in &threads {
                thread.synchronize(None).unwrap();
            }
            let mut expected = samples::<i32>(op, size - 1, 0, whole);
            if size > 1 {
                expected[..count].copy_from_slice(&samples::<i32>(op, size - 2, 0, count));
            }
            for (rank, slice) in data.iter().enumerate() {
                assert_same(
                    format!("{count} on rank {rank} of {size}"),
                    &get_i32(slice),
                    &expected,
                );
            }
        }
        for comm in comms {
            comm.close().unwrap();
        }
    }
}

/// Operations of one rank may run far ahead of the others.
#[test]
fn a_rank_may_enqueue_a_hundred_operations_before_the_next_rank_begins() {
    let (comms, threads) = several(3);
    let data: Vec<Slice> = comms
        .iter()
        .enumerate()
        .map(|(rank, comm)| {
            let slice = comm.allocate("data", 4 * 501).unwrap();
            put(&slice, &samples::<i32>(ReduceOp::Sum, rank as u32, 0, 501));
            slice
        })
        .collect();
    for rank in 0..3 {
        for _ in 0..100 {
            comms[rank]
                .all_reduce_on(
                    &threads[rank],
                    &data[rank],
                    &data[rank],
                    DataType::I32,
                    ReduceOp::Sum,
                )
                .unwrap();
        }
    }
    threads[1].synchronize(None).unwrap();
    // The first one sums up, each other one triples.
    let factor = (0..99).fold(1i32, |factor, _| factor.wrapping_mul(3));
    let expected: Vec<i32> = combined::<i32>(ReduceOp::Sum, 3, 0, 501)
        .into_iter()
        .map(|sum| sum.wrapping_mul(factor))
        .collect();
    for rank in 0..3 {
        threads[rank].synchronize(None).unwrap();
        assert_same(format!("rank {rank}"), &get_i32(&data[rank]), &expected);
    }
}

/// The blocking form cannot work where one OS thread holds several ranks, and says so: whether the
/// others were used there or never. It takes its time, since they could be on their way to other
/// threads; so both cases run side by side.
#[test]
fn a_blocking_call_on_a_thread_that_holds_more_ranks_would_deadlock() {
    team::on_threads(vec![true, false], |used| {
        let (comms, threads) = several(3);
        if used {
            for (comm, thread) in comms.iter().zip(&threads) {
                comm.barrier_on(thread).unwrap();
            }
            for thread in &threads {
                thread.synchronize(None).unwrap();
            }
        }
        let error = comms[0]
            .all_reduce_in_place(&mut [1.0f32; 10], ReduceOp::Sum)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldDeadlock, "{error}");
        let text = error.to_string();
        assert!(text.contains("rank 1, 2") && text.contains("_on"), "{text}");
    });
}

/// Two OS threads with two ranks each.
#[test]
fn two_os_threads_hold_two_ranks_each() {
    let mut comms = Communicator::init_all_with(4, &Options::default()).unwrap();
    let second = comms.split_off(2);
    team::on_threads(vec![comms, second], |comms| {
        let threads: Vec<Thread> = comms.iter().map(|comm| comm.thread(0).unwrap()).collect();
        let data: Vec<Slice> = comms
            .iter()
            .map(|comm| comm.allocate("data", 4 * 30_011).unwrap())
            .collect();
        for round in 0..20 {
            for ((comm, thread), slice) in comms.iter().zip(&threads).zip(&data) {
                put(
                    slice,
                    &samples::<i32>(ReduceOp::Sum, comm.rank().0, round, 30_011),
                );
                comm.all_reduce_on(thread, slice, slice, DataType::I32, ReduceOp::Sum)
                    .unwrap();
            }
            let expected = combined::<i32>(ReduceOp::Sum, 4, round, 30_011);
            for (thread, slice) in threads.iter().zip(&data) {
                thread.synchronize(None).unwrap();
                assert_same(format!("round {round}"), &get_i32(slice), &expected);
            }
        }
    });
}

/// Made here, used there, and then elsewhere again.
#[test]
fn a_communicator_moves_between_os_threads() {
    let comms = Communicator::init_all_with(2, &Options::default()).unwrap();
    let mut members = comms;
    for _ in 0..3 {
        members = team::on_threads(members, |comm| {
            crate::collectives::all_reduce::<f32>(&comm, ReduceOp::Sum, 5_003, false);
            crate::collectives::all_gather::<i8>(&comm, 100, true);
            comm
        });
    }
    // And one of them twice in a row on a thread that outlives the call.
    let (to_worker, inbox) = mpsc::channel::<Communicator>();
    let worker = thread::spawn(move || {
        let comm = inbox.recv().unwrap();
        crate::collectives::all_reduce::<i16>(&comm, ReduceOp::Sum, 77, true);
        comm.close().unwrap();
    });
    let other = members.pop().unwrap();
    to_worker.send(other).unwrap();
    crate::collectives::all_reduce::<i16>(&members[0], ReduceOp::Sum, 77, true);
    worker.join().unwrap();
}
