//! Collectives.

use hcomm::Communicator;
use hcomm_coll::plan::{Operation, Shape};
use hcomm_data::Buffers;
use hcomm_types::{Rank, Result};

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
        case: Box::new(Collective::new(args.op, comm, shape)?),
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
    /// Empty when the operation is in place.
    input: Vec<u8>,
    /// The output, or the one buffer of an operation in place.
    output: Vec<u8>,
}

impl<'a> Collective<'a> {
    fn new(op: PerfOp, comm: &'a Communicator, shape: Shape) -> Result<Self> {
        let rank = comm.rank();
        let (input, output) = (shape.input_bytes(rank), shape.output_bytes(rank));
        let mut case = Self {
            call: op.name(),
            comm,
            shape,
            input: buffer(if shape.in_place { 0 } else { input })?,
            output: buffer(if shape.in_place {
                input.max(output)
            } else {
                output
            })?,
        };
        case.refill();
        Ok(case)
    }

    /// Inputs anew, everything else poisoned.
    fn refill(&mut self) {
        let (shape, rank) = (self.shape, self.comm.rank());
        self.output.fill(POISON);
        let input = if shape.in_place {
            let start = self.input_offset();
            &mut self.output[start..start + shape.input_bytes(rank) as usize]
        } else {
            &mut self.input[..]
        };
        match reduction(&shape) {
            Some(reduction) => reduction.fill(input, rank, 0),
            None => fill(input, shape.dtype, rank, 0),
        }
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
}

impl Case for Collective<'_> {
    fn run(&mut self) -> Result<()> {
        let rank = self.comm.rank();
        let buffers = if self.shape.in_place {
            Buffers::InPlace {
                input_offset: self.input_offset(),
                input_bytes: self.shape.input_bytes(rank) as usize,
                output_offset: self.output_offset(),
                output_bytes: self.shape.output_bytes(rank) as usize,
                buffer: &mut self.output,
            }
        } else {
            Buffers::Separate {
                input: &self.input,
                output: &mut self.output,
            }
        };
        self.comm.execute(self.call, &self.shape, buffers)
    }

    fn wrong(&mut self) -> Result<u64> {
        self.refill();
        self.run()?;
        let Shape {
            operation,
            dtype,
            count,
            ..
        } = self.shape;
        let rank = self.comm.rank();
        let start = self.output_offset();
        let output = &self.output[start..start + self.shape.output_bytes(rank) as usize];
        if let Some(reduction) = reduction(&self.shape) {
            let first = match operation {
                Operation::ReduceScatter => count * u64::from(rank.0),
                _ => 0,
            };
            return Ok(reduction.wrong(output, first));
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
            Operation::Broadcast { root } => wrong_copies(output, dtype, root, 0),
            _ => 0,
        })
    }
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
