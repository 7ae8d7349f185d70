//! Starts the ranks of this host and stays with them: `hcomm run`, and `hcomm perf` where no
//! launcher has started it.
//!
//! Each rank is a child in a process group of its own, so that signals reach it once, from here.
//! It asks the kernel to be ended with its launcher, so nothing is left behind even when the
//! launcher is killed. The port of the root is held, bound but not listening, from before the
//! first rank starts until all have ended: nobody else can be given it.

mod course;
mod rank;
mod surroundings;

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use hcomm_types::{Error, ErrorKind, Result};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use self::course::{Action, Course, Event};
use self::rank::Process;
use crate::bind::bind;
use crate::output;

/// What to start.
#[derive(Debug)]
pub(crate) struct Job {
    /// The command that asks for it, as its messages begin.
    pub(crate) command: &'static str,
    /// Number of ranks.
    pub(crate) ranks: u32,
    /// Program and arguments.
    pub(crate) program: Vec<OsString>,
    /// Whether lines of output carry the rank's number.
    pub(crate) prefix: bool,
    /// Cores of each rank; no list if ranks are not bound.
    pub(crate) cores: Vec<Vec<usize>>,
}

/// Runs a job to its end; returns the exit code to end with.
///
/// # Errors
/// If no port can be held or a rank cannot be started.
pub(crate) fn run(job: &Job) -> Result<u8> {
    let variable = |name| std::env::var_os(name);
    let key = surroundings::job_key(variable("HCOMM_JOB_KEY"), variable("HCOMM_JOB_KEY_FILE"))?;
    let (_port, address) = surroundings::hold_port()?;
    let pipes = if job.prefix { 2 * job.ranks } else { 0 };
    let start = Start {
        job,
        myself: std::env::current_exe()
            .map_err(|error| Error::system("finding this program's own file", error))?,
        address,
        key,
        descriptors: surroundings::make_room(pipes.into()),
    };
    let (events, inbox) = mpsc::channel();
    let mut signals = Signals::new(heeded(is_ignored(SIGHUP)))
        .map_err(|error| Error::system("listening for signals", error))?;
    let handle = signals.handle();
    let forwarder = {
        let events = events.clone();
        thread::spawn(move || {
            for signal in &mut signals {
                // The main loop is gone only when the job is over.
                if events.send(Event::Signal(signal)).is_err() {
                    break;
                }
            }
        })
    };
    let mut ranks = Vec::new();
    let mut failed = None;
    for rank in 0..job.ranks {
        match Process::start(start.command(rank), rank, job.prefix, &events) {
            Ok(process) => ranks.push(process),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    let mut course = Course::new(u32::try_from(ranks.len()).unwrap_or(job.ranks));
    if failed.is_some() {
        let actions = course.give_up(Instant::now());
        act(job, &actions, &ranks);
    }
    follow(job, &mut course, &ranks, &inbox);
    // What ranks have left behind in their groups ends with the job; only then do they give their
    // numbers back.
    for process in &ranks {
        process.signal(Signal::KILL);
    }
    ranks.into_iter().for_each(Process::reap);
    handle.close();
    // Closing the handle ends the iteration, so this returns at once.
    let _ = forwarder.join();
    failed.map_or_else(|| Ok(course.code()), Err)
}

/// Becomes the program, tied to the launcher's life: the hidden subcommand of each rank.
/// `descriptors` is the limit of them that the program is to have, if not that of the launcher;
/// `cores` are those that it is to run on, if any are named.
///
/// # Errors
/// If the program cannot be started.
pub(crate) fn exec_tied(
    launcher: u32,
    descriptors: Option<u64>,
    cores: &[usize],
    program: &[OsString],
) -> Result<Infallible> {
    tie_to_parent(launcher)?;
    descriptors.map_or(Ok(()), surroundings::limit_descriptors)?;
    if !cores.is_empty() {
        bind(cores)?;
    }
    let (name, arguments) = program
        .split_first()
        .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "no program to run"))?;
    let error = Command::new(name).args(arguments).exec();
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "is the name right, and is it in PATH or given with its folder?",
        io::ErrorKind::PermissionDenied => "may it be executed, and may its folders be entered?",
        io::ErrorKind::ArgumentListTooLong => "arguments and environment are too long together",
        _ => "is it a program for this machine?",
    };
    Err(Error::system(format!("starting `{}`", name.to_string_lossy()), error).hint(hint))
}

fn tie_to_parent(launcher: u32) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Error::system("asking to end with the launcher", error.into()))?;
    // The launcher may have been gone before the kernel knew our wish.
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if u32::try_from(parent) != Ok(launcher) {
        return Err(Error::new(ErrorKind::Aborted, "the launcher is gone"));
    }
    Ok(())
}

/// What all ranks have in common.
struct Start<'a> {
    job: &'a Job,
    myself: PathBuf,
    address: SocketAddr,
    key: Option<String>,
    descriptors: Option<u64>,
}

impl Start<'_> {
    fn command(&self, rank: u32) -> Command {
        let size = self.job.ranks.to_string();
        let mut command = Command::new(&self.myself);
        command.arg("exec-tied");
        if let Some(descriptors) = self.descriptors {
            command.arg(format!("--descriptors={descriptors}"));
        }
        if let Some(cores) = self.job.cores.get(rank as usize) {
            let cores: Vec<String> = cores.iter().map(usize::to_string).collect();
            command.arg(format!("--cores={}", cores.join(",")));
        }
        command
            .arg(std::process::id().to_string())
            .arg("--")
            .args(&self.job.program)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", &size)
            .env("LOCAL_RANK", rank.to_string())
            .env("LOCAL_WORLD_SIZE", &size)
            .env("MASTER_ADDR", self.address.ip().to_string())
            .env("MASTER_PORT", self.address.port().to_string());
        if let Some(key) = &self.key {
            command.env("HCOMM_JOB_KEY", key);
        }
        command
    }
}

/// Stays with the ranks until the job is over.
fn follow(job: &Job, course: &mut Course, ranks: &[Process], inbox: &Receiver<Event>) {
    while !course.is_over() {
        let event = match course.limit() {
            None => inbox.recv().map_err(RecvTimeoutError::from),
            Some(at) => inbox.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        let actions = match event {
            Ok(event) => course.on(event, Instant::now()),
            Err(RecvTimeoutError::Timeout) => course.at_limit(Instant::now()),
            Err(RecvTimeoutError::Disconnected) => break,
        };
        act(job, &actions, ranks);
    }
}

fn act(job: &Job, actions: &[Action], ranks: &[Process]) {
    for action in actions {
        match action {
            Action::Send(signal) => ranks.iter().for_each(|rank| rank.signal(*signal)),
            Action::Say(words) => output::complain(&format!("{}: {words}", job.command)),
        }
    }
}

/// The signals to pass on. A hangup that was ignored when we started, as under `nohup`, stays so.
fn heeded(ignores_hangup: bool) -> Vec<i32> {
    let mut signals = vec![SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];
    if !ignores_hangup {
        signals.push(SIGHUP);
    }
    signals
}

fn is_ignored(signal: i32) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| is_ignored_in(&status, signal))
}

/// Reads the mask of ignored signals in the text of `/proc/self/status`.
fn is_ignored_in(status: &str, signal: i32) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn under_nohup_a_hangup_stays_ignored() {
        let status = "Name:\thcomm\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored_in(status, SIGHUP));
        assert!(!is_ignored_in(status, SIGINT));
        assert!(!is_ignored_in("", SIGHUP));
        assert!(!heeded(true).contains(&SIGHUP) && heeded(false).contains(&SIGHUP));
    }
}
