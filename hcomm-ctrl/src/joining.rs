//! From a rank alone to a member: the four steps of start-up as one machine.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::Duration;

use hcomm_data::{Domain, Engine, Slice, Thread};
use hcomm_topo::{Allowed, EndpointFacts, RankFacts, RankGraph};
use hcomm_transport::{Interest, Transports, WaitPolicy, Waiter};
use hcomm_types::{Deadline, Error, ErrorKind, Nanos, Rank, Result};

use crate::bootstrap::{Bootstrap, Member, Roster, Step};
use crate::cores::{self, Cores};
use crate::endpoint::{Endpoints, Facts, pid_namespace, this_host, this_process};
use crate::group::Group;
use crate::health::Health;
use crate::launch::{Identity, RootAddress};
use crate::layout::Layout;
use crate::link_setup::{BUFFER_TAG, Home};
use crate::machine::{Machine, drive, drive_all};
use crate::membership::{Linking, Links, Membership, Shared, TaggedMemory, drive_links};
use crate::mesh::{Mesh, MeshListener};
use crate::outside::{Outside, Surroundings};
use crate::root_info::{RootInfo, RootListener};
use crate::settings::Settings;
use crate::tuning::Tuning;

/// Up to this many ranks all channels are made at start; above, when they are first needed.
pub const EAGER_RANKS: u32 = 64;

impl Membership {
    /// Joins the ranks that a launcher has started.
    ///
    /// # Errors
    /// `InvalidArgument` for settings that do not fit; `Timeout`, `Mismatch`, `Refused` or
    /// `PeerLost`, with the ranks and values to blame, on all ranks.
    pub fn join_launched(
        identity: &Identity,
        settings: &Settings,
        transports: &Transports,
        surroundings: &Surroundings,
    ) -> Result<Self> {
        tracing::info!(rank = %identity.rank, size = identity.size, launcher = %identity.launcher, "a launcher said who this is");
        let address = RootAddress::choose(settings.root(), |name| std::env::var(name).ok())?;
        let who = Who {
            rank: identity.rank,
            size: identity.size,
            local_rank: identity.local_rank,
        };
        let (joining, waiter) = Joining::prepare(who, settings, transports, surroundings, None)?;
        joining.start(&waiter, |outside, member, timeout, now| {
            let key = settings.job_key().cloned();
            if member.rank == Rank(0) {
                Bootstrap::root_at(outside, &address, key, member, timeout, now)
            } else {
                Bootstrap::join_at(outside, &address, key, member, timeout, now)
            }
        })
    }

    /// Joins with the root info of rank 0.
    ///
    /// # Errors
    /// As [`join_launched`](Self::join_launched).
    pub fn join_root(
        info: &RootInfo,
        rank: Rank,
        size: u32,
        settings: &Settings,
        transports: &Transports,
        surroundings: &Surroundings,
    ) -> Result<Self> {
        let who = Who {
            rank,
            size,
            local_rank: None,
        };
        let (joining, waiter) = Joining::prepare(who, settings, transports, surroundings, None)?;
        joining.start(&waiter, |outside, member, timeout, now| {
            Bootstrap::join(outside, info, member, timeout, now)
        })
    }

    /// Joins as rank 0, with the listener behind a root info.
    ///
    /// # Errors
    /// As [`join_launched`](Self::join_launched).
    pub fn serve_root(
        listener: RootListener,
        size: u32,
        settings: &Settings,
        transports: &Transports,
        surroundings: &Surroundings,
    ) -> Result<Self> {
        let who = Who {
            rank: Rank(0),
            size,
            local_rank: None,
        };
        let (joining, waiter) = Joining::prepare(who, settings, transports, surroundings, None)?;
        joining.start(&waiter, |outside, member, timeout, now| {
            Bootstrap::root(outside, listener, member, timeout, now)
        })
    }

