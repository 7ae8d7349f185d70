//! Machines that never block, and the small loops that drive them.

use std::task::Poll;

use hcomm_transport::{Interest, Phase, Waiter, Watch};
use hcomm_types::{Deadline, Nanos, Result};

/// Something that goes on a little each time it is looked at, and ends with a result.
pub trait Machine {
    /// What it ends with.
    type Output;

    /// Goes on as far as it can at the moment `now`. Not to be called after it was ready.
    ///
    /// # Errors
    /// Those of the machine, inside `Ready`.
    fn poll(&mut self, now: Nanos) -> Poll<Result<Self::Output>>;

    /// The descriptors that may let it go on.
    fn interests<'a>(&'a self, wanted: &mut Vec<Interest<'a>>);

    /// When to look again at the latest, whatever the descriptors say.
    fn next_wake(&self) -> Deadline;
}

/// Drives one machine to its end. Its own deadlines end the wait.
///
/// # Errors
/// Those of the machine.
pub fn drive<M: Machine + ?Sized>(waiter: &dyn Waiter, machine: &mut M) -> Result<M::Output> {
    let mut phase = Phase::default();
    loop {
        if let Poll::Ready(result) = machine.poll(waiter.now()) {
            return result;
        }
        let mut wanted = Vec::new();
        machine.interests(&mut wanted);
        pause(waiter, &mut phase, machine.next_wake(), &wanted);
    }
}

/// Drives machines that wait for each other, on one OS thread, until each has ended. Results come
/// in the order of the machines; that one fails does not end the others.
pub fn drive_all<M: Machine>(waiter: &dyn Waiter, machines: &mut [M]) -> Vec<Result<M::Output>> {
    let mut results: Vec<Option<Result<M::Output>>> = machines.iter().map(|_| None).collect();
    let mut phase = Phase::default();
    loop {
        for (machine, result) in machines.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(end) = machine.poll(waiter.now())
            {
                *result = Some(end);
            }
        }
        let mut wanted = Vec::new();
        let mut until = Deadline::NEVER;
        let mut all_ended = true;
        for (machine, result) in machines.iter().zip(&results) {
            if result.is_none() {
                all_ended = false;
                machine.interests(&mut wanted);
                until = until.earlier(machine.next_wake());
            }
        }
        if all_ended {
            return results.into_iter().flatten().collect();
        }
        pause(waiter, &mut phase, until, &wanted);
    }
}

fn pause(waiter: &dyn Waiter, phase: &mut Phase, until: Deadline, interests: &[Interest<'_>]) {
    // What a machine waits for is told by descriptors, level-triggered, so there is nothing that
    // a look before sleeping could find. The phase is never restarted: start-up waits for other
    // processes to get the core, and spinning again after each frame would take it from them.
    waiter.pause(
        phase,
        &mut Watch {
            until,
            interests,
            devices: &[],
            look: &mut || false,
        },
    );
}
