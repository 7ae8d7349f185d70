//! The connecting side of a handshake: tries again and again, with growing pauses, until the
//! other side has given its challenge.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hcomm_transport::Interest;
use hcomm_types::{Deadline, Nanos, Rank};

use crate::door::Terms;
use crate::frame::{FrameError, FrameType, Side};
use crate::job_key::SessionId;
use crate::launch::RootAddress;
use crate::net::is_out_of_descriptors;
use crate::outside::Outside;
use crate::wire::{Challenge, Knock, Purpose, Refusal, Wire, WireError};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long one attempt waits to be connected, and then for the first answer. A server that is
/// busy, or does not look at its door yet, answers late; one whose queue overflowed never does.
const PATIENCE: Duration = Duration::from_secs(15);

/// Where to connect.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// One of these.
    Fixed(Vec<SocketAddr>),
    /// By name, asked for anew at each round: the name may appear later than we do. Of several ports
    /// all are tried.
    Named(RootAddress),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(addresses) => {
                for (position, address) in addresses.iter().enumerate() {
                    let comma = if position == 0 { "" } else { ", " };
                    write!(f, "{comma}{address}")?;
                }
                Ok(())
            }
            Self::Named(address) => write!(f, "{address}"),
        }
    }
}

/// Why the last attempt did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error("nothing was tried yet")]
    Untried,
    #[error("its name cannot be resolved: {0}")]
    Unresolved(String),
    #[error("nobody listens there")]
    NobodyListens,
    #[error("{0}")]
    Unreachable(io::Error),
    #[error("the connection is not answered")]
    NoConnection,
    #[error("what listens there accepts connections but has said nothing for {0:?}")]
    Silent(Duration),
    #[error("what listens there does not speak our protocol: {0}")]
    Foreign(FrameError),
    #[error("what listens there closes the connection")]
    Ended,
    #[error("an hcomm process listens at {0}, but not the one that is wanted")]
    Elsewhere(SocketAddr),
}

/// How dialling ended.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The other side has given its challenge; the wire is sealed and waits for our hello.
    Challenged(Wire),
    /// It hangs up on us.
    Refused(SocketAddr, Refusal),
    /// It serves another session than ours.
    OtherSession(SocketAddr),
    /// There is no descriptor left for a socket. Trying again would take the place of whoever
    /// could free some.
    OutOfDescriptors(io::Error),
}

/// Where to connect, as whom, and what for.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) target: Target,
    pub(crate) base: [u8; 32],
    /// The session, if it is known before.
    pub(crate) session: Option<SessionId>,
    pub(crate) purpose: Purpose,
    pub(crate) own: Rank,
    pub(crate) peer: Rank,
}

/// A call that goes on until it is answered.
pub(crate) struct Dial {
    outside: Outside,
    call: Call,
    /// Addresses still to try in this round, last one first.
    round: Vec<SocketAddr>,
    state: State,
    pause: Duration,
    patience: Duration,
    tries: u32,
    problem: Problem,
    /// Since when every attempt has found that nobody listens.
    nobody_since: Option<Nanos>,
}

enum State {
    Pausing(Nanos),
    Connecting {
        wire: Wire,
        since: Nanos,
    },
    Knocked {
        wire: Wire,
        nonce: [u8; 16],
        since: Nanos,
    },
    /// The wire was handed out.
    Answered,
}

impl Dial {
    pub(crate) fn new(outside: Outside, call: Call) -> Self {
        Self {
            outside,
            call,
            round: Vec::new(),
            state: State::Pausing(Nanos(0)),
            pause: FIRST_PAUSE,
            patience: PATIENCE,
            tries: 0,
            problem: Problem::Untried,
            nobody_since: None,
        }
    }

    /// Waits no longer than this for an answer.
    pub(crate) const fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    pub(crate) const fn target(&self) -> &Target {
        &self.call.target
    }

    pub(crate) const fn tries(&self) -> u32 {
        self.tries
    }

    pub(crate) const fn problem(&self) -> &Problem {
        &self.problem
    }

    /// How long every attempt has found that nobody listens.
    pub(crate) fn nobody_for(&self, now: Nanos) -> Option<Duration> {
        self.nobody_since.map(|since| now.since(since))
    }

    /// The attempt that is under way has accepted us but has not answered yet, since when.
    pub(crate) fn describe(&self, now: Nanos) -> String {
        match &self.state {
            State::Knocked { since, .. } if now.since(*since) >= Duration::from_secs(1) => {
                Problem::Silent(now.since(*since)).to_string()
            }
            State::Connecting { since, .. } if now.since(*since) >= Duration::from_secs(1) => {
                Problem::NoConnection.to_string()
            }
            _ => self.problem.to_string(),
        }
    }

