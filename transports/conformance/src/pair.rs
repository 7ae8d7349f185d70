//! Two sides that talk: the near one is driven here, the far one by the same thread, by another
//! thread, or by another process.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hcomm_transport::{Capabilities, Device, DeviceInfo, Phase};
use serde::{Deserialize, Serialize};

use crate::content::Content;
use crate::line::Line;
use crate::logs;
use crate::memory::Kind;
use crate::runner::{ROLE, Role, Task};
use crate::side::{Answer, Ends, Failure, Id, Op, PATIENCE, Reply, Request, Side};
use crate::subject::Subject;
use crate::verdict::{Stop, fail};

/// Where the two ends of a pair are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Placement {
    /// One OS thread drives both, as `init_all` does.
    OneThread,
    /// Each has its thread.
    TwoThreads,
    /// Each has its process.
    TwoProcesses,
}

impl Placement {
    pub(crate) const ALL: [Self; 3] = [Self::OneThread, Self::TwoThreads, Self::TwoProcesses];

    /// The promise it needs.
    pub(crate) const fn needs(self) -> Capabilities {
        match self {
            Self::OneThread | Self::TwoThreads => Capabilities::SAME_PROCESS,
            Self::TwoProcesses => Capabilities::CROSS_PROCESS,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::OneThread => "one thread",
            Self::TwoThreads => "two threads",
            Self::TwoProcesses => "two processes",
        }
    }
}

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Near,
    Far,
}

impl Who {
    pub(crate) const BOTH: [Self; 2] = [Self::Near, Self::Far];

    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

/// A memory of one side that the other has imported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    pub(crate) memory: Id,
    pub(crate) import: Id,
    pub(crate) mapped: bool,
}

/// The two sides.
pub(crate) struct Pair {
    near: Side,
    far: Far,
    next: Id,
}

enum Far {
    Inline(Box<Side>),
    Thread(Line, Option<JoinHandle<()>>),
    Process(Line, Child),
    Dead,
}

impl Pair {
    /// Opens both sides; no channel yet.
    pub(crate) fn open(
        subject: &Subject,
        info: &DeviceInfo,
        placement: Placement,
    ) -> Result<Self, Stop> {
        let far = match placement {
            Placement::OneThread => Far::Inline(Box::new(Side::open(info)?)),
            Placement::TwoThreads => {
                let (ours, theirs) = UnixStream::pair()?;
                let (side, line) = (Side::open(info)?, Line::new(theirs)?);
                let thread = std::thread::Builder::new()
                    .name("far".to_owned())
                    .spawn(move || serve(side, line))?;
                Far::Thread(Line::new(ours)?, Some(thread))
            }
            Placement::TwoProcesses => {
                let (mut line, child) = start(subject, Role::Peer)?;
                line.send(&Task::Peer { device: info.index })?;
                Far::Process(line, child)
            }
        };
        let mut pair = Self {
            near: Side::open(info)?,
            far,
            next: 0,
        };
        if placement == Placement::TwoProcesses {
            // The first answer says that it has opened its side.
            let (_, opened) = pair.drive(None, Some(None))?;
            opened.unwrap_or(Ok(Reply::Done)).map_err(|failure| {
                Stop::Fail(format!("the peer's process could not start: {failure}"))
            })?;
        }
        Ok(pair)
    }

    /// Asks one side; the other goes on progressing.
    pub(crate) fn ask(&mut self, who: Who, request: Request) -> Result<Answer, Stop> {
        let (near, far) = match who {
            Who::Near => (Some(request), None),
            Who::Far => (None, Some(Some(request))),
        };
        let (near, far) = self.drive(near, far)?;
        near.or(far)
            .ok_or_else(|| fail("a question without an answer"))
    }

    /// Asks both at once.
    pub(crate) fn ask_both(
        &mut self,
        near: Request,
        far: Request,
    ) -> Result<(Answer, Answer), Stop> {
        match self.drive(Some(near), Some(Some(far)))? {
            (Some(near), Some(far)) => Ok((near, far)),
            _ => Err(fail("a question without an answer")),
        }
    }

    /// Asks one side and takes nothing but a good answer.
    pub(crate) fn get(&mut self, who: Who, request: Request) -> Result<Reply, Stop> {
        self.ask(who, request)?
            .map_err(|failure| Stop::Fail(format!("{who:?} side: {failure}")))
    }

