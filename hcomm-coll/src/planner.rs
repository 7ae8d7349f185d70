//! Chooses algorithms, binds plans, and keeps what it has bound.

use std::collections::HashMap;
use std::sync::Arc;

use hcomm_ctrl::Membership;
use hcomm_data::{MessageLink, Program};
use hcomm_types::{Error, ErrorKind, Rank, Result};
use rustc_hash::FxHashMap;

use crate::algorithms::{self, Algorithm, Params};
use crate::bind;
use crate::fingerprint;
use crate::given::Given;
use crate::plan::{Operation, RankPlan, Shape, Task};
use crate::rule;
use crate::verify::{self, Proof};

/// Programs kept. Beyond that the one not used for the longest time goes, so that calls with ever
/// new sizes do not grow without end.
const KEPT: usize = 128;

/// [`Params::slice_bytes`] of communicators: so many bytes stay in a core's cache.
pub const SLICE_BYTES: u64 = 512 << 10;

/// Plans with at most this many tasks are proven before they run in builds with debug assertions,
/// so hardly a test runs a plan that is not; larger ones would hold up the tests.
const VERIFIED_TASKS: usize = 20_000;

/// How an operation goes.
#[derive(Debug)]
pub(crate) enum Way {
    /// By a plan, bound.
    Program(Arc<Program>),
    /// By messages: to these if this rank is the root, from the only one if not.
    Streams(Box<[MessageLink]>),
}

/// An operation, ready to run.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) way: Way,
    /// What the flight recorder keeps of the call.
    pub(crate) words: [u64; 3],
    /// Whether it uses one of the two halves.
    pub(crate) takes_half: bool,
    /// Whether this rank has nothing to do.
    pub(crate) is_empty: bool,
}

impl Bound {
    /// The program, if it goes by one and there is something to do.
    pub(crate) fn program(&self) -> Option<&Arc<Program>> {
        match &self.way {
            Way::Program(program) if !self.is_empty => Some(program),
            _ => None,
        }
    }

