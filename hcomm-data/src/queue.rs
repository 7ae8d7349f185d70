//! The queue behind a thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use hcomm_types::{Error, Result};
use smallvec::SmallVec;

use crate::channel::Channel;
use crate::domain::DomainInner;
use crate::driver::{self, TimedOut, Wait};
use crate::failure::Failure;
use crate::inbox::{Inbox, Intake};
use crate::looks::Looks;
use crate::memory::Loan;
use crate::message::Step;
use crate::owned::{Guard, Owned};
use crate::program::Program;
use crate::runner::{Now, Patience, Reason, Runner, no_thread_notify};
use crate::work::{Part, Task, Work};
use crate::worker::Worker;

/// Quick looks, or the time of so many, for what may come soon, before a task is queued for it.
const LOOKS: u32 = 512;

/// Turns of a device instead of them, where it has to be asked for what arrives: about as long as the
/// answer of a peer that is busy with nothing else.
const DEVICE_TURNS: u32 = 64;
/// How often others on this core run meanwhile, where ranks share cores: each of a few ranks once or
/// twice.
const TURNS: u32 = 16;
/// Room for tasks before a queue has to grow.
const ROOM: usize = 128;

pub(crate) struct Queue {
    pub(crate) domain: Arc<DomainInner>,
    /// How often each of its own notifies was recorded.
    notifies: Box<[AtomicU64]>,
    /// Number of the OS thread that drives it.
    pub(crate) home: AtomicU64,
    /// How a worker gets its tasks, if one drives it.
    inbox: Option<Arc<Inbox>>,
    state: Owned<State>,
    /// The loan of blocking runs, kept for the next one.
    pub(crate) loan: Mutex<Option<Arc<Loan>>>,
}

pub(crate) struct State {
    tasks: VecDeque<Task>,
    runner: Runner,
    /// The first cause of failure.
    poison: Option<Error>,
    /// Whether its home has it on the list of queues to drive.
    pub(crate) is_listed: bool,
    /// Addresses of devices that the domain was told of.
    known_devices: SmallVec<[usize; 4]>,
    /// Number of the latest channel whose device is among them.
    met: u64,
    /// Number of the latest program all of whose devices are.
    met_program: u64,
    /// Queues of the parts of the latest program.
    team: Option<Arc<[Weak<Queue>]>>,
    /// Where a worker's tasks come from.
    intake: Option<Intake>,
    /// How often something has happened. It wraps.
    moves: u64,
    /// How many tasks have been queued and are over; those that were dropped are not. It wraps.
    passed: usize,
    /// Whether a message was begun in a call that has yet to queue its rest: nothing else runs
    /// before.
    has_begun: bool,
}

/// How far [`Queue::try_now`] has come.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tried {
    Done,
    /// It is to be queued.
    Nothing,
    /// It is to be queued, at the head, and nothing else runs before: some of it is done.
    Begun,
}

impl Queue {
    pub(crate) fn new(
        domain: Arc<DomainInner>,
        notifies: usize,
        worker: Option<Arc<Worker>>,
    ) -> Arc<Self> {
        let runner = Runner::new(domain.peers_shared(), notifies);
        let (inbox, intake) = worker.map(Inbox::new).unzip();
        Arc::new(Self {
            inbox,
            domain,
            notifies: (0..notifies).map(|_| AtomicU64::new(0)).collect(),
            home: AtomicU64::new(0),
            state: Owned::new(State {
                tasks: VecDeque::with_capacity(ROOM),
                runner,
                poison: None,
                is_listed: false,
                known_devices: SmallVec::new(),
                met: 0,
                met_program: 0,
                team: None,
                intake,
                moves: 0,
                passed: 0,
                has_begun: false,
            }),
            loan: Mutex::new(None),
        })
    }

    pub(crate) fn notifies(&self) -> usize {
        self.notifies.len()
    }

    /// How a worker gets its tasks, if one drives it.
    #[inline]
    pub(crate) fn inbox(&self) -> Option<&Inbox> {
        self.inbox.as_deref()
    }

