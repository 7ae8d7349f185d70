//! Memory of this side, and imports of the peer's.

use core::ptr::NonNull;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use hcomm_transport_abi::{
    Fault, Imported, LOG_ERROR, STATUS_BAD_BLOB, STATUS_LIMIT, STATUS_NOT_CONNECTED, STATUS_OK,
    STATUS_STALE_KEY,
};

use crate::channel::{Answer, Channel, ChannelInner};
use crate::device::{DeviceCore, Kind, Open, find_device, next_number, random_token};
use crate::direct::{Place, Reach, call_in};
use crate::gate::Gate;
use crate::limits::{reserved_memory, system_fault, whole_pages};
use crate::segment::map_peer_memory;
use crate::sys::{Mapping, Span};
use crate::wire::{RegionBlob, RegionKind, Token};

/// A region, for the host.
#[derive(Debug)]
pub struct Region {
    pub(crate) core: Arc<RegionCore>,
    device: Open,
}

/// A region, for whoever moves its bytes.
#[derive(Debug)]
pub(crate) struct RegionCore {
    pub(crate) number: u64,
    key: Token,
    span: Span<'static>,
    backing: Option<Backing>,
    /// Keeps it in place while bytes of it are moved.
    gate: Gate,
}

/// Allocated memory. The mapping lives as long as anybody in this process can reach it.
#[derive(Debug)]
struct Backing {
    _mapping: Mapping,
    memory: OwnedFd,
}

/// While it lives, the region's memory stays where it is.
#[derive(Debug)]
pub(crate) struct Entered<'a>(&'a RegionCore);

impl Region {
    /// Notes memory that the user brings.
    pub(crate) fn register(device: &Arc<DeviceCore>, span: Span<'static>) -> Result<Self, Fault> {
        Self::admit(device, span, None)
    }

    /// Makes memory that peers can map.
    pub(crate) fn allocate(device: &Arc<DeviceCore>, bytes: u64) -> Result<Self, Fault> {
        let mapped = whole_pages(bytes)
            .ok_or_else(|| Fault::invalid(format!("{bytes} bytes do not fit an address space")))?;
        let memory = reserved_memory("hcomm-region", mapped)?;
        let mapping = usize::try_from(mapped)
            .map_err(|_| rustix::io::Errno::NOMEM)
            .and_then(|mapped| Mapping::shared(&memory, mapped))
            .map_err(|errno| system_fault(&format!("mapping {mapped} bytes"), errno))?;
        let span = crate::export::kept_memory(&mapping, bytes as usize);
        let backing = Backing {
            _mapping: mapping,
            memory,
        };
        Self::admit(device, span, Some(backing))
    }

    fn admit(
        device: &Arc<DeviceCore>,
        span: Span<'static>,
        backing: Option<Backing>,
    ) -> Result<Self, Fault> {
        let core = Arc::new(RegionCore {
            number: next_number(),
            key: random_token()?,
            span,
            backing,
            gate: Gate::default(),
        });
        device.add_region(&core);
        Ok(Self {
            core,
            device: Open::new(device, Kind::Region),
        })
    }

    pub(crate) fn address(&self) -> NonNull<u8> {
        NonNull::new(self.core.span.address()).unwrap_or(NonNull::dangling())
    }

    pub(crate) fn blob(&self) -> RegionBlob {
        let (process, device) = self.device.device().names();
        RegionBlob {
            process,
            device,
            number: self.core.number,
            key: self.core.key,
            bytes: self.core.span.bytes() as u64,
            kind: self.core.kind(),
        }
    }

    /// Ends it: nobody can find it, and nobody is moving bytes of it, afterwards.
    ///
    /// # Errors
    /// `STATUS_BUSY` when a peer is inside and does not go on. It may be called again.
    pub(crate) fn close(&self) -> Result<(), Fault> {
        let device = self.device.device();
        device.remove_region(self.core.number);
        self.core.close();
        match self.core.kind() {
            RegionKind::User => call_in(&device.lenders(), self.core.number),
            RegionKind::Allocated => Ok(()),
        }
    }

    /// Whether `bytes` bytes at `address` lie inside.
    pub(crate) fn holds(&self, address: *const u8, bytes: u64) -> bool {
        (address as u64)
            .checked_sub(self.core.span.address() as u64)
            .is_some_and(|at| self.core.span.part(at, bytes).is_some())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Err(fault) = self.close() {
            self.device.device().host.log(LOG_ERROR, &fault.text);
        }
    }
}

impl RegionCore {
    pub(crate) const fn key(&self) -> &Token {
        &self.key
    }

    pub(crate) const fn kind(&self) -> RegionKind {
        match self.backing {
            Some(_) => RegionKind::Allocated,
            None => RegionKind::User,
        }
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.span.bytes() as u64
    }

    pub(crate) const fn address(&self) -> *mut u8 {
        self.span.address()
    }

    /// Whether nobody may enter any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }

    /// The memory file of allocated memory.
    pub(crate) fn memory(&self) -> Option<&OwnedFd> {
        self.backing.as_ref().map(|backing| &backing.memory)
    }

