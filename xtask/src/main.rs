//! `cargo xtask …`: everything a person or CI runs. Depends on nothing, so that it starts at once.

#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

mod cargo;
mod command;
mod error;
mod hosts;
mod loom;
mod miri;
mod needs;
mod peers;
mod report;
mod soak;
mod start_up;
mod syscalls;
mod test;

const USAGE: &str = "\
usage: cargo xtask COMMAND [ARGUMENTS]

Run hcomm, built in release together with its transports:
  perf ARGUMENTS…        hcomm perf, for example: perf all_reduce -p 4 -b 8K -e 64M -f 2
  run ARGUMENTS…         hcomm run, for example: run -n 4 -- target/release/my_program
  topo ARGUMENTS…        hcomm topo
  transports ARGUMENTS…  hcomm transports
  hcomm ARGUMENTS…       any other command of hcomm
  peers [ARGUMENTS…]     hcomm beside other libraries, in one run: peers --help
  start-up               what start-up costs with up to 16,384 ranks: messages, bytes, time
  hosts up|run|down      two hosts of network namespaces, and jobs on them: hosts --help

Check the source:
  test [--quick]         everything that a change has to pass; --quick leaves out syscalls,
                         documentation and the conformance suites
  soak [--quick] [--seed N] [PART…]
                         what takes too long for test: random transfers, kills, leaks, plans;
                         parts, times and what is printed: soak --help
  ci                     what CI runs: test
  tidy                   rules on dependencies, unsafe code, documentation and names
  abi [--check]          write the C header of the plugin ABI; or check it and its layout
  syscalls [ROUNDS]      two ranks do every primitive under strace: no system call in between
  loom                   models of the lock-free code, in every order
  miri                   tests of the pure parts, under an interpreter that notices undefined
                         behaviour

Exit status: 0 done, 1 a check failed, 2 wrong usage; commands of hcomm keep their own.";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let Some((name, rest)) = arguments.split_first() else {
        return wrong_usage("no command given");
    };
    // Our own words are plain; what is meant for hcomm is passed on as it came.
    let name = name.to_string_lossy();
    let options: Vec<_> = rest.iter().map(|word| word.to_string_lossy()).collect();
    let options: Vec<&str> = options.iter().map(AsRef::as_ref).collect();
    let outcome = match (&*name, &options[..]) {
        ("help" | "--help" | "-h", _) => {
            println!("{USAGE}");
            Ok(())
        }
        ("perf" | "run" | "topo" | "transports", _) => command::run(&arguments),
        ("hcomm", _) => command::run(rest),
        ("peers", _) => peers::run(&options),
        ("hosts", ["--help"]) => {
            println!("{}", hosts::HELP);
            Ok(())
        }
        ("hosts", _) => match hosts::run(&options) {
            Some(outcome) => outcome,
            None => return wrong_usage(hosts::HELP),
        },
        ("test", []) | ("ci", []) => test::run(test::Extent::Full),
        ("test", ["--quick"]) => test::run(test::Extent::Quick),
        ("soak", _) => match soak::run(&options) {
            Ok(outcome) => outcome,
            Err(what) => return wrong_usage(&what),
        },
        ("tidy", []) => cargo::check(&["tidy"]),
        ("abi", []) => cargo::check(&["abi"]),
        ("abi", ["--check"]) => {
            needs::programs(needs::For::Tests).and_then(|()| cargo::check(&["abi", "--check"]))
        }
        ("syscalls", []) => syscalls::run(syscalls::ROUNDS),
        ("syscalls", [rounds]) => match rounds.parse() {
            Ok(rounds) => syscalls::run(rounds),
            Err(error) => return wrong_usage(&format!("rounds {rounds:?}: {error}")),
        },
        ("loom", []) => loom::run(),
        ("miri", []) => miri::run(),
        ("start-up", []) => start_up::run(),
        ("test" | "ci" | "tidy" | "abi" | "syscalls" | "loom" | "miri" | "start-up", _) => {
            return wrong_usage(&format!("{name} does not know {}", options.join(" ")));
        }
        _ => return wrong_usage(&format!("unknown command {name:?}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn wrong_usage(what: &str) -> ExitCode {
    eprintln!("error: {what}\n\n{USAGE}");
    ExitCode::from(2)
}
