//! Devices on PCI Express that move or make data: network and InfiniBand cards, accelerators.

use serde::{Deserialize, Serialize};

use crate::system::System;

/// Devices that are looked at, at most.
const MAX_DEVICES: usize = 4096;

const DEVICES: &str = "/sys/bus/pci/devices";

/// A device on PCI Express.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PciDevice {
    /// Where it is: `0000:3b:00.0`.
    pub address: String,
    /// What it is for.
    pub kind: PciKind,
    /// Number of its maker.
    pub vendor: u16,
    /// Number that the maker gives it.
    pub device: u16,
    /// The way to it: the root complex (`pci0000:3a`) and the bridges, from there down. Two devices
    /// are the nearer the more their ways have in common.
    pub way: Vec<String>,
    /// NUMA node that it hangs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Bytes per second each way, as negotiated: lanes times their speed, less the line code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<u64>,
    /// Its network interfaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
}

impl PciDevice {
    /// Wires between two devices: to the lowest bridge above both, and down again. `None` if they hang
    /// on different root complexes, between which bytes go through the processor.
    #[must_use]
    pub fn hops(&self, other: &Self) -> Option<u32> {
        if self.address == other.address {
            return Some(0);
        }
        let pairs = self.way.iter().zip(&other.way);
        let common = pairs.take_while(|(a, b)| a == b).count();
        let hops = self.way.len() + other.way.len() + 2 - 2 * common;
        (common > 0).then(|| u32::try_from(hops).unwrap_or(u32::MAX))
    }
}

/// What a device is for, by its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PciKind {
    /// A network card.
    Network,
    /// An InfiniBand card.
    Infiniband,
    /// A graphics processor, or one without a screen.
    Display,
    /// An accelerator.
    Accelerator,
}

impl PciKind {
    /// From the class, of 24 bits.
    const fn from_class(class: u32) -> Option<Self> {
        match (class >> 16, class >> 8 & 0xff) {
            (0x02, 0x07) => Some(Self::Infiniband),
            (0x02, _) => Some(Self::Network),
            (0x03, _) => Some(Self::Display),
            (0x12 | 0x0b, _) => Some(Self::Accelerator),
            _ => None,
        }
    }
}

/// The devices of a system, by address. A system that does not tell has none.
pub(crate) fn devices(system: &dyn System) -> Vec<PciDevice> {
    let names = system.list(DEVICES).unwrap_or_default();
    let known = names.into_iter().filter(|name| is_address(name));
    known
        .take(MAX_DEVICES)
        .filter_map(|address| device(system, address))
        .collect()
}

fn device(system: &dyn System, address: String) -> Option<PciDevice> {
    let folder = folder(system, DEVICES, &address)?;
    let read = |file: &str| system.read(&format!("{folder}/{file}")).ok();
    let hex = |file: &str| {
        let text = read(file)?;
        u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    };
    let kind = PciKind::from_class(hex("class")?)?;
    // The parts of the path from the root complex on, without the device.
    let way = folder
        .split('/')
        .skip_while(|part| !part.starts_with("pci"));
    let mut way: Vec<String> = way.map(str::to_owned).collect();
    way.pop();
    let lanes = read("current_link_width").and_then(|text| text.trim().parse().ok());
    let speed = read("current_link_speed").and_then(|text| lane_bytes_per_s(&text));
    Some(PciDevice {
        kind,
        vendor: hex("vendor").and_then(|number| u16::try_from(number).ok())?,
        device: hex("device").and_then(|number| u16::try_from(number).ok())?,
        way,
        // -1 where the machine has no notion of it.
        numa_node: read("numa_node").and_then(|text| text.trim().parse().ok()),
        bytes_per_s: speed
            .zip(lanes)
            .filter(|(_, lanes)| (1..=64).contains(lanes))
            .map(|(speed, lanes): (u64, u64)| speed * lanes),
        interfaces: interfaces(system, &folder),
        address,
    })
}

/// Names of the interfaces of a device; those of a virtual one are a folder further down.
fn interfaces(system: &dyn System, folder: &str) -> Vec<String> {
    let names = |folder: &str| system.list(&format!("{folder}/net")).unwrap_or_default();
    let mut found = names(folder);
    if found.is_empty() {
        let below = system.list(folder).unwrap_or_default();
        for below in below.iter().filter(|name| name.starts_with("virtio")) {
            found.extend(names(&format!("{folder}/{below}")));
        }
    }
    found.retain(|name| crate::interface::is_interface_name(name) && !name.starts_with('.'));
    found
}

