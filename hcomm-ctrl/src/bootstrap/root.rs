//! Rank 0's side of start-up: gathers the hellos, compares them, and gives everybody the roster
//! or the reason why there is none.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use hcomm_transport::Interest;
use hcomm_types::{Deadline, Error, ErrorKind, Nanos, Rank, Result};

use super::comparison::{Claim, compare, describe, describe_root, unreachable};
use super::member::{Hello, Member, Roster, place};
use super::verdict::{Progress, Verdict, name_ranks};
use super::{Step, Times};
use crate::door::{Door, Event};
use crate::frame::{Body, Frame, FrameType, PROTOCOL_VERSION};
use crate::job_key::{JobKey, SessionId};
use crate::net::{Listener, is_out_of_descriptors};
use crate::outside::Outside;
use crate::wire::{Purpose, Wire, WireError};

/// How long a root that has failed stays, so that ranks that come later hear why.
const GRACE: Duration = Duration::from_secs(3);
/// How long it stays for ranks that are connected already when the deadline itself was the cause.
const LAST_GRACE: Duration = Duration::from_millis(500);
/// How often members hear who is missing, at least and at most.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
const PROGRESS_SPACING: Duration = Duration::from_millis(100);
/// Refused connections that are remembered for the final error.
const MAX_NOTES: usize = 16;

pub(super) struct Root {
    door: Door,
    key: JobKey,
    session: SessionId,
    own: Member,
    /// By rank; rank 0 is not in it.
    joined: BTreeMap<Rank, Joined>,
    notes: Vec<String>,
    deadline: Deadline,
    started: Nanos,
    told_progress: Nanos,
    /// What was told then; newcomers get the same until the next time.
    progress_body: Body,
    changed: bool,
    phase: Phase,
    times: Times,
}

/// A rank that has proven the key.
struct Joined {
    wire: Wire,
    attempt: u64,
    member: Member,
    acknowledged: bool,
}

/// What one rank means for all.
enum Trouble {
    /// It is gone, or is dropped.
    Lost(Rank, Verdict),
    /// Its deadline has passed; it waits for an answer.
    Overdue(Rank),
    /// It has said why it cannot go on, and waits for an answer.
    GaveUp(Verdict),
}

enum Phase {
    /// Waiting for hellos.
    Gathering,
    /// The roster is out; waiting for acknowledgements.
    Spreading(Roster),
    /// Everybody has it; the last frames go out.
    Finishing(Roster),
    /// Telling everybody why not.
    Failing(Failing),
    Over,
}

struct Failing {
    verdict: Verdict,
    until: Nanos,
    body: Body,
    /// Being told: they leave when they have read it.
    parting: Vec<(Option<Rank>, Wire)>,
    /// Ranks that know or need not be told.
    told: Vec<Rank>,
    /// Whether ranks that have not come yet are waited for.
    expect_more: bool,
}

impl Root {
    pub(super) fn new(
        outside: Outside,
        listener: Box<dyn Listener>,
        key: JobKey,
        session: SessionId,
        own: Member,
        timeout: Duration,
        now: Nanos,
    ) -> Self {
        let expected = own.size as usize;
        let nobody_yet = Progress {
            missing: (1..own.size).map(Rank).collect(),
            notes: Vec::new(),
        };
        Self {
            door: Door::new(
                listener,
                outside,
                *key.as_bytes(),
                session,
                Purpose::Bootstrap,
                own.rank,
                expected,
            ),
            key,
            session,
            own,
            joined: BTreeMap::new(),
            notes: Vec::new(),
            deadline: Deadline::after(now, timeout),
            started: now,
            told_progress: now,
            progress_body: nobody_yet.encode().into(),
            changed: true,
            phase: Phase::Gathering,
            times: Times::new(now),
        }
    }

    pub(super) const fn step(&self) -> Step {
        match self.phase {
            Phase::Gathering | Phase::Failing(_) => Step::Handshake,
            Phase::Spreading(_) | Phase::Finishing(_) => Step::Topology,
            Phase::Over => Step::Paths,
        }
    }

