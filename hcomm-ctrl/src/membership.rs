//! Membership: a rank's place in a communicator, and everything it owns there.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use hcomm_data::{Domain, Engine, Peers as _, Slice, Thread};
use hcomm_topo::{Allowed, RankGraph};
use hcomm_transport::{Device, Interest, Paused, Phase, Plugin, Region, Waiter, Watch};
use hcomm_types::{Deadline, Error, ErrorKind, Nanos, Rank, Result};

use crate::calls::Call;
use crate::cluster::Cluster;
use crate::endpoint::Endpoints;
use crate::group::Group;
use crate::health::{Blocking, Health};
use crate::layout::Layout;
use crate::link_setup::{Home, LinkSetup, LinkStep, OFFER, PeerLink};
use crate::mapped::maps_all;
use crate::mesh::{LinkState, Mesh};
use crate::settings::Settings;
use crate::tuning::Tuning;

/// A rank's place in a communicator: who the others are, how they are reached, and the memory,
/// threads and channels that belong to it.
///
/// `Send`, not `Sync`: it may move to another OS thread, and one OS thread at a time uses it.
/// Dropping it leaves the communicator; [`close`](Self::close) does the same and reports.
pub struct Membership {
    pub(crate) shared: Arc<Shared>,
    /// One OS thread at a time.
    _not_sync: PhantomData<Cell<()>>,
}

/// How long a failed link waits for the peer's own words about it.
const NEWS: Duration = Duration::from_millis(200);

/// How long a rank that failed to start stays to say why.
const LAST_WORDS: Duration = Duration::from_secs(1);

pub(crate) struct Shared {
    pub(crate) rank: Rank,
    pub(crate) settings: Settings,
    pub(crate) graph: RankGraph,
    /// The tuning file of rank 0.
    pub(crate) tuning: Option<Tuning>,
    /// Cores that the ranks of a host may use together, on the host where that is least.
    pub(crate) host_cores: u32,
    /// Of each rank, the endpoint that its buffer is allocated on, if that one maps memory.
    pub(crate) mapping: Box<[Option<u32>]>,
    pub(crate) maps_all: OnceLock<bool>,
    /// Whether this rank can read memory that others lend, once it has told them; whether all can.
    pub(crate) own_lends: OnceLock<bool>,
    pub(crate) lends_all: OnceLock<bool>,
    pub(crate) allowed: Allowed,
    pub(crate) endpoints: Endpoints,
    pub(crate) mesh: Arc<Mutex<Mesh>>,
    pub(crate) health: Arc<Health>,
    pub(crate) waiter: Arc<dyn Waiter>,
    pub(crate) domain: Domain,
    pub(crate) home: Home,
    pub(crate) group: Option<Arc<Group>>,
    pub(crate) links: Mutex<Links>,
    /// Set by the membership, of which there is one at a time.
    pub(crate) is_closed: AtomicBool,
    pub(crate) memories: Mutex<Vec<TaggedMemory>>,
}

/// Memory that channels tell the peer of.
#[derive(Debug)]
pub(crate) struct TaggedMemory {
    pub(crate) tag: String,
    /// The region itself, then the same memory as other devices know it.
    pub(crate) regions: Vec<Region>,
}

impl TaggedMemory {
    /// The memory as a device knows it: what another device has allocated is registered with this
    /// one, too.
    fn on(&mut self, device: &Device) -> Result<Region> {
        let known = self
            .regions
            .iter()
            .find(|region| region.device().is_same(device));
        if let Some(region) = known {
            return Ok(region.clone());
        }
        let region = device.register_region(&self.regions[0])?;
        self.regions.push(region.clone());
        Ok(region)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Links {
    /// Channel 0 of each pair that has one.
    ready: BTreeMap<Rank, PeerLink>,
    /// Channels made so far with each peer.
    made: HashMap<Rank, u32>,
}

impl Membership {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            _not_sync: PhantomData,
        }
    }

