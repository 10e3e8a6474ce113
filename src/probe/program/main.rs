//! The verbs part of the probe: what has to be done with the libraries of the image.
//!
//! A program without a C library of its own (see build.rs), started as `LOADER THIS [ARGUMENT...]`
//! by the probe, and built by rustc alone. It has no heap, prints a line for everything that it
//! does, and leaves tidying up to its end: a provider that crashes or hangs takes only this process
//! along, and the last line says where.
//!
//! Without arguments it loads libibverbs and lists its devices. Else the arguments are a device, a
//! port, a GID index, the bytes of memory to register at most, and the milliseconds of traffic for
//! each of the two measurements (0: none). The lines are read by `probe::verbs`.

#![no_std]
#![no_main]
#![deny(unsafe_op_in_unsafe_fn)]

mod abi;
mod library;
mod memory;
mod system;
mod traffic;
mod trial;

use core::ffi::{CStr, c_char, c_int};
use core::panic::PanicInfo;

use system::say;

/// Where the loader jumps to: hands over to the C library's start as its own start-up code does,
/// with the address of the arguments in the register where the kernel and the loader leave it.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _start() -> ! {
    core::arch::naked_asm!(
        "xor ebp, ebp",
        "mov r9, rdx",       // what the loader wants called at the end
        "mov rsi, [rsp]",    // argc
        "lea rdx, [rsp + 8]", // argv
        "and rsp, -16",
        "push rax",
        "push rsp", // end of the stack
        "xor r8d, r8d",
        "xor ecx, ecx",
        "lea rdi, [rip + {main}]",
        "call [rip + __libc_start_main@GOTPCREL]",
        "hlt",
        main = sym main,
    )
}

/// The same for ARM.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _start() -> ! {
    core::arch::naked_asm!(
        "mov x29, #0",
        "mov x30, #0",
        "mov x5, x0",
        "ldr x1, [sp]",
        "add x2, sp, #8",
        "mov x6, sp",
        "mov x3, #0",
        "mov x4, #0",
        "adrp x0, {main}",
        "add x0, x0, :lo12:{main}",
        "bl __libc_start_main",
        "brk #0",
        main = sym main,
    )
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the probe's verbs part has start-up code for x86_64 and aarch64 only");

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    system::exit(101)
}

/// # Safety
/// As the C library calls it: `argv` holds `argc` strings that live as long as the process.
unsafe extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    let mut arguments = [c""; 6];
    for (place, argument) in (0..argc).zip(&mut arguments) {
        // SAFETY: the caller's promise; `place` is below `argc`.
        *argument = unsafe { CStr::from_ptr(*argv.offset(place as isize)) };
    }
    let library = match library::Library::load() {
        Ok(library) => library,
        Err(missing) => {
            say(format_args!("missing {missing}"));
            return 0;
        }
    };
    let [_, device, rest @ ..] = arguments;
    if device.is_empty() {
        library.list();
    } else {
        let [port, gid, memory, traffic] = rest.map(number);
        let wishes = trial::Wishes { device, port, gid, memory, traffic };
        if let Err(fault) = trial::run(&library, &wishes) {
            say(format_args!("failed {fault}"));
        }
    }
    say(format_args!("end"));
    0
}

/// A number in decimal; 0 for anything else.
fn number(text: &CStr) -> u64 {
    text.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}
