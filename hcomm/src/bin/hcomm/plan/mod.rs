//! `hcomm plan`: algorithms and their plans, without running anything here.

mod explain;
mod list;
mod read;
mod show;
mod simulate;
mod verify;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use hcomm::{DEFAULT_BUFFER_BYTES, Layout};
use hcomm_coll::cost::{Chooser, Machine, Reach, Site, Terms};
use hcomm_coll::plan::{Operation, Shape};
use hcomm_types::{DataType, Error, ErrorKind, Rank, Reduction, Result};

use crate::sizes::parse_bytes;

pub(crate) use read::read;

/// Lists algorithms, shows plans, and proves that a plan in a file is right.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    command: PlanCommand,
}

#[derive(Debug, Subcommand)]
enum PlanCommand {
    /// The algorithms; for an operation which can plan it and which one is taken
    List(list::ListArgs),
    /// What each way of an operation should take, which one is taken, and what would change that
    Explain(explain::ExplainArgs),
    /// The plan of all ranks for an operation, as text or as a plan file
    Show(show::ShowArgs),
    /// Run the plans of an operation on a cluster that is not here: time, load of each wire, critical path
    Simulate(simulate::SimulateArgs),
    /// Prove that the plan in a file is right, or say everything that is wrong with it
    Verify(verify::VerifyArgs),
}

/// Lists, shows, simulates or verifies.
///
/// # Errors
/// If there is no plan, or files cannot be read or written.
pub(crate) fn plan(args: &PlanArgs) -> Result<u8> {
    match &args.command {
        PlanCommand::List(args) => list::list(args),
        PlanCommand::Explain(args) => explain::explain(args),
        PlanCommand::Show(args) => show::show(args),
        PlanCommand::Simulate(args) => simulate::simulate(args),
        PlanCommand::Verify(args) => verify::verify(args),
    }
}

/// What is to be planned, but for the operation.
#[derive(Debug, Args)]
struct ShapeArgs {
    /// Ranks
    #[arg(short = 'p', long = "ranks", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// Size of the larger buffer, with K, M or G (1024), as in `hcomm perf`
    #[arg(short = 'b', long = "bytes", default_value = "1M", value_parser = parse_bytes)]
    bytes: u64,
    /// Data type
    #[arg(short = 'd', long = "dtype", default_value = "fp32")]
    dtype: DataType,
    /// Reduce operation: sum, prod, max, min or avg
    #[arg(short = 'o', long = "redop", default_value = "sum")]
    redop: Reduction,
    /// Root of rooted operations
    #[arg(short = 'r', long = "root", default_value_t = 0)]
    root: u32,
    /// Input and output in one buffer (a broadcast always has one)
    #[arg(long)]
    in_place: bool,
    /// Only what combines in rank order, as with HCOMM_DETERMINISTIC=1
    #[arg(long)]
    deterministic: bool,
    /// Whether ranks that map each other's memory can also read what the others lend: 1 or 0
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    lends: u8,
    /// Scratch memory of each rank for one operation [default: that of a communicator with a
    /// buffer of 16M]
    #[arg(long, value_parser = parse_bytes)]
    scratch: Option<u64>,
}

impl ShapeArgs {
    /// The shape of an operation.
    ///
    /// # Errors
    /// `InvalidArgument` if it makes no sense.
    fn shape(&self, op: PlanOp) -> Result<Shape> {
        let operation = op.operation(Rank(self.root));
        let unit = self.dtype.size() as u64 * operation.parts(self.ranks);
        let count = match (op, self.bytes) {
            (PlanOp::Barrier, _) | (_, 0) => 0,
            (_, bytes) => (bytes / unit).max(1),
        };
        let shape = Shape {
            operation,
            ranks: self.ranks,
            count: count.into(),
            dtype: self.dtype,
            redop: self.redop,
            in_place: self.in_place || op == PlanOp::Broadcast,
        };
        shape
            .validate()
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))?;
        Ok(shape)
    }

    /// What ways may use and have to keep.
    ///
    /// # Errors
    /// `InvalidArgument` if a communicator's usual buffer is too small for so many ranks.
    fn terms(&self, op: PlanOp) -> Result<Terms> {
        let layout = Layout::new(self.ranks, DEFAULT_BUFFER_BYTES);
        let scratch_bytes = match (self.scratch, &layout) {
            (Some(bytes), _) => bytes,
            (None, Ok(layout)) if op == PlanOp::SendRecv => layout.inbox_bytes(),
            (None, Ok(layout)) => layout.half_bytes(),
            (None, Err(error)) => {
                return Err(error.clone().hint("say how much there is: --scratch 16M"));
            }
        };
        Ok(Terms {
            scratch_bytes,
            stream_bytes: layout.map_or(0, |layout| layout.stream_bytes()),
            deterministic: self.deterministic,
            lends: self.lends == 1,
        })
    }
}

/// Where the ranks would run.
#[derive(Debug, Args)]
struct SiteArgs {
    /// Whether all ranks of a host map each other's memory, so that they can send packets: 1 or 0
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    packets: u8,
    /// The host of each rank, as 0,0,1,1 [default: all on one]. Between hosts there are wires of 10 µs
    /// and 10 GB/s
    #[arg(long, value_delimiter = ',')]
    groups: Vec<u32>,
    /// Cores that the ranks of a host have together [default: those of this process]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    cores: Option<u32>,
    /// A tuning file, as `hcomm tune` writes it [default: built-in numbers]
    #[arg(long, value_name = "FILE")]
    tuning: Option<PathBuf>,
}

impl SiteArgs {
    /// The cost model for these ranks.
    ///
    /// # Errors
    /// `InvalidArgument` if the tuning file is none.
    fn chooser(&self) -> Result<Chooser> {
        let machine = match &self.tuning {
            Some(path) => crate::tune::read(path)?,
            None => Machine::built_in(),
        };
        let here = || std::thread::available_parallelism().map_or(1, |cores| cores.get()) as u32;
        Ok(Chooser::new(
            machine,
            Site {
                cores: self.cores.unwrap_or_else(here),
                hosts: (!self.groups.is_empty()).then(|| self.groups.clone().into()),
                near: if self.packets == 1 {
                    Reach::Mapped
                } else {
                    // As through a copy of the kernel.
                    Reach::Wire {
                        latency_ns: 2_000,
                        byte_ps: 200,
                    }
                },
                far: Reach::Wire {
                    latency_ns: 10_000,
                    byte_ps: 100,
                },
            },
        ))
    }
}

/// What can be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum PlanOp {
    AllReduce,
    Reduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Scatter,
    Gather,
    AllToAll,
    Barrier,
    /// From rank 0 to rank 1
    SendRecv,
}

impl PlanOp {
    const fn operation(self, root: Rank) -> Operation {
        match self {
            Self::AllReduce => Operation::AllReduce,
            Self::Reduce => Operation::Reduce { root },
            Self::AllGather => Operation::AllGather,
            Self::ReduceScatter => Operation::ReduceScatter,
            Self::Broadcast => Operation::Broadcast { root },
            Self::Scatter => Operation::Scatter { root },
            Self::Gather => Operation::Gather { root },
            Self::AllToAll => Operation::AllToAll,
            Self::Barrier => Operation::Barrier,
            Self::SendRecv => Operation::SendRecv {
                from: Rank(0),
                to: Rank(1),
            },
        }
    }
}
