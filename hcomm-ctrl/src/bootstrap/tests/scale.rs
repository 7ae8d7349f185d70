//! What start-up costs with many ranks: messages, bytes, connections and time, over real sockets and
//! over the network inside the test. `cargo xtask start-up` prints the table of PERFORMANCE.md.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use hcomm_transport::{SystemWaiter, WaitPolicy, Waiter};

use super::*;
use crate::frame::{HEADER_BYTES, MAC_BYTES};
use crate::machine::drive_all;
use crate::net::{Network, TcpNetwork};

/// Bytes that a rank says about itself beside names and addresses, over shm and tcp; and about its
/// host, of two cores.
const FACTS_BYTES: usize = 700;
const HOST_FACTS_BYTES: usize = 1600;
/// Ranks with real sockets of one OS thread.
const PER_THREAD: u32 = 8;

/// Where rank 0 of a simulation is; the others follow.
const FIRST_IP: u32 = 0x0a00_0001;
/// Least step of simulated time.
const TICK: Duration = Duration::from_millis(1);

/// The rank of a simulation at an address.
fn rank_at(ip: IpAddr) -> u32 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip) - FIRST_IP,
        IpAddr::V6(ip) => panic!("{ip} is no rank's"),
    }
}

/// What went through the sockets of one rank.
#[derive(Debug, Default)]
struct Tally {
    /// Frames and bytes, sent and received.
    frames: AtomicU64,
    bytes: AtomicU64,
    /// Connections.
    open: AtomicU64,
    most_open: AtomicU64,
}

/// Counts frames in a stream of bytes, however it is cut.
#[derive(Default)]
struct Frames {
    header: Vec<u8>,
    skip: usize,
}

impl Frames {
    fn count(&mut self, mut bytes: &[u8]) -> u64 {
        let mut frames = 0;
        while !bytes.is_empty() {
            if self.skip > 0 {
                let taken = self.skip.min(bytes.len());
                self.skip -= taken;
                bytes = &bytes[taken..];
                continue;
            }
            let taken = (HEADER_BYTES - self.header.len()).min(bytes.len());
            self.header.extend(&bytes[..taken]);
            bytes = &bytes[taken..];
            if let [_, _, _, _, _, _, t0, t1, _, _, _, _, length @ ..] = &self.header[..]
                && let Ok(length) = length.try_into()
            {
                let kind = FrameType::from_number(u16::from_le_bytes([*t0, *t1])).unwrap();
                let mac = if kind.is_sealed() { MAC_BYTES } else { 0 };
                self.skip = u32::from_le_bytes(length) as usize + mac;
                self.header.clear();
                frames += 1;
            }
        }
        frames
    }
}

struct Counting {
    network: Arc<dyn Network>,
    tally: Arc<Tally>,
}

struct CountingListener(Box<dyn Listener>, Arc<Tally>);

struct CountingStream {
    stream: Box<dyn Stream>,
    tally: Arc<Tally>,
    sent: Frames,
    received: Frames,
}

impl CountingStream {
    fn boxed(stream: Box<dyn Stream>, tally: &Arc<Tally>) -> Box<dyn Stream> {
        let open = tally.open.fetch_add(1, Relaxed) + 1;
        tally.most_open.fetch_max(open, Relaxed);
        Box::new(Self {
            stream,
            tally: Arc::clone(tally),
            sent: Frames::default(),
            received: Frames::default(),
        })
    }
}

impl Drop for CountingStream {
    fn drop(&mut self) {
        self.tally.open.fetch_sub(1, Relaxed);
    }
}

impl Network for Counting {
    fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>> {
        let listener = self.network.listen(at)?;
        Ok(Box::new(CountingListener(
            listener,
            Arc::clone(&self.tally),
        )))
    }

    fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Stream>> {
        let stream = self.network.connect(to)?;
        Ok(CountingStream::boxed(stream, &self.tally))
    }

    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        self.network.resolve(host, port)
    }
}

impl Listener for CountingListener {
    fn accept(&mut self) -> io::Result<Option<(Box<dyn Stream>, SocketAddr)>> {
        let accepted = self.0.accept()?;
        Ok(accepted.map(|(stream, peer)| (CountingStream::boxed(stream, &self.1), peer)))
    }

    fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }
}