    pub(super) fn poll(&mut self, now: Nanos) -> Poll<Result<Roster>> {
        if let Err(error) = self.open_door(now) {
            self.fail(
                now,
                listener_verdict(&self.own, self.door.local_addr(), error),
            );
        }
        self.hear_members(now);
        self.advance(now);
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Finishing(roster) if self.all_written() => {
                self.times.finish(now, self.own.rank, self.own.size);
                Poll::Ready(Ok(roster))
            }
            Phase::Failing(mut failing) => {
                if failing.look(self.own.size) || now >= failing.until {
                    let error = failing.verdict.to_error();
                    Poll::Ready(Err(error
                        .at_rank(self.own.rank)
                        .after(now.since(self.started))))
                } else {
                    self.phase = Phase::Failing(failing);
                    Poll::Pending
                }
            }
            phase => {
                self.phase = phase;
                Poll::Pending
            }
        }
    }

    pub(super) fn interests<'a>(&'a self, wanted: &mut Vec<Interest<'a>>) {
        self.door.interests(wanted);
        wanted.extend(self.joined.values().filter_map(|j| j.wire.interest()));
        if let Phase::Failing(failing) = &self.phase {
            wanted.extend(
                failing
                    .parting
                    .iter()
                    .filter_map(|(_, wire)| wire.interest()),
            );
        }
    }

    pub(super) fn next_wake(&self) -> Deadline {
        let own = match &self.phase {
            Phase::Failing(failing) => Deadline::at(failing.until),
            Phase::Gathering if !self.joined.is_empty() => {
                let pause = if self.changed {
                    PROGRESS_SPACING
                } else {
                    PROGRESS_EVERY
                };
                self.deadline
                    .earlier(Deadline::at(self.told_progress + pause))
            }
            _ => self.deadline,
        };
        own.earlier(self.door.next_wake())
    }

    fn open_door(&mut self, now: Nanos) -> io::Result<()> {
        let mut events = Vec::new();
        let polled = self.door.poll(now, &mut events);
        for event in events {
            match event {
                Event::Proven(wire, frame) => self.admit(now, *wire, &frame),
                Event::WrongKey { peer, claimed } => self.note_wrong_key(now, peer, claimed),
            }
        }
        polled
    }

    fn note_wrong_key(&mut self, now: Nanos, peer: SocketAddr, claimed: Option<Rank>) {
        let who = match claimed {
            Some(rank) => format!("which claims to be rank {rank}"),
            None => "which claims no rank".to_owned(),
        };
        let note = format!(
            "a connection from {}, {who}, was refused because its job key differs",
            peer.ip()
        );
        if self.notes.contains(&note) || self.notes.len() >= MAX_NOTES {
            return;
        }
        let elapsed_s = now.since(self.started).as_secs_f64();
        tracing::warn!(%peer, claimed_rank = ?claimed, elapsed_s, "a connection was refused: the MAC of its hello does not fit, so its job key differs");
        self.notes.push(note);
        self.changed = true;
    }

    /// Compares a hello with what is known, and lets its rank in.
    fn admit(&mut self, now: Nanos, wire: Wire, frame: &Frame) {
        let decoded = if frame.version == PROTOCOL_VERSION {
            Hello::decode(&frame.body)
        } else {
            Hello::decode_names(&frame.body)
        };
        let Hello {
            attempt,
            mut member,
        } = match decoded {
            Ok(hello) => hello,
            Err(malformed) => {
                // It has the key, so it is one of ours: nobody can go on without it.
                let rank = frame.rank.into_iter().collect();
                let detail = format!(
                    "the hello from {} is a {malformed}; it speaks protocol {}, rank 0 speaks {PROTOCOL_VERSION}",
                    wire.peer(),
                    frame.version
                );
                let verdict = Verdict::new(ErrorKind::Mismatch, rank, detail);
                self.fail(now, verdict);
                return self.tell_late(wire, frame.rank);
            }
        };
        place(&mut member, wire.peer().ip());
        if let Phase::Failing(_) = self.phase {
            return self.tell_late(wire, Some(member.rank));
        }
        let rank = member.rank;
        let repeated = self
            .joined
            .get(&rank)
            .is_some_and(|joined| joined.attempt == attempt);
        let objection = if repeated {
            None
        } else {
            self.objection(&member, wire.peer(), frame)
        };
        if let Some(verdict) = objection {
            // Not into `joined`: its number may be that of somebody else.
            self.fail(now, verdict);
            return self.tell_late(wire, Some(rank));
        }
        tracing::debug!(%rank, peer = %wire.peer(), "a rank has joined");
        self.joined.insert(
            rank,
            Joined {
                wire,
                attempt,
                member,
                acknowledged: false,
            },
        );
        self.changed = true;
        self.times.note_last(now, rank);
        if let Some(joined) = self.joined.get_mut(&rank) {
            joined
                .wire
                .send(FrameType::Progress, self.progress_body.clone());
        }
    }

    /// What speaks against a rank, if anything.
    fn objection(&self, member: &Member, peer: SocketAddr, frame: &Frame) -> Option<Verdict> {
        let namesake = if member.rank == self.own.rank {
            Some((
                &self.own,
                format!("listening at {}", self.door.local_addr()),
            ))
        } else {
            let other = self.joined.get(&member.rank);
            other.map(|other| (&other.member, other.wire.peer().to_string()))
        };
        let claim = Claim {
            member,
            peer,
            version: frame.version,
            claimed: frame.rank,
        };
        compare(&self.own, &claim, namesake)
    }

    /// This rank cannot go on; the others are told why.
    pub(super) fn give_up(&mut self, error: &Error, now: Nanos) {
        let mut verdict = Verdict::of(error);
        verdict.detail = format!(
            "{} has given up: {}",
            describe_root(&self.own),
            verdict.detail
        );
        if verdict.culprits.is_empty() {
            verdict.culprits.push(self.own.rank);
        }
        self.fail(now, verdict);
    }

    fn hear_members(&mut self, now: Nanos) {
        // After everything was said, leaving is right.
        if let Phase::Finishing(_) = self.phase {
            return;
        }
        let mut trouble = None;
        for (&rank, joined) in &mut self.joined {
            trouble = joined.hear(rank);
            if trouble.is_some() {
                break;
            }
        }
        match trouble {
            None => {}
            Some(Trouble::Lost(rank, verdict)) => {
                self.joined.remove(&rank);
                self.fail(now, verdict);
                if let Phase::Failing(failing) = &mut self.phase {
                    failing.told.push(rank);
                }
            }
            Some(Trouble::Overdue(rank)) => {
                let verdict = self.late_verdict(rank);
                self.fail(now, verdict);
            }
            Some(Trouble::GaveUp(verdict)) => self.fail(now, verdict),
        }
    }

    fn advance(&mut self, now: Nanos) {
        if matches!(self.phase, Phase::Gathering | Phase::Spreading(_)) && self.deadline.passed(now)
        {
            let verdict = self.late_verdict(self.own.rank);
            return self.fail(now, verdict);
        }
        match &self.phase {
            Phase::Gathering => {
                if self.joined.len() + 1 == self.own.size as usize {
                    self.spread(now);
                } else {
                    self.tell_progress(now);
                }
            }
            Phase::Spreading(_) if self.joined.values().all(|joined| joined.acknowledged) => {
                for joined in self.joined.values_mut() {
                    joined.wire.send(FrameType::Done, Vec::new());
                }
                if let Phase::Spreading(roster) = std::mem::replace(&mut self.phase, Phase::Over) {
                    self.phase = Phase::Finishing(roster);
                }
            }
            _ => {}
        }
    }

    /// Everybody is here: the roster goes out.
    fn spread(&mut self, now: Nanos) {
        let own = std::iter::once((&self.own, self.door.local_addr()));
        let joined = self.joined.values().map(|j| (&j.member, j.wire.peer()));
        if let Some(verdict) = unreachable(&own.chain(joined).collect::<Vec<_>>()) {
            return self.fail(now, verdict);
        }
        self.times.enter(now, Step::Topology);
        let members = std::iter::once(self.own.clone())
            .chain(self.joined.values().map(|joined| joined.member.clone()))
            .collect();
        let roster = Roster::new(self.session, members, self.key.clone());
        let body = roster.encode();
        if body.len() > FrameType::Roster.limit() {
            let verdict = Verdict::new(
                ErrorKind::LimitReached,
                vec![Rank(0)],
                format!(
                    "the roster of {} ranks has {} bytes; the limit is {}",
                    self.own.size,
                    body.len(),
                    FrameType::Roster.limit()
                ),
            );
            return self.fail(now, verdict);
        }
        let body: Body = body.into();
        for joined in self.joined.values_mut() {
            joined.wire.send(FrameType::Roster, body.clone());
            // An error shows up again when the member is heard.
            let _ = joined.wire.flush();
        }
        self.phase = Phase::Spreading(roster);
        // Without members there is nothing to wait for.
        if self.joined.is_empty() {
            self.advance(now);
        }
    }

    fn progress(&self) -> Progress {
        let missing = (1..self.own.size)
            .map(Rank)
            .filter(|rank| !self.joined.contains_key(rank))
            .collect();
        Progress {
            missing,
            notes: self.notes.clone(),
        }
    }

    fn tell_progress(&mut self, now: Nanos) {
        let since = now.since(self.told_progress);
        if since >= PROGRESS_EVERY || (self.changed && since >= PROGRESS_SPACING) {
            self.told_progress = now;
            self.changed = false;
            self.progress_body = self.progress().encode().into();
            for joined in self.joined.values_mut() {
                // A member that does not read gets the next one; nothing piles up.
                if joined.wire.queued_bytes() == 0 {
                    joined
                        .wire
                        .send(FrameType::Progress, self.progress_body.clone());
                }
            }
        }
        for joined in self.joined.values_mut() {
            let _ = joined.wire.flush();
        }
    }

    /// The deadline of a rank has passed.
    fn late_verdict(&self, whose: Rank) -> Verdict {
        if let Phase::Gathering = self.phase {
            let progress = self.progress();
            let detail = format!("at the deadline of rank {whose}, {}", progress.describe());
            return Verdict::new(ErrorKind::Timeout, progress.missing, detail).hint(
                "look at the output of the missing ranks; raise HCOMM_CONNECT_TIMEOUT if they only start late",
            );
        }
        let silent: Vec<Rank> = self
            .joined
            .iter()
            .filter(|(_, joined)| !joined.acknowledged)
            .map(|(rank, _)| *rank)
            .collect();
        let detail = format!(
            "at the deadline of rank {whose}, {} not acknowledged the list of ranks",
            name_ranks(&silent, "has", "have")
        );
        Verdict::new(ErrorKind::Timeout, silent, detail)
            .hint("look whether those ranks are stopped or their hosts overloaded")
    }

    /// The first failure counts; everybody is told.
    fn fail(&mut self, now: Nanos, verdict: Verdict) {
        if let Phase::Failing(_) | Phase::Finishing(_) | Phase::Over = self.phase {
            return;
        }
        tracing::debug!(detail = verdict.detail, "start-up has failed");
        let late = self.deadline.passed(now);
        let until = match self.deadline.moment() {
            _ if late => now + LAST_GRACE,
            Some(end) => end.min(now + GRACE),
            None => now + GRACE,
        };
        let body: Body = verdict.encode().into();
        let mut failing = Failing {
            verdict,
            until,
            body,
            parting: Vec::new(),
            told: vec![self.own.rank],
            expect_more: !late,
        };
        for (rank, joined) in std::mem::take(&mut self.joined) {
            failing.tell(Some(rank), joined.wire);
        }
        self.phase = Phase::Failing(failing);
    }

    /// Tells a rank that came after the failure.
    fn tell_late(&mut self, wire: Wire, rank: Option<Rank>) {
        if let Phase::Failing(failing) = &mut self.phase {
            failing.tell(rank, wire);
        }
    }

    fn all_written(&mut self) -> bool {
        self.joined
            .values_mut()
            // A member that is gone now was complete; its peers will notice.
            .all(|joined| joined.wire.flush().is_err() || joined.wire.queued_bytes() == 0)
    }
}

