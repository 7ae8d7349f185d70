//! `tidy`: the rules of this repository that the compiler does not know. Each finding is a line
//! `path:line: what`, and all of them are shown at once.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

mod arrows;
mod files;
mod manifests;
mod tokens;

/// One broken rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Relative to the workspace.
    path: String,
    /// Counted from 1; 0 where the whole file or package is meant.
    line: usize,
    what: String,
}

impl Finding {
    fn new(path: impl Into<String>, line: usize, what: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            line,
            what: what.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}

/// Checks everything; says how much that was.
pub(crate) fn run(root: &Path) -> Result<String, String> {
    let packages = arrows::packages(root)?;
    let mut findings = arrows::check(&packages);
    let mut paths = Vec::new();
    walk(root, Path::new(""), &mut paths).map_err(|error| format!("reading the tree: {error}"))?;
    for path in &paths {
        let name = path.to_string_lossy().replace('\\', "/");
        match fs::read_to_string(root.join(path)) {
            Ok(text) => findings.extend(files::check(&name, &text)),
            Err(error) => findings.push(Finding::new(name, 0, error.to_string())),
        }
    }
    for package in &packages {
        let manifest = &package.manifest;
        match fs::read_to_string(root.join(manifest)) {
            Ok(text) => findings.extend(manifests::check(manifest, &text)),
            Err(error) => findings.push(Finding::new(manifest, 0, error.to_string())),
        }
        for target in &package.roots {
            match fs::read_to_string(root.join(target)) {
                Ok(text) => findings.extend(files::check_root(&package.name, target, &text)),
                Err(error) => findings.push(Finding::new(target, 0, error.to_string())),
            }
        }
    }
    if findings.is_empty() {
        return Ok(format!(
            "{} packages and {} files are tidy",
            packages.len(),
            paths.len()
        ));
    }
    findings.sort();
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    Err(format!(
        "{} findings; the rules stand in CONTRIBUTING.md\n{}",
        lines.len(),
        lines.join("\n")
    ))
}

/// Collects the text files that have rules, in a stable order.
fn walk(root: &Path, folder: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut entries: Vec<_> = fs::read_dir(root.join(folder))?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = folder.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            let skipped = [".git", "target"].iter().any(|name| path.ends_with(name));
            // a target folder or a checkout of something else, under whatever name
            let foreign = root.join(&path).join("CACHEDIR.TAG").exists();
            if !skipped && !foreign {
                walk(root, &path, paths)?;
            }
        } else if kind.is_file() && files::has_rules(&path) {
            paths.push(path);
        }
    }
    Ok(())
}
