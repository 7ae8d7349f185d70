//! Ranks that are started by the launchers of Open MPI and MPICH, as Debian has them: they say who a
//! rank is by variables of their own, and know nothing of us. Where one is missing, its test says so
//! and passes; `cargo xtask test` installs both.

use std::process::Command;

use hcomm::{Communicator, Options, Result, Settings};

use crate::job::{HeldPort, Process, program, this_program};

/// A launcher and what it wants to hear.
struct Launcher {
    program: &'static str,
    options: &'static [&'static str],
    /// What it says in its environment.
    variable: &'static str,
}

const OPEN_MPI: Launcher = Launcher {
    program: "mpirun.openmpi",
    // Containers run as root and have fewer cores than ranks; the ranks need no MPI and no network of it.
    options: &[
        "--allow-run-as-root",
        "--oversubscribe",
        "--bind-to",
        "none",
    ],
    variable: "OMPI_COMM_WORLD_RANK",
};
const MPICH: Launcher = Launcher {
    program: "mpirun.mpich",
    options: &[],
    variable: "PMI_RANK",
};

impl Launcher {
    /// Starts ranks of a program, after the variables `vars`; nothing where there is no launcher.
    fn start(&self, name: &str, ranks: u32, vars: &[(&str, &str)]) -> Option<Process> {
        let is_there = Command::new(self.program).arg("--version").output().is_ok();
        if !is_there {
            eprintln!("skipped: there is no {}", self.program);
            return None;
        }
        // What the test program would hand to a rank goes through the launcher.
        let rank = program(name);
        let mut launcher = Command::new(self.program);
        launcher
            .args(self.options)
            .args(["-n", &ranks.to_string()])
            .arg(this_program())
            .args(rank.get_args());
        for (name, value) in rank.get_envs() {
            match value {
                Some(value) => launcher.env(name, value),
                None => launcher.env_remove(name),
            };
        }
        launcher
            .env("HCOMM_JOB_KEY", "the key of the test")
            .envs(vars.iter().copied());
        Some(Process::start(self.program, launcher))
    }

    fn joins(&self, vars: &[(&str, &str)]) {
        if let Some(mut job) = self.start("join", 3, vars) {
            job.wait_for_code(0);
            let ups = job.stdout().matches(crate::programs::UP).count();
            assert_eq!(ups, 3, "{}", job.output());
        }
    }

    /// All ranks name the one whose buffer is not like theirs.
    fn fails_alike(&self) {
        let port = HeldPort::new();
        let address = port.address().to_string();
        let vars = [
            ("HCOMM_ROOT", &*address),
            ("HCOMM_CONNECT_TIMEOUT", "20"),
            ("ITEST_ODD_BUFFER", self.variable),
        ];
        if let Some(mut job) = self.start("odd buffer", 3, &vars) {
            let status = job.wait();
            assert!(!status.success(), "{}", job.output());
            let said = job.stdout();
            let errors: Vec<&str> = said
                .lines()
                .filter(|line| line.contains(crate::programs::ERROR.trim()))
                .collect();
            // A launcher ends the others when the first rank fails, so not all may come to say it.
            assert!(!errors.is_empty(), "{}", job.output());
            for error in errors {
                assert!(
                    error.contains("HCOMM_BUFFER_BYTES is 2097152 at rank 2"),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn ranks_of_open_mpi_find_together() {
    let port = HeldPort::new();
    OPEN_MPI.joins(&[("HCOMM_ROOT", &port.address().to_string())]);
}

#[test]
fn ranks_of_mpich_find_together() {
    let port = HeldPort::new();
    MPICH.joins(&[("HCOMM_ROOT", &port.address().to_string())]);
}

/// What a rank does whose launcher has said that it is rank 2: it has another buffer than the others.
pub(crate) fn with_an_odd_buffer_at_rank_2() -> Result<Communicator> {
    let variable = std::env::var("ITEST_ODD_BUFFER").expect("the name of a variable");
    let rank = std::env::var(variable).expect("a rank by the launcher");
    let mut settings = Settings::from_env()?;
    if rank == "2" {
        settings = settings.with_buffer_bytes(2 << 20);
    }
    Communicator::from_env_with(&Options::new(settings))
}

/// The first port is taken by somebody else, so rank 0 takes the next one, and all find it there.
#[test]
fn ranks_find_a_root_in_a_range_of_ports() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let first = taken.local_addr().unwrap().port();
    let range = format!("127.0.0.1:{first}-{}", first.saturating_add(20));
    OPEN_MPI.joins(&[("HCOMM_ROOT", &range)]);
}

#[test]
fn a_setting_that_differs_is_told_under_open_mpi_and_mpich() {
    OPEN_MPI.fails_alike();
    MPICH.fails_alike();
}
