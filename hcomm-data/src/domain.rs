//! What the threads of one communicator share.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use hcomm_transport::{Device, Waiter};
use hcomm_types::{Error, ErrorKind, MAX_THREADS_PER_COMMUNICATOR, Result};
use smallvec::SmallVec;

use crate::failure::Failure;
use crate::lent::{self, Lending};
use crate::memory::Place;
use crate::queue::Queue;
use crate::slice::Slice;
use crate::worker::{CpuTs, Worker};

/// The layer above: who the peers are, and whether they live.
///
/// All calls come from inside the data plane, with a queue locked: they must not call back into
/// a [`Thread`](crate::Thread).
pub trait Peers: Send + Sync {
    /// Asked after each sleep of somebody who waits.
    ///
    /// # Errors
    /// Somebody is lost: the error names who.
    fn check(&self) -> Result<()>;

    /// Adds rank, host and link to an error of the channel with this label.
    fn explain(&self, label: u32, error: Error) -> Error;

    /// A program of this domain did not come to its end: the domain is aborted with this cause,
    /// and the peers should know of it.
    fn gave_up(&self, cause: &Error) {
        let _ = cause;
    }

    /// Whether the peer of the channel with this label has left in good order: then it waits for
    /// nothing any more, and a record for it that cannot be delivered is no failure.
    fn has_left(&self, label: u32) -> bool {
        let _ = label;
        false
    }
}

/// What a communicator's data plane shares: how to wait, who the peers are, how long a wait may
/// last, and the cause of its end. A clone is the same domain.
#[derive(Clone)]
pub struct Domain(pub(crate) Arc<DomainInner>);

pub(crate) struct DomainInner {
    waiter: Arc<dyn Waiter>,
    peers: Arc<dyn Peers>,
    timeout: Duration,
    is_aborted: AtomicBool,
    cause: OnceLock<Error>,
    threads: AtomicUsize,
    devices: Mutex<SmallVec<[Device; 4]>>,
    /// All queues that are open.
    queues: Mutex<Vec<Weak<Queue>>>,
    workers: Mutex<Vec<Arc<Worker>>>,
    loans: Mutex<Loans>,
}

/// What programs of a domain lend.
#[derive(Default)]
struct Loans {
    /// The line of the latest loan.
    line: Option<Slice>,
    /// There are none any more.
    ended: bool,
}

impl Domain {
    /// A domain whose waits last at most `timeout` unless they say otherwise; zero means for ever.
    #[must_use]
    pub fn new(waiter: Arc<dyn Waiter>, peers: Arc<dyn Peers>, timeout: Duration) -> Self {
        Self(Arc::new(DomainInner {
            waiter,
            peers,
            timeout,
            is_aborted: AtomicBool::new(false),
            cause: OnceLock::new(),
            threads: AtomicUsize::new(0),
            devices: Mutex::default(),
            queues: Mutex::default(),
            workers: Mutex::default(),
            loans: Mutex::default(),
        }))
    }

    /// Ends everything in this domain: all its threads fail with the first cause that was given,
    /// and whoever sleeps in one of their waits wakes. From any OS thread.
    pub fn abort(&self, cause: Error) {
        self.0.abort(cause);
    }

    /// After an abort: returns when the workers of this domain have ended. A worker that calls it
    /// does not wait for itself.
    pub fn join_workers(&self) {
        let workers = std::mem::take(&mut *self.0.workers());
        workers.iter().for_each(|worker| worker.join());
    }

    /// The cause of the end, if it was aborted.
    #[must_use]
    pub fn aborted(&self) -> Option<Error> {
        self.0.aborted().cloned()
    }

    /// How it waits.
    #[must_use]
    pub fn waiter(&self) -> &Arc<dyn Waiter> {
        &self.0.waiter
    }

    /// How long a wait lasts at most, unless it says otherwise; zero means for ever.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// Adds a device that is to be moved on whenever one of the domain's threads waits. Devices of
    /// channels that a thread has used are added by themselves; a side that only answers peers has
    /// to add its own.
    pub fn attach(&self, device: &Device) {
        self.0.attach(device);
    }
}

impl DomainInner {
    fn abort(&self, cause: Error) {
        // Whoever learns of the end has his memory back.
        let mut loans = self.loans.lock().unwrap_or_else(PoisonError::into_inner);
        loans.ended = true;
        if let Some(line) = loans.line.take() {
            lent::take_back_line(&line);
        }
        drop(loans);
        // The cause is there before anybody can see that there is one.
        let _ = self.cause.set(cause);
        self.is_aborted.store(true, Ordering::Release);
        self.waiter.wake();
    }

