//! Which of the links of a pair to take.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use hcomm_types::{Error, ErrorKind, Location, Protocol, Rank};

use crate::facts::{EndpointFacts, RankFacts, Reach};
use crate::link::{Link, Refusal};

/// Size that links are compared at: 128 KiB. Small enough that latency counts, large enough that
/// bandwidth does.
pub const REFERENCE_BYTES: u64 = 128 << 10;

/// Which transports may be used: the value of `HCOMM_TRANSPORTS`.
///
/// `shm,roce` allows only these, `^tcp` all but these, an empty text all.
///
/// ```
/// use hcomm_topo::Allowed;
/// let allowed: Allowed = "^tcp".parse()?;
/// assert!(allowed.contains("shm") && !allowed.contains("tcp"));
/// # Ok::<(), hcomm_topo::ParseAllowedError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Allowed {
    /// Every transport.
    #[default]
    All,
    /// Only these.
    Only(Vec<String>),
    /// All but these.
    Except(Vec<String>),
}

impl Allowed {
    /// Whether a transport of this name may be used.
    #[must_use]
    pub fn contains(&self, transport: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.iter().any(|name| name == transport),
            Self::Except(names) => names.iter().all(|name| name != transport),
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => Ok(()),
            Self::Only(names) => f.write_str(&names.join(",")),
            Self::Except(names) => write!(f, "^{}", names.join(",")),
        }
    }
}

impl FromStr for Allowed {
    type Err = ParseAllowedError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let list = text.trim();
        if list.is_empty() {
            return Ok(Self::All);
        }
        let refuse = |problem: String| ParseAllowedError {
            text: text.to_owned(),
            problem,
        };
        let (except, list) = match list.strip_prefix('^') {
            Some(list) => (true, list),
            None => (false, list),
        };
        let mut names = Vec::new();
        for item in list.split(',').map(str::trim) {
            let name = if except && !names.is_empty() {
                item.strip_prefix('^').unwrap_or(item)
            } else {
                item
            };
            if name.is_empty() {
                return Err(refuse("an empty name".to_owned()));
            }
            if !name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
            {
                return Err(refuse(format!("`{name}` is no name of a transport")));
            }
            names.push(name.to_owned());
        }
        Ok(if except {
            Self::Except(names)
        } else {
            Self::Only(names)
        })
    }
}

/// A text that is no list of transports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` does not choose transports: {problem}; write `shm,roce` (only these) or `^tcp` (all but)"
)]
pub struct ParseAllowedError {
    /// The text as given.
    pub text: String,
    /// What is wrong with it.
    pub problem: String,
}

impl From<ParseAllowedError> for Error {
    fn from(error: ParseAllowedError) -> Self {
        Self::new(ErrorKind::InvalidArgument, error.to_string()).with_source(error)
    }
}

/// The link that was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The link.
    pub link: Link,
    /// One sentence for people, the same from both ends: what spoke for the link, and what was
    /// passed over and why.
    pub why: String,
}

/// Two ranks that nothing joins.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoLink {
    /// A rank that is not in the graph.
    #[error("rank {rank} is not in this graph of {size} ranks")]
    UnknownRank {
        /// The rank.
        rank: Rank,
        /// Ranks in the graph.
        size: u32,
    },
    /// Every pair of endpoints was refused.
    #[error("{0}")]
    Refused(Box<RefusedPair>),
}

impl From<NoLink> for Error {
    fn from(error: NoLink) -> Self {
        match &error {
            NoLink::UnknownRank { .. } => {
                Self::new(ErrorKind::InvalidArgument, error.to_string()).with_source(error)
            }
            NoLink::Refused(pair) => Self::new(ErrorKind::Unsupported, error.to_string())
                .blame_rank(pair.a.rank)
                .blame_rank(pair.b.rank)
                .hint("compare `hcomm transports` on both hosts, and HCOMM_TRANSPORTS")
                .with_source(error),
        }
    }
}

/// Two ranks with all that they have and why it does not join them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPair {
    /// The lower rank.
    pub a: RefusedRank,
    /// The higher rank.
    pub b: RefusedRank,
    /// Every pair of endpoints of one protocol, and every endpoint whose protocol the other rank
    /// does not speak.
    pub refused: Vec<RefusedLink>,
}

/// One of two ranks that nothing joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRank {
    /// The rank.
    pub rank: Rank,
    /// Name of its host.
    pub host: String,
    /// Its endpoints, described.
    pub endpoints: Vec<String>,
}

impl RefusedRank {
    pub(crate) fn of(facts: &RankFacts) -> Self {
        let endpoints = facts.endpoints.iter().enumerate().map(|(number, endpoint)| {
        let place = match endpoint.location {
            Location::Host => "at the host".to_owned(),
            Location::Device { physical_id, .. } => format!("at device {physical_id}"),
        };
        let reach = match endpoint.reach {
            Reach::Process => "process",
            Reach::Host => "host",
            Reach::Network => "network",
        };
        let EndpointFacts {
            protocol,
            address,
            transport,
            device,
            ..
        } = endpoint;
        format!(
            "{}.{number} ({protocol} by transport {transport} on {device}, {address}, {place}, reach {reach})",
            facts.rank
        )
    });
        Self {
            rank: facts.rank,
            host: facts.host.name.clone(),
            endpoints: endpoints.collect(),
        }
    }
}

