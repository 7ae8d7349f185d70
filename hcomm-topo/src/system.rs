//! Where facts about a host come from: the running system, or a recording of one.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;

use crate::interface::Interface;
use crate::netlink;

/// Reads a system. [`discover`](crate::discover) asks nothing but this.
///
/// Paths are absolute, as on the live system (`/sys/devices/system/cpu/online`). An error means
/// "not there" or "not readable"; discovery then does without and says so.
pub trait System {
    /// Text of a file, up to [`MAX_FILE_BYTES`]; what is longer is cut, bytes that are no UTF-8
    /// are replaced.
    ///
    /// # Errors
    /// If the file cannot be read.
    fn read(&self, path: &str) -> io::Result<String>;

    /// Names of the entries of a folder, sorted.
    ///
    /// # Errors
    /// If the folder cannot be read.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;

    /// Target of a symbolic link, as text.
    ///
    /// # Errors
    /// If there is no such link.
    fn link_target(&self, path: &str) -> io::Result<String>;

    /// Name of the host.
    ///
    /// # Errors
    /// If it has none.
    fn host_name(&self) -> io::Result<String>;

    /// Network interfaces with their addresses. Speed, NUMA node and default route are left
    /// empty: discovery adds them.
    ///
    /// # Errors
    /// If the system does not say.
    fn interfaces(&self) -> io::Result<Vec<Interface>>;
}

/// Most bytes of a file that are looked at. Files of sysfs are pages; those of procfs that matter
/// here have the interesting lines first.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// The system that this program runs on: `/sys`, `/proc`, and the kernel's own answer about
/// interfaces (a `NETLINK_ROUTE` socket), which needs neither.
#[derive(Clone, Copy, Debug, Default)]
pub struct LiveSystem;

impl System for LiveSystem {
    fn read(&self, path: &str) -> io::Result<String> {
        read_text(File::open(path)?)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        sorted_names(fs::read_dir(path)?)
    }

    fn link_target(&self, path: &str) -> io::Result<String> {
        Ok(fs::read_link(path)?.to_string_lossy().into_owned())
    }

    fn host_name(&self) -> io::Result<String> {
        let uname = rustix::system::uname();
        Ok(uname.nodename().to_string_lossy().into_owned())
    }

    fn interfaces(&self) -> io::Result<Vec<Interface>> {
        netlink::interfaces()
    }
}

/// A system as files below a folder.
///
/// * `<root>/sys/…` and `<root>/proc/…` hold the files as they were read;
/// * a symbolic link is a file with its target as text;
/// * the host name is `<root>/proc/sys/kernel/hostname`;
/// * `<root>/interfaces.json` is the list of interfaces.
///
/// `cargo run -p hcomm-topo --example show -- --record FOLDER` writes such a folder.
#[derive(Clone, Debug)]
pub struct RecordedSystem {
    root: PathBuf,
}

impl RecordedSystem {
    /// File below the root that holds the list of interfaces.
    pub const INTERFACES: &str = "interfaces.json";

    /// The system recorded below `root`.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn place(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

impl System for RecordedSystem {
    fn read(&self, path: &str) -> io::Result<String> {
        read_text(File::open(self.place(path))?)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        sorted_names(fs::read_dir(self.place(path))?)
    }

    fn link_target(&self, path: &str) -> io::Result<String> {
        Ok(self.read(path)?.trim_end().to_owned())
    }

    fn host_name(&self) -> io::Result<String> {
        Ok(self
            .read("/proc/sys/kernel/hostname")?
            .trim_end()
            .to_owned())
    }

    fn interfaces(&self) -> io::Result<Vec<Interface>> {
        let text = self.read(Self::INTERFACES)?;
        serde_json::from_str(&text).map_err(io::Error::from)
    }
}

fn read_text(file: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

fn sorted_names(entries: fs::ReadDir) -> io::Result<Vec<String>> {
    let mut names = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names)
}
