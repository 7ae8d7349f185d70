//! Threads, notifies, transfers, batches, local copy and reduce.
//!
//! # The way of the data
//!
//! **Submit.** A [`Thread`] is an in-order queue of tasks. A call such as [`Thread::write`] checks
//! ranges and abilities, makes a borrowed description of the task (`work`) and hands it to the
//! queue (`queue`). If nothing before it is left, it runs right there, and nothing is stored or
//! counted up. Otherwise it is stored with what it needs (handles of regions, imports, channels).
//!
//! **Run.** `runner` takes the task at the head as far as it goes. Memory of this side, and of a
//! peer where the link maps it, is copied or reduced with loads and stores (`memory`, `reduce`).
//! Everything else becomes descriptors for the transport: what it does not do at once is kept
//! track of as *in flight*, together with handles of the memory it uses. Tasks that would see or
//! spoil something in flight wait for it; the others go on, so writes and records of one channel
//! are pipelined.
//!
//! **Notify.** A record is a descriptor that follows everything earlier on its channel. It lands
//! in a word of the waiting side, which counts records; [`Channel`] keeps how many of them a wait
//! has taken. Notifies of threads are the same, inside a process.
//!
//! **Wake.** A task that cannot go on says why, and its queue is left on the list of its OS thread
//! (`driver`). Any later call of that OS thread runs what can run on its list, and
//! [`Thread::synchronize`] does so until one queue is empty: rounds of running queues and moving
//! devices on, with pauses of the one waiter of the process between them. Before it sleeps, the
//! waiter asks once more whether any head could go on; a record, an abort or a peer's bell wakes
//! it. After each sleep come the questions that no bell announces: do the peers live
//! ([`Peers::check`]), do the links work, has the deadline passed.
//!
//! **Fail.** The first failure of a thread is its last task: it is explained by the layer above
//! ([`Peers::explain`]: this crate knows labels, no ranks), stays as the first cause, and is the
//! answer to every later call. Nothing that was queued runs.
//!
//! A [`Program`] is a list of tasks that was checked and bound once. A run of it is one entry of a
//! queue, replayed without checks of each task and without memory from the heap.
#![deny(unsafe_code)]

mod channel;
mod domain;
mod driver;
mod failure;
#[allow(unsafe_code)]
mod memory;
mod program;
mod queue;
#[allow(unsafe_code)]
mod reduce;
mod runner;
mod slice;
mod thread;
mod work;

pub use channel::Channel;
pub use domain::{Domain, Peers};
pub use memory::Buffers;
pub use program::{At, Op, Program, ProgramLink, ProgramParts, SlotKind};
pub use reduce::{reduce, reduce_kernel, vector_level};
pub use slice::{RemoteSlice, Slice};
pub use thread::{Engine, Thread};
pub use work::BatchOp;
