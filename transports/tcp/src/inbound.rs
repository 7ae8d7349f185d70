//! What arrives at one end.
//!
//! Bytes are read into a small buffer; what belongs to a long payload is read from the socket straight
//! to where it goes, with only what follows it into the buffer. Payloads to be combined with what is
//! there pass through the buffer, element by element.
//!
//! Nothing here waits for anything but bytes: answers are put into the way of the peer and leave when
//! there is room. A region is entered for one call at a time, so that it can end in between; what then
//! still comes for it ends the channel at both ends, because a notify behind it would tell of bytes
//! that never came.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, RwLockReadGuard};

use hcomm_transport_abi::{
    Host, STATUS_INVALID_ARGUMENT, STATUS_LIMIT, STATUS_OK, STATUS_OUT_OF_BOUNDS, STATUS_STALE_KEY,
};
use rustix::io::Errno;

use crate::device::{DeviceCore, lock};
use crate::line::Lines;
use crate::outbound::{Outbound, Read, Word};
use crate::region::Memory;
use crate::sys::{self, Span};
use crate::wire::{EXTRA, Frame, Kind, NOTIFY};

/// Room for bytes that were not looked at yet.
const BUFFER_BYTES: usize = 64 << 10;
/// How many of them are read at first while no payload is expected: what is the begin of a long one
/// is copied once more. It grows while short frames fill it.
const AHEAD_BYTES: usize = 8 << 10;
/// The same behind a long payload.
const BEHIND_BYTES: usize = 2 << 10;
/// Calls of one turn.
const CALLS: usize = 8;
/// Regions that a peer may have imported at the same time.
const MAX_HANDLES: usize = 1 << 16;
/// Answers to a peer that may be on their way.
const MAX_WORDS: usize = 1 << 16;

/// Sizes of elements, by number of their data type.
const ELEMENT_BYTES: [usize; 12] = [1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8];

/// Bytes of an element, if data type and operation are known ones.
pub(crate) fn element_bytes((dtype, redop): (u32, u32)) -> Option<usize> {
    let size = ELEMENT_BYTES.get(dtype as usize)?;
    (redop <= 3).then_some(*size)
}

/// What arrives at one end.
#[derive(Debug)]
pub(crate) struct Inbound {
    buffer: Box<[u8]>,
    begin: usize,
    end: usize,
    /// How many bytes are read while no payload is expected.
    ahead: usize,
    payload: Option<Payload>,
    handles: Handles,
}

/// A payload that is not here in whole.
#[derive(Debug)]
struct Payload {
    to: Target,
    at: u64,
    left: u64,
    reduction: Option<Reduction>,
    /// Recorded when it is whole.
    notify: Option<(u32, [u64; 2])>,
}

#[derive(Clone, Copy, Debug)]
struct Reduction {
    element: usize,
    how: (u32, u32),
}

#[derive(Debug)]
enum Target {
    /// A region of this side.
    Region(Arc<Memory>),
    /// The local memory of the oldest read.
    Local(Span),
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    /// Something arrived.
    pub(crate) moved: bool,
    /// Something that a sleeper may wait for arrived.
    pub(crate) rings: bool,
    /// The half that sends has something to do, or to tell.
    pub(crate) answers: bool,
    /// The peer has closed the connection.
    pub(crate) ended: bool,
}

/// Why nothing can be received any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// What the system says.
    Socket(Errno),
    /// The peer asked for what it may not do; it should hear of it.
    Refused(i32),
    /// This side asked for what it may not do.
    Told(i32),
    /// The peer does not keep to the rules.
    Broken(&'static str),
}

/// What an end needs of its surroundings.
pub(crate) struct Around<'a> {
    pub(crate) device: &'a DeviceCore,
    pub(crate) lines: &'a Lines,
    pub(crate) outbound: &'a Mutex<Outbound>,
}

