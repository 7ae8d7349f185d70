//! Every primitive of the data plane, many times, each between two marks in the trace of system
//! calls: what `cargo xtask syscalls` runs under strace, on two ranks.

use std::fs::File;
use std::io::Write as _;

use hcomm::prelude::*;
use hcomm::{Error, Result};

use primitives::Watcher;

#[path = "../tests/primitives/mod.rs"]
mod primitives;

/// Writes into `/dev/null`, one call each, which strace shows with its text.
struct Marks(File);

impl Marks {
    fn mark(&self, what: &str, name: &str, rounds: u32) -> Result<()> {
        (&self.0)
            .write_all(format!("hcomm {what} {rounds} {name}\n").as_bytes())
            .map_err(null)
    }
}

impl Watcher for Marks {
    fn begin(&mut self, name: &str, rounds: u32) -> Result<()> {
        self.mark("begin", name, rounds)
    }

    fn end(&mut self, name: &str, rounds: u32) -> Result<()> {
        self.mark("end", name, rounds)
    }
}

fn null(error: std::io::Error) -> Error {
    Error::new(ErrorKind::System, format!("/dev/null: {error}"))
}

fn main() -> Result<()> {
    let rounds = match std::env::args().nth(1).map(|word| word.parse()) {
        None => 100_000,
        Some(Ok(rounds)) => rounds,
        Some(Err(error)) => {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("rounds: {error}"),
            ));
        }
    };
    let mut marks = Marks(
        File::options()
            .write(true)
            .open("/dev/null")
            .map_err(null)?,
    );
    // What the trace has to show, so that an empty one proves something.
    marks.begin("control", rounds)?;
    for _ in 0..rounds {
        std::thread::yield_now();
    }
    marks.end("control", rounds)?;
    let comm = Communicator::from_env()?;
    primitives::run(&comm, rounds, &mut marks)?;
    comm.close()
}
