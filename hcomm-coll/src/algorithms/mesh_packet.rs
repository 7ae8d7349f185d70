//! Mesh, one step of packets: every rank sends what it has to every other rank, and takes what
//! comes straight into its result.
//!
//! The same messages as `mesh_one_shot`, with payload and news of it in one cache line: one line
//! goes over instead of two, nothing is counted, and nothing is copied on the way. For a few lines
//! between ranks that map each other's memory.

use std::ops::Range;

use hcomm_types::{MAX_PACKET_LINES, Rank};

use super::layout::line_up;
use super::tasks::{Tasks, length};
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// Every rank sends packets to every other, one step.
#[derive(Clone, Copy, Debug)]
pub struct MeshPacket;

impl Algorithm for MeshPacket {
    fn name(&self) -> &'static str {
        "mesh_packet"
    }

    fn summary(&self) -> &'static str {
        "as mesh_one_shot, in packets; for the smallest sizes where ranks map each other's memory"
    }

    fn supports(&self, shape: &Shape) -> bool {
        let known_to_all = shape.count.is_even() || shape.operation != Operation::AllToAll;
        !matches!(shape.operation, Operation::SendRecv { .. })
            && known_to_all
            && hcomm_data::packet_lines(shape.count_bytes()) <= u64::from(MAX_PACKET_LINES)
    }

    fn has_packets(&self) -> bool {
        true
    }

    fn combines_in_rank_order(&self, _shape: &Shape) -> bool {
        true
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let bytes = shape.count_bytes();
        let gathers = shape.operation.reduces() && shape.ranks > 2;
        let need = if gathers { line_up(bytes) } else { 0 };
        if need > params.scratch() {
            return Err(PlanError::Scratch {
                algorithm: self.name(),
                need,
                limit: params.scratch_bytes,
            });
        }
        let mut tasks = Tasks::new(shape, rank);
        match shape.operation {
            Operation::Broadcast { root } | Operation::Scatter { root } => {
                from_root(&mut tasks, shape, rank, root);
            }
            Operation::Reduce { root } | Operation::Gather { root } => {
                to_root(&mut tasks, shape, rank, root);
            }
            // Nothing but that all are there.
            Operation::Barrier => {
                send_to_all(&mut tasks, |_| NOTHING);
                for peer in tasks.peers() {
                    tasks.packet_read(peer, Loc::output(0), 0);
                }
            }
            Operation::AllGather => {
                send_to_all(&mut tasks, |_| 0..shape.part_bytes(rank));
                gather(&mut tasks, shape, rank);
            }
            Operation::AllToAll => {
                send_to_all(&mut tasks, |peer| shape.sent_part(rank, peer));
                let (own, kept) = (shape.sent_part(rank, rank), shape.received_part(rank, rank));
                tasks.keep_own(Loc::output(kept.start), Loc::input(own.start), length(&own));
                for peer in tasks.peers() {
                    let range = shape.received_part(peer, rank);
                    tasks.packet_read(peer, Loc::output(range.start), length(&range));
                }
            }
            Operation::ReduceScatter => {
                send_to_all(&mut tasks, |peer| shape.part(peer));
                combine(&mut tasks, shape, rank, shape.part(rank));
            }
            _ => {
                send_to_all(&mut tasks, |_| 0..bytes);
                combine(&mut tasks, shape, rank, 0..bytes);
            }
        }
        Ok(tasks.finish(if rank.0 >= 2 { need } else { 0 }))
    }
}

const NOTHING: Range<u64> = 0..0;

/// Sends each its part of the input.
fn send_to_all(tasks: &mut Tasks<'_>, part: impl Fn(Rank) -> Range<u64>) {
    for peer in tasks.peers() {
        let range = part(peer);
        tasks.packet_write(peer, Loc::input(range.start), length(&range));
    }
}

/// Puts all contributions behind each other.
fn gather(tasks: &mut Tasks<'_>, shape: &Shape, me: Rank) {
    let place = |rank| Loc::output(shape.part(rank).start);
    tasks.keep_own(place(me), Loc::input(0), shape.part_bytes(me));
    for peer in tasks.peers() {
        tasks.packet_read(peer, place(peer), shape.part_bytes(peer));
    }
}

/// Combines all contributions in rank order. Those of ranks before this one come together in
/// scratch memory, as the output may be this rank's own contribution; of a single one nothing
/// needs to be kept.
fn combine(tasks: &mut Tasks<'_>, shape: &Shape, me: Rank, own: Range<u64>) {
    let (out, kept) = (Loc::output(0), Loc::scratch(0));
    let (own, bytes) = (Loc::input(own.start), length(&own));
    if bytes == 0 {
        for peer in tasks.peers() {
            tasks.packet_read(peer, out, 0);
        }
        return;
    }
    match me.0 {
        0 => {}
        1 => tasks.packet_reduce(Rank(0), out, own, bytes, true),
        _ => {
            tasks.packet_read(Rank(0), kept, bytes);
            for rank in (1..me.0).map(Rank) {
                tasks.packet_reduce(rank, kept, kept, bytes, false);
            }
            tasks.reduce(out, kept, own, bytes);
        }
    }
    let mut so_far = if me == Rank(0) { own } else { out };
    for rank in (me.0 + 1..shape.ranks).map(Rank) {
        tasks.packet_reduce(rank, out, so_far, bytes, false);
        so_far = out;
    }
}

/// The root sends to all. The others tell each other and the root that they have begun, so that
/// nobody leaves before all are there; that costs no time, as it goes beside the data.
fn from_root(tasks: &mut Tasks<'_>, shape: &Shape, me: Rank, root: Rank) {
    let part = |rank| match shape.operation {
        Operation::Scatter { .. } => shape.part(rank),
        _ => 0..shape.count_bytes(),
    };
    let (own, out) = (part(me), Loc::output(0));
    if me == root {
        send_to_all(tasks, part);
        tasks.keep_own(out, Loc::input(own.start), length(&own));
    } else {
        send_to_all(tasks, |_| NOTHING);
        tasks.packet_read(root, out, length(&own));
    }
    for peer in tasks.peers().filter(|peer| *peer != root) {
        tasks.packet_read(peer, out, 0);
    }
}

/// All send to the root, and tell each other that they have begun, as in [`from_root`].
fn to_root(tasks: &mut Tasks<'_>, shape: &Shape, me: Rank, root: Rank) {
    let all = match shape.operation {
        Operation::Gather { .. } => 0..shape.part_bytes(me),
        _ => 0..shape.count_bytes(),
    };
    if me != root {
        send_to_all(
            tasks,
            |peer| {
                if peer == root { all.clone() } else { NOTHING }
            },
        );
        for peer in tasks.peers() {
            tasks.packet_read(peer, Loc::output(0), 0);
        }
        return;
    }
    send_to_all(tasks, |_| NOTHING);
    if shape.operation.reduces() {
        combine(tasks, shape, me, all);
    } else {
        gather(tasks, shape, me);
    }
}
