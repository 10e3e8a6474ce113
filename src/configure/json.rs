//! One value set in a JSON text, everything else left byte for byte: the order of members, how deep
//! they stand, and what stands on one line.

use serde::de::IgnoredAny;
use serde_json::Value;

/// A text is no JSON object, or a value stands where an object is to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// No JSON.
    #[error("line {line}, column {column}: {message}")]
    Parse {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// Another value.
    #[error("{0:?} is no object")]
    NoObject(String),
}

/// Indentation where the text shows none.
const UNIT: &str = "  ";

/// The text with `value` at that path of members; objects on the way are made. An empty text counts
/// as an empty object.
///
/// # Errors
/// The text is no JSON, or another value stands on the way.
pub fn set(text: &str, path: &[&str], value: &Value) -> Result<String, JsonError> {
    if text.trim().is_empty() {
        return set("{}\n", path, value);
    }
    serde_json::from_str::<IgnoredAny>(text).map_err(|error| JsonError::Parse {
        line: error.line(),
        column: error.column(),
        message: error.to_string(),
    })?;
    let start = text.len() - text.trim_start().len();
    let whole = Object::at(text, start).ok_or_else(|| JsonError::NoObject("the text".into()))?;
    let style = Style::of(text, &whole);
    let (mut object, mut path) = (whole, path);
    // Down as far as there are members.
    while let Some((key, rest)) = path.split_first() {
        // Of several members by one name the last counts.
        let Some(member) = object.members.iter().rev().find(|member| member.key == *key) else {
            break;
        };
        if rest.is_empty() {
            let text_of = style.write(value, style.depth(text, member.key_at));
            return Ok(splice(text, member.value.clone(), &text_of));
        }
        object = Object::at(text, member.value.start)
            .ok_or_else(|| JsonError::NoObject((*key).to_owned()))?;
        path = rest;
    }
    let Some((key, rest)) = path.split_first() else { return Ok(text.to_owned()) };
    let nested = rest.iter().rev().fold(value.clone(), |inner, key| {
        Value::Object([((*key).to_owned(), inner)].into_iter().collect())
    });
    Ok(insert(text, &object, &style, key, &nested))
}

/// The text without the member at that path, and everything else as it was.
///
/// # Errors
/// The text is no JSON object.
pub fn remove(text: &str, path: &[&str]) -> Result<String, JsonError> {
    // A path of no members changes nothing, and is checked.
    let mut text = set(text, &[], &Value::Null)?;
    // Of several members by one name all go, lest an earlier one comes to count.
    while let Some(range) = member_range(&text, path) {
        text.replace_range(range, "");
    }
    Ok(text)
}

/// What has to go with a member: a comma too, and what stands between it and its neighbour.
fn member_range(text: &str, path: &[&str]) -> Option<std::ops::Range<usize>> {
    let (last, tables) = path.split_last()?;
    let mut object = Object::at(text, text.len() - text.trim_start().len())?;
    for key in tables {
        let member = object.members.iter().rev().find(|member| member.key == *key)?;
        object = Object::at(text, member.value.start)?;
    }
    let at = object.members.iter().rposition(|member| member.key == *last)?;
    let member = &object.members[at];
    Some(match (object.members.get(at + 1), at.checked_sub(1)) {
        (Some(next), _) => member.key_at..next.key_at,
        (None, Some(before)) => object.members[before].value.end..member.value.end,
        (None, None) => object.open + 1..object.close,
    })
}

fn insert(text: &str, object: &Object, style: &Style, key: &str, value: &Value) -> String {
    let key = Value::from(key).to_string();
    if let Some(last) = object.members.last() {
        let lead = &text[object.before(last)..last.key_at];
        // On a line of its own, or behind the others.
        return if lead.contains('\n') {
            let indent = style.depth(text, last.key_at);
            let value = style.write(value, indent);
            let new = format!(",{}{indent}{key}: {value}", style.newline);
            splice(text, last.value.end..last.value.end, &new)
        } else {
            splice(text, last.value.end..last.value.end, &format!(", {key}: {value}"))
        };
    }
    let outer = style.depth(text, object.open);
    let indent = format!("{outer}{}", style.unit);
    let value = style.write(value, &indent);
    let newline = style.newline;
    splice(
        text,
        object.open..object.close + 1,
        &format!("{{{newline}{indent}{key}: {value}{newline}{outer}}}"),
    )
}

