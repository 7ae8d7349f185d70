//! What the kernel itself takes to wake a process: the floor under every wait, for measurements.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hcomm_types::{Error, ErrorKind, Result};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::munmap;

use crate::bell::{PAGE_BYTES, map_page, sealed_page};
use crate::words::Word as _;

/// A word that two processes of a host, or two OS threads, sleep on and wake each other with: a
/// store and one call of the kernel on one side, a call and a load on the other, and nothing else.
/// Nothing in the library waits on it; see [`Waiter`](crate::Waiter) for what does.
#[derive(Debug)]
pub struct FutexWord {
    page: NonNull<u8>,
    memfd: OwnedFd,
}

// SAFETY: the page is mapped until this is dropped, and only touched through atomics.
unsafe impl Send for FutexWord {}
// SAFETY: as for `Send`.
unsafe impl Sync for FutexWord {}

impl FutexWord {
    /// A word of this process, which is 0.
    ///
    /// # Errors
    /// `LimitReached` when descriptors or memory for it cannot be had.
    pub fn new() -> Result<Self> {
        let (memfd, page) = sealed_page("hcomm-floor")?;
        Ok(Self { page, memfd })
    }

    /// The word of a process of this host, by the process's id and the word's
    /// [`descriptor`](Self::descriptor) there.
    ///
    /// # Errors
    /// `System` if it cannot be opened, as that of another user; `InvalidArgument` if it is no such
    /// word.
    pub fn of(process: u32, descriptor: RawFd) -> Result<Self> {
        let path = format!("/proc/{process}/fd/{descriptor}");
        let failed = |error: io::Error| Error::system(format!("opening {path}"), error);
        let memfd: OwnedFd = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(failed)?
            .into();
        let seals = fcntl_get_seals(&memfd).map_err(|errno| failed(errno.into()))?;
        let bytes = fstat(&memfd).map_err(|errno| failed(errno.into()))?.st_size;
        if !seals.contains(SealFlags::SHRINK) || bytes != PAGE_BYTES as i64 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{path} is no word to sleep on: {bytes} bytes, seals {seals:?}"),
            ));
        }
        let page = map_page(&memfd)?;
        Ok(Self { page, memfd })
    }

    /// Under which this process knows the word.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.memfd.as_raw_fd()
    }

    /// Stores a number and wakes who sleeps.
    pub fn set(&self, number: u32) {
        self.word().store(number, Ordering::Release);
        self.word().wake();
    }

    /// Sleeps until the word is `number`. Returns false if it is not after so long.
    #[must_use]
    pub fn sleep_until(&self, number: u32, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        loop {
            let seen = self.word().load(Ordering::Acquire);
            if seen == number {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.word().sleep(seen, left);
        }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the mapping lives as long as `self` and begins at a page, the page cannot be
        // taken from under it (it is sealed), and every access to the word is atomic.
        unsafe { AtomicU32::from_ptr(self.page.as_ptr().cast()) }
    }
}

impl Drop for FutexWord {
    fn drop(&mut self) {
        // SAFETY: mapped in one piece of this length, and nobody borrows the word any more.
        let unmapped = unsafe { munmap(self.page.as_ptr().cast(), PAGE_BYTES) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn two_mappings_of_a_word_wake_each_other() {
        let mine = FutexWord::new().unwrap();
        let theirs = FutexWord::of(std::process::id(), mine.descriptor()).unwrap();
        let other = std::thread::spawn(move || {
            for number in (1..1000).step_by(2) {
                assert!(theirs.sleep_until(number, LONG));
                theirs.set(number + 1);
            }
        });
        for number in (1..1000).step_by(2) {
            mine.set(number);
            assert!(mine.sleep_until(number + 1, LONG));
        }
        other.join().unwrap();
    }

    #[test]
    fn nobody_is_waited_for_without_end() {
        let word = FutexWord::new().unwrap();
        assert!(!word.sleep_until(1, Duration::from_millis(1)));
        word.set(1);
        assert!(word.sleep_until(1, LONG));
    }

    #[test]
    fn what_is_no_word_is_refused() {
        let file = tempfile::tempfile().unwrap();
        let error = FutexWord::of(std::process::id(), file.as_raw_fd()).unwrap_err();
        assert!(error.to_string().contains("/proc/"), "{error}");
        let page = rustix::fs::memfd_create("small", rustix::fs::MemfdFlags::ALLOW_SEALING);
        let error = FutexWord::of(std::process::id(), page.unwrap().as_raw_fd()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}
