//! Counting tests from what nextest and rustdoc print, and the closing line.

use std::time::Duration;

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Tally {
    /// Adds what a line of nextest says, if it is its summary:
    /// `Summary [   0.1s] 12 tests run: 11 passed (1 slow), 1 failed, 3 skipped`.
    pub(crate) fn hear_nextest(&mut self, line: &str) {
        let line = without_colours(line);
        if let Some((head, counts)) = line.split_once("run: ")
            && head.trim_start().starts_with("Summary [")
        {
            self.add(counts.split([',', '(']));
        }
    }

    /// Adds what a line of a test program says, if it is its result:
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; …`.
    pub(crate) fn hear_rustdoc(&mut self, line: &str) {
        let line = without_colours(line);
        if let Some(rest) = line.strip_prefix("test result: ")
            && let Some((_, counts)) = rest.split_once(". ")
        {
            self.add(counts.split(';'));
        }
    }

    fn add<'a>(&mut self, counts: impl Iterator<Item = &'a str>) {
        for part in counts {
            let mut words = part.split_whitespace();
            let Some(Ok(count)) = words.next().map(str::parse::<u64>) else {
                continue;
            };
            match words.next() {
                Some("passed") => self.passed += count,
                Some("failed") => self.failed += count,
                // a time-out or a test program that could not be started
                Some("timed" | "exec") => self.failed += count,
                Some("skipped" | "ignored") => self.skipped += count,
                _ => {}
            }
        }
    }

    /// The closing line, in nextest's form.
    pub(crate) fn summary(&self, took: Duration) -> String {
        let failed = match self.failed {
            0 => String::new(),
            failed => format!(" {failed} failed,"),
        };
        format!(
            "     Summary [{:>8.3}s] {} tests run: {} passed,{failed} {} skipped",
            took.as_secs_f64(),
            self.passed + self.failed,
            self.passed,
            self.skipped
        )
    }
}

/// Removes the terminal's colour sequences (ESC [ … m).
fn without_colours(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("\x1b[") {
        out.push_str(before);
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_a_nextest_summary() {
        let mut tally = Tally::default();
        tally.hear_nextest("    PASS [   0.010s] hcomm-types rank::tests::prints\n");
        assert_eq!(tally, Tally::default());
        tally.hear_nextest(
            "\x1b[32;1m     Summary\x1b[0m [   7.601s] \x1b[1m12\x1b[0m tests run: \
             \x1b[1m9\x1b[0m passed (1 slow), 2 failed, 1 timed out, 3 skipped\n",
        );
        let want = Tally {
            passed: 9,
            failed: 3,
            skipped: 3,
        };
        assert_eq!(tally, want);
    }

    #[test]
    fn counts_a_stopped_nextest_run() {
        let mut tally = Tally::default();
        tally.hear_nextest("Summary [ 0.1s] 3/7 tests run: 2 passed, 1 failed, 0 skipped\n");
        assert_eq!((tally.passed, tally.failed), (2, 1));
    }

    #[test]
    fn counts_doc_tests() {
        let mut tally = Tally::default();
        for _ in 0..2 {
            tally.hear_rustdoc(
                "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; \
                 finished in 0.10s\n",
            );
        }
        assert_eq!((tally.passed, tally.failed, tally.skipped), (6, 0, 2));
    }

    #[test]
    fn the_closing_line_can_be_read_back() {
        for failed in [0, 2] {
            let tally = Tally {
                passed: 5,
                failed,
                skipped: 1,
            };
            let mut again = Tally::default();
            again.hear_nextest(&tally.summary(Duration::from_millis(1500)));
            assert_eq!(again, tally);
        }
    }
}
