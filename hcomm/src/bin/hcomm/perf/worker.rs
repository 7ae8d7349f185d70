//! One rank of a measurement.

use std::thread;
use std::time::Instant;

use hcomm::{Communicator, Options};
use hcomm_types::{Error, ErrorKind, Rank, ReduceOp, Result};

use super::report::{self, Progress, Row, Times};
use super::{PerfArgs, PerfOp, collective, primitive};

/// As a rank of a launcher's job.
///
/// # Errors
/// What failed.
pub(super) fn as_rank(args: &PerfArgs) -> Result<u8> {
    let comm = Communicator::from_env_with(&options(args)?)?;
    let code = measure(args, &comm)?;
    comm.close()?;
    Ok(code)
}

/// As all ranks, one a thread.
///
/// # Errors
/// The first failure.
pub(super) fn as_threads(args: &PerfArgs, ranks: u32) -> Result<u8> {
    let comms = Communicator::init_all_with(ranks, &options(args)?)?;
    thread::scope(|scope| {
        let threads: Vec<_> = comms
            .into_iter()
            .map(|comm| {
                scope.spawn(move || {
                    let code = measure(args, &comm)?;
                    comm.close()?;
                    Ok(code)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread.join().unwrap_or_else(|_| {
                    Err(Error::new(ErrorKind::Internal, "a rank's thread panicked"))
                })
            })
            .try_fold(0, |worst: u8, code| Ok(worst.max(code?)))
    })
}

fn options(args: &PerfArgs) -> Result<Options> {
    let options = Options::from_env()?;
    Ok(match &args.links {
        Some(links) => options.transports(links),
        None => options,
    })
}

/// What one size needs: a piece of work to repeat, and a check of its result.
pub(super) trait Case {
    /// Does the operation once.
    fn run(&mut self) -> Result<()>;

    /// Does it once more on fresh buffers and counts wrong elements on this rank.
    fn wrong(&mut self) -> Result<u64>;

    /// Operations that one `run` stands for: 2 for a round trip whose half is of interest.
    fn operations(&self) -> u32 {
        1
    }
}

/// What is known of a size before it runs.
pub(super) struct Plan<'a> {
    pub(super) case: Box<dyn Case + 'a>,
    /// Bytes as the table shows them.
    pub(super) bytes: u64,
    /// Elements as the table shows them.
    pub(super) count: u64,
    /// Bytes that count for the algorithm bandwidth.
    pub(super) moved: u64,
    /// Bus bandwidth over algorithm bandwidth.
    pub(super) bus_factor: f64,
    pub(super) algorithm: String,
}

fn measure(args: &PerfArgs, comm: &Communicator) -> Result<u8> {
    comm.force_algorithm(args.algo.as_deref())?;
    let leads = comm.rank() == Rank(0);
    let sizes = args.sizes();
    let mut rows = Vec::with_capacity(sizes.len());
    let mut bench = match args.op {
        PerfOp::Write | PerfOp::Read | PerfOp::WriteNotify | PerfOp::BatchWrite => {
            Some(primitive::Bench::new(args, comm)?)
        }
        _ => None,
    };
    // The first operation makes the channels, so that the head can name the links.
    comm.barrier()?;
    if leads {
        report::print_head(args, comm);
    }
    let progress = Progress::new();
    let start = Instant::now();
    for (number, &size) in sizes.iter().enumerate() {
        if leads {
            progress.size(number + 1, sizes.len(), size, start.elapsed());
        }
        let plan = match &mut bench {
            Some(bench) => bench.plan(args, size)?,
            None => collective::plan(args, comm, size)?,
        };
        let row = measure_size(args, comm, plan)?;
        if leads {
            report::print_row(args, &row);
        }
        rows.push(row);
    }
    if leads {
        progress.end();
        return report::publish(args, comm, &rows);
    }
    Ok(u8::from(rows.iter().any(|row| row.wrong > 0)))
}

fn measure_size(args: &PerfArgs, comm: &Communicator, mut plan: Plan<'_>) -> Result<Row> {
    for _ in 0..args.warmup {
        plan.case.run()?;
    }
    comm.barrier()?;
    let operations = f64::from(plan.case.operations());
    let mut seconds = Vec::with_capacity(args.iterations as usize);
    for _ in 0..args.iterations {
        let start = Instant::now();
        plan.case.run()?;
        seconds.push(start.elapsed().as_secs_f64() / operations);
    }
    // An operation takes as long as on its slowest rank.
    comm.all_reduce_in_place(&mut seconds, ReduceOp::Max)?;
    let mut wrong = [if args.checks() { plan.case.wrong()? } else { 0 }];
    comm.all_reduce_in_place(&mut wrong, ReduceOp::Sum)?;
    let times = Times::new(seconds);
    let algbw = times.gigabytes_per_second(plan.moved);
    Ok(Row {
        bytes: plan.bytes,
        count: plan.count,
        algorithm: plan.algorithm,
        iters: args.iterations,
        time_us: times,
        algbw_gbps: algbw,
        busbw_gbps: algbw * plan.bus_factor,
        wrong: wrong[0],
    })
}
