//! The devices: one for each address of this host that others may reach.
//!
//! A process lists its addresses once, so that numbers of devices stay what they are.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::OnceLock;

use hcomm_transport_abi::{
    CAP_ALLOCATE, CAP_CROSS_HOST, CAP_CROSS_PROCESS, CAP_LOCAL_ANY, CAP_NOTIFY, CAP_READ,
    CAP_READ_REDUCE, CAP_REGISTER, CAP_SAME_PROCESS, CAP_WAKE_FD, CAP_WRITE, CAP_WRITE_NOTIFY,
    CAP_WRITE_REDUCE, DeviceAttrV1, DeviceAttributes, Fault, STATUS_NO_DEVICE, STATUS_SYSTEM,
};

use crate::sys::{HostAddress, host_addresses};
use crate::wire::MAX_BLOB_BYTES;

/// Number of the protocol.
pub(crate) const PROTOCOL: u32 = 1;
/// Notifies of one end: 4096 lines of 64 bytes are 256 KiB.
pub(crate) const MAX_NOTIFIES: u32 = 4096;
/// Descriptors of one `post`.
pub(crate) const MAX_BATCH: u32 = 1024;

/// Half a round trip of 8 bytes between two busy sides, over veth and over loopback. A figure for
/// planning; `hcomm tune` replaces it.
const LATENCY_NS: u64 = 5_000;
/// What one socket carries inside a host.
const LOOPBACK_BYTES_PER_S: u64 = 3_000_000_000;
/// A link that does not tell its speed is taken for one of 10 Gbit/s, as in most clouds.
const BYTES_PER_S: u64 = 1_250_000_000;
/// Addresses that are listed: the layer above knows which are wanted, and takes few of them.
const MAX_PLACES: usize = 1024;

/// An address to listen at and to connect from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    name: String,
    address: HostAddress,
    bytes_per_s: u64,
    numa_node: i32,
}

impl Place {
    /// The address with a port, and with the scope that a link-local address needs.
    pub(crate) fn at(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V4(_) => SocketAddr::new(ip, port),
            IpAddr::V6(v6) => {
                let scope = if v6.is_unicast_link_local() {
                    self.address.index
                } else {
                    0
                };
                SocketAddr::V6(SocketAddrV6::new(v6, port, 0, scope))
            }
        }
    }

    pub(crate) const fn ip(&self) -> IpAddr {
        self.address.ip
    }

    fn of(address: HostAddress) -> Self {
        let file = |name: &str| {
            let path = format!("/sys/class/net/{}/{name}", address.interface);
            std::fs::read_to_string(path)
                .ok()?
                .trim()
                .parse::<i64>()
                .ok()
        };
        let bytes_per_s = match file("speed") {
            _ if address.loopback => LOOPBACK_BYTES_PER_S,
            Some(megabits) if megabits > 0 => megabits.unsigned_abs() * 125_000,
            _ => BYTES_PER_S,
        };
        Self {
            name: format!("{}-{}", address.interface, address.ip),
            bytes_per_s,
            numa_node: file("device/numa_node").map_or(-1, |node| node as i32),
            address,
        }
    }
}

/// All devices of this process.
///
/// # Errors
/// `STATUS_NO_DEVICE` if no interface is up with an address, `STATUS_SYSTEM`.
pub(crate) fn places() -> Result<&'static [Place], Fault> {
    static PLACES: OnceLock<Vec<Place>> = OnceLock::new();
    if let Some(known) = PLACES.get() {
        return Ok(known);
    }
    let addresses = host_addresses().map_err(|error| {
        Fault::new(
            STATUS_SYSTEM,
            format!("listing the addresses of this host: {error}"),
        )
    })?;
    let found: Vec<Place> = usable(addresses).into_iter().map(Place::of).collect();
    if found.is_empty() {
        return Err(Fault::new(
            STATUS_NO_DEVICE,
            "no network interface is up with an address, not even the loopback: see `ip address`",
        ));
    }
    Ok(PLACES.get_or_init(|| found))
}

