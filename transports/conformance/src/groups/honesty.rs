//! Every capability works, every missing one is refused, limits hold on both sides.

use hcomm_transport::Capabilities;
use hcomm_transport_abi::{
    STATUS_BUFFER_TOO_SMALL, STATUS_OK, STATUS_OUT_OF_BOUNDS, STATUS_UNSUPPORTED,
};
use hcomm_types::{DataType, ErrorKind, ReduceOp};

use crate::case::{Case, Check, Each, check};
use crate::content::Content;
use crate::memory::Kind;
use crate::pair::{Placement, Who, ends};
use crate::raw::{self, RawPair, Table};
use crate::side::{Ends, Op, Request};
use crate::verdict::{Stop, ensure, ensure_eq, fail};

use super::mapped;

pub(crate) const CHECKS: &[Check] = &[
    check(
        "missing_operations_are_refused",
        Each::Placement,
        missing_operations,
    ),
    check("missing_memory_is_refused", Each::Device, missing_memory),
    check(
        "missing_placements_are_refused",
        Each::Device,
        missing_placements,
    ),
    check("allocated_memory", Each::Device, allocated_memory),
    check("registered_memory", Each::Device, registered_memory),
    check("mapped_memory", Each::Placement, mapped_memory),
    check("passive_mapped", Each::Placement, passive_mapped),
    check("passive_registered", Each::Placement, passive_registered),
    check("local_memory_of_any_kind", Each::Placement, local_any),
    check("sleepers_are_woken", Each::Apart, sleepers_are_woken),
    check("wake_descriptor", Each::Device, wake_descriptor),
    check(
        "notifies_at_the_limit",
        Each::Placement,
        notifies_at_the_limit,
    ),
    check(
        "notifies_that_are_not_there",
        Each::Placement,
        notifies_not_there,
    ),
    check(
        "notifies_above_the_limit",
        Each::Device,
        notifies_above_the_limit,
    ),
    check(
        "outstanding_notifies",
        Each::Placement,
        outstanding_notifies,
    ),
    check("transfer_limit", Each::Placement, transfer_limit),
    check("batch_limit", Each::Device, batch_limit),
    check("blob_limit", Each::Device, blob_limit),
    check(
        "bounds_of_the_plugin_itself",
        Each::Device,
        bounds_of_the_plugin,
    ),
    check(
        "unknown_operations_are_refused",
        Each::Device,
        unknown_operations,
    ),
    check("mapped_peer", Each::Device, mapped::table),
    check("mapped_notifies", Each::Placement, mapped::notifies),
    check("mapped_notifies_wake", Each::Apart, mapped::wakes),
    check("fetch", Each::Device, mapped::fetch),
    check("description_fits", Each::Device, mapped::description_fits),
    check("description", Each::Placement, mapped::description),
];

