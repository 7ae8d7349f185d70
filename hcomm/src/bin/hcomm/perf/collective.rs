//! Collectives, and send with recv.

use hcomm::Communicator;
use hcomm_coll::plan::{Operation, Shape};
use hcomm_data::Buffers;
use hcomm_types::{Error, ErrorKind, Rank, Result};

use super::pattern::{fill, wrong_copies, wrong_reductions};
use super::worker::{Case, Plan};
use super::{PerfArgs, PerfOp};

/// Byte that outputs hold before a check: an element that was never written is not right by luck.
const POISON: u8 = 0xa5;

/// Prepares one size.
///
/// # Errors
/// If there is no algorithm or no memory for it.
pub(super) fn plan<'a>(args: &PerfArgs, comm: &'a Communicator, size: u64) -> Result<Plan<'a>> {
    if args.op == PerfOp::SendRecv {
        return message(args, comm, size);
    }
    let ranks = u64::from(comm.size());
    let element = args.dtype.size() as u64;
    // As nccl-tests: the size is that of the larger buffer; every rank has at least one element.
    let (operation, parts) = match args.op {
        PerfOp::AllGather => (Operation::AllGather, ranks),
        PerfOp::ReduceScatter => (Operation::ReduceScatter, ranks),
        PerfOp::Broadcast => (
            Operation::Broadcast {
                root: Rank(args.root),
            },
            1,
        ),
        PerfOp::Barrier => (Operation::Barrier, 1),
        _ => (Operation::AllReduce, 1),
    };
    let count = match size {
        0 => 0,
        size => (size / element / parts).max(1),
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
    let bytes = count * element * parts;
    let share = (ranks - 1) as f64 / ranks as f64;
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
        fill(input, shape.dtype, rank, 0);
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
            ranks,
            dtype,
            redop,
            ..
        } = self.shape;
        let rank = self.comm.rank();
        let start = self.output_offset();
        let output = &self.output[start..start + self.shape.output_bytes(rank) as usize];
        Ok(match operation {
            Operation::AllReduce => wrong_reductions(output, dtype, redop, ranks, 0),
            Operation::ReduceScatter => {
                let first = self.shape.count * u64::from(rank.0);
                wrong_reductions(output, dtype, redop, ranks, first)
            }
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
            Operation::Barrier | Operation::SendRecv { .. } => 0,
        })
    }
}

fn message<'a>(args: &PerfArgs, comm: &'a Communicator, size: u64) -> Result<Plan<'a>> {
    let element = args.dtype.size() as u64;
    let count = if size == 0 {
        0
    } else {
        (size / element).max(1)
    };
    let bytes = count * element;
    let me = comm.rank();
    let mut case = PingPong {
        comm,
        peer: Rank(me.0 ^ 1),
        dtype: args.dtype,
        count: as_length(count)?,
        mine: buffer(bytes)?,
        theirs: buffer(bytes)?,
    };
    fill(&mut case.mine, args.dtype, me, 0);
    let there = comm.shape(
        Operation::SendRecv {
            from: me,
            to: case.peer,
        },
        case.count,
        args.dtype,
        args.redop,
        false,
    );
    Ok(Plan {
        algorithm: comm.algorithm(&there)?.to_owned(),
        case: Box::new(case),
        bytes,
        count,
        moved: bytes,
        bus_factor: 1.0,
    })
}

/// Even ranks send first, odd ranks answer: one run is a round trip.
struct PingPong<'a> {
    comm: &'a Communicator,
    peer: Rank,
    dtype: hcomm_types::DataType,
    count: usize,
    mine: Vec<u8>,
    theirs: Vec<u8>,
}

impl PingPong<'_> {
    fn send(&mut self) -> Result<()> {
        let (from, to) = (self.comm.rank(), self.peer);
        let shape = self.shape(from, to);
        let buffers = Buffers::Separate {
            input: &self.mine,
            output: &mut [],
        };
        self.comm.execute("send", &shape, buffers)
    }

    fn recv(&mut self) -> Result<()> {
        let (from, to) = (self.peer, self.comm.rank());
        let shape = self.shape(from, to);
        let buffers = Buffers::Separate {
            input: &[],
            output: &mut self.theirs,
        };
        self.comm.execute("recv", &shape, buffers)
    }

    fn shape(&self, from: Rank, to: Rank) -> Shape {
        let operation = Operation::SendRecv { from, to };
        self.comm.shape(
            operation,
            self.count,
            self.dtype,
            hcomm_types::ReduceOp::Sum,
            false,
        )
    }
}

impl Case for PingPong<'_> {
    fn run(&mut self) -> Result<()> {
        if self.comm.rank() < self.peer {
            self.send()?;
            self.recv()
        } else {
            self.recv()?;
            self.send()
        }
    }

    fn wrong(&mut self) -> Result<u64> {
        self.theirs.fill(POISON);
        self.run()?;
        Ok(wrong_copies(&self.theirs, self.dtype, self.peer, 0))
    }

    fn operations(&self) -> u32 {
        2
    }
}

/// Zeroed memory, or an error where a plain `vec!` would end the process.
fn buffer(bytes: u64) -> Result<Vec<u8>> {
    let bytes = as_length(bytes)?;
    let mut memory = Vec::new();
    memory.try_reserve_exact(bytes).map_err(|error| {
        Error::new(
            ErrorKind::LimitReached,
            format!("{bytes} bytes for a buffer: {error}"),
        )
        .hint("ask for a smaller -e or fewer ranks")
    })?;
    memory.resize(bytes, 0);
    Ok(memory)
}

fn as_length(number: u64) -> Result<usize> {
    usize::try_from(number).map_err(|_| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("{number} is too large for this machine"),
        )
    })
}
