//! Channels: one end of a connection.

use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use hcomm_transport_abi as abi;
use hcomm_types::{DataType, Error, ErrorKind, ReduceOp, Result};

use crate::barrier::Often;
use crate::bell::Bell;
use crate::counts::{self, UNKNOWN};
use crate::device::{Device, Lane, Turn};
use crate::region::{Import, ImportInner, Region};
use crate::sync::AtomicBool;

/// One end of a connection. A clone is the same end; it is destroyed when the last handle of it,
/// its notifies and its imports is gone.
#[derive(Clone)]
pub struct Channel(Arc<ChannelInner>);

struct ChannelInner {
    device: Device,
    handle: NonNull<abi::Channel>,
    notifies: u32,
    /// Fast calls on one channel come from one thread at a time.
    turn: AtomicBool,
    /// Where the peer waits, once connected.
    peer: OnceLock<Option<Peer>>,
}

/// Where the peer waits, on links that let us store there.
struct Peer {
    lines: NonNull<abi::NotifyLineV1>,
    /// From one to the next, in lines.
    stride: usize,
    bell: NonNull<abi::BellV1>,
    is_here: bool,
    state: NonNull<i32>,
    fence: Often,
    /// How often each notify was recorded: asking the line itself would fetch it from the waiter
    /// before it is written. Unknown after records that went through the plugin.
    counts: Box<[AtomicU64]>,
}

// SAFETY: the table's thread rules: slow calls may come from any thread, fast calls from one at a
// time, which `turn` holds to.
unsafe impl Send for ChannelInner {}
// SAFETY: as for `Send`.
unsafe impl Sync for ChannelInner {}

/// One piece of work for [`Channel::post`].
#[derive(Clone, Copy, Debug)]
pub enum Descriptor<'a> {
    /// Bytes from here to the peer.
    Write {
        /// Source.
        local: NonNull<u8>,
        /// Region that holds the source; needed where the device does not promise `LOCAL_ANY`.
        region: Option<&'a Region>,
        /// The peer's region.
        remote: &'a Import,
        /// Offset there.
        offset: u64,
        /// Bytes.
        bytes: u64,
        /// Notify of the peer to add to afterwards.
        notify: Option<u32>,
    },
    /// Bytes from the peer to here.
    Read {
        /// Destination.
        local: NonNull<u8>,
        /// Region that holds the destination; needed where the device does not promise `LOCAL_ANY`.
        region: Option<&'a Region>,
        /// The peer's region.
        remote: &'a Import,
        /// Offset there.
        offset: u64,
        /// Bytes.
        bytes: u64,
    },
    /// `remote = remote op local`.
    WriteReduce {
        /// Operand here.
        local: NonNull<u8>,
        /// Region that holds it; needed where the device does not promise `LOCAL_ANY`.
        region: Option<&'a Region>,
        /// The peer's region.
        remote: &'a Import,
        /// Offset there.
        offset: u64,
        /// Elements.
        count: u64,
        /// Type of the elements.
        dtype: DataType,
        /// Operation.
        redop: ReduceOp,
        /// Notify of the peer to add to afterwards.
        notify: Option<u32>,
    },
    /// `local = local op remote`.
    ReadReduce {
        /// Operand and result here.
        local: NonNull<u8>,
        /// Region that holds it; needed where the device does not promise `LOCAL_ANY`.
        region: Option<&'a Region>,
        /// The peer's region.
        remote: &'a Import,
        /// Offset there.
        offset: u64,
        /// Elements.
        count: u64,
        /// Type of the elements.
        dtype: DataType,
        /// Operation.
        redop: ReduceOp,
    },
    /// Adds one to a notify of the peer.
    Notify {
        /// The notify.
        notify: u32,
        /// Put into the notify's line before the count changes, unless zero.
        fingerprint: [u64; 2],
    },
}

/// What [`Channel::post`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Length of the prefix that was accepted; shorter than the batch when the queue is full.
    pub accepted: usize,
    /// How many of the accepted will complete later, on the lane.
    pub pending: usize,
}

