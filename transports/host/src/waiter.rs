//! The one place where the library waits, and the clock beside it.
//!
//! Everything above is written as state machines that are looked at again and again and never
//! block. A loop around them calls [`Waiter::pause`] after each look that found nothing to do. The
//! real waiter spins, then yields, then sleeps; a simulation hands in its own, with its own clock.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use hcomm_types::{Deadline, Nanos, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::bell::Bell;
use crate::device::Device;

/// Waits, and tells the time.
pub trait Waiter: Send + Sync + fmt::Debug {
    /// Now.
    fn now(&self) -> Nanos;

    /// Called after a look that found nothing to do. Returns when it is worth to look again: at
    /// once, when something rang, when a watched descriptor is ready, or at the latest some slices
    /// later, so that the caller can look at what rings no bell (deaths, deadlines).
    fn pause(&self, phase: &mut Phase, watch: &mut Watch<'_>) -> Paused;

    /// Looks, of a few nanoseconds each, that a wait may make before its first pause, and that
    /// count as rounds of the spinning phase. None in a simulation, where nothing changes meanwhile.
    fn spins(&self) -> u32 {
        0
    }

    /// Lets others run that share the core of this OS thread, where ranks share cores: returns whether
    /// it has done so. Where each has a core of its own, looking again is better.
    fn give_way(&self) -> bool {
        false
    }

    /// As [`Waiter::spins`], for a wait beside `others` more OS threads of each rank that compute
    /// or wait: few where those would need the core.
    fn spins_beside(&self, others: usize) -> u32 {
        let _ = others;
        self.spins()
    }

    /// Wakes every thread that sleeps in `pause`. Any thread.
    fn wake(&self);
}

/// How long one wait has lasted. Make a new one for each wait, or [`Phase::restart`] it when a
/// look has found something to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Phase {
    rounds: u32,
}

impl Phase {
    /// Rounds so far.
    #[must_use]
    pub const fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Counts looks that were made without a pause.
    pub const fn add(&mut self, rounds: u32) {
        self.rounds = self.rounds.saturating_add(rounds);
    }

    /// Back to spinning.
    pub const fn restart(&mut self) {
        self.rounds = 0;
    }
}

/// What may end a sleep, besides the bell.
pub struct Watch<'a> {
    /// When to be back at the latest.
    pub until: Deadline,
    /// Descriptors to watch as well.
    pub interests: &'a [Interest<'a>],
    /// Devices in use: those that need it are armed before a sleep and watched.
    pub devices: &'a [Device],
    /// Looks whether there is something to do, without doing it. Called once more when ringers
    /// can see that somebody is about to sleep.
    pub look: &'a mut dyn FnMut() -> bool,
}

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("until", &self.until)
            .field("interests", &self.interests)
            .finish_non_exhaustive()
    }
}

/// A descriptor and what is awaited of it; an error or hang-up counts as both.
#[derive(Clone, Copy, Debug)]
pub struct Interest<'a> {
    /// The descriptor.
    pub fd: BorrowedFd<'a>,
    /// Whether input is awaited.
    pub readable: bool,
    /// Whether room for output is awaited.
    pub writable: bool,
}

/// What a pause was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paused {
    /// A few nanoseconds.
    Spun,
    /// Other threads may have run.
    Yielded,
    /// It slept: time to look at deaths and deadlines.
    Slept,
}

/// How patient the spinning phases are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPolicy {
    /// Looks before the first yield.
    pub spins: u32,
    /// Yields before the first sleep.
    pub yields: u32,
    /// First sleeps in one piece; when a wait goes on, they become up to
    /// [`LONGEST_SLICES`](Self::LONGEST_SLICES) times as long.
    pub slice: Duration,
    /// Cores that each rank has beyond its first.
    pub spare: usize,
}

impl WaitPolicy {
    /// The longest sleep, in slices: each piece costs some system calls with cold caches, and who
    /// has waited for a second can learn of a death a tenth of a second later.
    pub const LONGEST_SLICES: u32 = 5;
    /// A look, and then sleep.
    pub const ASLEEP: Self = Self {
        spins: 1,
        yields: 0,
        slice: Duration::from_millis(20),
        spare: 0,
    };

