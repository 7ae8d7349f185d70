//! Every collective: ranks in threads and in processes, types, operations, sizes, algorithms.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use hcomm::plan::Operation;
use hcomm::{Communicator, DataType, ErrorKind, Rank, ReduceOp, Reduction, algorithms};

use crate::job::{self, Job};
use crate::sample::{Sample, assert_same, combined, each_type, samples, unwritten};
use crate::team;

/// About so many bytes, input times ranks, go in another way than fewer.
const SWITCH_BYTES: usize = 128 << 10;

pub(crate) fn all_reduce<T: Sample>(
    comm: &Communicator,
    op: ReduceOp,
    count: usize,
    in_place: bool,
) {
    let what = format!(
        "all_reduce of {count} {} ({op}), in place: {in_place}",
        T::DATA_TYPE
    );
    let rank = comm.rank().0;
    let mut input = samples::<T>(op, rank, 0, count);
    let expected = combined::<T>(op, comm.size(), 0, count);
    if in_place {
        comm.all_reduce_in_place(&mut input, op).expect(&what);
        assert_same(what, &input, &expected);
    } else {
        let mut output = unwritten::<T>(op, count);
        comm.all_reduce(&input, &mut output, op).expect(&what);
        assert_same(&what, &output, &expected);
        assert_same(what + ": input", &input, &samples(op, rank, 0, count));
    }
}

pub(crate) fn reduce_scatter<T: Sample>(
    comm: &Communicator,
    op: ReduceOp,
    count: usize,
    in_place: bool,
) {
    let what = format!(
        "reduce_scatter of {count} {} ({op}), in place: {in_place}",
        T::DATA_TYPE
    );
    let (rank, size) = (comm.rank().0, comm.size());
    let whole = count * size as usize;
    let first = rank as usize * count;
    let mut input = samples::<T>(op, rank, 0, whole);
    let expected = combined::<T>(op, size, first, count);
    let mut before = samples::<T>(op, rank, 0, whole);
    if in_place {
        comm.reduce_scatter_in_place(&mut input, op).expect(&what);
        // The other parts keep what they had.
        before[first..first + count].copy_from_slice(&expected);
        assert_same(what, &input, &before);
    } else {
        let mut output = unwritten::<T>(op, count);
        comm.reduce_scatter(&input, &mut output, op).expect(&what);
        assert_same(&what, &output, &expected);
        assert_same(what + ": input", &input, &before);
    }
}

pub(crate) fn all_gather<T: Sample>(comm: &Communicator, count: usize, in_place: bool) {
    let what = format!(
        "all_gather of {count} {}, in place: {in_place}",
        T::DATA_TYPE
    );
    let (rank, size, op) = (comm.rank().0, comm.size(), ReduceOp::Sum);
    let first = rank as usize * count;
    let input = samples::<T>(op, rank, 0, count);
    let expected: Vec<T> = (0..size)
        .flat_map(|rank| samples(op, rank, 0, count))
        .collect();
    let mut output = unwritten::<T>(op, count * size as usize);
    if in_place {
        output[first..first + count].copy_from_slice(&input);
        comm.all_gather_in_place(&mut output).expect(&what);
    } else {
        comm.all_gather(&input, &mut output).expect(&what);
    }
    assert_same(what, &output, &expected);
}

pub(crate) fn broadcast<T: Sample>(comm: &Communicator, count: usize, root: u32) {
    let what = format!("broadcast of {count} {} from {root}", T::DATA_TYPE);
    let mut buffer = samples::<T>(ReduceOp::Sum, comm.rank().0, 0, count);
    comm.broadcast(&mut buffer, Rank(root)).expect(&what);
    assert_same(what, &buffer, &samples(ReduceOp::Sum, root, 0, count));
}

