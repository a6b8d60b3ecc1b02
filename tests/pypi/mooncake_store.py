"""Mooncake's store: a master, and two processes whose values lie in the memory of either; each reads what the other has put."""

import os
import pathlib
import random
import socket
import subprocess
import sys
import time

import mooncake
from mooncake.store import MooncakeDistributedStore

MIB = 1 << 20
KEYS = 24


def value_of(key):
    draw = random.Random(key)
    return draw.randbytes(draw.choice([1, 100, 4096, 65536, MIB]))


def store_of(master):
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", 64 * MIB, 32 * MIB, "rdma", "soft0", master)
    assert code == 0, f"setup: {code}"
    return store


def put_all(store, who):
    for number in range(KEYS):
        key = f"{who}-{number}"
        assert store.put(key, value_of(key)) == 0, f"put {key}"


def check_all(store, who):
    for number in range(KEYS):
        key = f"{who}-{number}"
        assert store.get(key) == value_of(key), f"{key} differs"


def second(master):
    store = store_of(master)
    put_all(store, "second")
    print("put", flush=True)
    sys.stdin.readline()
    check_all(store, "first")
    print("checked", flush=True)
    sys.stdin.readline()


def expect(process, word):
    for line in process.stdout:
        if line.strip() == word:
            return
    raise AssertionError(f"the second process ended before it said '{word}'")


def free_ports():
    """Two different ones: both are held while they are drawn."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


def await_master(master, port):
    for _ in range(3000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert master.poll() is None, f"the master ended with {master.returncode}"
        time.sleep(0.02)
    raise AssertionError(f"the master does not listen on port {port}")


def first():
    port, http = free_ports()
    program = pathlib.Path(mooncake.__file__).parent / "mooncake_master"
    program.chmod(0o755)
    master = subprocess.Popen([program, f"--rpc_port={port}", f"--metrics_port={http}"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        await_master(master, port)
        address = f"127.0.0.1:{port}"
        store = store_of(address)
        with subprocess.Popen([sys.executable, __file__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as other:
            put_all(store, "first")
            expect(other, "put")
            other.stdin.write("\n")
            other.stdin.flush()
            check_all(store, "second")
            check_all(store, "first")
            expect(other, "checked")
            other.stdin.close()
    finally:
        master.kill()
        master.wait()
    print("passed: every value as put")


if __name__ == "__main__":
    second(sys.argv[1]) if sys.argv[1:] else first()
    sys.stdout.flush()
    os._exit(0)  # the engine's threads do not end in order