    pub(crate) fn lock(&self) -> Guard<'_, State> {
        self.state.lock(driver::here())
    }

    pub(crate) fn try_lock(&self) -> Option<Guard<'_, State>> {
        self.state.try_lock(driver::here())
    }

    /// Adds one to a notify of this queue, and wakes its driver if that is another OS thread.
    pub(crate) fn record(&self, notify: u32) -> Result<()> {
        let count = self
            .notifies
            .get(notify as usize)
            .ok_or_else(|| no_thread_notify(notify, self.notifies.len()))?;
        count.fetch_add(1, Ordering::Release);
        if self.home.load(Ordering::Relaxed) != driver::here() {
            self.domain.waiter().wake();
        }
        Ok(())
    }

    /// Submits one task: it runs at once if nothing before it is left, and is queued where that
    /// cannot be.
    #[inline]
    pub(crate) fn submit(
        self: &Arc<Self>,
        work: Work<'_>,
        task: impl FnOnce() -> Task,
    ) -> Result<()> {
        if let Some(inbox) = &self.inbox {
            return self.hand_over(inbox, std::iter::once_with(task));
        }
        let mut state = self.open(work.channel())?;
        if state.has_no_tasks() {
            match state.runner.step(work, &self.notifies) {
                Ok(true) => state.runner.next(),
                Ok(false) => state.tasks.push_back(task()),
                Err(failure) => state.fail(&self.domain, failure),
            }
        } else {
            state.tasks.push_back(task());
            state.advance(self);
        }
        self.leave(state)
    }

    /// Does a task at once, if nothing before it is left and `work` can do it whole; otherwise it
    /// has done nothing that may not be done again.
    #[inline]
    pub(crate) fn at_once(
        self: &Arc<Self>,
        channel: &Channel,
        work: impl FnOnce() -> Result<bool, Failure>,
    ) -> Result<bool> {
        if self.inbox.is_some() {
            return Ok(false);
        }
        let mut state = self.open(Some(channel))?;
        if state.is_busy() {
            return Ok(false);
        }
        match work() {
            Ok(true) => {
                drop(state);
                drive_others(0);
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(failure) => {
                state.fail(&self.domain, failure);
                self.leave(state).map(|()| false)
            }
        }
    }

    /// Takes a record of a channel's notify if nothing before it is left, nothing else of this OS
    /// thread is under way, and the record is there or comes within a short time: then there is
    /// nothing to queue.
    pub(crate) fn take_soon(self: &Arc<Self>, channel: &Channel, notify: u32) -> Result<bool> {
        if self.inbox.is_some() {
            return Ok(false);
        }
        let mut state = self.open(Some(channel))?;
        if state.is_busy() || driver::listed() > 0 {
            return Ok(false);
        }
        let spins = self.domain.waiter().spins();
        let mut looks = Looks::new(spins.clamp(1, LOOKS));
        let device = channel.transport().device();
        let mut turns = if device.needs_watching() {
            spins.min(DEVICE_TURNS)
        } else {
            0
        };
        loop {
            match channel.take(notify) {
                Ok(true) => {
                    drop(state);
                    driver::note_short_wait();
                    return Ok(true);
                }
                // It comes only by the device. One that fails is the business of a longer wait.
                Ok(false) if turns > 0 => {
                    turns -= 1;
                    if device.progress().is_err() {
                        return Ok(false);
                    }
                }
                Ok(false) if device.needs_watching() => return Ok(false),
                Ok(false) if looks.again() => {}
                Ok(false) => return Ok(false),
                Err(failure) => {
                    state.fail(&self.domain, failure);
                    return self.leave(state).map(|()| false);
                }
            }
        }
    }

    /// Runs a message on `channel`, over memory that is there for the time of this call, if nothing
    /// before it is left. What is left of it has to be given to [`Queue::submit_rest`].
    #[inline]
    pub(crate) fn try_now(
        self: &Arc<Self>,
        channel: &Channel,
        mut message: impl FnMut(&mut Runner) -> Result<Step, Failure>,
    ) -> Result<Tried> {
        if self.inbox.is_some() {
            return Ok(Tried::Nothing);
        }
        let mut state = self.open(Some(channel))?;
        if !state.has_no_tasks() {
            return Ok(Tried::Nothing);
        }
        let tried = match message(&mut state.runner) {
            Ok(Step::Done) => Tried::Done,
            first => match self.try_again(&mut state, first, message) {
                Ok(tried) => tried,
                Err(failure) => {
                    state.fail(&self.domain, failure);
                    return self.leave(state).map(|()| Tried::Nothing);
                }
            },
        };
        drop(state);
        if tried == Tried::Done {
            drive_others(0);
        }
        Ok(tried)
    }

    /// Goes on with a message that was not done at `first`, for some looks.
    fn try_again(
        &self,
        state: &mut State,
        first: Result<Step, Failure>,
        mut message: impl FnMut(&mut Runner) -> Result<Step, Failure>,
    ) -> Result<Tried, Failure> {
        let most = if driver::listed() > 0 {
            1
        } else {
            self.domain.waiter().spins().clamp(1, LOOKS)
        };
        let mut looks = Looks::new(most);
        let (mut has_waited, mut has_begun) = (false, false);
        let mut step = first?;
        loop {
            match step {
                Step::Done => break,
                Step::Moved => {
                    has_begun = true;
                    looks = Looks::new(most);
                }
                Step::Waits if looks.again() => has_waited = true,
                Step::Waits => {
                    // Another OS thread may submit before this one has queued the rest.
                    state.has_begun = has_begun;
                    return Ok(if has_begun {
                        Tried::Begun
                    } else {
                        Tried::Nothing
                    });
                }
            }
            step = message(&mut state.runner)?;
        }
        if has_waited {
            driver::note_short_wait();
        }
        Ok(Tried::Done)
    }

    /// Runs a program of one thread over memory that is there for the time of this call, if nothing
    /// before it is left. What is left of it has to be given to [`Queue::submit_rest`].
    #[inline]
    pub(crate) fn try_run(self: &Arc<Self>, part: &Part<'_>) -> Result<Tried> {
        if self.inbox.is_some() {
            return Ok(Tried::Nothing);
        }
        let mut state = self.open(None)?;
        state.meet_all(&self.domain, part.program);
        if !state.has_no_tasks() {
            return Ok(Tried::Nothing);
        }
        let waiter = self.domain.waiter();
        let (looks, turns) = if driver::listed() > 0 {
            (1, 0)
        } else {
            (waiter.spins().clamp(1, LOOKS), TURNS)
        };
        let patience = Patience {
            looks,
            turns,
            domain: &self.domain,
        };
        // A panic on the way leaves it so, and then nothing runs after half a program.
        state.has_begun = true;
        let now = state.runner.run_now(part, &self.notifies, &patience);
        state.has_begun = false;
        match now {
            Ok(Now::Rest) => {
                // Another OS thread may submit before this one has queued the rest.
                state.has_begun = state.runner.has_begun();
                Ok(if state.has_begun {
                    Tried::Begun
                } else {
                    state.runner.next();
                    Tried::Nothing
                })
            }
            Ok(done) => {
                drop(state);
                drive_others(0);
                if done == Now::DoneLate {
                    driver::note_short_wait();
                }
                Ok(Tried::Done)
            }
            Err(failure) => {
                let cause = self.domain.explain(failure);
                // As of any program that does not come to its end.
                self.domain.give_up(&cause);
                state.poison(&self.domain, cause);
                self.leave(state).map(|()| Tried::Nothing)
            }
        }
    }

    /// Submits what [`Queue::try_now`] or [`Queue::try_run`] has not done.
    pub(crate) fn submit_rest(self: &Arc<Self>, task: Task, tried: Tried) -> Result<()> {
        if let Some(inbox) = &self.inbox {
            return self.hand_over(inbox, std::iter::once(task));
        }
        let mut state = self.open(None)?;
        if tried == Tried::Begun {
            state.has_begun = false;
            state.tasks.push_front(task);
        } else {
            state.tasks.push_back(task);
        }
        state.advance(self);
        self.leave(state)
    }

    /// Submits a batch of `count` tasks of one channel.
    pub(crate) fn submit_batch<'a>(
        self: &Arc<Self>,
        channel: &Channel,
        count: usize,
        work: impl Fn(usize) -> Work<'a>,
        task: impl Fn(usize) -> Task,
    ) -> Result<()> {
        if let Some(inbox) = &self.inbox {
            let tasks = std::iter::once(Task::Batch(count)).chain((0..count).map(task));
            return self.hand_over(inbox, tasks);
        }
        let mut state = self.open(Some(channel))?;
        let is_first = state.has_no_tasks();
        let done = if is_first {
            let get = |index| Some(work(index));
            match state.runner.batch(channel, count, &self.notifies, get) {
                Ok(true) => {
                    state.runner.next();
                    true
                }
                Ok(false) => false,
                Err(failure) => {
                    state.fail(&self.domain, failure);
                    true
                }
            }
        } else {
            false
        };
        if !done {
            state.tasks.push_back(Task::Batch(count));
            state.tasks.extend((0..count).map(task));
            if !is_first {
                state.advance(self);
            }
        }
        self.leave(state)
    }

    /// Submits a task that is kept anyway, or a part of a program.
    pub(crate) fn submit_task(self: &Arc<Self>, task: Task) -> Result<()> {
        if let Some(inbox) = &self.inbox {
            return self.hand_over(inbox, std::iter::once(task));
        }
        let mut state = self.open(task.channel())?;
        if let Task::Run(run) = &task {
            state.meet_all(&self.domain, &run.program);
        }
        state.tasks.push_back(task);
        state.advance(self);
        self.list_if_busy(&mut state);
        state.result()
    }

    /// Makes this OS thread its home: what is left of it is driven here from now on. Returns
    /// whether nothing is left.
    ///
    /// # Errors
    /// The cause of failure.
    pub(crate) fn come_home(self: &Arc<Self>) -> Result<bool> {
        if self.inbox.is_some() {
            // It stays with its worker.
            return self.is_idle();
        }
        let before = self.home.load(Ordering::Relaxed);
        let mut state = self.open(None)?;
        state.settle(&self.domain);
        let idle = !state.is_busy();
        self.list_if_busy(&mut state);
        let result = state.result().map(|()| idle);
        drop(state);
        if before != 0 && before != driver::here() && !idle {
            self.bring_others(before);
        }
        result
    }

    /// Brings what else of the domain had its home where this one had: it may wait for them, and
    /// whoever had them may make no further call.
    #[cold]
    fn bring_others(&self, before: u64) {
        for other in self.domain.queues() {
            if other.inbox.is_none() && other.home.load(Ordering::Relaxed) == before {
                // Its failure is told to who waits for it.
                let Ok(mut state) = other.open(None) else {
                    continue;
                };
                other.list_if_busy(&mut state);
            }
        }
    }

    /// The end of a wait for it whose deadline has passed: it fails. If it waits for another thread
    /// of the domain, then that one has the cause, and fails, too.
    pub(crate) fn time_out(&self, elapsed: Duration) -> Error {
        let waits_for_thread = matches!(self.lock().runner.reason(), Some(Reason::ThreadNotify(_)));
        let behind = if waits_for_thread {
            let mut all = self.domain.queues().into_iter();
            all.find(|other| !std::ptr::eq(&**other, self) && other.lock().concerns_all())
        } else {
            None
        };
        let late = behind.as_deref().unwrap_or(self);
        let cause = driver::timed_out(&late.lock(), &self.domain, elapsed);
        if let Some(behind) = &behind {
            behind.poison(cause.clone());
        }
        self.poison(cause.clone());
        cause
    }

    /// The cause of failure of this queue or its domain.
    pub(crate) fn poisoned(&self) -> Option<Error> {
        if let Some(inbox) = &self.inbox
            && !inbox.has_failed()
        {
            return self.domain.aborted().cloned();
        }
        let state = self.lock();
        state
            .poison
            .clone()
            .or_else(|| self.domain.aborted().cloned())
    }

    /// Whether nothing is left to do.
    ///
    /// # Errors
    /// The cause of failure.
    pub(crate) fn is_idle(&self) -> Result<bool> {
        if let Some(inbox) = &self.inbox {
            let is_done = inbox.is_done();
            return self.poisoned().map_or(Ok(is_done), Err);
        }
        let mut state = self.lock();
        state.settle(&self.domain);
        match &state.poison {
            Some(cause) => Err(cause.clone()),
            None => Ok(!state.is_busy()),
        }
    }

    /// How many tasks have been queued so far; see [`Queue::has_passed`].
    pub(crate) fn position(&self) -> usize {
        // After a failure, a place that is never reached.
        if let Some(inbox) = &self.inbox {
            return inbox.submitted().wrapping_add(inbox.has_failed().into());
        }
        let state = self.lock();
        // What a call has begun comes before all that is queued.
        let queued =
            state.tasks.len() + usize::from(state.poison.is_some()) + usize::from(state.has_begun);
        state.passed.wrapping_add(queued)
    }

    /// Whether the tasks up to a [position](Queue::position) are over. What fails later does not
    /// change that.
    ///
    /// # Errors
    /// The cause of failure.
    pub(crate) fn has_passed(&self, position: usize) -> Result<bool> {
        let passed = match &self.inbox {
            Some(inbox) => inbox.passed(),
            None => self.lock().passed,
        };
        if position.wrapping_sub(passed).cast_signed() <= 0 {
            return Ok(true);
        }
        self.poisoned().map_or(Ok(false), Err)
    }

    /// Ends it with a cause, unless it has one already. What is queued is dropped.
    pub(crate) fn poison(&self, cause: Error) {
        self.lock().poison(&self.domain, cause);
        if self.home.load(Ordering::Relaxed) != driver::here() {
            self.domain.waiter().wake();
        }
    }

    /// Takes back what a program here lends to peers.
    pub(crate) fn take_back(&self) {
        self.lock().runner.take_back();
    }

    /// Drops what holds lent buffers, if anything does, and fails with `cause` for it.
    pub(crate) fn cancel_lent(&self, cause: impl FnOnce() -> Error) {
        let mut state = self.lock();
        // What is on its way to a worker cannot be looked through.
        if self.inbox.is_some() || state.tasks.iter().any(Task::is_lent) {
            state.poison(&self.domain, cause());
        }
    }

    /// The queues of a program's parts, from this one on. Kept, so that the same queues need no
    /// memory the next time.
    pub(crate) fn team<'a>(
        self: &'a Arc<Self>,
        others: impl ExactSizeIterator<Item = &'a Arc<Self>> + Clone,
    ) -> Arc<[Weak<Self>]> {
        let members = || std::iter::once(self).chain(others.clone());
        // The lock of a worker's queue is the worker's.
        let (mut submitter, mut state);
        let kept = if let Some(inbox) = &self.inbox {
            submitter = inbox.submitter();
            &mut submitter.team
        } else {
            state = self.lock();
            &mut state.team
        };
        if let Some(team) = kept {
            let same = team.len() == 1 + others.len()
                && team
                    .iter()
                    .zip(members())
                    .all(|(known, queue)| std::ptr::eq(known.as_ptr(), Arc::as_ptr(queue)));
            if same {
                return Arc::clone(team);
            }
        }
        let team: Arc<[Weak<Self>]> = members().map(Arc::downgrade).collect();
        *kept = Some(Arc::clone(&team));
        team
    }

    /// Gives tasks to the worker, all of them one after the other: nobody else's come in between.
    #[inline]
    fn hand_over(self: &Arc<Self>, inbox: &Inbox, tasks: impl Iterator<Item = Task>) -> Result<()> {
        if let Some(cause) = self.poisoned() {
            return Err(cause);
        }
        let mut submitter = inbox.submitter();
        for task in tasks {
            let mut pushed = submitter.pusher.push(task);
            while let Err(task) = pushed {
                self.wait_for_room(inbox)?;
                pushed = submitter.pusher.push(task);
            }
        }
        drop(submitter);
        inbox.nudge();
        Ok(())
    }

    /// Waits until the worker has taken tasks over, and drives what this OS thread has to drive.
    #[cold]
    fn wait_for_room(self: &Arc<Self>, inbox: &Inbox) -> Result<()> {
        inbox.nudge();
        let mut wait = Wait::new(std::iter::once(self), &self.domain, None);
        let room = || match self.poisoned() {
            Some(cause) => Some(Err(cause)),
            None => (!inbox.is_full()).then_some(Ok(())),
        };
        wait.until(room)
            .unwrap_or_else(|TimedOut { elapsed }| Err(self.time_out(elapsed)))
    }

    /// Locks it for a submission from this OS thread, which becomes its home. Always inlined: a
    /// guard that goes through memory costs more than all the rest.
    #[inline(always)]
    fn open(self: &Arc<Self>, channel: Option<&Channel>) -> Result<Guard<'_, State>> {
        let here = driver::here();
        let mut state = self.state.lock(here);
        if self.home.load(Ordering::Relaxed) != here {
            driver::adopt(self, &mut state);
        }
        if let Some(cause) = self.domain.aborted() {
            state.poison(&self.domain, cause.clone());
        }
        if let Some(cause) = &state.poison {
            return Err(cause.clone());
        }
        if let Some(channel) = channel {
            state.meet(&self.domain, channel);
        }
        Ok(state)
    }

    /// The end of a submission.
    #[inline]
    fn leave(self: &Arc<Self>, mut state: Guard<'_, State>) -> Result<()> {
        self.list_if_busy(&mut state);
        let result = state.result();
        let own = usize::from(state.is_listed);
        drop(state);
        drive_others(own);
        result
    }

    #[inline]
    pub(crate) fn list_if_busy(self: &Arc<Self>, state: &mut State) {
        if state.is_busy() && !state.is_listed {
            state.is_listed = true;
            driver::list(self);
        }
    }
}