    /// Threads that it needs.
    pub(crate) fn threads(&self) -> usize {
        match &self.way {
            Way::Program(program) => program.threads.len(),
            Way::Streams(_) => 1,
        }
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

/// The plan of the latest call, which most often is that of the next one.
#[derive(Debug)]
struct Latest {
    shape: Shape,
    bound: Arc<Bound>,
}

/// What a communicator has planned so far.
#[derive(Debug, Default)]
pub(crate) struct Planner {
    bound: FxHashMap<Key, Kept>,
    /// Of the algorithm that is forced now.
    latest: Option<Latest>,
    uses: u64,
    /// The user's choice, for operations that it can plan.
    forced: Option<&'static str>,
    /// The user's plan, for its shape.
    given: Option<Given>,
    /// Whether only what combines in rank order is admitted.
    deterministic: bool,
}

impl Planner {
    /// Nothing planned yet.
    pub(crate) fn new(deterministic: bool) -> Self {
        Self {
            deterministic,
            ..Self::default()
        }
    }

    /// Takes this plan for its shape; `None` plans it as all others.
    pub(crate) fn give(&mut self, given: Option<Given>) {
        self.latest = None;
        self.given = given;
    }

    /// The user's plan for a shape.
    pub(crate) fn given(&self, shape: &Shape) -> Option<&Given> {
        self.given.as_ref().filter(|given| given.is_for(shape))
    }

    /// Takes the algorithm of this name wherever it can plan the operation; `None` lets the rule
    /// choose again.
    pub(crate) fn force(&mut self, name: Option<&str>) -> Result<()> {
        self.latest = None;
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

    /// Whether a shape goes by messages. The same answer on all ranks.
    pub(crate) fn streams(&self, shape: &Shape, membership: &Membership) -> bool {
        // What does not fit in the ring would serve one receiver after the other.
        let fits = shape.ranks == 2 || shape.count_bytes() <= membership.layout().stream_bytes();
        self.forced.is_none() && membership.maps_all() && fits && rule::goes_by_messages(shape)
    }

    /// The algorithm for a shape; `packets` says whether the ranks can send any.
    ///
    /// # Errors
    /// `InvalidArgument` if the forced one cannot plan it, `Unsupported` if it needs packets.
    pub(crate) fn choose(
        &self,
        shape: &Shape,
        params: &Params,
        packets: bool,
    ) -> Result<&'static dyn Algorithm> {
        // A wish for messages is no wish for collectives.
        let is_message = matches!(shape.operation, Operation::SendRecv { .. });
        let wish = self.forced.filter(|name| {
            algorithms::by_name(name).is_none_or(|wish| is_message || !wish.is_for_messages())
        });
        let name = wish.unwrap_or_else(|| rule::algorithm(shape, params, packets));
        let algorithm = algorithms::by_name(name)
            .ok_or_else(|| Error::new(ErrorKind::Internal, format!("no algorithm `{name}`")))?;
        if algorithm.has_packets() && !packets {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("algorithm `{name}` needs ranks that all map each other's memory"),
            )
            .hint("take another algorithm, or use only transports that map memory"));
        }
        if algorithm.supports(shape) {
            if self.deterministic && !algorithm.combines_in_rank_order(shape) {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!(
                        "algorithm `{name}` does not combine {shape} in rank order, as \
                         HCOMM_DETERMINISTIC=1 wants it"
                    ),
                )
                .hint("take a mesh algorithm, or none"));
            }
            return Ok(algorithm);
        }
        // A wish for the collectives is no wish for barriers and point-to-point.
        match shape.operation {
            Operation::Barrier | Operation::SendRecv { .. } => {
                algorithms::by_name(rule::algorithm(shape, params, packets)).ok_or_else(|| {
                    Error::new(
                        ErrorKind::Internal,
                        "the rule names an algorithm that is not there",
                    )
                })
            }
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("algorithm `{name}` cannot plan {shape}"),
            )),
        }
    }

    /// The program of a shape, from before or new.
    ///
    /// # Errors
    /// Why it cannot be planned, bound, or why its channels cannot be made.
    pub(crate) fn program(&mut self, shape: &Shape, membership: &Membership) -> Result<Arc<Bound>> {
        if let Some(latest) = self.latest(shape) {
            return Ok(Arc::clone(latest));
        }
        let bound = self.kept(shape, membership)?;
        self.latest = Some(Latest {
            shape: shape.clone(),
            bound: Arc::clone(&bound),
        });
        Ok(bound)
    }

    /// The latest program, if it is that of this shape.
    #[inline]
    pub(crate) fn latest(&self, shape: &Shape) -> Option<&Arc<Bound>> {
        let latest = self.latest.as_ref()?;
        (latest.shape == *shape).then_some(&latest.bound)
    }

    fn kept(&mut self, shape: &Shape, membership: &Membership) -> Result<Arc<Bound>> {
        if let Some(given) = self.given(shape) {
            return Ok(Arc::clone(&given.bound));
        }
        self.uses += 1;
        let key = (shape.clone(), self.forced);
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
                .map(|(key, _)| key.clone());
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

    /// Holds the number of notifies that a plan has outstanding in its worst run against what a link
    /// offers. Twice, because the next operation may begin before the peer has taken the last ones.
    fn check_capacity(
        shape: &Shape,
        params: &Params,
        algorithm: &dyn Algorithm,
        have: u64,
    ) -> Result<()> {
        if !shape.count.is_complete() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} of {shape}: the link holds {have} notifies, and how many it may need takes \
                     the counts of all ranks",
                    algorithm.name()
                ),
            )
            .hint("call all_to_all_vc, with all counts"));
        }
        let need = prove(shape, params, algorithm)?
            .notify_capacity
            .saturating_mul(2);
        if need <= have {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{} of {shape} may have {need} notifies outstanding, the link holds {have}",
                algorithm.name()
            ),
        )
        .hint("take another algorithm"))
    }

    fn bind(&self, shape: &Shape, membership: &Membership) -> Result<Bound> {
        match shape.operation {
            Operation::Broadcast { root } if self.streams(shape, membership) => {
                Self::bind_streams(shape, root, membership)
            }
            _ => self.bind_plan(shape, membership),
        }
    }

    fn bind_streams(shape: &Shape, root: Rank, membership: &Membership) -> Result<Bound> {
        let me = membership.rank();
        let peers: Vec<Rank> = if me == root {
            // Beginning with the next one, as plans do.
            (me.0 + 1..shape.ranks).chain(0..me.0).map(Rank).collect()
        } else {
            vec![root]
        };
        membership.ensure_links(&peers)?;
        let links = peers
            .iter()
            .map(|peer| {
                membership.link(*peer)?.streams.ok_or_else(|| {
                    Error::new(
                        ErrorKind::Internal,
                        format!("no streams with rank {peer}, whose memory is mapped"),
                    )
                })
            })
            .collect::<Result<_>>()?;
        let params = Params {
            scratch_bytes: membership.layout().stream_bytes(),
            slice_bytes: SLICE_BYTES,
            groups: None,
            flows: 1,
        };
        Ok(Bound {
            way: Way::Streams(links),
            words: fingerprint::words(shape, rule::STREAM, &params),
            takes_half: false,
            is_empty: false,
        })
    }

    fn bind_plan(&self, shape: &Shape, membership: &Membership) -> Result<Bound> {
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
            groups: None,
            flows: 1,
        };
        let algorithm = self.choose(shape, &params, membership.maps_all())?;
        let plan = algorithms::plan_rank(algorithm, shape, &params, membership.rank())
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))?;
        if cfg!(debug_assertions)
            && shape.count.is_complete()
            && plan.task_count().saturating_mul(shape.ranks as usize) <= VERIFIED_TASKS
        {
            prove(shape, &params, algorithm)?;
        }
        let peers = bind::peers(&plan);
        membership.ensure_links(&peers)?;
        let need = most_records(&plan);
        for peer in peers {
            let have = bind::notify_capacity(membership, peer)?;
            if need > have {
                Self::check_capacity(shape, &params, algorithm, have)?;
            }
        }
        let takes_half = !point_to_point && plan.task_count() > 0;
        Ok(Bound {
            way: Way::Program(Arc::new(bind::bind(&plan, shape, membership)?)),
            words: fingerprint::words(shape, algorithm.name(), &params),
            takes_half,
            is_empty: plan.threads.iter().all(Vec::is_empty),
        })
    }
}

