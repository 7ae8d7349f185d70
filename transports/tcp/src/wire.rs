//! What peers hand each other, byte by byte: blobs (carried by the layers above), the greeting of a
//! connection, and frames. Everything read here may come from anybody.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hcomm_transport_abi::{Fault, STATUS_BAD_BLOB};

use crate::places::MAX_NOTIFIES;

/// Longest blob of either kind.
pub(crate) const MAX_BLOB_BYTES: u32 = 128;

/// A random name or key.
pub(crate) type Token = [u8; 16];
/// What both ends of a channel put into its key.
pub(crate) type Secret = [u8; 32];
/// A number that is used once.
pub(crate) type Nonce = [u8; 16];
/// HMAC-SHA256.
pub(crate) type Proof = [u8; 32];

const VERSION: u8 = 1;
const CHANNEL_TAG: [u8; 4] = *b"htcC";
const REGION_TAG: [u8; 4] = *b"htcR";
const HELLO_TAG: [u8; 4] = *b"htcH";
const CHANNEL_BYTES: usize = 4 + 1 + 16 + 8 + 32 + 4 + 1 + 16 + 2;
const REGION_BYTES: usize = 4 + 1 + 16 + 8 + 16;

/// Which end of which channel. The end with the smaller identity dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) device: Token,
    pub(crate) channel: u64,
}

/// What the peer's end needs to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChannelBlob {
    pub(crate) identity: Identity,
    pub(crate) secret: Secret,
    pub(crate) notifies: u32,
    pub(crate) ip: IpAddr,
    pub(crate) port: u16,
}

impl ChannelBlob {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(CHANNEL_BYTES);
        out.extend(CHANNEL_TAG);
        out.push(VERSION);
        out.extend(self.identity.device);
        out.extend(self.identity.channel.to_le_bytes());
        out.extend(self.secret);
        out.extend(self.notifies.to_le_bytes());
        let (kind, address) = match self.ip {
            IpAddr::V4(v4) => {
                let mut address = [0; 16];
                address[..4].copy_from_slice(&v4.octets());
                (4, address)
            }
            IpAddr::V6(v6) => (6, v6.octets()),
        };
        out.push(kind);
        out.extend(address);
        out.extend(self.port.to_le_bytes());
        out
    }

    pub(crate) fn decode(blob: &[u8]) -> Result<Self, Fault> {
        let mut rest = open(blob, CHANNEL_TAG, CHANNEL_BYTES, "channel")?;
        let identity = Identity {
            device: rest.take(),
            channel: u64::from_le_bytes(rest.take()),
        };
        let secret = rest.take();
        let notifies = u32::from_le_bytes(rest.take());
        let [kind] = rest.take();
        let address: [u8; 16] = rest.take();
        let port = u16::from_le_bytes(rest.take());
        let [a, b, c, d, zeros @ ..] = address;
        let ip = match kind {
            4 if zeros == [0; 12] => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
            6 => IpAddr::V6(Ipv6Addr::from(address)),
            _ => return Err(bad("a channel", "its address is of no known kind")),
        };
        if notifies > MAX_NOTIFIES || port == 0 {
            return Err(bad("a channel", "its notifies or its port are none"));
        }
        Ok(Self {
            identity,
            secret,
            notifies,
            ip,
            port,
        })
    }
}

/// What a peer needs to import a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegionBlob {
    pub(crate) device: Token,
    pub(crate) number: u64,
    pub(crate) key: Token,
}

impl RegionBlob {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(REGION_BYTES);
        out.extend(REGION_TAG);
        out.push(VERSION);
        out.extend(self.device);
        out.extend(self.number.to_le_bytes());
        out.extend(self.key);
        out
    }

    pub(crate) fn decode(blob: &[u8]) -> Result<Self, Fault> {
        let mut rest = open(blob, REGION_TAG, REGION_BYTES, "region")?;
        Ok(Self {
            device: rest.take(),
            number: u64::from_le_bytes(rest.take()),
            key: rest.take(),
        })
    }
}

/// Fields of a text whose length was checked, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    /// The next `N` bytes; zeros behind the end, which a caller that has checked the length never
    /// meets.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((field, rest)) => {
                self.0 = rest;
                *field
            }
            None => [0; N],
        }
    }
}

fn open<'a>(blob: &'a [u8], tag: [u8; 4], bytes: usize, what: &str) -> Result<Fields<'a>, Fault> {
    if blob.len() != bytes {
        let length = format!("{} bytes instead of {bytes}", blob.len());
        return Err(bad(&format!("a {what}"), &length));
    }
    let mut fields = Fields(blob);
    if fields.take() != tag || fields.take() != [VERSION] {
        return Err(bad(
            &format!("a {what}"),
            "it has another version or names something else",
        ));
    }
    Ok(fields)
}

