"""Runs rdma-core's tests of verbs on soft0, as an InfiniBand and as an Ethernet device: none may fail, each that is skipped
has a reason in skips.txt, and so many really run in one or the other."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
# Where Debian's python3-pyverbs has them, compressed in part.
SHIPPED = pathlib.Path("/usr/share/doc/rdma-core/tests")
# The system's: packages of the distribution are not those of another Python.
PYTHON = "/usr/bin/python3"
PATIENCE_S = 550  # of each; ctest has more than that for both
LINK_LAYERS = ("infiniband", "ethernet")
# So many pass, each counted once; more do as soft0 learns more, and then this number goes up.
LEAST_RUN = 151

SKIPPED = re.compile(r"\.\.\. skipped (['\"])(.*)\1$", re.MULTILINE)
# A test, which may say in a second line what it does, what it prints, and how it ended.
ENDED = re.compile(r"^\w+ \((tests\.[\w.]+)\)(?:\n[^\n]*)? \.\.\. (?:[^\n]*\n){0,3}?(ok|skipped)", re.MULTILINE)


def rules(name):
    """The lines of a file: a regular expression, '#' and the reason."""
    found = []
    for line in (HERE / name).read_text().splitlines():
        if line and not line.startswith("#"):
            pattern, reason = line.split(" # ", 1)
            found.append((re.compile(pattern.strip()), reason))
    return found


def unpack(folder):
    """The tests as Python finds them."""
    tests = folder / "tests"
    shutil.copytree(SHIPPED, tests)
    for packed in tests.glob("*.gz"):
        subprocess.run(["gunzip", packed], check=True)
    return tests


def exclude(tests, unfit):
    """Tests that cannot pass are skipped by name, with their reason."""
    for pattern, reason in unfit:
        module, name = pattern.pattern.split(r"\.")
        path = tests / f"{module}.py"
        text = path.read_text()
        marked = re.sub(rf"^( +)(def {name}\()", rf"\1@unittest.skip({reason!r})\n\1\2", text, flags=re.MULTILINE)
        if marked == text:
            sys.exit(f"excluded.txt: there is no test {name} in {module}")
        path.write_text(marked)


def run_tests(tests, link_layer):
    """How the program ended, or None if it did not, and what it printed."""
    command = [sys.argv[1], "run", "--link-layer", link_layer, "--", PYTHON, "-B", tests / "run_tests.py", "-v", "--dev",
               "soft0"]
    with subprocess.Popen(command,
                          # A refusal's line would stand in the middle of a test's.
                          env={**os.environ, "VERBENA_LOG": "off"}, cwd=tests.parent, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True) as run:
        try:
            printed, _ = run.communicate(timeout=PATIENCE_S)
            return run.returncode, printed
        except subprocess.TimeoutExpired:
            # With the processes that tests have started.
            os.killpg(run.pid, signal.SIGKILL)
            return None, run.communicate()[0]


def judge(code, printed):
    """What is wrong with a run, and the tests that passed."""
    print(printed)
    if code is None:
        sys.exit(f"the tests did not end within {PATIENCE_S} s; above is what they printed until then")
    known = rules("skips.txt") + [(re.compile(re.escape(reason)), reason) for _, reason in rules("excluded.txt")]
    wrong = [f"skipped, and skips.txt does not say why: {reason}" for _, reason in SKIPPED.findall(printed)
             if not any(pattern.search(reason) for pattern, _ in known)]
    skipped = len(SKIPPED.findall(printed))
    total = re.search(r"^Ran (\d+) tests", printed, re.MULTILINE)
    if code != 0 or not total or not re.search(rf"^OK \(skipped={skipped}\)$", printed, re.MULTILINE):
        wrong.append(f"tests failed, or the program (it ended with {code})")
    ended = ENDED.findall(printed)
    passed = {name for name, how in ended if how == "ok"}
    # Lines of programs may stand in the middle of a test's: then its name is not found.
    if total and len(passed) + skipped != int(total[1]):
        print(f"{total[1]} tests ran and {skipped} were skipped, but {len(passed)} are named as passed")
    return wrong, passed


def main():
    if not SHIPPED.is_dir() or subprocess.run([PYTHON, "-c", "import pyverbs"], capture_output=True).returncode != 0:
        print("skipped: python3-pyverbs is not installed")
        sys.exit(77)
    wrong = []
    passed = set()
    with tempfile.TemporaryDirectory(prefix="verbena-pyverbs-") as folder:
        tests = unpack(pathlib.Path(folder))
        exclude(tests, rules("excluded.txt"))
        for link_layer in LINK_LAYERS:
            found, names = judge(*run_tests(tests, link_layer))
            wrong += [f"{link_layer}: {line}" for line in found]
            print(f"{len(names)} tests passed as {link_layer}")
            passed |= names
    if len(passed) < LEAST_RUN:
        wrong.append(f"{len(passed)} tests passed, at least {LEAST_RUN} should")
    print(f"{len(passed)} tests passed")
    print(*wrong, sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