impl Joined {
    /// Writes, and hears everything that it has said.
    fn hear(&mut self, rank: Rank) -> Option<Trouble> {
        loop {
            let heard = self.wire.flush().and_then(|()| self.wire.receive());
            let who = describe(&self.member, self.wire.peer());
            let frame = match heard {
                Ok(None) => return None,
                Ok(Some(frame)) => frame,
                Err(error) => return Some(Trouble::Lost(rank, lost(rank, &who, &error))),
            };
            match frame.kind {
                FrameType::Ack => self.acknowledged = true,
                FrameType::Overdue => return Some(Trouble::Overdue(rank)),
                FrameType::Failure => {
                    let mut verdict = Verdict::decode(&frame.body).unwrap_or_else(|malformed| {
                        Verdict::new(ErrorKind::Internal, vec![rank], malformed.to_string())
                    });
                    verdict.detail = format!("{who} has given up: {}", verdict.detail);
                    return Some(Trouble::GaveUp(verdict));
                }
                kind => {
                    let detail = format!("{who} sent an unexpected {kind:?} frame");
                    let verdict = Verdict::new(ErrorKind::Internal, vec![rank], detail);
                    return Some(Trouble::Lost(rank, verdict));
                }
            }
        }
    }
}

impl Failing {
    fn tell(&mut self, rank: Option<Rank>, mut wire: Wire) {
        wire.send(FrameType::Failure, self.body.clone());
        let _ = wire.flush();
        self.parting.push((rank, wire));
    }

