//! Workers: OS threads of ours that drive the queues given to them.
//!
//! A worker belongs to a domain and has a number in it. It starts with the first thread that names
//! it, and ends when the last of its queues is let go, or when the domain is aborted. It looks at
//! the inboxes of its queues and at the heads of those that have something left to do, moves the
//! devices on, and pauses in the one waiter of the process: the same rounds as a caller's
//! [`Wait`](crate::driver::Wait), without an end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread::{JoinHandle, ThreadId};

use hcomm_transport::sync::{AtomicBool, Ordering};
use hcomm_transport::{Device, Paused, Phase, Waiter, Watch};
use hcomm_types::{Deadline, Error, ErrorKind, Nanos, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use smallvec::SmallVec;

use crate::domain::DomainInner;
use crate::driver;
use crate::looks::Looks;
use crate::queue::Queue;

/// Which worker drives a thread, and where it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuTs {
    number: u32,
    core: Option<u32>,
}

impl CpuTs {
    /// The worker with this number. Threads of one domain that name the same number share a
    /// worker; 0 is the default.
    #[must_use]
    pub const fn worker(number: u32) -> Self {
        Self { number, core: None }
    }

    /// On this core alone: the number of a logical processor. Without, it may run wherever the OS
    /// thread that makes it may.
    #[must_use]
    pub const fn on_core(mut self, core: u32) -> Self {
        self.core = Some(core);
        self
    }
}

pub(crate) struct Worker {
    options: CpuTs,
    waiter: Arc<dyn Waiter>,
    /// Whether it may be about to sleep: who gives it something to do has to wake it.
    drowsy: AtomicBool,
    /// Whether queues have arrived.
    changed: AtomicBool,
    /// Whether it drives nothing any more.
    ended: AtomicBool,
    /// Looks before it yields.
    spins: u32,
    roster: Mutex<Roster>,
}

#[derive(Default)]
struct Roster {
    /// Queues that it has not seen yet.
    arrived: Vec<Arc<Queue>>,
    /// All that it was given.
    known: Vec<Weak<Queue>>,
    /// How many of them have a handle left.
    open: usize,
    /// Queues that are about to be given.
    reserved: usize,
    /// Whether it takes no more.
    is_ending: bool,
    os_thread: Option<(ThreadId, JoinHandle<()>)>,
}

/// A queue, as its worker keeps it.
struct Served {
    queue: Arc<Queue>,
    /// What it had done at the last look at the clock, and when that was another number.
    moves: u64,
    since: Nanos,
}

