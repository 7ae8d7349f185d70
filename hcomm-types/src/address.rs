//! Where an endpoint is and what it speaks.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::dtype::ParseNameError;

/// Protocol of a link. The discriminants are bit numbers of the plugin ABI: they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum Protocol {
    /// Shared memory of one host.
    Shm = 0,
    /// TCP sockets.
    Tcp = 1,
    /// RDMA over converged Ethernet.
    Roce = 2,
    /// Huawei cache-coherent system, chip to chip.
    Hccs = 3,
    /// PCI Express.
    Pcie = 4,
    /// Unified bus, transport mode.
    UbcTp = 5,
    /// Unified bus, compact transport mode.
    UbcCtp = 6,
    /// Unified bus, memory semantics.
    UbMem = 7,
    /// Unified bus over Ethernet.
    Uboe = 8,
    /// Inside one process.
    Loop = 9,
}

impl Protocol {
    /// All protocols, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Shm,
        Self::Tcp,
        Self::Roce,
        Self::Hccs,
        Self::Pcie,
        Self::UbcTp,
        Self::UbcCtp,
        Self::UbMem,
        Self::Uboe,
        Self::Loop,
    ];

    /// Name in tables, files and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Roce => "roce",
            Self::Hccs => "hccs",
            Self::Pcie => "pcie",
            Self::UbcTp => "ubc_tp",
            Self::UbcCtp => "ubc_ctp",
            Self::UbMem => "ub_mem",
            Self::Uboe => "uboe",
            Self::Loop => "loop",
        }
    }

    /// Whether a link of this protocol may begin or end at a device (an accelerator).
    #[must_use]
    pub const fn serves_device(self) -> bool {
        matches!(
            self,
            Self::Roce
                | Self::UbcTp
                | Self::UbcCtp
                | Self::UbMem
                | Self::Pcie
                | Self::Uboe
                | Self::Hccs
        )
    }

    /// Whether a link of this protocol may begin or end at a host.
    #[must_use]
    pub const fn serves_host(self) -> bool {
        matches!(
            self,
            Self::Roce
                | Self::UbcTp
                | Self::UbcCtp
                | Self::Shm
                | Self::Tcp
                | Self::Pcie
                | Self::Loop
        )
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Protocol {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|p| p.name() == text)
            .ok_or_else(|| ParseNameError {
                what: "protocol",
                text: text.to_owned(),
                known: "shm, tcp, roce, hccs, pcie, ubc_tp, ubc_ctp, ub_mem, uboe, loop",
            })
    }
}

/// A set of protocols, as one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProtocolSet(u32);

impl ProtocolSet {
    /// No protocol.
    pub const EMPTY: Self = Self(0);

    /// The set of the protocols whose bits are set; unknown bits are dropped.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits & ((1 << Protocol::ALL.len()) - 1))
    }

    /// One bit a protocol.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The set with `protocol` in it as well.
    #[must_use]
    pub const fn with(self, protocol: Protocol) -> Self {
        Self(self.0 | 1 << protocol as u32)
    }

    /// Whether `protocol` is in the set.
    #[must_use]
    pub const fn contains(self, protocol: Protocol) -> bool {
        self.0 & (1 << protocol as u32) != 0
    }

    /// The protocols in the set, in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = Protocol> {
        Protocol::ALL.into_iter().filter(move |&p| self.contains(p))
    }
}

impl FromIterator<Protocol> for ProtocolSet {
    fn from_iter<I: IntoIterator<Item = Protocol>>(protocols: I) -> Self {
        protocols.into_iter().fold(Self::EMPTY, Self::with)
    }
}

/// Address of an endpoint, in the form its protocol uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Address {
    /// IPv4 or IPv6.
    Ip(IpAddr),
    /// A number that only its protocol understands (a shared-memory device, an HCCS port).
    Id(u64),
    /// Entity id of a unified bus, 16 bytes.
    Eid([u8; 16]),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => write!(f, "{ip}"),
            Self::Id(id) => write!(f, "id {id:#x}"),
            Self::Eid(eid) => {
                f.write_str("eid ")?;
                eid.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// Where an endpoint sits: at a host, or at a device with the numbers that place it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Location {
    /// The host's own memory and cores.
    Host,
    /// An accelerator.
    Device {
        /// Number of the device in its server.
        physical_id: u32,
        /// Number of the device in its super-pod.
        super_device_id: u32,
        /// Number of its server.
        server_id: u32,
        /// Number of its super-pod.
        super_pod_id: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_go_both_ways() {
        for (number, protocol) in (0u32..).zip(Protocol::ALL) {
            assert_eq!(protocol as u32, number);
            assert_eq!(protocol.name().parse(), Ok(protocol));
            assert!(protocol.serves_device() || protocol.serves_host());
        }
    }

    #[test]
    fn sets_hold_what_was_put_in_and_drop_unknown_bits() {
        let set: ProtocolSet = [Protocol::Shm, Protocol::Roce].into_iter().collect();
        assert!(set.contains(Protocol::Roce) && !set.contains(Protocol::Tcp));
        assert_eq!(
            set.iter().collect::<Vec<_>>(),
            [Protocol::Shm, Protocol::Roce]
        );
        assert_eq!(
            ProtocolSet::from_bits(u32::MAX).iter().count(),
            Protocol::ALL.len()
        );
    }
}
