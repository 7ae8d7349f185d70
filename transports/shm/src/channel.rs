//! One end of a channel: what it holds, what state it is in, how it ends.
//!
//! Between processes a Unix socket stays open for the life of the channel: it carries questions
//! about regions, and tells by its closing that the peer is gone.

mod connect;
mod mail;

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};

use hcomm_transport_abi::{
    ChannelOptions, CountersV1, Fault, PeerV1, STATUS_LINK_DOWN, STATUS_NOT_CONNECTED, STATUS_OK,
    STATUS_PEER_LOST, STATUS_UNSUPPORTED,
};

pub(crate) use connect::Arrival;
pub(crate) use mail::Answer;

use crate::device::{DeviceCore, Kind, Open, lock, next_number};
use crate::direct::{Lender, Reach, fetch_own};
use crate::segment::{Half, LINE_BYTES, PIECE_BYTES, Segment};
use crate::socket::is_closed;
use crate::staging::{Inbound, Outbound};
use crate::sys::{PeerBell, Span};
use crate::wire::{ChannelBlob, Identity, MAX_NOTIFIES};
use connect::Setup;
use mail::Control;

/// Staged descriptors of a channel for which no depth was asked.
const DEFAULT_DEPTH: u32 = 64;
/// Most of them.
const MAX_DEPTH: u32 = 1 << 16;

/// One end of a channel, for the host.
#[derive(Debug)]
pub struct Channel {
    pub(crate) inner: Arc<ChannelInner>,
    _open: Open,
}

/// One end of a channel, for its device.
#[derive(Debug)]
pub(crate) struct ChannelInner {
    device: Arc<DeviceCore>,
    identity: Identity,
    end: Arc<End>,
    link: OnceLock<Link>,
    settled: AtomicBool,
    setup: Mutex<Setup>,
    control: Mutex<Control>,
    /// What user memory is lent by, once the channel goes to another process.
    lender: OnceLock<Arc<Lender>>,
    /// How much of the peer's mail was heard.
    heard: AtomicU64,
    pub(crate) outbound: Mutex<Outbound>,
    pub(crate) inbound: Mutex<Inbound>,
    /// Staged descriptors that notifies may not overtake.
    pub(crate) staged: AtomicUsize,
    /// Completions to be polled.
    pub(crate) completed: AtomicUsize,
    pub(crate) tally: Tally,
}

/// What the peer's end reaches if it is in this process.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) segment: Segment,
    /// [`STATUS_OK`] once connected; otherwise what is wrong.
    state: AtomicI32,
    destroyed: AtomicBool,
    /// The end that this one was told to connect with.
    claim: Mutex<Option<Identity>>,
}

/// The way to the peer.
#[derive(Debug)]
pub(crate) struct Link {
    peer: Identity,
    pub(crate) side: Side,
}

/// Where the peer is.
#[derive(Debug)]
pub(crate) enum Side {
    Same(Arc<End>),
    Other(Box<Other>),
}

/// A peer in another process.
#[derive(Debug)]
pub(crate) struct Other {
    pub(crate) segment: Segment,
    bell: Option<PeerBell>,
    socket: Arc<OwnedFd>,
    /// The direct way to user memory, or why there is none.
    pub(crate) reach: Result<Reach, String>,
}

/// Counted by the one thread that posts, or under the outbound lock: plain additions.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) descriptors: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) notifies: AtomicU64,
    pub(crate) bytes_staged: AtomicU64,
}

impl Channel {
    pub(crate) fn create(
        device: &Arc<DeviceCore>,
        options: &ChannelOptions,
    ) -> Result<Self, Fault> {
        if options.notifies > MAX_NOTIFIES {
            return Err(Fault::invalid(format!(
                "{} notifies asked for, a channel has {MAX_NOTIFIES} at most",
                options.notifies
            )));
        }
        let depth = match options.queue_depth {
            0 => DEFAULT_DEPTH,
            depth => depth.min(MAX_DEPTH),
        };
        device.address()?;
        let segment = Segment::private(options.notifies)?;
        let (process, token) = device.names();
        let inner = Arc::new(ChannelInner {
            device: Arc::clone(device),
            identity: Identity {
                process,
                device: token,
                channel: next_number(),
            },
            end: Arc::new(End {
                segment,
                state: AtomicI32::new(STATUS_NOT_CONNECTED),
                destroyed: AtomicBool::new(false),
                claim: Mutex::default(),
            }),
            link: OnceLock::new(),
            settled: AtomicBool::new(false),
            setup: Mutex::default(),
            control: Mutex::new(Control::new()),
            lender: OnceLock::new(),
            heard: AtomicU64::new(0),
            outbound: Mutex::new(Outbound::new(depth as usize)),
            inbound: Mutex::default(),
            staged: AtomicUsize::new(0),
            completed: AtomicUsize::new(0),
            tally: Tally::default(),
        });
        device.add_channel(&inner);
        Ok(Self {
            inner,
            _open: Open::new(device, Kind::Channel),
        })
    }

