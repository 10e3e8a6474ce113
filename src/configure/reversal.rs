//! What is ours taken out of a file that somebody has changed since: three texts in (before us, by
//! us, now), one text out. What somebody set to another value than ours is theirs, and stays; so
//! does everything that we never touched.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};
use toml_edit::{DocumentMut, Item, TableLike};

use super::json;
use super::tables::{get, parse, put};

/// What holds an engine's runtimes, one by each name.
const RUNTIMES: &str = "runtimes";
/// Keys by which engines name the runtime that they take without being told.
const DEFAULTS: [&str; 4] =
    ["default-runtime", "default_runtime", "default_runtime_name", "runtime"];
/// The version of a file's form says how the rest is read, so it goes with the rest only.
const VERSION: &str = "version";

/// The text that is left when what we have put in is gone; `None`: nothing is. The error is the
/// form that cannot be read.
pub(super) fn without(path: &Path, was: &str, ours: &str, now: &str) -> Result<Option<String>, ()> {
    if path.extension().is_some_and(|end| end == "json") {
        of_json(was, ours, now)
    } else {
        of_toml(was, ours, now)
    }
}

/// One step back.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    /// The member goes.
    Remove(Vec<String>),
    /// The member is what it was.
    Restore(Vec<String>),
    /// These go from a list.
    Drop(Vec<String>, Vec<Value>),
}

/// The steps, and the tables that go with them where they are left empty, innermost first.
#[derive(Debug, Default)]
struct Steps {
    steps: Vec<Step>,
    made: Vec<Vec<String>>,
    /// Names of runtimes that go.
    runtimes: BTreeSet<String>,
}

impl Steps {
    fn between(was: &Value, ours: &Value, now: &Value) -> Self {
        let mut steps = Self::default();
        let none = Map::new();
        let object = |value: &'_ Value| value.as_object().cloned().unwrap_or_else(|| none.clone());
        steps.walk(&[], &object(was), &object(ours), &object(now));
        let mut gone = Vec::new();
        steps.references(&mut Vec::new(), now, &mut gone);
        for path in gone {
            let step = Step::Remove(path);
            if !steps.steps.contains(&step) {
                steps.steps.push(step);
            }
        }
        steps
    }

    fn walk(
        &mut self,
        path: &[String],
        was: &Map<String, Value>,
        ours: &Map<String, Value>,
        now: &Map<String, Value>,
    ) {
        let in_runtimes = path.last().is_some_and(|last| last == RUNTIMES);
        let empty = Map::new();
        for (key, mine) in ours {
            let Some(there) = now.get(key) else { continue };
            let at = [path, std::slice::from_ref(key)].concat();
            match (was.get(key), mine, there) {
                (None, ..) if in_runtimes => {
                    self.runtimes.insert(key.clone());
                    self.steps.push(Step::Remove(at));
                }
                (None, ..) if path.is_empty() && key == VERSION => {}
                (None, Value::Object(mine), Value::Object(there)) => {
                    self.walk(&at, &empty, mine, there);
                    self.made.push(at);
                }
                (None, ..) if mine == there => self.steps.push(Step::Remove(at)),
                (Some(old), ..) if old == mine => {}
                (Some(Value::Object(old)), Value::Object(mine), Value::Object(there)) => {
                    self.walk(&at, old, mine, there);
                }
                (Some(_), ..) if mine == there => self.steps.push(Step::Restore(at)),
                (Some(Value::Array(old)), Value::Array(mine), Value::Array(there)) => {
                    let added = |item: &&Value| !old.contains(item) && there.contains(item);
                    let added: Vec<Value> = mine.iter().filter(added).cloned().collect();
                    if !added.is_empty() {
                        self.steps.push(Step::Drop(at, added));
                    }
                }
                // Somebody has set it: it is theirs.
                (None | Some(_), ..) => {}
            }
        }
        for key in was.keys().filter(|key| !ours.contains_key(*key) && !now.contains_key(*key)) {
            self.steps.push(Step::Restore([path, std::slice::from_ref(key)].concat()));
        }
    }

