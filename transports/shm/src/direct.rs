//! User memory of a peer in another process, in one copy by the kernel.
//!
//! `process_vm_readv` and `process_vm_writev` move bytes between two processes without any help of
//! the one whose memory it is. Many systems forbid them (containers, yama, pid namespaces), so each
//! side tries them out on its real peer; where that fails, the ring of `staging` stays the way, and
//! the reason is kept for `describe`.
//!
//! # The try-out
//!
//! Hello and welcome name a *sample* of their sender: a few words of its memory, and the random half
//! of what stands there. Whoever gets it asks the kernel who is at the other end of the socket (as
//! numbered in its own pid namespace), takes a pidfd of that process, reads the sample, compares, and
//! only then writes the complement into its second half. The owner lends memory only after it has
//! seen that complement in its own memory: so both know that reading and writing work, and that the
//! process number means the process that is meant, also after a fork. The two directions are
//! independent of each other; yama, for one, lets a parent do it to its child and not the reverse.
//!
//! # Gates
//!
//! The side that moves the bytes names addresses in the other process, so the owner must be able to
//! forbid that, and to know when nobody is inside any more. For each region that it lends on a
//! channel, the owner opens a *gate*: a word of its end's segment that holds the region's number. A
//! number is never used again in a process. The peer has one word there, *inside*.
//!
//! ```text
//! peer, for each transfer                    owner, to deregister
//!   inside = region                            close the region: no new loans
//!   full fence                                 gate = 0, on every channel
//!   for each piece:                            full fence
//!     gate == region? else: stale key          wait while inside == region, on every channel
//!     peer alive? else: lost
//!     move at most PIECE_BYTES
//!   inside = 0
//! ```
//!
//! Either the peer sees the gate closed, or the owner sees the peer inside and waits for one piece
//! at most. Posts on one channel come from one thread at a time, so one word is enough. A peer that
//! is gone (its pidfd or the socket says so) is not waited for: its system calls have ended. One
//! that is stopped in the middle, by a debugger or SIGSTOP, may go on later and write; after
//! [`PATIENCE`] `deregister` therefore fails with `STATUS_BUSY` and names the process. The gate stays
//! closed, and the call may be made again; until it succeeds, the memory must stay.
//!
//! An end that is destroyed closes all its gates and does not wait: what is lent on it stays in the
//! device's list until nobody is inside.
//!
//! # Who is trusted with what
//!
//! Addresses come from the peer and are used on the peer's own memory alone: it is the process that
//! had the secret sample, and before each piece it is asked of pidfd and socket whether it still
//! lives. No system call takes a pidfd for this, so between that question and the call its number
//! could in principle pass to another process of the same user, if it ends and the numbers have gone
//! round in that moment. A peer that lies about addresses spoils itself. One that never leaves a gate gets `deregister` to fail, no more. It may run
//! as the same user only, and could stop or trace us anyway.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use hcomm_transport_abi::{
    Fault, Host, STATUS_BUSY, STATUS_PEER_LOST, STATUS_STALE_KEY, STATUS_SYSTEM, STATUS_UNSUPPORTED,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

use crate::channel::End;
use crate::device::{lock, random_token};
use crate::passage::{self, Inside};
use crate::region::RegionCore;
use crate::segment::{GATES, LINE_BYTES, Segment};
use crate::sys::{Mapping, Span, peer_of, read_process, write_process};
use crate::wire::{Loan, Sample, Token};

/// Moved by one system call: what a deregistration waits for at most.
const PIECE_BYTES: u64 = 1 << 20;
/// Reduced in one go, in memory of our own that stays in the cache. A multiple of every element.
const BOUNCE_BYTES: u64 = 64 << 10;
/// How long `deregister` waits for a peer that lives and does not leave.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a process that was seen to live is taken for the same: process numbers do not go round
/// in that time.
const TRUST_MS: u64 = 50;
/// The gate to the sample; its number is the channel's.
const SAMPLE_GATE: u32 = 0;
/// Words of a sample: what is read, and behind it what is written.
const SAMPLE_WORDS: usize = 4;

