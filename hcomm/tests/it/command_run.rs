//! `hcomm run`: variables, output, signals, ends.

use std::collections::BTreeSet;
use std::process::Command;

use rustix::process::Signal;

use crate::job::{Process, hcomm, is_running, program_arguments, this_program, wait_for_end_of};

/// `hcomm run -n N -- sh -c SCRIPT`.
fn run(ranks: u32, script: &str) -> Process {
    run_with(&["-n", &ranks.to_string()], &["sh", "-c", script])
}

fn run_with(options: &[&str], program: &[&str]) -> Process {
    let mut command: Command = hcomm();
    command.arg("run").args(options).arg("--").args(program);
    Process::start(format!("hcomm run {options:?} -- {program:?}"), command)
}

/// The process numbers that ranks have printed as `pid N`.
fn pids(output: &str) -> Vec<u32> {
    output
        .lines()
        .filter_map(|line| line.split_once("pid ")?.1.parse().ok())
        .collect()
}

#[test]
fn ranks_get_their_variables_and_lines_their_prefix() {
    let mut run = run(
        3,
        r#"echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT, key ${#HCOMM_JOB_KEY}"
           echo "an error" >&2
           printf 'no end of line'"#,
    );
    run.wait_for_code(0);
    let stdout = run.stdout();
    let mut ports = BTreeSet::new();
    for rank in 0..3 {
        let start = format!("[{rank}] {rank} of 3, {rank} of 3 at 127.0.0.1:");
        let line = stdout
            .lines()
            .find_map(|line| line.strip_prefix(&start))
            .unwrap_or_else(|| panic!("no line `{start}`: {}", run.output()));
        let (port, key) = line.split_once(", key ").unwrap();
        ports.insert(port.parse::<u16>().unwrap());
        assert!(key.parse::<u32>().unwrap() >= 16, "a short key: {line}");
        assert!(
            stdout.contains(&format!("[{rank}] no end of line\n")),
            "{stdout}"
        );
        assert!(
            run.stderr().contains(&format!("[{rank}] an error\n")),
            "{}",
            run.output()
        );
    }
    assert_eq!(ports.len(), 1, "one port for all: {ports:?}");
    assert_eq!(stdout.lines().count(), 6, "{stdout}");
}

#[test]
fn every_line_of_a_flood_comes_whole() {
    let mut run = run(
        4,
        "i=0; while [ $i -lt 500 ]; do echo \"line $i of rank $RANK\"; i=$((i+1)); done",
    );
    run.wait_for_code(0);
    let stdout = run.stdout();
    let lines: BTreeSet<&str> = stdout.lines().collect();
    assert_eq!(stdout.lines().count(), 2000);
    for rank in 0..4 {
        for number in 0..500 {
            let line = format!("[{rank}] line {number} of rank {rank}");
            assert!(lines.contains(&*line), "no `{line}`");
        }
    }
}

#[test]
fn without_prefix_lines_stay_as_they_are() {
    let mut run = run_with(&["-n", "2", "--no-prefix"], &["sh", "-c", "echo $RANK"]);
    run.wait_for_code(0);
    let stdout = run.stdout();
    let mut lines: Vec<&str> = stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0", "1"]);
}

/// The first program of the README, here as a rank program.
#[test]
fn a_program_of_four_ranks_finds_together() {
    let program = this_program();
    let mut command = hcomm();
    command
        .args(["run", "-n", "4", "--"])
        .arg(program)
        .args(program_arguments())
        .env("ITEST_PROGRAM", "join");
    let mut run = Process::start("hcomm run", command);
    run.wait_for_code(0);
    for rank in 0..4 {
        assert!(
            run.stdout().contains(&format!("[{rank}] UP\n")),
            "{}",
            run.output()
        );
    }
}

fn ends_on(signal: Signal, name: &str, code: i32) {
    let mut run = run(
        3,
        &format!(
            "trap 'echo got {name}; exit 0' {name}; echo \"pid $$\"; while :; do sleep 0.1; done"
        ),
    );
    for rank in 0..3 {
        run.wait_for_text(&format!("[{rank}] pid "));
    }
    run.signal(signal);
    run.wait_for_code(code);
    for rank in 0..3 {
        let line = format!("[{rank}] got {name}\n");
        assert!(run.stdout().contains(&line), "{}", run.output());
    }
    for pid in pids(&run.stdout()) {
        assert!(!is_running(pid), "{pid} is left");
    }
}

