//! `syscalls`: two ranks over shared memory do every primitive of the data plane many times under
//! strace; in between there must be no system call.
//!
//! The program (`hcomm/examples/primitives.rs`) marks its phases by writes to `/dev/null`, which
//! the trace shows with their text. What is allowed between two marks:
//!
//! * where a rank acts alone: nothing;
//! * in `together` phases, where ranks wait for each other: a wait that has left its spinning phase
//!   may yield, look after its peers now and then, and sleep; and a recorder may wake a peer that
//!   sleeps. So a rank may wake no more often than its peer has slept, and everything else must come
//!   with a sleep, or as a look with a yield. How often that happens is the scheduler's business: it is
//!   counted, not judged.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use crate::cargo::{cargo, finish};
use crate::command::target_folder;
use crate::error::Error;
use crate::needs;

/// How often each primitive is done.
pub(crate) const ROUNDS: u32 = 100_000;

/// Does one `sched_yield` a round, to see that the trace shows what happens.
const CONTROL: &str = "control";
const TOGETHER: &str = "together";

/// A look at the peers makes no call of a kind more often: `ppoll` for their processes and for links.
const CALLS_A_LOOK: u64 = 2;

/// What one thread of a process did between two marks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Phase {
    name: String,
    rounds: u64,
    calls: BTreeMap<String, u64>,
}

/// Builds the program, runs and judges it.
pub(crate) fn run(rounds: u32) -> Result<(), Error> {
    needs::programs(needs::For::Tests)?;
    // The whole workspace, as for the tests: another choice of packages has other features.
    let mut build = cargo(&["build", "--workspace", "--bin", "hcomm"]);
    finish(build.args(["--example", "primitives"]))?;
    let folder = target_folder()?.join("debug");
    let traces = Traces::new()?;
    let mut traced = Command::new("strace");
    traced
        .args(["--quiet=all", "-ff", "-s", "200", "-o"])
        .arg(traces.0.join("trace"))
        .arg(folder.join("hcomm"))
        .args(["run", "-n", "2", "--"])
        .arg(folder.join("examples/primitives"))
        .arg(rounds.to_string());
    finish(&mut traced)?;
    let mut ranks = Vec::new();
    for text in traces.texts()? {
        let phases = phases(&text);
        if !phases.is_empty() {
            ranks.push(phases);
        }
    }
    let faults = judge(&ranks);
    show(&ranks);
    if faults.is_empty() {
        return Ok(());
    }
    Err(Error::Missing(faults.join("\n")))
}

/// A folder of traces, gone at the end.
struct Traces(PathBuf);

impl Traces {
    fn new() -> Result<Self, Error> {
        let folder = env::temp_dir().join(format!("hcomm-syscalls-{}", process::id()));
        fs::create_dir(&folder)
            .map_err(|cause| Error::Start(folder.display().to_string(), cause))?;
        Ok(Self(folder))
    }

