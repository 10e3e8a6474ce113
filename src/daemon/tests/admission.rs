//! What containers get that are created while all is well.

use std::path::Path;
use std::slice::from_ref;
use std::time::{Duration, Instant};

use super::rig::{Plan, Rig, adjusted, container, device, pod, uverbs, variables};
use crate::daemon::records::Verdict;
use crate::inventory::{Node, PodView};
use crate::nri::proto::{
    ContainerAdjustment, Event, LinuxCpu, LinuxDeviceCgroup, LinuxNamespace, LinuxResources,
    OptionalInt64, OptionalUInt64, PosixRlimit,
};
use crate::request::MARKER;

const ALL: &[(&str, &str)] = &[("devices.rdma-ctk.io", "all")];

#[tokio::test]
async fn an_annotated_container_gets_its_grant_and_its_neighbour_nothing() {
    let rig = Rig::new("gpu-infiniband");
    let adapters = rig.active().await;
    let session = rig.session("containerd", "2.1.9").await;
    let (asks, plain) = (pod("asks", ALL), pod("plain", &[("a", "b")]));
    let adjust = session.create(&asks, &container(&asks, "c1", "main")).await.unwrap().unwrap();
    assert!(adjust.annotations.contains_key(MARKER));
    assert_eq!(uverbs(Some(&adjust)).len(), adapters);
    assert_eq!(adjust.rlimits.len(), 1);
    assert!(variables(Some(&adjust))["NCCL_IB_HCA"].starts_with("=mlx5_0:1,"));
    assert!(adjust.hooks.is_none());

    assert_eq!(session.create(&plain, &container(&plain, "c2", "main")).await, Ok(None));
    let records = rig.records().await.containers;
    let [record] = &records[..] else { panic!("{records:?}") };
    assert_eq!((record.id.as_str(), record.name.as_str()), ("c1", "main"));
    assert_eq!(record.runtime, "containerd 2.1.9 (NRI 0.8.0)");
    let Verdict::Granted { grant } = &record.verdict else { panic!("{record:?}") };
    assert_eq!(grant.adapters.len(), adapters);
    assert_eq!(rig.daemon.metrics.grants.get(), 1);
    assert_eq!(rig.daemon.containers.holders().len(), adapters);

    let started = adjusted(&container(&asks, "c1", "main"), Some(&adjust));
    assert_eq!(session.start(&asks, &started).await, Ok(()));
    session.stop(&asks, &started).await;
    assert!(rig.daemon.containers.holders().is_empty());
    session.event(Event::RemoveContainer, &asks, Some(&started)).await.unwrap();
    assert!(rig.records().await.containers.is_empty());
}

#[tokio::test]
async fn c68_nothing_is_used_that_a_validator_could_forbid() {
    let rig = Rig::new("gpu-infiniband");
    let session = rig.session("containerd", "2.3.0").await;
    let pod = pod("asks", &[("devices.rdma-ctk.io", "all"), ("env.rdma-ctk.io", "file")]);
    let adjust = session.create(&pod, &container(&pod, "c", "main")).await.unwrap().unwrap();
    let ContainerAdjustment { hooks, linux, args, cdi_devices, .. } = adjust;
    let linux = linux.unwrap();
    assert!(hooks.is_none() && args.is_empty() && cdi_devices.is_empty());
    assert!(linux.sysctl.is_empty() && linux.namespaces.is_empty());
    assert!(linux.net_devices.is_empty());
}

#[tokio::test]
async fn c73_only_the_containers_that_are_named_get_it() {
    let rig = Rig::new("gpu-infiniband");
    let session = rig.session("containerd", "2.1.9").await;
    let pod = pod(
        "mixed",
        &[
            ("devices.rdma-ctk.io/container.trainer", "mlx5_0"),
            ("devices.rdma-ctk.io/container.setup", "mlx5_0"),
        ],
    );
    for (id, name, expected) in
        [("c1", "setup", true), ("c2", "logger", false), ("c3", "trainer", true)]
    {
        let adjust = session.create(&pod, &container(&pod, id, name)).await.unwrap();
        assert_eq!(adjust.is_some(), expected, "{name}");
    }
}