pub(crate) fn reduce<T: Sample>(
    comm: &Communicator,
    op: ReduceOp,
    count: usize,
    root: u32,
    in_place: bool,
) {
    let what = format!(
        "reduce of {count} {} ({op}) to {root}, in place: {in_place}",
        T::DATA_TYPE
    );
    let rank = comm.rank().0;
    let mut input = samples::<T>(op, rank, 0, count);
    let expected = if rank == root {
        combined::<T>(op, comm.size(), 0, count)
    } else {
        unwritten::<T>(op, count)
    };
    if in_place {
        comm.reduce_in_place(&mut input, op, Rank(root))
            .expect(&what);
        if rank == root {
            assert_same(what, &input, &expected);
            return;
        }
    } else {
        let mut output = unwritten::<T>(op, count);
        comm.reduce(&input, &mut output, op, Rank(root))
            .expect(&what);
        assert_same(&what, &output, &expected);
    }
    assert_same(what + ": input", &input, &samples(op, rank, 0, count));
}

pub(crate) fn gather<T: Sample>(comm: &Communicator, count: usize, root: u32, in_place: bool) {
    let what = format!(
        "gather of {count} {} to {root}, in place: {in_place}",
        T::DATA_TYPE
    );
    let (rank, size, op) = (comm.rank().0, comm.size(), ReduceOp::Sum);
    let mut input = samples::<T>(op, rank, 0, count);
    let mut output = unwritten::<T>(op, count * size as usize);
    let expected: Vec<T> = if rank == root {
        (0..size)
            .flat_map(|rank| samples(op, rank, 0, count))
            .collect()
    } else {
        output.clone()
    };
    if !in_place {
        comm.gather(&input, &mut output, Rank(root)).expect(&what);
    } else if rank == root {
        let first = rank as usize * count;
        output[first..first + count].copy_from_slice(&input);
        comm.gather_in_place(&mut output, Rank(root)).expect(&what);
    } else {
        comm.gather_in_place(&mut input, Rank(root)).expect(&what);
    }
    assert_same(what, &output, &expected);
}

pub(crate) fn scatter<T: Sample>(comm: &Communicator, count: usize, root: u32, in_place: bool) {
    let what = format!(
        "scatter of {count} {} from {root}, in place: {in_place}",
        T::DATA_TYPE
    );
    let (rank, size, op) = (comm.rank().0, comm.size(), ReduceOp::Sum);
    let mine = rank as usize * count;
    let expected = samples::<T>(op, root, mine, count);
    let mut whole = samples::<T>(op, root, 0, count * size as usize);
    let mut output = unwritten::<T>(op, count);
    if rank != root {
        whole.clear();
    }
    if !in_place {
        comm.scatter(&whole, &mut output, Rank(root)).expect(&what);
        assert_same(what, &output, &expected);
    } else if rank == root {
        comm.scatter_in_place(&mut whole, Rank(root)).expect(&what);
        assert_same(what, &whole, &samples(op, root, 0, count * size as usize));
    } else {
        comm.scatter_in_place(&mut output, Rank(root)).expect(&what);
        assert_same(what, &output, &expected);
    }
}

pub(crate) fn all_to_all<T: Sample>(comm: &Communicator, count: usize, in_place: bool) {
    let what = format!(
        "all_to_all of {count} {}, in place: {in_place}",
        T::DATA_TYPE
    );
    let (rank, size, op) = (comm.rank().0, comm.size(), ReduceOp::Sum);
    let whole = count * size as usize;
    let mut input = samples::<T>(op, rank, 0, whole);
    let expected: Vec<T> = (0..size)
        .flat_map(|from| samples(op, from, rank as usize * count, count))
        .collect();
    if in_place {
        comm.all_to_all_in_place(&mut input).expect(&what);
        assert_same(what, &input, &expected);
    } else {
        let mut output = unwritten::<T>(op, whole);
        comm.all_to_all(&input, &mut output).expect(&what);
        assert_same(&what, &output, &expected);
        assert_same(what + ": input", &input, &samples(op, rank, 0, whole));
    }
}