impl Device {
    /// Makes one end of a channel with `notifies` notifies to wait on.
    ///
    /// # Errors
    /// `InvalidArgument` above the device's limits, `LimitReached`, or what the plugin says.
    pub fn create_channel(&self, notifies: u32, queue_depth: u32) -> Result<Channel> {
        let info = self.info();
        if notifies > info.max_notifies {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{notifies} notifies asked for a channel of {:?}, which allows {}",
                    self, info.max_notifies
                ),
            ));
        }
        let attr = abi::ChannelAttrV1 {
            notifies,
            queue_depth,
            traffic_class: 0,
            service_level: 0,
            reserved: [0; 4],
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the device is alive; both places are ours.
        let status = unsafe {
            (info.plugin.calls.create_channel)(
                self.0.handle.as_ptr(),
                &raw const attr,
                &raw mut handle,
            )
        };
        info.plugin.status("create_channel", status)?;
        let handle = NonNull::new(handle).ok_or_else(|| {
            Error::new(
                ErrorKind::Plugin,
                format!(
                    "{} create_channel: success without a channel",
                    info.plugin.name()
                ),
            )
        })?;
        Ok(Channel(Arc::new(ChannelInner {
            device: self.clone(),
            handle,
            notifies,
            turn: AtomicBool::new(false),
            peer: OnceLock::new(),
        })))
    }
}

impl Channel {
    /// Descriptors that [`Channel::post`] gives to a transport in one call.
    pub const MOST_AT_ONCE: usize = 64;

    /// The device it belongs to.
    #[must_use]
    #[inline]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Notifies that this side can wait on.
    #[must_use]
    pub fn notifies(&self) -> u32 {
        self.0.notifies
    }

