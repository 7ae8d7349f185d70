//! The other ranks' side of start-up: finds the root and says who it is, takes its place in the
//! tree, and passes on what goes up and down there until all have the roster.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::task::Poll;
use std::time::Duration;

use hcomm_transport::Interest;
use hcomm_types::{Deadline, Error, ErrorKind, Nanos, Rank, Result};

use super::branches::{Branches, News};
use super::member::{Hello, Member, Place};
use super::roster::{Gathered, Part, Roster};
use super::verdict::{Progress, Trouble, Verdict, read_ranks, write_ranks};
use super::{Step, Times};
use crate::codec::{Reader, Writer};
use crate::dial::{Answer, Call, Dial, Problem, Target};
use crate::door::{Door, Event};
use crate::frame::{Body, Frame, FrameError, FrameType};
use crate::job_key::{JobKey, SessionId};
use crate::net::Listener;
use crate::outside::Outside;
use crate::wire::{Purpose, Refusal, Wire, WireError};

/// A root info is made by a root that listens already. When nobody listens for this long, that
/// root is gone.
const INFO_PATIENCE: Duration = Duration::from_secs(1);
/// How long a rank whose deadline has passed waits for what the root says about that.
const LAST_WORD: Duration = Duration::from_secs(1);
/// How long a rank tries to reach the one above it before it asks the root for another place.
const SEEK_PATIENCE: Duration = Duration::from_secs(5);
/// Something comes from above every second. After so long without, the rank above is stopped, or
/// its host is gone.
const SILENCE: Duration = Duration::from_secs(10);
/// Who has the list is told when all below have it, or at the latest after this time.
const ACK_SPACING: Duration = Duration::from_millis(500);
/// How long a rank that has failed stays for those below it, after its deadline and before.
const GRACE: Duration = Duration::from_secs(3);
const LAST_GRACE: Duration = Duration::from_millis(500);

/// How to find the root, and what it must prove.
#[derive(Clone, Debug)]
pub(super) struct Whereabouts {
    pub(super) target: Target,
    pub(super) key: JobKey,
    /// Known from a root info only.
    pub(super) session: Option<SessionId>,
}

pub(super) struct Join {
    outside: Outside,
    whereabouts: Whereabouts,
    hello: Hello,
    version: u16,
    deadline: Deadline,
    started: Nanos,
    phase: Phase,
    /// The call to the root under way, or the last one.
    dial: Dial,
    /// Until the session is known.
    listener: Option<Box<dyn Listener>>,
    /// Where ranks below connect.
    door: Option<Door>,
    children: Branches,
    /// The last that the root has said about missing ranks, and how it said so.
    progress: Option<Progress>,
    progress_body: Option<Body>,
    /// What has happened here or below, said again to every new rank above.
    troubles: Vec<Body>,
    list: Gathered,
    /// Once the list is whole.
    roster: Option<Roster>,
    acks: Acks,
    /// Where this rank sees the root.
    root_at: Option<IpAddr>,
    times: Times,
}

enum Phase {
    /// On the way to the root.
    Dialling,
    /// The hello is out; nothing has come back yet.
    Greeting(Wire),
    /// The root has given us a place; on the way there. The root is left only then.
    Seeking {
        root: Option<Box<Wire>>,
        dial: Box<Dial>,
        parent: Rank,
        until: Nanos,
    },
    /// The hello to the rank above is out.
    Climbing {
        root: Option<Box<Wire>>,
        wire: Box<Wire>,
        parent: Rank,
        until: Nanos,
    },
    /// In the tree.
    Attached {
        wire: Wire,
        parent: Rank,
        heard: Nanos,
    },
    /// Everybody has the roster; the last frames go out, until then at the latest: who does not read
    /// them finds out by its links.
    Finishing(Roster, Nanos),
    /// We have told the root that we cannot go on: it may know more than we do, and its words are
    /// everybody's.
    Parting {
        wire: Wire,
        error: Error,
        until: Nanos,
    },
    /// Those below are told why it failed.
    Failing {
        error: Error,
        until: Nanos,
    },
    /// We cannot go on, and no root knows us.
    GivenUp(Error),
    Over,
}