/// Operations whose counts differ from rank to rank, up to `count`.
pub(crate) fn uneven<T: Sample>(comm: &Communicator, count: usize) {
    let what = format!("up to {count} {}", T::DATA_TYPE);
    let (rank, size, op) = (comm.rank().index(), comm.size() as usize, ReduceOp::Sum);
    let number = |i: usize| [count, 0, count / 2, count.min(1), count / 3][i * 7 % 5];
    let counts: Vec<usize> = (0..size).map(number).collect();
    let (all, first): (usize, usize) = (counts.iter().sum(), counts[..rank].iter().sum());

    let mine = samples::<T>(op, rank as u32, 0, counts[rank]);
    let expected: Vec<T> = (0..size)
        .flat_map(|rank| samples(op, rank as u32, 0, counts[rank]))
        .collect();
    let mut output = unwritten::<T>(op, all);
    comm.all_gather_v(&mine, &mut output, &counts).expect(&what);
    assert_same(format!("all_gather_v, {what}"), &output, &expected);

    let whole = samples::<T>(op, rank as u32, 0, all);
    let mut output = unwritten::<T>(op, counts[rank]);
    comm.reduce_scatter_v(&whole, &mut output, &counts, op)
        .expect(&what);
    let expected = combined::<T>(op, size as u32, first, counts[rank]);
    assert_same(format!("reduce_scatter_v, {what}"), &output, &expected);

    let matrix: Vec<usize> = (0..size * size).map(number).collect();
    all_to_all_of::<T>(comm, &matrix);
}

/// The three calls for counts that differ from pair to pair.
pub(crate) fn all_to_all_of<T: Sample>(comm: &Communicator, matrix: &[usize]) {
    let (rank, size, op) = (comm.rank().index(), comm.size() as usize, ReduceOp::Sum);
    let rows: Vec<&[usize]> = matrix.chunks(size).collect();
    let sends = rows[rank];
    let receives: Vec<usize> = rows.iter().map(|row| row[rank]).collect();
    let input = samples::<T>(op, rank as u32, 0, sends.iter().sum());
    let expected: Vec<T> = rows
        .iter()
        .enumerate()
        .flat_map(|(from, row)| samples(op, from as u32, row[..rank].iter().sum(), row[rank]))
        .collect();
    let mut output = unwritten::<T>(op, expected.len());
    comm.all_to_all_v(&input, sends, &mut output, &receives)
        .expect("all_to_all_v");
    assert_same(format!("all_to_all_v of {matrix:?}"), &output, &expected);
    let mut output = unwritten::<T>(op, expected.len());
    comm.all_to_all_vc(&input, &mut output, matrix)
        .expect("all_to_all_vc");
    assert_same(format!("all_to_all_vc of {matrix:?}"), &output, &expected);
    let mut output = Vec::new();
    let came = comm
        .all_to_all_vc_unknown(&input, sends, &mut output)
        .expect("all_to_all_vc_unknown");
    assert_eq!(came, receives);
    assert_same(format!("unknown counts of {matrix:?}"), &output, &expected);
}

/// Every type with every operation, on counts that no power of two divides.
pub(crate) fn every_type_and_op(comm: &Communicator) {
    each_type!(T => {
        for op in ReduceOp::ALL {
            for (count, in_place) in [(1, true), (1, false), (37, false), (131, true)] {
                all_reduce::<T>(comm, op, count, in_place);
            }
            reduce_scatter::<T>(comm, op, 13, false);
            reduce_scatter::<T>(comm, op, 7, true);
            reduce::<T>(comm, op, 19, comm.size() - 1, false);
            reduce::<T>(comm, op, 211, 0, true);
        }
        gather::<T>(comm, 9, comm.size() / 2, false);
        gather::<T>(comm, 31, 0, true);
        scatter::<T>(comm, 17, comm.size() / 2, false);
        scatter::<T>(comm, 29, 0, true);
        all_to_all::<T>(comm, 15, false);
        all_to_all::<T>(comm, 21, true);
        uneven::<T>(comm, 41);
        all_gather::<T>(comm, 11, false);
        all_gather::<T>(comm, 5, true);
        broadcast::<T>(comm, 23, comm.size() - 1);
    });
}

