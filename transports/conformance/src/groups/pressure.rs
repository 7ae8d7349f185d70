//! Full queues: nothing is lost, nothing comes twice, order is kept.

use hcomm_transport::Capabilities;

use crate::case::{Case, Check, Each, check};
use crate::content::Content;
use crate::memory::Kind;
use crate::pair::{Pair, Shared, Who, ends};
use crate::side::{Id, Op, Reply, Request};
use crate::verdict::{Stop, ensure, ensure_eq, fail};

pub(crate) const CHECKS: &[Check] = &[
    check("fill_then_drain", Each::Placement, fill_then_drain),
    check(
        "more_than_fits_both_ways",
        Each::Placement,
        more_than_fits_both_ways,
    ),
    check("storm_of_notifies", Each::Placement, storm_of_notifies),
    check(
        "many_large_transfers",
        Each::Placement,
        many_large_transfers,
    ),
    check(
        "many_channels_at_once",
        Each::Placement,
        many_channels_at_once,
    ),
];

/// Bytes of one write.
const SLOT: usize = 96;
/// Writes of one check, each to a place of its own.
const SLOTS: usize = 4096;
/// Each so many writes carry a record.
const EVERY: usize = 4;

struct Stream {
    channel: Id,
    memory: Id,
    shared: Shared,
    content: Content,
}

/// Memories of both ends for [`SLOTS`] writes of `who`.
fn stream(pair: &mut Pair, who: Who, channel: Id, kind: Kind, seed: u64) -> Result<Stream, Stop> {
    let shared = pair.share(who.other(), channel, kind, SLOT * SLOTS)?;
    let (memory, _) = pair.memory(who, kind, SLOT * SLOTS)?;
    let content = Content::Bytes { seed };
    pair.fill(who, memory, 0, SLOT * SLOTS, content)?;
    Ok(Stream {
        channel,
        memory,
        shared,
        content,
    })
}

/// The writes from `first` on, with a record after each fourth.
fn writes(case: &Case, stream: &Stream, first: usize) -> Vec<Op> {
    (first..SLOTS)
        .map(|slot| {
            let at = slot * SLOT;
            let records = slot % EVERY == EVERY - 1;
            let ends = ends(stream.memory, at, stream.shared.import, at as u64);
            let notify = records
                .then_some(0)
                .filter(|_| case.can(Capabilities::WRITE_NOTIFY));
            Op::Write(ends, SLOT as u64, notify)
        })
        .collect()
}

/// Fails unless the first `count` writes are there.
fn expect_slots(pair: &mut Pair, who: Who, stream: &Stream, count: usize) -> Result<(), Stop> {
    pair.expect(who, stream.shared.memory, 0, count * SLOT, stream.content)
}

/// Posts while the peer's side does nothing until nothing is accepted any more; then lets it work.
fn fill_then_drain(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE | Capabilities::WRITE_NOTIFY)?;
    for kind in case.shared_kinds()? {
        let mut pair = case.pair()?;
        let channel = pair.channel(1)?;
        for who in Who::BOTH {
            let stream = stream(&mut pair, who, channel, kind, 11 + who as u64)?;
            pair.done(who.other(), Request::Quiet(true))?;
            let mut at = 0;
            let mut refusals = 0;
            // Full for good only if it stays full while the near side goes on.
            while at < SLOTS && refusals < 50 {
                let mut ops = writes(case, &stream, at);
                ops.truncate(1 + at % 61);
                let asked = ops.len();
                let Reply::Posted { accepted, .. } =
                    pair.get(who, Request::PostOnce { channel, ops })?
                else {
                    return Err(fail("a post without an answer"));
                };
                at += accepted;
                if accepted < asked {
                    refusals += 1;
                }
            }
            pair.done(who.other(), Request::Quiet(false))?;
            // What was accepted arrives in the order of its records.
            for part in [at / 4, at / 2, at] {
                let count = (part / EVERY) as u64;
                let request = Request::Await {
                    channel,
                    index: 0,
                    count,
                };
                let Reply::Notified { count: seen, .. } = pair.get(who.other(), request)? else {
                    return Err(fail("a wait without an answer"));
                };
                ensure(seen <= (at / EVERY) as u64, || {
                    format!("{at} writes accepted, {seen} records seen, one each {EVERY}")
                })?;
                expect_slots(&mut pair, who.other(), &stream, seen as usize * EVERY)?;
            }
            let rest = writes(case, &stream, at);
            pair.post(who, channel, rest)?;
            pair.done(who, Request::Complete)?;
            pair.wait(who.other(), channel, 0, (SLOTS / EVERY) as u64)?;
            expect_slots(&mut pair, who.other(), &stream, SLOTS)?;
        }
    }
    Ok(())
}

/// Both sides post thousands at the same time.
fn more_than_fits_both_ways(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE | Capabilities::WRITE_NOTIFY)?;
    for kind in case.shared_kinds()? {
        let mut pair = case.pair()?;
        let channel = pair.channel(1)?;
        let near = stream(&mut pair, Who::Near, channel, kind, 21)?;
        let far = stream(&mut pair, Who::Far, channel, kind, 22)?;
        pair.together(
            Who::Near,
            Request::Post {
                channel,
                ops: writes(case, &near, 0),
            },
            Request::Post {
                channel,
                ops: writes(case, &far, 0),
            },
        )?;
        for (who, stream) in [(Who::Far, &near), (Who::Near, &far)] {
            pair.wait(who, stream.channel, 0, (SLOTS / EVERY) as u64)?;
            expect_slots(&mut pair, who, stream, SLOTS)?;
        }
    }
    Ok(())
}

