//! The calls: those of the loop transport, but for what is asked to be wrong.

use core::ffi::CStr;
use core::ptr::NonNull;

use hcomm_transport_abi::{
    CAP_ALLOCATE, CAP_MAP, CAP_REGISTER, ChannelOptions, Connect, CountersV1, DescriptorV1,
    DeviceAttributes, Fault, Host, Imported, NotifyLineV1, PeerV1, Posted, STATUS_MISSING_LIBRARY,
    STATUS_MISSING_SYMBOL, STATUS_NO_DEVICE, Transport,
};

use crate::mapped;
use crate::working::Loop;
use crate::wrong::Wrong;

/// The transport.
#[derive(Debug)]
pub struct Faulty;

impl Transport for Faulty {
    const NAME: &'static CStr = c"faulty";
    const VENDOR: &'static CStr = c"hcomm";
    const VERSION: &'static CStr = c"0.1.0";
    const PROTOCOLS: u32 = Loop::PROTOCOLS;

    type Device = <Loop as Transport>::Device;
    type Region = <Loop as Transport>::Region;
    type Import = <Loop as Transport>::Import;
    type Channel = <Loop as Transport>::Channel;

    fn init(host: Host) -> Result<(), Fault> {
        match Wrong::asked() {
            Ok(None) => Err(Fault::new(
                STATUS_NO_DEVICE,
                "it is wrong on request only: see HCOMM_FAULTY",
            )),
            Ok(Some(Wrong::InitPanic)) => panic!("asked to panic in init"),
            Ok(Some(Wrong::InitMissingLibrary)) => Err(Fault::new(
                STATUS_MISSING_LIBRARY,
                "libvendor.so.1 is not installed",
            )),
            Ok(Some(Wrong::InitMissingSymbol)) => Err(Fault::new(
                STATUS_MISSING_SYMBOL,
                "libvendor.so.1 has no function vendor_open; version 2.3 or later is needed",
            )),
            Ok(Some(Wrong::InitNoDevice)) => {
                Err(Fault::new(STATUS_NO_DEVICE, "/dev/vendor0 does not exist"))
            }
            Ok(Some(Wrong::InitStatus)) => Err(Fault::new(-777, "a status of its own")),
            Ok(Some(_)) => Loop::init(host),
            Err(word) => Err(Fault::invalid(format!(
                "HCOMM_FAULTY={word} is not a way to be wrong; known: {}",
                Wrong::ALL
                    .iter()
                    .map(|wrong| wrong.word())
                    .collect::<Vec<_>>()
                    .join(", ")
            ))),
        }
    }

    fn device_count() -> Result<u32, Fault> {
        Loop::device_count()
    }

    fn query_device(index: u32) -> Result<DeviceAttributes, Fault> {
        let mut attributes = Loop::query_device(index)?;
        attributes.name = "faulty0".to_owned();
        if Wrong::NullOptional.is_asked() {
            attributes.attr.capabilities &= !(CAP_ALLOCATE | CAP_MAP | CAP_REGISTER);
        }
        Ok(attributes)
    }

    fn open_device(index: u32) -> Result<Self::Device, Fault> {
        Loop::open_device(index)
    }

    fn close_device(device: &Self::Device) -> Result<(), Fault> {
        Loop::close_device(device)
    }

    fn register(
        device: &Self::Device,
        address: NonNull<u8>,
        bytes: u64,
    ) -> Result<Self::Region, Fault> {
        Loop::register(device, address, bytes)
    }

    fn allocate(device: &Self::Device, bytes: u64) -> Result<(Self::Region, NonNull<u8>), Fault> {
        Loop::allocate(device, bytes)
    }

    fn deregister(device: &Self::Device, region: &Self::Region) -> Result<(), Fault> {
        Loop::deregister(device, region)
    }

    fn export_region(device: &Self::Device, region: &Self::Region) -> Result<Vec<u8>, Fault> {
        Loop::export_region(device, region)
    }

    fn begin_import(channel: &Self::Channel, blob: &[u8]) -> Result<Self::Import, Fault> {
        Loop::begin_import(channel, blob)
    }

    fn poll_import(
        channel: &Self::Channel,
        import: &mut Self::Import,
    ) -> Result<Option<Imported>, Fault> {
        Loop::poll_import(channel, import)
    }

    fn create_channel(
        device: &Self::Device,
        options: &ChannelOptions,
    ) -> Result<Self::Channel, Fault> {
        Loop::create_channel(device, options)
    }

    fn local_blob(channel: &Self::Channel) -> Result<Vec<u8>, Fault> {
        Loop::local_blob(channel)
    }

    fn connect(channel: &Self::Channel, peer: &[u8]) -> Result<Connect, Fault> {
        Loop::connect(channel, peer)
    }

    fn map_peer(channel: &Self::Channel) -> Result<PeerV1, Fault> {
        mapped::map_peer(channel)
    }

    fn destroy_channel(channel: &Self::Channel) {
        mapped::destroy(channel);
    }

    fn counters(device: &Self::Device) -> CountersV1 {
        Loop::counters(device)
    }

    fn post(channel: &Self::Channel, batch: &[DescriptorV1]) -> Posted {
        Loop::post(channel, batch)
    }

    fn flush(channel: &Self::Channel) -> Result<bool, i32> {
        Loop::flush(channel)
    }

    fn notify_line(channel: &Self::Channel, index: u32) -> Option<NonNull<NotifyLineV1>> {
        Loop::notify_line(channel, index)
    }

    fn check(channel: &Self::Channel) -> Result<(), i32> {
        Loop::check(channel)
    }
}
