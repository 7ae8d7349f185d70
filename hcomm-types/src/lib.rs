//! The words of hcomm.
//!
//! Ranks and identities, data types and reduce operations, protocols, addresses and locations,
//! limits, and the one [`Error`] that crosses crate borders. No I/O, no `unsafe`, no other crate
//! of ours below it.

#![forbid(unsafe_code)]

mod address;
mod dtype;
mod error;
mod limits;
mod rank;
mod time;

pub use address::{Address, Location, Protocol, ProtocolSet};
pub use dtype::{DataType, Element, ParseNameError, ReduceOp, Reduction, bf16, f16};
pub use error::{Blame, Error, ErrorKind, Result};
pub use limits::{
    DEFAULT_CONNECT_TIMEOUT, DEFAULT_EXECUTION_TIMEOUT, MAX_NOTIFIES_PER_THREAD, MAX_PACKET_LINES,
    MAX_THREADS_PER_COMMUNICATOR,
};
pub use rank::{HostId, ProcessId, Rank};
pub use time::{Deadline, Nanos};
