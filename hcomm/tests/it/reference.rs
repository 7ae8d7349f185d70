//! Every operation of every algorithm, in every type, against a plain loop.
//!
//! Ranks are threads of one process. The expected results come from [`Sample`]: Rust's own
//! arithmetic on one element after the other, nothing of the library's. A test takes a selection in
//! which each algorithm meets each type and each reduction; the soak takes the whole product.

use hcomm::algorithms::{Algorithm, algorithms};
use hcomm::plan::{Buffer, Count, Operation};
use hcomm::{Buffers, Communicator, DataType, Element as _, Rank, ReduceOp};

use crate::collectives::{
    all_gather, all_reduce, all_to_all, all_to_all_of, broadcast, gather, reduce, reduce_scatter,
    scatter,
};
use crate::sample::{Sample, assert_same, combined, each_type, samples, unwritten};
use crate::tally::Tally;
use crate::team;

/// Numbers of ranks: all small ones, and a power of two that is not.
const RANKS: [u32; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16];

/// Elements: odd, prime, of a line and more of every type.
const COUNTS: [usize; 5] = [1, 7, 129, 1009, 4099];

/// What one algorithm is asked for in one type.
struct Case<'c> {
    comm: &'c Communicator,
    algorithm: &'c dyn Algorithm,
    op: ReduceOp,
    count: usize,
    calls: u64,
}

impl Case<'_> {
    /// Whether the algorithm can do this.
    fn takes<T: Sample>(&mut self, operation: Operation, count: Count) -> bool {
        let shape = self
            .comm
            .shape(operation, count, T::DATA_TYPE, self.op, false);
        let takes = self.algorithm.supports(&shape);
        self.calls += u64::from(takes);
        takes
    }

    fn even(&self) -> Count {
        Count::Even(self.count as u64)
    }

    /// Numbers that differ, some of them zero.
    fn numbers(&self, many: usize) -> Vec<usize> {
        let most = self.count;
        (0..many)
            .map(|i| [most, 0, most / 2, most.min(1), most / 3][i * 7 % 5])
            .collect()
    }

    /// All that combine elements.
    fn reductions<T: Sample>(&mut self) {
        let (comm, op, count) = (self.comm, self.op, self.count);
        for in_place in [false, true] {
            if self.takes::<T>(Operation::AllReduce, self.even()) {
                all_reduce::<T>(comm, op, count, in_place);
            }
            if self.takes::<T>(Operation::ReduceScatter, self.even()) {
                reduce_scatter::<T>(comm, op, count, in_place);
            }
            for root in self.roots() {
                if self.takes::<T>(Operation::Reduce { root }, self.even()) {
                    reduce::<T>(comm, op, count, root.0, in_place);
                }
            }
        }
        let counts = self.numbers(comm.size() as usize);
        if self.takes::<T>(Operation::ReduceScatter, Count::ranks(&wide(&counts))) {
            reduce_scatter_v::<T>(comm, op, &counts);
        }
    }

    /// All that only move elements.
    fn moves<T: Sample>(&mut self) {
        let (comm, count) = (self.comm, self.count);
        for in_place in [false, true] {
            if self.takes::<T>(Operation::AllGather, self.even()) {
                all_gather::<T>(comm, count, in_place);
            }
            if self.takes::<T>(Operation::AllToAll, self.even()) {
                all_to_all::<T>(comm, count, in_place);
            }
            for root in self.roots() {
                if self.takes::<T>(Operation::Gather { root }, self.even()) {
                    gather::<T>(comm, count, root.0, in_place);
                }
                if self.takes::<T>(Operation::Scatter { root }, self.even()) {
                    scatter::<T>(comm, count, root.0, in_place);
                }
            }
        }
        for root in self.roots() {
            if self.takes::<T>(Operation::Broadcast { root }, self.even()) {
                broadcast::<T>(comm, count, root.0);
            }
        }
        if self.takes::<T>(Operation::Barrier, Count::Even(0)) {
            comm.barrier().unwrap();
        }
        self.moves_of_numbers_that_differ::<T>();
    }

    fn moves_of_numbers_that_differ<T: Sample>(&mut self) {
        let (comm, size) = (self.comm, self.comm.size() as usize);
        let counts = self.numbers(size);
        let numbers = Count::ranks(&wide(&counts));
        if self.takes::<T>(Operation::AllGather, numbers.clone()) {
            all_gather_v::<T>(comm, &counts);
        }
        for root in self.roots() {
            if self.takes::<T>(Operation::Gather { root }, numbers.clone()) {
                gather_v::<T>(comm, &counts, root);
            }
            if self.takes::<T>(Operation::Scatter { root }, numbers.clone()) {
                scatter_v::<T>(comm, &counts, root);
            }
        }
        let matrix = self.numbers(size * size);
        if self.takes::<T>(Operation::AllToAll, Count::pairs(&wide(&matrix))) {
            all_to_all_of::<T>(comm, &matrix);
        }
    }

    /// The first, and one in the middle.
    fn roots(&self) -> Vec<Rank> {
        let mut roots = vec![Rank(0), Rank(self.comm.size() / 2)];
        roots.dedup();
        roots
    }
}

