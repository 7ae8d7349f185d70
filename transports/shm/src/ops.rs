//! The fast calls. Written not to panic, not to block and not to allocate; on mapped memory `post`
//! takes no lock, and makes a system call only to wake a peer that sleeps. User memory of another
//! process is moved inside `post` as well, by system calls, or handed to the ring.

use core::sync::atomic::Ordering;
use std::sync::MutexGuard;

use hcomm_transport_abi::{
    CompletionV1, DescriptorV1, FLAG_NOTIFY, OP_NOTIFY, OP_READ, OP_READ_REDUCE, OP_WRITE,
    OP_WRITE_REDUCE, Posted, STATUS_INVALID_ARGUMENT, STATUS_NO_RESOURCE, STATUS_OK,
    STATUS_OUT_OF_BOUNDS, STATUS_PEER_LOST, STATUS_STALE_KEY, STATUS_UNSUPPORTED,
};

use crate::channel::{Channel, ChannelInner, Link, Other, Side, Tally};
use crate::device::{DeviceCore, lock};
use crate::direct::{Move, Place, Reduction, Stop};
use crate::export::{import_of, local_of};
use crate::region::Target;
use crate::staging::{Outbound, Transfer, element_bytes};
use crate::sys::Span;
use crate::wire::Token;

/// How a descriptor was taken.
enum Taken {
    /// Done.
    Inline,
    /// On its way through the ring.
    Staged,
}

/// Takes a prefix of the batch.
pub(crate) fn post(channel: &Channel, batch: &[DescriptorV1]) -> Posted {
    let inner = &*channel.inner;
    let mut posted = Posted {
        accepted: 0,
        inline_done: 0,
        status: STATUS_OK,
    };
    let link = match inner.usable() {
        Ok(link) => link,
        Err(status) => {
            posted.status = status;
            return posted;
        }
    };
    let (mut written, mut read, mut notifies) = (0, 0, 0);
    for descriptor in batch {
        match take(inner, link, descriptor) {
            Ok(Taken::Inline) => posted.inline_done += 1,
            Ok(Taken::Staged) => {}
            Err(status) => {
                posted.status = status;
                break;
            }
        }
        posted.accepted += 1;
        match descriptor.opcode {
            OP_WRITE | OP_WRITE_REDUCE => written = descriptor.bytes.saturating_add(written),
            OP_READ | OP_READ_REDUCE => read = descriptor.bytes.saturating_add(read),
            _ => {}
        }
        notifies += u64::from(notifies_peer(descriptor));
    }
    Tally::add(&inner.tally.descriptors, u64::from(posted.accepted));
    Tally::add(&inner.tally.bytes_written, written);
    Tally::add(&inner.tally.bytes_read, read);
    Tally::add(&inner.tally.notifies, notifies);
    posted
}

/// Hands out completions of staged descriptors.
pub(crate) fn poll(device: &DeviceCore, out: &mut [CompletionV1]) -> usize {
    let mut found = 0;
    for channel in device.channels().iter() {
        if channel.staged.load(Ordering::Acquire) == 0
            && channel.completed.load(Ordering::Acquire) == 0
        {
            continue;
        }
        let (mut outbound, _) = pump(channel);
        while found < out.len()
            && let Some(completion) = outbound.next_completion()
        {
            out[found] = completion;
            found += 1;
        }
        note(channel, &outbound);
    }
    found
}

/// Whether everything accepted is visible at the peer.
pub(crate) fn flush(channel: &Channel) -> Result<bool, i32> {
    let inner = &*channel.inner;
    inner.usable()?;
    if inner.staged.load(Ordering::Acquire) == 0 {
        return Ok(true);
    }
    let (outbound, _) = pump(inner);
    inner.usable()?;
    match outbound.unreported_failure() {
        Some(status) => Err(status),
        None => Ok(outbound.unfinished() == 0),
    }
}

/// Serves peers and moves transfers on; whether anything was done.
pub(crate) fn progress(device: &DeviceCore) -> bool {
    let mut moved = device.expect_peers();
    for channel in device.channels().iter() {
        let Ok(Link {
            side: Side::Other(other),
            ..
        }) = channel.usable()
        else {
            // A channel that failed still owes completions.
            if channel.staged.load(Ordering::Acquire) != 0 {
                moved |= pump(channel).1;
            }
            continue;
        };
        moved |= channel.hear(other);
        moved |= serve(channel, other, device);
        if channel.staged.load(Ordering::Acquire) != 0 {
            moved |= pump(channel).1;
        }
    }
    moved
}

