//! Frames of the control plane: what every message between ranks looks like.
//!
//! ```text
//!  0  magic            4 bytes, "HCMC"
//!  4  protocol version u16
//!  6  type             u16
//!  8  claimed rank     u32, u32::MAX if it has none yet
//! 12  length of body   u32
//! 16  body
//!  …  MAC              32 bytes, on sealed types only
//! ```
//!
//! Numbers are little-endian. This layout, and the bodies of [`FrameType::Knock`],
//! [`FrameType::Challenge`] and [`FrameType::Refusal`], are the same in every protocol version, so
//! that two versions can tell each other apart.
//!
//! A connection begins with two plain frames in which each side gives a fresh nonce. Everything
//! after that carries an HMAC-SHA256 under a key made from the job key, the purpose and both
//! nonces, over the direction, a counter, the header and the SHA-256 of the body: no frame can be
//! replayed, reordered, or sent back to its author. The detour over a digest lets a root hash the
//! part of the roster once, and not once for each rank it goes to.

use std::sync::Arc;

use hcomm_types::Rank;
use sha2::{Digest, Sha256};

use crate::job_key::{SessionId, authenticate};

pub(crate) const MAGIC: [u8; 4] = *b"HCMC";
/// Version of the frames and of what is said in them.
pub const PROTOCOL_VERSION: u16 = 2;
pub(crate) const HEADER_BYTES: usize = 16;
pub(crate) const MAC_BYTES: usize = 32;
const NO_RANK: u32 = u32::MAX;

/// Declares the types with their numbers on the wire and the largest body of each.
macro_rules! frame_types {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $limit:expr;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum FrameType { $($(#[$doc])* $name,)* }

        impl FrameType {
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];

            pub(crate) const fn number(self) -> u16 {
                match self { $(Self::$name => $number,)* }
            }

            pub(crate) const fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// Longest body that is accepted, in bytes.
            pub(crate) const fn limit(self) -> usize {
                match self { $(Self::$name => $limit,)* }
            }
        }
    };
}

frame_types! {
    /// Plain, client to server: nonce and purpose.
    Knock = 1, 64;
    /// Plain, server to client: nonce and session.
    Challenge = 2, 64;
    /// Plain, server to client: why it hangs up.
    Refusal = 3, 1024;
    /// Client to server: who it is. The first sealed frame.
    Hello = 16, 512 << 10;
    /// Down the tree: who is still missing.
    Progress = 17, 1 << 20;
    /// Down the tree: what some of the ranks have said about themselves.
    Roster = 18, 1 << 30;
    /// Up the tree: who has the whole list of ranks.
    Ack = 19, (8 << 20) + 4;
    /// Down the tree: everybody has it.
    Done = 20, 0;
    /// Down the tree: start-up has failed, and why.
    Failure = 21, 64 << 10;
    /// Up the tree: whose deadline has passed; it waits to hear what everybody hears.
    Overdue = 22, 4;
    /// Root to a rank: where its place in the tree is.
    Place = 23, 4096;
    /// Up the tree: a rank was lost or cannot go on, and why.
    Trouble = 24, 64 << 10;
    /// Up the tree: this rank goes elsewhere, which is no loss.
    Leave = 25, 0;
    /// Mesh and tree, server to client: the link is up.
    Welcome = 32, 0;
    /// Mesh: a message for the layers above.
    Message = 33, (64 << 20) + 2;
    /// Mesh: orderly end, nothing follows.
    Goodbye = 34, 0;
    /// Mesh: the communicator is dead, and whose fault it is.
    Abort = 35, 64 << 10;
}

impl FrameType {
    /// Whether frames of this type carry a MAC.
    pub(crate) const fn is_sealed(self) -> bool {
        self.number() >= 16
    }
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Protocol version of the sender.
    pub(crate) version: u16,
    pub(crate) kind: FrameType,
    /// Rank that the sender claims.
    pub(crate) rank: Option<Rank>,
    pub(crate) body: Vec<u8>,
    /// SHA-256 of the body of a sealed frame.
    digest: [u8; 32],
}

impl Frame {
    pub(crate) const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The body of a sealed frame, on its way to others: it is not hashed again.
    pub(crate) fn into_body(self) -> Body {
        Body {
            bytes: self.body.into(),
            digest: self.digest,
        }
    }
}

/// A body on its way out, with its digest. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub(crate) bytes: Arc<[u8]>,
    digest: [u8; 32],
}

