//! One end of a channel: what it holds, what state it is in, how it ends.

mod connect;

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};

use hcomm_transport_abi::{
    ChannelOptions, CompletionV1, Fault, LOG_INFO, STATUS_INVALID_ARGUMENT, STATUS_LINK_DOWN,
    STATUS_NOT_CONNECTED, STATUS_OK, STATUS_OUT_OF_BOUNDS, STATUS_PEER_LOST, STATUS_STALE_KEY,
};
use rustix::event::epoll;
use rustix::io::Errno;

use connect::Setup;
pub(crate) use connect::Verdict;

use crate::device::{DeviceCore, Open, lock, next_number, random};
use crate::inbound::{self, Around, Inbound, Turn};
use crate::line::Lines;
use crate::outbound::{self, Outbound, Word};
use crate::places::MAX_NOTIFIES;
use crate::region::Answer;
use crate::socket;
use crate::wire::{ChannelBlob, Frame, Identity, Kind, Token};

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
    own: ChannelBlob,
    pub(crate) lines: Lines,
    /// [`STATUS_OK`] once connected; otherwise what is wrong.
    state: AtomicI32,
    /// The cause of that, in words.
    why: OnceLock<String>,
    settled: AtomicBool,
    setup: Mutex<Setup>,
    link: OnceLock<Link>,
    /// Locked before `outbound`, if both are.
    inbound: Mutex<Inbound>,
    outbound: Mutex<Outbound>,
    /// What was last seen in `outbound`: whether there is anything to send, completions to poll.
    has_output: AtomicBool,
    completed: AtomicUsize,
    /// Whether room in the socket is watched for.
    watches_room: AtomicBool,
    /// The turn of the device in which something moved last.
    pub(crate) moved_in: AtomicU32,
}

