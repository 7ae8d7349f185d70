//! Where the peer waits, in the right and in several wrong ways.

use core::ptr::{NonNull, from_ref, null};
use core::sync::atomic::{AtomicI32, Ordering};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hcomm_transport_abi::{
    BellV1, Fault, PeerV1, STATUS_NOT_CONNECTED, STATUS_OK, STATUS_PEER_LOST,
};

use crate::channel::{Channel, Line};
use crate::wrong::Wrong;

/// States of channels, by the number of their end. Kept for ever: the host may look at one as long
/// as it has the channel.
static STATES: Mutex<BTreeMap<u64, &'static AtomicI32>> = Mutex::new(BTreeMap::new());

/// A bell at which nobody sleeps.
static SILENT: BellV1 = BellV1 {
    sequence: 0,
    sleepers: 0,
    pollers: 0,
    barrier: 0,
    reserved: [0; 12],
};

/// What is given for a channel, if it was asked for.
pub(crate) fn map_peer(channel: &Channel) -> Result<PeerV1, Fault> {
    let wrong = match Wrong::asked() {
        Ok(Some(wrong)) if wrong.maps_peer() => wrong,
        _ => return Err(Fault::unsupported("this transport maps no notifies")),
    };
    let own = |index| channel.line(index);
    let peer = match channel.peer() {
        Ok(peer) => Some(peer),
        Err(STATUS_NOT_CONNECTED) if wrong == Wrong::MapEarly => None,
        Err(status) => return Err(Fault::new(status, "there is no peer")),
    };
    let theirs = |index| match peer {
        Some(peer) => peer.line(index).map(|line| NonNull::from(line).cast()),
        None => own(index),
    };
    let notifies = (0..).take_while(|&index| theirs(index).is_some()).count() as u32;
    let lines = match wrong {
        Wrong::MapLines => own(0),
        _ => theirs(0),
    };
    let stride = size_of::<Line>() as u32;
    let bell = if wrong == Wrong::MapBell {
        from_ref(&SILENT)
    } else {
        null()
    };
    let mut states = states();
    let state = states
        .entry(channel.number())
        .or_insert_with(|| Box::leak(Box::new(AtomicI32::new(STATUS_OK))));
    Ok(PeerV1 {
        lines: lines.map_or(core::ptr::null_mut(), NonNull::as_ptr),
        notifies: notifies + u32::from(wrong == Wrong::MapNotifies),
        stride: if wrong == Wrong::MapStride {
            stride / 2
        } else {
            stride
        },
        bell,
        state: state.as_ptr().cast_const(),
    })
}

/// Tells the peer's state that this end goes.
pub(crate) fn destroy(channel: &Channel) {
    let mut states = states();
    if let Ok(peer) = channel.peer()
        && let Some(state) = states.get(&peer.number())
        && !Wrong::MapState.is_asked()
    {
        state.store(STATUS_PEER_LOST, Ordering::Release);
    }
    states.remove(&channel.number());
}

fn states() -> MutexGuard<'static, BTreeMap<u64, &'static AtomicI32>> {
    STATES.lock().unwrap_or_else(PoisonError::into_inner)
}
