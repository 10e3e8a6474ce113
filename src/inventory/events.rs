//! What wakes the keeper of the snapshot: the kernel's announcements, boiled down to which part of
//! the inventory they put in doubt.
//!
//! Three sources, none of which is enough alone:
//! * the RDMA monitor (6.12 and later): devices, their names, and the interfaces of their ports;
//! * uevents: devices on older kernels, device nodes, PCI functions and their drivers;
//! * rtnetlink: interfaces and addresses of this network namespace.
//!
//! Nothing announces the state of an InfiniBand port, a move into another RDMA namespace, or a
//! GID of a pod's address: for those there is a slow rescan, and pods are read on their own.
//!
//! Pods come and go all day on a busy node, and each brings a veth. Those are left out, with their
//! addresses, and so is what a bridge says when they join it, so that they do not cause a rescan
//! each. A quiet node wakes nobody.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::SockProtocol;

use crate::netlink::kobject::{self, Subsystem};
use crate::netlink::listener::Heard;
use crate::netlink::rdma::Rdma;
use crate::netlink::route::{self, Link, Route};
use crate::netlink::{self, Family, Listener, Socket, messages, nldev};
use crate::roots::Roots;

/// Longest notification that is read whole; of longer ones the beginning is enough.
const BUFFER: usize = 4096;
/// Most notifications that are read in one go. With more than that, everything is in doubt anyway.
const BURST: usize = 4096;

/// Family of what is told of a bridge's ports (`linux/socket.h`).
const AF_BRIDGE: u8 = 7;

/// Which parts of the inventory are in doubt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    /// RDMA devices, their nodes, or the interfaces of their ports.
    pub rdma: bool,
    /// PCI functions or the drivers bound to them.
    pub pci: bool,
    /// Network interfaces.
    pub netdev: bool,
    /// Addresses, and with them GIDs.
    pub address: bool,
}

impl Changes {
    /// Everything is in doubt.
    pub const ALL: Self = Self { rdma: true, pci: true, netdev: true, address: true };

    /// Whether anything is in doubt.
    pub fn any(self) -> bool {
        self != Self::default()
    }

    fn add(&mut self, other: Self) {
        self.rdma |= other.rdma;
        self.pci |= other.pci;
        self.netdev |= other.netdev;
        self.address |= other.address;
    }
}

/// The sockets that hear announcements, pollable as one descriptor: readable when there may be a
/// change, until [`Events::drain`] has been called.
#[derive(Debug)]
pub struct Events {
    poll: Epoll,
    sources: Vec<(Source, Listener)>,
    /// Interfaces that have been announced since this was opened.
    links: Links,
    /// Where `ib_core` shows itself.
    core: PathBuf,
    remarks: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Monitor,
    Uevent,
    Route,
}

impl Events {
    /// Starts to listen, in the calling thread's network namespace. A source that cannot be had is
    /// a remark, not a failure: the slow rescan makes up for it.
    ///
    /// # Errors
    /// When there is no descriptor left to poll with.
    pub fn open(roots: &Roots) -> nix::Result<Self> {
        let mut events = Self {
            poll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            sources: Vec::new(),
            links: Links::default(),
            core: roots.sys.join("class/infiniband"),
            remarks: Vec::new(),
        };
        let groups = [route::RTNLGRP_LINK, route::RTNLGRP_IPV4_IFADDR, route::RTNLGRP_IPV6_IFADDR];
        let uevents = Listener::open(
            "NETLINK_KOBJECT_UEVENT",
            SockProtocol::NetlinkKObjectUEvent,
            &[kobject::GROUP_KERNEL],
        );
        events.add(Source::Uevent, uevents);
        events.add(Source::Route, Listener::open(Route::NAME, Route::PROTOCOL, &groups));
        events.add_monitor();
        Ok(events)
    }

