"""The command line as `verbena report` calls it: exit codes, one-line errors, and nothing lost or left behind."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import support
from support import synthetic


class Command(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.out = self.folder / "out" / "report.html"
        self.out.parent.mkdir()
        self.data = self.folder / "data"
        synthetic.write_full_set(self.data)

    def run_lab(self, *arguments, **environment):
        return self.run_module("verbena_lab", *arguments, **environment)

    def run_module(self, module, *arguments, **environment):
        return subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=support.LAB,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def assert_refused(self, done, *words):
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_a_report_is_written_and_nothing_else(self):
        done = self.run_lab("report", self.out, self.data)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.assertEqual([entry.name for entry in self.out.parent.iterdir()], ["report.html"])
        text = self.out.read_text(encoding="utf-8")
        for part in ("Which one should I use here?", "WRITE/WRITE", "Imaginary CPU 9000", "synthetic.json", "put_lat"):
            self.assertIn(part, text)
        umask = os.umask(0)
        os.umask(umask)
        self.assertEqual(self.out.stat().st_mode & 0o777, 0o666 & ~umask)

    def test_a_bad_file_among_good_ones_leaves_the_old_page_alone(self):
        self.out.write_text("the old page")
        (self.data / "half.json").write_text('{"device": "so')
        self.assert_refused(self.run_lab("report", self.out, self.data), "half.json", "half-written")
        self.assertEqual(self.out.read_text(), "the old page")
        self.assertEqual(len(list(self.out.parent.iterdir())), 1)

    def test_missing_inputs(self):
        self.assert_refused(
            self.run_lab("report", self.out, self.folder / "absent.json"), "absent.json", "no such file"
        )
        self.assert_refused(self.run_lab("report", self.out, self.out.parent), "no result file", "verbena bench")
        self.assert_refused(self.run_lab("report", self.out), "FILE|DIR")
        self.assert_refused(self.run_lab(), "COMMAND")

    def test_plotly_missing_or_foreign(self):
        absent = self.folder / "absent.js"
        self.assert_refused(
            self.run_lab("report", self.out, self.data, VERBENA_PLOTLY_JS=str(absent)), "absent.js", "python3-plotly"
        )
        foreign = self.folder / "foreign.js"
        foreign.write_text("alert(1)")
        self.assert_refused(
            self.run_lab("report", self.out, self.data, VERBENA_PLOTLY_JS=str(foreign)), "foreign.js", "python3-plotly"
        )
        self.assertFalse(self.out.exists())

    def test_without_jinja2_there_is_an_answer_but_no_page(self):
        absent = self.folder / "modules"
        absent.mkdir()
        (absent / "jinja2.py").write_text("raise ImportError('not here')")
        done = self.run_lab("report", self.out, self.data, PYTHONPATH=str(absent))
        self.assert_refused(done, "Jinja2 is missing (not here)", "python3-jinja2")
        self.assertFalse(self.out.exists())
        answer = self.run_module("verbena_lab.answer", self.data, PYTHONPATH=str(absent))
        self.assertEqual((answer.returncode, answer.stderr), (0, ""))
        self.assertIn("WRITE/WRITE", answer.stdout)

    def test_places_that_cannot_be_written(self):
        self.assert_refused(self.run_lab("report", self.folder, self.data), "is a directory")
        self.assert_refused(
            self.run_lab("report", self.folder / "no" / "where.html", self.data), "where.html", "exists"
        )
        result = self.data / "one-to-one.json"
        before = result.read_bytes()
        self.assert_refused(self.run_lab("report", result, self.data), "one of the result files")
        self.assertEqual(result.read_bytes(), before)
        self.assert_refused(self.run_lab("report", "/dev/null", self.data), "not a regular file")
        self.assertTrue(pathlib.Path("/dev/null").is_char_device())

    def test_a_link_to_the_page_stays_a_link(self):
        link = self.folder / "latest.html"
        link.symlink_to(self.out)
        self.assertEqual(self.run_lab("report", link, self.data).returncode, 0)
        self.assertTrue(link.is_symlink())
        self.assertTrue(self.out.is_file())


if __name__ == "__main__":
    unittest.main()
