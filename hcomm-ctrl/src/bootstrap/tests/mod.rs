//! Each way in which start-up can go wrong, over a network and a clock inside the test.

use std::time::Duration;

use hcomm_types::{HostId, ProcessId};

use super::*;
use crate::fake_network::Fabric;
use crate::net::Stream;
use crate::settings::Settings;

mod scale;
mod tree;

const TIMEOUT: Duration = Duration::from_secs(120);
const ROOT: &str = "10.0.0.1:5000";

/// Machines, their network and their time.
struct World {
    fabric: Fabric,
    now: Nanos,
    ranks: Vec<(Option<Bootstrap>, Option<Result<Roster>>)>,
    ended: Vec<Bootstrap>,
    /// Connections of strangers, kept open.
    strangers: Vec<Box<dyn Stream>>,
}

fn seconds(seconds: u64) -> Nanos {
    Nanos(seconds * 1_000_000_000)
}

fn ip(index: u32) -> String {
    format!("10.0.0.{}", index + 1)
}

fn member(rank: u32, size: u32) -> Member {
    Member {
        mesh: vec!["0.0.0.0:7000".parse().unwrap()],
        settings: Settings::default().to_agree_on(),
        facts: vec![u8::try_from(rank).unwrap(); 10],
        ..Member::new(
            Rank(rank),
            size,
            ProcessId {
                pid: 100 + rank,
                token: u64::from(rank),
            },
            &format!("node{rank}"),
            HostId(format!("boot{rank}")),
        )
    }
}

/// One of many.
fn member_of(rank: u32, size: u32) -> Member {
    Member {
        rank: Rank(rank),
        ..member(0, size)
    }
}

fn key() -> Option<JobKey> {
    Some(JobKey::from_text("the key"))
}

impl World {
    fn new() -> Self {
        Self {
            fabric: Fabric::new(Duration::from_millis(1)),
            now: seconds(1),
            ranks: Vec::new(),
            ended: Vec::new(),
            strangers: Vec::new(),
        }
    }

    /// Starts a rank on a host of its own, now.
    fn start(&mut self, member: Member) {
        let index = u32::try_from(self.ranks.len()).unwrap();
        self.start_with(&ip(index), member, key());
    }

    fn start_with(&mut self, ip: &str, member: Member, key: Option<JobKey>) {
        self.fabric.set_now(self.now);
        let outside = self.fabric.host(ip);
        let at: RootAddress = ROOT.parse().unwrap();
        let machine = if member.rank == Rank(0) {
            Bootstrap::root_at(outside, &at, key, member, TIMEOUT, self.now)
        } else {
            Bootstrap::join_at(outside, &at, key, member, TIMEOUT, self.now)
        };
        self.ranks.push((Some(machine.unwrap()), None));
    }

    /// A connection of a stranger who says something and stays.
    fn stranger(&mut self, says: &[u8]) {
        let outside = self.fabric.host("10.9.9.9");
        let mut stream = outside.network.connect(ROOT.parse().unwrap()).unwrap();
        stream.write(says).unwrap();
        self.strangers.push(stream);
    }

    /// Looks at every machine until nothing happens any more at this moment.
    fn settle(&mut self) {
        self.fabric.set_now(self.now);
        loop {
            let before = self.fabric.events();
            let mut ended = false;
            for (slot, result) in &mut self.ranks {
                if let Some(machine) = slot
                    && let Poll::Ready(end) = machine.poll(self.now)
                {
                    *result = Some(end);
                    // It stays where it is: ending has to be enough for the others.
                    self.ended.extend(slot.take());
                    ended = true;
                }
            }
            if self.fabric.events() == before && !ended {
                return;
            }
        }
    }

    fn next_moment(&self) -> Option<Nanos> {
        let wakes = self
            .ranks
            .iter()
            .filter_map(|(machine, _)| machine.as_ref()?.next_wake().moment());
        wakes.chain(self.fabric.next_arrival()).min()
    }

