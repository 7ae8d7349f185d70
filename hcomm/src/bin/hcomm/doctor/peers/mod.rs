//! `hcomm doctor --peers`: what lies between ranks. Everything is gathered at rank 0, which prints.
//!
//! All ranks meet twice in the way a job starts, over the root's port alone: first each tells where
//! it can be reached, then what it found when it tried to reach the others. Only then they form a
//! communicator and measure the links that it chose. Whatever fails is a finding, and each step has
//! a deadline: a rank that does not come is named by whoever waits for it.

mod compare;
mod measure;
mod probe;
mod reach;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hcomm::{Communicator, Identity, Options, RootAddress, Settings};
use hcomm_ctrl::{Bootstrap, Member, Outside, drive};
use hcomm_topo::{HostFacts, InterfaceFilter};
use hcomm_transport::{SystemWaiter, WaitPolicy, Waiter};
use hcomm_types::{Error, ErrorKind, ProcessId, Rank, Result};
use serde::{Deserialize, Serialize};

use super::finding::Finding;
#[cfg(test)]
use super::finding::Verdict;
use super::network::is_link_local;
use probe::Door;
use reach::Try;

/// Up to this many ranks each pair is tried; above, one rank of each host.
const ALL_RANKS: usize = 8;

/// Addresses of a rank at which it listens, at most: a host of containers has hundreds.
const MAX_PLACES: usize = 32;

/// How long a rank may try to reach others, at most: what rank 0 allows for it.
const TRYING: Duration = Duration::from_secs(40);

/// How long a message may take while links are measured.
const MESSAGE: Duration = Duration::from_secs(30);

/// What a rank tells all others at first.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Said {
    host: String,
    /// What makes addresses of the loopback lead to the same place.
    network: String,
    places: Vec<Place>,
    /// Versions and settings that are to be alike, or are worth knowing if they are not.
    compared: BTreeMap<String, String>,
}

/// Where a rank can be reached: an address with a listener behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    interface: String,
    ip: IpAddr,
    prefix_bits: u8,
    mtu_bytes: u32,
    port: u16,
}

/// What a rank tells at last.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Found {
    /// Of its host, by one rank of each host.
    findings: Vec<Finding>,
    tries: Vec<Try>,
}

/// What rank 0 has in the end.
pub(super) struct Gathered {
    pub(super) hosts: Vec<String>,
    pub(super) findings: Vec<Finding>,
}

/// What is known before: of this rank, and of its host.
pub(super) struct Here {
    pub(super) identity: Identity,
    pub(super) settings: Settings,
    pub(super) facts: HostFacts,
    pub(super) compared: BTreeMap<String, String>,
    /// The findings of this host.
    pub(super) findings: Vec<Finding>,
    /// How long ranks wait for each other to start.
    pub(super) wait: Duration,
}

/// Looks at what lies between ranks; `None` at all ranks but 0.
///
/// # Errors
/// If this rank does not find the others and is not rank 0, which tells all it knows.
pub(super) fn look(here: Here) -> Result<Option<Gathered>> {
    let is_root = here.identity.rank == Rank(0);
    let name = here.facts.name.clone();
    match together(&here) {
        Ok(gathered) => Ok(is_root.then_some(gathered)),
        Err(error) if is_root => {
            let mut findings = here.findings;
            findings.push(failed("start", "ranks find each other", &error));
            Ok(Some(Gathered {
                hosts: vec![name],
                findings,
            }))
        }
        Err(error) => Err(error),
    }
}

