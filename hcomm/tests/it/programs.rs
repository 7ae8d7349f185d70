//! What ranks in processes of their own run: this test program, started again with the name of one
//! of these in `ITEST_PROGRAM`.

use std::process::exit;

use hcomm::plan::Operation;
use hcomm::{Communicator, DataType, Error, Rank, ReduceOp, Result};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use serde_json::json;

use crate::sample::{Sample as _, assert_same, samples};
use crate::{
    abort, batch, collectives, hosts, large, leaks, messages, mixture, mpirun, primitives, rounds,
    several, steps, subset, transfers,
};

/// What stands before an error on stdout.
pub(crate) const ERROR: &str = "ERROR ";

/// What a rank that is up prints.
pub(crate) const UP: &str = "UP";

/// Variable with the ranks whose memory no other process may look into, as in many containers:
/// links have to move user memory through a ring.
pub(crate) const CLOSED_MEMORY: &str = "ITEST_CLOSED_MEMORY";

/// Exit code of a program that has printed an error.
pub(crate) const FAILED: i32 = 3;

#[test]
#[ignore = "no test: what tests start as a rank"]
fn rank_program() {
    let Ok(name) = std::env::var("ITEST_PROGRAM") else {
        return;
    };
    // libtest leaves its line unfinished.
    println!();
    close_memory();
    match name.as_str() {
        "leaks" => leaks::all_kinds(),
        "steps" => steps::program(),
        name => rank(name),
    }
    exit(0);
}

/// Does what [`CLOSED_MEMORY`] says.
fn close_memory() {
    let closed = std::env::var(CLOSED_MEMORY).unwrap_or_default();
    if closed.is_empty() {
        return;
    }
    // Root may look into everything as long as it has this; OS threads made from here on inherit.
    let mut sets = capabilities(None).expect("what this thread may do");
    sets.effective.remove(CapabilitySet::SYS_PTRACE);
    sets.permitted.remove(CapabilitySet::SYS_PTRACE);
    sets.inheritable.remove(CapabilitySet::SYS_PTRACE);
    set_capabilities(None, sets).expect("less than before");
    let rank = std::env::var("RANK").expect("RANK");
    if closed.split(',').any(|one| one == rank) {
        set_dumpable_behavior(DumpableBehavior::NotDumpable).expect("a closed process");
    }
}

fn rank(name: &str) {
    let comm = match name {
        "odd buffer" => mpirun::with_an_odd_buffer_at_rank_2(),
        _ => Communicator::from_env(),
    };
    let comm = comm.unwrap_or_else(|error| fail("init", &error));
    match name {
        "join" => {
            collectives::all_reduce::<i32>(&comm, ReduceOp::Sum, 1000, false);
            println!("{UP}");
        }
        "collectives" => {
            collectives::every_type_and_op(&comm);
            collectives::every_size::<u32>(&comm);
            collectives::every_algorithm(&comm);
        }
        "subset" => subset::groups(&comm),
        "batch" => batch::all_to_all_at_once(&comm, 100),
        "sizes" => {
            collectives::every_size::<f32>(&comm);
            collectives::every_algorithm(&comm);
        }
        "gigabyte" => collectives::a_gigabyte(&comm),
        "barrier" => collectives::barriers_over_a_file(&comm),
        "messages" => {
            messages::ring_of_sends(&comm);
            messages::many_each_way(&comm);
            messages::large_ones(&comm);
            messages::into_registered_memory(&comm);
            messages::between_collectives(&comm);
        }
        "mixture" => {
            let seed = std::env::var("ITEST_SEED").expect("ITEST_SEED");
            mixture::blocking(&comm, seed.parse().expect("a number"));
        }
        "primitives" => {
            primitives::every_kind_with_notify(&comm);
            primitives::a_write_is_one_message_without_copies(&comm);
            primitives::windows(&comm);
            primitives::windows_that_differ(&comm);
            primitives::memory_of_the_user(&comm);
        }
        "hosts" => hosts::program(&comm),
        "abort" => {
            let error = abort::blocked_until_rank_0_is_told_to_abort(&comm);
            fail("abort", &error);
        }
        "transfers" => transfers::program(&comm),
        "large" => large::program(&comm),
        "rounds" => rounds::program(&comm),
        "several" => return several::program(comm),
        "loop" => without_end(&comm),
        "broadcasts" => broadcasts_without_end(&comm),
        "leave" => {
            collectives::all_reduce::<i32>(&comm, ReduceOp::Sum, 1000, false);
            println!("{UP}");
            if comm.rank() == Rank(0) {
                exit(9);
            }
            without_end(&comm);
        }
        _ => panic!("no program `{name}`"),
    }
    comm.close().unwrap_or_else(|error| fail("close", &error));
}

