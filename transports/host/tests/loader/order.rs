//! Which candidate of a name is used, and what is said of the others.

use std::fs;
use std::os::unix::fs::symlink;

use hcomm_transport::{Selection, Source, Transports};
use hcomm_types::ErrorKind;

use crate::child;
use crate::folder::{Folder, NOT_A_LIBRARY, built_plugin, candidate, options, plugin, refusal};

fn only(names: &[&str]) -> Selection {
    Selection::Only(names.iter().map(ToString::to_string).collect())
}

#[test]
fn the_first_folder_wins_and_the_others_are_shadowed() {
    let (first, second) = (Folder::new(), Folder::new());
    let (used, shadowed) = (first.copy("loop", "loop"), second.copy("loop", "loop"));
    let transports = Transports::load(&options(&[&first, &second])).unwrap();
    assert_eq!(
        plugin(candidate(&transports, &used)).source(),
        &Source::SharedObject(used.clone())
    );
    assert_eq!(
        refusal(candidate(&transports, &shadowed)),
        format!("shadowed by {}", used.display())
    );
    // The one of the build is found as well, without being asked for.
    assert_eq!(
        refusal(candidate(&transports, &built_plugin("loop"))),
        format!("shadowed by {}", used.display())
    );
    assert_eq!(
        transports.plugin("loop").map(|plugin| plugin.source()),
        Some(&Source::SharedObject(used))
    );
}

#[test]
fn without_any_setting_the_one_of_the_build_is_used() {
    let transports = Transports::load(&options(&[])).unwrap();
    let found = plugin(candidate(&transports, &built_plugin("loop")));
    assert_eq!((found.name(), found.vendor()), ("loop", "hcomm"));
    assert!(transports.used().any(|used| std::ptr::eq(used, found)));
}

#[test]
fn a_folder_is_read_in_the_order_of_names() {
    let folder = Folder::new();
    for name in ["zebra", "ant", "mole"] {
        folder.write(name, b"x");
    }
    let transports = Transports::load(&options(&[&folder])).unwrap();
    let names: Vec<_> = transports
        .candidates()
        .iter()
        .map(|candidate| candidate.name.as_str())
        .take(3)
        .collect();
    assert_eq!(names, ["ant", "mole", "zebra"]);
}

#[test]
fn a_refused_file_leaves_the_name_to_the_next_one() {
    let (first, second) = (Folder::new(), Folder::new());
    let refused = first.write("loop", NOT_A_LIBRARY);
    let used = second.copy("loop", "loop");
    let transports = Transports::load(&options(&[&first, &second])).unwrap();
    assert!(refusal(candidate(&transports, &refused)).starts_with("dlopen: "));
    assert_eq!(plugin(candidate(&transports, &used)).name(), "loop");
}

#[test]
fn a_file_that_is_reached_twice_is_one_candidate() {
    let (first, second) = (Folder::new(), Folder::new());
    let file = first.copy("loop", "loop");
    symlink(&file, second.file("loop")).unwrap();
    let third = Folder::new();
    fs::hard_link(&file, third.file("loop")).unwrap();
    let transports = Transports::load(&options(&[&first, &second, &third, &first])).unwrap();
    // The build's own folders are searched as well and hold files of that name, too.
    let places = [&first, &second, &third].map(|folder| Source::SharedObject(folder.file("loop")));
    let mine: Vec<_> = transports
        .candidates()
        .iter()
        .filter(|candidate| places.contains(&candidate.source))
        .collect();
    assert_eq!(mine.len(), 1, "{mine:?}");
}

#[test]
fn a_found_file_wins_over_the_linked_table() {
    let folder = Folder::new();
    let file = folder.copy("loop", "loop");
    let mut options = options(&[&folder]);
    options.linked = vec![hcomm_transport_loop::transport_v1()];
    let transports = Transports::load(&options).unwrap();
    assert_eq!(plugin(candidate(&transports, &file)).name(), "loop");
    let linked = transports.candidates().last().unwrap();
    assert_eq!(linked.source, Source::Linked);
    assert_eq!(refusal(linked), format!("{} was found", file.display()));
}

