//! Random transfers of every kind between all ranks, each looked at byte by byte.
//!
//! All ranks draw the same rounds from one seed. A round is a list of steps; each moves fresh
//! contents between places that nothing else touches in that round, with gaps between them. Every
//! rank keeps a copy of what its memory must hold: places where something arrives are compared as
//! soon as a notify says so, or at the end of the round, and then everything around them, too.
//!
//! Queues are driven by the rank itself or by workers, which is drawn as well. In some rounds messages
//! come by the algorithm `handshake`. User memory of processes that nobody may look into
//! ([`CLOSED_MEMORY`]) is reached through the link's ring.
//!
//! A failure names the seed and the round. `ITEST_SEED=… ITEST_TRANSFERS=… cargo nextest run -p
//! hcomm transfers::random` does the same again.

use std::time::Instant;

use hcomm::{
    BatchOp, Communicator, CpuTs, DataType, Element, Engine, PeerLink, Rank, ReduceOp, Registered,
    RemoteSlice, Slice, Thread, Window,
};

use crate::job::{self, Job};
use crate::programs::CLOSED_MEMORY;
use crate::random::{Random, mix};
use crate::sample::{Sample, each_type, samples};
use crate::tally::Tally;
use crate::team;

const RANKS: u32 = 4;

/// Kinds of memory of a rank: allocated by us, brought by the user, a symmetric window. The last
/// one is for links that map it.
const ARENAS: usize = 3;
const OURS: usize = 0;
const USER: usize = 1;
const WINDOW: usize = 2;
const ARENA_BYTES: usize = 8 << 20;

/// Queues of a rank.
const THREADS: usize = 3;
/// Notifies of each channel and direction. Number `n` is used by queue `n % THREADS` of both sides,
/// on the channel of that queue.
const NOTIFIES: u32 = 9;
/// Notifies of each queue.
const THREAD_NOTIFIES: u32 = 4;

/// Steps of a round, unless memory is used up before.
const STEPS: usize = 48;
/// Pieces of a batch.
const MOST_PIECES: usize = 9;
/// After so many rounds a rank looks at all of its memory.
const ROUNDS_TO_FULL_LOOK: usize = 64;
/// In one of so many rounds, messages are asked for and granted before they come.
const ROUNDS_TO_HANDSHAKES: usize = 5;
/// Longest transfer: many times the ring of a link, for messages and for staged bytes.
const MOST_BYTES: usize = 4 << 20;

/// Where something lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    rank: usize,
    arena: usize,
    at: usize,
}

/// By which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `write…`, or a piece of a batch.
    Write,
    /// `read…`, or a piece of a batch.
    Read,
    /// `record`, or a piece of a batch.
    Record,
    /// `copy` or `reduce` through the address of the peer's memory.
    Store,
    /// The same, from there.
    Load,
    /// `copy` or `reduce` inside one rank.
    Local,
    /// `send_on` and `recv_on`.
    QueuedMessage,
    /// `send` or `send_slice`, and `recv` or `recv_slice`.
    Message,
    /// `record_thread` and `wait_thread`.
    ThreadNotify,
}

/// One transfer.
#[derive(Clone, Debug)]
struct Transfer {
    way: Way,
    /// Who calls, and on which of its queues.
    by: usize,
    peer: usize,
    queue: usize,
    source: Place,
    target: Place,
    bytes: usize,
    reduce: Option<(DataType, ReduceOp)>,
    /// Of the peer; it waits on its queue of the same number.
    notify: Option<u32>,
    /// Whether who is told looks at once.
    looks: bool,
    contents: u64,
}

/// What comes in one call: one transfer, or a batch.
type Step = Vec<Transfer>;

