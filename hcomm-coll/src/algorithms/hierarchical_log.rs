//! Within each group of ranks, then across groups in a logarithmic number of steps, then within again.
//!
//! As `hierarchical`, for so many groups that a message from each to each is too much: of 2,048
//! groups a rank has 11 partners instead of 2,047. There are as many lanes as the largest group has
//! ranks, and what crosses between groups stays in its lane, so where ranks of one index share a rail,
//! nothing leaves it.
//!
//! A slice is cut into a part a lane. Within a group each rank combines the parts of its lanes; the
//! ranks of a lane, one in each group, combine theirs by recursive halving and gather them by doubling,
//! nearest group first, so that most bytes go the shortest way; then each rank tells its group. In a
//! number of groups that is no power of two, those too many stand behind another one.
//!
//! Rabenseifner, "Optimization of collective reduction operations", ICCS 2004, for what goes across;
//! lanes as in Träff, Hunold, "Decomposing MPI collectives for exploiting multi-lane communication",
//! CLUSTER 2020.

use hcomm_types::{MAX_NOTIFIES_PER_THREAD, Rank};

use super::blocks::{Blocks, Folded, Step};
use super::hierarchical::Groups;
use super::layout::{Slices, line_up};
use super::links::{Link, Links, Slots};
use super::tasks::length;
use super::{Algorithm, Params, PlanError, begin, halving_doubling};
use crate::plan::{Loc, Operation, RankPlan, Shape};

/// Within groups, across in a logarithmic number of steps, within.
#[derive(Clone, Copy, Debug)]
pub struct HierarchicalLog;

impl Algorithm for HierarchicalLog {
    fn name(&self) -> &'static str {
        "hierarchical_log"
    }

    fn summary(&self) -> &'static str {
        "as hierarchical, with few steps across; for hundreds of groups and more"
    }

    fn by_groups(&self) -> bool {
        true
    }

    fn supports(&self, shape: &Shape) -> bool {
        shape.operation == Operation::AllReduce
    }

    fn plan_rank(&self, shape: &Shape, params: &Params, rank: Rank) -> Result<RankPlan, PlanError> {
        if let Some(done) = begin(self, shape, rank)? {
            return Ok(done);
        }
        let groups = Groups::new(shape, params)?;
        let (group, index) = groups.of[rank.index()];
        let folded = Folded::new(groups.ranks.len() as u32);
        let steps = u64::from(2 * (folded.steps() + folded.folds()));
        let smallest = groups.ranks.iter().map(Vec::len).min().unwrap_or(1) as u64;
        let most_lanes = groups.lanes.div_ceil(smallest);
        // That data is there, and that a slot is free, of each. All ranks refuse alike.
        let notifies = 2 * (groups.lanes + most_lanes * steps);
        if notifies > MAX_NOTIFIES_PER_THREAD as u64 {
            return Err(PlanError::Notifies {
                algorithm: self.name(),
                need: notifies as usize,
                limit: MAX_NOTIFIES_PER_THREAD,
            });
        }
        // Links to a rank: one from each of its group, and one for each step of a lane. Where ranks
        // have different numbers of lanes, both ends number by the lane itself.
        let apart = most_lanes > 1;
        let links = groups.lanes + if apart { groups.lanes } else { 1 } * steps;
        let bytes = shape.count_bytes();
        let slots = Slots::new(self, params, links, 0, bytes.div_ceil(groups.lanes))?;
        let slices = Slices::new(bytes, groups.lanes, slots.bytes);
        let slots = slots.shrunk(slices.part_bytes());
        let mut member = Member {
            slices,
            me: rank,
            near: (1..groups.size(group))
                .map(|step| (index + step) % groups.size(group))
                .map(|at| (groups.ranks[group][at as usize], at))
                .collect(),
            group,
            index,
            steps,
            apart,
            folded,
            groups: &groups,
            links: Links::new(shape, rank, slots),
        };
        for slice in 0..slices.count() {
            member.all_reduce(slice);
        }
        Ok(member.links.finish(false))
    }
}

/// A rank in its group, writing down what it does.
struct Member<'s, 'g> {
    slices: Slices,
    me: Rank,
    /// The others of the group, with their indices, beginning with the next one.
    near: Vec<(Rank, u64)>,
    group: usize,
    index: u64,
    /// Steps across, of a lane.
    steps: u64,
    /// Links are numbered by lanes.
    apart: bool,
    folded: Folded,
    groups: &'g Groups,
    links: Links<'s>,
}

impl Member<'_, '_> {
    fn all_reduce(&mut self, slice: u64) {
        let (lanes, slices) = (self.groups.lanes, self.slices);
        let size = self.groups.size(self.group);
        let part = |lane: u64| slices.part(slice, lane);
        let rows: Vec<u64> = (0..lanes).step_by(size as usize).collect();
        let near = std::mem::take(&mut self.near);
        for &row in &rows {
            for (peer, index) in near.iter().filter(|(_, index)| row + index < lanes) {
                let range = part(row + index);
                let link = Link::new(*peer, self.index, 0);
                self.links
                    .send(link, Loc::input(range.start), length(&range));
            }
            if row + self.index < lanes {
                let range = part(row + self.index);
                let (own, out) = (Loc::input(range.start), Loc::output(range.start));
                let from = near.iter().map(|(peer, at)| Link::new(*peer, *at, 0));
                let from: Vec<Link> = from.collect();
                self.links.combine(&from, own, out, length(&range));
            }
        }
        for lane in self.groups.lanes_of(self.me) {
            self.across(lane, part(lane).start, length(&part(lane)));
        }
        for &row in &rows {
            if row + self.index < lanes {
                let range = part(row + self.index);
                for (peer, _) in &near {
                    let link = Link::new(*peer, self.index, 0);
                    self.links
                        .send(link, Loc::output(range.start), length(&range));
                }
            }
            for (peer, index) in near.iter().filter(|(_, index)| row + index < lanes) {
                let range = part(row + index);
                let (link, dst) = (Link::new(*peer, *index, 0), Loc::output(range.start));
                self.links.take(link, dst, length(&range));
            }
        }
        self.near = near;
    }

    /// Combines the part of a lane over all groups, in the output.
    fn across(&mut self, lane: u64, start: u64, bytes: u64) {
        if self.groups.ranks.len() == 1 {
            return;
        }
        let acting = self.folded.acting;
        let cut = (bytes > 0).then(|| Slices::new(bytes, acting.into(), line_up(bytes)));
        // Steps name groups; a lane has one rank in each.
        let named = |steps: Vec<Step>| -> Vec<Step> {
            let rank = |group: Rank| self.groups.at(group.index(), lane);
            let way = |way: Option<(Rank, Vec<u32>)>| way.map(|(group, list)| (rank(group), list));
            let steps = steps.into_iter().map(|step| Step {
                send: way(step.send),
                receive: way(step.receive),
            });
            steps.collect()
        };
        let phases = halving_doubling::all_reduce(&self.folded, Rank(self.group as u32));
        let (reduce, gather) = (named(phases.reduce), named(phases.gather));
        let mut blocks = Blocks {
            range: &|block| {
                let range = cut.map_or(0..0, |cut| cut.part(0, block.into()));
                start + range.start..start + range.end
            },
            input: &Loc::output,
            work: &Loc::output,
            held: vec![true; acting as usize],
            inbox: self.groups.lanes + if self.apart { lane } else { 0 } * self.steps,
        };
        blocks.run(&mut self.links, self.me, &reduce, true);
        blocks.run(&mut self.links, self.me, &gather, false);
    }
}
