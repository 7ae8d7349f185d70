//! Pull: ranks copy from each other's own memory, without anything in between.
//!
//! Each rank lends its buffers for the time of the call, and whoever wants bytes takes them from
//! where the caller has put them, by one copy of the system. Scratch memory holds only what is about
//! to be combined. So each byte crosses memory once where the other algorithms offer it in scratch
//! memory first; but each copy is a system call, and memory must be readable between the processes.
//!
//! Every rank tells all others that it has begun, takes what it needs from each, tells each that it
//! is done with its memory, and leaves when all are done with its own. An all-reduce meets once more
//! in the middle: then every part is complete at the rank that has combined it, and is taken from
//! its output. An all-to-all goes in rounds of a piece to each, because a rank that works in place may
//! not write where the others have not taken theirs: it keeps a round's pieces in scratch memory until
//! they have.
//!
//! For the copies see S. Chakraborty, H. Subramoni and D. K. Panda, "Contention-aware kernel-assisted
//! MPI collectives for multi-/many-core systems", IEEE Cluster 2017.

use std::ops::Range;

use hcomm_ctrl::EAGER_RANKS;
use hcomm_types::Rank;

use super::layout::{LINE, Slices, line_down, line_up};
use super::tasks::{Tasks, length};
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// A rank has begun: its memory may be read.
const BEGUN: u32 = 0;
/// Its part of the result is complete.
const COMPLETE: u32 = 1;
/// It is done with the memory of the one that is told.
const DONE: u32 = 2;

/// What is combined at once should stay in the cache, with the result beside it.
const PIECES: u64 = 4;

/// Ranks copy from each other's own memory.
#[derive(Clone, Copy, Debug)]
pub struct Pull;

impl Algorithm for Pull {
    fn name(&self) -> &'static str {
        "pull"
    }

    fn summary(&self) -> &'static str {
        "ranks copy from each other's own memory in one go; for large sizes between processes"
    }

    fn supports(&self, shape: &Shape) -> bool {
        // Ranks of larger communicators do not tell each other whether they can lend.
        shape.ranks <= EAGER_RANKS
            && match shape.operation {
                Operation::AllReduce
                | Operation::ReduceScatter
                | Operation::AllGather
                | Operation::Broadcast { .. }
                | Operation::Scatter { .. }
                | Operation::Gather { .. } => true,
                // Pieces are as long for all.
                Operation::AllToAll => shape.count.is_even(),
                _ => false,
            }
    }

    fn combines_in_rank_order(&self, _shape: &Shape) -> bool {
        true
    }

    fn lends(&self) -> bool {
        true
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let mut pull = Puller {
            shape,
            me: rank,
            tasks: Tasks::new(shape, rank),
            piece: 0,
        };
        pull.tasks.divides();
        let exchanges = shape.operation == Operation::AllToAll;
        let mut scratch = 0;
        if shape.operation.reduces() || exchanges {
            let (pieces, wish) = if exchanges {
                (u64::from(shape.ranks) - 1, u64::MAX)
            } else {
                (2, line_down(params.slice_bytes / PIECES).max(LINE))
            };
            let most = line_up(shape.count_bytes());
            pull.piece = line_down(params.scratch() / pieces).min(wish).min(most);
            if pull.piece == 0 {
                return Err(PlanError::Scratch {
                    algorithm: self.name(),
                    need: pieces * LINE,
                    limit: params.scratch_bytes,
                });
            }
            scratch = pieces * pull.piece;
        }
        match shape.operation {
            Operation::AllReduce => pull.all_reduce(),
            Operation::ReduceScatter => pull.reduce_scatter(),
            Operation::AllGather => pull.all_gather(),
            Operation::AllToAll => pull.all_to_all(),
            Operation::Gather { root } => pull.collect(root),
            Operation::Broadcast { root } | Operation::Scatter { root } => pull.spread(root),
            _ => {}
        }
        Ok(pull.tasks.finish(scratch))
    }
}

/// One rank, writing down what it does.
struct Puller<'s> {
    shape: &'s Shape,
    me: Rank,
    tasks: Tasks<'s>,
    /// Bytes that are combined at once, or go from each to each in a round.
    piece: u64,
}