/// A kind of operation, what it needs, and an instance of it.
type Operation = (&'static str, Capabilities, fn(Ends) -> Op);

const OPERATIONS: [Operation; 6] = [
    ("write", Capabilities::WRITE, |ends| {
        Op::Write(ends, 8, None)
    }),
    ("read", Capabilities::READ, |ends| Op::Read(ends, 8)),
    ("notify", Capabilities::NOTIFY, |_| Op::Notify(0, [0; 2])),
    ("write with notify", Capabilities::WRITE_NOTIFY, |ends| {
        Op::Write(ends, 8, Some(0))
    }),
    ("write-reduce", Capabilities::WRITE_REDUCE, |ends| {
        Op::WriteReduce(ends, 2, DataType::F32, ReduceOp::Sum, None)
    }),
    ("read-reduce", Capabilities::READ_REDUCE, |ends| {
        Op::ReadReduce(ends, 2, DataType::F32, ReduceOp::Sum)
    }),
];

/// What is promised is taken, what is not promised is refused as unsupported. That what is taken
/// does the right thing is the business of the group *data*.
fn missing_operations(case: &Case) -> Result<(), Stop> {
    let kind = case.shared_kinds()?[0];
    let mut pair = case.pair()?;
    let channel = pair.channel(case.info().max_notifies.min(1))?;
    for who in Who::BOTH {
        let shared = pair.share(who.other(), channel, kind, 64)?;
        let (memory, _) = pair.memory(who, kind, 64)?;
        let stale = Content::Bytes { seed: 77 };
        for (name, needs, op) in OPERATIONS {
            let op = op(ends(memory, 0, shared.import, 0));
            if case.can(needs) {
                pair.post(who, channel, vec![op])
                    .map_err(|stop| fail(format!("{name} is promised: {stop:?}")))?;
                continue;
            }
            pair.done(who, Request::Flush { channel })?;
            pair.fill(who.other(), shared.memory, 0, 64, stale)?;
            let request = Request::PostOnce {
                channel,
                ops: vec![op],
            };
            let failure = pair.refused(who, name, request)?;
            ensure(failure.is(ErrorKind::Unsupported), || {
                format!("{name} is not promised and was refused with: {failure}")
            })?;
            pair.expect(who.other(), shared.memory, 0, 64, stale)?;
        }
    }
    Ok(())
}

fn missing_memory(case: &Case) -> Result<(), Stop> {
    let device = Table::of(case.subject())?.open(case.info().index)?;
    for (flag, made) in [
        (Capabilities::ALLOCATE, device.allocate(4096)),
        (Capabilities::REGISTER, device.register(4096)),
    ] {
        // A null entry is the host's to answer.
        let status = made.map_or(STATUS_UNSUPPORTED, |(status, _)| status);
        let expected = if case.can(flag) {
            STATUS_OK
        } else {
            STATUS_UNSUPPORTED
        };
        ensure_eq(
            &format!("status with respect to {flag:?}"),
            status,
            expected,
        )?;
    }
    Ok(())
}

fn missing_placements(case: &Case) -> Result<(), Stop> {
    for placement in [Placement::OneThread, Placement::TwoProcesses] {
        if case.can(placement.needs()) {
            let mut pair = case.pair_in(placement)?;
            pair.channel(0)?;
            continue;
        }
        let mut pair = case.pair_in(placement)?;
        let channel = pair.id();
        let [near, far] = pair.ends(channel, [0, 0], 16)?;
        let polls = 1000;
        let (near, far) = pair.ask_both(
            Request::TryConnect {
                channel,
                blob: far,
                polls,
            },
            Request::TryConnect {
                channel,
                blob: near,
                polls,
            },
        )?;
        for (who, answer) in [("near", near), ("far", far)] {
            ensure(answer.is_err(), || {
                format!(
                    "ends in {} are not promised; the {who} one was not refused: {answer:?}",
                    placement.name()
                )
            })?;
        }
    }
    Ok(())
}

fn allocated_memory(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::ALLOCATE)?;
    let device = case.info().open()?;
    for bytes in [1, 7, 4095, 4096, 4097, 1 << 20, (1 << 20) + 1] {
        let region = device.allocate(bytes)?;
        ensure_eq("bytes", region.bytes(), bytes)?;
        ensure(
            (region.address().as_ptr() as usize).is_multiple_of(4096),
            || format!("{bytes} bytes are not page-aligned"),
        )?;
    }
    // Zeroed also where something was before.
    let mut pair = case.pair_in_any()?;
    for round in 0..4u64 {
        let (memory, _) = pair.memory(Who::Near, Kind::Allocated, 70_000)?;
        pair.fill(Who::Near, memory, 0, 70_000, Content::Bytes { seed: round })?;
        pair.done(Who::Near, Request::DropMemory(memory))?;
    }
    Ok(())
}

fn registered_memory(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::REGISTER)?;
    let mut pair = case.pair_in_any()?;
    for bytes in [1, 7, 4095, 4096, 4097, 1 << 20, (1 << 20) + 1] {
        let (memory, blob) = pair.memory(Who::Near, Kind::Registered, bytes)?;
        ensure(!blob.is_empty(), || "an empty blob".to_owned())?;
        // It is the caller's memory still.
        let content = Content::Bytes { seed: bytes as u64 };
        pair.fill(Who::Near, memory, 0, bytes, content)?;
        let again = pair.blob(Who::Near, Request::Register { memory })?;
        ensure(again != blob, || {
            "two registrations of one memory have one blob: a stale key could not be told"
                .to_owned()
        })?;
        pair.expect(Who::Near, memory, 0, bytes, content)?;
    }
    Ok(())
}