/// Who has the list, here and below.
#[derive(Default)]
struct Acks {
    all: BTreeSet<Rank>,
    unsent: BTreeSet<Rank>,
    /// How many there will be.
    expected: usize,
    sent_at: Option<Nanos>,
}

impl Acks {
    fn add(&mut self, rank: Rank) {
        if self.all.insert(rank) {
            self.unsent.insert(rank);
        }
    }

    /// When they are told at the latest.
    fn due(&self) -> Option<Nanos> {
        let at = self.sent_at.filter(|_| !self.unsent.is_empty());
        at.map(|at| at + ACK_SPACING)
    }

    /// Those to tell now.
    fn take(&mut self, now: Nanos) -> Option<Vec<u8>> {
        let since = *self.sent_at.get_or_insert(now);
        let is_due = self.all.len() >= self.expected || now >= since + ACK_SPACING;
        if self.unsent.is_empty() || !is_due {
            return None;
        }
        self.sent_at = Some(now);
        let ranks: Vec<Rank> = std::mem::take(&mut self.unsent).into_iter().collect();
        let mut writer = Writer::new();
        write_ranks(&mut writer, &ranks);
        Some(writer.into_bytes())
    }
}

impl Join {
    pub(super) fn new(
        outside: Outside,
        whereabouts: Whereabouts,
        member: Member,
        timeout: Duration,
        now: Nanos,
    ) -> Self {
        // Whoever cannot listen has nobody below it, and says so.
        let listener = if member.rank == Rank(0) {
            None
        } else {
            crate::net::listen_everywhere(&*outside.network)
                .inspect_err(|error| tracing::debug!(%error, "no ranks below this one"))
                .ok()
        };
        let hello = Hello {
            attempt: outside.number(),
            member,
            port: listener.as_ref().map_or(0, |l| l.local_addr().port()),
            orphaned_by: None,
        };
        Self {
            dial: call_root(&outside, &whereabouts, &hello.member),
            outside,
            whereabouts,
            hello,
            version: crate::frame::PROTOCOL_VERSION,
            deadline: Deadline::after(now, timeout),
            started: now,
            phase: Phase::Dialling,
            listener,
            door: None,
            children: Branches::default(),
            progress: None,
            progress_body: None,
            troubles: Vec::new(),
            list: Gathered::default(),
            roster: None,
            acks: Acks::default(),
            root_at: None,
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

    /// The rank above, once this one is in the tree.
    #[cfg(test)]
    pub(super) const fn parent(&self) -> Option<Rank> {
        match self.phase {
            Phase::Attached { parent, .. } => Some(parent),
            _ => None,
        }
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
        !matches!(
            self.phase,
            Phase::Dialling | Phase::Greeting(_) | Phase::GivenUp(_) | Phase::Over
        )
    }

    /// This rank cannot go on; the others are told why.
    pub(super) fn give_up(&mut self, error: &Error, now: Nanos) {
        let rank = self.rank();
        let error = if error.culprits().is_empty() {
            error.clone().blame_rank(rank)
        } else {
            error.clone()
        };
        if self.is_welcome() {
            let trouble = Trouble {
                rank,
                is_lost: false,
                verdict: Verdict::of(&error),
            };
            self.raise(trouble.encode().into());
        }
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Attached { wire, .. } => {
                let until = now + LAST_WORD;
                self.phase = Phase::Parting { wire, error, until };
            }
            Phase::Seeking {
                root: Some(mut wire),
                ..
            }
            | Phase::Climbing {
                root: Some(mut wire),
                ..
            } => {
                self.tell_troubles(&mut wire);
                let until = now + LAST_WORD;
                let wire = *wire;
                self.phase = Phase::Parting { wire, error, until };
            }
            Phase::Parting { wire, until, .. } => {
                self.phase = Phase::Parting { wire, error, until };
            }
            phase @ (Phase::Failing { .. } | Phase::Finishing(..)) => self.phase = phase,
            _ => self.phase = Phase::GivenUp(error),
        }
    }

    pub(super) const fn step(&self) -> Step {
        match self.phase {
            Phase::Over => Step::Paths,
            _ if self.roster.is_some() => Step::Topology,
            _ => Step::Handshake,
        }
    }

    pub(super) fn poll(&mut self, now: Nanos) -> Poll<Result<Roster>> {
        self.tend(now);
        let mut looked = self.look(now);
        if let Ok(None) = looked
            && self.deadline.passed(now)
            && let Some(error) = self.late(now)
        {
            looked = Err(error);
        }
        let ended = match looked {
            Ok(None) => return Poll::Pending,
            Ok(Some(roster)) => {
                self.times.finish(now, self.rank(), roster.size());
                return Poll::Ready(Ok(roster));
            }
            Err(error) => error,
        };
        if !self.children.is_empty() {
            // Those below hear it in the same words, and hang up when they have.
            self.fail_below(&Verdict::of(&ended));
            let grace = if self.deadline.passed(now) {
                LAST_GRACE
            } else {
                GRACE
            };
            self.phase = Phase::Failing {
                error: ended,
                until: now + grace,
            };
            return Poll::Pending;
        }
        self.phase = Phase::Over;
        Poll::Ready(Err(ended
            .at_rank(self.rank())
            .after(now.since(self.started))))
    }

    pub(super) fn interests<'a>(&'a self, wanted: &mut Vec<Interest<'a>>) {
        match &self.phase {
            Phase::Dialling => self.dial.interests(wanted),
            Phase::Greeting(wire) | Phase::Attached { wire, .. } | Phase::Parting { wire, .. } => {
                wanted.extend(wire.interest())
            }
            Phase::Seeking { root, dial, .. } => {
                dial.interests(wanted);
                wanted.extend(root.as_ref().and_then(|root| root.interest()));
            }
            Phase::Climbing { root, wire, .. } => {
                wanted.extend(wire.interest());
                wanted.extend(root.as_ref().and_then(|root| root.interest()));
            }
            Phase::Finishing(..) | Phase::Failing { .. } | Phase::GivenUp(_) | Phase::Over => {}
        }
        if let Some(door) = &self.door {
            door.interests(wanted);
        }
        self.children.interests(wanted);
    }

