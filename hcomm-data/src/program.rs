//! Programs: tasks that are checked and bound once and then replayed.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use hcomm_transport::{Capabilities, Device};
use hcomm_types::{DataType, Error, ErrorKind, ReduceOp, Result};

use crate::channel::Channel;
use crate::copy::{self, Hint};
use crate::lent::LENT_BYTES;
use crate::memory::Place;
use crate::packet::{PacketLines, packet_lines};
use crate::slice::{RemoteSlice, Slice};

/// What a program is made of.
#[derive(Clone, Debug)]
pub struct ProgramParts {
    /// Tasks of each thread, in order.
    pub threads: Vec<Vec<Op>>,
    /// Peers.
    pub links: Vec<ProgramLink>,
    /// Scratch memory of this side.
    pub scratch: Option<Slice>,
    /// Type of the elements that are reduced.
    pub dtype: DataType,
    /// How they are reduced.
    pub redop: ReduceOp,
    /// Bytes of input that it reads from.
    pub input_bytes: u64,
    /// Bytes of output that it writes to.
    pub output_bytes: u64,
    /// Bytes of scratch memory, counted from the base of a run.
    pub scratch_bytes: u64,
    /// The line of [`LENT_BYTES`] in which a run says where its input and output are, for peers that
    /// fetch from them; `None` where none does. No peer fetches before it was told that the run has
    /// begun, and the run does not end before all have fetched what they want.
    pub lends: Option<Slice>,
    /// Bytes of output of all runs of this host that go on at the same time, about: what is more than
    /// its caches hold goes past them.
    pub host_output_bytes: u64,
}

/// A peer of a program.
#[derive(Clone, Debug)]
pub struct ProgramLink {
    /// The channel to it.
    pub channel: Channel,
    /// The peer's scratch memory. Offsets in it count from its begin plus the scratch base of a
    /// run, which both sides choose alike.
    pub scratch: Option<RemoteSlice>,
    /// Where packets of this link travel, if it carries any.
    pub packets: Option<PacketLines>,
    /// The peer's line of [`ProgramParts::lends`], if this side fetches from it.
    pub lent: Option<RemoteSlice>,
    /// What is mixed into the fingerprint of a run for what goes over this link, and for what
    /// comes: where the two sides know more of each other than all know. Zeros add nothing.
    pub fingerprints: [u64; 2],
}

/// What sets one run of a program apart from others. Both sides of each link choose it alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Turn {
    /// Where scratch memory begins, in bytes, on all sides.
    pub scratch_base: u64,
    /// Number of the run, if the program has packets or a fingerprint: from one on, and one more for
    /// each run over the same packet lines and notifies.
    pub sequence: u64,
}

impl From<u64> for Turn {
    /// A run without packets and without a fingerprint.
    fn from(scratch_base: u64) -> Self {
        Self {
            scratch_base,
            sequence: 0,
        }
    }
}

/// Buffers of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotKind {
    /// Input, read only.
    Input,
    /// Output.
    Output,
    /// Scratch.
    Scratch,
}

/// A place in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct At {
    /// The buffer.
    pub slot: SlotKind,
    /// Offset in bytes.
    pub offset: u64,
}

