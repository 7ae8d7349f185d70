//! How two ends come together: one dials, the other lets in, each proves that it has both blobs.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use hcomm_transport_abi::{
    Connect, Fault, STATUS_LINK_DOWN, STATUS_NOT_CONNECTED, STATUS_OK, STATUS_PEER_LOST,
    STATUS_REFUSED,
};
use rustix::event::epoll;
use rustix::io::Errno;

use super::{Channel, ChannelInner};
use crate::device::{DOOR, DeviceCore, lock, random, status_of};
use crate::proof::{Key, Turn};
use crate::socket::{self, Incoming};
use crate::wire::{ChannelBlob, Hello, Nonce, WELCOME_BYTES};

/// How long to wait before dialling again, at first and at most.
const FIRST_PAUSE_NS: u64 = 5_000_000;
const LONGEST_PAUSE_NS: u64 = 1_000_000_000;

/// How far an end has come.
#[derive(Debug, Default)]
pub(crate) struct Setup {
    /// The end that it was told to connect with.
    peer: Option<ChannelBlob>,
    stage: Stage,
    /// How long to wait after the next connection that is closed without a word.
    pause_ns: u64,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Idle,
    /// Somebody closed the connection; until then it is not dialled again.
    Pausing(u64),
    /// The system connects.
    Dialling(OwnedFd),
    /// The peer has our first words.
    Greeted(OwnedFd, Nonce, Incoming<WELCOME_BYTES>),
    /// The peer has dialled and has our answer: both nonces.
    Answered(OwnedFd, Nonce, Nonce, Incoming<32>),
    Done,
}

/// What an end thinks of a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It comes from the end that this one is to connect with.
    Expected,
    /// Nobody has said with whom to connect.
    NotYet,
    /// Somebody else, or connected already.
    Wrong,
}

impl Channel {
    /// Moves the connection on.
    pub(crate) fn connect(&self, blob: &[u8]) -> Result<Connect, Fault> {
        let inner = &self.inner;
        let peer = ChannelBlob::decode(blob)?;
        {
            let mut setup = lock(&inner.setup);
            match &setup.peer {
                None => inner.check_peer(&peer)?,
                Some(known) if *known == peer => {}
                Some(_) => {
                    return Err(Fault::invalid("this end connects to another one already"));
                }
            }
            setup.peer.get_or_insert_with(|| peer.clone());
        }
        let state = || inner.state.load(core::sync::atomic::Ordering::Acquire);
        if !inner.was_connected() && state() == STATUS_NOT_CONNECTED {
            inner.device.look_at_door();
            let mut setup = lock(&inner.setup);
            let advanced = setup.advance(inner, &peer);
            if let Err(fault) = advanced {
                setup.give_up(&inner.device);
                drop(setup);
                inner.end(fault.status);
                let _ = inner.why.set(fault.text.clone());
                return Err(fault);
            }
        }
        match state() {
            STATUS_OK => Ok(Connect::Connected),
            STATUS_NOT_CONNECTED => Ok(Connect::InProgress),
            status => Err(inner.fault(status)),
        }
    }
}

impl ChannelInner {
    fn check_peer(&self, peer: &ChannelBlob) -> Result<(), Fault> {
        if peer.identity == self.own.identity {
            return Err(Fault::invalid("an end does not connect to itself"));
        }
        if peer.ip.is_ipv4() != self.own.ip.is_ipv4() {
            return Err(Fault::invalid(format!(
                "{} and {} are addresses of different kinds",
                self.own.ip, peer.ip
            )));
        }
        Ok(())
    }

    fn dials(&self, peer: &ChannelBlob) -> bool {
        self.own.identity < peer.identity
    }

    fn key(&self, peer: &ChannelBlob) -> Key {
        if self.dials(peer) {
            Key::of(&self.own, peer)
        } else {
            Key::of(peer, &self.own)
        }
    }

    fn address_of(&self, peer: &ChannelBlob) -> SocketAddr {
        self.device.place.at(peer.ip, peer.port)
    }

    /// Whether somebody who has knocked may come in.
    pub(crate) fn judge(&self, hello: &Hello) -> Verdict {
        let setup = lock(&self.setup);
        let Some(peer) = &setup.peer else {
            return Verdict::NotYet;
        };
        let fits = hello.from == peer.identity
            && hello.to == self.own.identity
            && !self.dials(peer)
            && !matches!(setup.stage, Stage::Done);
        let proven = || {
            let key = self.key(peer);
            key.accepts(Turn::Hello, &hello.nonce, &[0; 16], &hello.proof)
        };
        if fits && proven() {
            Verdict::Expected
        } else {
            Verdict::Wrong
        }
    }

