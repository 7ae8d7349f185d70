//! Memory that is measured: of the communicator, the caller's own, or of all ranks together.

use hcomm::{Communicator, PeerLink, Registered, Window};
use hcomm_data::{RemoteSlice, Slice};
use hcomm_types::Result;

use super::worker::buffer;
use super::{Memory, PerfArgs};

/// Memory on this rank, kept for a measurement.
pub(super) struct Held<'a> {
    comm: &'a Communicator,
    tag: String,
    slice: Slice,
    kind: Kind,
}

enum Kind {
    Ours,
    /// Is registered as long as it is here.
    User {
        _memory: Registered<u8>,
    },
    Symmetric(Window),
}

impl<'a> Held<'a> {
    /// So many bytes, at least one, of the kind that is asked for. All ranks call it together,
    /// before they open the channels over which they want to reach it.
    ///
    /// # Errors
    /// `LimitReached`; `Unsupported` if the transport registers no memory.
    pub(super) fn new(args: &PerfArgs, comm: &'a Communicator, bytes: usize) -> Result<Self> {
        let (tag, bytes) = (args.tag(), bytes.max(1));
        let (slice, kind) = match args.memory() {
            Memory::Ours => (comm.allocate(&tag, bytes)?, Kind::Ours),
            Memory::User => {
                let memory = comm.register(&tag, buffer(bytes as u64)?)?;
                (memory.slice()?.clone(), Kind::User { _memory: memory })
            }
            Memory::Symmetric => {
                let window = comm.window(&tag, bytes)?;
                (window.local().clone(), Kind::Symmetric(window))
            }
        };
        Ok(Self {
            comm,
            tag,
            slice,
            kind,
        })
    }

    /// On this rank.
    pub(super) const fn slice(&self) -> &Slice {
        &self.slice
    }

    /// The same on the rank at the other end.
    ///
    /// # Errors
    /// `InvalidArgument` if the channel is older than the memory.
    pub(super) fn of_peer(&self, link: &PeerLink) -> Result<RemoteSlice> {
        match &self.kind {
            Kind::Symmetric(window) => window.of(link.peer).cloned(),
            Kind::Ours | Kind::User { .. } => link.memory(&self.tag),
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if matches!(self.kind, Kind::Ours) {
            // It is known: it was just allocated under this tag.
            let _ = self.comm.forget(&self.tag);
        }
    }
}
