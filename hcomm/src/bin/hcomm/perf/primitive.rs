//! One-sided primitives between pairs of ranks: 0 with 1, 2 with 3, and so on. The even rank acts.

use hcomm::{Communicator, PeerLink};
use hcomm_data::{BatchOp, RemoteSlice, Slice, Thread};
use hcomm_types::{DataType, Error, ErrorKind, Rank, Result};

use super::pattern::{fill, wrong_copies};
use super::worker::{Case, Plan, buffer};
use super::{PerfArgs, PerfOp};

const TAG: &str = "hcomm-perf";
const POISON: u8 = 0xa5;
/// Notify that says the data is there.
const DATA: u32 = 0;
/// Notify that says it was seen.
const SEEN: u32 = 1;

/// Memory and channel of this rank, for all sizes.
pub(super) struct Bench<'a> {
    comm: &'a Communicator,
    op: PerfOp,
    thread: Thread,
    link: PeerLink,
    /// What this rank sends, and where it receives: the two halves of one region.
    mine: Slice,
    theirs: Slice,
    /// The peer's two halves.
    peers_source: RemoteSlice,
    peers_target: RemoteSlice,
}

impl<'a> Bench<'a> {
    /// Allocates memory for the largest size and opens a channel to the peer.
    ///
    /// # Errors
    /// `LimitReached`; whatever stops the channel.
    pub(super) fn new(args: &PerfArgs, comm: &'a Communicator) -> Result<Self> {
        let largest = args.counts(comm.size()).into_iter().max().unwrap_or(0);
        let largest = largest * args.dtype.size() as u64;
        let half = largest
            .max(1)
            .checked_mul(descriptors(args))
            .and_then(|bytes| bytes.checked_next_multiple_of(4096))
            .and_then(|bytes| usize::try_from(bytes).ok())
            .filter(|bytes| bytes.checked_mul(2).is_some())
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    format!("sizes up to {largest} bytes"),
                )
                .hint("ask for a smaller -e or --batch")
            })?;
        let memory = comm.allocate(TAG, 2 * half)?;
        let link = comm.open_channel(Rank(comm.rank().0 ^ 1), 2)?;
        let remote = link.memory(TAG)?;
        let middle = half as u64;
        Ok(Self {
            comm,
            op: args.op,
            thread: comm.thread(0)?,
            mine: memory.sub(0..half)?,
            theirs: memory.sub(half..2 * half)?,
            peers_source: remote.sub(0..middle)?,
            peers_target: remote.sub(middle..2 * middle)?,
            link,
        })
    }

    /// Prepares one size, of so many elements.
    ///
    /// # Errors
    /// If ranges do not fit, which `new` has made sure of.
    pub(super) fn plan<'b>(&'b mut self, args: &PerfArgs, count: u64) -> Result<Plan<'b>> {
        let size = count * args.dtype.size() as u64;
        let total = size * descriptors(args);
        let case = Primitive {
            bench: self,
            dtype: args.dtype,
            size: size as usize,
            total: total as usize,
        };
        case.refill()?;
        Ok(Plan {
            algorithm: "-".to_owned(),
            bytes: size,
            count,
            moved: total,
            bus_factor: 1.0,
            case: Box::new(case),
        })
    }
}

/// Descriptors of one run.
fn descriptors(args: &PerfArgs) -> u64 {
    if args.op == PerfOp::BatchWrite {
        args.batch.into()
    } else {
        1
    }
}

struct Primitive<'a, 'b> {
    bench: &'b Bench<'a>,
    dtype: DataType,
    /// Bytes of one descriptor.
    size: usize,
    /// Bytes of one run.
    total: usize,
}

impl Primitive<'_, '_> {
    fn acts(&self) -> bool {
        self.bench.comm.rank().0.is_multiple_of(2)
    }

    fn refill(&self) -> Result<()> {
        let mut bytes = buffer(self.total as u64)?;
        fill(&mut bytes, self.dtype, self.bench.comm.rank(), 0);
        self.bench.mine.sub(0..self.total)?.copy_from(&bytes)?;
        bytes.fill(POISON);
        self.bench.theirs.sub(0..self.total)?.copy_from(&bytes)
    }

    fn send(&self) -> Result<()> {
        let Bench {
            thread,
            link,
            mine,
            peers_target,
            ..
        } = self.bench;
        let target = peers_target.sub(0..self.total as u64)?;
        let source = mine.sub(0..self.total)?;
        if self.size == self.total {
            return thread.write_with_notify(&link.channel, &target, &source, DATA);
        }
        let mut batch = Vec::with_capacity(self.total / self.size.max(1) + 1);
        for at in (0..self.total).step_by(self.size) {
            batch.push(BatchOp::Write {
                dst: target.sub(at as u64..(at + self.size) as u64)?,
                src: source.sub(at..at + self.size)?,
                notify: None,
            });
        }
        batch.push(BatchOp::Record { notify: DATA });
        thread.batch(&link.channel, &batch)
    }
}

impl Case for Primitive<'_, '_> {
    fn run(&mut self) -> Result<()> {
        let Bench {
            op,
            thread,
            link,
            mine,
            theirs,
            peers_source,
            peers_target,
            ..
        } = self.bench;
        let channel = &link.channel;
        match op {
            PerfOp::Write if self.acts() => {
                let target = peers_target.sub(0..self.total as u64)?;
                thread.write(channel, &target, &mine.sub(0..self.total)?)?;
                thread.fence(channel)?;
            }
            PerfOp::Read if self.acts() => {
                let source = peers_source.sub(0..self.total as u64)?;
                thread.read(channel, &theirs.sub(0..self.total)?, &source)?;
            }
            PerfOp::Write | PerfOp::Read => return Ok(()),
            PerfOp::WriteNotify if self.acts() => {
                self.send()?;
                thread.wait(channel, DATA)?;
            }
            PerfOp::WriteNotify => {
                thread.wait(channel, DATA)?;
                self.send()?;
            }
            _ if self.acts() => {
                self.send()?;
                thread.wait(channel, SEEN)?;
            }
            _ => {
                thread.wait(channel, DATA)?;
                thread.record(channel, SEEN)?;
            }
        }
        thread.synchronize(None)
    }

    fn wrong(&mut self) -> Result<u64> {
        let comm = self.bench.comm;
        comm.barrier()?;
        self.refill()?;
        comm.barrier()?;
        self.run()?;
        comm.barrier()?;
        let receives = match self.bench.op {
            PerfOp::WriteNotify => true,
            PerfOp::Read => self.acts(),
            _ => !self.acts(),
        };
        if !receives {
            return Ok(0);
        }
        let mut bytes = buffer(self.total as u64)?;
        self.bench.theirs.sub(0..self.total)?.copy_to(&mut bytes)?;
        Ok(wrong_copies(&bytes, self.dtype, Rank(comm.rank().0 ^ 1), 0))
    }

    fn operations(&self) -> u32 {
        if self.bench.op == PerfOp::WriteNotify {
            2
        } else {
            1
        }
    }
}
