//! The tuning file: read by rank 0, sent to all with what rank 0 tells about itself, and handed up
//! as it is. What it means is known above.

use std::fs::File;
use std::io::Read as _;

use serde::{Deserialize, Serialize};

/// Longer files are not sent.
const MAX_BYTES: u64 = 64 << 10;

/// A tuning file of rank 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// Where rank 0 found it.
    pub path: String,
    /// What is in it, or why it could not be read: all ranks have to hear that.
    pub text: Result<String, String>,
}

impl Tuning {
    /// What is at a path, up to 64 KiB.
    pub(crate) fn read(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: read_text(path, MAX_BYTES, "a tuning file"),
        }
    }
}

/// The text of a file of at most so many bytes; what is longer is not read to its end. `what` is the
/// kind of file that it should be.
pub(crate) fn read_text(path: &str, most: u64, what: &str) -> Result<String, String> {
    let mut bytes = Vec::new();
    // One more, which tells that there is more.
    File::open(path)
        .and_then(|file| file.take(most + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > most {
        return Err(format!("has more than {most} bytes, the limit of {what}"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        format!("byte {place} is not UTF-8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_sent_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tuning");
        let path = path.to_str().unwrap();
        let text = || Tuning::read(path).text;
        assert!(text().unwrap_err().contains("cannot be read"));
        for (bytes, words) in [
            (vec![b'x'; 64 << 10], None),
            (vec![b'x'; (64 << 10) + 1], Some("more than 65536 bytes")),
            (b"ab\xff".to_vec(), Some("byte 2 is not UTF-8")),
        ] {
            std::fs::write(path, &bytes).unwrap();
            match words {
                None => assert_eq!(text().unwrap().as_bytes(), bytes),
                Some(words) => assert!(text().unwrap_err().contains(words)),
            }
        }
    }
}
