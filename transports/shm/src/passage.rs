//! The gate of a region that is lent on a channel, as both sides pass or close it. Why it is needed
//! and how it is used stands in `direct`.
//!
//! The peer says that it is inside and then looks at the gate; the owner closes the gate and then
//! looks who is inside. With a full fence between store and look on both sides, one of them sees
//! the other.

use core::sync::atomic::Ordering;

use crate::word::Word;

/// While it lives, the owner knows that the peer is inside.
pub(crate) struct Inside<'a, W: Word> {
    inside: &'a W,
    gate: &'a W,
    region: u64,
}

impl<'a, W: Word> Inside<'a, W> {
    /// Tells the owner that we are inside; `None` if the gate is not open for the region.
    pub(crate) fn enter(inside: &'a W, gate: &'a W, region: u64) -> Option<Self> {
        inside.store(region, Ordering::Relaxed);
        let entered = Self {
            inside,
            gate,
            region,
        };
        W::full_fence();
        entered.is_open().then_some(entered)
    }

    /// Whether it still is open: asked before each piece.
    pub(crate) fn is_open(&self) -> bool {
        self.gate.load(Ordering::Acquire) == self.region
    }
}

impl<W: Word> Drop for Inside<'_, W> {
    fn drop(&mut self) {
        self.inside.store(0, Ordering::Release);
    }
}

/// Opens a gate for a region.
pub(crate) fn open(gate: &impl Word, region: u64) {
    gate.store(region, Ordering::SeqCst);
}

/// Closes a gate. Who wants to know whether somebody is inside calls [`settle`] in between.
pub(crate) fn close(gate: &impl Word) {
    gate.store(0, Ordering::SeqCst);
}

/// Between closing gates and looking who is inside.
pub(crate) fn settle<W: Word>() {
    W::full_fence();
}

/// Number of the region that the peer is inside, or 0.
pub(crate) fn who_is_inside(inside: &impl Word) -> u64 {
    inside.load(Ordering::Acquire)
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use loom::thread;

    use super::*;
    use crate::sys::Touched;
    use crate::word::model::{FENCES, Modelled, NOTHING, ORDER};

    const REGION: u64 = 7;

    #[derive(Default)]
    struct Channel<const WRONG: u8> {
        inside: Modelled<WRONG>,
        gate: Modelled<WRONG>,
        /// The memory that is lent.
        memory: Touched,
    }

    /// The peer moves two pieces, and goes in once more for a third; the owner takes the memory
    /// back meanwhile, and uses it when nobody is inside.
    fn taken_back<const WRONG: u8>() {
        loom::model(|| {
            let channel = Arc::new(Channel::<WRONG>::default());
            open(&channel.gate, REGION);
            let peers = Arc::clone(&channel);
            let peer = thread::spawn(move || {
                for pieces in [2, 1] {
                    let Some(inside) = Inside::enter(&peers.inside, &peers.gate, REGION) else {
                        return;
                    };
                    for _ in 0..pieces {
                        if !inside.is_open() {
                            return;
                        }
                        peers.memory.touch();
                    }
                }
            });
            close(&channel.gate);
            settle::<Modelled<WRONG>>();
            while who_is_inside(&channel.inside) == REGION {
                thread::yield_now();
            }
            channel.memory.touch();
            peer.join().unwrap();
        });
    }

    #[test]
    fn nobody_is_inside_when_it_is_taken_back() {
        taken_back::<NOTHING>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_fences_somebody_is() {
        taken_back::<FENCES>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_order_somebody_is() {
        taken_back::<ORDER>();
    }
}
