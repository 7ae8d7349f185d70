//! What a rank has moved so far, in numbers.

use crate::membership::{Membership, lock};

/// What a rank has handed to its links so far, and what that has cost; sums over all its devices.
///
/// Bytes of mapped memory are moved by loads and stores, so no link sees or counts them: a write
/// with notify to such memory adds one notify and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Descriptors that links have accepted.
    pub descriptors: u64,
    /// Bytes that links have written to peers.
    pub bytes_written: u64,
    /// Bytes that links have read from peers.
    pub bytes_read: u64,
    /// Notifies recorded at peers.
    pub notifies: u64,
    /// Bytes that went through a buffer in between.
    pub bytes_staged: u64,
    /// Messages that moved no bytes of the user: those of the control links, and those that a link
    /// needs besides.
    pub control_messages: u64,
    /// Retransmissions, where links have them.
    pub retransmissions: u64,
    /// Packets or descriptors dropped, where links have them.
    pub drops: u64,
}

impl Membership {
    /// Counters since this rank came into being. The difference of two says what happened between
    /// them.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut sum = Counters {
            control_messages: lock(&self.shared.mesh).sent(),
            ..Counters::default()
        };
        for device in self.shared.endpoints.open() {
            let Some(counters) = device.counters() else {
                continue;
            };
            sum.descriptors += counters.descriptors;
            sum.bytes_written += counters.bytes_written;
            sum.bytes_read += counters.bytes_read;
            sum.notifies += counters.notifies;
            sum.bytes_staged += counters.bytes_staged;
            sum.control_messages += counters.control_messages;
            sum.retransmissions += counters.retransmissions;
            sum.drops += counters.drops;
        }
        sum
    }
}
