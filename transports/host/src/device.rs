//! Devices: what they are, and handles of open ones.

use std::fmt;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hcomm_transport_abi as abi;
use hcomm_types::{Address, Error, ErrorKind, Protocol, Result};

use crate::plugin::Plugin;
use crate::raw::{FastCalls, checked};
use crate::sync::AtomicBool;

bitflags::bitflags! {
    /// What a device promises and demands: the `CAP_…` bits of the ABI.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Capabilities: u64 {
        /// Write.
        const WRITE = abi::CAP_WRITE;
        /// Read.
        const READ = abi::CAP_READ;
        /// Notify.
        const NOTIFY = abi::CAP_NOTIFY;
        /// Write with notify.
        const WRITE_NOTIFY = abi::CAP_WRITE_NOTIFY;
        /// Write that reduces at the peer.
        const WRITE_REDUCE = abi::CAP_WRITE_REDUCE;
        /// Read that reduces here.
        const READ_REDUCE = abi::CAP_READ_REDUCE;
        /// Allocates memory.
        const ALLOCATE = abi::CAP_ALLOCATE;
        /// Registers memory that the user brings.
        const REGISTER = abi::CAP_REGISTER;
        /// Maps allocated memory of the peer.
        const MAP = abi::CAP_MAP;
        /// Mapped transfers and notifies land without the target.
        const PASSIVE_MAPPED = abi::CAP_PASSIVE_MAPPED;
        /// Other transfers land without the target.
        const PASSIVE_REGISTERED = abi::CAP_PASSIVE_REGISTERED;
        /// The local side may be any memory.
        const LOCAL_ANY = abi::CAP_LOCAL_ANY;
        /// Both ends in one process.
        const SAME_PROCESS = abi::CAP_SAME_PROCESS;
        /// Ends in different processes of one host.
        const CROSS_PROCESS = abi::CAP_CROSS_PROCESS;
        /// Ends on different hosts.
        const CROSS_HOST = abi::CAP_CROSS_HOST;
        /// Sleepers must watch the device.
        const WAKE_FD = abi::CAP_WAKE_FD;
    }
}

/// What a device is, can do, allows and costs.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The plugin that serves it.
    pub plugin: &'static Plugin,
    /// Its number there.
    pub index: u32,
    /// Its name, unique in the plugin.
    pub name: String,
    /// Protocol it speaks.
    pub protocol: Protocol,
    /// Address.
    pub address: Address,
    /// What it promises and demands.
    pub capabilities: Capabilities,
    /// α: time of an empty transfer, in ns.
    pub latency_ns: u64,
    /// β: bytes per second of a large transfer.
    pub bytes_per_s: u64,
    /// Largest transfer of one descriptor, in bytes.
    pub max_transfer_bytes: u64,
    /// Notifies that may be outstanding on one index.
    pub max_notify_outstanding: u64,
    /// Descriptors that one post may carry.
    pub max_batch: u32,
    /// Notifies of one channel and direction.
    pub max_notifies: u32,
    /// Largest blob, in bytes.
    pub max_blob_bytes: u32,
    /// NUMA node it is near to.
    pub numa_node: Option<u32>,
}

