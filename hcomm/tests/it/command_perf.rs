//! `hcomm perf`: right results, exactly the promised JSON, and the built plugin.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::job::{HeldPort, Process, hcomm};

/// Runs `hcomm perf` with these arguments, which must go well; what it has printed.
fn perf(arguments: &str) -> String {
    let mut command = hcomm();
    command.arg("perf").args(arguments.split(' '));
    let mut perf = Process::start(format!("hcomm perf {arguments}"), command);
    perf.wait_for_code(0);
    perf.stdout()
}

/// Runs `hcomm` with these arguments and variables, which must end with this code; what it has
/// said on stderr.
fn refused(arguments: &str, vars: &[(&str, &str)], code: i32) -> String {
    let mut command = hcomm();
    command
        .args(arguments.split(' '))
        .envs(vars.iter().copied());
    let mut hcomm = Process::start(format!("hcomm {arguments}"), command);
    hcomm.wait_for_code(code);
    assert_eq!(hcomm.stdout(), "", "errors belong on stderr");
    hcomm.stderr()
}

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap_or_else(|| panic!("no object: {value}"))
        .keys()
        .map(String::as_str)
        .collect()
}

fn sorted<const N: usize>(mut names: [&str; N]) -> [&str; N] {
    names.sort_unstable();
    names
}

/// Checks everything that holds for every report by the engine cpu; returns it.
fn checked(stdout: &str, op: &str, ranks: u64) -> Value {
    checked_on("cpu", stdout, op, ranks)
}

/// Checks everything that holds for every report; returns it.
fn checked_on(engine: &str, stdout: &str, op: &str, ranks: u64) -> Value {
    assert_eq!(stdout.lines().count(), 1, "more than the JSON: {stdout}");
    let report: Value = serde_json::from_str(stdout).unwrap();
    let expected = sorted([
        "op",
        "ranks",
        "dtype",
        "redop",
        "links",
        "transports",
        "engine",
        "memory",
        "stream",
        "consume",
        "cores",
        "rows",
    ]);
    assert_eq!(sorted_keys(&report), expected);
    assert_eq!(report["op"], op);
    assert_eq!(report["ranks"], ranks);
    assert_eq!(report["engine"], engine);
    for row in report["rows"].as_array().unwrap() {
        let expected = sorted([
            "bytes",
            "count",
            "algorithm",
            "iters",
            "time_us",
            "algbw_gbps",
            "busbw_gbps",
            "msgrate_mps",
            "handover_ns",
            "predicted_us",
            "idle_percent",
            "against",
            "wrong",
        ]);
        assert_eq!(sorted_keys(row), expected);
        assert_eq!(
            sorted_keys(&row["time_us"]),
            sorted(["min", "median", "avg", "max"])
        );
        let time = |name: &str| row["time_us"][name].as_f64().unwrap();
        assert!(0.0 < time("min"), "{row}");
        assert!(
            time("min") <= time("median") && time("median") <= time("max"),
            "{row}"
        );
        assert!(
            time("min") <= time("avg") && time("avg") <= time("max"),
            "{row}"
        );
        assert_eq!(row["wrong"], 0, "{row}");
    }
    report
}

fn sorted_keys(value: &Value) -> Vec<&str> {
    let mut names = keys(value);
    names.sort_unstable();
    names
}

/// The plugin file that cargo has built beside the command is the one in use.
fn used_the_built_plugin(report: &Value) {
    assert_eq!(report["links"], serde_json::json!(["shm"]));
    let transports = report["transports"].as_array().unwrap();
    assert_eq!(transports.len(), 1, "{report}");
    assert_eq!(
        sorted_keys(&transports[0]),
        sorted(["name", "source", "path"])
    );
    assert_eq!(transports[0]["name"], "shm");
    assert_eq!(transports[0]["source"], "so", "{report}");
    let path = transports[0]["path"].as_str().unwrap();
    assert!(path.ends_with("/libhcomm_transport_shm.so"), "{path}");
    let target = std::path::Path::new(env!("CARGO_BIN_EXE_hcomm"));
    let target = fs::canonicalize(target.parent().unwrap()).unwrap();
    let file = fs::canonicalize(path).unwrap();
    assert!(file.starts_with(&target), "{file:?} is not in {target:?}");
    assert!(fs::metadata(file).unwrap().is_file());
}