/// Averages: of integers towards zero, of floats exact where the sum is.
pub(crate) fn averages(comm: &Communicator) {
    macro_rules! average {
        ($($t:ident)*) => {$(
            for count in [1usize, 37, 3001, 100_003] {
                let input = samples::<$t>(ReduceOp::Sum, comm.rank().0, 0, count);
                let mut expected = combined::<$t>(ReduceOp::Sum, comm.size(), 0, count);
                expected.iter_mut().for_each(|sum| *sum = (f64::from(*sum) / f64::from(comm.size())) as $t);
                let mut output = unwritten::<$t>(ReduceOp::Sum, count);
                comm.all_reduce(&input, &mut output, Reduction::Avg).unwrap();
                assert_same(format!("average of {count}"), &output, &expected);
                let mut whole = samples::<$t>(ReduceOp::Sum, comm.rank().0, 0, count * comm.size() as usize);
                comm.reduce_scatter_in_place(&mut whole, Reduction::Avg).unwrap();
                comm.reduce_in_place(&mut output, Reduction::Avg, Rank(0)).unwrap();
            }
        )*};
    }
    average!(i8 u16 i32 u32 f32 f64);
}

/// Every collective on nothing, one byte, odd and prime counts, and around the switch.
pub(crate) fn every_size<T: Sample>(comm: &Communicator) {
    let ranks = comm.size() as usize;
    let switch = SWITCH_BYTES / size_of::<T>() / ranks;
    for count in [
        0,
        1,
        2,
        3,
        17,
        1009,
        switch - 1,
        switch,
        switch + 1,
        2 * switch + 3,
    ] {
        for in_place in [false, true] {
            all_reduce::<T>(comm, ReduceOp::Sum, count, in_place);
            reduce_scatter::<T>(comm, ReduceOp::Max, count, in_place);
            all_gather::<T>(comm, count, in_place);
            all_to_all::<T>(comm, count, in_place);
        }
        for root in 0..comm.size() {
            broadcast::<T>(comm, count, root);
            let in_place = root % 2 == 1;
            reduce::<T>(comm, ReduceOp::Min, count, root, in_place);
            gather::<T>(comm, count, root, in_place);
            scatter::<T>(comm, count, root, in_place);
        }
        uneven::<T>(comm, count);
    }
}

/// Every algorithm by name, on sizes that it can plan.
pub(crate) fn every_algorithm(comm: &Communicator) {
    for algorithm in algorithms::algorithms() {
        let packs = algorithm.has_packets() && !comm.maps_all();
        if packs || (algorithm.lends() && !comm.costs().2.lends) {
            continue;
        }
        comm.force_algorithm(Some(algorithm.name())).unwrap();
        let plans = |operation, count: usize| {
            let (dtype, redop) = (DataType::I64, ReduceOp::Sum);
            let shape = comm.shape(operation, count, dtype, redop, false);
            // What is for messages only leaves the rest to the model.
            algorithm.is_for_messages() || algorithm.supports(&shape)
        };
        for count in [0, 1, 5, 14, 28, 224, 997, 4099] {
            for in_place in [false, true] {
                if plans(Operation::AllReduce, count) {
                    all_reduce::<f32>(comm, ReduceOp::Sum, count, in_place);
                }
                if plans(Operation::ReduceScatter, count) {
                    reduce_scatter::<i64>(comm, ReduceOp::Min, count, in_place);
                }
                if plans(Operation::AllGather, count) {
                    all_gather::<u16>(comm, count, in_place);
                }
                if plans(Operation::AllToAll, count) {
                    all_to_all::<f64>(comm, count, in_place);
                }
            }
            for root in (0..comm.size()).map(Rank) {
                let in_place = root.0 % 2 == 1;
                if plans(Operation::Broadcast { root }, count) {
                    broadcast::<i8>(comm, count, root.0);
                }
                if plans(Operation::Reduce { root }, count) {
                    reduce::<u32>(comm, ReduceOp::Max, count, root.0, in_place);
                }
                if plans(Operation::Gather { root }, count) {
                    gather::<i32>(comm, count, root.0, in_place);
                }
                if plans(Operation::Scatter { root }, count) {
                    scatter::<u64>(comm, count, root.0, in_place);
                }
            }
        }
        // What a forced algorithm cannot do goes on by the model's choice.
        comm.barrier().unwrap();
    }
    comm.force_algorithm(None).unwrap();
}

fn threads(size: u32, work: impl Fn(&Communicator) + Send + Sync + 'static) {
    team::run(size, move |comm| {
        work(&comm);
        comm.close().unwrap();
    });
}

