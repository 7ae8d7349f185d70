//! What the fast calls do.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use hcomm_transport_abi::{
    CompletionV1, DescriptorV1, FLAG_NOTIFY, OP_NOTIFY, OP_READ, OP_READ_REDUCE, OP_WRITE,
    OP_WRITE_REDUCE, Posted, STATUS_INVALID_ARGUMENT, STATUS_NO_RESOURCE, STATUS_OK,
    STATUS_UNSUPPORTED,
};

use crate::channel::{Channel, End};
use crate::device::{Device, MAX_BATCH, host, now_ns};
use crate::flight::Parcel;
use crate::sys::{self, Job};

/// Sends a prefix of a batch.
pub(crate) fn post(channel: &Channel, batch: &[DescriptorV1]) -> Posted {
    let mut posted = Posted {
        accepted: 0,
        inline_done: 0,
        status: STATUS_OK,
    };
    let peer = match channel.peer() {
        Ok(peer) => peer,
        Err(status) => return Posted { status, ..posted },
    };
    let now_ns = now_ns();
    for descriptor in batch {
        let taken = if posted.accepted == MAX_BATCH {
            Err(STATUS_NO_RESOURCE)
        } else {
            parcel(channel, &peer, descriptor)
                .and_then(|parcel| channel.end().wire.take(parcel, now_ns))
        };
        match taken {
            // All others of the batch come later.
            Ok(arrives_ns) => peer.alarm.add(arrives_ns, now_ns),
            Err(status) => {
                posted.status = status;
                break;
            }
        }
        posted.accepted += 1;
        count(channel, descriptor);
    }
    posted
}

/// A descriptor that was checked: what could be wrong with it does not come up on the way.
fn parcel(channel: &Channel, peer: &End, descriptor: &DescriptorV1) -> Result<Parcel, i32> {
    let may_notify = match descriptor.opcode {
        OP_WRITE | OP_WRITE_REDUCE => true,
        OP_READ | OP_READ_REDUCE | OP_NOTIFY => false,
        _ => return Err(STATUS_UNSUPPORTED),
    };
    let notifies = match descriptor.flags {
        0 => descriptor.opcode == OP_NOTIFY,
        FLAG_NOTIFY if may_notify => true,
        _ => return Err(STATUS_INVALID_ARGUMENT),
    };
    if notifies && !peer.has_line(descriptor.notify) {
        return Err(STATUS_INVALID_ARGUMENT);
    }
    let memory = if descriptor.opcode == OP_NOTIFY {
        None
    } else {
        let import = sys::import_of(descriptor)
            .filter(|import| import.end == channel.end().number())
            .ok_or(STATUS_INVALID_ARGUMENT)?;
        let (span, _entered) = import.memory.enter()?;
        sys::check(descriptor, span)?;
        Some(Arc::clone(&import.memory))
    };
    let notify = notifies.then_some(descriptor.notify);
    Ok(Parcel::new(Job::new(descriptor), memory, notify))
}

fn count(channel: &Channel, descriptor: &DescriptorV1) {
    let opening = channel.opening();
    let notifies = descriptor.opcode == OP_NOTIFY || descriptor.flags & FLAG_NOTIFY != 0;
    opening.descriptors.fetch_add(1, Ordering::Relaxed);
    (opening.notifies).fetch_add(notifies.into(), Ordering::Relaxed);
    match descriptor.opcode {
        OP_WRITE | OP_WRITE_REDUCE => &opening.bytes_written,
        OP_READ | OP_READ_REDUCE => &opening.bytes_read,
        _ => return,
    }
    .fetch_add(descriptor.bytes, Ordering::Relaxed);
}

/// Hands out what was answered.
pub(crate) fn poll(device: &Device, out: &mut [CompletionV1]) -> usize {
    let now_ns = now_ns();
    let mut found = 0;
    device.opening().each_end(|end| {
        if let Err(status) = end.peer() {
            end.wire.fail_all(status);
        }
        found += end.wire.answers(&mut out[found..], now_ns);
    });
    found
}

/// Whether everything that was sent has arrived.
pub(crate) fn flush(channel: &Channel) -> Result<bool, i32> {
    channel.peer()?;
    channel.end().wire.is_flushed(now_ns())
}

/// Carries out what has arrived here.
pub(crate) fn progress(device: &Device) -> bool {
    let now_ns = now_ns();
    let mut moved = false;
    device.opening().each_end(|end| {
        let Ok(peer) = end.peer() else { return };
        let (arrived, first_answer) = peer.wire.arrive(end, now_ns);
        moved |= arrived > 0;
        if let Some(arrives_ns) = first_answer {
            peer.alarm.add(arrives_ns, now_ns);
        }
    });
    // Another OS thread may sleep for what this one has landed.
    if moved && let Some(host) = host() {
        host.ring();
    }
    moved
}

/// Sets the alarm to what comes next; false if it is there already.
pub(crate) fn arm(device: &Device) -> bool {
    let alarm = &device.opening().alarm;
    // First, so that whatever is sent from now on sets it.
    alarm.clear();
    let mut next_ns = None;
    device.opening().each_end(|end| {
        let arrival = end.peer().ok().and_then(|peer| peer.wire.next_arrival_ns());
        let both = [arrival, end.wire.next_answer_ns()];
        next_ns = both.into_iter().flatten().chain(next_ns).min();
    });
    let now_ns = now_ns();
    match next_ns {
        Some(at_ns) if at_ns <= now_ns => false,
        Some(at_ns) => {
            alarm.add(at_ns, now_ns);
            true
        }
        None => true,
    }
}
