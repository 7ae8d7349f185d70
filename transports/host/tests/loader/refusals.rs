//! Each reason to refuse, with the values in it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use hcomm_transport::Transports;

use crate::child;
use crate::folder::{Folder, NOT_A_LIBRARY, candidate, compile, options, plugin, refusal};

/// What is said of the faulty plugin when it is wrong in one way.
fn faulty(way: &str) -> Vec<String> {
    let folder = Folder::new();
    folder.copy("faulty", "faulty");
    child::load(&folder, "faulty", &[("HCOMM_FAULTY", way)])
}

/// It is refused, and the reason says all of these.
fn assert_refused(way: &str, parts: &[&str]) {
    let lines = faulty(way);
    let [line] = &lines[..] else {
        panic!("{way}: {lines:?}");
    };
    assert!(line.contains("not used: "), "{way}: {line}");
    for part in parts {
        assert!(line.contains(part), "{way}: no `{part}` in {line}");
    }
}

#[test]
fn a_table_that_does_not_fit_says_what_was_found_and_expected() {
    assert_refused("null_table", &["hcomm_transport_v1: the table is null"]);
    assert_refused(
        "magic",
        &["0x0050546d6d6f6369; expected 0x0050546d6d6f6368"],
    );
    assert_refused("major", &["major version 1; expected 0"]);
    let expected = size_of::<hcomm_transport_abi::TransportV1>();
    assert_refused("short_table", &[&format!("16 bytes; expected {expected}")]);
}

#[test]
fn a_hole_in_the_table_is_named() {
    assert_refused("null_entry", &["mandatory entry `create_channel`"]);
    assert_refused("null_vendor", &["mandatory entry `vendor`"]);
    assert_refused("no_protocol", &["no protocol known here: bits 0x80000000"]);
}

#[test]
fn a_name_that_is_not_the_file_s_is_refused() {
    assert_refused("name", &["named `flawless`; the file name says `faulty`"]);
}

#[test]
fn init_has_different_answers_and_its_own_words() {
    assert_refused(
        "init_missing_library",
        &["init: vendor library missing: libvendor.so.1 is not installed"],
    );
    assert_refused(
        "init_missing_symbol",
        &[
            "init: vendor library lacks a function: ",
            "vendor_open",
            "2.3",
        ],
    );
    assert_refused("init_no_device", &["init: no device: /dev/vendor0"]);
    assert_refused("init_status", &["init: unknown status -777: a status of"]);
    assert_refused(
        "init_panic",
        &["init: the plugin broke a promise: panic in the plugin: asked to panic in init"],
    );
}

#[test]
fn a_plugin_without_optional_calls_is_used() {
    let lines = faulty("null_optional");
    assert!(lines[0].ends_with(": used"), "{lines:?}");
    assert!(
        lines[1].contains("opens, does not allocate: unsupported"),
        "{lines:?}"
    );
}

#[test]
fn a_promise_without_its_call_answers_unsupported() {
    let lines = faulty("false_capability");
    assert!(lines[0].ends_with(": used"), "{lines:?}");
    assert!(
        lines[1].contains("opens, does not allocate: unsupported"),
        "{lines:?}"
    );
}

#[test]
fn a_wrong_table_of_fast_calls_is_refused_when_the_device_opens() {
    let lines = faulty("fast_magic");
    assert!(lines[0].ends_with(": used"), "{lines:?}");
    assert!(
        lines[1].contains("fast calls: the table begins with"),
        "{lines:?}"
    );
    let lines = faulty("fast_null_entry");
    assert!(lines[1].contains("fast call `post` is null"), "{lines:?}");
}

#[test]
fn nothing_wrong_is_used_and_nothing_asked_is_no_device() {
    assert_eq!(faulty("nothing")[1], "opens, allocates 4096 bytes");
    assert_refused("no such way", &["no such way is not a way", "null_table"]);
    let folder = Folder::new();
    folder.copy("faulty", "faulty");
    let lines = child::load(&folder, "faulty", &[]);
    assert!(lines[0].contains("init: no device: "), "{lines:?}");
}

#[test]
fn a_plugin_built_against_edited_tables_is_refused_with_the_place() {
    let folder = Folder::new();
    let file = folder.copy("edited", "edited");
    let transports = Transports::load(&options(&[&folder])).unwrap();
    let why = refusal(candidate(&transports, &file));
    assert_eq!(
        why,
        "Rust door: built against other types: \
         transport_v1.query_device.param_1.numa_node: type u32; expected i32"
    );
}