fn mapped_memory(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::ALLOCATE)?;
    let mut pair = case.pair()?;
    let channel = pair.channel(case.info().max_notifies.min(1))?;
    let bytes = 3 * 4096 + 17;
    for (who, round) in Who::BOTH.into_iter().zip(1u64..) {
        let shared = pair.share(who.other(), channel, Kind::Allocated, bytes)?;
        ensure_eq(
            "whether it is mapped",
            shared.mapped,
            case.can(Capabilities::MAP),
        )?;
        if !shared.mapped {
            continue;
        }
        let there = Content::Bytes { seed: round };
        let (at, len) = (5, bytes - 5);
        pair.fill(who.other(), shared.memory, at, len, there)?;
        let import = shared.import;
        pair.done(
            who,
            Request::ExpectMapped {
                import,
                at,
                len,
                content: there,
            },
        )?;
        let here = Content::Bytes { seed: round + 10 };
        let (at, len) = (4090, 1000);
        pair.done(
            who,
            Request::FillMapped {
                import,
                at,
                len,
                content: here,
            },
        )?;
        pair.expect(who.other(), shared.memory, at, len, here)?;
        pair.expect(who.other(), shared.memory, 5, 4090 - 5, there)?;
    }
    Ok(())
}

fn passive_mapped(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::PASSIVE_MAPPED)?;
    case.needs(Capabilities::MAP | Capabilities::WRITE)?;
    passive(case, Kind::Allocated)
}

fn passive_registered(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::PASSIVE_REGISTERED | Capabilities::WRITE)?;
    passive(case, Kind::Registered)
}

/// Transfers and notifies land while the target's side makes no call at all.
fn passive(case: &Case, kind: Kind) -> Result<(), Stop> {
    let bytes = case.at_most(100_003);
    let mut pair = case.pair()?;
    let channel = pair.channel(case.info().max_notifies.min(1))?;
    for who in Who::BOTH {
        let shared = pair.share(who.other(), channel, kind, bytes)?;
        let (memory, _) = pair.memory(who, kind, bytes)?;
        pair.done(who.other(), Request::Quiet(true))?;
        for round in 1..=10u64 {
            let content = Content::Bytes { seed: round };
            pair.fill(who, memory, 0, bytes, content)?;
            let at = ends(memory, 0, shared.import, 0);
            let mut ops = vec![Op::Write(at, bytes as u64, None)];
            if case.can(Capabilities::NOTIFY) {
                ops.push(Op::Notify(0, [0; 2]));
            }
            pair.post(who, channel, ops)?;
            pair.done(who, Request::Flush { channel })?;
            if case.can(Capabilities::NOTIFY) {
                ensure_eq("notify", pair.look(who.other(), channel, 0)?, round)?;
            }
            pair.expect(who.other(), shared.memory, 0, bytes, content)?;
            if case.can(Capabilities::READ) {
                let back = Content::Bytes { seed: round + 100 };
                pair.fill(who.other(), shared.memory, 0, bytes, back)?;
                pair.post(who, channel, vec![Op::Read(at, bytes as u64)])?;
                pair.expect(who, memory, 0, bytes, back)?;
            }
        }
        pair.done(who.other(), Request::Quiet(false))?;
    }
    Ok(())
}

/// A descriptor without a local region.
fn local_any(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE)?;
    let kind = case.shared_kinds()?[0];
    let mut pair = case.pair()?;
    let channel = pair.channel(case.info().max_notifies.min(1))?;
    for (who, round) in Who::BOTH.into_iter().zip(1u64..) {
        let shared = pair.share(who.other(), channel, kind, 64)?;
        for local in [Kind::Plain, kind] {
            let (memory, _) = pair.memory(who, local, 64)?;
            let content = Content::Bytes { seed: round };
            pair.fill(who, memory, 0, 64, content)?;
            let unnamed = Ends {
                name_region: false,
                ..ends(memory, 0, shared.import, 0)
            };
            let op = Op::Write(unnamed, 64, None);
            if case.can(Capabilities::LOCAL_ANY) {
                pair.post(who, channel, vec![op])?;
                pair.done(who, Request::Flush { channel })?;
                pair.expect(who.other(), shared.memory, 0, 64, content)?;
            } else {
                let request = Request::PostOnce {
                    channel,
                    ops: vec![op],
                };
                let failure = pair.refused(who, "a local end outside any region", request)?;
                let kinds = [ErrorKind::InvalidArgument, ErrorKind::Unsupported];
                ensure(failure.is_one_of(&kinds), || {
                    format!("a local end outside any region was refused with: {failure}")
                })?;
            }
        }
    }
    Ok(())
}

