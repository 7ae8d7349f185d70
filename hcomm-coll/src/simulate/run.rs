//! Events in virtual time.
//!
//! Everything that happens at one moment is done before shares of wires are worked out anew, so that
//! ranks in step cost one look at the wires for all of them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use hcomm_topo::RankGraph;
use hcomm_types::Rank;

use super::SimulateError;
use super::outcome::Outcome;
use super::template::{NONE, Program, Step};
use super::wires::Wires;

/// Messages that are remembered, for the critical path and the timeline: 200 MB.
const MAX_KEPT: usize = 4 << 20;

/// A message that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) way: u32,
    pub(super) bytes: u64,
    /// When its sender had come so far.
    pub(super) posted: u64,
    /// When it began to leave.
    pub(super) began: u64,
    pub(super) arrived: u64,
    /// The message that let its sender go on, or behind which it had to wait.
    pub(super) before: u32,
}

/// In the order in which they are done at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A flow has ended, if it still has this version.
    Ended { flow: u32, version: u32 },
    /// A message is at its receiver.
    Arrived { channel: u32, sent: u32 },
    /// The request of a rank that gets bytes is at their owner.
    Asked { agent: u32, way: u32 },
    /// A thread can go on.
    Ready { agent: u32 },
}

struct Agent {
    rank: u32,
    thread: u32,
    at: u32,
    /// What let it go on last.
    cause: u32,
    ended: bool,
    end: u64,
    /// Bytes that it has asked for, and when.
    asked: (u64, u64),
}

#[derive(Clone, Copy)]
struct Channel {
    news: u32,
    waiter: u32,
}

/// A message that waits for those before it.
struct Message {
    bytes: u64,
    channel: u32,
    sent: u32,
}

/// A message that leaves, as long as its flow lasts.
#[derive(Clone, Copy)]
struct Leaving {
    way: u32,
    channel: u32,
    sent: u32,
}

/// What is to go one way.
#[derive(Default)]
struct Queue {
    busy: bool,
    waiting: VecDeque<Message>,
}

pub(super) struct Run<'p> {
    program: &'p Program,
    wires: Wires,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    agents: Vec<Agent>,
    channels: Vec<Channel>,
    queues: Vec<Queue>,
    /// By flow: its message.
    leaving: Vec<Leaving>,
    sent: Vec<Sent>,
    messages: u64,
    bytes: u64,
}

impl<'p> Run<'p> {
    pub(super) fn new(program: &'p Program, wires: Wires) -> Self {
        let mut agents = Vec::new();
        for (rank, actor) in (0..).zip(&program.actors) {
            for thread in 0..actor.template.len() as u32 {
                agents.push(Agent {
                    rank,
                    thread,
                    at: 0,
                    cause: NONE,
                    ended: false,
                    end: 0,
                    asked: (0, 0),
                });
            }
        }
        // Who gets bytes waits on a channel of its own, behind those of the plan.
        let of_agents = std::iter::repeat_n(0, agents.len());
        let channels = program.channels.iter().copied().chain(of_agents);
        let mut queues = Vec::new();
        queues.resize_with(program.ways.len(), Queue::default);
        Self {
            channels: channels
                .map(|news| Channel { news, waiter: NONE })
                .collect(),
            events: (0..agents.len() as u32)
                .map(|agent| Reverse((0, Event::Ready { agent })))
                .collect(),
            program,
            wires,
            agents,
            queues,
            leaving: Vec::new(),
            sent: Vec::new(),
            messages: 0,
            bytes: 0,
        }
    }

    /// To the end, or until more virtual time has passed than is asked for.
    pub(super) fn finish(
        mut self,
        graph: &RankGraph,
        most_ps: u64,
    ) -> Result<Outcome, SimulateError> {
        while let Some(&Reverse((now, _))) = self.events.peek() {
            if now > most_ps {
                return Err(SimulateError::Longer { most_ps });
            }
            while let Some(&Reverse((time, event))) = self.events.peek() {
                if time > now {
                    break;
                }
                self.events.pop();
                self.happen(now, event);
            }
            let events = &mut self.events;
            self.wires.settle(now, |ending| {
                let event = Event::Ended {
                    flow: ending.flow,
                    version: ending.version,
                };
                events.push(Reverse((ending.at.max(now), event)));
            });
        }
        if let Some(agent) = self.agents.iter().find(|agent| !agent.ended) {
            return Err(SimulateError::Stuck {
                rank: Rank(agent.rank),
                thread: agent.thread as usize,
                step: agent.at as usize,
            });
        }
        let last = self.agents.iter().max_by_key(|agent| agent.end);
        let (total_ps, cause) = last.map_or((0, NONE), |agent| (agent.end, agent.cause));
        let first = self.agents.iter().map(|agent| agent.end).min();
        let mut outcome = Outcome {
            total_ps,
            first_ps: first.unwrap_or(0),
            messages: self.messages,
            bytes: self.bytes,
            tasks: self.program.tasks,
            templates: self.program.templates,
            ..Outcome::default()
        };
        outcome.add_loads(graph, &self.wires);
        outcome.add_transfers(self.program, &self.sent, cause, self.messages);
        Ok(outcome)
    }

