//! Links: which pairs of endpoints can be joined, and at what cost.

use std::fmt;
use std::net::IpAddr;

use hcomm_types::{Address, Location, ProcessId, Protocol, Rank};
use serde::{Deserialize, Serialize};

use crate::fabric::PortId;
use crate::facts::{EndpointFacts, RankFacts, Reach};
use crate::host::HostFacts;
use crate::interface::is_link_local;

/// Layer of the graph: how far apart two ranks are. 0 is the innermost; files may describe up to
/// [`MAX_LAYER`](crate::MAX_LAYER).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Layer(pub u8);

impl Layer {
    /// Inside one host.
    pub const HOST: Self = Self(0);
    /// Between hosts.
    pub const NETWORK: Self = Self(1);
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One way from a rank to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// How far apart the ranks are.
    pub layer: Layer,
    /// The structure inside the layer that it belongs to: the topology instance.
    pub plane: u32,
    /// What is spoken.
    pub protocol: Protocol,
    /// The rank that asked.
    pub from: Rank,
    /// The other one.
    pub to: Rank,
    /// Number of the endpoint at `from`.
    pub from_endpoint: u32,
    /// Number of the endpoint at `to`.
    pub to_endpoint: u32,
    /// The port at `from`, where wires are known. Links that leave through one port share it.
    pub from_port: Option<PortId>,
    /// The port at `to`.
    pub to_port: Option<PortId>,
    /// Name of the transport plugin that serves both ends.
    pub transport: String,
    /// Time of the first byte, in nanoseconds: the larger of the two ends, and what the way adds.
    pub latency_ns: u64,
    /// Bytes per second after that: the smaller of the two ends and of all wires on the way; 0 if an
    /// end does not know.
    pub bytes_per_s: u64,
    /// Wires on the way. Where they are not known 1 inside a host, 2 between hosts (to a switch and
    /// from it), 3 if there is a router on the way, because the two addresses are of different
    /// networks.
    pub hops: u32,
    /// Rests on a link-local address: taken only if there is no other.
    pub last_resort: bool,
}

impl Link {
    /// Name of the link, the same from both ends and in every graph built from the same facts:
    /// `0.1-3.0` joins endpoint 1 of rank 0 and endpoint 0 of rank 3.
    #[must_use]
    pub fn id(&self) -> String {
        let ends = [(self.from, self.from_endpoint), (self.to, self.to_endpoint)];
        let ((a, i), (b, j)) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
        format!("{a}.{i}-{b}.{j}")
    }

    /// Predicted time to move `bytes`, in nanoseconds: α + n/β, rounded up. An unknown β is
    /// slower than any known one.
    #[must_use]
    pub fn predict_ns(&self, bytes: u64) -> u64 {
        if self.bytes_per_s == 0 {
            return u64::MAX;
        }
        let transfer = (u128::from(bytes) * 1_000_000_000).div_ceil(self.bytes_per_s.into());
        let total = transfer + u128::from(self.latency_ns);
        u64::try_from(total).unwrap_or(u64::MAX)
    }

    /// The same link, seen from the other end.
    pub(crate) fn flipped(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            from_endpoint: self.to_endpoint,
            to_endpoint: self.from_endpoint,
            from_port: self.to_port,
            to_port: self.from_port,
            ..self
        }
    }
}

/// Why two endpoints are no link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The other rank does not speak this protocol.
    #[error("rank {rank} has no {protocol} endpoint")]
    NoCounterpart {
        /// The protocol.
        protocol: Protocol,
        /// The rank without it.
        rank: Rank,
    },
    /// The list of transports leaves it out.
    #[error("transport {transport} is not among the allowed ones ({allowed})")]
    NotAllowed {
        /// Name of the transport.
        transport: String,
        /// The list.
        allowed: String,
    },
    /// Two plugins serve the ends, and their addresses mean nothing to each other.
    #[error("served by different transports, {a} and {b}")]
    OtherTransport {
        /// At the lower rank.
        a: String,
        /// At the higher rank.
        b: String,
    },
    /// The protocol may not end there.
    #[error("{protocol} may not end at a {place}")]
    IllegalLocation {
        /// The protocol.
        protocol: Protocol,
        /// `host` or `device`.
        place: &'static str,
    },
    /// Both ends have ports, and no wire leads from one to the other.
    #[error("no cable and no switch joins their ports")]
    NotWired,
    /// An end reaches only its own process.
    #[error("it reaches only ranks of the same process")]
    OtherProcess,
    /// An end reaches only its own host.
    #[error("it reaches only ranks of the same host")]
    OtherHost,
    /// An address that is never a peer's.
    #[error("{address} is no address of one peer")]
    NoPeerAddress {
        /// The address.
        address: IpAddr,
    },
    /// Addresses of different kinds.
    #[error("{a} and {b} are addresses of different kinds")]
    OtherFamily {
        /// At the lower rank.
        a: Address,
        /// At the higher rank.
        b: Address,
    },
    /// A loopback address leads back to its own host, or its own network namespace.
    #[error(
        "{address} is a loopback address, and the other rank is on another host or network namespace"
    )]
    Loopback {
        /// The address.
        address: IpAddr,
    },
    /// Both hosts have the address, so that each would reach itself.
    #[error("both ranks have {address}, and are on different hosts")]
    SameAddress {
        /// The address.
        address: IpAddr,
    },
    /// A link-local address and a routable one do not meet between hosts.
    #[error("{a} and {b}: only one of them is link-local")]
    OtherScope {
        /// At the lower rank.
        a: IpAddr,
        /// At the higher rank.
        b: IpAddr,
    },
}

