//! How long a rank that sleeps takes to go on, and what it uses while it sleeps.
//!
//! The odd rank of a pair waits until it sleeps; then the even one, which is awake, takes the time
//! and wakes it, and the odd one takes the time when it goes on. Both read the clock of the host
//! that they share. The same with a bare futex shows what of that is the kernel's and the
//! machine's: an idle core of a virtual machine has to be brought back by its host.

use std::thread;
use std::time::Duration;

use hcomm::{Communicator, PeerLink};
use hcomm_data::{RemoteSlice, Slice, Thread};
use hcomm_transport::FutexWord;
use hcomm_types::{Error, ErrorKind, Rank, ReduceOp, Result};
use rustix::time::{ClockId, clock_gettime};

use super::report::median;
use super::worker::{Case, Plan};
use super::{PerfArgs, PerfOp};

/// Wakes one.
const WAKE: u32 = 0;
/// Says that it went on.
const AWAKE: u32 = 1;
/// After this long whoever waits sleeps: the phases before take a tenth of it.
const UNTIL_ASLEEP: Duration = Duration::from_millis(2);
/// What is slept to see what it costs.
const IDLE: Duration = Duration::from_secs(1);
/// A wait that is as long as [`IDLE`] besides.
const SETTLE: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(20);

/// What is kept of a pair of ranks.
pub(super) struct Bench<'a> {
    comm: &'a Communicator,
    thread: Thread,
    link: PeerLink,
    /// Where the time of the wake stands: on the rank that sleeps.
    time: Time,
    /// To sleep on; otherwise on a notify.
    futex: Option<FutexWord>,
}

enum Time {
    Mine(Slice),
    Peers(RemoteSlice),
}

impl<'a> Bench<'a> {
    /// Memory, channel and word between the ranks of a pair.
    ///
    /// # Errors
    /// `Unsupported` if the ranks do not map memory of each other; those of memory and channels.
    pub(super) fn new(args: &PerfArgs, comm: &'a Communicator) -> Result<Self> {
        let memory = comm.allocate(&args.tag(), 4096)?;
        let peer = Rank(comm.rank().0 ^ 1);
        let link = comm.open_channel(peer, 2)?;
        let peers = link.memory(&args.tag())?;
        let mut mapped = [u32::from(peers.address().is_some())];
        comm.all_reduce_in_place(&mut mapped, ReduceOp::Min)?;
        if mapped == [0] {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{}: the ranks do not map memory of each other, so they may have no clock in \
                     common",
                    args.op.name()
                ),
            )
            .hint("use ranks of one host and the link shm"));
        }
        let sleeps = !comm.rank().0.is_multiple_of(2);
        let futex = match args.op {
            PerfOp::FutexWake if sleeps => {
                let word = FutexWord::new()?;
                let address = [u64::from(std::process::id()), word.descriptor() as u64];
                comm.send(&address, peer)?;
                // The other one has it when it answers.
                comm.recv(&mut [0u8], peer)?;
                Some(word)
            }
            PerfOp::FutexWake => {
                let mut address = [0u64; 2];
                comm.recv(&mut address, peer)?;
                let [process, descriptor] = address;
                let word = FutexWord::of(process as u32, descriptor as i32)?;
                comm.send(&[1u8], peer)?;
                Some(word)
            }
            _ => None,
        };
        Ok(Self {
            comm,
            thread: comm.thread_on(args.engine.engine(), 0)?,
            link,
            time: if sleeps {
                Time::Mine(memory)
            } else {
                Time::Peers(peers)
            },
            futex,
        })
    }

    /// Prepares the one row.
    pub(super) fn plan<'b>(&'b mut self) -> Plan<'b> {
        Plan {
            algorithm: "-".to_owned(),
            predicted_us: None,
            bytes: 0,
            count: 0,
            moved: 0,
            bus_factor: 1.0,
            messages: None,
            case: Box::new(Wake {
                bench: self,
                number: 0,
            }),
        }
    }
}