impl DeviceInfo {
    pub(crate) fn from_table(
        plugin: &'static Plugin,
        index: u32,
        attr: &abi::DeviceAttrV1,
    ) -> Result<Self> {
        let wrong = |what: String| {
            Error::new(
                ErrorKind::Plugin,
                format!("{} device {index}: {what}", plugin.name()),
            )
        };
        let bytes: Vec<u8> = attr
            .name
            .iter()
            .map(|&c| c as u8)
            .take_while(|&c| c != 0)
            .collect();
        if bytes.is_empty() || bytes.len() == attr.name.len() {
            return Err(wrong("its name is empty or not ended by a zero".to_owned()));
        }
        let protocol = Protocol::ALL
            .get(attr.protocol as usize)
            .copied()
            .filter(|&protocol| plugin.protocols().contains(protocol))
            .ok_or_else(|| {
                wrong(format!(
                    "protocol number {} is not one the plugin serves",
                    attr.protocol
                ))
            })?;
        let [a, b, c, d, ..] = attr.address;
        let address = match attr.address_kind {
            0 => {
                let mut number = [0; 8];
                number.copy_from_slice(&attr.address[..8]);
                Address::Id(u64::from_le_bytes(number))
            }
            4 => Address::Ip(IpAddr::V4(Ipv4Addr::new(a, b, c, d))),
            6 => Address::Ip(IpAddr::V6(Ipv6Addr::from(attr.address))),
            16 => Address::Eid(attr.address),
            kind => return Err(wrong(format!("address kind {kind} is unknown"))),
        };
        if attr.max_batch == 0 || attr.max_transfer_bytes == 0 || attr.bytes_per_s == 0 {
            return Err(wrong(
                "max_batch, max_transfer_bytes and bytes_per_s must not be 0".to_owned(),
            ));
        }
        Ok(Self {
            plugin,
            index,
            name: String::from_utf8_lossy(&bytes).into_owned(),
            protocol,
            address,
            capabilities: Capabilities::from_bits_truncate(attr.capabilities),
            latency_ns: attr.latency_ns,
            bytes_per_s: attr.bytes_per_s,
            max_transfer_bytes: attr.max_transfer_bytes,
            max_notify_outstanding: attr.max_notify_outstanding,
            max_batch: attr.max_batch,
            max_notifies: attr.max_notifies,
            max_blob_bytes: attr.max_blob_bytes,
            numa_node: u32::try_from(attr.numa_node).ok(),
        })
    }

    /// Opens the device.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn open(&self) -> Result<Device> {
        Device::open(self)
    }
}

/// An open device. A clone is the same device; it closes when the last handle of it and of
/// everything opened from it is gone.
#[derive(Clone)]
pub struct Device(pub(crate) Arc<DeviceInner>);

pub(crate) struct DeviceInner {
    pub(crate) info: DeviceInfo,
    pub(crate) handle: NonNull<abi::Device>,
    pub(crate) calls: FastCalls,
    /// `poll`, `progress` and `arm` come from one thread at a time.
    turn: AtomicBool,
    lanes: Mutex<Vec<Arc<LaneInner>>>,
    next_lane: AtomicU64,
}

// SAFETY: the table's thread rules: slow calls may come from any thread, `poll`, `progress` and
// `arm` from one at a time, which `turn` holds to.
unsafe impl Send for DeviceInner {}
// SAFETY: as for `Send`.
unsafe impl Sync for DeviceInner {}

impl Device {
    fn open(info: &DeviceInfo) -> Result<Self> {
        let plugin = info.plugin;
        let mut handle = std::ptr::null_mut();
        let mut ops = std::ptr::null();
        // SAFETY: the plugin is initialised; both places are ours.
        let status =
            unsafe { (plugin.calls.open_device)(info.index, &raw mut handle, &raw mut ops) };
        plugin.status("open_device", status)?;
        let broken = |what: &str| {
            Error::new(
                ErrorKind::Plugin,
                format!("{} open_device {}: {what}", plugin.name(), info.name),
            )
        };
        let handle = NonNull::new(handle).ok_or_else(|| broken("gave no device"))?;
        // SAFETY: a table that a plugin gave stays valid for ever.
        let calls = unsafe { checked(ops) }
            .map_err(|error| broken(&format!("fast calls: {error}")))
            .and_then(|table| {
                FastCalls::from_table(table)
                    .map_err(|entry| broken(&format!("fast call `{entry}` is null")))
            });
        let calls = match calls {
            Ok(calls) => calls,
            Err(error) => {
                // SAFETY: the handle is the plugin's own and given back once.
                let _ = unsafe { (plugin.calls.close_device)(handle.as_ptr()) };
                return Err(error);
            }
        };
        Ok(Self(Arc::new(DeviceInner {
            info: info.clone(),
            handle,
            calls,
            turn: AtomicBool::new(false),
            lanes: Mutex::new(Vec::new()),
            next_lane: AtomicU64::new(0),
        })))
    }

