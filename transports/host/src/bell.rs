//! What wakes a sleeping process: a futex word that peers of this host share, and an eventfd.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hcomm_transport_abi::BellV1;
use hcomm_types::{Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::barrier;
use crate::words::Words;

/// The bell of this process. One for all communicators and OS threads in it; made at first use
/// and kept until the process ends.
///
/// Several threads may sleep at once, so the words count sleepers instead of holding one mode bit:
/// a bit could not be cleared by one of them without losing the others.
pub struct Bell {
    words: NonNull<BellV1>,
    memfd: OwnedFd,
    eventfd: OwnedFd,
}

// SAFETY: `words` points to memory that is never unmapped and only touched through atomics.
unsafe impl Send for Bell {}
// SAFETY: as for `Send`.
unsafe impl Sync for Bell {}

impl Bell {
    /// The bell of this process.
    ///
    /// # Errors
    /// `LimitReached` or `System` when descriptors or memory for it cannot be had.
    pub fn process() -> Result<&'static Self> {
        static BELL: OnceLock<Bell> = OnceLock::new();
        if let Some(bell) = BELL.get() {
            return Ok(bell);
        }
        let made = Self::make()?;
        Ok(BELL.get_or_init(|| made))
    }

    /// Wakes every thread of this process that sleeps in a [`Waiter`](crate::Waiter), or is about
    /// to. Cheap when nobody does. Any thread.
    pub fn ring(&self) {
        // What was recorded before must be visible before the look at who sleeps.
        barrier::Often::here().fence();
        if self.steps().somebody_sleeps() {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.steps().wake_sleepers();
        if self.pollers().load(Ordering::Relaxed) != 0 {
            // A full counter (would block) has woken its readers already.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// Sleeps until the bell rings or `timeout` is over. `look` is called when ringers can see
    /// that somebody sleeps; if it finds something to do, there is no sleep. Returns whether it
    /// slept. May wake early for no reason.
    pub(crate) fn sleep(&self, timeout: Duration, look: &mut dyn FnMut() -> bool) -> bool {
        self.steps().sleep(timeout, look)
    }

    /// Like [`Bell::sleep`], but in `poll` over the eventfd and other descriptors. `wait` gets the
    /// eventfd and does the sleeping.
    pub(crate) fn sleep_polling(
        &self,
        look: &mut dyn FnMut() -> bool,
        wait: impl FnOnce(BorrowedFd<'_>),
    ) -> bool {
        let _listed = self.steps().list_poller();
        if look() {
            return false;
        }
        wait(self.eventfd.as_fd());
        // Take the rings; with several pollers one takes them for all, which is why nobody sleeps
        // longer than a slice.
        let _ = rustix::io::read(&self.eventfd, &mut [0u8; 8]);
        true
    }

    /// The words, for whoever looks at them from outside.
    pub(crate) const fn words(&self) -> NonNull<BellV1> {
        self.words
    }

    /// Descriptor of the memory in which the words lie.
    pub(crate) fn memfd(&self) -> RawFd {
        self.memfd.as_raw_fd()
    }

    /// Descriptor of the event counter.
    pub(crate) fn event_descriptor(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }

    fn make() -> Result<Self> {
        let (memfd, page) = sealed_page("hcomm-bell")?;
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| limit("eventfd", e))?;
        let bell = Self {
            words: page.cast(),
            memfd,
            eventfd,
        };
        bell.barrier()
            .store(barrier::is_registered().into(), Ordering::Release);
        Ok(bell)
    }

    fn steps(&self) -> Words<'_> {
        Words {
            sequence: self.sequence(),
            sleepers: self.sleepers(),
            pollers: self.pollers(),
        }
    }

    fn barrier(&self) -> &AtomicU32 {
        // SAFETY: as in `sequence`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.words.as_ptr()).barrier) }
    }

    fn sequence(&self) -> &AtomicU32 {
        // SAFETY: the mapping lives for ever, is aligned to a page, and every access to the word
        // is atomic, here and at the peers.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.words.as_ptr()).sequence) }
    }

    fn sleepers(&self) -> &AtomicU32 {
        // SAFETY: as in `sequence`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.words.as_ptr()).sleepers) }
    }

    fn pollers(&self) -> &AtomicU32 {
        // SAFETY: as in `sequence`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.words.as_ptr()).pollers) }
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell")
            .field("sequence", self.sequence())
            .field("sleepers", self.sleepers())
            .field("pollers", self.pollers())
            .finish_non_exhaustive()
    }
}

/// Bytes of memory that peers sleep on.
pub(crate) const PAGE_BYTES: usize = 4096;

/// A page of zeros in memory of its own, and where it is mapped.
pub(crate) fn sealed_page(name: &str) -> Result<(OwnedFd, NonNull<u8>)> {
    let memfd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|e| limit("memfd_create", e))?;
    ftruncate(&memfd, PAGE_BYTES as u64).map_err(|e| limit("ftruncate", e))?;
    // A peer holds this descriptor: it must not be able to take the page from under us.
    rustix::fs::fcntl_add_seals(
        &memfd,
        rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW,
    )
    .map_err(|e| limit("sealing", e))?;
    let page = map_page(&memfd)?;
    Ok((memfd, page))
}

/// Maps the page of this memory.
pub(crate) fn map_page(memfd: &OwnedFd) -> Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing else.
    let page = unsafe {
        mmap(
            std::ptr::null_mut(),
            PAGE_BYTES,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            memfd,
            0,
        )
    }
    .map_err(|e| limit("mmap", e))?;
    NonNull::new(page.cast())
        .ok_or_else(|| Error::new(ErrorKind::Internal, "the kernel mapped a page at address 0"))
}

fn limit(what: &str, error: rustix::io::Errno) -> Error {
    Error::new(
        ErrorKind::LimitReached,
        format!("{what} for a page to sleep on: {error}"),
    )
    .hint("look at `ulimit -n` and at the free memory")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_ring_ends_the_sleep_of_every_thread_and_kind() {
        let bell: &'static Bell = Box::leak(Box::new(Bell::make().unwrap()));
        let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let long = Duration::from_secs(600);
        let threads: Vec<_> = (0..3)
            .map(|kind| {
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Acquire) {
                        let mut look = || stop.load(Ordering::Acquire);
                        if kind == 0 {
                            bell.sleep(long, &mut look);
                        } else {
                            bell.sleep_polling(&mut look, |eventfd| {
                                let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                                    eventfd,
                                    rustix::event::PollFlags::IN,
                                )];
                                let second = rustix::fs::Timespec {
                                    tv_sec: 1,
                                    tv_nsec: 0,
                                };
                                rustix::event::poll(&mut fds, Some(&second)).unwrap();
                            });
                        }
                    }
                })
            })
            .collect();
        while bell.sleepers().load(Ordering::SeqCst) == 0
            || bell.pollers().load(Ordering::SeqCst) == 0
        {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Release);
        bell.ring();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(bell.sleepers().load(Ordering::SeqCst), 0);
        assert_eq!(bell.pollers().load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_look_that_finds_work_prevents_the_sleep() {
        let bell = Bell::make().unwrap();
        assert!(!bell.sleep(Duration::from_secs(600), &mut || true));
        assert!(!bell.sleep_polling(&mut || true, |_| unreachable!()));
    }
}
