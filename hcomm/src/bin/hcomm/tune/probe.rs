//! Plans that are made to be timed. Each does something a number of times and then, so that it is a
//! right plan of its shape, what the shape asks for. Ranks work in pairs, 0 with 1, 2 with 3.

use hcomm_coll::algorithms::{self, Params};
use hcomm_coll::plan::{Loc, Operation, Plan, RankPlan, Shape, Task};
use hcomm_types::{DataType, Error, ErrorKind, Rank, ReduceOp, Result};

/// Notifies that the plans below add to those of the algorithm.
const HERE: u32 = 12;
const BACK: u32 = 13;

/// The plain plan of a shape, for `ranks` ranks.
fn plain(operation: Operation, ranks: u32, count: u64, dtype: DataType) -> Result<Plan> {
    let shape = Shape {
        operation,
        ranks,
        count: count.into(),
        dtype,
        redop: ReduceOp::Sum.into(),
        in_place: false,
    };
    let params = Params {
        scratch_bytes: 1 << 20,
        slice_bytes: 512 << 10,
        groups: None,
        flows: 1,
    };
    let name = "mesh_one_shot";
    let internal = |words: String| Error::new(ErrorKind::Internal, words);
    let algorithm =
        algorithms::by_name(name).ok_or_else(|| internal(format!("no algorithm `{name}`")))?;
    algorithm
        .plan(&shape, &params)
        .map_err(|error| internal(error.to_string()))
}

/// Puts tasks before those of each rank. Their scratch memory, of so many bytes, lies behind that of
/// the algorithm.
fn before(mut plan: Plan, scratch_bytes: u64, tasks: impl Fn(Rank, u64) -> Vec<Task>) -> Plan {
    let behind = plan.ranks.iter().map(|rank| rank.scratch_bytes).max();
    let base = behind.unwrap_or(0).next_multiple_of(4096);
    for (index, own) in plan.ranks.iter_mut().enumerate() {
        let mut all = tasks(Rank::from_index(index), base);
        if own.threads.is_empty() {
            own.threads.push(Vec::new());
        }
        all.append(&mut own.threads[0]);
        own.threads[0] = all;
        if scratch_bytes > 0 {
            own.scratch_bytes = base + scratch_bytes;
        }
    }
    plan
}

/// A barrier with so many exchanges of notifies before it.
///
/// # Errors
/// Never, as far as is known.
pub(super) fn meetings(ranks: u32, times: u32) -> Result<Plan> {
    let barrier = plain(Operation::Barrier, ranks, 0, DataType::U8)?;
    Ok(before(barrier, 0, |me, _| {
        let peer = Rank(me.0 ^ 1);
        let meeting = [
            Task::Record { peer, notify: HERE },
            Task::Wait { peer, notify: HERE },
        ];
        (0..times).flat_map(|_| meeting).collect()
    }))
}

/// An all-gather of a line, with so many copies of 8 bytes before it.
///
/// # Errors
/// As above.
pub(super) fn small_copies(ranks: u32, times: u32) -> Result<Plan> {
    let gather = plain(Operation::AllGather, ranks, 64, DataType::U8)?;
    Ok(before(gather, 4096, |_, base| {
        let copy = Task::Copy {
            dst: Loc::scratch(base),
            src: Loc::input(0),
            bytes: 8,
        };
        vec![copy; times as usize]
    }))
}

/// An all-gather of `bytes` bytes a rank, with so many copies of the input to the output before it.
///
/// # Errors
/// As above.
pub(super) fn copies(ranks: u32, bytes: u64, times: u32) -> Result<Plan> {
    let gather = plain(Operation::AllGather, ranks, bytes, DataType::U8)?;
    Ok(before(gather, 0, |me, _| {
        let copy = Task::Copy {
            dst: Loc::output(u64::from(me.0) * bytes),
            src: Loc::input(0),
            bytes,
        };
        vec![copy; times as usize]
    }))
}

/// An all-reduce of `count` elements, with so many combinations before it of the input with that of
/// the peer, which is fetched once.
///
/// # Errors
/// As above.
pub(super) fn combinations(ranks: u32, count: u64, dtype: DataType, times: u32) -> Result<Plan> {
    let reduce = plain(Operation::AllReduce, ranks, count, dtype)?;
    let bytes = count * dtype.size() as u64;
    Ok(before(reduce, bytes.next_multiple_of(4096), |me, base| {
        let peer = Rank(me.0 ^ 1);
        let theirs = Loc::scratch(base);
        let mut tasks = vec![
            Task::Write {
                peer,
                dst: theirs,
                src: Loc::input(0),
                bytes,
                notify: Some(HERE),
            },
            Task::Wait { peer, notify: HERE },
        ];
        let combine = Task::Reduce {
            dst: Loc::output(0),
            a: Loc::input(0),
            b: theirs,
            count,
        };
        tasks.resize(2 + times as usize, combine);
        tasks
    }))
}

