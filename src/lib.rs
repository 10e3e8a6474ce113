//! rdma-ctk: RDMA inside containers by one opt-in.
