//! Bruck's algorithms: in step *k* every rank sends to one at distance 2^*k*, for any number of
//! ranks, and without that anybody has to act for another.
//!
//! All-gather doubles what a rank has in each step, and sends no byte twice to the same rank: the
//! choice for small sizes on many ranks, also where counts differ. Received blocks go to their
//! place in the output at once, so nothing is turned around in the end.
//!
//! All-to-all sends what has to go *d* ranks further in the steps of the bits of *d*. Every byte is
//! sent about log₂(ranks) / 2 times, so it is for small blocks on many ranks only, where the
//! messages of `pairwise` would be too many. What is on its way stays in scratch memory, a slice
//! at a time; it leaves from the input and ends in the output without another copy, unless these
//! are the same.
//!
//! The barrier is the same pattern without data; it is also known as dissemination (Hensgen,
//! Finkel, Manber, "Two algorithms for barrier synchronization", IJPP 1988).
//!
//! Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in
//! multiport message-passing systems", IEEE TPDS 1997.

use hcomm_types::Rank;

use super::blocks::Step;
use super::layout::Slices;
use super::links::{Link, Links, Slots};
use super::recursive_doubling::gather;
use super::tasks::{Tasks, length};
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// Every rank sends at doubling distance.
#[derive(Clone, Copy, Debug)]
pub struct Bruck;

impl Algorithm for Bruck {
    fn name(&self) -> &'static str {
        "bruck"
    }

    fn summary(&self) -> &'static str {
        "every rank sends at doubling distance; for small sizes on any number of ranks"
    }

    fn supports(&self, shape: &Shape) -> bool {
        match shape.operation {
            Operation::AllGather | Operation::Barrier => true,
            // Who passes a block on has to know its length.
            Operation::AllToAll => shape.count.is_even(),
            _ => false,
        }
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let ring = Ring {
            ranks: u64::from(shape.ranks),
            me: u64::from(rank.0),
        };
        match shape.operation {
            Operation::Barrier => {
                let mut tasks = Tasks::new(shape, rank);
                for by in ring.distances() {
                    tasks.record(ring.right(by), 0);
                    tasks.wait(ring.left(by), 0);
                }
                Ok(tasks.finish(0))
            }
            Operation::AllToAll => all_to_all(self, shape, params, rank, &ring),
            _ => gather(self, shape, params, rank, &ring.all_gather()),
        }
    }
}

/// A rank among all others, which lie in a ring.
struct Ring {
    ranks: u64,
    me: u64,
}

impl Ring {
    fn right(&self, distance: u64) -> Rank {
        Rank(((self.me + distance) % self.ranks) as u32)
    }

    fn left(&self, distance: u64) -> Rank {
        self.right(self.ranks - distance)
    }

    /// The distance of each step.
    fn distances(&self) -> impl Iterator<Item = u64> + use<> {
        (0..self.ranks.next_power_of_two().ilog2()).map(|bit| 1 << bit)
    }

    /// Before the step at some distance a rank has as many blocks as that, from its own on to the
    /// right.
    fn all_gather(&self) -> Vec<Step> {
        let step = |by: u64| {
            let blocks = by.min(self.ranks - by);
            let from = |first: u64| (first..first + blocks).map(|d| self.right(d).0).collect();
            Step {
                send: Some((self.left(by), from(0))),
                receive: Some((self.right(by), from(by))),
            }
        };
        self.distances().map(step).collect()
    }
}

fn all_to_all(
    algorithm: &dyn Algorithm,
    shape: &Shape,
    params: &Params,
    me: Rank,
    ring: &Ring,
) -> Result<RankPlan, PlanError> {
    let (bytes, ranks) = (shape.count_bytes(), u64::from(shape.ranks));
    let steps = ring.distances().count() as u64;
    // A place for each distance that something has to go.
    let slots = Slots::new(algorithm, params, steps, ranks - 1, bytes)?;
    let slices = Slices::new(bytes, 1, slots.bytes);
    let part = slices.part_bytes();
    let mut links = Links::new(shape, me, slots.shrunk(part));
    let place = |distance: u64| (distance - 1) * part;
    let mut keeps = shape.in_place;
    for slice in 0..slices.count() {
        let range = slices.slice(slice);
        let bytes = length(&range);
        let sent = |to: Rank| Loc::input(shape.sent_part(me, to).start + range.start);
        let received = |from: Rank| Loc::output(shape.received_part(from, me).start + range.start);
        links.tasks.keep_own(received(me), sent(me), bytes);
        if shape.in_place {
            // What comes first may fall on what goes last.
            for distance in 1..ranks {
                let dst = Loc::scratch(place(distance));
                links.tasks.copy(dst, sent(ring.right(distance)), bytes);
            }
        }
        for (inbox, by) in (0..).zip(ring.distances()) {
            let moved = (1..ranks).filter(|distance| distance & by != 0);
            let ranges: Vec<_> = moved
                .map(|distance| place(distance)..place(distance) + bytes)
                .collect();
            links.exchange(
                Some((Link::new(ring.right(by), inbox, 0), &ranges)),
                Some((Link::new(ring.left(by), inbox, 0), &ranges)),
                |offset| {
                    let distance = offset / part + 1;
                    if shape.in_place || distance & (by - 1) != 0 {
                        Loc::scratch(offset)
                    } else {
                        sent(ring.right(distance))
                    }
                },
                |tasks, slot, piece| {
                    let distance = piece.start / part + 1;
                    let dst = if distance < 2 * by {
                        received(ring.left(distance))
                    } else {
                        keeps = true;
                        Loc::scratch(piece.start)
                    };
                    tasks.copy(dst, slot, length(&piece));
                },
            );
        }
    }
    Ok(links.finish(keeps))
}
