//! What an edit has put into a document is taken out of it again, though others have edited it since.

use serde_json::{Map, Value};

/// Takes out of `now` what differs from `before` to `after`. What is neither in the one nor in the
/// other stays, and so does what somebody else has changed since.
pub fn revert(before: &Value, after: &Value, now: &mut Value) {
    if now == after {
        now.clone_from(before);
        return;
    }
    match (before, after, now) {
        (_, one, other) if std::mem::discriminant(one) != std::mem::discriminant(other) => {}
        (Value::Object(before), Value::Object(after), Value::Object(now)) => {
            members(before, after, now);
        }
        (Value::Array(before), Value::Array(after), Value::Array(now)) => items(before, after, now),
        // A member that was null, and stood for an empty one.
        (Value::Null, Value::Object(after), Value::Object(now)) => members(&Map::new(), after, now),
        (Value::Null, Value::Array(after), Value::Array(now)) => items(&[], after, now),
        _ => {}
    }
}

fn members(before: &Map<String, Value>, after: &Map<String, Value>, now: &mut Map<String, Value>) {
    for (name, after) in after {
        let Some(present) = now.get_mut(name) else { continue };
        if let Some(before) = before.get(name) {
            revert(before, after, present);
            continue;
        }
        revert(&Value::Null, after, present);
        // What was made for that and has nothing else in it.
        if present.is_null()
            || present.as_object().is_some_and(Map::is_empty)
            || present.as_array().is_some_and(Vec::is_empty)
        {
            now.shift_remove(name);
        }
    }
}

/// Edits put new items behind those that are there, and others in their place.
fn items(before: &[Value], after: &[Value], now: &mut Vec<Value>) {
    for added in after.iter().skip(before.len()).rev() {
        if let Some(at) = now.iter().rposition(|item| item == added) {
            now.remove(at);
        }
    }
    for (index, old) in before.iter().enumerate() {
        match after.get(index) {
            Some(new) if new == old => {}
            Some(new) => {
                if let Some(item) = now.iter_mut().find(|item| *item == new) {
                    item.clone_from(old);
                }
            }
            None => now.insert(index.min(now.len()), old.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_put_in_goes_and_what_others_have_put_in_stays() {
        for (before, after, now, expected) in [
            (
                json!({"a": 1}),
                json!({"a": 1, "m": "x"}),
                json!({"a": 2, "m": "x"}),
                json!({"a": 2}),
            ),
            // Made for what was put in, and somebody else's now.
            (
                json!({"p": {}}),
                json!({"p": {}, "hooks": {"poststop": [1]}}),
                json!({"p": {}, "hooks": {"poststop": [1], "prestart": [2]}}),
                json!({"p": {}, "hooks": {"prestart": [2]}}),
            ),
            (
                json!({"hooks": null}),
                json!({"hooks": {"poststop": [1]}}),
                json!({"hooks": {"poststop": [1, 2]}, "x": 1}),
                json!({"hooks": {"poststop": [2]}, "x": 1}),
            ),
            (
                json!(["A=1", "B=1"]),
                json!(["A=1", "B=1:2", "C=3"]),
                json!(["Z=0", "A=1", "B=1:2", "C=3", "D=4"]),
                json!(["Z=0", "A=1", "B=1", "D=4"]),
            ),
            // Changed since: theirs.
            (json!(["B=1"]), json!(["B=2"]), json!(["B=3"]), json!(["B=3"])),
            (json!({}), json!({"s": "1"}), json!({"s": "2"}), json!({"s": "2"})),
            (json!([1, 2, 3]), json!([4, 3]), json!([4, 3, 9]), json!([1, 2, 3, 9])),
            (json!({"a": [1]}), json!({"a": [1, 2]}), json!({"a": "x"}), json!({"a": "x"})),
        ] {
            let mut reverted = now.clone();
            revert(&before, &after, &mut reverted);
            assert_eq!(reverted, expected, "{before} {after} {now}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(Value::Null), (0..4_u8).prop_map(Value::from)];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec(("[a-d]", inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_three_are_compared_without_harm(before in value(), after in value(), now in value()) {
            let mut reverted = now.clone();
            revert(&before, &after, &mut reverted);
            if now == after {
                prop_assert_eq!(&reverted, &before);
            }
            let mut same = now.clone();
            revert(&before, &before, &mut same);
            prop_assert_eq!(same, now);
        }
    }
}
