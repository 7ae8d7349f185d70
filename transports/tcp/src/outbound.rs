//! What leaves one end: descriptors on their way, and answers to the peer.
//!
//! Small payloads are copied behind their header into a ring, so that they are done at once and many
//! of them leave in one call. Long ones are sent from where they lie; so are the answers to reads.
//! Everything is bounded: by the ring, by the number of pieces, by the depth of the channel; when that
//! is used up, `post` says so. Nothing here waits, and whatever does not fit into the socket stays
//! until `progress` finds room; meanwhile this side goes on to receive, so two sides that both send more
//! than the network holds cannot block each other.
//!
//! A notify says that the reads before it are done. So it stays, with all that was posted after it,
//! until they are.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use hcomm_transport_abi::{
    CompletionV1, FLAG_NOTIFY, OP_NOTIFY, OP_READ, OP_READ_REDUCE, OP_WRITE, STATUS_NO_RESOURCE,
    STATUS_OK, STATUS_STALE_KEY,
};
use rustix::io::Errno;

use crate::region::{Answer, Memory};
use crate::ring::Ring;
use crate::sys::{self, MAX_PIECES, Span, Vectors};
use crate::wire::{EXTRA_BYTES, Frame, HEADER_BYTES, Kind, NOTIFY, Token};

/// Payloads up to this length are copied, so that their source is free at once: copying them takes
/// less time than one more call.
const COPY_BYTES: u64 = 4 << 10;
/// Bytes of headers and copied payloads on their way.
const RING_BYTES: usize = 256 << 10;
/// Pieces on their way.
const PIECES: usize = 512;
/// Reads that have no answer yet.
pub(crate) const MAX_READS: usize = 64;
/// Bytes of one call: between two, the peer has a turn.
const CALL_BYTES: usize = 1 << 20;
/// Calls of one turn.
const CALLS: usize = 4;
/// Descriptors that wait, where no depth was asked for, and the most.
const DEFAULT_DEPTH: u32 = 256;
const MAX_DEPTH: u32 = 1 << 14;

/// A descriptor whose arguments were checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) local: Span,
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) notify: u32,
    pub(crate) reduction: (u32, u32),
    pub(crate) fingerprint: [u64; 2],
    pub(crate) cookie: u64,
}

impl Job {
    pub(crate) const fn reads(&self) -> bool {
        matches!(self.opcode, OP_READ | OP_READ_REDUCE)
    }

    const fn notifies(&self) -> bool {
        self.opcode == OP_NOTIFY || self.flags & FLAG_NOTIFY != 0
    }

    fn frame(&self) -> Frame {
        let mut frame = Frame::new(match self.opcode {
            OP_NOTIFY => Kind::Notify,
            OP_WRITE => Kind::Write,
            OP_READ | OP_READ_REDUCE => Kind::Read,
            _ => Kind::WriteReduce,
        });
        if self.notifies() {
            frame.flags |= NOTIFY;
            frame.number = self.notify;
            frame.set_fingerprint(self.fingerprint);
        }
        // Checked by `post`: both fit.
        (frame.dtype, frame.redop) = (self.reduction.0 as u8, self.reduction.1 as u8);
        frame.handle = self.handle;
        frame.offset = self.offset;
        frame.bytes = self.local.bytes();
        frame
    }
}

/// Something for the peer that is no descriptor.
#[derive(Debug)]
pub(crate) enum Word {
    /// A frame alone.
    Frame(Frame),
    /// The bytes that the peer has asked for, from an offset on.
    Data(Arc<Memory>, u64, u64),
}

#[derive(Debug)]
enum Piece {
    /// So many bytes of the ring.
    Copied(usize),
    /// From where they lie; the descriptor is done afterwards.
    Lent {
        span: Span,
        cookie: u64,
        number: u64,
    },
    /// Bytes of a region of this side: offset, and how many are left.
    Served(Arc<Memory>, u64, u64),
}

/// A read without an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) local: Span,
    /// Data type and operation, if it reduces.
    pub(crate) reduction: Option<(u32, u32)>,
    pub(crate) cookie: u64,
}

