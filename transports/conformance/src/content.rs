//! What memory is filled with: a function of a seed and the position, never a constant, so that
//! bytes that come from the wrong place or the wrong side are seen.

use hcomm_types::{DataType, ReduceOp};
use serde::{Deserialize, Serialize};

use crate::kernel;

/// Content of a stretch of memory. A position counts bytes from the beginning of the content.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Content {
    /// All zero, as allocated memory is.
    Zero,
    /// Pseudo-random bytes.
    Bytes { seed: u64 },
    /// Numbers: any for integers, small whole ones for floats, so that every operation on two of
    /// them is exact.
    Elements { dtype: DataType, seed: u64 },
    /// The same two combined.
    Reduced {
        dtype: DataType,
        redop: ReduceOp,
        left: u64,
        right: u64,
    },
}

impl Content {
    /// `len` bytes from position `start` on.
    pub(crate) fn render(self, start: u64, len: usize) -> Vec<u8> {
        match self {
            Self::Zero => vec![0; len],
            Self::Bytes { seed } => {
                // Whole words, then without what is before the start: megabytes are made of it.
                let before = (start % 8) as usize;
                let words = (before + len).div_ceil(8);
                let mut out = vec![0; words * 8];
                for (word, place) in (start / 8..).zip(out.chunks_exact_mut(8)) {
                    place.copy_from_slice(&mix(seed, word).to_le_bytes());
                }
                out.truncate(before + len);
                out.drain(..before);
                out
            }
            Self::Elements { dtype, seed } => {
                elements(dtype, start, len, |index| element(dtype, seed, index))
            }
            Self::Reduced {
                dtype,
                redop,
                left,
                right,
            } => elements(dtype, start, len, |index| {
                kernel::combine(
                    dtype,
                    redop,
                    &element(dtype, left, index),
                    &element(dtype, right, index),
                )
            }),
        }
    }
}

/// A pseudo-random number that depends on both.
pub(crate) fn mix(seed: u64, index: u64) -> u64 {
    // splitmix64's finaliser over a Weyl sequence of the index
    let mut z = seed
        .wrapping_mul(0xD1B5_4A32_D192_ED03)
        .wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn elements(dtype: DataType, start: u64, len: usize, make: impl Fn(u64) -> [u8; 8]) -> Vec<u8> {
    let size = dtype.size();
    assert!(
        start.is_multiple_of(size as u64) && len.is_multiple_of(size),
        "{len} bytes at {start} are not whole elements of {dtype}"
    );
    let first = start / size as u64;
    (first..first + (len / size) as u64)
        .flat_map(|index| make(index).into_iter().take(size))
        .collect()
}

fn element(dtype: DataType, seed: u64, index: u64) -> [u8; 8] {
    let bits = mix(seed, index);
    let mut out = [0; 8];
    let mut put = |bytes: &[u8]| out[..bytes.len()].copy_from_slice(bytes);
    // 25 whole numbers around zero: sums, products and comparisons are exact in 8 bits.
    let small = (bits % 25) as f32 - 12.0;
    match dtype {
        DataType::F16 => put(&hcomm_types::f16::from_f32(small).to_ne_bytes()),
        DataType::Bf16 => put(&hcomm_types::bf16::from_f32(small).to_ne_bytes()),
        DataType::F32 => put(&small.to_ne_bytes()),
        DataType::F64 => put(&f64::from(small).to_ne_bytes()),
        _ => out = bits.to_ne_bytes(),
    }
    out
}
