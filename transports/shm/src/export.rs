//! The border: the calls of the ABI, and what its callers promise.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::ptr::NonNull;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Mutex;

use hcomm_transport_abi::{
    ChannelOptions, CompletionV1, Connect, CountersV1, DescriptorV1, DeviceAttributes, Fault, Host,
    Imported, NotifyLineV1, PeerV1, Posted, STATUS_INVALID_ARGUMENT, STATUS_OUT_OF_BOUNDS,
    Transport, export_transport,
};

use crate::channel::Channel;
use crate::device::{Device, DeviceCore, attributes, lock};
use crate::ops;
use crate::region::{Import, Region};
use crate::sys::{Mapping, Span};

/// The shared memory transport.
#[derive(Debug)]
pub struct Shm;

export_transport!(Shm);

static HOST: Mutex<Option<Host>> = Mutex::new(None);

impl Transport for Shm {
    const NAME: &'static CStr = c"shm";
    const VENDOR: &'static CStr = c"hcomm";
    const VERSION: &'static CStr = VERSION;
    const PROTOCOLS: u32 = 1 << 0;

    type Device = Device;
    type Region = Region;
    type Import = Import;
    type Channel = Channel;

    fn init(host: Host) -> Result<(), Fault> {
        *lock(&HOST) = Some(host);
        Ok(())
    }

    fn device_count() -> Result<u32, Fault> {
        Ok(1)
    }

    fn query_device(index: u32) -> Result<DeviceAttributes, Fault> {
        only_device(index).map(|()| attributes())
    }

    fn open_device(index: u32) -> Result<Device, Fault> {
        only_device(index)?;
        let host = lock(&HOST).ok_or_else(|| Fault::invalid("a device is opened after init"))?;
        DeviceCore::open(host).map(|core| Device { core })
    }

    fn close_device(device: &Device) -> Result<(), Fault> {
        device.core.close()
    }

    fn register(device: &Device, address: NonNull<u8>, bytes: u64) -> Result<Region, Fault> {
        let span = caller_memory(address.as_ptr(), bytes).ok_or_else(|| {
            Fault::invalid(format!(
                "{bytes} bytes at {address:p} go beyond the address space"
            ))
        })?;
        Region::register(&device.core, span)
    }

    fn allocate(device: &Device, bytes: u64) -> Result<(Region, NonNull<u8>), Fault> {
        let region = Region::allocate(&device.core, bytes)?;
        let address = region.address();
        Ok((region, address))
    }

    fn deregister(_device: &Device, region: &Region) -> Result<(), Fault> {
        region.close()
    }

    fn export_region(_device: &Device, region: &Region) -> Result<Vec<u8>, Fault> {
        Ok(region.blob().encode())
    }

    fn begin_import(channel: &Channel, blob: &[u8]) -> Result<Import, Fault> {
        Import::begin(channel, blob)
    }

    fn poll_import(channel: &Channel, import: &mut Import) -> Result<Option<Imported>, Fault> {
        import.poll(channel)
    }

    fn release_import(channel: &Channel, import: &Import) {
        import.abandon(&channel.inner);
    }

    fn create_channel(device: &Device, options: &ChannelOptions) -> Result<Channel, Fault> {
        Channel::create(&device.core, options)
    }

    fn local_blob(channel: &Channel) -> Result<Vec<u8>, Fault> {
        channel.blob()
    }

    fn connect(channel: &Channel, peer: &[u8]) -> Result<Connect, Fault> {
        channel.connect(peer)
    }

    fn map_peer(channel: &Channel) -> Result<PeerV1, Fault> {
        channel.inner.map_peer()
    }

    fn destroy_channel(channel: &Channel) {
        channel.destroy();
    }

    fn counters(device: &Device) -> CountersV1 {
        device.core.counters()
    }

    fn describe(channel: &Channel) -> String {
        channel.inner.describe()
    }

    fn post(channel: &Channel, batch: &[DescriptorV1]) -> Posted {
        ops::post(channel, batch)
    }

