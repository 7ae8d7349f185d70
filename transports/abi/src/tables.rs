//! The tables, field by field. Everything here crosses the border between host and plugin.
//!
//! Rules that hold for every call, unless its own text says otherwise:
//!
//! * Nothing unwinds across the border and nothing blocks. A call that has to wait returns
//!   [`STATUS_IN_PROGRESS`] and is called again.
//! * Slow calls (those of [`TransportV1`]) may come from any OS thread, also while a fast call on
//!   the same channel runs on another; the plugin serialises them where it must. Fast calls (those
//!   of [`DataOpsV1`]) on one channel come from one OS thread at a time; `progress`, `poll` and
//!   `arm` on one device come from one OS thread at a time.
//! * Whoever allocates frees. Strings and blobs are copied into the caller's buffer.
//! * After a negative status, `last_error` on the same OS thread gives the text to it.
//! * Names of peers, ranks and hosts are not known here: a channel is the only identity.
//! * Once `check` or a completion has reported that a channel is lost or its link down, the plugin
//!   touches no local memory of its descriptors any more.

use core::ffi::{c_char, c_void};

#[cfg(feature = "rust-door")]
use abi_stable::StableAbi;

/// First eight bytes of every table: "hcommTP" and a zero, little end first.
pub const MAGIC: u64 = 0x0050_546d_6d6f_6368;
/// Major version. Hosts and plugins with different majors refuse each other. 0 until V1 freezes.
pub const MAJOR: u16 = 0;
/// Minor version, for print-outs only.
pub const MINOR: u16 = 1;

/// Done.
pub const STATUS_OK: i32 = 0;
/// Not done yet: call again.
pub const STATUS_IN_PROGRESS: i32 = 1;
/// An argument is not acceptable. (-1 to -99 concern the call alone.)
pub const STATUS_INVALID_ARGUMENT: i32 = -1;
/// This plugin or device cannot do that.
pub const STATUS_UNSUPPORTED: i32 = -2;
/// Back-pressure: queue or ring full. Not an error; call `progress` and post again. When room
/// appears for a channel that has said so, the plugin rings the bell or makes `wake_fd` readable.
pub const STATUS_NO_RESOURCE: i32 = -3;
/// A range lies outside its region.
pub const STATUS_OUT_OF_BOUNDS: i32 = -4;
/// The caller's buffer is too small.
pub const STATUS_BUFFER_TOO_SMALL: i32 = -5;
/// The blob was not made by this kind of plugin, or not by this version of it.
pub const STATUS_BAD_BLOB: i32 = -6;
/// The region behind a key does not exist any more, or the key is wrong.
pub const STATUS_STALE_KEY: i32 = -7;
/// A system limit was reached; the text says which, with need and limit.
pub const STATUS_LIMIT: i32 = -8;
/// The operating system said no.
pub const STATUS_SYSTEM: i32 = -9;
/// More notifies outstanding on one index than the link can hold.
pub const STATUS_NOTIFY_OVERFLOW: i32 = -10;
/// Still in use: regions or channels of it are open.
pub const STATUS_BUSY: i32 = -11;
/// The peer is gone. (-100 to -199 concern the channel.)
pub const STATUS_PEER_LOST: i32 = -100;
/// The channel is not connected.
pub const STATUS_NOT_CONNECTED: i32 = -101;
/// The link failed.
pub const STATUS_LINK_DOWN: i32 = -102;
/// The peer did not prove who it is.
pub const STATUS_REFUSED: i32 = -103;
/// The device cannot be used any more. (-200 to -299 concern the device.)
pub const STATUS_DEVICE_BROKEN: i32 = -200;
/// The vendor library is not on this system. (-300 to -399 concern the plugin.)
pub const STATUS_MISSING_LIBRARY: i32 = -300;
/// The vendor library lacks a function.
pub const STATUS_MISSING_SYMBOL: i32 = -301;
/// There is no device of this kind on this system.
pub const STATUS_NO_DEVICE: i32 = -302;
/// A promise inside the plugin was broken (a panic, in Rust).
pub const STATUS_INTERNAL: i32 = -900;

