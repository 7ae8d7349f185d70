//! Three communicators of the same ranks: used in turn by one OS thread of each rank, and at once,
//! each by an OS thread of its own. What is done on one must not show on another.

use std::thread;

use hcomm::{Communicator, Options, Rank, RootInfo, RootListener, Settings};
use hcomm_ctrl::Outside;

use crate::job::{self, Job};
use crate::mixture::{self, Course};
use crate::random::Random;
use crate::tally::Tally;
use crate::team;

const RANKS: u32 = 3;
const COMMUNICATORS: usize = 3;

/// Operations of a job of the soak.
const STEPS_OF_A_JOB: usize = 2_000;

/// Operations on arrays of one type before another one is taken.
const STEPS_OF_A_TYPE: usize = 40;

/// Another communicator of the same ranks, which are told of its root over the first one.
fn another(comm: &Communicator) -> Communicator {
    let options = Options::new(Settings::default());
    let mut text = [0u8; 512];
    if comm.rank() == Rank(0) {
        let address = "127.0.0.1:0".parse().expect("an address");
        let listener =
            RootListener::bind(&Outside::system(), options.settings(), address, &[]).expect("bind");
        let info = listener.info().to_string();
        text[..info.len()].copy_from_slice(info.as_bytes());
        comm.broadcast(&mut text, Rank(0)).expect("the root info");
        return Communicator::from_root_listener(listener, comm.size(), &options).expect("a root");
    }
    comm.broadcast(&mut text, Rank(0)).expect("the root info");
    let text = std::str::from_utf8(&text).expect("a text");
    let info: RootInfo = text.trim_end_matches('\0').parse().expect("a root info");
    Communicator::from_root(&info, comm.rank(), comm.size(), &options).expect("a rank")
}

/// One OS thread goes from one communicator to another, a few operations on each.
fn in_turn(comms: &[Communicator], seed: u64, steps: usize) {
    let mut random = Random::new(seed);
    let mut courses: Vec<Box<dyn Course>> = Vec::new();
    for step in 0..steps {
        if step % STEPS_OF_A_TYPE == 0 {
            let fresh = comms.iter().map(|comm| mixture::course(comm, &mut random));
            courses = fresh.collect();
        }
        let which = random.below(comms.len());
        courses[which].step(&comms[which], &mut random);
    }
}

/// Each communicator by an OS thread of its own.
fn at_once(comms: Vec<Communicator>, seed: u64, steps: usize) -> Vec<Communicator> {
    let threads: Vec<_> = (seed..)
        .zip(comms)
        .map(|(seed, comm)| {
            thread::spawn(move || {
                let mut random = Random::new(seed);
                for step in (0..steps).step_by(STEPS_OF_A_TYPE) {
                    let mut course = mixture::course(&comm, &mut random);
                    for _ in step..steps.min(step + STEPS_OF_A_TYPE) {
                        course.step(&comm, &mut random);
                    }
                }
                comm
            })
        })
        .collect();
    let joined = threads.into_iter().map(|thread| thread.join());
    joined.map(|comm| comm.expect("no panic there")).collect()
}

/// Both, one after the other: half of the operations in turn, half at once.
fn mixed(mut comms: Vec<Communicator>, seed: u64, steps: usize) {
    in_turn(&comms, seed, steps / 2);
    comms = at_once(comms, seed + 1, steps / 2 / COMMUNICATORS);
    // In another order: whoever still held something of one that is closed would fail.
    in_turn(&comms, seed + 10, steps / 10);
    comms.remove(1).close().expect("close");
    in_turn(&comms, seed + 11, steps / 10);
    for comm in comms {
        comm.close().expect("close");
    }
}

/// What each rank runs.
pub(crate) fn program(first: Communicator) {
    let number = |name: &str| -> usize { std::env::var(name).unwrap().parse().unwrap() };
    let (seed, steps) = (number("ITEST_SEED"), number("ITEST_OPERATIONS"));
    let mut comms = vec![first];
    while comms.len() < COMMUNICATORS {
        comms.push(another(&comms[0]));
    }
    mixed(comms, seed as u64, steps);
}

fn in_processes(seed: u64, steps: usize) {
    let job = Job::new("several", RANKS)
        .set("ITEST_SEED", seed)
        .set("ITEST_OPERATIONS", steps);
    job::all_succeed(&mut job.start());
}

/// Ranks as OS threads of this process.
fn in_threads(seed: u64, steps: usize) {
    let mut ranks: Vec<Vec<Communicator>> = (0..RANKS).map(|_| Vec::new()).collect();
    for _ in 0..COMMUNICATORS {
        let comms = Communicator::init_all_with(RANKS, &Options::default()).unwrap();
        for (rank, comm) in ranks.iter_mut().zip(comms) {
            rank.push(comm);
        }
    }
    team::on_threads(ranks, move |comms| mixed(comms, seed, steps));
}

fn seed() -> u64 {
    std::env::var("ITEST_SEED").map_or(9, |text| text.parse().expect("a seed"))
}

#[test]
fn three_communicators_between_processes() {
    in_processes(seed(), 600);
}

#[test]
fn three_communicators_between_threads() {
    in_threads(seed() + 100, 600);
}

#[test]
#[ignore = "soak"]
fn soak_three_communicators() {
    let wanted: usize =
        std::env::var("ITEST_OPERATIONS").map_or(40_000, |text| text.parse().expect("a number"));
    let mut tally = Tally::default();
    for number in 0.. {
        let left = wanted.saturating_sub(tally.of("operations") as usize);
        if left == 0 {
            break;
        }
        let (seed, steps) = (1000 * seed() + 100 * number, left.min(STEPS_OF_A_JOB));
        println!("seed {seed}: {} of {wanted}", tally.of("operations"));
        if number % 2 == 0 {
            in_processes(seed, steps);
            tally.add("jobs-of-processes", 1);
        } else {
            in_threads(seed, steps);
            tally.add("jobs-of-threads", 1);
        }
        tally.add("operations", steps as u64);
    }
    tally.conclude();
}