impl Body {
    /// SHA-256 of it.
    pub(crate) const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        let digest = Sha256::digest(&bytes).into();
        Self {
            bytes: bytes.into(),
            digest,
        }
    }
}

/// Bytes that are no frame for us.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("the bytes {} do not begin like a frame of hcomm", show(.0))]
    Garbage(Vec<u8>),
    #[error("frame type {0} is unknown")]
    UnknownType(u16),
    #[error("a body of {length} bytes is longer than the {limit} that a {kind:?} frame may have")]
    TooLong {
        kind: FrameType,
        length: usize,
        limit: usize,
    },
    #[error("a sealed {0:?} frame came before the key was agreed")]
    Unexpected(FrameType),
    #[error("the MAC does not fit")]
    WrongMac { claimed: Option<Rank> },
}

/// Which side of a connection spoke: part of what the MAC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The one that connected.
    Client,
    /// The one that listened.
    Server,
}

impl Side {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// Key of one connection.
#[derive(Clone)]
pub(crate) struct ConnectionKey([u8; 32]);

impl ConnectionKey {
    /// Derives it. `purpose` keeps bootstrap and mesh apart, and one pair of ranks from another.
    pub(crate) fn derive(
        base: &[u8; 32],
        session: SessionId,
        client_nonce: [u8; 16],
        server_nonce: [u8; 16],
        purpose: &[u8],
    ) -> Self {
        let mac = authenticate(
            base,
            &[
                b"hcomm connection",
                &session.0,
                &client_nonce,
                &server_nonce,
                purpose,
            ],
        );
        Self(mac.into_bytes().into())
    }
}

/// Makes or checks the MACs of one direction of a connection.
pub(crate) struct Seal {
    key: ConnectionKey,
    speaker: Side,
    counter: u64,
}

impl Seal {
    pub(crate) const fn new(key: ConnectionKey, speaker: Side) -> Self {
        Self {
            key,
            speaker,
            counter: 0,
        }
    }

    /// The MAC of the next frame.
    fn stamp(&mut self, header: &[u8], digest: &[u8; 32]) -> [u8; MAC_BYTES] {
        let mac = self.compute(header, digest);
        self.counter += 1;
        mac.into_bytes().into()
    }

    /// Whether this is the MAC of the next frame; compares in constant time.
    fn check(&mut self, header: &[u8], digest: &[u8; 32], mac: [u8; MAC_BYTES]) -> bool {
        let fits = self.compute(header, digest) == hmac::digest::CtOutput::new(mac.into());
        if fits {
            self.counter += 1;
        }
        fits
    }

    fn compute(
        &self,
        header: &[u8],
        digest: &[u8; 32],
    ) -> hmac::digest::CtOutput<hmac::Hmac<Sha256>> {
        let direction = match self.speaker {
            Side::Client => [1],
            Side::Server => [2],
        };
        authenticate(
            &self.key.0,
            &[&direction, &self.counter.to_le_bytes(), header, digest],
        )
    }
}

/// The header of a frame, and its MAC when it has to have one.
///
/// # Panics
/// If the body is longer than its type allows, or the seal is missing: both are bugs of ours.
pub(crate) fn encode(
    version: u16,
    kind: FrameType,
    rank: Option<Rank>,
    body: &Body,
    seal: Option<&mut Seal>,
) -> ([u8; HEADER_BYTES], Option<[u8; MAC_BYTES]>) {
    assert!(
        body.bytes.len() <= kind.limit(),
        "{kind:?} of {} bytes",
        body.bytes.len()
    );
    let length = u32::try_from(body.bytes.len()).expect("limits fit in 32 bits");
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC);
    header[4..6].copy_from_slice(&version.to_le_bytes());
    header[6..8].copy_from_slice(&kind.number().to_le_bytes());
    header[8..12].copy_from_slice(&rank.map_or(NO_RANK, |rank| rank.0).to_le_bytes());
    header[12..].copy_from_slice(&length.to_le_bytes());
    let mac = kind.is_sealed().then(|| {
        seal.expect("sealed frames are sent after the key was agreed")
            .stamp(&header, &body.digest)
    });
    (header, mac)
}

