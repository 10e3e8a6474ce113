//! What the verbs part said (`program/`), line by line.

use std::fmt;

use nix::errno::Errno;
use serde::Serialize;

/// How the verbs part ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// With that status.
    Exited(i32),
    /// By that signal.
    Killed(i32),
    /// It was ended after that many seconds.
    TimedOut(u64),
    /// The image has no dynamic loader to start it with.
    NoLoader,
    /// It could not be started; why.
    NotStarted(String),
}

/// Why there is no library to work with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// It cannot be loaded; the loader's words.
    Library(String),
    /// It lacks this function.
    Function(String),
}

/// What failed in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A call, with that error number.
    Errno(i32),
    /// A request, with that status (`enum ibv_wc_status`).
    Status {
        /// Status.
        status: u32,
        /// The vendor's number for it.
        vendor: u32,
    },
    /// Nothing completed within ten seconds.
    TimedOut,
    /// What arrived is not what was sent.
    Corrupt,
    /// The process itself.
    Died(Ended),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => f.write_str(&errno_text(*errno)),
            Self::Status { status, vendor } => {
                let words = STATUSES.iter().find(|(number, _)| number == status);
                let words = words.map_or("an unknown error", |(_, words)| words);
                write!(f, "{words} (completion status {status}, vendor {vendor})")
            }
            Self::TimedOut => f.write_str("no completion within 10 seconds"),
            Self::Corrupt => f.write_str("what arrived is not what was sent"),
            Self::Died(Ended::Killed(signal)) => {
                let name = nix::sys::signal::Signal::try_from(*signal);
                let name = name.map_or("an unknown signal", |signal| signal.as_str());
                write!(f, "the image's library died of {name}")
            }
            Self::Died(Ended::TimedOut(seconds)) => {
                write!(f, "the image's library did not come back within {seconds} seconds")
            }
            Self::Died(Ended::Exited(status)) => {
                write!(f, "the image's library ended the process with status {status}")
            }
            Self::Died(Ended::NoLoader) => f.write_str("the image has no dynamic loader"),
            Self::Died(Ended::NotStarted(why)) => write!(f, "it could not be started: {why}"),
        }
    }
}

/// Statuses that an adapter's talk with itself can end in (`enum ibv_wc_status`).
const STATUSES: [(u32, &str); 8] = [
    (1, "local length error"),
    (2, "local queue pair error"),
    (4, "local protection error"),
    (5, "flushed"),
    (9, "the other end refused the request"),
    (10, "the other end refused access"),
    (12, "no answer, all retries used"),
    (13, "the receiver was never ready"),
];

/// `EPERM (Operation not permitted)`
pub(super) fn errno_text(errno: i32) -> String {
    let errno = Errno::from_raw(errno);
    format!("{errno:?} ({})", errno.desc())
}

/// A port, as the library sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PortSaid {
    /// `enum ibv_port_state`
    pub state: u32,
    /// `enum ibv_mtu`
    pub mtu: u32,
    /// LID.
    pub lid: u16,
    /// 1 InfiniBand, 2 Ethernet.
    pub link_layer: u8,
}

/// Half of a round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Bytes of a message.
    pub message: u64,
    /// Round trips.
    pub rounds: u64,
    /// Median, in nanoseconds.
    pub nanoseconds: u64,
}

/// Writes of one end into the other's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bandwidth {
    /// Bytes of a write.
    pub message: u64,
    /// Bytes in all.
    pub bytes: u64,
    /// Time that it took, in nanoseconds.
    pub nanoseconds: u64,
}

/// One run of the verbs part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transcript {
    /// File of libibverbs.
    pub library: Option<String>,
    /// The loader that loaded it.
    pub loader: Option<String>,
    /// Why there is none.
    pub missing: Option<Missing>,
    /// Devices that the library lists.
    pub devices: Vec<String>,
    /// The step that was begun last.
    pub step: Option<String>,
    /// What failed in it.
    pub fault: Option<Fault>,
    /// The port.
    pub port: Option<PortSaid>,
    /// Steps of registration: bytes, and error number or 0.
    pub memory: Vec<(u64, i32)>,
    /// Ping-pong.
    pub latency: Option<Latency>,
    /// Writes.
    pub bandwidth: Option<Bandwidth>,
    /// What the libraries printed as errors, the first lines.
    pub noise: Vec<String>,
    /// How it ended.
    pub ended: Ended,
}

/// Lines of the libraries' errors that are kept, and bytes of each.
const NOISE: (usize, usize) = (4, 300);

impl Transcript {
    /// Nothing was said.
    pub(super) fn silent(ended: Ended) -> Self {
        Self {
            library: None,
            loader: None,
            missing: None,
            devices: Vec::new(),
            step: None,
            fault: None,
            port: None,
            memory: Vec::new(),
            latency: None,
            bandwidth: None,
            noise: Vec::new(),
            ended,
        }
    }

