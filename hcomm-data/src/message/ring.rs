//! Positions: what may be written next, what may be read next, and when each side is told.
//!
//! Pure arithmetic over two words of shared memory ([`Words`]), so that every interleaving can be
//! played through. Positions count up for ever: cells in cells, data in bytes. Only the side that
//! owns a position changes it; it is an atomic so that it can be changed through a shared
//! reference, not because anybody else looks.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a cell.
pub(crate) const CELL: u64 = 64;

/// Words of an inbox that both sides touch, by their number in it.
pub(crate) trait Words {
    /// Sees all that was stored before the value it finds.
    fn load(&self, word: usize) -> u64;
    /// Comes after all that was stored before.
    fn store(&self, word: usize, value: u64);
}

/// Lines of an inbox before the cells. What different sides or moments write lies two lines apart,
/// because cores fetch lines in pairs.
pub(crate) mod lines {
    /// Of what its owner sends, how many cells the peer has taken; then bytes of data.
    pub(crate) const CREDIT_CELLS: usize = 0;
    pub(crate) const CREDIT_DATA: usize = 1;
    /// 1 if the peer has refused a message; then the bytes sent, the bytes expected, and the
    /// numbers of both data types.
    pub(crate) const REFUSAL: usize = 16;
    pub(crate) const REFUSAL_SENT: usize = 17;
    pub(crate) const REFUSAL_EXPECTED: usize = 18;
    pub(crate) const REFUSAL_TYPES: usize = 19;
    /// 1 where the peer found that its core shares no cache with ours. Looked at for each long
    /// message, so not beside the credits, which the peer writes after each.
    pub(crate) const DISTANCE: usize = 20;
    /// Written to measure how long a line takes from the peer.
    pub(crate) const BEACON: usize = 32;
    /// The line in which short messages go to and fro, in the inbox of the side that is called the
    /// first: its half, then that of the second.
    pub(crate) const EXCHANGE: usize = 48;
    pub(crate) const EXCHANGE_OF_SECOND: usize = 52;
    /// What the peer grants: see [`direct`](super::super::direct).
    pub(crate) const GRANT: usize = 64;
    pub(crate) const GRANT_SLOT: usize = 65;
    pub(crate) const GRANT_OFFSET: usize = 66;
    pub(crate) const GRANT_BYTES: usize = 67;
    /// What the peer offers, in the same line: both are looked at together.
    pub(crate) const OFFER: usize = 68;
    pub(crate) const OFFER_SLOT: usize = 69;
    pub(crate) const OFFER_BYTES: usize = 70;
    /// What became of the latest offer of the inbox's owner.
    pub(crate) const ANSWER: usize = 80;
    /// The offered region, as its blob, up to the cells.
    pub(crate) const BLOB: usize = 96;
    /// Word at which the cells begin.
    pub(crate) const CELLS: usize = 128;
}

/// How an inbox is divided: lines, cells, data ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// A power of two.
    cells: u64,
    /// Bytes of the data ring, a multiple of a cell.
    data: u64,
}

impl Shape {
    /// A cell for each so many bytes of data.
    const DATA_A_CELL: u64 = 512;

    /// For a data ring of `data` bytes.
    pub(crate) const fn for_data(data: u64) -> Self {
        let mut cells = 16;
        while cells < 512 && cells * Self::DATA_A_CELL < data {
            cells *= 2;
        }
        let data = data / CELL * CELL;
        Self {
            cells,
            data: if data < CELL { CELL } else { data },
        }
    }

    /// Bytes of the whole inbox.
    pub(crate) const fn bytes(self) -> u64 {
        self.first_data() + self.data
    }

    pub(crate) const fn data(self) -> u64 {
        self.data
    }

    /// Longest message that goes into cells alone.
    pub(crate) const fn most_short(self) -> usize {
        // Never more than an eighth of the ring.
        let most = self.cells as usize / 8;
        PAYLOAD * if most > MOST_CELLS { MOST_CELLS } else { most }
    }

    /// Word of a cell's header.
    #[inline]
    pub(crate) const fn header(self, position: u64) -> usize {
        lines::CELLS + (position & (self.cells - 1)) as usize * (CELL as usize / 8)
    }

    #[inline]
    pub(crate) const fn lap(self, position: u64) -> u64 {
        position >> self.cells.trailing_zeros()
    }

    /// Byte of the inbox at which the data of a position lies.
    #[inline]
    pub(crate) const fn at(self, data: u64) -> u64 {
        self.first_data() + data % self.data
    }

