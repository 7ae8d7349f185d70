//! What a plugin lets the host reach of the peer, and what it tells people about a channel.

use hcomm_transport::Capabilities;
use hcomm_transport_abi::{NotifyLineV1, PeerV1, STATUS_OK, STATUS_PEER_LOST, STATUS_UNSUPPORTED};

use crate::case::Case;
use crate::content::Content;
use crate::memory::Kind;
use crate::pair::{Pair, Who};
use crate::raw::{RawDevice, RawLine, RawPair, Table, state_of};
use crate::side::{Id, Op, Reply, Request};
use crate::verdict::{Stop, ensure, ensure_eq, fail};

fn maps_none() -> Stop {
    Stop::Skip("`map_peer` is unsupported".to_owned())
}

/// Lines, their number and distance, bell and state, in one process and by the table alone.
pub(super) fn table(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::SAME_PROCESS | Capabilities::NOTIFY)?;
    let device = Table::of(case.subject())?.open(case.info().index)?;
    let (status, end) = device.create(1);
    ensure_eq("create_channel", status, STATUS_OK)?;
    let (status, _) = device.map_peer(end).ok_or_else(maps_none)?;
    ensure(status < 0, || {
        format!("map_peer of an end without a peer: status {status}")
    })?;
    let most = case.info().max_notifies;
    for (near, far) in [(1, 1), (3, 3), (2, 5), (5, 2), (0, 1)] {
        let notifies = [near, far].map(|notifies: u32| notifies.min(most));
        let pair = RawPair::with_notifies(case, notifies, 64)?;
        let ends = [
            (&pair.near, pair.near_end, notifies[0]),
            (&pair.far, pair.far_end, notifies[1]),
        ];
        for (own, peer) in [(0, 1), (1, 0)] {
            records_arrive(ends[own], ends[peer])?;
        }
        state_follows(&pair)?;
    }
    Ok(())
}

/// An end, and how many notifies it waits on.
type End<'a> = (&'a RawDevice, *mut hcomm_transport_abi::Channel, u32);

/// What `map_peer` gives for `own` is where `peer` waits.
fn records_arrive(own: End<'_>, peer: End<'_>) -> Result<(), Stop> {
    let (device, end, _) = own;
    let there = match device.map_peer(end).ok_or_else(maps_none)? {
        (STATUS_OK, there) => there,
        (STATUS_UNSUPPORTED, _) => return Err(maps_none()),
        (status, _) => return Err(fail(format!("map_peer: status {status}"))),
    };
    let line = size_of::<NotifyLineV1>();
    ensure_eq("notifies of the peer", there.notifies, peer.2)?;
    ensure(
        there.stride as usize >= line && (there.stride as usize).is_multiple_of(line),
        || {
            format!(
                "lines are {} bytes apart: no multiple of {line}",
                there.stride
            )
        },
    )?;
    ensure(
        there.notifies == 0 || !there.lines.is_null() && there.lines.is_aligned(),
        || format!("lines at {:?}", there.lines),
    )?;
    ensure(!there.state.is_null() && there.state.is_aligned(), || {
        format!("the state is at {:?}", there.state)
    })?;
    ensure_eq("state of a channel that works", state_of(&there), STATUS_OK)?;
    ensure(there.bell.is_null(), || {
        "a bell for a peer of this process: the host would not ring its own".to_owned()
    })?;
    let fields = |peer: &PeerV1| {
        (
            peer.lines,
            peer.notifies,
            peer.stride,
            peer.bell,
            peer.state,
        )
    };
    let again = device.map_peer(end).map(|(_, peer)| fields(&peer));
    ensure_eq("map_peer again", again, Some(fields(&there)))?;
    let counts = |(device, end, notifies): End<'_>| -> Result<Vec<_>, Stop> {
        (0..notifies)
            .map(|index| {
                device
                    .notify(end, index)
                    .ok_or_else(|| fail(format!("no line of notify {index} of {notifies}")))
            })
            .collect()
    };
    let own_before = counts(own)?;
    let mut expected = counts(peer)?;
    for (index, expected_there) in (0..).zip(0..peer.2 as usize) {
        let fingerprint = [u64::from(index) + 1, 0x5eed];
        // SAFETY: one of the peer's lines, by what was just looked at; nobody else records.
        unsafe { RawLine::of_peer(&there, index).record(fingerprint) };
        device.ring(end);
        expected[expected_there].0 += 1;
        expected[expected_there].1 = fingerprint;
        ensure_eq(
            &format!("notifies of the peer after a store for {index}"),
            counts(peer)?,
            expected.clone(),
        )?;
    }
    ensure_eq("own notifies", counts(own)?, own_before)
}

