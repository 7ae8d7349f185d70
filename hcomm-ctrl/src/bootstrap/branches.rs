//! The ranks that hang directly below one in the tree of start-up.

use std::collections::{BTreeMap, VecDeque};

use hcomm_transport::Interest;
use hcomm_types::Rank;

use crate::frame::{Body, Frame, FrameType};
use crate::wire::{Wire, WireError};

/// What came from below.
pub(super) enum News {
    /// A rank has said something.
    Said(Rank, Frame),
    /// A rank is gone without a word.
    Lost(Rank, WireError),
}

/// The connections to the ranks below.
#[derive(Default)]
pub(super) struct Branches {
    wires: BTreeMap<Rank, Wire>,
    /// In the order in which they came.
    order: VecDeque<Rank>,
}

impl Branches {
    /// Takes a rank in; a connection of it that was there before is given up.
    pub(super) fn adopt(&mut self, rank: Rank, wire: Wire) {
        if self.wires.insert(rank, wire).is_some() {
            self.order.retain(|other| *other != rank);
        }
        self.order.push_back(rank);
    }

    pub(super) fn len(&self) -> usize {
        self.wires.len()
    }

    /// Lets those go that came first, until so many are left.
    pub(super) fn keep(&mut self, most: usize) {
        while self.wires.len() > most
            && let Some(first) = self.order.pop_front()
        {
            self.wires.remove(&first);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wires.is_empty()
    }

    /// Writes, and hears all that was said. Who leaves in good order is no news.
    pub(super) fn hear(&mut self) -> Vec<News> {
        let mut news = Vec::new();
        let before = self.wires.len();
        self.wires.retain(|&rank, wire| {
            loop {
                match wire.flush().and_then(|()| wire.receive()) {
                    Ok(None) => return true,
                    Ok(Some(frame)) if frame.kind == FrameType::Leave => return false,
                    Ok(Some(frame)) => news.push(News::Said(rank, frame)),
                    Err(error) => {
                        news.push(News::Lost(rank, error));
                        return false;
                    }
                }
            }
        });
        self.forget(before);
        news
    }

    /// Leaves those out of the order that have left since there were so many.
    fn forget(&mut self, before: usize) {
        if self.wires.len() < before {
            self.order.retain(|rank| self.wires.contains_key(rank));
        }
    }

    /// Tells one. An error shows up again when it is heard.
    pub(super) fn tell(&mut self, rank: Rank, kind: FrameType, body: Body) {
        if let Some(wire) = self.wires.get_mut(&rank) {
            wire.send(kind, body);
            let _ = wire.flush();
        }
    }

    /// Tells all.
    pub(super) fn tell_all(&mut self, kind: FrameType, body: &Body) {
        for wire in self.wires.values_mut() {
            wire.send(kind, body.clone());
            let _ = wire.flush();
        }
    }

    /// Tells those that have read everything before, so that nothing piles up.
    pub(super) fn tell_idle(&mut self, kind: FrameType, body: &Body) {
        for wire in self.wires.values_mut() {
            if wire.queued_bytes() == 0 {
                wire.send(kind, body.clone());
            }
            let _ = wire.flush();
        }
    }

    /// Whether all that was said is written. Who is gone needs nothing any more.
    pub(super) fn all_written(&mut self) -> bool {
        self.wires
            .values_mut()
            .all(|wire| wire.flush().is_err() || wire.queued_bytes() == 0)
    }

    /// Drops those that have hung up, after the last word; whether all have.
    pub(super) fn have_left(&mut self) -> bool {
        let before = self.wires.len();
        self.wires
            .retain(|_, wire| wire.flush().is_ok() && !wire.drain());
        self.forget(before);
        self.wires.is_empty()
    }

    /// Gives all connections away.
    pub(super) fn take(&mut self) -> BTreeMap<Rank, Wire> {
        self.order.clear();
        std::mem::take(&mut self.wires)
    }

    pub(super) fn interests<'a>(&'a self, wanted: &mut Vec<Interest<'a>>) {
        wanted.extend(self.wires.values().filter_map(Wire::interest));
    }
}
