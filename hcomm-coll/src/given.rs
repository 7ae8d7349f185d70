//! Plans that the user brings, instead of those of an algorithm.

use std::fmt::Display;
use std::sync::Arc;

use hcomm_ctrl::{Membership, Notifies};
use hcomm_types::{Error, ErrorKind, MAX_NOTIFIES_PER_THREAD, Rank, Result};

use crate::cost::{Chooser, Prediction, predict};
use crate::plan::{Buffer, Operation, Plan, Shape, Task};
use crate::planner::{Bound, Way};
use crate::verify::{Proof, verify};
use crate::{bind, fingerprint};

/// A plan of the user, proven and bound.
#[derive(Debug)]
pub(crate) struct Given {
    /// Whose program it is.
    rank: Rank,
    /// The one shape that it serves.
    pub(crate) shape: Shape,
    /// What its file calls the algorithm.
    pub(crate) algorithm: String,
    pub(crate) bound: Arc<Bound>,
    plan: Arc<Plan>,
}

impl Given {
    /// Proves a plan and binds this rank's part. Makes the channels that it needs.
    ///
    /// # Errors
    /// `InvalidArgument` if it is wrong or not for this communicator; why channels cannot be made.
    pub(crate) fn new(plan: &Plan, membership: &Membership) -> Result<Self> {
        if plan.shape.ranks != membership.size() {
            return refuse(format!(
                "it is for {} ranks, the communicator has {}",
                plan.shape.ranks,
                membership.size()
            ));
        }
        if let Operation::SendRecv { .. } = plan.shape.operation {
            return refuse("it is for a message between two ranks, not for a collective");
        }
        let proof = verify(plan).map_err(|finding| {
            refusal(format!("it is wrong: {finding}"))
                .hint("`hcomm plan verify FILE` says everything that is wrong")
        })?;
        check(plan, &proof, membership)?;
        let lends = proof.touches_remote_user_buffers;
        let own = &plan.ranks[membership.rank().index()];
        let peers = bind::peers(own);
        membership.ensure_links(&peers)?;
        // Twice, because the next operation may begin before the peer has taken the last ones.
        let need = proof.notify_capacity.saturating_mul(2);
        for peer in peers {
            let have = bind::notify_capacity(membership, peer)?;
            if need > have {
                return refuse(format!(
                    "it may have {need} notifies outstanding, the link to rank {peer} holds {have}"
                ));
            }
        }
        let file = serde_json::to_vec(plan).map_err(refusal)?;
        let bound = Bound {
            way: Way::Program(Arc::new(bind::bind(own, &plan.shape, membership, lends)?)),
            words: fingerprint::words_of_plan(&plan.shape, &file),
            takes_half: own.task_count() > 0,
            is_empty: own.task_count() == 0,
        };
        Ok(Self {
            rank: membership.rank(),
            shape: plan.shape.clone(),
            algorithm: plan.algorithm.clone(),
            bound: Arc::new(bound),
            plan: Arc::new(plan.clone()),
        })
    }

    /// How long it should take.
    pub(crate) fn prediction(&self, chooser: &Chooser) -> Option<Prediction> {
        // A plan that is proven comes to its end.
        predict(&self.plan, chooser.machine(), chooser.site()).ok()
    }

    /// Whether it is for this shape. Whether an operation of a root is in place means nothing at the
    /// others.
    pub(crate) fn is_for(&self, shape: &Shape) -> bool {
        let matters = match shape.operation {
            Operation::Reduce { root }
            | Operation::Gather { root }
            | Operation::Scatter { root } => root == self.rank,
            _ => true,
        };
        let Shape {
            operation,
            ranks,
            count,
            dtype,
            redop,
            in_place,
        } = &self.shape;
        (*in_place == shape.in_place || !matters)
            && *operation == shape.operation
            && *ranks == shape.ranks
            && *count == shape.count
            && *dtype == shape.dtype
            && *redop == shape.redop
    }
}

/// Whether a plan that is right by itself can take its turn among the operations of a
/// communicator.
fn check(plan: &Plan, proof: &Proof, membership: &Membership) -> Result<()> {
    if !plan.initial_credits.is_empty() {
        return refuse("it begins with credits, and notifies of collectives begin at zero");
    }
    if !proof.synchronising && !plan.is_empty() {
        return refuse(
            "it is not synchronising (some rank may end before another has begun), so operations \
             could not follow each other",
        );
    }
    if membership.settings().deterministic() && !proof.rank_order {
        return refuse("it does not combine in rank order, as HCOMM_DETERMINISTIC=1 wants it");
    }
    if proof.touches_remote_user_buffers {
        let reads_only = (plan
            .ranks
            .iter()
            .flat_map(|rank| rank.threads.iter().flatten()))
        .all(|task| !is_more_than_read(task));
        if !reads_only || plan.ranks.iter().any(|rank| rank.threads.len() > 1) {
            return refuse(
                "it touches input or output of another rank, which can only be read, by a plan of \
                 one thread a rank; go through scratch memory",
            );
        }
        if !membership.lends_all()? {
            return refuse(
                "it touches input or output of another rank, and not all ranks can read each \
                 other's memory; go through scratch memory",
            );
        }
    }
    if let Some(last) = proof.notifies.checked_sub(1) {
        Notifies::Collective
            .outgoing(last)
            .map_err(|error| refusal(error.detail()))?;
    }
    let have = membership.layout().half_bytes();
    for (rank, own) in plan.ranks.iter().enumerate() {
        let need = own.scratch_bytes;
        if need > have {
            return Err(refusal(format!(
                "rank {rank} needs {need} bytes of scratch memory, the communicator has {have} for \
                 an operation"
            ))
            .hint("raise HCOMM_BUFFER_BYTES"));
        }
        // The notifies of the thread that a call comes from are its caller's.
        let mut first = own.threads.first().into_iter().flatten();
        if first.any(|task| matches!(task, Task::ThreadWait { .. })) {
            return refuse(format!(
                "thread 0 of rank {rank} waits for a thread notify, which only the others can"
            ));
        }
    }
    // The last notify of each other thread says when its part may begin.
    let most = MAX_NOTIFIES_PER_THREAD as u32 - 1;
    let waits = |task: &Task| matches!(task, Task::ThreadWait { notify } if *notify >= most);
    if (plan.ranks.iter())
        .flat_map(|rank| rank.threads.iter().flatten())
        .any(waits)
    {
        return refuse(format!("it has more than {most} notifies on a thread"));
    }
    if plan.has_packets() && !membership.maps_all() {
        return refuse("it has packets, and not all ranks map each other's memory");
    }
    Ok(())
}

/// Whether a task does more to input or output of another rank than copy it.
fn is_more_than_read(task: &Task) -> bool {
    match task {
        Task::Write { dst, .. } | Task::WriteReduce { dst, .. } => dst.buffer != Buffer::Scratch,
        Task::ReadReduce { src, .. } => src.buffer != Buffer::Scratch,
        _ => false,
    }
}

/// The error for a plan that cannot be used.
pub(crate) fn refusal(why: impl Display) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("the plan cannot be used: {why}"),
    )
}

fn refuse<T>(why: impl Display) -> Result<T> {
    Err(refusal(why))
}