fn splice(text: &str, range: std::ops::Range<usize>, new: &str) -> String {
    format!("{}{new}{}", &text[..range.start], &text[range.end..])
}

/// How the text is laid out.
#[derive(Debug)]
struct Style {
    unit: String,
    newline: &'static str,
}

impl Style {
    fn of(text: &str, whole: &Object) -> Self {
        let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
        let unit = whole.members.first().and_then(|first| line_indent(text, first.key_at));
        let unit = unit.filter(|unit| !unit.is_empty()).unwrap_or(UNIT).to_owned();
        Self { unit, newline }
    }

    /// The white space at the beginning of the line that a place is on.
    fn depth<'a>(&self, text: &'a str, at: usize) -> &'a str {
        let line = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let rest = &text[line..at];
        &rest[..rest.len() - rest.trim_start().len()]
    }

    /// A value, its lines after the first as deep as `indent` and more.
    fn write(&self, value: &Value, indent: &str) -> String {
        let mut text = String::new();
        self.write_to(&mut text, value, indent);
        text
    }

    fn write_to(&self, text: &mut String, value: &Value, indent: &str) {
        match value {
            Value::Object(members) if !members.is_empty() => {
                let inner = format!("{indent}{}", self.unit);
                for (at, (key, value)) in members.iter().enumerate() {
                    text.push_str(if at == 0 { "{" } else { "," });
                    text.push_str(self.newline);
                    text.push_str(&inner);
                    text.push_str(&Value::from(key.as_str()).to_string());
                    text.push_str(": ");
                    self.write_to(text, value, &inner);
                }
                text.push_str(self.newline);
                text.push_str(indent);
                text.push('}');
            }
            value => text.push_str(&value.to_string()),
        }
    }
}

/// The indentation in front of a place, if nothing else is there.
fn line_indent(text: &str, at: usize) -> Option<&str> {
    let line = text[..at].rfind('\n')? + 1;
    let indent = &text[line..at];
    indent.trim().is_empty().then_some(indent)
}

/// An object of a text that is known to be JSON.
#[derive(Debug)]
struct Object {
    /// Place of `{`.
    open: usize,
    /// Place of `}`.
    close: usize,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    key: String,
    key_at: usize,
    value: std::ops::Range<usize>,
}

impl Object {
    /// The object that begins there; `None`: something else does.
    fn at(text: &str, open: usize) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.get(open) != Some(&b'{') {
            return None;
        }
        let mut members = Vec::new();
        let mut at = blank(bytes, open + 1);
        while bytes.get(at) == Some(&b'"') {
            let key_end = string(bytes, at)?;
            let key = serde_json::from_str(text.get(at..key_end)?).ok()?;
            // The colon.
            let start = blank(bytes, blank(bytes, key_end) + 1);
            let end = value(bytes, start)?;
            members.push(Member { key, key_at: at, value: start..end });
            at = blank(bytes, end);
            if bytes.get(at) == Some(&b',') {
                at = blank(bytes, at + 1);
            }
        }
        (bytes.get(at) == Some(&b'}')).then_some(Self { open, close: at, members })
    }

    /// The end of what stands in front of a member.
    fn before(&self, member: &Member) -> usize {
        let earlier = self.members.iter().take_while(|other| other.key_at < member.key_at);
        earlier.last().map_or(self.open + 1, |other| other.value.end)
    }
}