/// Capability: [`OP_WRITE`].
pub const CAP_WRITE: u64 = 1 << 0;
/// Capability: [`OP_READ`].
pub const CAP_READ: u64 = 1 << 1;
/// Capability: [`OP_NOTIFY`].
pub const CAP_NOTIFY: u64 = 1 << 2;
/// Capability: [`FLAG_NOTIFY`] on writes.
pub const CAP_WRITE_NOTIFY: u64 = 1 << 3;
/// Capability: [`OP_WRITE_REDUCE`] for all data types and operations.
pub const CAP_WRITE_REDUCE: u64 = 1 << 4;
/// Capability: [`OP_READ_REDUCE`] for all data types and operations.
pub const CAP_READ_REDUCE: u64 = 1 << 5;
/// Capability: `allocate`.
pub const CAP_ALLOCATE: u64 = 1 << 6;
/// Capability: `register` of memory that the user brings.
pub const CAP_REGISTER: u64 = 1 << 7;
/// Promise: an import of allocated memory has an address, and loads and stores through it work.
pub const CAP_MAP: u64 = 1 << 8;
/// Promise: writes and reads of mapped memory, and all notifies, land without any call by the
/// target's side.
pub const CAP_PASSIVE_MAPPED: u64 = 1 << 9;
/// Promise: the same for registered memory that is not mapped.
pub const CAP_PASSIVE_REGISTERED: u64 = 1 << 10;
/// Promise: the local side of a descriptor may be any memory of this process (`local_region` null).
pub const CAP_LOCAL_ANY: u64 = 1 << 11;
/// Promise: ends of a channel may be in one process.
pub const CAP_SAME_PROCESS: u64 = 1 << 12;
/// Promise: ends of a channel may be in different processes of one host.
pub const CAP_CROSS_PROCESS: u64 = 1 << 13;
/// Promise: ends of a channel may be on different hosts.
pub const CAP_CROSS_HOST: u64 = 1 << 14;
/// Demand: who sleeps for data must watch `wake_fd`, because arrivals do not ring the bell.
pub const CAP_WAKE_FD: u64 = 1 << 15;

/// Opcode: bytes from local to remote.
pub const OP_WRITE: u32 = 0;
/// Opcode: bytes from remote to local.
pub const OP_READ: u32 = 1;
/// Opcode: add one to a notify of the peer, no bytes.
pub const OP_NOTIFY: u32 = 2;
/// Opcode: remote = remote op local, element by element.
pub const OP_WRITE_REDUCE: u32 = 3;
/// Opcode: local = local op remote, element by element.
pub const OP_READ_REDUCE: u32 = 4;

/// Flag of a write: add one to notify `notify` of the peer, after this and all earlier
/// descriptors of the channel have landed.
pub const FLAG_NOTIFY: u32 = 1 << 0;

/// Log level: something an operator must see.
pub const LOG_ERROR: u32 = 1;
/// Log level: something is not as it should be.
pub const LOG_WARN: u32 = 2;
/// Log level: a step in the life of a device or channel.
pub const LOG_INFO: u32 = 3;
/// Log level: for whoever looks for a cause.
pub const LOG_DEBUG: u32 = 4;

/// First field of every table; read before anything else. Frozen for ever.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`MAJOR`].
    pub major: u16,
    /// [`MINOR`].
    pub minor: u16,
    /// Bytes of the table that begins with this header.
    pub size: u32,
}

impl Header {
    /// Header of a table of type `T`.
    #[must_use]
    pub const fn of<T>() -> Self {
        Self {
            magic: MAGIC,
            major: MAJOR,
            minor: MINOR,
            size: size_of::<T>() as u32,
        }
    }
}

/// An open device. Made and understood by the plugin alone.
#[repr(C)]
#[derive(Debug)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct Device {
    _private: [u8; 0],
}

/// Registered or allocated memory of this side. Made and understood by the plugin alone.
#[repr(C)]
#[derive(Debug)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct Region {
    _private: [u8; 0],
}

