//! `start-up`: what start-up costs with many ranks, as the table of PERFORMANCE.md.

use crate::cargo::{cargo, finish};
use crate::error::Error;

/// Runs the measurement, which is a test that takes too long for `test`.
pub(crate) fn run() -> Result<(), Error> {
    let mut command = cargo(&["test", "--release", "--lib", "--package", "hcomm-ctrl"]);
    command.args(["--", "--ignored", "--nocapture", "start_up_at_scale"]);
    finish(&mut command)
}
