//! Primitives between pairs of ranks: 0 with 1, 2 with 3, and so on. The even rank begins.

use hcomm::{Communicator, PeerLink};
use hcomm_data::{BatchOp, RemoteSlice, Slice, Thread};
use hcomm_types::{DataType, Error, ErrorKind, Rank, Result};

use super::held::Held;
use super::pattern::{Combination, fill, sum_u64, wrong_copies};
use super::worker::{Case, Plan, buffer};
use super::{PerfArgs, PerfOp};

const POISON: u8 = 0xa5;
/// Notify that says the data is there.
const DATA: u32 = 0;
/// Notify that says it was seen.
const SEEN: u32 = 1;
/// Messages of a stream have places of their own as long as all of them fit in this many bytes;
/// larger ones use the same places again.
const PLACES: u64 = 32 << 20;

/// Memory and channel of this rank, for all sizes.
pub(super) struct Bench<'a> {
    comm: &'a Communicator,
    thread: Thread,
    link: PeerLink,
    /// What this rank sends.
    outbox: Slice,
    /// Where it receives.
    inbox: Slice,
    peers_outbox: RemoteSlice,
    peers_inbox: RemoteSlice,
    /// Where outbox and inbox lie.
    _memory: Held<'a>,
}

impl<'a> Bench<'a> {
    /// Memory for the largest size, and a channel to the peer.
    ///
    /// # Errors
    /// Those of [`Held::new`]; whatever stops the channel.
    pub(super) fn new(args: &PerfArgs, comm: &'a Communicator) -> Result<Self> {
        let bytes = |places: fn(&PerfArgs, u64) -> u64| {
            args.counts(comm.size())
                .into_iter()
                .map(|count| count * args.dtype.size() as u64)
                .map(|size| size.max(1).checked_mul(places(args, size)))
                .try_fold(0, |most, bytes| Some(bytes?.max(most)))
                .and_then(|bytes| bytes.checked_next_multiple_of(4096))
                .and_then(|bytes| usize::try_from(bytes).ok())
        };
        let (outbox, inbox) = bytes(sources)
            .zip(bytes(places))
            .filter(|(outbox, inbox)| outbox.checked_add(*inbox).is_some())
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    format!("sizes up to {} bytes", args.end),
                )
                .hint("ask for a smaller -e or --batch")
            })?;
        let held = Held::new(args, comm, outbox + inbox)?;
        let link = comm.open_channel(Rank(comm.rank().0 ^ 1), 2)?;
        let (memory, remote) = (held.slice(), held.of_peer(&link)?);
        let (middle, end) = (outbox as u64, (outbox + inbox) as u64);
        Ok(Self {
            comm,
            thread: comm.thread_on(args.engine.engine(), 0)?,
            outbox: memory.sub(0..outbox)?,
            inbox: memory.sub(outbox..outbox + inbox)?,
            peers_outbox: remote.sub(0..middle)?,
            peers_inbox: remote.sub(middle..end)?,
            link,
            _memory: held,
        })
    }

    /// Prepares one size, of so many elements.
    ///
    /// # Errors
    /// If ranges do not fit, which `new` has made sure of.
    pub(super) fn plan<'b>(&'b mut self, args: &PerfArgs, count: u64) -> Result<Plan<'b>> {
        let size = count * args.dtype.size() as u64;
        let case = Primitive::new(self, args, size)?;
        case.refill()?;
        Ok(Plan {
            algorithm: "-".to_owned(),
            predicted_us: None,
            bytes: size,
            count,
            moved: case.outbox.bytes() as u64,
            bus_factor: 1.0,
            messages: Some(if case.batched { args.batch } else { 1 }),
            case: Box::new(case),
        })
    }

    fn acts(&self) -> bool {
        self.comm.rank().0.is_multiple_of(2)
    }
}

/// Messages of this size that the sender has apart.
fn sources(args: &PerfArgs, _: u64) -> u64 {
    if args.op == PerfOp::BatchWrite {
        args.batch.into()
    } else {
        1
    }
}

/// Messages of this size that the receiver has apart.
fn places(args: &PerfArgs, size: u64) -> u64 {
    match args.op {
        PerfOp::BatchWrite => args.batch.into(),
        PerfOp::WriteNotify => u64::from(args.stream()).min(PLACES / size.max(1)).max(1),
        _ => 1,
    }
}

/// How the ranks of a pair take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turns {
    /// The even rank acts, and knows by itself when it is done.
    Alone,
    /// Each does what the other did before.
    PingPong,
    /// The even rank acts, the odd one waits for this many notifies and answers.
    Answer { notifies: u32 },
}

