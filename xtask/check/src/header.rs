//! The C header of the plugin ABI: made by cbindgen from the tables' source, then given C's names
//! in its comments and typed values in its macros.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use crate::layout;
use crate::names::{c_constant, c_type};
use crate::source::{self, Constant, Source};

const TABLES: &str = "transports/abi/src/tables.rs";
const INCLUDE: &str = "transports/abi/include";
const HEADER: &str = "hcomm_transport.h";
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// Writes the header.
pub(crate) fn write(root: &Path) -> Result<PathBuf, String> {
    let text = generate(root)?;
    let path = root.join(INCLUDE).join(HEADER);
    fs::create_dir_all(root.join(INCLUDE))
        .and_then(|()| fs::write(&path, text))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// Compares the committed header with what the tables say now, and its layout with the one that
/// the Rust compiler made.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let path = root.join(INCLUDE).join(HEADER);
    let committed =
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    if let Some(difference) = first_difference(&committed, &generate(root)?) {
        return Err(format!(
            "{INCLUDE}/{HEADER} is not what {TABLES} says; {difference}\n\
             run `cargo xtask abi` and commit the header together with the tables"
        ));
    }
    let assertions = layout::assertions(&layout::of_tables());
    for (compiler, language, standard) in [("cc", "c", "-std=c11"), ("c++", "c++", "-std=c++17")] {
        compile(root, compiler, language, standard, &assertions)?;
    }
    Ok(())
}

/// The text of the header.
fn generate(root: &Path) -> Result<String, String> {
    let path = root.join(TABLES);
    let text = fs::read_to_string(&path).map_err(|error| format!("{TABLES}: {error}"))?;
    let source = source::read(&text).map_err(|error| format!("{TABLES}: {error}"))?;
    let bindings = cbindgen::Builder::new()
        .with_config(config(&source))
        .with_src(&path)
        .generate()
        .map_err(|error| format!("{TABLES}: {error}"))?;
    let mut body = Vec::new();
    bindings.write(&mut body);
    let body = String::from_utf8(body).map_err(|error| format!("cbindgen: {error}"))?;
    Ok(assemble(&source, &body))
}

fn config(source: &Source) -> cbindgen::Config {
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Both,
        no_includes: true,
        usize_is_size_t: true,
        line_length: 100,
        tab_width: 4,
        documentation_style: cbindgen::DocumentationStyle::C99,
        ..cbindgen::Config::default()
    };
    config.layout.aligned_n = Some("HCOMM_ALIGNED".into());
    for table in &source.structs {
        let export = &mut config.export;
        export
            .rename
            .insert(table.name.clone(), c_type(&table.name));
        if table.is_opaque() {
            export.exclude.push(table.name.clone());
        } else {
            export.include.push(table.name.clone());
        }
    }
    for constant in &source.constants {
        config
            .export
            .rename
            .insert(constant.name.clone(), c_constant(&constant.name));
    }
    config
}

/// Puts the header together: preface, handles, cbindgen's macros and structs, entry.
fn assemble(source: &Source, body: &str) -> String {
    let mut out = String::from(
        "// The plugin ABI of hcomm, for transports written in C or C++.\n\
         //\n\
         // Generated from transports/abi/src/tables.rs by `cargo xtask abi`; do not edit.\n\
         //\n\
         // A transport is a shared library named libhcomm_transport_<name>.so that exports one\n\
         // function, hcomm_transport_v1 (at the end of this file). To build one:\n\
         //\n\
         //     cc -std=c11 -O2 -shared -fPIC -fvisibility=hidden -I <folder of this file>\n\
         //        -o libhcomm_transport_<name>.so <name>.c        (one line)\n\
         //\n\
         // Put it into a folder that HCOMM_TRANSPORT_PATH names (not world-writable) and look at\n\
         // it with `hcomm transports`.\n\
         //\n",
    );
    for line in &source.docs {
        out.push_str(format!("// {line}").trim_end());
        out.push('\n');
    }
    out.push_str(
        "\n#ifndef HCOMM_TRANSPORT_H\n#define HCOMM_TRANSPORT_H\n\n\
         #include <stddef.h>\n#include <stdint.h>\n\n\
         #if defined(_MSC_VER)\n#define HCOMM_ALIGNED(bytes) __declspec(align(bytes))\n\
         #else\n#define HCOMM_ALIGNED(bytes) __attribute__((aligned(bytes)))\n#endif\n\n\
         // Puts hcomm_transport_v1 among the symbols of a library built with -fvisibility=hidden.\n\
         #if defined(_MSC_VER)\n#define HCOMM_EXPORT __declspec(dllexport)\n\
         #else\n#define HCOMM_EXPORT __attribute__((visibility(\"default\")))\n#endif\n\n",
    );
    for handle in source.structs.iter().filter(|table| table.is_opaque()) {
        let name = c_type(&handle.name);
        for line in &handle.docs {
            out.push_str(format!("// {line}").trim_end());
            out.push('\n');
        }
        out.push_str(&format!("typedef struct {name} {name};\n\n"));
    }
    for line in body.trim().lines() {
        match line
            .strip_prefix("#define ")
            .and_then(|define| define.split_once(' '))
        {
            Some((name, _)) => out.push_str(&define(source, name, line)),
            None => out.push_str(line.trim_end()),
        }
        out.push('\n');
    }
    out.push_str(
        "\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n\
         // The door: every transport exports this function. The table it returns stays valid for\n\
         // ever.\n\
         HCOMM_EXPORT const hcomm_transport_v1_t *hcomm_transport_v1(void);\n\n\
         #ifdef __cplusplus\n}\n#endif\n\n#endif // HCOMM_TRANSPORT_H\n",
    );
    in_c_words(source, &out)
}

