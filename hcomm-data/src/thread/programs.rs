//! Running programs.

use std::sync::Arc;
use std::time::Duration;

use hcomm_types::{Error, ErrorKind, Result};

use super::{Thread, check_slices};
use crate::driver;
use crate::memory::Buffers;
use crate::program::{Program, Turn};
use crate::queue::{Queue, Tried};
use crate::slice::Slice;
use crate::work::{Part, Run, RunBuffers, Task};

impl Thread {
    /// Runs one thread of a program on this one, asynchronously. Input and output are held until
    /// it is done. The first record of each notify and all packets carry the fingerprint, and the
    /// first wait of each looks for it, unless it is zero: all sides of a run have the same one, and
    /// a side that finds another one fails with `Mismatch`. Memory of the peers' scratch is reached from the scratch base of the `turn` on
    /// (a number is a turn, too: that of a program without packets).
    ///
    /// # Errors
    /// `OutOfBounds` for buffers that are too small, `InvalidArgument` if there is no such part or
    /// the program records from thread to thread, which needs [`Thread::run_team`].
    pub fn run(
        &self,
        program: &Arc<Program>,
        part: usize,
        input: Slice,
        output: Slice,
        turn: impl Into<Turn>,
        fingerprint: u64,
    ) -> Result<()> {
        if program.has_thread_records() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the program records from thread to thread, so it has to know them",
            )
            .hint("start all its parts with `run_team`"));
        }
        let turn = turn.into();
        check_fingerprint(turn, fingerprint)?;
        check_slices(program, part, &input, &output, turn)?;
        self.check_notifies(program, part)?;
        let run = Run {
            program: Arc::clone(program),
            part,
            buffers: RunBuffers::Slices { input, output },
            turn,
            fingerprint,
            team: None,
        };
        self.queue.submit_task(Task::Run(run))?;
        driver::drive_queues();
        Ok(())
    }

    /// Runs a program, asynchronously: its first thread on this one, the others on `others`, in
    /// their order.
    ///
    /// # Errors
    /// Those of [`Thread::run`]; `InvalidArgument` if `others` are too few or of another domain.
    pub fn run_team(
        &self,
        others: &[Self],
        program: &Arc<Program>,
        input: &Slice,
        output: &Slice,
        turn: impl Into<Turn>,
        fingerprint: u64,
    ) -> Result<()> {
        let others = self.team_of(others, program)?;
        let turn = turn.into();
        check_fingerprint(turn, fingerprint)?;
        check_slices(program, 0, input, output, turn)?;
        self.start(others, program, turn, fingerprint, || RunBuffers::Slices {
            input: input.clone(),
            output: output.clone(),
        })?;
        driver::drive_queues();
        Ok(())
    }

    /// Runs a program over memory that is lent for the time of the call: its first thread on this
    /// one, the others on `others`, in their order. Returns when all of it is done, or with the
    /// first cause; all threads that took part are poisoned with it then.
    ///
    /// The buffers are not touched after the return, also after an error or a timeout: tasks that
    /// are still queued are dropped first, and for descriptors of the buffers that a transport has
    /// taken, the call waits until they have completed or the link has reported an error, after
    /// which a transport touches no local memory. On a link that cannot complete and does not
    /// fail, that is later than the timeout.
    ///
    /// # Errors
    /// Those of [`Thread::run_team`], `Unsupported` if a link moves only registered memory,
    /// `Timeout`, `PeerLost`, or any other cause.
    pub fn run_blocking(
        &self,
        others: &[Self],
        program: &Arc<Program>,
        buffers: Buffers<'_>,
        turn: impl Into<Turn>,
        fingerprint: u64,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let mut buffers = buffers;
        let turn = turn.into();
        self.run_blocking_with(
            others,
            program,
            &mut buffers,
            turn,
            fingerprint,
            timeout,
            || (),
        )
    }

    /// [`Thread::run_blocking`], where a program that is through in a few looks queues nothing;
    /// otherwise `before_wait` is called, and what it returns is kept until the end of the call.
    ///
    /// # Errors
    /// Those of [`Thread::run_blocking`].
    #[expect(
        clippy::too_many_arguments,
        reason = "a run is set apart by as many things"
    )]
    pub fn run_blocking_with<G>(
        &self,
        others: &[Self],
        program: &Arc<Program>,
        buffers: &mut Buffers<'_>,
        turn: Turn,
        fingerprint: u64,
        timeout: Option<Duration>,
        before_wait: impl FnOnce() -> G,
    ) -> Result<()> {
        let (input, output) = buffers.lengths();
        check_fingerprint(turn, fingerprint)?;
        program.check_run(0, input, output, turn)?;
        if program.runs_directly() {
            self.check_notifies(program, 0)?;
            let (input, output) = buffers.places()?;
            // Peers may read these buffers from here on, which nothing but this call keeps there.
            let _end = TakeBack(&self.queue);
            let tried = self.queue.try_run(&Part {
                program,
                number: 0,
                input,
                output,
                turn,
                fingerprint,
                team: None,
            })?;
            if tried == Tried::Done {
                return Ok(());
            }
            let _guard = before_wait();
            return self.lend(&[], buffers, timeout, |loan| {
                let run = Run {
                    program: Arc::clone(program),
                    part: 0,
                    buffers: RunBuffers::Lent(Arc::clone(loan)),
                    turn,
                    fingerprint,
                    team: None,
                };
                self.queue.submit_rest(Task::Run(run), tried)
            });
        }
        let _guard = before_wait();
        let others = self.team_of(others, program)?;
        program.check_lent()?;
        self.lend(others, buffers, timeout, |loan| {
            let lend = || RunBuffers::Lent(Arc::clone(loan));
            self.start(others, program, turn, fingerprint, lend)
        })
    }

    /// The threads that a program needs besides this one, checked.
    fn team_of<'a>(&self, others: &'a [Self], program: &Program) -> Result<&'a [Self]> {
        let need = program.threads.len().saturating_sub(1);
        let Some(others) = others.get(..need) else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "a program of {} threads was given {}",
                    program.threads.len(),
                    others.len() + 1
                ),
            ));
        };
        self.check_notifies(program, 0)?;
        for (index, other) in others.iter().enumerate() {
            if !Arc::ptr_eq(&other.queue.domain, &self.queue.domain) {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("thread {} is of another domain", index + 1),
                ));
            }
            let same = |known: &Self| Arc::ptr_eq(&known.queue, &other.queue);
            if same(self) || others[..index].iter().any(same) {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("thread {} of a program was given twice", index + 1),
                ));
            }
            other.check_notifies(program, index + 1)?;
        }
        Ok(others)
    }

    fn check_notifies(&self, program: &Program, part: usize) -> Result<()> {
        let (need, have) = (program.thread_notifies(part) as usize, self.notifies());
        if need <= have {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("thread {part} of a program needs {need} notifies and has {have}"),
        ))
    }

    /// Submits all parts. If one cannot be, none runs on: a thread that failed fails them all.
    fn start(
        &self,
        others: &[Self],
        program: &Arc<Program>,
        turn: Turn,
        fingerprint: u64,
        buffers: impl Fn() -> RunBuffers,
    ) -> Result<()> {
        let others = others.iter().map(|other| &other.queue);
        let team = program
            .has_thread_records()
            .then(|| self.queue.team(others.clone()));
        let queues = std::iter::once(&self.queue).chain(others);
        if let Some(cause) = queues.clone().find_map(|queue| queue.poisoned()) {
            return Err(cause);
        }
        for (part, queue) in queues.clone().enumerate().take(program.threads.len()) {
            let run = Run {
                program: Arc::clone(program),
                part,
                buffers: buffers(),
                turn,
                fingerprint,
                team: team.clone(),
            };
            if let Err(cause) = queue.submit_task(Task::Run(run)) {
                queues.clone().for_each(|queue| queue.poison(cause.clone()));
                return Err(cause);
            }
        }
        Ok(())
    }
}

/// At a panic, takes back what is lent before the caller's buffers go.
struct TakeBack<'a>(&'a Queue);

impl Drop for TakeBack<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.take_back();
        }
    }
}

/// A notify's line has room for the fingerprints of two runs, told apart by their numbers.
#[inline]
pub(super) fn check_fingerprint(turn: Turn, fingerprint: u64) -> Result<()> {
    if fingerprint == 0 || turn.sequence > 0 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        "a fingerprint needs the number of the run, from one on",
    ))
}
