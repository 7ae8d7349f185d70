//! `hcomm run`: the launcher for one host.

use std::ffi::OsString;

use clap::Args;
use hcomm_types::Result;

use crate::bind::Bind;
use crate::launch::{self, Job};

/// Starts N processes of a program on this host, as ranks 0 to N-1. Each gets RANK, WORLD_SIZE,
/// LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and a job key. When one fails, the others
/// have 5 seconds to report and are then ended; the exit code is that of the first that failed.
/// What a rank leaves behind in its process group ends with the job. A second Ctrl-C ends
/// everything at once. On clusters use torchrun, mpirun or srun instead.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Number of ranks
    #[arg(short = 'n', long = "ranks", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// Pass output on as it is, without the rank's number before each line
    #[arg(long)]
    no_prefix: bool,
    /// Cores of the ranks [default: share, unless there is one rank or there are too few cores]
    #[arg(long, value_enum)]
    bind: Option<Bind>,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// Runs the job.
///
/// # Errors
/// If it cannot be started.
pub(crate) fn run(args: RunArgs) -> Result<u8> {
    launch::run(&Job {
        command: "hcomm run",
        ranks: args.ranks,
        program: args.program,
        prefix: !args.no_prefix,
        cores: Bind::cores(args.bind, Bind::Share, args.ranks)?,
    })
}
