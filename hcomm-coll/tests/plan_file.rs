//! Plans as JSON: there and back, and whatever else is in the file is an error, never a panic.

#![allow(
    clippy::unwrap_used,
    reason = "a test ends at whatever it does not expect"
)]

use hcomm_coll::algorithms::{Params, algorithms};
use hcomm_coll::plan::{Operation, Plan, Shape};
use hcomm_coll::verify::{Finding, verify, verify_all};
use hcomm_types::{DataType, Rank, Reduction};
use proptest::prelude::*;
use serde_json::Value;

fn plans() -> Vec<Plan> {
    let params = Params {
        scratch_bytes: 1024,
        slice_bytes: 256,
        groups: None,
        flows: 1,
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
            let (dtype, redop) = (DataType::Bf16, Reduction::Max);
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
    let file: Value = serde_json::to_value(&plan).unwrap();
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

/// Changes bytes: another one, one more, one less, or a piece of the file once more.
fn damage(text: &str, changes: &[(usize, u8, u8)]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for (place, how, value) in changes {
        let at = place % bytes.len().max(1);
        match how % 4 {
            0 if at < bytes.len() => bytes[at] = *value,
            1 => bytes.insert(at, *value),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            _ => {
                let piece = bytes[at..bytes.len().min(at + usize::from(*value))].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn some_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        some_number().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z_]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-z_]{0,8}", inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// The values inside, the whole one first.
fn count_values(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count_values).sum(),
        Value::Object(fields) => fields.values().map(count_values).sum(),
        _ => 0,
    }
}

/// The value of this number among them.
fn nth_value<'v>(value: &'v mut Value, number: &mut usize) -> Option<&'v mut Value> {
    if *number == 0 {
        return Some(value);
    }
    *number -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| nth_value(item, number)),
        Value::Object(fields) => fields
            .values_mut()
            .find_map(|field| nth_value(field, number)),
        _ => None,
    }
}

/// Reads a text and, if it is a plan, verifies it; whatever is wrong is said in words.
fn look_at(text: &str) -> Result<(), TestCaseError> {
    match Plan::from_json(text) {
        Err(error) => prop_assert!(error.detail().contains("line "), "{error}"),
        Ok(plan) => {
            if let Err(findings) = verify_all(&plan) {
                prop_assert!(!findings.is_empty());
                let say = |finding: &Finding| !finding.to_string().is_empty();
                prop_assert!(findings.iter().all(say));
            }
        }
    }
    Ok(())
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

    #[test]
    fn damaged_bytes_never_panic(
        which in 0..64usize,
        changes in prop::collection::vec(any::<(usize, u8, u8)>(), 1..4),
    ) {
        let plans = plans();
        let text = serde_json::to_string(&plans[which % plans.len()]).unwrap();
        look_at(&damage(&text, &changes))?;
    }

    #[test]
    fn other_values_never_panic(
        which in 0..64usize,
        changes in prop::collection::vec((any::<usize>(), some_json()), 1..3),
    ) {
        let plans = plans();
        let mut file = serde_json::to_value(&plans[which % plans.len()]).unwrap();
        for (place, value) in changes {
            let mut number = place % count_values(&file);
            *nth_value(&mut file, &mut number).unwrap() = value;
        }
        look_at(&file.to_string())?;
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        look_at(&String::from_utf8_lossy(&bytes))?;
    }
}
