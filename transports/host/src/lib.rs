//! Transports from the host's side.
//!
//! * [`Transports`] finds plugins, loads and checks them, and says of each whether it is used or
//!   why it was refused.
//! * [`Device`], [`Region`], [`Channel`] and [`Import`] are the handles of a plugin's objects.
//!   They own what they need, so they may be dropped in any order. This is the only crate that
//!   calls the tables. Where a link maps the peer's notifies, [`Channel::record`] stores there
//!   itself.
//! * [`Waiter`] is the one place where the library sleeps, and the clock beside it. [`Bell`] is
//!   what wakes it. [`barrier`] is why ringing it needs no fence. [`FutexWord`] is for measurements:
//!   the kernel's sleep and wake without all that.
//!
//! Nothing is ever unloaded: thread-locals of a library keep it alive in ways that no unloader can
//! see, so a loaded plugin stays until the process ends.

pub mod barrier;
mod bell;
mod channel;
mod counts;
mod device;
mod find;
mod floor;
mod load;
mod plugin;
mod raw;
mod region;
#[cfg(feature = "rust-door")]
mod rust_door;
#[doc(hidden)]
pub mod sync;
mod transports;
mod waiter;
mod words;

pub use bell::Bell;
pub use channel::{Channel, Connecting, Descriptor, Importing, NotifyWord, Posted};
pub use device::{Capabilities, Device, DeviceInfo, Lane};
pub use floor::FutexWord;
pub use plugin::{Plugin, Source};
pub use region::{Import, Region, UserMemory, WeakRegion};
pub use transports::{Candidate, LoadOptions, Outcome, Selection, SelectionError, Transports};
pub use waiter::{Interest, Paused, Phase, SystemWaiter, WaitPolicy, Waiter, Watch};

/// Function pointer of the reduce kernel that plugins call; see
/// [`HostV1::reduce`](hcomm_transport_abi::HostV1::reduce).
pub type ReduceKernel = unsafe extern "C" fn(
    dst: *mut std::ffi::c_void,
    a: *const std::ffi::c_void,
    b: *const std::ffi::c_void,
    count: u64,
    dtype: u32,
    redop: u32,
) -> i32;
