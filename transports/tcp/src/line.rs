//! Where notifies arrive.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use hcomm_transport_abi::NotifyLineV1;

/// The lines of one end.
#[derive(Debug)]
pub(crate) struct Lines(Box<[Line]>);

/// A [`NotifyLineV1`] with its words as the atomics that they are.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Line {
    count: AtomicU64,
    fingerprint: [AtomicU64; 2],
    served: AtomicU64,
}

const _: () = assert!(
    size_of::<Line>() >= size_of::<NotifyLineV1>()
        && align_of::<Line>() >= align_of::<NotifyLineV1>()
);

impl Lines {
    pub(crate) fn new(notifies: u32) -> Self {
        Self((0..notifies).map(|_| Line::default()).collect())
    }

    pub(crate) fn has(&self, index: u32) -> bool {
        (index as usize) < self.0.len()
    }

    /// Adds one, after everything that was written before.
    pub(crate) fn record(&self, index: u32, fingerprint: [u64; 2]) {
        let Some(line) = self.0.get(index as usize) else {
            return;
        };
        for (word, value) in line.fingerprint.iter().zip(fingerprint) {
            if value != 0 {
                word.store(value, Ordering::Relaxed);
            }
        }
        // One at a time records: the one whose turn `progress` is.
        let served = line.served.load(Ordering::Relaxed);
        line.served.store(served.wrapping_add(1), Ordering::Release);
    }

    /// How often a notify was recorded.
    #[cfg(test)]
    pub(crate) fn recorded(&self, index: u32) -> u64 {
        self.0[index as usize].served.load(Ordering::Acquire)
    }

    /// The line of a notify.
    pub(crate) fn get(&self, index: u32) -> Option<NonNull<NotifyLineV1>> {
        let line = self.0.get(index as usize)?;
        Some(NonNull::from(line).cast())
    }
}
