//! Wires that messages share, and how much of them each gets.
//!
//! A message wants as much as the slowest wire of its way. Where the wishes of all messages on a wire
//! are more than it has, the wire is *tight*, and what it has is divided. Only messages that tight wires
//! connect influence each other; when one begins or ends, the shares of those are worked out anew, and
//! nobody else is looked at.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use hcomm_topo::{RankGraph, Segment};
use hcomm_types::Rank;

use super::SimulateError;
use super::template::Program;

/// A wire, one way, of a graph with or without known wires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Wire {
    Known(Segment),
    /// Out of an endpoint of a rank, or into it.
    Endpoint(Rank, u32, bool),
}

/// A way from a rank to another.
#[derive(Clone, Copy)]
pub(super) struct Way {
    /// Its wires, in [`Wires::path`].
    first: u32,
    count: u32,
    pub(super) latency_ps: u64,
    /// Bytes per picosecond of the slowest wire.
    wish: f64,
}

pub(super) struct Wires {
    pub(super) names: Vec<Wire>,
    pub(super) ways: Vec<Way>,
    path: Vec<u32>,
    wires: Vec<State>,
    flows: Vec<Flow>,
    free: Vec<u32>,
    /// Wires whose messages have changed.
    changed: Vec<u32>,
    /// Flows that have begun.
    begun: Vec<u32>,
    mark: u32,
}

struct State {
    /// Bytes per picosecond.
    capacity: f64,
    /// What its flows would take.
    wished: f64,
    tight: bool,
    flows: Vec<u32>,
    bytes: u64,
    seen: u32,
    /// While shares are worked out: what is left, and among how many.
    left: f64,
    among: u32,
}

#[derive(Clone, Copy)]
struct Flow {
    way: u32,
    /// Bytes that were left at `since`.
    left: f64,
    since: u64,
    rate: f64,
    version: u32,
    seen: u32,
    fixed: bool,
}

/// When a flow will have ended, if nothing changes.
pub(super) struct Ending {
    pub(super) flow: u32,
    pub(super) version: u32,
    pub(super) at: u64,
}

impl Wires {
    pub(super) fn of(graph: &RankGraph, program: &Program) -> Result<Self, SimulateError> {
        let mut numbers = HashMap::<Wire, u32>::new();
        let mut wires = Self {
            names: Vec::new(),
            ways: Vec::with_capacity(program.ways.len()),
            path: Vec::new(),
            wires: Vec::new(),
            flows: Vec::new(),
            free: Vec::new(),
            changed: Vec::new(),
            begun: Vec::new(),
            mark: 0,
        };
        for &(from, to) in &program.ways {
            let links = graph.links(from, to);
            let link = links.first().ok_or(SimulateError::NoLink { from, to })?;
            if link.bytes_per_s == 0 {
                return Err(SimulateError::NoSpeed { from, to });
            }
            let known = graph.path(link);
            let mut path: Vec<(Wire, u64)> = known
                .into_iter()
                .map(|segment| (Wire::Known(segment), graph.capacity(segment)))
                .collect();
            if path.is_empty() {
                let end = |rank: Rank, endpoint: u32, out| {
                    let speed = graph.endpoints(rank)[endpoint as usize].bytes_per_s;
                    (Wire::Endpoint(rank, endpoint, out), speed)
                };
                path.push(end(from, link.from_endpoint, true));
                path.push(end(to, link.to_endpoint, false));
            }
            let first = wires.path.len() as u32;
            for (wire, bytes_per_s) in path {
                // What nobody knows holds nobody up.
                let capacity = if bytes_per_s == 0 {
                    f64::INFINITY
                } else {
                    bytes_per_s as f64 / 1e12
                };
                let next = wires.names.len() as u32;
                let number = *numbers.entry(wire).or_insert(next);
                if number == next {
                    wires.names.push(wire);
                    wires.wires.push(State {
                        capacity,
                        wished: 0.0,
                        tight: false,
                        flows: Vec::new(),
                        bytes: 0,
                        seen: 0,
                        left: 0.0,
                        among: 0,
                    });
                }
                wires.path.push(number);
            }
            wires.ways.push(Way {
                first,
                count: wires.path.len() as u32 - first,
                latency_ps: link.latency_ns.saturating_mul(1000),
                wish: link.bytes_per_s as f64 / 1e12,
            });
        }
        Ok(wires)
    }

