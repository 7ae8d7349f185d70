//! What each task of a plan touches: which memory, who else has it, and how far it has gone from a
//! core's caches until it is touched again.

use hcomm_types::Rank;

use super::machine::{Machine, Touch};
use super::site::{Reach, Site};
use crate::plan::{Buffer, Loc, Plan, Shape, Task};

/// What is known of the memory of each rank.
pub(super) struct Footprints<'a> {
    machine: &'a Machine,
    element_bytes: u64,
    combine_ps: u64,
    site: &'a Site,
    cores: Vec<u32>,
    ranks: Vec<Footprint>,
}

#[derive(Default)]
struct Footprint {
    /// Distances of input and output, and of scratch memory.
    user: u64,
    scratch: u64,
    /// Parts of scratch memory that ranks on other cores write; that they read.
    written: Ranges,
    read: Ranges,
}

/// What a task costs beside news, in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) moving: u64,
    pub(super) combining: u64,
}

impl<'a> Footprints<'a> {
    /// Of a plan whose user memory is as large as `whole` says: the plan itself may be for less.
    pub(super) fn new(plan: &Plan, whole: &Shape, machine: &'a Machine, site: &'a Site) -> Self {
        let count = plan.ranks.len();
        let (cores, sharing) = site.cores_of(Rank::from_index(count).0);
        let mut ranks: Vec<Footprint> = (0..count).map(|_| Footprint::default()).collect();
        // Bytes that each rank touches, and that are written to its scratch memory.
        let mut touched = vec![0_u64; count];
        let mut stored = vec![0_u64; count];
        // What it reads of its own input, and of memory that others lend, goes through its caches; what
        // only others read of its input does not.
        let mut own_input = vec![0_u64; count];
        let mut borrowed = vec![0_u64; count];
        let part_bytes = plan.shape.total_bytes().max(1);
        let of_whole = |bytes: u64| {
            (u128::from(bytes) * u128::from(whole.total_bytes()) / u128::from(part_bytes)) as u64
        };
        let element = plan.shape.element_bytes();
        for (me, own) in plan.ranks.iter().enumerate() {
            for task in own.threads.iter().flatten() {
                let bytes = bytes(task, element);
                touched[me] += bytes.saturating_mul(operands(task));
                let inputs = sources(task);
                let inputs = inputs.iter().flatten();
                let inputs = inputs.filter(|loc| loc.buffer == Buffer::Input).count();
                own_input[me] += bytes.saturating_mul(inputs as u64);
                match *task {
                    Task::Copy { dst, .. }
                    | Task::Reduce { dst, .. }
                    | Task::ReadReduce { dst, .. }
                    | Task::Read { dst, .. }
                        if dst.buffer == Buffer::Scratch =>
                    {
                        stored[me] += bytes;
                    }
                    Task::Write { peer, dst, .. } | Task::WriteReduce { peer, dst, .. } => {
                        stored[peer.index()] += bytes;
                        if cores[peer.index()] != cores[me] {
                            ranks[peer.index()].written.add(dst, bytes);
                        }
                    }
                    Task::Read { src, .. } if src.buffer != Buffer::Scratch => {
                        borrowed[me] += bytes
                    }
                    _ => {}
                }
                if let Task::Read { peer, src, .. } | Task::ReadReduce { peer, src, .. } = *task
                    && cores[peer.index()] != cores[me]
                {
                    ranks[peer.index()].read.add(src, bytes);
                }
            }
        }
        for (me, own) in plan.ranks.iter().enumerate() {
            let rank = Rank::from_index(me);
            let (input, output) = (whole.input_bytes(rank), whole.output_bytes(rank));
            let user = if whole.in_place {
                input.max(output)
            } else {
                input.min(of_whole(own_input[me])) + output
            };
            let user = user + of_whole(borrowed[me]);
            let scratch = own.scratch_bytes;
            // Scratch memory has two halves, used in turn by operations that follow each other.
            let all = (user + 2 * scratch).saturating_mul(sharing);
            let slots = u128::from(scratch) * u128::from(touched[me]);
            let again = slots / u128::from(stored[me].max(1));
            ranks[me].user = all;
            ranks[me].scratch = if stored[me] > scratch {
                (again as u64).saturating_mul(sharing).min(all)
            } else {
                all
            };
            ranks[me].written.close();
            ranks[me].read.close();
        }
        Self {
            machine,
            element_bytes: element,
            combine_ps: machine.combine_ps(plan.shape.dtype),
            site,
            cores,
            ranks,
        }
    }

