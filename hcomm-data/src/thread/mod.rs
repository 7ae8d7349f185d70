//! Threads: in-order queues of tasks.

mod exchange;
mod mark;
mod programs;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use hcomm_transport::Capabilities;
use hcomm_types::{DataType, Error, ErrorKind, MAX_NOTIFIES_PER_THREAD, ReduceOp, Result};

use crate::channel::Channel;
use crate::copy::Hint;
use crate::domain::Domain;
use crate::driver::{self, TimedOut, Wait};
use crate::failure::Failure;
use crate::memory::{self, Buffers, Loan, Place};
use crate::message::{Label, MessageLink};
use crate::program::{Program, Turn};
use crate::queue::{Queue, Tried};
use crate::runner::no_thread_notify;
use crate::slice::{Memory, RemoteSlice, Slice};
use crate::work::{BatchOp, Message, Task, Work};
use crate::worker::CpuTs;

use programs::check_fingerprint;

pub use exchange::Exchange;
pub use mark::Mark;

/// Who drives a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Engine {
    /// The OS thread that uses it: tasks run inside its calls.
    #[default]
    Cpu,
    /// A worker, which is an OS thread of the library: tasks run beside the caller.
    CpuTs(CpuTs),
}

/// An in-order queue of tasks. A clone is the same queue.
///
/// Every call that takes a task checks it, then enqueues it and returns: the task has run
/// already if nothing before it was blocked, and otherwise runs in a later call of the same OS
/// thread, to this thread or any other, or in [`Thread::synchronize`]. The OS thread that used a
/// thread last is the one that drives it. A thread whose tasks are not done and whose OS thread
/// makes no further call stands still.
///
/// With the engine [`Engine::CpuTs`] a worker drives it instead: a call hands the task over and
/// returns, and tasks go on whatever the caller does. A wait of its own then has a deadline, that
/// of the domain; elsewhere only [`Thread::synchronize`] has. When the last handle of the last
/// thread of a worker goes, the worker ends; it does what is left before. While a worker exists, it
/// also does for peers what a link needs this side for.
///
/// The first failure poisons a thread: what is queued is dropped, and every later call returns
/// that same first cause.
#[derive(Clone)]
pub struct Thread {
    queue: Arc<Queue>,
}

impl Domain {
    /// [`Thread::synchronize`] for every thread of the domain that is open, one after the other.
    ///
    /// # Errors
    /// The first failure, after all have been waited for.
    pub fn synchronize(&self, timeout: Option<Duration>) -> Result<()> {
        let mut result = Ok(());
        for queue in self.0.queues() {
            result = result.and(Thread { queue }.synchronize(timeout));
        }
        result
    }
}

