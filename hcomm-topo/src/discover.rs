//! Finds out what a host is made of.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::str::FromStr;

use hcomm_types::{Error, ErrorKind, HostId};

use crate::host::{Cache, CacheKind, Core, HostFacts, NumaNode};
use crate::infiniband;
use crate::interface::{Interface, is_interface_name};
use crate::pci;
use crate::system::System;

/// Finds out what the host behind `system` is made of.
///
/// What cannot be read is left out and named in [`HostFacts::notes`]: a container without
/// `/sys`, or with an empty one, is discovered as well as it can be.
///
/// # Errors
/// Only if nothing tells this host from another: no boot id, no machine id and no name.
///
/// ```
/// let facts = hcomm_topo::discover(&hcomm_topo::LiveSystem)?;
/// println!("{} has {} logical processors", facts.name, facts.cores.len());
/// # Ok::<(), hcomm_topo::DiscoverError>(())
/// ```
pub fn discover(system: &dyn System) -> Result<HostFacts, DiscoverError> {
    let mut reader = Reader {
        system,
        missing: BTreeMap::new(),
        notes: Vec::new(),
    };
    let name = reader.host_name();
    let id = reader.host_id(name.as_deref())?;
    let numa_nodes = reader.numa_nodes();
    let cores = reader.cores(&numa_nodes);
    let caches = reader.caches(&cores);
    let interfaces = reader.interfaces();
    let network_namespace = reader.network_namespace();
    Ok(HostFacts {
        name: name.unwrap_or_else(|| id.0.clone()),
        id,
        cores,
        numa_nodes,
        caches,
        interfaces,
        pci: pci::devices(system),
        infiniband: infiniband::devices(system),
        network_namespace,
        notes: reader.into_notes(),
    })
}

/// A host that cannot be told from another.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// Nothing identifies the host.
    #[error(
        "cannot tell this host from others: {BOOT_ID}: {boot_id}; {MACHINE_ID}: {machine_id}; it has no name either"
    )]
    NoIdentity {
        /// Why there is no boot id.
        boot_id: io::Error,
        /// Why there is no machine id.
        machine_id: io::Error,
    },
}

impl From<DiscoverError> for Error {
    fn from(error: DiscoverError) -> Self {
        Self::new(ErrorKind::System, error.to_string())
            .hint("mount /proc, or give the host a name")
            .with_source(error)
    }
}

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const MACHINE_ID: &str = "/etc/machine-id";
const CPU: &str = "/sys/devices/system/cpu";
const NODE: &str = "/sys/devices/system/node";
const NET: &str = "/sys/class/net";

/// Kernels are built for at most 8,192 processors; a list that names more is no list of ours.
const MAX_LISTED: usize = 1 << 16;

/// Reads, and remembers what was not there.
struct Reader<'a> {
    system: &'a dyn System,
    /// By what was looked for: how often it was missing, and why the first time.
    missing: BTreeMap<String, (usize, String)>,
    notes: Vec<String>,
}