/// A peer's region as seen from this side. Made and understood by the plugin alone.
#[repr(C)]
#[derive(Debug)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct Import {
    _private: [u8; 0],
}

/// One end of a connection. Made and understood by the plugin alone.
#[repr(C)]
#[derive(Debug)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct Channel {
    _private: [u8; 0],
}

/// What a device is, can do, allows and costs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct DeviceAttrV1 {
    /// Name, ended by a zero: the same on every call, unique in the plugin.
    pub name: [c_char; 64],
    /// One of the protocol numbers of hcomm: 0 shm, 1 tcp, 2 roce, 3 hccs, 4 pcie, 5 ubc_tp,
    /// 6 ubc_ctp, 7 ub_mem, 8 uboe, 9 loop.
    pub protocol: u32,
    /// Kind of `address`: 0 number (first 8 bytes, little end first), 4 IPv4 (first 4 bytes),
    /// 6 IPv6, 16 EID.
    pub address_kind: u32,
    /// Address.
    pub address: [u8; 16],
    /// `CAP_…` bits.
    pub capabilities: u64,
    /// α: time of an empty transfer, in ns.
    pub latency_ns: u64,
    /// β: bytes per second of a large transfer.
    pub bytes_per_s: u64,
    /// Largest transfer of one descriptor, in bytes.
    pub max_transfer_bytes: u64,
    /// Notifies that may be outstanding on one index.
    pub max_notify_outstanding: u64,
    /// Descriptors that one `post` may carry.
    pub max_batch: u32,
    /// Notifies (indices) of one channel and direction.
    pub max_notifies: u32,
    /// Largest blob of `export_region` and `local_blob`, in bytes.
    pub max_blob_bytes: u32,
    /// NUMA node the device is near to, or -1.
    pub numa_node: i32,
}

/// What is asked of a new channel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct ChannelAttrV1 {
    /// Notifies (indices) that this side can wait on.
    pub notifies: u32,
    /// Descriptors that may be outstanding.
    pub queue_depth: u32,
    /// Traffic class, where the link has one.
    pub traffic_class: u32,
    /// Service level, where the link has one.
    pub service_level: u32,
    /// Zero.
    pub reserved: [u32; 4],
}

/// What an import is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct ImportAttrV1 {
    /// Bytes of the peer's region.
    pub bytes: u64,
    /// Address of the peer's memory in this process, or null where the link cannot map it.
    pub address: *mut c_void,
}

/// One piece of work.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct DescriptorV1 {
    /// `OP_…`.
    pub opcode: u32,
    /// `FLAG_…` bits.
    pub flags: u32,
    /// Local memory.
    pub local: *mut c_void,
    /// Region that holds `local`; null where the device promises [`CAP_LOCAL_ANY`].
    pub local_region: *mut Region,
    /// The peer's region; null for [`OP_NOTIFY`].
    pub remote: *mut Import,
    /// Offset in the peer's region, in bytes.
    pub remote_offset: u64,
    /// Bytes to move.
    pub bytes: u64,
    /// Notify to add to, for [`OP_NOTIFY`] and [`FLAG_NOTIFY`].
    pub notify: u32,
    /// Data type of reductions: 0..3 signed 8..64 bit, 4..7 unsigned, 8 f16, 9 bf16, 10 f32, 11 f64.
    pub dtype: u32,
    /// Operation of reductions: 0 sum, 1 prod, 2 max, 3 min.
    pub redop: u32,
    /// Zero.
    pub reserved: u32,
    /// Travels with the notify into its line, before the count changes; a word that is zero leaves
    /// what is there.
    pub fingerprint: [u64; 2],
    /// Comes back in the completion.
    pub cookie: u64,
}

/// The end of a descriptor that was not done inside `post`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct CompletionV1 {
    /// The descriptor's cookie.
    pub cookie: u64,
    /// [`STATUS_OK`] or what went wrong.
    pub status: i32,
    /// Zero.
    pub reserved: u32,
}

