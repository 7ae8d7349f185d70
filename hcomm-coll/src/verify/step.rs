//! What one task does to memory.

use std::ops::Range;

use hcomm_types::Rank;

use super::clock::{Moment, Past};
use super::execution::Execution;
use super::finding::OtherTask;
use super::layout::Lines;
use super::memory::{Access, Race};
use super::value::{Content, Misfit, Piece, Pieces, push};
use super::{At, Fault};
use crate::plan::{Buffer, Loc, Task};

impl Execution<'_> {
    /// What a task does to memory.
    pub(super) fn touch(&mut self, task: &Task, at: At, actor: usize) {
        let element_bytes = self.rounds[at.round as usize].shape.element_bytes();
        let moment = self.clocks[actor].now();
        let mut step = Step {
            execution: self,
            at,
            actor,
            moment,
        };
        let me = at.rank;
        let lines = Lines::of(me, task, element_bytes);
        match *task {
            Task::Copy { dst, src, bytes } => {
                let pieces = step.read(me, src, bytes);
                step.write(me, dst, bytes, &pieces);
            }
            Task::Reduce { dst, a, b, count } => {
                let bytes = count * element_bytes;
                let (first, second) = (step.read(me, a, bytes), step.read(me, b, bytes));
                let pieces = step.combine(&first, &second, element_bytes);
                step.write(me, dst, bytes, &pieces);
            }
            Task::Divide { dst, count } => {
                let bytes = count * element_bytes;
                let pieces = step.read(me, dst, bytes);
                let pieces = step.divide(pieces, element_bytes);
                step.write(me, dst, bytes, &pieces);
            }
            Task::Write {
                peer,
                dst,
                src,
                bytes,
                ..
            } => {
                let pieces = step.read(me, src, bytes);
                step.becomes_remote(peer);
                step.write(peer, dst, bytes, &pieces);
            }
            Task::Read {
                peer,
                dst,
                src,
                bytes,
            } => {
                let pieces = step.read(peer, src, bytes);
                step.write(me, dst, bytes, &pieces);
            }
            Task::WriteReduce {
                peer,
                dst,
                src,
                count,
                ..
            } => {
                let bytes = count * element_bytes;
                let second = step.read(me, src, bytes);
                step.becomes_remote(peer);
                let first = step.read(peer, dst, bytes);
                let pieces = step.combine(&first, &second, element_bytes);
                step.write(peer, dst, bytes, &pieces);
            }
            Task::ReadReduce {
                peer,
                dst,
                a,
                src,
                count,
            } => {
                let bytes = count * element_bytes;
                let (first, second) = (step.read(me, a, bytes), step.read(peer, src, bytes));
                let pieces = step.combine(&first, &second, element_bytes);
                step.write(me, dst, bytes, &pieces);
            }
            Task::PacketWrite { src, bytes, .. } => {
                let pieces = step.read(me, src, bytes);
                step.send(lines, pieces);
            }
            Task::PacketRead { dst, bytes, .. } => {
                let pieces = step.take(lines);
                step.write(me, dst, bytes, &pieces);
            }
            Task::PacketReduce {
                dst, a, swapped, ..
            } => {
                let bytes = lines.map_or(0, |lines| lines.bytes);
                let (own, packet) = (step.read(me, a, bytes), step.take(lines));
                let (first, second) = if swapped {
                    (packet, own)
                } else {
                    (own, packet)
                };
                let pieces = step.combine(&first, &second, element_bytes);
                step.write(me, dst, bytes, &pieces);
            }
            Task::Record { .. }
            | Task::Wait { .. }
            | Task::ThreadRecord { .. }
            | Task::ThreadWait { .. } => {}
        }
    }

    fn report_races(&mut self, memory: usize, at: At, races: Vec<Race>) {
        let (owner, buffer, _) = self.layout.owner(memory);
        for Race {
            earlier,
            earlier_writes,
            bytes,
        } in races
        {
            // One finding for a pair of tasks is enough, however many bytes they share.
            let actor = self.layout.actor(at.rank, at.thread as usize);
            let other = self
                .layout
                .actor(earlier.at.rank, earlier.at.thread as usize);
            if !self
                .raced
                .insert((actor, other, at.index, earlier.at.index))
            {
                continue;
            }
            if self.layout.holds_packets(memory) {
                let (writer, line) = Lines::line_at(bytes.start);
                let fault = Fault::LineInUse {
                    writer,
                    reader: owner,
                    line,
                    other: OtherTask::new(earlier.at, self.rounds),
                };
                self.report(at, fault);
                continue;
            }
            let fault = Fault::Race {
                owner,
                buffer,
                start: bytes.start,
                end: bytes.end,
                other: OtherTask::new(earlier.at, self.rounds),
                verb: if earlier_writes {
                    "may be writing"
                } else {
                    "may be reading"
                },
            };
            self.report(at, fault);
        }
    }
}

/// One task at work.
struct Step<'e, 'p> {
    execution: &'e mut Execution<'p>,
    at: At,
    actor: usize,
    moment: Moment,
}

impl Step<'_, '_> {
    /// From here on the task acts at the peer, at some time before the next record there.
    fn becomes_remote(&mut self, peer: Rank) {
        let layout = &self.execution.layout;
        if let Some(component) = layout.landing(self.actor, peer) {
            let records = self.execution.landed[component as usize - layout.actors()];
            self.moment = Moment {
                component,
                value: records + 1,
            };
        }
    }