    /// Makes `size` ranks in this process, driven together by the calling thread.
    ///
    /// # Errors
    /// As [`join_launched`](Self::join_launched).
    pub fn init_all(
        size: u32,
        settings: &Settings,
        transports: &Transports,
        surroundings: &Surroundings,
    ) -> Result<Vec<Self>> {
        if size == 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a communicator has at least 1 rank",
            ));
        }
        let outside = surroundings.outside.clone();
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = RootListener::bind(&outside, settings, loopback, &[])?;
        let info = listener.info().clone();
        let mut listener = Some(listener);
        let group = Arc::new(Group::new(size));
        let settings = &settings.clone().with_cluster(settings.cluster()?);
        let mut machines = Vec::with_capacity(size as usize);
        let mut waiter = None;
        for rank in (0..size).map(Rank) {
            let who = Who {
                rank,
                size,
                local_rank: Some(rank.0),
            };
            let (mut joining, its) = Joining::prepare(
                who,
                settings,
                transports,
                surroundings,
                Some(Arc::clone(&group)),
            )?;
            joining.begin(&its, |outside, member, timeout, now| {
                match listener.take() {
                    Some(listener) => Bootstrap::root(outside, listener, member, timeout, now),
                    None => Bootstrap::join(outside, &info, member, timeout, now),
                }
            })?;
            waiter.get_or_insert(its);
            machines.push(joining);
        }
        let Some(waiter) = waiter else {
            return Ok(Vec::new());
        };
        let mut ranks = Vec::with_capacity(machines.len());
        for shared in drive_all(&*waiter, &mut machines) {
            ranks.push(shared?);
        }
        let all: Vec<Rank> = (0..size).map(Rank).collect();
        let mut linkings = ranks
            .iter()
            .map(|shared| shared.linking(&all))
            .collect::<Result<Vec<Linking>>>()?;
        if let Some(first) = ranks.first() {
            drive_links(first, &mut linkings)?;
        }
        for (shared, linking) in ranks.iter().zip(linkings) {
            shared.keep(linking);
            shared.tell_lends();
        }
        Ok(ranks.into_iter().map(Self::new).collect())
    }
}

/// The graph of `ranks` ranks that would run on this host, each with all endpoints of the
/// transports: what `hcomm topo` shows without a job.
///
/// # Errors
/// If the host cannot be discovered or a device not be asked.
pub fn local_graph(ranks: u32, transports: &Transports, settings: &Settings) -> Result<RankGraph> {
    let endpoints = Endpoints::list(transports, settings)?.facts();
    let facts = (0..ranks)
        .map(|rank| {
            let mut facts = rank_facts(Rank(rank), rank, endpoints.clone())?;
            // Ranks of a job are processes of their own.
            facts.process.pid = facts.process.pid.wrapping_add(rank);
            facts.process.token = facts.process.token.wrapping_add(rank.into());
            Ok(facts)
        })
        .collect::<Result<_>>()?;
    Ok(RankGraph::build(facts)?)
}

/// Which transports the settings allow.
///
/// # Errors
/// `InvalidArgument` if `HCOMM_TRANSPORTS` is not understood.
pub fn allowed(settings: &Settings) -> Result<Allowed> {
    settings.transports().map_or(Ok(Allowed::All), |list| {
        list.parse().map_err(|error| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("HCOMM_TRANSPORTS=`{list}`: {error}"),
            )
        })
    })
}

#[derive(Clone, Copy, Debug)]
struct Who {
    rank: Rank,
    size: u32,
    local_rank: Option<u32>,
}

/// Start-up of one rank up to the step where channels are made.
struct Joining {
    who: Who,
    settings: Settings,
    /// What was found and is used.
    transport_names: String,
    endpoints: Option<Endpoints>,
    group: Option<Arc<Group>>,
    surroundings: Surroundings,
    listener: Option<MeshListener>,
    bootstrap: Option<Bootstrap>,
    step: Step,
    clock: Arc<dyn Waiter>,
    /// When each step from paths on was reached.
    reached: Vec<(Step, Nanos)>,
}

/// Start-up that takes longer after the list of ranks was there says where the time went; until
/// then bootstrap does.
const SLOW: Duration = Duration::from_secs(10);

/// Where the time went, from step to step up to `end`, if it was much.
fn slow_steps(reached: &[(Step, Nanos)], end: Nanos) -> Option<String> {
    let (_, began) = *reached.first()?;
    let whole = end.since(began);
    if whole <= SLOW {
        return None;
    }
    let ends = reached[1..].iter().map(|(_, at)| *at).chain([end]);
    let parts: Vec<String> = reached
        .iter()
        .zip(ends)
        .map(|((step, at), end)| {
            let name = match step {
                Step::Ready => "channels".to_owned(),
                step => step.to_string(),
            };
            format!("{name} {:.1} s", end.since(*at).as_secs_f64())
        })
        .collect();
    Some(format!(
        "start-up took {:.1} s after the list of ranks had come: {}",
        whole.as_secs_f64(),
        parts.join(", ")
    ))
}

impl Joining {
    /// Everything that needs no other rank.
    fn prepare(
        who: Who,
        settings: &Settings,
        transports: &Transports,
        surroundings: &Surroundings,
        group: Option<Arc<Group>>,
    ) -> Result<(Self, Arc<dyn Waiter>)> {
        // Until the others are known: polite, since they may need the cores to come here.
        let waiter = (surroundings.waiter)(WaitPolicy::for_load(usize::MAX, 1))?;
        let outside = surroundings.outside.clone();
        let cluster = settings.cluster()?;
        if let Some(cluster) = &cluster {
            cluster.check_size(who.size)?;
        }
        let joining = Self {
            who,
            settings: settings.clone().with_cluster(cluster),
            transport_names: names_of(transports),
            endpoints: Some(Endpoints::list(transports, settings)?),
            group,
            listener: Some(MeshListener::bind(&outside, settings)?),
            surroundings: surroundings.clone(),
            bootstrap: None,
            step: Step::Handshake,
            clock: Arc::clone(&waiter),
            reached: Vec::new(),
        };
        Ok((joining, waiter))
    }