#[tokio::test]
async fn c74_the_most_specific_scope_counts() {
    let rig = Rig::new("gpu-infiniband");
    let session = rig.session("cri-o", "1.36.0").await;
    let pod = pod(
        "scopes",
        &[
            ("devices.rdma-ctk.io/pod", "mlx5_0"),
            ("devices.rdma-ctk.io/container.b", "mlx5_1"),
            ("devices.rdma-ctk.io/container.c", "none"),
        ],
    );
    let node = rig.node().await;
    let number = |name: &str| node.hca(name).unwrap().uverbs.as_ref().unwrap().name[6..].to_owned();
    for (name, expected) in
        [("a", vec![number("mlx5_0")]), ("b", vec![number("mlx5_1")]), ("c", vec![])]
    {
        let adjust = session.create(&pod, &container(&pod, name, name)).await.unwrap();
        assert_eq!(uverbs(adjust.as_ref()), expected, "{name}");
    }
}

#[tokio::test]
async fn c75_a_container_that_comes_again_gets_the_same_adapter() {
    let rig = Rig::new("gpu-infiniband");
    let session = rig.session("containerd", "2.1.9").await;
    let pod = pod("again", &[("devices.rdma-ctk.io", "1")]);
    let mut given = Vec::new();
    for id in ["init-1", "main-1", "main-2", "main-3", "main-4"] {
        let name = id.split('-').next().unwrap();
        let asks = container(&pod, id, name);
        let adjust = session.create(&pod, &asks).await.unwrap();
        given.push(uverbs(adjust.as_ref()));
        let made = adjusted(&asks, adjust.as_ref());
        session.start(&pod, &made).await.unwrap();
        session.stop(&pod, &made).await;
    }
    assert_eq!(given[0].len(), 1);
    assert!(given[1..].iter().all(|again| *again == given[1]), "{given:?}");
}

#[tokio::test]
async fn a_refusal_is_one_line_with_our_prefix_and_on_record_once() {
    let rig = Rig::new("gpu-infiniband");
    let session = rig.session("containerd", "2.1.9").await;
    for (annotations, words) in [
        (
            &[("devices.rdma-ctk.io", "mlx5_99")][..],
            &["devices.rdma-ctk.io", "mlx5_99", "mlx5_0"][..],
        ),
        (&[("device.rdma-ctk.io", "all")], &["device.rdma-ctk.io", "devices.rdma-ctk.io"]),
        (&[("memlock.rdma-ctk.io", "1GiB")], &["memlock.rdma-ctk.io", "devices.rdma-ctk.io"]),
        (&[("devices.rdma-ctk.io", "all"), ("nodes.rdma-ctk.io", "umad")], &["umad", "policy"]),
    ] {
        let pod = pod("refused", annotations);
        for id in ["try-1", "try-2"] {
            let text = session.create(&pod, &container(&pod, id, "main")).await.unwrap_err();
            assert!(text.starts_with("rdma-ctk: ") && !text.contains('\n'), "{text}");
            assert_eq!(text.matches("rdma-ctk: ").count(), 1, "{text}");
            for word in words {
                assert!(text.contains(word), "{word} in {text}");
            }
            // What a runtime does with what it had begun.
            let begun = container(&pod, id, "main");
            session.event(Event::RemoveContainer, &pod, Some(&begun)).await.unwrap();
        }
        assert_eq!(rig.verdicts(|v| matches!(v, Verdict::Refused { .. })).await, 1);
    }
    let pod = pod("refused", &[]);
    session.event(Event::RemovePodSandbox, &pod, None).await.unwrap();
    assert!(rig.records().await.containers.is_empty());
}

#[tokio::test]
async fn a_refusal_that_policy_waives_lets_the_container_start() {
    let policy = "[default]\non_refusal = \"warn\"\n";
    let rig = Rig::plan(Plan { policy, ..Plan::default() });
    let session = rig.session("containerd", "2.1.9").await;
    for (id, value) in [("c1", "mlx5_99"), ("c2", "mlx5_0,,")] {
        let pod = pod(id, &[("devices.rdma-ctk.io", value)]);
        let asks = container(&pod, id, "main");
        assert_eq!(session.create(&pod, &asks).await, Ok(None), "{value}");
        assert_eq!(session.validate(&pod, &asks, None).await, Ok(()));
        assert_eq!(session.start(&pod, &asks).await, Ok(()));
        assert!(matches!(rig.record(id).await.verdict, Verdict::Waived { .. }));
    }
    assert_eq!(rig.daemon.metrics.waived.get(), 2);
}

