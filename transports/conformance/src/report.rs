//! What came out of a run.

use std::fmt;

use crate::Group;
use crate::verdict::Verdict;

/// One check, on one device, in one placement.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its group.
    pub group: Group,
    /// Its name.
    pub check: String,
    /// Device it ran on.
    pub device: String,
    /// Where the two ends were, if there were two.
    pub placement: Option<&'static str>,
    /// How it ended.
    pub verdict: Verdict,
}

/// All that was run on a plugin.
#[derive(Clone, Debug)]
pub struct Report {
    subject: String,
    groups: Vec<Group>,
    entries: Vec<Entry>,
}

impl Report {
    pub(crate) fn new(subject: String, groups: &[Group]) -> Self {
        Self {
            subject,
            groups: groups.to_vec(),
            entries: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Everything in the order in which it ran.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether nothing failed, and in each group something ran.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.complaints().is_empty()
    }

    /// What is wrong, line by line.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints: Vec<String> = self
            .entries
            .iter()
            .filter(|entry| matches!(entry.verdict, Verdict::Failed(_)))
            .map(ToString::to_string)
            .collect();
        for &group in &self.groups {
            let ran = self
                .entries
                .iter()
                .any(|e| e.group == group && !matches!(e.verdict, Verdict::Skipped(_)));
            if !ran {
                complaints.push(format!("{group}: nothing of this group could run"));
            }
        }
        complaints
    }

    /// Ends the test with the report unless it is a success; says on standard error what was
    /// skipped.
    ///
    /// # Panics
    /// If something failed, or a whole group was skipped.
    pub fn expect_success(&self) {
        eprintln!("{self}");
        let complaints = self.complaints();
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    }

    fn count(&self, wanted: fn(&Verdict) -> bool) -> usize {
        self.entries.iter().filter(|e| wanted(&e.verdict)).count()
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.verdict {
            Verdict::Passed => "passed",
            Verdict::Skipped(_) => "skipped",
            Verdict::Failed(_) => "FAILED",
        };
        write!(f, "{word:<8} {}/{}", self.group, self.check)?;
        if !self.device.is_empty() {
            write!(f, " on {}", self.device)?;
        }
        if let Some(placement) = self.placement {
            write!(f, ", {placement}")?;
        }
        match &self.verdict {
            Verdict::Passed => Ok(()),
            Verdict::Skipped(why) | Verdict::Failed(why) => write!(f, ": {why}"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "conformance of {}", self.subject)?;
        for entry in &self.entries {
            writeln!(f, "  {entry}")?;
        }
        write!(
            f,
            "{} passed, {} skipped, {} failed",
            self.count(|v| matches!(v, Verdict::Passed)),
            self.count(|v| matches!(v, Verdict::Skipped(_))),
            self.count(|v| matches!(v, Verdict::Failed(_))),
        )
    }
}
