//! Netlink attributes: type, length, value, padded to four bytes.
//!
//! Reading is total: any bytes give attributes or a [`Malformed`], never a panic.

/// A run of bytes is no run of attributes, or a value is not of the kind that it has to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A header is cut short, or its length points outside.
    #[error("no attribute header in the {left} bytes from {offset} on")]
    Run {
        /// Where the header should be.
        offset: usize,
        /// Bytes that are left from there.
        left: usize,
    },
    /// A value has the wrong length.
    #[error("attribute {kind} has {length} bytes, expected {expected}")]
    Length {
        /// Type of the attribute.
        kind: u16,
        /// Bytes that it has.
        length: usize,
        /// Bytes that it should have, in words.
        expected: &'static str,
    },
    /// A number does not fit what it counts.
    #[error("attribute {kind} is {value}, which is out of range")]
    Range {
        /// Type of the attribute.
        kind: u16,
        /// What it says.
        value: u64,
    },
    /// A string is not UTF-8.
    #[error("attribute {kind} is no text: {value:02x?}")]
    Text {
        /// Type of the attribute.
        kind: u16,
        /// What it says.
        value: Vec<u8>,
    },
    /// Something that must be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// The fixed part before the attributes is cut short.
    #[error("{length} bytes are too few for a {what}")]
    Short {
        /// Name of the structure.
        what: &'static str,
        /// Bytes that are there.
        length: usize,
    },
}

/// One attribute: its type without the flag bits, and its value without padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Type.
    pub kind: u16,
    /// Value.
    pub value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// An unsigned number of whatever width: the kernel's headers are not always right about it
    /// (`RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID` is announced with 64 bits and sent with 32).
    pub fn number(&self) -> Result<u64, Malformed> {
        match *self.value {
            [byte] => Ok(byte.into()),
            [a, b] => Ok(u16::from_ne_bytes([a, b]).into()),
            [a, b, c, d] => Ok(u32::from_ne_bytes([a, b, c, d]).into()),
            [a, b, c, d, e, f, g, h] => Ok(u64::from_ne_bytes([a, b, c, d, e, f, g, h])),
            _ => Err(Malformed::Length {
                kind: self.kind,
                length: self.value.len(),
                expected: "1, 2, 4 or 8",
            }),
        }
    }

    /// A number that fits `T`.
    pub fn small<T: TryFrom<u64>>(&self) -> Result<T, Malformed> {
        let value = self.number()?;
        T::try_from(value).map_err(|_| Malformed::Range { kind: self.kind, value })
    }

    /// A string, up to its NUL if it has one.
    pub fn text(&self) -> Result<&'a str, Malformed> {
        let end = self.value.iter().position(|byte| *byte == 0).unwrap_or(self.value.len());
        let value = &self.value[..end];
        std::str::from_utf8(value)
            .map_err(|_| Malformed::Text { kind: self.kind, value: value.to_vec() })
    }

    /// The attributes nested in this one.
    pub fn nested(&self) -> impl Iterator<Item = Result<Attribute<'a>, Malformed>> + use<'a> {
        parse(self.value)
    }
}

/// Takes a run of attributes apart. Nothing follows a [`Malformed`]: after a bad length there is no
/// telling where the next attribute begins.
pub fn parse(bytes: &[u8]) -> impl Iterator<Item = Result<Attribute<'_>, Malformed>> + use<'_> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let rest = bytes.get(offset..).filter(|rest| !rest.is_empty())?;
        let Some((kind, value)) = first(rest) else {
            let malformed = Malformed::Run { offset, left: rest.len() };
            offset = bytes.len();
            return Some(Err(malformed));
        };
        offset += (HEADER + value.len()).next_multiple_of(ALIGN);
        Some(Ok(Attribute { kind: kind & TYPE_MASK, value }))
    })
}

/// Length and type, two bytes each (`struct nlattr`).
const HEADER: usize = 4;
/// `NLA_ALIGNTO`
const ALIGN: usize = 4;
/// `NLA_TYPE_MASK`: without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const TYPE_MASK: u16 = 0x3fff;