    /// Lends the buffers of a run, until the loan is dropped or the domain is aborted; `None` if it was.
    pub(crate) fn lend(
        &self,
        line: &Slice,
        sequence: u64,
        input: Place<'_>,
        output: Place<'_>,
    ) -> Option<Lending> {
        let mut loans = self.loans.lock().unwrap_or_else(PoisonError::into_inner);
        if loans.ended {
            return None;
        }
        loans.line = Some(line.clone());
        Some(Lending::begin(line, sequence, input, output))
    }

    /// Aborts the domain because of a program that did not end, and tells the layer above.
    pub(crate) fn give_up(&self, cause: &Error) {
        if self.aborted().is_none() {
            self.abort(cause.clone());
            self.peers.gave_up(cause);
        }
    }

    pub(crate) fn aborted(&self) -> Option<&Error> {
        if self.is_aborted.load(Ordering::Acquire) {
            self.cause.get()
        } else {
            None
        }
    }

    pub(crate) fn waiter(&self) -> &dyn Waiter {
        &*self.waiter
    }

    pub(crate) fn waiter_shared(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.waiter)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn peers(&self) -> &dyn Peers {
        &*self.peers
    }

    pub(crate) fn peers_shared(&self) -> Arc<dyn Peers> {
        Arc::clone(&self.peers)
    }

    /// The error of a failure, with the peer named.
    pub(crate) fn explain(&self, failure: Failure) -> Error {
        match failure.label {
            Some(label) => self.peers.explain(label, failure.error),
            None => failure.error,
        }
    }

    pub(crate) fn attach(&self, device: &Device) {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if !devices.iter().any(|known| known.is_same(device)) {
            devices.push(device.clone());
        }
    }

    /// Adds its devices to a list that has each once.
    pub(crate) fn collect_devices(&self, list: &mut SmallVec<[Device; 4]>) {
        let devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        for device in &*devices {
            if !list.iter().any(|known| known.is_same(device)) {
                list.push(device.clone());
            }
        }
    }

    pub(crate) fn has_device(&self, device: &Device) -> bool {
        self.devices
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .any(|known| known.is_same(device))
    }

    /// Counts one more thread.
    pub(crate) fn open_thread(&self) -> Result<()> {
        let most = MAX_THREADS_PER_COMMUNICATOR;
        if self.threads.fetch_add(1, Ordering::Relaxed) < most {
            return Ok(());
        }
        self.close_thread();
        Err(Error::new(
            ErrorKind::LimitReached,
            format!("a communicator has at most {most} threads, and all are in use"),
        )
        .hint("drop a thread that is not needed any more"))
    }

    /// A queue with this many notifies that a worker drives, which starts if it does not run yet.
    pub(crate) fn open_on_worker(
        self: &Arc<Self>,
        options: CpuTs,
        notifies: usize,
    ) -> Result<Arc<Queue>> {
        let mut workers = self.workers();
        if let Some(cause) = self.aborted() {
            return Err(cause.clone());
        }
        let mut known = None;
        if let Some(at) = workers.iter().position(|worker| worker.has_number(options)) {
            if workers[at].reserve(options)? {
                known = Some(Arc::clone(&workers[at]));
            } else {
                // It is about to end.
                workers.remove(at).join();
            }
        }
        let worker = match known {
            Some(worker) => worker,
            None => {
                let worker = Worker::start(self, options, workers.len())?;
                workers.push(Arc::clone(&worker));
                worker
            }
        };
        self.open_thread().inspect_err(|_| worker.give_back())?;
        let queue = Queue::new(Arc::clone(self), notifies, Some(Arc::clone(&worker)));
        worker.deliver(&queue);
        Ok(queue)
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Arc<Worker>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a queue for as long as it is open.
    pub(crate) fn remember(&self, queue: &Arc<Queue>) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|known| known.strong_count() > 0);
        queues.push(Arc::downgrade(queue));
    }

    /// The queues that are open.
    pub(crate) fn queues(&self) -> Vec<Arc<Queue>> {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn close_thread(&self) {
        self.threads.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain")
            .field("threads", &self.0.threads)
            .field("timeout", &self.0.timeout)
            .field("aborted", &self.0.aborted())
            .finish_non_exhaustive()
    }
}
