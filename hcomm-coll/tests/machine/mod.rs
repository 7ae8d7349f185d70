//! A machine that carries out plans step by step, and leaves every choice of order to its caller.
//!
//! It is the tests' own reading of what tasks mean, and shares nothing with the verifier. Tasks on
//! a rank's own memory, and reads of a peer's, happen at once. What a task does *to* a peer is put
//! into a queue for each thread and peer: writes leave the queue at any time and in any order,
//! records only when nothing is before them. Each line of a packet is a write of its own. (That single tasks happen at once loses nothing that
//! matters here: tearing a task apart could only find more wrong outcomes than the machine does,
//! so a mutant that the machine finds wrong is wrong.)

use std::collections::HashMap;

use hcomm_coll::plan::{Buffer, Count, Loc, MAX_PACKET_LINES, Operation, Plan, Shape, Task};
use hcomm_types::{DataType, Rank, ReduceOp, Reduction, bf16, f16};

/// A source of choices, repeatable from its seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap() % limit
    }
}

/// What went wrong in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    Malformed,
    OutOfBounds,
    Deadlock,
    Output(u32),
    InputWritten(u32),
    Counters,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Effect {
    Write {
        memory: usize,
        at: usize,
        data: Vec<u8>,
    },
    Combine {
        memory: usize,
        at: usize,
        data: Vec<u8>,
    },
    Line {
        line: usize,
        payload: [u8; PAYLOAD],
    },
    Record(usize),
}

/// Bytes of a packet in each of its lines.
const PAYLOAD: usize = 56;

/// Everything that can differ between two moments of runs of one plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    memories: Vec<Vec<u8>>,
    next: Vec<u32>,
    counters: Vec<i64>,
    /// What has arrived in each line.
    lines: Vec<Option<[u8; PAYLOAD]>>,
    queues: Vec<Vec<Effect>>,
}

/// One thing that may happen next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice {
    Task(usize),
    Effect { queue: usize, item: usize },
}

/// A plan, ready to be run on given inputs.
pub(crate) struct Machine<'p> {
    plan: &'p Plan,
    threads: Vec<(u32, usize)>,
    counter_names: HashMap<(u32, u32, u32, u32), usize>,
    /// By writer, reader and number.
    line_names: HashMap<(u32, u32, u64), usize>,
    credits: Vec<i64>,
    start: Vec<Vec<u8>>,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

impl<'p> Machine<'p> {
    /// A machine on data drawn from a seed.
    pub(crate) fn new(plan: &'p Plan, seed: u64) -> Self {
        let shape = &plan.shape;
        let mut random = Random::new(seed);
        let inputs: Vec<Vec<u8>> = (0..shape.ranks)
            .map(|rank| draw(&mut random, shape.dtype, elements_in(shape, rank)))
            .collect();
        let outputs = (0..shape.ranks)
            .map(|rank| reference(shape, &inputs, rank))
            .collect();
        let mut start = Vec::new();
        for rank in 0..shape.ranks {
            let input = &inputs[rank as usize];
            let scratch = plan
                .ranks
                .get(rank as usize)
                .map_or(0, |rank| rank.scratch_bytes);
            let mut output = garbage(&mut random, bytes_out(shape, rank));
            let aliased = alias(shape, rank);
            if let Some((Buffer::Output, at)) = aliased {
                output[at..at + input.len()].copy_from_slice(input);
            }
            // Of two buffers in one memory only the larger one is kept.
            start.push(if matches!(aliased, Some((Buffer::Output, _))) {
                Vec::new()
            } else {
                input.clone()
            });
            start.push(if matches!(aliased, Some((Buffer::Input, _))) {
                Vec::new()
            } else {
                output
            });
            start.push(garbage(&mut random, usize::try_from(scratch).unwrap()));
        }
        let mut machine = Self {
            plan,
            threads: Vec::new(),
            counter_names: HashMap::new(),
            line_names: HashMap::new(),
            credits: Vec::new(),
            start,
            inputs,
            outputs,
        };
        machine.number();
        machine
    }

