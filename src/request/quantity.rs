//! Amounts of memory as people write them.

/// A text is no amount of memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// There is no number in front.
    #[error("expected a number of bytes with or without a unit, such as 64Gi")]
    Number,
    /// What follows the number is no unit.
    #[error(
        "{0:?} is no unit: expected K, M, G or T (powers of 1000) or Ki, Mi, Gi or Ti (of 1024)"
    )]
    Unit(String),
    /// A fraction: bytes are counted.
    #[error("expected a whole number; a smaller unit expresses the same")]
    Fraction,
    /// More than 64 bits hold.
    #[error("more than 16 EiB")]
    Overflow,
}

/// Units, each with its size in bytes, as Kubernetes reads them; `B` may follow each of them.
const UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("k", 1_000),
    ("K", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
];

/// Reads a number of bytes with or without a unit: `65536`, `64K`, `64Gi`, `64GiB`.
///
/// # Errors
/// The text is not of that form, or the amount does not fit in 64 bits.
pub fn parse(text: &str) -> Result<u64, QuantityError> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    if digits.is_empty() {
        return Err(QuantityError::Number);
    }
    if unit.starts_with(['.', ',']) {
        return Err(QuantityError::Fraction);
    }
    let unit = unit.trim_start();
    let size = UNITS
        .iter()
        .find(|(name, _)| *name == unit.strip_suffix('B').unwrap_or(unit))
        .map(|(_, size)| *size)
        .ok_or_else(|| QuantityError::Unit(unit.chars().take(16).collect()))?;
    let number: u64 = digits.parse().map_err(|_| QuantityError::Overflow)?;
    number.checked_mul(size).ok_or(QuantityError::Overflow)
}

/// Writes a number of bytes with the largest unit of 1024 that divides it.
pub fn format(bytes: u64) -> String {
    UNITS
        .iter()
        .rev()
        .filter(|(_, size)| size.is_power_of_two() && bytes != 0 && bytes.is_multiple_of(*size))
        .map(|(name, size)| format!("{}{name}", bytes / size))
        .next()
        .unwrap_or_else(|| bytes.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn amounts_are_read_with_every_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("65536", 65_536),
            ("64K", 64_000),
            ("64k", 64_000),
            ("64Ki", 65_536),
            ("64KiB", 65_536),
            ("8M", 8_000_000),
            ("8MB", 8_000_000),
            ("1G", 1_000_000_000),
            ("64GiB", 64 << 30),
            ("64 GiB", 64 << 30),
            ("2T", 2_000_000_000_000),
            ("2Ti", 2 << 40),
            ("10B", 10),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_amount_is_said_to_be_none() {
        for (text, error) in [
            ("", QuantityError::Number),
            ("-1", QuantityError::Number),
            ("Gi", QuantityError::Number),
            ("infinity", QuantityError::Number),
            ("1.5Gi", QuantityError::Fraction),
            ("1,5Gi", QuantityError::Fraction),
            ("64Gb", QuantityError::Unit("Gb".into())),
            ("64kB ", QuantityError::Unit("kB ".into())),
            ("1 2", QuantityError::Unit("2".into())),
            ("1BB", QuantityError::Unit("BB".into())),
            ("18446744073709551616", QuantityError::Overflow),
            ("99999999999Ti", QuantityError::Overflow),
        ] {
            assert_eq!(parse(text), Err(error), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(bytes: u64, shift in 0_u32..40) {
            let bytes = bytes >> shift << shift;
            prop_assert_eq!(parse(&format(bytes)), Ok(bytes));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }
}
