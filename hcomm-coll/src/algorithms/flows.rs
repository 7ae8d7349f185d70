//! Large operations in parts that flow side by side, each on a thread of its own.
//!
//! A plan of one thread has at most a few slices under way on each link, and stands still while it
//! waits for any of them. Where a message takes long to arrive, several such plans beside each other
//! fill the link. Every part is planned as an operation of its own, then moved to its place in the
//! buffers, to its share of the scratch memory, and to notifies of its own.

use hcomm_types::Rank;

use super::layout::{LINE, line_down, line_up};
use super::{Algorithm, Params, PlanError};
use crate::plan::{Buffer, Count, Loc, Operation, RankPlan, Shape, Task};

/// Notifies of a flow on each link and way: no built-in algorithm uses more.
const NOTIFIES: u32 = 10;

/// What one rank does, in as many flows as the parameters say and the operation allows.
///
/// # Errors
/// As [`Algorithm::plan_rank`].
pub(super) fn plan_rank<A: Algorithm + ?Sized>(
    algorithm: &A,
    shape: &Shape,
    params: &Params,
    rank: Rank,
) -> Result<RankPlan, PlanError> {
    let flows = count(algorithm, shape, params);
    if flows <= 1 {
        return algorithm.plan_rank(shape, params, rank);
    }
    let whole = shape.count_bytes();
    let part = line_up(whole.div_ceil(flows));
    let scratch = line_down(params.scratch() / flows);
    let params = Params {
        scratch_bytes: scratch,
        ..params.clone()
    };
    let mut all = RankPlan::default();
    for flow in 0..flows {
        let start = flow * part;
        let bytes = part.min(whole - start);
        let own = Shape {
            count: (bytes / shape.element_bytes()).into(),
            ..shape.clone()
        };
        let place = Place {
            bytes,
            whole,
            start,
            scratch: flow * scratch,
            notifies: flow as u32 * NOTIFIES,
            threads: all.threads.len() as u32,
            element_bytes: shape.element_bytes(),
        };
        let plan = algorithm.plan_rank(&own, &params, rank)?;
        check_notifies(algorithm, &plan)?;
        for tasks in plan.threads {
            let moved = tasks.into_iter().flat_map(|task| place.moved(task));
            all.threads.push(moved.collect());
        }
        if plan.scratch_bytes > 0 {
            all.scratch_bytes = place.scratch + plan.scratch_bytes;
        }
    }
    Ok(all)
}

/// Whether a plan leaves other flows their notifies.
fn check_notifies<A: Algorithm + ?Sized>(algorithm: &A, plan: &RankPlan) -> Result<(), PlanError> {
    let numbers = plan.threads.iter().flatten().filter_map(|task| match task {
        Task::Wait { notify, .. } => Some(*notify),
        task => task.records().map(|(_, notify)| notify),
    });
    match numbers.max() {
        Some(most) if most >= NOTIFIES => Err(PlanError::Notifies {
            algorithm: algorithm.name(),
            need: most as usize + 1,
            limit: NOTIFIES as usize,
        }),
        _ => Ok(()),
    }
}

/// Whether an operation can go in several flows.
pub(super) fn divides<A: Algorithm + ?Sized>(algorithm: &A, shape: &Shape) -> bool {
    match shape.operation {
        Operation::Barrier | Operation::SendRecv { .. } => false,
        _ => {
            shape.ranks > 1
                && matches!(shape.count, Count::Even(_))
                && !algorithm.has_packets()
                && !algorithm.lends()
                && algorithm.credits(shape).is_empty()
        }
    }
}

/// How many flows an operation goes in: each has at least a line.
fn count<A: Algorithm + ?Sized>(algorithm: &A, shape: &Shape, params: &Params) -> u64 {
    if !divides(algorithm, shape) {
        return 1;
    }
    let lines = shape.count_bytes().div_ceil(LINE);
    let wish = u64::from(params.flows).min(lines);
    if wish <= 1 {
        return 1;
    }
    // Whole lines each, so that the last one may be left without any.
    lines.div_ceil(lines.div_ceil(wish))
}

/// Where a flow has its place.
struct Place {
    /// Bytes of each part of a buffer that belong to the flow, and of the whole part.
    bytes: u64,
    whole: u64,
    /// Where they begin in each part.
    start: u64,
    scratch: u64,
    notifies: u32,
    threads: u32,
    element_bytes: u64,
}

