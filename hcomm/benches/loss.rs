//! How long the others take to learn that a rank was killed: `cargo bench -p hcomm --bench loss`.
//!
//! Four processes reduce in a loop; one of them, another each time, is killed; each survivor says
//! when its call came back with the error. Prints the time from the kill to each report.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hcomm::{Communicator, ErrorKind, Rank, ReduceOp};

const RANKS: u32 = 4;
const KILLS: u32 = 20;
/// Elements of each reduction: one that is over in microseconds, one that takes milliseconds.
const COUNTS: [usize; 2] = [16, 1 << 20];

fn main() -> ExitCode {
    if std::env::var_os("RANK").is_some() {
        return rank();
    }
    println!(
        "{:>10} {:>6} {:>10} {:>10} {:>10}",
        "elements", "kills", "min ms", "median ms", "max ms"
    );
    for count in COUNTS {
        let mut times: Vec<f64> = (0..KILLS).flat_map(|kill| one_kill(count, kill)).collect();
        times.sort_by(f64::total_cmp);
        let millis = |at: usize| times[at] * 1e3;
        println!(
            "{count:>10} {KILLS:>6} {:>10.1} {:>10.1} {:>10.1}",
            millis(0),
            millis(times.len() / 2),
            millis(times.len() - 1)
        );
    }
    ExitCode::SUCCESS
}

/// Kills one of four ranks; returns the seconds until each of the others reported it.
fn one_kill(count: usize, kill: u32) -> Vec<f64> {
    let port = free_port();
    let victim = kill % RANKS;
    let mut ranks: Vec<Child> = (0..RANKS).map(|rank| start(rank, port, count)).collect();
    let mut outputs: Vec<_> = ranks
        .iter_mut()
        .map(|rank| BufReader::new(rank.stdout.take().expect("stdout is a pipe")).lines())
        .collect();
    for output in &mut outputs {
        let line = output
            .next()
            .expect("a rank says when it runs")
            .expect("text");
        assert_eq!(line, "running");
    }
    // Anywhere in the operation.
    std::thread::sleep(Duration::from_micros(2000 + u64::from(kill) * 337));
    let killed = now();
    ranks[victim as usize]
        .kill()
        .expect("the rank can be killed");
    let mut times = Vec::new();
    for (rank, output) in (0..).zip(&mut outputs) {
        if rank == victim {
            continue;
        }
        let line = output.next().expect("a survivor reports").expect("text");
        let (culprit, at) = line.split_once(' ').expect("rank and time");
        assert_eq!(culprit.parse(), Ok(victim), "rank {rank} blames another");
        times.push(at.parse::<f64>().expect("seconds") - killed);
    }
    for mut rank in ranks {
        rank.wait().expect("the rank ends");
    }
    times
}

fn start(rank: u32, port: u16, count: usize) -> Child {
    Command::new(std::env::current_exe().expect("this program has a file"))
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", RANKS.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .env("BENCH_COUNT", count.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a rank can be started")
}

fn rank() -> ExitCode {
    let count = std::env::var("BENCH_COUNT")
        .ok()
        .and_then(|count| count.parse().ok());
    let count: usize = count.expect("the parent says how many elements");
    let comm = Communicator::from_env().expect("the ranks find together");
    let mut buffer = vec![1i32; count];
    comm.barrier().expect("all have come");
    println!("running");
    loop {
        if let Err(error) = comm.all_reduce_in_place(&mut buffer, ReduceOp::Max) {
            let at = now();
            assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
            let culprit = error.culprits().first().copied().unwrap_or(Rank(u32::MAX));
            println!("{culprit} {at:.6}");
            return ExitCode::SUCCESS;
        }
    }
}

/// Seconds of the clock that all processes of the host share.
fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of loopback");
    listener.local_addr().expect("it has an address").port()
}