/// The way to the peer.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: ChannelBlob,
    socket: OwnedFd,
    /// Both ends, for people.
    text: String,
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
        let own = ChannelBlob {
            identity: Identity {
                device: device.token,
                channel: next_number(),
            },
            secret: random()?,
            notifies: options.notifies,
            ip: device.address.ip(),
            port: device.address.port(),
        };
        let inner = Arc::new(ChannelInner {
            device: Arc::clone(device),
            own,
            lines: Lines::new(options.notifies),
            state: AtomicI32::new(STATUS_NOT_CONNECTED),
            why: OnceLock::new(),
            settled: AtomicBool::new(false),
            setup: Mutex::default(),
            link: OnceLock::new(),
            inbound: Mutex::new(Inbound::new()),
            outbound: Mutex::new(Outbound::new(options.queue_depth)),
            has_output: AtomicBool::new(false),
            completed: AtomicUsize::new(0),
            watches_room: AtomicBool::new(false),
            moved_in: AtomicU32::new(0),
        });
        device.add_channel(&inner);
        Ok(Self {
            inner,
            _open: Open::new(device),
        })
    }

    pub(crate) fn blob(&self) -> Vec<u8> {
        self.inner.own.encode()
    }

    /// Ends this side; the peer sees it by the end of the stream, behind what was sent before.
    pub(crate) fn destroy(&self) {
        let inner = &self.inner;
        inner.send_the_rest();
        inner.end(STATUS_NOT_CONNECTED);
        inner.device.remove_channel(inner.number());
        lock(&inner.setup).give_up(&inner.device);
        let mut inbound = lock(&inner.inbound);
        inbound.cut();
        if let Some(link) = inner.link.get() {
            // A connection that is closed with bytes unread is reset, and what is on its way is lost.
            inbound.drain(&link.socket);
        }
        drop(inbound);
        let mut outbound = lock(&inner.outbound);
        outbound.cut();
        inner.note(&outbound);
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl ChannelInner {
    pub(crate) const fn number(&self) -> u64 {
        self.own.identity.channel
    }

    pub(crate) const fn device(&self) -> &Arc<DeviceCore> {
        &self.device
    }

    /// The way to the peer while all is well, by what is known without a system call.
    pub(crate) fn usable(&self) -> Result<&Link, i32> {
        match self.state.load(Ordering::Acquire) {
            STATUS_OK => self.link.get().ok_or(STATUS_NOT_CONNECTED),
            status => Err(status),
        }
    }

    /// Sends what waits, as far as the socket takes it: who destroys a channel does not wait for the
    /// peer.
    fn send_the_rest(&self) {
        let Ok(link) = self.usable() else {
            return;
        };
        let mut outbound = lock(&self.outbound);
        while outbound.has_output() {
            match self.pump(link, &mut outbound, u64::MAX) {
                Pump::Went(pumped) if pumped.sent_bytes > 0 => {}
                Pump::Went(_) => {
                    let text = format!(
                        "tcp {}: the channel ends before all was sent, because the peer takes nothing; \
                         wait for a fence before",
                        link.text
                    );
                    self.device.host.log(LOG_INFO, &text);
                    return;
                }
                Pump::Failed(..) => return,
            }
        }
    }

    /// Whether it was ever connected.
    pub(crate) fn was_connected(&self) -> bool {
        self.link.get().is_some()
    }

    /// State of the channel, by asking the system.
    pub(crate) fn check(&self) -> Result<(), i32> {
        let link = self.usable()?;
        let state = match socket::has_ended(&link.socket) {
            Ok(false) => return Ok(()),
            Ok(true) => self.fail(STATUS_PEER_LOST, ENDED.to_owned()),
            Err(error) => self.fail_by(error),
        };
        Err(state)
    }

    /// Words for a state in which a slow call cannot go on.
    pub(crate) fn fault(&self, status: i32) -> Fault {
        Fault::new(status, self.describe())
    }

    /// How bytes move here, or why they do not.
    pub(crate) fn describe(&self) -> String {
        let Some(link) = self.link.get() else {
            return lock(&self.setup).describe(self);
        };
        match self.why.get() {
            Some(why) => format!("{}: {why}", link.text),
            None => format!(
                "{}, congestion control {}; long payloads are sent from where they lie and received \
                 to where they belong",
                link.text,
                socket::congestion(&link.socket)
            ),
        }
    }

    /// Sends what the socket takes; see [`Outbound::pump`].
    pub(crate) fn pump(&self, link: &Link, outbound: &mut Outbound, inline_from: u64) -> Pump {
        let (pumped, went) = outbound.pump(&link.socket, inline_from);
        self.note(outbound);
        match went {
            Ok(()) => Pump::Went(pumped),
            Err(failure) => Pump::Failed(failure, pumped),
        }
    }

    /// Tells the device what is to be done with an outbound half that was changed.
    fn note(&self, outbound: &Outbound) {
        let has_output = outbound.has_output();
        if self.has_output.swap(has_output, Ordering::AcqRel) != has_output {
            let with_output = &self.device.with_output;
            if has_output {
                with_output.fetch_add(1, Ordering::AcqRel);
            } else {
                with_output.fetch_sub(1, Ordering::AcqRel);
            }
        }
        let now = outbound.completed();
        let before = self.completed.swap(now, Ordering::AcqRel);
        let all = &self.device.completed;
        if now >= before {
            all.fetch_add(now - before, Ordering::AcqRel);
        } else {
            all.fetch_sub(before - now, Ordering::AcqRel);
        }
    }

    /// Whether there is anything to send.
    pub(crate) fn has_output(&self) -> bool {
        self.has_output.load(Ordering::Acquire)
    }

    /// The half that sends, for `post` and `flush`.
    pub(crate) const fn outbound(&self) -> &Mutex<Outbound> {
        &self.outbound
    }

    /// What arrivals touch beside the half that receives.
    fn around(&self) -> Around<'_> {
        Around {
            device: &self.device,
            lines: &self.lines,
            outbound: &self.outbound,
        }
    }

    /// Takes what has arrived, if asked to, and sends what waits.
    pub(crate) fn progress(&self, arrivals: bool) -> Turn {
        let Ok(link) = self.usable() else {
            return Turn::default();
        };
        let mut turn = Turn::default();
        if arrivals {
            let around = self.around();
            let mut inbound = lock(&self.inbound);
            // What ended meanwhile has cut it: the rest of a payload is no frame.
            if self.usable().is_err() {
                return turn;
            }
            let taken = inbound.turn(&link.socket, &around);
            drop(inbound);
            match taken {
                Ok(found) => turn = found,
                Err(failure) => {
                    self.fail_inbound(link, failure);
                    turn.rings = true;
                }
            }
            if turn.ended {
                self.fail(STATUS_PEER_LOST, ENDED.to_owned());
                turn.rings = true;
            }
        }
        if turn.answers || self.has_output() {
            let mut outbound = lock(&self.outbound);
            if self.usable().is_ok() && outbound.has_output() {
                match self.pump(link, &mut outbound, u64::MAX) {
                    Pump::Went(pumped) => {
                        turn.moved |= pumped.sent_bytes > 0;
                        turn.rings |= pumped.completed > 0;
                    }
                    Pump::Failed(failure, _) => {
                        drop(outbound);
                        self.fail_outbound(link, failure);
                        turn.rings = true;
                    }
                }
            } else {
                self.note(&outbound);
            }
        }
        turn.moved |= turn.rings;
        turn
    }

    /// Hands out completions.
    pub(crate) fn completions(&self, out: &mut [CompletionV1]) -> usize {
        if self.completed.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut outbound = lock(&self.outbound);
        let mut found = 0;
        for place in out {
            let Some(completion) = outbound.next_completion() else {
                break;
            };
            *place = completion;
            found += 1;
        }
        self.note(&outbound);
        found
    }

    /// Has the device's descriptor tell of room in the socket, if and only if that is waited for.
    pub(crate) fn watch_for_room(&self) {
        let Ok(link) = self.usable() else {
            return;
        };
        let wants =
            self.has_output.load(Ordering::Acquire) && lock(&self.outbound).waits_for_socket();
        if self.watches_room.swap(wants, Ordering::AcqRel) != wants {
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, wants);
            self.device.watch_for(&link.socket, self.number(), flags);
        }
    }

    /// Asks the peer for a region.
    pub(crate) fn ask_for_region(&self, number: u64, key: Token, answer: &Arc<Answer>) {
        self.say_by(|outbound| outbound.ask(number, key, answer));
    }

    /// Tells the peer that a region is not needed any more.
    pub(crate) fn give_back(&self, handle: u64) {
        let mut frame = Frame::new(Kind::Release);
        frame.handle = handle;
        self.say_by(|outbound| outbound.say(Word::Frame(frame)));
    }

    fn say_by(&self, say: impl FnOnce(&mut Outbound)) {
        let Ok(link) = self.usable() else {
            return;
        };
        self.device
            .tally
            .control_messages
            .fetch_add(1, Ordering::Relaxed);
        let mut outbound = lock(&self.outbound);
        say(&mut outbound);
        if let Pump::Failed(failure, _) = self.pump(link, &mut outbound, u64::MAX) {
            drop(outbound);
            self.fail_outbound(link, failure);
        }
    }

    fn fail_inbound(&self, link: &Link, failure: inbound::Failure) -> i32 {
        match failure {
            inbound::Failure::Socket(error) => self.fail_by(error),
            inbound::Failure::Refused(status) => self.refuse(link, status),
            inbound::Failure::Told(status) => self.fail(
                STATUS_LINK_DOWN,
                format!("the peer has ended the channel: {}", refusal(status)),
            ),
            inbound::Failure::Broken(what) => {
                self.fail(STATUS_LINK_DOWN, format!("the peer sent {what}"))
            }
        }
    }

    pub(crate) fn fail_outbound(&self, link: &Link, failure: outbound::Failure) -> i32 {
        match failure {
            outbound::Failure::Socket(error) => {
                self.take_what_is_there(link);
                self.fail_by(error)
            }
            outbound::Failure::Refused(status) => self.refuse(link, status),
        }
    }

    /// Takes what the peer had sent before it went: it may be all that is waited for.
    fn take_what_is_there(&self, link: &Link) {
        const MOST_TURNS: u32 = 1024;
        let around = self.around();
        for _ in 0..MOST_TURNS {
            let mut inbound = lock(&self.inbound);
            if self.usable().is_err() {
                break;
            }
            match inbound.turn(&link.socket, &around) {
                Ok(turn) if turn.moved && !turn.ended => {}
                _ => break,
            }
        }
    }

    /// Ends the channel because of what the peer asked for, and tells it.
    fn refuse(&self, link: &Link, status: i32) -> i32 {
        let mut outbound = lock(&self.outbound);
        // If there is no room for it, the peer learns only that the channel has ended.
        outbound.cut_to(Frame::new(Kind::Refused).with_status(status));
        let _ = outbound.pump(&link.socket, u64::MAX);
        drop(outbound);
        self.fail(
            STATUS_LINK_DOWN,
            format!(
                "this side has ended the channel: the peer's {}",
                refusal(status)
            ),
        )
    }

    /// Ends the channel because the socket does not work.
    pub(crate) fn fail_by(&self, error: Errno) -> i32 {
        let status = match error {
            Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED => STATUS_PEER_LOST,
            _ => STATUS_LINK_DOWN,
        };
        let text = match error {
            Errno::TIMEDOUT => format!("the peer's host does not answer any more ({error})"),
            _ => error.to_string(),
        };
        self.fail(status, text)
    }

    /// Ends the channel. The first cause stays, and its status is returned.
    fn fail(&self, status: i32, why: String) -> i32 {
        if !self.end(status) {
            return self.state.load(Ordering::Acquire);
        }
        let _ = self.why.set(why);
        self.device
            .host
            .log(LOG_INFO, &format!("tcp {}", self.describe()));
        // From here on nothing is placed; only then the completions may say so.
        lock(&self.inbound).cut();
        let mut outbound = lock(&self.outbound);
        outbound.fail_all(status);
        self.note(&outbound);
        drop(outbound);
        self.device.host.ring();
        status
    }

    /// The first end stays; whether this was it. The peer sees it.
    fn end(&self, status: i32) -> bool {
        let before = [STATUS_OK, STATUS_NOT_CONNECTED];
        let is_first = before.into_iter().any(|state| {
            let changed =
                self.state
                    .compare_exchange(state, status, Ordering::AcqRel, Ordering::Acquire);
            changed.is_ok() && state != status
        });
        self.settle();
        if let Some(link) = self.link.get() {
            self.device.unwatch(&link.socket);
            // Fails only if the peer was faster.
            let _ = rustix::net::shutdown(&link.socket, rustix::net::Shutdown::Both);
        }
        is_first
    }

    /// The two ends know each other.
    fn establish(&self, peer: ChannelBlob, socket: OwnedFd) -> Result<(), Errno> {
        let far = self.device.place.at(peer.ip, peer.port);
        let text = format!("{} to {}", socket::local(&socket), remote(&socket, far));
        self.device
            .watch(&socket, self.number(), epoll::EventFlags::IN)?;
        let link = Link { peer, socket, text };
        // It is made once, under the lock of the set-up.
        if self.link.set(link).is_ok() {
            let _ = self.state.compare_exchange(
                STATUS_NOT_CONNECTED,
                STATUS_OK,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            self.settle();
        }
        Ok(())
    }

    /// Says bytes that nobody of this code would say.
    #[cfg(test)]
    pub(crate) fn say_raw(&self, bytes: &[u8]) {
        // The peer may have closed the connection already.
        let _ = socket::send_all(&self.link.get().unwrap().socket, bytes);
    }

    /// Whether answers to the peer are on their way.
    #[cfg(test)]
    pub(crate) fn has_answers(&self) -> bool {
        lock(&self.outbound).has_output()
    }

    /// It is connected, or never will be.
    fn settle(&self) {
        if !self.settled.swap(true, Ordering::AcqRel) {
            self.device.unconnected.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// What [`ChannelInner::pump`] came to.
pub(crate) enum Pump {
    Went(outbound::Pumped),
    /// And what went before.
    Failed(outbound::Failure, outbound::Pumped),
}

const ENDED: &str = "the peer has closed the connection";

fn remote(socket: &OwnedFd, otherwise: SocketAddr) -> SocketAddr {
    rustix::net::getpeername(socket)
        .ok()
        .flatten()
        .and_then(|address| SocketAddr::try_from(address).ok())
        .unwrap_or(otherwise)
}

/// What a refusal was about.
fn refusal(status: i32) -> String {
    match status {
        STATUS_STALE_KEY => "transfer named a region that is deregistered (a stale key)".to_owned(),
        STATUS_OUT_OF_BOUNDS => "transfer went beyond its region or its notifies".to_owned(),
        STATUS_INVALID_ARGUMENT => "transfer made no sense".to_owned(),
        status => format!("transfer was refused with status {status}"),
    }
}
