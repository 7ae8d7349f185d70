//! A transport that is wrong in one way, for the tests of the loader and of the conformance suite.
//!
//! `HCOMM_FAULTY` says in which, when the library is loaded; [`Wrong`] lists the ways. Without it
//! the transport finds no device, so that a program that comes across it leaves it alone.
//!
//! Everything that is not asked to be wrong is the loop transport, from its own source.

#![deny(unsafe_code)]

mod export;
mod faulty;
mod mapped;
mod wrong;

#[path = "../../loop/src/channel.rs"]
mod channel;
#[path = "../../loop/src/device.rs"]
mod device;
#[path = "../../loop/src/ops.rs"]
mod ops;
#[path = "../../loop/src/region.rs"]
mod region;
#[path = "../../loop/src/sys.rs"]
mod sys;
#[path = "../../loop/src/export.rs"]
mod working;

pub use faulty::Faulty;
pub use working::Loop;
pub use wrong::Wrong;
