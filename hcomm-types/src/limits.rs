//! Numbers that are promises.

use std::time::Duration;

/// Threads (in-order task queues) that one communicator may hold.
pub const MAX_THREADS_PER_COMMUNICATOR: usize = 40;

/// Notifies that one thread may hold.
pub const MAX_NOTIFIES_PER_THREAD: usize = 640;

/// Lines for packets from one rank to another in one operation.
pub const MAX_PACKET_LINES: u32 = 32;

/// How long start-up waits for all ranks when nothing else is asked (`HCOMM_CONNECT_TIMEOUT`).
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(120);

/// How long an operation waits for its peers when nothing else is asked (`HCOMM_EXEC_TIMEOUT`).
pub const DEFAULT_EXECUTION_TIMEOUT: Duration = Duration::from_secs(600);
