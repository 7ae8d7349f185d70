//! Who runs queued tasks: the OS thread that last used a queue, whenever it calls or waits.
//!
//! Each OS thread has a list of the queues that have something left to do and whose home it is,
//! whatever communicator they belong to: so a wait that was queued before its record runs when
//! the record has been made, by the same OS thread or by another.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hcomm_transport::{Device, Paused, Phase, Watch};
use hcomm_types::{Deadline, Error, ErrorKind, Nanos};
use smallvec::SmallVec;

use crate::domain::DomainInner;
use crate::looks::Looks;
use crate::owned::Guard;
use crate::queue::{Queue, State};

/// What one OS thread drives.
struct Here {
    /// Queues with something left to do.
    busy: RefCell<Vec<Arc<Queue>>>,
    /// Domains of all queues that had their home here: their devices are moved on.
    domains: RefCell<Vec<Weak<DomainInner>>>,
}

thread_local! {
    static HERE: Here = Here {
        busy: RefCell::new(Vec::with_capacity(64)),
        domains: RefCell::new(Vec::new()),
    };
    /// Number of this OS thread, from 1; 0 until it is asked for.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    /// How many queues are on the list.
    static LISTED: Cell<usize> = const { Cell::new(0) };
    /// Waits that ended before the devices had their turn, in a row.
    static SHORT_WAITS: Cell<u32> = const { Cell::new(0) };
    /// When it was last looked at what rings no bell.
    static CHECKED: Cell<Nanos> = const { Cell::new(Nanos(0)) };
}

/// Number of this OS thread; never that of another one, also of one that has ended.
#[inline]
pub(crate) fn here() -> u64 {
    let number = NUMBER.get();
    if number == 0 { first_number() } else { number }
}

#[cold]
fn first_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

/// How many queues of this OS thread have something left to do.
#[inline]
pub(crate) fn listed() -> usize {
    LISTED.get()
}

/// Makes this OS thread the home of a queue.
#[cold]
pub(crate) fn adopt(queue: &Arc<Queue>, state: &mut Guard<'_, State>) {
    state.own(here());
    queue.home.store(here(), Ordering::Relaxed);
    state.is_listed = false;
    HERE.with(|here| {
        let mut domains = here.domains.borrow_mut();
        domains.retain(|known| known.strong_count() > 0);
        if !domains
            .iter()
            .any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(&queue.domain)))
        {
            domains.push(Arc::downgrade(&queue.domain));
        }
    });
}

/// Puts a queue on the list of its home, which is this OS thread.
pub(crate) fn list(queue: &Arc<Queue>) {
    HERE.with(|here| {
        let mut busy = here.busy.borrow_mut();
        busy.push(Arc::clone(queue));
        LISTED.set(busy.len());
    });
}

/// Notes a wait that ended before the devices had their turn. Now and then they get it all the
/// same: peers may wait for what only this side can do.
#[inline]
pub(crate) fn note_short_wait() {
    const IN_A_ROW: u32 = 32;
    let waits = SHORT_WAITS.get() + 1;
    SHORT_WAITS.set(waits);
    if waits >= IN_A_ROW {
        progress_here();
    }
}

/// Runs what can run in all queues of this OS thread. Returns whether anything happened.
pub(crate) fn drive_queues() -> bool {
    HERE.with(|here| {
        // Taken out while it is used: tasks call plugins and the layer above, which may submit.
        let mut busy = std::mem::take(&mut *here.busy.borrow_mut());
        LISTED.set(0);
        let mut happened = false;
        let number = self::here();
        loop {
            let mut again = false;
            busy.retain(|queue| {
                let Some(mut state) = queue.try_lock() else {
                    // Somebody else is at it: stays if it stays ours.
                    return queue.home.load(Ordering::Relaxed) == number;
                };
                if queue.home.load(Ordering::Relaxed) != number {
                    return false;
                }
                again |= state.advance(queue);
                state.is_listed = state.is_busy();
                state.is_listed
            });
            happened |= again;
            if !again {
                break;
            }
        }
        let mut list = here.busy.borrow_mut();
        busy.append(&mut list);
        LISTED.set(busy.len());
        *list = busy;
        happened
    })
}

