//! What each rank tells about itself; a graph is built from these alone.

use std::sync::Arc;

use hcomm_types::{Address, Location, ProcessId, Protocol, Rank};
use serde::{Deserialize, Serialize};

use crate::host::HostFacts;

/// Facts about one rank, as it sends them to the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankFacts {
    /// Its number.
    pub rank: Rank,
    /// The process that it lives in.
    pub process: ProcessId,
    /// The host that the process runs on. Shared: ranks of one host need one copy.
    pub host: Arc<HostFacts>,
    /// Its number among the ranks of its host, as the launcher counts.
    pub local_rank: u32,
    /// Its endpoints. Their position is their number.
    pub endpoints: Vec<EndpointFacts>,
}

/// Facts about one endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointFacts {
    /// What it speaks.
    pub protocol: Protocol,
    /// Where others find it.
    pub address: Address,
    /// Where it sits.
    pub location: Location,
    /// How far it reaches.
    pub reach: Reach,
    /// Time of the first byte to a peer, in nanoseconds (α).
    pub latency_ns: u64,
    /// Bytes per second after that (β); 0 if the transport does not know, which counts as slowest.
    pub bytes_per_s: u64,
    /// Name of the transport plugin that serves it. Only equal plugins understand each other.
    pub transport: String,
    /// Name of the device, as the transport gives it.
    pub device: String,
}

/// How far an endpoint reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// Ranks of the same process.
    Process,
    /// Ranks of the same host.
    Host,
    /// Whoever its address can reach.
    Network,
}
