//! Why a command of xtask did not get through.

use std::fmt;
use std::process::ExitStatus;

/// What went wrong, with the next step where there is one.
#[derive(Debug)]
pub(crate) enum Error {
    /// A program could not be started or listened to.
    Start(String, std::io::Error),
    /// A program ended otherwise than with 0.
    Ended(String, ExitStatus),
    /// Something that is needed is not on this system.
    Missing(String),
    /// A step of `test` failed; its own output has told why.
    Step(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(program, cause) => write!(f, "{program}: {cause}"),
            Self::Ended(line, status) => write!(f, "`{line}` ended with {status}"),
            Self::Missing(what) => f.write_str(what),
            Self::Step(name) => write!(f, "step {name} failed; see above"),
        }
    }
}