    fn member(&self) -> Result<Member> {
        let Who {
            rank,
            size,
            local_rank,
        } = self.who;
        let host = this_host()?;
        let mut member = Member::new(rank, size, this_process(), &host.name, host.id.clone());
        member.local_rank = local_rank;
        member.settings = self.settings.to_agree_on();
        member.varying = vec![(
            "the list of transports".to_owned(),
            self.transport_names.clone(),
        )];
        member.mesh = self
            .listener
            .iter()
            .flat_map(|l| l.addresses().to_vec())
            .collect();
        let (facts, host_facts) = Facts {
            rank: rank_facts(
                rank,
                local_rank.unwrap_or(0),
                self.endpoints
                    .as_ref()
                    .map(Endpoints::facts)
                    .unwrap_or_default(),
            )?,
            pid_namespace: pid_namespace(),
            cores: Cores::here(),
            mapping_endpoint: self
                .endpoints
                .as_ref()
                .and_then(Endpoints::mapping_endpoint),
            tuning: self
                .settings
                .tuning()
                .filter(|_| rank == Rank(0))
                .map(Tuning::read),
        }
        .encode()?;
        member.facts = facts;
        member.host_facts = host_facts.into();
        tracing::debug!(%rank, bytes = member.facts.len(), of_host = member.host_facts.len(), "facts to tell");
        Ok(member)
    }

    fn begin(
        &mut self,
        waiter: &Arc<dyn Waiter>,
        bootstrap: impl FnOnce(Outside, Member, Duration, Nanos) -> Result<Bootstrap>,
    ) -> Result<()> {
        let member = self.member()?;
        self.bootstrap = Some(bootstrap(
            self.surroundings.outside.clone(),
            member,
            self.settings.connect_timeout(),
            waiter.now(),
        )?);
        Ok(())
    }

    fn start(
        mut self,
        waiter: &Arc<dyn Waiter>,
        bootstrap: impl FnOnce(Outside, Member, Duration, Nanos) -> Result<Bootstrap>,
    ) -> Result<Membership> {
        let rank = self.who.rank;
        let begun = self
            .begin(waiter, bootstrap)
            .and_then(|()| drive(&**waiter, &mut self));
        let shared = begun.map_err(|error| error.at_rank(rank))?;
        let membership = Membership::new(shared);
        if membership.size() <= EAGER_RANKS {
            let all: Vec<Rank> = (0..membership.size()).map(Rank).collect();
            if let Err(error) = membership.ensure_links(&all) {
                let error = error.at_rank(rank);
                membership.give_up(&error);
                membership.shared.linger();
                return Err(error);
            }
        }
        if let Some(line) = slow_steps(&self.reached, self.clock.now()) {
            tracing::warn!(%rank, size = membership.size(), "{line}");
        }
        Ok(membership)
    }

    fn reach(&mut self, step: Step) {
        if self.step != step {
            tracing::debug!(rank = %self.who.rank, %step, "start-up goes on");
            self.step = step;
            if step >= Step::Paths {
                self.reached.push((step, self.clock.now()));
            }
        }
    }

