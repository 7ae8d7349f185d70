//! A network inside the test: deterministic, with a clock that only the test moves.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hcomm_types::Nanos;

use crate::net::{Listener, Network, Stream};
use crate::outside::{Interned, Outside, Random};

/// Bytes that one direction of a connection holds.
const PIPE_BYTES: usize = 64 << 10;

/// The wires between all hosts. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Fabric(Arc<Mutex<State>>, Arc<Interned>);

#[derive(Default)]
struct State {
    now: Nanos,
    delay: Duration,
    /// Longest piece that one read returns; 0 for any.
    dribble: usize,
    listeners: HashMap<SocketAddr, VecDeque<usize>>,
    connections: Vec<Connection>,
    /// Hosts whose bytes go nowhere.
    silent: HashSet<IpAddr>,
    /// Bytes of this host are changed.
    corrupt: HashSet<IpAddr>,
    next_port: u16,
    /// How many have asked for their view: each draws other numbers.
    hosts: u64,
    /// Counts everything that happens.
    events: u64,
    /// Hosts that something reaches, by the moment.
    due: BTreeMap<Nanos, HashSet<IpAddr>>,
    names: HashMap<String, IpAddr>,
    out_of_descriptors: bool,
    /// Connections that wait to be accepted at one listener, at most; 0 for any number.
    backlog: usize,
    /// Those that were turned away because of that.
    turned_away: usize,
}

struct Connection {
    /// Client, server.
    ends: [SocketAddr; 2],
    /// From the client, from the server.
    pipes: [Pipe; 2],
    reachable_at: Nanos,
    cut: bool,
}

#[derive(Default)]
struct Pipe {
    pieces: VecDeque<(Nanos, Vec<u8>)>,
    bytes: usize,
    closed_at: Option<Nanos>,
}

impl Fabric {
    pub(crate) fn new(delay: Duration) -> Self {
        let fabric = Self::default();
        fabric.state().delay = delay;
        fabric
    }

    /// The network as a host of this address sees it, and a seeded source of random bytes.
    pub(crate) fn host(&self, ip: &str) -> Outside {
        let ip: IpAddr = ip.parse().unwrap();
        let mut state = self.state();
        state.hosts += 1;
        let seed = seed_of(ip) ^ (state.hosts << 40);
        drop(state);
        Outside {
            interned: Arc::clone(&self.1),
            ..Outside::new(
                Arc::new(FakeNetwork {
                    fabric: self.clone(),
                    ip,
                }),
                Arc::new(Seeded(Mutex::new(seed))),
            )
        }
    }

    /// Gives a host a name.
    pub(crate) fn name(&self, name: &str, ip: &str) {
        self.state()
            .names
            .insert(name.to_owned(), ip.parse().unwrap());
    }

    /// Reads return at most so many bytes.
    pub(crate) fn dribble(&self, bytes: usize) {
        self.state().dribble = bytes;
    }

    /// The host's power fails: nothing comes from it, nothing reaches it, nobody is told.
    pub(crate) fn silence(&self, ip: &str) {
        self.state().silent.insert(ip.parse().unwrap());
    }

    /// Bytes that the host sends from now on are changed on their way.
    pub(crate) fn corrupt(&self, ip: &str) {
        self.state().corrupt.insert(ip.parse().unwrap());
    }

    /// Resets all connections of a host.
    pub(crate) fn cut(&self, ip: &str) {
        let ip: IpAddr = ip.parse().unwrap();
        let mut state = self.state();
        state.events += 1;
        for connection in &mut state.connections {
            connection.cut |= connection.ends.iter().any(|end| end.ip() == ip);
        }
    }

    /// Whether `accept` and `connect` fail because descriptors have run out.
    pub(crate) fn run_out_of_descriptors(&self, yes: bool) {
        self.state().out_of_descriptors = yes;
    }

    /// Listeners keep so many connections waiting; others are turned away.
    pub(crate) fn limit_backlog(&self, connections: usize) {
        self.state().backlog = connections;
    }

    /// How many connections were turned away because too many waited.
    pub(crate) fn turned_away(&self) -> usize {
        self.state().turned_away
    }

    pub(crate) fn set_now(&self, now: Nanos) {
        self.state().now = now;
    }

