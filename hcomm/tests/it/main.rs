//! hcomm end to end: real processes and threads, the real command, the built plugin.
//!
//! Tests that need ranks in processes start this same program again with the name of one of the
//! [`programs`]. Every wait has a watchdog: it ends what the test has started and fails with its
//! output. No test looks at how long something took.

#![forbid(unsafe_code)]
// All of this is a test: what fails ends it.
#![allow(clippy::unwrap_used)]

mod abort;
mod batch;
mod bootstrap;
mod clusters;
mod collectives;
mod command_doctor;
mod command_perf;
mod command_perf_plan;
mod command_plan;
mod command_run;
mod command_topo;
mod death;
mod delay;
mod deterministic;
mod examples;
mod hosts;
mod job;
mod large;
mod leaks;
mod messages;
mod mismatch;
mod mixture;
mod mpirun;
mod plans;
mod primitives;
mod programs;
mod pull;
mod queues;
mod random;
mod reference;
mod requests;
mod rounds;
mod sample;
mod several;
mod steps;
mod subset;
mod tally;
mod team;
mod transfers;
mod tuning;
mod workers;
