//! An open device: what is open in it, the devices of this process, the door for peers.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use hcomm_transport_abi::{
    CAP_ALLOCATE, CAP_CROSS_PROCESS, CAP_LOCAL_ANY, CAP_MAP, CAP_NOTIFY, CAP_PASSIVE_MAPPED,
    CAP_READ, CAP_READ_REDUCE, CAP_REGISTER, CAP_SAME_PROCESS, CAP_WRITE, CAP_WRITE_NOTIFY,
    CAP_WRITE_REDUCE, CountersV1, DeviceAttrV1, DeviceAttributes, Fault, Host, LOG_WARN,
    STATUS_BUSY, STATUS_SYSTEM,
};
use rustix::event::epoll;
use rustix::io::Errno;

use crate::channel::{Arrival, ChannelInner};
use crate::direct::Lender;
use crate::limits::system_fault;
use crate::region::RegionCore;
use crate::socket::{Mail, Mailbox, open_listener, take_connection};
use crate::sys::peer_of;
use crate::wire::{Frame, Hello, MAX_BLOB_BYTES, MAX_NOTIFIES, Token, same_secret};

/// Time of an empty transfer: a store seen by another core. A figure for planning, not measured
/// here; `hcomm tune` replaces it.
const LATENCY_NS: u64 = 100;
/// Copy rate of one core. A figure for planning as well.
const BYTES_PER_S: u64 = 10_000_000_000;
/// Connections that have not said yet who they are.
const MAX_STRANGERS: usize = 64;
/// Connections taken in one go.
const MAX_ACCEPTS: usize = 64;

/// Whether devices opened from now on stage all user memory. For tests.
pub(crate) static STAGES: AtomicBool = AtomicBool::new(false);

/// An open device, for the host.
#[derive(Debug)]
pub struct Device {
    pub(crate) core: Arc<DeviceCore>,
}

/// An open device, for its parts.
#[derive(Debug)]
pub(crate) struct DeviceCore {
    pub(crate) host: Host,
    process: Token,
    token: Token,
    open: [AtomicUsize; 3],
    regions: Mutex<HashMap<u64, Arc<RegionCore>>>,
    channels: Mutex<Vec<Arc<ChannelInner>>>,
    door: Mutex<Option<Door>>,
    address: OnceLock<Vec<u8>>,
    epoll: OnceLock<OwnedFd>,
    /// Channels that are not connected yet: only then progress looks at the door.
    unconnected: AtomicUsize,
    /// What channels counted that are gone.
    past: Mutex<CountersV1>,
    /// Whether a failing door was told to the log.
    told: AtomicBool,
    /// What lends user memory to peers, one a channel between processes.
    lenders: Mutex<Vec<Arc<Lender>>>,
    /// Whether user memory goes through the ring whatever the system allows.
    stages: AtomicBool,
}

/// What keeps a device open.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Region,
    Channel,
    Import,
}

/// One open thing of a device, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Open {
    device: Arc<DeviceCore>,
    kind: Kind,
}

/// The listener, and those who came in and have not said a whole sentence.
#[derive(Debug)]
struct Door {
    listener: OwnedFd,
    strangers: Vec<(OwnedFd, Mailbox)>,
}

/// What the one device is.
pub(crate) fn attributes() -> DeviceAttributes {
    let mut address = [0; 16];
    address[..8].copy_from_slice(&boot_number().to_le_bytes());
    DeviceAttributes {
        name: "shm0".to_owned(),
        attr: DeviceAttrV1 {
            name: [0; 64],
            protocol: 0,
            address_kind: 0,
            address,
            capabilities: CAP_WRITE
                | CAP_READ
                | CAP_NOTIFY
                | CAP_WRITE_NOTIFY
                | CAP_WRITE_REDUCE
                | CAP_READ_REDUCE
                | CAP_ALLOCATE
                | CAP_REGISTER
                | CAP_MAP
                | CAP_PASSIVE_MAPPED
                | CAP_LOCAL_ANY
                | CAP_SAME_PROCESS
                | CAP_CROSS_PROCESS,
            latency_ns: LATENCY_NS,
            bytes_per_s: BYTES_PER_S,
            max_transfer_bytes: isize::MAX as u64,
            max_notify_outstanding: i64::MAX as u64,
            max_batch: 1 << 16,
            max_notifies: MAX_NOTIFIES,
            max_blob_bytes: MAX_BLOB_BYTES,
            numa_node: -1,
        },
    }
}