impl Transfer {
    /// Its name in the tally.
    fn kind(&self) -> String {
        let name = match (self.way, self.reduce.is_some()) {
            (Way::Write, false) => "write",
            (Way::Write, true) => "write_reduce",
            (Way::Read, false) => "read",
            (Way::Read, true) => "read_reduce",
            (Way::Record, _) => "record",
            (Way::Store, false) => "store",
            (Way::Store, true) => "store_reduce",
            (Way::Load, false) => "load",
            (Way::Load, true) => "load_reduce",
            (Way::Local, false) => "local_copy",
            (Way::Local, true) => "local_reduce",
            (Way::QueuedMessage, _) => "send_on",
            (Way::Message, _) => "send",
            (Way::ThreadNotify, _) => "thread_notify",
        };
        let told = self.notify.is_some() && !matches!(self.way, Way::Record | Way::ThreadNotify);
        format!("{name}{}", if told { "_with_notify" } else { "" })
    }

    /// Elements of a queued message: both sides have to name the same type.
    fn elements(&self) -> DataType {
        let types = [DataType::F64, DataType::U32, DataType::Bf16];
        let fits = |dtype: &DataType| self.bytes.is_multiple_of(dtype.size());
        let found = types.into_iter().find(fits);
        found.unwrap_or(DataType::U8)
    }

    /// Whether a message is sent from memory that is registered.
    const fn is_sent_from_slice(&self) -> bool {
        self.looks
    }

    /// Whether it is received there.
    const fn is_received_in_slice(&self) -> bool {
        self.contents & 1 == 0
    }

    fn moves_bytes(&self) -> bool {
        !matches!(self.way, Way::Record | Way::ThreadNotify)
    }

    /// What the source holds.
    fn sent(&self) -> Vec<u8> {
        self.operand(self.contents)
    }

    /// What the target holds before, if that matters.
    fn stale(&self) -> Option<Vec<u8>> {
        self.reduce.map(|_| self.operand(!self.contents))
    }

    fn operand(&self, contents: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes + 8);
        let Some((dtype, op)) = self.reduce else {
            let mut random = Random::new(contents);
            while bytes.len() < self.bytes {
                bytes.extend_from_slice(&random.next().to_ne_bytes());
            }
            bytes.truncate(self.bytes);
            return bytes;
        };
        each_type!(T => if T::DATA_TYPE == dtype {
            for element in elements::<T>(op, contents, self.bytes) {
                element.append_to(&mut bytes);
            }
        });
        bytes
    }

    /// What the target must hold afterwards.
    fn result(&self) -> Vec<u8> {
        let Some((dtype, op)) = self.reduce else {
            return self.sent();
        };
        let mut bytes = Vec::with_capacity(self.bytes);
        each_type!(T => if T::DATA_TYPE == dtype {
            let stale = elements::<T>(op, !self.contents, self.bytes);
            let sent = elements::<T>(op, self.contents, self.bytes);
            for (stale, sent) in stale.into_iter().zip(sent) {
                stale.combine(op, sent).append_to(&mut bytes);
            }
        });
        bytes
    }

    /// As a piece of a batch.
    fn piece(&self, here: &Here<'_>) -> BatchOp {
        let notify = self.notify;
        match (self.way, self.reduce) {
            (Way::Write, None) => BatchOp::Write {
                dst: here.remote(self.target, self.bytes, self.queue),
                src: here.local(self.source, self.bytes),
                notify,
            },
            (Way::Write, Some((dtype, redop))) => BatchOp::WriteReduce {
                dst: here.remote(self.target, self.bytes, self.queue),
                src: here.local(self.source, self.bytes),
                dtype,
                redop,
                notify,
            },
            (Way::Read, None) => BatchOp::Read {
                dst: here.local(self.target, self.bytes),
                src: here.remote(self.source, self.bytes, self.queue),
                notify,
            },
            (Way::Read, Some((dtype, redop))) => BatchOp::ReadReduce {
                dst: here.local(self.target, self.bytes),
                src: here.remote(self.source, self.bytes, self.queue),
                dtype,
                redop,
                notify,
            },
            (Way::Record, _) => BatchOp::Record {
                notify: notify.expect("a record has a notify"),
            },
            other => panic!("{other:?} in a batch"),
        }
    }
}

fn elements<T: Sample>(op: ReduceOp, contents: u64, bytes: usize) -> Vec<T> {
    let first = (contents >> 40) as usize;
    samples(op, contents as u32, first, bytes / size_of::<T>())
}

