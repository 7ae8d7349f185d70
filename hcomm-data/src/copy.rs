//! Copies by loads and stores, with the instructions that suit size and reader.
//!
//! * Up to 64 bytes: a few loads and stores in line, no call.
//! * Above: the C library's `memcpy`, which no loop of ours beat on most processors while the data
//!   stays in caches; but not where the processor is bad at what it does (see [`lies_ahead`]), or
//!   can do better (see [`Machine::is_wide`]).
//! * Where the result had better not stay in this core's caches: non-temporal stores, which go to
//!   memory without reading the line first. See [`Hint`] for when that is.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::cell::Cell;
use std::sync::OnceLock;

/// Who reads a result next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// This core, probably: the result stays in its caches unless all that is touched together
    /// fills the last-level cache, or for a copy on a wide machine even then.
    Local,
    /// A core that shares a cache with this one, and has read what was there before. As `Local`,
    /// but a copy on a wide machine (an AMD Zen 5) goes by its string instruction.
    Near,
    /// A core that shares no cache with this one. From 4 KiB on the result is stored past the
    /// caches, as a line that is dirty in one costs the other several times as much as a line in
    /// memory; a copy on a wide machine goes by its string instruction up to 256 KiB.
    HandOver,
    /// Nobody soon: all that is touched until then fills the last-level cache. From 4 KiB on the
    /// result is stored past the caches; a copy on a wide machine goes by its string instruction.
    Memory,
}

/// From how many bytes on a hand-over goes past the caches. Measured with two cores of a Zen 4 that
/// share no cache, put and copied out, plain against past the caches: 4 KiB 2.3 and 1.2 µs, 8 KiB
/// 3.8 and 1.8, 16 KiB 6 and 2.4, 64 KiB 34 and 6.1. With a shared L3: 8 KiB 0.7 and 1.5, 16 KiB 1.8
/// and 2.0, 64 KiB 9.4 and 6.1.
const HAND_OVER_FROM: usize = 4 << 10;

/// Sixteen bytes in one register.
#[cfg(target_arch = "x86_64")]
type Sixteen = std::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Sixteen = u128;

/// Bytes that are copied in line.
const SMALL: usize = 64;

/// From how many bytes on the C library may copy by `rep movsb`: glibc's number for processors that
/// say that they are fast at it.
const STRING_FROM: usize = 2112;

/// Copies `bytes` bytes.
///
/// When it returns, all of it is ordered before every later release store of this thread: it ends
/// with a store fence where it used non-temporal stores.
///
/// # Safety
/// `src` is readable and `dst` is writable for `bytes` bytes, at any alignment, and they do not
/// overlap. What others write there at the same time puts the values alone at risk.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize, hint: Hint) {
    // SAFETY: the caller's promise.
    unsafe {
        if bytes <= SMALL {
            copy_small(dst, src, bytes);
        } else if bytes < STRING_FROM {
            std::ptr::copy_nonoverlapping(src, dst, bytes);
        } else {
            copy_long(dst, src, bytes, hint);
        }
    }
}

/// As [`copy`].
///
/// # Safety
/// As for [`copy`]; at least [`STRING_FROM`] bytes.
unsafe fn copy_long(dst: *mut u8, src: *const u8, bytes: usize, hint: Hint) {
    let is_wide = Machine::get().is_wide;
    // SAFETY: the caller's promise.
    unsafe {
        match hint {
            Hint::Local if is_wide && bytes <= WIDE_UP_TO => copy_wide(dst, src, bytes),
            Hint::HandOver if is_wide && bytes < PAST_CACHES_FROM => {
                hand_over(dst, src, bytes, true);
            }
            Hint::Local | Hint::Near | Hint::Memory if is_wide => copy_in_parts(dst, src, bytes),
            _ if hint.streams(bytes, 2) => stream(dst, src, bytes),
            _ if lies_ahead(dst, src, 32) => copy_lines::<false>(dst, src, bytes),
            _ => std::ptr::copy_nonoverlapping(src, dst, bytes),
        }
    }
}

/// More than so much a host's caches do not keep for one program, however large they say they are.
pub const MOST_CACHED_BYTES: usize = 64 << 20;

