//! `hcomm doctor`: what on this host, and between ranks, keeps hcomm from working or from being
//! fast, the worst first, with what to do about each.
//!
//! One file for each group of checks. A check is a function from what was seen to findings, so that
//! its tests bring recordings; what has to be asked from the system is asked here or beside it.

mod cores;
mod finding;
mod host;
mod kernel;
mod limits;
mod links;
mod memory;
mod network;
mod peers;
mod rdma;
mod tcp;
mod variables;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use hcomm::{Identity, Options, Settings};
use hcomm_topo::{HostFacts, InterfaceFilter, LiveSystem, discover};
use hcomm_types::{Error, ErrorKind, Result};

use crate::{bind, output};
use cores::ClockLook;
use finding::{Finding, Report};
use host::Host;
use kernel::Ability;
use links::Looked;
use memory::Space;

/// Looks at this host: interfaces, limits, memory, kernel, clock, cores, TCP, RDMA devices,
/// transports, variables. Prints what it finds, the worst first, and what to do about it. With
/// --peers, under a launcher, also at what lies between ranks; rank 0 prints. The exit code is 1 if
/// something does not work.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Under a launcher: try every pair of ranks, too (of many ranks, one of each host), and look at
    /// each host
    #[arg(long)]
    peers: bool,
    /// How long ranks wait for each other to start, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..=3600), requires = "peers")]
    wait: u64,
}

/// Looks, and prints.
///
/// `log` is what is wrong with `HCOMM_LOG`, if anything is.
///
/// # Errors
/// If the report cannot be written; with `--peers` if this process is no rank, or a rank that does
/// not find the others. What is wrong with the host is a finding.
pub(crate) fn doctor(args: &DoctorArgs, log: Option<&Error>) -> Result<u8> {
    let look = Look::at_this_host(log);
    if !args.peers {
        let report = Report::new(vec![look.name], None, look.findings);
        return print(args, &report);
    }
    let Some(identity) = look.identity else {
        let hint = "start it as ranks: `hcomm run -n 2 -- hcomm doctor --peers`, or by torchrun, mpirun or srun";
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "--peers: this process is no rank of a job",
        )
        .hint(hint));
    };
    let ranks = identity.size;
    let here = peers::Here {
        identity,
        settings: look.settings,
        facts: look.facts?,
        compared: look.compared,
        findings: look.findings,
        wait: Duration::from_secs(args.wait),
    };
    match peers::look(here)? {
        Some(gathered) => {
            let report = Report::new(gathered.hosts, Some(ranks), gathered.findings);
            print(args, &report)
        }
        None => Ok(0),
    }
}

fn print(args: &DoctorArgs, report: &Report) -> Result<u8> {
    let text = if args.json {
        serde_json::to_string_pretty(report)
            .map_err(|error| Error::system("writing the report", error.into()))?
    } else {
        report.table()
    };
    let _ = output::print(&text)?;
    Ok(report.code())
}

/// What was seen on this host.
struct Look {
    /// Name of the host.
    name: String,
    findings: Vec<Finding>,
    /// Who this is, if it is a rank.
    identity: Option<Identity>,
    /// Of the variables; as if none were set where one is wrong.
    settings: Settings,
    facts: Result<HostFacts>,
    /// Versions and settings that are to be alike on all hosts, or worth knowing if they are not.
    compared: BTreeMap<String, String>,
}