/// Draws the rounds: the same on every rank.
struct Plan {
    random: Random,
    ranks: usize,
    arenas: usize,
    /// Whether peers' memory has addresses.
    mapped: bool,
    /// How far each arena of each rank is given away in this round.
    used: Vec<[usize; ARENAS]>,
}

impl Plan {
    fn of_round(seed: u64, round: usize, ranks: usize, mapped: bool) -> Self {
        let mut random = Random::new(mix(seed) ^ mix(round as u64 + 1));
        let used = (0..ranks)
            .map(|_| std::array::from_fn(|_| random.below(200)))
            .collect();
        Self {
            random,
            ranks,
            arenas: if mapped { ARENAS } else { WINDOW },
            mapped,
            used,
        }
    }

    fn steps(mut self) -> (Vec<Step>, Vec<[usize; ARENAS]>) {
        let mut steps = Vec::new();
        while steps.len() < STEPS {
            let Some(step) = self.step() else { break };
            steps.push(step);
        }
        (steps, self.used)
    }

    /// None when memory is used up.
    fn step(&mut self) -> Option<Step> {
        let by = self.random.below(self.ranks);
        let peer = (by + 1 + self.random.below(self.ranks - 1)) % self.ranks;
        let notify = self.random.below(NOTIFIES as usize) as u32;
        let queue = notify as usize % THREADS;
        let way = match self.random.below(20) {
            0..=4 => Way::Write,
            5..=7 => Way::Read,
            8 => Way::Record,
            9 | 10 if self.mapped => Way::Store,
            11 if self.mapped => Way::Load,
            12 => Way::Local,
            13 => Way::QueuedMessage,
            14 => Way::Message,
            15 => Way::ThreadNotify,
            _ => return self.batch(by, peer, queue, notify),
        };
        let told = self.random.below(2) == 0 || way == Way::Record;
        let told = told && !matches!(way, Way::Local | Way::Message | Way::QueuedMessage);
        self.transfer(way, by, peer, queue, told.then_some(notify))
            .map(|transfer| vec![transfer])
    }

    /// Several pieces, of which some are told of.
    fn batch(&mut self, by: usize, peer: usize, queue: usize, notify: u32) -> Option<Step> {
        let pieces = 2 + self.random.below(MOST_PIECES - 1);
        (0..pieces)
            .map(|number| {
                let way = match self.random.below(6) {
                    0 | 1 => Way::Read,
                    2 => Way::Record,
                    _ => Way::Write,
                };
                let told = number + 1 == pieces || self.random.below(4) == 0;
                let told = told || way == Way::Record;
                self.transfer(way, by, peer, queue, told.then_some(notify))
            })
            .collect()
    }

    fn transfer(
        &mut self,
        way: Way,
        by: usize,
        peer: usize,
        queue: usize,
        notify: Option<u32>,
    ) -> Option<Transfer> {
        let reduces =
            !matches!(way, Way::Message | Way::QueuedMessage) && self.random.below(3) == 0;
        let reduce = reduces.then(|| {
            (
                self.random.pick(&DataType::ALL),
                self.random.pick(&ReduceOp::ALL),
            )
        });
        let (from, to) = match way {
            Way::Read | Way::Load => (peer, by),
            Way::Local => (by, by),
            _ => (by, peer),
        };
        let mut transfer = Transfer {
            way,
            by,
            peer,
            queue,
            source: self.nowhere(from),
            target: self.nowhere(to),
            bytes: 0,
            reduce,
            notify,
            looks: self.random.below(2) == 0,
            contents: self.random.next(),
        };
        if transfer.moves_bytes() {
            let element = reduce.map_or(1, |(dtype, _)| dtype.size());
            transfer.bytes = self.bytes() / element * element;
            transfer.source = self.place(from, transfer.bytes)?;
            transfer.target = self.place(to, transfer.bytes)?;
        }
        if matches!(way, Way::Store | Way::Load) {
            // Only what is mapped has an address.
            let far = if way == Way::Store {
                &mut transfer.target
            } else {
                &mut transfer.source
            };
            if far.arena == USER {
                let arena = if self.random.below(2) == 0 {
                    OURS
                } else {
                    WINDOW
                };
                *far = self.place_in(far.rank, arena, transfer.bytes)?;
            }
        }
        Some(transfer)
    }

