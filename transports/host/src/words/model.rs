//! A waiter that falls asleep by the steps of [`Words`], for models of what sleeps in it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use hcomm_types::Nanos;
use loom::sync::{Condvar, Mutex};

use super::{Word, Words};
use crate::barrier::Often;
use crate::sync;
use crate::waiter::{Paused, Phase, Waiter, Watch};

/// A word with a futex like the kernel's: comparing and falling asleep is one step to wakers.
/// Nobody wakes by himself here, so a lost wake is a thread that never ends.
#[derive(Debug, Default)]
pub(super) struct Futex {
    word: sync::AtomicU32,
    queue: Mutex<()>,
    woken: Condvar,
}

impl Word for Futex {
    fn load(&self, order: Ordering) -> u32 {
        self.word.load(order)
    }

    fn fetch_add(&self, value: u32, order: Ordering) {
        self.word.fetch_add(value, order);
    }

    fn fetch_sub(&self, value: u32, order: Ordering) {
        // When a model ends by a panic, its threads are taken apart outside of it.
        if !std::thread::panicking() {
            self.word.fetch_sub(value, order);
        }
    }

    fn sleep(&self, seen: u32, _: Duration) {
        let queue = self.queue.lock().unwrap();
        if self.word.load(Ordering::Relaxed) == seen {
            drop(self.woken.wait(queue).unwrap());
        }
    }

    fn wake(&self) {
        let _queue = self.queue.lock().unwrap();
        self.woken.notify_all();
    }
}

/// Sleeps at once, and until it is woken.
#[derive(Debug, Default)]
pub struct SleepyWaiter {
    sequence: Futex,
    sleepers: Futex,
    pollers: Futex,
}

impl SleepyWaiter {
    pub(super) const fn words(&self) -> Words<'_, Futex> {
        Words {
            sequence: &self.sequence,
            sleepers: &self.sleepers,
            pollers: &self.pollers,
        }
    }
}

impl Waiter for SleepyWaiter {
    fn now(&self) -> Nanos {
        Nanos(0)
    }

    fn pause(&self, _: &mut Phase, watch: &mut Watch<'_>) -> Paused {
        if self.words().sleep(Duration::MAX, watch.look) {
            Paused::Slept
        } else {
            Paused::Spun
        }
    }

    fn wake(&self) {
        Often::here().fence();
        if self.words().somebody_sleeps() {
            self.words().wake_sleepers();
        }
    }
}
