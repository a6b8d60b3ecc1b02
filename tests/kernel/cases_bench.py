"""The benchmark with every payload byte checked: all protocols and mark layouts, 64 B to 1 MiB, on one host and on two."""

import json

from cases import add
from machine import TestFailure
from programs import TOOL, listen, secret_file

PROTOCOLS = ["send/send", "send/write", "write/send", "write/write", "read"]
SIZES = "64,4KiB,64KiB,1MiB"
SIZES_BYTES = [64, 4096, 65536, 1048576]
LIMIT_S = 300


def _measure(device, protocol, **sizes):
    """The command's words. Few requests: this is about bytes, not about numbers."""
    words = [TOOL, "bench", "one-to-one", "--device", device, "--protocol", protocol, "--mark", "all", "--runs", "1",
             "--requests", "5", "--verify"]
    for option, value in sizes.items():
        words += [f"--{option}", value]
    return words


def _check(machine, path, protocol, size_key):
    """Every point of the result file was measured with all its bytes right."""
    results = json.loads(machine.read(path))["results"]
    for row in results:
        if row["errors"] != 0 or not row["verified"]:
            raise TestFailure(f"{protocol}, {row['mark_layout']}, {row[size_key]} bytes: {row.get('error', 'not verified')}")
    # Results name the layout that was used, which is another where the device does not WRITE in order.
    layouts = 1 if protocol in ("read", "send/send") else 4
    for size in SIZES_BYTES:
        points = sum(row[size_key] == size for row in results)
        if points < layouts:
            raise TestFailure(f"{protocol}: {points} points with {size} bytes, expected at least {layouts}")
    print(f"{len(results)} points of {protocol}, all bytes right", flush=True)


def _sweeps(protocol):
    """Small requests with every response, and, where requests travel, every request with small responses."""
    yield "response_bytes", {"request": "64", "response": SIZES, "pending": "1"}
    if protocol != "read":
        yield "request_bytes", {"request": SIZES, "response": "64", "pending": "3"}


def _one_host(protocol):
    def run(host):
        for size_key, sizes in _sweeps(protocol):
            path = host.scratch(f"{size_key}.json")
            host.run(*_measure(host.device, protocol, json=path, **sizes), timeout_s=LIMIT_S)
            _check(host, path, protocol, size_key)

    return run


def _two_hosts(protocol):
    def run(requester, responder):
        for size_key, sizes in _sweeps(protocol):
            path = requester.scratch(f"{size_key}.json")
            server = listen(responder)
            requester.run(*_measure(requester.device, protocol, json=path, connect=responder.address,
                                    **{"secret-file": secret_file(requester)}, **sizes), timeout_s=LIMIT_S)
            server.expect()
            _check(requester, path, protocol, size_key)

    return run


for _protocol in PROTOCOLS:
    _name = "verified_" + _protocol.replace("/", "_")
    add(f"{_name}_on_one_host", _one_host(_protocol), machines=1, limit_s=LIMIT_S)
    add(f"{_name}_on_two_hosts", _two_hosts(_protocol), machines=2, limit_s=LIMIT_S)
