//! What a run has left: contents of the outputs, and accesses that outlast their owner.

use std::ops::Range;

use hcomm_types::Rank;

use super::clock::Past;
use super::execution::Execution;
use super::memory::Access;
use super::structure::MAX_FINDINGS;
use super::value::{ExpressionId, Value};
use super::{Fault, Finding};
use crate::plan::{Buffer, Operation, Plan};

/// Checks that accesses to a rank's memory are over when it ends. Returns whether that holds even
/// for reads of scratch memory, where it is not required.
pub(super) fn check_ends(run: &mut Execution<'_>) -> bool {
    let mut quiescent = true;
    let mut late = Vec::new();
    for (index, memory) in run.memories.iter().enumerate() {
        let (owner, buffer, _) = run.layout.owner(index);
        for (_, cell) in memory.cells() {
            let accesses = cell.write.iter().map(|access| (access, true));
            for (access, writes) in accesses.chain(cell.reads.iter().map(|read| (read, false))) {
                let Access { moment, at } = *access;
                let end = run.ends[at.round as usize][owner.index()].as_deref();
                if at.rank == owner
                    || end.is_some_and(|known| {
                        Past {
                            known,
                            landings: &run.landings,
                        }
                        .covers(moment)
                    })
                {
                    continue;
                }
                if writes && run.layout.is_landing(moment) {
                    late.push((at, Fault::NeverSeen { owner, buffer }));
                } else if buffer != Buffer::Scratch {
                    late.push((at, Fault::AfterEnd { owner, buffer }));
                } else {
                    quiescent = false;
                }
            }
        }
    }
    late.dedup_by_key(|(at, _)| *at);
    for (at, fault) in late {
        run.report(at, fault);
    }
    quiescent
}

/// How the elements of outputs were combined.
pub(super) struct Combined {
    /// Each element by one tree on all ranks.
    pub(super) same_bits: bool,
    /// Each element in rank order.
    pub(super) rank_order: bool,
}

/// Checks what the outputs hold.
pub(super) fn check_outputs(run: &mut Execution<'_>) -> Combined {
    let (mut same_bits, mut rank_order) = (true, true);
    for (round, plan) in run.rounds.iter().enumerate() {
        let mut trees: Option<Vec<(u64, ExpressionId)>> = None;
        for rank in plan.shape.all_ranks() {
            let mut mine = Vec::new();
            for (part, expected) in expectations(plan, rank) {
                check_part(run, round, rank, part, &expected, &mut mine);
            }
            if plan.shape.operation.reduces() {
                let ranks = plan.shape.ranks;
                rank_order &= mine
                    .iter()
                    .all(|(_, tree)| run.expressions.is_in_rank_order(*tree, ranks));
            }
            if plan.shape.operation == Operation::AllReduce {
                same_bits &= trees.get_or_insert_with(|| mine.clone()) == &mine;
            }
        }
    }
    Combined {
        same_bits,
        rank_order,
    }
}

/// What a part of an output must hold.
struct Expected {
    /// Whose input; none for all ranks' combined.
    source: Option<Rank>,
    /// The input offset that belongs to the first byte.
    origin: u64,
}

/// What each part of a rank's output must hold.
fn expectations(plan: &Plan, rank: Rank) -> Vec<(Range<u64>, Expected)> {
    let shape = &plan.shape;
    let all = 0..shape.output_bytes(rank);
    let one = |source, origin| vec![(all.clone(), Expected { source, origin })];
    // A part from each rank: where it lies here, and from where in its input it comes.
    let each = |part: &dyn Fn(Rank) -> (Range<u64>, u64)| {
        shape
            .all_ranks()
            .map(|source| {
                let (range, origin) = part(source);
                let source = Some(source);
                (range, Expected { source, origin })
            })
            .collect()
    };
    match shape.operation {
        Operation::AllReduce => one(None, 0),
        Operation::Reduce { root } if rank == root => one(None, 0),
        Operation::ReduceScatter => one(None, shape.part(rank).start),
        Operation::Broadcast { root: source } => one(Some(source), 0),
        Operation::SendRecv { from: source, to } if rank == to => one(Some(source), 0),
        Operation::Scatter { root } => one(Some(root), shape.part(rank).start),
        Operation::AllGather => each(&|source| (shape.part(source), 0)),
        Operation::Gather { root } if rank == root => each(&|source| (shape.part(source), 0)),
        Operation::AllToAll => each(&|source| {
            let origin = shape.sent_part(source, rank).start;
            (shape.received_part(source, rank), origin)
        }),
        Operation::Reduce { .. }
        | Operation::Gather { .. }
        | Operation::SendRecv { .. }
        | Operation::Barrier => Vec::new(),
    }
}

fn check_part(
    run: &mut Execution<'_>,
    round: usize,
    rank: Rank,
    part: Range<u64>,
    expected: &Expected,
    trees: &mut Vec<(u64, ExpressionId)>,
) {
    let shape = &run.rounds[round].shape;
    let is_average = shape.makes_averages();
    let (home, base) = shape.home(rank, Buffer::Output);
    let memory = &run.memories[run.layout.memory(round, rank, home)];
    for (bytes, cell) in memory.cells_in(base + part.start..base + part.end) {
        let start = bytes.start - base;
        let origin = expected.origin + (start - part.start);
        let right = match cell.value {
            Value::Unwritten => false,
            Value::Inputs { expression, shift } => {
                bytes.start.wrapping_add(shift) == origin
                    && match expected.source {
                        Some(source) => run.expressions.is_input(expression, round as u32, source),
                        None => run.expressions.is_complete(
                            expression,
                            round as u32,
                            shape.ranks,
                            is_average,
                        ),
                    }
            }
        };
        if right {
            if let Value::Inputs { expression, .. } = cell.value
                && trees.last().is_none_or(|(_, last)| *last != expression)
            {
                trees.push((start, expression));
            }
            continue;
        }
        let found = match cell.value {
            Value::Unwritten => "what was there before".to_owned(),
            Value::Inputs { expression, shift } => {
                let words = run.expressions.describe(expression);
                format!("{words} from offset {}", bytes.start.wrapping_add(shift))
            }
        };
        let source = expected.source.map_or_else(
            || {
                let what = if is_average {
                    "average"
                } else {
                    "combined inputs"
                };
                format!("the {what} of all ranks")
            },
            |source| format!("the input of rank {source}"),
        );
        let expected = format!("{source} from offset {origin}");
        if run.findings.len() < MAX_FINDINGS {
            let (start, end) = (start, bytes.end - base);
            let fault = Fault::WrongResult {
                start,
                end,
                found,
                expected,
            };
            run.findings.push(Finding::rank(rank, fault));
        }
    }
}
