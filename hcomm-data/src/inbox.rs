//! Tasks on their way to a worker, and what it says about them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use hcomm_transport::barrier::Often;

use crate::domain::DomainInner;
use crate::driver;
use crate::owned::{Guard, Owned};
use crate::queue::Queue;
use crate::ring::{Line, Popper, Pusher, Ring, ring};
use crate::work::Task;
use crate::worker::Worker;

/// Tasks that fit between a submitter and its worker. The worker takes them over into the queue,
/// which grows, so a submitter waits for it only while it is busy with something else.
const ROOM: usize = 128;

/// The side of a queue that belongs to those who submit, where a worker drives it.
pub(crate) struct Inbox {
    ring: Arc<Ring<Task>>,
    submitter: Owned<Submitter>,
    told: Line<Told>,
    /// OS threads that wait for what the worker tells, and may sleep.
    awaited: AtomicU32,
    /// Whether the last handle of the thread is gone.
    pub(crate) is_closed: AtomicBool,
    fence: Often,
    pub(crate) worker: Arc<Worker>,
}

/// What the worker tells.
struct Told {
    /// How many tasks it had been given when all of them were done.
    done: AtomicUsize,
    failed: AtomicBool,
}

/// What one submitter at a time uses.
pub(crate) struct Submitter {
    pub(crate) pusher: Pusher<Task>,
    /// Queues of the parts of the latest program.
    pub(crate) team: Option<Arc<[Weak<Queue>]>>,
}

/// The end of an inbox that belongs to whoever has locked the queue.
pub(crate) struct Intake {
    pub(crate) popper: Popper<Task>,
    inbox: Arc<Inbox>,
}

impl Inbox {
    pub(crate) fn new(worker: Arc<Worker>) -> (Arc<Self>, Intake) {
        let (pusher, popper) = ring(ROOM);
        let inbox = Arc::new(Self {
            ring: Arc::clone(pusher.ring()),
            submitter: Owned::new(Submitter { pusher, team: None }),
            told: Line(Told {
                done: AtomicUsize::new(0),
                failed: AtomicBool::new(false),
            }),
            awaited: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
            fence: Often::here(),
            worker,
        });
        let intake = Intake {
            popper,
            inbox: Arc::clone(&inbox),
        };
        (inbox, intake)
    }

    /// Makes this OS thread the submitter.
    #[inline]
    pub(crate) fn submitter(&self) -> Guard<'_, Submitter> {
        let here = driver::here();
        let submitter = self.submitter.lock(here);
        submitter.own(here);
        submitter
    }

    pub(crate) fn is_full(&self) -> bool {
        self.ring.is_full()
    }

    /// Whether there are tasks that the worker has not taken over.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.ring.pushed() != self.ring.popped()
    }

    /// Whether all that was submitted is done, or was dropped after a failure.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.told.0.done.load(Ordering::Acquire) == self.ring.pushed()
    }

    /// Whether the queue has failed.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.told.0.failed.load(Ordering::Acquire)
    }

    /// A number that changes whenever the worker has told something, or has made room.
    pub(crate) fn tally(&self) -> usize {
        let done = self.told.0.done.load(Ordering::Acquire);
        done.wrapping_add(self.ring.popped())
            .wrapping_add(self.has_failed().into())
    }

    /// After a submission: wakes the worker if it sleeps.
    #[inline]
    pub(crate) fn nudge(&self) {
        self.fence.fence();
        if self.worker.is_drowsy() {
            self.worker.wake();
        }
    }

    /// Counts somebody who will look at what the worker tells, and may sleep until that changes.
    pub(crate) fn await_it(&self) {
        self.awaited.fetch_add(1, Ordering::SeqCst);
    }

    /// The end of [`Inbox::await_it`].
    pub(crate) fn await_no_more(&self) {
        self.awaited.fetch_sub(1, Ordering::Release);
    }
}

impl Intake {
    /// Says that all tasks taken over are done.
    pub(crate) fn tell_done(&self) {
        let popped = self.popper.popped();
        let done = &self.inbox.told.0.done;
        // Written by whoever holds the lock of the queue, and only by them.
        if done.load(Ordering::Relaxed) != popped {
            done.store(popped, Ordering::Release);
        }
    }

    pub(crate) fn tell_failed(&self) {
        self.inbox.told.0.failed.store(true, Ordering::Release);
    }

    /// Wakes those who wait for what was told.
    pub(crate) fn wake(&self, domain: &DomainInner) {
        // Pairs with the barrier of those who go to sleep: they are seen, or have seen it.
        self.inbox.fence.fence();
        if self.inbox.awaited.load(Ordering::Relaxed) != 0 {
            domain.waiter().wake();
        }
    }
}