/// Where a notify arrives, written by one recorder and read by one waiter: half a cache line, so that
/// a link on which both ends look at the same memory can put a notify and the one of the same
/// index that goes the other way into one line. Whoever answers on it then has it already.
///
/// How often it was recorded is the sum of `count` and `served`: two words, so that each has one
/// writer, which need not add in one atomic step.
#[repr(C, align(32))]
#[derive(Debug)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct NotifyLineV1 {
    /// How often the peer's side recorded the notify since the channel was made. The waiter keeps
    /// to itself how many it has taken. Read and written as one atomic word.
    pub count: u64,
    /// Of each word, that of the latest record that carried one: not zero.
    pub fingerprint: [u64; 2],
    /// How often the transport's own side, the waiter's, recorded it on behalf of the peer, from
    /// `progress`. Read and written as one atomic word.
    pub served: u64,
}

/// Where the peer of a connected channel waits, for links on which this process can store there
/// itself. The host then records without a call, as `post` would: words of the fingerprint that are
/// not zero, and then one more in `count` of the line, as a release store; it does so only while nothing that it has
/// posted on the channel is unfinished, and from the thread whose turn the fast calls are. It
/// looks at the bell afterwards and calls `ring` if somebody sleeps.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct PeerV1 {
    /// The first of the peer's notify lines, writable until the channel is destroyed.
    pub lines: *mut NotifyLineV1,
    /// How many there are.
    pub notifies: u32,
    /// Bytes from one to the next.
    pub stride: u32,
    /// Words of the peer's bell, readable until the channel is destroyed; null if the peer is in
    /// this process, whose bell the host knows.
    pub bell: *const BellV1,
    /// [`STATUS_OK`] as long as the channel works, then why it does not: in memory of this process,
    /// valid until the channel is destroyed, changed by the plugin at any time. Read as one atomic
    /// word. Once it is not [`STATUS_OK`] the host calls `post`, which says so.
    pub state: *const i32,
}

/// Counters of a device since it was opened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct CountersV1 {
    /// Descriptors accepted.
    pub descriptors: u64,
    /// Bytes written to peers.
    pub bytes_written: u64,
    /// Bytes read from peers.
    pub bytes_read: u64,
    /// Notifies recorded at peers.
    pub notifies: u64,
    /// Bytes that went through a buffer in between.
    pub bytes_staged: u64,
    /// Control messages that the link itself does not need for moving bytes.
    pub control_messages: u64,
    /// Retransmissions, where the link has them.
    pub retransmissions: u64,
    /// Packets or descriptors dropped, where the link has them.
    pub drops: u64,
}

/// What the host offers. Given at init; stays valid for ever.
#[repr(C)]
#[derive(Debug)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct HostV1 {
    /// Header of this table.
    pub header: Header,
    /// First argument of the functions below.
    pub context: *mut c_void,
    /// Takes a log line of `level` (`LOG_…`); `text` is `len` bytes of UTF-8. Any thread.
    pub log: Option<
        unsafe extern "C" fn(context: *mut c_void, level: u32, text: *const c_char, len: usize),
    >,
    /// Now, in nanoseconds of the host's clock. Any thread.
    pub now_ns: Option<unsafe extern "C" fn(context: *mut c_void) -> u64>,
    /// `dst[i] = a[i] op b[i]` for `count` elements; `dst` may be `a` or `b`. Any thread.
    /// Returns a status.
    pub reduce: Option<
        unsafe extern "C" fn(
            dst: *mut c_void,
            a: *const c_void,
            b: *const c_void,
            count: u64,
            dtype: u32,
            redop: u32,
        ) -> i32,
    >,
    /// Wakes whoever of this process sleeps in the host's waiter. Any thread.
    pub ring: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// Descriptor of the memory (a memfd of one page) in which the bell's words lie, to be handed
    /// to peers of this host, or -1. The words are those of [`BellV1`].
    pub bell_memfd: i32,
    /// Offset of the [`BellV1`] in it.
    pub bell_offset: u32,
    /// Event descriptor to write to when [`BellV1::pollers`] is not zero, or -1.
    pub bell_eventfd: i32,
    /// Zero.
    pub reserved: u32,
}