impl Worker {
    /// Starts a worker, with a queue reserved. `others` are the workers of the domain besides.
    pub(crate) fn start(domain: &DomainInner, options: CpuTs, others: usize) -> Result<Arc<Self>> {
        let waiter = domain.waiter_shared();
        // Every rank is taken to have as many workers as this one.
        let spins = waiter.spins_beside(1 + others);
        let worker = Arc::new(Self {
            options,
            spins,
            waiter,
            drowsy: AtomicBool::new(false),
            changed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            roster: Mutex::new(Roster {
                reserved: 1,
                ..Roster::default()
            }),
        });
        let (tell, told) = mpsc::sync_channel(1);
        let serving = Arc::clone(&worker);
        let handle = std::thread::Builder::new()
            .name(format!("hcomm-worker-{}", options.number))
            .spawn(move || {
                let pinned = options.core.map_or(Ok(()), pin);
                let is_pinned = pinned.is_ok();
                // Whoever starts it waits for this.
                if tell.send(pinned).is_ok() && is_pinned {
                    serving.serve();
                }
            })
            .map_err(|error| {
                Error::new(
                    ErrorKind::LimitReached,
                    format!("worker {} cannot be started: {error}", options.number),
                )
                .hint("look at `ulimit -u` and at the limit of tasks of the cgroup")
            })?;
        let pinned = told.recv().unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Internal,
                format!("worker {} ended before it began", options.number),
            ))
        });
        if let Err(error) = pinned {
            // It has nothing to do but to end.
            let _ = handle.join();
            return Err(error);
        }
        worker.roster().os_thread = Some((handle.thread().id(), handle));
        Ok(worker)
    }

    /// A worker without an OS thread: a model does what it would do.
    #[cfg(all(test, loom))]
    pub(crate) fn without_thread(waiter: Arc<dyn Waiter>) -> Self {
        Self {
            options: CpuTs::default(),
            waiter,
            drowsy: AtomicBool::new(false),
            changed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            spins: 0,
            roster: Mutex::default(),
        }
    }

    pub(crate) const fn options(&self) -> CpuTs {
        self.options
    }

    pub(crate) const fn has_number(&self, options: CpuTs) -> bool {
        self.options.number == options.number
    }

    /// Keeps it alive for a queue that is about to be given; `false` if it takes no more.
    pub(crate) fn reserve(&self, options: CpuTs) -> Result<bool> {
        let mut roster = self.roster();
        if roster.is_ending {
            return Ok(false);
        }
        if let Some(core) = options.core
            && self.options.core != Some(core)
        {
            let found = self.options.core.map_or_else(
                || "on no core of its own".to_owned(),
                |core| format!("on core {core}"),
            );
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "worker {} runs {found} already, and was asked for on core {core}",
                    options.number
                ),
            )
            .hint("name the core with the first thread of a worker, or use another worker"));
        }
        roster.reserved += 1;
        Ok(true)
    }

    /// There will be no queue.
    pub(crate) fn give_back(&self) {
        self.roster().reserved -= 1;
        self.changed.store(true, Ordering::Release);
        self.wake();
    }

    /// Gives it the queue that was reserved.
    pub(crate) fn deliver(&self, queue: &Arc<Queue>) {
        let mut roster = self.roster();
        roster.reserved -= 1;
        roster.arrived.push(Arc::clone(queue));
        roster.known.retain(|known| known.strong_count() > 0);
        roster.known.push(Arc::downgrade(queue));
        roster.open += 1;
        drop(roster);
        self.changed.store(true, Ordering::Release);
        self.wake();
    }

    /// The last handle of a queue is about to go. If it is the last queue and all is done, returns
    /// when the OS thread has ended.
    pub(crate) fn close(&self, domain: &DomainInner) {
        let handle = {
            let mut roster = self.roster();
            roster.open = roster.open.saturating_sub(1);
            let all_done = || {
                roster
                    .known
                    .iter()
                    .filter_map(Weak::upgrade)
                    .all(|queue| queue.inbox().is_none_or(|inbox| inbox.is_done()))
            };
            if roster.open + roster.reserved == 0 && (domain.aborted().is_some() || all_done()) {
                roster.is_ending = true;
                roster.take_handle()
            } else {
                None
            }
        };
        self.wake();
        join(handle);
    }

    /// Returns when the OS thread has ended. For a domain that is aborted.
    pub(crate) fn join(&self) {
        let handle = {
            let mut roster = self.roster();
            roster.is_ending = true;
            roster.take_handle()
        };
        self.wake();
        join(handle);
    }

    /// Whether it drives nothing any more: whoever needs it done does it.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether it spins while it waits: then it has a core.
    pub(crate) const fn spins(&self) -> bool {
        self.spins > 1
    }

    #[inline]
    pub(crate) fn is_drowsy(&self) -> bool {
        self.drowsy.load(Ordering::Relaxed)
    }

    pub(crate) fn wake(&self) {
        self.waiter.wake();
    }

    fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of the OS thread.
    fn serve(&self) {
        let mut served = Vec::new();
        let outcome = catch_unwind(AssertUnwindSafe(|| self.rounds(&mut served)));
        if outcome.is_err() {
            let mut roster = self.roster();
            roster.is_ending = true;
            let arrived = std::mem::take(&mut roster.arrived);
            drop(roster);
            for queue in served.iter().map(|s| &s.queue).chain(&arrived) {
                queue.domain.give_up(&Error::new(
                    ErrorKind::Internal,
                    format!("worker {} panicked", self.options.number),
                ));
            }
        }
        driver::forget();
        self.ended.store(true, Ordering::Release);
        // Who waits for one of its queues sees to the rest.
        self.wake();
    }

    fn rounds(&self, served: &mut Vec<Served>) {
        // Peers may wait for what only this side can do, however much there is to do here.
        const BUSY_ROUNDS: u32 = 32;
        const ROUNDS_A_LOOK: u32 = 64;
        const LOOKS: u32 = 256;
        // However busy one queue is, another one has its deadline and its peer.
        const TURNS_A_CHECK: u32 = 1 << 16;
        let skipped = self.waiter.spins().saturating_sub(self.spins);
        let fresh = || {
            let mut phase = Phase::default();
            phase.add(skipped);
            phase
        };
        let mut phase = fresh();
        let mut devices = SmallVec::new();
        let mut stale = true;
        let mut busy_rounds = 0_u32;
        let mut rounds = 0_u32;
        let mut turns = 0_u32;
        loop {
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(TURNS_A_CHECK) {
                driver::check(std::iter::empty(), self.waiter.now());
                self.look_at_clock(served);
            }
            if self.changed.load(Ordering::Relaxed) {
                self.welcome(served);
                stale = true;
            }
            if drive(served) {
                phase = fresh();
                stale = true;
                busy_rounds += 1;
                if busy_rounds == BUSY_ROUNDS {
                    busy_rounds = 0;
                    driver::progress_here();
                }
                continue;
            }
            if self.is_over(served) {
                return;
            }
            // Where devices have to be asked for what arrives, nothing comes meanwhile.
            let is_told = !devices.iter().any(Device::needs_watching);
            if is_told && phase.rounds() + LOOKS <= self.waiter.spins() {
                let mut looks = Looks::new(LOOKS);
                let found = loop {
                    if self.would_go_on(served) {
                        break true;
                    }
                    if !looks.again() {
                        break false;
                    }
                };
                phase.add(LOOKS);
                if found {
                    continue;
                }
            }
            busy_rounds = 0;
            if stale {
                driver::collect_devices(&mut devices);
                stale = false;
            }
            if driver::progress(&devices) {
                phase = fresh();
                continue;
            }
            rounds = rounds.wrapping_add(1);
            let paused = self.pause(served, &mut phase, &devices);
            match paused {
                Paused::Spun => {}
                // Before a sleep, not after it: who was woken is in a hurry.
                Paused::Yielded => driver::check_if_due(std::iter::empty(), self.waiter.now()),
                Paused::Slept => {
                    // What has arrived counts, even if its sender is gone by now.
                    if driver::progress(&devices) | drive(served) {
                        phase = fresh();
                    } else {
                        driver::check(std::iter::empty(), self.waiter.now());
                    }
                    stale = true;
                }
            }
            if paused != Paused::Spun || rounds.is_multiple_of(ROUNDS_A_LOOK) {
                self.look_at_clock(served);
            }
        }
    }

    /// Takes over the queues that have arrived.
    #[cold]
    fn welcome(&self, served: &mut Vec<Served>) {
        self.changed.store(false, Ordering::Relaxed);
        let arrived = std::mem::take(&mut self.roster().arrived);
        for queue in arrived {
            driver::adopt(&queue, &mut queue.lock());
            served.push(Served {
                queue,
                moves: 0,
                since: self.waiter.now(),
            });
        }
    }

    /// Lets go of queues that nobody uses any more. Returns whether all is over.
    fn is_over(&self, served: &mut Vec<Served>) -> bool {
        let aborted = served.iter().any(|s| s.queue.domain.aborted().is_some());
        if !aborted && !served.is_empty() && !served.iter().any(Served::is_over) {
            return false;
        }
        served.retain(|s| !s.is_over());
        if !aborted && !served.is_empty() {
            return false;
        }
        let mut roster = self.roster();
        if !roster.arrived.is_empty() || roster.reserved > 0 {
            return false;
        }
        roster.is_ending = true;
        true
    }

    fn would_go_on(&self, served: &[Served]) -> bool {
        self.changed.load(Ordering::Relaxed)
            || driver::listed_would_advance()
            || served.iter().any(|s| {
                s.queue.inbox().is_some_and(|inbox| inbox.has_news())
                    || s.queue.domain.aborted().is_some()
                    || s.is_over()
            })
    }

    fn pause(&self, served: &[Served], phase: &mut Phase, devices: &[Device]) -> Paused {
        let mut look = || self.would_go_on(served) || driver::progress(devices);
        self.pause_unless(phase, devices, &mut look)
    }

    /// Pauses, and says before that it may fall asleep; unless a last look finds something.
    pub(crate) fn pause_unless(
        &self,
        phase: &mut Phase,
        devices: &[Device],
        look: &mut dyn FnMut() -> bool,
    ) -> Paused {
        // Before the barrier that the waiter runs before it looks: who submits later sees it.
        let drowsy = phase.rounds() >= self.waiter.spins();
        if drowsy {
            self.drowsy.store(true, Ordering::Relaxed);
        }
        let paused = self.waiter.pause(
            phase,
            &mut Watch {
                until: Deadline::NEVER,
                interests: &[],
                devices,
                look,
            },
        );
        if drowsy {
            self.drowsy.store(false, Ordering::Relaxed);
        }
        paused
    }

    /// Ends what has stood still for too long.
    fn look_at_clock(&self, served: &mut [Served]) {
        let mut now = None;
        for Served {
            queue,
            moves,
            since,
        } in served
        {
            if queue.inbox().is_none_or(|inbox| inbox.is_done()) {
                continue;
            }
            let Some(mut state) = queue.try_lock() else {
                continue;
            };
            let now = *now.get_or_insert_with(|| self.waiter.now());
            if *moves != state.moves() {
                (*moves, *since) = (state.moves(), now);
            } else if state.is_busy() && Deadline::after(*since, queue.domain.timeout()).passed(now)
            {
                let cause = driver::timed_out(&state, &queue.domain, now.since(*since));
                state.poison(&queue.domain, cause);
            }
        }
    }
}