#[test]
fn averages_between_threads() {
    for size in [1, 2, 3, 5] {
        team::run(size, |comm| {
            averages(&comm);
            comm.close().unwrap();
        });
    }
}

#[test]
fn one_rank() {
    threads(1, |comm| {
        every_type_and_op(comm);
        every_size::<i8>(comm);
        every_algorithm(comm);
        comm.barrier().unwrap();
    });
}

#[test]
fn types_and_ops_on_two_threads() {
    threads(2, every_type_and_op);
}

#[test]
fn types_and_ops_on_three_threads() {
    threads(3, every_type_and_op);
}

#[test]
fn types_and_ops_on_seven_threads() {
    threads(7, every_type_and_op);
}

#[test]
fn sizes_on_two_threads() {
    threads(2, every_size::<u8>);
}

#[test]
fn sizes_on_three_threads() {
    threads(3, every_size::<f32>);
}

#[test]
fn sizes_on_five_threads() {
    threads(5, every_size::<i16>);
}

#[test]
fn sizes_on_eight_threads() {
    threads(8, every_size::<f64>);
}

#[test]
fn algorithms_on_two_threads() {
    threads(2, every_algorithm);
}

#[test]
fn algorithms_on_four_threads() {
    threads(4, every_algorithm);
}

#[test]
fn algorithms_on_five_threads() {
    threads(5, every_algorithm);
}

#[test]
fn algorithms_on_seven_threads() {
    threads(7, every_algorithm);
}

#[test]
fn algorithms_on_eight_threads() {
    threads(8, every_algorithm);
}

/// With the smallest buffer there is, data goes through scratch memory in many rounds.
#[test]
fn many_rounds_through_a_small_buffer() {
    for size in [2, 3, 5] {
        team::run_with(size, &team::small_buffer(64 << 10), |comm| {
            for algorithm in [None, Some("mesh_two_shot"), Some("ring")] {
                comm.force_algorithm(algorithm).unwrap();
                for count in [9_973, 50_021] {
                    all_reduce::<f64>(&comm, ReduceOp::Sum, count, false);
                    all_reduce::<i32>(&comm, ReduceOp::Prod, count, true);
                    reduce_scatter::<u16>(&comm, ReduceOp::Max, count, true);
                    all_gather::<u32>(&comm, count, false);
                    broadcast::<i64>(&comm, count, comm.size() / 2);
                }
            }
            comm.close().unwrap();
        });
    }
}

/// More than the default buffer holds, and an odd number of bytes.
#[test]
fn more_than_the_buffer_holds() {
    threads(3, |comm| {
        all_reduce::<u8>(comm, ReduceOp::Sum, (9 << 20) + 1, true);
        all_gather::<i16>(comm, (3 << 20) + 1, false);
        broadcast::<u8>(comm, (17 << 20) + 3, 2);
    });
}

#[test]
fn every_collective_between_two_processes() {
    job::all_succeed(&mut Job::new("collectives", 2).start());
}

#[test]
fn every_collective_between_three_processes() {
    job::all_succeed(&mut Job::new("collectives", 3).start());
}

#[test]
fn sizes_and_algorithms_between_five_processes() {
    job::all_succeed(&mut Job::new("sizes", 5).start());
}

/// Once, a gigabyte.
#[test]
fn a_gigabyte_between_two_processes() {
    job::all_succeed(&mut Job::new("gigabyte", 2).start());
}

/// A barrier lets nobody through before all have come.
#[test]
fn a_barrier_waits_for_everybody() {
    const ROUNDS: usize = 200;
    for size in [2, 3, 8] {
        let came = Arc::new(AtomicUsize::new(0));
        threads(size, move |comm| {
            let size = comm.size() as usize;
            for round in 0..ROUNDS {
                // Each round another rank is the last.
                if comm.rank().index() == round % size {
                    (0..20).for_each(|_| thread::yield_now());
                }
                came.fetch_add(1, Ordering::SeqCst);
                comm.barrier().unwrap();
                let seen = came.load(Ordering::SeqCst);
                assert!(
                    seen >= size * (round + 1),
                    "rank {} left barrier {round} when {seen} had come",
                    comm.rank()
                );
            }
        });
    }
}

