//! How large the structs are through which every task goes. A number that grows costs time or
//! cache in each task: raise it here only for what is worth that, after a look at the benches.

use std::mem::size_of;

use hcomm_transport::{Descriptor, NotifyWord};

use crate::channel;
use crate::memory::Place;
use crate::owned::Owned;
use crate::queue::State;
use crate::slice::{Remote, RemoteSlice, Slice};
use crate::work::{Task, Work};

#[test]
#[cfg(target_pointer_width = "64")]
fn hot_structs_have_not_grown() {
    let found = [
        // Passed on by value, half a cache line at most.
        ("Place", size_of::<Place<'_>>()),
        ("Remote", size_of::<Remote<'_>>()),
        // A handle and a range; users keep many.
        ("Slice", size_of::<Slice>()),
        ("RemoteSlice", size_of::<RemoteSlice>()),
        // Made by each call, on the stack, and passed on by reference: two cache lines.
        ("Work", size_of::<Work<'_>>()),
        // An entry of a queue, stored only when something before it is left.
        ("Task", size_of::<Task>()),
        // On links that are not mapped, 16 of them are filled for one post.
        ("Descriptor", size_of::<Descriptor<'_>>()),
        // What a wait looks at, besides the line of the peer's record: half a cache line.
        ("NotifyWord", size_of::<NotifyWord>()),
        ("Notify", channel::NOTIFY_BYTES),
        // What the owner of a queue finds around its state: the rest of two or three cache lines.
        ("Owned", size_of::<Owned<State>>() - size_of::<State>()),
    ];
    let pinned = [
        ("Place", 32),
        ("Remote", 24),
        ("Slice", 24),
        ("RemoteSlice", 24),
        ("Work", 120),
        ("Task", 112),
        ("Descriptor", 56),
        ("NotifyWord", 16),
        ("Notify", 32),
        ("Owned", 152),
    ];
    assert_eq!(found, pinned);
}
