//! A transport that was built against tables in which one field has another type of the same
//! size: every number in its headers fits, and only the Rust door can tell.
//!
//! It never gets to run. Its entries are those of the loop transport, from that one's own source.

#![deny(unsafe_code)]

mod door;
/// The tables of the ABI with `numa_node` unsigned; `build.rs` makes them.
pub mod tables {
    #![allow(unsafe_code)]
    include!(concat!(env!("OUT_DIR"), "/tables.rs"));
}

#[path = "../../../../loop/src/channel.rs"]
mod channel;
#[path = "../../../../loop/src/device.rs"]
mod device;
#[path = "../../../../loop/src/export.rs"]
mod export;
#[path = "../../../../loop/src/ops.rs"]
mod ops;
#[path = "../../../../loop/src/region.rs"]
mod region;
#[path = "../../../../loop/src/sys.rs"]
mod sys;

pub use export::Loop;
