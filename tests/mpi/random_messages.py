"""Payloads of random sizes between all ranks, each checked: point to point, collective, one-sided. VERBENA_SEED=N draws
others. Run by scripts/test-mpi."""

import os
import random

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
SEED = int(os.environ.get("VERBENA_SEED", "1"))
# Around the limits of what is inlined, copied and transferred from where it lies.
SIZES = [0, 1, 7, 8, 200, 1023, 1024, 2000, 2047, 2048, 2049, 4096, 65535, 65536, 1 << 20, 5_000_001]
ROUNDS = 60


def payload(source, target, number, size):
    return random.Random(f"{SEED}/{source}/{target}/{number}").randbytes(size)


def sizes_of(round_number):
    """What each pair exchanges in a round: known to all, drawn alike."""
    drawn = random.Random(f"{SEED}/{round_number}")
    return [[drawn.choice(SIZES) if drawn.random() < 0.8 else drawn.randrange(100_000) for _ in range(WORLD.size)]
            for _ in range(WORLD.size)]


def point_to_point():
    """Sends to all, in any order, received by source and tag, by any source, or after a probe."""
    me = WORLD.rank
    for number in range(ROUNDS):
        sizes = sizes_of(number)
        mine = random.Random(f"{SEED}/{number}/{me}")
        targets = [rank for rank in range(WORLD.size) if rank != me]
        mine.shuffle(targets)
        kept = [payload(me, target, number, sizes[me][target]) for target in targets]
        modes = [WORLD.Isend, WORLD.Issend]
        requests = [mine.choice(modes)([data, MPI.BYTE], target, number) for data, target in zip(kept, targets)]
        sources = [rank for rank in range(WORLD.size) if rank != me]
        way = mine.choice(["by source", "any source", "probe"])
        for source in sources:
            status = MPI.Status()
            if way == "probe":
                message = WORLD.Mprobe(MPI.ANY_SOURCE, number, status)
                buffer = bytearray(status.Get_count(MPI.BYTE))
                message.Recv([buffer, MPI.BYTE], status)
            else:
                buffer = bytearray(max(max(row) for row in sizes))
                WORLD.Recv([buffer, MPI.BYTE], source if way == "by source" else MPI.ANY_SOURCE, number, status)
            came_from = status.Get_source()
            size = status.Get_count(MPI.BYTE)
            assert size == sizes[came_from][me], (number, way, came_from, size, sizes[came_from][me])
            assert buffer[:size] == payload(came_from, me, number, size), (number, way, came_from, size)
        MPI.Request.Waitall(requests)


def burst():
    """Many small messages before the first receive: credits end, and order holds."""
    count = 3000
    right = (WORLD.rank + 1) % WORLD.size
    left = (WORLD.rank - 1) % WORLD.size
    words = [bytes(str(number), "ascii") for number in range(count)]
    requests = [WORLD.Isend([word, MPI.BYTE], right, 1) for word in words]
    for word in words:
        buffer = bytearray(16)
        status = MPI.Status()
        WORLD.Recv([buffer, MPI.BYTE], left, 1, status)
        assert buffer[:status.Get_count(MPI.BYTE)] == word, (word, bytes(buffer))
    MPI.Request.Waitall(requests)


def collective():
    for number in range(ROUNDS):
        sizes = sizes_of(number)
        root = number % WORLD.size
        size = sizes[root][0]
        data = bytearray(payload(root, 0, number, size) if WORLD.rank == root else bytes(size))
        WORLD.Bcast([data, MPI.BYTE], root)
        assert data == payload(root, 0, number, size), ("broadcast", number, size)
        parts = WORLD.alltoall([payload(WORLD.rank, other, number, sizes[WORLD.rank][other] % 70_000)
                                for other in range(WORLD.size)])
        for other, part in enumerate(parts):
            assert part == payload(other, WORLD.rank, number, sizes[other][WORLD.rank] % 70_000), ("all to all", number)
        assert WORLD.allreduce(WORLD.rank + number) == sum(rank + number for rank in range(WORLD.size))


def one_sided():
    size = 300_000
    window = MPI.Win.Allocate(size * WORLD.size, 1, comm=WORLD)
    window.Fence()
    # They stay until the puts are complete.
    data = [payload(WORLD.rank, target, 0, size) for target in range(WORLD.size)]
    for target in range(WORLD.size):
        window.Put([data[target], MPI.BYTE], target, (WORLD.rank * size, size, MPI.BYTE))
    window.Fence()
    memory = bytes(window.tomemory())
    for source in range(WORLD.size):
        assert memory[source * size:][:size] == payload(source, WORLD.rank, 0, size), ("put", source)
    got = bytearray(size)
    right = (WORLD.rank + 1) % WORLD.size
    window.Get([got, MPI.BYTE], right, (WORLD.rank * size, size, MPI.BYTE))
    window.Fence()
    assert got == payload(WORLD.rank, right, 0, size), "get"
    window.Free()


STEPS = [point_to_point, burst, collective, one_sided]
for step in STEPS:
    step()
    WORLD.Barrier()
if WORLD.rank == 0:
    print(f"seed {SEED}: all right with {WORLD.size} ranks, {MPI.Get_library_version().splitlines()[0]}")
