//! How a notify is counted up and read: one recorder, one waiter, no read-modify-write.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::SharedWord;

/// A count that has to be asked for.
pub(crate) const UNKNOWN: u64 = u64::MAX;

/// Adds one. `known` is what its one recorder knows of it: asking the count itself would fetch its
/// line from the waiter before it is written. Whoever sees the new count sees what was written
/// before.
#[inline]
pub(crate) fn add_one(count: &impl SharedWord, known: &AtomicU64) {
    // One recorder: nobody else changes it.
    let records = match known.load(Ordering::Relaxed) {
        UNKNOWN => count.load(Ordering::Relaxed),
        records => records,
    };
    let records = records.wrapping_add(1);
    known.store(records, Ordering::Relaxed);
    count.store(records, Ordering::Release);
}

/// How often was recorded: by the recorder itself, and by this side on its behalf.
#[inline]
pub(crate) fn sum(count: &impl SharedWord, served: &impl SharedWord) -> u64 {
    count
        .load(Ordering::Acquire)
        .wrapping_add(served.load(Ordering::Acquire))
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use loom::thread;

    use super::*;
    use crate::sync;
    use crate::sync::model::{Plain, Wrong, check, check_when};

    #[derive(Default)]
    struct Line {
        count: sync::AtomicU64,
        served: sync::AtomicU64,
    }

    /// Two writes with notify; the waiter takes the second one after the first.
    fn payload_comes_first() {
        let shared = Arc::new((Line::default(), [Plain::new(0), Plain::new(0)]));
        let peer = Arc::clone(&shared);
        let recorder = thread::spawn(move || {
            let (line, payload) = &*peer;
            let known = AtomicU64::new(UNKNOWN);
            for (round, cell) in payload.iter().enumerate() {
                cell.set(round + 1);
                add_one(&line.count, &known);
            }
        });
        let (line, payload) = &*shared;
        for (round, cell) in payload.iter().enumerate() {
            while sum(&line.count, &line.served) <= round as u64 {
                thread::yield_now();
            }
            assert_eq!(cell.get(), round + 1);
        }
        recorder.join().unwrap();
    }

    #[test]
    fn payload_is_seen_with_the_record() {
        check(payload_comes_first);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_order_it_is_not() {
        check_when(Wrong::NoOrder, payload_comes_first);
    }
}
