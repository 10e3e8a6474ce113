//! libibverbs as the image has it.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt;
use core::{mem, slice};

use super::abi::{Context, Cq, Device, Gid, Mr, Pd, PortAttributes, Qp, QpAttributes, QpInit};
use super::system::{self, Loaded, say};

/// Why there is no library to work with.
#[derive(Debug)]
pub enum Missing {
    /// It cannot be loaded; the loader's words.
    Library(&'static str),
    /// It lacks a function.
    Function(&'static CStr),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(why) => write!(f, "library {why}"),
            Self::Function(name) => write!(f, "function {}", name.to_str().unwrap_or("")),
        }
    }
}

/// Its functions. Those of `poll_cq`, `post_send` and `post_recv` are in [`Context::ops`].
pub struct Library {
    get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut Device,
    get_device_name: unsafe extern "C" fn(*mut Device) -> *const c_char,
    pub open_device: unsafe extern "C" fn(*mut Device) -> *mut Context,
    pub query_port: unsafe extern "C" fn(*mut Context, u8, *mut PortAttributes) -> c_int,
    pub query_gid: unsafe extern "C" fn(*mut Context, u8, c_int, *mut Gid) -> c_int,
    pub alloc_pd: unsafe extern "C" fn(*mut Context) -> *mut Pd,
    pub reg_mr: unsafe extern "C" fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr,
    pub dereg_mr: unsafe extern "C" fn(*mut Mr) -> c_int,
    pub create_cq:
        unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut c_void, c_int) -> *mut Cq,
    pub create_qp: unsafe extern "C" fn(*mut Pd, *mut QpInit) -> *mut Qp,
    pub modify_qp: unsafe extern "C" fn(*mut Qp, *mut QpAttributes, c_int) -> c_int,
}

/// The function of that name.
///
/// # Safety
/// `F` is a pointer to a function, of the type that the library's header declares.
unsafe fn function<F: Copy>(loaded: &Loaded, name: &'static CStr) -> Result<F, Missing> {
    const { assert!(mem::size_of::<F>() == mem::size_of::<*mut c_void>()) };
    let address = loaded.symbol(name);
    if address.is_null() {
        return Err(Missing::Function(name));
    }
    // SAFETY: the sizes are equal and the address is not null; the type is the caller's promise.
    Ok(unsafe { mem::transmute_copy(&address) })
}

impl Library {
    /// Loads it and says where from.
    pub fn load() -> Result<Self, Missing> {
        let Some(loaded) = Loaded::open(c"libibverbs.so.1") else {
            return Err(Missing::Library(system::loader_error()));
        };
        say(format_args!("library {}", system::file_of(loaded.symbol(c"ibv_get_device_list"))));
        // SAFETY: each has the type that infiniband/verbs.h declares for it.
        unsafe {
            Ok(Self {
                get_device_list: function(&loaded, c"ibv_get_device_list")?,
                get_device_name: function(&loaded, c"ibv_get_device_name")?,
                open_device: function(&loaded, c"ibv_open_device")?,
                query_port: function(&loaded, c"ibv_query_port")?,
                query_gid: function(&loaded, c"ibv_query_gid")?,
                alloc_pd: function(&loaded, c"ibv_alloc_pd")?,
                reg_mr: function(&loaded, c"ibv_reg_mr")?,
                dereg_mr: function(&loaded, c"ibv_dereg_mr")?,
                create_cq: function(&loaded, c"ibv_create_cq")?,
                create_qp: function(&loaded, c"ibv_create_qp")?,
                modify_qp: function(&loaded, c"ibv_modify_qp")?,
            })
        }
    }

    /// The devices that have a node and a provider in this image.
    pub fn devices(&self) -> Result<&[*mut Device], c_int> {
        let mut count = 0;
        // SAFETY: the library writes the count and answers with a list of as many, which is never
        // freed here.
        let list = unsafe { (self.get_device_list)(&raw mut count) };
        if list.is_null() {
            return Err(system::errno());
        }
        // SAFETY: as above.
        Ok(unsafe { slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) })
    }

    /// Kernel name of a device of the list.
    pub fn name(&self, device: *mut Device) -> &CStr {
        // SAFETY: the device is of the list, which is never freed; its name is a terminated string
        // inside it.
        unsafe { CStr::from_ptr((self.get_device_name)(device)) }
    }

    /// Prints the devices.
    pub fn list(&self) {
        match self.devices() {
            Ok(devices) => {
                for device in devices {
                    say(format_args!("device {}", self.name(*device).to_str().unwrap_or("")));
                }
            }
            Err(errno) => say(format_args!("failed errno {errno}")),
        }
    }
}
