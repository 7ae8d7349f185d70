//! Ranges of registered memory: ours, and a peer's.

use std::ops::Range;
use std::ptr::NonNull;

use hcomm_transport::{Import, Region};
use hcomm_types::{Error, ErrorKind, Result};

use crate::memory::{self, Place};

/// A range of a local region.
///
/// Its bytes are shared with peers, so there is no `&[u8]` to them: they are copied in and out.
/// What is read while somebody else writes may be torn; notifies and fences are there to order
/// the two.
#[derive(Clone, Debug)]
pub struct Slice {
    region: Region,
    offset: usize,
    bytes: usize,
}

impl Slice {
    /// `bytes` bytes at `offset` of `region`.
    ///
    /// # Errors
    /// `OutOfBounds`.
    pub fn new(region: &Region, offset: usize, bytes: usize) -> Result<Self> {
        inside(
            offset as u64,
            bytes as u64,
            region.bytes() as u64,
            "a region",
        )?;
        Ok(Self {
            region: region.clone(),
            offset,
            bytes,
        })
    }

    /// All of `region`.
    #[must_use]
    pub fn of(region: &Region) -> Self {
        Self {
            region: region.clone(),
            offset: 0,
            bytes: region.bytes(),
        }
    }

    /// A part, counted from the begin of this slice.
    ///
    /// # Errors
    /// `OutOfBounds`.
    pub fn sub(&self, range: Range<usize>) -> Result<Self> {
        let bytes = length(range.start as u64, range.end as u64)?;
        inside(range.start as u64, bytes, self.bytes as u64, "a slice")?;
        Ok(Self {
            region: self.region.clone(),
            offset: self.offset + range.start,
            bytes: bytes as usize,
        })
    }

    /// The region it lies in.
    #[must_use]
    pub const fn region(&self) -> &Region {
        &self.region
    }

    /// Where it begins in its region.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `bytes`, which is as long as the slice, into it.
    ///
    /// # Errors
    /// `OutOfBounds` if it is not as long.
    pub fn copy_from(&self, bytes: &[u8]) -> Result<()> {
        self.same_length(bytes.len())?;
        memory::fill(self.place(), bytes);
        Ok(())
    }

    /// Copies the slice into `bytes`, which is as long.
    ///
    /// # Errors
    /// `OutOfBounds` if it is not as long.
    pub fn copy_to(&self, bytes: &mut [u8]) -> Result<()> {
        self.same_length(bytes.len())?;
        memory::fetch(bytes, self.place());
        Ok(())
    }

    /// The number in the eight bytes at `offset`, loaded in one piece. Loads and stores after it
    /// stay after it (acquire).
    ///
    /// # Errors
    /// `OutOfBounds`; `InvalidArgument` if the bytes do not lie at a multiple of 8 in memory.
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        memory::load(self.place(), offset as u64)
    }

    /// Stores a number in the eight bytes at `offset`, in one piece. Loads and stores before it
    /// stay before it (release).
    ///
    /// # Errors
    /// Those of [`Slice::load_u64`].
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        memory::store(self.place(), offset as u64, value)
    }

    /// Reads every byte: the wrapping sum of the slice as 64-bit words in the machine's byte order,
    /// the last one filled up with zeros.
    #[must_use]
    pub fn sum_u64(&self) -> u64 {
        memory::sum(self.place())
    }

    pub(crate) fn place(&self) -> Place<'_> {
        Place::of_slice(self)
    }

    fn same_length(&self, bytes: usize) -> Result<()> {
        if bytes == self.bytes {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::OutOfBounds,
            format!("{bytes} bytes for a slice of {}", self.bytes),
        )
        .hint("take a part with `sub`"))
    }
}

/// A range of a peer's region.
#[derive(Clone, Debug)]
pub struct RemoteSlice {
    import: Import,
    offset: u64,
    bytes: u64,
}

impl RemoteSlice {
    /// `bytes` bytes at `offset` of the peer's region.
    ///
    /// # Errors
    /// `OutOfBounds`.
    pub fn new(import: &Import, offset: u64, bytes: u64) -> Result<Self> {
        inside(offset, bytes, import.bytes(), "the peer's region")?;
        Ok(Self {
            import: import.clone(),
            offset,
            bytes,
        })
    }

    /// All of the peer's region.
    #[must_use]
    pub fn of(import: &Import) -> Self {
        Self {
            import: import.clone(),
            offset: 0,
            bytes: import.bytes(),
        }
    }

    /// A part, counted from the begin of this slice.
    ///
    /// # Errors
    /// `OutOfBounds`.
    pub fn sub(&self, range: Range<u64>) -> Result<Self> {
        let bytes = length(range.start, range.end)?;
        inside(range.start, bytes, self.bytes, "a slice")?;
        Ok(Self {
            import: self.import.clone(),
            offset: self.offset + range.start,
            bytes,
        })
    }

    /// The peer's region.
    #[must_use]
    pub const fn import(&self) -> &Import {
        &self.import
    }