impl DeviceCore {
    pub(crate) fn open(host: Host) -> Result<Arc<Self>, Fault> {
        Self::open_in(process_token()?, host)
    }

    /// A device that believes to be in the process of that name.
    pub(crate) fn open_in(process: Token, host: Host) -> Result<Arc<Self>, Fault> {
        let device = Arc::new(Self {
            host,
            process,
            token: random_token()?,
            open: Default::default(),
            regions: Mutex::default(),
            channels: Mutex::default(),
            door: Mutex::default(),
            address: OnceLock::new(),
            epoll: OnceLock::new(),
            unconnected: AtomicUsize::new(0),
            past: Mutex::default(),
            told: AtomicBool::new(false),
            lenders: Mutex::default(),
            stages: AtomicBool::new(STAGES.load(Ordering::Relaxed)),
        });
        lock(devices()).insert(device.token, Arc::downgrade(&device));
        Ok(device)
    }

    /// Refused while something is open.
    pub(crate) fn close(&self) -> Result<(), Fault> {
        let [regions, channels, imports] =
            [0, 1, 2].map(|kind: usize| self.open[kind].load(Ordering::Acquire));
        if regions + channels + imports > 0 {
            return Err(Fault::new(
                STATUS_BUSY,
                format!(
                    "{regions} regions, {channels} channels and {imports} imports are open: end \
                     them first"
                ),
            ));
        }
        lock(devices()).remove(&self.token);
        *lock(&self.door) = None;
        Ok(())
    }

    pub(crate) fn add_lender(&self, lender: &Arc<Lender>) {
        let mut lenders = lock(&self.lenders);
        lenders.retain(|lender| !lender.is_over());
        lenders.push(Arc::clone(lender));
    }

    /// Forgets those that have ended.
    pub(crate) fn forget_lenders(&self) {
        lock(&self.lenders).retain(|lender| !lender.is_over());
    }

    /// What lends user memory; without those that have ended and in whose gates nobody is.
    pub(crate) fn lenders(&self) -> Vec<Arc<Lender>> {
        let mut lenders = lock(&self.lenders);
        lenders.retain(|lender| !lender.is_over());
        lenders.clone()
    }

    pub(crate) fn stages(&self) -> bool {
        self.stages.load(Ordering::Relaxed)
    }

    /// Sends user memory of channels that connect from now on through the ring.
    pub(crate) fn stage(&self) {
        self.stages.store(true, Ordering::Relaxed);
    }

    /// Tokens of the process and of the device.
    pub(crate) const fn names(&self) -> (Token, Token) {
        (self.process, self.token)
    }

    pub(crate) fn add_region(&self, region: &Arc<RegionCore>) {
        lock(&self.regions).insert(region.number, Arc::clone(region));
    }

    pub(crate) fn remove_region(&self, number: u64) {
        lock(&self.regions).remove(&number);
    }

    /// The region with that number, for who knows its key.
    pub(crate) fn find_region(&self, number: u64, key: &Token) -> Option<Arc<RegionCore>> {
        lock(&self.regions)
            .get(&number)
            .filter(|region| same_secret(region.key(), key))
            .map(Arc::clone)
    }

