//! Reading a document so that nothing is lost when it is written again.
//!
//! Go's readers take the last of two members of one name, and match names regardless of case; ours
//! does neither. A document in which the two would see different things is refused rather than
//! guessed at.

use std::cell::Cell;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Number, Value};

/// Longest document that is read, in bytes; engines write some 30 kB.
pub const LONGEST: usize = 16 << 20;
/// Room for one that is written, to begin with.
const USUAL: usize = 48 << 10;

/// Why a document is not edited.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// It is too long.
    #[error("{0} bytes of JSON are more than the {LONGEST} that are read")]
    TooLong(usize),
    /// It is not text.
    #[error("it is no UTF-8: {0}")]
    Utf8(#[from] std::str::Utf8Error),
    /// It is not JSON, or two members of an object have one name.
    #[error("{0}")]
    Syntax(#[from] serde_json::Error),
    /// A member has a name that a Go program takes for another.
    #[error("the member {0} differs from one of the specification only in case")]
    Case(String),
    /// It has a number that would be written otherwise.
    #[error("the number {0} cannot be kept exactly")]
    Number(String),
    /// It is JSON, but not an object.
    #[error("the document is no JSON object")]
    NoObject,
}

/// Reads a document. Order, unknown members and numbers are kept: those that would be written in
/// other digits (`-0`, `1e2`, more than 64 bits) are refused. `serde_json` could keep their text, but
/// then does not read numbers in flattened members, as records have them.
///
/// # Errors
/// Text that is no JSON object, is longer than [`LONGEST`], or has two members of one object with
/// one name, or a number that is not kept.
pub fn read(text: &[u8]) -> Result<Value, JsonError> {
    if text.len() > LONGEST {
        return Err(JsonError::TooLong(text.len()));
    }
    // As a whole it takes less than string by string.
    let text = str::from_utf8(text)?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let floats = Cell::new(false);
    let value = ExactVisitor { floats: &floats }.deserialize(&mut reader)?;
    reader.end()?;
    if floats.get() {
        exact_numbers(text.as_bytes())?;
    }
    if value.is_object() { Ok(value) } else { Err(JsonError::NoObject) }
}

/// That every number is written again as it stands there, in a text that is JSON.
fn exact_numbers(text: &[u8]) -> Result<(), JsonError> {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let rest = &text[at..];
        match byte {
            b'"' => at += string(rest),
            b'-' | b'0'..=b'9' => {
                let part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
                let number = &rest[..rest.iter().take_while(|byte| part(byte)).count()];
                let again = serde_json::from_slice::<Number>(number)?.to_string();
                if again.as_bytes() != number {
                    return Err(JsonError::Number(String::from_utf8_lossy(number).into_owned()));
                }
                at += number.len();
            }
            _ => at += 1,
        }
    }
    Ok(())
}

/// Length of a string with its quotes.
fn string(text: &[u8]) -> usize {
    let mut at = 1;
    loop {
        match text.get(at) {
            None => return text.len(),
            Some(b'"') => return at + 1,
            Some(b'\\') => at += 2,
            Some(_) => at += 1,
        }
    }
}

impl<'de> DeserializeSeed<'de> for ExactVisitor<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// Reads a value in which no object has two members of one name.
#[derive(Clone, Copy)]
struct ExactVisitor<'a> {
    /// Whether there was a number that is none of 64 bits.
    floats: &'a Cell<bool>,
}

impl<'de> Visitor<'de> for ExactVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        // An integer beyond 64 bits arrives here too, rounded.
        self.floats.set(true);
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom(format!("the number {value} cannot be kept exactly")))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let value = members.next_value_seed(self)?;
            match object.entry(name) {
                Entry::Vacant(place) => place.insert(value),
                Entry::Occupied(twice) => {
                    let name = twice.key();
                    return Err(A::Error::custom(format!(
                        "the member {name:?} stands there twice"
                    )));
                }
            };
        }
        Ok(Value::Object(object))
    }
}

