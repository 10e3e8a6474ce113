//! The program that turns a TCP socket into one of SMC while it is made, as instructions.
//!
//! The kernel asks `update_socket_protocol(family, type, protocol)` (`net/socket.c`) in every
//! `socket()` which protocol is meant. The program sits in front of it (`BPF_MODIFY_RETURN`): what it
//! returns is taken for the answer, except 0, which lets the kernel's own function answer. So it
//! returns `IPPROTO_SMC` for a stream socket of a container that is switched, and 0 for all else,
//! never the protocol itself: other programs at the same place (MPTCP's) get their turn.
//!
//! A container is known by its control group. Groups below it are the container's too, so each of
//! a task's ancestors would have to be looked up; the settings have a bit for each depth at which
//! there is a switched group at all, which on most nodes is one. The loop over depths is unrolled:
//! with constants in them, the verifier has nothing to prove.

/// `IPPROTO_SMC` (6.11)
pub const IPPROTO_SMC: i32 = 256;
/// Deepest control group that can be switched; the root's depth is 0.
pub const DEEPEST: u32 = 24;
/// [`Settings::flags`]: sockets of `IPPROTO_MPTCP` are turned too.
pub const TURN_MPTCP: u32 = 1;

const IPPROTO_TCP: i32 = 6;
const IPPROTO_MPTCP: i32 = 262;
const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;
const SOCK_STREAM: i32 = 1;
/// `SOCK_TYPE_MASK`: above it are flags such as `SOCK_CLOEXEC`.
const SOCK_TYPE_MASK: i32 = 0xf;

/// Value of the settings map, which has this one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settings {
    /// Bit n: there may be a switched group at depth n.
    pub depths: u32,
    /// [`TURN_MPTCP`] or none.
    pub flags: u32,
}

impl Settings {
    /// Bytes as they are in the map.
    pub fn to_bytes(self) -> [u8; 8] {
        let [a, b, c, d] = self.depths.to_ne_bytes();
        let [e, f, g, h] = self.flags.to_ne_bytes();
        [a, b, c, d, e, f, g, h]
    }

    /// From bytes of the map.
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self { depths: u32::from_ne_bytes([a, b, c, d]), flags: u32::from_ne_bytes([e, f, g, h]) }
    }
}

/// What the program refers to, by descriptors that are open while it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct References {
    /// The map of switched groups: `u64`, the group's number, to `u32`, its depth.
    pub groups: i32,
    /// The map with [`Settings`].
    pub settings: i32,
    /// A function of the module smc, where that is a module.
    pub module: Option<ModuleFunction>,
}

/// A function of a module, by its description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModuleFunction {
    /// Descriptor of the module's BTF.
    pub btf: i32,
    /// Number of the function in there.
    pub id: i32,
}

/// One instruction (`struct bpf_insn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Operation.
    pub code: u8,
    /// Destination register in the low half, source in the high one.
    pub registers: u8,
    /// Offset of a jump or an access.
    pub offset: i16,
    /// Constant.
    pub constant: i32,
}

/// Names of registers: r0 is results, r1 to r5 are arguments and lost in calls, r6 to r9 stay.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R6: u8 = 6;
const R7: u8 = 7;
/// The frame; what is below it is the stack.
const FP: u8 = 10;

/// Operations (`linux/bpf.h`), with the class in the low three bits.
mod code {
    /// `dst = src`, 64 bits
    pub const MOVE: u8 = 0xbf;
    /// `dst = constant`, 64 bits
    pub const SET: u8 = 0xb7;
    /// `dst += constant`
    pub const ADD: u8 = 0x07;
    /// `dst &= constant`
    pub const AND: u8 = 0x57;
    /// `dst = *(u64 *)(src + offset)`
    pub const LOAD: u8 = 0x79;
    /// `dst = *(u32 *)(src + offset)`
    pub const LOAD_HALF: u8 = 0x61;
    /// `*(u64 *)(dst + offset) = src`
    pub const STORE: u8 = 0x7b;
    /// `dst = constant`, 64 bits in two instructions
    pub const LONG: u8 = 0x18;
    /// Jumps that compare 32 bits: the arguments are `int`s, whose upper halves say nothing.
    pub const IF_EQUAL: u8 = 0x16;
    /// See [`IF_EQUAL`].
    pub const IF_NOT_EQUAL: u8 = 0x56;
    /// Jump if less, without sign, 32 bits.
    pub const IF_LESS: u8 = 0xa6;
    /// Jump if any of the bits is set, 32 bits.
    pub const IF_ANY: u8 = 0x46;
    /// Jump that compares 64 bits: pointers and numbers of groups.
    pub const IF_ZERO: u8 = 0x15;
    /// See [`IF_ZERO`].
    pub const IF_NOT_ZERO: u8 = 0x55;
    /// Jump.
    pub const JUMP: u8 = 0x05;
    /// Call of a helper.
    pub const CALL: u8 = 0x85;
    /// Return of r0.
    pub const EXIT: u8 = 0x95;
}

