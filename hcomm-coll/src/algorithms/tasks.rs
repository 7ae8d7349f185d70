//! Writing down the tasks of a thread.

use std::ops::Range;

use hcomm_types::Rank;

use super::same_place;
use crate::plan::{Loc, RankPlan, Shape, Task};

/// The tasks of one rank's only thread, as they are written down. Tasks that would move nothing
/// are left out.
pub(super) struct Tasks<'s> {
    shape: &'s Shape,
    rank: Rank,
    tasks: Vec<Task>,
    /// Whether the algorithm divides sums itself, where averages are asked for.
    divides: bool,
}

impl<'s> Tasks<'s> {
    pub(super) fn new(shape: &'s Shape, rank: Rank) -> Self {
        Self {
            shape,
            rank,
            tasks: Vec::new(),
            divides: false,
        }
    }

    /// What has been written down, and scratch memory of so many bytes. Averages are made of the sums
    /// in the output, unless that was done [on the way](Tasks::divides).
    pub(super) fn finish(mut self, scratch_bytes: u64) -> RankPlan {
        if !self.divides && self.shape.operation.reduces() {
            self.push_divide(Loc::output(0), self.shape.output_bytes(self.rank));
        }
        let threads = if self.tasks.is_empty() {
            Vec::new()
        } else {
            vec![self.tasks]
        };
        RankPlan {
            threads,
            scratch_bytes,
        }
    }

    /// Number of tasks so far.
    pub(super) fn count(&self) -> usize {
        self.tasks.len()
    }

    /// Takes tasks out again, by their indices in ascending order.
    pub(super) fn remove(&mut self, indices: Vec<usize>) {
        let mut unwanted = indices.into_iter().peekable();
        let mut index = 0;
        self.tasks.retain(|_| {
            let keep = unwanted.next_if_eq(&index).is_none();
            index += 1;
            keep
        });
    }

    /// The other ranks, beginning with the next one, so that not all turn to the same rank first.
    pub(super) fn peers(&self) -> impl Iterator<Item = Rank> + use<> {
        let (me, ranks) = (self.rank.0, self.shape.ranks);
        (me + 1..ranks).chain(0..me).map(Rank)
    }

    pub(super) fn copy(&mut self, dst: Loc, src: Loc, bytes: u64) {
        if bytes > 0 {
            self.tasks.push(Task::Copy { dst, src, bytes });
        }
    }

    /// Copies a rank's own contribution to its place in the output, unless it is there already.
    pub(super) fn keep_own(&mut self, dst: Loc, src: Loc, bytes: u64) {
        if !same_place(self.shape, self.rank, dst, src) {
            self.copy(dst, src, bytes);
        }
    }

    pub(super) fn reduce(&mut self, dst: Loc, a: Loc, b: Loc, bytes: u64) {
        if bytes > 0 {
            let count = bytes / self.shape.element_bytes();
            self.tasks.push(Task::Reduce { dst, a, b, count });
        }
    }

    /// The algorithm calls [`divide`](Tasks::divide) for all that it reduces.
    pub(super) fn divides(&mut self) {
        self.divides = true;
    }

    /// Makes averages of sums that are complete, if averages are asked for and the algorithm
    /// [does so](Tasks::divides).
    pub(super) fn divide(&mut self, dst: Loc, bytes: u64) {
        if self.divides {
            self.push_divide(dst, bytes);
        }
    }

    fn push_divide(&mut self, dst: Loc, bytes: u64) {
        if bytes > 0 && self.shape.makes_averages() {
            let count = bytes / self.shape.element_bytes();
            self.tasks.push(Task::Divide { dst, count });
        }
    }

    /// Writes and notifies; of nothing to write, the notify remains.
    pub(super) fn write(&mut self, peer: Rank, dst: Loc, src: Loc, bytes: u64, notify: u32) {
        if bytes > 0 {
            self.put(peer, dst, src, bytes, Some(notify));
        } else {
            self.record(peer, notify);
        }
    }

    /// Writes, and may notify; of nothing to write, nothing remains.
    pub(super) fn put(&mut self, peer: Rank, dst: Loc, src: Loc, bytes: u64, notify: Option<u32>) {
        if bytes > 0 {
            self.tasks.push(Task::Write {
                peer,
                dst,
                src,
                bytes,
                notify,
            });
        }
    }

    pub(super) fn read(&mut self, peer: Rank, dst: Loc, src: Loc, bytes: u64) {
        if bytes > 0 {
            self.tasks.push(Task::Read {
                peer,
                dst,
                src,
                bytes,
            });
        }
    }

    pub(super) fn read_reduce(&mut self, peer: Rank, dst: Loc, a: Loc, src: Loc, bytes: u64) {
        if bytes > 0 {
            let count = bytes / self.shape.element_bytes();
            self.tasks.push(Task::ReadReduce {
                peer,
                dst,
                a,
                src,
                count,
            });
        }
    }

    /// Sends a packet in the first lines of those to the peer. It may be empty.
    pub(super) fn packet_write(&mut self, peer: Rank, src: Loc, bytes: u64) {
        self.tasks.push(Task::PacketWrite {
            peer,
            line: 0,
            src,
            bytes,
        });
    }

    /// Takes the packet in the first lines of those from the peer.
    pub(super) fn packet_read(&mut self, peer: Rank, dst: Loc, bytes: u64) {
        self.tasks.push(Task::PacketRead {
            peer,
            dst,
            line: 0,
            bytes,
        });
    }

    /// Combines with the packet in the first lines of those from the peer.
    pub(super) fn packet_reduce(
        &mut self,
        peer: Rank,
        dst: Loc,
        a: Loc,
        bytes: u64,
        swapped: bool,
    ) {
        self.tasks.push(Task::PacketReduce {
            peer,
            dst,
            a,
            line: 0,
            count: bytes / self.shape.element_bytes(),
            swapped,
        });
    }

    pub(super) fn record(&mut self, peer: Rank, notify: u32) {
        self.tasks.push(Task::Record { peer, notify });
    }

    pub(super) fn wait(&mut self, peer: Rank, notify: u32) {
        self.tasks.push(Task::Wait { peer, notify });
    }

    /// Tells all peers.
    pub(super) fn tell_all(&mut self, notify: u32) {
        for peer in self.peers() {
            self.record(peer, notify);
        }
    }

    /// Waits for all peers.
    pub(super) fn hear_all(&mut self, notify: u32) {
        for peer in self.peers() {
            self.wait(peer, notify);
        }
    }

    /// Tells all peers, then waits for all peers.
    pub(super) fn meet(&mut self, notify: u32) {
        self.tell_all(notify);
        self.hear_all(notify);
    }
}

/// Length of a range.
pub(super) fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}
