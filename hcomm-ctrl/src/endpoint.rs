//! What this process offers to others: its host, and the devices of its transports as endpoints.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use hcomm_topo::{
    EndpointFacts, HostFacts, Interface, InterfaceFilter, InterfaceKind, LiveSystem, RankFacts,
    Reach, discover,
};
use hcomm_transport::{Capabilities, Device, DeviceInfo, Transports};
use hcomm_types::{Address, Error, ErrorKind, Location, ProcessId, Rank, Result};
use serde::{Deserialize, Serialize};

use crate::bootstrap::Member;
use crate::cores::Cores;
use crate::membership::lock;
use crate::settings::Settings;
use crate::tuning::Tuning;

/// What a rank tells the others at start-up, besides what bootstrap itself needs.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// For the rank graph.
    pub(crate) rank: RankFacts,
    /// Inode of the PID namespace: process numbers mean the same where it is the same.
    pub(crate) pid_namespace: Option<u64>,
    /// Cores that the process may use.
    pub(crate) cores: Cores,
    /// The endpoint that the communicator buffer is allocated on, if that one maps memory.
    pub(crate) mapping_endpoint: Option<u32>,
    /// The tuning file, of rank 0 if it has one.
    pub(crate) tuning: Option<Tuning>,
}

/// The same as it travels: without rank and host, which go beside it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    process: ProcessId,
    local_rank: u32,
    endpoints: Vec<EndpointFacts>,
    pid_namespace: Option<u64>,
    cores: Cores,
    mapping_endpoint: Option<u32>,
    tuning: Option<Tuning>,
}

impl Facts {
    /// What is said of the rank, and of its host.
    pub(crate) fn encode(self) -> Result<(Vec<u8>, Vec<u8>)> {
        let internal = |error: serde_json::Error| {
            Error::new(ErrorKind::Internal, format!("facts as JSON: {error}"))
        };
        let said = Said {
            process: self.rank.process,
            local_rank: self.rank.local_rank,
            endpoints: self.rank.endpoints,
            pid_namespace: self.pid_namespace,
            cores: self.cores,
            mapping_endpoint: self.mapping_endpoint,
            tuning: self.tuning,
        };
        Ok((
            serde_json::to_vec(&said).map_err(internal)?,
            serde_json::to_vec(&*self.rank.host).map_err(internal)?,
        ))
    }

    /// The facts of all ranks, in their order. Ranks of one host share what is said of it.
    pub(crate) fn decode_all(members: &[Member]) -> Result<Vec<Self>> {
        let mut hosts = HashMap::<&[u8], Arc<HostFacts>>::new();
        members
            .iter()
            .map(|member| {
                let bytes = &*member.host_facts;
                let host = match hosts.get(bytes) {
                    Some(host) => Arc::clone(host),
                    None => {
                        let host = serde_json::from_slice(bytes).map(Arc::new);
                        let host = host.map_err(|error| no_facts(member.rank, &error))?;
                        hosts.insert(bytes, Arc::clone(&host));
                        host
                    }
                };
                Self::decode(member.rank, &member.facts, host)
            })
            .collect()
    }

    fn decode(rank: Rank, bytes: &[u8], host: Arc<HostFacts>) -> Result<Self> {
        let said: Said = serde_json::from_slice(bytes).map_err(|error| no_facts(rank, &error))?;
        Ok(Self {
            rank: RankFacts {
                rank,
                process: said.process,
                host,
                local_rank: said.local_rank,
                endpoints: said.endpoints,
            },
            pid_namespace: said.pid_namespace,
            cores: said.cores,
            mapping_endpoint: said.mapping_endpoint,
            tuning: said.tuning,
        })
    }
}

fn no_facts(rank: Rank, error: &serde_json::Error) -> Error {
    Error::new(
        ErrorKind::Mismatch,
        format!("rank {rank} sent facts that are none: {error}"),
    )
    .blame_rank(rank)
    .hint("do all ranks run the same build?")
}

/// The devices of this process's transports, and those of them that are open.
#[derive(Debug)]
pub(crate) struct Endpoints {
    infos: Vec<DeviceInfo>,
    open: Mutex<HashMap<usize, Device>>,
}

impl Endpoints {
    /// All devices of all transports in use; of those with an IP address, the ones on interfaces
    /// that the settings choose.
    pub(crate) fn list(transports: &Transports, settings: &Settings) -> Result<Self> {
        let mut infos = Vec::new();
        for plugin in transports.used() {
            infos.extend(plugin.devices()?);
        }
        // What reaches other processes and maps their memory serves ranks of one process as well,
        // and then all links share one kind of memory.
        let wide = |info: &DeviceInfo| {
            let needed = Capabilities::MAP | Capabilities::ALLOCATE | Capabilities::SAME_PROCESS;
            info.capabilities.contains(needed) && reach(info.capabilities) != Reach::Process
        };
        if infos.iter().any(wide) {
            infos.retain(|info| reach(info.capabilities) != Reach::Process);
        }
        let filter: InterfaceFilter = settings.socket_ifname().parse()?;
        choose_addresses(&mut infos, &filter, &this_host()?.interfaces, |info| {
            &info.address
        });
        Ok(Self {
            infos,
            open: Mutex::new(HashMap::new()),
        })
    }

