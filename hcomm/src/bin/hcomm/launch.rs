//! Starts the ranks of this host and stays with them: `hcomm run`, and `hcomm perf` where no
//! launcher has started it.
//!
//! Each rank is a child in a process group of its own, so that signals reach it once, from here.
//! It asks the kernel to be ended with its launcher, so nothing is left behind even when the
//! launcher is killed. The port of the root is held, bound but not listening, from before the
//! first rank starts until all have ended: nobody else can be given it.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use hcomm_types::{Error, ErrorKind, Result};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// How long the other ranks may go on after one has failed, so that they can report.
const GRACE: Duration = Duration::from_secs(5);
/// How long a rank may take to end after it was asked to.
const FAREWELL: Duration = Duration::from_secs(2);

/// What to start.
#[derive(Debug)]
pub(crate) struct Job {
    /// Number of ranks.
    pub(crate) ranks: u32,
    /// Program and arguments.
    pub(crate) program: Vec<OsString>,
    /// Whether lines of output carry the rank's number.
    pub(crate) prefix: bool,
}

/// Runs a job to its end; returns the exit code to end with.
///
/// # Errors
/// If no port can be held or a rank cannot be started.
pub(crate) fn run(job: &Job) -> Result<u8> {
    let (_port, address) = hold_port()?;
    let key = job_key()?;
    let (events, inbox) = mpsc::channel();
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2])
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
    for rank in 0..job.ranks {
        match start(job, rank, address, &key, &events) {
            Ok(started) => ranks.push(started),
            Err(error) => {
                end(&mut ranks, &inbox);
                handle.close();
                return Err(error);
            }
        }
    }
    drop(events);
    let code = stay(&mut ranks, &inbox);
    handle.close();
    // Closing the handle ends the iteration, so this returns at once.
    let _ = forwarder.join();
    Ok(code)
}

/// Becomes the program, tied to the launcher's life: the hidden subcommand of each rank.
///
/// # Errors
/// If the program cannot be started.
pub(crate) fn exec_tied(launcher: u32, program: &[OsString]) -> Result<std::convert::Infallible> {
    tie_to_parent(launcher)?;
    let (name, arguments) = program
        .split_first()
        .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "no program to run"))?;
    let error = Command::new(name).args(arguments).exec();
    Err(
        Error::system(format!("starting `{}`", name.to_string_lossy()), error)
            .hint("is the name right, and is it in PATH or given with its folder?"),
    )
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

enum Event {
    Signal(i32),
    /// A rank has ended and its output was passed on to the end.
    Ended(u32, io::Result<ExitStatus>),
}

struct Started {
    rank: u32,
    pid: Pid,
    ended: bool,
}

fn start(
    job: &Job,
    rank: u32,
    address: SocketAddr,
    key: &str,
    events: &Sender<Event>,
) -> Result<Started> {
    let myself = std::env::current_exe()
        .map_err(|error| Error::system("finding this program's own file", error))?;
    let size = job.ranks.to_string();
    let mut command = Command::new(myself);
    command
        .arg("exec-tied")
        .arg(std::process::id().to_string())
        .arg("--")
        .args(&job.program)
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", &size)
        .env("LOCAL_RANK", rank.to_string())
        .env("LOCAL_WORLD_SIZE", &size)
        .env("MASTER_ADDR", address.ip().to_string())
        .env("MASTER_PORT", address.port().to_string())
        .env("HCOMM_JOB_KEY", key)
        .stdin(Stdio::null())
        .process_group(0);
    if job.prefix {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let mut child = command.spawn().map_err(|error| {
        Error::system(format!("starting rank {rank}"), error)
            .hint("look at `ulimit -u` and at the free memory")
    })?;
    let pid = Pid::from_child(&child);
    let outputs = [
        child
            .stdout
            .take()
            .map(|pipe| pass_on(rank, pipe, io::stdout())),
        child
            .stderr
            .take()
            .map(|pipe| pass_on(rank, pipe, io::stderr())),
    ];
    let events = events.clone();
    thread::spawn(move || {
        let status = wait(&mut child);
        for output in outputs.into_iter().flatten() {
            let _ = output.join();
        }
        let _ = events.send(Event::Ended(rank, status));
    });
    Ok(Started {
        rank,
        pid,
        ended: false,
    })
}

fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    child.wait()
}

/// Passes a pipe on, line by line, each with the rank's number before it.
fn pass_on(
    rank: u32,
    pipe: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut lines = BufReader::new(pipe);
        let mut line = Vec::new();
        loop {
            line.clear();
            match lines.read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            let mut whole = format!("[{rank}] ").into_bytes();
            whole.extend_from_slice(&line);
            // One call, so that lines of ranks do not mix. Whoever reads us may be gone.
            if to.write_all(&whole).and_then(|()| to.flush()).is_err() {
                return;
            }
        }
    })
}

