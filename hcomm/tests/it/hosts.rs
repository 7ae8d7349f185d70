//! Two hosts: network namespaces with a cable between them, two ranks in each.
//!
//! The namespaces have names of this test process and end with the test. They need root and the
//! program `ip`; without those the tests say so and pass, but not under CI, and `cargo xtask test` tells
//! at its end that they have tested nothing. `cargo xtask hosts` makes the same by hand.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use hcomm::{Communicator, ReduceOp};
use rustix::process::Signal;

use crate::death::{all_name, all_up};
use crate::job::{Job, Process, all_succeed};
use crate::random::Random;

/// Ranks of each host.
const RANKS_A_HOST: u32 = 2;
const RANKS: u32 = 2 * RANKS_A_HOST;

/// Two namespaces.
pub(crate) struct Hosts {
    pub(crate) names: [String; 2],
    /// Where rank 0 is reached.
    root: &'static str,
}

fn ip(arguments: &str) {
    assert_eq!(call("ip", arguments), Ok(()));
}

/// What a program says if it fails.
fn call(program: &str, arguments: &str) -> Result<(), String> {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {arguments}: {words}"))
}

impl Hosts {
    /// Two hosts without a cable; `None`, with a message, where they cannot be made.
    pub(crate) fn bare(root: &'static str) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let is_root = rustix::process::geteuid().is_root();
        if !is_root || Command::new("ip").arg("-V").output().is_err() {
            let why = "network namespaces need root and the program `ip` (iproute2)";
            assert!(std::env::var_os("CI").is_none(), "not to be skipped: {why}");
            eprintln!("skipped: {why}");
            return None;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = |host: &str| format!("hcomm-it-{}-{number}-{host}", std::process::id());
        let hosts = Self {
            names: [name("a"), name("b")],
            root,
        };
        for name in &hosts.names {
            ip(&format!("netns add {name}"));
            ip(&format!("-n {name} link set lo up"));
        }
        Some(hosts)
    }

    /// Two hosts with one cable, an address of each family at both ends.
    fn new() -> Option<Self> {
        let hosts = Self::bare("10.77.0.1")?;
        hosts.cable("eth0", ["10.77.0.1/24", "10.77.0.2/24"]);
        hosts.address("eth0", ["fd77::1/64", "fd77::2/64"]);
        Some(hosts)
    }

    /// A cable between both.
    pub(crate) fn cable(&self, name: &str, addresses: [&str; 2]) {
        let [a, b] = &self.names;
        ip(&format!(
            "link add name {name} netns {a} type veth peer name {name} netns {b}"
        ));
        self.address(name, addresses);
        for host in &self.names {
            ip(&format!("-n {host} link set {name} up"));
        }
    }

    fn address(&self, interface: &str, addresses: [&str; 2]) {
        for (host, address) in self.names.iter().zip(addresses) {
            let is_v6 = address.contains(':');
            // It can be used at once: nobody else is there to have it.
            let more = if is_v6 { "nodad" } else { "" };
            ip(&format!(
                "-n {host} addr add {address} dev {interface} {more}"
            ));
        }
    }

    /// Has the cable of an interface treat packets in a way, at both ends.
    ///
    /// # Errors
    /// The kernel, or the machine, lacks what that needs.
    fn shape(&self, interface: &str, commands: &[&str]) -> Result<(), String> {
        for host in &self.names {
            for command in commands {
                let (object, rest) = command.split_once(' ').expect("an object and a verb");
                let (verb, rest) = rest.split_once(' ').expect("a verb and more");
                call(
                    "tc",
                    &format!("-n {host} {object} {verb} dev {interface} {rest}"),
                )?;
            }
        }
        Ok(())
    }

    /// A job whose first ranks are on the first host.
    fn start(&self, job: &Job) -> Vec<Process> {
        (0..RANKS)
            .map(|rank| {
                let host = &self.names[(rank / RANKS_A_HOST) as usize];
                let inner = job.command(rank);
                let mut command = Command::new("ip");
                command.args(["netns", "exec", host]);
                command.arg(inner.get_program()).args(inner.get_args());
                for (name, value) in inner.get_envs() {
                    match value {
                        Some(value) => command.env(name, value),
                        None => command.env_remove(name),
                    };
                }
                command
                    .env("LOCAL_RANK", (rank % RANKS_A_HOST).to_string())
                    .env("LOCAL_WORLD_SIZE", RANKS_A_HOST.to_string())
                    .env("MASTER_ADDR", self.root)
                    .env("MASTER_PORT", "29500");
                Process::start(format!("rank {rank}"), command)
            })
            .collect()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // What is in it ends with its processes, which have ended before.
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// What rank programs do here; see [`crate::programs`].
pub(crate) fn program(comm: &Communicator) {
    let reach = |peer: u32| {
        let choice = comm.graph().links(comm.rank(), hcomm::Rank(peer));
        choice[0].protocol.to_string()
    };
    let host = comm.rank().0 / RANKS_A_HOST;
    for peer in (0..comm.size()).filter(|peer| *peer != comm.rank().0) {
        let expected = if peer / RANKS_A_HOST == host {
            "shm"
        } else {
            "tcp"
        };
        assert_eq!(reach(peer), expected, "rank {peer}");
    }
    assert_eq!(comm.links_in_use(), ["shm", "tcp"]);
    crate::collectives::all_reduce::<f32>(comm, ReduceOp::Sum, 4 << 20, false);
}

#[test]
fn all_collectives_between_two_hosts() {
    let Some(hosts) = Hosts::new() else { return };
    all_succeed(&mut hosts.start(&Job::new("collectives", RANKS)));
    all_succeed(&mut hosts.start(&Job::new("hosts", RANKS)));
}

#[test]
fn messages_between_two_hosts() {
    let Some(hosts) = Hosts::new() else { return };
    all_succeed(&mut hosts.start(&Job::new("messages", RANKS)));
    let mixture = Job::new("mixture", RANKS).set("ITEST_SEED", 5);
    all_succeed(&mut hosts.start(&mixture));
}

#[test]
fn hosts_with_ipv6_only() {
    let Some(hosts) = Hosts::bare("fd77::1") else {
        return;
    };
    hosts.cable("eth0", ["fd77::1/64", "fd77::2/64"]);
    all_succeed(&mut hosts.start(&Job::new("hosts", RANKS)));
}

#[test]
fn interfaces_with_other_names_and_a_bridge_that_both_hosts_have() {
    let Some(hosts) = Hosts::bare("10.77.0.1") else {
        return;
    };
    for host in &hosts.names {
        ip(&format!("-n {host} link add docker0 type bridge"));
        ip(&format!("-n {host} addr add 172.17.0.1/16 dev docker0"));
        ip(&format!("-n {host} link set docker0 up"));
    }
    hosts.cable("wire", ["10.77.0.1/24", "10.77.0.2/24"]);
    let [_, b] = &hosts.names;
    ip(&format!("-n {b} link set wire down"));
    ip(&format!("-n {b} link set wire name other"));
    ip(&format!("-n {b} link set other up"));
    all_succeed(&mut hosts.start(&Job::new("hosts", RANKS)));
}

#[test]
fn killing_a_rank_is_told_on_both_hosts() {
    let Some(hosts) = Hosts::new() else { return };
    let mut random = Random::new(77);
    for victim in 0..RANKS as usize {
        let mut ranks = hosts.start(&Job::new("loop", RANKS));
        all_up(&ranks);
        let moment = Duration::from_micros(random.below(40_000) as u64);
        thread::sleep(moment);
        ranks[victim].signal(Signal::KILL);
        all_name(
            &mut ranks,
            victim,
            &format!("rank {victim} after {moment:?}"),
        );
    }
}

/// Every rank ends with an error of the kind of a lost link that names somebody, and on each host one
/// names a rank of the other.
#[track_caller]
fn each_host_blames_the_other(ranks: &mut [Process]) {
    let mut blames = [false; 2];
    for (rank, process) in ranks.iter_mut().enumerate() {
        let report = process.wait_for_error();
        let known = ["Timeout", "PeerLost", "LinkDown"];
        assert!(known.contains(&report.kind.as_str()), "{report:?}");
        assert!(!report.culprits.is_empty(), "{report:?}");
        let mine = rank as u32 / RANKS_A_HOST;
        let elsewhere = |culprit: &u64| *culprit as u32 / RANKS_A_HOST != mine;
        println!("rank {rank}: {report:?}");
        blames[mine as usize] |= report.culprits.iter().any(elsewhere);
    }
    assert_eq!(blames, [true; 2]);
}

/// Cuts the cable of the links while ranks work.
#[track_caller]
fn cut_the_cable(hosts: &Hosts) {
    let job = Job::new("loop", RANKS).set("HCOMM_EXEC_TIMEOUT", 2);
    let mut ranks = hosts.start(&job);
    all_up(&ranks);
    ip(&format!("-n {} link set eth0 down", hosts.names[0]));
    each_host_blames_the_other(&mut ranks);
}

#[test]
fn a_cut_cable_is_an_error_on_both_hosts() {
    let Some(hosts) = Hosts::new() else { return };
    cut_the_cable(&hosts);
}

/// A second cable that is not in use may go; that of the links may not.
#[test]
fn of_two_cables_one_is_cut() {
    let Some(hosts) = Hosts::new() else { return };
    hosts.cable("eth1", ["10.78.0.1/24", "10.78.0.2/24"]);
    let mut ranks = hosts.start(&Job::new("collectives", RANKS));
    ip(&format!("-n {} link set eth1 down", hosts.names[1]));
    all_succeed(&mut ranks);
    ip(&format!("-n {} link set eth1 up", hosts.names[1]));
    cut_the_cable(&hosts);
}

/// A rank that is stopped looks like one that computes: its peers wait until their deadline, and blame
/// the one that has not said that it waits, whomever they wait for.
#[test]
fn a_stopped_rank_is_told_at_the_deadline() {
    let Some(hosts) = Hosts::new() else { return };
    for victim in [1, 2] {
        let job = Job::new("loop", RANKS).set("HCOMM_EXEC_TIMEOUT", 2);
        let mut ranks = hosts.start(&job);
        all_up(&ranks);
        ranks[victim].signal(Signal::STOP);
        for rank in (0..RANKS as usize).filter(|rank| *rank != victim) {
            let report = ranks[rank].wait_for_error();
            println!("rank {rank}: {report:?}");
            assert_eq!(report.kind, "Timeout", "{report:?}");
            assert_eq!(report.culprits, [victim as u64], "{report:?}");
        }
        ranks[victim].signal(Signal::KILL);
    }
}

#[test]
fn hosts_with_packets_of_different_lengths() {
    let Some(hosts) = Hosts::new() else { return };
    let [a, _] = &hosts.names;
    ip(&format!("-n {a} link set eth0 mtu 9000"));
    all_succeed(&mut hosts.start(&Job::new("hosts", RANKS)));
}

#[test]
fn a_slow_cable() {
    let Some(hosts) = Hosts::new() else { return };
    let slow = ["qdisc add root tbf rate 500mbit burst 128kb latency 20ms"];
    if let Err(why) = hosts.shape("eth0", &slow) {
        eprintln!("skipped: {why}");
        return;
    }
    all_succeed(&mut hosts.start(&Job::new("hosts", RANKS)));
}

/// Only the port of rank 0 is open: the others cannot reach each other, and say where.
#[test]
fn a_firewall_that_drops_packets_is_told() {
    let Some(hosts) = Hosts::new() else { return };
    // What goes into the second class finds a queue that is too short for any packet.
    let firewall = [
        "qdisc add root handle 1: htb default 2",
        "class add parent 1: classid 1:1 htb rate 10gbit",
        "class add parent 1: classid 1:2 htb rate 10gbit",
        "qdisc add parent 1:2 bfifo limit 1",
        "filter add protocol arp parent 1: u32 match u32 0 0 flowid 1:1",
        "filter add protocol ip parent 1: u32 match ip dport 29500 0xffff flowid 1:1",
        "filter add protocol ip parent 1: u32 match ip sport 29500 0xffff flowid 1:1",
    ];
    if let Err(why) = hosts.shape("eth0", &firewall) {
        eprintln!("skipped: {why}");
        return;
    }
    let job = Job::new("join", RANKS).set("HCOMM_CONNECT_TIMEOUT", 5);
    for process in &mut hosts.start(&job) {
        let report = process.wait_for_error();
        println!("{report:?}");
        assert_eq!(report.stage, "init");
        assert_eq!(report.kind, "Timeout", "{report:?}");
        assert!(!report.culprits.is_empty(), "{report:?}");
    }
}

#[test]
fn networks_that_do_not_reach_each_other_are_told() {
    let Some(hosts) = Hosts::bare("10.77.0.1") else {
        return;
    };
    hosts.cable("eth0", ["10.77.0.1/24", "10.77.0.2/24"]);
    hosts.cable("data0", ["10.78.0.1/24", "10.79.0.1/24"]);
    let job = Job::new("join", RANKS)
        .set("HCOMM_SOCKET_IFNAME", "data")
        .set("HCOMM_CONNECT_TIMEOUT", 5);
    for process in &mut hosts.start(&job) {
        let report = process.wait_for_error();
        println!("{report:?}");
        assert_eq!(report.stage, "init");
        // Who dials knows the address, the other side only who has not come.
        let text = &report.text;
        let dials = text.contains("10.78.0.1") || text.contains("10.79.0.1");
        assert!(
            dials || text.contains("has not connected to rank"),
            "{text}"
        );
    }
}
