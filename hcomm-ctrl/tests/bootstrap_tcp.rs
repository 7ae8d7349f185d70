//! Start-up and mesh over real sockets of the loopback, with several ranks on one OS thread.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use hcomm_ctrl::{
    Bootstrap, JobKey, LinkState, Machine, Member, Mesh, MeshListener, Outside, RootAddress,
    RootInfo, RootListener, Roster, Settings, drive, drive_all,
};
use hcomm_transport::{Interest, SystemWaiter, WaitPolicy, Waiter};
use hcomm_types::{Deadline, Error, ErrorKind, HostId, Nanos, ProcessId, Rank, Result};

/// Ends a test that hangs; no test waits for it.
const WATCHDOG: Duration = Duration::from_secs(120);

fn waiter() -> SystemWaiter {
    SystemWaiter::new(WaitPolicy::for_load(4, 1)).unwrap()
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn member(rank: u32, size: u32, mesh: &[SocketAddr]) -> Member {
    Member {
        mesh: mesh.to_vec(),
        settings: Settings::default().to_agree_on(),
        facts: vec![7; 1000 * rank as usize],
        ..Member::new(
            Rank(rank),
            size,
            ProcessId {
                pid: std::process::id(),
                token: 1,
            },
            "localhost",
            HostId("boot".to_owned()),
        )
    }
}

/// A root with its root info, and `size - 1` joiners.
fn machines(size: u32, now: Nanos, meshes: &[MeshListener]) -> (RootInfo, Vec<Bootstrap>) {
    let outside = Outside::system();
    let listener = RootListener::bind(&outside, &Settings::default(), loopback(), &[]).unwrap();
    let info = listener.info().clone();
    let addresses = |rank: u32| meshes.get(rank as usize).map_or(&[][..], |m| m.addresses());
    let root = member(0, size, addresses(0));
    let root = Bootstrap::root(outside.clone(), listener, root, WATCHDOG, now);
    let mut machines = vec![root.unwrap()];
    for rank in 1..size {
        let joiner = member(rank, size, addresses(rank));
        machines.push(Bootstrap::join(outside.clone(), &info, joiner, WATCHDOG, now).unwrap());
    }
    (info, machines)
}

fn assert_same_rosters(results: Vec<Result<Roster>>, size: u32) -> Vec<Roster> {
    let rosters: Vec<Roster> = results.into_iter().collect::<Result<_>>().unwrap();
    assert_eq!(rosters.len(), size as usize);
    for roster in &rosters {
        assert_eq!(roster.session(), rosters[0].session());
        assert_eq!(roster.size(), size);
        for (rank, member) in (0u32..).zip(roster.members()) {
            assert_eq!(member.rank, Rank(rank));
            assert_eq!(member.facts, vec![7; 1000 * rank as usize]);
        }
    }
    rosters
}

#[test]
fn ranks_on_one_thread_get_the_same_roster() {
    let waiter = waiter();
    for size in [1, 2, 5, 16] {
        let (_, mut machines) = machines(size, waiter.now(), &[]);
        assert_same_rosters(drive_all(&waiter, &mut machines), size);
    }
}

/// Clients that disturb: garbage, silence, a hang-up in the middle, again and again until told to
/// stop.
fn disturb(at: SocketAddr, stop: &AtomicBool) {
    let says: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HCMC",
        b"\0\0\0\0\0\0\0\0",
        b"",
        &[0xff; 5000],
    ];
    let mut held = Vec::new();
    let mut round = 0;
    while !stop.load(Ordering::Acquire) && round < 400 {
        if let Ok(mut stream) = TcpStream::connect(at) {
            // The root may hang up at any moment; that is what it is for.
            let _ = stream.write_all(says[round % says.len()]);
            if round % 2 == 0 {
                held.push(stream);
            }
        }
        round += 1;
        std::thread::yield_now();
    }
}

