//! Communication base library for clusters of accelerators and hosts.
