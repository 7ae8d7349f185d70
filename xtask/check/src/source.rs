//! The names in `transports/abi/src/tables.rs`, read from its text. The build script reads them
//! to ask the compiler for numbers, the header generator to name things in C.

/// What the tables' source declares.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// The module's own documentation, without the `//!`.
    pub(crate) docs: Vec<String>,
    /// Integer constants, in order.
    pub(crate) constants: Vec<Constant>,
    /// `repr(C)` structs, in order.
    pub(crate) structs: Vec<Struct>,
}

/// `pub const NAME: ty = expression;`
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Constant {
    pub(crate) name: String,
    pub(crate) ty: String,
    pub(crate) expression: String,
}

/// `pub struct Name { pub field: …, }`
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Struct {
    pub(crate) name: String,
    /// Documentation, without the `///`.
    pub(crate) docs: Vec<String>,
    /// Names of the public fields. A struct without any is a handle that only the plugin knows.
    pub(crate) fields: Vec<String>,
}

impl Struct {
    pub(crate) fn is_opaque(&self) -> bool {
        self.fields.is_empty()
    }
}

/// Integer types that constants of the ABI have.
const INTEGERS: [&str; 5] = ["u16", "u32", "u64", "i32", "i64"];

/// Reads the declarations. The source is formatted by rustfmt, so that a declaration begins at the
/// first column and a field at the fifth.
pub(crate) fn read(text: &str) -> Result<Source, String> {
    let mut source = Source {
        docs: Vec::new(),
        constants: Vec::new(),
        structs: Vec::new(),
    };
    let mut docs = Vec::new();
    let mut repr_c = false;
    let mut conditional = false;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(doc) = line.strip_prefix("//!") {
            source
                .docs
                .push(doc.strip_prefix(' ').unwrap_or(doc).into());
        } else if let Some(doc) = line.strip_prefix("///") {
            docs.push(doc.strip_prefix(' ').unwrap_or(doc).into());
        } else if line.starts_with("#[") {
            repr_c |= line.starts_with("#[repr(C");
            conditional |= line.starts_with("#[cfg(");
        } else {
            if let Some(rest) = line.strip_prefix("pub const ") {
                source.constants.extend(constant(rest)?);
            } else if let Some(rest) = line.strip_prefix("pub struct ") {
                let found = record(rest, std::mem::take(&mut docs), &mut lines)?;
                if conditional {
                    // only one door has it: not part of the tables
                } else if repr_c {
                    source.structs.push(found);
                } else {
                    return Err(format!("struct {} is not repr(C)", found.name));
                }
            }
            docs.clear();
            repr_c = false;
            conditional = false;
        }
    }
    Ok(source)
}

fn constant(rest: &str) -> Result<Option<Constant>, String> {
    let parts = rest
        .split_once(": ")
        .and_then(|(name, rest)| Some((name, rest.split_once(" = ")?)));
    let Some((name, (ty, expression))) = parts else {
        return Err(format!("constant not understood: {rest}"));
    };
    if !INTEGERS.contains(&ty) {
        return Ok(None); // strings are for Rust loaders only
    }
    let Some(expression) = expression.strip_suffix(';') else {
        return Err(format!("constant {name} does not end on its line"));
    };
    Ok(Some(Constant {
        name: name.into(),
        ty: ty.into(),
        expression: expression.into(),
    }))
}

fn record<'a>(
    rest: &str,
    docs: Vec<String>,
    lines: &mut impl Iterator<Item = &'a str>,
) -> Result<Struct, String> {
    let Some(name) = rest.strip_suffix(" {") else {
        return Err(format!("struct not understood: {rest}"));
    };
    let mut fields = Vec::new();
    for line in lines {
        if line == "}" {
            return Ok(Struct {
                name: name.into(),
                docs,
                fields,
            });
        }
        if let Some((field, _)) = line
            .strip_prefix("    pub ")
            .and_then(|field| field.split_once(':'))
        {
            fields.push(field.into());
        }
    }
    Err(format!("struct {name} has no end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
//! Rules.
//!
//! * One.

/// Full.
pub const STATUS_FULL: i32 = -3;
/// Text.
pub const ENTRY: &[u8] = b\"x\\0\";

/// A handle.
#[repr(C)]
pub struct Device {
    _private: [u8; 0],
}

/// A table.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct TableV1 {
    /// First.
    pub first: u32,
    /// A call.
    pub call: Option<
        unsafe extern \"C\" fn(
            second: u32,
        ),
    >,
}

#[cfg(feature = \"rust-door\")]
#[repr(C)]
pub struct Door {
    pub third: u32,
}
";

    #[test]
    fn reads_constants_structs_and_docs() {
        let source = read(SAMPLE).unwrap();
        assert_eq!(source.docs, ["Rules.", "", "* One."]);
        assert_eq!(
            source.constants,
            [Constant {
                name: "STATUS_FULL".into(),
                ty: "i32".into(),
                expression: "-3".into()
            }]
        );
        let [device, table] = &source.structs[..] else {
            panic!("{:?}", source.structs);
        };
        assert!(device.is_opaque());
        assert_eq!(device.docs, ["A handle."]);
        assert_eq!(table.fields, ["first", "call"]);
    }

    #[test]
    fn refuses_a_table_that_is_not_repr_c() {
        let broken = SAMPLE.replace("#[repr(C, align(64))]\n", "");
        assert!(read(&broken).unwrap_err().contains("TableV1"));
    }

    #[test]
    fn refuses_a_constant_over_two_lines() {
        let broken = SAMPLE.replace("i32 = -3;", "i32 = \n    -3;");
        assert!(read(&broken).unwrap_err().contains("STATUS_FULL"));
    }
}