/// One task of a program. Offsets of remote memory are in the peer's scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// `dst = src`.
    Copy {
        /// Destination.
        dst: At,
        /// Source.
        src: At,
        /// Bytes.
        bytes: u64,
    },
    /// `dst = a op b`.
    Reduce {
        /// Destination.
        dst: At,
        /// First operand.
        a: At,
        /// Second operand.
        b: At,
        /// Elements.
        count: u64,
    },
    /// `dst = dst / by`: integers towards zero, floats rounded once to nearest.
    Divide {
        /// Operand and result.
        dst: At,
        /// Elements.
        count: u64,
        /// By what.
        by: NonZeroU32,
    },
    /// Bytes to the peer.
    Write {
        /// The link.
        link: u16,
        /// Offset at the peer.
        dst: u64,
        /// Source.
        src: At,
        /// Bytes.
        bytes: u64,
        /// Notify of the peer to record afterwards.
        notify: Option<u32>,
    },
    /// Bytes from the peer.
    Read {
        /// The link.
        link: u16,
        /// Destination.
        dst: At,
        /// Offset at the peer.
        src: u64,
        /// Bytes.
        bytes: u64,
    },
    /// `peer = peer op src`.
    WriteReduce {
        /// The link.
        link: u16,
        /// Offset at the peer.
        dst: u64,
        /// Operand here.
        src: At,
        /// Elements.
        count: u64,
        /// Notify of the peer to record afterwards.
        notify: Option<u32>,
    },
    /// `dst = a op peer`.
    ReadReduce {
        /// The link.
        link: u16,
        /// Destination.
        dst: At,
        /// Operand here.
        a: At,
        /// Offset at the peer.
        src: u64,
        /// Elements.
        count: u64,
    },
    /// Bytes of input or output of the peer, in one copy by the system.
    Fetch {
        /// The link.
        link: u16,
        /// Destination.
        dst: At,
        /// Where at the peer.
        src: At,
        /// Bytes.
        bytes: u64,
    },
    /// Sends a packet: payload and flag in one line, or in several. Its arrival says that what this
    /// side has done before is done; where the peer's memory was written before, only a record
    /// says that.
    PacketWrite {
        /// The link.
        link: u16,
        /// First of the peer's lines for packets of this side.
        line: u32,
        /// Payload.
        src: At,
        /// Its bytes; may be none.
        bytes: u64,
    },
    /// Waits for a packet of the peer and takes its payload: `dst = packet`.
    PacketRead {
        /// The link.
        link: u16,
        /// Destination.
        dst: At,
        /// First of this side's lines for packets of the peer.
        line: u32,
        /// Bytes, as many as were sent.
        bytes: u64,
    },
    /// Waits for a packet of the peer and combines it: `dst = a op packet`.
    PacketReduce {
        /// The link.
        link: u16,
        /// Destination.
        dst: At,
        /// Operand here.
        a: At,
        /// First of this side's lines for packets of the peer.
        line: u32,
        /// Elements, as many as were sent.
        count: u64,
        /// The packet is the first operand: `dst = packet op a`.
        swapped: bool,
    },
    /// Records a notify at the peer.
    Record {
        /// The link.
        link: u16,
        /// The notify.
        notify: u32,
    },
    /// Waits for a record of the peer.
    Wait {
        /// The link.
        link: u16,
        /// The notify of this side.
        notify: u32,
    },
    /// Records a notify of another thread of the program.
    ThreadRecord {
        /// The thread.
        thread: u16,
        /// Its notify.
        notify: u32,
    },
    /// Waits for a record on a notify of its own thread.
    ThreadWait {
        /// The notify.
        notify: u32,
    },
}

/// A checked program: every place lies in its buffer, every link, notify and thread is there, and
/// every link can do what is asked of it. A run has to compare buffer sizes only.
pub struct Program {
    parts: ProgramParts,
    /// Bytes of each link's remote memory that the program touches, from the scratch base on.
    remote_bytes: Vec<u64>,
    /// For each thread, which of its tasks are the first that record a notify, or wait for it:
    /// they carry the fingerprint, and look at it.
    first_uses: Vec<Vec<bool>>,
    /// For each thread, how the results of its tasks are best stored; empty if all are `Local`.
    hints: Vec<Vec<Hint>>,
    /// Notifies that each thread needs.
    thread_notifies: Vec<u32>,
    /// Whether some thread records at another.
    has_thread_records: bool,
    has_packets: bool,
    /// Whether all memory of peers that it touches is mapped, so that no transport gets to see any
    /// of ours.
    is_by_stores: bool,
    /// Tells programs apart.
    number: u64,
    /// Devices that are given descriptors with a local side in input or output, and that must
    /// know the memory.
    demanding: Vec<Device>,
}

