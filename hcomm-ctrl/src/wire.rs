//! One connection that carries frames: buffers in both directions, and the seals.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hcomm_transport::Interest;
use hcomm_types::Rank;

use crate::codec::{Malformed, Reader, Writer};
use crate::frame::{
    self, Body, ConnectionKey, Frame, FrameError, FrameType, PROTOCOL_VERSION, Seal, Side,
};
use crate::job_key::SessionId;
use crate::net::Stream;

/// Bytes that one look takes from one connection, so that a talkative one does not starve others.
const READ_BUDGET: usize = 1 << 20;
const READ_CHUNK: usize = 16 << 10;
/// Longer bodies are not copied: one roster goes to many ranks.
const SHARED_BODY_BYTES: usize = 16 << 10;

/// Why a connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("the connection was closed by the other side")]
    Ended,
    #[error("the connection broke: {0}")]
    Broke(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// A connection that carries frames.
pub(crate) struct Wire {
    stream: Box<dyn Stream>,
    peer: SocketAddr,
    /// Rank that our frames claim.
    rank: Option<Rank>,
    /// Protocol version that our frames claim.
    version: u16,
    seals: Option<(Seal, Seal)>,
    incoming: Vec<u8>,
    outgoing: VecDeque<Arc<[u8]>>,
    /// Bytes of the first outgoing piece that are written already.
    written: usize,
    queued_bytes: usize,
    ended: bool,
    reset: bool,
}

impl Wire {
    pub(crate) fn new(stream: Box<dyn Stream>, peer: SocketAddr, rank: Option<Rank>) -> Self {
        Self {
            stream,
            peer,
            rank,
            version: PROTOCOL_VERSION,
            seals: None,
            incoming: Vec::new(),
            outgoing: VecDeque::new(),
            written: 0,
            queued_bytes: 0,
            ended: false,
            reset: false,
        }
    }

    /// Speaks another protocol version.
    pub(crate) const fn set_version(&mut self, version: u16) {
        self.version = version;
    }

    pub(crate) const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Bytes that came and are not yet a frame.
    pub(crate) const fn waiting_bytes(&self) -> usize {
        self.incoming.len()
    }

    /// Bytes that are not yet written.
    pub(crate) const fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// From here on frames are sealed.
    pub(crate) fn secure(&mut self, key: &ConnectionKey, own_side: Side) {
        self.seals = Some((
            Seal::new(key.clone(), own_side),
            Seal::new(key.clone(), own_side.other()),
        ));
    }

    /// Whether connecting has succeeded by now.
    pub(crate) fn connected(&mut self) -> io::Result<bool> {
        self.stream.connected()
    }

    /// Queues a frame.
    pub(crate) fn send(&mut self, kind: FrameType, body: impl Into<Body>) {
        let body: Body = body.into();
        let seal = self.seals.as_mut().map(|(out, _)| out);
        let (header, mac) = frame::encode(self.version, kind, self.rank, &body, seal);
        let body = body.bytes;
        if body.len() <= SHARED_BODY_BYTES {
            // One piece, so that it travels in one packet.
            let mac = mac.as_ref().map_or(&[][..], |mac| mac);
            self.push([&header[..], &body, mac].concat().into());
        } else {
            self.push(Arc::from(&header[..]));
            self.push(body);
            if let Some(mac) = mac {
                self.push(Arc::from(&mac[..]));
            }
        }
    }

    /// Writes what fits.
    pub(crate) fn flush(&mut self) -> Result<(), WireError> {
        while let Some(piece) = self.outgoing.front() {
            match self.stream.write(&piece[self.written..])? {
                None => return Ok(()),
                Some(count) => {
                    self.written += count;
                    self.queued_bytes -= count;
                    if self.written == piece.len() {
                        self.outgoing.pop_front();
                        self.written = 0;
                    }
                }
            }
        }
        Ok(())
    }

    /// The next frame, if one has come. What came before an end is delivered before the end.
    pub(crate) fn receive(&mut self) -> Result<Option<Frame>, WireError> {
        let mut budget = READ_BUDGET;
        loop {
            let seal = self.seals.as_mut().map(|(_, back)| back);
            if let Some((frame, taken)) = frame::decode(&self.incoming, seal)? {
                self.incoming.drain(..taken);
                return Ok(Some(frame));
            }
            if self.ended {
                return Err(WireError::Ended);
            }
            if budget == 0 {
                return Ok(None);
            }
            let before = self.incoming.len();
            self.incoming.resize(before + READ_CHUNK, 0);
            let read = self.stream.read(&mut self.incoming[before..]);
            self.incoming
                .truncate(before + read.as_ref().ok().copied().flatten().unwrap_or(0));
            match read {
                Ok(None) => return Ok(None),
                Ok(Some(0)) => self.ended = true,
                Ok(Some(count)) => budget = budget.saturating_sub(count),
                // A reset is an end like any other.
                Err(error) if is_reset(&error) => {
                    self.ended = true;
                    self.reset = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether the end was none in good order: the other side may not have read what was sent.
    pub(crate) const fn was_reset(&self) -> bool {
        self.reset
    }

    /// Reads and drops whatever comes; whether the end has come.
    pub(crate) fn drain(&mut self) -> bool {
        let mut chunk = [0; 4096];
        for _ in 0..64 {
            match self.stream.read(&mut chunk) {
                Ok(None) => return false,
                Ok(Some(0)) | Err(_) => return true,
                Ok(Some(_)) => {}
            }
        }
        false
    }

    /// What a wait for this connection should watch.
    pub(crate) fn interest(&self) -> Option<Interest<'_>> {
        self.stream.fd().map(|fd| Interest {
            fd,
            readable: true,
            writable: !self.outgoing.is_empty(),
        })
    }

    /// What a wait for the end of connecting should watch.
    pub(crate) fn connecting_interest(&self) -> Option<Interest<'_>> {
        self.stream.fd().map(|fd| Interest {
            fd,
            readable: false,
            writable: true,
        })
    }

    fn push(&mut self, piece: Arc<[u8]>) {
        if !piece.is_empty() {
            self.queued_bytes += piece.len();
            self.outgoing.push_back(piece);
        }
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire")
            .field("peer", &self.peer)
            .field("sealed", &self.seals.is_some())
            .field("waiting_bytes", &self.incoming.len())
            .field("queued_bytes", &self.queued_bytes)
            .finish_non_exhaustive()
    }
}

fn is_reset(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

/// What a connection is for; said in the clear, so that a knock at the wrong door is told so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Bootstrap,
    Mesh,
    Tree,
}

impl Purpose {
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Bootstrap => 1,
            Self::Mesh => 2,
            Self::Tree => 3,
        }
    }

    const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Bootstrap),
            2 => Some(Self::Mesh),
            3 => Some(Self::Tree),
            _ => None,
        }
    }
}

