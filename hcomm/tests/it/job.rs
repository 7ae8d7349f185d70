//! Processes of a test, with their output and a watchdog. Whatever a test starts ends with it.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

/// After this a process hangs. A soak beside other work asks for more, in `ITEST_LIMIT` seconds.
pub(crate) fn limit() -> Duration {
    let seconds = std::env::var("ITEST_LIMIT").map_or(90, |text| text.parse().expect("seconds"));
    Duration::from_secs(seconds)
}

/// Names under which launchers and we speak to ranks; a test sets its own.
const NOT_INHERITED: [&str; 12] = [
    "HCOMM_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_",
    "TORCHELASTIC_",
    "OMPI_",
    "PMI_",
    "MPI_LOCAL",
    "SLURM_",
    "ITEST_",
];

/// The `hcomm` command.
pub(crate) fn hcomm() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_hcomm")))
}

/// One of the [`programs`](crate::programs).
pub(crate) fn program(name: &str) -> Command {
    let mut command = clean(Command::new(this_program()));
    command.args(program_arguments()).env("ITEST_PROGRAM", name);
    command
}

/// This test program.
pub(crate) fn this_program() -> PathBuf {
    std::env::current_exe().expect("the path of this program")
}

/// What makes this test program run one of the [`programs`](crate::programs).
pub(crate) const fn program_arguments() -> [&'static str; 5] {
    [
        "--exact",
        "programs::rank_program",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]
}

fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if NOT_INHERITED.iter().any(|start| text.starts_with(start)) {
            command.env_remove(&name);
        }
    }
    command
}

/// A process and everything that it has printed.
pub(crate) struct Process {
    name: String,
    child: Child,
    pidfd: OwnedFd,
    stdout: Arc<Printed>,
    stderr: Arc<Printed>,
    readers: Vec<thread::JoinHandle<()>>,
    status: Option<ExitStatus>,
}

#[derive(Default)]
struct Printed {
    state: Mutex<(Vec<u8>, bool)>,
    news: Condvar,
}

