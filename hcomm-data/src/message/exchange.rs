//! The exchange line: when a side may write its half, and what it finds in the other one.
//!
//! A side writes its half again when the peer has said, in a message in the other half, that it has
//! taken the one before. One OS thread sends and another one may receive, so what the receiving one
//! has learned is handed to the sending one in order.

use std::sync::atomic::Ordering;

use hcomm_transport::sync::AtomicU64;

use super::header::Exchanged;
use super::ring::Words;

/// What a side has sent in its half.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    messages: AtomicU64,
    /// How many of them the peer is known to have taken.
    acknowledged: AtomicU64,
}

/// How many messages a side has taken from the peer's half.
#[derive(Debug, Default)]
pub(crate) struct Taken(AtomicU64);

impl Sent {
    /// Whether the next message may go into the half.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        // Its payload is written only after the peer has read the one before.
        self.messages.load(Ordering::Relaxed) == self.acknowledged.load(Ordering::Acquire)
    }

    /// Writes a message into the half, which is free: `fill` stores its payload, and then goes
    /// `header`, with its counts, to the word `half` of the line.
    #[inline]
    pub(crate) fn send(
        &self,
        taken: &Taken,
        line: &impl Words,
        half: usize,
        header: Exchanged,
        fill: impl FnOnce(),
    ) {
        let number = self.messages.load(Ordering::Relaxed) + 1;
        let header = Exchanged {
            number: number as u16,
            taken: taken.0.load(Ordering::Acquire) as u16,
            ..header
        };
        fill();
        // Before the peer can answer: another OS thread may receive.
        self.messages.store(number, Ordering::Relaxed);
        line.store(half, header.word());
    }
}

impl Taken {
    /// The header of the next message, if the word `half` of the line is that, and it comes before
    /// the cell at `position`.
    #[inline]
    pub(crate) fn next(&self, line: &impl Words, half: usize, position: u16) -> Option<u64> {
        let word = line.load(half);
        let number = self.0.load(Ordering::Relaxed).wrapping_add(1) as u16;
        Exchanged::is(word, number, position).then_some(word)
    }

    /// Takes the message of which that is the header: `empty` loads its payload.
    #[inline]
    pub(crate) fn take(&self, header: Exchanged, sent: &Sent, empty: impl FnOnce()) {
        empty();
        let taken = self.0.load(Ordering::Relaxed) + 1;
        self.0.store(taken, Ordering::Release);
        let messages = sent.messages.load(Ordering::Relaxed);
        if header.taken == messages as u16 {
            sent.acknowledged.store(messages, Ordering::Release);
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use hcomm_transport::sync::model::{Plain, Wrong, check, check_when};
    use hcomm_types::DataType;
    use loom::thread;

    use super::*;

    const MESSAGES: u64 = 2;
    const HEADER: Exchanged = Exchanged {
        number: 0,
        bytes: 8,
        dtype: DataType::U8,
        position: 0,
        taken: 0,
    };

    /// Two halves, each a header and its payload.
    #[derive(Default)]
    struct Line {
        headers: [AtomicU64; 2],
        payload: [Plain<u64>; 2],
    }

    // The orders of the real line.
    impl Words for Line {
        fn load(&self, word: usize) -> u64 {
            self.headers[word].load(Ordering::Acquire)
        }

        fn store(&self, word: usize, value: u64) {
            self.headers[word].store(value, Ordering::Release);
        }
    }

    #[derive(Default)]
    struct Side {
        sent: Sent,
        taken: Taken,
    }

    impl Side {
        fn send(&self, line: &Line, half: usize, value: u64) {
            let fill = || line.payload[half].set(value);
            self.sent.send(&self.taken, line, half, HEADER, fill);
        }

        fn recv(&self, line: &Line, half: usize) -> u64 {
            let word = loop {
                match self.taken.next(line, half, 0) {
                    Some(word) => break word,
                    None => thread::yield_now(),
                }
            };
            let mut value = 0;
            let empty = || value = line.payload[half].get();
            let header = Exchanged::of(word).unwrap();
            self.taken.take(header, &self.sent, empty);
            value
        }
    }

    /// Both sides send and receive in turn.
    fn there_and_back() {
        let shared = Arc::new(Line::default());
        let answerer = Arc::clone(&shared);
        let answering = thread::spawn(move || {
            let side = Side::default();
            for message in 1..=MESSAGES {
                assert_eq!(side.recv(&answerer, 0), message);
                assert!(side.sent.is_free());
                side.send(&answerer, 1, message + MESSAGES);
            }
        });
        let side = Side::default();
        for message in 1..=MESSAGES {
            assert!(side.sent.is_free());
            side.send(&shared, 0, message);
            assert_eq!(side.recv(&shared, 1), message + MESSAGES);
        }
        answering.join().unwrap();
    }

    /// One side has sent on an OS thread, which writes its half again as soon as another one has
    /// received the answer.
    fn sent_and_received_apart() {
        let shared = Arc::new((Line::default(), Side::default()));
        shared.1.send(&shared.0, 0, 1);
        let answerer = Arc::clone(&shared);
        let answering = thread::spawn(move || {
            let (line, side) = (&answerer.0, Side::default());
            assert_eq!(side.recv(line, 0), 1);
            side.send(line, 1, 2);
        });
        let receiver = Arc::clone(&shared);
        let receiving = thread::spawn(move || {
            let (line, side) = &*receiver;
            if side.taken.next(line, 1, 0).is_some() {
                assert_eq!(side.recv(line, 1), 2);
            }
        });
        let (line, side) = &*shared;
        if side.sent.is_free() {
            side.send(line, 0, 3);
        }
        answering.join().unwrap();
        receiving.join().unwrap();
    }

    #[test]
    fn no_half_is_read_early_or_written_again_early() {
        check(there_and_back);
    }

    #[test]
    fn nor_if_one_thread_sends_and_another_receives() {
        check(sent_and_received_apart);
    }

    #[test]
    #[should_panic]
    fn without_order_one_is() {
        check_when(Wrong::NoOrder, there_and_back);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_order_one_thread_does_not_see_what_another_has_done() {
        check_when(Wrong::NoOrder, sent_and_received_apart);
    }
}
