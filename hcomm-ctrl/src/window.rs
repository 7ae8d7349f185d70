//! Symmetric windows: memory of one size on every rank, which every rank knows.
//!
//! Each rank allocates its part and tells all others of it, or why it could not; so everyone sees
//! the same answers and comes to the same verdict. Then each imports the others' memory, says so,
//! and waits until all have: whoever returns may leave its devices alone.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::task::Poll;

use hcomm_data::{Peers as _, RemoteSlice, Slice};
use hcomm_transport::{Importing, Phase};
use hcomm_types::{Deadline, Error, ErrorKind, Nanos, Rank, Result};
use serde::{Deserialize, Serialize};

use crate::link_setup::PeerLink;
use crate::membership::{Membership, Shared, lock};
use crate::mesh::LinkState;

/// Kind of the control message that carries an [`Offer`].
const WINDOW: u16 = 2;

/// Kind of the control message that says that all memory was imported.
const WINDOW_READY: u16 = 3;

/// Symmetric memory: as many bytes on every rank, all of them known to all.
///
/// A part of the peer's memory, from [`of`](Self::of), is the target or source of transfers on any
/// channel to that peer where the link maps it, and otherwise on the communicator's own channel
/// ([`Membership::link`]). Where the link maps it, it also has an address, and is taken by
/// [`Thread::copy`](hcomm_data::Thread::copy) and [`Thread::reduce`](hcomm_data::Thread::reduce).
///
/// The memory is zeroed at the begin, and is freed with the window and all slices of it. Windows
/// are local to drop: a peer may do so earlier or later.
pub struct Window {
    shared: Weak<Shared>,
    rank: Rank,
    name: String,
    local: Slice,
    /// By rank; none for this rank.
    peers: Vec<Option<RemoteSlice>>,
}

impl Membership {
    /// Makes a window: `bytes` bytes on every rank. A collective call: every rank makes the same
    /// windows in the same order, each on an OS thread of its own. Returns when all ranks can
    /// reach all memory. The name is the memory's tag, as of [`allocate`](Self::allocate).
    ///
    /// # Errors
    /// `Mismatch` on every rank if names or sizes differ, with ranks and sizes, and the error of
    /// a rank that cannot allocate on every rank, too; the communicator goes on after these.
    /// `Timeout` with the ranks that have not called, `PeerLost`, `Aborted`, `WouldDeadlock`: as
    /// for collectives.
    pub fn window(&self, name: &str, bytes: usize) -> Result<Window> {
        self.check_usable()
            .and_then(|()| {
                let all: Vec<Rank> = (0..self.size()).map(Rank).collect();
                self.ensure_links(&all)
            })
            .and_then(|()| self.make_window(name, bytes))
            .map_err(|error| error.in_call("window").at_rank(self.rank()))
    }

    fn make_window(&self, name: &str, bytes: usize) -> Result<Window> {
        let _blocking = self.blocking();
        let local = self.allocate(name, bytes);
        let is_ours = local.is_ok();
        let made = Making::begin(&self.shared, name, bytes, local)
            .and_then(|mut making| {
                making.finish()?;
                Ok(making)
            })
            .inspect_err(|error| {
                // The others are in the middle of it.
                self.give_up(error);
                self.shared.linger();
            })?;
        match made.judge() {
            Ok(local) => Ok(Window {
                shared: Arc::downgrade(&self.shared),
                rank: self.rank(),
                name: name.to_owned(),
                local,
                peers: made.imported(),
            }),
            Err(error) => {
                if is_ours {
                    self.forget(name)?;
                }
                Err(error)
            }
        }
    }
}

