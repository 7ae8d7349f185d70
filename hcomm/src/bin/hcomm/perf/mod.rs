//! `hcomm perf`: measures an operation over a row of sizes and checks its results.
//!
//! Started by hand it launches the ranks itself, as processes or with `--threads` as threads of
//! one; started by a launcher it is one rank of the launcher's job. All ranks measure; rank 0
//! collects the slowest rank's times and prints.

mod collective;
mod handover;
mod held;
mod local;
mod message;
mod pattern;
mod primitive;
mod report;
mod wake;
mod worker;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use hcomm_coll::plan::{Count, Plan};
use hcomm_coll::verify::verify;
use hcomm_data::{CpuTs, Engine};
use hcomm_types::{DataType, Error, ErrorKind, Reduction, Result};

use crate::bind::Bind;
use crate::launch::{self, Job};
use crate::plan;
use crate::sizes::{self, Growth, parse_bytes};

/// Measures an operation over a row of sizes. Results are checked element by element; a wrong one
/// makes the exit code 1.
#[derive(Clone, Debug, Args)]
pub(crate) struct PerfArgs {
    /// What to measure
    #[arg(value_enum)]
    op: PerfOp,
    /// Ranks to start on this host [default: 2, or 1 where each works for itself]; under a
    /// launcher the number it must have started
    #[arg(short = 'p', long = "ranks", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: Option<u32>,
    /// Ranks as threads of one process instead of processes
    #[arg(long)]
    threads: bool,
    /// First size, with K, M or G (1024)
    #[arg(short = 'b', long = "begin", default_value = "8K", value_parser = parse_bytes)]
    begin: u64,
    /// Last size
    #[arg(short = 'e', long = "end", default_value = "64M", value_parser = parse_bytes)]
    end: u64,
    /// Factor between sizes
    #[arg(short = 'f', long = "factor", default_value_t = 2, conflicts_with = "step",
          value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// Bytes between sizes, instead of a factor
    #[arg(short = 'i', long = "step", value_parser = parse_bytes)]
    step: Option<u64>,
    /// Measured iterations a size [default: as many as take 0.1 s, but at least 20, and 200 of wake
    /// and futex_wake]. They are timed
    /// in up to 20 groups, each of which gives one time
    #[arg(short = 'n', long = "iterations",
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    iterations: Option<u32>,
    /// Iterations before measuring
    #[arg(short = 'w', long = "warmup", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(..=10_000_000))]
    warmup: u32,
    /// Data type
    #[arg(short = 'd', long = "dtype", default_value = "fp32")]
    dtype: DataType,
    /// Reduce operation: sum, prod, max, min; avg for collectives
    #[arg(short = 'o', long = "redop", default_value = "sum")]
    redop: Reduction,
    /// Root of rooted operations
    #[arg(short = 'r', long = "root", default_value_t = 0)]
    root: u32,
    /// Whether to check results: 1 or 0
    #[arg(short = 'c', long = "check", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(0..=1))]
    check: u8,
    /// Input and output in one buffer
    #[arg(long)]
    in_place: bool,
    /// Transports to use, as in HCOMM_TRANSPORTS
    #[arg(long)]
    links: Option<String>,
    /// Algorithm for all sizes, instead of the cost model's choice
    #[arg(long)]
    algo: Option<String>,
    /// Threads that large collectives flow over [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4))]
    flows: Option<u32>,
    /// Run the plan in this file, which says shape and ranks; all ranks read it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["begin", "end", "factor", "step", "dtype",
          "redop", "root", "in_place", "algo", "against"])]
    plan: Option<PathBuf>,
    /// What is in that file
    #[arg(skip)]
    loaded: Option<Arc<Plan>>,
    /// Engine that drives the queues
    #[arg(long, value_enum, default_value_t = EngineArg::Cpu)]
    engine: EngineArg,
    /// Messages that follow each other before the receiver answers, instead of one: times are
    /// those of one message
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    stream: Option<u32>,
    /// Measure another operation as well, in turn with the first, and show how many times as long
    /// as this one the first takes [default: futex_wake for wake, else none]
    #[arg(long, value_enum, value_name = "OP")]
    against: Option<PerfOp>,
    /// Show beside each time of a collective what the cost model predicts
    #[arg(long)]
    predict: bool,
    /// Memory that data lies in [default: user for collectives and send_recv, else ours]
    #[arg(long, value_enum)]
    memory: Option<Memory>,
    /// The receiver reads every byte that it has received before it answers
    #[arg(long)]
    consume: bool,
    /// Cores of the ranks started here [default: core, unless there is one rank or there are too
    /// few cores]
    #[arg(long, value_enum)]
    bind: Option<Bind>,
    /// Descriptors a batch, for batch_write
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Write the result as JSON to this file; `-` prints it instead of the table
    #[arg(long)]
    json: Option<PathBuf>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum PerfOp {
    /// Element-wise combination for everybody
    AllReduce,
    /// Element-wise combination for the root
    Reduce,
    /// Everybody's input for everybody
    AllGather,
    /// The same of inputs that differ in length
    AllGatherV,
    /// A part of the combination for each
    ReduceScatter,
    /// The same in parts that differ in length
    ReduceScatterV,
    /// The root's data for everybody
    Broadcast,
    /// A part of the root's data for each
    Scatter,
    /// Everybody's input for the root
    Gather,
    /// A part of everybody's input for each
    AllToAll,
    /// The same in parts that differ in length
    AllToAllV,
    /// Rank 0 sends to rank 1, rank 2 to rank 3, ... and back (half round trip)
    SendRecv,
    /// Nobody leaves before everybody has come
    Barrier,
    /// One-sided write and fence, pairs of ranks
    Write,
    /// One-sided read, pairs of ranks
    Read,
    /// Write with notify, ping-pong (half round trip), pairs of ranks
    WriteNotify,
    /// Batches of writes with one notify, pairs of ranks
    BatchWrite,
    /// One-sided combination with the peer's memory and fence, pairs of ranks
    WriteReduce,
    /// One-sided combination of the peer's memory with ours, pairs of ranks
    ReadReduce,
    /// Notify alone, ping-pong (half round trip), pairs of ranks
    Notify,
    /// Copy inside a rank
    LocalCopy,
    /// Combination of two operands inside a rank
    LocalReduce,
    /// From a notify until a rank that sleeps goes on, and what it uses while it sleeps, pairs of
    /// ranks
    Wake,
    /// The same by the kernel's futex alone: what no wait can beat
    FutexWake,
}

