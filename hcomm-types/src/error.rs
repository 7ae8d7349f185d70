//! The one error that crosses crate borders.
//!
//! Inside a crate, small enums stand near their operation; at the border they become an
//! [`Error`], which says who must act and carries what an operator needs: call, rank, peer, link,
//! values, elapsed time and the next step.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Rank;

/// `Result` with our [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Who must act to make an error go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// Whoever made this call.
    Caller,
    /// Another rank.
    Peer,
    /// A link between ranks.
    Link,
    /// A transport plugin or the vendor library below it.
    Vendor,
    /// A limit or a missing ability of this system.
    System,
    /// Us: a bug in hcomm.
    Hcomm,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument or setting is not acceptable.
    InvalidArgument,
    /// A range lies outside its memory.
    OutOfBounds,
    /// The object was closed before.
    Closed,
    /// The call would wait for a rank that this same OS thread has to drive.
    WouldDeadlock,
    /// Ranks do not agree: size, rank number, version, setting, or operation.
    Mismatch,
    /// A MAC, token or key did not fit.
    Refused,
    /// The deadline passed.
    Timeout,
    /// A rank is gone.
    PeerLost,
    /// Somebody asked for an end.
    Aborted,
    /// A link does not work.
    LinkDown,
    /// Neither this build, this plugin nor this link can do that.
    Unsupported,
    /// A transport plugin was refused, or did what it promised not to.
    Plugin,
    /// A system limit was reached.
    LimitReached,
    /// The operating system said no.
    System,
    /// A promise inside hcomm was broken.
    Internal,
}

impl ErrorKind {
    /// All kinds, in the order of their numbers on the wire.
    pub const ALL: [Self; 15] = [
        Self::InvalidArgument,
        Self::OutOfBounds,
        Self::Closed,
        Self::WouldDeadlock,
        Self::Mismatch,
        Self::Refused,
        Self::Timeout,
        Self::PeerLost,
        Self::Aborted,
        Self::LinkDown,
        Self::Unsupported,
        Self::Plugin,
        Self::LimitReached,
        Self::System,
        Self::Internal,
    ];

    /// Who must act.
    #[must_use]
    pub const fn blame(self) -> Blame {
        match self {
            Self::InvalidArgument
            | Self::OutOfBounds
            | Self::Closed
            | Self::WouldDeadlock
            | Self::Aborted => Blame::Caller,
            Self::Mismatch | Self::Refused | Self::Timeout | Self::PeerLost => Blame::Peer,
            Self::LinkDown => Blame::Link,
            Self::Unsupported | Self::Plugin => Blame::Vendor,
            Self::LimitReached | Self::System => Blame::System,
            Self::Internal => Blame::Hcomm,
        }
    }

    /// The kind in words.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid argument",
            Self::OutOfBounds => "out of bounds",
            Self::Closed => "used after close",
            Self::WouldDeadlock => "would deadlock",
            Self::Mismatch => "ranks do not agree",
            Self::Refused => "refused",
            Self::Timeout => "timed out",
            Self::PeerLost => "peer lost",
            Self::Aborted => "aborted",
            Self::LinkDown => "link down",
            Self::Unsupported => "unsupported",
            Self::Plugin => "transport plugin",
            Self::LimitReached => "limit reached",
            Self::System => "system error",
            Self::Internal => "internal error",
        }
    }
}