    /// This rank's number.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.shared.rank
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.shared.graph.size()
    }

    /// The rank graph, the same on all ranks.
    #[must_use]
    pub fn graph(&self) -> &RankGraph {
        &self.shared.graph
    }

    /// What a file says about the cluster (`HCOMM_TOPOLOGY`, or a rank table), if one was given: the
    /// same on all ranks.
    #[must_use]
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.shared.settings.known_cluster()
    }

    /// The tuning file of rank 0, if it has one; not read yet.
    #[doc(hidden)] // for the layer above
    #[must_use]
    pub fn tuning(&self) -> Option<&Tuning> {
        self.shared.tuning.as_ref()
    }

    /// Cores that the ranks of a host may use together, on the host where that is least. The same
    /// answer on all ranks.
    #[doc(hidden)] // for the layer above
    #[must_use]
    pub fn host_cores(&self) -> u32 {
        self.shared.host_cores
    }

    /// The settings it was made with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// A new in-order queue with `notifies` notifies, driven by its caller.
    ///
    /// # Errors
    /// `LimitReached` beyond 40 threads or 640 notifies.
    pub fn thread(&self, notifies: usize) -> Result<Thread> {
        self.thread_on(Engine::Cpu, notifies)
    }

    /// A new in-order queue with `notifies` notifies, driven by its caller or by a worker.
    ///
    /// # Errors
    /// `LimitReached` beyond 40 threads or 640 notifies; those of a worker, see
    /// [`Thread::new`](hcomm_data::Thread::new).
    pub fn thread_on(&self, engine: Engine, notifies: usize) -> Result<Thread> {
        self.check_usable()
            .and_then(|()| Thread::new(&self.shared.domain, engine, notifies))
            .map_err(|error| error.at_rank(self.rank()))
    }

    /// Whether a thread belongs to this communicator.
    #[doc(hidden)] // for the layer above
    #[must_use]
    pub fn owns(&self, thread: &Thread) -> bool {
        thread.belongs_to(&self.shared.domain)
    }

    /// Allocates zeroed memory that peers reach in the best way the links have, and registers it
    /// under a tag. Channels made from now on tell the peer of it.
    ///
    /// # Errors
    /// `InvalidArgument` for a tag that is in use; `LimitReached` with need and limit.
    pub fn allocate(&self, tag: &str, bytes: usize) -> Result<Slice> {
        let region = self.device()?.allocate(bytes)?;
        self.remember(tag, region)
    }

    /// Puts a region that a device has registered under a tag. Channels made from now on tell the
    /// peer of it. (Registering memory that the user brings is unsafe:
    /// [`Device::register`](hcomm_transport::Device::register), on [`Membership::device`].)
    ///
    /// # Errors
    /// `InvalidArgument` for a tag that is in use.
    pub fn remember(&self, tag: &str, region: Region) -> Result<Slice> {
        self.check_usable()?;
        let mut memories = lock(&self.shared.memories);
        if memories.iter().any(|memory| memory.tag == tag) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("there is memory with the tag `{tag}` already"),
            )
            .at_rank(self.rank())
            .hint("forget it first, or take another tag"));
        }
        let slice = Slice::of(&region);
        memories.push(TaggedMemory {
            tag: tag.to_owned(),
            regions: vec![region],
        });
        Ok(slice)
    }

    /// Takes memory out of what later channels tell the peer of. It ends with the last slice of it.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such tag.
    pub fn forget(&self, tag: &str) -> Result<()> {
        self.check_usable()?;
        let mut memories = lock(&self.shared.memories);
        let before = memories.len();
        memories.retain(|memory| memory.tag != tag);
        if memories.len() == before {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("there is no memory with the tag `{tag}`"),
            )
            .at_rank(self.rank()));
        }
        Ok(())
    }

    /// The device on which memory is allocated.
    ///
    /// # Errors
    /// `Unsupported` if no transport in use allocates memory.
    pub fn device(&self) -> Result<Device> {
        self.check_usable()?;
        self.shared.endpoints.memory_device()
    }

    /// Makes one more channel to a peer, with `notifies` notifies for each side to wait on. The
    /// peer calls it, too, at the same place in the order of its channels with this rank.
    ///
    /// # Errors
    /// `Timeout` if the peer does not come, `PeerLost`, `Mismatch`, `LinkDown`; the error says how
    /// far the handshake had come.
    pub fn open_channel(&self, peer: Rank, notifies: u32) -> Result<PeerLink> {
        self.check_usable()
            .and_then(|()| self.ensure_links(&[peer]))
            .and_then(|()| self.shared.set_up(peer, notifies))
            .and_then(|setup| {
                let mut linking = Linking::new(&self.shared, vec![setup]);
                self.shared.finish(&mut linking)?;
                self.shared.keep(linking).pop().ok_or_else(|| {
                    Error::new(ErrorKind::Internal, "a set-up ended without a channel")
                })
            })
            .map_err(|error| error.in_call("open_channel").at_rank(self.rank()))
    }

    /// Makes the communicator's own channel to each of these peers that has none yet. They do the
    /// same.
    ///
    /// # Errors
    /// As [`open_channel`](Self::open_channel).
    pub fn ensure_links(&self, peers: &[Rank]) -> Result<()> {
        let mut linking = self.shared.linking(peers)?;
        if linking.is_done() {
            return Ok(());
        }
        self.shared.finish(&mut linking)?;
        self.shared.keep(linking);
        self.shared.tell_lends();
        Ok(())
    }

    /// The communicator's own channel to a peer.
    ///
    /// # Errors
    /// `InvalidArgument` if it was not made yet.
    pub fn link(&self, peer: Rank) -> Result<PeerLink> {
        self.shared.link(peer)
    }

    /// The communicator's own buffer on this rank.
    #[must_use]
    pub fn buffer(&self) -> &Slice {
        &self.shared.home.buffer
    }

    /// How the communicator buffers are divided.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.shared.home.layout
    }

    /// Whether every rank maps the communicator buffer of every other one. The same answer on all
    /// ranks, from what they told each other at start-up.
    #[doc(hidden)] // for the layer above
    #[must_use]
    pub fn maps_all(&self) -> bool {
        self.shared.has_mapped_all()
    }

    /// Links of the channels made so far, in words: protocol and transport.
    #[must_use]
    pub fn links_in_use(&self) -> Vec<String> {
        let links = lock(&self.shared.links);
        let mut names: Vec<String> = links
            .ready
            .values()
            .map(|link| link.link.protocol.to_string())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Plugins of the channels made so far.
    #[must_use]
    pub fn transports_in_use(&self) -> Vec<&'static Plugin> {
        let links = lock(&self.shared.links);
        let mut plugins: Vec<&'static Plugin> = links
            .ready
            .values()
            .map(|l| l.channel.transport().device().info().plugin)
            .collect();
        plugins.sort_by_key(|plugin| plugin.name());
        plugins.dedup_by_key(|plugin| plugin.name());
        plugins
    }

    /// Whether calls still make sense.
    ///
    /// # Errors
    /// `Closed`, or the first cause if the communicator was given up.
    #[doc(hidden)] // for the layer above
    pub fn check_usable(&self) -> Result<()> {
        if self.shared.is_closed.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Closed, "the communicator was closed"));
        }
        self.shared.domain.aborted().map_or(Ok(()), Err)
    }

    /// Marks a blocking call for as long as the guard lives: the waits of this OS thread then also
    /// look whether they wait for ranks that it holds itself.
    #[doc(hidden)] // for the layer above
    #[must_use]
    pub fn blocking(&self) -> Blocking {
        self.shared.health.blocking()
    }

    /// Notes that this OS thread uses the rank.
    #[doc(hidden)] // for the layer above
    pub fn used_here(&self) {
        if let Some(group) = &self.shared.group {
            group.used_here(self.rank());
        }
    }

    /// Notes that the rank goes on without an OS thread of its user: a worker drives it.
    #[doc(hidden)] // for the layer above
    pub fn used_by_worker(&self) {
        if let Some(group) = &self.shared.group {
            group.used_by_worker(self.rank());
        }
    }

    /// Ends everything that waits on this communicator, on this rank and on the others, from any
    /// OS thread.
    #[must_use]
    pub fn aborter(&self) -> Aborter {
        Aborter(Arc::downgrade(&self.shared))
    }

    /// Gives the communicator up because of an error: every later call returns it, and the peers
    /// are told whose fault it is.
    #[doc(hidden)] // for the layer above
    pub fn give_up(&self, error: &Error) {
        self.shared.give_up(error);
    }

    /// Notes a collective call, with a number larger than all before.
    #[doc(hidden)] // for the layer above
    #[inline]
    pub fn note_call(&self, number: u64, words: [u64; 3]) {
        self.shared.health.calls.note(number, words);
    }

    /// How calls are put into words.
    #[doc(hidden)] // for the layer above
    pub fn describe_calls_by(&self, describe: fn([u64; 3]) -> String) {
        self.shared.health.calls.describe_by(describe);
    }

    /// Completes the error of a collective in which ranks do not agree by what each of them calls.
    /// Waits a short time for those that have not said so yet.
    #[doc(hidden)] // for the layer above
    #[must_use]
    pub fn complete_mismatch(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::Mismatch {
            self.shared.complete_mismatch(error)
        } else {
            error
        }
    }

    /// Waits until nothing is left on any thread of this communicator. `None` waits as long as the
    /// settings say.
    ///
    /// # Errors
    /// What was still going on and failed.
    pub fn synchronize(&self, timeout: Option<Duration>) -> Result<()> {
        self.shared
            .domain
            .synchronize(timeout)
            .map_err(|error| error.at_rank(self.rank()))
    }

    /// Leaves the communicator: the peers are told, channels and memory end. A second close is an
    /// error.
    ///
    /// # Errors
    /// `Closed` if it was closed before.
    pub fn close(&self) -> Result<()> {
        if self.shared.is_closed.swap(true, Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Closed, "closed before").at_rank(self.rank()));
        }
        self.shared.deliver();
        self.shared.leave();
        Ok(())
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if !self.shared.is_closed.swap(true, Ordering::Relaxed) {
            if std::thread::panicking() {
                let what = format!("rank {} panicked", self.rank());
                self.shared
                    .give_up(&Error::new(ErrorKind::Aborted, what).at_rank(self.rank()));
            }
            self.shared.leave();
        }
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Membership(rank {} of {})", self.rank(), self.size())
    }
}