    pub(crate) fn blob(&self) -> Result<Vec<u8>, Fault> {
        let inner = &self.inner;
        Ok(ChannelBlob {
            identity: inner.identity,
            notifies: inner.end.segment.notifies(),
            address: inner.device.address()?.to_vec(),
        }
        .encode())
    }

    /// Ends this side; the peer sees it at once.
    pub(crate) fn destroy(&self) {
        let inner = &self.inner;
        if inner.end.destroyed.swap(true, Ordering::AcqRel) {
            return;
        }
        inner.settle();
        if let Some(lender) = inner.lender.get() {
            lender.end();
            inner.device.forget_lenders();
        }
        inner.device.remove_channel(inner);
        lock(&inner.setup).give_up(&gone(STATUS_NOT_CONNECTED));
        if let Some(link) = inner.link.get() {
            match &link.side {
                Side::Other(other) => {
                    inner.device.unwatch(&other.socket);
                    // Fails only if the peer was faster.
                    let _ = rustix::net::shutdown(&other.socket, rustix::net::Shutdown::Both);
                }
                Side::Same(peer) => {
                    peer.fail(STATUS_PEER_LOST);
                }
            }
            inner.ring(link);
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl ChannelInner {
    pub(crate) const fn number(&self) -> u64 {
        self.identity.channel
    }

    pub(crate) const fn device(&self) -> &Arc<DeviceCore> {
        &self.device
    }

    pub(crate) fn own(&self) -> &Segment {
        &self.end.segment
    }

    pub(crate) fn peer(&self) -> Option<&Identity> {
        self.link.get().map(|link| &link.peer)
    }

    pub(crate) fn is_same_process(&self) -> bool {
        matches!(self.link.get().map(|link| &link.side), Some(Side::Same(_)))
    }

    /// The direct way to the peer's user memory, if there is one.
    pub(crate) fn reach(&self) -> Option<&Reach> {
        match self.link.get().map(|link| &link.side) {
            Some(Side::Other(other)) => other.reach.as_ref().ok(),
            _ => None,
        }
    }

    /// How bytes move here, in words.
    pub(crate) fn describe(&self) -> String {
        let other = match self.link.get().map(|link| &link.side) {
            None => return "not connected".to_owned(),
            Some(Side::Same(_)) => {
                return "inside one process: all memory is copied through plain pointers"
                    .to_owned();
            }
            Some(Side::Other(other)) => other,
        };
        let reach = other.reach.as_ref().map_err(Clone::clone);
        let user = match reach.and_then(Reach::describe) {
            Ok(how) => how,
            Err(why) => {
                format!("goes through a ring, in pieces of {PIECE_BYTES} bytes, because {why}")
            }
        };
        format!("allocated memory is mapped; user memory {user}")
    }

    /// The way to the peer while all is well, by what is known without a system call.
    pub(crate) fn usable(&self) -> Result<&Link, i32> {
        match self.end.state.load(Ordering::Acquire) {
            STATUS_OK => self.link.get().ok_or(STATUS_NOT_CONNECTED),
            status => Err(status),
        }
    }

    /// Where this side waits for notifies, once it was connected.
    pub(crate) fn waits(&self) -> Option<(&Segment, Half)> {
        let link = self.link.get()?;
        Some(match self.home_of_both(link) {
            None | Some(Half::Owner) => (self.own(), Half::Owner),
            Some(Half::Other) => (link.segment(), Half::Other),
        })
    }

    /// Where the peer waits.
    pub(crate) fn records<'a>(&'a self, link: &'a Link) -> (&'a Segment, Half) {
        match self.home_of_both(link) {
            None | Some(Half::Other) => (link.segment(), Half::Owner),
            Some(Half::Owner) => (self.own(), Half::Other),
        }
    }

    /// If both sides have as many notifies, those of one index share a line, in the segment of the
    /// side whose identity is smaller: then this says whose that is.
    fn home_of_both(&self, link: &Link) -> Option<Half> {
        if self.own().notifies() != link.segment().notifies() {
            None
        } else if self.identity < link.peer {
            Some(Half::Owner)
        } else {
            Some(Half::Other)
        }
    }

    /// For the host's own stores; see [`PeerV1`].
    pub(crate) fn map_peer(&self) -> Result<PeerV1, Fault> {
        let link = self.usable().map_err(gone)?;
        let bell = match &link.side {
            Side::Same(_) => core::ptr::null(),
            Side::Other(other) => match &other.bell {
                Some(bell) => bell.words().as_ptr().cast_const(),
                None => return Err(Fault::unsupported("the peer has no bell")),
            },
        };
        let (segment, half) = self.records(link);
        Ok(PeerV1 {
            lines: segment.lines(half).as_ptr(),
            notifies: segment.notifies(),
            stride: LINE_BYTES as u32,
            bell,
            state: self.end.state.as_ptr(),
        })
    }

    /// Copies memory that the peer's process lends; of zero bytes, whether that is possible.
    pub(crate) fn fetch(&self, local: Span<'_>, address: u64) -> Result<(), i32> {
        let link = self.usable()?;
        match &link.side {
            Side::Same(_) => fetch_own(local, address),
            Side::Other(other) => match &other.reach {
                Ok(reach) => reach.fetch(local, address),
                Err(_) => Err(STATUS_UNSUPPORTED),
            },
        }
    }

    /// Wakes who sleeps at the peer, after the host has recorded by itself.
    pub(crate) fn ring_peer(&self) {
        if let Some(link) = self.link.get() {
            self.ring(link);
        }
    }

    /// State of the channel, by asking the system.
    pub(crate) fn check(&self) -> Result<(), i32> {
        let link = self.usable()?;
        if let Side::Other(other) = &link.side
            && is_closed(&other.socket)
        {
            self.fail(STATUS_PEER_LOST);
            return Err(STATUS_PEER_LOST);
        }
        Ok(())
    }

    /// The first failure stays.
    pub(crate) fn fail(&self, status: i32) {
        if self.end.fail(status) {
            if let Some(Link {
                side: Side::Other(other),
                ..
            }) = self.link.get()
            {
                self.device.unwatch(&other.socket);
            }
            self.device.host.ring();
        }
    }

    /// Wakes the peer's process if somebody sleeps there.
    pub(crate) fn ring(&self, link: &Link) {
        match &link.side {
            Side::Same(_) => self.device.host.ring(),
            Side::Other(other) => other.ring(),
        }
    }

    pub(crate) fn counters(&self) -> CountersV1 {
        CountersV1 {
            descriptors: self.tally.descriptors.load(Ordering::Relaxed),
            bytes_written: self.tally.bytes_written.load(Ordering::Relaxed),
            bytes_read: self.tally.bytes_read.load(Ordering::Relaxed),
            notifies: self.tally.notifies.load(Ordering::Relaxed),
            bytes_staged: self.tally.bytes_staged.load(Ordering::Relaxed),
            ..CountersV1::default()
        }
    }

    fn establish(&self, peer: Identity, side: Side) {
        let link = Link { peer, side };
        // Two threads may connect one channel at once; the second one finds it done.
        if self.link.set(link).is_ok() {
            let _ = self.end.state.compare_exchange(
                STATUS_NOT_CONNECTED,
                STATUS_OK,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            // It may have been destroyed before it could tell.
            if let Some(Link {
                side: Side::Same(peer),
                ..
            }) = self.link.get()
                && peer.destroyed.load(Ordering::Acquire)
            {
                self.fail(STATUS_PEER_LOST);
            }
            self.settle();
        }
    }

    fn settle(&self) {
        if !self.settled.swap(true, Ordering::AcqRel) {
            self.device.settle_one();
        }
    }
}

impl End {
    /// Whether this was the first failure, which stays.
    fn fail(&self, status: i32) -> bool {
        let before = [STATUS_OK, STATUS_NOT_CONNECTED];
        before.into_iter().any(|state| {
            self.state
                .compare_exchange(state, status, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        })
    }
}

impl Link {
    /// Memory in which the peer waits.
    pub(crate) fn segment(&self) -> &Segment {
        match &self.side {
            Side::Same(end) => &end.segment,
            Side::Other(other) => &other.segment,
        }
    }
}

impl Other {
    pub(crate) fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }

    #[cfg(test)]
    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Tells the peer that there is something on the socket.
    fn mail(&self) {
        self.segment.mail().fetch_add(1, Ordering::Release);
        self.ring();
    }
}

impl Tally {
    /// Adds where only one thread at a time does.
    pub(crate) fn add(counter: &AtomicU64, more: u64) {
        if more != 0 {
            counter.store(
                counter.load(Ordering::Relaxed).wrapping_add(more),
                Ordering::Relaxed,
            );
        }
    }
}

/// Words for a state in which a slow call cannot go on.
fn gone(status: i32) -> Fault {
    Fault::new(
        status,
        match status {
            STATUS_NOT_CONNECTED => "the channel is not connected",
            STATUS_PEER_LOST => "the peer is gone",
            STATUS_LINK_DOWN => "the peer broke the rules of the link",
            _ => "the channel failed earlier",
        },
    )
}