impl Place {
    /// A task of the flow as one or several of the whole operation: what goes on from one part of a
    /// buffer to the next does not do so there.
    fn moved(&self, task: Task) -> Vec<Task> {
        let bytes = match task {
            Task::Copy { bytes, .. } | Task::Write { bytes, .. } | Task::Read { bytes, .. } => {
                bytes
            }
            Task::Reduce { count, .. }
            | Task::Divide { count, .. }
            | Task::WriteReduce { count, .. }
            | Task::ReadReduce { count, .. } => count * self.element_bytes,
            _ => 0,
        };
        if bytes == 0 {
            // Nothing that has a length.
            return vec![self.piece(task, 0, 0, true)];
        }
        let mut pieces = Vec::with_capacity(1);
        let mut done = 0;
        while done < bytes {
            let room = locations(&task)
                .into_iter()
                .flatten()
                .filter(|loc| loc.buffer != Buffer::Scratch)
                .map(|loc| self.bytes - (loc.offset + done) % self.bytes);
            let length = room.fold(bytes - done, u64::min);
            pieces.push(self.piece(task, done, length, done + length == bytes));
            done += length;
        }
        pieces
    }

    /// `length` bytes of a task from `done` on; the notify comes with the last ones.
    fn piece(&self, task: Task, done: u64, length: u64, is_last: bool) -> Task {
        let at = |loc: Loc| self.at(loc, done);
        let elements = length / self.element_bytes;
        let number = |notify: u32| notify + self.notifies;
        let told = |notify: Option<u32>| notify.filter(|_| is_last).map(number);
        match task {
            Task::Copy { dst, src, .. } => Task::Copy {
                dst: at(dst),
                src: at(src),
                bytes: length,
            },
            Task::Reduce { dst, a, b, .. } => Task::Reduce {
                dst: at(dst),
                a: at(a),
                b: at(b),
                count: elements,
            },
            Task::Divide { dst, .. } => Task::Divide {
                dst: at(dst),
                count: elements,
            },
            Task::Write {
                peer,
                dst,
                src,
                notify,
                ..
            } => Task::Write {
                peer,
                dst: at(dst),
                src: at(src),
                bytes: length,
                notify: told(notify),
            },
            Task::Read { peer, dst, src, .. } => Task::Read {
                peer,
                dst: at(dst),
                src: at(src),
                bytes: length,
            },
            Task::WriteReduce {
                peer,
                dst,
                src,
                notify,
                ..
            } => Task::WriteReduce {
                peer,
                dst: at(dst),
                src: at(src),
                count: elements,
                notify: told(notify),
            },
            Task::ReadReduce {
                peer, dst, a, src, ..
            } => Task::ReadReduce {
                peer,
                dst: at(dst),
                a: at(a),
                src: at(src),
                count: elements,
            },
            Task::Record { peer, notify } => Task::Record {
                peer,
                notify: number(notify),
            },
            Task::Wait { peer, notify } => Task::Wait {
                peer,
                notify: number(notify),
            },
            Task::ThreadRecord { thread, notify } => Task::ThreadRecord {
                thread: thread + self.threads,
                notify,
            },
            other => other,
        }
    }

    /// A place of the flow, `done` bytes further.
    fn at(&self, loc: Loc, done: u64) -> Loc {
        let offset = loc.offset + done;
        let offset = match loc.buffer {
            Buffer::Scratch => self.scratch + offset,
            Buffer::Input | Buffer::Output => {
                offset / self.bytes * self.whole + self.start + offset % self.bytes
            }
        };
        Loc { offset, ..loc }
    }
}

fn locations(task: &Task) -> [Option<Loc>; 3] {
    match *task {
        Task::Copy { dst, src, .. }
        | Task::Write { dst, src, .. }
        | Task::Read { dst, src, .. }
        | Task::WriteReduce { dst, src, .. } => [Some(dst), Some(src), None],
        Task::Reduce { dst, a, b, .. } => [Some(dst), Some(a), Some(b)],
        Task::ReadReduce { dst, a, src, .. } => [Some(dst), Some(a), Some(src)],
        Task::Divide { dst, .. } => [Some(dst), None, None],
        _ => [None; 3],
    }
}
