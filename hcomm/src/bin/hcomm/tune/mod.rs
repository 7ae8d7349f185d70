//! `hcomm tune`: measures what this machine costs, for the cost model.
//!
//! Started by hand it launches two ranks; they run short plans made for the purpose, the same way as
//! all others run, and from their times come the numbers of a tuning file. With `--check` the ranks
//! then run collectives as the new numbers choose them, and show what was predicted beside it.

mod calibrate;
mod check;
mod probe;
mod stopwatch;

use std::fs;
use std::path::PathBuf;

use clap::Args;
use hcomm::{Communicator, Options};
use hcomm_coll::cost::Machine;
use hcomm_types::{Error, ErrorKind, Rank, Result};

use crate::bind::Bind;
use crate::launch::{self, Job};
use crate::output;

/// Bytes of the communicator buffer: calibration plans work in it at distances up to this.
const BUFFER_BYTES: u64 = 256 << 20;

/// Measures this machine for the cost model, in a few seconds, and writes a tuning file:
/// `HCOMM_TUNING=FILE` uses it. Nothing else should run meanwhile.
#[derive(Clone, Debug, Args)]
pub(crate) struct TuneArgs {
    /// Ranks: an even number. Two measure news, memory and arithmetic; more than there are cores
    /// measure what a change of ranks on a core costs, and take all else from --from
    #[arg(short = 'p', long = "ranks", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: u32,
    /// Where to write; `-` prints
    #[arg(short = 'o', long = "output", default_value = "-")]
    output: PathBuf,
    /// A tuning file for what is not measured [default: built-in numbers]
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Then measure collectives and show what was predicted beside it, on stderr
    #[arg(long)]
    check: bool,
    /// Cores of the ranks [default: core, unless there are too few]
    #[arg(long, value_enum)]
    bind: Option<Bind>,
}

/// Measures, in whichever role this process has.
///
/// # Errors
/// What failed, named by rank.
pub(crate) fn tune(args: &TuneArgs) -> Result<u8> {
    if !args.ranks.is_multiple_of(2) {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("-p {}: ranks measure in pairs", args.ranks),
        )
        .hint("take an even number"));
    }
    let base = match &args.from {
        Some(path) => read(path)?,
        None => Machine::built_in(),
    };
    if hcomm::launched()?.is_some() {
        return as_rank(args, base);
    }
    let myself = std::env::current_exe()
        .map_err(|error| Error::system("finding this program's own file", error))?;
    let mut program = vec![myself.into_os_string()];
    program.extend(std::env::args_os().skip(1));
    launch::run(&Job {
        command: "hcomm tune",
        ranks: args.ranks,
        program,
        prefix: false,
        cores: Bind::cores(args.bind, Bind::Core, args.ranks)?,
    })
}

/// Reads a tuning file.
///
/// # Errors
/// `InvalidArgument` if there is none, with what is wrong and where.
pub(crate) fn read(path: &std::path::Path) -> Result<Machine> {
    let wrong = |words: &str| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("{}: {words}", path.display()),
        )
        .hint("`hcomm tune -o FILE` writes one")
    };
    let text =
        fs::read_to_string(path).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    Machine::from_json(&text).map_err(|error| wrong(error.detail()))
}

fn as_rank(args: &TuneArgs, base: Machine) -> Result<u8> {
    let options = Options::new(
        Options::from_env()?
            .settings()
            .clone()
            .with_buffer_bytes(BUFFER_BYTES),
    );
    let comm = Communicator::from_env_with(&options)?;
    let shares_cores = comm.costs().1.cores < comm.size();
    let mut machine = if shares_cores {
        calibrate::switches(&comm, base)?
    } else {
        calibrate::all(&comm, base)?
    };
    let leads = comm.rank() == Rank(0);
    if leads {
        machine.measured = calibrate::when_and_where(&comm)?;
        let text = machine.to_json()?;
        if args.output.as_os_str() == "-" {
            let _ = output::print(text.trim_end())?;
        } else {
            fs::write(&args.output, text).map_err(|error| {
                Error::system(format!("writing {}", args.output.display()), error)
            })?;
        }
    }
    if args.check {
        check::check(&comm, &machine)?;
    }
    comm.close()?;
    Ok(0)
}
