"""NIXL with its UCX backend, without a GPU: an agent writes random bytes into the memory of another process's agent, reads them
back, and tells it; both compare. UCX_TLS says over which transports."""

import os
import random
import subprocess
import sys
import time

import numpy
from nixl_cu12._api import nixl_agent, nixl_agent_config

BYTES = 4 << 20
ROUNDS = 20
LIMIT_S = 300


def agent_with_memory(name):
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    memory = numpy.zeros(BYTES, dtype=numpy.uint8)
    assert agent.register_memory([(memory.ctypes.data, BYTES, 0, "")], "DRAM") is not None
    return agent, memory


def wait(ready, what):
    start = time.monotonic()
    while not ready():
        assert time.monotonic() - start < LIMIT_S, f"no {what}"


def target():
    agent, memory = agent_with_memory("target")
    print("target", agent.get_agent_metadata().hex(), memory.ctypes.data, flush=True)
    for _ in range(ROUNDS):
        messages = []
        wait(lambda: messages or messages.extend(m for found in agent.get_new_notifs().values() for m in found), "notification")
        print("sum", int(memory.sum(dtype=numpy.uint64)), flush=True)
    sys.stdin.read()


def words_of(process, first):
    for line in process.stdout:
        words = line.split()
        if words and words[0] == first:
            return words[1:]
    raise AssertionError(f"the target ended before it said '{first}'")


def transfer(agent, kind, near, far, peer):
    handle = agent.initialize_xfer(kind, agent.get_xfer_descs(near, "DRAM"), agent.get_xfer_descs(far, "DRAM"), peer, b"written")
    state = [agent.transfer(handle)]

    def done():
        if state[0] == "PROC":
            state[0] = agent.check_xfer_state(handle)
        return state[0] != "PROC"

    wait(done, "end of a transfer")
    assert state[0] == "DONE", f"{kind}: {state[0]}"
    agent.release_xfer_handle(handle)


def initiator():
    with subprocess.Popen([sys.executable, __file__, "target"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        metadata, remote = words_of(other, "target")
        agent, memory = agent_with_memory("initiator")
        peer = agent.add_remote_agent(bytes.fromhex(metadata))
        draw = random.Random(int(os.environ.get("VERBENA_SEED", "1")))
        near = [(memory.ctypes.data, BYTES, 0)]
        far = [(int(remote), BYTES, 0)]
        for _ in range(ROUNDS):
            data = numpy.frombuffer(draw.randbytes(BYTES), dtype=numpy.uint8)
            memory[:] = data
            transfer(agent, "WRITE", near, far, peer)
            assert int(words_of(other, "sum")[0]) == int(data.sum(dtype=numpy.uint64)), "the target has other bytes"
        memory[:] = 0
        handle = agent.initialize_xfer("READ", agent.get_xfer_descs(near, "DRAM"), agent.get_xfer_descs(far, "DRAM"), peer)
        state = agent.transfer(handle)
        start = time.monotonic()
        while state == "PROC" and time.monotonic() - start < LIMIT_S:
            state = agent.check_xfer_state(handle)
        assert state == "DONE" and (memory == data).all(), "read back, bytes differ"
        other.stdin.close()
    print("passed: every byte as written", flush=True)


if __name__ == "__main__":
    target() if sys.argv[1:] == ["target"] else initiator()
    sys.stdout.flush()
    os._exit(0)
