//! Control links between pairs of ranks, made when they are first asked for.
//!
//! Of a pair the lower rank connects and the higher one accepts. Links carry small messages of
//! the layers above, goodbyes, and the news that a rank has given up.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use hcomm_topo::{Family, InterfaceFilter};
use hcomm_transport::Interest;
use hcomm_types::{Deadline, Error, ErrorKind, Nanos, Rank, Result};

use crate::bootstrap::Roster;
use crate::calls::{self, Call};
use crate::codec::{Malformed, Reader, Writer};
use crate::dial::{self, Answer, Dial, Problem, Target};
use crate::door::{Door, Event};
use crate::endpoint::this_host;
use crate::frame::{Body, Frame, FrameType};
use crate::net::{Listener, listen_everywhere};
use crate::outside::Outside;
use crate::settings::Settings;
use crate::wire::{Purpose, Wire, WireError};

/// Longest message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = FrameType::Message.limit() - 2;
/// Bytes that may wait in one link to be written, and to be received by the layers above.
const MAX_QUEUED_BYTES: usize = 4 * MAX_MESSAGE_BYTES;
/// Mesh listeners are there before the roster is. When nobody listens for this long, that rank is
/// gone.
const NOBODY_PATIENCE: Duration = Duration::from_secs(1);
/// Kind of the messages that say which collective a rank is in. They are kept apart: only the latest
/// counts.
const CALL: u16 = 0xca11;
/// Kind of the messages that say whether a rank can read memory that others lend. They are kept apart,
/// too: they come when nobody asks.
const LENDS: u16 = 0x1e4d;
/// Such messages that are read in one go.
const MOST_CALLS: u32 = 64;
/// Longest text of an abort, in bytes.
const MAX_ABORT_TEXT: usize = 16 << 10;

/// Where a rank accepts links; made before start-up, so that its address can be told.
pub struct MeshListener {
    listener: Box<dyn Listener>,
    addresses: Vec<SocketAddr>,
}

impl MeshListener {
    /// Listens at all addresses of this host, at a port that the system chooses.
    ///
    /// The others are told the address that this rank's connection to the root comes from, and
    /// the best one of its interfaces; only the latter where `HCOMM_SOCKET_IFNAME` chooses one.
    ///
    /// # Errors
    /// The choice fits no interface, or the system gives no socket.
    pub fn bind(outside: &Outside, settings: &Settings) -> Result<Self> {
        let filter: InterfaceFilter = settings.socket_ifname().parse()?;
        let chosen = filter != InterfaceFilter::all();
        let host = this_host()?;
        match host.pick_interface(&filter, Family::PreferV4) {
            Ok(pick) => {
                tracing::debug!(why = pick.why, "an interface was picked");
                let usable = chosen || !pick.address.is_loopback();
                let picked = usable.then_some(pick.address);
                Self::listen(outside, !chosen, picked.as_slice())
            }
            Err(none) if chosen => Err(none.into()),
            // The connection to the root will show what leads out of here.
            Err(_) => Self::listen(outside, true, &[]),
        }
    }

    /// As [`bind`](Self::bind), with the choice made: `seen` to tell the address that the root
    /// sees, and then those of `reachable_at`.
    pub(crate) fn listen(outside: &Outside, seen: bool, reachable_at: &[IpAddr]) -> Result<Self> {
        let listener = listen_everywhere(&*outside.network)
            .map_err(|error| Error::system("listen for links of other ranks", error))?;
        let port = listener.local_addr().port();
        let seen = seen.then_some(IpAddr::from(Ipv4Addr::UNSPECIFIED));
        let addresses = seen
            .into_iter()
            .chain(reachable_at.iter().copied())
            .map(|ip| SocketAddr::new(ip, port))
            .collect();
        tracing::debug!(port, ?addresses, "the mesh listens");
        Ok(Self {
            listener,
            addresses,
        })
    }

    /// What the others are told; see [`Member::mesh`](crate::Member::mesh).
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl fmt::Debug for MeshListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeshListener")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// How a link is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Neither side has asked for it.
    NotAsked,
    /// On its way.
    Connecting,
    /// Messages flow.
    Up,
    /// The other side has said goodbye, or we have.
    Closed,
    /// The other side has given up and said so.
    Aborted {
        /// What kind of error it had.
        kind: ErrorKind,
        /// Whose fault it says it is.
        culprits: Vec<Rank>,
        /// Why.
        text: String,
    },
    /// The other side is gone without a word.
    Lost {
        /// What was seen.
        why: String,
    },
}

