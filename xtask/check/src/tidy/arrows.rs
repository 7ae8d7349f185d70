//! Who may use whom. A crate uses lower layers only; the tables below say which.

use std::path::Path;

use cargo_metadata::{DependencyKind, MetadataCommand, TargetKind};

use super::Finding;

/// A package of the workspace, as far as the rules go.
#[derive(Debug, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Path of its Cargo.toml in the workspace.
    pub(crate) manifest: String,
    /// Paths of the roots of its library and programs.
    pub(crate) roots: Vec<String>,
    /// What it uses when it is built.
    uses: Vec<String>,
    /// What its tests use besides.
    tests_use: Vec<String>,
}

/// A package and what it may use of ours.
struct Arrows {
    from: &'static str,
    to: &'static [&'static str],
    /// What its tests, examples and benches may use besides.
    in_tests: &'static [&'static str],
}

const fn arrows(
    from: &'static str,
    to: &'static [&'static str],
    in_tests: &'static [&'static str],
) -> Arrows {
    Arrows { from, to, in_tests }
}

const ABI: &str = "hcomm-transport-abi";
const HOST: &str = "hcomm-transport";
const CONFORMANCE: &str = "hcomm-transport-conformance";
const LOOP: &str = "hcomm-transport-loop";
const SHM: &str = "hcomm-transport-shm";
const TCP: &str = "hcomm-transport-tcp";
const FAULTY: &str = "hcomm-transport-faulty";
/// Not a transport: a copy of the ABI's types with one edit, which the host has to refuse.
const EDITED: &str = "hcomm-transport-edited";
const TYPES: &str = "hcomm-types";
const TOPO: &str = "hcomm-topo";
const DATA: &str = "hcomm-data";
const CTRL: &str = "hcomm-ctrl";
const COLL: &str = "hcomm-coll";

/// All packages but the plugins, from the bottom up.
const CRATES: [Arrows; 12] = [
    arrows(TYPES, &[], &[]),
    arrows(ABI, &[], &[]),
    arrows(TOPO, &[TYPES], &[]),
    arrows(HOST, &[ABI, TYPES], &[LOOP, SHM, FAULTY, EDITED]),
    arrows(DATA, &[HOST, ABI, TYPES], &[LOOP, SHM, FAULTY]),
    arrows(CONFORMANCE, &[DATA, HOST, ABI, TYPES], &[LOOP, FAULTY]),
    arrows(CTRL, &[DATA, HOST, TOPO, TYPES], &[ABI, LOOP, SHM, FAULTY]),
    // coll never names a transport: it knows capabilities and costs
    arrows(COLL, &[CTRL, DATA, TOPO, TYPES], &[HOST, ABI, LOOP, SHM]),
    // shm is linked in, so that a program without a plugin folder runs; tcp is only named, so that
    // cargo builds its .so beside each program and several hosts work as well
    arrows(
        "hcomm",
        &[COLL, CTRL, DATA, HOST, SHM, TCP, TOPO, TYPES],
        &[ABI, LOOP, FAULTY],
    ),
    arrows(EDITED, &[ABI], &[]),
    arrows("xtask", &[], &[]),
    arrows("xtask-check", &[ABI], &[]),
];

/// What each plugin may use: it knows the ABI and nothing else of ours.
const PLUGIN: Arrows = arrows("", &[ABI], &[CONFORMANCE]);

/// The only packages that may depend on abi_stable.
const ABI_STABLE: [&str; 3] = [ABI, HOST, EDITED];

/// Reads the packages of the workspace.
pub(crate) fn packages(root: &Path) -> Result<Vec<Package>, String> {
    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .exec()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let relative = |path: &cargo_metadata::camino::Utf8Path| {
        let path = path.as_std_path();
        let path = path.strip_prefix(root).unwrap_or(path);
        path.to_string_lossy().into_owned()
    };
    let package = |package: &cargo_metadata::Package| {
        let uses = |tests: bool| {
            package
                .dependencies
                .iter()
                .filter(|dependency| (dependency.kind == DependencyKind::Development) == tests)
                .map(|dependency| dependency.name.clone())
                .collect()
        };
        let is_root = |kind: &TargetKind| {
            !matches!(
                kind,
                TargetKind::Test
                    | TargetKind::Bench
                    | TargetKind::Example
                    | TargetKind::CustomBuild
            )
        };
        Package {
            name: package.name.to_string(),
            manifest: relative(&package.manifest_path),
            roots: package
                .targets
                .iter()
                .filter(|target| target.kind.iter().all(is_root))
                .map(|target| relative(&target.src_path))
                .collect(),
            uses: uses(false),
            tests_use: uses(true),
        }
    };
    Ok(metadata
        .workspace_packages()
        .into_iter()
        .map(package)
        .collect())
}

