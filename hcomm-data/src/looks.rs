//! How often to look at a word that another core is about to write.
//!
//! Looking is not free for the writer: a look that misses fetches the line back while the writer
//! is fetching it. Measured with two cores that hand lines to and fro, ns a hand-over:
//!
//! | between two looks | near | far |
//! |---|---|---|
//! | Zen 4: nothing | 56 | 265 |
//! | a pause of the processor after every second look | 32 | 230 |
//! | a pause | 45 | 210 |
//! | Zen 5: nothing | 57 | 270 |
//! | a pause after every second look | 26 to 53 | 115 to 280 |
//! | a pause | 40 | 178 to 190 |
//! | two pauses | 56 | 150 to 165 |
//! | four pauses | 90 | 170 |
//!
//! A writer that is near is done after the first few looks, so those come quickly, and the others
//! slowly: 26 to 53 near, and 120 to 178 far.

use std::hint::spin_loop;

/// Looks that come quickly.
const BRISK: u32 = 20;
/// As how many of those a slow one counts, for it takes as long.
const SLOW: u32 = 4;

/// The looks of one wait.
pub(crate) struct Looks {
    made: u32,
    most: u32,
}

impl Looks {
    /// For at most so many quick looks, or for as long as they take.
    #[inline]
    pub(crate) const fn new(most: u32) -> Self {
        Self { made: 0, most }
    }

    /// After a look that found nothing: pauses if that is good, and says whether to look again.
    #[inline]
    pub(crate) fn again(&mut self) -> bool {
        let is_brisk = self.made < BRISK;
        self.made += if is_brisk { 1 } else { SLOW };
        if self.made >= self.most {
            return false;
        }
        if !is_brisk {
            spin_loop();
            spin_loop();
        } else if self.made.is_multiple_of(2) {
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