    fn number(&mut self) {
        for (rank, rank_plan) in (0..).zip(&self.plan.ranks) {
            for (thread, tasks) in rank_plan.threads.iter().enumerate() {
                self.threads.push((rank, thread));
                for task in tasks {
                    let recorded = recorded(rank, task);
                    let waited = waited(rank, thread as u32, task);
                    for name in [recorded, waited].into_iter().flatten() {
                        let number = self.counter_names.len();
                        self.counter_names.entry(name).or_insert(number);
                    }
                    for name in self.lines(rank, task).into_iter().flatten() {
                        let number = self.line_names.len();
                        self.line_names.entry(name).or_insert(number);
                    }
                }
            }
        }
        for credit in &self.plan.initial_credits {
            let number = self.counter_names.len();
            let name = (credit.recorder.0, credit.waiter.0, u32::MAX, credit.notify);
            self.counter_names.entry(name).or_insert(number);
        }
        self.credits = vec![0; self.counter_names.len()];
        for credit in &self.plan.initial_credits {
            let name = (credit.recorder.0, credit.waiter.0, u32::MAX, credit.notify);
            self.credits[self.counter_names[&name]] = i64::from(credit.count);
        }
    }

    pub(crate) fn start(&self) -> State {
        State {
            memories: self.start.clone(),
            next: vec![0; self.threads.len()],
            counters: self.credits.clone(),
            lines: vec![None; self.line_names.len()],
            queues: vec![Vec::new(); self.threads.len() * self.plan.shape.ranks as usize],
        }
    }

    /// The lines of a packet task, if it is one and they are there.
    fn lines(&self, rank: u32, task: &Task) -> Option<Vec<(u32, u32, u64)>> {
        let size = self.plan.shape.dtype.size() as u64;
        let (writer, reader, first, bytes) = match *task {
            Task::PacketWrite {
                peer, line, bytes, ..
            } => (rank, peer.0, line, bytes),
            Task::PacketRead {
                peer, line, bytes, ..
            } => (peer.0, rank, line, bytes),
            Task::PacketReduce {
                peer, line, count, ..
            } => (peer.0, rank, line, count.checked_mul(size)?),
            _ => return None,
        };
        let lines = bytes.div_ceil(PAYLOAD as u64).max(1);
        let end = u64::from(first).checked_add(lines)?;
        (end <= u64::from(MAX_PACKET_LINES)).then(|| {
            (u64::from(first)..end)
                .map(|line| (writer, reader, line))
                .collect()
        })
    }

