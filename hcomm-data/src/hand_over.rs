//! Whether the peer of a channel reads what is written to it, and whether it is far.
//!
//! A large write is best made by plain stores if the peer does not read it soon, or shares a cache
//! with this core; and past the caches if the peer reads it from a core that is far, where a line
//! that is dirty in the cache of another core takes several times as long as one in memory (64 KiB
//! written and read, far: 34 µs by plain stores, 6.7 past the caches; written and not read: 1.5
//! and 2.9). Which of these a channel's peer does is learnt from the destination: after a plain
//! write this core owns its lines alone, until the peer has read them. So now and then, before a
//! destination is written again, the time to own its last line, which was loaded before, is taken:
//! it is long only if somebody far has the line as well. (A reader that is near would gain a third
//! from 64 KiB on; its time differs from nobody's by less than the clock is good for.)
//!
//! While writes go past the caches there is nothing to learn from, so after a number of them one
//! is made plainly again.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::copy::Hint;
use crate::memory::{self, Place};

/// Bytes of a write from which it matters.
const FROM: usize = 4 << 10;
/// Plain writes between two questions.
const ASK_EVERY: u32 = 16;
/// Writes past the caches until a plain one.
const TRY_AFTER: u32 = 256;
/// To own a line takes up to 20 ns if nobody else has it (by a clock of 10 ns), 30 to 50 if a core
/// has it that shares a cache, 140 to 170 if one has it that is far.
const FAR_NS: u64 = 80;

/// What is known of one channel's peer. Used by the one OS thread at a time that posts there.
#[derive(Debug, Default)]
pub(crate) struct HandOver {
    past_caches: AtomicBool,
    /// Writes since something changed.
    writes: AtomicU32,
}

impl HandOver {
    /// How a write to `dst`, at the peer, is best made.
    #[inline]
    pub(crate) fn hint(&self, dst: Place<'_>) -> Hint {
        if dst.bytes() < FROM {
            return Hint::Local;
        }
        self.learn(|| memory::time_to_own(dst))
    }

    /// `time_to_own` gives, in ns, how long it takes to own the destination's last line.
    fn learn(&self, time_to_own: impl FnOnce() -> u64) -> Hint {
        let writes = self.writes.load(Ordering::Relaxed);
        if self.past_caches.load(Ordering::Relaxed) {
            if writes < TRY_AFTER {
                self.writes.store(writes + 1, Ordering::Relaxed);
                return Hint::HandOver;
            }
            // The next write asks what became of this one.
            self.turn(false, ASK_EVERY);
            return Hint::Local;
        }
        if writes < ASK_EVERY {
            self.writes.store(writes + 1, Ordering::Relaxed);
            return Hint::Local;
        }
        let is_far = time_to_own() >= FAR_NS;
        self.turn(is_far, 0);
        if is_far { Hint::HandOver } else { Hint::Local }
    }

    fn turn(&self, past_caches: bool, writes: u32) {
        self.past_caches.store(past_caches, Ordering::Relaxed);
        self.writes.store(writes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ_FAR: u64 = 150;
    const READ_NEAR: u64 = 40;
    const UNREAD: u64 = 10;

    /// How many of so many writes go past the caches.
    fn writes(learned: &HandOver, count: u32, ns: u64) -> u32 {
        (0..count)
            .map(|_| u32::from(learned.learn(|| ns) == Hint::HandOver))
            .sum()
    }

    #[test]
    fn a_far_reader_is_noticed() {
        let learned = HandOver::default();
        assert_eq!(writes(&learned, ASK_EVERY, READ_FAR), 0);
        for _ in 0..3 {
            assert_eq!(writes(&learned, TRY_AFTER + 1, READ_FAR), TRY_AFTER + 1);
            assert_eq!(writes(&learned, 1, READ_FAR), 0, "one to learn from");
        }
    }

    #[test]
    fn who_does_not_read_or_is_near_gets_plain_stores() {
        for ns in [READ_NEAR, UNREAD] {
            assert_eq!(writes(&HandOver::default(), 1000, ns), 0);
        }
    }

    #[test]
    fn a_reader_that_comes_near_is_noticed() {
        let learned = HandOver::default();
        writes(&learned, ASK_EVERY + 1, READ_FAR);
        let past = writes(&learned, 10_000, READ_NEAR);
        assert!(past <= TRY_AFTER, "{past}");
    }
}
