//! Rank 0's side of start-up: gathers the hellos, compares them, gives every rank its place in the
//! tree, and then sends all the roster, or the reason why there is none, down the tree.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use hcomm_transport::Interest;
use hcomm_types::{Deadline, Error, ErrorKind, Nanos, Rank, Result};

use super::branches::{Branches, News};
use super::comparison::{
    Claim, compare, describe, describe_root, differences, differs, unreachable, warn_of_varying,
};
use super::member::{Hello, Member, Place, place};
use super::roster::{Roster, split};
use super::tree::Tree;
use super::verdict::{Progress, Trouble, Verdict, name_ranks, read_ranks};
use super::{Step, Times};
use crate::codec::Reader;
use crate::door::{Door, Event, MOST_CONNECTIONS};
use crate::frame::{Body, Frame, FrameType, PROTOCOL_VERSION};
use crate::job_key::{JobKey, SessionId};
use crate::net::{Listener, is_out_of_descriptors};
use crate::outside::Outside;
use crate::wire::{Purpose, Wire};

/// How long a root that has failed stays, so that ranks that come later hear why.
const GRACE: Duration = Duration::from_secs(3);
/// How long it stays for ranks that are connected already when the deadline itself was the cause.
const LAST_GRACE: Duration = Duration::from_millis(500);
/// How often members hear who is missing, at least and at most.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
const PROGRESS_SPACING: Duration = Duration::from_millis(100);
/// The more ranks, the longer the list of those that are missing: with more ranks than this, it
/// goes out less often.
const FEW_RANKS: u32 = 1000;
/// When settings differ, how long the others are waited for, so that all differences are told.
const DIFFERENCES: Duration = Duration::from_secs(1);
/// Descriptors that rank 0 needs beside those of connections.
const SPARE_DESCRIPTORS: usize = 96;
/// Refused connections that are remembered for the final error.
const MAX_NOTES: usize = 16;

pub(super) struct Root {
    door: Door,
    key: JobKey,
    session: SessionId,
    own: Member,
    /// By rank; rank 0 is not in it.
    known: BTreeMap<Rank, Known>,
    tree: Tree,
    /// Those directly below.
    children: Branches,
    /// Those that were given a place elsewhere and are not there yet.
    contacts: Branches,
    notes: Vec<String>,
    deadline: Deadline,
    started: Nanos,
    told_progress: Nanos,
    /// What was told then; newcomers get the same until the next time.
    progress_body: Body,
    changed: bool,
    /// When settings were first seen to differ.
    differing_since: Option<Nanos>,
    acknowledged: usize,
    phase: Phase,
    times: Times,
}

/// A rank that has proven the key.
struct Known {
    attempt: u64,
    member: Member,
    /// Where its connection came from.
    peer: SocketAddr,
    /// Port at which it accepts ranks below it.
    port: u16,
    acknowledged: bool,
}

enum Phase {
    /// Waiting for hellos.
    Gathering,
    /// The roster is out; waiting for acknowledgements.
    Spreading(Roster, Vec<Body>),
    /// Everybody has it; the last frames go out.
    /// They go out until then at the latest: who does not read them finds out by its links.
    Finishing(Roster, Nanos),
    /// Telling everybody why not.
    Failing(Failing),
    Over,
}

