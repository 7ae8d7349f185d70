//! Why a run got stuck, in words.

use hcomm_types::Rank;
use rustc_hash::FxHashMap;

use super::execution::Execution;
use super::finding::OtherTask;
use super::layout::{Notify, notify_recorded};
use super::{At, Fault};

impl Execution<'_> {
    /// Follows the waits from the first rank that is stuck until they close a circle.
    pub(super) fn report_deadlock(&mut self) {
        let blocked: FxHashMap<(Rank, usize), Notify> = self
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
        blocked: &FxHashMap<(Rank, usize), Notify>,
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
            Notify::Packet { writer, .. } => writer,
            Notify::Thread { rank, .. } => rank,
        };
        candidates.retain(|(rank, _)| *rank == owner);
        candidates
            .iter()
            .find(|candidate| ahead(candidate, true))
            .or_else(|| candidates.first())
            .copied()
    }
}
