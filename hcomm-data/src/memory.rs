//! Memory as the data plane touches it: the one module, besides the reduce kernels, in which
//! addresses become loads and stores.
//!
//! A [`Place`] is a range that is known to exist, because it borrows what keeps it there: a
//! registered region, an import of a peer's region, or a [`Loan`] of a caller's buffers. No Rust
//! reference to such memory is ever made here: peers may write to it at any moment that the
//! caller's notifies allow, and a caller whose notifies allow too much reads torn bytes, nothing
//! worse, since every bit pattern is a valid element of every data type.

use std::fmt;
use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Instant;

use hcomm_transport::{Capabilities, Descriptor, Device, Import, Lane, Region};
use hcomm_types::{DataType, Error, ErrorKind, ReduceOp, Result};
use smallvec::SmallVec;

use crate::channel::Channel;
use crate::copy::Hint;
use crate::failure::Failure;
use crate::slice::{Remote, Slice};

/// A range of memory that exists as long as `'a`.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    address: NonNull<u8>,
    bytes: usize,
    owner: Owner<'a>,
}

/// What keeps a place there.
#[derive(Clone, Copy)]
enum Owner<'a> {
    Region(&'a Region),
    /// A peer's region: the import is borrowed as long, by [`Place::of_import`].
    Import,
    Input(&'a Arc<Loan>),
    Output(&'a Arc<Loan>),
    /// A caller's memory in a call that does not return while it is used: read only, and not.
    Lent,
    LentMut,
}

impl<'a> Place<'a> {
    /// The memory of a slice.
    #[inline(always)]
    pub(crate) fn of_slice(slice: &'a Slice) -> Self {
        // SAFETY: a slice lies inside its region; see `Slice::new`.
        let address = unsafe { slice.region().address().add(slice.offset()) };
        Self {
            address,
            bytes: slice.bytes(),
            owner: Owner::Region(slice.region()),
        }
    }

    /// `bytes` bytes at `offset` of a peer's region, where it is mapped here.
    #[inline(always)]
    pub(crate) fn of_import(import: &'a Import, offset: u64, bytes: u64) -> Option<Self> {
        let base = import.address()?;
        let inside = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= import.bytes());
        if !inside {
            return None;
        }
        Some(Self {
            // SAFETY: inside the mapping, as just checked; a mapping fits the address space.
            address: unsafe { base.add(offset as usize) },
            bytes: bytes as usize,
            owner: Owner::Import,
        })
    }

    /// A part of it.
    #[inline(always)]
    pub(crate) fn part(self, offset: u64, bytes: u64) -> Result<Self> {
        let inside = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes as u64);
        if !inside {
            return Err(Error::new(
                ErrorKind::OutOfBounds,
                format!("{bytes} bytes at offset {offset} of {} bytes", self.bytes),
            ));
        }
        Ok(Self {
            // SAFETY: inside, as just checked.
            address: unsafe { self.address.add(offset as usize) },
            bytes: bytes as usize,
            owner: self.owner,
        })
    }

    /// Memory that a caller lends for the time of a call, read only.
    pub(crate) fn of_lent(bytes: &'a [u8]) -> Self {
        Self {
            address: NonNull::from(bytes).cast(),
            bytes: bytes.len(),
            owner: Owner::Lent,
        }
    }

    /// The same, to be written. It must not be posted: nothing is held.
    pub(crate) fn of_lent_mut(bytes: &'a mut [u8]) -> Self {
        Self {
            address: NonNull::from(&mut *bytes).cast(),
            bytes: bytes.len(),
            owner: Owner::LentMut,
        }
    }

    pub(crate) const fn bytes(self) -> usize {
        self.bytes
    }

    /// Where it is.
    pub(crate) const fn address(self) -> NonNull<u8> {
        self.address
    }

    /// Whether it begins at the same byte.
    pub(crate) fn is_at(self, other: Self) -> bool {
        self.address == other.address
    }

    /// Whether the two have a byte in common.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        let ((start, end), (other_start, other_end)) = (self.range(), other.range());
        start < other_end && other_start < end
    }

    fn range(self) -> (usize, usize) {
        let start = self.address.as_ptr() as usize;
        (start, start + self.bytes)
    }

    fn writable_address(self) -> Result<NonNull<u8>> {
        self.check_writable().map(|()| self.address)
    }

    /// Refuses what tasks may only read.
    #[inline]
    pub(crate) fn check_writable(self) -> Result<()> {
        match self.owner {
            Owner::Input(_) | Owner::Lent => Err(Error::new(
                ErrorKind::Internal,
                "a task writes to the caller's input",
            )),
            Owner::Region(_) | Owner::Import | Owner::Output(_) | Owner::LentMut => Ok(()),
        }
    }

    /// The region it lies in, if `device` knows that.
    pub(crate) fn region_for(self, device: &Device) -> Option<&'a Region> {
        match self.owner {
            Owner::Region(region) if region.device().is_same(device) => Some(region),
            _ => None,
        }
    }

    /// Where it begins in a region that holds it.
    pub(crate) fn offset_in(self, region: &Region) -> u64 {
        (self.address.addr().get() - region.address().addr().get()) as u64
    }

    /// Whether descriptors for `device` may have this as their local side.
    pub(crate) fn postable(self, device: &Device) -> Result<()> {
        let any = device.info().capabilities.contains(Capabilities::LOCAL_ANY);
        if any || self.region_for(device).is_some() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("{device:?} moves only memory that is registered with it"),
        )
        .hint("register the memory with this device, or use a slice of its own regions"))
    }

    /// Both as one, if `next` begins where this ends and the same keeps it there.
    pub(crate) fn joined(self, next: Self) -> Option<Self> {
        let is_same = match (self.owner, next.owner) {
            (Owner::Region(one), Owner::Region(other)) => one.is_same(other),
            (Owner::Input(one), Owner::Input(other))
            | (Owner::Output(one), Owner::Output(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        (is_same && self.range().1 == next.range().0).then(|| Self {
            bytes: self.bytes + next.bytes,
            ..self
        })
    }

    fn keep(self) -> Option<Keep> {
        match self.owner {
            Owner::Region(region) => Some(Keep::Region(region.clone())),
            Owner::Input(loan) | Owner::Output(loan) => Some(Keep::Loan(Arc::clone(loan))),
            Owner::Import | Owner::Lent | Owner::LentMut => None,
        }
    }
}

impl fmt::Debug for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:p}", self.bytes, self.address)
    }
}