    /// Lets time pass up to a moment.
    fn run_until(&mut self, end: Nanos) {
        loop {
            self.settle();
            match self.next_moment() {
                Some(next) if next <= end => {
                    self.now = next.max(Nanos(self.now.0 + 1));
                }
                _ => {
                    self.now = end;
                    return self.settle();
                }
            }
        }
    }

    /// Lets time pass until every machine has ended.
    fn run(&mut self) {
        loop {
            self.settle();
            if self.ranks.iter().all(|(machine, _)| machine.is_none()) {
                return;
            }
            let next = self.next_moment().expect("something is due");
            self.now = next.max(Nanos(self.now.0 + 1));
            assert!(self.now < seconds(100_000), "start-up never ends");
        }
    }

    fn kill(&mut self, index: usize) {
        self.ranks[index].0 = None;
    }

    fn roster(&self, index: usize) -> &Roster {
        match &self.ranks[index].1 {
            Some(Ok(roster)) => roster,
            other => panic!("rank {index} ended with {other:?}"),
        }
    }

    fn error(&self, index: usize) -> &Error {
        match &self.ranks[index].1 {
            Some(Err(error)) => error,
            other => panic!("rank {index} ended with {other:?}"),
        }
    }

    fn elapsed(&self) -> Duration {
        self.now.since(seconds(1))
    }

    /// That ranks say the same of a failure.
    fn assert_all_say(&self, indices: &[usize], kind: ErrorKind, culprits: &[u32], words: &[&str]) {
        let culprits: Vec<Rank> = culprits.iter().copied().map(Rank).collect();
        let first = self.error(indices[0]);
        for &index in indices {
            let error = self.error(index);
            assert_eq!(error.kind(), kind, "{index}: {error}");
            assert_eq!(error.culprits(), culprits, "{index}: {error}");
            assert_eq!(error.detail(), first.detail());
            assert_eq!(error.next_step(), first.next_step());
            assert!(error.next_step().is_some(), "{error}");
            for word in words {
                assert!(error.detail().contains(word), "`{word}` is not in: {error}");
            }
        }
    }

    fn assert_all_ready(&self) {
        let first = self.roster(0).clone();
        for index in 0..self.ranks.len() {
            let roster = self.roster(index);
            assert_eq!(roster.session(), first.session());
            let size = self.ranks.len();
            assert_eq!(roster.members().len(), size);
            for (rank, seen) in (0u32..).zip(roster.members()) {
                let mut expected = member(rank, u32::try_from(size).unwrap());
                let placed: Vec<_> = [format!("{}:7000", ip(rank)).parse().unwrap()].into();
                if rank > 0 {
                    expected.mesh.clone_from(&placed);
                }
                assert_eq!(*seen, expected);
                // Rank 0 does not know how others see it; they do.
                if index > 0 {
                    assert_eq!(roster.mesh_of(Rank(rank)), placed);
                }
            }
        }
    }
}

#[test]
fn all_ranks_get_the_same_roster() {
    for size in [1, 2, 5, 16] {
        for dribble in [0, 7] {
            let mut world = World::new();
            world.fabric.dribble(dribble);
            for rank in 0..size {
                world.start(member(rank, size));
            }
            world.run();
            world.assert_all_ready();
            assert!(world.elapsed() < Duration::from_secs(1));
        }
    }
}

/// Starts so many ranks at once, and sees that all come to the list.
fn all_are_let_in(world: &mut World, size: u32) {
    world.start_with("10.0.0.1", member_of(0, size), key());
    for rank in 1..size {
        let ip = format!("10.1.{}.{}", rank / 200, rank % 200);
        world.start_with(&ip, member_of(rank, size), key());
    }
    world.run();
    for index in 0..size as usize {
        assert_eq!(world.roster(index).size(), size);
    }
}

#[test]
fn many_ranks_at_once_are_let_in() {
    let size = 400;
    let mut world = World::new();
    all_are_let_in(&mut world, size);
}

