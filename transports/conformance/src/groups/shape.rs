//! Headers, strings, lists, attributes: what a plugin is before anything moves.

use std::collections::BTreeSet;
use std::path::Path;

use hcomm_transport::{Capabilities, DeviceInfo};
use hcomm_transport_abi::{Header, STATUS_OK, TransportV1};
use hcomm_types::Protocol;

use crate::case::{Case, Check, Each, check};
use crate::raw::Table;
use crate::subject::Door;
use crate::verdict::{Stop, ensure, ensure_eq, fail};

pub(crate) const CHECKS: &[Check] = &[
    check("table_header", Each::Plugin, table_header),
    check("table_strings", Each::Plugin, table_strings),
    check("table_entries", Each::Plugin, table_entries),
    check("fast_table_header", Each::Device, fast_table_header),
    check("device_list_is_stable", Each::Plugin, device_list_is_stable),
    check("device_attributes", Each::Plugin, device_attributes),
    check(
        "device_that_is_not_there",
        Each::Plugin,
        device_that_is_not_there,
    ),
    check("open_and_close_again", Each::Device, open_and_close_again),
];

fn devices(case: &Case) -> Result<Vec<DeviceInfo>, Stop> {
    Ok(case.info().plugin.devices()?)
}

fn table_header(case: &Case) -> Result<(), Stop> {
    let table = Table::of(case.subject())?;
    let (found, expected) = (table.0.header, Header::of::<TransportV1>());
    ensure_eq("magic", found.magic, expected.magic)?;
    ensure_eq("major", found.major, expected.major)?;
    ensure_eq("size", found.size, expected.size)?;
    ensure_eq("reserved", table.0.reserved, 0)?;
    ensure(table.is_stable(case.subject())?, || {
        "the door gives another table the second time".to_owned()
    })
}

fn table_strings(case: &Case) -> Result<(), Stop> {
    let table = Table::of(case.subject())?.0;
    for (what, pointer) in [
        ("name", table.name),
        ("vendor", table.vendor),
        ("version", table.version),
    ] {
        let text = Table::text(pointer).ok_or_else(|| fail(format!("{what} is not a text")))?;
        ensure(!text.is_empty() && text.len() < 64, || {
            format!("{what} has {} bytes: {text:?}", text.len())
        })?;
        ensure(!text.chars().any(char::is_control), || {
            format!("{what} has control characters: {text:?}")
        })?;
    }
    let name = Table::text(table.name).unwrap_or_default();
    ensure(
        name.bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
        || format!("name {name:?}: a file name and a list entry are made of it, so a-z, 0-9, _"),
    )?;
    if matches!(case.subject().door(), Door::File) {
        let file = case.subject().path().file_name().unwrap_or_default();
        let expected = format!("libhcomm_transport_{name}.so");
        ensure(file == expected.as_str(), || {
            format!("the file is {file:?}, the table's name makes it {expected}")
        })?;
    }
    Ok(())
}

fn table_entries(case: &Case) -> Result<(), Stop> {
    let table = Table::of(case.subject())?;
    ensure_eq("mandatory entries that are null", table.holes(), vec![])?;
    let known = (1u32 << Protocol::ALL.len()) - 1;
    ensure(
        table.0.protocols != 0 && table.0.protocols & !known == 0,
        || format!("protocols {:#x}, known are {known:#x}", table.0.protocols),
    )?;
    // Numbers that nobody has given to an extension.
    for id in [u32::MAX, u32::MAX - 1, 0x7fff_0000] {
        ensure(!table.has_extension(id), || {
            format!("it offers an extension {id:#x}, which does not exist")
        })?;
    }
    Ok(())
}

fn fast_table_header(case: &Case) -> Result<(), Stop> {
    let device = Table::of(case.subject())?.open(case.info().index)?;
    let expected = Header::of::<hcomm_transport_abi::DataOpsV1>();
    ensure_eq("magic", device.ops.header.magic, expected.magic)?;
    ensure_eq("major", device.ops.header.major, expected.major)?;
    ensure_eq("size", device.ops.header.size, expected.size)?;
    ensure_eq("close", device.close(), STATUS_OK)
}

fn device_list_is_stable(case: &Case) -> Result<(), Stop> {
    // Twice through the handles, with all that they show, and once after an open and close.
    let first = format!("{:?}", devices(case)?);
    ensure_eq(
        "second list",
        format!("{:?}", devices(case)?),
        first.clone(),
    )?;
    drop(case.info().open()?);
    ensure_eq("list after an open", format!("{:?}", devices(case)?), first)
}