impl Roster {
    /// To be joined, unless this is the OS thread itself.
    fn take_handle(&mut self) -> Option<JoinHandle<()>> {
        let (id, _) = self.os_thread.as_ref()?;
        if *id == std::thread::current().id() {
            return None;
        }
        self.os_thread.take().map(|(_, handle)| handle)
    }
}

impl Served {
    /// Whether it is done and nobody can give it more.
    fn is_over(&self) -> bool {
        self.queue.inbox().is_none_or(|inbox| {
            (inbox.is_closed.load(Ordering::Acquire) || Arc::strong_count(&self.queue) == 1)
                && inbox.is_done()
        })
    }
}

/// Runs what can run. Returns whether anything happened.
fn drive(served: &[Served]) -> bool {
    let mut happened = false;
    for Served { queue, .. } in served {
        if queue.inbox().is_some_and(|inbox| inbox.has_news())
            && let Some(mut state) = queue.try_lock()
        {
            happened |= state.advance(queue);
            queue.list_if_busy(&mut state);
        }
    }
    if driver::listed() > 0 {
        happened |= driver::drive_queues();
    }
    happened
}

fn join(handle: Option<JoinHandle<()>>) {
    if let Some(handle) = handle {
        // Its panics are caught and told.
        let _ = handle.join();
    }
}

/// Pins this OS thread to a core.
fn pin(core: u32) -> Result<()> {
    let mut set = CpuSet::new();
    let known = (core as usize) < CpuSet::MAX_CPU;
    if known {
        set.set(core as usize);
    }
    if known && sched_setaffinity(None, &set).is_ok() {
        return Ok(());
    }
    // Asked for all of them, the system leaves those that it allows.
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|core| all.set(core));
    let _ = sched_setaffinity(None, &all);
    let allowed: Vec<String> = sched_getaffinity(None)
        .map(|set| {
            (0..CpuSet::MAX_CPU)
                .filter(|&core| set.is_set(core))
                .map(|core| core.to_string())
                .collect()
        })
        .unwrap_or_default();
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!(
            "a worker cannot run on core {core}: this process may use {}",
            allowed.join(", ")
        ),
    )
    .hint("choose one of those, or leave the choice to the system"))
}
