//! Blocks that all ranks exchange in steps: in each step a rank sends some blocks to one rank and
//! receives some from one rank.
//!
//! Reductions and gatherings in a logarithmic number of steps differ only in who exchanges which
//! blocks with whom, so an algorithm writes down its [`Step`]s and the rest is here. Each step has
//! a link of its own to the receiver.

use std::ops::Range;

use hcomm_types::Rank;

use super::layout::{Slices, line_up};
use super::links::{Link, Links, Slots};
use super::tasks::length;
use super::{Algorithm, Params, PlanError};
use crate::plan::{Loc, RankPlan, Shape};

/// What a rank does in one step. The two ranks of a message list its blocks in one order.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    /// To whom it sends, and which blocks.
    pub(super) send: Option<(Rank, Vec<u32>)>,
    /// From whom it receives, and which blocks.
    pub(super) receive: Option<(Rank, Vec<u32>)>,
}

/// Where blocks lie. Offsets are those of a space in which each block has a range of its own.
pub(super) struct Blocks<'f> {
    /// The range of a block.
    pub(super) range: &'f dyn Fn(u32) -> Range<u64>,
    /// Where the rank's own contribution to the bytes from an offset on lies.
    pub(super) input: &'f dyn Fn(u64) -> Loc,
    /// Where they are combined or gathered.
    pub(super) work: &'f dyn Fn(u64) -> Loc,
    /// Whether `work` holds a block.
    pub(super) held: Vec<bool>,
    /// Number of the link of the next step.
    pub(super) inbox: u64,
}

impl Blocks<'_> {
    fn ranges(&self, blocks: &[u32]) -> Vec<Range<u64>> {
        blocks.iter().map(|block| (self.range)(*block)).collect()
    }

    /// The first offsets of the blocks that `work` does not hold.
    fn missing(&self, blocks: &[u32]) -> Vec<Range<u64>> {
        let missing = blocks.iter().filter(|block| !self.held[**block as usize]);
        missing.map(|block| (self.range)(*block)).collect()
    }

    /// Carries out steps. What comes is combined with what is there, the contributions of the
    /// lower rank first, so that partners come to the same bits; or, when `reduces` is not set,
    /// it is what there will be.
    pub(super) fn run(&mut self, links: &mut Links<'_>, me: Rank, steps: &[Step], reduces: bool) {
        let lane = u32::from(!reduces);
        // What is combined last is complete.
        let last = steps.iter().rposition(|step| step.receive.is_some());
        for (number, step) in steps.iter().enumerate() {
            let link = |peer: Rank| Link::new(peer, self.inbox, lane);
            let ways = [&step.send, &step.receive].map(|way| {
                way.as_ref()
                    .map(|(peer, blocks)| (link(*peer), self.ranges(blocks), self.missing(blocks)))
            });
            let (input, work) = (self.input, self.work);
            let current = |missing: &[Range<u64>], offset: u64| {
                if missing.iter().any(|range| range.contains(&offset)) {
                    input(offset)
                } else {
                    work(offset)
                }
            };
            let [send, receive] = &ways;
            links.exchange(
                send.as_ref().map(|(link, ranges, _)| (*link, &ranges[..])),
                receive
                    .as_ref()
                    .map(|(link, ranges, _)| (*link, &ranges[..])),
                |offset| {
                    let missing = send.as_ref().map_or(&[][..], |(.., missing)| missing);
                    current(missing, offset)
                },
                |tasks, slot, piece| {
                    let (start, bytes) = (piece.start, piece.end - piece.start);
                    if !reduces {
                        tasks.copy(work(start), slot, bytes);
                        return;
                    }
                    let Some((link, _, missing)) = receive else {
                        return;
                    };
                    let mine = current(missing, start);
                    let (a, b) = if link.peer < me {
                        (slot, mine)
                    } else {
                        (mine, slot)
                    };
                    tasks.reduce(work(start), a, b, bytes);
                    if last == Some(number) {
                        tasks.divide(work(start), bytes);
                    }
                },
            );
            for block in step.receive.iter().flat_map(|(_, blocks)| blocks) {
                self.held[*block as usize] = true;
            }
            self.inbox += 1;
        }
    }
}

/// The steps of all-reduce or reduce-scatter: those that combine, then those that pass results on.
/// As many on all ranks.
pub(super) struct TwoPhases {
    pub(super) reduce: Vec<Step>,
    pub(super) gather: Vec<Step>,
}

impl TwoPhases {
    fn run(&self, links: &mut Links<'_>, me: Rank, blocks: &mut Blocks<'_>) {
        blocks.run(links, me, &self.reduce, true);
        blocks.run(links, me, &self.gather, false);
    }

    fn count(&self) -> u64 {
        (self.reduce.len() + self.gather.len()) as u64
    }

    /// All-reduce of a buffer cut into `parts` blocks, in the output. At most `joined` blocks in a
    /// row are sent at once.
    pub(super) fn all_reduce(
        &self,
        algorithm: &dyn Algorithm,
        shape: &Shape,
        params: &Params,
        me: Rank,
        (parts, joined): (u32, u32),
    ) -> Result<RankPlan, PlanError> {
        let bytes = shape.count_bytes();
        let cut = Slices::new(bytes, u64::from(parts), line_up(bytes));
        let longest = cut.part_bytes().saturating_mul(u64::from(joined));
        let slots = Slots::new(algorithm, params, self.count(), 0, longest.min(bytes))?;
        let mut links = Links::new(shape, me, slots);
        links.tasks.divides();
        let mut blocks = Blocks {
            range: &|block| cut.part(0, u64::from(block)),
            input: &Loc::input,
            work: &Loc::output,
            held: vec![false; parts as usize],
            inbox: 0,
        };
        self.run(&mut links, me, &mut blocks);
        Ok(links.finish(false))
    }

