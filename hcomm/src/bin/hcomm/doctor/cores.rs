//! Cores, how much of them this process gets, and the clock.

use std::time::{Duration, Instant};

use super::finding::Finding;
use super::host::Host;

/// A look at the clock: what reading it costs, and whether it ever went back.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockLook {
    pub(super) read_ns: u64,
    pub(super) went_back: bool,
}

impl ClockLook {
    /// Reads it many times. The fastest of several rounds counts: in others this process may have
    /// waited for a core.
    pub(super) fn look() -> Self {
        const ROUNDS: u32 = 20;
        const READS: u32 = 1000;
        let mut least = Duration::MAX;
        let mut went_back = false;
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            let mut last = begun;
            for _ in 0..READS {
                let now = Instant::now();
                went_back |= now < last;
                last = now;
            }
            least = least.min(last.saturating_duration_since(begun) / READS);
        }
        Self {
            read_ns: u64::try_from(least.as_nanos()).unwrap_or(u64::MAX),
            went_back,
        }
    }
}

/// A clock that costs more than this is asked from the kernel.
const SLOW_CLOCK: Duration = Duration::from_nanos(500);

/// `allowed` are the cores that this process may run on.
pub(super) fn check(host: &Host<'_>, allowed: u32, online: u32, clock: ClockLook) -> Vec<Finding> {
    let mut findings = vec![cores(host, allowed, online), quota(host, allowed)];
    findings.extend(busy(host, online));
    findings.extend(governor(host));
    findings.push(clocks(host, clock));
    findings
}

fn cores(host: &Host<'_>, allowed: u32, online: u32) -> Finding {
    const CHECK: &str = "cores";
    const SUBJECT: &str = "cores that this process may use";
    let seen = format!("{allowed} of {online}");
    let ranks = host.local_ranks;
    if ranks > allowed && ranks <= online && host.is_rank {
        let seen = seen + "; as it should be if the launcher gives each rank cores of its own";
        Finding::note(CHECK, SUBJECT, seen)
    } else if ranks > allowed {
        Finding::warning(CHECK, SUBJECT, seen)
            .expected(format!("one for each of {ranks} ranks here"))
            .fix("start fewer ranks on this host, or widen their cores (`taskset`, `--cpuset-cpus`, `--bind none`): ranks that share a core wait for each other's turn")
    } else {
        Finding::ok(CHECK, SUBJECT, seen)
    }
}

/// The share of time that control groups give, and whether it was ever used up.
fn quota(host: &Host<'_>, allowed: u32) -> Finding {
    const CHECK: &str = "cpu_quota";
    const SUBJECT: &str = "processor time of the control group";
    let mut least: Option<f64> = None;
    let mut throttled = 0;
    for folder in host.groups("cpu") {
        let read = |name: &str| host.text(&format!("{folder}/{name}"));
        let pair = read("cpu.max").or_else(|| {
            let quota = read("cpu.cfs_quota_us")?;
            Some(format!("{quota} {}", read("cpu.cfs_period_us")?))
        });
        let parsed = pair.as_deref().and_then(|pair| {
            let (quota, period) = pair.split_once(' ')?;
            let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
            (quota > 0.0 && period > 0.0).then_some(quota / period)
        });
        if let Some(cores) = parsed {
            least = Some(least.map_or(cores, |least| least.min(cores)));
            let count = host.line(&format!("{folder}/cpu.stat"), "nr_throttled");
            throttled = throttled.max(count.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0));
        }
    }
    let Some(least) = least else {
        return Finding::ok(CHECK, SUBJECT, "no limit");
    };
    let seen = format!("{least:.2} cores, throttled {throttled} times");
    let wanted = f64::from(host.local_ranks.min(allowed));
    if least < wanted || throttled > 0 {
        Finding::warning(CHECK, SUBJECT, seen)
            .expected(format!("{wanted} cores or more for {} ranks here, which spin while they wait", host.local_ranks))
            .fix("raise cpu.max of the control group (`--cpus` of a container, `limits.cpu` of a pod), or start fewer ranks")
    } else {
        Finding::ok(CHECK, SUBJECT, seen)
    }
}

/// Others that run here, and what a hypervisor takes away.
fn busy(host: &Host<'_>, online: u32) -> Vec<Finding> {
    let mut findings = Vec::new();
    let load = host.text("/proc/loadavg");
    let load = load.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    if let Some(load) = load {
        let (check, subject, seen) = ("load", "others that run here", format!("load {load}"));
        findings.push(if load > f64::from(online) {
            Finding::note(check, subject, seen).expected(format!(
                "less than the {online} cores: what is measured here now is slow"
            ))
        } else {
            Finding::ok(check, subject, seen)
        });
    }
    let times = host.line("/proc/stat", "cpu ").unwrap_or_default();
    let times: Vec<u64> = times.split(' ').filter_map(|n| n.parse().ok()).collect();
    if let [_, _, _, _, _, _, _, stolen, ..] = times[..] {
        let all: u64 = times[..8].iter().sum();
        let share = stolen as f64 * 100.0 / all.max(1) as f64;
        let (check, subject) = ("steal", "time that a hypervisor gave to others");
        let seen = format!("{share:.1} % since the system started");
        findings.push(if share > 2.0 {
            Finding::note(check, subject, seen)
                .expected("0: waits of milliseconds come from outside of this system")
        } else {
            Finding::ok(check, subject, seen)
        });
    }
    findings
}

