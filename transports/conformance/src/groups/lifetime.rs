//! Ends in any order; nothing is left behind.

use hcomm_transport::Capabilities;
use hcomm_transport_abi::{STATUS_BUSY, STATUS_OK};
use hcomm_types::ErrorKind;

use crate::case::{Case, Check, Each, check};
use crate::content::Content;
use crate::memory::Kind;
use crate::pair::{Pair, Placement, Who, ends};
use crate::raw::Table;
use crate::resources::Resources;
use crate::side::{Op, Reply, Request};
use crate::verdict::{Stop, ensure, ensure_eq, fail};

pub(crate) const CHECKS: &[Check] = &[
    check("drops_in_any_order", Each::Placement, drops_in_any_order),
    check("close_while_in_use", Each::Device, close_while_in_use),
    check("stale_keys", Each::Placement, stale_keys),
    check(
        "registered_again_at_the_same_place",
        Each::Placement,
        registered_again,
    ),
    check(
        "stale_imports_reach_nothing",
        Each::Placement,
        stale_imports,
    ),
    check(
        "destroyed_with_work_outstanding",
        Each::Placement,
        destroyed_with_work,
    ),
    check(
        "destroyed_before_it_was_connected",
        Each::Placement,
        destroyed_unconnected,
    ),
    check("import_and_let_go", Each::Placement, import_and_let_go),
    check("nothing_is_left", Each::Placement, nothing_is_left),
];

/// Makes a channel, moves something over it in both directions, and leaves nothing.
pub(super) fn proof_of_life(pair: &mut Pair, case: &Case, seed: u64) -> Result<(), Stop> {
    let notifies = case.info().max_notifies.min(1);
    let channel = pair.channel(notifies)?;
    for who in Who::BOTH {
        let kind = case.shared_kinds()?[0];
        let shared = pair.share(who.other(), channel, kind, 777)?;
        let (memory, _) = pair.memory(who, kind, 777)?;
        let content = Content::Bytes { seed };
        if case.can(Capabilities::WRITE) {
            pair.fill(who, memory, 0, 777, content)?;
            pair.post(
                who,
                channel,
                vec![Op::Write(ends(memory, 0, shared.import, 0), 777, None)],
            )?;
            pair.done(who, Request::Flush { channel })?;
            pair.expect(who.other(), shared.memory, 0, 777, content)?;
        }
        if notifies > 0 && case.can(Capabilities::NOTIFY) {
            pair.signal(who, channel, 0, 1)?;
        }
        pair.done(who, Request::DropImport(shared.import))?;
        pair.done(who, Request::DropMemory(memory))?;
        pair.done(who.other(), Request::DropMemory(shared.memory))?;
    }
    pair.done(Who::Near, Request::DropChannel(channel))?;
    pair.done(Who::Far, Request::DropChannel(channel))
}

/// Channel, import, own memory and the peer's memory end in each of the 24 orders.
fn drops_in_any_order(case: &Case) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    let kinds = case.shared_kinds()?;
    for order in 0..24usize {
        let kind = kinds[order % kinds.len()];
        let channel = pair.channel(case.info().max_notifies.min(1))?;
        let shared = pair.share(Who::Far, channel, kind, 5000)?;
        let (memory, _) = pair.memory(Who::Near, kind, 5000)?;
        if case.can(Capabilities::WRITE) {
            let op = Op::Write(ends(memory, 0, shared.import, 0), 5000, None);
            pair.post(Who::Near, channel, vec![op])?;
        }
        let mut steps = vec![
            (Who::Near, Request::DropChannel(channel)),
            (Who::Near, Request::DropImport(shared.import)),
            (Who::Near, Request::DropMemory(memory)),
            (Who::Far, Request::DropMemory(shared.memory)),
        ];
        // The number in the factorial system picks the order.
        let mut number = order;
        while !steps.is_empty() {
            let (who, step) = steps.remove(number % steps.len());
            number /= steps.len() + 1;
            pair.done(who, step)?;
        }
        pair.done(Who::Far, Request::DropChannel(channel))?;
    }
    proof_of_life(&mut pair, case, 1)
}

/// A device does not close under what was made from it, and closes afterwards.
fn close_while_in_use(case: &Case) -> Result<(), Stop> {
    let device = Table::of(case.subject())?.open(case.info().index)?;
    let region = device.memory(case.info().capabilities.bits(), 4096)?;
    ensure_eq("close with a region", device.close(), STATUS_BUSY)?;
    let (status, channel) = device.create(0);
    ensure_eq("create_channel", status, STATUS_OK)?;
    ensure_eq(
        "close with a region and a channel",
        device.close(),
        STATUS_BUSY,
    )?;
    ensure_eq("deregister", device.deregister(region), STATUS_OK)?;
    ensure_eq("close with a channel", device.close(), STATUS_BUSY)?;
    ensure_eq("destroy_channel", device.destroy(channel), STATUS_OK)?;
    ensure_eq("close with nothing open", device.close(), STATUS_OK)
}

