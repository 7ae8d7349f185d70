//! A memory barrier in two halves: one side does it often and for nothing, the other one seldom and
//! pays for both.
//!
//! Where two sides each store something and then look at what the other has stored, at least one
//! must see the other's store. Both need a full fence in between for that. If one of them does it
//! a million times as often, its fence can be left out: the other one asks the kernel to run a
//! fence on every core where a thread of a registered process runs (`membarrier(2)`, "global
//! expedited"), which costs it half a microsecond.
//!
//! The half of the often side is [`Often::fence`], of the seldom side [`seldom`]. Where the kernel
//! does not offer the call, both are full fences.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

use rustix::thread::{MembarrierCommand, membarrier};

use crate::sync::fence;

/// How the often side fences. Copied into what it has at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Often {
    light: bool,
}

impl Often {
    /// Against a side of this process.
    #[must_use]
    pub fn here() -> Self {
        Self {
            light: is_registered(),
        }
    }

    /// Against a side that may be in another process and says whether it uses [`seldom`].
    #[must_use]
    pub fn against(other_is_registered: bool) -> Self {
        Self {
            light: other_is_registered && is_registered(),
        }
    }

    /// Between the store and the look.
    #[inline]
    pub fn fence(self) {
        if self.light {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }
}

/// Between the store and the look of the seldom side.
///
/// # Panics
/// If the kernel takes back what it has offered before (a filter of system calls that was set up
/// later): nothing that relies on it would be right any more.
pub fn seldom() {
    fence(Ordering::SeqCst);
    if is_registered() {
        let done = membarrier(MembarrierCommand::GlobalExpedited);
        assert!(
            done.is_ok(),
            "membarrier(2) worked and was forbidden later: {done:?}"
        );
        fence(Ordering::SeqCst);
    }
}

/// Whether this process takes part in the barriers of [`seldom`]; registers it at first.
pub fn is_registered() -> bool {
    // A model has no kernel, and Miri's knows no such call.
    if cfg!(any(loom, miri)) {
        return false;
    }
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
            && membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// Both sides store and look, many times; never may both miss the other.
    #[test]
    fn one_side_sees_the_other() {
        const ROUNDS: u32 = if cfg!(miri) { 50 } else { 20_000 };
        let (often, seldomly) = (AtomicU32::new(0), AtomicU32::new(0));
        let barrier = std::sync::Barrier::new(2);
        let how = Often::here();
        let (seen_by_often, seen_by_seldom) = std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                (1..=ROUNDS)
                    .map(|round| {
                        barrier.wait();
                        often.store(round, Ordering::Relaxed);
                        how.fence();
                        seldomly.load(Ordering::Relaxed) == round
                    })
                    .collect::<Vec<_>>()
            });
            let second = scope.spawn(|| {
                (1..=ROUNDS)
                    .map(|round| {
                        barrier.wait();
                        seldomly.store(round, Ordering::Relaxed);
                        seldom();
                        often.load(Ordering::Relaxed) == round
                    })
                    .collect::<Vec<_>>()
            });
            (first.join().unwrap(), second.join().unwrap())
        });
        for (round, (a, b)) in seen_by_often.into_iter().zip(seen_by_seldom).enumerate() {
            assert!(a || b, "round {round}: neither saw the other");
        }
    }
}