    pub(super) fn next_wake(&self) -> Deadline {
        let own = match &self.phase {
            Phase::Dialling => self.deadline.earlier(self.dial.next_wake()),
            Phase::Seeking { dial, until, .. } => self
                .deadline
                .earlier(dial.next_wake())
                .earlier(Deadline::at(*until)),
            Phase::Climbing { until, .. } => self.deadline.earlier(Deadline::at(*until)),
            Phase::Attached { parent, heard, .. } => {
                let silence = (*parent != Rank(0)).then_some(*heard + SILENCE);
                let moments = silence.into_iter().chain(self.acks.due());
                let soonest = moments.min().map_or(Deadline::NEVER, Deadline::at);
                self.deadline.earlier(soonest)
            }
            Phase::Parting { until, .. }
            | Phase::Failing { until, .. }
            | Phase::Finishing(_, until) => Deadline::at(*until),
            Phase::GivenUp(_) => Deadline::at(Nanos(0)),
            Phase::Greeting(_) | Phase::Over => self.deadline,
        };
        let door = self.door.as_ref().map_or(Deadline::NEVER, Door::next_wake);
        own.earlier(door)
    }

    const fn rank(&self) -> Rank {
        self.hello.member.rank
    }

    /// Lets ranks in below, and hears those that are.
    fn tend(&mut self, now: Nanos) {
        let mut events = Vec::new();
        if let Some(door) = &mut self.door
            && let Err(error) = door.poll(now, &mut events)
        {
            // Who cannot come in here gets another place from the root.
            tracing::debug!(%error, "no more ranks below this one");
            self.door = None;
        }
        for event in events {
            let Event::Proven(wire, frame) = event else {
                continue;
            };
            let size = self.hello.member.size;
            let is_other = |child: &Rank| *child != self.rank() && child.0 < size;
            let Some(child) = frame.rank.filter(is_other) else {
                continue;
            };
            self.children.adopt(child, *wire);
            self.welcome(child);
        }
        for news in self.children.hear() {
            match news {
                News::Said(child, frame) => self.hear_child(child, frame),
                // It has what it waits for, or has heard why not.
                News::Lost(..)
                    if matches!(self.phase, Phase::Finishing(..) | Phase::Failing { .. }) => {}
                News::Lost(child, error) => self.lose(child, error.to_string()),
            }
        }
    }