impl Window {
    /// The name it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes on each rank.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.local.bytes()
    }

    /// This rank's memory.
    #[must_use]
    pub const fn local(&self) -> &Slice {
        &self.local
    }

    /// The memory of another rank.
    ///
    /// # Errors
    /// `InvalidArgument` for this rank itself, or if there is no such rank.
    pub fn of(&self, rank: Rank) -> Result<&RemoteSlice> {
        match self.peers.get(rank.index()) {
            Some(Some(slice)) => Ok(slice),
            Some(None) => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("rank {rank} is this rank itself"),
            )
            .hint("its own memory is `local`")),
            None => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("no rank {rank}: the window has {}", self.peers.len()),
            )),
        }
        .map_err(|error| error.at_rank(self.rank))
    }

    /// Where a rank's memory, also this rank's own, is mapped here; `None` where the link cannot
    /// map it, or if there is no such rank. Valid as long as the window. Peers may write there at
    /// any time: make no reference to it.
    #[must_use]
    pub fn address_of(&self, rank: Rank) -> Option<NonNull<u8>> {
        match self.peers.get(rank.index())? {
            Some(slice) => slice.address(),
            None => Some(self.local.region().address()),
        }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Window(`{}`, {} bytes on each of {} ranks)",
            self.name,
            self.bytes(),
            self.peers.len()
        )
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            let ours = self.local.region();
            lock(&shared.memories).retain(|memory| !memory.regions[0].is_same(ours));
        }
    }
}

/// What a rank tells every other one.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Offer {
    name: String,
    bytes: u64,
    /// What the receiver imports; empty if there is nothing.
    blob: Vec<u8>,
    /// Why there is nothing: the kind, and the words.
    failure: Option<(u32, String)>,
}

/// A window on its way.
struct Making<'a> {
    shared: &'a Arc<Shared>,
    name: &'a str,
    bytes: usize,
    local: Result<Slice>,
    peers: BTreeMap<Rank, Peer>,
    began: Nanos,
    deadline: Deadline,
}

struct Peer {
    link: PeerLink,
    offer: Option<Offer>,
    importing: Option<Importing>,
    imported: Option<RemoteSlice>,
    ready: bool,
}

impl<'a> Making<'a> {
    /// Tells all others.
    fn begin(
        shared: &'a Arc<Shared>,
        name: &'a str,
        bytes: usize,
        local: Result<Slice>,
    ) -> Result<Self> {
        let began = shared.waiter.now();
        let mut making = Self {
            shared,
            name,
            bytes,
            local,
            peers: BTreeMap::new(),
            began,
            deadline: Deadline::after(began, shared.settings.connect_timeout()),
        };
        for rank in (0..shared.graph.size()).map(Rank) {
            if rank == shared.rank {
                continue;
            }
            let link = shared.link(rank)?;
            let mut offer = Offer {
                name: name.to_owned(),
                bytes: bytes as u64,
                blob: Vec::new(),
                failure: None,
            };
            match &making.local {
                Ok(_) => {
                    let device = link.channel.transport().device();
                    offer.blob = shared.memory_on(name, device)?.export()?;
                }
                Err(error) => {
                    offer.failure = Some((error.kind() as u32, error.detail().to_owned()));
                }
            }
            let body = serde_json::to_vec(&offer).map_err(|error| {
                Error::new(ErrorKind::Internal, format!("an offer as JSON: {error}"))
            })?;
            tell(shared, rank, WINDOW, &body)?;
            making.peers.insert(
                rank,
                Peer {
                    link,
                    offer: None,
                    importing: None,
                    imported: None,
                    ready: false,
                },
            );
        }
        Ok(making)
    }

