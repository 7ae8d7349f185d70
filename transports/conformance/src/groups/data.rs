//! Bytes and notifies arrive where and in the order they should.

use hcomm_transport::Capabilities;
use hcomm_types::{DataType, ErrorKind, ReduceOp};

use crate::case::{Case, Check, Each, check};
use crate::content::Content;
use crate::pair::{Pair, Who, ends};
use crate::side::{Id, Op, Reply, Request};
use crate::verdict::{Stop, ensure, ensure_eq, fail};

pub(crate) const CHECKS: &[Check] = &[
    check("notify_counts", Each::Placement, notify_counts),
    check("fingerprints", Each::Placement, fingerprints),
    check("write_sizes", Each::Placement, write_sizes),
    check("read_sizes", Each::Placement, read_sizes),
    check("write_offsets", Each::Placement, write_offsets),
    check("read_offsets", Each::Placement, read_offsets),
    check("empty_transfers", Each::Placement, empty_transfers),
    check("write_with_notify", Each::Placement, write_with_notify),
    check(
        "record_follows_writes",
        Each::Placement,
        record_follows_writes,
    ),
    check(
        "record_follows_reads",
        Each::Placement,
        record_follows_reads,
    ),
    check("batch_then_notify", Each::Placement, batch_then_notify),
    check("flush_makes_visible", Each::Placement, flush_makes_visible),
    check("write_reduce", Each::Placement, write_reduce),
    check("read_reduce", Each::Placement, read_reduce),
    check(
        "bounds_at_submission",
        Each::Placement,
        bounds_at_submission,
    ),
    check("several_channels", Each::Placement, several_channels),
    check("both_directions", Each::Placement, both_directions),
    check("counters_count", Each::Placement, counters_count),
];

const KIB: usize = 1024;

/// Sizes around words, cache lines, pages, and what transports cut into pieces.
const SIZES: [usize; 31] = [
    1, 2, 3, 4, 5, 7, 8, 9, 13, 63, 64, 65, 127, 128, 251, 4095, 4096, 4097, 8191, 8192, 16383,
    16385, 32749, 65535, 65536, 65537, 131_071, 262_144, 262_147, 1_048_575, 1_048_577,
];

fn sizes(case: &Case) -> Vec<usize> {
    let limit = case.at_most(usize::MAX);
    let mut sizes: Vec<usize> = SIZES.into_iter().filter(|&s| s <= limit).collect();
    if limit <= 8 * KIB * KIB {
        sizes.extend([limit - 1, limit].into_iter().filter(|&s| s > 0));
    }
    sizes
}

/// A seed that no other side, size or step has.
fn seed(who: Who, a: usize, b: usize) -> u64 {
    let side = match who {
        Who::Near => 1,
        Who::Far => 2,
    };
    (side << 60) | ((a as u64) << 24) | b as u64
}

/// Tells the other side that everything before has landed: by a record, or by a flush where there
/// is no notify.
fn land(pair: &mut Pair, case: &Case, who: Who, channel: Id, count: &mut u64) -> Result<(), Stop> {
    if case.can(Capabilities::NOTIFY) {
        *count += 1;
        pair.signal(who, channel, 0, *count)
    } else {
        pair.done(who, Request::Flush { channel })
    }
}

fn notify_counts(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::NOTIFY)?;
    let notifies = case.info().max_notifies.min(8);
    let mut pair = case.pair()?;
    let channel = pair.channel(notifies)?;
    // A different number of records on each index and side, and none of them on a wrong line.
    for who in Who::BOTH {
        for index in 0..notifies {
            for count in 1..=u64::from(index + 1) {
                pair.signal(who, channel, index, count)?;
            }
        }
        for index in 0..notifies {
            ensure_eq(
                &format!("notify {index}"),
                pair.look(who.other(), channel, index)?,
                u64::from(index + 1),
            )?;
        }
    }
    Ok(())
}

