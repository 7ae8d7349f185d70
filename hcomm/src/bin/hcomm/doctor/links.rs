//! Transports: which are used, which are refused and why, and how two processes of this host move
//! bytes over those that are used.

use hcomm::{Options, Outcome, Source};
use hcomm_transport::Capabilities;
use hcomm_types::{Error, Protocol};

use super::finding::Finding;
use crate::transports;

/// A candidate, as far as it matters here.
#[derive(Clone, Debug)]
pub(super) struct Looked {
    pub(super) name: String,
    pub(super) place: String,
    pub(super) outcome: Result<Used, String>,
}

/// A transport that is used.
#[derive(Clone, Debug, Default)]
pub(super) struct Used {
    pub(super) version: String,
    pub(super) devices: Vec<String>,
    pub(super) reaches_hosts: bool,
    pub(super) is_rdma: bool,
    /// How two processes of this host move bytes, by device: what came of trying it.
    pub(super) tried: Vec<(String, String)>,
}

/// All candidates of this process, those that are used tried out.
///
/// # Errors
/// If one that was asked for by name cannot be used.
pub(super) fn look(options: &Options) -> Result<Vec<Looked>, Error> {
    let transports = hcomm::load_transports(options)?;
    let mut all = Vec::new();
    for candidate in transports.candidates() {
        let outcome = match &candidate.outcome {
            Outcome::Refused(why) => Err(why.clone()),
            Outcome::Used(plugin) => {
                plugin
                    .devices()
                    .map_err(|error| error.to_string())
                    .map(|devices| {
                        let can =
                            |ability| devices.iter().any(|one| one.capabilities.contains(ability));
                        Used {
                            version: format!("{} by {}", plugin.version(), plugin.vendor()),
                            devices: devices
                                .iter()
                                .map(|one| format!("{} at {}", one.name, one.address))
                                .collect(),
                            reaches_hosts: can(Capabilities::CROSS_HOST),
                            is_rdma: devices.iter().any(|one| one.protocol == Protocol::Roce),
                            tried: devices
                                .iter()
                                .filter_map(|one| {
                                    Some((
                                        one.name.clone(),
                                        transports::tried(&candidate.name, one)?,
                                    ))
                                })
                                .collect(),
                        }
                    })
            }
        };
        all.push(Looked {
            name: candidate.name.clone(),
            place: match &candidate.source {
                Source::Linked => "linked in".to_owned(),
                Source::SharedObject(path) => path.display().to_string(),
            },
            outcome,
        });
    }
    Ok(all)
}

pub(super) fn check(looked: &Result<Vec<Looked>, Error>, several_hosts: bool) -> Vec<Finding> {
    const CHECK: &str = "transport";
    let looked = match looked {
        Ok(looked) => looked,
        Err(error) => {
            let finding = Finding::error(CHECK, "all", error.detail());
            let fix = error
                .next_step()
                .unwrap_or("`hcomm transports` shows all candidates");
            return vec![finding.fix(fix.to_owned())];
        }
    };
    let used = || looked.iter().filter_map(|one| one.outcome.as_ref().ok());
    let mut findings: Vec<Finding> = looked.iter().map(|one| candidate(one, looked)).collect();
    if used().next().is_none() {
        findings.push(
            Finding::error(CHECK, "all", "none can be used")
                .expected("shm at least, which is linked in")
                .fix("look at the reasons above, and at HCOMM_TRANSPORTS"),
        );
    } else if !used().any(|one| one.reaches_hosts) {
        let make = if several_hosts {
            Finding::error
        } else {
            Finding::warning
        };
        findings.push(
            make(CHECK, "between hosts", "no transport that is used reaches other hosts")
                .expected("tcp, or another that does")
                .fix("put libhcomm_transport_tcp.so into `hcomm/` beside the program, or name its folder in HCOMM_TRANSPORT_PATH; do not leave it out of HCOMM_TRANSPORTS"),
        );
    }
    findings.extend(one_copy(looked));
    findings
}

fn candidate(one: &Looked, all: &[Looked]) -> Finding {
    const CHECK: &str = "transport";
    let Looked {
        name,
        place,
        outcome,
    } = one;
    match outcome {
        Ok(used) if used.devices.is_empty() => {
            Finding::note(CHECK, name, format!("used, without a device [{place}]"))
        }
        Ok(used) => {
            let devices = used.devices.join(", ");
            Finding::ok(
                CHECK,
                name,
                format!("used, version {}: {devices} [{place}]", used.version),
            )
        }
        Err(why) => {
            let seen = format!("not used: {why} [{place}]");
            let has_other = all
                .iter()
                .any(|other| other.name == *name && other.outcome.is_ok());
            // Left out on purpose, or another file of its name is used.
            let is_harmless = why.starts_with("not among ")
                || why.starts_with("shadowed by ")
                || why.ends_with(" was found");
            // What it is for is not on this host.
            let lacks = ["no device", "vendor library"]
                .iter()
                .any(|begin| why.starts_with(&format!("init: {begin}")));
            if is_harmless || lacks {
                Finding::note(CHECK, name, seen)
            } else if has_other {
                Finding::warning(CHECK, name, seen)
                    .expected("used: another one of its name is used instead")
                    .fix("repair or remove the file")
            } else {
                Finding::warning(CHECK, name, seen)
                    .expected("used")
                    .fix(format!(
                        "repair or remove the file, or leave it out: HCOMM_TRANSPORTS=^{name}"
                    ))
            }
        }
    }
}

