//! Chooses algorithms, binds plans, and keeps what it has bound.

use std::collections::HashMap;
use std::sync::Arc;

use hcomm_ctrl::Membership;
use hcomm_data::{MessageLink, Program};
use hcomm_types::{Error, ErrorKind, Rank, Result};
use rustc_hash::FxHashMap;

use crate::algorithms::{self, Algorithm, Ordered, Params};
use crate::bind;
use crate::cost::{Chooser, Machine, STREAM, Terms};
use crate::fingerprint;
use crate::fitted::Fitted;
use crate::given::Given;
use crate::plan::{Operation, RankPlan, Shape, Task};
use crate::simulate;
use crate::verify::{self, Proof};

/// Programs kept. Beyond that the one not used for the longest time goes, so that calls with ever
/// new sizes do not grow without end.
const KEPT: usize = 128;

/// [`Params::slice_bytes`] of algorithms that are asked for by name: so many bytes stay in a core's
/// cache.
pub const SLICE_BYTES: u64 = 512 << 10;

/// From so many bytes on it may pay to read memory that others lend.
const LEAST_LENT_BYTES: u64 = 8 << 10;

/// Notifies of a link are for so many flows.
const MOST_FLOWS: u32 = 4;

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

/// What was chosen for a shape.
pub(crate) enum Choice {
    /// To go by messages.
    Streams,
    /// A plan of this algorithm.
    Plan(&'static dyn Algorithm, Params),
    /// A plan that was found for the cluster of a file.
    Fitted(Arc<simulate::Way>),
}

impl Choice {
    /// Its name in tables.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Streams => STREAM,
            Self::Plan(algorithm, _) => algorithm.name(),
            Self::Fitted(way) => way.algorithm.name(),
        }
    }
}

/// What a communicator has planned so far.
#[derive(Debug)]
pub(crate) struct Planner {
    chooser: Chooser,
    fitted: Fitted,
    bound: FxHashMap<Key, Kept>,
    /// Of the algorithm that is forced now.
    latest: Option<Latest>,
    uses: u64,
    /// The user's choice, for operations that it can plan.
    forced: Option<&'static str>,
    /// The user's choice of how many flows large operations go in.
    flows: Option<u32>,
    /// The user's plan, for its shape.
    given: Option<Given>,
    /// Whether only what combines in rank order is admitted.
    deterministic: bool,
}

impl Planner {
    /// Nothing planned yet.
    pub(crate) fn new(chooser: Chooser, deterministic: bool) -> Self {
        Self {
            chooser,
            fitted: Fitted::default(),
            bound: FxHashMap::default(),
            latest: None,
            uses: 0,
            forced: None,
            flows: None,
            given: None,
            deterministic,
        }
    }

    /// Chooses by other costs from now on.
    pub(crate) fn use_costs(&mut self, machine: Machine) {
        self.chooser = Chooser::new(machine, self.chooser.site().clone());
        self.fitted = Fitted::default();
        self.latest = None;
        // What was chosen by the old ones may go another way now.
        self.bound.clear();
    }

    /// The costs by which it chooses.
    pub(crate) const fn chooser(&self) -> &Chooser {
        &self.chooser
    }

    /// Takes this plan for its shape; `None` plans it as all others.
    pub(crate) fn give(&mut self, given: Option<Given>) {
        self.latest = None;
        self.given = given;
    }

