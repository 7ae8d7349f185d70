//! Mesh, two shots: reduce-scatter, then all-gather, by reading from each other's scratch memory.
//!
//! The data is cut into slices small enough to stay in cache, each slice into one part a rank.
//! For each slice a rank offers its input to the others in scratch memory (all but its own part,
//! which nobody else needs), combines its own part of all ranks' offers in rank order, leaves the
//! result in the place that was left free, and reads the other parts from where they were
//! combined.
//!
//! One meeting (everyone tells everyone) a slice is enough. Between two meetings a rank
//!
//! 1. reads the results of slice *k − 1*,
//! 2. combines its part of slice *k*,
//! 3. offers slice *k + 1*.
//!
//! Slices use two slots in turn. Offering slice *k + 1* overwrites the offer of *k − 1*, which the
//! others combined before the last meeting; a rank's result of slice *k + 1* overwrites that of
//! *k − 1*, which the others have read before the next meeting, and it is made after it.
//!
//! The operations that only gather or only reduce are the halves of this.

use hcomm_types::Rank;

use super::layout::{LINE, Slices, line_down};
use super::tasks::{Tasks, length};
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// That a rank has come to the meeting (or, for broadcast, offers a slice).
const HERE: u32 = 0;
/// That a slot may be used again.
const FREE: u32 = 1;

/// Ranks offer slices and read each other's, two steps.
#[derive(Clone, Copy, Debug)]
pub struct MeshTwoShot;

impl Algorithm for MeshTwoShot {
    fn name(&self) -> &'static str {
        "mesh_two_shot"
    }

    fn supports(&self, shape: &Shape) -> bool {
        !matches!(
            shape.operation,
            Operation::SendRecv { .. } | Operation::Barrier
        )
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let ranks = u64::from(shape.ranks);
        let mut tasks = Tasks::new(shape, rank);
        let scratch_bytes = match shape.operation {
            Operation::AllReduce => {
                let slices = self.slices(shape, params, ranks, ranks)?;
                all_reduce(&mut tasks, shape, slices, rank);
                slices.two_slots()
            }
            Operation::ReduceScatter => {
                let slices = self.slices(shape, params, 1, ranks)?;
                reduce_scatter(&mut tasks, shape, slices, rank);
                slices.two_slots() * ranks
            }
            Operation::Broadcast { root } => {
                let slices = self.slices(shape, params, 1, 1)?;
                broadcast(&mut tasks, shape, slices, rank, root);
                if rank == root { slices.two_slots() } else { 0 }
            }
            _ => {
                let slices = self.slices(shape, params, 1, 1)?;
                all_gather(&mut tasks, shape, slices, rank);
                slices.two_slots()
            }
        };
        Ok(tasks.finish(scratch_bytes))
    }
}

impl MeshTwoShot {
    /// Slices of `parts` parts, when a slot must hold `pieces` pieces as large as a part.
    fn slices(
        &self,
        shape: &Shape,
        params: &Params,
        parts: u64,
        pieces: u64,
    ) -> Result<Slices, PlanError> {
        let most = line_down(params.scratch_bytes / 2 / pieces);
        if most == 0 {
            return Err(PlanError::Scratch {
                algorithm: self.name(),
                need: 2 * pieces * LINE,
                limit: params.scratch_bytes,
            });
        }
        let wish = line_down(params.slice_bytes / pieces).max(LINE);
        Ok(Slices::new(shape.count_bytes(), parts, most.min(wish)))
    }
}

fn all_reduce(tasks: &mut Tasks<'_>, shape: &Shape, slices: Slices, me: Rank) {
    let part = |slice: u64, rank: Rank| slices.part(slice, u64::from(rank.0));
    // Where the slot holds a byte of the slice.
    let held = |slice: u64, offset: u64| {
        Loc::scratch(slices.slot(slice) + (offset - slices.slice(slice).start))
    };
    let offer = |tasks: &mut Tasks<'_>, slice: u64| {
        let (whole, mine) = (slices.slice(slice), part(slice, me));
        for range in [whole.start..mine.start, mine.end..whole.end] {
            let src = Loc::input(range.start);
            tasks.copy(held(slice, range.start), src, length(&range));
        }
    };
    let combine = |tasks: &mut Tasks<'_>, slice: u64| {
        let mine = part(slice, me);
        let (result, bytes) = (held(slice, mine.start), length(&mine));
        combine_in_rank_order(
            tasks,
            shape,
            me,
            &Combination {
                own: Loc::input(mine.start),
                others: result,
                kept: result,
                out: result,
                bytes,
            },
        );
        tasks.copy(Loc::output(mine.start), result, bytes);
    };
    let collect = |tasks: &mut Tasks<'_>, slice: u64| {
        for peer in tasks.peers() {
            let range = part(slice, peer);
            let dst = Loc::output(range.start);
            tasks.read(peer, dst, held(slice, range.start), length(&range));
        }
    };
    offer(tasks, 0);
    tasks.meet(HERE);
    for slice in 0..slices.count() {
        if slice > 0 {
            collect(tasks, slice - 1);
        }
        combine(tasks, slice);
        if slice + 1 < slices.count() {
            offer(tasks, slice + 1);
        }
        tasks.meet(HERE);
    }
    collect(tasks, slices.count() - 1);
}