impl PerfOp {
    const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::AllGather => "all_gather",
            Self::AllGatherV => "all_gather_v",
            Self::ReduceScatter => "reduce_scatter",
            Self::ReduceScatterV => "reduce_scatter_v",
            Self::Broadcast => "broadcast",
            Self::Scatter => "scatter",
            Self::Gather => "gather",
            Self::AllToAll => "all_to_all",
            Self::AllToAllV => "all_to_all_v",
            Self::SendRecv => "send_recv",
            Self::Barrier => "barrier",
            Self::Write => "write",
            Self::Read => "read",
            Self::WriteNotify => "write_notify",
            Self::BatchWrite => "batch_write",
            Self::WriteReduce => "write_reduce",
            Self::ReadReduce => "read_reduce",
            Self::Notify => "notify",
            Self::LocalCopy => "local_copy",
            Self::LocalReduce => "local_reduce",
            Self::Wake => "wake",
            Self::FutexWake => "futex_wake",
        }
    }

    /// Whether it runs between pairs of ranks.
    const fn in_pairs(self) -> bool {
        matches!(
            self,
            Self::SendRecv
                | Self::Write
                | Self::Read
                | Self::WriteNotify
                | Self::BatchWrite
                | Self::WriteReduce
                | Self::ReadReduce
                | Self::Notify
                | Self::Wake
                | Self::FutexWake
        )
    }

    /// Whether a rank falls asleep in it.
    const fn sleeps(self) -> bool {
        matches!(self, Self::Wake | Self::FutexWake)
    }

    /// Whether each rank works for itself.
    const fn is_local(self) -> bool {
        matches!(self, Self::LocalCopy | Self::LocalReduce)
    }

    /// Whether it moves no data.
    const fn moves_nothing(self) -> bool {
        matches!(
            self,
            Self::Barrier | Self::Notify | Self::Wake | Self::FutexWake
        )
    }

    /// Ranks to start, if nobody says how many.
    const fn usual_ranks(self) -> u32 {
        if self.is_local() { 1 } else { 2 }
    }

    /// Ranks that share the bytes of a size: that is the size of the larger buffer, as for
    /// nccl-tests.
    const fn parts(self, ranks: u32) -> u64 {
        match self {
            Self::AllGather
            | Self::AllGatherV
            | Self::ReduceScatter
            | Self::ReduceScatterV
            | Self::Scatter
            | Self::Gather
            | Self::AllToAll
            | Self::AllToAllV => ranks as u64,
            _ => 1,
        }
    }

    const fn reduces(self) -> bool {
        matches!(
            self,
            Self::AllReduce
                | Self::Reduce
                | Self::ReduceScatter
                | Self::ReduceScatterV
                | Self::WriteReduce
                | Self::ReadReduce
                | Self::LocalReduce
        )
    }
}