fn wide(counts: &[usize]) -> Vec<u64> {
    counts.iter().map(|&count| count as u64).collect()
}

/// Where the part of a rank begins.
fn before(counts: &[usize], rank: Rank) -> usize {
    counts[..rank.index()].iter().sum()
}

fn reduce_scatter_v<T: Sample>(comm: &Communicator, op: ReduceOp, counts: &[usize]) {
    let what = format!("reduce_scatter_v of {counts:?} {} ({op})", T::DATA_TYPE);
    let (rank, size) = (comm.rank(), comm.size());
    let input = samples::<T>(op, rank.0, 0, counts.iter().sum());
    let mine = counts[rank.index()];
    let mut output = unwritten::<T>(op, mine);
    comm.reduce_scatter_v(&input, &mut output, counts, op)
        .expect(&what);
    let expected = combined::<T>(op, size, before(counts, rank), mine);
    assert_same(what, &output, &expected);
}

/// What all ranks bring, one after the other.
fn gathered<T: Sample>(counts: &[usize]) -> Vec<T> {
    (0..)
        .zip(counts)
        .flat_map(|(rank, &count)| samples::<T>(ReduceOp::Sum, rank, 0, count))
        .collect()
}

fn all_gather_v<T: Sample>(comm: &Communicator, counts: &[usize]) {
    let what = format!("all_gather_v of {counts:?} {}", T::DATA_TYPE);
    let input = samples::<T>(ReduceOp::Sum, comm.rank().0, 0, counts[comm.rank().index()]);
    let mut output = unwritten::<T>(ReduceOp::Sum, counts.iter().sum());
    comm.all_gather_v(&input, &mut output, counts).expect(&what);
    assert_same(what, &output, &gathered(counts));
}

/// An operation that has no call of its own for counts that differ.
fn execute<T: Sample>(
    comm: &Communicator,
    operation: Operation,
    counts: &[usize],
    input: &[T],
    output: &mut [T],
) {
    let counts = Count::ranks(&wide(counts));
    let shape = comm.shape(operation, counts, T::DATA_TYPE, ReduceOp::Sum, false);
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    for element in input {
        element.append_to(&mut sent);
    }
    for element in &*output {
        element.append_to(&mut got);
    }
    let rank = comm.rank();
    let buffers = Buffers::Separate {
        input: &sent,
        output: &mut got,
    };
    comm.execute("execute", &shape, buffers)
        .unwrap_or_else(|error| panic!("{shape} on rank {rank}: {error}"));
    assert_eq!(shape.home(rank, Buffer::Output).1, 0);
    for (element, bytes) in output.iter_mut().zip(got.chunks(size_of::<T>())) {
        *element = T::from_bytes(bytes);
    }
}