impl Thread {
    /// A thread with this many notifies of its own.
    ///
    /// # Errors
    /// `InvalidArgument` above 640 notifies, `LimitReached` above 40 threads in the domain. For a
    /// worker also `InvalidArgument` for a core that may not be used or another one than it runs on,
    /// `LimitReached` if no OS thread can be had, and the cause if the domain was aborted.
    pub fn new(domain: &Domain, engine: Engine, notifies: usize) -> Result<Self> {
        if notifies > MAX_NOTIFIES_PER_THREAD {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{notifies} notifies for a thread, which has at most {MAX_NOTIFIES_PER_THREAD}"
                ),
            )
            .hint("use more threads, or channel notifies"));
        }
        let queue = match engine {
            Engine::Cpu => {
                domain.0.open_thread()?;
                Queue::new(Arc::clone(&domain.0), notifies, None)
            }
            Engine::CpuTs(worker) => domain.0.open_on_worker(worker, notifies)?,
        };
        domain.0.remember(&queue);
        Ok(Self { queue })
    }

    /// Who drives it.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.queue
            .inbox()
            .map_or(Engine::Cpu, |inbox| Engine::CpuTs(inbox.worker.options()))
    }

    /// Notifies that it has.
    #[must_use]
    pub fn notifies(&self) -> usize {
        self.queue.notifies()
    }

    /// Bytes from `src` to the peer's `dst`, which is as long. When it has completed, `src` may be
    /// reused; the peer is told nothing.
    ///
    /// # Errors
    /// `OutOfBounds` for different lengths, `InvalidArgument` for an import of another channel,
    /// `Unsupported`, or the first cause if the thread is poisoned.
    pub fn write(&self, channel: &Channel, dst: &RemoteSlice, src: &Slice) -> Result<()> {
        self.write_notifying(channel, dst, src, None)
    }

    /// [`Thread::write`], and then a record on notify `notify` of the peer, as one step.
    ///
    /// # Errors
    /// Those of [`Thread::write`] and [`Thread::record`].
    pub fn write_with_notify(
        &self,
        channel: &Channel,
        dst: &RemoteSlice,
        src: &Slice,
        notify: u32,
    ) -> Result<()> {
        self.write_notifying(channel, dst, src, Some(notify))
    }

    /// Bytes from the peer's `src` to `dst`, which is as long.
    ///
    /// # Errors
    /// As for [`Thread::write`].
    pub fn read(&self, channel: &Channel, dst: &Slice, src: &RemoteSlice) -> Result<()> {
        self.read_notifying(channel, dst, src, None)
    }

    /// [`Thread::read`], and, when the bytes are here, a record on notify `notify` of the peer: it
    /// may reuse its memory.
    ///
    /// # Errors
    /// Those of [`Thread::read`] and [`Thread::record`].
    pub fn read_with_notify(
        &self,
        channel: &Channel,
        dst: &Slice,
        src: &RemoteSlice,
        notify: u32,
    ) -> Result<()> {
        self.read_notifying(channel, dst, src, Some(notify))
    }

    /// `dst = dst op src` at the peer, element by element, and then a record on a notify of the
    /// peer, if asked. Two of these into one place without an order between them are a race.
    ///
    /// # Errors
    /// As for [`Thread::write`]; `OutOfBounds` if the length is not a whole number of elements.
    pub fn write_reduce(
        &self,
        channel: &Channel,
        dst: &RemoteSlice,
        src: &Slice,
        dtype: DataType,
        redop: ReduceOp,
        notify: Option<u32>,
    ) -> Result<()> {
        check_pair(channel, src, dst, Capabilities::WRITE_REDUCE)?;
        check_elements(dst.bytes(), dtype)?;
        notify.map_or(Ok(()), |notify| channel.check_record(notify))?;
        let work = Work::WriteReduce {
            channel,
            dst: dst.remote(),
            src: src.place(),
            dtype,
            redop,
            notify,
            fingerprint: [0; 2],
        };
        self.queue.submit(work, || {
            Task::Channel(
                channel.clone(),
                BatchOp::WriteReduce {
                    dst: dst.clone(),
                    src: src.clone(),
                    dtype,
                    redop,
                    notify,
                },
            )
        })
    }

    /// `dst = dst op src` here, with `src` at the peer, element by element, and then, if asked, a
    /// record on a notify of the peer: it may reuse its memory.
    ///
    /// # Errors
    /// As for [`Thread::write_reduce`].
    pub fn read_reduce(
        &self,
        channel: &Channel,
        dst: &Slice,
        src: &RemoteSlice,
        dtype: DataType,
        redop: ReduceOp,
        notify: Option<u32>,
    ) -> Result<()> {
        check_pair(channel, dst, src, Capabilities::READ_REDUCE)?;
        check_elements(src.bytes(), dtype)?;
        notify.map_or(Ok(()), |notify| channel.check_record(notify))?;
        let work = Work::ReadReduce {
            channel,
            dst: dst.place(),
            a: dst.place(),
            src: src.remote(),
            dtype,
            redop,
            notify,
            hint: Hint::Local,
        };
        self.queue.submit(work, || {
            Task::Channel(
                channel.clone(),
                BatchOp::ReadReduce {
                    dst: dst.clone(),
                    src: src.clone(),
                    dtype,
                    redop,
                    notify,
                },
            )
        })
    }

    /// Many pieces of work for one channel in one call. They are unordered among themselves,
    /// except that a piece with a notify comes after all earlier pieces of the batch, and orders
    /// nothing after it.
    ///
    /// # Errors
    /// Those of the calls for one piece; nothing of the batch is enqueued then.
    pub fn batch(&self, channel: &Channel, ops: &[BatchOp]) -> Result<()> {
        let mut by_stores = channel.transport().seems_to_work();
        for (index, op) in ops.iter().enumerate() {
            by_stores &= op.is_by_stores();
            check_piece(channel, op).map_err(|error| {
                Error::new(
                    error.kind(),
                    format!("piece {index} of a batch: {}", error.detail()),
                )
            })?;
        }
        if ops.is_empty() {
            return self.queue.poisoned().map_or(Ok(()), Err);
        }
        if by_stores && self.queue.at_once(channel, || write_all(channel, ops))? {
            return Ok(());
        }
        self.queue.submit_batch(
            channel,
            ops.len(),
            |index| ops[index].work(channel),
            |index| Task::Channel(channel.clone(), ops[index].clone()),
        )
    }

    /// Adds one to notify `notify` of the peer, after everything earlier on this thread and
    /// channel. How many may be outstanding depends on the link; only the peer knows how many it
    /// has taken, so an excess is reported by the link, where the link can see it.
    ///
    /// # Errors
    /// `InvalidArgument` for a notify that no channel of the device has, or the first cause if the
    /// thread is poisoned.
    pub fn record(&self, channel: &Channel, notify: u32) -> Result<()> {
        channel.check_record(notify)?;
        if self
            .queue
            .at_once(channel, || Ok(channel.record(notify, [0; 2])))?
        {
            return Ok(());
        }
        let work = Work::Record {
            channel,
            notify,
            fingerprint: [0; 2],
        };
        self.queue.submit(work, || {
            Task::Channel(channel.clone(), BatchOp::Record { notify })
        })
    }

    /// Waits until the peer has recorded notify `notify` of this side, and takes one record. Later
    /// tasks see what was written before it.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such notify, or the first cause if the thread is poisoned.
    pub fn wait(&self, channel: &Channel, notify: u32) -> Result<()> {
        channel.check_wait(notify)?;
        let work = Work::Wait {
            channel,
            notify,
            expected: None,
        };
        self.queue
            .submit(work, || Task::Wait(channel.clone(), notify))
    }

    /// [`Thread::wait`] and [`Thread::synchronize`] in one call: returns when the record was taken
    /// and everything before it is done. The quickest way to react to a peer: nothing is queued
    /// if the record comes soon.
    ///
    /// # Errors
    /// Those of the two.
    pub fn wait_blocking(
        &self,
        channel: &Channel,
        notify: u32,
        timeout: Option<Duration>,
    ) -> Result<()> {
        channel.check_wait(notify)?;
        if self.queue.take_soon(channel, notify)? {
            return Ok(());
        }
        self.wait(channel, notify)?;
        self.synchronize(timeout)
    }

    /// Adds one to notify `notify` of another thread of this process, after everything earlier on
    /// this one.
    ///
    /// # Errors
    /// `InvalidArgument` if it has no such notify, or the first cause if this thread is poisoned.
    pub fn record_thread(&self, other: &Self, notify: u32) -> Result<()> {
        if notify as usize >= other.notifies() {
            return Err(no_thread_notify(notify, other.notifies()));
        }
        let work = Work::RecordThread {
            queue: &other.queue,
            notify,
        };
        self.queue.submit(work, || {
            Task::RecordThread(Arc::clone(&other.queue), notify)
        })
    }

    /// Waits until another thread has recorded notify `notify` of this one, and takes one record.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such notify, or the first cause if the thread is poisoned.
    pub fn wait_thread(&self, notify: u32) -> Result<()> {
        if notify as usize >= self.notifies() {
            return Err(no_thread_notify(notify, self.notifies()));
        }
        self.queue
            .submit(Work::WaitThread { notify }, || Task::WaitThread(notify))
    }

    /// `dst = src`, as long, each of this side or of a peer where the link maps it. Bytes for a
    /// peer are there for it when it has waited for a record that follows on this thread.
    ///
    /// # Errors
    /// `OutOfBounds` for different lengths, `Unsupported` for memory of a peer that is not mapped,
    /// or the first cause if the thread is poisoned.
    pub fn copy<'a>(&self, dst: impl Into<Memory<'a>>, src: impl Into<Memory<'a>>) -> Result<()> {
        let (dst, src) = (dst.into(), src.into());
        check_lengths(dst.bytes(), src.bytes())?;
        let work = Work::Copy {
            dst: dst.place()?,
            src: src.place()?,
            hint: Hint::Local,
        };
        self.queue.submit(work, || Task::Copy {
            dst: dst.keep(),
            src: src.keep(),
        })
    }

    /// `dst = a op b`, element by element, all as long, each of this side or of a peer where the
    /// link maps it. `dst` may be `a` or `b`, but not overlap them in part.
    ///
    /// # Errors
    /// `OutOfBounds` for different lengths or a length that is not a whole number of elements,
    /// `Unsupported` for memory of a peer that is not mapped, or the first cause if the thread is
    /// poisoned.
    pub fn reduce<'a>(
        &self,
        dst: impl Into<Memory<'a>>,
        a: impl Into<Memory<'a>>,
        b: impl Into<Memory<'a>>,
        dtype: DataType,
        redop: ReduceOp,
    ) -> Result<()> {
        let (dst, a, b) = (dst.into(), a.into(), b.into());
        check_lengths(dst.bytes(), a.bytes())?;
        check_lengths(dst.bytes(), b.bytes())?;
        check_elements(dst.bytes(), dtype)?;
        let work = Work::Reduce {
            dst: dst.place()?,
            a: a.place()?,
            b: b.place()?,
            dtype,
            redop,
            hint: Hint::Local,
        };
        self.queue.submit(work, || Task::Reduce {
            dst: dst.keep(),
            a: a.keep(),
            b: b.keep(),
            dtype,
            redop,
        })
    }

    /// Sends `src` over a link; the peer receives it with [`Thread::recv`], of the same length and
    /// type. The task is over when `src` may be changed: a message for which there is room in the
    /// peer's inbox does not wait for the peer.
    ///
    /// # Errors
    /// `OutOfBounds` for a length that is not a whole number of elements, `Mismatch` if the peer
    /// has refused a message, or the first cause if the thread is poisoned.
    pub fn send(&self, link: &MessageLink, src: &Slice, label: impl Into<Label>) -> Result<()> {
        let label = label.into();
        check_elements(src.bytes() as u64, label.dtype)?;
        let work = Work::Send {
            link,
            src: src.place(),
            label,
        };
        self.queue.submit(work, || {
            Task::Send(link.clone(), Message::Slice(src.clone()), label)
        })
    }

    /// Receives what the peer sends with [`Thread::send`], into `dst`.
    ///
    /// # Errors
    /// `OutOfBounds` for a length that is not a whole number of elements, `Mismatch` for a message
    /// of another length or type, which leaves `dst` as it was, or the first cause if the thread is
    /// poisoned.
    pub fn recv(&self, link: &MessageLink, dst: &Slice, label: impl Into<Label>) -> Result<()> {
        let label = label.into();
        check_elements(dst.bytes() as u64, label.dtype)?;
        let work = Work::Recv {
            link,
            dst: dst.place(),
            label,
        };
        self.queue.submit(work, || {
            Task::Recv(link.clone(), Message::Slice(dst.clone()), label)
        })
    }

    /// [`Thread::send`] of memory that is lent for the time of the call. Returns when it may be
    /// changed, or with the first cause. If it does not go through in a few looks,
    /// `before_wait` is called, and what it returns is kept until the end of the call.
    ///
    /// # Errors
    /// Those of [`Thread::send`] and [`Thread::run_blocking`].
    pub fn send_blocking<G>(
        &self,
        link: &MessageLink,
        src: &[u8],
        label: impl Into<Label>,
        timeout: Option<Duration>,
        before_wait: impl FnOnce() -> G,
    ) -> Result<()> {
        let label = label.into();
        check_elements(src.len() as u64, label.dtype)?;
        let tried = self.queue.try_now(link.channel(), |runner| {
            runner.send_message(link, Place::of_lent(src), label)
        })?;
        if tried == Tried::Done {
            return Ok(());
        }
        let _guard = before_wait();
        let buffers = Buffers::Separate {
            input: src,
            output: &mut [],
        };
        self.lend_rest(buffers, timeout, tried, |message| {
            Task::Send(link.clone(), message, label)
        })
    }

    /// [`Thread::recv`] into memory that is lent for the time of the call.
    ///
    /// # Errors
    /// Those of [`Thread::recv`] and [`Thread::run_blocking`].
    pub fn recv_blocking<G>(
        &self,
        link: &MessageLink,
        dst: &mut [u8],
        label: impl Into<Label>,
        timeout: Option<Duration>,
        before_wait: impl FnOnce() -> G,
    ) -> Result<()> {
        let label = label.into();
        check_elements(dst.len() as u64, label.dtype)?;
        let tried = self.queue.try_now(link.channel(), |runner| {
            runner.recv_message(link, Place::of_lent_mut(dst), label)
        })?;
        if tried == Tried::Done {
            return Ok(());
        }
        let _guard = before_wait();
        let buffers = Buffers::Separate {
            input: &[],
            output: dst,
        };
        self.lend_rest(buffers, timeout, tried, |message| {
            Task::Recv(link.clone(), message, label)
        })
    }

    /// [`Thread::send`] and [`Thread::synchronize`] in one call, which queues nothing if the
    /// message goes through in a few looks; otherwise `before_wait` is called, and what it returns is
    /// kept until the end of the call.
    ///
    /// # Errors
    /// Those of the two.
    pub fn send_slice_blocking<G>(
        &self,
        link: &MessageLink,
        src: &Slice,
        label: impl Into<Label>,
        timeout: Option<Duration>,
        before_wait: impl FnOnce() -> G,
    ) -> Result<()> {
        let label = label.into();
        check_elements(src.bytes() as u64, label.dtype)?;
        let tried = self.queue.try_now(link.channel(), |runner| {
            runner.send_message(link, src.place(), label)
        })?;
        self.end_of_message(tried, timeout, before_wait, || {
            Task::Send(link.clone(), Message::Slice(src.clone()), label)
        })
    }

    /// [`Thread::recv`] and [`Thread::synchronize`] in one call, as
    /// [`Thread::send_slice_blocking`]. A long message that is not there yet is written to `dst` by
    /// the peer itself, where the link maps its region.
    ///
    /// # Errors
    /// Those of the two.
    pub fn recv_slice_blocking<G>(
        &self,
        link: &MessageLink,
        dst: &Slice,
        label: impl Into<Label>,
        timeout: Option<Duration>,
        before_wait: impl FnOnce() -> G,
    ) -> Result<()> {
        let label = label.into();
        check_elements(dst.bytes() as u64, label.dtype)?;
        let tried = self.queue.try_now(link.channel(), |runner| {
            runner.recv_message(link, dst.place(), label)
        })?;
        self.end_of_message(tried, timeout, before_wait, || {
            Task::Recv(link.clone(), Message::Slice(dst.clone()), label)
        })
    }

    /// Waits until everything posted on the channel before is visible at the peer.
    ///
    /// # Errors
    /// The first cause if the thread is poisoned.
    pub fn fence(&self, channel: &Channel) -> Result<()> {
        self.queue
            .submit(Work::Fence { channel }, || Task::Fence(channel.clone()))
    }

    /// Waits until everything that this thread has posted has completed: later tasks may reuse
    /// its memory.
    ///
    /// # Errors
    /// The first cause if the thread is poisoned.
    pub fn drain(&self) -> Result<()> {
        self.queue.submit(Work::Drain, || Task::Drain)
    }

    /// Waits until a message of a slice is done, of which `rest` is the task if it was not `tried`
    /// to its end.
    #[inline]
    fn end_of_message<G>(
        &self,
        tried: Tried,
        timeout: Option<Duration>,
        before_wait: impl FnOnce() -> G,
        rest: impl FnOnce() -> Task,
    ) -> Result<()> {
        if tried == Tried::Done {
            return Ok(());
        }
        let _guard = before_wait();
        self.queue.submit_rest(rest(), tried)?;
        self.synchronize(timeout)
    }

    /// Lends memory to what is left of a message, and waits until it is done.
    fn lend_rest(
        &self,
        mut buffers: Buffers<'_>,
        timeout: Option<Duration>,
        tried: Tried,
        rest: impl FnOnce(Message) -> Task,
    ) -> Result<()> {
        self.lend(&[], &mut buffers, timeout, |loan| {
            let message = Message::Lent(Arc::clone(loan));
            self.queue.submit_rest(rest(message), tried)
        })
    }

    /// Lends memory to what `start` puts on this thread and others, and waits until all of it is
    /// done; see [`Thread::run_blocking`].
    fn lend(
        &self,
        others: &[Self],
        buffers: &mut Buffers<'_>,
        timeout: Option<Duration>,
        start: impl FnOnce(&Arc<Loan>) -> Result<()>,
    ) -> Result<()> {
        // In use by somebody else: they have a loan of their own for this once.
        let kept = self.loan().take();
        let mut loan = kept.unwrap_or_else(Loan::new);
        let queues = std::iter::once(&self.queue).chain(others.iter().map(|other| &other.queue));
        let result = Loan::lend(
            &mut loan,
            buffers,
            |loan| self.end_of_loan(queues.clone(), timeout, start(loan)),
            self.settling(queues.clone()),
        );
        *self.loan() = Some(loan);
        result?
    }

    /// Waits until all of what was `started` on queues with lent memory is done, or fails them all.
    fn end_of_loan<'q>(
        &'q self,
        queues: impl Iterator<Item = &'q Arc<Queue>> + Clone,
        timeout: Option<Duration>,
        started: Result<()>,
    ) -> Result<()> {
        let domain = &*self.queue.domain;
        let result = started.and_then(|()| {
            let mut wait = Wait::new(queues.clone(), domain, timeout);
            wait.until(|| all_over(queues.clone()))
                .unwrap_or_else(|TimedOut { elapsed }| {
                    let late = queues
                        .clone()
                        .find(|queue| queue.lock().is_busy())
                        .unwrap_or(&self.queue);
                    Err(driver::timed_out(&late.lock(), domain, elapsed))
                })
        });
        if let Err(cause) = &result {
            queues.for_each(|queue| queue.poison(cause.clone()));
        }
        result
    }

    /// What brings queues to let go of lent memory, a step a call. Only after an error or a panic:
    /// nothing queued may be left, and what is posted has to come to its end.
    fn settling<'q>(
        &'q self,
        queues: impl Iterator<Item = &'q Arc<Queue>> + Clone,
    ) -> impl FnMut() {
        let domain = &*self.queue.domain;
        let mut end = None;
        move || {
            for queue in queues.clone() {
                queue.cancel_lent(|| {
                    Error::new(ErrorKind::Aborted, "the call that lent its memory is over")
                });
            }
            let wait =
                end.get_or_insert_with(|| Wait::new(queues.clone(), domain, Some(Duration::ZERO)));
            let happened = wait.drive();
            // Without a deadline, there is no timing out.
            let _ = wait.round(happened);
        }
    }

    /// Drives all threads of this OS thread, of whatever domain, until this one has nothing queued
    /// and nothing posted that has not completed. `None` waits as long as the domain says, zero
    /// for ever.
    ///
    /// # Errors
    /// The first cause of this thread. A deadline is one: `Timeout` says what was waited for and
    /// poisons the thread. The wait that timed out has taken nothing, unless it was in the middle of
    /// a message. To look without waiting, use [`Thread::drive`] and [`Thread::is_idle`].
    pub fn synchronize(&self, timeout: Option<Duration>) -> Result<()> {
        let domain = &*self.queue.domain;
        // Most often it is done already: no clock, no list.
        if self.queue.come_home()? {
            return Ok(());
        }
        let mut wait = Wait::new(std::iter::once(&self.queue), domain, timeout);
        let idle = || match self.queue.is_idle() {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(cause) => Some(Err(cause)),
        };
        wait.until(idle)
            .unwrap_or_else(|TimedOut { elapsed }| Err(self.queue.time_out(elapsed)))
    }

    /// Whether it belongs to this domain.
    #[must_use]
    pub fn belongs_to(&self, domain: &Domain) -> bool {
        Arc::ptr_eq(&self.queue.domain, &domain.0)
    }

    /// Whether it is the same queue.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.queue, &other.queue)
    }

    /// Whether nothing is queued and everything posted has completed; also when it failed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_idle().unwrap_or(true)
    }

    /// Runs what can run, in all threads of this OS thread, and moves their devices on, without
    /// waiting. Returns whether this thread has nothing left to do.
    ///
    /// # Errors
    /// The first cause of this thread.
    pub fn drive(&self) -> Result<bool> {
        self.queue.come_home()?;
        driver::drive_queues();
        if driver::progress_here() {
            driver::drive_queues();
        }
        if let Some(cause) = self.queue.poisoned() {
            return Err(cause);
        }
        self.queue.is_idle()
    }

    /// The first cause, if it failed.
    #[must_use]
    pub fn poisoned(&self) -> Option<Error> {
        self.queue.poisoned()
    }

    fn write_notifying(
        &self,
        channel: &Channel,
        dst: &RemoteSlice,
        src: &Slice,
        notify: Option<u32>,
    ) -> Result<()> {
        check_pair(channel, src, dst, Capabilities::WRITE)?;
        notify.map_or(Ok(()), |notify| channel.check_record(notify))?;
        if self
            .queue
            .at_once(channel, || write(channel, dst, src, notify))?
        {
            return Ok(());
        }
        let work = Work::Write {
            channel,
            dst: dst.remote(),
            src: src.place(),
            notify,
            fingerprint: [0; 2],
        };
        self.queue.submit(work, || {
            Task::Channel(
                channel.clone(),
                BatchOp::Write {
                    dst: dst.clone(),
                    src: src.clone(),
                    notify,
                },
            )
        })
    }

    fn read_notifying(
        &self,
        channel: &Channel,
        dst: &Slice,
        src: &RemoteSlice,
        notify: Option<u32>,
    ) -> Result<()> {
        check_pair(channel, dst, src, Capabilities::READ)?;
        notify.map_or(Ok(()), |notify| channel.check_record(notify))?;
        let work = Work::Read {
            channel,
            dst: dst.place(),
            src: src.remote(),
            notify,
            hint: Hint::Local,
        };
        self.queue.submit(work, || {
            Task::Channel(
                channel.clone(),
                BatchOp::Read {
                    dst: dst.clone(),
                    src: src.clone(),
                    notify,
                },
            )
        })
    }

    fn loan(&self) -> MutexGuard<'_, Option<Arc<Loan>>> {
        self.queue
            .loan
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // This handle and the worker's are the last ones. Others that go at the same time may
        // hide that; the worker finds it out after its next sleep.
        if let Some(inbox) = self.queue.inbox()
            && Arc::strong_count(&self.queue) <= 2
            && !inbox.is_closed.swap(true, Ordering::AcqRel)
        {
            inbox.worker.close(&self.queue.domain);
        }
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thread")
            .field("notifies", &self.notifies())
            .field("home", &self.queue.home.load(Ordering::Relaxed))
            .field("poisoned", &self.poisoned())
            .finish_non_exhaustive()
    }
}