/// From how many bytes on results that ranks of this host leave at about the same time do not stay in
/// caches until they are read: as many as the last-level cache holds, or less, because other machines
/// on the same host want their share. Measured on a Granite Rapids that says it has 480 MiB, past the
/// caches against plain, with results of so many MiB in all: two cores that only store 16: 1.4, 64:
/// 0.9, 256: 0.5 of the time; all_reduce of 8, 4 and 2 ranks with 64: 0.77, 0.73, 0.72, all_gather 0.91,
/// 0.94, 0.88; with 32 all_gather of 2 ranks 1.09.
pub(crate) fn cached_bytes() -> usize {
    Machine::get().last_level_cache.min(MOST_CACHED_BYTES)
}

/// Whether this is a wide machine; see [`Hint::Near`].
#[inline]
pub(crate) fn is_wide() -> bool {
    Machine::get().is_wide
}

/// Copies a piece that another core reads at once, and orders it before every later store.
///
/// # Safety
/// As for [`copy`]; at least 64 bytes.
pub(crate) unsafe fn hand_over(dst: *mut u8, src: *const u8, bytes: usize, is_far: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        if is_wide() && !(is_far && lies_ahead(dst, src, 64)) {
            copy_in_parts(dst, src, bytes);
        } else {
            stream(dst, src, bytes);
        }
    }
}

/// Whether `dst` lies less than so many bytes further in its page than `src`. Within 32 bytes `rep
/// movsb` goes byte by byte on a Zen 3: 16 KiB are copied at 2.7 GB/s instead of 87, and at 47 by
/// [`copy_lines`]. Within 64 it takes three times as long on a Zen 5 if another core that is far has
/// the target. It is a frequent case: what was allocated with `malloc` begins 16 bytes behind a
/// page's begin, and shared memory at it.
#[inline]
fn lies_ahead(dst: *mut u8, src: *const u8, within: usize) -> bool {
    const PAGE: usize = 4096;
    cfg!(target_arch = "x86_64")
        && (1..within).contains(&(dst.addr().wrapping_sub(src.addr()) % PAGE))
}

impl Hint {
    /// Whether a result of `bytes` bytes goes past the caches, in an operation that touches
    /// `ranges` ranges of that length.
    #[inline]
    pub(crate) fn streams(self, bytes: usize, ranges: usize) -> bool {
        match self {
            Self::Local | Self::Near => {
                bytes.saturating_mul(ranges) >= Machine::get().last_level_cache
            }
            Self::HandOver | Self::Memory => bytes >= HAND_OVER_FROM,
        }
    }
}

/// Copies up to 64 bytes: two pieces of one length, which meet or overlap in the middle.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
pub(crate) unsafe fn copy_small(dst: *mut u8, src: *const u8, bytes: usize) {
    /// Head and tail. Both are loaded before either is stored.
    ///
    /// # Safety
    /// As for [`copy`], and `bytes` is between one and two times the size of `T`.
    #[inline(always)]
    unsafe fn ends<T: Copy>(dst: *mut u8, src: *const u8, bytes: usize) {
        let tail = bytes - size_of::<T>();
        // SAFETY: both pieces are inside the ranges.
        unsafe {
            let head = src.cast::<T>().read_unaligned();
            let last = src.add(tail).cast::<T>().read_unaligned();
            dst.cast::<T>().write_unaligned(head);
            dst.add(tail).cast::<T>().write_unaligned(last);
        }
    }
    debug_assert!(bytes <= SMALL);
    // SAFETY: the caller's promise; each length is in the range of its type.
    unsafe {
        match bytes {
            0 => {}
            1 => dst.write(src.read()),
            2..=3 => ends::<u16>(dst, src, bytes),
            4..=7 => ends::<u32>(dst, src, bytes),
            8..=15 => ends::<u64>(dst, src, bytes),
            16..=31 => ends::<Sixteen>(dst, src, bytes),
            _ => {
                // One by one: an array of them would go through the stack.
                let at = [0, 16, bytes - 32, bytes - 16];
                let [a, b, c, d] = at.map(|at| src.add(at).cast::<Sixteen>().read_unaligned());
                dst.cast::<Sixteen>().write_unaligned(a);
                dst.add(16).cast::<Sixteen>().write_unaligned(b);
                dst.add(bytes - 32).cast::<Sixteen>().write_unaligned(c);
                dst.add(bytes - 16).cast::<Sixteen>().write_unaligned(d);
            }
        }
    }
}

