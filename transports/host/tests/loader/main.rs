//! Finding, refusing and using plugins: built libraries, C files compiled here, linked tables.

#![allow(
    clippy::unwrap_used,
    reason = "clippy lets test functions unwrap, but not what they share"
)]

mod child;
mod folder;
mod once;
mod order;
mod refusals;
mod transfers;
