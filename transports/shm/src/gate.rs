//! Who is moving bytes of a region of this process, and whether anybody may still begin.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicU64, Ordering};

/// The bit that says that nobody may enter any more; the others count who is inside.
const CLOSED: u64 = 1 << 63;

/// The word of a gate: the machine's, or a model's.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64;
    fn fetch_or(&self, value: u64, order: Ordering) -> u64;
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        Self::fetch_add(self, value, order)
    }

    fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        Self::fetch_sub(self, value, order)
    }

    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        Self::fetch_or(self, value, order)
    }
}

/// An open gate at first.
#[derive(Debug, Default)]
pub(crate) struct Gate<W = AtomicU64>(W);

impl<W: Word> Gate<W> {
    /// Goes in, unless the gate is closed; also then, if `always`.
    pub(crate) fn enter(&self, always: bool) -> bool {
        if self.0.fetch_add(1, Ordering::Acquire) & CLOSED == 0 || always {
            return true;
        }
        self.leave();
        false
    }

    /// Goes out, after [`Gate::enter`].
    pub(crate) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Nobody goes in any more.
    pub(crate) fn close(&self) {
        self.0.fetch_or(CLOSED, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.load(Ordering::SeqCst) & CLOSED != 0
    }

    /// Until nobody is inside. Those who are copy bytes and wait for nobody.
    pub(crate) fn wait_until_empty(&self) {
        let mut rounds = 0_u32;
        while self.0.load(Ordering::Acquire) & !CLOSED != 0 {
            #[cfg(loom)]
            loom::thread::yield_now();
            rounds = rounds.saturating_add(1);
            if rounds < 100 {
                spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    use super::*;

    /// A word whose every access is relaxed if `WRONG`.
    #[derive(Default)]
    struct Modelled<const WRONG: bool>(loom::sync::atomic::AtomicU64);

    impl<const WRONG: bool> Modelled<WRONG> {
        const fn order(asked: Ordering) -> Ordering {
            if WRONG { Ordering::Relaxed } else { asked }
        }
    }

    impl<const WRONG: bool> Word for Modelled<WRONG> {
        fn load(&self, order: Ordering) -> u64 {
            self.0.load(Self::order(order))
        }

        fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_add(value, Self::order(order))
        }

        fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_sub(value, Self::order(order))
        }

        fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_or(value, Self::order(order))
        }
    }

    #[derive(Default)]
    struct Region<const WRONG: bool> {
        gate: Gate<Modelled<WRONG>>,
        bytes: [AtomicU32; 2],
    }

    /// Two who copy into the memory, and the user who takes it back and finds what they copied.
    fn taken_back<const WRONG: bool>() {
        loom::model(|| {
            let region = Arc::new(Region::<WRONG>::default());
            let copying = [0, 1].map(|at: usize| {
                let region = Arc::clone(&region);
                thread::spawn(move || {
                    let entered = region.gate.enter(false);
                    if entered {
                        region.bytes[at].store(1, Ordering::Relaxed);
                        region.gate.leave();
                    }
                    u32::from(entered)
                })
            });
            region.gate.close();
            region.gate.wait_until_empty();
            let found = [0, 1].map(|at: usize| region.bytes[at].load(Ordering::Relaxed));
            // Whoever was inside has copied, and nobody copies later.
            assert_eq!(found, copying.map(|thread| thread.join().unwrap()));
        });
    }

    #[test]
    fn nobody_is_inside_when_it_is_taken_back() {
        taken_back::<false>();
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn without_order_somebody_is() {
        taken_back::<true>();
    }
}
