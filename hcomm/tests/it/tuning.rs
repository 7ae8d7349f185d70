//! Tuning files: that of rank 0 holds for all ranks, and a wrong one ends start-up on all.

use std::fs;
use std::path::Path;

use hcomm::cost::Machine;
use hcomm::plan::{Operation, Shape};
use hcomm::{Communicator, DataType, Options, ReduceOp, Settings};
use serde_json::Value;
use tempfile::TempDir;

use crate::command_plan::{ended, words};
use crate::job::{Job, Process, Report, hcomm};

/// Built-in numbers but for how long news takes.
fn machine(alpha_ns: u32) -> Machine {
    let mut machine = Machine::built_in();
    machine.signals.alpha_ns = alpha_ns;
    machine
}

fn written(folder: &TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_tuning_file_of_rank_0_holds_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(&folder, "tuning", &machine(12_345).to_json().unwrap());
    let options = Options::new(Settings::default().with_tuning(&*path));
    for comm in Communicator::init_all_with(3, &options).unwrap() {
        assert_eq!(comm.costs().0, machine(12_345), "rank {}", comm.rank());
    }
}

/// A rank with another file than rank 0 goes on with that of rank 0: both come to one choice, which
/// they would not by their own files.
#[test]
fn another_file_on_another_rank_means_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(&folder, "tuning", "this is no tuning file");
    let job = Job::new("join", 2);
    let mut ranks: Vec<Process> = vec![job.start_rank(0), job.start_odd(1, "HCOMM_TUNING", &path)];
    for rank in &mut ranks {
        rank.wait_for_code(0);
    }
}

#[test]
fn a_wrong_file_on_rank_0_ends_start_up_on_all() {
    let folder = tempfile::tempdir().unwrap();
    let right = Machine::built_in().to_json().unwrap();
    let wrong = right.replace("\"alpha_ns\": ", "\"alpha_ns\": -");
    for (path, says) in [
        (
            written(&folder, "negative", &wrong),
            ["signals.alpha_ns", "line "],
        ),
        (
            folder.path().join("missing").to_str().unwrap().to_owned(),
            ["cannot be read", "missing"],
        ),
    ] {
        let job = Job::new("join", 3);
        let mut ranks: Vec<Process> = [1, 2].map(|rank| job.start_rank(rank)).into();
        ranks.push(job.start_odd(0, "HCOMM_TUNING", &path));
        let reports: Vec<Report> = ranks.iter_mut().map(Process::wait_for_error).collect();
        for report in reports {
            assert_eq!(report.stage, "init", "{report:?}");
            assert_eq!(report.kind, "InvalidArgument", "{report:?}");
            report.must_say(&["HCOMM_TUNING", &path, "rank 0", says[0], says[1]]);
        }
    }
}

/// Whatever the costs are, all ranks choose alike, and results are right.
#[test]
fn other_costs_give_other_ways() {
    let ranks = Communicator::init_all(2).unwrap();
    let names = |comm: &Communicator, alpha_ns: u32| {
        comm.use_costs(&machine(alpha_ns));
        let name = |count: u64| {
            comm.algorithm(&Shape {
                operation: Operation::AllReduce,
                ranks: 2,
                count: count.into(),
                dtype: DataType::F32,
                redop: ReduceOp::Sum.into(),
                in_place: false,
            })
            .unwrap()
        };
        [1, 1 << 10, 1 << 14, 1 << 20].map(name)
    };
    let quick = names(&ranks[0], 10);
    let slow = names(&ranks[0], 100_000_000);
    assert_ne!(quick, slow);
    assert_eq!(quick, names(&ranks[1], 10));
    assert_eq!(slow, names(&ranks[1], 100_000_000));
}

fn fixture(folder: &Path) -> String {
    let path = folder.join("fixture");
    fs::write(&path, Machine::ideal(1000).to_json().unwrap()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn explain_compares_and_says_what_would_change_the_choice() {
    let folder = tempfile::tempdir().unwrap();
    let path = fixture(folder.path());
    let line = |rest: &str| {
        format!("plan explain all_reduce -p 8 -b 64K --cores 8 --tuning {path} {rest}")
    };
    let (text, _) = words(line("").trim_end(), 0);
    // One step of news: an ideal machine moves bytes for nothing.
    let taken = text.lines().find(|line| line.starts_with("taken")).unwrap();
    assert!(
        taken.contains("mesh_one_shot") && taken.contains("1.000"),
        "{text}"
    );
    for word in [
        "no      mesh_packet",
        "no      pairwise           does not plan this operation",
        "needs more than one host",
        "What would change the choice:",
        "ring ",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let (text, _) = words(&line("--json"), 0);
    let value: Value = serde_json::from_str(&text).unwrap();
    let row = &value["rows"][0];
    assert_eq!(row["taken"], "mesh_one_shot");
    let times: Vec<f64> = row["candidates"]
        .as_array()
        .unwrap()
        .iter()
        .map(|candidate| candidate["time_us"].as_f64().unwrap())
        .collect();
    assert!(times.len() > 4 && times.is_sorted(), "{times:?}");
    // 14 steps.
    let candidates = row["candidates"].as_array().unwrap();
    let ring = candidates.iter().find(|one| one["algorithm"] == "ring");
    assert_eq!(ring.unwrap()["time_us"], 14.0);
    let (text, _) = words(&line("-e 256K --deterministic"), 0);
    assert_eq!(text.lines().count(), 2 + 3, "{text}");
    let (_, error) = words("plan explain all_reduce --tuning /nowhere", 2);
    assert!(error.contains("/nowhere"), "{error}");
}

/// The numbers themselves are the machine's business; that they are a tuning file is not.
#[test]
fn tune_writes_a_file_that_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuned");
    let mut command = hcomm();
    command.args(["tune", "-o"]).arg(&path);
    ended(command, 0);
    let machine = Machine::from_json(&fs::read_to_string(&path).unwrap()).unwrap();
    assert!(
        machine.signals.alpha_ns > 0 && machine.task_ns > 0,
        "{machine:?}"
    );
    assert!(
        machine.memory.read_ps.iter().all(|cost| *cost > 0),
        "{machine:?}"
    );
    assert!(machine.measured.contains("2 ranks"), "{machine:?}");
    let (_, error) = words("tune -p 3", 2);
    assert!(error.contains("even"), "{error}");
}
