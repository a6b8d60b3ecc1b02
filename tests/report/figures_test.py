"""The plots as data: what is drawn, what the hover says, and that Plotly knows every property that is used."""

import unittest

import support
from support import synthetic
from verbena_lab import figures

try:
    import plotly.graph_objects as plotly_objects
except ImportError:
    plotly_objects = None


def plots(rows):
    return {plot["id"]: plot for plot in figures.figures(support.one_view(rows))}


class Figures(unittest.TestCase):
    def test_a_full_sweep_gives_four_plots_with_every_protocol(self):
        found = plots(synthetic.full_sweep())
        self.assertEqual(list(found), ["latency", "bandwidth", "rate", "cpu"])
        for name in ("latency", "bandwidth", "rate"):
            for variant in found[name]["variants"]:
                self.assertEqual(
                    [trace["name"] for trace in variant["data"]],
                    ["WRITE/WRITE", "SEND/WRITE", "WRITE/SEND", "SEND/SEND", "READ"],
                )
        latency = found["latency"]["variants"][0]
        self.assertEqual(latency["label"], "1 pending")
        self.assertEqual((latency["layout"]["xaxis"]["type"], latency["layout"]["yaxis"]["type"]), ("log", "log"))
        self.assertEqual(latency["data"][0]["x"], synthetic.SIZES)
        self.assertEqual(found["bandwidth"]["variants"][0]["label"], "64 pending")
        self.assertEqual(found["rate"]["variants"][0]["data"][0]["x"], synthetic.PENDING)

    def test_whiskers_reach_p99_and_the_hover_has_human_units(self):
        row = synthetic.row("read", 4096, 1, latency_ns={"p50": 1500, "p99": 2500, "p999": 9000})
        trace = plots([row])["latency"]["variants"][0]["data"][0]
        self.assertEqual(trace["y"], [1500])
        self.assertEqual(trace["error_y"]["array"], [1000])
        text = trace["customdata"][0].replace("\u00a0", " ")
        self.assertEqual(text, "<b>READ</b> · 4 KiB response<br>1.50 µs · p99 2.50 µs · p99.9 9.00 µs")

    def test_bandwidth_is_that_of_the_values_so_that_read_compares(self):
        rows = [synthetic.row(name, 4096, 1, rate_per_s=1000, **numbers) for name, numbers in (
            ("read", {"value_bandwidth_bytes_per_s": 4096e3, "total_bandwidth_bytes_per_s": 4096e3}),
            ("send/send", {"value_bandwidth_bytes_per_s": 4096e3, "total_bandwidth_bytes_per_s": 4160e3}),
        )]  # fmt: skip
        plot = plots(rows)["bandwidth"]
        self.assertEqual([trace["y"] for trace in plot["variants"][0]["data"]], [[4096e3], [4096e3]])
        self.assertIn("Value bandwidth", plot["title"])

    def test_series_differ_without_colour(self):
        rows = synthetic.full_sweep()
        looks = [
            (trace["marker"]["symbol"], trace["line"]["dash"])
            for trace in plots(rows)["latency"]["variants"][0]["data"]
        ]
        self.assertEqual(len({symbol for symbol, _ in looks}), 5)
        self.assertEqual(len({dash for _, dash in looks}), 5)

    def test_instructions_and_cycles_never_share_an_axis(self):
        rows = [
            synthetic.row("read", 64, 1, cpu={"requester": {"cycles_per_message": 5}}),
            synthetic.row("send/send", 64, 1, cpu={"requester": {"instructions_per_message": 7}}),
        ]
        titles = [v["layout"]["xaxis"]["title"]["text"] for v in plots(rows)["cpu"]["variants"]]
        self.assertEqual(titles, ["instructions per message", "cycles per message"])

    def test_no_cpu_cost_no_cpu_plot(self):
        self.assertNotIn("cpu", plots([synthetic.row("read", 64, 1, cpu=None)]))

    @unittest.skipUnless(plotly_objects, "this interpreter has no plotly to ask; the page test draws them all the same")
    def test_plotly_knows_every_property(self):
        for plot in plots(synthetic.full_sweep()).values():
            for variant in plot["variants"]:
                plotly_objects.Figure(data=variant["data"], layout=variant["layout"])


if __name__ == "__main__":
    unittest.main()
