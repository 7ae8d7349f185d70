//! `peers`: hcomm beside other libraries. What it does lives in `bench/peers`; here is what it needs.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use crate::cargo::{cargo, finish, root};
use crate::command;
use crate::error::Error;
use crate::needs;

/// Builds hcomm, installs the peers, and replaces this process by the measurement, so that an
/// interrupt reaches who has started processes. Returns only on failure.
pub(crate) fn run(arguments: &[&str]) -> Result<(), Error> {
    needs::programs(needs::For::Peers)?;
    let folder = folder();
    let mut bench = Command::new("python3");
    bench.arg("-B").arg(folder.join("bench.py")).args(arguments);
    if measures(arguments) {
        bench.env("HCOMM", command::build()?);
        // Whose first result is waited for, as that of the others' own programs.
        let mut example = cargo(&["build", "--release", "--package", "hcomm"]);
        finish(example.args(["--example", "first_result"]))?;
        finish(&mut Command::new(folder.join("setup.sh")))?;
    }
    let cause = bench.exec();
    Err(Error::Start("python3".into(), cause))
}

/// Whether more is asked for than help or the tables of an earlier run.
fn measures(arguments: &[&str]) -> bool {
    !arguments
        .iter()
        .any(|word| ["-h", "--help", "selftest"].contains(word) || word.starts_with("--table"))
}

fn folder() -> PathBuf {
    root().join("bench/peers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_tables_need_no_build() {
        assert!(measures(&["p2p", "--rounds", "2"]));
        assert!(measures(&[]));
        assert!(!measures(&["--table", "x.json"]));
        assert!(!measures(&["--table=x.json", "--write"]));
        assert!(!measures(&["p2p", "--help"]));
    }

    /// The tests of the tables are Python's; they are run where there is a Python.
    #[test]
    fn ratios_and_verdicts() {
        let mut python = Command::new("python3");
        if !crate::cargo::works(python.arg("--version")) {
            eprintln!("not run: there is no python3");
            return;
        }
        let tests = Command::new("python3")
            .arg("-B")
            .arg(folder().join("bench.py"))
            .arg("selftest")
            .output()
            .unwrap();
        assert!(
            tests.status.success(),
            "{}",
            String::from_utf8_lossy(&tests.stderr)
        );
    }
}
