//! An inbox as one of its two sides touches it: the module in which cells and pieces become loads
//! and stores.
//!
//! As in [`memory`](crate::memory), no Rust reference to the bytes is ever made: the peer may write
//! there whatever it likes and whenever, and a peer that breaks the rules makes us read torn bytes,
//! nothing worse. Words are only touched atomically.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use hcomm_types::{Error, ErrorKind, Result};

use super::direct::Blobs;
use super::header::EXCHANGED;
use super::ring::{PAYLOAD, Shape, Words, lines};
use crate::copy::Hint;
use crate::memory::Place;
use crate::slice::{RemoteSlice, Slice};

/// One side's view of an inbox.
#[derive(Debug)]
pub(crate) struct Inbox {
    base: NonNull<u8>,
    shape: Shape,
    /// What keeps the memory there.
    _owner: Owner,
}

#[derive(Debug)]
#[expect(dead_code, reason = "they are held, not looked at")]
enum Owner {
    This(Slice),
    Peer(RemoteSlice),
}

// SAFETY: the address is only used for atomic words and for bytes that any process may change at
// any time anyway; see the head of this file.
unsafe impl Send for Inbox {}
// SAFETY: as for `Send`.
unsafe impl Sync for Inbox {}

impl Inbox {
    /// The inbox of this side.
    ///
    /// # Errors
    /// `InvalidArgument` if it is too small or lies askew.
    pub(crate) fn own(slice: &Slice, shape: Shape) -> Result<Self> {
        Self::at(slice.place(), shape, Owner::This(slice.clone()))
    }

    /// The inbox of the peer.
    ///
    /// # Errors
    /// As [`Inbox::own`]; `Unsupported` if it is not mapped here.
    pub(crate) fn of_peer(remote: &RemoteSlice, shape: Shape) -> Result<Self> {
        let place = remote.remote().mapped().ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                "messages need the peer's memory mapped, and this link does not map it",
            )
        })?;
        Self::at(place, shape, Owner::Peer(remote.clone()))
    }

    fn at(place: Place<'_>, shape: Shape, owner: Owner) -> Result<Self> {
        let (base, bytes) = (place.address(), place.bytes() as u64);
        if bytes < shape.bytes() || base.addr().get() % super::ring::CELL as usize != 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "an inbox of {bytes} bytes at {base:p}; {} bytes that begin at a multiple of \
                     64 are needed",
                    shape.bytes()
                ),
            ));
        }
        Ok(Self {
            base,
            shape,
            _owner: owner,
        })
    }

    pub(crate) const fn shape(&self) -> Shape {
        self.shape
    }

    /// Copies `src` to the words from `word` on; nothing if it is longer than half a line's payload.
    #[inline]
    pub(crate) fn fill_words(&self, word: usize, src: Place<'_>) {
        if src.bytes() <= EXCHANGED {
            // SAFETY: a caller's memory exists; the words do, by the shape.
            unsafe {
                let dst = self.base.add(word * 8);
                crate::copy::copy_small(dst.as_ptr(), src.address().as_ptr(), src.bytes());
            }
        }
    }

    /// Copies the words from `word` on to `dst`, which is writable; nothing if it is too long.
    #[inline]
    pub(crate) fn empty_words(&self, word: usize, dst: Place<'_>) {
        if dst.bytes() <= EXCHANGED {
            // SAFETY: as in `fill_words`.
            unsafe {
                let src = self.base.add(word * 8);
                crate::copy::copy_small(dst.address().as_ptr(), src.as_ptr(), dst.bytes());
            }
        }
    }

    /// Copies what follows `from` in `src` into the payload of a cell, as much as goes there.
    #[inline]
    pub(crate) fn fill_cell(&self, position: u64, src: Place<'_>, from: usize) {
        let left = src.bytes().saturating_sub(from);
        // SAFETY: both ranges exist, as just reckoned and by the shape.
        unsafe {
            let dst = self.payload(position).as_ptr();
            copy_payload(dst, src.address().as_ptr().wrapping_add(from), left);
        }
    }

    /// Copies the payload of a cell to what follows `to` in `dst`, as much as has room there. `dst`
    /// is writable.
    #[inline]
    pub(crate) fn empty_cell(&self, position: u64, dst: Place<'_>, to: usize) {
        let left = dst.bytes().saturating_sub(to);
        // SAFETY: as in `fill_cell`.
        unsafe {
            let src = self.payload(position).as_ptr();
            copy_payload(dst.address().as_ptr().wrapping_add(to), src, left);
        }
    }

    #[inline]
    fn payload(&self, position: u64) -> NonNull<u8> {
        // SAFETY: inside the inbox, by the shape.
        unsafe { self.base.add(self.shape.header(position) * 8 + 8) }
    }

    /// Copies a part of `src` to the data ring. `to_far` says whether the peer is far, where the part
    /// is worth being handed over.
    pub(crate) fn fill_data(&self, position: u64, src: Place<'_>, to_far: Option<bool>) {
        if let Some(dst) = self.data(position, src.bytes()) {
            // SAFETY: both ranges exist and are as long; a caller's memory and a ring are apart,
            // and bytes that are sent from the ring itself may come out torn.
            unsafe { copy(dst.as_ptr(), src.address().as_ptr(), src.bytes(), to_far) }
        }
    }

    /// Copies a piece of the data ring to `dst`, which is writable.
    pub(crate) fn empty_data(&self, position: u64, dst: Place<'_>) {
        if let Some(src) = self.data(position, dst.bytes()) {
            // SAFETY: as in `fill_data`.
            unsafe { copy(dst.address().as_ptr(), src.as_ptr(), dst.bytes(), None) }
        }
    }

    /// Has a line fetched that is looked at soon.
    #[inline]
    pub(crate) fn prefetch(&self, word: usize) {
        crate::copy::prefetch(std::ptr::from_ref(self.word(word)).cast());
    }

    /// Has a line fetched that is written soon.
    #[inline]
    pub(crate) fn prefetch_owned(&self, word: usize) {
        crate::copy::prefetch_owned(std::ptr::from_ref(self.word(word)).cast());
    }

    /// A range of the data ring, if it is one piece.
    fn data(&self, position: u64, bytes: usize) -> Option<NonNull<u8>> {
        let at = self.shape.at(position);
        let fits = (bytes as u64) <= self.shape.bytes() - at;
        // SAFETY: inside the inbox, as just checked.
        fits.then(|| unsafe { self.base.add(at as usize) })
    }

    #[inline]
    fn word(&self, word: usize) -> &AtomicU64 {
        debug_assert!((word as u64) < self.shape.bytes() / 8);
        // SAFETY: words come from the shape, so it is inside; the base is aligned; all accesses to
        // words are atomic, here and at the peer.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().cast::<u64>().add(word)) }
    }
}

