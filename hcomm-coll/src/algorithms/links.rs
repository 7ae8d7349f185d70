//! Messages of one rank through slots in the receivers' scratch memory.
//!
//! A [`Link`] carries messages from one rank to another, in order. It has a few slots at the
//! receiver, mostly two, used in turn, and two notifies: that data is there, and that a slot is free again.
//! The second is recorded only where the sender will wait for it, which the receiver knows in the
//! end, when it has counted its messages.
//!
//! A receiver numbers the links that lead to it; the number says where the slots lie. All ranks
//! plan with the same [`Slots`].

use std::collections::BTreeMap;
use std::ops::Range;

use hcomm_types::Rank;

use super::layout::{LINE, line_down, line_up};
use super::tasks::{Tasks, length};
use super::{Algorithm, Params, PlanError};
use crate::plan::{Loc, RankPlan, Shape};

/// That a rank and all behind it have begun; and, the other way, that all have. Behind those of
/// the lanes.
pub(super) const BEGUN: u32 = 8;

/// How the scratch memory of each rank is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    /// Slots of each link.
    each: u64,
    /// Bytes of a slot.
    pub(super) bytes: u64,
    /// Places beside the slots, as large as a slot, for what a rank keeps. They come first.
    places: u64,
}

impl Slots {
    /// Divides the scratch memory for `links` links to a rank (at least one), and `places`, when
    /// nothing longer than `longest` bytes is to be sent in one piece.
    ///
    /// # Errors
    /// If not even one line a slot fits.
    pub(super) fn new(
        algorithm: &dyn Algorithm,
        params: &Params,
        links: u64,
        places: u64,
        longest: u64,
    ) -> Result<Self, PlanError> {
        let room = |each: u64| line_down(params.scratch() / (links * each + places));
        if room(1) == 0 {
            return Err(PlanError::Scratch {
                algorithm: algorithm.name(),
                need: (links + places) * LINE,
                limit: params.scratch_bytes,
            });
        }
        let whole = line_up(longest).max(LINE);
        let wish = wished(params, longest);
        let (each, bytes) = if wish <= room(2) {
            (2, wish)
        } else if whole == wish && whole <= room(1) {
            // What goes in one piece needs no second slot.
            (1, whole)
        } else if room(2) > 0 {
            (2, room(2))
        } else {
            (1, room(1))
        };
        Ok(Self {
            each,
            bytes,
            places,
        })
    }

    /// Of nothing, where no data is sent.
    pub(super) fn none() -> Self {
        Self {
            each: 1,
            bytes: LINE,
            places: 0,
        }
    }

    /// As [`new`](Self::new), for links that lead round in a circle: with a single slot each rank
    /// would hold its own and wait for the next one's.
    ///
    /// # Errors
    /// If not even two lines a link fit.
    pub(super) fn for_circles(
        algorithm: &dyn Algorithm,
        params: &Params,
        links: u64,
        longest: u64,
    ) -> Result<Self, PlanError> {
        let room = line_down(params.scratch() / (2 * links));
        if room == 0 {
            return Err(PlanError::Scratch {
                algorithm: algorithm.name(),
                need: 2 * links * LINE,
                limit: params.scratch_bytes,
            });
        }
        Ok(Self {
            each: 2,
            bytes: wished(params, longest).min(room),
            places: 0,
        })
    }

    /// The same with up to `most` slots a link, as far as they fit, so that a sender may be further
    /// ahead.
    pub(super) fn deeper(self, params: &Params, links: u64, most: u64) -> Self {
        let fit = (params.scratch() / self.bytes - self.places) / links;
        let each = self.each.max(fit.min(most));
        Self { each, ..self }
    }

    /// How many messages a sender may be ahead.
    pub(super) fn ahead(&self) -> u64 {
        self.each
    }

    /// The same, with slots no larger than need be.
    pub(super) fn shrunk(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }
}

/// Bytes of a slot if there is room: all in one piece, unless that should not be under way at once.
fn wished(params: &Params, longest: u64) -> u64 {
    let slice = line_down(params.slice_bytes).max(LINE);
    line_up(longest).max(LINE).min(slice)
}