/// Whoever sleeps for a record is woken by it: by the bell, or by the device's descriptor.
fn sleepers_are_woken(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::NOTIFY)?;
    let mut pair = case.pair()?;
    let channel = pair.channel(1)?;
    let mut counts = [0u64; 2];
    for round in 0..40 {
        let who = if round % 2 == 0 { Who::Near } else { Who::Far };
        let count = &mut counts[round % 2];
        *count += 1;
        pair.together(
            who,
            Request::Post {
                channel,
                ops: vec![Op::Notify(0, [0; 2])],
            },
            Request::AwaitAsleep {
                channel,
                index: 0,
                count: *count,
            },
        )?;
    }
    if !case.can(Capabilities::WRITE) {
        return Ok(());
    }
    // With data before the record, on every path that the link has for it.
    for kind in case.shared_kinds()? {
        let bytes = case.at_most(300_007);
        for (who, count) in Who::BOTH.into_iter().zip(&mut counts) {
            let shared = pair.share(who.other(), channel, kind, bytes)?;
            let (memory, _) = pair.memory(who, kind, bytes)?;
            for round in 0..5u64 {
                let content = Content::Bytes {
                    seed: round + *count * 10,
                };
                pair.fill(who, memory, 0, bytes, content)?;
                *count += 1;
                let ops = vec![
                    Op::Write(ends(memory, 0, shared.import, 0), bytes as u64, None),
                    Op::Notify(0, [0; 2]),
                ];
                pair.together(
                    who,
                    Request::Post { channel, ops },
                    Request::AwaitAsleep {
                        channel,
                        index: 0,
                        count: *count,
                    },
                )?;
                pair.expect(who.other(), shared.memory, 0, bytes, content)?;
            }
        }
    }
    Ok(())
}

fn wake_descriptor(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WAKE_FD)?;
    let device = case.info().open()?;
    ensure(device.wake_fd().is_some(), || {
        "it demands to be watched and has no descriptor".to_owned()
    })
}

fn notifies_at_the_limit(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::NOTIFY)?;
    let limit = case.info().max_notifies;
    let mut pair = case.pair()?;
    // As many as allowed at one side, few at the other.
    let channel = pair.channel_with(limit, 1, 16)?;
    for index in [0, limit / 2, limit - 1] {
        let before = pair.look(Who::Near, channel, index)?;
        pair.signal(Who::Far, channel, index, before + 1)?;
    }
    pair.signal(Who::Near, channel, 0, 1)
}

fn notifies_not_there(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::NOTIFY)?;
    if case.info().max_notifies < 3 {
        return Err(Stop::Skip("max_notifies is below 3".to_owned()));
    }
    let mut pair = case.pair()?;
    let channel = pair.channel_with(3, 1, 16)?;
    for (who, own, peers) in [(Who::Near, 3, 1), (Who::Far, 1, 3)] {
        for index in [peers, u32::MAX] {
            let request = Request::PostOnce {
                channel,
                ops: vec![Op::Notify(index, [0; 2])],
            };
            let failure = pair.refused(who, "a record of a notify that is not there", request)?;
            let kinds = [ErrorKind::InvalidArgument, ErrorKind::OutOfBounds];
            ensure(failure.is_one_of(&kinds), || {
                format!("notify {index} of {peers} was refused with: {failure}")
            })?;
        }
        for index in [own, u32::MAX] {
            let failure = pair.refused(who, "a look at it", Request::Look { channel, index })?;
            ensure(failure.is(ErrorKind::InvalidArgument), || {
                failure.to_string()
            })?;
        }
        pair.signal(who, channel, peers - 1, 1)?;
    }
    Ok(())
}

fn notifies_above_the_limit(case: &Case) -> Result<(), Stop> {
    let device = Table::of(case.subject())?.open(case.info().index)?;
    let limit = case.info().max_notifies;
    for notifies in [limit.saturating_add(1), u32::MAX] {
        let (status, _) = device.create(notifies);
        ensure(status < 0 || notifies == limit, || {
            format!("create_channel with {notifies} notifies, limit {limit}: status {status}")
        })?;
    }
    ensure_eq("close_device", device.close(), STATUS_OK)?;
    // At the limit, on an end of this process where there can be one.
    if !case
        .info()
        .capabilities
        .contains(Capabilities::SAME_PROCESS)
    {
        return Ok(());
    }
    let pair = RawPair::new(case, limit, 64)?;
    for (index, there) in [
        (0, limit > 0),
        (limit.wrapping_sub(1), limit > 0),
        (limit, false),
    ] {
        ensure_eq(
            &format!("line of notify {index} of {limit}"),
            pair.near.has_line(pair.near_end, index),
            there,
        )?;
    }
    Ok(())
}

