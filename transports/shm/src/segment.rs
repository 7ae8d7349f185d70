//! The segment of one end of a channel: memory that this side reads and the peer writes; and, if
//! both ends have as many notifies, the notifies of both in the segment of one of them.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | entries the peer has put into the ring |
//! | 64 | 8 | entries this side has taken from it |
//! | 128 | 8 | frames the peer has sent on the socket |
//! | 192 | 8 | number of the region that the peer reaches directly at this moment |
//! | 256 | 8 a gate | number of the region that the gate lets the peer reach, written by this side |
//! | 4096 | 64 a notify | notifies, see [`Half`] |
//! | next page | 128 a slot | entries of the ring |
//! | behind | 8192 a slot | their data |

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsFd, OwnedFd};

use hcomm_transport_abi::{Fault, NotifyLineV1, STATUS_REFUSED};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};

use crate::limits::{reserved_memory, system_fault};
use crate::sys::{Mapping, Span};
use crate::wire::Token;

/// Entries of the ring.
pub(crate) const SLOTS: u64 = if cfg!(loom) { 2 } else { 64 };
/// Data of one entry. A multiple of every element, so that a piece never cuts one.
pub(crate) const PIECE_BYTES: u64 = 8192;
/// Size of a page here, whatever the machine's: the layout is the same everywhere.
const PAGE_BYTES: usize = 4096;
const SLOT_WORDS: usize = 16;
/// Two notifies of one index, one each way.
pub(crate) const LINE_BYTES: usize = 64;

/// Words of a notify line, see [`NotifyLineV1`].
const COUNT: usize = 0;
const SERVED: usize = 3;

const TAIL: usize = 0;
const HEAD: usize = 8;
const MAIL: usize = 16;
const INSIDE: usize = 24;
const GATE: usize = 32;
/// Gates of a channel: the rest of the first page.
pub(crate) const GATES: usize = PAGE_BYTES / 8 - GATE;

/// One end's segment, as seen by either side.
#[derive(Debug)]
pub(crate) struct Segment {
    mapping: Mapping,
    notifies: u32,
}

/// Half a line of the notifies: those of the segment's owner come first, those of the other side
/// second, if they are here and not in its own segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Owner,
    Other,
}

/// What stands in a slot of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) op: u32,
    pub(crate) flags: u32,
    pub(crate) region: u64,
    pub(crate) key: Token,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) notify: u32,
    pub(crate) dtype: u32,
    pub(crate) redop: u32,
    pub(crate) fingerprint: [u64; 2],
}

impl Segment {
    /// A segment in private memory: enough for a peer in this process, and the ring's pages are
    /// never touched then.
    pub(crate) fn private(notifies: u32) -> Result<Self, Fault> {
        let bytes = segment_bytes(notifies);
        Mapping::private(bytes)
            .map(|mapping| Self { mapping, notifies })
            .map_err(|errno| system_fault(&format!("a channel's {bytes} bytes"), errno))
    }

    /// Moves the segment, still unused, into memory that can be handed to another process. Its
    /// address stays.
    pub(crate) fn share(&self) -> Result<OwnedFd, Fault> {
        let memory = reserved_memory("hcomm-channel", self.mapping.bytes() as u64)?;
        self.mapping
            .back_with(&memory)
            .map_err(|errno| system_fault("mapping a channel's segment", errno))?;
        Ok(memory)
    }

    /// The peer's segment. Refused if it could shrink or is too small: touching it would kill us.
    pub(crate) fn of_peer(memory: &OwnedFd, notifies: u32) -> Result<Self, Fault> {
        let mapping = map_peer_memory(memory, segment_bytes(notifies) as u64, "a channel")?;
        Ok(Self { mapping, notifies })
    }

    pub(crate) const fn notifies(&self) -> u32 {
        self.notifies
    }

    /// Line of notify `index`.
    pub(crate) fn line(&self, half: Half, index: u32) -> Option<NonNull<NotifyLineV1>> {
        let at = (index < self.notifies).then(|| line_word(half, index) * 8)?;
        NonNull::new(self.mapping.address().as_ptr().wrapping_add(at).cast())
    }

    /// Adds one to notify `index`, the fingerprint before it. `false` if there is no such index.
    /// For the side that does not wait there.
    pub(crate) fn record(&self, half: Half, index: u32, fingerprint: [u64; 2]) -> bool {
        self.add_one(half, index, COUNT, fingerprint)
    }

