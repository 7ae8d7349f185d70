//! Mesh, one shot: every rank writes what it has to every other rank, at once.
//!
//! One step and *ranks − 1* messages a rank: the fewest steps possible, so the choice for small
//! sizes; every rank receives everything, so not the choice for large ones.
//!
//! A rank's scratch memory has one slot for each peer. What does not fit is cut into slices, which
//! use two sets of slots in turn. Where data goes both ways no acknowledgement is needed: who
//! writes slice *k + 2* has received slice *k + 1* from the same peer, and the peer sent that after
//! it was done with slice *k*. Where it goes one way only, from or to a root, a notify gives a slot
//! back.

use hcomm_types::Rank;

use super::layout::{LINE, Slices, line_down, line_up};
use super::tasks::{Tasks, length};
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// Data, or that a rank has begun.
const DATA: u32 = 0;
/// That a slot is free again.
const FREE: u32 = 1;

/// Every rank writes to every other, one step.
#[derive(Clone, Copy, Debug)]
pub struct MeshOneShot;

impl Algorithm for MeshOneShot {
    fn name(&self) -> &'static str {
        "mesh_one_shot"
    }

    fn summary(&self) -> &'static str {
        "every rank writes to every other, one step; for small sizes"
    }

    fn supports(&self, shape: &Shape) -> bool {
        match shape.operation {
            Operation::SendRecv { .. } => false,
            // Slots are as large as the largest count, which all must know.
            Operation::AllToAll => shape.count.is_even(),
            _ => true,
        }
    }

    fn combines_in_rank_order(&self, _shape: &Shape) -> bool {
        true
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let mut tasks = Tasks::new(shape, rank);
        let slots = u64::from(shape.ranks) - 1;
        let scratch_bytes = match shape.operation {
            Operation::Barrier => {
                tasks.meet(DATA);
                0
            }
            Operation::Broadcast { root } | Operation::Scatter { root } => {
                let slices = self.slices(shape, params, 1)?;
                from_root(&mut tasks, shape, slices, rank, root);
                if rank == root { 0 } else { slices.two_slots() }
            }
            Operation::Reduce { root } | Operation::Gather { root } => {
                let slices = self.slices(shape, params, slots)?;
                to_root(&mut tasks, shape, slices, rank, root);
                if rank == root {
                    slices.two_slots() * slots
                } else {
                    0
                }
            }
            _ => {
                let slices = self.slices(shape, params, slots)?;
                exchange(&mut tasks, shape, slices, rank);
                slices.two_slots() * slots
            }
        };
        Ok(tasks.finish(scratch_bytes))
    }
}

impl MeshOneShot {
    /// One slice if that fits; else slices that leave room for two sets of slots.
    fn slices(&self, shape: &Shape, params: &Params, slots: u64) -> Result<Slices, PlanError> {
        let bytes = shape.count_bytes();
        let whole = line_up(bytes);
        if whole <= params.scratch() / slots {
            return Ok(Slices::new(bytes, 1, whole));
        }
        let most = line_down(params.scratch() / slots / 2);
        if most == 0 {
            return Err(PlanError::Scratch {
                algorithm: self.name(),
                need: slots * whole.min(2 * LINE),
                limit: params.scratch_bytes,
            });
        }
        Ok(Slices::new(
            bytes,
            1,
            most.min(line_down(params.slice_bytes).max(LINE)),
        ))
    }
}

/// The slot for `sender` in the scratch memory of `owner`: in rank order, without the owner.
fn slot(shape: &Shape, slices: Slices, slice: u64, owner: Rank, sender: Rank) -> Loc {
    let slots = u64::from(shape.ranks) - 1;
    let index = u64::from(sender.0) - u64::from(sender > owner);
    Loc::scratch(slices.slot(slice) * slots + index * slices.part_bytes())
}

/// All to all, then each rank makes its output of what it got.
fn exchange(tasks: &mut Tasks<'_>, shape: &Shape, slices: Slices, me: Rank) {
    // What goes from one rank to another: where it lies, all of it.
    let sent = |to: Rank| match shape.operation {
        Operation::ReduceScatter => shape.part(to),
        Operation::AllToAll => shape.sent_part(me, to),
        Operation::AllGather => 0..shape.part_bytes(me),
        _ => 0..shape.count_bytes(),
    };
    let received = |from: Rank| match shape.operation {
        Operation::AllToAll => shape.received_part(from, me),
        _ => shape.part(from),
    };
    for slice in 0..slices.count() {
        for peer in tasks.peers() {
            let all = sent(peer);
            let range = slices.slice_of(slice, length(&all));
            let src = Loc::input(all.start + range.start);
            let dst = slot(shape, slices, slice, peer, me);
            tasks.write(peer, dst, src, length(&range), DATA);
        }
        let own = sent(me);
        let range = slices.slice_of(slice, length(&own));
        let own = Loc::input(own.start + range.start);
        if shape.operation.reduces() {
            let operand = |rank| {
                if rank == me {
                    own
                } else {
                    slot(shape, slices, slice, me, rank)
                }
            };
            let out = Loc::output(range.start);
            combine(tasks, shape, me, operand, out, length(&range), &|_, _| {});
        } else {
            let kept = Loc::output(received(me).start + range.start);
            tasks.keep_own(kept, own, length(&range));
            for peer in tasks.peers() {
                tasks.wait(peer, DATA);
                let all = received(peer);
                let range = slices.slice_of(slice, length(&all));
                let dst = Loc::output(all.start + range.start);
                let src = slot(shape, slices, slice, me, peer);
                tasks.copy(dst, src, length(&range));
            }
        }
    }
}

