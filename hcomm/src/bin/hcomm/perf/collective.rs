//! Collectives.

use std::ops::Range;

use hcomm::Communicator;
use hcomm_coll::plan::{Buffer, Count, Operation, Shape};
use hcomm_data::{Buffers, Slice, Thread};
use hcomm_types::{Error, ErrorKind, Rank, Result};

use super::held::Held;
use super::pattern::{Combination, fill, wrong_copies};
use super::worker::{Case, Plan, as_length, buffer};
use super::{PerfArgs, PerfOp};

/// Byte that outputs hold before a check: an element that was never written is not right by luck.
const POISON: u8 = 0xa5;

/// Prepares one size, of so many elements a rank.
///
/// # Errors
/// If there is no algorithm or no memory for it.
pub(super) fn plan<'a>(args: &PerfArgs, comm: &'a Communicator, count: u64) -> Result<Plan<'a>> {
    let root = Rank(args.root);
    let operation = match args.op {
        PerfOp::Reduce => Operation::Reduce { root },
        PerfOp::AllGather | PerfOp::AllGatherV => Operation::AllGather,
        PerfOp::ReduceScatter | PerfOp::ReduceScatterV => Operation::ReduceScatter,
        PerfOp::Broadcast => Operation::Broadcast { root },
        PerfOp::Scatter => Operation::Scatter { root },
        PerfOp::Gather => Operation::Gather { root },
        PerfOp::AllToAll | PerfOp::AllToAllV => Operation::AllToAll,
        PerfOp::Barrier => Operation::Barrier,
        _ => Operation::AllReduce,
    };
    // A broadcast has one buffer on every rank.
    let in_place = args.in_place || args.op == PerfOp::Broadcast;
    let shape = match &args.loaded {
        Some(plan) => plan.shape.clone(),
        None => {
            let counts = counts(args.op, comm.size(), count);
            comm.shape(operation, counts, args.dtype, args.redop, in_place)
        }
    };
    shape
        .validate()
        .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))?;
    let bytes = count * args.dtype.size() as u64 * args.op.parts(comm.size());
    let algorithm = comm.algorithm(&shape)?;
    let predicted_us = if args.predict {
        comm.predicted_ns(&shape)?.map(|time| time / 1000.0)
    } else {
        None
    };
    Ok(Plan {
        case: Box::new(Collective::new(args, comm, shape)?),
        bytes,
        count,
        moved: bytes,
        bus_factor: operation.bus_factor(comm.size()),
        messages: None,
        algorithm,
        predicted_us,
    })
}

/// Elements of each rank or pair. Where they differ they grow from nothing to about twice `count`,
/// which is what they are on average.
fn counts(op: PerfOp, ranks: u32, count: u64) -> Count {
    let ranks = u64::from(ranks);
    let uneven = |shift: u64| {
        let number = |rank: u64| {
            let rank = (rank + shift) % ranks;
            if ranks == 1 {
                count
            } else {
                // The smaller half gives what the larger half gets.
                let share = 2 * rank.min(ranks - 1 - rank) * count / (ranks - 1);
                if 2 * rank < ranks - 1 {
                    share
                } else {
                    2 * count - share
                }
            }
        };
        (0..ranks).map(number).collect::<Vec<u64>>()
    };
    match op {
        PerfOp::AllGatherV | PerfOp::ReduceScatterV => Count::ranks(&uneven(0)),
        PerfOp::AllToAllV => {
            let rows: Vec<u64> = (0..ranks).flat_map(uneven).collect();
            Count::pairs(&rows)
        }
        _ => Count::Even(count),
    }
}

struct Collective<'a> {
    call: &'static str,
    comm: &'a Communicator,
    shape: Shape,
    memory: Place<'a>,
}

/// Where input and output lie.
enum Place<'a> {
    /// Of blocking calls.
    Users {
        /// Empty when the operation is in place.
        input: Vec<u8>,
        /// The output, or the one buffer of an operation in place.
        output: Vec<u8>,
    },
    OnThread {
        thread: Thread,
        input: Slice,
        output: Slice,
        _memory: Held<'a>,
    },
}

impl<'a> Collective<'a> {
    fn new(args: &PerfArgs, comm: &'a Communicator, shape: Shape) -> Result<Self> {
        let rank = comm.rank();
        let (input, output) = (shape.input_bytes(rank), shape.output_bytes(rank));
        let mut case = Self {
            call: args.op.name(),
            comm,
            shape,
            memory: Place::Users {
                input: Vec::new(),
                output: Vec::new(),
            },
        };
        // One buffer, or an input of its own and the output behind it, on a page of its own.
        let (apart, main) = if case.shape.in_place {
            (0, input.max(output))
        } else {
            (input, output)
        };
        case.memory = if args.blocks() {
            Place::Users {
                input: buffer(apart)?,
                output: buffer(main)?,
            }
        } else {
            let behind = apart.checked_next_multiple_of(4096).unwrap_or(u64::MAX);
            let held = Held::new(args, comm, as_length(behind.saturating_add(main))?)?;
            let (input, output) = (as_length(input)?, as_length(output)?);
            let input_at = case.input_offset();
            let output_at = as_length(behind)? + case.output_offset();
            Place::OnThread {
                thread: comm.thread_on(args.engine.engine(), 0)?,
                input: held.slice().sub(input_at..input_at + input)?,
                output: held.slice().sub(output_at..output_at + output)?,
                _memory: held,
            }
        };
        case.refill()?;
        Ok(case)
    }