#[tokio::test]
async fn a_container_of_the_wrapper_is_left_and_says_so() {
    let rig = Rig::new("gpu-infiniband");
    let session = rig.session("containerd", "2.1.9").await;
    let mut pod = pod("wrapped", ALL);
    pod.runtime_handler = "rdma".into();
    let asks = container(&pod, "c", "main");
    assert_eq!(session.create(&pod, &asks).await, Ok(None));
    assert_eq!(session.start(&pod, &asks).await, Ok(()));
    let Verdict::Left { sentence } = rig.record("c").await.verdict else { panic!() };
    assert!(sentence.contains("wrapper"), "{sentence}");
}

#[tokio::test]
async fn c106_a_virtual_machine_is_refused_in_words() {
    let rig = Rig::new("gpu-infiniband");
    let session = rig.session("containerd", "2.1.9").await;
    let mut vm = pod("vm", ALL);
    vm.runtime_handler = "kata-qemu".into();
    let text = session.create(&vm, &container(&vm, "c", "main")).await.unwrap_err();
    assert!(text.contains("Kata needs VFIO passthrough"), "{text}");
    let mut gvisor = pod("gvisor", ALL);
    gvisor.runtime_handler = "runsc".into();
    session.create(&gvisor, &container(&gvisor, "d", "main")).await.unwrap().unwrap();
    let Verdict::Granted { grant } = rig.record("d").await.verdict else { panic!() };
    assert!(grant.warnings.iter().any(|w| w.contains("--rdmaproxy")), "{:?}", grant.warnings);
}

#[tokio::test]
async fn c94_a_privileged_container_is_left_byte_for_byte() {
    let rig = Rig::new("gpu-infiniband");
    rig.node().await;
    let session = rig.session("containerd", "2.1.9").await;
    let pod = pod("privileged", &[]);
    let mut privileged = container(&pod, "c", "main");
    let linux = privileged.linux.as_mut().unwrap();
    linux.devices = vec![device(192), device(193)];
    let all = LinuxDeviceCgroup { allow: true, access: "rwm".into(), ..Default::default() };
    linux.resources = Some(LinuxResources { devices: vec![all], ..Default::default() });
    assert_eq!(session.create(&pod, &privileged).await, Ok(None));
    assert!(rig.records().await.containers.is_empty());
}

#[tokio::test]
async fn a_claim_gets_the_limit_and_no_adapter_more() {
    let rig = Rig::new("gpu-infiniband");
    let node = rig.node().await;
    let session = rig.session("containerd", "2.1.9").await;
    let pod = pod("claims", &[]);
    let mut claims = container(&pod, "c", "main");
    let minor = i64::from(node.hcas[3].uverbs.as_ref().unwrap().minor);
    claims.linux.as_mut().unwrap().devices = vec![device(minor)];
    let adjust = session.create(&pod, &claims).await.unwrap().unwrap();
    assert_eq!(adjust.rlimits.len(), 1);
    assert!(adjust.env.is_empty() && uverbs(Some(&adjust)).is_empty());
    assert_eq!(session.start(&pod, &adjusted(&claims, Some(&adjust))).await, Ok(()));
}

