//! The smallest complete transport: both ends of every channel are in this process.
//!
//! It is here to be read. Everything that a transport has to do is done, in the simplest way that
//! keeps all promises, and nothing else: copy this crate to begin one of your own.
//!
//! | file | holds |
//! |---|---|
//! | `export` | [`Loop`]: the calls of the ABI, each a line or two |
//! | `device` | what the one device is; an opening of it; the registry in which ends and regions find each other; blobs |
//! | `region` | memory of this side, and imports of the peer's |
//! | `channel` | one end: its notify lines, how it connects |
//! | `ops` | `post`, and the state of the link |
//! | `sys` | pages and copies: the unsafe part |
//!
//! What makes it small: a peer's memory is a plain pointer, so every descriptor is done inside
//! `post` and there is nothing to poll, to flush or to make progress on.

#![deny(unsafe_code)]

mod channel;
mod device;
mod export;
mod ops;
mod region;
mod sys;

pub use export::Loop;

hcomm_transport_abi::export_transport!(Loop);