    /// The bytes of a packet, if all of it has arrived.
    fn packet(&self, state: &State, rank: u32, task: &Task) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for name in self.lines(rank, task)? {
            bytes.extend(state.lines[self.line_names[&name]]?);
        }
        Some(bytes)
    }

    fn task(&self, state: &State, thread: usize) -> Option<&Task> {
        let (rank, number) = self.threads[thread];
        self.plan.ranks[rank as usize].threads[number].get(state.next[thread] as usize)
    }

    /// All that may happen next. Nothing at the end, and in a deadlock.
    pub(crate) fn choices(&self, state: &State) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (thread, &(rank, number)) in self.threads.iter().enumerate() {
            let Some(task) = self.task(state, thread) else {
                continue;
            };
            let blocked = waited(rank, number as u32, task)
                .is_some_and(|name| state.counters[self.counter_names[&name]] <= 0);
            let takes = matches!(task, Task::PacketRead { .. } | Task::PacketReduce { .. });
            let missing = takes
                && self.lines(rank, task).is_some()
                && self.packet(state, rank, task).is_none();
            if !blocked && !missing {
                choices.push(Choice::Task(thread));
            }
        }
        for (queue, effects) in state.queues.iter().enumerate() {
            for (item, effect) in effects.iter().enumerate() {
                if item == 0 || !matches!(effect, Effect::Record(_)) {
                    choices.push(Choice::Effect { queue, item });
                }
            }
        }
        choices
    }

    /// Does one of the choices.
    pub(crate) fn step(&self, state: &mut State, choice: Choice) -> Result<(), Wrong> {
        match choice {
            Choice::Effect { queue, item } => {
                match state.queues[queue].remove(item) {
                    Effect::Record(counter) => state.counters[counter] += 1,
                    Effect::Line { line, payload } => state.lines[line] = Some(payload),
                    Effect::Write { memory, at, data } => {
                        state.memories[memory][at..at + data.len()].copy_from_slice(&data);
                    }
                    Effect::Combine { memory, at, data } => {
                        let there = &mut state.memories[memory][at..at + data.len()];
                        let sum = self.combine(there, &data);
                        there.copy_from_slice(&sum);
                    }
                }
                Ok(())
            }
            Choice::Task(thread) => {
                let (rank, number) = self.threads[thread];
                let task = *self.task(state, thread).unwrap();
                self.run_task(state, thread, rank, number, &task)?;
                state.next[thread] += 1;
                if self.has_ended(state, rank) {
                    self.check_output(state, rank)
                } else {
                    Ok(())
                }
            }
        }
    }

    fn run_task(
        &self,
        state: &mut State,
        thread: usize,
        me: u32,
        number: usize,
        task: &Task,
    ) -> Result<(), Wrong> {
        let ranks = self.plan.shape.ranks;
        if let Some(peer) = task.peer()
            && (peer.0 >= ranks || peer.0 == me)
        {
            return Err(Wrong::Malformed);
        }
        let size = self.plan.shape.dtype.size() as u64;
        let elements = |count: u64| count.checked_mul(size).ok_or(Wrong::OutOfBounds);
        let queue = |peer: Rank| thread * ranks as usize + peer.index();
        match *task {
            Task::Copy { dst, src, bytes } => {
                let data = self.load(state, me, src, bytes)?;
                self.store(state, me, dst, &data)?;
            }
            Task::Reduce { dst, a, b, count } => {
                let (first, second) = (
                    self.load(state, me, a, elements(count)?)?,
                    self.load(state, me, b, elements(count)?)?,
                );
                self.store(state, me, dst, &self.combine(&first, &second))?;
            }
            Task::Divide { dst, count } => {
                let sum = self.load(state, me, dst, elements(count)?)?;
                let average = divide(self.plan.shape.dtype, &sum, ranks);
                self.store(state, me, dst, &average)?;
            }
            Task::Read {
                peer,
                dst,
                src,
                bytes,
            } => {
                let data = self.load(state, peer.0, src, bytes)?;
                self.store(state, me, dst, &data)?;
            }
            Task::ReadReduce {
                peer,
                dst,
                a,
                src,
                count,
            } => {
                let (first, second) = (
                    self.load(state, me, a, elements(count)?)?,
                    self.load(state, peer.0, src, elements(count)?)?,
                );
                self.store(state, me, dst, &self.combine(&first, &second))?;
            }
            Task::Write {
                peer,
                dst,
                src,
                bytes,
                ..
            } => {
                let data = self.load(state, me, src, bytes)?;
                let (memory, at) = self.find(state, peer.0, dst, bytes)?;
                state.queues[queue(peer)].push(Effect::Write { memory, at, data });
            }
            Task::WriteReduce {
                peer,
                dst,
                src,
                count,
                ..
            } => {
                let data = self.load(state, me, src, elements(count)?)?;
                let (memory, at) = self.find(state, peer.0, dst, elements(count)?)?;
                state.queues[queue(peer)].push(Effect::Combine { memory, at, data });
            }
            Task::PacketWrite {
                peer, src, bytes, ..
            } => {
                let lines = self.lines(me, task).ok_or(Wrong::OutOfBounds)?;
                let data = self.load(state, me, src, bytes)?;
                for (index, name) in lines.into_iter().enumerate() {
                    let mut payload = [0; PAYLOAD];
                    let part = data.chunks(PAYLOAD).nth(index).unwrap_or(&[]);
                    payload[..part.len()].copy_from_slice(part);
                    let line = self.line_names[&name];
                    state.queues[queue(peer)].push(Effect::Line { line, payload });
                }
            }
            Task::PacketRead { dst, bytes, .. } => {
                let mut packet = self.packet(state, me, task).ok_or(Wrong::OutOfBounds)?;
                packet.truncate(usize::try_from(bytes).unwrap());
                self.store(state, me, dst, &packet)?;
            }
            Task::PacketReduce {
                dst,
                a,
                count,
                swapped,
                ..
            } => {
                let mut packet = self.packet(state, me, task).ok_or(Wrong::OutOfBounds)?;
                let own = self.load(state, me, a, elements(count)?)?;
                packet.truncate(own.len());
                let result = if swapped {
                    self.combine(&packet, &own)
                } else {
                    self.combine(&own, &packet)
                };
                self.store(state, me, dst, &result)?;
            }
            Task::ThreadRecord {
                thread: other,
                notify,
            } => {
                if other as usize == number {
                    return Err(Wrong::Malformed);
                }
                state.counters[self.counter_names[&(me, me, other, notify)]] += 1;
            }
            Task::Wait { .. } | Task::ThreadWait { .. } => {
                let name = waited(me, number as u32, task).unwrap();
                state.counters[self.counter_names[&name]] -= 1;
            }
            Task::Record { .. } => {}
        }
        if let Some((peer, notify)) = task.records() {
            let counter = self.counter_names[&(me, peer.0, u32::MAX, notify)];
            state.queues[queue(peer)].push(Effect::Record(counter));
        }
        Ok(())
    }

    /// Whether a state without choices is a right end.
    pub(crate) fn check_end(&self, state: &State) -> Result<(), Wrong> {
        if (0..self.plan.shape.ranks).any(|rank| !self.has_ended(state, rank)) {
            return Err(Wrong::Deadlock);
        }
        if state.counters != self.credits {
            return Err(Wrong::Counters);
        }
        for rank in 0..self.plan.shape.ranks {
            self.check_output(state, rank)?;
            let input = &self.inputs[rank as usize];
            let kept = &state.memories[rank as usize * 3];
            let own = match alias(&self.plan.shape, rank) {
                None => 0..0,
                Some((Buffer::Output, _)) => 0..input.len(),
                Some((_, at)) => at..at + bytes_out(&self.plan.shape, rank),
            };
            if (0..kept.len()).any(|byte| kept[byte] != input[byte] && !own.contains(&byte)) {
                return Err(Wrong::InputWritten(rank));
            }
        }
        Ok(())
    }

    /// The largest value of any notify.
    pub(crate) fn largest_counter(&self, state: &State) -> u64 {
        let largest = state.counters.iter().copied().max().unwrap_or(0);
        u64::try_from(largest).unwrap()
    }

    /// Whether some rank has ended before another has begun.
    pub(crate) fn someone_left_early(&self, state: &State) -> bool {
        let begun = |rank: u32| {
            let mut threads = self.threads.iter().zip(&state.next);
            threads.any(|((owner, _), next)| *owner == rank && *next > 0)
        };
        let ranks = 0..self.plan.shape.ranks;
        ranks.clone().any(|rank| self.has_ended(state, rank))
            && ranks.clone().any(|rank| !begun(rank))
    }

    fn has_ended(&self, state: &State, rank: u32) -> bool {
        self.threads
            .iter()
            .enumerate()
            .all(|(thread, (owner, number))| {
                let tasks = &self.plan.ranks[*owner as usize].threads[*number];
                *owner != rank || state.next[thread] as usize == tasks.len()
            })
    }

    /// A rank's output as it is now.
    pub(crate) fn output<'s>(&self, state: &'s State, rank: u32) -> &'s [u8] {
        let bytes = bytes_out(&self.plan.shape, rank);
        match alias(&self.plan.shape, rank) {
            Some((Buffer::Input, at)) => &state.memories[rank as usize * 3][at..at + bytes],
            _ => &state.memories[rank as usize * 3 + 1],
        }
    }

    fn check_output(&self, state: &State, rank: u32) -> Result<(), Wrong> {
        if self.output(state, rank) == self.outputs[rank as usize] {
            Ok(())
        } else {
            Err(Wrong::Output(rank))
        }
    }

    fn find(
        &self,
        state: &State,
        rank: u32,
        loc: Loc,
        bytes: u64,
    ) -> Result<(usize, usize), Wrong> {
        let shape = &self.plan.shape;
        let size = match loc.buffer {
            Buffer::Input => self.inputs[rank as usize].len(),
            Buffer::Output => bytes_out(shape, rank),
            Buffer::Scratch => state.memories[rank as usize * 3 + 2].len(),
        };
        let end = loc.offset.checked_add(bytes).ok_or(Wrong::OutOfBounds)?;
        if end > size as u64 {
            return Err(Wrong::OutOfBounds);
        }
        let offset = usize::try_from(loc.offset).unwrap();
        let first = rank as usize * 3;
        Ok(match (loc.buffer, alias(shape, rank)) {
            (Buffer::Input, Some((Buffer::Output, at))) => (first + 1, at + offset),
            (Buffer::Output, Some((Buffer::Input, at))) => (first, at + offset),
            (Buffer::Input, _) => (first, offset),
            (Buffer::Output, _) => (first + 1, offset),
            (Buffer::Scratch, _) => (first + 2, offset),
        })
    }

    fn load(&self, state: &State, rank: u32, loc: Loc, bytes: u64) -> Result<Vec<u8>, Wrong> {
        let (memory, at) = self.find(state, rank, loc, bytes)?;
        Ok(state.memories[memory][at..at + usize::try_from(bytes).unwrap()].to_vec())
    }

    fn store(&self, state: &mut State, rank: u32, loc: Loc, data: &[u8]) -> Result<(), Wrong> {
        let (memory, at) = self.find(state, rank, loc, data.len() as u64)?;
        state.memories[memory][at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn combine(&self, a: &[u8], b: &[u8]) -> Vec<u8> {
        combine(self.plan.shape.dtype, self.plan.shape.redop.op(), a, b)
    }
}

/// Name of a counter: recorder, waiter, thread of the waiter (for thread notifies), index.
fn recorded(rank: u32, task: &Task) -> Option<(u32, u32, u32, u32)> {
    match *task {
        Task::ThreadRecord { thread, notify } => Some((rank, rank, thread, notify)),
        _ => task
            .records()
            .map(|(peer, notify)| (rank, peer.0, u32::MAX, notify)),
    }
}

fn waited(rank: u32, thread: u32, task: &Task) -> Option<(u32, u32, u32, u32)> {
    match *task {
        Task::Wait { peer, notify } => Some((peer.0, rank, u32::MAX, notify)),
        Task::ThreadWait { notify } => Some((rank, rank, thread, notify)),
        _ => None,
    }
}

/// Elements that one rank has for another: one row a rank.
fn matrix(shape: &Shape) -> Vec<Vec<usize>> {
    let ranks = shape.ranks as usize;
    let number = |n: u64| usize::try_from(n).unwrap();
    match &shape.count {
        Count::Even(count) => vec![vec![number(*count); ranks]; ranks],
        // What a rank contributes or receives, whoever the other is.
        Count::Ranks(counts) => vec![counts.iter().map(|n| number(*n)).collect(); ranks],
        Count::Pairs(counts) => counts
            .chunks(ranks)
            .map(|row| row.iter().map(|n| number(*n)).collect())
            .collect(),
        Count::Own { .. } => panic!("the machine runs what all ranks do"),
    }
}

/// Elements of each rank's part.
fn parts(shape: &Shape) -> Vec<usize> {
    matrix(shape).swap_remove(0)
}

/// The larger buffer that holds the other one, and where in it that begins.
fn alias(shape: &Shape, rank: u32) -> Option<(Buffer, usize)> {
    let before: usize = parts(shape)[..rank as usize].iter().sum();
    let part = before * shape.dtype.size();
    match shape.operation {
        _ if !shape.in_place => None,
        Operation::AllReduce | Operation::Broadcast { .. } | Operation::AllToAll => {
            Some((Buffer::Output, 0))
        }
        Operation::Reduce { root } => (root.0 == rank).then_some((Buffer::Output, 0)),
        Operation::AllGather => Some((Buffer::Output, part)),
        Operation::Gather { root } => (root.0 == rank).then_some((Buffer::Output, part)),
        Operation::ReduceScatter => Some((Buffer::Input, part)),
        Operation::Scatter { root } => (root.0 == rank).then_some((Buffer::Input, part)),
        Operation::Barrier | Operation::SendRecv { .. } => None,
    }
}

fn elements_in(shape: &Shape, rank: u32) -> usize {
    let parts = parts(shape);
    match shape.operation {
        Operation::AllReduce | Operation::Reduce { .. } => parts[0],
        Operation::AllGather | Operation::Gather { .. } => parts[rank as usize],
        Operation::ReduceScatter => parts.iter().sum(),
        Operation::Scatter { root } if root.0 == rank => parts.iter().sum(),
        Operation::Broadcast { root } if root.0 == rank => parts[0],
        Operation::SendRecv { from, .. } if from.0 == rank => parts[0],
        Operation::AllToAll => matrix(shape)[rank as usize].iter().sum(),
        _ => 0,
    }
}

/// Runs a plan to its end in an order drawn from a seed.
#[allow(dead_code, reason = "the search over all orders draws none")]
pub(crate) fn run(plan: &Plan, seed: u64) {
    let machine = Machine::new(plan, seed);
    let mut random = Random::new(!seed);
    let mut state = machine.start();
    loop {
        let choices = machine.choices(&state);
        if choices.is_empty() {
            break;
        }
        let choice = choices[random.below(choices.len())];
        if let Err(wrong) = machine.step(&mut state, choice) {
            panic!(
                "{} for {}, seed {seed}: {wrong:?}",
                plan.algorithm, plan.shape
            );
        }
    }
    machine
        .check_end(&state)
        .unwrap_or_else(|wrong| panic!("{} for {}: {wrong:?}", plan.algorithm, plan.shape));
    if matches!(plan.shape.operation, Operation::AllReduce) {
        for rank in 1..plan.shape.ranks {
            assert_eq!(machine.output(&state, rank), machine.output(&state, 0));
        }
    }
}

fn bytes_out(shape: &Shape, rank: u32) -> usize {
    let parts = parts(shape);
    let elements = match shape.operation {
        Operation::AllReduce | Operation::Broadcast { .. } => parts[0],
        Operation::Reduce { root } if root.0 == rank => parts[0],
        Operation::ReduceScatter | Operation::Scatter { .. } => parts[rank as usize],
        Operation::AllGather => parts.iter().sum(),
        Operation::Gather { root } if root.0 == rank => parts.iter().sum(),
        Operation::SendRecv { to, .. } if to.0 == rank => parts[0],
        Operation::AllToAll => matrix(shape).iter().map(|row| row[rank as usize]).sum(),
        _ => 0,
    };
    elements * shape.dtype.size()
}

/// What a rank's output must be, computed in a plain loop.
fn reference(shape: &Shape, inputs: &[Vec<u8>], rank: u32) -> Vec<u8> {
    let all = || {
        let mut inputs = inputs.iter();
        let first = inputs.next().unwrap().clone();
        let sum = inputs.fold(first, |sum, input| {
            combine(shape.dtype, shape.redop.op(), &sum, input)
        });
        match shape.redop {
            Reduction::Avg => divide(shape.dtype, &sum, shape.ranks),
            _ => sum,
        }
    };
    // The part of a whole that belongs to this rank, by the elements of each part.
    let mine = |whole: &[u8], parts: &[usize]| {
        let before: usize = parts[..rank as usize].iter().sum();
        let range = before..before + parts[rank as usize];
        let size = shape.dtype.size();
        whole[range.start * size..range.end * size].to_vec()
    };
    match shape.operation {
        Operation::AllReduce => all(),
        Operation::Reduce { root } if root.0 == rank => all(),
        Operation::AllGather => inputs.concat(),
        Operation::Gather { root } if root.0 == rank => inputs.concat(),
        Operation::ReduceScatter => mine(&all(), &parts(shape)),
        Operation::Scatter { root } => mine(&inputs[root.index()], &parts(shape)),
        Operation::AllToAll => inputs
            .iter()
            .zip(matrix(shape))
            .flat_map(|(input, row)| mine(input, &row))
            .collect(),
        Operation::Broadcast { root } => inputs[root.index()].clone(),
        Operation::SendRecv { from, to } if to.0 == rank => inputs[from.index()].clone(),
        _ => Vec::new(),
    }
}

fn garbage(random: &mut Random, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|_| random.next().to_le_bytes()[7]).collect()
}

