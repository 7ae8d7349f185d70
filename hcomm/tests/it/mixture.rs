//! Random sequences of operations, against a serial reference.
//!
//! Each rank has an array. A step works on ranges of all ranks' arrays; the reference does the
//! same to arrays in one place. After a step a rank's array must be as the reference says.

use hcomm::{Communicator, Rank, ReduceOp, Slice, Thread};

use crate::job::{self, Job};
use crate::random::Random;
use crate::sample::{Sample, assert_same, samples};
use crate::team;

/// Elements of a rank's array. Inputs lie in the first half, outputs in the second.
const LENGTH: usize = 50_000;
const HALF: usize = LENGTH / 2;
const ALGORITHMS: [Option<&str>; 4] = [
    None,
    Some("mesh_one_shot"),
    Some("mesh_two_shot"),
    Some("ring"),
];

#[derive(Clone, Copy, Debug)]
struct Step {
    call: Call,
    algorithm: Option<&'static str>,
    op: ReduceOp,
    count: usize,
    input: usize,
    output: usize,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    AllReduce { in_place: bool },
    AllGather { in_place: bool },
    ReduceScatter { in_place: bool },
    Broadcast { root: usize },
    Reduce { root: usize, in_place: bool },
    Gather { root: usize, in_place: bool },
    Scatter { root: usize, in_place: bool },
    AllToAll { in_place: bool },
    Barrier,
    Message { from: usize, to: usize },
}

impl Call {
    fn can_be_planned_by(self, algorithm: &str) -> bool {
        let is_for_all = matches!(
            self,
            Self::AllReduce { .. }
                | Self::AllGather { .. }
                | Self::ReduceScatter { .. }
                | Self::Broadcast { .. }
                | Self::Barrier
                | Self::Message { .. }
        );
        algorithm != "ring" || is_for_all
    }
}

impl Step {
    fn random(random: &mut Random, ranks: usize) -> Self {
        let in_place = random.below(2) == 0;
        let root = random.below(ranks);
        let call = match random.below(11) {
            0 | 1 => Call::AllReduce { in_place },
            2 => Call::AllGather { in_place },
            3 => Call::ReduceScatter { in_place },
            4 => Call::Broadcast { root },
            5 => Call::Barrier,
            6 => Call::Reduce { root, in_place },
            7 => Call::Gather { root, in_place },
            8 => Call::Scatter { root, in_place },
            9 => Call::AllToAll { in_place },
            _ => {
                let from = random.below(ranks);
                let to = (from + 1 + random.below(ranks - 1)) % ranks;
                Call::Message { from, to }
            }
        };
        let most = HALF / ranks;
        let count = match random.below(4) {
            0 => random.below(3),
            1 => random.below(100),
            2 => random.below(2000.min(most)),
            _ => random.below(most),
        };
        let room = HALF - count * ranks;
        Self {
            call,
            algorithm: random
                .pick(&ALGORITHMS)
                .filter(|name| call.can_be_planned_by(name)),
            op: random.pick(&ReduceOp::ALL),
            count,
            input: random.below(room + 1),
            output: HALF + random.below(room + 1),
        }
    }

