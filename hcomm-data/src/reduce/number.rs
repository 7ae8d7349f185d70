//! What `op` means for one pair of elements; [`reduce`](super::reduce) says it for users.
//!
//! The 16-bit floats are added and multiplied in `f32`, whose 24 bits of precision are more than
//! twice theirs plus two, so rounding twice is rounding once. Two of them fill a word, and loops
//! over such words need no lanes of another width. Their max and min are those of integers.
//!
//! All of it is written without branches, so that the loops around it become vector code.

/// A type of elements as it lies in memory.
pub(super) trait Number: Rounded + Ordered {
    /// What loops over sums and products go by: as many elements as fit a lane that can be
    /// computed in.
    type Unit: Rounded;
    /// Whether it is the half precision that processors convert.
    const IS_HALF: bool = false;
}

/// What has sums and products.
pub(super) trait Rounded: Copy {
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
}

/// What has a larger and a smaller one.
pub(super) trait Ordered: Copy {
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
}

/// An operation as a type, so that each loop is compiled for one.
pub(super) trait Combine {
    /// Of one element.
    fn one<T: Number>(x: T, y: T) -> T;

    /// Of a line. Nothing is stored before all is loaded.
    ///
    /// # Safety
    /// As for [`each`], for `bytes` bytes.
    unsafe fn line<T: Number>(to: *mut u8, a: *const u8, b: *const u8, bytes: usize);

    /// Of the single-precision numbers that halves are converted to: sums and products only.
    const KIND: Kind;
}

/// Sum, product, or one of the two operands.
#[derive(PartialEq, Eq)]
pub(super) enum Kind {
    Sum,
    Prod,
    Choice,
}

/// `to[i] = f(a[i], b[i])` over `bytes` bytes of units.
///
/// # Safety
/// `a` and `b` are readable and `to` is writable for so many bytes; `to` overlaps neither.
#[inline(always)]
unsafe fn each<U: Copy>(
    to: *mut u8,
    a: *const u8,
    b: *const u8,
    bytes: usize,
    f: impl Fn(U, U) -> U,
) {
    let (to, a, b) = (to.cast::<U>(), a.cast::<U>(), b.cast::<U>());
    // `wrapping_add` is `add` without the checks of debug builds, which would keep this from
    // becoming vector code there.
    for i in 0..bytes / size_of::<U>() {
        // SAFETY: unit `i` is inside the ranges.
        unsafe {
            let value = f(
                a.wrapping_add(i).read_unaligned(),
                b.wrapping_add(i).read_unaligned(),
            );
            to.wrapping_add(i).write_unaligned(value);
        }
    }
}

macro_rules! operations {
    ($($name:ident: $method:ident by $unit:ty, $kind:ident;)*) => {$(
        pub(super) enum $name {}
        impl Combine for $name {
            const KIND: Kind = Kind::$kind;

            #[inline(always)]
            fn one<T: Number>(x: T, y: T) -> T {
                x.$method(y)
            }

            #[inline(always)]
            unsafe fn line<T: Number>(to: *mut u8, a: *const u8, b: *const u8, bytes: usize) {
                // SAFETY: the caller's promise.
                unsafe { each::<$unit>(to, a, b, bytes, |x, y| x.$method(y)) }
            }
        }
    )*};
}

operations! {
    Sum: sum by T::Unit, Sum;
    Prod: prod by T::Unit, Prod;
    Max: max by T, Choice;
    Min: min by T, Choice;
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Number for $int {
            type Unit = Self;
        }
        impl Rounded for $int {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }
        impl Ordered for $int {
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                if self > other { self } else { other }
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                if self < other { self } else { other }
            }
        }
    )*};
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($float:ty),*) => {$(
        impl Number for $float {
            type Unit = Self;
        }
        impl Rounded for $float {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self * other
            }
        }
        impl Ordered for $float {
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                let larger = if self > other { self } else { other };
                // Equal numbers have equal bits, but for zeros: there a plus wins.
                let equal = Self::from_bits(self.to_bits() & other.to_bits());
                let number = if self == other { equal } else { larger };
                // With a NaN in `other`, `larger` is `other` already.
                if self.is_nan() { self } else { number }
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                let smaller = if self < other { self } else { other };
                let equal = Self::from_bits(self.to_bits() | other.to_bits());
                let number = if self == other { equal } else { smaller };
                if self.is_nan() { self } else { number }
            }
        }
    )*};
}

