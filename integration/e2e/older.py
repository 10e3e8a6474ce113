"""The core of the other batches on containerd 1.7, whose NRI is 0.6 or 0.8."""
import outage
import pods

prepare = pods.prepare

CASES = [
    pods.c07_pods_that_did_not_ask_are_left_byte_for_byte,
    pods.c73_a_sidecar_beside_an_opted_in_container_is_unchanged,
    pods.c10_one_annotation_gives_devices_limit_and_environment,
    pods.two_pods_exchange_messages,
    pods.c01_a_user_without_capabilities_registers_64_mib,
    pods.exec_sessions_see_environment_and_limit,
    pods.nccl_conf_is_seen_without_the_environment,
    pods.c26_roce_behind_veth_works_with_a_warning,
    pods.c10_an_unknown_adapter_is_refused,
    pods.smc_turns_the_sockets_of_who_asked,
    outage.c61_created_while_we_were_dead_it_is_refused_at_start,
    outage.the_runtime_restarted_we_are_back_without_a_restart,
    outage.registered_by_configure_and_taken_back,
    outage.pre_installed_the_runtime_starts_us_with_its_configuration,
]