impl Reader<'_> {
    fn host_name(&mut self) -> Option<String> {
        match self.system.host_name() {
            Ok(name) if !name.trim().is_empty() && name != "(none)" => Some(name.trim().to_owned()),
            Ok(_) => {
                self.notes.push("the host has no name".to_owned());
                None
            }
            Err(error) => {
                self.notes.push(format!("the host's name: {error}"));
                None
            }
        }
    }

    fn host_id(&mut self, name: Option<&str>) -> Result<HostId, DiscoverError> {
        let boot_id = match self.identity(BOOT_ID) {
            Ok(id) => return Ok(HostId(id)),
            Err(error) => error,
        };
        let machine_id = match self.identity(MACHINE_ID) {
            Ok(id) => {
                // Cloned images share a machine id: the name tells them apart.
                let id = format!("machine:{id}:{}", name.unwrap_or_default());
                self.notes.push(format!(
                    "{BOOT_ID}: {boot_id}; hosts are told apart by {MACHINE_ID} and name"
                ));
                return Ok(HostId(id));
            }
            Err(error) => error,
        };
        let Some(name) = name else {
            return Err(DiscoverError::NoIdentity {
                boot_id,
                machine_id,
            });
        };
        self.notes.push(format!(
            "{BOOT_ID}: {boot_id}; {MACHINE_ID}: {machine_id}; hosts are told apart by name alone"
        ));
        Ok(HostId(format!("name:{name}")))
    }

    fn identity(&self, path: &str) -> io::Result<String> {
        let text = self.system.read(path)?;
        let id = text.trim();
        let sound = (8..=64).contains(&id.len())
            && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if sound {
            Ok(id.to_owned())
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "holds no identity",
            ))
        }
    }

    fn numa_nodes(&mut self) -> Vec<NumaNode> {
        let Some(ids) = self.cpu_list(&format!("{NODE}/online"), &format!("{NODE}/online")) else {
            return Vec::new();
        };
        ids.into_iter()
            .map(|id| {
                let folder = format!("{NODE}/node{id}");
                let any = format!("{NODE}/node*");
                NumaNode {
                    id,
                    cpus: self
                        .cpu_list(&format!("{folder}/cpulist"), &format!("{any}/cpulist"))
                        .unwrap_or_default(),
                    memory_bytes: self
                        .text(&format!("{folder}/meminfo"), &format!("{any}/meminfo"))
                        .and_then(|text| total_memory(&text)),
                    distances: self
                        .text(&format!("{folder}/distance"), &format!("{any}/distance"))
                        .map(|text| {
                            text.split_whitespace()
                                .map_while(|d| d.parse().ok())
                                .collect()
                        })
                        .unwrap_or_default(),
                }
            })
            .collect()
    }

    fn cores(&mut self, numa_nodes: &[NumaNode]) -> Vec<Core> {
        let online = format!("{CPU}/online");
        let cpus = self
            .cpu_list(&online, &online)
            .or_else(|| self.cpus_of_proc_stat())
            .unwrap_or_default();
        let node_of: BTreeMap<u32, u32> = numa_nodes
            .iter()
            .flat_map(|node| node.cpus.iter().map(|&cpu| (cpu, node.id)))
            .collect();
        cpus.into_iter()
            .map(|cpu| {
                let mut topology = |file: &str| {
                    self.number(
                        &format!("{CPU}/cpu{cpu}/topology/{file}"),
                        &format!("{CPU}/cpu*/topology/{file}"),
                    )
                };
                Core {
                    cpu,
                    core: topology("core_id"),
                    package: topology("physical_package_id"),
                    numa_node: node_of.get(&cpu).copied(),
                }
            })
            .collect()
    }

    /// The processors that `/proc/stat` counts ticks of: those that are online.
    fn cpus_of_proc_stat(&mut self) -> Option<Vec<u32>> {
        let text = self.text("/proc/stat", "/proc/stat")?;
        let cpus: BTreeSet<u32> = text
            .lines()
            .filter_map(|line| line.strip_prefix("cpu")?.split(' ').next()?.parse().ok())
            .take(MAX_LISTED)
            .collect();
        Some(cpus.into_iter().collect())
    }

    fn caches(&mut self, cores: &[Core]) -> Vec<Cache> {
        let mut found = BTreeMap::new();
        for &Core { cpu, .. } in cores {
            let folder = format!("{CPU}/cpu{cpu}/cache");
            let any = format!("{CPU}/cpu*/cache");
            let Some(entries) = self.names(&folder, &any) else {
                continue;
            };
            for entry in entries.iter().filter(|entry| entry.starts_with("index")) {
                if let Some(cache) = self.cache(&folder, &any, entry, cpu) {
                    found.insert((cache.level, cache.kind, cache.cpus.clone()), cache);
                }
            }
        }
        found.into_values().collect()
    }

    fn cache(&mut self, folder: &str, any: &str, entry: &str, cpu: u32) -> Option<Cache> {
        let path = |file: &str| format!("{folder}/{entry}/{file}");
        let shape = |file: &str| format!("{any}/index*/{file}");
        let kind = match self.text(&path("type"), &shape("type"))?.trim() {
            "Data" => CacheKind::Data,
            "Instruction" => CacheKind::Instruction,
            "Unified" => CacheKind::Unified,
            _ => return None,
        };
        Some(Cache {
            level: self.number(&path("level"), &shape("level"))?,
            kind,
            bytes: self
                .text(&path("size"), &shape("size"))
                .and_then(|text| size(text.trim()))?,
            line_bytes: self.number(&path("coherency_line_size"), &shape("coherency_line_size")),
            cpus: self
                .cpu_list(&path("shared_cpu_list"), &shape("shared_cpu_list"))
                .unwrap_or_else(|| vec![cpu]),
        })
    }

    fn interfaces(&mut self) -> Vec<Interface> {
        let mut interfaces = match self.system.interfaces() {
            Ok(interfaces) => interfaces,
            Err(error) => {
                self.notes.push(format!("network interfaces: {error}"));
                return Vec::new();
            }
        };
        interfaces.sort_by(|a, b| (a.index, &a.name).cmp(&(b.index, &b.name)));
        let default_routes = self.default_routes();
        let described = self.names(NET, NET);
        let mut undescribed = 0;
        for interface in &mut interfaces {
            interface.default_route = default_routes.contains(&interface.name);
            // A name goes into a path below: it must be one that the kernel would give.
            if !is_interface_name(&interface.name) {
                continue;
            }
            let Some(described) = &described else {
                continue;
            };
            if described.binary_search(&interface.name).is_err() {
                undescribed += 1;
                continue;
            }
            // Virtual devices answer "unknown" or have no such file: nothing to tell anyone.
            let folder = format!("{NET}/{}", interface.name);
            interface.speed_bits_per_s = self
                .quiet_number::<u64>(&format!("{folder}/speed"))
                .filter(|&megabits| megabits > 0 && megabits < u64::from(u32::MAX))
                .map(|megabits| megabits * 1_000_000);
            interface.numa_node = self.quiet_number(&format!("{folder}/device/numa_node"));
        }
        if undescribed > 0 {
            self.notes.push(format!(
                "{NET}: {undescribed} of {} interfaces are not there",
                interfaces.len()
            ));
        }
        interfaces
    }

    /// Names of the interfaces that a default route leaves through.
    fn default_routes(&mut self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        if let Some(text) = self.text("/proc/net/route", "/proc/net/route") {
            names.extend(text.lines().skip(1).filter_map(default_v4_route));
        }
        // A host without IPv6 has no such file.
        if let Ok(text) = self.system.read("/proc/net/ipv6_route") {
            names.extend(text.lines().filter_map(default_v6_route));
        }
        names
    }

    fn network_namespace(&mut self) -> Option<String> {
        let path = "/proc/self/ns/net";
        match self.system.link_target(path) {
            Ok(target) => Some(target),
            Err(error) => {
                self.missing(path, &error);
                None
            }
        }
    }

    /// Text of a file; `shape` is its path with stars, under which all its like are counted.
    fn text(&mut self, path: &str, shape: &str) -> Option<String> {
        match self.system.read(path) {
            Ok(text) => Some(text),
            Err(error) => {
                self.missing(shape, &error);
                None
            }
        }
    }

    fn names(&mut self, path: &str, shape: &str) -> Option<Vec<String>> {
        match self.system.list(path) {
            Ok(names) => Some(names),
            Err(error) => {
                self.missing(shape, &error);
                None
            }
        }
    }

    /// A number; none if it is missing or negative (the kernel's "unknown").
    fn number<T: FromStr>(&mut self, path: &str, shape: &str) -> Option<T> {
        self.text(path, shape)?.trim().parse().ok()
    }

    fn quiet_number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.system.read(path).ok()?.trim().parse().ok()
    }

    /// A list of numbers as the kernel writes them: `0-3,8`.
    fn cpu_list(&mut self, path: &str, shape: &str) -> Option<Vec<u32>> {
        let text = self.text(path, shape)?;
        let list = number_list(text.trim());
        if list.is_none() {
            self.missing(shape, "holds no list of numbers");
        }
        list
    }

    fn missing(&mut self, shape: &str, why: &(impl ToString + ?Sized)) {
        let entry = self.missing.entry(shape.to_owned());
        entry.or_insert_with(|| (0, why.to_string())).0 += 1;
    }

    fn into_notes(mut self) -> Vec<String> {
        for (shape, (count, why)) in self.missing {
            self.notes.push(match count {
                1 => format!("{shape}: {why}"),
                _ => format!("{shape}: {why} ({count} times)"),
            });
        }
        self.notes
    }
}