/// Which process the peer is, and whether it still lives.
#[derive(Debug)]
pub(crate) struct Life {
    pid: Pid,
    pidfd: OwnedFd,
    socket: Arc<OwnedFd>,
    /// We have shut the socket down: it tells nothing of the peer any more.
    parted: AtomicBool,
}

/// The owner's half: what it lends on one channel.
#[derive(Debug)]
pub(crate) struct Lender {
    end: Arc<End>,
    sample: Option<Box<[AtomicU64; SAMPLE_WORDS]>>,
    offer: Sample,
    peer: OnceLock<Arc<Life>>,
    gates: Mutex<Gates>,
}

/// For whom gates are open, as the owner remembers it: the peer may write over the words.
#[derive(Debug, Default)]
struct Gates {
    regions: Vec<u64>,
    ended: bool,
}

/// The half of the side that moves the bytes.
#[derive(Debug)]
pub(crate) struct Reach {
    life: Arc<Life>,
    bounce: Mapping,
    /// Why it is not used any more.
    forbidden: OnceLock<String>,
    /// A region of the peer was not lent.
    declined: AtomicBool,
    /// When the peer was last known to live, in ms of the system's clock.
    seen: AtomicU64,
}

/// A region that the peer has lent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    region: u64,
    loan: Loan,
}

/// What is done with the bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Move {
    Write,
    Read,
    WriteReduce(Reduction),
    ReadReduce(Reduction),
}

/// How elements become one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    pub(crate) host: Host,
    pub(crate) element: usize,
    pub(crate) dtype: u32,
    pub(crate) redop: u32,
}

/// Why bytes did not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Failed(i32),
    /// The system forbids it now. Moving the same bytes in another way has the right result.
    Forbidden,
}

impl Life {
    /// The process at the other end of the socket, or why it cannot be known.
    pub(crate) fn of(socket: &Arc<OwnedFd>) -> Result<Self, String> {
        let (pid, _) = peer_of(socket).map_err(|errno| format!("SO_PEERCRED: {errno}"))?;
        let pid = pid.ok_or("the peer lives in a pid namespace that is not seen from this one")?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::NOSYS => "this system has no pidfd (Linux 5.3 has)".to_owned(),
            errno => format!("pidfd of process {pid}: {errno}"),
        })?;
        Ok(Self {
            pid,
            pidfd,
            socket: Arc::clone(socket),
            parted: AtomicBool::new(false),
        })
    }

    /// Whether the process has ended, or let go of the channel: none of its system calls is
    /// under way.
    fn is_over(&self) -> bool {
        let mut ready = [
            PollFd::new(&self.pidfd, PollFlags::IN),
            PollFd::new(&*self.socket, PollFlags::RDHUP),
        ];
        let parted = self.parted.load(Ordering::Acquire);
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut ready[..2 - usize::from(parted)], Some(&now)).is_ok_and(|count| count > 0)
    }
}

impl Lender {
    /// Opens the gate to the sample. The segment is in the memory that the peer will get.
    pub(crate) fn open(end: &Arc<End>, number: u64) -> Result<Arc<Self>, Fault> {
        let content = random_token()?;
        let [first, second] = pair(&content);
        let sample = Box::new([first, second, 0, 0].map(AtomicU64::new));
        let offer = Sample {
            address: sample.as_ptr() as u64,
            content,
        };
        if let Some(gate) = end.segment.gate(SAMPLE_GATE as usize) {
            passage::open(gate, number);
        }
        Ok(Arc::new(Self {
            end: Arc::clone(end),
            sample: Some(sample),
            offer,
            peer: OnceLock::new(),
            gates: Mutex::new(Gates {
                regions: vec![number],
                ended: false,
            }),
        }))
    }

    /// What the peer may try.
    pub(crate) const fn offer(&self) -> Sample {
        self.offer
    }

    /// Says who the peer is.
    pub(crate) fn meet(&self, peer: &Arc<Life>) {
        let _ = self.peer.set(Arc::clone(peer));
    }