/// A wait that is going on: rounds of driving, and pauses between them.
pub(crate) struct Wait<'a, Q>
where
    Q: Iterator<Item = &'a Arc<Queue>> + Clone,
{
    /// The queues that are waited for. Driven even when their home is another OS thread, unless
    /// that is a worker.
    queues: Q,
    /// What their workers have told so far.
    tally: usize,
    domain: &'a DomainInner,
    timeout: Option<Duration>,
    /// When the first look has found nothing, and when it has to end: most waits are over before
    /// they would have to ask the clock.
    times: Option<(Nanos, Deadline)>,
    phase: Phase,
    rounds: u32,
    devices: SmallVec<[Device; 4]>,
}

/// The deadline has passed.
pub(crate) struct TimedOut {
    /// How long the wait lasted.
    pub(crate) elapsed: Duration,
}

impl<'a, Q> Wait<'a, Q>
where
    Q: Iterator<Item = &'a Arc<Queue>> + Clone,
{
    pub(crate) fn new(queues: Q, domain: &'a DomainInner, timeout: Option<Duration>) -> Self {
        let mut phase = Phase::default();
        for inbox in queues.clone().filter_map(|queue| queue.inbox()) {
            inbox.await_it();
            if !inbox.worker.spins() {
                // It needs this core.
                phase.add(domain.waiter().spins());
            }
        }
        Self {
            tally: tally(queues.clone()),
            queues,
            domain,
            timeout,
            times: None,
            phase,
            rounds: 0,
            devices: SmallVec::new(),
        }
    }

    /// Drives until `done` says something.
    pub(crate) fn until<R>(&mut self, mut done: impl FnMut() -> Option<R>) -> Result<R, TimedOut> {
        let mut has_seen = false;
        loop {
            let happened = self.drive();
            if let Some(result) = done() {
                return Ok(result);
            }
            // If what was seen has moved nothing, it is not for who waits here: the clock goes on.
            has_seen = !happened && !has_seen && self.look_closely();
            if has_seen {
                note_short_wait();
            } else if let Err(late) = self.round(happened) {
                // What the last round has found counts more than the clock.
                return done().ok_or(late);
            }
        }
    }

    /// Looks for a short time at nothing but the queues that are waited for, if nothing else of
    /// this OS thread is under way. Returns whether one of them would go on.
    fn look_closely(&mut self) -> bool {
        /// Few enough that peers who need this side's devices hardly notice.
        const LOOKS: u32 = 256;
        if self.phase.rounds() + LOOKS > self.domain.waiter().spins() || !self.is_alone() {
            return false;
        }
        // Nothing comes while no device is asked.
        let mut states = self.queues.clone().filter_map(|queue| queue.try_lock());
        if states.any(|state| state.waits_for_device()) {
            return false;
        }
        let mut looks = Looks::new(LOOKS);
        loop {
            if self.would_advance() {
                return true;
            }
            if !looks.again() {
                break;
            }
        }
        self.phase.add(LOOKS);
        false
    }

    fn is_alone(&self) -> bool {
        HERE.with(|here| {
            here.busy
                .borrow()
                .iter()
                .all(|busy| self.queues.clone().any(|queue| Arc::ptr_eq(busy, queue)))
        })
    }

    fn would_advance(&self) -> bool {
        self.queues.clone().any(would_advance) || self.tally != tally(self.queues.clone())
    }

    /// Runs what can run.
    pub(crate) fn drive(&mut self) -> bool {
        let mut happened = drive_queues();
        let number = here();
        for queue in self.queues.clone() {
            if queue.home.load(Ordering::Relaxed) != number
                && !is_served(queue)
                && let Some(mut state) = queue.try_lock()
            {
                happened |= state.advance(queue);
            }
        }
        let tally = tally(self.queues.clone());
        happened |= self.tally != tally;
        self.tally = tally;
        happened
    }

    /// The rest of a round: devices, a pause if nothing happened, and what has to be looked at now
    /// and then.
    pub(crate) fn round(&mut self, mut happened: bool) -> Result<(), TimedOut> {
        // The clock is not asked in each round of a spin.
        const ROUNDS_A_LOOK: u32 = 64;
        if self.rounds == 0 {
            self.collect_devices();
        }
        SHORT_WAITS.set(0);
        self.rounds = self.rounds.wrapping_add(1);
        happened |= progress(&self.devices);
        let mut look_at_clock = self.rounds.is_multiple_of(ROUNDS_A_LOOK);
        if happened {
            self.phase.restart();
        } else {
            let paused = self.pause();
            look_at_clock |= paused != Paused::Spun;
            match paused {
                Paused::Spun => {}
                // Before a sleep, not after it: who was woken is in a hurry.
                Paused::Yielded => {
                    check_if_due(self.queues.clone(), self.domain.waiter().now());
                }
                Paused::Slept => {
                    // What has arrived counts, even if its sender is gone by now.
                    if progress(&self.devices) | self.drive() {
                        self.phase.restart();
                    } else {
                        check(self.queues.clone(), self.domain.waiter().now());
                    }
                    self.collect_devices();
                }
            }
        }
        if look_at_clock {
            let now = self.domain.waiter().now();
            let (began, deadline) = self.times();
            if deadline.passed(now) {
                return Err(TimedOut {
                    elapsed: now.since(began),
                });
            }
        }
        Ok(())
    }

    /// Devices of this OS thread, and of the domain in case that only workers use it.
    fn collect_devices(&mut self) {
        collect_devices(&mut self.devices);
        self.domain.collect_devices(&mut self.devices);
    }

    fn times(&mut self) -> (Nanos, Deadline) {
        let domain = self.domain;
        let timeout = self.timeout;
        *self.times.get_or_insert_with(|| {
            let began = domain.waiter().now();
            let timeout = timeout.unwrap_or_else(|| domain.timeout());
            (began, Deadline::after(began, timeout))
        })
    }

    fn pause(&mut self) -> Paused {
        let (_, until) = self.times();
        let devices = &self.devices;
        let queues = &self.queues;
        let told = self.tally;
        let mut look = || {
            queues.clone().any(would_advance)
                || told != tally(queues.clone())
                || HERE.with(|here| here.busy.borrow().iter().any(would_advance))
                // Completions are seen only by asking; what it finds is looked at in the next
                // round.
                || progress(devices)
        };
        self.domain.waiter().pause(
            &mut self.phase,
            &mut Watch {
                until,
                interests: &[],
                devices,
                look: &mut look,
            },
        )
    }
}