    pub(crate) fn channels(&self) -> MutexGuard<'_, Vec<Arc<ChannelInner>>> {
        lock(&self.channels)
    }

    pub(crate) fn add_channel(&self, channel: &Arc<ChannelInner>) {
        self.unconnected.fetch_add(1, Ordering::AcqRel);
        self.channels().push(Arc::clone(channel));
    }

    pub(crate) fn remove_channel(&self, channel: &Arc<ChannelInner>) {
        let mut channels = self.channels();
        let before = channels.len();
        channels.retain(|other| !Arc::ptr_eq(other, channel));
        if channels.len() < before {
            add(&mut lock(&self.past), &channel.counters());
        }
    }

    pub(crate) fn find_channel(&self, number: u64) -> Option<Arc<ChannelInner>> {
        self.channels()
            .iter()
            .find(|channel| channel.number() == number)
            .map(Arc::clone)
    }

    /// One channel less that peers could knock for.
    pub(crate) fn settle_one(&self) {
        self.unconnected.fetch_sub(1, Ordering::AcqRel);
    }

    /// Serves the door while a channel waits for its peer; no system call otherwise.
    pub(crate) fn expect_peers(&self) -> bool {
        self.unconnected.load(Ordering::Acquire) > 0
            && self.serve_door().unwrap_or_else(|fault| {
                if !self.told.swap(true, Ordering::Relaxed) {
                    self.host.log(LOG_WARN, &fault.text);
                }
                false
            })
    }

    pub(crate) fn counters(&self) -> CountersV1 {
        let mut sum = *lock(&self.past);
        for channel in self.channels().iter() {
            add(&mut sum, &channel.counters());
        }
        sum
    }

    /// Address of the listener, which is made on the first call.
    pub(crate) fn address(&self) -> Result<&[u8], Fault> {
        let mut door = lock(&self.door);
        if door.is_none() {
            let failed = |errno| system_fault("the listener for peers", errno);
            let (listener, address) = open_listener().map_err(failed)?;
            let ready = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
            watch(&ready, &listener).map_err(failed)?;
            let _ = self.epoll.set(ready);
            let _ = self.address.set(address);
            *door = Some(Door {
                listener,
                strangers: Vec::new(),
            });
        }
        self.address
            .get()
            .map(Vec::as_slice)
            .ok_or_else(|| Fault::new(STATUS_SYSTEM, "the listener for peers has no address"))
    }

    /// Lets in who knocks and hands those that prove themselves to their channels. Never waits.
    /// Fails when this process has no descriptor left for them.
    pub(crate) fn serve_door(&self) -> Result<bool, Fault> {
        let mut guard = lock(&self.door);
        let Some(door) = guard.as_mut() else {
            return Ok(false);
        };
        let mut moved = self.hear_strangers(&mut door.strangers)?;
        for _ in 0..MAX_ACCEPTS {
            let Some(socket) = take_connection(&door.listener)
                .map_err(|errno| system_fault("a connection from a peer", errno))?
            else {
                break;
            };
            moved = true;
            if !is_welcome(&socket) {
                continue;
            }
            if door.strangers.len() >= MAX_STRANGERS {
                // Who has been silent the longest. An honest peer speaks at once.
                door.strangers.remove(0);
            }
            door.strangers.push((socket, Mailbox::new()));
            self.hear_strangers(&mut door.strangers)?;
        }
        Ok(moved)
    }

    fn hear_strangers(&self, strangers: &mut Vec<(OwnedFd, Mailbox)>) -> Result<bool, Fault> {
        let mut moved = false;
        let mut index = 0;
        while let Some((socket, mailbox)) = strangers.get_mut(index) {
            let mail = mailbox.look(socket);
            if matches!(mail, Mail::Nothing) {
                index += 1;
                continue;
            }
            moved = true;
            let (socket, mailbox) = strangers.remove(index);
            match mail {
                Mail::Frame(Frame::Hello(hello), fds) if self.is_meant(&hello) => {
                    // A channel that is gone needs no words: its peer sees the connection close.
                    if let Some(channel) = self.find_channel(hello.to.channel) {
                        channel.arrive(Arrival {
                            socket,
                            mailbox,
                            hello,
                            fds,
                        });
                    }
                }
                Mail::Short(Frame::Hello(hello)) if self.is_meant(&hello) => {
                    return Err(system_fault("the descriptors of a peer", Errno::MFILE));
                }
                // Everything else ends the connection by dropping it.
                _ => self.host.log(
                    LOG_WARN,
                    "shm: a connection that did not prove to be a peer was closed",
                ),
            }
        }
        Ok(moved)
    }

    /// Whether the sender was given a blob of this device.
    fn is_meant(&self, hello: &Hello) -> bool {
        same_secret(&hello.to.process, &self.process) & same_secret(&hello.to.device, &self.token)
    }

    pub(crate) fn wake_fd(&self) -> Option<i32> {
        self.epoll.get().map(AsRawFd::as_raw_fd)
    }

    /// Lets the wake descriptor report what comes on a channel's socket.
    pub(crate) fn watch(&self, socket: &OwnedFd) -> Result<(), Errno> {
        self.epoll
            .get()
            .map_or(Ok(()), |ready| watch(ready, socket))
    }

    /// A socket that is closed would be reported for ever.
    pub(crate) fn unwatch(&self, socket: &OwnedFd) {
        if let Some(ready) = self.epoll.get() {
            // Fails if it is not watched any more, which is what is wanted.
            let _ = epoll::delete(ready, socket);
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        lock(devices()).remove(&self.core.token);
    }
}