    /// Lets the peer reach a region, if it has shown that it can, and a gate is free.
    pub(crate) fn lend(&self, region: &RegionCore) -> Option<Loan> {
        if self.peer.get().is_none() || !self.was_touched() {
            return None;
        }
        let mut gates = lock(&self.gates);
        if gates.ended {
            return None;
        }
        let known = gates.regions.iter().position(|&of| of == region.number);
        let index = match known.or_else(|| gates.regions.iter().position(|&of| of == 0)) {
            Some(index) => index,
            None if gates.regions.len() < GATES => {
                gates.regions.push(0);
                gates.regions.len() - 1
            }
            None => return None,
        };
        let gate = self.end.segment.gate(index)?;
        // Who closes a region does so before it asks for this lock: it finds the gate, or we find
        // the region closed.
        if region.is_closed() {
            return None;
        }
        gates.regions[index] = region.number;
        passage::open(gate, region.number);
        Some(Loan {
            gate: index as u32,
            address: region.address() as u64,
        })
    }

    /// Closes all gates for good.
    pub(crate) fn end(&self) {
        let mut gates = lock(&self.gates);
        gates.ended = true;
        gates.regions.clear();
        for index in 0..GATES {
            if let Some(gate) = self.end.segment.gate(index) {
                passage::close(gate);
            }
        }
        if let Some(peer) = self.peer.get() {
            peer.parted.store(true, Ordering::Release);
        }
    }

    /// Whether it has ended and nobody is inside: it can be forgotten.
    pub(crate) fn is_over(&self) -> bool {
        lock(&self.gates).ended && self.is_empty()
    }

    /// Closes the gate of a region.
    fn call_in(&self, region: u64) {
        let mut gates = lock(&self.gates);
        if let Some(index) = gates.regions.iter().position(|&of| of == region) {
            gates.regions[index] = 0;
            if let Some(gate) = self.end.segment.gate(index) {
                passage::close(gate);
            }
        }
    }

    fn holds(&self, region: u64) -> bool {
        passage::who_is_inside(self.end.segment.inside()) == region && !self.is_lost()
    }

    fn is_empty(&self) -> bool {
        passage::settle::<AtomicU64>();
        passage::who_is_inside(self.end.segment.inside()) == 0 || self.is_lost()
    }

    fn is_lost(&self) -> bool {
        self.peer.get().is_some_and(|peer| peer.is_over())
    }

    /// Whether the peer has written what it should into the sample.
    fn was_touched(&self) -> bool {
        self.sample.as_ref().is_some_and(|words| {
            (0..2).all(|at| {
                words[at + 2].load(Ordering::Acquire) == !words[at].load(Ordering::Relaxed)
            })
        })
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        self.end();
        if !self.is_empty() {
            // A peer may still write to it.
            std::mem::forget(self.sample.take());
        }
    }
}

/// Takes a closed region back from all peers that it was lent to, and waits until none is inside.
///
/// # Errors
/// `STATUS_BUSY` when one that lives does not leave; it may be called again.
pub(crate) fn call_in(lenders: &[Arc<Lender>], region: u64) -> Result<(), Fault> {
    for lender in lenders {
        lender.call_in(region);
    }
    passage::settle::<AtomicU64>();
    let mut begun = None;
    for lender in lenders {
        while lender.holds(region) {
            if begun.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                let pid = lender
                    .peer
                    .get()
                    .map_or_else(|| "unknown".to_owned(), |peer| peer.pid.to_string());
                return Err(Fault::new(
                    STATUS_BUSY,
                    format!(
                        "process {pid} has been inside the memory for {PATIENCE:?} and does not \
                         go on: it is stopped, perhaps by a debugger. The memory must stay until it \
                         continues or ends; then deregister again"
                    ),
                ));
            }
            std::thread::yield_now();
        }
    }
    Ok(())
}

