//! Checks of this repository that need more than cargo: the C header of the plugin ABI, and tidy.
//! A person calls them as `cargo xtask abi` and `cargo xtask tidy`.
//!
//! They are a program of their own, so that what they depend on is not compiled before
//! `cargo xtask perf` can start.

#![forbid(unsafe_code)]

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

mod header;
mod layout;
mod names;
mod source;
mod tidy;

const USAGE: &str = "usage: xtask-check tidy | abi [--check]";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = root();
    let outcome = match arguments[..] {
        ["tidy"] => tidy::run(&root).map(|summary| println!("{summary}")),
        ["abi"] => header::write(&root).map(|path| println!("wrote {}", path.display())),
        ["abi", "--check"] => header::check(&root).map(|()| println!("header and layout agree")),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The folder of the workspace: two above this crate's.
fn root() -> PathBuf {
    let own = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    own.join("../..").canonicalize().unwrap_or(own)
}
