//! From a rank's plan to a program: ranks become channels, notify numbers become those of the
//! channel, locations stay relative.

use std::collections::HashMap;
use std::num::NonZeroU32;

use hcomm_ctrl::{Membership, Notifies};
use hcomm_data::{
    At, Op, PacketLines, Program, ProgramLink, ProgramParts, RemoteSlice, Slice, SlotKind,
};
use hcomm_types::{Error, ErrorKind, Rank, Result};

use crate::fingerprint;
use crate::plan::{Buffer, Loc, Operation, RankPlan, Shape, Task};

/// Binds what `membership`'s rank has to do. Channels to all peers of the plan must be there.
///
/// # Errors
/// `Unsupported` if the plan writes to input or output of another rank, or reads there and `lends` is
/// not set; `InvalidArgument` if it needs more than the channels have.
pub(crate) fn bind(
    plan: &RankPlan,
    shape: &Shape,
    membership: &Membership,
    lends: bool,
) -> Result<Program> {
    let me = membership.rank();
    let notifies = match shape.operation {
        Operation::SendRecv { from, .. } => Notifies::PointToPoint { sends: from == me },
        _ => Notifies::Collective,
    };
    let mut binder = Binder {
        membership,
        shape,
        notifies,
        has_packets: plan.has_packets(),
        lends,
        links: Vec::new(),
        numbers: HashMap::new(),
    };
    let threads = plan
        .threads
        .iter()
        .map(|tasks| tasks.iter().map(|task| binder.op(task)).collect())
        .collect::<Result<Vec<Vec<Op>>>>()?;
    Program::new(ProgramParts {
        threads,
        links: binder.links,
        scratch: Some(membership.buffer().clone()),
        dtype: shape.dtype,
        redop: shape.redop.op(),
        input_bytes: shape.input_bytes(me),
        output_bytes: shape.output_bytes(me),
        scratch_bytes: plan.scratch_bytes,
        lends: lends.then(|| own_line(membership)).transpose()?,
        host_output_bytes: host_output_bytes(shape, membership),
    })
}

/// Bytes of output of all ranks of this host.
fn host_output_bytes(shape: &Shape, membership: &Membership) -> u64 {
    let all = membership.graph().ranks();
    let host = &all[membership.rank().index()].host.id;
    let here = shape.all_ranks().filter(|rank| {
        let facts = all.get(rank.index());
        facts.is_some_and(|facts| facts.host.id == *host)
    });
    here.map(|rank| shape.output_bytes(rank)).sum()
}

/// The line in which this rank says what it lends.
fn own_line(membership: &Membership) -> Result<Slice> {
    let line = membership.layout().lent();
    let line = line.start as usize..line.end as usize;
    membership.buffer().sub(line)
}

/// The peers that a rank's plan talks to, each once.
pub(crate) fn peers(plan: &RankPlan) -> Vec<Rank> {
    let mut peers: Vec<Rank> = plan
        .threads
        .iter()
        .flatten()
        .filter_map(Task::peer)
        .collect();
    peers.sort_unstable();
    peers.dedup();
    peers
}

/// How many notifies may be outstanding on the link to `peer`. The link must be there.
///
/// # Errors
/// Why the link is not there.
pub(crate) fn notify_capacity(membership: &Membership, peer: Rank) -> Result<u64> {
    let link = membership.link(peer)?;
    Ok(link
        .channel
        .transport()
        .device()
        .info()
        .max_notify_outstanding)
}

struct Binder<'a> {
    membership: &'a Membership,
    shape: &'a Shape,
    notifies: Notifies,
    has_packets: bool,
    lends: bool,
    links: Vec<ProgramLink>,
    numbers: HashMap<Rank, u16>,
}

