//! Start-up goes wrong, and strangers knock: every rank ends with an error that says what, or
//! nothing happens at all.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::job::{self, Job, Process, Report};
use crate::random::Random;

/// All must end with an error of start-up; theirs.
#[track_caller]
fn all_fail(ranks: &mut [Process]) -> Vec<Report> {
    let reports: Vec<Report> = ranks.iter_mut().map(Process::wait_for_error).collect();
    for report in &reports {
        assert_eq!(report.stage, "init", "{report:?}");
    }
    reports
}

#[test]
fn a_wrong_size_on_one_rank_fails_all_with_both_sizes() {
    let job = Job::new("join", 4);
    let mut ranks: Vec<Process> = [0, 1, 3].map(|rank| job.start_rank(rank)).into();
    ranks.push(job.start_odd(2, "WORLD_SIZE", "5"));
    for report in all_fail(&mut ranks) {
        assert_eq!(report.kind, "Mismatch", "{report:?}");
        assert_eq!(report.culprits, [2], "{report:?}");
        report.must_say(&["rank 2", "5", "rank 0", "4", "WORLD_SIZE"]);
    }
}

/// The root is the odd one: who is right cannot be known, but all hear both numbers.
#[test]
fn a_wrong_size_on_rank_0_fails_all_with_both_sizes() {
    let job = Job::new("join", 3);
    let mut ranks: Vec<Process> = [1, 2].map(|rank| job.start_rank(rank)).into();
    ranks.push(job.start_odd(0, "WORLD_SIZE", "4"));
    for report in all_fail(&mut ranks) {
        assert_eq!(report.kind, "Mismatch", "{report:?}");
        report.must_say(&["3", "rank 0", "4", "WORLD_SIZE"]);
    }
}

#[test]
fn two_ranks_with_one_number_fail_all_and_both_are_named() {
    let job = Job::new("join", 3);
    let mut ranks: Vec<Process> = [0, 1, 1].map(|rank| job.start_rank(rank)).into();
    let twins = [&ranks[1], &ranks[2]].map(|rank| format!("pid {}", rank.pid()));
    for report in all_fail(&mut ranks) {
        assert_eq!(report.kind, "Mismatch", "{report:?}");
        assert_eq!(report.culprits, [1], "{report:?}");
        report.must_say(&["rank 1", &twins[0], &twins[1], "RANK"]);
    }
}

#[test]
fn two_ranks_0_fail_all_and_both_are_named() {
    let job = Job::new("join", 3).set("HCOMM_CONNECT_TIMEOUT", 20);
    let mut ranks: Vec<Process> = [0, 0, 1].map(|rank| job.start_rank(rank)).into();
    let twins = [&ranks[0], &ranks[1]].map(|rank| format!("pid {}", rank.pid()));
    for report in all_fail(&mut ranks) {
        assert_eq!(report.kind, "Mismatch", "{report:?}");
        assert_eq!(report.culprits, [0], "{report:?}");
        report.must_say(&["rank 0", &twins[0], &twins[1], "RANK"]);
    }
}

/// Ranks connect to each other, whatever the variables for web clients say.
#[test]
fn proxy_variables_are_ignored() {
    let nowhere = "http://127.0.0.1:9";
    let names = [
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "ALL_PROXY",
    ];
    let job = names
        .iter()
        .fold(Job::new("join", 2), |job, name| job.set(name, nowhere));
    job::all_succeed(&mut job.start());
}

#[test]
fn a_missing_rank_is_named_by_all_at_the_deadline() {
    let job = Job::new("join", 4).set("HCOMM_CONNECT_TIMEOUT", 2);
    let mut ranks: Vec<Process> = [0, 1, 3].map(|rank| job.start_rank(rank)).into();
    for report in all_fail(&mut ranks) {
        assert_eq!(report.kind, "Timeout", "{report:?}");
        assert_eq!(report.culprits, [2], "{report:?}");
        report.must_say(&["rank 2", "HCOMM_CONNECT_TIMEOUT"]);
    }
}

