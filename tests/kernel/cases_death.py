"""A host loses its power in the middle of a run: no connection is closed, packets just stop."""

import time

from cases import case
from machine import TestFailure
from programs import TOOL, listen, secret_file

# A side that sends knows when the transport has given up, after 8 tries; a side that only waits, or has a long time-out
# set, when the system's keep-alives stayed unanswered for 5 s. What is said to the
# dead host after that may take as long again; the rest is for hosts that are emulated.
LIMIT_S = 15


def _endless(requester, responder, protocol):
    return requester.start(TOOL, "bench", "one-to-one", "--device", requester.device, "--connect", responder.address,
                           "--secret-file", secret_file(requester), "--protocol", protocol, "--runs", "1",
                           "--duration", "600s", "--verify")


def received_packets(machine):
    """What the device has received so far; by its own counters."""
    counters = f"/sys/class/infiniband/{machine.device}/ports/1"
    text = machine.run("sh", "-c", f"cat {counters}/hw_counters/rcvd_pkts 2>/dev/null || "
                                   f"cat {counters}/counters/port_rcv_packets", quiet=True).output
    return int(text)


def _await_traffic(machine):
    """Until messages flow."""
    before = received_packets(machine)
    for _ in range(60):
        time.sleep(1)
        if received_packets(machine) > before + 200:
            return
    raise TestFailure("no messages flow")


def _expect_report(command, peer):
    start = time.monotonic()
    command.expect(1, holds=[peer.address], timeout_s=60)
    took = time.monotonic() - start
    print(f"reported after {took:.1f} s", flush=True)
    if took > LIMIT_S:
        raise TestFailure(f"the death was reported after {took:.1f} s; {LIMIT_S} s are allowed")


@case(machines=2, alters=True, limit_s=300)
def requester_reports_a_dead_host(requester, responder):
    for protocol in ("write/write", "read"):
        server = listen(responder)
        client = _endless(requester, responder, protocol)
        _await_traffic(requester)
        responder.crash()
        _expect_report(client, responder)
        if server.wait() is not None:
            raise TestFailure("the host that was switched off works on")
        responder.revive()


@case(machines=2, alters=True, limit_s=300)
def responder_reports_a_dead_host(responder, requester):
    server = listen(responder)
    _endless(requester, responder, "send/send")
    _await_traffic(responder)
    requester.crash()
    _expect_report(server, requester)