fn fingerprints(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::NOTIFY)?;
    let mut pair = case.pair()?;
    let channel = pair.channel(1)?;
    for who in Who::BOTH {
        let mut latest = [0; 2];
        for count in 1..=9u64 {
            // A word that is zero leaves the latest one there.
            let (first, second) = (seed(who, count as usize, 1) | 1, u64::MAX - count);
            let carried = match count % 4 {
                0 => [0; 2],
                1 => [first, second],
                2 => [first, 0],
                _ => [0, second],
            };
            for (word, new) in latest.iter_mut().zip(carried) {
                if new != 0 {
                    *word = new;
                }
            }
            pair.post(who, channel, vec![Op::Notify(0, carried)])?;
            let found = pair.wait(who.other(), channel, 0, count)?;
            ensure_eq(&format!("fingerprint after record {count}"), found, latest)?;
        }
    }
    Ok(())
}

fn write_sizes(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE)?;
    sizes_of(case, true)
}

fn read_sizes(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::READ)?;
    sizes_of(case, false)
}

/// Moves each size between memories of all kinds, in both directions.
fn sizes_of(case: &Case, write: bool) -> Result<(), Stop> {
    let sizes = sizes(case);
    let most = sizes.iter().copied().max().unwrap_or(1);
    let mut pair = case.pair()?;
    let channel = pair.channel(case.info().max_notifies.min(1))?;
    let mut counts = [0; 2];
    for (who, count) in Who::BOTH.into_iter().zip(&mut counts) {
        for remote in case.shared_kinds()? {
            let shared = pair.share(who.other(), channel, remote, most + 64)?;
            for local in case.local_kinds()? {
                let (memory, _) = pair.memory(who, local, most + 64)?;
                for &size in &sizes {
                    transfer(
                        &mut pair,
                        case,
                        Move {
                            who,
                            channel,
                            memory,
                            shared: (shared.memory, shared.import),
                            at: (0, 0),
                            size,
                            write,
                        },
                        count,
                    )?;
                }
                pair.done(who, Request::DropMemory(memory))?;
            }
            pair.done(who, Request::DropImport(shared.import))?;
            pair.done(who.other(), Request::DropMemory(shared.memory))?;
        }
    }
    Ok(())
}

/// One transfer with everything around it.
struct Move {
    who: Who,
    channel: Id,
    memory: Id,
    shared: (Id, Id),
    /// Local and remote offset.
    at: (usize, usize),
    size: usize,
    write: bool,
}

/// Moves bytes and looks at them, and at those before and behind.
fn transfer(pair: &mut Pair, case: &Case, m: Move, count: &mut u64) -> Result<(), Stop> {
    const AROUND: usize = 48;
    let (local, remote) = m.at;
    let (peer, (target, import)) = (m.who.other(), m.shared);
    let sent = Content::Bytes {
        seed: seed(m.who, m.size, local * 64 + remote + usize::from(m.write)),
    };
    let stale = Content::Bytes {
        seed: seed(peer, m.size, local * 64 + remote + 7),
    };
    let at = ends(m.memory, local, import, remote as u64);
    let (source, destination) = if m.write {
        ((m.who, m.memory, local), (peer, target, remote))
    } else {
        ((peer, target, remote), (m.who, m.memory, local))
    };
    let context = |stop| match stop {
        Stop::Fail(text) => fail(format!(
            "{} bytes, local offset {local}, remote offset {remote}, from the {:?} side: {text}",
            m.size, source.0
        )),
        skip => skip,
    };
    let begin = destination.2.saturating_sub(AROUND);
    let lead = destination.2 - begin;
    let whole = lead + m.size + 16;
    pair.fill(destination.0, destination.1, begin, whole, stale)?;
    pair.fill(source.0, source.1, source.2, m.size, sent)?;
    let op = if m.write {
        Op::Write(at, m.size as u64, None)
    } else {
        Op::Read(at, m.size as u64)
    };
    pair.post(m.who, m.channel, vec![op]).map_err(context)?;
    if m.write {
        land(pair, case, m.who, m.channel, count).map_err(context)?;
    }
    let (who, memory, at) = destination;
    pair.expect(who, memory, at, m.size, sent)
        .map_err(context)?;
    pair.expect(who, memory, begin, lead, stale)
        .map_err(context)?;
    pair.expect_part(who, memory, at + m.size, 16, stale, (lead + m.size) as u64)
        .map_err(context)?;
    // The source is as it was.
    pair.expect(source.0, source.1, source.2, m.size, sent)
        .map_err(context)
}

