//! Ring: every rank writes to the next one only.
//!
//! Each link carries every byte as few times as possible, so the ring is the choice where a rank
//! reaches only its neighbours, or where all ranks share one slow path.
//!
//! All messages of a rank go into a few slots of the next rank's scratch memory, in turn. A slot is
//! given back by a notify to the left once its content has been used *and* passed on.
//!
//! All-reduce (a reduce-scatter, then an all-gather, along the ring) is the algorithm of Patarasuk
//! and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.

use hcomm_types::Rank;

use super::layout::{LINE, Slices, line_down};
use super::tasks::{Tasks, length};
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// Data, to the right.
const DATA: u32 = 0;
/// A slot is free again, to the left.
const FREE: u32 = 1;
/// All ranks from here to the end of the chain have begun, to the left.
const BEGUN: u32 = 2;

/// More slots would not let a rank get further ahead in any useful way.
const MOST_SLOTS: u64 = 4;

/// Every rank writes to the next one.
#[derive(Clone, Copy, Debug)]
pub struct Ring;

impl Algorithm for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn summary(&self) -> &'static str {
        "every rank writes to the next one only; few bytes a link, for large sizes"
    }

    fn supports(&self, shape: &Shape) -> bool {
        matches!(
            shape.operation,
            Operation::AllReduce
                | Operation::AllGather
                | Operation::ReduceScatter
                | Operation::Broadcast { .. }
        )
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let most = line_down(params.scratch() / 2);
        if most == 0 {
            return Err(PlanError::Scratch {
                algorithm: self.name(),
                need: 2 * LINE,
                limit: params.scratch_bytes,
            });
        }
        let steps = u64::from(shape.ranks) - 1;
        let (parts, messages_a_slice) = match shape.operation {
            Operation::AllReduce => (u64::from(shape.ranks), 2 * steps),
            Operation::Broadcast { .. } => (1, 1),
            _ => (1, steps),
        };
        let most = most.min(line_down(params.slice_bytes).max(LINE));
        let slices = Slices::new(shape.count_bytes(), parts, most);
        let messages = slices.count() * messages_a_slice;
        let slot_bytes = slices.part_bytes();
        let slots = (params.scratch() / slot_bytes)
            .min(MOST_SLOTS)
            .min(messages);
        let mut ring = Neighbours {
            shape,
            me: rank,
            tasks: Tasks::new(shape, rank),
            slot_bytes,
            slots,
            messages,
            sent: 0,
            received: 0,
        };
        ring.tasks.divides();
        match shape.operation {
            Operation::AllReduce => ring.all_reduce(slices),
            Operation::ReduceScatter => ring.reduce_scatter(slices),
            Operation::Broadcast { root } => ring.broadcast(slices, root),
            _ => ring.all_gather(slices),
        }
        Ok(ring.tasks.finish(slots * slot_bytes))
    }
}

/// A rank between its neighbours, writing down what it does.
struct Neighbours<'s> {
    shape: &'s Shape,
    me: Rank,
    tasks: Tasks<'s>,
    slot_bytes: u64,
    slots: u64,
    /// Messages on each link in all.
    messages: u64,
    sent: u64,
    received: u64,
}

