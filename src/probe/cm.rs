//! rdma_cm: the device, and which addresses in here belong to an adapter.
//!
//! Asked of the kernel directly (`include/uapi/rdma/rdma_user_cm.h`), without librdmacm: an image
//! need not have it, and binding an address is what tells whether a program that has it will work.

use std::net::IpAddr;

use nix::errno::Errno;

use super::nodes::{self, Access};
use super::verbs::errno_text;
use super::{Exit, Finding, Machine, Place, Stage, gid};
use crate::inventory::{Hca, NodeType};

/// What became of binding one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// The address.
    pub address: IpAddr,
    /// Node GUID of the adapter that it belongs to, as sysfs prints it.
    pub guid: Result<String, Errno>,
}

/// Judges it, for a container that was given those adapters.
pub(super) fn check(
    machine: &dyn Machine,
    place: &Place<'_>,
    given: &[&Hca],
    findings: &mut Vec<Finding>,
) {
    let stage = Stage::RdmaCm;
    let iwarp = given.iter().find(|hca| hca.node_type == NodeType::Rnic);
    let fail = |sentence: String, fix: &str| Finding::fail(stage, Exit::Cm, sentence, fix);
    let Some(device) = &place.node.rdma_cm else {
        findings.push(Finding::note(stage, "the host has no rdma_cm: rdma_ucm is not loaded"));
        return;
    };
    let access = nodes::open(machine, place, device);
    if let Some((sentence, fix)) = nodes::refusal(machine, place, device, "all adapters", access) {
        findings.push(fail(sentence, &fix));
        return;
    }
    if access == Access::Absent {
        findings.push(match iwarp {
            Some(hca) => fail(
                format!(
                    "there is no {}, and {} (iWARP) connects by it only",
                    device.path(),
                    hca.name
                ),
                "keep rdma_cm in nodes.rdma-ctk.io (it is there by default)",
            ),
            None => Finding::note(
                stage,
                format!("not given: no {}; only programs of librdmacm need it", device.path()),
            ),
        });
        return;
    }
    let path = place.roots.dev.join("infiniband").join(&device.name);
    let bound = match machine.bind(&path, &gid::addresses(place)) {
        Ok(bound) => bound,
        Err(errno) => {
            let why = errno_text(errno as i32);
            findings.push(fail(
                format!("{} opens, but makes no identifier: {why}", device.path()),
                "`rdma-ctk doctor` on the host",
            ));
            return;
        }
    };
    findings.push(addresses(device.path(), given, &bound));
}

/// Which adapters can be reached by an address.
fn addresses(path: String, given: &[&Hca], bound: &[Bound]) -> Finding {
    let stage = Stage::RdmaCm;
    let mut of: Vec<String> = Vec::new();
    for Bound { address, guid } in bound {
        let Ok(guid) = guid else { continue };
        let hca = given.iter().find(|hca| hca.node_guid == *guid);
        of.extend(hca.map(|hca| format!("{address} is {}'s", hca.name)));
    }
    if !of.is_empty() {
        return Finding::ok(stage, format!("{path} opens; {}", of.join(", ")));
    }
    if given.is_empty() {
        return Finding::note(stage, format!("{path} opens"));
    }
    let why = bound.iter().find_map(|bound| bound.guid.as_ref().err());
    let why = why.map_or(String::new(), |errno| format!(": {}", errno_text(*errno as i32)));
    Finding::warn(
        stage,
        format!("{path} opens, but no address in here belongs to an adapter that was given{why}"),
        "programs of librdmacm need an interface of the adapter in here, or hostNetwork; others \
         (NCCL, MPI over UCX) do not",
    )
}

/// The conversation with the kernel.
pub(super) mod kernel {
    use std::fs::{File, OpenOptions};
    use std::io::Write as _;
    use std::net::IpAddr;
    use std::path::Path;

    use nix::errno::Errno;

    use super::Bound;

    /// `RDMA_USER_CM_CMD_…`
    const CREATE_ID: u32 = 0;
    const BIND_IP: u32 = 2;
    const QUERY_ROUTE: u32 = 5;
    /// `RDMA_PS_TCP`, and `IB_QPT_RC`.
    const PORT_SPACE: u16 = 0x0106;
    const QP_RC: u8 = 2;
    /// Addresses that are tried; more than a container has.
    const MOST: usize = 32;

