//! Every primitive of the data plane, many times, between two ranks. Whoever watches is told of the
//! begin and the end of each phase.
//!
//! Phases whose name begins with `together` wait for the peer, so the scheduler decides whether a
//! wait ends while it spins. In all others one rank acts alone, on what has arrived already, while
//! the other one looks on without the library's waiter: nothing is left to chance.

use hcomm::prelude::*;
use hcomm::{Error, Result};
use hcomm_data::{BatchOp, Channel, Thread};

/// Who looks at what a phase costs.
pub(crate) trait Watcher {
    /// `rounds` rounds of `name` follow, all warmed up.
    fn begin(&mut self, name: &str, rounds: u32) -> Result<()>;

    /// They are over.
    fn end(&mut self, name: &str, rounds: u32) -> Result<()>;
}

/// Says that both have come as far.
const MEET: u32 = 0;
const DATA: u32 = 1;
const BATCH: u32 = 2;
const TURN: u32 = 3;

/// Rounds before those that count: nothing of them happens for the first time.
const WARM_UP: u32 = 10;

struct Side<'a> {
    rank: u32,
    rounds: u32,
    watcher: &'a mut dyn Watcher,
    thread: Thread,
    channel: Channel,
}

impl Side<'_> {
    /// Waits for the peer, without anything that could make the peer ring a bell.
    fn meet(&self) -> Result<()> {
        self.thread.record(&self.channel, MEET)?;
        while self.channel.arrived(MEET)? == 0 {
            std::thread::yield_now();
        }
        self.thread.wait(&self.channel, MEET)
    }

    /// Both at the same time.
    fn both(
        &mut self,
        name: &str,
        rounds: u32,
        mut work: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        for _ in 0..WARM_UP {
            work()?;
        }
        self.watcher.begin(name, rounds)?;
        for _ in 0..rounds {
            work()?;
        }
        self.watcher.end(name, rounds)
    }

    /// One rank after the other.
    fn alone(&mut self, name: &str, mut work: impl FnMut() -> Result<()>) -> Result<()> {
        for turn in 0..2 {
            self.meet()?;
            if turn == self.rank {
                self.both(name, self.rounds, &mut work)?;
            }
        }
        self.meet()
    }
}

/// Does all of it, as one of two ranks.
pub(crate) fn run(comm: &Communicator, rounds: u32, watcher: &mut dyn Watcher) -> Result<()> {
    if comm.size() != 2 {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{} ranks, and it is made for 2", comm.size()),
        )
        .hint("start it with `hcomm run -n 2`"));
    }
    let rank = comm.rank().0;
    let memory = comm.allocate("primitives", 1 << 20)?;
    let link = comm.open_channel(Rank(1 - rank), 4)?;
    let remote = link.memory("primitives")?;
    let thread = &comm.thread(1)?;
    let channel = &link.channel;
    let mut side = Side {
        rank,
        rounds,
        watcher,
        thread: thread.clone(),
        channel: channel.clone(),
    };

    for bytes in [8_usize, 4096] {
        let near = memory.sub(0..bytes)?;
        let other = memory.sub(65536..65536 + bytes)?;
        let far = remote.sub(131_072..131_072 + bytes as u64)?;
        let dtype = DataType::F32;
        let called = |name: &str| format!("{name}, {bytes} bytes");
        side.alone(&called("write"), || thread.write(channel, &far, &near))?;
        side.alone(&called("read"), || thread.read(channel, &near, &far))?;
        side.alone(&called("write_reduce"), || {
            thread.write_reduce(channel, &far, &near, dtype, ReduceOp::Max, None)
        })?;
        side.alone(&called("read_reduce"), || {
            thread.read_reduce(channel, &near, &far, dtype, ReduceOp::Max, None)
        })?;
        side.alone(&called("copy"), || thread.copy(&other, &near))?;
        side.alone(&called("reduce"), || {
            thread.reduce(&other, &other, &near, dtype, ReduceOp::Max)
        })?;
        side.alone(&called("write_with_notify"), || {
            thread.write_with_notify(channel, &far, &near, DATA)
        })?;
        // The records of the peer have arrived: it was at it before the last meeting.
        side.alone(&called("wait"), || thread.wait(channel, DATA))?;
        side.alone(&called("write_with_notify again"), || {
            thread.write_with_notify(channel, &far, &near, DATA)
        })?;
        side.alone(&called("wait_blocking"), || {
            thread.wait_blocking(channel, DATA, None)
        })?;
        let batch: Vec<BatchOp> = (0..4)
            .map(|_| BatchOp::Write {
                dst: far.clone(),
                src: near.clone(),
                notify: None,
            })
            .chain([BatchOp::Record { notify: BATCH }])
            .collect();
        side.alone(&called("batch"), || thread.batch(channel, &batch))?;
    }
    side.alone("wait for the batches' records", || {
        thread.wait(channel, BATCH)
    })?;
    side.alone("record", || thread.record(channel, DATA))?;
    side.alone("wait for records", || thread.wait(channel, DATA))?;
    side.alone("fence, drain, synchronize", || {
        thread.fence(channel)?;
        thread.drain()?;
        thread.synchronize(None)
    })?;
    let second = comm.thread(1)?;
    side.alone("record_thread, wait_thread", || {
        thread.record_thread(&second, 0)?;
        second.wait_thread(0)
    })?;

    let (near, far) = (memory.sub(0..8)?, remote.sub(131_072..131_080)?);
    side.meet()?;
    side.both("together: write_with_notify there and back", rounds, || {
        if rank == 0 {
            thread.write_with_notify(channel, &far, &near, TURN)?;
            thread.wait_blocking(channel, TURN, None)
        } else {
            thread.wait_blocking(channel, TURN, None)?;
            thread.write_with_notify(channel, &far, &near, TURN)
        }
    })?;
    let mut number = [rank];
    side.meet()?;
    side.both("together: send and recv", (rounds / 10).max(1), || {
        if rank == 0 {
            comm.send(&number, Rank(1))?;
            comm.recv(&mut number, Rank(1))
        } else {
            comm.recv(&mut number, Rank(0))?;
            comm.send(&number, Rank(0))
        }
    })?;
    // Long enough to be written by the sender itself.
    let (outbox, inbox) = (memory.sub(0..8192)?, memory.sub(65536..73728)?);
    let exchange = || {
        if rank == 0 {
            comm.send_slice(&outbox, Rank(1), DataType::F32)?;
            comm.recv_slice(&inbox, Rank(1), DataType::F32)
        } else {
            comm.recv_slice(&inbox, Rank(0), DataType::F32)?;
            comm.send_slice(&outbox, Rank(0), DataType::F32)
        }
    };
    side.meet()?;
    // The first ones make the memory known to the peer.
    (0..4).try_for_each(|_| exchange())?;
    side.meet()?;
    side.both(
        "together: send_slice and recv_slice",
        (rounds / 10).max(1),
        exchange,
    )?;
    let (input, mut sum) = ([1.0_f32; 64], [0.0_f32; 64]);
    side.meet()?;
    side.both("together: all_reduce", (rounds / 10).max(1), || {
        comm.all_reduce(&input, &mut sum, ReduceOp::Sum)
    })?;
    Ok(())
}
