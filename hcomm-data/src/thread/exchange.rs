//! Several messages at once, each over memory that is lent.

use std::sync::Arc;
use std::time::Duration;

use hcomm_types::{Error, ErrorKind, Result};

use super::{Thread, check_elements, check_fingerprint};
use crate::driver;
use crate::memory::{Buffers, Loan};
use crate::message::{Label, MessageLink};
use crate::program::{Program, Turn};
use crate::work::{Message, Run, RunBuffers, Task};

/// A message of [`Thread::exchange`].
#[derive(Debug)]
pub enum Exchange<'a> {
    /// Sent over a link.
    Send {
        /// The link.
        link: &'a MessageLink,
        /// What is sent.
        data: &'a [u8],
        /// What it says that it is.
        label: Label,
    },
    /// Received over a link.
    Recv {
        /// The link.
        link: &'a MessageLink,
        /// Where it goes.
        data: &'a mut [u8],
        /// What it has to be.
        label: Label,
    },
    /// By a program of one thread.
    Run {
        /// The program.
        program: &'a Arc<Program>,
        /// Its memory.
        buffers: Buffers<'a>,
        /// Its turn.
        turn: Turn,
    },
}

impl Thread {
    /// Carries out messages over memory that is lent for the time of the call: `first` one after the
    /// other on this thread, `second` on another one, which must be of the same domain, and both
    /// beside each other. Returns when all are done, or with the first cause, which poisons both
    /// threads then. `before_wait` is called first, and what it returns is kept until the end.
    ///
    /// # Errors
    /// Those of [`Thread::send`], [`Thread::recv`] and [`Thread::run_blocking`].
    pub fn exchange<'a, G>(
        &self,
        first: Vec<Exchange<'a>>,
        other: &Self,
        second: Vec<Exchange<'a>>,
        timeout: Option<Duration>,
        before_wait: impl FnOnce() -> G,
    ) -> Result<()> {
        let same = Arc::ptr_eq(&self.queue, &other.queue);
        if same || !Arc::ptr_eq(&self.queue.domain, &other.queue.domain) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "messages of two directions go on two threads of one domain",
            ));
        }
        let here = first.len();
        let mut lent = Vec::with_capacity(here + second.len());
        let mut starts = Vec::with_capacity(here + second.len());
        for one in first.into_iter().chain(second) {
            let (buffers, start) = one.split()?;
            lent.push(buffers);
            starts.push(start);
        }
        let _guard = before_wait();
        let queues = [&self.queue, &other.queue];
        let start = |loans: &[Arc<Loan>]| {
            for (index, (start, loan)) in starts.iter().zip(loans).enumerate() {
                let queue = queues[usize::from(index >= here)];
                queue.submit_task(start.task(loan))?;
            }
            driver::drive_queues();
            Ok(())
        };
        Loan::lend_all(
            lent,
            |loans| self.end_of_loan(queues.into_iter(), timeout, start(loans)),
            self.settling(queues.into_iter()),
        )?
    }
}

/// What is done with lent memory.
enum Start<'a> {
    Send(&'a MessageLink, Label),
    Recv(&'a MessageLink, Label),
    Run(&'a Arc<Program>, Turn),
}

impl<'a> Exchange<'a> {
    /// The memory, and what is done with it; checked.
    fn split(self) -> Result<(Buffers<'a>, Start<'a>)> {
        match self {
            Self::Send { link, data, label } => {
                check_elements(data.len() as u64, label.dtype)?;
                let buffers = Buffers::Separate {
                    input: data,
                    output: &mut [],
                };
                Ok((buffers, Start::Send(link, label)))
            }
            Self::Recv { link, data, label } => {
                check_elements(data.len() as u64, label.dtype)?;
                let buffers = Buffers::Separate {
                    input: &[],
                    output: data,
                };
                Ok((buffers, Start::Recv(link, label)))
            }
            Self::Run {
                program,
                buffers,
                turn,
            } => {
                if program.threads.len() != 1 || program.thread_notifies(0) > 0 {
                    return Err(Error::new(
                        ErrorKind::InvalidArgument,
                        "a message goes by a program of one thread without notifies of its own",
                    ));
                }
                check_fingerprint(turn, 0)?;
                let (input, output) = buffers.lengths();
                program.check_run(0, input, output, turn)?;
                program.check_lent()?;
                Ok((buffers, Start::Run(program, turn)))
            }
        }
    }
}

impl Start<'_> {
    fn task(&self, loan: &Arc<Loan>) -> Task {
        let loan = Arc::clone(loan);
        match *self {
            Self::Send(link, label) => Task::Send(link.clone(), Message::Lent(loan), label),
            Self::Recv(link, label) => Task::Recv(link.clone(), Message::Lent(loan), label),
            Self::Run(program, turn) => Task::Run(Run {
                program: Arc::clone(program),
                part: 0,
                buffers: RunBuffers::Lent(loan),
                turn,
                fingerprint: 0,
                team: None,
            }),
        }
    }
}
