//! A second process that does what the first one says: one line in, one line out.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use core::sync::atomic::Ordering;
use hcomm_transport_abi::{Connect, STATUS_OK};
use rustix::thread::futex;

use super::{Device, End, Memory, Remote, host, notify, pattern, transfer, until};

/// Set in the second process.
const ROLE: &str = "HCOMM_SHM_TEST_AGENT";
/// Begins the lines that are answers; the test harness prints others.
const MARK: &str = "@@";

/// The second process, seen from the first.
pub(crate) struct Agent {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Agent {
    /// Starts this test binary again; its test `agent` calls [`serve`].
    pub(crate) fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "agent",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    /// Sends a line without waiting for its answer.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub(crate) fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "agent ended");
            if let Some((_, answer)) = line.split_once(MARK) {
                return answer.trim().to_owned();
            }
        }
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }

    /// Connects `end` with a fresh channel of the agent.
    pub(crate) fn connect(&mut self, device: &Device, end: &End, notifies: u32) {
        let blob = unhex(&self.ask(&format!("channel {notifies}")));
        self.tell(&format!("connect {}", hex(&end.blob())));
        until("connect", || {
            device.progress();
            (end.connect(&blob).unwrap() == Connect::Connected).then_some(())
        });
        assert_eq!(self.answer(), "connected");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Killed already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether this is the second process.
pub(crate) fn is_asked_for() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// The second process. Between lines it calls `progress`, unless it was told to stand still.
pub(crate) fn serve() {
    assert!(is_asked_for(), "run by other tests only");
    let (lines, inbox) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    let mut state = State {
        device: Device::open(),
        end: None,
        memory: Vec::new(),
        remote: Vec::new(),
        still: false,
    };
    while let Some(line) = state.next(&inbox) {
        let answer = state.obey(&line);
        let mut out = std::io::stdout().lock();
        writeln!(out, "{MARK}{answer}").unwrap();
        out.flush().unwrap();
    }
}

struct State {
    device: Device,
    end: Option<End>,
    memory: Vec<Memory>,
    remote: Vec<Remote>,
    still: bool,
}

impl State {
    fn next(&self, inbox: &Receiver<String>) -> Option<String> {
        loop {
            if self.still {
                return inbox.recv().ok();
            }
            match inbox.try_recv() {
                Ok(line) => return Some(line),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {
                    if !self.device.progress() {
                        std::thread::yield_now();
                    }
                }
            }
        }
    }

    fn end(&self) -> &End {
        self.end.as_ref().unwrap()
    }

    fn obey(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |index: usize| words[index].parse::<usize>().unwrap();
        match words[0] {
            "channel" => {
                self.end = Some(self.device.channel(number(1) as u32));
                hex(&self.end().blob())
            }
            "connect" => {
                let blob = unhex(words[1]);
                until("connect", || match self.end().connect(&blob) {
                    Ok(Connect::Connected) => Some("connected".to_owned()),
                    Ok(Connect::InProgress) => None,
                    Err(fault) => Some(fault.to_string()),
                })
            }
            // allocate or register BYTES SEED: memory with a pattern; its blob.
            "allocate" | "register" => {
                let memory = if words[0] == "allocate" {
                    self.device.allocate(number(1))
                } else {
                    self.device.register(number(1))
                };
                memory.put(0, &pattern(number(2) as u64, number(1)));
                let blob = hex(&self.device.export(&memory));
                self.memory.push(memory);
                blob
            }
            "deregister" => {
                self.device.deregister(&mut self.memory[number(1)]);
                "deregistered".to_owned()
            }
            // Deregisters, and sees whether the memory still changes.
            "retire" => {
                let memory = &mut self.memory[number(1)];
                self.device.deregister(memory);
                memory.put(0, &vec![0; memory.bytes]);
                for _ in 0..20 {
                    std::thread::yield_now();
                    if memory.get(0, memory.bytes).iter().any(|&byte| byte != 0) {
                        return "written to".to_owned();
                    }
                }
                "quiet".to_owned()
            }
            "bytes" => hex(&self.memory[number(1)].get(number(2), number(3))),
            "put" => {
                self.memory[number(1)].put(number(2), &unhex(words[3]));
                "put".to_owned()
            }
            // wait NOTIFY COUNT, with progress.
            "wait" => until("notify", || {
                self.device.progress();
                let (count, fingerprint) = self.end().notified(number(1) as u32);
                (count >= number(2) as u64).then(|| format!("{count} {fingerprint:?}"))
            }),
            // The same asleep on the bell, without progress.
            "sleep" => {
                let [sequence, sleepers, _] = host::bell();
                loop {
                    let seen = sequence.load(Ordering::Acquire);
                    sleepers.fetch_add(1, Ordering::SeqCst);
                    let (count, fingerprint) = self.end().notified(number(1) as u32);
                    if count >= number(2) as u64 {
                        sleepers.fetch_sub(1, Ordering::SeqCst);
                        return format!("{count} {fingerprint:?}");
                    }
                    // Interrupted or changed meanwhile: look again.
                    let _ = futex::wait(sequence, futex::Flags::empty(), seen, None);
                    sleepers.fetch_sub(1, Ordering::SeqCst);
                }
            }
            "peek" => {
                let (count, fingerprint) = self.end().notified(number(1) as u32);
                format!("{count} {fingerprint:?}")
            }
            "notify" => format!("{}", self.end().post(notify(number(1) as u32, [0; 2])).1),
            "still" => {
                self.still = true;
                "still".to_owned()
            }
            "go" => {
                self.still = false;
                "going".to_owned()
            }
            "import" => match self.end().import(&unhex(words[1]), || {
                self.device.progress();
            }) {
                Ok(remote) => {
                    self.remote.push(remote);
                    "imported".to_owned()
                }
                Err(fault) => fault.status.to_string(),
            },
            "stage" => {
                hcomm_transport_shm::hook::stage(&self.device.0);
                "staging".to_owned()
            }
            "staged" => self.device.counters().bytes_staged.to_string(),
            // move OPCODE MEMORY REMOTE OFFSET BYTES: from the beginning of the memory.
            "move" => {
                let local = self.memory[number(2)].pointer();
                let descriptor = transfer(
                    number(1) as u32,
                    local,
                    &self.remote[number(3)],
                    number(4) as u64,
                    number(5),
                );
                self.end().finish(&self.device, descriptor).to_string()
            }
            "destroy" => {
                for remote in self.remote.drain(..) {
                    self.end.as_ref().unwrap().release(remote);
                }
                self.end = None;
                assert_eq!(STATUS_OK, 0);
                "destroyed".to_owned()
            }
            other => panic!("no such order: {other}"),
        }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    // An empty word would be lost between spaces.
    bytes
        .iter()
        .fold("x".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix('x').unwrap();
    (0..digits.len() / 2)
        .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}