    /// Reads what it printed. A line that makes no sense is left out: a library may print too.
    pub fn parse(output: &str, errors: &str, ended: Ended) -> Self {
        let mut said = Self::silent(ended);
        let mut complete = false;
        for line in output.lines() {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "library" => said.library = Some(rest.to_owned()),
                "missing" => said.missing = missing(rest),
                "device" => said.devices.push(rest.to_owned()),
                "step" => said.step = Some(rest.to_owned()),
                "failed" => said.fault = fault(rest),
                "port" => {
                    if let [state, mtu, lid, link_layer] = numbers(rest)[..] {
                        said.port = Some(PortSaid {
                            state: narrow(state),
                            mtu: narrow(mtu),
                            lid: narrow(lid),
                            link_layer: narrow(link_layer),
                        });
                    }
                }
                "memory" => {
                    if let [bytes, errno] = numbers(rest)[..] {
                        said.memory.push((bytes, narrow(errno)));
                    }
                }
                "latency" => {
                    if let [message, rounds, nanoseconds] = numbers(rest)[..] {
                        said.latency = Some(Latency { message, rounds, nanoseconds });
                    }
                }
                "bandwidth" => {
                    if let [message, bytes, nanoseconds] = numbers(rest)[..] {
                        said.bandwidth = Some(Bandwidth { message, bytes, nanoseconds });
                    }
                }
                "end" => complete = true,
                _ => {}
            }
        }
        if !complete && said.missing.is_none() && said.fault.is_none() {
            said.fault = Some(Fault::Died(said.ended.clone()));
        }
        let lines = errors.lines().map(str::trim).filter(|line| !line.is_empty());
        said.noise = lines
            .take(NOISE.0)
            .map(|line| line.chars().filter(|c| !c.is_control()).take(NOISE.1).collect())
            .collect();
        said
    }

    /// What failed, if it was in one of those steps.
    pub(super) fn fault_in(&self, steps: &[&str]) -> Option<&Fault> {
        let step = self.step.as_deref().unwrap_or("find");
        self.fault.as_ref().filter(|_| steps.contains(&step))
    }
}

fn missing(text: &str) -> Option<Missing> {
    match text.split_once(' ')? {
        ("library", why) => Some(Missing::Library(why.to_owned())),
        ("function", name) => Some(Missing::Function(name.to_owned())),
        _ => None,
    }
}

fn fault(text: &str) -> Option<Fault> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    match (word, &numbers(rest)[..]) {
        ("errno", [errno]) => Some(Fault::Errno(narrow(*errno))),
        ("status", [status, vendor]) => {
            Some(Fault::Status { status: narrow(*status), vendor: narrow(*vendor) })
        }
        ("timeout", []) => Some(Fault::TimedOut),
        ("corrupt", []) => Some(Fault::Corrupt),
        _ => None,
    }
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// A number of a narrower type; its largest for one that does not fit.
fn narrow<T: TryFrom<u64> + Bounded>(number: u64) -> T {
    T::try_from(number).unwrap_or(T::MOST)
}

/// The largest number of a type.
trait Bounded {
    const MOST: Self;
}

macro_rules! bounded {
    ($($number:ty)*) => { $(impl Bounded for $number { const MOST: Self = <$number>::MAX; })* };
}
bounded!(u8 u16 u32 i32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_said_is_read() {
        let output = "library /lib/x86_64-linux-gnu/libibverbs.so.1\nstep find\nstep open\n\
                      step port\nport 4 3 0 2\nstep memory\nmemory 4096 0\nmemory 8192 12\n\
                      a provider prints\nstep latency\nlatency 64 1000 48112\nstep bandwidth\n\
                      bandwidth 4096 114688 14419459\nend\n";
        let said = Transcript::parse(output, "warning one\n\n", Ended::Exited(0));
        assert_eq!(said.library.as_deref(), Some("/lib/x86_64-linux-gnu/libibverbs.so.1"));
        assert_eq!(said.port.unwrap(), PortSaid { state: 4, mtu: 3, lid: 0, link_layer: 2 });
        assert_eq!(said.memory, [(4096, 0), (8192, 12)]);
        assert_eq!(said.latency.unwrap().nanoseconds, 48_112);
        assert_eq!(said.bandwidth.unwrap().bytes, 114_688);
        assert_eq!((said.fault, said.noise), (None, vec!["warning one".to_owned()]));
    }

    #[test]
    fn a_fault_is_of_the_last_step() {
        for (output, ended, fault) in [
            ("step open\nfailed errno 1\nend", Ended::Exited(0), Fault::Errno(1)),
            (
                "step latency\nfailed status 12 129\nend",
                Ended::Exited(0),
                Fault::Status { status: 12, vendor: 129 },
            ),
            ("step latency\nfailed timeout\nend", Ended::Exited(0), Fault::TimedOut),
            ("step latency\nfailed corrupt\nend", Ended::Exited(0), Fault::Corrupt),
            ("step open\n", Ended::Killed(11), Fault::Died(Ended::Killed(11))),
            ("step open\n", Ended::TimedOut(60), Fault::Died(Ended::TimedOut(60))),
            ("", Ended::Exited(127), Fault::Died(Ended::Exited(127))),
        ] {
            let said = Transcript::parse(output, "", ended);
            assert_eq!(said.fault, Some(fault), "{output}");
        }
        let died = Transcript::parse("step open\n", "", Ended::Killed(11));
        assert!(died.fault_in(&["open"]).is_some());
        assert!(died.fault_in(&["memory"]).is_none());
        assert_eq!(died.fault.unwrap().to_string(), "the image's library died of SIGSEGV");
    }

    #[test]
    fn c91_a_missing_library_is_not_a_crash() {
        let text = "missing library libibverbs.so.1: cannot open shared object file\n";
        let said = Transcript::parse(text, "", Ended::Exited(0));
        assert_eq!(said.fault, None);
        let Some(Missing::Library(why)) = said.missing else { panic!("{said:?}") };
        assert_eq!(why, "libibverbs.so.1: cannot open shared object file");
    }

    #[test]
    fn nonsense_is_left_out() {
        let text = "port 1\nmemory x 1\nlatency\nfailed\nmissing\n\u{7}\nport 4 3 99999999 2\nend";
        let said = Transcript::parse(text, "\u{1b}[31mred", Ended::Exited(0));
        assert_eq!(said.port.unwrap().lid, u16::MAX);
        assert_eq!(said.memory, []);
        assert_eq!(said.fault, None);
        assert_eq!(said.noise, ["[31mred"]);
    }
}
