"""Results of several shapes of a topology: never mixed up, and drawn against each other where one axis varies."""

import unittest

import support
from support import synthetic
from verbena_lab import page, scaling, views


def shaped(protocol, nodes, threads=1, **changes):
    """A row of M:1."""
    settings = {"responder_threads": threads, "responder_nodes": 1, "active_share": 1, "model": "private"}
    settings.update(changes)
    return synthetic.row(
        protocol, 365, 16, topology="M:1", nodes=nodes + 1, threads=threads, requester_nodes=nodes, **settings
    )


def views_of(rows):
    return views.make_views(support.load(synthetic.document(rows)).measurements)


class Shapes(unittest.TestCase):
    def test_what_differs_in_any_setting_is_never_merged_or_compared(self):
        rows = [
            shaped("read", 4),
            shaped("read", 4, responder_threads=2),
            shaped("read", 4, active_share=0.1),
            shaped("read", 4, huge_pages=1),
            shaped("read", 4, inline_bytes="device"),
            shaped("read", 4, post_batch=4),
        ]
        found = views_of(rows)
        self.assertEqual(len(found), 6)
        self.assertEqual(sum(view.merged for view in found), 0)
        labels = [view.label for view in found]
        self.assertEqual(len(set(labels)), 6)
        self.assertIn("2 responder threads", labels[1])
        self.assertIn("0.1 of all requests sent", labels[2])
        self.assertIn("huge pages 1", labels[3])
        self.assertIn("4 per doorbell", labels[5])

    def test_labels_tell_small_shares_apart(self):
        labels = [view.label for view in views_of([shaped("read", 4, active_share=share) for share in (0.001, 0.002)])]
        self.assertEqual(len(set(labels)), 2, labels)

    def test_files_without_these_keys_are_read_as_before(self):
        view = support.one_view([synthetic.row("read", 64, 1)])
        self.assertEqual(view.label, "soft0")
        self.assertEqual(scaling.scaling_plots([view]), [])


class Scaling(unittest.TestCase):
    def test_a_sweep_over_nodes_is_one_plot_with_a_line_per_protocol(self):
        plots = scaling.scaling_plots(views_of([shaped(p, n) for p in ("read", "write/write") for n in (1, 2, 4)]))
        self.assertEqual([plot["title"] for plot in plots], ["M:1: rate by requester nodes"])
        (variant,) = plots[0]["variants"]
        self.assertEqual([trace["name"] for trace in variant["data"]], ["WRITE/WRITE", "READ"])
        for trace in variant["data"]:
            self.assertEqual(trace["x"], [1, 2, 4])
        self.assertIn("16 pending", variant["label"])

    def test_an_axis_that_follows_another_has_no_plot_of_its_own(self):
        plots = scaling.scaling_plots(views_of([shaped("read", 2, threads) for threads in (1, 2, 4)]))
        self.assertEqual([plot["title"] for plot in plots], ["M:1: rate by requesting threads per node"])

    def test_rates_of_arrival_are_an_axis(self):
        rows = [shaped("read", 2, arrival_rate_per_s=rate, arrivals="poisson") for rate in (1000, 2000, 4000)]
        plots = scaling.scaling_plots(views_of(rows))
        self.assertEqual([plot["title"] for plot in plots], ["M:1: rate by requests that arrive per second"])

    def test_two_axes_give_a_plot_each_whose_variants_say_what_is_fixed(self):
        rows = [shaped("read", n, active_share=share) for n in (1, 2) for share in (0.1, 1)]
        plots = scaling.scaling_plots(views_of(rows))
        self.assertEqual(len(plots), 2)
        self.assertEqual([len(plot["variants"]) for plot in plots], [2, 2])
        labels = [variant["label"] for variant in plots[0]["variants"]]
        self.assertTrue(any("10" in label and "sent" in label for label in labels), labels)

    def test_other_settings_are_variants_not_points_of_a_line(self):
        rows = [shaped("read", n, post_batch=batch) for n in (1, 2) for batch in (1, 4)]
        (plot,) = scaling.scaling_plots(views_of(rows))
        labels = [variant["label"] for variant in plot["variants"]]
        self.assertEqual([label.rsplit(", ", 1)[1] for label in labels], ["1 per doorbell", "4 per doorbell"])
        self.assertEqual([variant["data"][0]["x"] for variant in plot["variants"]], [[1, 2], [1, 2]])

    def test_designs_that_are_ranked_are_lines_of_one_plot(self):
        rows = [shaped("read", n, model=model) for n in (1, 2) for model in ("private", "dispatcher")]
        (plot,) = scaling.scaling_plots(views_of(rows))
        (variant,) = plot["variants"]
        self.assertEqual([trace["name"] for trace in variant["data"]], ["READ · dispatcher", "READ · private"])

    def test_failed_points_are_left_out(self):
        rows = [shaped("read", 1), shaped("read", 2), shaped("read", 4, errors=1)]
        (plot,) = scaling.scaling_plots(views_of(rows))
        self.assertEqual(plot["variants"][0]["data"][0]["x"], [1, 2])

    def test_the_page_has_the_section_and_the_table_the_columns(self):
        rows = [shaped("read", n, empty_poll_share=0.25 * n, queue_pairs={"most_per_node": n}) for n in (1, 2)]
        rows[0]["mean"] = {"rate_per_s": 2000, "rate_deviation_per_s": 100}
        text = page.render(support.load(synthetic.document(rows)), "")
        self.assertIn("How it scales", text)
        self.assertIn("Empty polls", text)
        self.assertIn("Queue pairs per node", text)


if __name__ == "__main__":
    unittest.main()