    /// What it is.
    #[must_use]
    #[inline]
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// Whether it is the same opening of a device.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Moves everything on and hands completions to their lanes. Returns whether something
    /// happened. Comes back at once when another thread is at it.
    ///
    /// # Errors
    /// What the plugin says: the device is broken then.
    pub fn progress(&self) -> Result<bool> {
        let Some(_turn) = Turn::take(&self.0.turn) else {
            return Ok(false);
        };
        // SAFETY: the handle is alive; `turn` is ours.
        let status = unsafe { (self.0.calls.progress)(self.0.handle.as_ptr()) };
        let mut busy = match status {
            abi::STATUS_OK => true,
            1.. => false,
            fault => return Err(self.0.info.plugin.fault("progress", fault, "")),
        };
        if self.0.next_lane.load(Ordering::Relaxed) == 0 {
            return Ok(busy);
        }
        loop {
            // Mostly there are none: no room is filled for them.
            let mut found = [const { MaybeUninit::<abi::CompletionV1>::uninit() }; 32];
            let mut count = 0u32;
            // SAFETY: as above; `found` has as many places as we say.
            let status = unsafe {
                (self.0.calls.poll)(
                    self.0.handle.as_ptr(),
                    found.as_mut_ptr().cast(),
                    found.len() as u32,
                    &raw mut count,
                )
            };
            if status < 0 {
                return Err(self.0.info.plugin.fault("poll", status, ""));
            }
            let found = &found[..(count as usize).min(found.len())];
            if found.is_empty() {
                return Ok(busy);
            }
            busy = true;
            let lanes = self.0.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            for completion in found {
                // SAFETY: the plugin has filled as many as it says; any bits are a completion.
                let completion = unsafe { completion.assume_init_ref() };
                // In the order of their numbers.
                let at = lanes.binary_search_by_key(&completion.cookie, |lane| lane.number);
                if let Ok(at) = at {
                    lanes[at].take(completion.status);
                }
            }
        }
    }

    /// A lane for posting: its number is the cookie of its descriptors, and it counts their
    /// completions.
    #[must_use]
    pub fn lane(&self) -> Lane {
        // Numbered under the lock, so that the list stays in the order of the numbers.
        let mut lanes = self.0.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let inner = Arc::new(LaneInner {
            number: self.0.next_lane.fetch_add(1, Ordering::Relaxed) + 1,
            completed: AtomicU64::new(0),
            status: AtomicI32::new(abi::STATUS_OK),
        });
        lanes.push(Arc::clone(&inner));
        drop(lanes);
        Lane {
            inner,
            device: self.clone(),
        }
    }

    /// Counters since it was opened; `None` where the plugin has none.
    #[must_use]
    pub fn counters(&self) -> Option<abi::CountersV1> {
        let mut counters = abi::CountersV1::default();
        // SAFETY: the handle is alive; `counters` is ours.
        let status = unsafe {
            (self.0.info.plugin.calls.counters)(self.0.handle.as_ptr(), &raw mut counters)
        };
        (status >= 0).then_some(counters)
    }

    /// Descriptor that becomes readable when there is something to do.
    #[must_use]
    pub fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the handle is alive.
        let fd = unsafe { (self.0.calls.wake_fd)(self.0.handle.as_ptr()) };
        // SAFETY: the plugin keeps the descriptor open as long as the device, which we hold.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Whether who sleeps for data must watch the device.
    #[must_use]
    pub fn needs_watching(&self) -> bool {
        self.0.info.capabilities.contains(Capabilities::WAKE_FD)
    }