fn gather_v<T: Sample>(comm: &Communicator, counts: &[usize], root: Rank) {
    let input = samples::<T>(ReduceOp::Sum, comm.rank().0, 0, counts[comm.rank().index()]);
    let (all, is_root) = (counts.iter().sum(), comm.rank() == root);
    let mut output = unwritten::<T>(ReduceOp::Sum, if is_root { all } else { 0 });
    execute(
        comm,
        Operation::Gather { root },
        counts,
        &input,
        &mut output,
    );
    if is_root {
        let what = format!("gather of {counts:?} {} to {root}", T::DATA_TYPE);
        assert_same(what, &output, &gathered(counts));
    }
}

fn scatter_v<T: Sample>(comm: &Communicator, counts: &[usize], root: Rank) {
    let (all, is_root) = (counts.iter().sum(), comm.rank() == root);
    let input = samples::<T>(ReduceOp::Sum, root.0, 0, if is_root { all } else { 0 });
    let mine = counts[comm.rank().index()];
    let mut output = unwritten::<T>(ReduceOp::Sum, mine);
    execute(
        comm,
        Operation::Scatter { root },
        counts,
        &input,
        &mut output,
    );
    let first = before(counts, comm.rank());
    let what = format!("scatter of {counts:?} {} from {root}", T::DATA_TYPE);
    assert_same(what, &output, &samples(ReduceOp::Sum, root.0, first, mine));
}

/// Every algorithm on one communicator; `takes` chooses types and reductions, `counts` sizes.
fn every_algorithm(
    comm: &Communicator,
    takes: impl Fn(usize, DataType, ReduceOp) -> bool,
    counts: &[usize],
) -> u64 {
    let mut calls = 0;
    for (number, &algorithm) in algorithms().iter().enumerate() {
        if algorithm.is_for_messages() {
            continue;
        }
        comm.force_algorithm(Some(algorithm.name())).unwrap();
        each_type!(T => {
            let mut first = true;
            for op in ReduceOp::ALL {
                if !takes(number, T::DATA_TYPE, op) {
                    continue;
                }
                for &count in counts {
                    let mut case = Case { comm, algorithm, op, count, calls: 0 };
                    case.reductions::<T>();
                    if first {
                        case.moves::<T>();
                    }
                    calls += case.calls;
                }
                first = false;
            }
        });
    }
    comm.force_algorithm(None).unwrap();
    calls
}

/// On each number of ranks each algorithm has a few types, each with one reduction and one size;
/// over all numbers of ranks it has all types and all reductions.
#[test]
fn a_selection_of_types_and_reductions_of_every_algorithm() {
    for (turn, ranks) in RANKS.into_iter().enumerate() {
        let calls = team::run(ranks, move |comm| {
            let takes = |number: usize, dtype: DataType, op: ReduceOp| {
                let at = number + 5 * turn;
                let chosen = (dtype as usize + at) % 12 < if ranks < 8 { 3 } else { 2 };
                chosen && (op as usize + dtype as usize + turn).is_multiple_of(4)
            };
            let calls = every_algorithm(&comm, takes, &[COUNTS[1 + turn % 3]]);
            comm.close().unwrap();
            calls
        });
        assert!(calls[0] > 200, "only {} calls on {ranks} ranks", calls[0]);
    }
}

#[test]
#[ignore = "soak"]
fn soak_every_type_and_reduction_of_every_algorithm() {
    let sizes = std::env::var("ITEST_SIZES").map_or(5, |text| text.parse().expect("a number"));
    let mut tally = Tally::default();
    for ranks in RANKS {
        let calls = team::run(ranks, move |comm| {
            let calls = every_algorithm(&comm, |_, _, _| true, &COUNTS[COUNTS.len() - sizes..]);
            comm.close().unwrap();
            calls
        });
        println!("{ranks} ranks: {} calls", calls[0]);
        tally.add("calls", calls[0]);
        tally.add("numbers-of-ranks", 1);
    }
    tally.conclude();
}
