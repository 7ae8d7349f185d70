//! How a communicator's buffer and a channel's notifies are divided. The same on all ranks.

use std::ops::Range;

use hcomm_data::MessageLink;
use hcomm_types::{Error, ErrorKind, MAX_PACKET_LINES, Rank, Result};

/// Smallest buffer a communicator works with, in bytes.
pub const MIN_BUFFER_BYTES: u64 = 64 << 10;

const LINE: u64 = 64;
const PAGE: u64 = 4096;
/// Most bytes of a message that an inbox holds: more than both cores' first caches, so that sender
/// and receiver work on different lines, and little enough for many ranks.
const MOST_INBOX_BYTES: u64 = 256 << 10;

/// Packet lines for what one rank sends: two sets, used in turn.
const PACKETS: u64 = 2 * MAX_PACKET_LINES as u64 * LINE;

/// Places in the communicator buffer of every rank:
///
/// ```text
/// | probe slots, two lines a rank | a line for loans | packet lines, two sets a rank |
/// | half 0 | half 1 |
/// | inboxes, one a rank | inboxes for streams, one a rank |
/// ```
///
/// Packet lines hold what each other rank sends in packets, and never anything else. Collectives
/// use the two halves in turn. An inbox holds what one other rank sends point to
/// point, and one for streams what it sends as the root of collectives that go by messages. A probe slot is where the peer writes at the end of a channel handshake; the line
/// after it is where this rank keeps what it writes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    size: u64,
    half_bytes: u64,
    inbox_bytes: u64,
    stream_bytes: u64,
}

impl Layout {
    /// Layout for `size` ranks with `buffer_bytes` bytes for the halves and inboxes.
    ///
    /// # Errors
    /// `InvalidArgument` below [`MIN_BUFFER_BYTES`], or if no inbox of a line would be left.
    pub fn new(size: u32, buffer_bytes: u64) -> Result<Self> {
        let size = u64::from(size);
        let inbox_bytes = (buffer_bytes / 4 / size).min(MOST_INBOX_BYTES) / (2 * LINE) * (2 * LINE);
        let stream_bytes = (inbox_bytes / 2).next_multiple_of(2 * LINE);
        let need = MIN_BUFFER_BYTES.max(4 * size * 2 * LINE);
        if buffer_bytes < need {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("a communicator buffer of {buffer_bytes} bytes; {size} ranks need {need}"),
            )
            .hint("raise HCOMM_BUFFER_BYTES"));
        }
        let half_bytes = (buffer_bytes - (inbox_bytes + stream_bytes) * size) / 2 / PAGE * PAGE;
        Ok(Self {
            size,
            half_bytes,
            inbox_bytes,
            stream_bytes,
        })
    }

    /// Bytes of the whole buffer.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.streams() + self.size * self.stream_stride()
    }

    /// Bytes of one half.
    #[must_use]
    pub const fn half_bytes(&self) -> u64 {
        self.half_bytes
    }

    /// Where the half of the `turn`-th operation begins.
    #[must_use]
    pub const fn half(&self, turn: u64) -> u64 {
        self.halves() + turn % 2 * self.half_bytes
    }

    /// Bytes of the longest message that fits in an inbox.
    #[must_use]
    pub const fn inbox_bytes(&self) -> u64 {
        self.inbox_bytes
    }

    /// Bytes from one inbox to the next: those of a message, and what a message link needs besides.
    #[must_use]
    pub const fn inbox_stride(&self) -> u64 {
        MessageLink::inbox_bytes(self.inbox_bytes)
    }

    /// Where the inbox for messages from a rank begins.
    #[must_use]
    pub const fn inbox(&self, from: Rank) -> u64 {
        self.inboxes() + from.0 as u64 * self.inbox_stride()
    }

    /// Bytes of the longest message that fits in an inbox for streams.
    #[must_use]
    pub const fn stream_bytes(&self) -> u64 {
        self.stream_bytes
    }

    /// Bytes from one inbox for streams to the next.
    #[must_use]
    pub const fn stream_stride(&self) -> u64 {
        MessageLink::inbox_bytes(self.stream_bytes)
    }

    /// Where the inbox for streams from a rank begins.
    #[must_use]
    pub const fn stream(&self, from: Rank) -> u64 {
        self.streams() + from.0 as u64 * self.stream_stride()
    }

    /// Where a rank's probe is written.
    #[must_use]
    pub const fn probe(&self, from: Rank) -> u64 {
        from.0 as u64 * 2 * LINE
    }

    /// Where what is written to a rank as a probe lies.
    #[must_use]
    pub const fn probe_source(&self, to: Rank) -> u64 {
        self.probe(to) + LINE
    }

    /// The packet lines for what a rank sends.
    #[must_use]
    pub const fn packets(&self, from: Rank) -> Range<u64> {
        let start = self.probes() + from.0 as u64 * PACKETS;
        start..start + PACKETS
    }

    const fn halves(&self) -> u64 {
        self.probes() + (self.size * PACKETS).next_multiple_of(PAGE)
    }

    /// The line in which this rank says what memory of its own it lends in a collective.
    #[must_use]
    pub const fn lent(&self) -> Range<u64> {
        let start = self.size * 2 * LINE;
        start..start + LINE
    }

    const fn probes(&self) -> u64 {
        self.lent().end.next_multiple_of(PAGE)
    }

    const fn streams(&self) -> u64 {
        self.inboxes() + self.size * self.inbox_stride()
    }

    const fn inboxes(&self) -> u64 {
        self.halves() + 2 * self.half_bytes
    }
}

