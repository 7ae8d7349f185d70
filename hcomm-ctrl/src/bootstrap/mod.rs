//! Start-up: how ranks that know only one address come to know each other.
//!
//! Rank 0 listens. The others come there once: they prove the key of the job, say who they are, and
//! are given a place in a tree, below rank 0 or below a rank that has come before. Rank 0 compares,
//! and tells who is still missing and at last the list of all ranks down the tree; that all have it
//! comes up the tree, and then all go on. Whatever goes wrong goes up to rank 0, and from there to
//! everybody in the same words. So rank 0 holds few connections, and every rank but it sends and
//! receives as many messages with many ranks as with few.
//!
//! A rank whose connection upwards ends, or says nothing for long, comes to rank 0 again, which
//! takes it in itself; if the rank between the two was lost, the one above that says so.

mod branches;
mod comparison;
mod join;
mod member;
mod root;
mod roster;
mod tree;
mod verdict;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Once;
use std::task::Poll;
use std::time::Duration;

use hcomm_transport::Interest;
use hcomm_types::{Deadline, Error, ErrorKind, Nanos, Rank, Result};

pub use member::{LIBRARY_VERSION, Member};
pub(crate) use roster::Part;
pub use roster::Roster;

use crate::dial::{Problem, Target};
use crate::frame::FrameType;
use crate::job_key::{JobKey, SessionId};
use crate::launch::RootAddress;
use crate::machine::Machine;
use crate::net::{Listener, any_address};
use crate::outside::Outside;
use crate::root_info::{RootInfo, RootListener};
use join::{Join, Whereabouts};
use root::Root;

/// How far a communicator is on its way up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Finding each other and comparing who is who.
    Handshake,
    /// Learning what every rank knows about itself.
    Topology,
    /// Choosing links.
    Paths,
    /// Taking memory and making channels.
    Resources,
    /// Up.
    Ready,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Handshake => "handshake",
            Self::Topology => "topology",
            Self::Paths => "paths",
            Self::Resources => "resources",
            Self::Ready => "ready",
        })
    }
}

/// Largest communicator.
pub const MAX_RANKS: u32 = 1 << 20;

/// How long a taken port may keep us from knowing by whom.
const PROBE: Duration = Duration::from_secs(3);

/// Start-up of one rank, as a machine that ends with the list of all ranks.
pub struct Bootstrap {
    role: Role,
    step: Step,
}

enum Role {
    Root(Box<Root>),
    Join(Box<Join>),
    Probe(Box<Probe>),
    /// Has ended. Its sockets are closed: others may wait for that.
    Over,
}

/// Rank 0 has found its port taken, and looks by whom.
struct Probe {
    outside: Outside,
    address: RootAddress,
    /// The one of its ports that is taken.
    port: u16,
    key: JobKey,
    member: Member,
    timeout: Duration,
    started: Nanos,
    until: Nanos,
    join: Join,
}

/// What a rank 0 begins with that was told an address.
struct Start {
    outside: Outside,
    address: RootAddress,
    key: JobKey,
    member: Member,
    timeout: Duration,
    now: Nanos,
}

impl Start {
    /// Listens at the first port that is free. When one is taken, it is looked by whom before the next
    /// one is tried: it may be another rank 0 of the same job.
    fn listen_from(self, port: u16) -> Result<Role> {
        let Self {
            outside,
            address,
            key,
            member,
            timeout,
            now,
        } = self;
        match listen(&outside, &address, port) {
            Ok(listener) => Ok(root_role(outside, listener, key, member, timeout, now)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                tracing::debug!(%address, port, "the root's port is taken: looking by whom");
                let whereabouts = Whereabouts {
                    target: Target::Named(RootAddress::new(address.host(), port)),
                    key: key.clone(),
                    session: None,
                };
                let join = Join::new(outside.clone(), whereabouts, member.clone(), timeout, now)
                    .with_patience(PROBE);
                Ok(Role::Probe(Box::new(Probe {
                    outside,
                    address,
                    port,
                    key,
                    member,
                    timeout,
                    started: now,
                    until: now + PROBE,
                    join,
                })))
            }
            Err(error) => Err(root::cannot_listen(member.rank, &address, error)),
        }
    }
}