/// Copies `src` to `dst`, which is as long; they may overlap. What goes to a peer's memory is handed
/// over; see [`Hint`]. Always inlined: places that go through memory cost more than a short copy.
#[inline(always)]
pub(crate) fn copy(dst: Place<'_>, src: Place<'_>, hint: Hint) -> Result<()> {
    dst.check_writable()?;
    if dst.bytes != src.bytes {
        return Err(Error::new(
            ErrorKind::Internal,
            format!("a copy of {} bytes to {} bytes", src.bytes, dst.bytes),
        ));
    }
    let ((d, d_end), (s, s_end)) = (dst.range(), src.range());
    if d == s {
        return Ok(());
    }
    let (to, from) = (dst.address.as_ptr(), src.address.as_ptr());
    if d < s_end && s < d_end {
        // SAFETY: both places exist; `dst` is writable.
        unsafe { std::ptr::copy(from, to, src.bytes) };
    } else {
        // SAFETY: both places exist, `dst` is writable, and they do not overlap.
        unsafe { crate::copy::copy(to, from, src.bytes, hint) };
    }
    Ok(())
}

/// Copies memory at an address of the peer's process, which lends it, to `dst`.
pub(crate) fn fetch_lent(channel: &Channel, dst: Place<'_>, address: u64) -> Result<()> {
    dst.check_writable()?;
    // SAFETY: the place exists and is writable, and no reference to it lives; see the head of this
    // file.
    unsafe {
        channel
            .transport()
            .fetch(dst.address, address, dst.bytes as u64)
    }
}

/// `at = at / by`, element by element.
pub(crate) fn divide(at: Place<'_>, dtype: DataType, by: NonZeroU32) -> Result<()> {
    at.check_writable()?;
    if !at.bytes.is_multiple_of(dtype.size()) {
        return Err(Error::new(
            ErrorKind::Internal,
            format!("a division of {} bytes of {dtype}", at.bytes),
        ));
    }
    let count = at.bytes / dtype.size();
    // SAFETY: the place exists, is writable, and holds so many elements.
    unsafe { crate::reduce::divide(at.address.as_ptr(), count, dtype, by) };
    Ok(())
}