fn bad(what: &str, why: &str) -> Fault {
    Fault::new(
        STATUS_BAD_BLOB,
        format!("this is no blob of {what} of this version of tcp: {why}"),
    )
}

/// The first words on a connection, of the end that dials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) from: Identity,
    pub(crate) to: Identity,
    pub(crate) nonce: Nonce,
    pub(crate) proof: Proof,
}

impl Hello {
    pub(crate) const BYTES: usize = 4 + 1 + 24 + 24 + 16 + 32;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        let mut rest = &mut out[..];
        let mut put = |field: &[u8]| {
            if let Some((place, behind)) =
                core::mem::take(&mut rest).split_at_mut_checked(field.len())
            {
                place.copy_from_slice(field);
                rest = behind;
            }
        };
        put(&HELLO_TAG);
        put(&[VERSION]);
        for identity in [self.from, self.to] {
            put(&identity.device);
            put(&identity.channel.to_le_bytes());
        }
        put(&self.nonce);
        put(&self.proof);
        out
    }

    /// `None` if it is not ours.
    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let mut rest = Fields(bytes);
        if rest.take() != HELLO_TAG || rest.take() != [VERSION] {
            return None;
        }
        let mut identity = || Identity {
            device: rest.take(),
            channel: u64::from_le_bytes(rest.take()),
        };
        let (from, to) = (identity(), identity());
        Some(Self {
            from,
            to,
            nonce: rest.take(),
            proof: rest.take(),
        })
    }
}

/// Bytes of the answer to a [`Hello`]: a nonce and a proof.
pub(crate) const WELCOME_BYTES: usize = 16 + 32;

/// Bytes of what a frame begins with.
pub(crate) const HEADER_BYTES: usize = 32;
/// Bytes that may follow the header, if [`EXTRA`] says so: a fingerprint, or a key.
pub(crate) const EXTRA_BYTES: usize = 16;

/// Flag: a notify is recorded afterwards.
pub(crate) const NOTIFY: u8 = 1;
/// Flag: [`EXTRA_BYTES`] follow the header.
pub(crate) const EXTRA: u8 = 2;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// `bytes` bytes follow, for `offset` of `handle`.
    Write = 1,
    /// The same, to be combined with what is there.
    WriteReduce = 2,
    /// Nothing but a notify.
    Notify = 3,
    /// Asks for `bytes` bytes from `offset` of `handle`.
    Read = 4,
    /// `bytes` bytes follow: the answer to the oldest read that has none.
    Data = 5,
    /// Asks for a region: its number is `handle`, its key the extra bytes.
    Import = 6,
    /// The answer: a handle, and `bytes`, how many the region has; or `number` says why not.
    Imported = 7,
    /// `handle` is not needed any more.
    Release = 8,
    /// Asks for an answer when everything before it is done.
    Flush = 9,
    /// The answer, with the `offset` of the question.
    Flushed = 10,
    /// `number` says why everything ends: the peer asked for something that it may not do.
    Refused = 11,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Write,
        Self::WriteReduce,
        Self::Notify,
        Self::Read,
        Self::Data,
        Self::Import,
        Self::Imported,
        Self::Release,
        Self::Flush,
        Self::Flushed,
        Self::Refused,
    ];
}

/// What a frame begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) dtype: u8,
    pub(crate) redop: u8,
    /// A notify, or a status.
    pub(crate) number: u32,
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) extra: [u8; EXTRA_BYTES],
}

impl Frame {
    pub(crate) const fn new(kind: Kind) -> Self {
        Self {
            kind,
            flags: 0,
            dtype: 0,
            redop: 0,
            number: 0,
            handle: 0,
            offset: 0,
            bytes: 0,
            extra: [0; EXTRA_BYTES],
        }
    }

