//! Proof that a plan computes what its shape asks for, in every interleaving.
//!
//! [`verify`] looks at all ranks' plans together and either returns a [`Proof`] with what it has
//! learned about the plan, or a [`Finding`] that names rank, thread and task and says what is
//! wrong. It checks that
//!
//! * every task stays inside its buffers, moves something, and does not overlap itself;
//! * only output and scratch are written, and nothing is read that nobody has written;
//! * records and waits match, each notify has one thread that records it and one that waits;
//! * there is no deadlock;
//! * no two accesses to one byte, of which one writes, are unordered;
//! * bytes written into a peer's memory have landed there before the peer ends, and nobody
//!   touches a peer's input or output before the peer begins or after it ends;
//! * each packet is sent once and taken once, of one length, in lines of its own, and no line is
//!   used again before it was read;
//! * every output byte holds exactly the right contributions, each exactly once.
//!
//! # Why one run is enough
//!
//! The verifier executes the plan once, symbolically, in whatever order comes first. That decides
//! for all orders, by three steps.
//!
//! *One run finds every deadlock.* A notify is a counter with one recording thread and one
//! waiting thread. A task that may run stays able to run until it does: counters grow by
//! records, and the only thread that could take from one is the one that waits. So whichever
//! enabled task runs first, the others remain enabled; all maximal runs execute the same tasks,
//! and if one gets stuck, all do, at the same place.
//!
//! *One run finds every race.* Since a notify has one recorder and one waiter, both in order,
//! its *k*-th wait always takes the *k*-th record (the initial credits count as the first
//! records). What happens before what is therefore a property of the plan, not of the run:
//! program order of each thread plus an edge from each record to its wait. Vector clocks follow
//! these edges through the run, and every byte remembers its last write and the reads since; two
//! conflicting accesses that the clocks do not order are a race in the plan, whatever this run
//! did. Remembering only the last write is enough, as an earlier one is before it or has been
//! reported already.
//!
//! *Without races, one run finds every value.* Every read then has one last write before it in
//! every interleaving. The run tracks for each byte the ordered tree of contributions it holds,
//! so what it finds in the outputs is what every run leaves there.
//!
//! A packet is a notify of its own that carries bytes: recorded once, waited for once, so the same
//! holds for it. Its lines are memory, written when it is sent and read when it is taken, and all of
//! a line with it: a packet that could overwrite one not yet read is a race like any other.
//!
//! Writes into a peer's memory are asynchronous: they take effect at some time before the next
//! record from the same thread to the same peer does. So a write is before a later access exactly
//! if the access is after some wait, at that peer, for a record that followed the write. The
//! writing thread itself has not waited, so it may not touch what it wrote until word comes back.
//!
//! # Notify capacity
//!
//! When record *k* of a notify is made, the waits that happen before it are known from the clocks;
//! there is a run in which exactly the tasks before that record have happened, so the largest
//! (*credits + k − such waits*) is exactly the largest value the counter reaches in any run.

mod clock;
mod deadlock;
mod execution;
mod finding;
mod layout;
mod memory;
mod results;
mod step;
mod structure;
mod usage;
mod value;

use hcomm_types::Rank;
use serde::Serialize;

use crate::plan::{Plan, Task};
use execution::Execution;

pub use finding::{Fault, Finding, OtherTask};
pub(crate) use structure::notifies_waited;

/// What is known about a plan that is right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Proof {
    /// No rank ends before every rank has begun. Then operations may follow each other on two
    /// halves of scratch memory, used in turn (see [`crate::plan`]).
    pub synchronising: bool,
    /// When a rank ends, no other rank will touch its scratch memory any more.
    pub quiescent: bool,
    /// Each output element is combined by one and the same tree on all ranks, so that rounding
    /// gives the same bits everywhere. True for operations that combine nothing.
    pub same_bits: bool,
    /// Each output element is combined in rank order, the input of each rank with all before it, so
    /// that rounding gives the bits of every other plan of which that is true. True for operations
    /// that combine nothing.
    pub rank_order: bool,
    /// Largest value that any notify reaches in any run. Where plans follow each other, all of
    /// them synchronising, a rank is at most one plan ahead of another, so the largest value is at
    /// most the sum of those of two neighbours.
    pub notify_capacity: u64,
    /// Notifies that a channel needs in one direction: the largest index plus one.
    pub notifies: u32,
    /// Whether some rank touches the input or output of another, so that these must be registered.
    pub touches_remote_user_buffers: bool,
    /// What goes from which rank to which. Pairs that have nothing in common are left out.
    pub channels: Vec<ChannelUse>,
    /// What each rank needs and does by itself.
    pub ranks: Vec<RankUse>,
}

