//! Collectives.

use hcomm::Communicator;
use hcomm_coll::plan::{Operation, Shape};
use hcomm_data::{Buffers, Slice, Thread};
use hcomm_types::{Rank, Result};

use super::held::Held;
use super::pattern::{Reduction, fill, wrong_copies};
use super::worker::{Case, Plan, as_length, buffer};
use super::{PerfArgs, PerfOp};

/// Byte that outputs hold before a check: an element that was never written is not right by luck.
const POISON: u8 = 0xa5;

/// Prepares one size, of so many elements a rank.
///
/// # Errors
/// If there is no algorithm or no memory for it.
pub(super) fn plan<'a>(args: &PerfArgs, comm: &'a Communicator, count: u64) -> Result<Plan<'a>> {
    let operation = match args.op {
        PerfOp::AllGather => Operation::AllGather,
        PerfOp::ReduceScatter => Operation::ReduceScatter,
        PerfOp::Broadcast => Operation::Broadcast {
            root: Rank(args.root),
        },
        PerfOp::Barrier => Operation::Barrier,
        _ => Operation::AllReduce,
    };
    // A broadcast has one buffer on every rank.
    let in_place = args.in_place || args.op == PerfOp::Broadcast;
    let shape = comm.shape(
        operation,
        as_length(count)?,
        args.dtype,
        args.redop,
        in_place,
    );
    let bytes = count * args.dtype.size() as u64 * args.op.parts(comm.size());
    let ranks = f64::from(comm.size());
    let share = (ranks - 1.0) / ranks;
    let bus_factor = match args.op {
        PerfOp::AllReduce => 2.0 * share,
        PerfOp::AllGather | PerfOp::ReduceScatter => share,
        _ => 1.0,
    };
    Ok(Plan {
        case: Box::new(Collective::new(args, comm, shape)?),
        bytes,
        count,
        moved: bytes,
        bus_factor,
        messages: None,
        algorithm: comm.algorithm(&shape)?.to_owned(),
    })
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
        let (apart, main) = if shape.in_place {
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
        let (shape, rank) = (self.shape, self.comm.rank());
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
        match self.shape.operation {
            Operation::AllGather if self.shape.in_place => {
                self.shape.part(self.comm.rank()).start as usize
            }
            _ => 0,
        }
    }

    fn output_offset(&self) -> usize {
        match self.shape.operation {
            Operation::ReduceScatter if self.shape.in_place => {
                self.shape.part(self.comm.rank()).start as usize
            }
            _ => 0,
        }
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
            } => return run_on(self.comm, &self.shape, thread, input, output),
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
        let Shape {
            operation,
            dtype,
            count,
            ..
        } = self.shape;
        let rank = self.comm.rank();
        let output = self.received()?;
        if let Some(reduction) = reduction(&self.shape) {
            let first = match operation {
                Operation::ReduceScatter => count * u64::from(rank.0),
                _ => 0,
            };
            return Ok(reduction.wrong(&output, first));
        }
        Ok(match operation {
            Operation::AllGather => self
                .shape
                .all_ranks()
                .map(|from| {
                    let part = self.shape.part(from);
                    let part = &output[part.start as usize..part.end as usize];
                    wrong_copies(part, dtype, from, 0)
                })
                .sum(),
            Operation::Broadcast { root } => wrong_copies(&output, dtype, root, 0),
            _ => 0,
        })
    }
}

/// Puts an operation on a thread, and waits for its end.
fn run_on(
    comm: &Communicator,
    shape: &Shape,
    thread: &Thread,
    input: &Slice,
    output: &Slice,
) -> Result<()> {
    let Shape { dtype, redop, .. } = *shape;
    match shape.operation {
        Operation::AllGather => comm.all_gather_on(thread, input, output, dtype)?,
        Operation::ReduceScatter => comm.reduce_scatter_on(thread, input, output, dtype, redop)?,
        Operation::Broadcast { root } => comm.broadcast_on(thread, output, root, dtype)?,
        Operation::Barrier => comm.barrier_on(thread)?,
        _ => comm.all_reduce_on(thread, input, output, dtype, redop)?,
    }
    thread.synchronize(None)
}

/// What an operation combines, if it does.
fn reduction(shape: &Shape) -> Option<Reduction> {
    matches!(
        shape.operation,
        Operation::AllReduce | Operation::ReduceScatter
    )
    .then_some(Reduction {
        dtype: shape.dtype,
        redop: shape.redop,
        ranks: shape.ranks,
    })
}
