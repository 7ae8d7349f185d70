//! One rank of a measurement.

use std::thread;
use std::time::Instant;

use hcomm::{Communicator, Options};
use hcomm_types::{Error, ErrorKind, Rank, ReduceOp, Result};

use super::report::{Progress, Row, Table, Times};
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

/// Zeroed memory, or an error where a plain `vec!` would end the process.
///
/// # Errors
/// `LimitReached` if there is not so much.
pub(super) fn buffer(bytes: u64) -> Result<Vec<u8>> {
    let bytes = as_length(bytes)?;
    let mut memory = Vec::new();
    memory.try_reserve_exact(bytes).map_err(|error| {
        Error::new(
            ErrorKind::LimitReached,
            format!("{bytes} bytes for a buffer: {error}"),
        )
        .hint("ask for a smaller -e or fewer ranks")
    })?;
    memory.resize(bytes, 0);
    Ok(memory)
}

/// A length in memory.
///
/// # Errors
/// `InvalidArgument` if it is none on this machine.
pub(super) fn as_length(number: u64) -> Result<usize> {
    usize::try_from(number).map_err(|_| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("{number} is too large for this machine"),
        )
    })
}

fn measure(args: &PerfArgs, comm: &Communicator) -> Result<u8> {
    comm.force_algorithm(args.algo.as_deref())?;
    let leads = comm.rank() == Rank(0);
    let counts = args.counts(comm.size());
    let mut rows: Vec<Row> = Vec::with_capacity(counts.len());
    let mut bench = match args.op {
        PerfOp::Write | PerfOp::Read | PerfOp::WriteNotify | PerfOp::BatchWrite => {
            Some(primitive::Bench::new(args, comm)?)
        }
        _ => None,
    };
    // The first operation makes the channels, so that the head can name the links.
    comm.barrier()?;
    let mut table = Table::new(args);
    if leads {
        table.head(comm)?;
    }
    let progress = leads.then(Progress::new);
    let start = Instant::now();
    for (number, &count) in counts.iter().enumerate() {
        let plan = match &mut bench {
            Some(bench) => bench.plan(args, count)?,
            None => collective::plan(args, comm, count)?,
        };
        if let Some(progress) = &progress {
            progress.size(number + 1, counts.len(), plan.bytes, start.elapsed());
        }
        let (row, go_on) = measure_size(args, comm, plan, &table)?;
        if let Some(progress) = &progress {
            progress.before_row();
            table.row(&row)?;
        }
        rows.push(row);
        if !go_on {
            break;
        }
    }
    drop(progress);
    if leads {
        table.publish(comm, &rows)?;
    }
    Ok(u8::from(rows.iter().any(|row| row.wrong > 0)))
}

/// The row of a size, and whether another one is wanted.
fn measure_size(
    args: &PerfArgs,
    comm: &Communicator,
    mut plan: Plan<'_>,
    table: &Table<'_>,
) -> Result<(Row, bool)> {
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
    let wrong = if args.checks() { plan.case.wrong()? } else { 0 };
    // Only the rank that prints knows that nobody reads; all have to stop together.
    let mut sums = [wrong, u64::from(table.is_in_vain())];
    comm.all_reduce_in_place(&mut sums, ReduceOp::Sum)?;
    let [wrong, in_vain] = sums;
    let times = Times::new(seconds);
    let algbw = times.gigabytes_per_second(plan.moved);
    let row = Row {
        bytes: plan.bytes,
        count: plan.count,
        algorithm: plan.algorithm,
        iters: args.iterations,
        time_us: times,
        algbw_gbps: algbw,
        busbw_gbps: algbw * plan.bus_factor,
        wrong,
    };
    Ok((row, in_vain == 0))
}