    /// Tells a rank below all that was told so far.
    fn welcome(&mut self, child: Rank) {
        self.children
            .tell(child, FrameType::Welcome, Vec::new().into());
        if let Phase::Failing { error, .. } = &self.phase {
            let body = Verdict::of(error).encode();
            self.children.tell(child, FrameType::Failure, body.into());
            return;
        }
        if let Some(progress) = &self.progress_body {
            self.children
                .tell(child, FrameType::Progress, progress.clone());
        }
        for part in self.list.parts() {
            self.children.tell(child, FrameType::Roster, part.body());
        }
        if let Phase::Finishing(..) = &self.phase {
            self.children
                .tell(child, FrameType::Done, Vec::new().into());
        }
    }

    fn hear_child(&mut self, child: Rank, frame: Frame) {
        match frame.kind {
            FrameType::Ack => {
                let mut reader = Reader::new(&frame.body);
                match read_ranks(&mut reader, self.hello.member.size, "acknowledgement") {
                    Ok(ranks) => ranks.into_iter().for_each(|rank| self.acks.add(rank)),
                    Err(malformed) => self.lose(child, format!("it sent a {malformed}")),
                }
            }
            FrameType::Overdue => self.say_above(FrameType::Overdue, frame.into_body()),
            FrameType::Trouble => self.raise(frame.into_body()),
            kind => self.lose(child, format!("it sent an unexpected {kind:?} frame")),
        }
    }

    fn lose(&mut self, child: Rank, why: String) {
        let verdict = Verdict::new(ErrorKind::PeerLost, vec![child], why);
        let trouble = Trouble {
            rank: child,
            is_lost: true,
            verdict,
        };
        self.raise(trouble.encode().into());
    }

    /// Tells the root what has happened, now and after each change of place.
    fn raise(&mut self, trouble: Body) {
        self.say_above(FrameType::Trouble, trouble.clone());
        self.troubles.push(trouble);
    }

    fn say_above(&mut self, kind: FrameType, body: Body) {
        if let Phase::Attached { wire, .. } | Phase::Parting { wire, .. } = &mut self.phase {
            wire.send(kind, body);
            // An error shows up again when the wire is heard.
            let _ = wire.flush();
        }
    }

    fn tell_troubles(&self, wire: &mut Wire) {
        for trouble in &self.troubles {
            wire.send(FrameType::Trouble, trouble.clone());
        }
        let _ = wire.flush();
    }

    fn fail_below(&mut self, verdict: &Verdict) {
        let body: Body = verdict.encode().into();
        self.children.tell_all(FrameType::Failure, &body);
    }

