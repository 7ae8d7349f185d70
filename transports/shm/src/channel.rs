//! One end of a channel: how it connects, what it hears from the peer, how it ends.
//!
//! Two ends in one process find each other among the devices of the process and hold on to each
//! other's segment. Between processes exactly one side connects, the one whose identity is
//! smaller, and says hello with the descriptors of its segment and its bell; the other side
//! answers with its own. The socket then stays open as a sign of life.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};

use hcomm_transport_abi::{
    ChannelOptions, Connect, CountersV1, Fault, STATUS_LIMIT, STATUS_LINK_DOWN,
    STATUS_NOT_CONNECTED, STATUS_OK, STATUS_PEER_LOST, STATUS_REFUSED, STATUS_STALE_KEY,
};
use rustix::io::Errno;

use crate::device::{DeviceCore, Kind, Open, find_device, is_welcome, lock, next_number};
use crate::export::bell_of;
use crate::limits::system_fault;
use crate::region::RegionCore;
use crate::segment::{Segment, map_peer_memory};
use crate::socket::{Mail, Mailbox, is_closed, open_connection, send_frame};
use crate::staging::{Inbound, Outbound};
use crate::sys::PeerBell;
use crate::wire::{
    ChannelBlob, FD_BELL, FD_EVENT, Frame, Hello, Identity, MAX_NOTIFIES, RegionKind, Token,
};

/// Questions to the peer that may be without an answer. Few enough for both sockets' buffers, so
/// that two sides that ask and answer at once never block each other.
const MAX_ASKS: usize = 16;
/// Frames heard in one go.
const MAX_FRAMES: usize = 64;
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
    /// [`STATUS_OK`] once connected; otherwise what is wrong.
    state: AtomicI32,
    link: OnceLock<Link>,
    settled: AtomicBool,
    setup: Mutex<Setup>,
    control: Mutex<Control>,
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
    socket: OwnedFd,
}

/// A peer that knocked and proved itself.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) socket: OwnedFd,
    pub(crate) mailbox: Mailbox,
    pub(crate) hello: Hello,
    pub(crate) fds: Vec<OwnedFd>,
}

/// What a peer said about a region.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: i32,
    pub(crate) bytes: u64,
    pub(crate) kind: RegionKind,
    pub(crate) memory: Option<OwnedFd>,
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

/// Connecting between processes.
#[derive(Debug, Default)]
struct Setup {
    peer: Option<ChannelBlob>,
    /// Our segment's memory until the peer has it.
    memory: Option<OwnedFd>,
    arrival: Option<Arrival>,
    outgoing: Option<Outgoing>,
    fault: Option<Fault>,
}

#[derive(Debug)]
struct Outgoing {
    socket: OwnedFd,
    mailbox: Mailbox,
    sent: bool,
}

