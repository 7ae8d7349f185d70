//! Plans, verifier, algorithms, collectives.
