//! Plans as JSON: there and back, and whatever else is in the file is an error, never a panic.

#![allow(
    clippy::unwrap_used,
    reason = "a test ends at whatever it does not expect"
)]

use hcomm_coll::algorithms::{Params, algorithms};
use hcomm_coll::plan::{Operation, Plan, Shape};
use hcomm_coll::verify::{verify, verify_all};
use hcomm_types::{DataType, Rank, ReduceOp};
use proptest::prelude::*;

fn plans() -> Vec<Plan> {
    let params = Params {
        scratch_bytes: 1024,
        slice_bytes: 256,
        groups: None,
    };
    let mut plans = Vec::new();
    for algorithm in algorithms() {
        for operation in [
            Operation::AllReduce,
            Operation::Broadcast { root: Rank(1) },
            Operation::Barrier,
            Operation::SendRecv {
                from: Rank(2),
                to: Rank(0),
            },
        ] {
            let (dtype, redop) = (DataType::Bf16, ReduceOp::Max);
            let shape = Shape {
                operation,
                ranks: 3,
                count: 301.into(),
                dtype,
                redop,
                in_place: false,
            };
            if algorithm.supports(&shape) {
                plans.push(algorithm.plan(&shape, &params).unwrap());
            }
        }
    }
    plans
}

#[test]
fn a_plan_survives_the_file() {
    for plan in plans() {
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
        assert_eq!(verify(&plan), verify(&serde_json::from_str(&text).unwrap()));
    }
}

#[test]
fn the_file_looks_like_this() {
    let plan = plans()
        .into_iter()
        .find(|plan| plan.shape.operation == Operation::Barrier)
        .unwrap();
    let file: serde_json::Value = serde_json::to_value(&plan).unwrap();
    assert_eq!(
        file["shape"],
        serde_json::json!({
            "operation": "barrier", "ranks": 3, "count": 301, "dtype": "bf16", "redop": "max",
            "in_place": false
        })
    );
    assert_eq!(file["format"], "hcomm-plan-1");
    assert_eq!(
        file["ranks"][0]["threads"][0][0],
        serde_json::json!({ "record": { "peer": 1, "notify": 0 } })
    );
}

#[test]
fn unknown_fields_and_versions_are_refused() {
    let text = serde_json::to_string(&plans()[0]).unwrap();
    let other = text.replace("hcomm-plan-1", "hcomm-plan-2");
    let error = serde_json::from_str::<Plan>(&other)
        .unwrap_err()
        .to_string();
    assert!(error.contains("hcomm-plan-1"), "{error}");
    for name in ["count", "buffer", "algorithm", "threads", "peer"] {
        let misspelt = text.replacen(&format!("\"{name}\""), &format!("\"{name}x\""), 1);
        assert!(serde_json::from_str::<Plan>(&misspelt).is_err(), "{name}");
    }
}

/// Replaces some numbers of a valid file by others, so that most files are read and looked at.
fn renumber(text: &str, changes: &[(usize, u64)]) -> String {
    let mut parts: Vec<String> = Vec::new();
    for character in text.chars() {
        let digit = character.is_ascii_digit();
        match parts.last_mut() {
            Some(part) if part.starts_with(|c: char| c.is_ascii_digit()) == digit => {
                part.push(character);
            }
            _ => parts.push(character.to_string()),
        }
    }
    let numbers: Vec<usize> = (0..parts.len())
        .filter(|part| parts[*part].parse::<u64>().is_ok())
        .collect();
    for (place, value) in changes {
        parts[numbers[place % numbers.len()]] = value.to_string();
    }
    parts.concat()
}

fn some_number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..4u64,
        Just(16),
        Just(600),
        Just(1 << 20),
        Just(u64::MAX),
        Just(1 << 63),
        any::<u64>()
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn garbage_never_panics(text in "\\PC{0,200}") {
        prop_assert!(serde_json::from_str::<Plan>(&text).is_err());
    }

    #[test]
    fn wild_numbers_never_panic(
        which in 0..8usize,
        changes in prop::collection::vec((any::<usize>(), some_number()), 1..4),
    ) {
        let plans = plans();
        let text = serde_json::to_string(&plans[which % plans.len()]).unwrap();
        if let Ok(plan) = serde_json::from_str::<Plan>(&renumber(&text, &changes))
            && let Err(findings) = verify_all(&plan)
        {
                prop_assert!(!findings.is_empty());
                prop_assert!(findings.iter().all(|finding| !finding.to_string().is_empty()));
        }
    }
}
