//! Both ends of a ring in one OS thread, over memory of the process.

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::ring::{CELL, Head, Shape, Tail, Words, lines};

/// Words of an inbox.
struct Memory(Box<[AtomicU64]>);

impl Memory {
    fn new(shape: Shape) -> Self {
        Self((0..shape.bytes() / 8).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Words for Memory {
    fn load(&self, word: usize) -> u64 {
        self.0[word].load(Ordering::Acquire)
    }

    fn store(&self, word: usize, value: u64) {
        self.0[word].store(value, Ordering::Release);
    }
}

#[test]
fn an_inbox_has_its_parts_one_after_the_other() {
    for data in [0, 1, 64, 1000, 4096, 256 << 10, 100 << 20] {
        let shape = Shape::for_data(data);
        let cells = (shape.at(0) / 8) as usize - lines::CELLS;
        assert_eq!(shape.header(0), lines::CELLS);
        assert_eq!(shape.header((cells / 8) as u64), lines::CELLS);
        assert_eq!(shape.at(shape.data() - 1) + 1, shape.bytes());
        assert_eq!(shape.at(0) % CELL, 0);
        assert!(shape.data() + CELL > data && shape.most_short() >= 56);
    }
}

#[test]
fn credit_that_cannot_be_is_not_believed() {
    let shape = Shape::for_data(4096);
    let (own, tail) = (Memory::new(shape), Tail::default());
    let mut sent = 0;
    while tail.has_cells(shape, &own, 1) {
        tail.add_cells(1);
        sent += 1;
    }
    for told in [sent + 1, u64::MAX, u64::MAX / 2] {
        own.store(lines::CREDIT_CELLS, told);
        assert!(!tail.has_cells(shape, &own, 1), "{told} of {sent}");
    }
    own.store(lines::CREDIT_CELLS, 5);
    assert!(tail.has_cells(shape, &own, 5));
    // Nor that something was not taken after all.
    own.store(lines::CREDIT_CELLS, 2);
    assert!(tail.has_cells(shape, &own, 5) && !tail.has_cells(shape, &own, 6));
}

proptest! {
    /// What was written and not read is never written again, and a receiver that has taken all
    /// leaves room for a message of the whole ring.
    #[test]
    fn nothing_is_overwritten_and_nothing_runs_short(
        data in 64u64..5000, steps in prop::collection::vec((any::<bool>(), 0u64..6000), 1..300),
    ) {
        let shape = Shape::for_data(data);
        let inbox = Memory::new(shape);
        let (tail, head) = (Tail::default(), Head::default());
        // Pieces on the way: position and length.
        let mut under_way = std::collections::VecDeque::new();
        let (mut sent, mut taken) = (0u64, 0u64);
        for (sends, size) in steps {
            if sends {
                let left = size.max(1);
                let most = shape.data() / 4;
                if tail.has_cells(shape, &inbox, 1)
                    && let Some(room) = tail.room(shape, &inbox, left, most)
                {
                    prop_assert!(room.bytes > 0 && room.bytes <= left);
                    prop_assert!(room.position % shape.data() + room.bytes <= shape.data());
                    prop_assert_eq!(room.position, sent);
                    tail.add_cells(1);
                    tail.add_data(room.bytes);
                    under_way.push_back(room);
                    sent += room.bytes.next_multiple_of(CELL);
                }
                prop_assert!(sent - taken <= shape.data());
            } else if let Some(room) = under_way.pop_front() {
                prop_assert_eq!(head.data(), room.position);
                head.take_cells(1);
                head.take_data(room.bytes);
                taken += room.bytes.next_multiple_of(CELL);
                if size % 2 == 0 || head.owes(shape) || head.owes_data(shape) {
                    head.tell(&inbox);
                }
            }
        }
        for room in under_way {
            head.take_cells(1);
            head.take_data(room.bytes);
            if head.owes(shape) {
                head.tell(&inbox);
            }
        }
        // The end of a message tells of all data.
        head.tell(&inbox);
        let mut left = shape.data();
        while left > 0 {
            prop_assert!(tail.has_cells(shape, &inbox, 1));
            let room = tail.room(shape, &inbox, left, shape.data() / 4);
            prop_assert!(room.is_some(), "{left} left");
            let room = room.unwrap();
            tail.add_cells(1);
            tail.add_data(room.bytes);
            left -= room.bytes;
        }
    }
}
