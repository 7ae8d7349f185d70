//! Runs checks, each in a process of its own: a crash or a hang of the plugin is the failure of
//! one check, and what it logs, holds and leaves behind is that check's own.

use std::os::unix::process::ExitStatusExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, exit};
use std::time::{Duration, Instant};

use hcomm_transport::{Capabilities, DeviceInfo};
use serde::{Deserialize, Serialize};

use crate::Group;
use crate::case::{Case, Check, Each, names};
use crate::groups;
use crate::line::Line;
use crate::logs;
use crate::pair::{Placement, serve, start};
use crate::report::{Entry, Report};
use crate::side::{Answer, Failure, Reply, Side};
use crate::subject::Subject;
use crate::verdict::Verdict;

/// Tells a process of the suite what it is.
pub(crate) const ROLE: &str = "HCOMM_CONFORMANCE_ROLE";

/// A check that says nothing for so long is ended. Its own waits end long before; this is for
/// calls of the plugin that do not come back.
const WATCHDOG: Duration = Duration::from_secs(90);

/// What a process of the suite is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Runs one task and sends the outcome.
    Check,
    /// The far side of a pair.
    Peer,
}

impl Role {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Peer => "peer",
        }
    }
}

/// The first message to such a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Load the plugin and list its devices.
    Survey,
    /// Run this check.
    Check {
        name: String,
        device: u32,
        placement: Option<Placement>,
    },
    /// Be the far side.
    Peer { device: u32 },
}

/// A device as the survey found it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Surveyed {
    index: u32,
    name: String,
    protocol: u32,
    capabilities: u64,
}

/// Runs groups of checks on a plugin. In a process that the suite itself has started, does that
/// process's part instead and does not return.
///
/// # Panics
/// If this process cannot start others.
#[must_use]
pub fn run(subject: &Subject, groups: &[Group]) -> Report {
    run_some(subject, groups, &[])
}

/// As [`run`], only the checks of these names; all of them without a name.
///
/// # Panics
/// As [`run`].
#[must_use]
pub fn run_some(subject: &Subject, groups: &[Group], names: &[String]) -> Report {
    match std::env::var(ROLE).as_deref() {
        Ok("check") => exit(check_process(subject)),
        Ok("peer") => exit(peer_process(subject)),
        _ => {}
    }
    let mut report = Report::new(subject.to_string(), groups);
    let devices = match survey(subject) {
        Ok(devices) => devices,
        Err(why) => {
            report.add(Entry {
                group: Group::Shape,
                check: "load".to_owned(),
                device: String::new(),
                placement: None,
                verdict: Verdict::Failed(why),
            });
            return report;
        }
    };
    let chosen = one_of_each_kind(&devices);
    for &group in groups {
        let asked = |check: &&Check| names.is_empty() || names.iter().any(|n| n == check.name);
        for check in groups::of(group).iter().filter(asked) {
            for device in &chosen {
                for placement in placements(check) {
                    let verdict = run_one(subject, check, device, placement);
                    report.add(Entry {
                        group,
                        check: check.name.to_owned(),
                        device: device.name.clone(),
                        placement: placement.map(Placement::name),
                        verdict,
                    });
                }
                if check.each == Each::Plugin {
                    break;
                }
            }
        }
    }
    report
}

fn placements(check: &Check) -> Vec<Option<Placement>> {
    match check.each {
        Each::Plugin | Each::Device => vec![None],
        Each::Placement => Placement::ALL.into_iter().map(Some).collect(),
        Each::Apart => vec![Some(Placement::TwoThreads), Some(Placement::TwoProcesses)],
        Each::Only(placement) => vec![Some(placement)],
    }
}

/// Devices that promise the same need not all run everything.
fn one_of_each_kind(devices: &[Surveyed]) -> Vec<Surveyed> {
    let mut chosen: Vec<Surveyed> = Vec::new();
    for device in devices {
        let known = chosen
            .iter()
            .any(|c| (c.protocol, c.capabilities) == (device.protocol, device.capabilities));
        if !known {
            chosen.push(device.clone());
        }
    }
    chosen
}

fn survey(subject: &Subject) -> Result<Vec<Surveyed>, String> {
    let listed: Result<Vec<Surveyed>, String> = converse(subject, &Task::Survey)?;
    let devices = listed?;
    if devices.is_empty() {
        return Err("the plugin works here and has no device".to_owned());
    }
    Ok(devices)
}

fn run_one(
    subject: &Subject,
    check: &Check,
    device: &Surveyed,
    placement: Option<Placement>,
) -> Verdict {
    if let Some(placement) = placement {
        let has = Capabilities::from_bits_truncate(device.capabilities);
        let missing = placement.needs().difference(has);
        if !missing.is_empty() {
            return Verdict::Skipped(format!("lacks {}", names(missing)));
        }
    }
    let task = Task::Check {
        name: check.name.to_owned(),
        device: device.index,
        placement,
    };
    converse(subject, &task).unwrap_or_else(Verdict::Failed)
}

