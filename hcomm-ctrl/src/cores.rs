//! Which cores a process may use, and whether the ranks of a host have one each.
//!
//! A launcher may bind every rank to a core of its own, or a container may leave few cores to many
//! ranks: one process alone sees the same in both cases. So ranks tell each other.

use std::collections::{BTreeMap, BTreeSet};

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
    (ranks.max(1), count(&ranges).max(1))
}

/// How many cores the ranks of a host may use together, on the host where that is least: at least
/// one. `ranks` are the host and the cores of each rank.
pub(crate) fn fewest<'a, H: Ord + 'a>(ranks: impl Iterator<Item = (&'a H, &'a Cores)>) -> u32 {
    let mut hosts = BTreeMap::<&H, BTreeSet<(u32, u32)>>::new();
    for (host, cores) in ranks {
        hosts
            .entry(host)
            .or_default()
            .extend(cores.0.iter().copied());
    }
    let least = hosts.values().map(count).min().unwrap_or(1);
    u32::try_from(least.max(1)).unwrap_or(u32::MAX)
}

/// How many cores lie in ranges.
fn count(ranges: &BTreeSet<(u32, u32)>) -> usize {
    // In ascending order: what lies behind the last one counted is new.
    let mut count = 0;
    let mut next = 0;
    for (first, last) in ranges {
        let from = u64::from(*first).max(next);
        let end = u64::from(*last) + 1;
        count += end.saturating_sub(from);
        next = next.max(end);
    }
    count as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(list: &[u32]) -> Cores {
        list.iter().copied().collect()
    }

    #[test]
    fn the_host_with_the_fewest_cores_counts() {
        let (many, few) = (cores(&[0, 1, 2, 3, 8]), cores(&[2, 3]));
        let ranks = [("a", &many), ("b", &few), ("b", &few), ("a", &few)];
        let fewest_of = |ranks: &[(&str, &Cores)]| fewest(ranks.iter().map(|(h, c)| (h, *c)));
        assert_eq!(fewest_of(&ranks), 2);
        assert_eq!(fewest_of(&ranks[..1]), 5);
        assert_eq!(fewest_of(&[("c", &cores(&[]))]), 1);
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
