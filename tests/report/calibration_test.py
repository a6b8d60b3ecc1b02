"""The page about a calibration: what is predicted beside what is measured, what is explained, and what is refused."""

import json
import pathlib
import tempfile
import unittest

from support import calibration
from verbena_lab.errors import ReportError
from verbena_lab.page_file import write_page

HOSTILE = "</script><b>"


def spread(median, least=None, most=None):
    return {"median": median, "least": least or median, "most": most or median}


def prediction(setting, protocol, measured, predicted):
    return {"setting": setting, "protocol": protocol, "measured_per_s": measured, "predicted_per_s": predicted}


def data():
    return {
        "device": "soft0",
        "commit": "abc",
        "command": "verbena calibrate " + HOSTILE,
        "machine": {"cpu": "a processor", "cores": 2},
        "observations": [
            {"measured": "write, 8 B", "parameters": ["post_wqe"], "ns": spread(50, 45, 60), "simulated_ns": 50.5},
            {"measured": "send, 8 B", "parameters": ["post_send", "x"], "ns": spread(100), "simulated_ns": 120},
        ],
        "parameters": {
            "post_wqe": {"value": 20.5, "unit": "ns", "evidence": "calibrated", "source": HOSTILE},
            "cores": {"value": 2, "unit": "", "evidence": "assumed", "source": ""},
        },
        "predictions": [
            prediction("one-to-one, pending 4", "write/write", spread(4e6, 3e6, 5e6), 4.2e6),
            prediction("one-to-one, pending 4", "read", spread(8e6), 4e6),
            prediction("M:M, nodes 2", "read", spread(1e6), 1e6),
        ],
        "summary": {"points": 3, "median_error": 0.05, "pairs": 1, "pairs_in_order": 0},
    }


def plots_of(page):
    text = page.split('id="verbena-plots">', 1)[1].split("</script>", 1)[0]
    return json.loads(text)


class Calibration(unittest.TestCase):
    def test_each_prediction_is_beside_its_measurement(self):
        points, settings = plots_of(calibration.render(data(), "/* plotly.js v */"))
        (every,) = points["variants"]
        write, read = every["data"]
        self.assertEqual((write["x"], write["y"]), ([4e6], [4.2e6]))
        self.assertEqual((write["error_x"]["arrayminus"], write["error_x"]["array"]), ([1e6], [1e6]))
        self.assertEqual((read["x"], read["y"]), ([8e6, 1e6], [4e6, 1e6]))
        self.assertIn("M:M, nodes 2", read["customdata"][1])
        # The line of exact predictions crosses all of them.
        (line,) = every["layout"]["shapes"]
        self.assertEqual((line["x0"], line["x1"]), (line["y0"], line["y1"]))
        self.assertTrue(line["x0"] < 1e6 and line["x1"] > 8e6)
        self.assertEqual([one["label"] for one in settings["variants"]], ["one-to-one, pending 4", "M:M, nodes 2"])
        measured, predicted = settings["variants"][0]["data"]
        self.assertEqual((measured["name"], measured["x"]), ("measured", [4e6, 8e6]))
        self.assertEqual((predicted["name"], predicted["x"]), ("predicted", [4.2e6, 4e6]))
        self.assertEqual(measured["y"], predicted["y"])

    def test_the_worst_prediction_comes_first(self):
        page = calibration.render(data(), "").replace("\u00a0", " ")
        table = page.split('aria-label="All predictions"', 1)[1].split("</table>", 1)[0]
        self.assertLess(table.index("-50 %"), table.index("+5 %"))
        self.assertLess(table.index("+5 %"), table.index("+0 %"))
        self.assertIn("half are predicted within 5.0 %", page)
        self.assertIn("0 are predicted in the right order", page)
        self.assertNotIn(HOSTILE, page)

    def test_what_is_not_explained_is_told(self):
        page = calibration.render(data(), "").replace("\u00a0", " ")
        table = page.split('aria-label="Measurements"', 1)[1].split("</table>", 1)[0]
        explained, other = table.split("<tr>")[2:]
        self.assertIn("+1 %", explained)
        self.assertIn(">yes<", explained)
        self.assertIn("post_send, x", other)
        self.assertIn("+20 %", other)
        self.assertIn(">no<", other)
        self.assertIn("calibrated", page)

    def test_without_a_check_nothing_is_predicted(self):
        unchecked = data()
        del unchecked["predictions"], unchecked["summary"]
        page = calibration.render(unchecked, "")
        self.assertEqual(plots_of(page), [])
        self.assertIn("--check also measures", page)
        self.assertIn("post_wqe", page)

    def test_protocols_that_do_not_differ_have_no_order(self):
        level = data()
        level["summary"] |= {"pairs": 0}
        self.assertIn("No two protocols differed", calibration.render(level, ""))
        level["summary"] |= {"has_spread": False}
        self.assertIn("takes --rounds 2 at least", calibration.render(level, ""))

    def test_what_is_no_data_is_refused_and_the_page_stays(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "page.html"
            write_page(out, "before")
            still = data()
            still["predictions"][0]["measured_per_s"] = spread(0)
            for text in ("{", "[]", "{}", json.dumps(still)):
                bad = pathlib.Path(folder) / "data.json"
                bad.write_text(text, encoding="utf-8")
                with self.assertRaisesRegex(ReportError, "is no result of verbena calibrate"):
                    calibration.write_calibration(str(out), str(bad))
                self.assertEqual(out.read_text(encoding="utf-8"), "before")


if __name__ == "__main__":
    unittest.main()