/// A write by stores and loads alone, with its record. `false` where that cannot be.
#[inline]
fn write(
    channel: &Channel,
    dst: &RemoteSlice,
    src: &Slice,
    notify: Option<u32>,
) -> Result<bool, Failure> {
    let Some(peer) = dst.remote().mapped() else {
        return Ok(false);
    };
    memory::copy(peer, src.place(), channel.hint(peer))?;
    Ok(notify.is_none_or(|notify| channel.record(notify, [0; 2])))
}

/// Writes and records, all [by stores](BatchOp::is_by_stores). `false` if that cannot be, and
/// nothing but writes was done.
fn write_all(channel: &Channel, ops: &[BatchOp]) -> Result<bool, Failure> {
    let mut recorded = false;
    for op in ops {
        let notify = match op {
            BatchOp::Write { dst, src, notify } => {
                let Some(peer) = dst.remote().mapped() else {
                    return Ok(false);
                };
                memory::copy(peer, src.place(), channel.hint(peer))?;
                *notify
            }
            BatchOp::Record { notify } => Some(*notify),
            _ => return Ok(false),
        };
        let Some(notify) = notify else { continue };
        if !channel.record(notify, [0; 2]) {
            if recorded {
                // It worked a moment ago.
                let cause = channel.transport().check().err();
                let lost = || Error::new(ErrorKind::LinkDown, "the link failed during a batch");
                return Err(channel.failure(cause.unwrap_or_else(lost)));
            }
            return Ok(false);
        }
        recorded = true;
    }
    Ok(true)
}

