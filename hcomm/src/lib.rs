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

#![forbid(unsafe_code)]

mod communicator;

pub use communicator::{Communicator, Options, launched, load_transports};
pub use hcomm_coll::{algorithms, plan, verify};
pub use hcomm_ctrl::{
    Aborter, Identity, JobKey, Launcher, Membership, Outside, PeerLink, RemoteMemory, RootInfo,
    RootListener, Settings, VARIABLES, Variable,
};
pub use hcomm_data::{BatchOp, Buffers, Channel, RemoteSlice, Slice, Thread};
pub use hcomm_topo::{HostFacts, RankGraph};
pub use hcomm_transport::{Outcome, Plugin, Source, Transports};
pub use hcomm_types::{
    Blame, DataType, Element, Error, ErrorKind, Protocol, Rank, ReduceOp, Result, bf16, f16,
};

/// What most programs need.
pub mod prelude {
    pub use crate::{Communicator, DataType, ErrorKind, Options, Rank, ReduceOp};
}