/// A link that is none, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedLink {
    /// What would have been spoken.
    pub protocol: Protocol,
    /// Number of the endpoint at the lower rank, if it has one of the protocol.
    pub a_endpoint: Option<u32>,
    /// Number of the endpoint at the higher rank, if it has one of the protocol.
    pub b_endpoint: Option<u32>,
    /// The reason.
    pub refusal: Refusal,
}

impl fmt::Display for RefusedPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { a, b, refused } = self;
        write!(f, "no link between rank {} and rank {}", a.rank, b.rank)?;
        for end in [a, b] {
            write!(f, "; rank {} on {} has ", end.rank, end.host)?;
            match &end.endpoints[..] {
                [] => f.write_str("no endpoint")?,
                endpoints => f.write_str(&endpoints.join(", "))?,
            }
        }
        for (position, link) in refused.iter().enumerate() {
            f.write_str(if position == 0 { "; refused: " } else { ", " })?;
            match (link.a_endpoint, link.b_endpoint) {
                (Some(i), Some(j)) => write!(f, "{}.{i}-{}.{j} ", a.rank, b.rank)?,
                (Some(i), None) => write!(f, "{}.{i} ", a.rank)?,
                (None, Some(j)) => write!(f, "{}.{j} ", b.rank)?,
                (None, None) => {}
            }
            write!(f, "({}) because {}", link.protocol, link.refusal)?;
        }
        Ok(())
    }
}

/// Order of links of one pair, best first: no last resort, predicted time, protocol number, then
/// endpoints. Links run from the lower rank to the higher one, so that both ends order alike.
pub(crate) fn order(link: &Link) -> (bool, u64, Protocol, u32, u32) {
    (
        link.last_resort,
        link.predict_ns(REFERENCE_BYTES),
        link.protocol,
        link.from_endpoint,
        link.to_endpoint,
    )
}

/// Says why the first of `links`, best first, was taken.
pub(crate) fn explain(
    links: &[Link],
    refused: &[RefusedLink],
    a: &RankFacts,
    b: &RankFacts,
) -> String {
    let Some((best, others)) = links.split_first() else {
        return String::new();
    };
    let device = |rank: &RankFacts, number: u32| rank.endpoints[number as usize].device.clone();
    let mut why = format!(
        "{} ({} to {}) moves {} KiB in {}",
        best.protocol,
        device(a, best.from_endpoint),
        device(b, best.to_endpoint),
        REFERENCE_BYTES >> 10,
        Time(best.predict_ns(REFERENCE_BYTES)),
    );
    why += &match others.len() {
        0 => ", the only link".to_owned(),
        n if best.last_resort => format!(", the best of {} links, all link-local", n + 1),
        n => format!(", the best of {} links", n + 1),
    };

    // One entry for each protocol and transport: its best link stands for the rest.
    let mut passed = Vec::<(&Link, usize)>::new();
    for link in others {
        let same = |(first, _): &&mut (&Link, usize)| {
            (first.protocol, &first.transport) == (link.protocol, &link.transport)
        };
        match passed.iter_mut().find(same) {
            Some((_, count)) => *count += 1,
            None => passed.push((link, 1)),
        }
    }
    let mut reasons = Vec::new();
    for (link, count) in passed {
        let time = link.predict_ns(REFERENCE_BYTES);
        let reason = if link.last_resort && !best.last_resort {
            "rests on a link-local address".to_owned()
        } else if time > best.predict_ns(REFERENCE_BYTES) {
            format!("takes {}", Time(time))
        } else if link.protocol == best.protocol {
            "takes as long and its endpoints come later".to_owned()
        } else {
            "takes as long and its protocol comes later".to_owned()
        };
        reasons.push(match count {
            1 => format!("{} {reason}", link.protocol),
            _ => format!("{} ({count} links) {reason}", link.protocol),
        });
    }
    let mut first_refusals = BTreeMap::<Protocol, (&Refusal, usize)>::new();
    for link in refused {
        let entry = first_refusals.entry(link.protocol);
        entry.or_insert((&link.refusal, 0)).1 += 1;
    }
    for (protocol, (refusal, count)) in first_refusals {
        reasons.push(match count {
            1 => format!("{protocol} because {refusal}"),
            _ => format!("{protocol} ({count} pairs) because {refusal}"),
        });
    }
    for (position, reason) in reasons.iter().enumerate() {
        why += if position == 0 {
            "; passed over: "
        } else {
            ", "
        };
        why += reason;
    }
    why
}

/// A time in the unit that suits it.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0;
        if nanos == u64::MAX {
            f.write_str("unknown time")
        } else if nanos < 1_000 {
            write!(f, "{nanos} ns")
        } else if nanos < 1_000_000 {
            write!(f, "{}.{} µs", nanos / 1_000, nanos % 1_000 / 100)
        } else {
            write!(
                f,
                "{}.{} ms",
                nanos / 1_000_000,
                nanos % 1_000_000 / 100_000
            )
        }
    }
}
