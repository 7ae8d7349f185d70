//! Element-wise reduction: `dst = a op b` for 12 data types and 4 operations.
//!
//! What the operations mean stands at [`reduce`]; `number` has them for one pair of elements,
//! `kernels` the loops, compiled for each level of vector instructions. The level is chosen once a
//! process.

mod divide;
mod kernels;
mod number;

use std::ffi::c_void;
use std::sync::OnceLock;

use hcomm_transport_abi::{STATUS_INVALID_ARGUMENT, STATUS_OK};
use hcomm_types::{DataType, ReduceOp};

use crate::copy::Hint;
use kernels::Level;

pub(crate) use divide::divide;

/// `dst[i] = a[i] op b[i]` for `count` elements of `dtype`, bit for bit the same on every machine but
/// for what is said of NaNs:
///
/// * Sum and product of integers wrap around.
/// * Floats are rounded to nearest, ties to even, subnormal numbers included; the 16-bit ones are
///   computed in `f32` and rounded once, which gives the same as exact arithmetic rounded once.
/// * Sum and product with a NaN as element or as outcome (∞ − ∞, 0 × ∞) are a quiet NaN; its sign and
///   payload are not promised.
/// * Max and min: a NaN wins. The result has all bits of the first element that is a NaN, `a` before
///   `b`; in the 16-bit types it is made quiet. −0 is less than +0.
/// * Everything else, zeros with their signs too, is as IEEE 754 says: −0 + −0 is −0, −0 + 0 is +0.
///
/// `hint` says who reads the result next. As after a [`copy`](crate::copy), all of it is ordered
/// before every later release store of this thread.
///
/// # Safety
/// `a` and `b` are readable and `dst` is writable for `count` elements, at any alignment. `dst`
/// equals `a`, equals `b`, or overlaps neither. What others write there at the same time puts the
/// values alone at risk.
pub unsafe fn reduce(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
    dtype: DataType,
    redop: ReduceOp,
    hint: Hint,
) {
    let size = dtype.size();
    let bytes = count * size;
    // In place the line is read anyway, so that only a peer gains.
    let in_place = dst.cast_const() == a || dst.cast_const() == b;
    let streams = bytes >= STREAM_FROM
        && (hint == Hint::HandOver || !in_place)
        && dst.addr().is_multiple_of(size)
        && hint.streams(bytes, 3);
    let level = level();
    let kernel = if streams {
        level.streaming(dtype, redop)
    } else {
        level.kernel(dtype, redop)
    };
    // SAFETY: the caller's promise; the level is one this machine has; elements begin at multiples
    // of their size where it streams.
    unsafe { kernel(dst, a, b, count) }
}

/// Below, nobody need ask.
const STREAM_FROM: usize = 4096;

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
    unsafe {
        reduce(
            dst.cast(),
            a.cast(),
            b.cast(),
            count,
            dtype,
            redop,
            Hint::Local,
        );
    }
    STATUS_OK
}

/// Vector instructions in use, for people.
#[must_use]
pub fn vector_level() -> &'static str {
    level().name
}