/// The first place from `at` on that is not blank.
fn blank(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

/// The end of the string that begins at `at`.
fn string(bytes: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// The end of the value that begins at `at`.
fn value(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at)? {
        b'"' => string(bytes, at),
        b'{' | b'[' => {
            let (mut depth, mut at) = (0_usize, at);
            loop {
                match bytes.get(at)? {
                    b'"' => {
                        at = string(bytes, at)?;
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth -= 1,
                    _ => {}
                }
                at += 1;
                if depth == 0 {
                    return Some(at);
                }
            }
        }
        _ => {
            let rest = bytes[at..].iter();
            let end = rest.take_while(|b| !b.is_ascii_whitespace() && !b",]}".contains(b)).count();
            Some(at + end)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_set_and_nothing_else_changes() {
        for (before, path, value, after) in [
            ("", &["a"][..], json!(1), "{\n  \"a\": 1\n}\n"),
            ("{}", &["a", "b"], json!(true), "{\n  \"a\": {\n    \"b\": true\n  }\n}"),
            ("{ }\n", &["a"], json!("x"), "{\n  \"a\": \"x\"\n}\n"),
            ("{\"b\":1}", &["a"], json!(2), "{\"b\":1, \"a\": 2}"),
            (
                "{\"b\":1,\n \"c\":[1,\n2]}",
                &["a"],
                json!(2),
                "{\"b\":1,\n \"c\":[1,\n2],\n \"a\": 2}",
            ),
            ("{\n\t\"b\": {}\n}\n", &["b", "a"], json!(2), "{\n\t\"b\": {\n\t\t\"a\": 2\n\t}\n}\n"),
            (
                "{\n    \"b\": {\"x\": \"}\\\"{\"}\n}\n",
                &["b", "a"],
                json!({"p": "q"}),
                "{\n    \"b\": {\"x\": \"}\\\"{\", \"a\": {\"p\":\"q\"}}\n}\n",
            ),
            ("{\"a\": 1 , \"b\": 2}", &["a"], json!(null), "{\"a\": null , \"b\": 2}"),
            // Of two members by one name the last counts.
            ("{\"a\": 1, \"a\": 2}", &["a"], json!(3), "{\"a\": 1, \"a\": 3}"),
            (
                "{\r\n  \"b\": 1\r\n}\r\n",
                &["a"],
                json!(2),
                "{\r\n  \"b\": 1,\r\n  \"a\": 2\r\n}\r\n",
            ),
        ] {
            assert_eq!(set(before, path, &value).unwrap(), after, "{before:?}");
        }
    }

    #[test]
    fn what_is_no_object_is_named() {
        for text in ["[]", "1", "{\"a\": [1]}"] {
            let error = set(text, &["a", "b"], &json!(1)).unwrap_err();
            assert!(matches!(error, JsonError::NoObject(_)), "{text}: {error}");
        }
        for text in ["{", "{\"a\": 1,}", "{} {}", "// x\n{}"] {
            let error = set(text, &["a"], &json!(1)).unwrap_err();
            assert!(matches!(error, JsonError::Parse { line: 1.., .. }), "{text}: {error}");
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            "[a-z\"\\\\{}\\[\\],: \n]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-c]", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Compact or pretty: the same value with the one member set, and with the new text taken
        /// out again the old one.
        #[test]
        fn nothing_else_is_changed(
            document in values(), pretty in any::<bool>(), new in values(),
            path in prop::collection::vec("[a-d]", 1..4),
        ) {
            let before = if pretty {
                serde_json::to_string_pretty(&document).unwrap()
            } else {
                document.to_string()
            };
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let Ok(after) = set(&before, &path, &new) else { return Ok(()) };
            let mut expected = document;
            let mut at = &mut expected;
            for key in &path {
                if !at.is_object() { *at = json!({}); }
                at = &mut at[*key];
            }
            *at = new;
            prop_assert_eq!(serde_json::from_str::<Value>(&after).unwrap(), expected);
            let same = before.bytes().zip(after.bytes()).take_while(|(a, b)| a == b).count();
            let end = before.bytes().rev().zip(after.bytes().rev()).take_while(|(a, b)| a == b).count();
            // What differs is one run of bytes.
            prop_assert!(same + end >= before.len().min(after.len()) || before.len() > same);
        }

        /// What is set where nothing was, and then removed, leaves what was.
        #[test]
        fn what_was_added_can_be_removed(
            document in values(), pretty in any::<bool>(), key in "[a-d]",
        ) {
            let Value::Object(members) = &document else { return Ok(()) };
            let before = if pretty {
                serde_json::to_string_pretty(&document).unwrap()
            } else {
                document.to_string()
            };
            let after = remove(&before, &[&key]).unwrap();
            let mut expected = members.clone();
            expected.shift_remove(&key);
            let left: Value = serde_json::from_str(&after).unwrap();
            prop_assert_eq!(left, Value::Object(expected));
            if !members.contains_key(&key) {
                prop_assert_eq!(&after, &before);
                if !members.is_empty() {
                    let set = set(&before, &[&key], &json!({"x": 1})).unwrap();
                    prop_assert_eq!(remove(&set, &[&key]).unwrap(), before);
                }
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,64}", path in prop::collection::vec("[a-c]", 0..3)) {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let _ = set(&text, &path, &json!(1));
            let _ = remove(&text, &path);
        }
    }
}
