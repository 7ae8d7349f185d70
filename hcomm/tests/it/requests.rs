//! Operations that are put on threads, and the handles of them.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use hcomm::{
    Communicator, CpuTs, DataType, Engine, ErrorKind, Options, Rank, ReduceOp, Reduction, Request,
    Settings, Slice,
};

use crate::sample::{Sample as _, assert_same, combined, samples};
use crate::team;

const WORKER: Engine = Engine::CpuTs(CpuTs::worker(0));

/// Memory with this rank's samples.
fn memory(comm: &Communicator, tag: &str, count: usize) -> Slice {
    let slice = comm.allocate(tag, 4 * count).unwrap();
    let mut bytes = Vec::new();
    for sample in samples::<f32>(ReduceOp::Sum, comm.rank().0, 0, count) {
        sample.append_to(&mut bytes);
    }
    slice.copy_from(&bytes).unwrap();
    slice
}

fn content(slice: &Slice) -> Vec<f32> {
    let mut bytes = vec![0; slice.bytes()];
    slice.copy_to(&mut bytes).unwrap();
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| f32::from_ne_bytes(*word)).collect()
}

#[test]
fn several_in_flight_on_two_threads_follow_each_other() {
    for engine in [Engine::Cpu, WORKER] {
        team::run(3, move |comm| {
            let threads = [0, 1].map(|_| comm.thread_on(engine, 0).unwrap());
            let counts = [1usize, 300, 40_000, 7, 200_000, 64];
            let slices: Vec<Slice> = counts
                .iter()
                .map(|count| memory(&comm, &format!("{count}"), *count))
                .collect();
            let requests: Vec<Request> = slices
                .iter()
                .zip(threads.iter().cycle())
                .map(|(slice, thread)| {
                    comm.all_reduce_on(thread, slice, slice, DataType::F32, ReduceOp::Sum)
                        .unwrap()
                })
                .collect();
            let last = comm.barrier_on(&threads[0]).unwrap();
            last.wait().unwrap();
            // The last one to be called is the last one to end, whatever threads they are on.
            for (request, (slice, count)) in requests.iter().zip(slices.iter().zip(counts)).rev() {
                assert!(request.test().unwrap());
                request.wait().unwrap();
                let expected = combined::<f32>(ReduceOp::Sum, 3, 0, count);
                assert_same(count, &content(slice), &expected);
            }
            comm.close().unwrap();
        });
    }
}

#[test]
fn a_handle_waits_for_no_later_operation() {
    for engine in [Engine::Cpu, WORKER] {
        let gate = Arc::new(Barrier::new(2));
        team::run(2, move |comm| {
            let thread = comm.thread_on(engine, 0).unwrap();
            let slice = memory(&comm, "numbers", 1000);
            let message = comm.allocate("message", 8).unwrap();
            let (me, peer) = (comm.rank(), Rank(1 - comm.rank().0));
            let first = comm
                .all_reduce_on(&thread, &slice, &slice, DataType::F32, Reduction::Avg)
                .unwrap();
            let second = if me == Rank(0) {
                let second = comm.recv_on(&thread, &message, peer, DataType::U8).unwrap();
                first.wait().unwrap();
                assert!(!second.wait_for(Duration::from_millis(2)).unwrap());
                assert!(!second.test().unwrap());
                gate.wait();
                second
            } else {
                first.wait().unwrap();
                // Sent only when the receiver has looked.
                gate.wait();
                comm.send_on(&thread, &message, peer, DataType::U8).unwrap()
            };
            second.wait().unwrap();
            let mut expected = combined::<f32>(ReduceOp::Sum, 2, 0, 1000);
            expected.iter_mut().for_each(|sum| *sum /= 2.0);
            assert_same("averages", &content(&slice), &expected);
            comm.close().unwrap();
        });
    }
}

/// The first operation is done, the second fails, and both handles say so.
#[test]
fn the_deadline_of_one_leaves_those_before_it_done() {
    let settings = Settings::default().with_exec_timeout(Duration::from_secs(1));
    for engine in [Engine::Cpu, WORKER] {
        let options = Options::new(settings.clone());
        team::run_with(2, &options, move |comm| {
            let thread = comm.thread_on(engine, 0).unwrap();
            let slice = memory(&comm, "numbers", 10);
            let first = comm
                .all_reduce_on(&thread, &slice, &slice, DataType::F32, ReduceOp::Sum)
                .unwrap();
            first.wait().unwrap();
            if comm.rank() == Rank(1) {
                // Its peer's error reaches it, too: it has begun nothing.
                return;
            }
            let second = comm
                .recv_on(&thread, &slice, Rank(1), DataType::F32)
                .unwrap();
            let error = second.wait().unwrap_err();
            let kinds = [ErrorKind::Timeout, ErrorKind::PeerLost, ErrorKind::Closed];
            assert!(kinds.contains(&error.kind()), "{error}");
            assert!(error.to_string().contains("recv_on"), "{error}");
            assert!(first.test().unwrap());
            first.wait().unwrap();
            second.test().unwrap_err();
        });
    }
}

/// Each communicator has its own threads, and OS threads of their own go on independently.
#[test]
fn communicators_on_several_os_threads_are_independent() {
    let teams: Vec<Vec<Communicator>> =
        (0..3).map(|_| Communicator::init_all(2).unwrap()).collect();
    let members: Vec<(usize, Communicator)> = teams
        .into_iter()
        .enumerate()
        .flat_map(|(number, comms)| comms.into_iter().map(move |comm| (number, comm)))
        .collect();
    team::on_threads(members, |(number, comm)| {
        let thread = comm.thread(0).unwrap();
        let slice = memory(&comm, "numbers", 500 * (number + 1));
        for _ in 0..200 {
            let before = content(&slice);
            let request = comm
                .all_reduce_on(&thread, &slice, &slice, DataType::F32, ReduceOp::Max)
                .unwrap();
            request.wait().unwrap();
            comm.barrier().unwrap();
            assert!(
                content(&slice)
                    .iter()
                    .zip(before)
                    .all(|(now, before)| *now >= before)
            );
        }
        comm.close().unwrap();
    });
}