    /// What the peer's end needs.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn blob(&self) -> Result<Vec<u8>> {
        let info = self.0.device.info();
        let mut blob = vec![0; info.max_blob_bytes as usize];
        let mut len = 0;
        // SAFETY: the channel is alive; `blob` has as much room as we say.
        let status = unsafe {
            (info.plugin.calls.local_blob)(
                self.0.handle.as_ptr(),
                blob.as_mut_ptr(),
                blob.len() as u32,
                &raw mut len,
            )
        };
        info.plugin.status("local_blob", status)?;
        blob.truncate(len as usize);
        Ok(blob)
    }

    /// Connects with the end that made `peer`. Both sides poll; nothing moves by itself.
    #[must_use]
    pub fn connect(&self, peer: Vec<u8>) -> Connecting {
        Connecting {
            channel: self.clone(),
            peer,
        }
    }

    /// Imports a region of the peer from its exported blob.
    #[must_use]
    pub fn import(&self, blob: Vec<u8>) -> Importing {
        Importing {
            channel: self.clone(),
            blob,
            begun: std::ptr::null_mut(),
        }
    }

    /// Posts a batch: accepts a prefix, whose descriptors complete at once or later on `lane`.
    /// Fails only if the very first descriptor that was not accepted is wrong. Both ends of each
    /// transfer are checked against their regions before anything is posted.
    ///
    /// # Errors
    /// `OutOfBounds`, `InvalidArgument`, or the state of the link.
    ///
    /// # Safety
    /// The local memory of each descriptor is valid (readable; writable for reads) and not touched
    /// by anyone else until the descriptor has completed.
    pub unsafe fn post(&self, lane: &Lane, batch: &[Descriptor<'_>]) -> Result<Posted> {
        const CHUNK: usize = Channel::MOST_AT_ONCE;
        let mut total = Posted {
            accepted: 0,
            pending: 0,
        };
        for descriptor in batch {
            self.check_bounds(descriptor)?;
        }
        let Some(_turn) = Turn::take(&self.0.turn) else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "two OS threads post on one channel at the same time",
            )
            .hint("give each OS thread a channel of its own"));
        };
        let records = |descriptor: &Descriptor<'_>| {
            matches!(
                descriptor,
                Descriptor::Notify { .. }
                    | Descriptor::Write {
                        notify: Some(_),
                        ..
                    }
                    | Descriptor::WriteReduce {
                        notify: Some(_),
                        ..
                    }
            )
        };
        if let Some(peer) = self.mapped_peer()
            && batch.iter().any(records)
        {
            peer.forget_counts();
        }
        let limit = CHUNK.min(self.0.device.info().max_batch as usize);
        for chunk in batch.chunks(limit) {
            // Most posts are of one: no room is filled for the others.
            let mut raw = [const { MaybeUninit::<abi::DescriptorV1>::uninit() }; CHUNK];
            for (slot, descriptor) in raw.iter_mut().zip(chunk) {
                slot.write(to_raw(descriptor, lane.cookie()));
            }
            let (mut accepted, mut inline_done) = (0u32, 0u32);
            // SAFETY: the channel is alive, `turn` is ours, `raw` begins with `chunk.len()` descriptors,
            // the objects behind the pointers are borrowed for the call; memory is the caller's
            // promise.
            let status = unsafe {
                (self.0.device.0.calls.post)(
                    self.0.handle.as_ptr(),
                    raw.as_ptr().cast(),
                    chunk.len() as u32,
                    &raw mut accepted,
                    &raw mut inline_done,
                )
            };
            let accepted = (accepted as usize).min(chunk.len());
            total.accepted += accepted;
            total.pending += accepted - (inline_done as usize).min(accepted);
            match status {
                abi::STATUS_OK if accepted == chunk.len() => {}
                abi::STATUS_OK | abi::STATUS_NO_RESOURCE => break,
                // What was accepted stands; the fault comes back with the next post.
                _ if total.accepted > 0 => break,
                fault => return Err(self.0.device.info().plugin.fault("post", fault, "")),
            }
        }
        Ok(total)
    }

    /// Adds one to a notify of the peer by a store of ours, after the words of `fingerprint` that are not zero,
    /// and wakes who sleeps for it. `false`, and nothing was done, if the link does not allow that,
    /// the channel does not work, or there is no such notify: [`Channel::post`] then does it or
    /// says why not.
    ///
    /// Only for the thread that posts, and only while nothing posted on the channel is unfinished:
    /// it would be overtaken.
    #[inline]
    pub fn record(&self, notify: u32, fingerprint: [u64; 2]) -> bool {
        let Some(peer) = self.mapped_peer() else {
            return false;
        };
        let Some(records) = peer.counts.get(notify as usize).filter(|_| peer.works()) else {
            return false;
        };
        peer.record(notify, records, fingerprint);
        self.ring(peer);
        true
    }

    /// Wakes who sleeps at the peer, after a store into memory of the peer that it looks at. Costs
    /// two loads if nobody does. `false` if the link has no such memory.
    #[inline]
    pub fn ring_peer(&self) -> bool {
        let Some(peer) = self.mapped_peer() else {
            return false;
        };
        self.ring(peer);
        true
    }

    /// Whether the channel, of a link that maps the peer's notifies, works as far as is known
    /// without asking the system: [`Channel::check`] says more.
    #[inline]
    #[must_use]
    pub fn seems_to_work(&self) -> bool {
        self.mapped_peer().is_none_or(Peer::works)
    }

    #[inline]
    fn mapped_peer(&self) -> Option<&Peer> {
        self.0.peer.get().and_then(Option::as_ref)
    }

    #[inline]
    fn ring(&self, peer: &Peer) {
        peer.fence.fence();
        if peer.somebody_sleeps() {
            self.wake(peer);
        }
    }

    #[cold]
    fn wake(&self, peer: &Peer) {
        if peer.is_here {
            // It is there: the peer's words are its.
            if let Ok(bell) = Bell::process() {
                bell.ring();
            }
        } else {
            // SAFETY: the channel is alive.
            unsafe { (self.0.device.0.calls.ring)(self.0.handle.as_ptr()) }
        }
    }

    fn map_peer(&self) -> Option<Peer> {
        let plugin = self.0.device.info().plugin;
        let mut attr = abi::PeerV1 {
            lines: std::ptr::null_mut(),
            notifies: 0,
            stride: 0,
            bell: std::ptr::null(),
            state: std::ptr::null(),
        };
        // SAFETY: the channel is alive, the place is ours.
        let status = unsafe { (plugin.calls.map_peer)(self.0.handle.as_ptr(), &raw mut attr) };
        let (stride, line) = (attr.stride as usize, size_of::<abi::NotifyLineV1>());
        if status != abi::STATUS_OK || stride == 0 || !stride.is_multiple_of(line) {
            return None;
        }
        let stride = stride / line;
        let is_here = attr.bell.is_null();
        let bell =
            NonNull::new(attr.bell.cast_mut()).or_else(|| Bell::process().ok().map(Bell::words))?;
        // SAFETY: the words live as long as the channel, or for ever; they are only read
        // atomically.
        let barrier = unsafe { AtomicU32::from_ptr(&raw mut (*bell.as_ptr()).barrier) };
        Some(Peer {
            lines: NonNull::new(attr.lines)?,
            stride,
            bell,
            is_here,
            state: NonNull::new(attr.state.cast_mut())?,
            fence: Often::against(barrier.load(Ordering::Acquire) == 1),
            counts: (0..attr.notifies)
                .map(|_| AtomicU64::new(UNKNOWN))
                .collect(),
        })
    }

    /// Whether everything accepted is visible at the peer.
    ///
    /// # Errors
    /// The state of the link.
    pub fn flush(&self) -> Result<bool> {
        let Some(_turn) = Turn::take(&self.0.turn) else {
            return Ok(false);
        };
        // SAFETY: the channel is alive, `turn` is ours.
        match unsafe { (self.0.device.0.calls.flush)(self.0.handle.as_ptr()) } {
            abi::STATUS_OK => Ok(true),
            1.. => Ok(false),
            fault => Err(self.0.device.info().plugin.fault("flush", fault, "")),
        }
    }

    /// Whether memory of the peer's process can be read from here; see [`Channel::fetch`].
    #[must_use]
    pub fn can_fetch(&self) -> bool {
        let nothing = std::ptr::null_mut();
        // SAFETY: the channel is alive; of no bytes nothing is written.
        let status =
            unsafe { (self.0.device.0.calls.fetch)(self.0.handle.as_ptr(), nothing, 0, 0) };
        status == abi::STATUS_OK
    }

    /// Copies memory of the peer's process, where it lends some.
    ///
    /// # Safety
    /// `local` is writable memory of as many bytes, to which no reference lives.
    ///
    /// # Errors
    /// `Unsupported` where that cannot be done, `PeerLost`, or `System` if there is no such memory.
    pub unsafe fn fetch(&self, local: NonNull<u8>, address: u64, bytes: u64) -> Result<()> {
        let local = local.as_ptr().cast();
        // SAFETY: the channel is alive; the caller has vouched for `local`.
        let status =
            unsafe { (self.0.device.0.calls.fetch)(self.0.handle.as_ptr(), local, address, bytes) };
        match status {
            0.. => Ok(()),
            fault => Err(self.0.device.info().plugin.fault("fetch", fault, "")),
        }
    }

    /// State of the link. May make a system call.
    ///
    /// # Errors
    /// `PeerLost`, `LinkDown`.
    pub fn check(&self) -> Result<()> {
        let Some(_turn) = Turn::take(&self.0.turn) else {
            return Ok(());
        };
        // SAFETY: the channel is alive, `turn` is ours.
        match unsafe { (self.0.device.0.calls.check)(self.0.handle.as_ptr()) } {
            0.. => Ok(()),
            fault => {
                let plugin = self.0.device.info().plugin;
                Err(plugin.fault("check", fault, &self.describe()))
            }
        }
    }

    /// In which way the connected channel moves bytes, and why in that way, for people; empty if
    /// the transport has nothing to tell.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = [0_u8; 1024];
        // SAFETY: the channel is alive; `text` has room for as many bytes as we say.
        let len = unsafe {
            (self.0.device.0.info.plugin.calls.describe)(
                self.0.handle.as_ptr(),
                text.as_mut_ptr().cast(),
                text.len() as u32,
            )
        };
        String::from_utf8_lossy(&text[..(len as usize).min(text.len())]).into_owned()
    }

    /// Notify `index` of this side, for waiting.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such notify.
    pub fn notify(&self, index: u32) -> Result<NotifyWord> {
        // SAFETY: the channel is alive.
        let line = unsafe { (self.0.device.0.calls.notify_line)(self.0.handle.as_ptr(), index) };
        let line = NonNull::new(line)
            .filter(|_| index < self.0.notifies)
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    format!("no notify {index}: the channel has {}", self.0.notifies),
                )
            })?;
        Ok(NotifyWord {
            line,
            _channel: self.clone(),
        })
    }

    pub(crate) fn release_import(&self, handle: NonNull<abi::Import>) {
        let plugin = self.0.device.info().plugin;
        // SAFETY: the channel is alive; the import is given back once.
        let status =
            unsafe { (plugin.calls.release_import)(self.0.handle.as_ptr(), handle.as_ptr()) };
        if let Err(error) = plugin.status("release_import", status) {
            tracing::warn!(%error, "an import did not end");
        }
    }

    fn check_bounds(&self, descriptor: &Descriptor<'_>) -> Result<()> {
        let (local, region, remote, offset, bytes) = match *descriptor {
            Descriptor::Notify { .. } => return Ok(()),
            Descriptor::Write {
                local,
                region,
                remote,
                offset,
                bytes,
                ..
            }
            | Descriptor::Read {
                local,
                region,
                remote,
                offset,
                bytes,
            } => (local, region, remote, offset, bytes),
            Descriptor::WriteReduce {
                local,
                region,
                remote,
                offset,
                count,
                dtype,
                ..
            }
            | Descriptor::ReadReduce {
                local,
                region,
                remote,
                offset,
                count,
                dtype,
                ..
            } => {
                let bytes = count.saturating_mul(dtype.size() as u64);
                (local, region, remote, offset, bytes)
            }
        };
        if offset
            .checked_add(bytes)
            .is_none_or(|end| end > remote.bytes())
        {
            return Err(Error::new(
                ErrorKind::OutOfBounds,
                format!(
                    "{bytes} bytes at offset {offset} of the peer's region of {} bytes",
                    remote.bytes()
                ),
            ));
        }
        if !Arc::ptr_eq(&remote.channel().0, &self.0) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the peer's region was imported through another channel",
            ));
        }
        if let Some(region) = region {
            let start = (local.as_ptr() as usize).checked_sub(region.address().as_ptr() as usize);
            let end = start.and_then(|start| (start as u64).checked_add(bytes));
            if end.is_none_or(|end| end > region.bytes() as u64) {
                return Err(Error::new(
                    ErrorKind::OutOfBounds,
                    format!(
                        "{bytes} bytes of local memory are not inside their region of {} bytes",
                        region.bytes()
                    ),
                ));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Channel({:?}, {} notifies)",
            self.0.device, self.0.notifies
        )
    }
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        let plugin = self.device.info().plugin;
        // SAFETY: this was the last handle.
        let status = unsafe { (plugin.calls.destroy_channel)(self.handle.as_ptr()) };
        if let Err(error) = plugin.status("destroy_channel", status) {
            tracing::warn!(%error, "a channel did not end");
        }
    }
}