#[test]
fn facts_of_any_size_up_to_the_limit_travel() {
    let mut world = World::new();
    let big = |rank, size| Member {
        facts: vec![9; 400 << 10],
        ..member(rank, size)
    };
    for rank in 0..3 {
        world.start(big(rank, 3));
    }
    world.run();
    for index in 0..3 {
        assert_eq!(world.roster(index).members()[2].facts.len(), 400 << 10);
    }
    let too_big = Member {
        facts: vec![9; 600 << 10],
        ..member(1, 2)
    };
    let refused = Bootstrap::join_at(
        world.fabric.host("10.0.0.2"),
        &ROOT.parse().unwrap(),
        key(),
        too_big,
        TIMEOUT,
        world.now,
    );
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::LimitReached);
}

#[test]
fn the_steps_are_visible() {
    let mut world = World::new();
    world.start(member(1, 2));
    world.run_until(seconds(2));
    assert_eq!(world.ranks[0].0.as_ref().unwrap().step(), Step::Handshake);
    let (mut root, _) = {
        world.start_with(&ip(0), member(0, 2), key());
        world.ranks.pop().unwrap()
    };
    let mut seen = Vec::new();
    let root = root.as_mut().unwrap();
    for _ in 0..10_000 {
        world.settle();
        let joiner = &world.ranks[0].0;
        seen.extend(joiner.as_ref().map(Bootstrap::step));
        seen.push(root.step());
        if root.poll(world.now).is_ready() {
            break;
        }
        world.now = world.now + Duration::from_millis(1);
    }
    assert!(seen.contains(&Step::Topology));
    assert_eq!(root.step(), Step::Paths);
}

#[test]
fn a_late_root_is_waited_for() {
    let mut world = World::new();
    for rank in 1..4 {
        world.start_with(&ip(rank), member(rank, 4), key());
    }
    world.run_until(seconds(60));
    assert!(world.ranks.iter().all(|(_, result)| result.is_none()));
    world.start_with(&ip(0), member(0, 4), key());
    world.run();
    assert!((0..4).all(|index| world.roster(index).size() == 4));
    assert!(world.elapsed() < Duration::from_secs(62));
}

#[test]
fn a_name_that_appears_late_is_waited_for() {
    let mut world = World::new();
    let at: RootAddress = "head:5000".parse().unwrap();
    let outside = world.fabric.host(&ip(1));
    let joiner = Bootstrap::join_at(outside, &at, key(), member(1, 2), TIMEOUT, world.now);
    world.ranks.push((Some(joiner.unwrap()), None));
    world.run_until(seconds(20));
    world.fabric.name("head", &ip(0));
    let outside = world.fabric.host(&ip(0));
    let root = Bootstrap::root_at(outside, &at, key(), member(0, 2), TIMEOUT, world.now);
    world.ranks.push((Some(root.unwrap()), None));
    world.run();
    assert_eq!(world.roster(0).size(), 2);
}

#[test]
fn no_root_at_all_is_told_at_the_deadline() {
    let mut world = World::new();
    world.start(member(1, 2));
    world.run();
    assert_eq!(world.elapsed(), TIMEOUT);
    world.assert_all_say(
        &[0],
        ErrorKind::Timeout,
        &[0],
        &[ROOT, "nobody listens there"],
    );
    assert!(world.error(0).to_string().contains("(after 120.000 s)"));
}

#[test]
fn a_root_behind_a_wall_is_told_at_the_deadline() {
    let mut world = World::new();
    world.fabric.silence("10.0.0.1");
    world.start_with(&ip(1), member(1, 2), key());
    world.run();
    world.assert_all_say(&[0], ErrorKind::Timeout, &[0], &[ROOT, "not answered"]);
}

#[test]
fn missing_ranks_are_named_by_everybody_at_the_deadline() {
    let mut world = World::new();
    for rank in [0, 1, 4] {
        world.start(member(rank, 6));
    }
    world.run();
    assert!(world.elapsed() >= TIMEOUT && world.elapsed() < TIMEOUT + Duration::from_secs(1));
    world.assert_all_say(
        &[0, 1, 2],
        ErrorKind::Timeout,
        &[2, 3, 5],
        &["ranks 2-3 and 5 have not come"],
    );
}