/// Has a line fetched that is loaded from soon; any address will do.
#[inline]
pub(crate) fn prefetch(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, whatever the address.
        unsafe { _mm_prefetch(line.cast(), _MM_HINT_T0) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}

/// Has a line fetched that is stored to soon, so that this core owns it by then; any address will
/// do.
#[inline]
pub(crate) fn prefetch_owned(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // The intrinsic falls back to a plain fetch where the build does not promise this
        // instruction, which does nothing on processors that do not know it.
        // SAFETY: a hint, whatever the address.
        unsafe {
            std::arch::asm!(
                "prefetchw [{}]",
                in(reg) line,
                options(nostack, preserves_flags, readonly)
            );
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}

/// Up to how many bytes 64-byte loads and stores are best on a wide machine where no other core has
/// the target: 8 KiB in 30 ns, where the string instruction takes 52, and 37 and 52 if the target
/// comes from the second-level cache. With the source there as well it is 95 and 77, and above the
/// first level 64-byte stores gain nothing. If another core has read the target, 8 KiB sent and
/// received take 418 ns by them and 280 by the string instruction, far 1850 and 940, and past the
/// caches 740 and 1000.
const WIDE_UP_TO: usize = 8 << 10;

/// From how many bytes on a wide machine copies for a far reader past the caches, like others.
/// 64 KiB written and read, far, take 4.6 µs by the string instruction and 5.0 past the caches,
/// 256 KiB 15.4 and 15.1, 1 MiB 73 and 60.
const PAST_CACHES_FROM: usize = 256 << 10;

/// What copies depend on. Asked once a process, without a system call.
struct Machine {
    /// Bytes of the last-level cache that this core uses, all cores' share of it.
    last_level_cache: usize,
    /// An AMD processor from Zen 5 on: it loads and stores 64 bytes at once, and `rep movsb` does
    /// not fetch the lines that it overwrites, and slows down only for a far core where
    /// [`lies_ahead`] says so. The numbers above were measured on one with 1 MiB of second-level and
    /// 32 MiB of last-level cache.
    is_wide: bool,
}

impl Machine {
    #[inline]
    fn get() -> &'static Self {
        static THIS: OnceLock<Machine> = OnceLock::new();
        THIS.get_or_init(|| Self {
            last_level_cache: machine::last_level_cache().unwrap_or(32 << 20),
            is_wide: machine::is_wide(),
        })
    }
}

/// Bytes of a part of a long copy on a wide machine.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const PART: usize = 256 << 10;

/// Copies by loads and stores of 64 bytes.
///
/// # Safety
/// As for [`copy`]; at least 64 bytes, on a wide machine.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx512f")]
unsafe fn copy_wide(dst: *mut u8, src: *const u8, bytes: usize) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_store_si512, _mm512_storeu_si512};
    const LINE: usize = 64;
    // SAFETY: the caller's promise. The first line of `dst` that is whole begins in the first 64
    // bytes, which are stored first, and what is left behind the last whole one lies in the last 64.
    unsafe {
        let first = _mm512_loadu_si512(src.cast());
        let last = _mm512_loadu_si512(src.add(bytes - LINE).cast());
        let mut at = LINE - dst.addr() % LINE;
        _mm512_storeu_si512(dst.cast(), first);
        while at + 4 * LINE <= bytes {
            let parts = [0, 1, 2, 3].map(|i| _mm512_loadu_si512(src.add(at + i * LINE).cast()));
            for (i, part) in parts.into_iter().enumerate() {
                _mm512_store_si512(dst.add(at + i * LINE).cast(), part);
            }
            at += 4 * LINE;
        }
        while at + LINE <= bytes {
            _mm512_store_si512(dst.add(at).cast(), _mm512_loadu_si512(src.add(at).cast()));
            at += LINE;
        }
        _mm512_storeu_si512(dst.add(bytes - LINE).cast(), last);
    }
}

