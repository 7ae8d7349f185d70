//! How long a transfer takes until it has landed, by the way in which the bytes move: `cargo bench
//! -p hcomm-transport-shm`. One line a size; medians, in microseconds.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench prints, and ends where something is not as it should be"
)]

#[path = "../tests/rig/mod.rs"]
mod rig;

use std::time::{Duration, Instant};

use hcomm_transport_abi::{DescriptorV1, OP_READ, OP_READ_REDUCE, OP_WRITE, OP_WRITE_REDUCE};
use rig::agent::{self, Agent, unhex};
use rig::{Device, End, Remote, connect_pair, reducing, transfer};

const SIZES: [usize; 9] = [
    8,
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
];
const LARGEST: usize = SIZES[SIZES.len() - 1];

fn main() {
    if agent::is_asked_for() {
        return agent::serve();
    }
    // A device, an end and the peer's memory for each way; the agents share the cores, so all but
    // the one that is measured stand still.
    let mut ways: Vec<(&str, Device, End, Option<Agent>, Remote)> = Vec::new();
    for (name, what, stages) in [
        ("direct", "register", false),
        ("ring", "register", true),
        ("mapped", "allocate", false),
    ] {
        let mut agent = Agent::start();
        let device = Device::open();
        if stages {
            hcomm_transport_shm::hook::stage(&device.0);
        }
        let end = device.channel(1);
        agent.connect(&device, &end, 1);
        let blob = unhex(&agent.ask(&format!("{what} {LARGEST} 1")));
        let remote = end.import(&blob, || {
            device.progress();
        });
        agent.ask("still");
        ways.push((name, device, end, Some(agent), remote.unwrap()));
    }
    let device = Device::open();
    let (end, far) = (device.channel(1), device.channel(1));
    connect_pair(&end, &far);
    let memory = device.register(LARGEST);
    let remote = end.import(&device.export(&memory), || ()).unwrap();
    ways.push(("threads", device, end, None, remote));

    let names: Vec<&str> = ways.iter().map(|way| way.0).collect();
    println!("{:>13} {:>9}  {}", "", "bytes", names.join(" · "));
    let mut local = vec![1_u8; LARGEST];
    for (name, opcode) in [
        ("write", OP_WRITE),
        ("read", OP_READ),
        ("write_reduce", OP_WRITE_REDUCE),
        ("read_reduce", OP_READ_REDUCE),
    ] {
        for size in SIZES {
            let mut row = Vec::new();
            for (way, device, end, agent, remote) in &mut ways {
                if let Some(agent) = agent.as_mut().filter(|_| *way == "ring") {
                    agent.ask("go");
                }
                let one = reducing(transfer(opcode, local.as_mut_ptr(), remote, 0, size), 2, 0);
                row.push(format!("{:.2}", median(device, end, one)));
                if let Some(agent) = agent.as_mut().filter(|_| *way == "ring") {
                    agent.ask("still");
                }
            }
            println!("{name:>13} {size:>9}  {}", row.join(" · "));
        }
    }
}

/// Microseconds of one transfer, from the call to its completion.
fn median(device: &Device, end: &End, one: DescriptorV1) -> f64 {
    let mut times = Vec::new();
    let begun = Instant::now();
    while times.len() < 5 || (times.len() < 2000 && begun.elapsed() < Duration::from_millis(60)) {
        let start = Instant::now();
        assert_eq!(end.finish(device, one), 0);
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 2].as_nanos() as f64 / 1e3
}
