//! One side of a pair: a device with channels, memories and imports, and an interpreter of
//! requests. The other side of a check runs the same code: driven by the same thread, on a thread
//! of its own, or in a process of its own.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::task::Poll;
use std::time::{Duration, Instant};

use hcomm_transport::{
    Channel, Connecting, Device, DeviceInfo, Import, Importing, Interest, Phase, SystemWaiter,
    WaitPolicy, Waiter, Watch,
};
use hcomm_types::{DataType, Deadline, Error, ErrorKind, ReduceOp};
use serde::{Deserialize, Serialize};

use crate::content::Content;
use crate::logs;
use crate::memory::{Held, Kind, Memory, Transfer, Work, load_mapped, store_mapped};
use crate::resources::Resources;

/// How long one request may wait for something. Far above what any machine needs: it ends hangs,
/// it measures nothing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Name of a channel, a memory or an import, chosen by who asks for it.
pub(crate) type Id = u32;

/// One piece of work, with names for things.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Op {
    Write(Ends, u64, Option<u32>),
    Read(Ends, u64),
    WriteReduce(Ends, u64, DataType, ReduceOp, Option<u32>),
    ReadReduce(Ends, u64, DataType, ReduceOp),
    Notify(u32, [u64; 2]),
}

/// The two ends of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ends {
    pub(crate) memory: Id,
    pub(crate) local: usize,
    pub(crate) import: Id,
    pub(crate) offset: u64,
    /// Whether the descriptor names the local region.
    pub(crate) name_region: bool,
}

/// What a side can be asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Makes an end; answers its blob.
    Create {
        channel: Id,
        notifies: u32,
        depth: u32,
    },
    /// Connects it; waits until it is.
    Connect { channel: Id, blob: Vec<u8> },
    /// Polls a connection so many times; answers whether it was connected in the end.
    TryConnect {
        channel: Id,
        blob: Vec<u8>,
        polls: u32,
    },
    /// Makes memory; answers its region's blob, if it has one.
    Memory {
        memory: Id,
        kind: Kind,
        bytes: usize,
    },
    /// Registers the same memory again; answers the blob.
    Register { memory: Id },
    /// Ends the registration; the memory stays.
    Deregister { memory: Id },
    /// Imports; waits until it is there.
    Import {
        import: Id,
        channel: Id,
        blob: Vec<u8>,
    },
    /// Fills memory.
    Fill {
        memory: Id,
        at: usize,
        len: usize,
        content: Content,
        start: u64,
    },
    /// Compares memory.
    Expect {
        memory: Id,
        at: usize,
        len: usize,
        content: Content,
        start: u64,
    },
    /// Fills the peer's memory through its mapping.
    FillMapped {
        import: Id,
        at: usize,
        len: usize,
        content: Content,
    },
    /// Compares the peer's memory through its mapping.
    ExpectMapped {
        import: Id,
        at: usize,
        len: usize,
        content: Content,
    },
    /// Posts all, again and again while the queue is full, and waits until all has completed.
    Post { channel: Id, ops: Vec<Op> },
    /// Posts once; answers how many were accepted and how many of them are pending.
    PostOnce { channel: Id, ops: Vec<Op> },
    /// Posts until it fails, or `Exhausted` after so many.
    PostUntilError { channel: Id, op: Op, times: u32 },
    /// Waits until everything pending has completed.
    Complete,
    /// Waits until everything accepted is visible at the peer.
    Flush { channel: Id },
    /// Waits until a notify has counted so far.
    Await { channel: Id, index: u32, count: u64 },
    /// The same, asleep: only a bell (or the device's descriptor, where it demands to be watched)
    /// wakes it.
    AwaitAsleep { channel: Id, index: u32, count: u64 },
    /// Records a notify by a store of the host after so many milliseconds; answers whether it
    /// could.
    Record {
        channel: Id,
        index: u32,
        fingerprint: [u64; 2],
        after_ms: u64,
    },
    /// Answers how the channel moves bytes, in words.
    Describe { channel: Id },
    /// Answers a notify's count and fingerprint now.
    Look { channel: Id, index: u32 },
    /// Answers the channel's state.
    Check { channel: Id },
    /// Waits until the channel's state is an error; answers it.
    AwaitLoss { channel: Id },
    /// From now on, calls nothing of the device unless a request does (or no longer so).
    Quiet(bool),
    /// Drops things.
    DropChannel(Id),
    /// Drops an import.
    DropImport(Id),
    /// Drops memory.
    DropMemory(Id),
    /// Posts with a new lane from now on: what is outstanding on the old one was dropped with its
    /// channel, or has failed.
    FreshLane,
    /// Drops everything, the device too, and opens it anew.
    Reopen,
    /// Counts descriptors, threads and mappings of the process.
    Resources,
    /// Answers the device's counters: descriptors, bytes written, bytes read, notifies.
    Counters,
    /// Answers what the plugin has logged at warning or above.
    Logs,
}