/// A way from one rank to another, seen from one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Link {
    /// The rank at the other end.
    pub(super) peer: Rank,
    /// Its number among the links to the receiver.
    pub(super) inbox: u64,
    /// Tells links apart that lead from one rank to the same other.
    pub(super) lane: u32,
}

impl Link {
    pub(super) fn new(peer: Rank, inbox: u64, lane: u32) -> Self {
        debug_assert!(lane < BEGUN / 2);
        Self { peer, inbox, lane }
    }

    /// The slots of a piece of a message.
    fn part(self, index: usize) -> Self {
        let inbox = self.inbox + index as u64;
        Self { inbox, ..self }
    }

    fn data(self) -> u32 {
        2 * self.lane
    }

    fn free(self) -> u32 {
        2 * self.lane + 1
    }
}

/// What one rank sends and receives, as it is written down.
pub(super) struct Links<'s> {
    pub(super) tasks: Tasks<'s>,
    slots: Slots,
    sent: BTreeMap<Link, u64>,
    received: BTreeMap<Link, u64>,
    /// Where slots are given back: the place of the task, the link, the number of the message.
    given_back: Vec<(usize, Link, u64)>,
    /// Slots, with places, up to the last one that something has come into.
    used: u64,
}

impl<'s> Links<'s> {
    pub(super) fn new(shape: &'s Shape, rank: Rank, slots: Slots) -> Self {
        Self {
            tasks: Tasks::new(shape, rank),
            slots,
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            given_back: Vec::new(),
            used: 0,
        }
    }

    /// The plan, when a rank keeps something in its places (`keeps`) or not.
    pub(super) fn finish(mut self, keeps: bool) -> RankPlan {
        let Slots {
            each,
            bytes,
            places,
        } = self.slots;
        let kept = if keeps { places } else { 0 };
        let scratch_bytes = self.used.max(kept) * bytes;
        let unwanted = self
            .given_back
            .iter()
            .filter(|(_, link, number)| number + each >= self.received[link])
            .map(|(index, ..)| *index);
        self.tasks.remove(unwanted.collect());
        self.tasks.finish(scratch_bytes)
    }

    fn slot(&self, link: Link, number: u64) -> Loc {
        let Slots {
            each,
            bytes,
            places,
        } = self.slots;
        Loc::scratch((places + link.inbox * each + number % each) * bytes)
    }

    /// Sends up to a slot of bytes; of none, the notify remains.
    pub(super) fn send(&mut self, link: Link, src: Loc, bytes: u64) {
        let sent = self.sent.entry(link).or_default();
        let number = *sent;
        *sent += 1;
        if number >= self.slots.each {
            self.tasks.wait(link.peer, link.free());
        }
        let slot = self.slot(link, number);
        self.tasks.write(link.peer, slot, src, bytes, link.data());
    }

    /// Sends several pieces, each of up to a slot of bytes, in one message with one notify. The slots
    /// are those of the link and of as many that follow, which are no links of their own.
    pub(super) fn send_parts(&mut self, link: Link, parts: &[(Loc, u64)]) {
        let sent = self.sent.entry(link).or_default();
        let number = *sent;
        *sent += 1;
        if number >= self.slots.each {
            self.tasks.wait(link.peer, link.free());
        }
        let last = parts.iter().rposition(|(_, bytes)| *bytes > 0);
        for (index, (src, bytes)) in parts.iter().enumerate() {
            let dst = self.slot(link.part(index), number);
            let notify = (last == Some(index)).then(|| link.data());
            self.tasks.put(link.peer, dst, *src, *bytes, notify);
        }
        if last.is_none() {
            self.tasks.record(link.peer, link.data());
        }
    }

    /// Waits for the next message; gives where it lies.
    pub(super) fn receive(&mut self, link: Link) -> Loc {
        let number = self.arrived(link, 1);
        self.slot(link, number)
    }

