//! The calls of the ABI. `hcomm-transport-abi` makes the C tables from them.

use core::ffi::CStr;
use core::ptr::NonNull;
use std::os::fd::AsRawFd as _;

use hcomm_transport_abi::{
    ChannelOptions, CompletionV1, Connect, CountersV1, DescriptorV1, DeviceAttributes, Fault, Host,
    Imported, NotifyLineV1, Posted, STATUS_BUSY, Transport,
};

use crate::channel::Channel;
use crate::device::{self, Device};
use crate::ops;
use crate::region::{Import, Region};

/// The transport.
#[derive(Debug)]
pub struct Delay;

impl Transport for Delay {
    const NAME: &'static CStr = c"delay";
    const VENDOR: &'static CStr = c"hcomm";
    const VERSION: &'static CStr = c"0.1.0";
    const PROTOCOLS: u32 = 1 << device::PROTOCOL;

    type Device = Device;
    type Region = Region;
    type Import = Import;
    type Channel = Channel;

    fn init(host: Host) -> Result<(), Fault> {
        device::keep_host(host);
        Ok(())
    }

    fn device_count() -> Result<u32, Fault> {
        Ok(1)
    }

    fn query_device(index: u32) -> Result<DeviceAttributes, Fault> {
        device::attributes(index)
    }

    fn open_device(index: u32) -> Result<Device, Fault> {
        device::attributes(index).and_then(|_| Device::open())
    }

    fn close_device(device: &Device) -> Result<(), Fault> {
        match device.opened() {
            0 => Ok(()),
            open => Err(Fault::new(
                STATUS_BUSY,
                format!("{open} regions, imports and channels of the device are open"),
            )),
        }
    }

    fn register(device: &Device, address: NonNull<u8>, bytes: u64) -> Result<Region, Fault> {
        Region::register(device, address, bytes)
    }

    fn allocate(device: &Device, bytes: u64) -> Result<(Region, NonNull<u8>), Fault> {
        Region::allocate(device, bytes)
    }

    fn deregister(_device: &Device, _region: &Region) -> Result<(), Fault> {
        Ok(()) // all is done when it drops
    }

    fn export_region(_device: &Device, region: &Region) -> Result<Vec<u8>, Fault> {
        Ok(region.blob())
    }

    fn begin_import(channel: &Channel, blob: &[u8]) -> Result<Import, Fault> {
        Import::find(channel, blob)
    }

    fn poll_import(_channel: &Channel, import: &mut Import) -> Result<Option<Imported>, Fault> {
        Ok(Some(import.describe()))
    }

    fn create_channel(device: &Device, options: &ChannelOptions) -> Result<Channel, Fault> {
        Channel::create(device, options)
    }

    fn local_blob(channel: &Channel) -> Result<Vec<u8>, Fault> {
        Ok(channel.blob())
    }

    fn connect(channel: &Channel, peer: &[u8]) -> Result<Connect, Fault> {
        channel.connect(peer)
    }

    fn counters(device: &Device) -> CountersV1 {
        device.counters()
    }

    fn post(channel: &Channel, batch: &[DescriptorV1]) -> Posted {
        ops::post(channel, batch)
    }

    fn poll(device: &Device, out: &mut [CompletionV1]) -> Result<usize, i32> {
        Ok(ops::poll(device, out))
    }

    fn flush(channel: &Channel) -> Result<bool, i32> {
        ops::flush(channel)
    }

    fn progress(device: &Device) -> Result<bool, i32> {
        Ok(ops::progress(device))
    }

    fn notify_line(channel: &Channel, index: u32) -> Option<NonNull<NotifyLineV1>> {
        channel.line(index)
    }

    fn check(channel: &Channel) -> Result<(), i32> {
        channel.peer().map(drop)
    }

    fn wake_fd(device: &Device) -> Option<i32> {
        Some(device.opening().alarm.timer().as_raw_fd())
    }

    fn arm(device: &Device) -> bool {
        ops::arm(device)
    }
}