    /// Whether everybody knows. Members hang up once they have read the failure; closing before
    /// that could take it away from them.
    fn look(&mut self, size: u32) -> bool {
        let told = &mut self.told;
        self.parting.retain_mut(|(rank, wire)| {
            let gone = wire.flush().is_err() || wire.drain();
            if gone {
                told.extend(*rank);
            }
            !gone
        });
        let all_came = (0..size).all(|rank| self.told.contains(&Rank(rank)));
        self.parting.is_empty() && (all_came || !self.expect_more)
    }
}

fn lost(rank: Rank, who: &str, error: &WireError) -> Verdict {
    Verdict::new(
        ErrorKind::PeerLost,
        vec![rank],
        format!("{who} was lost during start-up: {error}"),
    )
    .hint(format!("look at the output of rank {rank}"))
}

fn listener_verdict(own: &Member, at: SocketAddr, error: io::Error) -> Verdict {
    let out_of_descriptors = is_out_of_descriptors(&error);
    let kind = if out_of_descriptors {
        ErrorKind::LimitReached
    } else {
        ErrorKind::System
    };
    let verdict = Verdict::new(
        kind,
        vec![own.rank],
        format!(
            "{} cannot accept connections at {at}: {error}",
            describe_root(own)
        ),
    );
    if out_of_descriptors {
        verdict.hint(format!(
            "raise `ulimit -n` at rank 0: start-up of {} ranks needs a descriptor for each",
            own.size
        ))
    } else {
        verdict
    }
}

/// Makes the error of a rank that cannot even begin.
pub(super) fn cannot_listen(rank: Rank, at: impl std::fmt::Display, error: io::Error) -> Error {
    Error::system(format_args!("listen at {at} as the root"), error)
        .at_rank(rank)
        .hint("HCOMM_ROOT or MASTER_ADDR must name an address of rank 0's host")
}