    /// The core of each rank.
    pub(super) fn cores(&self) -> &[u32] {
        &self.cores
    }

    /// What a task costs beside news, on the rank whose it is. What a wire takes is not in it.
    pub(super) fn work(&self, me: Rank, task: &Task) -> Work {
        let bytes = bytes(task, self.element_bytes);
        let moving = match *task {
            Task::Copy { dst, src, .. } => {
                self.own_read(me, src, bytes) + self.own_write(me, dst, bytes)
            }
            Task::Reduce { dst, a, b, .. } => {
                self.own_read(me, a, bytes)
                    + self.own_read(me, b, bytes)
                    + self.result(me, dst, dst == a || dst == b, bytes)
            }
            Task::Divide { dst, .. } => {
                self.own_read(me, dst, bytes) + self.result(me, dst, true, bytes)
            }
            Task::Write { peer, src, .. } => {
                self.own_read(me, src, bytes) + self.peer_write(me, peer, bytes)
            }
            Task::Read { dst, src, .. } if src.buffer != Buffer::Scratch => {
                self.lent(me, bytes) + self.own_write(me, dst, bytes)
            }
            Task::Read { peer, dst, .. } => {
                self.peer_read(me, peer, bytes) + self.own_write(me, dst, bytes)
            }
            Task::WriteReduce { peer, src, .. } => {
                self.own_read(me, src, bytes)
                    + self.peer_read(me, peer, bytes)
                    + self.peer_write(me, peer, bytes)
            }
            Task::ReadReduce { peer, dst, a, .. } => {
                self.own_read(me, a, bytes)
                    + self.peer_read(me, peer, bytes)
                    + self.result(me, dst, dst == a, bytes)
            }
            Task::PacketWrite { src, .. } => self.own_read(me, src, bytes),
            Task::PacketRead { dst, .. } => self.own_write(me, dst, bytes),
            Task::PacketReduce { dst, a, .. } => {
                self.own_read(me, a, bytes) + self.result(me, dst, dst == a, bytes)
            }
            Task::Record { .. }
            | Task::Wait { .. }
            | Task::ThreadRecord { .. }
            | Task::ThreadWait { .. } => 0,
        };
        let combines = matches!(
            task,
            Task::Reduce { .. }
                | Task::Divide { .. }
                | Task::WriteReduce { .. }
                | Task::ReadReduce { .. }
                | Task::PacketReduce { .. }
        );
        Work {
            moving,
            combining: if combines { bytes * self.combine_ps } else { 0 },
        }
    }

    fn own_read(&self, me: Rank, from: Loc, bytes: u64) -> u64 {
        let own = &self.ranks[me.index()];
        match from.buffer {
            Buffer::Scratch if own.written.meets(from, bytes) => self.fetch(own.scratch, bytes),
            Buffer::Scratch => self.cost(Touch::Read, own.scratch, bytes),
            Buffer::Input | Buffer::Output => self.cost(Touch::Read, own.user, bytes),
        }
    }

    fn own_write(&self, me: Rank, to: Loc, bytes: u64) -> u64 {
        let own = &self.ranks[me.index()];
        match to.buffer {
            Buffer::Scratch if own.written.meets(to, bytes) || own.read.meets(to, bytes) => {
                self.cost(Touch::Offer, own.scratch, bytes)
            }
            Buffer::Scratch => self.cost(Touch::Write, own.scratch, bytes),
            Buffer::Input | Buffer::Output => self.cost(Touch::Write, own.user, bytes),
        }
    }

    /// Where the result takes the place of an operand its lines need not be fetched.
    fn result(&self, me: Rank, to: Loc, in_place: bool, bytes: u64) -> u64 {
        let cost = self.own_write(me, to, bytes);
        if in_place && to.buffer != Buffer::Scratch {
            cost / 2
        } else {
            cost
        }
    }

    fn peer_read(&self, me: Rank, peer: Rank, bytes: u64) -> u64 {
        let distance = self.ranks[peer.index()].scratch;
        match self.site.reach(me, peer) {
            Reach::Wire { .. } => 0,
            Reach::Mapped if self.cores[me.index()] == self.cores[peer.index()] => {
                self.cost(Touch::Read, distance, bytes)
            }
            Reach::Mapped => self.fetch(distance, bytes),
        }
    }