/// All control links of one rank of one communicator.
pub struct Mesh {
    outside: Outside,
    rank: Rank,
    roster: Roster,
    /// Until we close.
    door: Option<Door>,
    links: BTreeMap<Rank, Link>,
    /// That we give up, for links that open later.
    given_up: Option<Body>,
    /// Messages that were given to [`Mesh::send`] and taken.
    sent: u64,
}

struct Link {
    state: LinkState,
    connection: Connection,
    /// Messages that wait for the link to be up.
    early: Vec<Vec<u8>>,
    received: VecDeque<(u16, Vec<u8>)>,
    received_bytes: usize,
    /// The calls that the other side said it is in and was in before.
    calls: Vec<Call>,
    /// Whether the other side can read memory that others lend, once it has said so.
    lends: Option<bool>,
    /// Whether it carries the news that we give up.
    told: bool,
}

enum Connection {
    /// None yet, or none any more.
    None,
    Dialling(Box<Dial>),
    /// Our hello is out.
    Greeting(Box<Wire>),
    Open(Box<Wire>),
}

impl Mesh {
    /// The mesh of `rank`: no link yet.
    #[must_use]
    pub fn new(outside: Outside, listener: MeshListener, roster: &Roster, rank: Rank) -> Self {
        let door = Door::new(
            listener.listener,
            outside.clone(),
            *roster.key().as_bytes(),
            roster.session(),
            Purpose::Mesh,
            rank,
            roster.members().len(),
        );
        Self {
            outside,
            rank,
            roster: roster.clone(),
            door: Some(door),
            links: BTreeMap::new(),
            given_up: None,
            sent: 0,
        }
    }

