//! TOML tables as engines keep them: looked up, laid over each other, and changed so that what is
//! not set keeps its place, its comments and its form.

use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value, value};

/// A text is no TOML.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct TomlError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub message: String,
}

/// Parses a text.
///
/// # Errors
/// It is no TOML.
pub fn parse(text: &str) -> Result<DocumentMut, TomlError> {
    text.parse::<DocumentMut>().map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.get(..at).unwrap_or(text).matches('\n').count() + 1;
        let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        TomlError { line, message }
    })
}

/// What is at that path of tables.
pub fn get<'a>(table: &'a dyn TableLike, path: &[&str]) -> Option<&'a Item> {
    let (last, tables) = path.split_last()?;
    let mut table = table;
    for key in tables {
        table = table.get(key)?.as_table_like()?;
    }
    table.get(last)
}

/// The table at that path.
pub fn table_at<'a>(table: &'a dyn TableLike, path: &[&str]) -> Option<&'a dyn TableLike> {
    if path.is_empty() { Some(table) } else { get(table, path)?.as_table_like() }
}

/// The text at that path.
pub fn text_at<'a>(table: &'a dyn TableLike, path: &[&str]) -> Option<&'a str> {
    get(table, path)?.as_str()
}

/// The texts of the list at that path; `None`: there is no list.
pub fn texts_at(table: &dyn TableLike, path: &[&str]) -> Option<Vec<String>> {
    let list = get(table, path)?.as_array()?;
    Some(list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

/// Lays `from` over `into`: tables are merged, everything else is replaced.
pub fn lay(into: &mut Table, from: &dyn TableLike) {
    for (key, item) in from.iter() {
        let both = into.get_mut(key).and_then(Item::as_table_mut).zip(item.as_table_like());
        match both {
            Some((old, new)) => lay(old, new),
            None => {
                into.insert(key, plain(item));
            }
        }
    }
}

/// An item without comments, places and forms: what it says, to stand somewhere else.
pub fn plain(item: &Item) -> Item {
    if let Some(table) = item.as_table_like() {
        let mut copy = Table::new();
        for (key, item) in table.iter() {
            copy.insert(key, plain(item));
        }
        return Item::Table(copy);
    }
    let Some(old) = item.as_value() else { return item.clone() };
    let mut new = old.clone();
    new.decor_mut().clear();
    if let Value::Array(list) = &mut new {
        list.fmt();
    }
    Item::Value(new)
}

/// Whether two items say the same, in whatever form.
pub fn same(one: &Item, other: &Item) -> bool {
    if let (Some(one), Some(other)) = (one.as_table_like(), other.as_table_like()) {
        let inner = |(key, item)| other.get(key).is_some_and(|other| same(item, other));
        return one.len() == other.len() && one.iter().all(inner);
    }
    one.as_value().zip(other.as_value()).is_some_and(|(one, other)| same_value(one, other))
}

fn same_value(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::String(one), Value::String(other)) => one.value() == other.value(),
        (Value::Integer(one), Value::Integer(other)) => one.value() == other.value(),
        (Value::Float(one), Value::Float(other)) => one.value() == other.value(),
        (Value::Boolean(one), Value::Boolean(other)) => one.value() == other.value(),
        (Value::Datetime(one), Value::Datetime(other)) => one.value() == other.value(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| same_value(one, other))
        }
        (Value::InlineTable(one), Value::InlineTable(other)) => {
            let inner = |(key, value)| other.get(key).is_some_and(|other| same_value(value, other));
            one.len() == other.len() && one.iter().all(inner)
        }
        _ => false,
    }
}

/// A list of texts.
pub fn list(texts: impl IntoIterator<Item = impl AsRef<str>>) -> Array {
    texts.into_iter().map(|text| text.as_ref().to_owned()).collect()
}

/// The table by that name, made where it is missing. `implied`: without a header of its own.
pub fn table<'a>(
    parent: &'a mut dyn TableLike,
    key: &str,
    implied: bool,
) -> Option<&'a mut dyn TableLike> {
    if !parent.contains_key(key) {
        let mut table = Table::new();
        table.set_implicit(implied);
        parent.insert(key, Item::Table(table));
    }
    parent.get_mut(key)?.as_table_like_mut()
}

/// Sets a value, with the comment behind the old one, or as deep as its neighbours.
pub fn put(table: &mut dyn TableLike, key: &str, new: Option<impl Into<Value>>) {
    let Some(new) = new else { return };
    let mut new = new.into();
    match table.get_mut(key) {
        Some(Item::Value(old)) => {
            // The comment behind a value belongs to it.
            *new.decor_mut() = old.decor().clone();
            *old = new;
        }
        _ => {
            let indent = indent(table);
            table.insert(key, value(new));
            if let Some((mut key, indent)) = table.key_mut(key).zip(indent) {
                key.leaf_decor_mut().set_prefix(indent);
            }
        }
    }
}

/// The white space in front of the keys that a table has.
fn indent(table: &dyn TableLike) -> Option<String> {
    let (first, _) = table.iter().find(|(_, item)| item.is_value())?;
    let prefix = table.key(first)?.leaf_decor().prefix()?.as_str()?;
    let line = prefix.rsplit('\n').next().unwrap_or_default();
    (!line.is_empty() && line.trim().is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_same_is_told_whatever_its_form() {
        let of = |text: &str| Item::Table(parse(text).unwrap().as_table().clone());
        for (one, other, expected) in [
            ("a = 'x'", "a = \"x\" # y", true),
            ("a = 0x10\nb = [1,\n2]", "b = [1, 2]\na = 16", true),
            ("a = { b = true }", "[a]\nb = true", true),
            ("a = 1", "a = '1'", false),
            ("a = 1", "a = 1\nb = 2", false),
            ("a = [1]", "a = [1, 2]", false),
            ("a = 1979-05-27", "a = 1979-05-27", true),
        ] {
            assert_eq!(same(&of(one), &of(other)), expected, "{one:?} {other:?}");
        }
    }

    #[test]
    fn later_tables_are_laid_over_earlier_ones() {
        let mut all = Table::new();
        for text in ["[a]\nx = 1\n[a.b]\ny = [1]\n", "a.b.y = [2] # new\na.z = 3\n"] {
            lay(&mut all, parse(text).unwrap().as_table());
        }
        let expected = parse("[a]\nx = 1\nb = {y = [2]}\nz = 3").unwrap();
        assert!(same(&Item::Table(all), expected.as_item()));
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        assert_eq!(parse("a = 1\n[b\n").unwrap_err().line, 2);
    }
}
