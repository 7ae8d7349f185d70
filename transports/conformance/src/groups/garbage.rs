//! Blobs that nobody made: refused, never a crash, and the next honest one works.

use hcomm_types::ErrorKind;

use crate::case::{Case, Check, Each, loud_check};
use crate::content::{Content, mix};
use crate::pair::{Pair, Who};
use crate::side::{Answer, Id, Reply, Request};
use crate::verdict::{Stop, ensure, ensure_eq, fail};

use super::lifetime::proof_of_life;

pub(crate) const CHECKS: &[Check] = &[
    loud_check(
        "random_bytes_as_a_channel",
        Each::Placement,
        random_channels,
    ),
    loud_check("random_bytes_as_a_region", Each::Placement, random_regions),
    loud_check("blobs_of_the_other_kind", Each::Placement, other_kind),
    loud_check("changed_channel_blobs", Each::Placement, changed_channels),
    loud_check("changed_region_blobs", Each::Placement, changed_regions),
    loud_check("an_end_that_was_not_meant", Each::Placement, not_meant),
    loud_check("regions_of_another_device", Each::Placement, another_device),
];

/// How a blob that was not made by this kind of plugin may be refused.
const REFUSALS: [ErrorKind; 3] = [
    ErrorKind::Mismatch,
    ErrorKind::Refused,
    ErrorKind::InvalidArgument,
];

/// Bytes of lengths from nothing to more than a blob may have.
fn random_blobs(case: &Case) -> Vec<Vec<u8>> {
    let limit = case.info().max_blob_bytes as usize;
    let lengths = [
        0,
        1,
        2,
        3,
        4,
        5,
        7,
        8,
        15,
        16,
        31,
        32,
        33,
        63,
        64,
        100,
        limit - 1,
        limit,
    ]
    .into_iter()
    .chain([limit + 1, limit + 1000]);
    lengths
        .enumerate()
        .flat_map(|(index, len)| {
            let seed = mix(index as u64, len as u64);
            [
                Content::Bytes { seed }.render(0, len),
                vec![0; len],
                vec![0xff; len],
            ]
        })
        .collect()
}

/// A blob with something changed: bits, length, or a part of it.
fn changed(blob: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for (at, byte) in blob.iter().enumerate() {
        for flip in [1u8, 0x80, 0xff] {
            if (at + usize::from(flip)) % 3 == 0 || at < 24 {
                let mut copy = blob.to_vec();
                copy[at] = byte ^ flip;
                out.push(copy);
            }
        }
    }
    for cut in (0..blob.len()).step_by(5) {
        out.push(blob[..cut].to_vec());
        out.push(blob[cut + 1..].to_vec());
    }
    for more in [1, 8, 64] {
        let mut copy = blob.to_vec();
        copy.resize(blob.len() + more, 0);
        out.push(copy);
    }
    let mut turned = blob.to_vec();
    turned.reverse();
    out.push(turned);
    out.retain(|copy| copy != blob);
    out
}

fn random_channels(case: &Case) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    for blob in random_blobs(case) {
        let channel = create(&mut pair, Who::Near)?;
        let len = blob.len();
        let request = Request::TryConnect {
            channel,
            blob,
            polls: 100,
        };
        let failure = pair.refused(Who::Near, &format!("{len} random bytes"), request)?;
        ensure(failure.is_one_of(&REFUSALS), || {
            format!("{len} random bytes as a channel were refused with: {failure}")
        })?;
        pair.done(Who::Near, Request::DropChannel(channel))?;
    }
    proof_of_life(&mut pair, case, 1)
}

fn random_regions(case: &Case) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    let channel = pair.channel(0)?;
    for blob in random_blobs(case) {
        let len = blob.len();
        let import = pair.id();
        let request = Request::Import {
            import,
            channel,
            blob,
        };
        let failure = pair.refused(Who::Near, &format!("{len} random bytes"), request)?;
        ensure(failure.is_one_of(&REFUSALS), || {
            format!("{len} random bytes as a region were refused with: {failure}")
        })?;
    }
    pair.done(Who::Near, Request::Check { channel })?;
    pair.done(Who::Far, Request::Check { channel })?;
    proof_of_life(&mut pair, case, 2)
}

/// A region's blob where a channel's belongs, and the other way round.
fn other_kind(case: &Case) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    let connected = pair.channel(0)?;
    let kind = case.shared_kinds()?[0];
    let (_, region) = pair.memory(Who::Far, kind, 4096)?;
    let channel = pair.id();
    let [_, end] = pair.ends(channel, [0, 0], 16)?;
    let request = Request::TryConnect {
        channel,
        blob: region,
        polls: 100,
    };
    let failure = pair.refused(Who::Near, "a region as a channel", request)?;
    ensure(failure.is_one_of(&REFUSALS), || failure.to_string())?;
    let import = pair.id();
    let request = Request::Import {
        import,
        channel: connected,
        blob: end,
    };
    let failure = pair.refused(Who::Near, "a channel as a region", request)?;
    ensure(failure.is_one_of(&REFUSALS), || failure.to_string())?;
    proof_of_life(&mut pair, case, 3)
}

