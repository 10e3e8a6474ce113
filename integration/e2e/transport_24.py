"""The transport with containerd 2.4, whose NRI has a call of its own for each event."""
import transport

prepare, CASES = transport.prepare, transport.CASES