#[test]
fn a_missing_root_is_named_by_all_at_the_deadline() {
    let job = Job::new("join", 3).set("HCOMM_CONNECT_TIMEOUT", 2);
    let mut ranks: Vec<Process> = [1, 2].map(|rank| job.start_rank(rank)).into();
    let address = job.address().to_string();
    for report in all_fail(&mut ranks) {
        assert_eq!(report.kind, "Timeout", "{report:?}");
        assert_eq!(report.culprits, [0], "{report:?}");
        report.must_say(&["rank 0", &address]);
    }
}

#[test]
fn a_wrong_key_is_refused_and_quoted_by_the_others() {
    let job = Job::new("join", 3).set("HCOMM_CONNECT_TIMEOUT", 3);
    let mut ranks: Vec<Process> = [0, 2].map(|rank| job.start_rank(rank)).into();
    let mut odd = job.start_odd(1, "HCOMM_JOB_KEY", "another key");
    let report = odd.wait_for_error();
    assert_eq!(report.kind, "Refused", "{report:?}");
    assert_eq!(report.culprits, [1], "{report:?}");
    report.must_say(&[
        "rank 1",
        "job key",
        "HCOMM_JOB_KEY",
        &job.address().to_string(),
    ]);
    assert!(
        !report.text.contains("another key"),
        "the key is a secret: {report:?}"
    );
    for report in all_fail(&mut ranks) {
        assert_eq!(report.kind, "Timeout", "{report:?}");
        assert_eq!(report.culprits, [1], "{report:?}");
        report.must_say(&["rank 1", "job key differs", "127.0.0.1"]);
    }
}

#[test]
fn another_setting_on_one_rank_fails_all_with_both_values() {
    let job = Job::new("join", 3);
    let mut ranks: Vec<Process> = [0, 2].map(|rank| job.start_rank(rank)).into();
    ranks.push(job.start_odd(1, "HCOMM_BUFFER_BYTES", "2M"));
    for report in all_fail(&mut ranks) {
        assert_eq!(report.kind, "Mismatch", "{report:?}");
        assert_eq!(report.culprits, [1], "{report:?}");
        report.must_say(&["HCOMM_BUFFER_BYTES", "2097152", "16777216", "rank 1"]);
    }
}

/// A rank that cannot even begin says why; the others miss it.
#[test]
fn a_bad_variable_on_one_rank_is_named_there_and_the_rank_missed_elsewhere() {
    let started = [
        ("HCOMM_NONSENSE", "1"),
        ("HCOMM_EXEC_TIMEOUT", "soon"),
        ("HCOMM_BUFFER_BYTES", "64Q"),
        ("HCOMM_TRANSPORTS", "carrier_pigeon"),
        ("WORLD_SIZE", "three"),
        ("RANK", "7"),
    ]
    .map(|(name, value)| {
        let job = Job::new("join", 2).set("HCOMM_CONNECT_TIMEOUT", 2);
        let (odd, root) = (job.start_odd(1, name, value), job.start_rank(0));
        (name, value, job, odd, root)
    });
    for (name, value, _job, mut odd, mut root) in started {
        let report = odd.wait_for_error();
        assert_ne!(report.kind, "Timeout", "{report:?}");
        report.must_say(&[if name == "HCOMM_TRANSPORTS" {
            value
        } else {
            name
        }]);
        let report = root.wait_for_error();
        assert_eq!(report.kind, "Timeout", "{report:?}");
        assert_eq!(report.culprits, [1], "{report:?}");
    }
}

