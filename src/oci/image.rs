//! What the container's root file system must have, looked at where it is mounted: the libraries of
//! RDMA, the place for a file of ours. Paths are resolved as the container would, so that no link of
//! an image leads out of it.

use crate::grant::Adapter;
use crate::inventory::Node;
use crate::rootfs::Rootfs;

/// Where programs are looked for where the container sets no `PATH`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// So much of a program is read: its headers stand at the beginning.
const HEADER: u64 = 4096;

/// Where NCCL looks for its configuration.
pub const NCCL_CONF: &str = "/etc/nccl.conf";

/// Whether a file of ours can be bound over nccl.conf without hiding one of the image's, and without
/// the runtime failing for want of a place. An empty one hides nothing: it is what a runtime leaves in
/// the container's layer as the place of an earlier start's.
pub fn has_room(root: &Rootfs) -> bool {
    let free = root.is_empty_file(NCCL_CONF) || !root.exists(NCCL_CONF);
    free && !root.is_read_only()
}

/// What is missing in the image for those adapters, a sentence each.
pub fn missing(
    root: &Rootfs,
    args: &[String],
    path: Option<&str>,
    node: &Node,
    adapters: &[Adapter],
) -> Vec<String> {
    if let Some(program) = args.first().filter(|program| is_static(root, program, path)) {
        // It has inside what it needs, or has no use for any of it.
        let shown: String = program.chars().take(80).collect();
        return vec![format!(
            "the program {} is statically linked: it uses no libibverbs of the image, and no \
             library can be preloaded",
            shown.escape_debug()
        )];
    }
    if !root.has_libibverbs() {
        let musl = root.list("lib").iter().any(|name| name.starts_with("ld-musl-"));
        let how = if musl {
            "rdma-core (Alpine)"
        } else {
            "libibverbs1 and ibverbs-providers (Debian) or libibverbs (Fedora)"
        };
        return vec![format!(
            "image has no libibverbs: NCCL will use TCP; install {how} in the image"
        )];
    }
    let mut drivers: Vec<&str> = adapters
        .iter()
        .filter_map(|adapter| node.hca(&adapter.name))
        .map(|hca| hca.driver.0.as_str())
        .collect();
    drivers.sort_unstable();
    drivers.dedup();
    drivers
        .into_iter()
        .filter(|driver| *driver != "unknown")
        .filter_map(|driver| match (root.has_provider(driver), root.names_provider(driver)) {
            (true, true) => None,
            // A provider that is linked into libibverbs needs no file, and cannot be seen.
            (true, false) => Some(format!(
                "image has no etc/libibverbs.d/{driver}.driver: libibverbs may not find the \
                 provider for {driver}"
            )),
            (false, _) => Some(format!(
                "no provider for {driver} (lib{driver}) in the image: install one of a version \
                 that knows the adapter"
            )),
        })
        .collect()
}

/// Whether a program of the image is an ELF file without an interpreter. Scripts, and what cannot be
/// found or read, are not.
fn is_static(root: &Rootfs, program: &str, path: Option<&str>) -> bool {
    let header = if program.contains('/') {
        root.head(program, HEADER)
    } else {
        path.unwrap_or(PATH)
            .split(':')
            .find_map(|folder| root.head(&format!("{folder}/{program}"), HEADER))
    };
    header.is_some_and(|header| has_no_interpreter(&header) == Some(true))
}

