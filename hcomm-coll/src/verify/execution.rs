//! The one symbolic run.

use std::collections::VecDeque;

use hcomm_types::Rank;
use rustc_hash::{FxHashMap, FxHashSet};

use super::clock::{Clock, Landings, Message, Moment, covers};
use super::layout::{Layout, Lines, Notify, notify_recorded, notify_waited};
use super::memory::Memory;
use super::structure::{MAX_FINDINGS, buffer_bytes};
use super::value::{Expressions, Value};
use super::{At, Fault, Finding, results};
use crate::plan::{Buffer, Plan};

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
    pub(super) clocks: Vec<Clock>,
    pub(super) next_task: Vec<usize>,
    /// The plan each rank is in, and how many of its threads are not done with it.
    pub(super) current: Vec<(usize, usize)>,
    pub(super) counters: FxHashMap<(usize, Notify), Counter>,
    /// Records made between each pair of a thread and a peer it writes to.
    pub(super) landed: Vec<u32>,
    pub(super) landings: Landings,
    pub(super) raced: FxHashSet<(usize, usize, u32, u32)>,
    notify_capacity: u64,
}

/// What came out of a run.
pub(super) struct End {
    pub(super) findings: Vec<Finding>,
    pub(super) synchronising: bool,
    pub(super) quiescent: bool,
    pub(super) same_bits: bool,
    pub(super) rank_order: bool,
    pub(super) notify_capacity: u64,
}

#[derive(Default)]
pub(super) struct Counter {
    /// Records not waited for yet. Initial credits carry nothing.
    records: VecDeque<Option<Message>>,
    /// Waits that no record has been seen to follow yet.
    waits: VecDeque<Moment>,
    /// Credits and records, less the waits known to be before the last record.
    value: u64,
    pub(super) blocked: Option<(Rank, usize)>,
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
            counters: FxHashMap::default(),
            landed: vec![0; pairs],
            landings: Landings::new(actors, pairs),
            raced: FxHashSet::default(),
            notify_capacity: 0,
            layout,
        };
        execution.lay_out_memory();
        execution.give_credits();
        execution
    }

    fn lay_out_memory(&mut self) {
        for (round, plan) in self.rounds.iter().enumerate() {
            if plan.has_packets() {
                for rank in plan.shape.all_ranks() {
                    let memory = self.layout.packet_memory(round, rank);
                    self.memories[memory] = Memory::new(Lines::memory_bytes(plan.shape.ranks));
                }
            }
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
            for credit in &plan.initial_credits {
                let notify = Notify::Channel {
                    recorder: credit.recorder,
                    waiter: credit.waiter,
                    notify: credit.notify,
                };
                let space = self.layout.notify_space(round, notify);
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
            if let Some(notify) = notify_waited(rank, thread, task)
                && !self.wait(round, notify, actor, (rank, thread))
            {
                return;
            }
            self.touch(task, at, actor);
            if let Some(notify) = notify_recorded(rank, task) {
                ready.extend(self.record(round, notify, actor));
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
        let space = self.layout.notify_space(round, notify);
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
            Notify::Thread { .. } | Notify::Packet { .. } => None,
        };
        let space = self.layout.notify_space(round, notify);
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
        if !matches!(notify, Notify::Packet { .. }) {
            self.notify_capacity = self.notify_capacity.max(counter.value);
        }
        counter.records.push_back(Some(clock.send(landed)));
        counter.blocked.take()
    }

    pub(super) fn report(&mut self, at: At, fault: Fault) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Finding::at(at, self.rounds, fault));
        }
    }

    /// Looks at what the run has left.
    pub(super) fn finish(mut self) -> End {
        let complete = self.ends.iter().flatten().all(Option::is_some);
        let mut quiescent = false;
        let mut combined = results::Combined {
            same_bits: false,
            rank_order: false,
        };
        if complete {
            quiescent = results::check_ends(&mut self);
            combined = results::check_outputs(&mut self);
        }
        End {
            synchronising: complete && self.rounds.len() == 1 && self.is_synchronising(),
            quiescent,
            same_bits: combined.same_bits,
            rank_order: combined.rank_order,
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
    pub(super) fn begun(&self, known: &[u32], round: usize, rank: Rank) -> bool {
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
