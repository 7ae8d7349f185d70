//! The words that two sides share: the machine's, or those of a model.

use core::sync::atomic::{AtomicU64, Ordering, fence};

/// A word of a segment. Each has one writer.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// A fence between a store to one word and a load of another one.
    fn full_fence();
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }

    #[inline]
    fn full_fence() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, loom))]
pub(crate) mod model {
    use super::{Ordering, Word};

    /// Nothing is wrong.
    pub(crate) const NOTHING: u8 = 0;
    /// Every access is relaxed.
    pub(crate) const ORDER: u8 = 1;
    /// Fences do nothing.
    pub(crate) const FENCES: u8 = 2;

    /// A word with something wrong about it, to see that a model notices.
    #[derive(Debug, Default)]
    pub(crate) struct Modelled<const WRONG: u8>(loom::sync::atomic::AtomicU64);

    impl<const WRONG: u8> Word for Modelled<WRONG> {
        fn load(&self, order: Ordering) -> u64 {
            self.0.load(asked::<WRONG>(order))
        }

        fn store(&self, value: u64, order: Ordering) {
            // When a model ends by a panic, what it has made is taken apart outside of it.
            if !std::thread::panicking() {
                self.0.store(value, asked::<WRONG>(order));
            }
        }

        fn full_fence() {
            if WRONG != FENCES {
                loom::sync::atomic::fence(Ordering::SeqCst);
            }
        }
    }

    const fn asked<const WRONG: u8>(order: Ordering) -> Ordering {
        if WRONG == ORDER {
            Ordering::Relaxed
        } else {
            order
        }
    }
}
