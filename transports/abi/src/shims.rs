//! From a [`Transport`] to tables of C functions. All `unsafe` of a plugin written in Rust that
//! only concerns the border is here, once.

use core::ffi::{c_char, c_void};
use core::marker::PhantomData;
use core::ptr::NonNull;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::tables::{
    Channel, ChannelAttrV1, CompletionV1, CountersV1, DataOpsV1, DescriptorV1, Device,
    DeviceAttrV1, Header, HostV1, Import, ImportAttrV1, MAGIC, MAJOR, NotifyLineV1, PeerV1, Region,
    STATUS_BUFFER_TOO_SMALL, STATUS_IN_PROGRESS, STATUS_INTERNAL, STATUS_INVALID_ARGUMENT,
    STATUS_OK, TransportV1,
};
use crate::transport::{Connect, Fault, Host, Transport};

/// Exports a [`Transport`] through both doors. Write it once in a plugin's crate root:
/// `hcomm_transport_abi::export_transport!(MyTransport);`
///
/// It also makes a function `transport_v1()` that returns the same table, for programs that link
/// the plugin in.
#[macro_export]
macro_rules! export_transport {
    ($transport:ty) => {
        /// The table of this transport.
        #[must_use]
        pub fn transport_v1() -> &'static $crate::TransportV1 {
            static TABLE: $crate::TransportV1 = $crate::shims::Tables::<$transport>::TRANSPORT;
            &TABLE
        }

        const _: () = {
            #[unsafe(no_mangle)]
            extern "C" fn hcomm_transport_v1() -> *const $crate::TransportV1 {
                transport_v1()
            }
        };

        $crate::export_rust_door!(transport_v1);
    };
}

/// The abi_stable half of [`export_transport!`]; nothing without the feature `rust-door`.
///
/// It is written out here, because abi_stable's own attribute demands that the plugin depends on
/// abi_stable by that name.
#[cfg(feature = "rust-door")]
#[doc(hidden)]
#[macro_export]
macro_rules! export_rust_door {
    ($table:path) => {
        const _: () = {
            use $crate::abi_stable::library::{
                __call_root_module_loader, CheckTypeLayout, LibHeader, RootModuleResult,
            };

            extern "C" fn door_table() -> &'static $crate::TransportV1 {
                $table()
            }

            fn rust_door() -> $crate::RustDoorRef {
                $crate::shims::rust_door(door_table)
            }

            extern "C" fn root_module() -> RootModuleResult {
                __call_root_module_loader(rust_door)
            }

            // SAFETY: the constructor returns a `RustDoorRef` with its type erased.
            #[allow(non_upper_case_globals)]
            #[unsafe(no_mangle)]
            static _1as_0lib_1header_0root_bmodule_bloader: LibHeader = unsafe {
                LibHeader::from_constructor::<$crate::RustDoorRef>(
                    root_module,
                    CheckTypeLayout::Yes,
                )
            };
        };
    };
}

/// The symbol above is the one that abi_stable's loader asks for.
#[cfg(feature = "rust-door")]
const _: () = {
    let expected = abi_stable::library::ROOT_MODULE_LOADER_NAME.as_bytes();
    let written = b"_1as_0lib_1header_0root_bmodule_bloader";
    assert!(expected.len() == written.len());
    let mut index = 0;
    while index < written.len() {
        assert!(expected[index] == written[index]);
        index += 1;
    }
};

/// The Rust door to a table.
#[cfg(feature = "rust-door")]
#[doc(hidden)]
#[must_use]
pub fn rust_door(table: extern "C" fn() -> &'static TransportV1) -> crate::RustDoorRef {
    use abi_stable::prefix_type::PrefixTypeTrait as _;
    crate::RustDoor {
        transport_v1: table,
    }
    .leak_into_prefix()
}

/// The abi_stable half of [`export_transport!`]; nothing without the feature `rust-door`.
#[cfg(not(feature = "rust-door"))]
#[doc(hidden)]
#[macro_export]
macro_rules! export_rust_door {
    ($table:path) => {};
}