/// Takes one frame from the front of `bytes`: the frame and how many bytes it took, or `None` if
/// more bytes are needed. Lengths are judged before anything is set aside for them.
pub(crate) fn decode(
    bytes: &[u8],
    seal: Option<&mut Seal>,
) -> Result<Option<(Frame, usize)>, FrameError> {
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] {
        return Err(FrameError::Garbage(bytes[..bytes.len().min(16)].to_vec()));
    }
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let [_, _, _, _, v0, v1, t0, t1, r0, r1, r2, r3, l0, l1, l2, l3] = *header;
    let number = u16::from_le_bytes([t0, t1]);
    let kind = FrameType::from_number(number).ok_or(FrameError::UnknownType(number))?;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if length > kind.limit() {
        return Err(FrameError::TooLong {
            kind,
            length,
            limit: kind.limit(),
        });
    }
    let claimed = u32::from_le_bytes([r0, r1, r2, r3]);
    let rank = (claimed != NO_RANK).then_some(Rank(claimed));
    if kind.is_sealed() && seal.is_none() {
        return Err(FrameError::Unexpected(kind));
    }
    let Some((body, rest)) = rest.split_at_checked(length) else {
        return Ok(None);
    };
    let mut taken = HEADER_BYTES + length;
    let mut digest = [0; 32];
    if kind.is_sealed() {
        let Some(mac) = rest.first_chunk::<MAC_BYTES>() else {
            return Ok(None);
        };
        digest = Sha256::digest(body).into();
        if !seal.is_some_and(|seal| seal.check(header, &digest, *mac)) {
            return Err(FrameError::WrongMac { claimed: rank });
        }
        taken += MAC_BYTES;
    }
    let frame = Frame {
        version: u16::from_le_bytes([v0, v1]),
        kind,
        rank,
        body: body.to_vec(),
        digest,
    };
    Ok(Some((frame, taken)))
}

/// A frame as it comes out of a connection.
#[cfg(test)]
pub(crate) fn sealed(kind: FrameType, body: Body) -> Frame {
    Frame {
        version: PROTOCOL_VERSION,
        kind,
        rank: None,
        digest: body.digest,
        body: body.bytes.to_vec(),
    }
}