/// One end of a possible link.
#[derive(Clone, Copy)]
pub(crate) struct End<'a> {
    pub(crate) endpoint: &'a EndpointFacts,
    pub(crate) host: &'a HostFacts,
}

/// What two ranks have in common, whatever their endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nearness {
    pub(crate) same_process: bool,
    pub(crate) same_host: bool,
}

impl Nearness {
    pub(crate) fn of(a: &ProcessId, b: &ProcessId, same_host: bool) -> Self {
        Self {
            same_process: same_host && a.token == b.token,
            same_host,
        }
    }
}

/// Whether two endpoints of one protocol can be joined; if so, whether only as a last resort.
pub(crate) fn join(a: End<'_>, b: End<'_>, nearness: Nearness) -> Result<bool, Refusal> {
    debug_assert_eq!(a.endpoint.protocol, b.endpoint.protocol);
    if a.endpoint.transport != b.endpoint.transport {
        return Err(Refusal::OtherTransport {
            a: a.endpoint.transport.clone(),
            b: b.endpoint.transport.clone(),
        });
    }
    legal(a.endpoint)?;
    legal(b.endpoint)?;
    match a.endpoint.reach.min(b.endpoint.reach) {
        Reach::Process if nearness.same_process => Ok(false),
        Reach::Process => Err(Refusal::OtherProcess),
        Reach::Host if nearness.same_host => Ok(false),
        Reach::Host => Err(Refusal::OtherHost),
        Reach::Network => addresses_meet(a, b, nearness.same_host),
    }
}

/// What a router on the way adds to the time of the first byte: enough that of several links of like
/// speed one without a router is taken, whatever the real one takes.
pub(crate) const ROUTER_NS: u64 = 50_000;

/// Whether two addresses, on different hosts, are of different networks: as far as the hosts know
/// their networks.
pub(crate) fn is_routed(
    low: &RankFacts,
    from: &EndpointFacts,
    high: &RankFacts,
    to: &EndpointFacts,
) -> bool {
    let (Address::Ip(a), Address::Ip(b)) = (&from.address, &to.address) else {
        return false;
    };
    let network = |facts: &RankFacts, ip: &IpAddr| {
        let interfaces = facts.host.interfaces.iter();
        let mut addresses = interfaces.flat_map(|interface| &interface.addresses);
        let found = addresses.find(|address| address.ip == *ip);
        found.map(|address| address.prefix_bits)
    };
    let bits = [network(low, a), network(high, b)];
    let shared = shared_bits(a.to_canonical(), b.to_canonical());
    bits.into_iter()
        .flatten()
        .any(|bits| shared < u32::from(bits))
}

/// How many of the first bits of two addresses of one kind are the same.
fn shared_bits(a: IpAddr, b: IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => 0,
    }
}

/// Whether an address can be that of one peer.
pub(crate) fn is_peer_address(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(broadcast || ip.is_unspecified() || ip.is_multicast())
}

pub(crate) fn legal(endpoint: &EndpointFacts) -> Result<(), Refusal> {
    let protocol = endpoint.protocol;
    let (served, place) = match endpoint.location {
        Location::Host => (protocol.serves_host(), "host"),
        Location::Device { .. } => (protocol.serves_device(), "device"),
    };
    if served {
        Ok(())
    } else {
        Err(Refusal::IllegalLocation { protocol, place })
    }
}

fn addresses_meet(a: End<'_>, b: End<'_>, same_host: bool) -> Result<bool, Refusal> {
    let (ip_a, ip_b) = match (&a.endpoint.address, &b.endpoint.address) {
        (Address::Ip(ip_a), Address::Ip(ip_b)) => (ip_a.to_canonical(), ip_b.to_canonical()),
        (Address::Id(_), Address::Id(_)) | (Address::Eid(_), Address::Eid(_)) => return Ok(false),
        (address_a, address_b) => {
            return Err(Refusal::OtherFamily {
                a: address_a.clone(),
                b: address_b.clone(),
            });
        }
    };
    if let Some(address) = [ip_a, ip_b].into_iter().find(|&ip| !is_peer_address(ip)) {
        return Err(Refusal::NoPeerAddress { address });
    }
    if ip_a.is_ipv4() != ip_b.is_ipv4() {
        return Err(Refusal::OtherFamily {
            a: Address::Ip(ip_a),
            b: Address::Ip(ip_b),
        });
    }
    let (namespace_a, namespace_b) = (&a.host.network_namespace, &b.host.network_namespace);
    // Unknown namespaces count as equal: without /proc there are rarely several.
    let same_stack =
        same_host && (namespace_a == namespace_b || namespace_a.is_none() || namespace_b.is_none());
    if !same_stack && let Some(address) = [ip_a, ip_b].into_iter().find(IpAddr::is_loopback) {
        return Err(Refusal::Loopback { address });
    }
    if !same_stack && ip_a == ip_b {
        return Err(Refusal::SameAddress { address: ip_a });
    }
    let local = (is_link_local(ip_a), is_link_local(ip_b));
    if !same_stack && local.0 != local.1 {
        return Err(Refusal::OtherScope { a: ip_a, b: ip_b });
    }
    Ok(local.0 || local.1)
}