    /// Waits until all have told, and, if that was good news, until all have imported all.
    fn finish(&mut self) -> Result<()> {
        let mut phase = Phase::default();
        while !self.poll()? {
            self.shared.pause_for_peers(&mut phase, self.deadline)?;
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<bool> {
        let shared = self.shared;
        if let Some(cause) = shared.domain.aborted() {
            return Err(cause);
        }
        let now = shared.waiter.now();
        lock(&shared.mesh).poll(now)?;
        for device in shared.endpoints.open() {
            device.progress()?;
        }
        // What this OS thread has queued: a peer may wait for that before it comes here.
        shared.home.thread.drive()?;
        let done = self.advance()?;
        lock(&shared.mesh).poll(now)?;
        if !done && self.deadline.passed(now) {
            return Err(self.late(now));
        }
        Ok(done)
    }

    fn advance(&mut self) -> Result<bool> {
        let mut all_told = true;
        for (&rank, peer) in &mut self.peers {
            if peer.offer.is_none()
                && let Some(body) = receive(self.shared, rank, WINDOW)?
            {
                peer.offer = Some(serde_json::from_slice(&body).map_err(|error| {
                    Error::new(
                        ErrorKind::Mismatch,
                        format!("rank {rank} sent an offer of a window that is none: {error}"),
                    )
                    .blame_rank(rank)
                    .hint("do both ranks run the same build?")
                })?);
            }
            all_told &= peer.offer.is_some();
        }
        if !all_told || self.judge().is_err() {
            return Ok(all_told);
        }
        let mut all_ready = true;
        for (&rank, peer) in &mut self.peers {
            if peer.imported.is_none() {
                let blob = || {
                    peer.offer
                        .as_ref()
                        .map_or_else(Vec::new, |o| o.blob.clone())
                };
                let transport = peer.link.channel.transport();
                let importing = peer
                    .importing
                    .get_or_insert_with(|| transport.import(blob()));
                let Poll::Ready(import) = importing.poll() else {
                    all_ready = false;
                    continue;
                };
                let import = import.map_err(|error| self.shared.health.explain(rank.0, error))?;
                if import.bytes() != self.bytes as u64 {
                    return Err(Error::new(
                        ErrorKind::Mismatch,
                        format!(
                            "window `{}` of rank {rank} has {} bytes, {} were announced",
                            self.name,
                            import.bytes(),
                            self.bytes
                        ),
                    )
                    .blame_rank(rank));
                }
                peer.imported = Some(RemoteSlice::of(&import));
                peer.importing = None;
                tell(self.shared, rank, WINDOW_READY, b"")?;
            }
            peer.ready = peer.ready || receive(self.shared, rank, WINDOW_READY)?.is_some();
            all_ready &= peer.ready;
        }
        Ok(all_ready)
    }

    /// What all ranks' offers come to: this rank's memory, or what is wrong, and every rank finds
    /// something wrong then.
    fn judge(&self) -> Result<Slice> {
        let own = (self.shared.rank, self.name.to_owned(), self.bytes as u64);
        let offers = || {
            self.peers
                .iter()
                .filter_map(|(&rank, p)| Some((rank, p.offer.as_ref()?)))
        };
        let mut names = BTreeMap::<String, Vec<Rank>>::new();
        let mut sizes = BTreeMap::<u64, Vec<Rank>>::new();
        let told = offers().map(|(rank, offer)| (rank, offer.name.clone(), offer.bytes));
        let mut told: Vec<_> = told.chain([own]).collect();
        told.sort_unstable_by_key(|(rank, ..)| *rank);
        for (rank, name, bytes) in told {
            names.entry(name).or_default().push(rank);
            sizes.entry(bytes).or_default().push(rank);
        }
        if names.len() > 1 {
            let calls = names
                .iter()
                .map(|(name, ranks)| format!("{} `{name}`", list(ranks)));
            return Err(
                differing(&names, format!("windows differ: {}", join(calls)))
                    .hint("all ranks make the same windows in the same order"),
            );
        }
        if sizes.len() > 1 {
            let calls = sizes
                .iter()
                .map(|(bytes, ranks)| format!("{} {bytes} bytes", list(ranks)));
            let text = format!("window `{}` differs in size: {}", self.name, join(calls));
            return Err(differing(&sizes, text)
                .hint("a window is as large on every rank: ask for the largest size everywhere"));
        }
        let local = self.local.clone()?;
        let failed = offers().find_map(|(rank, offer)| Some((rank, offer.failure.as_ref()?)));
        if let Some((rank, (kind, text))) = failed {
            let kind = ErrorKind::ALL.get(*kind as usize).copied();
            let who = self.shared.health.describe(rank);
            return Err(Error::new(
                kind.unwrap_or(ErrorKind::Internal),
                format!("{who} cannot make window `{}`: {text}", self.name),
            )
            .blame_rank(rank));
        }
        Ok(local)
    }

    /// The others' memory by rank; none for this one.
    fn imported(self) -> Vec<Option<RemoteSlice>> {
        let mut peers = self.peers;
        (0..self.shared.graph.size())
            .map(|rank| peers.remove(&Rank(rank)).and_then(|peer| peer.imported))
            .collect()
    }

    fn late(&self, now: Nanos) -> Error {
        let missing = || self.peers.iter().filter(|(_, peer)| !peer.ready);
        let who = missing().map(|(&rank, peer)| {
            let what = match (&peer.offer, &peer.imported) {
                (None, _) => "has not made it",
                (Some(_), None) => "does not show its memory",
                (Some(_), Some(_)) => "has not imported all",
            };
            format!("{}: {what}", self.shared.health.describe(rank))
        });
        let text = format!(
            "window `{}`: {}",
            self.name,
            who.collect::<Vec<_>>().join("; ")
        );
        let error = Error::new(ErrorKind::Timeout, text)
            .after(now.since(self.began))
            .hint("does that rank make the same calls? The limit is HCOMM_CONNECT_TIMEOUT");
        missing().fold(error, |error, (&rank, _)| error.blame_rank(rank))
    }
}

/// Sends a control message. A rank that takes none any more may have given up because of another
/// one, which the control plane knows.
fn tell(shared: &Shared, to: Rank, kind: u16, body: &[u8]) -> Result<()> {
    let sent = lock(&shared.mesh).send(to, kind, body);
    sent.or_else(|error| shared.health.check().and(Err(error)))
}

/// The next control message of a rank, which has to be of this kind.
fn receive(shared: &Shared, from: Rank, expected: u16) -> Result<Option<Vec<u8>>> {
    let mut mesh = lock(&shared.mesh);
    let Some((kind, body)) = mesh.receive(from) else {
        // What it has sent before it left would be there.
        let lost = match mesh.state(from) {
            LinkState::NotAsked | LinkState::Connecting | LinkState::Up => return Ok(None),
            LinkState::Closed => format!("rank {from} has left the communicator"),
            LinkState::Lost { why } => why.clone(),
            LinkState::Aborted { text, .. } => text.clone(),
        };
        drop(mesh);
        // The control plane may know more.
        shared.health.check()?;
        return Err(Error::new(ErrorKind::PeerLost, lost).blame_rank(from));
    };
    if kind == expected {
        return Ok(Some(body));
    }
    Err(Error::new(
        ErrorKind::Mismatch,
        format!(
            "rank {} makes a window while rank {from} sends control message {kind}",
            shared.rank
        ),
    )
    .blame_rank(from)
    .hint("all ranks make the same windows and channels in the same order"))
}

/// A mismatch; who does not call as the most do is to blame.
fn differing<K>(calls: &BTreeMap<K, Vec<Rank>>, text: String) -> Error {
    let most = calls.values().map(Vec::len).max().unwrap_or_default();
    let mut majority = calls.values().filter(|ranks| ranks.len() == most);
    let first = majority.next();
    let error = Error::new(ErrorKind::Mismatch, text);
    if majority.next().is_some() {
        return calls
            .values()
            .flatten()
            .fold(error, |e, &rank| e.blame_rank(rank));
    }
    let others = calls.values().filter(|&ranks| Some(ranks) != first);
    others.flatten().fold(error, |e, &rank| e.blame_rank(rank))
}

fn list(ranks: &[Rank]) -> String {
    let numbers: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    match numbers.as_slice() {
        [one] => format!("rank {one} has"),
        many => format!("ranks {} have", many.join(", ")),
    }
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}