#[test]
fn a_rank_whose_deadline_is_earlier_names_the_missing_too() {
    let mut world = World::new();
    world.start_with(&ip(1), member(1, 3), key());
    world.run_until(seconds(60));
    world.start_with(&ip(0), member(0, 3), key());
    world.run();
    let words = ["at the deadline of rank 1, rank 2 has not come"];
    world.assert_all_say(&[0, 1], ErrorKind::Timeout, &[2], &words);
    assert!(world.elapsed() < TIMEOUT + Duration::from_secs(4));
}

#[test]
fn a_wrong_size_fails_everybody_at_once_with_the_same_words() {
    let mut world = World::new();
    for rank in 0..3 {
        world.start(member(rank, 4));
    }
    world.start(member(3, 5));
    world.run_until(seconds(3));
    // One that comes later hears it as well, while the root stays.
    assert!(world.ranks[3].1.is_some());
    world.run();
    world.assert_all_say(
        &[0, 1, 2, 3],
        ErrorKind::Mismatch,
        &[3],
        &[
            "rank 3 (host node3, pid 103, 10.0.0.4:",
            "for 5 ranks",
            "rank 0 (host node0, pid 100) for 4",
        ],
    );
    assert!(world.elapsed() <= Duration::from_secs(4));
}

#[test]
fn a_rank_that_comes_after_the_failure_hears_it_too() {
    let mut world = World::new();
    world.start(member(0, 4));
    world.start(member(1, 5));
    world.run_until(seconds(2));
    world.start(member(2, 4));
    world.start(member(3, 4));
    world.run();
    world.assert_all_say(&[0, 1, 2, 3], ErrorKind::Mismatch, &[1], &["for 5 ranks"]);
    // All were told, so the root did not sit out its grace.
    assert!(world.elapsed() < Duration::from_secs(3));
}

#[test]
fn two_ranks_with_one_number_are_both_named() {
    let mut world = World::new();
    for rank in [0, 1, 2, 2] {
        world.start(member(rank, 4));
    }
    world.run();
    world.assert_all_say(
        &[0, 1, 2, 3],
        ErrorKind::Mismatch,
        &[2],
        &[
            "two processes claim to be rank 2",
            "10.0.0.3",
            "10.0.0.4",
            "host node2, pid 102",
        ],
    );
}

#[test]
fn two_roots_learn_of_each_other() {
    let mut world = World::new();
    world.start(member(0, 3));
    world.start(member(1, 3));
    let second = Member {
        process: ProcessId { pid: 77, token: 5 },
        ..member(0, 3)
    };
    // On the same host: the port is taken.
    world.start_with(&ip(0), second, key());
    world.run();
    world.assert_all_say(
        &[0, 1, 2],
        ErrorKind::Mismatch,
        &[0],
        &[
            "two processes claim to be rank 0",
            "pid 100",
            "pid 77",
            ROOT,
        ],
    );
    assert!(world.elapsed() <= Duration::from_secs(4));
}

#[test]
fn a_port_taken_by_a_stranger_is_told_by_everybody() {
    for says in [&b"HTTP/1.1 400 Bad Request\r\n"[..], b""] {
        let mut world = World::new();
        let outside = world.fabric.host(&ip(0));
        let mut listener = outside.network.listen(ROOT.parse().unwrap()).unwrap();
        world.start(member(0, 2));
        world.start(member(1, 2));
        let mut streams = Vec::new();
        while world.ranks.iter().any(|(machine, _)| machine.is_some()) {
            while let Some((mut stream, _)) = listener.accept().unwrap() {
                if !says.is_empty() {
                    stream.write(says).unwrap();
                }
                streams.push(stream);
            }
            let next = world.now + Duration::from_millis(50);
            world.run_until(next);
            if world.elapsed() > Duration::from_secs(4) {
                assert!(world.ranks[0].1.is_some(), "rank 0 knows at once");
            }
        }
        let root = world.error(0);
        assert!(root.detail().contains("the port is taken"), "{root}");
        assert_eq!(
            (root.kind(), root.culprits()),
            (ErrorKind::System, &[Rank(0)][..])
        );
        assert!(root.detail().contains(ROOT), "{root}");
        let joiner = world.error(1);
        assert_eq!(joiner.kind(), ErrorKind::Timeout);
        for error in [root, joiner] {
            let word = if says.is_empty() {
                "said nothing for"
            } else {
                "HTTP/1.1"
            };
            assert!(error.detail().contains(word), "{error}");
        }
    }
}

