//! The other ranks' side of start-up: finds the root, says who it is, and waits for the roster.

use std::task::Poll;
use std::time::Duration;

use hcomm_transport::Interest;
use hcomm_types::{Deadline, Error, ErrorKind, Nanos, Rank, Result};

use super::member::{Hello, Member, Roster};
use super::verdict::{Progress, Verdict};
use super::{Step, Times};
use crate::dial::{Answer, Call, Dial, Problem, Target};
use crate::frame::{Frame, FrameError, FrameType};
use crate::job_key::{JobKey, SessionId};
use crate::outside::Outside;
use crate::wire::{Purpose, Refusal, Wire, WireError};

/// A root info is made by a root that listens already. When nobody listens for this long, that
/// root is gone.
const INFO_PATIENCE: Duration = Duration::from_secs(1);
/// How long a rank whose deadline has passed waits for what the root says about that.
const LAST_WORD: Duration = Duration::from_secs(1);

/// How to find the root, and what it must prove.
#[derive(Clone, Debug)]
pub(super) struct Whereabouts {
    pub(super) target: Target,
    pub(super) key: JobKey,
    /// Known from a root info only.
    pub(super) session: Option<SessionId>,
}

pub(super) struct Join {
    dial: Dial,
    whereabouts: Whereabouts,
    hello: Hello,
    version: u16,
    deadline: Deadline,
    started: Nanos,
    phase: Phase,
    /// The last that the root has said about missing ranks.
    progress: Option<Progress>,
    times: Times,
}

enum Phase {
    Dialling,
    /// The hello is out; nothing has come back yet.
    Greeting(Wire),
    /// The root has let us in.
    Waiting(Wire),
    /// We have the roster; waiting to hear that all have it.
    Acknowledged(Wire, Roster),
    /// We have told the root that we cannot go on: it may know more than we do, and its words are
    /// everybody's.
    Parting {
        wire: Wire,
        error: Error,
        until: Nanos,
    },
    /// We cannot go on, and no root knows us.
    GivenUp(Error),
    Over,
}

impl Join {
    pub(super) fn new(
        outside: Outside,
        whereabouts: Whereabouts,
        member: Member,
        timeout: Duration,
        now: Nanos,
    ) -> Self {
        let call = Call {
            target: whereabouts.target.clone(),
            base: *whereabouts.key.as_bytes(),
            session: whereabouts.session,
            purpose: Purpose::Bootstrap,
            own: member.rank,
            peer: Rank(0),
        };
        let attempt = outside.number();
        Self {
            dial: Dial::new(outside, call),
            whereabouts,
            hello: Hello { attempt, member },
            version: crate::frame::PROTOCOL_VERSION,
            deadline: Deadline::after(now, timeout),
            started: now,
            phase: Phase::Dialling,
            progress: None,
            times: Times::new(now),
        }
    }

    /// Gives up an attempt sooner than usual, to see who holds a port.
    pub(super) fn with_patience(mut self, patience: Duration) -> Self {
        self.dial = self.dial.with_patience(patience);
        self
    }

    #[cfg(test)]
    pub(super) const fn speak_version(&mut self, version: u16) {
        self.version = version;
    }

    /// What the last attempt met, while no root has answered.
    pub(super) const fn problem(&self) -> &Problem {
        self.dial.problem()
    }

    /// What the attempt under way meets, or else the last one.
    pub(super) fn describe(&self, now: Nanos) -> String {
        self.dial.describe(now)
    }

    /// Whether the root has proven that it knows the key.
    pub(super) const fn is_welcome(&self) -> bool {
        matches!(
            self.phase,
            Phase::Waiting(_) | Phase::Acknowledged(..) | Phase::Parting { .. }
        )
    }

