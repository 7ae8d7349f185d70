//! A rank is killed at each step of each kind of transfer: the others name it, what it had no
//! business with is unchanged, they make a new communicator, and nothing is left.
//!
//! Rank 1 is the victim. Between its calls it ends itself where it was told to ([`POINTS`]); inside
//! of them ([`INSIDE`]) it is killed by the test at a moment that nobody knows, and while all close
//! ([`CLOSING`]) it ends itself so long after it has begun. Rank 0 is its partner, rank 2 looks on.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use hcomm::{
    BatchOp, Communicator, CpuTs, DataType, Engine, Error, Options, PeerLink, Rank, ReduceOp,
    Registered, RemoteSlice, RootInfo, RootListener, Settings, Slice, Thread, Window,
};
use hcomm_ctrl::Outside;
use rustix::process::{Signal, getpid, kill_process};

use crate::collectives::all_reduce;
use crate::death::all_name;
use crate::job::{Job, Process, Traces};
use crate::leaks::Holdings;
use crate::programs::{CLOSED_MEMORY, UP, fail};
use crate::random::{Random, mix};
use crate::tally::Tally;

const RANKS: u32 = 3;
const PARTNER: Rank = Rank(0);
const VICTIM: Rank = Rank(1);

/// Steps of the victim, by what it does. The points of one kind are counted from 0, before the
/// first call.
const POINTS: [(&str, usize); 38] = [
    ("write", 3),
    ("write_with_notify", 2),
    ("write_user", 3),
    ("write_staged", 3),
    ("write_reduce", 3),
    ("write_window", 3),
    ("batch", 2),
    ("read", 3),
    ("read_user", 3),
    ("read_staged", 3),
    ("read_reduce", 2),
    ("is_written", 2),
    ("is_written_user", 2),
    ("is_written_staged", 2),
    ("is_read_user", 2),
    ("is_read_staged", 2),
    ("send", 3),
    ("send_large", 2),
    ("send_half", 3),
    ("send_direct", 2),
    ("receive", 2),
    ("receive_large", 2),
    ("receive_half", 3),
    ("receive_direct", 2),
    ("exchange", 4),
    ("handshake_send", 3),
    ("handshake_send_large", 2),
    ("handshake_send_half", 3),
    ("handshake_receive", 2),
    ("handshake_receive_large", 2),
    ("handshake_receive_half", 3),
    ("worker_write", 3),
    ("worker_send", 3),
    ("worker_receive", 3),
    ("asleep", 1),
    ("register", 3),
    ("open_channel", 2),
    ("window", 2),
];

/// What the victim does over and over until it is killed.
const INSIDE: [&str; 27] = [
    "write_with_notify",
    "write_user",
    "write_reduce",
    "batch",
    "read",
    "write_staged",
    "read_user",
    "read_staged",
    "read_reduce",
    "is_written_user",
    "is_written_staged",
    "is_read_user",
    "is_read_staged",
    "send_large",
    "receive_large",
    "send_direct",
    "receive_direct",
    "handshake_send_direct",
    "exchange",
    "handshake_send",
    "handshake_send_large",
    "handshake_receive_large",
    "worker_write",
    "worker_send",
    "worker_receive",
    "open_channel",
    "window",
];

/// What the partner has left to the victim when all close.
const CLOSING: [&str; 3] = ["close", "close_sent", "close_staged"];

/// What a survivor prints when it has been told.
const TOLD: &str = "TOLD";

/// Bytes of each memory; the victim's transfers touch the first half.
const MEMORY: usize = 4 << 20;
const HALF: usize = MEMORY / 2;
const NOTIFIES: u32 = 4;

/// Pieces of a batch, and bytes of each.
const PIECES: usize = 30;
const PIECE: usize = 60_001;

type Outcome = Result<(), Error>;

