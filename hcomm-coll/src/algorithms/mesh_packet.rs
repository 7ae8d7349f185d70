//! Mesh, one step of packets: every rank sends what it has to every other rank, and takes what
//! comes straight into its result.
//!
//! The same messages as `mesh_one_shot`, with payload and news of it in one cache line: one line
//! goes over instead of two, nothing is counted, and nothing is copied on the way. For a few lines
//! between ranks that map each other's memory.

use hcomm_types::{MAX_PACKET_LINES, Rank};

use super::layout::line_up;
use super::tasks::Tasks;
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// Every rank sends packets to every other, one step.
#[derive(Clone, Copy, Debug)]
pub struct MeshPacket;

impl Algorithm for MeshPacket {
    fn name(&self) -> &'static str {
        "mesh_packet"
    }

    fn supports(&self, shape: &Shape) -> bool {
        !matches!(shape.operation, Operation::SendRecv { .. })
            && hcomm_data::packet_lines(shape.count_bytes()) <= u64::from(MAX_PACKET_LINES)
    }

    fn has_packets(&self) -> bool {
        true
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let bytes = shape.count_bytes();
        let gathers = shape.operation.reduces() && shape.ranks > 2;
        let need = if gathers { line_up(bytes) } else { 0 };
        if need > params.scratch_bytes {
            return Err(PlanError::Scratch {
                algorithm: self.name(),
                need,
                limit: params.scratch_bytes,
            });
        }
        let mut tasks = Tasks::new(shape, rank);
        match shape.operation {
            Operation::Broadcast { root } => broadcast(&mut tasks, rank, root, bytes),
            // Nothing but that all are there.
            Operation::Barrier => {
                send_to_all(&mut tasks, |_| Loc::input(0), 0);
                for peer in tasks.peers() {
                    tasks.packet_read(peer, Loc::output(0), 0);
                }
            }
            Operation::AllGather => {
                send_to_all(&mut tasks, |_| Loc::input(0), bytes);
                let place = |rank| Loc::output(shape.part(rank).start);
                tasks.keep_own(place(rank), Loc::input(0), bytes);
                for peer in tasks.peers() {
                    tasks.packet_read(peer, place(peer), bytes);
                }
            }
            Operation::ReduceScatter => {
                let part = |rank| Loc::input(shape.part(rank).start);
                send_to_all(&mut tasks, part, bytes);
                combine(&mut tasks, shape, rank, part(rank));
            }
            _ => {
                send_to_all(&mut tasks, |_| Loc::input(0), bytes);
                combine(&mut tasks, shape, rank, Loc::input(0));
            }
        }
        Ok(tasks.finish(if rank.0 >= 2 { need } else { 0 }))
    }
}

fn send_to_all(tasks: &mut Tasks<'_>, src: impl Fn(Rank) -> Loc, bytes: u64) {
    for peer in tasks.peers() {
        tasks.packet_write(peer, src(peer), bytes);
    }
}

/// Combines all contributions in rank order. Those of ranks before this one come together in
/// scratch memory, as the output may be this rank's own contribution; of a single one nothing
/// needs to be kept.
fn combine(tasks: &mut Tasks<'_>, shape: &Shape, me: Rank, own: Loc) {
    let (out, kept) = (Loc::output(0), Loc::scratch(0));
    let bytes = shape.count_bytes();
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
fn broadcast(tasks: &mut Tasks<'_>, me: Rank, root: Rank, bytes: u64) {
    let nothing = Loc::output(0);
    if me == root {
        send_to_all(tasks, |_| Loc::input(0), bytes);
        tasks.keep_own(Loc::output(0), Loc::input(0), bytes);
    } else {
        send_to_all(tasks, |_| nothing, 0);
        tasks.packet_read(root, Loc::output(0), bytes);
    }
    for peer in tasks.peers().filter(|peer| *peer != root) {
        tasks.packet_read(peer, nothing, 0);
    }
}
