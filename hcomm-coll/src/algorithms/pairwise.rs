//! Pairwise exchange: in step *k* a rank sends to the *k*-th rank to its right and receives from
//! the *k*-th to its left, so that nobody is sent to by two at once.
//!
//! With one count for all it is the rank whose number and the own one add up to *k*, which is
//! symmetric, so that it may be in place.
//!
//! For all-to-all, with one count for all or one for each pair, of which a rank needs to know only
//! its own. Each pair of ranks has two slots at the receiver, used in turn; a notify gives a slot
//! back. What has no bytes is a notify alone.
//!
//! Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH",
//! IJHPCA 2005, section 4.4.

use hcomm_types::Rank;

use super::layout::{LINE, line_down, line_up};
use super::tasks::{Tasks, length};
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// Data, to the receiver.
const DATA: u32 = 0;
/// A slot is free again, to the sender.
const FREE: u32 = 1;

/// One partner to send to and one to receive from in each step.
#[derive(Clone, Copy, Debug)]
pub struct Pairwise;

impl Algorithm for Pairwise {
    fn name(&self) -> &'static str {
        "pairwise"
    }

    fn summary(&self) -> &'static str {
        "in each step one rank to send to and one to receive from; also where counts differ"
    }

    fn supports(&self, shape: &Shape) -> bool {
        shape.operation == Operation::AllToAll
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let slots = 2 * (u64::from(shape.ranks) - 1);
        let room = line_down(params.scratch() / slots);
        if room == 0 {
            return Err(PlanError::Scratch {
                algorithm: self.name(),
                need: slots * LINE,
                limit: params.scratch_bytes,
            });
        }
        // Of the same size on all ranks, though none may know all counts.
        let mut slot = room.min(line_down(params.slice_bytes).max(LINE));
        if shape.count.is_even() {
            slot = slot.min(line_up(shape.count_bytes()));
        }
        let mut tasks = Tasks::new(shape, rank);
        let pairs = Pairs { shape, slot };
        pairs.exchange(&mut tasks, rank);
        Ok(tasks.finish(slots * slot))
    }
}

struct Pairs<'s> {
    shape: &'s Shape,
    slot: u64,
}

impl Pairs<'_> {
    fn exchange(&self, tasks: &mut Tasks<'_>, me: Rank) {
        let shape = self.shape;
        let ranks = shape.ranks;
        let (own, kept) = (shape.sent_part(me, me), shape.received_part(me, me));
        tasks.keep_own(Loc::output(kept.start), Loc::input(own.start), length(&own));
        for step in 0..ranks {
            let (to, from) = if shape.count.is_even() {
                // The same for both, so that in place what has gone makes room for what comes; and
                // the same order at ranks that are in place and at others.
                let partner = Rank((ranks + step - me.0) % ranks);
                (partner, partner)
            } else {
                (
                    Rank((me.0 + step) % ranks),
                    Rank((me.0 + ranks - step) % ranks),
                )
            };
            if to == me {
                continue;
            }
            let (sent, received) = (shape.sent_part(me, to), shape.received_part(from, me));
            let sends = self.slices(length(&sent));
            let receives = self.slices(length(&received));
            for slice in 0..sends.max(receives) {
                if slice < sends {
                    if slice >= 2 {
                        tasks.wait(to, FREE);
                    }
                    let (offset, bytes) = self.slice(slice, length(&sent));
                    let src = Loc::input(sent.start + offset);
                    tasks.write(to, self.place(slice, to, me), src, bytes, DATA);
                }
                if slice < receives {
                    tasks.wait(from, DATA);
                    let (offset, bytes) = self.slice(slice, length(&received));
                    let dst = Loc::output(received.start + offset);
                    tasks.copy(dst, self.place(slice, me, from), bytes);
                    if slice + 2 < receives {
                        tasks.record(from, FREE);
                    }
                }
            }
        }
    }

    /// Messages that so many bytes take: at least one.
    fn slices(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.slot).max(1)
    }

    /// Where a slice begins, and how long it is.
    fn slice(&self, slice: u64, bytes: u64) -> (u64, u64) {
        let offset = slice * self.slot;
        (offset, self.slot.min(bytes - offset))
    }

    /// The slot at `owner` for a slice of `sender`.
    fn place(&self, slice: u64, owner: Rank, sender: Rank) -> Loc {
        let index = u64::from(sender.0) - u64::from(sender > owner);
        Loc::scratch((index * 2 + slice % 2) * self.slot)
    }
}
