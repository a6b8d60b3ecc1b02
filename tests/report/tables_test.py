"""The table of all results: formatted for people, exact as CSV."""

import csv
import io
import unittest

import support
from support import synthetic
from verbena_lab import page, tables


def table(*rows, **changes):
    return tables.results_table(support.load(synthetic.document(list(rows), **changes)).measurements)


def texts(found, title):
    index = [column["title"] for column in found["columns"]].index(title)
    return [row.cells[index].text.replace("\u00a0", " ") for row in found["rows"]]


def csv_rows(found):
    return list(csv.DictReader(io.StringIO(found["csv"])))


class Table(unittest.TestCase):
    def test_numbers_have_three_digits_and_units(self):
        row = synthetic.row("read", 64, 1, rate_per_s=1421318.587281193, value_bandwidth_bytes_per_s=90964389.586)
        row["latency_ns"] = {"p50": 703.57214, "p99": 1234.5678, "p999": 98765.4321}
        found = table(row)
        for title, text in (("Median", "704 ns"), ("p99", "1.23 µs"), ("p99.9", "98.8 µs"), ("Rate", "1.42 M/s"),
                            ("Value bandwidth", "91.0 MB/s"), ("Verified", "yes"), ("Errors", "0")):  # fmt: skip
            self.assertEqual(texts(found, title), [text])

    def test_no_cell_of_a_full_row_has_a_long_fraction(self):
        settings = {"requester_nodes": 3, "responder_nodes": 2, "active_share": 1 / 3, "think_ns": 1234.5, "inline_bytes": 220}
        further = {"queue_pairs": {"most_per_node": 7}, "empty_poll_share": 2 / 3, "resent_per_request": 1 / 300}
        further["mean"] = {"rate_per_s": 123456.789, "rate_deviation_per_s": 789.0123}
        found = table(synthetic.row("read", 64, 1, **settings, **further), synthetic.row("send/send", 365, 4))
        for row in found["rows"]:
            for cell in row.cells:
                self.assertNotRegex(cell.text, r"\.\d{3}", cell)
        self.assertEqual(texts(found, "Active"), ["33 %", ""])
        self.assertEqual(texts(found, "Requester nodes"), ["3", ""])
        self.assertEqual(texts(found, "Mean rate"), ["123 k/s", ""])
        self.assertEqual(texts(found, "Deviation"), ["789 /s", ""])

    def test_an_open_loop_shows_what_arrived_and_a_closed_one_does_not(self):
        opened = {"arrival_rate_per_s": 1500000, "arrivals": "even", "offered_rate_per_s": 1500123.4, "saturated": True}
        closed = {"arrival_rate_per_s": 0, "arrivals": "none"}
        found = table(synthetic.row("read", 64, 1, **opened), synthetic.row("read", 64, 1, **closed))
        self.assertEqual(texts(found, "Arrival rate"), ["1.50 M/s", ""])
        self.assertEqual(texts(found, "Arrivals"), ["even", ""])
        self.assertEqual(texts(found, "Offered rate"), ["1.50 M/s", ""])
        self.assertEqual(texts(found, "Saturated"), ["yes", ""])
        found = table(synthetic.row("read", 64, 1, **closed), synthetic.row("send/send", 64, 1))
        self.assertNotIn("Arrivals", [column["title"] for column in found["columns"]])
        self.assertNotIn("arrival", str(found["same"]))

    def test_what_all_rows_share_is_said_once(self):
        found = table(synthetic.row("read", 64, 1), synthetic.row("send/send", 64, 1))
        self.assertNotIn("Response", [column["title"] for column in found["columns"]])
        self.assertIn("response 64\u00a0B", found["same"])

    def test_each_unit_of_cpu_cost_has_a_column(self):
        found = table(
            synthetic.row("read", 64, 1, cpu={"requester": {"cycles_per_message": 1234.5}}),
            synthetic.row("send/send", 64, 1, cpu={"requester": {"instructions_per_message": 6.789}}),
        )
        self.assertEqual(texts(found, "Requester cycles"), ["1,234", ""])
        self.assertEqual(texts(found, "Requester instructions"), ["", "6.79"])

    def test_rows_with_errors_are_marked_and_may_lack_numbers(self):
        gone = {"rate_per_s": None, "value_bandwidth_bytes_per_s": None, "total_bandwidth_bytes_per_s": None}
        found = table(synthetic.row("read", 64, 1, errors=2, latency_ns={}, **gone), synthetic.row("read", 64, 4))
        self.assertEqual([row.failed for row in found["rows"]], [True, False])
        self.assertEqual(texts(found, "Rate")[0], "")
        self.assertEqual(csv_rows(found)[0]["rate_per_s"], "")


    def test_simulated_rows_have_their_band_or_none(self):
        found = table(
            support.banded(synthetic.row("read", 64, 1), 1000, 500),
            synthetic.row("read", 64, 4, device="sim:connectx3-fdr"),
            synthetic.row("read", 64, 4),
        )
        self.assertEqual(texts(found, "Over variants: rate"), ["band 1.00 M/s to 2.00 M/s", "no band measured", ""])
        self.assertEqual(texts(found, "Over variants: median"), ["band 500 ns to 1.00 µs", "no band measured", ""])
        with_band, without, _ = csv_rows(found)
        self.assertEqual((with_band["variants"], with_band["rate_band_least_per_s"]), ("2", "1000000.0"))
        self.assertEqual((with_band["p50_band_least_ns"], with_band["p50_band_most_ns"]), ("500.0", "1000.0"))
        self.assertEqual((without["variants"], without["rate_band_most_per_s"]), ("", ""))
        self.assertNotIn("", with_band)


class Csv(unittest.TestCase):
    def test_every_column_is_there_unrounded(self):
        rows = [synthetic.row("read", 64, depth, rate_per_s=1421318.587281193 * depth) for depth in (1, 4)]
        found = csv_rows(table(*rows))
        self.assertEqual([float(one["rate_per_s"]) for one in found], [row["rate_per_s"] for row in rows])
        self.assertEqual([float(one["p99_ns"]) for one in found], [row["latency_ns"]["p99"] for row in rows])
        for one in found:
            self.assertEqual((one["device"], one["response_bytes"], one["verified"]), ("soft0", "64", "yes"))
            self.assertEqual((one["machine"], one["modelled"]), ("synthetic-test-data", "no"))

    def test_foreign_text_keeps_its_cell_and_is_no_formula(self):
        name = 'a,"b"\nc'
        one, other = csv_rows(table(synthetic.row("read", 64, 1), synthetic.row("send/send", 64, 1, mark_layout="=1+1"), commit=name))
        self.assertEqual(one["commit"], name)
        self.assertEqual(other["mark_layout"], "'=1+1")

    def test_modelled_rows_say_so(self):
        modelled = synthetic.row("read", 64, 1, device="sim:connectx3-fdr")
        found = table(modelled, synthetic.row("read", 64, 1))
        self.assertEqual([one["modelled"] for one in csv_rows(found)], ["yes", "no"])
        self.assertEqual(texts(found, "Modelled"), ["yes", "no"])
        self.assertFalse(found["modelled"])
        text = page.render(support.load(synthetic.document([modelled])), "")
        self.assertIn("All 1 modelled results", text)
        self.assertIn("sim:connectx3-fdr is modelled, not measured", text)


if __name__ == "__main__":
    unittest.main()