/// Whether none of an ELF file's program headers is `PT_INTERP` (elf(5)); `None`: it is no ELF file,
/// or they are not within what was read.
fn has_no_interpreter(file: &[u8]) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    const PT_DYNAMIC: u32 = 2;
    let rest = file.strip_prefix(b"\x7fELF")?;
    // 64 bits, little-endian: everything that has RDMA today.
    if rest.first() != Some(&2) || rest.get(1) != Some(&1) {
        return None;
    }
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(file.get(at..at.checked_add(bytes)?)?);
        usize::try_from(u64::from_le_bytes(value)).ok()
    };
    let (offset, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut kinds = Vec::new();
    for index in 0..count {
        let at = offset.checked_add(index.checked_mul(size)?)?;
        kinds.push(u32::try_from(number(at, 4)?).ok()?);
    }
    // A library that is started, such as the loader itself, has no interpreter but is not static.
    Some(!kinds.is_empty() && !kinds.contains(&PT_INTERP) && !kinds.contains(&PT_DYNAMIC))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::inventory::{Driver, Hca, Home, NodeType, Role};

    fn node(driver: &str) -> (Node, Vec<Adapter>) {
        let hca = Hca {
            name: "a0".into(),
            index: None,
            driver: Driver(driver.into()),
            node_type: NodeType::Ca,
            node_guid: String::new(),
            firmware: None,
            pci: None,
            numa: None,
            local_cpus: crate::inventory::CpuSet::default(),
            uverbs: None,
            ports: Vec::new(),
            role: Role::Physical { vfs: 0 },
            home: Home::Host,
        };
        let adapter = Adapter {
            name: "a0".into(),
            pci: None,
            ports: Vec::new(),
            usable: true,
            gids: Vec::new(),
        };
        (Node { hcas: vec![hca], ..Node::default() }, vec![adapter])
    }

    /// An ELF file of 64 bits with program headers of those kinds.
    fn elf(kinds: &[u32]) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32] = 64;
        file[54] = 56;
        file[56] = u8::try_from(kinds.len()).unwrap();
        for kind in kinds {
            file.extend(kind.to_le_bytes());
            file.extend([0; 52]);
        }
        file
    }

    fn image(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Rootfs) {
        let folder = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let root = Rootfs::open(folder.path()).unwrap();
        (folder, root)
    }

    fn said(files: &[(&str, &[u8])], driver: &str) -> Vec<String> {
        let (_folder, root) = image(files);
        let (node, adapters) = node(driver);
        missing(&root, &["app".into()], None, &node, &adapters)
    }

    #[test]
    fn c91_an_image_without_library_or_provider_is_told() {
        let library: (&str, &[u8]) = ("usr/lib/x86_64-linux-gnu/libibverbs.so.1", b"");
        let none = said(&[], "mlx5");
        assert!(none[0].starts_with("image has no libibverbs: NCCL will use TCP"), "{none:?}");
        let alpine = said(&[("lib/ld-musl-x86_64.so.1", b"")], "mlx5");
        assert!(alpine[0].contains("rdma-core (Alpine)"), "{alpine:?}");
        let efa: (&str, &[u8]) = ("usr/lib/x86_64-linux-gnu/libefa.so.1", b"");
        let other = said(&[library, efa], "mlx5");
        assert!(other[0].starts_with("no provider for mlx5 (libmlx5)"), "{other:?}");
        let rxe: (&str, &[u8]) = ("usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", b"");
        let unnamed = said(&[library, rxe], "rxe");
        assert!(unnamed[0].contains("etc/libibverbs.d/rxe.driver"), "{unnamed:?}");
        let named: (&str, &[u8]) = ("etc/libibverbs.d/rxe.driver", b"driver rxe\n");
        assert_eq!(said(&[library, rxe, named], "rxe"), [""; 0]);
        assert_eq!(said(&[library], "unknown"), [""; 0]);
    }

    #[test]
    fn c98_a_static_program_is_told() {
        for (program, expected) in [
            (elf(&[1, 1]), true),
            (elf(&[6, 3, 1, 2]), false),
            (elf(&[1, 2]), false),
            (elf(&[]), false),
            (elf(&[1])[..66].to_vec(), false),
            (b"#!/bin/sh\n".to_vec(), false),
            (Vec::new(), false),
        ] {
            let (_folder, root) = image(&[("usr/bin/app", &program)]);
            assert_eq!(is_static(&root, "app", None), expected, "{program:?}");
            assert_eq!(is_static(&root, "/usr/bin/app", Some("/bin")), expected);
            assert!(!is_static(&root, "app", Some("/bin")));
        }
        let (node, adapters) = node("mlx5");
        let (_folder, root) = image(&[("bin/app", &elf(&[1]))]);
        let said = missing(&root, &["app".into()], None, &node, &adapters);
        assert!(said[0].contains("app is statically linked"), "{said:?}");
    }

    #[test]
    fn an_images_own_file_is_not_hidden() {
        assert!(has_room(&image(&[("etc/hosts", b"")]).1));
        assert!(!has_room(&image(&[("etc/nccl.conf", b"A=1\n")]).1));
        // What is left of an earlier start is no file of the image.
        assert!(has_room(&image(&[("etc/nccl.conf", b"")]).1));
    }
}
