//! Rules on each package's Cargo.toml.

use super::Finding;

/// Keys that every package takes from the workspace.
const INHERITED: [&str; 4] = ["edition", "rust-version", "license", "publish"];

/// Checks the manifest of a package.
pub(crate) fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !has(text, "lints", "workspace = true") {
        let what = "write [lints] workspace = true: the lints are the workspace's";
        findings.push(Finding::new(path, 0, what));
    }
    for key in INHERITED {
        if !has(text, "package", &format!("{key}.workspace = true")) {
            let what = format!("write {key}.workspace = true under [package]");
            findings.push(Finding::new(path, 0, what));
        }
    }
    findings
}

/// Whether a section of a TOML file has a line.
fn has(text: &str, section: &str, wanted: &str) -> bool {
    let mut inside = false;
    for line in text.lines() {
        let line = line.split(" #").next().unwrap_or(line).trim();
        if line.starts_with('[') {
            inside = line == format!("[{section}]");
        } else if inside && line == wanted {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
[package]
name = \"x\"
edition.workspace = true
rust-version.workspace = true
license.workspace = true
publish.workspace = true

[lints] # all
workspace = true
";

    #[test]
    fn a_good_manifest_passes() {
        assert_eq!(check("x/Cargo.toml", GOOD), []);
    }

    #[test]
    fn own_lints_are_found() {
        let bad = GOOD.replace("[lints] # all\nworkspace", "[other]\nworkspace");
        assert!(check("x/Cargo.toml", &bad)[0].what.contains("[lints]"));
    }

    #[test]
    fn an_own_edition_is_found() {
        let bad = GOOD.replace("edition.workspace = true", "edition = \"2021\"");
        assert!(check("x/Cargo.toml", &bad)[0].what.contains("edition"));
    }
}
