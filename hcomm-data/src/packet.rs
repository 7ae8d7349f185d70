//! Packets: small transfers over mapped memory, whose payload and flag travel in one cache line.
//!
//! ```text
//! | payload, 56 bytes | flag, 8 bytes |
//! ```
//!
//! The writer stores the payload, then the flag, with release order; the reader loads the flag,
//! with acquire order, and looks at the payload only if the flag is the one it expects. So no
//! store has to be wider than the flag: what the reader takes is whole, in whatever order the
//! stores of the payload are seen. A single store of the whole line would gain nothing (the line
//! is fetched once, and the stores that follow the first find it there), and no processor promises
//! that it is seen as one. What does not fit in a line goes into the lines after it, each with a
//! flag of its own.
//!
//! The flag is the *sequence* of the run that writes, a number that both sides count alike and that
//! grows with each run, beginning at one; so nothing is ever cleared, and zero is a line that was
//! never used. Its last bits are some of the run's fingerprint: who finds the right number with
//! others is in another call than its peer, and says so. A line is used again after two runs, so
//! that nothing comes of the number beginning anew after 2^44. Lines hold packets and nothing
//! else; ordinary bytes could look like a flag. There are two sets of lines, used in turn: a packet
//! of one run may be written while the reader is still at the run before, not while it is at the
//! one before that.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use hcomm_transport::sync::SharedWord;
use hcomm_types::{DataType, Error, ErrorKind, ReduceOp, Result};

use crate::channel::{Channel, mismatch};
use crate::copy::Hint;
use crate::memory::Place;
use crate::slice::{RemoteSlice, Slice};

/// Bytes of a packet's line.
pub const PACKET_LINE_BYTES: usize = 64;

/// Bytes of payload that a line holds, a multiple of the size of every element.
pub const PACKET_PAYLOAD_BYTES: usize = PACKET_LINE_BYTES - size_of::<u64>();

/// Lines that a packet of so many bytes takes. One of no bytes is a flag alone.
#[must_use]
pub const fn packet_lines(bytes: u64) -> u64 {
    let lines = bytes.div_ceil(PACKET_PAYLOAD_BYTES as u64);
    if lines == 0 { 1 } else { lines }
}

/// Bits of a fingerprint in a flag.
const FINGERPRINT_BITS: u32 = 20;

/// The flag of a run, with a fingerprint or without (zero).
#[inline(always)]
pub(crate) const fn packet_flag(sequence: u64, fingerprint: u64) -> u64 {
    (sequence << FINGERPRINT_BITS) | (fingerprint & ((1 << FINGERPRINT_BITS) - 1))
}

/// Whether two flags are of one run, or should be.
const fn same_run(a: u64, b: u64) -> bool {
    (a ^ b) >> FINGERPRINT_BITS == 0
}

/// Where the packets of a link travel: on both sides an even number of lines, the same number on
/// each, of which runs use the two halves in turn. Zeroed before the first run, and used for
/// nothing else.
#[derive(Clone, Debug)]
pub struct PacketLines {
    /// Where the peer's packets arrive.
    pub incoming: Slice,
    /// Where packets for the peer arrive there. Its memory has to be mapped.
    pub outgoing: RemoteSlice,
}

impl PacketLines {
    /// Lines of one run.
    pub(crate) const fn count(&self) -> u64 {
        self.incoming.bytes() as u64 / (2 * PACKET_LINE_BYTES as u64)
    }

