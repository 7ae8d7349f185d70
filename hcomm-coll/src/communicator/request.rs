//! Handles of operations that were put on a thread.

use std::time::Duration;

use hcomm_data::Mark;
use hcomm_types::{Rank, Result};

/// An operation that was put on a [`Thread`](hcomm_data::Thread), and everything before it there.
/// It goes on whether this handle is asked or not: while a worker drives the thread by itself, else
/// in any call of the OS thread that used the thread last. To drop the handle does nothing.
///
/// A handle may move to another OS thread. If that one asks, it is the one that drives the thread
/// from then on.
///
/// What is put on the thread later is not waited for, and what fails later does not change that an
/// operation is done.
#[derive(Clone, Debug)]
pub struct Request {
    call: &'static str,
    rank: Rank,
    mark: Mark,
}

impl Request {
    pub(super) const fn new(call: &'static str, rank: Rank, mark: Mark) -> Self {
        Self { call, rank, mark }
    }

    /// Whether it is done, after running what can run without waiting.
    ///
    /// # Errors
    /// Why it failed: see [`Communicator`](super::Communicator).
    pub fn test(&self) -> Result<bool> {
        self.told(self.mark.is_reached())
    }

    /// Returns when it is done. The deadline is that of the communicator
    /// (`HCOMM_EXEC_TIMEOUT`), from this call on.
    ///
    /// # Errors
    /// Why it failed, `Timeout` at the deadline: see [`Communicator`](super::Communicator).
    pub fn wait(&self) -> Result<()> {
        self.told(self.mark.wait(None))
    }

    /// Waits until it is done, but at most so long; whether it is done. That it is not is no
    /// failure: it goes on, and may be waited for again.
    ///
    /// # Errors
    /// Why it failed: see [`Communicator`](super::Communicator).
    pub fn wait_for(&self, time: Duration) -> Result<bool> {
        self.told(self.mark.wait_for(time))
    }

    fn told<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.in_call(self.call).at_rank(self.rank))
    }
}
