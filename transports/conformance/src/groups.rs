//! The checks, by group.

mod data;
mod death;
mod garbage;
mod honesty;
mod lifetime;
mod mapped;
mod pressure;
mod shape;
mod threads;

use crate::Group;
use crate::case::Check;

/// Checks of a group, in the order in which they run.
pub(crate) const fn of(group: Group) -> &'static [Check] {
    match group {
        Group::Shape => shape::CHECKS,
        Group::Honesty => honesty::CHECKS,
        Group::Data => data::CHECKS,
        Group::Pressure => pressure::CHECKS,
        Group::Lifetime => lifetime::CHECKS,
        Group::Death => death::CHECKS,
        Group::Threads => threads::CHECKS,
        Group::Garbage => garbage::CHECKS,
    }
}

/// All checks.
pub(crate) fn all() -> impl Iterator<Item = &'static Check> {
    Group::ALL.into_iter().flat_map(of)
}
