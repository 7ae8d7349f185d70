//! The queue behind a thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use hcomm_types::{Error, Result};
use smallvec::SmallVec;

use crate::channel::Channel;
use crate::domain::DomainInner;
use crate::driver;
use crate::failure::Failure;
use crate::memory::Loan;
use crate::runner::{Reason, Runner, no_thread_notify};
use crate::work::{Run, RunBuffers, Task, Work};

/// Room for tasks before a queue has to grow.
const ROOM: usize = 128;

pub(crate) struct Queue {
    pub(crate) domain: Arc<DomainInner>,
    /// How often each of its own notifies was recorded.
    notifies: Box<[AtomicU64]>,
    /// Number of the OS thread that drives it.
    pub(crate) home: AtomicU64,
    state: Mutex<State>,
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
    /// Queues of the parts of the latest program.
    team: Option<Arc<[Weak<Queue>]>>,
}

impl Queue {
    pub(crate) fn new(domain: Arc<DomainInner>, notifies: usize) -> Arc<Self> {
        let runner = Runner::new(domain.peers_shared(), notifies);
        Arc::new(Self {
            domain,
            notifies: (0..notifies).map(|_| AtomicU64::new(0)).collect(),
            home: AtomicU64::new(0),
            state: Mutex::new(State {
                tasks: VecDeque::with_capacity(ROOM),
                runner,
                poison: None,
                is_listed: false,
                known_devices: SmallVec::new(),
                team: None,
            }),
            loan: Mutex::new(None),
        })
    }

    pub(crate) fn notifies(&self) -> usize {
        self.notifies.len()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
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
    pub(crate) fn submit(
        self: &Arc<Self>,
        work: Work<'_>,
        task: impl FnOnce() -> Task,
    ) -> Result<()> {
        let result = {
            let mut state = self.open(work.channel())?;
            if state.tasks.is_empty() {
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
        };
        driver::drive_others(self);
        result
    }

    /// Submits a batch of `count` tasks of one channel.
    pub(crate) fn submit_batch<'a>(
        self: &Arc<Self>,
        channel: &Channel,
        count: usize,
        work: impl Fn(usize) -> Work<'a>,
        task: impl Fn(usize) -> Task,
    ) -> Result<()> {
        let result = {
            let mut state = self.open(Some(channel))?;
            let is_first = state.tasks.is_empty();
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
        };
        driver::drive_others(self);
        result
    }

    /// Submits a part of a program.
    pub(crate) fn submit_run(self: &Arc<Self>, run: Run) -> Result<()> {
        let mut state = self.open(None)?;
        for link in &run.program.links {
            state.meet(&self.domain, &link.channel);
        }
        state.tasks.push_back(Task::Run(run));
        state.advance(self);
        self.leave(state)
    }

    /// Makes this OS thread its home: what is left of it is driven here from now on. Returns
    /// whether nothing is left.
    ///
    /// # Errors
    /// The cause of failure.
    pub(crate) fn come_home(self: &Arc<Self>) -> Result<bool> {
        let mut state = self.open(None)?;
        state.settle(&self.domain);
        let idle = !state.is_busy();
        self.leave(state).map(|()| idle)
    }

    /// The cause of failure of this queue or its domain.
    pub(crate) fn poisoned(&self) -> Option<Error> {
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
        let mut state = self.lock();
        state.settle(&self.domain);
        match &state.poison {
            Some(cause) => Err(cause.clone()),
            None => Ok(!state.is_busy()),
        }
    }

    /// Ends it with a cause, unless it has one already. What is queued is dropped.
    pub(crate) fn poison(&self, cause: Error) {
        self.lock().poison(&self.domain, cause);
        if self.home.load(Ordering::Relaxed) != driver::here() {
            self.domain.waiter().wake();
        }
    }

    /// Drops what holds lent buffers, if anything does, and fails with `cause` for it.
    pub(crate) fn cancel_lent(&self, cause: impl FnOnce() -> Error) {
        let mut state = self.lock();
        let lent = state.tasks.iter().any(|task| {
            matches!(
                task,
                Task::Run(Run {
                    buffers: RunBuffers::Lent(_),
                    ..
                })
            )
        });
        if lent {
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
        let mut state = self.lock();
        if let Some(team) = &state.team {
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
        state.team = Some(Arc::clone(&team));
        team
    }

    /// Locks it for a submission from this OS thread, which becomes its home.
    fn open(self: &Arc<Self>, channel: Option<&Channel>) -> Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        driver::adopt(self, &mut state);
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
    fn leave(self: &Arc<Self>, mut state: MutexGuard<'_, State>) -> Result<()> {
        self.list_if_busy(&mut state);
        match &state.poison {
            Some(cause) => Err(cause.clone()),
            None => Ok(()),
        }
    }

    fn list_if_busy(self: &Arc<Self>, state: &mut State) {
        if state.is_busy() && !state.is_listed {
            state.is_listed = true;
            driver::list(self);
        }
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
        let mut happened = false;
        loop {
            if self.poison.is_none()
                && let Some(cause) = queue.domain.aborted()
            {
                self.poison(&queue.domain, cause.clone());
                happened = true;
            }
            let own = &queue.notifies;
            let Some(head) = self.tasks.front() else {
                break;
            };
            let (done, length) = match head {
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
                Task::Run(run) => (self.runner.run(run, own), 1),
                single => match single.work() {
                    Some(work) => (self.runner.step(work, own), 1),
                    None => (Ok(true), 1),
                },
            };
            match done {
                Ok(true) => {
                    self.tasks.drain(..length);
                    self.runner.next();
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
        happened | self.runner.has_moved()
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
            || self.runner.would_move(&queue.notifies)
    }

    /// Whether something is queued or posted.
    pub(crate) fn is_busy(&self) -> bool {
        !self.tasks.is_empty() || !self.runner.in_flight.is_idle()
    }

    /// Asks the channels that are waited on, and fails if one does not work and nothing has
    /// arrived that would let the queue go on.
    pub(crate) fn check_channels(&mut self, queue: &Queue) {
        let flying = self.runner.in_flight.check();
        let waiting = match self.runner.reason().and_then(Reason::channel) {
            Some(channel) if !self.tasks.is_empty() => channel
                .transport()
                .check()
                .map_err(|error| channel.failure(error)),
            _ => Ok(()),
        };
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

    /// Keeps the first cause, and drops what is queued: nothing of it runs. A program that does
    /// not come to its end leaves notifies and scratch memory of all who take part in an unknown
    /// state, so it ends the whole domain.
    pub(crate) fn poison(&mut self, domain: &DomainInner, cause: Error) {
        if self.tasks.iter().any(|task| matches!(task, Task::Run(_))) {
            domain.give_up(&cause);
        }
        if self.poison.is_none() {
            self.poison = Some(cause);
        }
        self.tasks.clear();
        self.runner.next();
    }

    /// What the task at the head waits for, in words, and the label of the peer.
    pub(crate) fn describe(&self) -> (String, Option<u32>) {
        let reason = self.runner.reason();
        let label = reason.and_then(Reason::channel).map(Channel::label);
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

    /// Tells the domain of a channel's device.
    fn meet(&mut self, domain: &DomainInner, channel: &Channel) {
        let device = channel.transport().device();
        let address = std::ptr::from_ref(device.info()) as usize;
        if !self.known_devices.contains(&address) {
            domain.attach(device);
            self.known_devices.push(address);
        }
    }
}
