"""The bindings `ibverbs`, which open libibverbs themselves: two processes connect queue pairs; one writes random bytes into the
other's memory and sends it where they are, and the other compares."""

import ctypes
import hashlib
import os
import random
import socket
import struct
import sys
import time

import ibverbs as ib

BYTES = 1 << 20
ROUNDS = 200
LIMIT_S = 300


def complete(queue):
    start = time.monotonic()
    while time.monotonic() - start < LIMIT_S:
        for completion in queue.poll(1):
            completion.raise_for_status()
            return
    raise AssertionError("no completion")


class End:
    def __init__(self, channel):
        device = next(device for device in ib.get_device_list() if device.name == "soft0")
        self.context = device.open()
        self.domain = self.context.alloc_pd()
        self.queue = self.context.create_cq(64)
        access = ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE | ib.AccessFlags.REMOTE_READ
        self.memory = ctypes.create_string_buffer(BYTES)
        self.address = ctypes.addressof(self.memory)
        self.region = self.domain.reg_mr(self.address, BYTES, access)
        self.pair = self.domain.create_qp(ib.QPInitAttr(send_cq=self.queue, recv_cq=self.queue, qp_type=ib.QPType.RC))
        own = ib.local_qp_info(self.pair, self.context.query_port(1), self.context.query_gid(1, 0), port=1, psn=0).to_bytes()
        channel.sendall(struct.pack("<HQI", len(own), self.address, self.region.rkey) + own)
        size, self.remote, self.rkey = struct.unpack("<HQI", channel.recv(14, socket.MSG_WAITALL))
        peer = ib.QPInfo.from_bytes(channel.recv(size, socket.MSG_WAITALL))
        ib.connect_rc(self.pair, peer, port=1, sgid_index=0, access=access)
        # Both are connected before either sends.
        channel.sendall(b"c")
        channel.recv(1, socket.MSG_WAITALL)


def writer(channel):
    end = End(channel)
    draw = random.Random(int(os.environ.get("VERBENA_SEED", "1")))
    for _ in range(ROUNDS):
        size = draw.choice([1, 8, 100, 4096, 65536, BYTES])
        data = draw.randbytes(size)
        ctypes.memmove(end.address, data, size)
        end.pair.post_send(ib.SendWR(wr_id=1, sg_list=[ib.SGE(end.region, size)], opcode=ib.WROpcode.RDMA_WRITE,
                                     send_flags=ib.SendFlags.SIGNALED, remote_addr=end.remote, rkey=end.rkey))
        complete(end.queue)
        channel.sendall(struct.pack("<I", size) + hashlib.sha256(data).digest())
        assert channel.recv(1, socket.MSG_WAITALL) == b"y", f"{size} bytes differ"
    print("passed: every byte as written", flush=True)


def reader(channel):
    end = End(channel)
    for _ in range(ROUNDS):
        (size,) = struct.unpack("<I", channel.recv(4, socket.MSG_WAITALL))
        same = hashlib.sha256(end.memory.raw[:size]).digest() == channel.recv(32, socket.MSG_WAITALL)
        channel.sendall(b"y" if same else b"n")


if __name__ == "__main__":
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        reader(theirs)
        os._exit(0)
    theirs.close()
    writer(ours)
    sys.exit(os.waitpid(child, 0)[1] != 0)
