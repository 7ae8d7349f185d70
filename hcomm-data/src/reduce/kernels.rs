//! The loops, compiled for each level of vector instructions.
//!
//! Each loop is plain; what makes it fast is that it is compiled again with `target_feature`, and
//! that the two ways in which `dst` may be an operand have loops of their own: a compiler cannot
//! know that two pointers are equal, only that they are one.

use hcomm_types::{DataType, ReduceOp};

use super::number::{Bf16, Combine, F16, Max, Min, Number, Prod, Sum};

/// `dst[i] = a[i] op b[i]` for `count` elements.
///
/// # Safety
/// `a` and `b` are readable and `dst` is writable for `count` elements, without any alignment;
/// `dst` equals `a`, equals `b`, or overlaps neither; what is at risk when others write there at
/// the same time is the values alone.
pub(super) type Kernel = unsafe fn(dst: *mut u8, a: *const u8, b: *const u8, count: usize);

/// All kernels of one level, by number of data type and operation.
pub(super) struct Level {
    /// Name for people.
    pub(super) name: &'static str,
    kernels: [[Kernel; 4]; 12],
}

impl Level {
    pub(super) fn kernel(&self, dtype: DataType, redop: ReduceOp) -> Kernel {
        self.kernels[dtype as usize][redop as usize]
    }
}

/// The levels this machine has, the best one last.
pub(super) fn levels() -> Vec<&'static Level> {
    let mut levels = vec![&BASELINE];
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            levels.push(&AVX2);
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                levels.push(&AVX512);
            }
        }
    }
    levels
}

/// The loop. (`wrapping_add` is `add` without the checks of debug builds, which would keep it from
/// becoming vector code there.)
///
/// # Safety
/// As for [`Kernel`].
#[inline(always)]
unsafe fn combine_all<T: Number, O: Combine>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
) {
    let (dst, a, b) = (dst.cast::<T>(), a.cast::<T>(), b.cast::<T>());
    if a == dst {
        for i in 0..count {
            // SAFETY: element `i` is inside both ranges by the caller's promise.
            unsafe {
                let value = O::elements(
                    dst.wrapping_add(i).read_unaligned(),
                    b.wrapping_add(i).read_unaligned(),
                );
                dst.wrapping_add(i).write_unaligned(value);
            }
        }
    } else if b == dst {
        for i in 0..count {
            // SAFETY: as above.
            unsafe {
                let value = O::elements(
                    a.wrapping_add(i).read_unaligned(),
                    dst.wrapping_add(i).read_unaligned(),
                );
                dst.wrapping_add(i).write_unaligned(value);
            }
        }
    } else {
        for i in 0..count {
            // SAFETY: as above, for three ranges.
            unsafe {
                let value = O::elements(
                    a.wrapping_add(i).read_unaligned(),
                    b.wrapping_add(i).read_unaligned(),
                );
                dst.wrapping_add(i).write_unaligned(value);
            }
        }
    }
}

/// The loop for half precision where the processor converts it.
///
/// # Safety
/// As for [`Kernel`], on a processor with F16C.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx,f16c")]
unsafe fn combine_halves<O: Combine>(dst: *mut u8, a: *const u8, b: *const u8, count: usize) {
    use std::arch::x86_64::{
        __m128i, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps,
        _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_storeu_ps,
    };
    const LANES: usize = 8;
    let whole = count - count % LANES;
    for i in (0..whole).step_by(LANES) {
        let (mut x, mut y) = ([0f32; LANES], [0f32; LANES]);
        // SAFETY: elements `i` to `i + 8` are inside the ranges by the caller's promise; `x` and
        // `y` have eight places. Unaligned loads and stores throughout.
        unsafe {
            let halves = _mm_loadu_si128(a.add(2 * i).cast::<__m128i>());
            _mm256_storeu_ps(x.as_mut_ptr(), _mm256_cvtph_ps(halves));
            let halves = _mm_loadu_si128(b.add(2 * i).cast::<__m128i>());
            _mm256_storeu_ps(y.as_mut_ptr(), _mm256_cvtph_ps(halves));
        }
        for (x, y) in x.iter_mut().zip(y) {
            *x = O::combine(*x, y);
        }
        // SAFETY: as above.
        unsafe {
            let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(x.as_ptr()));
            _mm_storeu_si128(dst.add(2 * i).cast::<__m128i>(), halves);
        }
    }
    // SAFETY: what is left of the same ranges.
    unsafe {
        combine_all::<F16, O>(
            dst.add(2 * whole),
            a.add(2 * whole),
            b.add(2 * whole),
            count - whole,
        );
    }
}

macro_rules! level {
    ($level:ident, $module:ident, $name:literal, halves: $halves:ident $(, $feature:literal)?) => {
        mod $module {
            use super::{Bf16, Combine, Kernel, Max, Min, Number, Prod, Sum};

            /// # Safety
            /// As for [`Kernel`], on a processor of this level.
            $(#[target_feature(enable = $feature)])?
            unsafe fn elements<T: Number, O: Combine>(
                dst: *mut u8,
                a: *const u8,
                b: *const u8,
                count: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { super::combine_all::<T, O>(dst, a, b, count) }
            }

            /// # Safety
            /// As for [`Kernel`], on a processor of this level.
            $(#[target_feature(enable = $feature)])?
            unsafe fn halves<O: Combine>(
                dst: *mut u8,
                a: *const u8,
                b: *const u8,
                count: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { super::$halves::<O>(dst, a, b, count) }
            }

            const fn row<T: Number>() -> [Kernel; 4] {
                [
                    elements::<T, Sum>,
                    elements::<T, Prod>,
                    elements::<T, Max>,
                    elements::<T, Min>,
                ]
            }

            pub(super) const KERNELS: [[Kernel; 4]; 12] = [
                row::<i8>(),
                row::<i16>(),
                row::<i32>(),
                row::<i64>(),
                row::<u8>(),
                row::<u16>(),
                row::<u32>(),
                row::<u64>(),
                [halves::<Sum>, halves::<Prod>, halves::<Max>, halves::<Min>],
                row::<Bf16>(),
                row::<f32>(),
                row::<f64>(),
            ];
        }

        static $level: Level = Level {
            name: $name,
            kernels: $module::KERNELS,
        };
    };
}

/// # Safety
/// As for [`Kernel`].
#[inline(always)]
unsafe fn combine_halves_in_software<O: Combine>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
) {
    // SAFETY: the caller's promise.
    unsafe { combine_all::<F16, O>(dst, a, b, count) }
}

level!(BASELINE, baseline, "baseline", halves: combine_halves_in_software);
#[cfg(target_arch = "x86_64")]
level!(AVX2, avx2, "AVX2", halves: combine_halves, "avx2,f16c");
#[cfg(target_arch = "x86_64")]
level!(AVX512, avx512, "AVX-512", halves: combine_halves, "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c");