    fn look(&mut self, now: Nanos) -> Result<Option<Roster>> {
        loop {
            match std::mem::replace(&mut self.phase, Phase::Over) {
                Phase::Dialling => {
                    self.phase = Phase::Dialling;
                    if !self.call(now)? {
                        return Ok(None);
                    }
                }
                Phase::Greeting(wire) => {
                    if !self.greet(now, wire)? {
                        return Ok(None);
                    }
                }
                Phase::Seeking {
                    root,
                    mut dial,
                    parent,
                    until,
                } => {
                    let root = listen_to_root(root)?;
                    let challenged = match dial.poll(now) {
                        Some(Answer::Challenged(wire)) => Some(wire),
                        // Some addresses mean another host here than there: the next may be right.
                        Some(Answer::Refused(at, _) | Answer::OtherSession(at)) => {
                            dial.again(now, Problem::Elsewhere(at));
                            None
                        }
                        Some(Answer::OutOfDescriptors(error)) => {
                            return Err(self.out_of_descriptors(&error));
                        }
                        None => None,
                    };
                    let gone = dial
                        .nobody_for(now)
                        .is_some_and(|time| time >= INFO_PATIENCE);
                    if let Some(mut wire) = challenged {
                        wire.send(FrameType::Hello, Vec::new());
                        self.phase = Phase::Climbing {
                            root,
                            wire: Box::new(wire),
                            parent,
                            until,
                        };
                    } else if gone || now >= until {
                        let why = format!("{}: {}", dial.target(), dial.describe(now));
                        leave(root);
                        self.come_again(parent, why);
                    } else {
                        self.phase = Phase::Seeking {
                            root,
                            dial,
                            parent,
                            until,
                        };
                        return Ok(None);
                    }
                }
                Phase::Climbing {
                    root,
                    mut wire,
                    parent,
                    until,
                } => {
                    let root = listen_to_root(root)?;
                    let why = match wire.flush().and_then(|()| wire.receive()) {
                        Ok(None) if now < until => {
                            self.phase = Phase::Climbing {
                                root,
                                wire,
                                parent,
                                until,
                            };
                            return Ok(None);
                        }
                        Ok(Some(frame)) if frame.kind == FrameType::Welcome => {
                            leave(root);
                            self.attach(now, *wire, parent);
                            continue;
                        }
                        Ok(None) => "it has not let us in".to_owned(),
                        Ok(Some(frame)) => format!("it answered a hello with {:?}", frame.kind),
                        Err(error) => error.to_string(),
                    };
                    leave(root);
                    self.come_again(parent, why);
                }
                Phase::Attached {
                    mut wire,
                    parent,
                    heard,
                } => {
                    let received = wire.flush().and_then(|()| wire.receive());
                    match received {
                        Ok(None) if parent != Rank(0) && now.since(heard) >= SILENCE => {
                            wire.send(FrameType::Leave, Vec::new());
                            let _ = wire.flush();
                            let why = format!("it has said nothing for {SILENCE:?}");
                            self.come_again(parent, why);
                        }
                        Ok(None) => {
                            if self.roster.is_some()
                                && let Some(acks) = self.acks.take(now)
                            {
                                wire.send(FrameType::Ack, acks);
                                let _ = wire.flush();
                            }
                            self.phase = Phase::Attached {
                                wire,
                                parent,
                                heard,
                            };
                            return Ok(None);
                        }
                        Ok(Some(frame)) => {
                            self.phase = Phase::Attached {
                                wire,
                                parent,
                                heard: now,
                            };
                            self.hear(now, frame)?;
                        }
                        Err(error) if parent != Rank(0) => {
                            self.come_again(parent, error.to_string());
                        }
                        Err(error) => {
                            let at = wire.peer().to_string();
                            match (self.roster.take(), error) {
                                // The root is gone between telling others that all is done and
                                // telling us. The roster is complete; on all ranks alike the links
                                // find out.
                                (Some(roster), WireError::Ended | WireError::Broke(_)) => {
                                    self.finish(now, roster);
                                }
                                (_, error) => return Err(self.root_lost(&at, &error)),
                            }
                        }
                    }
                }
                Phase::Finishing(roster, until) => {
                    if self.children.all_written() || now >= until {
                        return Ok(Some(roster));
                    }
                    self.phase = Phase::Finishing(roster, until);
                    return Ok(None);
                }
                Phase::Parting {
                    mut wire,
                    error,
                    until,
                } => match wire.flush().and_then(|()| wire.receive()) {
                    Ok(Some(frame)) if frame.kind == FrameType::Failure => {
                        return Err(verdict(&frame).unwrap_or(error));
                    }
                    Ok(Some(_)) => self.phase = Phase::Parting { wire, error, until },
                    Ok(None) if now < until => {
                        self.phase = Phase::Parting { wire, error, until };
                        return Ok(None);
                    }
                    Ok(None) | Err(_) => return Err(error),
                },
                Phase::Failing { error, until } => {
                    if self.children.have_left() || now >= until {
                        self.children.take();
                        return Err(error);
                    }
                    self.phase = Phase::Failing { error, until };
                    return Ok(None);
                }
                Phase::GivenUp(error) => return Err(error),
                Phase::Over => return Ok(None),
            }
        }
    }