impl Puller<'_> {
    /// Takes bytes from each of the others, when that one has come as far as `notify` says.
    fn take_all(&mut self, notify: u32, what: impl Fn(Rank) -> (Loc, Loc, u64)) {
        for peer in self.tasks.peers() {
            let (dst, src, bytes) = what(peer);
            self.tasks.wait(peer, notify);
            self.tasks.read(peer, dst, src, bytes);
            self.tasks.record(peer, DONE);
        }
    }

    /// Gathers the parts of all.
    fn take_parts(&mut self) {
        let shape = self.shape;
        let own = shape.part(self.me);
        let kept = Loc::output(own.start);
        self.tasks.keep_own(kept, Loc::input(0), length(&own));
        self.take_all(BEGUN, |peer| {
            let part = shape.part(peer);
            (Loc::output(part.start), Loc::input(0), length(&part))
        });
    }

    fn all_gather(&mut self) {
        self.tasks.tell_all(BEGUN);
        self.take_parts();
        self.tasks.hear_all(DONE);
    }

    fn all_to_all(&mut self) {
        let (shape, me) = (self.shape, self.me);
        self.tasks.tell_all(BEGUN);
        let (sent, kept) = (shape.sent_part(me, me), shape.received_part(me, me));
        let own = Loc::input(sent.start);
        self.tasks
            .keep_own(Loc::output(kept.start), own, length(&kept));
        let whole = length(&kept);
        let mut at = 0;
        while at < whole {
            let bytes = self.piece.min(whole - at);
            let target = |peer: Rank| Loc::output(shape.received_part(peer, me).start + at);
            let slot = |number: usize| Loc::scratch(number as u64 * self.piece);
            for (number, peer) in self.tasks.peers().enumerate() {
                if at == 0 {
                    self.tasks.wait(peer, BEGUN);
                }
                let src = Loc::input(shape.sent_part(peer, me).start + at);
                let dst = if shape.in_place {
                    slot(number)
                } else {
                    target(peer)
                };
                self.tasks.read(peer, dst, src, bytes);
                self.tasks.record(peer, DONE);
            }
            if shape.in_place {
                for (number, peer) in self.tasks.peers().enumerate() {
                    self.tasks.wait(peer, DONE);
                    self.tasks.copy(target(peer), slot(number), bytes);
                }
            } else if at > 0 {
                // Of the round before.
                self.tasks.hear_all(DONE);
            }
            at += bytes;
        }
        if !shape.in_place {
            self.tasks.hear_all(DONE);
        }
    }

    /// The others also tell each other that they have begun, so that nobody leaves before all are
    /// there.
    fn spread(&mut self, root: Rank) {
        let (shape, me) = (self.shape, self.me);
        let part = match shape.operation {
            Operation::Scatter { .. } => shape.part(me),
            _ => 0..shape.count_bytes(),
        };
        if me == root {
            self.tasks.tell_all(BEGUN);
            let own = Loc::input(part.start);
            self.tasks.keep_own(Loc::output(0), own, length(&part));
            self.tasks.hear_all(DONE);
            return;
        }
        for peer in self.tasks.peers().filter(|peer| *peer != root) {
            self.tasks.record(peer, BEGUN);
        }
        self.tasks.wait(root, BEGUN);
        let src = Loc::input(part.start);
        self.tasks.read(root, Loc::output(0), src, length(&part));
        self.tasks.record(root, DONE);
        for peer in self.tasks.peers().filter(|peer| *peer != root) {
            self.tasks.wait(peer, BEGUN);
        }
    }

    fn collect(&mut self, root: Rank) {
        self.tasks.tell_all(BEGUN);
        if self.me == root {
            self.take_parts();
        } else {
            self.tasks.hear_all(BEGUN);
            self.tasks.wait(root, DONE);
        }
    }

    fn reduce_scatter(&mut self) {
        self.tasks.meet(BEGUN);
        self.combine(&self.shape.part(self.me), 0);
        self.tasks.meet(DONE);
    }

    fn all_reduce(&mut self) {
        let shape = self.shape;
        let whole = shape.count_bytes();
        let parts = Slices::new(whole, u64::from(shape.ranks), line_up(whole));
        let part = |rank: Rank| parts.part(0, u64::from(rank.0));
        self.tasks.meet(BEGUN);
        let own = part(self.me);
        self.combine(&own, own.start);
        self.tasks.tell_all(COMPLETE);
        self.take_all(COMPLETE, |peer| {
            let part = part(peer);
            let at = Loc::output(part.start);
            (at, at, length(&part))
        });
        self.tasks.hear_all(DONE);
    }

    /// Combines a range of all inputs, in rank order (the first two in either order, which gives the
    /// same bits), to `out` of the output.
    fn combine(&mut self, range: &Range<u64>, out: u64) {
        let (first, second) = (Loc::scratch(0), Loc::scratch(self.piece));
        let me = self.me.0;
        let mut at = range.start;
        while at < range.end {
            let bytes = self.piece.min(range.end - at);
            let input = Loc::input(at);
            let result = Loc::output(out + (at - range.start));
            let tasks = &mut self.tasks;
            // Until the own input has been used, which the result may lie over.
            let mut sum = if me < 2 { input } else { first };
            if me >= 2 {
                tasks.read(Rank(0), first, input, bytes);
            }
            for rank in (u32::from(me >= 2)..self.shape.ranks).map(Rank) {
                if rank.0 == me {
                    if me >= 2 {
                        tasks.reduce(result, sum, input, bytes);
                        sum = result;
                    }
                    continue;
                }
                tasks.read(rank, second, input, bytes);
                let dst = if rank.0 < me && me >= 2 {
                    first
                } else {
                    result
                };
                tasks.reduce(dst, sum, second, bytes);
                sum = dst;
            }
            tasks.divide(result, bytes);
            at += bytes;
        }
    }
}
