//! The graph where wires are known: nets, structures inside them, ports, and the way of a link.

use std::collections::BTreeMap;

use hcomm_types::Rank;

use crate::choice::Allowed;
use crate::fabric::{Fabric, FabricFacts, Joined, PortFacts, PortId, Segment, runs};
use crate::facts::EndpointFacts;
use crate::graph::{GraphError, Instance, InstanceId, NOWHERE, RankGraph};
use crate::link::{Layer, Link, Refusal, legal};
use crate::topology::TopologyType;

/// A structure inside a net: one axis of a mesh, one rail, one plane of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyInstance {
    /// Its number, [`Link::plane`].
    pub plane: u32,
    /// How the ranks of each group are joined.
    pub kind: TopologyType,
    /// Ranks that it joins. An axis of a mesh has a group for each of its rows.
    pub groups: Vec<Vec<Rank>>,
}

impl RankGraph {
    /// The graph with wires. They say what the layers are, from then on, and which endpoints with
    /// ports are joined.
    ///
    /// # Errors
    /// If they contradict each other or the ranks.
    pub fn with_fabric(mut self, facts: FabricFacts) -> Result<Self, GraphError> {
        let endpoints: Vec<usize> = self
            .ranks()
            .iter()
            .map(|rank| rank.endpoints.len())
            .collect();
        let fabric = Fabric::new(facts, &endpoints)?;
        let nets = &fabric.facts().nets;
        let highest = nets.iter().map(|net| net.layer.0).max();
        let count = highest.map_or(0, |highest| usize::from(highest) + 1);
        let mut layers: Vec<Vec<Instance>> = vec![Vec::new(); count];
        let mut instance_of = vec![vec![NOWHERE; endpoints.len()]; count];
        let mut ordered: Vec<(Layer, Rank, &str, Vec<Rank>)> = Vec::with_capacity(nets.len());
        for net in nets {
            let mut ranks = net.ranks.clone();
            ranks.sort_unstable();
            if let Some(first) = ranks.first() {
                ordered.push((net.layer, *first, &net.name, ranks));
            }
        }
        // Numbers do not depend on the order of the facts.
        ordered.sort_unstable_by_key(|(layer, first, ..)| (*layer, *first));
        for (layer, _, name, ranks) in ordered {
            let instances = &mut layers[usize::from(layer.0)];
            let id = InstanceId(Rank::from_index(instances.len()).0);
            for rank in &ranks {
                let place = &mut instance_of[usize::from(layer.0)][rank.index()];
                if *place != NOWHERE {
                    return Err(GraphError::Fabric {
                        problem: format!(
                            "rank {rank} is in the nets {} and {name} of layer {layer}",
                            instances.get(*place as usize).map_or(name, |net| &net.name)
                        ),
                    });
                }
                *place = id.0;
            }
            instances.push(Instance {
                id,
                layer,
                name: name.to_owned(),
                ranks,
            });
        }
        self.layers = layers;
        self.instance_of = instance_of;
        self.fabric = Some(fabric);
        Ok(self)
    }

    /// The hosts (nodes), with their ranks; ids are counted by their lowest rank.
    #[must_use]
    pub fn hosts(&self) -> &[Instance] {
        &self.hosts
    }

    /// The number of a rank's host in [`hosts`](Self::hosts).
    #[must_use]
    pub fn host_of(&self, rank: Rank) -> Option<InstanceId> {
        self.host_of.get(rank.index()).copied().map(InstanceId)
    }

    /// The number of a rank's package on its host; ranks of one package are dies of it. None where
    /// packages are not known.
    #[must_use]
    pub fn package_of(&self, rank: Rank) -> Option<u32> {
        let packages = &self.fabric_facts()?.packages;
        packages.get(rank.index()).copied()
    }

    /// What is known about wires.
    #[must_use]
    pub fn fabric_facts(&self) -> Option<&FabricFacts> {
        self.fabric.as_ref().map(Fabric::facts)
    }

    /// The port that an endpoint goes through, where wires are known.
    #[must_use]
    pub fn port(&self, rank: Rank, endpoint: u32) -> Option<(PortId, &PortFacts)> {
        let fabric = self.fabric.as_ref()?;
        let id = fabric.port_of(rank, endpoint)?;
        Some((id, fabric.port(id)?))
    }

    /// The structures inside a net of a layer. None where wires are not known: there each layer is
    /// one structure.
    #[must_use]
    pub fn topology_instances(&self, layer: Layer, instance: InstanceId) -> Vec<TopologyInstance> {
        let net = self.instances(layer).get(instance.0 as usize);
        match (&self.fabric, net) {
            (Some(fabric), Some(net)) => self.structures(fabric, net),
            _ => Vec::new(),
        }
    }

