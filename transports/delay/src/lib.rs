//! A link with a latency, inside one process: for measurements and tests of what is built on links.
//!
//! Everything that crosses it takes [`LATENCY_NS`] one way and occupies the line for as long as its
//! bytes take at [`BYTES_PER_S`]: bytes and notifies, the request of a read and its answer, and the
//! acknowledgement that completes a write. Nothing is mapped, so nothing goes another way.
//!
//! | file | holds |
//! |---|---|
//! | `export` | [`Delay`]: the calls of the ABI, each a line or two |
//! | `device` | what the one device is; an opening of it, with its alarm; the registry; blobs |
//! | `region` | memory of this side, and imports of the peer's |
//! | `channel` | one end: its notify lines, its wire, how it connects |
//! | `flight` | the wire: what is on its way, and when it is there |
//! | `ops` | `post`, `poll`, `progress`, and the state of the link |
//! | `sys` | pages and copies: the unsafe part |
//!
//! No thread sleeps here. What is on its way has a time at which it arrives, by the host's clock;
//! the receiving side's `progress` carries out what has arrived, the sending side's `poll` hands
//! out what has been answered. For whoever sleeps, each opening has a timer that is readable when
//! the next thing is there. Bytes are copied once, straight from source to target, when they
//! arrive: a source is in use until its descriptor has completed.
//!
//! Unlike on a link for users, a fast call may wait for a copy of the other side to end, because
//! each wire has a lock.

#![deny(unsafe_code)]

mod channel;
mod device;
mod export;
mod flight;
mod ops;
mod region;
mod sys;

pub use device::{BYTES_PER_S, LATENCY_NS};
pub use export::Delay;

hcomm_transport_abi::export_transport!(Delay);
