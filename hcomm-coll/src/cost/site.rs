//! Where ranks run, and what joins them.

use std::sync::Arc;

use hcomm_types::Rank;

/// How bytes get from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// By loads and stores of memory that both ranks map.
    Mapped,
    /// By a transport, over a wire on which transfers follow each other: those of one rank to one
    /// other of its host, and all those that leave a host.
    Wire {
        /// Time of the first byte, in nanoseconds.
        latency_ns: u64,
        /// Each byte after that, in picoseconds.
        byte_ps: u64,
    },
}

/// The ranks of a communicator on the machines that they run on. The same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// Cores that the ranks of one host have together; at least 1. Ranks beyond them share cores.
    pub cores: u32,
    /// The host of each rank, in rank order; the numbers mean nothing but that. `None`: one for all.
    pub hosts: Option<Arc<[u32]>>,
    /// Between ranks of one host.
    pub near: Reach,
    /// Between ranks of different hosts.
    pub far: Reach,
}

impl Site {
    /// Ranks on one host with so many cores, which map each other's memory.
    #[must_use]
    pub const fn mapped(cores: u32) -> Self {
        Self {
            cores,
            hosts: None,
            near: Reach::Mapped,
            far: Reach::Mapped,
        }
    }

    /// Whether all ranks map each other's memory, so that they can send packets.
    #[must_use]
    pub fn maps_all(&self) -> bool {
        self.near == Reach::Mapped && (self.hosts.is_none() || self.far == Reach::Mapped)
    }

    pub(super) fn host(&self, rank: Rank) -> u32 {
        let host = self
            .hosts
            .as_ref()
            .and_then(|hosts| hosts.get(rank.index()));
        host.copied().unwrap_or(0)
    }

    pub(super) fn reach(&self, a: Rank, b: Rank) -> Reach {
        if self.host(a) == self.host(b) {
            self.near
        } else {
            self.far
        }
    }

    /// The core of each of so many ranks, counted over all hosts, and how many ranks share the
    /// fullest one. Ranks of a host get its cores in turn.
    pub(super) fn cores_of(&self, ranks: u32) -> (Vec<u32>, u64) {
        let mut on_host = std::collections::BTreeMap::<u32, u32>::new();
        let mut used = Vec::with_capacity(ranks as usize);
        let mut fullest = 1;
        for rank in (0..ranks).map(Rank) {
            let host = self.host(rank);
            let before = on_host.entry(host).or_default();
            let cores = self.cores.max(1);
            used.push((host, *before % cores));
            fullest = fullest.max(u64::from(*before / cores) + 1);
            *before += 1;
        }
        let mut numbers = used.clone();
        numbers.sort_unstable();
        numbers.dedup();
        let number = |core| numbers.binary_search(core).unwrap_or(0) as u32;
        (used.iter().map(number).collect(), fullest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_the_cores_of_their_host_in_turn() {
        let mut site = Site::mapped(2);
        assert_eq!(site.cores_of(5), (vec![0, 1, 0, 1, 0], 3));
        assert_eq!(site.cores_of(2), (vec![0, 1], 1));
        assert!(site.maps_all());
        site.hosts = Some([7, 7, 3, 3, 3].into());
        site.far = Reach::Wire {
            latency_ns: 1,
            byte_ps: 1,
        };
        assert_eq!(site.cores_of(5), (vec![2, 3, 0, 1, 0], 2));
        assert!(!site.maps_all());
        assert_eq!(site.reach(Rank(0), Rank(1)), Reach::Mapped);
        assert_ne!(site.reach(Rank(1), Rank(2)), Reach::Mapped);
    }
}