/// A good answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done,
    Blob(Vec<u8>),
    Imported { bytes: u64, mapped: bool },
    Posted { accepted: usize, pending: usize },
    Notified { count: u64, fingerprint: [u64; 2] },
    Connected(bool),
    Recorded(bool),
    Text(String),
    Counters(Option<[u64; 4]>),
    Resources(Resources),
    Logs(Vec<String>),
}

/// A bad one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// The kind of the library's error, by its name in the source; empty for the suite's own.
    pub(crate) kind: String,
    pub(crate) text: String,
}

impl Failure {
    fn own(text: impl Into<String>) -> Self {
        Self {
            kind: String::new(),
            text: text.into(),
        }
    }

    pub(crate) fn is(&self, kind: ErrorKind) -> bool {
        self.kind == format!("{kind:?}")
    }

    pub(crate) fn is_one_of(&self, kinds: &[ErrorKind]) -> bool {
        kinds.iter().any(|&kind| self.is(kind))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            kind: format!("{:?}", error.kind()),
            text: error.to_string(),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

pub(crate) type Answer = Result<Reply, Failure>;

/// One side. The order of the fields is the order of their end.
pub(crate) struct Side {
    imports: BTreeMap<Id, Import>,
    channels: BTreeMap<Id, Channel>,
    held: Held,
    memories: BTreeMap<Id, Memory>,
    device: Device,
    info: DeviceInfo,
    quiet: bool,
    waiter: SystemWaiter,
}

/// A request on its way.
pub(crate) struct Job {
    kind: JobKind,
    until: Instant,
    what: String,
}

enum JobKind {
    Ready(Answer),
    Connect(Connecting),
    TryConnect(Connecting, u32),
    Import(Id, Importing),
    Post {
        channel: Id,
        ops: Vec<Op>,
        at: usize,
    },
    PostUntilError {
        channel: Id,
        op: Op,
        left: u32,
    },
    Complete,
    Flush(Id),
    Await {
        channel: Id,
        index: u32,
        count: u64,
        asleep: bool,
    },
    Record {
        channel: Id,
        index: u32,
        fingerprint: [u64; 2],
        after_ms: u64,
    },
    AwaitLoss(Id),
}

impl Side {
    pub(crate) fn open(info: &DeviceInfo) -> Result<Self, Error> {
        let device = info.open()?;
        Ok(Self {
            imports: BTreeMap::new(),
            channels: BTreeMap::new(),
            held: Held::new(&device),
            memories: BTreeMap::new(),
            device,
            info: info.clone(),
            quiet: false,
            waiter: SystemWaiter::new(WaitPolicy {
                spins: 50,
                yields: 50,
                slice: Duration::from_millis(2),
                spare: 0,
            })?,
        })
    }

    pub(crate) fn begin(&mut self, request: Request) -> Job {
        let mut what = format!("{request:?}");
        if let Some((cut, _)) = what.char_indices().nth(160) {
            what.truncate(cut);
            what.push('…');
        }
        let kind = self
            .start(request)
            .unwrap_or_else(|failure| JobKind::Ready(Err(failure)));
        Job {
            kind,
            until: Instant::now() + PATIENCE,
            what,
        }
    }

    /// Moves a request on. Must not be called again after it answered.
    pub(crate) fn step(&mut self, job: &mut Job) -> Option<Answer> {
        let answer = self.advance(&mut job.kind).transpose();
        if answer.is_none() && Instant::now() >= job.until {
            return Some(Err(Failure::own(format!(
                "nothing came of {} within {} s{}",
                job.what,
                PATIENCE.as_secs(),
                self.standing(&job.kind)
            ))));
        }
        answer
    }

    /// Calls `progress`, unless the side is to be quiet.
    pub(crate) fn progress(&self) -> Result<bool, Error> {
        if self.quiet {
            return Ok(false);
        }
        self.device.progress()
    }

    pub(crate) fn device(&self) -> Device {
        self.device.clone()
    }

    /// Rests after a look that found nothing to do.
    pub(crate) fn pause(&self, phase: &mut Phase, line: Option<BorrowedFd<'_>>) {
        let interests: Vec<Interest<'_>> = line
            .map(|fd| Interest {
                fd,
                readable: true,
                writable: false,
            })
            .into_iter()
            .collect();
        let devices = [self.device.clone()];
        self.waiter.pause(
            phase,
            &mut Watch {
                until: Deadline::NEVER,
                interests: &interests,
                devices: if self.quiet { &[] } else { &devices },
                look: &mut || false,
            },
        );
    }

    fn start(&mut self, request: Request) -> Result<JobKind, Failure> {
        let done = || Ok(JobKind::Ready(Ok(Reply::Done)));
        let ready = |reply| Ok(JobKind::Ready(Ok(reply)));
        match request {
            Request::Create {
                channel,
                notifies,
                depth,
            } => {
                let made = self.device.create_channel(notifies, depth)?;
                let blob = made.blob()?;
                self.channels.insert(channel, made);
                ready(Reply::Blob(blob))
            }
            Request::Connect { channel, blob } => {
                Ok(JobKind::Connect(self.channel(channel)?.connect(blob)))
            }
            Request::TryConnect {
                channel,
                blob,
                polls,
            } => Ok(JobKind::TryConnect(
                self.channel(channel)?.connect(blob),
                polls,
            )),
            Request::Memory {
                memory,
                kind,
                bytes,
            } => {
                let made = Memory::new(&self.device, kind, bytes)?;
                if kind == Kind::Allocated {
                    if !made.is_page_aligned() {
                        return Err(Failure::own("allocated memory is not page-aligned"));
                    }
                    if made.load(0, bytes) != vec![0; bytes] {
                        return Err(Failure::own("allocated memory is not zeroed"));
                    }
                }
                let blob = made.region().map(|region| region.export()).transpose()?;
                self.memories.insert(memory, made);
                ready(blob.map_or(Reply::Done, Reply::Blob))
            }
            Request::Register { memory } => {
                let device = self.device.clone();
                let memory = self.memory_mut(memory)?;
                memory.register(&device)?;
                let region = memory.region().expect("registered just now");
                ready(Reply::Blob(region.export()?))
            }
            Request::Deregister { memory } => {
                self.memory_mut(memory)?.deregister();
                done()
            }
            Request::Import {
                import,
                channel,
                blob,
            } => Ok(JobKind::Import(import, self.channel(channel)?.import(blob))),
            Request::Fill {
                memory,
                at,
                len,
                content,
                start,
            } => {
                self.memory(memory)?.store(at, &content.render(start, len));
                done()
            }
            Request::Expect {
                memory,
                at,
                len,
                content,
                start,
            } => {
                let found = self.memory(memory)?.load(at, len);
                compare(&found, content, start)?;
                done()
            }
            Request::FillMapped {
                import,
                at,
                len,
                content,
            } => {
                if store_mapped(self.import(import)?, at, &content.render(0, len)) {
                    return done();
                }
                Err(Failure::own("the import has no address"))
            }
            Request::ExpectMapped {
                import,
                at,
                len,
                content,
            } => {
                let found = load_mapped(self.import(import)?, at, len)
                    .ok_or_else(|| Failure::own("the import has no address"))?;
                compare(&found, content, 0)?;
                done()
            }
            Request::Post { channel, ops } => Ok(JobKind::Post {
                channel,
                ops,
                at: 0,
            }),
            Request::PostOnce { channel, ops } => {
                let (accepted, pending) = self.post(channel, &ops)?;
                ready(Reply::Posted { accepted, pending })
            }
            Request::PostUntilError { channel, op, times } => Ok(JobKind::PostUntilError {
                channel,
                op,
                left: times,
            }),
            Request::Complete => Ok(JobKind::Complete),
            Request::Flush { channel } => Ok(JobKind::Flush(channel)),
            Request::Await {
                channel,
                index,
                count,
            } => Ok(JobKind::Await {
                channel,
                index,
                count,
                asleep: false,
            }),
            Request::AwaitAsleep {
                channel,
                index,
                count,
            } => Ok(JobKind::Await {
                channel,
                index,
                count,
                asleep: true,
            }),
            Request::Record {
                channel,
                index,
                fingerprint,
                after_ms,
            } => Ok(JobKind::Record {
                channel,
                index,
                fingerprint,
                after_ms,
            }),
            Request::Describe { channel } => ready(Reply::Text(self.channel(channel)?.describe())),
            Request::Look { channel, index } => {
                let word = self.channel(channel)?.notify(index)?;
                ready(Reply::Notified {
                    count: word.count(),
                    fingerprint: word.fingerprint(),
                })
            }
            Request::Check { channel } => {
                self.channel(channel)?.check()?;
                done()
            }
            Request::AwaitLoss { channel } => Ok(JobKind::AwaitLoss(channel)),
            Request::Quiet(quiet) => {
                self.quiet = quiet;
                done()
            }
            Request::DropChannel(id) => drop_one(&mut self.channels, id, "channel"),
            Request::DropImport(id) => drop_one(&mut self.imports, id, "import"),
            Request::DropMemory(id) => drop_one(&mut self.memories, id, "memory"),
            Request::FreshLane => {
                self.held = Held::new(&self.device);
                done()
            }
            Request::Reopen => {
                let fresh = Self::open(&self.info)?;
                *self = fresh;
                done()
            }
            Request::Resources => ready(Reply::Resources(
                Resources::count().map_err(|error| Failure::own(error.to_string()))?,
            )),
            Request::Counters => {
                ready(Reply::Counters(self.device.counters().map(|c| {
                    [c.descriptors, c.bytes_written, c.bytes_read, c.notifies]
                })))
            }
            Request::Logs => ready(Reply::Logs(logs::take())),
        }
    }

    fn advance(&mut self, kind: &mut JobKind) -> Result<Option<Reply>, Failure> {
        match kind {
            JobKind::Ready(answer) => answer.clone().map(Some),
            JobKind::Connect(connecting) => match connecting.poll() {
                Poll::Ready(result) => {
                    result?;
                    Ok(Some(Reply::Done))
                }
                Poll::Pending => Ok(None),
            },
            JobKind::TryConnect(connecting, polls) => match connecting.poll() {
                Poll::Ready(result) => {
                    result?;
                    Ok(Some(Reply::Connected(true)))
                }
                Poll::Pending if *polls == 0 => Ok(Some(Reply::Connected(false))),
                Poll::Pending => {
                    *polls -= 1;
                    Ok(None)
                }
            },
            JobKind::Import(id, importing) => match importing.poll() {
                Poll::Ready(result) => {
                    let import = result?;
                    let reply = Reply::Imported {
                        bytes: import.bytes(),
                        mapped: import.address().is_some(),
                    };
                    self.imports.insert(*id, import);
                    Ok(Some(reply))
                }
                Poll::Pending => Ok(None),
            },
            JobKind::Post { channel, ops, at } => {
                if *at < ops.len() {
                    let end = ops.len().min(*at + 64);
                    *at += self.post(*channel, &ops[*at..end])?.0;
                }
                if *at < ops.len() {
                    return Ok(None);
                }
                self.completed()
            }
            JobKind::PostUntilError { channel, op, left } => {
                // Failures may come from the post itself, from a completion, or from a flush.
                self.held.lane().result()?;
                self.post(*channel, &[*op])?;
                self.channel(*channel)?.flush()?;
                *left -= 1;
                if *left == 0 {
                    return Err(Failure::own("every post was accepted and none failed"));
                }
                Ok(None)
            }
            JobKind::Complete => self.completed(),
            JobKind::Flush(channel) => {
                let visible = self.channel(*channel)?.flush()?;
                Ok(visible.then_some(Reply::Done))
            }
            JobKind::Await {
                channel,
                index,
                count,
                asleep,
            } => {
                let word = self.channel(*channel)?.notify(*index)?;
                if *asleep && word.count() < *count {
                    self.sleep(&mut || word.count() >= *count)?;
                }
                // Count first: what the record carried is there when its count is seen.
                let seen = word.count();
                Ok((seen >= *count).then(|| Reply::Notified {
                    count: seen,
                    fingerprint: word.fingerprint(),
                }))
            }
            JobKind::Record {
                channel,
                index,
                fingerprint,
                after_ms,
            } => {
                // Leaves the other side the time to fall asleep.
                std::thread::sleep(Duration::from_millis(*after_ms));
                let recorded = self.channel(*channel)?.record(*index, *fingerprint);
                Ok(Some(Reply::Recorded(recorded)))
            }
            JobKind::AwaitLoss(channel) => match self.channel(*channel)?.check() {
                Ok(()) => Ok(None),
                Err(error) => Err(error.into()),
            },
        }
    }

    /// One sleep that only an arrival (or the end of the check's patience) ends.
    fn sleep(&self, arrived: &mut dyn FnMut() -> bool) -> Result<(), Failure> {
        let waiter = SystemWaiter::new(WaitPolicy {
            spins: 0,
            yields: 0,
            slice: Duration::from_secs(600),
            spare: 0,
        })?;
        let mut broken = None;
        let mut look = || {
            arrived()
                || self.progress().unwrap_or_else(|error| {
                    broken = Some(error);
                    true
                })
        };
        let devices = [self.device.clone()];
        let until = Deadline::after(waiter.now(), PATIENCE);
        waiter.pause(
            &mut Phase::default(),
            &mut Watch {
                until,
                interests: &[],
                devices: if self.quiet { &[] } else { &devices },
                look: &mut look,
            },
        );
        if until.passed(waiter.now()) {
            return Err(Failure::own(format!(
                "it slept for {} s, and nothing woke it",
                PATIENCE.as_secs()
            )));
        }
        broken.map_or(Ok(()), |error| Err(error.into()))
    }

    fn completed(&mut self) -> Result<Option<Reply>, Failure> {
        // Completions come with progress, of a quiet side too: it asked for them.
        if self.quiet {
            self.device.progress()?;
        }
        self.held.lane().result()?;
        let drained = self.held.drained().map_err(Failure::own)?;
        Ok(drained.then_some(Reply::Done))
    }

    fn post(&mut self, channel: Id, ops: &[Op]) -> Result<(usize, usize), Failure> {
        let channel = self
            .channels
            .get(&channel)
            .ok_or_else(|| no_such("channel", channel))?;
        let transfer = |ends: &Ends, notify| {
            Ok::<_, Failure>(Transfer {
                memory: self
                    .memories
                    .get(&ends.memory)
                    .ok_or_else(|| no_such("memory", ends.memory))?,
                local: ends.local,
                remote: self
                    .imports
                    .get(&ends.import)
                    .ok_or_else(|| no_such("import", ends.import))?,
                offset: ends.offset,
                notify,
                name_region: ends.name_region,
            })
        };
        let batch = ops
            .iter()
            .map(|op| {
                Ok(match op {
                    Op::Write(ends, bytes, notify) => Work::Write(transfer(ends, *notify)?, *bytes),
                    Op::Read(ends, bytes) => Work::Read(transfer(ends, None)?, *bytes),
                    Op::WriteReduce(ends, count, dtype, redop, notify) => {
                        Work::WriteReduce(transfer(ends, *notify)?, *count, *dtype, *redop)
                    }
                    Op::ReadReduce(ends, count, dtype, redop) => {
                        Work::ReadReduce(transfer(ends, None)?, *count, *dtype, *redop)
                    }
                    Op::Notify(index, fingerprint) => Work::Notify(*index, *fingerprint),
                })
            })
            .collect::<Result<Vec<_>, Failure>>()?;
        let posted = self.held.post(channel, &batch)?;
        if posted.pending > posted.accepted || posted.accepted > ops.len() {
            return Err(Failure::own(format!(
                "post of {} accepted {} with {} pending",
                ops.len(),
                posted.accepted,
                posted.pending
            )));
        }
        Ok((posted.accepted, posted.pending))
    }

    fn standing(&self, kind: &JobKind) -> String {
        match kind {
            JobKind::Await { channel, index, .. } => self
                .channel(*channel)
                .and_then(|channel| Ok(channel.notify(*index)?))
                .map(|word| format!("; the notify stands at {}", word.count()))
                .unwrap_or_default(),
            JobKind::Post { ops, at, .. } => format!(
                "; {at} of {} accepted, {} of {} completed",
                ops.len(),
                self.held.lane().completed(),
                self.held.expected()
            ),
            JobKind::Complete => format!(
                "; {} of {} completed",
                self.held.lane().completed(),
                self.held.expected()
            ),
            _ => String::new(),
        }
    }

    fn channel(&self, id: Id) -> Result<&Channel, Failure> {
        self.channels.get(&id).ok_or_else(|| no_such("channel", id))
    }

    fn import(&self, id: Id) -> Result<&Import, Failure> {
        self.imports.get(&id).ok_or_else(|| no_such("import", id))
    }

    fn memory(&self, id: Id) -> Result<&Memory, Failure> {
        self.memories.get(&id).ok_or_else(|| no_such("memory", id))
    }

    fn memory_mut(&mut self, id: Id) -> Result<&mut Memory, Failure> {
        self.memories
            .get_mut(&id)
            .ok_or_else(|| no_such("memory", id))
    }
}

fn drop_one<T>(map: &mut BTreeMap<Id, T>, id: Id, what: &str) -> Result<JobKind, Failure> {
    map.remove(&id)
        .map(|_| JobKind::Ready(Ok(Reply::Done)))
        .ok_or_else(|| no_such(what, id))
}

fn no_such(what: &str, id: Id) -> Failure {
    Failure::own(format!("the check names a {what} {id} that is not there"))
}

fn compare(found: &[u8], content: Content, start: u64) -> Result<(), Failure> {
    let expected = content.render(start, found.len());
    if found == expected {
        return Ok(());
    }
    let wrong = || found.iter().zip(&expected).filter(|(a, b)| a != b).count();
    found
        .iter()
        .zip(&expected)
        .position(|(a, b)| a != b)
        .map_or(Ok(()), |at| {
            Err(Failure::own(format!(
                "byte {at} is {:#04x}, expected {:#04x} of {content:?} from {start}; {} of {} bytes differ",
                found[at],
                expected[at],
                wrong(),
                found.len()
            )))
        })
}