/// Memory that data lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Memory {
    /// Allocated by the communicator
    Ours,
    /// The caller's own: registered, or for blocking calls (collectives, send_recv, engine cpu) as
    /// it is
    User,
    /// A window: memory of one size on every rank
    Symmetric,
}

impl Memory {
    const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::User => "user",
            Self::Symmetric => "symmetric",
        }
    }
}

/// Who drives the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum EngineArg {
    /// The caller
    Cpu,
    /// A thread beside the caller
    CpuTs,
}

impl EngineArg {
    const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::CpuTs => "cpu_ts",
        }
    }

    /// The engine of the threads that are measured.
    fn engine(self) -> Engine {
        match self {
            Self::Cpu => Engine::Cpu,
            Self::CpuTs => Engine::CpuTs(CpuTs::default()),
        }
    }
}

/// Measures, in whichever role this process has.
///
/// # Errors
/// What failed, named by rank.
pub(crate) fn perf(args: &PerfArgs) -> Result<u8> {
    match &args.plan {
        Some(path) => measure(&args.with_plan(path)?),
        None => measure(args),
    }
}

fn measure(args: &PerfArgs) -> Result<u8> {
    let launched = hcomm::launched()?;
    if args.threads && launched.is_some() {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "--threads, but a launcher has started this process as one of its ranks",
        )
        .hint("leave out --threads, or unset the launcher's variables, such as RANK"));
    }
    if args.threads || launched.is_some() {
        check(args, launched.unwrap_or_else(|| args.ranks()))?;
        if let (Some(expected), Some(size)) = (args.ranks, launched)
            && expected != size
        {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                match &args.plan {
                    Some(path) => format!(
                        "the plan in {} is for {expected} ranks, but the launcher has started {size}",
                        path.display()
                    ),
                    None => format!("-p {expected}, but the launcher has started {size} ranks"),
                },
            ));
        }
        return if launched.is_some() {
            worker::as_rank(args)
        } else {
            check_json_file(args)?;
            worker::as_threads(args, args.ranks())
        };
    }
    let ranks = args.ranks();
    check(args, ranks)?;
    check_json_file(args)?;
    let myself = std::env::current_exe()
        .map_err(|error| Error::system("finding this program's own file", error))?;
    let mut program = vec![myself.into_os_string()];
    program.extend(std::env::args_os().skip(1));
    launch::run(&Job {
        command: "hcomm perf",
        ranks,
        program,
        prefix: false,
        cores: args.cores(ranks)?,
    })
}

