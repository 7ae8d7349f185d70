//! The way of a shape where a file says how the ranks are wired.
//!
//! The cost model knows hosts and one wire between them. A rank table or a description of a cluster
//! knows switches, ports and rails, so there ways are compared by running them in virtual time
//! ([`simulate::choose`]): each algorithm, by each division of ranks that the graph knows, in the order
//! that its messages fit in. All ranks have the same file, and so come to the same way.

use std::cell::RefCell;
use std::sync::Arc;

use hcomm_topo::RankGraph;
use hcomm_types::Rank;
use rustc_hash::FxHashMap;

use crate::cost::{Machine, step_of};
use crate::plan::{Operation, Shape};
use crate::simulate::{self, Limits, Way};

/// How much a first call of a shape may take to choose: about a second. What is larger is not looked at,
/// and where nothing is small enough the cost model chooses. As no clock is in it, all ranks come to the
/// same way.
const LIMITS: Limits = Limits {
    tasks: 200_000,
    work: 20_000_000,
    total: 100_000_000,
    ..Limits::CHOICE
};

/// The shape that stands for those of its step, and scratch memory.
type Key = (Shape, u64);

/// Ways on a cluster that were found so far.
#[derive(Default)]
pub(crate) struct Fitted {
    known: RefCell<FxHashMap<Key, Option<Arc<Way>>>>,
}

impl Fitted {
    /// The way of a shape, with so much scratch memory; `None` if that is for the cost model to say.
    pub(crate) fn way(
        &self,
        graph: &RankGraph,
        shape: &Shape,
        machine: &Machine,
        scratch_bytes: u64,
    ) -> Option<Arc<Way>> {
        let is_message = matches!(shape.operation, Operation::SendRecv { .. });
        if is_message || !shape.count.is_even() || shape.is_nothing() {
            return None;
        }
        let mut step = step_of(shape);
        // An order of ranks is one for a root.
        step.operation = shape.operation;
        let key = (step, scratch_bytes);
        let known = self.known.borrow().get(&key).cloned();
        let way = known.unwrap_or_else(|| {
            let limits = Limits {
                scratch_bytes,
                ..LIMITS
            };
            let found = simulate::choose(graph, &key.0, machine.rates(), limits);
            let way = found.map(|(way, _)| Arc::new(way));
            self.known.borrow_mut().insert(key, way.clone());
            way
        });
        // The shape that stands for the step may be one that more algorithms take. All ranks have to come
        // to the same answer, so all are asked about those whose plans may differ: the first, the root,
        // and the last.
        let root = shape.operation.root().unwrap_or(Rank(0));
        let asked = [Rank(0), root, Rank(shape.ranks - 1)];
        way.filter(|way| asked.iter().all(|rank| way.plan_rank(shape, *rank).is_ok()))
    }
}

impl std::fmt::Debug for Fitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known = self.known.borrow().len();
        f.debug_struct("Fitted").field("known", &known).finish()
    }
}