    fn texts(&self) -> Result<Vec<String>, Error> {
        let failed = |path: &Path| {
            let path = path.display().to_string();
            move |cause| Error::Start(path, cause)
        };
        let mut texts = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(failed(&self.0))? {
            let path = entry.map_err(failed(&self.0))?.path();
            let bytes = fs::read(&path).map_err(failed(&path))?;
            texts.push(String::from_utf8_lossy(&bytes).into_owned());
        }
        Ok(texts)
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // What is left lies among temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The phases in the trace of one thread.
fn phases(trace: &str) -> Vec<Phase> {
    let mut phases = Vec::new();
    let mut now: Option<Phase> = None;
    for line in trace.lines() {
        if let Some((what, rounds, name)) = mark(line) {
            match what {
                "begin" => {
                    now = Some(Phase {
                        name: name.to_owned(),
                        rounds,
                        calls: BTreeMap::new(),
                    });
                }
                _ => phases.extend(now.take().filter(|phase| phase.name == name)),
            }
        } else if let Some(phase) = &mut now
            && let Some(call) = call(line)
        {
            *phase.calls.entry(call).or_default() += 1;
        }
    }
    phases
}

/// What a mark says: begin or end, how many rounds, of what.
fn mark(line: &str) -> Option<(&str, u64, &str)> {
    let (_, text) = line.strip_prefix("write(")?.split_once(", \"hcomm ")?;
    let (text, _) = text.split_once("\\n\"")?;
    let (what, text) = text.split_once(' ')?;
    let (rounds, name) = text.split_once(' ')?;
    Some((what, rounds.parse().ok()?, name))
}

/// Name of the system call of a line; wakes are told from waits. `None` for signals and ends.
fn call(line: &str) -> Option<String> {
    let (name, rest) = line.split_once('(')?;
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return None;
    }
    Some(match name {
        "futex" if rest.contains("FUTEX_WAKE") => "futex wake".to_owned(),
        "futex" => "futex wait".to_owned(),
        name => name.to_owned(),
    })
}

/// What is wrong.
fn judge(ranks: &[Vec<Phase>]) -> Vec<String> {
    let [first, second] = ranks else {
        return vec![format!(
            "{} traces with marks in them, and there were 2 ranks",
            ranks.len()
        )];
    };
    let names = |phases: &[Phase]| {
        phases
            .iter()
            .map(|phase| phase.name.clone())
            .collect::<Vec<_>>()
    };
    if names(first) != names(second) {
        return vec![format!(
            "the ranks have done different things: {:?} and {:?}",
            names(first),
            names(second)
        )];
    }
    let mut faults = Vec::new();
    for (one, other) in first.iter().zip(second) {
        for (phase, peer) in [(one, other), (other, one)] {
            if let Some(fault) = fault(phase, peer) {
                let (name, rounds) = (&phase.name, phase.rounds);
                faults.push(format!("{name}, {rounds} times: {fault}"));
            }
        }
    }
    if !first.iter().any(|phase| phase.name == CONTROL) {
        faults.push("the phase that shows that the trace works is missing".to_owned());
    }
    faults
}

fn fault(phase: &Phase, peer: &Phase) -> Option<String> {
    if phase.name == CONTROL {
        let expected = BTreeMap::from([("sched_yield".to_owned(), phase.rounds)]);
        return (phase.calls != expected).then(|| {
            format!(
                "the trace does not show its one call a round: {:?}",
                phase.calls
            )
        });
    }
    if !phase.name.starts_with(TOGETHER) {
        return (!phase.calls.is_empty()).then(|| format!("system calls: {:?}", phase.calls));
    }
    let count = |phase: &Phase, name: &str| phase.calls.get(name).copied().unwrap_or(0);
    let (wakes, slept) = (count(phase, "futex wake"), count(peer, "futex wait"));
    // One more: the peer may have gone to sleep before its mark or after it.
    if wakes > slept + 1 {
        return Some(format!("{wakes} wakes of a peer that slept {slept} times"));
    }
    let sleeps = count(phase, "futex wait");
    let known = ["futex wait", "futex wake", "sched_yield", "membarrier"];
    let other: BTreeMap<_, _> = phase
        .calls
        .iter()
        .filter(|(name, _)| !known.contains(&name.as_str()))
        .collect();
    // With a yield there may be a look.
    let looks = CALLS_A_LOOK * count(phase, "sched_yield");
    let too_many = other.values().any(|calls| **calls > looks);
    (sleeps == 0 && too_many).then(|| {
        format!("without a sleep, and more than looks at the peers with each yield: {other:?}")
    })
}

fn show(ranks: &[Vec<Phase>]) {
    for (number, phases) in ranks.iter().enumerate() {
        for phase in phases {
            let calls: Vec<String> = phase
                .calls
                .iter()
                .map(|(name, count)| format!("{count} {name}"))
                .collect();
            let calls = if calls.is_empty() {
                "no system call".to_owned()
            } else {
                calls.join(", ")
            };
            eprintln!("rank {number}: {} x {}: {calls}", phase.rounds, phase.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"
openat(AT_FDCWD, "/dev/null", O_WRONLY) = 5
write(5, "hcomm begin 3 control\n", 22) = 22
sched_yield()                           = 0
sched_yield()                           = 0
sched_yield()                           = 0
write(5, "hcomm end 3 control\n", 20)   = 20
sched_yield()                           = 0
write(5, "hcomm begin 9 write, 8 bytes\n", 29) = 29
--- SIGWINCH {si_signo=SIGWINCH} ---
write(5, "hcomm end 9 write, 8 bytes\n", 27) = 27
write(5, "hcomm begin 9 together: x\n", 26) = 26
futex(0x7f00, FUTEX_WAKE, 2147483647)   = 1
futex(0x7f00, FUTEX_WAIT, 1, NULL)      = 0
write(5, "hcomm end 9 together: x\n", 24) = 24
+++ exited with 0 +++"#;

    #[test]
    fn reads_what_lies_between_marks() {
        let phases = phases(TRACE);
        let of = |at: usize| (phases[at].name.as_str(), phases[at].calls.len());
        assert_eq!(
            [of(0), of(1), of(2)],
            [("control", 1), ("write, 8 bytes", 0), ("together: x", 2)]
        );
        assert_eq!(phases[0].calls["sched_yield"], 3);
        assert_eq!(judge(&[phases, super::phases(TRACE)]), [""; 0]);
    }

    #[test]
    fn a_call_where_none_may_be_is_a_fault() {
        for (from, to) in [
            ("--- SIGWINCH {si_signo=SIGWINCH} ---", "getpid() = 1"),
            ("futex(0x7f00, FUTEX_WAIT, 1, NULL)", "poll([], 0, 0)"),
            (
                "sched_yield()                           = 0\nwrite",
                "write",
            ),
            ("begin 3 control", "begin 3 else"),
        ] {
            let wrong = TRACE.replacen(from, to, 1);
            assert_ne!(wrong, TRACE, "{from}");
            let faults = judge(&[phases(&wrong), phases(TRACE)]);
            assert!(!faults.is_empty(), "{to}");
        }
    }

    #[test]
    fn more_wakes_than_sleeps_are_a_fault() {
        let wake = "futex(0x7f00, FUTEX_WAKE, 2147483647)   = 1\n";
        let wrong = TRACE.replace(wake, &wake.repeat(3));
        assert_eq!(judge(&[phases(&wrong), phases(TRACE)]).len(), 1);
    }

    #[test]
    fn a_look_comes_with_a_yield_or_a_sleep() {
        let sleep = "futex(0x7f00, FUTEX_WAIT, 1, NULL)      = 0\n";
        let yields = "sched_yield() = 0\n";
        let poll = "ppoll([], 0) = 0\n";
        let faults = |calls: &str| {
            let trace = TRACE.replace(sleep, calls);
            judge(&[phases(&trace), phases(TRACE)]).len()
        };
        assert_eq!(faults(&format!("{yields}{poll}{poll}")), 0);
        assert_eq!(faults(&format!("{yields}{poll}{poll}{poll}")), 1);
        assert_eq!(faults(poll), 1);
        assert_eq!(faults(&format!("{sleep}{poll}{poll}{poll}")), 0);
    }

    #[test]
    fn no_trace_proves_nothing() {
        assert_eq!(judge(&[]).len(), 1);
        assert_eq!(judge(&[Vec::new(), Vec::new()]).len(), 1);
    }
}
