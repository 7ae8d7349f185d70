//! The tables themselves, for what the host's handles would hide: headers, limits and bounds that
//! the host checks as well. Everything made here lives until the process ends, as each check has
//! a process of its own.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Instant;

use hcomm_transport_abi::{
    CAP_ALLOCATE, Channel, ChannelAttrV1, DataOpsV1, DescriptorV1, Device, DeviceAttrV1,
    ENTRY_SYMBOL, EntryV1, Import, ImportAttrV1, NotifyLineV1, OP_NOTIFY, OP_WRITE, PeerV1, Region,
    STATUS_IN_PROGRESS, STATUS_OK, TransportV1,
};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::case::Case;
use crate::side::PATIENCE;
use crate::subject::{Door, Subject};
use crate::verdict::{Stop, fail};

/// The plugin's table.
#[derive(Clone, Copy)]
pub(crate) struct Table(pub(crate) &'static TransportV1);

impl Table {
    /// The table of a plugin that [`Subject::load`] has initialised in this process.
    pub(crate) fn of(subject: &Subject) -> Result<Self, Stop> {
        match subject.door() {
            Door::Linked(table) => Ok(Self(table)),
            Door::File => Ok(Self(entry(subject)?.0)),
        }
    }

    /// Whether the door gives the same table again.
    pub(crate) fn is_stable(self, subject: &Subject) -> Result<bool, Stop> {
        let again = match subject.door() {
            Door::Linked(table) => table,
            Door::File => entry(subject)?.0,
        };
        Ok(std::ptr::eq(self.0, again))
    }

    /// A text of the table.
    pub(crate) fn text(pointer: *const c_char) -> Option<String> {
        if pointer.is_null() {
            return None;
        }
        // SAFETY: not null; ended by a zero and there for ever by the table's contract.
        let text = unsafe { CStr::from_ptr(pointer) };
        text.to_str().ok().map(str::to_owned)
    }

    /// Names of mandatory entries that are null.
    pub(crate) fn holes(self) -> Vec<&'static str> {
        macro_rules! holes {
            ($($entry:ident),* $(,)?) => {
                [$((stringify!($entry), self.0.$entry.is_none())),*]
                    .into_iter()
                    .filter(|(_, hole)| *hole)
                    .map(|(name, _)| name)
                    .collect()
            };
        }
        holes![
            init,
            device_count,
            query_device,
            open_device,
            close_device,
            deregister,
            export_region,
            import_region,
            release_import,
            create_channel,
            local_blob,
            connect,
            destroy_channel,
            last_error,
        ]
    }

    pub(crate) fn device_count(self) -> (i32, u32) {
        let mut count = u32::MAX;
        let call = self.0.device_count.expect("looked at before");
        // SAFETY: the plugin is initialised; the place is ours.
        (unsafe { call(&raw mut count) }, count)
    }

    pub(crate) fn query(self, index: u32) -> (i32, DeviceAttrV1) {
        // SAFETY: all-zero integers are a value of this table.
        let mut attr: DeviceAttrV1 = unsafe { std::mem::zeroed() };
        let call = self.0.query_device.expect("looked at before");
        // SAFETY: as above.
        (unsafe { call(index, &raw mut attr) }, attr)
    }

    /// The text to the latest failure, in a buffer of `capacity` bytes; what the plugin says its
    /// length is, and whether it kept to the buffer.
    pub(crate) fn last_error(self, capacity: usize) -> (usize, Vec<u8>, bool) {
        const GUARD: u8 = 0xA5;
        let mut buffer = vec![GUARD; capacity + 64];
        let call = self.0.last_error.expect("looked at before");
        // SAFETY: the buffer has more room than we say.
        let len = unsafe { call(buffer.as_mut_ptr().cast(), capacity as u32) } as usize;
        let kept = buffer[capacity..].iter().all(|&byte| byte == GUARD);
        buffer.truncate(len.min(capacity));
        (len, buffer, kept)
    }

    /// Whether an extension of this number is offered.
    pub(crate) fn has_extension(self, id: u32) -> bool {
        self.0.extension.is_some_and(|call| {
            // SAFETY: the plugin is initialised.
            let found = unsafe { call(id) };
            !found.is_null()
        })
    }

    pub(crate) fn open(self, index: u32) -> Result<RawDevice, Stop> {
        let (mut device, mut ops) = (null_mut(), null());
        let call = self.0.open_device.expect("looked at before");
        // SAFETY: the plugin is initialised; both places are ours.
        let status = unsafe { call(index, &raw mut device, &raw mut ops) };
        if status != STATUS_OK || device.is_null() || ops.is_null() {
            return Err(fail(format!(
                "open_device: status {status}, device {device:?}, table {ops:?}"
            )));
        }
        Ok(RawDevice {
            table: self.0,
            device,
            // SAFETY: a table that the plugin gave stays valid for ever.
            ops: unsafe { &*ops },
        })
    }
}

