"""Jobs of one rank per host, as launchers start them: by flags, and by the environments of Slurm and of PMI."""

from cases import case
from programs import OTHER_SECRET, TOOL, secret_file


def _bench(machine, *further):
    return [TOOL, "bench", "one-to-one", "--device", machine.device, "--protocol", "write/write,send/send", "--runs",
            "1", "--requests", "10", "--verify", "--request", "64,64KiB", *further]


def _environment(machine, **variables):
    return {"VERBENA_JOB_SECRET_FILE": secret_file(machine)} | variables


@case(machines=2)
def job_by_flags(first, second):
    flags = ["--size", "2", "--coordinator", f"{first.address}:7480"]
    other = second.start(*_bench(second, "--rank", "1", *flags), environment=_environment(second))
    first.run(*_bench(first, "--rank", "0", *flags), environment=_environment(first),
              holds=["write/write", "send/send"], lacks=["FAILED"])
    other.expect()


@case(machines=2)
def job_by_slurm(first, second):
    """What srun leaves in the environment; a host list of addresses, since these hosts have no names."""
    def slurm(machine, rank):
        return _environment(machine, SLURM_PROCID=str(rank), SLURM_STEP_NUM_TASKS="2", SLURM_JOB_ID="4711",
                            SLURM_STEP_ID="0", SLURM_STEP_NODELIST=f"{first.address},{second.address}")

    other = second.start(*_bench(second, "--job"), environment=slurm(second, 1))
    first.run(*_bench(first, "--job"), environment=slurm(first, 0), holds=["write/write", "send/send"],
              lacks=["FAILED"])
    other.expect()


@case(machines=2)
def job_refuses_another_secret(first, second):
    flags = ["--size", "2", "--coordinator", f"{first.address}:7480"]
    waiting = first.start(*_bench(first, "--rank", "0", *flags), environment=_environment(first))
    second.run(*_bench(second, "--rank", "1", *flags), code=1, holds=["wrong secret"],
               environment={"VERBENA_JOB_SECRET_FILE": secret_file(second, OTHER_SECRET, "other.secret")})
    # The real one is still welcome.
    other = second.start(*_bench(second, "--rank", "1", *flags), environment=_environment(second))
    waiting.expect(holds=["wrong secret", "write/write"])
    other.expect()


@case(machines=2)
def job_names_contradictions(first, second):
    address = ["--coordinator", f"{first.address}:7480"]
    waiting = first.start(*_bench(first, "--rank", "0", "--size", "3", *address), environment=_environment(first))
    second.run(*_bench(second, "--rank", "1", "--size", "2", *address), environment=_environment(second), code=2,
               holds=["counts 2 ranks, rank 0 counts 3"])
    waiting.expect(2, holds=["counts 2 ranks, rank 0 counts 3", second.address])
