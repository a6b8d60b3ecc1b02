"""The page in a real browser: everything draws, nothing complains, nothing is fetched, nothing overflows."""

import csv
import json
import pathlib
import sys
import tempfile
import unittest

from browser import Browser, find_chromium
from calibration_test import data as calibration_data
from support import calibration, results, synthetic
from verbena_lab import page as lab_page

SKIPPED = 77  # ctest shows such a test as skipped, not as passed
if not find_chromium():
    print("skipped: no Chromium: install the package chromium, or name a browser in VERBENA_CHROMIUM", file=sys.stderr)
    sys.exit(SKIPPED)

PHONE, DESKTOP = (390, 844), (1280, 900)
HOSTILE = "</script><img src=x onerror=\"document.title='broken'\"><b>&amp;"

# Per plot: is there an SVG of some size, and how many traces with at least one drawn mark has it?
DRAWN = """[...document.querySelectorAll('.chart')].map(plot => {
  const svg = plot.querySelector('svg.main-svg');
  const box = svg ? svg.getBoundingClientRect() : {width: 0, height: 0};
  const traces = [...plot.querySelectorAll('.trace')].filter(trace => trace.querySelector('path'));
  return {id: plot.id, width: box.width, height: box.height, traces: traces.length,
          shown: plot.clientWidth > 0, fits: box.width <= plot.clientWidth + 1};
})"""
OVERFLOW = "[document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]"


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name)
        browser = Browser()
        cls.browser = browser.__enter__()
        cls.addClassCleanup(browser.__exit__, None, None, None)

    def report(self, name, *documents):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        paths = [synthetic.write(folder / f"{index}.json", one) for index, one in enumerate(documents)]
        out = folder / "report.html"
        lab_page.write_report(out, paths)
        return out.as_uri()

    def full_set(self):
        results = synthetic.full_sweep()
        results[40].update(errors=3, verified=False)
        return self.report("full", synthetic.document(results), synthetic.PEERS)

    def opened(self, url, size, **options):
        page = self.browser.open(url, *size, **options)
        self.addCleanup(page.close)
        page.settle()
        return page

    def assert_sound(self, page, plots):
        drawn = [plot for plot in page.evaluate(DRAWN) if plot["shown"]]
        self.assertEqual(len(drawn), plots, drawn)
        for plot in drawn:
            self.assertGreater(plot["width"], 200, plot)
            self.assertGreater(plot["height"], 200, plot)
            self.assertGreater(plot["traces"], 0, plot)
            self.assertTrue(plot["fits"], plot)
        document, body, inner = page.evaluate(OVERFLOW)
        self.assertLessEqual(document, inner)
        self.assertLessEqual(body, inner)
        self.assertEqual(page.complaints(), [])
        self.assertEqual(page.requested_urls(), [])

    def test_draws_on_phone_and_desktop_in_both_themes(self):
        url = self.full_set()
        for size, touch in ((PHONE, True), (DESKTOP, False)):
            for dark in (False, True):
                with self.subTest(size=size, dark=dark):
                    page = self.opened(url, size, touch=touch, dark=dark)
                    self.assert_sound(page, plots=4)
                    counts = {plot["id"]: plot["traces"] for plot in page.evaluate(DRAWN)}
                    self.assertEqual(counts, {"v0-latency": 5, "v0-bandwidth": 5, "v0-rate": 5, "v0-cpu": 2})

    def test_calibrations_draw_on_phone_and_desktop(self):
        out, found = self.folder / "calibration.html", self.folder / "calibration.json"
        found.write_text(json.dumps(calibration_data()), encoding="utf-8")
        calibration.write_calibration(out, found)
        for size, touch in ((PHONE, True), (DESKTOP, False)):
            with self.subTest(size=size):
                page = self.opened(out.as_uri(), size, touch=touch)
                self.assert_sound(page, plots=2)
                page.evaluate("document.querySelector('.legend button').click()")
                page.settle()
                counts = {plot["id"]: plot["traces"] for plot in page.evaluate(DRAWN)}
                self.assertEqual(counts, {"p-all": 1, "p-settings": 2})

    def test_follows_width_and_theme_while_open(self):
        page = self.opened(self.full_set(), DESKTOP)
        wide = page.evaluate(DRAWN)[0]["width"]
        light = page.evaluate("document.querySelector('#v0-rate .scatterlayer path').style.stroke")
        page.resize(*PHONE)
        page.set_dark(True)
        page.settle()
        self.assert_sound(page, plots=4)
        self.assertLess(page.evaluate(DRAWN)[0]["width"], wide)
        self.assertNotEqual(page.evaluate("document.querySelector('#v0-rate .scatterlayer path').style.stroke"), light)

    def test_choices_redraw(self):
        page = self.opened(self.full_set(), DESKTOP)
        values = "document.getElementById('v0-latency').data[0].y.join()"
        before = page.evaluate(values)
        page.evaluate(
            "(() => { const s = document.querySelector('select[data-for=v0-latency]');"
            " s.value = '1'; s.dispatchEvent(new Event('change')); })()"
        )
        page.settle()
        self.assertNotEqual(page.evaluate(values), before)
        page.evaluate("document.querySelector('.legend button').click()")
        page.settle()
        counts = {plot["id"]: plot["traces"] for plot in page.evaluate(DRAWN)}
        self.assertEqual(counts["v0-latency"], 4)
        self.assertEqual(counts["v0-rate"], 4)
        self.assert_sound(page, plots=4)

    def test_applications_have_plots_and_tables_without_protocols_too(self):
        rows = [row for application in synthetic.APPLICATIONS for row in synthetic.application_sweep(application)]
        for name, documents, of_protocols in (
            ("applications", [synthetic.document(rows)], 0),
            ("both", [synthetic.document(rows), synthetic.document(synthetic.full_sweep())], 4),
        ):
            for size, touch in ((PHONE, True), (DESKTOP, False)):
                with self.subTest(name, size=size):
                    page = self.opened(self.report(name, *documents), size, touch=touch)
                    # Of pending; of entries; of the batch and of nodes; of the method; of messages: rate and latency each.
                    self.assert_sound(page, plots=of_protocols + 2 * (1 + 1 + 2 + 1 + 1))
                    headings = page.evaluate("[...document.querySelectorAll('.application h2')].map(h => h.textContent)")
                    self.assertEqual(headings, ["Hashtable", "Log", "Shuffle", "Join", "Messages"])
                    rows_shown = page.evaluate("document.querySelectorAll('.application tbody tr').length")
                    self.assertEqual(rows_shown, len(rows))

    def test_a_point_tells_its_numbers(self):
        page = self.opened(self.full_set(), DESKTOP)
        page.evaluate("document.getElementById('v0-latency').scrollIntoView({block: 'center'})")
        x, y = page.evaluate(
            "(() => { const box = document.querySelector('#v0-latency .point').getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        page.mouse(x - 3, y - 3)
        page.mouse(x, y)
        for _ in range(40):
            page.settle()
            text = page.evaluate("document.querySelector('#v0-latency .hoverlayer')?.textContent ?? ''")
            if text:
                break
        self.assertIn("64\u00a0B response", text)
        self.assertRegex(text, r"\d\u00a0ns · p99 \d")

    def test_the_table_sorts_by_value_whatever_the_unit(self):
        rates = [1421318.587281193, 950_000, 12, 2.5e9, None]
        rows = [synthetic.row(f"protocol {index}", 64, 1, rate_per_s=rate) for index, rate in enumerate(rates[:-1])]
        rows.append(synthetic.row("failed", 64, 1, errors=1, rate_per_s=None))
        for row, limit in zip(rows, (64, "device", 512, 0, 8)):
            row["inline_bytes"] = limit
        page = self.opened(self.report("sorting", synthetic.document(rows)), DESKTOP)
        press = "[...document.querySelectorAll('.sortable th')].find(h => h.textContent === 'NAME').firstChild.click()"
        texts = (
            "(() => { const at = [...document.querySelectorAll('.sortable thead th')].findIndex(h => h.textContent === 'NAME');"
            " return [...document.querySelectorAll('.sortable tbody tr')].map(r => r.cells[at].textContent); })()"
        )
        rising = ["12.0\u00a0/s", "950\u00a0k/s", "1.42\u00a0M/s", "2.50\u00a0G/s"]
        for name, order in (
            ("Rate", rising + [""]),
            ("Rate", rising[::-1] + [""]),  # what is not known stays last
            ("Inline", ["0\u00a0B", "8\u00a0B", "64\u00a0B", "512\u00a0B", "device"]),
            ("Protocol", ["FAILED", "PROTOCOL/0", "PROTOCOL/1", "PROTOCOL/2", "PROTOCOL/3"]),
        ):
            page.evaluate(press.replace("NAME", name))
            self.assertEqual(page.evaluate(texts.replace("NAME", name)), order)
        self.assertEqual(page.complaints(), [])

    def test_all_results_download_as_csv(self):
        rows = [synthetic.row("read", 64, 1, rate_per_s=1421318.587281193), synthetic.row(HOSTILE, 64, 1)]
        page = self.opened(self.report("csv", synthetic.document(rows)), DESKTOP)
        path = page.download("document.getElementById('download').click()", self.folder)
        self.assertEqual(pathlib.Path(path).name, "verbena-results.csv")
        with open(path, encoding="utf-8", newline="") as file:
            found = list(csv.DictReader(file))
        self.assertEqual([float(one["rate_per_s"]) for one in found], [row["rate_per_s"] for row in rows])
        self.assertEqual([one["protocol"] for one in found], ["read", results.protocol_key(HOSTILE)])
        self.assertEqual(page.complaints(), [])

    def test_the_table_sorts_by_number_and_filters(self):
        page = self.opened(self.full_set(), DESKTOP)
        column = "[...document.querySelectorAll('.sortable tbody tr')].map(r => Number(r.cells[INDEX].dataset.key))"
        index = page.evaluate(
            "[...document.querySelectorAll('.sortable thead th')].findIndex(h => h.textContent === 'Value bandwidth')"
        )
        press = f"document.querySelectorAll('.sortable thead th button')[{index}].click()"
        page.evaluate(press)
        values = page.evaluate(column.replace("INDEX", str(index)))
        self.assertEqual(len(values), 180)
        self.assertEqual(values, sorted(values))
        page.evaluate(press)
        self.assertEqual(page.evaluate(column.replace("INDEX", str(index))), sorted(values, reverse=True))
        page.evaluate(
            "(() => { const f = document.getElementById('filter'); f.value = 'read 1 MiB';"
            " f.dispatchEvent(new Event('input')); })()"
        )
        self.assertEqual(page.evaluate("document.getElementById('shown').textContent"), "4 of 180")
        self.assertEqual(page.complaints(), [])

    def test_several_setups_show_one_at_a_time(self):
        url = self.report(
            "views",
            synthetic.document(synthetic.full_sweep()),
            synthetic.document(synthetic.full_sweep(seed=2, device="mlx5_0"), device="mlx5_0", machine="another host"),
        )
        page = self.opened(url, PHONE, touch=True)
        self.assert_sound(page, plots=4)
        page.evaluate(
            "(() => { const v = document.getElementById('view'); v.value = '1'; v.dispatchEvent(new Event('change')); })()"
        )
        page.settle()
        self.assert_sound(page, plots=4)
        self.assertTrue(page.evaluate("document.querySelector('.view[data-view=\"0\"]').hidden"))

    def test_hostile_text_stays_text(self):
        rows = [synthetic.row(HOSTILE, 64, depth) for depth in (1, 16)]
        rows += [synthetic.row("write/write", 64, 1, mark_layout=HOSTILE), synthetic.row("write/write", 64, 1)]
        url = self.report(
            "hostile",
            synthetic.document(
                rows,
                machine={HOSTILE: {"deep": [HOSTILE] * 30}, "long": "x" * 500},
                commit=HOSTILE,
                command=HOSTILE * 20,
            ),
            [{"name": HOSTILE * 5, "ratio": HOSTILE, "target": {"a": HOSTILE}, "holds": True}],
        )
        for size in (PHONE, DESKTOP):
            page = self.opened(url, size)
            self.assert_sound(page, plots=4)
            self.assertNotEqual(page.evaluate("document.title"), "broken")
            self.assertEqual(page.evaluate("document.querySelectorAll('main img').length"), 0)

    def test_sparse_results(self):
        failed = synthetic.row("read", 64, 1, errors=1, rate_per_s=None, value_bandwidth_bytes_per_s=None, total_bandwidth_bytes_per_s=None, latency_ns={})
        for name, rows, plots in (
            ("one", [synthetic.row("read", 64, 1, cpu=None, spread=None)], 3),
            ("empty responses", [synthetic.row("send/send", 0, 1), synthetic.row("read", 64, 1)], 4),
            ("errors only", [failed], 0),
            ("odd names", [synthetic.row(f"protocol {index}", 365, 3) for index in range(12)], 4),
        ):
            with self.subTest(name):
                url = self.report(name.replace(" ", "-"), synthetic.document(rows))
                for size in (PHONE, DESKTOP):
                    self.assert_sound(self.opened(url, size), plots)

    def test_the_checks_themselves_notice_trouble(self):
        bad = self.folder / "bad.html"
        bad.write_text(
            "<div style='width:3000px'>wide</div><script src='http://127.0.0.1:9/x.js'></script>"
            "<script>console.error('said so'); throw new Error('thrown')</script>"
        )
        page = self.opened(bad.as_uri(), PHONE)
        found = json.dumps(page.complaints())
        self.assertIn("said so", found)
        self.assertIn("thrown", found)
        self.assertEqual(page.requested_urls(), ["http://127.0.0.1:9/x.js"])
        document, _, inner = page.evaluate(OVERFLOW)
        self.assertGreater(document, inner)


if __name__ == "__main__":
    unittest.main()