/// What a queue did may be what others of this OS thread wait for. `own` is how many of those that
/// have something left are this queue.
#[inline]
fn drive_others(own: usize) {
    if driver::listed() > own {
        driver::drive_queues();
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.domain.close_thread();
    }
}

impl State {
    /// Runs tasks until one has to wait. Returns whether anything happened.
    pub(crate) fn advance(&mut self, queue: &Queue) -> bool {
        let mut happened = self.take_in(&queue.domain);
        loop {
            if self.poison.is_none()
                && let Some(cause) = queue.domain.aborted()
            {
                self.poison(&queue.domain, cause.clone());
                happened = true;
            }
            let own = &queue.notifies;
            if self.has_begun {
                break;
            }
            let Some(head) = self.tasks.front() else {
                break;
            };
            let (done, length) = match head {
                // The rest of it is on its way to the worker.
                Task::Batch(count) if self.tasks.len() <= *count => break,
                Task::Batch(count) => {
                    let (count, tasks) = (*count, &self.tasks);
                    let done = match tasks.get(1) {
                        Some(Task::Channel(channel, _)) => {
                            self.runner.batch(channel, count, own, |index| {
                                tasks.get(1 + index).and_then(Task::work)
                            })
                        }
                        _ => Ok(true),
                    };
                    (done, 1 + count)
                }
                Task::Run(run) => (self.runner.run(&run.part(), own, &queue.domain), 1),
                single => match single.work() {
                    Some(work) => (self.runner.step(work, own), 1),
                    None => (Ok(true), 1),
                },
            };
            match done {
                Ok(true) => {
                    self.runner.next();
                    self.tasks.drain(..length);
                    self.passed = self.passed.wrapping_add(length);
                    happened = true;
                }
                Ok(false) => break,
                Err(failure) => {
                    self.fail(&queue.domain, failure);
                    happened = true;
                }
            }
        }
        happened |= self.settle(&queue.domain);
        happened |= self.runner.has_moved();
        if happened {
            self.moves = self.moves.wrapping_add(1);
            self.tell(&queue.domain);
        }
        happened
    }