fn governor(host: &Host<'_>) -> Option<Finding> {
    let governor = host.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")?;
    let (check, subject) = ("governor", "frequency of the cores");
    Some(if governor == "powersave" {
        Finding::note(check, subject, governor)
            .expected("performance: latencies vary less")
            .fix("`cpupower frequency-set -g performance`")
    } else {
        Finding::ok(check, subject, governor)
    })
}

fn clocks(host: &Host<'_>, look: ClockLook) -> Finding {
    const CHECK: &str = "clock";
    const SUBJECT: &str = "the clock that never goes back";
    let source = host
        .text("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .unwrap_or_else(|| "unknown".to_owned());
    let seen = format!("{source}, {} ns to read", look.read_ns);
    if look.went_back {
        Finding::error(CHECK, SUBJECT, seen + ", went back")
            .expected("each reading is as late as the one before: deadlines rest on it")
            .fix("boot with `clocksource=` another one (see available_clocksource beside it), or repair the hypervisor's clock")
    } else if Duration::from_nanos(look.read_ns) > SLOW_CLOCK {
        Finding::warning(CHECK, SUBJECT, seen)
            .expected("tsc, or another that is read without the kernel")
            .fix("`echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource` as root, if it is available")
    } else {
        Finding::ok(CHECK, SUBJECT, seen)
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::super::host::recorded::Recorded;
    use super::*;

    const GOOD: ClockLook = ClockLook {
        read_ns: 30,
        went_back: false,
    };

    fn of<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
        let found = findings.iter().find(|finding| finding.check == check);
        found.unwrap_or_else(|| panic!("no {check}: {findings:?}"))
    }

    #[test]
    fn too_few_cores_and_a_quota_are_found() {
        let system = Recorded::new(&[
            ("/proc/self/cgroup", "0::/pod/job"),
            ("/sys/fs/cgroup/pod/job/cpu.max", "max 100000"),
            ("/sys/fs/cgroup/pod/cpu.max", "150000 100000"),
            (
                "/sys/fs/cgroup/pod/cpu.stat",
                "usage_usec 5\nnr_throttled 7\n",
            ),
        ]);
        let findings = check(&Host::new(&system, 4, 4), 2, 8, GOOD);
        assert_eq!(of(&findings, "cores").verdict, Verdict::Warning);
        let quota = of(&findings, "cpu_quota");
        assert_eq!(quota.verdict, Verdict::Warning);
        assert_eq!(quota.seen, "1.50 cores, throttled 7 times");
        let system = Recorded::new(&[
            ("/proc/self/cgroup", "1:cpu:/"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"),
        ]);
        let findings = check(&Host::new(&system, 2, 2), 2, 2, GOOD);
        assert_eq!(of(&findings, "cpu_quota").seen, "no limit");
        assert_eq!(of(&findings, "cores").verdict, Verdict::Ok);
        // A rank may be bound to its own core; more ranks than cores share some.
        for (online, verdict) in [(2, Verdict::Note), (1, Verdict::Warning)] {
            let host = Host::new(&system, 2, 2).by_rank(true);
            let findings = check(&host, 1, online, GOOD);
            assert_eq!(of(&findings, "cores").verdict, verdict);
        }
    }

    #[test]
    fn what_others_take_is_noted() {
        let system = Recorded::new(&[
            ("/proc/loadavg", "9.50 3 3 1/2 3"),
            ("/proc/stat", "cpu  50 0 20 20 0 0 0 10 0 0\ncpu0 1\n"),
            (
                "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                "powersave\n",
            ),
        ]);
        let findings = check(&Host::new(&system, 1, 1), 4, 4, GOOD);
        for name in ["load", "steal", "governor"] {
            assert_eq!(of(&findings, name).verdict, Verdict::Note, "{name}");
        }
        assert!(of(&findings, "steal").seen.starts_with("10.0 %"));
    }

    #[test]
    fn a_slow_clock_is_a_warning_and_a_wrong_one_an_error() {
        let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let system = Recorded::new(&[(source, "hpet\n")]);
        let at = |read_ns, went_back| {
            let look = ClockLook { read_ns, went_back };
            let findings = check(&Host::new(&system, 1, 1), 1, 1, look);
            of(&findings, "clock").clone()
        };
        assert_eq!(at(30, false).verdict, Verdict::Ok);
        assert_eq!(at(30, true).verdict, Verdict::Error);
        let slow = at(1200, false);
        assert_eq!(slow.verdict, Verdict::Warning);
        assert_eq!(slow.seen, "hpet, 1200 ns to read");
        assert!(!ClockLook::look().went_back);
    }
}
