//! The cost model: how long a plan takes, and which way an operation goes.
//!
//! A [`Machine`] says what things cost: news between cores, bytes by who had them last and how far
//! they are from a core's caches, arithmetic, changes of ranks on a core. Its numbers are built in or
//! come from a tuning file (`hcomm tune`). A [`Site`] says where ranks run and what joins them.
//! [`predict()`] runs the tasks of all ranks of a plan in virtual time with these costs, so it holds
//! for every algorithm and for plans of the program's own. A [`Chooser`] compares all ways of a shape
//! and takes the fastest.
//!
//! Times are whole picoseconds, and no floats are used, so that all ranks of a communicator, which
//! hold the same numbers, choose alike.

mod choose;
mod footprint;
mod here;
mod machine;
mod predict;
mod site;
mod turns;

pub(crate) use choose::step_of;
pub use choose::{Candidate, Chooser, Comparison, Excluded, Means, STREAM, Terms};
pub use machine::{MAX_TUNING_BYTES, Machine, MachineFormat, Memory, Signals};
pub use predict::{Prediction, Spent, Stuck, predict};
pub use site::{Reach, Site};
pub use turns::{Change, Turn};