    /// Lets in who was judged to be expected.
    pub(crate) fn let_in(&self, socket: OwnedFd, hello: &Hello) {
        let mut setup = lock(&self.setup);
        let Some(peer) = setup.peer.clone() else {
            return;
        };
        let Ok(nonce) = random() else {
            return; // it dials again
        };
        let proof = self.key(&peer).prove(Turn::Welcome, &hello.nonce, &nonce);
        let mut welcome = [0; WELCOME_BYTES];
        welcome[..16].copy_from_slice(&nonce);
        welcome[16..].copy_from_slice(&proof);
        if socket::send_all(&socket, &welcome).is_err() {
            return;
        }
        // One that cannot be watched is looked at whenever `connect` is called.
        let _ = self.device.watch(&socket, DOOR, epoll::EventFlags::IN);
        setup.stage = Stage::Answered(socket, hello.nonce, nonce, Incoming::new());
    }
}

impl Setup {
    /// Moves on as far as it goes.
    fn advance(&mut self, end: &ChannelInner, peer: &ChannelBlob) -> Result<(), Fault> {
        loop {
            let before = core::mem::take(&mut self.stage);
            let (next, again) = self.step(before, end, peer)?;
            self.stage = next;
            if !again {
                return Ok(());
            }
        }
    }

    /// One step: the next stage, and whether to go on at once.
    fn step(
        &mut self,
        stage: Stage,
        end: &ChannelInner,
        peer: &ChannelBlob,
    ) -> Result<(Stage, bool), Fault> {
        let device = &end.device;
        let to = end.address_of(peer);
        match stage {
            Stage::Idle if !end.dials(peer) => Ok((Stage::Idle, false)),
            Stage::Idle => {
                let from = device.place.at(device.place.ip(), 0);
                let dialled = socket::dial(&from, &to);
                let socket = dialled.map_err(|error| unreachable(error, end, peer))?;
                // One that cannot be watched is looked at whenever `connect` is called.
                let _ = device.watch(&socket, DOOR, epoll::EventFlags::OUT);
                Ok((Stage::Dialling(socket), true))
            }
            Stage::Pausing(until_ns) => {
                let is_over = device.host.now_ns() >= until_ns;
                let next = if is_over { Stage::Idle } else { stage };
                Ok((next, is_over))
            }
            Stage::Dialling(socket) => {
                let connected = socket::is_connected(&socket, &to);
                if !connected.map_err(|error| unreachable(error, end, peer))? {
                    return Ok((Stage::Dialling(socket), false));
                }
                device.watch_for(&socket, DOOR, epoll::EventFlags::IN);
                let nonce = random()?;
                let hello = Hello {
                    from: end.own.identity,
                    to: peer.identity,
                    nonce,
                    proof: end.key(peer).prove(Turn::Hello, &nonce, &[0; 16]),
                };
                match socket::send_all(&socket, &hello.encode()) {
                    Ok(()) => Ok((Stage::Greeted(socket, nonce, Incoming::new()), true)),
                    Err(_) => Ok((self.pause(device), false)),
                }
            }
            Stage::Greeted(socket, nonce, mut incoming) => {
                let welcome = match incoming.receive(&socket) {
                    Ok(Some(welcome)) => *welcome,
                    Ok(None) => return Ok((Stage::Greeted(socket, nonce, incoming), false)),
                    // Its side had too many at the door, or knows of no such end.
                    Err(_) => return Ok((self.pause(device), false)),
                };
                let (theirs, proof) = halves(&welcome);
                let key = end.key(peer);
                if !key.accepts(Turn::Welcome, &nonce, &theirs, &proof) {
                    return Err(stranger(&to));
                }
                let confirm = key.prove(Turn::Confirm, &nonce, &theirs);
                device.unwatch(&socket);
                socket::send_all(&socket, &confirm)
                    .and_then(|()| end.establish(peer.clone(), socket))
                    .map_err(|error| lost(error, &to))?;
                Ok((Stage::Done, false))
            }
            Stage::Answered(socket, theirs, nonce, mut incoming) => {
                let proof = match incoming.receive(&socket) {
                    Ok(Some(proof)) => *proof,
                    Ok(None) => {
                        return Ok((Stage::Answered(socket, theirs, nonce, incoming), false));
                    }
                    // It dials again, or is gone; its control link tells which.
                    Err(_) => return Ok((Stage::Idle, false)),
                };
                if !end
                    .key(peer)
                    .accepts(Turn::Confirm, &theirs, &nonce, &proof)
                {
                    return Ok((Stage::Idle, false));
                }
                device.unwatch(&socket);
                end.establish(peer.clone(), socket)
                    .map_err(|error| lost(error, &to))?;
                Ok((Stage::Done, false))
            }
            Stage::Done => Ok((Stage::Done, false)),
        }
    }