/// Proves the plan of all ranks.
fn prove(shape: &Shape, params: &Params, algorithm: &dyn Algorithm) -> Result<Proof> {
    let internal = |what: String| Error::new(ErrorKind::Internal, what);
    let plan = algorithm
        .plan(shape, params)
        .map_err(|error| internal(error.to_string()))?;
    verify::verify(&plan).map_err(|finding| {
        internal(format!(
            "{} of {shape} is wrong: {finding}",
            algorithm.name()
        ))
    })
}

/// How often the plan records any one notify: no more can ever be outstanding.
fn most_records(plan: &RankPlan) -> u64 {
    let mut records = HashMap::<(Rank, u32), u64>::new();
    for to in plan.threads.iter().flatten().filter_map(Task::records) {
        *records.entry(to).or_default() += 1;
    }
    records.into_values().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use hcomm_types::{DataType, ReduceOp};

    use super::*;

    #[test]
    fn records_of_one_notify_are_counted_over_all_threads() {
        let shape = Shape {
            operation: Operation::Broadcast { root: Rank(0) },
            ranks: 3,
            count: 4096.into(),
            dtype: DataType::U8,
            redop: ReduceOp::Sum.into(),
            in_place: true,
        };
        let params = Params {
            scratch_bytes: 1024,
            slice_bytes: 512,
            groups: None,
            flows: 1,
        };
        let two_shot = algorithms::by_name("mesh_two_shot").unwrap();
        let root = two_shot.plan_rank(&shape, &params, Rank(0)).unwrap();
        // One record a slice for each reader, on one notify.
        assert_eq!(most_records(&root), 4096 / 512);
        assert_eq!(most_records(&RankPlan::default()), 0);
        let proof = verify::verify(&two_shot.plan(&shape, &params).unwrap()).unwrap();
        assert!(proof.notify_capacity <= most_records(&root));
    }

    #[test]
    fn a_link_that_holds_too_few_notifies_is_refused_with_need_and_limit() {
        let shape = Shape {
            operation: Operation::Barrier,
            ranks: 2,
            count: 0.into(),
            dtype: DataType::U8,
            redop: ReduceOp::Sum.into(),
            in_place: false,
        };
        let params = Params {
            scratch_bytes: 1024,
            slice_bytes: 512,
            groups: None,
            flows: 1,
        };
        let one_shot = algorithms::by_name("mesh_one_shot").unwrap();
        let error = Planner::check_capacity(&shape, &params, one_shot, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("holds 0"), "{error}");
        assert!(Planner::check_capacity(&shape, &params, one_shot, 100).is_ok());
    }
}
