//! Links between ranks, over a network and a clock inside the test.

use hcomm_types::{HostId, ProcessId};

use super::*;
use crate::bootstrap::Member;
use crate::fake_network::Fabric;
use crate::job_key::{JobKey, SessionId};

const START: Nanos = Nanos(1_000_000_000);

struct World {
    fabric: Fabric,
    now: Nanos,
    meshes: Vec<Option<Mesh>>,
}

fn ip(rank: usize) -> String {
    format!("10.0.0.{}", rank + 1)
}

impl World {
    fn new(size: usize) -> Self {
        let fabric = Fabric::new(Duration::from_millis(1));
        let listeners: Vec<MeshListener> = (0..size)
            .map(|rank| {
                let address = [ip(rank).parse().unwrap()];
                MeshListener::listen(&fabric.host(&ip(rank)), false, &address).unwrap()
            })
            .collect();
        let members = listeners.iter().enumerate().map(|(rank, listener)| Member {
            mesh: listener.addresses().to_vec(),
            ..Member::new(
                Rank::from_index(rank),
                u32::try_from(size).unwrap(),
                ProcessId { pid: 1, token: 1 },
                "h",
                HostId("h".to_owned()),
            )
        });
        let roster = Roster::new(SessionId([7; 16]), members.collect(), JobKey::public());
        let meshes = listeners
            .into_iter()
            .enumerate()
            .map(|(rank, listener)| {
                let outside = fabric.host(&ip(rank));
                Some(Mesh::new(
                    outside,
                    listener,
                    &roster,
                    Rank::from_index(rank),
                ))
            })
            .collect();
        Self {
            fabric,
            now: START,
            meshes,
        }
    }

    fn at(&mut self, rank: u32) -> &mut Mesh {
        self.meshes[rank as usize].as_mut().unwrap()
    }

    fn state(&self, rank: u32, peer: u32) -> LinkState {
        self.meshes[rank as usize]
            .as_ref()
            .unwrap()
            .state(Rank(peer))
            .clone()
    }

    /// Lets time pass.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.fabric.set_now(self.now);
            loop {
                let before = self.fabric.events();
                for mesh in self.meshes.iter_mut().flatten() {
                    mesh.poll(self.now).unwrap();
                }
                if self.fabric.events() == before {
                    break;
                }
            }
            let wakes = self.meshes.iter().flatten();
            let wakes = wakes.filter_map(|mesh| mesh.next_wake().moment());
            match wakes.chain(self.fabric.next_arrival()).min() {
                Some(next) if next < end => self.now = next.max(Nanos(self.now.0 + 1)),
                _ => break,
            }
        }
        self.now = end;
    }

    fn linked(size: usize) -> Self {
        let mut world = Self::new(size);
        let size = u32::try_from(size).unwrap();
        for rank in 0..size {
            for peer in (0..size).filter(|&peer| peer != rank) {
                world.at(rank).request(Rank(peer)).unwrap();
            }
        }
        world.run(Duration::from_millis(100));
        for rank in 0..size {
            for peer in (0..size).filter(|&peer| peer != rank) {
                assert_eq!(world.state(rank, peer), LinkState::Up);
            }
        }
        world
    }
}

#[test]
fn all_pairs_link_and_messages_keep_their_order() {
    let mut world = World::linked(4);
    world.fabric.dribble(5);
    for rank in 0..4u32 {
        for peer in (0..4u32).filter(|&peer| peer != rank) {
            for number in 0..3u8 {
                let body = [u8::try_from(rank).unwrap(), number];
                world
                    .at(rank)
                    .send(Rank(peer), 40 + u16::from(number), body)
                    .unwrap();
            }
        }
    }
    world.run(Duration::from_secs(1));
    for rank in 0..4u32 {
        for peer in (0..4u32).filter(|&peer| peer != rank) {
            for number in 0..3u8 {
                let body = vec![u8::try_from(peer).unwrap(), number];
                let expected = Some((40 + u16::from(number), body));
                assert_eq!(world.at(rank).receive(Rank(peer)), expected);
            }
            assert_eq!(world.at(rank).receive(Rank(peer)), None);
        }
    }
}

#[test]
fn a_link_that_came_before_it_was_asked_for_is_kept() {
    let mut world = World::new(2);
    world.at(0).send(Rank(1), 1, b"early").unwrap();
    assert_eq!(world.state(0, 1), LinkState::Connecting);
    assert_eq!(world.state(1, 0), LinkState::NotAsked);
    world.run(Duration::from_secs(1));
    assert_eq!(world.state(0, 1), LinkState::Up);
    world.at(1).request(Rank(0)).unwrap();
    assert_eq!(world.state(1, 0), LinkState::Up);
    assert_eq!(world.at(1).receive(Rank(0)), Some((1, b"early".to_vec())));
}

#[test]
fn a_higher_rank_that_asks_first_waits_and_says_for_whom() {
    let mut world = World::new(2);
    world.at(1).send(Rank(0), 2, b"x").unwrap();
    world.run(Duration::from_secs(30));
    assert_eq!(world.state(1, 0), LinkState::Connecting);
    let now = world.now;
    assert!(
        world
            .at(1)
            .describe(Rank(0), now)
            .contains("rank 0 has not connected")
    );
    world.at(0).request(Rank(1)).unwrap();
    world.run(Duration::from_secs(1));
    assert_eq!(world.at(0).receive(Rank(1)), Some((2, b"x".to_vec())));
}

