//! The plugin ABI of hcomm.
//!
//! A *transport* is a plugin that serves one kind of link. It hands the host one table of C
//! functions, [`TransportV1`]; opening a device yields a second one, [`DataOpsV1`], with the calls
//! that carry data. Where a link lets the host reach the peer's notifies, [`PeerV1`] tells it
//! where, and records need no call. Five nouns cover everything: transport, device, region
//! (registered memory), import (a peer's region seen from here), channel (one end of a connection).
//!
//! * [`tables`] holds the tables. `include/hcomm_transport.h` is generated from it and is all that
//!   a plugin written in C needs.
//! * [`transport`] is the Rust way to fill them: implement [`Transport`] in safe code and write
//!   [`export_transport!`] once. It exports the C symbol `hcomm_transport_v1` and, with the feature
//!   `rust-door`, an abi_stable root module that returns the same table.
//!
//! This crate depends on no other crate of hcomm: a vendor needs it, or only the header.

pub mod shims;
pub mod tables;
pub mod transport;

#[doc(inline)]
pub use tables::*;
pub use transport::{
    ChannelOptions, Connect, DeviceAttributes, Fault, Host, Imported, Posted, Transport,
};

#[cfg(feature = "rust-door")]
#[doc(hidden)]
pub use abi_stable;
