//! The one symbolic run.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

use hcomm_types::Rank;

use super::clock::{Clock, Landings, Message, Moment, Past, covers};
use super::finding::OtherTask;
use super::layout::{Layout, Notify, notify_recorded, notify_waited};
use super::memory::{Access, Memory, Race};
use super::structure::{MAX_FINDINGS, buffer_bytes};
use super::value::{Content, Expressions, Misfit, Pieces, Value};
use super::{At, Fault, Finding, results};
use crate::plan::{Buffer, Loc, Plan, Task};

/// A row of plans under symbolic execution; mostly a row of one.
pub(super) struct Execution<'p> {
    pub(super) rounds: &'p [&'p Plan],
    pub(super) layout: Layout,
    pub(super) memories: Vec<Memory>,
    pub(super) expressions: Expressions,
    pub(super) findings: Vec<Finding>,
    /// What each rank knows when it ends each plan.
    pub(super) ends: Vec<Vec<Option<Box<[u32]>>>>,
    /// The first moment of each thread in each plan, by actor.
    starts: Vec<Vec<Option<u32>>>,
    clocks: Vec<Clock>,
    next_task: Vec<usize>,
    /// The plan each rank is in, and how many of its threads are not done with it.
    current: Vec<(usize, usize)>,
    counters: HashMap<(usize, Notify), Counter>,
    /// Records made between each pair of a thread and a peer it writes to.
    landed: Vec<u32>,
    pub(super) landings: Landings,
    raced: HashSet<(usize, usize, u32, u32)>,
    notify_capacity: u64,
}

/// What came out of a run.
pub(super) struct End {
    pub(super) findings: Vec<Finding>,
    pub(super) synchronising: bool,
    pub(super) quiescent: bool,
    pub(super) same_bits: bool,
    pub(super) notify_capacity: u64,
}

#[derive(Default)]
struct Counter {
    /// Records not waited for yet. Initial credits carry nothing.
    records: VecDeque<Option<Message>>,
    /// Waits that no record has been seen to follow yet.
    waits: VecDeque<Moment>,
    /// Credits and records, less the waits known to be before the last record.
    value: u64,
    blocked: Option<(Rank, usize)>,
}

