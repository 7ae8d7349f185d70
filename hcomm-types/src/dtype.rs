//! What is moved and how it is combined.

use std::fmt;
use std::str::FromStr;

pub use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// Type of one element.
///
/// The discriminants are part of the plugin ABI and of the wire format: they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum DataType {
    /// Signed 8-bit integer.
    #[serde(rename = "int8")]
    I8 = 0,
    /// Signed 16-bit integer.
    #[serde(rename = "int16")]
    I16 = 1,
    /// Signed 32-bit integer.
    #[serde(rename = "int32")]
    I32 = 2,
    /// Signed 64-bit integer.
    #[serde(rename = "int64")]
    I64 = 3,
    /// Unsigned 8-bit integer.
    #[serde(rename = "uint8")]
    U8 = 4,
    /// Unsigned 16-bit integer.
    #[serde(rename = "uint16")]
    U16 = 5,
    /// Unsigned 32-bit integer.
    #[serde(rename = "uint32")]
    U32 = 6,
    /// Unsigned 64-bit integer.
    #[serde(rename = "uint64")]
    U64 = 7,
    /// IEEE 754 half precision.
    #[serde(rename = "fp16")]
    F16 = 8,
    /// Upper half of a single-precision number.
    #[serde(rename = "bf16")]
    Bf16 = 9,
    /// IEEE 754 single precision.
    #[serde(rename = "fp32")]
    F32 = 10,
    /// IEEE 754 double precision.
    #[serde(rename = "fp64")]
    F64 = 11,
}

impl DataType {
    /// All types, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::F16,
        Self::Bf16,
        Self::F32,
        Self::F64,
    ];

    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Name in tables, files and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::U8 => "uint8",
            Self::U16 => "uint16",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
            Self::F16 => "fp16",
            Self::Bf16 => "bf16",
            Self::F32 => "fp32",
            Self::F64 => "fp64",
        }
    }

    /// The type with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DataType {
    type Err = ParseNameError;

    /// Reads the names of [`DataType::name`] and the Rust and C spellings of the same types.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "int8" | "i8" | "char" => Self::I8,
            "int16" | "i16" => Self::I16,
            "int32" | "i32" | "int" => Self::I32,
            "int64" | "i64" => Self::I64,
            "uint8" | "u8" => Self::U8,
            "uint16" | "u16" => Self::U16,
            "uint32" | "u32" => Self::U32,
            "uint64" | "u64" => Self::U64,
            "fp16" | "f16" | "float16" | "half" => Self::F16,
            "bf16" | "bfp16" | "bfloat16" => Self::Bf16,
            "fp32" | "f32" | "float32" | "float" => Self::F32,
            "fp64" | "f64" | "float64" | "double" => Self::F64,
            _ => {
                return Err(ParseNameError {
                    what: "data type",
                    text: text.to_owned(),
                    known: "int8, int16, int32, int64, uint8, uint16, uint32, uint64, fp16, bf16, fp32, fp64",
                });
            }
        })
    }
}

/// How two elements become one.
///
/// The discriminants are part of the plugin ABI and of the wire format: they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u32)]
pub enum ReduceOp {
    /// Sum; integers wrap around.
    Sum = 0,
    /// Product; integers wrap around.
    Prod = 1,
    /// The larger one.
    Max = 2,
    /// The smaller one.
    Min = 3,
}

impl ReduceOp {
    /// All operations, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Sum, Self::Prod, Self::Max, Self::Min];

    /// Name in tables, files and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
        }
    }

    /// The operation with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|op| op.name() == text)
            .ok_or_else(|| ParseNameError {
                what: "reduce operation",
                text: text.to_owned(),
                known: "sum, prod, max, min",
            })
    }
}

/// How a collective operation combines the elements of all ranks: as the data plane does, or to
/// their average, which is made only when all have been summed up.
///
/// The discriminants are those of [`ReduceOp`] and part of the wire format: they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u32)]
pub enum Reduction {
    /// Sum; integers wrap around.
    Sum = 0,
    /// Product; integers wrap around.
    Prod = 1,
    /// The larger one.
    Max = 2,
    /// The smaller one.
    Min = 3,
    /// The sum, divided by the number of ranks: that of integers, which may have wrapped around,
    /// towards zero; that of floats rounded once more. A sum that is too large for its type stays so.
    Avg = 4,
}

impl Reduction {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg];

    /// How two elements become one.
    #[must_use]
    pub const fn op(self) -> ReduceOp {
        match self {
            Self::Sum | Self::Avg => ReduceOp::Sum,
            Self::Prod => ReduceOp::Prod,
            Self::Max => ReduceOp::Max,
            Self::Min => ReduceOp::Min,
        }
    }

    /// Name in tables, files and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Avg => "avg",
            _ => self.op().name(),
        }
    }

    /// The one with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}

impl From<ReduceOp> for Reduction {
    fn from(op: ReduceOp) -> Self {
        match op {
            ReduceOp::Sum => Self::Sum,
            ReduceOp::Prod => Self::Prod,
            ReduceOp::Max => Self::Max,
            ReduceOp::Min => Self::Min,
        }
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Reduction {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|op| op.name() == text)
            .ok_or_else(|| ParseNameError {
                what: "reduction",
                text: text.to_owned(),
                known: "sum, prod, max, min, avg",
            })
    }
}

/// A name that stands for nothing known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} `{text}`; known: {known}")]
pub struct ParseNameError {
    /// What was read.
    pub what: &'static str,
    /// The text as given.
    pub text: String,
    /// The names that would have been understood.
    pub known: &'static str,
}

/// A Rust type that can be an element of a typed call.
pub trait Element: bytemuck::Pod + sealed::Sealed {
    /// Its data type.
    const DATA_TYPE: DataType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($rust:ty => $data_type:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DATA_TYPE: DataType = DataType::$data_type;
        }
    )*};
}

elements! {
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_go_both_ways() {
        for (number, dtype) in (0u32..).zip(DataType::ALL) {
            assert_eq!(dtype as u32, number);
            assert_eq!(DataType::from_number(number), Some(dtype));
            assert_eq!(dtype.name().parse(), Ok(dtype));
            assert_eq!(serde_json::to_value(dtype).unwrap(), dtype.name());
        }
        assert_eq!(DataType::from_number(12), None);
        for (number, op) in (0u32..).zip(ReduceOp::ALL) {
            assert_eq!(op as u32, number);
            assert_eq!(ReduceOp::from_number(number), Some(op));
            assert_eq!(op.name().parse(), Ok(op));
        }
        for (number, reduction) in (0u32..).zip(Reduction::ALL) {
            assert_eq!(reduction as u32, number);
            assert_eq!(Reduction::from_number(number), Some(reduction));
            assert_eq!(reduction.name().parse(), Ok(reduction));
            assert_eq!(serde_json::to_value(reduction).unwrap(), reduction.name());
            assert_eq!(
                reduction.op().name() == reduction.name(),
                reduction != Reduction::Avg
            );
        }
        for op in ReduceOp::ALL {
            assert_eq!(
                (Reduction::from(op).op(), op as u32),
                (op, Reduction::from(op) as u32)
            );
        }
        assert!(
            "fp8"
                .parse::<DataType>()
                .unwrap_err()
                .to_string()
                .contains("fp8")
        );
    }
}
