//! One rank of a measurement.

use std::thread;
use std::time::Instant;

use hcomm::{Communicator, Options};
use hcomm_types::{Element, Error, ErrorKind, Rank, ReduceOp, Result};

use super::handover::Handover;
use super::report::{Against, Progress, Row, Table, Times, median};
use super::{PerfArgs, PerfOp, collective, local, message, primitive, wake};
use crate::bind::{bind, bound_to};

/// Seconds that a size is measured for, when nobody says how often.
const SPAN: f64 = 0.1;
/// Iterations that are timed one by one or in as many groups: reading the clock costs more than
/// some operations take.
const SAMPLES: u64 = 20;
/// No more iterations than this.
const MOST: u64 = 10_000_000;

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
    let mut cores = args.cores(ranks)?.into_iter();
    let comms = Communicator::init_all_with(ranks, &options(args)?)?;
    thread::scope(|scope| {
        let threads: Vec<_> = comms
            .into_iter()
            .map(|comm| {
                let cores = cores.next();
                scope.spawn(move || {
                    cores.map_or(Ok(()), |cores| bind(&cores))?;
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

    /// Does it so many times.
    fn repeat(&mut self, times: u64) -> Result<()> {
        (0..times).try_for_each(|_| self.run())
    }

    /// Seconds of one operation, of so many iterations.
    fn time(&mut self, iterations: u64) -> Result<f64> {
        let start = Instant::now();
        self.repeat(iterations)?;
        let spent = start.elapsed().as_secs_f64();
        Ok(spent / f64::from(self.operations()) / iterations as f64)
    }

    /// Does it once more on fresh buffers and counts wrong elements on this rank.
    fn wrong(&mut self) -> Result<u64>;

    /// Percent of a core that this rank uses while it waits for the other one for long; none if
    /// that is not what is measured.
    fn idle_percent(&mut self) -> Result<Option<f64>> {
        Ok(None)
    }

    /// Operations that one `run` stands for: 2 for a round trip whose half is of interest, the
    /// messages of a stream.
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
    /// Messages of one operation; none if it does not hand over messages.
    pub(super) messages: Option<u32>,
    pub(super) algorithm: String,
    /// What the cost model says, in microseconds, if it was asked and knows.
    pub(super) predicted_us: Option<f64>,
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
    let leads = comm.rank() == Rank(0);
    let counts = args.counts(comm.size());
    let mut rows: Vec<Row> = Vec::with_capacity(counts.len());
    let mut bench = Bench::new(args, comm)?;
    let other = args.other();
    let mut other_bench = other
        .as_ref()
        .map(|other| Bench::new(other, comm))
        .transpose()?;
    // The first operation makes the channels, so that the head can name the links.
    comm.barrier()?;
    let handover = Handover::new(comm)?;
    let mut table = Table::new(args, cores_of_all(comm)?);
    // What was done so far goes by whatever algorithm.
    comm.force_algorithm(args.algo.as_deref())?;
    comm.force_flows(args.flows)?;
    comm.use_plan(args.loaded.as_deref())?;
    if leads {
        table.head(comm)?;
    }
    let progress = leads.then(Progress::new);
    let start = Instant::now();
    for (number, &count) in counts.iter().enumerate() {
        let plan = bench.plan(args, comm, count)?;
        let against = other
            .as_ref()
            .zip(other_bench.as_mut())
            .map(|(other, bench)| bench.plan(other, comm, count))
            .transpose()?;
        if let Some(progress) = &progress {
            progress.size(number + 1, counts.len(), plan.bytes, start.elapsed());
        }
        let (row, go_on) = measure_size(args, comm, plan, against, handover.as_ref(), &table)?;
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

/// What is kept from size to size.
enum Bench<'a> {
    Primitive(primitive::Bench<'a>),
    Local(local::Bench<'a>),
    Wake(wake::Bench<'a>),
    Message,
    Collective,
}

impl<'a> Bench<'a> {
    fn new(args: &PerfArgs, comm: &'a Communicator) -> Result<Self> {
        Ok(match args.op {
            PerfOp::LocalCopy | PerfOp::LocalReduce => Self::Local(local::Bench::new(args, comm)?),
            PerfOp::Wake | PerfOp::FutexWake => Self::Wake(wake::Bench::new(args, comm)?),
            PerfOp::SendRecv => Self::Message,
            op if op.in_pairs() => Self::Primitive(primitive::Bench::new(args, comm)?),
            _ => Self::Collective,
        })
    }

    fn plan<'b>(
        &'b mut self,
        args: &PerfArgs,
        comm: &'b Communicator,
        count: u64,
    ) -> Result<Plan<'b>> {
        match self {
            Self::Primitive(bench) => bench.plan(args, count),
            Self::Local(bench) => bench.plan(args, count),
            Self::Wake(bench) => Ok(bench.plan()),
            Self::Message => message::plan(args, comm, count),
            Self::Collective => collective::plan(args, comm, count),
        }
    }
}

/// The core of each rank, if all are bound to one.
fn cores_of_all(comm: &Communicator) -> Result<Option<Vec<u32>>> {
    const NONE: u32 = u32::MAX;
    let mine = match bound_to()?[..] {
        [core] => u32::try_from(core).unwrap_or(NONE),
        _ => NONE,
    };
    let mut all = vec![NONE; comm.size() as usize];
    comm.all_gather(&[mine], &mut all)?;
    Ok((!all.contains(&NONE)).then_some(all))
}

/// The row of a size, and whether another one is wanted.
fn measure_size(
    args: &PerfArgs,
    comm: &Communicator,
    mut plan: Plan<'_>,
    mut against: Option<Plan<'_>>,
    handover: Option<&Handover<'_>>,
    table: &Table<'_>,
) -> Result<(Row, bool)> {
    let prepare = |case: &mut dyn Case| {
        case.repeat(args.warmup.into())?;
        args.iterations().map_or_else(
            || iterations_for(args, SPAN, comm, case),
            |iterations| Ok(iterations.into()),
        )
    };
    let iterations = prepare(&mut *plan.case)?;
    let others = match &mut against {
        Some(against) => prepare(&mut *against.case)?,
        None => iterations,
    };
    let handover = || handover.map_or(Ok(None), Handover::nanoseconds);
    let before = handover()?;
    comm.barrier()?;
    let groups = iterations.min(others).min(SAMPLES);
    let group = |all: u64, index: u64| all / groups + u64::from(index < all % groups);
    let (mut seconds, mut others_seconds) = (Vec::new(), Vec::new());
    for index in 0..groups {
        seconds.push(plan.case.time(group(iterations, index))?);
        if let Some(against) = &mut against {
            // In turn, and nobody waits for the other's end within his own time.
            comm.barrier()?;
            others_seconds.push(against.case.time(group(others, index))?);
            comm.barrier()?;
        }
    }
    // An operation takes as long as on its slowest rank.
    agree(args, comm, &mut seconds, ReduceOp::Max)?;
    agree(args, comm, &mut others_seconds, ReduceOp::Max)?;
    let after = handover()?;
    let idle_percent = match plan.case.idle_percent()? {
        Some(percent) => {
            let mut most = [percent];
            agree(args, comm, &mut most, ReduceOp::Max)?;
            Some(most[0])
        }
        None => None,
    };
    let mut wrong = 0;
    if args.checks() {
        wrong += plan.case.wrong()?;
        if let Some(against) = &mut against {
            wrong += against.case.wrong()?;
        }
    }
    // Only the rank that prints knows that nobody reads; all have to stop together.
    let mut sums = [wrong, u64::from(table.is_in_vain())];
    agree(args, comm, &mut sums, ReduceOp::Sum)?;
    let [wrong, in_vain] = sums;
    let against = args
        .against()
        .filter(|_| against.is_some())
        .map(|op| Against {
            op: op.name(),
            ratio: median(
                seconds
                    .iter()
                    .zip(&others_seconds)
                    .map(|(mine, other)| mine / other)
                    .collect(),
            ),
            time_us: Times::new(others_seconds),
        });
    let times = Times::new(seconds);
    let algbw = times.gigabytes_per_second(plan.moved);
    let row = Row {
        bytes: plan.bytes,
        count: plan.count,
        algorithm: plan.algorithm,
        predicted_us: plan.predicted_us,
        iters: iterations,
        time_us: times,
        algbw_gbps: algbw,
        busbw_gbps: algbw * plan.bus_factor,
        msgrate_mps: plan
            .messages
            .map(|messages| f64::from(messages) / times.median),
        idle_percent,
        handover_ns: before.zip(after).map(|(before, after)| before.max(after)),
        against,
        wrong,
    };
    Ok((row, in_vain == 0))
}

/// What the ranks tell each other, by whatever algorithm: the one that is measured may be for another
/// operation.
fn agree<T: Element>(
    args: &PerfArgs,
    comm: &Communicator,
    values: &mut [T],
    op: ReduceOp,
) -> Result<()> {
    comm.force_algorithm(None)?;
    comm.all_reduce_in_place(values, op)?;
    comm.force_algorithm(args.algo.as_deref())
}

/// Iterations that take about so many seconds; the same on all ranks.
fn iterations_for(
    args: &PerfArgs,
    span: f64,
    comm: &Communicator,
    case: &mut dyn Case,
) -> Result<u64> {
    let mut times = 1;
    loop {
        comm.barrier()?;
        let start = Instant::now();
        case.repeat(times)?;
        let mut spent = [start.elapsed().as_secs_f64()];
        agree(args, comm, &mut spent, ReduceOp::Max)?;
        let [spent] = spent;
        if spent >= span / 10.0 || times >= MOST {
            return Ok(((times as f64 * span / spent) as u64).clamp(SAMPLES, MOST));
        }
        times *= 4;
    }
}