#[test]
fn the_json_is_exactly_as_promised_and_the_plugin_the_built_one() {
    let stdout = perf("all_reduce -p 4 -b 8 -e 64K -f 8 -n 5 -w 2 -d fp16 -o max --json -");
    let report = checked(&stdout, "all_reduce", 4);
    used_the_built_plugin(&report);
    assert_eq!(report["dtype"], "fp16");
    assert_eq!(report["redop"], "max");
    let rows = report["rows"].as_array().unwrap();
    let sizes: Vec<u64> = rows
        .iter()
        .map(|row| row["bytes"].as_u64().unwrap())
        .collect();
    assert_eq!(sizes, [8, 64, 512, 4096, 32768]);
    for row in rows {
        let bytes = row["bytes"].as_u64().unwrap();
        assert_eq!(row["count"], bytes / 2);
        assert_eq!(row["iters"], 5);
        // The definitions of nccl-tests: what was moved in the median time; all_reduce moves each
        // byte 2 (n - 1) / n times.
        let algbw = row["algbw_gbps"].as_f64().unwrap();
        let expected = bytes as f64 / row["time_us"]["median"].as_f64().unwrap() / 1e3;
        assert!((algbw / expected - 1.0).abs() < 1e-9, "{row}");
        let busbw = row["busbw_gbps"].as_f64().unwrap();
        assert!((busbw / (algbw * 1.5) - 1.0).abs() < 1e-9, "{row}");
    }
}

#[test]
fn every_operation_measures_and_checks() {
    for op in [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "send_recv",
        "barrier",
        "write",
        "read",
        "write_notify",
        "batch_write",
        "write_reduce",
        "read_reduce",
        "notify",
        "local_copy",
        "local_reduce",
    ] {
        let stdout = perf(&format!("{op} -p 2 -b 4 -e 40K -f 100 -n 3 -w 1 --json -"));
        let report = checked(&stdout, op, 2);
        used_the_built_plugin(&report);
        let rows = report["rows"].as_array().unwrap().len();
        let sized = !["barrier", "notify"].contains(&op);
        assert_eq!(rows, if sized { 3 } else { 1 }, "{op}");
    }
}

/// The ways of measuring that are for comparisons, each with what the report says of it.
#[test]
fn streams_and_consumers_measure_and_check() {
    for (op, options, memory) in [
        ("write", "--stream 9", "ours"),
        ("write", "--stream 9 --consume", "ours"),
        ("read", "--stream 9 --consume", "ours"),
        ("write_notify", "--consume", "ours"),
        ("write_notify", "--stream 9 --consume", "ours"),
        ("batch_write", "--batch 9 --consume", "ours"),
        ("write_reduce", "--stream 9 --consume -o max", "ours"),
        ("read_reduce", "--consume -d bf16", "ours"),
        ("notify", "--stream 9", "ours"),
        ("send_recv", "--consume", "user"),
        ("send_recv", "--stream 9 --consume", "user"),
        ("send_recv", "--memory ours --consume", "ours"),
        ("send_recv", "--memory ours --stream 9", "ours"),
        ("local_copy", "--stream 9 --consume", "ours"),
        ("local_reduce", "--consume -d int8 -o min", "ours"),
    ] {
        let stdout = perf(&format!(
            "{op} {options} -p 2 -b 4 -e 40K -f 100 -n 30 -w 1 --json -"
        ));
        let report = checked(&stdout, op, 2);
        assert_eq!(report["memory"], memory, "{op} {options}");
        let stream = if options.contains("--stream") {
            Value::from(9)
        } else {
            Value::Null
        };
        assert_eq!(report["stream"], stream, "{op} {options}");
        assert_eq!(
            report["consume"],
            options.contains("--consume"),
            "{op} {options}"
        );
        for row in report["rows"].as_array().unwrap() {
            assert_eq!(row["iters"], 30, "{op} {options}");
            // The ranks of this test are processes of one host, which map memory of each other; but
            // on a busy machine a time may be missing.
            let time = &row["handover_ns"];
            assert!(time.is_null() || 0.0 < time.as_f64().unwrap(), "{row}");
            if op.starts_with("local") {
                assert!(row["msgrate_mps"].is_null(), "{row}");
                continue;
            }
            let messages = if op == "batch_write" { 9.0 } else { 1.0 };
            let expected = messages / row["time_us"]["median"].as_f64().unwrap();
            let rate = row["msgrate_mps"].as_f64().unwrap();
            assert!((rate / expected - 1.0).abs() < 1e-9, "{row}");
        }
    }
}