impl Reach {
    /// Tries both ways out on the peer's sample, or says why they are not open. `number` is that
    /// of the peer's channel.
    pub(crate) fn try_out(
        life: &Arc<Life>,
        segment: &Segment,
        number: u64,
        sample: &Sample,
    ) -> Result<Self, String> {
        if sample.address == 0 {
            return Err("the peer offers no direct way".to_owned());
        }
        let bounce = Mapping::private(BOUNCE_BYTES as usize + LINE_BYTES)
            .map_err(|errno| format!("memory for reductions: {errno}"))?;
        let half = sample.content.len() as u64;
        let look = bounce.span().part(0, half).ok_or("no room")?;
        let loan = Loan {
            gate: SAMPLE_GATE,
            address: sample.address,
        };
        let inside = enter(segment, Place::new(number, loan)).ok_or("the peer has ended")?;
        let failed = |call: &str, errno| explain(call, errno, life.pid);
        // A copy that is short ended at memory that is not there.
        let whole = |moved: Result<usize, Errno>| match moved {
            Ok(bytes) if bytes as u64 == half => Ok(()),
            Ok(_) => Err(Errno::FAULT),
            Err(errno) => Err(errno),
        };
        whole(read_process(life.pid, sample.address, look))
            .map_err(|errno| failed("process_vm_readv", errno))?;
        let words = bounce.words();
        let found = [0, 1].map(|at: usize| words[at].load(Ordering::Relaxed));
        if found != pair(&sample.content) {
            return Err(format!(
                "process {} has something else where the peer's sample should be: it is not the \
                 peer",
                life.pid
            ));
        }
        for (word, value) in words.iter().zip(found) {
            word.store(!value, Ordering::Relaxed);
        }
        let second = sample.address.checked_add(half).ok_or("no such address")?;
        whole(write_process(life.pid, second, look))
            .map_err(|errno| failed("process_vm_writev", errno))?;
        drop(inside);
        if life.is_over() {
            return Err("the peer has ended".to_owned());
        }
        Ok(Self {
            life: Arc::clone(life),
            bounce,
            forbidden: OnceLock::new(),
            declined: AtomicBool::new(false),
            seen: AtomicU64::new(0),
        })
    }

    /// Whether the system has not said no.
    pub(crate) fn is_open(&self) -> bool {
        self.forbidden.get().is_none()
    }

    /// Notes that a region of the peer came without a loan.
    pub(crate) fn decline(&self) {
        self.declined.store(true, Ordering::Relaxed);
    }

    /// How user memory of the peer is reached, in words.
    pub(crate) fn describe(&self) -> Result<String, String> {
        if let Some(why) = self.forbidden.get() {
            return Err(why.clone());
        }
        let rest = if self.declined.load(Ordering::Relaxed) {
            "; some regions through the ring, because their owner could not lend them"
        } else {
            ""
        };
        Ok(format!(
            "moves in one copy (process_vm_readv and process_vm_writev, tried out with process {}){rest}",
            self.life.pid
        ))
    }

    /// Moves the bytes of `local` to or from offset `at` of a region.
    pub(crate) fn move_bytes(
        &self,
        segment: &Segment,
        place: Place,
        at: u64,
        local: Span<'_>,
        how: Move,
    ) -> Result<(), Stop> {
        if !self.is_open() {
            return Err(Stop::Forbidden);
        }
        let inside = enter(segment, place).ok_or(Stop::Failed(STATUS_STALE_KEY))?;
        let total = local.bytes() as u64;
        let first = place
            .loan
            .address
            .checked_add(at)
            .filter(|first| first.checked_add(total).is_some())
            .ok_or(Stop::Failed(STATUS_SYSTEM))?;
        let most = match how {
            Move::Write | Move::Read => PIECE_BYTES,
            Move::WriteReduce(_) | Move::ReadReduce(_) => BOUNCE_BYTES,
        };
        let mut done = 0;
        while done < total {
            let bytes = most.min(total - done);
            // As far into a line as the peer's memory: where the target lies a few bytes further in
            // than the source, a Zen 3 takes four times as long to copy.
            let bounce = self
                .bounce
                .span()
                .part((first + done) % LINE_BYTES as u64, bytes.min(BOUNCE_BYTES));
            let (Some(local), Some(bounce)) = (local.part(done, bytes), bounce) else {
                return Err(Stop::Failed(STATUS_SYSTEM));
            };
            if !inside.is_open() {
                return Err(Stop::Failed(STATUS_STALE_KEY));
            }
            // Last, to leave no more than a moment.
            if self.life.is_over() {
                return Err(Stop::Failed(STATUS_PEER_LOST));
            }
            let step = self.step(first + done, local, bounce, how);
            match step {
                // What was reduced must not be reduced again.
                Err(Stop::Forbidden) if done > 0 && !matches!(how, Move::Write | Move::Read) => {
                    return Err(Stop::Failed(STATUS_SYSTEM));
                }
                step => step?,
            }
            done += bytes;
        }
        Ok(())
    }

