//! Running one task: as far as it goes now.
//!
//! A step is called again and again for the task at the head of a queue. It returns whether the
//! task is done; if not, it has noted why, and how far it came, and took nothing that it would
//! have to give back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hcomm_transport::Capabilities;
use hcomm_types::{DataType, Error, ErrorKind, ReduceOp};
use smallvec::SmallVec;

use crate::channel::Channel;
use crate::copy::Hint;
use crate::domain::{DomainInner, Peers};
use crate::failure::Failure;
use crate::lent::{Lending, Lent};
use crate::looks::Looks;
use crate::memory::{self, CHUNK, InFlight, Place, Transfer};
use crate::message::{Label, MessageLink, Step};
use crate::packet::{self, Missing};
use crate::program::{At, Op};
use crate::queue::Queue;
use crate::slice::Remote;
use crate::work::{Expected, Part, Work};

/// What a thread knows while it runs its tasks.
pub(crate) struct Runner {
    peers: Arc<dyn Peers>,
    /// Tells queues apart that use one link; not 0.
    number: u64,
    pub(crate) in_flight: InFlight,
    /// Of each of the thread's own notifies, how many records were taken.
    taken: Box<[u64]>,
    /// How far the task at the head is.
    at: Progress,
    /// In a batch or a program, how many of its tasks are done.
    index: usize,
    /// Why the task at the head does not go on.
    reason: Option<Reason>,
    /// The packet that it waited for last.
    missing: Option<Missing>,
    /// Whether something was done since this was last asked.
    moved: bool,
    /// What the program at the head lends to its peers.
    lending: Option<Lending>,
}

/// How far one task is.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// Whether its first operand is in place and the second is left.
    prepared: bool,
    /// Whether its bytes are on their way and its notify is left.
    sent: bool,
    /// Bytes posted, or taken out of a packet.
    posted: u64,
}

impl Progress {
    const fn has_begun(self) -> bool {
        self.prepared || self.sent || self.posted > 0
    }
}

/// Why a task waits. Those that concern a channel mean the channel of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// For a record of the peer.
    Notify(u32),
    /// For a packet of the peer.
    Packet,
    /// For a record of another thread.
    ThreadNotify(u32),
    /// For the completion of what was posted.
    Completions,
    /// For room in the transport's queue.
    Room,
    /// For visibility at the peer.
    Flush,
    /// For the peer to take what was sent.
    Send,
    /// For a message of the peer.
    Recv,
    /// For word why the peer has taken back what it lent.
    Loan,
}

impl Reason {
    pub(crate) const fn concerns_channel(self) -> bool {
        matches!(
            self,
            Self::Notify(_)
                | Self::Packet
                | Self::Room
                | Self::Flush
                | Self::Send
                | Self::Recv
                | Self::Loan
        )
    }

    pub(crate) fn describe(self) -> String {
        match self {
            Self::Notify(notify) => format!("notify {notify} of the peer"),
            Self::Packet => "a packet of the peer".to_owned(),
            Self::ThreadNotify(notify) => format!("notify {notify} of another thread"),
            Self::Completions => "the completion of posted transfers".to_owned(),
            Self::Room => "room in the send queue of the link".to_owned(),
            Self::Flush => "visibility at the peer".to_owned(),
            Self::Send => "the peer to receive".to_owned(),
            Self::Recv => "a message of the peer".to_owned(),
            Self::Loan => "memory that the peer lends no more".to_owned(),
        }
    }
}

type Done = Result<bool, Failure>;

/// How long to look for what is not there yet, before something else is done.
pub(crate) struct Patience<'a> {
    /// Quick looks, or the time of so many.
    pub(crate) looks: u32,
    /// How often to let others run after that, where ranks share cores.
    pub(crate) turns: u32,
    pub(crate) domain: &'a DomainInner,
}

impl Patience<'_> {
    /// Whether there is nothing to look for any more.
    #[inline]
    fn has_ended(&self) -> bool {
        self.domain.aborted().is_some()
    }
}

/// How far [`Runner::run_now`] has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Now {
    /// To the end, without a wait.
    Done,
    /// To the end.
    DoneLate,
    /// Not to the end.
    Rest,
}

