//! A queue of fixed length from one OS thread to another, without a lock.
//!
//! Each end has one user at a time, which `&mut` sees to. The pushing end writes a value into a
//! slot and then stores how many it has pushed; the popping end sees that number, takes the value
//! out and stores how many it has popped. Each number is written by one end only, and has a cache
//! line of its own.

use std::mem::MaybeUninit;
use std::sync::Arc;

use hcomm_transport::sync::{AtomicUsize, Cell, Ordering, last_of};

/// What both ends share, and what others may look at.
pub(crate) struct Ring<T> {
    pushed: Line<AtomicUsize>,
    popped: Line<AtomicUsize>,
    slots: Box<[Cell<MaybeUninit<T>>]>,
}

/// Keeps the neighbours' stores away, also where two lines are fetched together.
#[repr(align(128))]
pub(crate) struct Line<T>(pub(crate) T);

// SAFETY: a slot is reached by the pushing end before its number is stored and by the popping end
// afterwards, until that stores its own number; there is one of each. The values themselves go from
// one OS thread to the other.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as for `Sync`.
unsafe impl<T: Send> Send for Ring<T> {}

/// The end where values are put in.
pub(crate) struct Pusher<T> {
    ring: Arc<Ring<T>>,
    pushed: usize,
    /// The other end's number at the last look at it.
    popped: usize,
}

/// The end where they are taken out.
pub(crate) struct Popper<T> {
    ring: Arc<Ring<T>>,
    popped: usize,
    /// The other end's number at the last look at it.
    pushed: usize,
}

/// A ring for `length` values, a power of two.
pub(crate) fn ring<T>(length: usize) -> (Pusher<T>, Popper<T>) {
    debug_assert!(length.is_power_of_two());
    let ring = Arc::new(Ring {
        pushed: Line(AtomicUsize::new(0)),
        popped: Line(AtomicUsize::new(0)),
        slots: (0..length)
            .map(|_| Cell::new(MaybeUninit::uninit()))
            .collect(),
    });
    let pusher = Pusher {
        ring: Arc::clone(&ring),
        pushed: 0,
        popped: 0,
    };
    let popper = Popper {
        ring,
        popped: 0,
        pushed: 0,
    };
    (pusher, popper)
}

impl<T> Ring<T> {
    /// Values pushed so far. It wraps.
    #[inline]
    pub(crate) fn pushed(&self) -> usize {
        self.pushed.0.load(Ordering::Acquire)
    }

    /// Values popped so far. It wraps.
    #[inline]
    pub(crate) fn popped(&self) -> usize {
        self.popped.0.load(Ordering::Acquire)
    }

    /// Whether there was no room at the time of the look.
    pub(crate) fn is_full(&self) -> bool {
        self.pushed().wrapping_sub(self.popped()) >= self.slots.len()
    }

    #[inline]
    fn slot(&self, number: usize) -> &Cell<MaybeUninit<T>> {
        // The length is a power of two, so numbers may wrap.
        &self.slots[number & (self.slots.len() - 1)]
    }
}

impl<T> Pusher<T> {
    pub(crate) const fn ring(&self) -> &Arc<Ring<T>> {
        &self.ring
    }

    /// Puts a value in; gives it back if there is no room.
    #[inline]
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        let length = self.ring.slots.len();
        if self.pushed.wrapping_sub(self.popped) >= length {
            self.popped = self.ring.popped();
            if self.pushed.wrapping_sub(self.popped) >= length {
                return Err(value);
            }
        }
        // SAFETY: the slot is empty: the other end has said, with `popped`, that it has taken out
        // what was there, and it does not look again before `pushed` is stored.
        unsafe { (*self.ring.slot(self.pushed).get_mut()).write(value) };
        self.pushed = self.pushed.wrapping_add(1);
        self.ring.pushed.0.store(self.pushed, Ordering::Release);
        Ok(())
    }
}

