//! Time as the library sees it: nanoseconds of one clock that is handed in from outside, so that
//! a simulation can replace it.

use std::ops::Add;
use std::time::Duration;

/// A moment, in nanoseconds since the clock's own start. Moments of different clocks do not
/// compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Time from `earlier` to this moment; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Nanos {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        let nanos = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// The end of a wait: a moment, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Option<Nanos>);

impl Deadline {
    /// No end.
    pub const NEVER: Self = Self(None);

    /// The moment itself.
    #[must_use]
    pub const fn at(moment: Nanos) -> Self {
        Self(Some(moment))
    }

    /// `timeout` after `now`; a zero timeout means no end.
    #[must_use]
    pub fn after(now: Nanos, timeout: Duration) -> Self {
        if timeout.is_zero() {
            Self::NEVER
        } else {
            Self(Some(now + timeout))
        }
    }

    /// Whether `now` is at or past the end.
    #[must_use]
    pub fn passed(self, now: Nanos) -> bool {
        self.0.is_some_and(|end| now >= end)
    }

    /// The moment, if there is one.
    #[must_use]
    pub const fn moment(self) -> Option<Nanos> {
        self.0
    }

    /// The earlier of two ends.
    #[must_use]
    pub fn earlier(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(a), Some(b)) => Self(Some(a.min(b))),
            (a, b) => Self(a.or(b)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_timeout_never_passes() {
        assert!(!Deadline::after(Nanos(5), Duration::ZERO).passed(Nanos(u64::MAX)));
        assert!(Deadline::after(Nanos(5), Duration::from_nanos(2)).passed(Nanos(7)));
        assert!(!Deadline::after(Nanos(5), Duration::from_nanos(2)).passed(Nanos(6)));
    }

    #[test]
    fn the_earlier_end_wins_over_never() {
        let soon = Deadline::at(Nanos(3));
        assert_eq!(soon.earlier(Deadline::NEVER), soon);
        assert_eq!(Deadline::NEVER.earlier(soon), soon);
        assert_eq!(soon.earlier(Deadline::at(Nanos(2))), Deadline::at(Nanos(2)));
    }
}