impl Inbound {
    pub(crate) fn new() -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES].into(),
            begin: 0,
            end: 0,
            ahead: AHEAD_BYTES,
            payload: None,
            handles: Handles::default(),
        }
    }

    /// Takes what is there.
    pub(crate) fn turn(&mut self, socket: &OwnedFd, around: &Around<'_>) -> Result<Turn, Failure> {
        let mut turn = Turn::default();
        for _ in 0..CALLS {
            let (read, asked) = match self.read(socket) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(failure) => return Err(failure),
            };
            if read == 0 {
                turn.ended = true;
                break;
            }
            turn.moved = true;
            let was_ahead = self.payload.is_none();
            self.take(around, &mut turn)?;
            // Less than there was room for: there is no more.
            if read < asked {
                break;
            }
            if was_ahead {
                let is_long = self.payload.as_ref().is_some_and(Payload::is_long);
                self.ahead = if is_long {
                    AHEAD_BYTES
                } else {
                    (self.ahead * 2).min(BUFFER_BYTES / 2)
                };
            }
        }
        Ok(turn)
    }

    /// One call: how many bytes came and for how many there was room; `None` if there are none.
    fn read(&mut self, socket: &OwnedFd) -> Result<Option<(usize, usize)>, Failure> {
        // What was not looked at is shorter than a frame's header or an element.
        self.buffer.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        let (direct, entered) = match &self.payload {
            Some(payload) if payload.reduction.is_none() => payload.rest()?,
            _ => (Span::EMPTY, None),
        };
        let room = if direct.bytes() > 0 {
            BEHIND_BYTES
        } else if self.payload.is_some() {
            BUFFER_BYTES - self.end
        } else {
            self.ahead
        };
        let rest = &mut self.buffer[self.end..self.end + room];
        let asked = direct.bytes() as usize + room;
        let read = match sys::receive(socket, direct, rest) {
            Ok(read) => read,
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(Failure::Socket(error)),
        };
        let placed = (read as u64).min(direct.bytes());
        drop(entered);
        if let Some(payload) = &mut self.payload {
            payload.at += placed;
            payload.left -= placed;
        }
        self.end += read - placed as usize;
        Ok(Some((read, asked)))
    }

    /// Looks at what is in the buffer, and at a payload that is whole.
    fn take(&mut self, around: &Around<'_>, turn: &mut Turn) -> Result<(), Failure> {
        loop {
            if let Some(payload) = &mut self.payload {
                let taken =
                    payload.place(&self.buffer[self.begin..self.end], around.device.host)?;
                self.begin += taken;
                if payload.left > 0 {
                    return Ok(());
                }
                self.end_payload(around, turn);
                continue;
            }
            let found = Frame::decode(&self.buffer[self.begin..self.end]);
            let Some((frame, len)) = found.map_err(Failure::Broken)? else {
                return Ok(());
            };
            self.begin += len;
            self.frame(&frame, around, turn)?;
        }
    }

    fn end_payload(&mut self, around: &Around<'_>, turn: &mut Turn) {
        let Some(payload) = self.payload.take() else {
            return;
        };
        if let Some((index, fingerprint)) = payload.notify {
            around.lines.record(index, fingerprint);
            turn.rings = true;
        }
        if !matches!(payload.to, Target::Region(_)) {
            lock(around.outbound).end_read();
            (turn.answers, turn.rings) = (true, true);
        }
    }

    fn frame(
        &mut self,
        frame: &Frame,
        around: &Around<'_>,
        turn: &mut Turn,
    ) -> Result<(), Failure> {
        let notify = (frame.flags & NOTIFY != 0).then(|| (frame.number, frame.fingerprint()));
        if notify.is_some_and(|(index, _)| !around.lines.has(index)) {
            return Err(Failure::Refused(STATUS_OUT_OF_BOUNDS));
        }
        let how = (frame.dtype.into(), frame.redop.into());
        match frame.kind {
            Kind::Write | Kind::WriteReduce => {
                let memory = self.handles.get(frame.handle)?;
                // The bounds now, so that nothing of it lands if they are wrong.
                let (place, entered) = memory
                    .enter(frame.offset, frame.bytes)
                    .map_err(Failure::Refused)?;
                let here = &self.buffer[self.begin..self.end];
                if let Some(whole) = here.get(..frame.bytes as usize)
                    && frame.kind == Kind::Write
                {
                    place.store(whole);
                    self.begin += whole.len();
                    drop(entered);
                    if let Some((index, fingerprint)) = notify {
                        around.lines.record(index, fingerprint);
                        turn.rings = true;
                    }
                    return Ok(());
                }
                drop(entered);
                let reduction = if frame.kind == Kind::WriteReduce {
                    Some(Reduction::new(how, frame.bytes)?)
                } else {
                    None
                };
                self.payload = Some(Payload {
                    to: Target::Region(Arc::clone(memory)),
                    at: frame.offset,
                    left: frame.bytes,
                    reduction,
                    notify,
                });
            }
            Kind::Notify => {
                let (index, fingerprint) = notify.ok_or(Failure::Broken("a notify of none"))?;
                around.lines.record(index, fingerprint);
                turn.rings = true;
            }
            Kind::Read => {
                let memory = self.handles.get(frame.handle)?;
                let entered = memory.enter(frame.offset, frame.bytes);
                drop(entered.map_err(Failure::Refused)?);
                let word = Word::Data(Arc::clone(memory), frame.offset, frame.bytes);
                answer(around, word, turn)?;
            }
            Kind::Data => {
                let read = lock(around.outbound).oldest_read();
                self.payload = Some(Payload::of_read(read, frame)?);
            }
            Kind::Import => {
                let mut reply = Frame::new(Kind::Imported);
                match self.import(frame, around.device) {
                    Ok((handle, bytes)) => (reply.handle, reply.bytes) = (handle, bytes),
                    Err(status) => reply = reply.with_status(status),
                }
                answer(around, Word::Frame(reply), turn)?;
            }
            Kind::Imported => {
                let mut outbound = lock(around.outbound);
                let asked = outbound.answered();
                let asked = asked.ok_or(Failure::Broken("a region that was not asked for"))?;
                let is_wanted = asked.give(frame.status(), frame.handle, frame.bytes);
                if !is_wanted && frame.status() == STATUS_OK {
                    let mut release = Frame::new(Kind::Release);
                    release.handle = frame.handle;
                    outbound.say(Word::Frame(release));
                }
                (turn.answers, turn.rings) = (true, true);
            }
            Kind::Release => self.handles.remove(frame.handle),
            Kind::Flush => {
                let mut reply = Frame::new(Kind::Flushed);
                reply.offset = frame.offset;
                answer(around, Word::Frame(reply), turn)?;
            }
            Kind::Flushed => {
                lock(around.outbound)
                    .flushed(frame.offset)
                    .map_err(Failure::Broken)?;
                turn.rings = true;
            }
            Kind::Refused => return Err(Failure::Told(frame.status())),
        }
        Ok(())
    }

    /// The peer asks for a region.
    fn import(&mut self, frame: &Frame, device: &DeviceCore) -> Result<(u64, u64), i32> {
        let memory = lock(&device.regions).get(&frame.handle).cloned();
        let memory = memory
            .filter(|memory| frame.flags & EXTRA != 0 && memory.opens_with(&frame.extra))
            .ok_or(STATUS_STALE_KEY)?;
        let bytes = memory.bytes();
        let handle = self.handles.add(memory).ok_or(STATUS_LIMIT)?;
        Ok((handle, bytes))
    }

    /// Takes what is there off the socket, as far as it does not come faster.
    pub(crate) fn drain(&mut self, socket: &OwnedFd) {
        const MOST_CALLS: u32 = 256;
        for _ in 0..MOST_CALLS {
            match sys::receive(socket, Span::EMPTY, &mut self.buffer) {
                Ok(1..) => {}
                Ok(0) | Err(_) => return,
            }
        }
    }

    /// The channel ends: nothing is placed any more.
    pub(crate) fn cut(&mut self) {
        self.payload = None;
        self.handles = Handles::default();
    }
}

