//! The kernel: its version, and abilities that are tried out rather than read from the version.

use std::sync::atomic::AtomicU32;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::thread::{MembarrierCommand, futex, membarrier_query};

use super::finding::Finding;
use super::host::Host;

/// An ability, and what came of trying it.
#[derive(Clone, Debug)]
pub(super) struct Ability {
    name: &'static str,
    /// What it is for.
    needed_for: &'static str,
    /// Whether nothing works without it.
    is_vital: bool,
    tried: Result<(), String>,
}

impl Ability {
    /// All that matter here, tried out by this process.
    pub(super) fn all() -> Vec<Self> {
        let words = |error: rustix::io::Errno| error.to_string();
        let memory = memfd_create(
            "hcomm-doctor",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )
        .and_then(|memory| fcntl_add_seals(&memory, SealFlags::SHRINK));
        let word = AtomicU32::new(0);
        let woken = futex::wake(&word, futex::Flags::empty(), 1);
        let barriers = membarrier_query();
        let barrier = if barriers.contains_command(MembarrierCommand::RegisterGlobalExpedited) {
            Ok(())
        } else {
            Err("not offered".to_owned())
        };
        let life = pidfd_open(getpid(), PidfdFlags::empty());
        let events = eventfd(0, EventfdFlags::CLOEXEC).map(drop);
        let polls = epoll::create(epoll::CreateFlags::CLOEXEC).map(drop);
        [
            (
                "memfd",
                "shared memory without names",
                true,
                memory.map_err(words),
            ),
            (
                "futex",
                "sleeping until a peer writes",
                true,
                woken.map(drop).map_err(words),
            ),
            (
                "eventfd",
                "waking a rank that waits for several links",
                true,
                events.map_err(words),
            ),
            (
                "epoll",
                "waiting for several links",
                true,
                polls.map_err(words),
            ),
            (
                "pidfd",
                "noticing at once that a peer has died",
                false,
                life.map(drop).map_err(words),
            ),
            (
                "membarrier",
                "recording a notify without a fence",
                false,
                barrier,
            ),
        ]
        .into_iter()
        .map(|(name, needed_for, is_vital, tried)| Self {
            name,
            needed_for,
            is_vital,
            tried,
        })
        .collect()
    }
}

/// Oldest kernel with everything that is used (pidfd_open).
const OLDEST: (u32, u32) = (5, 3);

pub(super) fn check(host: &Host<'_>, abilities: &[Ability]) -> Vec<Finding> {
    let mut findings = vec![version(host)];
    findings.extend(abilities.iter().map(ability));
    findings.extend(ptrace(host));
    findings.extend(seccomp(host));
    findings
}

fn version(host: &Host<'_>) -> Finding {
    const CHECK: &str = "kernel";
    const SUBJECT: &str = "version";
    let release = host.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next()?.parse::<u32>().ok();
    match next().zip(next()) {
        Some(version) if version < OLDEST => Finding::warning(CHECK, SUBJECT, release)
            .expected(format!("{}.{} or later", OLDEST.0, OLDEST.1))
            .fix("install a later kernel; what is missing is listed below as `kernel`"),
        Some(_) => Finding::ok(CHECK, SUBJECT, release),
        None => Finding::note(CHECK, SUBJECT, "the system does not tell"),
    }
}

fn ability(ability: &Ability) -> Finding {
    const CHECK: &str = "kernel";
    match &ability.tried {
        Ok(()) => Finding::ok(CHECK, ability.name, "works"),
        Err(why) => {
            let make = if ability.is_vital {
                Finding::error
            } else {
                Finding::warning
            };
            make(CHECK, ability.name, why)
                .expected(format!("works: it is for {}", ability.needed_for))
                .fix("allow the call in the seccomp profile of the container, or install a later kernel")
        }
    }
}

/// What may keep processes from copying out of each other; whether it does is tried by `cma`.
fn ptrace(host: &Host<'_>) -> Option<Finding> {
    let scope = host.number("/proc/sys/kernel/yama/ptrace_scope")?;
    let (check, subject) = ("ptrace_scope", "who may look into a process (yama)");
    Some(match scope {
        0 => Finding::ok(check, subject, "0: processes of the same user"),
        1 => Finding::note(
            check,
            subject,
            "1: parents only, and whom a process allows; hcomm allows its peers",
        ),
        _ => Finding::warning(check, subject, format!("{scope}: nobody but root"))
            .expected("0 or 1: without it the caller's own memory is copied twice")
            .fix("`sysctl kernel.yama.ptrace_scope=1`; in a container `--cap-add SYS_PTRACE`"),
    })
}

fn seccomp(host: &Host<'_>) -> Option<Finding> {
    let mode = host.line("/proc/self/status", "Seccomp:")?;
    let (check, subject) = ("seccomp", "calls that a filter may forbid");
    Some(match mode.as_str() {
        "0" => Finding::ok(check, subject, "no filter"),
        _ => Finding::note(
            check,
            subject,
            "there is a filter; what it forbids shows under `kernel` and `cma`",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::super::host::recorded::Recorded;
    use super::*;

    #[test]
    fn what_is_missing_is_as_bad_as_what_needs_it() {
        let system = Recorded::new(&[
            ("/proc/sys/kernel/osrelease", "4.18.0-553.el8\n"),
            ("/proc/sys/kernel/yama/ptrace_scope", "3\n"),
            ("/proc/self/status", "Name:\tx\nSeccomp:\t2\n"),
        ]);
        let refused = |name, is_vital| Ability {
            name,
            needed_for: "this",
            is_vital,
            tried: Err("EPERM".to_owned()),
        };
        let abilities = [refused("memfd", true), refused("pidfd", false)];
        let findings = check(&Host::new(&system, 1, 1), &abilities);
        let verdicts: Vec<Verdict> = findings.iter().map(|finding| finding.verdict).collect();
        use Verdict::{Error, Note, Warning};
        assert_eq!(verdicts, [Warning, Error, Warning, Warning, Note]);
        let system = Recorded::new(&[
            ("/proc/sys/kernel/osrelease", "6.1.0-10"),
            ("/proc/sys/kernel/yama/ptrace_scope", "1"),
            ("/proc/self/status", "Seccomp:\t0"),
        ]);
        let findings = check(&Host::new(&system, 1, 1), &[]);
        let verdicts: Vec<Verdict> = findings.iter().map(|finding| finding.verdict).collect();
        assert_eq!(verdicts, [Verdict::Ok, Note, Verdict::Ok]);
    }

    #[test]
    fn abilities_are_tried() {
        let all = Ability::all();
        let names: Vec<&str> = all.iter().map(|ability| ability.name).collect();
        assert_eq!(
            names,
            ["memfd", "futex", "eventfd", "epoll", "pidfd", "membarrier"]
        );
    }
}