/// Body of a knock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Knock {
    pub(crate) nonce: [u8; 16],
    pub(crate) purpose: Purpose,
    /// Session that the client wants, if it knows.
    pub(crate) session: Option<SessionId>,
}

impl Knock {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.raw(&self.nonce).u8(self.purpose.number());
        writer.u8(self.session.is_some().into());
        writer.raw(&self.session.map_or([0; 16], |session| session.0));
        writer.into_bytes()
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let nonce = reader.array("knock")?;
        let purpose = Purpose::from_number(reader.u8("knock")?).ok_or(Malformed("knock"))?;
        let has_session = reader.u8("knock")? != 0;
        let session = SessionId(reader.array("knock")?);
        Ok(Self {
            nonce,
            purpose,
            session: has_session.then_some(session),
        })
    }
}

/// Body of a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Challenge {
    pub(crate) nonce: [u8; 16],
    pub(crate) session: SessionId,
}

impl Challenge {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.raw(&self.nonce).raw(&self.session.0);
        writer.into_bytes()
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        Ok(Self {
            nonce: reader.array("challenge")?,
            session: SessionId(reader.array("challenge")?),
        })
    }
}

/// Body of a refusal: the only reason that an unproven client is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The MAC of its hello does not fit: the job keys differ.
    WrongKey,
    /// It wants another session than the one served here.
    WrongSession,
    /// It came to a listener with a knock that is for another one.
    WrongPurpose,
    /// It said something that was not expected.
    Malformed,
}

impl Refusal {
    pub(crate) fn encode(self) -> Vec<u8> {
        vec![match self {
            Self::WrongKey => 1,
            Self::WrongSession => 2,
            Self::WrongPurpose => 3,
            Self::Malformed => 4,
        }]
    }

    pub(crate) fn decode(body: &[u8]) -> Self {
        match body.first() {
            Some(1) => Self::WrongKey,
            Some(2) => Self::WrongSession,
            Some(3) => Self::WrongPurpose,
            _ => Self::Malformed,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bodies_go_both_ways(nonce: [u8; 16], session: [u8; 16], known: bool) {
            let session = SessionId(session);
            let knock = Knock { nonce, purpose: Purpose::Mesh, session: known.then_some(session) };
            prop_assert_eq!(Knock::decode(&knock.encode()), Ok(knock));
            let challenge = Challenge { nonce, session };
            prop_assert_eq!(Challenge::decode(&challenge.encode()), Ok(challenge));
        }

        #[test]
        fn random_bodies_never_panic(body in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = Knock::decode(&body);
            let _ = Challenge::decode(&body);
            let _ = Refusal::decode(&body);
        }
    }
}
