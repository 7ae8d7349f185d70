//! More bytes than 32 bits count: every collective, between two processes.
//!
//! The data is made of blocks that differ in their first element, so that a block in the wrong
//! place is seen, as is each byte around the borders of 2³¹ and 2³². All of it is compared.

use std::collections::BTreeMap;
use std::fs;

use hcomm::{Communicator, Rank, ReduceOp};

use crate::job::{self, Job};
use crate::sample::{Sample, assert_same, samples};
use crate::tally::Tally;

/// Elements of a block: a prime, so that no border of anything is one of a block.
const BLOCK: usize = 4099;

/// Different blocks but for their first element.
const PATTERNS: usize = 7;

/// Bytes of a rank's part: beyond what 31 bits count, so that two parts are beyond 32.
const PART_BYTES: usize = (1 << 31) + 308;

/// Bytes that the largest buffers of both ranks take together, and something for the processes.
const NEEDED_BYTES: u64 = 2 * 2 * PART_BYTES as u64 + (1 << 30);

const OP: ReduceOp = ReduceOp::Sum;

/// What ranks have: by rank, or of both combined.
struct Blocks<T>(Vec<Vec<T>>);

impl<T: Sample> Blocks<T> {
    fn of(rank: u32) -> Self {
        let block = |number: usize| samples(OP, rank, number * BLOCK, BLOCK);
        Self((0..PATTERNS).map(block).collect())
    }

    fn combined() -> Self {
        let (one, other) = (Self::of(0), Self::of(1));
        let both = one.0.iter().zip(&other.0);
        let combine = |(a, b): (&Vec<T>, &Vec<T>)| {
            let pairs = a.iter().zip(b);
            pairs.map(|(a, b)| a.combine(OP, *b)).collect()
        };
        Self(both.map(combine).collect())
    }
}

/// Something that tells blocks apart, of a rank.
fn mark<T: Sample>(rank: u32, number: usize) -> T {
    T::sample(OP, rank, usize::MAX / 2 + number)
}

fn combined_mark<T: Sample>(number: usize) -> T {
    mark::<T>(0, number).combine(OP, mark(1, number))
}

fn fill<T: Sample>(data: &mut [T], rank: u32) {
    let blocks = Blocks::<T>::of(rank);
    for (number, block) in data.chunks_mut(BLOCK).enumerate() {
        let count = block.len();
        block.copy_from_slice(&blocks.0[number % PATTERNS][..count]);
        block[0] = mark(rank, number);
    }
}

/// All of it must be these blocks, with these marks.
fn check<T: Sample>(what: &str, data: &[T], mut blocks: Blocks<T>, mark: impl Fn(usize) -> T) {
    for (number, block) in data.chunks(BLOCK).enumerate() {
        let expected = &mut blocks.0[number % PATTERNS];
        expected[0] = mark(number);
        if block != &expected[..block.len()] {
            assert_same(
                format!("{what}: block {number}"),
                block,
                &expected[..block.len()],
            );
        }
    }
}

/// All collectives on one buffer, in place, as there is no room for more.
fn all<T: Sample>(comm: &Communicator) -> u64 {
    let part = PART_BYTES / size_of::<T>();
    let (me, peer) = (comm.rank().0, 1 - comm.rank().0);
    let nothing = T::sample(OP, u32::MAX, 0);
    let mut calls = 0;
    let mut called = |name: &str| {
        println!("{name} of {part} {} a rank", T::DATA_TYPE);
        calls += 1;
        format!("{name} of {}", T::DATA_TYPE)
    };
    let combined = |what: &str, data: &[T]| {
        check(what, data, Blocks::combined(), combined_mark);
    };
    let of = |what: &str, data: &[T], rank: u32| {
        check(what, data, Blocks::of(rank), |number| mark(rank, number));
    };

    // Two parts: beyond 2³² bytes in all.
    let mut both = vec![nothing; 2 * part];
    let what = called("all_gather");
    let mine = me as usize * part..(me as usize + 1) * part;
    fill(&mut both[mine.clone()], me);
    comm.all_gather_in_place(&mut both).expect(&what);
    of(&what, &both[..part], 0);
    of(&what, &both[part..], 1);

    // Each part is that of the rank that it is for; whose, says which half it came from.
    let what = called("all_to_all");
    both.fill(nothing);
    fill(&mut both[peer as usize * part..][..part], me);
    comm.all_to_all_in_place(&mut both).expect(&what);
    of(&what, &both[peer as usize * part..][..part], peer);
    let mut kept = both[mine.clone()].chunks(BLOCK);
    assert!(
        kept.all(|block| block == &[nothing; BLOCK][..block.len()]),
        "{what}: own part"
    );

    let what = called("reduce_scatter");
    fill(&mut both[..part], me);
    fill(&mut both[part..], me);
    comm.reduce_scatter_in_place(&mut both, OP).expect(&what);
    combined(&what, &both[mine]);

    let root = Rank(1);
    let is_root = comm.rank() == root;
    let what = called("gather");
    let first = if is_root { part } else { 0 };
    fill(&mut both[first..first + part], me);
    let end = if is_root { 2 * part } else { part };
    comm.gather_in_place(&mut both[..end], root).expect(&what);
    if is_root {
        of(&what, &both[..part], 0);
        of(&what, &both[part..], 1);
    }

    let what = called("scatter");
    if is_root {
        fill(&mut both[..part], 0);
        fill(&mut both[part..], 1);
    } else {
        both[..part].fill(nothing);
    }
    comm.scatter_in_place(&mut both[..end], root).expect(&what);
    of(&what, &both[first..first + part], me);
    both.truncate(part);
    both.shrink_to_fit();

    let mut data = both;
    let what = called("all_reduce");
    fill(&mut data, me);
    comm.all_reduce_in_place(&mut data, OP).expect(&what);
    combined(&what, &data);

    let what = called("reduce");
    fill(&mut data, me);
    comm.reduce_in_place(&mut data, OP, root).expect(&what);
    if is_root {
        combined(&what, &data);
    }

    for algorithm in [None, Some("mesh_two_shot"), Some("ring")] {
        let what = called("broadcast") + &format!(", {algorithm:?}");
        comm.force_algorithm(algorithm).expect(&what);
        fill(&mut data, me);
        comm.broadcast(&mut data, root).expect(&what);
        of(&what, &data, 1);
    }
    comm.force_algorithm(None).expect("the rule");

    let what = called("send");
    fill(&mut data, me);
    if is_root {
        comm.send(&data, Rank(0)).expect(&what);
    } else {
        comm.recv(&mut data, root).expect(&what);
    }
    of(&what, &data, 1);
    calls
}

/// What each rank runs.
pub(crate) fn program(comm: &Communicator) {
    let mut tally = Tally::default();
    tally.add("calls", all::<u8>(comm));
    tally.add("calls", all::<i32>(comm));
    tally.add("calls", all::<f32>(comm));
    tally.say();
}

/// Memory of this host that can be had.
fn available_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
    let numbers: BTreeMap<&str, u64> = text
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.split_once(':')?;
            let number = rest.split_whitespace().next()?;
            Some((name, number.parse().ok()?))
        })
        .collect();
    numbers["MemAvailable"] << 10
}

#[test]
#[ignore = "soak: 10 GiB of memory"]
fn soak_more_than_32_bits_count() {
    let available = available_bytes();
    assert!(
        available > NEEDED_BYTES,
        "this takes {NEEDED_BYTES} bytes of memory, and {available} are available"
    );
    let mut ranks = Job::new("large", 2).start();
    job::all_succeed(&mut ranks);
    Tally::heard(&ranks[0].stdout()).conclude();
}