impl Program {
    /// Checks the parts.
    ///
    /// # Errors
    /// `OutOfBounds`, `InvalidArgument` or `Unsupported`, with thread and task.
    pub fn new(parts: ProgramParts) -> Result<Self> {
        let scratch = parts.scratch.as_ref().map_or(0, Slice::bytes) as u64;
        if parts.scratch_bytes > scratch {
            return Err(Error::new(
                ErrorKind::OutOfBounds,
                format!(
                    "a program needs {} bytes of scratch memory and has {scratch}",
                    parts.scratch_bytes
                ),
            ));
        }
        let is_line = |line: &Slice| {
            line.bytes() >= LENT_BYTES && line.place().address().addr().get().is_multiple_of(8)
        };
        if let Some(line) = &parts.lends
            && (!is_line(line) || parts.threads.len() > 1)
        {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "a program that lends has one thread and an aligned line of {LENT_BYTES} bytes"
                ),
            ));
        }
        for (index, link) in parts.links.iter().enumerate() {
            let strange = link
                .scratch
                .as_ref()
                .is_some_and(|scratch| !link.channel.imported(scratch.import()));
            if strange {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("scratch memory of link {index} was imported through another channel"),
                ));
            }
            if let Some(packets) = &link.packets {
                packets.check(&link.channel).map_err(|error| {
                    let what = format!("link {index}: {}", error.detail());
                    Error::new(error.kind(), what)
                })?;
            }
        }
        let mut check = Check {
            parts: &parts,
            remote_bytes: vec![0; parts.links.len()],
            thread_notifies: vec![0; parts.threads.len()],
            has_thread_records: false,
            has_packets: false,
            demanding: Vec::new(),
        };
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let is_by_stores = parts.links.iter().all(|link| {
            let scratch = link.scratch.as_ref();
            scratch.is_none_or(|scratch| scratch.import().address().is_some())
        });
        let mut first_uses = Vec::with_capacity(parts.threads.len());
        for (thread, ops) in parts.threads.iter().enumerate() {
            let mut seen = HashSet::new();
            let mut first = Vec::with_capacity(ops.len());
            for (index, op) in ops.iter().enumerate() {
                check.op(thread, op).map_err(|error| {
                    Error::new(
                        error.kind(),
                        format!("thread {thread}, task {index} ({op:?}): {}", error.detail()),
                    )
                })?;
                first.push(op.uses_notify().is_some_and(|used| seen.insert(used)));
            }
            first_uses.push(first);
        }
        let Check {
            remote_bytes,
            thread_notifies,
            has_thread_records,
            has_packets,
            demanding,
            ..
        } = check;
        Ok(Self {
            remote_bytes,
            first_uses,
            hints: hints(&parts),
            thread_notifies,
            has_thread_records,
            has_packets,
            is_by_stores,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            demanding,
            parts,
        })
    }

    /// Notifies that thread `part` needs.
    #[must_use]
    pub fn thread_notifies(&self, part: usize) -> u32 {
        self.thread_notifies.get(part).copied().unwrap_or(0)
    }

    /// Whether a task is the first of its thread to record a notify, or to wait for it.
    #[inline]
    pub(crate) fn is_first_use(&self, part: usize, op: usize) -> bool {
        self.first_uses[part][op]
    }

    /// How the result of a task is best stored.
    #[inline]
    pub(crate) fn hint(&self, part: usize, op: usize) -> Hint {
        let of_part = self.hints.get(part).and_then(|hints| hints.get(op));
        of_part.copied().unwrap_or(Hint::Local)
    }

    /// Whether it is one thread that reaches its peers' memory by loads and stores alone: then it
    /// may run on a caller's memory without a loan.
    pub(crate) fn runs_directly(&self) -> bool {
        self.is_by_stores && self.threads.len() == 1 && !self.has_thread_records
    }

    /// Its number; never that of another one.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) const fn has_thread_records(&self) -> bool {
        self.has_thread_records
    }

    /// Compares sizes with what a run brings.
    pub(crate) fn check_run(
        &self,
        part: usize,
        input: usize,
        output: usize,
        turn: Turn,
    ) -> Result<()> {
        let Turn {
            scratch_base,
            sequence,
        } = turn;
        if (self.has_packets || self.lends.is_some()) && sequence == 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a program with packets or loans needs the number of the run, from one on",
            ));
        }
        if part >= self.threads.len() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("no thread {part}: the program has {}", self.threads.len()),
            ));
        }
        let scratch = self.scratch.as_ref().map_or(0, Slice::bytes) as u64;
        for (what, need, have) in [
            ("input", self.input_bytes, input as u64),
            ("output", self.output_bytes, output as u64),
            (
                "scratch memory",
                self.scratch_bytes.saturating_add(scratch_base),
                // A program without scratch does not care for its base.
                if self.scratch_bytes == 0 {
                    u64::MAX
                } else {
                    scratch
                },
            ),
        ] {
            if need > have {
                return Err(Error::new(
                    ErrorKind::OutOfBounds,
                    format!("a program needs {need} bytes of {what} and has {have}"),
                ));
            }
        }
        for (link, &need) in self.links.iter().zip(&self.remote_bytes) {
            let have = link.scratch.as_ref().map_or(0, RemoteSlice::bytes);
            if need > 0 && need.saturating_add(scratch_base) > have {
                return Err(Error::new(
                    ErrorKind::OutOfBounds,
                    format!(
                        "a program needs {} bytes of the peer's scratch memory, which has {have}",
                        need.saturating_add(scratch_base)
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Refuses buffers that a device of the program would have to know and does not.
    pub(crate) fn check_known(&self, buffer: Place<'_>) -> Result<()> {
        self.demanding
            .iter()
            .try_for_each(|device| buffer.postable(device))
    }

    /// Refuses a run with lent buffers, which no device knows, if a device would have to.
    pub(crate) fn check_lent(&self) -> Result<()> {
        match self.demanding.first() {
            None => Ok(()),
            Some(device) => Err(Error::new(
                ErrorKind::Unsupported,
                format!("{device:?} moves only memory that is registered with it"),
            )
            .hint("copy through scratch memory in the program, or run it with registered slices")),
        }
    }
}

impl Deref for Program {
    type Target = ProgramParts;

    fn deref(&self) -> &ProgramParts {
        &self.parts
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("threads", &self.threads.len())
            .field("tasks", &self.threads.iter().map(Vec::len).sum::<usize>())
            .field("links", &self.links.len())
            .finish_non_exhaustive()
    }
}

impl Op {
    /// The link that it uses, if it uses one.
    pub(crate) const fn link(&self) -> Option<u16> {
        match *self {
            Self::Write { link, .. }
            | Self::Read { link, .. }
            | Self::WriteReduce { link, .. }
            | Self::ReadReduce { link, .. }
            | Self::Fetch { link, .. }
            | Self::Record { link, .. }
            | Self::PacketWrite { link, .. }
            | Self::PacketRead { link, .. }
            | Self::PacketReduce { link, .. }
            | Self::Wait { link, .. } => Some(link),
            Self::Copy { .. }
            | Self::Reduce { .. }
            | Self::Divide { .. }
            | Self::ThreadRecord { .. }
            | Self::ThreadWait { .. } => None,
        }
    }

    /// What it reads of this side's buffers, with their bytes.
    fn operands(&self, size: u64) -> [Option<(At, u64)>; 2] {
        match *self {
            Self::Copy { src, bytes, .. }
            | Self::Write { src, bytes, .. }
            | Self::PacketWrite { src, bytes, .. } => [Some((src, bytes)), None],
            Self::Reduce { a, b, count, .. } => [Some((a, count * size)), Some((b, count * size))],
            Self::Divide { dst, count, .. } => [Some((dst, count * size)), None],
            Self::WriteReduce { src, count, .. } => [Some((src, count * size)), None],
            Self::ReadReduce { a, count, .. } | Self::PacketReduce { a, count, .. } => {
                [Some((a, count * size)), None]
            }
            _ => [None; 2],
        }
    }

    /// Where it leaves a result that this side computes or copies, with its bytes.
    const fn result(&self, size: u64) -> Option<(At, u64)> {
        match *self {
            Self::Copy { dst, bytes, .. } | Self::Read { dst, bytes, .. } => Some((dst, bytes)),
            Self::Reduce { dst, count, .. } | Self::ReadReduce { dst, count, .. } => {
                Some((dst, count * size))
            }
            _ => None,
        }
    }

    /// The notify that it records or waits for, if it does: whether it records, the link, which.
    const fn uses_notify(&self) -> Option<(bool, u16, u32)> {
        match *self {
            Self::Record { link, notify }
            | Self::Write {
                link,
                notify: Some(notify),
                ..
            }
            | Self::WriteReduce {
                link,
                notify: Some(notify),
                ..
            } => Some((true, link, notify)),
            Self::Wait { link, notify } => Some((false, link, notify)),
            _ => None,
        }
    }
}

/// How the results of tasks are best stored: what a task leaves in an output that the caches do not
/// hold goes past them, unless a task reads it again.
fn hints(parts: &ProgramParts) -> Vec<Vec<Hint>> {
    if parts.host_output_bytes < copy::cached_bytes() as u64 {
        return Vec::new();
    }
    let size = parts.dtype.size() as u64;
    let ops = || parts.threads.iter().flatten();
    let mut read: Vec<(u64, u64)> = ops()
        .flat_map(|op| op.operands(size))
        .flatten()
        .filter(|(at, bytes)| at.slot == SlotKind::Output && *bytes > 0)
        .map(|(at, bytes)| (at.offset, at.offset.saturating_add(bytes)))
        .collect();
    read.sort_unstable();
    // Ends that grow, so that the first one behind a place tells.
    let mut most = 0;
    for range in &mut read {
        most = range.1.max(most);
        range.1 = most;
    }
    let hint = |op: &Op| {
        let result = op
            .result(size)
            .filter(|(at, _)| at.slot == SlotKind::Output);
        result.map_or(Hint::Local, |(at, bytes)| {
            let behind = read.partition_point(|range| range.1 <= at.offset);
            let is_read = |range: &(u64, u64)| range.0 < at.offset.saturating_add(bytes);
            if read.get(behind).is_some_and(is_read) {
                Hint::Local
            } else {
                Hint::Memory
            }
        })
    };
    let threads = parts.threads.iter();
    threads.map(|ops| ops.iter().map(hint).collect()).collect()
}

/// The checks, and what they find out.
struct Check<'a> {
    parts: &'a ProgramParts,
    remote_bytes: Vec<u64>,
    thread_notifies: Vec<u32>,
    has_thread_records: bool,
    has_packets: bool,
    demanding: Vec<Device>,
}

impl Check<'_> {
    fn op(&mut self, thread: usize, op: &Op) -> Result<()> {
        match *op {
            Op::Copy { dst, src, bytes } => {
                self.written(dst, bytes)?;
                self.place(src, bytes)
            }
            Op::Reduce { dst, a, b, count } => {
                let bytes = self.bytes(count)?;
                self.written(dst, bytes)?;
                self.place(a, bytes)?;
                self.place(b, bytes)?;
                whole_overlap(dst, a, bytes)?;
                whole_overlap(dst, b, bytes)
            }
            Op::Divide { dst, count, by: _ } => self.written(dst, self.bytes(count)?),
            Op::Write {
                link,
                dst,
                src,
                bytes,
                notify,
            } => {
                self.place(src, bytes)?;
                self.remote(link, dst, bytes, src, Capabilities::WRITE)?;
                self.record(link, notify)
            }
            Op::Read {
                link,
                dst,
                src,
                bytes,
            } => {
                self.written(dst, bytes)?;
                self.remote(link, src, bytes, dst, Capabilities::READ)
            }
            Op::WriteReduce {
                link,
                dst,
                src,
                count,
                notify,
            } => {
                let bytes = self.bytes(count)?;
                self.place(src, bytes)?;
                self.remote(link, dst, bytes, src, Capabilities::WRITE_REDUCE)?;
                self.record(link, notify)
            }
            Op::ReadReduce {
                link,
                dst,
                a,
                src,
                count,
            } => {
                let bytes = self.bytes(count)?;
                self.written(dst, bytes)?;
                self.place(a, bytes)?;
                whole_overlap(dst, a, bytes)?;
                self.remote(link, src, bytes, dst, Capabilities::READ_REDUCE)
            }
            Op::Fetch {
                link,
                dst,
                src,
                bytes,
            } => {
                self.written(dst, bytes)?;
                self.lent(link, src)
            }
            Op::PacketWrite {
                link,
                line,
                src,
                bytes,
            } => {
                self.place(src, bytes)?;
                self.packet(link, line, bytes)
            }
            Op::PacketRead {
                link,
                dst,
                line,
                bytes,
            } => {
                self.written(dst, bytes)?;
                self.packet(link, line, bytes)
            }
            Op::PacketReduce {
                link,
                dst,
                a,
                line,
                count,
                swapped: _,
            } => {
                let bytes = self.bytes(count)?;
                self.written(dst, bytes)?;
                self.place(a, bytes)?;
                whole_overlap(dst, a, bytes)?;
                self.packet(link, line, bytes)
            }
            Op::Record { link, notify } => self.record(link, Some(notify)),
            Op::Wait { link, notify } => self.link(link)?.channel.check_wait(notify),
            Op::ThreadRecord {
                thread: target,
                notify,
            } => {
                self.has_thread_records = true;
                self.thread_notify(usize::from(target), notify)
            }
            Op::ThreadWait { notify } => self.thread_notify(thread, notify),
        }
    }

    fn bytes(&self, count: u64) -> Result<u64> {
        count
            .checked_mul(self.parts.dtype.size() as u64)
            .ok_or_else(|| Error::new(ErrorKind::OutOfBounds, format!("{count} elements")))
    }

    fn place(&self, at: At, bytes: u64) -> Result<()> {
        let whole = match at.slot {
            SlotKind::Input => self.parts.input_bytes,
            SlotKind::Output => self.parts.output_bytes,
            SlotKind::Scratch => self.parts.scratch_bytes,
        };
        if at.offset.checked_add(bytes).is_some_and(|end| end <= whole) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::OutOfBounds,
            format!(
                "{bytes} bytes at offset {} of {:?} of {whole} bytes",
                at.offset, at.slot
            ),
        ))
    }

    fn written(&self, at: At, bytes: u64) -> Result<()> {
        if at.slot == SlotKind::Input {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the input is read only",
            ));
        }
        self.place(at, bytes)
    }

    fn link(&self, link: u16) -> Result<&ProgramLink> {
        self.parts.links.get(usize::from(link)).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("no link {link}: the program has {}", self.parts.links.len()),
            )
        })
    }

    fn remote(
        &mut self,
        link: u16,
        offset: u64,
        bytes: u64,
        local: At,
        ability: Capabilities,
    ) -> Result<()> {
        let ProgramLink {
            channel, scratch, ..
        } = self.link(link)?;
        let end = offset.checked_add(bytes);
        let (Some(end), Some(scratch)) = (
            end.filter(|&end| scratch.as_ref().is_some_and(|s| end <= s.bytes())),
            scratch,
        ) else {
            return Err(Error::new(
                ErrorKind::OutOfBounds,
                format!(
                    "{bytes} bytes at offset {offset} of the peer's scratch memory of {} bytes",
                    scratch.as_ref().map_or(0, RemoteSlice::bytes)
                ),
            ));
        };
        if scratch.import().address().is_none() {
            let device = channel.transport().device();
            if !device.info().capabilities.contains(ability) {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("{device:?} cannot do that with memory that is not mapped"),
                ));
            }
            match (local.slot, &self.parts.scratch) {
                (SlotKind::Scratch, Some(slice)) => slice.place().postable(device)?,
                _ if !device.info().capabilities.contains(Capabilities::LOCAL_ANY) => {
                    let device = device.clone();
                    self.demanding.push(device);
                }
                _ => {}
            }
        }
        let most = &mut self.remote_bytes[usize::from(link)];
        *most = end.max(*most);
        Ok(())
    }

    /// How much the peer lends, and whether its memory can be read, is known when it does.
    fn lent(&self, link: u16, src: At) -> Result<()> {
        let ProgramLink { channel, lent, .. } = self.link(link)?;
        let is_line = |line: &RemoteSlice| {
            line.bytes() >= LENT_BYTES as u64
                && line.remote().mapped().is_some()
                && channel.imported(line.import())
        };
        let why = if src.slot == SlotKind::Scratch {
            "scratch memory is not lent: it is read"
        } else if !lent.as_ref().is_some_and(is_line) {
            "the link has no line in which the peer says what it lends"
        } else if self.parts.threads.len() > 1 {
            "a program that fetches has one thread"
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Unsupported, why))
    }

    fn packet(&mut self, link: u16, line: u32, bytes: u64) -> Result<()> {
        let Some(packets) = &self.link(link)?.packets else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("link {link} carries no packets"),
            ));
        };
        let (lines, count) = (packet_lines(bytes), packets.count());
        if u64::from(line) + lines > count {
            return Err(Error::new(
                ErrorKind::OutOfBounds,
                format!("{lines} lines from line {line} on; link {link} has {count} for packets"),
            ));
        }
        self.has_packets = true;
        Ok(())
    }

    fn record(&self, link: u16, notify: Option<u32>) -> Result<()> {
        let channel = &self.link(link)?.channel;
        notify.map_or(Ok(()), |notify| channel.check_record(notify))
    }

    fn thread_notify(&mut self, thread: usize, notify: u32) -> Result<()> {
        let threads = self.thread_notifies.len();
        let need = self.thread_notifies.get_mut(thread).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("no thread {thread}: the program has {threads}"),
            )
        })?;
        *need = (*need).max(notify.saturating_add(1));
        Ok(())
    }
}