impl Stream for CountingStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let read = self.stream.read(buffer)?;
        if let Some(count) = read {
            let frames = self.received.count(&buffer[..count]);
            self.tally.frames.fetch_add(frames, Relaxed);
            self.tally.bytes.fetch_add(count as u64, Relaxed);
        }
        Ok(read)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let written = self.stream.write(bytes)?;
        if let Some(count) = written {
            let frames = self.sent.count(&bytes[..count]);
            self.tally.frames.fetch_add(frames, Relaxed);
            self.tally.bytes.fetch_add(count as u64, Relaxed);
        }
        Ok(written)
    }

    fn connected(&mut self) -> io::Result<bool> {
        self.stream.connected()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.stream.peer_addr()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.stream.fd()
    }
}

/// What one start-up came to.
struct Outcome {
    size: u32,
    time: Duration,
    tallies: Vec<Arc<Tally>>,
}

impl Outcome {
    fn most(&self, of: impl Fn(&Tally) -> &AtomicU64) -> u64 {
        let others = self.tallies[1..].iter();
        others.map(|tally| of(tally).load(Relaxed)).max().unwrap()
    }

    fn print(&self, how: &str, real: Duration) {
        let root = &self.tallies[0];
        println!(
            "| {how} | {} | {:.3} | {} | {:.1} | {} | {:.1} | {:.0} | {} | {} | {:.1} |",
            self.size,
            self.time.as_secs_f64(),
            self.most(|tally| &tally.frames),
            root.frames.load(Relaxed) as f64 / f64::from(self.size),
            root.frames.load(Relaxed),
            self.most(|tally| &tally.bytes) as f64 / 1e6,
            self.most(|tally| &tally.bytes) as f64 / f64::from(self.size),
            root.most_open.load(Relaxed),
            self.most(|tally| &tally.most_open),
            real.as_secs_f64(),
        );
    }
}

/// A rank of hosts with so many ranks each.
fn member_at(rank: u32, size: u32, per_host: u32, facts: usize) -> Member {
    Member {
        mesh: vec!["0.0.0.0:7000".parse().unwrap()],
        settings: Settings::default().to_agree_on(),
        facts: vec![7; facts],
        host_facts: vec![7; HOST_FACTS_BYTES].into(),
        ..Member::new(
            Rank(rank),
            size,
            ProcessId {
                pid: 100 + rank,
                token: u64::from(rank),
            },
            "node",
            HostId(format!("host {}", rank / per_host)),
        )
    }
}

/// All ranks in this process, over sockets of the loopback.
fn over_sockets(size: u32) -> Outcome {
    let key = JobKey::from_text("scale");
    let tallies: Vec<Arc<Tally>> = (0..size).map(|_| Arc::default()).collect();
    let outsides: Vec<Outside> = tallies
        .iter()
        .map(|tally| {
            let network = Arc::new(Counting {
                network: Arc::new(TcpNetwork),
                tally: Arc::clone(tally),
            });
            // Each as in a process of its own: nothing is shared.
            Outside::new(network, Outside::system().random)
        })
        .collect();
    let settings = Settings::default().with_job_key(key);
    let at = "127.0.0.1:0".parse().unwrap();
    let listener = RootListener::bind(&outsides[0], &settings, at, &[]).unwrap();
    let info = listener.info().clone();
    let mut listener = Some(listener);
    let begun = Instant::now();
    let threads = size.div_ceil(PER_THREAD) as usize;
    let mut shares: Vec<Vec<Bootstrap>> = (0..threads).map(|_| Vec::new()).collect();
    let policy = WaitPolicy::for_load(usize::MAX, 1);
    let clock = SystemWaiter::new(policy).unwrap();
    for (rank, outside) in (0..size).zip(outsides) {
        let member = member_at(rank, size, size, FACTS_BYTES);
        let now = clock.now();
        let machine = match listener.take() {
            Some(listener) => Bootstrap::root(outside, listener, member, TIMEOUT, now),
            None => Bootstrap::join(outside, &info, member, TIMEOUT, now),
        };
        shares[rank as usize % threads].push(machine.unwrap());
    }
    std::thread::scope(|scope| {
        for mut machines in shares {
            scope.spawn(move || {
                let waiter = SystemWaiter::new(policy).unwrap();
                for roster in drive_all(&waiter, &mut machines) {
                    assert_eq!(roster.unwrap().size(), size);
                }
            });
        }
    });
    Outcome {
        size,
        time: begun.elapsed(),
        tallies,
    }
}