/// The blob of a region that has ended is no key any more.
fn stale_keys(case: &Case) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    let channel = pair.channel(0)?;
    for who in Who::BOTH {
        for kind in case.shared_kinds()? {
            let (memory, blob) = pair.memory(who.other(), kind, 9000)?;
            pair.done(who.other(), Request::DropMemory(memory))?;
            // The next one may lie at the same place, under the same number.
            let (_, fresh) = pair.memory(who.other(), kind, 9000)?;
            let import = pair.id();
            let request = Request::Import {
                import,
                channel,
                blob,
            };
            let failure = pair.refused(who, &format!("a stale key of {kind:?} memory"), request)?;
            ensure(failure.is(ErrorKind::Refused), || {
                format!("a stale key was refused with: {failure}")
            })?;
            let request = Request::Import {
                import,
                channel,
                blob: fresh,
            };
            pair.get(who, request)?;
        }
    }
    Ok(())
}

fn registered_again(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::REGISTER)?;
    let bytes = 9000;
    let mut pair = case.pair()?;
    let channel = pair.channel(case.info().max_notifies.min(1))?;
    for who in Who::BOTH {
        let (memory, old) = pair.memory(who.other(), Kind::Registered, bytes)?;
        pair.done(who.other(), Request::Deregister { memory })?;
        let new = pair.blob(who.other(), Request::Register { memory })?;
        let import = pair.id();
        let request = Request::Import {
            import,
            channel,
            blob: old,
        };
        let failure = pair.refused(who, "the key of the first registration", request)?;
        ensure(failure.is(ErrorKind::Refused), || failure.to_string())?;
        let shared = pair.import(who, channel, memory, new, bytes)?;
        if case.can(Capabilities::WRITE) {
            let (source, _) = pair.memory(who, Kind::Registered, bytes)?;
            let content = Content::Bytes { seed: 51 };
            pair.fill(who, source, 0, bytes, content)?;
            let op = Op::Write(ends(source, 0, shared.import, 0), bytes as u64, None);
            pair.post(who, channel, vec![op])?;
            pair.done(who, Request::Flush { channel })?;
            pair.expect(who.other(), memory, 0, bytes, content)?;
        }
    }
    Ok(())
}

/// A write through an import whose region has ended does not touch the memory, whatever the post
/// says about it.
fn stale_imports(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::REGISTER | Capabilities::WRITE)?;
    let bytes = 9000;
    let mut pair = case.pair()?;
    let notifies = case.info().max_notifies.min(1);
    for who in Who::BOTH {
        let channel = pair.channel(notifies)?;
        let shared = pair.share(who.other(), channel, Kind::Registered, bytes)?;
        let (source, _) = pair.memory(who, Kind::Registered, bytes)?;
        let kept = Content::Bytes { seed: 61 };
        pair.fill(who, source, 0, bytes, Content::Bytes { seed: 62 })?;
        let deregister = Request::Deregister {
            memory: shared.memory,
        };
        pair.done(who.other(), deregister)?;
        pair.fill(who.other(), shared.memory, 0, bytes, kept)?;
        let op = Op::Write(ends(source, 0, shared.import, 0), bytes as u64, None);
        let posted = pair.ask(
            who,
            Request::PostOnce {
                channel,
                ops: vec![op],
            },
        )?;
        if matches!(posted, Ok(Reply::Posted { pending, .. }) if pending > 0) {
            // It completes, as a success or not: whoever waits for it must not hang.
            if let Err(failure) = pair.ask(who, Request::Complete)? {
                ensure(!failure.kind.is_empty(), || failure.to_string())?;
            }
        }
        // A round trip of the same link, where it still works, so that nothing is on its way.
        let _ = pair.ask(who, Request::Check { channel })?;
        let _ = pair.ask(who.other(), Request::Check { channel })?;
        pair.expect(who.other(), shared.memory, 0, bytes, kept)?;
    }
    Ok(())
}

