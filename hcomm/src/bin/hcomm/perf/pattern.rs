//! Data that depends on rank and position, and what must come out of it.
//!
//! What a reduction is fed with is chosen so that its result is exact in any order and any
//! grouping, and so that a contribution that is missing, doubled or from another position changes
//! it. No rounding has to be allowed for: one wrong bit is wrong.

use hcomm_types::{DataType, Rank, ReduceOp, Reduction, bf16, f16};

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
            chunk.copy_from_slice(&T::any(rank, position).to_ne_bytes());
        }
    });
}

/// Elements of `buffer` that are not the rank's own from position `first` on.
pub(super) fn wrong_copies(buffer: &[u8], dtype: DataType, rank: Rank, first: u64) -> u64 {
    with_type!(dtype, T => count_wrong(buffer, size_of::<T>(), first, |chunk, position| {
        chunk == T::any(rank, position).to_ne_bytes()
    }))
}

/// Wrapping sum of `bytes` as 64-bit words, the last one filled up with zeros: what
/// [`hcomm_data::Slice::sum_u64`] is for memory of ours.
pub(super) fn sum_u64(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let sum = words.iter().fold(0u64, |sum, word| {
        sum.wrapping_add(u64::from_ne_bytes(*word))
    });
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    sum.wrapping_add(u64::from_ne_bytes(last))
}

/// What is combined, and of how many ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Combination {
    pub(super) dtype: DataType,
    pub(super) redop: Reduction,
    pub(super) ranks: u32,
}

impl Combination {
    /// Fills `buffer` with a rank's contribution from position `first` on.
    pub(super) fn fill(self, buffer: &mut [u8], rank: Rank, first: u64) {
        with_type!(self.dtype, T => {
            let terms = Terms::<T>::new(self.redop, self.ranks);
            for (chunk, position) in buffer.chunks_exact_mut(size_of::<T>()).zip(first..) {
                chunk.copy_from_slice(&terms.input(rank, position).to_ne_bytes());
            }
        });
    }

    /// Elements of `buffer` that are not the combination of all ranks' contributions from
    /// position `first` on.
    pub(super) fn wrong(self, buffer: &[u8], first: u64) -> u64 {
        with_type!(self.dtype, T => {
            let terms = Terms::<T>::new(self.redop, self.ranks);
            count_wrong(buffer, size_of::<T>(), first, |chunk, position| {
                chunk == terms.result(position).to_ne_bytes()
            })
        })
    }
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

/// The contributions of all ranks to a reduction of `T`.
///
/// At each position one in `turns` ranks has its turn, and of as many positions in a row each rank
/// has its turn at one. Who has no turn contributes what leaves the result as it is: 0 to a sum, 1 to a
/// product, a lower value to a maximum.
#[derive(Clone, Copy, Debug)]
struct Terms<T> {
    redop: ReduceOp,
    /// By what the result is divided, for an average.
    by: Option<u32>,
    ranks: u64,
    turns: u64,
    /// For sums of floats: contributions go from 1 to this.
    most: u64,
    element: std::marker::PhantomData<T>,
}

impl<T: Element> Terms<T> {
    fn new(redop: Reduction, ranks: u32) -> Self {
        let by = (redop == Reduction::Avg).then_some(ranks);
        let redop = redop.op();
        let ranks = u64::from(ranks.max(1));
        let (turns, most) = match redop {
            // Only one can be the largest.
            ReduceOp::Max | ReduceOp::Min => (ranks, 0),
            ReduceOp::Sum => T::sum_turns(ranks),
            ReduceOp::Prod => (T::product_turns(ranks), 0),
        };
        Self {
            redop,
            by,
            ranks,
            turns,
            most,
            element: std::marker::PhantomData,
        }
    }

    fn has_turn(&self, rank: Rank, position: u64) -> bool {
        (u64::from(rank.0) + position % self.turns).is_multiple_of(self.turns)
    }

    fn input(&self, rank: Rank, position: u64) -> T {
        let (random, turn) = (mix(rank, position), self.has_turn(rank, position));
        match self.redop {
            ReduceOp::Sum if turn => T::summand(random, self.most),
            ReduceOp::Sum => T::ZERO,
            ReduceOp::Prod if turn => T::factor(random),
            ReduceOp::Prod => T::ONE,
            ReduceOp::Max => T::ordered(random, turn, position),
            ReduceOp::Min => T::ordered(random, !turn, position),
        }
    }

