//! What peers hand each other, byte by byte: blobs (carried by the layers above) and frames (on
//! the channel's socket). Everything read here may come from anybody.

use hcomm_transport_abi::{Fault, STATUS_BAD_BLOB};

/// Most notifies of one channel and direction.
pub(crate) const MAX_NOTIFIES: u32 = 1 << 16;
/// Longest blob of either kind.
pub(crate) const MAX_BLOB_BYTES: u32 = 192;
/// Length of every frame.
pub(crate) const FRAME_BYTES: usize = 128;

/// A random secret or name.
pub(crate) type Token = [u8; 16];

const CHANNEL_TAG: &[u8; 4] = b"hshC";
const REGION_TAG: &[u8; 4] = b"hshR";
const FRAME_TAG: &[u8; 4] = b"hshF";
const VERSION: u8 = 2;
/// An abstract address without its leading zero byte.
const MAX_ADDRESS_BYTES: usize = 107;

/// Compares secrets in a time that does not tell how much of them is right.
pub(crate) fn same_secret(a: &Token, b: &Token) -> bool {
    a.iter().zip(b).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}

/// Which end of which channel. The order decides who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) process: Token,
    /// Secret: only who was given a blob of the device knows it.
    pub(crate) device: Token,
    pub(crate) channel: u64,
}

impl Identity {
    /// Whether both are the same, compared as secrets are.
    pub(crate) fn is(&self, other: &Self) -> bool {
        same_secret(&self.process, &other.process)
            & same_secret(&self.device, &other.device)
            & (self.channel == other.channel)
    }
}

/// What the peer's end needs to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChannelBlob {
    pub(crate) identity: Identity,
    pub(crate) notifies: u32,
    /// Abstract address of the listener.
    pub(crate) address: Vec<u8>,
}

impl ChannelBlob {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MAX_BLOB_BYTES as usize);
        out.extend_from_slice(CHANNEL_TAG);
        out.push(VERSION);
        put_identity(&mut out, &self.identity);
        out.extend_from_slice(&self.notifies.to_le_bytes());
        out.push(self.address.len() as u8);
        out.extend_from_slice(&self.address);
        out
    }

    pub(crate) fn decode(blob: &[u8]) -> Result<Self, Fault> {
        let mut rest = open_blob(blob, CHANNEL_TAG, "channel")?;
        (|| {
            let identity = rest.identity()?;
            let notifies = rest.u32().filter(|&n| n <= MAX_NOTIFIES)?;
            let len = usize::from(rest.u8()?);
            let address = rest.take(len)?.to_vec();
            ((1..=MAX_ADDRESS_BYTES).contains(&len) && rest.is_empty()).then_some(Self {
                identity,
                notifies,
                address,
            })
        })()
        .ok_or_else(|| malformed("channel", blob))
    }
}

/// Who made the memory of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionKind {
    /// A memfd of ours: can be mapped by others.
    Allocated,
    /// The user: reached by plain pointer or through the ring.
    User,
}

/// What a peer needs to import a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegionBlob {
    pub(crate) process: Token,
    pub(crate) device: Token,
    pub(crate) number: u64,
    pub(crate) key: Token,
    pub(crate) bytes: u64,
    pub(crate) kind: RegionKind,
}

impl RegionBlob {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MAX_BLOB_BYTES as usize);
        out.extend_from_slice(REGION_TAG);
        out.push(VERSION);
        out.extend_from_slice(&self.process);
        out.extend_from_slice(&self.device);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.key);
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.push(self.kind.number());
        out
    }

    pub(crate) fn decode(blob: &[u8]) -> Result<Self, Fault> {
        let mut rest = open_blob(blob, REGION_TAG, "region")?;
        (|| {
            let made = Self {
                process: rest.token()?,
                device: rest.token()?,
                number: rest.u64()?,
                key: rest.token()?,
                bytes: rest.u64()?,
                kind: RegionKind::from_number(rest.u8()?)?,
            };
            rest.is_empty().then_some(made)
        })()
        .ok_or_else(|| malformed("region", blob))
    }
}

impl RegionKind {
    const fn number(self) -> u8 {
        match self {
            Self::Allocated => 0,
            Self::User => 1,
        }
    }

    const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Allocated),
            1 => Some(Self::User),
            _ => None,
        }
    }
}

/// Which descriptors came with a frame, in this order.
pub(crate) const FD_BELL: u8 = 1 << 0;
/// See [`FD_BELL`].
pub(crate) const FD_EVENT: u8 = 1 << 1;

/// First frame of each side: the segment's descriptor comes with it, and those of the bell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The end that is meant: proof that the sender was given its blob.
    pub(crate) to: Identity,
    /// The sender's end.
    pub(crate) from: Identity,
    pub(crate) notifies: u32,
    pub(crate) bell_offset: u32,
    /// `FD_…` bits of what comes after the segment's descriptor.
    pub(crate) fds: u8,
    /// What the receiver may try out the direct way on.
    pub(crate) sample: Sample,
}

