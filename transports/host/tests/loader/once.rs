//! A plugin is initialised once in a process, whoever loads it and how often.

use std::sync::Barrier;
use std::thread;

use hcomm_transport::{LoadOptions, Plugin, Transports};

use crate::folder::{Folder, options};

/// A plugin whose init fails when it is called again.
const INIT_ONCE: &str = r#"
#define hcomm_transport_v1 mini_transport_v1
#include "mini.c"
#undef hcomm_transport_v1

static int32_t init_once(const hcomm_host_v1_t *host) {
    static int calls;
    if (__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) > 0)
        return fail(HCOMM_STATUS_INTERNAL, "init was called again");
    return init(host);
}

static hcomm_transport_v1_t once;
__attribute__((constructor)) static void name_it(void) {
    once = *mini_transport_v1();
    once.name = "once";
    once.init = init_once;
}
HCOMM_EXPORT const hcomm_transport_v1_t *hcomm_transport_v1(void);
const hcomm_transport_v1_t *hcomm_transport_v1(void) { return &once; }
"#;

fn plugin(options: &LoadOptions, name: &str) -> &'static Plugin {
    let transports = Transports::load(options).unwrap();
    transports
        .plugin(name)
        .unwrap_or_else(|| panic!("{transports:?}"))
}

#[test]
fn eight_threads_that_load_at_once_get_one_plugin() {
    let folder = Folder::new();
    folder.compile("once", INIT_ONCE, &[]);
    let options = options(&[&folder]);
    let start = Barrier::new(8);
    let plugins: Vec<&'static Plugin> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    plugin(&options, "once")
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(plugins.iter().all(|&other| std::ptr::eq(other, plugins[0])));
}

#[test]
fn loading_again_gives_the_same_plugin() {
    let folder = Folder::new();
    folder.copy("loop", "loop");
    let options = options(&[&folder]);
    assert!(std::ptr::eq(
        plugin(&options, "loop"),
        plugin(&options, "loop")
    ));
}

#[test]
fn copies_are_plugins_of_their_own() {
    let (one, two) = (Folder::new(), Folder::new());
    one.copy("loop", "loop");
    two.copy("loop", "loop");
    assert!(!std::ptr::eq(
        plugin(&options(&[&one]), "loop"),
        plugin(&options(&[&two]), "loop")
    ));
}

#[test]
fn what_init_said_is_said_again() {
    // Refused by init: not asked a second time.
    let folder = Folder::new();
    let source = INIT_ONCE
        .replace("> 0)", ">= 0)")
        .replace("again", "at all");
    folder.compile("once", &source, &[]);
    let options = options(&[&folder]);
    let lines = || Transports::load(&options).unwrap().candidates()[0].to_string();
    let first = lines();
    assert!(first.contains("init was called at all"), "{first}");
    assert_eq!(lines(), first);
}
