"""An unmodified MPI on two hosts, by the libfabric provider. MPICH's launcher says what to start on each host, so that it
needs no remote shell there."""

import shlex

from cases import case
from cases_death import received_packets
from machine import TestFailure
from mpi import EXCHANGE, MPIEXEC, prepare
from programs import SECRET, TOOL

LAUNCH = "HYDRA_LAUNCH: "
STARTED_IN_S = 120
DONE_IN_S = 240
# Far fewer than the exchange takes: it moves megabytes, in packets of 4 KiB at most.
LEAST_PACKETS = 500


def run_mpi(first, second, ranks, *, holds):
    """Ranks by turns on both machines. The launcher passes its environment on."""
    prepare()
    environment = {"VERBENA_DEVICE": first.device, "VERBENA_JOB_SECRET": SECRET}
    hosts = f"{first.address},{second.address}"
    job = first.start(TOOL, "mpi", "--", MPIEXEC, "-launcher", "manual", "-localhost", first.address, "-hosts", hosts, "-n",
                      ranks, EXCHANGE, environment=environment)
    job.wait_for("HYDRA_LAUNCH_END", STARTED_IN_S)
    commands = [line.removeprefix(LAUNCH) for line in job.lines if line.startswith(LAUNCH)]
    if not commands:
        raise TestFailure("the MPI's launcher says nothing that could be started")
    proxies = [machine.start(*shlex.split(command)) for machine, command in zip((first, second), commands)]
    job.expect(holds=holds, timeout_s=DONE_IN_S)
    for proxy in proxies:
        proxy.expect()


def exchange(first, second, ranks):
    """All payloads arrive, and by the device."""
    before = [received_packets(machine) for machine in (first, second)]
    run_mpi(first, second, ranks, holds=[f"rank {rank} of {ranks}" for rank in range(ranks)])
    for machine, packets in zip((first, second), before):
        if received_packets(machine) < packets + LEAST_PACKETS:
            raise TestFailure(f"[{machine.name}] the payloads did not come by {machine.device}")


@case(machines=2, limit_s=400)
def mpi_program_on_two_hosts(first, second):
    exchange(first, second, 2)


@case(machines=2, limit_s=400)
def mpi_program_with_two_ranks_per_host(first, second):
    exchange(first, second, 4)