impl<'p> Execution<'p> {
    pub(super) fn new(rounds: &'p [&'p Plan]) -> Self {
        let layout = Layout::new(rounds);
        let (actors, pairs) = (layout.actors(), layout.landings());
        let ranks = rounds.first().map_or(0, |plan| plan.ranks.len());
        let mut execution = Self {
            rounds,
            memories: vec![Memory::new(0); layout.memories()],
            expressions: Expressions::default(),
            findings: Vec::new(),
            ends: vec![vec![None; ranks]; rounds.len()],
            starts: vec![vec![None; actors]; rounds.len()],
            clocks: (0..actors).map(|actor| Clock::new(actors, actor)).collect(),
            next_task: vec![0; actors],
            current: vec![(0, 0); ranks],
            counters: HashMap::new(),
            landed: vec![0; pairs],
            landings: Landings::new(actors, pairs),
            raced: HashSet::new(),
            notify_capacity: 0,
            layout,
        };
        execution.lay_out_memory();
        execution.give_credits();
        execution
    }

    fn lay_out_memory(&mut self) {
        for (round, plan) in self.rounds.iter().enumerate() {
            for rank in plan.shape.all_ranks() {
                for buffer in [Buffer::Input, Buffer::Output, Buffer::Scratch] {
                    if plan.shape.home(rank, buffer).0 != buffer {
                        continue;
                    }
                    let memory = self.layout.memory(round, rank, buffer);
                    let bytes = self
                        .rounds
                        .iter()
                        .enumerate()
                        .filter(|(other, _)| self.layout.memory(*other, rank, buffer) == memory)
                        .map(|(_, plan)| buffer_bytes(plan, rank, buffer))
                        .max();
                    self.memories[memory] = Memory::new(bytes.unwrap_or(0));
                }
                let bytes = plan.shape.input_bytes(rank);
                if bytes > 0 {
                    let (home, base) = plan.shape.home(rank, Buffer::Input);
                    let memory = self.layout.memory(round, rank, home);
                    let expression = self.expressions.input(round as u32, rank);
                    let value = Value::Inputs {
                        expression,
                        shift: base.wrapping_neg(),
                    };
                    self.memories[memory].preset(base..base + bytes, value);
                }
            }
        }
    }

    fn give_credits(&mut self) {
        for (round, plan) in self.rounds.iter().enumerate() {
            let space = self.layout.notify_space(round);
            for credit in &plan.initial_credits {
                let notify = Notify::Channel {
                    recorder: credit.recorder,
                    waiter: credit.waiter,
                    notify: credit.notify,
                };
                let counter = self.counters.entry((space, notify)).or_default();
                if counter.records.is_empty() {
                    counter.records.extend((0..credit.count).map(|_| None));
                    counter.value = u64::from(credit.count);
                    self.notify_capacity = self.notify_capacity.max(counter.value);
                }
            }
        }
    }

    /// Runs until nothing moves any more, and reports a deadlock if something should.
    pub(super) fn run(&mut self) {
        let mut ready: VecDeque<(Rank, usize)> = VecDeque::new();
        for rank in 0..self.current.len() {
            self.begin(Rank::from_index(rank), 0, &mut ready);
        }
        while let Some((rank, thread)) = ready.pop_front() {
            self.run_thread(rank, thread, &mut ready);
        }
        if self
            .current
            .iter()
            .any(|(round, _)| *round < self.rounds.len())
        {
            self.report_deadlock();
        }
    }

    fn begin(&mut self, rank: Rank, round: usize, ready: &mut VecDeque<(Rank, usize)>) {
        self.current[rank.index()] = (round, 0);
        let Some(plan) = self.rounds.get(round) else {
            return;
        };
        let threads = plan.ranks[rank.index()].threads.len();
        self.current[rank.index()].1 = threads;
        for actor in self.layout.actors_of(rank) {
            self.starts[round][actor] = Some(self.clocks[actor].now().value);
            self.next_task[actor] = 0;
        }
        ready.extend((0..threads).map(|thread| (rank, thread)));
        if threads == 0 {
            self.end(rank, ready);
        }
    }

    /// A rank ends a plan when all its threads have; then it begins the next one.
    fn end(&mut self, rank: Rank, ready: &mut VecDeque<(Rank, usize)>) {
        let (round, _) = self.current[rank.index()];
        let actors = self.layout.actors_of(rank);
        let mut known = vec![0; self.layout.actors()];
        for actor in actors.clone() {
            for (joined, own) in known.iter_mut().zip(self.clocks[actor].known()) {
                *joined = (*joined).max(*own);
            }
        }
        if self.rounds.len() > 1 {
            for actor in actors {
                self.clocks[actor].join(&known);
                self.clocks[actor].advance();
            }
        }
        self.ends[round][rank.index()] = Some(known.into());
        self.begin(rank, round + 1, ready);
    }

    fn run_thread(&mut self, rank: Rank, thread: usize, ready: &mut VecDeque<(Rank, usize)>) {
        let (round, _) = self.current[rank.index()];
        let plan: &'p Plan = self.rounds[round];
        let tasks = &plan.ranks[rank.index()].threads[thread];
        let actor = self.layout.actor(rank, thread);
        while let Some(task) = tasks.get(self.next_task[actor]) {
            let index = self.next_task[actor] as u32;
            let at = At {
                round: round as u32,
                rank,
                thread: thread as u32,
                index,
            };
            if let Some(notify) = notify_waited(rank, thread, task) {
                if !self.wait(round, notify, actor, (rank, thread)) {
                    return;
                }
            } else {
                self.touch(task, at, actor);
                if let Some(notify) = notify_recorded(rank, task) {
                    ready.extend(self.record(round, notify, actor));
                }
            }
            self.next_task[actor] += 1;
        }
        self.current[rank.index()].1 -= 1;
        if self.current[rank.index()].1 == 0 {
            self.end(rank, ready);
        }
    }

    /// Takes a record if there is one.
    fn wait(&mut self, round: usize, notify: Notify, actor: usize, thread: (Rank, usize)) -> bool {
        let space = self.layout.notify_space(round);
        let counter = self.counters.entry((space, notify)).or_default();
        let Some(message) = counter.records.pop_front() else {
            counter.blocked = Some(thread);
            return false;
        };
        let clock = &mut self.clocks[actor];
        if let Some(message) = message {
            clock.receive(&message);
            if let Some(landed) = message.landed {
                self.landings.show(landed, clock.now());
            }
        }
        counter.waits.push_back(clock.now());
        true
    }

    /// Makes a record; gives the thread that was blocked on it.
    fn record(&mut self, round: usize, notify: Notify, actor: usize) -> Option<(Rank, usize)> {
        let landed = match notify {
            Notify::Channel { waiter, .. } => self.layout.landing(actor, waiter).map(|component| {
                let count = &mut self.landed[component as usize - self.layout.actors()];
                *count += 1;
                Moment {
                    component,
                    value: *count,
                }
            }),
            Notify::Thread { .. } => None,
        };
        let space = self.layout.notify_space(round);
        let counter = self.counters.entry((space, notify)).or_default();
        let clock = &mut self.clocks[actor];
        while counter
            .waits
            .front()
            .is_some_and(|wait| covers(clock.known(), *wait))
        {
            counter.waits.pop_front();
            counter.value -= 1;
        }
        counter.value += 1;
        self.notify_capacity = self.notify_capacity.max(counter.value);
        counter.records.push_back(Some(clock.send(landed)));
        counter.blocked.take()
    }

    /// What a task does to memory.
    fn touch(&mut self, task: &Task, at: At, actor: usize) {
        let element_bytes = self.rounds[at.round as usize].shape.element_bytes();
        let moment = self.clocks[actor].now();
        let mut step = Step {
            execution: self,
            at,
            actor,
            moment,
        };
        let me = at.rank;
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
            Task::Record { .. }
            | Task::Wait { .. }
            | Task::ThreadRecord { .. }
            | Task::ThreadWait { .. } => {}
        }
    }

    pub(super) fn report(&mut self, at: At, fault: Fault) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Finding::at(at, self.rounds, fault));
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

    /// Follows the waits from the first rank that is stuck until they close a circle.
    fn report_deadlock(&mut self) {
        let blocked: HashMap<(Rank, usize), Notify> = self
            .counters
            .iter()
            .filter_map(|((_, notify), counter)| Some((counter.blocked?, *notify)))
            .collect();
        let Some(&start) = blocked.keys().min() else {
            return;
        };
        let mut chain = Vec::new();
        let mut here = start;
        while let Some(&notify) = blocked.get(&here) {
            if chain.contains(&here) {
                break;
            }
            chain.push(here);
            let Some(next) = self.recorder(notify, &blocked) else {
                break;
            };
            here = next;
        }
        let place = |(rank, thread): (Rank, usize)| At {
            round: self.current[rank.index()].0 as u32,
            rank,
            thread: thread as u32,
            index: self.next_task[self.layout.actor(rank, thread)] as u32,
        };
        let mut because = String::from("the record");
        for &link in &chain[1..] {
            let task = OtherTask::new(place(link), self.rounds);
            because += &format!(" stands behind {task}, which needs a record that");
        }
        let At {
            rank,
            thread,
            index,
            ..
        } = place(here);
        because += &format!(" stands behind rank {rank}, thread {thread}, task {index} again");
        self.report(place(start), Fault::Deadlock { because });
    }

    /// The stuck thread that should make the next record of a notify.
    fn recorder(
        &self,
        notify: Notify,
        blocked: &HashMap<(Rank, usize), Notify>,
    ) -> Option<(Rank, usize)> {
        let mut candidates: Vec<(Rank, usize)> = blocked.keys().copied().collect();
        candidates.sort_unstable();
        let ahead = |&(rank, thread): &(Rank, usize), rest_only: bool| {
            let (round, _) = self.current[rank.index()];
            let done = self.next_task[self.layout.actor(rank, thread)];
            let rank_plan = &self.rounds[round].ranks[rank.index()];
            rank_plan.threads[thread]
                .iter()
                .skip(if rest_only { done } else { 0 })
                .any(|task| notify_recorded(rank, task) == Some(notify))
        };
        let owner = match notify {
            Notify::Channel { recorder, .. } => recorder,
            Notify::Thread { rank, .. } => rank,
        };
        candidates.retain(|(rank, _)| *rank == owner);
        candidates
            .iter()
            .find(|candidate| ahead(candidate, true))
            .or_else(|| candidates.first())
            .copied()
    }

    /// Looks at what the run has left.
    pub(super) fn finish(mut self) -> End {
        let complete = self.ends.iter().flatten().all(Option::is_some);
        let (mut quiescent, mut same_bits) = (false, false);
        if complete {
            quiescent = results::check_ends(&mut self);
            same_bits = results::check_outputs(&mut self);
        }
        End {
            synchronising: complete && self.rounds.len() == 1 && self.is_synchronising(),
            quiescent,
            same_bits,
            notify_capacity: self.notify_capacity,
            findings: self.findings,
        }
    }

    fn is_synchronising(&self) -> bool {
        let ranks = self.current.len();
        self.ends[0].iter().enumerate().all(|(ender, known)| {
            (0..ranks).all(|starter| {
                ender == starter
                    || known
                        .as_ref()
                        .is_some_and(|known| self.begun(known, 0, Rank::from_index(starter)))
            })
        })
    }

    /// Whether somebody with this knowledge knows that a rank has begun a plan.
    fn begun(&self, known: &[u32], round: usize, rank: Rank) -> bool {
        self.layout.actors_of(rank).any(|actor| {
            self.starts[round][actor].is_some_and(|value| {
                covers(
                    known,
                    Moment {
                        component: actor as u32,
                        value,
                    },
                )
            })
        })
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

    fn read(&mut self, owner: Rank, loc: Loc, bytes: u64) -> Pieces {
        let (memory, range) = self.place(owner, loc, bytes);
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
            execution.report(self.at, fault);
        }
        pieces
    }

    fn write(&mut self, owner: Rank, loc: Loc, bytes: u64, pieces: &Pieces) {
        let (memory, range) = self.place(owner, loc, bytes);
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
        };
        self.execution.report(self.at, fault);
        a.clone()
    }
}
