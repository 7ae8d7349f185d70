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
    Aborter, DEFAULT_BUFFER_BYTES, Identity, JobKey, Launcher, Layout, MIN_BUFFER_BYTES,
    Membership, Outside, ParseRootError, ParseRootInfoError, PeerLink, RemoteMemory, RootAddress,
    RootInfo, RootListener, Settings, Step, Surroundings, VARIABLES, Variable,
};
pub use hcomm_data::{BatchOp, Buffers, Channel, Domain, Engine, RemoteSlice, Slice, Thread};
pub use hcomm_topo::{Choice, EndpointFacts, HostFacts, Layer, Link, RankGraph, TopologyType};
pub use hcomm_transport::{
    Candidate, Capabilities, Device, DeviceInfo, Import, Outcome, Plugin, Region, Source,
    Transports,
};
pub use hcomm_types::{
    Blame, DataType, Element, Error, ErrorKind, Protocol, Rank, ReduceOp, Result, bf16, f16,
};

/// What most programs need.
pub mod prelude {
    pub use crate::{Communicator, DataType, ErrorKind, Options, Rank, ReduceOp};
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