    /// Calls the root; whether it has answered.
    fn call(&mut self, now: Nanos) -> Result<bool> {
        let answer = self.dial.poll(now);
        if let Some(roster) = self.judge_silence(now)? {
            self.finish(now, roster);
            return Ok(true);
        }
        if let Some(Answer::OtherSession(_) | Answer::Refused(..)) = answer
            && let Some(roster) = self.roster.take_if(|_| self.hello.orphaned_by.is_some())
        {
            // Our root has ended well, and somebody else listens there now.
            self.finish(now, roster);
            return Ok(true);
        }
        match answer {
            None => Ok(false),
            Some(Answer::Challenged(mut wire)) => {
                wire.set_version(self.version);
                wire.send(FrameType::Hello, self.hello.encode());
                self.root_at = Some(wire.peer().ip());
                self.phase = Phase::Greeting(wire);
                Ok(true)
            }
            Some(Answer::Refused(at, refusal)) => self.refused(now, at, refusal).map(|()| true),
            Some(Answer::OtherSession(at)) if self.may_be_elsewhere() => {
                self.dial.again(now, Problem::Elsewhere(at));
                Ok(false)
            }
            Some(Answer::OtherSession(at)) => Err(other_session(at)),
            Some(Answer::OutOfDescriptors(error)) => Err(self.out_of_descriptors(&error)),
        }
    }

    /// Waits for the answer to the hello; whether it has come, or has to be asked for again.
    fn greet(&mut self, now: Nanos, mut wire: Wire) -> Result<bool> {
        let at = wire.peer();
        match wire.flush().and_then(|()| wire.receive()) {
            Ok(None) => {
                self.phase = Phase::Greeting(wire);
                return Ok(false);
            }
            Ok(Some(frame)) if frame.kind == FrameType::Refusal => {
                self.refused(now, at, Refusal::decode(&frame.body))?;
            }
            Ok(Some(frame)) if frame.kind == FrameType::Place => {
                let place = Place::decode(&frame.body).map_err(malformed)?;
                self.open_door(place.session);
                if place.parent == Rank(0) {
                    self.attach(now, wire, Rank(0));
                } else {
                    self.seek(now, wire, place);
                }
            }
            Ok(Some(frame)) if frame.kind == FrameType::Failure => return Err(verdict(&frame)?),
            Ok(Some(frame)) => return Err(unexpected(frame.kind)),
            Err(WireError::Frame(FrameError::WrongMac { .. })) => {
                self.refused(now, at, Refusal::WrongKey)?;
            }
            // The root may have made room for newer connections: come again.
            Err(_) => {
                self.dial.again(now, Problem::Ended);
                self.phase = Phase::Dialling;
            }
        }
        Ok(true)
    }

    /// Lets ranks in below, now that the session is known.
    fn open_door(&mut self, session: SessionId) {
        if let Some(listener) = self.listener.take() {
            self.door = Some(Door::new(
                listener,
                self.outside.clone(),
                *self.whereabouts.key.as_bytes(),
                session,
                Purpose::Tree,
                self.hello.member.rank,
                2 * super::tree::ARITY,
            ));
        }
        // The root of a name may be another one by now, but never for the same communicator.
        self.whereabouts.session.get_or_insert(session);
    }

    fn seek(&mut self, now: Nanos, root: Wire, place: Place) {
        let call = Call {
            target: Target::Fixed(place.addresses),
            base: *self.whereabouts.key.as_bytes(),
            session: Some(place.session),
            purpose: Purpose::Tree,
            own: self.rank(),
            peer: place.parent,
        };
        self.phase = Phase::Seeking {
            root: Some(Box::new(root)),
            dial: Box::new(Dial::new(self.outside.clone(), call)),
            parent: place.parent,
            until: now + SEEK_PATIENCE,
        };
    }

    fn attach(&mut self, now: Nanos, mut wire: Wire, parent: Rank) {
        tracing::debug!(rank = %self.rank(), above = %parent, at = %wire.peer(), "in the tree of start-up");
        self.tell_troubles(&mut wire);
        // Whoever was above before may not have passed them on.
        self.acks.unsent = self.acks.all.clone();
        self.phase = Phase::Attached {
            wire,
            parent,
            heard: now,
        };
    }

    /// The rank above is out of reach: the root gives another place, or says what is wrong.
    fn come_again(&mut self, parent: Rank, why: String) {
        tracing::debug!(rank = %self.rank(), above = %parent, why, "asks the root for another place");
        self.hello.orphaned_by = Some((parent, why));
        self.dial = call_root(&self.outside, &self.whereabouts, &self.hello.member);
        self.phase = Phase::Dialling;
    }