    /// Sleeps of one length, before they become a slice longer.
    const SLEEPS_A_LENGTH: u32 = 4;

    /// The length of a sleep, after so many before it in the same wait.
    fn sleep_after(self, sleeps: u32) -> Duration {
        self.slice * (1 + sleeps / Self::SLEEPS_A_LENGTH).min(Self::LONGEST_SLICES)
    }

    /// For a process on a host where `local_ranks` ranks share `cores` cores. With a core for each
    /// rank a spin is the fastest way to see a notify; without, whoever spins keeps the one it
    /// waits for from running.
    #[must_use]
    pub const fn for_load(local_ranks: usize, cores: usize) -> Self {
        let slice = Duration::from_millis(20);
        if local_ranks <= cores {
            let share = match cores.checked_div(local_ranks) {
                Some(share) => share,
                None => cores,
            };
            Self {
                spins: 2000,
                yields: 100,
                slice,
                spare: share.saturating_sub(1),
            }
        } else {
            Self {
                spins: 1,
                yields: 200,
                slice,
                spare: 0,
            }
        }
    }
}

impl Default for WaitPolicy {
    fn default() -> Self {
        Self::for_load(1, 1)
    }
}

/// The real waiter: the monotonic clock, the bell of this process, `poll`.
#[derive(Debug)]
pub struct SystemWaiter {
    bell: &'static Bell,
    policy: WaitPolicy,
}

impl SystemWaiter {
    /// A waiter with this patience.
    ///
    /// # Errors
    /// Those of [`Bell::process`].
    pub fn new(policy: WaitPolicy) -> Result<Self> {
        Ok(Self {
            bell: Bell::process()?,
            policy,
        })
    }

    /// `sleeps` is how many there were before.
    fn sleep(&self, sleeps: u32, watch: &mut Watch<'_>) -> Paused {
        let until_end = |slice: Duration| match watch.until.moment() {
            Some(end) => end.since(self.now()).min(slice),
            None => slice,
        };
        let watched: Vec<BorrowedFd<'_>> = watch
            .devices
            .iter()
            .filter(|d| d.needs_watching())
            .filter_map(Device::wake_fd)
            .collect();
        let slept = if watched.is_empty() && watch.interests.is_empty() {
            let slice = until_end(self.policy.sleep_after(sleeps));
            self.bell.sleep(slice, watch.look)
        } else {
            // Of several threads that poll, one may take a ring from another.
            let slice = until_end(self.policy.slice);
            let (devices, look) = (watch.devices, &mut *watch.look);
            // A device that has something already must not be slept on.
            let mut arm_and_look = || {
                devices
                    .iter()
                    .filter(|d| d.needs_watching())
                    .any(|d| !d.arm())
                    || look()
            };
            self.bell.sleep_polling(&mut arm_and_look, |eventfd| {
                let mut fds = vec![PollFd::from_borrowed_fd(eventfd, PollFlags::IN)];
                fds.extend(
                    watched
                        .iter()
                        .map(|&fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
                );
                fds.extend(watch.interests.iter().map(|interest| {
                    let mut flags = PollFlags::empty();
                    flags.set(PollFlags::IN, interest.readable);
                    flags.set(PollFlags::OUT, interest.writable);
                    PollFd::from_borrowed_fd(interest.fd, flags)
                }));
                let timeout = Timespec {
                    tv_sec: slice.as_secs() as i64, // a slice is milliseconds
                    tv_nsec: slice.subsec_nanos().into(),
                };
                // Interrupted by a signal, or ready: look again either way.
                let _ = poll(&mut fds, Some(&timeout));
            })
        };
        if slept { Paused::Slept } else { Paused::Spun }
    }
}

impl Waiter for SystemWaiter {
    fn now(&self) -> Nanos {
        now()
    }

