//! Who still lives: the data plane asks after each sleep.
//!
//! Three sources, from the surest to the widest. A pidfd of each process of this host tells of its
//! end at once, whatever it was doing. A control link tells what a peer said last: that it gives
//! up and because of whom, or that it leaves in good order; and its end without a word is a loss.
//! The channel itself is asked by the data plane.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hcomm_data::Peers;
use hcomm_topo::RankFacts;
use hcomm_transport::Waiter;
use hcomm_types::{Error, ErrorKind, Nanos, Rank, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::calls::{Call, Calls};
use crate::endpoint::{Facts, pid_namespace, this_process};
use crate::group::Group;
use crate::membership::lock;
use crate::mesh::{LinkState, Mesh};

/// What is known about the peers of one rank.
pub(crate) struct Health {
    rank: Rank,
    facts: Vec<Facts>,
    /// Processes of this host other than our own, each with its ranks.
    watched: Mutex<Vec<Watched>>,
    mesh: Arc<Mutex<Mesh>>,
    waiter: Arc<dyn Waiter>,
    group: Option<Arc<Group>>,
    /// When the blocking call under way began, plus one; 0 if there is none.
    blocked_since: AtomicU64,
    closed: AtomicBool,
    /// What this rank has called.
    pub(crate) calls: Calls,
}

struct Watched {
    pidfd: OwnedFd,
    ranks: Vec<Rank>,
}

impl Health {
    pub(crate) fn new(
        rank: Rank,
        facts: Vec<Facts>,
        mesh: Arc<Mutex<Mesh>>,
        waiter: Arc<dyn Waiter>,
        group: Option<Arc<Group>>,
    ) -> Self {
        let watched = Mutex::new(watch(rank, &facts));
        Self {
            rank,
            facts,
            watched,
            mesh,
            waiter,
            group,
            blocked_since: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            calls: Calls::new(),
        }
    }

    /// A rank in words: number, host, process.
    pub(crate) fn describe(&self, rank: Rank) -> String {
        self.facts.get(rank.index()).map_or_else(
            || format!("rank {rank}"),
            |facts| {
                let RankFacts { process, host, .. } = &facts.rank;
                format!("rank {rank} (process {} on {})", process.pid, host.name)
            },
        )
    }

    /// Marks a blocking call for as long as the guard lives. Only ranks made together can wait for
    /// their own thread: the others are spared the look at the clock.
    pub(crate) fn blocking(self: &Arc<Self>) -> Blocking {
        let Some(group) = &self.group else {
            return Blocking(None);
        };
        group.used_here(self.rank);
        self.blocked_since
            .store(self.waiter.now().0 + 1, Ordering::Relaxed);
        Blocking(Some(Arc::clone(self)))
    }

    /// No more news are wanted.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        lock(&self.watched).clear();
    }

    /// Ranks whose processes have ended.
    fn ended(&self) -> Vec<Rank> {
        let watched = lock(&self.watched);
        if watched.is_empty() {
            return Vec::new();
        }
        let mut fds: Vec<PollFd<'_>> = watched
            .iter()
            .map(|process| PollFd::from_borrowed_fd(process.pidfd.as_fd(), PollFlags::IN))
            .collect();
        // Without a wait this cannot fail but for a signal, and then the next look tells.
        match poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            }),
        ) {
            Ok(1..) => {}
            _ => return Vec::new(),
        }
        fds.iter()
            .zip(watched.iter())
            .filter(|(fd, _)| !fd.revents().is_empty())
            .flat_map(|(_, process)| process.ranks.iter().copied())
            .collect()
    }

    fn news(&self) -> Result<()> {
        let ended = self.ended();
        // Whoever holds the mesh at this moment will look at the same news.
        let Ok(mut mesh) = self.mesh.try_lock() else {
            return Ok(());
        };
        mesh.poll(self.waiter.now())?;
        let mut lost = Vec::new();
        for peer in (0..)
            .map(Rank)
            .take(self.facts.len())
            .filter(|&peer| peer != self.rank)
        {
            match mesh.state(peer) {
                LinkState::Aborted {
                    kind,
                    culprits,
                    text,
                } => return Err(self.told(peer, *kind, culprits, text)),
                // One that nobody here is linked to may have left in good order.
                LinkState::Closed | LinkState::NotAsked => {}
                LinkState::Lost { .. } => lost.push(peer),
                LinkState::Connecting | LinkState::Up => {
                    if ended.contains(&peer) {
                        lost.push(peer);
                    }
                }
            }
        }
        if !lost.is_empty() {
            return Err(self.loss(&lost));
        }
        mesh.calls()
            .try_for_each(|(peer, theirs)| self.calls.compare(self.rank, peer, theirs))
    }

    /// Tells the peers which call this rank waits in, if it has for long.
    fn tell_call(&self) {
        // Asked only by who can tell: it counts as told then.
        if let Ok(mut mesh) = self.mesh.try_lock()
            && let Some(calls) = self.calls.to_tell(self.waiter.now())
        {
            mesh.tell_calls(&calls);
        }
    }

    /// The calls that the others have said that they wait in.
    fn others(&self) -> Vec<(Rank, Vec<Call>)> {
        match self.mesh.try_lock() {
            Ok(mesh) => mesh
                .calls()
                .map(|(peer, calls)| (peer, calls.to_vec()))
                .collect(),
            Err(_) => Vec::new(),
        }
    }

    fn loss(&self, lost: &[Rank]) -> Error {
        let who: Vec<String> = lost.iter().map(|&rank| self.describe(rank)).collect();
        let verb = if lost.len() == 1 {
            "has ended"
        } else {
            "have ended"
        };
        let error = Error::new(
            ErrorKind::PeerLost,
            format!("{} {verb} without leaving the communicator", who.join(", ")),
        )
        .hint("look at the output of that rank for the cause");
        lost.iter()
            .fold(error, |error, &rank| error.blame_rank(rank))
    }

    /// The error of a peer that has given up. Its words stay, however often they are passed on.
    fn told(&self, peer: Rank, kind: ErrorKind, culprits: &[Rank], text: &str) -> Error {
        let told_by = format!("told by {}", self.describe(peer));
        if culprits.is_empty() || culprits == [self.rank] {
            // Nobody but itself, or it waited for us: then our own cause is that it is gone.
            return Error::new(kind, text).blame_rank(peer).hint(told_by);
        }
        let error = Error::new(kind, text).hint(told_by);
        culprits
            .iter()
            .fold(error, |error, &rank| error.blame_rank(rank))
    }

    fn would_deadlock(&self) -> Result<()> {
        let (Some(group), since) = (&self.group, self.blocked_since.load(Ordering::Relaxed)) else {
            return Ok(());
        };
        if since == 0 {
            return Ok(());
        }
        group.check(self.rank, self.waiter.now().since(Nanos(since - 1)))
    }
}

