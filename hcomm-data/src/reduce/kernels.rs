//! The loops, compiled for each level of vector instructions.
//!
//! Each loop works on lines of 64 bytes: it loads two lines, combines them into a third one that is
//! its own, and then stores that. So it need not know whether `dst` is one of the operands, and the
//! compiler keeps the third line in registers. What makes the loops fast is that they are compiled
//! again with `target_feature`.

use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, compiler_fence};

use hcomm_types::{DataType, ReduceOp};

#[cfg(target_arch = "x86_64")]
use super::number::Kind;
use super::number::{Bf16, Combine, F16, Max, Min, Number, Prod, Sum};
use crate::copy::{copy_small, fence_streams};

/// `dst[i] = a[i] op b[i]` for `count` elements.
///
/// # Safety
/// `a` and `b` are readable and `dst` is writable for `count` elements, without any alignment;
/// `dst` equals `a`, equals `b`, or overlaps neither; what is at risk when others write there at
/// the same time is the values alone.
pub(super) type Kernel = unsafe fn(dst: *mut u8, a: *const u8, b: *const u8, count: usize);

/// A row for each data type, in it a kernel for each operation.
type Table = [[Kernel; 4]; 12];

/// All kernels of one level, by number of data type and operation.
pub(super) struct Level {
    /// Name for people.
    pub(super) name: &'static str,
    kernels: Table,
    streaming: Table,
}

impl Level {
    pub(super) fn kernel(&self, dtype: DataType, redop: ReduceOp) -> Kernel {
        self.kernels[dtype as usize][redop as usize]
    }

    /// The kernel that stores past the caches, and fences.
    pub(super) fn streaming(&self, dtype: DataType, redop: ReduceOp) -> Kernel {
        self.streaming[dtype as usize][redop as usize]
    }
}

/// The best level this machine has.
pub(super) fn best_level() -> &'static Level {
    vector_levels().last().unwrap_or(&BASELINE)
}

/// The levels this machine has.
#[cfg(test)]
pub(super) fn levels() -> impl Iterator<Item = &'static Level> {
    std::iter::once(&BASELINE).chain(vector_levels())
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn vector_levels() -> impl Iterator<Item = &'static Level> {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    [avx2.then_some(&AVX2), avx512.then_some(&AVX512)]
        .into_iter()
        .flatten()
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn vector_levels() -> impl Iterator<Item = &'static Level> {
    std::iter::empty()
}

/// The unit of all loops: a cache line.
const LINE: usize = 64;

/// Up to so many elements are combined one by one.
const FEW: usize = 4;

/// From how many bytes on it pays to begin with the part of a line, so that all other stores are of
/// whole lines.
const ALIGN_FROM: usize = 2048;

/// A line of our own.
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// What a level does to a line.
trait Lines {
    /// `to = a op b` for one line of elements. Nothing is stored before all is loaded.
    ///
    /// # Safety
    /// All are a line long; `to` overlaps neither operand; on a processor of this level.
    unsafe fn combine<T: Number, O: Combine>(to: *mut Line, a: *const u8, b: *const u8);

    /// Stores a line, past the caches.
    ///
    /// # Safety
    /// `dst` is writable for a line and begins at a multiple of its size; on a processor of this
    /// level.
    unsafe fn stream(dst: *mut u8, line: *const Line);
}

/// Fewer elements than make a line.
///
/// # Safety
/// As for [`Kernel`], on a processor of the level; `count` elements are shorter than a line.
#[inline(always)]
unsafe fn combine_rest<T: Number, O: Combine, L: Lines>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
) {
    if count <= FEW {
        let (dst, a, b) = (dst.cast::<T>(), a.cast::<T>(), b.cast::<T>());
        for i in 0..count {
            // SAFETY: element `i` is inside the ranges by the caller's promise.
            unsafe {
                let value = O::one(a.add(i).read_unaligned(), b.add(i).read_unaligned());
                dst.add(i).write_unaligned(value);
            }
        }
        return;
    }
    let bytes = count * size_of::<T>();
    let (mut x, mut y) = (Line([0; LINE]), Line([0; LINE]));
    let mut line = MaybeUninit::<Line>::uninit();
    // SAFETY: the caller's promise; the three lines are our own.
    unsafe {
        copy_small(x.0.as_mut_ptr(), a, bytes);
        copy_small(y.0.as_mut_ptr(), b, bytes);
        L::combine::<T, O>(line.as_mut_ptr(), x.0.as_ptr(), y.0.as_ptr());
        copy_small(dst, line.as_ptr().cast(), bytes);
    }
}

