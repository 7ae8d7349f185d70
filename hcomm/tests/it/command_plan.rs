//! `hcomm plan`: what it lists, shows and proves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use hcomm::algorithms::algorithms;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::job::{Process, hcomm};

/// The plan that lies beside the examples.
pub(crate) fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/plan_file.json")
}

/// Runs a command to its end, with this code: its stdout and stderr.
pub(crate) fn ended(command: Command, code: i32) -> (String, String) {
    let mut process = Process::start(format!("{command:?}"), command);
    process.wait_for_code(code);
    (process.stdout(), process.stderr())
}

/// `hcomm` with these words, and a file after them.
pub(crate) fn with_file(words: &str, file: &Path, code: i32) -> (String, String) {
    let mut command = hcomm();
    command.args(words.split(' ')).arg(file);
    ended(command, code)
}

/// `hcomm` with these words, which must end with this code.
pub(crate) fn words(words: &str, code: i32) -> (String, String) {
    let mut command = hcomm();
    command.args(words.split(' '));
    ended(command, code)
}

fn verified(file: &Path, code: i32) -> Value {
    let (stdout, _) = with_file("plan verify --json", file, code);
    serde_json::from_str(&stdout).unwrap()
}

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn list_names_every_algorithm_and_the_choice_of_the_model() {
    let (all, _) = words("plan list", 0);
    for algorithm in algorithms() {
        assert!(all.lines().any(|line| line == algorithm.name()), "{all}");
        assert!(!algorithm.summary().is_empty());
    }
    assert!(all.contains("all_to_all"), "{all}");
    let taken = |line: &str| {
        let (text, _) = words(line, 0);
        let mut taken = text.lines().filter(|line| line.starts_with("taken"));
        let line = taken.next().unwrap_or_else(|| panic!("{text}")).to_owned();
        assert_eq!(taken.next(), None, "{text}");
        line
    };
    assert!(taken("plan list all_reduce -b 8").contains("mesh_packet"));
    assert!(taken("plan list all_reduce -b 8 --packets 0").contains("mesh_one_shot"));
    assert!(taken("plan list -p 4 -b 64M all_gather").contains("mesh_two_shot"));
    assert!(taken("plan list send_recv").contains(" pair "));
    let (text, _) = words("plan list all_reduce -b 8 --packets 0", 0);
    assert!(text.contains("no packets  mesh_packet"), "{text}");
    let (_, error) = words("plan list reduce -r 2", 2);
    assert!(error.contains("rank 2"), "{error}");
}

