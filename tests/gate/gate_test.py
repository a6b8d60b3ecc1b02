"""Every test has a program; scripts/test-summary says what was skipped and what failed; scripts/soak finds, records and
replays what fails; scripts/check-private-names finds names that hide others."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["SOURCE"])
BUILD = pathlib.Path(os.environ["BUILD"])

RESULTS = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite>
  <testcase name="unit/A.Passes" status="run"><system-out>[       OK ] A.Passes</system-out></testcase>
  <testcase name="unit/A.Fails" time="2.5" status="fail"><failure message="Timeout"/>
    <system-out>a_test.cc:3: Failure
skipped: not this</system-out></testcase>
  <testcase name="unit/B.Counts  # GetParam() = 1" status="notrun"><skipped message="matched"/>
    <system-out>b_test.cc:7: Skipped
no counter here
[  SKIPPED ] B.Counts</system-out></testcase>
  <testcase name="unit/C.Counts" status="notrun"><skipped message="matched"/>
    <system-out>c_test.cc:9: Skipped
no counter here</system-out></testcase>
  <testcase name="page" status="notrun"><skipped message="77"/><system-out>skipped: no browser</system-out></testcase>
  <testcase name="figures" status="run">
    <system-out>test_x (figures_test.T) ... skipped 'no plotly'
OK (skipped=1)</system-out></testcase>
  <testcase name="lost" status="notrun"><skipped message="Unable to find executable"/>
    <system-out>Unable to find executable: -m</system-out></testcase>
</testsuite>
"""

# Fails where its seed is odd.
PROGRAM = """#!/bin/sh
case $1 in
  --gtest_list_tests) printf 'Odd.\\n  Seed  # comment\\n' ;;
  --gtest_filter=Odd.Seed)
    echo "seed $VERBENA_SEED"
    case $VERBENA_SEED in *[13579]) exit 1 ;; esac ;;
esac
"""


class TestSummary(unittest.TestCase):
    def test_each_reason_is_counted_and_failures_come_last(self):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(RESULTS)
            file.flush()
            printed = subprocess.run([SOURCE / "scripts/test-summary", file.name], check=True, capture_output=True,
                                     text=True).stdout
        self.assertEqual(printed.split("\n"), [
            "", "Skipped tests: 5", "  1: Unable to find executable: -m", "      lost", "  1: no browser", "      page",
            "  2: no counter here", "      unit/B.Counts", "      unit/C.Counts", "  1: no plotly", "      figures", "",
            "Failed tests: 1", "  unit/A.Fails: Timeout, 2.5 s", "      a_test.cc:3: Failure", "      skipped: not this", ""])


class Commands(unittest.TestCase):
    def test_each_test_has_a_program(self):
        listed = subprocess.run([os.environ["CTEST"], "--test-dir", BUILD, "--show-only=json-v1"], check=True,
                                capture_output=True, text=True).stdout
        commands = {test["name"]: test.get("command", [""])[0] for test in json.loads(listed)["tests"]}
        self.assertIn("gate", commands)
        self.assertEqual([name for name, program in commands.items() if not os.access(program, os.X_OK)], [])


