//! What is on its way, and when it is there.

use core::sync::atomic::{AtomicI32, Ordering};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use hcomm_transport_abi::{
    CompletionV1, OP_READ, OP_READ_REDUCE, OP_WRITE, OP_WRITE_REDUCE, STATUS_NO_RESOURCE, STATUS_OK,
};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::channel::End;
use crate::device::{BYTES_PER_S, LATENCY_NS, lock};
use crate::region::Memory;
use crate::sys::{self, Job};

/// One end's way to the peer, and the way back of its answers. Both keep their order.
#[derive(Debug)]
pub(crate) struct Wire {
    state: Mutex<State>,
    /// What `flush` has to report: a failure that was not polled yet.
    failure: AtomicI32,
    room: usize,
}

#[derive(Debug)]
struct State {
    there: VecDeque<Parcel>,
    /// When the line can take the next one.
    there_free_ns: u64,
    back: VecDeque<Answer>,
    back_free_ns: u64,
}

/// A descriptor on its way.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) job: Job,
    /// None for a notify.
    pub(crate) memory: Option<Arc<Memory>>,
    pub(crate) notify: Option<u32>,
    arrives_ns: u64,
}

/// What became of it, on its way back.
#[derive(Clone, Copy, Debug)]
struct Answer {
    cookie: u64,
    status: i32,
    arrives_ns: u64,
}

impl Parcel {
    pub(crate) const fn new(job: Job, memory: Option<Arc<Memory>>, notify: Option<u32>) -> Self {
        Self {
            job,
            memory,
            notify,
            arrives_ns: 0,
        }
    }

    /// Carries it out at `end`, where it has arrived.
    fn carry_out(&self, end: &End) -> Result<(), i32> {
        if let Some(memory) = &self.memory {
            let (span, _copying) = memory.enter()?;
            sys::transfer(self.job.descriptor(), span)?;
        }
        if let Some(index) = self.notify {
            end.record(index, self.job.descriptor().fingerprint);
        }
        Ok(())
    }

    fn bytes_there(&self) -> u64 {
        let descriptor = self.job.descriptor();
        match descriptor.opcode {
            OP_WRITE | OP_WRITE_REDUCE => descriptor.bytes,
            _ => 0,
        }
    }

    fn bytes_back(&self) -> u64 {
        let descriptor = self.job.descriptor();
        match descriptor.opcode {
            OP_READ | OP_READ_REDUCE => descriptor.bytes,
            _ => 0,
        }
    }
}

/// Puts bytes on a line that is free from `free_ns` on; says when the last of them arrives.
fn send(free_ns: &mut u64, now_ns: u64, bytes: u64) -> u64 {
    let takes_ns = u128::from(bytes) * 1_000_000_000 / u128::from(BYTES_PER_S);
    *free_ns = now_ns.max(*free_ns) + takes_ns as u64;
    *free_ns + LATENCY_NS
}

impl Wire {
    pub(crate) fn new(room: usize) -> Self {
        Self {
            state: Mutex::new(State {
                there: VecDeque::with_capacity(room),
                there_free_ns: 0,
                back: VecDeque::with_capacity(room),
                back_free_ns: 0,
            }),
            failure: AtomicI32::new(STATUS_OK),
            room,
        }
    }

    /// Takes a parcel; says when it arrives.
    pub(crate) fn take(&self, mut parcel: Parcel, now_ns: u64) -> Result<u64, i32> {
        let mut state = lock(&self.state);
        if state.there.len() + state.back.len() >= self.room {
            return Err(STATUS_NO_RESOURCE);
        }
        parcel.arrives_ns = send(&mut state.there_free_ns, now_ns, parcel.bytes_there());
        let arrives_ns = parcel.arrives_ns;
        state.there.push_back(parcel);
        Ok(arrives_ns)
    }

