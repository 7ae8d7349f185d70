//! What has to be on the system: programs from its packages, parts of the Rust toolchain, nextest.
//! As root it is installed; otherwise the one line that installs it is printed.

use std::env;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use crate::cargo::{cargo, finish, works};
use crate::error::Error;

/// What a program is needed for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    /// To build and run hcomm.
    Running,
    /// To test it.
    Tests,
    /// To measure other libraries beside it.
    Peers,
}

/// A program and the Debian package that has it.
struct Program {
    name: &'static str,
    package: &'static str,
    reason: &'static str,
    needed: For,
}

const PROGRAMS: [Program; 7] = [
    Program {
        name: "cc",
        package: "build-essential",
        reason: "links programs; compiles the C header's checks and the transport written in C",
        needed: For::Running,
    },
    Program {
        name: "c++",
        package: "build-essential",
        reason: "checks that the C header is C++ as well",
        needed: For::Tests,
    },
    Program {
        name: "strace",
        package: "strace",
        reason: "shows that the data plane makes no system calls",
        needed: For::Tests,
    },
    Program {
        name: "ip",
        package: "iproute2",
        reason: "makes network namespaces, which stand for hosts",
        needed: For::Tests,
    },
    Program {
        name: "mpirun.openmpi",
        package: "openmpi-bin",
        reason: "starts ranks in the way of Open MPI",
        needed: For::Tests,
    },
    Program {
        name: "mpirun.mpich",
        package: "mpich",
        reason: "starts ranks in the way of MPICH",
        needed: For::Tests,
    },
    Program {
        name: "python3",
        package: "python3",
        reason: "runs the peers and makes their tables",
        needed: For::Peers,
    },
];

/// Makes sure that the system's programs are there.
pub(crate) fn programs(purpose: For) -> Result<(), Error> {
    let missing: Vec<&Program> = PROGRAMS
        .iter()
        .filter(|program| program.needed == For::Running || program.needed == purpose)
        .filter(|program| !in_path(program.name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    for program in &missing {
        eprintln!("{} is missing: {}", program.name, program.reason);
    }
    let packages = packages(&missing);
    if !is_root() || !in_path("apt-get") {
        return Err(Error::Missing(format!(
            "install what is missing and call again:\n\n    {}\n",
            apt_line(&packages)
        )));
    }
    // As for cargo, stdout is left to the program that follows.
    finish(Command::new("apt-get").arg("update").stdout(io::stderr()))?;
    finish(
        Command::new("apt-get")
            .args(["install", "--yes", "--no-install-recommends"])
            .args(&packages)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(io::stderr()),
    )
}

/// Tests that say that they pass without having tested anything here, and why.
pub(crate) fn untested() -> Option<&'static str> {
    let missing = !is_root() || !in_path("ip");
    missing.then_some("the tests of two hosts need root and the program `ip` (iproute2)")
}

/// Makes sure that rustfmt, clippy and nextest are there.
pub(crate) fn tools() -> Result<(), Error> {
    for (component, question) in [
        ("rustfmt", ["fmt", "--version"]),
        ("clippy", ["clippy", "-V"]),
    ] {
        if !works(&mut cargo(&question)) {
            let mut install = Command::new("rustup");
            install.args(["component", "add", component]);
            obtain(component, &mut install)?;
        }
    }
    if !works(&mut cargo(&["nextest", "--version"])) {
        let mut install = cargo(&["install", "--locked", "cargo-nextest"]);
        obtain("cargo-nextest", &mut install)?;
    }
    Ok(())
}

/// Runs `install` where nobody minds, else asks for it.
fn obtain(what: &str, install: &mut Command) -> Result<(), Error> {
    let line = [install.get_program()]
        .into_iter()
        .chain(install.get_args())
        .map(|word| word.to_string_lossy())
        .map(|word| word.rsplit('/').next().unwrap_or(&word).to_owned())
        .collect::<Vec<_>>()
        .join(" ");
    if is_root() || env::var_os("CI").is_some_and(|value| value == "true") {
        eprintln!("{what} is missing: {line}");
        finish(install.stdout(io::stderr()))
    } else {
        Err(Error::Missing(format!(
            "{what} is missing; install it and call again:\n\n    {line}\n"
        )))
    }
}

fn packages(missing: &[&Program]) -> Vec<&'static str> {
    let mut packages: Vec<_> = missing.iter().map(|program| program.package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

fn apt_line(packages: &[&str]) -> String {
    format!(
        "sudo apt-get update && sudo apt-get install --no-install-recommends {}",
        packages.join(" ")
    )
}

fn in_path(program: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| {
        env::split_paths(&path).any(|folder| is_executable(&folder.join(program)))
    })
}

fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0)
}

/// Asked of the kernel: the owner of this process's folder is its effective user.
fn is_root() -> bool {
    Path::new("/proc/self")
        .metadata()
        .is_ok_and(|meta| meta.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_package_is_named_once() {
        let all: Vec<&Program> = PROGRAMS.iter().collect();
        let names = [
            "build-essential",
            "iproute2",
            "mpich",
            "openmpi-bin",
            "python3",
            "strace",
        ];
        assert_eq!(packages(&all), names);
        let line = apt_line(&packages(&all));
        let names = names.join(" ");
        assert!(
            line.ends_with(&format!("--no-install-recommends {names}")),
            "{line}"
        );
    }

    #[test]
    fn finds_programs_only_where_they_are() {
        assert!(in_path("sh"));
        assert!(!in_path("hcomm-no-such-program"));
        assert!(!is_executable(Path::new("/")));
    }
}
