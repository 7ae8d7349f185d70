//! Send and receive between two ranks, over two slots at the receiver.
//!
//! Each slot has a notify that says it is free, which begins with one credit: a send that fits in
//! the slots ends without the receiver, and the notifies are back where they began when both have
//! ended. Slots and notifies belong to the ordered pair of ranks alone. Where a slot lies depends
//! on the parameters, not on the message: the next message waits for one slot's credit while the
//! last one may still be read from the other.

use hcomm_types::Rank;

use super::layout::{LINE, Slices, line_down};
use super::tasks::{Tasks, length};
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Credit, Loc, Operation, RankPlan, Shape};

const SLOTS: u32 = 2;

/// Two slots at the receiver, with credits.
#[derive(Clone, Copy, Debug)]
pub struct Pair;

impl Algorithm for Pair {
    fn name(&self) -> &'static str {
        "pair"
    }

    fn summary(&self) -> &'static str {
        "two slots at the receiver, with credits"
    }

    fn is_for_messages(&self) -> bool {
        true
    }

    fn supports(&self, shape: &Shape) -> bool {
        matches!(shape.operation, Operation::SendRecv { .. })
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let Operation::SendRecv { from, to } = shape.operation else {
            return Err(PlanError::Unsupported {
                algorithm: self.name(),
                operation: shape.operation.name(),
            });
        };
        let most = line_down(params.scratch() / u64::from(SLOTS));
        if most == 0 {
            return Err(PlanError::Scratch {
                algorithm: self.name(),
                need: u64::from(SLOTS) * LINE,
                limit: params.scratch_bytes,
            });
        }
        let most = most.min(line_down(params.slice_bytes).max(LINE));
        let slices = Slices::new(shape.count_bytes(), 1, most);
        let mut tasks = Tasks::new(shape, rank);
        if rank != from && rank != to || from == to {
            return Ok(tasks.finish(0));
        }
        for (slice, notify) in (0..slices.count()).zip((0..SLOTS).cycle()) {
            let range = slices.slice(slice);
            let (bytes, slot) = (length(&range), Loc::scratch(u64::from(notify) * most));
            if rank == from {
                tasks.wait(to, notify);
                tasks.write(to, slot, Loc::input(range.start), bytes, notify);
            } else {
                tasks.wait(from, notify);
                tasks.copy(Loc::output(range.start), slot, bytes);
                tasks.record(from, notify);
            }
        }
        let used = slices.count().min(u64::from(SLOTS)) * most;
        Ok(tasks.finish(if rank == to { used } else { 0 }))
    }

    fn credits(&self, shape: &Shape) -> Vec<Credit> {
        match shape.operation {
            Operation::SendRecv { from, to } if from != to && !shape.is_nothing() => (0..SLOTS)
                .map(|notify| Credit {
                    recorder: to,
                    waiter: from,
                    notify,
                    count: 1,
                })
                .collect(),
            _ => Vec::new(),
        }
    }
}
