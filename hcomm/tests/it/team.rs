//! Ranks of one process, each on an OS thread of its own, under a watchdog.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use hcomm::{Communicator, Options, Settings};

use crate::job;

/// Runs `work` on every rank of a fresh communicator; results in rank order.
pub(crate) fn run<R: Send + 'static>(
    size: u32,
    work: impl Fn(Communicator) -> R + Send + Sync + 'static,
) -> Vec<R> {
    run_with(size, &Options::default(), work)
}

/// [`run`] with options.
pub(crate) fn run_with<R: Send + 'static>(
    size: u32,
    options: &Options,
    work: impl Fn(Communicator) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let comms = Communicator::init_all_with(size, options).expect("init_all");
    let work = Arc::new(work);
    on_threads(comms, move |comm| work(comm))
}

/// Runs `work` on each of `members`, each on its own OS thread. Fails if one panics or does not
/// end.
pub(crate) fn on_threads<M: Send + 'static, R: Send + 'static>(
    members: Vec<M>,
    work: impl Fn(M) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let work = Arc::new(work);
    let (sender, ends) = mpsc::channel();
    let mut results: Vec<Option<R>> = Vec::new();
    let mut threads = Vec::new();
    for (rank, member) in members.into_iter().enumerate() {
        results.push(None);
        let (work, sender) = (Arc::clone(&work), sender.clone());
        let thread = thread::Builder::new()
            .name(format!("rank {rank}"))
            .spawn(move || {
                let end = catch_unwind(AssertUnwindSafe(|| work(member)));
                // The test may have failed and gone.
                let _ = sender.send((rank, end));
            });
        threads.push(thread.expect("a thread"));
    }
    drop(sender);
    let patience = job::limit();
    let limit = Instant::now() + patience;
    let mut first_panic = None;
    while results.iter().any(Option::is_none) {
        match ends.recv_timeout(limit.saturating_duration_since(Instant::now())) {
            Ok((rank, Ok(result))) => results[rank] = Some(result),
            Ok((rank, Err(panic))) => {
                // The others may now fail or hang because of this one: its words count.
                first_panic.get_or_insert_with(|| format!("rank {rank}: {}", words(&*panic)));
                break;
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    if let Some(panic) = first_panic {
        panic!("{panic}");
    }
    let hang: Vec<usize> = (0..results.len())
        .filter(|&i| results[i].is_none())
        .collect();
    assert!(
        hang.is_empty(),
        "ranks {hang:?} have not ended in {patience:?}"
    );
    for thread in threads {
        thread.join().expect("panics were caught");
    }
    results.into_iter().flatten().collect()
}

/// Options with a small communicator buffer, so that a few kilobytes already need several rounds.
pub(crate) fn small_buffer(bytes: u64) -> Options {
    Options::new(Settings::default().with_buffer_bytes(bytes))
}

fn words(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without words")
}
