//! The division that makes an average of a sum.

use std::num::NonZeroU32;

use hcomm_types::{DataType, bf16, f16};

/// `at[i] = at[i] / by` for `count` elements of `dtype`: integers towards zero, floats rounded once
/// to nearest, ties to even.
///
/// # Safety
/// `at` is readable and writable for so many elements, at any alignment. What others write there at
/// the same time puts the values alone at risk.
pub(crate) unsafe fn divide(at: *mut u8, count: usize, dtype: DataType, by: NonZeroU32) {
    let kernel = match dtype {
        DataType::I8 => each::<i8>,
        DataType::I16 => each::<i16>,
        DataType::I32 => each::<i32>,
        DataType::I64 => each::<i64>,
        DataType::U8 => each::<u8>,
        DataType::U16 => each::<u16>,
        DataType::U32 => each::<u32>,
        DataType::U64 => each::<u64>,
        DataType::F16 => each::<f16>,
        DataType::Bf16 => each::<bf16>,
        DataType::F32 => each::<f32>,
        DataType::F64 => each::<f64>,
    };
    // SAFETY: the caller's promise, for elements of this type.
    unsafe { kernel(at, count, by) }
}

/// # Safety
/// As for [`divide`].
unsafe fn each<T: Divided>(at: *mut u8, count: usize, by: NonZeroU32) {
    let at = at.cast::<T>();
    for index in 0..count {
        // `wrapping_add` is `add` without the checks of debug builds.
        let element = at.wrapping_add(index);
        // SAFETY: element `index` is inside the range.
        unsafe { element.write_unaligned(element.read_unaligned().divided(by)) }
    }
}

trait Divided: Copy {
    fn divided(self, by: NonZeroU32) -> Self;
}

macro_rules! divided {
    ($($type:ty: |$x:ident, $by:ident| $quotient:expr;)*) => {$(
        impl Divided for $type {
            #[inline(always)]
            fn divided(self, by: NonZeroU32) -> Self {
                let ($x, $by) = (self, by.get());
                $quotient
            }
        }
    )*};
}

divided! {
    i8: |x, by| (i64::from(x) / i64::from(by)) as Self;
    i16: |x, by| (i64::from(x) / i64::from(by)) as Self;
    i32: |x, by| (i64::from(x) / i64::from(by)) as Self;
    i64: |x, by| x / i64::from(by);
    u8: |x, by| (u32::from(x) / by) as Self;
    u16: |x, by| (u32::from(x) / by) as Self;
    u32: |x, by| x / by;
    u64: |x, by| x / u64::from(by);
    // The 24 bits of an f32 are more than twice those of the 16-bit types plus two, so rounding
    // twice is rounding once; and hold any number of ranks.
    f16: |x, by| Self::from_f32(x.to_f32() / by as f32);
    bf16: |x, by| Self::from_f32(x.to_f32() / by as f32);
    // By a power of two, the product with its inverse is the same number, and sooner there.
    f32: |x, by| if by.is_power_of_two() { x * (1.0 / by as f32) } else { x / by as f32 };
    f64: |x, by| if by.is_power_of_two() {
        x * (1.0 / f64::from(by))
    } else {
        x / f64::from(by)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided<T: Copy>(values: &[T], dtype: DataType, by: u32) -> Vec<T> {
        // One byte off any alignment.
        let mut bytes = vec![0; 1 + size_of_val(values)];
        let at = bytes[1..].as_mut_ptr();
        let by = NonZeroU32::new(by).unwrap();
        // SAFETY: so many elements fit behind the first byte.
        unsafe {
            for (index, value) in values.iter().enumerate() {
                at.cast::<T>().add(index).write_unaligned(*value);
            }
            divide(at, values.len(), dtype, by);
            (0..values.len())
                .map(|index| at.cast::<T>().add(index).read_unaligned())
                .collect()
        }
    }

    #[test]
    fn integers_go_towards_zero_and_floats_are_rounded() {
        assert_eq!(
            divided(&[7i8, -7, -128, 1], DataType::I8, 2),
            [3, -3, -64, 0]
        );
        assert_eq!(
            divided(&[7i16, -7, i16::MIN], DataType::I16, 3),
            [2, -2, -10922]
        );
        assert_eq!(
            divided(&[7, -7, i32::MIN], DataType::I32, u32::MAX),
            [0, 0, 0]
        );
        assert_eq!(
            divided(&[7, -7, i64::MIN], DataType::I64, 2),
            [3, -3, i64::MIN / 2]
        );
        assert_eq!(divided(&[255u8, 1], DataType::U8, 300), [0, 0]);
        assert_eq!(divided(&[65535u16, 9], DataType::U16, 3), [21845, 3]);
        assert_eq!(divided(&[u32::MAX, 9], DataType::U32, 3), [u32::MAX / 3, 3]);
        assert_eq!(divided(&[u64::MAX, 9], DataType::U64, 3), [u64::MAX / 3, 3]);
        assert_eq!(
            divided(&[1f32, -0.0, f32::INFINITY], DataType::F32, 3),
            [1.0 / 3.0, -0.0, f32::INFINITY]
        );
        assert_eq!(
            divided(&[1f64, 10.0], DataType::F64, 3),
            [1.0 / 3.0, 10.0 / 3.0]
        );
        let third = f16::from_f64(1.0 / 3.0);
        assert_eq!(
            divided(&[f16::ONE, f16::MAX], DataType::F16, 3),
            [third, f16::from_f64(65504.0 / 3.0)]
        );
        assert_eq!(
            divided(&[bf16::ONE], DataType::Bf16, 3),
            [bf16::from_f64(1.0 / 3.0)]
        );
    }

    #[test]
    fn by_powers_of_two_it_is_the_quotient_as_well() {
        let mut bits = 1u32;
        for _ in 0..10_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (x, y) = (
                f32::from_bits(bits),
                f64::from_bits(u64::from(bits) << 32 | 12345),
            );
            if x.is_nan() || y.is_nan() {
                continue;
            }
            for by in [1u32, 2, 8, 1 << 20, 1 << 31] {
                let found = divided(&[x], DataType::F32, by)[0];
                assert_eq!(found.to_bits(), (x / by as f32).to_bits(), "{x} / {by}");
                let found = divided(&[y], DataType::F64, by)[0];
                assert_eq!(found.to_bits(), (y / f64::from(by)).to_bits(), "{y} / {by}");
            }
        }
    }

    #[test]
    fn halves_are_rounded_once() {
        for bits in (0..=u16::MAX).step_by(7) {
            for by in [3u32, 7, 10, 4096, 65_535] {
                let x = f16::from_bits(bits);
                let [found] = divided(&[x], DataType::F16, by)[..] else {
                    unreachable!()
                };
                let exact = f16::from_f64(x.to_f64() / f64::from(by));
                assert!(
                    found == exact || found.is_nan() && exact.is_nan(),
                    "{x} / {by}"
                );
                let x = bf16::from_bits(bits);
                let [found] = divided(&[x], DataType::Bf16, by)[..] else {
                    unreachable!()
                };
                let exact = bf16::from_f64(x.to_f64() / f64::from(by));
                assert!(
                    found == exact || found.is_nan() && exact.is_nan(),
                    "{x} / {by}"
                );
            }
        }
    }
}