/// Does one descriptor, or hands it to the ring.
fn take(inner: &ChannelInner, link: &Link, descriptor: &DescriptorV1) -> Result<Taken, i32> {
    let notify = notifies_peer(descriptor).then_some((descriptor.notify, descriptor.fingerprint));
    if descriptor.flags & !FLAG_NOTIFY != 0 {
        return Err(STATUS_INVALID_ARGUMENT);
    }
    if notify.is_some_and(|(index, _)| index >= link.segment().notifies()) {
        return Err(STATUS_INVALID_ARGUMENT);
    }
    // Decided before the bytes move: a descriptor that is not taken leaves no trace, and the place
    // in the queue stays free, for only this thread fills it.
    let behind =
        notify.is_some() && inner.staged.load(Ordering::Acquire) != 0 && must_follow(inner)?;
    let staged_to = match descriptor.opcode {
        OP_NOTIFY => None,
        OP_WRITE | OP_READ | OP_WRITE_REDUCE | OP_READ_REDUCE => {
            move_bytes(inner, link, descriptor, local_of(descriptor)?)?
        }
        _ => return Err(STATUS_UNSUPPORTED),
    };
    if let Some((region, key)) = staged_to {
        let transfer = Transfer::new(
            descriptor.opcode,
            local_of(descriptor)?,
            region,
            key,
            descriptor.remote_offset,
            notify,
            (descriptor.dtype, descriptor.redop),
            descriptor.cookie,
        );
        return hand_over(inner, transfer);
    }
    let Some((index, fingerprint)) = notify else {
        return Ok(Taken::Inline);
    };
    if behind {
        // The bytes of this descriptor, if any, have landed; its notify goes behind what is on its
        // way.
        return hand_over(inner, Transfer::notify_only(notify, descriptor.cookie));
    }
    let (segment, half) = inner.records(link);
    segment.record(half, index, fingerprint);
    inner.ring(link);
    Ok(Taken::Inline)
}

/// Moves the bytes of a descriptor if there is a way to do so here and now; otherwise says what
/// the ring calls the place.
fn move_bytes(
    inner: &ChannelInner,
    link: &Link,
    descriptor: &DescriptorV1,
    local: Span<'static>,
) -> Result<Option<(u64, Token)>, i32> {
    let import = import_of(descriptor)?;
    if import.channel != inner.number() {
        return Err(STATUS_INVALID_ARGUMENT);
    }
    let reads = matches!(descriptor.opcode, OP_READ | OP_READ_REDUCE);
    if reads && descriptor.flags & FLAG_NOTIFY != 0 {
        return Err(STATUS_INVALID_ARGUMENT);
    }
    if descriptor
        .remote_offset
        .checked_add(descriptor.bytes)
        .is_none_or(|end| end > import.bytes)
    {
        return Err(STATUS_OUT_OF_BOUNDS);
    }
    let reduces = matches!(descriptor.opcode, OP_WRITE_REDUCE | OP_READ_REDUCE);
    let element = match element_bytes(descriptor.dtype) {
        _ if !reduces => 1,
        Some(element)
            if descriptor.redop < 4 && descriptor.bytes.is_multiple_of(element as u64) =>
        {
            element
        }
        _ => return Err(STATUS_INVALID_ARGUMENT),
    };
    let through = |remote: Span<'_>| {
        let remote = remote
            .part(descriptor.remote_offset, descriptor.bytes)
            .ok_or(STATUS_OUT_OF_BOUNDS)?;
        let (to, from) = if reads {
            (local, remote)
        } else {
            (remote, local)
        };
        if reduces {
            let host = inner.device().host;
            to.reduce_from(from, host, element, descriptor.dtype, descriptor.redop)
        } else {
            to.copy_from(from);
            Ok(())
        }
    };
    match &import.target {
        Target::Mapped(mapping) => through(mapping.span()).map(|()| None),
        Target::Local(region) => {
            let open = region.enter().ok_or(STATUS_STALE_KEY)?;
            through(open.span()).map(|()| None)
        }
        Target::User {
            direct: Some(place),
            region,
            key,
        } => {
            let reduction = Reduction {
                host: inner.device().host,
                element,
                dtype: descriptor.dtype,
                redop: descriptor.redop,
            };
            let how = match (reads, reduces) {
                (false, false) => Move::Write,
                (true, false) => Move::Read,
                (false, true) => Move::WriteReduce(reduction),
                (true, true) => Move::ReadReduce(reduction),
            };
            match reach_out(inner, link, *place, descriptor.remote_offset, local, how) {
                Ok(()) => Ok(None),
                Err(Stop::Forbidden) => Ok(Some((*region, *key))),
                Err(Stop::Failed(status)) => Err(status),
            }
        }
        Target::User {
            direct: None,
            region,
            key,
        } => Ok(Some((*region, *key))),
        Target::Asked { .. } => Err(STATUS_INVALID_ARGUMENT),
    }
}