    /// The parts of the way of a link, in order. Two links meet where they have one in common. Empty
    /// where wires are not known.
    #[must_use]
    pub fn path(&self, link: &Link) -> Vec<Segment> {
        let (a, b) = ((link.from, link.from_endpoint), (link.to, link.to_endpoint));
        let fabric = self.fabric.as_ref();
        fabric.map_or_else(Vec::new, |fabric| fabric.path(a, b))
    }

    /// Bytes per second of a part of a way; 0 if unknown.
    #[must_use]
    pub fn capacity(&self, segment: Segment) -> u64 {
        let fabric = self.fabric.as_ref();
        fabric.map_or(0, |fabric| fabric.capacity(segment))
    }

    /// How two endpoints are joined by wires; none if one of them has no port.
    pub(crate) fn wires(&self, a: (Rank, u32), b: (Rank, u32)) -> Option<Option<Joined>> {
        let fabric = self.fabric.as_ref()?;
        let wired = |(rank, endpoint)| fabric.port_of(rank, endpoint).is_some();
        (wired(a) && wired(b)).then(|| fabric.join(a, b))
    }

    /// The link that wires make.
    pub(crate) fn link_over(
        &self,
        joined: Joined,
        a: (Rank, u32),
        b: (Rank, u32),
        from: &EndpointFacts,
        to: &EndpointFacts,
    ) -> Link {
        let port = |(rank, endpoint)| self.fabric.as_ref()?.port_of(rank, endpoint);
        let known = [from.bytes_per_s, to.bytes_per_s]
            .into_iter()
            .filter(|bytes_per_s| *bytes_per_s > 0);
        let slowest = known.fold(joined.bytes_per_s, u64::min);
        Link {
            layer: joined.layer,
            plane: joined.plane,
            protocol: from.protocol,
            from: a.0,
            to: b.0,
            from_endpoint: a.1,
            to_endpoint: b.1,
            from_port: port(a),
            to_port: port(b),
            transport: from.transport.clone(),
            latency_ns: from
                .latency_ns
                .max(to.latency_ns)
                .saturating_add(joined.latency_ns),
            bytes_per_s: if slowest == u64::MAX { 0 } else { slowest },
            hops: joined.hops,
            last_resort: false,
        }
    }

    /// How the ranks of a net are joined, as far as one word says it.
    pub(crate) fn wired_type(&self, fabric: &Fabric, net: &Instance) -> TopologyType {
        let structures = self.structures(fabric, net);
        let special = structures
            .iter()
            .map(|structure| structure.kind)
            .find(|kind| matches!(kind, TopologyType::PairedDies | TopologyType::TwoMeshes));
        if let Some(kind) = special {
            return kind;
        }
        let whole = structures.iter().find(|structure| {
            structure.groups.len() == 1 && structure.groups[0].len() == net.ranks.len()
        });
        if let Some(structure) = whole {
            return structure.kind;
        }
        if self.has_one_root(fabric, net) {
            return TopologyType::Switched;
        }
        match &structures[..] {
            [rows, columns] if is_grid(rows, columns, net.ranks.len()) => TopologyType::Mesh2d,
            _ => TopologyType::Partial,
        }
    }

    /// Whether one switch stands above ports of all ranks of a net, whatever their planes.
    fn has_one_root(&self, fabric: &Fabric, net: &Instance) -> bool {
        let mut below = BTreeMap::<u32, usize>::new();
        for &rank in &net.ranks {
            let ports = fabric.ports_of(rank).filter_map(|(_, id)| {
                let port = fabric.port(id)?;
                (port.layer == net.layer)
                    .then(|| fabric.root_of(id))
                    .flatten()
            });
            let mut roots: Vec<u32> = ports.map(|root| root.0).collect();
            roots.sort_unstable();
            roots.dedup();
            for root in roots {
                *below.entry(root).or_default() += 1;
            }
        }
        below.into_values().any(|ranks| ranks == net.ranks.len())
    }

