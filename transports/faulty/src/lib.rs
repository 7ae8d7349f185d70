//! A transport that is wrong on request, for the loader's tests.
