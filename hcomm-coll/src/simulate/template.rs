//! From tasks to steps, kept once for all ranks that do the same.
//!
//! Of a task only what takes time is left: work on the rank's own memory, bytes to a peer, news. Peers
//! and channels of news are numbered in the order in which a rank first names them, so that ranks which
//! do the same with others have equal steps, which are then one template.

use std::collections::HashMap;
use std::sync::Arc;

use hcomm_types::Rank;
use rustc_hash::FxHashMap;

use super::{Rates, SimulateError};
use crate::algorithms::PlanError;
use crate::plan::{RankPlan, Shape, Task};

/// Steps of all templates, at most: 2 GB.
const MAX_STEPS: usize = 64 << 20;

/// No channel.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// Works on its own memory for so many picoseconds.
    Work(u64),
    /// Sends bytes over a way, and news behind them on a channel of the receiver.
    Send { way: u32, channel: u32, bytes: u64 },
    /// Has bytes sent over a way to itself, and waits for them.
    Get { way: u32, bytes: u64 },
    /// News for another thread of the rank.
    Tell { channel: u32 },
    /// Waits for news.
    Await { channel: u32 },
}

/// The steps of each thread.
pub(super) type Template = Arc<Vec<Vec<Step>>>;

/// One rank: its template, and what the numbers in it stand for.
pub(super) struct Actor {
    pub(super) template: Template,
    /// First of its ways in [`Program::ways`].
    pub(super) ways: u32,
    /// First of the channels that it waits on.
    pub(super) inputs: u32,
    /// First of the channels that it tells, in [`Program::outputs`].
    outputs: u32,
}

/// What all ranks do.
pub(super) struct Program {
    pub(super) actors: Vec<Actor>,
    /// From whom to whom.
    pub(super) ways: Vec<(Rank, Rank)>,
    /// Channels that are told, by the numbers that those who wait give them.
    outputs: Vec<u32>,
    /// Channels that somebody waits on, and their news at the beginning.
    pub(super) channels: Vec<u32>,
    pub(super) templates: usize,
    pub(super) tasks: u64,
}

impl Program {
    /// The channel that a step of a rank tells.
    pub(super) fn output(&self, actor: &Actor, channel: u32) -> u32 {
        match channel {
            NONE => NONE,
            channel => self.outputs[(actor.outputs + channel) as usize],
        }
    }

    pub(super) fn compile(
        shape: &Shape,
        rates: Rates,
        mut plan_rank: impl FnMut(Rank) -> Result<RankPlan, PlanError>,
    ) -> Result<Self, SimulateError> {
        let mut known = HashMap::<Template, ()>::new();
        let mut program = Self {
            actors: Vec::with_capacity(shape.ranks as usize),
            ways: Vec::new(),
            outputs: Vec::new(),
            channels: Vec::new(),
            templates: 0,
            tasks: 0,
        };
        let mut inputs = FxHashMap::<Key, u32>::default();
        let mut outputs = Vec::<Key>::new();
        let mut kept = 0;
        for rank in shape.all_ranks() {
            let plan = plan_rank(rank)?;
            program.tasks += plan.task_count() as u64;
            let mut compiler = Compiler {
                me: rank,
                rates,
                element_bytes: shape.element_bytes(),
                ways: Numbers::default(),
                inputs: Numbers::default(),
                outputs: Numbers::default(),
            };
            let threads = plan.threads.iter().enumerate();
            let steps: Vec<Vec<Step>> = threads
                .map(|(thread, tasks)| compiler.steps(thread, tasks))
                .collect();
            let steps = Arc::new(steps);
            let template = match known.get_key_value(&steps) {
                Some((template, ())) => Arc::clone(template),
                None => {
                    kept += steps.iter().map(Vec::len).sum::<usize>();
                    if kept > MAX_STEPS {
                        return Err(SimulateError::TooLarge {
                            ranks: rank.0 + 1,
                            steps: kept,
                            limit: MAX_STEPS,
                        });
                    }
                    known.insert(Arc::clone(&steps), ());
                    steps
                }
            };
            program.actors.push(Actor {
                template,
                ways: program.ways.len() as u32,
                inputs: program.channels.len() as u32,
                outputs: outputs.len() as u32,
            });
            program.ways.extend(compiler.ways.in_order);
            for key in compiler.inputs.in_order {
                inputs.insert(key, program.channels.len() as u32);
                program.channels.push(0);
            }
            outputs.extend(compiler.outputs.in_order);
        }
        program.outputs = outputs
            .iter()
            .map(|key| inputs.get(key).copied().unwrap_or(NONE))
            .collect();
        program.templates = known.len();
        Ok(program)
    }
}

/// News: what kind, from whom, to whom, number.
type Key = (u8, u32, u32, u32);