#[tokio::test]
async fn c67_what_an_earlier_plugin_has_set_is_left() {
    let rig = Rig::new("gpu-infiniband");
    let node = rig.node().await;
    std::fs::create_dir_all(&rig.daemon.kubelet).unwrap();
    let state = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;
    std::fs::write(rig.daemon.kubelet.join("cpu_manager_state"), state).unwrap();
    let session = rig.session("containerd", "2.3.0").await;
    let pod = pod("neighbours", &[("devices.rdma-ctk.io", "mlx5_0")]);
    let mut asks = container(&pod, "c", "main");
    let local = &node.hca("mlx5_0").unwrap().local_cpus;
    let wide = local.union(&node.online).to_string();
    let cpu = LinuxCpu { cpus: wide.clone(), ..LinuxCpu::default() };
    let linux = asks.linux.as_mut().unwrap();
    linux.resources = Some(LinuxResources { cpu: Some(cpu), ..Default::default() });
    let unlimited = PosixRlimit { r#type: "RLIMIT_MEMLOCK".into(), hard: u64::MAX, soft: u64::MAX };
    asks.rlimits = vec![unlimited];
    asks.env.push("NCCL_IB_HCA==theirs:1".into());
    let adjust = session.create(&pod, &asks).await.unwrap().unwrap();
    assert!(adjust.rlimits.is_empty());
    assert!(!variables(Some(&adjust)).contains_key("NCCL_IB_HCA"));
    let resources = adjust.linux.unwrap().resources;
    assert_eq!(resources.and_then(|resources| resources.cpu), None, "{wide}");
    let Verdict::Granted { grant } = rig.record("c").await.verdict else { panic!() };
    let told = grant.reasons.iter().any(|reason| reason.text.contains("another plugin"));
    assert!(told, "{:?}", grant.reasons);

    // Without the kubelet's record they were given by whoever asked for the container.
    std::fs::remove_file(rig.daemon.kubelet.join("cpu_manager_state")).unwrap();
    let again = crate::nri::proto::Container { id: "d".into(), ..asks };
    let adjust = session.create(&pod, &again).await.unwrap().unwrap();
    let cpu = adjust.linux.unwrap().resources.unwrap().cpu.unwrap();
    assert_eq!(cpu.cpus, local.to_string());
}

#[tokio::test]
async fn c24_a_cpu_set_that_is_sent_again_is_narrowed_and_devices_are_left() {
    let rig = Rig::new("gpu-infiniband");
    let node = rig.node().await;
    let session = rig.session("containerd", "2.1.9").await;
    let pod = pod("resent", &[("devices.rdma-ctk.io", "mlx5_0")]);
    let asks = container(&pod, "c", "main");
    let adjust = session.create(&pod, &asks).await.unwrap();
    let made = adjusted(&asks, adjust.as_ref());
    let resources = |cpus: &str| {
        let cpu = LinuxCpu {
            cpus: cpus.into(),
            shares: Some(OptionalUInt64 { value: 0 }),
            quota: Some(OptionalInt64 { value: 0 }),
            period: Some(OptionalUInt64 { value: 0 }),
            ..LinuxCpu::default()
        };
        LinuxResources { cpu: Some(cpu), ..LinuxResources::default() }
    };
    let all = node.online.to_string();
    let near = node.hca("mlx5_0").unwrap().local_cpus.clone();
    assert_ne!(near, node.online);
    let updates = session.update(&pod, &made, resources(&all)).await;
    let [update] = &updates[..] else { panic!("{updates:?}") };
    assert_eq!(update.container_id, "c");
    let answer = update.linux.as_ref().unwrap().resources.as_ref().unwrap();
    assert_eq!(answer.cpu.as_ref().unwrap().cpus, near.to_string());
    assert!(answer.devices.is_empty());

    // Nothing about CPUs, CPUs elsewhere, somebody else's container: nothing to add.
    let far = node.online.difference(&near).to_string();
    for (container, cpus) in
        [(&made, ""), (&made, &far[..]), (&container(&pod, "x", "other"), &all)]
    {
        assert_eq!(session.update(&pod, container, resources(cpus)).await, [], "{cpus}");
    }
    assert_eq!(rig.daemon.metrics.mismatches.get(), 0);
    let mut bare = made.clone();
    bare.linux.as_mut().unwrap().devices.truncate(1);
    session.update(&pod, &bare, resources(&all)).await;
    assert_eq!(rig.daemon.metrics.mismatches.get(), 1);

    // The same after a restart of the daemon, which knows from its record.
    rig.daemon.journal.written().await;
    let rig = rig.restarted();
    rig.node().await;
    let session = rig.session_with(from_ref(&pod), from_ref(&made)).await;
    assert_eq!(session.update(&pod, &made, resources(&all)).await.len(), 1);
}

#[tokio::test]
async fn a_network_that_is_read_too_slowly_is_told_and_not_waited_for() {
    let look = |_: &Path, _: &Node| -> PodView {
        std::thread::sleep(Duration::from_secs(3));
        PodView::Unknown { reason: "too late to matter".into() }
    };
    let rig = Rig::plan(Plan { node: "gpu-roce", look: Some(Box::new(look)), ..Plan::default() });
    rig.node().await;
    let session = rig.session("containerd", "2.1.9").await;
    let slow = pod("slow", ALL);
    session.event(Event::RunPodSandbox, &slow, None).await.unwrap();
    let begun = Instant::now();
    let adjust = session.create(&slow, &container(&slow, "c", "main")).await.unwrap();
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(490) && took < Duration::from_secs(1), "{took:?}");
    assert!(!variables(adjust.as_ref()).contains_key("NCCL_IB_GID_INDEX"));
    let strict = pod("strict", &[("devices.rdma-ctk.io", "all"), ("require.rdma-ctk.io", "gid")]);
    let text = session.create(&strict, &container(&strict, "d", "main")).await.unwrap_err();
    assert!(text.contains("500 ms"), "{text}");
}

