//! Memory of one side, and posting with it. Invariant: a block lives as long as a transfer that
//! was posted with it may touch it, and it is only reached through raw copies.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use hcomm_transport::{Channel, Descriptor, Device, Import, Lane, Posted, Region};
use hcomm_types::{DataType, ReduceOp, Result};
use serde::{Deserialize, Serialize};

/// Where memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// From the device.
    Allocated,
    /// From this process, registered at the device.
    Registered,
    /// From this process; the device knows nothing of it.
    Plain,
}

/// Memory of this side.
#[derive(Clone)]
pub(crate) struct Memory {
    // First, so that a registration ends before its memory.
    region: Option<Region>,
    block: Block,
}

#[derive(Clone)]
enum Block {
    Own(Arc<OwnBlock>),
    OfRegion(Region),
}

struct OwnBlock {
    address: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the block is only reached by raw copies, whose order the checks arrange.
unsafe impl Send for OwnBlock {}
// SAFETY: as for `Send`.
unsafe impl Sync for OwnBlock {}

impl Drop for OwnBlock {
    fn drop(&mut self) {
        // SAFETY: allocated in `own` with this layout, freed once.
        unsafe { dealloc(self.address.as_ptr(), self.layout) };
    }
}

fn own(bytes: usize) -> Arc<OwnBlock> {
    let layout = Layout::from_size_align(bytes.max(1), 4096).expect("a block fits in memory");
    // SAFETY: the layout has at least one byte.
    let Some(address) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
        handle_alloc_error(layout)
    };
    Arc::new(OwnBlock { address, layout })
}

impl Memory {
    pub(crate) fn new(device: &Device, kind: Kind, bytes: usize) -> Result<Self> {
        Ok(match kind {
            Kind::Allocated => {
                let region = device.allocate(bytes)?;
                Self {
                    region: Some(region.clone()),
                    block: Block::OfRegion(region),
                }
            }
            Kind::Registered => {
                let mut memory = Self {
                    region: None,
                    block: Block::Own(own(bytes)),
                };
                memory.register(device)?;
                memory
            }
            Kind::Plain => Self {
                region: None,
                block: Block::Own(own(bytes)),
            },
        })
    }

    /// Registers the same memory (again).
    pub(crate) fn register(&mut self, device: &Device) -> Result<()> {
        // SAFETY: the block outlives the region: it is dropped after it, here and in `Held`;
        // nobody has references into it.
        self.region = Some(unsafe { device.register(self.address(), self.bytes()) }?);
        Ok(())
    }

    /// Ends the registration; the memory stays.
    pub(crate) fn deregister(&mut self) {
        self.region = None;
    }

    pub(crate) fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    pub(crate) fn bytes(&self) -> usize {
        match &self.block {
            Block::Own(block) => block.layout.size(),
            Block::OfRegion(region) => region.bytes(),
        }
    }

    fn address(&self) -> NonNull<u8> {
        self.block.address()
    }

    pub(crate) fn is_page_aligned(&self) -> bool {
        (self.address().as_ptr() as usize).is_multiple_of(4096)
    }

    pub(crate) fn store(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: inside the block, which is ours.
        unsafe {
            self.address()
                .add(offset)
                .copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
        }
    }

    pub(crate) fn load(&self, offset: usize, len: usize) -> Vec<u8> {
        self.check(offset, len);
        let mut out = vec![0; len];
        // SAFETY: inside the block, which is ours.
        unsafe {
            self.address()
                .add(offset)
                .copy_to_nonoverlapping(NonNull::from(&mut out[..]).cast(), len);
        }
        out
    }

    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset
                .checked_add(len)
                .is_some_and(|end| end <= self.bytes()),
            "the check touches {len} bytes at {offset} of a memory of {}",
            self.bytes()
        );
    }
}

/// Stores through the address at which a peer's memory is mapped; `false` if it is not.
pub(crate) fn store_mapped(import: &Import, offset: usize, bytes: &[u8]) -> bool {
    let Some(address) = import.address() else {
        return false;
    };
    assert!(offset + bytes.len() <= import.bytes() as usize);
    // SAFETY: the promise of `CAP_MAP` under test, inside the bounds that the import has.
    unsafe {
        address
            .add(offset)
            .copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
    }
    true
}

/// Loads in the same way.
pub(crate) fn load_mapped(import: &Import, offset: usize, len: usize) -> Option<Vec<u8>> {
    let address = import.address()?;
    assert!(offset + len <= import.bytes() as usize);
    let mut out = vec![0; len];
    // SAFETY: as for `store_mapped`.
    unsafe {
        address
            .add(offset)
            .copy_to_nonoverlapping(NonNull::from(&mut out[..]).cast(), len);
    }
    Some(out)
}

/// A transfer with the things it needs.
#[derive(Clone)]
pub(crate) struct Transfer<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) local: usize,
    pub(crate) remote: &'a Import,
    pub(crate) offset: u64,
    pub(crate) notify: Option<u32>,
    /// Whether the descriptor names the local region, where there is one.
    pub(crate) name_region: bool,
}

impl<'a> Transfer<'a> {
    fn region(&self) -> Option<&'a Region> {
        self.memory.region().filter(|_| self.name_region)
    }
}