/// Stays until all ranks have ended. The first failure starts the grace of the others.
fn stay(ranks: &mut [Started], inbox: &mpsc::Receiver<Event>) -> u8 {
    let mut failure: Option<u8> = None;
    let mut limit: Option<(Instant, Signal)> = None;
    while ranks.iter().any(|rank| !rank.ended) {
        let event = match limit {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some((at, _)) => inbox.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match event {
            Ok(Event::Signal(number)) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    send(ranks, signal);
                }
                if number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT {
                    failure = failure.or_else(|| u8::try_from(128 + number).ok());
                    limit = limit.or_else(|| Some((Instant::now() + GRACE, Signal::TERM)));
                }
            }
            Ok(Event::Ended(number, status)) => {
                if let Some(rank) = ranks.iter_mut().find(|rank| rank.rank == number) {
                    rank.ended = true;
                }
                let Some((code, words)) = fault(status) else {
                    continue;
                };
                if failure.is_none() {
                    eprintln!("hcomm run: rank {number} {words}");
                    let left: Vec<u32> = ranks
                        .iter()
                        .filter(|rank| !rank.ended)
                        .map(|rank| rank.rank)
                        .collect();
                    if !left.is_empty() {
                        eprintln!(
                            "hcomm run: ranks {left:?} have {} s to report and end",
                            GRACE.as_secs()
                        );
                    }
                    limit = Some((Instant::now() + GRACE, Signal::TERM));
                }
                failure = failure.or(Some(code));
            }
            Err(RecvTimeoutError::Timeout) => {
                let signal = limit.map_or(Signal::KILL, |(_, signal)| signal);
                send(ranks, signal);
                limit = Some((Instant::now() + FAREWELL, Signal::KILL));
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    failure.unwrap_or(0)
}

/// Ends what has been started, without grace.
fn end(ranks: &mut [Started], inbox: &mpsc::Receiver<Event>) {
    send(ranks, Signal::KILL);
    while ranks.iter().any(|rank| !rank.ended) {
        match inbox.recv() {
            Ok(Event::Ended(number, _)) => {
                for rank in ranks.iter_mut().filter(|rank| rank.rank == number) {
                    rank.ended = true;
                }
            }
            Ok(Event::Signal(_)) => {}
            Err(_) => return,
        }
    }
}

fn send(ranks: &[Started], signal: Signal) {
    for rank in ranks.iter().filter(|rank| !rank.ended) {
        // It may have ended a moment ago; its number is not reused before it was waited for.
        let _ = kill_process_group(rank.pid, signal);
    }
}

/// Exit code and words of a rank that failed; `None` if it did not.
fn fault(status: io::Result<ExitStatus>) -> Option<(u8, String)> {
    match status {
        Ok(status) if status.success() => None,
        Ok(status) => Some(match (status.code(), status.signal()) {
            (Some(code), _) => (
                u8::try_from(code).unwrap_or(1).max(1),
                format!("ended with exit code {code}"),
            ),
            (None, Some(signal)) => (
                u8::try_from(128 + signal).unwrap_or(1),
                format!("was ended by signal {signal}{}", name_of(signal)),
            ),
            (None, None) => (1, "ended in an unknown way".to_owned()),
        }),
        Err(error) => Some((1, format!("could not be waited for: {error}"))),
    }
}

fn name_of(signal: i32) -> String {
    let name = match signal {
        2 => "SIGINT",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => return String::new(),
    };
    format!(" ({name})")
}

/// A port of the loopback interface that nobody else is given as long as the descriptor lives,
/// but that rank 0 can listen on: both set SO_REUSEADDR, and this one never listens.
fn hold_port() -> Result<(OwnedFd, SocketAddr)> {
    let failed = |error: rustix::io::Errno| {
        Error::system("holding a port of 127.0.0.1 for the ranks", error.into())
    };
    let holder = socket(AddressFamily::INET, SocketType::STREAM, None).map_err(failed)?;
    rustix::io::fcntl_setfd(&holder, rustix::io::FdFlags::CLOEXEC).map_err(failed)?;
    rustix::net::sockopt::set_socket_reuseaddr(&holder, true).map_err(failed)?;
    bind(&holder, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).map_err(failed)?;
    let address = getsockname(&holder).map_err(failed)?;
    let address = SocketAddr::try_from(address).map_err(failed)?;
    Ok((holder, address))
}

/// A key for this job alone, unless the user has set one.
fn job_key() -> Result<String> {
    if let Some(key) = std::env::var_os("HCOMM_JOB_KEY")
        .as_deref()
        .and_then(OsStr::to_str)
    {
        return Ok(key.to_owned());
    }
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorKind::System, format!("no random job key: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