impl Peer {
    #[inline]
    fn works(&self) -> bool {
        // SAFETY: the word lives as long as the channel and is only accessed atomically.
        let state = unsafe { AtomicI32::from_ptr(self.state.as_ptr()) };
        state.load(Ordering::Relaxed) == abi::STATUS_OK
    }

    /// `notify` is one of the peer's, `known` is its count.
    #[inline]
    fn record(&self, notify: u32, known: &AtomicU64, fingerprint: [u64; 2]) {
        // SAFETY: inside the peer's lines, as there is a count for it; they live as long as the
        // channel.
        let line = unsafe { self.lines.as_ptr().add(notify as usize * self.stride) };
        for (half, value) in fingerprint.into_iter().enumerate() {
            if value != 0 {
                // SAFETY: as above; the words are only accessed atomically.
                unsafe { AtomicU64::from_ptr(&raw mut (*line).fingerprint[half]) }
                    .store(value, Ordering::Relaxed);
            }
        }
        // SAFETY: as above.
        let count = unsafe { AtomicU64::from_ptr(&raw mut (*line).count) };
        counts::add_one(count, known);
    }

    /// The plugin may have recorded.
    fn forget_counts(&self) {
        for count in &self.counts {
            count.store(UNKNOWN, Ordering::Relaxed);
        }
    }

