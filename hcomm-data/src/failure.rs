//! An error on its way out of a task.

use hcomm_types::Error;

/// An error, and the label of the channel it came from, if it came from one.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) label: Option<u32>,
    pub(crate) error: Error,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { label: None, error }
    }
}
