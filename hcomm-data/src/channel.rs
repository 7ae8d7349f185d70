//! Channels as the data plane uses them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use hcomm_transport::{Import, Lane, NotifyWord};
use hcomm_types::{Error, ErrorKind, Result};

use crate::copy::Hint;
use crate::failure::Failure;
use crate::hand_over::HandOver;
use crate::memory;
use crate::memory::Place;
use crate::work::Expected;

/// One end of a connection, with what its user has to count. A clone is the same end.
///
/// One OS thread at a time posts on a channel, and each notify of it has one waiter. Who the peer
/// is, is not known here: the `label` is what the layer above calls it.
#[derive(Clone)]
pub struct Channel(Arc<Inner>);

struct Inner {
    /// Its number, which no other channel of this process has or had.
    number: u64,
    transport: hcomm_transport::Channel,
    label: u32,
    notifies: Box<[Notify]>,
    /// Flights with something on its way, of all threads.
    flying: AtomicU32,
    /// Of records that nobody waits for.
    wakes: Lane,
    hand_over: HandOver,
    records: AtomicU64,
}

/// A notify of this side and how many of its records were taken.
struct Notify {
    word: NotifyWord,
    taken: AtomicU64,
    /// Records that were there at the last look at the word, which the peer writes: what is known
    /// already costs no look, and a recorder that is ahead keeps its cache line.
    seen: AtomicU64,
}

#[cfg(test)]
pub(crate) const NOTIFY_BYTES: usize = size_of::<Notify>();

impl Channel {
    /// A channel for a connected end; `label` stands for the peer in errors.
    ///
    /// # Errors
    /// `Plugin` if the transport does not give the notifies it promised.
    pub fn new(transport: hcomm_transport::Channel, label: u32) -> Result<Self> {
        let notifies = (0..transport.notifies())
            .map(|index| {
                transport.notify(index).map(|word| Notify {
                    word,
                    taken: AtomicU64::new(0),
                    seen: AtomicU64::new(0),
                })
            })
            .collect::<Result<_>>()?;
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Ok(Self(Arc::new(Inner {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            label,
            notifies,
            flying: AtomicU32::new(0),
            wakes: transport.device().lane(),
            hand_over: HandOver::default(),
            records: AtomicU64::new(0),
            transport,
        })))
    }

    /// The connected end below.
    #[must_use]
    pub fn transport(&self) -> &hcomm_transport::Channel {
        &self.0.transport
    }

    /// What the layer above calls the peer.
    #[must_use]
    pub fn label(&self) -> u32 {
        self.0.label
    }

    /// Notifies that this side can wait on.
    #[must_use]
    pub fn notifies(&self) -> u32 {
        self.0.notifies.len() as u32
    }

