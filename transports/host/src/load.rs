//! From a file or a linked table to a [`Plugin`], step by step; each step has its own reason to
//! refuse.

use std::collections::HashMap;
use std::error::Error as _;
use std::ffi::{CStr, c_char};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use hcomm_transport_abi::{
    ENTRY_SYMBOL, EntryV1, MINOR, STATUS_MISSING_LIBRARY, STATUS_MISSING_SYMBOL, STATUS_NO_DEVICE,
    TransportV1,
};
use hcomm_types::ProtocolSet;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::ReduceKernel;
use crate::find::{FileId, Found, Untrusted};
use crate::plugin::{Plugin, Source, explain, host_table};
use crate::raw::{SlowCalls, TableError, checked};

/// Why a plugin is refused, in the order of the steps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("not trusted: {0}")]
    Untrusted(#[from] Untrusted),
    #[error("dlopen: {0}")]
    Open(String),
    #[error("it exports no function `hcomm_transport_v1`: not a transport")]
    NoEntry,
    #[error("hcomm_transport_v1: {0}")]
    Table(#[from] TableError),
    #[error("the mandatory entry `{0}` of its table is null")]
    NullEntry(&'static str),
    #[error("its table is named `{found}`; the file name says `{expected}`")]
    Name { expected: String, found: String },
    #[error("it serves no protocol known here: bits {0:#x}")]
    NoProtocol(u32),
    #[cfg(feature = "rust-door")]
    #[error("Rust door: {0}")]
    RustDoor(#[from] crate::rust_door::DoorError),
    #[error("nothing to hand to it: {0}")]
    Host(String),
    #[error("init: {}", .0)]
    MissingLibrary(String),
    #[error("init: {}", .0)]
    MissingSymbol(String),
    #[error("init: {}", .0)]
    NoDevice(String),
    #[error("init: {}", .0)]
    Init(String),
}

impl LoadError {
    /// Whether this is a plain fact of the system, nothing that somebody has to repair.
    pub(crate) const fn is_expected(&self) -> bool {
        matches!(
            self,
            Self::MissingLibrary(_) | Self::MissingSymbol(_) | Self::NoDevice(_)
        )
    }
}

/// Loads a file, or returns what became of it before.
pub(crate) fn file(found: &Found, reduce: ReduceKernel) -> Result<&'static Plugin, LoadError> {
    let id = found.file.clone()?;
    let table = open(&found.path)?;
    let described = Described::read(table)?;
    if described.name != found.name {
        return Err(LoadError::Name {
            expected: found.name.clone(),
            found: described.name,
        });
    }
    #[cfg(feature = "rust-door")]
    let rust_door = crate::rust_door::check(&found.path, table)?;
    #[cfg(not(feature = "rust-door"))]
    let rust_door = false;
    tracing::debug!(
        plugin = %described.name,
        path = %found.path.display(),
        minor = table.header.minor,
        our_minor = MINOR,
        rust_door,
        "the plugin's table fits"
    );
    let source = Source::SharedObject(found.path.clone());
    once(Key::File(id), || described.init(source, reduce))
}

/// Checks and initialises a linked table, or returns what became of it before.
pub(crate) fn linked(
    table: &'static TransportV1,
    reduce: ReduceKernel,
) -> Result<&'static Plugin, LoadError> {
    let described = Described::read(table)?;
    once(Key::Table(std::ptr::from_ref(table).addr()), || {
        described.init(Source::Linked, reduce)
    })
}

/// Name of a linked table, as far as it can be read.
pub(crate) fn linked_name(table: &'static TransportV1) -> Result<String, LoadError> {
    // SAFETY: a reference to a table is a table; its header may still be wrong.
    let table = unsafe { checked(std::ptr::from_ref(table)) }?;
    text("name", table.name)
}

/// What identifies a plugin in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    File(FileId),
    Table(usize),
}

type Outcomes = HashMap<Key, Result<&'static Plugin, LoadError>>;