struct Failing {
    verdict: Verdict,
    until: Nanos,
    body: Body,
    /// Being told: they leave when they have read it, and when those below them have.
    parting: Vec<(Option<Rank>, Wire)>,
    /// Ranks that are gone: who hung below them comes here.
    lost: Vec<Rank>,
    /// Of each rank, whether it knows or need not be told; how many do.
    told: Vec<bool>,
    count: usize,
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
            tree: Tree::new(own.rank, &own.host_id),
            own,
            known: BTreeMap::new(),
            children: Branches::default(),
            contacts: Branches::default(),
            notes: Vec::new(),
            deadline: Deadline::after(now, timeout),
            started: now,
            told_progress: now,
            progress_body: nobody_yet.encode().into(),
            changed: true,
            differing_since: None,
            acknowledged: 0,
            phase: Phase::Gathering,
            times: Times::new(now),
        }
    }

    pub(super) const fn step(&self) -> Step {
        match self.phase {
            Phase::Gathering | Phase::Failing(_) => Step::Handshake,
            Phase::Spreading(..) | Phase::Finishing(..) => Step::Topology,
            Phase::Over => Step::Paths,
        }
    }

    pub(super) fn poll(&mut self, now: Nanos) -> Poll<Result<Roster>> {
        // Whoever has found its place makes room for others.
        self.hear(now);
        if let Err(error) = self.open_door(now) {
            self.fail(
                now,
                listener_verdict(&self.own, self.door.local_addr(), error),
            );
        }
        self.advance(now);
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Finishing(roster, until) if self.children.all_written() || now >= until => {
                self.times.finish(now, self.own.rank, self.own.size);
                Poll::Ready(Ok(roster))
            }
            Phase::Failing(mut failing) => {
                if failing.look(&self.tree) || now >= failing.until {
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
        self.children.interests(wanted);
        self.contacts.interests(wanted);
        if let Phase::Failing(failing) = &self.phase {
            let parting = failing.parting.iter();
            wanted.extend(parting.filter_map(|(_, wire)| wire.interest()));
        }
    }

    pub(super) fn next_wake(&self) -> Deadline {
        let own = match &self.phase {
            Phase::Failing(failing) => Deadline::at(failing.until),
            Phase::Finishing(_, until) => Deadline::at(*until),
            Phase::Gathering | Phase::Spreading(..) if !self.known.is_empty() => {
                let told = self.told_progress + self.progress_pause();
                let compared = self.differing_since.map(|since| since + DIFFERENCES);
                let soonest = compared.map_or(told, |compared| told.min(compared));
                self.deadline.earlier(Deadline::at(soonest))
            }
            _ => self.deadline,
        };
        own.earlier(self.door.next_wake())
    }

    fn open_door(&mut self, now: Nanos) -> io::Result<()> {
        let mut events = Vec::new();
        self.door.leave_room(self.contacts.len());
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
            port,
            orphaned_by,
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
        place(&mut member.mesh, wire.peer().ip());
        if let Phase::Failing(_) = self.phase {
            return self.tell_late(wire, Some(member.rank));
        }
        let rank = member.rank;
        let before = self.known.get(&rank);
        let repeated = before.is_some_and(|before| before.attempt == attempt);
        let objection = if repeated {
            None
        } else {
            self.objection(&member, wire.peer(), frame)
        };
        if let Some(verdict) = objection {
            // Not into `known`: its number may be that of somebody else.
            self.fail(now, verdict);
            return self.tell_late(wire, Some(rank));
        }
        if differs(&self.own, &member) {
            self.differing_since.get_or_insert(now);
        }
        let above = match (self.tree.parent(rank), orphaned_by) {
            (Some(above), None) => above,
            // Whom it cannot reach may be as well as we are; so it comes to us.
            (_, Some((above, why))) => {
                tracing::debug!(%rank, %above, why, "a rank cannot stay below another one");
                self.tree.hang(rank, self.own.rank);
                self.own.rank
            }
            (None, None) => self.tree.place(rank, &member.host_id, port != 0),
        };
        tracing::debug!(%rank, peer = %wire.peer(), %above, "a rank has joined");
        if !repeated {
            let known = Known {
                attempt,
                peer: wire.peer(),
                port,
                acknowledged: false,
                member,
            };
            self.known.insert(rank, known);
            self.changed = true;
            self.times.note_last(now, rank);
        }
        self.give_place(rank, above, wire);
    }

    /// Tells a rank where it hangs.
    fn give_place(&mut self, rank: Rank, above: Rank, mut wire: Wire) {
        let place = Place {
            session: self.session,
            parent: above,
            addresses: self.addresses(above, rank),
        };
        wire.send(FrameType::Place, place.encode());
        // An error shows up again when it is heard.
        let _ = wire.flush();
        if above != self.own.rank {
            self.contacts.adopt(rank, wire);
            // The one that has been on its way for longest finds its place, or comes again.
            self.contacts.keep(MOST_CONNECTIONS - MOST_CONNECTIONS / 8);
            return;
        }
        self.children.adopt(rank, wire);
        self.children
            .tell(rank, FrameType::Progress, self.progress_body.clone());
        if let Phase::Spreading(_, parts) = &self.phase {
            for part in parts {
                self.children.tell(rank, FrameType::Roster, part.clone());
            }
        }
    }

    /// Where one rank accepts another one below it.
    fn addresses(&self, above: Rank, rank: Rank) -> Vec<SocketAddr> {
        let (Some(above), Some(rank)) = (self.known.get(&above), self.known.get(&rank)) else {
            return Vec::new();
        };
        let same_host = above.member.host_id == rank.member.host_id;
        let mut ips: Vec<_> = above.member.mesh.iter().map(SocketAddr::ip).collect();
        if ips.is_empty() {
            ips.push(above.peer.ip());
        }
        // A loopback address leads elsewhere on another host; as the only one it is refused later.
        let all_loop = ips.iter().all(std::net::IpAddr::is_loopback);
        ips.retain(|ip| same_host || all_loop || !ip.is_loopback());
        ips.dedup();
        ips.into_iter()
            .map(|ip| SocketAddr::new(ip, above.port))
            .collect()
    }

    /// What speaks against a rank at once, if anything.
    fn objection(&self, member: &Member, peer: SocketAddr, frame: &Frame) -> Option<Verdict> {
        let namesake = if member.rank == self.own.rank {
            Some((
                &self.own,
                format!("listening at {}", self.door.local_addr()),
            ))
        } else {
            let other = self.known.get(&member.rank);
            other.map(|other| (&other.member, other.peer.to_string()))
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

    /// Everything that has come up the tree, and from ranks on their way into it.
    fn hear(&mut self, now: Nanos) {
        let below = self.children.hear();
        for news in below.into_iter().chain(self.contacts.hear()) {
            match news {
                News::Said(rank, frame) => self.hear_child(now, rank, frame),
                News::Lost(rank, error) => self.lose(now, rank, &error.to_string()),
            }
        }
    }

    fn hear_child(&mut self, now: Nanos, child: Rank, frame: Frame) {
        let mut reader = Reader::new(&frame.body);
        let size = self.own.size;
        let unclear = match frame.kind {
            FrameType::Ack => match read_ranks(&mut reader, size, "acknowledgement") {
                Ok(ranks) => return self.acknowledge(&ranks),
                Err(malformed) => format!("sent a {malformed}"),
            },
            FrameType::Overdue => match reader.u32("deadline") {
                Ok(rank) => {
                    let verdict = self.late_verdict(Rank(rank));
                    return self.fail(now, verdict);
                }
                Err(malformed) => format!("sent a {malformed}"),
            },
            FrameType::Trouble => match Trouble::decode(&frame.body) {
                Ok(trouble) if trouble.is_lost => {
                    return self.lose(now, trouble.rank, &trouble.verdict.detail);
                }
                Ok(trouble) => {
                    let mut verdict = trouble.verdict;
                    let who = self.describe(trouble.rank);
                    verdict.detail = format!("{who} has given up: {}", verdict.detail);
                    return self.fail(now, verdict);
                }
                Err(malformed) => format!("sent a {malformed}"),
            },
            kind => format!("sent an unexpected {kind:?} frame"),
        };
        let detail = format!("{} {unclear}", self.describe(child));
        self.fail(now, Verdict::new(ErrorKind::Internal, vec![child], detail));
    }

    fn acknowledge(&mut self, ranks: &[Rank]) {
        for rank in ranks {
            if let Some(known) = self.known.get_mut(rank)
                && !known.acknowledged
            {
                known.acknowledged = true;
                self.acknowledged += 1;
            }
        }
    }

    fn lose(&mut self, now: Nanos, rank: Rank, why: &str) {
        let verdict = Verdict::new(
            ErrorKind::PeerLost,
            vec![rank],
            format!("{} was lost during start-up: {why}", self.describe(rank)),
        )
        .hint(format!("look at the output of rank {rank}"));
        self.fail(now, verdict);
        if let Phase::Failing(failing) = &mut self.phase {
            failing.lost.push(rank);
            failing.note_told(rank);
        }
    }

    fn describe(&self, rank: Rank) -> String {
        self.known.get(&rank).map_or_else(
            || format!("rank {rank}"),
            |known| describe(&known.member, known.peer),
        )
    }

    fn advance(&mut self, now: Nanos) {
        if matches!(self.phase, Phase::Gathering | Phase::Spreading(..))
            && self.deadline.passed(now)
        {
            let verdict = self.late_verdict(self.own.rank);
            return self.fail(now, verdict);
        }
        match &self.phase {
            Phase::Gathering => {
                let all_here = self.known.len() + 1 == self.own.size as usize;
                let overdue = |since: Nanos| now.since(since) >= DIFFERENCES;
                if self.differing_since.is_some_and(|s| all_here || overdue(s)) {
                    let others = self.known.values().map(|k| (&k.member, k.peer));
                    let verdict = differences(&self.own, others);
                    self.fail(now, verdict);
                } else if all_here {
                    self.spread(now);
                } else {
                    self.tell_progress(now);
                }
            }
            Phase::Spreading(..) if self.acknowledged == self.known.len() => {
                self.children.tell_all(FrameType::Done, &Vec::new().into());
                if let Phase::Spreading(roster, _) = std::mem::replace(&mut self.phase, Phase::Over)
                {
                    self.phase = Phase::Finishing(roster, now + GRACE);
                }
            }
            Phase::Spreading(..) => self.tell_progress(now),
            _ => {}
        }
    }

    /// Everybody is here: the roster goes out.
    fn spread(&mut self, now: Nanos) {
        let own = std::iter::once((&self.own, self.door.local_addr()));
        let others = self.known.values().map(|k| (&k.member, k.peer));
        if let Some(verdict) = unreachable(&own.chain(others).collect::<Vec<_>>()) {
            return self.fail(now, verdict);
        }
        warn_of_varying(&self.own, self.known.values().map(|k| (&k.member, k.peer)));
        self.times.enter(now, Step::Topology);
        let members: Vec<Member> = std::iter::once(self.own.clone())
            .chain(self.known.values().map(|known| known.member.clone()))
            .collect();
        let parts = split(&members, |rank| self.tree.parent(rank).unwrap_or(Rank(0)));
        for part in &parts {
            self.children.tell_all(FrameType::Roster, part);
        }
        let roster = Roster::new(self.session, members, self.key.clone());
        self.phase = Phase::Spreading(roster, parts);
        // Without members there is nothing to wait for.
        if self.known.is_empty() {
            self.advance(now);
        }
    }

    fn progress(&self) -> Progress {
        let missing = (1..self.own.size)
            .map(Rank)
            .filter(|rank| !self.known.contains_key(rank))
            .collect();
        Progress {
            missing,
            notes: self.notes.clone(),
        }
    }

    /// How long after the last word on missing ranks the next one is due.
    fn progress_pause(&self) -> Duration {
        if self.changed {
            let many = (self.own.size / FEW_RANKS).clamp(1, 10);
            PROGRESS_SPACING * many
        } else {
            PROGRESS_EVERY
        }
    }

    fn tell_progress(&mut self, now: Nanos) {
        if now.since(self.told_progress) >= self.progress_pause() {
            self.told_progress = now;
            self.changed = false;
            self.progress_body = self.progress().encode().into();
            self.children
                .tell_idle(FrameType::Progress, &self.progress_body);
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
        let acknowledged = |rank: &Rank| self.known.get(rank).is_none_or(|k| k.acknowledged);
        // Who hangs below a silent rank may not even have been asked.
        let silent: Vec<Rank> = self
            .known
            .keys()
            .copied()
            .filter(|rank| !acknowledged(rank))
            .filter(|rank| {
                self.tree
                    .parent(*rank)
                    .is_none_or(|above| acknowledged(&above))
            })
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
        if let Phase::Failing(_) | Phase::Finishing(..) | Phase::Over = self.phase {
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
            lost: Vec::new(),
            told: vec![false; self.own.size as usize],
            count: 0,
            expect_more: !late,
        };
        failing.note_told(self.own.rank);
        let contacts = self.contacts.take();
        for (rank, wire) in self.children.take().into_iter().chain(contacts) {
            failing.tell(Some(rank), wire);
        }
        self.phase = Phase::Failing(failing);
    }

    /// Tells a rank that came after the failure.
    fn tell_late(&mut self, wire: Wire, rank: Option<Rank>) {
        if let Phase::Failing(failing) = &mut self.phase {
            failing.tell(rank, wire);
        }
    }
}

impl Failing {
    fn tell(&mut self, rank: Option<Rank>, mut wire: Wire) {
        wire.send(FrameType::Failure, self.body.clone());
        let _ = wire.flush();
        self.parting.push((rank, wire));
    }

    fn note_told(&mut self, rank: Rank) {
        if let Some(told) = self.told.get_mut(rank.index())
            && !*told
        {
            *told = true;
            self.count += 1;
        }
    }

    /// Whether everybody knows. Ranks hang up once they have read the failure and those below them
    /// have hung up; closing before that could take it away from them.
    fn look(&mut self, tree: &Tree) -> bool {
        let mut gone = Vec::new();
        self.parting.retain_mut(|(rank, wire)| {
            let _ = wire.flush();
            loop {
                match wire.receive() {
                    Ok(None) => return true,
                    // It went to its place before it could read this; there it hears it, too.
                    Ok(Some(frame)) if frame.kind == FrameType::Leave => return false,
                    Ok(Some(_)) => {}
                    Err(_) => {
                        gone.extend(rank.filter(|_| !wire.was_reset()));
                        return false;
                    }
                }
            }
        });
        for rank in gone {
            for reached in tree.reached_from(rank, &self.lost) {
                self.note_told(reached);
            }
        }
        let all_came = self.count == self.told.len();
        self.parting.is_empty() && (all_came || !self.expect_more)
    }
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
            "raise `ulimit -n` at rank 0: start-up of {} ranks needs up to {} descriptors",
            own.size,
            MOST_CONNECTIONS + SPARE_DESCRIPTORS
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