    /// Asks for the link to `peer`, which has to ask too or to have asked. Asking again does
    /// nothing.
    ///
    /// # Errors
    /// There is no such peer, or this mesh is closed.
    pub fn request(&mut self, peer: Rank) -> Result<()> {
        if peer == self.rank || peer.0 >= self.roster.size() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "rank {} has no control link to rank {peer} of {}",
                    self.rank,
                    self.roster.size()
                ),
            ));
        }
        if self.door.is_none() {
            return Err(Error::new(
                ErrorKind::Closed,
                format!("the control links of rank {} are closed", self.rank),
            ));
        }
        if self.links.contains_key(&peer) {
            return Ok(());
        }
        let connection = if self.rank < peer {
            let call = dial::Call {
                target: Target::Fixed(self.roster.mesh_of(peer)),
                base: *self.roster.key().as_bytes(),
                session: Some(self.roster.session()),
                purpose: Purpose::Mesh,
                own: self.rank,
                peer,
            };
            Connection::Dialling(Box::new(Dial::new(self.outside.clone(), call)))
        } else {
            Connection::None
        };
        self.links
            .insert(peer, Link::new(LinkState::Connecting, connection));
        Ok(())
    }

    /// Moves everything on.
    ///
    /// # Errors
    /// Connections cannot be accepted. What happens to one link is told by its state.
    pub fn poll(&mut self, now: Nanos) -> Result<()> {
        let mut events = Vec::new();
        let polled = match &mut self.door {
            Some(door) => door.poll(now, &mut events),
            None => Ok(()),
        };
        for event in events {
            match event {
                Event::Proven(wire, frame) => self.admit(wire, &frame),
                Event::WrongKey { peer, claimed } => {
                    tracing::warn!(rank = %self.rank, %peer, claimed_rank = ?claimed, "a control link was refused: its key differs");
                }
            }
        }
        for (&peer, link) in &mut self.links {
            link.advance(self.rank, peer, now);
        }
        polled.map_err(|error| {
            Error::system("accept control links", error)
                .at_rank(self.rank)
                .hint("raise `ulimit -n` if descriptors have run out")
        })
    }

    /// Sends a message, or keeps it until the link is up; asks for the link if nobody has. A later
    /// [`poll`](Self::poll) sends what does not fit now.
    ///
    /// # Errors
    /// The link is closed or lost, the message is too long, or too much waits already.
    pub fn send(&mut self, peer: Rank, kind: u16, body: impl AsRef<[u8]>) -> Result<()> {
        let body = body.as_ref();
        self.request(peer)?;
        if body.len() > MAX_MESSAGE_BYTES {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "a control message of {} bytes; the limit is {MAX_MESSAGE_BYTES}",
                    body.len()
                ),
            ));
        }
        let mut writer = Writer::new();
        writer.u16(kind).raw(body);
        let message = writer.into_bytes();
        let Some(link) = self.links.get_mut(&peer) else {
            return Ok(());
        };
        match &link.state {
            LinkState::NotAsked | LinkState::Connecting | LinkState::Up => {}
            LinkState::Closed => return Err(gone(peer, "it has left the communicator")),
            LinkState::Aborted { text, .. } => {
                return Err(gone(peer, &format!("it has given up: {text}")));
            }
            LinkState::Lost { why } => return Err(gone(peer, why)),
        }
        let waiting = link.queued_bytes();
        if waiting + message.len() > MAX_QUEUED_BYTES {
            return Err(Error::new(
                ErrorKind::LimitReached,
                format!("rank {peer} has not taken {waiting} bytes of control messages; the limit is {MAX_QUEUED_BYTES}"),
            )
            .blame_rank(peer)
            .hint("look whether that rank is stopped or its host overloaded"));
        }
        match &mut link.connection {
            Connection::Open(wire) => {
                wire.send(FrameType::Message, message);
                // An error shows up again when the link is looked at.
                let _ = wire.flush();
            }
            _ => link.early.push(message),
        }
        self.sent += 1;
        Ok(())
    }

    /// Messages sent so far.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// The next message of `peer`. What came before a goodbye or a loss can still be received.
    pub fn receive(&mut self, peer: Rank) -> Option<(u16, Vec<u8>)> {
        let link = self.links.get_mut(&peer)?;
        let (kind, body) = link.received.pop_front()?;
        link.received_bytes -= body.len();
        Some((kind, body))
    }

    /// The first message of `peer` that waits to be received, if there is one: its kind.
    #[must_use]
    pub fn waiting(&self, peer: Rank) -> Option<u16> {
        self.links
            .get(&peer)?
            .received
            .front()
            .map(|&(kind, _)| kind)
    }

    /// Tells all peers with a link which call this rank is in, and which it was in before.
    pub fn tell_calls(&mut self, calls: &[Call]) {
        let mut writer = Writer::new();
        writer.u16(CALL).raw(&calls::encode(calls));
        let message: Body = writer.into_bytes().into();
        for link in self.links.values_mut() {
            // Also who has given up wants to know.
            if let Connection::Open(wire) = &mut link.connection {
                wire.send(FrameType::Message, message.clone());
                // An error shows up again when the link is looked at.
                let _ = wire.flush();
            }
        }
    }

    /// Tells these ranks whether this one can read memory that they lend.
    pub fn tell_lends(&mut self, can: bool, peers: &[Rank]) {
        for peer in peers {
            // An error shows up again when the link is looked at.
            let _ = self.send(*peer, LENDS, [u8::from(can)]);
        }
    }

    /// What a peer has said of that; `None` as long as it has said nothing.
    #[must_use]
    pub fn lends(&self, peer: Rank) -> Option<bool> {
        self.links.get(&peer)?.lends
    }

    /// What each linked peer said last of its calls.
    pub fn calls(&self) -> impl Iterator<Item = (Rank, &[Call])> {
        self.links
            .iter()
            .map(|(peer, link)| (*peer, &link.calls[..]))
    }

    /// The peers to which there is a link, whatever its state.
    pub fn linked(&self) -> impl Iterator<Item = Rank> {
        self.links.keys().copied()
    }

    /// How the link to `peer` is.
    #[must_use]
    pub fn state(&self, peer: Rank) -> &LinkState {
        self.links
            .get(&peer)
            .map_or(&LinkState::NotAsked, |link| &link.state)
    }

    /// What a link that is not up waits for, for the error of whoever waits for it.
    #[must_use]
    pub fn describe(&self, peer: Rank, now: Nanos) -> String {
        let Some(link) = self.links.get(&peer) else {
            return format!("nobody has asked for the control link to rank {peer}");
        };
        match (&link.state, &link.connection) {
            (LinkState::Connecting, Connection::Dialling(dial)) => format!(
                "rank {peer} has not answered at {}: {}; {} attempts",
                dial.target(),
                dial.describe(now),
                dial.tries()
            ),
            (LinkState::Connecting, Connection::None) => {
                format!("rank {peer} has not connected to rank {}", self.rank)
            }
            (LinkState::Connecting, _) => {
                format!("rank {peer} has not welcomed rank {}", self.rank)
            }
            (state, _) => format!("the control link to rank {peer} is {state:?}"),
        }
    }

    /// Tells all linked ranks that this one gives up, as far as that goes without waiting; links
    /// that are still on their way are told when they are up. Only the first call counts.
    pub fn abort(&mut self, kind: ErrorKind, culprits: &[Rank], text: &str) {
        let mut end = text.len().min(MAX_ABORT_TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut writer = Writer::new();
        let culprits = &culprits[..culprits.len().min(1024)];
        writer.u32(kind as u32);
        writer.length(culprits.len());
        for culprit in culprits {
            writer.u32(culprit.0);
        }
        writer.text(&text[..end]);
        self.given_up
            .get_or_insert_with(|| writer.into_bytes().into());
        self.tell();
    }

    /// Whether nothing is on its way: no link that was asked for is still to come up, and
    /// everything sent has left.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.links
            .values()
            .all(|link| link.state != LinkState::Connecting && link.queued_bytes() == 0)
    }

    fn tell(&mut self) {
        let Some(body) = &self.given_up else { return };
        for link in self.links.values_mut().filter(|link| !link.told) {
            if let Connection::Open(wire) = &mut link.connection {
                wire.send(FrameType::Abort, body.clone());
                let _ = wire.flush();
                link.told = true;
            }
        }
    }

    /// Says goodbye on all links, as far as that goes without waiting, and closes them and the
    /// listener. What had been received stays.
    pub fn close(&mut self) {
        self.door = None;
        for link in self.links.values_mut() {
            if let Connection::Open(wire) = &mut link.connection {
                wire.send(FrameType::Goodbye, Vec::new());
                let _ = wire.flush();
                // Bytes that nobody has read would turn the goodbye into a reset.
                wire.drain();
            }
            link.connection = Connection::None;
            if matches!(link.state, LinkState::Connecting | LinkState::Up) {
                link.state = LinkState::Closed;
            }
        }
    }

    /// The descriptors that may let it go on.
    pub fn interests<'a>(&'a self, wanted: &mut Vec<Interest<'a>>) {
        if let Some(door) = &self.door {
            door.interests(wanted);
        }
        for link in self.links.values() {
            match &link.connection {
                Connection::None => {}
                Connection::Dialling(dial) => dial.interests(wanted),
                Connection::Greeting(wire) => wanted.extend(wire.interest()),
                Connection::Open(wire) => {
                    let interest = wire.interest().map(|interest| Interest {
                        readable: !link.is_full(),
                        ..interest
                    });
                    wanted.extend(interest.filter(|i| i.readable || i.writable));
                }
            }
        }
    }

    /// When to look again at the latest, whatever the descriptors say.
    #[must_use]
    pub fn next_wake(&self) -> Deadline {
        let door = self.door.as_ref().map_or(Deadline::NEVER, Door::next_wake);
        self.links
            .values()
            .map(|link| match &link.connection {
                Connection::Dialling(dial) => dial.next_wake(),
                _ => Deadline::NEVER,
            })
            .fold(door, Deadline::earlier)
    }

    /// Lets a lower rank in.
    fn admit(&mut self, mut wire: Box<Wire>, frame: &Frame) {
        let Some(peer) = frame.rank.filter(|&peer| peer < self.rank) else {
            tracing::debug!(peer = %wire.peer(), claimed_rank = ?frame.rank, "a control link came from a rank that should wait for ours");
            return;
        };
        let link = self
            .links
            .entry(peer)
            .or_insert_with(|| Link::new(LinkState::Connecting, Connection::None));
        if link.state != LinkState::Connecting {
            tracing::debug!(%peer, at = %wire.peer(), "a second control link of one pair was dropped");
            return;
        }
        wire.send(FrameType::Welcome, Vec::new());
        link.open(wire);
    }
}

