//! Numbers for the threads, notifies, clock components and memories of a row of plans.

use std::collections::HashMap;

use hcomm_types::Rank;

use super::clock::Moment;
use crate::plan::{Buffer, Plan, Task};

/// Name of a notify within one plan.
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
}

/// The notify that a task of `rank` records, if it does.
pub(super) fn notify_recorded(rank: Rank, task: &Task) -> Option<Notify> {
    match *task {
        Task::ThreadRecord { thread, notify } => Some(Notify::Thread {
            rank,
            thread,
            notify,
        }),
        _ => task.records().map(|(waiter, notify)| Notify::Channel {
            recorder: rank,
            waiter,
            notify,
        }),
    }
}

/// The notify that a task of `rank` waits for, if it does.
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
        _ => None,
    }
}

pub(super) struct Layout {
    ranks: usize,
    /// First thread of each rank, and the total at the end.
    first_actor: Vec<usize>,
    /// Component of the moments of each pair of a thread and a peer that it writes to.
    landings: HashMap<(usize, Rank), u32>,
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
            landings: HashMap::new(),
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

    /// The space of notifies that a plan of the row uses.
    pub(super) fn notify_space(&self, round: usize) -> usize {
        self.scratch_sets[round].max(1)
    }

    pub(super) fn memories(&self) -> usize {
        (self.scratch_sets.len() * 2 + self.sets) * self.ranks
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

    /// What a memory is: whose, and for input and output of which plan.
    pub(super) fn owner(&self, memory: usize) -> (Rank, Buffer, Option<usize>) {
        let (row, rank) = (memory / self.ranks, Rank::from_index(memory % self.ranks));
        match row.checked_sub(self.sets) {
            None => (rank, Buffer::Scratch, None),
            Some(user) if user % 2 == 0 => (rank, Buffer::Input, Some(user / 2)),
            Some(user) => (rank, Buffer::Output, Some(user / 2)),
        }
    }
}