    /// Memory that a peer lends, by the system. What counts are the caches of who reads it: the owner
    /// need not have touched it for long.
    fn lent(&self, me: Rank, bytes: u64) -> u64 {
        let distance = self.ranks[me.index()].user;
        self.cost(Touch::Lent, distance, bytes) + 1000 * u64::from(self.machine.signals.lent_ns)
    }

    fn peer_write(&self, me: Rank, peer: Rank, bytes: u64) -> u64 {
        let distance = self.ranks[peer.index()].scratch;
        let touch = match self.site.reach(me, peer) {
            Reach::Wire { .. } => return 0,
            Reach::Mapped if self.cores[me.index()] == self.cores[peer.index()] => Touch::Write,
            Reach::Mapped => Touch::Put,
        };
        self.cost(touch, distance, bytes)
    }

    fn fetch(&self, distance: u64, bytes: u64) -> u64 {
        self.cost(Touch::Fetch, distance, bytes) + 1000 * u64::from(self.machine.signals.fetch_ns)
    }

    fn cost(&self, touch: Touch, distance: u64, bytes: u64) -> u64 {
        self.machine.memory.cost_ps(touch, distance, bytes)
    }
}

/// Bytes that a task moves or combines.
pub(super) fn bytes(task: &Task, element_bytes: u64) -> u64 {
    match *task {
        Task::Copy { bytes, .. }
        | Task::Write { bytes, .. }
        | Task::Read { bytes, .. }
        | Task::PacketWrite { bytes, .. }
        | Task::PacketRead { bytes, .. } => bytes,
        Task::Reduce { count, .. }
        | Task::WriteReduce { count, .. }
        | Task::ReadReduce { count, .. }
        | Task::Divide { count, .. }
        | Task::PacketReduce { count, .. } => count.saturating_mul(element_bytes),
        Task::Record { .. }
        | Task::Wait { .. }
        | Task::ThreadRecord { .. }
        | Task::ThreadWait { .. } => 0,
    }
}

/// Places of that many bytes that a task touches.
const fn operands(task: &Task) -> u64 {
    match task {
        Task::Copy { .. } | Task::Write { .. } | Task::Read { .. } | Task::Divide { .. } => 2,
        Task::Reduce { .. } | Task::WriteReduce { .. } | Task::ReadReduce { .. } => 3,
        _ => 0,
    }
}

/// What a task reads of its rank's own memory.
const fn sources(task: &Task) -> [Option<Loc>; 2] {
    match *task {
        Task::Copy { src, .. }
        | Task::Write { src, .. }
        | Task::WriteReduce { src, .. }
        | Task::PacketWrite { src, .. } => [Some(src), None],
        Task::Reduce { a, b, .. } => [Some(a), Some(b)],
        Task::ReadReduce { a, .. } | Task::PacketReduce { a, .. } => [Some(a), None],
        _ => [None, None],
    }
}

/// Parts of a memory.
#[derive(Default)]
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    fn add(&mut self, at: Loc, bytes: u64) {
        let range = (at.offset, at.offset.saturating_add(bytes));
        // Slots are used again and again.
        if at.buffer == Buffer::Scratch && self.0.last() != Some(&range) {
            self.0.push(range);
        }
    }

    /// To be called when all are there.
    fn close(&mut self) {
        self.0.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for &(start, end) in &self.0 {
            match joined.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => joined.push((start, end)),
            }
        }
        self.0 = joined;
    }

    fn meets(&self, at: Loc, bytes: u64) -> bool {
        let behind = self.0.partition_point(|range| range.1 <= at.offset);
        self.0
            .get(behind)
            .is_some_and(|range| range.0 < at.offset.saturating_add(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_touch_become_one_and_others_are_told_apart() {
        let mut ranges = Ranges::default();
        for (at, bytes) in [(100, 50), (0, 10), (150, 50), (0, 10)] {
            ranges.add(Loc::scratch(at), bytes);
        }
        ranges.add(Loc::input(500), 10);
        ranges.close();
        assert_eq!(ranges.0, [(0, 10), (100, 200)]);
        let meets = |at, bytes| ranges.meets(Loc::scratch(at), bytes);
        assert!(meets(0, 1) && meets(9, 100) && meets(199, 1) && meets(50, 51));
        assert!(!meets(10, 90) && !meets(200, 400) && !meets(500, 1));
    }
}
