//! Any algorithm, with the ranks in another order.
//!
//! Most algorithms take ranks in the order of their numbers: who is next on a ring, who is at the end of
//! a tree. Where wires differ, another order may keep messages on the fast ones
//! ([`RankGraph::order_for`]). The plan is that of the algorithm for
//! positions; then each rank gets that of its position, and peers are named by their ranks again.
//!
//! Only operations without a part of the data for each rank can go so: which part is whose is in the
//! numbers of ranks.

use std::collections::BTreeMap;
use std::sync::Arc;

use hcomm_topo::{Message, RankGraph};
use hcomm_types::Rank;

use super::{Algorithm, Params, PlanError, begin};
use crate::plan::{Credit, Operation, RankPlan, Shape, Task};

/// An algorithm for ranks in some order.
pub struct Ordered<'a> {
    algorithm: &'a dyn Algorithm,
    /// By position: its rank.
    ranks: Arc<[Rank]>,
    /// By rank: its position.
    positions: Vec<Rank>,
}

impl<'a> Ordered<'a> {
    /// The algorithm, with a rank for each position; none where that is not each rank once.
    #[must_use]
    pub fn new(algorithm: &'a dyn Algorithm, ranks: Arc<[Rank]>) -> Option<Self> {
        let mut positions = vec![None; ranks.len()];
        for (position, rank) in ranks.iter().enumerate() {
            let place = positions.get_mut(rank.index())?;
            if place.replace(Rank::from_index(position)).is_some() {
                return None;
            }
        }
        Some(Self {
            algorithm,
            ranks,
            positions: positions.into_iter().collect::<Option<_>>()?,
        })
    }

    /// The order in which a graph carries the messages of an algorithm best, as far as was found: by
    /// position, its rank. None where the operation has parts, or where it is the order that ranks are in.
    ///
    /// # Errors
    /// If there is no plan.
    pub fn fitted(
        graph: &RankGraph,
        algorithm: &dyn Algorithm,
        shape: &Shape,
        params: &Params,
    ) -> Result<Option<Arc<[Rank]>>, PlanError> {
        if !is_without_parts(shape) {
            return Ok(None);
        }
        let mut messages = BTreeMap::<(u32, u32), u64>::new();
        for rank in shape.all_ranks() {
            let plan = super::plan_rank(algorithm, shape, params, rank)?;
            for task in plan.threads.iter().flatten() {
                let (way, bytes) = match *task {
                    Task::Write { peer, bytes, .. } => ((rank.0, peer.0), bytes),
                    Task::Read { peer, bytes, .. } => ((peer.0, rank.0), bytes),
                    Task::ReadReduce { peer, count, .. } => {
                        ((peer.0, rank.0), count * shape.element_bytes())
                    }
                    _ => continue,
                };
                *messages.entry(way).or_default() += bytes;
            }
        }
        let messages = messages.into_iter();
        let messages = messages.map(|((from, to), bytes)| Message { from, to, bytes });
        let messages: Vec<Message> = messages.collect();
        let all: Vec<Rank> = shape.all_ranks().collect();
        let order = graph.order_for(&all, &messages);
        Ok((order != all).then(|| order.into()))
    }

    fn position(&self, rank: Rank) -> Rank {
        self.positions[rank.index()]
    }

    /// The shape as positions see it.
    fn shape(&self, shape: &Shape) -> Shape {
        let operation = match shape.operation {
            Operation::Reduce { root } => Operation::Reduce {
                root: self.position(root),
            },
            Operation::Broadcast { root } => Operation::Broadcast {
                root: self.position(root),
            },
            other => other,
        };
        Shape {
            operation,
            ..shape.clone()
        }
    }

    fn fits(&self, shape: &Shape) -> bool {
        let root = shape.operation.root();
        is_without_parts(shape)
            && shape.ranks as usize == self.ranks.len()
            && root.is_none_or(|root| root.0 < shape.ranks)
    }
}

fn is_without_parts(shape: &Shape) -> bool {
    matches!(
        shape.operation,
        Operation::AllReduce
            | Operation::Reduce { .. }
            | Operation::Broadcast { .. }
            | Operation::Barrier
    )
}

impl Algorithm for Ordered<'_> {
    fn name(&self) -> &'static str {
        self.algorithm.name()
    }

    fn summary(&self) -> &'static str {
        self.algorithm.summary()
    }

    fn supports(&self, shape: &Shape) -> bool {
        self.fits(shape) && self.algorithm.supports(&self.shape(shape))
    }

    fn has_packets(&self) -> bool {
        self.algorithm.has_packets()
    }

    fn lends(&self) -> bool {
        self.algorithm.lends()
    }

    fn by_groups(&self) -> bool {
        self.algorithm.by_groups()
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let mut params = params.clone();
        if let Some(groups) = &params.groups
            && groups.len() == self.ranks.len()
        {
            let of_positions = self.ranks.iter().map(|rank| groups[rank.index()]);
            params.groups = Some(of_positions.collect());
        }
        let (shape, position) = (self.shape(shape), self.position(rank));
        let mut plan = self.algorithm.plan_rank(&shape, &params, position)?;
        for task in plan.threads.iter_mut().flatten() {
            *task = task.with_peer(|position| self.ranks[position.index()]);
        }
        Ok(plan)
    }

    fn credits(&self, shape: &Shape) -> Vec<Credit> {
        let mut credits = self.algorithm.credits(&self.shape(shape));
        for credit in &mut credits {
            credit.recorder = self.ranks[credit.recorder.index()];
            credit.waiter = self.ranks[credit.waiter.index()];
        }
        credits
    }
}