impl Process {
    pub(crate) fn start(name: impl Into<String>, mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).expect("a pidfd");
        let (stdout, stderr) = (Arc::default(), Arc::default());
        let readers = vec![
            read_all(child.stdout.take().expect("piped"), Arc::clone(&stdout)),
            read_all(child.stderr.take().expect("piped"), Arc::clone(&stderr)),
        ];
        Self {
            name: name.into(),
            child,
            pidfd,
            stdout,
            stderr,
            readers,
            status: None,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.status.is_none() && !self.ends_by(Instant::now())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.pidfd, signal).expect("a signal to a process of ours");
    }

    /// Waits for its end, and for the end of its output.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        if let Some(status) = self.status {
            return status;
        }
        let limit = limit();
        if !self.ends_by(Instant::now() + limit) {
            let output = self.output();
            panic!(
                "{} has not ended in {limit:?}; its output:\n{output}",
                self.name
            );
        }
        let status = self.child.wait().expect("its end");
        self.status = Some(status);
        for reader in self.readers.drain(..) {
            reader.join().expect("a reader");
        }
        status
    }

    /// Waits for its end, which must be with this exit code.
    #[track_caller]
    pub(crate) fn wait_for_code(&mut self, code: i32) {
        let status = self.wait();
        assert_eq!(
            status.code(),
            Some(code),
            "{} ended with {status}; its output:\n{}",
            self.name,
            self.output()
        );
    }

    /// Waits for a text on stdout.
    #[track_caller]
    pub(crate) fn wait_for_text(&self, text: &str) {
        self.wait_on(&self.stdout, text);
    }

    /// Waits for a text on stderr.
    #[track_caller]
    pub(crate) fn wait_for_words(&self, text: &str) {
        self.wait_on(&self.stderr, text);
    }

    #[track_caller]
    fn wait_on(&self, pipe: &Arc<Printed>, text: &str) {
        let limit = Instant::now() + limit();
        let mut state = pipe.state.lock().unwrap();
        loop {
            if String::from_utf8_lossy(&state.0).contains(text) {
                return;
            }
            let left = limit.saturating_duration_since(Instant::now());
            if state.1 || left.is_zero() {
                drop(state);
                panic!("{} never printed `{text}`:\n{}", self.name, self.output());
            }
            state = pipe.news.wait_timeout(state, left).unwrap().0;
        }
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout.state.lock().unwrap().0).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.state.lock().unwrap().0).into_owned()
    }

    /// Everything printed so far, for people.
    pub(crate) fn output(&self) -> String {
        format!(
            "--- {} (pid {}) stdout\n{}\n--- stderr\n{}\n---",
            self.name,
            self.pid(),
            self.stdout(),
            self.stderr()
        )
    }

    /// The error that a rank program has ended with.
    #[track_caller]
    pub(crate) fn wait_for_error(&mut self) -> Report {
        self.wait_for_code(crate::programs::FAILED);
        let stdout = self.stdout();
        let line = stdout
            .lines()
            .find_map(|line| line.strip_prefix(crate::programs::ERROR))
            .unwrap_or_else(|| panic!("no error was printed:\n{}", self.output()));
        let value: Value = serde_json::from_str(line).expect("an error as JSON");
        Report {
            stage: value["stage"].as_str().expect("stage").to_owned(),
            kind: value["kind"].as_str().expect("kind").to_owned(),
            culprits: value["culprits"]
                .as_array()
                .expect("culprits")
                .iter()
                .map(|rank| rank.as_u64().expect("a rank"))
                .collect(),
            text: value["text"].as_str().expect("text").to_owned(),
        }
    }

    /// Numbers of the sockets that it has open.
    pub(crate) fn sockets(&self) -> BTreeSet<u64> {
        let Ok(fds) = fs::read_dir(format!("/proc/{}/fd", self.pid())) else {
            return BTreeSet::new();
        };
        fds.flatten()
            .filter_map(|fd| fs::read_link(fd.path()).ok())
            .filter_map(|link| {
                let text = link.to_string_lossy().into_owned();
                let number = text.strip_prefix("socket:[")?.strip_suffix(']')?;
                number.parse().ok()
            })
            .collect()
    }

    fn ends_by(&self, limit: Instant) -> bool {
        loop {
            let left = limit.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::from_borrowed_fd(self.pidfd.as_fd(), PollFlags::IN)];
            let time = Timespec::try_from(left).expect("a short time");
            match poll(&mut fds, Some(&time)) {
                Ok(0) if left.is_zero() => return false,
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return true,
                Err(error) => panic!("poll: {error}"),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.status.is_none() {
            let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

fn read_all(mut pipe: impl Read + Send + 'static, into: Arc<Printed>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut chunk = [0; 4096];
        loop {
            let read = pipe.read(&mut chunk).unwrap_or(0);
            let mut state = into.state.lock().unwrap();
            state.0.extend_from_slice(&chunk[..read]);
            state.1 = read == 0;
            into.news.notify_all();
            if read == 0 {
                return;
            }
        }
    })
}

/// An error as a rank program has printed it.
#[derive(Debug)]
pub(crate) struct Report {
    /// `init`, or the operation.
    pub(crate) stage: String,
    pub(crate) kind: String,
    pub(crate) culprits: Vec<u64>,
    pub(crate) text: String,
}

impl Report {
    /// Fails unless all these words stand in the text.
    #[track_caller]
    pub(crate) fn must_say(&self, words: &[&str]) {
        for word in words {
            assert!(self.text.contains(word), "`{word}` is not in: {self:?}");
        }
    }
}

/// A port for a root that nobody else is given as long as this lives.
pub(crate) struct HeldPort {
    address: SocketAddr,
    _holder: OwnedFd,
}

impl HeldPort {
    pub(crate) fn new() -> Self {
        let holder = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        rustix::io::fcntl_setfd(&holder, rustix::io::FdFlags::CLOEXEC).expect("close on exec");
        sockopt::set_socket_reuseaddr(&holder, true).expect("reuse");
        bind(&holder, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        let address = getsockname(&holder).expect("its address");
        Self {
            address: SocketAddr::try_from(address).expect("an IP address"),
            _holder: holder,
        }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Ranks in processes, started without a launcher.
pub(crate) struct Job {
    name: String,
    size: u32,
    port: HeldPort,
    settings: Vec<(String, String)>,
}

impl Job {
    /// `size` ranks that run the program of this name.
    pub(crate) fn new(name: &str, size: u32) -> Self {
        Self {
            name: name.to_owned(),
            size,
            port: HeldPort::new(),
            settings: vec![("HCOMM_JOB_KEY".to_owned(), "the key of the test".to_owned())],
        }
    }

    /// A variable for all ranks.
    pub(crate) fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// What starts a rank.
    pub(crate) fn command(&self, rank: u32) -> Command {
        let mut command = program(&self.name);
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", self.size.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("MASTER_ADDR", self.address().ip().to_string())
            .env("MASTER_PORT", self.address().port().to_string())
            .envs(self.settings.iter().cloned());
        command
    }

    /// Starts one rank.
    pub(crate) fn start_rank(&self, rank: u32) -> Process {
        Process::start(format!("rank {rank}"), self.command(rank))
    }

    /// Starts one rank that differs from the others.
    pub(crate) fn start_odd(&self, rank: u32, name: &str, value: &str) -> Process {
        let mut command = self.command(rank);
        command.env(name, value);
        Process::start(format!("rank {rank} with {name}={value}"), command)
    }

    /// Starts all ranks.
    pub(crate) fn start(&self) -> Vec<Process> {
        (0..self.size).map(|rank| self.start_rank(rank)).collect()
    }
}

/// Waits for all, each of which must end well.
#[track_caller]
pub(crate) fn all_succeed(ranks: &mut [Process]) {
    for rank in ranks {
        rank.wait_for_code(0);
    }
}

/// What could be left behind on this host.
pub(crate) struct Traces {
    shm: BTreeSet<String>,
    sockets: BTreeSet<u64>,
    pids: Vec<u32>,
}

impl Traces {
    /// Before anything is started.
    pub(crate) fn new() -> Self {
        Self {
            shm: names_in_dev_shm(),
            sockets: BTreeSet::new(),
            pids: Vec::new(),
        }
    }

    /// Notes what running processes hold.
    pub(crate) fn note(&mut self, ranks: &[Process]) {
        for rank in ranks {
            self.pids.push(rank.pid());
            self.sockets.extend(rank.sockets());
        }
    }

    /// Fails if anything is left after all processes have ended.
    #[track_caller]
    pub(crate) fn must_be_gone(&self) {
        for pid in &self.pids {
            assert!(!is_running(*pid), "process {pid} is left");
        }
        let new: Vec<String> = names_in_dev_shm().difference(&self.shm).cloned().collect();
        assert!(new.is_empty(), "left in /dev/shm: {new:?}");
        // Field of the socket's number in each table, counted from the left.
        for (table, field) in [("tcp", 9), ("tcp6", 9), ("unix", 6)] {
            let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
            for line in text.lines().skip(1) {
                let number = line
                    .split_whitespace()
                    .nth(field)
                    .and_then(|field| field.parse::<u64>().ok());
                assert!(
                    number.is_none_or(|number| number == 0 || !self.sockets.contains(&number)),
                    "a {table} socket is left: {line}"
                );
            }
        }
    }
}

/// Whether a process is there and not just waiting to be counted.
pub(crate) fn is_running(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]);
        !matches!(state, Some(b'Z' | b'X'))
    })
}

/// Waits until a process that is no child of ours has ended.
#[track_caller]
pub(crate) fn wait_for_end_of(pid: u32) {
    let Some(id) = Pid::from_raw(pid.cast_signed()) else {
        panic!("{pid} is no process number");
    };
    let Ok(pidfd) = pidfd_open(id, PidfdFlags::empty()) else {
        return;
    };
    let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
    let limit = limit();
    let time = Timespec::try_from(limit).expect("a short time");
    let ended = poll(&mut fds, Some(&time)).expect("poll");
    assert!(ended == 1, "process {pid} is still there after {limit:?}");
}

fn names_in_dev_shm() -> BTreeSet<String> {
    fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}
