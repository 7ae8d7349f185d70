//! Rules on single files.

use std::path::Path;

use super::Finding;
use super::tokens::{Word, code_only, words};

/// More lines than this are more than one idea.
const MAX_LINES: usize = 1_200;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 8] = [
    "common", "util", "utils", "helper", "helpers", "manager", "managers", "misc",
];

/// Macros that stand for missing or left-over work.
const LEFT_OVER: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// Files that may name abi_stable: one on the plugin's side, one on the host's, what they need, and
/// the door that tests show to the host to be refused.
const NAMES_ABI_STABLE: [&str; 5] = [
    "transports/abi/src/lib.rs",
    "transports/abi/src/shims.rs",
    "transports/abi/src/tables.rs",
    "transports/faulty/tests/edited/src/door.rs",
    "transports/host/src/rust_door.rs",
];

/// Packages that have no unsafe code at all: their crate roots say so to the compiler.
const FORBID_UNSAFE: [&str; 7] = [
    "hcomm",
    "hcomm-coll",
    "hcomm-ctrl",
    "hcomm-topo",
    "hcomm-types",
    "xtask",
    "xtask-check",
];

/// Files through which every task goes, or folders of such: they name no lock. Left out, because
/// each names one: `hcomm-data/src/owned.rs`, which is the way around a lock and takes it where a
/// queue changes hands; `queue.rs` and `thread.rs`, for the loan of a blocking run, one lock a run.
/// Whether what is called from here takes one, no look at the source can tell.
const HOT: [&str; 16] = [
    "hcomm-data/src/channel.rs",
    "hcomm-data/src/copy.rs",
    "hcomm-data/src/driver.rs",
    "hcomm-data/src/looks.rs",
    "hcomm-data/src/memory.rs",
    "hcomm-data/src/message/",
    "hcomm-data/src/packet.rs",
    "hcomm-data/src/program.rs",
    "hcomm-data/src/reduce/",
    "hcomm-data/src/runner.rs",
    "hcomm-data/src/slice.rs",
    "hcomm-data/src/work.rs",
    "transports/host/src/barrier.rs",
    "transports/host/src/channel.rs",
    "transports/host/src/counts.rs",
    "transports/host/src/words.rs",
];

const LOCKS: [&str; 5] = ["Mutex", "MutexGuard", "RwLock", "Condvar", "Semaphore"];

/// Whether files of this kind are looked at.
pub(crate) fn has_rules(path: &Path) -> bool {
    let known = path
        .extension()
        .and_then(|extension| extension.to_str())
        .is_some_and(|extension| {
            ["rs", "toml", "md", "h", "c", "cc", "sh", "py"].contains(&extension)
        });
    known || path == Path::new(".ci/run")
}

/// Checks a file by its path in the workspace.
pub(crate) fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = blanks(path, text);
    if path.ends_with(".rs") {
        findings.extend(check_rust(path, text));
    }
    findings
}

/// Checks the root of a crate.
pub(crate) fn check_root(package: &str, path: &str, text: &str) -> Vec<Finding> {
    let forbids = code_only(text).contains("#![forbid(unsafe_code)]");
    if FORBID_UNSAFE.contains(&package) && !forbids {
        return vec![Finding::new(
            path,
            1,
            format!("{package} has no unsafe code: write #![forbid(unsafe_code)] at the top"),
        )];
    }
    Vec::new()
}

fn blanks(path: &str, text: &str) -> Vec<Finding> {
    let mut findings: Vec<Finding> = text
        .split('\n')
        .enumerate()
        .filter(|(_, line)| line.ends_with([' ', '\t', '\r']))
        .map(|(number, _)| Finding::new(path, number + 1, "blanks at the end of the line"))
        .collect();
    if !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")) {
        let last = text.lines().count();
        findings.push(Finding::new(
            path,
            last,
            "the file must end with one line end",
        ));
    }
    findings
}

