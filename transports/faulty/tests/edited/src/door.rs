//! Both doors, as the macro of the ABI would export them.
#![allow(unsafe_code)]

use core::ptr::from_ref;

use abi_stable::prefix_type::PrefixTypeTrait as _;
use hcomm_transport_abi::TransportV1;
use hcomm_transport_abi::shims::Tables;

use crate::export::Loop;
use crate::tables;

static TABLE: TransportV1 = TransportV1 {
    name: c"edited".as_ptr(),
    ..Tables::<Loop>::TRANSPORT
};

#[unsafe(no_mangle)]
extern "C" fn hcomm_transport_v1() -> *const TransportV1 {
    &raw const TABLE
}

extern "C" fn edited_table() -> &'static tables::TransportV1 {
    // SAFETY: the edit kept the size and place of every field; function pointers differ in what
    // their arguments point to, and nobody calls them through this type.
    unsafe { &*from_ref(&TABLE).cast() }
}

#[abi_stable::export_root_module]
fn rust_door() -> tables::RustDoorRef {
    tables::RustDoor {
        transport_v1: edited_table,
    }
    .leak_into_prefix()
}
