//! Places in the order of a thread's tasks, to be waited for.

use std::fmt;
use std::time::Duration;

use hcomm_types::Result;

use super::Thread;
use crate::driver::{TimedOut, Wait};

impl Thread {
    /// The end of what has been put on this thread so far.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark {
            thread: self.clone(),
            position: self.queue.position(),
        }
    }
}

/// A place in the order of a [`Thread`]'s tasks, made by [`Thread::mark`]: between those that were
/// put there before and those that were put there later. It is reached when all before it have run.
/// Transfers that were posted for them may still be on their way, unless a [`drain`](Thread::drain)
/// was the last of them; what a [program](crate::Program) has posted has completed.
///
/// What is put on the thread later is not waited for. To drop a mark does nothing.
#[derive(Clone)]
pub struct Mark {
    thread: Thread,
    position: usize,
}

impl Mark {
    /// The thread.
    #[must_use]
    pub const fn thread(&self) -> &Thread {
        &self.thread
    }

    /// Whether it is reached, after running what can run without waiting, as
    /// [`Thread::drive`] does.
    ///
    /// # Errors
    /// The first cause, if the thread has failed.
    pub fn is_reached(&self) -> Result<bool> {
        if let Some(reached) = self.look() {
            return reached.map(|()| true);
        }
        let driven = self.thread.drive();
        // What failed may come later.
        match self.look() {
            Some(reached) => reached.map(|()| true),
            None => driven.map(|_| false),
        }
    }

    /// Drives all threads of this OS thread until it is reached. `None` waits as long as the domain
    /// says, zero for ever.
    ///
    /// # Errors
    /// The first cause of the thread. A deadline is one: see [`Thread::synchronize`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        let queue = &self.thread.queue;
        self.wait_until(timeout)
            .unwrap_or_else(|TimedOut { elapsed }| Err(queue.time_out(elapsed)))
    }

    /// The same for at most so long; whether it was reached. That it was not is no failure: the
    /// tasks go on.
    ///
    /// # Errors
    /// The first cause, if the thread has failed.
    pub fn wait_for(&self, time: Duration) -> Result<bool> {
        if time.is_zero() {
            return self.is_reached();
        }
        match self.wait_until(Some(time)) {
            Ok(reached) => reached.map(|()| true),
            Err(TimedOut { .. }) => Ok(false),
        }
    }

    fn wait_until(&self, timeout: Option<Duration>) -> Result<Result<()>, TimedOut> {
        let queue = &self.thread.queue;
        if let Some(reached) = self.look() {
            return Ok(reached);
        }
        if let Err(cause) = queue.come_home() {
            return Ok(self.look().unwrap_or(Err(cause)));
        }
        let mut wait = Wait::new(std::iter::once(queue), &queue.domain, timeout);
        wait.until(|| self.look())
    }

    /// The end of the wait, if that has come.
    fn look(&self) -> Option<Result<()>> {
        match self.thread.queue.has_passed(self.position) {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(cause) => Some(Err(cause)),
        }
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mark")
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}
