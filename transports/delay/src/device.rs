//! The one device, its openings, and how ends and regions find each other.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hcomm_transport_abi::{
    CAP_ALLOCATE, CAP_LOCAL_ANY, CAP_NOTIFY, CAP_READ, CAP_READ_REDUCE, CAP_REGISTER,
    CAP_SAME_PROCESS, CAP_WAKE_FD, CAP_WRITE, CAP_WRITE_NOTIFY, CAP_WRITE_REDUCE, CountersV1,
    DeviceAttrV1, DeviceAttributes, Fault, Host, STATUS_BAD_BLOB, STATUS_LIMIT,
};

use crate::channel::End;
use crate::flight::Alarm;

/// One-way latency, in ns: that of a link between distant racks, long enough that the time the
/// ends need is small beside it.
pub const LATENCY_NS: u64 = 100_000;
/// Bytes that cross the line in a second, each way: 100 Gbit/s.
pub const BYTES_PER_S: u64 = 12_500_000_000;

/// Number of the protocol `loop`: inside one process.
pub(crate) const PROTOCOL: u32 = 9;
/// Notifies of one end: 4096 lines of 64 bytes are 256 KiB.
pub(crate) const MAX_NOTIFIES: u32 = 4096;

/// Descriptors of one `post`. A wire holds as many, or more if the channel asks for it.
pub(crate) const MAX_BATCH: u32 = 256;

/// What device `index` is, if it is the one there is.
pub(crate) fn attributes(index: u32) -> Result<DeviceAttributes, Fault> {
    if index != 0 {
        return Err(Fault::invalid(format!(
            "device {index}: there is only device 0"
        )));
    }
    Ok(DeviceAttributes {
        name: "delay0".to_owned(),
        attr: DeviceAttrV1 {
            name: [0; 64],
            protocol: PROTOCOL,
            address_kind: 0,
            address: [0; 16],
            // Each bit is a promise that the conformance suite puts to the test.
            capabilities: CAP_WRITE
                | CAP_READ
                | CAP_NOTIFY
                | CAP_WRITE_NOTIFY
                | CAP_WRITE_REDUCE
                | CAP_READ_REDUCE
                | CAP_ALLOCATE
                | CAP_REGISTER
                | CAP_LOCAL_ANY
                | CAP_SAME_PROCESS
                | CAP_WAKE_FD,
            latency_ns: LATENCY_NS,
            bytes_per_s: BYTES_PER_S,
            max_transfer_bytes: 1 << 47, // an address space
            max_notify_outstanding: u64::MAX,
            max_batch: MAX_BATCH,
            max_notifies: MAX_NOTIFIES,
            max_blob_bytes: BLOB_BYTES as u32,
            numa_node: -1,
        },
    })
}

/// An open device. Regions, imports and channels hold the same opening, so that counting its
/// holders says whether it is busy.
#[derive(Debug)]
pub struct Device(pub(crate) Arc<Opening>);

/// One opening of the device: its number, its ends, and what was done through it.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) number: u64,
    /// Rings when something arrives for one of the ends.
    pub(crate) alarm: Arc<Alarm>,
    /// Held while `progress` works on them: an end leaves only in between.
    pub(crate) ends: Mutex<Vec<Arc<End>>>,
    pub(crate) descriptors: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) notifies: AtomicU64,
}

impl Device {
    pub(crate) fn open() -> Result<Self, Fault> {
        let alarm = Alarm::new()
            .map_err(|error| Fault::new(STATUS_LIMIT, format!("creating a timer: {error}")))?;
        Ok(Self(Arc::new(Opening {
            number: next_number(),
            alarm: Arc::new(alarm),
            ends: Mutex::new(Vec::new()),
            descriptors: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            notifies: AtomicU64::new(0),
        })))
    }

    pub(crate) fn opening(&self) -> &Opening {
        &self.0
    }

