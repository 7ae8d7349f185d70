//! One end of a connection.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use hcomm_transport_abi::{
    ChannelOptions, Connect, Fault, NotifyLineV1, STATUS_NOT_CONNECTED, STATUS_PEER_LOST,
    STATUS_REFUSED,
};

use crate::device::{
    Device, Kind, MAX_BATCH, MAX_NOTIFIES, Opening, Registry, blob, host, lock, next_number,
    number_in,
};
use crate::flight::{Alarm, Wire};

static ENDS: Registry<End> = Registry::new();

/// One end, as its owner holds it.
#[derive(Debug)]
pub struct Channel {
    end: Arc<End>,
    opening: Arc<Opening>,
}

/// One end, as the peer sees it. The peer holds it too, so its lines outlive a write to them.
#[derive(Debug)]
pub(crate) struct End {
    number: u64,
    /// Number of the opening it belongs to.
    pub(crate) opening: u64,
    lines: Box<[Line]>,
    /// What this end has sent.
    pub(crate) wire: Wire,
    /// Of its opening.
    pub(crate) alarm: Arc<Alarm>,
    /// The peer's end, once both have named each other.
    peer: OnceLock<Weak<Self>>,
    /// Number of the end that it connects to; 0 before it does.
    wants: AtomicU64,
    destroyed: AtomicBool,
}

/// A [`NotifyLineV1`] with its words as the atomics that they are.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Line {
    count: AtomicU64,
    fingerprint: [AtomicU64; 2],
    served: AtomicU64,
}

const _: () = assert!(
    size_of::<Line>() >= size_of::<NotifyLineV1>()
        && align_of::<Line>() >= align_of::<NotifyLineV1>()
);

impl Line {
    /// Adds one, after everything that was written before.
    fn record(&self, fingerprint: [u64; 2]) {
        for (word, value) in self.fingerprint.iter().zip(fingerprint) {
            if value != 0 {
                word.store(value, Ordering::Relaxed);
            }
        }
        self.served.fetch_add(1, Ordering::Release);
    }
}

impl End {
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn has_line(&self, index: u32) -> bool {
        (index as usize) < self.lines.len()
    }

    /// Records a notify that has arrived here.
    pub(crate) fn record(&self, index: u32, fingerprint: [u64; 2]) {
        if let Some(line) = self.lines.get(index as usize) {
            line.record(fingerprint);
        }
    }

    /// The peer's end, or the state of the link.
    pub(crate) fn peer(&self) -> Result<Arc<Self>, i32> {
        let peer = self.peer.get().ok_or(STATUS_NOT_CONNECTED)?;
        peer.upgrade()
            .filter(|peer| !peer.destroyed.load(Ordering::Acquire))
            .ok_or(STATUS_PEER_LOST)
    }
}

impl Channel {
    pub(crate) fn create(device: &Device, options: &ChannelOptions) -> Result<Self, Fault> {
        if options.notifies > MAX_NOTIFIES {
            return Err(Fault::invalid(format!(
                "{} notifies; at most {MAX_NOTIFIES}",
                options.notifies
            )));
        }
        let end = Arc::new(End {
            number: next_number(),
            opening: device.0.number,
            lines: (0..options.notifies).map(|_| Line::default()).collect(),
            wire: Wire::new(options.queue_depth.max(MAX_BATCH) as usize),
            alarm: Arc::clone(&device.0.alarm),
            peer: OnceLock::new(),
            wants: AtomicU64::new(0),
            destroyed: AtomicBool::new(false),
        });
        ENDS.add(end.number, Arc::clone(&end));
        lock(&device.0.ends).push(Arc::clone(&end));
        Ok(Self {
            end,
            opening: Arc::clone(&device.0),
        })
    }

    pub(crate) fn blob(&self) -> Vec<u8> {
        blob(Kind::End, self.end.number)
    }

    /// Names the peer; connected when the peer has named us.
    pub(crate) fn connect(&self, blob: &[u8]) -> Result<Connect, Fault> {
        let (ours, theirs) = (self.end.number, number_in(Kind::End, blob)?);
        if ours == theirs {
            return Err(Fault::invalid("an end does not connect to itself"));
        }
        let peer = ENDS.get(theirs).ok_or_else(|| {
            Fault::new(
                STATUS_PEER_LOST,
                format!("there is no end {theirs} any more"),
            )
        })?;
        let before =
            self.end
                .wants
                .compare_exchange(0, theirs, Ordering::AcqRel, Ordering::Acquire);
        if before.is_err_and(|named| named != theirs) {
            return Err(Fault::invalid("this end connects to another one already"));
        }
        match peer.wants.load(Ordering::Acquire) {
            0 => Ok(Connect::InProgress),
            named if named == ours => {
                // Once set it is the same end for ever.
                let _ = self.end.peer.set(Arc::downgrade(&peer));
                Ok(Connect::Connected)
            }
            other => Err(Fault::new(
                STATUS_REFUSED,
                format!("end {theirs} connects to end {other}, not to {ours}"),
            )),
        }
    }

    /// This end.
    pub(crate) fn end(&self) -> &End {
        &self.end
    }

    /// The peer's end, or the state of the link.
    pub(crate) fn peer(&self) -> Result<Arc<End>, i32> {
        self.end.peer()
    }

    /// Where notify `index` arrives.
    pub(crate) fn line(&self, index: u32) -> Option<NonNull<NotifyLineV1>> {
        let line = self.end.lines.get(index as usize)?;
        Some(NonNull::from(line).cast())
    }

    pub(crate) fn number(&self) -> u64 {
        self.end.number
    }

    pub(crate) const fn opening(&self) -> &Arc<Opening> {
        &self.opening
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // From here on nothing arrives at this end; what arrives now does so first.
        lock(&self.opening.ends).retain(|end| !Arc::ptr_eq(end, &self.end));
        // And nothing of this end arrives at the peer.
        self.end.wire.cut();
        // Only now, because who hears of it may take back memory that was on its way here.
        self.end.destroyed.store(true, Ordering::Release);
        ENDS.remove(self.end.number);
        // Whoever waits for this end should look at it now.
        if let Some(host) = host() {
            host.ring();
        }
    }
}
