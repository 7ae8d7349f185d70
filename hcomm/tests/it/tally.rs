//! What a long test has done, counted by kind: in a process that it starts, and in all.

use std::collections::BTreeMap;
use std::fmt;

/// What stands before counts on a rank's stdout.
const COUNTS: &str = "COUNTS ";

/// What stands before the line that `cargo xtask soak` repeats at its end.
const IN_ALL: &str = "SOAK ";

/// How much of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally(BTreeMap<String, u64>);

impl Tally {
    pub(crate) fn add(&mut self, kind: &str, amount: u64) {
        if let Some(known) = self.0.get_mut(kind) {
            *known += amount;
        } else {
            self.0.insert(kind.to_owned(), amount);
        }
    }

    /// The larger of this and what is known.
    pub(crate) fn at_least(&mut self, kind: &str, amount: u64) {
        let known = self.0.entry(kind.to_owned()).or_default();
        *known = amount.max(*known);
    }

    pub(crate) fn of(&self, kind: &str) -> u64 {
        self.0.get(kind).copied().unwrap_or(0)
    }

    pub(crate) fn merge(&mut self, more: &Self) {
        for (kind, amount) in &more.0 {
            self.add(kind, *amount);
        }
    }

    /// Tells the test that has started this process.
    pub(crate) fn say(&self) {
        println!("{COUNTS}{self}");
    }

    /// What a process has told.
    #[track_caller]
    pub(crate) fn heard(stdout: &str) -> Self {
        let line = stdout
            .lines()
            .find_map(|line| line.strip_prefix(COUNTS))
            .unwrap_or_else(|| panic!("no counts were told:\n{stdout}"));
        let counts = line.split(' ').map(|count| {
            let (kind, amount) = count.split_once('=').expect("kind=amount");
            (kind.to_owned(), amount.parse().expect("a number"))
        });
        Self(counts.collect())
    }

    /// Tells whoever reads the end of a soak.
    pub(crate) fn conclude(&self) {
        // On stderr: that is where `cargo xtask soak` listens.
        eprintln!("{IN_ALL}{self}");
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (kind, amount)) in self.0.iter().enumerate() {
            let gap = if number == 0 { "" } else { " " };
            write!(f, "{gap}{kind}={amount}")?;
        }
        Ok(())
    }
}
