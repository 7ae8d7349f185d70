//! An open device: its listener, its channels and regions, and how all of them move on.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hcomm_transport_abi::{
    CompletionV1, CountersV1, Fault, Host, STATUS_BUSY, STATUS_LIMIT, STATUS_SYSTEM,
};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::channel::ChannelInner;
use crate::door::Door;
use crate::places::Place;
use crate::region::Memory;
use crate::socket;
use crate::wire::Token;

/// Channels up to this number are asked one by one: for more, one call says which have something.
const FEW: usize = 2;
/// A channel on which nothing has moved for so many turns is looked at only in each `QUIET_TURNS`th one,
/// while something moves on a few others: each look is a system call.
const QUIET_AFTER: u32 = 256;
const QUIET_TURNS: u32 = 8;
/// With more channels it takes too long to find out which are quiet.
const MANY: usize = 16;
/// Sockets that are served in one turn.
const EVENTS: usize = 64;
/// What the listener and those who have not said who they are have in place of a channel's number.
pub(crate) const DOOR: u64 = u64::MAX;

/// An open device, for the host.
#[derive(Debug)]
pub struct Device {
    pub(crate) core: Arc<DeviceCore>,
}

/// An open device, for its parts.
#[derive(Debug)]
pub(crate) struct DeviceCore {
    pub(crate) host: Host,
    pub(crate) place: &'static Place,
    /// Its name among all devices that there are.
    pub(crate) token: Token,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    pub(crate) regions: Mutex<HashMap<u64, Arc<Memory>>>,
    channels: Mutex<BTreeMap<u64, Arc<ChannelInner>>>,
    door: Mutex<Door>,
    epoll: OwnedFd,
    /// Channels that are not connected yet: only then progress looks at the door.
    pub(crate) unconnected: AtomicUsize,
    /// Channels with something to send.
    pub(crate) with_output: AtomicUsize,
    /// Completions to be polled.
    pub(crate) completed: AtomicUsize,
    /// Turns of `progress`.
    turns: AtomicU32,
    open: AtomicUsize,
    pub(crate) tally: Tally,
}

/// What was done through a device.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) descriptors: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) notifies: AtomicU64,
    pub(crate) control_messages: AtomicU64,
}

/// One open thing of a device, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Open(Arc<DeviceCore>);