/// An error with all that is known about it. Cheap to clone: a poisoned thread hands the first
/// cause to every later task.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    detail: String,
    call: Option<&'static str>,
    rank: Option<Rank>,
    culprits: Vec<Rank>,
    link: Option<String>,
    elapsed: Option<Duration>,
    next_step: Option<String>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of a kind, with the values that explain it.
    #[must_use]
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            detail: detail.into(),
            call: None,
            rank: None,
            culprits: Vec::new(),
            link: None,
            elapsed: None,
            next_step: None,
            source: None,
        }))
    }

    /// A system call that failed: `what` says which, with its arguments.
    #[must_use]
    pub fn system(what: impl fmt::Display, error: std::io::Error) -> Self {
        Self::new(ErrorKind::System, format!("{what}: {error}")).with_source(error)
    }

    fn change(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Names the public call that failed. The first name stays.
    #[must_use]
    pub fn in_call(self, call: &'static str) -> Self {
        self.change(|inner| inner.call = inner.call.or(Some(call)))
    }

    /// Names the rank that reports. The first one stays.
    #[must_use]
    pub fn at_rank(self, rank: Rank) -> Self {
        self.change(|inner| inner.rank = inner.rank.or(Some(rank)))
    }

    /// Names a rank that caused this. May be called several times.
    #[must_use]
    pub fn blame_rank(self, rank: Rank) -> Self {
        self.change(|inner| {
            if !inner.culprits.contains(&rank) {
                inner.culprits.push(rank);
            }
        })
    }

    /// The same error in other words.
    #[must_use]
    pub fn reword(self, reword: impl FnOnce(&str) -> String) -> Self {
        self.change(|inner| inner.detail = reword(&inner.detail))
    }

    /// Names the link.
    #[must_use]
    pub fn on_link(self, link: impl Into<String>) -> Self {
        self.change(|inner| inner.link = Some(link.into()))
    }

    /// Says how long the call had lasted.
    #[must_use]
    pub fn after(self, elapsed: Duration) -> Self {
        self.change(|inner| inner.elapsed = Some(elapsed))
    }

    /// Says what to do next.
    #[must_use]
    pub fn hint(self, next_step: impl Into<String>) -> Self {
        self.change(|inner| inner.next_step = Some(next_step.into()))
    }

    /// Keeps the error below this one.
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.change(|inner| inner.source = Some(Arc::new(source)))
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Who must act.
    #[must_use]
    pub fn blame(&self) -> Blame {
        self.0.kind.blame()
    }

    /// The values that explain it, without the frame around them.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// The rank that reports, if one is known.
    #[must_use]
    pub fn rank(&self) -> Option<Rank> {
        self.0.rank
    }

    /// The ranks that caused it, if known.
    #[must_use]
    pub fn culprits(&self) -> &[Rank] {
        &self.0.culprits
    }

    /// What to do next, if known.
    #[must_use]
    pub fn next_step(&self) -> Option<&str> {
        self.0.next_step.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        if let Some(rank) = inner.rank {
            write!(f, "rank {rank}: ")?;
        }
        if let Some(call) = inner.call {
            write!(f, "{call}: ")?;
        }
        write!(f, "{}: {}", inner.kind.describe(), inner.detail)?;
        if let Some(link) = &inner.link {
            write!(f, " [link {link}]")?;
        }
        if let Some(elapsed) = inner.elapsed {
            write!(f, " (after {:.3} s)", elapsed.as_secs_f64())?;
        }
        if let Some(next_step) = &inner.next_step {
            write!(f, "; {next_step}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} <{:?}", self.0.kind)?;
        if !self.0.culprits.is_empty() {
            write!(f, ", culprits {:?}", self.0.culprits)?;
        }
        f.write_str(">")
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0
            .source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_who_what_where_and_the_next_step() {
        let error = Error::new(ErrorKind::PeerLost, "rank 2 (pid 77) has exited")
            .in_call("all_reduce")
            .in_call("outer")
            .at_rank(Rank(0))
            .blame_rank(Rank(2))
            .blame_rank(Rank(2))
            .on_link("shm 0-2")
            .after(Duration::from_millis(1500))
            .hint("look at the output of rank 2");
        assert_eq!(
            error.to_string(),
            "rank 0: all_reduce: peer lost: rank 2 (pid 77) has exited [link shm 0-2] (after 1.500 s); look at the output of rank 2"
        );
        assert_eq!(error.culprits(), [Rank(2)]);
        assert_eq!(error.blame(), Blame::Peer);
    }

    #[test]
    fn kinds_have_the_numbers_of_their_places() {
        for (number, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
        }
    }

    #[test]
    fn a_clone_keeps_its_own_story() {
        let first = Error::new(ErrorKind::Timeout, "x");
        let second = first.clone().blame_rank(Rank(1));
        assert!(first.culprits().is_empty());
        assert_eq!(second.culprits(), [Rank(1)]);
    }
}
