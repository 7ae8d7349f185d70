//! What one host is made of.

use hcomm_types::HostId;
use serde::{Deserialize, Serialize};

use crate::infiniband::InfinibandDevice;
use crate::interface::Interface;
use crate::pci::PciDevice;
use crate::pick::{Family, InterfaceFilter, NoInterface, Pick, pick};

/// Facts about one host, as [`discover`](crate::discover) found them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostFacts {
    /// Identity: equal for all processes of the host, different between hosts.
    pub id: HostId,
    /// Name, for people.
    pub name: String,
    /// Logical processors that are online, by number.
    pub cores: Vec<Core>,
    /// NUMA nodes that are online, by number; empty where the kernel has no notion of them.
    pub numa_nodes: Vec<NumaNode>,
    /// Caches, each once, small ones first.
    pub caches: Vec<Cache>,
    /// Network interfaces of this process's network namespace, by index.
    pub interfaces: Vec<Interface>,
    /// Network cards and accelerators on PCI Express, by address; empty where the system has none or
    /// does not tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pci: Vec<PciDevice>,
    /// Devices for remote memory access, by name; empty likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub infiniband: Vec<InfinibandDevice>,
    /// The network namespace. Loopback addresses reach only inside one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_namespace: Option<String>,
    /// What could not be found out and what stands in for it, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl HostFacts {
    /// Picks the interface and address to speak to other hosts through.
    ///
    /// Interfaces that the filter leaves out, that are down or have no address of the family are
    /// skipped. Of the rest the first wins in this order: a routable address before one of a
    /// tunnel, before a link-local one, before the loopback; carrier; the preferred family; a
    /// default route (other hosts are most surely reached there); speed; no bridge; index.
    ///
    /// # Errors
    /// If nothing is left; the error says why for each interface.
    pub fn pick_interface(
        &self,
        filter: &InterfaceFilter,
        family: Family,
    ) -> Result<Pick<'_>, NoInterface> {
        pick(&self.interfaces, filter, family)
    }
}

/// A logical processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Core {
    /// Number of the logical processor.
    pub cpu: u32,
    /// Number of the physical core in its package; siblings share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<u32>,
    /// Number of the package (socket).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<u32>,
    /// NUMA node that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// Number.
    pub id: u32,
    /// Its logical processors; none on a node of memory alone.
    pub cpus: Vec<u32>,
    /// Its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Relative distance to each online node in order; 10 is local.
    pub distances: Vec<u32>,
}

/// A cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Level, from 1.
    pub level: u8,
    /// What it holds.
    pub kind: CacheKind,
    /// Size.
    pub bytes: u64,
    /// Size of a line, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_bytes: Option<u32>,
    /// Logical processors that share it.
    pub cpus: Vec<u32>,
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheKind {
    /// Data.
    Data,
    /// Instructions.
    Instruction,
    /// Both.
    Unified,
}
