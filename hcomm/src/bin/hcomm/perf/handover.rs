//! How long one cache line takes from rank to rank, at this moment.
//!
//! The host of a virtual machine moves its cores: they share a cache now and do not a minute later,
//! and nothing tells so but this time. Numbers of the two states cannot be compared.

use std::thread;
use std::time::{Duration, Instant};

use hcomm::{Communicator, PeerLink};
use hcomm_data::{RemoteSlice, Slice};
use hcomm_types::{Rank, Result};

const TAG: &str = "hcomm-perf-line";
const BATCHES: usize = 5;
/// Round trips of a batch.
const ROUNDS: u64 = 1500;
/// What the line holds when a side has given up: as on a machine so busy that the other side has
/// no core to run on.
const STOP: u64 = u64::MAX;
const PATIENCE: Duration = Duration::from_millis(300);
/// Looks between two questions for the time.
const LOOKS: u32 = 1 << 12;

/// A line that two ranks have mapped.
pub(super) struct Handover<'a> {
    comm: &'a Communicator,
    line: Line,
    /// Ends with this.
    _link: PeerLink,
}

enum Line {
    /// Of rank 0.
    Mine(Slice),
    Peers(RemoteSlice),
}

impl<'a> Handover<'a> {
    /// A line between both ranks; none if there are not two, or they map no memory of each other.
    ///
    /// # Errors
    /// Those of memory and channels.
    pub(super) fn new(comm: &'a Communicator) -> Result<Option<Self>> {
        if comm.size() != 2 {
            return Ok(None);
        }
        let memory = comm.allocate(TAG, 4096)?;
        let link = comm.open_channel(Rank(comm.rank().0 ^ 1), 1)?;
        let peers = link.memory(TAG)?;
        // Both ranks have to come to the same answer: each may map and not be mapped.
        let mut mapped = [u32::from(peers.import().address().is_some())];
        comm.all_reduce_in_place(&mut mapped, hcomm_types::ReduceOp::Min)?;
        if mapped == [0] {
            return Ok(None);
        }
        let line = if comm.rank() == Rank(0) {
            Line::Mine(memory)
        } else {
            Line::Peers(peers)
        };
        Ok(Some(Self {
            comm,
            line,
            _link: link,
        }))
    }

    /// Nanoseconds of one hand-over, the median of some batches; both ranks call it. None if the
    /// other side had no core to run on.
    ///
    /// # Errors
    /// If the ranks do not come together.
    pub(super) fn nanoseconds(&self) -> Result<Option<f64>> {
        self.comm.barrier()?;
        if self.comm.rank() == Rank(0) {
            self.store(0)?;
        }
        self.comm.barrier()?;
        let mut batches = Vec::with_capacity(BATCHES);
        let end = Instant::now() + PATIENCE;
        for batch in 0..BATCHES as u64 {
            let start = Instant::now();
            if !self.batch(batch * 2 * ROUNDS, end)? {
                self.store(STOP)?;
                break;
            }
            let hops = 2 * ROUNDS;
            batches.push(start.elapsed().as_nanos() as f64 / hops as f64);
        }
        // Nobody begins the next one while the other still looks at this one.
        self.comm.barrier()?;
        batches.sort_by(f64::total_cmp);
        Ok(batches.get(batches.len() / 2).copied())
    }

    /// Counts on from `first` together with the peer; false if one of them has given up.
    fn batch(&self, first: u64, end: Instant) -> Result<bool> {
        let leads = self.comm.rank() == Rank(0);
        for round in 0..ROUNDS {
            let (odd, even) = (first + 2 * round + 1, first + 2 * round + 2);
            let (mine, theirs) = if leads { (odd, even) } else { (even, odd) };
            if leads {
                self.store(mine)?;
            }
            if !self.comes(theirs, end)? {
                return Ok(false);
            }
            if !leads {
                self.store(mine)?;
            }
        }
        Ok(true)
    }

    fn comes(&self, number: u64, end: Instant) -> Result<bool> {
        loop {
            for _ in 0..LOOKS {
                match self.load()? {
                    STOP => return Ok(false),
                    found if found == number => return Ok(true),
                    _ => {}
                }
            }
            if Instant::now() > end {
                return Ok(false);
            }
            thread::yield_now();
        }
    }

    fn load(&self) -> Result<u64> {
        match &self.line {
            Line::Mine(line) => line.load_u64(0),
            Line::Peers(line) => line.load_u64(0),
        }
    }

    fn store(&self, number: u64) -> Result<()> {
        match &self.line {
            Line::Mine(line) => line.store_u64(0, number),
            Line::Peers(line) => line.store_u64(0, number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ranks_hand_over_and_again() {
        let mut ranks = Communicator::init_all(2).unwrap();
        let second = ranks.pop().unwrap();
        let measure = |comm: Communicator| {
            let line = Handover::new(&comm).unwrap().unwrap();
            let found = [(); 2].map(|()| line.nanoseconds().unwrap());
            drop(line);
            comm.close().unwrap();
            found
        };
        let other = thread::spawn(move || measure(second));
        // A machine that is busy with other tests may give no time.
        for time in measure(ranks.remove(0)).into_iter().flatten() {
            assert!(time > 0.0);
        }
        other.join().unwrap();
    }

    #[test]
    fn who_gives_up_ends_the_other() {
        let mut ranks = Communicator::init_all(2).unwrap();
        let second = ranks.pop().unwrap();
        let other = thread::spawn(move || {
            let line = Handover::new(&second).unwrap().unwrap();
            line.store(STOP).unwrap();
            second.barrier().unwrap();
        });
        let first = ranks.remove(0);
        let line = Handover::new(&first).unwrap().unwrap();
        first.barrier().unwrap();
        let end = Instant::now() + Duration::from_secs(1000);
        assert!(!line.comes(1, end).unwrap());
        other.join().unwrap();
    }

    #[test]
    fn one_rank_has_nobody_to_hand_over_to() {
        let ranks = Communicator::init_all(1).unwrap();
        assert!(Handover::new(&ranks[0]).unwrap().is_none());
    }
}