/// Puts an answer into the way of the peer. It may not ask faster than it takes the answers.
fn answer(around: &Around<'_>, word: Word, turn: &mut Turn) -> Result<(), Failure> {
    turn.answers = true;
    let mut outbound = lock(around.outbound);
    if outbound.words() >= MAX_WORDS {
        return Err(Failure::Broken("more questions than it takes answers to"));
    }
    outbound.say(word);
    Ok(())
}

impl Reduction {
    fn new(how: (u32, u32), bytes: u64) -> Result<Self, Failure> {
        let element = element_bytes(how)
            .filter(|element| bytes.is_multiple_of(*element as u64))
            .ok_or(Failure::Refused(STATUS_INVALID_ARGUMENT))?;
        Ok(Self { element, how })
    }
}

impl Payload {
    /// Whether reading ahead of it was of little use.
    const fn is_long(&self) -> bool {
        self.left > BEHIND_BYTES as u64
    }

    /// The answer to a read.
    fn of_read(read: Option<Read>, frame: &Frame) -> Result<Self, Failure> {
        let read = read.ok_or(Failure::Broken("data that nobody asked for"))?;
        if frame.bytes != read.local.bytes() {
            return Err(Failure::Broken("other data than was asked for"));
        }
        let reduction = match read.reduction {
            Some(how) => Some(Reduction::new(how, frame.bytes)?),
            None => None,
        };
        Ok(Self {
            to: Target::Local(read.local),
            at: 0,
            left: frame.bytes,
            reduction,
            notify: None,
        })
    }

