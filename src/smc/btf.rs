//! The kernel's own description of its types (BTF, `Documentation/bpf/btf.rst`), as far as one
//! question goes: which number has the function of that name?
//!
//! A module's description continues that of the kernel: its types are numbered on from the
//! kernel's, and the offsets of its strings from the kernel's length on.

/// `BTF_MAGIC`
const MAGIC: u16 = 0xeb9f;
/// `BTF_KIND_FUNC`
const FUNC: u32 = 12;
/// Bytes of the part that every type begins with (`struct btf_type`).
const TYPE: usize = 12;

/// A blob is no BTF, or of a kind that is not known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// The header is cut short, or its magic number is another.
    #[error("it does not begin as BTF does")]
    Header,
    /// A section lies outside.
    #[error("its sections lie outside of it")]
    Section,
    /// A type is cut short.
    #[error("type {id} is cut short")]
    Type {
        /// Its number.
        id: u32,
    },
    /// A type is of a kind that this reader does not know, so that its length is unknown.
    #[error("type {id} is of the unknown kind {kind}")]
    Kind {
        /// Its number.
        id: u32,
        /// `BTF_KIND_…`
        kind: u32,
    },
}

/// A description: the kernel's, or a module's.
#[derive(Debug, Clone, Copy)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
}

impl<'a> Btf<'a> {
    /// Takes a blob apart, such as `/sys/kernel/btf/vmlinux`.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(blob: &'a [u8]) -> Result<Self, BtfError> {
        let magic = blob.get(..2).map(|two| u16::from_ne_bytes([two[0], two[1]]));
        if magic != Some(MAGIC) {
            return Err(BtfError::Header);
        }
        let word = |at| word(blob, at).ok_or(BtfError::Header);
        let header = word(4)?;
        let section = |offset: u32, length: u32| {
            let from = (header as usize).checked_add(offset as usize)?;
            blob.get(from..from.checked_add(length as usize)?)
        };
        let types = section(word(8)?, word(12)?).ok_or(BtfError::Section)?;
        let strings = section(word(16)?, word(20)?).ok_or(BtfError::Section)?;
        Ok(Self { types, strings })
    }

    /// The number of a function of the kernel.
    ///
    /// # Errors
    /// A type cannot be read.
    pub fn function(&self, name: &str) -> Result<Option<u32>, BtfError> {
        self.search(name, 0, 0)
    }

    /// The number of a function of a module, whose description continues `base`.
    ///
    /// # Errors
    /// A type cannot be read, of either.
    pub fn function_of_module(&self, base: &Btf<'_>, name: &str) -> Result<Option<u32>, BtfError> {
        self.search(name, base.count()?, base.strings.len())
    }

    /// How many types there are.
    fn count(&self) -> Result<u32, BtfError> {
        let mut last = 0;
        self.walk(0, |id, _, _| {
            last = id;
            false
        })?;
        Ok(last)
    }

    fn search(&self, name: &str, before: u32, offset: usize) -> Result<Option<u32>, BtfError> {
        let mut found = None;
        self.walk(before, |id, kind, at| {
            let is = kind == FUNC
                && (at as usize).checked_sub(offset).is_some_and(|at| self.is_string(at, name));
            if is {
                found = Some(id);
            }
            is
        })?;
        Ok(found)
    }

    fn is_string(&self, at: usize, text: &str) -> bool {
        self.strings
            .get(at..)
            .and_then(|rest| rest.strip_prefix(text.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&0))
    }

    /// Visits every type with its number, kind and name until `done`.
    fn walk(
        &self,
        before: u32,
        mut done: impl FnMut(u32, u32, u32) -> bool,
    ) -> Result<(), BtfError> {
        let (mut at, mut id) = (0, before);
        while at < self.types.len() {
            id = id.checked_add(1).ok_or(BtfError::Section)?;
            let (Some(name), Some(info)) = (word(self.types, at), word(self.types, at + 4)) else {
                return Err(BtfError::Type { id });
            };
            let (kind, members) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            if done(id, kind, name) {
                return Ok(());
            }
            let rest = match kind {
                // Pointers, forwards, typedefs, qualifiers, functions, floats, type tags.
                2 | 7..=12 | 16 | 18 => 0,
                // Integers, variables, declaration tags.
                1 | 14 | 17 => 4,
                // Arrays.
                3 => 12,
                // Structures, unions, sections, enumerations of 64 bits.
                4 | 5 | 15 | 19 => 12 * members,
                // Enumerations, prototypes.
                6 | 13 => 8 * members,
                kind => return Err(BtfError::Kind { id, kind }),
            };
            at += TYPE + rest;
        }
        if at == self.types.len() { Ok(()) } else { Err(BtfError::Type { id }) }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_ne_bytes(*four))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A blob with these types (words) and strings.
    fn blob(types: &[u32], strings: &[u8]) -> Vec<u8> {
        let mut blob = MAGIC.to_ne_bytes().to_vec();
        blob.extend([1, 0]);
        let length = |bytes: usize| u32::try_from(bytes).unwrap();
        let types_length = length(types.len() * 4);
        for word in [24, 0, types_length, types_length, length(strings.len())] {
            blob.extend(u32::to_ne_bytes(word));
        }
        blob.extend(types.iter().flat_map(|word| word.to_ne_bytes()));
        blob.extend(strings);
        blob
    }

    const fn info(kind: u32, members: u32) -> u32 {
        kind << 24 | members
    }

    #[test]
    fn functions_are_found_by_name_in_kernel_and_module() {
        // An integer, a structure with two members, a prototype with one parameter, two functions.
        let types = [
            &[1, info(1, 0), 4, 32][..],
            &[5, info(4, 2), 8, 0, 1, 0, 0, 1, 32],
            &[0, info(13, 1), 1, 0, 1],
            &[5, info(FUNC, 0), 3],
            &[10, info(FUNC, 1), 3],
        ]
        .concat();
        let base = blob(&types, b"\0int\0pair\0update\0updated\0");
        let kernel = Btf::parse(&base).unwrap();
        for (name, expected) in
            [("update", Some(5)), ("pair", Some(4)), ("int", None), ("updated", None), ("", None)]
        {
            assert_eq!(kernel.function(name), Ok(expected), "{name}");
        }
        // Offset 25 is the first string of the module's own.
        let more = blob(&[5, info(FUNC, 0), 3, 25 + 1, info(FUNC, 0), 3], b"\0smc_bind\0");
        let module = Btf::parse(&more).unwrap();
        assert_eq!(module.function_of_module(&kernel, "smc_bind"), Ok(Some(7)));
        assert_eq!(module.function_of_module(&kernel, "pair"), Ok(None));
    }

    #[test]
    fn what_is_no_description_is_said_to_be_none() {
        assert_eq!(Btf::parse(b"").unwrap_err(), BtfError::Header);
        assert_eq!(Btf::parse(&[0x7f; 40]).unwrap_err(), BtfError::Header);
        let mut outside = blob(&[], b"\0");
        outside[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(Btf::parse(&outside).unwrap_err(), BtfError::Section);
        let cut = blob(&[1, info(3, 0), 0, 0], b"\0a\0");
        assert_eq!(Btf::parse(&cut).unwrap().function("a"), Err(BtfError::Type { id: 1 }));
        let new = blob(&[1, info(30, 0), 0], b"\0a\0");
        let unknown = BtfError::Kind { id: 1, kind: 30 };
        assert_eq!(Btf::parse(&new).unwrap().function("a"), Err(unknown));
    }

    #[test]
    fn the_running_kernel_can_be_read_where_it_describes_itself() {
        let Ok(live) = std::fs::read("/sys/kernel/btf/vmlinux") else {
            eprintln!("skipped: this kernel does not describe itself");
            return;
        };
        let kernel = Btf::parse(&live).unwrap();
        assert!(kernel.function("schedule").unwrap().is_some());
        assert_eq!(kernel.function("no_function_has_this_name"), Ok(None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(
            types in prop::collection::vec(any::<u32>(), 0..40),
            strings in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let blob = blob(&types, &strings);
            if let Ok(btf) = Btf::parse(&blob) {
                let _ = (btf.function("a"), btf.function_of_module(&btf, "a"));
            }
            let _ = Btf::parse(&strings);
        }
    }
}