struct Primitive<'a, 'b> {
    bench: &'b Bench<'a>,
    turns: Turns,
    /// What the acting rank submits, one after the other, and from the beginning again.
    ops: Vec<BatchOp>,
    /// How many it submits in a run.
    submissions: usize,
    /// All in one call.
    batched: bool,
    outbox: Slice,
    /// Where messages are received.
    places: Vec<Slice>,
    dtype: DataType,
    /// If contents are combined.
    reduction: Option<Combination>,
    reads: bool,
    consumes: bool,
    /// Sum of everything that was consumed.
    consumed: u64,
}

impl<'a, 'b> Primitive<'a, 'b> {
    fn new(bench: &'b Bench<'a>, args: &PerfArgs, size: u64) -> Result<Self> {
        let (op, dtype, redop) = (args.op, args.dtype, args.redop.op());
        let batched = op == PerfOp::BatchWrite;
        let total = size * sources(args, size);
        let place = |index: u64| index * total..(index + 1) * total;
        let part = |of: Range64| of.start as usize..of.end as usize;
        let outbox = bench.outbox.sub(0..total as usize)?;
        let places = (0..if batched { 1 } else { places(args, size) })
            .map(|index| bench.inbox.sub(part(place(index))))
            .collect::<Result<Vec<_>>>()?;
        let notify = (op == PerfOp::WriteNotify).then_some(DATA);
        let mut ops = match op {
            PerfOp::BatchWrite => (0..u64::from(args.batch))
                .map(|index| index * size..(index + 1) * size)
                .map(|range| {
                    Ok(BatchOp::Write {
                        dst: bench.peers_inbox.sub(range.clone())?,
                        src: outbox.sub(part(range))?,
                        notify: None,
                    })
                })
                .collect::<Result<Vec<_>>>()?,
            PerfOp::Read => vec![BatchOp::Read {
                dst: places[0].clone(),
                src: bench.peers_outbox.sub(0..size)?,
                notify: None,
            }],
            PerfOp::WriteReduce => vec![BatchOp::WriteReduce {
                dst: bench.peers_inbox.sub(0..size)?,
                src: outbox.clone(),
                dtype,
                redop,
                notify: None,
            }],
            PerfOp::ReadReduce => vec![BatchOp::ReadReduce {
                dst: places[0].clone(),
                src: bench.peers_outbox.sub(0..size)?,
                dtype,
                redop,
                notify: None,
            }],
            PerfOp::Notify => vec![BatchOp::Record { notify: DATA }],
            _ => (0..places.len() as u64)
                .map(|index| {
                    Ok(BatchOp::Write {
                        dst: bench.peers_inbox.sub(place(index))?,
                        src: outbox.clone(),
                        notify,
                    })
                })
                .collect::<Result<Vec<_>>>()?,
        };
        let reads = matches!(op, PerfOp::Read | PerfOp::ReadReduce);
        let notifies = matches!(op, PerfOp::WriteNotify | PerfOp::Notify);
        let turns = match args.stream {
            _ if batched => Turns::Answer { notifies: 1 },
            None if notifies => Turns::PingPong,
            Some(stream) if notifies => Turns::Answer { notifies: stream },
            _ if args.consume && !reads => Turns::Answer { notifies: 1 },
            _ => Turns::Alone,
        };
        if batched {
            ops.push(BatchOp::Record { notify: DATA });
        }
        Ok(Self {
            bench,
            turns,
            ops,
            submissions: args.stream() as usize,
            batched,
            outbox,
            places,
            dtype,
            reduction: matches!(op, PerfOp::WriteReduce | PerfOp::ReadReduce).then_some(
                Combination {
                    dtype,
                    redop: redop.into(),
                    ranks: 2,
                },
            ),
            reads,
            consumes: args.consume,
            consumed: 0,
        })
    }

    /// Contents anew; what will be written is poisoned, unless it is combined with.
    fn refill(&self) -> Result<()> {
        let mut bytes = buffer(self.outbox.bytes() as u64)?;
        let rank = self.bench.comm.rank();
        match self.reduction {
            Some(reduction) => reduction.fill(&mut bytes, Rank(rank.0 % 2), 0),
            None => fill(&mut bytes, self.dtype, rank, 0),
        }
        self.outbox.copy_from(&bytes)?;
        if self.reduction.is_none() {
            bytes.fill(POISON);
        }
        self.places
            .iter()
            .try_for_each(|place| place.copy_from(&bytes))
    }

