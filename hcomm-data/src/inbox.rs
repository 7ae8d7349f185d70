//! Tasks on their way to a worker, and what it says about them.

use std::sync::{Arc, Weak};

use hcomm_transport::Waiter;
use hcomm_transport::barrier::Often;
use hcomm_transport::sync::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

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
    /// How many tasks are over.
    passed: AtomicUsize,
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
                passed: AtomicUsize::new(0),
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

    /// How many tasks were submitted so far.
    pub(crate) fn submitted(&self) -> usize {
        self.ring.pushed()
    }

    /// How many of them are over; those that were dropped after a failure are not.
    pub(crate) fn passed(&self) -> usize {
        self.told.0.passed.load(Ordering::Acquire)
    }

    /// Whether the queue has failed.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.told.0.failed.load(Ordering::Acquire)
    }

    /// A number that changes whenever the worker has told something, or has made room.
    pub(crate) fn tally(&self) -> usize {
        let done = self.told.0.done.load(Ordering::Acquire);
        done.wrapping_add(self.passed())
            .wrapping_add(self.ring.popped())
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

    /// Says how many tasks are over.
    pub(crate) fn tell_passed(&self, passed: usize) {
        let told = &self.inbox.told.0.passed;
        // Written as `done` is.
        if told.load(Ordering::Relaxed) != passed {
            told.store(passed, Ordering::Release);
        }
    }

    pub(crate) fn tell_failed(&self) {
        self.inbox.told.0.failed.store(true, Ordering::Release);
    }

    /// Wakes those who wait for what was told.
    pub(crate) fn wake(&self, waiter: &dyn Waiter) {
        // Pairs with the barrier of those who go to sleep: they are seen, or have seen it.
        self.inbox.fence.fence();
        if self.inbox.awaited.load(Ordering::Relaxed) != 0 {
            waiter.wake();
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use hcomm_transport::sync::model::{Plain, SleepyWaiter, Wrong, check, check_when, check_with};
    use hcomm_transport::{Phase, Watch};
    use hcomm_types::Deadline;
    use loom::thread;

    use super::*;

    /// A worker's side of one inbox, as its rounds go: it takes over, does, tells, and sleeps.
    fn work(waiter: &dyn Waiter, mut intake: Intake, tasks: usize, mut each: impl FnMut(usize)) {
        let inbox = Arc::clone(&intake.inbox);
        let mut phase = Phase::default();
        loop {
            let mut happened = false;
            while intake.popper.pop().is_some() {
                each(intake.popper.popped());
                happened = true;
            }
            if happened {
                intake.tell_done();
                intake.wake(waiter);
            }
            if intake.popper.popped() == tasks {
                return;
            }
            if !happened {
                let mut look = || inbox.has_news();
                inbox.worker.pause_unless(&mut phase, &[], &mut look);
            }
        }
    }

    /// A caller that waits until `done`, as the rounds of its wait go: it sleeps unless something
    /// was told since the round before.
    fn wait(waiter: &dyn Waiter, inbox: &Inbox, done: impl Fn() -> bool) {
        inbox.await_it();
        let mut told = inbox.tally();
        loop {
            let now = inbox.tally();
            let happened = now != told;
            told = now;
            if done() {
                break;
            }
            if !happened {
                let mut look = || told != inbox.tally();
                waiter.pause(
                    &mut Phase::default(),
                    &mut Watch {
                        until: Deadline::NEVER,
                        interests: &[],
                        devices: &[],
                        look: &mut look,
                    },
                );
            }
        }
        inbox.await_no_more();
    }

    fn inbox() -> (Arc<SleepyWaiter>, Arc<Inbox>, Intake) {
        let waiter = Arc::new(SleepyWaiter::default());
        let worker = Worker::without_thread(Arc::clone(&waiter) as Arc<dyn Waiter>);
        let (inbox, intake) = Inbox::new(Arc::new(worker));
        (waiter, inbox, intake)
    }

    fn submit(inbox: &Inbox) {
        let mut submitter = inbox.submitter();
        assert!(submitter.pusher.push(Task::WaitThread(0)).is_ok());
        drop(submitter);
        inbox.nudge();
    }

    /// Tasks are submitted to a worker that may be about to sleep, by a caller that then does the
    /// same.
    fn both_may_sleep(tasks: usize) {
        let (waiter, inbox, intake) = inbox();
        let done = Arc::new([Plain::new(0), Plain::new(0)]);
        let working = {
            let (waiter, done) = (Arc::clone(&waiter), Arc::clone(&done));
            thread::spawn(move || {
                work(&*waiter, intake, tasks, |task| done[task - 1].set(task));
            })
        };
        for _ in 0..tasks {
            submit(&inbox);
        }
        wait(&*waiter, &inbox, || inbox.is_done());
        for task in 0..tasks {
            assert_eq!(done[task].get(), task + 1);
        }
        working.join().unwrap();
    }

    #[test]
    fn no_wake_is_lost() {
        check(|| both_may_sleep(1));
    }

    #[test]
    fn no_wake_is_lost_of_two_tasks() {
        check_with(2, || both_may_sleep(2));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn without_fences_one_is() {
        check_when(Wrong::NoFences, || both_may_sleep(1));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_order_a_task_is_seen_by_halves() {
        check_when(Wrong::NoOrder, || both_may_sleep(1));
    }

    /// Only the caller may sleep here: the worker looks again and again, as it does when it has a
    /// core.
    fn caller_sleeps() {
        let (waiter, inbox, mut intake) = inbox();
        submit(&inbox);
        let telling = Arc::clone(&waiter);
        let working = thread::spawn(move || {
            assert!(intake.popper.pop().is_some());
            intake.tell_done();
            intake.wake(&*telling);
        });
        wait(&*waiter, &inbox, || inbox.is_done());
        working.join().unwrap();
    }

    #[test]
    fn no_wake_of_a_caller_is_lost() {
        check(caller_sleeps);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn without_fences_one_of_a_caller_is() {
        check_when(Wrong::NoFences, caller_sleeps);
    }

    /// What has failed is done as well, and whoever sees that sees the failure.
    fn failure_comes_first() {
        let (waiter, inbox, mut intake) = inbox();
        submit(&inbox);
        let telling = Arc::clone(&waiter);
        let working = thread::spawn(move || {
            assert!(intake.popper.pop().is_some());
            intake.tell_failed();
            intake.tell_done();
            intake.wake(&*telling);
        });
        wait(&*waiter, &inbox, || inbox.is_done());
        assert!(inbox.has_failed());
        working.join().unwrap();
    }

    #[test]
    fn who_sees_the_end_sees_the_failure() {
        check(failure_comes_first);
    }

    #[test]
    #[should_panic]
    fn without_order_it_is_not_seen() {
        check_when(Wrong::NoOrder, failure_comes_first);
    }
}
