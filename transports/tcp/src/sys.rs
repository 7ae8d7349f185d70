//! Pages, raw bytes, and the socket calls over them: everything that needs `unsafe`.
//!
//! Pointers come through the tables of the ABI, whose text makes the caller answer for them:
//! registered memory is there until it is deregistered, the local side of a descriptor until that has
//! completed, handles until they are given back. That is what the arguments below rest on.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::ptr::{NonNull, null_mut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use hcomm_transport_abi::{DescriptorV1, Host, STATUS_INVALID_ARGUMENT, STATUS_OUT_OF_BOUNDS};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::region::{Import, Region};

/// Zeroed pages, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Pages(Span);

impl Pages {
    pub(crate) fn map(bytes: u64) -> Result<Self, Errno> {
        let bytes = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing else.
        let base = unsafe {
            mmap_anonymous(
                null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        Ok(Self(Span {
            base: base.cast(),
            bytes,
        }))
    }

    pub(crate) const fn span(&self) -> Span {
        self.0
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` got; whoever could reach it held the `Memory` around it.
        let _ = unsafe { munmap(self.0.base.cast(), self.0.bytes) };
    }
}

/// Bytes of this process that others may read and write at the same time: never borrowed, only
/// copied. They are there for as long as the `Memory` that holds the span has not ended, or the
/// descriptor that named it has not completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the bytes belong to the process, not to a thread.
unsafe impl Send for Span {}
// SAFETY: as for `Send`; the span itself never changes.
unsafe impl Sync for Span {}

impl Span {
    /// No bytes.
    pub(crate) const EMPTY: Self = Self {
        base: NonNull::dangling().as_ptr(),
        bytes: 0,
    };

    /// Memory that the caller of the ABI names; `None` if it would wrap around.
    pub(crate) fn brought(base: *mut u8, bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok()?;
        base.addr().checked_add(bytes)?;
        Some(Self { base, bytes })
    }

    pub(crate) const fn address(self) -> *mut u8 {
        self.base
    }

    pub(crate) const fn bytes(self) -> u64 {
        self.bytes as u64
    }

    /// `bytes` bytes from `offset` on, if they are inside.
    pub(crate) fn part(self, offset: u64, bytes: u64) -> Option<Self> {
        (offset.checked_add(bytes)? <= self.bytes as u64).then(|| Self {
            base: self.base.wrapping_add(offset as usize),
            bytes: bytes as usize,
        })
    }

    /// All from `offset` on.
    pub(crate) fn rest(self, offset: u64) -> Self {
        let offset = (offset as usize).min(self.bytes);
        Self {
            base: self.base.wrapping_add(offset),
            bytes: self.bytes - offset,
        }
    }

    /// Stores as many bytes as both have.
    pub(crate) fn store(self, source: &[u8]) {
        let bytes = self.bytes.min(source.len());
        // SAFETY: the span has the bytes; `source` is borrowed, so it lies elsewhere or the caller
        // of the ABI has lent memory of ours, which it never gets.
        unsafe { core::ptr::copy(source.as_ptr(), self.base, bytes) };
    }

    /// Loads as many bytes as both have.
    pub(crate) fn load(self, target: &mut [u8]) {
        let bytes = self.bytes.min(target.len());
        // SAFETY: as in `store`, the other way.
        unsafe { core::ptr::copy(self.base, target.as_mut_ptr(), bytes) };
    }

    /// `self = self op source`, for the elements that fit into both.
    pub(crate) fn reduce(
        self,
        source: &[u8],
        host: Host,
        element: usize,
        (dtype, redop): (u32, u32),
    ) -> Result<(), i32> {
        let count = self.bytes.min(source.len()) / element;
        // SAFETY: both have the bytes of `count` elements, and they are apart. That nobody else
        // writes meanwhile is the rule of the data plane; a peer that breaks it gets wrong numbers.
        unsafe {
            host.reduce(
                self.base.cast(),
                self.base.cast_const().cast(),
                source.as_ptr().cast(),
                count as u64,
                dtype,
                redop,
            )
        }
    }
}

/// Most pieces of one call.
pub(crate) const MAX_PIECES: usize = 64;

const NO_VECTOR: libc::iovec = libc::iovec {
    iov_base: null_mut(),
    iov_len: 0,
};

/// Pieces of memory for one call, in order.
pub(crate) struct Vectors {
    list: [libc::iovec; MAX_PIECES],
    count: usize,
    bytes: usize,
}

impl Vectors {
    pub(crate) const fn new() -> Self {
        Self {
            list: [NO_VECTOR; MAX_PIECES],
            count: 0,
            bytes: 0,
        }
    }

    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds raw bytes. There has to be room.
    pub(crate) const fn add(&mut self, span: Span) {
        self.list[self.count] = libc::iovec {
            iov_base: span.base.cast(),
            iov_len: span.bytes,
        };
        self.count += 1;
        self.bytes += span.bytes;
    }

    /// Adds bytes to be sent: the slice outlives the call. There has to be room.
    pub(crate) const fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(Span {
            base: bytes.as_ptr().cast_mut(),
            bytes: bytes.len(),
        });
    }
}

/// Sends what the socket takes now; says how many bytes. The pieces are there until it returns:
/// each is of a descriptor that has not completed, of a region that was entered, or of a buffer of
/// the caller.
pub(crate) fn send(socket: &OwnedFd, vectors: &Vectors) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    if let [only] = &vectors.list[..vectors.count] {
        // The kernel need not fetch a message first: a tenth of the time of a short one.
        return repeat(|| {
            // SAFETY: the piece is alive; the kernel only reads it.
            unsafe { libc::send(socket.as_raw_fd(), only.iov_base, only.iov_len, flags) }
        });
    }
    let message = message(&vectors.list[..vectors.count]);
    repeat(|| {
        // SAFETY: the message and what it points to are alive; the kernel only reads the pieces.
        unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) }
    })
}

/// Receives what is there, into `target` first and then into `rest`; says how many bytes. `Ok(0)` is
/// the end of the stream, if there is room for anything. `target` is memory of a region that was
/// entered, or of a descriptor that has not completed.
pub(crate) fn receive(socket: &OwnedFd, target: Span, rest: &mut [u8]) -> Result<usize, Errno> {
    let vector = |span: Span| libc::iovec {
        iov_base: span.base.cast(),
        iov_len: span.bytes,
    };
    if target.bytes == 0 {
        // As in `send`.
        return repeat(|| {
            // SAFETY: `rest` is borrowed for writing.
            unsafe {
                libc::recv(
                    socket.as_raw_fd(),
                    rest.as_mut_ptr().cast(),
                    rest.len(),
                    libc::MSG_DONTWAIT,
                )
            }
        });
    }
    let rest = Span {
        base: rest.as_mut_ptr(),
        bytes: rest.len(),
    };
    let both = [vector(target), vector(rest)];
    let mut message = message(&both);
    repeat(|| {
        // SAFETY: the message is ours; `rest` is borrowed for writing, `target` may be written by
        // the words above.
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) }
    })
}

fn message(vectors: &[libc::iovec]) -> libc::msghdr {
    // SAFETY: a message header is integers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = vectors.as_ptr().cast_mut();
    message.msg_iovlen = vectors.len() as _;
    message
}

fn repeat(mut call: impl FnMut() -> isize) -> Result<usize, Errno> {
    loop {
        if let Ok(bytes) = usize::try_from(call()) {
            return Ok(bytes);
        }
        let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
        if errno != Errno::INTR {
            return Err(errno);
        }
    }
}

/// Asks for a receive window of `bytes` bytes at once, as far as the system's limit for windows that
/// grow by themselves allows: to be woken only by so many bytes needs room for them. Who then wants to
/// be woken by any keeps the room, and it may still grow.
pub(crate) fn widen(socket: &OwnedFd, bytes: i32) {
    for low in [bytes, 1] {
        // SAFETY: the value is ours, and as long as is said. Where it fails the window stays as it is.
        let _ = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                (&raw const low).cast(),
                size_of::<i32>() as libc::socklen_t,
            )
        };
    }
}

/// The import that a descriptor names.
pub(crate) fn import_of(descriptor: &DescriptorV1) -> Option<&Import> {
    // SAFETY: null, or a handle of an `Import` that is not released while `post` lasts.
    unsafe { descriptor.remote.cast::<Import>().as_ref() }
}

/// The local side of a descriptor, inside its region if it names one.
pub(crate) fn local_of(descriptor: &DescriptorV1) -> Result<Span, i32> {
    if descriptor.bytes == 0 {
        return Ok(Span::EMPTY);
    }
    if descriptor.local.is_null() {
        return Err(STATUS_INVALID_ARGUMENT);
    }
    let span =
        Span::brought(descriptor.local.cast(), descriptor.bytes).ok_or(STATUS_INVALID_ARGUMENT)?;
    // SAFETY: null, or a handle to a region that the host has not given back.
    let region = unsafe { descriptor.local_region.cast::<Region>().as_ref() };
    if region.is_some_and(|region| !region.holds(span)) {
        return Err(STATUS_OUT_OF_BOUNDS);
    }
    Ok(span)
}

/// An address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostAddress {
    pub(crate) interface: String,
    /// Number of the interface: the scope of link-local addresses.
    pub(crate) index: u32,
    pub(crate) loopback: bool,
    pub(crate) ip: IpAddr,
}

/// All of this host, or rather of this network namespace.
pub(crate) fn host_addresses() -> Result<Vec<HostAddress>, Errno> {
    let mut first: *mut libc::ifaddrs = null_mut();
    // SAFETY: the place is ours.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: the list is whole and ours until `freeifaddrs`.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: an entry's name is text that ends with a zero, its address has the length of its
        // family; both are there until `freeifaddrs`, at any alignment.
        let (name, index, ip) = unsafe {
            let ip = match i32::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let address = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    IpAddr::V4(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()))
                }
                libc::AF_INET6 => {
                    let address = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr))
                }
                _ => continue,
            };
            let name = CStr::from_ptr(entry.ifa_name);
            (name, libc::if_nametoindex(name.as_ptr()), ip)
        };
        found.push(HostAddress {
            interface: name.to_string_lossy().into_owned(),
            index,
            loopback: entry.ifa_flags & libc::IFF_LOOPBACK as u32 != 0,
            ip,
        });
    }
    // SAFETY: got above, given back once; nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}
