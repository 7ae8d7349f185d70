//! Limits of this process and of the groups it is in: locked memory, open files, processes,
//! mappings, memory.

use super::finding::Finding;
use super::host::{Host, bytes, or_none};

/// Descriptors that a process needs whatever the number of its peers, and for each of them
/// (control link, channel over shm: memory, bell, life; over tcp: sockets). On the safe side.
const OWN_DESCRIPTORS: u64 = 64;
const DESCRIPTORS_A_PEER: u64 = 8;

/// Memory mappings likewise.
const MAPPINGS_A_PEER: u64 = 16;

/// What registering memory with a network card may need.
const LOCKED_BYTES: u64 = 64 << 20;

/// Above this many ranks channels are made when they are first needed.
const EAGER_RANKS: u64 = hcomm_ctrl::EAGER_RANKS as u64;

pub(super) fn check(host: &Host<'_>, has_rdma: bool) -> Vec<Finding> {
    let mut findings = vec![
        locked_memory(host, has_rdma),
        open_files(host),
        processes(host),
    ];
    findings.extend(mappings(host));
    findings.push(memory(host));
    findings
}

fn locked_memory(host: &Host<'_>, has_rdma: bool) -> Finding {
    const CHECK: &str = "memlock";
    const SUBJECT: &str = "locked memory of a process";
    let Some(limit) = host.limit("Max locked memory") else {
        return Finding::note(CHECK, SUBJECT, "the system does not tell");
    };
    let seen = or_none(limit.soft, bytes);
    match limit.soft {
        Some(soft) if has_rdma && soft < LOCKED_BYTES => Finding::error(CHECK, SUBJECT, seen)
            .expected("no limit: network cards lock the memory that they reach")
            .fix(format!(
                "`ulimit -l unlimited` (hard limit: {}), in /etc/security/limits.conf `* - memlock unlimited`; \
                 in a container `--ulimit memlock=-1`",
                or_none(limit.hard, bytes)
            )),
        Some(soft) if soft < LOCKED_BYTES => {
            Finding::note(CHECK, SUBJECT, seen + "; enough for shm and tcp, which lock nothing")
        }
        _ => Finding::ok(CHECK, SUBJECT, seen),
    }
}

fn open_files(host: &Host<'_>) -> Finding {
    const CHECK: &str = "open_files";
    const SUBJECT: &str = "descriptors of a process";
    let Some(limit) = host.limit("Max open files") else {
        return Finding::note(CHECK, SUBJECT, "the system does not tell");
    };
    let peers = u64::from(host.ranks.saturating_sub(1));
    let needed = OWN_DESCRIPTORS + DESCRIPTORS_A_PEER * peers;
    let Some(soft) = limit.soft else {
        return Finding::ok(CHECK, SUBJECT, "no limit");
    };
    let enough_for = soft.saturating_sub(OWN_DESCRIPTORS) / DESCRIPTORS_A_PEER + 1;
    let seen = format!("{soft}, enough for {enough_for} ranks");
    let hard = or_none(limit.hard, |n| n.to_string());
    if soft < needed {
        Finding::error(CHECK, SUBJECT, seen)
            .expected(format!("{needed} for {} ranks", host.ranks))
            .fix(format!("`ulimit -n {needed}` (hard limit: {hard})"))
    } else if enough_for < EAGER_RANKS {
        let wanted = OWN_DESCRIPTORS + DESCRIPTORS_A_PEER * EAGER_RANKS;
        Finding::warning(CHECK, SUBJECT, seen)
            .expected(format!("{wanted} or more"))
            .fix(format!(
                "`ulimit -n {wanted}` (hard limit: {hard}) before jobs of more ranks"
            ))
    } else {
        Finding::ok(CHECK, SUBJECT, seen)
    }
}

fn processes(host: &Host<'_>) -> Finding {
    const CHECK: &str = "processes";
    const SUBJECT: &str = "processes and threads of this user";
    let limit = host.limit("Max processes").and_then(|limit| limit.soft);
    // (limit, in use) of the groups that have one.
    let group = host.groups("pids").into_iter().find_map(|folder| {
        let limit = host.number(&format!("{folder}/pids.max"))?;
        let used = host.number(&format!("{folder}/pids.current")).unwrap_or(0);
        Some((limit, limit.saturating_sub(used)))
    });
    // A rank has its main thread, perhaps workers, and what its program starts.
    let needed = 4 * u64::from(host.local_ranks);
    match (limit, group) {
        (_, Some((limit, left))) if left < needed => Finding::error(
            CHECK,
            SUBJECT,
            format!("the control group allows {limit}, {left} more"),
        )
        .expected(format!("{needed} more for {} ranks here", host.local_ranks))
        .fix("raise pids.max of the control group (`--pids-limit` of a container)"),
        (Some(limit), _) if limit < needed => Finding::error(CHECK, SUBJECT, limit.to_string())
            .expected(format!("{needed} for {} ranks here", host.local_ranks))
            .fix(format!("`ulimit -u {}`", needed.max(4096))),
        (limit, group) => {
            let mut seen = or_none(limit, |n| n.to_string());
            if let Some((limit, left)) = group {
                seen += &format!("; the control group allows {limit}, {left} more");
            }
            Finding::ok(CHECK, SUBJECT, seen)
        }
    }
}