#[test]
fn the_root_of_another_job_at_the_port_is_told() {
    let mut world = World::new();
    world.start_with(&ip(0), member(0, 2), Some(JobKey::from_text("other")));
    world.start_with(&ip(0), member(0, 2), key());
    world.run_until(seconds(2));
    let error = world.error(1);
    assert!(error.detail().contains("another job"), "{error}");
    // The other job goes on undisturbed.
    world.start_with(&ip(1), member(1, 2), Some(JobKey::from_text("other")));
    world.run();
    assert_eq!(world.roster(0).size(), 2);
}

#[test]
fn a_port_that_becomes_free_is_used_after_all() {
    let mut world = World::new();
    let outside = world.fabric.host(&ip(0));
    let listener = outside.network.listen(ROOT.parse().unwrap()).unwrap();
    world.start(member(0, 2));
    world.start(member(1, 2));
    drop(listener);
    world.run();
    world.assert_all_ready();
}

#[test]
fn a_wrong_key_is_refused_at_once_and_quoted_when_its_rank_is_missing() {
    let mut world = World::new();
    world.start(member(0, 3));
    world.start(member(1, 3));
    world.start_with(&ip(2), member(2, 3), Some(JobKey::from_text("wrong")));
    world.run_until(seconds(2));
    let refused = world.error(2);
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert!(refused.detail().contains("job key"), "{refused}");
    assert!(refused.next_step().unwrap().contains("HCOMM_JOB_KEY"));
    assert!(world.ranks[0].0.is_some() && world.ranks[1].0.is_some());
    world.run();
    world.assert_all_say(
        &[0, 1],
        ErrorKind::Timeout,
        &[2],
        &[
            "rank 2 has not come",
            "10.0.0.3, which claims to be rank 2, was refused because its job key differs",
        ],
    );
}

#[test]
fn a_wrong_key_disturbs_nobody() {
    let mut world = World::new();
    world.start(member(0, 3));
    world.start(member(1, 3));
    world.start_with("10.0.0.66", member(2, 3), Some(JobKey::from_text("wrong")));
    world.run_until(seconds(2));
    world.start_with(&ip(2), member(2, 3), key());
    world.run();
    assert_eq!(world.error(2).kind(), ErrorKind::Refused);
    for index in [0, 1, 3] {
        assert_eq!(world.roster(index).size(), 3);
    }
}

#[test]
fn versions_and_settings_that_differ_fail_everybody_with_both_values() {
    let version = Member {
        library_version: "9.8.7".into(),
        ..member(2, 3)
    };
    let setting = Member {
        settings: Settings::default()
            .with_connect_timeout(Duration::from_secs(7))
            .to_agree_on(),
        ..member(2, 3)
    };
    let extra = Member {
        settings: [
            &member(2, 3).settings[..],
            &[("X".to_owned(), "on".to_owned())],
        ]
        .concat()
        .into(),
        ..member(2, 3)
    };
    for (bad, words) in [
        (
            version,
            ["the version of hcomm is 9.8.7 at rank 2", LIBRARY_VERSION],
        ),
        (
            setting,
            [
                "HCOMM_CONNECT_TIMEOUT is 7 at rank 2",
                "and 120 at all others (2,",
            ],
        ),
        (
            extra,
            ["X is on at rank 2", "and not set at all others (2,"],
        ),
    ] {
        let mut world = World::new();
        world.start(member(0, 3));
        world.start(bad);
        world.start(member(1, 3));
        world.run();
        world.assert_all_say(&[0, 1, 2], ErrorKind::Mismatch, &[2], &words);
        assert!(world.elapsed() <= Duration::from_secs(4));
    }
}