/// A rank that takes part.
struct Part<'a> {
    comm: &'a Communicator,
    kind: &'a str,
    /// Where the victim ends itself; none if it is killed.
    end_at: Option<usize>,
    next_point: Cell<usize>,
    /// Driven by a worker for some kinds.
    thread: Thread,
    ours: Slice,
    user: Registered<u8>,
    window: Window,
    link: Option<PeerLink>,
    /// What this rank's memory held at first, and the victim's.
    pattern: Vec<u8>,
    victims: Vec<u8>,
}

impl<'a> Part<'a> {
    fn new(comm: &'a Communicator, kind: &'a str, end_at: Option<usize>) -> hcomm::Result<Self> {
        let rank = comm.rank();
        let ours = comm.allocate("ours", MEMORY)?;
        let user = comm.register("user", vec![0u8; MEMORY])?;
        let window = comm.window("symmetric", MEMORY)?;
        for (number, memory) in [&ours, user.slice()?, window.local()]
            .into_iter()
            .enumerate()
        {
            memory.copy_from(&pattern(rank, number))?;
        }
        let link = match rank {
            PARTNER => Some(comm.open_channel(VICTIM, NOTIFIES)?),
            VICTIM => Some(comm.open_channel(PARTNER, NOTIFIES)?),
            _ => None,
        };
        let algorithm = kind.starts_with("handshake_").then_some("handshake");
        comm.force_algorithm(algorithm)?;
        comm.barrier()?;
        let engine = if kind.starts_with("worker_") {
            Engine::CpuTs(CpuTs::worker(0))
        } else {
            Engine::Cpu
        };
        Ok(Self {
            comm,
            kind,
            end_at,
            next_point: Cell::new(0),
            thread: comm.thread_on(engine, 0)?,
            ours,
            user,
            window,
            link,
            pattern: pattern(rank, 0),
            victims: pattern(VICTIM, 0),
        })
    }

    /// Another step of the victim; its last one, if the test says so.
    fn point(&self) {
        let number = self.next_point.get();
        self.next_point.set(number + 1);
        if self.end_at == Some(number) {
            end();
        }
    }

    fn link(&self) -> &PeerLink {
        self.link.as_ref().expect("a channel between the two")
    }

    fn local(&self, number: usize, bytes: usize) -> Slice {
        let whole = match number {
            0 => &self.ours,
            1 => self.user.slice().expect("registered"),
            _ => self.window.local(),
        };
        whole.sub(0..bytes).expect("inside")
    }

    fn remote(&self, number: usize, bytes: usize) -> RemoteSlice {
        let peer = self.link().peer;
        match number {
            0 => self.link().memory("ours"),
            1 => self.link().memory("user"),
            _ => self.window.of(peer).cloned(),
        }
        .and_then(|whole| whole.sub(0..bytes as u64))
        .expect("inside")
    }

    /// The victim's transfers and its partner's, until an error ends them.
    fn run(&self) -> Outcome {
        match self.comm.rank() {
            VICTIM if self.end_at.is_some() => {
                self.victim()?;
                panic!(
                    "rank {VICTIM} outlives `{}`: it has fewer points",
                    self.kind
                );
            }
            VICTIM => loop {
                self.victim()?;
                println!("{UP}");
            },
            PARTNER if self.end_at.is_some() => self.partner(),
            PARTNER => loop {
                self.partner()?;
            },
            _ if self.kind == "window" && self.end_at.is_none() => loop {
                self.make_window()?;
            },
            _ if self.kind == "window" => self.make_window(),
            _ => Ok(()),
        }?;
        self.comm.barrier()
    }

    /// Number of the memory that is written to or read from.
    fn memory(&self) -> usize {
        if self.kind.ends_with("_user") || self.kind.ends_with("_staged") {
            1
        } else if self.kind.ends_with("_window") {
            2
        } else {
            0
        }
    }