    /// How often something has happened. It wraps.
    pub(crate) const fn moves(&self) -> u64 {
        self.moves
    }

    /// Takes over what was submitted to the worker; returns whether there was something. After a
    /// failure it is dropped.
    #[inline]
    fn take_in(&mut self, domain: &DomainInner) -> bool {
        let mut happened = false;
        while let Some(task) = self.intake.as_mut().and_then(|intake| intake.popper.pop()) {
            happened = true;
            if self.poison.is_some() {
                continue;
            }
            match &task {
                Task::Run(run) => self.meet_all(domain, &run.program),
                task => {
                    if let Some(channel) = task.channel() {
                        self.meet(domain, channel);
                    }
                }
            }
            self.tasks.push_back(task);
        }
        happened
    }

    /// Tells those who submit to a worker how far it is.
    #[inline]
    fn tell(&self, domain: &DomainInner) {
        if let Some(intake) = &self.intake {
            intake.tell_passed(self.passed);
            if !self.is_busy() {
                intake.tell_done();
            }
            intake.wake(domain.waiter());
        }
    }

    /// Lets go of what has completed; returns whether something had.
    fn settle(&mut self, domain: &DomainInner) -> bool {
        if self.runner.in_flight.is_idle() || !self.runner.in_flight.has_news() {
            return false;
        }
        if let Err(failure) = self.runner.in_flight.retire() {
            self.fail(domain, failure);
        }
        true
    }

