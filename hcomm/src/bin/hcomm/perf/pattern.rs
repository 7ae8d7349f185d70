//! Data that depends on rank and position, and what must come out of it.

use hcomm_types::{DataType, Rank, ReduceOp, bf16, f16};

/// Runs a piece of code with `$t` as the Rust type of a data type.
macro_rules! with_type {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            DataType::I8 => {
                type $t = i8;
                $body
            }
            DataType::I16 => {
                type $t = i16;
                $body
            }
            DataType::I32 => {
                type $t = i32;
                $body
            }
            DataType::I64 => {
                type $t = i64;
                $body
            }
            DataType::U8 => {
                type $t = u8;
                $body
            }
            DataType::U16 => {
                type $t = u16;
                $body
            }
            DataType::U32 => {
                type $t = u32;
                $body
            }
            DataType::U64 => {
                type $t = u64;
                $body
            }
            DataType::F16 => {
                type $t = f16;
                $body
            }
            DataType::Bf16 => {
                type $t = bf16;
                $body
            }
            DataType::F32 => {
                type $t = f32;
                $body
            }
            DataType::F64 => {
                type $t = f64;
                $body
            }
        }
    };
}

/// Fills `buffer` with a rank's elements from position `first` on.
pub(super) fn fill(buffer: &mut [u8], dtype: DataType, rank: Rank, first: u64) {
    with_type!(dtype, T => {
        for (chunk, position) in buffer.chunks_exact_mut(size_of::<T>()).zip(first..) {
            chunk.copy_from_slice(&T::element(rank, position).to_ne_bytes());
        }
    });
}

/// Elements of `buffer` that are not the rank's own from position `first` on.
pub(super) fn wrong_copies(buffer: &[u8], dtype: DataType, rank: Rank, first: u64) -> u64 {
    with_type!(dtype, T => count_wrong(buffer, size_of::<T>(), first, |chunk, position| {
        chunk == T::element(rank, position).to_ne_bytes()
    }))
}

/// Elements of `buffer` that are not the combination of all ranks' elements from position `first`
/// on: exact for integers, max and min; within the rounding of any order for sums and products
/// of floats.
pub(super) fn wrong_reductions(
    buffer: &[u8],
    dtype: DataType,
    redop: ReduceOp,
    ranks: u32,
    first: u64,
) -> u64 {
    with_type!(dtype, T => count_wrong(buffer, size_of::<T>(), first, |chunk, position| {
        T::right(chunk, redop, (0..ranks).map(|rank| T::element(Rank(rank), position)))
    }))
}

fn count_wrong(
    buffer: &[u8],
    element: usize,
    first: u64,
    mut right: impl FnMut(&[u8], u64) -> bool,
) -> u64 {
    let whole = buffer.chunks_exact(element);
    let rest = u64::from(!whole.remainder().is_empty());
    rest + whole
        .zip(first..)
        .filter(|(chunk, position)| !right(chunk, *position))
        .count() as u64
}

/// A number that looks random but depends on rank and position alone.
fn mix(rank: Rank, position: u64) -> u64 {
    let mut z = position
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(u64::from(rank.0).wrapping_mul(0xd1b5_4a32_d192_ed03));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

trait Pattern: Copy {
    fn element(rank: Rank, position: u64) -> Self;
    fn right(found: &[u8], redop: ReduceOp, inputs: impl Iterator<Item = Self>) -> bool;
}

macro_rules! integer_patterns {
    ($($t:ty),*) => {$(
        impl Pattern for $t {
            fn element(rank: Rank, position: u64) -> Self {
                mix(rank, position) as Self
            }

            fn right(found: &[u8], redop: ReduceOp, inputs: impl Iterator<Item = Self>) -> bool {
                let expected = inputs.reduce(|a, b| match redop {
                    ReduceOp::Sum => a.wrapping_add(b),
                    ReduceOp::Prod => a.wrapping_mul(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Min => a.min(b),
                });
                expected.is_some_and(|expected| found == expected.to_ne_bytes())
            }
        }
    )*};
}

integer_patterns!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! float_patterns {
    ($($t:ty: $from:expr, $to:expr, $epsilon:expr);* $(;)?) => {$(
        impl Pattern for $t {
            /// Between 0.5 and 1.5, so that sums and products of many stay in range.
            fn element(rank: Rank, position: u64) -> Self {
                let unit = (mix(rank, position) >> 11) as f64 / (1u64 << 53) as f64;
                ($from)(0.5 + unit)
            }

            fn right(found: &[u8], redop: ReduceOp, inputs: impl Iterator<Item = Self>) -> bool {
                let Ok(bytes) = found.try_into() else { return false };
                let found: f64 = ($to)(Self::from_ne_bytes(bytes));
                let (mut expected, mut count) = (None::<f64>, 0u32);
                for input in inputs {
                    let b: f64 = ($to)(input);
                    expected = Some(expected.map_or(b, |a| match redop {
                        ReduceOp::Sum => a + b,
                        ReduceOp::Prod => a * b,
                        ReduceOp::Max => a.max(b),
                        ReduceOp::Min => a.min(b),
                    }));
                    count += 1;
                }
                let Some(expected) = expected else { return false };
                let bound = match redop {
                    ReduceOp::Max | ReduceOp::Min => 0.0,
                    // Each of count - 1 roundings errs by at most half a unit in the last place
                    // of a value that is at most the result (all terms are positive) or, for
                    // products, of the result's size; one more for our own reference in f64.
                    ReduceOp::Sum | ReduceOp::Prod => {
                        f64::from(count) * f64::from($epsilon) * expected.abs()
                    }
                };
                (found - expected).abs() <= bound
            }
        }
    )*};
}

float_patterns! {
    f16: f16::from_f64, f64::from, f16::EPSILON;
    bf16: bf16::from_f64, f64::from, bf16::EPSILON;
    f32: |x: f64| x as f32, f64::from, f32::EPSILON;
    f64: |x: f64| x, |x: f64| x, f64::EPSILON;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_right_at_its_place_only() {
        for dtype in DataType::ALL {
            let mut buffer = vec![0; 100 * dtype.size()];
            fill(&mut buffer, dtype, Rank(3), 7);
            assert_eq!(wrong_copies(&buffer, dtype, Rank(3), 7), 0);
            assert!(wrong_copies(&buffer, dtype, Rank(3), 8) > 50, "{dtype}");
            assert!(wrong_copies(&buffer, dtype, Rank(2), 7) > 50, "{dtype}");
            buffer[dtype.size()] ^= 1;
            assert_eq!(wrong_copies(&buffer, dtype, Rank(3), 7), 1);
        }
    }

    #[test]
    fn one_wrong_element_of_a_reduction_is_found() {
        for dtype in DataType::ALL {
            for redop in ReduceOp::ALL {
                let mut buffer = vec![0; 64 * dtype.size()];
                fill(&mut buffer, dtype, Rank(0), 5);
                assert_eq!(wrong_reductions(&buffer, dtype, redop, 1, 5), 0);
                assert!(
                    wrong_reductions(&buffer, dtype, redop, 2, 5) > 10,
                    "{dtype} {redop}"
                );
            }
        }
    }
}