    /// The bytes, and how many of them there are.
    pub(crate) fn encode(&self) -> ([u8; HEADER_BYTES + EXTRA_BYTES], usize) {
        let mut out = [0; HEADER_BYTES + EXTRA_BYTES];
        out[..4].copy_from_slice(&[self.kind as u8, self.flags, self.dtype, self.redop]);
        out[4..8].copy_from_slice(&self.number.to_le_bytes());
        out[8..16].copy_from_slice(&self.handle.to_le_bytes());
        out[16..24].copy_from_slice(&self.offset.to_le_bytes());
        out[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        out[32..].copy_from_slice(&self.extra);
        let len = HEADER_BYTES
            + if self.flags & EXTRA == 0 {
                0
            } else {
                EXTRA_BYTES
            };
        (out, len)
    }

    /// The frame that `bytes` begin with, and how many of them it has; `None` while there are too
    /// few.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, &'static str> {
        let Some((header, behind)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let mut rest = Fields(header);
        let [kind, flags, dtype, redop] = rest.take();
        let kind = Kind::ALL
            .into_iter()
            .find(|known| *known as u8 == kind)
            .ok_or("a frame of no known kind")?;
        if flags & !(NOTIFY | EXTRA) != 0 {
            return Err("a frame with unknown flags");
        }
        let mut frame = Self {
            kind,
            flags,
            dtype,
            redop,
            number: u32::from_le_bytes(rest.take()),
            handle: u64::from_le_bytes(rest.take()),
            offset: u64::from_le_bytes(rest.take()),
            bytes: u64::from_le_bytes(rest.take()),
            extra: [0; EXTRA_BYTES],
        };
        if flags & EXTRA == 0 {
            return Ok(Some((frame, HEADER_BYTES)));
        }
        let Some(extra) = behind.first_chunk() else {
            return Ok(None);
        };
        frame.extra = *extra;
        Ok(Some((frame, HEADER_BYTES + EXTRA_BYTES)))
    }

    /// The extra bytes as a fingerprint.
    pub(crate) fn fingerprint(&self) -> [u64; 2] {
        let mut rest = Fields(&self.extra);
        [(); 2].map(|()| u64::from_le_bytes(rest.take()))
    }

    /// Puts a fingerprint into the extra bytes, unless it is empty.
    pub(crate) fn set_fingerprint(&mut self, fingerprint: [u64; 2]) {
        if fingerprint != [0; 2] {
            self.flags |= EXTRA;
            self.extra[..8].copy_from_slice(&fingerprint[0].to_le_bytes());
            self.extra[8..].copy_from_slice(&fingerprint[1].to_le_bytes());
        }
    }

    /// A status in `number`.
    pub(crate) const fn with_status(mut self, status: i32) -> Self {
        self.number = status.cast_unsigned();
        self
    }

    /// The status in `number`; a peer cannot make a success of what is none.
    pub(crate) fn status(&self) -> i32 {
        let status = self.number.cast_signed();
        if status > 0 { i32::MIN } else { status }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn channel(ip: IpAddr) -> ChannelBlob {
        ChannelBlob {
            identity: Identity {
                device: [3; 16],
                channel: 0x0102_0304_0506_0708,
            },
            secret: [9; 32],
            notifies: 77,
            ip,
            port: 4711,
        }
    }

    #[test]
    fn blobs_read_back_and_other_bytes_do_not() {
        for ip in ["10.1.2.3", "fd00::7"] {
            let made = channel(ip.parse().unwrap());
            let bytes = made.encode();
            assert!(bytes.len() <= MAX_BLOB_BYTES as usize);
            assert_eq!(ChannelBlob::decode(&bytes), Ok(made));
            assert_eq!(
                RegionBlob::decode(&bytes).unwrap_err().status,
                STATUS_BAD_BLOB
            );
            for len in 0..bytes.len() {
                assert!(ChannelBlob::decode(&bytes[..len]).is_err(), "{len} bytes");
            }
        }
        let region = RegionBlob {
            device: [1; 16],
            number: 5,
            key: [2; 16],
        };
        assert_eq!(RegionBlob::decode(&region.encode()), Ok(region));
    }

    #[test]
    fn a_hello_reads_back() {
        let hello = Hello {
            from: Identity {
                device: [1; 16],
                channel: 2,
            },
            to: Identity {
                device: [3; 16],
                channel: u64::MAX,
            },
            nonce: [4; 16],
            proof: [5; 32],
        };
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Some(hello));
        let mut other = bytes;
        other[4] ^= 1;
        assert_eq!(Hello::decode(&other), None);
    }

    #[test]
    fn a_peer_cannot_send_a_positive_status() {
        let status = |status| Frame::new(Kind::Data).with_status(status).status();
        assert_eq!([status(0), status(-7)], [0, -7]);
        assert!(status(1) < 0);
    }

    proptest! {
        #[test]
        fn parsers_take_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
            let _ = (ChannelBlob::decode(&bytes), RegionBlob::decode(&bytes));
            if let Ok(Some((frame, len))) = Frame::decode(&bytes) {
                let (again, again_len) = frame.encode();
                prop_assert_eq!(&again[..again_len], &bytes[..len]);
            }
            if let Some(hello) = bytes.first_chunk() {
                let _ = Hello::decode(hello);
            }
        }

        #[test]
        fn frames_read_back(
            kind in 0usize..11,
            number in any::<u32>(),
            words in any::<[u64; 3]>(),
            fingerprint in any::<[u64; 2]>(),
        ) {
            let mut frame = Frame::new(Kind::ALL[kind]);
            (frame.number, frame.dtype, frame.redop) = (number, 7, 3);
            [frame.handle, frame.offset, frame.bytes] = words;
            frame.set_fingerprint(fingerprint);
            let (bytes, len) = frame.encode();
            prop_assert_eq!(Frame::decode(&bytes[..len]), Ok(Some((frame, len))));
            prop_assert_eq!(Frame::decode(&bytes[..len - 1]), Ok(None));
            prop_assert_eq!(frame.fingerprint(), fingerprint);
        }
    }
}
