//! Collectives that a worker runs beside the caller.

use hcomm::{Communicator, CpuTs, DataType, Engine, ErrorKind, Options, ReduceOp, Slice, Thread};

use crate::sample::{Sample, assert_same, combined, samples};
use crate::team;

const WORKER: Engine = Engine::CpuTs(CpuTs::worker(0));

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

/// All ranks of one OS thread: it calls nothing that could run a task until all are done.
#[test]
fn an_all_reduce_ends_while_the_caller_computes() {
    team::on_threads(vec![()], |()| {
        const COUNT: usize = 40_009;
        for size in [1, 2, 3] {
            let comms = Communicator::init_all_with(size, &Options::default()).unwrap();
            let threads: Vec<Thread> = comms
                .iter()
                .map(|comm| comm.thread_on(WORKER, 0).unwrap())
                .collect();
            let data: Vec<Slice> = comms
                .iter()
                .map(|comm| comm.allocate("data", 4 * COUNT).unwrap())
                .collect();
            for round in 0..5 {
                for ((comm, thread), slice) in comms.iter().zip(&threads).zip(&data) {
                    let mine = samples::<i32>(ReduceOp::Sum, comm.rank().0, round, COUNT);
                    put(slice, &mine);
                    comm.all_reduce_on(thread, slice, slice, DataType::I32, ReduceOp::Sum)
                        .unwrap();
                }
                // Looks without driving anything.
                while !threads.iter().all(Thread::is_idle) {
                    std::thread::yield_now();
                }
                let all = combined::<i32>(ReduceOp::Sum, size, round, COUNT);
                for slice in &data {
                    assert_same(round, &get_i32(slice), &all);
                }
            }
            for (comm, thread) in comms.into_iter().zip(threads) {
                thread.synchronize(None).unwrap();
                comm.close().unwrap();
            }
        }
    });
}

/// Both engines, and blocking calls, in turn: operations follow each other in call order.
#[test]
fn engines_in_turn() {
    team::run(3, |comm| {
        const COUNT: usize = 5003;
        let threads = [
            comm.thread_on(WORKER, 0).unwrap(),
            comm.thread(0).unwrap(),
            comm.thread_on(Engine::CpuTs(CpuTs::worker(1)), 0).unwrap(),
        ];
        let data = comm.allocate("data", 4 * COUNT).unwrap();
        for round in 0..10 {
            let expected = combined::<i32>(ReduceOp::Max, 3, round, COUNT);
            put(
                &data,
                &samples::<i32>(ReduceOp::Max, comm.rank().0, round, COUNT),
            );
            for thread in &threads {
                comm.all_reduce_on(thread, &data, &data, DataType::I32, ReduceOp::Max)
                    .unwrap();
            }
            // Blocking, behind those.
            let mut mine = expected.clone();
            comm.all_reduce_in_place(&mut mine, ReduceOp::Max).unwrap();
            assert_same(round, &mine, &expected);
            for thread in &threads {
                thread.synchronize(None).unwrap();
            }
            assert_same(round, &get_i32(&data), &expected);
        }
        comm.barrier().unwrap();
        comm.close().unwrap();
    });
}

/// A blocking call of one rank ends although the same OS thread holds the other one: a worker
/// drives that.
#[test]
fn a_blocking_call_meets_a_worker() {
    team::on_threads(vec![()], |()| {
        let comms = Communicator::init_all_with(2, &Options::default()).unwrap();
        let thread = comms[1].thread_on(WORKER, 0).unwrap();
        for _ in 0..20 {
            comms[1].barrier_on(&thread).unwrap();
            comms[0].barrier().unwrap();
        }
        thread.synchronize(None).unwrap();
    });
}

#[test]
fn an_abort_ends_what_a_worker_waits_for() {
    team::on_threads(vec![()], |()| {
        let mut comms = Communicator::init_all_with(2, &Options::default()).unwrap();
        let other = comms.pop().unwrap();
        let comm = comms.pop().unwrap();
        let thread = comm.thread_on(WORKER, 0).unwrap();
        comm.barrier_on(&thread).unwrap();
        assert!(!thread.is_idle());
        let aborter = comm.aborter();
        std::thread::spawn(move || aborter.abort("enough"))
            .join()
            .unwrap();
        let error = thread.synchronize(None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
        assert_eq!(comm.barrier().unwrap_err().kind(), ErrorKind::Aborted);
        drop((thread, comm, other));
    });
}
