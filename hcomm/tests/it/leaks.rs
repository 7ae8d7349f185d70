//! Descriptors, mappings and threads are back to their count after everything that can be opened
//! has been closed. Each test counts in a process of its own, where nobody else opens anything.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use hcomm::{Communicator, DataType, ErrorKind, Options, Rank, ReduceOp, RootListener, Settings};
use hcomm_ctrl::Outside;

use crate::collectives::all_reduce;
use crate::job::{Process, program};
use crate::random::Random;
use crate::team;

/// What a process has open.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// Descriptors, by what they lead to.
    pub(crate) fds: BTreeMap<String, usize>,
    /// Mappings, by file; those without a file count as one kind.
    maps: BTreeMap<String, usize>,
    pub(crate) threads: usize,
}

impl Holdings {
    pub(crate) fn now() -> Self {
        let mut fds = BTreeMap::new();
        for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
            // The descriptor of this very listing leads nowhere any more or to itself.
            if let Ok(target) = fs::read_link(entry.path()) {
                let kind = target.to_string_lossy();
                let kind = kind.split_once(":[").map_or(&*kind, |(kind, _)| kind);
                *fds.entry(kind.to_owned()).or_insert(0) += 1;
            }
        }
        let mut maps = BTreeMap::new();
        for line in fs::read_to_string("/proc/self/maps").unwrap().lines() {
            let name = line.splitn(6, ' ').nth(5).unwrap_or_default().trim();
            *maps.entry(name.to_owned()).or_insert(0) += 1;
        }
        Self {
            fds,
            maps,
            threads: fs::read_dir("/proc/self/task").unwrap().count(),
        }
    }
}

/// Mappings without a file that OS threads may leave: the C library keeps stacks and arenas for
/// threads to come, as many as there ever were at once.
const KEPT_FOR_THREADS: usize = 24;

/// Does it a few times, then many times; nothing may have grown meanwhile. `kept` mappings
/// without a file may come on top.
fn nothing_grows(what: &str, times: usize, kept: usize, mut once: impl FnMut(usize)) {
    // The allocator and the loader keep what they got the first times.
    const WARM_UP: usize = 5;
    (0..WARM_UP).for_each(&mut once);
    let before = Holdings::now();
    (WARM_UP..WARM_UP + times).for_each(&mut once);
    let mut after = Holdings::now();
    if let (Some(now), Some(then)) = (after.maps.get_mut(""), before.maps.get("")) {
        *now -= kept.min(now.saturating_sub(*then));
    }
    assert_eq!(before, after, "{what} x {times}");
    println!(
        "{what} x {times}: {} fds, {} threads",
        after.fds.values().sum::<usize>(),
        after.threads
    );
}

fn times(usual: usize) -> usize {
    std::env::var("ITEST_ROUNDS").map_or(usual, |text| text.parse().expect("a number of rounds"))
}

