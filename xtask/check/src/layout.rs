//! The layout of the tables as the Rust compiler made it, and a C file that asserts it.

use std::fmt::Write as _;

use crate::names::{c_constant, c_field, c_type};

/// Numbers of all tables.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Name and value.
    pub(crate) constants: Vec<(&'static str, i128)>,
    /// Every table that is not opaque.
    pub(crate) tables: Vec<Table>,
}

/// Numbers of one table.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    pub(crate) align: usize,
    pub(crate) fields: Vec<Field>,
}

/// Numbers of one field.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// The layout of this build's tables.
pub(crate) fn of_tables() -> Layout {
    include!(concat!(env!("OUT_DIR"), "/layout.rs"))
}

/// A file that compiles as C11 and as C++17, and only if the header says what Rust has.
pub(crate) fn assertions(layout: &Layout) -> String {
    let mut out = String::from("#include <assert.h>\n#include \"hcomm_transport.h\"\n\n");
    for (name, value) in &layout.constants {
        let name = c_constant(name);
        // The sign is part of the value: -1 must not compare equal to 4294967295.
        let sign = if *value < 0 { "< 0" } else { ">= 0" };
        let _ = writeln!(
            out,
            "static_assert({name} == {value} && {name} {sign}, \"value of {name}\");"
        );
    }
    for table in &layout.tables {
        let name = c_type(table.name);
        let alignof = "HCOMM_ALIGN_OF";
        let _ = writeln!(
            out,
            "static_assert(sizeof({name}) == {}, \"size of {name}\");\n\
             static_assert({alignof}({name}) == {}, \"alignment of {name}\");",
            table.size, table.align
        );
        for field in &table.fields {
            let member = c_field(field.name);
            let _ = writeln!(
                out,
                "static_assert(offsetof({name}, {member}) == {}, \"offset of {name}.{member}\");\n\
                 static_assert(sizeof((({name} *)0)->{member}) == {}, \
                 \"size of {name}.{member}\");",
                field.offset, field.size
            );
        }
    }
    out.replacen(
        "\n\n",
        "\n\n#ifdef __cplusplus\n#define HCOMM_ALIGN_OF(type) alignof(type)\n#else\n\
         #define HCOMM_ALIGN_OF(type) _Alignof(type)\n#endif\n\n",
        1,
    )
}

/// Bytes of a field, from a function that picks it.
fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_every_table() {
        let layout = of_tables();
        let header = layout
            .tables
            .iter()
            .find(|table| table.name == "Header")
            .unwrap();
        assert_eq!((header.size, header.align), (16, 8));
        let offsets: Vec<_> = header.fields.iter().map(|field| field.offset).collect();
        assert_eq!(offsets, [0, 8, 10, 12]);
        assert!(
            layout
                .tables
                .iter()
                .any(|table| table.name == "TransportV1")
        );
        assert!(layout.constants.contains(&("STATUS_INTERNAL", -900)));
    }

    #[test]
    fn asserts_sizes_offsets_and_values() {
        let text = assertions(&of_tables());
        assert!(text.contains("static_assert(sizeof(hcomm_header_t) == 16,"));
        assert!(text.contains("static_assert(offsetof(hcomm_header_t, size) == 12,"));
        assert!(text.contains("static_assert(HCOMM_STATUS_OK == 0 && HCOMM_STATUS_OK >= 0,"));
    }
}
