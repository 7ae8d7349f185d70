//! Element-wise reduction: `dst = a op b` for 12 data types and 4 operations.
//!
//! What the operations mean stands in `number`; the loops are in `kernels`, compiled for each
//! level of vector instructions, and chosen once a process.

mod kernels;
mod number;

use std::ffi::c_void;
use std::sync::OnceLock;

use hcomm_transport_abi::{STATUS_INVALID_ARGUMENT, STATUS_OK};
use hcomm_types::{DataType, ReduceOp};

use kernels::Level;

/// `dst[i] = a[i] op b[i]` for `count` elements of `dtype`.
///
/// Integers wrap; floats round to nearest, ties to even; if either element of a max or min is a
/// NaN, so is the result, and −0 is less than +0.
///
/// # Safety
/// `a` and `b` are readable and `dst` is writable for `count` elements, at any alignment. `dst`
/// equals `a`, equals `b`, or overlaps neither. Nobody else writes there meanwhile.
pub unsafe fn reduce(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
    dtype: DataType,
    redop: ReduceOp,
) {
    // SAFETY: the caller's promise; the level is one this machine has.
    unsafe { level().kernel(dtype, redop)(dst, a, b, count) }
}

/// [`reduce`] for plugins: the [`ReduceKernel`](hcomm_transport::ReduceKernel) to hand to
/// [`LoadOptions`](hcomm_transport::LoadOptions).
///
/// # Safety
/// As for [`reduce`], with the numbers of data type and operation; unknown ones are refused with a
/// status.
pub unsafe extern "C" fn reduce_kernel(
    dst: *mut c_void,
    a: *const c_void,
    b: *const c_void,
    count: u64,
    dtype: u32,
    redop: u32,
) -> i32 {
    let (Some(dtype), Some(redop), Ok(count)) = (
        DataType::from_number(dtype),
        ReduceOp::from_number(redop),
        usize::try_from(count),
    ) else {
        return STATUS_INVALID_ARGUMENT;
    };
    // SAFETY: the caller's promise.
    unsafe { reduce(dst.cast(), a.cast(), b.cast(), count, dtype, redop) };
    STATUS_OK
}

/// Vector instructions in use, for people.
#[must_use]
pub fn vector_level() -> &'static str {
    level().name
}