    /// Carries out, at the peer's end, what has arrived. Says how much, and when the first answer
    /// to it is back.
    ///
    /// Once something failed, all that is behind it fails alike until that was polled: a notify
    /// among it would tell of bytes that never came.
    pub(crate) fn arrive(&self, at: &End, now_ns: u64) -> (usize, Option<u64>) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let mut arrived = 0;
        let mut first_answer = None;
        while let Some(parcel) = state.there.front()
            && parcel.arrives_ns <= now_ns
        {
            let status = match self.failure.load(Ordering::Relaxed) {
                STATUS_OK => parcel.carry_out(at).err().unwrap_or(STATUS_OK),
                failure => failure,
            };
            if status != STATUS_OK {
                self.failure.store(status, Ordering::Relaxed);
            }
            let bytes = if status == STATUS_OK {
                parcel.bytes_back()
            } else {
                0
            };
            let arrives_ns = send(&mut state.back_free_ns, now_ns, bytes);
            first_answer.get_or_insert(arrives_ns);
            state.back.push_back(Answer {
                cookie: parcel.job.descriptor().cookie,
                status,
                arrives_ns,
            });
            state.there.pop_front();
            arrived += 1;
        }
        (arrived, first_answer)
    }

    /// Hands out answers that are back; returns how many.
    pub(crate) fn answers(&self, out: &mut [CompletionV1], now_ns: u64) -> usize {
        let mut state = lock(&self.state);
        let mut found = 0;
        while found < out.len()
            && let Some(answer) = state.back.front()
            && answer.arrives_ns <= now_ns
        {
            out[found] = CompletionV1 {
                cookie: answer.cookie,
                status: answer.status,
                reserved: 0,
            };
            found += 1;
            state.back.pop_front();
        }
        if found > 0 && state.there.is_empty() && state.back.is_empty() {
            self.failure.store(STATUS_OK, Ordering::Relaxed);
        }
        found
    }

    /// The peer is lost: everything that has no answer yet has this one, now.
    pub(crate) fn fail_all(&self, status: i32) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        for answer in &mut state.back {
            answer.arrives_ns = 0;
        }
        for parcel in state.there.drain(..) {
            state.back.push_back(Answer {
                cookie: parcel.job.descriptor().cookie,
                status,
                arrives_ns: 0,
            });
        }
    }

    /// Whether everything has arrived, and the word of it is back.
    pub(crate) fn is_flushed(&self, now_ns: u64) -> Result<bool, i32> {
        let state = lock(&self.state);
        let failure = self.failure.load(Ordering::Relaxed);
        if failure != STATUS_OK {
            return Err(failure);
        }
        let back = state.back.back();
        Ok(state.there.is_empty() && back.is_none_or(|answer| answer.arrives_ns <= now_ns))
    }

    /// When the next parcel arrives at the peer.
    pub(crate) fn next_arrival_ns(&self) -> Option<u64> {
        let state = lock(&self.state);
        state.there.front().map(|parcel| parcel.arrives_ns)
    }

    /// When the next answer is back.
    pub(crate) fn next_answer_ns(&self) -> Option<u64> {
        let state = lock(&self.state);
        state.back.front().map(|answer| answer.arrives_ns)
    }

    /// Drops everything: the end it belongs to is destroyed.
    pub(crate) fn cut(&self) {
        let mut state = lock(&self.state);
        state.there.clear();
        state.back.clear();
    }
}

/// A timer that is readable from the time on when something is there.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: OwnedFd,
    /// What it is set to; never, if it is not set.
    at_ns: Mutex<u64>,
}

const NEVER: u64 = u64::MAX;

impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self {
            timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            at_ns: Mutex::new(NEVER),
        })
    }

    pub(crate) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Rings at this time, too.
    pub(crate) fn add(&self, at_ns: u64, now_ns: u64) {
        let mut set_ns = lock(&self.at_ns);
        if at_ns < *set_ns {
            *set_ns = at_ns;
            // A time of zero would switch it off.
            self.set(at_ns.saturating_sub(now_ns).max(1));
        }
    }

    /// Forgets everything, and is not readable.
    pub(crate) fn clear(&self) {
        let mut set_ns = lock(&self.at_ns);
        if *set_ns != NEVER {
            *set_ns = NEVER;
            self.set(0);
        }
    }

    fn set(&self, in_ns: u64) {
        let timespec = |ns: u64| Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as _,
        };
        let times = Itimerspec {
            it_interval: timespec(0),
            it_value: timespec(in_ns),
        };
        // It fails for bad arguments only.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wait_for_the_line_and_then_for_the_way() {
        let mut free_ns = 0;
        // 125 bytes take 10 ns.
        assert_eq!(send(&mut free_ns, 1000, 125), 1010 + LATENCY_NS);
        assert_eq!(send(&mut free_ns, 1000, 250), 1030 + LATENCY_NS);
        assert_eq!(send(&mut free_ns, 1000, 0), 1030 + LATENCY_NS);
        assert_eq!(send(&mut free_ns, 5000, 0), 5000 + LATENCY_NS);
        assert_eq!(
            send(&mut free_ns, 0, BYTES_PER_S),
            5000 + 1_000_000_000 + LATENCY_NS
        );
    }
}
