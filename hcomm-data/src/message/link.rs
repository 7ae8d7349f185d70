//! A link: both directions, and how far the message in the middle of each is.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use hcomm_types::{Error, ErrorKind, Result};

use super::direct::{Grant, Offers, Targets};
use super::exchange::{Sent, Taken};
use super::header::{EXCHANGED, Exchanged, Header, Kind, Label, MOST_BYTES, broken};
use super::inbox::Inbox;
use super::ring::{Head, MOST_CELLS, PAYLOAD, Shape, Tail, Words, get, lines, set};
use crate::channel::Channel;
use crate::copy;
use crate::driver;
use crate::failure::Failure;
use crate::looks::Looks;
use crate::memory::{self, Place};
use crate::owned::Owned;
use crate::slice::{RemoteSlice, Slice};

/// Messages both ways over one channel whose memory is mapped on both sides; see
/// [`Thread::send`](crate::Thread::send). A clone is the same link.
///
/// One OS thread at a time sends, and one receives. Messages of one direction arrive in order.
#[derive(Clone)]
pub struct MessageLink(Arc<Inner>);

struct Inner {
    channel: Channel,
    /// A notify of the peer that nobody waits for: recording it wakes the peer on links without a
    /// quicker way.
    wake: u32,
    /// Written by the peer.
    own: Inbox,
    /// Written by this side.
    peer: Inbox,
    /// Whether the exchange line is that of this side's inbox.
    is_first: bool,
    out: Outgoing,
    incoming: Incoming,
}

/// The direction to the peer.
#[derive(Default)]
#[repr(align(128))]
struct Outgoing {
    tail: Tail,
    turn: Turn,
    /// 1 if a message was sent since one was received, but through the exchange line.
    streams: AtomicU64,
    /// Pieces so far, for the beacon.
    pieces: AtomicU64,
    /// Messages through the exchange line.
    exchanged: Sent,
    /// Long messages that are over.
    longs: AtomicU64,
    /// Offers that were answered.
    answered: AtomicU64,
    targets: Owned<Targets>,
}

/// The direction from the peer.
#[derive(Default)]
#[repr(align(128))]
struct Incoming {
    head: Head,
    turn: Turn,
    /// The same from there.
    exchanged: Taken,
    /// How long the beacon took, in nanoseconds, smoothed; 0 if it was never looked at.
    beacon: AtomicU64,
    is_far: AtomicU64,
    /// Long messages that are over.
    longs: AtomicU64,
    /// The latest of them for which a grant was considered, and for which one was made.
    considered: AtomicU64,
    granted: AtomicU64,
    offers: Owned<Offers>,
    /// 1 if the next message was looked for and was not there.
    waits: AtomicU64,
    /// 1 if the message in the middle lies in cells.
    in_cells: AtomicU64,
}

/// Who is in the middle of a message, and where.
#[derive(Default)]
struct Turn {
    /// The queue, 0 if nobody is.
    holder: AtomicU64,
    /// Bytes done.
    done: AtomicU64,
}

impl Turn {
    /// Notes how far `who` has come. A message of which nothing is done is not begun.
    #[inline]
    fn stop(&self, who: u64, done: u64) {
        set(&self.holder, if done > 0 { who } else { 0 });
        set(&self.done, done);
    }

    /// The message is over.
    #[inline]
    fn end(&self) {
        self.stop(0, 0);
    }
}

/// How a long message is cut and copied into the data ring.
struct Way {
    /// Bytes of a piece: long enough that its cell costs little, short enough that both sides are
    /// soon at work.
    most: u64,
    /// Bytes from which a piece is [handed over](copy::hand_over): what shorter ones would gain is
    /// less than the fence or the string instruction costs.
    hands_over_from: usize,
}

