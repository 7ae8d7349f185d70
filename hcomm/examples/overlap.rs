//! Computation and communication at the same time, joined by notifies:
//! `cargo run --release -p hcomm --example overlap`.
//!
//! Two ranks of one process train, as it were: each computes the gradient of its own samples, a
//! matrix product, and the gradients of all ranks are added up. The product is made in bands of
//! rows. All the sums are put on a thread of the engine `CpuTs` before the first band is there: its
//! worker waits for a notify of the computing thread, all-reduces the band, waits for the next. At
//! the end it records a notify the other way.
//!
//! *Hidden* is the share of the communication that costs nothing beside the computation:
//! (computing alone + communicating alone − both) ÷ communicating alone. Of 1, all is hidden. The
//! bytes of a link over shared memory are moved by a core. A worker that has none of its own takes
//! the time from the computation, and can hide only what it spends on waiting; where ranks have two
//! cores each, it has one, and can hide everything.

use std::thread;
use std::time::Instant;

use hcomm::prelude::*;
use hcomm::{CpuTs, Engine, Error, Result, Slice, Thread};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Samples of a rank, and the gradient's rows and columns.
const SAMPLES: usize = 32;
const ROWS: usize = 512;
const COLUMNS: usize = 1024;

/// Bands of rows of the gradient.
const BANDS: usize = 16;
const BAND_ROWS: usize = ROWS / BANDS;
const BAND_BYTES: usize = BAND_ROWS * COLUMNS * size_of::<f32>();

/// Samples of each time; medians are shown.
const ROUNDS: usize = 101;

/// Notify of the worker's thread that a band is there, and of the computing one that all is done.
const READY: u32 = 0;
const DONE: u32 = 0;

fn main() -> Result<()> {
    let cores = cores()?;
    let comms = Communicator::init_all(2)?;
    let times: Vec<Result<Times>> = thread::scope(|scope| {
        let ranks: Vec<_> = comms
            .into_iter()
            .map(|comm| {
                let cores = &cores;
                scope.spawn(move || {
                    bind(cores, &comm)?;
                    let times = train(&comm, worker(cores, &comm), ROUNDS)?;
                    comm.close()?;
                    Ok(times)
                })
            })
            .collect();
        let joined = ranks.into_iter().map(|rank| rank.join());
        joined.map(|times| times.expect("no panic there")).collect()
    });
    println!(
        "a gradient of {ROWS} by {COLUMNS} in {BANDS} bands, {SAMPLES} samples a rank; {}",
        if cores.len() >= 4 {
            "each worker has a core"
        } else {
            "each worker shares its rank's core"
        }
    );
    println!("rank    compute       comm    in turn     beside     hidden");
    for (rank, times) in times.into_iter().enumerate() {
        let Times {
            compute,
            comm,
            in_turn,
            beside,
        } = times?;
        let hidden = (compute + comm - beside) / comm;
        let [compute, comm, in_turn, beside] =
            [compute, comm, in_turn, beside].map(|seconds| seconds * 1e6);
        println!(
            "{rank:>4} {compute:>7.0} µs {comm:>7.0} µs {in_turn:>7.0} µs {beside:>7.0} µs \
             {hidden:>10.2}"
        );
    }
    Ok(())
}

/// Medians, in seconds.
pub(crate) struct Times {
    pub(crate) compute: f64,
    pub(crate) comm: f64,
    pub(crate) in_turn: f64,
    pub(crate) beside: f64,
}

/// What one rank does: each way so many times, and the result of the overlapped one checked.
pub(crate) fn train(comm: &Communicator, worker: CpuTs, rounds: usize) -> Result<Times> {
    let gradient = Gradient {
        comm,
        samples: Samples::of(comm.rank().0),
        memory: comm.allocate("gradient", BANDS * BAND_BYTES)?,
        here: comm.thread(1)?,
        worker: comm.thread_on(Engine::CpuTs(worker), 1)?,
    };
    let ways: [&dyn Fn() -> Result<()>; 4] = [
        &|| gradient.compute(|_| Ok(())),
        &|| gradient.all_reduce(),
        &|| {
            gradient.compute(|_| Ok(()))?;
            gradient.all_reduce()
        },
        &|| gradient.beside(),
    ];
    // One of each in a row, so that what disturbs them disturbs all; the first time, when things are
    // made, does not count.
    let mut times: [Vec<f64>; 4] = Default::default();
    for round in 0..=rounds {
        for (way, times) in ways.iter().zip(&mut times) {
            comm.barrier()?;
            let start = Instant::now();
            way()?;
            if round > 0 {
                times.push(start.elapsed().as_secs_f64());
            }
        }
    }
    let [compute, comm, in_turn, beside] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    gradient.check()?;
    Ok(Times {
        compute,
        comm,
        in_turn,
        beside,
    })
}

/// What a rank has to learn from: small whole numbers, so that sums are exact.
struct Samples {
    inputs: Vec<[f32; ROWS]>,
    errors: Vec<[f32; COLUMNS]>,
}