    /// What it does to all arrays.
    fn refer<T: Sample>(&self, arrays: &mut [Vec<T>]) {
        let &Self {
            op,
            count,
            input,
            output,
            ..
        } = self;
        let ranks = arrays.len();
        let combine = |arrays: &[Vec<T>], at: usize, count: usize| -> Vec<T> {
            (at..at + count)
                .map(|i| {
                    arrays[1..]
                        .iter()
                        .fold(arrays[0][i], |sum, array| sum.combine(op, array[i]))
                })
                .collect()
        };
        match self.call {
            Call::AllReduce { in_place } => {
                let at = if in_place { output } else { input };
                let result = combine(arrays, at, count);
                for array in arrays {
                    array[output..output + count].copy_from_slice(&result);
                }
            }
            Call::AllGather { in_place } => {
                let parts: Vec<T> = arrays
                    .iter()
                    .enumerate()
                    .flat_map(|(rank, array)| {
                        let at = if in_place {
                            output + rank * count
                        } else {
                            input
                        };
                        array[at..at + count].to_vec()
                    })
                    .collect();
                for array in arrays {
                    array[output..output + count * ranks].copy_from_slice(&parts);
                }
            }
            Call::ReduceScatter { in_place } => {
                let from = if in_place { output } else { input };
                let result = combine(arrays, from, count * ranks);
                for (rank, array) in arrays.iter_mut().enumerate() {
                    let to = if in_place {
                        output + rank * count
                    } else {
                        output
                    };
                    array[to..to + count].copy_from_slice(&result[rank * count..][..count]);
                }
            }
            Call::Broadcast { root } => {
                let data = arrays[root][output..output + count].to_vec();
                for array in arrays {
                    array[output..output + count].copy_from_slice(&data);
                }
            }
            Call::Reduce { root, in_place } => {
                let at = if in_place { output } else { input };
                let result = combine(arrays, at, count);
                arrays[root][output..output + count].copy_from_slice(&result);
            }
            Call::Gather { root, in_place } => {
                for rank in 0..ranks {
                    let to = output + rank * count;
                    // In place the others bring what is where the root's output begins.
                    let from = match (in_place, rank == root) {
                        (false, _) => input,
                        (true, true) => to,
                        (true, false) => output,
                    };
                    let part = arrays[rank][from..from + count].to_vec();
                    arrays[root][to..to + count].copy_from_slice(&part);
                }
            }
            Call::Scatter { root, in_place } => {
                let from = if in_place { output } else { input };
                let whole = arrays[root][from..from + count * ranks].to_vec();
                for (rank, array) in arrays.iter_mut().enumerate() {
                    if !(in_place && rank == root) {
                        let part = &whole[rank * count..][..count];
                        array[output..output + count].copy_from_slice(part);
                    }
                }
            }
            Call::AllToAll { in_place } => {
                let from = if in_place { output } else { input };
                let before = arrays.to_vec();
                for (rank, array) in arrays.iter_mut().enumerate() {
                    for (peer, theirs) in before.iter().enumerate() {
                        let part = &theirs[from + rank * count..][..count];
                        array[output + peer * count..][..count].copy_from_slice(part);
                    }
                }
            }
            Call::Barrier => {}
            Call::Message { from, to } => {
                let data = arrays[from][input..input + count].to_vec();
                arrays[to][output..output + count].copy_from_slice(&data);
            }
        }
    }

    /// Does it, blocking.
    fn run<T: Sample>(&self, comm: &Communicator, array: &mut [T]) -> hcomm::Result<()> {
        let &Self {
            op,
            count,
            input,
            output,
            ..
        } = self;
        let rank = comm.rank().index();
        let all = count * comm.size() as usize;
        comm.force_algorithm(self.algorithm)?;
        let (inputs, outputs) = array.split_at_mut(HALF);
        let output = output - HALF;
        match self.call {
            Call::AllReduce { in_place: true } => {
                comm.all_reduce_in_place(&mut outputs[output..output + count], op)
            }
            Call::AllReduce { in_place: false } => comm.all_reduce(
                &inputs[input..input + count],
                &mut outputs[output..output + count],
                op,
            ),
            Call::AllGather { in_place: true } => {
                comm.all_gather_in_place(&mut outputs[output..output + all])
            }
            Call::AllGather { in_place: false } => comm.all_gather(
                &inputs[input..input + count],
                &mut outputs[output..output + all],
            ),
            Call::ReduceScatter { in_place: true } => {
                comm.reduce_scatter_in_place(&mut outputs[output..output + all], op)
            }
            Call::ReduceScatter { in_place: false } => comm.reduce_scatter(
                &inputs[input..input + all],
                &mut outputs[output..output + count],
                op,
            ),
            Call::Broadcast { root } => {
                comm.broadcast(&mut outputs[output..output + count], Rank::from_index(root))
            }
            Call::Reduce { root, in_place } => {
                let mine = &mut outputs[output..output + count];
                let root = Rank::from_index(root);
                if in_place {
                    comm.reduce_in_place(mine, op, root)
                } else {
                    comm.reduce(&inputs[input..input + count], mine, op, root)
                }
            }
            Call::Gather { root, in_place } => {
                let mine = if rank == root { all } else { count };
                let mine = &mut outputs[output..output + mine];
                let root = Rank::from_index(root);
                if in_place {
                    comm.gather_in_place(mine, root)
                } else {
                    comm.gather(&inputs[input..input + count], mine, root)
                }
            }
            Call::Scatter { root, in_place } => {
                let is_root = rank == root;
                let root = Rank::from_index(root);
                if in_place {
                    let mine = if is_root { all } else { count };
                    comm.scatter_in_place(&mut outputs[output..output + mine], root)
                } else {
                    let whole = &inputs[input..input + if is_root { all } else { 0 }];
                    comm.scatter(whole, &mut outputs[output..output + count], root)
                }
            }
            Call::AllToAll { in_place } => {
                let mine = &mut outputs[output..output + all];
                if in_place {
                    comm.all_to_all_in_place(mine)
                } else {
                    comm.all_to_all(&inputs[input..input + all], mine)
                }
            }
            Call::Barrier => comm.barrier(),
            Call::Message { from, to } if rank == from => {
                comm.send(&inputs[input..input + count], Rank::from_index(to))
            }
            Call::Message { from, to } if rank == to => {
                comm.recv(&mut outputs[output..output + count], Rank::from_index(from))
            }
            Call::Message { .. } => Ok(()),
        }
    }