impl Way {
    /// For a message of `total` bytes, which follows another one or not.
    ///
    /// On machines that are not wide (see [`copy`]), far pieces go past the caches, and the fence
    /// at the end of each is worth longer ones. On wide ones, measured with a Zen 5: 64 KiB take
    /// 3.0 µs far and 1.24 near in pieces of 16 KiB, 3.8 and 1.27 in pieces of 8; 16 KiB take 1.36 and
    /// 0.45 as one piece, 1.25 and 0.42 as two; 4 KiB take 0.69 and 0.23 as one piece, 0.96 and 0.18
    /// as two that are copied plainly; but in a stream 0.11 and 0.16.
    const fn of(is_wide: bool, is_far: bool, follows: bool, total: u64) -> Self {
        const KIB: u64 = 1 << 10;
        let (most, hands_over_from) = match (is_wide, is_far) {
            (false, false) => (8 * KIB, usize::MAX),
            (false, true) => (16 * KIB, 512),
            (true, false) if total <= 4 * KIB && !follows => (2 * KIB, usize::MAX),
            (true, _) if total <= 16 * KIB => (8 * KIB, 512),
            (true, _) => (16 * KIB, 512),
        };
        Self {
            most,
            hands_over_from,
        }
    }
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The message is over.
    Done,
    /// Some of it was done; the rest waits.
    Moved,
    /// It waits.
    Waits,
}

/// The beacon goes with one piece of so many.
const PIECES_A_BEACON: u64 = 16;
/// Above this, the cores share no cache. (Near ones hand a line over in 30 to 60 ns, far ones in
/// 150 to 200, and the clock takes 20.)
const FAR_NANOS: u64 = 120;
/// An interrupt is no distance.
const MOST_NANOS: u64 = 1000;
/// How many cells before their use their lines are fetched: by the sender to own them, unless it
/// has received since it sent, for then what it sends now is urgent, and those lines would come
/// before it; and by the receiver to read them, unless it has waited, for then they are about to be
/// written. With less, a stream of short messages takes the time of a hand-over a message, because
/// one message's loads and stores fill the buffers of a core, and no two misses overlap: 64 bytes,
/// far, 240 ns a message without, 180 with 3 ahead, 130 with 4, 140 with 6.
const CELLS_AHEAD: u64 = 4;
/// Most cells of a message that follows another one. Far, messages of 512 bytes take 290 ns in cells
/// and 320 as pieces, of 1 KiB 530 and 335.
const STREAMED_CELLS: usize = 10;
/// Most cells that are fetched for an answer before it is made. A far answer of one cell takes 200 ns
/// with it and 285 without.
const ANSWER_CELLS: usize = 8;
/// Looks for the next cell of a message of which one is there: the sender is writing it.
const CELL_LOOKS: u32 = 64;
/// Bytes of a message from which a grant is worth the line that carries it. Shorter ones lie in
/// cells.
const GRANT_FROM: usize = 2 << 10;
const _: () = assert!(GRANT_FROM > MOST_CELLS * PAYLOAD);

impl MessageLink {
    /// Bytes of an inbox from which a message of `bytes` bytes need not be received before its send
    /// ends.
    #[must_use]
    pub const fn inbox_bytes(bytes: u64) -> u64 {
        Shape::for_data(bytes).bytes()
    }

    /// A link over `channel`. The inbox of either side, made for messages of `bytes` bytes
    /// ([`MessageLink::inbox_bytes`]), is zero, and only this link uses it. Notify `wake` of the
    /// peer is recorded by nobody else and waited for by nobody. One side of the two is called the
    /// first one.
    ///
    /// # Errors
    /// `InvalidArgument` for an inbox that is too small or begins at no multiple of 64,
    /// or a notify that the peer does not have; `Unsupported` if the peer's inbox is not mapped.
    pub fn new(
        channel: &Channel,
        inbox: &Slice,
        peers_inbox: &RemoteSlice,
        bytes: u64,
        wake: u32,
        is_first: bool,
    ) -> Result<Self> {
        let shape = Shape::for_data(bytes);
        channel.check_record(wake)?;
        Ok(Self(Arc::new(Inner {
            channel: channel.clone(),
            wake,
            is_first,
            own: Inbox::own(inbox, shape)?,
            peer: Inbox::of_peer(peers_inbox, shape)?,
            out: Outgoing::default(),
            incoming: Incoming::default(),
        })))
    }