/// A result may replace an operand, not smear over it.
fn whole_overlap(dst: At, operand: At, bytes: u64) -> Result<()> {
    let apart = dst.slot != operand.slot
        || dst.offset == operand.offset
        || dst.offset.abs_diff(operand.offset) >= bytes;
    if apart {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        "the result overlaps an operand in part",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(host_output_bytes: u64, ops: Vec<Op>) -> ProgramParts {
        ProgramParts {
            threads: vec![ops],
            links: Vec::new(),
            scratch: None,
            dtype: DataType::F32,
            redop: ReduceOp::Sum,
            input_bytes: 4096,
            output_bytes: 4096,
            scratch_bytes: 4096,
            lends: None,
            host_output_bytes,
        }
    }

    #[test]
    fn what_is_read_again_stays_in_the_caches() {
        let at = |slot, offset| At { slot, offset };
        let copy = |to, from| Op::Copy {
            dst: to,
            src: from,
            bytes: 100,
        };
        let (input, output, scratch) = (SlotKind::Input, SlotKind::Output, SlotKind::Scratch);
        let ops = vec![
            copy(at(output, 0), at(input, 0)),
            copy(at(output, 1000), at(input, 0)),
            copy(at(scratch, 0), at(input, 0)),
            // Of the second one its last byte.
            copy(at(scratch, 200), at(output, 1099)),
            Op::Reduce {
                dst: at(output, 2000),
                a: at(output, 2000),
                b: at(input, 0),
                count: 10,
            },
        ];
        let none = hints(&parts(copy::cached_bytes() as u64 - 1, ops.clone()));
        assert!(none.is_empty());
        let found = hints(&parts(copy::cached_bytes() as u64, ops));
        let (past, stays) = (Hint::Memory, Hint::Local);
        assert_eq!(found, [[past, stays, stays, stays, stays]]);
    }
}
