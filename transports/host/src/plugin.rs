//! A plugin that is loaded and initialised.

use std::ffi::{c_char, c_void};
use std::fmt;
use std::path::PathBuf;

use hcomm_transport_abi::{
    DeviceAttrV1, Header, HostV1, LOG_DEBUG, LOG_ERROR, LOG_INFO, LOG_WARN, STATUS_BAD_BLOB,
    STATUS_BUFFER_TOO_SMALL, STATUS_BUSY, STATUS_DEVICE_BROKEN, STATUS_INTERNAL,
    STATUS_INVALID_ARGUMENT, STATUS_LIMIT, STATUS_LINK_DOWN, STATUS_MISSING_LIBRARY,
    STATUS_MISSING_SYMBOL, STATUS_NO_DEVICE, STATUS_NO_RESOURCE, STATUS_NOT_CONNECTED,
    STATUS_NOTIFY_OVERFLOW, STATUS_OUT_OF_BOUNDS, STATUS_PEER_LOST, STATUS_REFUSED,
    STATUS_STALE_KEY, STATUS_SYSTEM, STATUS_UNSUPPORTED,
};
use hcomm_types::{Error, ErrorKind, ProtocolSet, Result};

use crate::ReduceKernel;
use crate::bell::Bell;
use crate::device::DeviceInfo;
use crate::raw::SlowCalls;
use crate::waiter;