#[test]
fn garbage_clients_disturb_nobody() {
    let waiter = waiter();
    for size in [2, 5, 16] {
        let (info, mut machines) = machines(size, waiter.now(), &[]);
        let stop = Arc::new(AtomicBool::new(false));
        let at = info.addresses()[0];
        // Some are there before anybody else.
        let mut first: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(at).unwrap()).collect();
        for stream in &mut first {
            stream.write_all(b"SSH-2.0-x\r\n").unwrap();
        }
        let strangers = {
            let stop = stop.clone();
            std::thread::spawn(move || disturb(at, &stop))
        };
        let results = drive_all(&waiter, &mut machines);
        stop.store(true, Ordering::Release);
        strangers.join().unwrap();
        assert_same_rosters(results, size);
    }
}

#[test]
fn ranks_on_their_own_threads_sleep_and_wake() {
    let size = 4;
    let now = waiter().now();
    let (_, machines) = machines(size, now, &[]);
    let threads: Vec<_> = machines
        .into_iter()
        .map(|mut machine| std::thread::spawn(move || drive(&waiter(), &mut machine)))
        .collect();
    let results = threads.into_iter().map(|t| t.join().unwrap()).collect();
    assert_same_rosters(results, size);
}

#[test]
fn a_wrong_size_is_told_in_the_same_words_over_real_sockets() {
    let waiter = waiter();
    let now = waiter.now();
    let (info, mut machines) = machines(4, now, &[]);
    let outside = Outside::system();
    machines[2] = Bootstrap::join(outside, &info, member(2, 5, &[]), WATCHDOG, now).unwrap();
    let errors: Vec<Error> = drive_all(&waiter, &mut machines)
        .into_iter()
        .map(Result::unwrap_err)
        .collect();
    for error in &errors {
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert_eq!(error.culprits(), [Rank(2)]);
        assert_eq!(error.detail(), errors[0].detail());
    }
}

#[test]
fn a_port_held_by_another_service_is_an_error_at_rank_0() {
    let service = TcpListener::bind(loopback()).unwrap();
    let at = service.local_addr().unwrap();
    let http = std::thread::spawn(move || {
        let (mut client, _) = service.accept().unwrap();
        let mut knock = [0; 16];
        client.read_exact(&mut knock).unwrap();
        client
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
    });
    let waiter = waiter();
    let root = RootAddress::new("127.0.0.1", at.port());
    let key = Some(JobKey::from_text("k"));
    let outside = Outside::system();
    let now = waiter.now();
    let mut root =
        Bootstrap::root_at(outside, &root, key, member(0, 2, &[]), WATCHDOG, now).unwrap();
    let error = drive(&waiter, &mut root).unwrap_err();
    http.join().unwrap();
    assert_eq!(error.kind(), ErrorKind::System);
    assert!(error.detail().contains(&at.to_string()), "{error}");
    assert!(error.detail().contains("HTTP/1.1 400"), "{error}");
}

#[test]
fn two_roots_at_one_port_learn_of_each_other() {
    // A port that was free a moment ago.
    let port = TcpListener::bind(loopback())
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let at = RootAddress::new("127.0.0.1", port);
    let waiter = waiter();
    let now = waiter.now();
    let key = || Some(JobKey::from_text("k"));
    let mut machines: Vec<Bootstrap> = (0..2)
        .map(|_| {
            let outside = Outside::system();
            Bootstrap::root_at(outside, &at, key(), member(0, 2, &[]), WATCHDOG, now).unwrap()
        })
        .collect();
    for result in drive_all(&waiter, &mut machines) {
        let error = result.unwrap_err();
        assert_eq!(
            (error.kind(), error.culprits()),
            (ErrorKind::Mismatch, &[Rank(0)][..])
        );
        assert!(
            error.detail().contains("two processes claim to be rank 0"),
            "{error}"
        );
    }
}