    /// The channel.
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.0.channel
    }

    /// Lets the peer write its next long message to `dst` itself, where it can. [`Thread::recv`]
    /// does that when it finds no message; who tells the sender in another way that it may begin
    /// calls this before. The message must be received there.
    ///
    /// [`Thread::recv`]: crate::Thread::recv
    pub fn grant(&self, dst: &Slice) {
        self.0.grant(dst.place());
    }

    /// Sends as much of a message as there is room for. `who` is the number of the queue, the same
    /// until the message is over.
    ///
    /// # Errors
    /// `Mismatch` if the peer has refused a message.
    #[inline]
    pub(crate) fn send(&self, who: u64, src: Place<'_>, label: Label) -> Result<Step, Failure> {
        let link = &*self.0;
        if link.own.load(lines::REFUSAL) != 0 {
            return Err(link.refused());
        }
        match get(&link.out.turn.holder) {
            0 if src.bytes() <= EXCHANGED && label.is_plain() && link.out.exchanged.is_free() => {
                Ok(link.exchange(src, label))
            }
            0 if src.bytes() <= link.most_in_cells() => Ok(link.send_short(src, label)),
            holder if holder == 0 || holder == who => link.send_pieces(who, src, label),
            _ => Ok(Step::Waits),
        }
    }

    /// Receives as much of a message as is there.
    ///
    /// # Errors
    /// `Mismatch` for a message of another length or type; `LinkDown` if the peer breaks the rules.
    #[inline]
    pub(crate) fn recv(&self, who: u64, dst: Place<'_>, label: Label) -> Result<Step, Failure> {
        let link = &*self.0;
        let holder = get(&link.incoming.turn.holder);
        if holder != 0 && holder != who {
            return Ok(Step::Waits);
        }
        dst.check_writable()?;
        let shape = link.own.shape();
        let position = link.incoming.head.cells();
        if holder == 0
            && let Some(word) = link.exchanged()
        {
            return link.take_exchanged(word, dst, label);
        }
        let word = link.own.load(shape.header(position));
        let header = match Header::of(word, shape.lap(position)) {
            Ok(Some(header)) => header,
            Ok(None) => {
                if holder == 0 {
                    link.grant(dst);
                }
                set(&link.incoming.waits, 1);
                return Ok(Step::Waits);
            }
            Err(error) => return Err(link.channel.failure(error)),
        };
        // What was exchanged before this cell was written is there by now.
        if holder == 0
            && let Some(word) = link.exchanged()
        {
            return link.take_exchanged(word, dst, label);
        }
        link.expect_answer(dst.bytes());
        let in_cells = get(&link.incoming.in_cells) != 0;
        match header.kind {
            Kind::Short if holder == 0 => link.recv_cells(who, dst, label, header),
            _ if in_cells && header == Header::more(label) => {
                link.recv_cells(who, dst, label, header)
            }
            _ if in_cells => Err(link.no_more(header, label)),
            _ => link.recv_pieces(who, dst, label, header),
        }
    }

    /// Whether a send that waits would go on.
    pub(crate) fn would_send(&self) -> bool {
        let link = &*self.0;
        link.own.load(lines::REFUSAL) != 0
            || link.out.tail.has_news(link.own.shape(), &link.own)
            || Grant::of(&link.own, get(&link.out.longs) + 1).is_some()
    }

    /// Whether a receive that waits would go on.
    pub(crate) fn would_receive(&self) -> bool {
        let link = &*self.0;
        let position = link.incoming.head.cells();
        let shape = link.own.shape();
        let word = link.own.load(shape.header(position));
        let is_between = get(&link.incoming.turn.holder) == 0;
        is_between && link.exchanged().is_some()
            || Header::of(word, shape.lap(position)).map_or(true, |header| header.is_some())
    }
}

