//! How a check ends.

use std::fmt;
use std::io;

use hcomm_types::Error;
use serde::{Deserialize, Serialize};

/// Why a check ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It does not apply: names what is missing.
    Skip(String),
    /// It failed: found and expected.
    Fail(String),
}

/// The plugin did not do as promised.
pub(crate) fn fail(text: impl Into<String>) -> Stop {
    Stop::Fail(text.into())
}

/// Fails unless something holds.
pub(crate) fn ensure(holds: bool, text: impl FnOnce() -> String) -> Result<(), Stop> {
    if holds {
        Ok(())
    } else {
        Err(Stop::Fail(text()))
    }
}

/// Fails unless both are equal.
pub(crate) fn ensure_eq<T: PartialEq + fmt::Debug>(
    what: &str,
    found: T,
    expected: T,
) -> Result<(), Stop> {
    ensure(found == expected, || {
        format!("{what}: found {found:?}, expected {expected:?}")
    })
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Fail(error.to_string())
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Fail(format!("the suite's own system call: {error}"))
    }
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// As promised.
    Passed,
    /// Does not apply, because of this.
    Skipped(String),
    /// Not as promised.
    Failed(String),
}

impl From<Result<(), Stop>> for Verdict {
    fn from(outcome: Result<(), Stop>) -> Self {
        match outcome {
            Ok(()) => Self::Passed,
            Err(Stop::Skip(missing)) => Self::Skipped(missing),
            Err(Stop::Fail(text)) => Self::Failed(text),
        }
    }
}