/// The two tables of a transport, as constants.
#[derive(Debug)]
pub struct Tables<T>(PhantomData<T>);

impl<T: Transport> Tables<T> {
    /// The slow calls.
    pub const TRANSPORT: TransportV1 = TransportV1 {
        header: Header::of::<TransportV1>(),
        name: T::NAME.as_ptr(),
        vendor: T::VENDOR.as_ptr(),
        version: T::VERSION.as_ptr(),
        protocols: T::PROTOCOLS,
        reserved: 0,
        init: Some(init::<T>),
        device_count: Some(device_count::<T>),
        query_device: Some(query_device::<T>),
        open_device: Some(open_device::<T>),
        close_device: Some(close_device::<T>),
        register: Some(register::<T>),
        allocate: Some(allocate::<T>),
        deregister: Some(deregister::<T>),
        export_region: Some(export_region::<T>),
        import_region: Some(import_region::<T>),
        release_import: Some(release_import::<T>),
        create_channel: Some(create_channel::<T>),
        local_blob: Some(local_blob::<T>),
        connect: Some(connect::<T>),
        map_peer: Some(map_peer::<T>),
        destroy_channel: Some(destroy_channel::<T>),
        counters: Some(counters::<T>),
        describe: Some(describe::<T>),
        last_error: Some(last_error),
        extension: Some(extension),
    };

    /// The fast calls.
    const DATA: DataOpsV1 = DataOpsV1 {
        header: Header::of::<DataOpsV1>(),
        post: Some(post::<T>),
        poll: Some(poll::<T>),
        flush: Some(flush::<T>),
        progress: Some(progress::<T>),
        notify_line: Some(notify_line::<T>),
        check: Some(check::<T>),
        wake_fd: Some(wake_fd::<T>),
        arm: Some(arm::<T>),
        ring: Some(ring::<T>),
        fetch: Some(fetch::<T>),
    };

    const DATA_REF: &'static DataOpsV1 = &Self::DATA;
}

thread_local! {
    static LAST_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs a slow call: keeps its fault for `last_error`, turns a panic into a status.
fn guarded(call: impl FnOnce() -> Result<i32, Fault>) -> i32 {
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(ToString::to_string)
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        Err(Fault::new(
            STATUS_INTERNAL,
            format!("panic in the plugin: {text}"),
        ))
    });
    match outcome {
        Ok(status) => status,
        Err(fault) => {
            LAST_ERROR.with_borrow_mut(|last| last.clone_from(&fault.text));
            // A fault without a negative status would pass as success.
            if fault.status < 0 {
                fault.status
            } else {
                STATUS_INTERNAL
            }
        }
    }
}

fn done(result: Result<(), Fault>) -> Result<i32, Fault> {
    result.map(|()| STATUS_OK)
}

fn null(what: &str) -> Fault {
    Fault::new(STATUS_INVALID_ARGUMENT, format!("{what} is null"))
}

/// Copies a blob out.
///
/// # Safety
/// `out` is null or writable for `capacity` bytes; `len` is null or writable.
unsafe fn give_blob(blob: &[u8], out: *mut u8, capacity: u32, len: *mut u32) -> Result<i32, Fault> {
    if out.is_null() || len.is_null() {
        return Err(null("blob or len"));
    }
    if blob.len() > capacity as usize {
        return Err(Fault::new(
            STATUS_BUFFER_TOO_SMALL,
            format!("the blob has {} bytes, the buffer {capacity}", blob.len()),
        ));
    }
    // SAFETY: `out` has room for `capacity` bytes, which is enough; `len` is writable.
    unsafe {
        out.copy_from_nonoverlapping(blob.as_ptr(), blob.len());
        *len = blob.len() as u32;
    }
    Ok(STATUS_OK)
}

