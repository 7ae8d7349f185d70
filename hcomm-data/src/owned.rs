//! A lock that costs its usual owner next to nothing.
//!
//! A queue is used by one OS thread nearly always, and by others now and then: to abort it, to
//! synchronise it, to take it over. So one OS thread owns the lock and enters by two plain stores
//! and loads; every other one announces itself, runs a barrier for both sides
//! ([`barrier`](hcomm_transport::barrier)), and waits until the owner is out. Who is in that way may
//! make itself the owner.
//!
//! Why both cannot be inside: the owner stores `inside` and then looks at `claims`; the other one
//! stores `claims` and then looks at `inside`. With a barrier between store and look on both sides,
//! one of the two sees the other. An OS thread that was the owner until a moment ago finds, after
//! it has seen no claim, that it is not the owner any more: the change of owner comes before the end
//! of the claim that it belongs to. It may have stored `inside` meanwhile, which is why every owner
//! has a word of its own for that.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

use hcomm_transport::barrier::{self, Often};
use hcomm_transport::sync::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Cell, Mutex, MutexGuard, Ordering, spin_loop,
    yield_now,
};

/// OS threads that may have owned one lock. Beyond, it has no owner any more, and is a plain one.
const OWNERS: usize = if cfg!(loom) { 2 } else { 8 };

pub(crate) struct Owned<T> {
    /// Which of `owners` it is.
    owner: AtomicUsize,
    /// OS threads that announced themselves or are inside without being the owner.
    claims: AtomicU32,
    fence: Often,
    owners: [Owner; OWNERS],
    others: Mutex<()>,
    value: Cell<T>,
}

#[derive(Default)]
struct Owner {
    /// Number of the OS thread; 0 for nobody.
    thread: AtomicU64,
    inside: AtomicBool,
}

// SAFETY: the value is reached through a guard only, and there is one guard at a time; see the
// head of this file.
unsafe impl<T: Send> Sync for Owned<T> {}

impl<T: Default> Default for Owned<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// The value, while nobody else can reach it.
pub(crate) struct Guard<'a, T> {
    lock: &'a Owned<T>,
    /// The owner that is inside; `None` if it is somebody else.
    owner: Option<&'a Owner>,
    /// The turn of somebody else. Not an enum of the two: its padding would be copied byte by byte
    /// wherever a guard is moved, and loading such bytes in one piece stalls for 10 ns.
    turn: MaybeUninit<MutexGuard<'a, ()>>,
    /// Stays on its OS thread.
    _here: PhantomData<*mut T>,
}

impl<T> Owned<T> {
    /// A lock without an owner.
    pub(crate) fn new(value: T) -> Self {
        Self {
            owner: AtomicUsize::new(OWNERS),
            claims: AtomicU32::new(0),
            fence: Often::here(),
            owners: Default::default(),
            others: Mutex::new(()),
            value: Cell::new(value),
        }
    }

    /// Enters, as the OS thread with this number (not 0).
    ///
    /// # Panics
    /// If this OS thread is inside already, as its owner.
    #[inline(always)]
    pub(crate) fn lock(&self, here: u64) -> Guard<'_, T> {
        match self.enter(here) {
            Ok(guard) => guard,
            Err(Outside::Other) => self.claim(),
            Err(Outside::Again) => entered_again(),
        }
    }

    /// Enters, and is the owner from now on.
    ///
    /// # Panics
    /// As [`Owned::lock`].
    #[inline]
    pub(crate) fn take(&self, here: u64) -> Guard<'_, T> {
        let guard = self.lock(here);
        guard.own(here);
        guard
    }

    /// Enters unless somebody is inside.
    #[inline]
    pub(crate) fn try_lock(&self, here: u64) -> Option<Guard<'_, T>> {
        match self.enter(here) {
            Ok(guard) => Some(guard),
            Err(Outside::Other) => self.try_claim(),
            Err(Outside::Again) => None,
        }
    }

    /// Enters if this is the owner and nobody else wants to.
    #[inline(always)]
    fn enter(&self, here: u64) -> Result<Guard<'_, T>, Outside> {
        let index = self.owner.load(Ordering::Relaxed);
        let Some(owner) = self.owners.get(index) else {
            return Err(Outside::Other);
        };
        if owner.thread.load(Ordering::Relaxed) != here {
            return Err(Outside::Other);
        }
        // Only this OS thread stores it.
        if owner.inside.load(Ordering::Relaxed) {
            return Err(Outside::Again);
        }
        owner.inside.store(true, Ordering::Relaxed);
        self.fence.fence();
        // In this order; see the head of this file.
        if self.claims.load(Ordering::Acquire) == 0 && self.owner.load(Ordering::Acquire) == index {
            return Ok(Guard {
                lock: self,
                owner: Some(owner),
                turn: MaybeUninit::uninit(),
                _here: PhantomData,
            });
        }
        owner.inside.store(false, Ordering::Release);
        Err(Outside::Other)
    }

    #[cold]
    fn claim(&self) -> Guard<'_, T> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        let turn = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        barrier::seldom();
        let mut rounds = 0_u32;
        while self.owner_is_inside() {
            rounds += 1;
            if rounds.is_multiple_of(64) {
                yield_now();
            } else {
                spin_loop();
            }
        }
        Guard {
            lock: self,
            owner: None,
            turn: MaybeUninit::new(turn),
            _here: PhantomData,
        }
    }

    #[cold]
    fn try_claim(&self) -> Option<Guard<'_, T>> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        let turn = match self.others.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(turn) = turn {
            barrier::seldom();
            if !self.owner_is_inside() {
                return Some(Guard {
                    lock: self,
                    owner: None,
                    turn: MaybeUninit::new(turn),
                    _here: PhantomData,
                });
            }
        }
        self.claims.fetch_sub(1, Ordering::Release);
        None
    }

    fn owner_is_inside(&self) -> bool {
        self.owners
            .get(self.owner.load(Ordering::Relaxed))
            .is_some_and(|owner| owner.inside.load(Ordering::Acquire))
    }
}

