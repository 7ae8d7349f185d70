//! Chooses algorithms, binds plans, and keeps what it has bound.

use std::collections::HashMap;
use std::sync::Arc;

use hcomm_ctrl::Membership;
use hcomm_data::Program;
use hcomm_types::{Error, ErrorKind, Result};

use crate::algorithms::{self, Algorithm, Params};
use crate::bind;
use crate::plan::{Operation, Shape};
use crate::verify;

/// Programs kept. Beyond that the one not used for the longest time goes, so that calls with ever
/// new sizes do not grow without end.
const KEPT: usize = 128;

/// Bytes on the way at once, so that they stay in a core's cache.
const SLICE_BYTES: u64 = 512 << 10;

/// Up to here (input bytes times ranks) one step with more bytes beats two steps with fewer.
/// To be replaced by the cost model.
const ONE_SHOT_BYTES: u64 = 128 << 10;

/// Plans with at most this many tasks are proven before they run in builds with debug assertions:
/// no test runs an unverified plan.
const VERIFIED_TASKS: usize = 20_000;

/// A plan, bound.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) program: Arc<Program>,
    /// Whether it uses one of the two halves.
    pub(crate) takes_half: bool,
}

impl Bound {
    /// Whether this rank has nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.program.threads.iter().all(Vec::is_empty)
    }
}

/// A shape, and the algorithm that was forced for it.
type Key = (Shape, Option<&'static str>);

#[derive(Debug)]
struct Kept {
    bound: Arc<Bound>,
    /// Number of its latest use.
    used: u64,
}

/// What a communicator has planned so far.
#[derive(Debug, Default)]
pub(crate) struct Planner {
    bound: HashMap<Key, Kept>,
    uses: u64,
    /// The user's choice, for operations that it can plan.
    forced: Option<&'static str>,
}

impl Planner {
    /// Takes the algorithm of this name wherever it can plan the operation; `None` lets the rule
    /// choose again.
    pub(crate) fn force(&mut self, name: Option<&str>) -> Result<()> {
        self.forced = name
            .map(|name| {
                algorithms::by_name(name)
                    .map(Algorithm::name)
                    .ok_or_else(|| {
                        let known: Vec<&str> =
                            algorithms::algorithms().iter().map(|a| a.name()).collect();
                        Error::new(ErrorKind::InvalidArgument, format!("no algorithm `{name}`"))
                            .hint(format!("known: {}", known.join(", ")))
                    })
            })
            .transpose()?;
        Ok(())
    }

    /// The algorithm for a shape.
    ///
    /// # Errors
    /// `InvalidArgument` if the forced one cannot plan it.
    pub(crate) fn choose(&self, shape: &Shape, params: &Params) -> Result<&'static dyn Algorithm> {
        let name = self.forced.unwrap_or_else(|| rule(shape, params));
        let algorithm = algorithms::by_name(name)
            .ok_or_else(|| Error::new(ErrorKind::Internal, format!("no algorithm `{name}`")))?;
        if algorithm.supports(shape) {
            return Ok(algorithm);
        }
        // A wish for the collectives is no wish for barriers and point-to-point.
        match shape.operation {
            Operation::Barrier | Operation::SendRecv { .. } => {
                algorithms::by_name(rule(shape, params)).ok_or_else(|| {
                    Error::new(
                        ErrorKind::Internal,
                        "the rule names an algorithm that is not there",
                    )
                })
            }
            operation => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("algorithm `{name}` cannot plan {operation}"),
            )),
        }
    }

    /// The program of a shape, from before or new.
    ///
    /// # Errors
    /// Why it cannot be planned, bound, or why its channels cannot be made.
    pub(crate) fn program(&mut self, shape: &Shape, membership: &Membership) -> Result<Arc<Bound>> {
        self.uses += 1;
        let key = (*shape, self.forced);
        if let Some(kept) = self.bound.get_mut(&key) {
            kept.used = self.uses;
            return Ok(Arc::clone(&kept.bound));
        }
        let bound = Arc::new(self.bind(shape, membership)?);
        if self.bound.len() >= KEPT {
            let oldest = self
                .bound
                .iter()
                .min_by_key(|(_, kept)| kept.used)
                .map(|(key, _)| *key);
            oldest.map(|key| self.bound.remove(&key));
        }
        self.bound.insert(
            key,
            Kept {
                bound: Arc::clone(&bound),
                used: self.uses,
            },
        );
        Ok(bound)
    }

    fn bind(&self, shape: &Shape, membership: &Membership) -> Result<Bound> {
        let layout = membership.layout();
        let point_to_point = matches!(shape.operation, Operation::SendRecv { .. });
        let scratch_bytes = if point_to_point {
            layout.inbox_bytes()
        } else {
            layout.half_bytes()
        };
        let params = Params {
            scratch_bytes,
            slice_bytes: SLICE_BYTES,
        };
        let algorithm = self.choose(shape, &params)?;
        let plan = algorithm
            .plan_rank(shape, &params, membership.rank())
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))?;
        if cfg!(debug_assertions)
            && plan.task_count().saturating_mul(shape.ranks as usize) <= VERIFIED_TASKS
        {
            let whole = algorithm
                .plan(shape, &params)
                .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
            if let Err(finding) = verify::verify(&whole) {
                return Err(Error::new(
                    ErrorKind::Internal,
                    format!("{} of {shape} is wrong: {finding}", algorithm.name()),
                ));
            }
        }
        membership.ensure_links(&bind::peers(&plan))?;
        let takes_half = !point_to_point && plan.task_count() > 0;
        Ok(Bound {
            program: Arc::new(bind::bind(&plan, shape, membership)?),
            takes_half,
        })
    }
}

/// The size rule.
fn rule(shape: &Shape, params: &Params) -> &'static str {
    let ranks = u64::from(shape.ranks);
    let total = shape.count_bytes().saturating_mul(ranks);
    match shape.operation {
        Operation::SendRecv { .. } => "pair",
        Operation::Barrier => "mesh_one_shot",
        _ if total <= ONE_SHOT_BYTES.min(params.scratch_bytes / 2) => "mesh_one_shot",
        _ => "mesh_two_shot",
    }
}