    const fn first_data(self) -> u64 {
        lines::CELLS as u64 * 8 + self.cells * CELL
    }
}

/// Bytes of a message in one cell.
pub(crate) const PAYLOAD: usize = 56;

/// Most cells of one message. The receiver copies one out while the sender fills the next one, so
/// cells are quicker than a piece of the data ring as long as filling them costs little: measured
/// with two cores of a Zen 5, far, 1 KiB 0.45 µs in cells and 0.8 as a piece, 2 KiB 0.65 and 0.9,
/// 4 KiB 1.4 and 1.0; near, 1 KiB 0.08 and 0.12, 2 KiB 0.13 and 0.18, 4 KiB 0.24 and 0.29.
pub(crate) const MOST_CELLS: usize = 36;

/// The sending end of a ring.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    cells: AtomicU64,
    data: AtomicU64,
    /// As last seen: how much of both the peer has taken.
    freed_cells: AtomicU64,
    freed_data: AtomicU64,
}

/// Room in the data ring for the next piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Position of its first byte.
    pub(crate) position: u64,
    pub(crate) bytes: u64,
}

impl Tail {
    /// Position of the next cell.
    #[inline]
    pub(crate) fn cells(&self) -> u64 {
        get(&self.cells)
    }

    /// Whether the next `count` cells may be written. `own` is the inbox in which the peer says
    /// what it has taken.
    #[inline]
    pub(crate) fn has_cells(&self, shape: Shape, own: &impl Words, count: u64) -> bool {
        let end = get(&self.cells) + count;
        if end.wrapping_sub(get(&self.freed_cells)) <= shape.cells {
            return true;
        }
        self.look(shape, own);
        end.wrapping_sub(get(&self.freed_cells)) <= shape.cells
    }

    /// Room for the next piece of a message of which `left` bytes are left, at most `most`.
    pub(crate) fn room(
        &self,
        shape: Shape,
        own: &impl Words,
        left: u64,
        most: u64,
    ) -> Option<Room> {
        let position = get(&self.data);
        let bytes = left
            .min((most / CELL * CELL).max(CELL))
            .min(shape.data - position % shape.data);
        let end = position + bytes.next_multiple_of(CELL);
        if end.wrapping_sub(get(&self.freed_data)) > shape.data {
            self.look(shape, own);
            if end.wrapping_sub(get(&self.freed_data)) > shape.data {
                return None;
            }
        }
        Some(Room { position, bytes })
    }

    /// Cells have been published.
    #[inline]
    pub(crate) fn add_cells(&self, count: u64) {
        set(&self.cells, get(&self.cells) + count);
    }

    /// A piece has been published.
    pub(crate) fn add_data(&self, bytes: u64) {
        set(&self.data, get(&self.data) + bytes.next_multiple_of(CELL));
    }

    /// Whether the peer has taken more than was known. What is not to be believed is no news, or
    /// who waits for news would never come to ask anything else.
    pub(crate) fn has_news(&self, shape: Shape, own: &impl Words) -> bool {
        let is_news = |freed: &AtomicU64, sent: &AtomicU64, whole: u64, word| {
            let told = own.load(word);
            told > get(freed) && get(sent).wrapping_sub(told) <= whole
        };
        is_news(
            &self.freed_cells,
            &self.cells,
            shape.cells,
            lines::CREDIT_CELLS,
        ) || is_news(&self.freed_data, &self.data, shape.data, lines::CREDIT_DATA)
    }

    #[cold]
    fn look(&self, shape: Shape, own: &impl Words) {
        // Data first: whoever frees a piece frees its cell with it or later. What is impossible
        // (more than was sent, or less than before) is not believed.
        for (freed, sent, whole, word) in [
            (&self.freed_data, &self.data, shape.data, lines::CREDIT_DATA),
            (
                &self.freed_cells,
                &self.cells,
                shape.cells,
                lines::CREDIT_CELLS,
            ),
        ] {
            let (told, sent) = (own.load(word), get(sent));
            if sent.wrapping_sub(told) <= whole && told >= get(freed) {
                set(freed, told);
            }
        }
    }
}

/// The receiving end of a ring.
#[derive(Debug, Default)]
pub(crate) struct Head {
    cells: AtomicU64,
    data: AtomicU64,
    /// What the peer was told.
    told_cells: AtomicU64,
    told_data: AtomicU64,
}

impl Head {
    /// Position of the next cell.
    #[inline]
    pub(crate) fn cells(&self) -> u64 {
        get(&self.cells)
    }