impl Inner {
    /// The inbox with the exchange line, and the words at which the halves of this side and of the
    /// peer begin.
    #[inline]
    const fn exchange_line(&self) -> (&Inbox, usize, usize) {
        if self.is_first {
            (&self.own, lines::EXCHANGE, lines::EXCHANGE_OF_SECOND)
        } else {
            (&self.peer, lines::EXCHANGE_OF_SECOND, lines::EXCHANGE)
        }
    }

    #[inline]
    fn exchange(&self, src: Place<'_>, label: Label) -> Step {
        let header = Exchanged {
            number: 0,
            bytes: src.bytes() as u8,
            dtype: label.dtype,
            position: self.out.tail.cells() as u16,
            taken: 0,
        };
        let (line, half, _) = self.exchange_line();
        let fill = || line.fill_words(half + 1, src);
        let (sent, taken) = (&self.out.exchanged, &self.incoming.exchanged);
        sent.send(taken, line, half, header, fill);
        self.ring();
        Step::Done
    }

    /// The header of the next message, if it lies in the exchange line.
    #[inline]
    fn exchanged(&self) -> Option<u64> {
        let (line, _, half) = self.exchange_line();
        let position = self.incoming.head.cells() as u16;
        self.incoming.exchanged.next(line, half, position)
    }

    #[inline]
    fn take_exchanged(&self, word: u64, dst: Place<'_>, label: Label) -> Result<Step, Failure> {
        let header = Exchanged::of(word).map_err(|error| self.channel.failure(error))?;
        let found = Label::from(header.dtype);
        if usize::from(header.bytes) != dst.bytes() || found != label {
            let sent = u64::from(header.bytes);
            return Err(self.refuse(sent, found, dst.bytes() as u64, label));
        }
        let (line, _, half) = self.exchange_line();
        let empty = || line.empty_words(half + 1, dst);
        let (sent, taken) = (&self.out.exchanged, &self.incoming.exchanged);
        taken.take(header, sent, empty);
        self.has_received();
        Ok(Step::Done)
    }

    /// What is sent next may be an answer.
    #[inline]
    fn has_received(&self) {
        // Beside what the sending OS thread stores.
        if get(&self.out.streams) != 0 {
            set(&self.out.streams, 0);
        }
    }

    /// Has the lines fetched to which an answer as long as what is received goes, if there is one:
    /// they are on the way while the message is read.
    #[inline]
    fn expect_answer(&self, bytes: usize) {
        let shape = self.own.shape();
        let cells = if bytes <= shape.most_short() {
            cells_of(bytes).min(ANSWER_CELLS)
        } else {
            1
        };
        let first = self.out.tail.cells();
        for position in first..first + cells as u64 {
            self.peer.prefetch_owned(shape.header(position));
        }
    }

    /// Longest message that goes into cells now. Those of a stream are soon too long: the receiver
    /// is still busy with the one before, so they had better be copied as a whole.
    #[inline]
    fn most_in_cells(&self) -> usize {
        let most = self.own.shape().most_short();
        if get(&self.out.streams) == 0 {
            most
        } else {
            most.min(STREAMED_CELLS * PAYLOAD)
        }
    }

    #[inline]
    fn send_short(&self, src: Place<'_>, label: Label) -> Step {
        let (tail, shape) = (&self.out.tail, self.own.shape());
        let bytes = src.bytes();
        let cells = cells_of(bytes);
        if !tail.has_cells(shape, &self.own, cells as u64) {
            return Step::Waits;
        }
        let first = tail.cells();
        let streams = get(&self.out.streams) != 0;
        set(&self.out.streams, 1);
        let mut header = Header {
            kind: Kind::Short,
            bytes: bytes as u16 & MOST_BYTES,
            label,
        };
        for cell in 0..cells {
            let position = first + cell as u64;
            if streams {
                self.peer
                    .prefetch_owned(shape.header(position + CELLS_AHEAD));
            }
            self.peer.fill_cell(position, src, cell * PAYLOAD);
            let word = header.word(shape.lap(position));
            self.peer.store(shape.header(position), word);
            header = Header::more(label);
        }
        tail.add_cells(cells as u64);
        self.ring();
        Step::Done
    }