#[test]
fn large_messages_flow_through_small_pipes() {
    let mut world = World::linked(2);
    let body: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    world.at(0).send(Rank(1), 9, &body).unwrap();
    world.run(Duration::from_secs(10));
    assert_eq!(world.at(1).receive(Rank(0)), Some((9, body)));
    let too_long = vec![0; MAX_MESSAGE_BYTES + 1];
    let refused = world.at(0).send(Rank(1), 9, &too_long).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_goodbye_is_told_from_a_loss_and_leaves_messages_readable() {
    let mut world = World::linked(3);
    world.at(1).send(Rank(0), 5, b"last").unwrap();
    world.at(1).close();
    world.meshes[1] = None;
    world.meshes[2] = None; // died without a word
    world.run(Duration::from_secs(1));
    assert_eq!(world.state(0, 1), LinkState::Closed);
    assert!(matches!(world.state(0, 2), LinkState::Lost { .. }));
    assert_eq!(world.at(0).receive(Rank(1)), Some((5, b"last".to_vec())));
    for peer in [1, 2] {
        let error = world.at(0).send(Rank(peer), 1, b"").unwrap_err();
        assert_eq!(
            (error.kind(), error.culprits()),
            (ErrorKind::PeerLost, &[Rank(peer)][..])
        );
    }
}

#[test]
fn an_abort_is_readable_after_its_sender_is_dead() {
    let mut world = World::linked(2);
    world
        .at(1)
        .abort(ErrorKind::LimitReached, &[Rank(0)], "out of memory");
    world.meshes[1] = None;
    world.run(Duration::from_secs(1));
    let expected = LinkState::Aborted {
        kind: ErrorKind::LimitReached,
        culprits: vec![Rank(0)],
        text: "out of memory".to_owned(),
    };
    assert_eq!(world.state(0, 1), expected);
}

#[test]
fn a_peer_that_has_left_before_it_was_asked_for_is_lost() {
    let mut world = World::new(2);
    world.meshes[1] = None;
    world.at(0).request(Rank(1)).unwrap();
    world.run(Duration::from_secs(3));
    let LinkState::Lost { why } = world.state(0, 1) else {
        panic!("{:?}", world.state(0, 1));
    };
    assert!(why.contains("nobody listens at 10.0.0.2:"), "{why}");
}

#[test]
fn changed_bytes_cost_the_link_and_never_pass() {
    let mut world = World::linked(2);
    world.fabric.corrupt(&ip(0));
    world.at(0).send(Rank(1), 1, b"hello").unwrap();
    world.run(Duration::from_secs(1));
    assert!(matches!(world.state(1, 0), LinkState::Lost { .. }));
    assert_eq!(world.at(1).receive(Rank(0)), None);
}

#[test]
fn strangers_and_other_sessions_do_not_get_in() {
    let mut world = World::new(2);
    let at = world.meshes[1]
        .as_ref()
        .unwrap()
        .door
        .as_ref()
        .unwrap()
        .local_addr();
    let outside = world.fabric.host("10.9.9.9");
    let mut garbage = outside.network.connect(at).unwrap();
    garbage.write(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut calls = Vec::new();
    for (key, session, purpose) in [
        (
            JobKey::from_text("wrong"),
            Some(SessionId([7; 16])),
            Purpose::Mesh,
        ),
        (JobKey::public(), Some(SessionId([8; 16])), Purpose::Mesh),
        (JobKey::public(), None, Purpose::Bootstrap),
    ] {
        let call = dial::Call {
            target: Target::Fixed(vec![at]),
            base: *key.as_bytes(),
            session,
            purpose,
            own: Rank(0),
            peer: Rank(1),
        };
        calls.push((Dial::new(outside.clone(), call), None));
    }
    let mut wires = Vec::new();
    for _ in 0..100 {
        for (dial, answer) in &mut calls {
            if let Some(mut got) = dial.poll(world.now) {
                if let Answer::Challenged(wire) = &mut got {
                    wire.send(FrameType::Hello, Vec::new());
                }
                *answer = Some(got);
            }
            if let Some(Answer::Challenged(wire)) = answer {
                let _ = wire.flush();
                wires.extend(wire.receive().ok().flatten());
            }
        }
        world.run(Duration::from_millis(1));
    }
    assert_eq!(wires.len(), 1, "one is told that its key is wrong");
    assert_eq!(wires[0].kind, FrameType::Refusal);
    assert!(matches!(calls[1].1, Some(Answer::OtherSession(_))));
    assert!(matches!(
        calls[2].1,
        Some(Answer::Refused(_, crate::wire::Refusal::WrongPurpose))
    ));
    assert_eq!(world.state(1, 0), LinkState::NotAsked);
    world.at(0).request(Rank(1)).unwrap();
    world.run(Duration::from_secs(1));
    assert_eq!(world.state(1, 0), LinkState::Up);
}

#[test]
fn impossible_peers_and_closed_meshes_are_errors() {
    let mut world = World::new(2);
    for peer in [0, 2] {
        let error = world.at(0).request(Rank(peer)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    world.at(0).close();
    let error = world.at(0).request(Rank(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}