    /// Asks for the next arrival to be reported on the descriptor; `false` if something is there.
    pub(crate) fn arm(&self) -> bool {
        let Some(_turn) = Turn::take(&self.0.turn) else {
            return false;
        };
        // SAFETY: the handle is alive; `turn` is ours.
        unsafe { (self.0.calls.arm)(self.0.handle.as_ptr()) == abi::STATUS_OK }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Device({} {})",
            self.0.info.plugin.name(),
            self.0.info.name
        )
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        // SAFETY: this was the last handle, and everything opened from the device held one.
        let status = unsafe { (self.info.plugin.calls.close_device)(self.handle.as_ptr()) };
        if let Err(error) = self.info.plugin.status("close_device", status) {
            tracing::warn!(device = %self.info.name, %error, "the device did not close");
        }
    }
}

/// Counts the completions of whoever posts with it.
#[derive(Debug)]
pub struct Lane {
    inner: Arc<LaneInner>,
    device: Device,
}

#[derive(Debug)]
struct LaneInner {
    number: u64,
    completed: AtomicU64,
    status: AtomicI32,
}

impl LaneInner {
    fn take(&self, status: i32) {
        if status < 0 {
            // The first failure stays.
            let _ = self.status.compare_exchange(
                abi::STATUS_OK,
                status,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
        self.completed.fetch_add(1, Ordering::Release);
    }
}

impl Lane {
    /// The cookie of its descriptors.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.inner.number
    }

    /// The device it posts to.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Completions since it was made.
    #[must_use]
    #[inline]
    pub fn completed(&self) -> u64 {
        self.inner.completed.load(Ordering::Acquire)
    }

    /// The first failure among them.
    ///
    /// # Errors
    /// What its status means.
    pub fn result(&self) -> Result<()> {
        match self.inner.status.load(Ordering::Relaxed) {
            abi::STATUS_OK => Ok(()),
            status => Err(self.device.0.info.plugin.fault("transfer", status, "")),
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.device
            .0
            .lanes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|lane| lane.number != self.inner.number);
    }
}

/// The turn of one thread, given back when dropped.
pub(crate) struct Turn<'a>(&'a AtomicBool);

impl<'a> Turn<'a> {
    /// Takes the turn if nobody has it.
    pub(crate) fn take(flag: &'a AtomicBool) -> Option<Self> {
        // Made only if it is ours: a turn that is dropped ends whoever's turn it is.
        (!flag.swap(true, Ordering::Acquire)).then(|| Turn(flag))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_get_a_turn_leaves_it_to_its_owner() {
        let flag = AtomicBool::new(false);
        let turn = Turn::take(&flag).unwrap();
        for _ in 0..2 {
            assert!(Turn::take(&flag).is_none());
        }
        drop(turn);
        assert!(Turn::take(&flag).is_some());
        assert!(Turn::take(&flag).is_some());
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::thread;

    use super::*;
    use crate::sync::model::{Plain, Wrong, check, check_when};

    /// Three try, two of them twice; who has the turn is alone.
    fn one_has_the_turn() {
        let shared = Arc::new((AtomicBool::new(false), Plain::new(0)));
        let tried = |times: u32, (flag, calls): &(AtomicBool, Plain<u32>)| {
            let mut had = 0;
            for _ in 0..times {
                if let Some(_turn) = Turn::take(flag) {
                    calls.set(calls.get() + 1);
                    had += 1;
                }
            }
            had
        };
        let others = [1, 2].map(|times| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || tried(times, &shared))
        });
        let mut had = tried(2, &shared);
        for other in others {
            had += other.join().unwrap();
        }
        assert_eq!(shared.1.get(), had);
        assert!(had > 0);
    }

    #[test]
    fn one_at_a_time() {
        check(one_has_the_turn);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_order_it_is_seen() {
        check_when(Wrong::NoOrder, one_has_the_turn);
    }
}