fn check_rust(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !text.starts_with("//! ") {
        let what = "the file must begin with its documentation (//!)";
        findings.push(Finding::new(path, 1, what));
    }
    let lines = text.lines().count();
    if lines > MAX_LINES {
        let what = format!("{lines} lines, at most {MAX_LINES}: split it by ideas");
        findings.push(Finding::new(path, 0, what));
    }
    if let Some(name) = empty_name(path) {
        let what = format!("{name:?} says nothing: name the file for what it holds");
        findings.push(Finding::new(path, 0, what));
    }
    let code = code_only(text);
    let words = words(&code);
    // Models and tests, at the end of the file, may lock.
    let lines: Vec<&str> = code.lines().collect();
    let tests = lines
        .windows(2)
        .position(|pair| {
            pair[0].starts_with("#[cfg(")
                && pair[0].contains("test")
                && pair[1].starts_with("mod ")
                && pair[1].contains('{')
        })
        .map_or(usize::MAX, |line| line + 1);
    for (index, word) in words.iter().enumerate() {
        let before = index.checked_sub(1).map(|index| &words[index]);
        if let Some(what) = broken(path, before, word) {
            findings.push(Finding::new(path, word.line, what));
        }
        if LOCKS.contains(&word.text) && word.line < tests && is_hot(path) {
            let what = format!(
                "{}: every task goes through this file, without a lock",
                word.text
            );
            findings.push(Finding::new(path, word.line, what));
        }
    }
    findings
}

fn is_hot(path: &str) -> bool {
    HOT.iter().any(|hot| path.starts_with(hot))
}

/// What is wrong with a word, if anything is.
fn broken(path: &str, before: Option<&Word<'_>>, word: &Word<'_>) -> Option<String> {
    let text = word.text;
    if text == "unsafe" && !may_be_unsafe(path) {
        return Some("unsafe code is not allowed in this file".into());
    }
    if text == "abi_stable" && !NAMES_ABI_STABLE.contains(&path) {
        return Some("abi_stable is named here, outside the two doors".into());
    }
    if LEFT_OVER.contains(&text) && word.next == Some('!') {
        return Some(format!("{text}! is left over"));
    }
    if before.is_some_and(|before| before.text == "mod") && EMPTY_NAMES.contains(&text) {
        return Some(format!(
            "module {text} says nothing: name it for what it holds"
        ));
    }
    None
}

/// Where unsafe code may be.
fn may_be_unsafe(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        [_, "tests", ..] | ["transports", _, "tests", ..] => true,
        ["transports", "conformance", ..] => true,
        ["transports", "host", "src", ..] => true,
        ["transports", "abi", "src", file] => {
            ["shims.rs", "tables.rs", "transport.rs"].contains(&file)
        }
        ["transports", "abi", ..] => false,
        // each plugin: the system or vendor library, and the export of its tables
        ["transports", _, "src", file] => ["sys.rs", "export.rs"].contains(&file),
        ["transports", _, "src", "sys", ..] => true,
        ["hcomm-data", "src", "reduce", ..] => true,
        ["hcomm-data", "benches", "kernels.rs"] => true,
        [
            "hcomm-data",
            "src",
            "copy.rs" | "memory.rs" | "owned.rs" | "packet.rs" | "ring.rs",
        ] => true,
        // a peer's program, outside the workspace: as its library wants it
        ["bench", "peers", "src", ..] => true,
        ["hcomm-data", "src", "message", "inbox.rs"] => true,
        _ => false,
    }
}