/// The bytes of a blob.
///
/// # Safety
/// `blob` is null or readable for `len` bytes as long as the result lives.
unsafe fn take_blob<'a>(blob: *const u8, len: u32) -> Result<&'a [u8], Fault> {
    if blob.is_null() {
        return Err(null("blob"));
    }
    // SAFETY: not null and readable by the caller's promise.
    Ok(unsafe { core::slice::from_raw_parts(blob, len as usize) })
}

/// Borrows an object that a `create` function of the same type handed out.
///
/// # Safety
/// `pointer` is null or came from [`own`] with the same `O` and was not taken back since.
unsafe fn borrow<'a, O, H>(pointer: *mut H, what: &str) -> Result<&'a O, Fault> {
    // SAFETY: the caller's promise.
    unsafe { pointer.cast::<O>().as_ref() }.ok_or_else(|| null(what))
}

/// Hands an object out as a handle.
fn own<O, H>(object: O) -> *mut H {
    Box::into_raw(Box::new(object)).cast()
}

/// Takes a handle back and drops the object.
///
/// # Safety
/// As for [`borrow`], and nobody uses the handle afterwards.
unsafe fn take_back<O, H>(pointer: *mut H) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(pointer.cast::<O>()) });
}

// The functions below are called through the tables. SAFETY of each: the pointers are what the
// table's text says: null, or handles that this plugin made and the host has not given back, or
// the host's own memory for as long as the call lasts.

unsafe extern "C" fn init<T: Transport>(host: *const HostV1) -> i32 {
    guarded(|| {
        // SAFETY: the host's table stays valid for ever once its header fits.
        let host = unsafe { host.as_ref() }.ok_or_else(|| null("host"))?;
        if host.header.magic != MAGIC || host.header.major != MAJOR {
            return Err(Fault::invalid(format!(
                "the host's table has magic {:#x} and major {}, expected {MAGIC:#x} and {MAJOR}",
                host.header.magic, host.header.major
            )));
        }
        done(T::init(Host::new(host)))
    })
}

unsafe extern "C" fn device_count<T: Transport>(count: *mut u32) -> i32 {
    guarded(|| {
        let devices = T::device_count()?;
        // SAFETY: see above.
        *unsafe { count.as_mut() }.ok_or_else(|| null("count"))? = devices;
        Ok(STATUS_OK)
    })
}

unsafe extern "C" fn query_device<T: Transport>(index: u32, attr: *mut DeviceAttrV1) -> i32 {
    guarded(|| {
        let attributes = T::query_device(index)?;
        // SAFETY: see above.
        *unsafe { attr.as_mut() }.ok_or_else(|| null("attr"))? = attributes.to_table();
        Ok(STATUS_OK)
    })
}

unsafe extern "C" fn open_device<T: Transport>(
    index: u32,
    device: *mut *mut Device,
    ops: *mut *const DataOpsV1,
) -> i32 {
    guarded(|| {
        if device.is_null() || ops.is_null() {
            return Err(null("device or ops"));
        }
        let opened = T::open_device(index)?;
        // SAFETY: see above.
        unsafe {
            *device = own(opened);
            *ops = Tables::<T>::DATA_REF;
        }
        Ok(STATUS_OK)
    })
}

unsafe extern "C" fn close_device<T: Transport>(device: *mut Device) -> i32 {
    guarded(|| {
        // SAFETY: see above.
        T::close_device(unsafe { borrow(device, "device") }?)?;
        // SAFETY: see above; the host gives the handle back with this call.
        unsafe { take_back::<T::Device, _>(device) };
        Ok(STATUS_OK)
    })
}

unsafe extern "C" fn register<T: Transport>(
    device: *mut Device,
    address: *mut c_void,
    bytes: u64,
    region: *mut *mut Region,
) -> i32 {
    guarded(|| {
        let address = NonNull::new(address.cast::<u8>()).ok_or_else(|| null("address"))?;
        if region.is_null() {
            return Err(null("region"));
        }
        // SAFETY: see above.
        let registered = T::register(unsafe { borrow(device, "device") }?, address, bytes)?;
        // SAFETY: see above.
        unsafe { *region = own(registered) };
        Ok(STATUS_OK)
    })
}