/// What init said, for the life of the process: it is called once for each plugin, whoever asks
/// and however often. The lock is held meanwhile, so that a second thread waits for the first.
fn once(
    key: Key,
    init: impl FnOnce() -> Result<&'static Plugin, LoadError>,
) -> Result<&'static Plugin, LoadError> {
    static OUTCOMES: Mutex<Option<Outcomes>> = Mutex::new(None);
    let mut outcomes = OUTCOMES.lock().unwrap_or_else(PoisonError::into_inner);
    outcomes
        .get_or_insert_default()
        .entry(key)
        .or_insert_with(init)
        .clone()
}

/// Opens the library, for ever, and asks for its table.
fn open(path: &Path) -> Result<&'static TransportV1, LoadError> {
    // SAFETY: the constructors of the library run here. The file and its folder were put there by
    // somebody who could as well have changed this program.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        // The loader's own sentence names what is missing; it stands in the source.
        LoadError::Open(
            error
                .source()
                .map_or_else(|| error.to_string(), ToString::to_string),
        )
    })?;
    // SAFETY: the symbol has this type by the contract of the ABI.
    let entry = unsafe { library.get::<EntryV1>(ENTRY_SYMBOL) }.map(|symbol| *symbol);
    // Never closed: thread-locals with destructors may keep code of it alive unseen.
    std::mem::forget(library);
    let entry = entry.map_err(|_| LoadError::NoEntry)?;
    // SAFETY: it takes nothing and may be called at any time.
    let table = unsafe { entry() };
    // SAFETY: the ABI's contract: the table never changes and its header tells what it is.
    Ok(unsafe { checked(table) }?)
}

/// A table that was found to be whole.
struct Described {
    name: String,
    vendor: String,
    version: String,
    protocols: ProtocolSet,
    calls: SlowCalls,
}

impl Described {
    fn read(table: &'static TransportV1) -> Result<Self, LoadError> {
        // SAFETY: a reference to a table is a table; a linked one may still have a wrong header.
        let table = unsafe { checked(std::ptr::from_ref(table)) }?;
        let calls = SlowCalls::from_table(table).map_err(LoadError::NullEntry)?;
        let protocols = ProtocolSet::from_bits(table.protocols);
        if protocols == ProtocolSet::EMPTY {
            return Err(LoadError::NoProtocol(table.protocols));
        }
        Ok(Self {
            name: text("name", table.name)?,
            vendor: text("vendor", table.vendor)?,
            version: text("version", table.version)?,
            protocols,
            calls,
        })
    }

    fn init(self, source: Source, reduce: ReduceKernel) -> Result<&'static Plugin, LoadError> {
        let host =
            host_table(&self.name, reduce).map_err(|error| LoadError::Host(error.to_string()))?;
        // SAFETY: the first call into the plugin, made once; the host's table lives for ever.
        let status = unsafe { (self.calls.init)(host) };
        if status < 0 {
            return Err(self.refused(status));
        }
        Ok(Box::leak(Box::new(Plugin {
            name: self.name,
            vendor: self.vendor,
            version: self.version,
            protocols: self.protocols,
            source,
            calls: self.calls,
        })))
    }

    /// What a negative status of init means.
    fn refused(&self, status: i32) -> LoadError {
        let said = self.calls.error_text();
        let (_, words) = explain(status);
        let sentence = if said.is_empty() {
            words
        } else {
            format!("{words}: {said}")
        };
        match status {
            STATUS_MISSING_LIBRARY => LoadError::MissingLibrary(sentence),
            STATUS_MISSING_SYMBOL => LoadError::MissingSymbol(sentence),
            STATUS_NO_DEVICE => LoadError::NoDevice(sentence),
            _ => LoadError::Init(sentence),
        }
    }
}

/// A text of a table.
fn text(entry: &'static str, pointer: *const c_char) -> Result<String, LoadError> {
    if pointer.is_null() {
        return Err(LoadError::NullEntry(entry));
    }
    // SAFETY: not null; the ABI's contract says that it is ended by a zero and stays.
    let text = unsafe { CStr::from_ptr(pointer) };
    Ok(text.to_string_lossy().into_owned())
}
