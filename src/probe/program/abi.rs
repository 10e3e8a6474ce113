//! The structures of libibverbs that are touched, as `infiniband/verbs.h` of rdma-core lays them
//! out on 64-bit machines (ABI `IBVERBS_1.1`, unchanged since 2008 in all members named here).
//!
//! `probe::layout` compares them with the compiler's view of the header. What is behind the last
//! member named is the library's own: such a structure is only ever handed out by it.

use core::ffi::{c_int, c_uint, c_void};

/// `struct ibv_device`, of which nothing is touched.
#[repr(C)]
pub struct Device {
    hidden: [u8; 0],
}

/// `struct ibv_context`.
#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: Ops,
}

/// `struct ibv_context_ops`: what the header's inline functions call.
#[repr(C)]
pub struct Ops {
    before_poll: [*mut c_void; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Completion) -> c_int>,
    before_post: [*mut c_void; 13],
    pub post_send:
        Option<unsafe extern "C" fn(*mut Qp, *mut SendRequest, *mut *mut SendRequest) -> c_int>,
    pub post_recv: Option<
        unsafe extern "C" fn(*mut Qp, *mut ReceiveRequest, *mut *mut ReceiveRequest) -> c_int,
    >,
}

/// `struct ibv_pd`.
#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub start: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_cq`.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
}

/// `struct ibv_qp`.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub handle: u32,
    pub number: u32,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpSize {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub struct QpInit {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub size: QpSize,
    pub kind: c_uint,
    pub signal_all: c_int,
}

/// `union ibv_gid`, which the header aligns as its 64-bit halves.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub struct Gid(pub [u8; 16]);

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct GlobalRoute {
    pub gid: Gid,
    pub flow_label: u32,
    pub own_gid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Address {
    pub route: GlobalRoute,
    pub lid: u16,
    pub service_level: u8,
    pub path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpAttributes {
    pub state: c_uint,
    pub current_state: c_uint,
    pub path_mtu: c_uint,
    pub migration: c_uint,
    pub qkey: u32,
    pub receive_psn: u32,
    pub send_psn: u32,
    pub peer: u32,
    pub access: c_uint,
    pub size: QpSize,
    pub address: Address,
    pub other_address: Address,
    pub pkey_index: u16,
    pub other_pkey_index: u16,
    pub drain_notify: u8,
    pub draining: u8,
    pub max_reads: u8,
    pub max_peer_reads: u8,
    pub min_rnr_timer: u8,
    pub port: u8,
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub other_port: u8,
    pub other_timeout: u8,
    pub rate_limit: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Piece {
    pub start: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_send_wr`, with the `rdma` member of its first union, and room for the others.
#[repr(C)]
pub struct SendRequest {
    pub id: u64,
    pub next: *mut SendRequest,
    pub pieces: *mut Piece,
    pub count: c_int,
    pub opcode: c_uint,
    pub flags: c_uint,
    pub immediate: u32,
    pub remote_start: u64,
    pub rkey: u32,
    pub rest: [u64; 9],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub struct ReceiveRequest {
    pub id: u64,
    pub next: *mut ReceiveRequest,
    pub pieces: *mut Piece,
    pub count: c_int,
}

/// `struct ibv_wc`, whole: the library writes it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Completion {
    pub id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_error: u32,
    pub length: u32,
    pub immediate: u32,
    pub qp: u32,
    pub peer: u32,
    pub flags: c_uint,
    pub pkey_index: u16,
    pub lid: u16,
    pub service_level: u8,
    pub path_bits: u8,
}

/// `struct ibv_port_attr` up to `link_layer`; the library writes it, newer ones more of it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PortAttributes {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gids: c_int,
    pub capabilities: u32,
    pub max_message: u32,
    pub bad_pkeys: u32,
    pub qkey_violations: u32,
    pub pkeys: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lid_mask: u8,
    pub lanes: u8,
    pub sm_service_level: u8,
    pub subnet_timeout: u8,
    pub init_reply: u8,
    pub width: u8,
    pub speed: u8,
    pub physical: u8,
    pub link_layer: u8,
    pub later: [u64; 16],
}

/// `enum ibv_qp_type`: reliable connection.
pub const QP_RC: c_uint = 2;

/// `enum ibv_qp_state`
pub const STATE_INIT: c_uint = 1;
pub const STATE_RTR: c_uint = 2;
pub const STATE_RTS: c_uint = 3;

/// `enum ibv_qp_attr_mask`: what each step of a connection sets.
pub const SET_INIT: c_int = 1 << 0 | 1 << 3 | 1 << 4 | 1 << 5;
pub const SET_RTR: c_int = 1 << 0 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
pub const SET_RTS: c_int = 1 << 0 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;

/// `enum ibv_access_flags`: local write and remote write.
pub const ACCESS_WRITE: c_int = 3;

/// `enum ibv_wr_opcode`
pub const OPCODE_WRITE: c_uint = 0;
pub const OPCODE_SEND: c_uint = 2;

/// `enum ibv_send_flags`
pub const SIGNALED: c_uint = 2;

/// Bit of `enum ibv_wc_opcode` that tells what was received from what was sent.
pub const RECEIVED: c_uint = 1 << 7;