    /// Whether [`State::advance`] would do something.
    pub(crate) fn would_advance(&self, queue: &Queue) -> bool {
        (self.poison.is_none() && queue.domain.aborted().is_some())
            || match (self.runner.reason(), self.tasks.front()) {
                (Some(Reason::Send), Some(Task::Send(link, ..))) => link.would_send(),
                (Some(Reason::Recv), Some(Task::Recv(link, ..))) => link.would_receive(),
                _ => self
                    .runner
                    .would_move(self.waited_channel(), &queue.notifies),
            }
    }

    /// Whether the task at the head waits for what comes only when a device is asked.
    pub(crate) fn waits_for_device(&self) -> bool {
        let for_completions = self.runner.reason() == Some(Reason::Completions);
        for_completions
            || self
                .waited_channel()
                .is_some_and(|channel| channel.transport().device().needs_watching())
    }

    /// The channel for which the task at the head waits, if it waits for one.
    fn waited_channel(&self) -> Option<&Channel> {
        if !self.runner.reason()?.concerns_channel() {
            return None;
        }
        match self.tasks.front()? {
            Task::Batch(_) => self.tasks.get(1)?.channel(),
            Task::Run(run) => run.channel(self.runner.index()),
            task => task.channel(),
        }
    }

    #[inline]
    fn result(&self) -> Result<()> {
        match &self.poison {
            Some(cause) => Err(cause.clone()),
            None => Ok(()),
        }
    }

