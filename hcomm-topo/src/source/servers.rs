//! Rank tables 1.0 and 1.2: servers with devices.
//!
//! Layers: 0 inside a server; in a table with super-pods 1 inside one of them; then the network
//! between devices. The tables do not say how devices of a server are wired: HCCS through a switch
//! stands for it, unless a topology file says better.

use hcomm_types::{Address, Location, Protocol, Rank};
use std::collections::BTreeMap;

use super::builder::{Builder, NewEndpoint, NewRank, check_count, ip, new_rank, nominal, port};
use super::edges::{Edges, Net};
use super::json::At;
use super::{Loaded, SourceError};
use crate::fabric::PortFacts;
use crate::link::Layer;

/// Longest name of a server.
const MAX_NAME: usize = 64;

pub(super) fn read(root: &At<'_>, edges: Option<&Edges>) -> Result<Loaded, SourceError> {
    if let Some(status) = root.get("status")?
        && status.text()? != "completed"
    {
        return Err(status.refuse(
            "the table is not \"completed\": whoever writes it has not finished, wait for that",
        ));
    }
    let version = root.get("version")?;
    match version.as_ref().map(At::text).transpose()? {
        None | Some("1.0" | "1.2" | "1") => {}
        Some(_) => {
            return Err(root
                .need("version")?
                .refuse("a table of servers is of version 1.0 or 1.2"));
        }
    }
    let mut table = Table::default();
    if let Some(groups) = root.get("group_list")? {
        table.old_groups(root, &groups)?;
    } else {
        let servers = root.need("server_list")?;
        check_count(root, "server_count", servers.items()?.len(), "servers")?;
        if let Some(pods) = root.get("super_pod_list")? {
            table.super_pods(&pods)?;
        }
        for server in servers.items()? {
            table.server(&server)?;
        }
    }
    table.finish(root, edges)
}

#[derive(Default)]
struct Table {
    builder: Builder,
    /// By server: number and line.
    servers: BTreeMap<String, (u32, usize)>,
    /// By server: its super-pod.
    pods: BTreeMap<String, (u32, String)>,
    devices: Vec<Device>,
}

struct Device {
    rank: u64,
    server: String,
    location: Location,
    device_id: u64,
    super_device_id: Option<u64>,
    addresses: Vec<std::net::IpAddr>,
    backup: Option<std::net::IpAddr>,
    host_ip: Option<std::net::IpAddr>,
}

impl Table {
    fn super_pods(&mut self, pods: &At<'_>) -> Result<(), SourceError> {
        for (number, pod) in (0..).zip(pods.items()?) {
            let name = pod.need("super_pod_id")?.text()?.to_owned();
            for server in pod.need("server_list")?.items()? {
                let id = server.need("server_id")?;
                let known = self
                    .pods
                    .insert(id.text()?.to_owned(), (number, name.clone()));
                if let Some((_, other)) = known {
                    return Err(id.refuse(format!("the server is in super-pod {other} already")));
                }
            }
        }
        Ok(())
    }

    fn server(&mut self, server: &At<'_>) -> Result<(), SourceError> {
        let id = server.need("server_id")?;
        let name = self.name(&id)?;
        let host_ip = match server.get("host_ip")? {
            Some(at) => Some(ip(&at)?),
            None => None,
        };
        let devices = server.need("device")?;
        check_count(server, "device_count", devices.items()?.len(), "devices")?;
        for device in devices.items()? {
            let rank_id = device.need("rank_id")?;
            let rank = new_rank(&self.builder, &rank_id)?;
            self.device(&device, rank, &name, host_ip)?;
        }
        Ok(())
    }