floats!(f32, f64);

/// Half precision, as bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F16(u16);

/// Two of them.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F16s(u32);

/// The upper half of a single-precision number, as bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bf16(u16);

/// Two of them.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bf16s(u32);

impl F16 {
    const INFINITY: u16 = 0x7c00;
    const QUIET: u16 = 0x0200;

    /// From the lower bits of a word.
    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        let magnitude = (bits & 0x7fff) << 13;
        // The exponent counts from 15 there and from 127 here: 2^112 makes up for it, and turns
        // what is subnormal there into normal numbers.
        let scaled = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
        let special = if magnitude >= 0x0f80_0000 {
            0x7f80_0000
        } else {
            0
        };
        let sign = (bits & 0x8000) << 16;
        f32::from_bits(scaled.to_bits() | special | sign)
    }

    /// To the lower bits of a word.
    #[inline(always)]
    fn narrow(wide: f32) -> u32 {
        let bits = wide.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        // Below 2^-14 the result is subnormal: a half has the same last place, 2^-24, so adding
        // it rounds at the right bit.
        let subnormal = (f32::from_bits(magnitude) + 0.5)
            .to_bits()
            .wrapping_sub(0x3f00_0000);
        let odd = (magnitude >> 13) & 1;
        let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0x0fff + odd) >> 13;
        let finite = if magnitude < 113 << 23 {
            subnormal
        } else {
            normal
        };
        let nan = 0x7e00 | ((magnitude >> 13) & 0x01ff);
        let special = if magnitude > 0x7f80_0000 { nan } else { 0x7c00 };
        let value = if magnitude >= 0x4780_0000 {
            special
        } else {
            finite
        };
        value | ((bits >> 16) & 0x8000)
    }
}

impl Bf16 {
    const INFINITY: u16 = 0x7f80;
    const QUIET: u16 = 0x0040;

    /// From the lower bits of a word.
    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        f32::from_bits(bits << 16)
    }

    /// To the upper bits of a word; the lower ones are anything.
    #[inline(always)]
    fn round(wide: f32) -> u32 {
        let bits = wide.to_bits();
        let odd = (bits >> 16) & 1;
        let rounded = bits.wrapping_add(0x7fff + odd);
        // Rounding could carry a NaN into infinity.
        let nan = bits | 0x0040_0000;
        if wide.is_nan() { nan } else { rounded }
    }

    /// To the lower bits of a word.
    #[inline(always)]
    fn narrow(wide: f32) -> u32 {
        Self::round(wide) >> 16
    }
}

