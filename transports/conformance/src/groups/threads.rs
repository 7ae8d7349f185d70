//! Calls from several OS threads, as far as the ABI allows them: slow calls from any, fast calls on
//! one channel and `progress` on one device from one at a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;

use hcomm_transport::{Capabilities, Device};

use crate::case::{Case, Check, Each, check};
use crate::content::Content;
use crate::memory::{Kind, Memory};
use crate::pair::{Who, ends};
use crate::side::{Op, Request};
use crate::verdict::{Stop, fail};

use super::lifetime::proof_of_life;

pub(crate) const CHECKS: &[Check] = &[
    check("slow_calls_from_several_threads", Each::Device, slow_calls),
    check(
        "devices_on_several_threads",
        Each::Placement,
        devices_on_threads,
    ),
    check(
        "progress_beside_posts",
        Each::Placement,
        progress_beside_posts,
    ),
];

const THREADS: usize = 4;

fn joined(handle: ScopedJoinHandle<'_, Result<(), Stop>>) -> Result<(), Stop> {
    handle
        .join()
        .unwrap_or_else(|_| Err(fail("a thread panicked")))
}

/// On one device, and on devices that open and close meanwhile.
fn slow_calls(case: &Case) -> Result<(), Stop> {
    let shared = case.info().open()?;
    let kinds = case.shared_kinds()?;
    let round = |device: &Device, kind: Kind, bytes: usize| -> Result<(), Stop> {
        let memory = Memory::new(device, kind, bytes)?;
        let content = Content::Bytes { seed: bytes as u64 };
        memory.store(0, &content.render(0, bytes));
        let blob = memory.region().map(|region| region.export()).transpose()?;
        let channel = device.create_channel(device.info().max_notifies.min(2), 16)?;
        let own = channel.blob()?;
        if blob.is_none_or(|blob| blob.is_empty()) || own.is_empty() {
            return Err(fail("an empty blob"));
        }
        // Nobody else's memory is under it.
        if memory.load(0, bytes) != content.render(0, bytes) {
            return Err(fail(format!(
                "{bytes} bytes of {kind:?} memory changed by themselves"
            )));
        }
        device.info().plugin.devices()?;
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (shared, kinds, round) = (&shared, &kinds, &round);
                scope.spawn(move || {
                    for step in 0..60 {
                        let kind = kinds[step % kinds.len()];
                        let bytes = 1 + thread * 1000 + step * 37;
                        round(shared, kind, bytes)?;
                        round(&case.info().open()?, kind, bytes)?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(joined)
    })
}

/// A pair for each thread, all at work at once.
fn devices_on_threads(case: &Case) -> Result<(), Stop> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS as u64)
            .map(|thread| {
                scope.spawn(move || {
                    let mut pair = case.pair()?;
                    for round in 0..5 {
                        proof_of_life(&mut pair, case, thread * 100 + round)?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(joined)
    })
}

/// One thread does nothing but `progress` and `poll` on the device, another posts on a channel of
/// it.
fn progress_beside_posts(case: &Case) -> Result<(), Stop> {
    case.needs(Capabilities::WRITE | Capabilities::NOTIFY)?;
    let bytes = case.at_most(20_011);
    let mut pair = case.pair()?;
    let channel = pair.channel(1)?;
    let device = pair.near_device();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let progress = scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                device.progress()?;
                std::thread::yield_now();
            }
            Ok(())
        });
        let posts = (|| {
            let mut counts = [0u64; 2];
            for kind in case.shared_kinds()? {
                for (who, count) in Who::BOTH.into_iter().zip(&mut counts) {
                    let shared = pair.share(who.other(), channel, kind, bytes)?;
                    let (memory, _) = pair.memory(who, kind, bytes)?;
                    for round in 0..40u64 {
                        let content = Content::Bytes {
                            seed: round + *count,
                        };
                        pair.fill(who, memory, 0, bytes, content)?;
                        let ops = vec![
                            Op::Write(ends(memory, 0, shared.import, 0), bytes as u64, None),
                            Op::Notify(0, [0; 2]),
                        ];
                        pair.post(who, channel, ops)?;
                        *count += 1;
                        pair.wait(who.other(), channel, 0, *count)?;
                        pair.expect(who.other(), shared.memory, 0, bytes, content)?;
                    }
                    pair.done(who, Request::DropImport(shared.import))?;
                }
            }
            Ok(())
        })();
        stop.store(true, Ordering::Release);
        joined(progress).and(posts)
    })
}