/// A changed blob is refused, or stays unanswered; or, where the change means nothing, it connects
/// and the channel works.
fn changed_channels(case: &Case) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    let probe = pair.id();
    let [_, sample] = pair.ends(probe, [0, 0], 16)?;
    let all = changed(&sample).len();
    let mut harmless = 0;
    // Some of all, of a fresh blob each time, as each end is connected once.
    let step = (all / 80).max(1);
    for index in (0..all).step_by(step) {
        let channel = pair.id();
        let [near, far] = pair.ends(channel, [1.min(case.info().max_notifies); 2], 16)?;
        let Some(blob) = changed(&far).into_iter().nth(index) else {
            continue;
        };
        let polls = 60;
        let (one, two) = pair.ask_both(
            Request::TryConnect {
                channel,
                blob,
                polls,
            },
            Request::TryConnect {
                channel,
                blob: near,
                polls,
            },
        )?;
        if connected(&one) && connected(&two) {
            harmless += 1;
            for who in Who::BOTH {
                pair.done(who, Request::Flush { channel })?;
            }
        }
        for who in Who::BOTH {
            pair.done(who, Request::DropChannel(channel))?;
        }
    }
    let tried = all.div_ceil(step);
    ensure(harmless * 2 < tried, || {
        format!("{harmless} of {tried} changed blobs connected as if nothing were wrong")
    })?;
    proof_of_life(&mut pair, case, 4)
}

/// A changed blob is refused; or, where the change means nothing, the import is the region, with
/// its true length.
fn changed_regions(case: &Case) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    let channel = pair.channel(0)?;
    for kind in case.shared_kinds()? {
        let bytes = 5000;
        let (_, blob) = pair.memory(Who::Far, kind, bytes)?;
        let all = changed(&blob);
        let mut harmless = 0;
        for copy in &all {
            let import = pair.id();
            let request = Request::Import {
                import,
                channel,
                blob: copy.clone(),
            };
            match pair.ask(Who::Near, request)? {
                Ok(Reply::Imported { bytes: found, .. }) => {
                    ensure_eq("bytes of an import of a changed blob", found, bytes as u64)?;
                    harmless += 1;
                    pair.done(Who::Near, Request::DropImport(import))?;
                }
                Ok(other) => return Err(fail(format!("{other:?}"))),
                Err(failure) => ensure(failure.is_one_of(&REFUSALS), || {
                    format!("a changed region blob was refused with: {failure}")
                })?,
            }
        }
        ensure(harmless * 2 < all.len(), || {
            format!("{harmless} of {} changed blobs were imported", all.len())
        })?;
    }
    pair.done(Who::Near, Request::Check { channel })?;
    pair.done(Who::Far, Request::Check { channel })?;
    proof_of_life(&mut pair, case, 5)
}

/// An end that connects with one whose partner it is not never becomes connected, and does not
/// disturb the two that are: whether it comes first, or late, and whichever of them is the one
/// that reaches out.
fn not_meant(case: &Case) -> Result<(), Stop> {
    let notifies = case.info().max_notifies.min(1);
    let mut pair = case.pair()?;
    for round in 0..12 {
        let intruder_first = round % 2 == 0;
        let who = if round % 4 < 2 { Who::Near } else { Who::Far };
        let channel = pair.id();
        let [near, far] = pair.ends(channel, [notifies; 2], 16)?;
        let target = if who == Who::Near { &far } else { &near };
        let intruder = create(&mut pair, who)?;
        let intrude = Request::TryConnect {
            channel: intruder,
            blob: target.clone(),
            polls: 100,
        };
        if intruder_first {
            let answer = pair.ask(who, intrude.clone())?;
            ensure(!connected(&answer), || "the wrong end connected".to_owned())?;
            // The right one, while the other side still does not know whom to expect.
            let early = Request::TryConnect {
                channel,
                blob: target.clone(),
                polls: 100,
            };
            match pair.ask(who, early)? {
                Ok(Reply::Connected(false)) => {}
                Ok(_) => return Err(fail("connected before the other side has tried")),
                Err(failure) => {
                    return Err(fail(format!(
                        "a wrong end came first, and the right one is turned away: {failure}"
                    )));
                }
            }
        }
        pair.connect(channel, near, far)?;
        let answer = pair.ask(who, intrude)?;
        ensure(!connected(&answer), || "the wrong end connected".to_owned())?;
        for who in Who::BOTH {
            pair.done(who, Request::Check { channel })?;
            if notifies > 0 && case.can(hcomm_transport::Capabilities::NOTIFY) {
                pair.signal(who, channel, 0, 1)?;
            }
        }
        pair.done(who, Request::DropChannel(intruder))?;
        for who in Who::BOTH {
            pair.done(who, Request::Check { channel })?;
        }
        for who in Who::BOTH {
            pair.done(who, Request::DropChannel(channel))?;
        }
    }
    Ok(())
}

/// A channel does not open the regions of a device that is not at its other end.
fn another_device(case: &Case) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    let mut other = case.pair()?;
    let channel = pair.channel(0)?;
    let kind = case.shared_kinds()?[0];
    let (_, foreign) = other.memory(Who::Far, kind, 4096)?;
    let import = pair.id();
    let request = Request::Import {
        import,
        channel,
        blob: foreign,
    };
    let failure = pair.refused(Who::Near, "a region of another device", request)?;
    ensure(failure.is_one_of(&REFUSALS), || failure.to_string())?;
    proof_of_life(&mut pair, case, 6)
}

fn create(pair: &mut Pair, who: Who) -> Result<Id, Stop> {
    let channel = pair.id();
    let request = Request::Create {
        channel,
        notifies: 0,
        depth: 16,
    };
    pair.blob(who, request)?;
    Ok(channel)
}

fn connected(answer: &Answer) -> bool {
    matches!(answer, Ok(Reply::Connected(true)))
}
