//! Tasks: as they are submitted, borrowed, and as they wait in a queue, owned.

use std::num::NonZeroU32;
use std::sync::{Arc, Weak};

use hcomm_types::{DataType, Error, ErrorKind, ReduceOp, Result};

use crate::channel::Channel;
use crate::copy::Hint;
use crate::lent::Lent;
use crate::memory::{Loan, Place};
use crate::message::{Label, MessageLink};
use crate::packet::{Incoming, Packet, PacketLines, packet_flag, packet_lines};
use crate::program::{At, Op, Program, SlotKind, Turn};
use crate::queue::Queue;
use crate::slice::{KeptMemory, Remote, RemoteSlice, Slice};

/// What a record that is waited for has to carry.
#[derive(Clone, Copy)]
pub(crate) struct Expected {
    /// Which of the two words of a fingerprint.
    pub(crate) word: usize,
    pub(crate) value: u64,
}

/// One task, borrowed from whoever submits it, from a queue or from a program.
#[derive(Clone, Copy)]
pub(crate) enum Work<'a> {
    Write {
        channel: &'a Channel,
        dst: Remote<'a>,
        src: Place<'a>,
        notify: Option<u32>,
        fingerprint: [u64; 2],
    },
    Read {
        channel: &'a Channel,
        dst: Place<'a>,
        src: Remote<'a>,
        notify: Option<u32>,
        hint: Hint,
    },
    WriteReduce {
        channel: &'a Channel,
        dst: Remote<'a>,
        src: Place<'a>,
        dtype: DataType,
        redop: ReduceOp,
        notify: Option<u32>,
        fingerprint: [u64; 2],
    },
    ReadReduce {
        channel: &'a Channel,
        dst: Place<'a>,
        a: Place<'a>,
        src: Remote<'a>,
        dtype: DataType,
        redop: ReduceOp,
        notify: Option<u32>,
        hint: Hint,
    },
    Fetch {
        channel: &'a Channel,
        dst: Place<'a>,
        lent: Lent<'a>,
        from: At,
    },
    PacketWrite {
        channel: &'a Channel,
        lines: Place<'a>,
        src: Place<'a>,
        flag: u64,
    },
    PacketRead {
        channel: &'a Channel,
        dst: Place<'a>,
        packet: Incoming<'a>,
    },
    PacketReduce {
        channel: &'a Channel,
        dst: Place<'a>,
        a: Place<'a>,
        packet: Incoming<'a>,
        dtype: DataType,
        redop: ReduceOp,
        swapped: bool,
    },
    Record {
        channel: &'a Channel,
        notify: u32,
        fingerprint: [u64; 2],
    },
    Wait {
        channel: &'a Channel,
        notify: u32,
        expected: Option<Expected>,
    },
    RecordThread {
        queue: &'a Queue,
        notify: u32,
    },
    WaitThread {
        notify: u32,
    },
    Copy {
        dst: Place<'a>,
        src: Place<'a>,
        hint: Hint,
    },
    Reduce {
        dst: Place<'a>,
        a: Place<'a>,
        b: Place<'a>,
        dtype: DataType,
        redop: ReduceOp,
        hint: Hint,
    },
    Divide {
        dst: Place<'a>,
        dtype: DataType,
        by: NonZeroU32,
    },
    Fence {
        channel: &'a Channel,
    },
    Drain,
    Send {
        link: &'a MessageLink,
        src: Place<'a>,
        label: Label,
    },
    Recv {
        link: &'a MessageLink,
        dst: Place<'a>,
        label: Label,
    },
}

