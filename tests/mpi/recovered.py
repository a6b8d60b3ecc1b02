"""One rank is killed (SIGKILL) while the others send to it and wait for it. With an MPI that does not end the job then, each
of them gets an error, and they still reach each other. Argument: a folder in which each rank leaves its process number. Run by
scripts/test-mpi."""

import os
import pathlib
import signal
import sys

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
WORLD.Set_errhandler(MPI.ERRORS_RETURN)
VICTIM = 1
SIZE = 100_000


def refused(start):
    """Whether an operation ends with an error, and not as if the other rank were there."""
    try:
        start().Wait()
    except MPI.Exception:
        return True
    return False


(pathlib.Path(sys.argv[1]) / str(os.getpid())).touch()
for _ in range(20):
    WORLD.allreduce(1)
if WORLD.rank == VICTIM:
    os.kill(os.getpid(), signal.SIGKILL)
assert refused(lambda: WORLD.Irecv([bytearray(SIZE), MPI.BYTE], VICTIM, 1)), "a receive from a killed rank has ended well"
assert refused(lambda: WORLD.Isend([bytes(SIZE), MPI.BYTE], VICTIM, 1)), "a send to a killed rank has ended well"
survivors = [rank for rank in range(WORLD.size) if rank != VICTIM]
at = survivors.index(WORLD.rank)
right, left = survivors[(at + 1) % len(survivors)], survivors[at - 1]
data = os.urandom(SIZE)
got = WORLD.sendrecv(data, right, 2, None, left, 2)
back = WORLD.sendrecv(got, left, 3, None, right, 3)
assert back == data, "survivors exchange wrong bytes"
print(f"rank {WORLD.rank} goes on", flush=True)
# MPI_Finalize waits for all ranks.
os._exit(0)
