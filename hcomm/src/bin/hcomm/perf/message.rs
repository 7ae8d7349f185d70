//! Send and recv between pairs of ranks: 0 with 1, 2 with 3, and so on.

use hcomm::Communicator;
use hcomm_data::{Engine, Slice, Thread};
use hcomm_types::{DataType, Rank, Result};

use super::PerfArgs;
use super::held::Held;
use super::pattern::{fill, sum_u64, wrong_copies};
use super::worker::{Case, Plan, as_length, buffer};

const POISON: u8 = 0xa5;

/// Prepares one size, of so many elements.
///
/// # Errors
/// If there is no memory for it.
pub(super) fn plan<'a>(args: &PerfArgs, comm: &'a Communicator, count: u64) -> Result<Plan<'a>> {
    let bytes = count * args.dtype.size() as u64;
    let mut case = Messages {
        comm,
        peer: Rank(comm.rank().0 ^ 1),
        dtype: args.dtype,
        stream: args.stream,
        memory: if args.blocks() {
            Boxes::Users {
                outbox: buffer(bytes)?,
                inbox: buffer(bytes)?,
            }
        } else {
            Boxes::slices(args, comm, as_length(bytes)?)?
        },
        consumes: args.consume,
        consumed: 0,
    };
    case.refill()?;
    Ok(Plan {
        algorithm: "-".to_owned(),
        predicted_us: None,
        case: Box::new(case),
        bytes,
        count,
        moved: bytes,
        bus_factor: 1.0,
        messages: Some(1),
    })
}

/// Even ranks send first, odd ranks answer: with the same, or after a stream with one byte.
struct Messages<'a> {
    comm: &'a Communicator,
    peer: Rank,
    dtype: DataType,
    /// Messages before the answer; none of that: one run is a round trip.
    stream: Option<u32>,
    memory: Boxes<'a>,
    consumes: bool,
    /// Sum of everything that was consumed.
    consumed: u64,
}

/// What is sent, and where is received.
enum Boxes<'a> {
    Users {
        outbox: Vec<u8>,
        inbox: Vec<u8>,
    },
    Slices {
        /// Of a worker; otherwise the communicator's own.
        thread: Option<Thread>,
        outbox: Slice,
        inbox: Slice,
        _memory: Held<'a>,
    },
}

impl<'a> Boxes<'a> {
    fn slices(args: &PerfArgs, comm: &'a Communicator, bytes: usize) -> Result<Self> {
        let held = Held::new(args, comm, bytes.saturating_mul(2))?;
        let thread = match args.engine.engine() {
            Engine::Cpu => None,
            engine => Some(comm.thread_on(engine, 0)?),
        };
        Ok(Self::Slices {
            thread,
            outbox: held.slice().sub(0..bytes)?,
            inbox: held.slice().sub(bytes..2 * bytes)?,
            _memory: held,
        })
    }
}

impl Messages<'_> {
    fn acts(&self) -> bool {
        self.comm.rank() < self.peer
    }

    fn send(&self) -> Result<()> {
        match &self.memory {
            Boxes::Users { outbox, .. } => self.comm.send(outbox, self.peer),
            Boxes::Slices { thread, outbox, .. } => match thread {
                None => self.comm.send_slice(outbox, self.peer, DataType::U8),
                Some(thread) => {
                    self.comm.send_on(thread, outbox, self.peer, DataType::U8)?;
                    thread.synchronize(None)
                }
            },
        }
    }

    fn recv(&mut self) -> Result<()> {
        match &mut self.memory {
            Boxes::Users { inbox, .. } => self.comm.recv(inbox, self.peer)?,
            Boxes::Slices { thread, inbox, .. } => match thread {
                None => self.comm.recv_slice(inbox, self.peer, DataType::U8)?,
                Some(thread) => {
                    self.comm.recv_on(thread, inbox, self.peer, DataType::U8)?;
                    thread.synchronize(None)?;
                }
            },
        }
        if self.consumes {
            let sum = match &self.memory {
                Boxes::Users { inbox, .. } => sum_u64(inbox),
                Boxes::Slices { inbox, .. } => inbox.sum_u64(),
            };
            self.consumed = self.consumed.wrapping_add(sum);
        }
        Ok(())
    }

    /// What is to be sent anew; where is received poisoned.
    fn refill(&mut self) -> Result<()> {
        let (dtype, rank) = (self.dtype, self.comm.rank());
        match &mut self.memory {
            Boxes::Users { outbox, inbox } => {
                fill(outbox, dtype, rank, 0);
                inbox.fill(POISON);
            }
            Boxes::Slices { outbox, inbox, .. } => {
                let mut bytes = buffer(outbox.bytes() as u64)?;
                fill(&mut bytes, dtype, rank, 0);
                outbox.copy_from(&bytes)?;
                bytes.fill(POISON);
                inbox.copy_from(&bytes)?;
            }
        }
        Ok(())
    }

    fn received(&self) -> Result<Vec<u8>> {
        Ok(match &self.memory {
            Boxes::Users { inbox, .. } => inbox.clone(),
            Boxes::Slices { inbox, .. } => {
                let mut bytes = buffer(inbox.bytes() as u64)?;
                inbox.copy_to(&mut bytes)?;
                bytes
            }
        })
    }
}

impl Case for Messages<'_> {
    fn run(&mut self) -> Result<()> {
        match (self.stream, self.acts()) {
            (None, true) => {
                self.send()?;
                self.recv()
            }
            (None, false) => {
                self.recv()?;
                self.send()
            }
            (Some(stream), true) => {
                (0..stream).try_for_each(|_| self.send())?;
                self.comm.recv(&mut [0u8], self.peer)
            }
            (Some(stream), false) => {
                (0..stream).try_for_each(|_| self.recv())?;
                self.comm.send(&[1u8], self.peer)
            }
        }
    }

    fn wrong(&mut self) -> Result<u64> {
        self.refill()?;
        self.consumed = 0;
        self.run()?;
        let messages = match (self.stream, self.acts()) {
            (Some(_), true) => return Ok(0),
            (stream, _) => stream.unwrap_or(1),
        };
        let bytes = self.received()?;
        let expected = sum_u64(&bytes).wrapping_mul(messages.into());
        let missed = self.consumes && self.consumed != expected;
        Ok(wrong_copies(&bytes, self.dtype, self.peer, 0) + u64::from(missed))
    }

    fn operations(&self) -> u32 {
        self.stream.unwrap_or(2)
    }
}