impl<'a> Work<'a> {
    /// The channel it uses, if it uses one.
    pub(crate) fn channel(&self) -> Option<&'a Channel> {
        match self {
            Self::Write { channel, .. }
            | Self::Read { channel, .. }
            | Self::WriteReduce { channel, .. }
            | Self::ReadReduce { channel, .. }
            | Self::Fetch { channel, .. }
            | Self::PacketWrite { channel, .. }
            | Self::PacketRead { channel, .. }
            | Self::PacketReduce { channel, .. }
            | Self::Record { channel, .. }
            | Self::Wait { channel, .. }
            | Self::Fence { channel } => Some(channel),
            Self::Send { link, .. } | Self::Recv { link, .. } => Some(link.channel()),
            Self::RecordThread { .. }
            | Self::WaitThread { .. }
            | Self::Copy { .. }
            | Self::Reduce { .. }
            | Self::Divide { .. }
            | Self::Drain => None,
        }
    }

    /// Name for people.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Write { notify: None, .. } => "write",
            Self::Write { .. } => "write_with_notify",
            Self::Read { notify: None, .. } => "read",
            Self::Read { .. } => "read_with_notify",
            Self::WriteReduce { .. } => "write_reduce",
            Self::ReadReduce { .. } => "read_reduce",
            Self::Fetch { .. } => "fetch",
            Self::PacketWrite { .. } => "packet_write",
            Self::PacketRead { .. } => "packet_read",
            Self::PacketReduce { .. } => "packet_reduce",
            Self::Record { .. } => "record",
            Self::Wait { .. } => "wait",
            Self::RecordThread { .. } => "record_thread",
            Self::WaitThread { .. } => "wait_thread",
            Self::Copy { .. } => "copy",
            Self::Reduce { .. } => "reduce",
            Self::Divide { .. } => "divide",
            Self::Fence { .. } => "fence",
            Self::Drain => "drain",
            Self::Send { .. } => "send",
            Self::Recv { .. } => "recv",
        }
    }
}

/// One piece of a batch.
#[derive(Clone, Debug)]
pub enum BatchOp {
    /// Bytes to the peer.
    Write {
        /// Destination at the peer.
        dst: RemoteSlice,
        /// Source, as long.
        src: Slice,
        /// Notify of the peer to record afterwards.
        notify: Option<u32>,
    },
    /// Bytes from the peer.
    Read {
        /// Destination.
        dst: Slice,
        /// Source at the peer, as long.
        src: RemoteSlice,
        /// Notify of the peer to record when the bytes are here: its memory may be reused.
        notify: Option<u32>,
    },
    /// `dst = dst op src` at the peer.
    WriteReduce {
        /// Operand and result at the peer.
        dst: RemoteSlice,
        /// Operand here, as long.
        src: Slice,
        /// Type of the elements.
        dtype: DataType,
        /// Operation.
        redop: ReduceOp,
        /// Notify of the peer to record afterwards.
        notify: Option<u32>,
    },
    /// `dst = dst op src` here.
    ReadReduce {
        /// Operand and result here.
        dst: Slice,
        /// Operand at the peer, as long.
        src: RemoteSlice,
        /// Type of the elements.
        dtype: DataType,
        /// Operation.
        redop: ReduceOp,
        /// Notify of the peer to record when the result is here: its memory may be reused.
        notify: Option<u32>,
    },
    /// Records a notify of the peer, after all earlier pieces of the batch.
    Record {
        /// The notify.
        notify: u32,
    },
}

impl BatchOp {
    /// Whether it is done by loads and stores of the caller, without the transport.
    pub(crate) fn is_by_stores(&self) -> bool {
        match self {
            Self::Write { dst, .. } => dst.import().address().is_some(),
            Self::Record { .. } => true,
            Self::Read { .. } | Self::WriteReduce { .. } | Self::ReadReduce { .. } => false,
        }
    }

    pub(crate) fn work<'a>(&'a self, channel: &'a Channel) -> Work<'a> {
        match self {
            Self::Write { dst, src, notify } => Work::Write {
                channel,
                dst: dst.remote(),
                src: src.place(),
                notify: *notify,
                fingerprint: [0; 2],
            },
            Self::Read { dst, src, notify } => Work::Read {
                channel,
                dst: dst.place(),
                src: src.remote(),
                notify: *notify,
                hint: Hint::Local,
            },
            Self::WriteReduce {
                dst,
                src,
                dtype,
                redop,
                notify,
            } => Work::WriteReduce {
                channel,
                dst: dst.remote(),
                src: src.place(),
                dtype: *dtype,
                redop: *redop,
                notify: *notify,
                fingerprint: [0; 2],
            },
            Self::ReadReduce {
                dst,
                src,
                dtype,
                redop,
                notify,
            } => Work::ReadReduce {
                channel,
                dst: dst.place(),
                a: dst.place(),
                src: src.remote(),
                dtype: *dtype,
                redop: *redop,
                notify: *notify,
                hint: Hint::Local,
            },
            Self::Record { notify } => Work::Record {
                channel,
                notify: *notify,
                fingerprint: [0; 2],
            },
        }
    }
}

/// Memory of a message.
pub(crate) enum Message {
    Slice(Slice),
    /// The input of the loan if it is sent, the output if it is received.
    Lent(Arc<Loan>),
}