/// In place of the bits: the lower two bytes of a word, and the upper two.
macro_rules! pairs {
    ($($pair:ident of $short:ident { $($method:ident: $op:tt),* } joined by $join:expr;)*) => {$(
        impl Rounded for $pair {
            $(#[inline(always)]
            fn $method(self, other: Self) -> Self {
                let lower = $short::widen(self.0 & 0xffff) $op $short::widen(other.0 & 0xffff);
                let upper = $short::widen(self.0 >> 16) $op $short::widen(other.0 >> 16);
                Self($join(lower, upper))
            })*
        }

        impl Rounded for $short {
            $(#[inline(always)]
            fn $method(self, other: Self) -> Self {
                let wide = $short::widen(self.0.into()) $op $short::widen(other.0.into());
                Self($short::narrow(wide) as u16)
            })*
        }

        impl $short {
            /// A number with the order of the floats: sign and magnitude become two's complement.
            #[inline(always)]
            fn key(self) -> i16 {
                let bits = self.0 as i16;
                bits ^ ((bits >> 15) & 0x7fff)
            }

            /// A NaN among the two, the first one if there are two, made quiet; else the number.
            #[inline(always)]
            fn nan_or(self, other: Self, number: Self) -> Self {
                let is_nan = |x: Self| (x.0 & 0x7fff) as i16 > Self::INFINITY as i16;
                let second = if is_nan(other) { other.0 | Self::QUIET } else { number.0 };
                Self(if is_nan(self) { self.0 | Self::QUIET } else { second })
            }
        }

        impl Ordered for $short {
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                let larger = if self.key() > other.key() { self } else { other };
                self.nan_or(other, larger)
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                let smaller = if self.key() < other.key() { self } else { other };
                self.nan_or(other, smaller)
            }
        }
    )*};
}

pairs! {
    F16s of F16 { sum: +, prod: * } joined by |lower, upper| {
        F16::narrow(lower) | F16::narrow(upper) << 16
    };
    Bf16s of Bf16 { sum: +, prod: * } joined by |lower, upper| {
        Bf16::narrow(lower) | (Bf16::round(upper) & 0xffff_0000)
    };
}

impl Number for F16 {
    type Unit = F16s;
    const IS_HALF: bool = true;
}

impl Number for Bf16 {
    type Unit = Bf16s;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_floats_widen_and_narrow_exactly() {
        for bits in 0..=u16::MAX {
            let half = half::f16::from_bits(bits).to_f32();
            let ours = F16::widen(bits.into());
            assert!(ours.to_bits() == half.to_bits() || (ours.is_nan() && half.is_nan()));
            let brain = half::bf16::from_bits(bits).to_f32();
            let ours = Bf16::widen(bits.into());
            assert!(ours.to_bits() == brain.to_bits() || (ours.is_nan() && brain.is_nan()));
            if !half.is_nan() {
                assert_eq!(F16::narrow(half), u32::from(bits));
            }
            if !brain.is_nan() {
                assert_eq!(Bf16::narrow(brain), u32::from(bits));
            }
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        // Every 16-bit upper half with lower halves around each tie of both formats.
        let step = if cfg!(miri) { 4099 } else { 1 };
        for upper in (0..=u16::MAX).step_by(step) {
            for lower in [
                0u16, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001,
                0xffff,
            ] {
                let wide = f32::from_bits(u32::from(upper) << 16 | u32::from(lower));
                let (half, ours) = (half::f16::from_f32_const(wide), F16::narrow(wide) as u16);
                assert!(
                    half.to_bits() == ours
                        || (half.is_nan() && half::f16::from_bits(ours).is_nan()),
                    "{wide:e}"
                );
                let (brain, ours) = (half::bf16::from_f32(wide), Bf16::narrow(wide) as u16);
                assert!(
                    brain.to_bits() == ours
                        || (brain.is_nan() && half::bf16::from_bits(ours).is_nan()),
                    "{wide:e}"
                );
            }
        }
    }

    #[test]
    fn extremes_know_nan_and_the_sign_of_zero() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for (x, y) in [(nan, 1.0), (1.0, nan), (nan, -inf), (-inf, nan), (nan, nan)] {
            assert!(Ordered::max(x, y).is_nan() && Ordered::min(x, y).is_nan());
        }
        for (x, y) in [(0.0f32, -0.0f32), (-0.0, 0.0)] {
            assert!(Ordered::max(x, y).is_sign_positive());
            assert!(Ordered::min(x, y).is_sign_negative());
        }
        assert_eq!(Ordered::max(-inf, 1.0), 1.0);
        assert_eq!(Ordered::min(2.0f64, 1.0), 1.0);
    }
}