    /// Where a runtime that goes is named as the default: without it no container would start.
    fn references(&self, path: &mut Vec<String>, now: &Value, gone: &mut Vec<Vec<String>>) {
        let Value::Object(members) = now else { return };
        for (key, value) in members {
            path.push(key.clone());
            let names = value.as_str().is_some_and(|name| self.runtimes.contains(name));
            if names && DEFAULTS.contains(&key.as_str()) {
                gone.push(path.clone());
            }
            self.references(path, value, gone);
            path.pop();
        }
    }
}

fn of_json(was: &str, ours: &str, now: &str) -> Result<Option<String>, ()> {
    let value = |text: &str| -> Result<Value, ()> {
        let blank = text.trim().is_empty();
        if blank { Ok(Value::Null) } else { serde_json::from_str(text).map_err(|_| ()) }
    };
    let before = value(was)?;
    let steps = Steps::between(&before, &value(ours)?, &value(now)?);
    let mut text = now.to_owned();
    let at = |path: &[String], of: &Value| {
        path.iter().try_fold(of.clone(), |value, key| value.get(key).cloned())
    };
    let words = |path: &[String]| -> Vec<String> { path.to_vec() };
    for step in &steps.steps {
        let (path, new) = match step {
            Step::Remove(path) => (words(path), None),
            Step::Restore(path) => (words(path), at(path, &before)),
            Step::Drop(path, items) => {
                let mut list = at(path, &value(&text)?).unwrap_or_default();
                if let Value::Array(list) = &mut list {
                    list.retain(|item| !items.contains(item));
                }
                (words(path), Some(list))
            }
        };
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        text = match new {
            None => json::remove(&text, &path),
            Some(new) => json::set(&text, &path, &new),
        }
        .map_err(|_| ())?;
    }
    for path in &steps.made {
        if at(path, &value(&text)?).is_some_and(|left| left == Value::Object(Map::new())) {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            text = json::remove(&text, &path).map_err(|_| ())?;
        }
    }
    let left = value(&text)?;
    let nothing = left.is_null() || left.as_object().is_some_and(Map::is_empty);
    Ok((!nothing || !was.trim().is_empty()).then_some(text))
}

fn of_toml(was: &str, ours: &str, now: &str) -> Result<Option<String>, ()> {
    let read = |text: &str| -> Result<(DocumentMut, Value), ()> {
        let document = parse(text).map_err(|_| ())?;
        let value = toml::from_str::<Value>(text).map_err(|_| ())?;
        Ok((document, value))
    };
    let (before, before_value) = read(was)?;
    let (mut document, now_value) = read(now)?;
    let steps = Steps::between(&before_value, &read(ours)?.1, &now_value);
    for step in &steps.steps {
        let (Step::Remove(path) | Step::Restore(path) | Step::Drop(path, _)) = step;
        let Some((last, tables)) = path.split_last() else { continue };
        let Some(table) = table_at(document.as_table_mut(), tables) else { continue };
        match step {
            Step::Remove(_) => _ = table.remove(last),
            Step::Restore(path) => {
                let path: Vec<&str> = path.iter().map(String::as_str).collect();
                match get(before.as_table(), &path) {
                    // The comment in front of it and behind it stays.
                    Some(Item::Value(value)) => put(table, last, Some(value.clone())),
                    Some(item) => _ = table.insert(last, item.clone()),
                    None => {}
                }
            }
            Step::Drop(_, items) => {
                let list = table.get_mut(last).and_then(Item::as_array_mut);
                if let Some(list) = list {
                    list.retain(|item| {
                        !item.as_str().is_some_and(|text| items.contains(&Value::from(text)))
                    });
                }
            }
        }
    }
    for path in &steps.made {
        let Some((last, tables)) = path.split_last() else { continue };
        let Some(table) = table_at(document.as_table_mut(), tables) else { continue };
        if table.get(last).and_then(Item::as_table_like).is_some_and(TableLike::is_empty) {
            table.remove(last);
        }
    }
    let left = document.as_table();
    let nothing = left.iter().all(|(key, _)| key == VERSION && !before.contains_key(VERSION));
    Ok((!nothing || !was.trim().is_empty()).then(|| document.to_string()))
}

