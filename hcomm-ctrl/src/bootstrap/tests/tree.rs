//! Start-up of so many ranks that most of them are not directly below rank 0.

use super::*;
use crate::bootstrap::tree::ARITY;

impl World {
    fn start_many(&mut self, ranks: impl IntoIterator<Item = u32>, size: u32) {
        for rank in ranks {
            self.start_with(&ip(rank), member(rank, size), key());
        }
    }

    /// The rank above the one at an index, while it is in the tree.
    fn above(&self, index: usize) -> Option<Rank> {
        match &self.ranks[index].0.as_ref()?.role {
            Role::Join(join) => join.parent(),
            _ => None,
        }
    }

    /// Rosters alike or errors alike, whichever it is; a killed rank has neither.
    fn assert_all_end_alike(&self, killed: &[usize]) -> bool {
        let others: Vec<usize> = (0..self.ranks.len())
            .filter(|index| !killed.contains(index))
            .collect();
        let good = others
            .iter()
            .filter(|&&index| matches!(self.ranks[index].1, Some(Ok(_))))
            .count();
        assert!(
            good == 0 || good == others.len(),
            "{good} of {} have a roster, with {killed:?} killed",
            others.len()
        );
        if good == 0 {
            let first = self.error(others[0]);
            for &index in &others {
                let error = self.error(index);
                assert_eq!(error.detail(), first.detail(), "{index}");
                assert_eq!(error.culprits(), first.culprits());
            }
        }
        good > 0
    }
}

