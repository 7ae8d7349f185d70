//! `soak`: what takes too long for `test`, part by part; a short sample of each is in `test`.
//!
//! Each part is an ignored test, built in release. All of a part comes from its seed, so a failure,
//! which prints the seed, is there again with `--seed`. What a part has done is one line of counts
//! that its test prints at the end; they are shown together when all parts are over.

use std::time::{Duration, Instant};

use crate::cargo::{Ear, cargo, finish, listen};
use crate::error::Error;
use crate::needs;
use crate::report::Tally;

/// One kind of long test.
struct Part {
    name: &'static str,
    what: &'static str,
    package: &'static str,
    /// Of nextest, which runs only ignored tests here.
    filter: &'static str,
    /// How much, as a variable for the tests: its name, the usual amount, and that of `--quick`.
    amount: Option<(&'static str, u32, u32)>,
}

/// After this a job or a rank hangs: a soak may run beside other work, which makes it slow.
const PATIENCE_SECONDS: u32 = 600;

/// What stands before a test's line of counts, on stderr.
const IN_ALL: &str = "SOAK ";

/// What `soak --help` prints after the parts.
const HELP: &str = "\
Without PART all of them. --quick does about a twentieth. Everything random comes from a seed, which
a failure prints; --seed N does the same again.

The tests are built in release. A million transfers take about 5 minutes of processor time, so a few
minutes on two cores that do nothing else; a kill takes 2 to 3 seconds, most of them to start ranks.
A part that takes sizes or rounds takes minutes. Beside other work everything takes longer; a job that has not ended in 10 minutes counts as hung.
While it runs, a line is printed for each job of 5,000 transfers (its seed, how far it is) and for
each kill (what is killed, at which point or moment). At the end there is a line for each part:
whether it passed, how long it took, and its amount, with all that it has counted: transfers by
kind, by size and by workers, bytes, jobs; kills by kind, and how long the slowest survivor took to
be told.";

const PARTS: [Part; 11] = [
    Part {
        name: "transfers",
        what: "random transfers between four processes, byte by byte",
        package: "hcomm",
        filter: "test(=transfers::soak_transfers_between_four_processes)",
        amount: Some(("ITEST_TRANSFERS", 1_000_000, 40_000)),
    },
    Part {
        name: "threads",
        what: "the same between four threads of one process",
        package: "hcomm",
        filter: "test(=transfers::soak_transfers_between_four_threads)",
        amount: Some(("ITEST_TRANSFERS", 1_000_000, 40_000)),
    },
    Part {
        name: "closed",
        what: "the same between processes that may not look into each other's memory",
        package: "hcomm",
        filter: "test(=transfers::soak_transfers_between_processes_with_closed_memory)",
        amount: Some(("ITEST_TRANSFERS", 1_000_000, 40_000)),
    },
    Part {
        name: "kills",
        what: "a rank is killed at each step of each kind of transfer, inside of calls, in close",
        package: "hcomm",
        filter: "test(=steps::soak_kills_at_every_step)",
        amount: Some(("ITEST_KILLS", 300, 24)),
    },
    Part {
        name: "deaths",
        what: "a rank is killed in the middle of collectives, and while it starts",
        package: "hcomm",
        filter: "test(=death::soak_kills_at_any_moment)",
        amount: Some(("ITEST_KILLS", 200, 20)),
    },
    Part {
        name: "reference",
        what: "every operation, type, reduction and algorithm on 1 to 9 and 16 ranks, by a plain loop",
        package: "hcomm",
        filter: "test(=reference::soak_every_type_and_reduction_of_every_algorithm)",
        amount: Some(("ITEST_SIZES", 5, 1)),
    },
    Part {
        name: "rounds",
        what: "all_to_all with counts that differ, many of them zero, between processes",
        package: "hcomm",
        filter: "test(=rounds::soak_rounds_of_all_to_all_with_zeros)",
        amount: Some(("ITEST_ROUNDS", 10_000, 500)),
    },
    Part {
        name: "several",
        what: "random operations on three communicators, in turn and at once",
        package: "hcomm",
        filter: "test(=several::soak_three_communicators)",
        amount: Some(("ITEST_OPERATIONS", 40_000, 2_000)),
    },
    Part {
        name: "large",
        what: "every collective of more bytes than 32 bits count; takes 10 GiB of memory",
        package: "hcomm",
        filter: "test(=large::soak_more_than_32_bits_count)",
        amount: None,
    },
    Part {
        name: "leaks",
        what: "thousands of communicators leave nothing",
        package: "hcomm",
        filter: "test(=leaks::soak_many_more_of_each)",
        amount: None,
    },
    Part {
        name: "plans",
        what: "every change of a plan's meaning is rejected",
        package: "hcomm-coll",
        filter: "test(=every_change_of_meaning_is_rejected_at_length)",
        amount: None,
    },
];

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Wishes {
    quick: bool,
    seed: Option<u64>,
    parts: Vec<&'static str>,
}

/// Runs the parts, all of them even if one fails; says at the end which did, how long each took and
/// what it has counted. `Err` of the outer kind is wrong usage.
pub(crate) fn run(options: &[&str]) -> Result<Result<(), Error>, String> {
    if let ["help" | "--help" | "-h"] = options {
        println!("{}", help());
        return Ok(Ok(()));
    }
    Ok(run_parts(&wishes(options)?))
}

fn help() -> String {
    let mut text = String::from("usage: cargo xtask soak [--quick] [--seed N] [PART…]\n\nParts:\n");
    for part in &PARTS {
        let amount = part.amount.map_or_else(String::new, |amount| {
            format!(" ({})", amount_of(amount.0, amount.1))
        });
        text.push_str(&format!("  {:<10} {}{amount}\n", part.name, part.what));
    }
    text + "\n" + HELP
}

fn run_parts(wishes: &Wishes) -> Result<(), Error> {
    needs::programs(needs::For::Tests)?;
    needs::tools()?;
    // The tests load the transports as libraries and start `hcomm`.
    finish(&mut cargo(&["build", "--release", "--workspace"]))?;
    let mut done = Vec::new();
    for part in PARTS.iter().filter(|part| wishes.wants(part)) {
        eprintln!("\n==> {}: {}", part.name, part.what);
        let start = Instant::now();
        let (mut tally, mut counts) = (Tally::default(), String::new());
        let result = listen(&mut command(part, wishes), Ear::Stderr, |line| {
            tally.hear_nextest(line);
            if let Some(heard) = line.strip_prefix(IN_ALL) {
                heard.trim_end().clone_into(&mut counts);
            }
        });
        if let Err(error) = &result {
            eprintln!("{error}");
        }
        let passed = result.is_ok() && tally.passed > 0;
        done.push((part, passed, start.elapsed(), counts));
    }
    eprintln!();
    for (part, passed, took, counts) in &done {
        eprintln!("{}", line(part, *passed, *took, wishes.quick));
        if !counts.is_empty() {
            eprintln!("{:>12}   {counts}", "");
        }
    }
    match done.iter().find(|(_, passed, ..)| !passed) {
        None => Ok(()),
        Some((part, ..)) => Err(Error::Step(part.name)),
    }
}

fn command(part: &Part, wishes: &Wishes) -> std::process::Command {
    let mut command = cargo(&["nextest", "run", "--release", "--profile", "soak"]);
    // A line of the test is seen when it is printed.
    command.arg("--no-capture");
    command.args(["--package", part.package, "--run-ignored", "only"]);
    command.args(["--filterset", part.filter]);
    if let Some((name, usual, quick)) = part.amount {
        let amount = if wishes.quick { quick } else { usual };
        command.env(name, amount.to_string());
    }
    command.env("ITEST_LIMIT", PATIENCE_SECONDS.to_string());
    if let Some(seed) = wishes.seed {
        command.env("ITEST_SEED", seed.to_string());
    }
    command
}

fn line(part: &Part, passed: bool, took: Duration, quick: bool) -> String {
    let word = if passed { "ok" } else { "FAILED" };
    let amount = part.amount.map_or_else(String::new, |(name, usual, few)| {
        format!(", {}", amount_of(name, if quick { few } else { usual }))
    });
    let took = took.as_secs_f64();
    format!("{word:>12} [{took:>8.3}s] {}{amount}", part.name)
}

fn amount_of(variable: &str, amount: u32) -> String {
    let of = variable.trim_start_matches("ITEST_").to_lowercase();
    format!("{amount} {of}")
}

impl Wishes {
    fn wants(&self, part: &Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part.name)
    }
}

