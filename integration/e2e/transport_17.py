"""The transport with containerd 1.7; what does not depend on the runtime is left to the other batch."""
import transport

prepare = transport.prepare

CASES = [
    transport.devices_limit_and_verbs,
    transport.all_events_of_a_container,
    transport.a_reply_of_20_kb,
    transport.a_reply_of_3_mb,
    transport.a_panic_refuses_the_container,
    transport.c60_slower_than_the_deadline_it_is_refused_in_time,
    transport.a_synchronisation_that_fails_is_done_again,
    transport.the_runtime_restarted_it_is_back,
    transport.pre_installed_it_idles_or_serves,
]