fn write_offsets(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE)?;
    offsets_of(case, true)
}

fn read_offsets(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::READ)?;
    offsets_of(case, false)
}

/// Every misalignment against each other, and both ends of pages and of the region.
fn offsets_of(case: &Case, write: bool) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    let channel = pair.channel(case.info().max_notifies.min(1))?;
    let mut counts = [0; 2];
    for (who, count) in Who::BOTH.into_iter().zip(&mut counts) {
        for kind in case.shared_kinds()? {
            let bytes = 3 * 4096 + 16;
            let shared = pair.share(who.other(), channel, kind, bytes)?;
            let (memory, _) = pair.memory(who, kind, bytes)?;
            let places = (0..9)
                .flat_map(|local| [0, 1, 3, 8].map(|remote| (local, remote)))
                .chain([(4095, 1), (1, 4095), (4096, 8191), (8190, 4097)]);
            for at in places {
                for size in [1, 7, 64, 777, 4096 - 1].map(|size| case.at_most(size)) {
                    transfer(
                        &mut pair,
                        case,
                        Move {
                            who,
                            channel,
                            memory,
                            shared: (shared.memory, shared.import),
                            at,
                            size,
                            write,
                        },
                        count,
                    )?;
                }
            }
        }
    }
    Ok(())
}

fn empty_transfers(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE | Capabilities::NOTIFY)?;
    let mut pair = case.pair()?;
    let channel = pair.channel(1)?;
    let kind = case.shared_kinds()?[0];
    for who in Who::BOTH {
        let shared = pair.share(who.other(), channel, kind, 64)?;
        let (memory, _) = pair.memory(who, kind, 64)?;
        let stale = Content::Bytes {
            seed: seed(who, 0, 3),
        };
        pair.fill(who.other(), shared.memory, 0, 64, stale)?;
        // At the beginning, inside, and at the very end of the region.
        for (count, offset) in (1..).zip([0u64, 17, 64]) {
            let mut ops = vec![Op::Write(ends(memory, 0, shared.import, offset), 0, None)];
            if case.can(Capabilities::READ) {
                ops.push(Op::Read(ends(memory, 0, shared.import, offset), 0));
            }
            ops.push(Op::Notify(0, [0; 2]));
            pair.post(who, channel, ops)?;
            pair.wait(who.other(), channel, 0, count)?;
        }
        pair.expect(who.other(), shared.memory, 0, 64, stale)?;
    }
    Ok(())
}

fn write_with_notify(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE_NOTIFY)?;
    let size = case.at_most(3 * 4096 + 5);
    let mut pair = case.pair()?;
    let channel = pair.channel(2)?;
    for who in Who::BOTH {
        for remote in case.shared_kinds()? {
            let shared = pair.share(who.other(), channel, remote, size)?;
            let (memory, _) = pair.memory(who, case.local_kinds()?[0], size)?;
            let before = pair.look(who.other(), channel, 1)?;
            for step in 1..=40usize {
                let content = Content::Bytes {
                    seed: seed(who, step, 40),
                };
                let len = size - (step * 97) % size.min(1000);
                pair.fill(who, memory, 0, len, content)?;
                let op = Op::Write(ends(memory, 0, shared.import, 0), len as u64, Some(1));
                pair.together(
                    who,
                    Request::Post {
                        channel,
                        ops: vec![op],
                    },
                    Request::Await {
                        channel,
                        index: 1,
                        count: before + step as u64,
                    },
                )?;
                pair.expect(who.other(), shared.memory, 0, len, content)?;
            }
            ensure_eq("notify 0", pair.look(who.other(), channel, 0)?, 0)?;
        }
    }
    Ok(())
}

