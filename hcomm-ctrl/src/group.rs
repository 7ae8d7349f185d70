//! Ranks of one process that were made together, and the OS threads that hold them.
//!
//! A blocking collective on an OS thread that also holds other ranks of the communicator can never
//! end: they would have to be driven by the thread that is blocked. Moving a communicator to
//! another thread leaves no trace until it is used there, so nobody can be sure at once: a rank
//! that was made or last used on this thread may be on its way to another one. A call that is
//! blocked for [`PATIENCE`] while such ranks are about fails instead of waiting for its deadline.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hcomm_types::{Error, ErrorKind, Rank, Result};

/// How long a blocking call waits for ranks that seem to be held by its own thread. Long: a rank
/// that was moved to another thread may have work to do there before its first call.
const PATIENCE: Duration = Duration::from_secs(20);

/// The ranks of one `init_all`.
#[derive(Debug)]
pub(crate) struct Group {
    made_on: u64,
    /// By rank: the OS thread that used it last, or 0, or [`WORKER`].
    used_on: Vec<AtomicU64>,
}

/// Number of no OS thread of the user: a rank that a worker drives is held by none.
const WORKER: u64 = u64::MAX;

impl Group {
    /// A group of `size` ranks, made on this thread.
    pub(crate) fn new(size: u32) -> Self {
        Self {
            made_on: this_thread(),
            used_on: (0..size).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Notes that a rank is used on this thread.
    pub(crate) fn used_here(&self, rank: Rank) {
        if let Some(used_on) = self.used_on.get(rank.index()) {
            // Only this rank stores it, beside what the others store for each message of theirs.
            let here = this_thread();
            if used_on.load(Ordering::Relaxed) != here {
                used_on.store(here, Ordering::Relaxed);
            }
        }
    }

    /// Notes that a worker drives a rank's latest operation.
    pub(crate) fn used_by_worker(&self, rank: Rank) {
        if let Some(used_on) = self.used_on.get(rank.index()) {
            used_on.store(WORKER, Ordering::Relaxed);
        }
    }

    /// Whether a rank that is blocked on this thread since `blocked` waits for its own thread.
    ///
    /// # Errors
    /// `WouldDeadlock`, with the ranks.
    pub(crate) fn check(&self, rank: Rank, blocked: Duration) -> Result<()> {
        if blocked < PATIENCE {
            return Ok(());
        }
        let here = this_thread();
        let held: Vec<Rank> = self
            .used_on
            .iter()
            .enumerate()
            .filter(|&(other, used_on)| {
                other != rank.index()
                    && match used_on.load(Ordering::Relaxed) {
                        0 => self.made_on == here,
                        used_on => used_on == here,
                    }
            })
            .map(|(other, _)| Rank::from_index(other))
            .collect();
        if held.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = held.iter().map(ToString::to_string).collect();
        Err(Error::new(
            ErrorKind::WouldDeadlock,
            format!(
                "this OS thread also holds rank {} of the communicator",
                names.join(", ")
            ),
        )
        .hint("use the `…_on` form for ranks that share an OS thread, or give each a thread"))
    }
}

/// Number of this OS thread, never reused.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_made_or_used_here_deadlock_after_patience() {
        let group = Group::new(3);
        group.used_here(Rank(0));
        assert!(
            group
                .check(Rank(0), PATIENCE - Duration::from_nanos(1))
                .is_ok()
        );
        let error = group.check(Rank(0), PATIENCE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldDeadlock);
        assert!(error.to_string().contains("rank 1, 2"), "{error}");
    }

    #[test]
    fn ranks_that_a_worker_drives_do_not_count() {
        let group = Group::new(2);
        group.used_here(Rank(0));
        group.used_by_worker(Rank(1));
        assert!(group.check(Rank(0), PATIENCE * 2).is_ok());
        group.used_here(Rank(1));
        assert!(group.check(Rank(0), PATIENCE * 2).is_err());
    }

    #[test]
    fn ranks_on_other_threads_do_not_count() {
        let group = Group::new(2);
        group.used_here(Rank(0));
        std::thread::scope(|scope| {
            scope.spawn(|| group.used_here(Rank(1)));
        });
        assert!(group.check(Rank(0), PATIENCE * 2).is_ok());
    }
}
