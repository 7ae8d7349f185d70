//! `hcomm doctor`: the shape of what it tells, of a host and of what lies between ranks.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::command_plan::{ended, words};
use crate::hosts::Hosts;
use crate::job::{HeldPort, Process, hcomm};

/// The checks that every Linux host has.
const ALWAYS: [&str; 18] = [
    "clock",
    "cores",
    "cpu_quota",
    "dev_shm",
    "huge_pages",
    "interface",
    "kernel",
    "launcher",
    "mappings",
    "memlock",
    "memory",
    "open_files",
    "processes",
    "rdma",
    "tcp_buffers",
    "tcp_congestion",
    "transport",
    "variables",
];

/// The findings of a report, after a look at its shape.
pub(crate) fn findings(json: &str) -> Vec<Value> {
    let report: Value =
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"));
    assert!(report["version"].is_string() && report["hosts"].is_array());
    let findings = report["findings"].as_array().unwrap().clone();
    let badness = |finding: &Value| match finding["verdict"].as_str().unwrap() {
        "ok" => 0,
        "note" => 1,
        "warning" => 2,
        "error" => 3,
        other => panic!("{other} is no verdict"),
    };
    assert!(
        findings.is_sorted_by_key(|finding| -badness(finding)),
        "{json}"
    );
    assert_eq!(report["worst"], findings[0]["verdict"]);
    for finding in &findings {
        for field in ["check", "subject", "seen"] {
            let text = finding[field].as_str().unwrap();
            assert!(!text.is_empty(), "{field} of {finding}");
        }
        // What has to be changed comes with the way to do it.
        assert!(
            badness(finding) < 2 || finding["fix"].is_string(),
            "{finding}"
        );
    }
    findings
}

fn checks(findings: &[Value]) -> BTreeSet<&str> {
    findings
        .iter()
        .map(|finding| finding["check"].as_str().unwrap())
        .collect()
}

/// Ends with 1 where the machine has an error, as the report says.
fn report(process: &mut Process) -> Vec<Value> {
    let code = process.wait().code();
    let findings = findings(&process.stdout());
    let has_error = findings[0]["verdict"] == "error";
    assert_eq!(code, Some(i32::from(has_error)), "{}", process.output());
    findings
}

#[test]
fn a_host_is_looked_at_by_every_check() {
    let mut command = hcomm();
    command.args(["doctor", "--json"]);
    let findings = report(&mut Process::start("doctor", command));
    let checks = checks(&findings);
    for name in ALWAYS {
        assert!(checks.contains(name), "no {name} in {checks:?}");
    }
    // Two processes were connected to see how bytes move.
    assert!(checks.contains("cma"), "{checks:?}");
}

#[test]
fn a_wrong_variable_is_an_error_and_the_code_says_so() {
    let mut command = hcomm();
    command.args(["doctor"]);
    command
        .env("HCOMM_LOG", "=,=")
        .env("HCOMM_EXEC_TIMEUOT", "5");
    let (text, _) = ended(command, 1);
    let errors: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("error "))
        .collect();
    assert!(text.starts_with("error "), "{text}");
    for name in ["HCOMM_LOG", "HCOMM_EXEC_TIMEUOT"] {
        assert!(
            errors.iter().any(|line| line.contains(name)),
            "{name}: {text}"
        );
    }
    assert!(text.contains("did you mean HCOMM_EXEC_TIMEOUT?"), "{text}");
}

#[test]
fn peers_need_a_launcher() {
    let (_, stderr) = words("doctor --peers", 2);
    assert!(
        stderr.contains("hcomm run -n 2 -- hcomm doctor --peers"),
        "{stderr}"
    );
}

#[test]
fn between_two_ranks_every_pair_is_tried_and_rank_0_tells() {
    let mut command = hcomm();
    command.args(["run", "--no-prefix", "-n", "2", "--"]);
    command.args([env!("CARGO_BIN_EXE_hcomm"), "doctor", "--peers", "--json"]);
    let mut process = Process::start("doctor --peers", command);
    process.wait();
    let findings = findings(&process.stdout());
    let checks = checks(&findings);
    for name in ALWAYS {
        assert!(checks.contains(name), "no {name} in {checks:?}");
    }
    let of = |check: &str, words: &str| -> Vec<&Value> {
        let named = findings.iter().filter(|finding| finding["check"] == check);
        named
            .filter(|finding| finding["subject"].as_str().unwrap().starts_with(words))
            .collect()
    };
    for (from, to) in [(0, 1), (1, 0)] {
        let tried = of("reach", &format!("rank {from} "));
        let reached = tried.iter().any(|finding| {
            finding["subject"]
                .as_str()
                .unwrap()
                .contains(&format!(" to rank {to} "))
                && finding["verdict"] == "ok"
        });
        assert!(reached, "{from} to {to}: {}", process.output());
    }
    for check in ["latency", "bandwidth", "link_choice"] {
        assert_eq!(
            of(check, "rank 0 ").len(),
            1,
            "{check}: {}",
            process.output()
        );
    }
    assert!(!of("versions", "HCOMM_EXEC_TIMEOUT").is_empty());
}

