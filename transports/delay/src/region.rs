//! Memory of this side, and imports of the peer's.

use core::ptr::NonNull;
use std::sync::{Arc, RwLock, RwLockReadGuard, TryLockError};

use hcomm_transport_abi::{
    Fault, Imported, STATUS_LIMIT, STATUS_NOT_CONNECTED, STATUS_PEER_LOST, STATUS_STALE_KEY,
};

use crate::channel::Channel;
use crate::device::{Device, Kind, Opening, Registry, blob, next_number, number_in};
use crate::sys::{Pages, Span};

static REGIONS: Registry<Memory> = Registry::new();

/// Memory of this side.
#[derive(Debug)]
pub struct Region {
    number: u64,
    memory: Arc<Memory>,
    _opening: Arc<Opening>,
}

/// Memory as both sides see it.
#[derive(Debug)]
pub(crate) struct Memory {
    span: Span,
    /// The pages, if they are ours.
    _pages: Option<Pages>,
    /// Number of the opening it belongs to.
    opening: u64,
    /// Set by deregistration, which waits for copies in flight; afterwards nobody copies.
    ended: RwLock<bool>,
}

impl Memory {
    /// The bytes, while the guard lives.
    pub(crate) fn enter(&self) -> Result<(Span, RwLockReadGuard<'_, bool>), i32> {
        let guard = match self.ended.try_read() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            // Only deregistration writes.
            Err(TryLockError::WouldBlock) => return Err(STATUS_STALE_KEY),
        };
        if *guard {
            return Err(STATUS_STALE_KEY);
        }
        Ok((self.span, guard))
    }
}

impl Region {
    pub(crate) fn register(
        device: &Device,
        address: NonNull<u8>,
        bytes: u64,
    ) -> Result<Self, Fault> {
        let span = Span::brought(address, bytes).ok_or_else(|| {
            Fault::invalid(format!(
                "{bytes} bytes at {address:p} wrap around the address space"
            ))
        })?;
        Ok(Self::new(device, span, None))
    }

    pub(crate) fn allocate(device: &Device, bytes: u64) -> Result<(Self, NonNull<u8>), Fault> {
        let pages = Pages::map(bytes)
            .map_err(|error| Fault::new(STATUS_LIMIT, format!("mapping {bytes} bytes: {error}")))?;
        let (span, address) = (pages.span(), pages.address());
        Ok((Self::new(device, span, Some(pages)), address))
    }

    fn new(device: &Device, span: Span, pages: Option<Pages>) -> Self {
        let number = next_number();
        let memory = Arc::new(Memory {
            span,
            _pages: pages,
            opening: device.0.number,
            ended: RwLock::new(false),
        });
        REGIONS.add(number, Arc::clone(&memory));
        Self {
            number,
            memory,
            _opening: Arc::clone(&device.0),
        }
    }

    pub(crate) fn blob(&self) -> Vec<u8> {
        blob(Kind::Region, self.number)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        REGIONS.remove(self.number);
        match self.memory.ended.write() {
            Ok(mut ended) => *ended = true,
            Err(error) => *error.into_inner() = true,
        }
    }
}

/// A peer's region.
#[derive(Debug)]
pub struct Import {
    pub(crate) memory: Arc<Memory>,
    /// Number of the end through which it came: the only one it may be used with.
    pub(crate) end: u64,
    _opening: Arc<Opening>,
}

impl Import {
    pub(crate) fn find(channel: &Channel, blob: &[u8]) -> Result<Self, Fault> {
        let peer = channel.peer().map_err(|status| {
            Fault::new(
                status,
                match status {
                    STATUS_PEER_LOST => "the peer's end is destroyed",
                    STATUS_NOT_CONNECTED => "connect first",
                    _ => "the channel does not work",
                },
            )
        })?;
        let number = number_in(Kind::Region, blob)?;
        let memory = REGIONS
            .get(number)
            // A region of a third party is none of the peer's.
            .filter(|memory| memory.opening == peer.opening)
            .ok_or_else(|| {
                Fault::new(
                    STATUS_STALE_KEY,
                    format!("the peer has no region {number} (any more)"),
                )
            })?;
        Ok(Self {
            memory,
            end: channel.number(),
            _opening: Arc::clone(channel.opening()),
        })
    }

    pub(crate) fn describe(&self) -> Imported {
        Imported {
            bytes: self.memory.span.bytes(),
            address: None, // everything goes over the wire
        }
    }
}
