//! What would change a choice: other sizes, other costs, other ranks.

use super::choose::{Chooser, Means, Terms};
use super::machine::Machine;
use super::site::Site;
use crate::plan::Shape;

/// Something that differs from what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The largest smaller count, in elements, with another choice.
    Fewer(u64),
    /// The smallest larger count, in elements, with another choice.
    More(u64),
    /// News takes so many times as long.
    SlowerNews(u32),
    /// Bytes take so many times as long.
    SlowerMemory(u32),
    /// As many cores.
    Cores(u32),
    /// As many ranks.
    Ranks(u32),
}

/// A change and the choice after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// What changes.
    pub change: Change,
    /// What is taken then.
    pub means: Means,
}

/// Steps of a size that are looked at each way: four to a power of two.
const STEPS: u32 = 48;

impl Chooser {
    /// What would change the choice for a shape of one count: of sizes the nearest, of other changes
    /// those that do.
    #[must_use]
    pub fn turns(&self, shape: &Shape, terms: &Terms) -> Vec<Turn> {
        let Some(now) = self.choose(shape, terms) else {
            return Vec::new();
        };
        let mut turns = Vec::new();
        let mut note = |change, means: Option<Means>| {
            let found = means.filter(|means| means.name != now.name);
            turns.extend(found.map(|means| Turn { change, means }));
            found.is_some()
        };
        let of_count = |count: u64| {
            let other = Shape {
                count: count.into(),
                ..shape.clone()
            };
            self.choose(&other, terms)
        };
        let count = shape.count.largest();
        let mut at = count;
        for _ in 0..STEPS {
            // A step or so less.
            at = at - at.div_ceil(8).min(at);
            if at == 0 || note(Change::Fewer(at), of_count(at)) {
                break;
            }
        }
        at = count;
        for _ in 0..STEPS {
            let Some(more) = at.checked_add(at.div_ceil(8)) else {
                break;
            };
            at = more;
            let too_large = at.saturating_mul(shape.element_bytes()) > 1 << 40;
            if count == 0 || too_large || note(Change::More(at), of_count(at)) {
                break;
            }
        }
        let with = |machine: Machine, site: Site, shape: &Shape| {
            Self::new(machine, site).choose(shape, terms)
        };
        let mut slower = self.machine().clone();
        for cost in [
            &mut slower.signals.alpha_ns,
            &mut slower.signals.late_ns,
            &mut slower.signals.packet_ns,
            &mut slower.signals.fetch_ns,
        ] {
            *cost = cost.saturating_mul(2);
        }
        note(
            Change::SlowerNews(2),
            with(slower, self.site().clone(), shape),
        );
        let mut narrower = self.machine().clone();
        let memory = &mut narrower.memory;
        for costs in [
            &mut memory.read_ps,
            &mut memory.write_ps,
            &mut memory.fetch_ps,
            &mut memory.offer_ps,
            &mut memory.put_ps,
        ] {
            costs
                .iter_mut()
                .for_each(|cost| *cost = cost.saturating_mul(2));
        }
        note(
            Change::SlowerMemory(2),
            with(narrower, self.site().clone(), shape),
        );
        let cores = self.site().cores;
        for cores in [cores / 2, cores.saturating_mul(2), shape.ranks] {
            let site = Site {
                cores,
                ..self.site().clone()
            };
            if cores > 0 && cores != self.site().cores {
                let found = with(self.machine().clone(), site, shape);
                if note(Change::Cores(cores), found) {
                    break;
                }
            }
        }
        // Where hosts are told by rank, fewer ranks are others.
        if self.site().hosts.is_none() {
            let mut ranks = shape.ranks / 2;
            while ranks > 1 {
                let fewer = Shape {
                    ranks,
                    ..shape.clone()
                };
                if note(Change::Ranks(ranks), self.choose(&fewer, terms)) {
                    break;
                }
                ranks /= 2;
            }
        }
        turns
    }
}
