//! Pages and copies: everything that needs `unsafe`.
//!
//! Pointers come through the tables of the ABI, whose text makes the caller answer for them:
//! registered memory is there until it is deregistered, the local side of a descriptor until that has
//! completed, handles until they are given back. That is what the arguments below rest on.
#![allow(unsafe_code)]

use core::ptr::{NonNull, null_mut};

use hcomm_transport_abi::{
    DescriptorV1, OP_READ, OP_READ_REDUCE, OP_WRITE, OP_WRITE_REDUCE, STATUS_INVALID_ARGUMENT,
    STATUS_OUT_OF_BOUNDS, STATUS_UNSUPPORTED,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::device::host;
use crate::region::Import;

/// Zeroed pages, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Pages(Span);

impl Pages {
    pub(crate) fn map(bytes: u64) -> Result<Self, Errno> {
        let len = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing else.
        let base = unsafe {
            mmap_anonymous(
                null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self(Span { base, bytes }))
    }

    pub(crate) const fn span(&self) -> Span {
        self.0
    }

    pub(crate) const fn address(&self) -> NonNull<u8> {
        self.0.base
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` got; whoever could reach it held the `Memory` around it.
        let _ = unsafe { munmap(self.0.base.as_ptr().cast(), self.0.bytes as usize) };
    }
}

/// Bytes of this process that others may read and write at the same time: never borrowed, only
/// copied. They are there for as long as the `Memory` that holds the span has not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    base: NonNull<u8>,
    bytes: u64,
}

// SAFETY: the bytes belong to the process, not to a thread.
unsafe impl Send for Span {}
// SAFETY: as for `Send`; the span itself never changes.
unsafe impl Sync for Span {}

impl Span {
    /// Memory that the user brings.
    pub(crate) fn brought(base: NonNull<u8>, bytes: u64) -> Option<Self> {
        (base.addr().get() as u64).checked_add(bytes)?;
        Some(Self { base, bytes })
    }

    pub(crate) const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Address of `bytes` bytes from `offset` on, if they are inside.
    fn part(self, offset: u64, bytes: u64) -> Option<NonNull<u8>> {
        (offset.checked_add(bytes)? <= self.bytes).then(|| {
            // SAFETY: inside the memory, or just behind its end when there are no bytes.
            unsafe { self.base.add(offset as usize) }
        })
    }
}

/// A descriptor on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job(DescriptorV1);

// SAFETY: its local memory belongs to the process, not to a thread, and is there until the
// descriptor has completed; the handles in it are not looked at any more after `post`.
unsafe impl Send for Job {}

impl Job {
    pub(crate) const fn new(descriptor: &DescriptorV1) -> Self {
        Self(*descriptor)
    }

    pub(crate) const fn descriptor(&self) -> &DescriptorV1 {
        &self.0
    }
}

/// The import that a descriptor names.
pub(crate) fn import_of(descriptor: &DescriptorV1) -> Option<&Import> {
    // SAFETY: null, or a handle of an `Import` that is not released while `post` lasts.
    unsafe { descriptor.remote.cast::<Import>().as_ref() }
}

const ELEMENT_BYTES: [u64; 12] = [1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8];

/// Checks everything that can be wrong with the ranges of a descriptor. The caller has entered the
/// memory of `remote`.
pub(crate) fn check(descriptor: &DescriptorV1, remote: Span) -> Result<(), i32> {
    let bytes = descriptor.bytes;
    let far = remote
        .part(descriptor.remote_offset, bytes)
        .ok_or(STATUS_OUT_OF_BOUNDS)?;
    if bytes == 0 {
        return Ok(());
    }
    if descriptor.local.is_null() {
        return Err(STATUS_INVALID_ARGUMENT);
    }
    if matches!(descriptor.opcode, OP_WRITE_REDUCE | OP_READ_REDUCE) {
        let size = ELEMENT_BYTES
            .get(descriptor.dtype as usize)
            .ok_or(STATUS_INVALID_ARGUMENT)?;
        let apart = (far.addr().get() as u64).abs_diff(descriptor.local.addr() as u64);
        let overlap_in_part = apart != 0 && apart < bytes;
        if !bytes.is_multiple_of(*size) || overlap_in_part || descriptor.redop > 3 {
            return Err(STATUS_INVALID_ARGUMENT);
        }
    }
    Ok(())
}

/// Moves or combines the bytes of one descriptor that was checked. The caller has entered the
/// memory of `remote`.
pub(crate) fn transfer(descriptor: &DescriptorV1, remote: Span) -> Result<(), i32> {
    check(descriptor, remote)?;
    let bytes = descriptor.bytes;
    let far = remote
        .part(descriptor.remote_offset, bytes)
        .ok_or(STATUS_OUT_OF_BOUNDS)?
        .as_ptr();
    let near = descriptor.local.cast::<u8>();
    if bytes == 0 {
        return Ok(());
    }
    let (to, from) = match descriptor.opcode {
        OP_WRITE | OP_WRITE_REDUCE => (far, near),
        OP_READ | OP_READ_REDUCE => (near, far),
        _ => return Err(STATUS_UNSUPPORTED),
    };
    if matches!(descriptor.opcode, OP_WRITE | OP_READ) {
        // SAFETY: both sides have `bytes` bytes; they may overlap. Who else touches them at the
        // same time breaks the protocol of records and waits above, not this copy.
        unsafe { to.copy_from(from, bytes as usize) };
        return Ok(());
    }
    let size = ELEMENT_BYTES
        .get(descriptor.dtype as usize)
        .ok_or(STATUS_INVALID_ARGUMENT)?;
    // SAFETY: both sides have the bytes of `count` elements and are the same or apart; the caller
    // of `post` keeps others away until the descriptor has completed.
    unsafe {
        host().ok_or(STATUS_UNSUPPORTED)?.reduce(
            to.cast(),
            to.cast_const().cast(),
            from.cast(),
            bytes / size,
            descriptor.dtype,
            descriptor.redop,
        )
    }
}
