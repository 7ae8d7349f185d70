//! The peer goes away: the survivor learns of it, its operations fail, nothing hangs.

use hcomm_transport::Capabilities;
use hcomm_types::ErrorKind;

use crate::case::{Case, Check, Each, loud_check};
use crate::content::Content;
use crate::pair::{Pair, Placement, Who, ends};
use crate::side::{Id, Op, Reply, Request};
use crate::verdict::{Stop, ensure, fail};

use super::lifetime::proof_of_life;

const ALONE: Each = Each::Only(Placement::TwoProcesses);

pub(crate) const CHECKS: &[Check] = &[
    loud_check("destroyed_end", Each::Placement, destroyed_end),
    loud_check("closed_device", Each::Placement, closed_device),
    loud_check(
        "destroyed_end_leaves_others_alone",
        Each::Placement,
        leaves_others_alone,
    ),
    loud_check(
        "records_before_the_end_are_seen",
        Each::Placement,
        records_before_the_end,
    ),
    loud_check("killed_peer", ALONE, killed_peer),
    loud_check("killed_while_both_post", ALONE, killed_while_both_post),
    loud_check("killed_with_a_full_queue", ALONE, killed_with_a_full_queue),
    loud_check(
        "killed_before_it_was_connected",
        ALONE,
        killed_before_connected,
    ),
    loud_check("killed_before_an_import", ALONE, killed_before_an_import),
    loud_check("killed_one_of_two", ALONE, killed_one_of_two),
];

/// Waits until a channel says that its peer is lost, and makes sure that it keeps saying so.
fn expect_loss(pair: &mut Pair, who: Who, channel: Id) -> Result<(), Stop> {
    for _ in 0..3 {
        let loss = pair.refused(who, "the loss of the peer", Request::AwaitLoss { channel })?;
        ensure(loss.is(ErrorKind::PeerLost), || {
            format!("the peer's end is gone, and check says: {loss}")
        })?;
    }
    Ok(())
}

/// After the loss: posts, flushes and imports end with an error that says so.
fn expect_failures(pair: &mut Pair, case: &Case, who: Who, channel: Id) -> Result<(), Stop> {
    let gone = [ErrorKind::PeerLost, ErrorKind::LinkDown];
    let recorded = pair.record(who, channel, 0, [0; 2])?;
    ensure(!recorded, || {
        "the peer is lost, and the state of `map_peer` says that the channel works".to_owned()
    })?;
    if case.can(Capabilities::NOTIFY) {
        let request = Request::PostUntilError {
            channel,
            op: Op::Notify(0, [0; 2]),
            times: 10_000,
        };
        let failure = pair.refused(who, "records for a lost peer", request)?;
        ensure(failure.is_one_of(&gone), || {
            format!("records for a lost peer failed with: {failure}")
        })?;
    }
    Ok(())
}

fn destroyed_end(case: &Case) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    for who in Who::BOTH {
        let channel = pair.channel(case.info().max_notifies.min(1))?;
        pair.done(who, Request::Check { channel })?;
        pair.done(who.other(), Request::Check { channel })?;
        pair.done(who.other(), Request::DropChannel(channel))?;
        expect_loss(&mut pair, who, channel)?;
        expect_failures(&mut pair, case, who, channel)?;
        pair.done(who, Request::DropChannel(channel))?;
        pair.done(who, Request::FreshLane)?;
    }
    proof_of_life(&mut pair, case, 1)
}

fn closed_device(case: &Case) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    for who in Who::BOTH {
        let channel = pair.channel(case.info().max_notifies.min(1))?;
        let kind = case.shared_kinds()?[0];
        pair.share(who.other(), channel, kind, 4096)?;
        pair.done(who.other(), Request::Reopen)?;
        expect_loss(&mut pair, who, channel)?;
        expect_failures(&mut pair, case, who, channel)?;
        pair.done(who, Request::Reopen)?;
    }
    proof_of_life(&mut pair, case, 2)
}

/// Channels between the same devices do not die of each other.
fn leaves_others_alone(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::NOTIFY)?;
    let mut pair = case.pair()?;
    let (dying, living) = (pair.channel(1)?, pair.channel(1)?);
    pair.signal(Who::Near, living, 0, 1)?;
    pair.done(Who::Far, Request::DropChannel(dying))?;
    expect_loss(&mut pair, Who::Near, dying)?;
    for who in Who::BOTH {
        pair.done(who, Request::Check { channel: living })?;
    }
    pair.signal(Who::Near, living, 0, 2)?;
    pair.signal(Who::Far, living, 0, 1)
}

/// What a peer recorded before it ended in order is there, with its bytes.
fn records_before_the_end(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::NOTIFY | Capabilities::WRITE)?;
    let bytes = case.at_most(30_011);
    for kind in case.shared_kinds()? {
        let mut pair = case.pair()?;
        for who in Who::BOTH {
            let channel = pair.channel(1)?;
            let shared = pair.share(who.other(), channel, kind, bytes)?;
            let (memory, _) = pair.memory(who, kind, bytes)?;
            let content = Content::Bytes { seed: 31 };
            pair.fill(who, memory, 0, bytes, content)?;
            let ops = vec![
                Op::Write(ends(memory, 0, shared.import, 0), bytes as u64, None),
                Op::Notify(0, [0; 2]),
            ];
            pair.post(who, channel, ops)?;
            // A flush says that it is visible; then its sender may go.
            pair.done(who, Request::Flush { channel })?;
            pair.done(who, Request::DropImport(shared.import))?;
            pair.done(who, Request::DropChannel(channel))?;
            expect_loss(&mut pair, who.other(), channel)?;
            pair.wait(who.other(), channel, 0, 1)?;
            pair.expect(who.other(), shared.memory, 0, bytes, content)?;
        }
    }
    Ok(())
}