    fn structures(&self, fabric: &Fabric, net: &Instance) -> Vec<TopologyInstance> {
        // What joins ranks of a plane: the topmost switch, or cables.
        let mut planes = BTreeMap::<u32, Vec<(Rank, PortId)>>::new();
        for &rank in &net.ranks {
            for (_, id) in fabric.ports_of(rank) {
                let Some(port) = fabric.port(id).filter(|port| port.layer == net.layer) else {
                    continue;
                };
                planes.entry(port.plane).or_default().push((rank, id));
            }
        }
        let declared = |plane: u32| {
            let known = fabric.facts().planes.iter();
            known
                .filter(|known| (known.layer, known.plane) == (net.layer, plane))
                .map(|known| known.kind)
                .next()
        };
        planes
            .into_iter()
            .map(|(plane, ports)| {
                let groups = groups(fabric, net.layer, plane, &ports);
                let kinds: Vec<TopologyType> = groups
                    .iter()
                    .map(|group| kind(fabric, net.layer, plane, group))
                    .collect();
                let alike = runs(&kinds, |kind| *kind).len() == 1;
                let found = if alike {
                    kinds[0]
                } else {
                    TopologyType::Partial
                };
                TopologyInstance {
                    plane,
                    kind: declared(plane).unwrap_or(found),
                    groups: groups.into_iter().map(|(_, ranks)| ranks).collect(),
                }
            })
            .collect()
    }
}

/// Whether endpoints with ports are a link.
pub(crate) fn wired(
    from: &EndpointFacts,
    to: &EndpointFacts,
    joined: Option<Joined>,
    allowed: &Allowed,
) -> Result<Joined, Refusal> {
    for endpoint in [from, to] {
        if !allowed.contains(&endpoint.transport) {
            return Err(Refusal::NotAllowed {
                transport: endpoint.transport.clone(),
                allowed: allowed.to_string(),
            });
        }
    }
    if from.transport != to.transport {
        return Err(Refusal::OtherTransport {
            a: from.transport.clone(),
            b: to.transport.clone(),
        });
    }
    legal(from)?;
    legal(to)?;
    joined.ok_or(Refusal::NotWired)
}

/// Whether ranks of a plane are joined by a switch above all of them.
type Switched = bool;

/// Ranks of a plane that reach each other.
fn groups(
    fabric: &Fabric,
    layer: Layer,
    plane: u32,
    ports: &[(Rank, PortId)],
) -> Vec<(Switched, Vec<Rank>)> {
    let mut by_root = BTreeMap::<u32, Vec<Rank>>::new();
    let mut cabled = BTreeMap::<Rank, bool>::new();
    for &(rank, port) in ports {
        match fabric.root_of(port) {
            Some(root) => by_root.entry(root.0).or_default().push(rank),
            None => {
                cabled.insert(rank, false);
            }
        }
    }
    let mut groups: Vec<_> = by_root.into_values().map(|ranks| (true, ranks)).collect();
    let starts: Vec<Rank> = cabled.keys().copied().collect();
    for start in starts {
        let mut group = Vec::new();
        let mut next = vec![start];
        while let Some(rank) = next.pop() {
            if cabled.insert(rank, true) == Some(false) {
                group.push(rank);
                let near = fabric.neighbours(rank, layer, plane);
                next.extend(near.filter(|near| cabled.get(near) == Some(&false)));
            }
        }
        if !group.is_empty() {
            group.sort_unstable();
            groups.push((false, group));
        }
    }
    for (_, ranks) in &mut groups {
        ranks.dedup();
    }
    groups.sort_unstable_by_key(|(_, ranks)| ranks.first().copied());
    groups
}

fn kind(
    fabric: &Fabric,
    layer: Layer,
    plane: u32,
    (switched, ranks): &(Switched, Vec<Rank>),
) -> TopologyType {
    if ranks.len() == 1 {
        return TopologyType::Single;
    }
    if *switched {
        return TopologyType::Switched;
    }
    let degrees = ranks.iter().map(|rank| {
        let mut near: Vec<Rank> = fabric.neighbours(*rank, layer, plane).collect();
        near.sort_unstable();
        near.dedup();
        near.len()
    });
    let degrees: Vec<usize> = degrees.collect();
    if degrees.iter().all(|degree| degree + 1 == ranks.len()) {
        TopologyType::Mesh
    } else if degrees.iter().all(|degree| *degree == 2) {
        TopologyType::Ring
    } else {
        TopologyType::Partial
    }
}

/// Whether two structures are the rows and the columns of one mesh.
fn is_grid(rows: &TopologyInstance, columns: &TopologyInstance, ranks: usize) -> bool {
    let meshes = [rows, columns].map(|axis| axis.kind == TopologyType::Mesh);
    if meshes != [true, true] || rows.groups.len() * columns.groups.len() != ranks {
        return false;
    }
    let mut place = BTreeMap::<Rank, (usize, usize)>::new();
    for (number, group) in rows.groups.iter().enumerate() {
        for rank in group {
            place.entry(*rank).or_default().0 = number;
        }
    }
    for (number, group) in columns.groups.iter().enumerate() {
        for rank in group {
            place.entry(*rank).or_default().1 = number;
        }
    }
    let mut places: Vec<_> = place.into_values().collect();
    places.sort_unstable();
    places.dedup();
    places.len() == ranks
}
