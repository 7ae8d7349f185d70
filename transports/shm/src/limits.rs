//! System limits in words, and memory that is reserved before it is used.

use std::fs;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use hcomm_transport_abi::{Fault, STATUS_LIMIT, STATUS_SYSTEM};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// One `fallocate` reserves this much at most, so that a process with frequent signals gets on:
/// an interrupted call gives back all it had reserved.
const RESERVE_STEP_BYTES: u64 = 64 << 20;

/// What is at most this part of the memory that is available need not be reserved.
const SMALL_PART: u64 = 16;

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

/// Anonymous memory of `bytes` bytes (a multiple of the page) that others can map. It cannot shrink,
/// and its pages are there, or come for certain when they are touched: touching it never raises
/// SIGBUS, here or at a peer.
///
/// To reserve pages takes about 0.4 µs each, also for those that are never used; most of a
/// communicator's are not when it starts. A memfd belongs to no mount with a size, so where the
/// system lends memory that it may not have (all but `vm.overcommit_memory=2`) and no control group
/// limits this process, a page that is touched is there, as that of any other memory. Then only what
/// may be too much is reserved.
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
    let is_certain = lends_freely()
        && available.is_some_and(|available| bytes.saturating_mul(SMALL_PART) <= available);
    let mut at = if is_certain { bytes } else { 0 };
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

/// Whether pages are lent to this process as long as the system has any. Found out once.
fn lends_freely() -> bool {
    static LENDS: OnceLock<bool> = OnceLock::new();
    *LENDS.get_or_init(|| {
        let is_strict = setting("/proc/sys/vm/overcommit_memory") == "2";
        // Its own group, by the unified hierarchy's line, and what a container sees as the root.
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = groups.lines().find_map(|line| line.strip_prefix("0::"));
        let is_limited = [own.unwrap_or(""), ""]
            .map(|group| format!("/sys/fs/cgroup{}/memory.max", group.trim_end_matches('/')))
            .iter()
            .filter_map(|file| fs::read_to_string(file).ok())
            .any(|limit| limit.trim() != "max");
        // The older hierarchy says no limit by a number beyond any memory.
        let older = fs::read_to_string("/sys/fs/cgroup/memory/memory.limit_in_bytes");
        let is_limited_there = older
            .ok()
            .and_then(|limit| limit.trim().parse::<u64>().ok())
            .is_some_and(|limit| limit < 1 << 60);
        !is_strict && !is_limited && !is_limited_there
    })
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
    fn reserved_memory_has_its_pages_or_needs_few_and_cannot_shrink() {
        let available = available_bytes().unwrap();
        let large = (available / SMALL_PART).next_multiple_of(4096).min(1 << 30);
        for bytes in [1 << 20, large] {
            let memory = reserved_memory("test", bytes).unwrap();
            let stat = rustix::fs::fstat(&memory).unwrap();
            assert_eq!(stat.st_size as u64, bytes);
            let has_all = stat.st_blocks as u64 * 512 >= bytes;
            let may_lack = lends_freely() && bytes <= available / SMALL_PART;
            assert!(has_all || may_lack, "{} blocks", stat.st_blocks);
            assert_eq!(ftruncate(&memory, 0), Err(Errno::PERM));
        }
    }

    #[test]
    fn a_descriptor_limit_is_told_with_its_value() {
        let fault = system_fault("socket", Errno::MFILE);
        assert_eq!(fault.status, STATUS_LIMIT);
        let limit = getrlimit(Resource::Nofile).current.unwrap().to_string();
        assert!(fault.text.contains(&limit), "{fault}");
    }
}
