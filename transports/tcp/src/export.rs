//! The calls of the ABI. `hcomm-transport-abi` makes the C tables from them.

use core::ffi::CStr;
use core::ptr::NonNull;
use std::sync::Mutex;

use hcomm_transport_abi::{
    ChannelOptions, CompletionV1, Connect, CountersV1, DescriptorV1, DeviceAttributes, Fault, Host,
    Imported, NotifyLineV1, Posted, Transport,
};

use crate::channel::Channel;
use crate::device::{Device, DeviceCore, lock};
use crate::region::{Import, Region};
use crate::{ops, places};

/// The TCP transport.
#[derive(Debug)]
pub struct Tcp;

static HOST: Mutex<Option<Host>> = Mutex::new(None);

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"unknown",
    };

impl Transport for Tcp {
    const NAME: &'static CStr = c"tcp";
    const VENDOR: &'static CStr = c"hcomm";
    const VERSION: &'static CStr = VERSION;
    const PROTOCOLS: u32 = 1 << places::PROTOCOL;

    type Device = Device;
    type Region = Region;
    type Import = Import;
    type Channel = Channel;

    fn init(host: Host) -> Result<(), Fault> {
        places::places()?;
        *lock(&HOST) = Some(host);
        Ok(())
    }

    fn device_count() -> Result<u32, Fault> {
        Ok(places::places()?.len() as u32)
    }

    fn query_device(index: u32) -> Result<DeviceAttributes, Fault> {
        places::attributes(index)
    }

    fn open_device(index: u32) -> Result<Device, Fault> {
        let place = places::place(index)?;
        let host = lock(&HOST).ok_or_else(|| Fault::invalid("a device is opened after init"))?;
        DeviceCore::open(host, place).map(|core| Device { core })
    }

    fn close_device(device: &Device) -> Result<(), Fault> {
        device.core.close()
    }

    fn register(device: &Device, address: NonNull<u8>, bytes: u64) -> Result<Region, Fault> {
        Region::register(&device.core, address, bytes)
    }

    fn allocate(device: &Device, bytes: u64) -> Result<(Region, NonNull<u8>), Fault> {
        Region::allocate(&device.core, bytes)
    }

    fn deregister(_device: &Device, _region: &Region) -> Result<(), Fault> {
        Ok(()) // all is done when it drops
    }

    fn export_region(_device: &Device, region: &Region) -> Result<Vec<u8>, Fault> {
        Ok(region.blob())
    }

    fn begin_import(channel: &Channel, blob: &[u8]) -> Result<Import, Fault> {
        Import::begin(channel, blob)
    }

    fn poll_import(_channel: &Channel, import: &mut Import) -> Result<Option<Imported>, Fault> {
        import.poll()
    }

    fn release_import(_channel: &Channel, import: &Import) {
        import.release();
    }

    fn create_channel(device: &Device, options: &ChannelOptions) -> Result<Channel, Fault> {
        Channel::create(&device.core, options)
    }

    fn local_blob(channel: &Channel) -> Result<Vec<u8>, Fault> {
        Ok(channel.blob())
    }

    fn connect(channel: &Channel, peer: &[u8]) -> Result<Connect, Fault> {
        channel.connect(peer)
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
        Ok(device.core.poll(out))
    }

    fn flush(channel: &Channel) -> Result<bool, i32> {
        ops::flush(channel)
    }

    fn progress(device: &Device) -> Result<bool, i32> {
        Ok(device.core.progress())
    }

    fn notify_line(channel: &Channel, index: u32) -> Option<NonNull<NotifyLineV1>> {
        let inner = &channel.inner;
        inner.was_connected().then(|| inner.lines.get(index))?
    }

    fn check(channel: &Channel) -> Result<(), i32> {
        channel.inner.check()
    }

    fn wake_fd(device: &Device) -> Option<i32> {
        Some(device.core.wake_fd())
    }

    fn arm(device: &Device) -> bool {
        device.core.arm();
        // What is there already, the look that comes next finds.
        true
    }
}