/// The state tells that the peer has gone, at the latest when `check` has said so.
fn state_follows(pair: &RawPair) -> Result<(), Stop> {
    let there = match pair.near.map_peer(pair.near_end) {
        Some((STATUS_OK, there)) => there,
        other => {
            return Err(fail(format!(
                "map_peer a second time: {:?}",
                other.map(|o| o.0)
            )));
        }
    };
    ensure_eq("destroy_channel", pair.far.destroy(pair.far_end), STATUS_OK)?;
    ensure_eq(
        "check after the peer has gone",
        pair.near.check(pair.near_end),
        STATUS_PEER_LOST,
    )?;
    ensure_eq(
        "state after the peer has gone",
        state_of(&there),
        STATUS_PEER_LOST,
    )?;
    pair.near.ring(pair.near_end);
    Ok(())
}

/// The host's stores arrive, in any order with what is posted, and nowhere else; the peer makes no
/// call for it.
pub(super) fn notifies(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::NOTIFY)?;
    let most = case.info().max_notifies.min(5);
    let mut pair = case.pair()?;
    for notifies in [[most, most], [most, 1], [1, most]] {
        let channel = pair.channel_with(notifies[0], notifies[1], 16)?;
        for (who, own, theirs) in [
            (Who::Near, notifies[0], notifies[1]),
            (Who::Far, notifies[1], notifies[0]),
        ] {
            let own_before = counts(&mut pair, who, channel, own)?;
            pair.done(who.other(), Request::Quiet(true))?;
            each_arrives(&mut pair, who, channel, theirs)?;
            pair.done(who.other(), Request::Quiet(false))?;
            for index in [theirs, u32::MAX] {
                ensure(!pair.record(who, channel, index, [0; 2])?, || {
                    format!("notify {index} of {theirs} was recorded by a store")
                })?;
            }
            // By turns with what is posted.
            let index = theirs - 1;
            for count in 2..=9 {
                if count % 3 == 0 {
                    pair.post(who, channel, vec![Op::Notify(index, [0; 2])])?;
                } else {
                    must_record(&mut pair, who, channel, index, [0; 2])?;
                }
                pair.wait(who.other(), channel, index, count)?;
            }
            let own_after = counts(&mut pair, who, channel, own)?;
            ensure_eq("own notifies", own_after, own_before)?;
        }
    }
    if case.can(Capabilities::MAP) {
        bytes_come_first(case, &mut pair)?;
    }
    Ok(())
}

fn counts(pair: &mut Pair, who: Who, channel: Id, notifies: u32) -> Result<Vec<u64>, Stop> {
    (0..notifies)
        .map(|index| pair.look(who, channel, index))
        .collect()
}

fn must_record(
    pair: &mut Pair,
    who: Who,
    channel: Id,
    index: u32,
    fingerprint: [u64; 2],
) -> Result<(), Stop> {
    let recorded = pair.record(who, channel, index, fingerprint)?;
    ensure(recorded, || {
        format!("{who:?} side: notify {index} is there, and not among those that are mapped")
    })
}

fn each_arrives(pair: &mut Pair, who: Who, channel: Id, theirs: u32) -> Result<(), Stop> {
    if !pair.record(who, channel, 0, [1, 77])? {
        return Err(maps_none());
    }
    for index in 0..theirs {
        if index > 0 {
            must_record(pair, who, channel, index, [u64::from(index) + 1, 77])?;
        }
        let found = counts(pair, who.other(), channel, theirs)?;
        let expected: Vec<u64> = (0..theirs).map(|other| u64::from(other <= index)).collect();
        ensure_eq("notifies of the peer", found, expected)?;
        let fingerprint = pair.wait(who.other(), channel, index, 1)?;
        ensure_eq("fingerprint", fingerprint, [u64::from(index) + 1, 77])?;
    }
    Ok(())
}

/// Bytes that were stored through a mapping before the record are there with it.
fn bytes_come_first(case: &Case, pair: &mut Pair) -> Result<(), Stop> {
    let bytes = case.at_most(9001);
    let channel = pair.channel(1)?;
    for who in Who::BOTH {
        let shared = pair.share(who.other(), channel, Kind::Allocated, bytes)?;
        for round in 1..=20 {
            let content = Content::Bytes { seed: round };
            let request = Request::FillMapped {
                import: shared.import,
                at: 0,
                len: bytes,
                content,
            };
            pair.done(who, request)?;
            must_record(pair, who, channel, 0, [0; 2])?;
            pair.wait(who.other(), channel, 0, round)?;
            pair.expect(who.other(), shared.memory, 0, bytes, content)?;
        }
    }
    Ok(())
}