    /// Many small and odd ones, some large.
    fn bytes(&mut self) -> usize {
        let most = match self.random.below(512) {
            0..16 => 0,
            16..176 => 24,
            176..320 => 300,
            320..448 => 5_000,
            448..495 => 70_000,
            495..511 => 600_000,
            _ => MOST_BYTES,
        };
        let bytes = self.random.below(most + 1);
        match self.random.below(8) {
            0 => bytes.next_power_of_two(),
            1 => bytes / 64 * 64,
            _ => bytes,
        }
    }

    const fn nowhere(&self, rank: usize) -> Place {
        Place {
            rank,
            arena: OURS,
            at: 0,
        }
    }

    fn place(&mut self, rank: usize, bytes: usize) -> Option<Place> {
        let arena = self.random.below(self.arenas);
        self.place_in(rank, arena, bytes)
    }

    fn place_in(&mut self, rank: usize, arena: usize, bytes: usize) -> Option<Place> {
        let gap = 1 + self.random.below(70);
        let alignment = self.random.pick(&[1, 1, 1, 2, 8, 64, 4096]);
        let used = &mut self.used[rank][arena];
        let at = (*used + gap).next_multiple_of(alignment);
        let end = at + bytes;
        (end <= ARENA_BYTES).then(|| {
            *used = end;
            Place { rank, arena, at }
        })
    }
}

/// A rank with its memory and what it must hold.
struct Here<'a> {
    comm: &'a Communicator,
    me: usize,
    threads: Vec<Thread>,
    arenas: Vec<Slice>,
    must_hold: Vec<Vec<u8>>,
    /// Of each peer, a channel for each queue: workers post beside the rank's own OS thread, and
    /// one OS thread at a time may post on a channel.
    links: Vec<Vec<PeerLink>>,
    mapped: bool,
    // What the slices above are parts of.
    window: Window,
    _user: Registered<u8>,
}

/// Who drives the queues of a rank: itself or one of two workers.
fn engines(seed: u64, rank: usize) -> impl Iterator<Item = Engine> {
    let mut random = Random::new(mix(seed) ^ mix(!(rank as u64)));
    (0..THREADS).map(move |_| match random.below(4) {
        0 | 1 => Engine::Cpu,
        worker => Engine::CpuTs(CpuTs::worker(worker as u32)),
    })
}

impl<'a> Here<'a> {
    fn new(comm: &'a Communicator, seed: u64) -> hcomm::Result<Self> {
        let (me, ranks) = (comm.rank().index(), comm.size() as usize);
        let ours = comm.allocate("ours", ARENA_BYTES)?;
        let user = comm.register("user", vec![0u8; ARENA_BYTES])?;
        let window = comm.window("window", ARENA_BYTES)?;
        let mut links: Vec<Vec<PeerLink>> = (0..ranks).map(|_| Vec::new()).collect();
        // Pair by pair, in the same order everywhere.
        for a in 0..ranks {
            for b in a + 1..ranks {
                if me == a || me == b {
                    let peer = a + b - me;
                    for _ in 0..THREADS {
                        links[peer].push(comm.open_channel(Rank::from_index(peer), NOTIFIES)?);
                    }
                }
            }
        }
        let next = Rank::from_index((me + 1) % ranks);
        Ok(Self {
            comm,
            me,
            threads: engines(seed, me)
                .map(|engine| comm.thread_on(engine, THREAD_NOTIFIES as usize))
                .collect::<hcomm::Result<_>>()?,
            arenas: vec![ours, user.slice()?.clone(), window.local().clone()],
            must_hold: vec![vec![0; ARENA_BYTES]; ARENAS],
            links,
            mapped: window.address_of(next).is_some(),
            window,
            _user: user,
        })
    }

    fn local(&self, place: Place, bytes: usize) -> Slice {
        assert_eq!(place.rank, self.me);
        let whole = &self.arenas[place.arena];
        whole.sub(place.at..place.at + bytes).expect("inside")
    }