/// Copies part by part, each by the processor's own string instruction. Up to a number of bytes every
/// other copy of several parts begins at the end: of what is copied again, the end is still in
/// the caches, and a copy from the begin would push it out before it comes to it. The same 1 MiB to
/// the same place: the C library 57 GB/s, in parts from the begin 66, in turn 80; 16 MiB 33, 42 and
/// 42, past the caches 33; 64 MiB 18, 24, 21 and 18 to 25.
///
/// # Safety
/// As for [`copy`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_in_parts(dst: *mut u8, src: *const u8, bytes: usize) {
    const TURNS_UP_TO: usize = 8 << 20;
    thread_local! {
        static FROM_END: Cell<bool> = const { Cell::new(false) };
    }
    let part = |begin: usize| {
        let length = PART.min(bytes - begin);
        // SAFETY: the caller's promise, for a part of both ranges; the direction flag is clear
        // wherever Rust code runs.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") length => _,
                inout("rdi") dst.add(begin) => _,
                inout("rsi") src.add(begin) => _,
                options(nostack, preserves_flags)
            );
        }
    };
    let begins = (0..bytes).step_by(PART);
    if bytes > PART && bytes <= TURNS_UP_TO && FROM_END.replace(!FROM_END.get()) {
        begins.rev().for_each(part);
    } else {
        begins.for_each(part);
    }
}

/// Copies; no machine of this kind is wide.
///
/// # Safety
/// As for [`copy`].
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn copy_wide(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes) }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use self::copy_wide as copy_in_parts;

/// Copies past the caches, and fences.
///
/// # Safety
/// As for [`copy`]; at least 64 bytes.
pub(crate) unsafe fn stream(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_lines::<true>(dst, src, bytes) }
    fence_streams();
}

/// Copies line by line, into the caches or with `STREAM` past them.
///
/// # Safety
/// As for [`copy`]; at least 64 bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_lines<const STREAM: bool>(dst: *mut u8, src: *const u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_store_si128, _mm_stream_si128};
    const LINE: usize = 64;
    let head = dst.addr().wrapping_neg() % LINE;
    // SAFETY: the caller's promise: head, whole lines and tail are parts of the ranges, and the
    // lines begin at a multiple of 64 in `dst`. Wider registers are not faster here.
    unsafe {
        copy_small(dst, src, head);
        let lines = (bytes - head) / LINE;
        let (to, from) = (dst.add(head), src.add(head));
        for line in 0..lines {
            let to = to.add(line * LINE).cast::<__m128i>();
            let from = from.add(line * LINE).cast::<__m128i>();
            let parts = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
            for (i, part) in parts.into_iter().enumerate() {
                if STREAM {
                    _mm_stream_si128(to.add(i), part);
                } else {
                    _mm_store_si128(to.add(i), part);
                }
            }
        }
        let done = head + lines * LINE;
        copy_small(dst.add(done), src.add(done), bytes - done);
    }
}

/// Copies; there is no other way on this kind of machine yet.
///
/// # Safety
/// As for [`copy`].
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn copy_lines<const STREAM: bool>(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes) }
}

/// Orders non-temporal stores before all that this thread stores later.
#[inline]
pub(crate) fn fence_streams() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

