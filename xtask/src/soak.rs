//! `soak`: what takes too long for `test`, part by part; a short sample of each is in `test`.
//!
//! Each part is an ignored test. All of a part comes from its seed, so a failure, which prints the
//! seed, is there again with `--seed`.

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

const PARTS: [Part; 6] = [
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
        name: "kills",
        what: "a rank is killed at each step of each kind of transfer, and inside of calls",
        package: "hcomm",
        filter: "test(=steps::soak_kills_at_every_step)",
        amount: Some(("ITEST_KILLS", 240, 24)),
    },
    Part {
        name: "deaths",
        what: "a rank is killed in the middle of collectives, and while it starts",
        package: "hcomm",
        filter: "test(=death::soak_kills_at_any_moment)",
        amount: Some(("ITEST_KILLS", 200, 20)),
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

/// Runs the parts, all of them even if one fails; says at the end which did and how long each took.
/// `Err` of the outer kind is wrong usage.
pub(crate) fn run(options: &[&str]) -> Result<Result<(), Error>, String> {
    Ok(run_parts(&wishes(options)?))
}

fn run_parts(wishes: &Wishes) -> Result<(), Error> {
    needs::programs(needs::For::Tests)?;
    needs::tools()?;
    // The tests load the transports as libraries and start `hcomm`.
    finish(&mut cargo(&["build", "--workspace"]))?;
    let mut done = Vec::new();
    for part in PARTS.iter().filter(|part| wishes.wants(part)) {
        eprintln!("\n==> {}: {}", part.name, part.what);
        let start = Instant::now();
        let mut tally = Tally::default();
        let result = listen(&mut command(part, wishes), Ear::Stderr, |line| {
            tally.hear_nextest(line);
        });
        if let Err(error) = &result {
            eprintln!("{error}");
        }
        done.push((part, result.is_ok() && tally.passed > 0, start.elapsed()));
    }
    eprintln!();
    for (part, passed, took) in &done {
        eprintln!("{}", line(part, *passed, *took, wishes.quick));
    }
    match done.iter().find(|(_, passed, _)| !passed) {
        None => Ok(()),
        Some((part, ..)) => Err(Error::Step(part.name)),
    }
}

fn command(part: &Part, wishes: &Wishes) -> std::process::Command {
    let mut command = cargo(&["nextest", "run", "--profile", "soak"]);
    command.args(["--package", part.package, "--run-ignored", "only"]);
    command.args(["--filterset", part.filter]);
    if let Some((name, usual, quick)) = part.amount {
        let amount = if wishes.quick { quick } else { usual };
        command.env(name, amount.to_string());
    }
    if let Some(seed) = wishes.seed {
        command.env("ITEST_SEED", seed.to_string());
    }
    command
}

fn line(part: &Part, passed: bool, took: Duration, quick: bool) -> String {
    let word = if passed { "ok" } else { "FAILED" };
    let amount = part.amount.map_or_else(String::new, |(name, usual, few)| {
        let amount = if quick { few } else { usual };
        let of = name.trim_start_matches("ITEST_").to_lowercase();
        format!(", {amount} {of}")
    });
    let took = took.as_secs_f64();
    format!("{word:>12} [{took:>8.3}s] {}{amount}", part.name)
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
