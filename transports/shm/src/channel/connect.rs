//! How two ends find each other.
//!
//! Two ends in one process find each other among the devices of the process and hold on to each
//! other's segment. Between processes exactly one side connects, the one whose identity is
//! smaller, and says hello with the descriptors of its segment and its bell; the other side
//! answers with its own.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hcomm_transport_abi::{Connect, Fault, STATUS_PEER_LOST, STATUS_REFUSED};
use rustix::io::Errno;

use super::{Channel, ChannelInner, Other, Side, gone};
use crate::device::{find_device, is_welcome, lock};
use crate::direct::{Lender, Life, Reach};
use crate::export::bell_of;
use crate::limits::system_fault;
use crate::segment::{Segment, map_peer_memory};
use crate::socket::{Mail, Mailbox, open_connection, send_frame};
use crate::sys::PeerBell;
use crate::wire::{ChannelBlob, FD_BELL, FD_EVENT, Frame, Hello, Identity, Sample};

/// A peer that knocked and proved itself.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) socket: OwnedFd,
    pub(crate) mailbox: Mailbox,
    pub(crate) hello: Hello,
    pub(crate) fds: Vec<OwnedFd>,
}

/// Peers that may wait for `connect` to say whether they are meant. Each has shown the channel's
/// token, so more than one is a mistake somewhere, not a crowd.
const MAX_ARRIVALS: usize = 8;

/// What is offered where nothing may be tried.
const NO_SAMPLE: Sample = Sample {
    address: 0,
    content: [0; 16],
};

/// Connecting between processes.
#[derive(Debug, Default)]
pub(super) struct Setup {
    peer: Option<ChannelBlob>,
    /// Our segment's memory until the peer has it.
    memory: Option<OwnedFd>,
    /// Peers that knocked before `connect` said which is meant, at most [`MAX_ARRIVALS`].
    arrivals: Vec<Arrival>,
    outgoing: Option<Outgoing>,
    fault: Option<Fault>,
    /// The peer has our segment, and we have its: nothing is left to be done here.
    is_done: bool,
}

#[derive(Debug)]
struct Outgoing {
    socket: OwnedFd,
    mailbox: Mailbox,
    sent: bool,
}

impl Channel {
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
}

impl ChannelInner {
    /// Keeps a peer that knocked until `connect` asks for it.
    pub(crate) fn arrive(&self, arrival: Arrival) {
        let mut setup = lock(&self.setup);
        let expected = setup
            .peer
            .as_ref()
            .is_none_or(|peer| peer.identity.is(&arrival.hello.from));
        let known = setup
            .arrivals
            .iter()
            .any(|known| known.hello.from.is(&arrival.hello.from));
        // One that is not expected, comes again or comes too late is dropped.
        if expected
            && !known
            && setup.arrivals.len() < MAX_ARRIVALS
            && setup.fault.is_none()
            && self.link.get().is_none()
            && !self.end.destroyed.load(Ordering::Acquire)
        {
            setup.arrivals.push(arrival);
            drop(setup);
            self.device.host.ring();
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
        // By another OS thread, which is about to say so.
        if setup.is_done {
            return Ok(None);
        }
        if setup.memory.is_none() {
            setup.memory = Some(self.end.segment.share()?);
            if !self.device.stages() && self.lender.get().is_none() {
                let lender = Lender::open(&self.end, self.number())?;
                self.device.add_lender(&lender);
                let _ = self.lender.set(lender);
            }
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
        // Others came before this side knew whom to expect.
        setup
            .arrivals
            .retain(|arrival| arrival.hello.from.is(&peer.identity));
        let Some(arrival) = setup.arrivals.pop() else {
            return Ok(None);
        };
        let Some(memory) = setup.memory.as_ref() else {
            return Ok(None);
        };
        if !self.introduce(&arrival.socket, memory, peer, Frame::Welcome)? {
            setup.arrivals.push(arrival);
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
            sample: self.lender.get().map_or(NO_SAMPLE, |lender| lender.offer()),
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
        setup.is_done = true;
        let socket = Arc::new(socket);
        let reach = if self.device.stages() {
            Err("it was switched off for a test".to_owned())
        } else {
            self.try_direct(&socket, &segment, hello)
        };
        Ok(Side::Other(Box::new(Other {
            segment,
            bell,
            socket,
            reach,
        })))
    }

    /// Finds out who the peer is and whether its memory can be reached in one copy.
    fn try_direct(
        &self,
        socket: &Arc<OwnedFd>,
        segment: &Segment,
        hello: &Hello,
    ) -> Result<Reach, String> {
        let life = Arc::new(Life::of(socket)?);
        if let Some(lender) = self.lender.get() {
            lender.meet(&life);
        }
        Reach::try_out(&life, segment, hello.from.channel, &hello.sample)
    }
}

impl Setup {
    pub(super) fn give_up(&mut self, fault: &Fault) {
        self.fault.get_or_insert_with(|| fault.clone());
        self.memory = None;
        self.arrivals.clear();
        self.outgoing = None;
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