#[test]
fn the_linked_table_is_used_where_nothing_was_found() {
    let lines = child::load_linked(&Folder::new());
    assert_eq!(
        lines,
        ["loop (linked in): used", "opens, allocates 4096 bytes"]
    );
}

#[test]
fn the_linked_table_stands_in_for_a_refused_file_and_both_say_so() {
    let folder = Folder::new();
    let file = folder.write("loop", NOT_A_LIBRARY);
    let lines = child::load_linked(&folder);
    let [refused, linked, device] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(refused.contains("dlopen: "), "{refused}");
    assert!(
        refused.ends_with("; the linked one is used instead"),
        "{refused}"
    );
    assert_eq!(
        *linked,
        format!(
            "loop (linked in): used; stands in for {}, which was refused",
            file.display()
        )
    );
    assert_eq!(device, "opens, allocates 4096 bytes");
}

#[test]
fn a_selection_says_which_are_looked_at() {
    let folder = Folder::new();
    let (file, other) = (folder.copy("loop", "loop"), folder.write("other", b"x"));
    let mut options = options(&[&folder]);
    options.selection = only(&["loop"]);
    let transports = Transports::load(&options).unwrap();
    assert_eq!(transports.used().count(), 1);
    assert_eq!(refusal(candidate(&transports, &other)), "not among `loop`");

    options.selection = Selection::Except(vec!["loop".into()]);
    let transports = Transports::load(&options).unwrap();
    assert!(transports.plugin("loop").is_none());
    assert_eq!(refusal(candidate(&transports, &file)), "not among `^loop`");
    assert!(refusal(candidate(&transports, &other)).starts_with("dlopen: "));
}

#[test]
fn one_that_was_asked_for_and_does_not_work_is_an_error_with_all_reasons() {
    let (first, second) = (Folder::new(), Folder::new());
    let text = first.write("roce", NOT_A_LIBRARY);
    let empty = second.write("roce", b"");
    let mut options = options(&[&first, &second]);
    options.selection = only(&["loop", "roce"]);
    let error = Transports::load(&options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Plugin);
    let words = error.to_string();
    for part in [
        "transport `roce` was asked for by name",
        text.to_str().unwrap(),
        "invalid ELF header",
        empty.to_str().unwrap(),
        "file too short",
    ] {
        assert!(words.contains(part), "no `{part}` in {words}");
    }
}

#[test]
fn one_that_was_asked_for_and_is_not_there_is_an_error_with_the_folders() {
    let folder = Folder::new();
    let gone = folder.path().join("gone");
    let mut options = options(&[&folder]);
    options.path.push(gone.clone());
    options.selection = only(&["roce"]);
    let words = Transports::load(&options).unwrap_err().to_string();
    for part in [
        "no libhcomm_transport_roce.so in [",
        folder.path().to_str().unwrap(),
        &format!("{} (No such file", gone.display()),
        "HCOMM_TRANSPORT_PATH",
    ] {
        assert!(words.contains(part), "no `{part}` in {words}");
    }
}

#[test]
fn the_environment_says_folders_and_selection() {
    let folder = Folder::new();
    let file = folder.copy("loop", "loop");
    let load = |selection| child::load(&folder, "loop", &[("HCOMM_TRANSPORTS", selection)]);
    let used = format!("loop ({}): used", file.display());
    assert_eq!(load("loop")[0], used);
    assert_eq!(load("")[0], used);
    assert!(load("^loop")[0].ends_with("not used: not among `^loop`"));
    let words = load("loop,roce").remove(0);
    assert!(words.contains("transport `roce` was asked for"), "{words}");
    let words = load("loop,").remove(0);
    assert!(
        words.contains("HCOMM_TRANSPORTS: `loop,` has an empty name"),
        "{words}"
    );
}

#[test]
fn a_plugin_in_rust_has_both_doors() {
    // SAFETY: our own library, whose constructors do nothing.
    let library = unsafe { libloading::Library::new(built_plugin("loop")) }.unwrap();
    for symbol in [
        "hcomm_transport_v1",
        "_1as_0lib_1header_0root_bmodule_bloader",
    ] {
        // SAFETY: only whether it is there is asked; it is not used.
        let found = unsafe { library.get::<*const ()>(symbol) };
        assert!(found.is_ok(), "{symbol}");
    }
}
