//! Send and receive in three steps: the sender asks, the receiver grants, the data comes.
//!
//! What two-sided libraries do for large messages, and what a one-sided write saves: two of the
//! three times the link's latency. It is here to be measured beside (`--algo handshake`), and for
//! whoever wants a send to end after the receiver has come. The inbox is free when the receiver
//! grants, so there are no credits, and a message of one slice is three messages on the link.

use hcomm_types::Rank;

use super::layout::{LINE, Slices, line_down};
use super::tasks::{Tasks, length};
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// Behind those of `pair`, which has credits.
const NOTIFY: u32 = 2;

/// Request, grant, data.
#[derive(Clone, Copy, Debug)]
pub struct Handshake;

impl Handshake {
    /// Its name, by which the communicator knows it, too.
    pub const NAME: &str = "handshake";
}

impl Algorithm for Handshake {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn summary(&self) -> &'static str {
        "request, grant, data; to compare with"
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
        let most = line_down(params.scratch());
        if most == 0 {
            return Err(PlanError::Scratch {
                algorithm: self.name(),
                need: LINE,
                limit: params.scratch_bytes,
            });
        }
        let most = most.min(line_down(params.slice_bytes).max(LINE));
        let slices = Slices::new(shape.count_bytes(), 1, most);
        let mut tasks = Tasks::new(shape, rank);
        if rank != from && rank != to || from == to {
            return Ok(tasks.finish(0));
        }
        let inbox = Loc::scratch(0);
        for slice in 0..slices.count() {
            let range = slices.slice(slice);
            let bytes = length(&range);
            if rank == from {
                // A grant for each slice: the inbox holds one. Only the first is asked for.
                if slice == 0 {
                    tasks.record(to, NOTIFY);
                }
                tasks.wait(to, NOTIFY);
                tasks.write(to, inbox, Loc::input(range.start), bytes, NOTIFY);
            } else {
                if slice == 0 {
                    tasks.wait(from, NOTIFY);
                }
                tasks.record(from, NOTIFY);
                tasks.wait(from, NOTIFY);
                tasks.copy(Loc::output(range.start), inbox, bytes);
            }
        }
        let used = most.min(shape.count_bytes());
        Ok(tasks.finish(if rank == to { used } else { 0 }))
    }
}
