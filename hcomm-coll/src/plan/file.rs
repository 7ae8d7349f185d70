//! Plans as files: JSON, with errors that say where.
//!
//! # Format
//!
//! A file is one JSON object. Lengths and offsets are in bytes, counts in elements of the shape's
//! type. Unknown fields are errors.
//!
//! | field | holds |
//! |---|---|
//! | `format` | `"hcomm-plan-1"` |
//! | `algorithm` | name of what made the plan, for tables |
//! | `shape` | `operation`, `ranks`, `count`, `dtype`, `redop`, `in_place`: see [`Shape`](super::Shape) |
//! | `initial_credits` | may be left out; objects of `recorder`, `waiter`, `notify`, `count`: see [`Credit`](super::Credit) |
//! | `ranks` | one object a rank, in rank order: `threads`, a list of lists of tasks, and `scratch_bytes` |
//!
//! An operation is its name, `"all_reduce"`, or where it has a root or two ends an object,
//! `{"broadcast": {"root": 0}}` or `{"send_recv": {"from": 0, "to": 1}}`. A count is a number; a
//! list of one number a rank; or, for all_to_all, a list of lists, one number a pair. Types and
//! reductions have the names of the command line, such as `"fp32"` and `"sum"`.
//!
//! A task is an object with one field, the kind of [`Task`](super::Task) in lower case, and in it
//! what that kind needs:
//!
//! | task | fields |
//! |---|---|
//! | `copy` | `dst`, `src`, `bytes` |
//! | `reduce` | `dst`, `a`, `b`, `count` |
//! | `write` | `peer`, `dst`, `src`, `bytes`; `notify` if one is recorded |
//! | `read` | `peer`, `dst`, `src`, `bytes` |
//! | `write_reduce` | `peer`, `dst`, `src`, `count`; `notify` if one is recorded |
//! | `read_reduce` | `peer`, `dst`, `a`, `src`, `count` |
//! | `packet_write` | `peer`, `line`, `src`, `bytes` |
//! | `packet_read` | `peer`, `dst`, `line`, `bytes` |
//! | `packet_reduce` | `peer`, `dst`, `a`, `line`, `count`; `swapped` if the packet is the first operand |
//! | `record`, `wait` | `peer`, `notify` |
//! | `thread_record` | `thread`, `notify` |
//! | `thread_wait` | `notify` |
//!
//! A place (`dst`, `src`, `a`, `b`) is `{"buffer": "input", "offset": 0}`; the other buffers are
//! `"output"` and `"scratch"`.
//!
//! # Example
//!
//! Two ranks add up one number each. Each writes its own into the other's scratch memory, and adds
//! what it got itself:
//!
//! ```
//! # use hcomm_coll::{plan::Plan, verify::verify};
//! let text = r#"{
//!   "format": "hcomm-plan-1",
//!   "algorithm": "exchange",
//!   "shape": {
//!     "operation": "all_reduce", "ranks": 2, "count": 1, "dtype": "int32", "redop": "sum",
//!     "in_place": false
//!   },
//!   "ranks": [
//!     {
//!       "threads": [[
//!         {"write": {"peer": 1, "dst": {"buffer": "scratch", "offset": 0},
//!                    "src": {"buffer": "input", "offset": 0}, "bytes": 4, "notify": 0}},
//!         {"wait": {"peer": 1, "notify": 0}},
//!         {"reduce": {"dst": {"buffer": "output", "offset": 0}, "a": {"buffer": "input", "offset": 0},
//!                     "b": {"buffer": "scratch", "offset": 0}, "count": 1}}
//!       ]],
//!       "scratch_bytes": 4
//!     },
//!     {
//!       "threads": [[
//!         {"write": {"peer": 0, "dst": {"buffer": "scratch", "offset": 0},
//!                    "src": {"buffer": "input", "offset": 0}, "bytes": 4, "notify": 0}},
//!         {"wait": {"peer": 0, "notify": 0}},
//!         {"reduce": {"dst": {"buffer": "output", "offset": 0}, "a": {"buffer": "scratch", "offset": 0},
//!                     "b": {"buffer": "input", "offset": 0}, "count": 1}}
//!       ]],
//!       "scratch_bytes": 4
//!     }
//!   ]
//! }"#;
//! let proof = verify(&Plan::from_json(text)?)?;
//! assert!(proof.synchronising && proof.same_bits);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use hcomm_types::{Error, ErrorKind, Result};

use super::Plan;

impl Plan {
    /// Reads a plan. Whether it is right is a question for [`verify`](crate::verify::verify).
    ///
    /// # Errors
    /// `InvalidArgument` with line, column, the field there, and what was expected.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| refusal(text, &error))
    }

    /// The plan as a file, in many lines.
    ///
    /// # Errors
    /// `InvalidArgument` for counts that only one rank knows, which no file can hold.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))
    }
}

