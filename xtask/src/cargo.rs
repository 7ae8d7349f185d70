//! Calling cargo and other programs.

use std::env;
use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Error;

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    // Set by `cargo run`; the other one serves a copied program.
    let own = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    own.parent().map_or_else(|| own.clone(), PathBuf::from)
}

/// A cargo command on this workspace. What it prints on stdout goes to stderr, which leaves stdout
/// to the program that follows.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(arguments)
        .current_dir(root())
        .stdout(io::stderr());
    command
}

/// Runs the checks that live in a program of their own.
pub(crate) fn check(arguments: &[&str]) -> Result<(), Error> {
    let mut command = cargo(&["run", "--quiet", "--package", "xtask-check", "--"]);
    command.args(arguments).stdout(Stdio::inherit());
    finish(&mut command)
}

/// Runs a command to its end.
pub(crate) fn finish(command: &mut Command) -> Result<(), Error> {
    let status = command
        .status()
        .map_err(|cause| Error::Start(line(command), cause))?;
    if status.success() {
        Ok(())
    } else {
        Err(Error::Ended(line(command), status))
    }
}

/// Where to listen to a command.
#[derive(Clone, Copy)]
pub(crate) enum Ear {
    Stdout,
    Stderr,
}

/// Runs a command to its end, shows what it prints, and gives each line of one stream to `heard`.
pub(crate) fn listen(
    command: &mut Command,
    ear: Ear,
    mut heard: impl FnMut(&str),
) -> Result<(), Error> {
    match ear {
        Ear::Stdout => command.stdout(Stdio::piped()),
        Ear::Stderr => command.stderr(Stdio::piped()),
    };
    let typed = line(command);
    let start = |cause| Error::Start(typed.clone(), cause);
    let mut child = command.spawn().map_err(start)?;
    let stream: Option<Box<dyn io::Read>> = match ear {
        Ear::Stdout => child.stdout.take().map(|stream| Box::new(stream) as _),
        Ear::Stderr => child.stderr.take().map(|stream| Box::new(stream) as _),
    };
    if let Some(stream) = stream {
        let mut stream = BufReader::new(stream);
        let mut bytes = Vec::new();
        while stream.read_until(b'\n', &mut bytes).map_err(start)? > 0 {
            // Nobody to show it to is no reason to stop a test run.
            let _ = io::stderr().write_all(&bytes);
            heard(&String::from_utf8_lossy(&bytes));
            bytes.clear();
        }
    }
    let status = child.wait().map_err(start)?;
    if status.success() {
        Ok(())
    } else {
        Err(Error::Ended(typed, status))
    }
}

/// Whether a program can be called and agrees.
pub(crate) fn works(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// A command as a person would type it.
fn line(command: &Command) -> String {
    let program = command.get_program();
    let mut words = vec![Path::new(program).file_name().unwrap_or(program)];
    words.extend(command.get_args());
    words.join(OsStr::new(" ")).to_string_lossy().into_owned()
}