    /// Refuses lines that are not laid out as they must be.
    pub(crate) fn check(&self, channel: &Channel) -> Result<()> {
        let wrong = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what));
        let (here, there) = (self.incoming.bytes() as u64, self.outgoing.bytes());
        if here != there || !here.is_multiple_of(2 * PACKET_LINE_BYTES as u64) {
            return wrong(format!(
                "packet lines of {here} bytes here and {there} at the peer; both sides need the \
                 same even number of lines of {PACKET_LINE_BYTES} bytes"
            ));
        }
        if !channel.imported(self.outgoing.import()) {
            return wrong("packet lines were imported through another channel".to_owned());
        }
        let Some(outgoing) = self.outgoing.remote().mapped() else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "packets need the peer's memory mapped, and {:?} does not map it",
                    channel.transport().device()
                ),
            )
            .hint("take an algorithm without packets for this link"));
        };
        for (what, lines) in [("here", self.incoming.place()), ("at the peer", outgoing)] {
            let address = lines.address().as_ptr() as usize;
            if !address.is_multiple_of(PACKET_LINE_BYTES) {
                return wrong(format!(
                    "packet lines {what} begin at address {address:#x}, which is no multiple of \
                     {PACKET_LINE_BYTES}"
                ));
            }
        }
        Ok(())
    }

    /// Where a packet for the peer goes.
    #[inline(always)]
    pub(crate) fn outgoing(&self, at: Packet) -> Result<Place<'_>> {
        let (offset, bytes) = (self.offset(at), at.lines * PACKET_LINE_BYTES as u64);
        self.outgoing
            .remote()
            .part(offset, bytes)?
            .mapped()
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Internal,
                    "packets go to memory that is not mapped",
                )
            })
    }

    /// A packet of the peer that is to come.
    #[inline(always)]
    pub(crate) fn incoming(&self, at: Packet, flag: u64) -> Incoming<'_> {
        Incoming {
            lines: &self.incoming,
            offset: self.offset(at) as usize,
            flag,
        }
    }

    const fn offset(&self, at: Packet) -> u64 {
        first_line(at, self.count()) * PACKET_LINE_BYTES as u64
    }
}

/// Which packet of a link: some lines of those of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) sequence: u64,
    pub(crate) line: u64,
    pub(crate) lines: u64,
}

/// A packet that is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming<'a> {
    lines: &'a Slice,
    /// Of its first line in `lines`.
    offset: usize,
    /// What its lines are marked with.
    flag: u64,
}

/// A line that is waited for, for as long as its reader sleeps.
#[derive(Clone, Debug)]
pub(crate) struct Missing {
    lines: Slice,
    offset: usize,
    flag: u64,
}

impl Missing {
    /// Whether it is there by now.
    pub(crate) fn arrived(&self) -> bool {
        self.lines
            .place()
            .part(self.offset as u64, PACKET_LINE_BYTES as u64)
            // A line that is not there never comes: its reader says so.
            .map_or(true, |line| same_run(Line::of(line, 0).flag(), self.flag))
    }

    /// Whether it is the line of a packet that `done` bytes were taken of.
    pub(crate) fn is(&self, packet: &Incoming<'_>, done: usize) -> bool {
        self.offset == packet.missing_at(done)
            && self.flag == packet.flag
            && self.lines.offset() == packet.lines.offset()
            && self.lines.region().is_same(packet.lines.region())
    }
}

impl Incoming<'_> {
    /// What the reader waits for, when it has taken `done` bytes.
    pub(crate) fn missing(&self, done: usize) -> Missing {
        Missing {
            lines: self.lines.clone(),
            offset: self.missing_at(done),
            flag: self.flag,
        }
    }

    const fn missing_at(&self, done: usize) -> usize {
        self.offset + done / PACKET_PAYLOAD_BYTES * PACKET_LINE_BYTES
    }

    fn lines(&self, bytes: usize) -> Result<Place<'_>> {
        let lines = packet_lines(bytes as u64) * PACKET_LINE_BYTES as u64;
        self.lines.place().part(self.offset as u64, lines)
    }
}

/// Sends `src` as a packet into `lines`.
#[inline(always)]
pub(crate) fn write(lines: Place<'_>, src: Place<'_>, flag: u64) -> Result<()> {
    let bytes = src.bytes();
    check_lines(lines, bytes)?;
    let mut done = 0;
    loop {
        let piece = (bytes - done).min(PACKET_PAYLOAD_BYTES);
        let from = Bytes {
            // SAFETY: `done` is at most the length of the place.
            address: unsafe { src.address().add(done) },
            bytes: piece,
        };
        send(&mut Line::of(lines, done), from, flag);
        done += piece;
        if done == bytes {
            return Ok(());
        }
    }
}