impl Link {
    fn new(state: LinkState, connection: Connection) -> Self {
        Self {
            state,
            connection,
            early: Vec::new(),
            received: VecDeque::new(),
            received_bytes: 0,
            calls: Vec::new(),
            lends: None,
            told: false,
        }
    }

    fn is_full(&self) -> bool {
        self.received_bytes >= MAX_QUEUED_BYTES
    }

    fn queued_bytes(&self) -> usize {
        let early: usize = self.early.iter().map(Vec::len).sum();
        match &self.connection {
            Connection::Open(wire) => early + wire.queued_bytes(),
            _ => early,
        }
    }

    fn open(&mut self, mut wire: Box<Wire>) {
        for message in self.early.drain(..) {
            wire.send(FrameType::Message, message);
        }
        self.connection = Connection::Open(wire);
        self.state = LinkState::Up;
    }

    fn advance(&mut self, own: Rank, peer: Rank, now: Nanos) {
        loop {
            match std::mem::replace(&mut self.connection, Connection::None) {
                Connection::None => return,
                Connection::Dialling(mut dial) => {
                    match dial.poll(now) {
                        Some(Answer::Challenged(mut wire)) => {
                            wire.send(FrameType::Hello, Vec::new());
                            self.connection = Connection::Greeting(Box::new(wire));
                            continue;
                        }
                        // Some addresses mean another host here than there, so another rank's or
                        // job's listener may have answered: the next one may be right.
                        Some(Answer::Refused(at, _) | Answer::OtherSession(at)) => {
                            dial.again(now, Problem::Elsewhere(at));
                        }
                        Some(Answer::OutOfDescriptors(error)) => {
                            let why =
                                format!("rank {own} cannot connect: {error}; raise `ulimit -n`");
                            return self.lose(own, peer, why);
                        }
                        None => {}
                    }
                    let gone = dial
                        .nobody_for(now)
                        .is_some_and(|time| time >= NOBODY_PATIENCE);
                    if gone {
                        let why = format!(
                            "nobody listens at {} any more, where rank {peer} accepted links",
                            dial.target()
                        );
                        return self.lose(own, peer, why);
                    }
                    self.connection = Connection::Dialling(dial);
                    return;
                }
                Connection::Greeting(mut wire) => {
                    match wire.flush().and_then(|()| wire.receive()) {
                        Ok(None) => {
                            self.connection = Connection::Greeting(wire);
                            return;
                        }
                        Ok(Some(frame)) if frame.kind == FrameType::Welcome => self.open(wire),
                        Ok(Some(frame)) => {
                            let why = format!("it answered a hello with {:?}", frame.kind);
                            return self.lose(own, peer, why);
                        }
                        Err(error) => return self.lose(own, peer, error.to_string()),
                    }
                }
                Connection::Open(mut wire) => {
                    return match self.exchange(&mut wire) {
                        Ok(true) => self.connection = Connection::Open(wire),
                        Ok(false) => {}
                        Err(error) => self.lose(own, peer, error.to_string()),
                    };
                }
            }
        }
    }

