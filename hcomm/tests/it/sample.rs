//! Data that depends on rank and position, and what must come out of it.
//!
//! Floats are chosen so that every order of combination gives the same exact result: small whole
//! numbers for sums, powers of two for products. So all types are compared bit by bit.

use std::fmt::{Debug, Display};

use hcomm::{DataType, Element, ReduceOp, bf16, f16};

use crate::random::mix;

/// An element that tests can make and combine.
pub(crate) trait Sample: Element + PartialEq + Debug + Send + Sync {
    /// What `rank` has at `position`.
    fn sample(op: ReduceOp, rank: u32, position: usize) -> Self;

    /// The combination of two.
    fn combine(self, op: ReduceOp, other: Self) -> Self;

    /// Appends its bytes, as they lie in memory.
    fn append_to(self, bytes: &mut Vec<u8>);

    /// An element from its bytes.
    fn from_bytes(bytes: &[u8]) -> Self;
}

/// Elements of a rank from position `first` on.
pub(crate) fn samples<T: Sample>(op: ReduceOp, rank: u32, first: usize, count: usize) -> Vec<T> {
    (first..first + count)
        .map(|position| T::sample(op, rank, position))
        .collect()
}

/// What no rank has: the contents of buffers before they are written.
pub(crate) fn unwritten<T: Sample>(op: ReduceOp, count: usize) -> Vec<T> {
    samples(op, u32::MAX, 0, count)
}

/// The combination of all ranks' elements from position `first` on.
pub(crate) fn combined<T: Sample>(op: ReduceOp, ranks: u32, first: usize, count: usize) -> Vec<T> {
    (first..first + count)
        .map(|position| {
            (1..ranks).fold(T::sample(op, 0, position), |sum, rank| {
                sum.combine(op, T::sample(op, rank, position))
            })
        })
        .collect()
}

/// Fails at the first element that differs.
#[track_caller]
pub(crate) fn assert_same<T: Sample>(what: impl Display, found: &[T], expected: &[T]) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    let wrong = found
        .iter()
        .zip(expected)
        .position(|(found, expected)| found != expected);
    if let Some(at) = wrong {
        let all = found.iter().zip(expected).filter(|(a, b)| a != b).count();
        panic!(
            "{what}: element {at} of {} is {:?} instead of {:?}; {all} are wrong",
            found.len(),
            found[at],
            expected[at]
        );
    }
}

/// Runs a piece of code with `$t` as the Rust type of each data type in turn.
macro_rules! each_type {
    ($t:ident => $body:expr) => {{
        each_type!(@ $t, $body, i8 i16 i32 i64 u8 u16 u32 u64 f32 f64);
        each_type!(@ $t, $body, f16 bf16);
    }};
    (@ $t:ident, $body:expr, $($rust:ident)*) => {$({
        type $t = $crate::sample::rust_types::$rust;
        $body
    })*};
}
pub(crate) use each_type;

/// The Rust types of all data types, under one path.
pub(crate) mod rust_types {
    pub(crate) use std::primitive::{f32, f64, i8, i16, i32, i64, u8, u16, u32, u64};

    pub(crate) use hcomm::{bf16, f16};
}

fn hash(rank: u32, position: usize) -> u64 {
    mix((position as u64 + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(u64::from(rank).wrapping_mul(0xd1b5_4a32_d192_ed03)))
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Sample for $t {
            fn sample(_: ReduceOp, rank: u32, position: usize) -> Self {
                hash(rank, position) as Self
            }

            fn combine(self, op: ReduceOp, other: Self) -> Self {
                match op {
                    ReduceOp::Sum => self.wrapping_add(other),
                    ReduceOp::Prod => self.wrapping_mul(other),
                    ReduceOp::Max => self.max(other),
                    ReduceOp::Min => self.min(other),
                }
            }

            fn append_to(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_ne_bytes());
            }

            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(bytes.try_into().expect("the bytes of one element"))
            }
        }
    )*};
}

integers!(i8 i16 i32 i64 u8 u16 u32 u64);

macro_rules! floats {
    ($($t:ty: $limit:literal, $from:expr, $to:expr;)*) => {$(
        impl Sample for $t {
            fn sample(op: ReduceOp, rank: u32, position: usize) -> Self {
                let hash = hash(rank, position);
                ($from)(match op {
                    ReduceOp::Prod => [0.5, 1.0, 2.0, -0.5, -1.0, -2.0][(hash % 6) as usize],
                    _ => (hash % (2 * $limit + 1)) as f64 - f64::from($limit as u32),
                })
            }

            fn combine(self, op: ReduceOp, other: Self) -> Self {
                let (a, b): (f64, f64) = (($to)(self), ($to)(other));
                ($from)(match op {
                    ReduceOp::Sum => a + b,
                    ReduceOp::Prod => a * b,
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Min => a.min(b),
                })
            }

            fn append_to(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_ne_bytes());
            }

            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(bytes.try_into().expect("the bytes of one element"))
            }
        }
    )*};
}

// Eight times the limit is a whole number that the type has.
floats! {
    f16: 250, f16::from_f64, f16::to_f64;
    bf16: 30, bf16::from_f64, bf16::to_f64;
    f32: 1_000_000, |value: f64| value as f32, f64::from;
    f64: 1_000_000_000, |value: f64| value, |value: f64| value;
}

/// Every data type has samples; this list would not compile otherwise.
#[test]
fn samples_differ_by_rank_and_position_for_every_type() {
    let mut seen = Vec::new();
    each_type!(T => {
        seen.push(T::DATA_TYPE);
        for op in ReduceOp::ALL {
            let mine = samples::<T>(op, 0, 0, 100);
            assert!(mine != samples::<T>(op, 1, 0, 100), "{:?} by rank", T::DATA_TYPE);
            assert!(mine != samples::<T>(op, 0, 1, 100), "{:?} by position", T::DATA_TYPE);
        }
    });
    seen.sort_by_key(|dtype| *dtype as u32);
    assert_eq!(seen, DataType::ALL);
}
