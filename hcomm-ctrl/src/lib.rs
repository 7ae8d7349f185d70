//! Bootstrap, membership, endpoints, memory, channels.
