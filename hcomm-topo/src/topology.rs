//! How the ranks of an instance are joined.

use std::collections::BTreeMap;

use hcomm_types::{Address, Location, Protocol};
use serde::{Deserialize, Serialize};

use crate::choice::Allowed;
use crate::facts::{RankFacts, Reach};
use crate::graph::{Instance, InstanceId, RankGraph, admit};
use crate::interface::is_link_local;
use crate::link::{Layer, Nearness, is_peer_address};

/// How the ranks of an instance are joined at its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TopologyType {
    /// One rank: nothing to join.
    Single,
    /// Every pair directly.
    Mesh,
    /// Every pair, through switches.
    Switched,
    /// In a circle, each with two neighbours.
    Ring,
    /// In rows and columns; those of one row directly, and those of one column.
    Mesh2d,
    /// Packages of two dies that are joined directly, and all dies through switches.
    PairedDies,
    /// Two groups, each joined directly, and all through switches.
    TwoMeshes,
    /// Some pairs have no link at this layer.
    Partial,
}

impl TopologyType {
    /// Name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Mesh => "mesh",
            Self::Switched => "switched",
            Self::Ring => "ring",
            Self::Mesh2d => "2D mesh",
            Self::PairedDies => "paired dies",
            Self::TwoMeshes => "two meshes",
            Self::Partial => "partial",
        }
    }
}

impl RankGraph {
    /// How the ranks of an instance are joined, by links of its own layer.
    #[must_use]
    pub fn topology_type(&self, layer: Layer, instance: InstanceId) -> Option<TopologyType> {
        let instance = self.instances(layer).get(instance.0 as usize)?;
        Some(if instance.ranks.len() == 1 {
            TopologyType::Single
        } else if let Some(fabric) = &self.fabric {
            self.wired_type(fabric, instance)
        } else if !self.all_joined(instance) {
            TopologyType::Partial
        } else if layer == Layer::HOST {
            TopologyType::Mesh
        } else {
            TopologyType::Switched
        })
    }

    /// Whether links of the instance's layer join every pair of its ranks.
    ///
    /// Ranks whose endpoints are alike are joined alike, so a pair of each two kinds is enough:
    /// hosts by the thousand have a handful of kinds.
    fn all_joined(&self, instance: &Instance) -> bool {
        let same_host = instance.layer == Layer::HOST;
        let mut kinds = BTreeMap::<Vec<EndpointKind<'_>>, Vec<&RankFacts>>::new();
        for facts in instance.ranks.iter().filter_map(|&rank| self.rank(rank)) {
            kinds.entry(kind_of(facts)).or_default().push(facts);
        }
        let kinds: Vec<_> = kinds.into_values().collect();
        kinds.iter().enumerate().all(|(position, a)| {
            kinds[position..].iter().all(|b| {
                if same_host {
                    self.joined_inside(a, b)
                } else {
                    self.joined_across(a, b)
                }
            })
        })
    }

    /// Whether each of `a` has a link to each of `b`, all on one host.
    fn joined_inside(&self, a: &[&RankFacts], b: &[&RankFacts]) -> bool {
        let Some((first, second)) = pair(a, b, |a, b| a.rank != b.rank) else {
            return true;
        };
        let strangers = Nearness {
            same_process: false,
            same_host: true,
        };
        let housemates = Nearness {
            same_process: true,
            same_host: true,
        };
        let one_process = || {
            let token = first.process.token;
            a.iter().chain(b).all(|facts| facts.process.token == token)
        };
        any_link(first, second, strangers) || one_process() && any_link(first, second, housemates)
    }

    /// Whether each of `a` has a link to each of `b` that is on another host.
    fn joined_across(&self, a: &[&RankFacts], b: &[&RankFacts]) -> bool {
        let host = |facts: &RankFacts| {
            self.instance_of(Layer::HOST, facts.rank)
                .map(|host| host.id)
        };
        let apart = Nearness {
            same_process: false,
            same_host: false,
        };
        pair(a, b, |a, b| host(a) != host(b)).is_none_or(|(a, b)| any_link(a, b, apart))
    }
}

fn any_link(a: &RankFacts, b: &RankFacts, nearness: Nearness) -> bool {
    a.endpoints.iter().any(|from| {
        b.endpoints.iter().any(|to| {
            from.protocol == to.protocol && admit(a, from, b, to, nearness, &Allowed::All).is_ok()
        })
    })
}

/// Two ranks, one of each list, that `fit` accepts. It must be a relation of the form "differ in
/// something", of which the first two different values of each list are enough to look at.
fn pair<'a>(
    a: &[&'a RankFacts],
    b: &[&'a RankFacts],
    fit: impl Fn(&RankFacts, &RankFacts) -> bool,
) -> Option<(&'a RankFacts, &'a RankFacts)> {
    let two = |list: &[&'a RankFacts]| {
        let first = *list.first()?;
        let other = list.iter().copied().find(|facts| fit(first, facts));
        Some([first, other.unwrap_or(first)])
    };
    let (a, b) = (two(a)?, two(b)?);
    a.into_iter()
        .flat_map(|a| b.into_iter().map(move |b| (a, b)))
        .find(|(a, b)| fit(a, b))
}

/// All of an endpoint that decides whether it can be joined, and of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EndpointKind<'a> {
    protocol: Protocol,
    transport: &'a str,
    reach: Reach,
    at_host: bool,
    address: AddressKind,
    network_namespace: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AddressKind {
    Ip {
        v4: bool,
        loopback: bool,
        link_local: bool,
        peer: bool,
    },
    Id,
    Eid,
}

fn kind_of(facts: &RankFacts) -> Vec<EndpointKind<'_>> {
    let mut kinds: Vec<_> = facts
        .endpoints
        .iter()
        .map(|endpoint| EndpointKind {
            protocol: endpoint.protocol,
            transport: &endpoint.transport,
            reach: endpoint.reach,
            at_host: endpoint.location == Location::Host,
            address: address_kind(&endpoint.address),
            network_namespace: facts.host.network_namespace.as_deref(),
        })
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

fn address_kind(address: &Address) -> AddressKind {
    match address {
        Address::Id(_) => AddressKind::Id,
        Address::Eid(_) => AddressKind::Eid,
        Address::Ip(ip) => {
            let ip = ip.to_canonical();
            AddressKind::Ip {
                v4: ip.is_ipv4(),
                loopback: ip.is_loopback(),
                link_local: is_link_local(ip),
                peer: is_peer_address(ip),
            }
        }
    }
}