    /// Lets large operations flow over so many threads; `None` over one.
    pub(crate) fn force_flows(&mut self, flows: Option<u32>) -> Result<()> {
        if let Some(flows) = flows.filter(|flows| !(1..=MOST_FLOWS).contains(flows)) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{flows} flows: from 1 to {MOST_FLOWS}"),
            ));
        }
        self.latest = None;
        self.bound.clear();
        self.flows = flows;
        Ok(())
    }

    /// The user's plan for a shape.
    pub(crate) fn given(&self, shape: &Shape) -> Option<&Given> {
        self.given.as_ref().filter(|given| given.is_for(shape))
    }

    /// Takes the algorithm of this name wherever it can plan the operation; `None` lets the
    /// model choose again.
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

    /// The way that a shape goes. The same answer on all ranks.
    ///
    /// # Errors
    /// `InvalidArgument` if the forced algorithm cannot plan it, or none can; `Unsupported` if it
    /// needs packets.
    pub(crate) fn choose(&self, shape: &Shape, membership: &Membership) -> Result<Choice> {
        // A wish for messages is no wish for collectives, and one for collectives none for barriers
        // and messages.
        let is_message = matches!(shape.operation, Operation::SendRecv { .. });
        let wish = self
            .forced
            .and_then(algorithms::by_name)
            .filter(|wish| is_message || !wish.is_for_messages())
            .filter(|wish| {
                let may_pass = is_message || shape.operation == Operation::Barrier;
                !may_pass || wish.supports(shape)
            });
        // An algorithm that was asked for is looked at by itself.
        let terms = match wish {
            Some(_) => self.terms_if(membership, is_message, false),
            None => self.terms(shape, membership)?,
        };
        let (algorithm, slice_bytes, flows) = match wish {
            Some(wish) => {
                let algorithm = self.admit(wish, shape, membership)?;
                (algorithm, SLICE_BYTES, 1)
            }
            None => {
                if let Some(way) = self.fitted(shape, &terms, membership) {
                    return Ok(Choice::Fitted(way));
                }
                let means = self
                    .chooser
                    .choose(shape, &terms)
                    .ok_or_else(|| self.nothing_left(shape, &terms))?;
                if means.name == STREAM {
                    return Ok(Choice::Streams);
                }
                let algorithm = algorithms::by_name(means.name).ok_or_else(|| {
                    Error::new(
                        ErrorKind::Internal,
                        format!("no algorithm `{}`", means.name),
                    )
                })?;
                (algorithm, means.slice_bytes, means.flows)
            }
        };
        Ok(Choice::Plan(
            algorithm,
            Params {
                scratch_bytes: terms.scratch_bytes,
                slice_bytes,
                groups: self.chooser.site().hosts.clone(),
                flows: self.flows.filter(|_| !is_message).unwrap_or(flows),
            },
        ))
    }

    /// The way of a shape where a file says how the ranks are wired, and wires are what counts.
    fn fitted(
        &self,
        shape: &Shape,
        terms: &Terms,
        membership: &Membership,
    ) -> Option<Arc<simulate::Way>> {
        let cluster = membership.cluster()?;
        if self.deterministic || self.flows.is_some() || self.chooser.site().maps_all() {
            return None;
        }
        let machine = self.chooser.machine();
        self.fitted
            .way(cluster.graph(), shape, machine, terms.scratch_bytes)
    }

    /// What ways of a shape may use and have to keep.
    ///
    /// # Errors
    /// Those of [`Membership::lends_all`].
    pub(crate) fn terms(&self, shape: &Shape, membership: &Membership) -> Result<Terms> {
        let is_message = matches!(shape.operation, Operation::SendRecv { .. });
        // Of few bytes nobody needs to know.
        let may_lend = algorithms::algorithms()
            .iter()
            .any(|algorithm| algorithm.lends() && algorithm.supports(shape));
        let lends =
            may_lend && shape.total_bytes() >= LEAST_LENT_BYTES && membership.lends_all()?;
        Ok(self.terms_if(membership, is_message, lends))
    }

    /// The same, with what is known of memory that ranks lend.
    pub(crate) fn terms_if(&self, membership: &Membership, is_message: bool, lends: bool) -> Terms {
        let layout = membership.layout();
        Terms {
            scratch_bytes: if is_message {
                layout.inbox_bytes()
            } else {
                layout.half_bytes()
            },
            stream_bytes: layout.stream_bytes(),
            deterministic: self.deterministic,
            lends,
        }
    }

    /// How long the way of a shape should take, in nanoseconds, if that is known.
    pub(crate) fn predicted_ns(
        &self,
        shape: &Shape,
        membership: &Membership,
    ) -> Result<Option<f64>> {
        let prediction = if let Some(given) = self.given(shape) {
            given.prediction(&self.chooser)
        } else {
            match self.choose(shape, membership)? {
                Choice::Streams => self.chooser.stream(shape, &self.terms(shape, membership)?),
                Choice::Plan(algorithm, params) => {
                    self.chooser.predict(algorithm, shape, &params).ok()
                }
                // Known for the size that stands for this one only.
                Choice::Fitted(_) => None,
            }
        };
        Ok(prediction.map(|found| found.total_ps as f64 / 1000.0))
    }

    /// The algorithm that was asked for, if it can be had.
    fn admit(
        &self,
        algorithm: &'static dyn Algorithm,
        shape: &Shape,
        membership: &Membership,
    ) -> Result<&'static dyn Algorithm> {
        let name = algorithm.name();
        let wrong = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what));
        if algorithm.has_packets() && !membership.maps_all() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("algorithm `{name}` needs ranks that all map each other's memory"),
            )
            .hint("take another algorithm, or use only transports that map memory"));
        }
        if algorithm.lends() && !membership.lends_all()? {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "algorithm `{name}` needs ranks that can read each other's memory, and some \
                     cannot"
                ),
            )
            .hint("`hcomm transports` says why memory of other processes cannot be read"));
        }
        if !algorithm.supports(shape) {
            return wrong(format!("algorithm `{name}` cannot plan {shape}"));
        }
        if self.deterministic && !algorithm.combines_in_rank_order(shape) {
            return wrong(format!(
                "algorithm `{name}` does not combine {shape} in rank order, as \
                 HCOMM_DETERMINISTIC=1 wants it"
            ))
            .map_err(|error| error.hint("take a mesh algorithm, or none"));
        }
        Ok(algorithm)
    }

    #[cold]
    fn nothing_left(&self, shape: &Shape, terms: &Terms) -> Error {
        let why: Vec<String> = self
            .chooser
            .compare(shape, terms)
            .excluded
            .iter()
            .filter(|excluded| {
                algorithms::by_name(excluded.name).is_some_and(|one| one.supports(shape))
            })
            .map(|excluded| format!("{}: {}", excluded.name, excluded.why))
            .collect();
        Error::new(
            ErrorKind::InvalidArgument,
            format!("no algorithm can plan {shape}: {}", why.join("; ")),
        )
        .hint("raise HCOMM_BUFFER_BYTES")
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
        match (self.choose(shape, membership)?, shape.operation) {
            (Choice::Streams, Operation::Broadcast { root }) => {
                Self::bind_streams(shape, root, membership)
            }
            (Choice::Streams, _) => Err(Error::new(
                ErrorKind::Internal,
                format!("{shape} cannot go by messages"),
            )),
            (Choice::Plan(algorithm, params), _) => {
                Self::bind_plan(shape, membership, algorithm, &params)
            }
            (Choice::Fitted(way), _) => {
                let ordered = way.order.clone();
                match ordered.and_then(|order| Ordered::new(way.algorithm, order)) {
                    Some(ordered) => Self::bind_plan(shape, membership, &ordered, &way.params),
                    None => Self::bind_plan(shape, membership, way.algorithm, &way.params),
                }
            }
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
            words: fingerprint::words(shape, STREAM, &params),
            takes_half: false,
            is_empty: false,
        })
    }

    fn bind_plan(
        shape: &Shape,
        membership: &Membership,
        algorithm: &dyn Algorithm,
        params: &Params,
    ) -> Result<Bound> {
        let point_to_point = matches!(shape.operation, Operation::SendRecv { .. });
        let plan = algorithms::plan_rank(algorithm, shape, params, membership.rank())
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))?;
        if cfg!(debug_assertions)
            && shape.count.is_complete()
            && plan.task_count().saturating_mul(shape.ranks as usize) <= VERIFIED_TASKS
        {
            prove(shape, params, algorithm)?;
        }
        let peers = bind::peers(&plan);
        membership.ensure_links(&peers)?;
        let need = most_records(&plan);
        for peer in peers {
            let have = bind::notify_capacity(membership, peer)?;
            if need > have {
                Self::check_capacity(shape, params, algorithm, have)?;
            }
        }
        let takes_half = !point_to_point && plan.task_count() > 0;
        Ok(Bound {
            way: Way::Program(Arc::new(bind::bind(
                &plan,
                shape,
                membership,
                algorithm.lends(),
            )?)),
            words: fingerprint::words(shape, algorithm.name(), params),
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
