//! A rank dies or stops at any moment: the others say which, and nothing is left.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::job::{self, Job, Process, Report, Traces};
use crate::programs::UP;
use crate::random::Random;

const RANKS: u32 = 4;

/// Number of random moments; `ITEST_KILLS` asks for more.
fn kills() -> usize {
    std::env::var("ITEST_KILLS").map_or(14, |text| text.parse().expect("a number of kills"))
}

fn seed() -> u64 {
    std::env::var("ITEST_SEED").map_or(11, |text| text.parse().expect("a seed"))
}

pub(crate) fn all_up(ranks: &[Process]) {
    for rank in ranks {
        rank.wait_for_text(UP);
    }
}

/// Every rank but one must end with an error that names that one alone.
#[track_caller]
pub(crate) fn all_name(ranks: &mut [Process], victim: usize, context: &str) -> Vec<Report> {
    let reports: Vec<Report> = ranks
        .iter_mut()
        .enumerate()
        .filter(|(rank, _)| *rank != victim)
        .map(|(_, rank)| rank.wait_for_error())
        .collect();
    for report in &reports {
        assert_eq!(report.culprits, [victim as u64], "{context}: {reports:#?}");
        report.must_say(&[&format!("rank {victim}")]);
    }
    reports
}

#[test]
fn killing_a_rank_at_any_moment_is_told_by_all_others() {
    kill_at_any_moment("loop", &[RANKS], seed(), kills());
}

/// Broadcasts by messages: a root that runs ahead, receivers that wait for it, rings that are full;
/// of two ranks also in the middle of long ones.
#[test]
fn killing_a_rank_in_the_middle_of_broadcasts_is_told_by_all_others() {
    kill_at_any_moment("broadcasts", &[RANKS, 2], seed() + 2, kills());
}

#[test]
#[ignore = "soak"]
fn soak_kills_at_any_moment() {
    kill_at_any_moment("loop", &[RANKS], 1000 * seed(), kills());
    kill_at_any_moment("broadcasts", &[RANKS, 2], 1000 * seed() + 2, kills());
    kill_while_it_starts(1000 * seed() + 1, kills());
}

fn kill_at_any_moment(program: &str, sizes: &[u32], seed: u64, kills: usize) {
    let mut random = Random::new(seed);
    for number in 0..kills {
        let mut traces = Traces::new();
        let size = sizes[number % sizes.len()];
        let mut ranks = Job::new(program, size).start();
        all_up(&ranks);
        traces.note(&ranks);
        let victim = random.below(size as usize);
        let moment = Duration::from_micros(random.below(40_000) as u64);
        thread::sleep(moment);
        let killed = Instant::now();
        ranks[victim].signal(Signal::KILL);
        let context = format!("{program}, kill {number}: rank {victim} of {size} after {moment:?}");
        let reports = all_name(&mut ranks, victim, &context);
        println!(
            "{context}: all others ended after {} ms",
            killed.elapsed().as_millis()
        );
        for report in &reports {
            assert_eq!(report.kind, "PeerLost", "{context}: {report:?}");
        }
        ranks[victim].wait();
        traces.must_be_gone();
    }
}

/// From its first instruction to the first collectives: the moments grow from run to run.
#[test]
fn killing_a_rank_while_it_starts_is_told_by_all_others() {
    kill_while_it_starts(seed() + 1, kills().saturating_sub(5).max(1));
}

fn kill_while_it_starts(seed: u64, kills: usize) {
    let mut random = Random::new(seed);
    // How long a start takes here, so that the moments cover it.
    let begun = Instant::now();
    let mut ranks = Job::new("join", RANKS).start();
    all_up(&ranks);
    let start = begun.elapsed();
    job::all_succeed(&mut ranks);
    for number in 0..kills {
        let mut ranks = Job::new("loop", RANKS)
            .set("HCOMM_CONNECT_TIMEOUT", 4)
            .start();
        let victim = random.below(RANKS as usize);
        let moment = start.mul_f64(number as f64 / kills as f64);
        thread::sleep(moment);
        ranks[victim].signal(Signal::KILL);
        let context = format!("kill {number}: rank {victim} after {moment:?} of {start:?}");
        let reports = all_name(&mut ranks, victim, &context);
        println!("{context}: {} in {}", reports[0].kind, reports[0].stage);
    }
}

/// A rank that has joined dies while the others still wait for one that is late.
#[test]
fn killing_a_rank_that_waits_in_bootstrap() {
    for victim in [0, 1] {
        let job = Job::new("loop", 3).set("HCOMM_CONNECT_TIMEOUT", 3);
        let mut ranks = vec![job.start_rank(0), job.start_rank(1)];
        // Connected to the root: the victim has joined, or is about to.
        while ranks[1].sockets().len() < 2 {
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(200));
        ranks[victim].signal(Signal::KILL);
        ranks.push(job.start_rank(2));
        all_name(
            &mut ranks,
            victim,
            &format!("rank {victim} dies in bootstrap"),
        );
    }
}

/// Ends by itself, without leaving.
#[test]
fn a_rank_that_exits_without_leaving_is_named() {
    let mut ranks = Job::new("leave", RANKS).start();
    for report in all_name(&mut ranks, 0, "rank 0 exits") {
        assert_eq!(report.kind, "PeerLost", "{report:?}");
    }
    ranks[0].wait_for_code(9);
}

/// Two at once: each survivor names one or both, and nobody else.
#[test]
fn two_deaths_at_once() {
    let mut ranks = Job::new("loop", RANKS).start();
    all_up(&ranks);
    ranks[1].signal(Signal::KILL);
    ranks[2].signal(Signal::KILL);
    for rank in [0, 3] {
        let report = ranks[rank].wait_for_error();
        let guilty =
            !report.culprits.is_empty() && report.culprits.iter().all(|rank| [1, 2].contains(rank));
        assert!(guilty, "{report:?}");
    }
}

fn stop_one_of(size: u32, victim: usize) {
    let mut ranks = Job::new("loop", size).set("HCOMM_EXEC_TIMEOUT", 2).start();
    all_up(&ranks);
    ranks[victim].signal(Signal::STOP);
    let reports = all_name(
        &mut ranks,
        victim,
        &format!("rank {victim} of {size} is stopped"),
    );
    let timed_out = reports.iter().any(|report| report.kind == "Timeout");
    assert!(timed_out, "nobody noticed by itself: {reports:#?}");
    // It still has to be killed: a stopped process ends no other way.
    ranks[victim].signal(Signal::KILL);
    ranks[victim].wait();
}

#[test]
fn a_stopped_rank_is_a_timeout_that_names_it() {
    stop_one_of(2, 1);
    stop_one_of(2, 0);
}

#[test]
fn a_stopped_rank_among_four_is_named_by_all() {
    stop_one_of(4, 2);
    stop_one_of(4, 0);
}
