//! Graphs from files: rank tables, topology files, descriptions of clusters, dumps of our own.
//!
//! | file | told by | read in |
//! |---|---|---|
//! | a dumped graph | `"format": "hcomm-rank-graph"` | `dump.rs` |
//! | a description of a cluster | `"format": "hcomm-cluster"` | `cluster.rs` |
//! | rank table 1.0, 1.2 | `server_list`, or `group_list` in old ones | `servers.rs` |
//! | rank table 2.0 | `rank_list` | `levels.rs` |
//! | topology file 2.0 | `edge_list` | `edges.rs` |
//!
//! Readers take what the field writes: numbers as texts, fields that they do not know, fields that
//! are left out where something stands for them. What they cannot take is one error, with the line,
//! the field, and the value.

mod builder;
mod cluster;
mod edges;
mod json;
mod levels;
mod servers;

use std::net::IpAddr;

use hcomm_types::{Error, ErrorKind};

use crate::graph::RankGraph;
use json::{At, Node};

/// Most bytes of a file that are looked at.
pub const MAX_SOURCE_BYTES: u64 = 256 << 20;

/// A graph and what had to be assumed to make it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The graph.
    pub graph: RankGraph,
    /// What the file does not say and what stands in for it, one sentence each.
    pub notes: Vec<String>,
    /// Where the control plane of rank 0 is, if the file says.
    pub root: Option<ControlPlace>,
}

/// Where a rank is reached before there are links: on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlPlace {
    /// An address of the host.
    pub address: IpAddr,
    /// The port that the file keeps for it.
    pub port: Option<u16>,
}

/// A file that is no graph: where, what stands there, and why that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.shown())]
pub struct SourceError {
    /// Line, from 1; 0 where the whole is wrong.
    pub line: usize,
    /// The field, as `server_list[0].device[3].rank_id`; empty where it is not about one.
    pub field: String,
    /// What stands there.
    pub value: String,
    /// What is wrong with it.
    pub problem: String,
}

impl SourceError {
    fn shown(&self) -> String {
        let Self {
            line,
            field,
            value,
            problem,
        } = self;
        match (line, field.is_empty()) {
            (0, _) => problem.clone(),
            (line, true) => format!("line {line}: {problem}; here stands {value}"),
            (line, false) => format!("line {line}: {field} is {value}: {problem}"),
        }
    }

    /// About the whole file.
    fn whole(problem: impl Into<String>) -> Self {
        Self {
            line: 0,
            field: String::new(),
            value: String::new(),
            problem: problem.into(),
        }
    }
}

impl From<SourceError> for Error {
    fn from(error: SourceError) -> Self {
        Self::new(ErrorKind::InvalidArgument, error.to_string()).with_source(error)
    }
}

/// Makes a graph of the text of a file. `topology` is the text of a topology file that says how the
/// ranks of a rank table are wired.
///
/// # Errors
/// If one of them is no such file; with line, field and value.
///
/// ```
/// let table = r#"{"status": "completed", "version": "1.0", "server_count": "1", "server_list": [
///     {"server_id": "10.0.0.1", "device": [
///         {"device_id": "0", "device_ip": "192.168.1.2", "rank_id": "0"},
///         {"device_id": "1", "device_ip": "192.168.1.3", "rank_id": "1"}]}]}"#;
/// let loaded = hcomm_topo::load(table, None)?;
/// assert_eq!(loaded.graph.size(), 2);
/// let wrong = hcomm_topo::load(&table.replace(r#"rank_id": "1""#, r#"rank_id": "0""#), None);
/// assert_eq!(wrong.unwrap_err().field, "server_list[0].device[1].rank_id");
/// # Ok::<(), hcomm_topo::SourceError>(())
/// ```
pub fn load(text: &str, topology: Option<&str>) -> Result<Loaded, SourceError> {
    let text = looked_at(text)?;
    let node = Node::parse(text)?;
    let root = At::root(&node);
    let edges = match topology {
        Some(text) => {
            let node = looked_at(text).and_then(Node::parse).map_err(in_topology)?;
            Some(edges::read(&At::root(&node)).map_err(in_topology)?)
        }
        None => None,
    };
    let needless = |what: &str| match topology {
        Some(_) => Err(SourceError::whole(format!(
            "{what} says itself how ranks are wired: leave the topology file out"
        ))),
        None => Ok(()),
    };
    if let Some(format) = root.get("format")? {
        return match format.text()? {
            "hcomm-rank-graph" => {
                needless("a dumped graph")?;
                let graph = RankGraph::from_json(text).map_err(|error| match error {
                    crate::GraphError::Json {
                        line,
                        column,
                        problem,
                    } => SourceError {
                        line,
                        field: String::new(),
                        value: format!("column {column}"),
                        problem,
                    },
                    other => SourceError::whole(other.to_string()),
                })?;
                let notes = Vec::new();
                let root = None;
                Ok(Loaded { graph, notes, root })
            }
            "hcomm-cluster" => {
                needless("a description of a cluster")?;
                cluster::read(&root)
            }
            _ => Err(format.refuse("`hcomm-rank-graph` and `hcomm-cluster` are known")),
        };
    }
    if root.get("server_list")?.is_some() || root.get("group_list")?.is_some() {
        return servers::read(&root, edges.as_ref());
    }
    if root.get("rank_list")?.is_some() {
        return levels::read(&root, edges.as_ref());
    }
    if root.get("edge_list")?.is_some() {
        needless("a topology file")?;
        return edges::alone(&root);
    }
    Err(root.refuse(
        "neither a rank table (`server_list`, `rank_list`), nor a topology file (`edge_list`), nor a \
         file of ours (`format`)",
    ))
}

/// A text that is short enough, without the mark that some editors put in front.
fn looked_at(text: &str) -> Result<&str, SourceError> {
    if text.len() as u64 > MAX_SOURCE_BYTES {
        return Err(SourceError::whole(format!(
            "the file has {} bytes, at most {MAX_SOURCE_BYTES} are read",
            text.len()
        )));
    }
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

fn in_topology(error: SourceError) -> SourceError {
    SourceError {
        problem: format!("{} (in the topology file)", error.problem),
        ..error
    }
}