/// Many writes of different sizes, then a record in a post of its own: whoever sees the record
/// sees all of them.
fn record_follows_writes(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE | Capabilities::NOTIFY)?;
    let piece = case.at_most(2053);
    let pieces = 23;
    let mut pair = case.pair()?;
    let channel = pair.channel(1)?;
    for who in Who::BOTH {
        for kind in case.shared_kinds()? {
            let shared = pair.share(who.other(), channel, kind, piece * pieces)?;
            let (memory, _) = pair.memory(who, kind, piece * pieces)?;
            let before = pair.look(who.other(), channel, 0)?;
            for step in 1..=25usize {
                let content = Content::Bytes {
                    seed: seed(who, step, 25),
                };
                pair.fill(who, memory, 0, piece * pieces, content)?;
                // Not in the order of their places, and the record in the same breath.
                let mut ops: Vec<Op> = (0..pieces)
                    .map(|index| {
                        let at = (index * 7 + step) % pieces * piece;
                        Op::Write(
                            ends(memory, at, shared.import, at as u64),
                            piece as u64,
                            None,
                        )
                    })
                    .collect();
                ops.push(Op::Notify(0, [0; 2]));
                pair.together(
                    who,
                    Request::Post { channel, ops },
                    Request::Await {
                        channel,
                        index: 0,
                        count: before + step as u64,
                    },
                )?;
                pair.expect(who.other(), shared.memory, 0, piece * pieces, content)?;
            }
            pair.done(who, Request::DropImport(shared.import))?;
        }
    }
    Ok(())
}

/// A read that was posted before a record has its bytes when the record is seen: its source may be
/// overwritten then.
fn record_follows_reads(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::READ | Capabilities::NOTIFY)?;
    let size = case.at_most(70_001);
    let mut pair = case.pair()?;
    let channel = pair.channel(1)?;
    for who in Who::BOTH {
        for kind in case.shared_kinds()? {
            let shared = pair.share(who.other(), channel, kind, size)?;
            let (memory, _) = pair.memory(who, kind, size)?;
            let before = pair.look(who.other(), channel, 0)?;
            for step in 1..=15usize {
                let old = Content::Bytes {
                    seed: seed(who.other(), step, 1),
                };
                let new = Content::Bytes {
                    seed: seed(who.other(), step, 2),
                };
                pair.fill(who.other(), shared.memory, 0, size, old)?;
                pair.fill(who, memory, 0, size, new)?;
                let ops = vec![
                    Op::Read(ends(memory, 0, shared.import, 0), size as u64),
                    Op::Notify(0, [0; 2]),
                ];
                pair.together(
                    who,
                    Request::Post { channel, ops },
                    Request::Await {
                        channel,
                        index: 0,
                        count: before + step as u64,
                    },
                )?;
                pair.fill(who.other(), shared.memory, 0, size, new)?;
                pair.expect(who, memory, 0, size, old)?;
            }
            pair.done(who, Request::DropImport(shared.import))?;
        }
    }
    Ok(())
}

