//! What tells calls apart: a number that all ranks of one call come to, and nobody else.
//!
//! It travels in the cache lines that go over anyway (in the line of a notify, in the flag of a
//! packet), so that ranks in different calls find out at the first message between them. Numbers
//! are spread by the finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom
//! number generators", OOPSLA 2014).

use hcomm_types::{DataType, Rank, Reduction};

use crate::algorithms::Params;
use crate::plan::{Count, Operation, Shape};

/// The fingerprint of a shape, planned by an algorithm with these parameters. Whether it is in
/// place is the business of each rank.
pub(crate) fn of(shape: &Shape, algorithm: &str, params: &Params) -> u64 {
    let mut print = Print(0);
    for byte in algorithm.bytes() {
        print.add(byte.into());
    }
    for byte in shape.operation.name().bytes() {
        print.add(byte.into());
    }
    match shape.operation {
        Operation::SendRecv { from, to } => {
            print.add(from.0.into());
            print.add(to.0.into());
        }
        operation => print.add(operation.root().map_or(u64::MAX, |root| root.0.into())),
    }
    print.add(shape.ranks.into());
    print.add(shape.dtype as u64);
    if shape.operation.reduces() {
        print.add(shape.redop as u64);
    }
    match &shape.count {
        Count::Even(count) => print.add(*count),
        Count::Ranks(counts) => counts.iter().for_each(|count| print.add(*count)),
        // What one rank knows others do not: the rest is said pair by pair.
        Count::Pairs(_) | Count::Own { .. } => print.add(u64::MAX),
    }
    print.add(params.scratch_bytes);
    print.add(params.slice_bytes);
    print.add(params.flows.into());
    for group in params.groups.iter().flat_map(|groups| groups.iter()) {
        print.add((*group).into());
    }
    print.0
}

/// A call in three words: what is combined and with whom; how much; the fingerprint.
pub(crate) fn words(shape: &Shape, algorithm: &str, params: &Params) -> [u64; 3] {
    let operation = match shape.operation {
        Operation::AllReduce => 0,
        Operation::Reduce { .. } => 1,
        Operation::AllGather => 2,
        Operation::ReduceScatter => 3,
        Operation::Broadcast { .. } => 4,
        Operation::Scatter { .. } => 5,
        Operation::Gather { .. } => 6,
        Operation::AllToAll => 7,
        Operation::Barrier => 8,
        Operation::SendRecv { .. } => 9,
    };
    let root = shape.operation.root().map_or(0, |root| root.0);
    let what = [
        operation,
        shape.dtype as u8,
        shape.redop as u8,
        u8::from(!shape.count.is_even()),
    ];
    [
        u64::from(root) << 32 | u64::from(u32::from_le_bytes(what)),
        shape.count.total(),
        of(shape, algorithm, params),
    ]
}

/// [`words`] of a call with a plan of the user's: the fingerprint is that of the plan's file.
pub(crate) fn words_of_plan(shape: &Shape, file: &[u8]) -> [u64; 3] {
    let none = Params {
        scratch_bytes: 0,
        slice_bytes: 0,
        groups: None,
        flows: 1,
    };
    let [what, count, _] = words(shape, "", &none);
    let mut print = Print(0);
    for piece in file.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..piece.len()].copy_from_slice(piece);
        print.add(u64::from_le_bytes(bytes));
    }
    [what, count, print.0]
}

/// What [`words`] say, in words.
pub(crate) fn describe([what, count, _]: [u64; 3]) -> String {
    let root = Rank((what >> 32) as u32);
    let [operation, dtype, redop, is_uneven] = (what as u32).to_le_bytes();
    let operation = match operation {
        0 => Operation::AllReduce,
        1 => Operation::Reduce { root },
        2 => Operation::AllGather,
        3 => Operation::ReduceScatter,
        4 => Operation::Broadcast { root },
        5 => Operation::Scatter { root },
        6 => Operation::Gather { root },
        7 => Operation::AllToAll,
        8 => return "barrier".to_owned(),
        _ => return "an operation that this version does not know".to_owned(),
    };
    let uneven = if is_uneven == 0 {
        ""
    } else {
        " in uneven parts"
    };
    let dtype = DataType::from_number(dtype.into())
        .map_or_else(|| "unknown type".to_owned(), |dtype| dtype.to_string());
    let mut text = format!("{operation} of {count} {dtype}{uneven}");
    if operation.reduces()
        && let Some(redop) = Reduction::from_number(redop.into())
    {
        text += &format!(" ({redop})");
    }
    text
}

