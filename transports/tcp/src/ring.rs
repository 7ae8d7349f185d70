//! Bytes on their way in order: a ring of fixed size.

use crate::sys::Span;

/// A ring of bytes.
#[derive(Debug)]
pub(crate) struct Ring {
    bytes: Box<[u8]>,
    begin: usize,
    len: usize,
}

impl Ring {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes].into(),
            begin: 0,
            len: 0,
        }
    }

    /// Bytes that fit in.
    pub(crate) fn room(&self) -> usize {
        self.bytes.len() - self.len
    }

    /// Adds bytes, as far as there is room.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        for place in self.free(bytes.len()) {
            let (now, behind) = rest.split_at(place.len());
            place.copy_from_slice(now);
            rest = behind;
        }
        self.len += bytes.len() - rest.len();
    }

    /// Adds raw bytes, as far as there is room.
    pub(crate) fn put_span(&mut self, span: Span) {
        let bytes = span.bytes() as usize;
        let mut done = 0;
        for place in self.free(bytes) {
            span.rest(done as u64).load(place);
            done += place.len();
        }
        self.len += done;
    }

    /// Where the next `bytes` bytes go: at most two places.
    fn free(&mut self, bytes: usize) -> [&mut [u8]; 2] {
        let bytes = bytes.min(self.room());
        let size = self.bytes.len();
        let end = (self.begin + self.len) % size;
        let first = bytes.min(size - end);
        let (low, high) = self.bytes.split_at_mut(end);
        let second = &mut low[..bytes - first];
        [&mut high[..first], second]
    }

    /// `bytes` bytes from the `at`-th on: at most two parts.
    pub(crate) fn parts(&self, at: usize, bytes: usize) -> impl Iterator<Item = &[u8]> {
        let size = self.bytes.len();
        let at = at.min(self.len);
        let bytes = bytes.min(self.len - at);
        let begin = (self.begin + at) % size;
        let first = bytes.min(size - begin);
        [
            &self.bytes[begin..begin + first],
            &self.bytes[..bytes - first],
        ]
        .into_iter()
        .filter(|part| !part.is_empty())
    }

    /// Forgets the first `bytes` bytes.
    pub(crate) fn drop_first(&mut self, bytes: usize) {
        let bytes = bytes.min(self.len);
        self.len -= bytes;
        // An empty one begins anew: its bytes then lie in one part, and in the cache.
        self.begin = if self.len == 0 {
            0
        } else {
            (self.begin + bytes) % self.bytes.len()
        };
    }

    pub(crate) fn clear(&mut self) {
        self.drop_first(self.len);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_ring_is_a_queue(steps in proptest::collection::vec((any::<bool>(), 0usize..40), 1..60)) {
            let (mut ring, mut model) = (Ring::new(64), VecDeque::new());
            let mut next = 0u8;
            for (puts, bytes) in steps {
                if puts {
                    let added: Vec<u8> = (0..bytes).map(|_| { next = next.wrapping_add(1); next }).collect();
                    let fits = added.len().min(ring.room());
                    if bytes % 2 == 0 {
                        ring.put(&added);
                    } else {
                        let mut copy = added.clone();
                        ring.put_span(Span::brought(copy.as_mut_ptr(), bytes as u64).unwrap());
                    }
                    model.extend(&added[..fits]);
                } else {
                    ring.drop_first(bytes);
                    model.drain(..bytes.min(model.len()));
                }
                let found: Vec<u8> = ring.parts(0, 64).flatten().copied().collect();
                prop_assert_eq!(&found, &model.iter().copied().collect::<Vec<_>>());
                let tail: Vec<u8> = ring.parts(3, 7).flatten().copied().collect();
                let expected: Vec<u8> = model.iter().skip(3).take(7).copied().collect();
                prop_assert_eq!(tail, expected);
                prop_assert_eq!(ring.room(), 64 - model.len());
            }
        }
    }
}
