//! Memory of this side, and imports of the peer's.

use core::ptr::NonNull;
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, TryLockError};

use hcomm_transport_abi::{
    Fault, Imported, STATUS_LIMIT, STATUS_OK, STATUS_OUT_OF_BOUNDS, STATUS_STALE_KEY,
};

use crate::channel::{Channel, ChannelInner};
use crate::device::{DeviceCore, Open, lock, next_number, random};
use crate::sys::{Pages, Span};
use crate::wire::{RegionBlob, Token};

/// Memory of this side.
#[derive(Debug)]
pub struct Region {
    number: u64,
    memory: Arc<Memory>,
    open: Open,
}

/// Memory, for whoever moves its bytes.
#[derive(Debug)]
pub(crate) struct Memory {
    span: Span,
    key: Token,
    /// The pages, if they are ours.
    _pages: Option<Pages>,
    /// Set by deregistration, which waits for calls that move bytes; afterwards nobody does.
    ended: RwLock<bool>,
}

impl Memory {
    /// `bytes` bytes from `offset` on, while the guard lives.
    ///
    /// # Errors
    /// `STATUS_STALE_KEY` after the end, `STATUS_OUT_OF_BOUNDS`.
    pub(crate) fn enter(
        &self,
        offset: u64,
        bytes: u64,
    ) -> Result<(Span, RwLockReadGuard<'_, bool>), i32> {
        let guard = match self.ended.try_read() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            // Only deregistration writes.
            Err(TryLockError::WouldBlock) => return Err(STATUS_STALE_KEY),
        };
        if *guard {
            return Err(STATUS_STALE_KEY);
        }
        let part = self.span.part(offset, bytes).ok_or(STATUS_OUT_OF_BOUNDS)?;
        Ok((part, guard))
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.span.bytes()
    }

    /// Whether a key is that of this memory, in a time that does not tell how much of it is right.
    pub(crate) fn opens_with(&self, key: &Token) -> bool {
        let wrong = |sum: u8, (a, b): (&u8, &u8)| sum | (a ^ b);
        self.key.iter().zip(key).fold(0, wrong) == 0
    }
}

impl Region {
    pub(crate) fn register(
        device: &Arc<DeviceCore>,
        address: NonNull<u8>,
        bytes: u64,
    ) -> Result<Self, Fault> {
        let span = Span::brought(address.as_ptr(), bytes).ok_or_else(|| {
            Fault::invalid(format!(
                "{bytes} bytes at {address:p} wrap around the address space"
            ))
        })?;
        Self::new(device, span, None)
    }

    pub(crate) fn allocate(
        device: &Arc<DeviceCore>,
        bytes: u64,
    ) -> Result<(Self, NonNull<u8>), Fault> {
        let none = |why: String| Fault::new(STATUS_LIMIT, format!("mapping {bytes} bytes: {why}"));
        let pages = Pages::map(bytes).map_err(|error| none(error.to_string()))?;
        let span = pages.span();
        let address = NonNull::new(span.address()).ok_or_else(|| none("no address".to_owned()))?;
        Ok((Self::new(device, span, Some(pages))?, address))
    }

    fn new(device: &Arc<DeviceCore>, span: Span, pages: Option<Pages>) -> Result<Self, Fault> {
        let number = next_number();
        let memory = Arc::new(Memory {
            span,
            key: random()?,
            _pages: pages,
            ended: RwLock::new(false),
        });
        lock(&device.regions).insert(number, Arc::clone(&memory));
        Ok(Self {
            number,
            memory,
            open: Open::new(device),
        })
    }

    /// Whether it holds all of `span`.
    pub(crate) fn holds(&self, span: Span) -> bool {
        let begin = span
            .address()
            .addr()
            .checked_sub(self.memory.span.address().addr());
        begin.is_some_and(|begin| {
            let part = self.memory.span.part(begin as u64, span.bytes());
            part.is_some()
        })
    }

    pub(crate) fn blob(&self) -> Vec<u8> {
        RegionBlob {
            device: self.open.device().token,
            number: self.number,
            key: self.memory.key,
        }
        .encode()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        lock(&self.open.device().regions).remove(&self.number);
        match self.memory.ended.write() {
            Ok(mut ended) => *ended = true,
            Err(error) => *error.into_inner() = true,
        }
    }
}

/// A peer's region.
#[derive(Debug)]
pub struct Import {
    pub(crate) channel: Arc<ChannelInner>,
    answer: Arc<Answer>,
    /// What the peer calls the region, and its bytes, once it has answered.
    pub(crate) known: Option<(u64, u64)>,
    _open: Open,
}

/// The peer's answer to a question for a region, as far as it is there.
#[derive(Debug, Default)]
pub(crate) struct Answer(Mutex<Stage>);

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    #[default]
    Asked,
    /// Status, handle, bytes.
    Answered(i32, u64, u64),
    /// Nobody asks any more.
    Abandoned,
}

impl Answer {
    /// The answer is there. Says whether anybody still wants it.
    pub(crate) fn give(&self, status: i32, handle: u64, bytes: u64) -> bool {
        let mut stage = lock(&self.0);
        let is_wanted = !matches!(*stage, Stage::Abandoned);
        if is_wanted {
            *stage = Stage::Answered(status, handle, bytes);
        }
        is_wanted
    }
}

impl Import {
    pub(crate) fn begin(channel: &Channel, blob: &[u8]) -> Result<Self, Fault> {
        let blob = RegionBlob::decode(blob)?;
        let inner = &channel.inner;
        let link = inner.usable().map_err(|status| inner.fault(status))?;
        if blob.device != link.peer.identity.device {
            return Err(Fault::new(
                STATUS_STALE_KEY,
                "the region is not one of the device at the other end of this channel",
            ));
        }
        let answer = Arc::new(Answer::default());
        inner.ask_for_region(blob.number, blob.key, &answer);
        Ok(Self {
            channel: Arc::clone(inner),
            answer,
            known: None,
            _open: Open::new(inner.device()),
        })
    }

    pub(crate) fn poll(&mut self) -> Result<Option<Imported>, Fault> {
        let stage = *lock(&self.answer.0);
        match stage {
            Stage::Answered(STATUS_OK, handle, bytes) => {
                self.known = Some((handle, bytes));
                Ok(Some(Imported {
                    bytes,
                    address: None, // everything goes through the socket
                }))
            }
            Stage::Answered(STATUS_STALE_KEY, ..) => Err(Fault::new(
                STATUS_STALE_KEY,
                "the peer has no region with this key any more: it was deregistered, or the blob \
                 was changed; export it again",
            )),
            Stage::Answered(status, ..) => Err(Fault::new(status, "the peer refused the region")),
            Stage::Asked | Stage::Abandoned => {
                // The peer may never answer.
                let state = self.channel.check();
                state.map_err(|status| self.channel.fault(status))?;
                Ok(None)
            }
        }
    }

    /// It is not needed any more.
    pub(crate) fn release(&self) {
        let before = core::mem::replace(&mut *lock(&self.answer.0), Stage::Abandoned);
        if let Stage::Answered(STATUS_OK, handle, _) = before {
            self.channel.give_back(handle);
        }
    }
}
