//! What the tests of this crate drive the transport with: the calls of the trait behind objects
//! that own what was opened.
#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod agent;
pub(crate) mod host;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hcomm_transport_abi::{
    ChannelOptions, CompletionV1, Connect, CountersV1, DescriptorV1, FLAG_NOTIFY, Fault, OP_NOTIFY,
    STATUS_NO_RESOURCE, STATUS_OK, Transport,
};
use hcomm_transport_shm::{Channel, Import, Region, Shm, transport_v1};

/// After this long a test is taken to hang.
const WATCHDOG: Duration = Duration::from_secs(100);

/// Calls until it gives something.
pub(crate) fn until<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = step() {
            return found;
        }
        assert!(start.elapsed() < WATCHDOG, "hangs: {what}");
        std::thread::yield_now();
    }
}

/// A byte that depends on seed and position.
pub(crate) fn byte(seed: u64, at: usize) -> u8 {
    let mixed = (at as u64 ^ seed.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// `bytes` bytes of [`byte`].
pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| byte(seed, at)).collect()
}

/// An open device.
pub(crate) struct Device(pub(crate) hcomm_transport_shm::Device);

/// Memory of this side.
pub(crate) struct Memory {
    region: Option<Region>,
    address: NonNull<u8>,
    pub(crate) bytes: usize,
    _own: Option<Vec<u64>>,
}

/// One end.
pub(crate) struct End(pub(crate) Channel);

/// A peer's memory.
pub(crate) struct Remote {
    pub(crate) import: Box<Import>,
    pub(crate) bytes: u64,
    pub(crate) address: Option<NonNull<u8>>,
}

impl Device {
    pub(crate) fn open() -> Self {
        host::init(transport_v1());
        Self(Shm::open_device(0).unwrap())
    }

    pub(crate) fn close(self) -> Result<(), Fault> {
        Shm::close_device(&self.0)
    }

    pub(crate) fn try_close(&self) -> Result<(), Fault> {
        Shm::close_device(&self.0)
    }

    pub(crate) fn channel(&self, notifies: u32) -> End {
        self.try_channel(notifies, 64).unwrap()
    }

    pub(crate) fn try_channel(&self, notifies: u32, queue_depth: u32) -> Result<End, Fault> {
        let options = ChannelOptions {
            notifies,
            queue_depth,
            traffic_class: 0,
            service_level: 0,
        };
        Shm::create_channel(&self.0, &options).map(End)
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Memory {
        let (region, address) = Shm::allocate(&self.0, bytes as u64).unwrap();
        Memory {
            region: Some(region),
            address,
            bytes,
            _own: None,
        }
    }

    pub(crate) fn register(&self, bytes: usize) -> Memory {
        let mut own = vec![0_u64; bytes / 8 + 1];
        let address = NonNull::new(own.as_mut_ptr().cast::<u8>()).unwrap();
        Memory {
            region: Some(Shm::register(&self.0, address, bytes as u64).unwrap()),
            address,
            bytes,
            _own: Some(own),
        }
    }

    pub(crate) fn export(&self, memory: &Memory) -> Vec<u8> {
        Shm::export_region(&self.0, memory.region.as_ref().unwrap()).unwrap()
    }

    /// Ends the region; the bytes of registered memory stay.
    pub(crate) fn deregister(&self, memory: &mut Memory) {
        let region = memory.region.take().unwrap();
        Shm::deregister(&self.0, &region).unwrap();
    }

    pub(crate) fn progress(&self) -> bool {
        Shm::progress(&self.0).unwrap()
    }

    pub(crate) fn poll(&self) -> Vec<CompletionV1> {
        let mut out = [CompletionV1 {
            cookie: 0,
            status: 1,
            reserved: 0,
        }; 3];
        let found = Shm::poll(&self.0, &mut out).unwrap();
        out[..found].to_vec()
    }

    pub(crate) fn counters(&self) -> CountersV1 {
        Shm::counters(&self.0)
    }

    pub(crate) fn wake_fd(&self) -> i32 {
        Shm::wake_fd(&self.0).unwrap()
    }
}

impl Memory {
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    pub(crate) fn put(&self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.bytes);
        // SAFETY: inside the memory, which lives as long as `self`.
        unsafe { self.pointer().add(at).copy_from(data.as_ptr(), data.len()) }
    }

    pub(crate) fn get(&self, at: usize, bytes: usize) -> Vec<u8> {
        assert!(at + bytes <= self.bytes);
        let mut out = vec![0; bytes];
        // SAFETY: inside the memory, which lives as long as `self`.
        unsafe { out.as_mut_ptr().copy_from(self.pointer().add(at), bytes) }
        out
    }
}

impl End {
    pub(crate) fn blob(&self) -> Vec<u8> {
        Shm::local_blob(&self.0).unwrap()
    }

    pub(crate) fn connect(&self, peer: &[u8]) -> Result<Connect, Fault> {
        Shm::connect(&self.0, peer)
    }

