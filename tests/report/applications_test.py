"""The applications' rows, and the plots and tables that become of them."""

import unittest

import support
from support import synthetic
from verbena_lab import application_plots
from verbena_lab.errors import ReportError


def sections(*documents):
    return application_plots.application_sections(support.load(*documents).applications)


def section(application, rows=None):
    (found,) = sections(synthetic.document(synthetic.application_sweep(application) if rows is None else rows))
    return found


def titles(found):
    return [plot["title"] for plot in found["plots"]]


class Reading(unittest.TestCase):
    def test_rows_of_applications_are_apart_from_protocols(self):
        rows = [synthetic.application_row(name, 1) for name in synthetic.APPLICATIONS]
        raw = {"operation": "write", "errors": 0}
        loaded = support.load(synthetic.document([*rows, raw, synthetic.row("read", 64, 1)]))
        self.assertEqual([one.application.key for one in loaded.applications], list(synthetic.APPLICATIONS))
        self.assertEqual([one.protocol for one in loaded.measurements], ["read"])

    def test_the_rate_counts_what_an_operation_has(self):
        (log,) = support.load(synthetic.document([synthetic.application_row("log", 0, entries=4)])).applications
        self.assertAlmostEqual(log.rate_per_s, 4e6)
        self.assertAlmostEqual(log.rate_range.high * log.each, 4.4e6)

    def test_axes_are_whole_numbers_and_texts(self):
        (one,) = support.load(synthetic.document([synthetic.application_row("join", 3)])).applications
        self.assertEqual(one.axes["tuples"], 20000)
        self.assertEqual(one.axes["exchange"], "shuffle")
        for key in ("verified", "runs", "plan_number", "some_metric_per_operation", "topology", "requests_measured"):
            self.assertNotIn(key, one.axes)

    def test_wrong_rows_are_refused_with_their_place(self):
        for change in ({"latency_ns": {"p50": 1}}, {"rate_per_s": "fast"}, {"kinds": {"search": {"p50_ns": None}}}):
            with self.subTest(change), self.assertRaisesRegex(ReportError, "result 1"):
                support.load(synthetic.document([synthetic.application_row("hashtable", 0, **change)]))
        with self.assertRaisesRegex(ReportError, "'entries'"):
            support.load(synthetic.document([synthetic.application_row("log", 0, entries="all")]))
        for axis, value in (("value_bytes", 10**400), ("keys", -1)):
            with self.subTest(axis), self.assertRaisesRegex(ReportError, f"result 1: '{axis}' must be a whole number"):
                support.load(synthetic.document([synthetic.application_row("hashtable", 0, **{axis: value})]))

    def test_rows_may_lack_axes_that_others_have(self):
        rows = [synthetic.application_row("hashtable", 0, pending=depth, theta=theta) for depth in (1, 4) for theta in (8, 16)]
        for row in rows[:2]:
            del row["theta"]
        found = section("hashtable", [*rows, rows[0] | {"pending": 16}])
        labels = {variant["label"] for plot in found["plots"] for variant in plot["variants"]}
        self.assertIn("all", labels)

    def test_an_axis_of_texts_stays_one_where_those_of_texts_failed(self):
        rows = [synthetic.application_row("message", 0, size_bytes=size, inline_bytes=limit, channel="ring",
                                          errors=int(limit == "device"))
                for size in (8, 64) for limit in ("device", 0, 128)]  # fmt: skip
        found = section("message", rows)
        self.assertEqual([series.name for series in found["series"]], ["device", "0", "128"])
        self.assertTrue(found["plots"])

    def test_failed_rows_need_no_numbers(self):
        none = {"p50": None, "p99": None, "p999": None}
        failed = synthetic.application_row(
            "join", 0, errors=1, rate_per_s=None, value_bandwidth_bytes_per_s=None, latency_ns=none
        )
        found = section("join", [failed, synthetic.application_row("join", 1, tuples=5)])
        self.assertEqual([row["failed"] for row in found["table"]["rows"]], [True, False])
        self.assertEqual(found["plots"], [])


