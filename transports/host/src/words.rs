//! Falling asleep and waking up, as steps on the words of a bell.
//!
//! Who falls asleep lists itself, runs the seldom half of the barrier, and looks once more; who has
//! done something runs the often half and looks who is listed. So either the look finds what was
//! done, or the ringer finds the sleeper.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;

use crate::barrier;

/// A word on which threads can sleep: the kernel's, or a model's.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn fetch_add(&self, value: u32, order: Ordering);
    fn fetch_sub(&self, value: u32, order: Ordering);
    /// Sleeps while the word is `seen`, until it is woken or for `timeout`, or shorter.
    fn sleep(&self, seen: u32, timeout: Duration);
    /// Wakes all who sleep.
    fn wake(&self);
}

impl Word for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        Self::load(self, order)
    }

    fn fetch_add(&self, value: u32, order: Ordering) {
        Self::fetch_add(self, value, order);
    }

    fn fetch_sub(&self, value: u32, order: Ordering) {
        Self::fetch_sub(self, value, order);
    }

    fn sleep(&self, seen: u32, timeout: Duration) {
        let timeout = rustix::fs::Timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // Every outcome (rung, changed meanwhile, timed out, a signal) means: look again.
        let _ = futex::wait(self, futex::Flags::empty(), seen, Some(&timeout));
    }

    fn wake(&self) {
        // A failure could only mean a bad address, which this is not.
        let _ = futex::wake(self, futex::Flags::empty(), i32::MAX as u32);
    }
}

/// The words, borrowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'a, W = AtomicU32> {
    /// What sleepers sleep on.
    pub(crate) sequence: &'a W,
    /// How many sleep on `sequence`, or are about to.
    pub(crate) sleepers: &'a W,
    /// How many sleep otherwise, or are about to.
    pub(crate) pollers: &'a W,
}

impl<'a, W: Word> Words<'a, W> {
    /// Whether a ring would wake somebody. The ringer's fence comes before.
    #[inline]
    pub(crate) fn somebody_sleeps(self) -> bool {
        self.sleepers.load(Ordering::Relaxed) | self.pollers.load(Ordering::Relaxed) != 0
    }

    /// Wakes those who sleep on `sequence`. The ringer's fence comes before.
    pub(crate) fn wake_sleepers(self) {
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.sequence.fetch_add(1, Ordering::Release);
            self.sequence.wake();
        }
    }

    /// Sleeps on `sequence` unless `look`, which ringers can see coming, finds something. Whether
    /// it slept.
    pub(crate) fn sleep(self, timeout: Duration, look: &mut dyn FnMut() -> bool) -> bool {
        let _listed = Listed::new(self.sleepers);
        let seen = self.sequence.load(Ordering::Acquire);
        if look() {
            return false;
        }
        self.sequence.sleep(seen, timeout);
        true
    }

    /// Being counted among those who sleep otherwise. The look comes after.
    pub(crate) fn list_poller(self) -> Listed<'a, W> {
        Listed::new(self.pollers)
    }
}

/// Being counted among those that a ring has to wake.
pub(crate) struct Listed<'a, W: Word>(&'a W);

impl<'a, W: Word> Listed<'a, W> {
    fn new(count: &'a W) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence of the ringer: either it sees us, or our look sees what it did.
        barrier::seldom();
        Self(count)
    }
}

impl<W: Word> Drop for Listed<'_, W> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(loom)]
pub(crate) mod model;

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use loom::thread;

    use super::model::SleepyWaiter;
    use super::*;
    use crate::sync;
    use crate::sync::model::{Wrong, check, check_when};
    use crate::waiter::Waiter;

    #[derive(Default)]
    struct Bell {
        waiter: SleepyWaiter,
        records: sync::AtomicU64,
    }

    impl Bell {
        /// Waits for so many records, as the waiter does when it has spun for long enough.
        fn wait(&self, records: u64) {
            let mut look = || self.records.load(Ordering::Acquire) >= records;
            while !look() {
                self.waiter.words().sleep(Duration::MAX, &mut look);
            }
        }

        /// Records: a store, the often side's fence, a look.
        fn record(&self, records: u64) {
            self.records.store(records, Ordering::Release);
            self.waiter.wake();
        }
    }

    fn one_sleeps() {
        let bell = Arc::new(Bell::default());
        let sleeper = Arc::clone(&bell);
        let sleeper = thread::spawn(move || sleeper.wait(1));
        bell.record(1);
        sleeper.join().unwrap();
    }

    #[test]
    fn no_wake_is_lost() {
        check(one_sleeps);
    }

    #[test]
    fn no_wake_is_lost_of_the_second_record() {
        check(|| {
            let bell = Arc::new(Bell::default());
            let sleeper = Arc::clone(&bell);
            let sleeper = thread::spawn(move || {
                sleeper.wait(1);
                sleeper.wait(2);
            });
            bell.record(1);
            bell.record(2);
            sleeper.join().unwrap();
        });
    }

    #[test]
    fn no_wake_is_lost_of_two_who_sleep() {
        check(|| {
            let bell = Arc::new(Bell::default());
            let sleepers = [1, 1].map(|records| {
                let bell = Arc::clone(&bell);
                thread::spawn(move || bell.wait(records))
            });
            bell.record(1);
            for sleeper in sleepers {
                sleeper.join().unwrap();
            }
        });
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn without_fences_one_is_lost() {
        check_when(Wrong::NoFences, one_sleeps);
    }
}