    fn place(&mut self, owner: Rank, loc: Loc, bytes: u64) -> (usize, Range<u64>) {
        let round = self.at.round as usize;
        let execution = &mut *self.execution;
        let (home, base) = execution.rounds[round].shape.home(owner, loc.buffer);
        if owner != self.at.rank && home != Buffer::Scratch {
            let known = execution.clocks[self.actor].known();
            if !execution.begun(known, round, owner) {
                execution.report(
                    self.at,
                    Fault::BeforeBegin {
                        owner,
                        buffer: loc.buffer,
                    },
                );
            }
        }
        let start = base + loc.offset;
        (
            execution.layout.memory(round, owner, home),
            start..start + bytes,
        )
    }

    fn read_range(&mut self, memory: usize, range: Range<u64>) -> Pieces {
        let access = Access {
            moment: self.moment,
            at: self.at,
        };
        let mut races = Vec::new();
        let execution = &mut *self.execution;
        let past = Past {
            known: execution.clocks[self.actor].known(),
            landings: &execution.landings,
        };
        let pieces = execution.memories[memory].read(range, access, &past, &mut races);
        execution.report_races(memory, self.at, races);
        pieces
    }

    fn read(&mut self, owner: Rank, loc: Loc, bytes: u64) -> Pieces {
        if bytes == 0 {
            return Pieces::new();
        }
        let (memory, range) = self.place(owner, loc, bytes);
        let pieces = self.read_range(memory, range);
        if let Some(piece) = pieces
            .iter()
            .find(|piece| piece.content == Content::Unwritten)
        {
            let (start, end) = (loc.offset + piece.start, loc.offset + piece.end);
            let fault = Fault::ReadsUnwritten {
                owner,
                buffer: loc.buffer,
                start,
                end,
            };
            self.execution.report(self.at, fault);
        }
        pieces
    }

    fn write(&mut self, owner: Rank, loc: Loc, bytes: u64, pieces: &Pieces) {
        if bytes == 0 {
            return;
        }
        let (memory, range) = self.place(owner, loc, bytes);
        self.write_range(memory, range, pieces);
    }

    fn write_range(&mut self, memory: usize, range: Range<u64>, pieces: &Pieces) {
        let access = Access {
            moment: self.moment,
            at: self.at,
        };
        let mut races = Vec::new();
        let execution = &mut *self.execution;
        let past = Past {
            known: execution.clocks[self.actor].known(),
            landings: &execution.landings,
        };
        execution.memories[memory].write(range, pieces, access, &past, &mut races);
        execution.report_races(memory, self.at, races);
    }

    /// Fills lines with a payload and flags.
    fn send(&mut self, lines: Option<Lines>, mut pieces: Pieces) {
        let Some(lines) = lines else { return };
        let range = lines.range();
        // All of the lines is taken, so that another packet may have no byte of them.
        let rest = Piece {
            start: lines.bytes,
            end: range.end - range.start,
            content: Content::Unwritten,
        };
        push(&mut pieces, rest);
        let memory = self.packet_memory(&lines);
        self.write_range(memory, range, &pieces);
    }

    /// The payload of a packet that is there.
    fn take(&mut self, lines: Option<Lines>) -> Pieces {
        let Some(lines) = lines else {
            return Pieces::new();
        };
        let memory = self.packet_memory(&lines);
        let mut pieces = self.read_range(memory, lines.range());
        pieces.retain(|piece| piece.start < lines.bytes);
        for piece in &mut pieces {
            piece.end = piece.end.min(lines.bytes);
        }
        pieces
    }

    fn packet_memory(&self, lines: &Lines) -> usize {
        let layout = &self.execution.layout;
        layout.packet_memory(self.at.round as usize, lines.reader)
    }

    /// Divides what is read. What cannot be divided is reported, and stays as it is.
    fn divide(&mut self, mut pieces: Pieces, element_bytes: u64) -> Pieces {
        let round = self.at.round;
        let ranks = self.execution.rounds[round as usize].shape.ranks;
        for index in 0..pieces.len() {
            let piece = &mut pieces[index];
            // What was never written is reported by the read.
            let Content::Inputs { expression, origin } = &mut piece.content else {
                continue;
            };
            let is_whole =
                origin.is_multiple_of(element_bytes) && piece.end.is_multiple_of(element_bytes);
            let expressions = &mut self.execution.expressions;
            let fault = match expressions.divide(*expression, round, ranks) {
                Some(divided) if is_whole => {
                    *expression = divided;
                    continue;
                }
                Some(_) => Fault::CombinesTorn,
                None => Fault::DividesPart {
                    found: expressions.describe(*expression),
                },
            };
            self.execution.report(self.at, fault);
        }
        pieces
    }

    /// Combines two operands. What cannot be combined is reported, and the first operand stands
    /// in for the result.
    fn combine(&mut self, a: &Pieces, b: &Pieces, element_bytes: u64) -> Pieces {
        let misfit = match self
            .execution
            .expressions
            .combine_pieces(a, b, element_bytes)
        {
            Ok(pieces) => return pieces,
            Err(misfit) => misfit,
        };
        let fault = match misfit {
            // Reported by the read.
            Misfit::Unwritten => return a.clone(),
            Misfit::Offsets(first, second) => Fault::CombinesOthers { first, second },
            Misfit::Torn => Fault::CombinesTorn,
            Misfit::Twice(rank) => Fault::CombinesTwice { rank },
            Misfit::Rounds => Fault::CombinesOperations,
            Misfit::Averages => Fault::CombinesAverages,
        };
        self.execution.report(self.at, fault);
        a.clone()
    }
}