#[test]
fn a_barrier_waits_for_every_process() {
    let file = std::env::temp_dir().join(format!("hcomm-barrier-{}", std::process::id()));
    std::fs::write(&file, "").unwrap();
    job::all_succeed(
        &mut Job::new("barrier", 4)
            .set("ITEST_FILE", file.display())
            .start(),
    );
    std::fs::remove_file(&file).unwrap();
}

/// One byte a rank and round in a file that all append to.
pub(crate) fn barriers_over_a_file(comm: &Communicator) {
    let path = std::env::var("ITEST_FILE").expect("ITEST_FILE");
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    for round in 1..=100 {
        file.write_all(b"x").unwrap();
        comm.barrier().unwrap();
        let came = std::fs::metadata(&path).unwrap().len();
        assert!(
            came >= u64::from(comm.size()) * round,
            "rank {} left barrier {round} when {came} had come",
            comm.rank()
        );
    }
}

/// In place, in blocks that differ; whole blocks are copied and compared, since this program is
/// not optimised.
pub(crate) fn a_gigabyte(comm: &Communicator) {
    const BLOCK: usize = 4099;
    const COUNT: usize = (1 << 30) / size_of::<f32>();
    let patterns = |rank: u32| -> Vec<Vec<f32>> {
        (0..7)
            .map(|block| samples(ReduceOp::Sum, rank, block * BLOCK, BLOCK))
            .collect()
    };
    let mine = patterns(comm.rank().0);
    let mut data = vec![0.0f32; COUNT];
    for (number, block) in data.chunks_mut(BLOCK).enumerate() {
        let len = block.len();
        block.copy_from_slice(&mine[number % 7][..len]);
        block[0] = (number as u32 * (comm.rank().0 + 1)) as f32;
    }
    comm.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
    let all: Vec<_> = (0..comm.size()).map(patterns).collect();
    let factor: u32 = (1..=comm.size()).sum();
    for (number, block) in data.chunks(BLOCK).enumerate() {
        let mut expected = all[0][number % 7].clone();
        for other in &all[1..] {
            for (sum, one) in expected.iter_mut().zip(&other[number % 7]) {
                *sum += one;
            }
        }
        expected[0] = (number as u32 * factor) as f32;
        assert_same(format!("block {number}"), block, &expected[..block.len()]);
    }
}

#[test]
fn wrong_arguments_are_refused_and_leave_the_communicator_as_it_was() {
    threads(2, |comm| {
        let (one, mut two) = ([1.0f32], [0.0f32; 2]);
        let errors = [
            comm.all_reduce(&one, &mut two, ReduceOp::Sum),
            comm.all_gather(&one, &mut [0.0f32; 3]),
            comm.reduce_scatter(&one, &mut two, ReduceOp::Sum),
            comm.all_gather_in_place(&mut [0u8; 3]),
            comm.reduce_scatter_in_place(&mut [0u8; 3], ReduceOp::Sum),
            comm.broadcast(&mut two, Rank(2)),
            comm.reduce(&one, &mut [0.0f32; 1], ReduceOp::Sum, Rank(2)),
            comm.gather(&one, &mut [0.0f32; 3], comm.rank()),
            comm.scatter(&one, &mut two, comm.rank()),
            comm.all_to_all(&[0u8; 3], &mut [0u8; 3]),
            comm.all_gather_v(&one, &mut two, &[1, 2]),
            comm.all_gather_v(&one, &mut two, &[1]),
            comm.reduce_scatter_v(&one, &mut two, &[usize::MAX, 2], ReduceOp::Sum),
            comm.all_to_all_v(&one, &[1, 0], &mut two, &[1]),
            comm.all_to_all_vc(&one, &mut two, &[0, 0, 1, 9]),
            comm.all_to_all_vc_unknown(&one, &[1, 1], &mut Vec::new())
                .map(drop),
            comm.send(&one, comm.rank()),
            comm.send(&one, Rank(9)),
            comm.recv(&mut two, Rank(2)),
            comm.force_algorithm(Some("nonsense")),
        ];
        for (number, error) in errors.into_iter().enumerate() {
            let error = error.expect_err(&format!("call {number}"));
            assert_eq!(
                error.kind(),
                ErrorKind::InvalidArgument,
                "call {number}: {error}"
            );
        }
        all_reduce::<f32>(comm, ReduceOp::Sum, 100, false);
    });
}