impl Neighbours<'_> {
    /// The rank that is `steps` to the left.
    fn left(&self, steps: u32) -> Rank {
        Rank((self.me.0 + self.shape.ranks - steps % self.shape.ranks) % self.shape.ranks)
    }

    fn right(&self) -> Rank {
        self.left(self.shape.ranks - 1)
    }

    fn send(&mut self, src: Loc, bytes: u64) {
        if self.sent >= self.slots {
            self.tasks.wait(self.right(), FREE);
        }
        let slot = Loc::scratch(self.sent % self.slots * self.slot_bytes);
        self.tasks.write(self.right(), slot, src, bytes, DATA);
        self.sent += 1;
    }

    /// Waits for the next message; gives where it lies.
    fn receive(&mut self) -> Loc {
        self.tasks.wait(self.left(1), DATA);
        Loc::scratch(self.received % self.slots * self.slot_bytes)
    }

    /// Gives the slot of the last message back, if the left neighbour will want it.
    fn give_back(&mut self) {
        if self.received + self.slots < self.messages {
            self.tasks.record(self.left(1), FREE);
        }
        self.received += 1;
    }

    fn all_reduce(&mut self, slices: Slices) {
        let ranks = self.shape.ranks;
        for slice in 0..slices.count() {
            let part = |rank: Rank| slices.part(slice, u64::from(rank.0));
            let first = part(self.me);
            self.send(Loc::input(first.start), length(&first));
            for step in 1..ranks {
                let range = part(self.left(step));
                let bytes = length(&range);
                let (slot, own) = (self.receive(), Loc::input(range.start));
                // The last part to arrive is complete with this rank's contribution.
                let is_complete = step == ranks - 1;
                let dst = if is_complete {
                    Loc::output(range.start)
                } else {
                    slot
                };
                self.tasks.reduce(dst, slot, own, bytes);
                if is_complete {
                    self.tasks.divide(dst, bytes);
                }
                self.send(dst, bytes);
                self.give_back();
            }
            for step in 0..ranks - 1 {
                let range = part(self.left(step));
                let bytes = length(&range);
                let slot = self.receive();
                if step < ranks - 2 {
                    self.send(slot, bytes);
                }
                self.tasks.copy(Loc::output(range.start), slot, bytes);
                self.give_back();
            }
        }
    }

    fn reduce_scatter(&mut self, slices: Slices) {
        let ranks = self.shape.ranks;
        for slice in 0..slices.count() {
            let shape = self.shape;
            let range = |part: Rank| slices.slice_of(slice, shape.part_bytes(part));
            let own = |part: Rank| Loc::input(shape.part(part).start + range(part).start);
            let next = self.left(1);
            self.send(own(next), length(&range(next)));
            for step in 2..=ranks {
                let part = self.left(step);
                let bytes = length(&range(part));
                let slot = self.receive();
                if part == self.me {
                    let out = Loc::output(range(part).start);
                    self.tasks.reduce(out, slot, own(part), bytes);
                    self.tasks.divide(out, bytes);
                } else {
                    self.tasks.reduce(slot, slot, own(part), bytes);
                    self.send(slot, bytes);
                }
                self.give_back();
            }
        }
    }

    fn all_gather(&mut self, slices: Slices) {
        let ranks = self.shape.ranks;
        for slice in 0..slices.count() {
            let shape = self.shape;
            let range = |part: Rank| slices.slice_of(slice, shape.part_bytes(part));
            let place = |part: Rank| Loc::output(shape.part(part).start + range(part).start);
            let mine = range(self.me);
            self.send(Loc::input(mine.start), length(&mine));
            self.tasks
                .keep_own(place(self.me), Loc::input(mine.start), length(&mine));
            for step in 1..ranks {
                let part = self.left(step);
                let bytes = length(&range(part));
                let slot = self.receive();
                if step < ranks - 1 {
                    self.send(slot, bytes);
                }
                self.tasks.copy(place(part), slot, bytes);
                self.give_back();
            }
        }
    }

    /// Along the chain from the root to its left neighbour. The root keeps the last slice until
    /// word has come back along the chain that all have begun, so that nobody leaves before.
    fn broadcast(&mut self, slices: Slices, root: Rank) {
        let ranks = self.shape.ranks;
        let position = (self.me.0 + ranks - root.0) % ranks;
        let is_last_rank = position == ranks - 1;
        if is_last_rank {
            self.tasks.record(self.left(1), BEGUN);
        }
        for slice in 0..slices.count() {
            if slice == slices.count() - 1 && !is_last_rank {
                self.tasks.wait(self.right(), BEGUN);
                if position > 0 {
                    self.tasks.record(self.left(1), BEGUN);
                }
            }
            let range = slices.slice(slice);
            let bytes = length(&range);
            if position == 0 {
                self.send(Loc::input(range.start), bytes);
                continue;
            }
            let slot = self.receive();
            if !is_last_rank {
                self.send(slot, bytes);
            }
            self.tasks.copy(Loc::output(range.start), slot, bytes);
            self.give_back();
        }
        if position == 0 {
            self.tasks
                .keep_own(Loc::output(0), Loc::input(0), self.shape.count_bytes());
        }
    }
}