/// All ranks on this OS thread, eight to a host, over a network with a latency of 1 ms and no limit of bandwidth.
fn simulated(size: u32, facts: usize) -> Outcome {
    let fabric = Fabric::new(Duration::from_millis(1));
    let start = seconds(1);
    let mut now = start;
    fabric.set_now(now);
    let at: RootAddress = ROOT.parse().unwrap();
    let tallies: Vec<Arc<Tally>> = (0..size).map(|_| Arc::default()).collect();
    let mut machines: Vec<Option<Bootstrap>> = (0..size)
        .map(|rank| {
            let ip = Ipv4Addr::from(FIRST_IP + rank).to_string();
            let mut outside = fabric.host(&ip);
            outside.network = Arc::new(Counting {
                network: outside.network,
                tally: Arc::clone(&tallies[rank as usize]),
            });
            let member = member_at(rank, size, 8, facts);
            let machine = if rank == 0 {
                Bootstrap::root_at(outside, &at, key(), member, TIMEOUT, now)
            } else {
                Bootstrap::join_at(outside, &at, key(), member, TIMEOUT, now)
            };
            Some(machine.unwrap())
        })
        .collect();
    // Only whom something has reached, or whose time has come, is looked at.
    let mut wakes = vec![now; size as usize];
    let mut left = size;
    while left > 0 {
        fabric.set_now(now);
        let woken = (0..size).filter(|&rank| wakes[rank as usize] <= now);
        let reached = fabric.take_due().into_iter().map(rank_at);
        let mut due: BTreeSet<u32> = woken.chain(reached).collect();
        while !due.is_empty() {
            for rank in std::mem::take(&mut due) {
                let slot = &mut machines[rank as usize];
                let Some(machine) = slot else { continue };
                let before = fabric.events();
                if let Poll::Ready(end) = machine.poll(now) {
                    assert_eq!(end.unwrap().size(), size);
                    *slot = None;
                    wakes[rank as usize] = Nanos(u64::MAX);
                    left -= 1;
                    continue;
                }
                let wake = machine.next_wake().moment();
                wakes[rank as usize] = wake.unwrap_or(Nanos(u64::MAX)).max(now + TICK);
                if fabric.events() != before {
                    due.insert(rank);
                }
            }
            due.extend(fabric.take_due().into_iter().map(rank_at));
        }
        let next = wakes.iter().copied().chain(fabric.next_due()).min();
        now = next.unwrap_or(now).max(now + TICK);
    }
    Outcome {
        size,
        time: now.since(start),
        tallies,
    }
}

/// Every rank but rank 0 does as much among many as among few, and rank 0 holds few connections.
#[test]
fn messages_per_rank_do_not_grow_with_the_number_of_ranks() {
    // Facts so long that the list has as many parts with few ranks as with many.
    let small = simulated(60, 4500);
    let large = simulated(300, 900);
    let few = small.most(|tally| &tally.frames);
    let many = large.most(|tally| &tally.frames);
    assert!(
        many <= few + few / 2,
        "{few} frames among 60, {many} among 300"
    );
    let root = large.tallies[0].frames.load(Relaxed);
    // Each rank comes once: a knock, a challenge, a hello, a place, a farewell.
    assert!(root <= 5 * 300 + 2 * many, "{root} frames at rank 0");
    assert!(large.most(|tally| &tally.most_open) <= 16);
}

#[test]
#[ignore = "takes minutes: cargo xtask start-up"]
fn start_up_at_scale() {
    println!(
        "| network | ranks | time s | messages, most of a rank | at rank 0, per rank | at rank 0 | MB, most of a rank | bytes per rank of the job | connections at rank 0 | at another | took s |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for size in [16, 64, 256, 512, 1024] {
        let begun = Instant::now();
        over_sockets(size).print("sockets", begun.elapsed());
    }
    for size in [64, 256, 1024, 4096, 16_384] {
        let begun = Instant::now();
        // So many ranks of a job in one process need too much memory otherwise.
        let facts = if size > 1024 { 60 } else { FACTS_BYTES };
        simulated(size, facts).print("simulated", begun.elapsed());
    }
}
