//! The smallest complete transport: inside one process.
