//! Find, load, check and call transport plugins; the one waiter.
