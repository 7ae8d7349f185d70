//! Memory that a rank lends to its peers' processes for the time of a run.
//!
//! Buffers of a caller are mapped by nobody else, but where the system allows it a peer can copy from
//! them by itself ([`hcomm_transport::Channel::fetch`]). For that a run says in a line of its scratch
//! memory, which peers map, where its buffers are, and takes that back when it is over, also by an
//! error. A peer looks for the line after it was told that the run has begun, copies, and looks again:
//! bytes that were taken back meanwhile are not used. What was taken back never comes again, and its
//! owner has ended the communicator; so who finds it gone waits until it is told why.
//!
//! ```text
//! owner                                   peer
//!   addresses, lengths                      wait for the record
//!   sequence = number of the run            sequence == number of the run? else: wait
//!   record                                  copy from the address
//!   ...                                     fence
//!   sequence = 0                            sequence == number of the run? else: wait
//!   fence
//!   return: the caller may write there
//! ```

use hcomm_transport::sync::{Ordering, fence};
use hcomm_types::{Error, ErrorKind, Result};

use crate::memory::{self, Place};
use crate::message::ring::Words;
use crate::program::{At, SlotKind};
use crate::slice::Slice;

/// Bytes of the line, which begins at a multiple of them.
pub const LENT_BYTES: usize = 64;

const SEQUENCE: usize = 0;
/// Address and length of the input, then of the output.
const BUFFERS: [usize; 2] = [1, 3];
const WORD: u64 = 8;

// A line lies inside its memory, at a multiple of a word: its program was checked for that.
impl Words for Place<'_> {
    fn load(&self, word: usize) -> u64 {
        memory::load(*self, word as u64 * WORD).unwrap_or(0)
    }

    fn store(&self, word: usize, value: u64) {
        let stored = memory::store(*self, word as u64 * WORD, value);
        debug_assert!(stored.is_ok());
    }
}

/// Lends buffers, each an address and a length.
fn lend(line: &impl Words, sequence: u64, buffers: [[u64; 2]; 2]) {
    for (word, [address, bytes]) in BUFFERS.into_iter().zip(buffers) {
        line.store(word, address);
        line.store(word + 1, bytes);
    }
    line.store(SEQUENCE, sequence);
}

/// Before anybody writes to the buffers.
fn take_back(line: &impl Words) {
    line.store(SEQUENCE, 0);
    fence(Ordering::SeqCst);
}

/// Whether it is lent still, so that what was copied before was right.
fn is_lent(line: &impl Words, sequence: u64) -> bool {
    fence(Ordering::SeqCst);
    line.load(SEQUENCE) == sequence
}

/// Takes back what is lent in a line, if anything is.
pub(crate) fn take_back_line(line: &Slice) {
    take_back(&line.place());
}

/// What this side lends, until it is dropped.
pub(crate) struct Lending(Slice);

impl Lending {
    /// Lends both buffers of a run to whoever maps the line.
    pub(crate) fn begin(line: &Slice, sequence: u64, input: Place<'_>, output: Place<'_>) -> Self {
        let range = |place: Place<'_>| [place.address().addr().get() as u64, place.bytes() as u64];
        lend(&line.place(), sequence, [range(input), range(output)]);
        Self(line.clone())
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        take_back_line(&self.0);
    }
}

/// What a peer lends in the run of this number.
#[derive(Clone, Copy)]
pub(crate) struct Lent<'a> {
    line: Place<'a>,
    sequence: u64,
}

impl<'a> Lent<'a> {
    pub(crate) const fn new(line: Place<'a>, sequence: u64) -> Self {
        Self { line, sequence }
    }

    /// Where bytes of a buffer lie in the peer's process; `None` if it does not lend them any more.
    pub(crate) fn address(&self, from: At, bytes: u64) -> Result<Option<u64>> {
        let word = match from.slot {
            SlotKind::Input => BUFFERS[0],
            SlotKind::Output => BUFFERS[1],
            SlotKind::Scratch => {
                return Err(Error::new(
                    ErrorKind::Internal,
                    "scratch memory is not lent",
                ));
            }
        };
        let (address, whole) = (self.line.load(word), self.line.load(word + 1));
        // Of a line that was taken back nothing is known.
        if !self.is_there() {
            return Ok(None);
        }
        let end = from.offset.checked_add(bytes);
        match address.checked_add(from.offset) {
            Some(address) if end.is_some_and(|end| end <= whole) => Ok(Some(address)),
            _ => Err(Error::new(
                ErrorKind::Mismatch,
                format!(
                    "{bytes} bytes at offset {} of a buffer of which the peer lends {whole} bytes",
                    from.offset
                ),
            )),
        }
    }

    /// Whether it is lent still: what was copied before the call was right then.
    pub(crate) fn is_there(&self) -> bool {
        is_lent(&self.line, self.sequence)
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use hcomm_transport::sync::AtomicU64;
    use hcomm_transport::sync::model::{Wrong, check, check_when};
    use loom::thread;

    use super::*;

    /// A line, and the bytes that its owner lends: as another process sees them, in any order.
    #[derive(Default)]
    struct Memory {
        line: [AtomicU64; 5],
        begun: AtomicU64,
        bytes: AtomicU64,
    }

    impl Words for Memory {
        fn load(&self, word: usize) -> u64 {
            self.line[word].load(Ordering::Acquire)
        }

        fn store(&self, word: usize, value: u64) {
            self.line[word].store(value, Ordering::Release);
        }
    }

    /// The owner lends, tells so, gives up, and its caller writes to the bytes.
    fn a_loan_that_is_taken_back() {
        let memory = Arc::new(Memory::default());
        let owner = Arc::clone(&memory);
        let owning = thread::spawn(move || {
            owner.bytes.store(1, Ordering::Relaxed);
            lend(&*owner, 7, [[100, 8], [200, 8]]);
            owner.begun.store(1, Ordering::Release);
            take_back(&*owner);
            owner.bytes.store(2, Ordering::Relaxed);
        });
        if memory.begun.load(Ordering::Acquire) == 1 {
            let address = memory.load(BUFFERS[0]);
            if is_lent(&*memory, 7) {
                assert_eq!(address, 100);
                let copied = memory.bytes.load(Ordering::Relaxed);
                if is_lent(&*memory, 7) {
                    assert_eq!(copied, 1);
                }
            }
        }
        owning.join().unwrap();
    }

    #[test]
    fn what_was_taken_back_is_not_used() {
        check(a_loan_that_is_taken_back);
    }

    #[test]
    #[should_panic]
    fn without_fences_it_is() {
        check_when(Wrong::NoFences, a_loan_that_is_taken_back);
    }
}
