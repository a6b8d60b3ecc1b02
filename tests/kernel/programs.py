"""What cases start: the project's programs of one build, and how they are told about device and secret."""

import os
import shlex
from pathlib import Path

BUILD = Path(os.environ.get("VERBENA_BUILD", Path(__file__).resolve().parents[2] / "build/release"))
TOOL = BUILD / "bin/verbena"
TESTS = ["device_test", "memory_test", "rpc_one_to_one_test", "rpc_hostile_test", "rpc_dispatcher_test",
         "rpc_broken_test", "rpc_service_test", "rpc_peer_process"]
# With the library that those with soft0 load.
ALL = [TOOL, BUILD / "lib/verbena/libverbena.so"] + [BUILD / "bin" / name for name in TESTS]

SECRET = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
OTHER_SECRET = "that of another job, not this one's"


def secret_file(machine, text=SECRET, name="job.secret"):
    """A file on the machine that only its owner can read; returns its path."""
    path = machine.scratch(name)
    machine.shell(f"umask 077; printf '%s\\n' {shlex.quote(text)} >{path}")
    return path


def listen(machine, *further):
    """Starts the responder of a benchmark over two hosts."""
    server = machine.start(TOOL, "bench", "one-to-one", "--device", machine.device, "--listen", "0.0.0.0",
                           "--secret-file", secret_file(machine), *further)
    server.wait_for("listening on")
    return server


def gtest(machine, program, filter_="*", timeout_s=300):
    """Runs a GoogleTest program on the machine's device."""
    environment = {"VERBENA_TEST_DEVICE": machine.device, "VERBENA_TEST_THINNING": str(machine.thinning)}
    machine.run(BUILD / "bin" / program, f"--gtest_filter={filter_}", environment=environment,
                holds=["[  PASSED  ]"], timeout_s=timeout_s)
