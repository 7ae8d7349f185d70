//! Threads, notifies, transfers, batches, local copy and reduce.