/// What the source register of [`code::LONG`] says about its constant.
mod pseudo {
    /// Descriptor of a map (`BPF_PSEUDO_MAP_FD`).
    pub const MAP: u8 = 1;
    /// Descriptor of a map of one value, whose address is meant (`BPF_PSEUDO_MAP_VALUE`).
    pub const VALUE: u8 = 2;
    /// Number of a function or variable in BTF (`BPF_PSEUDO_BTF_ID`).
    pub const BTF: u8 = 3;
}

/// Helpers (`enum bpf_func_id`).
mod helper {
    /// `bpf_map_lookup_elem(map, key)`
    pub const LOOKUP: i32 = 1;
    /// `bpf_get_current_ancestor_cgroup_id(depth)`; 0 where the task's own group is less deep.
    pub const ANCESTOR: i32 = 123;
}

/// Places to jump to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The family is one that SMC has.
    Family,
    /// The socket is one that is turned, if its group is.
    Candidate,
    /// The depth after this one.
    Past(u32),
    /// The group is switched.
    Turn,
    /// It is none of ours.
    Leave,
}

#[derive(Debug, Default)]
struct Assembly {
    instructions: Vec<Instruction>,
    jumps: Vec<(usize, Place)>,
    places: Vec<(Place, usize)>,
}

impl Assembly {
    fn put(&mut self, code: u8, to: u8, from: u8, offset: i16, constant: i32) {
        let registers = from << 4 | to;
        self.instructions.push(Instruction { code, registers, offset, constant });
    }

    fn jump(&mut self, code: u8, register: u8, constant: i32, place: Place) {
        self.jumps.push((self.instructions.len(), place));
        self.put(code, register, 0, 0, constant);
    }

    /// A constant of 64 bits; `kind` of [`pseudo`] says what the two halves are.
    fn long(&mut self, to: u8, kind: u8, low: i32, high: i32) {
        self.put(code::LONG, to, kind, 0, low);
        self.put(0, 0, 0, 0, high);
    }

    fn here(&mut self, place: Place) {
        self.places.push((place, self.instructions.len()));
    }

    /// With every jump's offset filled in, which is counted from the instruction after it.
    fn finish(mut self) -> Vec<Instruction> {
        for (at, place) in self.jumps {
            let target = self.places.iter().find(|(known, _)| *known == place);
            let offset = target.and_then(|(_, to)| i16::try_from(to.checked_sub(at + 1)?).ok());
            // Every place that is jumped to follows, and the whole is a few hundred long.
            self.instructions[at].offset = offset.unwrap_or(0);
        }
        self.instructions
    }
}

