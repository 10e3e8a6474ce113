//! What a kernel said once, for tests.

const RECORDED: &str = include_str!("fixtures/linux-6.12.hex");

/// Datagrams of that name, in order.
pub fn recorded(name: &str) -> Vec<Vec<u8>> {
    let found: Vec<Vec<u8>> = RECORDED
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(known, _)| *known == name)
        .map(|(_, hex)| bytes(hex))
        .collect();
    assert!(!found.is_empty(), "{name}");
    found
}

/// The question that was asked for it, without its header.
pub fn sent(name: &str) -> Vec<u8> {
    recorded(&format!("{name}.question"))[0][16..].to_vec()
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    hex.as_bytes().chunks(2).map(byte).collect()
}