    /// Puts it on a thread.
    fn enqueue<T: Sample>(
        &self,
        comm: &Communicator,
        thread: &Thread,
        array: &Slice,
    ) -> hcomm::Result<()> {
        let &Self {
            op,
            count,
            input,
            output,
            ..
        } = self;
        let (rank, ranks) = (comm.rank().index(), comm.size() as usize);
        let all = count * ranks;
        let dtype = T::DATA_TYPE;
        let part =
            |at: usize, count: usize| array.sub(at * size_of::<T>()..(at + count) * size_of::<T>());
        comm.force_algorithm(self.algorithm)?;
        let request = match self.call {
            Call::AllReduce { in_place } => {
                let output = part(output, count)?;
                let input = if in_place {
                    output.clone()
                } else {
                    part(input, count)?
                };
                comm.all_reduce_on(thread, &input, &output, dtype, op)
            }
            Call::AllGather { in_place } => {
                let input = if in_place {
                    output + rank * count
                } else {
                    input
                };
                comm.all_gather_on(thread, &part(input, count)?, &part(output, all)?, dtype)
            }
            Call::ReduceScatter { in_place } => {
                let (from, to) = if in_place {
                    (output, output + rank * count)
                } else {
                    (input, output)
                };
                comm.reduce_scatter_on(thread, &part(from, all)?, &part(to, count)?, dtype, op)
            }
            Call::Broadcast { root } => {
                comm.broadcast_on(thread, &part(output, count)?, Rank::from_index(root), dtype)
            }
            Call::Reduce { root, in_place } => {
                let output = part(output, count)?;
                let input = if in_place {
                    output.clone()
                } else {
                    part(input, count)?
                };
                let root = Rank::from_index(root);
                comm.reduce_on(thread, &input, &output, dtype, op, root)
            }
            Call::Gather { root, in_place } => {
                let from = match (in_place, rank == root) {
                    (false, _) => input,
                    (true, true) => output + rank * count,
                    (true, false) => output,
                };
                let (from, to) = (part(from, count)?, part(output, all)?);
                comm.gather_on(thread, &from, &to, dtype, Rank::from_index(root))
            }
            Call::Scatter { root, in_place } => {
                let (from, to) = match (in_place, rank == root) {
                    (false, _) => (input, output),
                    (true, true) => (output, output + rank * count),
                    (true, false) => (input, output),
                };
                let (from, to) = (part(from, all)?, part(to, count)?);
                comm.scatter_on(thread, &from, &to, dtype, Rank::from_index(root))
            }
            Call::AllToAll { in_place } => {
                let output = part(output, all)?;
                let input = if in_place {
                    output.clone()
                } else {
                    part(input, all)?
                };
                comm.all_to_all_on(thread, &input, &output, dtype)
            }
            Call::Barrier => comm.barrier_on(thread),
            Call::Message { from, to } if rank == from => {
                comm.send_on(thread, &part(input, count)?, Rank::from_index(to), dtype)
            }
            Call::Message { from, to } if rank == to => {
                comm.recv_on(thread, &part(output, count)?, Rank::from_index(from), dtype)
            }
            Call::Message { .. } => return Ok(()),
        };
        request.map(drop)
    }
}

fn fresh<T: Sample>(ranks: u32) -> Vec<Vec<T>> {
    (0..ranks)
        .map(|rank| samples(ReduceOp::Sum, rank, 0, LENGTH))
        .collect()
}

/// Random operations on one array a rank, checked after each. All ranks draw the same.
pub(crate) trait Course: Send {
    fn step(&mut self, comm: &Communicator, random: &mut Random);
}

struct Arrays<T> {
    /// What the array of each rank must hold.
    reference: Vec<Vec<T>>,
    mine: Vec<T>,
}

impl<T: Sample> Arrays<T> {
    fn new(comm: &Communicator) -> Self {
        let reference = fresh::<T>(comm.size());
        let mine = reference[comm.rank().index()].clone();
        Self { reference, mine }
    }
}