    /// Bytes that went over a wire, and bytes per second that could.
    pub(super) fn used(&self, wire: usize) -> (u64, f64) {
        let state = &self.wires[wire];
        (state.bytes, state.capacity * 1e12)
    }

    /// Begins to send bytes (not zero); [`settle`](Self::settle) says how fast.
    pub(super) fn begin(&mut self, way: u32, bytes: u64, now: u64) -> u32 {
        let flow = Flow {
            way,
            left: bytes as f64,
            since: now,
            rate: 0.0,
            version: 0,
            seen: 0,
            fixed: false,
        };
        let number = match self.free.pop() {
            Some(number) => {
                let version = self.flows[number as usize].version + 1;
                self.flows[number as usize] = Flow { version, ..flow };
                number
            }
            None => {
                self.flows.push(flow);
                self.flows.len() as u32 - 1
            }
        };
        let Way {
            first, count, wish, ..
        } = self.ways[way as usize];
        for at in first..first + count {
            let wire = self.path[at as usize];
            let state = &mut self.wires[wire as usize];
            state.bytes += bytes;
            state.wished += wish;
            state.flows.push(number);
            self.changed.push(wire);
        }
        self.begun.push(number);
        number
    }

    /// Whether this is still the time at which a flow ends.
    pub(super) fn is_current(&self, flow: u32, version: u32) -> bool {
        self.flows[flow as usize].version == version
    }

    /// Takes a flow that has ended off its wires.
    pub(super) fn end(&mut self, flow: u32) {
        let Way {
            first, count, wish, ..
        } = self.ways[self.flows[flow as usize].way as usize];
        for at in first..first + count {
            let wire = self.path[at as usize];
            let state = &mut self.wires[wire as usize];
            state.wished -= wish;
            if let Some(place) = state.flows.iter().position(|other| *other == flow) {
                state.flows.swap_remove(place);
            }
            if state.flows.is_empty() {
                // No rounding is carried on.
                state.wished = 0.0;
            }
            self.changed.push(wire);
        }
        self.flows[flow as usize].version += 1;
        self.free.push(flow);
    }

    /// Works out the shares after flows have begun and ended; tells when those end whose share is
    /// another one now.
    pub(super) fn settle(&mut self, now: u64, mut tell: impl FnMut(Ending)) {
        self.mark += 1;
        let mark = self.mark;
        // All flows that tight wires connect with a change, and those wires.
        let mut flows: Vec<u32> = Vec::new();
        let mut wires: Vec<u32> = Vec::new();
        let mut next = std::mem::take(&mut self.changed);
        for flow in self.begun.drain(..) {
            if self.flows[flow as usize].seen != mark {
                self.flows[flow as usize].seen = mark;
                flows.push(flow);
            }
        }
        while let Some(wire) = next.pop() {
            let state = &mut self.wires[wire as usize];
            if state.seen == mark {
                continue;
            }
            state.seen = mark;
            let was = state.tight;
            state.tight = state.wished > state.capacity * (1.0 + 1e-9);
            if !(was || state.tight) {
                continue;
            }
            if state.tight {
                wires.push(wire);
            }
            for &flow in &state.flows {
                let seen = &mut self.flows[flow as usize].seen;
                if *seen != mark {
                    *seen = mark;
                    flows.push(flow);
                    let Way { first, count, .. } =
                        self.ways[self.flows[flow as usize].way as usize];
                    next.extend(&self.path[first as usize..(first + count) as usize]);
                }
            }
        }
        for &wire in &wires {
            let state = &mut self.wires[wire as usize];
            state.left = state.capacity;
            state.among = state.flows.len() as u32;
        }
        self.share(&flows, &wires, now, &mut tell);
    }