#[test]
fn show_writes_each_task_in_words() {
    let (text, _) = words("plan show all_reduce -p 3 -b 12 -d int32 --algo ring", 0);
    assert!(
        text.starts_with("all_reduce of 3 int32 (sum) on 3 ranks"),
        "{text}"
    );
    for word in [
        "rank 2: ",
        "  thread 0",
        "      0  ",
        "wait for notify 0 from rank",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
    for (line, word) in [
        ("plan show all_reduce --algo rang", "plan list"),
        ("plan show all_reduce --algo pair", "cannot plan"),
        ("plan show send_recv -p 1", "rank 1"),
        (
            "plan show all_reduce --scratch 8 -b 4K --algo ring",
            "scratch",
        ),
        (
            "plan show all_reduce -p 4 --groups 0,1 --algo hierarchical",
            "2 ranks",
        ),
        ("plan show all_gather -p 4096 -b 1G", "--slice"),
    ] {
        let (_, error) = words(line, 2);
        assert!(error.contains(word), "{line}: {error}");
    }
}

/// Every algorithm, for something that it can plan: shown as a file, the plan verifies.
#[test]
fn what_show_writes_verify_accepts() {
    let folder = folder();
    let file = folder.path().join("plan.json");
    for algorithm in algorithms() {
        let name = algorithm.name();
        let op = [
            "all_reduce",
            "broadcast",
            "all_to_all",
            "all_gather",
            "send_recv",
        ]
        .into_iter()
        .find(|op| {
            let mut command = hcomm();
            command.args(["plan", "show", op, "-p", "4", "-b", "1000"]);
            command.args(["--algo", name, "--groups", "0,0,1,1", "--json"]);
            let mut show = Process::start(format!("show {op} {name}"), {
                command.arg(&file);
                command
            });
            show.wait().success()
        });
        assert!(op.is_some(), "nothing that {name} can plan");
        let report = verified(&file, 0);
        assert_eq!(report["right"], true, "{report}");
        assert_eq!(report["algorithm"], name);
        assert_eq!(report["shape"]["ranks"], 4);
        assert_eq!(report["proof"]["ranks"].as_array().unwrap().len(), 4);
    }
}

#[test]
fn a_pipe_from_show_to_verify_is_a_proof() {
    let mut command = Command::new("sh");
    let binary = env!("CARGO_BIN_EXE_hcomm");
    command.args([
        "-c",
        &format!("'{binary}' plan show reduce -r 1 -b 100 --json - | '{binary}' plan verify -"),
    ]);
    let (text, _) = ended(command, 0);
    for word in [
        "stdin: reduce to rank 1",
        "right",
        "synchronising: yes",
        "quiescent: ",
        "same bits on all ranks: yes",
        "notifies: ",
        "rank 0 to rank 1: ",
        "bytes of scratch memory",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
}

#[test]
fn a_wrong_plan_is_told_where_it_is_wrong() {
    let folder = folder();
    let file = folder.path().join("wrong.json");
    let mut plan: Value = serde_json::from_str(&fs::read_to_string(example()).unwrap()).unwrap();
    // Rank 1 does not wait for what it adds.
    plan["ranks"][1]["threads"][0]
        .as_array_mut()
        .unwrap()
        .remove(1);
    fs::write(&file, plan.to_string()).unwrap();
    let report = verified(&file, 1);
    assert_eq!(report["right"], false);
    let findings = report["findings"].as_array().unwrap();
    assert!(
        findings.iter().any(|finding| finding["rank"] == 0
            && finding["thread"] == 0
            && finding["task"] == 0
            && finding["words"]
                .as_str()
                .unwrap()
                .contains("write 256 bytes")),
        "{report}"
    );
    let (text, _) = with_file("plan verify", &file, 1);
    assert!(
        text.contains("wrong\n  rank 0, thread 0, task 0 (write"),
        "{text}"
    );
}

#[test]
fn what_is_no_plan_is_an_error_with_its_place() {
    let folder = folder();
    let file = folder.path().join("garbage");
    let example = fs::read_to_string(example()).unwrap();
    for (text, expected) in [
        (String::new(), ["line 1, column 0", "EOF"]),
        ("\u{fc}".to_owned(), ["line 1", "expected value"]),
        ("[".repeat(1 << 20), ["line 1, column ", "expected"]),
        (
            "{\"a\":".repeat(1 << 18),
            ["line 1, column ", "unknown field `a`"],
        ),
        (
            example.replacen("\"bytes\": 256", "\"bytes\": \"256\"", 1),
            ["line 12", "(ranks[0].threads[0][0].write.bytes)"],
        ),
        (example.replace("fp32", "fp33"), ["(shape.dtype)", "fp33"]),
        (
            example.replacen("\"peer\"", "\"pear\"", 1),
            ["line 11", "expected one of `peer`"],
        ),
        (example[..example.len() - 4].to_owned(), ["line 3", "EOF"]),
    ] {
        fs::write(&file, &text).unwrap();
        let (stdout, error) = with_file("plan verify", &file, 2);
        assert_eq!(stdout, "");
        for word in expected {
            assert!(error.contains(word), "{word} in {error}");
        }
        let report = verified(&file, 2);
        assert_eq!(report["right"], Value::Null, "{report}");
    }
    fs::write(&file, b"{\"format\": \"\xff\"}").unwrap();
    let (_, error) = with_file("plan verify", &file, 2);
    assert!(error.contains("byte 12"), "{error}");
    fs::File::create(&file)
        .unwrap()
        .set_len((64 << 20) + 1)
        .unwrap();
    let (_, error) = with_file("plan verify", &file, 2);
    assert!(error.contains("67108864"), "{error}");
    let (_, error) = words("plan verify /nowhere/plan.json", 2);
    assert!(error.contains("/nowhere/plan.json"), "{error}");
    // Without end.
    let (_, error) = words("plan verify /dev/zero", 2);
    assert!(error.contains("/dev/zero"), "{error}");
}

/// Small files that ask for much: an end, and no great memory, which 1 GiB is.
#[test]
fn what_would_take_too_much_is_refused() {
    let folder = folder();
    let file = folder.path().join("many.json");
    let shape = json!({
        "operation": "barrier", "ranks": 200_000, "count": 0, "dtype": "uint8", "redop": "sum",
        "in_place": false
    });
    let rank = json!({ "threads": [], "scratch_bytes": 0 });
    let plan = json!({
        "format": "hcomm-plan-1", "algorithm": "x", "shape": shape, "ranks": vec![rank; 200_000]
    });
    fs::write(&file, plan.to_string()).unwrap();
    let (_, error) = with_file("plan verify", &file, 2);
    assert!(error.contains("200000 threads"), "{error}");
}