    /// What comes from above.
    fn hear(&mut self, now: Nanos, frame: Frame) -> Result<()> {
        match frame.kind {
            FrameType::Progress => {
                let size = self.hello.member.size;
                self.progress = Some(Progress::decode(&frame.body, size).map_err(malformed)?);
                let body = frame.into_body();
                self.children.tell_idle(FrameType::Progress, &body);
                self.progress_body = Some(body);
                Ok(())
            }
            FrameType::Failure => Err(verdict(&frame)?),
            FrameType::Roster => self.take_part(now, frame),
            FrameType::Done => match self.roster.take() {
                Some(roster) => {
                    self.finish(now, roster);
                    Ok(())
                }
                None => Err(unexpected(FrameType::Done)),
            },
            kind => Err(unexpected(kind)),
        }
    }

    fn take_part(&mut self, now: Nanos, frame: Frame) -> Result<()> {
        let interned = &self.outside.interned;
        let own = &self.hello.member;
        let part = Part::read(frame, own.size, interned).map_err(malformed)?;
        let body = part.body();
        if self.list.take(part).map_err(malformed)? {
            self.children.tell_all(FrameType::Roster, &body);
        }
        if self.roster.is_none()
            && let Some(members) = self.list.whole(own, interned).map_err(malformed)?
        {
            let session = self.whereabouts.session.unwrap_or(SessionId([0; 16]));
            let roster = Roster::of(session, members, self.whereabouts.key.clone());
            self.roster = Some(roster.seeing_root_at(self.root_at));
            self.times.enter(now, Step::Topology);
            self.acks.expected = self.list.below(self.rank()) + 1;
            self.acks.add(self.rank());
        }
        Ok(())
    }

    fn finish(&mut self, now: Nanos, roster: Roster) {
        let done: Body = Vec::new().into();
        self.children.tell_all(FrameType::Done, &done);
        self.phase = Phase::Finishing(roster, now + GRACE);
    }