/// Takes what has come of a packet into `dst`, from byte `done` on, and moves `done` on. Returns
/// whether that was all.
#[inline(always)]
pub(crate) fn read(dst: Place<'_>, packet: &Incoming<'_>, done: &mut usize) -> Result<bool> {
    dst.check_writable()?;
    take(packet, dst.bytes(), done, |payload, at| {
        // SAFETY: both are there, `take` keeps inside the place, and lines are no memory of tasks.
        unsafe { copy(payload, dst.address().add(at)) };
    })
}

/// Combines what has come of a packet: `dst = a op packet`, or `dst = packet op a` if `swapped`;
/// otherwise as [`read`]. `dst` begins where `a` begins, or they are apart.
#[inline(always)]
pub(crate) fn reduce(
    dst: Place<'_>,
    a: Place<'_>,
    packet: &Incoming<'_>,
    (dtype, redop, swapped): (DataType, ReduceOp, bool),
    done: &mut usize,
) -> Result<bool> {
    dst.check_writable()?;
    if a.bytes() != dst.bytes() || !dst.bytes().is_multiple_of(dtype.size()) {
        return Err(Error::new(
            ErrorKind::Internal,
            format!(
                "a packet is combined with {} bytes to {} bytes of {dtype}",
                a.bytes(),
                dst.bytes()
            ),
        ));
    }
    if !dst.is_at(a) && dst.overlaps(a) {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "the result of a reduction overlaps an operand in part",
        ));
    }
    take(packet, dst.bytes(), done, |payload, at| {
        // SAFETY: all three hold as many bytes from there on, whole elements, since a payload is;
        // how the places may overlap was just checked, and lines are no memory of tasks.
        unsafe {
            let (to, own) = (dst.address().add(at), a.address().add(at));
            let own = own.as_ptr().cast_const();
            let theirs = payload.address.as_ptr().cast_const();
            let (first, second) = if swapped {
                (theirs, own)
            } else {
                (own, theirs)
            };
            let count = payload.bytes / dtype.size();
            crate::reduce::reduce(to.as_ptr(), first, second, count, dtype, redop, Hint::Local);
        }
    })
}

/// Hands out the payloads of the lines that have come, with their offsets.
#[inline(always)]
fn take(
    packet: &Incoming<'_>,
    bytes: usize,
    done: &mut usize,
    mut each: impl FnMut(Bytes, usize),
) -> Result<bool> {
    let lines = packet.lines(bytes)?;
    loop {
        let piece = bytes.saturating_sub(*done).min(PACKET_PAYLOAD_BYTES);
        let line = Line::of(lines, *done);
        if !receive(&line, packet.flag, |line| each(line.payload(piece), *done)) {
            let found = line.flag();
            if found != packet.flag && same_run(found, packet.flag) {
                return Err(mismatch(found, packet.flag));
            }
            return Ok(false);
        }
        *done += piece;
        if *done >= bytes {
            return Ok(true);
        }
    }
}

/// The order in which a line is written. The flag comes last.
fn send<L: Flagged>(line: &mut L, payload: L::Payload, sequence: u64) {
    line.put(payload);
    line.raise(sequence);
}

/// The order in which a line is read. The flag comes first.
fn receive<L: Flagged>(line: &L, sequence: u64, take: impl FnOnce(&L)) -> bool {
    let arrived = line.flag() == sequence;
    if arrived {
        take(line);
    }
    arrived
}

/// A line, or a model of one.
trait Flagged {
    type Payload;
    /// Stores the payload, in any order.
    fn put(&mut self, payload: Self::Payload);
    /// Stores the flag, after all that was stored before.
    fn raise(&mut self, sequence: u64);
    /// Loads the flag, before all that is loaded afterwards.
    fn flag(&self) -> u64;
}