    pub(crate) fn check(&self) -> Result<(), i32> {
        Shm::check(&self.0)
    }

    pub(crate) fn flush(&self) -> Result<bool, i32> {
        Shm::flush(&self.0)
    }

    /// Begins to import; `step` runs between the tries.
    pub(crate) fn import(&self, blob: &[u8], mut step: impl FnMut()) -> Result<Remote, Fault> {
        let mut import = Box::new(Shm::begin_import(&self.0, blob)?);
        let imported = until("import", || {
            step();
            Shm::poll_import(&self.0, &mut import).transpose()
        })?;
        Ok(Remote {
            import,
            bytes: imported.bytes,
            address: imported.address,
        })
    }

    pub(crate) fn release(&self, remote: Remote) {
        Shm::release_import(&self.0, &remote.import);
    }

    /// Count and fingerprint of a notify.
    pub(crate) fn notified(&self, index: u32) -> (u64, [u64; 2]) {
        let line = Shm::notify_line(&self.0, index).unwrap();
        // SAFETY: the line lives as long as the channel; its words are only touched as atomics.
        let words = unsafe { &*line.as_ptr().cast::<[AtomicU64; 4]>() };
        let count = words[0].load(Ordering::Acquire) + words[3].load(Ordering::Acquire);
        (
            count,
            [1, 2].map(|word: usize| words[word].load(Ordering::Relaxed)),
        )
    }

    /// Posts one; `(inline, status)`.
    pub(crate) fn post(&self, descriptor: DescriptorV1) -> (bool, i32) {
        let posted = Shm::post(&self.0, &[descriptor]);
        assert_eq!(posted.accepted == 1, posted.status == STATUS_OK);
        (posted.inline_done == 1, posted.status)
    }

    /// Posts one and waits until it is done; the status of its end.
    pub(crate) fn finish(&self, device: &Device, descriptor: DescriptorV1) -> i32 {
        let inline = until("room for a descriptor", || match self.post(descriptor) {
            (_, STATUS_NO_RESOURCE) => {
                device.progress();
                None
            }
            (inline, STATUS_OK) => Some(Ok(inline)),
            (_, status) => Some(Err(status)),
        });
        match inline {
            Err(status) => status,
            Ok(true) => STATUS_OK,
            Ok(false) => until("a completion", || {
                device.progress();
                device
                    .poll()
                    .into_iter()
                    .find(|completion| completion.cookie == descriptor.cookie)
                    .map(|completion| completion.status)
            }),
        }
    }
}

/// A descriptor that moves bytes between `local` and the place at `offset` of `remote`.
pub(crate) fn transfer(
    opcode: u32,
    local: *mut u8,
    remote: &Remote,
    offset: u64,
    bytes: usize,
) -> DescriptorV1 {
    static COOKIES: AtomicU64 = AtomicU64::new(1);
    DescriptorV1 {
        opcode,
        flags: 0,
        local: local.cast(),
        local_region: core::ptr::null_mut(),
        remote: (&raw const *remote.import).cast_mut().cast(),
        remote_offset: offset,
        bytes: bytes as u64,
        notify: 0,
        dtype: 0,
        redop: 0,
        reserved: 0,
        fingerprint: [0; 2],
        cookie: COOKIES.fetch_add(1, Ordering::Relaxed),
    }
}

/// The same with a notify.
pub(crate) fn with_notify(
    mut descriptor: DescriptorV1,
    notify: u32,
    fingerprint: [u64; 2],
) -> DescriptorV1 {
    descriptor.flags |= FLAG_NOTIFY;
    descriptor.notify = notify;
    descriptor.fingerprint = fingerprint;
    descriptor
}

/// The same as a reduction.
pub(crate) fn reducing(mut descriptor: DescriptorV1, dtype: u32, redop: u32) -> DescriptorV1 {
    descriptor.dtype = dtype;
    descriptor.redop = redop;
    descriptor
}

/// A descriptor that only notifies.
pub(crate) fn notify(index: u32, fingerprint: [u64; 2]) -> DescriptorV1 {
    DescriptorV1 {
        opcode: OP_NOTIFY,
        flags: 0,
        local: core::ptr::null_mut(),
        local_region: core::ptr::null_mut(),
        remote: core::ptr::null_mut(),
        remote_offset: 0,
        bytes: 0,
        notify: index,
        dtype: 0,
        redop: 0,
        reserved: 0,
        fingerprint,
        cookie: 0,
    }
}

/// Connects two ends that one thread drives.
pub(crate) fn connect_pair(a: &End, b: &End) {
    let (blob_a, blob_b) = (a.blob(), b.blob());
    let (mut a_done, mut b_done) = (false, false);
    until("connect", || {
        a_done |= a.connect(&blob_b).unwrap() == Connect::Connected;
        b_done |= b.connect(&blob_a).unwrap() == Connect::Connected;
        (a_done && b_done).then_some(())
    });
}