/// Which of a channel's notifies an operation uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notifies {
    /// A collective, both ways.
    Collective,
    /// A message between two ranks.
    PointToPoint {
        /// Whether this rank sends it.
        sends: bool,
    },
}

impl Notifies {
    /// The one that ends the handshake.
    pub(crate) const PROBE: u32 = 0;
    const COLLECTIVE: u32 = 1;
    /// Ten for each of four flows.
    const COLLECTIVES: u32 = 40;
    const DATA: u32 = Self::COLLECTIVE + Self::COLLECTIVES;
    const CREDIT: u32 = Self::DATA + Self::SLOTS;
    /// Notifies that point-to-point plans use in each direction: those of two slots, which begin
    /// with a credit, and one for a handshake.
    pub(crate) const SLOTS: u32 = 3;
    /// How many of them, from the first one on, begin with a credit.
    pub(crate) const CREDITS: u32 = 2;
    /// All of a channel that serves a communicator.
    pub(crate) const COUNT: u32 = Self::CREDIT + Self::SLOTS;

    /// The channel's number of a notify that this rank records.
    ///
    /// # Errors
    /// `InvalidArgument` if a plan uses more than there are.
    pub fn outgoing(self, notify: u32) -> Result<u32> {
        match self {
            Self::Collective => within(notify, Self::COLLECTIVE, Self::COLLECTIVES),
            Self::PointToPoint { sends: true } => within(notify, Self::DATA, Self::SLOTS),
            Self::PointToPoint { sends: false } => within(notify, Self::CREDIT, Self::SLOTS),
        }
    }

    /// The channel's number of a notify that this rank waits for.
    ///
    /// # Errors
    /// `InvalidArgument` if a plan uses more than there are.
    pub fn incoming(self, notify: u32) -> Result<u32> {
        match self {
            Self::Collective => self.outgoing(notify),
            Self::PointToPoint { sends } => Self::PointToPoint { sends: !sends }.outgoing(notify),
        }
    }
}

fn within(notify: u32, first: u32, count: u32) -> Result<u32> {
    if notify < count {
        return Ok(first + notify);
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("the plan uses notify {notify}, a channel has {count} for it"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_each_other_without_overlap() {
        for size in [1, 2, 3, 8, 64, 500] {
            let layout = Layout::new(size, 8 << 20).unwrap();
            let last = Rank(size - 1);
            assert!(layout.probe_source(last) + LINE <= layout.packets(Rank(0)).start);
            assert_eq!(layout.packets(Rank(0)).start % LINE, 0);
            assert!(layout.packets(last).end <= layout.half(0));
            assert_eq!(layout.half(0) + layout.half_bytes(), layout.half(1));
            assert_eq!(layout.half(2), layout.half(0));
            assert_eq!(layout.half(1) + layout.half_bytes(), layout.inbox(Rank(0)));
            assert_eq!(
                layout.inbox(last) + layout.inbox_stride(),
                layout.stream(Rank(0))
            );
            assert_eq!(layout.stream(last) + layout.stream_stride(), layout.bytes());
            assert!(layout.stream_bytes() >= 2 * LINE);
            assert_eq!(layout.stream(last) % LINE, 0);
            assert!(u64::from(size) * layout.stream_stride() <= 32 << 20);
            assert_eq!(layout.inbox(last) % LINE, 0);
            assert!(u64::from(size) * layout.inbox_stride() <= 32 << 20);
            assert!(layout.inbox_bytes() >= 2 * LINE && layout.half_bytes() >= PAGE);
            assert_eq!(layout.half(0) % PAGE, 0);
        }
    }

    #[test]
    fn a_buffer_that_is_too_small_is_refused_with_the_need() {
        let error = Layout::new(2, 1000).unwrap_err().to_string();
        assert!(error.contains("1000") && error.contains("65536"), "{error}");
        assert!(Layout::new(10_000, MIN_BUFFER_BYTES).is_err());
    }

    #[test]
    fn what_one_side_records_the_other_waits_for() {
        let (send, recv) = (
            Notifies::PointToPoint { sends: true },
            Notifies::PointToPoint { sends: false },
        );
        let mut seen = vec![Notifies::PROBE];
        for slot in 0..Notifies::SLOTS {
            assert_eq!(send.outgoing(slot).unwrap(), recv.incoming(slot).unwrap());
            assert_eq!(recv.outgoing(slot).unwrap(), send.incoming(slot).unwrap());
            seen.extend([send.outgoing(slot).unwrap(), recv.outgoing(slot).unwrap()]);
        }
        seen.extend((0..Notifies::COLLECTIVES).map(|n| Notifies::Collective.outgoing(n).unwrap()));
        seen.sort_unstable();
        assert_eq!(seen, (0..Notifies::COUNT).collect::<Vec<_>>());
        assert!(
            Notifies::Collective
                .outgoing(Notifies::COLLECTIVES)
                .is_err()
        );
        assert!(send.outgoing(Notifies::SLOTS).is_err());
    }
}
