//! Copies the tables of the ABI with one type changed to another one of the same size, and passes
//! this crate off as the one they come from: what a vendor gets who edits a checkout.

use std::path::Path;
use std::{env, fs};

const TABLES: &str = "../../../abi/src/tables.rs";
const FROM: &str = "pub numa_node: i32,";
const TO: &str = "pub numa_node: u32,";

fn main() {
    let tables = fs::read_to_string(TABLES).expect("the tables of the ABI");
    assert_eq!(tables.matches(FROM).count(), 1, "`{FROM}` in {TABLES}");
    // Comments about the file as a whole cannot stand in a file that is included.
    let edited: String = tables
        .replace(FROM, TO)
        .lines()
        .filter(|line| !line.starts_with("//!"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("tables.rs"), edited).expect("writing the copy");
    println!("cargo::rerun-if-changed={TABLES}");
    println!("cargo::rustc-env=CARGO_PKG_NAME=hcomm-transport-abi");
}