/// The loop.
///
/// # Safety
/// As for [`Kernel`], on a processor of the level. With `STREAM`, a line begins in `dst` where an
/// element begins.
#[inline(always)]
unsafe fn combine_all<T: Number, O: Combine, L: Lines, const STREAM: bool>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
) {
    let bytes = count * size_of::<T>();
    let mut done = 0;
    if STREAM || bytes >= ALIGN_FROM {
        let head = dst.addr().wrapping_neg() % LINE;
        if head.is_multiple_of(size_of::<T>()) {
            done = head.min(bytes);
            // SAFETY: the caller's promise.
            unsafe { combine_rest::<T, O, L>(dst, a, b, done / size_of::<T>()) };
        }
    }
    while bytes - done >= LINE {
        let mut line = MaybeUninit::<Line>::uninit();
        // SAFETY: a line from here on is inside all ranges; with `STREAM` it begins at a multiple
        // of its size.
        unsafe {
            L::combine::<T, O>(line.as_mut_ptr(), a.add(done), b.add(done));
            if STREAM {
                L::stream(dst.add(done), line.as_ptr());
            } else {
                let line = line.as_ptr().cast::<[u8; LINE]>().read();
                dst.add(done).cast::<[u8; LINE]>().write(line);
            }
        }
        done += LINE;
        // Or else the compiler would see columns of eight lines where there are lines, and gather.
        compiler_fence(Ordering::Release);
    }
    // SAFETY: what is left of the same ranges.
    unsafe {
        let count = (bytes - done) / size_of::<T>();
        combine_rest::<T, O, L>(dst.add(done), a.add(done), b.add(done), count);
    }
    if STREAM {
        fence_streams();
    }
}

/// What every machine of this architecture has: SSE2 or NEON, by way of the compiler.
struct Baseline;

impl Lines for Baseline {
    #[inline(always)]
    unsafe fn combine<T: Number, O: Combine>(to: *mut Line, a: *const u8, b: *const u8) {
        // SAFETY: the caller's promise.
        unsafe { O::line::<T>(to.cast(), a, b, LINE) }
    }

    #[inline(always)]
    unsafe fn stream(dst: *mut u8, line: *const Line) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::x86_64::{__m128i, _mm_load_si128, _mm_stream_si128};
            let (dst, line) = (dst.cast::<__m128i>(), line.cast::<__m128i>());
            for i in 0..LINE / size_of::<__m128i>() {
                // SAFETY: the caller's promise; SSE2 is there.
                unsafe { _mm_stream_si128(dst.add(i), _mm_load_si128(line.add(i))) };
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        // SAFETY: the caller's promise.
        unsafe {
            dst.cast::<[u8; LINE]>().write((*line).0);
        }
    }
}

/// With F16C.
#[cfg(target_arch = "x86_64")]
struct Avx2;

#[cfg(target_arch = "x86_64")]
impl Lines for Avx2 {
    #[inline(always)]
    unsafe fn combine<T: Number, O: Combine>(to: *mut Line, a: *const u8, b: *const u8) {
        use std::arch::x86_64::{
            __m128i, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_store_si128, _mm256_add_ps,
            _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_mul_ps,
        };
        if !T::IS_HALF || O::KIND == Kind::Choice {
            // SAFETY: the caller's promise.
            return unsafe { O::line::<T>(to.cast(), a, b, LINE) };
        }
        let (to, a, b) = (
            to.cast::<__m128i>(),
            a.cast::<__m128i>(),
            b.cast::<__m128i>(),
        );
        for i in 0..LINE / size_of::<__m128i>() {
            // SAFETY: part `i` is inside the lines. AVX and F16C are there.
            unsafe {
                let x = _mm256_cvtph_ps(_mm_loadu_si128(a.add(i)));
                let y = _mm256_cvtph_ps(_mm_loadu_si128(b.add(i)));
                let z = match O::KIND {
                    Kind::Sum => _mm256_add_ps(x, y),
                    _ => _mm256_mul_ps(x, y),
                };
                _mm_store_si128(to.add(i), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(z));
            }
        }
    }

