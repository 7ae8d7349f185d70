//! Who takes part: ranks, hosts, processes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of a member of a communicator, from 0 to size − 1.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index into a list with one entry a rank.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The rank of entry `index` of a list with one entry a rank.
    ///
    /// # Panics
    /// If `index` does not fit in 32 bits: no communicator is that large.
    #[must_use]
    pub fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).expect("a communicator has fewer than 2^32 ranks"))
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Identity of a host that stays the same for all processes on it, whatever its names are:
/// the kernel's boot id, with the network and memory isolation of containers left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostId(pub String);

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identity of one process image: its number as its host counts it, and a random token drawn
/// once at start. Two ranks share an address space exactly when their tokens are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process number in its own PID namespace.
    pub pid: u32,
    /// Random token, drawn once a process.
    pub token: u64,
}