    pub(crate) fn done(&mut self, who: Who, request: Request) -> Result<(), Stop> {
        match self.get(who, request)? {
            Reply::Done => Ok(()),
            other => Err(fail(format!("{who:?} side answered {other:?}"))),
        }
    }

    /// Asks one side for what must fail.
    pub(crate) fn refused(
        &mut self,
        who: Who,
        what: &str,
        request: Request,
    ) -> Result<Failure, Stop> {
        match self.ask(who, request)? {
            Err(failure) => Ok(failure),
            Ok(reply) => Err(fail(format!("{what} was not refused: {reply:?}"))),
        }
    }

    /// A name that no other thing has.
    pub(crate) fn id(&mut self) -> Id {
        self.next += 1;
        self.next
    }

    /// Makes an end at each side and connects them; both have the same name.
    pub(crate) fn channel(&mut self, notifies: u32) -> Result<Id, Stop> {
        self.channel_with(notifies, notifies, 64)
    }

    /// The same with different numbers of notifies and a depth.
    pub(crate) fn channel_with(&mut self, near: u32, far: u32, depth: u32) -> Result<Id, Stop> {
        let channel = self.id();
        let [near_blob, far_blob] = self.ends(channel, [near, far], depth)?;
        self.connect(channel, near_blob, far_blob)?;
        Ok(channel)
    }

    /// Makes both ends; gives their blobs, near first.
    pub(crate) fn ends(
        &mut self,
        channel: Id,
        notifies: [u32; 2],
        depth: u32,
    ) -> Result<[Vec<u8>; 2], Stop> {
        let mut blobs = [Vec::new(), Vec::new()];
        for ((who, notifies), blob) in Who::BOTH.into_iter().zip(notifies).zip(&mut blobs) {
            let request = Request::Create {
                channel,
                notifies,
                depth,
            };
            *blob = self.blob(who, request)?;
        }
        Ok(blobs)
    }

    pub(crate) fn connect(
        &mut self,
        channel: Id,
        near_blob: Vec<u8>,
        far_blob: Vec<u8>,
    ) -> Result<(), Stop> {
        self.together(
            Who::Near,
            Request::Connect {
                channel,
                blob: far_blob,
            },
            Request::Connect {
                channel,
                blob: near_blob,
            },
        )?;
        Ok(())
    }

    /// Asks for something whose answer is a blob.
    pub(crate) fn blob(&mut self, who: Who, request: Request) -> Result<Vec<u8>, Stop> {
        match self.get(who, request)? {
            Reply::Blob(blob) => Ok(blob),
            other => Err(fail(format!("{who:?} side answered {other:?}"))),
        }
    }

    /// Makes memory; gives the blob where it is known to the device.
    pub(crate) fn memory(
        &mut self,
        who: Who,
        kind: Kind,
        bytes: usize,
    ) -> Result<(Id, Vec<u8>), Stop> {
        let memory = self.id();
        let request = Request::Memory {
            memory,
            kind,
            bytes,
        };
        match self.get(who, request)? {
            Reply::Done => Ok((memory, Vec::new())),
            Reply::Blob(blob) => Ok((memory, blob)),
            other => Err(fail(format!("{who:?} side answered {other:?}"))),
        }
    }

    /// Makes memory at `owner` and imports it at the other side.
    pub(crate) fn share(
        &mut self,
        owner: Who,
        channel: Id,
        kind: Kind,
        bytes: usize,
    ) -> Result<Shared, Stop> {
        let (memory, blob) = self.memory(owner, kind, bytes)?;
        self.import(owner.other(), channel, memory, blob, bytes)
    }

    /// Imports a blob that stands for `bytes` bytes.
    pub(crate) fn import(
        &mut self,
        who: Who,
        channel: Id,
        memory: Id,
        blob: Vec<u8>,
        bytes: usize,
    ) -> Result<Shared, Stop> {
        let import = self.id();
        let request = Request::Import {
            import,
            channel,
            blob,
        };
        match self.get(who, request)? {
            Reply::Imported {
                bytes: found,
                mapped,
            } if found == bytes as u64 => Ok(Shared {
                memory,
                import,
                mapped,
            }),
            Reply::Imported { bytes: found, .. } => Err(fail(format!(
                "the import of a region of {bytes} bytes says it has {found}"
            ))),
            other => Err(fail(format!("{who:?} side answered {other:?}"))),
        }
    }

    pub(crate) fn fill(
        &mut self,
        who: Who,
        memory: Id,
        at: usize,
        len: usize,
        content: Content,
    ) -> Result<(), Stop> {
        self.done(
            who,
            Request::Fill {
                memory,
                at,
                len,
                content,
                start: 0,
            },
        )
    }