/// One post with transfers and records in it: each record comes after what is before it.
fn batch_then_notify(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE | Capabilities::NOTIFY)?;
    let piece = case.at_most(509);
    let mut pair = case.pair()?;
    let notifies = case.info().max_notifies.min(4);
    let channel = pair.channel(notifies)?;
    for who in Who::BOTH {
        let kind = case.shared_kinds()?[0];
        let bytes = piece * 4 * notifies as usize;
        let shared = pair.share(who.other(), channel, kind, bytes)?;
        let (memory, _) = pair.memory(who, kind, bytes)?;
        let content = Content::Bytes {
            seed: seed(who, 4, 4),
        };
        pair.fill(who, memory, 0, bytes, content)?;
        let ops: Vec<Op> = (0..notifies)
            .flat_map(|index| {
                let writes = (0..4).map(move |part| {
                    let at = (index as usize * 4 + part) * piece;
                    Op::Write(
                        ends(memory, at, shared.import, at as u64),
                        piece as u64,
                        None,
                    )
                });
                writes.chain([Op::Notify(index, [u64::from(index) + 1, 5])])
            })
            .collect();
        pair.post(who, channel, ops)?;
        for index in 0..notifies {
            let fingerprint = pair.wait(who.other(), channel, index, 1)?;
            ensure_eq("fingerprint", fingerprint, [u64::from(index) + 1, 5])?;
            let at = index as usize * 4 * piece;
            pair.expect_part(
                who.other(),
                shared.memory,
                at,
                4 * piece,
                content,
                at as u64,
            )?;
        }
    }
    Ok(())
}

/// After a flush the bytes are at the peer, with no record.
fn flush_makes_visible(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE)?;
    let size = case.at_most(100_003);
    let mut pair = case.pair()?;
    let channel = pair.channel(0)?;
    for who in Who::BOTH {
        for kind in case.shared_kinds()? {
            let shared = pair.share(who.other(), channel, kind, size)?;
            let (memory, _) = pair.memory(who, kind, size)?;
            for step in 0..8usize {
                let content = Content::Bytes {
                    seed: seed(who, step, 8),
                };
                pair.fill(who, memory, 0, size, content)?;
                let op = Op::Write(ends(memory, 0, shared.import, 0), size as u64, None);
                pair.post(who, channel, vec![op])?;
                pair.done(who, Request::Flush { channel })?;
                pair.expect(who.other(), shared.memory, 0, size, content)?;
            }
        }
    }
    Ok(())
}

fn write_reduce(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE_REDUCE)?;
    reduce(case, true)
}

fn read_reduce(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::READ_REDUCE)?;
    reduce(case, false)
}

/// Every data type and operation, counts around vectors and pages.
fn reduce(case: &Case, write: bool) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    let channel = pair.channel(case.info().max_notifies.min(1))?;
    let mut counts = [0; 2];
    for (who, count) in Who::BOTH.into_iter().zip(&mut counts) {
        let peer = who.other();
        for kind in case.shared_kinds()? {
            let bytes = 9000 * 8;
            let shared = pair.share(peer, channel, kind, bytes)?;
            let (memory, _) = pair.memory(who, kind, bytes)?;
            for dtype in DataType::ALL {
                for redop in ReduceOp::ALL {
                    for elements in [1usize, 3, 16, 1021] {
                        let len = elements * dtype.size();
                        let (own, other) = (
                            seed(who, elements, redop as usize),
                            seed(peer, elements, redop as usize),
                        );
                        let at = 2 * dtype.size();
                        let local = Content::Elements { dtype, seed: own };
                        let remote = Content::Elements { dtype, seed: other };
                        let guard = Content::Bytes { seed: own ^ other };
                        pair.fill(peer, shared.memory, 0, at + len + 16, guard)?;
                        pair.fill(who, memory, at, len, local)?;
                        pair.fill(peer, shared.memory, at, len, remote)?;
                        let ends = ends(memory, at, shared.import, at as u64);
                        let op = if write {
                            Op::WriteReduce(ends, elements as u64, dtype, redop, None)
                        } else {
                            Op::ReadReduce(ends, elements as u64, dtype, redop)
                        };
                        pair.post(who, channel, vec![op])?;
                        if write {
                            land(&mut pair, case, who, channel, count)?;
                        }
                        let made = Content::Reduced {
                            dtype,
                            redop,
                            left: own,
                            right: other,
                        };
                        let context = |stop| match stop {
                            Stop::Fail(text) => {
                                fail(format!("{redop} of {elements} {dtype}, {kind:?}: {text}"))
                            }
                            skip => skip,
                        };
                        let (target, operand) = if write {
                            ((peer, shared.memory, made), (who, memory, local))
                        } else {
                            ((who, memory, made), (peer, shared.memory, remote))
                        };
                        for (side, memory, content) in [target, operand] {
                            pair.expect(side, memory, at, len, content)
                                .map_err(context)?;
                        }
                        pair.expect(peer, shared.memory, 0, at, guard)
                            .map_err(context)?;
                        let behind = (at + len) as u64;
                        pair.expect_part(peer, shared.memory, at + len, 16, guard, behind)
                            .map_err(context)?;
                    }
                }
            }
        }
    }
    Ok(())
}

