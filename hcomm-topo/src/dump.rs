//! The graph as JSON and as a drawing.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use hcomm_types::{ProcessId, ProtocolSet, Rank};
use serde::{Deserialize, Serialize};

use crate::choice::Allowed;
use crate::fabric::FabricFacts;
use crate::facts::{EndpointFacts, RankFacts, Reach};
use crate::graph::{GraphError, Instance, RankGraph};
use crate::host::HostFacts;

const FORMAT: &str = "hcomm-rank-graph";
const VERSION: u32 = 1;

/// Up to so many ranks of a host are drawn with every link; more are drawn around a point.
const MESH_DRAWN: usize = 8;

impl RankGraph {
    /// The graph as JSON: hosts once each, ranks with the number of their host.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut hosts = Vec::<Arc<HostFacts>>::new();
        // Ranks share one copy of equal facts, so a copy's address stands for its content.
        let mut numbers = HashMap::new();
        let ranks = self
            .ranks()
            .iter()
            .map(|facts| {
                let number = *numbers
                    .entry(Arc::as_ptr(&facts.host))
                    .or_insert(hosts.len());
                if number == hosts.len() {
                    hosts.push(Arc::clone(&facts.host));
                }
                RankEntry {
                    rank: facts.rank,
                    host: number,
                    local_rank: facts.local_rank,
                    process: facts.process,
                    endpoints: facts.endpoints.clone(),
                }
            })
            .collect();
        let document = Document {
            format: FORMAT.to_owned(),
            version: VERSION,
            hosts,
            ranks,
            fabric: self.fabric_facts().cloned(),
        };
        serde_json::to_string_pretty(&document).expect("the document has only string keys")
    }

    /// Reads what [`to_json`](Self::to_json) wrote, and checks it as [`build`](Self::build) does.
    ///
    /// # Errors
    /// If the text is no JSON, no graph, or one that contradicts itself; with the place.
    pub fn from_json(text: &str) -> Result<Self, GraphError> {
        // The name and version first: another version's fields are no mistakes.
        let title: Title = serde_json::from_str(text).map_err(at_place)?;
        if (title.format.as_str(), title.version) != (FORMAT, VERSION) {
            return Err(GraphError::Version {
                format: title.format,
                version: title.version,
                known_format: FORMAT,
                known_version: VERSION,
            });
        }
        let document: Document = serde_json::from_str(text).map_err(at_place)?;
        let hosts = document.hosts;
        let facts = document.ranks.into_iter().map(|entry| {
            let host = hosts.get(entry.host).ok_or(GraphError::UnknownHost {
                rank: entry.rank,
                host: entry.host,
                hosts: hosts.len(),
            })?;
            Ok(RankFacts {
                rank: entry.rank,
                process: entry.process,
                host: Arc::clone(host),
                local_rank: entry.local_rank,
                endpoints: entry.endpoints,
            })
        });
        let graph = Self::build(facts.collect::<Result<_, _>>()?)?;
        match document.fabric {
            Some(fabric) => graph.with_fabric(fabric),
            None => Ok(graph),
        }
    }

    /// The graph as a drawing for Graphviz (`dot -Tsvg`): a box for each host, the link that
    /// would be chosen between its ranks, and the network between hosts.
    #[must_use]
    pub fn to_dot(&self) -> String {
        let mut dot = "graph hcomm {\n  compound=true;\n  node [shape=box];\n".to_owned();
        for host in self.hosts() {
            self.draw_host(&mut dot, host);
        }
        if let Some(facts) = self.fabric_facts() {
            self.draw_switches(&mut dot, facts);
        } else if self.hosts().len() > 1 {
            dot += "  network [shape=ellipse];\n";
            for host in self.hosts() {
                let label = self.protocols(host, Reach::Network);
                line(
                    &mut dot,
                    format_args!(
                        "  r{} -- network [ltail=cluster_{}, label=\"{label}\"];",
                        host.ranks[0], host.id
                    ),
                );
            }
        }
        dot += "}\n";
        dot
    }

    fn draw_host(&self, dot: &mut String, host: &Instance) {
        let (id, name) = (host.id, escape(&host.name));
        line(
            dot,
            format_args!("  subgraph cluster_{id} {{\n    label=\"{name}\";"),
        );
        for &rank in &host.ranks {
            let endpoints = self.endpoints(rank).iter();
            let protocols: ProtocolSet = endpoints.map(|endpoint| endpoint.protocol).collect();
            let protocols = names(protocols);
            line(
                dot,
                format_args!("    r{rank} [label=\"rank {rank}\\n{protocols}\"];"),
            );
        }
        if host.ranks.len() <= MESH_DRAWN {
            for (position, &a) in host.ranks.iter().enumerate() {
                for &b in &host.ranks[position + 1..] {
                    if let Ok(choice) = self.choose(a, b, &Allowed::All) {
                        let (protocol, speed) = (choice.link.protocol, choice.link.bytes_per_s);
                        #[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
                        let speed = speed as f64 / 1e9;
                        line(
                            dot,
                            format_args!(
                                "    r{a} -- r{b} [label=\"{protocol} {speed:.1} GB/s\"];"
                            ),
                        );
                    }
                }
            }
        } else {
            let label = self.protocols(host, Reach::Host);
            line(
                dot,
                format_args!("    h{id} [shape=ellipse, label=\"{label}\"];"),
            );
            for rank in &host.ranks {
                line(dot, format_args!("    r{rank} -- h{id};"));
            }
        }
        line(dot, format_args!("  }}"));
    }

    /// Protocols that some rank of the instance speaks and that reach so far.
    fn protocols(&self, instance: &Instance, reach: Reach) -> String {
        let endpoints = instance.ranks.iter().flat_map(|&rank| self.endpoints(rank));
        let far = endpoints.filter(|endpoint| endpoint.reach >= reach);
        names(far.map(|endpoint| endpoint.protocol).collect())
    }
}

#[derive(Deserialize)]
struct Title {
    format: String,
    version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    version: u32,
    hosts: Vec<Arc<HostFacts>>,
    ranks: Vec<RankEntry>,
    /// Wires, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fabric: Option<FabricFacts>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RankEntry {
    rank: Rank,
    /// Position in the list of hosts.
    host: usize,
    local_rank: u32,
    process: ProcessId,
    endpoints: Vec<EndpointFacts>,
}

fn at_place(error: serde_json::Error) -> GraphError {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    GraphError::Json {
        line: error.line(),
        column: error.column(),
        problem: text.strip_suffix(&place).unwrap_or(&text).to_owned(),
    }
}

fn names(protocols: ProtocolSet) -> String {
    let names: Vec<_> = protocols.iter().map(|protocol| protocol.name()).collect();
    names.join(" ")
}

fn line(dot: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(dot, "{arguments}").expect("a string takes any text");
}

/// A name from another host inside a quoted string of the drawing.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            escaped.push('\\');
        }
        escaped.push(if c.is_control() { ' ' } else { c });
    }
    escaped
}