/// Writes a document as `serde_json` does, in half the time: nearly no string of an engine has anything
/// in it that is to be escaped, and those are copied whole.
pub fn write(document: &Value) -> Vec<u8> {
    let mut text = Vec::with_capacity(USUAL);
    put(&mut text, document);
    text
}

fn put(text: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => text.extend_from_slice(b"null"),
        Value::Bool(true) => text.extend_from_slice(b"true"),
        Value::Bool(false) => text.extend_from_slice(b"false"),
        Value::Number(number) => text.extend_from_slice(number.to_string().as_bytes()),
        Value::String(string) => put_string(text, string),
        Value::Array(items) => {
            put_all(text, b"[]", items, put);
        }
        Value::Object(members) => {
            put_all(text, b"{}", members, |text, (name, value)| {
                put_string(text, name);
                text.push(b':');
                put(text, value);
            });
        }
    }
}

fn put_all<T>(
    text: &mut Vec<u8>,
    [open, close]: &[u8; 2],
    items: impl IntoIterator<Item = T>,
    mut put: impl FnMut(&mut Vec<u8>, T),
) {
    text.push(*open);
    for (number, item) in items.into_iter().enumerate() {
        if number > 0 {
            text.push(b',');
        }
        put(text, item);
    }
    text.push(*close);
}

fn put_string(text: &mut Vec<u8>, string: &str) {
    // Without a way out of the loop it is done sixteen bytes at a time.
    let special = |byte: u8| byte < b' ' || byte == b'"' || byte == b'\\';
    if string.bytes().fold(false, |found, byte| found | special(byte)) {
        text.extend_from_slice(Value::from(string).to_string().as_bytes());
    } else {
        text.push(b'"');
        text.extend_from_slice(string.as_bytes());
        text.push(b'"');
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn order_unknown_members_and_large_integers_survive() {
        let text = r#"{"b":1,"a":{"z":18446744073709551615,"y":-9223372036854775808},"new":[null,true,1.5,-0.0,"é -0 1e2"]}"#;
        let value = read(text.as_bytes()).unwrap();
        assert_eq!(serde_json::to_string(&value).unwrap(), text);
    }

    fn anything() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,40}".prop_map(Value::from),
            "[\u{0}-\u{1f}a\"\\\\\u{7f}é]{0,40}".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 60, 8, |inner| {
            let members = proptest::collection::vec((".{0,20}", inner.clone()), 0..8);
            prop_oneof![
                proptest::collection::vec(inner, 0..8).prop_map(Value::from),
                members.prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_what_serde_json_writes(value in anything()) {
            prop_assert_eq!(write(&value), serde_json::to_vec(&value).unwrap());
        }
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        for (text, part) in [
            (r#"{"a":1,"a":2}"#, "\"a\" stands there twice"),
            (r#"{"x":{"a":1,"b":[{"c":1,"c":1}]}}"#, "\"c\" stands there twice"),
            (r#"{"a":18446744073709551616}"#, "18446744073709551616 cannot be kept exactly"),
            (r#"{"a":[-9223372036854775809]}"#, "-9223372036854775809 cannot be kept exactly"),
            (r#"{"a":9007199254740993.0}"#, "9007199254740993.0 cannot be kept exactly"),
            (r#"{"a\"1":"\\","b":-0}"#, "number -0 cannot be kept exactly"),
            (r#"{"a":1.5,"b":1e2}"#, "number 1e2 cannot be kept exactly"),
            (r#"{"a":1E-400}"#, "1E-400 cannot be kept exactly"),
            (r#"{"a":1e400}"#, "out of range"),
            ("[1]", "no JSON object"),
            ("{} {}", "trailing"),
            ("", "EOF"),
            ("{", "EOF"),
        ] {
            let error = read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let error = read(b"{\"a\":\"\xff\"}").unwrap_err().to_string();
        assert!(error.starts_with("it is no UTF-8: invalid utf-8 sequence"), "{error}");
        let deep = "[".repeat(100_000);
        assert!(read(deep.as_bytes()).unwrap_err().to_string().contains("recursion"));
    }
}
