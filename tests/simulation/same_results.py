#!/usr/bin/env python3
"""Runs the same simulations in several processes, whose memory looks different, and by several builds.

    same_results.py FOLDER [FOLDER...]      # of programs, such as build/release/bin build/asan/bin

All must find the same to the last event: nothing may depend on addresses, on what memory held before, or on the build.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

DEVICE = ["--device", "sim:connectx3-fdr", "--runs", "1"]
POINTS = [
    ["one-to-one", "--requests", "300", "--pending", "1,8", "--request", "64,9000", "--response", "32,20000", "--verify"],
    ["one-to-one", "--requests", "300", "--pending", "4", "--protocol", "write/write", "--mark", "all"],
    ["N-to-1", "--nodes", "4", "--threads", "2", "--requests", "200", "--pending", "4", "--receive-queues", "all"],
    ["1:M", "--responders", "4", "--threads", "2", "--requests", "200", "--pending", "4", "--wait", "all"],
    ["N-to-M", "--nodes", "3", "--threads", "2", "--responders", "3", "--requests", "200", "--pending", "8", "--model",
     "all"],
    ["M:M", "--nodes", "12", "--requests", "100", "--response", "200"],
    ["N-to-1", "--nodes", "3", "--threads", "2", "--requests", "200", "--pending", "4", "--protocol", "send/send",
     "--transport", "uc,ud", "--verify"],
    # So many buffers that some meet in tables that are indexed by addresses.
    ["message", "--test", "latency", "--size", "64KiB", "--buffers", "300", "--operations", "2000"],
    ["message", "--test", "latency", "--size", "4KiB", "--eager", "9KiB", "--reuse", "paper", "--buffers", "400",
     "--operations", "16000"],
]
FAULT_SEEDS = range(1, 9)
# Freed memory full of something, blocks elsewhere, a stack that begins elsewhere.
SURROUNDINGS = [
    {},
    {"MALLOC_PERTURB_": "165", "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=512:glibc.malloc.arena_max=1"},
    {"MALLOC_PERTURB_": "90", "VERBENA_PADDING": "x" * 50_000, "LC_ALL": "C", "TZ": "Asia/Tokyo"},
]


def run(command, surroundings):
    environment = {**os.environ, "VERBENA_SEED": "7", **surroundings}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def bench(folder, arguments, surroundings):
    with tempfile.TemporaryDirectory() as scratch:
        result = pathlib.Path(scratch) / "result.json"
        run([folder / "verbena", "bench", *arguments, *DEVICE, "--json", result], surroundings)
        return json.loads(result.read_text())["results"]


def with_faults(folder, seed, surroundings):
    printed = run([folder / "simulation_test", "--gtest_filter=SimulationTest.OneSeed"],
                  {**surroundings, "VERBENA_SEED": str(seed)})
    return [line for line in printed.splitlines() if "digest" in line or line.startswith("seed")]


def main():
    folders = [pathlib.Path(name).resolve() for name in sys.argv[1:]]
    surroundings = [(folder, around) for folder in folders for around in SURROUNDINGS]
    tasks = [(bench, arguments, " ".join(arguments)) for arguments in POINTS]
    tasks += [(with_faults, seed, f"with faults, seed {seed}") for seed in FAULT_SEEDS]
    different = 0
    for look, argument, name in tasks:
        expected = look(*[folders[0], argument, SURROUNDINGS[0]])
        for folder, around in surroundings[1:]:
            if look(folder, argument, around) != expected:
                print(f"{name}: {folder} with {sorted(around)} finds something else than {folders[0]}")
                different += 1
    if different:
        sys.exit(f"{different} of {len(tasks) * (len(surroundings) - 1)} runs differ")
    print(f"{len(tasks)} simulations are the same in {len(surroundings)} surroundings each")


main()
