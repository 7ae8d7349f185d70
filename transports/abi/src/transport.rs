//! Writing a transport in Rust: implement [`Transport`], in safe code, and export it with
//! [`export_transport!`](crate::export_transport).

use core::ffi::{CStr, c_char, c_void};
use core::fmt;
use core::ptr::NonNull;

use crate::tables::{
    ChannelAttrV1, CompletionV1, CountersV1, DescriptorV1, DeviceAttrV1, HostV1, NotifyLineV1,
    PeerV1, STATUS_INVALID_ARGUMENT, STATUS_UNSUPPORTED,
};

/// A transport. The associated functions are the calls of [`TransportV1`](crate::TransportV1) and
/// [`DataOpsV1`](crate::DataOpsV1); their contracts stand there.
///
/// Slow calls are guarded: a panic in one becomes `STATUS_INTERNAL`. Fast calls (from
/// [`Transport::post`] on) must be written not to panic: a panic there ends the process.
pub trait Transport: Sized + 'static {
    /// Short name, as in `libhcomm_transport_<name>.so`.
    const NAME: &'static CStr;
    /// Who made it.
    const VENDOR: &'static CStr;
    /// Its own version.
    const VERSION: &'static CStr;
    /// Protocols served, one bit a protocol number.
    const PROTOCOLS: u32;

    /// An open device.
    type Device: Send + Sync;
    /// Memory of this side.
    type Region: Send + Sync;
    /// A peer's region seen from here.
    type Import: Send + Sync;
    /// One end of a connection.
    type Channel: Send + Sync;

    /// Prepares the plugin; called once.
    ///
    /// # Errors
    /// Why it cannot work on this system.
    fn init(host: Host) -> Result<(), Fault>;

    /// How many devices there are now.
    ///
    /// # Errors
    /// Why they cannot be listed.
    fn device_count() -> Result<u32, Fault>;

    /// What device `index` is.
    ///
    /// # Errors
    /// `STATUS_INVALID_ARGUMENT` for an index that is not there.
    fn query_device(index: u32) -> Result<DeviceAttributes, Fault>;

    /// Opens device `index`.
    ///
    /// # Errors
    /// Why it cannot be opened.
    fn open_device(index: u32) -> Result<Self::Device, Fault>;

    /// Asked before a device is dropped.
    ///
    /// # Errors
    /// `STATUS_BUSY` while something of it is open: it then stays open.
    fn close_device(device: &Self::Device) -> Result<(), Fault>;

    /// Registers `bytes` bytes of the caller's memory at `address`.
    ///
    /// # Errors
    /// `STATUS_UNSUPPORTED`, or why it cannot be registered.
    fn register(
        device: &Self::Device,
        address: NonNull<u8>,
        bytes: u64,
    ) -> Result<Self::Region, Fault> {
        let _ = (device, address, bytes);
        Err(Fault::unsupported("this transport registers no memory"))
    }

    /// Allocates memory that peers can reach in the best way.
    ///
    /// # Errors
    /// `STATUS_UNSUPPORTED`, or why there is none.
    fn allocate(device: &Self::Device, bytes: u64) -> Result<(Self::Region, NonNull<u8>), Fault> {
        let _ = (device, bytes);
        Err(Fault::unsupported("this transport allocates no memory"))
    }

    /// Ends a region; it is dropped afterwards.
    ///
    /// # Errors
    /// Why it cannot end now: it then lives on.
    fn deregister(device: &Self::Device, region: &Self::Region) -> Result<(), Fault>;

    /// What a peer needs to import the region.
    ///
    /// # Errors
    /// Why it cannot be exported.
    fn export_region(device: &Self::Device, region: &Self::Region) -> Result<Vec<u8>, Fault>;

    /// Begins to import a region of the peer.
    ///
    /// # Errors
    /// `STATUS_BAD_BLOB`, `STATUS_STALE_KEY`, `STATUS_NOT_CONNECTED`, ...
    fn begin_import(channel: &Self::Channel, blob: &[u8]) -> Result<Self::Import, Fault>;

    /// Moves an import on; `None` while it is in progress.
    ///
    /// # Errors
    /// Why it cannot be imported; it is dropped then.
    fn poll_import(
        channel: &Self::Channel,
        import: &mut Self::Import,
    ) -> Result<Option<Imported>, Fault>;

    /// Asked before an import is dropped.
    fn release_import(channel: &Self::Channel, import: &Self::Import) {
        let _ = (channel, import);
    }

    /// Makes one end of a channel.
    ///
    /// # Errors
    /// Why not: a limit, mostly.
    fn create_channel(
        device: &Self::Device,
        options: &ChannelOptions,
    ) -> Result<Self::Channel, Fault>;

    /// What the peer's end needs to connect.
    ///
    /// # Errors
    /// Why there is nothing to give.
    fn local_blob(channel: &Self::Channel) -> Result<Vec<u8>, Fault>;

    /// Moves the connection on.
    ///
    /// # Errors
    /// Why it failed for good.
    fn connect(channel: &Self::Channel, peer: &[u8]) -> Result<Connect, Fault>;

    /// Where the peer of a connected channel waits, if this process can store there.
    ///
    /// # Errors
    /// `STATUS_UNSUPPORTED`, `STATUS_NOT_CONNECTED`, or the state of the link.
    fn map_peer(channel: &Self::Channel) -> Result<PeerV1, Fault> {
        let _ = channel;
        Err(Fault::unsupported("this transport maps no notifies"))
    }

    /// Asked before an end is dropped.
    fn destroy_channel(channel: &Self::Channel) {
        let _ = channel;
    }

    /// Counters of a device.
    fn counters(device: &Self::Device) -> CountersV1 {
        let _ = device;
        CountersV1::default()
    }

    /// In which way a connected channel moves bytes, and why in that way, for people; empty if
    /// there is nothing to tell.
    fn describe(channel: &Self::Channel) -> String {
        let _ = channel;
        String::new()
    }

    /// Takes descriptors; see [`Posted`].
    fn post(channel: &Self::Channel, batch: &[DescriptorV1]) -> Posted;

    /// Writes completions into `out`; returns how many. On failure a negative status.
    fn poll(device: &Self::Device, out: &mut [CompletionV1]) -> Result<usize, i32> {
        let _ = (device, out);
        Ok(0)
    }

    /// Whether everything accepted is visible at the peer: `Ok(true)` if so.
    fn flush(channel: &Self::Channel) -> Result<bool, i32>;

    /// Moves everything on; whether something was done.
    fn progress(device: &Self::Device) -> Result<bool, i32> {
        let _ = device;
        Ok(false)
    }

    /// Line of notify `index` of this side, once the channel is connected.
    fn notify_line(channel: &Self::Channel, index: u32) -> Option<NonNull<NotifyLineV1>>;

    /// State of the channel.
    fn check(channel: &Self::Channel) -> Result<(), i32>;

    /// Descriptor that becomes readable when there is something to do.
    fn wake_fd(device: &Self::Device) -> Option<i32> {
        let _ = device;
        None
    }

    /// Asks `wake_fd` to report the next arrival; `false` if something has arrived already.
    fn arm(device: &Self::Device) -> bool {
        let _ = device;
        true
    }

    /// Wakes who sleeps at the peer.
    fn ring(channel: &Self::Channel) {
        let _ = channel;
    }

    /// Copies memory of the peer's process to `local`, which has room for as many bytes; of zero
    /// bytes, whether that can be done.
    fn fetch(channel: &Self::Channel, local: *mut u8, address: u64, bytes: u64) -> Result<(), i32> {
        let _ = (channel, local, address, bytes);
        Err(STATUS_UNSUPPORTED)
    }
}