unsafe extern "C" fn allocate<T: Transport>(
    device: *mut Device,
    bytes: u64,
    region: *mut *mut Region,
    address: *mut *mut c_void,
) -> i32 {
    guarded(|| {
        if region.is_null() || address.is_null() {
            return Err(null("region or address"));
        }
        // SAFETY: see above.
        let (allocated, at) = T::allocate(unsafe { borrow(device, "device") }?, bytes)?;
        // SAFETY: see above.
        unsafe {
            *region = own(allocated);
            *address = at.as_ptr().cast();
        }
        Ok(STATUS_OK)
    })
}

unsafe extern "C" fn deregister<T: Transport>(device: *mut Device, region: *mut Region) -> i32 {
    guarded(|| {
        // SAFETY: see above.
        let (of, what) = unsafe { (borrow(device, "device")?, borrow(region, "region")?) };
        T::deregister(of, what)?;
        // SAFETY: see above; the host gives the handle back with this call.
        unsafe { take_back::<T::Region, _>(region) };
        Ok(STATUS_OK)
    })
}

unsafe extern "C" fn export_region<T: Transport>(
    device: *mut Device,
    region: *mut Region,
    blob: *mut u8,
    capacity: u32,
    len: *mut u32,
) -> i32 {
    guarded(|| {
        // SAFETY: see above.
        let (of, what) = unsafe { (borrow(device, "device")?, borrow(region, "region")?) };
        let bytes = T::export_region(of, what)?;
        // SAFETY: see above.
        unsafe { give_blob(&bytes, blob, capacity, len) }
    })
}

unsafe extern "C" fn import_region<T: Transport>(
    channel: *mut Channel,
    blob: *const u8,
    len: u32,
    import: *mut *mut Import,
    attr: *mut ImportAttrV1,
) -> i32 {
    guarded(|| {
        if import.is_null() || attr.is_null() {
            return Err(null("import or attr"));
        }
        // SAFETY: see above.
        let (channel, blob) = unsafe { (borrow(channel, "channel")?, take_blob(blob, len)?) };
        // SAFETY: see above.
        let mut begun = unsafe { *import }.cast::<T::Import>();
        if begun.is_null() {
            begun = own(T::begin_import(channel, blob)?);
            // SAFETY: see above.
            unsafe { *import = begun.cast() };
        }
        // SAFETY: `begun` came from `own` above, now or in an earlier call, and nobody else has it.
        let object = unsafe { &mut *begun };
        // A panic while polling must not leave the handle with the host.
        let outcome = catch_unwind(AssertUnwindSafe(|| T::poll_import(channel, object)))
            .unwrap_or_else(|_| Err(Fault::new(STATUS_INTERNAL, "panic in the plugin's import")));
        match outcome {
            Ok(None) => Ok(STATUS_IN_PROGRESS),
            Ok(Some(imported)) => {
                let address = imported
                    .address
                    .map_or(core::ptr::null_mut(), |at| at.as_ptr().cast());
                // SAFETY: see above.
                unsafe {
                    *attr = ImportAttrV1 {
                        bytes: imported.bytes,
                        address,
                    }
                };
                Ok(STATUS_OK)
            }
            Err(fault) => {
                // SAFETY: as above; the host is told that there is no import any more.
                unsafe {
                    take_back::<T::Import, _>(begun);
                    *import = core::ptr::null_mut();
                }
                Err(fault)
            }
        }
    })
}

unsafe extern "C" fn release_import<T: Transport>(
    channel: *mut Channel,
    import: *mut Import,
) -> i32 {
    guarded(|| {
        // SAFETY: see above.
        let (of, what) = unsafe { (borrow(channel, "channel")?, borrow(import, "import")?) };
        T::release_import(of, what);
        // SAFETY: see above; the host gives the handle back with this call.
        unsafe { take_back::<T::Import, _>(import) };
        Ok(STATUS_OK)
    })
}