    /// Where it begins in the peer's region.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it is mapped here; `None` where the link cannot map the peer's memory, and then it is
    /// reached by [`Thread::write`](crate::Thread::write) and [`Thread::read`](crate::Thread::read)
    /// only. Valid as long as this slice or a clone lives. The peer may write there at any time:
    /// make no reference to it.
    #[must_use]
    pub fn address(&self) -> Option<NonNull<u8>> {
        self.remote().mapped().map(Place::address)
    }

    /// The number in the eight bytes at `offset`, loaded in one piece, as by [`Slice::load_u64`]:
    /// where the link maps the peer's memory.
    ///
    /// # Errors
    /// Those of [`Slice::load_u64`]; `Unsupported` where the memory is not mapped.
    pub fn load_u64(&self, offset: u64) -> Result<u64> {
        memory::load(self.mapped()?, offset)
    }

    /// Stores a number in the eight bytes at `offset`, in one piece, as by [`Slice::store_u64`].
    ///
    /// # Errors
    /// Those of [`RemoteSlice::load_u64`].
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<()> {
        memory::store(self.mapped()?, offset, value)
    }

    fn mapped(&self) -> Result<Place<'_>> {
        self.remote().mapped().ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                "single loads and stores in a peer's memory that the link does not map",
            )
            .hint("use `Thread::read` and `Thread::write`")
        })
    }

    pub(crate) const fn remote(&self) -> Remote<'_> {
        Remote {
            import: &self.import,
            offset: self.offset,
            bytes: self.bytes,
        }
    }
}

/// What a local copy or reduction works on: memory of this side, or of a peer where the link maps
/// it. A `&Slice` or a `&RemoteSlice` becomes one by itself.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Memory<'a> {
    /// Of this side.
    Local(&'a Slice),
    /// Of a peer.
    Peer(&'a RemoteSlice),
}

impl Memory<'_> {
    /// Bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        match self {
            Self::Local(slice) => slice.bytes as u64,
            Self::Peer(slice) => slice.bytes,
        }
    }

    /// The memory itself.
    ///
    /// # Errors
    /// `Unsupported` if it is a peer's and not mapped here.
    pub(crate) fn place(&self) -> Result<Place<'_>> {
        match self {
            Self::Local(slice) => Ok(slice.place()),
            Self::Peer(slice) => slice.remote().mapped().ok_or_else(|| {
                Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "{:?} does not map this memory of the peer, so it has no address here",
                        slice.import.channel().device()
                    ),
                )
                .hint("move its bytes with `read` and `write`")
            }),
        }
    }

    pub(crate) fn keep(&self) -> KeptMemory {
        match *self {
            Self::Local(slice) => KeptMemory::Local(slice.clone()),
            Self::Peer(slice) => KeptMemory::Peer(slice.clone()),
        }
    }
}

impl<'a> From<&'a Slice> for Memory<'a> {
    fn from(slice: &'a Slice) -> Self {
        Self::Local(slice)
    }
}

impl<'a> From<&'a RemoteSlice> for Memory<'a> {
    fn from(slice: &'a RemoteSlice) -> Self {
        Self::Peer(slice)
    }
}

/// A [`Memory`] that waits in a queue.
pub(crate) enum KeptMemory {
    Local(Slice),
    Peer(RemoteSlice),
}

impl KeptMemory {
    /// The memory itself; whoever made this knows that it is mapped.
    pub(crate) fn place(&self) -> Option<Place<'_>> {
        match self {
            Self::Local(slice) => Some(slice.place()),
            Self::Peer(slice) => slice.remote().mapped(),
        }
    }
}

/// A borrowed [`RemoteSlice`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote<'a> {
    pub(crate) import: &'a Import,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl<'a> Remote<'a> {
    /// A part of it.
    pub(crate) fn part(self, offset: u64, bytes: u64) -> Result<Self> {
        inside(offset, bytes, self.bytes, "the peer's memory")?;
        Ok(Self {
            import: self.import,
            offset: self.offset + offset,
            bytes,
        })
    }

    /// Both as one, if `next` begins where this ends.
    pub(crate) fn joined(self, next: Self) -> Option<Self> {
        let bytes = self.bytes.checked_add(next.bytes)?;
        let goes_on = self.import.is_same(next.import) && self.offset + self.bytes == next.offset;
        goes_on.then_some(Self { bytes, ..self })
    }

    /// The memory itself, where it is mapped here.
    pub(crate) fn mapped(self) -> Option<Place<'a>> {
        Place::of_import(self.import, self.offset, self.bytes)
    }
}

fn length(start: u64, end: u64) -> Result<u64> {
    end.checked_sub(start).ok_or_else(|| {
        Error::new(
            ErrorKind::OutOfBounds,
            format!("a range that begins at {start} and ends at {end}"),
        )
    })
}

fn inside(offset: u64, bytes: u64, whole: u64, what: &str) -> Result<()> {
    if offset.checked_add(bytes).is_some_and(|end| end <= whole) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::OutOfBounds,
        format!("{bytes} bytes at offset {offset} of {what} of {whole} bytes"),
    ))
}
