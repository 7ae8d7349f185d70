//! Loading in a process of its own: what a library reads from the environment, it reads once. The
//! program lies outside the build's folders there, so nothing is found but what a test puts down.

use std::fs;
use std::process::Command;

use hcomm_transport::{LoadOptions, Outcome, Plugin, Transports};

use crate::folder::{Folder, sum_of_i32};

const LINE: &str = "loader: ";
const REPORT: &str = "HCOMM_TEST_REPORT";
const LINKED: &str = "HCOMM_TEST_LINKED";

/// What a process that loads from `folder` in this environment has to say of the plugin `name`:
/// a line for each candidate, and one for the first device of the one that is used.
pub(crate) fn load(folder: &Folder, name: &str, environment: &[(&str, &str)]) -> Vec<String> {
    let elsewhere = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = elsewhere.path().join("program");
    fs::hard_link(std::env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new(program)
        .args([
            "--ignored",
            "--exact",
            "child::loads_and_reports",
            "--nocapture",
        ])
        .env("HCOMM_TRANSPORT_PATH", folder.path())
        .env(REPORT, name)
        .env_remove("HCOMM_TRANSPORTS")
        .env_remove("HCOMM_FAULTY")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "the child failed: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said.lines()
        .filter_map(|line| line.split_once(LINE))
        .map(|(_, line)| line.to_owned())
        .collect()
}

/// The same for the loop transport, with its table linked in.
pub(crate) fn load_linked(folder: &Folder) -> Vec<String> {
    load(folder, "loop", &[(LINKED, "1")])
}

#[test]
#[ignore = "runs in the processes that the other tests start"]
fn loads_and_reports() {
    let name = std::env::var(REPORT).expect("set by whoever starts this");
    let linked = match std::env::var_os(LINKED) {
        Some(_) => vec![hcomm_transport_loop::transport_v1()],
        None => Vec::new(),
    };
    let variable = |name| std::env::var(name).ok();
    let (wanted, path) = (
        variable("HCOMM_TRANSPORTS"),
        variable("HCOMM_TRANSPORT_PATH"),
    );
    let load = || {
        LoadOptions::parse(
            wanted.as_deref(),
            path.as_deref(),
            linked.clone(),
            sum_of_i32,
        )
        .and_then(|options| Transports::load(&options))
    };
    let transports = match load() {
        Ok(transports) => transports,
        Err(error) => return println!("\n{LINE}{error}"),
    };
    let again = load().unwrap().plugin(&name);
    for candidate in transports.candidates() {
        if candidate.name != name {
            continue;
        }
        println!("\n{LINE}{candidate}");
        if let Outcome::Used(plugin) = candidate.outcome {
            println!("{LINE}{}", first_device(plugin));
            assert!(again.is_some_and(|again| std::ptr::eq(again, plugin)));
        }
    }
}

fn first_device(plugin: &'static Plugin) -> String {
    let device = plugin.devices().and_then(|devices| devices[0].open());
    match device {
        Err(error) => format!("does not open: {error}"),
        Ok(device) => match device.allocate(4096) {
            Ok(region) => format!("opens, allocates {} bytes", region.bytes()),
            Err(error) => format!("opens, does not allocate: {error}"),
        },
    }
}