/// Numbers in the order of first use.
struct Numbers<K> {
    numbers: FxHashMap<K, u32>,
    in_order: Vec<K>,
}

impl<K> Default for Numbers<K> {
    fn default() -> Self {
        Self {
            numbers: FxHashMap::default(),
            in_order: Vec::new(),
        }
    }
}

impl<K: Copy + Eq + std::hash::Hash> Numbers<K> {
    fn of(&mut self, key: K) -> u32 {
        let next = self.in_order.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.in_order.push(key);
        }
        number
    }
}

/// Adds work; what follows work is one piece with it.
fn add_work(steps: &mut Vec<Step>, ps: u64) {
    match steps.last_mut() {
        _ if ps == 0 => {}
        Some(Step::Work(last)) => *last = last.saturating_add(ps),
        _ => steps.push(Step::Work(ps)),
    }
}

struct Compiler {
    me: Rank,
    rates: Rates,
    element_bytes: u64,
    ways: Numbers<(Rank, Rank)>,
    inputs: Numbers<Key>,
    outputs: Numbers<Key>,
}

impl Compiler {
    fn steps(&mut self, thread: usize, tasks: &[Task]) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::with_capacity(tasks.len());
        for task in tasks {
            let (before, step, after) = self.step(thread as u32, task);
            add_work(&mut steps, before + self.rates.task_ns * 1000);
            steps.extend(step);
            add_work(&mut steps, after);
        }
        steps.shrink_to_fit();
        steps
    }

    /// The work of a task before and after what it does with others, and that.
    fn step(&mut self, thread: u32, task: &Task) -> (u64, Option<Step>, u64) {
        let me = self.me;
        let took = |bytes: u64, bytes_per_s: u64| {
            (u128::from(bytes) * 1_000_000_000_000)
                .checked_div(bytes_per_s.into())
                .unwrap_or(0) as u64
        };
        let copied = |bytes: u64| took(bytes, self.rates.copy_bytes_per_s);
        let elements = self.element_bytes;
        let combined = |count: u64| took(count * elements, self.rates.reduce_bytes_per_s);
        match *task {
            Task::Copy { bytes, .. } => (copied(bytes), None, 0),
            Task::Reduce { count, .. } | Task::Divide { count, .. } => (combined(count), None, 0),
            Task::Write {
                peer,
                bytes,
                notify,
                ..
            } => (0, Some(self.send(peer, bytes, notify)), 0),
            Task::WriteReduce {
                peer,
                count,
                notify,
                ..
            } => {
                // The arithmetic happens once, at whichever end.
                let work = combined(count);
                (work, Some(self.send(peer, count * elements, notify)), 0)
            }
            Task::Record { peer, notify } => (0, Some(self.send(peer, 0, Some(notify))), 0),
            Task::Read { peer, bytes, .. } => {
                let way = self.ways.of((peer, me));
                (0, Some(Step::Get { way, bytes }), 0)
            }
            Task::ReadReduce { peer, count, .. } => {
                let (work, way) = (combined(count), self.ways.of((peer, me)));
                let bytes = count * elements;
                (0, Some(Step::Get { way, bytes }), work)
            }
            Task::PacketWrite {
                peer, line, bytes, ..
            } => {
                let (way, channel) = (
                    self.ways.of((me, peer)),
                    self.outputs.of((1, me.0, peer.0, line)),
                );
                let send = Step::Send {
                    way,
                    channel,
                    bytes,
                };
                (0, Some(send), 0)
            }
            Task::PacketRead {
                peer, line, bytes, ..
            } => {
                let work = copied(bytes);
                (0, Some(self.wait((1, peer.0, me.0, line))), work)
            }
            Task::PacketReduce {
                peer, line, count, ..
            } => {
                let work = combined(count);
                (0, Some(self.wait((1, peer.0, me.0, line))), work)
            }
            Task::Wait { peer, notify } => (0, Some(self.wait((0, peer.0, me.0, notify))), 0),
            Task::ThreadRecord { thread, notify } => {
                let channel = self.inputs.of((2, me.0, thread, notify));
                (0, Some(Step::Tell { channel }), 0)
            }
            Task::ThreadWait { notify } => (0, Some(self.wait((2, me.0, thread, notify))), 0),
        }
    }

    fn send(&mut self, peer: Rank, bytes: u64, notify: Option<u32>) -> Step {
        let me = self.me;
        Step::Send {
            way: self.ways.of((me, peer)),
            channel: notify.map_or(NONE, |notify| self.outputs.of((0, me.0, peer.0, notify))),
            bytes,
        }
    }

    fn wait(&mut self, key: Key) -> Step {
        Step::Await {
            channel: self.inputs.of(key),
        }
    }
}
