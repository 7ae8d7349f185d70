//! What is wrong with a plan, in words.

use std::fmt;

use hcomm_types::Rank;

use super::At;
use crate::plan::{Buffer, Plan, ShapeError, Task};

/// Something wrong with a plan: where, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rank it is about, if it is about one.
    pub rank: Option<Rank>,
    /// The thread, if it is about one.
    pub thread: Option<usize>,
    /// The task's index in its thread, if it is about one.
    pub task: Option<usize>,
    /// The task in words; empty if it is not about one.
    pub words: String,
    /// What is wrong.
    pub fault: Box<Fault>,
}

impl Finding {
    pub(super) fn whole(fault: Fault) -> Self {
        Self {
            rank: None,
            thread: None,
            task: None,
            words: String::new(),
            fault: Box::new(fault),
        }
    }

    pub(super) fn rank(rank: Rank, fault: Fault) -> Self {
        Self {
            rank: Some(rank),
            ..Self::whole(fault)
        }
    }

    pub(super) fn task(rank: Rank, thread: usize, index: usize, task: &Task, fault: Fault) -> Self {
        Self {
            rank: Some(rank),
            thread: Some(thread),
            task: Some(index),
            words: task.to_string(),
            fault: Box::new(fault),
        }
    }

    pub(super) fn at(at: At, rounds: &[&Plan], fault: Fault) -> Self {
        Self {
            rank: Some(at.rank),
            thread: Some(at.thread as usize),
            task: Some(at.index as usize),
            words: words(at, rounds),
            fault: Box::new(fault),
        }
    }
}

/// The task at a place, in words; of several plans, the words say which one.
fn words(at: At, rounds: &[&Plan]) -> String {
    let task = at
        .task(rounds)
        .map_or_else(String::new, ToString::to_string);
    if rounds.len() > 1 {
        format!("{task}, in operation {}", at.round)
    } else {
        task
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.rank, self.thread, self.task) {
            (Some(rank), Some(thread), Some(task)) => {
                write!(
                    f,
                    "rank {rank}, thread {thread}, task {task} ({}): ",
                    self.words
                )?;
            }
            (Some(rank), Some(thread), None) => write!(f, "rank {rank}, thread {thread}: ")?,
            (Some(rank), _, _) => write!(f, "rank {rank}: ")?,
            _ => {}
        }
        self.fault.fmt(f)
    }
}

impl std::error::Error for Finding {}

/// Another task that has to do with a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherTask {
    /// Its rank.
    pub rank: Rank,
    /// Its thread.
    pub thread: usize,
    /// Its index in the thread.
    pub task: usize,
    /// The task in words.
    pub words: String,
}

impl OtherTask {
    pub(super) fn new(at: At, rounds: &[&Plan]) -> Self {
        Self {
            rank: at.rank,
            thread: at.thread as usize,
            task: at.index as usize,
            words: words(at, rounds),
        }
    }
}

