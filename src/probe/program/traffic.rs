//! Two queue pairs of one device, connected with each other: messages to and fro for the latency,
//! writes in one direction for the bandwidth.

use core::cell::Cell;
use core::ffi::{c_int, c_uint};
use core::ptr::null_mut;
use core::slice;

use super::abi::{
    ACCESS_WRITE, Address, Completion, Context, Cq, Gid, GlobalRoute, Mr, OPCODE_SEND,
    OPCODE_WRITE, Pd, Piece, QP_RC, Qp, QpAttributes, QpInit, QpSize, RECEIVED, ReceiveRequest,
    SET_INIT, SET_RTR, SET_RTS, SIGNALED, STATE_INIT, STATE_RTR, STATE_RTS, SendRequest,
};
use super::library::Library;
use super::memory;
use super::system::{Memory, give_way, now, say};
use super::trial::{Fault, done, made, step};

/// Bytes of a message to and fro.
const MESSAGE: usize = 64;
/// Round trips at most, and those at the start that are not counted.
const ROUNDS: usize = 1000;
const WARM_UP: usize = 10;
/// Writes under way at a time.
const WINDOW: u64 = 16;
/// Memory for the writes, at most.
const BUFFER: u64 = 1 << 20;
/// How long one completion may take: longer than all retransmissions of a connection.
const PATIENCE: u64 = 10_000_000_000;
/// When hardware has long answered.
const SOON: u64 = 30_000;
/// `IBV_LINK_LAYER_ETHERNET`
const ETHERNET: u8 = 2;

/// Where on the device.
pub struct Place {
    /// Port.
    pub port: u8,
    /// Slot of its GID table, and what is in there.
    pub index: u8,
    /// See there.
    pub gid: Gid,
    /// Its LID.
    pub lid: u16,
    /// `enum ibv_mtu`
    pub mtu: c_uint,
    /// Kind of wire.
    pub link_layer: u8,
}

/// One end of the connection.
struct End {
    qp: *mut Qp,
    cq: *mut Cq,
    context: *mut Context,
    /// What was sent and has not completed.
    unfinished: Cell<u64>,
}

/// Connects and measures.
pub fn run(
    library: &Library,
    context: *mut Context,
    pd: *mut Pd,
    place: &Place,
    registered: u64,
    milliseconds: u64,
) -> Result<(), Fault> {
    step("register");
    let length = registered.clamp(4096, BUFFER);
    let memory = Memory::map(usize::try_from(length).unwrap_or(0)).map_err(Fault::Errno)?;
    let mr = memory::register(library, pd, &memory, memory.length).map_err(Fault::Errno)?;
    step("cq");
    let one = End::new(library, context, pd)?;
    let other = End::new(library, context, pd)?;
    step("connect");
    one.connect(library, place, other.number())?;
    other.connect(library, place, one.number())?;
    let budget = milliseconds.saturating_mul(1_000_000);
    step("latency");
    latency(&one, &other, &memory, mr, budget)?;
    step("bandwidth");
    bandwidth(&one, &memory, mr, budget)
}

