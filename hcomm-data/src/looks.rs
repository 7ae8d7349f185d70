//! How often to look at a word that another core is about to write.
//!
//! Looking is not free for the writer: a look that misses fetches the line back while the writer
//! is fetching it. Measured with two cores that hand one line to and fro, ns a hand-over: with a
//! pause of the processor after every second look 32 where they share a cache and 230 where they
//! do not; without pauses 56 and 265; with one after each look 45 and 210.

use std::hint::spin_loop;

/// The looks of one wait.
pub(crate) struct Looks {
    made: u32,
    most: u32,
}

impl Looks {
    /// For at most so many looks.
    #[inline]
    pub(crate) const fn new(most: u32) -> Self {
        Self { made: 0, most }
    }

    /// After a look that found nothing: pauses if that is good, and says whether to look again.
    #[inline]
    pub(crate) fn again(&mut self) -> bool {
        self.made += 1;
        if self.made >= self.most {
            return false;
        }
        if self.made.is_multiple_of(2) {
            spin_loop();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_end() {
        let mut looks = Looks::new(3);
        assert!(looks.again());
        assert!(looks.again());
        assert!(!looks.again());
        assert!(!Looks::new(1).again());
    }
}