    /// Keeps the memory in place until the result is dropped; `None` if the user has taken it
    /// back already. Allocated memory lives as long as the region core itself.
    pub(crate) fn enter(&self) -> Option<Entered<'_>> {
        self.gate
            .enter(self.backing.is_some())
            .then(|| Entered(self))
    }

    /// Shuts the gate and lets those inside finish: copies in progress on other threads of this
    /// process, which wait for nobody.
    fn close(&self) {
        self.gate.close();
        if self.backing.is_none() {
            self.gate.wait_until_empty();
        }
    }
}

impl<'a> Entered<'a> {
    pub(crate) const fn span(&self) -> Span<'a> {
        self.0.span
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.gate.leave();
    }
}

/// A peer's region, for the host.
#[derive(Debug)]
pub struct Import {
    /// Number of the channel that it came through.
    pub(crate) channel: u64,
    pub(crate) bytes: u64,
    pub(crate) target: Target,
    _device: Open,
}

/// How the bytes of an import are reached.
#[derive(Debug)]
pub(crate) enum Target {
    /// Asked for, or to be asked for, at the owner.
    Asked {
        blob: RegionBlob,
        request: Option<u64>,
    },
    /// In this process.
    Local(Arc<RegionCore>),
    /// Mapped.
    Mapped(Mapping),
    /// User memory of another process: where it may be reached in one copy, and what the ring
    /// calls it.
    User {
        direct: Option<Place>,
        region: u64,
        key: Token,
    },
}

impl Import {
    pub(crate) fn begin(channel: &Channel, blob: &[u8]) -> Result<Self, Fault> {
        let inner = &channel.inner;
        let blob = RegionBlob::decode(blob)?;
        let peer = inner.peer().ok_or_else(|| {
            Fault::new(
                STATUS_NOT_CONNECTED,
                "regions are imported over a connected channel: connect first",
            )
        })?;
        if (blob.process, blob.device) != (peer.process, peer.device) {
            return Err(Fault::new(
                STATUS_BAD_BLOB,
                "the region belongs to another device than the channel's peer",
            ));
        }
        let bytes = blob.bytes;
        let target = if inner.is_same_process() {
            let region = find_device(&blob.device)
                .and_then(|device| device.find_region(blob.number, &blob.key))
                .filter(|region| region.bytes() == bytes && region.kind() == blob.kind)
                .ok_or_else(stale)?;
            Target::Local(region)
        } else {
            Target::Asked {
                blob,
                request: None,
            }
        };
        Ok(Self {
            channel: inner.number(),
            bytes,
            target,
            _device: Open::new(inner.device(), Kind::Import),
        })
    }

    pub(crate) fn poll(&mut self, channel: &Channel) -> Result<Option<Imported>, Fault> {
        if let Target::Asked { blob, request } = &mut self.target {
            let Some(answer) = channel.inner.ask(blob.number, &blob.key, request)? else {
                return Ok(None);
            };
            self.target = accept(blob, answer, channel.inner.reach())?;
        }
        Ok(Some(Imported {
            bytes: self.bytes,
            address: self.address(),
        }))
    }

    /// Tells the channel that nobody waits for the answer any more.
    pub(crate) fn abandon(&self, channel: &ChannelInner) {
        if let Target::Asked {
            request: Some(request),
            ..
        } = self.target
        {
            channel.abandon(request);
        }
    }

    fn address(&self) -> Option<NonNull<u8>> {
        match &self.target {
            // Memory that the user brought has no address here: it may go away at any moment, and
            // only the region's gate keeps it there.
            Target::Local(region) if region.kind() == RegionKind::User => None,
            Target::Local(region) => NonNull::new(region.span.address()),
            Target::Mapped(mapping) => Some(mapping.address()),
            Target::Asked { .. } | Target::User { .. } => None,
        }
    }
}

/// Makes a target of what the owner answered to a blob.
fn accept(blob: &RegionBlob, answer: Answer, reach: Option<&Reach>) -> Result<Target, Fault> {
    match answer.status {
        STATUS_OK => {}
        STATUS_LIMIT => {
            return Err(system_fault(
                "the descriptor of a peer's region",
                rustix::io::Errno::MFILE,
            ));
        }
        _ => return Err(stale()),
    }
    if answer.bytes != blob.bytes || answer.kind != blob.kind {
        return Err(Fault::new(
            STATUS_BAD_BLOB,
            format!(
                "the blob says {:?} of {} bytes, its owner {:?} of {} bytes",
                blob.kind, blob.bytes, answer.kind, answer.bytes
            ),
        ));
    }
    match answer.memory {
        Some(memory) => {
            let bytes =
                whole_pages(blob.bytes).ok_or_else(|| Fault::invalid("region too large"))?;
            map_peer_memory(memory, bytes, "a region").map(Target::Mapped)
        }
        None => {
            if let (Some(reach), None) = (reach, answer.loan) {
                reach.decline();
            }
            Ok(Target::User {
                direct: reach
                    .and(answer.loan)
                    .map(|loan| Place::new(blob.number, loan)),
                region: blob.number,
                key: blob.key,
            })
        }
    }
}

fn stale() -> Fault {
    Fault::new(
        STATUS_STALE_KEY,
        "the peer has no region with this key any more: export it again",
    )
}