/// Combines all ranks' contributions in rank order, each as soon as it is there. Results on the
/// way stay in a slot, so that the output, which may be the input, is written once and last. When
/// the contribution of a rank is not needed any more, `used` is told.
fn combine<'s>(
    tasks: &mut Tasks<'s>,
    shape: &Shape,
    me: Rank,
    operand: impl Fn(Rank) -> Loc,
    out: Loc,
    bytes: u64,
    used: &dyn Fn(&mut Tasks<'s>, Rank),
) {
    let keeper = Rank(u32::from(me == Rank(0)));
    let mut so_far = operand(Rank(0));
    let kept = operand(keeper);
    if me != Rank(0) {
        tasks.wait(Rank(0), DATA);
    }
    for rank in (1..shape.ranks).map(Rank) {
        if rank != me {
            tasks.wait(rank, DATA);
        }
        let dst = if rank.0 == shape.ranks - 1 { out } else { kept };
        tasks.reduce(dst, so_far, operand(rank), bytes);
        so_far = dst;
        if rank != me && rank != keeper {
            used(tasks, rank);
        }
    }
    used(tasks, keeper);
}

/// The root writes to all. The others tell each other and the root that they have begun, so that
/// nobody leaves before all are there; that costs no time, as it goes beside the data.
fn from_root(tasks: &mut Tasks<'_>, shape: &Shape, slices: Slices, me: Rank, root: Rank) {
    let part = |rank: Rank| match shape.operation {
        Operation::Scatter { .. } => shape.part(rank),
        _ => 0..shape.count_bytes(),
    };
    let count = slices.count();
    if me == root {
        for slice in 0..count {
            for peer in tasks.peers() {
                if slice >= 2 {
                    tasks.wait(peer, FREE);
                }
                let all = part(peer);
                let range = slices.slice_of(slice, length(&all));
                let src = Loc::input(all.start + range.start);
                let dst = Loc::scratch(slices.slot(slice));
                tasks.write(peer, dst, src, length(&range), DATA);
            }
        }
        let own = part(me);
        tasks.keep_own(Loc::output(0), Loc::input(own.start), length(&own));
        tasks.hear_all(DATA);
        return;
    }
    tasks.tell_all(DATA);
    for slice in 0..count {
        let range = slices.slice_of(slice, length(&part(me)));
        tasks.wait(root, DATA);
        tasks.copy(
            Loc::output(range.start),
            Loc::scratch(slices.slot(slice)),
            length(&range),
        );
        if slice + 2 < count {
            tasks.record(root, FREE);
        }
    }
    for peer in tasks.peers().filter(|peer| *peer != root) {
        tasks.wait(peer, DATA);
    }
}

/// All write to the root, which copies or combines. All tell each other that they have begun, as
/// in [`from_root`].
fn to_root(tasks: &mut Tasks<'_>, shape: &Shape, slices: Slices, me: Rank, root: Rank) {
    let gathers = !shape.operation.reduces();
    let contribution = |rank: Rank| {
        if gathers {
            shape.part_bytes(rank)
        } else {
            shape.count_bytes()
        }
    };
    let count = slices.count();
    if me != root {
        for peer in tasks.peers().filter(|peer| *peer != root) {
            tasks.record(peer, DATA);
        }
        for slice in 0..count {
            if slice >= 2 {
                tasks.wait(root, FREE);
            }
            let range = slices.slice_of(slice, contribution(me));
            let dst = slot(shape, slices, slice, root, me);
            tasks.write(root, dst, Loc::input(range.start), length(&range), DATA);
        }
        tasks.hear_all(DATA);
        return;
    }
    tasks.tell_all(DATA);
    for slice in 0..count {
        let free = |tasks: &mut Tasks<'_>, peer: Rank| {
            if slice + 2 < count {
                tasks.record(peer, FREE);
            }
        };
        let mine = slices.slice_of(slice, contribution(me));
        if gathers {
            let kept = Loc::output(shape.part(me).start + mine.start);
            tasks.keep_own(kept, Loc::input(mine.start), length(&mine));
            for peer in tasks.peers() {
                tasks.wait(peer, DATA);
                let range = slices.slice_of(slice, contribution(peer));
                let dst = Loc::output(shape.part(peer).start + range.start);
                let src = slot(shape, slices, slice, me, peer);
                tasks.copy(dst, src, length(&range));
                free(tasks, peer);
            }
        } else {
            let operand = |rank| {
                if rank == me {
                    Loc::input(mine.start)
                } else {
                    slot(shape, slices, slice, me, rank)
                }
            };
            let out = Loc::output(mine.start);
            combine(tasks, shape, me, operand, out, length(&mine), &free);
        }
    }
}