    /// Which sources could not be had, a sentence each, since this was last asked.
    pub fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// Reads what has been announced. Never blocks. After it the descriptor is not readable until
    /// the next announcement, which is what edge-triggered pollers need.
    pub fn drain(&mut self) -> Changes {
        let mut changes = Changes::default();
        let mut buffer = [0; BUFFER];
        for (source, listener) in &self.sources {
            let mut left = BURST;
            loop {
                match listener.hear(&mut buffer) {
                    Ok(Heard::Silence) => break,
                    Ok(Heard::Datagram(datagram)) => changes.add(match source {
                        Source::Monitor => Changes { rdma: true, ..Changes::default() },
                        Source::Uevent => uevent(datagram),
                        Source::Route => self.links.change(datagram),
                    }),
                    Ok(Heard::Lost) => changes = Changes::ALL,
                    Err(error) => {
                        self.remarks.push(error.to_string());
                        changes = Changes::ALL;
                        break;
                    }
                }
                left -= 1;
                if left == 0 {
                    changes = Changes::ALL;
                    break;
                }
            }
        }
        if changes.rdma {
            // ib_core may have been loaded just now.
            self.add_monitor();
        }
        changes
    }

    /// Adds the RDMA monitor if the kernel has one and it is not there yet. Where `ib_core` is not
    /// loaded it is not asked: the question alone would load it.
    fn add_monitor(&mut self) {
        let there = self.sources.iter().any(|(source, _)| *source == Source::Monitor);
        if there || !self.core.exists() {
            return;
        }
        match Socket::<Rdma>::open().and_then(|mut socket| socket.system()) {
            Ok(system) if system.monitor => self.add(
                Source::Monitor,
                Listener::open(Rdma::NAME, Rdma::PROTOCOL, &[nldev::RDMA_NL_GROUP_NOTIFY]),
            ),
            Ok(_) => {}
            Err(error) => self.remarks.push(error.to_string()),
        }
    }

    fn add(&mut self, source: Source, listener: Result<Listener, netlink::Error>) {
        match listener {
            Ok(listener) => match self.poll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, 0))
            {
                Ok(()) => self.sources.push((source, listener)),
                Err(errno) => self.remarks.push(unpolled(source, errno)),
            },
            Err(error) => self.remarks.push(error.to_string()),
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.0.as_fd()
    }
}

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.poll.0.as_raw_fd()
    }
}

fn unpolled(source: Source, errno: Errno) -> String {
    format!("changes told by {source:?} are not noticed: epoll_ctl: {errno}")
}

/// What a uevent puts in doubt.
fn uevent(message: &[u8]) -> Changes {
    let none = Changes::default();
    match kobject::parse(message).map(|event| event.subsystem) {
        Some(Subsystem::Infiniband | Subsystem::Verbs | Subsystem::Mad | Subsystem::RdmaCm) => {
            Changes { rdma: true, ..none }
        }
        Some(Subsystem::Pci | Subsystem::Auxiliary) => Changes { pci: true, ..none },
        // rtnetlink tells the same, and the kind of the interface with it.
        Some(Subsystem::Net) | None => none,
    }
}

/// Interfaces as they were last announced, by `ifindex`; `None` is a veth.
#[derive(Debug, Default)]
struct Links(BTreeMap<u32, Option<Link>>);

impl Links {
    /// What a notification of rtnetlink puts in doubt.
    fn change(&mut self, datagram: &[u8]) -> Changes {
        let mut changes = Changes::default();
        for message in messages(datagram) {
            let Ok((header, body)) = message else {
                // Cut short: what it was about is all that is known.
                changes.add(Changes { netdev: true, address: true, ..Changes::default() });
                break;
            };
            match header.message_type {
                // Of an interface as a bridge's port. That it joined or left is told once more, as
                // of an interface.
                route::RTM_NEWLINK | route::RTM_DELLINK if body.first() == Some(&AF_BRIDGE) => {}
                route::RTM_NEWLINK => {
                    changes.netdev |= Link::parse(body).map_or(true, |link| self.add(link))
                }
                route::RTM_DELLINK => {
                    let known = Link::parse(body).ok().and_then(|link| {
                        let veth = is_veth(&link);
                        self.0.remove(&link.index).or_else(|| veth.then_some(None))
                    });
                    changes.netdev |= known != Some(None);
                }
                route::RTM_NEWADDR | route::RTM_DELADDR => {
                    let address = route::Address::parse(body).ok().flatten();
                    changes.address |=
                        address.is_none_or(|address| self.0.get(&address.index) != Some(&None));
                }
                _ => {}
            }
        }
        changes
    }