    /// The combination of those that have their turn: the others do not matter.
    fn result(&self, position: u64) -> T {
        let first = (self.turns - position % self.turns) % self.turns;
        let inputs = (first..self.ranks)
            .step_by(self.turns as usize)
            .map(|rank| self.input(Rank(rank as u32), position));
        match self.redop {
            ReduceOp::Sum => self.by.map_or_else(
                || T::sum(inputs.clone()),
                |by| T::sum(inputs.clone()).divided(by),
            ),
            ReduceOp::Prod => T::product(inputs),
            ReduceOp::Max | ReduceOp::Min => inputs.last().unwrap_or(T::ZERO),
        }
    }
}

/// A type whose values can be made of random bits.
trait Element: Copy {
    const ZERO: Self;
    const ONE: Self;

    /// Any value.
    fn any(rank: Rank, position: u64) -> Self;

    /// Of how many ranks one at a time adds to a sum, and the largest summand.
    fn sum_turns(ranks: u64) -> (u64, u64);

    /// Of how many ranks one at a time adds a factor to a product.
    fn product_turns(ranks: u64) -> u64;

    /// A summand other than 0.
    fn summand(random: u64, most: u64) -> Self;

    /// A factor other than 1 that can be undone: no factor makes others invisible.
    fn factor(random: u64) -> Self;

    /// A value; each high one is greater than each low one of the same position.
    fn ordered(random: u64, high: bool, position: u64) -> Self;

    fn sum(summands: impl Iterator<Item = Self>) -> Self;
    fn product(factors: impl Iterator<Item = Self>) -> Self;