/// Every memory by every engine, for what moves data.
#[test]
fn every_memory_measures_and_checks_on_every_engine() {
    const PAIRS: [&str; 5] = [
        "send_recv",
        "read",
        "batch_write --batch 9",
        "write_reduce -o max",
        "write_notify --stream 9 --consume",
    ];
    const OTHERS: [&str; 5] = [
        "all_reduce",
        "all_gather --in-place",
        "reduce_scatter --in-place",
        "broadcast -r 1",
        "local_reduce",
    ];
    for memory in ["ours", "user", "symmetric"] {
        for engine in ["cpu", "cpu_ts"] {
            for (ranks, ops) in [(2, PAIRS), (3, OTHERS)] {
                for op in ops {
                    let stdout = perf(&format!(
                        "{op} --memory {memory} --engine {engine} -p {ranks} -b 4 -e 40K -f 100 \
                         -n 3 -w 1 --json -"
                    ));
                    let name = op.split(' ').next().unwrap();
                    let report = checked_on(engine, &stdout, name, ranks);
                    assert_eq!(report["memory"], memory, "{op}");
                    assert_eq!(report["rows"].as_array().unwrap().len(), 3, "{op}");
                }
            }
        }
    }
    let stdout = perf("barrier -p 3 --engine cpu_ts -n 3 --json -");
    checked_on("cpu_ts", &stdout, "barrier", 3);
}

/// What a wake takes beside the bare one, and what a rank uses that waits.
#[test]
fn a_wake_is_measured_beside_the_bare_one() {
    for (options, engine) in [
        ("", "cpu"),
        (" --threads", "cpu"),
        (" --engine cpu_ts", "cpu_ts"),
    ] {
        let stdout = perf(&format!("wake{options} -n 5 -w 1 --json -"));
        let report = checked_on(engine, &stdout, "wake", 2);
        let row = &report["rows"][0];
        assert_eq!(row["iters"], 5, "{row}");
        assert_eq!(row["against"]["op"], "futex_wake", "{row}");
        let positive = |value: &Value| 0.0 < value.as_f64().unwrap();
        assert!(positive(&row["against"]["time_us"]["median"]), "{row}");
        assert!(positive(&row["against"]["ratio"]), "{row}");
        // It sleeps: if it span or yielded all the time, it would use a core, or its share of one.
        let idle = row["idle_percent"].as_f64().unwrap();
        assert!((0.0..10.0).contains(&idle), "{row}");
    }
    let table = perf("futex_wake --against notify -n 3 -w 1");
    assert!(table.contains("against notify"), "{table}");
    assert!(!table.contains("of a core"), "{table}");
    assert!(perf("wake -n 2 -w 0").contains("of a core"));
}

#[test]
fn two_operations_in_turn_have_a_ratio() {
    let stdout = perf("write_notify --against send_recv -b 8 -e 8K -f 32 -n 30 --json -");
    let report = checked(&stdout, "write_notify", 2);
    for row in report["rows"].as_array().unwrap() {
        let against = &row["against"];
        assert_eq!(sorted_keys(against), sorted(["op", "time_us", "ratio"]));
        assert_eq!(against["op"], "send_recv");
        let median = &against["time_us"]["median"];
        assert!(0.0 < median.as_f64().unwrap() && 0.0 < against["ratio"].as_f64().unwrap());
    }
    let table = perf("local_reduce --against local_copy -b 8 -e 8 -n 2");
    assert!(
        table.contains("against local_copy") && table.contains("ratio"),
        "{table}"
    );
}

