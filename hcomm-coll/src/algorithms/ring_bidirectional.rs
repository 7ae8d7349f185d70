//! Two rings, one each way round: half of each part goes to the right, the other half to the left.
//!
//! A link that carries data both ways at once is used twice as much as by `ring`, so this is the
//! choice for large sizes where a rank reaches its two neighbours over links of their own. Where
//! all ranks share one path it moves as many bytes as `ring` in twice as many messages.
//!
//! Each direction has its own link to a rank, with two slots, and is else as in `ring`: what was
//! received is combined in its slot and passed on from there. A rank serves the directions in
//! turn.
//!
//! After Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
//! JPDC 2009, who use one direction.

use std::ops::Range;

use hcomm_types::Rank;

use super::layout::Slices;
use super::links::{Link, Links, Slots};
use super::tasks::length;
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// Half goes each way round.
#[derive(Clone, Copy, Debug)]
pub struct RingBidirectional;

impl Algorithm for RingBidirectional {
    fn name(&self) -> &'static str {
        "ring_bidirectional"
    }

    fn summary(&self) -> &'static str {
        "half of everything goes each way round a ring; for large sizes"
    }

    fn supports(&self, shape: &Shape) -> bool {
        matches!(
            shape.operation,
            Operation::AllReduce | Operation::AllGather | Operation::ReduceScatter
        )
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let bytes = shape.count_bytes();
        let parts = match shape.operation {
            Operation::AllReduce => 2 * u64::from(shape.ranks),
            _ => 2,
        };
        let slots = Slots::for_circles(self, params, 2, bytes.div_ceil(parts))?;
        let slices = Slices::new(bytes, parts, slots.bytes);
        let slots = slots.shrunk(slices.part_bytes());
        let mut rings = Rings {
            shape,
            slices,
            me: rank,
            links: Links::new(shape, rank, slots),
        };
        rings.links.tasks.divides();
        for slice in 0..slices.count() {
            match shape.operation {
                Operation::AllReduce => rings.all_reduce(slice),
                Operation::ReduceScatter => rings.reduce_scatter(slice),
                _ => rings.all_gather(slice),
            }
        }
        Ok(rings.links.finish(false))
    }
}

/// To the right, and to the left. They have their own halves, links and notifies.
const WAYS: [u32; 2] = [0, 1];

struct Rings<'s> {
    shape: &'s Shape,
    slices: Slices,
    me: Rank,
    links: Links<'s>,
}

impl Rings<'_> {
    /// The rank from which something has come in so many steps.
    fn origin(&self, way: u32, steps: u32) -> Rank {
        let (me, ranks) = (u64::from(self.me.0), u64::from(self.shape.ranks));
        let steps = u64::from(steps) % ranks;
        let origin = if way == 0 {
            me + ranks - steps
        } else {
            me + steps
        };
        Rank((origin % ranks) as u32)
    }

    fn send(&mut self, way: u32, src: Loc, bytes: u64) {
        let to = self.origin(1 - way, 1);
        let link = Link::new(to, u64::from(way), way);
        self.links.send(link, src, bytes);
    }

    fn from(&self, way: u32) -> Link {
        Link::new(self.origin(way, 1), u64::from(way), way)
    }

    /// The half of a rank's part of a slice that goes one way, within the part.
    fn half(&self, slice: u64, way: u32, part: Rank) -> Range<u64> {
        let range = self.slices.part(slice, u64::from(way));
        let bytes = self.shape.part_bytes(part);
        range.start.min(bytes)..range.end.min(bytes)
    }

    fn all_reduce(&mut self, slice: u64) {
        let ranks = self.shape.ranks;
        let slices = self.slices;
        let part =
            |way: u32, rank: Rank| slices.part(slice, 2 * u64::from(rank.0) + u64::from(way));
        for way in WAYS {
            let own = part(way, self.me);
            self.send(way, Loc::input(own.start), length(&own));
        }
        for step in 1..ranks {
            for way in WAYS {
                let range = part(way, self.origin(way, step));
                let bytes = length(&range);
                let slot = self.links.receive(self.from(way));
                // The last part to arrive is complete with this rank's contribution.
                let is_complete = step == ranks - 1;
                let dst = if is_complete {
                    Loc::output(range.start)
                } else {
                    slot
                };
                let own = Loc::input(range.start);
                self.links.tasks.reduce(dst, slot, own, bytes);
                if is_complete {
                    self.links.tasks.divide(dst, bytes);
                }
                self.send(way, dst, bytes);
                self.links.give_back(self.from(way));
            }
        }
        for step in 0..ranks - 1 {
            for way in WAYS {
                let range = part(way, self.origin(way, step));
                self.pass_on(way, step + 2 < ranks, Loc::output(range.start), &range);
            }
        }
    }

    fn reduce_scatter(&mut self, slice: u64) {
        let ranks = self.shape.ranks;
        for way in WAYS {
            let next = self.origin(way, 1);
            let half = self.half(slice, way, next);
            let src = Loc::input(self.shape.part(next).start + half.start);
            self.send(way, src, length(&half));
        }
        for step in 2..=ranks {
            for way in WAYS {
                let part = self.origin(way, step);
                let half = self.half(slice, way, part);
                let bytes = length(&half);
                let own = Loc::input(self.shape.part(part).start + half.start);
                let slot = self.links.receive(self.from(way));
                if part == self.me {
                    let out = Loc::output(half.start);
                    self.links.tasks.reduce(out, slot, own, bytes);
                    self.links.tasks.divide(out, bytes);
                } else {
                    self.links.tasks.reduce(slot, slot, own, bytes);
                    self.send(way, slot, bytes);
                }
                self.links.give_back(self.from(way));
            }
        }
    }

    fn all_gather(&mut self, slice: u64) {
        let ranks = self.shape.ranks;
        for way in WAYS {
            let half = self.half(slice, way, self.me);
            let own = Loc::input(half.start);
            self.send(way, own, length(&half));
            let kept = Loc::output(self.shape.part(self.me).start + half.start);
            self.links.tasks.keep_own(kept, own, length(&half));
        }
        for step in 1..ranks {
            for way in WAYS {
                let part = self.origin(way, step);
                let half = self.half(slice, way, part);
                let dst = Loc::output(self.shape.part(part).start + half.start);
                self.pass_on(way, step + 1 < ranks, dst, &half);
            }
        }
    }

    /// Takes what is complete, and sends it on if somebody lacks it.
    fn pass_on(&mut self, way: u32, further: bool, dst: Loc, range: &Range<u64>) {
        let slot = self.links.receive(self.from(way));
        if further {
            self.send(way, slot, length(range));
        }
        self.links.tasks.copy(dst, slot, length(range));
        self.links.give_back(self.from(way));
    }
}