    /// Makes an identifier for each address and binds it.
    pub(in super::super) fn bind(device: &Path, addresses: &[IpAddr]) -> Result<Vec<Bound>, Errno> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(device)
            .map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
        if addresses.is_empty() {
            create(&mut file)?;
        }
        let mut bound = Vec::new();
        for address in addresses.iter().take(MOST) {
            let id = create(&mut file)?;
            let guid = bind_one(&mut file, id, *address);
            bound.push(Bound { address: *address, guid });
        }
        // The identifiers go with the file.
        Ok(bound)
    }

    /// Sends a command with its header; the kernel writes the answer to where the body says.
    fn send(file: &mut File, command: u32, body: &[u8], answer: usize) -> Result<(), Errno> {
        let length = |bytes: usize| u16::try_from(bytes).map_err(|_| Errno::EINVAL);
        let mut message = command.to_ne_bytes().to_vec();
        message.extend(length(body.len())?.to_ne_bytes());
        message.extend(length(answer)?.to_ne_bytes());
        message.extend(body);
        // A command is taken whole or not at all.
        match file.write(&message) {
            Ok(taken) if taken == message.len() => Ok(()),
            Ok(_) => Err(Errno::EIO),
            Err(error) => Err(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)),
        }
    }

    /// Where the kernel is to write an answer, which it does before the command returns: the
    /// buffer is alive then, and as long as the header says.
    fn address_of(answer: &mut [u8]) -> [u8; 8] {
        (answer.as_mut_ptr() as u64).to_ne_bytes()
    }

    fn create(file: &mut File) -> Result<u32, Errno> {
        let mut answer = [0; 4];
        // struct rdma_ucm_create_id: uid, response, ps, qp_type, reserved.
        let mut body = 0_u64.to_ne_bytes().to_vec();
        body.extend(address_of(&mut answer));
        body.extend(PORT_SPACE.to_ne_bytes());
        body.extend([QP_RC, 0, 0, 0, 0, 0]);
        send(file, CREATE_ID, &body, answer.len())?;
        Ok(u32::from_ne_bytes(answer))
    }

    fn bind_one(file: &mut File, id: u32, address: IpAddr) -> Result<String, Errno> {
        // struct rdma_ucm_bind_ip: response, addr, id.
        let mut body = 0_u64.to_ne_bytes().to_vec();
        body.extend(socket_address(address));
        body.extend(id.to_ne_bytes());
        send(file, BIND_IP, &body, 0)?;
        // struct rdma_ucm_query: response, id, reserved; the answer begins with the node GUID in
        // the order of the wire. It has grown with time: there is room for more.
        let mut answer = [0; 512];
        let mut body = address_of(&mut answer).to_vec();
        body.extend(id.to_ne_bytes());
        body.extend([0; 4]);
        send(file, QUERY_ROUTE, &body, answer.len())?;
        let pairs: Vec<String> = answer[..8]
            .chunks(2)
            .map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect())
            .collect();
        Ok(pairs.join(":"))
    }

    /// `struct sockaddr_in6`, or `struct sockaddr_in` in its room.
    fn socket_address(address: IpAddr) -> [u8; 28] {
        let mut bytes = [0; 28];
        // AF_INET and AF_INET6.
        let family: u16 = if address.is_ipv4() { 2 } else { 10 };
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        match address {
            IpAddr::V4(address) => bytes[4..8].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes[8..24].copy_from_slice(&address.octets()),
        }
        bytes
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn addresses_are_laid_out_as_the_kernel_reads_them() {
            let v4 = socket_address("10.77.0.1".parse().unwrap());
            assert_eq!(v4[..8], [2, 0, 0, 0, 10, 77, 0, 1]);
            let v6 = socket_address("fd00::9".parse().unwrap());
            assert_eq!((v6[0], v6[8], v6[23]), (10, 0xfd, 9));
        }

        #[test]
        fn a_file_that_is_no_rdma_cm_is_an_error() {
            let missing = bind(Path::new("/dev/infiniband/none"), &[]);
            assert_eq!(missing, Err(Errno::ENOENT));
            let full = bind(Path::new("/dev/full"), &[]);
            assert_eq!(full, Err(Errno::ENOSPC));
        }
    }
}
