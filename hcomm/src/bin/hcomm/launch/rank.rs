//! The process of one rank, and what it prints.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;

use hcomm_types::{Error, Result};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use super::course::{End, Event};

/// Longer lines are passed on in pieces of this many bytes: memory is not endless.
const LINE: u64 = 1 << 20;
/// Threads that only pass on need no more stack.
const STACK: usize = 128 << 10;

/// A rank's process, the leader of a process group of its own. It is not reaped as long as this
/// value lives: even after its end its number is that of its group and of nobody else, so a signal
/// can never reach a stranger.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    pid: Pid,
}

impl Process {
    /// Starts a rank. `events` is told when it has ended, and when its output has been passed on to
    /// the end: with `prefix` line by line after the rank's number, otherwise by the rank itself.
    ///
    /// # Errors
    /// If the process, or a thread that listens to it, cannot be started.
    pub(super) fn start(
        mut command: Command,
        rank: u32,
        prefix: bool,
        events: &Sender<Event>,
    ) -> Result<Self> {
        command.stdin(Stdio::null()).process_group(0);
        if prefix {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let failed = |error| could_not_start(rank, error);
        let child = command.spawn().map_err(failed)?;
        let mut process = Self {
            pid: Pid::from_child(&child),
            child,
        };
        if let Err(error) = process.listen(rank, events) {
            process.signal(Signal::KILL);
            process.reap();
            return Err(failed(error));
        }
        Ok(process)
    }

    fn listen(&mut self, rank: u32, events: &Sender<Event>) -> io::Result<()> {
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        let outputs = [
            stdout
                .map(|pipe| in_thread(pass_on(rank, pipe, io::stdout(), events.clone())))
                .transpose()?,
            stderr
                .map(|pipe| in_thread(pass_on(rank, pipe, io::stderr(), events.clone())))
                .transpose()?,
        ];
        let (pid, events) = (self.pid, events.clone());
        in_thread(move || {
            // Whoever listens to the events is gone only when the job is over.
            let _ = events.send(Event::Exited(rank, wait_without_reaping(pid)));
            for output in outputs.into_iter().flatten() {
                let _ = output.join();
            }
            let _ = events.send(Event::Drained(rank));
        })
        .map(drop)
    }

    /// Signals the rank and what it has left behind in its group.
    pub(super) fn signal(&self, signal: Signal) {
        // A rank that has left its group is alone. That nobody is left to signal is no fault.
        let _ = kill_process_group(self.pid, signal).or_else(|_| kill_process(self.pid, signal));
    }

    /// Gives the number back, if the rank has ended.
    pub(super) fn reap(mut self) {
        let _ = self.child.try_wait();
    }
}

/// The end of a child, whose number stays taken.
fn wait_without_reaping(pid: Pid) -> End {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    loop {
        return match waitid(WaitId::Pid(pid), options) {
            Err(Errno::INTR) | Ok(None) => continue,
            Err(error) => End::Unknown(error.to_string()),
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => End::Code(code),
                (None, Some(signal)) => End::Signal(signal),
                (None, None) => End::Unknown(format!("{status:?}")),
            },
        };
    }
}

/// Passes a pipe on, line by line, each with the rank's number before it. What cannot be passed on
/// is still taken, so that the rank neither waits nor dies for it: that is for the job to decide.
fn pass_on(rank: u32, pipe: impl Read, mut to: impl Write, events: Sender<Event>) -> impl FnOnce() {
    move || {
        let mut lines = BufReader::new(pipe);
        let mut heard = true;
        let mut line = Vec::new();
        loop {
            line.clear();
            // Writing to a vector cannot fail.
            let _ = write!(line, "[{rank}] ");
            match lines.by_ref().take(LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if !heard => continue,
                Ok(_) => {}
            }
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            // One call, so that lines of ranks do not mix.
            if let Err(error) = to.write_all(&line).and_then(|()| to.flush()) {
                heard = false;
                let _ = events.send(Event::Unheard(error));
            }
        }
    }
}

fn in_thread(work: impl FnOnce() + Send + 'static) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().stack_size(STACK).spawn(work)
}

fn could_not_start(rank: u32, error: io::Error) -> Error {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    let error = Error::system(format!("starting rank {rank}"), error);
    match number {
        Some(Errno::MFILE) => error.hint(
            "each rank takes 2 descriptors of the launcher: raise the hard limit of `ulimit -n`, or use --no-prefix",
        ),
        Some(Errno::NFILE) => error.hint("this host is out of files: look at fs.file-max"),
        Some(Errno::AGAIN) => {
            error.hint("no more processes or threads: look at `ulimit -u` and at pids.max of the cgroup")
        }
        Some(Errno::NOMEM) => error.hint("look at the free memory, or start fewer ranks"),
        Some(Errno::NOENT) => {
            error.hint("has the file of this program been moved or replaced since it was started?")
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn the_exit_is_told_though_a_grandchild_holds_the_pipes_and_the_group_can_be_killed() {
        let (events, inbox) = mpsc::channel();
        let process = Process::start(sh("sleep 1000 & exit 3"), 5, true, &events).unwrap();
        assert!(matches!(
            inbox.recv().unwrap(),
            Event::Exited(5, End::Code(3))
        ));
        // The leader has ended, but its number is still its own.
        process.signal(Signal::KILL);
        assert!(matches!(inbox.recv().unwrap(), Event::Drained(5)));
        process.reap();
    }

    #[test]
    fn the_signal_of_an_end_is_told() {
        let (events, inbox) = mpsc::channel();
        let process = Process::start(sh("kill -9 $$"), 0, false, &events).unwrap();
        assert!(matches!(
            inbox.recv().unwrap(),
            Event::Exited(0, End::Signal(9))
        ));
        process.reap();
    }

    #[test]
    fn lines_get_their_rank_and_long_ones_come_in_pieces() {
        let (events, _inbox) = mpsc::channel();
        let long = "x".repeat(LINE as usize + 1);
        let text = format!("one\n{long}\nlast");
        let mut passed = Vec::new();
        pass_on(7, text.as_bytes(), &mut passed, events)();
        let (first, second) = long.split_at(LINE as usize);
        let expected = format!("[7] one\n[7] {first}\n[7] {second}\n[7] last\n");
        assert!(passed == expected.as_bytes());
    }

    /// Counts what is read of it.
    struct Counted<'a>(&'a [u8], &'a mut usize);

    impl Read for Counted<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.0.read(buffer)?;
            *self.1 += count;
            Ok(count)
        }
    }

    #[test]
    fn without_a_reader_output_is_still_taken_and_the_job_is_told_once() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (events, inbox) = mpsc::channel();
        let text = "a line\n".repeat(10_000);
        let mut read = 0;
        pass_on(0, Counted(text.as_bytes(), &mut read), Closed, events)();
        assert_eq!(read, text.len());
        let told: Vec<Event> = inbox.iter().collect();
        assert!(matches!(&told[..], [Event::Unheard(_)]), "{told:?}");
    }

    #[test]
    fn the_next_step_follows_from_the_error() {
        let hint = |number: Errno| {
            let error = could_not_start(3, number.into());
            error.next_step().unwrap_or_default().to_owned()
        };
        assert!(hint(Errno::MFILE).contains("ulimit -n"));
        assert!(hint(Errno::AGAIN).contains("ulimit -u"));
        assert!(hint(Errno::NOMEM).contains("memory"));
        assert_eq!(hint(Errno::PERM), "");
    }
}