impl Look {
    /// Every check of this host.
    fn at_this_host(log: Option<&Error>) -> Self {
        let system = LiveSystem;
        let allowed = bind::bound_to().map_or(1, |cores| cores.len());
        let allowed = u32::try_from(allowed).unwrap_or(u32::MAX);
        let mut findings = Vec::new();
        let identity = identity(&mut findings);
        let local_ranks = identity.as_ref().map_or(allowed, |one| {
            one.local_size.unwrap_or_else(|| one.size.min(allowed))
        });
        let ranks = identity.as_ref().map_or(local_ranks, |one| one.size);
        let host = Host::new(&system, local_ranks, ranks).by_rank(identity.is_some());

        let vars: BTreeMap<String, String> = std::env::vars_os()
            .map(|(name, value)| {
                let text = |part: std::ffi::OsString| part.to_string_lossy().into_owned();
                (text(name), text(value))
            })
            .collect();
        findings.extend(variables::check(&vars, log));
        // With bad variables the rest is looked at as if none were set.
        let settings = Settings::from_vars(vars).unwrap_or_default();
        let filter: InterfaceFilter = settings.socket_ifname().parse().unwrap_or_default();

        let looked = links::look(&Options::new(settings.clone()));
        findings.extend(links::check(&looked, ranks > local_ranks));
        let has_rdma_transport = looked.as_ref().is_ok_and(|all| all.iter().any(is_rdma));

        let facts = discover(&system);
        let online = match &facts {
            Ok(facts) => {
                findings.extend(network::check(&host, facts, &filter));
                findings.extend(rdma::check(&host, facts, has_rdma_transport));
                u32::try_from(facts.cores.len()).unwrap_or(u32::MAX)
            }
            Err(error) => {
                let finding = Finding::error("host", "what it is made of", error.to_string());
                findings.push(finding.fix("mount /proc and /sys"));
                allowed
            }
        };
        let has_rdma = facts
            .as_ref()
            .is_ok_and(|facts| !facts.infiniband.is_empty());
        findings.extend(tcp::check(&host));
        findings.extend(limits::check(&host, has_rdma));
        findings.extend(memory::check(&host, &Space::of_shared_memory()));
        findings.extend(cores::check(&host, allowed, online, ClockLook::look()));
        findings.extend(kernel::check(&host, &Ability::all()));

        let name = match &facts {
            Ok(facts) => facts.name.clone(),
            Err(_) => "this host".to_owned(),
        };
        for finding in &mut findings {
            finding.host = Some(name.clone());
        }
        let facts = facts.map_err(Error::from);
        let compared = compared(&host, &settings, &looked, &facts);
        Self {
            name,
            findings,
            identity,
            settings,
            facts,
            compared,
        }
    }
}

/// What is compared between hosts, by name.
fn compared(
    host: &Host<'_>,
    settings: &Settings,
    looked: &Result<Vec<Looked>>,
    facts: &Result<HostFacts>,
) -> BTreeMap<String, String> {
    let mut compared: BTreeMap<String, String> = settings.to_agree_on().iter().cloned().collect();
    for one in looked.as_ref().into_iter().flatten() {
        if let Ok(used) = &one.outcome {
            compared.insert(format!("transport {}", one.name), used.version.clone());
        }
    }
    for (name, path) in [
        ("kernel", "/proc/sys/kernel/osrelease"),
        (
            "tcp congestion control",
            "/proc/sys/net/ipv4/tcp_congestion_control",
        ),
    ] {
        if let Some(text) = host.text(path) {
            compared.insert(name.to_owned(), text);
        }
    }
    if let Ok(facts) = facts {
        compared.insert("cores".to_owned(), facts.cores.len().to_string());
        for device in &facts.infiniband {
            let firmware = device.firmware.clone().unwrap_or_default();
            compared.insert(format!("rdma firmware {}", device.name), firmware);
        }
    }
    compared
}

/// Who this is, if a launcher says; what is wrong there is a finding.
fn identity(findings: &mut Vec<Finding>) -> Option<Identity> {
    const CHECK: &str = "launcher";
    const SUBJECT: &str = "variables of a launcher";
    if !Identity::is_announced() {
        findings.push(Finding::ok(CHECK, SUBJECT, "none: this process is no rank"));
        return None;
    }
    match Identity::from_env() {
        Ok(identity) => {
            let Identity { rank, size, .. } = &identity;
            let seen = format!("rank {rank} of {size}, by {}", identity.launcher);
            findings.push(Finding::ok(CHECK, SUBJECT, seen));
            Some(identity)
        }
        Err(error) => {
            let finding = Finding::error(CHECK, SUBJECT, error.detail());
            let fix = error
                .next_step()
                .unwrap_or("start the program with a launcher");
            findings.push(finding.fix(fix.to_owned()));
            None
        }
    }
}

fn is_rdma(looked: &Looked) -> bool {
    looked.outcome.as_ref().is_ok_and(|used| used.is_rdma)
}
