//! `test`: everything that a change has to pass, in order of speed; stops at the first failure.

use std::io::{self, IsTerminal as _};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cargo::{Ear, cargo, check, finish, listen};
use crate::error::Error;
use crate::needs;
use crate::report::Tally;
use crate::syscalls;

/// How much is tested.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Full,
    /// Without syscalls, documentation and conformance.
    Quick,
}

/// One step.
struct Step {
    name: &'static str,
    in_quick: bool,
    run: fn(Extent, &mut Tally) -> Result<(), Error>,
}

const STEPS: [Step; 9] = [
    Step {
        name: "format",
        in_quick: true,
        run: |_, _| finish(&mut cargo(&["fmt", "--all", "--check"])),
    },
    Step {
        name: "tidy",
        in_quick: true,
        run: |_, _| check(&["tidy"]),
    },
    Step {
        name: "abi",
        in_quick: true,
        run: |_, _| check(&["abi", "--check"]),
    },
    Step {
        name: "clippy",
        in_quick: true,
        run: |_, _| {
            let deny = ["--", "--deny", "warnings"];
            let all = ["clippy", "--workspace", "--all-targets"];
            finish(cargo(&all).args(deny))?;
            // The Rust door must stay something that can be taken out.
            let without_door = [
                "clippy",
                "--package",
                "hcomm-transport",
                "--no-default-features",
            ];
            finish(cargo(&without_door).args(deny))
        },
    },
    Step {
        // Before the tests, because they load the transports as libraries and start `hcomm`.
        name: "build",
        in_quick: true,
        run: |_, _| finish(&mut cargo(&["build", "--workspace"])),
    },
    Step {
        name: "tests",
        in_quick: true,
        run: tests,
    },
    Step {
        name: "syscalls",
        in_quick: false,
        run: |_, _| syscalls::run(syscalls::ROUNDS),
    },
    Step {
        name: "doc tests",
        in_quick: false,
        run: |_, tally| {
            let mut command = cargo(&["test", "--workspace", "--doc"]);
            listen(&mut command, Ear::Stdout, |line| tally.hear_rustdoc(line))
        },
    },
    Step {
        name: "documentation",
        in_quick: false,
        run: |_, _| {
            let mut command = cargo(&["doc", "--workspace", "--no-deps"]);
            finish(command.env("RUSTDOCFLAGS", "--deny warnings"))
        },
    },
];

/// Runs the steps and says at the end what was run and how long it took.
pub(crate) fn run(extent: Extent) -> Result<(), Error> {
    needs::programs(needs::For::Tests)?;
    needs::tools()?;
    let begin = Instant::now();
    let mut tally = Tally::default();
    let mut done = Vec::new();
    let mut outcome = Ok(());
    for step in STEPS
        .iter()
        .filter(|step| step.in_quick || extent == Extent::Full)
    {
        eprintln!("\n==> {}", step.name);
        let start = Instant::now();
        let result = (step.run)(extent, &mut tally);
        done.push((step.name, result.is_ok(), start.elapsed()));
        if let Err(error) = result {
            eprintln!("{error}");
            outcome = Err(Error::Step(step.name));
            break;
        }
    }
    close(&done, &tally, begin.elapsed());
    outcome
}

fn tests(extent: Extent, tally: &mut Tally) -> Result<(), Error> {
    let mut command = cargo(&["nextest", "run", "--workspace"]);
    if std::env::var_os("CI").is_some() {
        command.args(["--profile", "ci"]);
    }
    if extent == Extent::Quick {
        command.args(["--filterset", "not binary(conformance)"]);
    }
    colour(&mut command);
    listen(&mut command, Ear::Stderr, |line| tally.hear_nextest(line))
}

/// Nextest writes into a pipe here; the colours are still for the terminal behind it.
fn colour(command: &mut Command) {
    if io::stderr().is_terminal() {
        command.args(["--color", "always"]);
    }
}

fn close(done: &[(&str, bool, Duration)], tally: &Tally, took: Duration) {
    eprintln!();
    for (name, passed, took) in done {
        let word = if *passed { "ok" } else { "FAILED" };
        eprintln!("{word:>12} [{:>8.3}s] {name}", took.as_secs_f64());
    }
    if let Some(why) = needs::untested() {
        eprintln!("{:>12} {why}", "NOT TESTED");
    }
    eprintln!("{}", tally.summary(took));
}