impl<T: Sample> Course for Arrays<T> {
    fn step(&mut self, comm: &Communicator, random: &mut Random) {
        let step = Step::random(random, comm.size() as usize);
        step.refer(&mut self.reference);
        step.run(comm, &mut self.mine)
            .unwrap_or_else(|error| panic!("{step:?}: {error}"));
        let expected = &self.reference[comm.rank().index()];
        assert_same(format!("{step:?}"), &self.mine, expected);
    }
}

/// Operations on arrays of a type that is drawn: whole numbers, whose combinations are exact.
pub(crate) fn course(comm: &Communicator, random: &mut Random) -> Box<dyn Course> {
    match random.below(8) {
        0 => Box::new(Arrays::<u8>::new(comm)),
        1 => Box::new(Arrays::<i8>::new(comm)),
        2 => Box::new(Arrays::<u16>::new(comm)),
        3 => Box::new(Arrays::<i16>::new(comm)),
        4 => Box::new(Arrays::<u32>::new(comm)),
        5 => Box::new(Arrays::<i32>::new(comm)),
        6 => Box::new(Arrays::<u64>::new(comm)),
        _ => Box::new(Arrays::<i64>::new(comm)),
    }
}

fn stretch<T: Sample>(comm: &Communicator, random: &mut Random, steps: usize) {
    let mut arrays = Arrays::<T>::new(comm);
    for _ in 0..steps {
        arrays.step(comm, random);
    }
}

/// 500 operations, in stretches of different types.
pub(crate) fn blocking(comm: &Communicator, seed: u64) {
    let mut random = Random::new(seed);
    for _ in 0..5 {
        stretch::<u8>(comm, &mut random, 25);
        stretch::<i32>(comm, &mut random, 25);
        stretch::<u64>(comm, &mut random, 25);
        stretch::<i16>(comm, &mut random, 25);
    }
}

/// All ranks on this OS thread; synchronised now and then.
fn queued<T: Sample>(
    comms: &[Communicator],
    threads: &[Thread],
    random: &mut Random,
    steps: usize,
    tag: &str,
) {
    let mut reference = fresh::<T>(comms[0].size());
    let arrays: Vec<Slice> = comms
        .iter()
        .map(|comm| comm.allocate(tag, LENGTH * size_of::<T>()).unwrap())
        .collect();
    for (array, data) in arrays.iter().zip(&reference) {
        array.copy_from(&bytes_of(data)).unwrap();
    }
    let mut since = Vec::new();
    for number in 0..steps {
        let step = Step::random(random, comms.len());
        step.refer(&mut reference);
        since.push(step);
        // The order in which the ranks come does not matter.
        let first = random.below(comms.len());
        for turn in 0..comms.len() {
            let rank = (first + turn) % comms.len();
            step.enqueue::<T>(&comms[rank], &threads[rank], &arrays[rank])
                .unwrap_or_else(|error| panic!("step {number} {step:?}: {error}"));
        }
        if random.below(5) == 0 || number + 1 == steps {
            for (rank, thread) in threads.iter().enumerate() {
                thread.synchronize(None).unwrap();
                let mut found = vec![0; arrays[rank].bytes()];
                arrays[rank].copy_to(&mut found).unwrap();
                let right = found == bytes_of(&reference[rank]);
                assert!(right, "rank {rank} is wrong after {since:?}");
            }
            since.clear();
        }
    }
    for comm in comms {
        comm.forget(tag).unwrap();
    }
}

fn bytes_of<T: Sample>(data: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(data));
    for element in data {
        element.append_to(&mut bytes);
    }
    bytes
}

#[test]
fn five_hundred_operations_on_three_threads() {
    team::run(3, |comm| {
        blocking(&comm, 1);
        comm.close().unwrap();
    });
}

#[test]
fn five_hundred_operations_in_three_processes() {
    job::all_succeed(&mut Job::new("mixture", 3).set("ITEST_SEED", 2).start());
}

#[test]
fn five_hundred_operations_of_three_ranks_on_one_os_thread() {
    let comms = Communicator::init_all_with(3, &hcomm::Options::default()).unwrap();
    let threads: Vec<Thread> = comms.iter().map(|comm| comm.thread(0).unwrap()).collect();
    let mut random = Random::new(3);
    for round in 0..5 {
        queued::<u8>(&comms, &threads, &mut random, 25, &format!("u8 {round}"));
        queued::<i32>(&comms, &threads, &mut random, 25, &format!("i32 {round}"));
        queued::<u64>(&comms, &threads, &mut random, 25, &format!("u64 {round}"));
        queued::<i16>(&comms, &threads, &mut random, 25, &format!("i16 {round}"));
    }
    for comm in comms {
        comm.close().unwrap();
    }
}