impl Samples {
    fn of(rank: u32) -> Self {
        let number = |sample: usize, at: usize| {
            let mixed = (rank as usize * 31 + sample * 17 + at * 7) * 2_654_435_761;
            ((mixed >> 7) % 9) as f32 - 4.0
        };
        let inputs = (0..SAMPLES).map(|s| std::array::from_fn(|at| number(s, at)));
        let errors = (0..SAMPLES).map(|s| std::array::from_fn(|at| number(s + SAMPLES, at)));
        Self {
            inputs: inputs.collect(),
            errors: errors.collect(),
        }
    }

    /// One row of the gradient: the errors, each times the input that it came from.
    fn row(&self, row: usize, sums: &mut [f32; COLUMNS]) {
        sums.fill(0.0);
        for (input, errors) in self.inputs.iter().zip(&self.errors) {
            let factor = input[row];
            for (sum, error) in sums.iter_mut().zip(errors) {
                *sum += factor * error;
            }
        }
    }
}

struct Gradient<'c> {
    comm: &'c Communicator,
    samples: Samples,
    memory: Slice,
    here: Thread,
    worker: Thread,
}

impl Gradient<'_> {
    fn band(&self, band: usize) -> Result<Slice> {
        self.memory.sub(band * BAND_BYTES..(band + 1) * BAND_BYTES)
    }

    /// Computes all bands, and says of each when it is there.
    fn compute(&self, is_there: impl Fn(usize) -> Result<()>) -> Result<()> {
        let mut sums = [0.0; COLUMNS];
        let mut bytes = vec![0; BAND_BYTES];
        for band in 0..BANDS {
            for (row, line) in (band * BAND_ROWS..).zip(bytes.chunks_exact_mut(4 * COLUMNS)) {
                self.samples.row(row, &mut sums);
                for (bytes, sum) in line.chunks_exact_mut(4).zip(&sums) {
                    bytes.copy_from_slice(&sum.to_ne_bytes());
                }
            }
            self.band(band)?.copy_from(&bytes)?;
            is_there(band)?;
        }
        Ok(())
    }

    fn add_up(&self, thread: &Thread, band: usize) -> Result<()> {
        let band = self.band(band)?;
        let (dtype, op) = (DataType::F32, ReduceOp::Sum);
        // No handle is needed: the notify says when all is done.
        let handle = self.comm.all_reduce_on(thread, &band, &band, dtype, op);
        handle.map(drop)
    }

    /// Communication alone, by the thread that computes.
    fn all_reduce(&self) -> Result<()> {
        for band in 0..BANDS {
            self.add_up(&self.here, band)?;
        }
        self.here.synchronize(None)
    }

    /// Both at the same time.
    fn beside(&self) -> Result<()> {
        for band in 0..BANDS {
            self.worker.wait_thread(READY)?;
            self.add_up(&self.worker, band)?;
        }
        self.worker.record_thread(&self.here, DONE)?;
        self.compute(|_| self.here.record_thread(&self.worker, READY))?;
        self.here.wait_thread(DONE)?;
        self.here.synchronize(None)
    }

    /// Some elements of each band, by the definition.
    fn check(&self) -> Result<()> {
        let all: Vec<Samples> = (0..self.comm.size()).map(Samples::of).collect();
        let mut found = vec![0; BANDS * BAND_BYTES];
        self.memory.copy_to(&mut found)?;
        for at in (0..ROWS * COLUMNS).step_by(997) {
            let (row, column) = (at / COLUMNS, at % COLUMNS);
            let expected: f32 = all
                .iter()
                .flat_map(|samples| samples.inputs.iter().zip(&samples.errors))
                .map(|(input, errors)| input[row] * errors[column])
                .sum();
            let bytes = [0, 1, 2, 3].map(|byte| found[4 * at + byte]);
            let sum = f32::from_ne_bytes(bytes);
            if sum != expected {
                return Err(Error::new(
                    ErrorKind::Internal,
                    format!("row {row}, column {column} is {sum} instead of {expected}"),
                ));
            }
        }
        Ok(())
    }
}

/// The cores that this process may use.
fn cores() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None)
        .map_err(|errno| Error::system("asking for the cores", errno.into()))?;
    let cores = (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core));
    Ok(cores.collect())
}

/// A core for each rank, the first ones.
fn bind(cores: &[usize], comm: &Communicator) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cores[comm.rank().index() % cores.len()]);
    sched_setaffinity(None, &set).map_err(|errno| Error::system("binding to a core", errno.into()))
}

/// A worker on a core of its own if there is one for each; otherwise on that of its rank.
fn worker(cores: &[usize], comm: &Communicator) -> CpuTs {
    let own = CpuTs::worker(0);
    match cores.get(comm.size() as usize + comm.rank().index()) {
        Some(&core) if cores.len() >= 4 => own.on_core(core as u32),
        _ => own,
    }
}
