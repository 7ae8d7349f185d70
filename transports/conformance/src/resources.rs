//! What a process holds of the system's things.

use std::fs;
use std::io;

use serde::{Deserialize, Serialize};

/// Counts from `/proc/self`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Resources {
    /// Open descriptors.
    pub(crate) descriptors: usize,
    /// OS threads.
    pub(crate) threads: usize,
    /// Mappings that are shared: those of memory files and devices. Private ones come and go with
    /// the allocator.
    pub(crate) shared_mappings: usize,
    /// All mappings.
    pub(crate) mappings: usize,
}

impl Resources {
    pub(crate) fn count() -> io::Result<Self> {
        let maps = fs::read_to_string("/proc/self/maps")?;
        Ok(Self {
            descriptors: fs::read_dir("/proc/self/fd")?.count(),
            threads: fs::read_dir("/proc/self/task")?.count(),
            shared_mappings: maps
                .lines()
                .filter(|line| {
                    line.split(' ')
                        .nth(1)
                        .is_some_and(|access| access.ends_with('s'))
                })
                .count(),
            mappings: maps.lines().count(),
        })
    }
}