fn first(rest: &[u8]) -> Option<(u16, &[u8])> {
    let (header, _) = rest.split_first_chunk::<HEADER>()?;
    let [a, b, c, d] = *header;
    let value = rest.get(HEADER..usize::from(u16::from_ne_bytes([a, b])))?;
    Some((u16::from_ne_bytes([c, d]), value))
}

/// Appends a number of 32 bits.
pub fn put_u32(bytes: &mut Vec<u8>, kind: u16, value: u32) {
    put(bytes, kind, &value.to_ne_bytes());
}

/// Appends a string with the NUL that the kernel wants.
pub fn put_text(bytes: &mut Vec<u8>, kind: u16, value: &str) {
    let mut value = value.as_bytes().to_vec();
    value.push(0);
    put(bytes, kind, &value);
}

/// Appends an attribute. A value beyond 65531 bytes is cut: no attribute can hold more, and the
/// kernel takes nothing that long from us.
pub fn put(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(HEADER + value.len()).unwrap_or(u16::MAX);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value.iter().take(usize::from(length) - HEADER));
    bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_come_in_four_widths() {
        for (value, number) in [
            (vec![7], 7),
            (300_u16.to_ne_bytes().to_vec(), 300),
            (70_000_u32.to_ne_bytes().to_vec(), 70_000),
            (u64::MAX.to_ne_bytes().to_vec(), u64::MAX),
        ] {
            assert_eq!(Attribute { kind: 1, value: &value }.number(), Ok(number));
        }
        let odd = Attribute { kind: 9, value: &[1, 2, 3] };
        assert_eq!(
            odd.number().unwrap_err().to_string(),
            "attribute 9 has 3 bytes, expected 1, 2, 4 or 8"
        );
        let big = Attribute { kind: 9, value: &300_u16.to_ne_bytes() };
        assert_eq!(big.small::<u8>(), Err(Malformed::Range { kind: 9, value: 300 }));
    }

    #[test]
    fn texts_end_at_their_nul_or_with_their_bytes() {
        assert_eq!(Attribute { kind: 2, value: b"rxe0\0" }.text(), Ok("rxe0"));
        assert_eq!(Attribute { kind: 2, value: b"rxe0" }.text(), Ok("rxe0"));
        assert_eq!(Attribute { kind: 2, value: b"" }.text(), Ok(""));
        assert!(Attribute { kind: 2, value: &[0xff, 0] }.text().is_err());
    }

    #[test]
    fn a_run_that_is_cut_short_says_where() {
        let mut bytes = Vec::new();
        put_u32(&mut bytes, 1, 5);
        bytes.extend([9, 0, 2, 0, 1]);
        let read: Vec<_> = parse(&bytes).collect();
        assert_eq!(read[0], Ok(Attribute { kind: 1, value: &5_u32.to_ne_bytes() }));
        assert_eq!(read[1], Err(Malformed::Run { offset: 8, left: 5 }));
        assert_eq!(read.len(), 2);
        // A length below that of the header would never advance.
        assert_eq!(parse(&[0; 8]).count(), 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for attribute in parse(&bytes).flatten() {
                let _ = (attribute.number(), attribute.text(), attribute.small::<u32>());
                prop_assert!(attribute.nested().count() <= bytes.len());
            }
        }

        #[test]
        fn what_is_written_is_read(
            values in prop::collection::vec(
                (0..=TYPE_MASK, prop::collection::vec(any::<u8>(), 0..40)),
                0..20,
            ),
        ) {
            let mut bytes = Vec::new();
            for (kind, value) in &values {
                put(&mut bytes, *kind, value);
            }
            let read: Vec<(u16, Vec<u8>)> = parse(&bytes)
                .map(|attribute| attribute.map(|a| (a.kind, a.value.to_vec())))
                .collect::<Result<_, _>>()
                .unwrap();
            prop_assert_eq!(read, values);
        }
    }
}