    /// Takes over an interface. True: it is not as it was, and no veth.
    fn add(&mut self, mut link: Link) -> bool {
        if link.kind.as_deref() == Some("bridge") {
            // It takes both from its ports, and no adapter is a bridge.
            link.address.clear();
            link.up = false;
        }
        let index = link.index;
        let now = (!is_veth(&link)).then_some(link);
        let there = now.is_some();
        self.0.insert(index, now.clone()).is_none_or(|before| before != now) && there
    }
}

fn is_veth(link: &Link) -> bool {
    link.kind.as_deref() == Some("veth")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;
    use crate::netlink::tests::recorded_after;
    use crate::netns::enter::tests::fresh;

    fn recorded_changes(mark: &str) -> Changes {
        let mut changes = Changes::default();
        let mut links = Links::default();
        for datagram in recorded_after(mark, "uevent") {
            changes.add(uevent(&datagram));
        }
        for datagram in recorded_after(mark, "rtnl") {
            changes.add(links.change(&datagram));
        }
        changes
    }

    #[test]
    fn what_happened_puts_in_doubt_what_it_touched() {
        let none = Changes::default();
        for (mark, expected) in [
            ("ip netns add Q", none),
            ("veth", none),
            ("netns del", none),
            ("addr add", Changes { address: true, ..none }),
            ("addr del", Changes { address: true, ..none }),
            ("rename", Changes { rdma: true, ..none }),
            ("rxe del", Changes { rdma: true, ..none }),
            ("rxe add", Changes { rdma: true, ..none }),
            ("net rename", Changes { netdev: true, address: true, ..none }),
            ("rmmod rdma_ucm", Changes { rdma: true, ..none }),
        ] {
            assert_eq!(recorded_changes(mark), expected, "{mark}");
        }
        let pci =
            b"bind@/devices/pci0000:00/0000:00:05.0\0ACTION=bind\0SUBSYSTEM=pci\0DRIVER=mlx5\0";
        assert_eq!(uevent(pci), Changes { pci: true, ..none });
    }

    #[test]
    fn an_address_of_a_veth_is_a_pods_affair() {
        let mut links = Links::default();
        for datagram in recorded_after("veth", "rtnl") {
            links.change(&datagram);
        }
        assert_eq!(links.0.values().filter(|link| link.is_none()).count(), 1);
        // The recorded address is of interface 2.
        let address = &recorded_after("addr add", "rtnl")[0];
        assert!(links.change(address).address);
        assert!(!Links(BTreeMap::from([(2, None)])).change(address).any());
        for datagram in recorded_after("netns del", "rtnl") {
            links.change(&datagram);
        }
        assert!(links.0.values().all(Option::is_some), "{links:?}");
    }

    #[test]
    fn what_is_cut_short_puts_in_doubt_what_it_may_have_been() {
        let datagram = &recorded_after("net rename", "rtnl")[0];
        let changes = Links::default().change(&datagram[..200]);
        assert!(changes.netdev && changes.address);
    }

    /// Whether the descriptor becomes readable within that time.
    fn woken(events: &Events, milliseconds: u16) -> bool {
        let mut polled = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::from(milliseconds)).unwrap() == 1
    }

    #[test]
    fn a_change_wakes_and_draining_puts_back_to_sleep() {
        let Some(namespace) = fresh() else { return };
        if Command::new("ip").arg("-V").output().is_err() {
            eprintln!("skipped: there is no ip(8) here to change an interface with");
            return;
        }
        let ip = |words: &str| {
            let run = || Command::new("ip").args(words.split(' ')).status().unwrap().success();
            assert!(namespace.run(run).unwrap(), "{words}");
        };
        let open = || Events::open(&Roots::below(Path::new("/nonexistent")));
        let mut events = namespace.run(open).unwrap().unwrap();
        assert_eq!(events.take_remarks(), [""; 0]);
        ip("link add name va type veth peer name vb");
        ip("link add link va name mac0 type macvlan");
        ip("address add 10.9.0.5/24 dev mac0");
        assert!(woken(&events, 5000));
        let changes = events.drain();
        assert!(changes.netdev && changes.address, "{changes:?}");
        // Uevents of the build machine itself may come at any time, those of a veth may not.
        events.drain();
        ip("address add 10.9.0.6/24 dev va");
        ip("link set vb up");
        let changes = events.drain();
        assert!(!changes.netdev && !changes.address, "{changes:?}");
        ip("address add 10.9.0.7/24 dev mac0");
        assert!(woken(&events, 5000));
        assert!(events.drain().address);
        // Pods that join a bridge: the bridge itself counts once.
        ip("link add br0 type bridge");
        ip("link set br0 addrgenmode none");
        ip("link set br0 up");
        ip("link add name ve type veth peer name vf");
        ip("link set ve master br0");
        ip("link set ve up");
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(events.drain().netdev);
        ip("link add name vc type veth peer name vd");
        ip("link set vd up");
        ip("link set vc up");
        ip("link set vc master br0");
        std::thread::sleep(std::time::Duration::from_millis(200));
        ip("link del vc");
        std::thread::sleep(std::time::Duration::from_millis(200));
        let changes = events.drain();
        assert!(!changes.netdev && !changes.address, "{changes:?}");
    }

    /// What happens to `rxe0` is noticed, what pods do is not.
    #[test]
    #[ignore = "needs rxe0: run it in the test machine of integration/"]
    fn vm_rdma_changes_wake_and_pods_do_not() {
        let run = |words: &str| {
            let mut words = words.split(' ');
            let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
            assert!(status.success());
        };
        let mut events = Events::open(&Roots::below(Path::new("/"))).unwrap();
        assert_eq!(events.take_remarks(), [""; 0]);
        assert_eq!(events.sources.len(), 3);
        // Router advertisements and the like of the machine's start.
        std::thread::sleep(std::time::Duration::from_secs(2));
        events.drain();
        assert!(!woken(&events, 3000), "{:?}", events.drain());
        run("rdma dev set rxe0 name other0");
        run("rdma dev set other0 name rxe0");
        assert!(woken(&events, 5000));
        assert_eq!(events.drain(), Changes { rdma: true, ..Changes::default() });
        run("ip netns add ctk-pod");
        run("ip link add ctk-veth type veth peer name eth0 netns ctk-pod");
        run("ip link set ctk-veth up");
        run("ip -n ctk-pod link set eth0 up");
        run("ip -n ctk-pod address add 10.55.0.2/24 dev eth0");
        std::thread::sleep(std::time::Duration::from_secs(2));
        run("ip netns del ctk-pod");
        std::thread::sleep(std::time::Duration::from_secs(1));
        assert_eq!(events.drain(), Changes::default());
        run("ip address add 10.77.0.200/24 dev eth0");
        assert!(woken(&events, 5000));
        assert_eq!(events.drain(), Changes { address: true, ..Changes::default() });
        run("ip address del 10.77.0.200/24 dev eth0");
        // A device that comes and goes; the monitor tells of it whether or not uevents do.
        run("ip link add ctk-dummy type dummy");
        run("ip link set ctk-dummy up");
        run("rdma link add rxe9 type rxe netdev ctk-dummy");
        assert!(woken(&events, 5000));
        let changes = events.drain();
        assert!(changes.rdma && changes.netdev, "{changes:?}");
        run("rdma link del rxe9");
        run("ip link del ctk-dummy");
        assert!(events.drain().rdma);
    }
}
