//! The steps of a plan.

use std::fmt;

use hcomm_types::Rank;
use serde::{Deserialize, Serialize};

/// Memory of one rank, by its part in the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Buffer {
    /// What the caller gives. Never written, except where it is also output.
    Input,
    /// What the caller gets.
    Output,
    /// Memory of the communicator that its peers can reach. Its content at the beginning is
    /// whatever an earlier operation left there.
    Scratch,
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::Scratch => "scratch",
        })
    }
}

/// A place in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loc {
    /// The buffer.
    pub buffer: Buffer,
    /// Offset from its start, in bytes.
    pub offset: u64,
}

impl Loc {
    /// A place in the input.
    #[must_use]
    pub const fn input(offset: u64) -> Self {
        Self {
            buffer: Buffer::Input,
            offset,
        }
    }

    /// A place in the output.
    #[must_use]
    pub const fn output(offset: u64) -> Self {
        Self {
            buffer: Buffer::Output,
            offset,
        }
    }

    /// A place in scratch memory.
    #[must_use]
    pub const fn scratch(offset: u64) -> Self {
        Self {
            buffer: Buffer::Scratch,
            offset,
        }
    }
}

impl fmt::Display for Loc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.buffer, self.offset)
    }
}

/// One step of a thread.
///
/// `bytes` are bytes, `count` are elements of the plan's type, and neither is zero, but for packets
/// without a payload, which only tell that their writer has come so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Task {
    /// Copies within the rank.
    Copy {
        /// To where.
        dst: Loc,
        /// From where.
        src: Loc,
        /// How much.
        bytes: u64,
    },
    /// Combines two places within the rank, element by element: `dst = a op b`.
    Reduce {
        /// Where the result goes. May be exactly `a` or `b`.
        dst: Loc,
        /// First operand.
        a: Loc,
        /// Second operand.
        b: Loc,
        /// How many elements.
        count: u64,
    },
    /// Makes averages of sums, within the rank: divides elements that have the inputs of all ranks in
    /// them by the number of ranks.
    Divide {
        /// Sums, and where the averages go.
        dst: Loc,
        /// How many elements.
        count: u64,
    },
    /// Writes into the peer's memory, then records a notify there if one is given.
    Write {
        /// Whose memory.
        peer: Rank,
        /// To where, at the peer.
        dst: Loc,
        /// From where.
        src: Loc,
        /// How much.
        bytes: u64,
        /// What to record afterwards.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        notify: Option<u32>,
    },
    /// Reads from the peer's memory.
    Read {
        /// Whose memory.
        peer: Rank,
        /// To where.
        dst: Loc,
        /// From where, at the peer.
        src: Loc,
        /// How much.
        bytes: u64,
    },
    /// Combines into the peer's memory: `dst = dst op src`, then records a notify there if one is
    /// given.
    WriteReduce {
        /// Whose memory.
        peer: Rank,
        /// First operand and result, at the peer.
        dst: Loc,
        /// Second operand.
        src: Loc,
        /// How many elements.
        count: u64,
        /// What to record afterwards.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        notify: Option<u32>,
    },
    /// Combines with the peer's memory: `dst = a op src`.
    ReadReduce {
        /// Whose memory.
        peer: Rank,
        /// Where the result goes. May be exactly `a`.
        dst: Loc,
        /// First operand.
        a: Loc,
        /// Second operand, at the peer.
        src: Loc,
        /// How many elements.
        count: u64,
    },
    /// Sends a packet to the peer.
    PacketWrite {
        /// To whom.
        peer: Rank,
        /// First of the lines for it, of those from this rank to the peer.
        line: u32,
        /// From where.
        src: Loc,
        /// How much. Zero for a packet without a payload.
        bytes: u64,
    },
    /// Takes a packet of the peer, as soon as it is there.
    PacketRead {
        /// Whose packet.
        peer: Rank,
        /// To where.
        dst: Loc,
        /// First of its lines, of those from the peer to this rank.
        line: u32,
        /// How much; as was sent.
        bytes: u64,
    },
    /// Combines with a packet of the peer, as soon as it is there: `dst = a op packet`.
    PacketReduce {
        /// Whose packet.
        peer: Rank,
        /// Where the result goes. May be exactly `a`.
        dst: Loc,
        /// First operand.
        a: Loc,
        /// First of its lines, of those from the peer to this rank.
        line: u32,
        /// How many elements; as were sent.
        count: u64,
        /// The packet is the first operand: `dst = packet op a`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        swapped: bool,
    },
    /// Adds one to a notify at the peer.
    Record {
        /// Who waits for it.
        peer: Rank,
        /// Which one, of those from this rank to the peer.
        notify: u32,
    },
    /// Takes one from a notify, as soon as there is one.
    Wait {
        /// Who records it.
        peer: Rank,
        /// Which one, of those from the peer to this rank.
        notify: u32,
    },
    /// Adds one to a notify of another thread of this rank.
    ThreadRecord {
        /// Which thread.
        thread: u32,
        /// Which of its notifies.
        notify: u32,
    },
    /// Takes one from a notify of this thread, as soon as there is one.
    ThreadWait {
        /// Which one.
        notify: u32,
    },
}