#[test]
fn an_old_root_info_fails_fast() {
    let waiter = waiter();
    let (info, mut machines) = machines(2, waiter.now(), &[]);
    assert_same_rosters(drive_all(&waiter, &mut machines), 2);
    drop(machines);
    let outside = Outside::system();
    let now = waiter.now();
    let mut again = Bootstrap::join(outside, &info, member(1, 2, &[]), WATCHDOG, now).unwrap();
    let error = drive(&waiter, &mut again).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(
        error.detail().contains("serves one communicator"),
        "{error}"
    );
}

/// Drives meshes until a condition holds.
struct Until<'a, F: FnMut(&mut [Mesh]) -> bool> {
    meshes: &'a mut [Mesh],
    holds: F,
}

impl<F: FnMut(&mut [Mesh]) -> bool> Machine for Until<'_, F> {
    type Output = ();

    fn poll(&mut self, now: Nanos) -> Poll<Result<()>> {
        for mesh in self.meshes.iter_mut() {
            if let Err(error) = mesh.poll(now) {
                return Poll::Ready(Err(error));
            }
        }
        if (self.holds)(self.meshes) {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    fn interests<'a>(&'a self, wanted: &mut Vec<Interest<'a>>) {
        for mesh in self.meshes.iter() {
            mesh.interests(wanted);
        }
    }

    fn next_wake(&self) -> Deadline {
        let wakes = self.meshes.iter().map(Mesh::next_wake);
        wakes.fold(Deadline::NEVER, Deadline::earlier)
    }
}

fn until(meshes: &mut [Mesh], holds: impl FnMut(&mut [Mesh]) -> bool) {
    drive(&waiter(), &mut Until { meshes, holds }).unwrap();
}

#[test]
fn a_mesh_links_all_pairs_and_says_goodbye() {
    let waiter = waiter();
    let size = 5;
    let outside = Outside::system();
    let listeners: Vec<MeshListener> = (0..size)
        .map(|_| MeshListener::bind(&outside, &Settings::default()).unwrap())
        .collect();
    let (_, mut machines) = machines(size, waiter.now(), &listeners);
    let rosters = assert_same_rosters(drive_all(&waiter, &mut machines), size);
    for roster in &rosters[1..] {
        // The address that rank 0 could not know is filled in.
        assert!(
            (0..size)
                .flat_map(|rank| roster.mesh_of(Rank(rank)))
                .all(|a| !a.ip().is_unspecified())
        );
    }
    let mut meshes: Vec<Mesh> = (0u32..)
        .zip(listeners)
        .map(|(rank, listener)| {
            Mesh::new(
                outside.clone(),
                listener,
                &rosters[rank as usize],
                Rank(rank),
            )
        })
        .collect();
    let pairs = || {
        (0..size)
            .flat_map(move |a| (0..size).map(move |b| (a, b)))
            .filter(|(a, b)| a != b)
    };
    for (rank, peer) in pairs() {
        let body = rank.to_le_bytes();
        meshes[rank as usize].send(Rank(peer), 3, body).unwrap();
    }
    let mut left: Vec<(u32, u32)> = pairs().collect();
    until(&mut meshes, |meshes| {
        left.retain(
            |&(rank, peer)| match meshes[rank as usize].receive(Rank(peer)) {
                None => true,
                Some(message) => {
                    assert_eq!(message, (3, peer.to_le_bytes().to_vec()));
                    false
                }
            },
        );
        left.is_empty()
    });
    meshes[4].close();
    meshes[3].abort(ErrorKind::LimitReached, &[Rank(1)], "no more memory");
    drop(meshes.pop());
    drop(meshes.pop());
    until(&mut meshes, |meshes| {
        meshes.iter().all(|mesh| {
            let gave_up = matches!(mesh.state(Rank(3)), LinkState::Aborted { culprits, .. } if *culprits == [Rank(1)]);
            *mesh.state(Rank(4)) == LinkState::Closed && gave_up
        })
    });
}
