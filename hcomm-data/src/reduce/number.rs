//! What `op` means for one pair of elements.
//!
//! * Integers wrap around.
//! * Floats are rounded to nearest, ties to even. The 16-bit ones are computed in `f32`, whose 24
//!   bits of precision are more than twice theirs plus two, so rounding twice is rounding once.
//! * Max and min of floats: if either element is a NaN, so is the result; −0 is less than +0.
//!
//! All of it is written without branches, so that the loops around it become vector code.

/// A type of elements as it lies in memory, and the type in which it is computed.
pub(super) trait Number: Copy {
    /// What it is computed in.
    type Wide: Arithmetic;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

/// The four operations.
pub(super) trait Arithmetic: Copy {
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
}

/// An operation as a type, so that each loop is compiled for one.
pub(super) trait Combine {
    fn combine<T: Arithmetic>(x: T, y: T) -> T;

    #[inline(always)]
    fn elements<T: Number>(x: T, y: T) -> T {
        T::narrow(Self::combine(x.widen(), y.widen()))
    }
}

macro_rules! operations {
    ($($name:ident => $method:ident),*) => {$(
        pub(super) enum $name {}
        impl Combine for $name {
            #[inline(always)]
            fn combine<T: Arithmetic>(x: T, y: T) -> T {
                x.$method(y)
            }
        }
    )*};
}

operations!(Sum => sum, Prod => prod, Max => max, Min => min);

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Number for $int {
            type Wide = Self;
            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(wide: Self) -> Self {
                wide
            }
        }
        impl Arithmetic for $int {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
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
            type Wide = Self;
            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(wide: Self) -> Self {
                wide
            }
        }
        impl Arithmetic for $float {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self * other
            }
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
pub(super) struct F16(pub(super) u16);

impl Number for F16 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        let magnitude = u32::from(self.0 & 0x7fff) << 13;
        // The exponent counts from 15 there and from 127 here: 2^112 makes up for it, and turns
        // what is subnormal there into normal numbers.
        let scaled = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
        let special = if magnitude >= 0x0f80_0000 {
            0x7f80_0000
        } else {
            0
        };
        let sign = u32::from(self.0 & 0x8000) << 16;
        f32::from_bits(scaled.to_bits() | special | sign)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> Self {
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
        Self((value | ((bits >> 16) & 0x8000)) as u16)
    }
}

/// The upper half of a single-precision number, as bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bf16(pub(super) u16);

impl Number for Bf16 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        let bits = wide.to_bits();
        let odd = (bits >> 16) & 1;
        let rounded = bits.wrapping_add(0x7fff + odd) >> 16;
        // Rounding could carry a NaN into infinity.
        let nan = (bits >> 16) | 0x0040;
        let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
        Self(if is_nan { nan } else { rounded } as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_floats_widen_and_narrow_exactly() {
        for bits in 0..=u16::MAX {
            let half = half::f16::from_bits(bits).to_f32();
            let ours = F16(bits).widen();
            assert!(ours.to_bits() == half.to_bits() || (ours.is_nan() && half.is_nan()));
            let brain = half::bf16::from_bits(bits).to_f32();
            let ours = Bf16(bits).widen();
            assert!(ours.to_bits() == brain.to_bits() || (ours.is_nan() && brain.is_nan()));
            if !half.is_nan() {
                assert_eq!(F16::narrow(half).0, bits);
            }
            if !brain.is_nan() {
                assert_eq!(Bf16::narrow(brain).0, bits);
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
                let (half, ours) = (half::f16::from_f32_const(wide), F16::narrow(wide));
                assert!(
                    half.to_bits() == ours.0 || (half.is_nan() && ours.widen().is_nan()),
                    "{wide:e}"
                );
                let (brain, ours) = (half::bf16::from_f32(wide), Bf16::narrow(wide));
                assert!(
                    brain.to_bits() == ours.0 || (brain.is_nan() && ours.widen().is_nan()),
                    "{wide:e}"
                );
            }
        }
    }

    #[test]
    fn extremes_know_nan_and_the_sign_of_zero() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for (x, y) in [(nan, 1.0), (1.0, nan), (nan, -inf), (-inf, nan), (nan, nan)] {
            assert!(Arithmetic::max(x, y).is_nan() && Arithmetic::min(x, y).is_nan());
        }
        for (x, y) in [(0.0f32, -0.0f32), (-0.0, 0.0)] {
            assert!(Arithmetic::max(x, y).is_sign_positive());
            assert!(Arithmetic::min(x, y).is_sign_negative());
        }
        assert_eq!(Arithmetic::max(-inf, 1.0), 1.0);
        assert_eq!(Arithmetic::min(2.0f64, 1.0), 1.0);
    }
}
