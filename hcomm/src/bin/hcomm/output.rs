//! What the command says. Whoever reads may be gone (`hcomm ... | head -1`): that is no fault.

use std::io::{self, ErrorKind, Write};

use hcomm_types::{Error, Result};

/// Exit code of a program whose reader is gone, as a shell tells it: 128 + SIGPIPE.
pub(crate) const NOBODY_READS: u8 = 141;

/// Whether somebody still reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Reader {
    /// The text is on its way.
    There,
    /// The text is lost, and so would be all others.
    Gone,
}

/// Prints a line, or lines, on stdout.
///
/// # Errors
/// If it cannot be written for another reason than that nobody reads.
pub(crate) fn print(text: &str) -> Result<Reader> {
    write_line(&mut io::stdout().lock(), text)
        .map_err(|error| Error::system("writing to stdout", error))
}

/// Says a line on stderr, in one piece: ranks share it, and lines must not mix.
pub(crate) fn complain(text: &str) {
    // There is no other place to tell that this one is closed.
    let _ = write_line(&mut io::stderr().lock(), text);
}

fn write_line(to: &mut impl Write, text: &str) -> io::Result<Reader> {
    let line = format!("{text}\n");
    match to.write_all(line.as_bytes()).and_then(|()| to.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps each write apart; or fails.
    struct Writes(Vec<Vec<u8>>, Option<ErrorKind>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if let Some(kind) = self.1 {
                return Err(kind.into());
            }
            self.0.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_one_write() {
        let mut writes = Writes(Vec::new(), None);
        let reader = write_line(&mut writes, &format!("{} of {}", 1, 2));
        assert_eq!(reader.unwrap(), Reader::There);
        assert_eq!(writes.0, [b"1 of 2\n".to_vec()]);
    }

    #[test]
    fn a_closed_pipe_is_no_error_and_a_full_disk_is() {
        let broken = write_line(&mut Writes(Vec::new(), Some(ErrorKind::BrokenPipe)), "lost");
        assert_eq!(broken.unwrap(), Reader::Gone);
        let full = write_line(
            &mut Writes(Vec::new(), Some(ErrorKind::StorageFull)),
            "lost",
        );
        assert_eq!(full.unwrap_err().kind(), ErrorKind::StorageFull);
    }
}
