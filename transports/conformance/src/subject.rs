//! What is tested: a plugin, through one of its doors.

use std::ffi::CStr;
use std::fmt;
use std::path::{Path, PathBuf};

use hcomm_transport::{LoadOptions, Plugin, Selection, Source, Transports};
use hcomm_transport_abi::TransportV1;

use crate::kernel;

/// Where the plugin comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Door {
    Linked(&'static TransportV1),
    File,
}

/// A plugin under test, and how a process of the suite is started again.
#[derive(Clone, Debug)]
pub struct Subject {
    door: Door,
    path: PathBuf,
    restart: Vec<String>,
}

impl Subject {
    /// A table that is linked into this test program; `test` is the full name of the calling test.
    #[must_use]
    pub fn linked(table: &'static TransportV1, test: &str) -> Self {
        Self {
            door: Door::Linked(table),
            path: PathBuf::new(),
            restart: restart(test),
        }
    }

    /// The library that cargo has built for this test program: beside it, or one folder up. Says
    /// on standard error which file it is.
    ///
    /// # Panics
    /// If there is none: a test of the built library that runs without it would prove nothing.
    #[must_use]
    pub fn built(name: &str, test: &str) -> Self {
        let file = format!("libhcomm_transport_{name}.so");
        let program = std::env::current_exe().expect("the program knows its own path");
        let folders: Vec<&Path> = program.ancestors().skip(1).take(2).collect();
        let path = folders
            .iter()
            .map(|folder| folder.join(&file))
            .find(|path| path.is_file())
            .unwrap_or_else(|| panic!("no {file} in {folders:?}: build the transport's package"));
        eprintln!("conformance of {}", path.display());
        Self {
            restart: restart(test),
            ..Self::file(path)
        }
    }

    /// A library by its path, `libhcomm_transport_<name>.so`. For programs without a test harness:
    /// a process of the suite is this program with the arguments `--plugin` and the path, and must
    /// call [`run`](crate::run) with this subject again.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let restart = vec!["--plugin".to_owned(), path.to_string_lossy().into_owned()];
        Self {
            door: Door::File,
            path,
            restart,
        }
    }

    pub(crate) fn door(&self) -> Door {
        self.door
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Arguments that bring a new process of this program to where this one is.
    pub(crate) fn restart(&self) -> &[String] {
        &self.restart
    }

    /// Loads it, as the library does.
    ///
    /// # Errors
    /// Why it is refused.
    pub(crate) fn load(&self) -> Result<&'static Plugin, String> {
        let (name, path, linked) = match self.door {
            Door::Linked(table) => {
                let table = renamed(table)?;
                (
                    LINKED_NAME.to_string_lossy().into_owned(),
                    Vec::new(),
                    vec![table],
                )
            }
            Door::File => {
                let (folder, name) = self.folder_and_name()?;
                (name, vec![folder], Vec::new())
            }
        };
        let transports = Transports::load(&LoadOptions {
            selection: Selection::Only(vec![name.clone()]),
            path,
            linked,
            reduce: kernel::reduce,
        })
        .map_err(|error| error.to_string())?;
        let plugin = transports
            .plugin(&name)
            .ok_or_else(|| format!("{self} was loaded and is not used"))?;
        match (self.door, plugin.source()) {
            (Door::Linked(_), Source::Linked) => Ok(plugin),
            (Door::File, Source::SharedObject(found)) if same_file(found, &self.path) => Ok(plugin),
            (_, source) => Err(format!("asked for {self}, the loader used {source}")),
        }
    }

    fn folder_and_name(&self) -> Result<(PathBuf, String), String> {
        let name = self
            .path
            .file_name()
            .and_then(|file| file.to_str())
            .and_then(|file| {
                file.strip_prefix("libhcomm_transport_")?
                    .strip_suffix(".so")
            })
            .ok_or_else(|| {
                format!(
                    "{}: a transport's file is named libhcomm_transport_<name>.so",
                    self.path.display()
                )
            })?;
        let folder = self
            .path
            .canonicalize()
            .map_err(|error| format!("{}: {error}", self.path.display()))?;
        let folder = folder.parent().unwrap_or_else(|| Path::new("/")).to_owned();
        Ok((folder, name.to_owned()))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.door {
            Door::Linked(_) => f.write_str("the linked table"),
            Door::File => write!(f, "{}", self.path.display()),
        }
    }
}

/// A found library wins over a linked table of the same name, and beside a test program there is
/// one. Under a name of its own the linked one is what is tested.
const LINKED_NAME: &CStr = c"linked";

fn renamed(table: &'static TransportV1) -> Result<&'static TransportV1, String> {
    if table.name.is_null() {
        return Err("the table's name is null".to_owned());
    }
    Ok(Box::leak(Box::new(TransportV1 {
        name: LINKED_NAME.as_ptr(),
        ..*table
    })))
}

fn same_file(a: &Path, b: &Path) -> bool {
    a.canonicalize().ok() == b.canonicalize().ok()
}

fn restart(test: &str) -> Vec<String> {
    // The harness names tests without the crate.
    let name = test.split_once("::").map_or(test, |(_, name)| name);
    ["--exact", name, "--nocapture", "--test-threads=1"]
        .map(str::to_owned)
        .to_vec()
}