    /// Counts everything that happens, so that a test sees when nothing does.
    pub(crate) fn events(&self) -> u64 {
        self.state().events
    }

    /// Hosts that something has reached by now and that were not told so yet.
    pub(crate) fn take_due(&self) -> HashSet<IpAddr> {
        let mut state = self.state();
        let next = Nanos(state.now.0 + 1);
        let later = state.due.split_off(&next);
        let due = std::mem::replace(&mut state.due, later);
        due.into_values().flatten().collect()
    }

    /// When the next thing reaches a host.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.state().due.keys().next().copied()
    }

    /// When the next bytes arrive that are under way.
    pub(crate) fn next_arrival(&self) -> Option<Nanos> {
        let state = self.state();
        let arrivals = state.connections.iter().flat_map(|connection| {
            let pieces = connection.pipes.iter().flat_map(|pipe| {
                let pieces = pipe.pieces.iter().map(|(at, _)| *at);
                pieces.chain(pipe.closed_at)
            });
            pieces.chain([connection.reachable_at])
        });
        arrivals.filter(|&at| at > state.now).min()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl State {
    fn is_silent(&self, connection: usize) -> bool {
        let ends = self.connections[connection].ends;
        ends.iter().any(|end| self.silent.contains(&end.ip()))
    }

    fn reach(&mut self, host: IpAddr, at: Nanos) {
        self.due.entry(at).or_default().insert(host);
    }

    fn fresh_port(&mut self) -> u16 {
        self.next_port = (self.next_port + 1) % 20_000;
        40_000 + self.next_port
    }
}

/// xorshift64*: enough for nonces that differ.
struct Seeded(Mutex<u64>);

impl Random for Seeded {
    fn fill(&self, buffer: &mut [u8]) {
        let mut state = self.0.lock().unwrap();
        for chunk in buffer.chunks_mut(8) {
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            let word = state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

fn seed_of(ip: IpAddr) -> u64 {
    ip.to_string()
        .bytes()
        .fold(0x9e37_79b9_7f4a_7c15, |seed, byte| {
            (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

struct FakeNetwork {
    fabric: Fabric,
    ip: IpAddr,
}

impl Network for FakeNetwork {
    fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>> {
        let mut state = self.fabric.state();
        let ip = if at.ip().is_unspecified() {
            self.ip
        } else if at.ip() == self.ip {
            at.ip()
        } else {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        };
        let port = if at.port() == 0 {
            state.fresh_port()
        } else {
            at.port()
        };
        let local = SocketAddr::new(ip, port);
        if state.listeners.contains_key(&local) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        state.listeners.insert(local, VecDeque::new());
        state.events += 1;
        let fabric = self.fabric.clone();
        Ok(Box::new(FakeListener { fabric, local }))
    }

    fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Stream>> {
        let mut state = self.fabric.state();
        if state.out_of_descriptors {
            return Err(rustix::io::Errno::MFILE.into());
        }
        let backlog = state.backlog;
        let is_full = |queue: &VecDeque<usize>| backlog > 0 && queue.len() >= backlog;
        if state.listeners.get(&to).is_some_and(is_full) {
            state.turned_away += 1;
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let from = SocketAddr::new(self.ip, state.fresh_port());
        let index = state.connections.len();
        let reachable_at = state.now + state.delay;
        state.reach(self.ip, reachable_at);
        state.reach(to.ip(), reachable_at);
        state.connections.push(Connection {
            ends: [from, to],
            pipes: [Pipe::default(), Pipe::default()],
            reachable_at,
            cut: false,
        });
        if !state.is_silent(index) {
            match state.listeners.get_mut(&to) {
                Some(queue) => queue.push_back(index),
                None => return Err(io::ErrorKind::ConnectionRefused.into()),
            }
        }
        state.events += 1;
        let fabric = self.fabric.clone();
        Ok(Box::new(FakeStream {
            fabric,
            index,
            side: 0,
        }))
    }

    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let ip = host.parse().ok();
        let ip = ip.or_else(|| self.fabric.state().names.get(host).copied());
        ip.map(|ip| vec![SocketAddr::new(ip, port)])
            .ok_or_else(|| io::Error::other(format!("no host is called {host}")))
    }
}

struct FakeListener {
    fabric: Fabric,
    local: SocketAddr,
}

impl Listener for FakeListener {
    fn accept(&mut self) -> io::Result<Option<(Box<dyn Stream>, SocketAddr)>> {
        let mut state = self.fabric.state();
        let Some(&index) = state.listeners[&self.local].front() else {
            return Ok(None);
        };
        if state.connections[index].reachable_at > state.now {
            return Ok(None);
        }
        if state.out_of_descriptors {
            return Err(rustix::io::Errno::MFILE.into());
        }
        state.listeners.get_mut(&self.local).unwrap().pop_front();
        state.events += 1;
        let stream = FakeStream {
            fabric: self.fabric.clone(),
            index,
            side: 1,
        };
        let peer = state.connections[index].ends[0];
        Ok(Some((Box::new(stream), peer)))
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for FakeListener {
    fn drop(&mut self) {
        let mut state = self.fabric.state();
        state.events += 1;
        let queue = state.listeners.remove(&self.local);
        let now = state.now;
        for index in queue.into_iter().flatten() {
            state.connections[index].cut = true;
            let client = state.connections[index].ends[0].ip();
            state.reach(client, now);
        }
    }
}

struct FakeStream {
    fabric: Fabric,
    index: usize,
    /// 0 for the client, 1 for the server: the number of the pipe that this side writes.
    side: usize,
}

impl Stream for FakeStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut state = self.fabric.state();
        if state.is_silent(self.index) {
            return Ok(None);
        }
        let (now, dribble) = (state.now, state.dribble);
        let connection = &mut state.connections[self.index];
        let cut = connection.cut;
        let pipe = &mut connection.pipes[1 - self.side];
        let Some((at, piece)) = pipe.pieces.front_mut() else {
            if cut {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            return Ok(pipe.closed_at.is_some_and(|at| at <= now).then_some(0));
        };
        if *at > now {
            return Ok(None);
        }
        let mut count = piece.len().min(buffer.len());
        if dribble > 0 {
            count = count.min(dribble);
        }
        for (to, from) in buffer.iter_mut().zip(piece.drain(..count)) {
            *to = from;
        }
        if piece.is_empty() {
            pipe.pieces.pop_front();
        }
        pipe.bytes -= count;
        let (writer, now) = (connection.ends[1 - self.side].ip(), state.now);
        state.reach(writer, now);
        state.events += 1;
        Ok(Some(count))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let mut state = self.fabric.state();
        let silent = state.is_silent(self.index);
        let at = state.now + state.delay;
        let own = state.connections[self.index].ends[self.side].ip();
        let flip = u8::from(state.corrupt.contains(&own));
        let connection = &mut state.connections[self.index];
        if connection.cut || connection.pipes[1 - self.side].closed_at.is_some() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let pipe = &mut connection.pipes[self.side];
        let count = bytes.len().min(PIPE_BYTES - pipe.bytes);
        if count == 0 {
            return Ok(None);
        }
        if !silent {
            let mut piece = bytes[..count].to_vec();
            // The last byte: headers stay whole, MACs and bodies do not.
            if let Some(last) = piece.last_mut() {
                *last ^= flip;
            }
            pipe.pieces.push_back((at, piece));
            pipe.bytes += count;
            let reader = connection.ends[1 - self.side].ip();
            state.reach(reader, at);
        }
        state.events += 1;
        Ok(Some(count))
    }

    fn connected(&mut self) -> io::Result<bool> {
        let state = self.fabric.state();
        let connection = &state.connections[self.index];
        if connection.cut {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(!state.is_silent(self.index) && connection.reachable_at <= state.now)
    }

    fn peer_addr(&self) -> SocketAddr {
        self.fabric.state().connections[self.index].ends[1 - self.side]
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for FakeStream {
    fn drop(&mut self) {
        let mut state = self.fabric.state();
        let at = state.now + state.delay;
        state.events += 1;
        let other = state.connections[self.index].ends[1 - self.side].ip();
        state.reach(other, at);
        let connection = &mut state.connections[self.index];
        connection.pipes[self.side].closed_at = Some(at);
        // What this side had not read is lost with it.
        let unread = &mut connection.pipes[1 - self.side];
        if !unread.pieces.is_empty() {
            // Like a kernel: closing with unread bytes resets, and takes along what was sent.
            unread.pieces.clear();
            connection.pipes[self.side].pieces.clear();
            connection.cut = true;
        }
    }
}