impl PerfArgs {
    /// Sizes asked for, in bytes.
    fn sizes(&self) -> Vec<u64> {
        if self.op.moves_nothing() {
            return vec![0];
        }
        sizes::rows(
            self.begin,
            self.end,
            self.step.map_or(Growth::Factor(self.factor), Growth::Step),
        )
    }

    /// As the plan in a file says.
    ///
    /// # Errors
    /// `InvalidArgument` if it is no plan, wrong, or not for what was asked.
    fn with_plan(&self, path: &Path) -> Result<Self> {
        let name = path.display();
        let wrong = |what: String| Error::new(ErrorKind::InvalidArgument, what);
        if path.as_os_str() == "-" {
            return Err(
                wrong("--plan -: all ranks read the plan".to_owned()).hint("write it to a file")
            );
        }
        let plan = plan::read(path)?;
        let shape = &plan.shape;
        let op = match shape.name() {
            "all_to_all_vc" => "all_to_all_v",
            op => op,
        };
        if op != self.op.name() || self.op == PerfOp::SendRecv {
            return Err(wrong(format!(
                "--plan {name}: a plan for {op}, which {} does not run",
                self.op.name()
            ))
            .hint("plans of collectives can be run, under the name of the collective"));
        }
        if let Some(ranks) = self.ranks.filter(|ranks| *ranks != shape.ranks) {
            return Err(wrong(format!(
                "-p {ranks}, but the plan in {name} is for {} ranks",
                shape.ranks
            )));
        }
        // The ranks prove it themselves; here it is for one error instead of one from each.
        if hcomm::launched()?.is_none() {
            verify(&plan).map_err(|finding| {
                wrong(format!("--plan {name}: the plan is wrong: {finding}")).hint(format!(
                    "`hcomm plan verify {name}` says everything that is wrong"
                ))
            })?;
        }
        Ok(Self {
            ranks: Some(shape.ranks),
            dtype: shape.dtype,
            redop: shape.redop,
            root: shape.operation.root().map_or(0, |root| root.0),
            in_place: shape.in_place && self.op != PerfOp::Barrier,
            loaded: Some(Arc::new(plan)),
            ..self.clone()
        })
    }

    /// The sizes in elements a rank, each once: at least one where bytes were asked for.
    fn counts(&self, ranks: u32) -> Vec<u64> {
        if let Some(plan) = &self.loaded {
            let parts = match &plan.shape.count {
                Count::Even(_) => 1,
                Count::Ranks(_) => u64::from(ranks),
                Count::Pairs(_) | Count::Own { .. } => u64::from(ranks).pow(2),
            };
            // Where they differ, as many as they are on average.
            return vec![plan.shape.count.total() / parts.max(1)];
        }
        let unit = self.dtype.size() as u64 * self.op.parts(ranks);
        let mut counts: Vec<u64> = self
            .sizes()
            .into_iter()
            .map(|size| if size == 0 { 0 } else { (size / unit).max(1) })
            .collect();
        // Sizes grow, so equal counts are neighbours.
        counts.dedup();
        counts
    }

    /// Ranks to start.
    fn ranks(&self) -> u32 {
        self.ranks.unwrap_or_else(|| self.op.usual_ranks())
    }

    /// The cores of each of so many ranks that are started here.
    fn cores(&self, ranks: u32) -> Result<Vec<Vec<usize>>> {
        Bind::cores(self.bind, Bind::Core, ranks)
    }

    /// The operation to measure in turn.
    fn other(&self) -> Option<Self> {
        let op = self.against()?;
        Some(Self {
            op,
            against: None,
            engine: if op == PerfOp::FutexWake {
                EngineArg::Cpu
            } else {
                self.engine
            },
            ..self.clone()
        })
    }