impl<T> Popper<T> {
    /// Takes the oldest value out.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.popped == self.pushed {
            self.pushed = self.ring.pushed();
            if self.popped == self.pushed {
                return None;
            }
        }
        // SAFETY: the other end has said, with `pushed`, that a value is there, and it does not
        // touch the slot before `popped` is stored. It is taken once: `popped` goes on.
        let value = unsafe { (*self.ring.slot(self.popped).get()).assume_init_read() };
        self.popped = self.popped.wrapping_add(1);
        self.ring.popped.0.store(self.popped, Ordering::Release);
        Some(value)
    }

    /// Values popped so far.
    #[inline]
    pub(crate) const fn popped(&self) -> usize {
        self.popped
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let (mut number, end) = (last_of(&mut self.popped.0), last_of(&mut self.pushed.0));
        while number != end {
            // SAFETY: both ends are gone, and between their numbers lie values.
            unsafe { (*self.slot(number).get_mut()).assume_init_drop() };
            number = number.wrapping_add(1);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn values_come_out_in_order_and_an_excess_comes_back() {
        let (mut pusher, mut popper) = ring(4);
        assert!(popper.pop().is_none());
        for round in 0..5 {
            for value in 0..4 {
                pusher.push(Box::new(round * 4 + value)).unwrap();
            }
            assert!(pusher.ring().is_full());
            assert_eq!(pusher.push(Box::new(99)), Err(Box::new(99)));
            for value in 0..4 {
                assert_eq!(popper.pop(), Some(Box::new(round * 4 + value)));
            }
        }
        assert_eq!(popper.popped(), 20);
    }

    #[test]
    fn numbers_wrap() {
        let (mut pusher, mut popper) = ring(2);
        let near_the_end = usize::MAX - 1;
        pusher
            .ring()
            .pushed
            .0
            .store(near_the_end, Ordering::Relaxed);
        pusher
            .ring()
            .popped
            .0
            .store(near_the_end, Ordering::Relaxed);
        (pusher.pushed, pusher.popped) = (near_the_end, near_the_end);
        (popper.pushed, popper.popped) = (near_the_end, near_the_end);
        for value in 0..6 {
            pusher.push(value).unwrap();
            pusher.push(value + 10).unwrap();
            assert_eq!(pusher.push(value), Err(value));
            assert_eq!(popper.pop(), Some(value));
            assert_eq!(popper.pop(), Some(value + 10));
        }
    }

    #[test]
    fn what_is_left_is_dropped_once() {
        let value = Arc::new(());
        let (mut pusher, mut popper) = ring(4);
        for _ in 0..3 {
            pusher.push(Arc::clone(&value)).unwrap();
        }
        drop(popper.pop());
        assert_eq!(Arc::strong_count(&value), 3);
        drop((pusher, popper));
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn from_one_os_thread_to_another() {
        const VALUES: usize = if cfg!(miri) { 100 } else { 20_000 };
        let (mut pusher, mut popper) = ring(8);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for value in 0..VALUES {
                    let mut value = Box::new(value);
                    while let Err(back) = pusher.push(value) {
                        value = back;
                        std::thread::yield_now();
                    }
                }
            });
            for expected in 0..VALUES {
                let found = loop {
                    match popper.pop() {
                        Some(found) => break found,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(*found, expected);
            }
        });
    }
}

#[cfg(all(test, loom))]
mod models {
    use hcomm_transport::sync::model::{Wrong, check, check_when};
    use hcomm_transport::sync::yield_now;
    use loom::thread;

    use super::*;

    /// Three values through two slots: one slot is used again.
    fn a_slot_is_used_again() {
        const VALUES: u32 = 3;
        let (mut pusher, mut popper) = ring(2);
        let pushing = thread::spawn(move || {
            for value in 0..VALUES {
                while pusher.push(value).is_err() {
                    yield_now();
                }
            }
        });
        for expected in 0..VALUES {
            let found = loop {
                match popper.pop() {
                    Some(found) => break found,
                    None => yield_now(),
                }
            };
            assert_eq!(found, expected);
        }
        pushing.join().unwrap();
        assert!(popper.pop().is_none());
        assert_eq!(popper.ring.pushed(), popper.ring.popped());
    }

    #[test]
    fn values_come_out_whole_and_in_order() {
        check(a_slot_is_used_again);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_order_they_do_not() {
        check_when(Wrong::NoOrder, a_slot_is_used_again);
    }
}
