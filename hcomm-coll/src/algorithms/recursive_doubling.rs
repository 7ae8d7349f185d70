//! Recursive doubling: in step *k* ranks whose numbers differ in bit *k* exchange all that they
//! have.
//!
//! A logarithmic number of steps, so the choice for small sizes on many ranks, where the messages
//! of a mesh would be too many. An all-reduce sends everything in every step, so it is not the
//! choice for large sizes; an all-gather sends no byte twice to the same rank.
//!
//! Where the number of ranks is no power of two, each rank too many gives what it has to the one
//! before it, which acts for both and tells it the result in the end: two steps more.
//!
//! All-reduce works in the output. Partners combine the lower rank's side first, so all ranks
//! combine in rank order and come to the same bits.
//!
//! Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH",
//! IJHPCA 2005, sections 4.1 and 4.5.

use hcomm_types::Rank;

use super::blocks::{Blocks, Folded, Step};
use super::links::{Links, Slots};
use super::tasks::Tasks;
use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// Partners at growing distance exchange all they have.
#[derive(Clone, Copy, Debug)]
pub struct RecursiveDoubling;

impl Algorithm for RecursiveDoubling {
    fn name(&self) -> &'static str {
        "recursive_doubling"
    }

    fn summary(&self) -> &'static str {
        "ranks at growing distance exchange all they have; for small sizes on many ranks"
    }

    fn supports(&self, shape: &Shape) -> bool {
        matches!(
            shape.operation,
            Operation::AllReduce | Operation::AllGather | Operation::Barrier
        )
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        match shape.operation {
            Operation::Barrier => Ok(barrier(shape, rank)),
            Operation::AllReduce => all_reduce(self, shape, params, rank),
            _ => all_gather(self, shape, params, rank),
        }
    }
}

/// Steps among those who act: each exchanges with the one whose number differs in one bit.
/// `blocks` are those that a rank of this number has before the step of this bit.
fn doubling(folded: &Folded, me: Rank, blocks: impl Fn(u32, u32) -> Vec<u32>) -> Vec<Step> {
    let Some(number) = folded.number(me) else {
        return vec![Step::default(); folded.steps() as usize];
    };
    let step = |bit: u32| {
        let partner = number ^ (1 << bit);
        Step {
            send: Some((folded.rank(partner), blocks(number, bit))),
            receive: Some((folded.rank(partner), blocks(partner, bit))),
        }
    };
    (0..folded.steps()).map(step).collect()
}

fn barrier(shape: &Shape, me: Rank) -> RankPlan {
    let folded = Folded::new(shape.ranks);
    let mut tasks = Tasks::new(shape, me);
    let none = |_| Vec::new();
    let mut steps = folded.fold_in(me, none);
    steps.extend(doubling(&folded, me, |_, _| Vec::new()));
    steps.extend(folded.fold_out(me, none));
    for step in steps {
        if let Some((peer, _)) = step.send {
            tasks.record(peer, 0);
        }
        if let Some((peer, _)) = step.receive {
            tasks.wait(peer, 0);
        }
    }
    tasks.finish(0)
}

fn all_reduce(
    algorithm: &dyn Algorithm,
    shape: &Shape,
    params: &Params,
    me: Rank,
) -> Result<RankPlan, PlanError> {
    let folded = Folded::new(shape.ranks);
    let bytes = shape.count_bytes();
    let steps = u64::from(folded.steps() + 2 * folded.folds());
    let slots = Slots::new(algorithm, params, steps, 0, bytes)?;
    let mut links = Links::new(shape, me, slots);
    let mut blocks = Blocks {
        range: &|_| 0..bytes,
        input: &Loc::input,
        work: &Loc::output,
        held: vec![false],
        inbox: 0,
    };
    let all = |_| vec![0];
    let mut steps = folded.fold_in(me, all);
    steps.extend(doubling(&folded, me, |_, _| vec![0]));
    blocks.run(&mut links, me, &steps, true);
    blocks.run(&mut links, me, &folded.fold_out(me, all), false);
    Ok(links.finish(false))
}

/// Also the second half of an all-reduce by halving and doubling.
pub(super) fn all_gather(
    algorithm: &dyn Algorithm,
    shape: &Shape,
    params: &Params,
    me: Rank,
) -> Result<RankPlan, PlanError> {
    let folded = Folded::new(shape.ranks);
    let mut steps = folded.fold_in(me, |sender| vec![sender.0]);
    steps.extend(doubling(&folded, me, |number, bit| {
        let first = number >> bit << bit;
        folded.behind(first..first + (1 << bit))
    }));
    // Who gets everything in the end has its own already.
    steps.extend(folded.fold_out(me, |receiver| {
        (0..folded.ranks())
            .filter(|block| *block != receiver.0)
            .collect()
    }));
    gather(algorithm, shape, params, me, &steps)
}

/// Gathers in the output, by steps that are as many on all ranks.
pub(super) fn gather(
    algorithm: &dyn Algorithm,
    shape: &Shape,
    params: &Params,
    me: Rank,
    steps: &[Step],
) -> Result<RankPlan, PlanError> {
    let whole = shape.output_bytes(me);
    let slots = Slots::new(algorithm, params, steps.len() as u64, 0, whole)?;
    let mut links = Links::new(shape, me, slots);
    let own = shape.part(me);
    links
        .tasks
        .keep_own(Loc::output(own.start), Loc::input(0), shape.part_bytes(me));
    let mut blocks = Blocks {
        range: &|block| shape.part(Rank(block)),
        input: &Loc::output,
        work: &Loc::output,
        held: vec![true; shape.ranks as usize],
        inbox: 0,
    };
    blocks.run(&mut links, me, steps, false);
    Ok(links.finish(false))
}
