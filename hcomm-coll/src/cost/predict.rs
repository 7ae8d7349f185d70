//! Runs the tasks of all ranks of a plan in virtual time.
//!
//! A rank's tasks follow each other. A wait ends when its record has arrived; what is sent over a
//! wire follows what was sent there before; ranks that share a core take turns on it, and go on
//! until they have to wait. Operations follow each other as in a loop, so that it counts how they
//! overlap, and not how long the first one takes.

use std::collections::VecDeque;

use hcomm_types::Rank;
use rustc_hash::FxHashMap;

use super::footprint::{Footprints, Work, bytes};
use super::machine::Machine;
use super::site::{Reach, Site};
use crate::plan::{Plan, Shape, Task};

/// Picoseconds of a nanosecond.
const NS: u64 = 1000;

/// Plans with at most this many tasks are run three times, the first as a warm-up; larger ones once,
/// which says the same of them.
const REPEATED_TASKS: usize = 1000;
const REPEATS: u32 = 3;

/// How long an operation takes, in picoseconds of virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    /// From one end to the next, when such operations follow each other.
    pub total_ps: u64,
    /// Where that time goes, on the rank that ends last.
    pub spent: Spent,
}

/// Parts of a time, in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Waiting for news of other ranks, or for a core.
    pub waiting_ps: u64,
    /// Moving bytes.
    pub moving_ps: u64,
    /// Arithmetic.
    pub combining_ps: u64,
    /// Changes of ranks on a core that they share.
    pub switching_ps: u64,
    /// The call, and what each task costs whatever its size.
    pub calling_ps: u64,
}

impl Spent {
    /// The same shares of another time: ranks that share cores do not all take as long, and not in
    /// each operation.
    fn scaled_to(self, total_ps: u64) -> Self {
        let parts = [
            self.waiting_ps,
            self.moving_ps,
            self.combining_ps,
            self.switching_ps,
            self.calling_ps,
        ];
        let sum: u128 = parts.iter().map(|part| u128::from(*part)).sum();
        let [
            waiting_ps,
            moving_ps,
            combining_ps,
            switching_ps,
            calling_ps,
        ] = parts.map(|part| (u128::from(part) * u128::from(total_ps) / sum.max(1)) as u64);
        Self {
            waiting_ps,
            moving_ps,
            combining_ps,
            switching_ps,
            calling_ps,
        }
    }
}

/// Why a plan has no time: some ranks wait for what never comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} waits for ever at task {task} of thread {thread}")]
pub struct Stuck {
    /// One of those that wait.
    pub rank: Rank,
    /// Its thread.
    pub thread: usize,
    /// The task.
    pub task: usize,
}

/// How long a plan takes on a machine.
///
/// # Errors
/// If the plan does not come to its end, which no plan that [`verify`](crate::verify::verify) proves
/// does.
pub fn predict(plan: &Plan, machine: &Machine, site: &Site) -> Result<Prediction, Stuck> {
    predict_part(plan, &plan.shape, machine, site)
}

/// [`predict`] of a plan for the beginning of `whole`.
pub(super) fn predict_part(
    plan: &Plan,
    whole: &Shape,
    machine: &Machine,
    site: &Site,
) -> Result<Prediction, Stuck> {
    let footprints = Footprints::new(plan, whole, machine, site);
    let mut run = Run::new(plan, machine, site, &footprints);
    let repeats = if plan.task_count() <= REPEATED_TASKS {
        REPEATS
    } else {
        1
    };
    let mut ends = Vec::new();
    let mut spent = Spent::default();
    for _ in 0..repeats {
        let (end, of_last) = run.once()?;
        ends.push(end);
        spent = of_last;
    }
    let first = ends[0];
    let last = ends[ends.len() - 1];
    let total_ps = if repeats > 1 {
        (last - first) / u64::from(repeats - 1)
    } else {
        first
    };
    Ok(Prediction {
        total_ps,
        spent: spent.scaled_to(total_ps),
    })
}