impl fmt::Display for OtherTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rank,
            thread,
            task,
            words,
        } = self;
        write!(f, "rank {rank}, thread {thread}, task {task} ({words})")
    }
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The shape itself makes no sense.
    #[error("the shape is impossible: {0}")]
    Shape(ShapeError),
    /// Plans of a sequence are for different communicators.
    #[error("plans for {first} and for {other} ranks cannot follow each other on one communicator")]
    OtherRanks {
        /// Ranks of the first plan.
        first: u32,
        /// Ranks of another one.
        other: u32,
    },
    /// The number of rank plans is not the number of ranks.
    #[error("the plan lists {listed} ranks, its shape has {ranks}")]
    RankCount {
        /// Rank plans.
        listed: usize,
        /// Ranks of the shape.
        ranks: u32,
    },
    /// A rank asks for more scratch memory than can be.
    #[error("asks for {scratch_bytes} bytes of scratch memory; the limit is 2^63 - 1")]
    TooMuchScratch {
        /// What it asks for.
        scratch_bytes: u64,
    },
    /// More threads than a communicator may hold.
    #[error("has {threads} threads; a communicator holds at most {limit}")]
    TooManyThreads {
        /// Threads of the rank.
        threads: usize,
        /// Threads allowed.
        limit: usize,
    },
    /// More notifies than a thread may hold.
    #[error("waits for {notifies} different notifies; a thread holds at most {limit}")]
    TooManyNotifies {
        /// Notifies the thread waits for.
        notifies: usize,
        /// Notifies allowed.
        limit: usize,
    },
    /// A notify index beyond what any channel offers.
    #[error("names notify {notify}; notifies go from 0 to {}", .limit - 1)]
    NotifyIndex {
        /// The index.
        notify: u32,
        /// How many there are.
        limit: usize,
    },
    /// Zero bytes or elements.
    #[error("moves nothing: its length is zero")]
    NothingToDo,
    /// A peer that is not in the communicator.
    #[error("names rank {peer} as its peer, but ranks go from 0 to {}", .ranks - 1)]
    NoSuchPeer {
        /// The peer named.
        peer: Rank,
        /// Number of ranks.
        ranks: u32,
    },
    /// A rank that names itself as peer.
    #[error("names its own rank as the peer; use a copy, a reduce or a thread notify instead")]
    OwnPeer,
    /// A thread that does not exist, or the recording thread itself.
    #[error("records at thread {thread}, which is itself or not there ({threads} threads)")]
    NoSuchThread {
        /// The thread named.
        thread: u32,
        /// Threads of the rank.
        threads: usize,
    },
    /// A range outside its buffer.
    #[error(
        "reaches bytes {offset}..{} of the {buffer} of rank {owner}, which has {size} bytes",
        u128::from(*.offset) + u128::from(*.bytes)
    )]
    OutOfBounds {
        /// Whose buffer.
        owner: Rank,
        /// Which buffer.
        buffer: Buffer,
        /// Start of the range.
        offset: u64,
        /// Length of the range.
        bytes: u64,
        /// Bytes of the buffer.
        size: u64,
    },
    /// A reduction at an offset that is no multiple of the element size.
    #[error(
        "reduces elements of {element_bytes} bytes at offset {offset} of the {buffer}, which is no multiple of that"
    )]
    Unaligned {
        /// Which buffer.
        buffer: Buffer,
        /// The offset.
        offset: u64,
        /// Bytes of an element.
        element_bytes: u64,
    },
    /// Source and destination of one task overlap.
    #[error("its destination overlaps its source; a reduce may only use exactly the same place")]
    OverlapsItself,
    /// A write into a caller's input.
    #[error("writes into the input of rank {owner}, which belongs to the caller and is only read")]
    WritesInput {
        /// Whose input.
        owner: Rank,
    },
    /// A notify with two recording threads.
    #[error("records a notify that {other} records as well; each has one recording thread")]
    TwoRecorders {
        /// The other one.
        other: OtherTask,
    },
    /// A notify with two waiting threads.
    #[error("waits for a notify that {other} waits for as well; each has one waiting thread")]
    TwoWaiters {
        /// The other one.
        other: OtherTask,
    },
    /// Fewer records than waits.
    #[error("waits for a notify that is recorded {records} times and waited for {waits} times")]
    TooFewRecords {
        /// Records in the plan.
        records: u64,
        /// Waits in the plan.
        waits: u64,
    },
    /// More records than waits.
    #[error(
        "records a notify that is recorded {records} times and waited for {waits} times, so what \
         is left would wake the next operation too early"
    )]
    TooFewWaits {
        /// Records in the plan.
        records: u64,
        /// Waits in the plan.
        waits: u64,
    },
    /// Lines that no pair of ranks has.
    #[error("uses {lines} packet lines from line {line} on; each pair of ranks has {limit}")]
    PacketLines {
        /// The first one.
        line: u32,
        /// How many.
        lines: u64,
        /// How many there are.
        limit: u32,
    },
    /// Packets in a plan that does not take its turn among the operations.
    #[error(
        "uses a packet, but packets carry the number of the operation, and plans with credits and \
         messages between two ranks are not counted"
    )]
    PacketUncounted,
    /// Two packets in one line.
    #[error("uses packet line {line}, which {other} uses as well; a line serves once")]
    LineTwice {
        /// The line.
        line: u32,
        /// The other one.
        other: OtherTask,
    },
    /// A packet that nobody takes.
    #[error("sends a packet that rank {reader} never takes")]
    PacketUntaken {
        /// Who should.
        reader: Rank,
    },
    /// A packet that nobody sends.
    #[error("waits for a packet that rank {writer} never sends")]
    PacketUnsent {
        /// Who should.
        writer: Rank,
    },
    /// A packet that is taken with another length than it was sent.
    #[error("takes {taken} bytes of a packet, of which {other} sends {sent}")]
    PacketLength {
        /// Bytes taken.
        taken: u64,
        /// Bytes sent.
        sent: u64,
        /// Who sends it.
        other: OtherTask,
    },
    /// A packet line that is used again too early.
    #[error(
        "uses packet line {line} from rank {writer} to rank {reader} while {other} may be using it; \
         nothing orders the two"
    )]
    LineInUse {
        /// Who sends.
        writer: Rank,
        /// Who takes.
        reader: Rank,
        /// The line.
        line: u32,
        /// The other task.
        other: OtherTask,
    },
    /// A credit that names nothing usable.
    #[error("the credit for notify {notify} from rank {recorder} to rank {waiter} {problem}")]
    Credit {
        /// Who would record.
        recorder: Rank,
        /// Who would wait.
        waiter: Rank,
        /// Which notify.
        notify: u32,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Ranks that wait for each other in a circle.
    #[error("waits for ever: {because}")]
    Deadlock {
        /// The chain of waits.
        because: String,
    },
    /// Two accesses that nothing orders.
    #[error(
        "touches bytes {start}..{end} of the {buffer} of rank {owner} while {other} {verb} them; no \
         notify orders the two"
    )]
    Race {
        /// Whose memory.
        owner: Rank,
        /// Which one. In place, input and output are one memory, named by the larger of the two.
        buffer: Buffer,
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
        /// The other task.
        other: OtherTask,
        /// What the other one does.
        verb: &'static str,
    },
    /// A read of what nobody wrote.
    #[error("reads bytes {start}..{end} of the {buffer} of rank {owner}, which nobody has written")]
    ReadsUnwritten {
        /// Whose memory.
        owner: Rank,
        /// Which one.
        buffer: Buffer,
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
    },
    /// A reduction of elements that do not belong together.
    #[error("combines different elements: input offset {first} with input offset {second}")]
    CombinesOthers {
        /// Input offset of the first operand.
        first: u64,
        /// Input offset of the second operand.
        second: u64,
    },
    /// A reduction of pieces of elements.
    #[error("combines an element that was put together from parts of others")]
    CombinesTorn,
    /// A reduction that uses a contribution again.
    #[error("combines the contribution of rank {rank} a second time")]
    CombinesTwice {
        /// Whose contribution.
        rank: Rank,
    },
    /// A reduction that mixes two operations of a sequence.
    #[error("combines elements of two different operations")]
    CombinesOperations,
    /// A division where the operation has no averages.
    #[error("divides, and the operation makes no averages")]
    DividesNoAverage,
    /// A division of what is no sum of all ranks' inputs.
    #[error("divides {found}, which is not the sum of all ranks' inputs")]
    DividesPart {
        /// What it divides, in words.
        found: String,
    },
    /// A reduction of averages.
    #[error("combines what is divided already")]
    CombinesAverages,
    /// A write that is never seen to arrive.
    #[error(
        "writes into the {buffer} of rank {owner}, but rank {owner} never waits for a notify that \
         follows, so the bytes may arrive after it has gone on"
    )]
    NeverSeen {
        /// Whose memory.
        owner: Rank,
        /// Which one.
        buffer: Buffer,
    },
    /// An access to a caller's buffer before the owner has begun.
    #[error("touches the {buffer} of rank {owner}, which may not have begun yet")]
    BeforeBegin {
        /// Whose buffer.
        owner: Rank,
        /// Which one.
        buffer: Buffer,
    },
    /// An access to a caller's buffer after the owner has ended.
    #[error("touches the {buffer} of rank {owner}, which may have ended already")]
    AfterEnd {
        /// Whose buffer.
        owner: Rank,
        /// Which one.
        buffer: Buffer,
    },
    /// A wrong output.
    #[error("bytes {start}..{end} of the output hold {found}, but should hold {expected}")]
    WrongResult {
        /// First byte of the output.
        start: u64,
        /// Byte after the last.
        end: u64,
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
    },
}