/// `dst = a op b`, all as long. `dst` equals an operand or overlaps none.
pub(crate) fn reduce(
    dst: Place<'_>,
    a: Place<'_>,
    b: Place<'_>,
    dtype: DataType,
    redop: ReduceOp,
    hint: Hint,
) -> Result<()> {
    dst.check_writable()?;
    if dst.bytes != a.bytes || dst.bytes != b.bytes || !dst.bytes.is_multiple_of(dtype.size()) {
        return Err(Error::new(
            ErrorKind::Internal,
            format!(
                "a reduction of {} and {} bytes to {} bytes of {dtype}",
                a.bytes, b.bytes, dst.bytes
            ),
        ));
    }
    for operand in [a, b] {
        let ((d, d_end), (o, o_end)) = (dst.range(), operand.range());
        if d != o && d < o_end && o < d_end {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the result of a reduction overlaps an operand in part",
            )
            .hint("let the result begin where the operand begins, or keep them apart"));
        }
    }
    // SAFETY: all three places exist and hold as many elements; overlap was just checked.
    unsafe {
        crate::reduce::reduce(
            dst.address.as_ptr(),
            a.address.as_ptr(),
            b.address.as_ptr(),
            dst.bytes / dtype.size(),
            dtype,
            redop,
            hint,
        );
    }
    Ok(())
}

/// In ns, how long it takes to own the last line of a place, once it is here: to be the only core
/// that has it, as before a store. Its bytes stay what they are. The place is not empty.
pub(crate) fn time_to_own(place: Place<'_>) -> u64 {
    // SAFETY: the last byte, of a place that exists. It is about to be written by this thread, and a
    // peer that writes there meanwhile breaks the rules of the data plane, without effect here.
    let byte = unsafe {
        let last = place.bytes.saturating_sub(1);
        AtomicU8::from_ptr(place.address.as_ptr().add(last))
    };
    let value = byte.load(Ordering::Acquire);
    let began = Instant::now();
    let clock = began.elapsed();
    // Always takes the line, whatever it finds.
    let _ = byte.compare_exchange(value, value, Ordering::AcqRel, Ordering::Relaxed);
    let own = began.elapsed().saturating_sub(clock * 2);
    u64::try_from(own.as_nanos()).unwrap_or(u64::MAX)
}

/// Bytes of ours into a place that is as long.
pub(crate) fn fill(dst: Place<'_>, bytes: &[u8]) {
    debug_assert_eq!(dst.bytes, bytes.len());
    // SAFETY: the place exists and is registered memory, to which no reference lives, so `bytes`
    // is elsewhere.
    unsafe {
        crate::copy::copy(
            dst.address.as_ptr(),
            bytes.as_ptr(),
            bytes.len().min(dst.bytes),
            Hint::Local,
        );
    }
}

/// Bytes of a place into ours, which is as long.
pub(crate) fn fetch(bytes: &mut [u8], src: Place<'_>) {
    debug_assert_eq!(src.bytes, bytes.len());
    // SAFETY: as in `fill`.
    unsafe {
        crate::copy::copy(
            bytes.as_mut_ptr(),
            src.address.as_ptr(),
            bytes.len().min(src.bytes),
            Hint::Local,
        );
    }
}

/// The number in the eight bytes at `offset`, loaded in one piece.
pub(crate) fn load(place: Place<'_>, offset: u64) -> Result<u64> {
    let word = word(place, offset)?;
    // SAFETY: `word` has found it to exist and to be aligned. A peer that stores there in another
    // way than in one piece can tear the number, which is any number then.
    Ok(unsafe { AtomicU64::from_ptr(word.as_ptr()) }.load(Ordering::Acquire))
}

/// Stores a number in the eight bytes at `offset`, in one piece.
pub(crate) fn store(place: Place<'_>, offset: u64, value: u64) -> Result<()> {
    place.check_writable()?;
    let word = word(place, offset)?;
    // SAFETY: as in `load`; the place is writable.
    unsafe { AtomicU64::from_ptr(word.as_ptr()) }.store(value, Ordering::Release);
    Ok(())
}

fn word(place: Place<'_>, offset: u64) -> Result<NonNull<u64>> {
    let word: NonNull<u64> = place.part(offset, size_of::<u64>() as u64)?.address.cast();
    if word.is_aligned() {
        return Ok(word);
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("a number at offset {offset}, which is no multiple of 8 in memory"),
    ))
}

/// Wrapping sum of the place as 64-bit words; the last one is filled up with zeros.
pub(crate) fn sum(place: Place<'_>) -> u64 {
    const WORD: usize = size_of::<u64>();
    let first: *const u8 = place.address.as_ptr();
    let whole = place.bytes / WORD;
    let sum = (0..whole).fold(0u64, |sum, index| {
        // SAFETY: the word lies inside the place, which exists; any alignment will do.
        let word = unsafe { first.cast::<u64>().add(index).read_unaligned() };
        sum.wrapping_add(word)
    });
    let mut last = [0; WORD];
    let rest = place.bytes % WORD;
    // SAFETY: the bytes after the whole words lie inside the place; `last` is ours.
    unsafe { std::ptr::copy_nonoverlapping(first.add(whole * WORD), last.as_mut_ptr(), rest) };
    sum.wrapping_add(u64::from_ne_bytes(last))
}