/// Checks every arrow.
pub(crate) fn check(packages: &[Package]) -> Vec<Finding> {
    let is_ours = |name: &&String| packages.iter().any(|package| package.name == **name);
    let mut findings = Vec::new();
    for package in packages {
        let name = &package.name;
        let Some(allowed) = allowed(package) else {
            let what = format!("{name} has no line in the table of arrows (xtask/check)");
            findings.push(Finding::new(&package.manifest, 0, what));
            continue;
        };
        for used in package.uses.iter().filter(is_ours) {
            if !allowed.to.contains(&used.as_str()) {
                let what = format!(
                    "{name} may not use {used}; it may use: {}",
                    list(allowed.to)
                );
                findings.push(Finding::new(&package.manifest, 0, what));
            }
        }
        for used in package.tests_use.iter().filter(is_ours) {
            let fits = |list: &[&str]| list.contains(&used.as_str());
            if !fits(allowed.to) && !fits(allowed.in_tests) {
                let what = format!(
                    "the tests of {name} may not use {used}; they may use: {}",
                    list(&[allowed.to, allowed.in_tests].concat())
                );
                findings.push(Finding::new(&package.manifest, 0, what));
            }
        }
        let all = [&package.uses[..], &package.tests_use[..]].concat();
        if all.iter().any(|used| used == "abi_stable") && !ABI_STABLE.contains(&name.as_str()) {
            let what = format!("{name} may not depend on abi_stable: it stays in the two doors");
            findings.push(Finding::new(&package.manifest, 0, what));
        }
    }
    findings
}

/// The line of the tables for a package. Whatever else lies under `transports/` is a plugin.
fn allowed(package: &Package) -> Option<&'static Arrows> {
    CRATES
        .iter()
        .find(|arrows| arrows.from == package.name)
        .or_else(|| {
            package
                .manifest
                .starts_with("transports/")
                .then_some(&PLUGIN)
        })
}

fn list(names: &[&str]) -> String {
    if names.is_empty() {
        "none of ours".into()
    } else {
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, manifest: &str, uses: &[&str], tests_use: &[&str]) -> Package {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Package {
            name: name.into(),
            manifest: manifest.into(),
            roots: Vec::new(),
            uses: owned(uses),
            tests_use: owned(tests_use),
        }
    }

    /// Findings on one package among bare ones of all names.
    fn findings(odd: Package) -> Vec<String> {
        let mut packages: Vec<Package> = CRATES
            .iter()
            .map(|arrows| arrows.from)
            .chain([LOOP, SHM, FAULTY])
            .filter(|name| *name != odd.name)
            .map(|name| package(name, "transports/x/Cargo.toml", &[], &[]))
            .collect();
        packages.push(odd);
        check(&packages)
            .into_iter()
            .map(|finding| finding.what)
            .collect()
    }

    #[test]
    fn allowed_arrows_pass() {
        let coll = package(
            COLL,
            "hcomm-coll/Cargo.toml",
            &[CTRL, "serde"],
            &[LOOP, "proptest"],
        );
        assert_eq!(findings(coll), [""; 0]);
        let shm = package(
            SHM,
            "transports/shm/Cargo.toml",
            &[ABI, "rustix"],
            &[CONFORMANCE],
        );
        assert_eq!(findings(shm), [""; 0]);
    }

    #[test]
    fn arrows_upwards_and_sideways_are_found() {
        for (name, used) in [
            (TYPES, ABI),
            (ABI, TYPES),
            (TOPO, DATA),
            (DATA, CTRL),
            (CTRL, COLL),
            (COLL, HOST),
            (COLL, SHM),
            (HOST, SHM),
            ("xtask", TYPES),
        ] {
            let found = findings(package(name, "a/Cargo.toml", &[used], &[]));
            assert_eq!(found.len(), 1, "{name} -> {used}");
            assert!(
                found[0].contains(used) && found[0].contains(name),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_plugin_knows_only_the_abi() {
        let found = findings(package(
            "hcomm-transport-tcp",
            "transports/tcp/Cargo.toml",
            &[TYPES],
            &[],
        ));
        assert!(found[0].contains("may not use hcomm-types"), "{found:?}");
    }

    #[test]
    fn tests_have_their_own_table() {
        let coll = package(COLL, "hcomm-coll/Cargo.toml", &[], &["hcomm"]);
        assert!(findings(coll)[0].starts_with("the tests of hcomm-coll"));
        // allowed in tests only
        let coll = package(COLL, "hcomm-coll/Cargo.toml", &[LOOP], &[]);
        assert_eq!(findings(coll).len(), 1);
    }

    #[test]
    fn abi_stable_stays_in_the_two_doors() {
        let data = package(DATA, "hcomm-data/Cargo.toml", &["abi_stable"], &[]);
        assert_eq!(findings(data).len(), 1);
        let host = package(HOST, "transports/host/Cargo.toml", &["abi_stable"], &[]);
        assert_eq!(findings(host), [""; 0]);
    }

    #[test]
    fn an_unknown_package_is_found() {
        let new = package("hcomm-new", "hcomm-new/Cargo.toml", &[], &[]);
        assert!(findings(new)[0].contains("no line in the table"));
    }

    #[test]
    fn reads_the_packages_of_this_workspace() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .canonicalize()
            .unwrap();
        let packages = packages(&root).unwrap();
        let own = packages
            .iter()
            .find(|package| package.name == "xtask-check")
            .unwrap();
        assert_eq!(own.manifest, "xtask/check/Cargo.toml");
        assert_eq!(own.roots, ["xtask/check/src/main.rs"]);
        assert!(own.uses.contains(&ABI.to_owned()));
    }
}