/// Elements whose sums and products over a few dozen ranks are exact in every type of float.
fn draw(random: &mut Random, dtype: DataType, elements: usize) -> Vec<u8> {
    let mut small = || [1.0, -1.0, 2.0, -2.0, 1.0, 3.0, 1.0, -1.0][random.below(8)];
    let many = 0..elements;
    match dtype {
        DataType::F16 => many
            .flat_map(|_| f16::from_f32(small()).to_le_bytes())
            .collect(),
        DataType::Bf16 => many
            .flat_map(|_| bf16::from_f32(small()).to_le_bytes())
            .collect(),
        DataType::F32 => many.flat_map(|_| small().to_le_bytes()).collect(),
        DataType::F64 => many
            .flat_map(|_| f64::from(small()).to_le_bytes())
            .collect(),
        _ => garbage(random, elements * dtype.size()),
    }
}

/// Integers towards zero, floats rounded.
fn divide(dtype: DataType, sums: &[u8], by: u32) -> Vec<u8> {
    macro_rules! each {
        ($type:ty, $divide:expr) => {
            sums.chunks_exact(size_of::<$type>())
                .flat_map(|sum| {
                    let sum = <$type>::from_le_bytes(sum.try_into().unwrap());
                    $divide(sum).to_le_bytes()
                })
                .collect()
        };
    }
    macro_rules! integer {
        ($type:ty) => {
            each!($type, |x: $type| (i128::from(x) / i128::from(by)) as $type)
        };
    }
    match dtype {
        DataType::I8 => integer!(i8),
        DataType::I16 => integer!(i16),
        DataType::I32 => integer!(i32),
        DataType::I64 => integer!(i64),
        DataType::U8 => integer!(u8),
        DataType::U16 => integer!(u16),
        DataType::U32 => integer!(u32),
        DataType::U64 => integer!(u64),
        DataType::F16 => each!(f16, |x: f16| f16::from_f64(x.to_f64() / f64::from(by))),
        DataType::Bf16 => each!(bf16, |x: bf16| bf16::from_f64(x.to_f64() / f64::from(by))),
        DataType::F32 => each!(f32, |x: f32| x / by as f32),
        DataType::F64 => each!(f64, |x: f64| x / f64::from(by)),
    }
}