#[test]
fn what_is_no_library_is_refused_in_the_loader_s_words() {
    let folder = Folder::new();
    let text = folder.write("text", NOT_A_LIBRARY);
    let empty = folder.write("empty", b"");
    let whole = fs::read(folder.copy("loop", "loop")).unwrap();
    let cut = folder.write("cut", &whole[..512]);
    let transports = Transports::load(&options(&[&folder])).unwrap();
    for (file, words) in [
        (&text, "invalid ELF header"),
        (&empty, "file too short"),
        (&cut, "dlopen: "),
    ] {
        let why = refusal(candidate(&transports, file));
        assert!(why.starts_with("dlopen: ") && why.contains(words), "{why}");
    }
}

#[test]
fn what_a_library_lacks_is_named() {
    let folder = Folder::new();
    let no_entry = folder.compile("no_entry", "int unrelated(void) { return 1; }\n", &[]);
    let undefined = folder.compile(
        "undefined",
        "int vendor_open(void);\n__attribute__((visibility(\"default\"))) int f(void) { return vendor_open(); }\n",
        &[],
    );
    // Linked against a library that is gone when it is loaded.
    let vendor = folder.path().join("libvendor_of_this_test.so");
    compile(
        &folder.path().join("vendor.c"),
        "__attribute__((visibility(\"default\"))) int vendor_open(void) { return 1; }\n",
        &vendor,
        &["-Wl,-soname,libvendor_of_this_test.so"],
    );
    let missing = folder.compile(
        "missing",
        "int vendor_open(void);\n__attribute__((visibility(\"default\"))) int f(void) { return vendor_open(); }\n",
        &[vendor.to_str().unwrap()],
    );
    fs::remove_file(&vendor).unwrap();

    let transports = Transports::load(&options(&[&folder])).unwrap();
    for (file, words) in [
        (&no_entry, "exports no function `hcomm_transport_v1`"),
        (&undefined, "undefined symbol: vendor_open"),
        (&missing, "libvendor_of_this_test.so: cannot open"),
    ] {
        let why = refusal(candidate(&transports, file));
        assert!(why.contains(words), "no `{words}` in {why}");
    }
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = Folder::new();
    let directory = folder.file("directory");
    fs::create_dir(&directory).unwrap();
    let dangling = folder.file("dangling");
    symlink("/nowhere/at/all.so", &dangling).unwrap();
    let pipe = folder.file("device");
    symlink("/dev/null", &pipe).unwrap();
    let transports = Transports::load(&options(&[&folder])).unwrap();
    for (file, words) in [
        (&directory, "is not a regular file but a folder"),
        (&dangling, "No such file"),
        (&pipe, "is not a regular file but a device"),
    ] {
        let why = refusal(candidate(&transports, file));
        assert!(
            why.starts_with("not trusted: ") && why.contains(words),
            "{why}"
        );
    }
}

#[test]
fn what_everybody_may_write_is_refused_until_it_is_repaired() {
    let mode =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let folder = Folder::new();
    let file = folder.copy("loop", "loop");
    let outcome = || {
        let transports = Transports::load(&options(&[&folder])).unwrap();
        candidate(&transports, &file).clone()
    };

    mode(&file, 0o646);
    let why = outcome();
    assert!(
        refusal(&why).contains("(mode 0646); take that away"),
        "{why}"
    );

    mode(&file, 0o644);
    mode(folder.path(), 0o757);
    let why = outcome();
    assert!(refusal(&why).contains("(mode 0757)"), "{why}");
    assert!(refusal(&why).contains(folder.path().to_str().unwrap()));

    // Sticky: others may add files, not replace this one.
    mode(folder.path(), 0o1757);
    assert_eq!(plugin(&outcome()).name(), "loop");
}

#[test]
fn a_link_out_of_a_trusted_folder_is_followed_to_where_the_file_lies() {
    let (folder, open) = (Folder::new(), Folder::new());
    let real = open.copy("loop", "loop");
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o777)).unwrap();
    symlink(&real, folder.file("loop")).unwrap();
    let transports = Transports::load(&options(&[&folder])).unwrap();
    let why = refusal(candidate(&transports, &folder.file("loop")));
    assert!(why.contains(open.path().to_str().unwrap()), "{why}");
}
