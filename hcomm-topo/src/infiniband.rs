//! Devices for remote memory access: InfiniBand, RoCE, and those made of software.

use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

use crate::pci;
use crate::system::System;

const CLASS: &str = "/sys/class/infiniband";

/// Devices, ports of a device, and entries of a port's table that are looked at, at most.
const MAX_DEVICES: usize = 256;
const MAX_PORTS: usize = 16;
const MAX_GIDS: usize = 256;

/// A device that reads and writes memory of others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InfinibandDevice {
    /// Name, as in `rdma link`.
    pub name: String,
    /// Where it is on PCI Express; none for one made of software.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// Version of its firmware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// Its ports.
    pub ports: Vec<InfinibandPort>,
}

/// A port of such a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InfinibandPort {
    /// Number, from 1.
    pub number: u8,
    /// Whether it can be used.
    pub active: bool,
    /// Whether it speaks over Ethernet (RoCE).
    pub ethernet: bool,
    /// Bits per second, as negotiated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits_per_s: Option<u64>,
    /// Its addresses.
    pub gids: Vec<Gid>,
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gid {
    /// Its place in the port's table, which connections name.
    pub index: u16,
    /// The address; one of IPv4 is mapped into IPv6.
    pub gid: Ipv6Addr,
    /// Whether it is routed in UDP (RoCE version 2).
    pub version_2: bool,
    /// The network interface that has the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

/// The devices of a system, by name. A system that does not tell has none.
pub(crate) fn devices(system: &dyn System) -> Vec<InfinibandDevice> {
    let names = system.list(CLASS).unwrap_or_default();
    let sound = |name: &String| {
        (1..=63).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_-.:".contains(&b))
            && !name.starts_with('.')
    };
    let names = names.into_iter().filter(sound).take(MAX_DEVICES);
    names.filter_map(|name| device(system, name)).collect()
}

fn device(system: &dyn System, name: String) -> Option<InfinibandDevice> {
    let folder = pci::folder(system, CLASS, &name)?;
    let mut ports: Vec<InfinibandPort> = system
        .list(&format!("{folder}/ports"))
        .unwrap_or_default()
        .iter()
        .filter_map(|number| number.parse().ok())
        .take(MAX_PORTS)
        .map(|number| port(system, &folder, number))
        .collect();
    ports.sort_by_key(|port| port.number);
    let firmware = system.read(&format!("{folder}/fw_ver")).ok();
    Some(InfinibandDevice {
        pci: folder
            .rsplit('/')
            .find(|part| pci::is_address(part))
            .map(str::to_owned),
        firmware: firmware
            .map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty() && text.len() <= 64),
        ports,
        name,
    })
}

fn port(system: &dyn System, folder: &str, number: u8) -> InfinibandPort {
    let folder = format!("{folder}/ports/{number}");
    let read = |file: &str| system.read(&format!("{folder}/{file}")).ok();
    let gids = system.list(&format!("{folder}/gids")).unwrap_or_default();
    let mut gids: Vec<Gid> = gids
        .iter()
        .filter_map(|index| index.parse().ok())
        .take(MAX_GIDS)
        .filter_map(|index: u16| {
            let gid: Ipv6Addr = read(&format!("gids/{index}"))?.trim().parse().ok()?;
            // An empty place is zeros, or a prefix and zeros.
            if gid.octets()[8..].iter().all(|byte| *byte == 0) {
                return None;
            }
            let kind = read(&format!("gid_attrs/types/{index}")).unwrap_or_default();
            let interface = read(&format!("gid_attrs/ndevs/{index}"));
            Some(Gid {
                index,
                gid,
                version_2: kind.contains("v2"),
                interface: interface
                    .map(|name| name.trim().to_owned())
                    .filter(|name| crate::interface::is_interface_name(name)),
            })
        })
        .collect();
    gids.sort_by_key(|gid| gid.index);
    InfinibandPort {
        number,
        // `4: ACTIVE`
        active: read("state").is_some_and(|state| state.contains("ACTIVE")),
        ethernet: read("link_layer").is_some_and(|layer| layer.trim() == "Ethernet"),
        bits_per_s: read("rate").and_then(|rate| bits_per_s(&rate)),
        gids,
    }
}

/// From `100 Gb/sec (4X EDR)`; a rate may have a fraction.
fn bits_per_s(text: &str) -> Option<u64> {
    let (number, rest) = text.trim().split_once(' ')?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let tenths =
        whole.parse::<u64>().ok()?.checked_mul(10)? + tenths.get(..1)?.parse::<u64>().ok()?;
    rest.starts_with("Gb/sec")
        .then(|| tenths.checked_mul(100_000_000))
        .flatten()
        .filter(|bits| *bits > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        assert_eq!(bits_per_s("100 Gb/sec (4X EDR)\n"), Some(100_000_000_000));
        assert_eq!(bits_per_s("2.5 Gb/sec (1X SDR)"), Some(2_500_000_000));
        for wrong in ["", "fast", "0 Gb/sec", "1 Mb/sec", "1. Gb/sec"] {
            assert_eq!(bits_per_s(wrong), None, "{wrong}");
        }
    }
}