    /// What the victim calls.
    fn victim(&self) -> Outcome {
        let (thread, comm) = (&self.thread, self.comm);
        let channel = &self.link().channel;
        let large = HALF - 3;
        // Of this one, the result is the same however often it is done.
        let (dtype, op) = (DataType::U8, ReduceOp::Max);
        match self.kind {
            "write" | "write_user" | "write_staged" | "write_window" | "worker_write" => {
                let number = self.memory();
                let (dst, src) = (self.remote(number, large), self.local(0, large));
                self.point();
                if number == 2 {
                    thread.copy(&dst, &src)?;
                } else {
                    thread.write(channel, &dst, &src)?;
                }
                self.point();
                thread.record(channel, 0)?;
                thread.synchronize(None)?;
            }
            "write_with_notify" => {
                self.point();
                let (dst, src) = (self.remote(0, large), self.local(0, large));
                thread.write_with_notify(channel, &dst, &src, 0)?;
                thread.synchronize(None)?;
            }
            "write_reduce" => {
                let (dst, src) = (self.remote(0, large), self.local(0, large));
                self.point();
                thread.write_reduce(channel, &dst, &src, dtype, op, None)?;
                self.point();
                thread.record(channel, 0)?;
                thread.synchronize(None)?;
            }
            "batch" => {
                let pieces: Vec<BatchOp> = (0..PIECES)
                    .map(|of| {
                        let range = of * PIECE..(of + 1) * PIECE;
                        let far = range.start as u64..range.end as u64;
                        let src = self.local(of % 2, large).sub(range).expect("inside");
                        let dst = self.remote(of % 2, large).sub(far).expect("inside");
                        let notify = (of + 1 == PIECES).then_some(0);
                        BatchOp::Write { dst, src, notify }
                    })
                    .collect();
                self.point();
                thread.batch(channel, &pieces)?;
                thread.synchronize(None)?;
            }
            "read_reduce" => {
                self.point();
                let (dst, src) = (self.local(0, large), self.remote(0, large));
                thread.read_reduce(channel, &dst, &src, dtype, op, Some(0))?;
                thread.synchronize(None)?;
            }
            "read" | "read_user" | "read_staged" => {
                let number = self.memory();
                let (dst, src) = (self.local(0, large), self.remote(number, large));
                self.point();
                thread.read(channel, &dst, &src)?;
                self.point();
                thread.read_with_notify(channel, &dst, &src, 0)?;
                thread.synchronize(None)?;
            }
            "is_written" | "is_written_user" | "is_written_staged" | "is_read_user"
            | "is_read_staged" => {
                self.point();
                thread.record(channel, 1)?;
                thread.wait_blocking(channel, 0, None)?;
            }
            "send" | "handshake_send" => {
                self.point();
                comm.send(&self.pattern[..7], PARTNER)?;
                self.point();
                comm.send(&self.pattern[..3000], PARTNER)?;
            }
            "send_large" | "handshake_send_large" => {
                self.point();
                comm.send(&self.pattern, PARTNER)?;
            }
            // Where the receiver waits, the sender writes it to its memory.
            "send_direct" | "handshake_send_direct" => {
                self.point();
                comm.send_slice(&self.local(0, large), PARTNER, dtype)?;
            }
            // What is put on a queue goes as far as it can at once: the ring is full, or it is
            // asked whether the message may come.
            "send_half" | "handshake_send_half" | "worker_send" => {
                self.point();
                comm.send_on(thread, &self.ours, PARTNER, dtype)?;
                self.point();
                thread.synchronize(None)?;
            }
            "receive" | "handshake_receive" => {
                self.point();
                comm.recv(&mut [0u8; 7], PARTNER)?;
            }
            "receive_large" | "handshake_receive_large" => {
                self.point();
                comm.recv(&mut vec![0u8; MEMORY], PARTNER)?;
            }
            "receive_direct" => {
                self.point();
                comm.recv_slice(&self.local(2, large), PARTNER, dtype)?;
            }
            "receive_half" | "handshake_receive_half" | "worker_receive" => {
                self.point();
                comm.recv_on(thread, self.window.local(), PARTNER, dtype)?;
                self.point();
                thread.synchronize(None)?;
            }
            // Short enough for the line that both sides write.
            "exchange" => {
                self.point();
                comm.send(&self.pattern[..8], PARTNER)?;
                self.point();
                let mut answer = [0u8; 8];
                comm.recv(&mut answer, PARTNER)?;
                self.point();
                comm.send(&answer, PARTNER)?;
            }
            "asleep" => {
                let at = self.end_at;
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(300));
                    if at == Some(0) {
                        end();
                    }
                });
                thread.wait_blocking(channel, 0, None)?;
            }
            "register" => {
                self.point();
                let mut more = comm.register("more", vec![7u8; 100_000])?;
                self.point();
                more.deregister()?;
            }
            "open_channel" => {
                self.point();
                comm.open_channel(PARTNER, NOTIFIES)?;
            }
            "window" => {
                self.point();
                self.make_window()?;
            }
            kind => panic!("no kind `{kind}`"),
        }
        self.point();
        Ok(())
    }

    /// What its partner calls meanwhile.
    fn partner(&self) -> Outcome {
        let (thread, comm) = (&self.thread, self.comm);
        let channel = &self.link().channel;
        let large = HALF - 3;
        match self.kind {
            "write" | "write_user" | "write_staged" | "write_window" | "write_with_notify"
            | "worker_write" => {
                let number = self.memory();
                thread.wait_blocking(channel, 0, None)?;
                // It was told of, so all of it is there, whatever became of the victim.
                self.must_be(number, large, &self.victims);
            }
            "write_reduce" => {
                thread.wait_blocking(channel, 0, None)?;
                let both = self.pattern.iter().zip(&self.victims);
                let must: Vec<u8> = both.map(|(mine, theirs)| *mine.max(theirs)).collect();
                self.must_be(0, large, &must);
            }
            "batch" => {
                thread.wait_blocking(channel, 0, None)?;
                let must = [&self.victims, &pattern(VICTIM, 1)];
                for of in 0..PIECES {
                    let range = of * PIECE..(of + 1) * PIECE;
                    let mut found = vec![0; PIECE];
                    let place = self
                        .local(of % 2, large)
                        .sub(range.clone())
                        .expect("inside");
                    place.copy_to(&mut found)?;
                    assert!(found == must[of % 2][range], "piece {of}");
                }
            }
            "read" | "read_user" | "read_staged" | "read_reduce" => {
                thread.wait_blocking(channel, 0, None)?;
                let number = self.memory();
                self.must_be(number, large, &pattern(PARTNER, number));
            }
            "is_written" | "is_written_user" | "is_written_staged" | "is_read_user"
            | "is_read_staged" => {
                thread.wait_blocking(channel, 1, None)?;
                let number = self.memory();
                let (near, far) = (self.local(0, large), self.remote(number, large));
                for _ in 0..5 {
                    if self.kind.starts_with("is_read") {
                        thread.read(channel, &near, &far)?;
                        thread.synchronize(None)?;
                        self.must_be(0, large, &pattern(VICTIM, number));
                    } else {
                        thread.write(channel, &far, &near)?;
                    }
                }
                thread.record(channel, 0)?;
                thread.synchronize(None)?;
            }
            "send" | "handshake_send" => {
                let mut found = [0; 3000];
                comm.recv(&mut found[..7], VICTIM)?;
                assert!(found[..7] == self.victims[..7]);
                comm.recv(&mut found, VICTIM)?;
                assert!(found == self.victims[..3000]);
            }
            "send_large"
            | "send_half"
            | "handshake_send_large"
            | "handshake_send_half"
            | "worker_send" => {
                let mut found = vec![0; MEMORY];
                comm.recv(&mut found, VICTIM)?;
                assert!(found == self.victims);
            }
            "send_direct" | "handshake_send_direct" => {
                let target = self.local(2, large);
                target.copy_from(&vec![0; large])?;
                comm.recv_slice(&target, VICTIM, DataType::U8)?;
                self.must_be(2, large, &self.victims);
            }
            "receive_direct" => {
                comm.send_slice(&self.local(0, large), VICTIM, DataType::U8)?;
                self.must_be(0, large, &self.pattern);
            }
            "receive" | "handshake_receive" => comm.send(&[7u8; 7], VICTIM)?,
            "receive_large"
            | "receive_half"
            | "handshake_receive_large"
            | "handshake_receive_half"
            | "worker_receive" => {
                comm.send(&vec![7u8; MEMORY], VICTIM)?;
            }
            "exchange" => {
                let mut found = [0; 8];
                comm.recv(&mut found, VICTIM)?;
                assert!(found == self.victims[..8]);
                let answer = found.map(|byte| !byte);
                comm.send(&answer, VICTIM)?;
                comm.recv(&mut found, VICTIM)?;
                assert!(found == answer);
            }
            "open_channel" => drop(comm.open_channel(VICTIM, NOTIFIES)?),
            "window" => self.make_window()?,
            _ => {}
        }
        Ok(())
    }

    /// What the partner has not finished with the victim when it closes.
    fn leave_to_victim(&self) -> Outcome {
        if self.comm.rank() != PARTNER {
            return Ok(());
        }
        match self.kind {
            // More than the ring holds: the rest would go when the victim receives it.
            "close_sent" => (self.comm)
                .send_on(&self.thread, &self.ours, VICTIM, DataType::U8)
                .map(drop),
            "close_staged" => {
                let large = HALF - 3;
                let channel = &self.link().channel;
                let (near, far) = (self.local(0, large), self.remote(1, large));
                self.thread.write(channel, &far, &near)
            }
            _ => Ok(()),
        }
    }

    fn make_window(&self) -> Outcome {
        self.comm.window("another", 100_000).map(drop)
    }

    fn must_be(&self, number: usize, bytes: usize, must: &[u8]) {
        let mut found = vec![0; bytes];
        self.local(number, bytes)
            .copy_to(&mut found)
            .expect("as long");
        assert!(found == must[..bytes], "what was told of is not all there");
    }

    /// The second half of all memory is nobody's target.
    fn must_be_untouched(&self) {
        let rank = self.comm.rank();
        let memories = [
            &self.ours,
            self.user.slice().expect("registered"),
            self.window.local(),
        ];
        for (number, memory) in memories.into_iter().enumerate() {
            let mut found = vec![0; HALF];
            let half = memory.sub(HALF..MEMORY).expect("inside");
            half.copy_to(&mut found).expect("as long");
            assert!(
                found == pattern(rank, number)[HALF..],
                "memory {number} of rank {rank} was touched where nobody wrote"
            );
        }
    }
}