    /// Reduce-scatter with a block for each rank. The own one is combined in the output, others
    /// in scratch memory, slice by slice.
    pub(super) fn reduce_scatter(
        &self,
        algorithm: &dyn Algorithm,
        shape: &Shape,
        params: &Params,
        me: Rank,
    ) -> Result<RankPlan, PlanError> {
        let (bytes, ranks) = (shape.count_bytes(), u64::from(shape.ranks));
        let slots = Slots::new(algorithm, params, self.count(), ranks, bytes)?;
        let slices = Slices::new(bytes, 1, slots.bytes);
        let part = slices.part_bytes();
        let mut links = Links::new(shape, me, slots.shrunk(part));
        links.tasks.divides();
        for slice in 0..slices.count() {
            // Each block has a place of a slice's length.
            let place = |offset: u64| (Rank((offset / part) as u32), offset % part);
            let start = slice * part;
            let mut blocks = Blocks {
                range: &|block| {
                    let slice = slices.slice_of(slice, shape.part_bytes(Rank(block)));
                    let start = u64::from(block) * part;
                    start..start + length(&slice)
                },
                input: &|offset| {
                    let (block, within) = place(offset);
                    Loc::input(shape.part(block).start + start + within)
                },
                work: &|offset| match place(offset) {
                    (block, within) if block == me => Loc::output(start + within),
                    _ => Loc::scratch(offset),
                },
                held: vec![false; shape.ranks as usize],
                inbox: 0,
            };
            self.run(&mut links, me, &mut blocks);
        }
        Ok(links.finish(self.reduce.iter().any(|step| step.receive.is_some())))
    }
}

/// A power of two of ranks, when there may be more: the ranks too many stand behind one beside
/// them, which acts for both. Who acts keeps the order of ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Folded {
    ranks: u32,
    /// Ranks that act: the largest power of two.
    pub(super) acting: u32,
    /// Ranks that do not; each has its actor before it.
    extra: u32,
}

impl Folded {
    pub(super) fn new(ranks: u32) -> Self {
        let acting = 1 << ranks.ilog2();
        Self {
            ranks,
            acting,
            extra: ranks - acting,
        }
    }

    /// Steps among those who act.
    pub(super) fn steps(&self) -> u32 {
        self.acting.ilog2()
    }

    /// Steps to fold the others in, or out: 0 or 1.
    pub(super) fn folds(&self) -> u32 {
        self.extra.min(1)
    }

    /// The number of a rank among those who act; `None` if another acts for it.
    pub(super) fn number(&self, rank: Rank) -> Option<u32> {
        if rank.0 >= 2 * self.extra {
            Some(rank.0 - self.extra)
        } else if rank.0.is_multiple_of(2) {
            Some(rank.0 / 2)
        } else {
            None
        }
    }

    /// The rank of this number among those who act; the number of ranks for one beyond the last.
    pub(super) fn rank(&self, number: u32) -> Rank {
        if number < self.extra {
            Rank(2 * number)
        } else {
            Rank(number + self.extra)
        }
    }

    /// All ranks for whom those of these numbers act.
    pub(super) fn behind(&self, numbers: Range<u32>) -> Vec<u32> {
        (self.rank(numbers.start).0..self.rank(numbers.end).0).collect()
    }

    /// The other one of a pair of an actor and one that does not act.
    pub(super) fn other(&self, rank: Rank) -> Option<Rank> {
        (rank.0 < 2 * self.extra).then_some(Rank(rank.0 ^ 1))
    }

    /// The step in which those who do not act send blocks to their actor.
    pub(super) fn fold_in(&self, rank: Rank, blocks: impl Fn(Rank) -> Vec<u32>) -> Vec<Step> {
        let Some(other) = self.other(rank) else {
            return vec![Step::default(); self.folds() as usize];
        };
        let acts = self.number(rank).is_some();
        let message = |sender: Rank, peer: Rank| Some((peer, blocks(sender)));
        vec![if acts {
            Step {
                receive: message(other, other),
                send: None,
            }
        } else {
            Step {
                send: message(rank, other),
                receive: None,
            }
        }]
    }

    /// The step in which those who act send blocks to the other one, named by the receiver.
    pub(super) fn fold_out(&self, rank: Rank, blocks: impl Fn(Rank) -> Vec<u32>) -> Vec<Step> {
        // Seen the other way round: who would send receives.
        let mut steps = self.fold_in(rank, blocks);
        for step in &mut steps {
            std::mem::swap(&mut step.send, &mut step.receive);
        }
        steps
    }

    /// All ranks.
    pub(super) fn ranks(&self) -> u32 {
        self.ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_acts_keeps_the_order_and_acts_for_all() {
        for ranks in 1..40 {
            let folded = Folded::new(ranks);
            let all = folded.behind(0..folded.acting);
            assert_eq!(all, (0..ranks).collect::<Vec<_>>());
            for number in 0..folded.acting {
                assert_eq!(folded.number(folded.rank(number)), Some(number));
                let behind = folded.behind(number..number + 1);
                assert_eq!(behind[0], folded.rank(number).0);
                let other = folded.other(folded.rank(number)).map(|rank| rank.0);
                assert_eq!(behind.get(1).copied(), other);
            }
        }
    }
}