/// Somebody else listens where the root should be: nobody is fooled by it.
#[test]
fn a_foreign_listener_at_the_roots_port() {
    let job = Job::new("join", 3).set("HCOMM_CONNECT_TIMEOUT", 3);
    let foreign = TcpListener::bind(job.address()).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let server = {
        let over = Arc::clone(&over);
        thread::spawn(move || {
            for stream in foreign.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let _ = stream.unwrap().write_all(b"220 mail.example.org ESMTP\r\n");
            }
        })
    };
    let mut ranks = job.start();
    let address = job.address().to_string();
    for report in all_fail(&mut ranks) {
        assert_eq!(report.culprits, [0], "{report:?}");
        report.must_say(&[&address, "220 mail"]);
    }
    over.store(true, Ordering::SeqCst);
    TcpStream::connect(job.address()).unwrap();
    server.join().unwrap();
}

#[test]
fn a_root_that_comes_last_is_waited_for() {
    let job = Job::new("join", 4);
    let mut ranks: Vec<Process> = [3, 1, 2].map(|rank| job.start_rank(rank)).into();
    thread::sleep(Duration::from_millis(700));
    ranks.push(job.start_rank(0));
    job::all_succeed(&mut ranks);
}

#[test]
fn two_jobs_at_once_do_not_meet() {
    let (one, two) = (Job::new("join", 3), Job::new("join", 3));
    let mut ranks = one.start();
    ranks.extend(two.start());
    job::all_succeed(&mut ranks);
}

/// What a stranger does once it is connected.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// Bytes without sense.
    Garbage,
    /// A request of another protocol; waits for the answer.
    Http,
    /// Nothing at all.
    Silence,
    /// Leaves at once.
    HangUp,
    /// The beginning of something, a byte at a time.
    Drip,
}

/// Knocks at an address until told to stop; counts how often somebody opened.
fn stranger(
    habit: Habit,
    address: SocketAddr,
    over: Arc<AtomicBool>,
    visits: Arc<AtomicUsize>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut random = Random::new(habit as u64);
        let mut held = Vec::new();
        while !over.load(Ordering::SeqCst) {
            let Ok(mut stream) = TcpStream::connect(address) else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            visits.fetch_add(1, Ordering::SeqCst);
            let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
            let _ = match habit {
                Habit::Garbage => {
                    let bytes: Vec<u8> = (0..random.below(5000))
                        .map(|_| random.next() as u8)
                        .collect();
                    stream.write_all(&bytes)
                }
                Habit::Http => stream
                    .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    .and_then(|()| stream.read(&mut [0; 100]).map(drop)),
                Habit::HangUp => Ok(()),
                Habit::Drip => (0..20).try_for_each(|_| {
                    thread::sleep(Duration::from_millis(1));
                    stream.write_all(b"h")
                }),
                Habit::Silence => {
                    held.push(stream);
                    Ok(())
                }
            };
            thread::sleep(Duration::from_millis(1));
            if held.len() > 100 {
                held.clear();
            }
        }
    })
}

#[test]
fn strangers_at_the_port_disturb_nobody() {
    for round in 0..2 {
        let job = Job::new("join", 4);
        let over = Arc::new(AtomicBool::new(false));
        let visits = Arc::new(AtomicUsize::new(0));
        let strangers = [
            Habit::Garbage,
            Habit::Http,
            Habit::Silence,
            Habit::HangUp,
            Habit::Drip,
        ]
        .map(|habit| stranger(habit, job.address(), Arc::clone(&over), Arc::clone(&visits)));
        let mut ranks: Vec<Process> = [0, 1, 2].map(|rank| job.start_rank(rank)).into();
        // The last rank comes when strangers have had their time with the root.
        let enough = 50 * (round + 1);
        while visits.load(Ordering::SeqCst) < enough && ranks[0].is_running() {
            thread::sleep(Duration::from_millis(5));
        }
        ranks.push(job.start_rank(3));
        job::all_succeed(&mut ranks);
        over.store(true, Ordering::SeqCst);
        for stranger in strangers {
            stranger.join().unwrap();
        }
        assert!(
            visits.load(Ordering::SeqCst) >= enough,
            "nobody was let in: no test"
        );
    }
}