impl Binder<'_> {
    fn op(&mut self, task: &Task) -> Result<Op> {
        Ok(match *task {
            Task::Copy { dst, src, bytes } => Op::Copy {
                dst: at(dst),
                src: at(src),
                bytes,
            },
            Task::Reduce { dst, a, b, count } => Op::Reduce {
                dst: at(dst),
                a: at(a),
                b: at(b),
                count,
            },
            Task::Divide { dst, count } => Op::Divide {
                dst: at(dst),
                count,
                by: NonZeroU32::new(self.shape.ranks).unwrap_or(NonZeroU32::MIN),
            },
            Task::Write {
                peer,
                dst,
                src,
                bytes,
                notify,
            } => Op::Write {
                link: self.link(peer)?,
                dst: scratch(dst)?,
                src: at(src),
                bytes,
                notify: self.outgoing(notify)?,
            },
            Task::Read {
                peer,
                dst,
                src,
                bytes,
            } if src.buffer != Buffer::Scratch && self.lends => Op::Fetch {
                link: self.link(peer)?,
                dst: at(dst),
                src: at(src),
                bytes,
            },
            Task::Read {
                peer,
                dst,
                src,
                bytes,
            } => Op::Read {
                link: self.link(peer)?,
                dst: at(dst),
                src: scratch(src)?,
                bytes,
            },
            Task::WriteReduce {
                peer,
                dst,
                src,
                count,
                notify,
            } => Op::WriteReduce {
                link: self.link(peer)?,
                dst: scratch(dst)?,
                src: at(src),
                count,
                notify: self.outgoing(notify)?,
            },
            Task::ReadReduce {
                peer,
                dst,
                a,
                src,
                count,
            } => Op::ReadReduce {
                link: self.link(peer)?,
                dst: at(dst),
                a: at(a),
                src: scratch(src)?,
                count,
            },
            Task::PacketWrite {
                peer,
                line,
                src,
                bytes,
            } => Op::PacketWrite {
                link: self.link(peer)?,
                line,
                src: at(src),
                bytes,
            },
            Task::PacketRead {
                peer,
                dst,
                line,
                bytes,
            } => Op::PacketRead {
                link: self.link(peer)?,
                dst: at(dst),
                line,
                bytes,
            },
            Task::PacketReduce {
                peer,
                dst,
                a,
                line,
                count,
                swapped,
            } => Op::PacketReduce {
                link: self.link(peer)?,
                dst: at(dst),
                a: at(a),
                line,
                count,
                swapped,
            },
            Task::Record { peer, notify } => Op::Record {
                link: self.link(peer)?,
                notify: self.notifies.outgoing(notify)?,
            },
            Task::Wait { peer, notify } => Op::Wait {
                link: self.link(peer)?,
                notify: self.notifies.incoming(notify)?,
            },
            Task::ThreadRecord { thread, notify } => {
                let thread = u16::try_from(thread).map_err(|_| {
                    Error::new(
                        ErrorKind::InvalidArgument,
                        format!("the plan names thread {thread}"),
                    )
                })?;
                Op::ThreadRecord { thread, notify }
            }
            Task::ThreadWait { notify } => Op::ThreadWait { notify },
        })
    }

    fn outgoing(&self, notify: Option<u32>) -> Result<Option<u32>> {
        notify
            .map(|notify| self.notifies.outgoing(notify))
            .transpose()
    }

    fn link(&mut self, peer: Rank) -> Result<u16> {
        if let Some(&number) = self.numbers.get(&peer) {
            return Ok(number);
        }
        let number = u16::try_from(self.links.len()).map_err(|_| {
            Error::new(
                ErrorKind::LimitReached,
                "a plan talks to more than 65,535 peers",
            )
        })?;
        let link = self.membership.link(peer)?;
        let packets = if self.has_packets {
            Some(self.packets(peer, &link.buffer)?)
        } else {
            None
        };
        let lent = self
            .lends
            .then(|| link.buffer.sub(self.membership.layout().lent()))
            .transpose()?;
        self.links.push(ProgramLink {
            channel: link.channel,
            scratch: Some(link.buffer),
            packets,
            lent,
            fingerprints: fingerprint::between(self.shape, self.membership.rank(), peer),
        });
        self.numbers.insert(peer, number);
        Ok(number)
    }
}

impl Binder<'_> {
    /// The packet lines between this rank and a peer.
    fn packets(&self, peer: Rank, buffer: &RemoteSlice) -> Result<PacketLines> {
        let (layout, me) = (self.membership.layout(), self.membership.rank());
        let from_peer = layout.packets(peer);
        Ok(PacketLines {
            incoming: self
                .membership
                .buffer()
                .sub(from_peer.start as usize..from_peer.end as usize)?,
            outgoing: buffer.sub(layout.packets(me))?,
        })
    }
}

const fn at(loc: Loc) -> At {
    let slot = match loc.buffer {
        Buffer::Input => SlotKind::Input,
        Buffer::Output => SlotKind::Output,
        Buffer::Scratch => SlotKind::Scratch,
    };
    At {
        slot,
        offset: loc.offset,
    }
}

fn scratch(loc: Loc) -> Result<u64> {
    match loc.buffer {
        Buffer::Scratch => Ok(loc.offset),
        Buffer::Input | Buffer::Output => Err(Error::new(
            ErrorKind::Unsupported,
            format!("the plan touches {loc} of another rank, which is not registered"),
        )),
    }
}