/// Addresses that are worth a device, loopback first. Link-local ones only where nothing else leads
/// to other hosts.
fn usable(mut addresses: Vec<HostAddress>) -> Vec<HostAddress> {
    let is_local = |address: &HostAddress| match address.ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let routable = |address: &HostAddress| !address.loopback && !is_local(address);
    let has_routable = addresses.iter().any(routable);
    addresses.retain(|address| {
        let is_one_peer = !address.ip.is_unspecified() && !address.ip.is_multicast();
        is_one_peer && !(has_routable && is_local(address))
    });
    // Stable: interfaces as the system lists them, IPv4 before IPv6.
    addresses.sort_by_key(|address| (!address.loopback, address.index, address.ip.is_ipv6()));
    let mut names = Vec::new();
    addresses.retain(|address| {
        let is_new = !names.contains(&(address.index, address.ip));
        names.push((address.index, address.ip));
        is_new
    });
    addresses.truncate(MAX_PLACES);
    addresses
}

/// Device `index`.
///
/// # Errors
/// `STATUS_INVALID_ARGUMENT` if there is none.
pub(crate) fn place(index: u32) -> Result<&'static Place, Fault> {
    let places = places()?;
    places
        .get(index as usize)
        .ok_or_else(|| Fault::invalid(format!("device {index}: there are {}", places.len())))
}

/// What device `index` is.
pub(crate) fn attributes(index: u32) -> Result<DeviceAttributes, Fault> {
    let place = place(index)?;
    let mut address = [0; 16];
    let address_kind = match place.ip() {
        IpAddr::V4(v4) => {
            address[..4].copy_from_slice(&v4.octets());
            4
        }
        IpAddr::V6(v6) => {
            address = v6.octets();
            6
        }
    };
    Ok(DeviceAttributes {
        name: place.name.clone(),
        attr: DeviceAttrV1 {
            name: [0; 64],
            protocol: PROTOCOL,
            address_kind,
            address,
            // Each bit is a promise that the conformance suite puts to the test.
            capabilities: CAP_WRITE
                | CAP_READ
                | CAP_NOTIFY
                | CAP_WRITE_NOTIFY
                | CAP_WRITE_REDUCE
                | CAP_READ_REDUCE
                | CAP_ALLOCATE
                | CAP_REGISTER
                | CAP_LOCAL_ANY
                | CAP_SAME_PROCESS
                | CAP_CROSS_PROCESS
                | CAP_CROSS_HOST
                | CAP_WAKE_FD,
            latency_ns: LATENCY_NS,
            bytes_per_s: place.bytes_per_s,
            max_transfer_bytes: isize::MAX as u64,
            max_notify_outstanding: u64::MAX,
            max_batch: MAX_BATCH,
            max_notifies: MAX_NOTIFIES,
            max_blob_bytes: MAX_BLOB_BYTES,
            numa_node: place.numa_node,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(interface: &str, index: u32, ip: &str) -> HostAddress {
        HostAddress {
            interface: interface.to_owned(),
            index,
            loopback: interface == "lo",
            ip: ip.parse().unwrap(),
        }
    }

    #[test]
    fn link_local_addresses_are_a_last_resort() {
        let own = [
            address("eth0", 2, "fe80::1"),
            address("eth0", 2, "10.0.0.1"),
            address("lo", 1, "::1"),
            address("lo", 1, "127.0.0.1"),
        ];
        let names = |addresses: &[HostAddress]| -> Vec<String> {
            usable(addresses.to_vec())
                .into_iter()
                .map(|address| address.ip.to_string())
                .collect()
        };
        assert_eq!(names(&own), ["127.0.0.1", "::1", "10.0.0.1"]);
        let bare = [own[0].clone(), own[2].clone()];
        assert_eq!(names(&bare), ["::1", "fe80::1"]);
        let twice = [own[1].clone(), own[1].clone()];
        assert_eq!(names(&twice), ["10.0.0.1"]);
    }

    #[test]
    fn only_link_local_addresses_have_a_scope() {
        let place = Place::of(address("eth0", 7, "fe80::1"));
        let text = |ip: &str| place.at(ip.parse().unwrap(), 80).to_string();
        assert_eq!(text("fe80::2"), "[fe80::2%7]:80");
        assert_eq!(text("fd00::2"), "[fd00::2]:80");
        assert_eq!(text("10.0.0.1"), "10.0.0.1:80");
    }
}