    /// Inputs anew, everything else poisoned.
    fn refill(&mut self) -> Result<()> {
        let (shape, rank) = (self.shape.clone(), self.comm.rank());
        let start = self.input_offset();
        let new = |input: &mut [u8]| match reduction(&shape) {
            Some(reduction) => reduction.fill(input, rank, 0),
            None => fill(input, shape.dtype, rank, 0),
        };
        match &mut self.memory {
            Place::Users { input, output } => {
                output.fill(POISON);
                new(if shape.in_place {
                    &mut output[start..start + shape.input_bytes(rank) as usize]
                } else {
                    input
                });
            }
            Place::OnThread { input, output, .. } => {
                let mut bytes = buffer(output.bytes() as u64)?;
                bytes.fill(POISON);
                output.copy_from(&bytes)?;
                bytes.resize(input.bytes(), POISON);
                new(&mut bytes);
                input.copy_from(&bytes)?;
            }
        }
        Ok(())
    }

    fn input_offset(&self) -> usize {
        self.shape.home(self.comm.rank(), Buffer::Input).1 as usize
    }

    fn output_offset(&self) -> usize {
        self.shape.home(self.comm.rank(), Buffer::Output).1 as usize
    }

    fn received(&self) -> Result<Vec<u8>> {
        let bytes = self.shape.output_bytes(self.comm.rank());
        let start = self.output_offset();
        Ok(match &self.memory {
            Place::Users { output, .. } => output[start..start + bytes as usize].to_vec(),
            Place::OnThread { output, .. } => {
                let mut received = buffer(bytes)?;
                output.copy_to(&mut received)?;
                received
            }
        })
    }
}

impl Case for Collective<'_> {
    fn run(&mut self) -> Result<()> {
        let rank = self.comm.rank();
        let (input_offset, output_offset) = (self.input_offset(), self.output_offset());
        let buffers = match &mut self.memory {
            Place::OnThread {
                thread,
                input,
                output,
                ..
            } => {
                self.comm
                    .execute_on(self.call, thread, &self.shape, input, output)?;
                return thread.synchronize(None);
            }
            Place::Users { output, .. } if self.shape.in_place => Buffers::InPlace {
                input_offset,
                input_bytes: self.shape.input_bytes(rank) as usize,
                output_offset,
                output_bytes: self.shape.output_bytes(rank) as usize,
                buffer: output,
            },
            Place::Users { input, output } => Buffers::Separate { input, output },
        };
        self.comm.execute(self.call, &self.shape, buffers)
    }

    fn wrong(&mut self) -> Result<u64> {
        self.refill()?;
        self.run()?;
        let shape = &self.shape;
        let (rank, dtype) = (self.comm.rank(), shape.dtype);
        let output = self.received()?;
        let element = |offset: u64| offset / shape.element_bytes();
        if let Some(reduction) = reduction(shape) {
            let first = match shape.operation {
                Operation::ReduceScatter => element(shape.part(rank).start),
                _ => 0,
            };
            return Ok(reduction.wrong(&output, first));
        }
        // What comes from a rank: where it lies, and which of its elements is the first.
        let wrong = |from: Rank, part: Range<u64>, first: u64| {
            let part = &output[part.start as usize..part.end as usize];
            wrong_copies(part, dtype, from, element(first))
        };
        let all = 0..output.len() as u64;
        Ok(match shape.operation {
            Operation::AllGather => shape
                .all_ranks()
                .map(|from| wrong(from, shape.part(from), 0))
                .sum(),
            Operation::Gather { root } if rank == root => shape
                .all_ranks()
                .map(|from| wrong(from, shape.part(from), 0))
                .sum(),
            Operation::AllToAll => shape
                .all_ranks()
                .map(|from| {
                    let first = shape.sent_part(from, rank).start;
                    wrong(from, shape.received_part(from, rank), first)
                })
                .sum(),
            Operation::Scatter { root } => wrong(root, all, shape.part(rank).start),
            Operation::Broadcast { root } => wrong(root, all, 0),
            _ => 0,
        })
    }
}

/// What an operation combines, if it does.
fn reduction(shape: &Shape) -> Option<Combination> {
    shape.operation.reduces().then_some(Combination {
        dtype: shape.dtype,
        redop: shape.redop,
        ranks: shape.ranks,
    })
}
