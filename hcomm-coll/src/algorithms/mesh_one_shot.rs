//! Mesh, one shot: every rank writes what it has to every other rank, at once.
//!
//! One step and *ranks − 1* messages a rank: the fewest steps possible, so the choice for small
//! sizes; every rank receives everything, so not the choice for large ones.
//!
//! A rank's scratch memory has one slot for each peer. What does not fit is cut into slices, which
//! use two sets of slots in turn. No acknowledgement is needed: who writes slice *k + 2* has
//! received slice *k + 1* from the same peer, and the peer sent that after it was done with
//! slice *k*.

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

    fn supports(&self, shape: &Shape) -> bool {
        !matches!(shape.operation, Operation::SendRecv { .. })
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let mut tasks = Tasks::new(shape, rank);
        let scratch_bytes = match shape.operation {
            Operation::Barrier => {
                tasks.meet(DATA);
                0
            }
            Operation::Broadcast { root } => {
                let slices = self.slices(shape, params, 1)?;
                broadcast(&mut tasks, shape, slices, rank, root);
                slices.two_slots()
            }
            _ => {
                let slots = u64::from(shape.ranks) - 1;
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
        if whole <= params.scratch_bytes / slots {
            return Ok(Slices::new(bytes, 1, whole));
        }
        let most = line_down(params.scratch_bytes / slots / 2);
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

/// All to all, then each rank makes its output of what it got.
fn exchange(tasks: &mut Tasks<'_>, shape: &Shape, slices: Slices, me: Rank) {
    let slots = u64::from(shape.ranks) - 1;
    // The slot for `sender` in the scratch memory of `owner`: in rank order, without the owner.
    let slot = |slice: u64, owner: Rank, sender: Rank| {
        let index = u64::from(sender.0) - u64::from(sender > owner);
        Loc::scratch(slices.slot(slice) * slots + index * slices.part_bytes())
    };
    // Where in the input the part for a rank begins.
    let part_for = |rank: Rank| match shape.operation {
        Operation::ReduceScatter => shape.part(rank).start,
        _ => 0,
    };
    for slice in 0..slices.count() {
        let range = slices.slice(slice);
        let bytes = length(&range);
        for peer in tasks.peers() {
            let src = Loc::input(part_for(peer) + range.start);
            tasks.write(peer, slot(slice, peer, me), src, bytes, DATA);
        }
        let own = Loc::input(part_for(me) + range.start);
        if shape.operation == Operation::AllGather {
            tasks.keep_own(Loc::output(shape.part(me).start + range.start), own, bytes);
            for peer in tasks.peers() {
                tasks.wait(peer, DATA);
                let dst = Loc::output(shape.part(peer).start + range.start);
                tasks.copy(dst, slot(slice, me, peer), bytes);
            }
        } else {
            let operand = |rank| {
                if rank == me {
                    own
                } else {
                    slot(slice, me, rank)
                }
            };
            combine(tasks, shape, me, operand, Loc::output(range.start), bytes);
        }
    }
}

/// Combines all ranks' contributions in rank order, each as soon as it is there. Results on the
/// way stay in a slot, so that the output, which may be the input, is written once and last.
fn combine(
    tasks: &mut Tasks<'_>,
    shape: &Shape,
    me: Rank,
    operand: impl Fn(Rank) -> Loc,
    out: Loc,
    bytes: u64,
) {
    let mut so_far = operand(Rank(0));
    let kept = operand(Rank(u32::from(me == Rank(0))));
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
    }
}

/// The root writes to all. The others tell each other and the root that they have begun, so that
/// nobody leaves before all are there; that costs no time, as it goes beside the data.
fn broadcast(tasks: &mut Tasks<'_>, shape: &Shape, slices: Slices, me: Rank, root: Rank) {
    let count = slices.count();
    if me == root {
        for slice in 0..count {
            let range = slices.slice(slice);
            for peer in tasks.peers() {
                if slice >= 2 {
                    tasks.wait(peer, FREE);
                }
                let dst = Loc::scratch(slices.slot(slice));
                tasks.write(peer, dst, Loc::input(range.start), length(&range), DATA);
            }
        }
        tasks.keep_own(Loc::output(0), Loc::input(0), shape.count_bytes());
        for peer in tasks.peers() {
            tasks.wait(peer, DATA);
        }
        return;
    }
    for peer in tasks.peers() {
        tasks.record(peer, DATA);
    }
    for slice in 0..count {
        let range = slices.slice(slice);
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
