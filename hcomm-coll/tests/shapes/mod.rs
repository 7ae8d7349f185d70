//! Operations and shapes that several tests go through.

#![allow(dead_code, reason = "not every test uses all of it")]

use hcomm_coll::plan::{Count, Operation, Shape};
use hcomm_types::Rank;

/// Every operation, rooted ones at the first rank and at one in the middle.
pub(crate) fn operations(ranks: u32) -> Vec<Operation> {
    let mut all = vec![
        Operation::AllReduce,
        Operation::AllGather,
        Operation::ReduceScatter,
        Operation::AllToAll,
        Operation::Barrier,
        Operation::SendRecv {
            from: Rank(0),
            to: Rank(ranks - 1),
        },
    ];
    let mut roots = vec![Rank(0)];
    if ranks > 1 {
        roots.push(Rank(ranks - ranks / 2));
    }
    for root in roots.into_iter().filter(|root| root.0 < ranks) {
        all.extend([
            Operation::Broadcast { root },
            Operation::Reduce { root },
            Operation::Gather { root },
            Operation::Scatter { root },
        ]);
    }
    if ranks > 2 {
        all.push(Operation::SendRecv {
            from: Rank(2),
            to: Rank(1),
        });
    }
    all
}

/// The shape with counts that differ, up to its own one, where the operation takes such.
pub(crate) fn uneven(shape: &Shape) -> Option<Shape> {
    let most = shape.count.largest();
    // The largest, nothing, one and what lies between, in an order without a pattern.
    let number =
        |i: u64| [most, 0, most / 2, most.min(1), most / 3 + 1][(i * 7 % 5) as usize].min(most);
    let ranks = u64::from(shape.ranks);
    let numbers = |n: u64| -> Vec<u64> { (0..n).map(number).collect() };
    let (count, in_place) = match shape.operation {
        Operation::AllGather
        | Operation::ReduceScatter
        | Operation::Scatter { .. }
        | Operation::Gather { .. } => (Count::ranks(&numbers(ranks)), shape.in_place),
        Operation::AllToAll if !shape.in_place => (Count::pairs(&numbers(ranks * ranks)), false),
        _ => return None,
    };
    Some(Shape {
        count,
        in_place,
        ..shape.clone()
    })
}
