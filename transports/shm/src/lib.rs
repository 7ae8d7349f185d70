//! Shared memory between processes of one host, and between ranks of one process.
//!
//! The one device, `shm0`, moves bytes in four ways; which one is decided when a region is
//! imported:
//!
//! | the peer's memory | the peer is | bytes move by |
//! |---|---|---|
//! | any | in this process | a copy through the plain pointer |
//! | allocated by us | in another process | a copy through a mapping of the same memfd |
//! | brought by the user | in another process | one copy by the kernel (`process_vm_readv`, `process_vm_writev`), where a transfer tried out at connect went well |
//! | the same | the same, where the system forbids that | pieces through a staging ring, applied by the owner's `progress` |
//!
//! Notifies are words in memory that both ends have mapped, one of them as its own segment; two of
//! one index, one each way, share a cache line. The host records there itself while nothing posted
//! is unfinished. Whatever changes such memory rings the peer's bell, which costs two loads while
//! nobody sleeps.
//!
//! Between processes, a Unix socket sets a channel up, carries file descriptors, and tells by its
//! closing that the peer is gone; it carries no data. Nothing has a name: memory is memfd, the
//! listener has an abstract address chosen by the kernel. Who connects must run as the same user
//! (or root) and know the token of the device, which travels in the channel's blob.
//!
//! | file | holds |
//! |---|---|
//! | `export` | the [`Shm`] type: the calls of the ABI, and the promises that its callers make |
//! | `device` | an open device, what is open in it, the devices of this process, the door for peers |
//! | `region` | memory of this side, and imports of the peer's |
//! | `gate` | who is moving bytes of such memory |
//! | `channel` | one end: its state and its end; how it connects; what it asks the peer |
//! | `segment` | the memory of one end: notify lines and ring, byte by byte |
//! | `ops` | `post`, `poll`, `flush`, `progress`, `check` |
//! | `direct` | user memory in one copy: the try-out, the gates, who may be inside them |
//! | `passage` | how both sides pass or close such a gate |
//! | `staging` | the ring in which memory that can be reached in no other way is reached |
//! | `socket` | Unix sockets: listener, frames, descriptors beside them |
//! | `wire` | blobs and socket frames, byte by byte |
//! | `limits` | system limits in words, and memory that is reserved before it is used |
//! | `word` | the words that both sides share, or those of a model |
//! | `sys` | mapped memory, copies, bells: the unsafe part |

#![deny(unsafe_code)]

mod channel;
mod device;
mod direct;
mod export;
mod gate;
#[cfg(test)]
mod hostile;
mod limits;
mod ops;
mod passage;
mod region;
mod segment;
mod socket;
mod staging;
mod sys;
mod wire;
mod word;

pub use channel::Channel;
pub use device::Device;
pub use export::{Shm, transport_v1};
pub use region::{Import, Region};

/// For tests: what a system that forbids the direct way to user memory would do.
#[doc(hidden)]
pub mod hook {
    use core::sync::atomic::Ordering;

    /// Stages user memory on the channels of this device that connect from now on.
    pub fn stage(device: &crate::Device) {
        device.core.stage();
    }

    /// The same for all devices that this process opens from now on.
    pub fn stage_everywhere() {
        crate::device::STAGES.store(true, Ordering::Relaxed);
    }
}