    /// Copies memory that the peer lends in a way that the host watches over: what was copied while
    /// it was taken back is not used. So there is no gate to it, and what a process of the same
    /// number holds that came after the peer does no harm as long as the peer is known to have lived
    /// a moment ago.
    pub(crate) fn fetch(&self, local: Span<'_>, address: u64) -> Result<(), i32> {
        if !self.is_open() {
            return Err(STATUS_UNSUPPORTED);
        }
        in_pieces(local, address, |part, at| {
            match self.whole("process_vm_readv", read_process, at, part) {
                Ok(()) => Ok(()),
                Err(Stop::Failed(status)) => Err(status),
                Err(Stop::Forbidden) => Err(STATUS_UNSUPPORTED),
            }
        })?;
        if local.bytes() > 0 && !self.lives() {
            return Err(STATUS_PEER_LOST);
        }
        Ok(())
    }

    /// Whether the peer lives, or did so less than [`TRUST_MS`] ago.
    fn lives(&self) -> bool {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        let now = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
        let seen = self.seen.load(Ordering::Relaxed);
        if seen != 0 && now.saturating_sub(seen) < TRUST_MS {
            return true;
        }
        if self.life.is_over() {
            return false;
        }
        self.seen.store(now, Ordering::Relaxed);
        true
    }

    fn step(&self, address: u64, local: Span<'_>, bounce: Span<'_>, how: Move) -> Result<(), Stop> {
        match how {
            Move::Write => self.whole("process_vm_writev", write_process, address, local),
            Move::Read => self.whole("process_vm_readv", read_process, address, local),
            Move::ReadReduce(reduction) => {
                self.whole("process_vm_readv", read_process, address, bounce)?;
                reduction.apply(local, bounce)
            }
            Move::WriteReduce(reduction) => {
                self.whole("process_vm_readv", read_process, address, bounce)?;
                reduction.apply(bounce, local)?;
                // A part of it may be there already, and must not be reduced again.
                self.whole("process_vm_writev", write_process, address, bounce)
                    .map_err(|stop| match stop {
                        Stop::Forbidden => Stop::Failed(STATUS_SYSTEM),
                        stop => stop,
                    })
            }
        }
    }