/// As many records as may be outstanding, before anybody looks.
fn outstanding_notifies(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::NOTIFY)?;
    let count = case.info().max_notify_outstanding.min(3000);
    let mut pair = case.pair()?;
    let channel = pair.channel(1)?;
    for who in Who::BOTH {
        let ops = vec![Op::Notify(0, [0; 2]); count as usize];
        pair.post(who, channel, ops)?;
        pair.wait(who.other(), channel, 0, count)?;
    }
    Ok(())
}

fn transfer_limit(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE)?;
    let limit = case.info().max_transfer_bytes;
    // A limit beyond all memory cannot be reached, but passed it can.
    let largest = case.at_most(8 << 20);
    let kind = case.shared_kinds()?[0];
    let mut pair = case.pair()?;
    let channel = pair.channel(case.info().max_notifies.min(1))?;
    let shared = pair.share(Who::Far, channel, kind, largest + 1)?;
    let (memory, _) = pair.memory(Who::Near, kind, largest + 1)?;
    let content = Content::Bytes { seed: 3 };
    pair.fill(Who::Near, memory, 0, largest + 1, content)?;
    let at = ends(memory, 0, shared.import, 0);
    let above = Op::Write(at, limit.saturating_add(1), None);
    let request = Request::PostOnce {
        channel,
        ops: vec![above],
    };
    let failure = pair.refused(Who::Near, "a transfer above the limit", request)?;
    let kinds = [ErrorKind::InvalidArgument, ErrorKind::OutOfBounds];
    ensure(failure.is_one_of(&kinds), || failure.to_string())?;
    let write = Op::Write(at, largest as u64, None);
    pair.post(Who::Near, channel, vec![write])?;
    pair.done(Who::Near, Request::Flush { channel })?;
    pair.expect(Who::Far, shared.memory, 0, largest, content)?;
    pair.expect(Who::Far, shared.memory, largest, 1, Content::Zero)
}

/// As many descriptors as one post may carry, and more; the host's handles never hand over so many.
fn batch_limit(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::SAME_PROCESS | Capabilities::WRITE)?;
    let limit = case.info().max_batch.min(4096) as usize;
    let pair = RawPair::new(case, 0, 64)?;
    let batch = vec![pair.write(0, 8); limit + 1];
    let mut posted = 0;
    let mut rounds = 0;
    while posted < limit {
        let (status, accepted, inline_done) = pair.near.post(pair.near_end, &batch[posted..limit]);
        let asked = (limit - posted) as u32;
        ensure(
            accepted <= asked
                && inline_done <= accepted
                && (status == STATUS_OK) == (accepted == asked),
            || {
                format!(
                    "post of {asked}: status {status}, accepted {accepted}, done inside {inline_done}"
                )
            },
        )?;
        ensure(
            status == STATUS_OK || status == hcomm_transport_abi::STATUS_NO_RESOURCE,
            || format!("post of {asked} of at most {limit}: status {status}"),
        )?;
        posted += accepted as usize;
        pair.near.progress();
        pair.far.progress();
        rounds += 1;
        ensure(rounds < 100_000, || {
            format!("{posted} of {limit} accepted, and no more")
        })?;
    }
    if limit == case.info().max_batch as usize {
        let (status, accepted, _) = pair.near.post(pair.near_end, &batch);
        ensure(status < 0 && accepted as usize <= limit, || {
            format!(
                "post of {} with max_batch {limit}: status {status}, accepted {accepted}",
                limit + 1
            )
        })?;
    }
    Ok(())
}