    /// The facts about each, in the order of their numbers.
    pub(crate) fn facts(&self) -> Vec<EndpointFacts> {
        self.infos
            .iter()
            .map(|info| EndpointFacts {
                protocol: info.protocol,
                address: info.address.clone(),
                location: Location::Host,
                reach: reach(info.capabilities),
                latency_ns: info.latency_ns,
                bytes_per_s: info.bytes_per_s,
                transport: info.plugin.name().to_owned(),
                device: info.name.clone(),
            })
            .collect()
    }

    /// The device of an endpoint, opened at first use.
    pub(crate) fn device(&self, endpoint: usize) -> Result<Device> {
        let mut open = lock(&self.open);
        if let Some(device) = open.get(&endpoint) {
            return Ok(device.clone());
        }
        let info = self.infos.get(endpoint).ok_or_else(|| {
            Error::new(
                ErrorKind::Internal,
                format!("no endpoint {endpoint} of this rank"),
            )
        })?;
        let device = info.open()?;
        open.insert(endpoint, device.clone());
        Ok(device)
    }

    /// The device that the communicator buffer and other memory is allocated on when nothing else
    /// is said: of those that allocate, the one that can map, with the smallest latency.
    pub(crate) fn memory_device(&self) -> Result<Device> {
        let number = self.memory_endpoint().ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                "no transport in use allocates memory",
            )
            .hint("see `hcomm transports` for what was refused and why")
        })?;
        self.device(number)
    }

    /// The endpoint of [`memory_device`](Self::memory_device), if it maps memory.
    pub(crate) fn mapping_endpoint(&self) -> Option<u32> {
        let number = self.memory_endpoint()?;
        let maps = self.infos[number].capabilities.contains(Capabilities::MAP);
        maps.then_some(number as u32)
    }

    fn memory_endpoint(&self) -> Option<usize> {
        self.infos
            .iter()
            .enumerate()
            .filter(|(_, info)| info.capabilities.contains(Capabilities::ALLOCATE))
            // What reaches other processes serves ranks of one process, too.
            .min_by_key(|(_, info)| {
                (
                    !info.capabilities.contains(Capabilities::MAP),
                    reach(info.capabilities) == Reach::Process,
                    info.latency_ns,
                )
            })
            .map(|(number, _)| number)
    }

    /// The devices that are open.
    pub(crate) fn open(&self) -> Vec<Device> {
        lock(&self.open).values().cloned().collect()
    }
}

/// Addresses that a rank tells the others of: ranks look at all pairs of them, and a host of containers
/// has hundreds.
const MOST_ADDRESSES: usize = 16;

/// Keeps what has an IP address only where it is one of an interface that the filter lets pass. What
/// bridges and tunnels of this host have is left out as well, if there are others that lead to other
/// hosts and none was asked for by name: the same address is often found on each host. One with the
/// default route is no detour, as on a host whose cable is a port of its bridge. Of what is left after
/// that the best [`MOST_ADDRESSES`] stay.
fn choose_addresses<T>(
    list: &mut Vec<T>,
    filter: &InterfaceFilter,
    interfaces: &[Interface],
    address_of: impl Fn(&T) -> &Address,
) {
    let interface_of = |item: &T| {
        let Address::Ip(ip) = address_of(item) else {
            return None;
        };
        let has = |interface: &&Interface| interface.addresses.iter().any(|a| a.ip == *ip);
        interfaces.iter().find(has)
    };
    // An address of no known interface stays: nothing speaks against it.
    list.retain(|item| interface_of(item).is_none_or(|found| filter.matches(&found.name)));
    let is_detour = |interface: &Interface| {
        let inside = matches!(
            interface.kind,
            InterfaceKind::Bridge | InterfaceKind::Tunnel
        );
        inside && !interface.default_route
    };
    let leads_away = |interface: &Interface| !interface.loopback && !is_detour(interface);
    if *filter == InterfaceFilter::all() && list.iter().filter_map(interface_of).any(leads_away) {
        list.retain(|item| interface_of(item).is_none_or(|found| !is_detour(found)));
    }
    let mut addresses: Vec<_> = list
        .iter()
        .enumerate()
        .filter(|(_, item)| matches!(address_of(item), Address::Ip(_)))
        .map(|(number, item)| {
            let standing = interface_of(item).map(|found| {
                (
                    is_detour(found),
                    !found.running,
                    !found.default_route,
                    !found.loopback,
                )
            });
            (standing, number)
        })
        .collect();
    addresses.sort_unstable();
    let mut surplus: Vec<usize> = addresses
        .into_iter()
        .skip(MOST_ADDRESSES)
        .map(|(_, number)| number)
        .collect();
    surplus.sort_unstable();
    for number in surplus.into_iter().rev() {
        list.remove(number);
    }
}

