//! `hosts`: two hosts made of network namespaces, with cables between them, and jobs on them.
//!
//! Needs root and the program `ip` (iproute2). The namespaces are `hcomm-a` and `hcomm-b`; what is
//! inside them ends with `hosts down`, or with the machine.

use std::io;
use std::process::{Child, Command, Stdio};

use crate::cargo::finish;
use crate::error::Error;

const NAMES: [&str; 2] = ["hcomm-a", "hcomm-b"];
const PORT: &str = "29500";

pub(crate) const HELP: &str = "\
usage: cargo xtask hosts up [--rails N] [--ipv6-only] [--rate RATE]
       cargo xtask hosts run RANKS PROGRAM [ARGUMENTS…]
       cargo xtask hosts down

up    makes the hosts hcomm-a and hcomm-b with a cable: eth0 with 10.77.0.1 and 10.77.0.2, fd77:0::1
      and fd77:0::2. --rails 2 makes a second one, eth1 with 10.77.1.1 and so on; --rate 1gbit slows
      each down, as `tc` understands it.
run   starts RANKS ranks of a program on each host and waits for them. Variables are passed on.
down  removes the hosts. `up` does so first.

For example: cargo xtask hosts up && cargo xtask hosts run 2 target/release/hcomm perf all_reduce";

/// What `up` makes.
struct Layout<'a> {
    rails: usize,
    has_v4: bool,
    rate: Option<&'a str>,
}

/// Does what the words say; `None` if they make no sense.
pub(crate) fn run(words: &[&str]) -> Option<Result<(), Error>> {
    match words {
        ["up", options @ ..] => Layout::read(options).map(|layout| layout.make()),
        ["down"] => Some(down()),
        ["run", ranks, program @ ..] if !program.is_empty() => {
            let ranks = ranks
                .parse()
                .ok()
                .filter(|ranks| (1..=1024).contains(ranks))?;
            Some(job(ranks, program))
        }
        _ => None,
    }
}

impl<'a> Layout<'a> {
    fn read(mut options: &[&'a str]) -> Option<Self> {
        let mut layout = Self {
            rails: 1,
            has_v4: true,
            rate: None,
        };
        loop {
            options = match options {
                [] => return Some(layout),
                ["--rails", rails, rest @ ..] => {
                    layout.rails = rails.parse().ok().filter(|n| (1..=8).contains(n))?;
                    rest
                }
                ["--ipv6-only", rest @ ..] => {
                    layout.has_v4 = false;
                    rest
                }
                ["--rate", rate, rest @ ..] => {
                    layout.rate = Some(rate);
                    rest
                }
                _ => return None,
            };
        }
    }

    fn make(&self) -> Result<(), Error> {
        down()?;
        for name in NAMES {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        for rail in 0..self.rails {
            self.cable(rail)?;
        }
        Ok(())
    }

    fn cable(&self, rail: usize) -> Result<(), Error> {
        let (eth, [a, b]) = (format!("eth{rail}"), NAMES);
        ip(&[
            "link", "add", "name", &eth, "netns", a, "type", "veth", "peer", "name", &eth, "netns",
            b,
        ])?;
        for (number, name) in (1..).zip(NAMES) {
            let (v4, v6) = (
                format!("10.77.{rail}.{number}/24"),
                format!("fd77:{rail}::{number}/64"),
            );
            if self.has_v4 {
                ip(&["-n", name, "addr", "add", &v4, "dev", &eth])?;
            }
            // It can be used at once: nobody else is there to have it.
            ip(&["-n", name, "addr", "add", &v6, "dev", &eth, "nodad"])?;
            ip(&["-n", name, "link", "set", &eth, "up"])?;
            if let Some(rate) = self.rate {
                let mut limit = Command::new("tc");
                limit.args(["-n", name, "qdisc", "add", "dev", &eth, "root", "tbf"]);
                finish(limit.args(["rate", rate, "burst", "128kb", "latency", "20ms"]))?;
            }
        }
        Ok(())
    }
}

fn ip(arguments: &[&str]) -> Result<(), Error> {
    finish(Command::new("ip").args(arguments))
}

/// Removes what is there.
fn down() -> Result<(), Error> {
    for name in NAMES {
        if std::path::Path::new("/run/netns").join(name).exists() {
            ip(&["netns", "del", name])?;
        }
    }
    Ok(())
}

/// Starts the ranks of a job on both hosts, and waits for all.
fn job(ranks: usize, program: &[&str]) -> Result<(), Error> {
    let has_v4 = Command::new("ip")
        .args(["-n", NAMES[0], "-4", "addr", "show", "dev", "eth0"])
        .output()
        .map_err(|cause| Error::Start("ip".into(), cause))?;
    if !has_v4.status.success() {
        return Err(Error::Missing(
            "there are no hosts: call `cargo xtask hosts up` first, as root".into(),
        ));
    }
    let root = if has_v4.stdout.is_empty() {
        "fd77:0::1"
    } else {
        "10.77.0.1"
    };
    let mut started: Vec<Child> = Vec::new();
    for rank in 0..2 * ranks {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", NAMES[rank / ranks]])
            .args(program)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", (2 * ranks).to_string())
            .env("LOCAL_RANK", (rank % ranks).to_string())
            .env("LOCAL_WORLD_SIZE", ranks.to_string())
            .env("MASTER_ADDR", root)
            .env("MASTER_PORT", PORT)
            .stdin(Stdio::null());
        if std::env::var_os("HCOMM_JOB_KEY").is_none() {
            // The namespaces have no way out.
            command.env("HCOMM_JOB_KEY", "cargo xtask hosts");
        }
        match command.spawn() {
            Ok(child) => started.push(child),
            Err(cause) => {
                for child in &mut started {
                    let _ = child.kill();
                }
                return Err(Error::Start(program[0].into(), cause));
            }
        }
    }
    let ends: Vec<io::Result<_>> = started.iter_mut().map(Child::wait).collect();
    for (rank, end) in ends.into_iter().enumerate() {
        let status = end.map_err(|cause| Error::Start(program[0].into(), cause))?;
        if !status.success() {
            return Err(Error::Missing(format!("rank {rank} ended with {status}")));
        }
    }
    Ok(())
}
