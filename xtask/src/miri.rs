//! `miri`: the pure parts, run by an interpreter that notices undefined behaviour.
//!
//! Pure means: without a system call that Miri does not know, which leaves out what maps memory,
//! opens sockets or loads libraries.

use std::process::Command;

use crate::cargo::{finish, root, works};
use crate::command::target_folder;
use crate::error::Error;

/// The toolchain that has Miri; stable ones do not.
const TOOLCHAIN: &str = "nightly";

/// A package, and what of it is tested.
struct Part {
    package: &'static str,
    target: &'static [&'static str],
}

const PARTS: [Part; 2] = [
    Part {
        package: "hcomm-types",
        target: &["--lib"],
    },
    Part {
        package: "hcomm-transport-abi",
        // The border alone: abi_stable brings much that is not ours.
        target: &["--no-default-features", "--test", "shims"],
    },
];

/// Runs all parts.
pub(crate) fn run() -> Result<(), Error> {
    if !works(&mut miri(&["--version"])?) {
        return Err(Error::Missing(format!(
            "Miri is missing, or another toolchain's; install it and call again:\n\n    \
             rustup toolchain install {TOOLCHAIN} --profile minimal --component miri,rust-src\n"
        )));
    }
    for part in &PARTS {
        let mut command = miri(&["test", "--package", part.package])?;
        command.args(part.target);
        finish(&mut command)?;
    }
    Ok(())
}

/// `cargo miri` with these arguments. Of this toolchain, whichever runs this program.
fn miri(arguments: &[&str]) -> Result<Command, Error> {
    let mut command = Command::new("rustup");
    command
        .args(["run", TOOLCHAIN, "cargo", "miri"])
        .args(arguments)
        .current_dir(root())
        // In a folder of its own: what Miri makes of a crate nothing else can use.
        .env("CARGO_TARGET_DIR", target_folder()?.join("miri"))
        // Tests look at files and at the environment.
        .env("MIRIFLAGS", "-Zmiri-disable-isolation")
        // Each case takes as long as thousands elsewhere.
        .env("PROPTEST_CASES", "4")
        // Of the toolchain that runs this program.
        .env_remove("RUSTC")
        .env_remove("RUSTDOC")
        .env_remove("CARGO");
    Ok(command)
}
