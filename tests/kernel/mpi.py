"""The MPI that cases start: MPICH, as scripts/test-mpi installed it, and a program compiled for it."""

import os
import subprocess
from pathlib import Path

from image import MissingPart
from programs import BUILD

HERE = Path(__file__).resolve().parent
MPICH = Path(os.environ.get("VERBENA_MPICH", HERE.parents[1] / "build/mpi/mpich"))
MPIEXEC = MPICH / "bin/mpiexec"
SOURCE = HERE / "mpi_exchange.c"
EXCHANGE = BUILD / "bin/mpi_exchange"
# With what the MPI loads by name.
FILES = [MPIEXEC, MPICH / "bin/hydra_pmi_proxy", EXCHANGE, BUILD / "lib/verbena/libverbena-fi.so"]


def installed():
    return (MPICH / "ready").exists()


def prepare():
    """Compiles the program, unless that is done."""
    if not installed():
        raise MissingPart(f"there is no MPICH in {MPICH}: run scripts/test-mpi --mpi mpich --install")
    if EXCHANGE.exists() and EXCHANGE.stat().st_mtime > max(SOURCE.stat().st_mtime, (MPICH / "ready").stat().st_mtime):
        return
    command = [MPICH / "bin/mpicc", "-O2", "-Wall", "-Wextra", "-Werror", f"-Wl,-rpath,{MPICH / 'lib'}", "-o", EXCHANGE, SOURCE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MissingPart(f"{' '.join(map(str, command))} failed: {done.stdout}{done.stderr}")
