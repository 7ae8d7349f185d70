//! A point-to-point operator of one's own on the primitives: rank 0 streams blocks to rank 1.
//! `cargo build -p hcomm --bins --example point_to_point`, then
//! `target/debug/hcomm run -n 2 -- target/debug/examples/point_to_point`.
//!
//! Two slots at the receiver let the sender fill one while the other is emptied. A notify says that
//! a slot is full, one the other way that it is free again.

use hcomm::prelude::*;
use hcomm::{Error, Layer, PeerLink, RemoteSlice, Result, Slice, Thread};

const SLOTS: usize = 2;
const BLOCK_BYTES: usize = 4096;
const BLOCKS: usize = 50;

fn main() -> Result<()> {
    let comm = Communicator::from_env()?;
    let sum = operate(&comm)?;
    println!("rank {}: the bytes add up to {sum}", comm.rank());
    comm.close()
}

/// The six steps, as one of two ranks; the sum of all bytes that went by.
pub(crate) fn operate(comm: &Communicator) -> Result<u64> {
    if comm.size() != 2 {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{} ranks, and it is made for 2", comm.size()),
        )
        .hint("start it with `hcomm run -n 2`"));
    }
    let (me, peer) = (comm.rank(), Rank(1 - comm.rank().0));

    // 1. Topology: which hosts there are, and what the peer can be reached by.
    for host in comm.graph().instances(Layer(0)) {
        println!("rank {me}: host {} has ranks {:?}", host.name, host.ranks);
    }
    if let Some(facts) = comm.graph().rank(peer) {
        for endpoint in &facts.endpoints {
            println!("rank {me}: rank {peer} has {}", endpoint.transport);
        }
    }

    // 2. Threads: an in-order queue.
    let thread = comm.thread(0)?;

    // 3. Channels tell the peer of memory that is there when they are made, so that comes first.
    let slots = comm.allocate("slots", SLOTS * BLOCK_BYTES)?;
    let link = comm.open_channel(peer, 2 * SLOTS as u32)?;

    // 4. Remote memory: the peer's slots, by the name that it gave them.
    let remote = link.memory("slots")?;

    // 5. Data and synchronisation.
    let stream = Stream {
        thread,
        link,
        slots,
        remote,
    };
    let sum = if me == Rank(0) {
        stream.send()?
    } else {
        stream.receive()?
    };

    // 6. Release: what was put on the thread is done, then everything goes with its owner.
    // The communicator is closed by whoever has opened it.
    stream.thread.synchronize(None)?;
    drop(stream);
    Ok(sum)
}

/// One end of the stream.
struct Stream {
    thread: Thread,
    link: PeerLink,
    /// At the sender where blocks are made, at the receiver where they arrive.
    slots: Slice,
    remote: RemoteSlice,
}

/// Notify that a slot is full, and that it is free again.
const fn full(slot: usize) -> u32 {
    slot as u32
}
const fn free(slot: usize) -> u32 {
    (SLOTS + slot) as u32
}

impl Stream {
    fn send(&self) -> Result<u64> {
        let mut sum = 0;
        for number in 0..BLOCKS {
            let slot = number % SLOTS;
            let range = slot * BLOCK_BYTES..(slot + 1) * BLOCK_BYTES;
            if number >= SLOTS {
                // Also says that the last block has left this side's slot.
                self.thread.wait(&self.link.channel, free(slot))?;
                self.thread.synchronize(None)?;
            }
            let block: Vec<u8> = (0..BLOCK_BYTES).map(|i| (i * 7 + number) as u8).collect();
            sum += total(&block);
            let near = self.slots.sub(range.clone())?;
            near.copy_from(&block)?;
            let far = self.remote.sub(range.start as u64..range.end as u64)?;
            self.thread
                .write_with_notify(&self.link.channel, &far, &near, full(slot))?;
        }
        // Every notify is taken, so that nothing is left of the last blocks.
        for slot in 0..SLOTS {
            self.thread.wait(&self.link.channel, free(slot))?;
        }
        Ok(sum)
    }

    fn receive(&self) -> Result<u64> {
        let mut sum = 0;
        let mut block = vec![0; BLOCK_BYTES];
        for number in 0..BLOCKS {
            let slot = number % SLOTS;
            self.thread.wait(&self.link.channel, full(slot))?;
            self.thread.synchronize(None)?;
            self.slots
                .sub(slot * BLOCK_BYTES..(slot + 1) * BLOCK_BYTES)?
                .copy_to(&mut block)?;
            sum += total(&block);
            self.thread.record(&self.link.channel, free(slot))?;
        }
        Ok(sum)
    }
}

fn total(block: &[u8]) -> u64 {
    block.iter().map(|byte| u64::from(*byte)).sum()
}