/// An all-gather of `bytes` bytes a rank, with so many rounds before it in which each rank offers
/// its input in scratch memory and reads what its peer offers.
///
/// # Errors
/// As above.
pub(super) fn exchanges(ranks: u32, bytes: u64, times: u32) -> Result<Plan> {
    let gather = plain(Operation::AllGather, ranks, bytes, DataType::U8)?;
    Ok(before(gather, bytes.next_multiple_of(4096), |me, base| {
        let peer = Rank(me.0 ^ 1);
        let offer = Loc::scratch(base);
        let round = [
            Task::Copy {
                dst: offer,
                src: Loc::input(0),
                bytes,
            },
            Task::Record { peer, notify: HERE },
            Task::Wait { peer, notify: HERE },
            Task::Read {
                peer,
                dst: Loc::output(u64::from(peer.0) * bytes),
                src: offer,
                bytes,
            },
            Task::Record { peer, notify: BACK },
            Task::Wait { peer, notify: BACK },
        ];
        (0..times).flat_map(|_| round).collect()
    }))
}

/// An all-gather of `bytes` bytes a rank, with so many rounds before it in which each rank copies what
/// its peer lends.
///
/// # Errors
/// As above.
pub(super) fn loans(ranks: u32, bytes: u64, times: u32) -> Result<Plan> {
    let gather = plain(Operation::AllGather, ranks, bytes, DataType::U8)?;
    Ok(before(gather, 0, |me, _| {
        let peer = Rank(me.0 ^ 1);
        let round = [
            Task::Record { peer, notify: HERE },
            Task::Wait { peer, notify: HERE },
            Task::Read {
                peer,
                dst: Loc::output(u64::from(peer.0) * bytes),
                src: Loc::input(0),
                bytes,
            },
            Task::Record { peer, notify: BACK },
            Task::Wait { peer, notify: BACK },
        ];
        (0..times).flat_map(|_| round).collect()
    }))
}

/// An all-gather of `bytes` bytes a rank, with so many rounds before it in which each rank writes
/// its input into scratch memory of its peer, and takes what it got.
///
/// # Errors
/// As above.
pub(super) fn puts(ranks: u32, bytes: u64, times: u32) -> Result<Plan> {
    let gather = plain(Operation::AllGather, ranks, bytes, DataType::U8)?;
    let room = bytes.next_multiple_of(4096);
    Ok(before(gather, 2 * room, |me, base| {
        let peer = Rank(me.0 ^ 1);
        let round = |number: u32| {
            // Two slots in turn need no word back.
            let slot = Loc::scratch(base + u64::from(number % 2) * room);
            [
                Task::Write {
                    peer,
                    dst: slot,
                    src: Loc::input(0),
                    bytes,
                    notify: Some(HERE),
                },
                Task::Wait { peer, notify: HERE },
                Task::Copy {
                    dst: Loc::output(u64::from(peer.0) * bytes),
                    src: slot,
                    bytes,
                },
            ]
        };
        (0..times).flat_map(round).collect()
    }))
}

/// An all-gather of `bytes` bytes a rank, with so many pieces before it that the even rank of each
/// pair offers in two slots and the odd one reads.
///
/// # Errors
/// As above.
pub(super) fn pieces(ranks: u32, bytes: u64, times: u32) -> Result<Plan> {
    let gather = plain(Operation::AllGather, ranks, bytes, DataType::U8)?;
    let room = bytes.next_multiple_of(4096);
    Ok(before(gather, 2 * room, |me, base| {
        let peer = Rank(me.0 ^ 1);
        let slot = |piece: u32| Loc::scratch(base + u64::from(piece % 2) * room);
        let mut tasks = Vec::new();
        for piece in 0..times {
            if me.0.is_multiple_of(2) {
                if piece >= 2 {
                    tasks.push(Task::Wait { peer, notify: BACK });
                }
                tasks.push(Task::Copy {
                    dst: slot(piece),
                    src: Loc::input(0),
                    bytes,
                });
                tasks.push(Task::Record { peer, notify: HERE });
            } else {
                tasks.push(Task::Wait { peer, notify: HERE });
                tasks.push(Task::Read {
                    peer,
                    dst: Loc::output(u64::from(peer.0) * bytes),
                    src: slot(piece),
                    bytes,
                });
                if piece + 2 < times {
                    tasks.push(Task::Record { peer, notify: BACK });
                }
            }
        }
        tasks
    }))
}

/// An all-gather in packets.
///
/// # Errors
/// As above.
pub(super) fn packets(ranks: u32, bytes: u64) -> Result<Plan> {
    let mut plan = plain(Operation::AllGather, ranks, bytes, DataType::U8)?;
    let internal = |words: String| Error::new(ErrorKind::Internal, words);
    let packet = algorithms::by_name("mesh_packet")
        .ok_or_else(|| internal("no algorithm `mesh_packet`".to_owned()))?;
    let params = Params {
        scratch_bytes: 1 << 20,
        slice_bytes: 512 << 10,
        groups: None,
        flows: 1,
    };
    let ranks = plan.shape.all_ranks().map(|rank| {
        packet
            .plan_rank(&plan.shape, &params, rank)
            .map_err(|error| internal(error.to_string()))
    });
    plan.ranks = ranks.collect::<Result<Vec<RankPlan>>>()?;
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use hcomm_coll::verify::verify;

    use super::*;

    #[test]
    fn every_plan_is_right() {
        for ranks in [2, 4] {
            for plan in [
                meetings(ranks, 5),
                small_copies(ranks, 3),
                copies(ranks, 100, 3),
                combinations(ranks, 25, DataType::F32, 3),
                exchanges(ranks, 100, 3),
                puts(ranks, 100, 5),
                pieces(ranks, 100, 7),
                packets(ranks, 100),
            ] {
                let plan = plan.unwrap();
                let proof = verify(&plan).unwrap();
                assert!(proof.synchronising, "{}", plan.shape);
            }
        }
    }
}