    /// Where the next bytes go, while the guard lives.
    fn rest(&self) -> Result<(Span, Option<RwLockReadGuard<'_, bool>>), Failure> {
        match &self.to {
            Target::Region(memory) => {
                let entered = memory.enter(self.at, self.left);
                let (span, guard) = entered.map_err(Failure::Refused)?;
                Ok((span, Some(guard)))
            }
            Target::Local(span) => Ok((span.rest(self.at), None)),
        }
    }

    /// Places what of `bytes` belongs to it; says how many that were.
    fn place(&mut self, bytes: &[u8], host: Host) -> Result<usize, Failure> {
        let mut now = self.left.min(bytes.len() as u64) as usize;
        if let Some(reduction) = self.reduction {
            now -= now % reduction.element;
        }
        if now == 0 {
            return Ok(0);
        }
        let bytes = &bytes[..now];
        {
            let (span, _entered) = self.rest()?;
            match self.reduction {
                None => span.store(bytes),
                Some(Reduction { element, how }) => span
                    .reduce(bytes, host, element, how)
                    .map_err(Failure::Refused)?,
            }
        }
        self.at += now as u64;
        self.left -= now as u64;
        Ok(now)
    }
}

/// Regions of this side that the peer has imported, by what it calls them: a place in the list, and
/// how often the place was used before.
#[derive(Debug, Default)]
struct Handles {
    list: Vec<(u32, Option<Arc<Memory>>)>,
    free: Vec<u32>,
}

impl Handles {
    fn add(&mut self, memory: Arc<Memory>) -> Option<u64> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.list.len() >= MAX_HANDLES => return None,
            None => {
                self.list.push((0, None));
                (self.list.len() - 1) as u32
            }
        };
        let (uses, slot) = self.list.get_mut(place as usize)?;
        *slot = Some(memory);
        Some(u64::from(place) | (u64::from(*uses) << 32))
    }

    fn get(&self, handle: u64) -> Result<&Arc<Memory>, Failure> {
        let (place, uses) = (handle as u32, (handle >> 32) as u32);
        self.list
            .get(place as usize)
            .filter(|(now, _)| *now == uses)
            .and_then(|(_, memory)| memory.as_ref())
            .ok_or(Failure::Refused(STATUS_STALE_KEY))
    }

    fn remove(&mut self, handle: u64) {
        let (place, uses) = (handle as u32, (handle >> 32) as u32);
        if let Some((now, memory)) = self.list.get_mut(place as usize)
            && *now == uses
            && memory.take().is_some()
        {
            *now = now.wrapping_add(1);
            self.free.push(place);
        }
    }
}