/// Whether memory of the user moves in one copy between processes of this host: tried with a real
/// transfer when two processes connect.
fn one_copy(looked: &[Looked]) -> Vec<Finding> {
    const CHECK: &str = "cma";
    let mut findings = Vec::new();
    for one in looked {
        let Ok(used) = &one.outcome else { continue };
        for (device, words) in &used.tried {
            let subject = format!("two processes here over {} {device}", one.name);
            findings.push(if one.name != "shm" {
                Finding::ok("two_processes", &subject, words)
            } else if words.contains("in one copy") {
                Finding::ok(CHECK, &subject, words)
            } else if words.contains("user memory") {
                Finding::warning(CHECK, &subject, words)
                    .expected("user memory moves in one copy (process_vm_readv)")
                    .fix("`sysctl kernel.yama.ptrace_scope=1`; in a container allow process_vm_readv (`--cap-add SYS_PTRACE`) and one pid namespace; or use memory that hcomm allocates, which is mapped")
            } else {
                Finding::error(CHECK, &subject, words)
                    .expected("two processes of this host connect")
                    .fix("the reason stands before; `hcomm transports` tries it again")
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    fn used(name: &str, reaches_hosts: bool, words: &str) -> Looked {
        Looked {
            name: name.to_owned(),
            place: "linked in".to_owned(),
            outcome: Ok(Used {
                version: "1 by us".to_owned(),
                devices: vec!["any at host".to_owned()],
                reaches_hosts,
                is_rdma: false,
                tried: vec![("any".to_owned(), words.to_owned())],
            }),
        }
    }

    fn refused(name: &str, why: &str) -> Looked {
        Looked {
            name: name.to_owned(),
            place: format!("/lib/{name}.so"),
            outcome: Err(why.to_owned()),
        }
    }

    fn verdicts(looked: &Result<Vec<Looked>, Error>, several: bool) -> Vec<(String, Verdict)> {
        let of = |finding: Finding| {
            (
                format!("{} {}", finding.check, finding.subject),
                finding.verdict,
            )
        };
        check(looked, several).into_iter().map(of).collect()
    }

    #[test]
    fn refusals_are_as_bad_as_what_stands_in_for_them() {
        use Verdict::{Error, Note, Ok as Fine, Warning};
        let looked = vec![
            used(
                "shm",
                false,
                "allocated memory is mapped; user memory goes through a ring, because EPERM",
            ),
            refused("shm", "it is writable for everybody"),
            refused("tcp", "not among `shm`"),
            refused("roce", "init: vendor library missing: libibverbs.so.1"),
            refused("ub", "not trusted: it is writable for everybody"),
        ];
        let owned = |list: &[(&str, Verdict)]| -> Vec<(String, Verdict)> {
            list.iter()
                .map(|(name, verdict)| ((*name).to_owned(), *verdict))
                .collect()
        };
        assert_eq!(
            verdicts(&Ok(looked.clone()), false),
            owned(&[
                ("transport shm", Fine),
                ("transport shm", Warning),
                ("transport tcp", Note),
                ("transport roce", Note),
                ("transport ub", Warning),
                ("transport between hosts", Warning),
                ("cma two processes here over shm any", Warning),
            ])
        );
        assert!(
            verdicts(&Ok(looked), true).contains(&("transport between hosts".to_owned(), Error))
        );
        let fine = vec![
            used(
                "shm",
                false,
                "allocated memory is mapped; user memory moves in one copy (...)",
            ),
            used("tcp", true, "one connection"),
        ];
        assert!(
            verdicts(&Ok(fine), true)
                .iter()
                .all(|(_, verdict)| *verdict == Fine)
        );
        let broken = vec![used(
            "shm",
            false,
            "the other process did not connect in 10s",
        )];
        let broken = verdicts(&Ok(broken), false);
        assert_eq!(broken.last().unwrap().1, Error);
        assert_eq!(
            verdicts(&Ok(Vec::new()), false),
            owned(&[("transport all", Error)])
        );
    }
}