/// Thousands of records on a few indices from both sides, each counted once.
fn storm_of_notifies(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::NOTIFY)?;
    let indices = case.info().max_notifies.min(3);
    let each = case.info().max_notify_outstanding.min(2500);
    let mut pair = case.pair()?;
    let channel = pair.channel(indices)?;
    let ops: Vec<Op> = (0..each * u64::from(indices))
        .map(|n| {
            let index = (n % u64::from(indices)) as u32;
            Op::Notify(index, [n + 1, u64::from(index) + 1])
        })
        .collect();
    pair.together(
        Who::Near,
        Request::Post {
            channel,
            ops: ops.clone(),
        },
        Request::Post { channel, ops },
    )?;
    for who in Who::BOTH {
        for index in 0..indices {
            let latest = pair.wait(who, channel, index, each)?;
            let last = (each - 1) * u64::from(indices) + u64::from(index) + 1;
            ensure_eq(
                "fingerprint of the last",
                latest,
                [last, u64::from(index) + 1],
            )?;
        }
    }
    Ok(())
}

/// More bytes in flight than any buffer in between holds.
fn many_large_transfers(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE | Capabilities::NOTIFY)?;
    let piece = case.at_most(1_000_003);
    let pieces = 6;
    for kind in case.shared_kinds()? {
        let mut pair = case.pair()?;
        let channel = pair.channel(1)?;
        let mut both = Vec::new();
        for who in Who::BOTH {
            let shared = pair.share(who.other(), channel, kind, piece * pieces)?;
            let (memory, _) = pair.memory(who, kind, piece * pieces)?;
            let content = Content::Bytes {
                seed: 31 + who as u64,
            };
            pair.fill(who, memory, 0, piece * pieces, content)?;
            let mut ops: Vec<Op> = (0..pieces)
                .map(|index| {
                    let at = index * piece;
                    Op::Write(
                        ends(memory, at, shared.import, at as u64),
                        piece as u64,
                        None,
                    )
                })
                .collect();
            ops.push(Op::Notify(0, [0; 2]));
            both.push((shared, content, Request::Post { channel, ops }));
        }
        let (near, far) = (both[0].2.clone(), both[1].2.clone());
        pair.together(Who::Near, near, far)?;
        for (who, (shared, content, _)) in Who::BOTH.into_iter().zip(both) {
            pair.wait(who.other(), channel, 0, 1)?;
            pair.expect(who.other(), shared.memory, 0, piece * pieces, content)?;
        }
        if case.can(Capabilities::READ) {
            let shared = pair.share(Who::Far, channel, kind, piece * pieces)?;
            let (memory, _) = pair.memory(Who::Near, kind, piece * pieces)?;
            let content = Content::Bytes { seed: 39 };
            pair.fill(Who::Far, shared.memory, 0, piece * pieces, content)?;
            let ops = (0..pieces)
                .map(|index| {
                    let at = index * piece;
                    Op::Read(ends(memory, at, shared.import, at as u64), piece as u64)
                })
                .collect();
            pair.post(Who::Near, channel, ops)?;
            pair.expect(Who::Near, memory, 0, piece * pieces, content)?;
        }
    }
    Ok(())
}

/// Channels of one device that are all in use hold up none of the others.
fn many_channels_at_once(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE | Capabilities::NOTIFY)?;
    let kind = case.shared_kinds()?[case.shared_kinds()?.len() - 1];
    let bytes = case.at_most(50_021);
    let mut pair = case.pair()?;
    let mut lanes = Vec::new();
    for index in 0..24u64 {
        let channel = pair.channel(1)?;
        let shared = pair.share(Who::Far, channel, kind, bytes)?;
        let (memory, _) = pair.memory(Who::Near, kind, bytes)?;
        let content = Content::Bytes { seed: 400 + index };
        pair.fill(Who::Near, memory, 0, bytes, content)?;
        lanes.push((channel, shared, memory, content));
    }
    pair.done(Who::Far, Request::Quiet(true))?;
    let mut left = Vec::new();
    for &(channel, shared, memory, _) in &lanes {
        let ops = vec![
            Op::Write(ends(memory, 0, shared.import, 0), bytes as u64, None),
            Op::Notify(0, [0; 2]),
        ];
        let Reply::Posted { accepted, .. } = pair.get(
            Who::Near,
            Request::PostOnce {
                channel,
                ops: ops.clone(),
            },
        )?
        else {
            return Err(fail("a post without an answer"));
        };
        left.push((channel, ops[accepted..].to_vec()));
    }
    pair.done(Who::Far, Request::Quiet(false))?;
    for (channel, ops) in left {
        pair.post(Who::Near, channel, ops)?;
    }
    for (channel, shared, _, content) in lanes.into_iter().rev() {
        pair.wait(Who::Far, channel, 0, 1)?;
        pair.expect(Who::Far, shared.memory, 0, bytes, content)?;
    }
    Ok(())
}