/// Stores a flag, after all that was stored before.
#[inline]
fn raise(flag: &impl SharedWord, sequence: u64) {
    flag.store(sequence, Ordering::Release);
}

/// Loads a flag, before all that is loaded afterwards.
#[inline]
fn look_at(flag: &impl SharedWord) -> u64 {
    flag.load(Ordering::Acquire)
}

/// The first line of a packet, in one of two halves of `count` lines, of which runs use one each in
/// turn.
const fn first_line(at: Packet, count: u64) -> u64 {
    at.sequence % 2 * count + at.line
}

/// A line in memory that exists as long as it is used.
struct Line(NonNull<u8>);

/// Bytes in such memory.
#[derive(Clone, Copy)]
struct Bytes {
    address: NonNull<u8>,
    bytes: usize,
}

impl Line {
    /// The line that holds byte `done` of a packet.
    fn of(lines: Place<'_>, done: usize) -> Self {
        let offset = done / PACKET_PAYLOAD_BYTES * PACKET_LINE_BYTES;
        debug_assert!(offset + PACKET_LINE_BYTES <= lines.bytes());
        // SAFETY: callers have lines for as many bytes.
        Self(unsafe { lines.address().add(offset) })
    }

    const fn payload(&self, bytes: usize) -> Bytes {
        Bytes {
            address: self.0,
            bytes,
        }
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the last eight bytes of a line, which begins at a multiple of 64
        // (`PacketLines::check`), and which both sides reach through atomics only.
        unsafe { AtomicU64::from_ptr(self.0.as_ptr().add(PACKET_PAYLOAD_BYTES).cast()) }
    }
}

impl Flagged for Line {
    type Payload = Bytes;

    fn put(&mut self, payload: Bytes) {
        // SAFETY: a payload fits in a line and comes from elsewhere.
        unsafe { copy(payload, self.0) };
    }

    fn raise(&mut self, sequence: u64) {
        raise(self.word(), sequence);
    }

    fn flag(&self) -> u64 {
        look_at(self.word())
    }
}

/// Copies at most a payload. The lengths that occur most take no call.
///
/// # Safety
/// Both sides exist and are apart.
#[inline]
unsafe fn copy(from: Bytes, to: NonNull<u8>) {
    let (from, bytes) = (from.address, from.bytes);
    // SAFETY: the caller's promise.
    unsafe {
        match bytes {
            PACKET_PAYLOAD_BYTES => from.copy_to_nonoverlapping(to, PACKET_PAYLOAD_BYTES),
            8 => from.copy_to_nonoverlapping(to, 8),
            4 => from.copy_to_nonoverlapping(to, 4),
            _ => from.copy_to_nonoverlapping(to, bytes),
        }
    }
}

fn check_lines(lines: Place<'_>, bytes: usize) -> Result<()> {
    if lines.bytes() as u64 >= packet_lines(bytes as u64) * PACKET_LINE_BYTES as u64 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Internal,
        format!(
            "a packet of {bytes} bytes into {} bytes of lines",
            lines.bytes()
        ),
    ))
}

#[cfg(test)]
mod tests {
    //! Every order in which two sides can use lines.
    //!
    //! A line is eight words that become visible one by one; payloads of one line in any order,
    //! its flag when all that was stored before is visible, which is what a release store
    //! promises. The reader's loads may each see any moment from the previous load on, which is
    //! what an acquire load promises for those after it. Between two loads the search therefore
    //! tries every set of words that may have become visible. That the flag is stored and loaded
    //! in this way is the business of `models`.

    use std::cell::RefCell;
    use std::collections::HashSet;

    use super::*;

    /// Words of a line; the last one is the flag.
    const WORDS: u32 = 8;
    const FLAG: u32 = WORDS - 1;
    const SEQUENCE: u64 = 9;

    /// What a writer did, in its order: words, by number over all lines.
    #[derive(Default)]
    struct Written {
        line: u32,
        stores: Vec<u32>,
    }

    impl Flagged for Written {
        type Payload = u32;