/// What leaves one end.
#[derive(Debug)]
pub(crate) struct Outbound {
    ring: Ring,
    pieces: VecDeque<Piece>,
    /// For the peer, as soon as there is room.
    words: VecDeque<Word>,
    /// Descriptors that were accepted and are not on their way, with their numbers.
    waiting: VecDeque<(u64, Job)>,
    depth: usize,
    /// Sent or about to be: their answers come in this order.
    reads: VecDeque<Read>,
    /// Questions for regions: their answers come in this order.
    questions: VecDeque<Arc<Answer>>,
    done: VecDeque<CompletionV1>,
    /// Descriptors that were accepted, without reads.
    accepted: u64,
    /// Up to which of them the peer was asked to tell, and has told.
    asked: u64,
    flushed: u64,
    /// Number of the next descriptor.
    next_number: u64,
}

/// What a turn of [`Outbound::pump`] came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pumped {
    pub(crate) sent_bytes: u64,
    /// Descriptors that are done, of those from the given number on; others have a completion.
    pub(crate) inline_done: u32,
    /// Completions that were made.
    pub(crate) completed: usize,
}

impl Outbound {
    pub(crate) fn new(depth: u32) -> Self {
        let depth = match depth {
            0 => DEFAULT_DEPTH,
            depth => depth.min(MAX_DEPTH),
        } as usize;
        Self {
            ring: Ring::new(RING_BYTES),
            pieces: VecDeque::with_capacity(PIECES),
            words: VecDeque::with_capacity(MAX_READS),
            waiting: VecDeque::with_capacity(depth),
            depth,
            reads: VecDeque::with_capacity(MAX_READS),
            questions: VecDeque::new(),
            done: VecDeque::with_capacity(depth + PIECES + MAX_READS),
            accepted: 0,
            asked: 0,
            flushed: 0,
            next_number: 0,
        }
    }

    /// Takes a descriptor; whether it is done already.
    ///
    /// # Errors
    /// `STATUS_NO_RESOURCE`.
    pub(crate) fn take(&mut self, job: Job) -> Result<bool, i32> {
        let number = self.next_number;
        let done = if self.waiting.is_empty() && self.has_room(&job) {
            self.put(number, job)
        } else if self.waiting.len() < self.depth && self.done_has_room() {
            self.waiting.push_back((number, job));
            false
        } else {
            return Err(STATUS_NO_RESOURCE);
        };
        self.next_number += 1;
        if !job.reads() {
            self.accepted += 1;
        }
        Ok(done)
    }

    /// Number of the next descriptor.
    pub(crate) const fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Puts something into the way of the peer.
    pub(crate) fn say(&mut self, word: Word) {
        self.words.push_back(word);
    }

    /// How many such are on their way.
    pub(crate) fn words(&self) -> usize {
        self.words.len()
    }

    /// Asks for a region.
    pub(crate) fn ask(&mut self, number: u64, key: Token, answer: &Arc<Answer>) {
        let mut frame = Frame::new(Kind::Import);
        frame.flags = crate::wire::EXTRA;
        frame.handle = number;
        frame.extra = key;
        self.questions.push_back(Arc::clone(answer));
        self.say(Word::Frame(frame));
    }

    /// The question that an answer belongs to.
    pub(crate) fn answered(&mut self) -> Option<Arc<Answer>> {
        self.questions.pop_front()
    }

    /// The read that data belong to.
    pub(crate) fn oldest_read(&self) -> Option<Read> {
        self.reads.front().copied()
    }

    /// The oldest read is done.
    pub(crate) fn end_read(&mut self) {
        if let Some(read) = self.reads.pop_front() {
            self.complete(read.cookie);
        }
    }