/// A part of the path that says nothing.
fn empty_name(path: &str) -> Option<&str> {
    path.split('/')
        .map(|part| part.strip_suffix(".rs").unwrap_or(part))
        .find(|part| EMPTY_NAMES.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(path: &str, text: &str) -> Vec<String> {
        check(path, text).iter().map(ToString::to_string).collect()
    }

    fn one(path: &str, text: &str) -> String {
        let findings = whats(path, text);
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings.into_iter().next().unwrap()
    }

    #[test]
    fn a_clean_file_has_no_findings() {
        let text =
            "//! Rings.\n\n// unsafe todo!() abi_stable\nfn f() -> &'static str { \"dbg!\" }\n";
        assert_eq!(whats("hcomm-coll/src/ring.rs", text), [""; 0]);
    }

    #[test]
    fn unsafe_is_found_outside_its_files() {
        let text = "//! X.\n\nfn f() { unsafe { g() } }\n";
        for path in [
            "hcomm-coll/src/ring.rs",
            "hcomm-data/src/thread.rs",
            "hcomm-data/src/reduce_kernels.rs",
            "transports/abi/src/lib.rs",
            "transports/shm/src/device.rs",
            "hcomm/examples/sum.rs",
            "xtask/src/main.rs",
        ] {
            assert!(one(path, text).starts_with(&format!("{path}:3: unsafe")));
        }
        for path in [
            "transports/abi/src/shims.rs",
            "transports/host/src/raw.rs",
            "transports/host/src/load/open.rs",
            "transports/shm/src/sys.rs",
            "transports/faulty/src/export.rs",
            "transports/conformance/src/data.rs",
            "transports/shm/tests/conformance.rs",
            "hcomm-data/src/memory.rs",
            "hcomm-data/src/message/inbox.rs",
            "hcomm-data/src/reduce/float.rs",
            "hcomm-data/tests/copy.rs",
            "bench/peers/src/iox2/src/main.rs",
        ] {
            assert_eq!(whats(path, text), [""; 0], "{path}");
        }
    }

    #[test]
    fn locks_are_found_where_every_task_goes() {
        let text = "//! X.\n\nuse std::sync::Mutex;\n\n#[cfg(test)]\nmod tests {}\n";
        for path in [
            "hcomm-data/src/runner.rs",
            "hcomm-data/src/reduce/mod.rs",
            "transports/host/src/channel.rs",
        ] {
            assert!(one(path, text).starts_with(&format!("{path}:3: Mutex")));
        }
        assert_eq!(whats("hcomm-data/src/domain.rs", text), [""; 0]);
        let text = "//! X.\n\n#[cfg(test)]\nconst N: u8 = 1;\n\nuse std::sync::RwLock;\n";
        assert!(one("hcomm-data/src/work.rs", text).contains(":6: RwLock"));
        let text =
            "//! X.\n\n#[cfg(all(test, loom))]\nmod models {\n    use loom::sync::Mutex;\n}\n";
        assert_eq!(whats("transports/host/src/channel.rs", text), [""; 0]);
    }

    #[test]
    fn an_unsafe_attribute_counts() {
        let text = "//! X.\n\n#[unsafe(no_mangle)]\nfn f() {}\n";
        assert!(one("transports/shm/src/lib.rs", text).contains(":3: unsafe"));
    }

    #[test]
    fn missing_docs_are_found() {
        assert!(one("hcomm/src/x.rs", "#![forbid(unsafe_code)]\n//! X.\n").contains(":1: "));
        assert!(one("hcomm/tests/x.rs", "use hcomm;\n").contains("//!"));
    }

    #[test]
    fn left_over_macros_are_found() {
        for name in LEFT_OVER {
            let text = format!("//! X.\nfn f() {{\n    {name}!(1)\n}}\n");
            assert_eq!(
                one("hcomm/src/x.rs", &text),
                format!("hcomm/src/x.rs:3: {name}! is left over")
            );
        }
        // a name is no macro
        assert_eq!(whats("hcomm/src/x.rs", "//! X.\nlet todo = 1;\n"), [""; 0]);
    }

    #[test]
    fn empty_names_are_found() {
        let text = "//! X.\n";
        assert!(one("hcomm/src/utils.rs", text).contains("utils"));
        assert!(one("hcomm/tests/common/mod.rs", text).contains("common"));
        assert!(one("hcomm/src/x.rs", "//! X.\nmod helper {}\n").contains(":2: module helper"));
        assert_eq!(whats("hcomm/src/commonly.rs", text), [""; 0]);
    }

    #[test]
    fn abi_stable_is_found_outside_the_doors() {
        let text = "//! X.\nuse abi_stable::StableAbi;\n";
        assert!(one("transports/shm/src/lib.rs", text).contains(":2: abi_stable"));
        assert_eq!(whats("transports/host/src/rust_door.rs", text), [""; 0]);
    }

    #[test]
    fn blanks_and_line_ends_are_found() {
        assert!(one("a.md", "one \ntwo\n").contains("a.md:1: blanks"));
        assert!(one("a.md", "one\t\n").contains("blanks"));
        assert!(one("a.md", "one\r\n").contains("blanks"));
        assert!(one("a.md", "one").contains("line end"));
        assert!(one("a.md", "one\n\n").contains("line end"));
    }

    #[test]
    fn long_files_are_found() {
        let text = format!("//! X.\n{}", "fn f() {}\n".repeat(MAX_LINES));
        assert!(one("hcomm/src/x.rs", &text).contains("1201 lines"));
        let text = format!("//! X.\n{}", "fn f() {}\n".repeat(MAX_LINES - 1));
        assert_eq!(whats("hcomm/src/x.rs", &text), [""; 0]);
    }

    #[test]
    fn roots_without_unsafe_say_so() {
        let lax = "//! X.\n\n// #![forbid(unsafe_code)]\n";
        assert_eq!(
            check_root("hcomm-coll", "hcomm-coll/src/lib.rs", lax).len(),
            1
        );
        assert_eq!(
            check_root("hcomm-data", "hcomm-data/src/lib.rs", lax).len(),
            0
        );
        let strict = "//! X.\n\n#![forbid(unsafe_code)]\n";
        assert_eq!(
            check_root("hcomm-coll", "hcomm-coll/src/lib.rs", strict).len(),
            0
        );
    }
}