/// Buffers that a caller lends for the time of a blocking run.
#[derive(Debug)]
pub enum Buffers<'a> {
    /// Two buffers.
    Separate {
        /// Read only.
        input: &'a [u8],
        /// Written.
        output: &'a mut [u8],
    },
    /// Two ranges, possibly overlapping, of one buffer.
    InPlace {
        /// The buffer.
        buffer: &'a mut [u8],
        /// Where the input begins.
        input_offset: usize,
        /// Bytes of input.
        input_bytes: usize,
        /// Where the output begins.
        output_offset: usize,
        /// Bytes of output.
        output_bytes: usize,
    },
}

/// A caller's buffers while they are lent.
///
/// Whoever can reach them holds a clone of the loan's `Arc`: queued tasks and posted descriptors.
/// [`Loan::lend`] does not return while there is a clone, so nobody touches them afterwards.
pub(crate) struct Loan {
    input: Range,
    output: Range,
}

// SAFETY: the addresses are only turned into places, whose use follows the rules above on any
// thread: the caller's borrow is held for as long as there is a clone.
unsafe impl Send for Loan {}
// SAFETY: as for `Send`.
unsafe impl Sync for Loan {}

impl Loan {
    const NOTHING: Range = (NonNull::dangling(), 0);

    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            input: Self::NOTHING,
            output: Self::NOTHING,
        })
    }

    /// Lends `buffers` to `run`. When it is over, by return or panic, calls `settle` until every
    /// clone of the loan is gone; `settle` has to see to that: cancel what is queued and move on
    /// what is posted.
    ///
    /// # Errors
    /// `OutOfBounds` for ranges that are not inside their buffer.
    pub(crate) fn lend<R>(
        loan: &mut Arc<Self>,
        buffers: &mut Buffers<'_>,
        run: impl FnOnce(&Arc<Self>) -> R,
        settle: impl FnMut(),
    ) -> Result<R> {
        let (input, output) = buffers.split()?;
        let Some(lent) = Arc::get_mut(loan) else {
            return Err(Error::new(ErrorKind::Internal, "a loan is lent twice"));
        };
        lent.input = input;
        lent.output = output;
        let recall = Recall { loan, settle };
        let result = run(recall.loan);
        drop(recall);
        Ok(result)
    }

    /// [`lend`](Self::lend) of several buffers, each with a loan of its own.
    ///
    /// # Errors
    /// Those of [`lend`](Self::lend).
    pub(crate) fn lend_all<R>(
        buffers: Vec<Buffers<'_>>,
        run: impl FnOnce(&[Arc<Self>]) -> R,
        settle: impl FnMut(),
    ) -> Result<R> {
        let lent = buffers.into_iter().map(|mut buffers| {
            let (input, output) = buffers.split()?;
            Ok(Arc::new(Self { input, output }))
        });
        let loans: Vec<Arc<Self>> = lent.collect::<Result<_>>()?;
        let recall = RecallAll { loans, settle };
        let result = run(&recall.loans);
        drop(recall);
        Ok(result)
    }

    /// The input, read only.
    pub(crate) fn input(self: &Arc<Self>) -> Place<'_> {
        Place {
            address: self.input.0,
            bytes: self.input.1,
            owner: Owner::Input(self),
        }
    }

    /// The output.
    pub(crate) fn output(self: &Arc<Self>) -> Place<'_> {
        Place {
            address: self.output.0,
            bytes: self.output.1,
            owner: Owner::Output(self),
        }
    }
}

/// The end of a loan.
struct Recall<'a, F: FnMut()> {
    loan: &'a mut Arc<Loan>,
    settle: F,
}

impl<F: FnMut()> Drop for Recall<'_, F> {
    fn drop(&mut self) {
        loop {
            // Succeeds only when there is no other clone, and then all that the others did has
            // happened before.
            if let Some(loan) = Arc::get_mut(self.loan) {
                loan.input = Loan::NOTHING;
                loan.output = Loan::NOTHING;
                return;
            }
            (self.settle)();
        }
    }
}

/// The same for several loans.
struct RecallAll<F: FnMut()> {
    loans: Vec<Arc<Loan>>,
    settle: F,
}

impl<F: FnMut()> Drop for RecallAll<F> {
    fn drop(&mut self) {
        for loan in &mut self.loans {
            while Arc::get_mut(loan).is_none() {
                (self.settle)();
            }
        }
    }
}