        fn put(&mut self, words: u32) {
            self.stores
                .extend((0..words).map(|word| self.line * WORDS + word));
        }

        fn raise(&mut self, sequence: u64) {
            assert_eq!(sequence, SEQUENCE);
            self.stores.push(self.line * WORDS + FLAG);
        }

        fn flag(&self) -> u64 {
            panic!("a writer does not read")
        }
    }

    /// What a reader does, in its order: loads, that see what is visible at that time.
    struct Seen {
        line: u32,
        loads: RefCell<Vec<u32>>,
        /// Whether flags are what is expected, from the first line on.
        arrived: bool,
    }

    impl Flagged for Seen {
        type Payload = u32;

        fn put(&mut self, _words: u32) {
            panic!("a reader does not write")
        }

        fn raise(&mut self, _sequence: u64) {
            panic!("a reader does not write")
        }

        fn flag(&self) -> u64 {
            self.loads.borrow_mut().push(self.line * WORDS + FLAG);
            if self.arrived { SEQUENCE } else { 0 }
        }
    }

    fn stores(payloads: &[u32], send: impl Fn(&mut Written, u32)) -> Vec<u32> {
        let mut written = Written::default();
        for (line, words) in (0..).zip(payloads) {
            written.line = line;
            send(&mut written, *words);
        }
        written.stores
    }

    /// The reader's loads if it finds a packet. (If it does not, it takes nothing.)
    fn loads(payloads: &[u32], receive: impl Fn(&Seen, u32)) -> Vec<u32> {
        let mut seen = Seen {
            line: 0,
            loads: RefCell::default(),
            arrived: true,
        };
        for (line, words) in (0..).zip(payloads) {
            seen.line = line;
            receive(&seen, *words);
        }
        seen.loads.take()
    }

    fn load_words(seen: &Seen, words: u32) {
        let base = seen.line * WORDS;
        seen.loads
            .borrow_mut()
            .extend((0..words).map(|word| base + word));
    }

    /// Whether some order lets the reader find all flags and take a word that is not the writer's.
    fn can_tear(stores: &[u32], loads: &[u32]) -> bool {
        // A release store: a flag is visible only with all that was stored before it.
        let before = |at: usize| stores[..at].iter().fold(0_u64, |set, word| set | 1 << word);
        let needs: Vec<(u64, u64)> = stores
            .iter()
            .enumerate()
            .map(|(at, word)| {
                let is_flag = word % WORDS == FLAG;
                (1 << word, if is_flag { before(at) } else { 0 })
            })
            .collect();
        let mut seen = HashSet::new();
        let mut open = vec![(0_usize, 0_u64, false)];
        while let Some(state @ (load, visible, stale)) = open.pop() {
            if !seen.insert(state) {
                continue;
            }
            let Some(word) = loads.get(load) else {
                if stale {
                    return true;
                }
                continue;
            };
            for (bit, need) in &needs {
                if visible & bit == 0 && visible & need == *need {
                    open.push((load, visible | bit, stale));
                }
            }
            let fresh = visible >> word & 1 == 1;
            if word % WORDS == FLAG {
                // Without the flag the packet is not taken: this way ends.
                if fresh {
                    open.push((load + 1, visible, stale));
                }
            } else {
                open.push((load + 1, visible, stale || !fresh));
            }
        }
        false
    }

    const SHAPES: [&[u32]; 5] = [&[7], &[1], &[0], &[7, 2], &[3, 3, 1]];

    #[test]
    fn no_order_lets_a_torn_packet_pass() {
        for payloads in SHAPES {
            let stores = stores(payloads, |line, words| send(line, words, SEQUENCE));
            let loads = loads(payloads, |line, words| {
                assert!(receive(line, SEQUENCE, |line| load_words(line, words)));
            });
            assert!(!can_tear(&stores, &loads), "{payloads:?}");
        }
    }