    /// Waits for the next message of so many pieces, at least one; gives where they lie.
    pub(super) fn receive_parts(&mut self, link: Link, parts: usize) -> Vec<Loc> {
        let number = self.arrived(link, parts);
        let slots = (0..parts).map(|index| self.slot(link.part(index), number));
        slots.collect()
    }

    /// Waits for the next message of so many pieces; its number.
    fn arrived(&mut self, link: Link, parts: usize) -> u64 {
        self.tasks.wait(link.peer, link.data());
        let number = self.received.get(&link).copied().unwrap_or(0);
        let Slots { each, places, .. } = self.slots;
        let before = places + link.part(parts - 1).inbox * each;
        self.used = self.used.max(before + each.min(number + 1));
        number
    }

    /// Takes the next message to its place.
    pub(super) fn take(&mut self, link: Link, dst: Loc, bytes: u64) {
        let slot = self.receive(link);
        self.tasks.copy(dst, slot, bytes);
        self.give_back(link);
    }

    /// Combines the next message of each of these with the own contribution, into `out`.
    pub(super) fn combine(&mut self, from: &[Link], own: Loc, out: Loc, bytes: u64) {
        let mut so_far = own;
        for link in from {
            let slot = self.receive(*link);
            self.tasks.reduce(out, so_far, slot, bytes);
            self.give_back(*link);
            so_far = out;
        }
        if from.is_empty() {
            self.tasks.keep_own(out, own, bytes);
        }
    }

    /// Gives the slot of the message received last back.
    pub(super) fn give_back(&mut self, link: Link) {
        let received = self.received.entry(link).or_default();
        let here = self.tasks.count();
        self.given_back.push((here, link, *received));
        *received += 1;
        self.tasks.record(link.peer, link.free());
    }

    /// Sends ranges over one link and receives others over another, piece by piece, so that nobody
    /// waits for a slot of somebody who waits likewise. Each way there is one message at least.
    ///
    /// `src` says where the bytes from an offset on lie; `take` uses what has come.
    pub(super) fn exchange(
        &mut self,
        send: Option<(Link, &[Range<u64>])>,
        receive: Option<(Link, &[Range<u64>])>,
        src: impl Fn(u64) -> Loc,
        mut take: impl FnMut(&mut Tasks<'s>, Loc, Range<u64>),
    ) {
        let slot = self.slots.bytes;
        let messages = |way: Option<(Link, &[Range<u64>])>| {
            way.map_or_else(Vec::new, |(_, ranges)| {
                let mut messages = pieces(ranges, slot);
                if messages.is_empty() {
                    messages.push(0..0);
                }
                messages
            })
        };
        let (sends, receives) = (messages(send), messages(receive));
        for index in 0..sends.len().max(receives.len()) {
            if let (Some((link, _)), Some(piece)) = (send, sends.get(index)) {
                // Of nothing there is no place to ask for.
                let from = if piece.is_empty() {
                    Loc::input(0)
                } else {
                    src(piece.start)
                };
                self.send(link, from, length(piece));
            }
            if let (Some((link, _)), Some(piece)) = (receive, receives.get(index)) {
                let slot = self.receive(link);
                if !piece.is_empty() {
                    take(&mut self.tasks, slot, piece.clone());
                }
                self.give_back(link);
            }
        }
    }
}

/// Joins ranges that follow each other, and cuts them into pieces of at most `most` bytes.
pub(super) fn pieces(ranges: &[Range<u64>], most: u64) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range.clone()),
        }
    }
    let cut = |range: Range<u64>| {
        (0..length(&range).div_ceil(most)).map(move |index| {
            let start = range.start + index * most;
            start..start.saturating_add(most).min(range.end)
        })
    };
    joined.into_iter().flat_map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_what_follows_each_other_and_leave_out_what_is_empty() {
        let ranges = [0..64, 64..64, 64..200, 300..301, 0..10];
        let cut = pieces(&ranges, 128);
        assert_eq!(cut, [0..128, 128..200, 300..301, 0..10]);
        assert!(pieces(std::slice::from_ref(&(7..7)), 64).is_empty());
    }
}
