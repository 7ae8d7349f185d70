//! From two ranks to a channel that works: create, exchange, connect, import, probe.
//!
//! Both sides run the same machine. Its state is visible ([`LinkStep`]); each step that waits for
//! the peer ends with an error that names peer, step and link when the deadline passes.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use hcomm_data::{Channel, MessageLink, RemoteSlice, Slice, Thread};
use hcomm_topo::Link;
use hcomm_transport::{Connecting, Device, Import, Importing, Region};
use hcomm_types::{Error, ErrorKind, Rank, Result};
use serde::{Deserialize, Serialize};

use crate::layout::{Layout, Notifies};
use crate::membership::lock;
use crate::mesh::{LinkState, Mesh};
use crate::outside::Outside;

/// Kind of the control message that carries an [`Offer`].
pub(crate) const OFFER: u16 = 1;

/// Tag of the communicator buffer among the memories that are exchanged.
pub(crate) const BUFFER_TAG: &str = "hcomm.buffer";

/// How far a channel has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LinkStep {
    /// Memory is registered and this side's end exists.
    Created,
    /// Waits for what the peer needs and offers.
    Exchanging,
    /// The transport connects the two ends.
    Connecting,
    /// The peer's memory becomes known here.
    Importing,
    /// A write with notify each way, over the real link.
    Probing,
    /// Works.
    Ready,
}

impl fmt::Display for LinkStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Created => "created",
            Self::Exchanging => "exchanging",
            Self::Connecting => "connecting",
            Self::Importing => "importing",
            Self::Probing => "probing",
            Self::Ready => "ready",
        })
    }
}

/// What one side tells the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Offer {
    /// Counts the channels of this pair, so that two set-ups do not mix.
    channel: u32,
    transport: String,
    notifies: u32,
    blob: Vec<u8>,
    memories: Vec<MemoryOffer>,
    /// What the peer writes into our probe slot.
    nonce: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryOffer {
    tag: String,
    bytes: u64,
    blob: Vec<u8>,
}

/// Memory of the peer, reachable through a channel.
#[derive(Clone, Debug)]
pub struct RemoteMemory {
    /// The tag that its owner gave it.
    pub tag: String,
    /// All of it.
    pub slice: RemoteSlice,
}

/// A channel to one peer that is ready, and what the peer has registered.
#[derive(Clone, Debug)]
pub struct PeerLink {
    /// The peer.
    pub peer: Rank,
    /// The link that was chosen in the rank graph.
    pub link: Link,
    /// The channel.
    pub channel: Channel,
    /// The peer's communicator buffer.
    pub buffer: RemoteSlice,
    /// Everything the peer had registered when the channel was made, its buffer included.
    pub memories: Vec<RemoteMemory>,
    /// Messages between the two ranks, where both sides map the other's buffer and the channel
    /// serves the communicator.
    pub messages: Option<MessageLink>,
    /// The same for what goes by messages of collectives, so that it does not mix with those.
    pub streams: Option<MessageLink>,
}

impl PeerLink {
    /// The peer's memory with this tag.
    ///
    /// # Errors
    /// `InvalidArgument`, with the tags there are.
    pub fn memory(&self, tag: &str) -> Result<RemoteSlice> {
        self.memories
            .iter()
            .find(|memory| memory.tag == tag)
            .map_or_else(
                || {
                    let tags: Vec<&str> = self.memories.iter().map(|m| m.tag.as_str()).collect();
                    Err(Error::new(
                        ErrorKind::InvalidArgument,
                        format!("rank {} has registered no memory `{tag}`", self.peer),
                    )
                    .hint(format!(
                        "memory is exchanged when a channel is made; it had: {}",
                        tags.join(", ")
                    )))
                },
                |memory| Ok(memory.slice.clone()),
            )
    }
}

/// What a set-up needs of its rank.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub(crate) rank: Rank,
    pub(crate) mesh: Arc<Mutex<Mesh>>,
    pub(crate) buffer: Slice,
    pub(crate) layout: Layout,
    pub(crate) outside: Outside,
    /// Queue on which probes run.
    pub(crate) thread: Thread,
}

/// The set-up of one channel.
#[derive(Debug)]
pub(crate) struct LinkSetup {
    home: Home,
    peer: Rank,
    link: Link,
    number: u32,
    transport: hcomm_transport::Channel,
    nonce: u64,
    notifies: u32,
    /// Notify that says the probe is there.
    probe: u32,
    offer: Option<Offer>,
    state: State,
}

