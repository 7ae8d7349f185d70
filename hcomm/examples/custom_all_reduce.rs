//! An algorithm of one's own, proven and raced against those that are built in:
//! `cargo run --release -p hcomm --example custom_all_reduce -- 4`.
//!
//! `Chain` passes partial results from rank to rank and the result back. That is as slow as it
//! sounds; what matters here is that it is a type with one function, that the verifier proves its
//! plan before a byte moves, and that calls need not know of it.

use std::thread;
use std::time::Instant;

use hcomm::algorithms::{Algorithm, Params, PlanError, algorithms};
use hcomm::plan::{Loc, Operation, RankPlan, Shape, Task};
use hcomm::prelude::*;
use hcomm::{Error, Result};

/// Up the ranks, and down again.
struct Chain;

/// Notify of the way up, and of the way down.
const UP: u32 = 0;
const DOWN: u32 = 1;

impl Algorithm for Chain {
    fn name(&self) -> &'static str {
        "chain"
    }

    fn summary(&self) -> &'static str {
        "partial results go up the ranks, the result down; an example"
    }

    fn supports(&self, shape: &Shape) -> bool {
        shape.operation == Operation::AllReduce && shape.ranks > 1 && shape.count_bytes() > 0
    }

    fn plan_rank(
        &self,
        shape: &Shape,
        params: &Params,
        rank: Rank,
    ) -> std::result::Result<RankPlan, PlanError> {
        shape.validate()?;
        if !self.supports(shape) {
            return Err(PlanError::Unsupported {
                algorithm: self.name(),
                operation: shape.operation.name(),
            });
        }
        let (bytes, count) = (shape.count_bytes(), shape.count.largest());
        // What comes up arrives in the first half of the scratch memory, the result in the second.
        let (partial, result) = (Loc::scratch(0), Loc::scratch(bytes));
        let scratch_bytes = 2 * bytes;
        if scratch_bytes > params.scratch_bytes {
            return Err(PlanError::Scratch {
                algorithm: self.name(),
                need: scratch_bytes,
                limit: params.scratch_bytes,
            });
        }
        let (input, output) = (Loc::input(0), Loc::output(0));
        let write = |peer: u32, dst: Loc, src: Loc, notify: u32| Task::Write {
            peer: Rank(peer),
            dst,
            src,
            bytes,
            notify: Some(notify),
        };
        let wait = |peer: u32, notify: u32| Task::Wait {
            peer: Rank(peer),
            notify,
        };
        let (me, last) = (rank.0, shape.ranks - 1);
        let mut tasks = Vec::new();
        if me > 0 {
            tasks.push(wait(me - 1, UP));
            tasks.push(Task::Reduce {
                dst: output,
                a: partial,
                b: input,
                count,
            });
        }
        if me < last {
            let so_far = if me > 0 { output } else { input };
            tasks.push(write(me + 1, partial, so_far, UP));
            tasks.push(wait(me + 1, DOWN));
            tasks.push(Task::Copy {
                dst: output,
                src: result,
                bytes,
            });
        }
        if me > 0 {
            tasks.push(write(me - 1, result, output, DOWN));
        }
        Ok(RankPlan {
            threads: vec![tasks],
            scratch_bytes,
        })
    }
}

const ROUNDS: u32 = 50;

fn main() -> Result<()> {
    let ranks = match std::env::args().nth(1).map(|word| word.parse()) {
        None => 2,
        Some(Ok(ranks @ 2..=64)) => ranks,
        Some(_) => {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "give a number of ranks from 2 to 64",
            ));
        }
    };
    let comms = Communicator::init_all(ranks)?;
    thread::scope(|scope| {
        let threads: Vec<_> = comms
            .into_iter()
            .map(|comm| scope.spawn(move || race(comm)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a rank panicked"))
    })
}

/// What one rank does. Rank 0 prints.
pub(crate) fn race(comm: Communicator) -> Result<()> {
    let says = comm.rank() == Rank(0);
    if says {
        println!(
            "{:>8}  {:<20} {:>9}  wrong",
            "bytes", "algorithm", "time us"
        );
    }
    for count in [2, 1000, 30_000] {
        let shape = comm.shape(
            Operation::AllReduce,
            count,
            DataType::I32,
            ReduceOp::Sum,
            false,
        );
        let params = Params {
            scratch_bytes: comm.layout().half_bytes(),
            slice_bytes: 256 << 10,
            groups: None,
            flows: 1,
        };
        let plan = Chain
            .plan(&shape, &params)
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))?;
        // This proves the plan, and refuses one that is wrong.
        comm.use_plan(Some(&plan))?;
        lap(&comm, &shape)?;
        comm.use_plan(None)?;
        for algorithm in algorithms() {
            if algorithm.supports(&shape) && (comm.maps_all() || !algorithm.has_packets()) {
                comm.force_algorithm(Some(algorithm.name()))?;
                lap(&comm, &shape)?;
            }
        }
        comm.force_algorithm(None)?;
    }
    comm.close()
}

/// Runs what a call of this shape gets now, and checks the results.
fn lap(comm: &Communicator, shape: &Shape) -> Result<()> {
    let (rank, size) = (comm.rank().0 as i32, comm.size() as i32);
    let count = shape.count.largest() as usize;
    let input: Vec<i32> = (0..count as i32).map(|i| i * (rank + 1)).collect();
    // The ranks' factors 1, 2, ... add up.
    let factors = size * (size + 1) / 2;
    let mut output = vec![-1; count];
    let mut wrong = 0u64;
    comm.barrier()?;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        comm.all_reduce(&input, &mut output, ReduceOp::Sum)?;
    }
    let microseconds = start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS);
    for (i, element) in output.iter().enumerate() {
        wrong += u64::from(*element != i as i32 * factors);
    }
    let mut worst = [microseconds];
    comm.all_reduce_in_place(&mut worst, ReduceOp::Max)?;
    let mut all_wrong = [wrong];
    comm.all_reduce_in_place(&mut all_wrong, ReduceOp::Sum)?;
    if comm.rank() == Rank(0) {
        println!(
            "{:>8}  {:<20} {:>9.2}  {}",
            shape.count_bytes(),
            comm.algorithm(shape)?,
            worst[0],
            all_wrong[0]
        );
    }
    if all_wrong == [0] {
        Ok(())
    } else {
        Err(Error::new(
            ErrorKind::Internal,
            format!("{} wrong elements", all_wrong[0]),
        ))
    }
}