/// One task in a queue, holding what it needs.
pub(crate) enum Task {
    /// Anything that moves bytes over a channel, or records there.
    Channel(Channel, BatchOp),
    Wait(Channel, u32),
    RecordThread(Arc<Queue>, u32),
    WaitThread(u32),
    Copy {
        dst: KeptMemory,
        src: KeptMemory,
    },
    Reduce {
        dst: KeptMemory,
        a: KeptMemory,
        b: KeptMemory,
        dtype: DataType,
        redop: ReduceOp,
    },
    Fence(Channel),
    Drain,
    Send(MessageLink, Message, Label),
    Recv(MessageLink, Message, Label),
    /// The next so many tasks, all of one channel, are a batch.
    Batch(usize),
    Run(Run),
}

impl Task {
    /// The channel it uses, if it is one task of one channel.
    pub(crate) fn channel(&self) -> Option<&Channel> {
        match self {
            Self::Channel(channel, _) | Self::Wait(channel, _) | Self::Fence(channel) => {
                Some(channel)
            }
            Self::Send(link, ..) | Self::Recv(link, ..) => Some(link.channel()),
            _ => None,
        }
    }

    /// Whether memory that a caller has lent is reached through it.
    pub(crate) const fn is_lent(&self) -> bool {
        matches!(
            self,
            Self::Run(Run {
                buffers: RunBuffers::Lent(_),
                ..
            }) | Self::Send(_, Message::Lent(_), _)
                | Self::Recv(_, Message::Lent(_), _)
        )
    }

    /// Whether others are left in an unknown state if it does not come to its end.
    pub(crate) const fn concerns_all(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Send(..) | Self::Recv(..))
    }

    /// The task, borrowed; `None` for those that consist of several.
    pub(crate) fn work(&self) -> Option<Work<'_>> {
        Some(match self {
            Self::Channel(channel, op) => op.work(channel),
            Self::Wait(channel, notify) => Work::Wait {
                channel,
                notify: *notify,
                expected: None,
            },
            Self::RecordThread(queue, notify) => Work::RecordThread {
                queue,
                notify: *notify,
            },
            Self::WaitThread(notify) => Work::WaitThread { notify: *notify },
            Self::Copy { dst, src } => Work::Copy {
                dst: dst.place()?,
                src: src.place()?,
                hint: Hint::Local,
            },
            Self::Reduce {
                dst,
                a,
                b,
                dtype,
                redop,
            } => Work::Reduce {
                dst: dst.place()?,
                a: a.place()?,
                b: b.place()?,
                dtype: *dtype,
                redop: *redop,
                hint: Hint::Local,
            },
            Self::Fence(channel) => Work::Fence { channel },
            Self::Drain => Work::Drain,
            Self::Send(link, message, label) => Work::Send {
                link,
                src: match message {
                    Message::Slice(slice) => slice.place(),
                    Message::Lent(loan) => loan.input(),
                },
                label: *label,
            },
            Self::Recv(link, message, label) => Work::Recv {
                link,
                dst: match message {
                    Message::Slice(slice) => slice.place(),
                    Message::Lent(loan) => loan.output(),
                },
                label: *label,
            },
            Self::Batch(_) | Self::Run(_) => return None,
        })
    }
}

/// One thread's part of a run of a program.
pub(crate) struct Run {
    pub(crate) program: Arc<Program>,
    pub(crate) part: usize,
    pub(crate) buffers: RunBuffers,
    pub(crate) turn: Turn,
    pub(crate) fingerprint: u64,
    /// The queues of all parts, where the program records from thread to thread. Weak: a queue
    /// keeps the team of its last run.
    pub(crate) team: Option<Arc<[Weak<Queue>]>>,
}

/// Input and output of a run.
pub(crate) enum RunBuffers {
    Slices { input: Slice, output: Slice },
    Lent(Arc<Loan>),
}

impl Run {
    /// What runs, borrowed.
    pub(crate) fn part(&self) -> Part<'_> {
        let (input, output) = match &self.buffers {
            RunBuffers::Slices { input, output } => (input.place(), output.place()),
            RunBuffers::Lent(loan) => (loan.input(), loan.output()),
        };
        Part {
            program: &self.program,
            number: self.part,
            input,
            output,
            turn: self.turn,
            fingerprint: self.fingerprint,
            team: self.team.as_deref(),
        }
    }

    /// The channel of task `index`, if it has one.
    pub(crate) fn channel(&self, index: usize) -> Option<&Channel> {
        let link = self.program.threads[self.part].get(index)?.link()?;
        Some(&self.program.links[usize::from(link)].channel)
    }
}