impl Open {
    pub(crate) fn new(device: &Arc<DeviceCore>) -> Self {
        device.open.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(device))
    }

    pub(crate) const fn device(&self) -> &Arc<DeviceCore> {
        &self.0
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

impl DeviceCore {
    pub(crate) fn open(host: Host, place: &'static Place) -> Result<Arc<Self>, Fault> {
        let wanted = place.at(place.ip(), 0);
        let (listener, address) = socket::listen(&wanted).map_err(|error| {
            Fault::new(
                status_of(error),
                format!("listening at {wanted}: {error}; see `ip address` and `ulimit -n`"),
            )
        })?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| {
            Fault::new(
                status_of(error),
                format!("creating an epoll descriptor: {error}; see `ulimit -n`"),
            )
        })?;
        let core = Self {
            host,
            place,
            token: random()?,
            address,
            regions: Mutex::default(),
            channels: Mutex::default(),
            door: Mutex::new(Door::new(listener)),
            epoll,
            unconnected: AtomicUsize::new(0),
            with_output: AtomicUsize::new(0),
            completed: AtomicUsize::new(0),
            turns: AtomicU32::new(0),
            open: AtomicUsize::new(0),
            tally: Tally::default(),
        };
        let watched = core.watch(lock(&core.door).listener(), DOOR, epoll::EventFlags::IN);
        watched.map_err(|error| {
            Fault::new(STATUS_SYSTEM, format!("watching the listener: {error}"))
        })?;
        Ok(Arc::new(core))
    }

    pub(crate) fn close(&self) -> Result<(), Fault> {
        match self.open.load(Ordering::Acquire) {
            0 => Ok(()),
            open => Err(Fault::new(
                STATUS_BUSY,
                format!("{open} regions, imports and channels of the device are open"),
            )),
        }
    }

    pub(crate) fn counters(&self) -> CountersV1 {
        let now = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CountersV1 {
            descriptors: now(&self.tally.descriptors),
            bytes_written: now(&self.tally.bytes_written),
            bytes_read: now(&self.tally.bytes_read),
            notifies: now(&self.tally.notifies),
            control_messages: now(&self.tally.control_messages),
            ..CountersV1::default()
        }
    }

    pub(crate) fn add_channel(&self, channel: &Arc<ChannelInner>) {
        self.unconnected.fetch_add(1, Ordering::AcqRel);
        lock(&self.channels).insert(channel.number(), Arc::clone(channel));
    }

    pub(crate) fn remove_channel(&self, number: u64) {
        drop(lock(&self.channels).remove(&number));
    }

    pub(crate) fn channel(&self, number: u64) -> Option<Arc<ChannelInner>> {
        lock(&self.channels).get(&number).cloned()
    }

    pub(crate) fn watch(
        &self,
        socket: impl AsFd,
        data: u64,
        flags: epoll::EventFlags,
    ) -> Result<(), Errno> {
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(data), flags)
    }

    pub(crate) fn watch_for(&self, socket: impl AsFd, data: u64, flags: epoll::EventFlags) {
        // It fails only for a socket that was never watched.
        let _ = epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(data), flags);
    }

    pub(crate) fn unwatch(&self, socket: impl AsFd) {
        // It fails only for a socket that is not watched.
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// Lets in who wants in.
    pub(crate) fn look_at_door(&self) {
        lock(&self.door).turn(self);
    }

    /// Moves everything on; whether something was done.
    pub(crate) fn progress(&self) -> bool {
        if self.unconnected.load(Ordering::Acquire) > 0 {
            self.look_at_door();
        }
        let channels = lock(&self.channels);
        // One OS thread at a time is here.
        let number = self.turns.load(Ordering::Relaxed).wrapping_add(1);
        self.turns.store(number, Ordering::Relaxed);
        let is_busy = |channel: &ChannelInner| {
            let moved_in = channel.moved_in.load(Ordering::Relaxed);
            number.wrapping_sub(moved_in) < QUIET_AFTER
        };
        let busy = if channels.len() <= MANY {
            channels.values().filter(|channel| is_busy(channel)).count()
        } else {
            channels.len()
        };
        let at_all = busy == 0 || number.is_multiple_of(QUIET_TURNS);
        let (mut moved, mut rings) = (false, false);
        let mut serve = |channel: &ChannelInner, arrivals: bool| {
            let turn = channel.progress(arrivals);
            if turn.moved {
                channel.moved_in.store(number, Ordering::Relaxed);
            }
            moved |= turn.moved;
            rings |= turn.rings;
        };
        if channels.len() <= FEW || (busy <= FEW && !at_all) {
            for channel in channels.values() {
                if at_all || is_busy(channel) {
                    serve(channel, true);
                } else if channel.has_output() {
                    serve(channel, false);
                }
            }
        } else {
            let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
            let now = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            if let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) {
                for event in ready {
                    let number = event.data.u64();
                    if let Some(channel) = channels.get(&number) {
                        serve(channel, true);
                    }
                }
            }
            if self.with_output.load(Ordering::Relaxed) > 0 {
                for channel in channels.values() {
                    serve(channel, false);
                }
            }
        }
        drop(channels);
        // Another OS thread may sleep for what this one has landed.
        if rings {
            self.host.ring();
        }
        moved
    }

    /// Hands out completions.
    pub(crate) fn poll(&self, out: &mut [CompletionV1]) -> usize {
        if self.completed.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut found = 0;
        for channel in lock(&self.channels).values() {
            if found == out.len() {
                break;
            }
            found += channel.completions(&mut out[found..]);
        }
        found
    }

    /// Prepares a sleep on the descriptor.
    pub(crate) fn arm(&self) {
        // Who knocks without a channel waiting for him would otherwise end every sleep.
        self.look_at_door();
        for channel in lock(&self.channels).values() {
            channel.watch_for_room();
        }
    }

    pub(crate) fn wake_fd(&self) -> i32 {
        self.epoll.as_raw_fd()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Fault> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Fault::new(STATUS_SYSTEM, format!("drawing random bytes: {error}")))?;
    Ok(bytes)
}

/// A number that nothing else of this process has or will have.
pub(crate) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Whether an error of the system is a limit.
pub(crate) fn status_of(error: Errno) -> i32 {
    match error {
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS => STATUS_LIMIT,
        _ => STATUS_SYSTEM,
    }
}
