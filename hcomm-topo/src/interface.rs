//! Network interfaces.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// One network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// Name, as in `ip link`.
    pub name: String,
    /// Number in its network namespace; the scope of its link-local IPv6 addresses.
    pub index: u32,
    /// What it is made of.
    pub kind: InterfaceKind,
    /// Hardware address, `02:fc:00:00:00:01`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Addresses that can be bound, lasting ones first.
    pub addresses: Vec<InterfaceAddress>,
    /// Largest packet, in bytes.
    pub mtu_bytes: u32,
    /// Switched on by the administrator.
    pub up: bool,
    /// Has a carrier: the other end of the cable, or a member of the bridge, is there.
    pub running: bool,
    /// Leads back to this host.
    pub loopback: bool,
    /// Has exactly one other end.
    pub point_to_point: bool,
    /// A default route leaves through it.
    #[serde(default)]
    pub default_route: bool,
    /// Negotiated speed, in bits per second, where the driver tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_bits_per_s: Option<u64>,
    /// NUMA node that its device hangs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceAddress {
    /// The address.
    pub ip: IpAddr,
    /// Bits of its network part.
    pub prefix_bits: u8,
}

/// What an interface is made of, as far as it matters for choosing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterfaceKind {
    /// Ethernet, or something that looks like it (also the inner end of a container's pair).
    Ethernet,
    /// IP over InfiniBand.
    Infiniband,
    /// The loopback.
    Loopback,
    /// A bridge of this host.
    Bridge,
    /// Packets inside packets: tun, tap, WireGuard, IPIP, GRE, VXLAN, PPP and the like.
    Tunnel,
    /// Anything else.
    Other,
}

impl InterfaceKind {
    /// From the kernel's hardware type (`ARPHRD_…`).
    pub(crate) fn from_hardware(number: u16) -> Self {
        match number {
            1 => Self::Ethernet,
            32 => Self::Infiniband,
            772 => Self::Loopback,
            // PPP, IPIP, IPv6 in IP, SIT, GRE, GRE over IPv6, raw IP, none (tun)
            512 | 768 | 769 | 776 | 778 | 823 | 519 | 65534 => Self::Tunnel,
            _ => Self::Other,
        }
    }

    /// With the kernel's name of the link's driver, where it has one.
    pub(crate) fn refined(self, driver: &str) -> Self {
        match driver {
            "bridge" => Self::Bridge,
            "tun" | "wireguard" | "ipip" | "sit" | "gre" | "gretap" | "ip6tnl" | "ip6gre"
            | "ip6gretap" | "erspan" | "vti" | "vti6" | "xfrm" | "vxlan" | "geneve" | "ppp"
            | "gtp" | "bareudp" => Self::Tunnel,
            _ => self,
        }
    }
}

pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Whether the kernel would accept this as the name of an interface.
pub(crate) fn is_interface_name(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && name != "."
        && name != ".."
        && !name.contains(['/', ':'])
        && !name.chars().any(|c| c.is_whitespace() || c.is_control())
}