fn end() -> ! {
    kill_process(getpid(), Signal::KILL).expect("a signal to oneself");
    unreachable!("nobody survives that signal")
}

/// What a rank's memory holds at first.
fn pattern(rank: Rank, number: usize) -> Vec<u8> {
    let mut random = Random::new(mix(u64::from(rank.0) * 8 + number as u64));
    let mut bytes = Vec::with_capacity(MEMORY);
    while bytes.len() < MEMORY {
        bytes.extend_from_slice(&random.next().to_ne_bytes());
    }
    bytes
}

/// What each process runs.
pub(crate) fn program() {
    // What a process opens once and keeps: the bell, the transports.
    for comm in Communicator::init_all(2).expect("init_all") {
        drop(comm);
    }
    let before = Holdings::now();
    let comm = Communicator::from_env().unwrap_or_else(|error| fail("init", &error));
    let rank = comm.rank();
    let kind = std::env::var("ITEST_KIND").expect("ITEST_KIND");
    let end_at = std::env::var("ITEST_POINT")
        .ok()
        .map(|text| text.parse().expect("a number"));
    let part = Part::new(&comm, &kind, end_at).unwrap_or_else(|error| fail("set-up", &error));
    let error = if CLOSING.contains(&&*kind) {
        comm.barrier()
            .unwrap_or_else(|error| fail("before all close", &error));
        part.must_be_untouched();
        if rank == VICTIM {
            drop(part);
            end_soon();
            comm.close().unwrap_or_else(|error| fail(&kind, &error));
            loop {
                thread::park();
            }
        }
        let left = part.leave_to_victim();
        drop(part);
        let closed = comm.close();
        left.and(closed).err()
    } else {
        let outcome = part.run();
        part.must_be_untouched();
        drop(part);
        drop(comm);
        Some(outcome.expect_err("a barrier with a rank that is dead"))
    };
    println!("{TOLD}");
    make_another(rank);
    let after = Holdings::now();
    assert_eq!(
        (&before.fds, before.threads),
        (&after.fds, after.threads),
        "left behind"
    );
    if let Some(error) = error {
        fail(&kind, &error);
    }
}

