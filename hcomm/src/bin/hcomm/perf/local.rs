//! Copy and reduction inside one rank.

use hcomm::Communicator;
use hcomm_data::{Slice, Thread};
use hcomm_types::{Rank, Result};

use super::held::Held;
use super::pattern::{Combination, fill, sum_u64, wrong_copies};
use super::worker::{Case, Plan, as_length, buffer};
use super::{PerfArgs, PerfOp};

const POISON: u8 = 0xa5;

/// Memory of this rank, for all sizes.
pub(super) struct Bench<'a> {
    comm: &'a Communicator,
    thread: Thread,
    /// Two operands and the result.
    parts: [Slice; 3],
    /// Where they lie.
    _memory: Held<'a>,
}

impl<'a> Bench<'a> {
    /// Memory for the largest size.
    ///
    /// # Errors
    /// Those of [`Held::new`].
    pub(super) fn new(args: &PerfArgs, comm: &'a Communicator) -> Result<Self> {
        let largest = args.counts(comm.size()).into_iter().max().unwrap_or(0);
        let part = as_length((largest * args.dtype.size() as u64).max(1))?
            .checked_next_multiple_of(4096)
            .unwrap_or(usize::MAX);
        let held = Held::new(args, comm, part.saturating_mul(3))?;
        let memory = held.slice();
        Ok(Self {
            comm,
            thread: comm.thread_on(args.engine.engine(), 0)?,
            parts: [
                memory.sub(0..part)?,
                memory.sub(part..2 * part)?,
                memory.sub(2 * part..3 * part)?,
            ],
            _memory: held,
        })
    }

    /// Prepares one size, of so many elements.
    ///
    /// # Errors
    /// If ranges do not fit, which `new` has made sure of.
    pub(super) fn plan<'b>(&'b mut self, args: &PerfArgs, count: u64) -> Result<Plan<'b>> {
        let size = count * args.dtype.size() as u64;
        let range = 0..size as usize;
        let [a, b, result] = &self.parts;
        let case = Local {
            bench: self,
            a: a.sub(range.clone())?,
            b: b.sub(range.clone())?,
            result: result.sub(range)?,
            args: args.clone(),
            consumed: 0,
        };
        case.refill()?;
        Ok(Plan {
            algorithm: "-".to_owned(),
            predicted_us: None,
            bytes: size,
            count,
            moved: size,
            bus_factor: 1.0,
            messages: None,
            case: Box::new(case),
        })
    }
}

struct Local<'a, 'b> {
    bench: &'b Bench<'a>,
    a: Slice,
    b: Slice,
    result: Slice,
    args: PerfArgs,
    /// Sum of everything that was consumed.
    consumed: u64,
}

impl Local<'_, '_> {
    /// None if it is a copy.
    fn reduction(&self) -> Option<Combination> {
        (self.args.op == PerfOp::LocalReduce).then_some(Combination {
            dtype: self.args.dtype,
            redop: self.args.redop,
            ranks: 2,
        })
    }

    fn refill(&self) -> Result<()> {
        let mut bytes = buffer(self.a.bytes() as u64)?;
        for (operand, number) in [(&self.a, 0), (&self.b, 1)] {
            match self.reduction() {
                Some(reduction) => reduction.fill(&mut bytes, Rank(number), 0),
                None => fill(&mut bytes, self.args.dtype, self.bench.comm.rank(), 0),
            }
            operand.copy_from(&bytes)?;
        }
        bytes.fill(POISON);
        self.result.copy_from(&bytes)
    }
}

impl Case for Local<'_, '_> {
    fn run(&mut self) -> Result<()> {
        let (thread, args) = (&self.bench.thread, &self.args);
        for _ in 0..args.stream() {
            if args.op == PerfOp::LocalReduce {
                thread.reduce(&self.result, &self.a, &self.b, args.dtype, args.redop.op())?;
            } else {
                thread.copy(&self.result, &self.a)?;
            }
        }
        thread.synchronize(None)?;
        if args.consume {
            self.consumed = self.consumed.wrapping_add(self.result.sum_u64());
        }
        Ok(())
    }

    fn wrong(&mut self) -> Result<u64> {
        self.refill()?;
        self.consumed = 0;
        self.run()?;
        let mut bytes = buffer(self.result.bytes() as u64)?;
        self.result.copy_to(&mut bytes)?;
        let wrong = match self.reduction() {
            Some(reduction) => reduction.wrong(&bytes, 0),
            None => wrong_copies(&bytes, self.args.dtype, self.bench.comm.rank(), 0),
        };
        let missed = self.args.consume && self.consumed != sum_u64(&bytes);
        Ok(wrong + u64::from(missed))
    }

    fn operations(&self) -> u32 {
        self.args.stream()
    }
}