impl Runner {
    pub(crate) fn new(peers: Arc<dyn Peers>, notifies: usize) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            peers,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            in_flight: InFlight::default(),
            taken: vec![0; notifies].into(),
            at: Progress::default(),
            index: 0,
            reason: None,
            missing: None,
            moved: false,
            lending: None,
        }
    }

    /// Why the task at the head waits.
    pub(crate) const fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// How many tasks of the batch or program at the head are done.
    pub(crate) const fn index(&self) -> usize {
        self.index
    }

    /// Whether something was done since the last call.
    pub(crate) fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// The task at the head is over: the next one begins.
    pub(crate) fn next(&mut self) {
        self.at = Progress::default();
        self.index = 0;
        self.reason = None;
        self.lending = None;
    }

    /// Whether the task at the head, of that channel, would go on, without going on.
    pub(crate) fn would_move(&self, channel: Option<&Channel>, own: &[AtomicU64]) -> bool {
        if self.in_flight.has_news() {
            return true;
        }
        match (self.reason, channel) {
            (None | Some(Reason::Room | Reason::Loan), _) => false,
            // A wait for what is not there ends in an error: worth a step.
            (Some(Reason::Notify(notify)), Some(channel)) => channel.has_arrived(notify),
            (Some(Reason::Packet), _) => self.missing.as_ref().is_none_or(Missing::arrived),
            (Some(Reason::ThreadNotify(notify)), _) => {
                let notify = notify as usize;
                own.get(notify)
                    .is_none_or(|count| count.load(Ordering::Acquire) > self.taken[notify])
            }
            (Some(Reason::Completions), _) => self.in_flight.has_let_go(),
            (Some(Reason::Flush), Some(channel)) => channel.transport().flush().unwrap_or(true),
            (Some(Reason::Notify(_) | Reason::Flush), None) => true,
            // Its queue knows the link.
            (Some(Reason::Send | Reason::Recv), _) => true,
        }
    }

    /// One task. `own` are the notifies of this thread.
    pub(crate) fn step(&mut self, work: Work<'_>, own: &[AtomicU64]) -> Done {
        match work {
            Work::Write {
                channel,
                dst,
                src,
                notify,
                fingerprint,
            } => self.send(
                channel,
                dst,
                src,
                Sending {
                    reduce: None,
                    notify,
                    fingerprint,
                },
            ),
            Work::WriteReduce {
                channel,
                dst,
                src,
                dtype,
                redop,
                notify,
                fingerprint,
            } => self.send(
                channel,
                dst,
                src,
                Sending {
                    reduce: Some((dtype, redop)),
                    notify,
                    fingerprint,
                },
            ),
            Work::Read {
                channel,
                dst,
                src,
                notify,
                hint,
            } => {
                let read = |this: &mut Self| this.read(channel, dst, src, hint);
                self.fetch(channel, notify, read)
            }
            Work::ReadReduce {
                channel,
                dst,
                a,
                src,
                dtype,
                redop,
                notify,
                hint,
            } => {
                let how = (dtype, redop, hint);
                let read = |this: &mut Self| this.read_reduce(channel, dst, a, src, how);
                self.fetch(channel, notify, read)
            }
            Work::Fetch {
                channel,
                dst,
                lent,
                from,
            } => self.fetch_lent(channel, dst, lent, from),
            Work::PacketWrite {
                channel,
                lines,
                src,
                flag,
            } => {
                // It says that what was done before is done, as a record does.
                if !self.in_flight.is_empty()? {
                    return self.wait_for(Reason::Completions);
                }
                packet::write(lines, src, flag)?;
                channel.transport().ring_peer();
                Ok(true)
            }
            Work::PacketRead { dst, packet, .. } => {
                self.take_packet(|done| packet::read(dst, &packet, done))
            }
            Work::PacketReduce {
                dst,
                a,
                packet,
                dtype,
                redop,
                swapped,
                ..
            } => self
                .take_packet(|done| packet::reduce(dst, a, &packet, (dtype, redop, swapped), done)),
            Work::Record {
                channel,
                notify,
                fingerprint,
            } => self.record(channel, notify, fingerprint),
            Work::Wait {
                channel,
                notify,
                expected,
            } => self.take_notify(channel, notify, expected),
            Work::RecordThread { queue, notify } => {
                if !self.in_flight.is_empty()? {
                    return self.wait_for(Reason::Completions);
                }
                queue.record(notify)?;
                Ok(true)
            }
            Work::WaitThread { notify } => {
                let index = notify as usize;
                let (Some(count), Some(taken)) = (own.get(index), self.taken.get_mut(index)) else {
                    return Err(no_thread_notify(notify, own.len()).into());
                };
                if count.load(Ordering::Acquire) > *taken {
                    *taken += 1;
                    return Ok(true);
                }
                self.wait_for(Reason::ThreadNotify(notify))
            }
            Work::Copy { dst, src, hint } => {
                if !self.in_flight.admits(dst, &[src])? {
                    return self.wait_for(Reason::Completions);
                }
                memory::copy(dst, src, hint)?;
                Ok(true)
            }
            Work::Reduce {
                dst,
                a,
                b,
                dtype,
                redop,
                hint,
            } => {
                if !self.in_flight.admits(dst, &[a, b])? {
                    return self.wait_for(Reason::Completions);
                }
                memory::reduce(dst, a, b, dtype, redop, hint)?;
                Ok(true)
            }
            Work::Divide { dst, dtype, by } => {
                if !self.in_flight.admits(dst, &[dst])? {
                    return self.wait_for(Reason::Completions);
                }
                memory::divide(dst, dtype, by)?;
                Ok(true)
            }
            Work::Fence { channel } => {
                if !self.in_flight.has_no_reads()? {
                    return self.wait_for(Reason::Completions);
                }
                if channel
                    .transport()
                    .flush()
                    .map_err(|e| channel.failure(e))?
                {
                    return Ok(true);
                }
                self.wait_for(Reason::Flush)
            }
            Work::Send { link, src, label } => {
                let step = self.send_message(link, src, label)?;
                self.after_message(step, Reason::Send)
            }
            Work::Recv { link, dst, label } => {
                let step = self.recv_message(link, dst, label)?;
                self.after_message(step, Reason::Recv)
            }
            Work::Drain => {
                if self.in_flight.is_empty()? {
                    return Ok(true);
                }
                self.wait_for(Reason::Completions)
            }
        }
    }

    /// Sends a message, as far as it goes.
    #[inline]
    pub(crate) fn send_message(
        &mut self,
        link: &MessageLink,
        src: Place<'_>,
        label: Label,
    ) -> Result<Step, Failure> {
        // What is in flight may be what is sent.
        if !self.in_flight.is_empty()? {
            return Ok(Step::Waits);
        }
        link.send(self.number, src, label)
    }

    /// Receives a message, as far as it goes.
    #[inline]
    pub(crate) fn recv_message(
        &mut self,
        link: &MessageLink,
        dst: Place<'_>,
        label: Label,
    ) -> Result<Step, Failure> {
        // What is in flight may land where the message goes.
        if !self.in_flight.is_empty()? {
            return Ok(Step::Waits);
        }
        link.recv(self.number, dst, label)
    }

    /// After a step of a message.
    fn after_message(&mut self, step: Step, reason: Reason) -> Done {
        if step == Step::Done {
            return Ok(true);
        }
        self.moved |= step == Step::Moved;
        self.wait_for(if self.in_flight.is_idle() {
            reason
        } else {
            Reason::Completions
        })
    }

    /// A batch of `count` tasks of one channel. Those that a transport has to move are posted
    /// together; a notify comes after all that precede it in the batch.
    pub(crate) fn batch<'a>(
        &mut self,
        channel: &Channel,
        count: usize,
        own: &[AtomicU64],
        get: impl Fn(usize) -> Option<Work<'a>>,
    ) -> Done {
        let get = |index: usize| {
            get(index).ok_or_else(|| Error::new(ErrorKind::Internal, "a batch in a batch"))
        };
        if self.index == 0 && !self.at.has_begun() && !self.in_flight.is_empty()? {
            // Earlier tasks first: what they read must be here before it is sent, and what they
            // send must be gone before it is overwritten.
            let (mut reads, mut notifies) = (false, false);
            for index in 0..count {
                let work = get(index)?;
                reads |= matches!(work, Work::Read { .. } | Work::ReadReduce { .. });
                notifies |= single(work, channel).is_some_and(|transfer| has_notify(&transfer));
            }
            let ready = if reads {
                self.in_flight.is_empty()?
            } else if notifies {
                self.in_flight.admits_notify(channel)?
            } else {
                self.in_flight.has_no_reads()?
            };
            if !ready {
                return self.wait_for(Reason::Completions);
            }
        }
        let most = channel.transport().device().info().max_transfer_bytes;
        let notifies = joins_notify(channel, [0; 2]);
        while self.index < count {
            let mut list: SmallVec<[Transfer<'_>; CHUNK]> = SmallVec::new();
            // How many tasks are behind each: what lies side by side here and there goes as one.
            let mut tasks: SmallVec<[usize; CHUNK]> = SmallVec::new();
            let (mut reads, mut bytes) = (!self.in_flight.has_no_reads()?, 0);
            let mut next = self.index;
            // No more than is worth a call: the peer takes it while the rest is made ready.
            while next < count && bytes < BYTES_AT_ONCE {
                let Some(transfer) = single(get(next)?, channel) else {
                    break;
                };
                // A notify says that the reads before it are done.
                if reads && has_notify(&transfer) {
                    break;
                }
                bytes += transfer.bytes();
                let last = list.last_mut().zip(tasks.last_mut());
                if let Some((before, tasks)) = last
                    && let Some(both) = before.joined(&transfer, most, notifies)
                {
                    (*before, *tasks) = (both, *tasks + 1);
                } else if list.len() < CHUNK {
                    reads |= transfer.is_read();
                    list.push(transfer);
                    tasks.push(1);
                } else {
                    break;
                }
                next += 1;
            }
            // One by one: what is mapped, too long for one descriptor, or has to wait for reads.
            if list.is_empty() {
                if !self.step(get(self.index)?, own)? {
                    return Ok(false);
                }
                self.at = Progress::default();
                self.index += 1;
                self.moved = true;
                continue;
            }
            let accepted = self.in_flight.post(channel, &list)?;
            for transfer in &list[..accepted] {
                if has_notify(transfer) {
                    channel.recorded();
                }
            }
            self.index += tasks[..accepted].iter().sum::<usize>();
            self.moved |= accepted > 0;
            if accepted < list.len() {
                return self.wait_for(Reason::Room);
            }
        }
        Ok(true)
    }

    /// One thread's part of a program. Done when all it has posted has completed.
    pub(crate) fn run(&mut self, part: &Part<'_>, own: &[AtomicU64], domain: &DomainInner) -> Done {
        let tasks = part.program.threads[part.number].len();
        let mut target: Option<Arc<Queue>> = None;
        if !self.lend(part, domain) {
            return self.wait_for(Reason::Loan);
        }
        while self.index < tasks {
            let work = part.work(self.index, &mut target)?;
            if !self.step(work, own)? {
                self.note_missing(work);
                return Ok(false);
            }
            self.at = Progress::default();
            self.index += 1;
            self.moved = true;
        }
        if self.in_flight.is_empty()? {
            return Ok(true);
        }
        self.wait_for(Reason::Completions)
    }

    /// The same with some patience for what is not there yet. What is left goes on with
    /// [`Runner::run`].
    pub(crate) fn run_now(
        &mut self,
        part: &Part<'_>,
        own: &[AtomicU64],
        patience: &Patience<'_>,
    ) -> Result<Now, Failure> {
        /// What is longer is no small operation: the queue looks after aborts, the clock and devices.
        const MOST_OPS: usize = 256;
        let ops = &part.program.threads[part.number];
        let mut has_waited = false;
        if !self.lend(part, patience.domain) {
            return Ok(Now::Rest);
        }
        while let Some(op) = ops.get(self.index) {
            if self.index >= MOST_OPS || patience.has_ended() {
                return Ok(Now::Rest);
            }
            if !self.step_now(part, op, own, patience, &mut has_waited)? {
                let mut target = None;
                self.note_missing(part.work(self.index, &mut target)?);
                return Ok(Now::Rest);
            }
            self.at = Progress::default();
            self.index += 1;
        }
        if self.in_flight.is_empty()? {
            self.next();
            return Ok(if has_waited { Now::DoneLate } else { Now::Done });
        }
        self.reason = Some(Reason::Completions);
        Ok(Now::Rest)
    }

    /// One task of a program. What small operations consist of is told apart here and not
    /// through [`Work`]: that is larger than a line, and who loads at once what was stored field by
    /// field waits for the stores.
    #[inline(always)]
    fn step_now(
        &mut self,
        part: &Part<'_>,
        op: &Op,
        own: &[AtomicU64],
        patience: &Patience<'_>,
        has_waited: &mut bool,
    ) -> Done {
        let (dtype, redop) = (part.program.dtype, part.program.redop);
        match *op {
            Op::PacketWrite {
                link,
                line,
                src,
                bytes,
            } if self.in_flight.is_idle() => {
                let channel = &part.program.links[usize::from(link)].channel;
                let lines = part.packets(link)?.outgoing(part.packet(line, bytes))?;
                packet::write(lines, part.place(src, bytes)?, part.outgoing_flag(link))?;
                channel.transport().ring_peer();
                Ok(true)
            }
            Op::PacketRead {
                link,
                dst,
                line,
                bytes,
            } => {
                let dst = part.place(dst, bytes)?;
                let packet = part.incoming(link, line, bytes)?;
                self.look(patience, has_waited, |this| {
                    this.take_packet(|done| packet::read(dst, &packet, done))
                })
            }
            Op::PacketReduce {
                link,
                dst,
                a,
                line,
                count,
                swapped,
            } => {
                let bytes = count * dtype.size() as u64;
                let (dst, a) = (part.place(dst, bytes)?, part.place(a, bytes)?);
                let packet = part.incoming(link, line, bytes)?;
                self.look(patience, has_waited, |this| {
                    this.take_packet(|done| {
                        packet::reduce(dst, a, &packet, (dtype, redop, swapped), done)
                    })
                })
            }
            Op::Wait { link, notify } => {
                let channel = &part.program.links[usize::from(link)].channel;
                let expected = part.expected(self.index, link);
                self.look(patience, has_waited, |this| {
                    this.take_notify(channel, notify, expected)
                })
            }
            Op::Record { link, notify } => {
                let channel = &part.program.links[usize::from(link)].channel;
                let fingerprint = part.carried(self.index, link);
                self.record(channel, notify, fingerprint)
            }
            _ => {
                let mut target = None;
                let work = part.work(self.index, &mut target)?;
                self.look(patience, has_waited, |this| this.step(work, own))
            }
        }
    }

    /// Looks whether something can be done, as long as patience lasts.
    #[inline(always)]
    fn look(
        &mut self,
        patience: &Patience<'_>,
        has_waited: &mut bool,
        mut step: impl FnMut(&mut Self) -> Done,
    ) -> Done {
        if step(self)? {
            return Ok(true);
        }
        *has_waited = true;
        let mut looks = Looks::new(patience.looks);
        while looks.again() {
            if step(self)? {
                return Ok(true);
            }
        }
        for _ in 0..patience.turns {
            if patience.has_ended() || !patience.domain.waiter().give_way() {
                break;
            }
            if step(self)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether some of the task at the head is done.
    pub(crate) const fn has_begun(&self) -> bool {
        self.index > 0 || self.at.has_begun()
    }

    /// Notes the packet that a task waits for, for when its places are out of reach.
    fn note_missing(&mut self, work: Work<'_>) {
        if self.reason != Some(Reason::Packet) {
            return;
        }
        if let Work::PacketRead { packet, .. } | Work::PacketReduce { packet, .. } = work {
            let done = self.at.posted as usize;
            // Asked in every round of a spin: left where it is if it is the same.
            if !self
                .missing
                .as_ref()
                .is_some_and(|known| known.is(&packet, done))
            {
                self.missing = Some(packet.missing(done));
            }
        }
    }

    fn send(
        &mut self,
        channel: &Channel,
        dst: Remote<'_>,
        src: Place<'_>,
        sending: Sending,
    ) -> Done {
        let Sending {
            reduce,
            notify,
            fingerprint,
        } = sending;
        if !self.at.sent && src.bytes() > 0 {
            // What was read before may be what is sent now.
            let ready = if self.at.posted > 0 {
                true
            } else if notify.is_some() && dst.mapped().is_none() {
                self.in_flight.admits_notify(channel)?
            } else {
                self.in_flight.has_no_reads()?
            };
            if !ready {
                return self.wait_for(Reason::Completions);
            }
            if let Some(peer) = dst.mapped() {
                match reduce {
                    None => memory::copy(peer, src, channel.hint(peer))?,
                    Some((dtype, redop)) => {
                        memory::reduce(peer, peer, src, dtype, redop, channel.hint(peer))?;
                    }
                }
            } else {
                let joined = notify.filter(|_| joins_notify(channel, fingerprint));
                let unit = reduce.map_or(1, |(dtype, _)| dtype.size() as u64);
                // Where a record is posted as well, both leave in one call.
                let device = channel.transport().device();
                let fits = src.bytes() as u64 <= device.info().max_transfer_bytes;
                let behind = notify.filter(|_| {
                    let posts = device.needs_watching() && self.at.posted == 0;
                    joined.is_none() && fits && posts
                });
                if let (Some(notify), None) = (behind, reduce) {
                    let both = [
                        Transfer::Write {
                            local: src,
                            remote: dst,
                            notify: None,
                        },
                        Transfer::Notify {
                            notify,
                            fingerprint,
                        },
                    ];
                    return match self.in_flight.post(channel, &both)? {
                        0 => self.wait_for(Reason::Room),
                        1 => {
                            (self.at.sent, self.moved) = (true, true);
                            self.record(channel, notify, fingerprint)
                        }
                        _ => {
                            channel.recorded();
                            Ok(true)
                        }
                    };
                }
                let posted = self.post_pieces(channel, src.bytes() as u64, unit, |piece| {
                    let (local, remote) = (
                        src.part(piece.offset, piece.bytes)?,
                        dst.part(piece.offset, piece.bytes)?,
                    );
                    let notify = joined.filter(|_| piece.is_last);
                    Ok(match reduce {
                        None => Transfer::Write {
                            local,
                            remote,
                            notify,
                        },
                        Some((dtype, redop)) => Transfer::WriteReduce {
                            local,
                            remote,
                            dtype,
                            redop,
                            notify,
                        },
                    })
                })?;
                if !posted {
                    return Ok(false);
                }
                if joined.is_some() {
                    channel.recorded();
                    return Ok(true);
                }
            }
            self.at.sent = true;
            self.moved = true;
        }
        match notify {
            None => Ok(true),
            Some(notify) => self.record(channel, notify, fingerprint),
        }
    }

    /// A read, and then the record that tells the peer that it has completed.
    fn fetch(
        &mut self,
        channel: &Channel,
        notify: Option<u32>,
        read: impl FnOnce(&mut Self) -> Done,
    ) -> Done {
        if !self.at.sent {
            if !read(self)? {
                return Ok(false);
            }
            self.at.sent = true;
            self.moved = true;
        }
        match notify {
            None => Ok(true),
            Some(notify) => self.record(channel, notify, [0; 2]),
        }
    }

    fn read(&mut self, channel: &Channel, dst: Place<'_>, src: Remote<'_>, hint: Hint) -> Done {
        if let Some(peer) = src.mapped() {
            if !self.in_flight.is_empty()? {
                return self.wait_for(Reason::Completions);
            }
            memory::copy(dst, peer, hint)?;
            return Ok(true);
        }
        if self.at.posted == 0 && !self.in_flight.admits_read(dst)? {
            return self.wait_for(Reason::Completions);
        }
        self.post_pieces(channel, dst.bytes() as u64, 1, |piece| {
            Ok(Transfer::Read {
                local: dst.part(piece.offset, piece.bytes)?,
                remote: src.part(piece.offset, piece.bytes)?,
            })
        })
    }

    fn read_reduce(
        &mut self,
        channel: &Channel,
        dst: Place<'_>,
        a: Place<'_>,
        src: Remote<'_>,
        (dtype, redop, hint): (DataType, ReduceOp, Hint),
    ) -> Done {
        if let Some(peer) = src.mapped() {
            if !self.in_flight.is_empty()? {
                return self.wait_for(Reason::Completions);
            }
            memory::reduce(dst, a, peer, dtype, redop, hint)?;
            return Ok(true);
        }
        if !dst.is_at(a) && !self.at.prepared {
            // A transport knows only two places: the operand here goes where the result goes.
            if !self.in_flight.admits(dst, &[a])? {
                return self.wait_for(Reason::Completions);
            }
            memory::copy(dst, a, Hint::Local)?;
            self.at.prepared = true;
            self.moved = true;
        }
        if self.at.posted == 0 && !self.in_flight.admits_read(dst)? {
            return self.wait_for(Reason::Completions);
        }
        self.post_pieces(channel, dst.bytes() as u64, dtype.size() as u64, |piece| {
            Ok(Transfer::ReadReduce {
                local: dst.part(piece.offset, piece.bytes)?,
                remote: src.part(piece.offset, piece.bytes)?,
                dtype,
                redop,
            })
        })
    }

    /// Lends the buffers of a program that does so, when it begins; whether it may go on.
    #[inline]
    fn lend(&mut self, part: &Part<'_>, domain: &DomainInner) -> bool {
        if let Some(line) = &part.program.lends
            && self.lending.is_none()
        {
            let sequence = part.turn.sequence;
            self.lending = domain.lend(line, sequence, part.input, part.output);
            return self.lending.is_some();
        }
        true
    }

    /// Takes back what the program at the head lends, if it does.
    pub(crate) fn take_back(&mut self) {
        self.lending = None;
    }

    /// Copies what a peer lends.
    fn fetch_lent(&mut self, channel: &Channel, dst: Place<'_>, lent: Lent<'_>, from: At) -> Done {
        if !self.in_flight.admits(dst, &[])? {
            return self.wait_for(Reason::Completions);
        }
        let bytes = dst.bytes() as u64;
        let Some(address) = lent.address(from, bytes).map_err(|e| channel.failure(e))? else {
            return self.wait_for(Reason::Loan);
        };
        let fetched = memory::fetch_lent(channel, dst, address);
        if !lent.is_there() {
            return self.wait_for(Reason::Loan);
        }
        fetched.map(|()| true).map_err(|e| channel.failure(e))
    }

    /// Takes a record, and looks whether it belongs to the same run.
    #[inline(always)]
    fn take_notify(&mut self, channel: &Channel, notify: u32, expected: Option<Expected>) -> Done {
        if !channel.take(notify)? {
            return self.wait_for(Reason::Notify(notify));
        }
        match expected {
            Some(expected) => channel.compare(notify, expected).map(|()| true),
            None => Ok(true),
        }
    }

    #[inline(always)]
    fn take_packet(&mut self, take: impl FnOnce(&mut usize) -> Result<bool, Error>) -> Done {
        if !self.in_flight.is_empty()? {
            return self.wait_for(Reason::Completions);
        }
        let before = self.at.posted as usize;
        let mut done = before;
        let all = take(&mut done)?;
        self.at.posted = done as u64;
        self.moved |= done > before;
        if all {
            return Ok(true);
        }
        self.wait_for(Reason::Packet)
    }

    fn record(&mut self, channel: &Channel, notify: u32, fingerprint: [u64; 2]) -> Done {
        if !self.in_flight.admits_notify(channel)? {
            return self.wait_for(Reason::Completions);
        }
        // Mostly a store of ours. Behind something posted it goes the same way, to keep its place.
        if !channel.is_quiet() {
            self.in_flight.retire()?;
        }
        if channel.record(notify, fingerprint) {
            return Ok(true);
        }
        let transfer = Transfer::Notify {
            notify,
            fingerprint,
        };
        match self.in_flight.post(channel, &[transfer]) {
            Ok(0) => return self.wait_for(Reason::Room),
            Ok(_) => channel.recorded(),
            // Whoever left in good order waits for nothing any more. Its last message may well be
            // taken, and answered, after it is gone.
            Err(failure)
                if failure.error.kind() == ErrorKind::PeerLost
                    && self.peers.has_left(channel.label()) => {}
            Err(failure) => return Err(failure),
        }
        Ok(true)
    }

    /// Posts `bytes` bytes in pieces that the device takes, from where it stopped before.
    fn post_pieces<'a>(
        &mut self,
        channel: &Channel,
        bytes: u64,
        unit: u64,
        make: impl Fn(Piece) -> Result<Transfer<'a>, Error>,
    ) -> Done {
        let most = channel.transport().device().info().max_transfer_bytes;
        let most = (most - most % unit).max(unit);
        while self.at.posted < bytes {
            let left = bytes - self.at.posted;
            let piece = Piece {
                offset: self.at.posted,
                bytes: left.min(most),
                is_last: left <= most,
            };
            if self.in_flight.post(channel, &[make(piece)?])? == 0 {
                return self.wait_for(Reason::Room);
            }
            self.at.posted += piece.bytes;
            self.moved = true;
        }
        Ok(true)
    }

    fn wait_for(&mut self, reason: Reason) -> Done {
        self.in_flight.is_awaited();
        self.reason = Some(reason);
        Ok(false)
    }
}

/// Bytes of a batch that are enough for one call to a transport: a call then costs a hundredth of what
/// they do.
const BYTES_AT_ONCE: u64 = 256 << 10;

/// A part of a transfer.
#[derive(Clone, Copy)]
struct Piece {
    offset: u64,
    bytes: u64,
    is_last: bool,
}

/// What a write is besides its bytes.
struct Sending {
    reduce: Option<(DataType, ReduceOp)>,
    notify: Option<u32>,
    fingerprint: [u64; 2],
}

/// Whether a write on this channel can take its notify along.
fn joins_notify(channel: &Channel, fingerprint: [u64; 2]) -> bool {
    fingerprint == [0; 2]
        && channel
            .transport()
            .device()
            .info()
            .capabilities
            .contains(Capabilities::WRITE_NOTIFY)
}

/// The one descriptor that a task of a batch is, if it is one.
fn single<'a>(work: Work<'a>, channel: &Channel) -> Option<Transfer<'a>> {
    let most = channel.transport().device().info().max_transfer_bytes;
    let fits =
        |remote: Remote<'_>| remote.mapped().is_none() && remote.bytes > 0 && remote.bytes <= most;
    let joins = |notify: Option<u32>| notify.is_none() || joins_notify(channel, [0; 2]);
    Some(match work {
        Work::Write {
            dst, src, notify, ..
        } if fits(dst) && joins(notify) => Transfer::Write {
            local: src,
            remote: dst,
            notify,
        },
        Work::WriteReduce {
            dst,
            src,
            dtype,
            redop,
            notify,
            ..
        } if fits(dst) && joins(notify) => Transfer::WriteReduce {
            local: src,
            remote: dst,
            dtype,
            redop,
            notify,
        },
        // With a notify it has to wait for itself: one by one.
        Work::Read {
            dst,
            src,
            notify: None,
            ..
        } if fits(src) => Transfer::Read {
            local: dst,
            remote: src,
        },
        Work::ReadReduce {
            dst,
            a,
            src,
            dtype,
            redop,
            notify: None,
            ..
        } if fits(src) && dst.is_at(a) => Transfer::ReadReduce {
            local: dst,
            remote: src,
            dtype,
            redop,
        },
        Work::Record {
            notify,
            fingerprint,
            ..
        } => Transfer::Notify {
            notify,
            fingerprint,
        },
        _ => return None,
    })
}

const fn has_notify(transfer: &Transfer<'_>) -> bool {
    matches!(
        transfer,
        Transfer::Notify { .. }
            | Transfer::Write {
                notify: Some(_),
                ..
            }
            | Transfer::WriteReduce {
                notify: Some(_),
                ..
            }
    )
}

pub(crate) fn no_thread_notify(notify: u32, have: usize) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("no notify {notify}: the thread has {have}"),
    )
}