/// What is mixed in between two ranks: for what goes from `me` to `peer`, and for what comes.
pub(crate) fn between(shape: &Shape, me: Rank, peer: Rank) -> [u64; 2] {
    if shape.count.is_even() || shape.operation != Operation::AllToAll {
        return [0; 2];
    }
    [
        spread(shape.pair_bytes(me, peer)),
        spread(shape.pair_bytes(peer, me)),
    ]
}

/// That of one run: of its call, after those before it. So ranks that have come apart find out in
/// their next call, whatever that is. Never zero.
#[inline]
pub(crate) fn after(history: u64, call: u64) -> u64 {
    spread(history.rotate_left(1) ^ call).max(1)
}

struct Print(u64);

impl Print {
    fn add(&mut self, value: u64) {
        self.0 = spread(self.0.rotate_left(5) ^ value);
    }
}

#[inline]
const fn spread(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use hcomm_types::ReduceOp;

    use super::*;

    #[test]
    fn whatever_differs_in_a_call_shows_and_in_place_does_not() {
        let shape = Shape {
            operation: Operation::AllReduce,
            ranks: 4,
            count: 10.into(),
            dtype: DataType::F32,
            redop: ReduceOp::Sum.into(),
            in_place: false,
        };
        let params = Params {
            scratch_bytes: 4096,
            slice_bytes: 512,
            groups: None,
            flows: 1,
        };
        let others = [
            (
                Operation::Reduce { root: Rank(0) },
                4,
                10,
                DataType::F32,
                ReduceOp::Sum,
            ),
            (
                Operation::Reduce { root: Rank(1) },
                4,
                10,
                DataType::F32,
                ReduceOp::Sum,
            ),
            (Operation::AllReduce, 3, 10, DataType::F32, ReduceOp::Sum),
            (Operation::AllReduce, 4, 11, DataType::F32, ReduceOp::Sum),
            (Operation::AllReduce, 4, 10, DataType::I32, ReduceOp::Sum),
            (Operation::AllReduce, 4, 10, DataType::F32, ReduceOp::Max),
        ];
        let mut seen = vec![of(&shape, "ring", &params)];
        for (operation, ranks, count, dtype, redop) in others {
            let other = Shape {
                operation,
                ranks,
                count: count.into(),
                dtype,
                redop: redop.into(),
                in_place: false,
            };
            seen.push(of(&other, "ring", &params));
        }
        seen.push(of(&shape, "pairwise", &params));
        let more = Params {
            slice_bytes: 1024,
            ..params.clone()
        };
        seen.push(of(&shape, "ring", &more));
        for (at, one) in seen.iter().enumerate() {
            // Also in the few bits that packets carry.
            let bits = |print: u64| after(7, print) & 0xf_ffff;
            let same = |other: &&u64| bits(**other) == bits(*one);
            assert_eq!(seen.iter().filter(same).count(), 1, "{at}");
            assert_ne!(after(7, *one), after(8, *one));
        }
        let in_place = Shape {
            in_place: true,
            ..shape.clone()
        };
        assert_eq!(of(&in_place, "ring", &params), seen[0]);
    }

    #[test]
    fn who_sends_what_the_other_expects_says_so() {
        let sends = Shape {
            operation: Operation::AllToAll,
            ranks: 2,
            count: Count::Own {
                rank: Rank(0),
                sends: [3, 5].into(),
                receives: [3, 9].into(),
            },
            dtype: DataType::U8,
            redop: ReduceOp::Sum.into(),
            in_place: false,
        };
        let all = Shape {
            count: Count::pairs(&[3, 5, 9, 0]),
            ..sends.clone()
        };
        let [goes, comes] = between(&sends, Rank(0), Rank(1));
        assert_eq!(between(&all, Rank(1), Rank(0)), [comes, goes]);
        assert_ne!(goes, comes);
    }
}
