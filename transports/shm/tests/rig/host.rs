//! A host for tests: a bell, a reduction that knows a few types, a log that is dropped.

use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicU32, Ordering, fence};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::OnceLock;

use hcomm_transport_abi::{Header, HostV1, STATUS_OK, STATUS_UNSUPPORTED, TransportV1};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::thread::futex;

/// Words of this process's bell: sequence, sleepers, pollers.
pub(crate) fn bell() -> &'static [AtomicU32; 3] {
    // SAFETY: the page is mapped for ever, and only reached through atomics.
    unsafe { &*(host().context as *const [AtomicU32; 3]) }
}

/// Hands the host to the transport; may be called again and again.
pub(crate) fn init(table: &TransportV1) {
    // SAFETY: the host's table lives for ever.
    let status = unsafe { (table.init.unwrap())(host()) };
    assert_eq!(status, STATUS_OK);
}

fn host() -> &'static HostV1 {
    static HOST: OnceLock<HostV1> = OnceLock::new();
    HOST.get_or_init(|| {
        let page = memfd_create("bell", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&page, 4096).unwrap();
        fcntl_add_seals(&page, SealFlags::SHRINK).unwrap();
        // SAFETY: a fresh mapping, never unmapped.
        let words = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                4096,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                &page,
                0,
            )
        }
        .unwrap();
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let offset = 128;
        assert!(page.as_raw_fd() >= 0);
        HostV1 {
            header: Header::of::<HostV1>(),
            context: words.cast::<u8>().wrapping_add(offset).cast(),
            log: Some(log),
            now_ns: None,
            reduce: Some(reduce),
            ring: Some(ring),
            bell_memfd: page.into_raw_fd(),
            bell_offset: offset as u32,
            bell_eventfd: event.into_raw_fd(),
            reserved: 0,
        }
    })
}

unsafe extern "C" fn log(_context: *mut c_void, _level: u32, text: *const c_char, len: usize) {
    // SAFETY: the plugin's promise.
    let text = unsafe { core::slice::from_raw_parts(text.cast::<u8>(), len) };
    assert!(core::str::from_utf8(text).is_ok());
}

unsafe extern "C" fn ring(_context: *mut c_void) {
    fence(Ordering::SeqCst);
    if bell()[1].load(Ordering::Relaxed) != 0 {
        bell()[0].fetch_add(1, Ordering::Release);
        futex::wake(&bell()[0], futex::Flags::empty(), i32::MAX as u32).unwrap();
    }
}

/// Sums of `i8`, `i32` and `f32`; `max` of `i32`.
unsafe extern "C" fn reduce(
    dst: *mut c_void,
    a: *const c_void,
    b: *const c_void,
    count: u64,
    dtype: u32,
    redop: u32,
) -> i32 {
    /// # Safety
    /// As for `reduce`.
    unsafe fn each<T>(
        dst: *mut c_void,
        a: *const c_void,
        b: *const c_void,
        count: u64,
        op: fn(T, T) -> T,
    ) -> i32 {
        for index in 0..count as usize {
            // SAFETY: the caller's promise; nothing is said about alignment.
            unsafe {
                let x = a.cast::<T>().add(index).read_unaligned();
                let y = b.cast::<T>().add(index).read_unaligned();
                dst.cast::<T>().add(index).write_unaligned(op(x, y));
            }
        }
        STATUS_OK
    }
    // SAFETY: the caller's promise.
    unsafe {
        match (dtype, redop) {
            (0, 0) => each::<i8>(dst, a, b, count, i8::wrapping_add),
            (2, 0) => each::<i32>(dst, a, b, count, i32::wrapping_add),
            (2, 2) => each::<i32>(dst, a, b, count, Ord::max),
            (10, 0) => each::<f32>(dst, a, b, count, |x, y| x + y),
            _ => STATUS_UNSUPPORTED,
        }
    }
}