/// What a step does with news.
#[derive(Clone, Copy, Debug)]
enum News {
    None,
    /// Becomes visible on the channel after so much.
    Tell {
        channel: u32,
        after: u64,
    },
    /// Bytes go over a wire, and news behind them if there is a channel.
    Send {
        wire: u32,
        bytes: u64,
        channel: Option<u32>,
    },
    /// Bytes come over a wire, and are waited for.
    Get {
        wire: u32,
        bytes: u64,
    },
    /// Waits for news; `late` if it is there already.
    Await {
        channel: u32,
        late: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Step {
    work: Work,
    news: News,
}

/// A thread of a rank.
struct Agent {
    rank: usize,
    thread: usize,
    core: usize,
    /// Of its rank, among those of the core.
    turn: usize,
    steps: Vec<Step>,
    at: usize,
    /// When it can go on; not known while it waits for what nobody has recorded.
    ready: Option<u64>,
    /// Since when it waits for that.
    since: u64,
    spent: Spent,
}

/// A core. Ranks that share it run in turn, also those that cannot go on: they look and yield. So it
/// takes a switch to each between the one that runs and the one that can.
#[derive(Clone, Default)]
struct Core {
    time: u64,
    /// The turn of the rank that runs there.
    holder: Option<usize>,
    /// Several agents run there.
    shared: bool,
    /// How many ranks run there.
    ranks: usize,
}

impl Core {
    /// Switches until the rank with this turn runs.
    fn switches_to(&self, turn: usize) -> u64 {
        self.holder
            .map_or(0, |holder| (turn + self.ranks - holder) % self.ranks) as u64
    }
}

#[derive(Default)]
struct Channel {
    arrivals: VecDeque<u64>,
    waiter: Option<usize>,
}

struct Wire {
    free: u64,
    latency: u64,
    byte_ps: u64,
}

struct Run {
    agents: Vec<Agent>,
    cores: Vec<Core>,
    channels: Vec<Channel>,
    wires: Vec<Wire>,
    call: u64,
    task: u64,
    switch: u64,
    /// Agents that can go on, where nobody shares a core: their order does not matter then.
    runnable: Vec<usize>,
}

/// News between two ranks, or two threads of one.
type Key = (u8, u32, u32, u32);

impl Run {
    fn new(plan: &Plan, machine: &Machine, site: &Site, footprints: &Footprints<'_>) -> Self {
        let mut compiler = Compiler {
            machine,
            site,
            footprints,
            element_bytes: plan.shape.element_bytes(),
            numbers: FxHashMap::default(),
            wires: FxHashMap::default(),
            lines: Vec::new(),
        };
        let last = footprints.cores().iter().max();
        let mut cores = vec![Core::default(); last.map_or(0, |last| *last as usize + 1)];
        let mut agents = Vec::new();
        for (rank, own) in plan.ranks.iter().enumerate() {
            if own.threads.is_empty() {
                continue;
            }
            let number = footprints.cores()[rank] as usize;
            let core = &mut cores[number];
            core.shared |= core.ranks > 0 || own.threads.len() > 1;
            core.ranks += 1;
            for (thread, tasks) in own.threads.iter().enumerate() {
                let me = Rank::from_index(rank);
                let steps = tasks.iter().map(|task| compiler.step(me, thread, task));
                agents.push(Agent {
                    rank,
                    thread,
                    core: number,
                    turn: core.ranks - 1,
                    steps: steps.collect(),
                    at: 0,
                    ready: Some(0),
                    since: 0,
                    spent: Spent::default(),
                });
            }
        }
        let mut channels: Vec<Channel> = Vec::new();
        channels.resize_with(compiler.numbers.len(), Channel::default);
        for credit in &plan.initial_credits {
            let key = (0, credit.recorder.0, credit.waiter.0, credit.notify);
            if let Some(&number) = compiler.numbers.get(&key) {
                let arrivals = &mut channels[number as usize].arrivals;
                arrivals.extend((0..credit.count.min(1 << 16)).map(|_| 0));
            }
        }
        Self {
            agents,
            cores,
            channels,
            wires: compiler.lines,
            call: NS * u64::from(machine.call_ns),
            task: NS * u64::from(machine.task_ns),
            switch: NS * u64::from(machine.switch_ns),
            runnable: Vec::new(),
        }
    }

    /// One operation after those before it: when the last rank ends, and what that rank did since
    /// it began.
    fn once(&mut self) -> Result<(u64, Spent), Stuck> {
        for agent in &mut self.agents {
            agent.at = 0;
            agent.spent = Spent::default();
            let core = &mut self.cores[agent.core];
            if agent.thread == 0 {
                if !core.shared {
                    core.time += self.call;
                }
                agent.spent.calling_ps += self.call;
            }
            // Where ranks share a core their calls take turns, too.
            agent.ready = Some(if core.shared {
                agent.ready.unwrap_or(0) + self.call
            } else {
                core.time
            });
        }
        self.runnable = (0..self.agents.len()).rev().collect();
        let shared = self.cores.iter().any(|core| core.shared);
        while let Some(next) = if shared { self.earliest() } else { self.any() } {
            self.go_on(next);
        }
        let stuck = self
            .agents
            .iter()
            .find(|agent| agent.at < agent.steps.len());
        if let Some(agent) = stuck {
            return Err(Stuck {
                rank: Rank::from_index(agent.rank),
                thread: agent.thread,
                task: agent.at,
            });
        }
        let last = self.agents.iter().max_by_key(|agent| agent.ready);
        Ok(last.map_or_else(Default::default, |agent| {
            (agent.ready.unwrap_or(0), agent.spent)
        }))
    }

    fn any(&mut self) -> Option<usize> {
        while let Some(next) = self.runnable.pop() {
            let agent = &self.agents[next];
            if agent.at < agent.steps.len() && agent.ready.is_some() {
                return Some(next);
            }
        }
        None
    }

    /// The agent that can go on first; of several the one whose turn on its core comes first.
    fn earliest(&self) -> Option<usize> {
        let can = self
            .agents
            .iter()
            .enumerate()
            .filter(|(_, agent)| agent.at < agent.steps.len());
        can.filter_map(|(index, agent)| {
            let core = &self.cores[agent.core];
            let start = agent.ready?.max(core.time);
            Some((start, core.switches_to(agent.turn), index))
        })
        .min()
        .map(|(_, _, index)| index)
    }

    /// Until it has to wait, or has ended.
    fn go_on(&mut self, index: usize) {
        let agent = &self.agents[index];
        let (turn, core) = (agent.turn, agent.core);
        let ready = agent.ready.unwrap_or(0);
        let mut time = self.cores[core].time.max(ready);
        let mut spent = agent.spent;
        spent.waiting_ps += time - ready;
        let switching = self.switch * self.cores[core].switches_to(turn);
        time += switching;
        spent.switching_ps += switching;
        self.cores[core].holder = Some(turn);
        let mut at = agent.at;
        let mut ready = None;
        loop {
            let Some(&step) = self.agents[index].steps.get(at) else {
                ready = Some(time);
                break;
            };
            if let News::Await { channel, late } = step.news {
                let channel = &mut self.channels[channel as usize];
                let Some(&arrival) = channel.arrivals.front() else {
                    channel.waiter = Some(index);
                    self.agents[index].since = time;
                    break;
                };
                if arrival > time && self.cores[core].shared {
                    spent.waiting_ps += arrival - time;
                    ready = Some(arrival);
                    break;
                }
                channel.arrivals.pop_front();
                let from = time;
                time = arrival.max(time + late);
                spent.waiting_ps += time - from;
            }
            let Work { moving, combining } = step.work;
            time += self.task + moving + combining;
            spent.calling_ps += self.task;
            spent.moving_ps += moving;
            spent.combining_ps += combining;
            at += 1;
            match step.news {
                News::None | News::Await { .. } => {}
                News::Tell { channel, after } => self.tell(channel, time + after),
                News::Send {
                    wire,
                    bytes,
                    channel,
                } => {
                    let wire = &mut self.wires[wire as usize];
                    let end = wire.free.max(time) + bytes.saturating_mul(wire.byte_ps);
                    wire.free = end;
                    let arrival = end + wire.latency;
                    if let Some(channel) = channel {
                        self.tell(channel, arrival);
                    }
                }
                News::Get { wire, bytes } => {
                    let wire = &mut self.wires[wire as usize];
                    let start = wire.free.max(time + wire.latency);
                    let end = start + bytes.saturating_mul(wire.byte_ps);
                    wire.free = end;
                    spent.waiting_ps += end + wire.latency - time;
                    time = end + wire.latency;
                }
            }
        }
        self.cores[core].time = time;
        let agent = &mut self.agents[index];
        agent.at = at;
        agent.ready = ready;
        agent.spent = spent;
        if ready.is_some() && at < agent.steps.len() {
            self.runnable.push(index);
        }
    }

    fn tell(&mut self, channel: u32, arrival: u64) {
        let channel = &mut self.channels[channel as usize];
        channel.arrivals.push_back(arrival);
        if let Some(waiter) = channel.waiter.take() {
            let agent = &mut self.agents[waiter];
            agent.spent.waiting_ps += arrival.saturating_sub(agent.since);
            agent.ready = Some(arrival.max(agent.since));
            self.runnable.push(waiter);
        }
    }
}

/// From tasks to steps.
struct Compiler<'a> {
    machine: &'a Machine,
    site: &'a Site,
    footprints: &'a Footprints<'a>,
    element_bytes: u64,
    numbers: FxHashMap<Key, u32>,
    wires: FxHashMap<(u32, u32), u32>,
    lines: Vec<Wire>,
}

impl Compiler<'_> {
    fn step(&mut self, me: Rank, thread: usize, task: &Task) -> Step {
        let mut work = self.footprints.work(me, task);
        let signals = self.machine.signals;
        let lines = |bytes: u64| hcomm_data::packet_lines(bytes).max(1);
        let further = |bytes: u64| (lines(bytes) - 1) * NS * u64::from(signals.line_ns);
        let news = match *task {
            Task::Copy { .. } | Task::Reduce { .. } | Task::Divide { .. } => News::None,
            Task::Read { peer, .. } | Task::ReadReduce { peer, .. } => match self.wire(peer, me) {
                Some(wire) => News::Get {
                    wire,
                    bytes: bytes(task, self.element_bytes),
                },
                None => News::None,
            },
            Task::Write { peer, notify, .. } | Task::WriteReduce { peer, notify, .. } => {
                self.told(me, peer, notify, bytes(task, self.element_bytes))
            }
            Task::Record { peer, notify } => self.told(me, peer, Some(notify), 0),
            Task::Wait { peer, notify } => {
                let late = if self.is_near(me, peer) {
                    0
                } else {
                    signals.late_ns
                };
                News::Await {
                    channel: self.channel((0, peer.0, me.0, notify)),
                    late: NS * u64::from(late),
                }
            }
            Task::PacketWrite {
                peer, line, bytes, ..
            } => {
                work.moving += further(bytes);
                let after = if self.is_near(me, peer) {
                    0
                } else {
                    signals.packet_ns
                };
                News::Tell {
                    channel: self.channel((1, me.0, peer.0, line)),
                    after: NS * u64::from(after),
                }
            }
            Task::PacketRead {
                peer, line, bytes, ..
            } => {
                work.moving += further(bytes);
                self.taken(me, peer, line)
            }
            Task::PacketReduce {
                peer, line, count, ..
            } => {
                work.moving += further(count.saturating_mul(self.element_bytes));
                self.taken(me, peer, line)
            }
            Task::ThreadRecord { thread, notify } => News::Tell {
                channel: self.channel((2, me.0, thread, notify)),
                after: 0,
            },
            Task::ThreadWait { notify } => News::Await {
                channel: self.channel((2, me.0, thread as u32, notify)),
                late: 0,
            },
        };
        Step { work, news }
    }