fn table_at<'a>(
    mut table: &'a mut dyn TableLike,
    path: &[String],
) -> Option<&'a mut dyn TableLike> {
    for key in path {
        table = table.get_mut(key)?.as_table_like_mut()?;
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_json_ours_goes_and_theirs_stays() {
        let ours = r#"{"runtimes": {"rdma": {"path": "/w"}}, "features": {"cdi": true}}"#;
        for (was, ours, now, expected) in [
            ("", ours, ours, None),
            // Written anew in another order, with more in it.
            (
                "",
                ours,
                r#"{"features": {"cdi": true, "x": 1}, "dns": [],  "runtimes": {"n": {}, "rdma": {"path": "/w", "runtimeArgs": []}}}"#,
                Some(r#"{"features": {"x": 1}, "dns": [],  "runtimes": {"n": {}}}"#),
            ),
            // The default was set by hand: nothing would start with it.
            (
                "{}",
                ours,
                "{\n \"default-runtime\": \"rdma\",\n \"runtimes\": {\"rdma\": {\"path\": \"/w\"}}\n}\n",
                Some("{}\n"),
            ),
            // A value that is another one now.
            (
                r#"{"features": {"cdi": 1}, "a": 1}"#,
                r#"{"features": {"cdi": true}, "a": 2}"#,
                r#"{"a": 2, "features": {"cdi": false}}"#,
                Some(r#"{"a": 1, "features": {"cdi": false}}"#),
            ),
            // Somebody has taken ours out already.
            (r#"{"a": 1}"#, r#"{"a": 1, "b": 2}"#, r#"{"a":3}"#, Some(r#"{"a":3}"#)),
            (
                r#"{"l": ["a"]}"#,
                r#"{"l": ["a", "b"]}"#,
                r#"{"l": ["b", "c"]}"#,
                Some(r#"{"l": ["c"]}"#),
            ),
        ] {
            let left = without("daemon.json".as_ref(), was, ours, now).unwrap();
            assert_eq!(left.as_deref(), expected, "{now}");
        }
        assert!(without("daemon.json".as_ref(), "", ours, "{").is_err());
    }

    #[test]
    fn of_toml_ours_goes_and_theirs_stays() {
        let made =
            "# Made by us\nversion = 2\n[p.runtimes.rdma]\nk = 1\n[p.nri]\ndisable = false\n";
        for (was, ours, now, expected) in [
            ("", made, made, None),
            (
                "",
                made,
                "version = 2\n[p.runtimes.rdma]\nk = 2\nmore = 1\n[p.nri]\ndisable = false\n# mine\nother = 1\n",
                Some("version = 2\n[p.nri]\n# mine\nother = 1\n"),
            ),
            ("", made, "version = 2\n[p.nri]\ndisable = false\n", None),
            (
                "[a]\nlist = ['x']\nv = 1 # one\n",
                "[a]\nlist = ['x', 'rdma-ctk']\nv = 2 # one\n",
                "# new\n[a]\nlist = ['y', 'rdma-ctk']\nv = 2 # one\n",
                Some("# new\n[a]\nlist = ['y']\nv = 1 # one\n"),
            ),
            (
                "[engine]\n",
                "[engine]\n[engine.runtimes]\nrdma = ['/w']\n",
                "[engine]\nruntime = 'rdma'\n[engine.runtimes]\nrdma = ['/w']\n",
                Some("[engine]\n"),
            ),
        ] {
            let left = without("x.toml".as_ref(), was, ours, now).unwrap();
            assert_eq!(left.as_deref(), expected, "{now}");
        }
        assert!(without("x.conf".as_ref(), "", made, "[").is_err());
    }
}