    fn send_pieces(&self, who: u64, src: Place<'_>, label: Label) -> Result<Step, Failure> {
        let Outgoing {
            tail, turn, pieces, ..
        } = &self.out;
        let shape = self.own.shape();
        let total = src.bytes() as u64;
        let mut done = get(&turn.done);
        let begun = done;
        let number = get(&self.out.longs) + 1;
        if self.own.load(lines::OFFER) != get(&self.out.answered) {
            self.look_at_offers()?;
        }
        let is_far = self.own.load(lines::DISTANCE) == 1;
        let follows = get(&self.out.streams) != 0;
        let way = Way::of(copy::is_wide(), is_far, follows, total);
        let most = way.most.min(shape.data() / 4);
        while done < total {
            let has_cell = tail.has_cells(shape, &self.own, 1);
            if has_cell
                && let Some(grant) = Grant::of(&self.own, number)
                && grant.bytes == total
            {
                self.write_rest(grant, src, done)?;
                self.publish(Kind::Direct, label, [total, total - done]);
                break;
            }
            let room = if has_cell {
                tail.room(shape, &self.own, total - done, most)
            } else {
                None
            };
            let Some(room) = room else {
                turn.stop(who, done);
                let moved = done > begun;
                return Ok(if moved { Step::Moved } else { Step::Waits });
            };
            let part = src.part(done, room.bytes)?;
            let to_far = (part.bytes() >= way.hands_over_from).then_some(is_far);
            self.peer.fill_data(room.position, part, to_far);
            let count = get(pieces);
            let is_timed = count.is_multiple_of(PIECES_A_BEACON);
            set(pieces, count + 1);
            if is_timed {
                self.peer.store(lines::BEACON, count);
            }
            self.publish(
                if is_timed {
                    Kind::TimedPiece
                } else {
                    Kind::Piece
                },
                label,
                [total, room.bytes],
            );
            tail.add_data(room.bytes);
            done += room.bytes;
        }
        turn.end();
        set(&self.out.longs, number);
        set(&self.out.streams, 1);
        Ok(Step::Done)
    }

    /// Writes what is left of a message to where it is received.
    fn write_rest(&self, grant: Grant, src: Place<'_>, done: u64) -> Result<(), Failure> {
        let targets = self.out.targets.take(driver::here());
        let whole = targets
            .place(grant)
            .map_err(|error| self.channel.failure(error))?;
        let left = grant.bytes - done;
        let (dst, src) = (whole.part(done, left)?, src.part(done, left)?);
        memory::copy(dst, src, self.channel.hint(dst))?;
        Ok(())
    }

    /// Looks into what the peer offers.
    #[cold]
    fn look_at_offers(&self) -> Result<(), Failure> {
        let number = self.own.load(lines::OFFER);
        let mut targets = self.out.targets.take(driver::here());
        let is_answered = targets
            .look_into(number, &self.channel, &self.own, &self.peer)
            .map_err(|error| self.channel.failure(error))?;
        if is_answered {
            set(&self.out.answered, number);
        }
        Ok(())
    }

    /// Lets the peer write the next long message to `dst`, once, if it can.
    #[inline]
    fn grant(&self, dst: Place<'_>) {
        let incoming = &self.incoming;
        let number = get(&incoming.longs) + 1;
        if dst.bytes() >= GRANT_FROM && get(&incoming.considered) != number {
            set(&incoming.considered, number);
            self.grant_if_known(dst, number);
        }
    }

    fn grant_if_known(&self, dst: Place<'_>, number: u64) {
        let Some(region) = dst.region_for(self.channel.transport().device()) else {
            return;
        };
        let mut offers = self.incoming.offers.take(driver::here());
        let Some(slot) = offers.slot(region, &self.own, &self.peer) else {
            return;
        };
        let grant = Grant {
            number,
            slot,
            offset: dst.offset_in(region),
            bytes: dst.bytes() as u64,
        };
        set(&self.incoming.granted, number);
        grant.tell(&self.peer);
        self.ring();
    }