/// Memory of the sender of a [`Hello`], made for a look and a touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Where it lies in the sender's process; 0 if the sender offers none.
    pub(crate) address: u64,
    /// What stands in it.
    pub(crate) content: Token,
}

/// Leave to reach a region of the sender directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loan {
    /// Which gate of the sender's segment must be open.
    pub(crate) gate: u32,
    /// Where the region lies in the sender's process.
    pub(crate) address: u64,
}

/// A message on the socket of a channel. All have the same length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// From the side that connected.
    Hello(Hello),
    /// The other side's answer to it.
    Welcome(Hello),
    /// Asks for a region.
    Ask {
        request: u64,
        number: u64,
        key: Token,
    },
    /// Answers [`Frame::Ask`]; the memory's descriptor comes with it if it was allocated.
    Give {
        request: u64,
        status: i32,
        bytes: u64,
        kind: RegionKind,
        loan: Option<Loan>,
    },
}

impl Frame {
    pub(crate) fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut out = Vec::with_capacity(FRAME_BYTES);
        out.extend_from_slice(FRAME_TAG);
        out.push(VERSION);
        match self {
            Self::Hello(hello) | Self::Welcome(hello) => {
                out.push(if matches!(self, Self::Hello(_)) { 0 } else { 1 });
                put_identity(&mut out, &hello.to);
                put_identity(&mut out, &hello.from);
                out.extend_from_slice(&hello.notifies.to_le_bytes());
                out.extend_from_slice(&hello.bell_offset.to_le_bytes());
                out.push(hello.fds);
                out.extend_from_slice(&hello.sample.address.to_le_bytes());
                out.extend_from_slice(&hello.sample.content);
            }
            Self::Ask {
                request,
                number,
                key,
            } => {
                out.push(2);
                out.extend_from_slice(&request.to_le_bytes());
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(key);
            }
            Self::Give {
                request,
                status,
                bytes,
                kind,
                loan,
            } => {
                out.push(3);
                out.extend_from_slice(&request.to_le_bytes());
                out.extend_from_slice(&status.to_le_bytes());
                out.extend_from_slice(&bytes.to_le_bytes());
                out.push(kind.number());
                out.push(u8::from(loan.is_some()));
                let (gate, address) = loan.map_or((0, 0), |loan| (loan.gate, loan.address));
                out.extend_from_slice(&gate.to_le_bytes());
                out.extend_from_slice(&address.to_le_bytes());
            }
        }
        let mut frame = [0; FRAME_BYTES];
        for (slot, byte) in frame.iter_mut().zip(out) {
            *slot = byte;
        }
        frame
    }

    /// `None` for what is not a frame of this version.
    pub(crate) fn decode(frame: &[u8; FRAME_BYTES]) -> Option<Self> {
        let mut rest = Reader(frame);
        if rest.take(4)? != FRAME_TAG || rest.u8()? != VERSION {
            return None;
        }
        match rest.u8()? {
            kind @ (0 | 1) => {
                let hello = Hello {
                    to: rest.identity()?,
                    from: rest.identity()?,
                    notifies: rest.u32().filter(|&n| n <= MAX_NOTIFIES)?,
                    bell_offset: rest.u32()?,
                    fds: rest.u8().filter(|bits| bits & !(FD_BELL | FD_EVENT) == 0)?,
                    sample: Sample {
                        address: rest.u64()?,
                        content: rest.token()?,
                    },
                };
                Some(if kind == 0 {
                    Self::Hello(hello)
                } else {
                    Self::Welcome(hello)
                })
            }
            2 => Some(Self::Ask {
                request: rest.u64()?,
                number: rest.u64()?,
                key: rest.token()?,
            }),
            3 => Some(Self::Give {
                request: rest.u64()?,
                status: rest.u32()?.cast_signed(),
                bytes: rest.u64()?,
                kind: RegionKind::from_number(rest.u8()?)?,
                loan: {
                    let lent = rest.u8().filter(|&lent| lent < 2)? == 1;
                    let loan = Loan {
                        gate: rest.u32()?,
                        address: rest.u64()?,
                    };
                    lent.then_some(loan)
                },
            }),
            _ => None,
        }
    }

    /// How many descriptors belong to it.
    pub(crate) fn fds(&self) -> usize {
        match self {
            Self::Hello(hello) | Self::Welcome(hello) => 1 + hello.fds.count_ones() as usize,
            Self::Give {
                status: 0,
                kind: RegionKind::Allocated,
                ..
            } => 1,
            Self::Ask { .. } | Self::Give { .. } => 0,
        }
    }
}

fn put_identity(out: &mut Vec<u8>, identity: &Identity) {
    out.extend_from_slice(&identity.process);
    out.extend_from_slice(&identity.device);
    out.extend_from_slice(&identity.channel.to_le_bytes());
}

