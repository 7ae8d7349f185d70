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

    fn summary(&self) -> &'static str {
        "ranks read each other's slices; for large sizes where ranks map each other's memory"
    }

    fn supports(&self, shape: &Shape) -> bool {
        match shape.operation {
            Operation::SendRecv { .. } | Operation::Barrier => false,
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
        let ranks = u64::from(shape.ranks);
        let mut tasks = Tasks::new(shape, rank);
        tasks.divides();
        let scratch_bytes = match shape.operation {
            Operation::AllReduce | Operation::Reduce { .. } => {
                let slices = self.slices(shape, params, ranks, ranks)?;
                reduce(&mut tasks, shape, slices, rank);
                slices.two_slots()
            }
            Operation::ReduceScatter | Operation::AllToAll => {
                let slices = self.slices(shape, params, 1, ranks)?;
                exchange(&mut tasks, shape, slices, rank);
                slices.two_slots() * ranks
            }
            Operation::Broadcast { root } | Operation::Scatter { root } => {
                let scatters = matches!(shape.operation, Operation::Scatter { .. });
                let pieces = if scatters { ranks } else { 1 };
                let slices = self.slices(shape, params, 1, pieces)?;
                from_root(&mut tasks, shape, slices, rank, root);
                if rank == root {
                    slices.two_slots() * pieces
                } else {
                    0
                }
            }
            Operation::Gather { root } => {
                let slices = self.slices(shape, params, 1, 1)?;
                to_root(&mut tasks, shape, slices, rank, root);
                if rank == root { 0 } else { slices.two_slots() }
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
        let most = line_down(params.scratch() / 2 / pieces);
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

/// For everybody, or for the root only.
fn reduce(tasks: &mut Tasks<'_>, shape: &Shape, slices: Slices, me: Rank) {
    let is_for_me = shape.operation.root().is_none_or(|root| root == me);
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
        if is_for_me {
            tasks.copy(Loc::output(mine.start), result, bytes);
        }
    };
    let collect = |tasks: &mut Tasks<'_>, slice: u64| {
        for peer in tasks.peers().filter(|_| is_for_me) {
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

/// Ranks offer each other parts, and combine or keep those that are for them.
fn exchange(tasks: &mut Tasks<'_>, shape: &Shape, slices: Slices, me: Rank) {
    let ranks = u64::from(shape.ranks);
    let reduces = shape.operation.reduces();
    let held = |slice: u64, rank: Rank| {
        Loc::scratch(slices.slot(slice) * ranks + u64::from(rank.0) * slices.part_bytes())
    };
    let sent = |to: Rank| {
        if reduces {
            shape.part(to)
        } else {
            shape.sent_part(me, to)
        }
    };
    let offer = |tasks: &mut Tasks<'_>, slice: u64| {
        for peer in tasks.peers() {
            let all = sent(peer);
            let range = slices.slice_of(slice, length(&all));
            let src = Loc::input(all.start + range.start);
            tasks.copy(held(slice, peer), src, length(&range));
        }
    };
    offer(tasks, 0);
    for slice in 0..slices.count() {
        tasks.meet(HERE);
        let mine = sent(me);
        let range = slices.slice_of(slice, length(&mine));
        let own = Loc::input(mine.start + range.start);
        if reduces {
            combine_in_rank_order(
                tasks,
                shape,
                me,
                &Combination {
                    own,
                    others: held(slice, me),
                    kept: held(slice, me),
                    out: Loc::output(range.start),
                    bytes: length(&range),
                },
            );
        } else {
            let kept = shape.received_part(me, me).start + range.start;
            tasks.keep_own(Loc::output(kept), own, length(&range));
            for peer in tasks.peers() {
                let all = shape.received_part(peer, me);
                let range = slices.slice_of(slice, length(&all));
                let dst = Loc::output(all.start + range.start);
                tasks.read(peer, dst, held(slice, me), length(&range));
            }
        }
        if slice + 1 < slices.count() {
            offer(tasks, slice + 1);
        }
    }
}

fn all_gather(tasks: &mut Tasks<'_>, shape: &Shape, slices: Slices, me: Rank) {
    let held = |slice: u64| Loc::scratch(slices.slot(slice));
    let part = |slice: u64, rank: Rank| slices.slice_of(slice, shape.part_bytes(rank));
    let offer = |tasks: &mut Tasks<'_>, slice: u64| {
        let range = part(slice, me);
        tasks.copy(held(slice), Loc::input(range.start), length(&range));
    };
    offer(tasks, 0);
    for slice in 0..slices.count() {
        tasks.meet(HERE);
        for peer in tasks.peers() {
            let range = part(slice, peer);
            let dst = Loc::output(shape.part(peer).start + range.start);
            tasks.read(peer, dst, held(slice), length(&range));
        }
        let range = part(slice, me);
        let own = Loc::output(shape.part(me).start + range.start);
        tasks.keep_own(own, Loc::input(range.start), length(&range));
        if slice + 1 < slices.count() {
            offer(tasks, slice + 1);
        }
    }
}

/// The root offers slices, all others read them. They also tell each other and the root that they
/// have begun, so that nobody leaves before all are there.
fn from_root(tasks: &mut Tasks<'_>, shape: &Shape, slices: Slices, me: Rank, root: Rank) {
    let scatters = matches!(shape.operation, Operation::Scatter { .. });
    let part = |rank: Rank| {
        if scatters {
            shape.part(rank)
        } else {
            0..shape.count_bytes()
        }
    };
    // A broadcast offers one piece to all.
    let held = |slice: u64, rank: Rank| {
        let (pieces, piece) = if scatters {
            (u64::from(shape.ranks), u64::from(rank.0))
        } else {
            (1, 0)
        };
        Loc::scratch(slices.slot(slice) * pieces + piece * slices.part_bytes())
    };
    let count = slices.count();
    let own = part(me);
    if me == root {
        for slice in 0..count {
            if slice >= 2 {
                tasks.hear_all(FREE);
            }
            for peer in tasks.peers().take(if scatters { usize::MAX } else { 1 }) {
                let all = part(peer);
                let range = slices.slice_of(slice, length(&all));
                let src = Loc::input(all.start + range.start);
                tasks.copy(held(slice, peer), src, length(&range));
            }
            tasks.tell_all(HERE);
        }
        tasks.keep_own(Loc::output(0), Loc::input(own.start), length(&own));
        tasks.hear_all(HERE);
        return;
    }
    tasks.tell_all(HERE);
    for slice in 0..count {
        let range = slices.slice_of(slice, length(&own));
        tasks.wait(root, HERE);
        let dst = Loc::output(range.start);
        tasks.read(root, dst, held(slice, me), length(&range));
        if slice + 2 < count {
            tasks.record(root, FREE);
        }
    }
    for peer in tasks.peers().filter(|peer| *peer != root) {
        tasks.wait(peer, HERE);
    }
}

/// All others offer slices, the root reads them. All tell each other that they have begun, as in
/// [`from_root`].
fn to_root(tasks: &mut Tasks<'_>, shape: &Shape, slices: Slices, me: Rank, root: Rank) {
    let held = |slice: u64| Loc::scratch(slices.slot(slice));
    let part = |slice: u64, rank: Rank| slices.slice_of(slice, shape.part_bytes(rank));
    let count = slices.count();
    if me != root {
        for peer in tasks.peers().filter(|peer| *peer != root) {
            tasks.record(peer, HERE);
        }
        for slice in 0..count {
            if slice >= 2 {
                tasks.wait(root, FREE);
            }
            let range = part(slice, me);
            tasks.copy(held(slice), Loc::input(range.start), length(&range));
            tasks.record(root, HERE);
        }
        // The root may read the last slices after this rank has left: this half is not used again
        // before the root has left too.
        tasks.hear_all(HERE);
        return;
    }
    tasks.tell_all(HERE);
    for slice in 0..count {
        let range = part(slice, me);
        let own = Loc::output(shape.part(me).start + range.start);
        tasks.keep_own(own, Loc::input(range.start), length(&range));
        for peer in tasks.peers() {
            tasks.wait(peer, HERE);
            let range = part(slice, peer);
            let dst = Loc::output(shape.part(peer).start + range.start);
            tasks.read(peer, dst, held(slice), length(&range));
            if slice + 2 < count {
                tasks.record(peer, FREE);
            }
        }
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
    tasks.divide(out, bytes);
}
