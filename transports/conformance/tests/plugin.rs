//! The suite on a library by its path, and the suite's own tests.
//!
//! * `cargo test -p hcomm-transport-conformance -- --plugin FILE [--group NAME]... [--check NAME]...`
//!   (or `HCOMM_CONFORMANCE_PLUGIN=FILE`) runs all groups and checks, or these, on a library and
//!   prints a report; the exit status says whether it conforms.
//! * Without a file it runs the tests at the end of this page, one of them on a plugin in C that
//!   is compiled against the header alone.

// Private parts of the suite, tested from here: this program does not use all of each.
#[allow(dead_code)]
#[path = "../src/content.rs"]
mod content;
#[allow(dead_code)]
#[path = "../src/kernel.rs"]
mod kernel;

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use hcomm_transport_conformance::{Group, Subject, Verdict, run, run_some};
use hcomm_types::{DataType, ReduceOp};

use content::Content;

const TESTS: [(&str, fn()); 6] = [
    (
        "c_plugin_passes_shape_and_data",
        c_plugin_passes_shape_and_data,
    ),
    (
        "a_file_that_is_no_plugin_fails_with_the_reason",
        a_file_that_is_no_plugin_fails_with_the_reason,
    ),
    (
        "a_peer_that_is_mapped_rightly_passes",
        a_peer_that_is_mapped_rightly_passes,
    ),
    ("each_lie_is_caught", each_lie_is_caught),
    (
        "content_depends_on_seed_and_position",
        content_depends_on_seed_and_position,
    ),
    (
        "kernel_combines_known_numbers",
        kernel_combines_known_numbers,
    ),
];

fn main() -> ExitCode {
    let wish = match Wish::parse(std::env::args().skip(1)) {
        Ok(wish) => wish,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    if let Some(path) = &wish.plugin {
        return report(path, &wish.groups, &wish.checks);
    }
    if wish.list {
        if !wish.ignored {
            TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
        }
        return ExitCode::SUCCESS;
    }
    run_tests(&wish)
}

/// Runs groups on a library and prints what came out.
fn report(path: &Path, groups: &[Group], checks: &[String]) -> ExitCode {
    let groups = if groups.is_empty() {
        &Group::ALL
    } else {
        groups
    };
    let report = run_some(&Subject::file(path), groups, checks);
    println!("{report}");
    for complaint in report.complaints() {
        println!("{complaint}");
    }
    ExitCode::from(u8::from(!report.is_success()))
}

fn run_tests(wish: &Wish) -> ExitCode {
    let mut failed = 0;
    let mut ran = 0;
    for (name, test) in TESTS
        .iter()
        .filter(|(name, _)| !wish.ignored && wish.wants(name))
    {
        ran += 1;
        let passed = catch_unwind(test).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += u32::from(!passed);
    }
    println!("test result: {} passed; {failed} failed", ran - failed);
    ExitCode::from(u8::from(failed > 0))
}

/// The command line: ours, and what cargo and nextest hand to every test program.
#[derive(Default)]
struct Wish {
    plugin: Option<PathBuf>,
    groups: Vec<Group>,
    checks: Vec<String>,
    list: bool,
    ignored: bool,
    exact: bool,
    filters: Vec<String>,
}

impl Wish {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut wish = Self {
            plugin: std::env::var_os("HCOMM_CONFORMANCE_PLUGIN").map(PathBuf::from),
            ..Self::default()
        };
        while let Some(arg) = args.next() {
            let mut value = |what: &str| args.next().ok_or_else(|| format!("{what} needs a value"));
            match arg.as_str() {
                "--plugin" => wish.plugin = Some(value("--plugin")?.into()),
                "--group" => wish.groups.push(value("--group")?.parse()?),
                "--check" => wish.checks.push(value("--check")?),
                "--list" => wish.list = true,
                "--ignored" => wish.ignored = true,
                "--exact" => wish.exact = true,
                "--format" | "--test-threads" | "--color" => {
                    value(&arg)?;
                }
                "--nocapture" | "--no-capture" | "--include-ignored" | "-q" | "--quiet" => {}
                other if other.starts_with('-') => {
                    return Err(format!(
                        "unknown option {other}; known: --plugin FILE, --group NAME, --check NAME, \
                         --list"
                    ));
                }
                name => wish.filters.push(name.to_owned()),
            }
        }
        Ok(wish)
    }

    fn wants(&self, name: &str) -> bool {
        self.filters.is_empty()
            || self.filters.iter().any(|filter| {
                if self.exact {
                    name == filter
                } else {
                    name.contains(filter)
                }
            })
    }
}