    /// The peer has done everything up to here.
    ///
    /// # Errors
    /// It was never asked.
    pub(crate) fn flushed(&mut self, up_to: u64) -> Result<(), &'static str> {
        if up_to > self.asked || up_to < self.flushed {
            return Err("an answer to a flush that was never asked for");
        }
        self.flushed = up_to;
        Ok(())
    }

    /// Whether everything that was accepted is done at the peer; asks it, if that is unknown.
    pub(crate) fn is_flushed(&mut self) -> bool {
        if self.flushed == self.accepted {
            return true;
        }
        let is_asked = self.asked > self.flushed;
        if !is_asked && self.waiting.is_empty() {
            self.asked = self.accepted;
            let mut frame = Frame::new(Kind::Flush);
            frame.offset = self.asked;
            self.say(Word::Frame(frame));
        }
        false
    }

    /// Whether anything is left that could be sent.
    pub(crate) fn has_output(&self) -> bool {
        !(self.pieces.is_empty() && self.words.is_empty() && self.waiting.is_empty())
    }

    /// Whether sending waits for the socket alone.
    pub(crate) fn waits_for_socket(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Sends what the socket takes. Descriptors from number `inline_from` on need no completion if
    /// they are done by that. What went before a failure counts.
    ///
    /// The failure: why the socket does not work, or `STATUS_STALE_KEY` for a region that ended while
    /// the peer was reading it.
    pub(crate) fn pump(
        &mut self,
        socket: &OwnedFd,
        inline_from: u64,
    ) -> (Pumped, Result<(), Failure>) {
        let mut pumped = Pumped::default();
        let completed = self.done.len();
        let went = self.send_all(socket, inline_from, &mut pumped);
        pumped.completed = self.done.len() - completed;
        (pumped, went)
    }

    fn send_all(
        &mut self,
        socket: &OwnedFd,
        inline_from: u64,
        pumped: &mut Pumped,
    ) -> Result<(), Failure> {
        for _ in 0..CALLS {
            self.fill();
            if self.pieces.is_empty() {
                break;
            }
            let (offered, sent) = self.send(socket)?;
            self.consume(sent, inline_from, pumped);
            pumped.sent_bytes += sent as u64;
            if sent < offered {
                break;
            }
        }
        Ok(())
    }

    /// Puts on their way what waits and may go.
    fn fill(&mut self) {
        while let Some(word) = self.words.front() {
            let fits =
                self.ring.room() >= HEADER_BYTES + EXTRA_BYTES && self.pieces.len() + 2 <= PIECES;
            if !fits {
                return;
            }
            match word {
                Word::Frame(frame) => {
                    let (bytes, len) = frame.encode();
                    self.copy(&bytes[..len]);
                }
                Word::Data(memory, offset, bytes) => {
                    let piece = Piece::Served(Arc::clone(memory), *offset, *bytes);
                    let mut frame = Frame::new(Kind::Data);
                    frame.bytes = *bytes;
                    let (header, len) = frame.encode();
                    self.copy(&header[..len]);
                    if frame.bytes > 0 {
                        self.pieces.push_back(piece);
                    }
                }
            }
            self.words.pop_front();
        }
        while let Some(&(number, job)) = self.waiting.front()
            && self.has_room(&job)
        {
            self.waiting.pop_front();
            if self.put(number, job) {
                self.complete(job.cookie);
            }
        }
    }

    /// Whether a descriptor may be put on its way.
    fn has_room(&self, job: &Job) -> bool {
        let copied = if job.reads() || job.local.bytes() > COPY_BYTES {
            0
        } else {
            job.local.bytes() as usize
        };
        self.ring.room() >= HEADER_BYTES + EXTRA_BYTES + copied
            && self.pieces.len() + 2 <= PIECES
            && self.done_has_room()
            && (!job.reads() || self.reads.len() < MAX_READS)
            && (!job.notifies() || self.reads.is_empty())
    }

    /// Whether every descriptor that was accepted, and one more, can have its completion.
    fn done_has_room(&self) -> bool {
        self.done.len() + self.waiting.len() + self.reads.len() + self.pieces.len()
            < self.done.capacity()
    }

    /// Puts a descriptor on its way. Whether it is done.
    fn put(&mut self, number: u64, job: Job) -> bool {
        let (header, len) = job.frame().encode();
        self.copy(&header[..len]);
        let bytes = job.local.bytes();
        if job.reads() {
            self.reads.push_back(Read {
                local: job.local,
                reduction: (job.opcode == OP_READ_REDUCE).then_some(job.reduction),
                cookie: job.cookie,
            });
            return false;
        }
        if bytes <= COPY_BYTES {
            self.ring.put_span(job.local);
            self.add_copied(bytes as usize);
            return true;
        }
        self.pieces.push_back(Piece::Lent {
            span: job.local,
            cookie: job.cookie,
            number,
        });
        false
    }

    fn copy(&mut self, bytes: &[u8]) {
        self.ring.put(bytes);
        self.add_copied(bytes.len());
    }

    fn add_copied(&mut self, bytes: usize) {
        match self.pieces.back_mut() {
            Some(Piece::Copied(before)) => *before += bytes,
            _ => self.pieces.push_back(Piece::Copied(bytes)),
        }
    }

    /// One call: how many bytes it was offered, and how many it took.
    fn send(&self, socket: &OwnedFd) -> Result<(usize, usize), Failure> {
        let mut vectors = Vectors::new();
        let mut ring_at = 0;
        let mut entered = None;
        for piece in &self.pieces {
            // A piece of the ring may lie in two parts.
            if vectors.count() + 2 > MAX_PIECES || vectors.bytes() >= CALL_BYTES {
                break;
            }
            let left = (CALL_BYTES - vectors.bytes()) as u64;
            match piece {
                Piece::Copied(bytes) => {
                    for part in self.ring.parts(ring_at, *bytes) {
                        vectors.add_bytes(part);
                    }
                    ring_at += bytes;
                }
                Piece::Lent { span, .. } => {
                    let first = span.part(0, span.bytes().min(left));
                    vectors.add(first.unwrap_or(*span));
                }
                Piece::Served(memory, offset, bytes) => {
                    let (span, guard) = memory
                        .enter(*offset, (*bytes).min(left))
                        .map_err(|_| Failure::Refused(STATUS_STALE_KEY))?;
                    vectors.add(span);
                    // The last of the call: its region is entered while that lasts.
                    entered = Some(guard);
                    break;
                }
            }
        }
        let offered = vectors.bytes();
        let sent = match sys::send(socket, &vectors) {
            Ok(sent) => sent,
            Err(Errno::AGAIN) => 0,
            Err(error) => return Err(Failure::Socket(error)),
        };
        drop(entered);
        Ok((offered, sent))
    }

    /// So many bytes have left.
    fn consume(&mut self, sent: usize, inline_from: u64, pumped: &mut Pumped) {
        let mut left = sent as u64;
        while let Some(piece) = self.pieces.front_mut() {
            let done = match piece {
                Piece::Copied(bytes) => {
                    let now = left.min(*bytes as u64);
                    self.ring.drop_first(now as usize);
                    *bytes -= now as usize;
                    left -= now;
                    *bytes == 0
                }
                Piece::Lent {
                    span,
                    cookie,
                    number,
                } => {
                    let now = left.min(span.bytes());
                    *span = span.rest(now);
                    left -= now;
                    let is_done = span.bytes() == 0;
                    if is_done && *number >= inline_from {
                        pumped.inline_done += 1;
                    } else if is_done {
                        self.done.push_back(completion(*cookie, STATUS_OK));
                    }
                    is_done
                }
                Piece::Served(_, offset, bytes) => {
                    let now = left.min(*bytes);
                    *offset += now;
                    *bytes -= now;
                    left -= now;
                    *bytes == 0
                }
            };
            if !done {
                return;
            }
            self.pieces.pop_front();
        }
    }

    fn complete(&mut self, cookie: u64) {
        self.done.push_back(completion(cookie, STATUS_OK));
    }

    /// Completions to be polled.
    pub(crate) fn completed(&self) -> usize {
        self.done.len()
    }

    /// The next completion.
    pub(crate) fn next_completion(&mut self) -> Option<CompletionV1> {
        self.done.pop_front()
    }

    /// The channel has failed: everything that is not done ends with this, and no memory of it is
    /// touched any more.
    pub(crate) fn fail_all(&mut self, status: i32) {
        for piece in self.pieces.drain(..) {
            if let Piece::Lent { cookie, .. } = piece {
                self.done.push_back(completion(cookie, status));
            }
        }
        for (_, job) in self.waiting.drain(..) {
            self.done.push_back(completion(job.cookie, status));
        }
        for read in self.reads.drain(..) {
            self.done.push_back(completion(read.cookie, status));
        }
        self.drop_words();
    }

    /// The channel is destroyed: everything is dropped.
    pub(crate) fn cut(&mut self) {
        self.pieces.clear();
        self.waiting.clear();
        self.reads.clear();
        self.done.clear();
        self.drop_words();
    }

    /// Nothing leaves any more but these last words. What had begun to leave ends in the middle, so
    /// they can be understood only behind what was whole.
    pub(crate) fn cut_to(&mut self, last: Frame) {
        let is_whole = self.pieces.is_empty();
        self.words.clear();
        if is_whole {
            self.say(Word::Frame(last));
        }
    }

    fn drop_words(&mut self) {
        self.words.clear();
        self.questions.clear();
        self.ring.clear();
    }
}

/// Why nothing can be sent any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// What the system says.
    Socket(Errno),
    /// A status that the peer should hear of.
    Refused(i32),
}

const fn completion(cookie: u64, status: i32) -> CompletionV1 {
    CompletionV1 {
        cookie,
        status,
        reserved: 0,
    }
}