impl Peers for Health {
    fn check(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.news()?;
        self.tell_call();
        self.would_deadlock()
    }

    fn gave_up(&self, cause: &Error) {
        // Whoever holds the mesh is on another OS thread and about to be told by the domain.
        if let Ok(mut mesh) = self.mesh.try_lock() {
            mesh.abort(cause.kind(), cause.culprits(), cause.detail());
        }
    }

    fn has_left(&self, label: u32) -> bool {
        // Whoever holds it looks at the same news and is soon done; but this OS thread must not wait
        // for it, as it may hold what that one wants.
        const TRIES: u32 = 1000;
        let mesh = (0..TRIES).find_map(|_| {
            let mesh = self.mesh.try_lock().ok();
            if mesh.is_none() {
                std::thread::yield_now();
            }
            mesh
        });
        let Some(mut mesh) = mesh else {
            return false;
        };
        // Its goodbye came before its end of the channel went away, so it is there to be read.
        let heard = mesh.poll(self.waiter.now());
        heard.is_ok() && matches!(mesh.state(Rank(label)), LinkState::Closed)
    }

    fn explain(&self, label: u32, error: Error) -> Error {
        let peer = Rank(label);
        // The control plane may know more than the channel saw.
        if let Err(news) = self.news() {
            return news;
        }
        let error = match error.kind() {
            ErrorKind::PeerLost => {
                let left = self
                    .mesh
                    .try_lock()
                    .is_ok_and(|mesh| matches!(mesh.state(peer), LinkState::Closed));
                let what = if left {
                    "has left the communicator"
                } else {
                    "is gone"
                };
                Error::new(
                    ErrorKind::PeerLost,
                    format!("{} {what} ({})", self.describe(peer), error.detail()),
                )
                .hint("look at the output of that rank for the cause")
            }
            ErrorKind::Timeout => {
                let others = self.others();
                let arrivals = self.calls.arrivals(&others);
                let gap = if arrivals.is_empty() { "" } else { "; " };
                let holders = self.calls.who_holds_up(peer, &others);
                let error = error
                    .reword(|detail| format!("{}: {detail}{gap}{arrivals}", self.describe(peer)))
                    .hint(format!(
                        "is rank {} in the same operation? The limit is HCOMM_EXEC_TIMEOUT",
                        holders[0]
                    ));
                return holders.into_iter().fold(error, Error::blame_rank);
            }
            ErrorKind::Mismatch => {
                let own = self.calls.latest().map_or_else(String::new, |call| {
                    if let Ok(mut mesh) = self.mesh.try_lock() {
                        mesh.tell_calls(&self.calls.recent());
                    }
                    format!(
                        "; the latest collective here: {}",
                        self.calls.describe(&call)
                    )
                });
                error.reword(|detail| format!("{}: {detail}{own}", self.describe(peer)))
            }
            _ => error.reword(|detail| format!("{}: {detail}", self.describe(peer))),
        };
        error.blame_rank(peer)
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health")
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

/// A blocking call under way.
#[derive(Debug)]
pub struct Blocking(Option<Arc<Health>>);

impl Drop for Blocking {
    fn drop(&mut self) {
        if let Some(health) = &self.0 {
            health.blocked_since.store(0, Ordering::Relaxed);
        }
    }
}

/// A pidfd for each other process of this host whose number means here what it means there.
fn watch(rank: Rank, facts: &[Facts]) -> Vec<Watched> {
    let Some(mine) = facts.get(rank.index()) else {
        return Vec::new();
    };
    let namespace = pid_namespace();
    let mut ranks = HashMap::<u64, Vec<Rank>>::new();
    let mut processes = Vec::new();
    for facts in facts {
        let process = facts.rank.process;
        if facts.rank.host.id != mine.rank.host.id
            || namespace.is_none()
            || facts.pid_namespace != namespace
            || process.token == this_process().token
        {
            continue;
        }
        let members = ranks.entry(process.token).or_default();
        if members.is_empty() {
            processes.push(process);
        }
        members.push(facts.rank.rank);
    }
    processes
        .into_iter()
        .filter_map(|process| {
            let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw)?;
            // Ended already: its control link will tell. No pidfds here: the same.
            let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            Some(Watched {
                pidfd,
                ranks: ranks.remove(&process.token).unwrap_or_default(),
            })
        })
        .collect()
}