impl Bootstrap {
    /// Rank 0 with a listener whose root info the others have.
    ///
    /// # Errors
    /// The member cannot be a root, or says too much about itself.
    pub fn root(
        outside: Outside,
        listener: RootListener,
        member: Member,
        timeout: Duration,
        now: Nanos,
    ) -> Result<Self> {
        check(&member, true)?;
        let (listener, info) = listener.into_parts();
        let root = Root::new(
            outside,
            listener,
            info.key().clone(),
            info.session(),
            member,
            timeout,
            now,
        );
        Ok(Self::with(Role::Root(Box::new(root))))
    }

    /// Rank 0 at an address that all ranks were told. Without a key, one that everybody knows is
    /// used.
    ///
    /// When the port is taken, this looks by whom: another rank 0 of the same job learns of us,
    /// and both fail with the same words; anything else is an error at once.
    ///
    /// # Errors
    /// The address cannot be listened at; the member cannot be a root, or says too much about
    /// itself.
    pub fn root_at(
        outside: Outside,
        address: &RootAddress,
        key: Option<JobKey>,
        member: Member,
        timeout: Duration,
        now: Nanos,
    ) -> Result<Self> {
        check(&member, true)?;
        let key = job_key(address, key)?;
        let start = Start {
            outside,
            address: address.clone(),
            key,
            member,
            timeout,
            now,
        };
        start.listen_from(address.port()).map(Self::with)
    }

    /// Any other rank, with the root info of rank 0.
    ///
    /// # Errors
    /// The member says too much about itself.
    pub fn join(
        outside: Outside,
        info: &RootInfo,
        member: Member,
        timeout: Duration,
        now: Nanos,
    ) -> Result<Self> {
        check(&member, false)?;
        let whereabouts = Whereabouts {
            target: Target::Fixed(info.addresses().to_vec()),
            key: info.key().clone(),
            session: Some(info.session()),
        };
        let join = Join::new(outside, whereabouts, member, timeout, now);
        Ok(Self::with(Role::Join(Box::new(join))))
    }

    /// Any other rank, with the address where rank 0 listens or will listen. Without a key, one
    /// that everybody knows is used.
    ///
    /// # Errors
    /// The member says too much about itself.
    pub fn join_at(
        outside: Outside,
        address: &RootAddress,
        key: Option<JobKey>,
        member: Member,
        timeout: Duration,
        now: Nanos,
    ) -> Result<Self> {
        check(&member, false)?;
        let whereabouts = Whereabouts {
            target: Target::Named(address.clone()),
            key: job_key(address, key)?,
            session: None,
        };
        let join = Join::new(outside, whereabouts, member, timeout, now);
        Ok(Self::with(Role::Join(Box::new(join))))
    }

    /// How far it is: handshake, then topology. The layers above do the rest.
    #[must_use]
    pub const fn step(&self) -> Step {
        self.step
    }

    /// This rank cannot go on, for a reason that lies outside of start-up. The machine has to be
    /// driven on: it tells the others, and then ends with an error.
    pub fn give_up(&mut self, error: &Error, now: Nanos) {
        match &mut self.role {
            Role::Root(root) => root.give_up(error, now),
            Role::Join(join) => join.give_up(error, now),
            Role::Probe(probe) => probe.join.give_up(error, now),
            Role::Over => {}
        }
    }

    fn with(role: Role) -> Self {
        Self {
            role,
            step: Step::Handshake,
        }
    }