/// `0-3,8` as numbers in ascending order; nothing if the text is anything else.
fn number_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = BTreeSet::new();
    for item in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        let length = last.checked_sub(first)? as usize;
        if length >= MAX_LISTED || numbers.len() + length >= MAX_LISTED {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers.into_iter().collect())
}

/// `32K`, `36M`.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// From `Node 0 MemTotal:  4417748 kB`.
fn total_memory(meminfo: &str) -> Option<u64> {
    let (_, rest) = meminfo.split_once("MemTotal:")?;
    let kilobytes: u64 = rest.split_whitespace().next()?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// `eth0 00000000 010200C0 0003 …`: name, destination, gateway, flags, …, mask as eighth.
fn default_v4_route(line: &str) -> Option<String> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let flags = u32::from_str_radix(fields.get(3)?, 16).ok()?;
    let default = fields.get(1) == Some(&"00000000") && fields.get(7) == Some(&"00000000");
    (default && flags & ROUTE_UP != 0 && flags & ROUTE_REJECT == 0).then(|| fields[0].to_owned())
}

/// Destination, its prefix, …, flags as ninth, name as tenth.
fn default_v6_route(line: &str) -> Option<String> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let flags = u32::from_str_radix(fields.get(8)?, 16).ok()?;
    let default = fields[0].bytes().all(|digit| digit == b'0') && fields.get(1) == Some(&"00");
    let name = fields.get(9).filter(|&&name| name != "lo")?;
    (default && flags & ROUTE_UP != 0 && flags & ROUTE_REJECT == 0).then(|| (*name).to_owned())
}

