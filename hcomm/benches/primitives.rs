//! The primitives between two OS threads of one process: `cargo bench -p hcomm --bench primitives`.
//!
//! The main thread is rank 0 and is measured; the other one is rank 1 and does its part. What goes
//! to and fro is measured as the whole round trip. The cores are those that the system chooses: for
//! numbers that can be compared with others, see `hcomm perf`.

use std::hint::black_box;
use std::sync::mpsc::{Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hcomm::{
    BatchOp, Communicator, DataType, PeerLink, Rank, ReduceOp, RemoteSlice, Result, Slice, Thread,
};

const SIZES: [usize; 4] = [8, 4 << 10, 64 << 10, 1 << 20];
const LARGEST: usize = 1 << 20;
/// Descriptors of a batch.
const BATCH: usize = 64;
const TAG: &str = "bench";

/// What both ranks do together, and what the even one does alone.
#[derive(Clone, Copy, Debug)]
enum Work {
    Write,
    Read,
    WriteReduce,
    ReadReduce,
    Copy,
    Reduce,
    ThreadNotify,
    Batch,
    WriteWithNotify,
    Notify,
    SendRecv,
}

/// One rank.
struct Side {
    comm: Communicator,
    thread: Thread,
    /// Another one of the same rank.
    beside: Thread,
    link: PeerLink,
    parts: [Slice; 3],
    far: [RemoteSlice; 3],
    outbox: Vec<u8>,
    inbox: Vec<u8>,
}

impl Side {
    fn new(comm: Communicator) -> Result<Self> {
        let memory = comm.allocate(TAG, 3 * LARGEST)?;
        let peer = Rank(comm.rank().0 ^ 1);
        let link = comm.open_channel(peer, 1)?;
        let remote = link.memory(TAG)?;
        let ends = |part: usize| (part * LARGEST, (part + 1) * LARGEST);
        let near = |part| memory.sub(ends(part).0..ends(part).1);
        let far = |part| remote.sub(ends(part).0 as u64..ends(part).1 as u64);
        Ok(Self {
            thread: comm.thread(1)?,
            beside: comm.thread(1)?,
            parts: [near(0)?, near(1)?, near(2)?],
            far: [far(0)?, far(1)?, far(2)?],
            link,
            comm,
            outbox: vec![1; LARGEST],
            inbox: vec![0; LARGEST],
        })
    }

    /// Does its part of the work so many times.
    fn repeat(&mut self, work: Work, bytes: usize, times: u64) -> Result<()> {
        const SUM: (DataType, ReduceOp) = (DataType::F32, ReduceOp::Sum);
        let leads = self.comm.rank() == Rank(0);
        let peer = self.link.peer;
        let (thread, channel) = (&self.thread, &self.link.channel);
        let [a, b, c] = [0, 1, 2].map(|part: usize| self.parts[part].sub(0..bytes));
        let (a, b, c) = (a?, b?, c?);
        let target = self.far[1].sub(0..bytes as u64)?;
        let source = self.far[2].sub(0..bytes as u64)?;
        let batch: Vec<BatchOp> = (0..BATCH)
            .map(|index| {
                let at = index * (bytes / BATCH);
                let end = at + bytes / BATCH;
                Ok(BatchOp::Write {
                    dst: target.sub(at as u64..end as u64)?,
                    src: a.sub(at..end)?,
                    notify: None,
                })
            })
            .chain([Ok(BatchOp::Record { notify: 0 })])
            .collect::<Result<_>>()?;
        for _ in 0..times {
            match work {
                Work::Write if leads => {
                    thread.write(channel, &target, &a)?;
                    thread.fence(channel)?;
                }
                Work::Read if leads => thread.read(channel, &b, &source)?,
                Work::WriteReduce if leads => {
                    thread.write_reduce(channel, &target, &a, SUM.0, SUM.1, None)?;
                    thread.fence(channel)?;
                }
                Work::ReadReduce if leads => {
                    thread.read_reduce(channel, &b, &source, SUM.0, SUM.1, None)?;
                }
                Work::Copy if leads => thread.copy(&b, &a)?,
                Work::Reduce if leads => thread.reduce(&c, &a, &b, SUM.0, SUM.1)?,
                Work::ThreadNotify if leads => {
                    thread.record_thread(&self.beside, 0)?;
                    self.beside.wait_thread(0)?;
                    self.beside.record_thread(thread, 0)?;
                    thread.wait_thread(0)?;
                }
                Work::Batch if leads => {
                    thread.batch(channel, &batch)?;
                    thread.wait(channel, 0)?;
                }
                Work::Batch => {
                    thread.wait(channel, 0)?;
                    thread.record(channel, 0)?;
                }
                Work::WriteWithNotify if leads => {
                    thread.write_with_notify(channel, &target, &a, 0)?;
                    thread.wait(channel, 0)?;
                }
                Work::WriteWithNotify => {
                    thread.wait(channel, 0)?;
                    thread.write_with_notify(channel, &target, &a, 0)?;
                }
                Work::Notify if leads => {
                    thread.record(channel, 0)?;
                    thread.wait(channel, 0)?;
                }
                Work::Notify => {
                    thread.wait(channel, 0)?;
                    thread.record(channel, 0)?;
                }
                Work::SendRecv if leads => {
                    self.comm.send(&self.outbox[..bytes], peer)?;
                    self.comm.recv(&mut self.inbox[..bytes], peer)?;
                }
                Work::SendRecv => {
                    self.comm.recv(&mut self.inbox[..bytes], peer)?;
                    self.comm.send(&self.outbox[..bytes], peer)?;
                }
                _ => return Ok(()),
            }
            thread.synchronize(None)?;
        }
        Ok(())
    }
}

/// Both ranks: one here, one on a thread that does what it is told.
struct Pair {
    here: Side,
    orders: Option<Sender<(Work, usize, u64)>>,
    there: Option<JoinHandle<Result<()>>>,
}

impl Pair {
    fn new() -> Result<Self> {
        let mut comms = Communicator::init_all(2)?.into_iter();
        let (Some(first), Some(second)) = (comms.next(), comms.next()) else {
            unreachable!("two were asked for")
        };
        let (orders, inbox) = channel();
        let there = spawn(move || {
            let mut side = Side::new(second)?;
            for (work, bytes, times) in inbox {
                side.repeat(work, bytes, times)?;
            }
            side.comm.close()
        });
        Ok(Self {
            here: Side::new(first)?,
            orders: Some(orders),
            there: Some(there),
        })
    }

    fn time(&mut self, work: Work, bytes: usize, times: u64) -> Duration {
        if let Some(orders) = &self.orders {
            orders
                .send((work, bytes, times))
                .expect("the other rank is there");
        }
        // Whatever comes next finds the other rank awake.
        let start = Instant::now();
        self.here
            .repeat(work, bytes, black_box(times))
            .expect("the other rank does its part");
        start.elapsed()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(there) = self.there.take() {
            there
                .join()
                .expect("no panic there")
                .expect("no error there");
        }
    }
}

fn primitives(criterion: &mut Criterion) {
    let mut pair = Pair::new().expect("two ranks in one process");
    for (name, work) in [
        ("write + fence", Work::Write),
        ("read", Work::Read),
        ("write_reduce f32 sum + fence", Work::WriteReduce),
        ("read_reduce f32 sum", Work::ReadReduce),
        ("copy", Work::Copy),
        ("reduce f32 sum", Work::Reduce),
        ("write_with_notify, round trip", Work::WriteWithNotify),
        ("batch of 64 writes + notify, answered", Work::Batch),
        ("send and recv, round trip", Work::SendRecv),
    ] {
        let mut group = criterion.benchmark_group(name);
        for bytes in SIZES {
            if matches!(work, Work::Batch) && bytes < BATCH {
                continue;
            }
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::from_parameter(bytes), |bencher| {
                bencher.iter_custom(|times| pair.time(work, bytes, times));
            });
        }
        group.finish();
    }
    for (name, work) in [
        ("record and wait, round trip", Work::Notify),
        ("thread notifies, to and fro", Work::ThreadNotify),
    ] {
        criterion.bench_function(name, |bencher| {
            bencher.iter_custom(|times| pair.time(work, 0, times));
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500))
        .sample_size(20)
        .without_plots();
    targets = primitives
}
criterion_main!(benches);