    fn poll_probe(&mut self, now: Nanos) -> Poll<Result<Roster>> {
        let Role::Probe(probe) = &mut self.role else {
            return Poll::Pending;
        };
        let ended = probe.join.poll(now);
        if probe.join.is_welcome() && ended.is_pending() {
            // A root of our own job: it will tell what is wrong.
            return Poll::Pending;
        }
        let taken = match (ended, probe.join.problem()) {
            (Poll::Ready(Ok(_)), _) => Some("it took us for one of its ranks".to_owned()),
            (Poll::Ready(Err(error)), _) if error.kind() == ErrorKind::Refused => {
                Some("the root of another job listens there: its key differs".to_owned())
            }
            (Poll::Ready(Err(error)), _) => return Poll::Ready(Err(error)),
            (
                Poll::Pending,
                problem @ (Problem::Foreign(_) | Problem::Silent(_) | Problem::Ended),
            ) => Some(problem.to_string()),
            (Poll::Pending, Problem::NobodyListens) => {
                // It has left by now, or was only a connection that used the port.
                if let Ok(listener) = listen(&probe.outside, &probe.address, probe.port) {
                    self.role = root_role(
                        probe.outside.clone(),
                        listener,
                        probe.key.clone(),
                        probe.member.clone(),
                        probe.timeout,
                        probe.started,
                    );
                    return self.poll(now);
                }
                None
            }
            (Poll::Pending, _) => None,
        };
        let taken = match taken {
            Some(taken) => taken,
            None if now >= probe.until => probe.join.describe(now),
            None => return Poll::Pending,
        };
        if probe.port < *probe.address.ports().end() {
            let start = Start {
                outside: probe.outside.clone(),
                address: probe.address.clone(),
                key: probe.key.clone(),
                member: probe.member.clone(),
                timeout: probe.timeout,
                now: probe.started,
            };
            match start.listen_from(probe.port + 1) {
                Ok(role) => self.role = role,
                Err(error) => return Poll::Ready(Err(error)),
            }
            if let Role::Probe(probe) = &mut self.role {
                probe.until = now + PROBE;
            }
            return self.poll(now);
        }
        let one = if probe.address.ports().len() == 1 {
            "the port is taken"
        } else {
            "all these ports are taken, the last one"
        };
        Poll::Ready(Err(Error::new(
            ErrorKind::System,
            format!(
                "rank {} cannot listen at {}, because {one}: {taken}",
                probe.member.rank, probe.address
            ),
        )
        .at_rank(probe.member.rank)
        .blame_rank(probe.member.rank)
        .after(now.since(probe.started))
        .hint("choose a free port with HCOMM_ROOT=host:port or MASTER_PORT, or several with HCOMM_ROOT=host:first-last; `ss -ltnp` shows who holds it")))
    }
}

impl Machine for Bootstrap {
    type Output = Roster;

    fn poll(&mut self, now: Nanos) -> Poll<Result<Roster>> {
        let result = match &mut self.role {
            Role::Root(root) => root.poll(now),
            Role::Join(join) => join.poll(now),
            Role::Probe(_) => self.poll_probe(now),
            Role::Over => Poll::Pending,
        };
        match &self.role {
            Role::Root(root) => self.step = root.step(),
            Role::Join(join) => self.step = join.step(),
            Role::Probe(_) | Role::Over => {}
        }
        if result.is_ready() {
            self.role = Role::Over;
        }
        result
    }

    fn interests<'a>(&'a self, wanted: &mut Vec<Interest<'a>>) {
        match &self.role {
            Role::Root(root) => root.interests(wanted),
            Role::Join(join) => join.interests(wanted),
            Role::Probe(probe) => probe.join.interests(wanted),
            Role::Over => {}
        }
    }

    fn next_wake(&self) -> Deadline {
        match &self.role {
            Role::Root(root) => root.next_wake(),
            Role::Join(join) => join.next_wake(),
            Role::Over => Deadline::NEVER,
            Role::Probe(probe) if probe.join.is_welcome() => probe.join.next_wake(),
            Role::Probe(probe) => probe.join.next_wake().earlier(Deadline::at(probe.until)),
        }
    }
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bootstrap")
            .field("step", &self.step)
            .finish_non_exhaustive()
    }
}

fn root_role(
    outside: Outside,
    listener: Box<dyn Listener>,
    key: JobKey,
    member: Member,
    timeout: Duration,
    now: Nanos,
) -> Role {
    tracing::debug!(local = %listener.local_addr(), "the root listens");
    let session = SessionId::random(&*outside.random);
    Role::Root(Box::new(Root::new(
        outside, listener, key, session, member, timeout, now,
    )))
}

/// Listens at the address itself if that is one of this host; for a name, or an address that is
/// translated on the way to us, at all addresses.
fn listen(outside: &Outside, address: &RootAddress, port: u16) -> io::Result<Box<dyn Listener>> {
    let network = &outside.network;
    if let Some(ip) = address.ip() {
        return match network.listen(SocketAddr::new(ip, port)) {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                network.listen(SocketAddr::new(any_address(ip), port))
            }
            other => other,
        };
    }
    // A name means different addresses to different hosts; its own host often calls it 127.0.1.1.
    let resolved = network.resolve(address.host(), port)?;
    let like = resolved.first().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("{} has no address", address.host()),
        )
    })?;
    network.listen(SocketAddr::new(any_address(like.ip()), port))
}

