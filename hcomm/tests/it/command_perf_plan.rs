//! `hcomm perf --plan`: a plan from a file runs, and its results are checked.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::command_plan::{ended, example, folder, with_file, words};
use crate::job::hcomm;

fn perf(words: &str, file: &Path, code: i32) -> (String, String) {
    with_file(&format!("perf {words} --plan"), file, code)
}

#[test]
fn perf_runs_a_plan_from_a_file_and_checks_its_results() {
    let (text, _) = perf("all_reduce -n 20", &example(), 0);
    assert!(text.contains("exchange") && text.contains("256"), "{text}");
    for how in [
        "-n 20",
        "-n 20 --threads",
        "-n 20 -p 2 --engine cpu_ts",
        "-n 20 --memory ours",
    ] {
        let (json, _) = perf(&format!("all_reduce --json - {how}"), &example(), 0);
        let report: Value = serde_json::from_str(&json).unwrap();
        let row = &report["rows"][0];
        assert_eq!(
            (
                &row["algorithm"],
                &row["bytes"],
                &row["count"],
                &row["wrong"]
            ),
            (&json!("exchange"), &json!(256), &json!(64), &json!(0)),
            "{how}"
        );
    }
}

/// Plans of built-in algorithms go the same way, with other operations and places.
#[test]
fn perf_runs_what_show_writes() {
    let folder = folder();
    let file = folder.path().join("plan.json");
    for (op, options, ranks) in [
        (
            "all_reduce",
            "-p 3 -b 10K -d int32 -o max --in-place --algo ring_bidirectional",
            3,
        ),
        ("all_gather", "-p 3 -b 999 -d uint8 --algo bruck", 3),
        (
            "reduce_scatter",
            "-p 4 -b 4K -d bf16 --in-place --algo halving_doubling",
            4,
        ),
        ("broadcast", "-p 3 -b 300K -r 2 --algo binary_tree", 3),
        ("gather", "-p 3 -b 3K -r 1 --algo knomial", 3),
        ("all_to_all", "-p 3 -b 120 --algo mesh_packet", 3),
        ("barrier", "-p 3 --algo recursive_doubling", 3),
    ] {
        let (_, _) = with_file(&format!("plan show {op} {options} --json"), &file, 0);
        let (json, _) = perf(&format!("{op} -n 20 --json -"), &file, 0);
        let report: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(report["ranks"], ranks, "{op}");
        let row = &report["rows"][0];
        assert_eq!(row["wrong"], 0, "{op} {row}");
        let algorithm = options.rsplit(' ').next().unwrap();
        assert_eq!(row["algorithm"], algorithm, "{op}");
    }
}

#[test]
fn perf_refuses_what_does_not_go_with_a_plan() {
    let example = example();
    for (options, word) in [
        ("all_reduce -b 8", "--plan"),
        ("all_reduce -e 8", "--plan"),
        ("all_reduce -d int8", "--plan"),
        ("all_reduce -o max", "--plan"),
        ("all_reduce --algo ring", "--plan"),
        ("all_reduce -p 3", "is for 2 ranks"),
        ("all_gather", "a plan for all_reduce"),
    ] {
        let (_, error) = perf(options, &example, 2);
        assert!(error.contains(word), "{options}: {error}");
    }
    let folder = folder();
    let file = folder.path().join("message.json");
    with_file("plan show send_recv -b 8 --json", &file, 0);
    let (_, error) = perf("send_recv", &file, 2);
    assert!(error.contains("plans of collectives"), "{error}");
    let (_, error) = words("perf all_reduce --plan -", 2);
    assert!(error.contains("write it to a file"), "{error}");
    let mut run = hcomm();
    run.args(["run", "-n", "3", "--", env!("CARGO_BIN_EXE_hcomm")]);
    run.args(["perf", "all_reduce", "--plan"]).arg(&example);
    let (_, error) = ended(run, 2);
    assert!(
        error.contains("is for 2 ranks, but the launcher"),
        "{error}"
    );
    let mut wrong: Value = serde_json::from_str(&fs::read_to_string(&example).unwrap()).unwrap();
    wrong["ranks"][1]["threads"][0]
        .as_array_mut()
        .unwrap()
        .remove(1);
    fs::write(&file, wrong.to_string()).unwrap();
    let (_, error) = perf("all_reduce", &file, 2);
    assert!(error.contains("rank 0, thread 0, task 0"), "{error}");
}