impl End {
    fn new(library: &Library, context: *mut Context, pd: *mut Pd) -> Result<Self, Fault> {
        // SAFETY: the context is open; no channel and no context of our own.
        let cq = made(unsafe { (library.create_cq)(context, 64, null_mut(), null_mut(), 0) })?;
        step("qp");
        let size = QpSize {
            max_send_wr: 32,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut init = QpInit {
            qp_context: null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: null_mut(),
            size,
            kind: QP_RC,
            signal_all: 0,
        };
        // SAFETY: queue and domain are of the same device and stay until the process ends.
        let qp = made(unsafe { (library.create_qp)(pd, &raw mut init) })?;
        Ok(Self { qp, cq, context, unfinished: Cell::new(0) })
    }

    fn number(&self) -> u32 {
        // SAFETY: made by the library and never destroyed.
        unsafe { (*self.qp).number }
    }

    /// Brings the queue pair to where it sends, towards that peer on the same port.
    fn connect(&self, library: &Library, place: &Place, peer: u32) -> Result<(), Fault> {
        let modify = |attributes: &mut QpAttributes, mask: c_int| {
            // SAFETY: the queue pair is alive, and the mask names members that are set.
            done(unsafe { (library.modify_qp)(self.qp, attributes, mask) })
        };
        let mut attributes = QpAttributes {
            state: STATE_INIT,
            access: ACCESS_WRITE.unsigned_abs(),
            port: place.port,
            ..QpAttributes::default()
        };
        modify(&mut attributes, SET_INIT)?;
        // RoCE has no LIDs; an InfiniBand port without one is reached by its GID too.
        let global = place.link_layer == ETHERNET || place.lid == 0;
        attributes.address = Address {
            route: GlobalRoute {
                gid: place.gid,
                own_gid_index: place.index,
                hop_limit: 64,
                ..GlobalRoute::default()
            },
            lid: place.lid,
            is_global: u8::from(global),
            port: place.port,
            ..Address::default()
        };
        attributes.state = STATE_RTR;
        attributes.path_mtu = place.mtu;
        attributes.peer = peer;
        attributes.max_peer_reads = 1;
        attributes.min_rnr_timer = 12;
        modify(&mut attributes, SET_RTR)?;
        attributes.state = STATE_RTS;
        // 67 ms before each retransmission.
        attributes.timeout = 14;
        attributes.retries = 7;
        attributes.rnr_retries = 7;
        attributes.max_reads = 1;
        modify(&mut attributes, SET_RTS)
    }

    fn receive(&self, mr: *mut Mr, start: u64) -> Result<(), Fault> {
        // SAFETY: the context and the region live until the process ends.
        let (post, lkey) = unsafe { ((*self.context).ops.post_recv, (*mr).lkey) };
        let mut piece = Piece { start, length: as_u32(MESSAGE as u64), lkey };
        let mut request =
            ReceiveRequest { id: 0, next: null_mut(), pieces: &raw mut piece, count: 1 };
        let mut bad = null_mut();
        // SAFETY: the provider reads the request before it returns; the piece lies in the region.
        done(post.map_or(-1, |post| unsafe { post(self.qp, &raw mut request, &raw mut bad) }))
    }

    /// `from` and `to` are addresses in the region; only writes look at `to`.
    fn send(
        &self,
        mr: *mut Mr,
        opcode: c_uint,
        from: u64,
        to: u64,
        length: u64,
    ) -> Result<(), Fault> {
        // SAFETY: as for `receive`.
        let (post, lkey, rkey) = unsafe { ((*self.context).ops.post_send, (*mr).lkey, (*mr).rkey) };
        let length = as_u32(length);
        let mut piece = Piece { start: from, length, lkey };
        let mut request = SendRequest {
            id: 0,
            next: null_mut(),
            pieces: &raw mut piece,
            count: 1,
            opcode,
            flags: SIGNALED,
            immediate: 0,
            remote_start: to,
            rkey,
            rest: [0; 9],
        };
        let mut bad = null_mut();
        // SAFETY: as for `receive`; what is written to lies in the same region.
        done(post.map_or(-1, |post| unsafe { post(self.qp, &raw mut request, &raw mut bad) }))?;
        self.unfinished.set(self.unfinished.get() + 1);
        Ok(())
    }

    /// Waits for one completion; whether it is of something received.
    fn complete(&self) -> Result<bool, Fault> {
        // SAFETY: the context lives until the process ends.
        let Some(poll) = (unsafe { (*self.context).ops.poll_cq }) else {
            return Err(Fault::Errno(38));
        };
        let began = now();
        let mut completion = Completion::default();
        loop {
            // The clock is looked at now and then only: it costs as much as a poll.
            for _ in 0..64 {
                // SAFETY: the queue is alive, and there is room for one completion.
                match unsafe { poll(self.cq, 1, &raw mut completion) } {
                    0 => core::hint::spin_loop(),
                    count if count < 0 => return Err(Fault::Errno(5)),
                    _ if completion.status != 0 => {
                        return Err(Fault::Status(completion.status, completion.vendor_error));
                    }
                    _ if completion.opcode & RECEIVED != 0 => return Ok(true),
                    _ => {
                        self.unfinished.set(self.unfinished.get().saturating_sub(1));
                        return Ok(false);
                    }
                }
            }
            match now() - began {
                ..SOON => {}
                // A software adapter does its work on this very processor.
                SOON..PATIENCE => give_way(),
                _ => return Err(Fault::TimedOut),
            }
        }
    }

    /// Waits for something received.
    fn await_received(&self) -> Result<(), Fault> {
        while !self.complete()? {}
        Ok(())
    }

    /// Waits until no more than that many sent requests are under way.
    fn settle(&self, most: u64) -> Result<(), Fault> {
        while self.unfinished.get() > most {
            self.complete()?;
        }
        Ok(())
    }
}

fn latency(one: &End, other: &End, memory: &Memory, mr: *mut Mr, budget: u64) -> Result<(), Fault> {
    // `one` sends from the first message's place and receives in the second, `other` from the third
    // and in the fourth.
    let places: [u64; 4] =
        core::array::from_fn(|place| memory.start as u64 + (place * MESSAGE) as u64);
    for byte in 0..MESSAGE {
        // SAFETY: the memory holds more than four messages, and nothing else uses it yet.
        unsafe {
            *memory.start.add(byte) = pattern(byte) ^ 0xa5;
            *memory.start.add(2 * MESSAGE + byte) = pattern(byte) ^ 0x5a;
        }
    }
    let mut times = [0_u64; ROUNDS];
    let mut rounds = 0;
    let started = now();
    while rounds < ROUNDS + WARM_UP && (now() - started < budget || rounds <= WARM_UP) {
        one.receive(mr, places[1])?;
        other.receive(mr, places[3])?;
        let sent = now();
        one.send(mr, OPCODE_SEND, places[0], 0, MESSAGE as u64)?;
        other.await_received()?;
        other.send(mr, OPCODE_SEND, places[2], 0, MESSAGE as u64)?;
        one.await_received()?;
        let took = now() - sent;
        if let Some(place) = rounds.checked_sub(WARM_UP)
            && let Some(time) = times.get_mut(place)
        {
            *time = took / 2;
        }
        rounds += 1;
        one.settle(0)?;
        other.settle(0)?;
        if rounds == 1 {
            compare(memory)?;
        }
    }
    let counted = &mut times[..rounds.saturating_sub(WARM_UP).min(ROUNDS)];
    counted.sort_unstable();
    let median = counted.get(counted.len() / 2).copied().unwrap_or(0);
    say(format_args!("latency {MESSAGE} {} {median}", counted.len()));
    Ok(())
}

/// What a byte of a message holds.
fn pattern(place: usize) -> u8 {
    u8::try_from(place % 256).unwrap_or(0)
}

/// A length of a piece; none is near the limit.
fn as_u32(length: u64) -> u32 {
    u32::try_from(length).unwrap_or(0)
}

/// Whether each end has what the other has sent.
fn compare(memory: &Memory) -> Result<(), Fault> {
    // SAFETY: the mapping is longer than four messages, and no request is under way.
    let bytes = unsafe { slice::from_raw_parts(memory.start, 4 * MESSAGE) };
    let (ours, theirs) = bytes.split_at(2 * MESSAGE);
    let (sent, received) = ours.split_at(MESSAGE);
    let (answered, arrived) = theirs.split_at(MESSAGE);
    if sent == arrived && answered == received { Ok(()) } else { Err(Fault::Corrupt) }
}

fn bandwidth(one: &End, memory: &Memory, mr: *mut Mr, budget: u64) -> Result<(), Fault> {
    let length = memory.length as u64 / WINDOW;
    let start = memory.start as u64;
    let started = now();
    let mut bytes: u64 = 0;
    let mut place = 0;
    while now() - started < budget {
        one.settle(WINDOW - 1)?;
        // From the upper half of the memory to its lower half, and so on: contents do not matter.
        let from = start + place * length;
        let to = start + (place + WINDOW / 2) % WINDOW * length;
        one.send(mr, OPCODE_WRITE, from, to, length)?;
        place = (place + 1) % WINDOW;
        bytes = bytes.saturating_add(length);
    }
    one.settle(0)?;
    say(format_args!("bandwidth {length} {bytes} {}", now() - started));
    Ok(())
}
