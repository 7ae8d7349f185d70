//! A host for tests: a clock, sums of `i32`, a bell that nobody hears, a log that is dropped.

use core::ffi::{c_char, c_void};
use std::sync::OnceLock;
use std::time::Instant;

use hcomm_transport_abi::{Header, HostV1, STATUS_OK, STATUS_UNSUPPORTED, TransportV1};

/// Hands the host to the transport; may be called again and again.
pub(crate) fn init(table: &TransportV1) {
    static HOST: HostV1 = HostV1 {
        header: Header::of::<HostV1>(),
        context: core::ptr::null_mut(),
        log: Some(log),
        now_ns: Some(now_ns),
        reduce: Some(reduce),
        ring: Some(ring),
        bell_memfd: -1,
        bell_offset: 0,
        bell_eventfd: -1,
        reserved: 0,
    };
    // SAFETY: the host's table lives for ever.
    let status = unsafe { (table.init.unwrap())(&raw const HOST) };
    assert_eq!(status, STATUS_OK);
}

unsafe extern "C" fn log(_context: *mut c_void, _level: u32, text: *const c_char, len: usize) {
    // SAFETY: the plugin's promise.
    let text = unsafe { core::slice::from_raw_parts(text.cast::<u8>(), len) };
    assert!(core::str::from_utf8(text).is_ok());
}

unsafe extern "C" fn now_ns(_context: *mut c_void) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

unsafe extern "C" fn ring(_context: *mut c_void) {}

/// Sums of `i32`.
unsafe extern "C" fn reduce(
    dst: *mut c_void,
    a: *const c_void,
    b: *const c_void,
    count: u64,
    dtype: u32,
    redop: u32,
) -> i32 {
    if (dtype, redop) != (2, 0) {
        return STATUS_UNSUPPORTED;
    }
    for index in 0..count as usize {
        // SAFETY: the caller's promise; nothing is said about alignment.
        unsafe {
            let x = a.cast::<i32>().add(index).read_unaligned();
            let y = b.cast::<i32>().add(index).read_unaligned();
            dst.cast::<i32>()
                .add(index)
                .write_unaligned(x.wrapping_add(y));
        }
    }
    STATUS_OK
}