#[derive(Debug)]
enum State {
    Exchanging,
    Connecting {
        connecting: Connecting,
        theirs: Offer,
    },
    Importing {
        theirs: Offer,
        importing: VecDeque<(String, Importing)>,
        done: Vec<(String, Import)>,
    },
    Probing {
        ready: Box<PeerLink>,
    },
    Ended,
}

impl LinkSetup {
    /// Makes this side's end and its offer. Channel 0 of a pair serves the communicator; further
    /// ones have `notifies` notifies for their user. `memories` are exchanged with the peer.
    pub(crate) fn new(
        home: Home,
        link: Link,
        device: &Device,
        number: u32,
        notifies: u32,
        memories: &[(String, Region)],
    ) -> Result<Self> {
        let peer = link.to;
        // The user's notifies begin at 0, so the probe's comes after them.
        let (probe, notifies) = match number {
            0 => (Notifies::PROBE, Notifies::COUNT),
            _ => (notifies, notifies.saturating_add(1)),
        };
        let nonce = home.outside.number();
        let transport = device.create_channel(notifies, QUEUE_DEPTH)?;
        let memories = memories
            .iter()
            .map(|(tag, region)| {
                Ok(MemoryOffer {
                    tag: tag.clone(),
                    bytes: region.bytes() as u64,
                    blob: region.export()?,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let offer = Offer {
            channel: number,
            transport: link.transport.clone(),
            notifies,
            blob: transport.blob()?,
            memories,
            nonce,
        };
        Ok(Self {
            home,
            peer,
            link,
            number,
            transport,
            nonce,
            notifies,
            probe,
            offer: Some(offer),
            state: State::Exchanging,
        })
    }

    /// The peer.
    pub(crate) const fn peer(&self) -> Rank {
        self.peer
    }

    /// Number of the channel among those of the pair.
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    /// How far it has come.
    pub(crate) const fn step(&self) -> LinkStep {
        match &self.state {
            State::Exchanging if self.offer.is_some() => LinkStep::Created,
            State::Exchanging => LinkStep::Exchanging,
            State::Connecting { .. } => LinkStep::Connecting,
            State::Importing { .. } => LinkStep::Importing,
            State::Probing { .. } => LinkStep::Probing,
            State::Ended => LinkStep::Ready,
        }
    }

    /// Moves it on as far as it can.
    pub(crate) fn poll(&mut self) -> Poll<Result<PeerLink>> {
        loop {
            let before = self.step();
            let advanced = self.advance();
            let step = self.step();
            if step != before && advanced.is_ok() {
                tracing::debug!(rank = %self.home.rank, peer = %self.peer, %step, "channel set-up goes on");
            }
            match advanced {
                Ok(Advance::Again) => {}
                Ok(Advance::Wait) => return Poll::Pending,
                Ok(Advance::Ready(link)) => return Poll::Ready(Ok(*link)),
                Err(error) => {
                    self.state = State::Ended;
                    let link = format!("{} to rank {}", self.link.protocol, self.peer);
                    return Poll::Ready(Err(error.blame_rank(self.peer).on_link(link)));
                }
            }
        }
    }

    fn advance(&mut self) -> Result<Advance> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Exchanging => {
                let Some(theirs) = self.exchange()? else {
                    self.state = State::Exchanging;
                    return Ok(Advance::Wait);
                };
                let connecting = self.transport.connect(theirs.blob.clone());
                self.state = State::Connecting { connecting, theirs };
            }
            State::Connecting {
                mut connecting,
                theirs,
            } => match connecting.poll() {
                Poll::Pending => {
                    self.state = State::Connecting { connecting, theirs };
                    return Ok(Advance::Wait);
                }
                Poll::Ready(result) => {
                    result?;
                    let importing = theirs
                        .memories
                        .iter()
                        .map(|memory| {
                            (
                                memory.tag.clone(),
                                self.transport.import(memory.blob.clone()),
                            )
                        })
                        .collect();
                    self.state = State::Importing {
                        theirs,
                        importing,
                        done: Vec::new(),
                    };
                }
            },
            State::Importing {
                theirs,
                mut importing,
                mut done,
            } => {
                while let Some((tag, import)) = importing.front_mut() {
                    let Poll::Ready(result) = import.poll() else {
                        self.state = State::Importing {
                            theirs,
                            importing,
                            done,
                        };
                        return Ok(Advance::Wait);
                    };
                    done.push((std::mem::take(tag), result?));
                    importing.pop_front();
                }
                let ready = self.imported(&theirs, done)?;
                self.begin_probe(&ready, theirs.nonce)?;
                self.state = State::Probing {
                    ready: Box::new(ready),
                };
            }
            State::Probing { mut ready } => {
                let Some(peer_maps) = self.probed(&ready)? else {
                    self.state = State::Probing { ready };
                    return Ok(Advance::Wait);
                };
                if self.number == 0 && peer_maps && maps(&ready) {
                    let (layout, me) = (&self.home.layout, self.home.rank);
                    let (from, to) = (layout.inbox(self.peer), layout.inbox(me));
                    let inboxes = (from, to, layout.inbox_bytes());
                    ready.messages = Some(self.messages(&ready, inboxes, 0)?);
                    let (from, to) = (layout.stream(self.peer), layout.stream(me));
                    let inboxes = (from, to, layout.stream_bytes());
                    ready.streams = Some(self.messages(&ready, inboxes, 1)?);
                }
                return Ok(Advance::Ready(ready));
            }
            State::Ended => {
                return Err(Error::new(
                    ErrorKind::Internal,
                    "a link set-up was polled after its end",
                ));
            }
        }
        Ok(Advance::Again)
    }

    /// Sends our offer, once; takes the peer's, if it is there.
    fn exchange(&mut self) -> Result<Option<Offer>> {
        let mut mesh = lock(&self.home.mesh);
        if let Some(offer) = &self.offer {
            let body = serde_json::to_vec(offer).map_err(|error| {
                Error::new(ErrorKind::Internal, format!("an offer as JSON: {error}"))
            })?;
            mesh.send(self.peer, OFFER, body)?;
            self.offer = None;
        }
        let Some((kind, body)) = mesh.receive(self.peer) else {
            // What it has sent before it left would be there.
            return match mesh.state(self.peer) {
                LinkState::NotAsked | LinkState::Connecting | LinkState::Up => Ok(None),
                LinkState::Closed => Err(Error::new(
                    ErrorKind::PeerLost,
                    format!("rank {} has left the communicator", self.peer),
                )),
                LinkState::Lost { why } => Err(Error::new(ErrorKind::PeerLost, why)),
                LinkState::Aborted { text, .. } => Err(Error::new(ErrorKind::PeerLost, text)),
            };
        };
        drop(mesh);
        if kind != OFFER {
            return Err(Error::new(
                ErrorKind::Mismatch,
                format!(
                    "rank {} sent control message {kind} instead of an offer",
                    self.peer
                ),
            ));
        }
        let theirs: Offer = serde_json::from_slice(&body).map_err(|error| {
            Error::new(
                ErrorKind::Mismatch,
                format!("rank {} sent an offer that is none: {error}", self.peer),
            )
            .hint("do both ranks run the same build?")
        })?;
        let differs = |what: &str, ours: &dyn fmt::Display, theirs: &dyn fmt::Display| {
            Err(Error::new(
                ErrorKind::Mismatch,
                format!(
                    "rank {} has {what} {ours}, rank {} has {theirs}",
                    self.home.rank, self.peer
                ),
            )
            .hint("both ranks make the same channels in the same order"))
        };
        if theirs.channel != self.number {
            return differs("channel number", &self.number, &theirs.channel);
        }
        if theirs.transport != self.link.transport {
            return differs("transport", &self.link.transport, &theirs.transport);
        }
        if theirs.notifies != self.notifies {
            return differs("notifies", &self.notifies, &theirs.notifies);
        }
        Ok(Some(theirs))
    }

    fn imported(&self, theirs: &Offer, imports: Vec<(String, Import)>) -> Result<PeerLink> {
        let mut memories = Vec::with_capacity(imports.len());
        for ((tag, import), offer) in imports.into_iter().zip(&theirs.memories) {
            if import.bytes() != offer.bytes {
                return Err(Error::new(
                    ErrorKind::Mismatch,
                    format!(
                        "memory `{tag}` of rank {} has {} bytes, {} were announced",
                        self.peer,
                        import.bytes(),
                        offer.bytes
                    ),
                ));
            }
            memories.push(RemoteMemory {
                tag,
                slice: RemoteSlice::of(&import),
            });
        }
        let buffer = memories
            .iter()
            .find(|memory| memory.tag == BUFFER_TAG)
            .map(|memory| memory.slice.clone())
            .filter(|buffer| buffer.bytes() >= self.home.layout.bytes())
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Mismatch,
                    format!(
                        "rank {} offers no communicator buffer on this link",
                        self.peer
                    ),
                )
                .hint("HCOMM_BUFFER_BYTES must be the same on all ranks")
            })?;
        Ok(PeerLink {
            peer: self.peer,
            link: self.link.clone(),
            channel: Channel::new(self.transport.clone(), self.peer.0)?,
            buffer,
            memories,
            messages: None,
            streams: None,
        })
    }

    /// Writes the peer's nonce into our slot of its buffer, with the notify it waits for.
    fn begin_probe(&self, ready: &PeerLink, nonce: u64) -> Result<()> {
        let Home {
            rank,
            buffer,
            layout,
            thread,
            ..
        } = &self.home;
        let at = layout.probe_source(self.peer) as usize;
        let source = buffer.sub(at..at + PROBE_BYTES)?;
        let probe = [nonce, u64::from(maps(ready))].map(u64::to_le_bytes);
        source.copy_from(probe.as_flattened())?;
        let place = layout.probe(*rank);
        let target = ready.buffer.sub(place..place + PROBE_BYTES as u64)?;
        thread.write_with_notify(&ready.channel, &target, &source, self.probe)?;
        if self.number == 0 {
            // What the peer may send before we ask for it: see the plans' initial credits.
            for slot in 0..Notifies::CREDITS {
                let notify = Notifies::PointToPoint { sends: false }.outgoing(slot)?;
                thread.record(&ready.channel, notify)?;
            }
        }
        Ok(())
    }

    /// Whether there is something to do that no descriptor tells of.
    pub(crate) fn has_news(&self) -> bool {
        match &self.state {
            State::Probing { ready } => ready.channel.arrived(self.probe).unwrap_or(1) > 0,
            _ => false,
        }
    }

    /// Whether our probe is gone and the peer's has come; it must have brought our nonce. Nobody
    /// waits in a queue for it: the set-ups of a rank share one, and would wait for each other.
    /// What else it brought: whether the peer maps our buffer.
    fn probed(&self, ready: &PeerLink) -> Result<Option<bool>> {
        let Home {
            buffer,
            layout,
            thread,
            ..
        } = &self.home;
        thread.drive()?;
        if !thread.is_idle() || ready.channel.arrived(self.probe)? == 0 {
            return Ok(None);
        }
        let at = layout.probe(self.peer) as usize;
        let mut found = [[0; 8]; 2];
        buffer
            .sub(at..at + PROBE_BYTES)?
            .copy_to(found.as_flattened_mut())?;
        let [found, peer_maps] = found.map(u64::from_le_bytes);
        if found != self.nonce {
            return Err(Error::new(
                ErrorKind::LinkDown,
                format!("the probe brought {found:#x} instead of {:#x}", self.nonce),
            )
            .hint("the link delivers wrong data; leave its transport out with HCOMM_TRANSPORTS"));
        }
        Ok(Some(peer_maps != 0))
    }

    /// A message link of a channel that both sides map, over the inbox for the peer here and the one
    /// for this rank there.
    fn messages(
        &self,
        ready: &PeerLink,
        (from, to, bytes): (u64, u64, u64),
        wake: u32,
    ) -> Result<MessageLink> {
        let Home { rank, buffer, .. } = &self.home;
        let stride = MessageLink::inbox_bytes(bytes);
        // Nobody waits for it: plans do not use it where there is a message link.
        let wake = Notifies::PointToPoint { sends: true }.outgoing(wake)?;
        MessageLink::new(
            &ready.channel,
            &buffer.sub(from as usize..(from + stride) as usize)?,
            &ready.buffer.sub(to..to + stride)?,
            bytes,
            wake,
            *rank < self.peer,
        )
    }
}

/// Whether the peer's buffer is mapped here.
fn maps(ready: &PeerLink) -> bool {
    ready.buffer.import().address().is_some()
}

enum Advance {
    Again,
    Wait,
    Ready(Box<PeerLink>),
}

/// The nonce, and whether the sender maps the receiver's buffer.
const PROBE_BYTES: usize = 16;

/// Descriptors that may be outstanding on a channel.
const QUEUE_DEPTH: u32 = 256;
