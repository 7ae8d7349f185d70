//! Memory of the user as communication memory: registered by a call, and given back by one.

use std::fmt;
use std::sync::{Arc, Weak};

use hcomm_data::Slice;
use hcomm_transport::UserMemory;
use hcomm_types::{Element, Error, ErrorKind, Result};

use crate::membership::{Membership, Shared, TaggedMemory, lock};

/// Memory that the user has handed over to be communication memory: peers write to it and read
/// from it without a copy in between.
///
/// Transfers take [`slice`](Self::slice) as their local side at once; peers know the memory under
/// its tag ([`PeerLink::memory`](crate::PeerLink::memory)) on channels that are made afterwards.
/// While it is registered, its elements are read and written through slices only, since peers may
/// do the same at any time; [`deregister`](Self::deregister) gives them back. Dropping it
/// deregisters it, too; the memory is freed with the last slice of it.
pub struct Registered<T: Element> {
    shared: Weak<Shared>,
    tag: String,
    /// None when it was given back.
    memory: Option<(Arc<UserMemory<T>>, Slice)>,
}

impl Membership {
    /// Registers memory that the user brings, a `Vec<T>` or a `Box<[T]>`, under a tag. Channels
    /// made from now on tell the peer of it. Nothing is copied, and nothing is found out by
    /// itself: what is registered stays so until it is [given back](Registered::deregister).
    ///
    /// For memory that cannot be handed over, there is
    /// [`Device::register`](hcomm_transport::Device::register), which is unsafe, with
    /// [`remember`](Self::remember) and [`forget`](Self::forget).
    ///
    /// # Errors
    /// `InvalidArgument` for a tag that is in use or for 0 bytes, `Unsupported` if the transport
    /// registers no memory, `LimitReached` with need and limit. The memory is freed then.
    pub fn register<T: Element>(
        &self,
        tag: &str,
        memory: impl Into<Box<[T]>>,
    ) -> Result<Registered<T>> {
        let memory = UserMemory::new(memory.into());
        let register = || {
            let region = self.device()?.register_memory(&memory)?;
            self.remember(tag, region)
        };
        let slice = register().map_err(|error| error.in_call("register").at_rank(self.rank()))?;
        Ok(Registered {
            shared: Arc::downgrade(&self.shared),
            tag: tag.to_owned(),
            memory: Some((memory, slice)),
        })
    }
}

impl<T: Element> Registered<T> {
    /// The tag it was registered with.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The memory, as transfers take it.
    ///
    /// # Errors
    /// `Closed` after it was given back.
    pub fn slice(&self) -> Result<&Slice> {
        self.memory
            .as_ref()
            .map(|(_, slice)| slice)
            .ok_or_else(|| self.given_back())
    }

    /// Ends the registration and gives the memory back. What peers still try to move there fails.
    ///
    /// # Errors
    /// `InvalidArgument` while a slice of it exists elsewhere, in the program or in a task that has
    /// not ended: it stays registered then. `Closed` if it was given back before.
    pub fn deregister(&mut self) -> Result<Box<[T]>> {
        let mut tagged = self.take();
        let (memory, slice) = self.memory.take().ok_or_else(|| self.given_back())?;
        // Each other device's registration holds the first one, as the list and our slice do.
        let known = 1 + tagged.as_ref().map_or(0, |memory| memory.regions.len());
        let handles = slice.region().handles();
        if handles > known {
            if let (Some(shared), Some(tagged)) = (self.shared.upgrade(), tagged.take()) {
                lock(&shared.memories).push(tagged);
            }
            self.memory = Some((memory, slice));
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "memory `{}` is in use: {} other slices of it exist",
                    self.tag,
                    handles - known
                ),
            )
            .in_call("deregister")
            .hint("drop all slices of it, and wait for the tasks that use it"));
        }
        drop((slice, tagged));
        memory.into_inner().map_err(|_| {
            Error::new(
                ErrorKind::LimitReached,
                format!(
                    "memory `{}` is kept for ever: its registration did not end, because a peer \
                     that is stopped in the middle of a transfer may still write there",
                    self.tag
                ),
            )
            .hint("the warning before this names the process")
        })
    }

    /// Takes it out of what later channels tell the peer of.
    fn take(&self) -> Option<TaggedMemory> {
        let shared = self.shared.upgrade()?;
        let mut memories = lock(&shared.memories);
        let (_, slice) = self.memory.as_ref()?;
        let at = memories
            .iter()
            .position(|memory| memory.regions[0].is_same(slice.region()))?;
        Some(memories.remove(at))
    }

    fn given_back(&self) -> Error {
        Error::new(
            ErrorKind::Closed,
            format!("memory `{}` was given back", self.tag),
        )
    }
}

impl<T: Element> fmt::Debug for Registered<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("tag", &self.tag)
            .field("slice", &self.memory.as_ref().map(|(_, slice)| slice))
            .finish_non_exhaustive()
    }
}

impl<T: Element> Drop for Registered<T> {
    fn drop(&mut self) {
        self.take();
    }
}
