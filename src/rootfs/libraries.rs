//! What a root has of RDMA's libraries, wherever its distribution keeps them.

use super::Rootfs;

/// Folders in which images keep libraries.
const LIBRARIES: [&str; 9] = [
    "usr/lib64",
    "usr/lib",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/local/lib",
];

impl Rootfs {
    /// Whether there is libibverbs.
    pub fn has_libibverbs(&self) -> bool {
        self.has_library("libibverbs.so.1")
    }

    /// Whether there is a provider of libibverbs for that driver. One that is linked into it is no file,
    /// and cannot be seen.
    pub fn has_provider(&self, driver: &str) -> bool {
        self.has_library(&format!("lib{driver}.so.1"))
            || LIBRARIES.iter().any(|at| self.has_provider_in(&format!("{at}/libibverbs"), driver))
    }

    /// Whether there is one in that folder.
    pub fn has_provider_in(&self, folder: &str, driver: &str) -> bool {
        let prefix = format!("lib{driver}-");
        self.list(folder).iter().any(|name| name.starts_with(&prefix))
    }

    /// Whether a file tells libibverbs to load the provider for that driver.
    pub fn names_provider(&self, driver: &str) -> bool {
        self.exists(&format!("etc/libibverbs.d/{driver}.driver"))
    }

    fn has_library(&self, name: &str) -> bool {
        LIBRARIES.iter().any(|folder| self.exists(&format!("{folder}/{name}")))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn libraries_are_found_wherever_distributions_keep_them() {
        for (file, library, provider, named) in [
            ("usr/lib64/libibverbs.so.1", true, false, false),
            ("lib/aarch64-linux-gnu/libibverbs.so.1", true, false, false),
            ("opt/lib/libibverbs.so.1", false, false, false),
            ("usr/lib/x86_64-linux-gnu/libmlx5.so.1", false, true, false),
            ("usr/lib64/libibverbs/libmlx5-rdmav59.so", false, true, false),
            ("usr/lib64/libibverbs/libmlx5dv-rdmav59.so", false, false, false),
            ("etc/libibverbs.d/mlx5.driver", false, false, true),
            ("etc/libibverbs.d/mlx4.driver", false, false, false),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
            let root = Rootfs::open(folder.path()).unwrap();
            let found =
                (root.has_libibverbs(), root.has_provider("mlx5"), root.names_provider("mlx5"));
            assert_eq!(found, (library, provider, named), "{file}");
        }
    }
}
