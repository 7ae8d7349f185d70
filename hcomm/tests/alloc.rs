//! Nothing is taken from the heap by any primitive over shared memory, once all is warm: two ranks,
//! one an OS thread.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod primitives;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use hcomm::{Communicator, Result};

use primitives::Watcher;

struct Counting;

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // Not while the OS thread ends.
    let _ = TAKEN.try_with(|taken| taken.set(taken.get() + 1));
}

// SAFETY: the system's allocator does the work; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(address, layout, bytes) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Pieces of the heap that this OS thread takes in each phase.
#[derive(Default)]
struct Pieces {
    before: u64,
    phases: Vec<(String, u64)>,
}

impl Watcher for Pieces {
    fn begin(&mut self, _: &str, _: u32) -> Result<()> {
        self.before = TAKEN.get();
        Ok(())
    }

    fn end(&mut self, name: &str, _: u32) -> Result<()> {
        let taken = TAKEN.get() - self.before;
        self.phases.push((name.to_owned(), taken));
        Ok(())
    }
}

#[test]
fn the_counter_counts() {
    let mut pieces = Pieces::default();
    pieces.begin("", 1).unwrap();
    drop(std::hint::black_box(Box::new(5)));
    pieces.end("a box", 1).unwrap();
    assert_eq!(pieces.phases, [("a box".to_owned(), 1)]);
}

#[test]
fn no_primitive_takes_anything() {
    let comms = Communicator::init_all(2).unwrap();
    let phases = std::thread::scope(|scope| {
        let ranks: Vec<_> = comms
            .into_iter()
            .map(|comm| {
                scope.spawn(move || {
                    let mut pieces = Pieces::default();
                    primitives::run(&comm, 100, &mut pieces).unwrap();
                    comm.close().unwrap();
                    pieces.phases
                })
            })
            .collect();
        ranks
            .into_iter()
            .flat_map(|rank| rank.join().unwrap())
            .collect::<Vec<_>>()
    });
    assert!(phases.len() > 40, "{phases:?}");
    let taking: Vec<_> = phases.iter().filter(|(_, taken)| *taken > 0).collect();
    assert!(taking.is_empty(), "{taking:?}");
}