/// `RTF_UP` and `RTF_REJECT`.
const ROUTE_UP: u32 = 0x1;
const ROUTE_REJECT: u32 = 0x200;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_of_numbers() {
        assert_eq!(number_list(""), Some(vec![]));
        assert_eq!(number_list("0-2,8,4"), Some(vec![0, 1, 2, 4, 8]));
        for wrong in ["3-1", "a", "1,", "0-4294967295", "-1", "1-"] {
            assert_eq!(number_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sizes_of_caches() {
        assert_eq!(size("48K"), Some(48 << 10));
        assert_eq!(size("2M"), Some(2 << 20));
        assert_eq!(size("7"), Some(7));
        for wrong in ["", "K", "12T", "1.5M", "-1K", "18446744073709551615G"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn default_routes_are_found_and_refusals_are_not() {
        let v4 = |line| default_v4_route(line);
        assert_eq!(
            v4("eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0").as_deref(),
            Some("eth0")
        );
        assert_eq!(v4("eth0 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0"), None);
        assert_eq!(v4("* 00000000 00000000 0201 0 0 0 00000000 0 0 0"), None);
        assert_eq!(v4("eth0 0000"), None);
        let zero = "0".repeat(32);
        let v6 = |flags: &str, name: &str| {
            default_v6_route(&format!(
                "{zero} 00 {zero} 00 {zero} 00000400 00000002 00000000 {flags} {name}"
            ))
        };
        assert_eq!(v6("00000003", "eth0").as_deref(), Some("eth0"));
        assert_eq!(v6("00200200", "lo"), None);
        assert_eq!(default_v6_route(""), None);
    }

    proptest! {
        #[test]
        fn parsers_of_system_files_take_any_text(text in "\\PC{0,80}|[0-9,-]{0,40}|[0-9]{0,20}[KMG]?") {
            let _ = (number_list(&text), size(&text), total_memory(&text));
            let _ = (default_v4_route(&text), default_v6_route(&text));
        }

        #[test]
        fn a_list_reads_back(numbers in proptest::collection::btree_set(0u32..9000, 0..50)) {
            let text: Vec<_> = numbers.iter().map(u32::to_string).collect();
            prop_assert_eq!(number_list(&text.join(",")), Some(numbers.into_iter().collect()));
        }
    }
}