    /// What to measure in turn.
    fn against(&self) -> Option<PerfOp> {
        let floor = (self.op == PerfOp::Wake).then_some(PerfOp::FutexWake);
        self.against.or(floor)
    }

    /// Measured iterations; none: as many as take a while.
    fn iterations(&self) -> Option<u32> {
        // Most of the time is spent falling asleep.
        let usual = self.op.sleeps().then_some(200);
        self.iterations.or(usual)
    }

    /// Whether blocking calls are measured, which take the caller's memory as it is; otherwise what
    /// is put on a thread.
    fn blocks(&self) -> bool {
        self.memory() == Memory::User && self.engine == EngineArg::Cpu
    }

    /// Name under which memory is known to the peer.
    fn tag(&self) -> String {
        format!("hcomm-perf-{}", self.op.name())
    }

    /// Messages in a row.
    fn stream(&self) -> u32 {
        self.stream.unwrap_or(1)
    }

    fn memory(&self) -> Memory {
        let ours = self.op.is_local() || (self.op.in_pairs() && self.op != PerfOp::SendRecv);
        self.memory
            .unwrap_or(if ours { Memory::Ours } else { Memory::User })
    }

    fn checks(&self) -> bool {
        self.check == 1
    }

    /// Whether stdout belongs to the JSON.
    fn json_on_stdout(&self) -> bool {
        self.json
            .as_deref()
            .is_some_and(|path| path.as_os_str() == "-")
    }
}

fn check(args: &PerfArgs, ranks: u32) -> Result<()> {
    if let Some(other) = args.other() {
        // What follows from the number of ranks differs, and shares are not the same bytes.
        if other.counts(ranks) != args.counts(ranks) || other.op == args.op {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "--against {}: not another operation of the same sizes",
                    other.op.name()
                ),
            ));
        }
        check(&other, ranks)?;
    }
    let wrong = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what));
    let is_collective = !args.op.in_pairs() && !args.op.is_local();
    if let Some(memory) = args.memory
        && args.op.moves_nothing()
    {
        return wrong(format!(
            "--memory {}: {} moves no data",
            memory.name(),
            args.op.name()
        ));
    }
    if args.engine == EngineArg::CpuTs && args.op == PerfOp::FutexWake {
        return wrong("--engine cpu_ts: futex_wake uses no engine".to_owned());
    }
    if args.step == Some(0) {
        return wrong("-i 0: sizes would never grow".to_owned());
    }
    if args.begin > args.end {
        return wrong(format!("-b {} is larger than -e {}", args.begin, args.end));
    }
    if args.root >= ranks {
        return wrong(format!(
            "-r {}, but ranks go from 0 to {}",
            args.root,
            ranks - 1
        ));
    }
    if args.op.in_pairs() && !ranks.is_multiple_of(2) {
        return wrong(format!(
            "{} runs between pairs of ranks, and {ranks} is not an even number",
            args.op.name()
        ));
    }
    if args.redop == Reduction::Avg && !is_collective {
        return wrong(format!("-o avg: {} is no collective", args.op.name()));
    }
    if args.in_place && args.op == PerfOp::AllToAllV {
        return wrong("--in-place: parts that come would not fit where parts went".to_owned());
    }
    if args.in_place && (args.op == PerfOp::Barrier || !is_collective) {
        return wrong(format!(
            "--in-place: {} does not have an input and an output on one rank",
            args.op.name()
        ));
    }
    let has_no_stream = is_collective || args.op == PerfOp::BatchWrite || args.op.sleeps();
    if args.stream.is_some() && has_no_stream {
        return wrong(format!(
            "--stream: {} does not send one message after the other",
            args.op.name()
        ));
    }
    if args.consume && (is_collective || args.op.moves_nothing()) {
        return wrong(format!(
            "--consume: {} has no receiver that could read",
            args.op.name()
        ));
    }
    // A table that nobody reads to its end, and the memory for it.
    const ROWS: u64 = 10_000;
    if let Some(step) = args.step
        && (args.end - args.begin) / step >= ROWS
    {
        return wrong(format!(
            "-i {step} from -b {} to -e {} makes more than {ROWS} rows",
            args.begin, args.end
        ));
    }
    Ok(())
}