    #[inline]
    fn somebody_sleeps(&self) -> bool {
        // SAFETY: the words live as long as the channel, or for ever, and are only accessed
        // atomically.
        let [sleepers, pollers] = unsafe {
            [
                AtomicU32::from_ptr(&raw mut (*self.bell.as_ptr()).sleepers),
                AtomicU32::from_ptr(&raw mut (*self.bell.as_ptr()).pollers),
            ]
        };
        sleepers.load(Ordering::Relaxed) | pollers.load(Ordering::Relaxed) != 0
    }
}

/// A connection on its way.
#[derive(Debug)]
pub struct Connecting {
    channel: Channel,
    peer: Vec<u8>,
}

impl Connecting {
    /// Moves it on.
    ///
    /// # Errors
    /// `Mismatch` for a blob that is not understood, `Refused`, `PeerLost`, `LimitReached`.
    pub fn poll(&mut self) -> Poll<Result<()>> {
        let inner = &self.channel.0;
        let plugin = inner.device.info().plugin;
        // SAFETY: the channel is alive; the blob is ours.
        let status = unsafe {
            (plugin.calls.connect)(
                inner.handle.as_ptr(),
                self.peer.as_ptr(),
                self.peer.len() as u32,
            )
        };
        match plugin.status("connect", status) {
            Ok(abi::STATUS_OK) => {
                inner.peer.get_or_init(|| self.channel.map_peer());
                Poll::Ready(Ok(()))
            }
            Ok(_) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

/// An import on its way.
#[derive(Debug)]
pub struct Importing {
    channel: Channel,
    blob: Vec<u8>,
    begun: *mut abi::Import,
}

// SAFETY: slow calls may come from any thread.
unsafe impl Send for Importing {}

impl Importing {
    /// Moves it on. Must not be called again after it was ready.
    ///
    /// # Errors
    /// `Mismatch` for a blob that is not understood, `Refused` for a stale key, `PeerLost`,
    /// `LimitReached`.
    pub fn poll(&mut self) -> Poll<Result<Import>> {
        let inner = &self.channel.0;
        let plugin = inner.device.info().plugin;
        let mut attr = abi::ImportAttrV1 {
            bytes: 0,
            address: std::ptr::null_mut(),
        };
        // SAFETY: the channel is alive; blob and places are ours.
        let status = unsafe {
            (plugin.calls.import_region)(
                inner.handle.as_ptr(),
                self.blob.as_ptr(),
                self.blob.len() as u32,
                &raw mut self.begun,
                &raw mut attr,
            )
        };
        match plugin.status("import_region", status) {
            Ok(abi::STATUS_OK) => {}
            Ok(_) => return Poll::Pending,
            Err(error) => return Poll::Ready(Err(error)),
        }
        let begun = std::mem::replace(&mut self.begun, std::ptr::null_mut());
        Poll::Ready(NonNull::new(begun).map_or_else(
            || {
                Err(Error::new(
                    ErrorKind::Plugin,
                    format!("{} import_region: success without an import", plugin.name()),
                ))
            },
            |handle| {
                Ok(Import(Arc::new(ImportInner {
                    channel: self.channel.clone(),
                    handle,
                    bytes: attr.bytes,
                    address: NonNull::new(attr.address.cast()),
                })))
            },
        ))
    }
}

impl Drop for Importing {
    fn drop(&mut self) {
        if let Some(begun) = NonNull::new(self.begun) {
            self.channel.release_import(begun);
        }
    }
}

/// The word on which a notify arrives. Holds its channel.
#[derive(Clone, Debug)]
pub struct NotifyWord {
    line: NonNull<abi::NotifyLineV1>,
    _channel: Channel,
}

// SAFETY: the line lives as long as the channel, which is held; it is only read atomically.
unsafe impl Send for NotifyWord {}
// SAFETY: as for `Send`.
unsafe impl Sync for NotifyWord {}

impl NotifyWord {
    /// How often it was recorded since the channel was made. What was written before a record
    /// that is counted here is visible.
    #[must_use]
    #[inline]
    pub fn count(&self) -> u64 {
        // SAFETY: the line lives as long as the channel; the words are only accessed atomically.
        let [count, served] = unsafe {
            [
                AtomicU64::from_ptr(&raw mut (*self.line.as_ptr()).count),
                AtomicU64::from_ptr(&raw mut (*self.line.as_ptr()).served),
            ]
        };
        counts::sum(count, served)
    }

    /// Fingerprint: of each word, that of the latest record that carried one.
    #[must_use]
    pub fn fingerprint(&self) -> [u64; 2] {
        [0, 1].map(|half| {
            // SAFETY: as in `count`; the recorder writes the words before it adds to the count.
            unsafe { AtomicU64::from_ptr(&raw mut (*self.line.as_ptr()).fingerprint[half]) }
                .load(Ordering::Relaxed)
        })
    }
}

const EMPTY: abi::DescriptorV1 = abi::DescriptorV1 {
    opcode: abi::OP_NOTIFY,
    flags: 0,
    local: std::ptr::null_mut(),
    local_region: std::ptr::null_mut(),
    remote: std::ptr::null_mut(),
    remote_offset: 0,
    bytes: 0,
    notify: 0,
    dtype: 0,
    redop: 0,
    reserved: 0,
    fingerprint: [0; 2],
    cookie: 0,
};

fn to_raw(descriptor: &Descriptor<'_>, cookie: u64) -> abi::DescriptorV1 {
    let handle_of = |region: Option<&Region>| {
        region.map_or(std::ptr::null_mut(), |region| region.0.handle.as_ptr())
    };
    let flags_of = |notify: Option<u32>| {
        if notify.is_some() {
            abi::FLAG_NOTIFY
        } else {
            0
        }
    };
    match *descriptor {
        Descriptor::Write {
            local,
            region,
            remote,
            offset,
            bytes,
            notify,
        } => abi::DescriptorV1 {
            opcode: abi::OP_WRITE,
            flags: flags_of(notify),
            local: local.as_ptr().cast(),
            local_region: handle_of(region),
            remote: remote.0.handle.as_ptr(),
            remote_offset: offset,
            bytes,
            notify: notify.unwrap_or(0),
            cookie,
            ..EMPTY
        },
        Descriptor::Read {
            local,
            region,
            remote,
            offset,
            bytes,
        } => abi::DescriptorV1 {
            opcode: abi::OP_READ,
            local: local.as_ptr().cast(),
            local_region: handle_of(region),
            remote: remote.0.handle.as_ptr(),
            remote_offset: offset,
            bytes,
            cookie,
            ..EMPTY
        },
        Descriptor::WriteReduce {
            local,
            region,
            remote,
            offset,
            count,
            dtype,
            redop,
            notify,
        } => abi::DescriptorV1 {
            opcode: abi::OP_WRITE_REDUCE,
            flags: flags_of(notify),
            local: local.as_ptr().cast(),
            local_region: handle_of(region),
            remote: remote.0.handle.as_ptr(),
            remote_offset: offset,
            bytes: count * dtype.size() as u64,
            notify: notify.unwrap_or(0),
            dtype: dtype as u32,
            redop: redop as u32,
            cookie,
            ..EMPTY
        },
        Descriptor::ReadReduce {
            local,
            region,
            remote,
            offset,
            count,
            dtype,
            redop,
        } => abi::DescriptorV1 {
            opcode: abi::OP_READ_REDUCE,
            local: local.as_ptr().cast(),
            local_region: handle_of(region),
            remote: remote.0.handle.as_ptr(),
            remote_offset: offset,
            bytes: count * dtype.size() as u64,
            dtype: dtype as u32,
            redop: redop as u32,
            cookie,
            ..EMPTY
        },
        Descriptor::Notify {
            notify,
            fingerprint,
        } => abi::DescriptorV1 {
            notify,
            fingerprint,
            cookie,
            ..EMPTY
        },
    }
}