/// Ends a communicator's waits from any OS thread. It keeps nothing of the communicator there.
///
/// `Send` and `Sync`; a clone does the same.
#[derive(Clone)]
pub struct Aborter(Weak<Shared>);

impl Aborter {
    /// Ends them at once, also those that sleep: they, and every later call on this rank, fail with
    /// `Aborted` and this reason. The peers are told; their errors name this rank and the reason.
    /// Does nothing when the communicator is gone.
    pub fn abort(&self, reason: &str) {
        if let Some(shared) = self.0.upgrade() {
            let error = Error::new(ErrorKind::Aborted, reason).at_rank(shared.rank);
            shared.give_up(&error);
        }
    }
}

impl fmt::Debug for Aborter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.upgrade() {
            Some(shared) => write!(f, "Aborter(rank {})", shared.rank),
            None => f.write_str("Aborter(gone)"),
        }
    }
}

impl Shared {
    /// Set-ups for those of `peers` that have no channel yet.
    pub(crate) fn linking(self: &Arc<Self>, peers: &[Rank]) -> Result<Linking> {
        let missing: Vec<Rank> = {
            if self.is_closed.load(Ordering::Relaxed) {
                return Err(
                    Error::new(ErrorKind::Closed, "the communicator was closed").at_rank(self.rank)
                );
            }
            let links = lock(&self.links);
            let mut peers = peers.to_vec();
            peers.retain(|peer| *peer != self.rank && !links.ready.contains_key(peer));
            peers
        };
        // All control links first: whoever fails below can then tell every peer why.
        for &peer in &missing {
            lock(&self.mesh).request(peer)?;
        }
        let setups = missing
            .into_iter()
            .map(|peer| self.set_up(peer, 0))
            .collect::<Result<_>>()?;
        Ok(Linking::new(self, setups))
    }