    /// The same on behalf of the peer, for the side that waits.
    pub(crate) fn record_served(&self, half: Half, index: u32, fingerprint: [u64; 2]) -> bool {
        self.add_one(half, index, SERVED, fingerprint)
    }

    /// Each word has one writer, so two steps are as good as an atomic one.
    fn add_one(&self, half: Half, index: u32, word: usize, fingerprint: [u64; 2]) -> bool {
        if index >= self.notifies {
            return false;
        }
        let line = line_word(half, index);
        for (at, value) in (line + 1..).zip(fingerprint) {
            if value != 0 {
                self.word(at).store(value, Ordering::Relaxed);
            }
        }
        let word = self.word(line + word);
        let records = word.load(Ordering::Relaxed);
        word.store(records.wrapping_add(1), Ordering::Release);
        true
    }

    /// The first notify line; the others follow at every [`LINE_BYTES`].
    pub(crate) fn lines(&self, half: Half) -> NonNull<NotifyLineV1> {
        let at = line_word(half, 0) * 8;
        // Inside the mapping, or just behind it if there are no lines.
        let first = self.mapping.address().as_ptr().wrapping_add(at).cast();
        NonNull::new(first).unwrap_or(NonNull::dangling())
    }

    /// Entries put in.
    pub(crate) fn tail(&self) -> &AtomicU64 {
        self.word(TAIL)
    }

    /// Entries taken out.
    pub(crate) fn head(&self) -> &AtomicU64 {
        self.word(HEAD)
    }

    /// Frames sent.
    pub(crate) fn mail(&self) -> &AtomicU64 {
        self.word(MAIL)
    }

    /// Number of the region that the peer reaches directly at this moment, or 0.
    pub(crate) fn inside(&self) -> &AtomicU64 {
        self.word(INSIDE)
    }

    /// Number of the region that gate `index` is open for, or 0. `None` if there is no such gate.
    pub(crate) fn gate(&self, index: usize) -> Option<&AtomicU64> {
        (index < GATES).then(|| self.word(GATE + index))
    }

    pub(crate) fn put_entry(&self, position: u64, entry: &Entry) {
        let first = self.slot_word(position);
        for (index, value) in entry.words().into_iter().enumerate() {
            self.word(first + index).store(value, Ordering::Relaxed);
        }
    }

    /// A copy, so that what is checked is what is used.
    pub(crate) fn take_entry(&self, position: u64) -> Entry {
        let first = self.slot_word(position);
        Entry::from_words(core::array::from_fn(|index| {
            self.word(first + index).load(Ordering::Relaxed)
        }))
    }

    /// What became of an entry; written by the side that takes it.
    pub(crate) fn outcome(&self, position: u64) -> &AtomicU64 {
        self.word(self.slot_word(position) + SLOT_WORDS - 1)
    }

    /// The first `bytes` bytes of an entry's data.
    pub(crate) fn data(&self, position: u64, bytes: u64) -> Option<Span<'_>> {
        if bytes > PIECE_BYTES {
            return None;
        }
        let first = ring_bytes(self.notifies) + SLOTS as usize * SLOT_WORDS * 8;
        let at = first as u64 + position % SLOTS * PIECE_BYTES;
        self.mapping.span().part(at, bytes)
    }

    fn slot_word(&self, position: u64) -> usize {
        ring_bytes(self.notifies) / 8 + (position % SLOTS) as usize * SLOT_WORDS
    }

    /// Indices are computed from the layout that the mapping was sized for, never from what a
    /// peer wrote.
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.mapping.words()[index]
    }
}

impl Entry {
    const fn words(&self) -> [u64; SLOT_WORDS - 1] {
        let key = u128::from_le_bytes(self.key);
        [
            pair(self.op, self.flags),
            self.region,
            key as u64,
            (key >> 64) as u64,
            self.offset,
            self.bytes,
            pair(self.notify, self.dtype),
            self.redop as u64,
            self.fingerprint[0],
            self.fingerprint[1],
            0,
            0,
            0,
            0,
            0,
        ]
    }

    fn from_words(words: [u64; SLOT_WORDS - 1]) -> Self {
        Self {
            op: words[0] as u32,
            flags: (words[0] >> 32) as u32,
            region: words[1],
            key: (u128::from(words[2]) | u128::from(words[3]) << 64).to_le_bytes(),
            offset: words[4],
            bytes: words[5],
            notify: words[6] as u32,
            dtype: (words[6] >> 32) as u32,
            redop: words[7] as u32,
            fingerprint: [words[8], words[9]],
        }
    }
}