    fn pause(&mut self, device: &DeviceCore) -> Stage {
        let pause_ns = self.pause_ns.clamp(FIRST_PAUSE_NS, LONGEST_PAUSE_NS);
        self.pause_ns = pause_ns * 2;
        Stage::Pausing(device.host.now_ns().saturating_add(pause_ns))
    }

    /// The end is destroyed, or has failed.
    pub(crate) fn give_up(&mut self, device: &DeviceCore) {
        if let Stage::Dialling(socket) | Stage::Greeted(socket, ..) | Stage::Answered(socket, ..) =
            core::mem::replace(&mut self.stage, Stage::Done)
        {
            device.unwatch(&socket);
        }
    }

    /// How far it is, for people.
    pub(crate) fn describe(&self, end: &ChannelInner) -> String {
        let Some(peer) = &self.peer else {
            return format!("listens at {}, not connected", end.device.address);
        };
        let (here, there) = (end.device.address, end.address_of(peer));
        match &self.stage {
            _ if end.why.get().is_some() => end.why.get().cloned().unwrap_or_default(),
            Stage::Idle if !end.dials(peer) => {
                format!("listens at {here} for the end at {there}, which has not come")
            }
            Stage::Idle | Stage::Dialling(_) => format!(
                "dials {there} from {}, which does not answer: does a firewall drop packets?",
                here.ip()
            ),
            Stage::Pausing(_) => {
                format!("{there} has closed the connection; it is dialled again shortly")
            }
            Stage::Greeted(..) => {
                format!("has connected to {there}, which has not answered the greeting")
            }
            Stage::Answered(..) => format!("has been greeted by {there} at {here}"),
            Stage::Done => format!("{here} to {there} has ended"),
        }
    }
}

/// A nonce and a proof.
fn halves(welcome: &[u8; WELCOME_BYTES]) -> (Nonce, [u8; 32]) {
    let (mut nonce, mut proof) = ([0; 16], [0; 32]);
    nonce.copy_from_slice(&welcome[..16]);
    proof.copy_from_slice(&welcome[16..]);
    (nonce, proof)
}

fn stranger(to: &SocketAddr) -> Fault {
    Fault::new(
        STATUS_REFUSED,
        format!("who listens at {to} does not know the secrets of this channel"),
    )
}

fn lost(error: Errno, to: &SocketAddr) -> Fault {
    Fault::new(
        STATUS_LINK_DOWN,
        format!("the connection to {to}, just made: {error}"),
    )
}

/// Why dialling has failed, and what to do.
fn unreachable(error: Errno, end: &ChannelInner, peer: &ChannelBlob) -> Fault {
    let (from, to) = (end.device.place.ip(), end.address_of(peer));
    let (status, next) = match error {
        Errno::CONNREFUSED => (
            STATUS_PEER_LOST,
            "nobody listens there: the peer's process has ended, or a firewall rejects connections",
        ),
        Errno::NETUNREACH | Errno::HOSTUNREACH => (
            STATUS_LINK_DOWN,
            "there is no way from the one address to the other: see `ip route get`, or choose \
             interfaces that reach each other with HCOMM_SOCKET_IFNAME",
        ),
        Errno::TIMEDOUT => (
            STATUS_LINK_DOWN,
            "it does not answer: a firewall drops packets, or its host is down; choose other \
             interfaces with HCOMM_SOCKET_IFNAME",
        ),
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => (status_of(error), "raise `ulimit -n`"),
        _ => (STATUS_LINK_DOWN, "see `ip address` on both hosts"),
    };
    Fault::new(
        status,
        format!("dialling {to} from {from}: {error}; {next}"),
    )
}