fn together(here: &Here) -> Result<Gathered> {
    let door = Door::open(places(&here.facts, &filter(&here.settings)));
    let said = Said {
        host: here.facts.name.clone(),
        network: network_of(&here.facts),
        places: door.places().to_vec(),
        compared: here.compared.clone(),
    };
    let all: Vec<Said> = meet(here, &said, here.wait)?;
    let me = here.identity.rank.index();
    let chosen = chosen(&all);
    let mut found = Found::default();
    if is_first_of_host(&all, me) {
        found.findings.clone_from(&here.findings);
    }
    // Others knock at the door until all have told what they found.
    let met = std::thread::scope(|scope| {
        let _serving = door.serve(scope)?;
        if chosen.contains(&me) {
            found.tries = reach::try_all(&all, &chosen, me);
        }
        meet::<Found>(here, &found, here.wait.max(TRYING))
    });
    let mut findings = Vec::new();
    let is_complete = met.is_ok();
    let (gathered, tellers) = match met {
        Ok(gathered) => (gathered, chosen.clone()),
        // What rank 0 has found by itself is told all the same.
        Err(error) if me == 0 => {
            findings.push(failed("start", "ranks tell what they found", &error));
            (vec![found], vec![0])
        }
        Err(error) => return Err(error),
    };
    if chosen.len() < all.len() {
        let ranks: Vec<String> = chosen.iter().map(ToString::to_string).collect();
        let seen = format!("of {} ranks those of {}", all.len(), ranks.join(", "));
        let seen = seen + ": one of each host, or two of one host alone";
        findings.push(Finding::note("pairs", "which are tried", seen));
    }
    let tries: Vec<Try> = gathered.iter().flat_map(|one| one.tries.clone()).collect();
    findings.extend(compare::check(&all));
    findings.extend(reach::check(&all, &chosen, &tellers, &tries));
    if is_complete {
        findings.extend(links(here, &chosen));
    }
    // Of a host only once, however many ranks of it there are.
    findings.extend(gathered.into_iter().flat_map(|one| one.findings));
    let mut hosts: Vec<String> = all.into_iter().map(|said| said.host).collect();
    hosts.dedup();
    Ok(Gathered { hosts, findings })
}

/// Forms a communicator and measures the links that it has chosen.
fn links(here: &Here, chosen: &[usize]) -> Vec<Finding> {
    let settings = here.settings.clone().with_connect_timeout(here.wait);
    let settings = settings.with_exec_timeout(MESSAGE);
    let measured = Communicator::from_env_with(&Options::new(settings)).and_then(|comm| {
        let findings = measure::measure(&comm, chosen)?;
        comm.close()?;
        Ok(findings)
    });
    measured.unwrap_or_else(|error| vec![failed("links", "a communicator of all ranks", &error)])
}

/// What the whole comes to when it fails: with ranks and times.
fn failed(check: &str, subject: &str, error: &Error) -> Finding {
    let words = error.to_string();
    let (seen, fix) = match error.next_step() {
        Some(next) => (
            words.strip_suffix(&format!("; {next}")).unwrap_or(&words),
            next,
        ),
        None => (
            words.as_str(),
            "look at `reach` between these ranks, and at what they print",
        ),
    };
    let fix = format!("{fix}; `--wait` gives ranks more time to start");
    Finding::error(check, subject, seen).fix(fix)
}

/// All ranks tell something, and learn what the others tell.
///
/// # Errors
/// As at the start of a communicator: who has not come is named.
fn meet<T: Serialize + for<'a> Deserialize<'a>>(
    here: &Here,
    say: &T,
    timeout: Duration,
) -> Result<Vec<T>> {
    let identity = &here.identity;
    let address = RootAddress::choose(here.settings.root(), |name| std::env::var(name).ok())?;
    let mut token = [0; 8];
    getrandom::fill(&mut token)
        .map_err(|error| Error::new(ErrorKind::System, format!("random bytes: {error}")))?;
    let process = ProcessId {
        pid: std::process::id(),
        token: u64::from_le_bytes(token),
    };
    let facts = &here.facts;
    let mut member = Member::new(
        identity.rank,
        identity.size,
        process,
        &facts.name,
        facts.id.clone(),
    );
    member.local_rank = identity.local_rank;
    member.facts = serde_json::to_vec(say)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("telling others: {error}")))?;
    let waiter: Arc<dyn Waiter> = Arc::new(SystemWaiter::new(WaitPolicy::for_load(usize::MAX, 1))?);
    let (outside, key, now) = (
        Outside::system(),
        here.settings.job_key().cloned(),
        waiter.now(),
    );
    let mut bootstrap = if identity.rank == Rank(0) {
        Bootstrap::root_at(outside, &address, key, member, timeout, now)?
    } else {
        Bootstrap::join_at(outside, &address, key, member, timeout, now)?
    };
    let roster = drive(&*waiter, &mut bootstrap)?;
    let members = roster.members().iter();
    members
        .map(|member| {
            serde_json::from_slice(&member.facts).map_err(|error| {
                Error::new(
                    ErrorKind::Mismatch,
                    format!(
                        "rank {} runs another program or version: {error}",
                        member.rank
                    ),
                )
                .hint("run `hcomm doctor --peers` of one version on all ranks")
                .blame_rank(member.rank)
            })
        })
        .collect()
}