/// A root does not wait for the others: what it has sent must wait for them, in order, beside
/// messages of the user that go the other way round.
#[test]
fn a_root_that_runs_ahead_loses_nothing() {
    const ROUNDS: usize = 300;
    for size in [2, 3, 5] {
        threads(size, |comm| {
            let last = Rank(comm.size() - 1);
            let value = |round: usize, at: usize| (round * 31 + at * 7) as u16;
            for round in 0..ROUNDS {
                // In cells, in pieces, longer than the ring, by plan; the root changes now and then.
                let count = [1, 3, 40, 900, 5_000, 33_000, 200_000][round % 7];
                let root = Rank((round / 50) as u32 % comm.size());
                let mut data = vec![0u16; count];
                if comm.rank() == root {
                    data = (0..count).map(|at| value(round, at)).collect();
                }
                let (mut note, is_last) = ([0u64], comm.rank() == last);
                // The root sends before, the receiver takes it after the broadcast.
                if comm.rank() == Rank(0) && root == Rank(0) {
                    comm.send(&[round as u64], last).unwrap();
                }
                comm.broadcast(&mut data, root).unwrap();
                if is_last && root == Rank(0) {
                    comm.recv(&mut note, Rank(0)).unwrap();
                    assert_eq!(note, [round as u64]);
                }
                let wrong = (0..count).find(|&at| data[at] != value(round, at));
                assert_eq!(wrong, None, "round {round} of {count} from {root}");
                if round % 90 == 89 {
                    all_reduce::<i32>(comm, ReduceOp::Sum, round, true);
                }
            }
        });
    }
}

/// Out of place at some ranks and in place at others, as each likes; by messages and by plan.
#[test]
fn a_broadcast_may_be_in_place_at_some_ranks_only() {
    use hcomm::Buffers;
    for size in [2, 4] {
        threads(size, |comm| {
            for (count, algorithm) in [(5, None), (3_000, None), (100, Some("mesh_one_shot"))] {
                comm.force_algorithm(algorithm).unwrap();
                for root in (0..comm.size()).map(Rank) {
                    let in_place = (comm.rank().0 + root.0).is_multiple_of(2);
                    let operation = Operation::Broadcast { root };
                    let shape = comm.shape(operation, count, DataType::U8, ReduceOp::Sum, in_place);
                    let expected: Vec<u8> = samples(ReduceOp::Sum, root.0, 0, count);
                    let input: Vec<u8> = samples(ReduceOp::Sum, comm.rank().0, 0, count);
                    let mut output = input.clone();
                    let is_root = comm.rank() == root;
                    let buffers = if in_place {
                        Buffers::InPlace {
                            buffer: &mut output,
                            input_offset: 0,
                            input_bytes: if is_root { count } else { 0 },
                            output_offset: 0,
                            output_bytes: count,
                        }
                    } else {
                        output.fill(0);
                        let input = if is_root { &input[..] } else { &[] };
                        Buffers::Separate {
                            input,
                            output: &mut output,
                        }
                    };
                    comm.execute("broadcast", &shape, buffers).unwrap();
                    assert_same(format!("{count} from {root}"), &output, &expected);
                }
            }
            comm.force_algorithm(None).unwrap();
        });
    }
}

/// In place at one rank and not at the others, in as many messages as it takes.
#[test]
fn an_all_to_all_may_be_in_place_at_some_ranks_only() {
    for algorithm in ["pairwise", "mesh_one_shot", "mesh_two_shot", "bruck"] {
        threads(3, move |comm| {
            comm.force_algorithm(Some(algorithm)).unwrap();
            for count in [3, 1_500_000] {
                for who in 0..comm.size() {
                    all_to_all::<u16>(comm, count, comm.rank().0 == who);
                }
            }
        });
    }
}