    /// Integers towards zero, floats rounded.
    fn divided(self, by: u32) -> Self;
}

/// Integers wrap around, which is exact in any order: everybody can contribute anything.
macro_rules! integer_elements {
    ($($t:ty as $bits:ty),*) => {$(
        impl Element for $t {
            const ZERO: Self = 0;
            const ONE: Self = 1;

            fn any(rank: Rank, position: u64) -> Self {
                mix(rank, position) as Self
            }

            fn sum_turns(_: u64) -> (u64, u64) {
                (1, 0)
            }

            fn product_turns(_: u64) -> u64 {
                1
            }

            fn summand(random: u64, _: u64) -> Self {
                match random as Self {
                    0 => 1,
                    other => other,
                }
            }

            /// Odd: the factors 2 of many even numbers would make every product 0.
            fn factor(random: u64) -> Self {
                match random as Self | 1 {
                    1 => 3,
                    other => other,
                }
            }

            fn ordered(random: u64, high: bool, _: u64) -> Self {
                const TOP: $bits = 1 << (<$bits>::BITS - 1);
                let unsigned = random as $bits & !TOP | if high { TOP } else { 0 };
                // What is the upper half without a sign is the positive half with one.
                let bits = if Self::MIN == 0 { unsigned } else { unsigned ^ TOP };
                bits as Self
            }

            fn sum(summands: impl Iterator<Item = Self>) -> Self {
                summands.fold(0, Self::wrapping_add)
            }

            fn product(factors: impl Iterator<Item = Self>) -> Self {
                factors.fold(1, Self::wrapping_mul)
            }

            fn divided(self, by: u32) -> Self {
                (i128::from(self) / i128::from(by)) as Self
            }
        }
    )*};
}

integer_elements!(
    i8 as u8, i16 as u16, i32 as u32, i64 as u64, u8 as u8, u16 as u16, u32 as u32, u64 as u64
);

/// Floats are exact as long as every partial result is: sums of small integers below the first
/// that the mantissa cannot hold, and products of powers of two within the range of exponents.
/// Where too many ranks would leave it, they take turns.
macro_rules! float_elements {
    ($($t:ty: $from:expr, $to:expr, mantissa $digits:expr, exponent $exponent:expr);* $(;)?) => {$(
        impl Element for $t {
            const ZERO: Self = Self::from_bits(0);
            const ONE: Self = $from(1.0);

            /// Between 0.5 and 1.5.
            fn any(rank: Rank, position: u64) -> Self {
                $from(0.5 + (mix(rank, position) >> 11) as f64 / (1u64 << 53) as f64)
            }

            fn sum_turns(ranks: u64) -> (u64, u64) {
                /// Summands of fewer values could not be told from one another.
                const VALUES: u64 = 16;
                let limit = 1u64 << $digits;
                let most = (limit / ranks).max(VALUES);
                (ranks.div_ceil(limit / most), most)
            }

            /// A factor moves the exponent by at most 2, so that half as many as there are
            /// exponents on either side of 0 can never leave the range.
            fn product_turns(ranks: u64) -> u64 {
                ranks.div_ceil($exponent / 2)
            }

            fn summand(random: u64, most: u64) -> Self {
                $from((1 + random % most) as f64)
            }

            /// A quarter, a half, 2 or 4.
            fn factor(random: u64) -> Self {
                $from([0.25, 0.5, 2.0, 4.0][(random % 4) as usize])
            }

            /// At odd positions all values are negative.
            fn ordered(random: u64, high: bool, position: u64) -> Self {
                let half = 1i64 << ($digits - 1);
                let value = (random % half as u64) as i64 + if high { half } else { 0 };
                $from((value - 2 * half * (position % 2) as i64) as f64)
            }

            fn sum(summands: impl Iterator<Item = Self>) -> Self {
                $from(summands.map($to).sum::<f64>())
            }

            fn product(factors: impl Iterator<Item = Self>) -> Self {
                $from(factors.map($to).product::<f64>())
            }

            fn divided(self, by: u32) -> Self {
                $from($to(self) / f64::from(by))
            }
        }
    )*};
}

float_elements! {
    f16: f16::from_f64_const, f64::from, mantissa f16::MANTISSA_DIGITS, exponent 14;
    bf16: bf16::from_f64_const, f64::from, mantissa bf16::MANTISSA_DIGITS, exponent 126;
    f32: to_f32, f64::from, mantissa f32::MANTISSA_DIGITS, exponent 126;
    f64: std::convert::identity, std::convert::identity, mantissa f64::MANTISSA_DIGITS, exponent 1022;
}

const fn to_f32(number: f64) -> f32 {
    number as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANKS: [u32; 7] = [1, 2, 3, 8, 64, 300, 4096];

    #[test]
    fn every_byte_is_in_the_sum() {
        let mut bytes = vec![0; 21];
        assert_eq!(sum_u64(&bytes[..0]), 0);
        fill(&mut bytes, DataType::U8, Rank(1), 0);
        for length in 0..bytes.len() {
            let sum = sum_u64(&bytes[..length]);
            for at in 0..length {
                let mut changed = bytes[..length].to_vec();
                changed[at] ^= 1;
                assert_ne!(sum_u64(&changed), sum, "{at} of {length}");
            }
        }
    }

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

    /// The arithmetic of the type itself, as a rank would do it: every step is rounded.
    trait Arithmetic: Element {
        fn combine(self, other: Self, redop: ReduceOp) -> Self;
    }

    macro_rules! integer_arithmetic {
        ($($t:ty),*) => {$(
            impl Arithmetic for $t {
                fn combine(self, other: Self, redop: ReduceOp) -> Self {
                    match redop {
                        ReduceOp::Sum => self.wrapping_add(other),
                        ReduceOp::Prod => self.wrapping_mul(other),
                        ReduceOp::Max => self.max(other),
                        ReduceOp::Min => self.min(other),
                    }
                }
            }
        )*};
    }

    macro_rules! float_arithmetic {
        ($($t:ty),*) => {$(
            impl Arithmetic for $t {
                fn combine(self, other: Self, redop: ReduceOp) -> Self {
                    match redop {
                        ReduceOp::Sum => self + other,
                        ReduceOp::Prod => self * other,
                        ReduceOp::Max => self.max(other),
                        ReduceOp::Min => self.min(other),
                    }
                }
            }
        )*};
    }

    integer_arithmetic!(i8, i16, i32, i64, u8, u16, u32, u64);
    float_arithmetic!(f16, bf16, f32, f64);

    /// Each half for itself, and then both.
    fn in_a_tree<T: Arithmetic>(inputs: &[T], redop: ReduceOp) -> T {
        match inputs {
            [one] => *one,
            _ => {
                let (left, right) = inputs.split_at(inputs.len() / 2);
                in_a_tree(left, redop).combine(in_a_tree(right, redop), redop)
            }
        }
    }

    fn in_a_row<T: Arithmetic>(inputs: &[T], redop: ReduceOp) -> T {
        let row = inputs.iter().copied();
        row.reduce(|a, b| a.combine(b, redop)).unwrap()
    }

    fn backwards<T: Arithmetic>(inputs: &[T], redop: ReduceOp) -> T {
        let row = inputs.iter().rev().copied();
        row.reduce(|a, b| a.combine(b, redop)).unwrap()
    }

    /// How a reduction can be wrong.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Fault {
        Dropped,
        Doubled,
        /// One rank's contribution of the next position.
        Shifted,
        /// The neighbour's contribution instead of the rank's own.
        Swapped,
    }

