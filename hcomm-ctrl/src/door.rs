//! The listening side of a handshake: lets in who proves the key, and bounds what everybody else
//! can cost in connections, bytes and time.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hcomm_transport::Interest;
use hcomm_types::{Deadline, Nanos, Rank};

use crate::frame::{ConnectionKey, Frame, FrameError, FrameType, Side};
use crate::job_key::SessionId;
use crate::net::Listener;
use crate::outside::Outside;
use crate::wire::{Challenge, Knock, Purpose, Refusal, Wire, WireError};

/// Time from being accepted to a proven hello. Ample for a loaded host; a scanner that holds its
/// connection open costs one descriptor for this long.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections without proof beyond one for each expected rank.
const SPARE_STRANGERS: usize = 64;
/// Connections without proof at most, together with what their owner still needs of those that have
/// given theirs. All are looked at whenever one has news, so many would cost more than they bring;
/// the others wait where the system keeps them.
pub(crate) const MOST_CONNECTIONS: usize = 160;
/// A rank that connects among many is heard within this time. When there is no room, a connection
/// that is older makes some; until then the newer ones wait where the system keeps them.
const YOUNG: Duration = Duration::from_secs(1);
/// Bytes that all connections without proof may have sent together.
const MAX_STRANGER_BYTES: usize = 64 << 20;
/// Connections accepted in one look.
const ACCEPTS_PER_LOOK: usize = 256;

/// What both sides put into the key of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) base: &'a [u8; 32],
    pub(crate) session: SessionId,
    pub(crate) purpose: Purpose,
    pub(crate) client: Option<Rank>,
    pub(crate) server: Rank,
}

impl Terms<'_> {
    pub(crate) fn key(&self, client_nonce: [u8; 16], server_nonce: [u8; 16]) -> ConnectionKey {
        let mut purpose = vec![self.purpose.number()];
        purpose.extend(self.client.map_or(u32::MAX, |rank| rank.0).to_le_bytes());
        purpose.extend(self.server.0.to_le_bytes());
        ConnectionKey::derive(
            self.base,
            self.session,
            client_nonce,
            server_nonce,
            &purpose,
        )
    }
}

/// What happened at the door.
#[derive(Debug)]
pub(crate) enum Event {
    /// Somebody has proven the key; the frame is its hello.
    Proven(Box<Wire>, Frame),
    /// Somebody's hello has a MAC that does not fit.
    WrongKey {
        peer: SocketAddr,
        claimed: Option<Rank>,
    },
}

/// A listener and the connections that have not proven anything yet.
pub(crate) struct Door {
    listener: Box<dyn Listener>,
    outside: Outside,
    base: [u8; 32],
    session: SessionId,
    purpose: Purpose,
    rank: Rank,
    /// In the order in which they came.
    strangers: Vec<Stranger>,
    expected: usize,
    capacity: usize,
    /// There was no room at the last look, and none will be made before this moment.
    crowded_until: Option<Nanos>,
}

struct Stranger {
    wire: Wire,
    since: Nanos,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Connected.
    New,
    /// Has knocked and was challenged.
    Challenged,
    /// Was told why it may not come in; stays until it has read that.
    Refused,
}

/// What to do with a stranger after a look at it.
enum Step {
    Stay,
    Drop(String),
    Proven(Frame),
    WrongKey(Option<Rank>),
}

impl Door {
    pub(crate) fn new(
        listener: Box<dyn Listener>,
        outside: Outside,
        base: [u8; 32],
        session: SessionId,
        purpose: Purpose,
        rank: Rank,
        expected: usize,
    ) -> Self {
        Self {
            listener,
            outside,
            base,
            session,
            purpose,
            rank,
            strangers: Vec::new(),
            crowded_until: None,
            expected,
            capacity: (expected + SPARE_STRANGERS).min(MOST_CONNECTIONS),
        }
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Leaves room for this many connections that are not strangers any more.
    pub(crate) fn leave_room(&mut self, others: usize) {
        self.capacity = (self.expected + SPARE_STRANGERS)
            .min(MOST_CONNECTIONS.saturating_sub(others))
            .max(SPARE_STRANGERS);
    }

    /// Accepts, listens to the strangers, and tells what came of it.
    ///
    /// # Errors
    /// The listener itself is broken, or descriptors have run out.
    pub(crate) fn poll(&mut self, now: Nanos, events: &mut Vec<Event>) -> io::Result<()> {
        // Those who are in already do not suffer from what keeps others out.
        let accepted = self.accept(now);
        let mut index = 0;
        while index < self.strangers.len() {
            match self.step(index, now) {
                Step::Stay => index += 1,
                Step::Drop(reason) => {
                    let stranger = self.strangers.remove(index);
                    tracing::debug!(peer = %stranger.wire.peer(), reason, "a connection was dropped");
                }
                Step::Proven(frame) => {
                    let stranger = self.strangers.remove(index);
                    events.push(Event::Proven(Box::new(stranger.wire), frame));
                }
                Step::WrongKey(claimed) => {
                    let stranger = &mut self.strangers[index];
                    events.push(Event::WrongKey {
                        peer: stranger.wire.peer(),
                        claimed,
                    });
                    refuse(stranger, Refusal::WrongKey);
                    index += 1;
                }
            }
        }
        self.bound_bytes();
        if !self.is_full() {
            self.crowded_until = None;
        }
        accepted
    }

    pub(crate) fn interests<'a>(&'a self, wanted: &mut Vec<Interest<'a>>) {
        let listener = self.listener.fd().filter(|_| self.crowded_until.is_none());
        wanted.extend(listener.map(|fd| Interest {
            fd,
            readable: true,
            writable: false,
        }));
        wanted.extend(self.strangers.iter().filter_map(|s| s.wire.interest()));
    }