    /// Paths and resources: what follows from the roster without another message.
    fn settle(&mut self, roster: &Roster) -> Result<Arc<Shared>> {
        self.reach(Step::Paths);
        let facts = Facts::decode_all(roster.members())?;
        let graph = RankGraph::build(facts.iter().map(|facts| facts.rank.clone()).collect())?;
        let tuning = facts.first().and_then(|root| root.tuning.clone());
        let host_cores = cores::fewest(
            facts
                .iter()
                .map(|facts| (&facts.rank.host.id, &facts.cores)),
        );
        let Who { rank, size, .. } = self.who;
        let host = &facts[rank.index()].rank.host.id;
        let local = facts.iter().filter(|facts| facts.rank.host.id == *host);
        if let Some(path) = self.settings.tuning().filter(|_| rank != Rank(0))
            && tuning.as_ref().map(|tuning| &tuning.text) != Some(&Tuning::read(path).text)
        {
            tracing::info!(%rank, path, "HCOMM_TUNING is not what rank 0 has, which holds for all ranks");
        }
        let (ranks, cores) =
            cores::share(&facts[rank.index()].cores, local.map(|facts| &facts.cores));
        let policy = if self.settings.sleeping_waits() {
            WaitPolicy::ASLEEP
        } else {
            WaitPolicy::for_load(ranks, cores)
        };
        let waiter = (self.surroundings.waiter)(policy)?;
        tracing::debug!(%rank, size, ranks, cores, "topology known; ranks that share cores");

        self.reach(Step::Resources);
        let internal = |what: &str| Error::new(ErrorKind::Internal, format!("{what} taken twice"));
        let endpoints = self.endpoints.take().ok_or_else(|| internal("endpoints"))?;
        let listener = self
            .listener
            .take()
            .ok_or_else(|| internal("the listener"))?;
        let layout = Layout::new(size, self.settings.buffer_bytes())?;
        let bytes = usize::try_from(layout.bytes()).map_err(|_| {
            Error::new(
                ErrorKind::InvalidArgument,
                "HCOMM_BUFFER_BYTES exceeds the address space",
            )
        })?;
        let device = endpoints.memory_device()?;
        let region = device.allocate(bytes)?;
        let buffer = Slice::of(&region);
        let mesh = Arc::new(Mutex::new(Mesh::new(
            self.surroundings.outside.clone(),
            listener,
            roster,
            rank,
        )));
        let mapping = facts.iter().map(|facts| facts.mapping_endpoint).collect();
        let health = Arc::new(Health::new(
            rank,
            facts,
            Arc::clone(&mesh),
            Arc::clone(&waiter),
            self.group.clone(),
        ));
        let domain = Domain::new(
            Arc::clone(&waiter),
            Arc::clone(&health) as _,
            self.settings.exec_timeout(),
        );
        domain.attach(&device);
        let home = Home {
            rank,
            mesh: Arc::clone(&mesh),
            buffer,
            layout,
            outside: self.surroundings.outside.clone(),
            thread: Thread::new(&domain, Engine::Cpu, 0)?,
        };
        self.reach(Step::Ready);
        Ok(Arc::new(Shared {
            rank,
            allowed: allowed(&self.settings)?,
            settings: self.settings.clone(),
            graph,
            tuning,
            host_cores,
            mapping,
            maps_all: OnceLock::new(),
            own_lends: OnceLock::new(),
            lends_all: OnceLock::new(),
            endpoints,
            mesh,
            health,
            waiter,
            domain,
            home,
            group: self.group.clone(),
            links: Mutex::new(Links::default()),
            is_closed: AtomicBool::new(false),
            memories: Mutex::new(vec![TaggedMemory {
                tag: BUFFER_TAG.to_owned(),
                regions: vec![region],
            }]),
        }))
    }
}

impl Machine for Joining {
    type Output = Arc<Shared>;

    fn poll(&mut self, now: Nanos) -> Poll<Result<Arc<Shared>>> {
        let Some(bootstrap) = &mut self.bootstrap else {
            return Poll::Ready(Err(Error::new(
                ErrorKind::Internal,
                "start-up was not begun",
            )));
        };
        let polled = bootstrap.poll(now);
        let step = bootstrap.step();
        if !matches!(polled, Poll::Ready(Err(_))) {
            self.reach(step);
        }
        polled.map(|roster| roster.and_then(|roster| self.settle(&roster)))
    }

    fn interests<'a>(&'a self, wanted: &mut Vec<Interest<'a>>) {
        if let Some(bootstrap) = &self.bootstrap {
            bootstrap.interests(wanted);
        }
    }

    fn next_wake(&self) -> Deadline {
        self.bootstrap
            .as_ref()
            .map_or(Deadline::NEVER, Machine::next_wake)
    }
}

/// Name and version of each transport in use.
fn names_of(transports: &Transports) -> String {
    let mut names: Vec<String> = transports
        .used()
        .map(|plugin| format!("{} {}", plugin.name(), plugin.version()))
        .collect();
    names.sort_unstable();
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(" + ")
}

fn rank_facts(rank: Rank, local_rank: u32, endpoints: Vec<EndpointFacts>) -> Result<RankFacts> {
    Ok(RankFacts {
        rank,
        process: this_process(),
        host: this_host()?,
        local_rank,
        endpoints,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_steps_are_told_with_their_times() {
        let at = |seconds: u64| Nanos(seconds * 1_000_000_000);
        let reached = [
            (Step::Paths, at(5)),
            (Step::Resources, at(7)),
            (Step::Ready, at(8)),
        ];
        assert_eq!(slow_steps(&reached, at(15)), None);
        assert_eq!(
            slow_steps(&reached, at(17)).unwrap(),
            "start-up took 12.0 s after the list of ranks had come: paths 2.0 s, resources 1.0 s, channels 9.0 s"
        );
    }
}
