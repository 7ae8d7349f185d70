//! `hcomm topo --file`, `hcomm plan simulate`: clusters that are not here.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::command_plan::{folder, with_file};

/// A description of a cluster among the fixtures of the graph.
pub(crate) fn cluster(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../hcomm-topo/tests/fixtures/clusters")
        .join(name)
        .with_extension("json")
}

#[test]
fn a_cluster_is_described_dumped_and_drawn() {
    let file = cluster("cards4x4");
    let (text, _) = with_file("topo --file", &file, 0);
    let layer = text.lines().next().unwrap();
    assert_eq!(layer, "layer 0: 1 net of 8 ranks");
    let link = |pair: &str| {
        let begin = format!("link {pair}: ");
        text.lines()
            .find_map(|line| line.strip_prefix(&begin))
            .unwrap_or_else(|| panic!("no {pair}: {text}"))
    };
    assert!(link("0-3").starts_with("hccs "), "{text}");
    assert!(link("3-4").starts_with("pcie "), "{text}");

    let (svg, _) = with_file("topo --svg --file", &file, 0);
    assert!(svg.starts_with("<svg "), "{svg}");
    let (dot, _) = with_file("topo --dot --file", &file, 0);
    assert!(dot.starts_with("graph hcomm {"), "{dot}");
    // A dump is a file like others.
    let (json, _) = with_file("topo --json --file", &file, 0);
    let folder = folder();
    let dump = folder.path().join("dump.json");
    fs::write(&dump, &json).unwrap();
    let (again, _) = with_file("topo --load", &dump, 0);
    assert_eq!(again, text);
}

#[test]
fn a_wrong_file_is_one_line_with_its_place() {
    let folder = folder();
    let file = folder.path().join("table.json");
    let table = "{\"version\": \"1.0\", \"status\": \"completed\", \"server_list\": [\n\
                 {\"server_id\": \"a\", \"device\": [\n\
                 {\"device_id\": 0, \"rank_id\": 0},\n\
                 {\"device_id\": 1, \"rank_id\": 0}]}]}";
    for (text, place) in [
        (
            table,
            "table.json: line 4: server_list[0].device[1].rank_id is 0: the rank is claimed twice, \
             first on line 3",
        ),
        ("\u{0}\u{1}", "table.json: line 1: no JSON"),
        ("{\"a\": 1}", "neither a rank table"),
    ] {
        fs::write(&file, text).unwrap();
        let (stdout, stderr) = with_file("topo --file", &file, 2);
        assert_eq!(stdout, "");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains(place), "{stderr}");
    }
    fs::write(&file, b"{\n\xff").unwrap();
    let (_, stderr) = with_file("topo --file", &file, 2);
    assert!(stderr.contains("line 2: the file is no text"), "{stderr}");
}

#[test]
fn an_operation_is_simulated_and_algorithms_are_compared() {
    let file = cluster("mesh8");
    let (text, _) = with_file("plan simulate all_reduce -b 1M --topo", &file, 0);
    for word in [
        "hierarchical ",
        "ring ",
        "on the bus",
        "critical path",
        "port hccs0, out",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    // By the meshes of the host, which its only net does not tell apart.
    let (text, _) = with_file(
        "plan simulate all_reduce -b 64M --topo",
        &cluster("cards4x4"),
        0,
    );
    let best = text.lines().nth(1).unwrap();
    assert!(best.contains(" by plane 0 of layer 0 "), "{text}");
    let words = "plan simulate all_reduce -b 8M --copy-gb-per-s 0 --reduce-gb-per-s 0 --task-ns 0 \
                 --algo ring --json --topo";
    let (json, _) = with_file(words, &file, 0);
    let value: Value = serde_json::from_str(&json).unwrap();
    // 14 steps of 1 MiB at 28 GB/s, 1.5 µs each.
    let time = value["time_us"].as_f64().unwrap();
    let wanted = 14.0 * (1.5 + 1_048_576.0 / 28_000.0);
    assert!((time / wanted - 1.0).abs() < 0.02, "{time}, {wanted}");
    let timeline = value["timeline"].as_array().unwrap();
    assert_eq!(Some(timeline.len() as u64), value["messages"].as_u64());
    let bytes = |list: &str| {
        let list = value[list].as_array().unwrap();
        list.iter()
            .map(|it| it["bytes"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(bytes("timeline"), 14 * (8 << 20));
    // Each byte goes out of a port, over a cable, into a port.
    assert_eq!(bytes("wires"), 3 * 14 * (8 << 20));
}

#[test]
fn what_cannot_be_simulated_says_why() {
    for (words, place) in [
        (
            "plan simulate all_reduce -p 99 --algo ring --topo",
            "the graph has 8 ranks",
        ),
        (
            "plan simulate all_reduce --algo rings --topo",
            "there is no algorithm rings",
        ),
        (
            "plan simulate all_reduce --groups 1,2 --topo",
            "--groups names 2 ranks",
        ),
    ] {
        let (_, stderr) = with_file(words, &cluster("mesh8"), 2);
        assert!(stderr.contains(place), "{stderr}");
    }
    let (_, stderr) = with_file(
        "plan simulate all_to_all --algo pairwise --topo",
        &cluster("rack64"),
        0,
    );
    assert_eq!(stderr, "");
}

#[test]
fn groups_over_slow_links_are_recognised_and_a_better_mapping_is_printed() {
    let file = cluster("cards4x4");
    let (text, _) = with_file("topo advise --groups dp=2,tp=4 --file", &file, 0);
    for words in [
        "2 messages share the way up from switch server0/pcie1.0, 12.0 GB/s for each",
        "other links of these rings could do 30.0 GB/s, and wait for it",
        "    0,4,1,5,2,6,3,7",
        "times as fast",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (text, _) = with_file("topo advise --groups tp=4,dp=2 --file", &file, 0);
    assert!(text.ends_with("no better mapping was found\n"), "{text}");
    let words = "topo advise --groups tp=2:50,dp=4 --mapping 0,4,1,5,2,6,3,7 --json --file";
    let (json, _) = with_file(words, &file, 0);
    let value: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["given"]["kinds"][0]["traffic"], 50);
    let better = value["better"]["kinds"][0]["slowest"]["protocol"].as_str();
    assert_eq!(better, Some("hccs"), "{json}");
    for (groups, place) in [("tp=3", "make 3 positions"), ("tp", "no kind of groups")] {
        let (_, stderr) = with_file(&format!("topo advise --groups {groups} --file"), &file, 2);
        assert!(stderr.contains(place), "{stderr}");
    }
}
