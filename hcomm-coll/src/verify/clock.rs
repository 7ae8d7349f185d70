//! Vector clocks.
//!
//! A clock has a component for each thread, whose value is the number of records the thread has
//! made, plus one. Writes into a peer's memory are not at the thread's own time: they have landed
//! when a later record to that peer has been waited for. [`Landings`] remembers these waits, so
//! whether somebody knows that a write has landed is whether they know of such a wait.

use std::rc::Rc;

use smallvec::SmallVec;

/// A moment that can be before others. The component is a thread; or, from the number of threads
/// on, a pair of a thread and a peer it writes to, and then the value is the number of the first
/// record between them that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) component: u32,
    pub(super) value: u32,
}

/// What a thread knows to be before its next task.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    known: Vec<u32>,
    own: usize,
    /// `known` as last sent, as long as nothing but the own component has changed since.
    sent: Option<Rc<[u32]>>,
}

/// What a record carries to its wait.
#[derive(Clone, Debug)]
pub(super) struct Message {
    known: Rc<[u32]>,
    own: Moment,
    pub(super) landed: Option<Moment>,
}

impl Clock {
    pub(super) fn new(threads: usize, own: usize) -> Self {
        let mut known = vec![0; threads];
        known[own] = 1;
        Self {
            known,
            own,
            sent: None,
        }
    }

    /// The moment of the thread's next access to memory.
    pub(super) fn now(&self) -> Moment {
        Moment {
            component: self.own as u32,
            value: self.known[self.own],
        }
    }

    /// Makes a record, which carries all that is known; `landed` says which writes come before it.
    pub(super) fn send(&mut self, landed: Option<Moment>) -> Message {
        let known = Rc::clone(
            self.sent
                .get_or_insert_with(|| self.known.as_slice().into()),
        );
        let own = self.now();
        self.known[self.own] += 1;
        Message { known, own, landed }
    }

    /// Takes in what a record carried.
    pub(super) fn receive(&mut self, message: &Message) {
        self.join(&message.known);
        let known = &mut self.known[message.own.component as usize];
        *known = (*known).max(message.own.value);
    }

    /// Takes in all that somebody else knows.
    pub(super) fn join(&mut self, other: &[u32]) {
        self.sent = None;
        for (mine, theirs) in self.known.iter_mut().zip(other) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Separates what comes from what was, when somebody else has taken in all that is known.
    pub(super) fn advance(&mut self) {
        self.known[self.own] += 1;
    }

    pub(super) fn known(&self) -> &[u32] {
        &self.known
    }
}

/// Which waits have shown that writes have landed.
#[derive(Debug)]
pub(super) struct Landings {
    threads: usize,
    /// By pair of writing thread and peer: for each thread of the peer, what its waits have shown.
    seen: Vec<SmallVec<[Seen; 1]>>,
}

#[derive(Debug)]
struct Seen {
    thread: u32,
    /// Number of the record that was waited for and the waiter's own time; both only grow.
    waits: Vec<(u32, u32)>,
}

impl Landings {
    pub(super) fn new(threads: usize, pairs: usize) -> Self {
        let seen = (0..pairs).map(|_| SmallVec::new()).collect();
        Self { threads, seen }
    }

    /// Remembers a wait for a record that writes came before.
    pub(super) fn show(&mut self, landed: Moment, wait: Moment) {
        let seen = &mut self.seen[landed.component as usize - self.threads];
        let waits = match seen.iter_mut().find(|seen| seen.thread == wait.component) {
            Some(seen) => &mut seen.waits,
            None => {
                seen.push(Seen {
                    thread: wait.component,
                    waits: Vec::new(),
                });
                &mut seen.last_mut().expect("just pushed").waits
            }
        };
        // A wait for an older record shows nothing that this thread had not seen.
        if waits
            .last()
            .is_none_or(|(record, _)| *record < landed.value)
        {
            waits.push((landed.value, wait.value));
        }
    }
}

/// All that is before some point of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Past<'r> {
    pub(super) known: &'r [u32],
    pub(super) landings: &'r Landings,
}

impl Past<'_> {
    /// Whether a moment is before this point.
    pub(super) fn covers(&self, moment: Moment) -> bool {
        let Moment { component, value } = moment;
        let Some(pair) = (component as usize).checked_sub(self.landings.threads) else {
            return covers(self.known, moment);
        };
        self.landings.seen[pair].iter().any(|seen| {
            let first = seen.waits.partition_point(|(record, _)| *record < value);
            seen.waits.get(first).is_some_and(|(_, time)| {
                covers(
                    self.known,
                    Moment {
                        component: seen.thread,
                        value: *time,
                    },
                )
            })
        })
    }
}

/// Whether a moment of a thread's own time is among what is known.
pub(super) fn covers(known: &[u32], moment: Moment) -> bool {
    known[moment.component as usize] >= moment.value
}
