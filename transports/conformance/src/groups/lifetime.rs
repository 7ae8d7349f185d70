//! x
use crate::case::Check;
pub(crate) const CHECKS: &[Check] = &[];
