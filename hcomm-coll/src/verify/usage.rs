//! What a plan needs and moves.

use hcomm_types::Rank;
use rustc_hash::FxHashMap;

use super::structure::tasks;
use super::{ChannelUse, Proof, RankUse};
use crate::plan::{Buffer, Operation, Plan, Task};

/// What a plan uses, with the properties that need a run left at their weakest.
pub(super) fn usage(plan: &Plan) -> Proof {
    let element_bytes = plan.shape.element_bytes();
    let mut channels: FxHashMap<(Rank, Rank), ChannelUse> = FxHashMap::default();
    let mut ranks: Vec<RankUse> = plan
        .ranks
        .iter()
        .map(|rank| RankUse {
            threads: rank
                .threads
                .iter()
                .filter(|tasks| !tasks.is_empty())
                .count(),
            tasks: rank.task_count(),
            scratch_bytes: rank.scratch_bytes,
            local_bytes: 0,
        })
        .collect();
    let mut remote_user = false;
    for (rank, _, _, task) in tasks(plan) {
        let mut local = |bytes: u64| {
            let sum = &mut ranks[rank.index()].local_bytes;
            *sum = sum.saturating_add(bytes);
        };
        let mut channel = |peer: Rank, change: &mut dyn FnMut(&mut ChannelUse)| {
            change(channels.entry((rank, peer)).or_insert(ChannelUse {
                from: rank,
                to: peer,
                bytes_written: 0,
                bytes_read: 0,
                notifies: 0,
                records: 0,
            }));
        };
        match *task {
            Task::Copy { bytes, .. } => local(bytes.saturating_mul(2)),
            Task::Reduce { count, .. } => local((count * element_bytes).saturating_mul(3)),
            Task::Divide { count, .. } => local((count * element_bytes).saturating_mul(2)),
            Task::Write {
                peer, dst, bytes, ..
            } => {
                local(bytes);
                remote_user |= dst.buffer != Buffer::Scratch;
                channel(peer, &mut |channel| {
                    channel.bytes_written = channel.bytes_written.saturating_add(bytes);
                });
            }
            Task::Read {
                peer, src, bytes, ..
            } => {
                local(bytes);
                remote_user |= src.buffer != Buffer::Scratch;
                channel(peer, &mut |channel| {
                    channel.bytes_read = channel.bytes_read.saturating_add(bytes);
                });
            }
            Task::WriteReduce {
                peer, dst, count, ..
            } => {
                let bytes = count * element_bytes;
                local(bytes);
                remote_user |= dst.buffer != Buffer::Scratch;
                channel(peer, &mut |channel| {
                    channel.bytes_written = channel.bytes_written.saturating_add(bytes);
                });
            }
            Task::ReadReduce {
                peer, src, count, ..
            } => {
                let bytes = count * element_bytes;
                local(bytes.saturating_mul(2));
                remote_user |= src.buffer != Buffer::Scratch;
                channel(peer, &mut |channel| {
                    channel.bytes_read = channel.bytes_read.saturating_add(bytes);
                });
            }
            Task::PacketWrite { peer, bytes, .. } => {
                local(bytes);
                channel(peer, &mut |channel| {
                    channel.bytes_written = channel.bytes_written.saturating_add(bytes);
                });
            }
            Task::PacketRead { bytes, .. } => local(bytes.saturating_mul(2)),
            Task::PacketReduce { count, .. } => local((count * element_bytes).saturating_mul(3)),
            Task::Record { .. }
            | Task::Wait { .. }
            | Task::ThreadRecord { .. }
            | Task::ThreadWait { .. } => {}
        }
        if let Some((peer, notify)) = task.records() {
            channel(peer, &mut |channel| {
                channel.records += 1;
                channel.notifies = channel.notifies.max(notify + 1);
            });
        }
    }
    let mut channels: Vec<ChannelUse> = channels.into_values().collect();
    channels.sort_unstable_by_key(|channel| (channel.from, channel.to));
    Proof {
        synchronising: false,
        quiescent: false,
        same_bits: !matches!(plan.shape.operation, Operation::AllReduce),
        rank_order: !plan.shape.operation.reduces(),
        notify_capacity: 0,
        notifies: channels
            .iter()
            .map(|channel| channel.notifies)
            .max()
            .unwrap_or(0),
        touches_remote_user_buffers: remote_user,
        channels,
        ranks,
    }
}