/// One thread's part of a program and what it runs on, borrowed from a queue or from a caller.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) program: &'a Program,
    /// Which thread.
    pub(crate) number: usize,
    pub(crate) input: Place<'a>,
    pub(crate) output: Place<'a>,
    pub(crate) turn: Turn,
    pub(crate) fingerprint: u64,
    pub(crate) team: Option<&'a [Weak<Queue>]>,
}

impl<'a> Part<'a> {
    /// Task `index`, with places for its offsets. `target` is where the queue of another part is
    /// put while it is in use.
    #[inline]
    pub(crate) fn work<'w>(
        &self,
        index: usize,
        target: &'w mut Option<Arc<Queue>>,
    ) -> Result<Work<'w>>
    where
        'a: 'w,
    {
        let (dtype, redop) = (self.program.dtype, self.program.redop);
        let size = dtype.size() as u64;
        let program = self.program;
        let channel = |link: u16| &program.links[usize::from(link)].channel;
        Ok(match program.threads[self.number][index] {
            Op::Copy { dst, src, bytes } => Work::Copy {
                dst: self.place(dst, bytes)?,
                src: self.place(src, bytes)?,
                hint: program.hint(self.number, index),
            },
            Op::Reduce { dst, a, b, count } => Work::Reduce {
                dst: self.place(dst, count * size)?,
                a: self.place(a, count * size)?,
                b: self.place(b, count * size)?,
                dtype,
                redop,
                hint: program.hint(self.number, index),
            },
            Op::Divide { dst, count, by } => Work::Divide {
                dst: self.place(dst, count * size)?,
                dtype,
                by,
            },
            Op::Write {
                link,
                dst,
                src,
                bytes,
                notify,
            } => Work::Write {
                channel: channel(link),
                dst: self.remote(link, dst, bytes)?,
                src: self.place(src, bytes)?,
                notify,
                fingerprint: self.carried(index, link),
            },
            Op::Read {
                link,
                dst,
                src,
                bytes,
            } => Work::Read {
                channel: channel(link),
                dst: self.place(dst, bytes)?,
                src: self.remote(link, src, bytes)?,
                notify: None,
                hint: program.hint(self.number, index),
            },
            Op::WriteReduce {
                link,
                dst,
                src,
                count,
                notify,
            } => Work::WriteReduce {
                channel: channel(link),
                dst: self.remote(link, dst, count * size)?,
                src: self.place(src, count * size)?,
                dtype,
                redop,
                notify,
                fingerprint: self.carried(index, link),
            },
            Op::ReadReduce {
                link,
                dst,
                a,
                src,
                count,
            } => Work::ReadReduce {
                channel: channel(link),
                dst: self.place(dst, count * size)?,
                a: self.place(a, count * size)?,
                src: self.remote(link, src, count * size)?,
                dtype,
                redop,
                notify: None,
                hint: program.hint(self.number, index),
            },
            Op::Fetch {
                link,
                dst,
                src,
                bytes,
            } => Work::Fetch {
                channel: channel(link),
                dst: self.place(dst, bytes)?,
                lent: self.lent(link)?,
                from: src,
            },
            Op::PacketWrite {
                link,
                line,
                src,
                bytes,
            } => Work::PacketWrite {
                channel: channel(link),
                lines: self.packets(link)?.outgoing(self.packet(line, bytes))?,
                src: self.place(src, bytes)?,
                flag: self.outgoing_flag(link),
            },
            Op::PacketRead {
                link,
                dst,
                line,
                bytes,
            } => Work::PacketRead {
                channel: channel(link),
                dst: self.place(dst, bytes)?,
                packet: self.incoming(link, line, bytes)?,
            },
            Op::PacketReduce {
                link,
                dst,
                a,
                line,
                count,
                swapped,
            } => Work::PacketReduce {
                channel: channel(link),
                dst: self.place(dst, count * size)?,
                a: self.place(a, count * size)?,
                packet: self.incoming(link, line, count * size)?,
                dtype,
                redop,
                swapped,
            },
            Op::Record { link, notify } => Work::Record {
                channel: channel(link),
                notify,
                fingerprint: self.carried(index, link),
            },
            Op::Wait { link, notify } => Work::Wait {
                channel: channel(link),
                notify,
                expected: self.expected(index, link),
            },
            Op::ThreadRecord { thread, notify } => {
                *target = self
                    .team
                    .and_then(|team| team.get(usize::from(thread)))
                    .and_then(Weak::upgrade);
                let queue = target.as_deref().ok_or_else(|| {
                    Error::new(
                        ErrorKind::Closed,
                        format!("thread {thread} of the program is gone"),
                    )
                })?;
                Work::RecordThread { queue, notify }
            }
            Op::ThreadWait { notify } => Work::WaitThread { notify },
        })
    }

    /// What a task that records on a link carries: in one word of the two, so that a run does not
    /// take the place of the one before, which the peer may still be in.
    #[inline]
    pub(crate) fn carried(&self, index: usize, link: u16) -> [u64; 2] {
        let mut words = [0; 2];
        if self.fingerprint != 0 && self.program.is_first_use(self.number, index) {
            words[self.word()] = self.fingerprint_on(link, 0);
        }
        words
    }

    /// What a task that waits on a link has to find.
    #[inline]
    pub(crate) fn expected(&self, index: usize, link: u16) -> Option<Expected> {
        let is_told = self.fingerprint != 0 && self.program.is_first_use(self.number, index);
        is_told.then(|| Expected {
            word: self.word(),
            value: self.fingerprint_on(link, 1),
        })
    }

    const fn word(&self) -> usize {
        (self.turn.sequence % 2) as usize
    }

    /// The fingerprint for one direction of a link; never zero.
    #[inline]
    fn fingerprint_on(&self, link: u16, direction: usize) -> u64 {
        let own = self.program.links[usize::from(link)].fingerprints[direction];
        (self.fingerprint ^ own).max(1)
    }

    /// The flag of packets that go over a link.
    #[inline(always)]
    pub(crate) fn outgoing_flag(&self, link: u16) -> u64 {
        self.flag(link, 0)
    }

    /// A packet of a link that is to come.
    #[inline(always)]
    pub(crate) fn incoming(&self, link: u16, line: u32, bytes: u64) -> Result<Incoming<'a>> {
        let flag = self.flag(link, 1);
        Ok(self.packets(link)?.incoming(self.packet(line, bytes), flag))
    }

    #[inline(always)]
    fn flag(&self, link: u16, direction: usize) -> u64 {
        let fingerprint = if self.fingerprint == 0 {
            0
        } else {
            self.fingerprint_on(link, direction)
        };
        packet_flag(self.turn.sequence, fingerprint)
    }

    #[inline(always)]
    pub(crate) fn place(&self, at: At, bytes: u64) -> Result<Place<'a>> {
        match at.slot {
            SlotKind::Input => self.input.part(at.offset, bytes),
            SlotKind::Output => self.output.part(at.offset, bytes),
            SlotKind::Scratch => match &self.program.scratch {
                Some(scratch) => scratch.place().part(self.based(at.offset, bytes), bytes),
                None if bytes == 0 => self.output.part(0, 0),
                None => Err(Error::new(
                    ErrorKind::Internal,
                    "a task uses scratch memory and its program has none",
                )),
            },
        }
    }

    /// What the peer of a link lends in this run.
    fn lent(&self, link: u16) -> Result<Lent<'a>> {
        let line = self.program.links[usize::from(link)].lent.as_ref();
        let line = line.and_then(|line| line.remote().mapped());
        line.map(|line| Lent::new(line, self.turn.sequence))
            .ok_or_else(|| Error::new(ErrorKind::Internal, "a task fetches what nobody lends"))
    }

    #[inline(always)]
    pub(crate) fn packets(&self, link: u16) -> Result<&'a PacketLines> {
        self.program.links[usize::from(link)]
            .packets
            .as_ref()
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Internal,
                    "a task uses packets and its program has no lines for them",
                )
            })
    }

    #[inline(always)]
    pub(crate) fn packet(&self, line: u32, bytes: u64) -> Packet {
        Packet {
            sequence: self.turn.sequence,
            line: u64::from(line),
            lines: packet_lines(bytes),
        }
    }

    fn remote(&self, link: u16, offset: u64, bytes: u64) -> Result<Remote<'a>> {
        self.program.links[usize::from(link)]
            .scratch
            .as_ref()
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Internal,
                    "a task uses the peer's scratch memory and its program has none",
                )
            })?
            .remote()
            .part(self.based(offset, bytes), bytes)
    }

    /// Offset in scratch memory. Of no bytes, any place will do.
    const fn based(&self, offset: u64, bytes: u64) -> u64 {
        if bytes == 0 {
            0
        } else {
            offset.saturating_add(self.turn.scratch_base)
        }
    }
}
