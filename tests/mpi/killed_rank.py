"""One rank is killed (SIGKILL) in the midst of traffic; the others go on until their MPI ends them. VERBENA_SEED=N draws the
rank, the traffic and the moment. Argument: a folder in which each rank leaves its process number, and
the victim the moment of its end, in `killed`. Run by scripts/test-mpi."""

import os
import pathlib
import random
import signal
import sys
import threading
import time

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
DRAWN = random.Random(int(os.environ.get("VERBENA_SEED", "1")))
VICTIM = DRAWN.randrange(WORLD.size)
KIND = DRAWN.choice(["point to point", "collective", "both"])
# Counted in rounds, and from there in time, so that it is anywhere inside of them, or before there are connections.
ROUNDS = DRAWN.choice([0, DRAWN.randrange(200)])
PAUSE_S = DRAWN.random() * 0.02
SIZES = [0, 8, 1000, 3000, 70_000, 1_000_000]


def kill_soon():
    time.sleep(PAUSE_S)
    (pathlib.Path(sys.argv[1]) / "killed").write_text(str(time.time()), encoding="utf-8")
    os.kill(os.getpid(), signal.SIGKILL)


def point_to_point(sizes, tag):
    """All at once with all others. The tag is the round's: a receive from any source that took a message of the next round
    would leave one of its own round without a receive, and its sender waiting for ever."""
    others = [rank for rank in range(WORLD.size) if rank != WORLD.rank]
    data = bytes(max(SIZES))
    into = [bytearray(max(SIZES)) for _ in others]
    requests = [WORLD.Irecv([buffer, MPI.BYTE], MPI.ANY_SOURCE, tag) for buffer in into]
    requests += [WORLD.Isend([data, sizes.choice(SIZES), MPI.BYTE], rank, tag) for rank in others]
    MPI.Request.Waitall(requests)


def collective(sizes):
    data = bytearray(sizes.choice(SIZES))
    WORLD.Bcast([data, MPI.BYTE], sizes.randrange(WORLD.size))
    WORLD.allreduce(1)
    WORLD.alltoall([bytes(2000)] * WORLD.size)


(pathlib.Path(sys.argv[1]) / str(os.getpid())).touch()
WORLD.Barrier()
alike = random.Random(DRAWN.random())
number = 0
while True:
    if number == ROUNDS and WORLD.rank == VICTIM:
        threading.Thread(target=kill_soon, daemon=True).start()
    number += 1
    if KIND != "collective":
        point_to_point(alike, number % 30_000)
    if KIND != "point to point":
        collective(alike)