/// Compiles a C file of `tests/c` into a library of the test's own folder.
fn compile(name: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder in the build's own");
    let library = folder.join(format!("libhcomm_transport_{name}.so"));
    let status = Command::new("cc")
        .args([
            "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o",
        ])
        .arg(&library)
        .arg(package.join("tests/c").join(format!("{name}.c")))
        .arg("-I")
        .arg(package.join("../abi/include"))
        .status()
        .expect("cc runs: the build needs a C compiler");
    assert!(status.success(), "cc ended with {status}");
    library
}

fn c_plugin_passes_shape_and_data() {
    let library = compile("mini");
    let report = run(&Subject::file(&library), &[Group::Shape, Group::Data]);
    report.expect_success();
    let passed = |group| {
        report
            .entries()
            .iter()
            .any(|entry| entry.group == group && entry.verdict == Verdict::Passed)
    };
    assert!(passed(Group::Shape) && passed(Group::Data), "{report}");
    std::fs::remove_dir_all(library.parent().expect("it lies in a folder")).expect("removed");
}

fn a_file_that_is_no_plugin_fails_with_the_reason() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("no-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder in the build's own");
    let file = folder.join("libhcomm_transport_empty.so");
    std::fs::write(&file, b"").expect("written");
    let report = run(&Subject::file(&file), &[Group::Shape]);
    assert!(!report.is_success());
    assert!(report.to_string().contains("dlopen"), "{report}");
    std::fs::remove_dir_all(folder).expect("removed");
}

/// The report of checks of a group on a plugin that is wrong in one way (`HCOMM_FAULTY`), and whether
/// it passed.
fn report_on_faulty(way: &str, group: Group, checks: &[&str]) -> (String, bool) {
    let program = std::env::current_exe().expect("the program knows its own path");
    let file = "libhcomm_transport_faulty.so";
    let plugin = program
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(file))
        .find(|path| path.is_file())
        .expect("the faulty transport was built for this test");
    let mut command = Command::new(&program);
    command.arg("--plugin").arg(plugin).env("HCOMM_FAULTY", way);
    command.args(["--group", group.name()]);
    for check in checks {
        command.args(["--check", check]);
    }
    let output = command.output().expect("the program starts again");
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    (report, output.status.success())
}

/// Checks of what the host may reach of a peer, and of what people are told.
const MAPPED: [&str; 5] = [
    "mapped_peer",
    "mapped_notifies",
    "mapped_notifies_wake",
    "description_fits",
    "description",
];

fn a_peer_that_is_mapped_rightly_passes() {
    let (report, passed) = report_on_faulty("map_peer", Group::Honesty, &MAPPED);
    assert!(passed, "{report}");
    for check in MAPPED {
        let line = format!("passed   honesty/{check} on faulty0");
        assert!(report.contains(&line), "no {line:?} in {report}");
    }
    let (report, passed) = report_on_faulty("map_peer", Group::Death, &["destroyed_end"]);
    assert!(passed, "{report}");
}