#[test]
fn another_protocol_version_fails_everybody_with_both_values() {
    let mut world = World::new();
    world.start(member(0, 3));
    world.start(member(1, 3));
    world.start(member(2, 3));
    let Some(Role::Join(join)) = world.ranks[2].0.as_mut().map(|machine| &mut machine.role) else {
        panic!("rank 2 joins");
    };
    join.speak_version(9);
    world.run();
    world.assert_all_say(
        &[0, 1, 2],
        ErrorKind::Mismatch,
        &[2],
        &["rank 2 (host node2", "protocol 9", "speaks 2"],
    );
}

#[test]
fn a_rank_that_dies_during_start_up_is_named_by_everybody() {
    let mut world = World::new();
    for rank in 0..3 {
        world.start(member(rank, 4));
    }
    world.run_until(seconds(5));
    world.kill(1);
    world.run();
    world.assert_all_say(
        &[0, 2],
        ErrorKind::PeerLost,
        &[1],
        &["rank 1 (host node1, pid 101", "closed by the other side"],
    );
    assert!(world.elapsed() <= Duration::from_secs(8));
}

#[test]
fn a_root_that_dies_is_named_by_everybody() {
    let mut world = World::new();
    for rank in 0..3 {
        world.start(member(rank, 4));
    }
    world.run_until(seconds(5));
    world.kill(0);
    world.run();
    world.assert_all_say(
        &[1, 2],
        ErrorKind::PeerLost,
        &[0],
        &["rank 0 (10.0.0.1", "rank 3 has not come"],
    );
    assert!(world.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_host_that_falls_silent_is_named_at_the_deadline() {
    let mut world = World::new();
    for rank in 0..3 {
        world.start(member(rank, 4));
    }
    world.run_until(seconds(5));
    world.fabric.silence(&ip(2));
    world.start(member(3, 4));
    world.run();
    for index in [0, 1, 3] {
        let error = world.error(index);
        assert_eq!(
            (error.kind(), error.culprits()),
            (ErrorKind::Timeout, &[Rank(2)][..])
        );
        assert!(
            error.detail().contains("rank 2 has not acknowledged"),
            "{error}"
        );
    }
    assert_eq!(world.error(2).culprits(), [Rank(3)]); // the last that it had heard
}

#[test]
fn a_reset_of_all_connections_of_a_rank_counts_as_its_loss() {
    let mut world = World::new();
    for rank in 0..2 {
        world.start(member(rank, 3));
    }
    world.run_until(seconds(5));
    world.fabric.cut(&ip(1));
    world.run();
    assert_eq!(world.error(0).culprits(), [Rank(1)]);
    assert_eq!(world.error(1).culprits(), [Rank(0)]);
}

#[test]
fn bytes_changed_on_the_way_never_pass() {
    let mut world = World::new();
    for rank in 0..2 {
        world.start(member(rank, 3));
    }
    world.run_until(seconds(5));
    world.fabric.corrupt(&ip(0));
    world.run();
    assert_eq!(world.error(1).kind(), ErrorKind::PeerLost);
    assert!(
        world.error(1).detail().contains("MAC"),
        "{}",
        world.error(1)
    );
    assert_eq!(world.error(0).culprits(), [Rank(1)]);
}

#[test]
fn strangers_never_disturb_the_others() {
    let mut world = World::new();
    world.start(member(0, 3));
    let half_a_knock = &crate::frame::MAGIC[..];
    let mut huge = crate::frame::encode(1, FrameType::Knock, None, &Vec::new().into(), None).0;
    huge[12..].fill(0xff);
    let says: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\0\0\0\0\0",
        b"",
        half_a_knock,
        &huge,
        b"x",
    ];
    for round in 0..40 {
        world.stranger(says[round % says.len()]);
    }
    world.start(member(1, 3));
    world.run_until(seconds(4));
    for round in 0..40 {
        world.stranger(says[round % says.len()]);
    }
    world.start(member(2, 3));
    world.run();
    world.assert_all_ready();
}

#[test]
fn strangers_beyond_the_bound_make_room_for_newer_ones() {
    let mut world = World::new();
    world.start(member(0, 2));
    for _ in 0..500 {
        world.stranger(b"");
    }
    // Who waits longer than a rank would has to go when others come.
    world.run_until(seconds(10));
    // At most one for each rank and the spare ones are kept; the others were closed.
    let mut open = 0;
    for stream in &mut world.strangers {
        open += usize::from(stream.read(&mut [0]).unwrap().is_none());
    }
    assert_eq!(open, 2 + 64);
    world.start(member(1, 2));
    world.run();
    world.assert_all_ready();
}

#[test]
fn strangers_are_dropped_after_a_while() {
    let mut world = World::new();
    world.start(member(0, 2));
    world.stranger(b"");
    world.stranger(&crate::frame::MAGIC);
    world.run_until(seconds(30));
    for stream in &mut world.strangers {
        assert_eq!(stream.read(&mut [0]).unwrap(), Some(0));
    }
}

#[test]
fn running_out_of_descriptors_is_told_by_everybody() {
    let mut world = World::new();
    for rank in 0..2 {
        world.start(member(rank, 3));
    }
    world.run_until(seconds(3));
    world.start(member(2, 3));
    let connecting = world.ranks[2].0.as_mut().unwrap();
    assert!(connecting.poll(world.now).is_pending());
    world.fabric.run_out_of_descriptors(true);
    world.start(member(2, 3));
    world.run_until(seconds(4));
    world.fabric.run_out_of_descriptors(false);
    world.run();
    for index in [0, 1, 3] {
        assert_eq!(world.error(index).kind(), ErrorKind::LimitReached);
        assert!(
            world
                .error(index)
                .next_step()
                .unwrap()
                .contains("ulimit -n")
        );
    }
}

#[test]
fn a_loopback_address_is_not_offered_to_another_host() {
    let mut world = World::new();
    world.start(member(0, 2));
    world.start(Member {
        mesh: vec!["127.0.0.1:9".parse().unwrap()],
        ..member(1, 2)
    });
    world.run();
    world.assert_all_say(
        &[0, 1],
        ErrorKind::Mismatch,
        &[1],
        &["127.0.0.1", "rank 0", "cannot reach"],
    );
}

fn root_info(world: &World, settings: &Settings) -> RootListener {
    let at = "10.0.0.1:0".parse().unwrap();
    RootListener::bind(&world.fabric.host(&ip(0)), settings, at, &[]).unwrap()
}

impl World {
    fn start_root_with(&mut self, listener: RootListener, size: u32) {
        let outside = self.fabric.host(&ip(0));
        let root = Bootstrap::root(outside, listener, member(0, size), TIMEOUT, self.now);
        self.ranks.push((Some(root.unwrap()), None));
    }

    fn join_with(&mut self, info: &RootInfo, rank: u32, size: u32) {
        self.fabric.set_now(self.now);
        let outside = self.fabric.host(&ip(rank));
        let join = Bootstrap::join(outside, info, member(rank, size), TIMEOUT, self.now);
        self.ranks.push((Some(join.unwrap()), None));
    }
}

#[test]
fn a_root_info_works_once_and_says_so_the_second_time() {
    let mut world = World::new();
    let listener = root_info(&world, &Settings::default());
    let info = listener.info().clone();
    world.join_with(&info, 1, 2);
    world.run_until(seconds(30)); // the listener waits for its root to start
    world.start_root_with(listener, 2);
    world.run();
    assert_eq!(world.roster(0).session(), info.session());
    assert_eq!(world.roster(1), world.roster(1));
    let again = world.now;
    world.join_with(&info, 1, 2);
    world.run();
    let error = world.error(2);
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(
        error.detail().contains("serves one communicator"),
        "{error}"
    );
    assert!(world.now.since(again) < Duration::from_secs(5));
}

#[test]
fn an_old_root_info_is_refused_by_the_next_root_at_its_port() {
    let mut world = World::new();
    let settings = Settings::default().with_job_key(JobKey::from_text("same"));
    let old = root_info(&world, &settings);
    let (old_info, at) = (old.info().clone(), old.info().addresses()[0]);
    drop(old);
    let outside = world.fabric.host(&ip(0));
    let new = RootListener::bind(&outside, &settings, at, &[]).unwrap();
    let new_info = new.info().clone();
    world.start_root_with(new, 2);
    world.join_with(&old_info, 1, 2);
    world.run_until(seconds(2));
    let error = world.error(1);
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.detail().contains("another communicator"), "{error}");
    world.join_with(&new_info, 1, 2);
    world.run();
    assert_eq!(world.roster(0).size(), 2);
}

