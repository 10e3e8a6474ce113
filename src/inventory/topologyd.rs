//! The topology that a cloud's virtual machines have in the place of their hidden PCI tree, written by
//! NVIDIA's topology daemon.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::roots::Roots;

/// Its folder on the host.
pub const TOPOLOGYD: &str = "/run/nvidia-topologyd";
/// Its file for NCCL, in that folder.
pub const VIRTUAL_TOPOLOGY: &str = "/run/nvidia-topologyd/virtualTopology.xml";

/// Permission bits of that file; `None`: this host has none.
pub fn topologyd(roots: &Roots) -> Option<u32> {
    let file = fs::metadata(roots.run.join("nvidia-topologyd/virtualTopology.xml")).ok()?;
    file.is_file().then(|| file.permissions().mode() & 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_counts() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let path = roots.run.join("nvidia-topologyd");
        assert_eq!(topologyd(&roots), None);
        fs::create_dir_all(path.join("virtualTopology.xml")).unwrap();
        assert_eq!(topologyd(&roots), None);
        fs::remove_dir(path.join("virtualTopology.xml")).unwrap();
        fs::write(path.join("virtualTopology.xml"), "<system/>").unwrap();
        fs::set_permissions(path.join("virtualTopology.xml"), fs::Permissions::from_mode(0o640))
            .unwrap();
        assert_eq!(topologyd(&roots), Some(0o640));
    }
}
