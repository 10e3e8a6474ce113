//! How answers are written: tables for people, JSON and YAML for programs.

use std::io::{self, ErrorKind, Write};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, TableStyle};
use serde::Serialize;

/// Value of `-o`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
    /// For programs and people.
    Yaml,
}

/// A value that cannot be written in a format. Nothing of ours is such a value; what comes in
/// from outside (records, specs) is written as it was read.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Not as JSON.
    #[error("cannot write the answer as JSON")]
    Json(#[from] serde_json::Error),
    /// Not as YAML.
    #[error("cannot write the answer as YAML")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

/// `value` in the format for programs; `None` for [`Format::Table`], which each command words
/// itself.
///
/// # Errors
/// The value has a part that the format cannot carry.
pub fn render<T: Serialize>(format: Format, value: &T) -> Result<Option<String>, FormatError> {
    Ok(match format {
        Format::Table => None,
        Format::Json => Some(serde_json::to_string_pretty(value)? + "\n"),
        Format::Yaml => Some(serde_saphyr::to_string(value)?),
    })
}

/// Writes `text` to standard output. A reader that has gone away (`rdma-ctk list | head -1`) is
/// no error.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// A table without lines, columns two spaces apart: what `cut` and a chat window both take. Lines
/// are never wrapped to the terminal's width, so that a line stays a record.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(TableStyle::new());
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.to_vec());
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_no_lines_and_no_trailing_blanks() {
        let rows = [vec!["mlx5_0".to_owned(), "0".to_owned()], vec!["e".to_owned(), String::new()]];
        assert_eq!(table(&["NAME", "NUMA"], rows), "NAME    NUMA\nmlx5_0  0\ne\n");
    }

    #[test]
    fn formats_for_programs_end_with_a_line_feed() {
        let value = serde_json::json!({"name": "mlx5_0", "ports": [1, 2]});
        let json = render(Format::Json, &value).unwrap().unwrap();
        assert_eq!(json, "{\n  \"name\": \"mlx5_0\",\n  \"ports\": [\n    1,\n    2\n  ]\n}\n");
        let yaml = render(Format::Yaml, &value).unwrap().unwrap();
        assert_eq!(yaml, "name: mlx5_0\nports:\n- 1\n- 2\n");
        assert_eq!(render(Format::Table, &value).unwrap(), None);
    }
}