/// The program.
pub fn instructions(references: &References) -> Vec<Instruction> {
    use code::{
        ADD, AND, CALL, EXIT, IF_ANY, IF_EQUAL, IF_LESS, IF_NOT_EQUAL, IF_NOT_ZERO, IF_ZERO, JUMP,
        LOAD, LOAD_HALF, MOVE, SET, STORE,
    };
    let mut a = Assembly::default();
    // The context is the array of the function's arguments. What costs least and excludes most
    // comes first: most sockets that are made are none of TCP.
    a.put(MOVE, R6, R1, 0, 0);
    a.put(LOAD, R2, R6, 0, 0);
    a.jump(IF_EQUAL, R2, AF_INET, Place::Family);
    a.jump(IF_NOT_EQUAL, R2, AF_INET6, Place::Leave);
    a.here(Place::Family);
    a.put(LOAD, R2, R6, 8, 0);
    a.put(AND, R2, 0, 0, SOCK_TYPE_MASK);
    a.jump(IF_NOT_EQUAL, R2, SOCK_STREAM, Place::Leave);
    // The settings are read where they lie; that is no call.
    a.long(R7, pseudo::VALUE, references.settings, 0);
    a.put(LOAD, R2, R6, 16, 0);
    a.jump(IF_EQUAL, R2, 0, Place::Candidate);
    a.jump(IF_EQUAL, R2, IPPROTO_TCP, Place::Candidate);
    a.jump(IF_NOT_EQUAL, R2, IPPROTO_MPTCP, Place::Leave);
    a.put(LOAD_HALF, R2, R7, 4, 0);
    a.put(AND, R2, 0, 0, TURN_MPTCP.cast_signed());
    a.jump(IF_EQUAL, R2, 0, Place::Leave);
    a.here(Place::Candidate);
    a.put(LOAD_HALF, R7, R7, 0, 0);
    // Depth 0 is the root, of which everybody is a descendant: never switched.
    for depth in 1..=DEEPEST {
        let past = Place::Past(depth);
        // Jump over the jump where the bit is set: there is no jump for bits that are not.
        a.put(IF_ANY, R7, 0, 1, (1_u32 << depth).cast_signed());
        a.jump(JUMP, 0, 0, past);
        a.put(SET, R1, 0, 0, depth.cast_signed());
        a.put(CALL, 0, 0, 0, helper::ANCESTOR);
        // The task is less deep than this, and all further depths are deeper.
        a.jump(IF_ZERO, R0, 0, Place::Leave);
        a.put(STORE, FP, R0, -8, 0);
        a.long(R1, pseudo::MAP, references.groups, 0);
        a.put(MOVE, R2, FP, 0, 0);
        a.put(ADD, R2, 0, 0, -8);
        a.put(CALL, 0, 0, 0, helper::LOOKUP);
        a.jump(IF_NOT_ZERO, R0, 0, Place::Turn);
        // No bit is left: one look is all for most tasks.
        a.jump(IF_LESS, R7, (1_u32 << (depth + 1)).cast_signed(), Place::Leave);
        a.here(past);
    }
    a.jump(JUMP, 0, 0, Place::Leave);
    a.here(Place::Turn);
    if let Some(function) = references.module {
        // The value is not used. A program that names something of a module holds the module as
        // long as it is loaded (`check_pseudo_btf_id` in the verifier), so that smc cannot go first
        // and leave sockets of a protocol that nobody knows, whether or not the daemon lives.
        a.long(R1, pseudo::BTF, function.id, function.btf);
    }
    a.put(SET, R0, 0, 0, IPPROTO_SMC);
    a.put(EXIT, 0, 0, 0, 0);
    a.here(Place::Leave);
    a.put(SET, R0, 0, 0, 0);
    a.put(EXIT, 0, 0, 0, 0);
    a.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const REFERENCES: References = References {
        groups: 11,
        settings: 12,
        module: Some(ModuleFunction { btf: 13, id: 114_352 }),
    };

    /// A task that makes a socket.
    struct Task<'a> {
        arguments: [u64; 3],
        /// Numbers of its group and of those around it, the root first.
        ancestors: &'a [u64],
    }

    /// Runs the program as the kernel would; `None` if it leaves its bounds or uses what was lost.
    /// Addresses are made up: the settings are at 1000, the frame at 2000.
    fn run(
        program: &[Instruction],
        task: &Task<'_>,
        settings: Settings,
        groups: &[u64],
    ) -> Option<u64> {
        let mut registers = [None; 11];
        registers[1] = Some(0);
        registers[10] = Some(2000);
        let mut stack = BTreeMap::new();
        let mut at = 0;
        for _ in 0..program.len() {
            let one = program.get(at)?;
            let (to, from) = (usize::from(one.registers & 15), usize::from(one.registers >> 4));
            let constant = i64::from(one.constant).cast_unsigned();
            let half = |register: usize| registers[register].map(|value: u64| value & 0xffff_ffff);
            let jump =
                |yes: bool| if yes { at.checked_add_signed(one.offset.into()) } else { Some(at) };
            match one.code {
                code::MOVE => registers[to] = registers[from],
                code::SET => registers[to] = Some(constant),
                code::ADD => registers[to] = Some(registers[to]?.wrapping_add(constant)),
                code::AND => registers[to] = Some(registers[to]? & constant),
                code::LOAD => {
                    let place = registers[from]? + u64::try_from(one.offset).ok()?;
                    registers[to] = Some(*task.arguments.get(usize::try_from(place).ok()? / 8)?);
                }
                code::LOAD_HALF => {
                    registers[to] =
                        Some(match registers[from]? + u64::try_from(one.offset).ok()? {
                            1000 => settings.depths.into(),
                            1004 => settings.flags.into(),
                            _ => return None,
                        });
                }
                code::STORE => {
                    let place = registers[to]?.checked_add_signed(one.offset.into())?;
                    stack.insert(place, registers[from]?);
                }
                code::LONG => {
                    let high = program.get(at + 1)?.constant;
                    let from = u8::try_from(from).ok()?;
                    registers[to] = Some(match (from, one.constant, high) {
                        (pseudo::MAP, 11, 0) => 11,
                        (pseudo::VALUE, 12, 0) => 1000,
                        (pseudo::BTF, 114_352, 13) => 0,
                        _ => return None,
                    });
                    at += 1;
                }
                code::IF_EQUAL => at = jump(half(to)? == constant & 0xffff_ffff)?,
                code::IF_NOT_EQUAL => at = jump(half(to)? != constant & 0xffff_ffff)?,
                code::IF_LESS => at = jump(half(to)? < constant & 0xffff_ffff)?,
                code::IF_ANY => at = jump(half(to)? & constant & 0xffff_ffff != 0)?,
                code::IF_ZERO => at = jump(registers[to]? == 0)?,
                code::IF_NOT_ZERO => at = jump(registers[to]? != 0)?,
                code::JUMP => at = jump(true)?,
                code::CALL => {
                    let result = match one.constant {
                        helper::ANCESTOR => {
                            let depth = usize::try_from(registers[1]?).ok()?;
                            task.ancestors.get(depth).copied().unwrap_or(0)
                        }
                        helper::LOOKUP if registers[1] == Some(11) => {
                            u64::from(groups.contains(stack.get(&registers[2]?)?)) * 7
                        }
                        _ => return None,
                    };
                    registers[1..6].fill(None);
                    registers[0] = Some(result);
                }
                code::EXIT => return registers[0],
                _ => return None,
            }
            at += 1;
        }
        None
    }

    #[test]
    fn stream_sockets_of_switched_groups_and_their_descendants_are_turned() {
        let program = instructions(&REFERENCES);
        let settings = Settings { depths: 1 << 2 | 1 << DEEPEST, flags: 0 };
        let mptcp = Settings { flags: TURN_MPTCP, ..settings };
        let deep: Vec<u64> = (0..40).map(|depth| 100 + depth).collect();
        let groups = [32, 100 + u64::from(DEEPEST)];
        const CLOEXEC: u64 = 0o2_000_000;
        for (family, kind, protocol, ancestors, settings, turned) in [
            // The group itself, at its depth.
            (2, 1, 0, &[1, 31, 32][..], settings, true),
            (2, 1, 6, &[1, 31, 32], settings, true),
            (10, 1, 0, &[1, 31, 32], settings, true),
            (2, 1 | CLOEXEC, 6, &[1, 31, 32], settings, true),
            // A group below it.
            (2, 1, 0, &[1, 31, 32, 33, 34], settings, true),
            // One beside it, one above it, the root.
            (2, 1, 0, &[1, 31, 39], settings, false),
            (2, 1, 0, &[1, 31], settings, false),
            (2, 1, 0, &[1], settings, false),
            // The deepest that there may be, and one below it.
            (2, 1, 0, &deep, settings, true),
            (2, 1, 0, &deep[..25], settings, true),
            (2, 1, 0, &deep[..24], settings, false),
            // A group whose depth has no bit is not looked for.
            (2, 1, 0, &[1, 32], settings, false),
            (2, 1, 0, &[1, 31, 32], Settings::default(), false),
            // Other sockets.
            (2, 2, 0, &[1, 31, 32], settings, false),
            (2, 3, 0, &[1, 31, 32], settings, false),
            (2, 2 | CLOEXEC, 17, &[1, 31, 32], settings, false),
            (1, 1, 0, &[1, 31, 32], settings, false),
            (16, 1, 0, &[1, 31, 32], settings, false),
            (40, 1, 0, &[1, 31, 32], settings, false),
            (2, 1, 132, &[1, 31, 32], settings, false),
            (2, 1, 256, &[1, 31, 32], settings, false),
            // MPTCP, where that is wanted.
            (2, 1, 262, &[1, 31, 32], settings, false),
            (2, 1, 262, &[1, 31, 32], mptcp, true),
            (10, 1, 262, &[1, 31, 39], mptcp, false),
            // Upper halves of the arguments say nothing.
            (7 << 32 | 2, 1 << 32 | 1, 9 << 32, &[1, 31, 32], settings, true),
        ] {
            let task = Task { arguments: [family, kind, protocol], ancestors };
            let expected = if turned { 256 } else { 0 };
            assert_eq!(
                run(&program, &task, settings, &groups),
                Some(expected),
                "{:x?} {ancestors:?} {settings:?}",
                task.arguments
            );
        }
    }

    #[test]
    fn a_built_in_smc_is_not_held() {
        let with = instructions(&REFERENCES);
        let without = instructions(&References { module: None, ..REFERENCES });
        assert_eq!(with.len(), without.len() + 2);
        let task = Task { arguments: [2, 1, 0], ancestors: &[1, 5] };
        let settings = Settings { depths: 2, flags: 0 };
        assert_eq!(run(&without, &task, settings, &[5]), Some(256));
    }

    #[test]
    fn settings_survive_the_map() {
        let settings = Settings { depths: 0x10, flags: TURN_MPTCP };
        assert_eq!(Settings::from_bytes(settings.to_bytes()), settings);
        assert_eq!(size_of::<Instruction>(), 8);
    }
}