    fn remote(&self, place: Place, bytes: usize, queue: usize) -> RemoteSlice {
        let range = place.at as u64..(place.at + bytes) as u64;
        let link = self.link(place.rank, queue);
        match place.arena {
            OURS => link.memory("ours").and_then(|whole| whole.sub(range)),
            USER => link.memory("user").and_then(|whole| whole.sub(range)),
            _ => {
                let whole = self.window.of(Rank::from_index(place.rank));
                whole.and_then(|whole| whole.sub(range))
            }
        }
        .expect("inside")
    }

    fn link(&self, peer: usize, queue: usize) -> &PeerLink {
        &self.links[peer][queue]
    }

    /// Puts new contents where this rank's transfers begin and end.
    fn prepare(&mut self, steps: &[Step]) {
        for transfer in steps.iter().flatten().filter(|t| t.moves_bytes()) {
            if transfer.source.rank == self.me {
                self.put(transfer.source, &transfer.sent());
            }
            if transfer.target.rank == self.me
                && let Some(stale) = transfer.stale()
            {
                self.put(transfer.target, &stale);
            }
        }
    }

    fn put(&mut self, place: Place, bytes: &[u8]) {
        self.local(place, bytes.len())
            .copy_from(bytes)
            .expect("as long");
        self.expect(place, bytes);
    }

    fn expect(&mut self, place: Place, bytes: &[u8]) {
        self.must_hold[place.arena][place.at..place.at + bytes.len()].copy_from_slice(bytes);
    }

    /// This rank's part of a step.
    fn run(&self, step: &[Transfer]) -> hcomm::Result<()> {
        let first = &step[0];
        let thread = self.threads[first.queue].clone();
        if first.by == self.me {
            if let [transfer] = step {
                self.call(&thread, transfer)?;
            } else {
                let pieces: Vec<BatchOp> = step.iter().map(|piece| piece.piece(self)).collect();
                thread.batch(&self.link(first.peer, first.queue).channel, &pieces)?;
            }
        } else if first.peer == self.me {
            self.meet(&thread, step)?;
        }
        Ok(())
    }

    /// The calling side of a transfer that is no piece of a batch.
    fn call(&self, thread: &Thread, transfer: &Transfer) -> hcomm::Result<()> {
        let &Transfer {
            way,
            peer,
            queue,
            source,
            target,
            bytes,
            reduce,
            notify,
            ..
        } = transfer;
        if way == Way::Local {
            let (dst, src) = (self.local(target, bytes), self.local(source, bytes));
            return match reduce {
                None => thread.copy(&dst, &src),
                Some((dtype, op)) => thread.reduce(&dst, &dst, &src, dtype, op),
            };
        }
        let channel = &self.link(peer, queue).channel;
        match way {
            Way::Write => {
                let (dst, src) = (self.remote(target, bytes, queue), self.local(source, bytes));
                match (reduce, notify) {
                    (None, None) => thread.write(channel, &dst, &src),
                    (None, Some(notify)) => thread.write_with_notify(channel, &dst, &src, notify),
                    (Some((dtype, op)), _) => {
                        thread.write_reduce(channel, &dst, &src, dtype, op, notify)
                    }
                }
            }
            Way::Read => {
                let (dst, src) = (self.local(target, bytes), self.remote(source, bytes, queue));
                match (reduce, notify) {
                    (None, None) => thread.read(channel, &dst, &src),
                    (None, Some(notify)) => thread.read_with_notify(channel, &dst, &src, notify),
                    (Some((dtype, op)), _) => {
                        thread.read_reduce(channel, &dst, &src, dtype, op, notify)
                    }
                }
            }
            Way::Record => thread.record(channel, notify.expect("a record has a notify")),
            Way::Store => {
                let (dst, src) = (self.remote(target, bytes, queue), self.local(source, bytes));
                match reduce {
                    None => thread.copy(&dst, &src),
                    Some((dtype, op)) => thread.reduce(&dst, &dst, &src, dtype, op),
                }?;
                notify.map_or(Ok(()), |notify| thread.record(channel, notify))
            }
            Way::Load => {
                let (dst, src) = (self.local(target, bytes), self.remote(source, bytes, queue));
                match reduce {
                    None => thread.copy(&dst, &src),
                    Some((dtype, op)) => thread.reduce(&dst, &dst, &src, dtype, op),
                }?;
                notify.map_or(Ok(()), |notify| thread.record(channel, notify))
            }
            Way::QueuedMessage => {
                let data = self.local(source, bytes);
                (self.comm)
                    .send_on(thread, &data, Rank::from_index(peer), transfer.elements())
                    .map(drop)
            }
            Way::Message if transfer.is_sent_from_slice() => {
                let data = self.local(source, bytes);
                (self.comm).send_slice(&data, Rank::from_index(peer), DataType::U8)
            }
            Way::Message => self.comm.send(&transfer.sent(), Rank::from_index(peer)),
            Way::ThreadNotify => {
                let other = &self.threads[(transfer.queue + 1) % THREADS];
                let number = notify.unwrap_or(0) % THREAD_NOTIFIES;
                thread.record_thread(other, number)?;
                other.wait_thread(number)
            }
            Way::Local => Ok(()),
        }
    }

