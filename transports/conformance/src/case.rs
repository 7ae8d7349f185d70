//! A check, and what it is given.

use hcomm_transport::{Capabilities, DeviceInfo};

use crate::memory::Kind;
use crate::pair::{Pair, Placement};
use crate::subject::Subject;
use crate::verdict::{Stop, fail};

/// One check of the suite.
#[derive(Clone, Copy)]
pub(crate) struct Check {
    /// Its name, unique in the suite.
    pub(crate) name: &'static str,
    /// On what it runs.
    pub(crate) each: Each,
    /// Whether warnings and errors in the log are in order: where peers die or send garbage.
    pub(crate) may_warn: bool,
    /// The check.
    pub(crate) run: fn(&Case) -> Result<(), Stop>,
}

/// On what a check runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Each {
    /// Once for the plugin.
    Plugin,
    /// Once for each kind of device.
    Device,
    /// Once for each kind of device and each placement of the two ends.
    Placement,
    /// The same, without one thread for both ends.
    Apart,
    /// Once for each kind of device, in this placement.
    Only(Placement),
}

/// A check of a quiet plugin.
pub(crate) const fn check(
    name: &'static str,
    each: Each,
    run: fn(&Case) -> Result<(), Stop>,
) -> Check {
    Check {
        name,
        each,
        may_warn: false,
        run,
    }
}

/// A check in which the plugin may warn.
pub(crate) const fn loud_check(
    name: &'static str,
    each: Each,
    run: fn(&Case) -> Result<(), Stop>,
) -> Check {
    Check {
        name,
        each,
        may_warn: true,
        run,
    }
}

/// What a check is given.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    subject: Subject,
    info: DeviceInfo,
    placement: Option<Placement>,
}

impl Case {
    pub(crate) const fn new(
        subject: Subject,
        info: DeviceInfo,
        placement: Option<Placement>,
    ) -> Self {
        Self {
            subject,
            info,
            placement,
        }
    }

    pub(crate) const fn subject(&self) -> &Subject {
        &self.subject
    }

    pub(crate) const fn info(&self) -> &DeviceInfo {
        &self.info
    }

    pub(crate) const fn placement(&self) -> Option<Placement> {
        self.placement
    }

    pub(crate) fn can(&self, what: Capabilities) -> bool {
        self.info.capabilities.contains(what)
    }

    /// Skips the check unless the device has all of these.
    pub(crate) fn needs(&self, what: Capabilities) -> Result<(), Stop> {
        let missing = what.difference(self.info.capabilities);
        if missing.is_empty() {
            return Ok(());
        }
        Err(Stop::Skip(format!("lacks {}", names(missing))))
    }

    /// Opens both sides where the placement wants them.
    pub(crate) fn pair(&self) -> Result<Pair, Stop> {
        let placement = self
            .placement
            .ok_or_else(|| fail("a check without a placement asks for a pair"))?;
        self.pair_in(placement)
    }

    /// Opens both sides in a placement of the check's own choice.
    pub(crate) fn pair_in(&self, placement: Placement) -> Result<Pair, Stop> {
        Pair::open(&self.subject, &self.info, placement)
    }

    /// Opens both sides wherever they may be.
    pub(crate) fn pair_in_any(&self) -> Result<Pair, Stop> {
        Placement::ALL
            .into_iter()
            .find(|placement| self.can(placement.needs()))
            .ok_or_else(|| Stop::Skip("lacks SAME_PROCESS and CROSS_PROCESS".to_owned()))
            .and_then(|placement| self.pair_in(placement))
    }

    /// Kinds of memory that a peer can reach.
    pub(crate) fn shared_kinds(&self) -> Result<Vec<Kind>, Stop> {
        let kinds: Vec<Kind> = [
            (Capabilities::ALLOCATE, Kind::Allocated),
            (Capabilities::REGISTER, Kind::Registered),
        ]
        .into_iter()
        .filter(|&(needed, _)| self.can(needed))
        .map(|(_, kind)| kind)
        .collect();
        if kinds.is_empty() {
            return Err(Stop::Skip("lacks ALLOCATE and REGISTER".to_owned()));
        }
        Ok(kinds)
    }

    /// Kinds of memory that may be the local end of a transfer.
    pub(crate) fn local_kinds(&self) -> Result<Vec<Kind>, Stop> {
        let mut kinds = self.shared_kinds()?;
        if self.can(Capabilities::LOCAL_ANY) {
            kinds.push(Kind::Plain);
        }
        Ok(kinds)
    }

    /// Largest transfer that checks use at most, bounded by the device's own limit.
    pub(crate) fn at_most(&self, bytes: usize) -> usize {
        usize::try_from(self.info.max_transfer_bytes)
            .unwrap_or(usize::MAX)
            .min(bytes)
    }
}

/// Names of capabilities, as the ABI writes them.
pub(crate) fn names(capabilities: Capabilities) -> String {
    capabilities
        .iter_names()
        .map(|(name, _)| name)
        .collect::<Vec<_>>()
        .join(", ")
}