/// Starts a process for a task and waits for its answer.
fn converse<T: serde::de::DeserializeOwned>(subject: &Subject, task: &Task) -> Result<T, String> {
    let (mut line, mut child) =
        start(subject, Role::Check).map_err(|error| format!("starting a process: {error}"))?;
    let until = Instant::now() + WATCHDOG;
    let answer = line
        .send(task)
        .and_then(|()| {
            loop {
                match line.receive(100)? {
                    Some(answer) => break Ok(Some(answer)),
                    None if Instant::now() >= until => break Ok(None),
                    None => {}
                }
            }
        })
        .map_err(|error| error.to_string());
    match answer {
        Ok(Some(answer)) => {
            let _ = child.wait();
            Ok(answer)
        }
        Ok(None) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(format!(
                "no outcome within {} s: a call of the plugin does not come back",
                WATCHDOG.as_secs()
            ))
        }
        Err(error) => Err(format!("{}: {error}", how_it_ended(&mut child))),
    }
}

fn how_it_ended(child: &mut Child) -> String {
    // A conversation that broke while the process lives is ended from here.
    let status = match child.try_wait() {
        Ok(Some(status)) => Ok(status),
        _ => {
            std::thread::yield_now();
            child.wait()
        }
    };
    match status {
        Ok(status) => match status.signal() {
            Some(signal) => format!("the check's process was ended by signal {signal}"),
            None => format!("the check's process ended with {status}"),
        },
        Err(error) => format!("the check's process cannot be asked: {error}"),
    }
}

/// Part of a process that runs one task. Returns its exit status.
fn check_process(subject: &Subject) -> i32 {
    // A check whose starter is gone has nobody to tell.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let Ok(mut line) = Line::of_stdin() else {
        return 2;
    };
    logs::collect();
    let sent = match next_task(&mut line) {
        Some(Task::Survey) => line.send(&list(subject)),
        Some(Task::Check {
            name,
            device,
            placement,
        }) => line.send(&guarded(subject, &name, device, placement)),
        Some(Task::Peer { .. }) | None => return 2,
    };
    i32::from(sent.is_err())
}

fn next_task(line: &mut Line) -> Option<Task> {
    loop {
        match line.receive(1000) {
            Ok(Some(task)) => return Some(task),
            Ok(None) => {}
            Err(_) => return None,
        }
    }
}

fn list(subject: &Subject) -> Result<Vec<Surveyed>, String> {
    let plugin = subject.load()?;
    let devices = plugin.devices().map_err(|error| error.to_string())?;
    Ok(devices
        .iter()
        .map(|info| Surveyed {
            index: info.index,
            name: info.name.clone(),
            protocol: info.protocol as u32,
            capabilities: info.capabilities.bits(),
        })
        .collect())
}

fn guarded(subject: &Subject, name: &str, device: u32, placement: Option<Placement>) -> Verdict {
    let check = groups::all().find(|check| check.name == name);
    let Some(check) = check else {
        return Verdict::Failed(format!("the suite has no check {name}"));
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let info = find(subject, device)?;
        let case = Case::new(subject.clone(), info, placement);
        Ok::<_, String>(Verdict::from((check.run)(&case)))
    }));
    let verdict = match outcome {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(why)) => Verdict::Failed(why),
        Err(panic) => Verdict::Failed(format!(
            "panic: {}",
            panic
                .downcast_ref::<&str>()
                .map(ToString::to_string)
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default()
        )),
    };
    let lines = logs::take();
    match verdict {
        Verdict::Passed if !lines.is_empty() && !check.may_warn => Verdict::Failed(format!(
            "everything as promised, but it logged: {}",
            lines.join(" | ")
        )),
        Verdict::Failed(why) if !lines.is_empty() => {
            Verdict::Failed(format!("{why} (logged: {})", lines.join(" | ")))
        }
        other => other,
    }
}

fn find(subject: &Subject, device: u32) -> Result<DeviceInfo, String> {
    subject
        .load()?
        .devices()
        .map_err(|error| error.to_string())?
        .into_iter()
        .find(|info| info.index == device)
        .ok_or_else(|| format!("device {device} is not there any more"))
}

/// Part of a process that is a far side. Returns its exit status.
fn peer_process(subject: &Subject) -> i32 {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let Ok(mut line) = Line::of_stdin() else {
        return 2;
    };
    logs::collect();
    let Some(Task::Peer { device }) = next_task(&mut line) else {
        return 2;
    };
    let opened =
        find(subject, device).and_then(|info| Side::open(&info).map_err(|error| error.to_string()));
    match opened {
        Ok(side) => {
            if line.send(&Answer::Ok(Reply::Done)).is_ok() {
                serve(side, line);
            }
            0
        }
        Err(text) => {
            let _ = line.send(&Answer::Err(Failure {
                kind: String::new(),
                text,
            }));
            1
        }
    }
}
