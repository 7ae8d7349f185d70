//! Communication between ranks: processes or threads, on one host or many, over links that are
//! plugins.
//!
//! ```no_run
//! use hcomm::prelude::*;
//!
//! fn main() -> hcomm::Result<()> {
//!     let comm = Communicator::from_env()?; // under `hcomm run`, torchrun, mpirun or srun
//!     let mine = vec![comm.rank().0 as f32; 1000];
//!     let mut sum = vec![0.0; 1000];
//!     comm.all_reduce(&mine, &mut sum, ReduceOp::Sum)?;
//!     if comm.rank() == Rank(0) {
//!         println!("the ranks add up to {}", sum[0]);
//!     }
//!     comm.close()
//! }
//! ```
//!
//! [`Communicator`] is the way in. It dereferences to the collectives
//! ([`hcomm_coll::Communicator`]) and these to the control plane ([`Membership`]): rank graph,
//! memory, threads, channels. The data plane is re-exported from `hcomm-data`: [`Thread`],
//! [`Slice`], [`Channel`].
//!
//! # One-sided transfers
//!
//! A window is symmetric memory: as many bytes on every rank, which every rank reaches. Two ranks
//! write into each other's, and each waits for the notify that says that the bytes are there:
//!
//! ```
//! use hcomm::{Communicator, Rank};
//!
//! fn exchange(comm: Communicator) -> hcomm::Result<()> {
//!     let peer = Rank(1 - comm.rank().0);
//!     let window = comm.window("numbers", 4096)?; // on all ranks
//!     let link = comm.open_channel(peer, 1)?; // on both ranks: one notify each way
//!     let thread = comm.thread(0)?; // an in-order queue
//!
//!     // A program's own memory takes part without a copy in between.
//!     let mut mine = comm.register("mine", vec![comm.rank().0 as f32; 1024])?;
//!     thread.write_with_notify(&link.channel, window.of(peer)?, mine.slice()?, 0)?;
//!     thread.wait(&link.channel, 0)?;
//!     thread.synchronize(None)?; // the peer's numbers are in `window.local()`
//!     assert_eq!(mine.deregister()?[0], comm.rank().0 as f32);
//!
//!     // Where the link maps it, the peer's memory is an address, and a copy moves its bytes.
//!     if window.address_of(peer).is_some() {
//!         let here = comm.allocate("here", 4)?;
//!         thread.copy(&here, &window.of(peer)?.sub(0..4)?)?;
//!         thread.synchronize(None)?;
//!     }
//!     comm.close()
//! }
//!
//! # fn main() -> hcomm::Result<()> {
//! // Ranks as threads of one process; under a launcher it is `Communicator::from_env`.
//! let ranks = Communicator::init_all(2)?;
//! std::thread::scope(|scope| {
//!     for comm in ranks {
//!         scope.spawn(move || exchange(comm).unwrap());
//!     }
//! });
//! # Ok(())
//! # }
//! ```
//!
//! # Beside computation, and in groups
//!
//! What is put on a thread is done beside the program where a worker drives it, and its handle tells
//! when; on a thread of the engine `Cpu` it goes on in any call of its OS thread. Several may be in
//! flight; collectives of one communicator follow each other in call order.
//!
//! ```
//! use hcomm::{Communicator, CpuTs, DataType, Engine, Reduction};
//!
//! fn average(comm: Communicator) -> hcomm::Result<()> {
//!     let thread = comm.thread_on(Engine::CpuTs(CpuTs::worker(0)), 0)?;
//!     let mut numbers = comm.register("numbers", vec![comm.rank().0 as f32; 1000])?;
//!     let slice = numbers.slice()?;
//!     let request = comm.all_reduce_on(&thread, slice, slice, DataType::F32, Reduction::Avg)?;
//!     // ... compute ...
//!     request.wait()?;
//!     assert_eq!(numbers.deregister()?[0], 0.5);
//!
//!     // Communicators of some ranks are as any others.
//!     let alone = comm.split(Some(comm.rank().0), 0)?.expect("every rank has a color");
//!     assert_eq!(alone.size(), 1);
//!     comm.close()
//! }
//!
//! # fn main() -> hcomm::Result<()> {
//! let ranks = Communicator::init_all(2)?;
//! std::thread::scope(|scope| {
//!     for comm in ranks {
//!         scope.spawn(move || average(comm).unwrap());
//!     }
//! });
//! # Ok(())
//! # }
//! ```
//!
//! # Giving up
//!
//! Every wait has a deadline, and an [`Aborter`] ends it from another OS thread, on this rank at
//! once and on the others as soon as they hear of it:
//!
//! ```
//! use hcomm::{Communicator, ErrorKind, Rank};
//!
//! # fn main() -> hcomm::Result<()> {
//! let mut ranks = Communicator::init_all(2)?;
//! let comm = ranks.remove(0);
//! let aborter = comm.aborter();
//! let button = std::thread::spawn(move || aborter.abort("the user has lost patience"));
//! let error = comm.recv(&mut [0u8; 8], Rank(1)).unwrap_err(); // rank 1 sends nothing
//! assert_eq!(error.kind(), ErrorKind::Aborted);
//! # button.join().unwrap();
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod communicator;
mod subset;

pub use communicator::{Communicator, Options, launched, load_transports};
pub use hcomm_coll::{BatchItem, BatchSlice, Elements, Request, algorithms, cost, plan, verify};
pub use hcomm_ctrl::{
    Aborter, Cluster, Counters, DEFAULT_BUFFER_BYTES, Identity, JobKey, Launcher, Layout,
    MIN_BUFFER_BYTES, Membership, Outside, ParseRootError, ParseRootInfoError, PeerLink,
    Registered, RemoteMemory, RootAddress, RootInfo, RootListener, Settings, Step, Surroundings,
    Tuning, VARIABLES, Variable, Window,
};
pub use hcomm_data::{
    BatchOp, Buffers, Channel, CpuTs, Domain, Engine, Mark, Memory, RemoteSlice, Slice, Thread,
};
pub use hcomm_topo::{Choice, EndpointFacts, HostFacts, Layer, Link, RankGraph, TopologyType};
pub use hcomm_transport::{
    Candidate, Capabilities, Device, DeviceInfo, Import, Outcome, Plugin, Region, Source,
    Transports,
};
pub use hcomm_types::{
    Blame, DataType, Element, Error, ErrorKind, Protocol, Rank, ReduceOp, Reduction, Result, bf16,
    f16,
};

/// What most programs need.
pub mod prelude {
    pub use crate::{Communicator, DataType, ErrorKind, Options, Rank, ReduceOp, Reduction};
}

/// Operators of one's own: what [`Thread::run`] runs.
pub mod program {
    pub use hcomm_data::{At, Op, Program, ProgramLink, ProgramParts, SlotKind};
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::VARIABLES;

    #[test]
    fn the_architecture_lists_every_variable() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md");
        let text = fs::read_to_string(file).unwrap();
        let rows: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("| `HCOMM_"))
            .collect();
        let expected: Vec<String> = VARIABLES
            .iter()
            .map(|variable| {
                let names: Vec<String> = variable
                    .known_as
                    .iter()
                    .map(|name| format!("`{name}`"))
                    .collect();
                let cells = [
                    &format!("`{}`", variable.name),
                    variable.meaning,
                    variable.default,
                    &names.join(", "),
                ];
                cells.iter().fold("|".to_owned(), |row, cell| {
                    let gap = if cell.is_empty() { "" } else { " " };
                    format!("{row}{gap}{cell} |")
                })
            })
            .collect();
        assert_eq!(rows, expected, "these rows belong into ARCHITECTURE.md");
    }
}