fn bounds_at_submission(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE)?;
    let bytes = 1000usize;
    let mut pair = case.pair()?;
    let channel = pair.channel(case.info().max_notifies.min(1))?;
    let mut counts = [0; 2];
    for (who, count) in Who::BOTH.into_iter().zip(&mut counts) {
        for kind in case.shared_kinds()? {
            let shared = pair.share(who.other(), channel, kind, bytes)?;
            let (memory, _) = pair.memory(who, kind, 2 * bytes)?;
            let stale = Content::Bytes {
                seed: seed(who, 9, 9),
            };
            pair.fill(who.other(), shared.memory, 0, bytes, stale)?;
            for (local, offset, len) in [
                (0usize, 0u64, 1001u64),
                (0, 1, 1000),
                (0, 999, 2),
                (0, 1000, 1),
                (0, 5000, 1),
                (0, u64::MAX, 1),
                (0, u64::MAX - 1, 3),
                (0, 1, u64::MAX),
                (1001, 0, 1000),
                (2000, 0, 1),
            ] {
                let mut ops = vec![Op::Write(
                    ends(memory, local, shared.import, offset),
                    len,
                    None,
                )];
                if case.can(Capabilities::READ) {
                    ops.push(Op::Read(ends(memory, local, shared.import, offset), len));
                }
                for op in ops {
                    let failure = pair.refused(
                        who,
                        &format!("{op:?}"),
                        Request::PostOnce {
                            channel,
                            ops: vec![op],
                        },
                    )?;
                    ensure(failure.is(ErrorKind::OutOfBounds), || {
                        format!("{op:?} was refused with {failure}, expected out of bounds")
                    })?;
                }
            }
            // And nothing of it has happened; the last byte can be reached.
            let op = Op::Write(ends(memory, 0, shared.import, 999), 1, None);
            let last = Content::Bytes {
                seed: seed(who, 10, 10),
            };
            pair.fill(who, memory, 0, 1, last)?;
            pair.post(who, channel, vec![op])?;
            land(&mut pair, case, who, channel, count)?;
            pair.expect(who.other(), shared.memory, 0, 999, stale)?;
            pair.expect(who.other(), shared.memory, 999, 1, last)?;
        }
    }
    Ok(())
}

/// Channels of one device do not mix.
fn several_channels(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE | Capabilities::NOTIFY)?;
    let mut pair = case.pair()?;
    let kind = case.shared_kinds()?[0];
    let bytes = case.at_most(3001);
    let mut lanes = Vec::new();
    for _ in 0..8 {
        let channel = pair.channel(1)?;
        let shared = pair.share(Who::Far, channel, kind, bytes)?;
        let (memory, _) = pair.memory(Who::Near, kind, bytes)?;
        lanes.push((channel, shared, memory));
    }
    for round in 1..=5u64 {
        for (index, &(channel, shared, memory)) in lanes.iter().enumerate() {
            let content = Content::Bytes {
                seed: seed(Who::Near, index, round as usize),
            };
            pair.fill(Who::Near, memory, 0, bytes, content)?;
            let ops = vec![
                Op::Write(ends(memory, 0, shared.import, 0), bytes as u64, None),
                Op::Notify(0, [index as u64 + 1, round]),
            ];
            pair.post(Who::Near, channel, ops)?;
        }
        for (index, &(channel, shared, _)) in lanes.iter().enumerate().rev() {
            let found = pair.wait(Who::Far, channel, 0, round)?;
            ensure_eq("fingerprint", found, [index as u64 + 1, round])?;
            let content = Content::Bytes {
                seed: seed(Who::Near, index, round as usize),
            };
            pair.expect(Who::Far, shared.memory, 0, bytes, content)?;
        }
    }
    Ok(())
}

