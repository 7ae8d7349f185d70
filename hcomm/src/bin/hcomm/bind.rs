//! Which cores the ranks of this host run on.

use clap::ValueEnum;
use hcomm_types::{Error, ErrorKind, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where ranks may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Bind {
    /// Each rank on one core of its own
    Core,
    /// Each rank on its share of the cores
    Share,
    /// Each rank on any core
    None,
}

impl Bind {
    /// The cores of each rank; no list if they are not bound. Without a `wish` they are bound in
    /// the `usual` way, unless they are too many for that, or one alone.
    ///
    /// # Errors
    /// `InvalidArgument` if the wish cannot be fulfilled.
    pub(crate) fn cores(wish: Option<Self>, usual: Self, ranks: u32) -> Result<Vec<Vec<usize>>> {
        let available = bound_to()?;
        let wanted = match wish {
            Some(Self::None) => return Ok(Vec::new()),
            Some(wish) if ranks as usize <= available.len() => wish,
            Some(_) => {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!(
                        "--bind: {ranks} ranks, but this process may use {} cores",
                        available.len()
                    ),
                )
                .hint("start fewer ranks, or use --bind none"));
            }
            None if ranks > 1 && ranks as usize <= available.len() => usual,
            None => return Ok(Vec::new()),
        };
        Ok(wanted.divide(&available, ranks as usize))
    }

    /// Cores for each of so many ranks, at most as many as there are cores.
    fn divide(self, available: &[usize], ranks: usize) -> Vec<Vec<usize>> {
        let cores = available.len();
        (0..ranks)
            .map(|rank| {
                let start = rank * cores / ranks;
                let end = match self {
                    Self::Core => start + 1,
                    Self::Share => (rank + 1) * cores / ranks,
                    Self::None => return available.to_vec(),
                };
                available[start..end].to_vec()
            })
            .collect()
    }
}

/// Binds this OS thread, and those that it starts from now on, to these cores.
///
/// # Errors
/// If the system refuses.
pub(crate) fn bind(cores: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for &core in cores.iter().filter(|core| **core < CpuSet::MAX_CPU) {
        set.set(core);
    }
    sched_setaffinity(None, &set)
        .map_err(|error| Error::system(format!("binding to cores {cores:?}"), error.into()))
}

/// The cores that this OS thread may run on.
///
/// # Errors
/// If the system does not tell.
pub(crate) fn bound_to() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None)
        .map_err(|error| Error::system("asking for the cores of this process", error.into()))?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_no_core() {
        let available = [0, 2, 4, 5, 9];
        let core = Bind::Core.divide(&available, 2);
        assert_eq!(core, [[0], [4]]);
        let share = Bind::Share.divide(&available, 2);
        assert_eq!(share, [vec![0, 2], vec![4, 5, 9]]);
        for bind in [Bind::Core, Bind::Share] {
            assert_eq!(bind.divide(&available, 5), available.map(|core| [core]));
        }
    }

    #[test]
    fn a_thread_is_where_it_was_bound() {
        let cores = bound_to().unwrap();
        let one = cores[cores.len() - 1];
        std::thread::spawn(move || {
            bind(&[one]).unwrap();
            assert_eq!(bound_to().unwrap(), [one]);
        })
        .join()
        .unwrap();
        assert_eq!(bound_to().unwrap(), cores);
    }

    #[test]
    fn too_many_ranks_are_bound_only_if_nobody_asked_for_it() {
        let many = bound_to().unwrap().len() as u32 + 1;
        let cores = |wish, ranks| Bind::cores(wish, Bind::Core, ranks);
        assert!(cores(None, many).unwrap().is_empty());
        assert!(cores(None, 1).unwrap().is_empty());
        assert!(cores(Some(Bind::None), 1).unwrap().is_empty());
        assert_eq!(cores(Some(Bind::Core), 1).unwrap().len(), 1);
        let error = cores(Some(Bind::Core), many).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}