    /// How many regions, imports and channels are open.
    pub(crate) fn opened(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    pub(crate) fn counters(&self) -> CountersV1 {
        let now = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CountersV1 {
            descriptors: now(&self.0.descriptors),
            bytes_written: now(&self.0.bytes_written),
            bytes_read: now(&self.0.bytes_read),
            notifies: now(&self.0.notifies),
            ..CountersV1::default()
        }
    }
}

impl Opening {
    /// Calls `act` with each end that is open.
    pub(crate) fn each_end(&self, act: impl FnMut(&Arc<End>)) {
        lock(&self.ends).iter().for_each(act);
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Now, by the host's clock.
pub(crate) fn now_ns() -> u64 {
    host().map_or(0, Host::now_ns)
}

static HOST: OnceLock<Host> = OnceLock::new();

/// Keeps what `init` was given.
pub(crate) fn keep_host(host: Host) {
    // Only the first init counts; there is no second one.
    let _ = HOST.set(host);
}

/// The host; there is none only before `init`.
pub(crate) fn host() -> Option<Host> {
    HOST.get().copied()
}

/// What exists now, by number.
#[derive(Debug)]
pub(crate) struct Registry<T>(Mutex<BTreeMap<u64, Arc<T>>>);

impl<T> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub(crate) fn add(&self, number: u64, object: Arc<T>) {
        self.with(|map| map.insert(number, object));
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<T>> {
        self.with(|map| map.get(&number).cloned())
    }

    pub(crate) fn remove(&self, number: u64) {
        self.with(|map| map.remove(&number));
    }

    fn with<R>(&self, act: impl FnOnce(&mut BTreeMap<u64, Arc<T>>) -> R) -> R {
        act(&mut lock(&self.0))
    }
}

/// A number that nothing else has or will have; never 0.
pub(crate) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What a blob names.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    End = 1,
    Region = 2,
}

/// Version of the blobs below. A peer's blob is input: whatever is not exactly ours is refused.
const BLOB_VERSION: u8 = 1;
const BLOB_BYTES: usize = 2 + 8 + 8;

/// A blob: version, kind, token of this process, number.
pub(crate) fn blob(kind: Kind, number: u64) -> Vec<u8> {
    let mut blob = vec![BLOB_VERSION, kind as u8];
    blob.extend(token().to_le_bytes());
    blob.extend(number.to_le_bytes());
    blob
}

/// The number in a blob.
pub(crate) fn number_in(kind: Kind, blob: &[u8]) -> Result<u64, Fault> {
    let bad = |what: &str| Err(Fault::new(STATUS_BAD_BLOB, what));
    let Some((head, rest)) = blob.split_first_chunk::<2>() else {
        return bad("the blob is shorter than 2 bytes");
    };
    if *head != [BLOB_VERSION, kind as u8] {
        return bad("the blob has another version or names something else");
    }
    let Some((of, number)) = rest.split_first_chunk::<8>() else {
        return bad("the blob ends in the middle");
    };
    let Ok(number) = number.try_into().map(u64::from_le_bytes) else {
        return bad("the blob does not have its one size");
    };
    if u64::from_le_bytes(*of) != token() {
        return bad("the blob was made in another process; delay connects inside one");
    }
    Ok(number)
}

/// Drawn once a process, so that a blob of another one is not taken for ours.
fn token() -> u64 {
    static TOKEN: OnceLock<u64> = OnceLock::new();
    *TOKEN.get_or_init(|| RandomState::new().build_hasher().finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_gives_its_number_back_and_nothing_else_does() {
        let made = blob(Kind::End, 7);
        assert_eq!(number_in(Kind::End, &made), Ok(7));
        let status = |blob: &[u8]| number_in(Kind::End, blob).unwrap_err().status;
        assert_eq!(status(&blob(Kind::Region, 7)), STATUS_BAD_BLOB);
        for len in 0..made.len() {
            assert_eq!(status(&made[..len]), STATUS_BAD_BLOB, "{len} bytes");
        }
        assert_eq!(status(&[&made[..], &[0]].concat()), STATUS_BAD_BLOB);
        // Every bit up to the number counts; the number is looked up.
        for bit in 0..8 * (BLOB_BYTES - 8) {
            let mut flipped = made.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(status(&flipped), STATUS_BAD_BLOB, "bit {bit}");
        }
    }
}