struct Wake<'a, 'b> {
    bench: &'b Bench<'a>,
    /// Wakes so far.
    number: u32,
}

impl Wake<'_, '_> {
    /// Wakes the peer after a rest, or is woken; the nanoseconds from one to the other, on the rank
    /// that was woken.
    fn one(&mut self, rest: impl FnOnce()) -> Result<Option<u64>> {
        self.number = self.number.wrapping_add(1);
        let (thread, channel) = (&self.bench.thread, &self.bench.link.channel);
        match &self.bench.time {
            Time::Peers(time) => {
                rest();
                time.store_u64(0, nanoseconds(ClockId::Monotonic))?;
                match &self.bench.futex {
                    Some(word) => word.set(self.number),
                    None => thread.record(channel, WAKE)?,
                }
                thread.wait_blocking(channel, AWAKE, None)?;
                Ok(None)
            }
            Time::Mine(time) => {
                match &self.bench.futex {
                    Some(word) if !word.sleep_until(self.number, PATIENCE) => {
                        return Err(Error::new(
                            ErrorKind::Timeout,
                            format!("rank {} has woken nobody", self.bench.link.peer),
                        )
                        .after(PATIENCE)
                        .blame_rank(self.bench.link.peer));
                    }
                    Some(_) => {}
                    None => thread.wait_blocking(channel, WAKE, None)?,
                }
                let now = nanoseconds(ClockId::Monotonic);
                let spent = now.saturating_sub(time.load_u64(0)?);
                thread.record(channel, AWAKE)?;
                thread.synchronize(None)?;
                Ok(Some(spent))
            }
        }
    }

    /// Nanoseconds of the wall clock and of this process's cores in a wait that is so long.
    fn cost_of_a_wait(&mut self, length: Duration) -> Result<(u64, u64)> {
        let clocks = || [ClockId::Monotonic, ClockId::ProcessCPUTime].map(nanoseconds);
        let before = clocks();
        self.one(|| thread::sleep(length))?;
        let after = clocks();
        Ok((after[0] - before[0], after[1] - before[1]))
    }
}

impl Case for Wake<'_, '_> {
    fn run(&mut self) -> Result<()> {
        self.one(rest).map(drop)
    }

    /// The median, because a machine that is busy at a time delays one by milliseconds.
    fn time(&mut self, iterations: u64) -> Result<f64> {
        let times = (0..iterations)
            .filter_map(|_| self.one(rest).transpose())
            .collect::<Result<Vec<u64>>>()?;
        Ok(match &self.bench.time {
            Time::Mine(_) => median(times.into_iter().map(|time| time as f64 / 1e9).collect()),
            Time::Peers(_) => 0.0,
        })
    }

    /// Of two waits, so that what comes before the sleep does not count.
    fn idle_percent(&mut self) -> Result<Option<f64>> {
        if self.bench.futex.is_some() {
            return Ok(None);
        }
        self.bench.comm.barrier()?;
        let (short, short_used) = self.cost_of_a_wait(SETTLE)?;
        let (long, long_used) = self.cost_of_a_wait(SETTLE + IDLE)?;
        let used = long_used.saturating_sub(short_used) as f64;
        Ok(Some(match &self.bench.time {
            Time::Mine(_) => 100.0 * used / long.saturating_sub(short).max(1) as f64,
            Time::Peers(_) => 0.0,
        }))
    }

    /// Nothing is moved: a wake that does not come ends the measurement.
    fn wrong(&mut self) -> Result<u64> {
        Ok(0)
    }
}

/// Lets the peer fall asleep, and stays awake.
fn rest() {
    let end = nanoseconds(ClockId::Monotonic) + UNTIL_ASLEEP.as_nanos() as u64;
    while nanoseconds(ClockId::Monotonic) < end {
        std::hint::spin_loop();
    }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // Neither clock was ever before its begin.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
