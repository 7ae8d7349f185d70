//! Long messages straight into the memory in which they are received.
//!
//! A receiver that waits for a long message, in memory that the peer can map, grants it: the sender
//! then copies what is left of the message there itself, and a cell says so. Nobody waits for a
//! grant; what was sent before it came has gone through the data ring.
//!
//! To be granted, memory must be known at the sender, so its region is offered first, once: the
//! receiver stores the region's blob and a number, the sender imports it when it next looks, and
//! answers. Up to [`SLOTS`] regions are known on a link and direction; when one has ended, the next
//! offer tells the sender to let go of it.
//!
//! A grant names the number of the message among the long ones, so one that comes too late says
//! nothing about a later message. The sender reads the rest of a grant only after it has found the
//! number of its present message, and the receiver grants the next message only after that one was
//! received whole: so the words of a grant never change under the sender.

use std::task::Poll;

use hcomm_transport::{Import, Importing, Region, WeakRegion};
use hcomm_types::{Error, ErrorKind};

use super::header::broken;
use super::ring::{Words, lines};
use crate::channel::Channel;
use crate::memory::Place;

/// Regions of each side that are known at the other one.
pub(crate) const SLOTS: usize = 16;

/// Longest blob of a region that can be offered.
pub(crate) const MOST_BLOB: usize = (lines::CELLS - lines::BLOB) * 8;

/// What a receiver allows: to write a message to a place in one of its regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Of the message among the long ones, from 1.
    pub(crate) number: u64,
    pub(crate) slot: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Grant {
    /// Tells the peer, whose inbox this is.
    pub(crate) fn tell(self, peer: &impl Words) {
        peer.store(lines::GRANT_SLOT, self.slot);
        peer.store(lines::GRANT_OFFSET, self.offset);
        peer.store(lines::GRANT_BYTES, self.bytes);
        peer.store(lines::GRANT, self.number);
    }

    /// The grant of message `number`, if it is in this inbox.
    #[inline]
    pub(crate) fn of(own: &impl Words, number: u64) -> Option<Self> {
        (own.load(lines::GRANT) == number).then(|| Self {
            number,
            slot: own.load(lines::GRANT_SLOT),
            offset: own.load(lines::GRANT_OFFSET),
            bytes: own.load(lines::GRANT_BYTES),
        })
    }
}

/// An inbox, as far as blobs go.
pub(crate) trait Blobs: Words {
    /// Stores bytes where an offered region's blob belongs; they are at most [`MOST_BLOB`].
    fn put_blob(&self, blob: &[u8]);
    /// Loads so many bytes of it, at most [`MOST_BLOB`].
    fn blob(&self, bytes: usize) -> Vec<u8>;
}

/// The answer to an offer, as a word.
const fn answer(number: u64, is_known: bool) -> u64 {
    number << 1 | is_known as u64
}

/// The peer's regions, as its sender knows them.
#[derive(Default)]
pub(crate) struct Targets {
    imports: [Option<Import>; SLOTS],
    /// The offer that is being looked into.
    begun: Option<(u64, usize, Importing)>,
}

impl Targets {
    /// Looks into the offer `number`, which has not been answered. Returns whether it is now.
    ///
    /// # Errors
    /// `LinkDown` for an offer that cannot be.
    pub(crate) fn look_into(
        &mut self,
        number: u64,
        channel: &Channel,
        own: &impl Blobs,
        peer: &impl Words,
    ) -> Result<bool, Error> {
        if self.begun.as_ref().is_none_or(|begun| begun.0 != number) {
            let (slot, bytes) = (own.load(lines::OFFER_SLOT), own.load(lines::OFFER_BYTES));
            if slot >= SLOTS as u64 || bytes > MOST_BLOB as u64 {
                return Err(broken(format!(
                    "offer of slot {slot}, a blob of {bytes} bytes"
                )));
            }
            let slot = slot as usize;
            self.imports[slot] = None;
            if bytes == 0 {
                // Its region has ended.
                peer.store(lines::ANSWER, answer(number, false));
                return Ok(true);
            }
            let importing = channel.transport().import(own.blob(bytes as usize));
            self.begun = Some((number, slot, importing));
        }
        let Some((_, slot, importing)) = &mut self.begun else {
            return Ok(false);
        };
        let slot = *slot;
        let Poll::Ready(result) = importing.poll() else {
            return Ok(false);
        };
        self.begun = None;
        let import = result.and_then(|import| match import.address() {
            Some(_) => Ok(import),
            None => Err(Error::new(ErrorKind::Unsupported, "it is not mapped here")),
        });
        self.imports[slot] = import.ok();
        peer.store(lines::ANSWER, answer(number, self.imports[slot].is_some()));
        Ok(true)
    }

    /// Where a grant allows to write.
    ///
    /// # Errors
    /// `LinkDown` for a grant that cannot be.
    pub(crate) fn place(&self, grant: Grant) -> Result<Place<'_>, Error> {
        self.imports
            .get(grant.slot as usize)
            .and_then(Option::as_ref)
            .and_then(|import| Place::of_import(import, grant.offset, grant.bytes))
            .ok_or_else(|| broken(format!("{grant:?} of a region that was never offered so")))
    }
}

/// The own regions, as far as the peer knows them.
#[derive(Default)]
pub(crate) struct Offers {
    slots: [Option<Offer>; SLOTS],
    /// Offers so far, and the slot of the latest one until it is answered.
    made: u64,
    open: Option<usize>,
}