impl Open {
    pub(crate) fn new(device: &Arc<DeviceCore>, kind: Kind) -> Self {
        device.open[kind as usize].fetch_add(1, Ordering::AcqRel);
        Self {
            device: Arc::clone(device),
            kind,
        }
    }

    pub(crate) const fn device(&self) -> &Arc<DeviceCore> {
        &self.device
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.device.open[self.kind as usize].fetch_sub(1, Ordering::AcqRel);
    }
}

/// A device of this process.
pub(crate) fn find_device(token: &Token) -> Option<Arc<DeviceCore>> {
    lock(devices()).get(token).and_then(Weak::upgrade)
}

/// A number that no other region or channel of this process has or had.
pub(crate) fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// 128 bits that nobody can guess.
pub(crate) fn random_token() -> Result<Token, Fault> {
    let mut token = [0; 16];
    getrandom::fill(&mut token)
        .map_err(|error| Fault::new(STATUS_SYSTEM, format!("no random numbers: {error}")))?;
    Ok(token)
}

/// A lock whose holder panicked guards data that is still whole: every change under our locks is
/// one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the process at the other end may talk to us: same user, or root.
pub(crate) fn is_welcome(socket: &OwnedFd) -> bool {
    peer_of(socket).is_ok_and(|(_, uid)| uid == 0 || uid == rustix::process::geteuid().as_raw())
}

fn watch(ready: &OwnedFd, source: &OwnedFd) -> Result<(), Errno> {
    epoll::add(
        ready,
        source,
        epoll::EventData::new_u64(0),
        epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
    )
}

fn devices() -> &'static Mutex<HashMap<Token, Weak<DeviceCore>>> {
    static DEVICES: OnceLock<Mutex<HashMap<Token, Weak<DeviceCore>>>> = OnceLock::new();
    DEVICES.get_or_init(Mutex::default)
}

/// Name of this process. A forked child inherits the random half; the pid tells it apart.
fn process_token() -> Result<Token, Fault> {
    static RANDOM: OnceLock<Token> = OnceLock::new();
    let random = match RANDOM.get() {
        Some(token) => *token,
        None => {
            let fresh = random_token()?;
            *RANDOM.get_or_init(|| fresh)
        }
    };
    let mut token = random;
    for (byte, pid) in token.iter_mut().zip(std::process::id().to_le_bytes()) {
        *byte ^= pid;
    }
    Ok(token)
}

/// The same for all processes of one boot; 0 where the system does not tell.
fn boot_number() -> u64 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = id
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(16)
        .collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

fn add(sum: &mut CountersV1, more: &CountersV1) {
    sum.descriptors += more.descriptors;
    sum.bytes_written += more.bytes_written;
    sum.bytes_read += more.bytes_read;
    sum.notifies += more.notifies;
    sum.bytes_staged += more.bytes_staged;
}