#[test]
fn a_rank_that_does_not_come_is_named_and_the_host_is_looked_at_all_the_same() {
    let port = HeldPort::new();
    let mut command = hcomm();
    command.args(["doctor", "--peers", "--json", "--wait", "1"]);
    command
        .env("RANK", "0")
        .env("WORLD_SIZE", "2")
        .env("LOCAL_RANK", "0");
    command
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.address().port().to_string());
    let mut process = Process::start("rank 0", command);
    process.wait_for_code(1);
    let findings = findings(&process.stdout());
    assert_eq!(findings[0]["verdict"], "error");
    let start = findings
        .iter()
        .find(|finding| finding["check"] == "start")
        .unwrap();
    assert!(
        start["seen"].as_str().unwrap().contains("rank 1"),
        "{start}"
    );
    assert!(checks(&findings).contains("cores"));
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.expect("ip").success(), "ip {words}");
}

/// One rank on each of two hosts: what rank 0 finds.
fn between(hosts: &Hosts) -> Vec<Value> {
    let mut ranks: Vec<Process> = hosts
        .names
        .iter()
        .enumerate()
        .map(|(rank, name)| {
            let inner = hcomm();
            let mut command = Command::new("ip");
            command
                .args(["netns", "exec", name])
                .arg(inner.get_program());
            for (name, _) in inner.get_envs() {
                command.env_remove(name);
            }
            command.args(["doctor", "--peers", "--json"]);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
            command.env("LOCAL_RANK", "0").env("LOCAL_WORLD_SIZE", "1");
            command
                .env("MASTER_ADDR", "10.77.0.1")
                .env("MASTER_PORT", "29500");
            Process::start(format!("rank {rank}"), command)
        })
        .collect();
    ranks[1].wait();
    ranks[0].wait();
    findings(&ranks[0].stdout())
}

/// The verdict of the only finding of a check whose subject has these words.
fn verdict<'a>(findings: &'a [Value], check: &str, words: &[&str]) -> &'a str {
    let found: Vec<&Value> = findings
        .iter()
        .filter(|finding| {
            let subject = finding["subject"].as_str().unwrap();
            finding["check"] == check && words.iter().all(|word| subject.contains(word))
        })
        .collect();
    let [found] = found[..] else {
        panic!("{check} of {words:?}: {found:#?} of {findings:#?}");
    };
    found["verdict"].as_str().unwrap()
}

#[test]
fn between_two_hosts_a_dead_cable_and_packets_that_are_too_large_are_found() {
    let Some(hosts) = Hosts::bare("10.77.0.1") else {
        return;
    };
    hosts.cable("eth0", ["10.77.0.1/24", "10.77.0.2/24"]);
    hosts.cable("data0", ["10.78.0.1/24", "10.78.0.2/24"]);
    hosts.cable("data1", ["10.79.0.1/24", "10.79.0.2/24"]);
    let [a, b] = &hosts.names;
    ip(&format!("-n {b} link set data1 down"));
    // The first host is told to send larger packets than the other's interface takes, and so they
    // are lost without a word: what a tunnel on the way does.
    ip(&format!("-n {a} link set data0 mtu 9000 gso_max_segs 1"));
    ip(&format!(
        "-n {b} route change 10.78.0.0/24 dev data0 advmss 8960"
    ));
    let found = between(&hosts);
    for way in ["10.77.0.1 to eth0", "10.77.0.2 to eth0"] {
        assert_eq!(verdict(&found, "reach", &[way]), "ok", "{found:#?}");
    }
    // The other end tells that it has no carrier.
    let is_down = |finding: &&Value| {
        finding["subject"] == "data1" && finding["seen"].as_str().unwrap().ends_with(", down")
    };
    let down: Vec<&Value> = found.iter().filter(is_down).collect();
    assert_eq!(down.len(), 1, "{found:#?}");
    assert_eq!(down[0]["verdict"], "warning");
    assert_eq!(
        verdict(&found, "mtu", &["rank 0", "rank 1", "data0"]),
        "warning"
    );
    assert_eq!(
        verdict(&found, "path_mtu", &["10.78.0.1 to data0"]),
        "error",
        "{found:#?}"
    );
    assert_eq!(found[0]["verdict"], "error");
}
