//! Vector clocks.
//!
//! Components below the number of threads belong to a thread each: the value of its own component
//! is the number of records the thread has made, plus one. The components above belong to a pair
//! of a thread and a peer it writes to: their value counts the records between them.

use std::rc::Rc;

/// A moment that can be before others: an access, by the component that carries it.
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
    landed: Option<Moment>,
}

impl Clock {
    pub(super) fn new(components: usize, own: usize) -> Self {
        let mut known = vec![0; components];
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

    /// Whether a moment is before the thread's next task.
    pub(super) fn covers(&self, moment: Moment) -> bool {
        covers(&self.known, moment)
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
        for moment in [Some(message.own), message.landed].into_iter().flatten() {
            let known = &mut self.known[moment.component as usize];
            *known = (*known).max(moment.value);
        }
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

/// Whether a moment is among what is known.
pub(super) fn covers(known: &[u32], moment: Moment) -> bool {
    known[moment.component as usize] >= moment.value
}
