//! Mapped memory, copies and bells: everything that needs `unsafe` but the border itself.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use hcomm_transport_abi::{BellV1, Host, STATUS_INVALID_ARGUMENT};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::process::Pid;
use rustix::thread::futex;

/// Memory mapped by us, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; it is reached only through atomic
// words and raw copies.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Private zeroed memory; pages exist once they are touched.
    pub(crate) fn private(bytes: usize) -> Result<Self, Errno> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing of ours.
        let base = unsafe {
            mmap_anonymous(
                core::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        Self::from_kernel(base, bytes)
    }

    /// The first `bytes` bytes of a memory file, shared. The caller has made sure that the file
    /// has them and cannot shrink; otherwise a touch could raise SIGBUS.
    pub(crate) fn shared(memory: impl AsFd, bytes: usize) -> Result<Self, Errno> {
        // SAFETY: as in `private`.
        let base = unsafe {
            mmap(
                core::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                memory,
                0,
            )
        }?;
        Self::from_kernel(base, bytes)
    }

    fn from_kernel(base: *mut c_void, bytes: usize) -> Result<Self, Errno> {
        NonNull::new(base)
            .map(|base| Self { base, bytes })
            .ok_or(Errno::NOMEM)
    }

    /// Puts the memory file under this mapping: same addresses, content of the file.
    pub(crate) fn back_with(&self, memory: impl AsFd) -> Result<(), Errno> {
        // SAFETY: it replaces pages of our own mapping, in whole. Who holds a reference into it
        // reads atomic words, which may change under them at any time; who holds a span copies
        // raw bytes.
        unsafe {
            mmap(
                self.base.as_ptr(),
                self.bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                memory,
                0,
            )
        }
        .map(drop)
    }

    /// All of it as atomic words.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: page-aligned, mapped for as long as `self` lives, valid for any bit pattern.
        // Other processes reach these bytes through atomics or raw copies, too.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr().cast(), self.bytes / 8) }
    }

    /// All of it as atomic half words.
    pub(crate) fn half_words(&self) -> &[AtomicU32] {
        // SAFETY: as in `words`.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr().cast(), self.bytes / 4) }
    }

    /// All of it as bytes to copy from and to.
    pub(crate) fn span(&self) -> Span<'_> {
        // SAFETY: mapped readable and writable for as long as `self` lives.
        unsafe { Span::new(self.base.as_ptr().cast(), self.bytes) }
    }

    pub(crate) fn address(&self) -> NonNull<u8> {
        self.base.cast()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what was mapped, and borrows of it have ended.
        let _ = unsafe { munmap(self.base.as_ptr(), self.bytes) };
    }
}

/// Readable and writable bytes that others may change at the same time: copied, never borrowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    base: *mut u8,
    bytes: usize,
    life: PhantomData<&'a u8>,
}

// SAFETY: the bytes belong to the process, not to a thread.
unsafe impl Send for Span<'_> {}
// SAFETY: as for `Send`; the span itself never changes.
unsafe impl Sync for Span<'_> {}

impl Span<'_> {
    /// No bytes.
    pub(crate) const EMPTY: Self = Self {
        base: NonNull::dangling().as_ptr(),
        bytes: 0,
        life: PhantomData,
    };

    /// # Safety
    /// `bytes` bytes from `base` stay readable and writable for `'a` (readable is enough for a
    /// span that is only copied from). `base` may be anything if `bytes` is 0.
    pub(crate) const unsafe fn new(base: *mut u8, bytes: usize) -> Self {
        Self {
            base,
            bytes,
            life: PhantomData,
        }
    }

    pub(crate) const fn address(self) -> *mut u8 {
        self.base
    }

    pub(crate) const fn bytes(self) -> usize {
        self.bytes
    }

    /// `bytes` bytes from offset `at`, if they lie inside.
    pub(crate) fn part(self, at: u64, bytes: u64) -> Option<Self> {
        let end = at.checked_add(bytes)?;
        if end > self.bytes as u64 {
            return None;
        }
        Some(Self {
            base: self.base.wrapping_add(at as usize),
            bytes: bytes as usize,
            life: PhantomData,
        })
    }

    /// Copies as many bytes as both have. They may overlap.
    pub(crate) fn copy_from(self, source: Span<'_>) {
        let bytes = self.bytes.min(source.bytes);
        // SAFETY: both sides have `bytes` bytes by the promise of `new`. A concurrent change by
        // others makes the copied values stale, nothing else: no reference to them exists.
        unsafe { core::ptr::copy(source.base, self.base, bytes) }
    }

    /// `self = self op source`, element by element of `element` bytes each.
    pub(crate) fn reduce_from(
        self,
        source: Span<'_>,
        host: Host,
        element: usize,
        dtype: u32,
        redop: u32,
    ) -> Result<(), i32> {
        let bytes = self.bytes.min(source.bytes);
        let distance = (self.base as usize).abs_diff(source.base as usize);
        if distance != 0 && distance < bytes {
            return Err(STATUS_INVALID_ARGUMENT);
        }
        // SAFETY: both sides have the bytes by the promise of `new`, and overlap wholly or not at
        // all. That nobody else writes meanwhile is the rule of the data plane for the peers; one
        // that breaks it gets wrong numbers.
        unsafe {
            host.reduce(
                self.base.cast(),
                self.base.cast(),
                source.base.cast(),
                (bytes / element) as u64,
                dtype,
                redop,
            )
        }
    }
}

