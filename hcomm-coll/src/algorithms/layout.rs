//! How sizes are cut into slices and slices into parts.

use std::ops::Range;

/// Slices and slots begin at multiples of this: a cache line, and a multiple of every element.
pub(super) const LINE: u64 = 64;

pub(super) const fn line_up(bytes: u64) -> u64 {
    bytes.div_ceil(LINE) * LINE
}

pub(super) const fn line_down(bytes: u64) -> u64 {
    bytes / LINE * LINE
}

/// A number of bytes cut into slices of equal length (the last may be shorter), each of them into
/// one part a rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slices {
    total: u64,
    parts: u64,
    part: u64,
}

impl Slices {
    /// Cuts `total` bytes (not zero) into slices of `parts` parts, each part of at most
    /// `most` bytes (a multiple of a line, not zero). All slices get about the same length.
    pub(super) fn new(total: u64, parts: u64, most: u64) -> Self {
        let slices = total.div_ceil(parts.saturating_mul(most));
        let part = line_up(total.div_ceil(slices * parts));
        Self { total, parts, part }
    }

    /// Number of slices.
    pub(super) fn count(&self) -> u64 {
        self.total.div_ceil(self.slice_bytes())
    }

    /// Bytes of a whole slice.
    pub(super) fn slice_bytes(&self) -> u64 {
        self.parts * self.part
    }

    /// Bytes of a whole part.
    pub(super) fn part_bytes(&self) -> u64 {
        self.part
    }

    /// The bytes of a slice.
    pub(super) fn slice(&self, slice: u64) -> Range<u64> {
        self.clip(slice * self.slice_bytes(), self.slice_bytes())
    }

    /// The bytes of a part of a slice; may be empty.
    pub(super) fn part(&self, slice: u64, part: u64) -> Range<u64> {
        self.clip(slice * self.slice_bytes() + part * self.part, self.part)
    }

    /// The bytes of a slice of something shorter than the whole; may be empty.
    pub(super) fn slice_of(&self, slice: u64, bytes: u64) -> Range<u64> {
        let range = self.slice(slice);
        range.start.min(bytes)..range.end.min(bytes)
    }

    /// Bytes of scratch for all slots when slices use two of them in turn.
    pub(super) fn two_slots(&self) -> u64 {
        self.count().min(2) * self.slice_bytes()
    }

    /// Where the slot of a slice begins when slices use two of them in turn.
    pub(super) fn slot(&self, slice: u64) -> u64 {
        slice % 2 * self.slice_bytes()
    }

    fn clip(&self, start: u64, bytes: u64) -> Range<u64> {
        start.min(self.total)..start.saturating_add(bytes).min(self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_everything_once_and_keep_the_limit() {
        for total in [1, 63, 64, 65, 1000, 4096, 10_007] {
            for parts in [1, 2, 3, 7] {
                for most in [64, 128, 1024] {
                    let slices = Slices::new(total, parts, most);
                    assert!(slices.part_bytes() <= most);
                    let mut next = 0;
                    for slice in 0..slices.count() {
                        assert!(!slices.slice(slice).is_empty());
                        for part in 0..parts {
                            let range = slices.part(slice, part);
                            assert_eq!(range.start, next);
                            next = range.end;
                        }
                    }
                    assert_eq!(next, total);
                }
            }
        }
    }
}