    /// Notifies recorded at the peer through this end, so far.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.0.records.load(Ordering::Relaxed)
    }

    /// Records on notify `index` that have arrived and that no wait has taken.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such notify.
    pub fn arrived(&self, index: u32) -> Result<u64> {
        let notify = self.notify(index)?;
        let taken = notify.taken.load(Ordering::Relaxed);
        Ok(notify.word.count().saturating_sub(taken))
    }

    /// Fingerprint of the latest record on notify `index` that carried one.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such notify.
    pub fn fingerprint(&self, index: u32) -> Result<[u64; 2]> {
        Ok(self.notify(index)?.word.fingerprint())
    }

    /// Adds one to a notify of the peer by a store, if the link allows it and nothing that was
    /// posted before could be overtaken.
    #[inline]
    pub(crate) fn record(&self, notify: u32, fingerprint: [u64; 2]) -> bool {
        let done = self.is_quiet() && self.0.transport.record(notify, fingerprint);
        if done {
            self.recorded();
        }
        done
    }

    /// Takes one record of notify `index`, if there is one.
    #[inline]
    pub(crate) fn take(&self, index: u32) -> Result<bool, Failure> {
        let notify = self.notify(index).map_err(|e| self.failure(e))?;
        // One waiter: nobody else changes it.
        let taken = notify.taken.load(Ordering::Relaxed);
        if !notify.is_beyond(taken) {
            return Ok(false);
        }
        notify.taken.store(taken + 1, Ordering::Relaxed);
        Ok(true)
    }

    /// Refuses a record of another run than the peer should be in, which was just taken.
    #[inline]
    pub(crate) fn compare(&self, index: u32, expected: Expected) -> Result<(), Failure> {
        let notify = self.notify(index).map_err(|e| self.failure(e))?;
        let found = notify.word.fingerprint()[expected.word];
        if found == expected.value {
            return Ok(());
        }
        Err(self.failure(mismatch(found, expected.value)))
    }

    /// Whether a wait for notify `index` would end: by a record, or because there is no such
    /// notify.
    #[inline]
    pub(crate) fn has_arrived(&self, index: u32) -> bool {
        self.notify(index).map_or(true, |notify| {
            notify.is_beyond(notify.taken.load(Ordering::Relaxed))
        })
    }

    /// How a write to `dst`, at the peer, is best made.
    #[inline]
    pub(crate) fn hint(&self, dst: Place<'_>) -> Hint {
        self.0.hand_over.hint(dst)
    }

    /// Whether nothing that was posted is unfinished, as far as those know who have posted it.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.0.flying.load(Ordering::Acquire) == 0
    }

    /// Counts a flight on its way.
    pub(crate) fn depart(&self) {
        self.0.flying.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts one that is over.
    pub(crate) fn arrive(&self) {
        self.0.flying.fetch_sub(1, Ordering::AcqRel);
    }

    /// Notes that a record was accepted by the transport.
    #[inline]
    pub(crate) fn recorded(&self) {
        // One OS thread at a time records here, and nothing but people depends on it.
        let records = self.0.records.load(Ordering::Relaxed);
        self.0.records.store(records + 1, Ordering::Relaxed);
    }

    /// Wakes the peer if it sleeps, after a store into its memory: over a link that has no quicker
    /// way by a record on `notify`, which nobody waits for.
    #[inline]
    pub(crate) fn wake_peer(&self, notify: u32) {
        if !self.0.transport.ring_peer() {
            memory::record(&self.0.transport, &self.0.wakes, notify);
        }
    }

    /// Refuses a notify that the peer cannot have.
    #[inline]
    pub(crate) fn check_record(&self, notify: u32) -> Result<()> {
        let most = self.0.transport.device().info().max_notifies;
        if notify < most {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("notify {notify}: a channel of this device has at most {most}"),
        ))
    }

    pub(crate) fn check_wait(&self, index: u32) -> Result<()> {
        self.notify(index).map(|_| ())
    }

    /// Whether the peer's memory was imported through this end.
    #[inline]
    pub(crate) fn imported(&self, import: &Import) -> bool {
        // The device handle lies inside the end, so its address tells ends apart.
        std::ptr::eq(import.channel().device(), self.0.transport.device())
    }

    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    /// Whether it is the same end.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn failure(&self, error: Error) -> Failure {
        Failure {
            label: Some(self.0.label),
            error,
        }
    }

    #[inline]
    fn notify(&self, index: u32) -> Result<&Notify> {
        self.0
            .notifies
            .get(index as usize)
            .ok_or_else(|| self.no_notify(index))
    }

    #[cold]
    fn no_notify(&self, index: u32) -> Error {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("no notify {index}: the channel has {}", self.notifies()),
        )
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("label", &self.0.label)
            .field("transport", &self.0.transport)
            .finish_non_exhaustive()
    }
}

impl Notify {
    /// Whether more than `taken` records have arrived.
    #[inline]
    fn is_beyond(&self, taken: u64) -> bool {
        // Seen by the one waiter: what came before those records was seen then.
        if self.seen.load(Ordering::Relaxed) > taken {
            return true;
        }
        let count = self.word.count();
        if count <= taken {
            return false;
        }
        self.seen.store(count, Ordering::Relaxed);
        true
    }
}

/// The peer has sent what is of another run.
#[cold]
pub(crate) fn mismatch(found: u64, expected: u64) -> Error {
    Error::new(
        ErrorKind::Mismatch,
        format!(
            "the peer is in another call: its fingerprint is {found:#x}, that of the call here \
             {expected:#x}"
        ),
    )
}