    /// Divides what tight wires have: the smallest share first, which everybody on that wire gets; who
    /// wants no more than the smallest share gets what it wants.
    fn share(&mut self, flows: &[u32], wires: &[u32], now: u64, tell: &mut impl FnMut(Ending)) {
        for &flow in flows {
            self.flows[flow as usize].fixed = false;
        }
        let wish = |this: &Self, flow: u32| this.ways[this.flows[flow as usize].way as usize].wish;
        let mut modest: Vec<(u64, u32)> = flows
            .iter()
            .map(|flow| (wish(self, *flow).to_bits(), *flow))
            .collect();
        if !wires.is_empty() {
            // Bits of floats that are not negative are in their order.
            modest.sort_unstable();
        }
        let mut modest = modest.into_iter().map(|(_, flow)| flow).peekable();
        let each = |state: &State| (state.left / f64::from(state.among)).max(0.0);
        let shares = wires
            .iter()
            .map(|wire| Reverse((each(&self.wires[*wire as usize]).to_bits(), *wire)));
        let mut shares: BinaryHeap<_> = shares.collect();
        loop {
            // Shares grow while others are fixed: what the heap says may be less than what is true.
            let smallest = loop {
                let Some(Reverse((bits, wire))) = shares.pop() else {
                    break None;
                };
                let state = &self.wires[wire as usize];
                if state.among == 0 {
                    continue;
                }
                let share = each(state);
                if share <= f64::from_bits(bits) * (1.0 + 1e-12) {
                    break Some((share, wire));
                }
                shares.push(Reverse((share.to_bits(), wire)));
            };
            let limit = smallest.map_or(f64::INFINITY, |(share, _)| share * (1.0 + 1e-12));
            let mut any = false;
            while let Some(&flow) = modest.peek() {
                let wish = wish(self, flow);
                if !self.flows[flow as usize].fixed {
                    if wish > limit {
                        break;
                    }
                    self.fix(flow, wish, now, tell);
                    any = true;
                }
                modest.next();
            }
            let Some((share, wire)) = smallest else {
                return;
            };
            if any {
                shares.push(Reverse((share.to_bits(), wire)));
                continue;
            }
            for at in 0..self.wires[wire as usize].flows.len() {
                let flow = self.wires[wire as usize].flows[at];
                if !self.flows[flow as usize].fixed {
                    self.fix(flow, share, now, tell);
                }
            }
        }
    }

    fn fix(&mut self, number: u32, rate: f64, now: u64, tell: &mut impl FnMut(Ending)) {
        let flow = &mut self.flows[number as usize];
        flow.fixed = true;
        let Way { first, count, .. } = self.ways[flow.way as usize];
        for at in first..first + count {
            let state = &mut self.wires[self.path[at as usize] as usize];
            if state.tight && state.among > 0 {
                state.left -= rate;
                state.among -= 1;
            }
        }
        // What differs by rounding is the same, or ranks in step would fall out of it.
        if (flow.rate - rate).abs() <= rate * 1e-9 {
            return;
        }
        flow.left = (flow.left - flow.rate * (now - flow.since) as f64).max(0.0);
        flow.since = now;
        flow.rate = rate;
        flow.version += 1;
        // Casts keep within 64 bits.
        let still = if rate > 0.0 {
            (flow.left / rate).ceil() as u64
        } else {
            u64::MAX
        };
        tell(Ending {
            flow: number,
            version: flow.version,
            at: together(now.saturating_add(still), still),
        });
    }
}

/// A moment, a little later, at which others end as well that end about then: by at most a part of
/// 16,384 of the time that is left. Each moment at which something ends costs a look at all that it
/// shares wires with.
const fn together(at: u64, still: u64) -> u64 {
    let grain = still >> 14;
    if grain < 2 {
        return at;
    }
    let grain = 1 << grain.ilog2();
    at.saturating_add(grain - 1) / grain * grain
}