    fn name(&mut self, id: &At<'_>) -> Result<String, SourceError> {
        let name = id.text()?.to_owned();
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(id.refuse(format!("a name of 1 to {MAX_NAME} characters is expected")));
        }
        let number = self.servers.len() as u32;
        match self.servers.insert(name.clone(), (number, id.line())) {
            None => Ok(name),
            Some((_, line)) => {
                Err(id.refuse(format!("the server is listed on line {line} already")))
            }
        }
    }

    fn device(
        &mut self,
        device: &At<'_>,
        rank: u64,
        server: &str,
        host_ip: Option<std::net::IpAddr>,
    ) -> Result<(), SourceError> {
        let id = device.need("device_id")?;
        let device_id = id.number(0..=u64::from(u16::MAX))?;
        let twin = |known: &&Device| known.server == server && known.device_id == device_id;
        if let Some(twin) = self.devices.iter().rev().take(1024).find(twin) {
            return Err(id.refuse(format!(
                "the device is that of rank {} of this server already",
                twin.rank
            )));
        }
        let super_device_id = match device.get("super_device_id")? {
            Some(at) => Some(at.number(0..=u64::from(u32::MAX))?),
            None => None,
        };
        let mut addresses = Vec::new();
        if let Some(at) = device.get("device_ip")?
            && !at.text()?.trim().is_empty()
        {
            // Some list several, with commas.
            for text in at.text()?.split(',') {
                let address = text.trim().parse();
                addresses
                    .push(address.map_err(|_| at.refuse("an IPv4 or IPv6 address is expected"))?);
            }
        }
        let backup = match device.get("backup_device_ip")? {
            Some(at) if !at.text()?.is_empty() => Some(ip(&at)?),
            _ => None,
        };
        for name in ["device_port", "backup_device_port"] {
            port(device, name)?;
        }
        let host_port = port(device, "host_port")?;
        // Many tables name servers by their addresses.
        if rank == 0
            && let Some(address) = host_ip.or_else(|| server.parse().ok())
        {
            self.builder.root(address, host_port);
        }
        let host = self.builder.host(server, "a rank table");
        self.builder.add_rank(NewRank {
            rank,
            host,
            local_rank: device_id as u32,
            line: device.line(),
        });
        self.devices.push(Device {
            rank,
            location: Location::Device {
                physical_id: device_id as u32,
                super_device_id: super_device_id.unwrap_or(0) as u32,
                server_id: self.servers.get(server).map_or(0, |(number, _)| *number),
                super_pod_id: self.pods.get(server).map_or(0, |(number, _)| *number),
            },
            server: server.to_owned(),
            device_id,
            super_device_id,
            addresses,
            backup,
            host_ip,
        });
        Ok(())
    }

    /// The oldest form: groups of instances with devices, in the order of ranks.
    fn old_groups(&mut self, root: &At<'_>, groups: &At<'_>) -> Result<(), SourceError> {
        check_count(root, "group_count", groups.items()?.len(), "groups")?;
        let mut next = 0;
        for group in groups.items()? {
            let instances = group.need("instance_list")?;
            for instance in instances.items()? {
                let id = instance.need("server_id")?;
                let name = id.text()?.to_owned();
                if !self.servers.contains_key(&name) {
                    self.name(&id)?;
                }
                for device in instance.need("devices")?.items()? {
                    self.device(&device, next, &name, None)?;
                    next += 1;
                }
            }
        }
        self.builder
            .note("the table numbers no ranks: devices count in their order");
        Ok(())
    }

    fn finish(mut self, root: &At<'_>, edges: Option<&Edges>) -> Result<Loaded, SourceError> {
        if self.devices.is_empty() {
            return Err(root.refuse("no device is listed, so there is no rank"));
        }
        let has_pods = !self.pods.is_empty();
        let network = Layer(if has_pods { 2 } else { 1 });
        let devices = std::mem::take(&mut self.devices);
        self.servers_inside(&devices, edges);
        if has_pods {
            self.inside_pods(&devices, root)?;
        }
        self.between(&devices, network);
        let packages = devices
            .iter()
            .map(|device| (device.rank, device.device_id as u32));
        for (rank, package) in packages {
            self.builder.package(rank, package);
        }
        self.builder
            .note("a rank table has no bandwidths and latencies: nominal ones stand for them");
        self.builder.finish()
    }

    /// A port to a switch, and an endpoint behind it.
    fn plug(&mut self, device: &Device, layer: Layer, protocol: Protocol, wire: Wire<'_>) {
        let switch = self.builder.switch(wire.switch);
        let (latency_ns, bytes_per_s) = nominal(protocol);
        let port = self.builder.add_port(PortFacts {
            name: format!("{protocol}{}", device.device_id),
            layer,
            plane: wire.plane,
            bytes_per_s,
            switch: Some(switch),
        });
        self.builder.endpoint(
            device.rank,
            NewEndpoint {
                protocol,
                address: wire.address,
                location: device.location,
                latency_ns,
                bytes_per_s,
                device: format!("{protocol}{}", device.device_id),
                port: Some(port),
            },
        );
    }

    fn servers_inside(&mut self, devices: &[Device], edges: Option<&Edges>) {
        let mut by_server = BTreeMap::<&str, Vec<&Device>>::new();
        for device in devices {
            by_server.entry(&device.server).or_default().push(device);
        }
        for (server, devices) in by_server {
            let ranks: Vec<Rank> = devices
                .iter()
                .map(|device| Rank(device.rank as u32))
                .collect();
            self.builder.add_net(Layer::HOST, server, ranks);
            if let Some(edges) = edges {
                let net = Net {
                    layer: Layer::HOST,
                    name: server,
                    ranks: devices
                        .iter()
                        .map(|device| (device.device_id, (device.rank, device.location)))
                        .collect(),
                };
                edges.wire(&mut self.builder, &net);
                continue;
            }
            self.builder.note(
                "inside servers HCCS through a switch is assumed: a topology file says better",
            );
            let switch = format!("{server}/hccs");
            for device in devices {
                let wire = Wire::of(Address::Id(device.device_id), &switch);
                self.plug(device, Layer::HOST, Protocol::Hccs, wire);
            }
        }
    }

    fn inside_pods(&mut self, devices: &[Device], root: &At<'_>) -> Result<(), SourceError> {
        let mut nets = BTreeMap::<(u32, String), Vec<Rank>>::new();
        for device in devices {
            let Some(pod) = self.pods.get(&device.server).cloned() else {
                return Err(root
                    .need("super_pod_list")?
                    .refuse(format!("server {} is in no super-pod", device.server)));
            };
            let Some(id) = device.super_device_id else {
                return Err(root.need("server_list")?.refuse(format!(
                    "rank {} on server {} has no super_device_id, and its server is in super-pod {}",
                    device.rank, device.server, pod.1
                )));
            };
            let switch = format!("pod {}", pod.1);
            let wire = Wire::of(Address::Id(id), &switch);
            self.plug(device, Layer(1), Protocol::Hccs, wire);
            nets.entry(pod).or_default().push(Rank(device.rank as u32));
        }
        for ((_, name), ranks) in nets {
            self.builder.add_net(Layer(1), &name, ranks);
        }
        Ok(())
    }

    fn between(&mut self, devices: &[Device], layer: Layer) {
        let mut joined = Vec::new();
        for device in devices {
            for address in &device.addresses {
                let wire = Wire::of(Address::Ip(*address), "network");
                self.plug(device, layer, Protocol::Roce, wire);
            }
            if let Some(backup) = device.backup {
                let mut wire = Wire::of(Address::Ip(backup), "backup network");
                wire.plane = 1;
                self.plug(device, layer, Protocol::Roce, wire);
            }
            if !device.addresses.is_empty() {
                joined.push(Rank(device.rank as u32));
            }
            if let Some(host_ip) = device.host_ip {
                let (latency_ns, bytes_per_s) = nominal(Protocol::Tcp);
                self.builder.endpoint(
                    device.rank,
                    NewEndpoint {
                        protocol: Protocol::Tcp,
                        address: Address::Ip(host_ip),
                        location: Location::Host,
                        latency_ns,
                        bytes_per_s,
                        device: "host".to_owned(),
                        port: None,
                    },
                );
            }
        }
        if joined.len() < devices.len() {
            self.builder.note(format!(
                "{} of {} devices have no device_ip and are not in the network between servers",
                devices.len() - joined.len(),
                devices.len()
            ));
        }
        if !joined.is_empty() {
            self.builder.add_net(layer, "network", joined);
        }
    }
}

struct Wire<'a> {
    address: Address,
    switch: &'a str,
    plane: u32,
}

impl<'a> Wire<'a> {
    const fn of(address: Address, switch: &'a str) -> Self {
        Self {
            address,
            switch,
            plane: 0,
        }
    }
}
