//! Many rounds of all_to_all whose counts differ from pair to pair, most of them zero at times.

use hcomm::{Communicator, ReduceOp};

use crate::job::{self, Job};
use crate::random::Random;
use crate::sample::{Sample, assert_same, samples, unwritten};
use crate::tally::Tally;

/// Ranks of a job.
const RANKS: [u32; 4] = [4, 3, 2, 5];

/// Rounds of a job of the soak.
const ROUNDS_OF_A_JOB: usize = 1_000;

/// What each rank sends to each, row by row.
fn matrix(random: &mut Random, ranks: usize) -> Vec<usize> {
    let kind = random.below(20);
    let most = random.pick(&[3, 60, 2_000, 2_000, 40_000]);
    let (rows, columns): (Vec<bool>, Vec<bool>) = (0..ranks)
        .map(|_| (random.below(4) == 0, random.below(4) == 0))
        .unzip();
    (0..ranks * ranks)
        .map(|at| {
            let is_zero = match kind {
                // Nothing at all.
                0 => true,
                // Ranks that send nothing, ranks that get nothing.
                1..=6 => rows[at / ranks],
                7..=12 => columns[at % ranks],
                13..=15 => rows[at / ranks] || columns[at % ranks],
                // Nearly nothing.
                16 | 17 => random.below(ranks * ranks) > 0,
                _ => random.below(3) == 0,
            };
            let count = random.below(most + 1);
            if is_zero { 0 } else { count }
        })
        .collect()
}

/// One round: which call, and in a type whose elements are drawn from another place each time.
fn round<T: Sample>(comm: &Communicator, random: &mut Random, tally: &mut Tally) {
    let (rank, size, op) = (comm.rank().index(), comm.size() as usize, ReduceOp::Sum);
    let matrix = matrix(random, size);
    let (base, call) = (random.below(1 << 30), random.below(5));
    let rows: Vec<&[usize]> = matrix.chunks(size).collect();
    let sends = rows[rank];
    let receives: Vec<usize> = rows.iter().map(|row| row[rank]).collect();
    let input = samples::<T>(op, rank as u32, base, sends.iter().sum());
    let expected: Vec<T> = rows
        .iter()
        .enumerate()
        .flat_map(|(from, row)| {
            let first = base + row[..rank].iter().sum::<usize>();
            samples(op, from as u32, first, row[rank])
        })
        .collect();
    let mut output = unwritten::<T>(op, expected.len());
    let name = match call {
        0..=2 => {
            comm.all_to_all_v(&input, sends, &mut output, &receives)
                .expect("all_to_all_v");
            "all_to_all_v"
        }
        3 => {
            comm.all_to_all_vc(&input, &mut output, &matrix)
                .expect("all_to_all_vc");
            "all_to_all_vc"
        }
        _ => {
            let came = comm
                .all_to_all_vc_unknown(&input, sends, &mut output)
                .expect("all_to_all_vc_unknown");
            assert_eq!(came, receives, "{matrix:?}");
            "unknown"
        }
    };
    assert_same(format!("{name} of {matrix:?}"), &output, &expected);
    tally.add("rounds", 1);
    tally.add(name, 1);
    tally.add(
        "zeros",
        matrix.iter().filter(|&&count| count == 0).count() as u64,
    );
    tally.add("pairs", matrix.len() as u64);
    tally.add("bytes", (input.len() * size_of::<T>()) as u64);
}

/// What each rank runs.
pub(crate) fn program(comm: &Communicator) {
    let number = |name: &str| -> usize { std::env::var(name).unwrap().parse().unwrap() };
    let (seed, rounds) = (number("ITEST_SEED"), number("ITEST_ROUNDS"));
    let (mut random, mut tally) = (Random::new(seed as u64), Tally::default());
    for number in 0..rounds {
        if number % 100 == 0 {
            println!("round {number}");
        }
        match random.below(4) {
            0 | 1 => round::<u8>(comm, &mut random, &mut tally),
            2 => round::<i16>(comm, &mut random, &mut tally),
            _ => round::<f64>(comm, &mut random, &mut tally),
        }
    }
    tally.say();
}

fn in_processes(seed: u64, size: u32, rounds: usize) -> Tally {
    let mut ranks = Job::new("rounds", size)
        .set("ITEST_SEED", seed)
        .set("ITEST_ROUNDS", rounds)
        .start();
    job::all_succeed(&mut ranks);
    Tally::heard(&ranks[0].stdout())
}

fn seed() -> u64 {
    std::env::var("ITEST_SEED").map_or(5, |text| text.parse().expect("a seed"))
}

#[test]
fn rounds_of_all_to_all_with_zeros_between_processes() {
    for size in [4, 3] {
        let tally = in_processes(seed() + u64::from(size), size, 150);
        assert_eq!(tally.of("rounds"), 150);
        let (zeros, pairs) = (tally.of("zeros"), tally.of("pairs"));
        assert!(zeros > pairs / 4 && zeros < pairs, "{tally}");
    }
}

#[test]
#[ignore = "soak"]
fn soak_rounds_of_all_to_all_with_zeros() {
    let wanted: usize =
        std::env::var("ITEST_ROUNDS").map_or(10_000, |text| text.parse().expect("a number"));
    let mut all = Tally::default();
    for number in 0.. {
        let left = wanted.saturating_sub(all.of("rounds") as usize);
        if left == 0 {
            break;
        }
        let (seed, size) = (1000 * seed() + number as u64, RANKS[number % RANKS.len()]);
        println!(
            "seed {seed}, {size} ranks: {} of {wanted} rounds",
            all.of("rounds")
        );
        all.merge(&in_processes(seed, size, left.min(ROUNDS_OF_A_JOB)));
        all.add("jobs", 1);
    }
    all.conclude();
}
