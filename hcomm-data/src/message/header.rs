//! The first word of a cell: whether something is there, and what.
//!
//! | bits | what |
//! |---|---|
//! | 0..16 | lap: how often the ring has come round to this cell, plus one |
//! | 16..20 | kind |
//! | 20..32 | bytes: of a short message its length |
//! | 32..40 | number of the data type |
//! | 40..64 | tag |
//!
//! A header is only ever written where headers are written, so a cell that holds this lap's number
//! holds this lap's header, and nothing has to be cleared.

use std::fmt;

use hcomm_types::{DataType, Error, ErrorKind, Result};

/// What a cell is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The begin of a message that lies in the cells from here on.
    Short,
    /// A later cell of such a message.
    More,
    /// The next piece of a message lies in the data ring. Words behind the header: bytes of the
    /// message, bytes of the piece.
    Piece,
    /// As `Piece`, and the beacon was written just before.
    TimedPiece,
    /// The rest of a message was written to where it is received. Words as for `Piece`.
    Direct,
}

/// What is in the first word of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// Length of a short message; otherwise 0.
    pub(crate) bytes: u16,
    pub(crate) label: Label,
}

/// What a message says it is, and what its receiver expects: a type, and a tag that is zero unless
/// the layer above has given it one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    pub(crate) dtype: DataType,
    /// Less than 2^24.
    tag: u32,
}

/// Bits of a tag.
const TAG_BITS: u32 = 24;

impl Label {
    /// A type and the last 24 bits of a tag. A message is received only under its own tag: any
    /// other is a `Mismatch`.
    #[must_use]
    pub const fn new(dtype: DataType, tag: u32) -> Self {
        Self {
            dtype,
            tag: tag & ((1 << TAG_BITS) - 1),
        }
    }

    /// Whether it has no tag.
    pub(crate) const fn is_plain(self) -> bool {
        self.tag == 0
    }

    pub(crate) const fn word(self) -> u32 {
        self.dtype as u32 | self.tag << 8
    }

    /// What a word says, if it names a type.
    pub(crate) fn of(word: u32) -> Option<Self> {
        let dtype = DataType::from_number(word & 0xff)?;
        Some(Self {
            dtype,
            tag: word >> 8,
        })
    }
}

impl From<DataType> for Label {
    fn from(dtype: DataType) -> Self {
        Self::new(dtype, 0)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dtype)?;
        if self.tag != 0 {
            write!(f, " under the tag {:#x}", self.tag)?;
        }
        Ok(())
    }
}

const KINDS: [Kind; 5] = [
    Kind::Short,
    Kind::More,
    Kind::Piece,
    Kind::TimedPiece,
    Kind::Direct,
];

/// Longest short message that a header can tell of.
pub(crate) const MOST_BYTES: u16 = (1 << 12) - 1;

impl Header {
    /// Of a later cell of a message.
    #[inline]
    pub(crate) const fn more(label: Label) -> Self {
        Self {
            kind: Kind::More,
            bytes: 0,
            label,
        }
    }

    /// The word for a cell in its `lap`-th lap, counted from 0.
    pub(crate) const fn word(self, lap: u64) -> u64 {
        debug_assert!(self.bytes <= MOST_BYTES);
        lap_number(lap)
            | (self.kind as u64) << 16
            | ((self.bytes & MOST_BYTES) as u64) << 20
            | (self.label.word() as u64) << 32
    }

    /// What a word says in the cell's `lap`-th lap; `None` if nothing of that lap is there yet.
    ///
    /// # Errors
    /// `LinkDown` if no such header is ever written.
    #[inline]
    pub(crate) fn of(word: u64, lap: u64) -> Result<Option<Self>> {
        if word & 0xffff != lap_number(lap) {
            return Ok(None);
        }
        let kind = KINDS.get((word >> 16 & 0xf) as usize).copied();
        let label = Label::of((word >> 32) as u32);
        match (kind, label) {
            (Some(kind), Some(label)) => Ok(Some(Self {
                kind,
                bytes: (word >> 20) as u16 & MOST_BYTES,
                label,
            })),
            _ => Err(broken(format!("header {word:#x}"))),
        }
    }
}

