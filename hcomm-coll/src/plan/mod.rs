//! Plans: what every rank does to carry out one operation, as plain data.
//!
//! A [`Plan`] holds one [`RankPlan`] a rank. A rank has **threads**, lists of [`Task`]s that run
//! in order; threads run beside each other. Memory is named by [`Loc`]: a [`Buffer`] and an
//! offset, never an address, so one plan serves any memory of the right size, and it can be
//! written to a [file](mod@file), looked at, verified, simulated and run.
//!
//! # What tasks promise each other
//!
//! * The tasks of a thread are in order. What a task reads on its own rank it has read, and what
//!   it writes on its own rank it has written, before the next task of its thread begins. A task
//!   that reads the peer's memory has done so, too.
//! * What [`Task::Write`] and [`Task::WriteReduce`] do **at the peer** happens at some later
//!   time. Only this is promised: a record (or the notify of a write) from the same thread to the
//!   same peer comes after it. Whoever waits for that notify sees the bytes; nobody else may
//!   look, not even the writer. Two writes to one place are unordered unless the second was
//!   issued after word had come back that the first has landed.
//! * A **notify** is a counter. A record adds one to it at the rank that waits, a wait takes one
//!   from it and blocks while there is none. The index space is one per ordered pair of ranks,
//!   and each notify has one thread that records it and one that waits for it. Thread notifies
//!   are the same between threads of one rank.
//!
//! * A **packet** carries its payload and the news of it together, over memory that is mapped. It
//!   lands in *lines* that nothing but packets can name: [`MAX_PACKET_LINES`] of 64 bytes, with 56
//!   of payload, for each ordered pair of ranks, counted anew in each operation. In one plan a line
//!   is written by one task and read by one, of as many bytes. A packet that arrives tells what its
//!   writer had done and waited for before; but not that the writer's earlier [`Task::Write`]s to
//!   the reader have landed, for which it takes a record.
//!
//! # How operations follow each other
//!
//! Nothing outside the plans keeps ranks in step: a fast rank enters the next operation while a
//! slow one is still inside the last. Scratch memory is therefore used in two halves, in turn.
//! That is enough when every plan is *synchronising* (no rank ends before every rank has begun):
//! take three operations in a row, A, B and C, where A and C use the same half. Whoever is in C
//! has ended B, so every rank has begun B, so every rank has ended A, and with it its reads of
//! others' scratch; and a write that arrives at a rank has been waited for there before that
//! rank ended A (the verifier insists). So nothing of A is left when C begins.
//! [`verify`](crate::verify) computes the property, and
//! [`verify_sequence`](crate::verify::verify_sequence) checks rows of plans directly.
//! Packets need no more than that: lines, too, come in two sets used in turn, and what a packet
//! carries beside its payload is the number of the operation, so that nobody takes what was left
//! by an earlier one (see [`hcomm_data::PacketLines`]).
//!
//! Plans without a task (one rank, in place; or nothing to move) take no half.
//!
//! A plan with [credits](Plan::initial_credits) is not synchronising, as a send may end before
//! its receive begins. Such plans own scratch and notifies that nobody else uses, and follow only
//! themselves.

mod count;
pub mod file;
mod shape;
mod task;

use hcomm_types::Rank;
use serde::{Deserialize, Serialize};

pub use count::Count;
pub use hcomm_types::MAX_PACKET_LINES;
pub use shape::{Operation, Shape, ShapeError};
pub use task::{Buffer, Loc, Task};

/// Version of the file format of plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PlanFormat {
    /// The first one.
    #[default]
    #[serde(rename = "hcomm-plan-1")]
    V1,
}

/// What all ranks do to carry out one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Version of the format.
    pub format: PlanFormat,
    /// Name of the algorithm that made it.
    pub algorithm: String,
    /// What it must compute.
    pub shape: Shape,
    /// Notifies that do not begin (nor end) at zero.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initial_credits: Vec<Credit>,
    /// What each rank does.
    pub ranks: Vec<RankPlan>,
}

impl Plan {
    /// Whether there is nothing to do for anybody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.task_count() == 0
    }

    /// Number of tasks of all ranks.
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.ranks.iter().map(RankPlan::task_count).sum()
    }

    /// Whether some task sends a packet or waits for one.
    #[must_use]
    pub fn has_packets(&self) -> bool {
        self.ranks.iter().any(RankPlan::has_packets)
    }

    /// The task at a place, if there is one.
    #[must_use]
    pub fn task(&self, rank: Rank, thread: usize, index: usize) -> Option<&Task> {
        self.ranks
            .get(rank.index())?
            .threads
            .get(thread)?
            .get(index)
    }
}

/// What one rank does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankPlan {
    /// The tasks of each thread, in order.
    pub threads: Vec<Vec<Task>>,
    /// Scratch memory that this rank must offer, in bytes.
    pub scratch_bytes: u64,
}

impl RankPlan {
    /// Number of tasks of all threads.
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.threads.iter().map(Vec::len).sum()
    }

    /// Whether some task sends a packet or waits for one.
    #[must_use]
    pub fn has_packets(&self) -> bool {
        self.threads.iter().flatten().any(Task::is_packet)
    }
}

/// A notify that begins above zero, as if it had been recorded that often before.
///
/// At the end of the plan it has the same value again, so that the plan can follow itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credit {
    /// Who records the notify.
    pub recorder: Rank,
    /// Who waits for it.
    pub waiter: Rank,
    /// Which one.
    pub notify: u32,
    /// Its value at the beginning and at the end.
    pub count: u32,
}
