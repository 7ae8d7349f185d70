//! Which cores a process may use, and whether the ranks of a host have one each.
//!
//! A launcher may bind every rank to a core of its own, or a container may leave few cores to many
//! ranks: one process alone sees the same in both cases. So ranks tell each other.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Numbers of logical processors, as ranges with both ends included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cores(Vec<(u32, u32)>);

impl Cores {
    /// Those that this process may use. Nothing if the system does not say.
    pub(crate) fn here() -> Self {
        rustix::thread::sched_getaffinity(None).map_or_else(
            |_| Self(Vec::new()),
            |set| {
                (0..rustix::thread::CpuSet::MAX_CPU)
                    .filter(|&core| set.is_set(core))
                    .filter_map(|core| u32::try_from(core).ok())
                    .collect()
            },
        )
    }

    fn overlap(&self, other: &Self) -> bool {
        self.0.iter().any(|(first, last)| {
            let apart = |(from, to): &(u32, u32)| to < first || last < from;
            !other.0.iter().all(apart)
        })
    }
}

impl FromIterator<u32> for Cores {
    /// From numbers in ascending order.
    fn from_iter<I: IntoIterator<Item = u32>>(cores: I) -> Self {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for core in cores {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == core => *last = core,
                _ => ranges.push((core, core)),
            }
        }
        Self(ranges)
    }
}

/// How many ranks share cores with one that may use `own`, itself included, and how many cores all
/// of these may use. `all` are the cores of every rank of the host. At least one of each.
pub(crate) fn share<'a>(own: &Cores, all: impl Iterator<Item = &'a Cores>) -> (usize, usize) {
    let mut ranks = 0;
    let mut ranges = BTreeSet::new();
    for cores in all.filter(|cores| own.overlap(cores)) {
        ranks += 1;
        ranges.extend(cores.0.iter().copied());
    }
    // In ascending order: what lies behind the last one counted is new.
    let mut count = 0;
    let mut next = 0;
    for (first, last) in ranges {
        let from = u64::from(first).max(next);
        let end = u64::from(last) + 1;
        count += end.saturating_sub(from);
        next = next.max(end);
    }
    (ranks.max(1), (count as usize).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(list: &[u32]) -> Cores {
        list.iter().copied().collect()
    }

    #[test]
    fn this_process_has_cores() {
        let here = Cores::here();
        assert_eq!(
            share(&here, [&here, &here].into_iter()),
            (2, std::thread::available_parallelism().unwrap().get())
        );
    }

    #[test]
    fn bound_ranks_have_a_core_each() {
        let all: Vec<Cores> = (0..4).map(|core| cores(&[core])).collect();
        assert_eq!(share(&all[2], all.iter()), (1, 1));
    }

    #[test]
    fn ranks_on_the_same_cores_share_them() {
        let both = cores(&[0, 1]);
        assert_eq!(share(&both, std::iter::repeat_n(&both, 8)), (8, 2));
    }

    #[test]
    fn overlapping_sets_count_each_core_once() {
        let all = [cores(&[0, 1, 2, 5]), cores(&[1, 2, 3]), cores(&[7])];
        assert_eq!(share(&all[0], all.iter()), (2, 5));
        assert_eq!(share(&cores(&[]), all.iter()), (1, 1));
    }
}
