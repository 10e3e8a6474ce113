//! Tests of the verbs part's structures: against the numbers below, which hold on every 64-bit
//! machine, and against the distribution's own header where that is installed (libibverbs-dev).

#![allow(unsafe_code)] // the verbs part, see there
#![allow(dead_code)] // and its start, which is left out here

use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

#[path = "program"]
mod program {
    pub(super) mod abi;
    mod library;
    mod memory;
    mod system;
    mod traffic;
    mod trial;
}

use program::abi;

/// A member of a structure: C's names for both, and where we have it; without a member, the size.
type Row = (&'static str, &'static str, usize);

macro_rules! rows {
    ($($theirs:literal as $ours:ident { $($c:literal = $rust:ident $(. $deeper:ident)?),* $(,)? })*) => {
        &[$($(($theirs, $c, offset_of!(abi::$ours, $rust $(. $deeper)?)),)*)*]
    };
}

const ROWS: &[Row] = rows! {
    "struct ibv_context" as Context {
        "device" = device,
        "ops" = ops,
        "ops.poll_cq" = ops.poll_cq,
        "ops.post_send" = ops.post_send,
        "ops.post_recv" = ops.post_recv,
    }
    "struct ibv_mr" as Mr { "addr" = start, "length" = length, "lkey" = lkey, "rkey" = rkey }
    "struct ibv_qp" as Qp { "context" = context, "qp_num" = number }
    "struct ibv_cq" as Cq { "context" = context }
    "struct ibv_pd" as Pd { "context" = context }
    "struct ibv_qp_init_attr" as QpInit {
        "send_cq" = send_cq,
        "recv_cq" = recv_cq,
        "srq" = srq,
        "cap" = size,
        "cap.max_inline_data" = size.max_inline_data,
        "qp_type" = kind,
        "sq_sig_all" = signal_all,
    }
    "struct ibv_qp_attr" as QpAttributes {
        "qp_state" = state,
        "path_mtu" = path_mtu,
        "rq_psn" = receive_psn,
        "sq_psn" = send_psn,
        "dest_qp_num" = peer,
        "qp_access_flags" = access,
        "cap" = size,
        "ah_attr" = address,
        "ah_attr.grh" = address.route,
        "ah_attr.dlid" = address.lid,
        "ah_attr.is_global" = address.is_global,
        "ah_attr.port_num" = address.port,
        "alt_ah_attr" = other_address,
        "pkey_index" = pkey_index,
        "max_rd_atomic" = max_reads,
        "max_dest_rd_atomic" = max_peer_reads,
        "min_rnr_timer" = min_rnr_timer,
        "port_num" = port,
        "timeout" = timeout,
        "retry_cnt" = retries,
        "rnr_retry" = rnr_retries,
        "rate_limit" = rate_limit,
    }
    "struct ibv_global_route" as GlobalRoute {
        "dgid" = gid,
        "flow_label" = flow_label,
        "sgid_index" = own_gid_index,
        "hop_limit" = hop_limit,
    }
    "struct ibv_sge" as Piece { "addr" = start, "length" = length, "lkey" = lkey }
    "struct ibv_send_wr" as SendRequest {
        "next" = next,
        "sg_list" = pieces,
        "num_sge" = count,
        "opcode" = opcode,
        "send_flags" = flags,
        "wr.rdma.remote_addr" = remote_start,
        "wr.rdma.rkey" = rkey,
    }
    "struct ibv_recv_wr" as ReceiveRequest { "next" = next, "sg_list" = pieces, "num_sge" = count }
    "struct ibv_wc" as Completion {
        "status" = status,
        "opcode" = opcode,
        "vendor_err" = vendor_error,
        "byte_len" = length,
        "qp_num" = qp,
    }
    "struct ibv_port_attr" as PortAttributes {
        "state" = state,
        "active_mtu" = active_mtu,
        "lid" = lid,
        "link_layer" = link_layer,
    }
};

/// Structures that we make or that the library writes: C's name, our size, and whether ours may be
/// larger (it is only read, or only written in part).
const SIZES: [(&str, usize, bool); 10] = [
    ("struct ibv_qp_init_attr", size_of::<abi::QpInit>(), false),
    ("struct ibv_qp_attr", size_of::<abi::QpAttributes>(), false),
    ("struct ibv_ah_attr", size_of::<abi::Address>(), false),
    ("union ibv_gid", size_of::<abi::Gid>(), false),
    ("struct ibv_sge", size_of::<abi::Piece>(), false),
    ("struct ibv_send_wr", size_of::<abi::SendRequest>(), true),
    ("struct ibv_recv_wr", size_of::<abi::ReceiveRequest>(), false),
    ("struct ibv_wc", size_of::<abi::Completion>(), false),
    ("struct ibv_port_attr", size_of::<abi::PortAttributes>(), true),
    ("struct ibv_mr", size_of::<abi::Mr>(), false),
];