/// The bell's words. To ring: full fence; if `sleepers` is not zero, add one to `sequence` and
/// wake all futex waiters on it; if `pollers` is not zero, write to the eventfd.
#[repr(C, align(64))]
#[derive(Debug)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct BellV1 {
    /// Futex word.
    pub sequence: u32,
    /// Threads that sleep on `sequence`, or are about to.
    pub sleepers: u32,
    /// Threads that sleep on the eventfd, or are about to.
    pub pollers: u32,
    /// 1 if whoever sleeps here runs, between announcing it and the last look, the barrier of
    /// `membarrier(2)` on all processes that are registered for the global expedited one. Ringers
    /// of such a process may leave their fence out.
    pub barrier: u32,
    /// Zero.
    pub reserved: [u32; 12],
}

/// The slow calls of a plugin. Entries marked *optional* may be null.
#[repr(C)]
#[derive(Debug)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct TransportV1 {
    /// Header of this table.
    pub header: Header,
    /// Short name: the `<name>` of `libhcomm_transport_<name>.so`. Ended by a zero.
    pub name: *const c_char,
    /// Who made it. Ended by a zero.
    pub vendor: *const c_char,
    /// Its own version. Ended by a zero.
    pub version: *const c_char,
    /// Protocols served, one bit a protocol number.
    pub protocols: u32,
    /// Zero.
    pub reserved: u32,
    /// Called once, before everything else but `last_error`. A plugin that cannot work here says
    /// which of [`STATUS_MISSING_LIBRARY`], [`STATUS_MISSING_SYMBOL`], [`STATUS_NO_DEVICE`] it is.
    pub init: Option<unsafe extern "C" fn(host: *const HostV1) -> i32>,
    /// Writes how many devices there are now.
    pub device_count: Option<unsafe extern "C" fn(count: *mut u32) -> i32>,
    /// Fills in what device `index` is.
    pub query_device: Option<unsafe extern "C" fn(index: u32, attr: *mut DeviceAttrV1) -> i32>,
    /// Opens device `index`; gives the device and the table of its fast calls, which stays valid
    /// for ever. One device may be opened many times; the openings know nothing of each other.
    pub open_device: Option<
        unsafe extern "C" fn(
            index: u32,
            device: *mut *mut Device,
            ops: *mut *const DataOpsV1,
        ) -> i32,
    >,
    /// Closes a device. [`STATUS_BUSY`] while regions, imports or channels of it are open.
    pub close_device: Option<unsafe extern "C" fn(device: *mut Device) -> i32>,
    /// Registers memory that the caller brings and keeps until deregistration. *Optional.*
    pub register: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            address: *mut c_void,
            bytes: u64,
            region: *mut *mut Region,
        ) -> i32,
    >,
    /// Allocates zeroed memory, page-aligned, that peers can reach in the best way the link
    /// has. *Optional.*
    pub allocate: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            bytes: u64,
            region: *mut *mut Region,
            address: *mut *mut c_void,
        ) -> i32,
    >,
    /// Ends a registration, or frees allocated memory. Peers' imports of it become stale.
    pub deregister: Option<unsafe extern "C" fn(device: *mut Device, region: *mut Region) -> i32>,
    /// Writes what a peer needs to import the region: at most `capacity` bytes, `len` says how many.
    pub export_region: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            region: *mut Region,
            blob: *mut u8,
            capacity: u32,
            len: *mut u32,
        ) -> i32,
    >,
    /// Imports a region of the peer of a connected channel. May be in progress until the peer's
    /// side has called `progress`; it is called again with the same blob, and `import` then
    /// carries what was begun (null at first).
    pub import_region: Option<
        unsafe extern "C" fn(
            channel: *mut Channel,
            blob: *const u8,
            len: u32,
            import: *mut *mut Import,
            attr: *mut ImportAttrV1,
        ) -> i32,
    >,
    /// Forgets an import, also one in progress.
    pub release_import:
        Option<unsafe extern "C" fn(channel: *mut Channel, import: *mut Import) -> i32>,
    /// Makes one end of a channel.
    pub create_channel: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            attr: *const ChannelAttrV1,
            channel: *mut *mut Channel,
        ) -> i32,
    >,
    /// Writes what the peer's end needs: at most `capacity` bytes, `len` says how many.
    pub local_blob: Option<
        unsafe extern "C" fn(
            channel: *mut Channel,
            blob: *mut u8,
            capacity: u32,
            len: *mut u32,
        ) -> i32,
    >,
    /// Connects with the end that made the blob; both sides call it, again and again while it is
    /// in progress.
    pub connect:
        Option<unsafe extern "C" fn(channel: *mut Channel, blob: *const u8, len: u32) -> i32>,
    /// Fills in where the peer of a connected channel waits. [`STATUS_UNSUPPORTED`] where it cannot
    /// be reached by stores of this process. *Optional.*
    pub map_peer: Option<unsafe extern "C" fn(channel: *mut Channel, peer: *mut PeerV1) -> i32>,
    /// Destroys an end. What was accepted and not completed is dropped without a completion; the
    /// peer's end reports [`STATUS_PEER_LOST`] from `check`.
    pub destroy_channel: Option<unsafe extern "C" fn(channel: *mut Channel) -> i32>,
    /// Fills in the counters of a device. *Optional.*
    pub counters: Option<unsafe extern "C" fn(device: *mut Device, out: *mut CountersV1) -> i32>,
    /// Says, for people, in which way a connected channel moves bytes, and why in that way: writes
    /// at most `capacity` bytes of UTF-8 without a closing zero; returns how many. *Optional.*
    pub describe: Option<
        unsafe extern "C" fn(channel: *mut Channel, text: *mut c_char, capacity: u32) -> u32,
    >,
    /// Writes the text to the latest negative status on this OS thread: at most `capacity` bytes
    /// without a closing zero; returns how many.
    pub last_error: Option<unsafe extern "C" fn(text: *mut c_char, capacity: u32) -> u32>,
    /// A later ability by its number, or null. *Optional.*
    pub extension: Option<unsafe extern "C" fn(id: u32) -> *const c_void>,
}

