//! System limits in words, and memory that is reserved before it is used.

use std::fs;
use std::os::fd::OwnedFd;

use hcomm_transport_abi::{Fault, STATUS_LIMIT, STATUS_SYSTEM};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// One `fallocate` reserves this much at most, so that a process with frequent signals gets on:
/// an interrupted call gives back all it had reserved.
const RESERVE_STEP_BYTES: u64 = 64 << 20;

/// What went wrong with a system call, in words that say what to raise.
pub(crate) fn system_fault(what: &str, errno: Errno) -> Fault {
    let words = match errno {
        Errno::MFILE => format!(
            "{what}: one more descriptor needed, the limit of open files is {}: raise `ulimit -n`",
            getrlimit(Resource::Nofile)
                .current
                .map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
        ),
        Errno::NFILE => format!(
            "{what}: one more open file needed, this system allows {} in all: raise fs.file-max",
            setting("/proc/sys/fs/file-max")
        ),
        Errno::TOOMANYREFS => format!(
            "{what}: too many descriptors are on their way between processes; as many as `ulimit \
             -n` may be: raise it"
        ),
        Errno::NOMEM => format!(
            "{what}: out of memory or mappings; {} are available, {} of {} mappings are in use: \
             free memory, or raise vm.max_map_count",
            kib(available_bytes()),
            mappings(),
            setting("/proc/sys/vm/max_map_count")
        ),
        Errno::NOSPC => format!(
            "{what}: no memory left for shared pages; {} are available",
            kib(available_bytes())
        ),
        other => return Fault::new(STATUS_SYSTEM, format!("{what}: {other}")),
    };
    Fault::new(STATUS_LIMIT, words)
}

/// Anonymous memory of `bytes` bytes (a multiple of the page) that others can map. Its pages are
/// there and it cannot shrink: touching it never raises SIGBUS, here or at a peer.
pub(crate) fn reserved_memory(name: &str, bytes: u64) -> Result<OwnedFd, Fault> {
    let available = available_bytes();
    // Asked first because reserving more than there is may wake the out-of-memory killer.
    if let Some(available) = available
        && bytes > available
    {
        return Err(Fault::new(
            STATUS_LIMIT,
            format!(
                "{} of shared memory needed, {} available: free memory or ask for less",
                kib(Some(bytes)),
                kib(Some(available))
            ),
        ));
    }
    let failed = |step: &str| {
        let what = format!("{step} of {} of shared memory", kib(Some(bytes)));
        move |errno| system_fault(&what, errno)
    };
    let memory = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(failed("creation"))?;
    ftruncate(&memory, bytes).map_err(failed("sizing"))?;
    let mut at = 0;
    while at < bytes {
        let step = RESERVE_STEP_BYTES.min(bytes - at);
        match fallocate(&memory, FallocateFlags::empty(), at, step) {
            Ok(()) => at += step,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("reservation")(errno)),
        }
    }
    fcntl_add_seals(
        &memory,
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    )
    .map_err(failed("sealing"))?;
    Ok(memory)
}

/// Rounds up to whole pages; at least one.
pub(crate) fn whole_pages(bytes: u64) -> Option<u64> {
    bytes
        .max(1)
        .checked_next_multiple_of(rustix::param::page_size() as u64)
}

/// Memory and swap that can be had, if the system tells.
fn available_bytes() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        info.lines()
            .find_map(|line| {
                line.strip_prefix(name)?
                    .trim()
                    .split(' ')
                    .next()?
                    .parse()
                    .ok()
            })
            .map(|kib: u64| kib.saturating_mul(1024))
    };
    Some(field("MemAvailable:")?.saturating_add(field("SwapFree:").unwrap_or(0)))
}

fn kib(bytes: Option<u64>) -> String {
    bytes.map_or_else(
        || "an unknown amount".to_owned(),
        |bytes| format!("{} KiB", bytes.div_ceil(1024)),
    )
}

fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count())
}

fn setting(path: &str) -> String {
    fs::read_to_string(path).map_or_else(
        |_| "an unknown number".to_owned(),
        |text| text.trim().to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_memory_than_there_is_names_need_and_available() {
        let fault = reserved_memory("test", 1 << 50).unwrap_err();
        assert_eq!(fault.status, STATUS_LIMIT);
        assert!(fault.text.contains("1099511627776 KiB"), "{fault}");
        assert!(fault.text.contains("available"), "{fault}");
    }

    #[test]
    fn reserved_memory_has_its_pages_and_cannot_shrink() {
        let memory = reserved_memory("test", 1 << 20).unwrap();
        let stat = rustix::fs::fstat(&memory).unwrap();
        assert_eq!(stat.st_size, 1 << 20);
        assert!(stat.st_blocks * 512 >= 1 << 20, "{} blocks", stat.st_blocks);
        assert_eq!(ftruncate(&memory, 0), Err(Errno::PERM));
    }

    #[test]
    fn a_descriptor_limit_is_told_with_its_value() {
        let fault = system_fault("socket", Errno::MFILE);
        assert_eq!(fault.status, STATUS_LIMIT);
        let limit = getrlimit(Resource::Nofile).current.unwrap().to_string();
        assert!(fault.text.contains(&limit), "{fault}");
    }
}