/// One piece of work for [`Held::post`].
#[derive(Clone)]
pub(crate) enum Work<'a> {
    Write(Transfer<'a>, u64),
    Read(Transfer<'a>, u64),
    WriteReduce(Transfer<'a>, u64, DataType, ReduceOp),
    ReadReduce(Transfer<'a>, u64, DataType, ReduceOp),
    Notify(u32, [u64; 2]),
}

impl Work<'_> {
    fn memory(&self) -> Option<&Memory> {
        match self {
            Self::Write(t, _)
            | Self::Read(t, _)
            | Self::WriteReduce(t, ..)
            | Self::ReadReduce(t, ..) => Some(t.memory),
            Self::Notify(..) => None,
        }
    }

    fn local_end(&self) -> Option<(&Transfer<'_>, u64)> {
        match self {
            Self::Write(t, bytes) | Self::Read(t, bytes) => Some((t, *bytes)),
            Self::WriteReduce(t, count, dtype, _) | Self::ReadReduce(t, count, dtype, _) => {
                Some((t, count * dtype.size() as u64))
            }
            Self::Notify(..) => None,
        }
    }
}

/// A lane with the memory of everything that was posted with it and has not completed.
pub(crate) struct Held {
    lane: Lane,
    expected: u64,
    blocks: Vec<Block>,
}

impl Held {
    pub(crate) fn new(device: &Device) -> Self {
        Self {
            lane: device.lane(),
            expected: 0,
            blocks: Vec::new(),
        }
    }

    /// Posts; the memory stays until it has completed.
    pub(crate) fn post(&mut self, channel: &Channel, batch: &[Work<'_>]) -> Result<Posted> {
        for work in batch {
            if let Some((transfer, bytes)) = work.local_end()
                && transfer.region().is_none()
            {
                // The host checks only what lies in a region that is named.
                transfer.memory.check(transfer.local, bytes as usize);
            }
        }
        let descriptors: Vec<Descriptor<'_>> = batch.iter().map(descriptor).collect();
        // SAFETY: local memory lies in its block (checked above, or by the host against the
        // region, which is as large), and the blocks are held until the lane has drained; if it
        // never drains, they are leaked in `drop`.
        let posted = unsafe { channel.post(&self.lane, &descriptors) }?;
        if posted.pending > 0 {
            self.expected += posted.pending as u64;
            for memory in batch.iter().take(posted.accepted).filter_map(Work::memory) {
                if !self.blocks.iter().any(|held| held.is(&memory.block)) {
                    self.blocks.push(memory.block.clone());
                }
            }
        }
        Ok(posted)
    }

    /// Whether everything has completed; lets go of the memory then.
    ///
    /// # Errors
    /// More completions than transfers.
    pub(crate) fn drained(&mut self) -> Result<bool, String> {
        let completed = self.lane.completed();
        if completed > self.expected {
            return Err(format!(
                "{completed} completions for {} pending transfers",
                self.expected
            ));
        }
        if completed == self.expected {
            self.blocks.clear();
        }
        Ok(completed == self.expected)
    }

    /// Transfers that were not done inside `post`, since the beginning.
    pub(crate) fn expected(&self) -> u64 {
        self.expected
    }

    pub(crate) fn lane(&self) -> &Lane {
        &self.lane
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.lane.completed() < self.expected {
            self.blocks.drain(..).for_each(std::mem::forget);
        }
    }
}

impl Block {
    fn is(&self, other: &Self) -> bool {
        self.address() == other.address()
    }

    fn address(&self) -> NonNull<u8> {
        match self {
            Self::Own(block) => block.address,
            Self::OfRegion(region) => region.address(),
        }
    }
}

fn descriptor<'a>(work: &'a Work<'_>) -> Descriptor<'a> {
    // `wrapping_add` on purpose: checks of bounds pass places outside the memory.
    fn place(t: &Transfer<'_>) -> NonNull<u8> {
        NonNull::new(t.memory.address().as_ptr().wrapping_add(t.local)).expect("not null")
    }
    match work {
        Work::Write(t, bytes) => Descriptor::Write {
            local: place(t),
            region: t.region(),
            remote: t.remote,
            offset: t.offset,
            bytes: *bytes,
            notify: t.notify,
        },
        Work::Read(t, bytes) => Descriptor::Read {
            local: place(t),
            region: t.region(),
            remote: t.remote,
            offset: t.offset,
            bytes: *bytes,
        },
        Work::WriteReduce(t, count, dtype, redop) => Descriptor::WriteReduce {
            local: place(t),
            region: t.region(),
            remote: t.remote,
            offset: t.offset,
            count: *count,
            dtype: *dtype,
            redop: *redop,
            notify: t.notify,
        },
        Work::ReadReduce(t, count, dtype, redop) => Descriptor::ReadReduce {
            local: place(t),
            region: t.region(),
            remote: t.remote,
            offset: t.offset,
            count: *count,
            dtype: *dtype,
            redop: *redop,
        },
        Work::Notify(index, fingerprint) => Descriptor::Notify {
            notify: *index,
            fingerprint: *fingerprint,
        },
    }
}