    #[test]
    fn a_flag_that_is_not_the_one_expected_lets_nothing_be_taken() {
        let seen = Seen {
            line: 0,
            loads: RefCell::default(),
            arrived: false,
        };
        assert!(!receive(&seen, SEQUENCE, |_| panic!("taken")));
        assert_eq!(*seen.loads.borrow(), [FLAG]);
    }

    #[test]
    fn the_search_finds_each_wrong_order() {
        for payloads in SHAPES.into_iter().filter(|shape| shape[0] > 0) {
            let right_stores = stores(payloads, |line, words| send(line, words, SEQUENCE));
            let right_loads = loads(payloads, |line, words| {
                receive(line, SEQUENCE, |line| load_words(line, words));
            });
            let flag_first = stores(payloads, |line, words| {
                line.raise(SEQUENCE);
                line.put(words);
            });
            assert!(can_tear(&flag_first, &right_loads), "{payloads:?}");
            let payload_first = loads(payloads, |line, words| {
                load_words(line, words);
                line.flag();
            });
            assert!(can_tear(&right_stores, &payload_first), "{payloads:?}");
        }
        // One flag for several lines, and it is that of the first.
        let first_flag = [FLAG, 0, 1, WORDS, WORDS + 1];
        let written = stores(&[2, 2], |line, words| send(line, words, SEQUENCE));
        assert!(can_tear(&written, &first_flag));
    }

    #[test]
    fn lines_for_bytes() {
        let lines = [0, 1, 55, 56, 57, 112, 113].map(packet_lines);
        assert_eq!(lines, [1, 1, 1, 1, 2, 2, 3]);
        for dtype in DataType::ALL {
            assert_eq!(PACKET_PAYLOAD_BYTES % dtype.size(), 0);
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use hcomm_transport::sync;
    use hcomm_transport::sync::model::{Plain, Wrong, check, check_when};
    use hcomm_transport::sync::yield_now;
    use loom::thread;

    use super::*;

    /// The second run after the first uses the same lines again.
    const RUNS: u64 = 3;

    #[derive(Default)]
    struct Modelled {
        payload: [Plain<u64>; 2],
        flag: sync::AtomicU64,
    }

    impl Flagged for &Modelled {
        type Payload = u64;

        fn put(&mut self, value: u64) {
            for word in &self.payload {
                word.set(value);
            }
        }

        fn raise(&mut self, sequence: u64) {
            raise(&self.flag, sequence);
        }

        fn flag(&self) -> u64 {
            look_at(&self.flag)
        }
    }

    type Lines = [Modelled; 2];

    /// Which of the lines a run uses: one line a half, or as if there were no halves.
    fn line(lines: &Lines, sequence: u64, has_halves: bool) -> &Modelled {
        let at = Packet {
            sequence,
            line: 0,
            lines: 1,
        };
        &lines[first_line(at, has_halves.into()) as usize]
    }

    /// One side of a few runs, each of which sends a packet and takes that of the peer.
    fn side(own: &Lines, peer: &Lines, seed: u64, has_halves: bool) {
        for sequence in 1..=RUNS {
            send(
                &mut line(peer, sequence, has_halves),
                seed + sequence,
                sequence,
            );
            let mut found = [0; 2];
            while !receive(&line(own, sequence, has_halves), sequence, |line| {
                found = [0, 1].map(|word: usize| line.payload[word].get());
            }) {
                yield_now();
            }
            assert_eq!(found, [100 - seed + sequence; 2]);
        }
    }

    fn exchange(has_halves: bool) {
        let lines = Arc::new([Lines::default(), Lines::default()]);
        let peers = Arc::clone(&lines);
        let peer = thread::spawn(move || side(&peers[1], &peers[0], 100, has_halves));
        side(&lines[0], &lines[1], 0, has_halves);
        peer.join().unwrap();
    }

    #[test]
    fn packets_are_whole_and_lines_are_not_written_early() {
        check(|| exchange(true));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_order_they_are_not() {
        check_when(Wrong::NoOrder, || exchange(true));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_halves_a_line_is_written_while_it_is_read() {
        check(|| exchange(false));
    }
}
