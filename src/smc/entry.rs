//! What kind of program a container begins with: whether a library can be loaded into it.

use crate::rootfs::Rootfs;

/// As much of a program is read.
const HEAD: u64 = 64 << 10;
/// `PT_INTERP`
const INTERPRETER: u32 = 3;
/// Where programs are looked for without `PATH`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program, by how it is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linked {
    /// It loads libraries of glibc, or of another library that takes `LD_PRELOAD` like it.
    Dynamic,
    /// It loads libraries of musl.
    Musl,
    /// It loads none.
    Static,
    /// That cannot be told.
    Unknown,
}

impl Linked {
    /// Why the library does not reach it.
    pub const fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Static => {
                Some("entry binary is statically linked: preload cannot switch it to SMC")
            }
            Self::Musl => Some(
                "entry binary is linked to musl: the library of method preload is made for glibc",
            ),
            Self::Dynamic | Self::Unknown => None,
        }
    }
}

/// What a container begins with. A script is what its interpreter is.
pub fn of(root: &Rootfs, args: &[String], env: &[(String, String)]) -> Linked {
    let Some(program) = args.first().filter(|program| !program.is_empty()) else {
        return Linked::Unknown;
    };
    let Some(head) = find(root, program, env) else { return Linked::Unknown };
    let Some(line) = head.strip_prefix(b"#!") else { return linked(&head) };
    let end = line.iter().position(|byte| *byte == b'\n').unwrap_or(line.len());
    let Ok(line) = std::str::from_utf8(&line[..end]) else { return Linked::Unknown };
    let interpreter = line.split_whitespace().next();
    interpreter.and_then(|path| root.head(path, HEAD)).map_or(Linked::Unknown, |head| linked(&head))
}

/// The beginning of a program that is named as execvp(3) finds it.
fn find(root: &Rootfs, program: &str, env: &[(String, String)]) -> Option<Vec<u8>> {
    if program.contains('/') {
        // One that is not absolute is below the working folder, which is not known here.
        return program.starts_with('/').then(|| root.head(program, HEAD)).flatten();
    }
    let path = env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_str());
    path.unwrap_or(PATH)
        .split(':')
        .filter(|folder| folder.starts_with('/'))
        .find_map(|folder| root.head(&format!("{folder}/{program}"), HEAD))
}

/// How a program is linked, by the interpreter that the program headers in its head name (`elf(5)`).
pub fn linked(head: &[u8]) -> Linked {
    let Some(&[0x7f, b'E', b'L', b'F', class, order, ..]) = head.first_chunk::<16>() else {
        return Linked::Unknown;
    };
    let wide = class == 2;
    let number = |at: usize, length: usize| {
        let bytes = head.get(at..at.checked_add(length)?)?;
        let fold = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        let number =
            if order == 2 { bytes.iter().fold(0, fold) } else { bytes.iter().rev().fold(0, fold) };
        usize::try_from(number).ok()
    };
    // Offset, size and number of the program headers; of each its kind, offset and length.
    let (table, size, count, offset, length, word) =
        if wide { (32, 54, 56, 8, 32, 8) } else { (28, 42, 44, 4, 16, 4) };
    let header = || Some((number(table, word)?, number(size, 2)?, number(count, 2)?));
    let Some((table, size, count)) = header() else { return Linked::Unknown };
    for at in 0..count {
        let found = || {
            let at = table.checked_add(size.checked_mul(at)?)?;
            let kind = u32::try_from(number(at, 4)?).ok()?;
            Some((kind, number(at + offset, word)?, number(at + length, word)?))
        };
        let Some((kind, from, length)) = found() else { return Linked::Unknown };
        if kind == INTERPRETER {
            let name = from.checked_add(length).and_then(|to| head.get(from..to));
            let musl = |name: &[u8]| name.windows(7).any(|part| part == b"ld-musl");
            return match name {
                Some(name) if musl(name) => Linked::Musl,
                Some(_) => Linked::Dynamic,
                None => Linked::Unknown,
            };
        }
    }
    Linked::Static
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    /// A program of 64 bits with that interpreter, or none.
    fn program(interpreter: Option<&str>) -> Vec<u8> {
        let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
        elf.resize(64, 0);
        elf[32] = 64;
        elf[54] = 56;
        elf[56] = 2;
        let header = |kind: u8, from: u8, length: usize| {
            let mut header = vec![0; 56];
            (header[0], header[8], header[32]) = (kind, from, u8::try_from(length).unwrap());
            header
        };
        elf.extend(header(6, 64, 112));
        match interpreter {
            Some(name) => {
                elf.extend(header(3, 176, name.len()));
                elf.extend(name.as_bytes());
            }
            None => elf.extend(header(1, 0, 0)),
        }
        elf
    }

    #[test]
    fn c98_static_programs_and_musl_are_told_from_glibc() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("usr/bin")).unwrap();
        let put = |name: &str, bytes: &[u8]| {
            fs::write(folder.path().join("usr/bin").join(name), bytes).unwrap();
        };
        put("glibc", &program(Some("/lib64/ld-linux-x86-64.so.2\0")));
        put("musl", &program(Some("/lib/ld-musl-x86_64.so.1\0")));
        put("static", &program(None));
        put("script", b"#!/usr/bin/static -x\n");
        put("env", b"#! /usr/bin/glibc python\n");
        put("text", b"hello");
        let root = Rootfs::open(folder.path()).unwrap();
        let path = [("PATH".to_owned(), "/opt:/usr/bin".to_owned())];
        for (args, env, expected) in [
            (&["/usr/bin/glibc"][..], &[][..], Linked::Dynamic),
            (&["glibc", "-x"], &path, Linked::Dynamic),
            (&["glibc"], &[], Linked::Dynamic),
            (&["/usr/bin/musl"], &[], Linked::Musl),
            (&["static"], &path, Linked::Static),
            (&["/usr/bin/script"], &[], Linked::Static),
            (&["/usr/bin/env"], &[], Linked::Dynamic),
            (&["/usr/bin/text"], &[], Linked::Unknown),
            (&["./static"], &[], Linked::Unknown),
            (&["gone"], &[], Linked::Unknown),
            (&[""], &[], Linked::Unknown),
            (&[], &[], Linked::Unknown),
        ] {
            let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            assert_eq!(of(&root, &args, env), expected, "{args:?}");
        }
        assert_eq!(
            Linked::Static.refusal(),
            Some("entry binary is statically linked: preload cannot switch it to SMC")
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = linked(&bytes);
            for (at, byte) in b"\x7fELF\x02\x01".iter().enumerate() {
                if let Some(to) = bytes.get_mut(at) {
                    *to = *byte;
                }
            }
            let _ = linked(&bytes);
        }
    }
}