/// Without a number of iterations there are enough to measure.
#[test]
fn without_a_number_there_are_enough_iterations() {
    let stdout = perf("notify --json -");
    let report = checked(&stdout, "notify", 2);
    assert!(
        report["rows"][0]["iters"].as_u64().unwrap() >= 20,
        "{report}"
    );
}

/// As many ranks as there are cores have one each, unless they are left free.
#[test]
fn ranks_have_a_core_each_where_there_are_enough() {
    let cores = std::thread::available_parallelism().unwrap().get();
    for threads in ["", " --threads"] {
        let bound = perf(&format!("barrier -p 2 -n 2{threads} --json -"));
        let bound = &checked(&bound, "barrier", 2)["cores"];
        if cores >= 2 {
            let bound = bound.as_array().unwrap();
            assert!(bound.len() == 2 && bound[0] != bound[1], "{bound:?}");
        }
        let free = perf(&format!("barrier -p 2 -n 2{threads} --bind none --json -"));
        if cores >= 2 {
            assert!(checked(&free, "barrier", 2)["cores"].is_null(), "{free}");
        }
    }
    let many = format!("perf barrier -p {} --bind core", cores + 1);
    assert!(refused(&many, &[], 2).contains("--bind"));
}

/// Two ranks that take the same bytes for another type find wrong elements, and say so.
#[test]
fn wrong_data_ends_with_1() {
    for arguments in [
        "write",
        "read",
        "write_notify",
        "batch_write --batch 3",
        "write_reduce",
        "read_reduce",
        "send_recv",
        "send_recv --memory ours",
        "send_recv --stream 3",
        "write --stream 3 --consume",
        "write_notify --stream 3 --consume",
    ] {
        let port = HeldPort::new();
        let mut ranks: Vec<Process> = ["fp32", "int32"]
            .iter()
            .enumerate()
            .map(|(rank, dtype)| {
                let mut command = hcomm();
                command
                    .arg("perf")
                    .args(arguments.split(' '))
                    .args([
                        "-b", "64", "-e", "64", "-n", "2", "-d", dtype, "--json", "-",
                    ])
                    .env("RANK", rank.to_string())
                    .env("WORLD_SIZE", "2")
                    .env("MASTER_ADDR", "127.0.0.1")
                    .env("MASTER_PORT", port.address().port().to_string());
                Process::start(format!("{arguments}: rank {rank}"), command)
            })
            .collect();
        ranks.iter_mut().for_each(|rank| rank.wait_for_code(1));
        let report: Value = serde_json::from_str(&ranks[0].stdout()).unwrap();
        let wrong = report["rows"][0]["wrong"].as_u64().unwrap();
        assert!(wrong >= 8, "{arguments}: {report}");
    }
}

#[test]
fn every_number_of_ranks_gives_right_results() {
    for ranks in [1, 2, 3, 4, 5, 7, 8] {
        let stdout = perf(&format!(
            "all_reduce -p {ranks} -b 0 -e 300000 -f 7 -n 2 -w 1 --json -"
        ));
        let report = checked(&stdout, "all_reduce", ranks);
        assert_eq!(report["rows"][0]["bytes"], 0);
    }
}

#[test]
fn threads_instead_of_processes() {
    let stdout = perf("all_reduce --threads -p 3 -b 4 -e 40K -f 100 -n 3 --in-place --json -");
    let report = checked(&stdout, "all_reduce", 3);
    used_the_built_plugin(&report);
}

#[test]
fn the_table_has_a_line_for_each_size_and_names_the_plugin() {
    let stdout = perf("all_reduce -p 2 -b 8 -e 128 -f 4 -n 2");
    let rows: Vec<&str> = stdout
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .collect();
    assert_eq!(rows.len(), 3, "{stdout}");
    for (row, bytes) in rows.iter().zip(["8", "32", "128"]) {
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words[0], bytes, "{stdout}");
        assert_eq!(words[words.len() - 1], "0", "{stdout}");
    }
    assert!(stdout.contains("libhcomm_transport_shm.so"), "{stdout}");
    assert!(!stdout.contains('{'), "{stdout}");
}