/// The fast calls of a device. None blocks, none allocates. Entries marked *optional* may be null.
#[repr(C)]
#[derive(Debug)]
#[cfg_attr(feature = "rust-door", derive(StableAbi))]
pub struct DataOpsV1 {
    /// Header of this table.
    pub header: Header,
    /// Takes a batch of `count` descriptors; accepts a prefix and writes its length. Descriptors
    /// of a batch are unordered among themselves, but that one with a notify comes after all
    /// earlier ones. [`STATUS_OK`] when all were accepted, [`STATUS_NO_RESOURCE`] when the queue is
    /// full, otherwise what is wrong with the first one that was not accepted. Descriptors done
    /// inside the call have no completion; `inline_done` says how many of the accepted were.
    ///
    /// More than `max_batch` descriptors are refused with [`STATUS_INVALID_ARGUMENT`], or accepted
    /// up to that many. Zero bytes are legal, also at the very end of a region. A record on a
    /// notify that the peer does not have is refused with [`STATUS_INVALID_ARGUMENT`] or
    /// [`STATUS_OUT_OF_BOUNDS`]. After the loss of the peer, descriptors that were accepted and
    /// have not completed get a completion with the error.
    pub post: Option<
        unsafe extern "C" fn(
            channel: *mut Channel,
            descriptors: *const DescriptorV1,
            count: u32,
            accepted: *mut u32,
            inline_done: *mut u32,
        ) -> i32,
    >,
    /// Fills in completions of the whole device, at most `capacity`; `count` says how many.
    pub poll: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            completions: *mut CompletionV1,
            capacity: u32,
            count: *mut u32,
        ) -> i32,
    >,
    /// [`STATUS_OK`] when everything accepted on the channel is visible at the peer, else
    /// [`STATUS_IN_PROGRESS`].
    pub flush: Option<unsafe extern "C" fn(channel: *mut Channel) -> i32>,
    /// Moves everything on: serves peers, sends what waits. [`STATUS_OK`] when something was done,
    /// [`STATUS_IN_PROGRESS`] when there was nothing to do.
    pub progress: Option<unsafe extern "C" fn(device: *mut Device) -> i32>,
    /// The line on which notify `index` of this side arrives; null if there is no such index or the
    /// channel was never connected. Valid until the channel is destroyed.
    pub notify_line:
        Option<unsafe extern "C" fn(channel: *mut Channel, index: u32) -> *mut NotifyLineV1>,
    /// State of the channel: [`STATUS_OK`], [`STATUS_NOT_CONNECTED`], [`STATUS_PEER_LOST`],
    /// [`STATUS_LINK_DOWN`]. Called now and then while somebody waits; may make a system call.
    pub check: Option<unsafe extern "C" fn(channel: *mut Channel) -> i32>,
    /// A descriptor that becomes readable when `progress` or a `connect` has something to do, or
    /// -1. *Optional.*
    pub wake_fd: Option<unsafe extern "C" fn(device: *mut Device) -> i32>,
    /// Asks for `wake_fd` to report the next arrival. [`STATUS_IN_PROGRESS`] if something has
    /// arrived already: do not sleep. *Optional.*
    pub arm: Option<unsafe extern "C" fn(device: *mut Device) -> i32>,
    /// Wakes who sleeps at the peer: the host has recorded by itself (see [`PeerV1`]) and seen in
    /// the peer's bell that somebody does. *Optional.*
    pub ring: Option<unsafe extern "C" fn(channel: *mut Channel)>,
    /// Copies `bytes` bytes at `address` of the peer's process to `local`, without the peer. The
    /// peer lends that memory and keeps it as it is meanwhile, or says that it did not: the host
    /// looks before and after. [`STATUS_UNSUPPORTED`] where the peer's process cannot be read from
    /// here, also for zero bytes, which ask just that; [`STATUS_SYSTEM`] if there is no such memory,
    /// [`STATUS_PEER_LOST`] if there is no such process any more. *Optional.*
    pub fetch: Option<
        unsafe extern "C" fn(
            channel: *mut Channel,
            local: *mut c_void,
            address: u64,
            bytes: u64,
        ) -> i32,
    >,
}