#[tokio::test]
async fn c84_docker_takes_environment_and_is_told_what_else_to_use() {
    let policy = "claims = \"full\"\n";
    let rig = Rig::plan(Plan { policy, ..Plan::default() });
    let node = rig.node().await;
    let session = rig.session("docker", "29.2.0").await;
    // Docker's pods are stubs, and the annotations are the container's.
    let stub = crate::nri::proto::PodSandbox { id: "c".into(), ..Default::default() };
    let mut claims = container(&stub, "c", "main");
    let minor = i64::from(node.hcas[0].uverbs.as_ref().unwrap().minor);
    claims.linux.as_mut().unwrap().devices = vec![device(minor)];
    let adjust = session.create(&stub, &claims).await.unwrap().unwrap();
    assert!(!adjust.env.is_empty());
    let ContainerAdjustment { annotations, rlimits, linux, hooks, .. } = adjust;
    assert!(annotations.is_empty() && rlimits.is_empty() && linux.is_none() && hooks.is_none());

    let mut asks = container(&stub, "d", "main");
    asks.annotations.insert("devices.rdma-ctk.io".into(), "all".into());
    let text = session.create(&stub, &asks).await.unwrap_err();
    assert!(text.contains("Docker") || text.contains("docker"), "{text}");
}

#[tokio::test]
async fn a_host_network_pod_is_seen_as_the_host() {
    let rig = Rig::new("gpu-roce");
    rig.node().await;
    let session = rig.session("containerd", "2.1.9").await;
    let mut host = pod("host", ALL);
    host.linux.as_mut().unwrap().namespaces =
        vec![LinuxNamespace { r#type: "pid".into(), path: "/proc/7/ns/pid".into() }];
    let adjust = session.create(&host, &container(&host, "c", "main")).await.unwrap();
    assert!(!uverbs(adjust.as_ref()).is_empty());
}

#[tokio::test]
async fn policy_is_reloaded_for_new_containers_and_a_broken_file_changes_nothing() {
    let rig = Rig::new("gpu-infiniband");
    let all = rig.active().await;
    let session = rig.session("containerd", "2.1.9").await;
    let file = rig.roots.etc.join("rdma-ctk/config.toml");
    let create = async |id: &str| {
        let pod = pod(id, ALL);
        session.create(&pod, &container(&pod, id, "main")).await
    };
    assert_eq!(uverbs(create("a").await.unwrap().as_ref()).len(), all);
    std::fs::write(&file, "[default]\nadapters = [\"mlx5_0\"]\n").unwrap();
    assert_eq!(uverbs(create("b").await.unwrap().as_ref()).len(), all);
    assert!(rig.daemon.policies.reload());
    assert_eq!(uverbs(create("c").await.unwrap().as_ref()).len(), 1);
    std::fs::write(&file, "[default]\nadapters = 7\n").unwrap();
    assert!(!rig.daemon.policies.reload());
    assert_eq!(uverbs(create("d").await.unwrap().as_ref()).len(), 1);
}

#[tokio::test]
async fn a_configuration_of_the_runtime_is_the_policy() {
    let rig = Rig::new("gpu-infiniband");
    let mut session = rig.silent();
    let (stream, _) = session.runtime.registration().await.unwrap();
    session.runtime.answer(stream, None).await.unwrap();
    let broken = session.runtime.configure("containerd", "2.1.9", "", "claims = 7\n").await;
    let text = format!("{}", broken.unwrap_err());
    assert!(text.contains("line 1, column"), "{text}");
    let config = "[default]\nadapters = [\"mlx5_1\"]\n";
    session.runtime.configure("containerd", "2.1.9", "", config).await.unwrap();
    session.runtime.synchronize(&[], &[]).await.unwrap();
    let pod = pod("asks", ALL);
    let adjust = session.create(&pod, &container(&pod, "c", "main")).await.unwrap();
    assert_eq!(uverbs(adjust.as_ref()).len(), 1);
}

#[tokio::test]
async fn a_scope_that_names_no_container_is_told_when_the_pod_ends() {
    let rig = Rig::new("gpu-infiniband");
    let session = rig.session("containerd", "2.1.9").await;
    let pod = pod("slip", &[("devices.rdma-ctk.io/container.wroker", "all")]);
    session.event(Event::RunPodSandbox, &pod, None).await.unwrap();
    assert_eq!(session.create(&pod, &container(&pod, "c", "worker")).await, Ok(None));
    session.event(Event::StopPodSandbox, &pod, None).await.unwrap();
    let pods = rig.records().await.pods;
    assert_eq!(pods[0].unmatched, ["devices.rdma-ctk.io/container.wroker"]);
    assert_eq!(rig.daemon.metrics.unmatched.get(), 1);
    session.event(Event::RemovePodSandbox, &pod, None).await.unwrap();
    assert!(rig.records().await.pods.is_empty());
}

#[tokio::test]
async fn a_bound_nccl_conf_is_written_before_the_answer_and_follows_the_node() {
    let rig = Rig::new("gpu-infiniband");
    rig.node().await;
    let session = rig.session("containerd", "2.1.9").await;
    let pod = pod("conf", &[("devices.rdma-ctk.io", "mlx5_0"), ("env.rdma-ctk.io", "file")]);
    let adjust = session.create(&pod, &container(&pod, "c", "main")).await.unwrap().unwrap();
    let mount = adjust.mounts.iter().find(|m| m.destination == "/etc/nccl.conf").unwrap();
    let text = std::fs::read_to_string(&mount.source).unwrap();
    assert!(text.contains("NCCL_IB_HCA==mlx5_0:1\n"), "{text}");
    assert!(mount.options.contains(&"ro".to_owned()));

    // What it should say has changed, though nobody has told: it is written in place.
    std::fs::remove_file(&mount.source).unwrap();
    std::fs::write(&mount.source, "old\n").unwrap();
    rig.daemon.refresh_files().await;
    assert_eq!(std::fs::read_to_string(&mount.source).unwrap(), text);

    // The same after a restart, for which nothing of the container was kept.
    let mut made = adjusted(&container(&pod, "c", "main"), Some(&adjust));
    made.env.extend(adjust.env.iter().map(|v| format!("{}={}", v.key, v.value)));
    made.mounts.clone_from(&adjust.mounts);
    std::fs::remove_file(&mount.source).unwrap();
    std::fs::write(&mount.source, "old\n").unwrap();
    rig.daemon.journal.written().await;
    let rig = rig.restarted();
    rig.node().await;
    assert!(rig.daemon.containers.wants_asked("c"));
    let _session = rig.session_with(from_ref(&pod), from_ref(&made)).await;
    rig.daemon.stale_files.notified().await;
    assert!(!rig.daemon.containers.wants_asked("c"));
    rig.daemon.refresh_files().await;
    assert_eq!(std::fs::read_to_string(&mount.source).unwrap(), text);
}