impl Words for Inbox {
    #[inline]
    fn load(&self, word: usize) -> u64 {
        self.word(word).load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, word: usize, value: u64) {
        self.word(word).store(value, Ordering::Release);
    }
}

impl Blobs for Inbox {
    fn put_blob(&self, blob: &[u8]) {
        for (word, bytes) in (lines::BLOB..lines::CELLS).zip(blob.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            self.store(word, u64::from_ne_bytes(whole));
        }
    }

    fn blob(&self, bytes: usize) -> Vec<u8> {
        let mut blob: Vec<u8> = (lines::BLOB..lines::CELLS)
            .take(bytes.div_ceil(8))
            .flat_map(|word| self.load(word).to_ne_bytes())
            .collect();
        blob.truncate(bytes);
        blob
    }
}

/// Copies the payload of a cell, or the `left` bytes of a message that are left, if they are fewer.
///
/// # Safety
/// `src` is readable and `dst` writable for so many bytes.
#[inline(always)]
unsafe fn copy_payload(dst: *mut u8, src: *const u8, left: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        // The usual length is a constant: no branches over lengths then.
        if left >= PAYLOAD {
            crate::copy::copy_small(dst, src, PAYLOAD);
        } else {
            crate::copy::copy_small(dst, src, left);
        }
    }
}

/// Copies; all of it is there before any later store.
///
/// # Safety
/// `src` is readable and `dst` writable for `bytes` bytes.
unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize, to_far: Option<bool>) {
    /// What is handed over is at least as long.
    const LINE: usize = 64;
    let apart = dst.addr().abs_diff(src.addr()) >= bytes;
    // SAFETY: the caller's promise. They overlap if a program sends its own inbox.
    unsafe {
        if !apart {
            std::ptr::copy(src, dst, bytes);
        } else if let Some(is_far) = to_far
            && bytes >= LINE
        {
            crate::copy::hand_over(dst, src, bytes, is_far);
        } else {
            crate::copy::copy(dst, src, bytes, Hint::Local);
        }
    }
}
