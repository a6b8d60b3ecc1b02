"""Runs rdma-core's tests of verbs on soft0: none may fail, each that is skipped has a reason in skips.txt, and so many
really run."""

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
PATIENCE_S = 1000
# So many pass; more do as soft0 learns more, and then this number goes up.
LEAST_RUN = 135

SKIPPED = re.compile(r"\.\.\. skipped (['\"])(.*)\1$", re.MULTILINE)


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


def run_tests(tests):
    """How the program ended, or None if it did not, and what it printed."""
    with subprocess.Popen([sys.argv[1], "run", "--", PYTHON, "-B", tests / "run_tests.py", "-v", "--dev", "soft0"],
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


def main():
    if not SHIPPED.is_dir() or subprocess.run([PYTHON, "-c", "import pyverbs"], capture_output=True).returncode != 0:
        print("skipped: python3-pyverbs is not installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="verbena-pyverbs-") as folder:
        tests = unpack(pathlib.Path(folder))
        exclude(tests, rules("excluded.txt"))
        code, printed = run_tests(tests)
    print(printed)
    if code is None:
        sys.exit(f"the tests did not end within {PATIENCE_S} s; above is what they printed until then")
    known = rules("skips.txt") + [(re.compile(re.escape(reason)), reason) for _, reason in rules("excluded.txt")]
    wrong = [f"skipped, and skips.txt does not say why: {reason}" for _, reason in SKIPPED.findall(printed)
             if not any(pattern.search(reason) for pattern, _ in known)]
    skipped = len(SKIPPED.findall(printed))
    total = re.search(r"^Ran (\d+) tests", printed, re.MULTILINE)
    passed = int(total[1]) - skipped if total else 0
    if code != 0 or not re.search(rf"^OK \(skipped={skipped}\)$", printed, re.MULTILINE):
        wrong.append(f"tests failed, or the program (it ended with {code})")
    if passed < LEAST_RUN:
        wrong.append(f"{passed} tests passed, at least {LEAST_RUN} should")
    print(f"{passed} tests passed")
    print(*wrong, sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