    /// The wire that was handed out did not hold: try again after a pause.
    pub(crate) fn again(&mut self, now: Nanos, problem: Problem) {
        if matches!(problem, Problem::NobodyListens) {
            self.nobody_since.get_or_insert(now);
        } else {
            self.nobody_since = None;
        }
        tracing::debug!(rank = %self.call.own, peer = %self.call.peer, target = %self.call.target, tries = self.tries, %problem, "an attempt to connect failed");
        self.problem = problem;
        // Half of the pause is left to chance, so that ranks that failed together do not come
        // back together.
        let whole = u64::try_from(self.pause.as_nanos()).unwrap_or(u64::MAX);
        let random = self.outside.number() % (whole / 2 + 1);
        self.state = State::Pausing(now + Duration::from_nanos(whole / 2 + random));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Goes on as far as it can.
    pub(crate) fn poll(&mut self, now: Nanos) -> Option<Answer> {
        loop {
            match std::mem::replace(&mut self.state, State::Answered) {
                State::Answered => return None,
                State::Pausing(until) => {
                    if now < until {
                        self.state = State::Pausing(until);
                        return None;
                    }
                    match self.begin(now) {
                        Ok(()) => {}
                        Err(Problem::Unreachable(error)) if is_out_of_descriptors(&error) => {
                            return Some(Answer::OutOfDescriptors(error));
                        }
                        Err(problem) => self.again(now, problem),
                    }
                }
                State::Connecting { mut wire, since } => match wire.connected() {
                    Ok(false) if now.since(since) < self.patience => {
                        self.state = State::Connecting { wire, since };
                        return None;
                    }
                    Ok(false) => self.again(now, Problem::NoConnection),
                    Ok(true) => {
                        let nonce = self.outside.nonce();
                        let knock = Knock {
                            nonce,
                            purpose: self.call.purpose,
                            session: self.call.session,
                        };
                        wire.send(FrameType::Knock, knock.encode());
                        self.state = State::Knocked {
                            wire,
                            nonce,
                            since: now,
                        };
                    }
                    Err(error) => self.again(now, connect_problem(error)),
                },
                State::Knocked {
                    mut wire,
                    nonce,
                    since,
                } => {
                    let received = wire.flush().and_then(|()| wire.receive());
                    match received {
                        Ok(Some(frame)) => {
                            match self.answer(wire, nonce, frame.kind, &frame.body) {
                                Ok(answer) => return Some(answer),
                                Err(problem) => self.again(now, problem),
                            }
                        }
                        Ok(None) if now.since(since) < self.patience => {
                            self.state = State::Knocked { wire, nonce, since };
                            return None;
                        }
                        Ok(None) => self.again(now, Problem::Silent(self.patience)),
                        Err(WireError::Frame(error)) => self.again(now, Problem::Foreign(error)),
                        Err(WireError::Broke(error)) => self.again(now, connect_problem(error)),
                        Err(WireError::Ended | WireError::Malformed(_)) => {
                            self.again(now, Problem::Ended);
                        }
                    }
                }
            }
        }
    }

    pub(crate) fn interests<'a>(&'a self, wanted: &mut Vec<Interest<'a>>) {
        match &self.state {
            State::Connecting { wire, .. } => wanted.extend(wire.connecting_interest()),
            State::Knocked { wire, .. } => wanted.extend(wire.interest()),
            State::Pausing(_) | State::Answered => {}
        }
    }

    pub(crate) fn next_wake(&self) -> Deadline {
        match &self.state {
            State::Pausing(until) => Deadline::at(*until),
            State::Connecting { since, .. } | State::Knocked { since, .. } => {
                Deadline::at(*since + self.patience)
            }
            State::Answered => Deadline::NEVER,
        }
    }

    fn begin(&mut self, now: Nanos) -> Result<(), Problem> {
        if self.round.is_empty() {
            self.round = match &self.call.target {
                Target::Fixed(addresses) => addresses.clone(),
                Target::Named(root) => {
                    let network = &self.outside.network;
                    let resolved = network
                        .resolve(root.host(), root.port())
                        .map_err(|error| Problem::Unresolved(error.to_string()))?;
                    let at = |port| {
                        let with = |ip: &SocketAddr| {
                            let mut address = *ip;
                            address.set_port(port);
                            address
                        };
                        resolved.iter().map(with).collect::<Vec<_>>()
                    };
                    root.ports().flat_map(at).collect()
                }
            };
            self.round.reverse();
        }
        let Some(address) = self.round.pop() else {
            return Err(Problem::Unresolved("it has no address".to_owned()));
        };
        self.tries += 1;
        let stream = self
            .outside
            .network
            .connect(address)
            .map_err(connect_problem)?;
        self.state = State::Connecting {
            wire: Wire::new(stream, address, Some(self.call.own)),
            since: now,
        };
        Ok(())
    }

    fn answer(
        &self,
        mut wire: Wire,
        nonce: [u8; 16],
        kind: FrameType,
        body: &[u8],
    ) -> Result<Answer, Problem> {
        match kind {
            FrameType::Challenge => {
                let challenge = Challenge::decode(body).map_err(|_| Problem::Ended)?;
                let wanted = self.call.session.unwrap_or(challenge.session);
                if challenge.session != wanted {
                    return Ok(Answer::OtherSession(wire.peer()));
                }
                let terms = Terms {
                    base: &self.call.base,
                    session: challenge.session,
                    purpose: self.call.purpose,
                    client: Some(self.call.own),
                    server: self.call.peer,
                };
                wire.secure(&terms.key(nonce, challenge.nonce), Side::Client);
                Ok(Answer::Challenged(wire))
            }
            FrameType::Refusal => match Refusal::decode(body) {
                Refusal::WrongSession => Ok(Answer::OtherSession(wire.peer())),
                refusal => Ok(Answer::Refused(wire.peer(), refusal)),
            },
            other => Err(Problem::Foreign(FrameError::Unexpected(other))),
        }
    }
}

fn connect_problem(error: io::Error) -> Problem {
    if error.kind() == io::ErrorKind::ConnectionRefused {
        Problem::NobodyListens
    } else {
        Problem::Unreachable(error)
    }
}
