//! Two sides of a connection inside one process, over links of different kinds.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod later;

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use hcomm_data::{Channel, Domain, Engine, Peers, RemoteSlice, Slice, Thread, reduce_kernel};
use hcomm_transport::{
    Device, LoadOptions, Plugin, Selection, SystemWaiter, Transports, WaitPolicy, Waiter,
};
use hcomm_types::{Error, ErrorKind, Rank, Result};

/// What the link between the sides can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// The peer's memory is mapped.
    Mapped,
    /// It is not; every descriptor is done at once.
    Inline,
    /// Descriptors are done later, in another order, four outstanding, 1000 bytes each.
    Later,
    /// The same, and a write takes no notify along, and only registered memory is moved.
    LaterBare,
    /// The same as `Later`, and nothing is done while `later::STALLED` is set. For one test.
    Stalling,
}

pub(crate) const LINKS: [Link; 4] = [Link::Mapped, Link::Inline, Link::Later, Link::LaterBare];

/// One side.
pub(crate) struct Side {
    pub(crate) domain: Domain,
    pub(crate) thread: Thread,
    pub(crate) channel: Channel,
    /// Memory of this side.
    pub(crate) memory: Slice,
    /// Memory of the other side.
    pub(crate) remote: RemoteSlice,
    pub(crate) peers: Arc<Watched>,
    pub(crate) device: Device,
}

/// Peers of which one can be lost.
#[derive(Debug, Default)]
pub(crate) struct Watched(pub(crate) OnceLock<Error>);

impl Peers for Watched {
    fn check(&self) -> Result<()> {
        self.0.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    fn explain(&self, label: u32, error: Error) -> Error {
        error.blame_rank(Rank(label)).on_link("test")
    }
}

pub(crate) fn plugin(name: &str) -> &'static Plugin {
    static TRANSPORTS: OnceLock<Transports> = OnceLock::new();
    TRANSPORTS
        .get_or_init(|| {
            let linked = vec![hcomm_transport_loop::transport_v1(), later::transport_v1()];
            let mut options = LoadOptions::new(linked, reduce_kernel);
            options.selection = Selection::Only(vec!["loop".to_owned(), "later".to_owned()]);
            Transports::load(&options).unwrap()
        })
        .plugin(name)
        .unwrap()
}

pub(crate) fn waiter() -> Arc<dyn Waiter> {
    Arc::new(
        SystemWaiter::new(WaitPolicy {
            spins: 10,
            yields: 10,
            slice: Duration::from_millis(20),
            spare: 0,
        })
        .unwrap(),
    )
}

pub(crate) fn open(link: Link) -> Device {
    let (name, index) = match link {
        Link::Mapped | Link::Inline => ("loop", 0),
        Link::Later => ("later", 0),
        Link::LaterBare => ("later", 1),
        Link::Stalling => ("later", 2),
    };
    plugin(name).devices().unwrap()[index].open().unwrap()
}

/// Two connected sides, each with `bytes` bytes of memory and the rank of the other as label.
pub(crate) fn pair(link: Link, bytes: usize) -> [Side; 2] {
    pair_with(link, bytes, Duration::from_secs(100))
}

pub(crate) fn pair_with(link: Link, bytes: usize, timeout: Duration) -> [Side; 2] {
    const NOTIFIES: u32 = 8;
    let devices = [open(link), open(link)];
    let ends = [0, 1].map(|i: usize| devices[i].create_channel(NOTIFIES, 16).unwrap());
    let blobs = [0, 1].map(|i: usize| ends[i].blob().unwrap());
    let mut first = ends[0].connect(blobs[1].clone());
    let mut second = ends[1].connect(blobs[0].clone());
    let mut connected = [false; 2];
    while connected != [true; 2] {
        for (side, connecting) in [&mut first, &mut second].into_iter().enumerate() {
            if let Poll::Ready(result) = connecting.poll() {
                result.unwrap();
                connected[side] = true;
            }
        }
    }
    let regions = [0, 1].map(|i: usize| match link {
        Link::Inline => {
            let memory = NonNull::from(Box::leak(vec![0u8; bytes].into_boxed_slice()));
            // SAFETY: leaked, so it stays; nobody else knows it.
            unsafe { devices[i].register(memory.cast(), bytes) }.unwrap()
        }
        _ => devices[i].allocate(bytes).unwrap(),
    });
    let imports = [0, 1].map(|i: usize| {
        let mut importing = ends[i].import(regions[1 - i].export().unwrap());
        loop {
            if let Poll::Ready(import) = importing.poll() {
                break import.unwrap();
            }
        }
    });
    assert_eq!(imports[0].address().is_some(), link == Link::Mapped);
    [0, 1].map(|i: usize| {
        let peers = Arc::new(Watched::default());
        let domain = Domain::new(waiter(), peers.clone(), timeout);
        Side {
            thread: Thread::new(&domain, Engine::Cpu, 4).unwrap(),
            domain,
            channel: Channel::new(ends[i].clone(), 1 - i as u32).unwrap(),
            memory: Slice::of(&regions[i]),
            remote: RemoteSlice::of(&imports[i]),
            peers,
            device: devices[i].clone(),
        }
    })
}

impl Side {
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Slice {
        self.memory.sub(offset..offset + bytes).unwrap()
    }

    pub(crate) fn far(&self, offset: u64, bytes: u64) -> RemoteSlice {
        self.remote.sub(offset..offset + bytes).unwrap()
    }

    pub(crate) fn set(&self, offset: usize, bytes: &[u8]) {
        self.part(offset, bytes.len()).copy_from(bytes).unwrap();
    }

    pub(crate) fn get(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        self.part(offset, bytes).copy_to(&mut found).unwrap();
        found
    }
}

/// Bytes that tell side and position.
pub(crate) fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed)
        .collect()
}

pub(crate) fn cause(text: &str) -> Error {
    Error::new(ErrorKind::Aborted, text)
}