    /// The side that did not call: it waits for what it is told, and may look.
    fn meet(&self, thread: &Thread, step: &[Transfer]) -> hcomm::Result<()> {
        for (number, transfer) in step.iter().enumerate() {
            let from = Rank::from_index(transfer.by);
            match transfer.way {
                Way::QueuedMessage => {
                    let data = self.local(transfer.target, transfer.bytes);
                    (self.comm).recv_on(thread, &data, from, transfer.elements())?;
                    continue;
                }
                Way::Message if transfer.is_received_in_slice() => {
                    let data = self.local(transfer.target, transfer.bytes);
                    self.comm.recv_slice(&data, from, DataType::U8)?;
                    self.look_at(transfer, "when it was received");
                    continue;
                }
                Way::Message => {
                    let mut data = vec![0; transfer.bytes];
                    self.comm.recv(&mut data, from)?;
                    // Into the memory that is looked at with all the rest.
                    let target = self.local(transfer.target, transfer.bytes);
                    target.copy_from(&data)?;
                    continue;
                }
                Way::Local | Way::ThreadNotify => continue,
                _ => {}
            }
            let Some(notify) = transfer.notify else {
                continue;
            };
            let channel = &self.link(transfer.by, transfer.queue).channel;
            if !transfer.looks {
                thread.wait(channel, notify)?;
                continue;
            }
            thread.wait_blocking(channel, notify, None)?;
            // A record follows everything earlier in its batch.
            for landed in &step[..=number] {
                if landed.target.rank == self.me && landed.moves_bytes() {
                    self.look_at(landed, "when it was told");
                }
            }
        }
        Ok(())
    }

    /// Ends a round: everything has landed everywhere.
    fn settle(&self, steps: &[Step]) -> hcomm::Result<()> {
        for step in steps.iter().filter(|step| step[0].by == self.me) {
            let untold = |t: &Transfer| t.notify.is_none() && t.target.rank != self.me;
            if step.iter().any(|t| t.moves_bytes() && untold(t)) {
                self.threads[step[0].queue]
                    .fence(&self.link(step[0].peer, step[0].queue).channel)?;
            }
        }
        for thread in &self.threads {
            thread.synchronize(None)?;
        }
        self.comm.barrier()
    }

    /// Looks at everything that was given away in the round, with the gaps; sometimes at all.
    fn look(&mut self, steps: &[Step], used: [usize; ARENAS], at_all: bool) {
        for transfer in steps.iter().flatten() {
            if transfer.moves_bytes() && transfer.target.rank == self.me {
                let result = transfer.result();
                self.expect(transfer.target, &result);
            }
        }
        for (arena, used) in used.into_iter().enumerate() {
            let end = if at_all { ARENA_BYTES } else { used + 64 };
            let end = end.min(ARENA_BYTES);
            let whole = Place {
                rank: self.me,
                arena,
                at: 0,
            };
            let mut found = vec![0; end];
            self.local(whole, end).copy_to(&mut found).expect("as long");
            let must = &self.must_hold[arena][..end];
            if found != must {
                let at = first_difference(&found, must);
                let culprit = steps.iter().flatten().find(|t| {
                    t.target.rank == self.me
                        && t.target.arena == arena
                        && (t.target.at..t.target.at + t.bytes).contains(&at)
                });
                panic!(
                    "byte {at} of memory {arena} of rank {} is {} instead of {}; it belongs to {culprit:?}",
                    self.me, found[at], must[at]
                );
            }
        }
    }