/// Finds out before the measurement whether its result can be written.
fn check_json_file(args: &PerfArgs) -> Result<()> {
    match &args.json {
        Some(path) if !args.json_on_stdout() => OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .map(drop)
            .map_err(|error| Error::system(format!("opening {}", path.display()), error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: PerfArgs,
    }

    fn parse(line: &str) -> PerfArgs {
        Line::try_parse_from(["perf"].into_iter().chain(line.split(' ')))
            .unwrap()
            .args
    }

    #[test]
    fn sizes_that_come_to_the_same_elements_are_measured_once() {
        let counts = |line: &str, ranks| parse(line).counts(ranks);
        assert_eq!(counts("write -b 1 -e 16 -d fp32", 2), [1, 2, 4]);
        assert_eq!(counts("all_reduce -b 0 -e 8 -d fp64", 2), [0, 1]);
        assert_eq!(counts("reduce_scatter -b 1 -e 64 -f 8 -d int32", 4), [1, 4]);
        assert_eq!(counts("all_gather -b 5 -e 5 -d fp32", 4), [1]);
        assert_eq!(counts("barrier", 4), [0]);
        assert_eq!(counts("notify", 2), [0]);
        assert_eq!(counts("read -b 10 -e 30 -i 10 -d int8", 2), [10, 20, 30]);
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for (line, ranks) in [
            ("send_recv", 3),
            ("write", 1),
            ("broadcast -r 2", 2),
            ("barrier --in-place", 2),
            ("read --in-place", 2),
            ("all_to_all_v --in-place", 2),
            ("gather -r 3", 3),
            ("all_reduce -i 0", 2),
            ("all_reduce -b 0 -e 1G -i 1", 2),
            ("all_reduce -b 2 -e 1", 2),
            ("all_reduce --stream 64", 2),
            ("batch_write --stream 64", 2),
            ("all_gather --consume", 2),
            ("notify --consume", 2),
            ("local_copy --in-place", 1),
            ("barrier --memory user", 2),
            ("notify --memory symmetric", 2),
            ("wake --memory ours", 2),
            ("wake --stream 3", 2),
            ("wake --consume", 2),
            ("wake", 3),
            ("futex_wake --engine cpu_ts", 2),
            ("write --against write", 2),
            ("write --against barrier", 2),
            ("write --stream 9 --against batch_write", 2),
        ] {
            let error = check(&parse(line), ranks).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{line}");
        }
        for (line, ranks) in [
            ("all_reduce --in-place", 1),
            ("send_recv", 4),
            ("send_recv --memory ours --stream 64 --consume", 2),
            ("write_notify --stream 64 --consume", 2),
            ("local_reduce --against local_copy", 1),
            ("write_notify --against send_recv --memory ours", 2),
            ("write_notify --against send_recv --memory symmetric", 2),
            ("read --memory user --engine cpu_ts", 2),
            ("all_reduce --engine cpu_ts", 2),
            ("all_reduce --memory symmetric --in-place", 3),
            ("barrier --engine cpu_ts", 3),
            ("wake --engine cpu_ts", 2),
            ("futex_wake --against notify", 2),
        ] {
            assert!(check(&parse(line), ranks).is_ok(), "{line}");
        }
        for line in [
            "all_reduce -n 10000001",
            "all_reduce -w 4000000000",
            "write --stream 0",
            "write --memory borrowed",
            "write --bind socket",
        ] {
            let words = ["perf"].into_iter().chain(line.split(' '));
            assert!(Line::try_parse_from(words).is_err(), "{line}");
        }
    }
}