    fn submit_all(&self) -> Result<()> {
        let (thread, channel) = (&self.bench.thread, &self.bench.link.channel);
        if self.batched {
            return thread.batch(channel, &self.ops);
        }
        for op in self.ops.iter().cycle().take(self.submissions) {
            match op {
                BatchOp::Write {
                    dst,
                    src,
                    notify: None,
                } => thread.write(channel, dst, src)?,
                BatchOp::Write {
                    dst,
                    src,
                    notify: Some(notify),
                } => thread.write_with_notify(channel, dst, src, *notify)?,
                BatchOp::Read { dst, src, .. } => thread.read(channel, dst, src)?,
                BatchOp::WriteReduce {
                    dst,
                    src,
                    dtype,
                    redop,
                    notify,
                } => thread.write_reduce(channel, dst, src, *dtype, *redop, *notify)?,
                BatchOp::ReadReduce {
                    dst,
                    src,
                    dtype,
                    redop,
                    notify,
                } => thread.read_reduce(channel, dst, src, *dtype, *redop, *notify)?,
                BatchOp::Record { notify } => thread.record(channel, *notify)?,
            }
        }
        Ok(())
    }

    /// Waits for all notifies of a run, and reads what each of them has announced.
    fn receive(&mut self, notifies: u32) -> Result<()> {
        let (thread, channel) = (&self.bench.thread, &self.bench.link.channel);
        for place in self.places.iter().cycle().take(notifies as usize) {
            thread.wait_blocking(channel, DATA, None)?;
            if self.consumes {
                self.consumed = self.consumed.wrapping_add(place.sum_u64());
            }
        }
        Ok(())
    }

    fn one_run(&mut self) -> Result<()> {
        let (thread, channel) = (&self.bench.thread, &self.bench.link.channel);
        let acts = self.bench.acts();
        match self.turns {
            Turns::Alone if acts => {
                self.submit_all()?;
                if self.reads {
                    thread.synchronize(None)?;
                    if self.consumes {
                        self.consumed = self.consumed.wrapping_add(self.places[0].sum_u64());
                    }
                    return Ok(());
                }
                thread.fence(channel)?;
            }
            Turns::Alone => return Ok(()),
            Turns::PingPong if acts => {
                self.submit_all()?;
                return self.receive(1);
            }
            Turns::PingPong => {
                self.receive(1)?;
                self.submit_all()?;
            }
            Turns::Answer { .. } if acts => {
                self.submit_all()?;
                if !self.announces() {
                    thread.record(channel, DATA)?;
                }
                thread.wait(channel, SEEN)?;
            }
            Turns::Answer { notifies } => {
                self.receive(notifies)?;
                thread.record(channel, SEEN)?;
            }
        }
        thread.synchronize(None)
    }

    /// Whether what is submitted records notifies.
    fn announces(&self) -> bool {
        matches!(
            self.ops.last(),
            Some(
                BatchOp::Record { .. }
                    | BatchOp::Write {
                        notify: Some(_),
                        ..
                    }
            )
        )
    }

    /// Whether this rank has something to check.
    fn receives(&self) -> bool {
        match self.turns {
            Turns::PingPong => true,
            _ => self.reads == self.bench.acts(),
        }
    }

    /// Times that the places are consumed in a run.
    fn rounds(&self) -> u64 {
        match self.turns {
            Turns::Answer { notifies } => u64::from(notifies),
            _ => 1,
        }
    }
}

type Range64 = std::ops::Range<u64>;

impl Case for Primitive<'_, '_> {
    fn run(&mut self) -> Result<()> {
        self.one_run()
    }

    fn wrong(&mut self) -> Result<u64> {
        let comm = self.bench.comm;
        comm.barrier()?;
        self.refill()?;
        comm.barrier()?;
        self.consumed = 0;
        // Combining many times gives another result than combining once.
        let usual = self.submissions;
        if self.reduction.is_some() {
            self.submissions = 1;
        }
        self.one_run()?;
        self.submissions = usual;
        comm.barrier()?;
        if !self.receives() {
            return Ok(0);
        }
        let from = Rank(comm.rank().0 ^ 1);
        let mut bytes = buffer(self.outbox.bytes() as u64)?;
        let (mut wrong, mut sums) = (0, Vec::with_capacity(self.places.len()));
        for place in &self.places {
            place.copy_to(&mut bytes)?;
            wrong += match self.reduction {
                Some(reduction) => reduction.wrong(&bytes, 0),
                None if self.ops.iter().all(is_record) => 0,
                None => wrong_copies(&bytes, self.dtype, from, 0),
            };
            sums.push(sum_u64(&bytes));
        }
        if self.consumes {
            let expected = sums
                .iter()
                .cycle()
                .take(self.rounds() as usize)
                .fold(0u64, |sum, part| sum.wrapping_add(*part));
            wrong += u64::from(self.consumed != expected);
        }
        Ok(wrong)
    }

    fn operations(&self) -> u32 {
        match self.turns {
            Turns::PingPong => 2,
            _ => self.submissions as u32,
        }
    }
}

const fn is_record(op: &BatchOp) -> bool {
    matches!(op, BatchOp::Record { .. })
}
