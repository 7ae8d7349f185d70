//! What the fast calls do.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use hcomm_transport_abi::{
    DescriptorV1, FLAG_NOTIFY, OP_NOTIFY, OP_READ, OP_READ_REDUCE, OP_WRITE, OP_WRITE_REDUCE,
    Posted, STATUS_INVALID_ARGUMENT, STATUS_OK, STATUS_OUT_OF_BOUNDS, STATUS_UNSUPPORTED,
};

use crate::channel::{Channel, Link, Pump};
use crate::device::lock;
use crate::inbound::element_bytes;
use crate::outbound::Job;
use crate::places::MAX_BATCH;
use crate::sys;

/// Sends a prefix of a batch.
pub(crate) fn post(channel: &Channel, batch: &[DescriptorV1]) -> Posted {
    let inner = &channel.inner;
    let mut posted = Posted {
        accepted: 0,
        inline_done: 0,
        status: STATUS_OK,
    };
    let link = match inner.usable() {
        Ok(link) => link,
        Err(status) => return Posted { status, ..posted },
    };
    let mut outbound = lock(inner.outbound());
    // Who ends the channel fails what is posted by then, and nothing later.
    if let Err(status) = inner.usable() {
        return Posted { status, ..posted };
    }
    let first = outbound.next_number();
    for descriptor in batch {
        let taken = if posted.accepted == MAX_BATCH {
            Err(STATUS_INVALID_ARGUMENT)
        } else {
            job(channel, link, descriptor).and_then(|job| outbound.take(job))
        };
        match taken {
            Ok(done) => posted.inline_done += u32::from(done),
            Err(status) => {
                posted.status = status;
                break;
            }
        }
        posted.accepted += 1;
        count(channel, descriptor);
    }
    match inner.pump(link, &mut outbound, first) {
        Pump::Went(pumped) => posted.inline_done += pumped.inline_done,
        Pump::Failed(failure, pumped) => {
            posted.inline_done += pumped.inline_done;
            drop(outbound);
            let status = inner.fail_outbound(link, failure);
            // What was accepted has a completion that says so.
            if posted.accepted == 0 {
                posted.status = status;
            }
        }
    }
    posted
}

/// A descriptor that was checked.
fn job(channel: &Channel, link: &Link, descriptor: &DescriptorV1) -> Result<Job, i32> {
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
    if notifies && descriptor.notify >= link.peer.notifies {
        return Err(STATUS_INVALID_ARGUMENT);
    }
    let mut job = Job {
        opcode: descriptor.opcode,
        flags: descriptor.flags,
        local: sys::Span::EMPTY,
        handle: 0,
        offset: 0,
        notify: descriptor.notify,
        reduction: (0, 0),
        fingerprint: descriptor.fingerprint,
        cookie: descriptor.cookie,
    };
    if descriptor.opcode == OP_NOTIFY {
        return Ok(job);
    }
    let import = sys::import_of(descriptor)
        .filter(|import| Arc::ptr_eq(&import.channel, &channel.inner))
        .ok_or(STATUS_INVALID_ARGUMENT)?;
    let (handle, bytes) = import.known.ok_or(STATUS_INVALID_ARGUMENT)?;
    let end = descriptor.remote_offset.checked_add(descriptor.bytes);
    if end.is_none_or(|end| end > bytes) {
        return Err(STATUS_OUT_OF_BOUNDS);
    }
    if matches!(descriptor.opcode, OP_WRITE_REDUCE | OP_READ_REDUCE) {
        job.reduction = (descriptor.dtype, descriptor.redop);
        let element = element_bytes(job.reduction).ok_or(STATUS_INVALID_ARGUMENT)?;
        if !descriptor.bytes.is_multiple_of(element as u64) {
            return Err(STATUS_INVALID_ARGUMENT);
        }
    }
    job.local = sys::local_of(descriptor)?;
    (job.handle, job.offset) = (handle, descriptor.remote_offset);
    Ok(job)
}

fn count(channel: &Channel, descriptor: &DescriptorV1) {
    let tally = &channel.inner.device().tally;
    tally.descriptors.fetch_add(1, Ordering::Relaxed);
    if descriptor.opcode == OP_NOTIFY || descriptor.flags & FLAG_NOTIFY != 0 {
        tally.notifies.fetch_add(1, Ordering::Relaxed);
    }
    match descriptor.opcode {
        OP_WRITE | OP_WRITE_REDUCE => &tally.bytes_written,
        OP_READ | OP_READ_REDUCE => &tally.bytes_read,
        _ => return,
    }
    .fetch_add(descriptor.bytes, Ordering::Relaxed);
}

/// Whether everything that was accepted is visible at the peer.
pub(crate) fn flush(channel: &Channel) -> Result<bool, i32> {
    let inner = &channel.inner;
    let link = inner.usable()?;
    let mut outbound = lock(inner.outbound());
    if outbound.is_flushed() {
        return Ok(true);
    }
    match inner.pump(link, &mut outbound, u64::MAX) {
        Pump::Went(_) => Ok(false),
        Pump::Failed(failure, _) => {
            drop(outbound);
            Err(inner.fail_outbound(link, failure))
        }
    }
}
