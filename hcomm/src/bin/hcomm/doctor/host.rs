//! The host that checks look at: files of `/proc` and `/sys`, live or recorded, and a few numbers
//! that are asked for in other ways.

use hcomm_topo::System;

/// What checks look at.
pub(super) struct Host<'a> {
    system: &'a dyn System,
    /// Ranks that are, or would be, on this host; where nobody says, as many as cores.
    pub(super) local_ranks: u32,
    /// Ranks of the job; as `local_ranks` where nobody says.
    pub(super) ranks: u32,
    /// Whether this process is one of them, and so may be bound to fewer cores than all have.
    pub(super) is_rank: bool,
}

/// A limit of `/proc/self/limits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// What holds; none for no limit.
    pub(super) soft: Option<u64>,
    /// How far it can be raised without root; none for no limit.
    pub(super) hard: Option<u64>,
}

impl<'a> Host<'a> {
    /// A host, with as many ranks.
    pub(super) const fn new(system: &'a dyn System, local_ranks: u32, ranks: u32) -> Self {
        Self {
            system,
            local_ranks,
            ranks,
            is_rank: false,
        }
    }

    /// The same, looked at by one of the ranks.
    pub(super) const fn by_rank(mut self, is_rank: bool) -> Self {
        self.is_rank = is_rank;
        self
    }

    /// A file, without the space around it; none if it cannot be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let text = self.system.read(path).ok()?;
        Some(text.trim().to_owned())
    }

    /// A file that holds one number.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The last part of where a symbolic link leads.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let target = self.system.link_target(path).ok()?;
        target.rsplit('/').next().map(str::to_owned)
    }

    /// The rest of the line of a file that begins so.
    pub(super) fn line(&self, path: &str, begin: &str) -> Option<String> {
        let text = self.text(path)?;
        let rest = text.lines().find_map(|line| line.strip_prefix(begin))?;
        Some(rest.trim().to_owned())
    }

    /// The word in brackets, of files such as `always [madvise] never`.
    pub(super) fn chosen(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let (_, rest) = text.split_once('[')?;
        Some(rest.split_once(']')?.0.to_owned())
    }

    /// A limit of this process, by its name in `/proc/self/limits`.
    pub(super) fn limit(&self, name: &str) -> Option<Limit> {
        let rest = self.line("/proc/self/limits", name)?;
        let mut values = rest.split_whitespace().map(|word| match word {
            "unlimited" => Some(None),
            number => number.parse().ok().map(Some),
        });
        Some(Limit {
            soft: values.next()??,
            hard: values.next()??,
        })
    }

    /// The folders of this process's control group and of those around it, innermost first, with
    /// the controller `name` of the first version, or of the second version.
    pub(super) fn groups(&self, name: &str) -> Vec<String> {
        let lines = self.text("/proc/self/cgroup").unwrap_or_default();
        let mut folders = Vec::new();
        for line in lines.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
                continue;
            };
            let root = match controllers {
                "" => "/sys/fs/cgroup".to_owned(),
                _ if controllers.split(',').any(|one| one == name) => {
                    // Both orders are met: `cpu,cpuacct` and a link `cpu`.
                    format!("/sys/fs/cgroup/{name}")
                }
                _ => continue,
            };
            let mut path = path.trim_end_matches('/');
            loop {
                folders.push(format!("{root}{path}"));
                match path.rsplit_once('/') {
                    Some((outer, _)) => path = outer,
                    None => break,
                }
            }
        }
        folders
    }
}

/// Bytes for people.
pub(super) fn bytes(number: u64) -> String {
    match number {
        0..=9999 => format!("{number} bytes"),
        _ if number < 10 << 20 => format!("{} KiB", number >> 10),
        _ if number < 10 << 30 => format!("{} MiB", number >> 20),
        _ => format!("{} GiB", number >> 30),
    }
}

/// A limit for people.
pub(super) fn or_none(limit: Option<u64>, words: impl Fn(u64) -> String) -> String {
    limit.map_or_else(|| "no limit".to_owned(), words)
}

/// Files as a test has recorded them.
#[cfg(test)]
pub(super) mod recorded {
    use std::collections::BTreeMap;
    use std::io;

    use hcomm_topo::{Interface, System};

    #[derive(Default)]
    pub(crate) struct Recorded(BTreeMap<String, String>);

    impl Recorded {
        pub(crate) fn new(files: &[(&str, &str)]) -> Self {
            Self::default().with(files)
        }

        /// The same with other files, or other contents.
        pub(crate) fn with(mut self, files: &[(&str, &str)]) -> Self {
            for (path, text) in files {
                self.0.insert((*path).to_owned(), (*text).to_owned());
            }
            self
        }
    }

    impl System for Recorded {
        fn read(&self, path: &str) -> io::Result<String> {
            let text = self.0.get(path).cloned();
            text.ok_or_else(|| io::ErrorKind::NotFound.into())
        }

        fn list(&self, path: &str) -> io::Result<Vec<String>> {
            let folder = format!("{path}/");
            let inside = self.0.keys().filter_map(|file| file.strip_prefix(&folder));
            let mut names: Vec<String> = inside
                .filter_map(|rest| rest.split('/').next().map(str::to_owned))
                .collect();
            names.dedup();
            Ok(names)
        }

        fn link_target(&self, path: &str) -> io::Result<String> {
            self.read(path)
        }

        fn host_name(&self) -> io::Result<String> {
            self.read("/proc/sys/kernel/hostname")
        }

        fn interfaces(&self) -> io::Result<Vec<Interface>> {
            Ok(Vec::new())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::recorded::Recorded;
    use super::*;

    #[test]
    fn limits_and_groups_are_read() {
        let system = Recorded::new(&[
            (
                "/proc/self/limits",
                "Limit    Soft Limit  Hard Limit  Units\n\
                 Max open files            1024                 4096                 files\n\
                 Max locked memory         unlimited            unlimited            bytes\n",
            ),
            (
                "/proc/self/cgroup",
                "4:memory:/a/b\n3:cpu,cpuacct:/\n0::/x\n",
            ),
            ("/mode", "always [madvise] never\n"),
        ]);
        let host = Host::new(&system, 2, 2);
        let limit = |soft, hard| Some(Limit { soft, hard });
        assert_eq!(host.limit("Max open files"), limit(Some(1024), Some(4096)));
        assert_eq!(host.limit("Max locked memory"), limit(None, None));
        assert_eq!(host.limit("Max processes"), None);
        assert_eq!(
            host.groups("memory"),
            [
                "/sys/fs/cgroup/memory/a/b",
                "/sys/fs/cgroup/memory/a",
                "/sys/fs/cgroup/memory",
                "/sys/fs/cgroup/x",
                "/sys/fs/cgroup"
            ]
        );
        assert_eq!(host.groups("cpu")[0], "/sys/fs/cgroup/cpu");
        assert_eq!(host.chosen("/mode").as_deref(), Some("madvise"));
    }

    #[test]
    fn bytes_are_written_for_people() {
        for (number, words) in [(0, "0 bytes"), (65536, "64 KiB"), (24 << 30, "24 GiB")] {
            assert_eq!(bytes(number), words);
        }
    }
}