fn level() -> &'static Level {
    static BEST: OnceLock<&'static Level> = OnceLock::new();
    BEST.get_or_init(|| {
        let levels = kernels::levels();
        levels[levels.len() - 1]
    })
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use proptest::prelude::*;

    use super::*;

    /// One pair, the slow and obvious way.
    fn expect(dtype: DataType, redop: ReduceOp, x: u64, y: u64) -> Expected {
        macro_rules! int {
            ($int:ty) => {{
                let (x, y) = (x as $int, y as $int);
                Expected::Bits(match redop {
                    ReduceOp::Sum => x.wrapping_add(y),
                    ReduceOp::Prod => x.wrapping_mul(y),
                    ReduceOp::Max => Ord::max(x, y),
                    ReduceOp::Min => Ord::min(x, y),
                } as u64)
            }};
        }
        fn float(redop: ReduceOp, x: f64, y: f64) -> f64 {
            let ordered = if x.total_cmp(&y).is_lt() {
                (x, y)
            } else {
                (y, x)
            };
            match redop {
                ReduceOp::Sum => x + y,
                ReduceOp::Prod => x * y,
                _ if x.is_nan() || y.is_nan() => f64::NAN,
                ReduceOp::Max => ordered.1,
                ReduceOp::Min => ordered.0,
            }
        }
        fn bits(is_nan: bool, bits: u64) -> Expected {
            if is_nan {
                Expected::Nan
            } else {
                Expected::Bits(bits)
            }
        }
        match dtype {
            DataType::I8 => int!(i8),
            DataType::I16 => int!(i16),
            DataType::I32 => int!(i32),
            DataType::I64 => int!(i64),
            DataType::U8 => int!(u8),
            DataType::U16 => int!(u16),
            DataType::U32 => int!(u32),
            DataType::U64 => int!(u64),
            DataType::F16 => {
                // Exact in f64 for these two operations.
                let [x, y] = [x, y].map(|v| f16::from_bits(v as u16).to_f64());
                // By way of f32, whose 24 bits are more than twice the 11 of f16 and two, so that the
                // second rounding changes nothing. `half` drops low bits on the direct way.
                let value = f16::from_f32_const(float(redop, x, y) as f32);
                bits(value.is_nan(), value.to_bits().into())
            }
            DataType::Bf16 => {
                let [x, y] = [x, y].map(|v| bf16::from_bits(v as u16).to_f32());
                let value = match redop {
                    ReduceOp::Sum => bf16::from_f32(x + y),
                    ReduceOp::Prod => bf16::from_f32(x * y),
                    _ => bf16::from_f64(float(redop, x.into(), y.into())),
                };
                bits(value.is_nan(), value.to_bits().into())
            }
            DataType::F32 => {
                let [x, y] = [x, y].map(|v| f32::from_bits(v as u32));
                let value = match redop {
                    ReduceOp::Sum => x + y,
                    ReduceOp::Prod => x * y,
                    _ => float(redop, x.into(), y.into()) as f32,
                };
                bits(value.is_nan(), value.to_bits().into())
            }
            DataType::F64 => {
                let value = float(redop, f64::from_bits(x), f64::from_bits(y));
                bits(value.is_nan(), value.to_bits())
            }
        }
    }

    enum Expected {
        Bits(u64),
        Nan,
    }

    fn load(bytes: &[u8], size: usize, i: usize) -> u64 {
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(&bytes[i * size..][..size]);
        u64::from_le_bytes(wide)
    }

    fn is_nan(dtype: DataType, bits: u64) -> bool {
        match dtype {
            DataType::F16 => f16::from_bits(bits as u16).is_nan(),
            DataType::Bf16 => bf16::from_bits(bits as u16).is_nan(),
            DataType::F32 => f32::from_bits(bits as u32).is_nan(),
            DataType::F64 => f64::from_bits(bits).is_nan(),
            _ => false,
        }
    }

    /// Numbers that show rounding, overflow, signs of zero and NaNs more often than random bits.
    fn interesting(dtype: DataType, pick: u8, raw: u64) -> u64 {
        let from = |f: f64| match dtype {
            DataType::F16 => f16::from_f64_const(f).to_bits().into(),
            DataType::Bf16 => bf16::from_f64(f).to_bits().into(),
            DataType::F32 => (f as f32).to_bits().into(),
            DataType::F64 => f.to_bits(),
            _ => f as i64 as u64,
        };
        match pick {
            0 => from(0.0),
            1 => from(-0.0),
            2 => from(f64::NAN),
            3 => from(f64::INFINITY),
            4 => from(f64::NEG_INFINITY),
            5 => from(60000.0),
            6 => from(1.0 + (raw % 4096) as f64 / 2048.0),
            7 => from(-((raw % 977) as f64) / 3.0),
            8 => from(5.9e-8 * (raw % 40) as f64),
            _ => raw,
        }
    }

    /// Where `dst` lies.
    #[derive(Clone, Copy, Debug)]
    enum Shape {
        Apart,
        OverA,
        OverB,
    }

    fn check(dtype: DataType, redop: ReduceOp, shape: Shape, shift: usize, pairs: &[(u64, u64)]) {
        let size = dtype.size();
        let bytes = pairs.len() * size;
        let lay = |values: Vec<u64>, shift: usize| {
            let mut memory = vec![0xa5u8; bytes + 64];
            for (i, value) in values.iter().enumerate() {
                memory[shift + i * size..][..size].copy_from_slice(&value.to_le_bytes()[..size]);
            }
            memory
        };
        for level in kernels::levels() {
            let mut a = lay(pairs.iter().map(|p| p.0).collect(), shift);
            let mut b = lay(pairs.iter().map(|p| p.1).collect(), shift / 2);
            let mut d = vec![0xa5u8; bytes + 64];
            let (a_at, b_at) = (a[shift..].as_mut_ptr(), b[shift / 2..].as_mut_ptr());
            let kernel = level.kernel(dtype, redop);
            let (result, at) = match shape {
                Shape::Apart => {
                    // SAFETY: three vectors of their own, each with room for all elements.
                    unsafe { kernel(d[1..].as_mut_ptr(), a_at, b_at, pairs.len()) };
                    (&d, 1)
                }
                Shape::OverA => {
                    // SAFETY: as above, `dst` equal to `a`.
                    unsafe { kernel(a_at, a_at, b_at, pairs.len()) };
                    (&a, shift)
                }
                Shape::OverB => {
                    // SAFETY: as above, `dst` equal to `b`.
                    unsafe { kernel(b_at, a_at, b_at, pairs.len()) };
                    (&b, shift / 2)
                }
            };
            assert!(result[..at].iter().all(|&byte| byte == 0xa5));
            assert!(result[at + bytes..].iter().all(|&byte| byte == 0xa5));
            for (i, &(x, y)) in pairs.iter().enumerate() {
                let found = load(&result[at..], size, i);
                let mask = u64::MAX >> (64 - 8 * size);
                let right = match expect(dtype, redop, x & mask, y & mask) {
                    Expected::Bits(bits) => found == bits & mask,
                    Expected::Nan => is_nan(dtype, found),
                };
                assert!(
                    right,
                    "{dtype} {redop} at level {}, element {i}: {:#x} and {:#x} gave {found:#x}",
                    level.name,
                    x & mask,
                    y & mask
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 1500 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn kernels_agree_with_the_reference(
            dtype in 0u32..12,
            redop in 0u32..4,
            shape in 0u8..3,
            shift in 0usize..19,
            pairs in prop::collection::vec(((0u8..14, any::<u64>()), (0u8..14, any::<u64>())), 0..300),
        ) {
            let dtype = DataType::from_number(dtype).unwrap();
            let redop = ReduceOp::from_number(redop).unwrap();
            let shape = [Shape::Apart, Shape::OverA, Shape::OverB][usize::from(shape)];
            let pairs: Vec<_> = pairs
                .into_iter()
                .map(|(x, y)| (interesting(dtype, x.0, x.1), interesting(dtype, y.0, y.1)))
                .collect();
            check(dtype, redop, shape, shift, &pairs);
        }
    }

    #[test]
    fn every_type_and_operation_at_every_tail() {
        let step = if cfg!(miri) { 31 } else { 1 };
        for dtype in DataType::ALL {
            for redop in ReduceOp::ALL {
                for count in (0..70usize).step_by(step) {
                    let pairs: Vec<_> = (0..count as u64)
                        .map(|i| {
                            (
                                interesting(dtype, 6 + (i % 2) as u8, i * 37 + 5),
                                interesting(dtype, 7 - (i % 2) as u8, i * 91 + 11),
                            )
                        })
                        .collect();
                    check(dtype, redop, Shape::Apart, 3, &pairs);
                    check(dtype, redop, Shape::OverA, 1, &pairs);
                }
            }
        }
    }

    #[test]
    fn the_door_for_plugins_refuses_unknown_numbers() {
        let (mut d, x) = (0u32, 7u32);
        let at: *mut u32 = &raw mut d;
        for (dtype, redop, status) in [
            (6, 0, STATUS_OK),
            (12, 0, STATUS_INVALID_ARGUMENT),
            (6, 4, STATUS_INVALID_ARGUMENT),
        ] {
            // SAFETY: one element each.
            let found = unsafe {
                reduce_kernel(
                    at.cast(),
                    (&raw const x).cast(),
                    (&raw const x).cast(),
                    1,
                    dtype,
                    redop,
                )
            };
            assert_eq!(found, status);
        }
        assert_eq!(d, 14);
    }
}