class Plots(unittest.TestCase):
    def test_texts_are_lines_and_numbers_axes(self):
        found = section("hashtable")
        self.assertEqual(
            titles(found),
            [
                "Hashtable: operations per second by pending operations",
                "Hashtable: latency of an operation by pending operations",
            ],
        )
        (variant,) = found["plots"][0]["variants"]
        self.assertEqual([trace["name"] for trace in variant["data"]], ["A", "C"])
        for trace in variant["data"]:
            self.assertEqual(trace["x"], [1, 4, 16])
        self.assertEqual([series.name for series in found["series"]], ["A", "C"])

    def test_the_other_numbers_are_choices(self):
        found = section("shuffle")
        self.assertEqual(len(found["plots"]), 4)
        self.assertEqual(
            [one["label"] for one in found["plots"][0]["variants"]], ["records of a WRITE 1", "records of a WRITE 4"]
        )
        self.assertEqual([one["label"] for one in found["plots"][2]["variants"]], ["nodes 2", "nodes 4"])

    def test_texts_alone_are_the_axis(self):
        found = section("join")
        self.assertEqual(titles(found), ["Join: tuples per second by method", "Join: latency of the join by method"])
        (variant,) = found["plots"][0]["variants"]
        self.assertEqual([trace["x"] for trace in variant["data"]], [["basic"], ["sgl"]])
        self.assertEqual(variant["layout"]["xaxis"]["type"], "category")

    def test_what_a_text_decides_is_no_axis(self):
        rows = [
            synthetic.application_row("hashtable", number, mix=mix, reads_percent=reads)
            for number, (mix, reads) in enumerate((("A", 50), ("B", 95), ("C", 100)))
        ]
        self.assertEqual(
            titles(section("hashtable", rows)),
            ["Hashtable: operations per second by mix", "Hashtable: latency of an operation by mix"],
        )

    def test_kinds_of_operations_have_latencies_of_their_own(self):
        kinds = {"search": {"p50_ns": 10, "p99_ns": 20, "p999_ns": 30}}
        rows = [synthetic.application_row("hashtable", one, pending=one + 1, kinds=kinds) for one in range(2)]
        rate, latency = section("hashtable", rows)["plots"]
        self.assertEqual([one["label"] for one in rate["variants"]], ["all"])
        self.assertEqual([one["label"] for one in latency["variants"]], ["all", "search"])
        self.assertEqual(latency["variants"][1]["data"][0]["y"], [10, 10])
        self.assertEqual(latency["variants"][1]["data"][0]["error_y"]["array"], [10, 10])

    def test_an_axis_from_zero_is_not_logarithmic(self):
        rows = [synthetic.application_row("hashtable", one, hot=one) for one in (0, 4)]
        layout = section("hashtable", rows)["plots"][0]["variants"][0]["layout"]
        self.assertNotIn("type", layout["xaxis"])
        self.assertEqual(layout["xaxis"]["tickvals"], [0, 4])

    def test_of_rows_at_one_place_the_middle_one_counts(self):
        rows = [synthetic.application_row("join", one, tuples=5 if one < 3 else 6) for one in range(4)]
        (trace,) = section("join", rows)["plots"][0]["variants"][0]["data"]
        self.assertEqual(trace["x"], [5, 6])
        self.assertAlmostEqual(trace["y"][0], 1e9 / 1100)

    def test_more_lines_than_colours_differ_in_marker(self):
        rows = [
            synthetic.application_row("join", place * 10 + one, tuples=place, method=f"method {one}")
            for one in range(10)
            for place in (1, 2)
        ]
        found = section("join", rows)["series"]
        self.assertEqual(len({(one.slot, one.marker) for one in found}), 10)

    def test_devices_and_commits_are_apart(self):
        other = [row | {"device": "sim:other"} for row in synthetic.application_sweep("log")]
        found = sections(synthetic.document(synthetic.application_sweep("log")), synthetic.document(other))
        self.assertEqual([one["title"] for one in found], ["Log on sim:other", "Log on soft0"])
        self.assertEqual(len({plot["id"] for one in found for plot in one["plots"]}), 4)


class Table(unittest.TestCase):
    def test_shows_what_differs_and_says_the_rest(self):
        table = section("log")["table"]
        self.assertEqual(
            [column["title"] for column in table["columns"]],
            ["entries of a batch", "entries", "bandwidth", "median", "p99", "p99.9"],
        )
        self.assertIn("entry size 64\u00a0B", table["same"])
        self.assertEqual(len(table["rows"]), 3)

    def test_simulated_rows_have_their_band_or_none(self):
        rows = [synthetic.application_row("log", one, entries=4, pending=one + 1, device="sim:x") for one in range(2)]
        rows[0] = support.banded(rows[0], 1000, 500) | {"device": "sim:x"}
        loaded = support.load(synthetic.document(rows)).applications
        self.assertNotIn("variants", loaded[0].axes)
        table = section("log", rows)["table"]
        self.assertEqual([one["title"] for one in table["columns"]][-2:], ["entries over variants", "median over variants"])
        cells = [[text.replace("\u00a0", " ") for text, _ in row["cells"]][-2:] for row in table["rows"]]
        # Four entries are an operation.
        self.assertEqual(cells[0], ["band 4.00 M/s to 8.00 M/s", "band 500 ns to 1.00 µs"])
        self.assertEqual(cells[1], ["no band measured"] * 2)
        self.assertNotIn("entries over variants", [one["title"] for one in section("log")["table"]["columns"]])

    def test_names_the_busiest_unit_of_simulated_nodes(self):
        usage = {"replica": {"nodes": 1, "atomics": {"mean": 1, "most": 0.5}, "cpu": {"mean": 0, "most": 0}}}
        rows = [synthetic.application_row("log", one, pending=one + 1, usage=usage) for one in range(2)]
        table = section("log", rows)["table"]
        self.assertEqual(table["columns"][-1]["title"], "busiest unit")
        self.assertEqual(table["rows"][0]["cells"][-1][0], "replica atomics 50\u00a0%")


if __name__ == "__main__":
    unittest.main()