    /// This rank cannot go on; the others are told why.
    pub(super) fn give_up(&mut self, error: &Error, now: Nanos) {
        let rank = self.hello.member.rank;
        let error = if error.culprits().is_empty() {
            error.clone().blame_rank(rank)
        } else {
            error.clone()
        };
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Waiting(mut wire) | Phase::Acknowledged(mut wire, _) => {
                wire.send(FrameType::Failure, Verdict::of(&error).encode());
                let _ = wire.flush();
                let until = now + LAST_WORD;
                self.phase = Phase::Parting { wire, error, until };
            }
            Phase::Parting { wire, until, .. } => {
                self.phase = Phase::Parting { wire, error, until };
            }
            _ => self.phase = Phase::GivenUp(error),
        }
    }

    pub(super) const fn step(&self) -> Step {
        match self.phase {
            Phase::Dialling | Phase::Greeting(_) | Phase::Waiting(_) | Phase::GivenUp(_) => {
                Step::Handshake
            }
            Phase::Acknowledged(..) | Phase::Parting { .. } => Step::Topology,
            Phase::Over => Step::Paths,
        }
    }

    pub(super) fn poll(&mut self, now: Nanos) -> Poll<Result<Roster>> {
        let looked = self.look(now);
        let ended = match looked {
            Ok(Some(roster)) => {
                let member = &self.hello.member;
                self.times.finish(now, member.rank, member.size);
                return Poll::Ready(Ok(roster));
            }
            Ok(None) if !self.deadline.passed(now) => return Poll::Pending,
            Ok(None) => match self.late(now) {
                Some(error) => Err(error),
                None => return Poll::Pending,
            },
            Err(error) => Err(error),
        };
        self.phase = Phase::Over;
        Poll::Ready(ended.map_err(|error: Error| {
            error
                .at_rank(self.hello.member.rank)
                .after(now.since(self.started))
        }))
    }

    pub(super) fn interests<'a>(&'a self, wanted: &mut Vec<Interest<'a>>) {
        match &self.phase {
            Phase::Dialling => self.dial.interests(wanted),
            Phase::Greeting(wire) | Phase::Waiting(wire) | Phase::Acknowledged(wire, _) => {
                wanted.extend(wire.interest());
            }
            Phase::Parting { wire, .. } => wanted.extend(wire.interest()),
            Phase::GivenUp(_) | Phase::Over => {}
        }
    }

    pub(super) fn next_wake(&self) -> Deadline {
        match self.phase {
            Phase::Dialling => self.deadline.earlier(self.dial.next_wake()),
            Phase::Parting { until, .. } => Deadline::at(until),
            Phase::GivenUp(_) => Deadline::at(Nanos(0)),
            _ => self.deadline,
        }
    }

    fn look(&mut self, now: Nanos) -> Result<Option<Roster>> {
        loop {
            match std::mem::replace(&mut self.phase, Phase::Over) {
                Phase::Dialling => {
                    self.phase = Phase::Dialling;
                    let answer = self.dial.poll(now);
                    self.judge_silence(now)?;
                    match answer {
                        None => return Ok(None),
                        Some(Answer::Challenged(mut wire)) => {
                            wire.set_version(self.version);
                            wire.send(FrameType::Hello, self.hello.encode());
                            self.phase = Phase::Greeting(wire);
                        }
                        Some(Answer::Refused(at, refusal)) => {
                            return Err(self.refused(&at.to_string(), refusal));
                        }
                        Some(Answer::OtherSession(at)) => return Err(other_session(at)),
                        Some(Answer::OutOfDescriptors(error)) => {
                            let what =
                                format!("connect to the root at {}: {error}", self.dial.target());
                            return Err(Error::new(ErrorKind::LimitReached, what)
                                .blame_rank(self.hello.member.rank)
                                .hint("raise `ulimit -n` of this rank"));
                        }
                    }
                }
                Phase::Greeting(mut wire) => {
                    let at = wire.peer();
                    match wire.flush().and_then(|()| wire.receive()) {
                        Ok(None) => {
                            self.phase = Phase::Greeting(wire);
                            return Ok(None);
                        }
                        Ok(Some(frame)) if frame.kind == FrameType::Refusal => {
                            let refusal = Refusal::decode(&frame.body);
                            return Err(self.refused(&at.to_string(), refusal));
                        }
                        Ok(Some(frame)) => {
                            self.phase = Phase::Waiting(wire);
                            self.hear(now, frame)?;
                        }
                        Err(WireError::Frame(FrameError::WrongMac { .. })) => {
                            return Err(self.refused(&at.to_string(), Refusal::WrongKey));
                        }
                        // The root may have made room for newer connections: come again.
                        Err(_) => {
                            self.dial.again(now, Problem::Ended);
                            self.phase = Phase::Dialling;
                        }
                    }
                }
                Phase::Waiting(mut wire) => {
                    let received = wire.flush().and_then(|()| wire.receive());
                    let at = wire.peer();
                    self.phase = Phase::Waiting(wire);
                    match received {
                        Ok(None) => return Ok(None),
                        Ok(Some(frame)) => self.hear(now, frame)?,
                        Err(error) => return Err(self.root_lost(&at.to_string(), &error)),
                    }
                }
                Phase::Acknowledged(mut wire, roster) => {
                    let at = wire.peer();
                    match wire.flush().and_then(|()| wire.receive()) {
                        Ok(None) => {
                            self.phase = Phase::Acknowledged(wire, roster);
                            return Ok(None);
                        }
                        Ok(Some(frame)) if frame.kind == FrameType::Done => {
                            return Ok(Some(roster));
                        }
                        Ok(Some(frame)) => {
                            self.phase = Phase::Waiting(wire);
                            self.hear(now, frame)?;
                        }
                        // The root is gone between telling others that all is done and telling
                        // us. The roster is complete; on all ranks alike the links find out.
                        Err(WireError::Ended | WireError::Broke(_)) => return Ok(Some(roster)),
                        Err(error) => return Err(self.root_lost(&at.to_string(), &error)),
                    }
                }
                Phase::Parting {
                    mut wire,
                    error,
                    until,
                } => match wire.flush().and_then(|()| wire.receive()) {
                    Ok(Some(frame)) if frame.kind == FrameType::Failure => {
                        return Err(self.verdict(&frame).unwrap_or(error));
                    }
                    Ok(Some(_)) => self.phase = Phase::Parting { wire, error, until },
                    Ok(None) if now < until => {
                        self.phase = Phase::Parting { wire, error, until };
                        return Ok(None);
                    }
                    Ok(None) | Err(_) => return Err(error),
                },
                Phase::GivenUp(error) => return Err(error),
                Phase::Over => return Ok(None),
            }
        }
    }

    /// What the root says once it has let us in.
    fn hear(&mut self, now: Nanos, frame: Frame) -> Result<()> {
        let size = self.hello.member.size;
        let malformed = |malformed| internal(format!("rank 0 sent a {malformed}"));
        match frame.kind {
            FrameType::Progress => {
                // A root that was started with another size says so in its next frame.
                if let Ok(progress) = Progress::decode(&frame.body, size) {
                    self.progress = Some(progress);
                }
                Ok(())
            }
            FrameType::Failure => Err(self.verdict(&frame)?),
            FrameType::Roster => {
                let roster = Roster::decode(&frame.body, self.whereabouts.key.clone());
                let mut roster = roster.map_err(malformed)?;
                if roster.size() != size {
                    return Err(internal(format!(
                        "rank 0 sent a roster of {} ranks to one of {size}",
                        roster.size()
                    )));
                }
                if let Phase::Waiting(mut wire) = std::mem::replace(&mut self.phase, Phase::Over) {
                    roster.place_root(wire.peer().ip());
                    wire.send(FrameType::Ack, Vec::new());
                    self.phase = Phase::Acknowledged(wire, roster);
                    self.times.enter(now, Step::Topology);
                }
                Ok(())
            }
            kind => Err(internal(format!(
                "rank 0 sent an unexpected {kind:?} frame"
            ))),
        }
    }

    /// Why start-up failed, by the root.
    fn verdict(&self, frame: &Frame) -> Result<Error> {
        Verdict::decode(&frame.body)
            .map(|verdict| verdict.to_error())
            .map_err(|malformed| internal(format!("rank 0 sent a {malformed}")))
    }

    /// Behind a root info somebody listened when it was made.
    fn judge_silence(&self, now: Nanos) -> Result<()> {
        let gone = self
            .dial
            .nobody_for(now)
            .is_some_and(|time| time >= INFO_PATIENCE);
        if self.whereabouts.session.is_none() || !gone {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Refused,
            format!(
                "nobody listens at {} any more: a root info serves one communicator, and the listener behind this one was closed when its communicator was made or its root ended",
                self.dial.target()
            ),
        )
        .blame_rank(Rank(0))
        .hint("make a new root info for each communicator"))
    }

    fn refused(&self, at: &str, refusal: Refusal) -> Error {
        let rank = self.hello.member.rank;
        match refusal {
            Refusal::WrongKey => Error::new(
                ErrorKind::Refused,
                format!("the job key of rank {rank} is not that of the root at {at}: the MAC of its hello does not fit there"),
            )
            .blame_rank(rank)
            .hint("give all ranks the same HCOMM_JOB_KEY or HCOMM_JOB_KEY_FILE; if another job's root listens there, choose another port"),
            Refusal::WrongPurpose => Error::new(
                ErrorKind::Refused,
                format!("{at} is not a root: an hcomm process listens there for something else"),
            )
            .hint("look where rank 0 listens, and set HCOMM_ROOT"),
            Refusal::WrongSession | Refusal::Malformed => Error::new(
                ErrorKind::Refused,
                format!("the root at {at} does not understand rank {rank}"),
            )
            .blame_rank(rank)
            .hint("start all ranks with the same build of hcomm"),
        }
    }

    fn root_lost(&self, at: &str, error: &WireError) -> Error {
        let mut detail = format!("rank 0 ({at}) was lost during start-up: {error}");
        if let Some(progress) = self.progress.as_ref().filter(|p| !p.missing.is_empty()) {
            detail += &format!("; by its last word, {}", progress.describe());
        }
        Error::new(ErrorKind::PeerLost, detail)
            .blame_rank(Rank(0))
            .hint("look at the output of rank 0")
    }

    /// The deadline has passed. What is known now, or nothing yet if the root is asked first.
    fn late(&mut self, now: Nanos) -> Option<Error> {
        if let Phase::Parting { .. } = self.phase {
            return None;
        }
        let error = self.late_error(now);
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Waiting(mut wire) | Phase::Acknowledged(mut wire, _) => {
                wire.send(FrameType::Overdue, Vec::new());
                // An error shows up again when the answer is awaited.
                let _ = wire.flush();
                self.phase = Phase::Parting {
                    wire,
                    error,
                    until: now + LAST_WORD,
                };
                None
            }
            _ => Some(error),
        }
    }

    fn late_error(&self, now: Nanos) -> Error {
        let rank = self.hello.member.rank;
        match (&self.phase, &self.progress) {
            (Phase::Acknowledged(..), _) => Error::new(
                ErrorKind::Timeout,
                "at the deadline, rank 0 has not told that all ranks have the list of ranks",
            )
            .blame_rank(Rank(0)),
            (Phase::Waiting(_), Some(progress)) if !progress.missing.is_empty() => {
                let detail = format!("at the deadline of rank {rank}, {}", progress.describe());
                let error = Error::new(ErrorKind::Timeout, detail).hint(
                    "look at the output of the missing ranks; raise HCOMM_CONNECT_TIMEOUT if they only start late",
                );
                progress
                    .missing
                    .iter()
                    .fold(error, |error, &missing| error.blame_rank(missing))
            }
            (Phase::Waiting(_) | Phase::Greeting(_), _) => Error::new(
                ErrorKind::Timeout,
                "rank 0 has accepted the connection but not gone on by the deadline",
            )
            .blame_rank(Rank(0))
            .hint("look whether rank 0 is stopped or its host overloaded"),
            _ => Error::new(
                ErrorKind::Timeout,
                format!(
                    "no root has answered at {}: {}; {} attempts",
                    self.dial.target(),
                    self.dial.describe(now),
                    self.dial.tries()
                ),
            )
            .blame_rank(Rank(0))
            .hint("look at the output of rank 0, and whether HCOMM_ROOT or MASTER_ADDR and MASTER_PORT name its host and port"),
        }
    }
}

fn other_session(at: std::net::SocketAddr) -> Error {
    Error::new(
        ErrorKind::Refused,
        format!("the root at {at} serves another communicator: the root info given here was used before, or is an old one whose port has a new owner"),
    )
    .hint("make a new root info for each communicator")
}

fn internal(detail: String) -> Error {
    Error::new(ErrorKind::Internal, detail).blame_rank(Rank(0))
}
