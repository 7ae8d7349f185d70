//! What every byte holds and who touched it last.
//!
//! A memory is a row of cells: intervals of bytes with one content and one history. Accesses split
//! cells at their ends; a write replaces what it covers.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

use super::At;
use super::clock::{Moment, Past};
use super::value::{Piece, Pieces, Value, push};

/// One access, remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) moment: Moment,
    pub(super) at: At,
}

/// Two accesses that nothing orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Race {
    pub(super) earlier: Access,
    pub(super) earlier_writes: bool,
    pub(super) bytes: Range<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) end: u64,
    pub(super) value: Value,
    pub(super) write: Option<Access>,
    /// Reads since the write, the latest of each component.
    pub(super) reads: SmallVec<[Access; 2]>,
}

/// One memory: the input, output or scratch of one rank.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    cells: BTreeMap<u64, Cell>,
}

impl Memory {
    /// A memory that holds one value all over.
    pub(super) fn new(bytes: u64) -> Self {
        let mut cells = BTreeMap::new();
        if bytes > 0 {
            let cell = Cell {
                end: bytes,
                value: Value::Unwritten,
                write: None,
                reads: SmallVec::new(),
            };
            cells.insert(0, cell);
        }
        Self { cells }
    }

    /// Sets what a range holds at the beginning.
    pub(super) fn preset(&mut self, range: Range<u64>, value: Value) {
        self.split(range.start);
        self.split(range.end);
        for (_, cell) in self.cells.range_mut(range) {
            cell.value = value;
        }
    }

    fn split(&mut self, at: u64) {
        if let Some((&start, cell)) = self.cells.range_mut(..at).next_back()
            && start < at
            && at < cell.end
        {
            let rest = cell.clone();
            cell.end = at;
            self.cells.insert(at, rest);
        }
    }

    /// Reads a range that lies inside the memory.
    pub(super) fn read(
        &mut self,
        range: Range<u64>,
        access: Access,
        past: &Past<'_>,
        races: &mut Vec<Race>,
    ) -> Pieces {
        self.split(range.start);
        self.split(range.end);
        let mut pieces = Pieces::new();
        for (&start, cell) in self.cells.range_mut(range.clone()) {
            if let Some(write) = cell.write.filter(|write| !past.covers(write.moment)) {
                races.push(Race {
                    earlier: write,
                    earlier_writes: true,
                    bytes: start..cell.end,
                });
            }
            let component = access.moment.component;
            match cell
                .reads
                .iter_mut()
                .find(|read| read.moment.component == component)
            {
                Some(read) => *read = access,
                None => cell.reads.push(access),
            }
            let piece = Piece {
                start: start - range.start,
                end: cell.end - range.start,
                content: cell.value.at(range.start),
            };
            push(&mut pieces, piece);
        }
        pieces
    }

    /// Writes pieces, which cover the range, to a range that lies inside the memory.
    pub(super) fn write(
        &mut self,
        range: Range<u64>,
        pieces: &[Piece],
        access: Access,
        past: &Past<'_>,
        races: &mut Vec<Race>,
    ) {
        self.split(range.start);
        self.split(range.end);
        let same_cells = pieces.len() == 1
            && self
                .cells
                .get(&range.start)
                .is_some_and(|cell| cell.end == range.end);
        let mut covered: SmallVec<[u64; 4]> = SmallVec::new();
        for (&start, cell) in self.cells.range_mut(range.clone()) {
            let earlier = cell.write.iter().map(|write| (write, true));
            for (earlier, writes) in earlier.chain(cell.reads.iter().map(|read| (read, false))) {
                // What one task reads and then writes is no race with itself.
                if earlier.at != access.at && !past.covers(earlier.moment) {
                    let bytes = start..cell.end;
                    races.push(Race {
                        earlier: *earlier,
                        earlier_writes: writes,
                        bytes,
                    });
                }
            }
            if same_cells {
                cell.value = pieces[0].content.placed_at(range.start);
                cell.write = Some(access);
                cell.reads.clear();
                return;
            }
            covered.push(start);
        }
        for start in covered {
            self.cells.remove(&start);
        }
        for piece in pieces {
            let cell = Cell {
                end: range.start + piece.end,
                value: piece.content.placed_at(range.start),
                write: Some(access),
                reads: SmallVec::new(),
            };
            self.cells.insert(range.start + piece.start, cell);
        }
    }

    /// All cells, from the first byte to the last.
    pub(super) fn cells(&self) -> impl Iterator<Item = (Range<u64>, &Cell)> {
        self.cells
            .iter()
            .map(|(&start, cell)| (start..cell.end, cell))
    }

    /// The cells of a range, cut to it.
    pub(super) fn cells_in(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, &Cell)> {
        let first = self
            .cells
            .range(..=range.start)
            .next_back()
            .map_or(0, |(&start, _)| start);
        self.cells
            .range(first..range.end.max(first))
            .map(move |(&start, cell)| (start.max(range.start)..cell.end.min(range.end), cell))
            .filter(|(range, _)| !range.is_empty())
    }
}