    /// What it means that nobody listens where the root did: the roster, if all that was missing
    /// was to hear that everybody has it.
    fn judge_silence(&mut self, now: Nanos) -> Result<Option<Roster>> {
        let gone = self
            .dial
            .nobody_for(now)
            .is_some_and(|time| time >= INFO_PATIENCE);
        if !gone {
            return Ok(None);
        }
        if let Some((parent, why)) = &self.hello.orphaned_by {
            if let Some(roster) = self.roster.take() {
                return Ok(Some(roster));
            }
            return Err(Error::new(
                ErrorKind::PeerLost,
                format!(
                    "rank {parent} was lost during start-up ({why}), and nobody listens at {} any more, where rank 0 did",
                    self.dial.target()
                ),
            )
            .blame_rank(*parent)
            .hint(format!("look at the output of ranks {parent} and 0")));
        }
        if self.whereabouts.session.is_none() {
            return Ok(None);
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

    /// Whether the root may be at the next one of several ports.
    fn may_be_elsewhere(&self) -> bool {
        matches!(&self.whereabouts.target, Target::Named(root) if root.ports().len() > 1)
    }

    /// Somebody hangs up on us.
    fn refused(&mut self, now: Nanos, at: std::net::SocketAddr, refusal: Refusal) -> Result<()> {
        if self.may_be_elsewhere() {
            self.dial.again(now, Problem::Elsewhere(at));
            self.phase = Phase::Dialling;
            return Ok(());
        }
        let rank = self.rank();
        Err(match refusal {
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
        })
    }

    fn out_of_descriptors(&self, error: &std::io::Error) -> Error {
        let what = format!("connect to the root at {}: {error}", self.dial.target());
        Error::new(ErrorKind::LimitReached, what)
            .blame_rank(self.rank())
            .hint("raise `ulimit -n` of this rank")
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
        if let Phase::Parting { .. } | Phase::Failing { .. } | Phase::Finishing(..) = self.phase {
            return None;
        }
        let error = self.late_error(now);
        let wire = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Attached { wire, .. } => Some(wire),
            Phase::Seeking { root, .. } | Phase::Climbing { root, .. } => root.map(|root| *root),
            _ => None,
        };
        match wire {
            Some(mut wire) => {
                let mut writer = Writer::new();
                writer.u32(self.rank().0);
                wire.send(FrameType::Overdue, writer.into_bytes());
                // An error shows up again when the answer is awaited.
                let _ = wire.flush();
                self.phase = Phase::Parting {
                    wire,
                    error,
                    until: now + LAST_WORD,
                };
                None
            }
            None => Some(error),
        }
    }

    fn late_error(&self, now: Nanos) -> Error {
        let rank = self.rank();
        let timeout = |detail: String| Error::new(ErrorKind::Timeout, detail);
        let missing = self.progress.as_ref().filter(|p| !p.missing.is_empty());
        match (&self.phase, missing) {
            (Phase::Attached { parent, .. }, _) if self.roster.is_some() => timeout(format!(
                "at the deadline of rank {rank}, rank {parent} has not told that all ranks have the list of ranks"
            ))
            .blame_rank(*parent)
            .hint(format!("look whether rank {parent} is stopped or its host overloaded")),
            (Phase::Attached { .. }, Some(progress)) => {
                let detail = format!("at the deadline of rank {rank}, {}", progress.describe());
                let error = timeout(detail).hint(
                    "look at the output of the missing ranks; raise HCOMM_CONNECT_TIMEOUT if they only start late",
                );
                progress
                    .missing
                    .iter()
                    .fold(error, |error, &missing| error.blame_rank(missing))
            }
            (
                Phase::Attached { parent, .. }
                | Phase::Climbing { parent, .. }
                | Phase::Seeking { parent, .. },
                _,
            ) => timeout(format!(
                "rank {parent} has not gone on with start-up by the deadline of rank {rank}"
            ))
            .blame_rank(*parent)
            .hint(format!("look whether rank {parent} is stopped or its host overloaded")),
            (Phase::Greeting(_), _) => timeout(
                "rank 0 has accepted the connection but not gone on by the deadline".to_owned(),
            )
            .blame_rank(Rank(0))
            .hint("look whether rank 0 is stopped or its host overloaded"),
            _ => timeout(format!(
                "no root has answered at {}: {}; {} attempts",
                self.dial.target(),
                self.dial.describe(now),
                self.dial.tries()
            ))
            .blame_rank(Rank(0))
            .hint("look at the output of rank 0, and whether HCOMM_ROOT or MASTER_ADDR and MASTER_PORT name its host and port"),
        }
    }
}

fn call_root(outside: &Outside, whereabouts: &Whereabouts, member: &Member) -> Dial {
    let call = Call {
        target: whereabouts.target.clone(),
        base: *whereabouts.key.as_bytes(),
        session: whereabouts.session,
        purpose: Purpose::Bootstrap,
        own: member.rank,
        peer: Rank(0),
    };
    Dial::new(outside.clone(), call)
}

/// What the root says to a rank that is on its way to its place: only that all is over. Its end says
/// nothing, for the place is with another rank.
fn listen_to_root(root: Option<Box<Wire>>) -> Result<Option<Box<Wire>>> {
    let Some(mut wire) = root else {
        return Ok(None);
    };
    match wire.flush().and_then(|()| wire.receive()) {
        Ok(None) => Ok(Some(wire)),
        Ok(Some(frame)) if frame.kind == FrameType::Failure => Err(verdict(&frame)?),
        Ok(Some(frame)) => Err(unexpected(frame.kind)),
        Err(_) => Ok(None),
    }
}

/// The root need not wait for this connection any more: it has another one, or none is wanted.
fn leave(root: Option<Box<Wire>>) {
    if let Some(mut wire) = root {
        wire.send(FrameType::Leave, Vec::new());
        let _ = wire.flush();
    }
}

/// Why start-up failed, by the root.
fn verdict(frame: &Frame) -> Result<Error> {
    Verdict::decode(&frame.body)
        .map(|verdict| verdict.to_error())
        .map_err(malformed)
}

fn other_session(at: std::net::SocketAddr) -> Error {
    Error::new(
        ErrorKind::Refused,
        format!("the root at {at} serves another communicator: the root info given here was used before, or is an old one whose port has a new owner"),
    )
    .hint("make a new root info for each communicator")
}

fn malformed(malformed: crate::codec::Malformed) -> Error {
    internal(format!("rank 0 sent a {malformed}"))
}

fn unexpected(kind: FrameType) -> Error {
    internal(format!("rank 0 sent an unexpected {kind:?} frame"))
}

fn internal(detail: String) -> Error {
    Error::new(ErrorKind::Internal, detail).blame_rank(Rank(0))
}