    /// Fills and publishes the next cell, for which there is room.
    fn publish(&self, kind: Kind, label: Label, words: [u64; 2]) {
        let shape = self.own.shape();
        let position = self.out.tail.cells();
        let at = shape.header(position);
        for (index, word) in words.into_iter().enumerate() {
            self.peer.store(at + 1 + index, word);
        }
        let header = Header {
            kind,
            bytes: 0,
            label,
        };
        self.peer.store(at, header.word(shape.lap(position)));
        self.out.tail.add_cells(1);
        self.ring();
    }

    /// What is there of a message in cells, of which the next one is there.
    #[inline]
    fn recv_cells(
        &self,
        who: u64,
        dst: Place<'_>,
        label: Label,
        first: Header,
    ) -> Result<Step, Failure> {
        let Incoming {
            head,
            turn,
            waits,
            in_cells,
            ..
        } = &self.incoming;
        let shape = self.own.shape();
        let begin = head.cells();
        let (mut position, mut done) = (begin, get(&turn.done) as usize);
        if first.kind == Kind::Short {
            let bytes = usize::from(first.bytes);
            if bytes != dst.bytes() || first.label != label || bytes > shape.most_short() {
                return Err(self.refuse(bytes as u64, first.label, dst.bytes() as u64, label));
            }
        }
        let is_ahead = get(waits) == 0;
        set(waits, 0);
        loop {
            if is_ahead {
                self.own.prefetch(shape.header(position + CELLS_AHEAD));
            }
            self.own.empty_cell(position, dst, done);
            position += 1;
            done += PAYLOAD;
            if done >= dst.bytes() {
                break;
            }
            if self.more_comes(position, label)? {
                continue;
            }
            turn.stop(who, done as u64);
            set(in_cells, 1);
            head.take_cells(position - begin);
            return Ok(Step::Moved);
        }
        turn.end();
        set(in_cells, 0);
        self.has_received();
        head.take_cells(position - begin);
        if head.owes(shape) {
            head.tell(&self.peer);
            self.ring();
        }
        Ok(Step::Done)
    }

    /// Whether the next cell of a message is there, or comes at once.
    #[inline]
    fn more_comes(&self, position: u64, label: Label) -> Result<bool, Failure> {
        let shape = self.own.shape();
        let (at, lap) = (shape.header(position), shape.lap(position));
        let expected = Header::more(label).word(lap);
        let mut looks = Looks::new(CELL_LOOKS);
        loop {
            let word = self.own.load(at);
            if word == expected {
                return Ok(true);
            }
            match Header::of(word, lap) {
                Ok(None) if looks.again() => {}
                Ok(None) => return Ok(false),
                Ok(Some(other)) => return Err(self.no_more(other, label)),
                Err(error) => return Err(self.channel.failure(error)),
            }
        }
    }

    #[cold]
    fn no_more(&self, header: Header, label: Label) -> Failure {
        let what = format!("{header:?} in the middle of a message of {label}");
        self.channel.failure(broken(what))
    }