/// Why a text of ours cannot be read: line, column, the field there, and what was expected.
pub(crate) fn refusal(text: &str, error: &serde_json::Error) -> Error {
    // The position is told apart from the words, as it is one of several things to say.
    let words = error.to_string();
    let (line, column) = (error.line(), error.column());
    let words = words
        .strip_suffix(&format!(" at line {line} column {column}"))
        .unwrap_or(&words);
    let field = field_at(text, line, column);
    let field = if field.is_empty() {
        String::new()
    } else {
        format!(" ({field})")
    };
    Error::new(
        ErrorKind::InvalidArgument,
        format!("line {line}, column {column}{field}: {words}"),
    )
}

/// Deeper than a plan; what is below is left out.
const DEPTH: usize = 16;

/// The path of the field at a place of a JSON text that is right up to there, such as
/// `ranks[0].threads[0][3].write.bytes`.
fn field_at(text: &str, line: usize, column: usize) -> String {
    let start: usize = text
        .split_inclusive('\n')
        .take(line.saturating_sub(1))
        .map(str::len)
        .sum();
    let end = start.saturating_add(column).min(text.len());
    let bytes = &text.as_bytes()[..end];
    let mut path: Vec<Step> = Vec::new();
    let mut at = 0;
    // The latest string: a key, if a colon follows.
    let mut string = 0..0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => {
                let begin = at + 1;
                at = begin;
                while let Some(&byte) = bytes.get(at)
                    && byte != b'"'
                {
                    at += if byte == b'\\' { 2 } else { 1 };
                }
                string = begin..at.min(bytes.len());
            }
            b':' => {
                if let Some(Step::Field(name)) = path.last_mut() {
                    *name = string.clone();
                }
            }
            // What is opened last is not inside yet.
            b'{' if at + 1 < bytes.len() => path.push(Step::Field(0..0)),
            b'[' if at + 1 < bytes.len() => path.push(Step::Index(0)),
            b'}' | b']' if at + 1 < bytes.len() => {
                path.pop();
            }
            b',' => {
                if let Some(Step::Index(index)) = path.last_mut() {
                    *index += 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    let mut words = String::new();
    for step in path.into_iter().take(DEPTH) {
        match step {
            Step::Field(name) if name.is_empty() => {}
            Step::Field(name) => {
                if !words.is_empty() {
                    words.push('.');
                }
                words += &String::from_utf8_lossy(&bytes[name]);
            }
            Step::Index(index) => words += &format!("[{index}]"),
        }
    }
    words
}

/// One level of a path.
enum Step {
    /// Where the name of the field is.
    Field(std::ops::Range<usize>),
    Index(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"{
  "format": "hcomm-plan-1", "algorithm": "x, \"y\": {",
  "shape": {"operation": "barrier", "ranks": 1, "count": 0, "dtype": "uint8", "redop": "sum", "in_place": false},
  "ranks": [
    {"threads": [[{"wait": {"peer": 0, "notify": 7}}, {"record": {"peer": 0, "notify": 7}}]], "scratch_bytes": 0}
  ]
}"#;

    #[test]
    fn an_error_says_where_and_what_was_expected() {
        let plan = Plan::from_json(PLAN).unwrap();
        assert_eq!(Plan::from_json(&plan.to_json().unwrap()).unwrap(), plan);
        for (from, to, words) in [
            (
                "\"record\": {\"peer\": 0",
                "\"record\": {\"peer\": -4",
                ["line 5", "(ranks[0].threads[0][1].record.peer)", "u32"],
            ),
            (
                "\"ranks\": 1",
                "\"ranks\": [1]",
                ["line 3", "(shape.ranks)", "u32"],
            ),
            (
                "\"in_place\": false",
                "\"place\": false",
                ["line 3", "(shape", "`in_place`"],
            ),
            (
                ", \"scratch_bytes\": 0",
                "",
                ["line 5", "(ranks[0]", "`scratch_bytes`"],
            ),
            (
                "hcomm-plan-1",
                "hcomm-plan-9",
                ["line 2", "(format)", "`hcomm-plan-1`"],
            ),
        ] {
            let text = PLAN.replace(from, to);
            let error = Plan::from_json(&text).unwrap_err().to_string();
            for word in words {
                assert!(error.contains(word), "{error}");
            }
        }
    }

    #[test]
    fn no_text_and_no_place_in_it_panics() {
        for text in [
            "",
            "{",
            "\"",
            "\"\\",
            "[[[",
            "}}]",
            ":",
            "{\"\u{e4}\": \u{e4}",
            "a\nb",
        ] {
            assert!(Plan::from_json(text).is_err(), "{text}");
            for line in 0..4 {
                for column in 0..12 {
                    field_at(text, line, column);
                }
            }
        }
        assert!(Plan::from_json(&"[".repeat(1 << 20)).is_err());
        assert!(Plan::from_json(&"{\"a\":".repeat(1 << 18)).is_err());
    }
}