/// The folder below `/sys/devices` that an entry of a class or a bus leads to.
pub(crate) fn folder(system: &dyn System, class: &str, name: &str) -> Option<String> {
    let target = system.link_target(&format!("{class}/{name}")).ok()?;
    let mut parts: Vec<&str> = class.split('/').filter(|part| !part.is_empty()).collect();
    if target.starts_with('/') {
        parts.clear();
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    // Nothing else is a device; and a recording must not lead out of itself.
    parts
        .starts_with(&["sys", "devices"])
        .then(|| format!("/{}", parts.join("/")))
}

/// Whether a text is a domain, bus, device and function, as `0000:3b:00.0`.
pub(crate) fn is_address(text: &str) -> bool {
    let (place, function) = text.rsplit_once('.').unwrap_or_default();
    let parts: Vec<&str> = place.split(':').collect();
    let hex = |text: &str, length: std::ops::RangeInclusive<usize>| {
        length.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    matches!(parts[..], [domain, bus, device]
        if hex(domain, 4..=8) && hex(bus, 2..=2) && hex(device, 2..=2))
        && hex(function, 1..=1)
}

/// Bytes per second of a lane, from `16.0 GT/s PCIe`: 8 of 10 bits count up to 5 GT/s, 128 of 130 up
/// to 32, all but some above.
fn lane_bytes_per_s(text: &str) -> Option<u64> {
    let number = text.split_whitespace().next()?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let tenths =
        whole.parse::<u64>().ok()?.checked_mul(10)? + tenths.get(..1)?.parse::<u64>().ok()?;
    let bits = tenths.checked_mul(100_000_000)?;
    match tenths {
        1..=50 => Some(bits / 10),
        51..=320 => Some(bits / 130 * 16),
        321..=1280 => Some(bits / 256 * 242 / 8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_addresses_and_speeds() {
        assert_eq!(PciKind::from_class(0x02_0000), Some(PciKind::Network));
        assert_eq!(PciKind::from_class(0x02_0700), Some(PciKind::Infiniband));
        assert_eq!(PciKind::from_class(0x12_0000), Some(PciKind::Accelerator));
        assert_eq!(PciKind::from_class(0x06_0400), None);
        assert!(is_address("0000:3b:00.0") && is_address("10000:e1:1f.7"));
        for wrong in [
            "",
            "0000:3b:00",
            "3b:00.0",
            "0000:3b:00.10",
            "../..:3b:00.0",
        ] {
            assert!(!is_address(wrong), "{wrong}");
        }
        assert_eq!(lane_bytes_per_s("2.5 GT/s PCIe\n"), Some(250_000_000));
        assert_eq!(lane_bytes_per_s("8.0 GT/s PCIe"), Some(984_615_376));
        assert_eq!(lane_bytes_per_s("64.0 GT/s"), Some(7_562_500_000));
        for wrong in ["Unknown", "", "-1", "99999999999999999999 GT/s", "8. GT/s"] {
            assert_eq!(lane_bytes_per_s(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn hops_count_the_wires_between() {
        let device = |address: &str, way: &[&str]| PciDevice {
            address: address.to_owned(),
            kind: PciKind::Network,
            vendor: 1,
            device: 1,
            way: way.iter().map(|part| (*part).to_owned()).collect(),
            numa_node: None,
            bytes_per_s: None,
            interfaces: Vec::new(),
        };
        let card = device(
            "0000:03:00.0",
            &["pci0000:00", "0000:00:01.0", "0000:01:00.0"],
        );
        let beside = device(
            "0000:04:00.0",
            &["pci0000:00", "0000:00:01.0", "0000:01:00.0"],
        );
        let further = device("0000:05:00.0", &["pci0000:00", "0000:00:02.0"]);
        let apart = device("0000:81:00.0", &["pci0000:80", "0000:80:01.0"]);
        assert_eq!(card.hops(&card), Some(0));
        assert_eq!(card.hops(&beside), Some(2));
        assert_eq!(card.hops(&further), Some(5));
        assert_eq!(further.hops(&card), Some(5));
        assert_eq!(card.hops(&apart), None);
    }
}