    /// Position of the next piece.
    pub(crate) fn data(&self) -> u64 {
        get(&self.data)
    }

    #[inline]
    pub(crate) fn take_cells(&self, count: u64) {
        set(&self.cells, get(&self.cells) + count);
    }

    pub(crate) fn take_data(&self, bytes: u64) {
        set(&self.data, get(&self.data) + bytes.next_multiple_of(CELL));
    }

    /// Whether the peer has to be told before it can run short: what it does not know of stays
    /// below a quarter, and it never needs more than three at once.
    #[inline]
    pub(crate) fn owes(&self, shape: Shape) -> bool {
        get(&self.cells) - get(&self.told_cells) >= shape.cells / 4
    }

    /// As [`Head::owes`], of data.
    pub(crate) fn owes_data(&self, shape: Shape) -> bool {
        get(&self.data) - get(&self.told_data) >= shape.data / 4
    }

    /// Tells the peer. `peer` is its inbox.
    pub(crate) fn tell(&self, peer: &impl Words) {
        let (cells, data) = (get(&self.cells), get(&self.data));
        if cells != get(&self.told_cells) {
            peer.store(lines::CREDIT_CELLS, cells);
            set(&self.told_cells, cells);
        }
        if data != get(&self.told_data) {
            peer.store(lines::CREDIT_DATA, data);
            set(&self.told_data, data);
        }
    }
}

#[inline]
pub(crate) fn get(value: &AtomicU64) -> u64 {
    value.load(Ordering::Relaxed)
}

#[inline]
pub(crate) fn set(value: &AtomicU64, new: u64) {
    value.store(new, Ordering::Relaxed);
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use hcomm_transport::sync;
    use hcomm_transport::sync::model::{Plain, Wrong, check, check_when};
    use hcomm_types::DataType;
    use loom::thread;

    use super::super::header::{Header, Kind, Label};
    use super::*;

    const CELLS: usize = 2;
    const SHAPE: Shape = Shape {
        cells: CELLS as u64,
        data: CELL,
    };

    /// As much of an inbox as cells need: headers, payload, and what the peer has taken.
    #[derive(Default)]
    struct Inbox {
        headers: [sync::AtomicU64; CELLS],
        payload: [Plain<u64>; CELLS],
        credit: [sync::AtomicU64; 2],
    }

    impl Inbox {
        fn word(&self, word: usize) -> &sync::AtomicU64 {
            match word {
                lines::CREDIT_CELLS => &self.credit[0],
                lines::CREDIT_DATA => &self.credit[1],
                _ => &self.headers[(word - lines::CELLS) * 8 / CELL as usize],
            }
        }
    }

    // The orders of the real inbox.
    impl Words for Inbox {
        fn load(&self, word: usize) -> u64 {
            self.word(word).load(Ordering::Acquire)
        }

        fn store(&self, word: usize, value: u64) {
            self.word(word).store(value, Ordering::Release);
        }
    }

    const HEADER: Header = Header {
        kind: Kind::Short,
        bytes: 8,
        label: Label::new(DataType::U8, 0),
    };

    /// Three messages through two cells: the third one needs a cell that was given back.
    fn three_through_two() {
        const MESSAGES: u64 = 3;
        let inboxes = Arc::new([Inbox::default(), Inbox::default()]);
        let shared = Arc::clone(&inboxes);
        let sender = thread::spawn(move || {
            let [own, peer] = &*shared;
            let tail = Tail::default();
            for message in 0..MESSAGES {
                while !tail.has_cells(SHAPE, own, 1) {
                    thread::yield_now();
                }
                let at = tail.cells();
                peer.payload[at as usize % CELLS].set(message + 1);
                peer.store(SHAPE.header(at), HEADER.word(SHAPE.lap(at)));
                tail.add_cells(1);
            }
        });
        let [peer, own] = &*inboxes;
        let head = Head::default();
        for message in 0..MESSAGES {
            let at = head.cells();
            while Header::of(own.load(SHAPE.header(at)), SHAPE.lap(at))
                .unwrap()
                .is_none()
            {
                thread::yield_now();
            }
            assert_eq!(own.payload[at as usize % CELLS].get(), message + 1);
            head.take_cells(1);
            head.tell(peer);
        }
        sender.join().unwrap();
    }

    #[test]
    fn no_cell_is_read_early_or_written_again_early() {
        check(three_through_two);
    }

    #[test]
    #[should_panic]
    fn without_order_one_is() {
        check_when(Wrong::NoOrder, three_through_two);
    }
}
