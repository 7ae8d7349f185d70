//! What a check has found, and the report of all findings.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing has to be done.
    Note,
    /// Works, but slower or with less than there could be; or breaks under a larger load.
    Warning,
    /// Does not work.
    Error,
}

impl Verdict {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Finding {
    /// Name of the check; stable, for programs.
    pub(super) check: String,
    /// What was looked at: an interface, a limit, a pair of ranks.
    pub(super) subject: String,
    /// The value that was found.
    pub(super) seen: String,
    /// What it should be, where that can be said.
    pub(super) expected: Option<String>,
    pub(super) verdict: Verdict,
    /// What to do about it.
    pub(super) fix: Option<String>,
    /// The host where it was seen; none for what is between hosts.
    pub(super) host: Option<String>,
}

impl Finding {
    fn new(verdict: Verdict, check: &str, subject: &str, seen: impl Into<String>) -> Self {
        Self {
            check: check.to_owned(),
            subject: subject.to_owned(),
            seen: seen.into(),
            expected: None,
            verdict,
            fix: None,
            host: None,
        }
    }

    /// All is well.
    pub(super) fn ok(check: &str, subject: &str, seen: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, check, subject, seen)
    }

    /// Worth knowing.
    pub(super) fn note(check: &str, subject: &str, seen: impl Into<String>) -> Self {
        Self::new(Verdict::Note, check, subject, seen)
    }

    /// Should be changed; say how with [`fix`](Self::fix).
    pub(super) fn warning(check: &str, subject: &str, seen: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, check, subject, seen)
    }

    /// Has to be changed; say how with [`fix`](Self::fix).
    pub(super) fn error(check: &str, subject: &str, seen: impl Into<String>) -> Self {
        Self::new(Verdict::Error, check, subject, seen)
    }

    /// With what should be there instead.
    pub(super) fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    /// With what to do.
    pub(super) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// All findings of a run, and where they come from: the JSON of `hcomm doctor`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Version of this program.
    pub(super) version: &'static str,
    /// Hosts that were looked at.
    pub(super) hosts: Vec<String>,
    /// Ranks that took part; none without `--peers`.
    pub(super) ranks: Option<u32>,
    pub(super) worst: Verdict,
    /// The worst first.
    pub(super) findings: Vec<Finding>,
}

impl Report {
    /// A report with the worst finding first; findings that are as bad stay in their order.
    pub(super) fn new(hosts: Vec<String>, ranks: Option<u32>, mut findings: Vec<Finding>) -> Self {
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
        Self {
            version: env!("CARGO_PKG_VERSION"),
            hosts,
            ranks,
            worst: findings.first().map_or(Verdict::Ok, |first| first.verdict),
            findings,
        }
    }

    /// 1 if something does not work.
    pub(super) fn code(&self) -> u8 {
        u8::from(self.worst == Verdict::Error)
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        let widths = self.findings.iter().map(|finding| finding.check.len());
        let width = widths.max().unwrap_or(0);
        for finding in &self.findings {
            let verdict = finding.verdict.name();
            let host = match &finding.host {
                Some(host) if self.hosts.len() > 1 => format!("{host}, "),
                _ => String::new(),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{verdict:<7}  {:<width$}  {host}{}: {}",
                finding.check, finding.subject, finding.seen
            );
            let more = [("expected", &finding.expected), ("fix", &finding.fix)];
            for (name, words) in more {
                if let Some(words) = words {
                    let _ = writeln!(text, "{:<7}  {:<width$}      {name}: {words}", "", "");
                }
            }
        }
        let count = |verdict| {
            self.findings
                .iter()
                .filter(|f| f.verdict == verdict)
                .count()
        };
        let hosts = self.hosts.join(", ");
        let ranks = self.ranks.map_or(String::new(), |n| format!(", {n} ranks"));
        let _ = write!(
            text,
            "{hosts}{ranks}: {} errors, {} warnings, {} notes, {} as they should be",
            count(Verdict::Error),
            count(Verdict::Warning),
            count(Verdict::Note),
            count(Verdict::Ok)
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_comes_first_and_only_an_error_is_a_failure() {
        let findings = vec![
            Finding::ok("a", "one", "fine"),
            Finding::warning("b", "two", "slow").fix("hurry"),
            Finding::note("c", "three", "so"),
        ];
        let report = Report::new(vec!["here".to_owned()], None, findings.clone());
        let order: Vec<&str> = report.findings.iter().map(|f| f.check.as_str()).collect();
        assert_eq!(order, ["b", "c", "a"]);
        assert_eq!(report.code(), 0);
        let table = report.table();
        assert!(table.starts_with("warning  b  two: slow\n"), "{table}");
        assert!(table.contains("    fix: hurry\nnote "), "{table}");
        assert!(table.ends_with("here: 0 errors, 1 warnings, 1 notes, 1 as they should be"));

        let bad = [
            findings,
            vec![Finding::error("d", "four", "gone").expected("there")],
        ]
        .concat();
        let report = Report::new(vec!["here".to_owned()], Some(2), bad);
        assert_eq!((report.findings[0].check.as_str(), report.code()), ("d", 1));
    }
}