    fn look_at(&self, transfer: &Transfer, when: &str) {
        let must = transfer.result();
        let mut found = vec![0; transfer.bytes];
        let target = self.local(transfer.target, transfer.bytes);
        target.copy_to(&mut found).expect("as long");
        assert!(
            found == must,
            "byte {} is wrong {when}: {transfer:?}",
            first_difference(&found, &must)
        );
    }
}

fn first_difference(found: &[u8], must: &[u8]) -> usize {
    let same = found.iter().zip(must).take_while(|(a, b)| a == b);
    same.count()
}

/// At least so many transfers, in rounds. Returns how many of each kind.
pub(crate) fn random(comm: &Communicator, seed: u64, transfers: usize) -> Tally {
    let failed = |round: usize, error: hcomm::Error| -> ! {
        panic!("seed {seed}, round {round}: {error}");
    };
    let mut here = Here::new(comm, seed).unwrap_or_else(|error| failed(0, error));
    let ranks = comm.size() as usize;
    let engines: Vec<Vec<Engine>> = (0..ranks)
        .map(|rank| engines(seed, rank).collect())
        .collect();
    let (mut tally, mut done, mut round) = (Tally::default(), 0, 0);
    while done < transfers {
        let (steps, used) = Plan::of_round(seed, round, ranks, here.mapped).steps();
        let context = RoundOnPanic { seed, round };
        here.prepare(&steps);
        let handshakes = round % ROUNDS_TO_HANDSHAKES == 3;
        let outcome = comm
            .force_algorithm(handshakes.then_some("handshake"))
            .and_then(|()| comm.barrier())
            .and_then(|()| {
                steps.iter().try_for_each(|step| here.run(step))?;
                here.settle(&steps)
            });
        outcome.unwrap_or_else(|error| failed(round, error));
        here.look(&steps, used[here.me], round % ROUNDS_TO_FULL_LOOK == 0);
        drop(context);
        done += steps.iter().map(Vec::len).sum::<usize>();
        count(&mut tally, &steps, &engines, handshakes);
        round += 1;
    }
    tally.add("transfers", done as u64);
    tally.add("rounds", round as u64);
    tally.add("bytes_staged_at_rank_0", comm.counters().bytes_staged);
    tally
}

fn count(tally: &mut Tally, steps: &[Step], engines: &[Vec<Engine>], handshakes: bool) {
    for step in steps {
        if step.len() > 1 {
            tally.add("batches", 1);
            tally.add("in_batches", step.len() as u64);
        }
        for transfer in step {
            tally.add(&transfer.kind(), 1);
            tally.add("bytes", transfer.bytes as u64);
            let size = match transfer.bytes {
                0..=64 => "up_to_64_bytes",
                65..=4096 => "up_to_4_KiB",
                4097..=262_144 => "up_to_256_KiB",
                _ => "above_256_KiB",
            };
            if transfer.moves_bytes() {
                tally.add(size, 1);
            }
            let engine = engines[transfer.by][transfer.queue];
            if engine != Engine::Cpu && transfer.way != Way::Message {
                tally.add("by_workers", 1);
            }
            if transfer.way == Way::Message && transfer.is_received_in_slice() {
                tally.add("recv_slice", 1);
            }
            if handshakes && matches!(transfer.way, Way::Message | Way::QueuedMessage) {
                tally.add("handshakes", 1);
            }
        }
    }
}

/// Says where it was if something panics.
struct RoundOnPanic {
    seed: u64,
    round: usize,
}

impl Drop for RoundOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in round {} of seed {}", self.round, self.seed);
        }
    }
}