fn entry(subject: &Subject) -> Result<Table, Stop> {
    // SAFETY: it is loaded already: no constructor runs.
    let library = unsafe { Library::open(Some(subject.path()), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| fail(format!("{}: {error}", subject.path().display())))?;
    // SAFETY: the symbol has this type by the contract of the ABI.
    let entry = unsafe { library.get::<EntryV1>(ENTRY_SYMBOL) }
        .map(|symbol| *symbol)
        .map_err(|error| fail(error.to_string()))?;
    std::mem::forget(library);
    // SAFETY: it takes nothing; the loader has checked what it gives.
    Ok(Table(unsafe { &*entry() }))
}

/// A device, open until the process ends or it is closed.
pub(crate) struct RawDevice {
    pub(crate) table: &'static TransportV1,
    pub(crate) device: *mut Device,
    pub(crate) ops: &'static DataOpsV1,
}

/// Memory that the device knows.
#[derive(Clone, Copy)]
pub(crate) struct RawRegion {
    pub(crate) region: *mut Region,
    pub(crate) address: *mut u8,
}

impl RawDevice {
    pub(crate) fn close(&self) -> i32 {
        let call = self.table.close_device.expect("looked at before");
        // SAFETY: open; the checks do not use it after a success.
        unsafe { call(self.device) }
    }

    /// Status of `allocate`; `None` where the entry is null.
    pub(crate) fn allocate(&self, bytes: u64) -> Option<(i32, RawRegion)> {
        let (mut region, mut address) = (null_mut(), null_mut());
        // SAFETY: open; both places are ours.
        let status =
            unsafe { self.table.allocate?(self.device, bytes, &raw mut region, &raw mut address) };
        let address = address.cast();
        Some((status, RawRegion { region, address }))
    }

    /// Status of `register` of memory that stays for ever; `None` where the entry is null.
    pub(crate) fn register(&self, bytes: usize) -> Option<(i32, RawRegion)> {
        // Aligned to a page, and to be told from anything else's memory.
        let block = vec![0u8; bytes + 4096].leak();
        let address = block
            .as_mut_ptr()
            .wrapping_add(block.as_ptr().align_offset(4096));
        let mut region = null_mut();
        // SAFETY: open; the memory is leaked and only reached by raw copies.
        let status = unsafe {
            self.table.register?(self.device, address.cast(), bytes as u64, &raw mut region)
        };
        Some((status, RawRegion { region, address }))
    }

    /// Memory of the first kind that the device offers.
    pub(crate) fn memory(&self, capabilities: u64, bytes: usize) -> Result<RawRegion, Stop> {
        let made = if capabilities & CAP_ALLOCATE != 0 {
            self.allocate(bytes as u64)
        } else {
            self.register(bytes)
        };
        match made {
            Some((STATUS_OK, region)) if !region.region.is_null() => Ok(region),
            Some((status, _)) => Err(fail(format!("memory of {bytes} bytes: status {status}"))),
            None => Err(Stop::Skip("lacks ALLOCATE and REGISTER".to_owned())),
        }
    }

    pub(crate) fn deregister(&self, region: RawRegion) -> i32 {
        let call = self.table.deregister.expect("looked at before");
        // SAFETY: made by this device; not used after a success.
        unsafe { call(self.device, region.region) }
    }

    /// The region's blob in a buffer of `capacity`: status, length, bytes, and whether the plugin
    /// kept to the buffer.
    pub(crate) fn export(&self, region: RawRegion, capacity: usize) -> (i32, usize, Vec<u8>, bool) {
        let call = self.table.export_region.expect("looked at before");
        into_buffer(capacity, |blob, len| {
            // SAFETY: open and registered; the buffer has more room than we say.
            unsafe { call(self.device, region.region, blob, capacity as u32, len) }
        })
    }

    pub(crate) fn create(&self, notifies: u32) -> (i32, *mut Channel) {
        let attr = ChannelAttrV1 {
            notifies,
            queue_depth: 64,
            traffic_class: 0,
            service_level: 0,
            reserved: [0; 4],
        };
        let mut channel = null_mut();
        let call = self.table.create_channel.expect("looked at before");
        // SAFETY: open; the places are ours.
        let status = unsafe { call(self.device, &raw const attr, &raw mut channel) };
        (status, channel)
    }

    pub(crate) fn destroy(&self, channel: *mut Channel) -> i32 {
        let call = self.table.destroy_channel.expect("looked at before");
        // SAFETY: made by `create`, not used afterwards.
        unsafe { call(channel) }
    }

    /// The channel's blob, as in [`RawDevice::export`].
    pub(crate) fn blob(
        &self,
        channel: *mut Channel,
        capacity: usize,
    ) -> (i32, usize, Vec<u8>, bool) {
        let call = self.table.local_blob.expect("looked at before");
        into_buffer(capacity, |blob, len| {
            // SAFETY: alive; the buffer has more room than we say.
            unsafe { call(channel, blob, capacity as u32, len) }
        })
    }

    fn connect(&self, channel: *mut Channel, blob: &[u8]) -> i32 {
        let call = self.table.connect.expect("looked at before");
        // SAFETY: alive; the blob is ours.
        unsafe { call(channel, blob.as_ptr(), blob.len() as u32) }
    }

    pub(crate) fn progress(&self) -> i32 {
        let call = self.ops.progress.expect("looked at before");
        // SAFETY: open; this thread alone uses it.
        unsafe { call(self.device) }
    }

    pub(crate) fn post(&self, channel: *mut Channel, batch: &[DescriptorV1]) -> (i32, u32, u32) {
        let (mut accepted, mut inline_done) = (u32::MAX, u32::MAX);
        let call = self.ops.post.expect("looked at before");
        // SAFETY: alive; memory and handles in the descriptors live until the process ends.
        let status = unsafe {
            call(
                channel,
                batch.as_ptr(),
                batch.len() as u32,
                &raw mut accepted,
                &raw mut inline_done,
            )
        };
        (status, accepted, inline_done)
    }

    pub(crate) fn has_line(&self, channel: *mut Channel, index: u32) -> bool {
        self.notify(channel, index).is_some()
    }

    /// How often notify `index` was recorded, and its fingerprint.
    pub(crate) fn notify(&self, channel: *mut Channel, index: u32) -> Option<(u64, [u64; 2])> {
        let call = self.ops.notify_line.expect("looked at before");
        // SAFETY: alive.
        let line = unsafe { call(channel, index) };
        if line.is_null() || !line.is_aligned() {
            return None;
        }
        // SAFETY: there until the channel is destroyed.
        Some(unsafe { RawLine(line).read() })
    }

    /// Status of `map_peer`, and what it gave; `None` where the entry is null.
    pub(crate) fn map_peer(&self, channel: *mut Channel) -> Option<(i32, PeerV1)> {
        let mut peer = PeerV1 {
            lines: null_mut(),
            notifies: 0,
            stride: 0,
            bell: null(),
            state: null(),
        };
        // SAFETY: alive; the place is ours.
        let status = unsafe { self.table.map_peer?(channel, &raw mut peer) };
        Some((status, peer))
    }

    /// Calls `ring`, if there is such an entry.
    pub(crate) fn ring(&self, channel: *mut Channel) {
        if let Some(call) = self.ops.ring {
            // SAFETY: alive.
            unsafe { call(channel) }
        }
    }

    /// Calls `fetch` for memory of this process, with as many bytes as `local` has; `None` where the
    /// entry is null.
    pub(crate) fn fetch(
        &self,
        channel: *mut Channel,
        local: &mut [u8],
        address: u64,
    ) -> Option<i32> {
        let call = self.ops.fetch?;
        let (to, bytes) = (local.as_mut_ptr().cast(), local.len() as u64);
        // SAFETY: alive; `local` is ours and as long as we say.
        Some(unsafe { call(channel, to, address, bytes) })
    }

    /// What `describe` says its length is in a buffer of `capacity` bytes, the bytes, and whether
    /// it kept to the buffer; `None` where the entry is null.
    pub(crate) fn describe(
        &self,
        channel: *mut Channel,
        capacity: usize,
    ) -> Option<(usize, Vec<u8>, bool)> {
        let call = self.table.describe?;
        let (_, len, text, kept) = into_buffer(capacity, |text, len| {
            // SAFETY: alive; the buffer has more room than we say.
            let said = unsafe { call(channel, text.cast(), capacity as u32) };
            // SAFETY: the buffer's own place for it.
            unsafe { *len = said };
            STATUS_OK
        });
        Some((len, text, kept))
    }

    pub(crate) fn check(&self, channel: *mut Channel) -> i32 {
        let call = self.ops.check.expect("looked at before");
        // SAFETY: alive; this thread alone uses it.
        unsafe { call(channel) }
    }
}

/// A notify line, by the words that a host reads and writes.
#[derive(Clone, Copy)]
pub(crate) struct RawLine(*mut NotifyLineV1);

impl RawLine {
    /// Line `index` of those that `map_peer` gave.
    pub(crate) fn of_peer(peer: &PeerV1, index: u32) -> Self {
        let at = index as usize * peer.stride as usize;
        Self(peer.lines.wrapping_byte_add(at))
    }

    /// Records, as a host does: fingerprint, then one more in `count`.
    ///
    /// # Safety
    /// The line is there, and nobody else records.
    pub(crate) unsafe fn record(self, fingerprint: [u64; 2]) {
        // SAFETY: the caller's promise; every access is atomic.
        unsafe {
            for (word, value) in self.fingerprint().into_iter().zip(fingerprint) {
                if value != 0 {
                    word.store(value, Ordering::Relaxed);
                }
            }
            let count = AtomicU64::from_ptr(&raw mut (*self.0).count);
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
    }

    /// # Safety
    /// The line is there.
    unsafe fn read(self) -> (u64, [u64; 2]) {
        // SAFETY: the caller's promise; every access is atomic.
        unsafe {
            let count = AtomicU64::from_ptr(&raw mut (*self.0).count);
            let served = AtomicU64::from_ptr(&raw mut (*self.0).served);
            let records = count.load(Ordering::Acquire) + served.load(Ordering::Acquire);
            let fingerprint = self.fingerprint().map(|word| word.load(Ordering::Relaxed));
            (records, fingerprint)
        }
    }

    /// # Safety
    /// The line is there.
    unsafe fn fingerprint<'a>(self) -> [&'a AtomicU64; 2] {
        [0, 1].map(|word: usize| {
            // SAFETY: the caller's promise.
            unsafe { AtomicU64::from_ptr(&raw mut (*self.0).fingerprint[word]) }
        })
    }
}

/// The word of `map_peer` that says whether the channel works.
pub(crate) fn state_of(peer: &PeerV1) -> i32 {
    // SAFETY: not null and aligned, as the check has made sure, and there until the channel is
    // destroyed.
    unsafe { AtomicI32::from_ptr(peer.state.cast_mut()) }.load(Ordering::Acquire)
}

/// Two connected ends in this thread, and memory of the second imported at the first.
pub(crate) struct RawPair {
    pub(crate) near: RawDevice,
    pub(crate) far: RawDevice,
    pub(crate) near_end: *mut Channel,
    pub(crate) far_end: *mut Channel,
    pub(crate) local: RawRegion,
    pub(crate) remote: RawRegion,
    pub(crate) import: *mut Import,
}

impl RawPair {
    pub(crate) fn new(case: &Case, notifies: u32, bytes: usize) -> Result<Self, Stop> {
        Self::with_notifies(case, [notifies; 2], bytes)
    }

    /// With different numbers of notifies at the near and the far end.
    pub(crate) fn with_notifies(
        case: &Case,
        notifies: [u32; 2],
        bytes: usize,
    ) -> Result<Self, Stop> {
        let table = Table::of(case.subject())?;
        let capabilities = case.info().capabilities.bits();
        let capacity = case.info().max_blob_bytes as usize;
        let (near, far) = (
            table.open(case.info().index)?,
            table.open(case.info().index)?,
        );
        let make = |device: &RawDevice, notifies| match device.create(notifies) {
            (STATUS_OK, channel) if !channel.is_null() => Ok(channel),
            (status, _) => Err(fail(format!("create_channel: status {status}"))),
        };
        let (near_end, far_end) = (make(&near, notifies[0])?, make(&far, notifies[1])?);
        let near_blob = near.blob(near_end, capacity).2;
        let far_blob = far.blob(far_end, capacity).2;
        let step = || [near.progress(), far.progress()];
        until_ok("connect of both ends", || {
            step();
            // Both must be asked each time, so that neither waits for the other.
            let (one, two) = (
                near.connect(near_end, &far_blob),
                far.connect(far_end, &near_blob),
            );
            if one == STATUS_OK { two } else { one }
        })?;
        let local = near.memory(capabilities, bytes)?;
        let remote = far.memory(capabilities, bytes)?;
        let blob = far.export(remote, capacity).2;
        let mut import = null_mut();
        let mut attr = ImportAttrV1 {
            bytes: 0,
            address: null_mut(),
        };
        let call = table.0.import_region.expect("looked at before");
        until_ok("import", || {
            step();
            // SAFETY: alive; blob and places are ours.
            unsafe {
                call(
                    near_end,
                    blob.as_ptr(),
                    blob.len() as u32,
                    &raw mut import,
                    &raw mut attr,
                )
            }
        })?;
        if attr.bytes != bytes as u64 {
            return Err(fail(format!(
                "the import of {bytes} bytes says it has {}",
                attr.bytes
            )));
        }
        Ok(Self {
            near,
            far,
            near_end,
            far_end,
            local,
            remote,
            import,
        })
    }

    pub(crate) fn write(&self, offset: u64, bytes: u64) -> DescriptorV1 {
        DescriptorV1 {
            opcode: OP_WRITE,
            local: self.local.address.cast(),
            local_region: self.local.region,
            remote: self.import,
            remote_offset: offset,
            bytes,
            ..notify(0)
        }
    }

    /// Content of the first `len` bytes of the remote memory.
    pub(crate) fn remote_bytes(&self, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        // SAFETY: in the region, which lives until the process ends.
        unsafe {
            out.as_mut_ptr()
                .copy_from_nonoverlapping(self.remote.address, len)
        };
        out
    }
}

/// A descriptor that records a notify.
pub(crate) const fn notify(index: u32) -> DescriptorV1 {
    DescriptorV1 {
        opcode: OP_NOTIFY,
        flags: 0,
        local: null_mut::<c_void>(),
        local_region: null_mut(),
        remote: null_mut(),
        remote_offset: 0,
        bytes: 0,
        notify: index,
        dtype: 0,
        redop: 0,
        reserved: 0,
        fingerprint: [0; 2],
        cookie: 7,
    }
}

fn until_ok(what: &str, mut call: impl FnMut() -> i32) -> Result<(), Stop> {
    let until = Instant::now() + PATIENCE;
    loop {
        match call() {
            STATUS_OK => return Ok(()),
            STATUS_IN_PROGRESS if Instant::now() < until => std::thread::yield_now(),
            status => return Err(fail(format!("{what}: status {status}"))),
        }
    }
}

fn into_buffer(
    capacity: usize,
    call: impl FnOnce(*mut u8, *mut u32) -> i32,
) -> (i32, usize, Vec<u8>, bool) {
    const GUARD: u8 = 0xA5;
    let mut buffer = vec![GUARD; capacity + 64];
    let mut len = u32::MAX;
    let status = call(buffer.as_mut_ptr(), &raw mut len);
    let kept = buffer[capacity..].iter().all(|&byte| byte == GUARD);
    buffer.truncate((len as usize).min(capacity));
    (status, len as usize, buffer, kept)
}