/// How far a device reaches, from what it promises.
fn reach(capabilities: Capabilities) -> Reach {
    if capabilities.contains(Capabilities::CROSS_HOST) {
        Reach::Network
    } else if capabilities.contains(Capabilities::CROSS_PROCESS) {
        Reach::Host
    } else {
        Reach::Process
    }
}

/// This process: its number and a token drawn once.
pub(crate) fn this_process() -> ProcessId {
    static TOKEN: OnceLock<u64> = OnceLock::new();
    let token = *TOKEN.get_or_init(|| {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
        u64::from_ne_bytes(bytes)
    });
    ProcessId {
        pid: std::process::id(),
        token,
    }
}

/// This host, discovered once a process.
pub(crate) fn this_host() -> Result<Arc<HostFacts>> {
    static HOST: OnceLock<Arc<HostFacts>> = OnceLock::new();
    if let Some(host) = HOST.get() {
        return Ok(Arc::clone(host));
    }
    let host = Arc::new(discover(&LiveSystem)?);
    Ok(Arc::clone(HOST.get_or_init(|| host)))
}

/// Inode of this process's PID namespace.
pub(crate) fn pid_namespace() -> Option<u64> {
    rustix::fs::stat("/proc/self/ns/pid")
        .ok()
        .map(|stat| stat.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, kind: InterfaceKind, ip: &str) -> Interface {
        Interface {
            name: name.to_owned(),
            index: 1,
            kind,
            mac: None,
            addresses: vec![hcomm_topo::InterfaceAddress {
                ip: ip.parse().unwrap(),
                prefix_bits: 24,
            }],
            mtu_bytes: 1500,
            up: true,
            running: true,
            loopback: kind == InterfaceKind::Loopback,
            point_to_point: false,
            default_route: false,
            speed_bits_per_s: None,
            numa_node: None,
        }
    }

    #[test]
    fn addresses_are_chosen_by_their_interface() {
        let interfaces = [
            interface("lo", InterfaceKind::Loopback, "127.0.0.1"),
            interface("eth0", InterfaceKind::Ethernet, "10.0.0.1"),
            interface("docker0", InterfaceKind::Bridge, "172.17.0.1"),
        ];
        let chosen = |filter: &str, interfaces: &[Interface]| -> Vec<String> {
            let ips = ["127.0.0.1", "10.0.0.1", "172.17.0.1", "192.0.2.1"];
            let mut list: Vec<Address> = ips.map(|ip| Address::Ip(ip.parse().unwrap())).into();
            list.push(Address::Id(5));
            choose_addresses(&mut list, &filter.parse().unwrap(), interfaces, |item| item);
            list.iter().map(ToString::to_string).collect()
        };
        let id = Address::Id(5).to_string();
        assert_eq!(
            chosen("", &interfaces),
            ["127.0.0.1", "10.0.0.1", "192.0.2.1", &id]
        );
        assert_eq!(
            chosen("docker", &interfaces),
            ["172.17.0.1", "192.0.2.1", &id]
        );
        assert_eq!(
            chosen("^lo,eth", &interfaces),
            ["172.17.0.1", "192.0.2.1", &id]
        );
        // Where nothing else leads out, a bridge does.
        let bare = [interfaces[0].clone(), interfaces[2].clone()];
        assert_eq!(chosen("", &bare).len(), 5);
        // One with the default route does, whatever else there is.
        let mut bridged = interfaces;
        bridged[2].default_route = true;
        assert_eq!(chosen("", &bridged).len(), 5);
    }

    #[test]
    fn the_best_of_many_addresses_stay_and_those_that_were_chosen_by_name() {
        let mut interfaces: Vec<Interface> = (0..40)
            .map(|number| {
                let name = format!("veth{number}");
                interface(&name, InterfaceKind::Ethernet, &format!("10.0.{number}.1"))
            })
            .collect();
        interfaces[30].default_route = true;
        let chosen = |filter: &str| -> Vec<String> {
            let addresses = interfaces.iter().map(|i| Address::Ip(i.addresses[0].ip));
            let mut list: Vec<Address> = addresses.collect();
            list.insert(7, Address::Id(5));
            choose_addresses(&mut list, &filter.parse().unwrap(), &interfaces, |item| {
                item
            });
            list.iter().map(ToString::to_string).collect()
        };
        let all = chosen("");
        assert_eq!(all.len(), MOST_ADDRESSES + 1);
        assert!(all.contains(&"10.0.30.1".to_owned()) && all.contains(&"10.0.0.1".to_owned()));
        assert!(!all.contains(&"10.0.15.1".to_owned()));
        assert_eq!(
            chosen("=veth38"),
            [&Address::Id(5).to_string(), "10.0.38.1"]
        );
    }
}
