//! The `hcomm` command: measure, launch, look.

#![forbid(unsafe_code)]

mod bind;
mod doctor;
mod launch;
mod output;
mod pair;
mod perf;
mod plan;
mod run;
mod sizes;
mod topo;
mod transports;
mod tune;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use hcomm_types::{Error, ErrorKind, Result};
use tracing_subscriber::EnvFilter;

/// Communication between ranks: measure it, start programs that use it, look at its links.
#[derive(Debug, Parser)]
#[command(name = "hcomm", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure a collective or a primitive, and check its results
    Perf(perf::PerfArgs),
    /// List algorithms, show plans, prove that a plan is right
    Plan(plan::PlanArgs),
    /// Measure what this machine costs, for the model that chooses algorithms
    Tune(tune::TuneArgs),
    /// Start N processes of a program on this host as ranks
    Run(run::RunArgs),
    /// Look for what keeps hcomm from working or from being fast, and say what to do
    Doctor(doctor::DoctorArgs),
    /// Show the rank graph: discovered, or loaded from a file
    Topo(topo::TopoArgs),
    /// Show each transport plugin: used, or refused because of what
    Transports(transports::TransportsArgs),
    /// One end of a link that is tried (used by `transports` and `topo`)
    #[command(hide = true)]
    PairEnd {
        /// Name of the transport.
        transport: String,
        /// Name of its device.
        device: String,
    },
    /// Becomes a program tied to the life of the process that started it (used by `run`)
    #[command(hide = true)]
    ExecTied {
        /// Number of the process to be tied to.
        launcher: u32,
        /// Limit of descriptors that the program is to have.
        #[arg(long)]
        descriptors: Option<u64>,
        /// Cores that it is to run on; all if none are named.
        #[arg(long, value_delimiter = ',')]
        cores: Vec<usize>,
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        program: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match (start_log(), cli.command) {
        // It tells of a bad filter itself, beside everything else.
        (log, Command::Doctor(args)) => doctor::doctor(&args, log.err().as_ref()),
        (Ok(()), command) => dispatch(command),
        (Err(error), _) => Err(error),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::complain(&format!("hcomm: {error}"));
            ExitCode::from(if error.kind() == ErrorKind::InvalidArgument {
                2
            } else {
                1
            })
        }
    }
}

fn dispatch(command: Command) -> Result<u8> {
    match command {
        Command::Perf(args) => perf::perf(&args),
        Command::Doctor(args) => doctor::doctor(&args, None),
        Command::Plan(args) => plan::plan(&args),
        Command::Tune(args) => tune::tune(&args),
        Command::Run(args) => run::run(args),
        Command::Topo(args) => topo::topo(&args),
        Command::Transports(args) => transports::transports(&args),
        Command::PairEnd { transport, device } => pair::end(&transport, &device),
        Command::ExecTied {
            launcher,
            descriptors,
            cores,
            program,
        } => match launch::exec_tied(launcher, descriptors, &cores, &program)? {},
    }
}

/// Events to stderr: warnings, or what `HCOMM_LOG` asks for.
fn start_log() -> Result<()> {
    let filter = match std::env::var("HCOMM_LOG") {
        Ok(text) => EnvFilter::try_new(&text).map_err(|error| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("HCOMM_LOG=`{text}`: {error}"),
            )
            .hint("write a level (`debug`) or targets with levels (`hcomm=debug,warn`)")
        })?,
        Err(std::env::VarError::NotPresent) => EnvFilter::new("warn"),
        Err(error) => {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("HCOMM_LOG: {error}"),
            ));
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would tell of a closed stderr on stderr, and panic.
        .log_internal_errors(false)
        .init();
    Ok(())
}