impl<'a, Q> Drop for Wait<'a, Q>
where
    Q: Iterator<Item = &'a Arc<Queue>> + Clone,
{
    fn drop(&mut self) {
        for inbox in self.queues.clone().filter_map(|queue| queue.inbox()) {
            inbox.await_no_more();
        }
    }
}

/// [`check`], unless this OS thread has done so a moment ago.
pub(crate) fn check_if_due<'a>(waited: impl Iterator<Item = &'a Arc<Queue>>, now: Nanos) {
    /// As long as a sleep.
    const EVERY: Duration = Duration::from_millis(20);
    let last = CHECKED.get();
    // Each domain may have a clock of its own.
    if now < last || now.since(last) >= EVERY {
        check(waited, now);
    }
}

/// Looks at what rings no bell: whether the peers live, whether the links work. For all queues of
/// this OS thread with something left to do, and for some that are waited for.
pub(crate) fn check<'a>(waited: impl Iterator<Item = &'a Arc<Queue>>, now: Nanos) {
    CHECKED.set(now);
    let busy: SmallVec<[Arc<Queue>; 16]> = HERE.with(|here| {
        let mut all: SmallVec<_> = here.busy.borrow().iter().cloned().collect();
        for queue in waited.filter(|queue| !is_served(queue)) {
            if !all.iter().any(|known| Arc::ptr_eq(known, queue)) {
                all.push(Arc::clone(queue));
            }
        }
        all
    });
    let mut asked: SmallVec<[(*const DomainInner, Option<Error>); 4]> = SmallVec::new();
    for queue in &busy {
        let domain = Arc::as_ptr(&queue.domain);
        let lost = match asked.iter().find(|(known, _)| *known == domain) {
            Some((_, lost)) => lost.clone(),
            None => {
                let lost = queue.domain.peers().check().err();
                asked.push((domain, lost.clone()));
                lost
            }
        };
        let mut state = queue.lock();
        // The layer above knows more about a loss than the link does.
        if let Some(lost) = lost {
            state.fail_if_stuck(queue, |_| lost);
        }
        state.check_channels(queue);
    }
}