/// Why a slow call failed: a negative status and a text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `STATUS_…`, negative.
    pub status: i32,
    /// Values and the next step.
    pub text: String,
}

impl Fault {
    /// A fault.
    #[must_use]
    pub fn new(status: i32, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    /// `STATUS_UNSUPPORTED`.
    #[must_use]
    pub fn unsupported(text: impl Into<String>) -> Self {
        Self::new(STATUS_UNSUPPORTED, text)
    }

    /// `STATUS_INVALID_ARGUMENT`.
    #[must_use]
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(STATUS_INVALID_ARGUMENT, text)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {})", self.text, self.status)
    }
}

impl std::error::Error for Fault {}

/// What [`Transport::post`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Length of the prefix that was accepted.
    pub accepted: u32,
    /// How many of the accepted were done inside the call and will have no completion.
    pub inline_done: u32,
    /// `STATUS_OK` when all were accepted, otherwise what stopped the first one that was not.
    pub status: i32,
}

/// What [`Transport::connect`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connect {
    /// Both ends know each other.
    Connected,
    /// Call again.
    InProgress,
}

/// A finished import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Bytes of the peer's region.
    pub bytes: u64,
    /// Where it is mapped in this process, if the link can map it.
    pub address: Option<NonNull<u8>>,
}

/// What is asked of a new channel: [`ChannelAttrV1`] in Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelOptions {
    /// Notifies that this side can wait on.
    pub notifies: u32,
    /// Descriptors that may be outstanding.
    pub queue_depth: u32,
    /// Traffic class, where the link has one.
    pub traffic_class: u32,
    /// Service level, where the link has one.
    pub service_level: u32,
}