impl Buffers<'_> {
    /// Bytes of input and of output.
    #[must_use]
    pub fn lengths(&self) -> (usize, usize) {
        match self {
            Self::Separate { input, output } => (input.len(), output.len()),
            Self::InPlace {
                input_bytes,
                output_bytes,
                ..
            } => (*input_bytes, *output_bytes),
        }
    }

    /// Refuses ranges that are not inside their buffer.
    ///
    /// # Errors
    /// `OutOfBounds`, with the range.
    pub fn check(&self) -> Result<()> {
        let Self::InPlace {
            buffer,
            input_offset,
            input_bytes,
            output_offset,
            output_bytes,
        } = self
        else {
            return Ok(());
        };
        for (what, offset, bytes) in [
            ("input", *input_offset, *input_bytes),
            ("output", *output_offset, *output_bytes),
        ] {
            let end = offset.checked_add(bytes);
            if end.is_none_or(|end| end > buffer.len()) {
                return Err(Error::new(
                    ErrorKind::OutOfBounds,
                    format!(
                        "{what}: {bytes} bytes at offset {offset} of a buffer of {} bytes",
                        buffer.len()
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Input and output as places, of which the input is read only. They must not be posted:
    /// nothing is held.
    pub(crate) fn places(&mut self) -> Result<(Place<'_>, Place<'_>)> {
        let (input, output) = self.split()?;
        let place = |(address, bytes), owner| Place {
            address,
            bytes,
            owner,
        };
        Ok((place(input, Owner::Lent), place(output, Owner::LentMut)))
    }

    fn split(&mut self) -> Result<(Range, Range)> {
        self.check()?;
        match self {
            Self::Separate { input, output } => Ok((
                // Only read through: `Place::check_writable` refuses the input.
                (NonNull::from(&input[..]).cast(), input.len()),
                (NonNull::from(&mut output[..]).cast(), output.len()),
            )),
            Self::InPlace {
                buffer,
                input_offset,
                input_bytes,
                output_offset,
                output_bytes,
            } => {
                let base: NonNull<u8> = NonNull::from(&mut buffer[..]).cast();
                // SAFETY: both offsets are inside the buffer, as just checked.
                let (input, output) =
                    unsafe { (base.add(*input_offset), base.add(*output_offset)) };
                Ok(((input, *input_bytes), (output, *output_bytes)))
            }
        }
    }
}

/// An address and a length.
type Range = (NonNull<u8>, usize);

/// A descriptor to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transfer<'a> {
    Write {
        local: Place<'a>,
        remote: Remote<'a>,
        notify: Option<u32>,
    },
    Read {
        local: Place<'a>,
        remote: Remote<'a>,
    },
    WriteReduce {
        local: Place<'a>,
        remote: Remote<'a>,
        dtype: DataType,
        redop: ReduceOp,
        notify: Option<u32>,
    },
    ReadReduce {
        local: Place<'a>,
        remote: Remote<'a>,
        dtype: DataType,
        redop: ReduceOp,
    },
    Notify {
        notify: u32,
        fingerprint: [u64; 2],
    },
}

impl<'a> Transfer<'a> {
    /// Whether it writes to memory of this side.
    pub(crate) const fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::ReadReduce { .. })
    }

    /// Bytes that it moves.
    pub(crate) fn bytes(&self) -> u64 {
        self.ends().map_or(0, |(_, remote)| remote.bytes)
    }

    const fn ends(&self) -> Option<(Place<'a>, Remote<'a>)> {
        match *self {
            Self::Write { local, remote, .. }
            | Self::Read { local, remote }
            | Self::WriteReduce { local, remote, .. }
            | Self::ReadReduce { local, remote, .. } => Some((local, remote)),
            Self::Notify { .. } => None,
        }
    }

    /// Both as one of at most `most` bytes, if `next` goes on where this ends, here and at the peer.
    /// A record may become the notify of a write, if `notifies` says that a write can have one.
    pub(crate) fn joined(&self, next: &Self, most: u64, notifies: bool) -> Option<Self> {
        let both = |local: Place<'a>, remote: Remote<'a>, next: (Place<'a>, Remote<'a>)| {
            let (local, remote) = (local.joined(next.0)?, remote.joined(next.1)?);
            (remote.bytes <= most).then_some((local, remote))
        };
        match (*self, *next) {
            (
                Self::Write {
                    local,
                    remote,
                    notify: None,
                },
                Self::Write {
                    local: next_local,
                    remote: next_remote,
                    notify,
                },
            ) => {
                let (local, remote) = both(local, remote, (next_local, next_remote))?;
                Some(Self::Write {
                    local,
                    remote,
                    notify,
                })
            }
            (
                Self::Write {
                    local,
                    remote,
                    notify: None,
                },
                Self::Notify {
                    notify,
                    fingerprint: [0, 0],
                },
            ) if notifies => Some(Self::Write {
                local,
                remote,
                notify: Some(notify),
            }),
            (
                Self::Read { local, remote },
                Self::Read {
                    local: next_local,
                    remote: next_remote,
                },
            ) => {
                let (local, remote) = both(local, remote, (next_local, next_remote))?;
                Some(Self::Read { local, remote })
            }
            _ => None,
        }
    }

    fn descriptor(self, device: &Device) -> Result<Descriptor<'a>> {
        Ok(match self {
            Self::Write {
                local,
                remote,
                notify,
            } => Descriptor::Write {
                local: local.address,
                region: local.region_for(device),
                remote: remote.import,
                offset: remote.offset,
                bytes: local.bytes as u64,
                notify,
            },
            Self::Read { local, remote } => Descriptor::Read {
                local: local.writable_address()?,
                region: local.region_for(device),
                remote: remote.import,
                offset: remote.offset,
                bytes: local.bytes as u64,
            },
            Self::WriteReduce {
                local,
                remote,
                dtype,
                redop,
                notify,
            } => Descriptor::WriteReduce {
                local: local.address,
                region: local.region_for(device),
                remote: remote.import,
                offset: remote.offset,
                count: (local.bytes / dtype.size()) as u64,
                dtype,
                redop,
                notify,
            },
            Self::ReadReduce {
                local,
                remote,
                dtype,
                redop,
            } => Descriptor::ReadReduce {
                local: local.writable_address()?,
                region: local.region_for(device),
                remote: remote.import,
                offset: remote.offset,
                count: (local.bytes / dtype.size()) as u64,
                dtype,
                redop,
            },
            Self::Notify {
                notify,
                fingerprint,
            } => Descriptor::Notify {
                notify,
                fingerprint,
            },
        })
    }
}

/// A record of a notify that is not waited for, beside everything else. If it fails the peer is
/// gone, or the next check of the link tells why.
pub(crate) fn record(channel: &hcomm_transport::Channel, lane: &Lane, notify: u32) {
    let descriptor = Descriptor::Notify {
        notify,
        fingerprint: [0; 2],
    };
    // SAFETY: it names no memory of this side.
    let _ = unsafe { channel.post(lane, &[descriptor]) };
}

/// Descriptors that go to a transport at once.
pub(crate) const CHUNK: usize = hcomm_transport::Channel::MOST_AT_ONCE;

/// Flights that a queue has at once before further descriptors join one of them.
const MOST_FLIGHTS: usize = 16;

/// What one thread has posted and not seen completed, and what keeps the memory of it there.
///
/// Completions of a transport come in any order, so only all of a lane say something about one. Each
/// post therefore goes on a lane of its own, as long as there are some: what it moves is known to be
/// over while others are still on their way, on this channel or another, of this thread or another.
#[derive(Default)]
pub(crate) struct InFlight {
    flights: SmallVec<[Flight; 4]>,
    /// How many of them are on their way.
    flying: usize,
    /// Whether some were let go since a task last had to wait for them.
    news: bool,
}

/// Descriptors of one channel that were posted together, or a lane that waits for some.
struct Flight {
    lane: Lane,
    /// Descriptors posted on the lane since it was made.
    posted: u64,
    cargo: Option<Cargo>,
}

/// What is on its way.
struct Cargo {
    channel: Channel,
    reads: bool,
    /// Hull of the places here that are written to by reads, or sent by the others.
    hull: (usize, usize),
    held: SmallVec<[Keep; 4]>,
}

enum Keep {
    Region(Region),
    Import(Import),
    Loan(Arc<Loan>),
}

impl Keep {
    /// Whether it keeps the same object as the other. Handles of one object lead to one inner
    /// object, so the address of a part of that tells.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Region(a), Self::Region(b)) => std::ptr::eq(a.device(), b.device()),
            (Self::Import(a), Self::Import(b)) => std::ptr::eq(a.channel(), b.channel()),
            (Self::Loan(a), Self::Loan(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl InFlight {
    /// Posts a prefix of the batch, at most [`CHUNK`] descriptors; returns how long it is. What
    /// is pending afterwards is kept here until it has completed.
    pub(crate) fn post(
        &mut self,
        channel: &Channel,
        batch: &[Transfer<'_>],
    ) -> Result<usize, Failure> {
        let device = channel.transport().device();
        let mut accepted = 0;
        // Reads and the rest are apart, because a record waits for reads only.
        for run in batch.chunk_by(|a, b| a.is_read() == b.is_read()) {
            let mut descriptors: SmallVec<[Descriptor<'_>; CHUNK]> = SmallVec::new();
            for transfer in run {
                if let Some((local, _)) = transfer.ends() {
                    local.postable(device).map_err(|e| channel.failure(e))?;
                }
                descriptors.push(
                    transfer
                        .descriptor(device)
                        .map_err(|e| channel.failure(e))?,
                );
            }
            let index = self.flight_for(channel, run[0].is_read());
            let flight = &mut self.flights[index];
            // SAFETY: the local memory exists: it is held below for as long as anything may be
            // pending. Tasks of this thread that would touch it wait, other threads stay away by
            // the rules of the queue's user; see the head of this file.
            let posted = unsafe { channel.transport().post(&flight.lane, &descriptors) };
            let posted = posted.map_err(|error| channel.failure(error))?;
            accepted += posted.accepted;
            if posted.pending > 0 {
                flight.posted += posted.pending as u64;
                self.flying += usize::from(flight.cargo.is_none());
                flight.hold(channel, &run[..posted.accepted]);
            }
            if posted.accepted < run.len() {
                break;
            }
        }
        Ok(accepted)
    }

    /// A flight for descriptors of a channel: one that is over, a new one, or where there are many
    /// the latest of the same kind.
    fn flight_for(&mut self, channel: &Channel, reads: bool) -> usize {
        let device = channel.transport().device();
        let idle = |flight: &Flight| flight.cargo.is_none() && flight.lane.device().is_same(device);
        if let Some(index) = self.flights.iter().position(idle) {
            return index;
        }
        if self.flying >= MOST_FLIGHTS {
            let joins = |cargo: &Cargo| cargo.reads == reads && cargo.channel.is(channel);
            let known = |flight: &Flight| flight.cargo.as_ref().is_some_and(joins);
            if let Some(index) = self.flights.iter().rposition(known) {
                return index;
            }
        }
        self.flights.push(Flight {
            lane: device.lane(),
            posted: 0,
            cargo: None,
        });
        self.flights.len() - 1
    }

    /// Lets go of what has completed.
    ///
    /// # Errors
    /// The first failure among the completions.
    pub(crate) fn retire(&mut self) -> Result<(), Failure> {
        let mut first = Ok(());
        if self.flying == 0 {
            return first;
        }
        for flight in &mut self.flights {
            if flight.cargo.is_none() || !flight.is_complete() {
                continue;
            }
            if let Some(cargo) = flight.cargo.take() {
                self.flying -= 1;
                self.news = true;
                if first.is_ok() {
                    first = flight.lane.result().map_err(|e| cargo.channel.failure(e));
                }
            }
        }
        first
    }

    /// Whether nothing is pending.
    ///
    /// # Errors
    /// Those of [`InFlight::retire`].
    pub(crate) fn is_empty(&mut self) -> Result<bool, Failure> {
        self.retire()?;
        Ok(self.flying == 0)
    }

    /// Whether no read is pending.
    ///
    /// # Errors
    /// Those of [`InFlight::retire`].
    pub(crate) fn has_no_reads(&mut self) -> Result<bool, Failure> {
        self.has_none(|cargo| cargo.reads)
    }

    /// Whether a notify may be recorded on `channel`: no read is pending, and no write on another
    /// channel, for whoever takes the notify may overwrite what that is read from. What was written on
    /// this channel has been read when the notify behind it is there.
    ///
    /// # Errors
    /// Those of [`InFlight::retire`].
    pub(crate) fn admits_notify(&mut self, channel: &Channel) -> Result<bool, Failure> {
        self.has_none(|cargo| cargo.reads || (cargo.has_memory() && !cargo.channel.is(channel)))
    }

    /// Whether a read into `place` may be posted beside what is pending: nothing else lands
    /// there, and no write is pending whose source it is, or which what is read may lie behind.
    ///
    /// # Errors
    /// Those of [`InFlight::retire`].
    pub(crate) fn admits_read(&mut self, place: Place<'_>) -> Result<bool, Failure> {
        self.has_none(|cargo| !cargo.reads || cargo.touches(place))
    }

    /// Whether memory here may be used beside what is pending: `dst` be written, which is neither
    /// sent nor landed in, and `sources` be read, in which nothing lands.
    ///
    /// # Errors
    /// Those of [`InFlight::retire`].
    pub(crate) fn admits(
        &mut self,
        dst: Place<'_>,
        sources: &[Place<'_>],
    ) -> Result<bool, Failure> {
        self.has_none(|cargo| {
            cargo.touches(dst)
                || (cargo.reads && sources.iter().any(|source| cargo.touches(*source)))
        })
    }

    /// Whether nothing of a kind is pending.
    fn has_none(&mut self, is_of_kind: impl Fn(&Cargo) -> bool) -> Result<bool, Failure> {
        let has_none = |this: &Self| {
            this.flying == 0
                || !this
                    .flights
                    .iter()
                    .any(|flight| flight.carries(&is_of_kind))
        };
        if has_none(self) {
            return Ok(true);
        }
        self.retire()?;
        Ok(has_none(self))
    }

    /// A task has to wait for some of what is pending.
    pub(crate) const fn is_awaited(&mut self) {
        self.news = false;
    }

    /// Whether that task may go on: something was let go since.
    pub(crate) const fn has_let_go(&self) -> bool {
        self.news || self.flying == 0
    }

    /// Whether something that is counted as pending has completed: worth a [`InFlight::retire`].
    pub(crate) fn has_news(&self) -> bool {
        self.flying > 0
            && self
                .flights
                .iter()
                .any(|flight| flight.cargo.is_some() && flight.is_complete())
    }

    /// Whether anything is counted as pending.
    pub(crate) const fn is_idle(&self) -> bool {
        self.flying == 0
    }

    /// Asks the state of every channel on which something is pending. After an error a transport
    /// touches no local memory of that channel any more, so what was held for it is let go.
    ///
    /// What was on its way to a peer that `has_left` in good order is over: it has got what it waited
    /// for, and only word of it is missing. What was to come from there is not.
    ///
    /// # Errors
    /// The first channel that does not work.
    pub(crate) fn check(&mut self, has_left: impl Fn(u32) -> bool) -> Result<(), Failure> {
        let mut first = Ok(());
        self.flights.retain(|flight| {
            let Some(cargo) = &flight.cargo else {
                return true;
            };
            let Err(error) = cargo.channel.transport().check() else {
                return true;
            };
            let is_over = error.kind() == ErrorKind::PeerLost
                && !cargo.reads
                && has_left(cargo.channel.label());
            if first.is_ok() && !is_over {
                first = Err(cargo.channel.failure(error));
            }
            self.flying -= 1;
            self.news = true;
            // With its lane: what still comes for it is nobody's.
            false
        });
        first
    }
}

impl Flight {
    fn is_complete(&self) -> bool {
        self.lane.completed() >= self.posted
    }

    fn carries(&self, is_of_kind: impl Fn(&Cargo) -> bool) -> bool {
        self.cargo.as_ref().is_some_and(is_of_kind)
    }

    /// Notes what was posted, and keeps its memory there.
    fn hold(&mut self, channel: &Channel, transfers: &[Transfer<'_>]) {
        let cargo = self.cargo.get_or_insert_with(|| {
            channel.depart();
            Cargo {
                channel: channel.clone(),
                reads: transfers[0].is_read(),
                hull: (usize::MAX, 0),
                held: SmallVec::new(),
            }
        });
        for transfer in transfers {
            let Some((local, remote)) = transfer.ends() else {
                continue;
            };
            let (start, end) = local.range();
            cargo.hull = (cargo.hull.0.min(start), cargo.hull.1.max(end));
            for keep in [local.keep(), Some(Keep::Import(remote.import.clone()))]
                .into_iter()
                .flatten()
            {
                if !cargo.held.iter().any(|held| held.is_same(&keep)) {
                    cargo.held.push(keep);
                }
            }
        }
    }
}

impl Cargo {
    /// Whether more is on its way than notifies.
    const fn has_memory(&self) -> bool {
        self.hull.0 < self.hull.1
    }

    fn touches(&self, place: Place<'_>) -> bool {
        let ((start, end), (from, to)) = (place.range(), self.hull);
        start < to && from < end
    }
}

impl Drop for Cargo {
    fn drop(&mut self) {
        self.channel.arrive();
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        const TRIES: u32 = 1000;
        for flight in &mut self.flights {
            let Some(mut cargo) = flight.cargo.take() else {
                continue;
            };
            let transport = cargo.channel.transport();
            let device = flight.lane.device();
            let over = (0..TRIES).any(|_| {
                flight.lane.completed() >= flight.posted
                    || device.progress().is_err()
                    || transport.check().is_err()
            });
            if !over {
                // The transport may still read or write there, and nobody will look any more:
                // memory that stays is better than memory that changes under its next owner.
                std::mem::take(&mut cargo.held)
                    .into_iter()
                    .for_each(std::mem::forget);
            }
        }
    }
}
