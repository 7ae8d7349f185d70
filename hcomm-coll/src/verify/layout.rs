//! Numbers for the threads, notifies, clock components and memories of a row of plans.

use hcomm_data::packet_lines;
use hcomm_types::{MAX_PACKET_LINES, Rank};
use rustc_hash::FxHashMap;

use super::clock::Moment;
use crate::plan::{Buffer, Plan, Task};

/// Name of something to wait for within one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Notify {
    Channel {
        recorder: Rank,
        waiter: Rank,
        notify: u32,
    },
    Thread {
        rank: Rank,
        thread: u32,
        notify: u32,
    },
    /// A packet, by its first line. It is sent once and taken once.
    Packet {
        writer: Rank,
        reader: Rank,
        line: u32,
    },
}

/// Some lines of those from one rank to another, and one end of the packet there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lines {
    pub(super) writer: Rank,
    pub(super) reader: Rank,
    pub(super) first: u32,
    pub(super) bytes: u64,
}

/// Bytes that stand for a line in the verifier's memory of packets.
const LINE: u64 = 64;

impl Lines {
    /// The lines of a packet task of `rank`.
    pub(super) fn of(rank: Rank, task: &Task, element_bytes: u64) -> Option<Self> {
        Some(match *task {
            Task::PacketWrite {
                peer, line, bytes, ..
            } => Self {
                writer: rank,
                reader: peer,
                first: line,
                bytes,
            },
            Task::PacketRead {
                peer, line, bytes, ..
            } => Self {
                writer: peer,
                reader: rank,
                first: line,
                bytes,
            },
            Task::PacketReduce {
                peer, line, count, ..
            } => Self {
                writer: peer,
                reader: rank,
                first: line,
                bytes: count.saturating_mul(element_bytes),
            },
            _ => return None,
        })
    }

    /// How many.
    pub(super) const fn count(&self) -> u64 {
        packet_lines(self.bytes)
    }

    /// Where they are in the reader's memory of packets: payload first, flags among the rest.
    pub(super) fn range(&self) -> std::ops::Range<u64> {
        let start = Self::start(self.writer, self.first);
        start..start + self.count() * LINE
    }

    fn start(writer: Rank, line: u32) -> u64 {
        (u64::from(writer.0) * u64::from(MAX_PACKET_LINES) + u64::from(line)) * LINE
    }

    /// Size of a memory of packets.
    pub(super) fn memory_bytes(ranks: u32) -> u64 {
        Self::start(Rank(ranks), 0)
    }

    /// Whose line, and which, an offset in the memory of packets belongs to.
    pub(super) const fn line_at(offset: u64) -> (Rank, u32) {
        let line = offset / LINE;
        let most = MAX_PACKET_LINES as u64;
        (Rank((line / most) as u32), (line % most) as u32)
    }
}

/// The notify that a task of `rank` records, or the packet that it sends, if it does.
pub(super) fn notify_recorded(rank: Rank, task: &Task) -> Option<Notify> {
    match *task {
        Task::ThreadRecord { thread, notify } => Some(Notify::Thread {
            rank,
            thread,
            notify,
        }),
        Task::PacketWrite { peer, line, .. } => Some(Notify::Packet {
            writer: rank,
            reader: peer,
            line,
        }),
        _ => task.records().map(|(waiter, notify)| Notify::Channel {
            recorder: rank,
            waiter,
            notify,
        }),
    }
}

/// The notify or packet that a task of `rank` waits for, if it does.
pub(super) fn notify_waited(rank: Rank, thread: usize, task: &Task) -> Option<Notify> {
    match *task {
        Task::Wait { peer, notify } => Some(Notify::Channel {
            recorder: peer,
            waiter: rank,
            notify,
        }),
        Task::ThreadWait { notify } => Some(Notify::Thread {
            rank,
            thread: thread as u32,
            notify,
        }),
        Task::PacketRead { peer, line, .. } | Task::PacketReduce { peer, line, .. } => {
            Some(Notify::Packet {
                writer: peer,
                reader: rank,
                line,
            })
        }
        _ => None,
    }
}

pub(super) struct Layout {
    ranks: usize,
    /// First thread of each rank, and the total at the end.
    first_actor: Vec<usize>,
    /// Component of the moments of each pair of a thread and a peer that it writes to.
    landings: FxHashMap<(usize, Rank), u32>,
    /// Scratch used by each plan of the row: 0 and 1 are the halves, others belong to one operation
    /// with credits each. Notifies of halves are one space, of the others one each.
    scratch_sets: Vec<usize>,
    sets: usize,
}