    /// Whether something is queued or posted.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        !self.has_no_tasks() || !self.runner.in_flight.is_idle()
    }

    #[inline]
    fn has_no_tasks(&self) -> bool {
        self.tasks.is_empty() && !self.has_begun
    }

    /// Asks the channels that are waited on, and fails if one does not work and nothing has
    /// arrived that would let the queue go on.
    pub(crate) fn check_channels(&mut self, queue: &Queue) {
        let peers = queue.domain.peers();
        let flying = self.runner.in_flight.check(|label| peers.has_left(label));
        let waiting = self.waited_channel().map_or(Ok(()), |channel| {
            channel
                .transport()
                .check()
                .map_err(|error| channel.failure(error))
        });
        if let Err(failure) = flying {
            // What was posted is lost.
            self.fail(&queue.domain, failure);
        }
        if let Err(failure) = waiting {
            self.fail_if_stuck(queue, |domain| domain.explain(failure));
        }
    }

    /// Fails with a cause unless what has arrived meanwhile lets the queue go on: a peer may have
    /// done its part and then gone.
    pub(crate) fn fail_if_stuck(
        &mut self,
        queue: &Queue,
        cause: impl FnOnce(&DomainInner) -> Error,
    ) {
        if self.is_busy() && !self.advance(queue) {
            self.poison(&queue.domain, cause(&queue.domain));
        }
    }

    /// Whether something is queued whose end others need.
    fn concerns_all(&self) -> bool {
        self.tasks.iter().any(Task::concerns_all)
    }

    /// Keeps the first cause, and drops what is queued: nothing of it runs. A program that does
    /// not come to its end leaves notifies and scratch memory of all who take part in an unknown
    /// state, so it ends the whole domain.
    pub(crate) fn poison(&mut self, domain: &DomainInner, cause: Error) {
        if self.concerns_all() {
            domain.give_up(&cause);
        }
        if self.poison.is_none() {
            self.poison = Some(cause);
        }
        // First, what is lent: who holds the tasks' memory may have it back with them.
        self.runner.next();
        self.take_in(domain);
        self.tasks.clear();
        self.has_begun = false;
        if let Some(intake) = &self.intake {
            intake.tell_failed();
        }
        self.tell(domain);
    }

    /// What the task at the head waits for, in words, and the label of the peer.
    pub(crate) fn describe(&self) -> (String, Option<u32>) {
        let reason = self.runner.reason();
        let label = self.waited_channel().map(Channel::label);
        let task = match self.tasks.front() {
            None => "nothing".to_owned(),
            Some(Task::Batch(count)) => {
                format!("piece {} of a batch of {count}", self.runner.index())
            }
            Some(Task::Run(run)) => {
                let index = self.runner.index();
                let tasks = &run.program.threads[run.part];
                match tasks.get(index) {
                    Some(_) => {
                        format!(
                            "task {index} of {} of thread {} of a program",
                            tasks.len(),
                            run.part
                        )
                    }
                    None => format!("the end of thread {} of a program", run.part),
                }
            }
            Some(task) => task
                .work()
                .map_or_else(String::new, |work| work.name().to_owned()),
        };
        let queued = self.tasks.len();
        let text = match reason {
            None if queued == 0 => "posted transfers have not completed".to_owned(),
            None => format!("{task} has not run, {queued} queued"),
            Some(reason) => format!("{task} waits for {}, {queued} queued", reason.describe()),
        };
        (text, label)
    }

    fn fail(&mut self, domain: &DomainInner, failure: Failure) {
        if self.poison.is_none() {
            self.poison(domain, domain.explain(failure));
        }
    }

    /// Tells the domain of the devices of a program.
    #[inline]
    fn meet_all(&mut self, domain: &DomainInner, program: &Program) {
        if self.met_program != program.number() {
            for link in &program.links {
                self.meet(domain, &link.channel);
            }
            self.met_program = program.number();
        }
    }

    /// Tells the domain of a channel's device.
    #[inline]
    fn meet(&mut self, domain: &DomainInner, channel: &Channel) {
        if self.met != channel.number() {
            self.meet_device(domain, channel);
            self.met = channel.number();
        }
    }

    fn meet_device(&mut self, domain: &DomainInner, channel: &Channel) {
        let device = channel.transport().device();
        let address = std::ptr::from_ref(device.info()) as usize;
        if !self.known_devices.contains(&address) {
            domain.attach(device);
            self.known_devices.push(address);
        }
    }
}