impl Task {
    /// The other rank that takes part, if any.
    #[must_use]
    pub const fn peer(&self) -> Option<Rank> {
        let mut task = *self;
        match task.peer_mut() {
            Some(peer) => Some(*peer),
            None => None,
        }
    }

    /// The same with another rank at the other end, if it has one.
    pub(crate) fn with_peer(mut self, of: impl Fn(Rank) -> Rank) -> Self {
        if let Some(peer) = self.peer_mut() {
            *peer = of(*peer);
        }
        self
    }

    const fn peer_mut(&mut self) -> Option<&mut Rank> {
        match self {
            Self::Write { peer, .. }
            | Self::Read { peer, .. }
            | Self::WriteReduce { peer, .. }
            | Self::ReadReduce { peer, .. }
            | Self::PacketWrite { peer, .. }
            | Self::PacketRead { peer, .. }
            | Self::PacketReduce { peer, .. }
            | Self::Record { peer, .. }
            | Self::Wait { peer, .. } => Some(peer),
            Self::Copy { .. }
            | Self::Reduce { .. }
            | Self::Divide { .. }
            | Self::ThreadRecord { .. }
            | Self::ThreadWait { .. } => None,
        }
    }

    /// Whether it sends a packet or waits for one.
    #[must_use]
    pub const fn is_packet(&self) -> bool {
        matches!(
            self,
            Self::PacketWrite { .. } | Self::PacketRead { .. } | Self::PacketReduce { .. }
        )
    }

    /// The notify that the task records at its peer, if any.
    #[must_use]
    pub const fn records(&self) -> Option<(Rank, u32)> {
        match self {
            Self::Write {
                peer,
                notify: Some(notify),
                ..
            }
            | Self::WriteReduce {
                peer,
                notify: Some(notify),
                ..
            }
            | Self::Record { peer, notify } => Some((*peer, *notify)),
            _ => None,
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let notified = |f: &mut fmt::Formatter<'_>, notify: &Option<u32>| match notify {
            Some(notify) => write!(f, ", then record notify {notify} there"),
            None => Ok(()),
        };
        match self {
            Self::Copy { dst, src, bytes } => write!(f, "copy {bytes} bytes from {src} to {dst}"),
            Self::Reduce { dst, a, b, count } => {
                write!(f, "reduce {count} elements of {a} and {b} into {dst}")
            }
            Self::Divide { dst, count } => {
                write!(f, "divide {count} elements of {dst} by the number of ranks")
            }
            Self::Write {
                peer,
                dst,
                src,
                bytes,
                notify,
            } => {
                write!(f, "write {bytes} bytes from {src} to {dst} of rank {peer}")?;
                notified(f, notify)
            }
            Self::Read {
                peer,
                dst,
                src,
                bytes,
            } => {
                write!(f, "read {bytes} bytes from {src} of rank {peer} to {dst}")
            }
            Self::WriteReduce {
                peer,
                dst,
                src,
                count,
                notify,
            } => {
                write!(
                    f,
                    "reduce {count} elements of {src} into {dst} of rank {peer}"
                )?;
                notified(f, notify)
            }
            Self::ReadReduce {
                peer,
                dst,
                a,
                src,
                count,
            } => {
                write!(
                    f,
                    "reduce {count} elements of {a} and {src} of rank {peer} into {dst}"
                )
            }
            Self::PacketWrite {
                peer,
                line,
                bytes: 0,
                ..
            } => write!(f, "send an empty packet to line {line} of rank {peer}"),
            Self::PacketWrite {
                peer,
                line,
                src,
                bytes,
            } => write!(
                f,
                "send a packet of {bytes} bytes from {src} to line {line} of rank {peer}"
            ),
            Self::PacketRead {
                peer,
                line,
                bytes: 0,
                ..
            } => write!(f, "wait for the empty packet of rank {peer} in line {line}"),
            Self::PacketRead {
                peer,
                dst,
                line,
                bytes,
            } => write!(
                f,
                "take the packet of {bytes} bytes of rank {peer} in line {line} to {dst}"
            ),
            Self::PacketReduce {
                peer,
                dst,
                a,
                line,
                count,
                swapped,
            } => {
                write!(f, "reduce {count} elements of ")?;
                let packet = format_args!("the packet of rank {peer} in line {line}");
                if *swapped {
                    write!(f, "{packet} and {a} into {dst}")
                } else {
                    write!(f, "{a} and {packet} into {dst}")
                }
            }
            Self::Record { peer, notify } => write!(f, "record notify {notify} at rank {peer}"),
            Self::Wait { peer, notify } => write!(f, "wait for notify {notify} from rank {peer}"),
            Self::ThreadRecord { thread, notify } => {
                write!(f, "record notify {notify} of thread {thread}")
            }
            Self::ThreadWait { notify } => write!(f, "wait for thread notify {notify}"),
        }
    }
}