enum Outside {
    /// Not the owner, or somebody else wants to be inside.
    Other,
    /// Inside already.
    Again,
}

#[cold]
fn entered_again() -> ! {
    panic!("a queue was entered again by a call from inside it")
}

impl<T> Guard<'_, T> {
    /// Makes the OS thread with this number, which holds this guard, the owner from now on.
    pub(crate) fn own(&self, here: u64) {
        if self.owner.is_some() {
            return;
        }
        let owners = &self.lock.owners;
        let known = owners
            .iter()
            .position(|owner| [0, here].contains(&owner.thread.load(Ordering::Relaxed)))
            .unwrap_or(OWNERS);
        if let Some(owner) = owners.get(known) {
            owner.thread.store(here, Ordering::Relaxed);
        }
        self.lock.owner.store(known, Ordering::Release);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the one guard.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the one guard.
        unsafe { &mut *self.lock.value.get_mut() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(owner) = self.owner {
            owner.inside.store(false, Ordering::Release);
            return;
        }
        self.lock.claims.fetch_sub(1, Ordering::Release);
        // SAFETY: without an owner there is a turn, and it ends once, here.
        unsafe { self.turn.assume_init_drop() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// More OS threads than can be owners, all adding to one plain number and taking the lock over
    /// now and then.
    #[test]
    fn one_at_a_time() {
        const THREADS: u64 = OWNERS as u64 + 2;
        const ROUNDS: u64 = if cfg!(miri) { 20 } else { 2000 };
        let lock = Owned::new(0_u64);
        std::thread::scope(|scope| {
            for here in 1..=THREADS {
                let lock = &lock;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        if round % 7 == 0
                            && let Some(mut guard) = lock.try_lock(here)
                        {
                            *guard += 1;
                            continue;
                        }
                        let mut guard = lock.lock(here);
                        if (round + here) % 11 == 0 {
                            guard.own(here);
                        }
                        *guard += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(1), THREADS * ROUNDS);
    }

    #[test]
    fn inside_is_seen_by_the_owner_and_by_others() {
        let lock = Owned::new(());
        let guard = lock.lock(1);
        guard.own(1);
        assert!(lock.try_lock(2).is_none());
        drop(guard);
        let guard = lock.try_lock(1).unwrap();
        assert!(lock.try_lock(1).is_none());
        assert!(lock.try_lock(2).is_none());
        drop(guard);
        assert!(lock.try_lock(2).is_some());
        assert!(lock.try_lock(1).is_some());
    }

    #[test]
    #[should_panic(expected = "entered again")]
    fn an_owner_that_enters_again_is_told() {
        let lock = Owned::new(());
        lock.lock(1).own(1);
        let _inside = lock.lock(1);
        let _again = lock.lock(1);
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use hcomm_transport::sync::model::{Wrong, check, check_when};
    use loom::thread;

    use super::*;

    /// The owner enters twice, while another OS thread enters once.
    fn owner_and_other() {
        let lock = Arc::new(Owned::new(0_u32));
        lock.lock(1).own(1);
        let other = Arc::clone(&lock);
        let second = thread::spawn(move || *other.lock(2) += 1);
        for _ in 0..2 {
            *lock.lock(1) += 1;
        }
        second.join().unwrap();
        assert_eq!(*lock.lock(1), 3);
    }

    /// Another OS thread takes the lock over while the owner enters, and enters as its owner then.
    fn taken_over() {
        let lock = Arc::new(Owned::new(0_u32));
        lock.lock(1).own(1);
        let other = Arc::clone(&lock);
        let second = thread::spawn(move || {
            let mut guard = other.lock(2);
            guard.own(2);
            *guard += 1;
            drop(guard);
            *other.lock(2) += 1;
        });
        *lock.lock(1) += 1;
        second.join().unwrap();
        assert_eq!(*lock.lock(1), 3);
    }

    /// The owner, and one who only tries.
    fn tried() {
        let lock = Arc::new(Owned::new(0_u32));
        lock.lock(1).own(1);
        let other = Arc::clone(&lock);
        let second = thread::spawn(move || match other.try_lock(2) {
            Some(mut guard) => {
                *guard += 1;
                1
            }
            None => 0,
        });
        *lock.lock(1) += 1;
        let more = second.join().unwrap();
        assert_eq!(*lock.lock(1), 1 + more);
    }

    /// Two others, one of which takes the lock over, and the owner.
    fn two_others() {
        let lock = Arc::new(Owned::new(0_u32));
        lock.lock(1).own(1);
        let others = [2, 3].map(|here| {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                let mut guard = lock.lock(here);
                if here == 2 {
                    guard.own(here);
                }
                *guard += 1;
            })
        });
        *lock.lock(1) += 1;
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(*lock.lock(1), 3);
    }

    #[test]
    fn one_at_a_time() {
        check(owner_and_other);
    }

    #[test]
    fn one_at_a_time_while_it_is_taken_over() {
        check(taken_over);
    }

    #[test]
    fn one_at_a_time_when_one_only_tries() {
        check(tried);
    }

    #[test]
    fn one_at_a_time_of_three() {
        check(two_others);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_fences_it_is_seen() {
        check_when(Wrong::NoFences, owner_and_other);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_order_it_is_seen() {
        check_when(Wrong::NoOrder, owner_and_other);
    }
}