fn open_blob<'a>(blob: &'a [u8], tag: &[u8; 4], what: &str) -> Result<Reader<'a>, Fault> {
    let mut rest = Reader(blob);
    match (rest.take(4), rest.u8()) {
        (Some(found), Some(VERSION)) if found == tag => Ok(rest),
        (Some(found), Some(version)) if found == tag => Err(Fault::new(
            STATUS_BAD_BLOB,
            format!(
                "the {what} blob has version {version}, this transport speaks {VERSION}: run the \
                 same version on all ranks"
            ),
        )),
        _ => Err(Fault::new(
            STATUS_BAD_BLOB,
            format!(
                "{} bytes that do not begin as a {what} blob of shm does",
                blob.len()
            ),
        )),
    }
}

fn malformed(what: &str, blob: &[u8]) -> Fault {
    Fault::new(
        STATUS_BAD_BLOB,
        format!("a {what} blob of {} bytes is malformed", blob.len()),
    )
}

/// Takes fields off the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn token(&mut self) -> Option<Token> {
        self.array()
    }

    fn identity(&mut self) -> Option<Identity> {
        Some(Identity {
            process: self.token()?,
            device: self.token()?,
            channel: self.u64()?,
        })
    }

    const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identity() -> impl Strategy<Value = Identity> {
        (any::<Token>(), any::<Token>(), any::<u64>()).prop_map(|(process, device, channel)| {
            Identity {
                process,
                device,
                channel,
            }
        })
    }

    fn kind() -> impl Strategy<Value = RegionKind> {
        any::<bool>().prop_map(|user| {
            if user {
                RegionKind::User
            } else {
                RegionKind::Allocated
            }
        })
    }

    fn hello() -> impl Strategy<Value = Hello> {
        (
            identity(),
            identity(),
            0..=MAX_NOTIFIES,
            any::<u32>(),
            0..4_u8,
            any::<(u64, Token)>(),
        )
            .prop_map(
                |(to, from, notifies, bell_offset, fds, (address, content))| Hello {
                    to,
                    from,
                    notifies,
                    bell_offset,
                    fds,
                    sample: Sample { address, content },
                },
            )
    }

    proptest! {
        #[test]
        fn channel_blobs_come_back(
            identity in identity(),
            notifies in 0..=MAX_NOTIFIES,
            address in prop::collection::vec(any::<u8>(), 1..=MAX_ADDRESS_BYTES),
        ) {
            let blob = ChannelBlob { identity, notifies, address };
            let bytes = blob.encode();
            prop_assert!(bytes.len() <= MAX_BLOB_BYTES as usize);
            prop_assert_eq!(ChannelBlob::decode(&bytes), Ok(blob));
            for cut in 0..bytes.len() {
                prop_assert!(ChannelBlob::decode(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn region_blobs_come_back(
            process in any::<Token>(), device in any::<Token>(), key in any::<Token>(),
            number in any::<u64>(), bytes in any::<u64>(), kind in kind(),
        ) {
            let blob = RegionBlob { process, device, number, key, bytes, kind };
            let encoded = blob.encode();
            prop_assert!(encoded.len() <= MAX_BLOB_BYTES as usize);
            prop_assert_eq!(RegionBlob::decode(&encoded), Ok(blob));
            for cut in 0..encoded.len() {
                prop_assert!(RegionBlob::decode(&encoded[..cut]).is_err());
            }
        }

        #[test]
        fn frames_come_back(
            hello in hello(), request in any::<u64>(), number in any::<u64>(),
            key in any::<Token>(), status in any::<i32>(), bytes in any::<u64>(), kind in kind(),
            lent in any::<Option<(u32, u64)>>(),
        ) {
            let loan = lent.map(|(gate, address)| Loan { gate, address });
            for frame in [
                Frame::Hello(hello.clone()),
                Frame::Welcome(hello.clone()),
                Frame::Ask { request, number, key },
                Frame::Give { request, status, bytes, kind, loan },
            ] {
                prop_assert_eq!(Frame::decode(&frame.encode()), Some(frame));
            }
        }

        #[test]
        fn random_bytes_are_refused_without_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..256), forge in 0..4_u8,
        ) {
            // Some with a right beginning, so that the fields behind it are reached.
            let tag: &[u8] = [&b""[..], b"hshC\x02", b"hshR\x02", b"hshF\x02"][usize::from(forge)];
            for (slot, byte) in bytes.iter_mut().zip(tag) {
                *slot = *byte;
            }
            if let Ok(blob) = ChannelBlob::decode(&bytes) {
                prop_assert_eq!(blob.encode(), bytes.clone());
            }
            if let Ok(blob) = RegionBlob::decode(&bytes) {
                prop_assert_eq!(blob.encode(), bytes.clone());
            }
            let mut frame = [0; FRAME_BYTES];
            for (slot, byte) in frame.iter_mut().zip(&bytes) {
                *slot = *byte;
            }
            if let Some(found) = Frame::decode(&frame) {
                prop_assert_eq!(Frame::decode(&found.encode()), Some(found));
            }
        }
    }
}
