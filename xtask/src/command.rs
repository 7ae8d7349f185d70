//! `perf` and the other commands of `hcomm`: build everything in release, then become it.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{cargo, finish};
use crate::error::Error;
use crate::needs;

/// Packages whose built libraries `hcomm` finds beside itself. A new transport is listed here,
/// unless it needs a vendor's library to be built.
const TRANSPORTS: [&str; 4] = [
    "hcomm-transport-delay",
    "hcomm-transport-loop",
    "hcomm-transport-shm",
    "hcomm-transport-tcp",
];

/// Builds `hcomm` and its transports and replaces this process by it. Returns only on failure.
pub(crate) fn run(arguments: &[OsString]) -> Result<(), Error> {
    needs::programs(needs::For::Running)?;
    let program = build()?;
    let cause = Command::new(&program).args(arguments).exec();
    Err(Error::Start(program.display().to_string(), cause))
}

/// Builds `hcomm` and its transports in release; says where the program is.
pub(crate) fn build() -> Result<PathBuf, Error> {
    let mut build = cargo(&["build", "--release", "--package", "hcomm"]);
    for package in TRANSPORTS {
        build.args(["--package", package]);
    }
    finish(&mut build)?;
    Ok(release_folder()?.join("hcomm"))
}

/// Where cargo has put the release build.
fn release_folder() -> Result<PathBuf, Error> {
    target_folder().map(|target| target.join("release"))
}

/// The target folder: the one this program was built into, wherever it is and whatever set it.
pub(crate) fn target_folder() -> Result<PathBuf, Error> {
    let own = env::current_exe().map_err(|cause| Error::Start("xtask".into(), cause))?;
    own.ancestors().nth(2).map(Path::to_owned).ok_or_else(|| {
        Error::Missing(format!(
            "{} lies in no target folder: call it as `cargo xtask`",
            own.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo::root;
    use std::fs;

    /// Wrong on purpose: for tests only.
    const NOT_FOR_USERS: [&str; 1] = ["hcomm-transport-faulty"];

    #[test]
    fn every_transport_is_built_for_the_user() {
        let mut plugins = Vec::new();
        for folder in fs::read_dir(root().join("transports")).unwrap() {
            let manifest = folder.unwrap().path().join("Cargo.toml");
            let Ok(text) = fs::read_to_string(&manifest) else {
                continue;
            };
            if text.contains("\"cdylib\"") {
                let name = text.lines().find_map(|line| line.strip_prefix("name = "));
                plugins.push(name.unwrap().trim_matches('"').to_owned());
            }
        }
        plugins.retain(|name| !NOT_FOR_USERS.contains(&name.as_str()));
        plugins.sort();
        assert_eq!(plugins, TRANSPORTS);
    }
}
