//! TCP sockets between hosts, between processes of one host, and inside a process.
//!
//! One device is one address of this host: it listens there, and dials from there. A channel is one
//! connection. Writes, reads, reductions and notifies are frames on it; the receiving side carries them
//! out in its `progress`, in the order in which they were sent, so a notify comes after all that was
//! written before it. Nothing lands without that side's calls: neither promise of passivity is made.
//!
//! A long payload is handed to the kernel from where it lies, and received by the kernel's copy to
//! where it belongs; short ones are copied behind their header, so that a batch leaves in one call.
//! A write is done when the kernel has its bytes. Whether they are visible, only the peer can tell:
//! `flush` asks it.
//!
//! Who connects proves that it was given both ends' blobs (`proof`). A region is asked for by number
//! and key when it is imported; from then on the peer's name for it stands in each frame, valid on this
//! channel only, until the region ends. What names a region that has ended, or goes beyond it, ends
//! the channel, and both ends say why.
//!
//! | file | holds |
//! |---|---|
//! | `export` | [`Tcp`]: the calls of the ABI, each a line or two |
//! | `places` | the devices: addresses of this host |
//! | `device` | an open device: its listener, its channels and regions, who moves them on |
//! | `door` | who connects, until it has said for whom |
//! | `region` | memory of this side, and imports of the peer's |
//! | `line` | where notifies arrive |
//! | `channel` | one end: its state and its end; how it connects |
//! | `proof` | the key of a channel, and the proofs of a greeting |
//! | `outbound`, `ring` | what leaves an end; copied bytes on their way |
//! | `inbound` | what arrives at an end |
//! | `ops` | `post` and `flush` |
//! | `socket` | TCP sockets, and what is asked of them |
//! | `wire` | blobs, greetings and frames, byte by byte |
//! | `sys` | pages, raw bytes, socket calls over them: the unsafe part |
//!
//! A fast call may wait for one call of the other OS thread that uses the channel to end, because each
//! half of it has a lock; no call waits for the network.

#![deny(unsafe_code)]

mod channel;
mod device;
mod door;
mod export;
#[cfg(test)]
mod hostile;
mod inbound;
mod line;
mod ops;
mod outbound;
mod places;
mod proof;
mod region;
mod ring;
mod socket;
mod sys;
mod wire;

pub use channel::Channel;
pub use device::Device;
pub use export::Tcp;
pub use region::{Import, Region};

hcomm_transport_abi::export_transport!(Tcp);