/// Constants: C's name and ours.
const CONSTANTS: [(&str, i64); 16] = [
    ("IBV_QPT_RC", abi::QP_RC as i64),
    ("IBV_QPS_INIT", abi::STATE_INIT as i64),
    ("IBV_QPS_RTR", abi::STATE_RTR as i64),
    ("IBV_QPS_RTS", abi::STATE_RTS as i64),
    ("IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS", abi::SET_INIT as i64),
    (
        "IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | \
         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER",
        abi::SET_RTR as i64,
    ),
    (
        "IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | \
         IBV_QP_MAX_QP_RD_ATOMIC",
        abi::SET_RTS as i64,
    ),
    ("IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE", abi::ACCESS_WRITE as i64),
    ("IBV_WR_RDMA_WRITE", abi::OPCODE_WRITE as i64),
    ("IBV_WR_SEND", abi::OPCODE_SEND as i64),
    ("IBV_SEND_SIGNALED", abi::SIGNALED as i64),
    ("IBV_WC_RECV", abi::RECEIVED as i64),
    ("IBV_LINK_LAYER_ETHERNET", 2),
    ("IBV_WC_RETRY_EXC_ERR", 12),
    ("IBV_WC_WR_FLUSH_ERR", 5),
    ("IBV_MTU_4096", 5),
];

/// Offsets as they have been since rdma-core 1, so that they are checked without a header too.
#[test]
fn structures_are_where_every_64_bit_machine_has_them() {
    let at = |structure: &str, member: &str| {
        let row = ROWS.iter().find(|(name, part, _)| (*name, *part) == (structure, member));
        row.map(|(_, _, offset)| *offset)
    };
    for (structure, member, offset) in [
        ("struct ibv_context", "ops.poll_cq", 96),
        ("struct ibv_context", "ops.post_send", 208),
        ("struct ibv_context", "ops.post_recv", 216),
        ("struct ibv_mr", "lkey", 36),
        ("struct ibv_qp", "qp_num", 52),
        ("struct ibv_qp_attr", "ah_attr", 56),
        ("struct ibv_qp_attr", "rate_limit", 136),
        ("struct ibv_send_wr", "wr.rdma.remote_addr", 40),
    ] {
        assert_eq!(at(structure, member), Some(offset), "{structure}.{member}");
    }
    assert_eq!(size_of::<abi::Completion>(), 48);
}

/// The compiler is asked, so that a wrong number is an error with the member's name.
#[test]
fn structures_are_those_of_the_distributions_header() {
    let folder = std::env::var("RDMA_CORE_INCLUDE").unwrap_or_else(|_| "/usr/include".to_owned());
    if !Path::new(&folder).join("infiniband/verbs.h").exists() {
        println!("skipped: there is no infiniband/verbs.h (libibverbs-dev)");
        return;
    }
    let mut source = "#include <stddef.h>\n#include <infiniband/verbs.h>\n#define SAME(a, b) \
         _Static_assert((a) == (b), #a \" is not \" #b)\n"
        .to_owned();
    for (structure, member, offset) in ROWS {
        source += &format!("SAME(offsetof({structure}, {member}), {offset});\n");
    }
    for (structure, size, may_be_larger) in SIZES {
        let relation = if may_be_larger { "<=" } else { "==" };
        source += &format!(
            "_Static_assert(sizeof({structure}) {relation} {size}, \"size of {structure}\");\n"
        );
    }
    for (name, value) in CONSTANTS {
        source += &format!("SAME({name}, {value});\n");
    }
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("layout.c");
    std::fs::write(&file, &source).unwrap();
    let compile = |file: &Path| {
        let mut compiler = Command::new("cc");
        compiler.args(["-fsyntax-only", "-I", &folder]).arg(file);
        compiler.output().unwrap()
    };
    let output = compile(&file);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // And that the check can fail.
    std::fs::write(&file, source + "SAME(offsetof(struct ibv_mr, lkey), 35);\n").unwrap();
    assert!(!compile(&file).status.success());
}
