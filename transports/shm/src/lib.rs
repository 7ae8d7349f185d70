//! Shared memory between processes of one host.