    /// Expects the beginning of `content` at `at`.
    pub(crate) fn expect(
        &mut self,
        who: Who,
        memory: Id,
        at: usize,
        len: usize,
        content: Content,
    ) -> Result<(), Stop> {
        self.expect_part(who, memory, at, len, content, 0)
    }

    /// Expects `content` from its position `start` on.
    pub(crate) fn expect_part(
        &mut self,
        who: Who,
        memory: Id,
        at: usize,
        len: usize,
        content: Content,
        start: u64,
    ) -> Result<(), Stop> {
        self.done(
            who,
            Request::Expect {
                memory,
                at,
                len,
                content,
                start,
            },
        )
    }

    /// Posts all and waits for their completion.
    pub(crate) fn post(&mut self, who: Who, channel: Id, ops: Vec<Op>) -> Result<(), Stop> {
        self.done(who, Request::Post { channel, ops })
    }

    /// Waits until a notify of `who` has counted so far.
    pub(crate) fn wait(
        &mut self,
        who: Who,
        channel: Id,
        index: u32,
        count: u64,
    ) -> Result<[u64; 2], Stop> {
        let request = Request::Await {
            channel,
            index,
            count,
        };
        match self.get(who, request)? {
            Reply::Notified {
                count: found,
                fingerprint,
            } if found == count => Ok(fingerprint),
            Reply::Notified { count: found, .. } => Err(fail(format!(
                "notify {index} was recorded {count} times and counts {found}"
            ))),
            other => Err(fail(format!("{who:?} side answered {other:?}"))),
        }
    }

    /// Records a notify at the other side of `who` and waits until it has arrived there.
    pub(crate) fn signal(
        &mut self,
        who: Who,
        channel: Id,
        index: u32,
        count: u64,
    ) -> Result<(), Stop> {
        self.post(who, channel, vec![Op::Notify(index, [0; 2])])?;
        self.wait(who.other(), channel, index, count)?;
        Ok(())
    }

    /// Records a notify of the other side by a store of the host; `false` if the link has none for
    /// that.
    pub(crate) fn record(
        &mut self,
        who: Who,
        channel: Id,
        index: u32,
        fingerprint: [u64; 2],
    ) -> Result<bool, Stop> {
        let request = Request::Record {
            channel,
            index,
            fingerprint,
            after_ms: 0,
        };
        match self.get(who, request)? {
            Reply::Recorded(recorded) => Ok(recorded),
            other => Err(fail(format!("{who:?} side answered {other:?}"))),
        }
    }

    /// Asks for a notify's state now.
    pub(crate) fn look(&mut self, who: Who, channel: Id, index: u32) -> Result<u64, Stop> {
        match self.get(who, Request::Look { channel, index })? {
            Reply::Notified { count, .. } => Ok(count),
            other => Err(fail(format!("{who:?} side answered {other:?}"))),
        }
    }

    /// The near side's device, for calls from other threads.
    pub(crate) fn near_device(&self) -> Device {
        self.near.device()
    }

    /// Asks `who` and the other side at once; both answers must be good.
    pub(crate) fn together(
        &mut self,
        who: Who,
        own: Request,
        other: Request,
    ) -> Result<[Reply; 2], Stop> {
        let (own, other) = match who {
            Who::Near => self.ask_both(own, other)?,
            Who::Far => {
                let (near, far) = self.ask_both(other, own)?;
                (far, near)
            }
        };
        let good = |who: Who, answer: Answer| {
            answer.map_err(|failure| fail(format!("{who:?} side: {failure}")))
        };
        Ok([good(who, own)?, good(who.other(), other)?])
    }

    /// Kills the far side's process and waits for its end.
    pub(crate) fn kill_far(&mut self) -> Result<(), Stop> {
        let Far::Process(_, child) = &mut self.far else {
            return Err(fail("only a process can be killed"));
        };
        child.kill()?;
        child.wait()?;
        self.far = Far::Dead;
        Ok(())
    }

    /// Sends a request to the far side whose answer nobody waits for.
    pub(crate) fn tell_far(&mut self, request: &Request) -> Result<(), Stop> {
        match &mut self.far {
            Far::Thread(line, _) | Far::Process(line, _) => Ok(line.send(request)?),
            Far::Inline(_) | Far::Dead => Err(fail("the far side has no life of its own")),
        }
    }