#[test]
fn a_rank_that_gives_up_tells_everybody_why() {
    for who in [0, 1] {
        let mut world = World::new();
        for rank in 0..3 {
            world.start(member(rank, 4));
        }
        world.run_until(seconds(3));
        let cause = Error::new(ErrorKind::LimitReached, "no memory for 7 MiB").hint("free some");
        let now = world.now;
        world.ranks[who as usize]
            .0
            .as_mut()
            .unwrap()
            .give_up(&cause, now);
        world.run();
        let name = format!("rank {who} (host node{who}");
        let words = [&*name, "has given up: no memory for 7 MiB"];
        world.assert_all_say(&[0, 1, 2], ErrorKind::LimitReached, &[who], &words);
    }
}

#[test]
fn a_rank_that_gives_up_before_it_is_known_just_ends() {
    let mut world = World::new();
    world.start(member(1, 2));
    world.run_until(seconds(2));
    let now = world.now;
    let cause = Error::new(ErrorKind::System, "no disk");
    world.ranks[0].0.as_mut().unwrap().give_up(&cause, now);
    world.run();
    assert_eq!((world.error(0).kind(), world.now), (ErrorKind::System, now));
}

/// Keeps the fields of warnings as text.
#[derive(Clone, Default)]
struct Warnings(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(
            &mut |field: &tracing::field::Field, value: &dyn fmt::Debug| {
                line += &format!("{}={value:?} ", field.name());
            },
        );
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn refusals_and_slow_start_ups_are_warned_about() {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        let mut world = World::new();
        world.start(member(0, 2));
        for _ in 0..3 {
            world.start_with(&ip(1), member(1, 2), Some(JobKey::from_text("wrong")));
            world.run_until(world.now + Duration::from_secs(4));
        }
        world.start_with(&ip(1), member(1, 2), key());
        world.run();
        assert_eq!(world.roster(0).size(), 2);
    });
    let lines = warnings.0.lock().unwrap();
    let [refused, slow] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(
        refused.contains("peer=10.0.0.2:") && refused.contains("Rank(1)"),
        "{refused}"
    );
    assert!(
        slow.contains("start-up took 12.0 s") && slow.contains("rank 1 came last"),
        "{slow}"
    );
}

#[test]
fn slow_start_up_says_where_the_time_went() {
    let mut times = Times::new(seconds(1));
    times.note_last(seconds(13), Rank(5));
    times.enter(seconds(13), Step::Topology);
    assert_eq!(
        times.describe(seconds(15)).unwrap(),
        "start-up took 14.0 s: handshake 12.0 s (rank 5 came last, after 12.0 s), topology 2.0 s"
    );
    assert_eq!(Times::new(seconds(1)).describe(seconds(2)), None);
}

#[test]
fn members_that_cannot_be_are_refused_before_anything_is_sent() {
    let world = World::new();
    let at: RootAddress = ROOT.parse().unwrap();
    let outside = world.fabric.host(&ip(0));
    for member in [member(4, 4), member(1, 4)] {
        let refused = Bootstrap::root_at(outside.clone(), &at, key(), member, TIMEOUT, world.now);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let refused = Bootstrap::join_at(outside, &at, key(), member(0, 4), TIMEOUT, world.now);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
}