#[test]
fn sigterm_reaches_the_ranks() {
    ends_on(Signal::TERM, "TERM", 128 + 15);
}

#[test]
fn sigint_reaches_the_ranks() {
    ends_on(Signal::INT, "INT", 128 + 2);
}

/// Signals that do not end the job are passed on, and nothing else happens.
#[test]
fn sigusr1_reaches_the_ranks_and_the_job_goes_on() {
    let mut run = run(
        2,
        "trap 'echo got USR1; exit 0' USR1; echo ready; while :; do sleep 0.1; done",
    );
    for rank in 0..2 {
        run.wait_for_text(&format!("[{rank}] ready"));
    }
    run.signal(Signal::USR1);
    run.wait_for_code(0);
    for rank in 0..2 {
        assert!(
            run.stdout().contains(&format!("[{rank}] got USR1")),
            "{}",
            run.output()
        );
    }
}

#[test]
fn when_a_rank_fails_the_others_may_report_and_all_end() {
    // Rank 2 fails when both others are up; rank 0 reports when the launcher has said so.
    let folder = std::env::temp_dir().join(format!("hcomm-run-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    let mut run = run(
        3,
        &format!(
            r#"echo "pid $$"
               case $RANK in
                 0) touch {dir}/0; while [ ! -e {dir}/told ]; do sleep 0.05; done; echo "a late report"; exit 1;;
                 1) touch {dir}/1; exec sleep 1000;;
                 2) while [ ! -e {dir}/0 ] || [ ! -e {dir}/1 ]; do sleep 0.05; done; exit 7;;
               esac"#,
            dir = folder.display()
        ),
    );
    run.wait_for_words("rank 2 ended with exit code 7");
    std::fs::write(folder.join("told"), []).unwrap();
    run.wait_for_code(7);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(
        run.stdout().contains("[0] a late report"),
        "{}",
        run.output()
    );
    let pids = pids(&run.stdout());
    assert_eq!(pids.len(), 3, "{}", run.output());
    for pid in pids {
        assert!(!is_running(pid), "{pid} is left");
    }
}

#[test]
fn a_rank_that_dies_of_a_signal_is_named_with_it() {
    let mut run = run(2, "if [ $RANK = 1 ]; then kill -9 $$; fi");
    run.wait_for_code(128 + 9);
    assert!(run.stderr().contains("rank 1"), "{}", run.output());
    assert!(run.stderr().contains("SIGKILL"), "{}", run.output());
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    let mut run = run(2, "trap '' TERM; echo \"pid $$\"; exec sleep 1000");
    for rank in 0..2 {
        run.wait_for_text(&format!("[{rank}] pid "));
    }
    run.signal(Signal::TERM);
    run.wait_for_code(128 + 15);
    let pids = pids(&run.stdout());
    assert_eq!(pids.len(), 2);
    for pid in pids {
        assert!(!is_running(pid), "{pid} is left");
    }
}

#[test]
fn when_the_launcher_is_killed_its_ranks_end() {
    let mut run = run(3, "echo \"pid $$\"; exec sleep 1000");
    for rank in 0..3 {
        run.wait_for_text(&format!("[{rank}] pid "));
    }
    let pids = pids(&run.stdout());
    assert_eq!(pids.len(), 3);
    run.signal(Signal::KILL);
    for pid in pids {
        wait_for_end_of(pid);
    }
    assert!(!run.wait().success());
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let mut run = run_with(&["-n", "2"], &["/no/such/program"]);
    let status = run.wait();
    assert!(!status.success());
    assert!(
        run.stderr().contains("/no/such/program"),
        "{}",
        run.output()
    );
}

/// Nobody reads any more: that is no reason to hang.
#[test]
fn ranks_that_print_nothing_and_end_well_make_a_good_job() {
    let mut run = run(8, ":");
    run.wait_for_code(0);
    assert_eq!(run.stdout() + &run.stderr(), "");
}
