//! Plans, verifier, algorithms, collectives.
//!
//! A collective operation is compiled before it runs: an [algorithm](algorithms) turns a
//! [`Shape`](plan::Shape) — which operation, how many ranks, how many elements of which type —
//! into a [`Plan`](plan::Plan), and [`verify`](verify::verify) proves that the plan computes what
//! the shape asks for, in every possible interleaving, before a single byte moves.
//!
//! ```
//! use hcomm_coll::algorithms::{self, Params};
//! use hcomm_coll::plan::{Operation, Shape};
//! use hcomm_coll::verify;
//! use hcomm_types::{DataType, ReduceOp};
//!
//! let shape = Shape {
//!     operation: Operation::AllReduce,
//!     ranks: 4,
//!     count: 1000.into(),
//!     dtype: DataType::F32,
//!     redop: ReduceOp::Sum.into(),
//!     in_place: true,
//! };
//! let params = Params { scratch_bytes: 64 << 10, slice_bytes: 16 << 10, groups: None, flows: 1 };
//! let ring = algorithms::by_name("ring").expect("ring is built in");
//! let mut plan = ring.plan(&shape, &params)?;
//!
//! let proof = verify::verify(&plan)?;
//! assert!(proof.synchronising && proof.same_bits);
//!
//! // A plan that has lost a task is caught, and the finding says where and what.
//! let first = plan.ranks[2].threads[0].remove(0);
//! let finding = verify::verify(&plan).expect_err("a task is missing");
//! println!("without `{first}`: {finding}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod algorithms;
mod bind;
mod communicator;
pub mod cost;
mod fingerprint;
mod fitted;
mod given;
pub mod plan;
mod planner;
pub mod simulate;
pub mod verify;

pub use communicator::{BatchItem, BatchSlice, Communicator, Elements, Request};
pub use planner::SLICE_BYTES;
