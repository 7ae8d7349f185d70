//! How a name of the Rust tables reads in C.

/// `DataOpsV1` is `hcomm_data_ops_v1_t`.
pub(crate) fn c_type(rust: &str) -> String {
    let mut name = String::from("hcomm");
    for letter in rust.chars() {
        if letter.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name.push_str("_t");
    name
}

/// `STATUS_OK` is `HCOMM_STATUS_OK`.
pub(crate) fn c_constant(rust: &str) -> String {
    format!("HCOMM_{rust}")
}

/// Fields keep their names, but `register` is a word of C and becomes `register_`.
pub(crate) fn c_field(rust: &str) -> String {
    const WORDS: [&str; 8] = [
        "register", "delete", "new", "export", "operator", "default", "signed", "template",
    ];
    if WORDS.contains(&rust) {
        format!("{rust}_")
    } else {
        rust.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_snake_case_with_a_suffix() {
        assert_eq!(c_type("DataOpsV1"), "hcomm_data_ops_v1_t");
        assert_eq!(c_type("Device"), "hcomm_device_t");
    }

    #[test]
    fn words_of_c_get_an_underscore() {
        assert_eq!(c_field("register"), "register_");
        assert_eq!(c_field("allocate"), "allocate");
    }
}
