//! The tables as the host keeps them: copied once, holes filled with functions that answer
//! "unsupported", so that no call tests for null.

use std::ffi::{c_char, c_void};

use hcomm_transport_abi::{
    Channel, ChannelAttrV1, CompletionV1, CountersV1, DataOpsV1, DescriptorV1, Device,
    DeviceAttrV1, Header, HostV1, Import, ImportAttrV1, NotifyLineV1, PeerV1, Region, STATUS_OK,
    STATUS_UNSUPPORTED, TransportV1,
};

/// Why a pointer is not taken for a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TableError {
    #[error("the table is null")]
    Null,
    #[error("the table lies at {0:#x}, which is not aligned to 8 bytes")]
    Misaligned(usize),
    #[error("the table begins with {found:#018x}; expected {expected:#018x}: not a table of hcomm")]
    Magic { expected: u64, found: u64 },
    #[error(
        "the table has major version {found}; expected {expected}: rebuild the plugin against this hcomm"
    )]
    Major { expected: u16, found: u16 },
    #[error("the table has {found} bytes; expected {expected}: built against an edited header")]
    Size { expected: u32, found: u32 },
}

/// The table behind a pointer that a plugin gave. Nothing but the header is read until it fits.
///
/// # Safety
/// `table` is null, or points to a [`Header`] followed by as many bytes as it says, which never
/// change; a header that fits in all parts is that of a `T`.
pub(crate) unsafe fn checked<T>(table: *const T) -> Result<&'static T, TableError> {
    if table.is_null() {
        return Err(TableError::Null);
    }
    if !table.is_aligned() {
        return Err(TableError::Misaligned(table.addr()));
    }
    // SAFETY: not null and aligned; the header is there by the caller's promise.
    let found = unsafe { *table.cast::<Header>() };
    let expected = Header::of::<T>();
    if found.magic != expected.magic {
        return Err(TableError::Magic {
            expected: expected.magic,
            found: found.magic,
        });
    }
    if found.major != expected.major {
        return Err(TableError::Major {
            expected: expected.major,
            found: found.major,
        });
    }
    if found.size != expected.size {
        return Err(TableError::Size {
            expected: expected.size,
            found: found.size,
        });
    }
    // SAFETY: the header fits, so a whole `T` is there, for ever.
    Ok(unsafe { &*table })
}

/// A plain table of functions from one of optional functions: `mandatory` entries must be there,
/// `or` gives the stand-in for the others.
macro_rules! filled_table {
    (
        $(#[$doc:meta])* $name:ident from $table:ty;
        $( $entry:ident: fn($($arg:ty),*) $(-> $ret:ty)? $(, or $stand_in:path)?; )*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name {
            $( pub(crate) $entry: unsafe extern "C" fn($($arg),*) $(-> $ret)?, )*
        }

        impl $name {
            /// Copies the table.
            ///
            /// # Errors
            /// The name of a mandatory entry that is null.
            pub(crate) fn from_table(table: &$table) -> Result<Self, &'static str> {
                Ok(Self {
                    $( $entry: table.$entry $(.or(Some($stand_in)))?.ok_or(stringify!($entry))?, )*
                })
            }
        }
    };
}

filled_table! {
    /// The slow calls.
    SlowCalls from TransportV1;
    init: fn(*const HostV1) -> i32;
    device_count: fn(*mut u32) -> i32;
    query_device: fn(u32, *mut DeviceAttrV1) -> i32;
    open_device: fn(u32, *mut *mut Device, *mut *const DataOpsV1) -> i32;
    close_device: fn(*mut Device) -> i32;
    register: fn(*mut Device, *mut c_void, u64, *mut *mut Region) -> i32, or no_register;
    allocate: fn(*mut Device, u64, *mut *mut Region, *mut *mut c_void) -> i32, or no_allocate;
    deregister: fn(*mut Device, *mut Region) -> i32;
    export_region: fn(*mut Device, *mut Region, *mut u8, u32, *mut u32) -> i32;
    import_region: fn(*mut Channel, *const u8, u32, *mut *mut Import, *mut ImportAttrV1) -> i32;
    release_import: fn(*mut Channel, *mut Import) -> i32;
    create_channel: fn(*mut Device, *const ChannelAttrV1, *mut *mut Channel) -> i32;
    local_blob: fn(*mut Channel, *mut u8, u32, *mut u32) -> i32;
    connect: fn(*mut Channel, *const u8, u32) -> i32;
    map_peer: fn(*mut Channel, *mut PeerV1) -> i32, or no_map_peer;
    destroy_channel: fn(*mut Channel) -> i32;
    counters: fn(*mut Device, *mut CountersV1) -> i32, or no_counters;
    describe: fn(*mut Channel, *mut c_char, u32) -> u32, or no_describe;
    last_error: fn(*mut c_char, u32) -> u32;
}

impl SlowCalls {
    /// The plugin's text to the latest negative status on this OS thread.
    pub(crate) fn error_text(&self) -> String {
        let mut text = [0u8; 1024];
        // SAFETY: `text` has room for as many bytes as we say.
        let len = unsafe { (self.last_error)(text.as_mut_ptr().cast(), text.len() as u32) };
        String::from_utf8_lossy(&text[..(len as usize).min(text.len())]).into_owned()
    }
}

filled_table! {
    /// The fast calls.
    FastCalls from DataOpsV1;
    post: fn(*mut Channel, *const DescriptorV1, u32, *mut u32, *mut u32) -> i32;
    poll: fn(*mut Device, *mut CompletionV1, u32, *mut u32) -> i32;
    flush: fn(*mut Channel) -> i32;
    progress: fn(*mut Device) -> i32;
    notify_line: fn(*mut Channel, u32) -> *mut NotifyLineV1;
    check: fn(*mut Channel) -> i32;
    wake_fd: fn(*mut Device) -> i32, or no_wake_fd;
    arm: fn(*mut Device) -> i32, or no_arm;
    ring: fn(*mut Channel), or no_ring;
    fetch: fn(*mut Channel, *mut c_void, u64, u64) -> i32, or no_fetch;
}

unsafe extern "C" fn no_register(
    _: *mut Device,
    _: *mut c_void,
    _: u64,
    _: *mut *mut Region,
) -> i32 {
    STATUS_UNSUPPORTED
}

unsafe extern "C" fn no_allocate(
    _: *mut Device,
    _: u64,
    _: *mut *mut Region,
    _: *mut *mut c_void,
) -> i32 {
    STATUS_UNSUPPORTED
}

unsafe extern "C" fn no_counters(_: *mut Device, _: *mut CountersV1) -> i32 {
    STATUS_UNSUPPORTED
}

unsafe extern "C" fn no_describe(_: *mut Channel, _: *mut c_char, _: u32) -> u32 {
    0
}

unsafe extern "C" fn no_wake_fd(_: *mut Device) -> i32 {
    -1
}

unsafe extern "C" fn no_arm(_: *mut Device) -> i32 {
    STATUS_OK
}

unsafe extern "C" fn no_map_peer(_: *mut Channel, _: *mut PeerV1) -> i32 {
    STATUS_UNSUPPORTED
}

unsafe extern "C" fn no_ring(_: *mut Channel) {}

unsafe extern "C" fn no_fetch(_: *mut Channel, _: *mut c_void, _: u64, _: u64) -> i32 {
    STATUS_UNSUPPORTED
}