/// All kinds of operations, small and large, until one fails.
fn without_end(comm: &Communicator) -> ! {
    let mut up = false;
    loop {
        for round in 0..10 {
            if let Err((stage, error)) = one_round(comm, round) {
                fail(stage, &error);
            }
        }
        if !up {
            up = true;
            println!("{UP}");
        }
    }
}

/// Broadcasts that go by messages, until one fails; the root stays for a while, so that it is ahead.
fn broadcasts_without_end(comm: &Communicator) -> ! {
    // To one receiver also what is longer than its ring.
    const COUNTS: [usize; 8] = [1, 40, 700, 2_000, 9_000, 15_000, 90_000, 300_000];
    let counts = &COUNTS[..if comm.size() == 2 { 8 } else { 6 }];
    // Where news takes a millisecond, whoever can do without it goes by messages.
    let mut machine = comm.costs().0;
    machine.signals.alpha_ns = 1_000_000;
    machine.signals.packet_ns = 1_000_000;
    comm.use_costs(&machine);
    let shape = |root, count| {
        let (dtype, redop) = (DataType::I32, ReduceOp::Sum);
        comm.shape(Operation::Broadcast { root }, count, dtype, redop, true)
    };
    for round in 0usize.. {
        let root = Rank((round / 40) as u32 % comm.size());
        let count = counts[(round + round / 7) % counts.len()];
        let way = comm.algorithm(&shape(root, count));
        assert_eq!(way.expect("a way"), "stream", "{count}");
        let mut data = samples::<i32>(ReduceOp::Sum, comm.rank().0, round, count);
        if let Err(error) = comm.broadcast(&mut data, root) {
            fail("broadcast", &error);
        }
        let expected = samples::<i32>(ReduceOp::Sum, root.0, round, count);
        assert_same(format!("round {round} of {count}"), &data, &expected);
        if round == 100 {
            println!("{UP}");
        }
    }
    unreachable!("rounds have no end")
}

fn one_round(comm: &Communicator, round: usize) -> Result<(), (&'static str, Error)> {
    let (rank, size) = (comm.rank().0, comm.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let op = ReduceOp::Sum;
    let small = samples::<i32>(op, rank, round, 100 + round);
    let large = samples::<i32>(op, rank, round, 20_000);
    let mut result = large.clone();
    let mut all = vec![i32::sample(op, rank, 0); small.len() * size as usize];

    (comm.all_reduce(&small, &mut result[..small.len()], op)).map_err(|e| ("all_reduce", e))?;
    (comm.all_reduce(&large, &mut result, op)).map_err(|e| ("large all_reduce", e))?;
    comm.barrier().map_err(|e| ("barrier", e))?;
    comm.all_gather(&small, &mut all)
        .map_err(|e| ("all_gather", e))?;
    (comm.reduce_scatter_in_place(&mut all, op)).map_err(|e| ("reduce_scatter", e))?;
    (comm.broadcast(&mut result, Rank(round as u32 % size))).map_err(|e| ("broadcast", e))?;
    comm.send(&small, Rank(next)).map_err(|e| ("send", e))?;
    (comm.recv(&mut result[..small.len()], Rank(before))).map_err(|e| ("recv", e))?;
    Ok(())
}

/// Prints the error for the test and ends.
pub(crate) fn fail(stage: &str, error: &Error) -> ! {
    let culprits: Vec<u32> = error.culprits().iter().map(|rank| rank.0).collect();
    let report = json!({
        "stage": stage,
        "kind": format!("{:?}", error.kind()),
        "culprits": culprits,
        "text": error.to_string(),
    });
    println!("{ERROR}{report}");
    exit(FAILED);
}