    #[inline(always)]
    unsafe fn stream(dst: *mut u8, line: *const Line) {
        use std::arch::x86_64::{__m256i, _mm256_load_si256, _mm256_stream_si256};
        let (dst, line) = (dst.cast::<__m256i>(), line.cast::<__m256i>());
        for i in 0..LINE / size_of::<__m256i>() {
            // SAFETY: the caller's promise; AVX is there.
            unsafe { _mm256_stream_si256(dst.add(i), _mm256_load_si256(line.add(i))) };
        }
    }
}

/// The parts F, BW, DQ and VL.
#[cfg(target_arch = "x86_64")]
struct Avx512;

#[cfg(target_arch = "x86_64")]
impl Lines for Avx512 {
    #[inline(always)]
    unsafe fn combine<T: Number, O: Combine>(to: *mut Line, a: *const u8, b: *const u8) {
        // Halves are not converted faster by wider registers.
        // SAFETY: the caller's promise; a processor of this level is one of that level.
        unsafe { Avx2::combine::<T, O>(to, a, b) }
    }

    #[inline(always)]
    unsafe fn stream(dst: *mut u8, line: *const Line) {
        use std::arch::x86_64::{_mm512_load_si512, _mm512_stream_si512};
        // SAFETY: the caller's promise; AVX-512 F is there.
        unsafe { _mm512_stream_si512(dst.cast(), _mm512_load_si512(line.cast())) };
    }
}

macro_rules! level {
    ($level:ident, $module:ident, $lines:ident, $name:expr $(, $feature:literal)?) => {
        mod $module {
            use super::{Bf16, Combine, F16, Kernel, Max, Min, Number, Prod, Sum, Table};

            /// # Safety
            /// As for [`super::combine_all`], on a processor of this level.
            $(#[target_feature(enable = $feature)])?
            unsafe fn combine<T: Number, O: Combine, const STREAM: bool>(
                dst: *mut u8,
                a: *const u8,
                b: *const u8,
                count: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { super::combine_all::<T, O, super::$lines, STREAM>(dst, a, b, count) }
            }

            const fn row<T: Number, const STREAM: bool>() -> [Kernel; 4] {
                [
                    combine::<T, Sum, STREAM>,
                    combine::<T, Prod, STREAM>,
                    combine::<T, Max, STREAM>,
                    combine::<T, Min, STREAM>,
                ]
            }

            pub(super) const fn table<const STREAM: bool>() -> Table {
                [
                    row::<i8, STREAM>(),
                    row::<i16, STREAM>(),
                    row::<i32, STREAM>(),
                    row::<i64, STREAM>(),
                    row::<u8, STREAM>(),
                    row::<u16, STREAM>(),
                    row::<u32, STREAM>(),
                    row::<u64, STREAM>(),
                    row::<F16, STREAM>(),
                    row::<Bf16, STREAM>(),
                    row::<f32, STREAM>(),
                    row::<f64, STREAM>(),
                ]
            }
        }

        static $level: Level = Level {
            name: $name,
            kernels: $module::table::<false>(),
            streaming: $module::table::<true>(),
        };
    };
}

level!(
    BASELINE,
    baseline,
    Baseline,
    if cfg!(target_arch = "aarch64") {
        "NEON"
    } else {
        "baseline"
    }
);
#[cfg(target_arch = "x86_64")]
level!(AVX2, avx2, Avx2, "AVX2", "avx2,f16c");
#[cfg(target_arch = "x86_64")]
level!(
    AVX512,
    avx512,
    Avx512,
    "AVX-512",
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c"
);