fn blob_limit(case: &Case) -> Result<(), Stop> {
    let device = Table::of(case.subject())?.open(case.info().index)?;
    let limit = case.info().max_blob_bytes as usize;
    let region = device.memory(case.info().capabilities.bits(), 4096)?;
    let (status, channel) = device.create(0);
    ensure_eq("create_channel", status, STATUS_OK)?;
    type Blob = (i32, usize, Vec<u8>, bool);
    let give: [(&str, &dyn Fn(usize) -> Blob); 2] = [
        ("export_region", &|capacity| device.export(region, capacity)),
        ("local_blob", &|capacity| device.blob(channel, capacity)),
    ];
    for (what, give) in give {
        let (status, len, blob, kept) = give(limit);
        ensure(
            status == STATUS_OK && len > 0 && len <= limit && kept,
            || format!("{what} into {limit} bytes: status {status}, {len} bytes"),
        )?;
        let (status, again, second, kept) = give(len);
        ensure(
            status == STATUS_OK && again == len && second == blob && kept,
            || format!("{what} into exactly {len} bytes: status {status}, {again} bytes"),
        )?;
        for capacity in [len - 1, 0] {
            let (status, _, _, kept) = give(capacity);
            ensure(status == STATUS_BUFFER_TOO_SMALL && kept, || {
                format!(
                    "{what} of {len} bytes into {capacity}: status {status}, kept to it: {kept}"
                )
            })?;
        }
    }
    ensure_eq("deregister", device.deregister(region), STATUS_OK)?;
    ensure_eq("destroy_channel", device.destroy(channel), STATUS_OK)?;
    ensure_eq("close_device", device.close(), STATUS_OK)
}

/// The host checks bounds before it posts; other hosts may not.
fn bounds_of_the_plugin(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::SAME_PROCESS | Capabilities::WRITE)?;
    let bytes = 1000;
    let pair = RawPair::new(case, 0, bytes)?;
    for (offset, len) in [
        (0, 1001),
        (1, 1000),
        (1000, 1),
        (5000, 8),
        (u64::MAX, 1),
        (u64::MAX - 3, 8),
        (8, u64::MAX),
    ] {
        let (status, accepted, _) = pair.near.post(pair.near_end, &[pair.write(offset, len)]);
        ensure(status == STATUS_OUT_OF_BOUNDS && accepted == 0, || {
            format!("{len} bytes at {offset} of {bytes}: status {status}, accepted {accepted}")
        })?;
        // A good one before it is the prefix that is accepted.
        let batch = [pair.write(0, 8), pair.write(offset, len), pair.write(8, 8)];
        let (status, accepted, _) = pair.near.post(pair.near_end, &batch);
        ensure(status == STATUS_OUT_OF_BOUNDS && accepted == 1, || {
            format!("the second of three is wrong: status {status}, accepted {accepted}")
        })?;
    }
    if !case.can(Capabilities::LOCAL_ANY) {
        let mut wrong = pair.write(0, 8);
        wrong.local = wrong.local.wrapping_byte_add(bytes - 4);
        let (status, accepted, _) = pair.near.post(pair.near_end, &[wrong]);
        ensure(status == STATUS_OUT_OF_BOUNDS && accepted == 0, || {
            format!("a local end that leaves its region: status {status}, accepted {accepted}")
        })?;
    }
    ensure(
        pair.remote_bytes(bytes).iter().all(|&byte| byte == 0),
        || "something was written".to_owned(),
    )
}

fn unknown_operations(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::SAME_PROCESS | Capabilities::WRITE)?;
    let pair = RawPair::new(case, 0, 4096)?;
    let mut wrong = Vec::new();
    for opcode in [5, 77, u32::MAX] {
        let mut descriptor = pair.write(0, 8);
        descriptor.opcode = opcode;
        wrong.push((format!("opcode {opcode}"), descriptor));
    }
    if case.can(Capabilities::WRITE_REDUCE) {
        for (dtype, redop) in [(12, 0), (u32::MAX, 0), (6, 4), (6, u32::MAX)] {
            let mut descriptor = pair.write(0, 64);
            descriptor.opcode = hcomm_transport_abi::OP_WRITE_REDUCE;
            (descriptor.dtype, descriptor.redop) = (dtype, redop);
            wrong.push((
                format!("reduction of type {dtype} with {redop}"),
                descriptor,
            ));
        }
    }
    wrong.push(("a notify of none".to_owned(), raw::notify(0)));
    for (what, descriptor) in wrong {
        let (status, accepted, _) = pair.near.post(pair.near_end, &[descriptor]);
        ensure(status < 0 && accepted == 0, || {
            format!("{what}: status {status}, accepted {accepted}")
        })?;
    }
    ensure_eq(
        "state of the channel",
        pair.near.check(pair.near_end),
        STATUS_OK,
    )?;
    ensure_eq(
        "state of the peer's end",
        pair.far.check(pair.far_end),
        STATUS_OK,
    )
}