/// Chosen once a process, without a system call.
fn level() -> &'static Level {
    static BEST: OnceLock<&'static Level> = OnceLock::new();
    BEST.get_or_init(kernels::best_level)
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
        if matches!(redop, ReduceOp::Max | ReduceOp::Min) {
            let quiet = match dtype {
                DataType::F16 | DataType::Bf16 => quiet_bit(dtype),
                _ => 0,
            };
            if let Some(nan) = [x, y].into_iter().find(|&bits| is_nan(dtype, bits)) {
                return Expected::Bits(nan | quiet);
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

    #[derive(Clone, Copy)]
    enum Expected {
        Bits(u64),
        /// Any quiet one.
        Nan,
    }

    fn quiet_bit(dtype: DataType) -> u64 {
        match dtype {
            DataType::F16 => 1 << 9,
            DataType::Bf16 => 1 << 6,
            DataType::F32 => 1 << 22,
            DataType::F64 => 1 << 51,
            _ => 0,
        }
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

    /// Bytes from the begin of a line to the result, to `a` and to `b`.
    type Shifts = [usize; 3];

    /// Every kernel of every level against the reference, with guard bytes around.
    fn check(dtype: DataType, redop: ReduceOp, shape: Shape, shifts: Shifts, pairs: &[(u64, u64)]) {
        const LINE: usize = 64;
        let size = dtype.size();
        let bytes = pairs.len() * size;
        let mask = u64::MAX >> (64 - 8 * size);
        let expected: Vec<_> = pairs
            .iter()
            .map(|&(x, y)| expect(dtype, redop, x & mask, y & mask))
            .collect();
        // The memory, and where in it the elements begin.
        let lay = |values: Option<Vec<u64>>, shift: usize| {
            let mut memory = vec![0xa5u8; bytes + 4 * LINE];
            let begin = memory.as_ptr().align_offset(LINE) + LINE + shift;
            for (i, value) in values.into_iter().flatten().enumerate() {
                memory[begin + i * size..][..size].copy_from_slice(&value.to_le_bytes()[..size]);
            }
            (memory, begin)
        };
        for (level, streams) in kernels::levels().flat_map(|level| [(level, false), (level, true)])
        {
            let (mut d, d_begin) = lay(None, shifts[0]);
            let (mut a, a_begin) = lay(Some(pairs.iter().map(|p| p.0).collect()), shifts[1]);
            let (mut b, b_begin) = lay(Some(pairs.iter().map(|p| p.1).collect()), shifts[2]);
            let (a_at, b_at) = (a[a_begin..].as_mut_ptr(), b[b_begin..].as_mut_ptr());
            let to = match shape {
                Shape::Apart => d[d_begin..].as_mut_ptr(),
                Shape::OverA => a_at,
                Shape::OverB => b_at,
            };
            let kernel = if !streams {
                level.kernel(dtype, redop)
            } else if to.addr().is_multiple_of(size) {
                level.streaming(dtype, redop)
            } else {
                continue;
            };
            // SAFETY: three vectors of their own, each with room for all elements, or `dst` equal
            // to one operand; a streaming kernel has elements at multiples of their size.
            unsafe { kernel(to, a_at, b_at, pairs.len()) };
            let (result, at) = match shape {
                Shape::Apart => (&d, d_begin),
                Shape::OverA => (&a, a_begin),
                Shape::OverB => (&b, b_begin),
            };
            assert!(result[..at].iter().all(|&byte| byte == 0xa5));
            assert!(result[at + bytes..].iter().all(|&byte| byte == 0xa5));
            for (i, &(x, y)) in pairs.iter().enumerate() {
                let found = load(&result[at..], size, i);
                let right = match expected[i] {
                    Expected::Bits(bits) => found == bits & mask,
                    // Miri's NaNs are not those of a processor.
                    Expected::Nan => {
                        is_nan(dtype, found) && (cfg!(miri) || found & quiet_bit(dtype) != 0)
                    }
                };
                assert!(
                    right,
                    "{dtype} {redop} at level {}, streams: {streams}, element {i}: {:#x} and {:#x} \
                     gave {found:#x}",
                    level.name,
                    x & mask,
                    y & mask
                );
            }
        }
    }

    fn some_pairs(dtype: DataType, count: usize) -> Vec<(u64, u64)> {
        (0..count as u64)
            .map(|i| {
                (
                    interesting(dtype, (i % 14) as u8, i.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                    interesting(
                        dtype,
                        (i / 14 % 14) as u8,
                        i.wrapping_mul(0xd1b5_4a32_d192_ed03),
                    ),
                )
            })
            .collect()
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
            shifts in [0usize..64, 0usize..64, 0usize..64],
            pairs in prop::collection::vec(((0u8..14, any::<u64>()), (0u8..14, any::<u64>())), 0..300),
        ) {
            let dtype = DataType::from_number(dtype).unwrap();
            let redop = ReduceOp::from_number(redop).unwrap();
            let shape = [Shape::Apart, Shape::OverA, Shape::OverB][usize::from(shape)];
            let pairs: Vec<_> = pairs
                .into_iter()
                .map(|(x, y)| (interesting(dtype, x.0, x.1), interesting(dtype, y.0, y.1)))
                .collect();
            check(dtype, redop, shape, shifts, &pairs);
        }
    }

    #[test]
    fn every_type_and_operation_at_every_tail() {
        let step = if cfg!(miri) { 31 } else { 1 };
        for dtype in DataType::ALL {
            for redop in ReduceOp::ALL {
                for count in (0..70usize).step_by(step) {
                    let pairs = some_pairs(dtype, count);
                    check(dtype, redop, Shape::Apart, [1, 3, 1], &pairs);
                    check(dtype, redop, Shape::Apart, [8, 0, 0], &pairs);
                    check(dtype, redop, Shape::OverA, [0, 1, 0], &pairs);
                }
            }
        }
    }

    #[test]
    fn every_type_and_operation_at_every_alignment() {
        let step = if cfg!(miri) { 63 } else { 1 };
        for dtype in DataType::ALL {
            // On both sides of where kernels begin with the part of a line.
            let pairs = some_pairs(dtype, 2200 / dtype.size());
            for redop in ReduceOp::ALL {
                for shift in (0..64usize).step_by(step) {
                    let shape = [Shape::Apart, Shape::OverA, Shape::OverB][shift % 3];
                    let shifts = [shift, shift * 7 % 64, shift * 13 % 64];
                    check(dtype, redop, shape, shifts, &pairs);
                    check(dtype, redop, shape, [shift; 3], &pairs[..pairs.len() / 9]);
                }
            }
        }
    }

    #[test]
    fn hints_change_nothing_but_speed() {
        let bytes = 70_000;
        let a: Vec<u8> = (0..bytes).map(|i| (i * 7) as u8).collect();
        for hint in [Hint::Local, Hint::HandOver, Hint::Memory] {
            for shift in [0, 1, 4, 63] {
                let mut b: Vec<u8> = (0..bytes).map(|i| (i * 5) as u8).collect();
                let count = (bytes - shift) / 4;
                let at = b[shift..].as_mut_ptr();
                // SAFETY: `count` elements fit both vectors; the result is the second operand.
                unsafe {
                    reduce(
                        at,
                        a.as_ptr(),
                        at,
                        count,
                        DataType::U32,
                        ReduceOp::Sum,
                        hint,
                    );
                }
                for i in 0..count {
                    let word = |at: &dyn Fn(usize) -> u8| {
                        u32::from_le_bytes([0, 1, 2, 3].map(|k| at(4 * i + k)))
                    };
                    let (x, y) = (word(&|k| a[k]), word(&|k| ((k + shift) * 5) as u8));
                    assert_eq!(word(&|k| b[shift + k]), x.wrapping_add(y));
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