unsafe extern "C" fn create_channel<T: Transport>(
    device: *mut Device,
    attr: *const ChannelAttrV1,
    channel: *mut *mut Channel,
) -> i32 {
    guarded(|| {
        if channel.is_null() {
            return Err(null("channel"));
        }
        // SAFETY: see above.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| null("attr"))?;
        // SAFETY: see above.
        let made = T::create_channel(unsafe { borrow(device, "device") }?, &attr.into())?;
        // SAFETY: see above.
        unsafe { *channel = own(made) };
        Ok(STATUS_OK)
    })
}

unsafe extern "C" fn local_blob<T: Transport>(
    channel: *mut Channel,
    blob: *mut u8,
    capacity: u32,
    len: *mut u32,
) -> i32 {
    guarded(|| {
        // SAFETY: see above.
        let bytes = T::local_blob(unsafe { borrow(channel, "channel") }?)?;
        // SAFETY: see above.
        unsafe { give_blob(&bytes, blob, capacity, len) }
    })
}

unsafe extern "C" fn connect<T: Transport>(
    channel: *mut Channel,
    blob: *const u8,
    len: u32,
) -> i32 {
    guarded(|| {
        // SAFETY: see above.
        let (channel, blob) = unsafe { (borrow(channel, "channel")?, take_blob(blob, len)?) };
        Ok(match T::connect(channel, blob)? {
            Connect::Connected => STATUS_OK,
            Connect::InProgress => STATUS_IN_PROGRESS,
        })
    })
}

unsafe extern "C" fn map_peer<T: Transport>(channel: *mut Channel, peer: *mut PeerV1) -> i32 {
    guarded(|| {
        // SAFETY: see above.
        let mapped = T::map_peer(unsafe { borrow(channel, "channel") }?)?;
        // SAFETY: see above.
        *unsafe { peer.as_mut() }.ok_or_else(|| null("peer"))? = mapped;
        Ok(STATUS_OK)
    })
}

unsafe extern "C" fn destroy_channel<T: Transport>(channel: *mut Channel) -> i32 {
    guarded(|| {
        // SAFETY: see above.
        T::destroy_channel(unsafe { borrow(channel, "channel") }?);
        // SAFETY: see above; the host gives the handle back with this call.
        unsafe { take_back::<T::Channel, _>(channel) };
        Ok(STATUS_OK)
    })
}

unsafe extern "C" fn counters<T: Transport>(device: *mut Device, out: *mut CountersV1) -> i32 {
    guarded(|| {
        // SAFETY: see above.
        let counted = T::counters(unsafe { borrow(device, "device") }?);
        // SAFETY: see above.
        *unsafe { out.as_mut() }.ok_or_else(|| null("out"))? = counted;
        Ok(STATUS_OK)
    })
}

unsafe extern "C" fn describe<T: Transport>(
    channel: *mut Channel,
    text: *mut c_char,
    capacity: u32,
) -> u32 {
    let mut len = 0;
    let _ = guarded(|| {
        // SAFETY: see above.
        let words = T::describe(unsafe { borrow(channel, "channel") }?);
        // SAFETY: see above.
        len = unsafe { give_text(&words, text, capacity) };
        Ok(STATUS_OK)
    });
    len
}

unsafe extern "C" fn last_error(text: *mut c_char, capacity: u32) -> u32 {
    // SAFETY: see above.
    LAST_ERROR.with_borrow(|last| unsafe { give_text(last, text, capacity) })
}

/// Copies a text out, as much as there is room for; how many bytes.
///
/// # Safety
/// `out` is null or writable for `capacity` bytes.
unsafe fn give_text(text: &str, out: *mut c_char, capacity: u32) -> u32 {
    if out.is_null() {
        return 0;
    }
    let len = text.floor_char_boundary(capacity as usize);
    // SAFETY: `out` is writable for `capacity` bytes, and `len` is no more.
    unsafe {
        out.cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), len);
    }
    len as u32
}