/// What a plan does on one ordered pair of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ChannelUse {
    /// Who acts.
    pub from: Rank,
    /// On whom.
    pub to: Rank,
    /// Bytes that `from` writes into memory of `to`.
    pub bytes_written: u64,
    /// Bytes that `from` reads from memory of `to`.
    pub bytes_read: u64,
    /// Notifies from `from` to `to`: the largest index plus one.
    pub notifies: u32,
    /// Records from `from` to `to`.
    pub records: u64,
}

/// What a plan does on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RankUse {
    /// Threads with at least one task.
    pub threads: usize,
    /// Tasks.
    pub tasks: usize,
    /// Scratch memory needed, in bytes.
    pub scratch_bytes: u64,
    /// Bytes read from and written to the rank's own memory by its own tasks.
    pub local_bytes: u64,
}

/// Proves that a plan is right.
///
/// # Errors
/// The first thing found to be wrong.
pub fn verify(plan: &Plan) -> Result<Proof, Finding> {
    verify_all(plan).map_err(first)
}

/// Proves that a plan is right, or says everything that is found wrong (up to a limit).
///
/// # Errors
/// All findings, at least one. Later ones may be consequences of earlier ones.
pub fn verify_all(plan: &Plan) -> Result<Proof, Vec<Finding>> {
    let findings = structure::check(plan);
    if !findings.is_empty() {
        return Err(findings);
    }
    let mut run = Execution::new(std::slice::from_ref(&plan));
    run.run();
    let end = run.finish();
    if !end.findings.is_empty() {
        return Err(end.findings);
    }
    Ok(Proof {
        synchronising: end.synchronising,
        quiescent: end.quiescent,
        same_bits: end.same_bits,
        rank_order: end.rank_order,
        notify_capacity: end.notify_capacity,
        ..usage::usage(plan)
    })
}

/// Proves that plans may follow each other on one communicator, with nothing between them.
///
/// Plans without credits use two scratch halves in turn, as communicators do; each kind of
/// operation with credits has scratch and notifies of its own, used again each time. All plans
/// must be for the same number of ranks, and right by themselves.
///
/// Returns the largest value that any notify reaches over the whole row.
///
/// # Errors
/// The first thing found to be wrong, in one plan or between them.
pub fn verify_sequence(plans: &[&Plan]) -> Result<u64, Finding> {
    for plan in plans {
        verify(plan)?;
    }
    let Some(first_plan) = plans.first() else {
        return Ok(0);
    };
    if let Some(other) = plans
        .iter()
        .find(|plan| plan.shape.ranks != first_plan.shape.ranks)
    {
        return Err(Finding::whole(Fault::OtherRanks {
            first: first_plan.shape.ranks,
            other: other.shape.ranks,
        }));
    }
    let mut run = Execution::new(plans);
    run.run();
    let end = run.finish();
    if end.findings.is_empty() {
        Ok(end.notify_capacity)
    } else {
        Err(first(end.findings))
    }
}

fn first(findings: Vec<Finding>) -> Finding {
    findings
        .into_iter()
        .next()
        .expect("a failed check has a finding")
}

/// Where a task stands: in which plan of a sequence, on which rank and thread, at which index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At {
    round: u32,
    rank: Rank,
    thread: u32,
    index: u32,
}

impl At {
    fn task<'p>(&self, rounds: &[&'p Plan]) -> Option<&'p Task> {
        rounds
            .get(self.round as usize)?
            .task(self.rank, self.thread as usize, self.index as usize)
    }
}