// SAFETY: the tables are read-only after they were built, and their raw pointers point to
// statics or to nothing that is written through.
unsafe impl Sync for TransportV1 {}
// SAFETY: as for `TransportV1`.
unsafe impl Sync for DataOpsV1 {}
// SAFETY: `HostV1` is read-only; its functions may be called on any thread by their own text.
unsafe impl Sync for HostV1 {}
// SAFETY: as for `Sync`.
unsafe impl Send for HostV1 {}

/// Type of the C door: the exported function `hcomm_transport_v1`.
pub type EntryV1 = unsafe extern "C" fn() -> *const TransportV1;

/// Name of the C door, with its closing zero.
pub const ENTRY_SYMBOL: &[u8] = b"hcomm_transport_v1\0";

/// The Rust door: an abi_stable root module with one function that returns the same table. Its
/// check compares the whole type tree, so a Rust plugin built against edited tables is refused
/// with the exact place.
#[cfg(feature = "rust-door")]
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = RustDoorRef, prefix_fields = RustDoorPrefix)))]
#[sabi(missing_field(panic))]
pub struct RustDoor {
    /// Returns the table of the plugin.
    #[sabi(last_prefix_field)]
    pub transport_v1: extern "C" fn() -> &'static TransportV1,
}

#[cfg(feature = "rust-door")]
impl abi_stable::library::RootModule for RustDoorRef {
    abi_stable::declare_root_module_statics! {RustDoorRef}

    const BASE_NAME: &'static str = "hcomm_transport";
    const NAME: &'static str = "hcomm_transport";
    const VERSION_STRINGS: abi_stable::sabi_types::VersionStrings =
        abi_stable::package_version_strings!();
}
