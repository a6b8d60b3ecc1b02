"""mpi4py's own tests, without those that fail whatever carries the messages. Arguments: words of the names of the files that
are wanted, all without. Run by scripts/test-mpi."""

import os
import pathlib
import runpy
import sys
import unittest

TESTS = pathlib.Path(os.environ["VERBENA_MPI4PY_TESTS"])

# Each was seen to fail over other providers of libfabric too, or by its message has nothing to do with them.
SKIPPED = {
    "mpich": {
        "testDistgraphcomm": "where all messages go by libfabric, MPI_Probe of any source and the receive behind it may find "
                             "different messages, one of them from the process itself (MPICH 5.0.2, also with tcp and shm)",
        "testGetFortranInfo": "this build of MPICH has no Fortran",
    },
    "openmpi": {
        "testRevoke": "Open MPI 5.0.11 does not revoke communicators unless it is started with fault tolerance",
    },
    "intel": {},
}[os.environ["VERBENA_MPI"]]

# Files of them. Open MPI 5.0.11: where two ranks spawn processes at the same moment, all of them now and then wait for ever
# in PMIx_Connect(), which has nothing to do with messages.
SKIPPED_FILES = {"mpich": [], "openmpi": ["test_spawn"], "intel": []}[os.environ["VERBENA_MPI"]]

all_names = unittest.TestLoader.getTestCaseNames


def names_to_run(loader, case):
    return [name for name in all_names(loader, case) if name not in SKIPPED]


unittest.TestLoader.getTestCaseNames = names_to_run
sys.path.insert(0, str(TESTS))
wanted = [argument for word in sys.argv[1:] for argument in ("-i", word)]
wanted += [argument for word in SKIPPED_FILES for argument in ("-e", word)]
sys.argv = [str(TESTS / "main.py"), "--quiet", *wanted]
runpy.run_path(sys.argv[0], run_name="__main__")
