//! The rank graph: discover, load, dump, query, choose.
//!
//! **Facts go in, links come out.** Each rank looks at its own host ([`discover`]) and adds what
//! its transports offer ([`EndpointFacts`]). All ranks exchange these [`RankFacts`] and build the
//! same [`RankGraph`] from them. The graph answers who is where (layers and instances), which
//! [`Link`]s join two ranks, and which of them to take ([`RankGraph::choose`]) — without another
//! message, and with the same answer at every rank.
//!
//! ```text
//!  System ── discover ──> HostFacts ──┐
//!  (live, recorded)                   ├──> RankFacts ×n ── build ──> RankGraph ── choose ──> Choice
//!  transports ──> EndpointFacts ──────┘          │          to_json / from_json / to_dot / to_svg
//!                                                │
//!  rank table, topology file, cluster, dump ── load: ranks and FabricFacts
//! ```
//!
//! * [`System`] is the only door to the outside: [`LiveSystem`] asks the kernel,
//!   [`RecordedSystem`] reads files, so that no test depends on the machine it runs on.
//! * [`HostFacts`] are cores, NUMA nodes, caches, network interfaces, cards and accelerators. What the system does not
//!   tell is left out and named in [`HostFacts::notes`]; discovery never waits for it.
//!   [`HostFacts::pick_interface`] finds the interface to speak through.
//! * [`RankGraph`] has a [`Layer`] inside each host and one between hosts; with [`FabricFacts`] (who is
//!   plugged in where) it has up to eight, with structures inside them, and knows the way of each link
//!   ([`RankGraph::path`]). Its memory grows with ranks, not with pairs.
//! * [`load`] makes one from what others wrote. What is wrong there is one [`SourceError`], with line,
//!   field and value.
//! * Errors and choices are explained in words: [`Choice::why`], [`Pick::why`], [`NoLink`].
//!
//! ```
//! use std::sync::Arc;
//! use hcomm_topo::{Allowed, EndpointFacts, LiveSystem, RankFacts, RankGraph, Reach, discover};
//! use hcomm_types::{Address, Location, ProcessId, Protocol, Rank};
//!
//! let host = Arc::new(discover(&LiveSystem)?);
//! let endpoint = |protocol: Protocol, latency_ns, bytes_per_s| EndpointFacts {
//!     protocol,
//!     address: Address::Ip([127, 0, 0, 1].into()),
//!     location: Location::Host,
//!     reach: if protocol == Protocol::Shm { Reach::Host } else { Reach::Network },
//!     latency_ns,
//!     bytes_per_s,
//!     transport: protocol.name().to_owned(),
//!     device: "any".to_owned(),
//! };
//! let facts = (0..2).map(|rank| RankFacts {
//!     rank: Rank(rank),
//!     process: ProcessId { pid: 100 + rank, token: rank.into() },
//!     host: Arc::clone(&host),
//!     local_rank: rank,
//!     endpoints: vec![
//!         endpoint(Protocol::Shm, 500, 8_000_000_000),
//!         endpoint(Protocol::Tcp, 20_000, 2_000_000_000),
//!     ],
//! });
//! let graph = RankGraph::build(facts.collect())?;
//!
//! let choice = graph.choose(Rank(0), Rank(1), &Allowed::All)?;
//! assert_eq!(choice.link.protocol, Protocol::Shm);
//! let without = graph.choose(Rank(0), Rank(1), &"^shm".parse()?)?;
//! assert_eq!(without.link.protocol, Protocol::Tcp);
//! assert_eq!(RankGraph::from_json(&graph.to_json())?, graph);
//! # Ok::<(), hcomm_types::Error>(())
//! ```

#![forbid(unsafe_code)]

mod advice;
mod choice;
mod discover;
mod draw;
mod dump;
mod fabric;
mod facts;
mod graph;
mod groupings;
mod host;
mod infiniband;
mod interface;
mod link;
mod netlink;
mod orders;
mod part;
mod pci;
mod pick;
mod source;
mod system;
mod together;
mod topology;
mod wired;

pub use advice::{Advice, AdviceError, GroupKind, Mapping, Pace, Slowest};
pub use choice::{
    Allowed, Choice, NoLink, ParseAllowedError, REFERENCE_BYTES, RefusedLink, RefusedPair,
    RefusedRank,
};
pub use discover::{DiscoverError, discover};
pub use fabric::{
    CableFacts, CableId, FabricFacts, MAX_LAYER, NetFacts, PlaneFacts, PortFacts, PortId, Segment,
    SwitchFacts, SwitchId,
};
pub use facts::{EndpointFacts, RankFacts, Reach};
pub use graph::{GraphError, Instance, InstanceId, RankGraph};
pub use groupings::Grouping;
pub use host::{Cache, CacheKind, Core, HostFacts, NumaNode};
pub use infiniband::{Gid, InfinibandDevice, InfinibandPort};
pub use interface::{Interface, InterfaceAddress, InterfaceKind};
pub use link::{Layer, Link, Refusal};
pub use orders::Message;
pub use pci::{PciDevice, PciKind};
pub use pick::{Family, InterfaceFilter, NoInterface, ParseFilterError, Pick};
pub use source::{ControlPlace, Loaded, MAX_SOURCE_BYTES, SourceError, load};
pub use system::{LiveSystem, MAX_FILE_BYTES, RecordedSystem, System};
pub use together::LinkShare;
pub use topology::TopologyType;
pub use wired::TopologyInstance;
