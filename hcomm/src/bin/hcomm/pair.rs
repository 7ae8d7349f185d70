//! Two processes of this host, connected to see in which way bytes move between them. What a
//! system allows is known only by trying it on a real pair, and ranks are siblings as these are.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::task::Poll;
use std::time::{Duration, Instant};

use hcomm::Options;
use hcomm_types::{Error, ErrorKind, Result};

use crate::output::{self, Reader};

/// After this long a process gives up finding the other one.
const PATIENCE: Duration = Duration::from_secs(10);

/// One of the two processes, ended with its handle.
struct End {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// How two processes of this host move bytes over a device, in the words of its transport; empty
/// if it has none.
///
/// # Errors
/// Why two processes could not be connected.
pub(crate) fn describe(transport: &str, device: &str) -> Result<String> {
    let mut ends = [
        End::start(transport, device)?,
        End::start(transport, device)?,
    ];
    let blobs = [ends[0].line()?, ends[1].line()?];
    ends[0].tell(&blobs[1])?;
    ends[1].tell(&blobs[0])?;
    let words = ends[0].line()?;
    ends[1].line()?;
    Ok(words)
}

/// One of the two processes: gives the blob of its end, takes the other's, connects, and says how
/// bytes move. It ends with its input.
///
/// # Errors
/// If the device does not open, or no peer comes.
pub(crate) fn end(transport: &str, device: &str) -> Result<u8> {
    let missing = || {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("no device {device} of {transport} here"),
        )
    };
    let transports = hcomm::load_transports(&Options::from_env()?)?;
    let plugin = transports.plugin(transport).ok_or_else(missing)?;
    let found = plugin.devices()?.into_iter().find(|one| one.name == device);
    let device = found.ok_or_else(missing)?.open()?;
    let channel = device.create_channel(1, 1)?;
    let Reader::There = output::print(&hex(&channel.blob()?))? else {
        return Ok(0);
    };
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    input
        .read_line(&mut line)
        .map_err(|error| Error::system("reading the other end's blob", error))?;
    let mut connecting = channel.connect(unhex(line.trim())?);
    let begun = Instant::now();
    loop {
        match connecting.poll() {
            Poll::Ready(connected) => break connected?,
            Poll::Pending if begun.elapsed() > PATIENCE => {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!("the other process did not connect in {PATIENCE:?}"),
                ));
            }
            Poll::Pending => {
                device.progress()?;
                std::thread::yield_now();
            }
        }
    }
    if let Reader::There = output::print(&channel.describe())? {
        // The other one may still be connecting.
        let _ = input.read_to_end(&mut Vec::new());
    }
    Ok(0)
}

impl End {
    fn start(transport: &str, device: &str) -> Result<Self> {
        let failed = |error| Error::system("starting a process to try a link", error);
        let mut child = std::env::current_exe()
            .and_then(|program| {
                Command::new(program)
                    .args(["pair-end", transport, device])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
            })
            .map_err(failed)?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
        Ok(Self {
            child,
            input: Some(input),
            output: BufReader::new(output),
        })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) => Err(Error::new(
                ErrorKind::LinkDown,
                "two processes of this host could not be connected: the reason is above",
            )),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(Error::system("hearing a process that tries a link", error)),
        }
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        self.input.as_mut().map_or(Ok(()), |input| {
            writeln!(input, "{line}")
                .map_err(|error| Error::system("telling a process that tries a link", error))
        })
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // It ends with its input, or by its own patience.
        self.input = None;
        let _ = self.child.wait();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        use std::fmt::Write as _;
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    let digits = text.as_bytes();
    digits
        .chunks(2)
        .map(|pair| {
            std::str::from_utf8(pair)
                .ok()
                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
        })
        .collect::<Option<_>>()
        .filter(|_| digits.len().is_multiple_of(2))
        .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "the blob is not in hex digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_come_back_from_hex() {
        let blob = [0, 1, 0xab, 0xff];
        assert_eq!(hex(&blob), "0001abff");
        assert_eq!(unhex("0001abff").unwrap(), blob);
        for bad in ["0", "xy", "é"] {
            assert!(unhex(bad).is_err(), "{bad}");
        }
    }
}