/// Where a plugin came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Linked into the program.
    Linked,
    /// Loaded from this file.
    SharedObject(PathBuf),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linked => f.write_str("linked in"),
            Self::SharedObject(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A plugin that is loaded, checked and initialised. Lives until the process ends.
pub struct Plugin {
    pub(crate) name: String,
    pub(crate) vendor: String,
    pub(crate) version: String,
    pub(crate) protocols: ProtocolSet,
    pub(crate) source: Source,
    pub(crate) calls: SlowCalls,
}

impl Plugin {
    /// Short name: `shm`, `roce`, ...
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Who made it.
    #[must_use]
    pub fn vendor(&self) -> &str {
        &self.vendor
    }

    /// Its own version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Protocols it serves.
    #[must_use]
    pub const fn protocols(&self) -> ProtocolSet {
        self.protocols
    }

    /// Where it came from.
    #[must_use]
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// The devices it sees now.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn devices(&'static self) -> Result<Vec<DeviceInfo>> {
        let mut count = 0u32;
        // SAFETY: the plugin is initialised; `count` is ours.
        self.status("device_count", unsafe {
            (self.calls.device_count)(&raw mut count)
        })?;
        (0..count)
            .map(|index| {
                // SAFETY: all-zero integers are a valid value of this table.
                let mut attr: DeviceAttrV1 = unsafe { std::mem::zeroed() };
                // SAFETY: as above; `attr` is ours.
                let status = unsafe { (self.calls.query_device)(index, &raw mut attr) };
                self.status("query_device", status)?;
                DeviceInfo::from_table(self, index, &attr)
            })
            .collect()
    }

    /// Turns a status of a slow call into a result; `Ok` holds the non-negative status. The text
    /// is the plugin's own.
    pub(crate) fn status(&self, call: &str, status: i32) -> Result<i32> {
        if status >= 0 {
            return Ok(status);
        }
        Err(self.fault(call, status, &self.calls.error_text()))
    }

    /// The error to a negative status of a fast call, which has no text.
    pub(crate) fn fault(&self, call: &str, status: i32, text: &str) -> Error {
        let (kind, words) = explain(status);
        let separator = if text.is_empty() { "" } else { ": " };
        Error::new(
            kind,
            format!("{} {call}: {words}{separator}{text}", self.name),
        )
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin")
            .field("name", &self.name)
            .field("version", &self.version)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// What a negative status means: its kind, and in words.
pub(crate) fn explain(status: i32) -> (ErrorKind, String) {
    let (kind, words) = match status {
        STATUS_INVALID_ARGUMENT => (ErrorKind::InvalidArgument, "invalid argument"),
        STATUS_UNSUPPORTED => (ErrorKind::Unsupported, "unsupported"),
        STATUS_NO_RESOURCE => (ErrorKind::LimitReached, "queue full"),
        STATUS_OUT_OF_BOUNDS => (ErrorKind::OutOfBounds, "out of bounds"),
        STATUS_BUFFER_TOO_SMALL => (ErrorKind::Internal, "buffer too small"),
        STATUS_BAD_BLOB => (ErrorKind::Mismatch, "the peer's blob is not understood"),
        STATUS_STALE_KEY => (
            ErrorKind::Refused,
            "the peer's region does not exist any more",
        ),
        STATUS_LIMIT => (ErrorKind::LimitReached, "system limit"),
        STATUS_SYSTEM => (ErrorKind::System, "system error"),
        STATUS_NOTIFY_OVERFLOW => (ErrorKind::InvalidArgument, "too many notifies outstanding"),
        STATUS_BUSY => (ErrorKind::InvalidArgument, "still in use"),
        STATUS_PEER_LOST => (ErrorKind::PeerLost, "the peer's end is gone"),
        STATUS_NOT_CONNECTED => (ErrorKind::InvalidArgument, "not connected"),
        STATUS_LINK_DOWN => (ErrorKind::LinkDown, "link down"),
        STATUS_REFUSED => (ErrorKind::Refused, "the peer did not prove who it is"),
        STATUS_DEVICE_BROKEN => (ErrorKind::Plugin, "device broken"),
        STATUS_MISSING_LIBRARY => (ErrorKind::Plugin, "vendor library missing"),
        STATUS_MISSING_SYMBOL => (ErrorKind::Plugin, "vendor library lacks a function"),
        STATUS_NO_DEVICE => (ErrorKind::Plugin, "no device"),
        STATUS_INTERNAL => (ErrorKind::Plugin, "the plugin broke a promise"),
        other => return (ErrorKind::Plugin, format!("unknown status {other}")),
    };
    (kind, words.to_owned())
}

/// Makes the table that a plugin gets at init. Leaked: a plugin may keep it for ever.
pub(crate) fn host_table(name: &str, reduce: ReduceKernel) -> Result<&'static HostV1> {
    let bell = Bell::process()?;
    let name: &'static String = Box::leak(Box::new(name.to_owned()));
    Ok(Box::leak(Box::new(HostV1 {
        header: Header::of::<HostV1>(),
        context: (&raw const *name).cast_mut().cast(),
        log: Some(host_log),
        now_ns: Some(host_now),
        reduce: Some(reduce),
        ring: Some(host_ring),
        bell_memfd: bell.memfd(),
        bell_offset: 0,
        bell_eventfd: bell.event_descriptor(),
        reserved: 0,
    })))
}

unsafe extern "C" fn host_log(context: *mut c_void, level: u32, text: *const c_char, len: usize) {
    if context.is_null() || text.is_null() {
        return;
    }
    // SAFETY: the context is the leaked name of `host_table`; the text is `len` bytes by the
    // table's contract.
    let (plugin, bytes) = unsafe {
        (
            &*context.cast::<String>(),
            std::slice::from_raw_parts(text.cast::<u8>(), len),
        )
    };
    let text = String::from_utf8_lossy(bytes);
    match level {
        LOG_ERROR => tracing::error!(target: "hcomm::plugin", plugin = %plugin, "{text}"),
        LOG_WARN => tracing::warn!(target: "hcomm::plugin", plugin = %plugin, "{text}"),
        LOG_INFO => tracing::info!(target: "hcomm::plugin", plugin = %plugin, "{text}"),
        LOG_DEBUG => tracing::debug!(target: "hcomm::plugin", plugin = %plugin, "{text}"),
        _ => tracing::trace!(target: "hcomm::plugin", plugin = %plugin, "{text}"),
    }
}

unsafe extern "C" fn host_now(_context: *mut c_void) -> u64 {
    waiter::now().0
}

unsafe extern "C" fn host_ring(_context: *mut c_void) {
    if let Ok(bell) = Bell::process() {
        bell.ring();
    }
}
