//! Blocks that all ranks exchange in steps: in each step a rank sends some blocks to one rank and
//! receives some from one rank.
//!
//! Reductions and gatherings in a logarithmic number of steps differ only in who exchanges which
//! blocks with whom, so an algorithm writes down its [`Step`]s and the rest is here. Each step has
//! a link of its own to the receiver.

use std::ops::Range;

use hcomm_types::Rank;

use super::links::{Link, Links};
use crate::plan::Loc;

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
        for step in steps {
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
                },
            );
            for block in step.receive.iter().flat_map(|(_, blocks)| blocks) {
                self.held[*block as usize] = true;
            }
            self.inbox += 1;
        }
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