mod machine {
    /// What the processor says of its last-level cache.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    pub(super) fn last_level_cache() -> Option<usize> {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        /// Intel's leaf and AMD's, of one format.
        const LEAVES: [(u32, u32); 2] = [(0x8000_0000, 0x8000_001d), (0, 4)];
        LEAVES.into_iter().find_map(|(highest, leaf)| {
            if __cpuid(highest).eax < leaf {
                return None;
            }
            (0..8)
                .map(|index| __cpuid_count(leaf, index))
                .take_while(|found| found.eax & 0x1f != 0)
                // Not those for instructions alone.
                .filter(|found| found.eax & 0x1f != 2)
                .map(|found| {
                    let ways = (found.ebx >> 22) as usize + 1;
                    let partitions = ((found.ebx >> 12) & 0x3ff) as usize + 1;
                    let line = (found.ebx & 0xfff) as usize + 1;
                    ways * partitions * line * (found.ecx as usize + 1)
                })
                .max()
        })
    }

    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    pub(super) fn last_level_cache() -> Option<usize> {
        None
    }

    /// See [`Machine::is_wide`](super::Machine::is_wide).
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    pub(super) fn is_wide() -> bool {
        use std::arch::x86_64::__cpuid;
        /// The family of Zen 5.
        const FAMILY: u32 = 0x1a;
        let (vendor, version) = (__cpuid(0), __cpuid(1).eax);
        let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_ne_bytes);
        let family = (version >> 8 & 0xf) + (version >> 20 & 0xff);
        name.as_flattened() == b"AuthenticAMD"
            && family >= FAMILY
            && is_x86_feature_detected!("avx512f")
    }

    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    pub(super) fn is_wide() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const HINTS: [Hint; 3] = [Hint::Local, Hint::Near, Hint::HandOver];

    type Copier = unsafe fn(*mut u8, *const u8, usize);

    /// Copies with guard bytes around, at the given distances from a line's begin.
    fn check(copier: Copier, bytes: usize, to: usize, from: usize) {
        const GUARD: usize = 64;
        let room = bytes + 4 * GUARD;
        let source: Vec<u8> = (0..room).map(|i| (i * 31 + i / 251) as u8).collect();
        let mut target = vec![0xa5u8; room];
        let begin = |at: &[u8]| at.as_ptr().align_offset(GUARD);
        let (from, to) = (begin(&source) + from, begin(&target) + GUARD + to);
        // SAFETY: both vectors have room for it.
        unsafe { copier(target[to..].as_mut_ptr(), source[from..].as_ptr(), bytes) };
        assert!(target[to..to + bytes] == source[from..from + bytes]);
        assert!(target[..to].iter().all(|&byte| byte == 0xa5));
        assert!(target[to + bytes..].iter().all(|&byte| byte == 0xa5));
    }

    fn by_hint(hint: Hint) -> Copier {
        match hint {
            // SAFETY: the promise of whoever calls the copier.
            Hint::Local => |dst, src, bytes| unsafe { copy(dst, src, bytes, Hint::Local) },
            // SAFETY: as above.
            Hint::Near => |dst, src, bytes| unsafe { copy(dst, src, bytes, Hint::Near) },
            // SAFETY: as above.
            Hint::HandOver => |dst, src, bytes| unsafe { copy(dst, src, bytes, Hint::HandOver) },
            // SAFETY: as above.
            Hint::Memory => |dst, src, bytes| unsafe { copy(dst, src, bytes, Hint::Memory) },
        }
    }

    #[test]
    fn small_copies_touch_what_they_should_at_every_alignment() {
        let step = if cfg!(miri) { 23 } else { 1 };
        for bytes in (0..=300).step_by(step) {
            for shift in (0..64).step_by(step) {
                check(by_hint(Hint::Local), bytes, shift, 0);
                check(by_hint(Hint::Local), bytes, 0, shift);
                check(by_hint(Hint::HandOver), bytes, shift, 63 - shift);
            }
        }
    }

    #[test]
    fn copies_around_the_threshold_and_streams_of_every_length_agree() {
        let step = if cfg!(miri) { 29 } else { 1 };
        for shift in (0..64).step_by(step) {
            for bytes in (HAND_OVER_FROM - 66..=HAND_OVER_FROM + 66).step_by(if cfg!(miri) {
                66
            } else {
                11
            }) {
                check(by_hint(Hint::HandOver), bytes, shift, 0);
                check(by_hint(Hint::Memory), bytes, shift, 0);
                check(by_hint(Hint::HandOver), bytes, 0, shift);
                check(by_hint(Hint::HandOver), bytes, 63 - shift, shift);
            }
        }
        for bytes in (64..=400).step_by(step) {
            for shift in (0..64).step_by(step) {
                check(stream, bytes, shift, 0);
                check(stream, bytes, 7, shift);
                check(copy_lines::<false>, bytes, shift, 0);
                check(copy_lines::<false>, bytes, 7, shift);
            }
        }
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn wide_copies_and_copies_in_parts_agree() {
        let ways: &[Copier] = if machine::is_wide() {
            // SAFETY: the promise of whoever calls the copier; the machine is wide.
            &[
                |dst, src, bytes| unsafe { copy_wide(dst, src, bytes) },
                copy_in_parts,
            ]
        } else {
            &[copy_in_parts]
        };
        for way in ways {
            for bytes in (64..=900).chain([4096, 8191]) {
                for shift in [0, 1, 17, 63] {
                    check(*way, bytes, shift, 0);
                    check(*way, bytes, 7, shift);
                }
            }
        }
        for bytes in [PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 5] {
            // From the begin and from the end.
            for shift in [3, 5] {
                check(copy_in_parts, bytes, shift, 9);
            }
        }
    }

    #[test]
    fn a_target_a_few_bytes_further_in_its_page_is_noticed_and_gets_the_same() {
        let room: Vec<u8> = (0..8 * 4096).map(|i| (i * 31 + i / 251) as u8).collect();
        let mut target = vec![0u8; 8 * 4096];
        let page = |memory: &[u8]| memory.as_ptr().align_offset(4096);
        let (from, to) = (page(&room), page(&target));
        for (ahead, noticed) in [(0, false), (1, true), (16, true), (31, true), (32, false)] {
            for bytes in [STRING_FROM - 1, STRING_FROM, 4096, 3 * 4096 + 5] {
                let (source, dst) = (&room[from + 4096..], &mut target[to + ahead..]);
                assert_eq!(
                    lies_ahead(dst.as_mut_ptr(), source.as_ptr(), 32),
                    noticed,
                    "{ahead}"
                );
                dst.fill(0xa5);
                // SAFETY: two vectors of eight pages.
                unsafe { copy(dst.as_mut_ptr(), source.as_ptr(), bytes, Hint::Local) };
                assert!(dst[..bytes] == source[..bytes], "{ahead} {bytes}");
                assert!(dst[bytes..].iter().all(|&byte| byte == 0xa5));
            }
        }
        // The other way round it is fast.
        assert!(!lies_ahead(
            target[to..].as_mut_ptr(),
            room[from + 16..].as_ptr(),
            32
        ));
    }

    #[test]
    fn copies_that_fill_the_last_cache_agree() {
        let bytes = if cfg!(miri) {
            4096
        } else {
            Machine::get().last_level_cache / 2
        };
        for bytes in [bytes - 1, bytes, bytes + 65] {
            check(by_hint(Hint::Local), bytes, 3, 5);
        }
    }

    #[test]
    fn the_last_cache_has_a_size_one_can_believe() {
        assert!((64 << 10..=4 << 30).contains(&Machine::get().last_level_cache));
        for hint in HINTS {
            assert!(!hint.streams(64, 2));
            assert!(hint.streams(usize::MAX, 3));
        }
    }

    /// A plain release store after the copy is seen only with the copy.
    #[test]
    fn a_later_release_store_comes_after_the_copy() {
        const WORDS: usize = HAND_OVER_FROM / 8 + 5;
        let rounds: u32 = if cfg!(miri) { 2 } else { 2000 };
        let (told, seen) = (AtomicU32::new(0), AtomicU32::new(0));
        let mut shared = vec![0u64; WORDS];
        struct At(*mut u64);
        // SAFETY: the two counters below keep its two users apart in time.
        unsafe impl Sync for At {}
        let at = At(shared.as_mut_ptr());
        std::thread::scope(|scope| {
            let (at, told, seen) = (&at, &told, &seen);
            let reader = scope.spawn(move || {
                let mut wrong = 0;
                for round in 1..=rounds {
                    while told.load(Ordering::Acquire) < round {
                        std::thread::yield_now();
                    }
                    for i in 0..WORDS {
                        // SAFETY: inside the vector; the other thread waits for `seen`.
                        let word = unsafe { at.0.add(i).read() };
                        wrong += u32::from(word != u64::from(round) << 32 | i as u64);
                    }
                    seen.store(round, Ordering::Release);
                }
                wrong
            });
            for round in 1..=rounds {
                let words: Vec<u64> = (0..WORDS)
                    .map(|i| u64::from(round) << 32 | i as u64)
                    .collect();
                // SAFETY: two vectors; the other thread waits for `told`.
                unsafe {
                    copy(
                        at.0.cast(),
                        words.as_ptr().cast(),
                        WORDS * 8,
                        Hint::HandOver,
                    )
                };
                told.store(round, Ordering::Release);
                while seen.load(Ordering::Acquire) < round {
                    std::thread::yield_now();
                }
            }
            assert_eq!(reader.join().unwrap(), 0);
        });
    }
}