impl From<&ChannelAttrV1> for ChannelOptions {
    fn from(attr: &ChannelAttrV1) -> Self {
        Self {
            notifies: attr.notifies,
            queue_depth: attr.queue_depth,
            traffic_class: attr.traffic_class,
            service_level: attr.service_level,
        }
    }
}

/// What a device is, can do, allows and costs: [`DeviceAttrV1`] with a Rust name.
#[derive(Clone, Debug)]
pub struct DeviceAttributes {
    /// Name, unique in the plugin, at most 63 bytes.
    pub name: String,
    /// Everything else; `name` in it is ignored.
    pub attr: DeviceAttrV1,
}

impl DeviceAttributes {
    /// The C form.
    #[must_use]
    pub fn to_table(&self) -> DeviceAttrV1 {
        let mut attr = self.attr;
        attr.name = [0; 64];
        for (slot, byte) in attr.name.iter_mut().zip(self.name.bytes().take(63)) {
            *slot = byte as c_char;
        }
        attr
    }
}

/// The host, as a plugin sees it: [`HostV1`] behind safe calls. Copy it, keep it.
#[derive(Clone, Copy)]
pub struct Host(&'static HostV1);

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("header", &self.0.header)
            .finish_non_exhaustive()
    }
}

impl Host {
    /// Wraps the table that `init` was given.
    #[must_use]
    pub(crate) const fn new(table: &'static HostV1) -> Self {
        Self(table)
    }

    /// The table itself.
    #[must_use]
    pub const fn table(self) -> &'static HostV1 {
        self.0
    }

    /// Hands a line to the host's log; `level` is one of `LOG_…`.
    pub fn log(self, level: u32, text: &str) {
        if let Some(log) = self.0.log {
            // SAFETY: the host's promise; the text lives through the call.
            unsafe { log(self.0.context, level, text.as_ptr().cast(), text.len()) }
        }
    }

    /// Now, in nanoseconds of the host's clock; 0 if it has none.
    #[must_use]
    pub fn now_ns(self) -> u64 {
        // SAFETY: the host's promise.
        self.0
            .now_ns
            .map_or(0, |now| unsafe { now(self.0.context) })
    }

    /// Wakes whoever sleeps in this process.
    pub fn ring(self) {
        if let Some(ring) = self.0.ring {
            // SAFETY: the host's promise.
            unsafe { ring(self.0.context) }
        }
    }

    /// `dst[i] = a[i] op b[i]`.
    ///
    /// # Errors
    /// The status, for a data type or operation that is not known.
    ///
    /// # Safety
    /// `a` and `b` are readable and `dst` writable for `count` elements of `dtype`; `dst` may be
    /// `a` or `b`, but not overlap them in part; nobody else writes them meanwhile.
    pub unsafe fn reduce(
        self,
        dst: *mut c_void,
        a: *const c_void,
        b: *const c_void,
        count: u64,
        dtype: u32,
        redop: u32,
    ) -> Result<(), i32> {
        let Some(reduce) = self.0.reduce else {
            return Err(STATUS_UNSUPPORTED);
        };
        // SAFETY: the caller's promise is the function's demand.
        match unsafe { reduce(dst, a, b, count, dtype, redop) } {
            0.. => Ok(()),
            status => Err(status),
        }
    }
}