    fn poll(device: &Device, out: &mut [CompletionV1]) -> Result<usize, i32> {
        Ok(ops::poll(&device.core, out))
    }

    fn flush(channel: &Channel) -> Result<bool, i32> {
        ops::flush(channel)
    }

    fn progress(device: &Device) -> Result<bool, i32> {
        Ok(ops::progress(&device.core))
    }

    fn notify_line(channel: &Channel, index: u32) -> Option<NonNull<NotifyLineV1>> {
        let (segment, half) = channel.inner.waits()?;
        segment.line(half, index)
    }

    fn check(channel: &Channel) -> Result<(), i32> {
        channel.inner.check()
    }

    fn wake_fd(device: &Device) -> Option<i32> {
        device.core.wake_fd()
    }

    fn ring(channel: &Channel) {
        channel.inner.ring_peer();
    }

    fn fetch(channel: &Channel, local: *mut u8, address: u64, bytes: u64) -> Result<(), i32> {
        let local = caller_memory(local, bytes).ok_or(STATUS_INVALID_ARGUMENT)?;
        channel.inner.fetch(local, address)
    }
}

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"unknown",
    };

fn only_device(index: u32) -> Result<(), Fault> {
    if index == 0 {
        Ok(())
    } else {
        Err(Fault::invalid(format!(
            "there is one device, number 0, and none with number {index}"
        )))
    }
}

/// Memory that a caller of the ABI names. `None` if it would go beyond the address space.
///
/// The tables promise that it stays readable and writable: a region until it is deregistered, the
/// local side of a descriptor until its completion. The span is used for no longer: regions by
/// their gate, descriptors by their place in the queue.
pub(crate) fn caller_memory(address: *mut u8, bytes: u64) -> Option<Span<'static>> {
    let bytes = usize::try_from(bytes).ok()?;
    let fits = bytes <= isize::MAX as usize && (address as usize).checked_add(bytes).is_some();
    // SAFETY: see above.
    fits.then(|| unsafe { Span::new(address, bytes) })
}

/// The first `bytes` bytes of a mapping that whoever holds the span keeps beside it.
pub(crate) fn kept_memory(mapping: &Mapping, bytes: usize) -> Span<'static> {
    let bytes = bytes.min(mapping.bytes());
    // SAFETY: the mapping does not move, and its keeper drops it together with the span.
    unsafe { Span::new(mapping.address().as_ptr(), bytes) }
}

/// The import that a descriptor names.
pub(crate) fn import_of(descriptor: &DescriptorV1) -> Result<&Import, i32> {
    // SAFETY: null, or a handle to an import that the host has not given back.
    unsafe { descriptor.remote.cast::<Import>().as_ref() }.ok_or(STATUS_INVALID_ARGUMENT)
}

/// The local side of a descriptor, inside its region if it names one.
pub(crate) fn local_of(descriptor: &DescriptorV1) -> Result<Span<'static>, i32> {
    if descriptor.bytes == 0 {
        return Ok(Span::EMPTY);
    }
    if descriptor.local.is_null() {
        return Err(STATUS_INVALID_ARGUMENT);
    }
    // SAFETY: null, or a handle to a region that the host has not given back.
    let region = unsafe { descriptor.local_region.cast::<Region>().as_ref() };
    if region.is_some_and(|region| !region.holds(descriptor.local.cast(), descriptor.bytes)) {
        return Err(STATUS_OUT_OF_BOUNDS);
    }
    caller_memory(descriptor.local.cast(), descriptor.bytes).ok_or(STATUS_INVALID_ARGUMENT)
}

/// The descriptors of the host's bell, if it has them: its words and its eventfd.
pub(crate) fn bell_of(host: &Host) -> (Option<BorrowedFd<'_>>, Option<BorrowedFd<'_>>) {
    let open = |fd: RawFd| {
        // SAFETY: not negative, and the host's table and its descriptors stay valid for ever.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    };
    let table = host.table();
    (open(table.bell_memfd), open(table.bell_eventfd))
}
