//! What `post` does.

use core::sync::atomic::Ordering;

use hcomm_transport_abi::{
    DescriptorV1, FLAG_NOTIFY, OP_NOTIFY, OP_READ, OP_READ_REDUCE, OP_WRITE, OP_WRITE_REDUCE,
    Posted, STATUS_INVALID_ARGUMENT, STATUS_NO_RESOURCE, STATUS_OK, STATUS_UNSUPPORTED,
};

use crate::channel::Channel;
use crate::device::{MAX_BATCH, host};
use crate::sys;

/// Carries out a batch in its order, so that each notify comes after all before it. Stops at the
/// first descriptor that cannot be carried out, which then has had no effect.
pub(crate) fn post(channel: &Channel, batch: &[DescriptorV1]) -> Posted {
    let mut done = 0;
    let mut recorded = false;
    let mut status = STATUS_OK;
    for descriptor in batch {
        if done == MAX_BATCH {
            status = STATUS_NO_RESOURCE;
            break;
        }
        match carry_out(channel, descriptor) {
            Ok(with_notify) => recorded |= with_notify,
            Err(fault) => {
                status = fault;
                break;
            }
        }
        done += 1;
    }
    // One ring wakes for all notifies of the batch.
    if recorded && let Some(host) = host() {
        host.ring();
    }
    Posted {
        accepted: done,
        inline_done: done,
        status,
    }
}

/// Carries out one descriptor; says whether it recorded a notify.
fn carry_out(channel: &Channel, descriptor: &DescriptorV1) -> Result<bool, i32> {
    let peer = channel.peer()?;
    let may_notify = match descriptor.opcode {
        OP_WRITE | OP_WRITE_REDUCE => true,
        OP_READ | OP_READ_REDUCE | OP_NOTIFY => false,
        _ => return Err(STATUS_UNSUPPORTED),
    };
    let wants_notify = match descriptor.flags {
        0 => descriptor.opcode == OP_NOTIFY,
        FLAG_NOTIFY if may_notify => true,
        _ => return Err(STATUS_INVALID_ARGUMENT),
    };
    // Found before bytes move: a descriptor has its whole effect or none.
    let line = wants_notify
        .then(|| peer.line(descriptor.notify).ok_or(STATUS_INVALID_ARGUMENT))
        .transpose()?;
    if descriptor.opcode != OP_NOTIFY {
        let import = sys::import_of(descriptor)
            .filter(|import| import.end == channel.number())
            .ok_or(STATUS_INVALID_ARGUMENT)?;
        let (span, _copying) = import.memory.enter()?;
        sys::transfer(descriptor, span)?;
    }
    if let Some(line) = line {
        line.record(descriptor.fingerprint);
    }
    count(channel, descriptor, line.is_some());
    Ok(line.is_some())
}

fn count(channel: &Channel, descriptor: &DescriptorV1, recorded: bool) {
    let opening = channel.opening();
    opening.descriptors.fetch_add(1, Ordering::Relaxed);
    opening
        .notifies
        .fetch_add(recorded.into(), Ordering::Relaxed);
    match descriptor.opcode {
        OP_WRITE | OP_WRITE_REDUCE => &opening.bytes_written,
        OP_READ | OP_READ_REDUCE => &opening.bytes_read,
        _ => return,
    }
    .fetch_add(descriptor.bytes, Ordering::Relaxed);
}