/// Maps memory that a peer sent, after making sure that it has `bytes` bytes for good.
pub(crate) fn map_peer_memory(memory: impl AsFd, bytes: u64, what: &str) -> Result<Mapping, Fault> {
    let sealed = fcntl_get_seals(&memory).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    let size = fstat(&memory).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
    if !sealed || size < bytes {
        return Err(Fault::new(
            STATUS_REFUSED,
            format!(
                "the peer sent memory for {what} of {size} bytes, {}; {bytes} bytes that cannot \
                 shrink are needed",
                if sealed { "sealed" } else { "not sealed" }
            ),
        ));
    }
    let mapped = usize::try_from(bytes).map_err(|_| Fault::invalid("region too large"))?;
    Mapping::shared(memory, mapped)
        .map_err(|errno| system_fault(&format!("mapping {bytes} bytes for {what}"), errno))
}

const fn segment_bytes(notifies: u32) -> usize {
    ring_bytes(notifies) + SLOTS as usize * (SLOT_WORDS * 8 + PIECE_BYTES as usize)
}

const fn ring_bytes(notifies: u32) -> usize {
    PAGE_BYTES + (notifies as usize * LINE_BYTES).next_multiple_of(PAGE_BYTES)
}

const fn line_word(half: Half, index: u32) -> usize {
    let half = match half {
        Half::Owner => 0,
        Half::Other => LINE_BYTES / 16,
    };
    PAGE_BYTES / 8 + index as usize * (LINE_BYTES / 8) + half
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        let segment = Segment::private(3).unwrap();
        assert_eq!(segment.line(Half::Owner, 3), None);
        assert!(!segment.record(Half::Owner, 3, [1, 1]));
        assert!(segment.record(Half::Owner, 2, [7, 8]));
        assert!(segment.record(Half::Other, 1, [9, 10]));
        let last = segment.data(SLOTS - 1, PIECE_BYTES).unwrap();
        let end = segment.mapping.address().as_ptr() as usize + segment.mapping.bytes();
        assert_eq!(last.address() as usize + last.bytes(), end);
        assert!(segment.data(0, PIECE_BYTES + 1).is_none());
        assert_eq!(segment.take_entry(0).words(), [0; SLOT_WORDS - 1]);
        let count = |half, index| segment.word(line_word(half, index)).load(Ordering::Relaxed);
        assert_eq!(count(Half::Owner, 2), 1);
        assert_eq!(count(Half::Other, 2), 0);
        assert_eq!(count(Half::Owner, 1), 0);
        assert_eq!(count(Half::Other, 1), 1);
        assert_eq!(
            segment.line(Half::Owner, 0),
            Some(segment.lines(Half::Owner))
        );
        assert_eq!(
            segment.line(Half::Other, 0),
            Some(segment.lines(Half::Other))
        );
    }

    #[test]
    fn sharing_keeps_the_address() {
        let segment = Segment::private(1).unwrap();
        let before = segment.line(Half::Owner, 0).unwrap();
        let memory = segment.share().unwrap();
        assert_eq!(segment.line(Half::Owner, 0), Some(before));
        let peers_view = Segment::of_peer(&memory, 1).unwrap();
        assert!(peers_view.record(Half::Owner, 0, [0, 0]));
        let count = segment.word(line_word(Half::Owner, 0));
        assert_eq!(count.load(Ordering::Acquire), 1);
    }

    #[test]
    fn memory_that_could_shrink_is_refused() {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        let loose = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&loose, 1 << 22).unwrap();
        assert_eq!(
            Segment::of_peer(&loose, 1).unwrap_err().status,
            STATUS_REFUSED
        );
        let small = reserved_memory("test", 4096).unwrap();
        assert_eq!(
            Segment::of_peer(&small, 1).unwrap_err().status,
            STATUS_REFUSED
        );
    }

    proptest! {
        #[test]
        fn entries_come_back(
            numbers in any::<[u32; 5]>(), wide in any::<[u64; 5]>(), key in any::<Token>(),
            position in any::<u64>(),
        ) {
            let entry = Entry {
                op: numbers[0], flags: numbers[1], notify: numbers[2], dtype: numbers[3],
                redop: numbers[4], region: wide[0], offset: wide[1], bytes: wide[2],
                fingerprint: [wide[3], wide[4]], key,
            };
            let segment = Segment::private(1).unwrap();
            segment.put_entry(position, &entry);
            prop_assert_eq!(segment.take_entry(position), entry);
            prop_assert_eq!(segment.outcome(position).load(Ordering::Relaxed), 0);
        }
    }
}