    /// Runs requests to their end. `Some(None)` for the far side waits for an answer that is on
    /// its way already.
    #[allow(clippy::option_option)] // a question, an answer awaited, or neither
    fn drive(
        &mut self,
        near: Option<Request>,
        far: Option<Option<Request>>,
    ) -> Result<(Option<Answer>, Option<Answer>), Stop> {
        let mut near_job = near.map(|request| self.near.begin(request));
        let mut far_waits = far.is_some();
        let mut far_job = None;
        if let Some(Some(request)) = far {
            match &mut self.far {
                Far::Inline(side) => far_job = Some(side.begin(request)),
                Far::Thread(line, _) | Far::Process(line, _) => line.send(&request)?,
                Far::Dead => return Err(fail("the far side was killed")),
            }
        }
        let (mut near_answer, mut far_answer) = (None, None);
        let until = Instant::now() + PATIENCE + Duration::from_secs(5);
        let mut phase = Phase::default();
        while near_job.is_some() || far_waits {
            let mut busy = false;
            if let Some(answer) = near_job.as_mut().and_then(|job| self.near.step(job)) {
                near_answer = Some(answer);
                near_job = None;
                busy = true;
            }
            match &mut self.far {
                Far::Inline(side) => {
                    if let Some(answer) = far_job.as_mut().and_then(|job| side.step(job)) {
                        far_answer = Some(answer);
                        far_job = None;
                        far_waits = false;
                        busy = true;
                    }
                    busy |= side.progress()?;
                }
                Far::Thread(line, _) | Far::Process(line, _) if far_waits => {
                    let received = line.try_receive::<Answer>().map_err(|error| {
                        fail(format!("the far side ended while it was asked: {error}"))
                    })?;
                    if let Some(answer) = received {
                        far_answer = Some(answer);
                        far_waits = false;
                        busy = true;
                    }
                }
                _ => {}
            }
            busy |= self.near.progress()?;
            if busy {
                phase.restart();
                continue;
            }
            if Instant::now() >= until {
                return Err(fail("the far side does not answer"));
            }
            let line = match &self.far {
                Far::Thread(line, _) | Far::Process(line, _) => Some(line.fd()),
                Far::Inline(_) | Far::Dead => None,
            };
            self.near.pause(&mut phase, line);
        }
        Ok((near_answer, far_answer))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.far, Far::Dead) {
            Far::Inline(_) | Far::Dead => {}
            Far::Thread(line, thread) => {
                drop(line);
                // A panic over there has been reported as its answer's absence.
                let _ = thread.map(JoinHandle::join);
            }
            Far::Process(mut line, mut child) => {
                // What it has logged counts as ours. One that does not answer is reported by the
                // question that it did not answer.
                if line.send(&Request::Logs).is_ok()
                    && let Ok(Some(Ok(Reply::Logs(lines)))) = line.receive::<Answer>(2000)
                {
                    logs::add(lines);
                }
                drop(line);
                let _ = child.wait();
            }
        }
    }
}

/// Both ends of a transfer from or to the beginning of memories.
pub(crate) const fn ends(memory: Id, local: usize, import: Id, offset: u64) -> Ends {
    Ends {
        memory,
        local,
        import,
        offset,
        name_region: true,
    }
}

/// Starts this program again in another role. The conversation is the child's standard input.
pub(crate) fn start(subject: &Subject, role: Role) -> io::Result<(Line, Child)> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = Command::new(std::env::current_exe()?)
        .args(subject.restart())
        .env(ROLE, role.name())
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()?;
    Ok((Line::new(ours)?, child))
}

/// Answers requests until the other end is gone.
pub(crate) fn serve(mut side: Side, mut line: Line) {
    let mut job = None;
    let mut phase = Phase::default();
    loop {
        let mut busy = false;
        match &mut job {
            None => match line.try_receive::<Request>() {
                Ok(Some(request)) => {
                    job = Some(side.begin(request));
                    busy = true;
                }
                Ok(None) => {}
                Err(_) => return,
            },
            Some(running) => {
                if let Some(answer) = side.step(running) {
                    if line.send(&answer).is_err() {
                        return;
                    }
                    job = None;
                    busy = true;
                }
            }
        }
        match side.progress() {
            Ok(moved) => busy |= moved,
            Err(error) => {
                // Whoever asks next hears it.
                let _ = line.send(&Answer::Err(error.into()));
                return;
            }
        }
        if busy {
            phase.restart();
        } else {
            side.pause(&mut phase, Some(line.fd()));
        }
    }
}