/// Transfers of one job: enough to settle in, few enough to be replayed in seconds, and to be over
/// before the watchdog of a job on a machine that has much else to do.
const TRANSFERS_OF_A_JOB: usize = 5_000;

fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number"))
    })
}

fn seed(usual: u64) -> u64 {
    number("ITEST_SEED", usual as usize) as u64
}

/// Whose user memory nobody may look into.
#[derive(Clone, Copy)]
enum Closed {
    Nobodys,
    Everybodys,
    /// Of two ranks: pairs differ by direction.
    SomeRanks,
}

fn in_processes(seed: u64, transfers: usize, closed: Closed) -> Tally {
    let closed = match closed {
        Closed::Nobodys => "",
        Closed::Everybodys => "0,1,2,3",
        Closed::SomeRanks => "1,2",
    };
    let mut ranks = Job::new("transfers", RANKS)
        .set("ITEST_SEED", seed)
        .set("ITEST_TRANSFERS", transfers)
        .set(CLOSED_MEMORY, closed)
        .start();
    job::all_succeed(&mut ranks);
    Tally::heard(&ranks[0].stdout())
}

/// What each process runs.
pub(crate) fn program(comm: &Communicator) {
    // The way that links take is known by their own words only: reductions count as staged on both.
    let closed = std::env::var(CLOSED_MEMORY).unwrap_or_default();
    for peer in closed.split(',').filter_map(|rank| rank.parse().ok()) {
        if Rank(peer) != comm.rank() {
            let link = comm.link(Rank(peer)).expect("a link to each rank");
            let way = link.channel.transport().describe();
            assert!(
                !way.contains("one copy"),
                "rank {peer} is not closed: {way}"
            );
        }
    }
    let tally = random(comm, seed(1), number("ITEST_TRANSFERS", 0));
    tally.say();
}

fn on_threads(seed: u64, transfers: usize) -> Tally {
    let tallies = team::run(RANKS, move |comm| {
        let tally = random(&comm, seed, transfers);
        comm.close().unwrap();
        tally
    });
    tallies.into_iter().next().expect("a rank")
}

#[test]
fn random_transfers_between_four_processes() {
    in_processes(seed(1), number("ITEST_TRANSFERS", 3_000), Closed::Nobodys);
}

#[test]
fn random_transfers_between_four_threads() {
    on_threads(seed(2), number("ITEST_TRANSFERS", 3_000));
}

/// User memory goes through the ring, and between some ranks one way only.
#[test]
fn random_transfers_between_processes_with_closed_memory() {
    let transfers = number("ITEST_TRANSFERS", 1_000);
    for closed in [Closed::Everybodys, Closed::SomeRanks] {
        in_processes(seed(3), transfers, closed);
    }
}

/// Job after job, each with a seed of its own.
fn soak(first: u64, job: impl Fn(u64, usize) -> Tally) {
    let wanted = number("ITEST_TRANSFERS", 1_000_000);
    let mut all = Tally::default();
    let begun = Instant::now();
    for seed in first.. {
        let left = wanted.saturating_sub(all.of("transfers") as usize);
        if left == 0 {
            println!("seeds {first} to {}", seed - 1);
            break;
        }
        all.merge(&job(seed, left.min(TRANSFERS_OF_A_JOB)));
        all.add("jobs", 1);
        println!(
            "seed {seed}: {} of {wanted} transfers, {:.0} s",
            all.of("transfers"),
            begun.elapsed().as_secs_f64()
        );
    }
    all.conclude();
}

#[test]
#[ignore = "soak"]
fn soak_transfers_between_four_processes() {
    soak(1000 * seed(1), |seed, transfers| {
        in_processes(seed, transfers, Closed::Nobodys)
    });
}

#[test]
#[ignore = "soak"]
fn soak_transfers_between_four_threads() {
    soak(1000 * seed(1) + 500, on_threads);
}

#[test]
#[ignore = "soak"]
fn soak_transfers_between_processes_with_closed_memory() {
    soak(1000 * seed(1) + 700, |seed, transfers| {
        let closed = if seed % 2 == 0 {
            Closed::Everybodys
        } else {
            Closed::SomeRanks
        };
        in_processes(seed, transfers, closed)
    });
}
