//! The operations that are put at the end of a thread.

use hcomm_data::{Slice, Thread};
use hcomm_types::{DataType, Error, ErrorKind, Rank, ReduceOp, Reduction, Result};

use super::{Communicator, Request};
use crate::plan::Operation;

impl Communicator {
    /// [`all_reduce`](Self::all_reduce) at the end of a thread. The same slice twice means: in
    /// place.
    ///
    /// # Errors
    /// `InvalidArgument` if the slices do not fit; the thread's error if it has failed before.
    pub fn all_reduce_on(
        &self,
        thread: &Thread,
        input: &Slice,
        output: &Slice,
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Result<Request> {
        let count = self.elements("all_reduce_on", output, dtype)?;
        let in_place = same_memory(input, output);
        let shape = self.shape(Operation::AllReduce, count, dtype, op, in_place);
        self.execute_on("all_reduce_on", thread, &shape, input, output)
    }

    /// [`all_gather`](Self::all_gather) at the end of a thread. An input that is the rank's own
    /// part of the output means: in place.
    ///
    /// # Errors
    /// `InvalidArgument` if the slices do not fit; the thread's error if it has failed before.
    pub fn all_gather_on(
        &self,
        thread: &Thread,
        input: &Slice,
        output: &Slice,
        dtype: DataType,
    ) -> Result<Request> {
        let count = self.elements("all_gather_on", input, dtype)?;
        let in_place = self.own_part(output, input);
        let shape = self.shape(Operation::AllGather, count, dtype, ReduceOp::Sum, in_place);
        self.execute_on("all_gather_on", thread, &shape, input, output)
    }

    /// [`reduce_scatter`](Self::reduce_scatter) at the end of a thread. An output that is the
    /// rank's own part of the input means: in place.
    ///
    /// # Errors
    /// `InvalidArgument` if the slices do not fit; the thread's error if it has failed before.
    pub fn reduce_scatter_on(
        &self,
        thread: &Thread,
        input: &Slice,
        output: &Slice,
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Result<Request> {
        let count = self.elements("reduce_scatter_on", output, dtype)?;
        let in_place = self.own_part(input, output);
        let shape = self.shape(Operation::ReduceScatter, count, dtype, op, in_place);
        self.execute_on("reduce_scatter_on", thread, &shape, input, output)
    }

    /// [`broadcast`](Self::broadcast) at the end of a thread.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such root; the thread's error if it has failed before.
    pub fn broadcast_on(
        &self,
        thread: &Thread,
        buffer: &Slice,
        root: Rank,
        dtype: DataType,
    ) -> Result<Request> {
        let count = self.elements("broadcast_on", buffer, dtype)?;
        let shape = self.shape(
            Operation::Broadcast { root },
            count,
            dtype,
            ReduceOp::Sum,
            true,
        );
        self.execute_on("broadcast_on", thread, &shape, buffer, buffer)
    }

    /// [`barrier`](Self::barrier) at the end of a thread.
    ///
    /// # Errors
    /// The thread's error if it has failed before.
    pub fn barrier_on(&self, thread: &Thread) -> Result<Request> {
        let shape = self.shape(Operation::Barrier, 0, DataType::U8, ReduceOp::Sum, false);
        let nothing = self.buffer().sub(0..0)?;
        self.execute_on("barrier_on", thread, &shape, &nothing, &nothing)
    }

    /// [`send`](Self::send) at the end of a thread.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such rank; the thread's error if it has failed before.
    pub fn send_on(
        &self,
        thread: &Thread,
        data: &Slice,
        to: Rank,
        dtype: DataType,
    ) -> Result<Request> {
        let count = self.elements("send_on", data, dtype)?;
        let shape = self.message("send_on", self.rank(), to, count, dtype)?;
        self.execute_on("send_on", thread, &shape, data, &self.buffer().sub(0..0)?)
    }

    /// [`recv`](Self::recv) at the end of a thread.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such rank; the thread's error if it has failed before.
    pub fn recv_on(
        &self,
        thread: &Thread,
        data: &Slice,
        from: Rank,
        dtype: DataType,
    ) -> Result<Request> {
        let count = self.elements("recv_on", data, dtype)?;
        let shape = self.message("recv_on", from, self.rank(), count, dtype)?;
        self.execute_on("recv_on", thread, &shape, &self.buffer().sub(0..0)?, data)
    }

    /// [`reduce`](Self::reduce) at the end of a thread. The same slice twice at the root means: in
    /// place.
    ///
    /// # Errors
    /// `InvalidArgument` if the slices do not fit; the thread's error if it has failed before.
    pub fn reduce_on(
        &self,
        thread: &Thread,
        input: &Slice,
        output: &Slice,
        dtype: DataType,
        op: impl Into<Reduction>,
        root: Rank,
    ) -> Result<Request> {
        let count = self.elements("reduce_on", input, dtype)?;
        let in_place = self.rank() == root && same_memory(input, output);
        let shape = self.shape(Operation::Reduce { root }, count, dtype, op, in_place);
        self.execute_on("reduce_on", thread, &shape, input, output)
    }

    /// [`gather`](Self::gather) at the end of a thread. An input of the root that is its own part of
    /// the output means: in place.
    ///
    /// # Errors
    /// `InvalidArgument` if the slices do not fit; the thread's error if it has failed before.
    pub fn gather_on(
        &self,
        thread: &Thread,
        input: &Slice,
        output: &Slice,
        dtype: DataType,
        root: Rank,
    ) -> Result<Request> {
        let count = self.elements("gather_on", input, dtype)?;
        let in_place = self.rank() == root && self.own_part(output, input);
        let operation = Operation::Gather { root };
        let shape = self.shape(operation, count, dtype, ReduceOp::Sum, in_place);
        self.execute_on("gather_on", thread, &shape, input, output)
    }

    /// [`scatter`](Self::scatter) at the end of a thread. An output of the root that is its own part
    /// of the input means: in place.
    ///
    /// # Errors
    /// `InvalidArgument` if the slices do not fit; the thread's error if it has failed before.
    pub fn scatter_on(
        &self,
        thread: &Thread,
        input: &Slice,
        output: &Slice,
        dtype: DataType,
        root: Rank,
    ) -> Result<Request> {
        let count = self.elements("scatter_on", output, dtype)?;
        let in_place = self.rank() == root && self.own_part(input, output);
        let operation = Operation::Scatter { root };
        let shape = self.shape(operation, count, dtype, ReduceOp::Sum, in_place);
        self.execute_on("scatter_on", thread, &shape, input, output)
    }

    /// [`all_to_all`](Self::all_to_all) at the end of a thread. The same slice twice means: in
    /// place.
    ///
    /// # Errors
    /// `InvalidArgument` if the slices do not fit; the thread's error if it has failed before.
    pub fn all_to_all_on(
        &self,
        thread: &Thread,
        input: &Slice,
        output: &Slice,
        dtype: DataType,
    ) -> Result<Request> {
        let elements = self.elements("all_to_all_on", input, dtype)?;
        let count = self.part_of("all_to_all_on", elements)?;
        let in_place = same_memory(input, output);
        let shape = self.shape(Operation::AllToAll, count, dtype, ReduceOp::Sum, in_place);
        self.execute_on("all_to_all_on", thread, &shape, input, output)
    }

    fn elements(&self, call: &'static str, slice: &Slice, dtype: DataType) -> Result<usize> {
        whole_elements(slice.bytes(), dtype)
            .map_err(|error| error.in_call(call).at_rank(self.rank()))
    }

    fn own_part(&self, whole: &Slice, part: &Slice) -> bool {
        whole
            .offset()
            .checked_add(self.rank().index() * part.bytes())
            .is_some_and(|offset| whole.region().is_same(part.region()) && offset == part.offset())
    }
}

/// How many elements so many bytes are.
pub(super) fn whole_elements(bytes: usize, dtype: DataType) -> Result<usize> {
    if bytes.is_multiple_of(dtype.size()) {
        return Ok(bytes / dtype.size());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("{bytes} bytes are no whole number of {dtype} elements"),
    ))
}

fn same_memory(a: &Slice, b: &Slice) -> bool {
    a.region().is_same(b.region()) && a.offset() == b.offset() && a.bytes() == b.bytes()
}