/// The interfaces that may be used; all if that is badly written, which is a finding elsewhere.
fn filter(settings: &Settings) -> InterfaceFilter {
    settings.socket_ifname().parse().unwrap_or_default()
}

/// The addresses of interfaces that are up and may be used.
fn places(facts: &HostFacts, filter: &InterfaceFilter) -> Vec<Place> {
    let interfaces = facts.interfaces.iter();
    let usable = interfaces.filter(|interface| interface.up && filter.matches(&interface.name));
    usable
        .flat_map(|interface| {
            let addresses = interface.addresses.iter();
            addresses
                .filter(|address| !is_link_local(address.ip))
                .map(|address| Place {
                    interface: interface.name.clone(),
                    ip: address.ip,
                    prefix_bits: address.prefix_bits,
                    mtu_bytes: interface.mtu_bytes,
                    port: 0,
                })
        })
        .take(MAX_PLACES)
        .collect()
}

/// Name of the network stack that a rank sees.
fn network_of(facts: &HostFacts) -> String {
    let namespace = facts.network_namespace.as_deref().unwrap_or_default();
    format!("{} {namespace}", facts.id.0)
}

/// Whether a rank is the first of its host.
fn is_first_of_host(all: &[Said], rank: usize) -> bool {
    let network = &all[rank].network;
    all[..rank].iter().all(|other| other.network != *network)
}

/// The ranks whose pairs are tried.
fn chosen(all: &[Said]) -> Vec<usize> {
    let every = 0..all.len();
    if all.len() <= ALL_RANKS {
        return every.collect();
    }
    let firsts: Vec<usize> = every.filter(|rank| is_first_of_host(all, *rank)).collect();
    // Of one host alone two.
    if firsts.len() < 2 { vec![0, 1] } else { firsts }
}

/// A rank with its host, for people.
fn label(all: &[Said], rank: usize) -> String {
    format!("rank {rank} ({})", all[rank].host)
}

/// The worst verdict of findings.
#[cfg(test)]
fn worst(findings: &[Finding]) -> Verdict {
    let verdicts = findings.iter().map(|finding| finding.verdict);
    verdicts.max().unwrap_or(Verdict::Ok)
}

#[cfg(test)]
mod tests {
    use super::super::network::tests::{facts, interface};
    use super::*;

    /// A rank of a host with these addresses of /24.
    pub(super) fn said(host: &str, ips: &[&str]) -> Said {
        let facts = facts(vec![interface(1, "eth0", ips)]);
        Said {
            host: host.to_owned(),
            network: host.to_owned(),
            places: places(&facts, &InterfaceFilter::all()),
            compared: BTreeMap::new(),
        }
    }

    #[test]
    fn of_many_ranks_one_of_each_host_is_tried() {
        let hosts = |names: &str| -> Vec<Said> {
            names
                .chars()
                .map(|name| said(&name.to_string(), &[]))
                .collect()
        };
        assert_eq!(chosen(&hosts("aabb")), [0, 1, 2, 3]);
        assert_eq!(chosen(&hosts("aaaabbbbcc")), [0, 4, 8]);
        assert_eq!(chosen(&hosts("aaaaaaaaaa")), [0, 1]);
        let all = hosts("aab");
        let first: Vec<bool> = (0..3).map(|rank| is_first_of_host(&all, rank)).collect();
        assert_eq!(first, [true, false, true]);
    }

    #[test]
    fn places_are_those_that_others_may_reach() {
        let mut down = interface(2, "eth1", &["198.51.100.1"]);
        down.up = false;
        let eth0 = interface(
            1,
            "eth0",
            &["192.0.2.1", "169.254.0.1", "fe80::1", "fd00::1"],
        );
        let usb0 = interface(3, "usb0", &["203.0.113.1"]);
        let filter = "^usb".parse().unwrap();
        let found = places(&facts(vec![eth0, down, usb0]), &filter);
        let ips: Vec<String> = found.iter().map(|place| place.ip.to_string()).collect();
        assert_eq!(ips, ["192.0.2.1", "fd00::1"]);
    }
}
