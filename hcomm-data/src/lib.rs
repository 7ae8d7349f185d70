//! Threads, notifies, transfers, batches, local copy and reduce.
//!
//! # The way of the data
//!
//! **Submit.** A [`Thread`] is an in-order queue of tasks. A call such as [`Thread::write`] checks
//! ranges and abilities, makes a borrowed description of the task (`work`) and hands it to the
//! queue (`queue`), which the OS thread that used it last enters by plain stores (`owned`). If
//! nothing before it is left, it runs right there, and nothing is stored or counted up. Otherwise
//! it is stored with what it needs (handles of regions, imports, channels).
//!
//! **Run.** `runner` takes the task at the head as far as it goes. Memory of this side, and of a
//! peer where the link maps it, is copied or reduced with loads and stores (`memory`, `copy`,
//! `reduce`); whether past the caches is learnt for each channel (`hand_over`). Everything else
//! becomes descriptors for the transport: what it does not do at once is kept track of as *in
//! flight*, together with handles of the memory it uses. Tasks that would see or spoil something in
//! flight wait for it; the others go on, so writes and records of one channel are pipelined.
//!
//! **Notify.** A record follows everything earlier on its channel. Where the link maps the word at
//! which the peer waits and nothing is in flight, it is a store; otherwise a descriptor. The word
//! counts records; [`Channel`] keeps how many of them a wait has taken. Notifies of threads are the
//! same, inside a process.
//!
//! **Messages and packets.** Over mapped memory there are two ways in which bytes bring the news of
//! themselves: a [`MessageLink`] carries messages through rings of cells (`message`), and the
//! packets of a program have payload and flag in one cache line (`packet`).
//!
//! **Wake.** A task that cannot go on says why, and its queue is left on the list of its OS thread
//! (`driver`). Any later call of that OS thread runs what can run on its list, and
//! [`Thread::synchronize`] does so until one queue is empty: rounds of running queues and moving
//! devices on, with pauses of the one waiter of the process between them. Before it sleeps, the
//! waiter asks once more whether any head could go on; a record, an abort or a peer's bell wakes
//! it. After each sleep come the questions that no bell announces: do the peers live
//! ([`Peers::check`]), do the links work, has the deadline passed.
//!
//! **Work beside.** With the engine [`CpuTs`](Engine::CpuTs), `worker` does all that instead of the
//! caller, whose calls end when a task is in the `inbox`.
//!
//! **Fail.** The first failure of a thread is its last task: it is explained by the layer above
//! ([`Peers::explain`]: this crate knows labels, no ranks), stays as the first cause, and is the
//! answer to every later call. Nothing that was queued runs.
//!
//! A [`Program`] is a list of tasks that was checked and bound once. A run of it is one entry of a
//! queue, replayed without checks of each task and without memory from the heap.
//!
//! # Example
//!
//! Two sides in one process, connected by a transport that has been loaded before: the second one
//! waits for what the first one writes.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use hcomm_data::{Channel, Domain, Engine, Peers, RemoteSlice, Slice, Thread};
//! use hcomm_transport::{LoadOptions, Selection, SystemWaiter, Transports, WaitPolicy};
//! use hcomm_types::{Error, Rank, Result};
//!
//! /// The layer above: here, the label of a channel is the rank of the peer.
//! struct Ranks;
//!
//! impl Peers for Ranks {
//!     fn check(&self) -> Result<()> {
//!         Ok(())
//!     }
//!     fn explain(&self, label: u32, error: Error) -> Error {
//!         error.blame_rank(Rank(label))
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! # let table = hcomm_transport_loop::transport_v1();
//! # let mut options = LoadOptions::new(vec![table], hcomm_data::reduce_kernel);
//! # options.selection = Selection::Only(vec!["loop".to_owned()]);
//! # let transports = Transports::load(&options)?;
//! # let device = transports.used().next().expect("it is linked in").devices()?[0].open()?;
//! # let ends = [device.create_channel(1, 16)?, device.create_channel(1, 16)?];
//! # let blobs = [ends[0].blob()?, ends[1].blob()?];
//! # let mut connecting = [ends[0].connect(blobs[1].clone()), ends[1].connect(blobs[0].clone())];
//! # // Both ends are polled in each round: `any` would stop at the first one.
//! # while connecting.iter_mut().filter_map(|c| c.poll().is_pending().then_some(())).count() > 0 {}
//! let regions = [device.allocate(4096)?, device.allocate(4096)?];
//! let mut importing = ends[0].import(regions[1].export()?);
//! # let import = loop {
//! #     if let std::task::Poll::Ready(import) = importing.poll() { break import? }
//! # };
//! let waiter = Arc::new(SystemWaiter::new(WaitPolicy::default())?);
//! let domain = Domain::new(waiter, Arc::new(Ranks), Duration::from_secs(60));
//! let (first, second) = (
//!     Channel::new(ends[0].clone(), 1)?,
//!     Channel::new(ends[1].clone(), 0)?,
//! );
//! let (source, target) = (
//!     Slice::new(&regions[0], 0, 5)?,
//!     Slice::new(&regions[1], 0, 5)?,
//! );
//! source.copy_from(b"hello")?;
//!
//! let receiver = Thread::new(&domain, Engine::Cpu, 0)?;
//! receiver.wait(&second, 0)?; // blocked, so it is queued
//! let sender = Thread::new(&domain, Engine::Cpu, 0)?;
//! sender.write_with_notify(&first, &RemoteSlice::new(&import, 0, 5)?, &source, 0)?;
//! receiver.synchronize(None)?;
//!
//! let mut found = [0; 5];
//! target.copy_to(&mut found)?;
//! assert_eq!(&found, b"hello");
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod channel;
#[allow(unsafe_code)]
mod copy;
mod domain;
mod driver;
mod failure;
mod hand_over;
mod inbox;
mod lent;
mod looks;
#[allow(unsafe_code)]
mod memory;
mod message;
#[allow(unsafe_code)]
mod owned;
#[allow(unsafe_code)]
mod packet;
mod program;
mod queue;
#[allow(unsafe_code)]
mod reduce;
#[allow(unsafe_code)]
mod ring;
mod runner;
#[cfg(test)]
mod sizes;
mod slice;
mod thread;
mod work;
mod worker;

pub use channel::Channel;
pub use copy::{Hint, MOST_CACHED_BYTES, copy};
pub use domain::{Domain, Peers};
pub use lent::LENT_BYTES;
pub use memory::Buffers;
pub use message::{Label, MessageLink};
pub use packet::{PACKET_LINE_BYTES, PACKET_PAYLOAD_BYTES, PacketLines, packet_lines};
pub use program::{At, Op, Program, ProgramLink, ProgramParts, SlotKind, Turn};
pub use reduce::{reduce, reduce_kernel, vector_level};
pub use slice::{Memory, RemoteSlice, Slice};
pub use thread::{Engine, Exchange, Mark, Thread};
pub use work::BatchOp;
pub use worker::CpuTs;
