//! Versions and settings of all ranks against each other.

use std::collections::BTreeMap;

use super::super::finding::Finding;
use super::Said;

/// Ranks that are named with a value, at most.
const MAX_NAMED: usize = 6;

/// What differs, and how bad that is: by the begin of the name.
const SEVERE: [&str; 2] = ["HCOMM_", "transport "];
const HARMFUL: [&str; 2] = ["tcp congestion control", "rdma firmware "];

pub(super) fn check(all: &[Said]) -> Vec<Finding> {
    const CHECK: &str = "versions";
    let mut names: Vec<&String> = all.iter().flat_map(|said| said.compared.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let mut findings = Vec::new();
    for name in names {
        // The ranks of each value; a rank may have none.
        let mut values: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (rank, said) in all.iter().enumerate() {
            let value = said.compared.get(name).map_or("none", String::as_str);
            values.entry(value).or_default().push(rank);
        }
        if values.len() == 1 {
            let value = values.keys().next().copied().unwrap_or_default();
            findings.push(Finding::ok(CHECK, name, format!("{value} on all ranks")));
            continue;
        }
        let seen: Vec<String> = values
            .iter()
            .map(|(value, ranks)| format!("{value} on {}", named(ranks)))
            .collect();
        let seen = seen.join("; ");
        let begins = |list: &[&str]| list.iter().any(|begin| name.starts_with(begin));
        findings.push(if begins(&SEVERE) {
            Finding::error(CHECK, name, seen)
                .expected("the same on all ranks")
                .fix("set it alike, or install the same build, on all hosts")
        } else if begins(&HARMFUL) {
            Finding::warning(CHECK, name, seen)
                .expected("the same on all ranks")
                .fix("make it alike: the slower one holds all ranks up")
        } else {
            Finding::note(CHECK, name, seen)
        });
    }
    findings
}

fn named(ranks: &[usize]) -> String {
    let some: Vec<String> = ranks
        .iter()
        .take(MAX_NAMED)
        .map(ToString::to_string)
        .collect();
    let more = ranks.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    format!(
        "rank{} {}{more}",
        if ranks.len() == 1 { "" } else { "s" },
        some.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::Verdict;
    use super::super::tests::said;
    use super::*;

    #[test]
    fn differences_are_as_bad_as_what_they_break() {
        let rank = |pairs: &[(&str, &str)]| {
            let mut one = said("a", &[]);
            one.compared = pairs
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect();
            one
        };
        let common = ("kernel", "6.1");
        let mut all = vec![
            rank(&[
                common,
                ("HCOMM_EXEC_TIMEOUT", "600"),
                ("transport tcp", "0.1.0")
            ]);
            9
        ];
        all[4] = rank(&[
            ("kernel", "5.10"),
            ("HCOMM_EXEC_TIMEOUT", "5"),
            ("tcp congestion control", "bbr"),
        ]);
        let findings = check(&all);
        let seen: Vec<(&str, Verdict)> = findings
            .iter()
            .map(|f| (f.subject.as_str(), f.verdict))
            .collect();
        use Verdict::{Error, Note, Warning};
        assert_eq!(
            seen,
            [
                ("HCOMM_EXEC_TIMEOUT", Error),
                ("kernel", Note),
                ("tcp congestion control", Warning),
                ("transport tcp", Error),
            ]
        );
        assert_eq!(
            findings[0].seen,
            "5 on rank 4; 600 on ranks 0, 1, 2, 3, 5, 6 and 2 more"
        );
        assert_eq!(check(&all[..2])[0].verdict, Verdict::Ok);
    }
}