/// Whoever sleeps for a record is woken by a store, too: the host finds the sleeper in the peer's
/// bell, and `ring` wakes it.
pub(super) fn wakes(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::NOTIFY)?;
    let mut pair = case.pair()?;
    let channel = pair.channel(1)?;
    for count in 1..=15 {
        for who in Who::BOTH {
            let record = Request::Record {
                channel,
                index: 0,
                fingerprint: [0; 2],
                after_ms: count % 5,
            };
            if count == 1 && !pair.record(who, channel, 0, [0; 2])? {
                return Err(maps_none());
            }
            let asleep = Request::AwaitAsleep {
                channel,
                index: 0,
                count: count + 1,
            };
            let [recorded, _] = pair.together(who, record, asleep)?;
            ensure_eq("answer", recorded, Reply::Recorded(true))?;
        }
    }
    Ok(())
}

/// What `fetch` copies are the bytes that the peer's process has there, no less and no more; and what
/// is not there is an error.
pub(super) fn fetch(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::SAME_PROCESS)?;
    let none = || Stop::Skip("`fetch` is unsupported".to_owned());
    let pair = RawPair::new(case, 0, 64)?;
    let (device, end) = (&pair.near, pair.near_end);
    match device.fetch(end, &mut [], 0).ok_or_else(none)? {
        STATUS_OK => {}
        STATUS_UNSUPPORTED => return Err(none()),
        status => return Err(fail(format!("fetch of no bytes: status {status}"))),
    }
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    for (from, bytes) in [(0, 1), (13, 64), (4095, 4097), (1, 2_999_998)] {
        const AROUND: usize = 32;
        let mut local = vec![0xEE; bytes + 2 * AROUND];
        let address = content[from..].as_ptr() as u64;
        let status = device.fetch(end, &mut local[AROUND..AROUND + bytes], address);
        ensure_eq(&format!("fetch of {bytes} bytes"), status, Some(STATUS_OK))?;
        let (before, rest) = local.split_at(AROUND);
        let (found, behind) = rest.split_at(bytes);
        ensure(found == &content[from..from + bytes], || {
            format!("fetch of {bytes} bytes at {from} brought others")
        })?;
        ensure(
            before.iter().chain(behind).all(|byte| *byte == 0xEE),
            || format!("fetch of {bytes} bytes wrote around them"),
        )?;
    }
    for address in [0, 4096, u64::MAX - 7] {
        let status = device.fetch(end, &mut [0; 64], address);
        ensure(status.is_some_and(|status| status < 0), || {
            format!("fetch from {address:#x}, where nothing is: status {status:?}")
        })?;
    }
    let alone = Table::of(case.subject())?.open(case.info().index)?;
    let (status, unconnected) = alone.create(0);
    ensure_eq("create_channel", status, STATUS_OK)?;
    let status = alone.fetch(unconnected, &mut [], 0);
    ensure(status.is_some_and(|status| status < 0), || {
        format!("fetch on an end without a peer: status {status:?}")
    })
}

/// A description keeps to the buffer, and is a text however long that is.
pub(super) fn description_fits(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::SAME_PROCESS)?;
    let device = Table::of(case.subject())?.open(case.info().index)?;
    let (status, end) = device.create(0);
    ensure_eq("create_channel", status, STATUS_OK)?;
    let pair = RawPair::new(case, 0, 64)?;
    for (device, end) in [(&device, end), (&pair.near, pair.near_end)] {
        let text = |capacity: usize| -> Result<String, Stop> {
            let (len, bytes, kept) = device
                .describe(end, capacity)
                .ok_or_else(|| Stop::Skip("`describe` is null".to_owned()))?;
            ensure(len <= capacity && kept, || {
                format!("describe says {len} bytes in a buffer of {capacity}, kept to it: {kept}")
            })?;
            String::from_utf8(bytes).map_err(|error| {
                fail(format!(
                    "describe in a buffer of {capacity} bytes gives no UTF-8: {error}"
                ))
            })
        };
        let whole = text(4096)?;
        ensure(!whole.chars().any(char::is_control), || {
            format!("control characters: {whole:?}")
        })?;
        for capacity in (0..=whole.len().min(80)).chain([1024]) {
            let part = text(capacity)?;
            ensure(whole.starts_with(&part), || {
                format!("{part:?} in {capacity} bytes, and {whole:?} in 4096")
            })?;
        }
    }
    Ok(())
}

/// Both ends say something that can be read, and say it again.
pub(super) fn description(case: &Case) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    let channel = pair.channel(case.info().max_notifies.min(1))?;
    for who in Who::BOTH {
        let mut texts = Vec::new();
        for _ in 0..2 {
            match pair.get(who, Request::Describe { channel })? {
                Reply::Text(text) => texts.push(text),
                other => return Err(fail(format!("{who:?} side answered {other:?}"))),
            }
        }
        ensure_eq("second description", &texts[1], &texts[0])?;
        let is_strange = |c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER;
        ensure(!texts[0].chars().any(is_strange), || {
            format!("{who:?} side: {:?}", texts[0])
        })?;
    }
    Ok(())
}