    fn taken(&mut self, me: Rank, peer: Rank, line: u32) -> News {
        let late = if self.is_near(me, peer) {
            0
        } else {
            self.machine.signals.late_ns
        };
        News::Await {
            channel: self.channel((1, peer.0, me.0, line)),
            late: NS * u64::from(late),
        }
    }

    fn told(&mut self, me: Rank, peer: Rank, notify: Option<u32>, bytes: u64) -> News {
        let channel = notify.map(|notify| self.channel((0, me.0, peer.0, notify)));
        if let Some(wire) = self.wire(me, peer) {
            return News::Send {
                wire,
                bytes,
                channel,
            };
        }
        let after = if self.is_near(me, peer) {
            0
        } else {
            self.machine.signals.alpha_ns
        };
        channel.map_or(News::None, |channel| News::Tell {
            channel,
            after: NS * u64::from(after),
        })
    }

    /// Whether news need not leave the core.
    fn is_near(&self, a: Rank, b: Rank) -> bool {
        let cores = self.footprints.cores();
        cores[a.index()] == cores[b.index()]
    }

    fn channel(&mut self, key: Key) -> u32 {
        let next = self.numbers.len() as u32;
        *self.numbers.entry(key).or_insert(next)
    }

    /// The wire from one rank to another, where there is one.
    fn wire(&mut self, from: Rank, to: Rank) -> Option<u32> {
        let Reach::Wire {
            latency_ns,
            byte_ps,
        } = self.site.reach(from, to)
        else {
            return None;
        };
        let lines = &mut self.lines;
        let hosts = [from, to].map(|rank| self.site.host(rank));
        // All that leaves a host for others goes by its one interface.
        let ends = if hosts[0] == hosts[1] {
            (from.0, to.0)
        } else {
            (hosts[0], u32::MAX)
        };
        let number = *self.wires.entry(ends).or_insert_with(|| {
            lines.push(Wire {
                free: 0,
                latency: NS.saturating_mul(latency_ns),
                byte_ps,
            });
            lines.len() as u32 - 1
        });
        Some(number)
    }
}