fn killed_peer(case: &Case) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    let channel = pair.channel(case.info().max_notifies.min(1))?;
    let kind = case.shared_kinds()?[0];
    pair.share(Who::Far, channel, kind, 4096)?;
    pair.share(Who::Near, channel, kind, 4096)?;
    pair.done(Who::Near, Request::Check { channel })?;
    pair.kill_far()?;
    expect_loss(&mut pair, Who::Near, channel)?;
    expect_failures(&mut pair, case, Who::Near, channel)?;
    pair.done(Who::Near, Request::DropChannel(channel))?;
    drop(pair);
    proof_of_life(&mut case.pair()?, case, 3)
}

/// At many moments of traffic in both directions.
fn killed_while_both_post(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE | Capabilities::NOTIFY)?;
    for (moment, kind) in (0..8u64).flat_map(|moment| {
        let kinds = case.shared_kinds().unwrap_or_default();
        kinds.into_iter().map(move |kind| (moment, kind))
    }) {
        let bytes = case.at_most(50_021);
        let mut pair = case.pair()?;
        let channel = pair.channel(1)?;
        let mut ops = Vec::new();
        for who in Who::BOTH {
            let shared = pair.share(who.other(), channel, kind, bytes)?;
            let (memory, _) = pair.memory(who, kind, bytes)?;
            ops.push(vec![
                Op::Write(ends(memory, 0, shared.import, 0), bytes as u64, None),
                Op::Notify(0, [0; 2]),
            ]);
        }
        let endless: Vec<Op> = ops[1].iter().copied().cycle().take(4000).collect();
        pair.tell_far(&Request::Post {
            channel,
            ops: endless,
        })?;
        // So many records of the far side, so many posts of ours, then its end.
        for round in 1..=moment * 3 {
            let count = round;
            pair.get(
                Who::Near,
                Request::Await {
                    channel,
                    index: 0,
                    count,
                },
            )?;
            pair.get(
                Who::Near,
                Request::PostOnce {
                    channel,
                    ops: ops[0].clone(),
                },
            )?;
        }
        pair.kill_far()?;
        expect_loss(&mut pair, Who::Near, channel)?;
        expect_failures(&mut pair, case, Who::Near, channel)?;
        ends_somehow(&mut pair)?;
    }
    proof_of_life(&mut case.pair()?, case, 4)
}

/// What was pending completes, as a success or not: whoever waits for it must not hang.
fn ends_somehow(pair: &mut Pair) -> Result<(), Stop> {
    match pair.ask(Who::Near, Request::Complete)? {
        Ok(_) => Ok(()),
        // The suite's own failure is that nothing came.
        Err(failure) if failure.kind.is_empty() => Err(fail(failure.text)),
        Err(_) => Ok(()),
    }
}

fn killed_with_a_full_queue(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE)?;
    for kind in case.shared_kinds()? {
        let bytes = case.at_most(100_003);
        let mut pair = case.pair()?;
        let channel = pair.channel(case.info().max_notifies.min(1))?;
        let shared = pair.share(Who::Far, channel, kind, bytes)?;
        let (memory, _) = pair.memory(Who::Near, kind, bytes)?;
        pair.done(Who::Far, Request::Quiet(true))?;
        for _ in 0..30 {
            let ops = vec![Op::Write(ends(memory, 0, shared.import, 0), bytes as u64, None); 4];
            pair.get(Who::Near, Request::PostOnce { channel, ops })?;
        }
        pair.kill_far()?;
        expect_loss(&mut pair, Who::Near, channel)?;
        ends_somehow(&mut pair)?;
    }
    Ok(())
}

fn killed_before_connected(case: &Case) -> Result<(), Stop> {
    let mut pair = case.pair()?;
    let channel = pair.id();
    let [_, blob] = pair.ends(channel, [0, 0], 16)?;
    pair.kill_far()?;
    let request = Request::TryConnect {
        channel,
        blob,
        polls: 1000,
    };
    let answer = pair.ask(Who::Near, request)?;
    ensure(!matches!(answer, Ok(Reply::Connected(true))), || {
        "connected with a process that had ended".to_owned()
    })?;
    pair.done(Who::Near, Request::DropChannel(channel))?;
    drop(pair);
    proof_of_life(&mut case.pair()?, case, 5)
}

fn killed_before_an_import(case: &Case) -> Result<(), Stop> {
    for kind in case.shared_kinds()? {
        let mut pair = case.pair()?;
        let channel = pair.channel(0)?;
        let (_, blob) = pair.memory(Who::Far, kind, 4096)?;
        pair.done(Who::Far, Request::Quiet(true))?;
        pair.kill_far()?;
        let import = pair.id();
        let request = Request::Import {
            import,
            channel,
            blob,
        };
        let failure = pair.refused(
            Who::Near,
            "an import from a process that has ended",
            request,
        )?;
        let kinds = [ErrorKind::PeerLost, ErrorKind::LinkDown, ErrorKind::Refused];
        ensure(failure.is_one_of(&kinds), || failure.to_string())?;
        expect_loss(&mut pair, Who::Near, channel)?;
    }
    Ok(())
}

/// A process with two peers loses one of them only.
fn killed_one_of_two(case: &Case) -> Result<(), Stop> {
    let mut dying = case.pair()?;
    let mut living = case.pair()?;
    let notifies = case.info().max_notifies.min(1);
    let lost = dying.channel(notifies)?;
    let kept = living.channel(notifies)?;
    dying.kill_far()?;
    expect_loss(&mut dying, Who::Near, lost)?;
    for who in Who::BOTH {
        living.done(who, Request::Check { channel: kept })?;
    }
    drop(dying);
    proof_of_life(&mut living, case, 6)
}