/// Whether a worker drives it, so that nobody else has to.
fn is_served(queue: &Arc<Queue>) -> bool {
    queue.inbox().is_some_and(|inbox| !inbox.worker.has_ended())
}

/// A number that changes whenever a worker has told something about one of the queues.
fn tally<'a>(queues: impl Iterator<Item = &'a Arc<Queue>>) -> usize {
    queues
        .filter_map(|queue| queue.inbox())
        .fold(0, |sum, inbox| sum.wrapping_add(inbox.tally()))
}

/// Whether one of the queues of this OS thread that have something left to do would go on.
pub(crate) fn listed_would_advance() -> bool {
    LISTED.get() > 0 && HERE.with(|here| here.busy.borrow().iter().any(would_advance))
}

/// Drops what this OS thread drives: it ends.
pub(crate) fn forget() {
    let busy = HERE.with(|here| std::mem::take(&mut *here.busy.borrow_mut()));
    LISTED.set(0);
    drop(busy);
}

fn would_advance(queue: &Arc<Queue>) -> bool {
    // What a worker of another OS thread does is told, not looked at.
    (queue.home.load(Ordering::Relaxed) == here() || !is_served(queue))
        && queue
            .try_lock()
            .is_none_or(|state| state.would_advance(queue))
}

/// Moves all devices in use by this OS thread on, once.
pub(crate) fn progress_here() -> bool {
    SHORT_WAITS.set(0);
    let mut devices = SmallVec::new();
    collect_devices(&mut devices);
    progress(&devices)
}

pub(crate) fn collect_devices(list: &mut SmallVec<[Device; 4]>) {
    list.clear();
    HERE.with(|here| {
        for domain in here.domains.borrow().iter().filter_map(Weak::upgrade) {
            domain.collect_devices(list);
        }
    });
}

/// Moves devices on; returns whether something was done. A device that breaks ends the queues of
/// its domains that have something left to do.
pub(crate) fn progress(devices: &[Device]) -> bool {
    let mut happened = false;
    for device in devices {
        match device.progress() {
            Ok(done) => happened |= done,
            Err(error) => {
                let broken = break_queues(device, &error);
                happened |= broken;
            }
        }
    }
    happened
}

fn break_queues(device: &Device, error: &Error) -> bool {
    HERE.with(|here| {
        let mut broken = false;
        for queue in here.busy.borrow().iter() {
            if queue.domain.has_device(device) {
                queue.poison(error.clone());
                broken = true;
            }
        }
        broken
    })
}

/// What a wait that lasted too long waited for.
pub(crate) fn timed_out(state: &State, domain: &DomainInner, elapsed: Duration) -> Error {
    let (text, label) = state.describe();
    let error = Error::new(ErrorKind::Timeout, text).after(elapsed);
    match label {
        Some(label) => domain.peers().explain(label, error),
        None => error,
    }
}