/// An end goes with its queue full; the device and its other channels go on.
fn destroyed_with_work(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE)?;
    for kind in case.shared_kinds()? {
        for who in Who::BOTH {
            let mut pair = case.pair()?;
            let channel = pair.channel(case.info().max_notifies.min(1))?;
            let bytes = case.at_most(200_003);
            let shared = pair.share(who.other(), channel, kind, bytes)?;
            let (memory, _) = pair.memory(who, kind, bytes)?;
            pair.done(who.other(), Request::Quiet(true))?;
            for _ in 0..20 {
                let ops = vec![Op::Write(ends(memory, 0, shared.import, 0), bytes as u64, None); 4];
                pair.get(who, Request::PostOnce { channel, ops })?;
            }
            pair.done(who, Request::DropMemory(memory))?;
            pair.done(who, Request::DropImport(shared.import))?;
            pair.done(who, Request::DropChannel(channel))?;
            pair.done(who, Request::FreshLane)?;
            pair.done(who.other(), Request::Quiet(false))?;
            let loss = pair.refused(who.other(), "the loss", Request::AwaitLoss { channel })?;
            ensure(loss.is(ErrorKind::PeerLost), || {
                format!("the peer's end was destroyed, and the channel says: {loss}")
            })?;
            pair.done(who.other(), Request::DropMemory(shared.memory))?;
            proof_of_life(&mut pair, case, 71)?;
            pair.done(who.other(), Request::DropChannel(channel))?;
        }
    }
    Ok(())
}

fn destroyed_unconnected(case: &Case) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    for who in Who::BOTH {
        let channel = pair.id();
        let [near, far] = pair.ends(channel, [0, 0], 16)?;
        let blob = if who == Who::Near { far } else { near };
        let request = Request::TryConnect {
            channel,
            blob,
            polls: 5,
        };
        let answer = pair.ask(who, request)?;
        ensure(!matches!(answer, Ok(Reply::Connected(true))), || {
            "connected before the peer's end has tried".to_owned()
        })?;
        pair.done(who, Request::DropChannel(channel))?;
        pair.done(who.other(), Request::DropChannel(channel))?;
    }
    proof_of_life(&mut pair, case, 81)
}

/// One region many times, at the same time and after each other.
fn import_and_let_go(case: &Case) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    let channel = pair.channel(0)?;
    for who in Who::BOTH {
        for kind in case.shared_kinds()? {
            let (memory, blob) = pair.memory(who.other(), kind, 4096)?;
            let mut imports = Vec::new();
            for _ in 0..10 {
                imports.push(pair.import(who, channel, memory, blob.clone(), 4096)?);
            }
            for shared in imports.drain(..).rev().skip(1) {
                pair.done(who, Request::DropImport(shared.import))?;
            }
            // The last one still works.
            let again = pair.import(who, channel, memory, blob, 4096)?;
            if case.can(Capabilities::WRITE) {
                let (source, _) = pair.memory(who, kind, 4096)?;
                let content = Content::Bytes { seed: 91 };
                pair.fill(who, source, 0, 4096, content)?;
                let op = Op::Write(ends(source, 0, again.import, 0), 4096, None);
                pair.post(who, channel, vec![op])?;
                pair.done(who, Request::Flush { channel })?;
                pair.expect(who.other(), memory, 0, 4096, content)?;
            }
        }
    }
    Ok(())
}

/// Descriptors, threads and mappings are back to their count, at both sides, after rounds that
/// make and end everything.
fn nothing_is_left(case: &Case) -> Result<(), Stop> {
    const ROUNDS: usize = 30;
    let mut pair = case.pair()?;
    let mut counts = Vec::new();
    // The first rounds make what is made once: thread-locals, listeners, caches of the allocator.
    for rounds in [3, ROUNDS] {
        for round in 0..rounds {
            proof_of_life(&mut pair, case, round as u64)?;
            for who in Who::BOTH {
                pair.done(who, Request::Reopen)?;
            }
        }
        let mut at = Vec::new();
        for who in Who::BOTH {
            match pair.get(who, Request::Resources)? {
                Reply::Resources(resources) => at.push(resources),
                other => return Err(fail(format!("{other:?}"))),
            }
        }
        counts.push(at);
    }
    let places: &[Who] = if case.placement() == Some(Placement::TwoProcesses) {
        &Who::BOTH
    } else {
        &[Who::Near]
    };
    for (who, (before, after)) in places.iter().zip(counts[0].iter().zip(&counts[1])) {
        let exact = |r: &Resources| (r.descriptors, r.threads, r.shared_mappings);
        ensure(exact(before) == exact(after), || {
            format!("{who:?} side: {before:?} before {ROUNDS} rounds, {after:?} after them")
        })?;
        // The allocator's own may move a little, but not with each round.
        ensure(after.mappings < before.mappings + ROUNDS / 2, || {
            format!("{who:?} side: mappings grow: {before:?}, {after:?}")
        })?;
    }
    Ok(())
}
