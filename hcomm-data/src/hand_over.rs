//! Whether the peer of a channel reads what is written to it, and whether it is far.
//!
//! A large write is best made by plain stores if the peer does not read it soon, and past the caches
//! if it does: a line that is dirty in the cache of another core takes longer than one in memory,
//! several times as long if the cores share no cache (64 KiB written and read: near 9.4 µs by plain
//! stores and 6.1 past the caches, far 34 and 6.7; written and not read: 1.5 and 2.9). Which of these
//! a channel's peer does is learnt from the destination: after a plain write this core owns its lines
//! alone, until the peer has read them. So now and then, before a destination is written again, the
//! time to own its last line, which was loaded before, is taken: it is long only if somebody else
//! has the line as well.
//!
//! While writes go past the caches there is nothing to learn from, so after a number of them one
//! is made plainly again.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::copy::Hint;
use crate::memory::{self, Place};

/// Bytes of a write from which it matters where the reader is far.
const FROM_FAR: usize = 4 << 10;
/// The same where it is near.
const FROM_NEAR: usize = 32 << 10;
/// Plain writes between two questions.
const ASK_EVERY: u32 = 16;
/// Writes past the caches until a plain one.
const TRY_AFTER: u32 = 256;
/// To own a line takes up to 20 ns if nobody else has it (by a clock of 10 ns), 30 to 50 if a core
/// has it that shares a cache, 140 to 170 if one has it that is far.
const NEAR_NS: u64 = 25;
const FAR_NS: u64 = 80;

/// What is known of one channel's peer. Used by the one OS thread at a time that posts there.
#[derive(Debug, Default)]
pub(crate) struct HandOver {
    /// [`NOBODY`], [`NEAR`] or [`FAR`].
    reader: AtomicU8,
    /// Writes since something changed.
    writes: AtomicU32,
}

const NOBODY: u8 = 0;
const NEAR: u8 = 1;
const FAR: u8 = 2;

impl HandOver {
    /// How a write to `dst`, at the peer, is best made.
    #[inline]
    pub(crate) fn hint(&self, dst: Place<'_>) -> Hint {
        if dst.bytes() < FROM_FAR {
            return Hint::Local;
        }
        self.learn(dst.bytes(), || memory::time_to_own(dst))
    }

    /// `time_to_own` gives, in ns, how long it takes to own the destination's last line.
    fn learn(&self, bytes: usize, time_to_own: impl FnOnce() -> u64) -> Hint {
        let writes = self.writes.load(Ordering::Relaxed);
        let past_caches = |reader| match reader {
            NOBODY => false,
            NEAR => bytes >= FROM_NEAR,
            _ => true,
        };
        let reader = self.reader.load(Ordering::Relaxed);
        if past_caches(reader) {
            if writes < TRY_AFTER {
                self.writes.store(writes + 1, Ordering::Relaxed);
                return Hint::HandOver;
            }
            // The next write asks what became of this one.
            self.turn(NOBODY, ASK_EVERY);
            return Hint::Local;
        }
        if writes < ASK_EVERY {
            self.writes.store(writes + 1, Ordering::Relaxed);
            return Hint::Local;
        }
        let reader = match time_to_own() {
            FAR_NS.. => FAR,
            NEAR_NS.. => NEAR,
            _ => NOBODY,
        };
        self.turn(reader, 0);
        if past_caches(reader) {
            Hint::HandOver
        } else {
            Hint::Local
        }
    }

    fn turn(&self, reader: u8, writes: u32) {
        self.reader.store(reader, Ordering::Relaxed);
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
    fn writes(learned: &HandOver, count: u32, bytes: usize, ns: u64) -> u32 {
        (0..count)
            .map(|_| u32::from(learned.learn(bytes, || ns) == Hint::HandOver))
            .sum()
    }

    #[test]
    fn a_reader_is_noticed() {
        for (bytes, ns) in [(FROM_FAR, READ_FAR), (FROM_NEAR, READ_NEAR)] {
            let learned = HandOver::default();
            assert_eq!(writes(&learned, ASK_EVERY, bytes, ns), 0);
            assert_eq!(writes(&learned, TRY_AFTER + 1, bytes, ns), TRY_AFTER + 1);
            assert_eq!(writes(&learned, 1, bytes, ns), 0, "one to learn from");
            assert_eq!(writes(&learned, TRY_AFTER + 1, bytes, ns), TRY_AFTER + 1);
        }
    }

    #[test]
    fn who_does_not_read_or_is_near_and_reads_little_gets_plain_stores() {
        for (bytes, ns) in [(FROM_NEAR - 1, READ_NEAR), (1 << 20, UNREAD)] {
            assert_eq!(writes(&HandOver::default(), 1000, bytes, ns), 0);
        }
    }

    #[test]
    fn a_reader_that_comes_near_is_noticed() {
        let learned = HandOver::default();
        writes(&learned, ASK_EVERY + 1, FROM_FAR, READ_FAR);
        let past = writes(&learned, 10_000, FROM_FAR, READ_NEAR);
        assert!(past <= TRY_AFTER, "{past}");
    }
}
