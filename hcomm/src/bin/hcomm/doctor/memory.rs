//! Shared memory and huge pages.

use super::finding::Finding;
use super::host::{Host, bytes};

/// The file system at `/dev/shm`: its size and what is free, or why it cannot be used.
pub(super) type SharedMemory = Result<Space, String>;

/// Room of a file system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    pub(super) size: u64,
    pub(super) free: u64,
}

impl Space {
    /// That of `/dev/shm`.
    pub(super) fn of_shared_memory() -> SharedMemory {
        let room = rustix::fs::statvfs("/dev/shm").map_err(|error| error.to_string())?;
        rustix::fs::access("/dev/shm", rustix::fs::Access::WRITE_OK)
            .map_err(|error| format!("it may not be written to: {error}"))?;
        Ok(Self {
            size: room.f_blocks.saturating_mul(room.f_frsize),
            free: room.f_bavail.saturating_mul(room.f_frsize),
        })
    }
}

pub(super) fn check(host: &Host<'_>, shared: &SharedMemory) -> Vec<Finding> {
    let mut findings = vec![dev_shm(shared)];
    findings.extend(transparent(host));
    findings.push(reserved(host));
    findings
}

/// hcomm takes its memory elsewhere (memfd), but others that run in the same job do not.
fn dev_shm(shared: &SharedMemory) -> Finding {
    const CHECK: &str = "dev_shm";
    const SUBJECT: &str = "/dev/shm";
    const OURS: &str = "hcomm does not use it (its memory is memfd), other libraries do";
    match shared {
        Ok(space) => {
            let seen = format!("{}, {} free", bytes(space.size), bytes(space.free));
            if space.free < 64 << 20 {
                Finding::note(CHECK, SUBJECT, format!("{seen}; {OURS}"))
                    .fix("`mount -o remount,size=1G /dev/shm`; in a container `--shm-size=1g`")
            } else {
                Finding::ok(CHECK, SUBJECT, seen)
            }
        }
        Err(why) => Finding::note(CHECK, SUBJECT, format!("{why}; {OURS}")),
    }
}

fn transparent(host: &Host<'_>) -> Vec<Finding> {
    const CHECK: &str = "huge_pages";
    let file = |name: &str| format!("/sys/kernel/mm/transparent_hugepage/{name}");
    let mut findings = Vec::new();
    for (subject, name, expected) in [
        ("huge pages of memory", "enabled", "madvise or always"),
        (
            "huge pages of shared memory",
            "shmem_enabled",
            "advise, within_size or always",
        ),
    ] {
        let path = file(name);
        findings.push(match host.chosen(&path).as_deref() {
            None => Finding::note(CHECK, subject, "this kernel has none"),
            Some(mode @ ("never" | "deny")) => Finding::note(CHECK, subject, mode)
                .expected(format!(
                    "{expected}: large transfers then cost fewer page faults"
                ))
                .fix(format!(
                    "`echo {} > {path}` as root",
                    if name == "enabled" {
                        "madvise"
                    } else {
                        "advise"
                    }
                )),
            Some(mode) => Finding::ok(CHECK, subject, mode),
        });
    }
    findings
}

/// Those that are set aside; nothing here needs them.
fn reserved(host: &Host<'_>) -> Finding {
    let of = |name| host.line("/proc/meminfo", name);
    let total = of("HugePages_Total:").unwrap_or_default();
    let seen = match total.as_str() {
        "" | "0" => "none, and none needed".to_owned(),
        total => format!(
            "{total} of {}, {} free",
            of("Hugepagesize:").unwrap_or_default(),
            of("HugePages_Free:").unwrap_or_default()
        ),
    };
    Finding::ok("huge_pages", "huge pages set aside (hugetlb)", seen)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::super::host::recorded::Recorded;
    use super::*;

    #[test]
    fn modes_and_room_are_told() {
        let system = Recorded::new(&[
            (
                "/sys/kernel/mm/transparent_hugepage/enabled",
                "always [madvise] never",
            ),
            (
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size advise [never] deny force",
            ),
            (
                "/proc/meminfo",
                "HugePages_Total:       8\nHugePages_Free:        3\nHugepagesize:       2048 kB\n",
            ),
        ]);
        let host = Host::new(&system, 1, 1);
        let space = |free| {
            Ok(Space {
                size: 64 << 20,
                free,
            })
        };
        let findings = check(&host, &space(1 << 20));
        let of = |at: usize| (findings[at].verdict, findings[at].seen.as_str());
        assert_eq!(findings[0].verdict, Verdict::Note);
        assert!(findings[0].fix.as_ref().unwrap().contains("--shm-size"));
        assert_eq!(of(1), (Verdict::Ok, "madvise"));
        assert_eq!(of(2), (Verdict::Note, "never"));
        assert!(findings[2].fix.as_ref().unwrap().contains("echo advise > "));
        assert_eq!(of(3), (Verdict::Ok, "8 of 2048 kB, 3 free"));
        assert_eq!(check(&host, &space(64 << 20))[0].verdict, Verdict::Ok);
        let refused = check(&host, &Err("no permission".to_owned()));
        assert!(refused[0].seen.starts_with("no permission; "));
    }
}