fn mappings(host: &Host<'_>) -> Option<Finding> {
    const CHECK: &str = "mappings";
    const SUBJECT: &str = "memory mappings of a process";
    let limit = host.number("/proc/sys/vm/max_map_count")?;
    let needed = 1024 + MAPPINGS_A_PEER * u64::from(host.ranks);
    Some(if limit < needed {
        Finding::warning(CHECK, SUBJECT, limit.to_string())
            .expected(format!("{needed} or more for {} ranks", host.ranks))
            .fix("`sysctl vm.max_map_count=65530`")
    } else {
        Finding::ok(CHECK, SUBJECT, limit.to_string())
    })
}

/// What is left of the system's memory and of the groups'.
fn memory(host: &Host<'_>) -> Finding {
    const CHECK: &str = "memory";
    const SUBJECT: &str = "memory that ranks here can have";
    let kilobytes = |name| -> Option<u64> {
        let line = host.line("/proc/meminfo", name)?;
        line.split_whitespace().next()?.parse().ok()
    };
    let system = kilobytes("MemAvailable:").map(|kb: u64| kb << 10);
    let group = host.groups("memory").into_iter().find_map(|folder| {
        let read = |name: &str| host.number(&format!("{folder}/{name}"));
        let limit = read("memory.max").or_else(|| read("memory.limit_in_bytes"))?;
        let used = read("memory.current").or_else(|| read("memory.usage_in_bytes"));
        // The first version writes "no limit" as a number that nobody has.
        (limit < 1 << 60).then(|| (limit, limit.saturating_sub(used.unwrap_or(0))))
    });
    let left = [system, group.map(|(_, left)| left)];
    let Some(left) = left.into_iter().flatten().min() else {
        return Finding::note(CHECK, SUBJECT, "the system does not tell");
    };
    let mut seen = bytes(left);
    if let Some((limit, left)) = group {
        seen += &format!(
            "; the control group allows {}, {} more",
            bytes(limit),
            bytes(left)
        );
    }
    let needed = u64::from(host.local_ranks) * 2 * hcomm::DEFAULT_BUFFER_BYTES;
    if left < needed {
        Finding::error(CHECK, SUBJECT, seen)
            .expected(format!(
                "{} for {} ranks here: a buffer of HCOMM_BUFFER_BYTES each, and what goes with it",
                bytes(needed),
                host.local_ranks
            ))
            .fix("free memory, raise the control group's limit, start fewer ranks, or lower HCOMM_BUFFER_BYTES")
    } else {
        Finding::ok(CHECK, SUBJECT, seen)
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::super::host::recorded::Recorded;
    use super::*;

    fn limits(locked: &str, files: &str, processes: &str) -> String {
        format!(
            "Max processes             {processes}                96363                processes\n\
             Max open files            {files}                 1048576                files\n\
             Max locked memory         {locked}              unlimited              bytes\n"
        )
    }

    fn verdict(findings: &[Finding], check: &str) -> Verdict {
        let found = findings.iter().find(|finding| finding.check == check);
        let found = found.unwrap_or_else(|| panic!("no {check}: {findings:?}"));
        // Whoever is to change something is told how.
        assert_eq!(found.verdict >= Verdict::Warning, found.fix.is_some());
        found.verdict
    }

    #[test]
    fn low_limits_are_found_by_what_they_are_too_low_for() {
        let at = |locked, files, processes, ranks, has_rdma| {
            let system = Recorded::new(&[("/proc/self/limits", &limits(locked, files, processes))]);
            check(&Host::new(&system, ranks, ranks), has_rdma)
        };
        let fine = at("8388608", "20000", "96363", 4, false);
        for name in ["open_files", "processes"] {
            assert_eq!(verdict(&fine, name), Verdict::Ok, "{name}");
        }
        assert_eq!(verdict(&fine, "memlock"), Verdict::Note);
        let low = at("65536", "64", "8", 16, true);
        for name in ["memlock", "open_files", "processes"] {
            assert_eq!(verdict(&low, name), Verdict::Error, "{name}");
        }
        let few = at("unlimited", "256", "unlimited", 2, true);
        assert_eq!(verdict(&few, "memlock"), Verdict::Ok);
        assert_eq!(verdict(&few, "open_files"), Verdict::Warning);
    }

    #[test]
    fn the_limits_of_control_groups_count() {
        let system = Recorded::new(&[
            ("/proc/self/limits", &limits("1", "20000", "unlimited")),
            ("/proc/self/cgroup", "0::/job"),
            ("/sys/fs/cgroup/job/pids.max", "20"),
            ("/sys/fs/cgroup/job/pids.current", "18"),
            ("/sys/fs/cgroup/job/memory.max", "67108864"),
            ("/sys/fs/cgroup/job/memory.current", "33554432"),
            (
                "/proc/meminfo",
                "MemTotal: 9 kB\nMemAvailable:   25165824 kB\n",
            ),
            ("/proc/sys/vm/max_map_count", "1000"),
        ]);
        let findings = check(&Host::new(&system, 4, 4), false);
        for name in ["processes", "memory"] {
            assert_eq!(verdict(&findings, name), Verdict::Error, "{name}");
        }
        assert_eq!(verdict(&findings, "mappings"), Verdict::Warning);
        let system = system.with(&[
            ("/sys/fs/cgroup/job/pids.max", "max"),
            ("/sys/fs/cgroup/job/memory.max", "max"),
        ]);
        let findings = check(&Host::new(&system, 4, 4), false);
        for name in ["processes", "memory"] {
            assert_eq!(verdict(&findings, name), Verdict::Ok, "{name}");
        }
    }
}
