//! Plan files on their way in.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use hcomm_coll::plan::Plan;
use hcomm_types::{Error, ErrorKind, Result};

/// Larger files are refused: parsed they would take gigabytes.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The verifier keeps a clock for each thread of all ranks, and one for each record, each with a
/// word for every such thread: no more words than this, which is 1 GiB.
const MAX_CLOCK_WORDS: usize = 1 << 28;

/// Reads the plan in a file; `-` is stdin.
///
/// # Errors
/// `InvalidArgument` if there is none: with what is wrong and where.
pub(crate) fn read(path: &Path) -> Result<Plan> {
    let name = name(path);
    let wrong = |what: String| Error::new(ErrorKind::InvalidArgument, format!("{name}: {what}"));
    let mut bytes = Vec::new();
    let all = |from: &mut dyn Read, to: &mut Vec<u8>| {
        // One more, which tells that there is more.
        from.take(MAX_FILE_BYTES + 1).read_to_end(to)
    };
    if path.as_os_str() == "-" {
        all(&mut io::stdin().lock(), &mut bytes)
    } else {
        File::open(path).and_then(|mut file| all(&mut file, &mut bytes))
    }
    .map_err(|error| wrong(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong(format!(
            "has more than {MAX_FILE_BYTES} bytes, the limit of a plan file"
        ))
        .hint("is it a plan? a smaller one has fewer ranks or larger slices"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        wrong(format!("no plan: byte {place} is not UTF-8"))
    })?;
    let plan = Plan::from_json(&text)
        .map_err(|error| wrong(format!("no plan: {}", error.detail())).hint(HINT))?;
    let threads: usize = plan
        .ranks
        .iter()
        .map(|rank| rank.threads.len().max(1))
        .sum();
    let words = threads.saturating_mul(threads.saturating_add(plan.task_count()));
    if words > MAX_CLOCK_WORDS {
        return Err(wrong(format!(
            "{threads} threads of all ranks and {} tasks are too many to be proven here",
            plan.task_count()
        ))
        .hint("try the algorithm with fewer ranks or larger slices"));
    }
    Ok(plan)
}

const HINT: &str = "`hcomm plan show all_reduce -p 2 -b 8 --json -` prints a plan to compare with";

/// What a file is called in messages.
pub(super) fn name(path: &Path) -> String {
    if path.as_os_str() == "-" {
        "stdin".to_owned()
    } else {
        path.display().to_string()
    }
}