    fn recv_pieces(
        &self,
        who: u64,
        dst: Place<'_>,
        label: Label,
        first: Header,
    ) -> Result<Step, Failure> {
        let Incoming {
            head,
            turn,
            longs,
            granted,
            ..
        } = &self.incoming;
        let shape = self.own.shape();
        let number = get(longs) + 1;
        let mut header = first;
        let mut done = get(&turn.done);
        loop {
            let position = head.cells();
            let at = shape.header(position);
            let (total, bytes) = (self.own.load(at + 1), self.own.load(at + 2));
            if get(&turn.holder) == 0 && (total != dst.bytes() as u64 || header.label != label) {
                return Err(self.refuse(total, header.label, dst.bytes() as u64, label));
            }
            let left = dst.bytes() as u64 - done;
            let is_possible = match header.kind {
                Kind::Piece | Kind::TimedPiece => {
                    bytes <= left && bytes <= shape.data() - head.data() % shape.data()
                }
                Kind::Direct => bytes == left && get(granted) == number,
                Kind::Short | Kind::More => false,
            };
            if !is_possible || bytes == 0 || total != dst.bytes() as u64 {
                let what = format!(
                    "{header:?} with a piece of {bytes} bytes where {left} of {total} are left"
                );
                return Err(self.channel.failure(broken(what)));
            }
            if header.kind == Kind::TimedPiece {
                self.measure();
            }
            if header.kind != Kind::Direct {
                self.own.empty_data(head.data(), dst.part(done, bytes)?);
                head.take_data(bytes);
            }
            head.take_cells(1);
            done += bytes;
            let is_over = done == total;
            turn.stop(who, if is_over { 0 } else { done });
            if is_over || head.owes_data(shape) || head.owes(shape) {
                head.tell(&self.peer);
                self.ring();
            }
            if is_over {
                set(longs, number);
                self.has_received();
                // A grant for what is sent next is read at once, when the time comes.
                self.own.prefetch(lines::GRANT);
                return Ok(Step::Done);
            }
            if total - done >= GRANT_FROM as u64 {
                self.grant(dst);
            }
            let position = head.cells();
            let word = self.own.load(shape.header(position));
            match Header::of(word, shape.lap(position)) {
                Ok(Some(next)) => header = next,
                Ok(None) => return Ok(Step::Moved),
                Err(error) => return Err(self.channel.failure(error)),
            }
        }
    }

    /// Looks how long a line takes that the peer has just written.
    fn measure(&self) {
        let Incoming { beacon, is_far, .. } = &self.incoming;
        let began = Instant::now();
        let seen = self.own.load(lines::BEACON);
        std::hint::black_box(seen);
        let nanos = nanos(began.elapsed());
        let known = get(beacon);
        let smooth = if known == 0 {
            nanos
        } else {
            (known * 3 + nanos) / 4
        };
        set(beacon, smooth);
        let now_far = u64::from(smooth > FAR_NANOS);
        if now_far != get(is_far) {
            set(is_far, now_far);
            self.peer.store(lines::DISTANCE, now_far);
        }
    }

    /// Wakes the peer if it sleeps.
    #[inline]
    fn ring(&self) {
        self.channel.wake_peer(self.wake);
    }

    /// Tells the peer that its message is not the one that is received here.
    #[cold]
    fn refuse(&self, sent: u64, sent_as: Label, expected: u64, expected_as: Label) -> Failure {
        self.peer.store(lines::REFUSAL_SENT, sent);
        self.peer.store(lines::REFUSAL_EXPECTED, expected);
        let types = u64::from(sent_as.word()) | u64::from(expected_as.word()) << 32;
        self.peer.store(lines::REFUSAL_TYPES, types);
        self.peer.store(lines::REFUSAL, 1);
        self.ring();
        self.channel.failure(mismatch(&format!(
            "sent {sent} bytes of {sent_as} where {expected} bytes of {expected_as} are received"
        )))
    }

    /// A message of ours was refused.
    #[cold]
    fn refused(&self) -> Failure {
        let word = |word| self.own.load(word);
        let types = word(lines::REFUSAL_TYPES);
        let name = |number: u64| {
            Label::of(number as u32)
                .map_or_else(|| "an unknown type".to_owned(), |label| label.to_string())
        };
        self.channel.failure(mismatch(&format!(
            "receives {} bytes of {} where {} bytes of {} were sent",
            word(lines::REFUSAL_EXPECTED),
            name(types >> 32),
            word(lines::REFUSAL_SENT),
            name(types),
        )))
    }
}

impl fmt::Debug for MessageLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageLink")
            .field("channel", &self.0.channel)
            .finish_non_exhaustive()
    }
}

fn mismatch(what: &str) -> Error {
    Error::new(ErrorKind::Mismatch, what)
        .hint("both ranks have to name the same number of elements of the same type")
}

/// Cells of a short message: at least one, for its header.
#[inline]
const fn cells_of(bytes: usize) -> usize {
    if bytes <= PAYLOAD {
        1
    } else {
        bytes.div_ceil(PAYLOAD)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).map_or(MOST_NANOS, |nanos| nanos.clamp(1, MOST_NANOS))
}