unsafe extern "C" fn extension(_id: u32) -> *const c_void {
    core::ptr::null()
}

// Fast calls. No guard: they do not panic by the trait's contract, and the handles are not null
// by the table's.

unsafe extern "C" fn post<T: Transport>(
    channel: *mut Channel,
    descriptors: *const DescriptorV1,
    count: u32,
    accepted: *mut u32,
    inline_done: *mut u32,
) -> i32 {
    // SAFETY: see above.
    let (channel, batch) = unsafe {
        (
            &*channel.cast::<T::Channel>(),
            core::slice::from_raw_parts(descriptors, count as usize),
        )
    };
    let posted = T::post(channel, batch);
    // SAFETY: see above.
    unsafe {
        *accepted = posted.accepted;
        *inline_done = posted.inline_done;
    }
    posted.status
}

unsafe extern "C" fn poll<T: Transport>(
    device: *mut Device,
    completions: *mut CompletionV1,
    capacity: u32,
    count: *mut u32,
) -> i32 {
    // SAFETY: see above; completions are plain integers, so their old content does not matter.
    let (device, out) = unsafe {
        (
            &*device.cast::<T::Device>(),
            core::slice::from_raw_parts_mut(completions, capacity as usize),
        )
    };
    let (found, status) = match T::poll(device, out) {
        Ok(found) => (found as u32, STATUS_OK),
        Err(status) => (0, status),
    };
    // SAFETY: see above.
    unsafe { *count = found };
    status
}

unsafe extern "C" fn flush<T: Transport>(channel: *mut Channel) -> i32 {
    // SAFETY: see above.
    match T::flush(unsafe { &*channel.cast::<T::Channel>() }) {
        Ok(true) => STATUS_OK,
        Ok(false) => STATUS_IN_PROGRESS,
        Err(status) => status,
    }
}

unsafe extern "C" fn progress<T: Transport>(device: *mut Device) -> i32 {
    // SAFETY: see above.
    match T::progress(unsafe { &*device.cast::<T::Device>() }) {
        Ok(true) => STATUS_OK,
        Ok(false) => STATUS_IN_PROGRESS,
        Err(status) => status,
    }
}

unsafe extern "C" fn notify_line<T: Transport>(
    channel: *mut Channel,
    index: u32,
) -> *mut NotifyLineV1 {
    // SAFETY: see above.
    T::notify_line(unsafe { &*channel.cast::<T::Channel>() }, index)
        .map_or(core::ptr::null_mut(), NonNull::as_ptr)
}

unsafe extern "C" fn check<T: Transport>(channel: *mut Channel) -> i32 {
    // SAFETY: see above.
    match T::check(unsafe { &*channel.cast::<T::Channel>() }) {
        Ok(()) => STATUS_OK,
        Err(status) => status,
    }
}

unsafe extern "C" fn wake_fd<T: Transport>(device: *mut Device) -> i32 {
    // SAFETY: see above.
    T::wake_fd(unsafe { &*device.cast::<T::Device>() }).unwrap_or(-1)
}

unsafe extern "C" fn arm<T: Transport>(device: *mut Device) -> i32 {
    // SAFETY: see above.
    if T::arm(unsafe { &*device.cast::<T::Device>() }) {
        STATUS_OK
    } else {
        STATUS_IN_PROGRESS
    }
}

unsafe extern "C" fn ring<T: Transport>(channel: *mut Channel) {
    // SAFETY: see above.
    T::ring(unsafe { &*channel.cast::<T::Channel>() });
}

unsafe extern "C" fn fetch<T: Transport>(
    channel: *mut Channel,
    local: *mut c_void,
    address: u64,
    bytes: u64,
) -> i32 {
    // SAFETY: see above.
    let channel = unsafe { &*channel.cast::<T::Channel>() };
    match T::fetch(channel, local.cast(), address, bytes) {
        Ok(()) => STATUS_OK,
        Err(status) => status,
    }
}
