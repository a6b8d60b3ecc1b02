"""The usual mistakes in setting a host up, made on purpose: each is named in one line, with its remedy."""

from cases import case
from programs import TOOL


def _bench(host, *further, device=None):
    return [TOOL, "bench", "one-to-one", "--device", device or host.device, "--protocol", "write/write", "--runs", "1",
            "--requests", "10", "--verify", *further]


def _as_user(words, before=""):
    return ["su", "user", "-s", "/bin/sh", "-c", f"{before} {' '.join(map(str, words))}"]


@case(machines=1)
def unknown_device_is_named(host):
    host.run(*_bench(host, device="mlx5_9"), code=2, holds=["mlx5_9", host.device, "soft0"])


@case(machines=1, alters=True)
def small_memlock_limit_is_named(host):
    host.run(*_as_user(_bench(host, "--request", "1MiB"), "ulimit -l 64;"), code=1,
             holds=["the locked-memory limit is 65536 bytes", "ulimit -l"])
    # The limit is all that stands between a user and the device.
    host.run(*_as_user(_bench(host), "ulimit -l 8192;"), holds=["write/write"])


@case(machines=1, alters=True)
def missing_permission_is_named(host):
    host.shell("chmod 600 /dev/infiniband/uverbs0")
    try:
        host.run(*_as_user(_bench(host)), code=1, holds=["no permission for /dev/infiniband/uverbs0"])
        host.run(*_as_user([TOOL, "devices"]), holds=["cannot be used", "no permission"])
    finally:
        host.shell("chmod 666 /dev/infiniband/uverbs0")
    host.run(*_as_user(_bench(host)), holds=["write/write"])


@case(machines=1, alters=True)
def missing_device_file_is_named(host):
    host.shell("mv /dev/infiniband/uverbs0 /dev/infiniband/hidden")
    try:
        host.run(*_bench(host), code=2, holds=["the kernel has", "/dev/infiniband/uverbs0 is missing"])
    finally:
        host.shell("mv /dev/infiniband/hidden /dev/infiniband/uverbs0")


@case(machines=1, alters=True)
def port_that_is_down_is_named(host):
    host.shell("ip link set eth0 down")
    try:
        host.run(*_bench(host), code=1, holds=["is down; bring its link up"])
    finally:
        host.shell("ip link set eth0 up")
    # Its addresses come back a moment later.
    host.shell(f"for second in 1 2 3 4 5 6 7 8 9 10; do {TOOL} devices --json | grep -q '\"port_state\": \"active\"' && "
               "break; sleep 1; done")
    host.run(*_bench(host), holds=["write/write"])
