//! `hcomm topo --file`: graphs of clusters that are not here.

use std::fs;
use std::path::{Path, PathBuf};

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