    /// Drives one rank's set-ups to their end. A failure ends the communicator: the peers are in
    /// the middle of the same set-ups, and both sides would count their channels differently.
    fn finish(&self, linking: &mut Linking) -> Result<()> {
        drive_links(self, std::slice::from_mut(linking)).inspect_err(|error| {
            // The reason first: ends that vanish without a word look like a fault of this rank.
            self.give_up(error);
            self.linger();
        })
    }

    /// Keeps the communicator's own channels; returns the others.
    pub(crate) fn keep(&self, linking: Linking) -> Vec<PeerLink> {
        let mut links = lock(&self.links);
        let mut others = Vec::new();
        for (number, link) in linking.done {
            tracing::debug!(rank = %self.rank, peer = %link.peer, link = %link.link.protocol, number, "channel ready");
            if number == 0 {
                links.ready.insert(link.peer, link);
            } else {
                others.push(link);
            }
        }
        others
    }

    fn set_up(&self, peer: Rank, notifies: u32) -> Result<LinkSetup> {
        if peer == self.rank || peer.0 >= self.graph.size() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "no channel from rank {} to rank {peer} of {}",
                    self.rank,
                    self.graph.size()
                ),
            ));
        }
        let choice = self.graph.choose(self.rank, peer, &self.allowed)?;
        tracing::debug!(rank = %self.rank, %peer, why = %choice.why, "link chosen");
        let device = self.endpoints.device(choice.link.from_endpoint as usize)?;
        let number = {
            let mut links = lock(&self.links);
            let made = links.made.entry(peer).or_insert(0);
            *made += 1;
            *made - 1
        };
        lock(&self.mesh).request(peer)?;
        let memories = self.memories_on(&device)?;
        LinkSetup::new(
            self.home.clone(),
            choice.link,
            &device,
            number,
            notifies,
            &memories,
        )
    }

    /// The communicator's own channel to a peer.
    pub(crate) fn link(&self, peer: Rank) -> Result<PeerLink> {
        lock(&self.links).ready.get(&peer).cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("no channel to rank {peer} yet"),
            )
            .hint("call `ensure_links` on both ranks")
        })
    }

    /// See [`Membership::maps_all`].
    pub(crate) fn has_mapped_all(&self) -> bool {
        *self
            .maps_all
            .get_or_init(|| maps_all(&self.graph, &self.mapping, &self.allowed))
    }

    /// All memory as the device of a link knows it: what another device has allocated is
    /// registered with this one, too.
    fn memories_on(&self, device: &Device) -> Result<Vec<(String, Region)>> {
        lock(&self.memories)
            .iter_mut()
            .map(|memory| Ok((memory.tag.clone(), memory.on(device)?)))
            .collect()
    }

    /// The memory with this tag as a device knows it.
    pub(crate) fn memory_on(&self, tag: &str, device: &Device) -> Result<Region> {
        lock(&self.memories)
            .iter_mut()
            .find(|memory| memory.tag == tag)
            .ok_or_else(|| Error::new(ErrorKind::Internal, format!("no memory `{tag}`")))?
            .on(device)
    }

    fn give_up(&self, error: &Error) {
        self.domain.abort(error.clone());
        lock(&self.mesh).abort(error.kind(), error.culprits(), error.detail());
    }

    fn complete_mismatch(&self, error: Error) -> Error {
        let calls = &self.health.calls;
        let Some(mine) = calls.latest() else {
            return error;
        };
        lock(&self.mesh).tell_calls(&calls.recent());
        let until = Deadline::after(self.waiter.now(), NEWS);
        let mut phase = Phase::default();
        let theirs = loop {
            let mut mesh = lock(&self.mesh);
            let now = self.waiter.now();
            let heard = mesh.poll(now);
            let theirs: Vec<_> = mesh
                .calls()
                // Who has left says no more.
                .filter(|(peer, calls)| {
                    let state = mesh.state(*peer);
                    let is_gone = matches!(state, LinkState::Closed | LinkState::Lost { .. });
                    !calls.is_empty() || !is_gone
                })
                .map(|(peer, calls)| (peer, calls.to_vec()))
                .collect();
            let has_come = |call: &Call| call.number >= mine.number;
            let all = theirs
                .iter()
                .all(|(_, calls)| calls.last().is_some_and(has_come));
            if all || heard.is_err() || until.passed(now) {
                break theirs;
            }
            self.pause_for_news(&mesh, &mut phase, until);
        };
        calls.list(self.rank, &theirs, error)
    }

    /// Stays until every control link on its way is up and has carried what was said, at most for
    /// [`LAST_WORDS`]: a rank that gives up while the others still connect would otherwise look
    /// like the one that was lost.
    pub(crate) fn linger(&self) {
        let until = Deadline::after(self.waiter.now(), LAST_WORDS);
        let mut phase = Phase::default();
        loop {
            let mut mesh = lock(&self.mesh);
            let now = self.waiter.now();
            if mesh.poll(now).is_err() || mesh.is_settled() || until.passed(now) {
                return;
            }
            self.pause_for_news(&mesh, &mut phase, until);
        }
    }

    /// Waits until there may be something new on the control links.
    fn pause_for_news(&self, mesh: &Mesh, phase: &mut Phase, until: Deadline) {
        let mut interests = Vec::new();
        mesh.interests(&mut interests);
        self.waiter.pause(
            phase,
            &mut Watch {
                until: until.earlier(mesh.next_wake()),
                interests: &interests,
                devices: &[],
                look: &mut || false,
            },
        );
    }

    /// Waits until there may be something new on the control links or the devices, and after a sleep
    /// looks whether the others live.
    pub(crate) fn pause_for_peers(&self, phase: &mut Phase, until: Deadline) -> Result<()> {
        let devices = self.endpoints.open();
        let mesh = lock(&self.mesh);
        let mut interests = Vec::new();
        mesh.interests(&mut interests);
        let watched = devices.iter().filter_map(|device| device.wake_fd());
        interests.extend(watched.map(|fd| Interest {
            fd,
            readable: true,
            writable: false,
        }));
        let paused = self.waiter.pause(
            phase,
            &mut Watch {
                until: until.earlier(mesh.next_wake()),
                interests: &interests,
                devices: &devices,
                look: &mut || self.domain.aborted().is_some(),
            },
        );
        drop(interests);
        drop(mesh);
        if paused == Paused::Slept {
            self.health.check()?;
        }
        Ok(())
    }

    /// Stays until what this rank has posted has arrived or its link has failed: a link that carries
    /// messages itself would drop those that are on their way with its end.
    fn deliver(&self) {
        let channels: Vec<_> = lock(&self.links)
            .ready
            .values()
            .map(|link| link.channel.transport().clone())
            .collect();
        let mut devices: Vec<Device> = Vec::new();
        for device in channels.iter().map(hcomm_transport::Channel::device) {
            if !devices.iter().any(|known| known.is_same(device)) {
                devices.push(device.clone());
            }
        }
        let until = Deadline::after(self.waiter.now(), self.settings.exec_timeout());
        let mut phase = Phase::default();
        while channels
            .iter()
            .any(|channel| matches!(channel.flush(), Ok(false)))
        {
            if self.domain.aborted().is_some() || until.passed(self.waiter.now()) {
                return;
            }
            // A device that fails is seen by the next flush.
            let moved = devices.iter().fold(false, |moved, device| {
                device.progress().unwrap_or(false) | moved
            });
            if moved {
                phase.restart();
                continue;
            }
            self.waiter.pause(
                &mut phase,
                &mut Watch {
                    until,
                    interests: &[],
                    devices: &devices,
                    look: &mut || false,
                },
            );
        }
    }

    fn leave(&self) {
        self.health.close();
        let mut mesh = lock(&self.mesh);
        // Whoever was aborted from another OS thread may come here before that one has told the
        // peers, and a goodbye would hide it.
        if let Some(cause) = self.domain.aborted() {
            mesh.abort(cause.kind(), cause.culprits(), cause.detail());
        }
        mesh.close();
        drop(mesh);
        // Whatever is still queued on the user's threads would wait for nobody.
        self.domain
            .abort(Error::new(ErrorKind::Closed, "the communicator was closed").at_rank(self.rank));
        self.domain.join_workers();
        let links = std::mem::take(&mut lock(&self.links).ready);
        drop(links);
        lock(&self.memories).clear();
    }
}