/// Whether all queues are done; the first cause if one failed.
fn all_over<'a>(queues: impl Iterator<Item = &'a Arc<Queue>>) -> Option<Result<()>> {
    let mut over = true;
    for queue in queues {
        match queue.is_idle() {
            Ok(idle) => over &= idle,
            Err(cause) => return Some(Err(cause)),
        }
    }
    over.then_some(Ok(()))
}

fn check_slices(
    program: &Program,
    part: usize,
    input: &Slice,
    output: &Slice,
    turn: Turn,
) -> Result<()> {
    program.check_run(part, input.bytes(), output.bytes(), turn)?;
    program.check_known(input.place())?;
    program.check_known(output.place())
}

fn check_lengths(a: u64, b: u64) -> Result<()> {
    if a == b {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::OutOfBounds,
        format!("{b} bytes for {a}: both ends have to be as long"),
    ))
}

fn check_elements(bytes: u64, dtype: DataType) -> Result<()> {
    if bytes.is_multiple_of(dtype.size() as u64) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::OutOfBounds,
        format!("{bytes} bytes are no whole number of {dtype} elements"),
    ))
}

fn check_pair(
    channel: &Channel,
    local: &Slice,
    remote: &RemoteSlice,
    ability: Capabilities,
) -> Result<()> {
    check_lengths(remote.bytes(), local.bytes() as u64)?;
    let device = channel.transport().device();
    if !channel.imported(remote.import()) {
        // Bytes of mapped memory do not go through a channel: any one to that peer will do.
        let through = remote.import().channel();
        if remote.import().address().is_some() && through.device().is_same(device) {
            return Ok(());
        }
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "the peer's memory was imported through another channel",
        )
        .hint("use that channel, or make one after the memory was registered"));
    }
    if remote.import().address().is_some() {
        return Ok(());
    }
    if !device.info().capabilities.contains(ability) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("{device:?} cannot do that with memory that is not mapped"),
        ));
    }
    local.place().postable(device)
}

fn check_piece(channel: &Channel, op: &BatchOp) -> Result<()> {
    let notify = match op {
        BatchOp::Write { dst, src, notify } => {
            check_pair(channel, src, dst, Capabilities::WRITE)?;
            *notify
        }
        BatchOp::WriteReduce {
            dst,
            src,
            dtype,
            notify,
            ..
        } => {
            check_pair(channel, src, dst, Capabilities::WRITE_REDUCE)?;
            check_elements(dst.bytes(), *dtype)?;
            *notify
        }
        BatchOp::Read { dst, src, notify } => {
            check_pair(channel, dst, src, Capabilities::READ)?;
            *notify
        }
        BatchOp::ReadReduce {
            dst,
            src,
            dtype,
            notify,
            ..
        } => {
            check_pair(channel, dst, src, Capabilities::READ_REDUCE)?;
            check_elements(src.bytes(), *dtype)?;
            *notify
        }
        BatchOp::Record { notify } => Some(*notify),
    };
    notify.map_or(Ok(()), |notify| channel.check_record(notify))
}