#[test]
fn the_json_goes_to_a_file_beside_the_table() {
    let file = std::env::temp_dir().join(format!("hcomm-perf-{}.json", std::process::id()));
    let stdout = perf(&format!(
        "broadcast -p 2 -b 8 -e 8 -n 2 -r 1 --json {}",
        file.display()
    ));
    assert!(stdout.contains("# broadcast"), "{stdout}");
    let text = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    checked(&text, "broadcast", 2);
}

/// The command alone in a folder finds no plugin; what is linked in stands in, and is named so.
#[test]
fn without_a_plugin_file_the_linked_one_stands_in() {
    let folder = std::env::temp_dir().join(format!("hcomm-alone-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let alone = folder.join("hcomm");
    fs::copy(env!("CARGO_BIN_EXE_hcomm"), &alone).unwrap();
    let mut command = std::process::Command::new(&alone);
    command.args([
        "perf",
        "all_reduce",
        "-b",
        "8",
        "-e",
        "8",
        "-n",
        "2",
        "--json",
        "-",
    ]);
    let mut perf = Process::start("hcomm alone", command);
    perf.wait_for_code(0);
    let report = checked(&perf.stdout(), "all_reduce", 2);
    assert_eq!(report["transports"][0]["source"], "linked", "{report}");
    assert_eq!(report["transports"][0]["path"], Value::Null, "{report}");
    fs::remove_dir_all(&folder).unwrap();
}

/// A folder that is named wins over the usual ones.
#[test]
fn a_plugin_is_taken_from_the_folder_that_is_named() {
    let stdout = perf("all_reduce -b 8 -e 8 -n 2 --json -");
    let usual = checked(&stdout, "all_reduce", 2)["transports"][0]["path"]
        .as_str()
        .unwrap()
        .to_owned();
    let folder = std::env::temp_dir().join(format!("hcomm-named-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let named = folder.join("libhcomm_transport_shm.so");
    fs::copy(&usual, &named).unwrap();
    let mut command = hcomm();
    command
        .args([
            "perf",
            "all_reduce",
            "-b",
            "8",
            "-e",
            "8",
            "-n",
            "2",
            "--json",
            "-",
        ])
        .env("HCOMM_TRANSPORT_PATH", &folder);
    let mut perf = Process::start("hcomm with a folder", command);
    perf.wait_for_code(0);
    let report = checked(&perf.stdout(), "all_reduce", 2);
    let path = report["transports"][0]["path"].as_str().unwrap();
    assert_eq!(
        fs::canonicalize(path).unwrap(),
        fs::canonicalize(&named).unwrap()
    );
    fs::remove_dir_all(&folder).unwrap();
    // A link to nowhere is no reason to fail.
    let folder = std::env::temp_dir().join(format!("hcomm-nowhere-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    symlink("/no/such/file", folder.join("libhcomm_transport_shm.so")).unwrap();
    let mut command = hcomm();
    command
        .args([
            "perf",
            "all_reduce",
            "-b",
            "8",
            "-e",
            "8",
            "-n",
            "2",
            "--json",
            "-",
        ])
        .env("HCOMM_TRANSPORT_PATH", &folder);
    let mut perf = Process::start("hcomm with a link to nowhere", command);
    perf.wait_for_code(0);
    used_the_built_plugin(&checked(&perf.stdout(), "all_reduce", 2));
    fs::remove_dir_all(&folder).unwrap();
}

/// `hcomm transports` says what became of each candidate, `hcomm topo` what links there are.
#[test]
fn the_plugins_and_links_of_this_host_are_shown() {
    let shown = |arguments: &[&str]| {
        let mut command = hcomm();
        command.args(arguments);
        let mut hcomm = Process::start(format!("hcomm {arguments:?}"), command);
        hcomm.wait_for_code(0);
        hcomm.stdout()
    };
    let transports = shown(&["transports"]);
    let shm: Vec<&str> = transports
        .lines()
        .filter(|line| line.starts_with("shm:"))
        .collect();
    // The file is used; what is linked in is not, because of it.
    assert!(shm.len() >= 2, "{transports}");
    let file = shm
        .iter()
        .find(|line| line.contains("libhcomm_transport_shm.so]"));
    assert!(file.unwrap().starts_with("shm: used"), "{transports}");
    let linked = shm.iter().find(|line| line.ends_with("[linked in]"));
    assert!(linked.unwrap().starts_with("shm: not used"), "{transports}");
    let topology = shown(&["topo", "-p", "3"]);
    for link in ["0-1", "0-2", "1-2"] {
        let line = topology
            .lines()
            .find(|line| line.starts_with(&format!("link {link}:")))
            .unwrap_or_else(|| panic!("no link {link}: {topology}"));
        assert!(line.contains("shm"), "{topology}");
    }
}

#[test]
fn wrong_usage_ends_with_2_and_names_what_is_wrong() {
    for (arguments, word) in [
        ("perf", "OP"),
        ("perf all_reduc", "all_reduc"),
        ("perf all_reduce -p 0", "0"),
        ("perf all_reduce -b 1X", "1X"),
        ("perf all_reduce -b 64 -e 8", "-b 64"),
        ("perf all_reduce -f 1", "1"),
        ("perf all_reduce -i 0", "-i 0"),
        ("perf all_reduce -n 0", "0"),
        ("perf all_reduce -d float12", "float12"),
        ("perf all_reduce -o median", "median"),
        ("perf write_reduce -o avg", "avg"),
        ("perf broadcast -p 2 -r 2", "-r 2"),
        ("perf send_recv -p 3", "3"),
        ("perf futex_wake --engine cpu_ts", "cpu_ts"),
        ("perf all_reduce --stream 64", "--stream"),
        ("perf barrier --consume", "--consume"),
        ("perf barrier --memory user", "--memory"),
        ("perf notify --memory symmetric", "symmetric"),
        ("perf wake --stream 2", "--stream"),
        ("perf write --memory nowhere", "nowhere"),
        ("perf all_reduce --frobnicate", "frobnicate"),
        ("perf all_reduce --algo nonsense", "nonsense"),
        ("nonsense", "nonsense"),
        ("run -n 2", "PROGRAM"),
        ("run -n 0 -- true", "0"),
    ] {
        let stderr = refused(arguments, &[], 2);
        assert!(stderr.contains(word), "`{word}` is not in: {stderr}");
    }
}

/// A plugin that is not there is nothing the command line can be blamed for.
#[test]
fn a_link_that_is_not_there_ends_with_1_and_is_named() {
    let stderr = refused("perf all_reduce --links carrier_pigeon", &[], 1);
    assert!(
        stderr.contains("libhcomm_transport_carrier_pigeon.so"),
        "{stderr}"
    );
}

#[test]
fn unknown_variables_and_bad_values_end_with_2() {
    for (name, value) in [
        ("HCOMM_NONSENSE", "1"),
        ("HCOMM_EXEC_TIMEOUT", "soon"),
        ("HCOMM_BUFFER_BYTES", "-1"),
        ("HCOMM_LOG", "hcomm=loud"),
    ] {
        let stderr = refused("perf all_reduce -b 8 -e 8", &[(name, value)], 2);
        assert!(stderr.contains(name), "`{name}` is not in: {stderr}");
    }
}

#[test]
fn another_number_of_ranks_than_the_launcher_started_is_refused() {
    let vars = [("RANK", "0"), ("WORLD_SIZE", "3")];
    let stderr = refused("perf all_reduce -p 2", &vars, 2);
    assert!(stderr.contains("-p 2") && stderr.contains('3'), "{stderr}");
}

/// Under a launcher each process is one rank, and rank 0 alone prints.
#[test]
fn under_a_launcher_rank_0_alone_prints() {
    let port = HeldPort::new();
    let mut ranks: Vec<Process> = (0..3)
        .map(|rank| {
            let mut command = hcomm();
            command
                .args([
                    "perf",
                    "all_gather",
                    "-p",
                    "3",
                    "-b",
                    "8",
                    "-e",
                    "8K",
                    "-f",
                    "32",
                ])
                .args(["-n", "3", "--json", "-"])
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", "3")
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.address().port().to_string());
            Process::start(format!("rank {rank}"), command)
        })
        .collect();
    crate::job::all_succeed(&mut ranks);
    used_the_built_plugin(&checked(&ranks[0].stdout(), "all_gather", 3));
    assert_eq!(ranks[1].stdout() + &ranks[2].stdout(), "");
}