/// The program `leaks`.
pub(crate) fn all_kinds() {
    let kind = std::env::var("ITEST_KIND").expect("ITEST_KIND");
    let options = team::small_buffer(256 << 10);
    match kind.as_str() {
        "queues" => nothing_grows("init, all_reduce, close", times(1000), 0, |_| {
            let comms = Communicator::init_all_with(2, &options).unwrap();
            let threads: Vec<_> = comms.iter().map(|comm| comm.thread(0).unwrap()).collect();
            for (comm, thread) in comms.iter().zip(&threads) {
                let data = comm.allocate("data", 4000).unwrap();
                comm.all_reduce_on(thread, &data, &data, DataType::F32, ReduceOp::Sum)
                    .unwrap();
            }
            for thread in &threads {
                thread.synchronize(None).unwrap();
            }
            for comm in comms {
                comm.close().unwrap();
            }
        }),
        "threads" => nothing_grows("the same on threads", times(60), KEPT_FOR_THREADS, |_| {
            team::run(3, |comm| {
                all_reduce::<f32>(&comm, ReduceOp::Sum, 50_000, false);
                comm.close().unwrap();
            });
        }),
        "drops" => nothing_grows("drops in any order", times(100), 0, |number| {
            let mut random = Random::new(number as u64);
            let mut things: Vec<Box<dyn std::any::Any>> = Vec::new();
            for comm in Communicator::init_all_with(3, &options).unwrap() {
                let thread = comm.thread(1).unwrap();
                let slice = comm.allocate("data", 40_000).unwrap();
                comm.all_reduce_on(&thread, &slice, &slice, DataType::I32, ReduceOp::Max)
                    .unwrap();
                for peer in (0..3).map(Rank).filter(|peer| *peer != comm.rank()) {
                    things.push(Box::new(comm.link(peer).unwrap()));
                }
                things.push(Box::new(comm.aborter()));
                things.push(Box::new(thread));
                things.push(Box::new(slice));
                things.push(Box::new(comm));
            }
            while !things.is_empty() {
                drop(things.swap_remove(random.below(things.len())));
            }
        }),
        "windows" => nothing_grows(
            "windows and memory of the user",
            times(60),
            KEPT_FOR_THREADS,
            |_| {
                team::run_with(2, &options, |comm| {
                    for _ in 0..3 {
                        let window = comm.window("window", 50_000).unwrap();
                        let part = window.local().sub(0..10).unwrap();
                        let mut memory = comm.register("user", vec![0u8; 5_000]).unwrap();
                        let link = comm.open_channel(Rank(1 - comm.rank().0), 1).unwrap();
                        drop((window, link));
                        memory.deregister().unwrap();
                        drop(comm.register("user", vec![0u8; 5_000]).unwrap());
                        drop(part);
                    }
                });
            },
        ),
        "aborts" => nothing_grows("aborted ones", times(60), KEPT_FOR_THREADS, |_| {
            let comms = Communicator::init_all_with(2, &options).unwrap();
            comms[0].aborter().abort("enough");
            team::on_threads(comms, |comm| {
                let error = comm.barrier().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Aborted);
            });
        }),
        "failures" => {
            let quick = || {
                Options::new(Settings::default().with_connect_timeout(Duration::from_millis(30)))
            };
            let listener = || {
                let address = "127.0.0.1:0".parse().unwrap();
                RootListener::bind(&Outside::system(), &Settings::default(), address, &[]).unwrap()
            };
            nothing_grows("a root without ranks", times(30), 0, |_| {
                let error = Communicator::from_root_listener(listener(), 2, &quick()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
                assert_eq!(error.culprits(), [Rank(1)], "{error}");
            });
            nothing_grows("a rank without a root", times(30), 0, |_| {
                let info = listener().info().clone();
                let error = Communicator::from_root(&info, Rank(1), 2, &quick()).unwrap_err();
                assert_eq!(error.culprits(), [Rank(0)], "{error}");
            });
            nothing_grows("a buffer that is too small", times(30), 0, |_| {
                let error = Communicator::init_all_with(2, &team::small_buffer(100)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            });
        }
        kind => panic!("no kind `{kind}`"),
    }
}

fn in_a_process(kind: &str, rounds: Option<usize>) {
    let mut command = program("leaks");
    command.env("ITEST_KIND", kind);
    if let Some(rounds) = rounds {
        command.env("ITEST_ROUNDS", rounds.to_string());
    }
    let mut process = Process::start(format!("leaks: {kind}"), command);
    process.wait_for_code(0);
    print!("{}", process.stdout());
}

#[test]
fn a_thousand_communicators_leave_nothing() {
    in_a_process("queues", None);
}

#[test]
fn communicators_on_threads_leave_nothing() {
    in_a_process("threads", None);
}

#[test]
fn dropping_in_any_order_leaves_nothing() {
    in_a_process("drops", None);
}

#[test]
fn windows_and_memory_of_the_user_leave_nothing() {
    in_a_process("windows", None);
}

#[test]
fn aborted_communicators_leave_nothing() {
    in_a_process("aborts", None);
}

#[test]
fn failed_starts_leave_nothing() {
    in_a_process("failures", None);
}

#[test]
#[ignore = "soak"]
fn soak_many_more_of_each() {
    for (kind, rounds) in [
        ("queues", 8_000),
        ("threads", 300),
        ("drops", 2_000),
        ("aborts", 2_000),
    ] {
        in_a_process(kind, Some(rounds));
    }
}
