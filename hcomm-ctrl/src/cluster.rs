//! What a file says about the cluster: which ranks there are, where, and how they are wired.
//!
//! Discovery sees hosts and their links, not the switches between them. A rank table, a topology file
//! or a description of ours does; ranks group themselves by it. Each rank reads its own copy, and at
//! start-up all compare what they read. A rank table also says how many ranks there are and where
//! rank 0 listens, so it stands for a launcher (`RANK_TABLE_FILE` and `RANK_ID`).

use std::sync::Arc;

use hcomm_topo::{ControlPlace, Loaded, MAX_SOURCE_BYTES, RankGraph, load};
use hcomm_types::{Error, ErrorKind, Rank, Result};
use sha2::{Digest as _, Sha256};

use crate::launch::RootAddress;
use crate::tuning::read_text;

/// The port of rank 0 where a rank table gives its host only: the first of those that the field keeps
/// for this.
const ROOT_PORT: u16 = 60_000;

/// Ranks and wires, as a file has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    graph: RankGraph,
    /// What ranks compare.
    digest: String,
    root: Option<ControlPlace>,
    path: String,
}

impl Cluster {
    /// Reads a file, or a rank table and the topology file that belongs to it, with a comma between
    /// their paths.
    ///
    /// # Errors
    /// `InvalidArgument` with path, line, field and value.
    pub fn read(paths: &str) -> Result<Self> {
        let (path, topology) = match paths.split_once(',') {
            Some((path, topology)) => (path.trim(), Some(topology.trim())),
            None => (paths.trim(), None),
        };
        let text = text_of(path)?;
        let topology = topology.map(text_of).transpose()?;
        let mut digest = Sha256::new();
        digest.update(&text);
        digest.update([0]);
        digest.update(topology.as_deref().unwrap_or_default());
        let loaded = load(&text, topology.as_deref());
        let Loaded { graph, notes, root } = loaded.map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, format!("{paths}: {error}")).with_source(error)
        })?;
        for note in notes {
            tracing::info!(path = paths, note, "what the cluster's file leaves open");
        }
        Ok(Self {
            graph,
            digest: shortened(digest),
            root,
            path: paths.to_owned(),
        })
    }

    /// What is known of some of the ranks, which become 0, 1, ... in this order.
    ///
    /// # Errors
    /// `InvalidArgument` if a rank is not there or is named twice.
    pub fn part(&self, ranks: &[Rank]) -> Result<Arc<Self>> {
        let mut digest = Sha256::new();
        digest.update(&self.digest);
        for rank in ranks {
            digest.update(rank.0.to_le_bytes());
        }
        Ok(Arc::new(Self {
            graph: self.graph.part(ranks)?,
            digest: shortened(digest),
            root: None,
            path: self.path.clone(),
        }))
    }

    /// The graph of the file.
    #[must_use]
    pub const fn graph(&self) -> &RankGraph {
        &self.graph
    }

    /// What tells it from others: the beginning of the SHA-256 of its bytes.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Where rank 0 listens by this file.
    ///
    /// # Errors
    /// `InvalidArgument` if it does not say so.
    pub fn root_address(&self) -> Result<RootAddress> {
        let root = self.root.ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{} does not say where rank 0 is reached: its server has neither host_ip nor an \
                     address for a server_id, and it has no control_plane",
                    self.path
                ),
            )
            .hint("set HCOMM_ROOT=host:port to a host that all ranks reach and a port that is free there")
        })?;
        Ok(RootAddress::new(
            root.address.to_string(),
            root.port.unwrap_or(ROOT_PORT),
        ))
    }

    /// Whether it is for so many ranks.
    pub(crate) fn check_size(&self, size: u32) -> Result<()> {
        if self.graph.size() == size {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "{} is of {} ranks, the communicator has {size}",
                self.path,
                self.graph.size()
            ),
        )
        .hint("set HCOMM_TOPOLOGY to a file of these ranks, or unset it"))
    }
}

fn text_of(path: &str) -> Result<String> {
    read_text(path, MAX_SOURCE_BYTES, "a description of a cluster").map_err(|what| {
        Error::new(ErrorKind::InvalidArgument, format!("{path}: {what}"))
            .hint("it is a rank table, a topology file, or what `hcomm topo` reads and writes")
    })
}

fn shortened(digest: Sha256) -> String {
    let digest = digest.finalize();
    digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(host: &str, device: &str) -> String {
        format!(
            r#"{{"status": "completed", "version": "1.0", "server_count": "1", "server_list": [
             {{"server_id": "{host}", "device": [{{"device_id": "0", "rank_id": "0"{device}}},
              {{"device_id": "1", "rank_id": "1"}}]}}]}}"#
        )
    }

    fn read(text: &str) -> Result<Cluster> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.json");
        std::fs::write(&path, text).unwrap();
        Cluster::read(path.to_str().unwrap())
    }

    #[test]
    fn a_table_says_where_rank_0_is() {
        let root = |text: &str| read(text).unwrap().root_address();
        let address = |text: &str| root(text).unwrap().to_string();
        assert_eq!(address(&table("10.0.0.1", "")), "10.0.0.1:60000");
        let port = r#", "host_port": "4711""#;
        assert_eq!(address(&table("fe80::1", port)), "[fe80::1]:4711");
        let error = root(&table("node-a", "")).unwrap_err();
        assert!(error.to_string().contains("neither host_ip"), "{error}");
    }

    #[test]
    fn files_differ_and_parts_of_them() {
        let one = read(&table("10.0.0.1", "")).unwrap();
        let other = read(&table("10.0.0.2", "")).unwrap();
        assert_eq!(one.digest(), read(&table("10.0.0.1", "")).unwrap().digest());
        assert_ne!(one.digest(), other.digest());
        let part = |ranks: &[u32]| {
            let ranks: Vec<Rank> = ranks.iter().copied().map(Rank).collect();
            one.part(&ranks)
        };
        let (straight, turned) = (part(&[0, 1]).unwrap(), part(&[1, 0]).unwrap());
        assert_ne!(straight.digest(), turned.digest());
        assert_eq!(part(&[1]).unwrap().graph().size(), 1);
        assert!(part(&[2]).is_err());
        assert!(one.check_size(2).is_ok());
        let error = one.check_size(3).unwrap_err().to_string();
        assert!(error.contains("2 ranks") && error.contains('3'), "{error}");
    }

    #[test]
    fn what_is_no_such_file_says_where() {
        let error = read("{\n \"server_list\": 7}").unwrap_err().to_string();
        assert!(
            error.contains("line 2") && error.contains("table.json"),
            "{error}"
        );
        let error = Cluster::read("/nowhere/at/all").unwrap_err().to_string();
        assert!(error.contains("/nowhere/at/all: cannot be read"), "{error}");
    }
}