    fn happen(&mut self, now: u64, event: Event) {
        match event {
            Event::Ended { flow, version } => {
                if self.wires.is_current(flow, version) {
                    self.wires.end(flow);
                    self.left(now, self.leaving[flow as usize]);
                }
            }
            Event::Arrived { channel, sent } => self.arrive(now, channel, sent),
            Event::Asked { agent, way } => {
                let channel = (self.program.channels.len() as u32).saturating_add(agent);
                let Agent {
                    asked: (bytes, posted),
                    cause,
                    ..
                } = self.agents[agent as usize];
                let message = Message {
                    bytes,
                    channel,
                    sent: self.keep(way, bytes, posted, cause),
                };
                self.send(now, way, message);
            }
            Event::Ready { agent } => self.go_on(now, agent),
        }
    }

    /// As far as a thread comes at this moment.
    fn go_on(&mut self, now: u64, number: u32) {
        let program = self.program;
        let agent = &mut self.agents[number as usize];
        let actor = &program.actors[agent.rank as usize];
        let steps = &actor.template[agent.thread as usize];
        loop {
            let agent = &mut self.agents[number as usize];
            let Some(step) = steps.get(agent.at as usize) else {
                agent.ended = true;
                agent.end = now;
                return;
            };
            agent.at += 1;
            match *step {
                Step::Work(ps) => {
                    let event = Event::Ready { agent: number };
                    self.events.push(Reverse((now.saturating_add(ps), event)));
                    return;
                }
                Step::Send {
                    way,
                    channel,
                    bytes,
                } => {
                    let cause = agent.cause;
                    let way = actor.ways + way;
                    let message = Message {
                        bytes,
                        channel: program.output(actor, channel),
                        sent: self.keep(way, bytes, now, cause),
                    };
                    self.send(now, way, message);
                }
                Step::Get { way, bytes } => {
                    agent.asked = (bytes, now);
                    let way = actor.ways + way;
                    let there = now.saturating_add(self.wires.ways[way as usize].latency_ps);
                    let own = program.channels.len() + number as usize;
                    self.channels[own].waiter = number;
                    let event = Event::Asked { agent: number, way };
                    self.events.push(Reverse((there, event)));
                    return;
                }
                Step::Tell { channel } => {
                    let cause = agent.cause;
                    self.arrive(now, actor.inputs + channel, cause);
                }
                Step::Await { channel } => {
                    let channel = &mut self.channels[(actor.inputs + channel) as usize];
                    if channel.news == 0 {
                        channel.waiter = number;
                        return;
                    }
                    channel.news -= 1;
                }
            }
        }
    }

    /// Remembers a message, as long as there is room; its number.
    fn keep(&mut self, way: u32, bytes: u64, posted: u64, before: u32) -> u32 {
        self.messages += 1;
        self.bytes += bytes;
        if self.sent.len() >= MAX_KEPT {
            return NONE;
        }
        self.sent.push(Sent {
            way,
            bytes,
            posted,
            began: posted,
            arrived: posted,
            before,
        });
        self.sent.len() as u32 - 1
    }

    fn send(&mut self, now: u64, way: u32, message: Message) {
        if self.queues[way as usize].busy {
            self.queues[way as usize].waiting.push_back(message);
        } else {
            self.leave(now, way, message);
        }
    }

    /// A message begins to leave.
    fn leave(&mut self, now: u64, way: u32, message: Message) {
        if let Some(sent) = self.sent.get_mut(message.sent as usize) {
            sent.began = now;
        }
        if message.bytes == 0 {
            self.deliver(now, way, message.channel, message.sent);
            return;
        }
        self.queues[way as usize].busy = true;
        let leaving = Leaving {
            way,
            channel: message.channel,
            sent: message.sent,
        };
        let flow = self.wires.begin(way, message.bytes, now) as usize;
        if flow == self.leaving.len() {
            self.leaving.push(leaving);
        } else {
            self.leaving[flow] = leaving;
        }
    }

    /// The last byte of a message has left; those behind it follow.
    fn left(&mut self, now: u64, leaving: Leaving) {
        let Leaving { way, channel, sent } = leaving;
        self.queues[way as usize].busy = false;
        self.deliver(now, way, channel, sent);
        while !self.queues[way as usize].busy {
            let Some(next) = self.queues[way as usize].waiting.pop_front() else {
                return;
            };
            if let Some(own) = self.sent.get_mut(next.sent as usize) {
                own.before = sent;
            }
            self.leave(now, way, next);
        }
    }

    fn deliver(&mut self, now: u64, way: u32, channel: u32, sent: u32) {
        let at = now.saturating_add(self.wires.ways[way as usize].latency_ps);
        if let Some(sent) = self.sent.get_mut(sent as usize) {
            sent.arrived = at;
        }
        if channel != NONE {
            let event = Event::Arrived { channel, sent };
            self.events.push(Reverse((at, event)));
        }
    }

    fn arrive(&mut self, now: u64, channel: u32, cause: u32) {
        let channel = &mut self.channels[channel as usize];
        let waiter = std::mem::replace(&mut channel.waiter, NONE);
        if waiter == NONE {
            channel.news += 1;
            return;
        }
        self.agents[waiter as usize].cause = cause;
        let event = Event::Ready { agent: waiter };
        self.events.push(Reverse((now, event)));
    }
}