    /// Calls until all of `local` is moved: the kernel may stop anywhere.
    fn whole(
        &self,
        name: &str,
        call: fn(Pid, u64, Span<'_>) -> Result<usize, Errno>,
        address: u64,
        local: Span<'_>,
    ) -> Result<(), Stop> {
        let (mut done, total) = (0, local.bytes() as u64);
        while let Some(rest) = local.part(done, total - done).filter(|_| done < total) {
            match call(self.life.pid, address + done, rest) {
                Ok(0) => return Err(self.judge(name, Errno::FAULT)),
                Ok(bytes) => done += bytes as u64,
                Err(errno) => return Err(self.judge(name, errno)),
            }
        }
        Ok(())
    }

    /// What a failure means: the peer is dying, the memory is not there on one of the sides, or
    /// the system has changed its mind.
    fn judge(&self, name: &str, errno: Errno) -> Stop {
        match errno {
            Errno::SRCH => Stop::Failed(STATUS_PEER_LOST),
            _ if self.life.is_over() => Stop::Failed(STATUS_PEER_LOST),
            Errno::PERM | Errno::ACCESS | Errno::NOSYS => {
                let _ = self.forbidden.set(explain(name, errno, self.life.pid));
                Stop::Forbidden
            }
            _ => Stop::Failed(STATUS_SYSTEM),
        }
    }
}

/// Hands a copy out in pieces, each with its address at the peer.
fn in_pieces<'a>(
    local: Span<'a>,
    address: u64,
    mut copy: impl FnMut(Span<'a>, u64) -> Result<(), i32>,
) -> Result<(), i32> {
    let total = local.bytes() as u64;
    let mut done = 0;
    while done < total {
        let bytes = PIECE_BYTES.min(total - done);
        let part = local.part(done, bytes).ok_or(STATUS_SYSTEM)?;
        copy(part, address.checked_add(done).ok_or(STATUS_SYSTEM)?)?;
        done += bytes;
    }
    Ok(())
}

/// Copies memory that another rank of this process lends; of zero bytes, whether that is possible.
/// By the kernel, too: memory that is there no more is an error then.
pub(crate) fn fetch_own(local: Span<'_>, address: u64) -> Result<(), i32> {
    if local.bytes() > 0 {
        return in_pieces(local, address, |part, at| {
            match read_process(getpid(), at, part) {
                Ok(moved) if moved == part.bytes() => Ok(()),
                _ => Err(STATUS_SYSTEM),
            }
        });
    }
    let word = Mapping::private(LINE_BYTES).map_err(|_| STATUS_UNSUPPORTED)?;
    let (from, to) = (word.span().part(0, 8), word.span().part(8, 8));
    let (Some(from), Some(to)) = (from, to) else {
        return Err(STATUS_UNSUPPORTED);
    };
    match read_process(getpid(), from.address() as u64, to) {
        Ok(8) => Ok(()),
        _ => Err(STATUS_UNSUPPORTED),
    }
}

impl Place {
    pub(crate) const fn new(region: u64, loan: Loan) -> Self {
        Self { region, loan }
    }
}

impl Reduction {
    fn apply(self, to: Span<'_>, from: Span<'_>) -> Result<(), Stop> {
        to.reduce_from(from, self.host, self.element, self.dtype, self.redop)
            .map_err(Stop::Failed)
    }
}

/// Tells the owner that we are inside; `None` if the gate is not open.
fn enter(segment: &Segment, place: Place) -> Option<Inside<'_, AtomicU64>> {
    let gate = segment.gate(place.loan.gate as usize)?;
    Inside::enter(segment.inside(), gate, place.region)
}

/// The two words of a sample's content.
fn pair(content: &Token) -> [u64; 2] {
    let both = u128::from_ne_bytes(*content).to_le();
    [both as u64, (both >> 64) as u64].map(u64::from_le)
}

/// Why a call is not possible, and what stands in the way as far as the system tells.
fn explain(call: &str, errno: Errno, pid: Pid) -> String {
    let setting = |path: &str| std::fs::read_to_string(path).ok();
    match errno {
        Errno::PERM | Errno::ACCESS => {
            let yama = setting("/proc/sys/kernel/yama/ptrace_scope")
                .map(|scope| scope.trim().to_owned())
                .filter(|scope| scope != "0")
                .map(|scope| format!("yama's ptrace_scope is {scope}"));
            let seccomp = setting("/proc/self/status")
                .filter(|status| status.lines().any(|line| line == "Seccomp:\t2"))
                .map(|_| "a seccomp filter is in force".to_owned());
            let causes: Vec<String> = yama.into_iter().chain(seccomp).collect();
            let causes = if causes.is_empty() {
                "no CAP_SYS_PTRACE for a process of another user namespace, or one that may not \
                 be traced"
                    .to_owned()
            } else {
                causes.join(" and ")
            };
            format!("{call} on process {pid} is forbidden: {causes}")
        }
        Errno::SRCH => format!(
            "{call}: no process {pid} here: the peer has ended, or lives in another pid namespace"
        ),
        Errno::NOSYS => format!("this system has no {call}"),
        Errno::FAULT => format!("{call} finds no memory where process {pid} says it is"),
        errno => format!("{call} on process {pid}: {errno}"),
    }
}