/// The first word of a half of the exchange line.
///
/// | bits | what |
/// |---|---|
/// | 0..16 | number of the message among those of this half, from 1 |
/// | 16..24 | bytes |
/// | 24..32 | number of the data type |
/// | 32..48 | position of the sender's next cell: it comes before that one |
/// | 48..64 | messages that its sender has taken from the other half |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchanged {
    pub(crate) number: u16,
    pub(crate) bytes: u8,
    pub(crate) dtype: DataType,
    pub(crate) position: u16,
    pub(crate) taken: u16,
}

/// Longest message in the exchange line.
pub(crate) const EXCHANGED: usize = 24;

impl Exchanged {
    #[inline]
    pub(crate) const fn word(self) -> u64 {
        self.number as u64
            | (self.bytes as u64) << 16
            | (self.dtype as u64 & 0xff) << 24
            | (self.position as u64) << 32
            | (self.taken as u64) << 48
    }

    /// Whether a word is that of message `number` before the cell at `position`.
    #[inline]
    pub(crate) const fn is(word: u64, number: u16, position: u16) -> bool {
        word as u16 == number && (word >> 32) as u16 == position
    }

    /// What such a word says.
    ///
    /// # Errors
    /// `LinkDown` if no such word is ever written.
    #[inline]
    pub(crate) fn of(word: u64) -> Result<Self> {
        let bytes = (word >> 16) as u8;
        match DataType::from_number((word >> 24 & 0xff) as u32) {
            Some(dtype) if usize::from(bytes) <= EXCHANGED => Ok(Self {
                number: word as u16,
                bytes,
                dtype,
                position: (word >> 32) as u16,
                taken: (word >> 48) as u16,
            }),
            _ => Err(broken(format!("exchange line {word:#x}"))),
        }
    }
}

/// What no peer in its right mind writes.
#[cold]
pub(crate) fn broken(what: String) -> Error {
    Error::new(
        ErrorKind::LinkDown,
        format!("the peer broke the rules of its messages: {what}"),
    )
}

const fn lap_number(lap: u64) -> u64 {
    lap.wrapping_add(1) & 0xffff
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_untouched_cell_and_the_lap_before_say_nothing() {
        let header = Header {
            kind: Kind::Short,
            bytes: 56,
            label: Label::new(DataType::F32, 0xfe_dcba),
        };
        assert_eq!(Header::of(0, 0).unwrap(), None);
        for lap in [0, 1, 0xfffd, 0xfffe, 0xffff, 0x10000, u64::MAX] {
            assert_eq!(Header::of(header.word(lap), lap).unwrap(), Some(header));
            assert_eq!(
                Header::of(header.word(lap), lap.wrapping_add(1)).unwrap(),
                None
            );
        }
    }

    #[test]
    fn data_types_fit_an_exchange_line() {
        for dtype in DataType::ALL {
            let header = Exchanged {
                number: 0xffff,
                bytes: 24,
                dtype,
                position: 0x8001,
                taken: 0x7ffe,
            };
            assert_eq!(Exchanged::of(header.word()).unwrap(), header);
            assert!(Exchanged::is(header.word(), 0xffff, 0x8001));
        }
        assert!(!Exchanged::is(0, 1, 0));
        let too_long = Exchanged::of(25 << 16).unwrap_err();
        assert_eq!(too_long.kind(), ErrorKind::LinkDown);
    }

    proptest! {
        #[test]
        fn headers_come_back(
            kind in 0..KINDS.len(), bytes in 0..=MOST_BYTES, dtype in 0..DataType::ALL.len(),
            lap in 0..u64::MAX, tag: u32,
        ) {
            let label = Label::new(DataType::ALL[dtype], tag);
            let header = Header { kind: KINDS[kind], bytes, label };
            prop_assert_eq!(Header::of(header.word(lap), lap).unwrap(), Some(header));
        }

        #[test]
        fn any_word_is_a_header_or_an_error(word: u64, lap in 0..u64::MAX) {
            match Header::of(word, lap) {
                Ok(Some(header)) => prop_assert!(header.bytes <= MOST_BYTES),
                Ok(None) => {}
                Err(error) => prop_assert_eq!(error.kind(), ErrorKind::LinkDown),
            }
        }
    }
}
