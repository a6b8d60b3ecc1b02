"""Makes SYNTHETIC result files for the tests of the report page. Nothing in them was measured.

python3 synthetic.py DIR writes a full set: one-to-one on soft0 with every protocol, and bench-peers.json.
"""

import itertools
import json
import pathlib
import random
import sys

SIZES = [64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304]
PENDING = [1, 4, 16, 64]
# Invented: base latency in ns, extra ns per message in flight, instructions at requester and responder.
INVENTED = {
    "write/write": (620, 180, 410, 390),
    "send/write": (760, 215, 430, 520),
    "write/send": (790, 225, 560, 410),
    "send/send": (980, 270, 580, 640),
    "read": (540, 240, 470, 0),
}
BYTES_PER_NS = 8.5


def row(
    protocol, response_bytes, pending, /, *, device="soft0", topology="one-to-one", generator=None, runs=5, **changes
):
    """One invented result; `changes` replaces keys of it."""
    base_ns, each_ns, requester, responder = INVENTED.get(protocol, (900, 250, 500, 500))
    noise = 1 + (generator.uniform(-0.02, 0.02) if generator else 0)
    moving_ns = response_bytes / BYTES_PER_NS
    p50_ns = (base_ns + moving_ns + (pending - 1) * (each_ns + moving_ns)) * noise
    rate_per_s = pending * 1e9 / p50_ns
    result = {
        "topology": topology,
        "protocol": protocol,
        "device": device,
        "request_bytes": 64,
        "response_bytes": response_bytes,
        "pending": pending,
        "nodes": 2,
        "threads": 1,
        "rate_per_s": rate_per_s,
        "value_bandwidth_bytes_per_s": rate_per_s * response_bytes,
        "total_bandwidth_bytes_per_s": rate_per_s * (response_bytes + (0 if protocol == "read" else 64)),
        "latency_ns": {"p50": p50_ns, "p99": p50_ns * 1.35, "p999": p50_ns * 2.6},
        "verified": True,
        "errors": 0,
        "runs": runs,
        "spread": {"rate_min": rate_per_s * 0.97, "rate_max": rate_per_s * 1.02},
        "cpu": {
            "requester": {"instructions_per_message": requester + response_bytes / 32},
            "responder": {"instructions_per_message": responder + (response_bytes / 32 if responder else 0)},
        },
    }
    result.update(changes)
    return {key: value for key, value in result.items() if value is not None}


def document(results, **changes):
    """A result file around `results`."""
    whole = {
        "device": "soft0",
        "machine": {
            "hostname": "synthetic-test-data",
            "note": "SYNTHETIC: invented numbers for tests, nothing was measured",
            "cpu": "Imaginary CPU 9000 @ 3.00GHz",
            "cores": 2,
        },
        "commit": "0000000000000000000000000000000000000000",
        "command": "verbena bench one-to-one --device soft0 --protocol all --request 64 "
        "--response 64,256,1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,4MiB --pending 1,4,16,64 --verify --json synthetic.json",
        "results": results,
    }
    whole.update(changes)
    return whole


def full_sweep(seed=1, **changes):
    generator = random.Random(seed)
    return [
        row(protocol, size, pending, generator=generator, **changes)
        for protocol in INVENTED
        for size in SIZES
        for pending in PENDING
    ]


# Of each application: axes as they usually are, and the axes that its sweep has.
APPLICATIONS = {
    "hashtable": (
        {"mix": "A", "reads_percent": 50, "distribution": "zipfian", "keys": 100000, "value_bytes": 64, "hot": 0},
        {"mix": ["A", "C"], "pending": [1, 4, 16]},
    ),
    "log": (
        {"capacity_bytes": 64 << 20, "entries": 1, "entry_bytes": 64, "method": "automatic", "readers": 0},
        {"entries": [1, 4, 16]},
    ),
    "shuffle": (
        {"record_bytes": 64, "entries": 16, "distribution": "uniform", "buffer_bytes": 256 << 10, "responder_nodes": 0},
        {"method": ["sp", "sgl"], "batch": [1, 4], "requester_nodes": [2, 4]},
    ),
    "join": ({"tuples": 20000, "tuple_bytes": 16, "exchange": "shuffle"}, {"method": ["basic", "sgl"]}),
    "message": (
        {"queue_credits": 16, "ring_slots": 32, "eager_bytes": 2048, "window": 100, "test": "bandwidth"},
        {"size_bytes": [8, 64, 512], "channel": ["ring", "send"]},
    ),
}


def application_row(application, number, /, **changes):
    """One invented result of an application; `number` makes it another one."""
    axes, _ = APPLICATIONS[application]
    p50_ns = 1000.0 + 100 * number
    result = {
        "topology": "N-to-M",
        "device": "soft0",
        "nodes": 2,
        "threads": 1,
        "requester_nodes": 1,
        "pending": 1,
        "sockets": 1,
        "verified": True,
        "errors": 0,
        "runs": 3,
        "plan_number": number,
        "requests_measured": 1000 + number,
        "rate_per_s": 1e9 / p50_ns,
        "value_bandwidth_bytes_per_s": 64e9 / p50_ns,
        "total_bandwidth_bytes_per_s": 80e9 / p50_ns,
        "latency_ns": {"p50": p50_ns, "p99": 2 * p50_ns, "p999": 3 * p50_ns},
        "spread": {"rate_min": 0.9e9 / p50_ns, "rate_max": 1.1e9 / p50_ns},
        "some_metric_per_operation": 0.1 * number,
    }
    return result | axes | changes


def application_sweep(application, **changes):
    _, sweep = APPLICATIONS[application]
    places = itertools.product(*sweep.values())
    return [
        application_row(application, number, **dict(zip(sweep, place)), **changes) for number, place in enumerate(places)
    ]


PEERS = [
    {"name": "8 B WRITE ping-pong against put_lat (SYNTHETIC)", "ratio": 1.08, "target": "<= 1.2", "holds": True},
    {"name": "8 B SEND ping-pong against am_lat (SYNTHETIC)", "ratio": 1.31, "target": "<= 1.2", "holds": False},
    {"name": "1 MiB WRITE bandwidth against memcpy (SYNTHETIC)", "ratio": 0.97, "target": ">= 0.95", "holds": True},
]


def write(path, value):
    pathlib.Path(path).write_text(json.dumps(value), encoding="utf-8")
    return str(path)


def write_full_set(directory):
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    results = full_sweep()
    results[40].update(errors=3, verified=False)
    write(directory / "one-to-one.json", document(results))
    write(directory / "bench-peers.json", PEERS)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: synthetic.py DIR")
    write_full_set(sys.argv[1])