fn combine(dtype: DataType, op: ReduceOp, a: &[u8], b: &[u8]) -> Vec<u8> {
    macro_rules! each {
        ($type:ty, $wrap:expr, $combine:expr) => {{
            let size = size_of::<$type>();
            a.chunks_exact(size)
                .zip(b.chunks_exact(size))
                .flat_map(|(a, b)| {
                    let a = <$type>::from_le_bytes(a.try_into().unwrap());
                    let b = <$type>::from_le_bytes(b.try_into().unwrap());
                    $wrap($combine(a, b)).to_le_bytes()
                })
                .collect()
        }};
    }
    macro_rules! integer {
        ($type:ty) => {
            each!($type, |x: $type| x, |a: $type, b: $type| match op {
                ReduceOp::Sum => a.wrapping_add(b),
                ReduceOp::Prod => a.wrapping_mul(b),
                ReduceOp::Max => a.max(b),
                ReduceOp::Min => a.min(b),
            })
        };
    }
    macro_rules! float {
        ($type:ty, $wrap:expr, $unwrap:expr) => {
            each!($type, $wrap, |a: $type, b: $type| {
                let (a, b) = ($unwrap(a), $unwrap(b));
                match op {
                    ReduceOp::Sum => a + b,
                    ReduceOp::Prod => a * b,
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Min => a.min(b),
                }
            })
        };
    }
    match dtype {
        DataType::I8 => integer!(i8),
        DataType::I16 => integer!(i16),
        DataType::I32 => integer!(i32),
        DataType::I64 => integer!(i64),
        DataType::U8 => integer!(u8),
        DataType::U16 => integer!(u16),
        DataType::U32 => integer!(u32),
        DataType::U64 => integer!(u64),
        DataType::F16 => float!(f16, f16::from_f32, |x: f16| x.to_f32()),
        DataType::Bf16 => float!(bf16, bf16::from_f32, |x: bf16| x.to_f32()),
        DataType::F32 => float!(f32, |x: f32| x, |x: f32| x),
        DataType::F64 => float!(f64, |x: f64| x, |x: f64| x),
    }
}