struct Offer {
    region: WeakRegion,
    /// Whether the peer has imported it.
    is_known: bool,
}

impl Offers {
    /// The slot of a region, if the peer knows it; offers it otherwise, when that can be done.
    pub(crate) fn slot(
        &mut self,
        region: &Region,
        own: &impl Words,
        peer: &impl Blobs,
    ) -> Option<u64> {
        if self.open.is_some() || self.position(region).is_none() {
            self.settle(own);
            self.offer(region, peer);
        }
        let slot = self.position(region)?;
        let offer = self.slots[slot].as_ref()?;
        offer.is_known.then_some(slot as u64)
    }

    /// The slot in which a region stands, known to the peer or not.
    fn position(&self, region: &Region) -> Option<usize> {
        self.slots
            .iter()
            .position(|offer| offer.as_ref().is_some_and(|offer| offer.region.is(region)))
    }

    /// Takes the answer to the latest offer, if it is there.
    fn settle(&mut self, own: &impl Words) {
        let Some(slot) = self.open else { return };
        let told = own.load(lines::ANSWER);
        if told >> 1 != self.made {
            return;
        }
        self.open = None;
        if let Some(offer) = &mut self.slots[slot] {
            offer.is_known = told & 1 == 1;
        }
    }

    /// Makes the next offer, if none is open: a region's end, or `region`.
    fn offer(&mut self, region: &Region, peer: &impl Blobs) {
        if self.open.is_some() {
            return;
        }
        let is_gone =
            |offer: &Option<Offer>| offer.as_ref().is_some_and(|offer| offer.region.is_gone());
        if let Some(slot) = self.slots.iter().position(is_gone) {
            self.slots[slot] = None;
            self.publish(slot, &[], peer);
            return;
        }
        if self.position(region).is_some() {
            return;
        }
        let Some(slot) = self.slots.iter().position(Option::is_none) else {
            return;
        };
        self.slots[slot] = Some(Offer {
            region: region.downgrade(),
            is_known: false,
        });
        // Otherwise it stays in its slot as one that the peer does not know, so this is tried once.
        if let Ok(blob) = region.export()
            && (1..=MOST_BLOB).contains(&blob.len())
        {
            self.publish(slot, &blob, peer);
        }
    }

    fn publish(&mut self, slot: usize, blob: &[u8], peer: &impl Blobs) {
        self.made += 1;
        self.open = Some(slot);
        peer.put_blob(blob);
        peer.store(lines::OFFER_SLOT, slot as u64);
        peer.store(lines::OFFER_BYTES, blob.len() as u64);
        peer.store(lines::OFFER, self.made);
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use hcomm_transport::sync;
    use hcomm_transport::sync::model::{Plain, Wrong, check, check_when};
    use loom::thread;

    use super::*;

    const MESSAGES: u64 = 2;

    /// The line of grants in the sender's inbox; at the receiver, a header, a cell of the data ring,
    /// and a place for each message.
    #[derive(Default)]
    struct Shared {
        line: [sync::AtomicU64; 4],
        header: sync::AtomicU64,
        taken: sync::AtomicU64,
        ring: Plain<u64>,
        places: [Plain<u64>; MESSAGES as usize],
    }

    // The orders of the real inbox.
    impl Words for Shared {
        fn load(&self, word: usize) -> u64 {
            self.line[word - lines::GRANT].load(Ordering::Acquire)
        }

        fn store(&self, word: usize, value: u64) {
            self.line[word - lines::GRANT].store(value, Ordering::Release);
        }
    }

    const fn grant(number: u64) -> Grant {
        Grant {
            number,
            slot: number + 10,
            offset: number + 20,
            bytes: number + 30,
        }
    }

    /// Each message goes through the ring or to its place; `early` grants the second one while the
    /// first is under way.
    fn two_messages(early: bool) {
        let shared = Arc::new(Shared::default());
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for number in 1..=MESSAGES {
                    let granted = Grant::of(&*shared, number);
                    if let Some(found) = granted {
                        assert_eq!(found, grant(number));
                        shared.places[number as usize - 1].set(number);
                    } else {
                        while shared.taken.load(Ordering::Acquire) != number - 1 {
                            thread::yield_now();
                        }
                        shared.ring.set(number);
                    }
                    let header = number << 1 | u64::from(granted.is_some());
                    shared.header.store(header, Ordering::Release);
                    while shared.taken.load(Ordering::Acquire) != number {
                        thread::yield_now();
                    }
                }
            })
        };
        for number in 1..=MESSAGES {
            if !early || number == 1 {
                grant(number).tell(&*shared);
            }
            if early && number == 1 {
                grant(2).tell(&*shared);
            }
            let mut header = shared.header.load(Ordering::Acquire);
            while header >> 1 != number {
                thread::yield_now();
                header = shared.header.load(Ordering::Acquire);
            }
            let place = &shared.places[number as usize - 1];
            if header & 1 == 0 {
                place.set(shared.ring.get());
            }
            assert_eq!(place.get(), number);
            shared.taken.store(number, Ordering::Release);
        }
        sender.join().unwrap();
    }

    #[test]
    fn a_grant_is_whole_and_its_place_is_written_once() {
        check(|| two_messages(false));
    }

    #[test]
    #[should_panic]
    fn a_grant_before_its_time_is_torn() {
        check(|| two_messages(true));
    }

    #[test]
    #[should_panic]
    fn without_order_the_place_is_read_early() {
        check_when(Wrong::NoOrder, || two_messages(false));
    }
}