fn wishes(options: &[&str]) -> Result<Wishes, String> {
    let mut wishes = Wishes {
        quick: false,
        seed: None,
        parts: Vec::new(),
    };
    let mut options = options.iter();
    while let Some(&option) = options.next() {
        match option {
            "--quick" => wishes.quick = true,
            "--seed" => {
                let text = options.next().ok_or("--seed wants a number")?;
                let seed = text.parse();
                wishes.seed = Some(seed.map_err(|_| format!("--seed {text} is no number"))?);
            }
            name => {
                let part = PARTS.iter().find(|part| part.name == name);
                let part = part.ok_or_else(|| {
                    let known: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
                    format!("soak does not know {name}; its parts: {}", known.join(", "))
                })?;
                wishes.parts.push(part.name);
            }
        }
    }
    Ok(wishes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood_or_refused() {
        let all = wishes(&[]).unwrap();
        assert!(PARTS.iter().all(|part| all.wants(part)));
        let some = wishes(&["kills", "--seed", "7", "--quick"]).unwrap();
        let expected = Wishes {
            quick: true,
            seed: Some(7),
            parts: vec!["kills"],
        };
        assert_eq!(some, expected);
        assert!(wishes(&["kills", "--seed"]).is_err());
        assert!(wishes(&["--seed", "x"]).is_err());
        assert!(wishes(&["drills"]).unwrap_err().contains("transfers"));
    }

    /// A part whose test was renamed would run nothing.
    #[test]
    fn every_part_names_a_test() {
        for part in &PARTS {
            let (_, name) = part.filter.split_once("(=").unwrap();
            let function = name.trim_end_matches(')').rsplit("::").next().unwrap();
            let tests = crate::cargo::root().join(part.package).join("tests");
            assert!(names(&tests, &format!("fn {function}()")), "{name}");
        }
    }

    fn names(folder: &std::path::Path, text: &str) -> bool {
        std::fs::read_dir(folder).unwrap().flatten().any(|entry| {
            let path = entry.path();
            if path.is_dir() {
                names(&path, text)
            } else {
                std::fs::read_to_string(&path).is_ok_and(|file| file.contains(text))
            }
        })
    }
}