fn reduce_scatter(tasks: &mut Tasks<'_>, shape: &Shape, slices: Slices, me: Rank) {
    let ranks = u64::from(shape.ranks);
    let held = |slice: u64, rank: Rank| {
        Loc::scratch(slices.slot(slice) * ranks + u64::from(rank.0) * slices.part_bytes())
    };
    let offer = |tasks: &mut Tasks<'_>, slice: u64| {
        let range = slices.slice(slice);
        for peer in tasks.peers() {
            let src = Loc::input(shape.part(peer).start + range.start);
            tasks.copy(held(slice, peer), src, length(&range));
        }
    };
    offer(tasks, 0);
    for slice in 0..slices.count() {
        tasks.meet(HERE);
        let range = slices.slice(slice);
        combine_in_rank_order(
            tasks,
            shape,
            me,
            &Combination {
                own: Loc::input(shape.part(me).start + range.start),
                others: held(slice, me),
                kept: held(slice, me),
                out: Loc::output(range.start),
                bytes: length(&range),
            },
        );
        if slice + 1 < slices.count() {
            offer(tasks, slice + 1);
        }
    }
}

fn all_gather(tasks: &mut Tasks<'_>, shape: &Shape, slices: Slices, me: Rank) {
    let held = |slice: u64| Loc::scratch(slices.slot(slice));
    let offer = |tasks: &mut Tasks<'_>, slice: u64| {
        let range = slices.slice(slice);
        tasks.copy(held(slice), Loc::input(range.start), length(&range));
    };
    offer(tasks, 0);
    for slice in 0..slices.count() {
        tasks.meet(HERE);
        let range = slices.slice(slice);
        for peer in tasks.peers() {
            let dst = Loc::output(shape.part(peer).start + range.start);
            tasks.read(peer, dst, held(slice), length(&range));
        }
        let own = Loc::output(shape.part(me).start + range.start);
        tasks.keep_own(own, Loc::input(range.start), length(&range));
        if slice + 1 < slices.count() {
            offer(tasks, slice + 1);
        }
    }
}

/// The root offers slices, all others read them. They also tell each other and the root that they
/// have begun, so that nobody leaves before all are there.
fn broadcast(tasks: &mut Tasks<'_>, shape: &Shape, slices: Slices, me: Rank, root: Rank) {
    let count = slices.count();
    if me == root {
        for slice in 0..count {
            if slice >= 2 {
                for peer in tasks.peers() {
                    tasks.wait(peer, FREE);
                }
            }
            let range = slices.slice(slice);
            let slot = Loc::scratch(slices.slot(slice));
            tasks.copy(slot, Loc::input(range.start), length(&range));
            for peer in tasks.peers() {
                tasks.record(peer, HERE);
            }
        }
        tasks.keep_own(Loc::output(0), Loc::input(0), shape.count_bytes());
        for peer in tasks.peers() {
            tasks.wait(peer, HERE);
        }
        return;
    }
    for peer in tasks.peers() {
        tasks.record(peer, HERE);
    }
    for slice in 0..count {
        let range = slices.slice(slice);
        tasks.wait(root, HERE);
        let slot = Loc::scratch(slices.slot(slice));
        tasks.read(root, Loc::output(range.start), slot, length(&range));
        if slice + 2 < count {
            tasks.record(root, FREE);
        }
    }
    for peer in tasks.peers().filter(|peer| *peer != root) {
        tasks.wait(peer, HERE);
    }
}

/// What a rank combines.
struct Combination {
    /// Its own contribution.
    own: Loc,
    /// Where each of the others offers its contribution.
    others: Loc,
    /// Where results stay until the own contribution has been used.
    kept: Loc,
    /// Where the result goes; may be the same memory as `own`.
    out: Loc,
    bytes: u64,
}

/// Combines all ranks' contributions in rank order (the first two in either order, which gives
/// the same bits).
fn combine_in_rank_order(tasks: &mut Tasks<'_>, shape: &Shape, me: Rank, what: &Combination) {
    let &Combination {
        own,
        others,
        kept,
        out,
        bytes,
    } = what;
    let ranks = |range: std::ops::Range<u32>| range.map(Rank);
    let after = match me.0 {
        0 | 1 => {
            tasks.read_reduce(Rank(1 - me.0), out, own, others, bytes);
            2
        }
        _ => {
            tasks.read(Rank(0), kept, others, bytes);
            for peer in ranks(1..me.0) {
                tasks.read_reduce(peer, kept, kept, others, bytes);
            }
            tasks.reduce(out, kept, own, bytes);
            me.0 + 1
        }
    };
    for peer in ranks(after..shape.ranks) {
        tasks.read_reduce(peer, out, out, others, bytes);
    }
}
