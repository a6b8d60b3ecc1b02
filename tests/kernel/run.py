"""Runs cases on guests, or on this machine's device.

  run.py --list                          names and time limits in seconds, for ctest
  run.py --guests FOLDER --boot          builds the initramfs and boots the guests
  run.py --guests FOLDER --power-off
  run.py --guests FOLDER CASE            boots what is not running
  run.py --device NAME CASE              here; VERBENA_TEST_DEVICE is the default
  run.py --guests FOLDER --shell         boots one guest, carries out lines from standard input (for people)

Exit code: 0 passed, 1 failed, 77 cannot run here, with the reason.
"""

import argparse
import fcntl
import importlib
import os
import sys
from pathlib import Path

import image
import mpi
import programs
from cases import CASES
from guest import NAMES, Guest
from machine import LocalMachine, TestFailure

SKIPPED = 77
# Each adds its cases.
for _module in ("cases_one_host", "cases_mistakes", "cases_two_hosts", "cases_job", "cases_bench", "cases_memory", "cases_death",
                "cases_mpi"):
    importlib.import_module(_module)


def boot(folder, count, rebuild):
    """Guests that are ready for commands."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        guests = [Guest(folder, index) for index in range(len(NAMES))]
        if rebuild:
            for guest in guests:
                guest.crash()
            # Where there is none, the cases that want one say so.
            if mpi.installed():
                mpi.prepare()
            image.build(folder, programs.ALL + (mpi.FILES if mpi.installed() else []))
        if not guests[0].runs():
            guests[1].crash()  # its network has gone
        for guest in guests[:count]:
            guest.boot()
        for guest in guests[:count]:
            guest.await_boot()
    return guests[:count]


def run_case(case, machines):
    try:
        case.function(*machines)
    except TestFailure as failure:
        print(f"FAILED: {failure}", flush=True)
        return 1
    finally:
        for machine in machines:
            machine.close()
    print("passed", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--guests", type=Path)
    parser.add_argument("--boot", action="store_true")
    parser.add_argument("--power-off", action="store_true")
    parser.add_argument("--shell", action="store_true")
    parser.add_argument("--device", default=os.environ.get("VERBENA_TEST_DEVICE"))
    parser.add_argument("case", nargs="?")
    arguments = parser.parse_args()

    if arguments.list:
        for each in CASES.values():
            print(each.name, each.limit_s)
        return 0
    if arguments.boot:
        boot(arguments.guests, len(NAMES), rebuild=True)
        return 0
    if arguments.power_off:
        for index in range(len(NAMES)):
            Guest(arguments.guests, index).crash()
        return 0
    if arguments.shell:
        guest = boot(arguments.guests, 1, rebuild=not (arguments.guests / "initramfs").exists())[0]
        guest.connect()
        for line in sys.stdin:
            guest.start("sh", "-c", line.rstrip("\n")).wait(3600)
        return 0

    case = CASES.get(arguments.case)
    if case is None:
        parser.error(f"no case '{arguments.case}'; --list shows them")
    if arguments.guests:
        machines = boot(arguments.guests, case.machines, rebuild=not (arguments.guests / "initramfs").exists())
        for guest in machines:
            guest.connect()
    elif not arguments.device:
        print("skipped: name a device, as in: make test-hardware DEVICE=mlx5_0")
        return SKIPPED
    elif case.alters:
        print("skipped: this case changes the machine or switches it off, which only a guest is for")
        return SKIPPED
    else:
        machines = [LocalMachine(NAMES[index], arguments.device) for index in range(case.machines)]
    return run_case(case, machines)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (image.MissingPart, TestFailure) as failure:
        print(f"FAILED: {failure}")
        sys.exit(1)