fn each_lie_is_caught() {
    let lies: [(&str, Group, &[&str]); 9] = [
        ("map_early", Group::Honesty, &["mapped_peer"]),
        (
            "map_lines",
            Group::Honesty,
            &["mapped_peer", "mapped_notifies"],
        ),
        ("map_notifies", Group::Honesty, &["mapped_peer"]),
        (
            "map_stride",
            Group::Honesty,
            &["mapped_peer", "mapped_notifies"],
        ),
        (
            "map_bell",
            Group::Honesty,
            &["mapped_peer", "mapped_notifies_wake"],
        ),
        ("map_state", Group::Honesty, &["mapped_peer"]),
        ("map_state", Group::Death, &["destroyed_end"]),
        ("describe_long", Group::Honesty, &["description_fits"]),
        ("describe_cut", Group::Honesty, &["description_fits"]),
    ];
    for (way, group, checks) in lies {
        let (report, passed) = report_on_faulty(way, group, checks);
        assert!(!passed, "{way}: {report}");
        for check in checks {
            let line = format!("FAILED   {group}/{check} on faulty0");
            assert!(report.contains(&line), "{way}: no {line:?} in {report}");
        }
    }
}

fn content_depends_on_seed_and_position() {
    let content = Content::Bytes { seed: 5 };
    let whole = content.render(0, 1000);
    // Any part is what the whole has there.
    for (start, len) in [(0, 1000), (1, 7), (8, 8), (13, 500), (999, 1)] {
        assert_eq!(
            content.render(start as u64, len),
            &whole[start..start + len]
        );
    }
    // Shifted by anything, or with another seed, nearly every byte differs.
    for shift in 1..64 {
        let same = whole
            .iter()
            .zip(&whole[shift..])
            .filter(|(a, b)| a == b)
            .count();
        assert!(same < 40, "{same} bytes are the same {shift} further on");
    }
    let other = Content::Bytes { seed: 6 }.render(0, 1000);
    let same = whole.iter().zip(&other).filter(|(a, b)| a == b).count();
    assert!(same < 40, "{same} bytes are the same with another seed");
}

fn kernel_combines_known_numbers() {
    let combine = |dtype, redop, a: &[u8], b: &[u8]| kernel::combine(dtype, redop, a, b);
    let i8s = |redop, a: i8, b: i8| {
        combine(DataType::I8, redop, &a.to_ne_bytes(), &b.to_ne_bytes())[0] as i8
    };
    assert_eq!(i8s(ReduceOp::Sum, 100, 100), -56);
    assert_eq!(i8s(ReduceOp::Prod, -7, 19), 123);
    assert_eq!(i8s(ReduceOp::Max, -3, 2), 2);
    assert_eq!(i8s(ReduceOp::Min, -3, 2), -3);
    let u8s = |redop, a: u8, b: u8| combine(DataType::U8, redop, &[a], &[b])[0];
    assert_eq!(u8s(ReduceOp::Max, 0xfd, 2), 0xfd);
    let halves = combine(
        DataType::F16,
        ReduceOp::Prod,
        &hcomm_types::f16::from_f32(1.5).to_ne_bytes(),
        &hcomm_types::f16::from_f32(-4.0).to_ne_bytes(),
    );
    assert_eq!(halves[..2], hcomm_types::f16::from_f32(-6.0).to_ne_bytes());
    // Each operation on the elements of two contents is what the kernel makes of them.
    for dtype in DataType::ALL {
        for redop in ReduceOp::ALL {
            let size = dtype.size();
            let (left, right) = (
                Content::Elements { dtype, seed: 1 }.render(0, 40 * size),
                Content::Elements { dtype, seed: 2 }.render(0, 40 * size),
            );
            let made = Content::Reduced {
                dtype,
                redop,
                left: 1,
                right: 2,
            }
            .render(0, 40 * size);
            for index in (0..40).map(|i| i * size) {
                let one = combine(dtype, redop, &left[index..], &right[index..]);
                assert_eq!(made[index..index + size], one[..size]);
            }
            assert_ne!(made, left);
        }
    }
}
