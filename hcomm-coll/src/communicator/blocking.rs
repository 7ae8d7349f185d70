//! The operations that return when their result is there.

use std::sync::Arc;

use hcomm_data::Buffers;
use hcomm_types::{DataType, Element, Error, ErrorKind, Rank, ReduceOp, Reduction, Result};

use super::Communicator;
use crate::plan::{Count, Operation, Shape};

impl Communicator {
    /// Every rank gets the element-wise combination of all ranks' inputs.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the lengths differ.
    pub fn all_reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let shape = self.shape(Operation::AllReduce, output.len(), T::DATA_TYPE, op, false);
        self.execute_typed("all_reduce", &shape, input, output)
    }

    /// [`all_reduce`](Self::all_reduce) with the result where the input was.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn all_reduce_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let shape = self.shape(Operation::AllReduce, buffer.len(), T::DATA_TYPE, op, true);
        self.execute_in_place("all_reduce", &shape, bytemuck::cast_slice_mut(buffer))
    }

    /// Every rank gets all ranks' inputs, one after the other in rank order: `output` is `size`
    /// times as long as `input`.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the lengths do not fit.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let shape = self.shape(
            Operation::AllGather,
            input.len(),
            T::DATA_TYPE,
            ReduceOp::Sum,
            false,
        );
        self.execute_typed("all_gather", &shape, input, output)
    }

    /// [`all_gather`](Self::all_gather) with the input in its place of the output: the `rank`-th
    /// of `size` equal parts.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the buffer has no `size` equal parts.
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let count = self.part_of("all_gather", buffer.len())?;
        let shape = self.shape(
            Operation::AllGather,
            count,
            T::DATA_TYPE,
            ReduceOp::Sum,
            true,
        );
        self.execute_in_place("all_gather", &shape, bytemuck::cast_slice_mut(buffer))
    }

    /// Rank *i* gets the *i*-th part of the element-wise combination of all ranks' inputs: `input`
    /// is `size` times as long as `output`.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the lengths do not fit.
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let shape = self.shape(
            Operation::ReduceScatter,
            output.len(),
            T::DATA_TYPE,
            op,
            false,
        );
        self.execute_typed("reduce_scatter", &shape, input, output)
    }

    /// [`reduce_scatter`](Self::reduce_scatter) with the result in its place of the input: the
    /// `rank`-th of `size` equal parts. The other parts keep what they had.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the buffer has no `size` equal parts.
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let count = self.part_of("reduce_scatter", buffer.len())?;
        let shape = self.shape(Operation::ReduceScatter, count, T::DATA_TYPE, op, true);
        self.execute_in_place("reduce_scatter", &shape, bytemuck::cast_slice_mut(buffer))
    }

    /// Every rank's buffer becomes that of the root.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if there is no such root.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        let operation = Operation::Broadcast { root };
        let shape = self.shape(operation, buffer.len(), T::DATA_TYPE, ReduceOp::Sum, true);
        self.execute_in_place("broadcast", &shape, bytemuck::cast_slice_mut(buffer))
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// See [`Communicator`].
    pub fn barrier(&self) -> Result<()> {
        let shape = self.shape(Operation::Barrier, 0, DataType::U8, ReduceOp::Sum, false);
        self.execute(
            "barrier",
            &shape,
            Buffers::Separate {
                input: &[],
                output: &mut [],
            },
        )
    }

    /// The root gets the element-wise combination of all ranks' inputs. The `output` of the others
    /// is left alone and may be empty.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the root's lengths differ, or if there is no such
    /// root.
    pub fn reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: impl Into<Reduction>,
        root: Rank,
    ) -> Result<()> {
        let operation = Operation::Reduce { root };
        let shape = self.shape(operation, input.len(), T::DATA_TYPE, op, false);
        self.execute_typed("reduce", &shape, input, output)
    }

    /// [`reduce`](Self::reduce) with the root's result where its input was. The buffers of the
    /// others keep what they had.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if there is no such root.
    pub fn reduce_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        op: impl Into<Reduction>,
        root: Rank,
    ) -> Result<()> {
        let operation = Operation::Reduce { root };
        let shape = self.shape(operation, buffer.len(), T::DATA_TYPE, op, true);
        self.execute_in_place("reduce", &shape, bytemuck::cast_slice_mut(buffer))
    }

    /// [`all_gather`](Self::all_gather) of inputs that differ in length: `counts` has the elements
    /// of each rank, the same on all ranks.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the lengths do not fit the counts.
    pub fn all_gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<()> {
        let counts = Count::Ranks(widened(counts));
        let shape = self.shape(
            Operation::AllGather,
            counts,
            T::DATA_TYPE,
            ReduceOp::Sum,
            false,
        );
        self.execute_typed("all_gather_v", &shape, input, output)
    }

    /// [`reduce_scatter`](Self::reduce_scatter) into parts that differ in length: `counts` has the
    /// elements that each rank gets, the same on all ranks.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the lengths do not fit the counts.
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let counts = Count::Ranks(widened(counts));
        let shape = self.shape(Operation::ReduceScatter, counts, T::DATA_TYPE, op, false);
        self.execute_typed("reduce_scatter_v", &shape, input, output)
    }

    /// The root gets all ranks' inputs, one after the other in rank order: its `output` is `size`
    /// times as long as each input. That of the others is left alone and may be empty.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the root's lengths do not fit, or if there is no
    /// such root.
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: Rank) -> Result<()> {
        let operation = Operation::Gather { root };
        let shape = self.shape(operation, input.len(), T::DATA_TYPE, ReduceOp::Sum, false);
        self.execute_typed("gather", &shape, input, output)
    }

    /// [`gather`](Self::gather) with the root's input in its place of the output: the `root`-th of
    /// `size` equal parts. The buffer of the others is their input.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the root's buffer has no `size` equal parts.
    pub fn gather_in_place<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        let count = self.share_of("gather", buffer.len(), root)?;
        let operation = Operation::Gather { root };
        let shape = self.shape(operation, count, T::DATA_TYPE, ReduceOp::Sum, true);
        self.execute_in_place("gather", &shape, bytemuck::cast_slice_mut(buffer))
    }

    /// Rank *i* gets the *i*-th part of the root's input, which is `size` times as long as each
    /// output. The `input` of the others is not looked at and may be empty.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the root's lengths do not fit, or if there is no
    /// such root.
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: Rank) -> Result<()> {
        let operation = Operation::Scatter { root };
        let shape = self.shape(operation, output.len(), T::DATA_TYPE, ReduceOp::Sum, false);
        self.execute_typed("scatter", &shape, input, output)
    }

    /// [`scatter`](Self::scatter) where the root's part stays in its place of the input: the
    /// `root`-th of `size` equal parts. The buffer of the others is their output.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the root's buffer has no `size` equal parts.
    pub fn scatter_in_place<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        let count = self.share_of("scatter", buffer.len(), root)?;
        let operation = Operation::Scatter { root };
        let shape = self.shape(operation, count, T::DATA_TYPE, ReduceOp::Sum, true);
        self.execute_in_place("scatter", &shape, bytemuck::cast_slice_mut(buffer))
    }

    /// Rank *i* gets the *i*-th of `size` equal parts of every rank's input, one after the other in
    /// rank order.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the lengths differ or have no `size` equal parts.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let count = self.part_of("all_to_all", input.len())?;
        let shape = self.shape(
            Operation::AllToAll,
            count,
            T::DATA_TYPE,
            ReduceOp::Sum,
            false,
        );
        self.execute_typed("all_to_all", &shape, input, output)
    }

    /// [`all_to_all`](Self::all_to_all) with what comes in the place of what went.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the buffer has no `size` equal parts.
    pub fn all_to_all_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let count = self.part_of("all_to_all", buffer.len())?;
        let shape = self.shape(
            Operation::AllToAll,
            count,
            T::DATA_TYPE,
            ReduceOp::Sum,
            true,
        );
        self.execute_in_place("all_to_all", &shape, bytemuck::cast_slice_mut(buffer))
    }

    /// Every rank sends each other rank a part of its own length. `sends` has the elements that
    /// this rank sends to each, `receives` those that it gets from each; parts follow each other in
    /// rank order in `input` and `output`. What one rank sends another has to expect.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the lengths do not fit the counts.
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        sends: &[usize],
        output: &mut [T],
        receives: &[usize],
    ) -> Result<()> {
        let counts = Count::Own {
            rank: self.rank(),
            sends: widened(sends),
            receives: widened(receives),
        };
        let shape = self.shape(
            Operation::AllToAll,
            counts,
            T::DATA_TYPE,
            ReduceOp::Sum,
            false,
        );
        self.execute_typed("all_to_all_v", &shape, input, output)
    }

    /// [`all_to_all_v`](Self::all_to_all_v) where every rank has all counts: `counts` has a row for
    /// each rank, with what that rank sends to each. The same on all ranks.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the lengths do not fit the counts.
    pub fn all_to_all_vc<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<()> {
        let shape = self.shape(
            Operation::AllToAll,
            Count::Pairs(widened(counts)),
            T::DATA_TYPE,
            ReduceOp::Sum,
            false,
        );
        self.execute_typed("all_to_all_vc", &shape, input, output)
    }

    /// [`all_to_all_v`](Self::all_to_all_v) where only the sender knows its counts: they are
    /// exchanged first. `output` is made as long as what comes; returned is what came from each.
    ///
    /// # Errors
    /// See [`Communicator`]; `InvalidArgument` if the length of the input does not fit the counts;
    /// `LimitReached` if there is no memory for what comes.
    pub fn all_to_all_vc_unknown<T: Element>(
        &self,
        input: &[T],
        sends: &[usize],
        output: &mut Vec<T>,
    ) -> Result<Vec<usize>> {
        let call = "all_to_all_vc_unknown";
        let refuse = |what: String| {
            let error = Error::new(ErrorKind::InvalidArgument, what);
            Err(error.in_call(call).at_rank(self.rank()))
        };
        if sends.len() != self.size() as usize {
            return refuse(format!("{} counts for {} ranks", sends.len(), self.size()));
        }
        let sum = |counts: &[usize]| counts.iter().try_fold(0usize, |sum, n| sum.checked_add(*n));
        if sum(sends) != Some(input.len()) {
            return refuse(format!(
                "an input of {} elements, of which the counts {sends:?} do not make up all",
                input.len()
            ));
        }
        let mut counts = vec![0u64; sends.len()];
        self.all_to_all(&widened(sends), &mut counts)
            .map_err(|error| error.in_call(call))?;
        let receives: Vec<usize> = counts
            .iter()
            .map(|&count| usize::try_from(count).unwrap_or(usize::MAX))
            .collect();
        let all = sum(&receives).unwrap_or(usize::MAX);
        output.clear();
        if output.try_reserve_exact(all).is_err() {
            let error = Error::new(
                ErrorKind::LimitReached,
                format!(
                    "no memory for the {all} elements of {} that come",
                    T::DATA_TYPE
                ),
            );
            return Err(self.tell(call, error));
        }
        output.resize(all, T::zeroed());
        self.all_to_all_v(input, sends, output, &receives)?;
        Ok(receives)
    }

    pub(super) fn part_of(&self, call: &'static str, elements: usize) -> Result<usize> {
        let size = self.size() as usize;
        if elements.is_multiple_of(size) {
            return Ok(elements / size);
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{elements} elements have no {size} equal parts"),
        )
        .in_call(call)
        .at_rank(self.rank()))
    }

    /// Elements of each rank's part where only the root's buffer holds all parts.
    fn share_of(&self, call: &'static str, elements: usize, root: Rank) -> Result<usize> {
        if self.rank() == root {
            self.part_of(call, elements)
        } else {
            Ok(elements)
        }
    }

    fn execute_typed<T: Element>(
        &self,
        call: &'static str,
        shape: &Shape,
        input: &[T],
        output: &mut [T],
    ) -> Result<()> {
        let buffers = Buffers::Separate {
            input: bytemuck::cast_slice(input),
            output: bytemuck::cast_slice_mut(output),
        };
        self.execute(call, shape, buffers)
    }
}

fn widened(counts: &[usize]) -> Arc<[u64]> {
    counts.iter().map(|&count| count as u64).collect()
}