/// Moves bytes to or from lent memory of the peer.
fn reach_out(
    inner: &ChannelInner,
    link: &Link,
    place: Place,
    at: u64,
    local: Span<'static>,
    how: Move,
) -> Result<(), Stop> {
    let Side::Other(other) = &link.side else {
        return Err(Stop::Forbidden);
    };
    let Ok(reach) = &other.reach else {
        return Err(Stop::Forbidden);
    };
    let moved = reach.move_bytes(&other.segment, place, at, local, how);
    match moved {
        Ok(()) if matches!(how, Move::WriteReduce(_) | Move::ReadReduce(_)) => {
            Tally::add(&inner.tally.bytes_staged, local.bytes() as u64);
        }
        Err(Stop::Failed(STATUS_PEER_LOST)) => inner.fail(STATUS_PEER_LOST),
        _ => {}
    }
    moved
}

/// Whether a notify must go through the ring to keep its place. Refused if it cannot.
fn must_follow(inner: &ChannelInner) -> Result<bool, i32> {
    let (outbound, _) = pump(inner);
    match outbound.unreported_failure() {
        // It would announce what never came.
        Some(status) => Err(status),
        None if outbound.is_full() => Err(STATUS_NO_RESOURCE),
        None => Ok(outbound.unfinished() > 0),
    }
}

/// Puts a transfer into the queue of the ring and starts it.
fn hand_over(inner: &ChannelInner, transfer: Transfer) -> Result<Taken, i32> {
    let (mut outbound, _) = pump(inner);
    if !outbound.accept(transfer) {
        return Err(STATUS_NO_RESOURCE);
    }
    drain(inner, &mut outbound);
    Ok(Taken::Staged)
}

/// Locks the requesting half and moves it on; whether anything happened.
fn pump(inner: &ChannelInner) -> (MutexGuard<'_, Outbound>, bool) {
    let mut outbound = lock(&inner.outbound);
    let moved = drain(inner, &mut outbound);
    (outbound, moved)
}

fn drain(inner: &ChannelInner, outbound: &mut Outbound) -> bool {
    let pumped = inner.usable().and_then(|link| match &link.side {
        Side::Same(_) => Ok(false),
        Side::Other(other) => {
            let pumped = outbound.pump(&other.segment, inner.device().host)?;
            Tally::add(&inner.tally.bytes_staged, pumped.staged_bytes);
            if pumped.issued {
                other.ring();
            }
            Ok(pumped.issued || pumped.collected)
        }
    });
    let moved = match pumped {
        Ok(moved) => moved,
        Err(status) => {
            inner.fail(status);
            let owed = outbound.unfinished() > 0;
            outbound.fail_all(status);
            owed
        }
    };
    note(inner, outbound);
    moved
}

/// Publishes what the unlocked paths look at.
fn note(inner: &ChannelInner, outbound: &Outbound) {
    let failures = usize::from(outbound.unreported_failure().is_some());
    inner
        .staged
        .store(outbound.unfinished() + failures, Ordering::Release);
    inner
        .completed
        .store(outbound.completed(), Ordering::Release);
}

/// Applies what the peer has put into our ring.
fn serve(channel: &ChannelInner, other: &Other, device: &DeviceCore) -> bool {
    let mut inbound = lock(&channel.inbound);
    let Some(waits) = channel.waits() else {
        return false;
    };
    match inbound.serve(channel.own(), waits, device, device.host) {
        Ok(served) => {
            if served.notifies > 0 {
                device.host.ring();
            }
            if served.entries > 0 {
                other.ring();
            }
            served.entries > 0
        }
        Err(status) => {
            channel.fail(status);
            true
        }
    }
}

const fn notifies_peer(descriptor: &DescriptorV1) -> bool {
    descriptor.opcode == OP_NOTIFY || descriptor.flags & FLAG_NOTIFY != 0
}
