//! Bytes of frame bodies: little-endian numbers, and byte strings with their length in front.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// A body that does not say what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Puts values behind each other.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.raw(&[value])
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// A length that is followed by that many items or bytes.
    ///
    /// # Panics
    /// If it does not fit in 32 bits; frame limits are far below.
    pub(crate) fn length(&mut self, length: usize) -> &mut Self {
        self.u32(u32::try_from(length).expect("frame bodies are shorter than 4 GiB"))
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.length(bytes.len()).raw(bytes)
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    pub(crate) fn address(&mut self, address: SocketAddr) -> &mut Self {
        match address.ip() {
            IpAddr::V4(ip) => self.u8(4).raw(&ip.octets()),
            IpAddr::V6(ip) => self.u8(6).raw(&ip.octets()),
        };
        self.u16(address.port())
    }

    pub(crate) fn length_so_far(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Takes values from the front.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// All that is left.
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn raw(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed(what))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed(what))?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, Malformed> {
        self.array(what).map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, Malformed> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, Malformed> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, Malformed> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A number of items of at least `item_bytes` bytes each: never more than can follow, so that
    /// room for them may be set aside.
    pub(crate) fn count(
        &mut self,
        item_bytes: usize,
        what: &'static str,
    ) -> Result<usize, Malformed> {
        let count = self.u32(what)? as usize;
        if count > self.0.len() / item_bytes {
            return Err(Malformed(what));
        }
        Ok(count)
    }

    pub(crate) fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], Malformed> {
        let length = self.count(1, what)?;
        self.raw(length, what)
    }

    pub(crate) fn text(&mut self, what: &'static str) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes(what)?).map_err(|_| Malformed(what))
    }

    pub(crate) fn address(&mut self, what: &'static str) -> Result<SocketAddr, Malformed> {
        let ip = match self.u8(what)? {
            4 => IpAddr::from(self.array::<4>(what)?),
            6 => IpAddr::from(self.array::<16>(what)?),
            _ => return Err(Malformed(what)),
        };
        let port = self.u16(what)?;
        Ok(match ip {
            IpAddr::V4(_) => SocketAddr::new(ip, port),
            IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, 0)),
        })
    }

    /// The end: nothing may follow.
    pub(crate) fn end(self, what: &'static str) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed(what))
        }
    }
}

/// Lower-case hexadecimal.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    bytes
        .iter()
        .flat_map(|byte| {
            [
                DIGITS[usize::from(byte >> 4)],
                DIGITS[usize::from(byte & 15)],
            ]
        })
        .collect()
}

/// From hexadecimal of either case.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text
        .chars()
        .map(|digit| {
            digit
                .to_digit(16)
                .and_then(|value| u8::try_from(value).ok())
        })
        .collect::<Option<_>>()?;
    let pairs = digits.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    Some(pairs.map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// IPv4 addresses that a dual-stack socket shows in IPv6 clothes, undressed.
pub(crate) fn plain_address(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match Ipv6Addr::to_ipv4_mapped(v6.ip()) {
            Some(v4) => SocketAddr::new(v4.into(), v6.port()),
            None => address,
        },
        SocketAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_comes_out() {
        let mut writer = Writer::new();
        let v6: SocketAddr = "[fe80::1]:9".parse().unwrap();
        let v4: SocketAddr = "10.0.0.1:65535".parse().unwrap();
        writer
            .u8(1)
            .u16(2)
            .u32(3)
            .u64(4)
            .text("né")
            .address(v6)
            .address(v4);
        let bytes = writer.into_bytes();
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.u8("a"), Ok(1));
        assert_eq!(reader.u16("b"), Ok(2));
        assert_eq!(reader.u32("c"), Ok(3));
        assert_eq!(reader.u64("d"), Ok(4));
        assert_eq!(reader.text("e"), Ok("né"));
        assert_eq!(reader.address("f"), Ok(v6));
        assert_eq!(reader.address("g"), Ok(v4));
        assert_eq!(reader.end("end"), Ok(()));
    }

    #[test]
    fn a_count_never_promises_more_than_can_follow() {
        let mut writer = Writer::new();
        writer.u32(u32::MAX).u64(0);
        let bytes = writer.into_bytes();
        assert_eq!(Reader::new(&bytes).count(1, "x"), Err(Malformed("x")));
        assert_eq!(Reader::new(&bytes).bytes("x"), Err(Malformed("x")));
        assert_eq!(
            Reader::new(&[8, 0, 0, 0, 1, 2]).count(4, "y"),
            Err(Malformed("y"))
        );
    }

    #[test]
    fn hexadecimal_goes_both_ways() {
        assert_eq!(to_hex(&[0, 0x9f, 255]), "009fff");
        assert_eq!(from_hex("009Fff"), Some(vec![0, 0x9f, 255]));
        assert_eq!(from_hex("0"), None);
        assert_eq!(from_hex("0g"), None);
        assert_eq!(from_hex("é0"), None);
    }
}
