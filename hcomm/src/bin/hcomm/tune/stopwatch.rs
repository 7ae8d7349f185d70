//! How long an operation takes, again and again.

use std::time::Instant;

use hcomm::Communicator;
use hcomm_coll::plan::{Plan, Shape};
use hcomm_data::Buffers;
use hcomm_types::{ReduceOp, Result};

/// Seconds that a group of operations should take: short, so that some groups are left alone by
/// whatever else runs. The fastest group counts, as what disturbs takes time and gives none.
const SPAN: f64 = 0.0003;
/// Seconds that an operation is measured for, and the fewest groups.
const BUDGET: f64 = 0.045;
const FEWEST: u32 = 6;
/// Times that two plans take turns.
const TURNS: u32 = 3;
/// No more operations a group than this.
const MOST: u64 = 20_000;

/// Buffers that are large enough for every shape so far, and a clock.
pub(super) struct Stopwatch<'a> {
    comm: &'a Communicator,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl<'a> Stopwatch<'a> {
    pub(super) const fn new(comm: &'a Communicator) -> Self {
        Self {
            comm,
            input: Vec::new(),
            output: Vec::new(),
        }
    }

    /// Nanoseconds of a plan.
    ///
    /// # Errors
    /// If it does not run.
    pub(super) fn plan(&mut self, plan: &Plan) -> Result<f64> {
        self.comm.use_plan(Some(plan))?;
        let time = self.shape(&plan.shape);
        self.comm.use_plan(None)?;
        time
    }

    /// Nanoseconds that one plan takes longer than another. Both run in turn, so that what disturbs
    /// for a while disturbs both.
    ///
    /// # Errors
    /// If one does not run.
    pub(super) fn added(&mut self, without: &Plan, with: &Plan) -> Result<f64> {
        let mut best = [f64::INFINITY; 2];
        for _ in 0..TURNS {
            for (plan, best) in [without, with].into_iter().zip(&mut best) {
                self.comm.use_plan(Some(plan))?;
                *best = best.min(self.best(&plan.shape, TURNS)?);
            }
        }
        self.comm.use_plan(None)?;
        Ok(best[1] - best[0])
    }

    /// Nanoseconds of an operation, the way that it goes now, on the slowest rank. The same answer
    /// on all ranks.
    ///
    /// # Errors
    /// If it does not run.
    pub(super) fn shape(&mut self, shape: &Shape) -> Result<f64> {
        self.best(shape, 1)
    }

    /// For one of so many turns.
    fn best(&mut self, shape: &Shape, turns: u32) -> Result<f64> {
        let rank = self.comm.rank();
        let (input, output) = (shape.input_bytes(rank), shape.output_bytes(rank));
        for (buffer, bytes) in [(&mut self.input, input), (&mut self.output, output)] {
            if (buffer.len() as u64) < bytes {
                // Not zero: pages of zeros may all be one page.
                buffer.resize(bytes as usize, 1);
            }
        }
        let mut run = |times: u64| -> Result<f64> {
            self.comm.barrier()?;
            let start = Instant::now();
            for _ in 0..times {
                let buffers = if shape.in_place {
                    Buffers::InPlace {
                        buffer: &mut self.output[..input.max(output) as usize],
                        input_offset: 0,
                        input_bytes: input as usize,
                        output_offset: 0,
                        output_bytes: output as usize,
                    }
                } else {
                    Buffers::Separate {
                        input: &self.input[..input as usize],
                        output: &mut self.output[..output as usize],
                    }
                };
                self.comm.execute("tune", shape, buffers)?;
            }
            let mut spent = [start.elapsed().as_secs_f64() / times as f64];
            self.comm.all_reduce_in_place(&mut spent, ReduceOp::Max)?;
            Ok(spent[0])
        };
        let cold = run(1)?;
        let once = if cold > SPAN { cold } else { run(3)? };
        let times = ((SPAN / once) as u64).clamp(1, MOST);
        let (mut best, mut spent, mut groups) = (once, 0.0, 0);
        // All ranks have the same times, and so stop together.
        while spent < BUDGET / f64::from(turns) || groups < FEWEST / turns {
            let time = run(times)?;
            best = best.min(time);
            spent += time * times as f64;
            groups += 1;
        }
        Ok(best * 1e9)
    }
}
