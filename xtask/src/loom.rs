//! `loom`: the lock-free code, run in every order that the memory model allows.

use std::env;

use crate::cargo::{cargo, finish};
use crate::command::target_folder;
use crate::error::Error;

/// Packages with models: in each the unit tests of the modules called `models`.
const MODELLED: [&str; 3] = ["hcomm-transport", "hcomm-transport-shm", "hcomm-data"];

/// Runs all models.
pub(crate) fn run() -> Result<(), Error> {
    let mut command = cargo(&["test", "--release", "--lib"]);
    for package in MODELLED {
        command.args(["--package", package]);
    }
    command
        .args(["--", "models::"])
        // In a folder of its own: with the flag, cargo builds everything anew.
        .env("CARGO_TARGET_DIR", target_folder()?.join("loom"))
        .env("RUSTFLAGS", "--cfg loom");
    // How often a thread may be interrupted where it need not: with more, the number of orders
    // explodes, and hardly any fault needs more.
    if env::var_os("LOOM_MAX_PREEMPTIONS").is_none() {
        command.env("LOOM_MAX_PREEMPTIONS", "3");
    }
    finish(&mut command)
}