/// A macro whose value has the type of the Rust constant, and that `#if` still understands.
fn define(source: &Source, name: &str, line: &str) -> String {
    let constant = source
        .constants
        .iter()
        .find(|constant| c_constant(&constant.name) == name);
    constant.map_or_else(
        || line.into(),
        |constant| format!("#define {name} {}", c_value(constant)),
    )
}

fn c_value(constant: &Constant) -> String {
    let expression = constant.expression.replace('_', "");
    let bits = &constant.ty[1..];
    match (constant.ty.as_bytes()[0], expression.split_once(" << ")) {
        (b'u', Some((one, shift))) => format!("(UINT{bits}_C({one}) << {shift})"),
        (b'u', None) => format!("UINT{bits}_C({expression})"),
        _ if expression.starts_with('-') => format!("({expression})"),
        _ => expression,
    }
}

/// Replaces Rust's names in comments by C's.
fn in_c_words(source: &Source, text: &str) -> String {
    let mut text = text.to_owned();
    for table in &source.structs {
        let (rust, c) = (&table.name, c_type(&table.name));
        text = text.replace(&format!("[`{rust}`]"), &format!("`{c}`"));
        // `Table::field` becomes `table.field`; the closing bracket goes below.
        text = text.replace(&format!("[`{rust}::"), &format!("[`{c}."));
    }
    for constant in &source.constants {
        let (rust, c) = (&constant.name, c_constant(&constant.name));
        text = text.replace(&format!("[`{rust}`]"), &format!("`{c}`"));
    }
    for family in ["CAP", "FLAG", "LOG", "OP", "STATUS"] {
        text = text.replace(&format!("`{family}_…`"), &format!("`HCOMM_{family}_…`"));
    }
    text.replace("[`", "`").replace("`]", "`")
}

/// Where two texts part, in words.
fn first_difference(committed: &str, generated: &str) -> Option<String> {
    if committed == generated {
        return None;
    }
    let (mut left, mut right) = (committed.lines(), generated.lines());
    let mut number = 0;
    loop {
        number += 1;
        let (have, want) = (left.next(), right.next());
        if have.is_none() && want.is_none() {
            return Some("they differ in line ends only".into());
        }
        if have != want {
            let show = |line: Option<&str>| line.unwrap_or("(end of file)").to_owned();
            return Some(format!(
                "first difference in line {number}:\n  committed: {}\n  generated: {}",
                show(have),
                show(want)
            ));
        }
    }
}

/// Compiles `text` against the committed header, without output.
fn compile(
    root: &Path,
    compiler: &str,
    language: &str,
    standard: &str,
    text: &str,
) -> Result<(), String> {
    let run = || -> io::Result<std::process::Output> {
        let mut child = Command::new(compiler)
            .args(["-x", language, standard, "-fsyntax-only"])
            .args(WARNINGS)
            .arg("-I")
            .arg(root.join(INCLUDE))
            .arg("-")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let written = child
            .stdin
            .take()
            .map_or(Ok(()), |mut stdin| stdin.write_all(text.as_bytes()));
        let output = child.wait_with_output()?;
        // A compiler that gave up early has said why; only then the broken pipe does not matter.
        if output.status.success() {
            written?;
        }
        Ok(output)
    };
    let output = run().map_err(|error| {
        format!("{compiler}: {error}; it comes with the package build-essential")
    })?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!(
            "{INCLUDE}/{HEADER} does not compile {standard} with the layout that Rust has:\n{}",
            String::from_utf8_lossy(&output.stderr)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constant(ty: &str, expression: &str) -> Constant {
        Constant {
            name: "X".into(),
            ty: ty.into(),
            expression: expression.into(),
        }
    }

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn values_are_typed_and_safe_in_expressions() {
        assert_eq!(c_value(&constant("u64", "1 << 15")), "(UINT64_C(1) << 15)");
        assert_eq!(
            c_value(&constant("u64", "0x0050_546d")),
            "UINT64_C(0x0050546d)"
        );
        assert_eq!(c_value(&constant("i32", "-900")), "(-900)");
        assert_eq!(c_value(&constant("i32", "0")), "0");
    }

    #[test]
    fn a_difference_names_its_line() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        let text = first_difference("a\nb\n", "a\nc\n").unwrap();
        assert!(
            text.contains("line 2") && text.contains("committed: b"),
            "{text}"
        );
        let text = first_difference("a\n", "a\nc\n").unwrap();
        assert!(text.contains("(end of file)"), "{text}");
    }

    #[test]
    fn no_rust_name_is_left_in_the_header() {
        let text = generate(&root()).unwrap();
        assert!(!text.contains("[`") && !text.contains("::"), "{text}");
        assert!(text.contains("\n#define HCOMM_CAP_MAP (UINT64_C(1) << 8)\n"));
        assert!(text.contains("\ntypedef struct hcomm_device_t hcomm_device_t;\n"));
    }

    #[test]
    fn a_wrong_layout_does_not_compile() {
        let mut layout = layout::of_tables();
        let field = &mut layout.tables[0].fields[0];
        field.offset += 8;
        let text = layout::assertions(&layout);
        let refused = compile(&root(), "cc", "c", "-std=c11", &text).unwrap_err();
        assert!(refused.contains("offset of"), "{refused}");
    }

    #[test]
    fn a_wrong_value_does_not_compile() {
        let mut layout = layout::of_tables();
        layout.constants[0].1 += 1;
        let text = layout::assertions(&layout);
        let refused = compile(&root(), "cc", "c", "-std=c11", &text).unwrap_err();
        assert!(refused.contains("value of"), "{refused}");
    }
}
