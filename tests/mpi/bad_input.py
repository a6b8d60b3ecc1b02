"""Something is wrong, by variables of the environment or here, with VERBENA_TEST_WRONG: the job has to end, and to say why.
Run by scripts/test-mpi."""

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
MPI.COMM_WORLD.alltoall(list(range(MPI.COMM_WORLD.size)))