/// Ends this process so long after this call.
fn end_soon() {
    let text = std::env::var("ITEST_MOMENT").expect("ITEST_MOMENT");
    let moment = Duration::from_micros(text.parse().expect("microseconds"));
    let begun = Instant::now();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        tell.send(()).expect("who waits");
        thread::sleep(moment.saturating_sub(begun.elapsed()));
        end();
    });
    told.recv().expect("the thread");
}

/// The two that are left make a communicator without the third.
fn make_another(rank: Rank) {
    let file = PathBuf::from(std::env::var("ITEST_ROOT_FILE").expect("ITEST_ROOT_FILE"));
    let options = Options::new(Settings::default());
    let comm = if rank == PARTNER {
        let address = "127.0.0.1:0".parse().expect("an address");
        let listener =
            RootListener::bind(&Outside::system(), options.settings(), address, &[]).expect("bind");
        let unfinished = file.with_extension("new");
        fs::write(&unfinished, listener.info().to_string()).expect("a file for the root info");
        fs::rename(&unfinished, &file).expect("a file for the root info");
        Communicator::from_root_listener(listener, 2, &options)
    } else {
        Communicator::from_root(&root_info(&file), Rank(1), 2, &options)
    }
    .unwrap_or_else(|error| fail("another", &error));
    all_reduce::<f32>(&comm, ReduceOp::Sum, 10_007, false);
    comm.close().unwrap_or_else(|error| fail("another", &error));
}