/// The bell of another process: its words, and the eventfd for those who sleep in poll.
#[derive(Debug)]
pub(crate) struct PeerBell {
    page: Mapping,
    first: usize,
    event: Option<OwnedFd>,
}

impl PeerBell {
    /// `page` holds the words at byte `offset`; `None` if they would not fit.
    pub(crate) fn new(page: Mapping, offset: u32, event: Option<OwnedFd>) -> Option<Self> {
        let offset = offset as usize;
        let fits = offset.is_multiple_of(64) && offset.checked_add(64)? <= page.bytes();
        fits.then_some(Self {
            page,
            first: offset / 4,
            event,
        })
    }

    /// The words.
    pub(crate) fn words(&self) -> NonNull<BellV1> {
        let at = self.first * 4;
        // Inside the mapping, as `new` has made sure.
        let words = self.page.address().as_ptr().wrapping_add(at).cast();
        NonNull::new(words).unwrap_or(NonNull::dangling())
    }

    /// Wakes whoever sleeps there: two loads if nobody does.
    pub(crate) fn ring(&self) {
        // What was recorded before must be visible to a sleeper that is not yet in `sleepers`:
        // it announces itself, fences, and looks again.
        fence(Ordering::SeqCst);
        let [sequence, sleepers, pollers] =
            [0, 1, 2].map(|word| self.page.half_words().get(self.first + word));
        if let (Some(sequence), Some(sleepers)) = (sequence, sleepers)
            && sleepers.load(Ordering::Relaxed) != 0
        {
            sequence.fetch_add(1, Ordering::Release);
            // Fails only for an address that is not mapped, and this one is.
            let _ = futex::wake(sequence, futex::Flags::empty(), i32::MAX as u32);
        }
        if let (Some(pollers), Some(event)) = (pollers, &self.event)
            && pollers.load(Ordering::Relaxed) != 0
        {
            // A full counter is readable already.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }
}

/// Something that a protocol has to put in order, for models: it is a failure if two threads touch
/// it and neither came first.
#[cfg(all(test, loom))]
#[derive(Debug, Default)]
pub(crate) struct Touched(loom::cell::UnsafeCell<()>);

// SAFETY: nothing is in it, and a model runs its threads in turns.
#[cfg(all(test, loom))]
unsafe impl Sync for Touched {}

#[cfg(all(test, loom))]
impl Touched {
    pub(crate) fn touch(&self) {
        self.0.with_mut(|_| ());
    }
}

/// Copies from memory of the process `pid`, from `address` on, until `local` is full or something
/// stops it; how many bytes it copied.
pub(crate) fn read_process(pid: Pid, address: u64, local: Span<'_>) -> Result<usize, Errno> {
    let (here, there) = vectors(local, address)?;
    moved(|| {
        // SAFETY: the kernel writes to `local` alone, which is writable for its length. The other
        // process's memory it reads if it is there, and gives EFAULT otherwise.
        unsafe { libc::process_vm_readv(pid.as_raw_nonzero().get(), &here, 1, &there, 1, 0) }
    })
}

/// Copies into memory of the process `pid`, from `address` on, until all of `local` is there or
/// something stops it; how many bytes it copied.
pub(crate) fn write_process(pid: Pid, address: u64, local: Span<'_>) -> Result<usize, Errno> {
    let (here, there) = vectors(local, address)?;
    moved(|| {
        // SAFETY: the kernel reads `local` alone, which is readable for its length. What is written
        // belongs to another process; the caller has its leave for exactly these bytes.
        unsafe { libc::process_vm_writev(pid.as_raw_nonzero().get(), &here, 1, &there, 1, 0) }
    })
}

fn vectors(local: Span<'_>, address: u64) -> Result<(libc::iovec, libc::iovec), Errno> {
    let here = libc::iovec {
        iov_base: local.address().cast(),
        iov_len: local.bytes(),
    };
    let there = libc::iovec {
        iov_base: core::ptr::without_provenance_mut(
            usize::try_from(address).map_err(|_| Errno::FAULT)?,
        ),
        iov_len: local.bytes(),
    };
    Ok((here, there))
}

fn moved(call: impl Fn() -> isize) -> Result<usize, Errno> {
    loop {
        if let Ok(bytes) = usize::try_from(call()) {
            return Ok(bytes);
        }
        match last_errno() {
            Errno::INTR => {}
            errno => return Err(errno),
        }
    }
}

/// Process and user at the other end of a Unix socket: who connected, or who listened. No process
/// if it has no number in our pid namespace.
pub(crate) fn peer_of(socket: &OwnedFd) -> Result<(Option<Pid>, u32), Errno> {
    let mut who = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `who` is writable for `len` bytes.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut len,
        )
    };
    if rc == 0 {
        Ok((Pid::from_raw(who.pid), who.uid))
    } else {
        Err(last_errno())
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
