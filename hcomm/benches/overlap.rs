//! What a worker takes and what it gives: `cargo bench -p hcomm --bench overlap`.
//!
//! Two ranks of one process. First what a hand-over to the worker adds to a notify that goes to and
//! fro. Then computation that is as long as the communication, alone, one after the other, and with
//! a worker (`CpuTs`) that communicates meanwhile: over a link that takes its time (`delay`, if its
//! library is built) and over shared memory, where the bytes are moved by a core that is free or by
//! one that has to compute as well. *Hidden* is the part of the shorter one that costs nothing: 1 if
//! both together take as long as the longer one, 0 if they take as long as one after the other.
//!
//! The computation here needs no memory and is as long as the communication, so that the links can be
//! compared; `examples/overlap.rs` is the same of a computation that makes what is sent.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use hcomm::{
    Communicator, CpuTs, DataType, Engine, Error, ErrorKind, Options, Rank, ReduceOp, RemoteSlice,
    Result, Slice, Thread,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const TAG: &str = "overlap";
const BYTES: usize = 1 << 20;
/// Round trips of a sample of latency.
const TRIPS: u32 = 2000;
const SAMPLES: usize = 31;

fn main() -> Result<()> {
    let cores = cores();
    let [first, second, ..] = cores[..] else {
        println!("two ranks compute at the same time: two cores are needed, there is one");
        return Ok(());
    };
    let here = Engine::Cpu;
    let own = Engine::CpuTs(CpuTs::worker(0));
    println!("notify, to and fro, each rank on a core: µs");
    for (name, engine) in [("the caller drives", here), ("a worker drives", own)] {
        let times = ranks(None, |comm, meet| {
            bind(if comm.rank() == Rank(0) {
                first
            } else {
                second
            })?;
            round_trips(comm, meet, engine)
        })?;
        println!("{name:>36} {:>8.2}", median(times) * 1e6);
    }
    println!(
        "\n{:>36} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "µs, of 1 MiB", "compute", "comm", "in turn", "beside", "hidden"
    );
    // A core of its own for the worker of rank 0: rank 1 has nothing to do but to be read from.
    let free = Engine::CpuTs(CpuTs::worker(0).on_core(second as u32));
    let rows = ranks(None, |comm, meet| {
        bind(first)?;
        read(comm, meet, free)
    })?;
    print_row("read, the worker has a core", &rows);
    for (name, links) in [
        ("all_reduce, shm", None),
        ("all_reduce, delay", Some("delay")),
    ] {
        let rows = ranks(links, |comm, meet| {
            bind(if comm.rank() == Rank(0) {
                first
            } else {
                second
            })?;
            all_reduce(comm, meet, own)
        });
        match rows {
            Ok(rows) => print_row(name, &rows),
            Err(error) if error.kind() == ErrorKind::Unsupported => println!("{name}: {error}"),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Runs both ranks on OS threads of their own; what rank 0 has found.
fn ranks<T: Send>(
    links: Option<&str>,
    work: impl Fn(&Communicator, &Barrier) -> Result<T> + Sync,
) -> Result<T> {
    let mut options = Options::default();
    if let Some(links) = links {
        options = options.transports(links);
    }
    let comms = Communicator::init_all_with(2, &options)?;
    let (meet, work) = (Barrier::new(2), &work);
    thread::scope(|scope| {
        let threads: Vec<_> = comms
            .into_iter()
            .map(|comm| {
                let meet = &meet;
                scope.spawn(move || {
                    let found = work(&comm, meet)?;
                    comm.barrier()?;
                    comm.close()?;
                    Ok(found)
                })
            })
            .collect();
        let mut found: Vec<Result<T>> = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic there"))
            .collect();
        found.swap_remove(0)
    })
}

/// Seconds of one round trip each.
fn round_trips(comm: &Communicator, meet: &Barrier, engine: Engine) -> Result<Vec<f64>> {
    let link = comm.open_channel(Rank(1 - comm.rank().0), 1)?;
    let thread = comm.thread_on(engine, 0)?;
    let leads = comm.rank() == Rank(0);
    let mut times = Vec::new();
    for _ in 0..SAMPLES {
        meet.wait();
        let start = Instant::now();
        for _ in 0..TRIPS {
            if leads {
                thread.record(&link.channel, 0)?;
                thread.wait_blocking(&link.channel, 0, None)?;
            } else {
                thread.wait_blocking(&link.channel, 0, None)?;
                thread.record(&link.channel, 0)?;
            }
        }
        thread.synchronize(None)?;
        times.push(start.elapsed().as_secs_f64() / f64::from(TRIPS));
    }
    Ok(times)
}

/// Medians, in seconds.
struct Row {
    compute: f64,
    comm: f64,
    in_turn: f64,
    beside: f64,
}

fn print_row(name: &str, row: &Row) {
    let micros = |seconds: f64| seconds * 1e6;
    let hidden = (row.compute + row.comm - row.beside) / row.compute.min(row.comm);
    println!(
        "{name:>36} {:>8.0} {:>8.0} {:>8.0} {:>8.0} {hidden:>8.2}",
        micros(row.compute),
        micros(row.comm),
        micros(row.in_turn),
        micros(row.beside)
    );
}

/// Rank 0 reads, and computes; rank 1 sleeps.
fn read(comm: &Communicator, meet: &Barrier, engine: Engine) -> Result<Row> {
    let memory = comm.allocate(TAG, BYTES)?;
    let link = comm.open_channel(Rank(1 - comm.rank().0), 1)?;
    let far: RemoteSlice = link.memory(TAG)?;
    if comm.rank() == Rank(1) {
        meet.wait();
        return Ok(Row {
            compute: 0.0,
            comm: 0.0,
            in_turn: 0.0,
            beside: 0.0,
        });
    }
    let row = measure(
        || {},
        [&comm.thread(0)?, &comm.thread_on(engine, 0)?],
        |thread| thread.read(&link.channel, &memory, &far),
    );
    meet.wait();
    row
}

/// Both ranks reduce, and both compute.
fn all_reduce(comm: &Communicator, meet: &Barrier, engine: Engine) -> Result<Row> {
    let data: Slice = comm.allocate(TAG, BYTES)?;
    measure(
        || {
            meet.wait();
        },
        [&comm.thread(0)?, &comm.thread_on(engine, 0)?],
        |thread| {
            comm.all_reduce_on(thread, &data, &data, DataType::F32, ReduceOp::Sum)?;
            Ok(())
        },
    )
}

/// Computation as long as the communication, and both. `meet` comes before each sample.
fn measure(
    meet: impl Fn(),
    [here, worker]: [&Thread; 2],
    communicate: impl Fn(&Thread) -> Result<()>,
) -> Result<Row> {
    let sample = |work: &dyn Fn() -> Result<()>| -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..SAMPLES {
            meet();
            let start = Instant::now();
            work()?;
            times.push(start.elapsed().as_secs_f64());
        }
        Ok(median(times))
    };
    let alone = |thread: &Thread| {
        communicate(thread)?;
        thread.synchronize(None)
    };
    alone(here)?;
    alone(worker)?;
    let comm = sample(&|| alone(here))?;
    let steps = steps_for(comm);
    Ok(Row {
        comm,
        compute: sample(&|| {
            compute(steps);
            Ok(())
        })?,
        in_turn: sample(&|| {
            alone(here)?;
            compute(steps);
            Ok(())
        })?,
        beside: sample(&|| {
            communicate(worker)?;
            compute(steps);
            worker.synchronize(None)
        })?,
    })
}

/// Arithmetic that needs a core and no memory.
fn compute(steps: u64) {
    let mut value = black_box(1.000_000_1_f64);
    for _ in 0..steps {
        value = value * 0.999_999 + 1e-9;
    }
    black_box(value);
}

/// Steps that take about so many seconds.
fn steps_for(seconds: f64) -> u64 {
    const SOME: u64 = 200_000;
    let fastest = (0..20)
        .map(|_| {
            let start = Instant::now();
            compute(SOME);
            start.elapsed()
        })
        .min()
        .unwrap_or(Duration::from_millis(1));
    (SOME as f64 * seconds / fastest.as_secs_f64()) as u64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn cores() -> Vec<usize> {
    let set = sched_getaffinity(None).expect("this process has cores");
    (0..CpuSet::MAX_CPU)
        .filter(|&core| set.is_set(core))
        .collect()
}

fn bind(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|errno| Error::system("binding to a core", errno.into()))
}