/// The key of the job. Where several jobs share a range of ports, only a key of its own keeps a rank
/// from the root of another job.
fn job_key(address: &RootAddress, key: Option<JobKey>) -> Result<JobKey> {
    match key {
        Some(key) => Ok(key),
        None if address.ports().len() > 1 => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("the root is at one of several ports, {address}, and no job key is set: another job's root there could not be told from it"),
        )
        .hint("set HCOMM_JOB_KEY or HCOMM_JOB_KEY_FILE, or name one port")),
        None => Ok(public_key(address)),
    }
}

/// The key that everybody knows, with one warning a process where strangers could reach us.
fn public_key(address: &RootAddress) -> JobKey {
    static WARNED: Once = Once::new();
    let local = address.host() == "localhost" || address.ip().is_some_and(|ip| ip.is_loopback());
    if !local {
        WARNED.call_once(|| {
            tracing::warn!(
                %address,
                "no job key is set: whoever reaches the root's port can join the job; set HCOMM_JOB_KEY or HCOMM_JOB_KEY_FILE"
            );
        });
    }
    JobKey::public()
}

fn check(member: &Member, is_root: bool) -> Result<()> {
    let invalid = |detail: String| {
        Err(Error::new(ErrorKind::InvalidArgument, detail)
            .at_rank(member.rank)
            .in_call("bootstrap"))
    };
    if member.rank.0 >= member.size {
        return invalid(format!(
            "rank {} is not one of {} ranks",
            member.rank, member.size
        ));
    }
    if member.size > MAX_RANKS {
        return invalid(format!(
            "{} ranks are more than the {MAX_RANKS} that a communicator may have",
            member.size
        ));
    }
    if is_root != (member.rank == Rank(0)) {
        return invalid(format!(
            "rank {} {} the root: rank 0 is",
            member.rank,
            if is_root { "cannot be" } else { "must be" }
        ));
    }
    let hello = member::Hello {
        attempt: 0,
        member: member.clone(),
        port: 0,
        orphaned_by: None,
    };
    let length = hello.encode().len();
    let limit = FrameType::Hello.limit();
    if length > limit {
        return Err(Error::new(
            ErrorKind::LimitReached,
            format!(
                "rank {} has {length} bytes to say about itself; the limit is {limit}",
                member.rank
            ),
        )
        .at_rank(member.rank));
    }
    Ok(())
}

/// When the steps began; told when start-up was slow.
#[derive(Debug)]
struct Times {
    started: Nanos,
    topology: Option<Nanos>,
    last: Option<(Nanos, Rank)>,
}

/// Start-up that takes longer says where the time went.
const SLOW: Duration = Duration::from_secs(10);

impl Times {
    const fn new(now: Nanos) -> Self {
        Self {
            started: now,
            topology: None,
            last: None,
        }
    }

    fn enter(&mut self, now: Nanos, step: Step) {
        if step == Step::Topology {
            self.topology.get_or_insert(now);
        }
    }

    /// The rank that joined last.
    const fn note_last(&mut self, now: Nanos, rank: Rank) {
        self.last = Some((now, rank));
    }

    /// The line to tell, if it was slow.
    fn describe(&self, now: Nanos) -> Option<String> {
        let whole = now.since(self.started);
        if whole <= SLOW {
            return None;
        }
        let topology = self.topology.unwrap_or(now);
        let mut line = format!(
            "start-up took {:.1} s: handshake {:.1} s",
            whole.as_secs_f64(),
            topology.since(self.started).as_secs_f64()
        );
        if let Some((when, rank)) = self.last {
            let after = when.since(self.started).as_secs_f64();
            line += &format!(" (rank {rank} came last, after {after:.1} s)");
        }
        line += &format!(", topology {:.1} s", now.since(topology).as_secs_f64());
        Some(line)
    }

    fn finish(&self, now: Nanos, rank: Rank, size: u32) {
        if let Some(line) = self.describe(now) {
            tracing::warn!(%rank, size, "{line}");
        }
    }
}