class Soak(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        for folder in ("scripts", "build/release/bin"):
            (self.root / folder).mkdir(parents=True)
        text = (SOURCE / "scripts/soak").read_text()
        for name, content in (("TESTS", '"odd_test": "*"'),
                              ("APPLICATIONS", '"odd": {"seeds": "odd_test *", "kills": "odd_test *"}')):
            begin = text.index(f"\n{name} = {{")
            text = text[:begin] + f"\n{name} = {{{content}" + text[text.index("\n}\n", begin):]
        self.soak = self.root / "scripts/soak"
        self.soak.write_text(text)

    def run_soak(self, program, *wanted):
        path = self.root / "build/release/bin/odd_test"
        path.write_text(program)
        path.chmod(0o755)
        return subprocess.run([sys.executable, self.soak, *wanted], cwd=self.root, capture_output=True, text=True)

    def test_what_fails_is_recorded_and_fails_again(self):
        # As long as it takes to draw an odd seed.
        for _ in range(100):
            done = self.run_soak(PROGRAM, "0.003")
            if done.returncode != 0:
                break
        self.assertEqual(done.returncode, 1, done.stderr)
        file = sorted((self.root / "build/soak").iterdir())[0]
        text = file.read_text()
        again = re.search("^again: (.*)$", text, re.MULTILINE)[1]
        self.assertIn(again, done.stdout)
        self.assertIn("test:  odd_test Odd.Seed\n", text)
        replayed = subprocess.run(again, shell=True, cwd=self.root, capture_output=True, text=True)
        self.assertEqual(replayed.returncode, 1)
        self.assertTrue(text.endswith("\n\n" + replayed.stdout), text)

    def test_where_nothing_fails_it_succeeds(self):
        done = self.run_soak(PROGRAM.replace("exit 1", "exit 0"), "0.003")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(list((self.root / "build/soak").iterdir()), [])

    def test_an_application_is_tried_until_enough_was_counted(self):
        program = PROGRAM.replace('"seed $VERBENA_SEED"', "counted: seeds 4; exit 0")
        done = self.run_soak(program, "--seeds", "10", "--apps", "odd")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("odd: 12 seeds, 0 found something, ", done.stdout)
        done = self.run_soak(program, "--kills", "1")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("does not report its kills", done.stderr)

    def test_an_application_that_fails_again_and_again_is_given_up(self):
        done = self.run_soak(PROGRAM.replace("*[13579])", "*)"), "--seeds", "10")
        self.assertEqual(done.returncode, 1)
        self.assertIn("odd: 0 seeds, 5 found something\n", done.stdout)
        self.assertEqual(len(list((self.root / "build/soak").iterdir())), 5)

    def test_a_list_of_tests_that_are_gone_is_an_error(self):
        done = self.run_soak("#!/bin/sh\n", "0.003")
        self.assertEqual(done.returncode, 1)
        self.assertIn("odd_test has no test *", done.stderr)


class PrivateNames(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        self.write("src/CMakeLists.txt", "verbena_layer(base LINK x)\nverbena_layer(cli LINK verbena_base)\n")
        self.write("src/base/limit.h", "namespace verbena {\nint limit(int value);\nstruct Size;\n}  // namespace verbena\n")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def source(self, name, declaration, include="src/base/limit.h"):
        self.write(name, f'#include "{include}"\n\nnamespace verbena::cli {{\nnamespace {{\n\n{declaration}\n\n'
                         "}  // namespace\n}  // namespace verbena::cli\n")

    def check(self):
        done = subprocess.run([sys.executable, SOURCE / "scripts/check-private-names", self.root], capture_output=True,
                              text=True)
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.returncode, 1 if done.stdout else 0)
        return done.stdout.splitlines()

    def test_a_name_of_an_included_header_is_hidden(self):
        for declaration in ("constexpr int limit = 3;", "int limit(long value) {\n  return 3;\n}", "struct limit {\n};",
                            "template <typename T>\nT limit(T value) {\n  return value;\n}"):
            self.source("src/cli/a.cc", declaration)
            self.assertEqual(len(self.check()), 1, declaration)
            self.assertIn("limit  <- hides that of src/base/limit.h", self.check()[0])

    def test_the_header_may_be_included_by_another_file_and_by_a_header(self):
        self.write("src/base/all.h", '#include "src/base/limit.h"\n')
        self.source("src/cli/a.cc", "constexpr int limit = 3;", include="src/base/other.h")
        self.assertEqual(self.check(), [])
        self.source("src/cli/b.cc", "int used() { return 1; }", include="src/base/all.h")
        self.assertEqual(len(self.check()), 1)

    def test_overloads_of_two_files(self):
        self.source("src/cli/a.cc", "int text(int value) { return value; }")
        self.source("src/cli/b.cc", "int text(long value) { return 2; }")
        self.assertIn("src/cli/b.cc:6: text  <- overloads that of src/cli/a.cc", self.check()[0])
        self.source("src/cli/b.cc", "int other(long value) { return text(value); }")
        self.assertEqual(self.check(), [])

    def test_files_of_other_units_may_use_a_name_again(self):
        for name in ("src/base/a.cc", "src/cli/a.cc", "src/cli/a_test.cc", "src/cli/a_bench.cc", "src/cli/folder/a.cc"):
            self.source(name, "int text(int value) { return value; }")
        self.assertEqual(self.check(), [])


if __name__ == "__main__":
    unittest.main()
