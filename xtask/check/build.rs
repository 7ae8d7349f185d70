//! Asks the compiler for the layout of every table: writes a list with an expression for each
//! size, offset and value, from the names in the tables' source. So no list is kept by hand, and
//! a new field is checked from its first day.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

#[allow(dead_code, reason = "the header generator uses the rest")]
#[path = "src/source.rs"]
mod source;

const TABLES: &str = "../../transports/abi/src/tables.rs";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed={TABLES}");
    println!("cargo::rerun-if-changed=src/source.rs");
    println!("cargo::rerun-if-changed=build.rs");
    let text = fs::read_to_string(TABLES).map_err(|error| format!("{TABLES}: {error}"))?;
    let source = source::read(&text).map_err(|error| format!("{TABLES}: {error}"))?;
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("layout.rs"), layout(&source)?)?;
    Ok(())
}

/// The body of a function that returns the tables' numbers.
fn layout(source: &source::Source) -> Result<String, std::fmt::Error> {
    let mut out = String::from("{ use hcomm_transport_abi as abi; Layout { constants: vec![\n");
    for constant in &source.constants {
        let name = &constant.name;
        writeln!(out, "({name:?}, i128::from(abi::{name})),")?;
    }
    out.push_str("], tables: vec![\n");
    for table in source.structs.iter().filter(|table| !table.is_opaque()) {
        let name = &table.name;
        writeln!(
            out,
            "Table {{ name: {name:?}, size: size_of::<abi::{name}>(), \
             align: align_of::<abi::{name}>(), fields: vec!["
        )?;
        for field in &table.fields {
            writeln!(
                out,
                "Field {{ name: {field:?}, offset: std::mem::offset_of!(abi::{name}, {field}), \
                 size: size_of_field(|table: &abi::{name}| &table.{field}) }},"
            )?;
        }
        out.push_str("] },\n");
    }
    out.push_str("] } }\n");
    Ok(out)
}