    fn pause(&self, phase: &mut Phase, watch: &mut Watch<'_>) -> Paused {
        let round = phase.rounds;
        phase.rounds = round.saturating_add(1);
        if round < self.policy.spins {
            std::hint::spin_loop();
            return Paused::Spun;
        }
        match (round - self.policy.spins).checked_sub(self.policy.yields) {
            None => {
                std::thread::yield_now();
                Paused::Yielded
            }
            Some(sleeps) => self.sleep(sleeps, watch),
        }
    }

    fn give_way(&self) -> bool {
        let shares = self.policy.spins <= 1 && self.policy.yields > 0;
        if shares {
            std::thread::yield_now();
        }
        shares
    }

    fn spins(&self) -> u32 {
        self.policy.spins
    }

    fn spins_beside(&self, others: usize) -> u32 {
        if others <= self.policy.spare {
            self.policy.spins
        } else {
            self.policy.spins.min(1)
        }
    }

    fn wake(&self) {
        self.bell.ring();
    }
}

/// Nanoseconds since the first question of this process.
pub(crate) fn now() -> Nanos {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    Nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_wake_from_another_thread_ends_a_wait_without_end() {
        let waiter = Arc::new(
            SystemWaiter::new(WaitPolicy {
                spins: 2,
                yields: 2,
                slice: Duration::from_secs(600),
                spare: 0,
            })
            .unwrap(),
        );
        let flag = Arc::new(AtomicBool::new(false));
        let sleeping = Arc::new(AtomicBool::new(false));
        let other = {
            let (waiter, flag, sleeping) = (waiter.clone(), flag.clone(), sleeping.clone());
            std::thread::spawn(move || {
                let mut phase = Phase::default();
                let mut slept = false;
                while !flag.load(Ordering::Acquire) {
                    let mut look = || {
                        sleeping.store(true, Ordering::Release);
                        flag.load(Ordering::Acquire)
                    };
                    slept |= waiter.pause(
                        &mut phase,
                        &mut Watch {
                            until: Deadline::NEVER,
                            interests: &[],
                            devices: &[],
                            look: &mut look,
                        },
                    ) == Paused::Slept;
                }
                slept
            })
        };
        while !sleeping.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        flag.store(true, Ordering::Release);
        waiter.wake();
        other.join().unwrap();
    }

    #[test]
    fn sleeps_become_longer_and_no_longer_than_that() {
        let policy = WaitPolicy::for_load(2, 2);
        let lengths: Vec<u128> = (0..30)
            .map(|sleeps| policy.sleep_after(sleeps).as_millis())
            .collect();
        assert_eq!(lengths[..6], [20, 20, 20, 20, 40, 40]);
        assert_eq!(lengths[29], 100);
        assert!(lengths.is_sorted());
        assert_eq!(policy.sleep_after(u32::MAX).as_millis(), 100);
    }

    #[test]
    fn who_has_no_core_of_its_own_does_not_spin() {
        let spins = |ranks, cores, others| {
            let waiter = SystemWaiter::new(WaitPolicy::for_load(ranks, cores)).unwrap();
            waiter.spins_beside(others)
        };
        assert_eq!(spins(2, 4, 0), spins(2, 4, 1));
        assert!(spins(2, 4, 1) > 1);
        assert_eq!(spins(2, 4, 2), 1);
        assert_eq!(spins(2, 2, 1), 1);
        assert_eq!(spins(2, 3, 1), 1);
        assert_eq!(spins(4, 2, 0), 1);
    }

    #[test]
    fn a_wait_comes_back_at_its_end() {
        let waiter = SystemWaiter::new(WaitPolicy {
            spins: 0,
            yields: 0,
            slice: Duration::from_secs(600),
            spare: 0,
        })
        .unwrap();
        let end = Deadline::after(waiter.now(), Duration::from_millis(1));
        let mut phase = Phase::default();
        while !end.passed(waiter.now()) {
            waiter.pause(
                &mut phase,
                &mut Watch {
                    until: end,
                    interests: &[],
                    devices: &[],
                    look: &mut || false,
                },
            );
        }
    }
}