/// Bytes for an error text: as text where they are text.
fn show(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(tag: u8) -> ConnectionKey {
        ConnectionKey::derive(&[tag; 32], SessionId([1; 16]), [2; 16], [3; 16], b"test")
    }

    fn bytes_of(kind: FrameType, rank: Option<Rank>, body: &[u8], seal: &mut Seal) -> Vec<u8> {
        let (header, mac) = encode(
            PROTOCOL_VERSION,
            kind,
            rank,
            &body.to_vec().into(),
            Some(seal),
        );
        let mut bytes = header.to_vec();
        bytes.extend_from_slice(body);
        bytes.extend(mac.into_iter().flatten());
        bytes
    }

    fn seals() -> (Seal, Seal) {
        (
            Seal::new(key(9), Side::Client),
            Seal::new(key(9), Side::Client),
        )
    }

    #[test]
    fn every_type_goes_both_ways() {
        let (mut out, mut back) = seals();
        for &kind in FrameType::ALL {
            assert_eq!(FrameType::from_number(kind.number()), Some(kind));
            let body = vec![7; kind.limit().min(20)];
            let bytes = bytes_of(kind, Some(Rank(4)), &body, &mut out);
            let (frame, taken) = decode(&bytes, Some(&mut back)).unwrap().unwrap();
            assert_eq!(taken, bytes.len());
            assert_eq!(
                (frame.kind, frame.rank, frame.body),
                (kind, Some(Rank(4)), body)
            );
        }
    }

    #[test]
    fn replayed_reflected_and_reordered_frames_do_not_pass() {
        let (mut out, mut back) = seals();
        let first = bytes_of(FrameType::Ack, None, &[], &mut out);
        let second = bytes_of(FrameType::Done, None, &[], &mut out);
        let wrong = Err(FrameError::WrongMac { claimed: None });
        assert_eq!(decode(&second, Some(&mut back)), wrong); // not its turn
        assert!(decode(&first, Some(&mut back)).unwrap().is_some());
        assert_eq!(decode(&first, Some(&mut back)), wrong); // again
        assert!(decode(&second, Some(&mut back)).unwrap().is_some());
        let mut mirror = Seal::new(key(9), Side::Server);
        assert_eq!(decode(&first, Some(&mut mirror)), wrong); // back to its author
        let mut stranger = Seal::new(key(8), Side::Client);
        assert_eq!(decode(&first, Some(&mut stranger)), wrong); // another key
    }

    #[test]
    fn each_input_of_the_key_changes_it() {
        let base = [0; 32];
        let (session, nonce) = (SessionId([0; 16]), [0; 16]);
        let keys = [
            ConnectionKey::derive(&base, session, nonce, nonce, b"a"),
            ConnectionKey::derive(&[1; 32], session, nonce, nonce, b"a"),
            ConnectionKey::derive(&base, SessionId([1; 16]), nonce, nonce, b"a"),
            ConnectionKey::derive(&base, session, [1; 16], nonce, b"a"),
            ConnectionKey::derive(&base, session, nonce, [1; 16], b"a"),
            ConnectionKey::derive(&base, session, nonce, nonce, b"b"),
        ];
        for (i, a) in keys.iter().enumerate() {
            assert!(keys[..i].iter().all(|b| a.0 != b.0));
        }
    }

    #[test]
    fn a_long_body_is_refused_at_its_header() {
        let mut header = encode(1, FrameType::Knock, None, &Vec::new().into(), None).0;
        header[12..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(
            decode(&header, None),
            Err(FrameError::TooLong { .. })
        ));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic_and_never_pass(bytes in prop::collection::vec(any::<u8>(), 0..200), magic: bool) {
            let mut bytes = bytes;
            if magic && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&MAGIC);
            }
            let mut seal = Seal::new(key(1), Side::Client);
            if let Ok(Some((frame, _))) = decode(&bytes, Some(&mut seal)) {
                prop_assert!(!frame.kind.is_sealed());
            }
        }

        #[test]
        fn a_truncated_frame_waits_for_more(body in prop::collection::vec(any::<u8>(), 0..100), cut in any::<prop::sample::Index>()) {
            let (mut out, mut back) = seals();
            let bytes = bytes_of(FrameType::Hello, Some(Rank(1)), &body, &mut out);
            let cut = cut.index(bytes.len());
            prop_assert_eq!(decode(&bytes[..cut], Some(&mut back)), Ok(None));
        }

        #[test]
        fn a_mutated_frame_never_passes(body in prop::collection::vec(any::<u8>(), 0..100), at in any::<prop::sample::Index>(), flip in 1u8..) {
            let (mut out, mut back) = seals();
            let mut bytes = bytes_of(FrameType::Hello, Some(Rank(1)), &body, &mut out);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            // A longer length makes it wait; anything else is an error or, at the type's bytes, a
            // plain frame, which proves nothing to anybody.
            if let Ok(Some((frame, _))) = decode(&bytes, Some(&mut back)) {
                prop_assert!(!frame.kind.is_sealed());
            }
        }
    }
}