fn device_attributes(case: &Case) -> Result<(), Stop> {
    let table = Table::of(case.subject())?;
    let mut names = BTreeSet::new();
    for info in devices(case)? {
        let at = |what: &str| format!("device {} ({}): {what}", info.index, info.name);
        ensure(names.insert(info.name.clone()), || at("a name twice"))?;
        let (status, attr) = table.query(info.index);
        ensure_eq(&at("query"), status, STATUS_OK)?;
        let has = info.capabilities;
        ensure(Capabilities::from_bits(attr.capabilities).is_some(), || {
            at(&format!(
                "unknown capability bits in {:#x}",
                attr.capabilities
            ))
        })?;
        for (flag, needs) in [
            (
                Capabilities::WRITE_NOTIFY,
                Capabilities::WRITE | Capabilities::NOTIFY,
            ),
            (Capabilities::MAP, Capabilities::ALLOCATE),
            (Capabilities::PASSIVE_REGISTERED, Capabilities::REGISTER),
        ] {
            ensure(!has.contains(flag) || has.contains(needs), || {
                at(&format!("{flag:?} without {needs:?}"))
            })?;
        }
        let places =
            Capabilities::SAME_PROCESS | Capabilities::CROSS_PROCESS | Capabilities::CROSS_HOST;
        ensure(has.intersects(places), || {
            at("its ends may be nowhere: no SAME_PROCESS, CROSS_PROCESS or CROSS_HOST")
        })?;
        let moves = Capabilities::WRITE
            | Capabilities::READ
            | Capabilities::WRITE_REDUCE
            | Capabilities::READ_REDUCE;
        let memory = Capabilities::ALLOCATE | Capabilities::REGISTER;
        ensure(has.intersects(moves) && has.intersects(memory), || {
            at("it moves nothing, or knows no memory to move")
        })?;
        if has.contains(Capabilities::NOTIFY) {
            ensure(
                info.max_notifies > 0 && info.max_notify_outstanding > 0,
                || at("NOTIFY, and none may exist or be outstanding"),
            )?;
        }
        ensure(
            info.max_blob_bytes > 0 && info.max_blob_bytes <= 1 << 20,
            || {
                at(&format!(
                    "max_blob_bytes {}: blobs travel in bootstrap messages",
                    info.max_blob_bytes
                ))
            },
        )?;
        ensure(
            attr.numa_node == -1
                || Path::new(&format!("/sys/devices/system/node/node{}", attr.numa_node)).exists(),
            || at(&format!("NUMA node {} does not exist", attr.numa_node)),
        )?;
        // Bytes that the kind of address does not use.
        let used = match attr.address_kind {
            0 => 8,
            4 => 4,
            _ => 16,
        };
        ensure(attr.address[used..].iter().all(|&b| b == 0), || {
            at("bytes behind the address are not zero")
        })?;
    }
    Ok(())
}

fn device_that_is_not_there(case: &Case) -> Result<(), Stop> {
    let table = Table::of(case.subject())?;
    let (status, count) = table.device_count();
    ensure_eq("device_count", status, STATUS_OK)?;
    for index in [count, u32::MAX] {
        let (status, _) = table.query(index);
        ensure(status < 0, || {
            format!("query_device({index}) of {count} devices: status {status}")
        })?;
        let (len, text, kept) = table.last_error(1024);
        ensure(len > 0 && len <= 1024 && kept, || {
            format!("last_error says {len} bytes in a buffer of 1024")
        })?;
        ensure(String::from_utf8(text).is_ok(), || {
            "last_error is not UTF-8".to_owned()
        })?;
        let (len, _, kept) = table.last_error(3);
        ensure(len <= 3 && kept, || {
            format!("last_error says {len} bytes in a buffer of 3")
        })?;
        ensure(table.open(index).is_err(), || {
            format!("open_device({index}) of {count} devices is a success")
        })?;
    }
    Ok(())
}

fn open_and_close_again(case: &Case) -> Result<(), Stop> {
    let table = Table::of(case.subject())?;
    for _ in 0..3 {
        // The openings know nothing of each other.
        let (one, two) = (
            table.open(case.info().index)?,
            table.open(case.info().index)?,
        );
        ensure(one.device != two.device, || {
            "two openings give one handle".to_owned()
        })?;
        ensure_eq("close of the first", one.close(), STATUS_OK)?;
        ensure(two.progress() >= 0, || {
            "the second opening ended with the first".to_owned()
        })?;
        ensure_eq("close of the second", two.close(), STATUS_OK)?;
    }
    Ok(())
}