    /// Writes and reads; whether the connection stays.
    fn exchange(&mut self, wire: &mut Wire) -> Result<bool, WireError> {
        // What the other side has said is heard even if it cannot hear us any more.
        let flushed = wire.flush();
        // Calls are not kept, so nothing else bounds them.
        let mut calls = 0;
        while !self.is_full() && calls < MOST_CALLS {
            let Some(frame) = wire.receive()? else {
                flushed?;
                return Ok(true);
            };
            match frame.kind {
                FrameType::Message => {
                    let mut reader = Reader::new(&frame.body);
                    let kind = reader.u16("message")?;
                    if kind == CALL {
                        self.calls = calls::decode(&frame.body[2..])?;
                        calls += 1;
                        continue;
                    }
                    if kind == LENDS {
                        self.lends = Some(reader.u8("message")? == 1);
                        continue;
                    }
                    let body = frame.body[2..].to_vec();
                    self.received_bytes += body.len();
                    self.received.push_back((kind, body));
                }
                FrameType::Abort => {
                    self.state = read_abort(&frame.body)?;
                }
                FrameType::Goodbye => {
                    if self.state == LinkState::Up {
                        self.state = LinkState::Closed;
                    }
                    return Ok(false);
                }
                _ => return Err(Malformed("order of control frames").into()),
            }
        }
        Ok(true)
    }

    fn lose(&mut self, own: Rank, peer: Rank, why: String) {
        self.connection = Connection::None;
        if matches!(self.state, LinkState::Connecting | LinkState::Up) {
            tracing::debug!(rank = %own, %peer, why, "a control link was lost");
            self.state = LinkState::Lost { why };
        }
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states = self.links.iter().map(|(peer, link)| (peer.0, &link.state));
        f.debug_struct("Mesh")
            .field("rank", &self.rank)
            .field("session", &self.roster.session())
            .field("links", &states.collect::<BTreeMap<_, _>>())
            .finish_non_exhaustive()
    }
}

fn read_abort(body: &[u8]) -> Result<LinkState, Malformed> {
    let mut reader = Reader::new(body);
    let kind = reader.u32("abort")? as usize;
    let kind = ErrorKind::ALL
        .get(kind)
        .copied()
        .unwrap_or(ErrorKind::Aborted);
    let culprits = (0..reader.count(4, "abort")?)
        .map(|_| reader.u32("abort").map(Rank))
        .collect::<Result<_, _>>()?;
    let text = reader.text("abort")?.to_owned();
    reader.end("abort")?;
    Ok(LinkState::Aborted {
        kind,
        culprits,
        text,
    })
}

fn gone(peer: Rank, why: &str) -> Error {
    Error::new(
        ErrorKind::PeerLost,
        format!("rank {peer} takes no control messages any more: {why}"),
    )
    .blame_rank(peer)
    .hint(format!("look at the output of rank {peer}"))
}
