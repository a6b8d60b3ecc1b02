"""Something is wrong, by variables of the environment or here, with VERBENA_TEST_WRONG: the job has to end, and to say why.
Run by scripts/test-mpi."""

import ctypes
import mmap
import os
import resource

WRONG = os.environ.get("VERBENA_TEST_WRONG", "")
if WRONG == "secret":
    # Each rank has one of its own.
    os.environ["VERBENA_JOB_SECRET"] = f"a secret that nobody else has: {os.getpid():016}"


def limit_files(more):
    """So many more than there are."""
    top = max(int(name) for name in os.listdir("/proc/self/fd"))
    while (unused := os.open("/dev/null", os.O_RDONLY)) < top:
        pass
    os.close(unused)
    resource.setrlimit(resource.RLIMIT_NOFILE, (top + 1 + more, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


# MPICH connects its ranks when it starts, Open MPI with the first message.
if WRONG == "files" and os.environ["VERBENA_MPI"] == "mpich":
    limit_files(10)

from mpi4py import MPI  # which starts it

if WRONG == "files":
    limit_files(0)
if WRONG == "memory":
    # Too long to be copied, and nobody may read it.
    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    size_bytes = 4 << 20
    pages = mmap.mmap(-1, size_bytes)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), 0) != 0:
        raise OSError("mprotect() fails")
    buffer = [MPI.memory.fromaddress(address, size_bytes), MPI.BYTE]
    if MPI.COMM_WORLD.rank == 0:
        MPI.COMM_WORLD.Send(buffer, dest=1)
    elif MPI.COMM_WORLD.rank == 1:
        MPI.COMM_WORLD.Recv(bytearray(size_bytes), source=0)
MPI.COMM_WORLD.alltoall(list(range(MPI.COMM_WORLD.size)))