/// The set-ups of one rank that go on together.
pub(crate) struct Linking {
    shared: Arc<Shared>,
    setups: Vec<LinkSetup>,
    /// Number of the channel of its pair, and the channel.
    done: Vec<(u32, PeerLink)>,
    /// A set-up failed; until then the peer may say why.
    failed: Option<(Error, Deadline)>,
    deadline: Deadline,
    began: Nanos,
}

impl Linking {
    pub(crate) fn new(shared: &Arc<Shared>, setups: Vec<LinkSetup>) -> Self {
        let began = shared.waiter.now();
        Self {
            deadline: Deadline::after(began, shared.settings.connect_timeout()),
            began,
            shared: Arc::clone(shared),
            setups,
            done: Vec::new(),
            failed: None,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.setups.is_empty()
    }

    fn next_wake(&self) -> Deadline {
        self.failed
            .as_ref()
            .map_or(self.deadline, |(_, until)| self.deadline.earlier(*until))
    }

    /// Moves all set-ups on; whether all are done.
    fn poll(&mut self) -> Result<bool> {
        if let Some(cause) = self.shared.domain.aborted() {
            return Err(cause);
        }
        let now = self.shared.waiter.now();
        lock(&self.shared.mesh).poll(now)?;
        for device in self.shared.endpoints.open() {
            device.progress()?;
        }
        // What this OS thread has queued, on whatever communicator: the peer may be waiting for
        // that before it comes here.
        self.shared.home.thread.drive()?;
        self.answer()?;
        let mut at = 0;
        while at < self.setups.len() {
            match self.setups[at].poll() {
                Poll::Pending => at += 1,
                Poll::Ready(link) => {
                    let number = self.setups.swap_remove(at).number();
                    match link {
                        Ok(link) => self.done.push((number, link)),
                        Err(error) if error.kind() == ErrorKind::InvalidArgument => {
                            return Err(error);
                        }
                        Err(error) => {
                            let until = Deadline::after(now, NEWS);
                            self.failed.get_or_insert((error, until));
                        }
                    }
                }
            }
        }
        if let Some((error, until)) = &self.failed {
            // The control plane may know the cause behind it, or hear of it shortly.
            self.shared.health.check()?;
            if until.passed(now) {
                return Err(error.clone());
            }
            return Ok(false);
        }
        // What was queued last (credits, offers) should not wait for the next look.
        lock(&self.shared.mesh).poll(now)?;
        if !self.setups.is_empty() && self.deadline.passed(now) {
            return Err(self.late(now));
        }
        Ok(self.setups.is_empty())
    }

    /// Joins set-ups that peers have begun and this rank has not: they may have to be done before
    /// the peer this rank waits for comes to its own side.
    fn answer(&mut self) -> Result<()> {
        let begun: Vec<Rank> = {
            let mesh = lock(&self.shared.mesh);
            let links = lock(&self.shared.links);
            mesh.linked()
                .filter(|&peer| mesh.waiting(peer) == Some(OFFER))
                .filter(|peer| !links.made.contains_key(peer))
                .collect()
        };
        for peer in begun {
            let setup = self.shared.set_up(peer, 0)?;
            self.setups.push(setup);
        }
        Ok(())
    }

    fn late(&self, now: Nanos) -> Error {
        let mesh = lock(&self.shared.mesh);
        let waits: Vec<String> = self
            .setups
            .iter()
            .map(|setup| {
                let peer = setup.peer();
                let what = match setup.step() {
                    LinkStep::Created | LinkStep::Exchanging => match mesh.state(peer) {
                        LinkState::Up => "has not offered its end".to_owned(),
                        _ => mesh.describe(peer, now),
                    },
                    LinkStep::Connecting => "does not connect".to_owned(),
                    LinkStep::Importing => "does not show its memory".to_owned(),
                    LinkStep::Probing | LinkStep::Ready => "has not answered the probe".to_owned(),
                };
                format!("{}: {what}", self.shared.health.describe(peer))
            })
            .collect();
        drop(mesh);
        let error = Error::new(ErrorKind::Timeout, waits.join("; "))
            .after(now.since(self.began))
            .hint("does that rank make the same calls? The limit is HCOMM_CONNECT_TIMEOUT");
        self.setups
            .iter()
            .fold(error, |error, setup| error.blame_rank(setup.peer()))
    }
}

/// Drives the set-ups of ranks of this OS thread together until all are done. The first failure
/// ends it.
pub(crate) fn drive_links(one: &Shared, linkings: &mut [Linking]) -> Result<()> {
    let waiter = Arc::clone(&one.waiter);
    let mut phase = Phase::default();
    loop {
        let mut all = true;
        for linking in linkings.iter_mut() {
            all &= linking.poll()?;
        }
        if all {
            return Ok(());
        }
        let devices: Vec<_> = linkings
            .iter()
            .flat_map(|l| l.shared.endpoints.open())
            .collect();
        let meshes: Vec<MutexGuard<'_, Mesh>> = linkings
            .iter()
            .map(|linking| lock(&linking.shared.mesh))
            .collect();
        let mut interests = Vec::new();
        for mesh in &meshes {
            mesh.interests(&mut interests);
        }
        interests.extend(
            devices
                .iter()
                .filter_map(|device| device.wake_fd())
                .map(|fd| Interest {
                    fd,
                    readable: true,
                    writable: false,
                }),
        );
        let until = linkings
            .iter()
            .map(Linking::next_wake)
            .chain(meshes.iter().map(|mesh| mesh.next_wake()))
            .fold(Deadline::NEVER, Deadline::earlier);
        let setups: Vec<&LinkSetup> = linkings.iter().flat_map(|l| &l.setups).collect();
        let paused = waiter.pause(
            &mut phase,
            &mut Watch {
                until,
                interests: &interests,
                devices: &devices,
                look: &mut || setups.iter().any(|setup| setup.has_news()),
            },
        );
        drop(interests);
        drop(meshes);
        if paused == Paused::Slept {
            for linking in linkings.iter() {
                linking.shared.health.check()?;
            }
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
