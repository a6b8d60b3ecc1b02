"""Mooncake's transfer engine between two processes, its topology discovered: random bytes are written into the other one's memory
and read back, by one request and by batches, and compared."""

import ctypes
import os
import random
import subprocess
import sys

from mooncake.engine import TransferEngine

BYTES = 8 << 20
ROUNDS = 40
BATCH = 16


def engine():
    """With defaults: devices are discovered, workers are as many as Mooncake likes."""
    made = TransferEngine()
    assert made.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0, "initialize"
    return made, f"127.0.0.1:{made.get_rpc_port()}"


def buffer_of(made):
    buffer = ctypes.create_string_buffer(BYTES)
    assert made.register_memory(ctypes.addressof(buffer), BYTES) == 0, "register_memory"
    return buffer, ctypes.addressof(buffer)


def target():
    made, name = engine()
    _, address = buffer_of(made)
    print(name, address, flush=True)
    sys.stdin.read()


def initiator():
    with subprocess.Popen([sys.executable, __file__, "target"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        line = ""
        for line in other.stdout:
            if line.startswith("127.0.0.1:"):
                break
        name, remote = line.split()
        remote = int(remote)
        made, _ = engine()
        buffer, local = buffer_of(made)
        draw = random.Random(int(os.environ.get("VERBENA_SEED", "1")))
        for _ in range(ROUNDS):
            size = draw.choice([1, 8, 100, 4096, 65536, 1 << 20])
            offset = draw.randrange(BYTES - size)
            data = draw.randbytes(size)
            ctypes.memmove(local, data, size)
            assert made.transfer_sync_write(name, local, remote + offset, size) == 0, "write"
            ctypes.memset(local, 0, size)
            assert made.transfer_sync_read(name, local, remote + offset, size) == 0, "read"
            assert buffer.raw[:size] == data, f"{size} bytes at {offset} differ"
        size = 65536
        data = draw.randbytes(BATCH * size)
        ctypes.memmove(local, data, len(data))
        places = draw.sample(range(BYTES // size), BATCH)
        near = [local + i * size for i in range(BATCH)]
        far = [remote + place * size for place in places]
        assert made.batch_transfer_sync_write(name, near, far, [size] * BATCH) == 0, "batch write"
        ctypes.memset(local, 0, len(data))
        assert made.batch_transfer_sync_read(name, near, far, [size] * BATCH) == 0, "batch read"
        assert buffer.raw[:len(data)] == data, "a batch differs"
        other.stdin.close()
    print("passed: every byte as written")


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    target() if sys.argv[1:] == ["target"] else initiator()
    sys.stdout.flush()
    os._exit(0)  # the engine's threads do not end in order