/// Questions and answers on the socket.
#[derive(Debug)]
struct Control {
    mailbox: Mailbox,
    next_request: u64,
    /// Asked, no answer yet.
    asked: Vec<u64>,
    /// Of those: nobody waits any more.
    abandoned: Vec<u64>,
    answers: Vec<(u64, Answer)>,
    /// An answer of ours that did not fit into the socket. No question is taken before it is out.
    unsent: Option<(Frame, Option<Arc<RegionCore>>)>,
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
                destroyed: AtomicBool::new(false),
                claim: Mutex::default(),
            }),
            state: AtomicI32::new(STATUS_NOT_CONNECTED),
            link: OnceLock::new(),
            settled: AtomicBool::new(false),
            setup: Mutex::default(),
            control: Mutex::new(Control::new()),
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

    pub(crate) fn connect(&self, peer: &[u8]) -> Result<Connect, Fault> {
        let inner = &self.inner;
        let peer = ChannelBlob::decode(peer)?;
        if peer.identity == inner.identity {
            return Err(Fault::invalid("a channel cannot be connected with itself"));
        }
        {
            let mut setup = lock(&inner.setup);
            if let Some(fault) = &setup.fault {
                return Err(fault.clone());
            }
            match &setup.peer {
                Some(earlier) if *earlier != peer => {
                    return Err(Fault::invalid(
                        "the channel was told to connect with another end before",
                    ));
                }
                _ => setup.peer = Some(peer.clone()),
            }
        }
        if inner.link.get().is_some() {
            return inner.check().map(|()| Connect::Connected).map_err(gone);
        }
        let stepped = if peer.identity.process == inner.identity.process {
            inner.meet(&peer.identity)
        } else {
            inner.step(&peer)
        };
        match stepped {
            Ok(None) => Ok(Connect::InProgress),
            Ok(Some(side)) => {
                inner.establish(peer.identity, side);
                Ok(Connect::Connected)
            }
            Err(fault) => {
                inner.fail(fault.status);
                lock(&inner.setup).give_up(&fault);
                Err(fault)
            }
        }
    }

    /// Ends this side; the peer sees it at once.
    pub(crate) fn destroy(&self) {
        let inner = &self.inner;
        if inner.end.destroyed.swap(true, Ordering::AcqRel) {
            return;
        }
        inner.settle();
        inner.device.remove_channel(inner);
        lock(&inner.setup).give_up(&gone(STATUS_NOT_CONNECTED));
        if let Some(link) = inner.link.get() {
            if let Side::Other(other) = &link.side {
                inner.device.unwatch(&other.socket);
                // Fails only if the peer was faster.
                let _ = rustix::net::shutdown(&other.socket, rustix::net::Shutdown::Both);
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

    /// The way to the peer while all is well, by what is known without a system call.
    pub(crate) fn usable(&self) -> Result<&Link, i32> {
        match self.state.load(Ordering::Acquire) {
            STATUS_OK => {}
            status => return Err(status),
        }
        let link = self.link.get().ok_or(STATUS_NOT_CONNECTED)?;
        if let Side::Same(end) = &link.side
            && end.destroyed.load(Ordering::Acquire)
        {
            self.fail(STATUS_PEER_LOST);
            return Err(STATUS_PEER_LOST);
        }
        Ok(link)
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
        let before = [STATUS_OK, STATUS_NOT_CONNECTED];
        let failed = before.into_iter().any(|state| {
            self.state
                .compare_exchange(state, status, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        });
        if failed {
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

    /// Keeps a peer that knocked until `connect` asks for it.
    pub(crate) fn arrive(&self, arrival: Arrival) {
        let mut setup = lock(&self.setup);
        let expected = setup
            .peer
            .as_ref()
            .is_none_or(|peer| peer.identity.is(&arrival.hello.from));
        // One that is not expected, comes again or comes too late is dropped.
        if expected
            && setup.arrival.is_none()
            && setup.fault.is_none()
            && self.link.get().is_none()
            && !self.end.destroyed.load(Ordering::Acquire)
        {
            setup.arrival = Some(arrival);
            drop(setup);
            self.device.host.ring();
        }
    }

    /// Asks the owner of a region for it; `request` is what to wait for. `None` while there is no
    /// answer.
    pub(crate) fn ask(
        &self,
        number: u64,
        key: &Token,
        request: &mut Option<u64>,
    ) -> Result<Option<Answer>, Fault> {
        let link = self.usable().map_err(gone)?;
        let Side::Other(other) = &link.side else {
            return Err(Fault::invalid("nothing to ask inside one process"));
        };
        let mut control = lock(&self.control);
        let id = match *request {
            Some(id) => id,
            None if control.asked.len() >= MAX_ASKS => return Ok(None),
            None => {
                let id = control.next_request;
                let frame = Frame::Ask {
                    request: id,
                    number,
                    key: *key,
                };
                match send_frame(&other.socket, &frame, &[]) {
                    Ok(true) => {}
                    Ok(false) => return Ok(None),
                    Err(errno) => {
                        self.fail(lost(errno));
                        return Err(gone(lost(errno)));
                    }
                }
                other.mail();
                control.next_request += 1;
                control.asked.push(id);
                *request = Some(id);
                id
            }
        };
        self.listen(other, &mut control);
        let found = control.answers.iter().position(|(of, _)| *of == id);
        match found {
            Some(at) => Ok(Some(control.answers.swap_remove(at).1)),
            None => self.usable().map(|_| None).map_err(gone),
        }
    }

    /// Nobody waits for the answer any more.
    pub(crate) fn abandon(&self, request: u64) {
        let mut control = lock(&self.control);
        control.answers.retain(|(of, _)| *of != request);
        if control.asked.contains(&request) {
            control.abandoned.push(request);
        }
    }

    /// Hears the peer's mail, if the peer says that there is some: one load otherwise.
    pub(crate) fn hear(&self, other: &Other) -> bool {
        let mail = self.own().mail().load(Ordering::Acquire);
        if mail == self.heard.load(Ordering::Relaxed) {
            return false;
        }
        let all = self.listen(other, &mut lock(&self.control));
        if all {
            self.heard.store(mail, Ordering::Relaxed);
        }
        true
    }

    /// Takes frames from the socket and answers them; whether nothing was left.
    fn listen(&self, other: &Other, control: &mut Control) -> bool {
        for _ in 0..MAX_FRAMES {
            if let Some((frame, region)) = control.unsent.take() {
                let memory = region.as_ref().and_then(|region| region.memory());
                let sent = match memory {
                    Some(memory) => send_frame(&other.socket, &frame, &[memory.as_fd()]),
                    None => send_frame(&other.socket, &frame, &[]),
                };
                match sent {
                    Ok(true) => other.mail(),
                    Ok(false) => {
                        control.unsent = Some((frame, region));
                        return false;
                    }
                    Err(errno) => {
                        self.fail(lost(errno));
                        return true;
                    }
                }
            }
            let heard = match control.mailbox.look(&other.socket) {
                Mail::Nothing => return true,
                Mail::Closed => Err(STATUS_PEER_LOST),
                Mail::Failed(errno) => Err(lost(errno)),
                Mail::Garbage => Err(STATUS_LINK_DOWN),
                Mail::Frame(frame, fds) => self.answer(frame, fds, control),
                Mail::Short(Frame::Give {
                    request,
                    bytes,
                    kind,
                    ..
                }) => control.take(
                    request,
                    Answer {
                        status: STATUS_LIMIT,
                        bytes,
                        kind,
                        memory: None,
                    },
                ),
                Mail::Short(_) => Err(STATUS_LINK_DOWN),
            };
            if let Err(status) = heard {
                self.fail(status);
                return true;
            }
        }
        false
    }

    fn answer(&self, frame: Frame, fds: Vec<OwnedFd>, control: &mut Control) -> Result<(), i32> {
        match frame {
            Frame::Ask {
                request,
                number,
                key,
            } => {
                let region = self.device.find_region(number, &key);
                let answer = Frame::Give {
                    request,
                    status: region.as_ref().map_or(STATUS_STALE_KEY, |_| STATUS_OK),
                    bytes: region.as_ref().map_or(0, |region| region.bytes()),
                    kind: region
                        .as_ref()
                        .map_or(RegionKind::User, |region| region.kind()),
                };
                control.unsent = Some((answer, region));
                Ok(())
            }
            Frame::Give {
                request,
                status,
                bytes,
                kind,
            } => control.take(
                request,
                Answer {
                    status,
                    bytes,
                    kind,
                    memory: fds.into_iter().next(),
                },
            ),
            Frame::Hello(_) | Frame::Welcome(_) => Err(STATUS_LINK_DOWN),
        }
    }

    /// Pairs up with an end of this process: each side leaves a claim at its own end.
    fn meet(&self, peer: &Identity) -> Result<Option<Side>, Fault> {
        let other = find_device(&peer.device)
            .and_then(|device| device.find_channel(peer.channel))
            .map(|channel| Arc::clone(&channel.end))
            .ok_or_else(|| {
                Fault::new(
                    STATUS_PEER_LOST,
                    "the peer's end, of this process, was destroyed",
                )
            })?;
        *lock(&self.end.claim) = Some(*peer);
        let claim = *lock(&other.claim);
        match claim {
            None => {
                self.device.host.ring();
                Ok(None)
            }
            Some(claimed) if claimed == self.identity => {
                self.device.host.ring();
                Ok(Some(Side::Same(other)))
            }
            Some(_) => Err(Fault::new(
                STATUS_REFUSED,
                "the peer's end, of this process, was told to connect with another end",
            )),
        }
    }

    /// One step towards a peer in another process.
    fn step(&self, peer: &ChannelBlob) -> Result<Option<Side>, Fault> {
        let active = self.identity < peer.identity;
        if !active {
            self.device.serve_door()?;
        }
        let mut setup = lock(&self.setup);
        if setup.memory.is_none() {
            setup.memory = Some(self.end.segment.share()?);
        }
        if active {
            self.reach_out(&mut setup, peer)
        } else {
            self.receive(&mut setup, peer)
        }
    }

    /// The side that connects.
    fn reach_out(&self, setup: &mut Setup, peer: &ChannelBlob) -> Result<Option<Side>, Fault> {
        if setup.outgoing.is_none() {
            let socket = match open_connection(&peer.address) {
                Ok(socket) => socket,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(Errno::CONNREFUSED) => {
                    return Err(Fault::new(
                        STATUS_PEER_LOST,
                        "nobody listens at the peer's abstract address: it has ended, or lives in \
                         another network namespace, where shm cannot reach it",
                    ));
                }
                Err(errno) => return Err(system_fault("connecting with the peer", errno)),
            };
            if !is_welcome(&socket) {
                return Err(Fault::new(
                    STATUS_REFUSED,
                    "the peer's listener belongs to another user",
                ));
            }
            setup.outgoing = Some(Outgoing {
                socket,
                mailbox: Mailbox::new(),
                sent: false,
            });
        }
        let memory = setup.memory.as_ref();
        let Some((outgoing, memory)) = setup.outgoing.as_mut().zip(memory) else {
            return Ok(None);
        };
        if !outgoing.sent {
            outgoing.sent = self.introduce(&outgoing.socket, memory, peer, Frame::Hello)?;
        }
        let (welcome, fds) = match outgoing.mailbox.look(&outgoing.socket) {
            Mail::Nothing => return Ok(None),
            Mail::Frame(Frame::Welcome(welcome), fds) => (welcome, fds),
            Mail::Closed => return Err(refused()),
            Mail::Short(_) => return Err(system_fault("the peer's descriptors", Errno::MFILE)),
            Mail::Failed(errno) => return Err(system_fault("hearing the peer's answer", errno)),
            Mail::Frame(..) | Mail::Garbage => {
                return Err(Fault::new(
                    STATUS_REFUSED,
                    "the peer's answer is not one of this transport and version",
                ));
            }
        };
        if !welcome.to.is(&self.identity) || !welcome.from.is(&peer.identity) {
            return Err(Fault::new(
                STATUS_REFUSED,
                "the peer's answer does not prove that it knows this channel",
            ));
        }
        let Some(outgoing) = setup.outgoing.take() else {
            return Ok(None);
        };
        self.adopt(
            setup,
            outgoing.socket,
            outgoing.mailbox,
            &welcome,
            fds,
            peer,
        )
        .map(Some)
    }

    /// The side that is connected to.
    fn receive(&self, setup: &mut Setup, peer: &ChannelBlob) -> Result<Option<Side>, Fault> {
        let Some(arrival) = setup.arrival.take() else {
            return Ok(None);
        };
        // It came before this side knew whom to expect.
        if !arrival.hello.from.is(&peer.identity) {
            return Ok(None);
        }
        let Some(memory) = setup.memory.as_ref() else {
            return Ok(None);
        };
        if !self.introduce(&arrival.socket, memory, peer, Frame::Welcome)? {
            setup.arrival = Some(arrival);
            return Ok(None);
        }
        let Arrival {
            socket,
            mailbox,
            hello,
            fds,
        } = arrival;
        self.adopt(setup, socket, mailbox, &hello, fds, peer)
            .map(Some)
    }

    /// Sends who we are, with our segment and bell. `false` while there is no room.
    fn introduce(
        &self,
        socket: &OwnedFd,
        memory: &OwnedFd,
        peer: &ChannelBlob,
        wrap: fn(Hello) -> Frame,
    ) -> Result<bool, Fault> {
        let (bell, event) = bell_of(&self.device.host);
        let mut fds = vec![memory.as_fd()];
        let mut bits = 0;
        if let Some(bell) = &bell {
            fds.push(*bell);
            bits |= FD_BELL;
        }
        if let Some(event) = event.as_ref().filter(|_| bell.is_some()) {
            fds.push(*event);
            bits |= FD_EVENT;
        }
        let frame = wrap(Hello {
            to: peer.identity,
            from: self.identity,
            notifies: self.end.segment.notifies(),
            bell_offset: self.device.host.table().bell_offset,
            fds: bits,
        });
        match send_frame(socket, &frame, &fds) {
            Ok(sent) => Ok(sent),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(refused()),
            Err(errno) => Err(system_fault("sending descriptors to the peer", errno)),
        }
    }

    /// Maps what the peer sent.
    fn adopt(
        &self,
        setup: &mut Setup,
        socket: OwnedFd,
        mailbox: Mailbox,
        hello: &Hello,
        fds: Vec<OwnedFd>,
        peer: &ChannelBlob,
    ) -> Result<Side, Fault> {
        if hello.notifies != peer.notifies {
            return Err(Fault::new(
                STATUS_REFUSED,
                format!(
                    "the peer has {} notifies, its blob says {}",
                    hello.notifies, peer.notifies
                ),
            ));
        }
        let mut fds = fds.into_iter();
        let memory = fds.next().ok_or_else(refused)?;
        let segment = Segment::of_peer(&memory, hello.notifies)?;
        let page = fds.next();
        let event = fds.next();
        let bell = match page {
            Some(page) => Some(open_bell(page, hello.bell_offset, event)?),
            None => None,
        };
        self.device
            .watch(&socket)
            .map_err(|errno| system_fault("watching the peer's socket", errno))?;
        lock(&self.control).mailbox = mailbox;
        setup.memory = None;
        Ok(Side::Other(Box::new(Other {
            segment,
            bell,
            socket,
        })))
    }

    fn establish(&self, peer: Identity, side: Side) {
        let link = Link { peer, side };
        // Two threads may connect one channel at once; the second one finds it done.
        if self.link.set(link).is_ok() {
            let _ = self.state.compare_exchange(
                STATUS_NOT_CONNECTED,
                STATUS_OK,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            self.settle();
        }
    }

    fn settle(&self) {
        if !self.settled.swap(true, Ordering::AcqRel) {
            self.device.settle_one();
        }
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
    pub(crate) const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Tells the peer that there is something on the socket.
    fn mail(&self) {
        self.segment.mail().fetch_add(1, Ordering::Release);
        self.ring();
    }
}

impl Setup {
    fn give_up(&mut self, fault: &Fault) {
        self.fault.get_or_insert_with(|| fault.clone());
        self.memory = None;
        self.arrival = None;
        self.outgoing = None;
    }
}

impl Control {
    fn new() -> Self {
        Self {
            mailbox: Mailbox::new(),
            next_request: 1,
            asked: Vec::new(),
            abandoned: Vec::new(),
            answers: Vec::new(),
            unsent: None,
        }
    }

    /// Notes an answer; one to a question that was not asked breaks the link.
    fn take(&mut self, request: u64, answer: Answer) -> Result<(), i32> {
        let at = self
            .asked
            .iter()
            .position(|&id| id == request)
            .ok_or(STATUS_LINK_DOWN)?;
        self.asked.swap_remove(at);
        match self.abandoned.iter().position(|&id| id == request) {
            Some(at) => drop(self.abandoned.swap_remove(at)),
            None => self.answers.push((request, answer)),
        }
        Ok(())
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

/// Maps the peer's bell.
fn open_bell(page: OwnedFd, offset: u32, event: Option<OwnedFd>) -> Result<PeerBell, Fault> {
    let bytes = u64::from(offset) + 64;
    let mapping = map_peer_memory(&page, bytes, "its bell")?;
    if let Some(event) = &event {
        // Anything else could raise SIGPIPE or block. Where /proc is missing it is believed.
        let kind = std::fs::read_link(format!("/proc/self/fd/{}", event.as_raw_fd()));
        if kind.is_ok_and(|kind| !kind.ends_with("anon_inode:[eventfd]")) {
            return Err(Fault::new(
                STATUS_REFUSED,
                "the peer sent something else than an eventfd for its bell",
            ));
        }
        rustix::fs::fcntl_getfl(event)
            .and_then(|flags| rustix::fs::fcntl_setfl(event, flags | rustix::fs::OFlags::NONBLOCK))
            .map_err(|errno| system_fault("the peer's eventfd", errno))?;
    }
    PeerBell::new(mapping, offset, event).ok_or_else(|| {
        Fault::new(
            STATUS_REFUSED,
            format!("the peer's bell at offset {offset} is not on a cache line of its memory"),
        )
    })
}

fn refused() -> Fault {
    Fault::new(
        STATUS_REFUSED,
        "the peer closed the connection without an answer: it has destroyed its end, or was told \
         to connect with another one",
    )
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

/// What a failing socket says about the channel.
const fn lost(errno: Errno) -> i32 {
    match errno {
        Errno::PIPE | Errno::CONNRESET => STATUS_PEER_LOST,
        _ => STATUS_LINK_DOWN,
    }
}