    pub(crate) fn next_wake(&self) -> Deadline {
        let oldest = self.strangers.first().map(|oldest| oldest.since + PATIENCE);
        let moments = oldest.into_iter().chain(self.crowded_until);
        moments.min().map_or(Deadline::NEVER, Deadline::at)
    }

    fn is_full(&self) -> bool {
        self.strangers.len() >= self.capacity
    }

    fn accept(&mut self, now: Nanos) -> io::Result<()> {
        for _ in 0..ACCEPTS_PER_LOOK {
            let room_at = self.strangers.first().map(|oldest| oldest.since + YOUNG);
            self.crowded_until = room_at.filter(|&at| self.is_full() && now < at);
            if self.crowded_until.is_some() {
                break;
            }
            let Some((stream, peer)) = self.listener.accept()? else {
                break;
            };
            if self.is_full() {
                // A rank proves itself within moments of connecting; the oldest is the least
                // likely to be one. If it is one after all, it tries again.
                let oldest = self.strangers.remove(0);
                tracing::debug!(peer = %oldest.wire.peer(), "a connection made room for newer ones");
            }
            self.strangers.push(Stranger {
                wire: Wire::new(stream, peer, Some(self.rank)),
                since: now,
                state: State::New,
            });
        }
        Ok(())
    }

    fn step(&mut self, index: usize, now: Nanos) -> Step {
        let stranger = &mut self.strangers[index];
        if Deadline::at(stranger.since + PATIENCE).passed(now) {
            return Step::Drop(format!("it proved nothing within {PATIENCE:?}"));
        }
        if let Err(error) = stranger.wire.flush() {
            return Step::Drop(error.to_string());
        }
        if stranger.state == State::Refused {
            return if stranger.wire.drain() {
                Step::Drop("it was refused and has left".to_owned())
            } else {
                Step::Stay
            };
        }
        loop {
            let frame = match stranger.wire.receive() {
                Ok(None) => return Step::Stay,
                Ok(Some(frame)) => frame,
                Err(WireError::Frame(FrameError::WrongMac { claimed })) => {
                    return Step::WrongKey(claimed);
                }
                Err(error) => return Step::Drop(error.to_string()),
            };
            match (stranger.state, frame.kind) {
                (State::New, FrameType::Knock) => {
                    let Ok(knock) = Knock::decode(&frame.body) else {
                        refuse(stranger, Refusal::Malformed);
                        return Step::Stay;
                    };
                    if knock.purpose != self.purpose {
                        refuse(stranger, Refusal::WrongPurpose);
                        return Step::Stay;
                    }
                    if knock.session.is_some_and(|wanted| wanted != self.session) {
                        refuse(stranger, Refusal::WrongSession);
                        return Step::Stay;
                    }
                    let challenge = Challenge {
                        nonce: self.outside.nonce(),
                        session: self.session,
                    };
                    let terms = Terms {
                        base: &self.base,
                        session: self.session,
                        purpose: self.purpose,
                        client: frame.rank,
                        server: self.rank,
                    };
                    stranger.wire.send(FrameType::Challenge, challenge.encode());
                    stranger
                        .wire
                        .secure(&terms.key(knock.nonce, challenge.nonce), Side::Server);
                    stranger.state = State::Challenged;
                    if let Err(error) = stranger.wire.flush() {
                        return Step::Drop(error.to_string());
                    }
                }
                (State::Challenged, FrameType::Hello) => return Step::Proven(frame),
                _ => {
                    refuse(stranger, Refusal::Malformed);
                    return Step::Stay;
                }
            }
        }
    }

    /// Drops the fattest strangers when all together hold too much.
    fn bound_bytes(&mut self) {
        let mut total: usize = self.strangers.iter().map(|s| s.wire.waiting_bytes()).sum();
        while total > MAX_STRANGER_BYTES {
            let fattest = (0..self.strangers.len())
                .max_by_key(|&index| self.strangers[index].wire.waiting_bytes());
            let Some(fattest) = fattest else { break };
            let dropped = self.strangers.remove(fattest);
            total -= dropped.wire.waiting_bytes();
        }
    }
}

fn refuse(stranger: &mut Stranger, reason: Refusal) {
    tracing::debug!(peer = %stranger.wire.peer(), ?reason, "a connection was refused");
    stranger.wire.send(FrameType::Refusal, reason.encode());
    stranger.state = State::Refused;
    // What does not fit goes out at a later look, or never: it is a courtesy.
    let _ = stranger.wire.flush();
}
