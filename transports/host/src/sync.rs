//! The atomics of lock-free code: the machine's, and under `cfg(loom)` those of a model.
//!
//! A model test hands the real code to loom, which runs it in every order that the memory model
//! allows (`model::check`). What it proves is worth as much as what it would catch,
//! so each model is also run with the code made wrong: `model::Wrong` takes the fences away, or
//! the orderings.
//!
//! Both halves of a [`barrier`](crate::barrier) are full fences in a model. That is what they are
//! to each other; two light halves are not to each other what two full fences are, and no model
//! notices code that relies on it.

#[cfg(not(loom))]
pub use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Mutex, MutexGuard},
    thread::yield_now,
};

#[cfg(loom)]
pub use {
    loom::{
        hint::spin_loop,
        sync::{Mutex, MutexGuard},
        thread::yield_now,
    },
    model::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Cell, fence},
    std::sync::atomic::Ordering,
};

/// A word in memory that both sides see: the machine's, or a model's. A model's cannot be at an
/// address that is given, so code over such memory is generic over it.
pub trait SharedWord {
    /// Loads it.
    fn load(&self, order: Ordering) -> u64;
    /// Stores it.
    fn store(&self, value: u64, order: Ordering);
}

macro_rules! shared_word {
    ($word:ty) => {
        impl SharedWord for $word {
            #[inline]
            fn load(&self, order: Ordering) -> u64 {
                Self::load(self, order)
            }

            #[inline]
            fn store(&self, value: u64, order: Ordering) {
                Self::store(self, value, order);
            }
        }
    };
}

shared_word!(AtomicU64);
// The code itself, which keeps the machine's words at given addresses, has to compile, too.
#[cfg(loom)]
shared_word!(std::sync::atomic::AtomicU64);

/// The value of an atomic that nobody else can reach.
#[cfg(not(loom))]
#[inline]
pub fn last_of(value: &mut AtomicUsize) -> usize {
    *value.get_mut()
}

/// The value of an atomic that nobody else can reach.
#[cfg(loom)]
pub fn last_of(value: &mut AtomicUsize) -> usize {
    // When a model ends by a panic, what it has made is taken apart outside of it.
    if std::thread::panicking() {
        0
    } else {
        value.load(Ordering::Relaxed)
    }
}

/// A cell for a value that a protocol around it keeps to one OS thread at a time.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct Cell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> Cell<T> {
    /// A cell with this value.
    pub const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// The value, to look at.
    #[inline(always)]
    pub const fn get(&self) -> *const T {
        self.0.get()
    }

    /// The value, to change.
    #[inline(always)]
    pub const fn get_mut(&self) -> *mut T {
        self.0.get()
    }
}

#[cfg(loom)]
#[allow(missing_docs, reason = "the names and meanings of std")]
pub mod model {
    use std::sync::atomic::Ordering;

    /// How the code is made wrong, to see that a model notices.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Wrong {
        Nothing,
        /// Fences and both halves of barriers do nothing.
        NoFences,
        /// Every access is relaxed.
        NoOrder,
    }

    thread_local! {
        // All threads of a model run on one OS thread.
        static WRONG: std::cell::Cell<Wrong> = const { std::cell::Cell::new(Wrong::Nothing) };
    }

    /// Runs `model` in every order.
    pub fn check(model: impl Fn() + Send + Sync + 'static) {
        check_when(Wrong::Nothing, model);
    }

    /// Runs `model` in every order, with the code made wrong.
    pub fn check_when(wrong: Wrong, model: impl Fn() + Send + Sync + 'static) {
        WRONG.set(wrong);
        loom::model(model);
    }

    /// Runs `model` in every order in which threads are interrupted at most so often where they need
    /// not be: for a model that would take too long otherwise.
    pub fn check_with(interruptions: usize, model: impl Fn() + Send + Sync + 'static) {
        WRONG.set(Wrong::Nothing);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(interruptions);
        builder.check(model);
    }

    pub use crate::words::model::SleepyWaiter;

    pub fn fence(order: Ordering) {
        if WRONG.get() != Wrong::NoFences {
            loom::sync::atomic::fence(order);
        }
    }

    /// It is a failure if a change of the value did not come before a look at it, or any access
    /// before a change.
    #[derive(Debug)]
    pub struct Cell<T>(loom::cell::UnsafeCell<T>);

    impl<T> Cell<T> {
        pub fn new(value: T) -> Self {
            Self(loom::cell::UnsafeCell::new(value))
        }

        pub fn get(&self) -> *const T {
            self.0.with(|value| value)
        }

        pub fn get_mut(&self) -> *mut T {
            self.0.with_mut(|value| value)
        }
    }

    /// A value without any order of its own, as the payload of a message is. It is a failure if an
    /// access of one thread did not come before that of another one.
    #[derive(Debug, Default)]
    pub struct Plain<T>(loom::cell::UnsafeCell<T>);

    // SAFETY: a model runs its threads in turns, and none is interrupted in an access.
    unsafe impl<T: Send> Sync for Plain<T> {}

    impl<T: Copy> Plain<T> {
        pub fn new(value: T) -> Self {
            Self(loom::cell::UnsafeCell::new(value))
        }

        pub fn get(&self) -> T {
            // SAFETY: no other thread runs now; see above.
            self.0.with(|value| unsafe { *value })
        }

        pub fn set(&self, new: T) {
            // SAFETY: no other thread runs now; see above.
            self.0.with_mut(|value| unsafe { *value = new });
        }
    }

    fn order(asked: Ordering) -> Ordering {
        if WRONG.get() == Wrong::NoOrder {
            Ordering::Relaxed
        } else {
            asked
        }
    }

    macro_rules! atomic {
        ($($name:ident: $value:ty),*) => {$(
            #[derive(Debug, Default)]
            pub struct $name(loom::sync::atomic::$name);

            impl $name {
                pub fn new(value: $value) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                pub fn load(&self, asked: Ordering) -> $value {
                    self.0.load(order(asked))
                }

                pub fn store(&self, value: $value, asked: Ordering) {
                    self.0.store(value, order(asked));
                }

                pub fn swap(&self, value: $value, asked: Ordering) -> $value {
                    self.0.swap(value, order(asked))
                }
            }
        )*};
    }

    macro_rules! arithmetic {
        ($($name:ident: $value:ty),*) => {$(
            impl $name {
                pub fn fetch_add(&self, value: $value, asked: Ordering) -> $value {
                    self.0.fetch_add(value, order(asked))
                }

                pub fn fetch_sub(&self, value: $value, asked: Ordering) -> $value {
                    self.0.fetch_sub(value, order(asked))
                }
            }
        )*};
    }

    atomic!(AtomicBool: bool, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize);
    arithmetic!(AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize);
}
