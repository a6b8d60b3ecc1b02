"""The page about a reproduction: what is drawn, what is listed, and what is refused."""

import json
import pathlib
import tempfile
import unittest

from support import reproduction
from verbena_lab.errors import ReportError
from verbena_lab.page_file import write_page

HOSTILE = "</script><b>"


def data():
    def verdict(identifier, outcome, **further):
        return {
            "id": identifier,
            "paper": "msgproto",
            "figure": "Fig. 10a",
            "stated_text": "43 Gbps",
            "simulated_text": "42",
            "verdict": outcome,
            "reason": HOSTILE,
        } | further

    stated = {"claim": "msgproto.a", "protocol": "read", "variant": "pending 4", "x": 365, "low": 40, "high": 44}
    return {
        "devices": ["sim:connectx3-fdr"],
        "commit": "abc",
        "papers": [{"paper": "msgproto", "summary": "msgproto: 1 checked"}],
        "verdicts": [verdict("msgproto.a", "pass", error_percent=-2.3), verdict("msgproto.b", "unchecked")],
        "figures": [
            {
                "experiment": "msgproto-fig11",
                "paper": "msgproto",
                "topology": "M:1",
                "x": "response",
                "metric": "value-bandwidth",
                "unit": "Gbps",
                "lines": [
                    {"protocol": "read", "variant": "pending 128", "x": [365, 4096], "y": [35, 50]},
                    {"protocol": "read", "variant": "pending 4", "x": [365, 4096], "y": [42, 52]},
                ],
                "stated": [stated | {"text": "40..44 Gbps", "verdict": "fail"}],
            }
        ],
    }


def plots_of(page):
    text = page.split('id="verbena-plots">', 1)[1].split("</script>", 1)[0]
    return json.loads(text)


class Reproduction(unittest.TestCase):
    def test_lines_and_stated_points_are_drawn_by_variant(self):
        (plot,) = plots_of(reproduction.render(data(), "/* plotly.js v */"))
        self.assertEqual([one["label"] for one in plot["variants"]], ["pending 4", "pending 128"])
        simulated, stated = plot["variants"][0]["data"]
        self.assertEqual((simulated["x"], simulated["y"]), ([365, 4096], [42, 52]))
        self.assertEqual((stated["x"], stated["y"], stated["mode"]), ([365], [42], "markers"))
        self.assertEqual(stated["error_y"]["array"], [2])
        self.assertEqual(stated["marker"]["symbol"], "star-open")
        self.assertEqual(stated["name"], simulated["name"])  # the legend hides both
        self.assertIn("msgproto.a (fail)", stated["customdata"][0])
        self.assertEqual(len(plot["variants"][1]["data"]), 1)

    def test_every_claim_is_listed(self):
        page = reproduction.render(data(), "")
        for part in ("msgproto.a", "msgproto.b", "unchecked", "-2 %", "msgproto: 1 checked", "sim:connectx3-fdr"):
            self.assertIn(part, page)
        self.assertNotIn(HOSTILE, page)

    def test_simulated_and_measured_devices_are_told_apart(self):
        counts = {"documented": 1, "calibrated": 1, "assumed": 2}
        models = {"sim:connectx3-fdr": {"title": "ConnectX-3", "parameters": counts}}
        page = reproduction.render(data() | {"models": models}, "").replace("\u00a0", " ")
        self.assertIn("simulated on sim:connectx3-fdr", page)
        self.assertIn("modelled, not measured: of the 4 parameters", page)
        self.assertIn("2 assumed (50 %)", page)
        page = reproduction.render(data() | {"devices": ["soft0"]}, "")
        self.assertIn("measured on soft0", page)
        self.assertIn('<th scope="col">Measured</th>', page)
        self.assertNotIn("modelled", page)
        self.assertNotIn("imulated", page)

    def test_what_holds_by_luck_is_told(self):
        varied = data()
        varied["verdicts"][0] |= {"variants": 5, "variants_held": 2, "holds": "by luck"}
        page = reproduction.render(varied, "")
        self.assertIn('<th scope="col">Holds over variants</th>', page)
        self.assertIn("<td>by luck: 2 of 5</td>", page)
        self.assertNotIn("band measured", page)
        page = reproduction.render(data(), "")
        self.assertNotIn("Holds over variants", page)
        self.assertIn("No band measured: --variants 5", page)
        self.assertNotIn("band measured", reproduction.render(data() | {"devices": ["soft0"]}, ""))

    def test_errors_of_shares_are_in_points(self):
        shares = data()
        shares["verdicts"][0].pop("error_percent")
        shares["verdicts"][0]["error_points"] = 15.2
        self.assertIn("+15.2 points", reproduction.render(shares, ""))

    def test_wide_ranges_are_logarithmic(self):
        wide = data()
        wide["figures"][0]["lines"][1]["y"] = [1, 5000]
        (plot,) = plots_of(reproduction.render(wide, ""))
        self.assertEqual(plot["variants"][0]["layout"]["yaxis"]["type"], "log")
        self.assertNotIn("type", plot["variants"][1]["layout"]["yaxis"])

    def test_what_is_no_data_is_refused_and_the_page_stays(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "page.html"
            write_page(out, "before")
            for text in ("{", "[]", "{}"):
                bad = pathlib.Path(folder) / "data.json"
                bad.write_text(text, encoding="utf-8")
                with self.assertRaisesRegex(ReportError, "data.json"):
                    reproduction.write_reproduction(out, bad)
            self.assertEqual(out.read_text(encoding="utf-8"), "before")


if __name__ == "__main__":
    unittest.main()
