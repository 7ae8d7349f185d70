//! `HCOMM_*` variables that are wrong or unknown, and those of other libraries that do nothing here.

use std::collections::BTreeMap;

use hcomm::{Settings, VARIABLES};
use hcomm_topo::InterfaceFilter;
use hcomm_types::Error;

use super::finding::Finding;

const CHECK: &str = "variables";

/// Looks at variables by name and value; `log` is what is wrong with `HCOMM_LOG`, if anything is.
pub(super) fn check(vars: &BTreeMap<String, String>, log: Option<&Error>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let ours = vars.iter().filter(|(name, _)| name.starts_with("HCOMM_"));
    let mut is_all_well = true;
    for (name, value) in ours.clone() {
        let alone = Settings::from_vars([(name.clone(), value.clone())]);
        let problem = alone.err().or_else(|| list_problem(name, value));
        let problem = problem.or_else(|| log.filter(|_| name == "HCOMM_LOG").cloned());
        match problem {
            Some(error) => {
                is_all_well = false;
                findings.push(wrong(name, &error));
            }
            None => findings.push(Finding::ok(CHECK, name, shown(name, value))),
        }
    }
    // Each is right; together they may not be.
    if is_all_well && let Err(error) = Settings::from_vars(vars.clone()) {
        findings.push(wrong("together", &error));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, "HCOMM_*", "none is set"));
    }
    for variable in VARIABLES {
        for other in variable.known_as {
            if vars.contains_key(*other) && !vars.contains_key(variable.name) {
                let seen = "set, and not read by hcomm";
                findings.push(Finding::note(CHECK, other, seen).fix(format!(
                    "what is like it here is {}: {}",
                    variable.name, variable.meaning
                )));
            }
        }
    }
    findings
}

fn wrong(subject: &str, error: &Error) -> Finding {
    let finding = Finding::error(CHECK, subject, error.detail());
    finding.fix(error.next_step().unwrap_or("unset it").to_owned())
}

/// Lists are looked at where they are used, which may be late.
fn list_problem(name: &str, value: &str) -> Option<Error> {
    match name {
        "HCOMM_SOCKET_IFNAME" => value.parse::<InterfaceFilter>().err().map(Into::into),
        "HCOMM_TRANSPORTS" => value.parse::<hcomm_topo::Allowed>().err().map(Into::into),
        _ => None,
    }
}

/// A value for people; secrets are not.
fn shown(name: &str, value: &str) -> String {
    if name == "HCOMM_JOB_KEY" {
        "set".to_owned()
    } else {
        value.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    fn of(vars: &[(&str, &str)]) -> Vec<Finding> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        check(&vars.iter().map(own).collect(), None)
    }

    #[test]
    fn each_wrong_variable_is_named_and_secrets_are_not_shown() {
        let findings = of(&[
            ("HCOMM_BUFFER_BYTES", "lots"),
            ("HCOMM_EXEC_TIMEOUT", "5"),
            ("HCOMM_JOB_KEY", "sesame"),
            ("HCOMM_SOCKET_IFNAME", "^"),
            ("HCOMM_TIMEOUT", "5"),
            ("HCOMM_TRANSPORTS", "shm,,tcp"),
            ("NCCL_SOCKET_IFNAME", "eth0"),
            ("NCCL_BUFFSIZE", "1"),
            ("PATH", "/bin"),
        ]);
        let verdict = |subject: &str| {
            let found = findings.iter().find(|finding| finding.subject == subject);
            found
                .unwrap_or_else(|| panic!("no {subject}: {findings:#?}"))
                .verdict
        };
        for name in ["BUFFER_BYTES", "SOCKET_IFNAME", "TIMEOUT", "TRANSPORTS"] {
            assert_eq!(verdict(&format!("HCOMM_{name}")), Verdict::Error, "{name}");
        }
        assert_eq!(verdict("HCOMM_EXEC_TIMEOUT"), Verdict::Ok);
        assert_eq!(verdict("HCOMM_JOB_KEY"), Verdict::Ok);
        assert_eq!(findings.len(), 6, "ours are set: {findings:#?}");
        assert!(!format!("{findings:?}").contains("sesame"));
    }

    #[test]
    fn what_does_not_go_together_and_what_others_read_is_told() {
        let findings = of(&[("NCCL_SOCKET_IFNAME", "eth0")]);
        assert_eq!(
            (findings[0].verdict, findings[0].subject.as_str()),
            (Verdict::Ok, "HCOMM_*")
        );
        assert_eq!(findings[1].verdict, Verdict::Note);
        let fix = findings[1].fix.as_ref().unwrap();
        assert!(fix.contains("HCOMM_SOCKET_IFNAME"), "{fix}");

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        std::fs::write(&file, "a long enough secret text").unwrap();
        rustix::fs::chmod(&file, rustix::fs::Mode::RUSR).unwrap();
        let findings = of(&[
            ("HCOMM_JOB_KEY", "a long enough secret text"),
            ("HCOMM_JOB_KEY_FILE", file.to_str().unwrap()),
        ]);
        let last = findings.last().unwrap();
        assert_eq!(
            (last.verdict, last.subject.as_str()),
            (Verdict::Error, "together")
        );
    }
}