#[test]
fn most_ranks_are_below_another_one_than_rank_0() {
    for dribble in [0, 7] {
        let mut world = World::new();
        world.fabric.dribble(dribble);
        world.start_many(0..59, 60);
        world.run_until(seconds(4));
        let directly = (1..59).filter(|&i| world.above(i) == Some(Rank(0)));
        assert_eq!(directly.count(), ARITY);
        assert_eq!(world.above(58), Some(Rank(14)));
        world.start_many([59], 60);
        world.run();
        world.assert_all_ready();
        assert!(world.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn a_rank_in_the_middle_that_dies_is_named_by_everybody() {
    for victim in [1, 2, 7, 30] {
        let mut world = World::new();
        world.start_many(0..40, 41);
        world.run_until(seconds(5));
        world.kill(victim);
        world.run();
        let others: Vec<usize> = (0..40).filter(|&index| index != victim).collect();
        let name = format!("rank {victim} (host node{victim}, pid {}", 100 + victim);
        let culprit = u32::try_from(victim).unwrap();
        world.assert_all_say(
            &others,
            ErrorKind::PeerLost,
            &[culprit],
            &[&name, "was lost during start-up"],
        );
        assert!(
            world.elapsed() < Duration::from_secs(8),
            "{:?}",
            world.elapsed()
        );
    }
}

#[test]
fn two_ranks_above_each_other_that_die_at_once_leave_nobody_behind() {
    let mut world = World::new();
    world.start_many(0..40, 41);
    world.run_until(seconds(5));
    assert_eq!(world.above(5), Some(Rank(1)));
    world.kill(1);
    world.kill(5);
    world.run();
    assert!(!world.assert_all_end_alike(&[1, 5]));
    assert_eq!(world.error(30).culprits(), [Rank(1)]);
    assert!(world.elapsed() < Duration::from_secs(9));
}

/// Wherever in start-up it happens: all go on, or all know why not.
#[test]
fn a_death_at_any_moment_ends_alike_for_all_others() {
    let (mut good, mut bad) = (0, 0);
    for (victim, moments) in [(1, 0..13), (6, 0..13), (0, 4..7)] {
        for moment in moments {
            let mut world = World::new();
            world.start_many(0..24, 24);
            world.run_until(seconds(1) + Duration::from_millis(moment));
            if world.ranks[victim].0.is_none() {
                break;
            }
            world.kill(victim);
            if victim == 0 {
                // Nobody else can tell who is dead; who knew nothing of it waits for the deadline.
                world.run();
                assert!((1..24).all(|index| world.ranks[index].1.is_some()));
                continue;
            }
            world.run();
            if world.assert_all_end_alike(&[victim]) {
                good += 1;
            } else {
                bad += 1;
                assert_eq!(
                    world.error(0).culprits(),
                    [Rank(u32::try_from(victim).unwrap())],
                    "after {moment} ms: {}",
                    world.error(0)
                );
            }
        }
    }
    assert!(bad > 0, "{good} and {bad}");
}

#[test]
fn ranks_below_a_silent_one_move_and_the_silent_one_is_named() {
    let mut world = World::new();
    world.start_many(0..30, 31);
    world.run_until(seconds(5));
    let below: Vec<usize> = (0..30)
        .filter(|&index| world.above(index) == Some(Rank(1)))
        .collect();
    assert_eq!(below.len(), ARITY);
    world.fabric.silence(&ip(1));
    world.run_until(seconds(20));
    for &index in &below {
        assert_eq!(world.above(index), Some(Rank(0)));
    }
    world.start_many([30], 31);
    world.run();
    let others: Vec<usize> = (0..31).filter(|&index| index != 1).collect();
    world.assert_all_say(
        &others,
        ErrorKind::Timeout,
        &[1],
        &["rank 1 has not acknowledged the list of ranks"],
    );
}

#[test]
fn a_rank_that_is_stopped_for_a_while_finds_its_ranks_gone_elsewhere() {
    let mut world = World::new();
    world.start_many(0..30, 31);
    world.run_until(seconds(5));
    let (stopped, _) = std::mem::take(&mut world.ranks[1]);
    world.run_until(seconds(25));
    assert_eq!(world.above(5), Some(Rank(0)));
    world.ranks[1].0 = stopped;
    world.run_until(seconds(30));
    world.start_many([30], 31);
    world.run();
    world.assert_all_ready();
}

#[test]
fn who_cannot_reach_the_rank_above_comes_to_rank_0() {
    let mut world = World::new();
    world.start_many([0], 12);
    for rank in 1..12 {
        let mesh = vec!["10.99.99.99:7000".parse().unwrap()];
        world.start_with(
            &ip(rank),
            Member {
                mesh: mesh.clone(),
                ..member(rank, 12)
            },
            key(),
        );
    }
    world.run();
    for index in 0..12 {
        assert_eq!(world.roster(index).size(), 12);
    }
    assert!(world.elapsed() < Duration::from_secs(4));
}

/// Ranks whose connections were turned away do not come back all together.
#[test]
fn a_full_accept_queue_is_waited_for() {
    let size = 120;
    let mut world = World::new();
    world.fabric.limit_backlog(4);
    all_are_let_in(&mut world, size);
    let away = world.fabric.turned_away();
    assert!(away >= 50, "{away} were turned away");
    assert!(
        world.elapsed() < Duration::from_secs(20),
        "{:?}",
        world.elapsed()
    );
}

/// All ports of the range but one are taken, by strangers and by another job.
#[test]
fn a_root_takes_the_first_free_port_of_a_range_and_all_find_it() {
    let mut world = World::new();
    let outside = world.fabric.host(&ip(0));
    let mut stranger = outside
        .network
        .listen("10.0.0.1:5000".parse().unwrap())
        .unwrap();
    let other_job: RootAddress = "10.0.0.1:5001".parse().unwrap();
    let range: RootAddress = "10.0.0.1:5000-5003".parse().unwrap();
    let other_key = Some(JobKey::from_text("other"));
    let outside = world.fabric.host(&ip(0));
    let other = Bootstrap::root_at(
        outside,
        &other_job,
        other_key,
        member(0, 2),
        TIMEOUT,
        world.now,
    );
    world.ranks.push((Some(other.unwrap()), None));
    for rank in 0..3 {
        let outside = world.fabric.host(&ip(rank));
        let member = member(rank, 3);
        let machine = if rank == 0 {
            Bootstrap::root_at(outside, &range, key(), member, TIMEOUT, world.now)
        } else {
            Bootstrap::join_at(outside, &range, key(), member, TIMEOUT, world.now)
        };
        world.ranks.push((Some(machine.unwrap()), None));
    }
    let mut streams = Vec::new();
    while world.ranks[1..]
        .iter()
        .any(|(machine, _)| machine.is_some())
    {
        while let Some((mut stream, _)) = stranger.accept().unwrap() {
            stream.write(b"HTTP/1.1 400 Bad Request\r\n").unwrap();
            streams.push(stream);
        }
        let next = world.now + Duration::from_millis(50);
        world.run_until(next);
        assert!(world.elapsed() < Duration::from_secs(60), "they never meet");
    }
    for index in 1..4 {
        assert_eq!(world.roster(index).size(), 3);
    }
    // Without a key, another job's root could not be told from ours.
    let outside = world.fabric.host(&ip(1));
    let refused = Bootstrap::join_at(outside, &range, None, member(1, 3), TIMEOUT, world.now);
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.detail().contains("5000-5003"), "{error}");
}

#[test]
fn every_rank_hears_that_one_far_below_gives_up() {
    let mut world = World::new();
    world.start_many(0..40, 41);
    world.run_until(seconds(3));
    let cause = Error::new(ErrorKind::LimitReached, "no memory for 7 MiB").hint("free some");
    let now = world.now;
    let machine = world.ranks[38].0.as_mut().unwrap();
    machine.give_up(&cause, now);
    world.run();
    let all: Vec<usize> = (0..40).collect();
    let words = ["rank 38 (host node38", "has given up: no memory for 7 MiB"];
    world.assert_all_say(&all, ErrorKind::LimitReached, &[38], &words);
    // Rank 0 stays for the one that has not come.
    assert!(world.elapsed() < Duration::from_secs(6));
}

#[test]
fn every_rank_hears_of_the_deadline_of_one_far_below() {
    let mut world = World::new();
    // Rank 25 begins first, so its deadline is the first.
    world.start_many([25], 41);
    world.run_until(seconds(60));
    world.start_many((0..25).chain(26..40), 41);
    world.run();
    let all: Vec<usize> = (0..40).collect();
    let words = ["at the deadline of rank 25, rank 40 has not come"];
    world.assert_all_say(&all, ErrorKind::Timeout, &[40], &words);
    assert!(world.elapsed() < TIMEOUT + Duration::from_secs(4));
}

#[test]
fn all_differences_are_told_by_rank_in_one_error() {
    let with = |rank, settings: Settings| Member {
        settings: settings.to_agree_on(),
        ..member(rank, 20)
    };
    let mut world = World::new();
    world.start_many((0..20).filter(|rank| ![3, 7, 9].contains(rank)), 20);
    let small = Settings::default().with_buffer_bytes(8 << 20);
    let both = small.clone().with_connect_timeout(Duration::from_secs(7));
    for (rank, settings) in [(3, small.clone()), (7, both), (9, small)] {
        world.start_with(&ip(rank), with(rank, settings), key());
    }
    world.run();
    let all: Vec<usize> = (0..20).collect();
    world.assert_all_say(
        &all,
        ErrorKind::Mismatch,
        &[3, 7, 9],
        &[
            "HCOMM_BUFFER_BYTES is 8388608 at rank 3 (host node3, pid 103",
            "8388608 at rank 9 (host node9",
            "and 16777216 at all others (17, rank 0 among them)",
            "HCOMM_CONNECT_TIMEOUT is 7 at rank 7 (host node7",
            "and 120 at all others (19, rank 0 among them)",
        ],
    );
    assert!(world.elapsed() < Duration::from_secs(1));
}

/// Rank 0 is the odd one, and others are still to come.
#[test]
fn what_most_ranks_have_counts_as_right_and_nobody_is_waited_for_long() {
    let mut world = World::new();
    let odd = Settings::default().with_deterministic(true);
    let root = Member {
        settings: odd.to_agree_on(),
        ..member(0, 6)
    };
    world.start_with(&ip(0), root, key());
    world.start_many(1..5, 6);
    world.run_until(seconds(3));
    world.start_many([5], 6);
    world.run();
    world.assert_all_say(
        &[0, 1, 2, 3, 4, 5],
        ErrorKind::Mismatch,
        &[0],
        &["HCOMM_DETERMINISTIC is 1 at rank 0 (host node0, pid 100) and 0 at all others (4)"],
    );
    assert!(world.elapsed() < Duration::from_secs(3));
}