/// Both sides write and record at the same time.
fn both_directions(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE | Capabilities::NOTIFY)?;
    let bytes = case.at_most(20_011);
    let mut pair = case.pair()?;
    let channel = pair.channel(1)?;
    for kind in case.shared_kinds()? {
        let before = pair.look(Who::Near, channel, 0)?;
        let mut shared = Vec::new();
        for who in Who::BOTH {
            let target = pair.share(who.other(), channel, kind, bytes)?;
            let (memory, _) = pair.memory(who, kind, bytes)?;
            shared.push((target, memory));
        }
        for round in 1..=20usize {
            let mut posts = Vec::new();
            for (who, &(target, memory)) in Who::BOTH.into_iter().zip(&shared) {
                let content = Content::Bytes {
                    seed: seed(who, round, 20),
                };
                pair.fill(who, memory, 0, bytes, content)?;
                let ops = vec![
                    Op::Write(ends(memory, 0, target.import, 0), bytes as u64, None),
                    Op::Notify(0, [0; 2]),
                ];
                posts.push(Request::Post { channel, ops });
            }
            let (far, near) = (posts.pop(), posts.pop());
            let (Some(near), Some(far)) = (near, far) else {
                return Err(fail("two posts were made"));
            };
            pair.together(Who::Near, near, far)?;
            for (who, &(target, _)) in Who::BOTH.into_iter().zip(&shared) {
                pair.wait(who.other(), channel, 0, before + round as u64)?;
                let content = Content::Bytes {
                    seed: seed(who, round, 20),
                };
                pair.expect(who.other(), target.memory, 0, bytes, content)?;
            }
        }
    }
    Ok(())
}

/// Counters count what was accepted, exactly.
fn counters_count(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE | Capabilities::NOTIFY)?;
    let mut pair = case.pair()?;
    let channel = pair.channel(1)?;
    let kind = case.shared_kinds()?[0];
    let bytes = case.at_most(1000);
    let shared = pair.share(Who::Far, channel, kind, bytes)?;
    let (memory, _) = pair.memory(Who::Near, kind, bytes)?;
    let read = |pair: &mut Pair| match pair.get(Who::Near, Request::Counters)? {
        Reply::Counters(Some(counters)) => Ok(counters),
        Reply::Counters(None) => Err(Stop::Skip("has no counters".to_owned())),
        other => Err(fail(format!("{other:?}"))),
    };
    let before = read(&mut pair)?;
    let at = ends(memory, 0, shared.import, 0);
    let mut ops = vec![
        Op::Write(at, bytes as u64, None),
        Op::Write(at, 7.min(bytes as u64), None),
    ];
    if case.can(Capabilities::READ) {
        ops.push(Op::Read(at, 3.min(bytes as u64)));
    }
    let reads = (ops.len() - 2) as u64;
    ops.push(Op::Notify(0, [0; 2]));
    pair.post(Who::Near, channel, ops)?;
    pair.wait(Who::Far, channel, 0, 1)?;
    let after = read(&mut pair)?;
    let grown: Vec<u64> = after
        .iter()
        .zip(before)
        .map(|(a, b)| a.wrapping_sub(b))
        .collect();
    let small = bytes as u64;
    ensure_eq(
        "descriptors, bytes written, bytes read, notifies",
        grown,
        vec![3 + reads, small + 7.min(small), reads * 3.min(small), 1],
    )
}
