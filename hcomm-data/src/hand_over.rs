//! Whether the peer of a channel reads what is written to it, and whether it is far.
//!
//! A large write is best made by plain stores if the peer does not read it soon, and otherwise in
//! another way: past the caches if the peer reads it from a core that is far, where a line that is
//! dirty in the cache of another core takes several times as long as one in memory (Zen 4: 64 KiB
//! written and read, far: 34 µs by plain stores, 6.7 past the caches; written and not read: 1.5 and
//! 2.9); and on a wide machine by its string instruction, wherever the reader is (see
//! [`Hint`]). Which of these a channel's peer does is learnt from the destination: after a
//! write this core owns its lines alone, until the peer has read them. So now and then, before a
//! destination is written again, the time to own its last line, which was loaded before, is taken:
//! it is long only if somebody has the line as well.
//!
//! While writes for a far reader go past the caches there is nothing to learn from, so after a number
//! of them one is made plainly again.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::copy::{self, Hint};
use crate::memory::{self, Place};

/// Bytes of a write from which it matters.
const FROM: usize = 4 << 10;
/// Plain writes between two questions.
const ASK_EVERY: u32 = 16;
/// Writes to a far reader until a plain one.
const TRY_AFTER: u32 = 256;
/// To own a line takes up to 20 ns if nobody else has it (by a clock of 10 ns), 30 to 50 if a core
/// has it that shares a cache, 140 to 170 if one has it that is far. The lower two are told apart
/// where it matters, and not each time.
const NEAR_NS: u64 = 28;
const FAR_NS: u64 = 80;

/// What is known of one channel's peer. Used by the one OS thread at a time that posts there.
#[derive(Debug, Default)]
pub(crate) struct HandOver {
    /// A [`Hint`], as a number.
    hint: AtomicU8,
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
        self.learn(copy::is_wide(), || memory::time_to_own(dst))
    }

    /// `time_to_own` gives, in ns, how long it takes to own the destination's last line.
    fn learn(&self, is_wide: bool, time_to_own: impl FnOnce() -> u64) -> Hint {
        const HINTS: [Hint; 3] = [Hint::Local, Hint::Near, Hint::HandOver];
        let hint = HINTS[usize::from(self.hint.load(Ordering::Relaxed)) % HINTS.len()];
        let writes = self.writes.load(Ordering::Relaxed);
        let most = if hint == Hint::HandOver {
            TRY_AFTER
        } else {
            ASK_EVERY
        };
        if writes < most {
            self.writes.store(writes + 1, Ordering::Relaxed);
            return hint;
        }
        if hint == Hint::HandOver {
            // The next write asks what became of this one.
            self.turn(Hint::Local, ASK_EVERY);
            return Hint::Local;
        }
        let hint = match time_to_own() {
            FAR_NS.. => Hint::HandOver,
            NEAR_NS.. if is_wide => Hint::Near,
            _ => Hint::Local,
        };
        self.turn(hint, 0);
        hint
    }

    fn turn(&self, hint: Hint, writes: u32) {
        self.hint.store(hint as u8, Ordering::Relaxed);
        self.writes.store(writes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ_FAR: u64 = 150;
    const READ_NEAR: u64 = 40;
    const UNREAD: u64 = 10;

    /// How many of so many writes are made for a far reader.
    fn writes(learned: &HandOver, count: u32, ns: u64) -> u32 {
        (0..count)
            .map(|_| u32::from(learned.learn(false, || ns) == Hint::HandOver))
            .sum()
    }

    #[test]
    fn a_near_reader_is_noticed_where_that_matters() {
        let learned = HandOver::default();
        let hints = |is_wide, ns| {
            let writes = (0..100).map(|_| learned.learn(is_wide, || ns));
            writes.skip(20).collect::<Vec<_>>()
        };
        assert_eq!(hints(true, READ_NEAR), [Hint::Near; 80]);
        assert_eq!(hints(true, UNREAD), [Hint::Local; 80]);
        assert_eq!(hints(false, READ_NEAR), [Hint::Local; 80]);
        assert_eq!(hints(true, READ_FAR), [Hint::HandOver; 80]);
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