/// Waits for the file; the test's watchdog ends it.
fn root_info(file: &Path) -> RootInfo {
    loop {
        if let Ok(text) = fs::read_to_string(file) {
            return text.trim().parse().expect("a root info");
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// A job of one kind.
fn job(kind: &str, folder: &Path) -> Job {
    let closed = if kind.ends_with("_staged") {
        "0,1,2"
    } else {
        ""
    };
    Job::new("steps", RANKS)
        .set("ITEST_KIND", kind)
        .set("ITEST_ROOT_FILE", folder.join("root").display())
        .set(CLOSED_MEMORY, closed)
}

/// How long it takes from the victim's end until all others have been told.
fn until_told(ranks: &mut [Process]) -> Duration {
    ranks[VICTIM.index()].wait();
    let ended = Instant::now();
    for (rank, process) in ranks.iter().enumerate() {
        if rank != VICTIM.index() {
            process.wait_for_text(TOLD);
        }
    }
    ended.elapsed()
}

/// Runs one kind; `kill` ends the victim if it does not do so by itself.
fn run(kind: &str, point: Option<usize>, kill: impl FnOnce(&Process)) -> Duration {
    let mut traces = Traces::new();
    let folder = tempfile::tempdir().expect("a folder");
    let mut job = job(kind, folder.path());
    if let Some(point) = point {
        job = job.set("ITEST_POINT", point);
    }
    let mut ranks = job.start();
    traces.note(&ranks);
    kill(&ranks[VICTIM.index()]);
    let took = until_told(&mut ranks);
    let context = format!("{kind} at {point:?}");
    all_name(&mut ranks, VICTIM.index(), &context);
    traces.must_be_gone();
    took
}

/// All close, and the victim ends a moment after it has begun.
fn run_close(kind: &str, moment: Duration) -> Duration {
    let mut traces = Traces::new();
    let folder = tempfile::tempdir().expect("a folder");
    let job = job(kind, folder.path()).set("ITEST_MOMENT", moment.as_micros());
    let mut ranks = job.start();
    traces.note(&ranks);
    let took = until_told(&mut ranks);
    let context = format!("{kind} after {moment:?}");
    let partner = &mut ranks[PARTNER.index()];
    let code = partner.wait().code();
    // Who has sent what nobody will receive is told; who owes nothing is not. A write may have
    // been done before the end.
    if kind == "close_sent" || kind == "close_staged" && code != Some(0) {
        all_name(&mut ranks[..2], VICTIM.index(), &context);
    } else {
        partner.wait_for_code(0);
    }
    ranks[2].wait_for_code(0);
    traces.must_be_gone();
    took
}

fn count(tally: &mut Tally, kind: &str, took: Duration) {
    tally.add("kills", 1);
    tally.add(kind, 1);
    tally.at_least("slowest_to_be_told_in_ms", took.as_millis() as u64);
}

fn at_points(every: usize, tally: &mut Tally) {
    let all = POINTS
        .into_iter()
        .flat_map(|(kind, points)| (0..points).map(move |point| (kind, point)));
    for (kind, point) in all.step_by(every) {
        println!("{kind}: point {point}");
        let took = run(kind, Some(point), |_| {});
        count(tally, kind, took);
    }
}

fn at_moments(first: u64, kills: usize, tally: &mut Tally) {
    for number in 0..kills {
        let seed = first + number as u64;
        let mut random = Random::new(mix(seed));
        let kind = INSIDE[seed as usize % INSIDE.len()];
        let moment = Duration::from_micros(random.below(20_000) as u64);
        println!("{kind}: seed {seed}, killed after {moment:?}");
        let took = run(kind, None, |victim| {
            victim.wait_for_text(UP);
            thread::sleep(moment);
            victim.signal(Signal::KILL);
        });
        count(tally, &format!("inside_{kind}"), took);
    }
}

/// Most of them while it closes, which takes some hundreds of microseconds.
fn while_closing(first: u64, kills: usize, tally: &mut Tally) {
    for number in 0..kills {
        let seed = first + number as u64;
        let mut random = Random::new(mix(seed));
        let kind = CLOSING[seed as usize % CLOSING.len()];
        let most = 1 << (4 + random.below(9));
        let moment = Duration::from_micros(random.below(most) as u64);
        println!("{kind}: seed {seed}, killed {moment:?} after it began");
        let took = run_close(kind, moment);
        count(tally, &format!("inside_{kind}"), took);
    }
}

fn seed() -> u64 {
    std::env::var("ITEST_SEED").map_or(1, |text| text.parse().expect("a seed"))
}

#[test]
fn killing_a_rank_between_two_calls_harms_nobody() {
    at_points(13, &mut Tally::default());
}

#[test]
fn killing_a_rank_inside_a_call_harms_nobody() {
    at_moments(seed(), 4, &mut Tally::default());
}

#[test]
fn killing_a_rank_while_all_close_harms_nobody() {
    while_closing(seed(), CLOSING.len(), &mut Tally::default());
}

#[test]
#[ignore = "soak"]
fn soak_kills_at_every_step() {
    let kills = std::env::var("ITEST_KILLS").map_or(300, |text| text.parse().expect("a number"));
    let mut tally = Tally::default();
    at_points(1, &mut tally);
    at_moments(1000 * seed(), kills - kills / 6, &mut tally);
    while_closing(1000 * seed(), kills / 6, &mut tally);
    tally.conclude();
}