    fn with_fault<T: Element>(
        terms: &Terms<T>,
        inputs: &mut Vec<T>,
        fault: Fault,
        victim: u32,
        position: u64,
    ) {
        let at = victim as usize;
        match fault {
            Fault::Dropped => {
                inputs.remove(at);
            }
            Fault::Doubled => inputs.push(inputs[at]),
            Fault::Shifted => inputs[at] = terms.input(Rank(victim), position + 1),
            Fault::Swapped => inputs[at] = inputs[(at + 1) % inputs.len()],
        }
    }

    /// Runs a check on each type, operation and number of ranks.
    macro_rules! for_each_reduction {
        (|$reduction:ident, $terms:ident, $t:ident| $check:expr) => {
            for dtype in DataType::ALL {
                for redop in ReduceOp::ALL {
                    for ranks in RANKS {
                        let $reduction = Combination {
                            dtype,
                            redop: redop.into(),
                            ranks,
                        };
                        with_type!(dtype, $t => {
                            let $terms = Terms::<$t>::new(redop.into(), ranks);
                            $check
                        });
                    }
                }
            }
        };
    }

    #[test]
    fn results_are_exact_in_any_order() {
        for_each_reduction!(|reduction, terms, T| {
            for first in [0u64, 1_000_003] {
                for order in [in_a_row::<T>, backwards::<T>, in_a_tree::<T>] {
                    let buffer: Vec<u8> = (first..first + 8)
                        .flat_map(|position| {
                            let inputs: Vec<T> = (0..reduction.ranks)
                                .map(|rank| terms.input(Rank(rank), position))
                                .collect();
                            order(&inputs, reduction.redop.op()).to_ne_bytes()
                        })
                        .collect();
                    assert_eq!(reduction.wrong(&buffer, first), 0, "{reduction:?}");
                }
            }
        });
    }

    #[test]
    fn one_ranks_missing_double_or_misplaced_contribution_is_noticed() {
        for_each_reduction!(|reduction, terms, T| {
            let ranks = reduction.ranks;
            for victim in [0, ranks / 2, ranks - 1] {
                // As many elements as there are ranks give everybody a turn.
                let first = (0..u64::from(ranks))
                    .find(|&position| terms.has_turn(Rank(victim), position))
                    .unwrap();
                for fault in [
                    Fault::Dropped,
                    Fault::Doubled,
                    Fault::Shifted,
                    Fault::Swapped,
                ] {
                    let lasting = matches!(reduction.redop, Reduction::Max | Reduction::Min);
                    if (ranks == 1 && fault != Fault::Shifted)
                        || (lasting && fault == Fault::Doubled)
                    {
                        // Nobody else is there; twice the maximum is the maximum.
                        continue;
                    }
                    let buffer: Vec<u8> = (first..first + 8)
                        .flat_map(|position| {
                            let mut inputs: Vec<T> = (0..ranks)
                                .map(|rank| terms.input(Rank(rank), position))
                                .collect();
                            with_fault(&terms, &mut inputs, fault, victim, position);
                            in_a_row(&inputs, reduction.redop.op()).to_ne_bytes()
                        })
                        .collect();
                    assert!(
                        reduction.wrong(&buffer, first) > 0,
                        "{reduction:?}: {fault:?} of {victim} from {first} on"
                    );
                }
            }
        });
    }

    /// With few ranks a single element shows each missing contribution to a sum or product.
    #[test]
    fn few_ranks_all_contribute_everywhere() {
        for dtype in DataType::ALL {
            for redop in [ReduceOp::Sum, ReduceOp::Prod] {
                with_type!(dtype, T => {
                    assert_eq!(Terms::<T>::new(redop.into(), 7).turns, 1, "{dtype} {redop}");
                });
            }
        }
        assert_eq!(Terms::<f32>::new(Reduction::Sum, 4096).turns, 1);
    }

    #[test]
    fn filled_buffers_are_what_results_are_made_of() {
        for dtype in DataType::ALL {
            for redop in Reduction::ALL {
                let mut buffer = vec![0; 64 * dtype.size()];
                let reduction = |ranks| Combination {
                    dtype,
                    redop,
                    ranks,
                };
                reduction(1).fill(&mut buffer, Rank(0), 5);
                assert_eq!(reduction(1).wrong(&buffer, 5), 0, "{dtype} {redop}");
                assert!(reduction(1).wrong(&buffer, 6) > 32, "{dtype} {redop}");
                assert!(reduction(2).wrong(&buffer, 5) > 10, "{dtype} {redop}");
                buffer[63 * dtype.size()] ^= 1;
                assert_eq!(reduction(1).wrong(&buffer, 5), 1, "{dtype} {redop}");
            }
        }
    }
}
