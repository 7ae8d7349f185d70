//! The door, and the tables that are wrong. A C door alone: the Rust one could not return null.
#![allow(unsafe_code)]

use core::ffi::c_char;
use core::ptr::{from_ref, null};
use std::sync::OnceLock;

use hcomm_transport_abi::shims::Tables;
use hcomm_transport_abi::{
    Channel, DataOpsV1, Device, Header, MAGIC, MAJOR, STATUS_OK, TransportV1,
};

use crate::faulty::Faulty;
use crate::wrong::Wrong;

const RIGHT: TransportV1 = Tables::<Faulty>::TRANSPORT;

static AS_IT_SHOULD_BE: TransportV1 = RIGHT;
static OTHER_MAGIC: TransportV1 = TransportV1 {
    header: Header {
        magic: MAGIC ^ 1,
        ..RIGHT.header
    },
    ..RIGHT
};
static OTHER_MAJOR: TransportV1 = TransportV1 {
    header: Header {
        major: MAJOR + 1,
        ..RIGHT.header
    },
    ..RIGHT
};
/// Really no more than this: whoever reads on reads what is not there.
static SHORT: Header = Header::of::<Header>();
static NULL_ENTRY: TransportV1 = TransportV1 {
    create_channel: None,
    ..RIGHT
};
static NULL_OPTIONAL: TransportV1 = TransportV1 {
    register: None,
    allocate: None,
    counters: None,
    describe: None,
    extension: None,
    ..RIGHT
};
static NULL_VENDOR: TransportV1 = TransportV1 {
    vendor: null(),
    ..RIGHT
};
static OTHER_NAME: TransportV1 = TransportV1 {
    name: c"flawless".as_ptr(),
    ..RIGHT
};
static NO_PROTOCOL: TransportV1 = TransportV1 {
    protocols: 1 << 31,
    ..RIGHT
};
static FALSE_CAPABILITY: TransportV1 = TransportV1 {
    register: None,
    allocate: None,
    ..RIGHT
};
static DESCRIBE_LONG: TransportV1 = TransportV1 {
    describe: Some(describe_beyond),
    ..RIGHT
};
static DESCRIBE_CUT: TransportV1 = TransportV1 {
    describe: Some(describe_in_halves),
    ..RIGHT
};
static OTHER_FAST_CALLS: TransportV1 = TransportV1 {
    open_device: Some(open_with_other_fast_calls),
    ..RIGHT
};

#[unsafe(no_mangle)]
extern "C" fn hcomm_transport_v1() -> *const TransportV1 {
    from_ref(match Wrong::asked() {
        Ok(Some(Wrong::NullTable)) => return null(),
        Ok(Some(Wrong::ShortTable)) => return from_ref(&SHORT).cast(),
        Ok(Some(Wrong::Magic)) => &OTHER_MAGIC,
        Ok(Some(Wrong::Major)) => &OTHER_MAJOR,
        Ok(Some(Wrong::NullEntry)) => &NULL_ENTRY,
        Ok(Some(Wrong::NullOptional)) => &NULL_OPTIONAL,
        Ok(Some(Wrong::NullVendor)) => &NULL_VENDOR,
        Ok(Some(Wrong::Name)) => &OTHER_NAME,
        Ok(Some(Wrong::NoProtocol)) => &NO_PROTOCOL,
        Ok(Some(Wrong::FalseCapability)) => &FALSE_CAPABILITY,
        Ok(Some(Wrong::DescribeLong)) => &DESCRIBE_LONG,
        Ok(Some(Wrong::DescribeCut)) => &DESCRIBE_CUT,
        Ok(Some(Wrong::FastMagic | Wrong::FastNullEntry)) => &OTHER_FAST_CALLS,
        // The rest goes wrong in init, or not at all.
        _ => &AS_IT_SHOULD_BE,
    })
}

/// Eight letters, whether there is room for them or not.
unsafe extern "C" fn describe_beyond(_: *mut Channel, text: *mut c_char, _: u32) -> u32 {
    const WORD: [u8; 8] = *b"too long";
    // SAFETY: not for every buffer, which is what is wrong; that of the suite has room.
    unsafe { text.copy_from(WORD.as_ptr().cast(), WORD.len()) };
    WORD.len() as u32
}

/// As much of a letter of two bytes as there is room for.
unsafe extern "C" fn describe_in_halves(_: *mut Channel, text: *mut c_char, capacity: u32) -> u32 {
    let letter = "µ".as_bytes();
    let bytes = letter.len().min(capacity as usize);
    // SAFETY: no more than there is room for.
    unsafe { text.copy_from(letter.as_ptr().cast(), bytes) };
    bytes as u32
}

/// Opens the device and gives a table of fast calls that is wrong.
unsafe extern "C" fn open_with_other_fast_calls(
    index: u32,
    device: *mut *mut Device,
    ops: *mut *const DataOpsV1,
) -> i32 {
    static WRONG: OnceLock<DataOpsV1> = OnceLock::new();
    let Some(open) = RIGHT.open_device else {
        return hcomm_transport_abi::STATUS_UNSUPPORTED;
    };
    // SAFETY: the arguments are handed on as they came.
    let status = unsafe { open(index, device, ops) };
    if status == STATUS_OK {
        // SAFETY: the call was a success, so `ops` was written and leads to a table that stays.
        let right = unsafe { &**ops };
        let wrong = WRONG.get_or_init(|| {
            let mut wrong = DataOpsV1 { ..*right };
            if Wrong::FastMagic.is_asked() {
                wrong.header.magic = MAGIC ^ 1;
            } else {
                wrong.post = None;
            }
            wrong
        });
        // SAFETY: as above.
        unsafe { *ops = wrong };
    }
    status
}
