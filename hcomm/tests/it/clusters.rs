//! Files that say how ranks are wired: rank tables that start a job, and what communicators know of
//! them.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use hcomm::plan::{Operation, Shape};
use hcomm::{Communicator, DataType, ErrorKind, Options, Rank, ReduceOp, Settings};
use hcomm_coll::simulate::{Limits, Rates, choose};
use tempfile::TempDir;

use crate::collectives::{all_gather, all_reduce};
use crate::job::{Job, Process, all_succeed};
use crate::team;

/// A rank table of one server.
fn table(ranks: u32, port: u16) -> String {
    let device = |rank: u32| {
        format!(
            r#"{{"device_id": "{rank}", "rank_id": "{rank}", "device_ip": "192.168.0.{rank}", "host_port": "{port}"}}"#
        )
    };
    let devices: Vec<String> = (0..ranks).map(device).collect();
    format!(
        r#"{{"status": "completed", "version": "1.0", "server_count": "1", "server_list": [
        {{"server_id": "127.0.0.1", "device": [{}]}}]}}"#,
        devices.join(",\n")
    )
}

fn written(folder: &TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A rank that knows itself by a rank table alone.
fn by_table(job: &Job, rank: u32, path: &str) -> Command {
    let mut command = job.command(rank);
    for name in [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    ] {
        command.env_remove(name);
    }
    command
        .env("RANK_ID", rank.to_string())
        .env("RANK_TABLE_FILE", path);
    command
}

#[test]
fn a_rank_table_starts_a_job() {
    let folder = tempfile::tempdir().unwrap();
    let job = Job::new("join", 3);
    let path = written(&folder, "table", &table(3, job.address().port()));
    let mut ranks: Vec<Process> = (0..3)
        .map(|rank| Process::start(format!("rank {rank}"), by_table(&job, rank, &path)))
        .collect();
    all_succeed(&mut ranks);
}

#[test]
fn ranks_with_different_tables_find_out() {
    let folder = tempfile::tempdir().unwrap();
    let job = Job::new("join", 2);
    let right = table(2, job.address().port());
    let paths = [
        written(&folder, "right", &right),
        written(
            &folder,
            "other",
            &right.replace("192.168.0.1", "192.168.7.1"),
        ),
    ];
    let mut ranks: Vec<Process> = (0..2)
        .zip(&paths)
        .map(|(rank, path)| Process::start(format!("rank {rank}"), by_table(&job, rank, path)))
        .collect();
    for rank in &mut ranks {
        let report = rank.wait_for_error();
        assert_eq!(report.kind, "Mismatch", "{report:?}");
        report.must_say(&["HCOMM_TOPOLOGY", "SHA-256", "rank 1"]);
    }
}

#[test]
fn a_program_names_table_and_rank() {
    let folder = tempfile::tempdir().unwrap();
    let job = Job::new("join", 2);
    let path = written(&folder, "table", &table(2, job.address().port()));
    std::thread::scope(|scope| {
        for rank in [0, 1].map(Rank) {
            let path = &path;
            scope.spawn(move || {
                let comm = Communicator::from_rank_table(path, rank, &Options::default()).unwrap();
                assert_eq!((comm.rank(), comm.size()), (rank, 2));
                let mut sum = [0];
                comm.all_reduce(&[rank.0 + 1], &mut sum, ReduceOp::Sum)
                    .unwrap();
                assert_eq!(sum, [3]);
                comm.close().unwrap();
            });
        }
    });
    let error = Communicator::from_rank_table(&path, Rank(2), &Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(
        error.to_string().contains("ranks go from 0 to 1"),
        "{error}"
    );
}

/// Two nodes of two ranks, in a network of their own.
const CLUSTER: &str = r#"{"format": "hcomm-cluster", "version": 1, "switches": [{"name": "core"}],
    "nodes": [{"name": "n{node}", "count": 2, "ranks": 2,
     "wires": [{"protocol": "hccs", "shape": "mesh", "gb_per_s": 28}],
     "ports": [{"protocol": "roce", "switch": "core", "gb_per_s": 25}]}]}"#;

#[test]
fn communicators_of_some_ranks_know_their_part_of_the_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(&folder, "cluster", CLUSTER);
    let options = Options::new(Settings::default().with_topology(&*path));
    let ranks = Communicator::init_all_with(4, &options).unwrap();
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(move || {
                let cluster = comm.cluster().unwrap().graph();
                assert_eq!(cluster.hosts().len(), 2);
                // One of each node, the last one first.
                let odd = comm.split(Some(comm.rank().0 % 2), 9 - comm.rank().0);
                let odd = odd.unwrap().unwrap();
                let part = odd.cluster().unwrap();
                assert_eq!((part.graph().size(), part.graph().hosts().len()), (2, 2));
                let me = Rank(1 - comm.rank().0 / 2);
                assert_eq!(odd.rank(), me);
                assert_eq!(
                    part.graph().endpoints(me).len(),
                    cluster.endpoints(comm.rank()).len()
                );
                odd.close().unwrap();
                comm.close().unwrap();
            });
        }
    });
    let error = Communicator::init_all_with(3, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let words = error.to_string();
    assert!(
        words.contains("4 ranks") && words.contains("has 3") && words.contains(&path),
        "{words}"
    );
}

/// Over wires, what the file says decides: a tree that crosses the slow port once each way.
#[test]
fn algorithms_are_chosen_for_the_cluster_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    // Three ranks close together, one behind a slow port, all numbered the other way round.
    let slow = r#"{"format": "hcomm-cluster", "version": 1, "switches": [{"name": "core"}], "nodes": [
        {"name": "far", "ranks": 1,
         "ports": [{"protocol": "roce", "switch": "core", "gb_per_s": 0.1, "latency_ns": 9000}]},
        {"name": "near", "ranks": 3,
         "wires": [{"protocol": "hccs", "shape": "mesh", "gb_per_s": 50}],
         "ports": [{"protocol": "roce", "switch": "core", "gb_per_s": 25}]}]}"#;
    let path = written(&folder, "cluster", slow);
    let settings = Settings::default().with_transports("tcp");
    let options = Options::new(settings.with_topology(&*path));
    let names = team::run_with(4, &options, |comm| {
        let shape = |operation, count: u64| Shape {
            operation,
            ranks: 4,
            count: count.into(),
            dtype: DataType::F32,
            redop: ReduceOp::Sum.into(),
            in_place: false,
        };
        let names = [1_u64, 1000, 300_000].map(|count| {
            let all = shape(Operation::AllReduce, count);
            let known = comm.algorithm(&all).unwrap();
            all_reduce::<f32>(&comm, ReduceOp::Sum, count as usize, false);
            all_reduce::<f32>(&comm, ReduceOp::Sum, count as usize, true);
            all_gather::<u16>(&comm, count as usize, false);
            known
        });
        let cluster = Arc::clone(comm.cluster().unwrap());
        let whole = shape(Operation::AllReduce, 262_144);
        let expected = choose(cluster.graph(), &whole, Rates::DEVICE, Limits::CHOICE).unwrap();
        assert_eq!(comm.algorithm(&whole).unwrap(), expected.0.algorithm.name());
        comm.close().unwrap();
        names
    });
    assert!(
        names.iter().all(|of_rank| *of_rank == names[0]),
        "{names:?}"
    );
}
