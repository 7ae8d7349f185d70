//! A reduce kernel of the suite's own: slow, plain, independent of the library's.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::slice;

use hcomm_transport_abi::{STATUS_INVALID_ARGUMENT, STATUS_OK};
use hcomm_types::{DataType, ReduceOp, bf16, f16};

/// `a op b` of one element, as bytes.
pub(crate) fn combine(dtype: DataType, redop: ReduceOp, a: &[u8], b: &[u8]) -> [u8; 8] {
    macro_rules! integer {
        ($type:ty) => {{
            let (a, b) = (
                <$type>::from_ne_bytes(first(a)),
                <$type>::from_ne_bytes(first(b)),
            );
            padded(
                &match redop {
                    ReduceOp::Sum => a.wrapping_add(b),
                    ReduceOp::Prod => a.wrapping_mul(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Min => a.min(b),
                }
                .to_ne_bytes(),
            )
        }};
    }
    macro_rules! float {
        ($type:ty, $wide:ty, $narrow:expr) => {{
            let (a, b) = (
                <$type>::from_ne_bytes(first(a)),
                <$type>::from_ne_bytes(first(b)),
            );
            let (a, b) = (<$wide>::from(a), <$wide>::from(b));
            let narrow: fn($wide) -> $type = $narrow;
            padded(
                &narrow(match redop {
                    ReduceOp::Sum => a + b,
                    ReduceOp::Prod => a * b,
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Min => a.min(b),
                })
                .to_ne_bytes(),
            )
        }};
    }
    match dtype {
        DataType::I8 => integer!(i8),
        DataType::I16 => integer!(i16),
        DataType::I32 => integer!(i32),
        DataType::I64 => integer!(i64),
        DataType::U8 => integer!(u8),
        DataType::U16 => integer!(u16),
        DataType::U32 => integer!(u32),
        DataType::U64 => integer!(u64),
        DataType::F16 => float!(f16, f32, f16::from_f32),
        DataType::Bf16 => float!(bf16, f32, bf16::from_f32),
        DataType::F32 => float!(f32, f32, |x| x),
        DataType::F64 => float!(f64, f64, |x| x),
    }
}

fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[..N]);
    out
}

fn padded(bytes: &[u8]) -> [u8; 8] {
    let mut out = [0; 8];
    out[..bytes.len()].copy_from_slice(bytes);
    out
}

/// What the suite gives to plugins as the host's kernel.
///
/// # Safety
/// That of [`HostV1::reduce`](hcomm_transport_abi::HostV1::reduce).
pub(crate) unsafe extern "C" fn reduce(
    dst: *mut c_void,
    a: *const c_void,
    b: *const c_void,
    count: u64,
    dtype: u32,
    redop: u32,
) -> i32 {
    let (Some(dtype), Some(redop)) = (DataType::from_number(dtype), ReduceOp::from_number(redop))
    else {
        return STATUS_INVALID_ARGUMENT;
    };
    let size = dtype.size();
    for at in (0..count as usize).map(|index| index * size) {
        // SAFETY: the caller's promise covers `count` elements; the element is copied out before
        // the destination, which may be an operand, is written.
        unsafe {
            let left: Vec<u8> = slice::from_raw_parts(a.cast::<u8>().add(at), size).to_vec();
            let right: Vec<u8> = slice::from_raw_parts(b.cast::<u8>().add(at), size).to_vec();
            let made = combine(dtype, redop, &left, &right);
            dst.cast::<u8>()
                .add(at)
                .copy_from_nonoverlapping(made.as_ptr(), size);
        }
    }
    STATUS_OK
}