impl Layout {
    pub(super) fn new(rounds: &[&Plan]) -> Self {
        let ranks = rounds.first().map_or(0, |plan| plan.ranks.len());
        let mut first_actor = vec![0];
        for rank in 0..ranks {
            let threads = rounds
                .iter()
                .map(|plan| plan.ranks[rank].threads.len())
                .max();
            // A rank without a thread still has a place in time.
            first_actor.push(first_actor[rank] + threads.unwrap_or(0).max(1));
        }
        let mut layout = Self {
            ranks,
            first_actor,
            landings: FxHashMap::default(),
            scratch_sets: Vec::new(),
            sets: 2,
        };
        layout.number_landings(rounds);
        layout.number_scratch(rounds);
        layout
    }

    fn number_landings(&mut self, rounds: &[&Plan]) {
        let actors = self.actors() as u32;
        for plan in rounds {
            for (rank, rank_plan) in plan.ranks.iter().enumerate() {
                for (thread, tasks) in rank_plan.threads.iter().enumerate() {
                    let actor = self.actor(Rank::from_index(rank), thread);
                    for task in tasks {
                        if let Task::Write { peer, .. } | Task::WriteReduce { peer, .. } = task {
                            let next = actors + self.landings.len() as u32;
                            self.landings.entry((actor, *peer)).or_insert(next);
                        }
                    }
                }
            }
        }
    }

    fn number_scratch(&mut self, rounds: &[&Plan]) {
        let mut half = 0;
        for (round, plan) in rounds.iter().enumerate() {
            let set = if plan.initial_credits.is_empty() {
                let now = half;
                half = if plan.is_empty() { now } else { 1 - now };
                now
            } else {
                let before = rounds[..round].iter().position(|earlier| {
                    earlier.shape.operation == plan.shape.operation
                        && !earlier.initial_credits.is_empty()
                });
                match before {
                    Some(earlier) => self.scratch_sets[earlier],
                    None => {
                        self.sets += 1;
                        self.sets - 1
                    }
                }
            };
            self.scratch_sets.push(set);
        }
    }

    pub(super) fn actors(&self) -> usize {
        self.first_actor[self.ranks]
    }

    /// Number of pairs of a thread and a peer that it writes to.
    pub(super) fn landings(&self) -> usize {
        self.landings.len()
    }

    pub(super) fn actor(&self, rank: Rank, thread: usize) -> usize {
        self.first_actor[rank.index()] + thread
    }

    pub(super) fn actors_of(&self, rank: Rank) -> std::ops::Range<usize> {
        self.first_actor[rank.index()]..self.first_actor[rank.index() + 1]
    }

    /// The component that says what a thread wrote to a peer has landed there.
    pub(super) fn landing(&self, actor: usize, peer: Rank) -> Option<u32> {
        self.landings.get(&(actor, peer)).copied()
    }

    /// Whether a moment is that of an asynchronous write.
    pub(super) fn is_landing(&self, moment: Moment) -> bool {
        moment.component as usize >= self.actors()
    }

    /// Which notifies and scratch a plan of the row uses.
    pub(super) fn scratch_set(&self, round: usize) -> usize {
        self.scratch_sets[round]
    }

    /// The space of notifies that a plan of the row uses. Packets know their operation.
    pub(super) fn notify_space(&self, round: usize, notify: Notify) -> usize {
        match notify {
            Notify::Channel { .. } | Notify::Thread { .. } => self.scratch_sets[round].max(1),
            Notify::Packet { .. } => self.sets + round,
        }
    }

    pub(super) fn memories(&self) -> usize {
        self.first_packet_memory() + 2 * self.ranks
    }

    fn first_packet_memory(&self) -> usize {
        (self.scratch_sets.len() * 2 + self.sets) * self.ranks
    }

    /// Number of the memory of packets for a rank. Plans with packets use the halves.
    pub(super) fn packet_memory(&self, round: usize, reader: Rank) -> usize {
        let half = self.scratch_set(round) % 2;
        self.first_packet_memory() + half * self.ranks + reader.index()
    }

    pub(super) fn holds_packets(&self, memory: usize) -> bool {
        memory >= self.first_packet_memory()
    }

    /// Number of a memory. Input and output are new for each plan of the row.
    pub(super) fn memory(&self, round: usize, rank: Rank, home: Buffer) -> usize {
        let row = match home {
            Buffer::Scratch => self.scratch_set(round),
            Buffer::Input => self.sets + round * 2,
            Buffer::Output => self.sets + round * 2 + 1,
        };
        row * self.ranks + rank.index()
    }

    /// What a memory is: whose, and for input and output of which plan. That of packets is a kind
    /// of scratch.
    pub(super) fn owner(&self, memory: usize) -> (Rank, Buffer, Option<usize>) {
        let (row, rank) = (memory / self.ranks, Rank::from_index(memory % self.ranks));
        if self.holds_packets(memory) {
            return (rank, Buffer::Scratch, None);
        }
        match row.checked_sub(self.sets) {
            None => (rank, Buffer::Scratch, None),
            Some(user) if user % 2 == 0 => (rank, Buffer::Input, Some(user / 2)),
            Some(user) => (rank, Buffer::Output, Some(user / 2)),
        }
    }
}
