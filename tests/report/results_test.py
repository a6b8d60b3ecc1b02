"""Reading result files: what fits, what is refused, and that a refusal names file, place and remedy."""

import json
import os
import pathlib
import tempfile
import unittest

import support
from support import synthetic
from verbena_lab import results, views
from verbena_lab.errors import ReportError


class Reading(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def file(self, name, text):
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def refused(self, *paths):
        with self.assertRaises(ReportError) as caught:
            results.load([str(path) for path in paths])
        message = str(caught.exception)
        self.assertNotIn("\n", message)
        return message

    def test_a_directory_gives_its_json_files_and_the_peers(self):
        synthetic.write_full_set(self.folder)
        self.file("notes.txt", "not looked at")
        loaded = results.load([self.folder])
        self.assertEqual(len(loaded.measurements), 180)
        self.assertEqual([peer.holds for peer in loaded.peers], [True, False, True])
        self.assertEqual(len(loaded.sources), 1)

    def test_a_file_given_twice_counts_once(self):
        synthetic.write_full_set(self.folder)
        twice = results.load([self.folder, self.folder / "one-to-one.json"])
        self.assertEqual(len(twice.measurements), 180)

    def test_raw_verbs_are_left_out(self):
        raw = {"operation": "write", "size_bytes": 64, "errors": 0}
        mixed = self.file("mixed.json", json.dumps(synthetic.document([synthetic.row("read", 64, 1), raw])))
        self.assertEqual([one.protocol for one in results.load([mixed]).measurements], ["read"])
        alone = self.file("verbs.json", json.dumps(synthetic.document([raw])))
        self.assertIn("no measurements of protocols", self.refused(alone))

    def test_half_written_files_are_told_from_foreign_ones(self):
        whole = json.dumps(synthetic.document([synthetic.row("read", 64, 1)]), indent=1)
        for share in (0.1, 0.35, 0.6, 0.9, 0.99):
            message = self.refused(self.file("half.json", whole[: int(len(whole) * share)]))
            self.assertIn("half.json", message)
            self.assertIn("half-written", message, f"cut at {share}")
        self.assertIn("not JSON", self.refused(self.file("foreign.json", "<html>not json</html> and more")))

    def test_refusals_name_the_file_and_the_cause(self):
        for name, text, cause in (
            ("empty.json", "", "the file is empty"),
            ("binary.json", b"\xff\xfe\x00\x01", "not a text file"),
            ("number.json", "17", "not a result file"),
            ("other.json", '{"name": "package", "version": 1}', "'results'"),
            ("deep.json", "[" * 100_000 + "]" * 100_000, "nested too deeply"),
            ("nan.json", '{"results": NaN}', "NaN"),
            ("rows.json", json.dumps(synthetic.document([1])), "result 1: not an object"),
            ("machine.json", json.dumps(synthetic.document([], machine=3)), "'machine'"),
            ("peers.json", '[{"ratio": 1}]', "entry 1"),
        ):
            message = self.refused(self.file(name, text))
            self.assertIn(name, message)
            self.assertIn(cause, message)

    def test_every_key_of_the_contract_is_required(self):
        for key in synthetic.row("read", 64, 1):
            if key in ("device", "runs", "spread", "cpu", "value_bandwidth_bytes_per_s"):
                continue  # the file's device stands in, value bandwidth is rate times response; the others are optional
            row = synthetic.row("read", 64, 1, **{key: None})
            message = self.refused(self.file("missing.json", json.dumps(synthetic.document([row]))))
            self.assertIn(f"result 1: '{key}'", message)
            self.assertIn("missing", message)

    def test_values_out_of_range_are_refused(self):
        for changes in (
            {"pending": 0}, {"pending": True}, {"pending": 10**400}, {"request_bytes": -1}, {"rate_per_s": -1.0},
            {"rate_per_s": "fast"}, {"rate_per_s": 1e300}, {"verified": "yes"}, {"errors": -1}, {"errors": None},
            {"latency_ns": {"p50": 1}}, {"latency_ns": {"p50": 1, "p99": 10**400, "p999": 1}}, {"protocol": 7},
        ):  # fmt: skip
            row = synthetic.row("read", 64, 1, **changes)
            message = self.refused(self.file("range.json", json.dumps(synthetic.document([row]))))
            self.assertIn(next(iter(changes)), message)

    def test_a_range_is_that_of_several_runs(self):
        def ranges(**changes):
            row = synthetic.row("read", 64, 1) | changes
            row = {key: value for key, value in row.items() if value is not None}
            one = support.load(synthetic.document([row])).measurements[0]
            return one.rate_range is not None, one.p50_range is not None

        apart = {"rate_min": 1, "rate_max": 2, "p50_min_ns": 1, "p50_max_ns": 2}
        same = {"rate_min": 1, "rate_max": 1, "p50_min_ns": 1, "p50_max_ns": 1}
        self.assertEqual(ranges(runs=2, spread=same), (True, True))
        self.assertEqual(ranges(runs=1, spread=same), (False, False))
        self.assertEqual(ranges(runs=1, spread=apart), (False, False))
        # Of those that do not count them, what differs is of several.
        self.assertEqual(ranges(runs=None, spread=apart), (True, True))
        self.assertEqual(ranges(runs=None, spread=same), (False, False))

    def test_a_failed_run_may_have_no_numbers(self):
        row = synthetic.row("read", 64, 1, errors=2, verified=False, rate_per_s=None, value_bandwidth_bytes_per_s=None, total_bandwidth_bytes_per_s=None)
        row["latency_ns"] = {"p50": None}
        loaded = support.load(synthetic.document([row]))
        self.assertIsNone(loaded.measurements[0].p50_ns)

    def test_value_and_total_bandwidth_are_two_numbers_in_older_files_too(self):
        old = {"value_bandwidth_bytes_per_s": None, "total_bandwidth_bytes_per_s": None}
        rows = [
            synthetic.row("send/send", 100, 1, rate_per_s=10, bandwidth_bytes_per_s=1640, **old),
            synthetic.row("read", 100, 1, rate_per_s=10, value_bandwidth_bytes_per_s=1000, total_bandwidth_bytes_per_s=1000),
        ]
        found = support.load(synthetic.document(rows)).measurements
        self.assertEqual([one.value_bandwidth_bytes_per_s for one in found], [1000, 1000])
        self.assertEqual([one.total_bandwidth_bytes_per_s for one in found], [1640, 1000])

    def test_the_share_of_empty_polls_is_found_in_older_files_too(self):
        rows = [synthetic.row("send/send", 64, 1, empty_look_share=0.5), synthetic.row("read", 64, 1, empty_poll_share=0.25)]
        found = support.load(synthetic.document(rows)).measurements
        self.assertEqual([one.empty_poll_share for one in found], [0.5, 0.25])

    def test_numbers_beyond_any_measurement_are_refused(self):
        for rate in (1e-320, 1e19, -1):
            with self.assertRaisesRegex(ReportError, "result 1: 'rate_per_s' must be a number"):
                support.load(synthetic.document([synthetic.row("read", 64, 1, rate_per_s=rate)]))
        self.assertTrue(views.series_of(support.one_view([synthetic.row("\ud800", 64, 1)])))

    def test_bands_are_read_with_what_each_variant_had(self):
        row = support.banded(synthetic.row("read", 64, 1), 1000, 500, 800)
        one, other = support.load(synthetic.document([row, synthetic.row("read", 64, 4)])).measurements
        self.assertEqual((one.bands.variants, one.bands.rate.low, one.bands.rate.high), (3, 1e6, 2e6))
        self.assertEqual((one.bands.p50.low, one.bands.p50.high), (500, 1000))
        self.assertEqual(one.bands.each, ((1e6, 1000), (2e6, 500), (1.25e6, 800)))
        self.assertIsNone(other.bands)
        # Two runs of a variant count by their median.
        row["run_results"].append({"variant": 1, "rate_per_s": 1e6, "p50_ns": 700})
        self.assertEqual(support.load(synthetic.document([row])).measurements[0].bands.each[1], (1.5e6, 600))
        for runs in ([], [{"rate_per_s": 1, "p50_ns": 1}], row["run_results"][:2], 3):
            few = support.load(synthetic.document([row | {"run_results": runs}])).measurements[0]
            self.assertEqual(few.bands.each, ())
        many = support.load(synthetic.document([row | {"variants": 1 << 50}])).measurements[0]
        self.assertEqual(many.bands.each, ())

    def test_wrong_bands_are_refused(self):
        row = support.banded(synthetic.row("read", 64, 1), 1000, 500)
        for key, value in (("variants", 1), ("variants", "2"), ("rate_band", [2, 1]), ("rate_band", [1]),
                           ("p50_band", None), ("p50_band", {"least": 1}), ("p50_band", [1, "2"])):  # fmt: skip
            with self.assertRaisesRegex(ReportError, f"result 1: '{key}' must be"):
                support.load(synthetic.document([row | {key: value}]))

    def test_a_bad_file_among_good_ones_is_an_error(self):
        synthetic.write_full_set(self.folder)
        self.file("bad.json", "{")
        self.assertIn("bad.json", self.refused(self.folder))

    def test_no_files_and_no_measurements(self):
        self.assertIn("no such file", self.refused(self.folder / "absent.json"))
        self.assertIn("no result file", self.refused(self.folder))
        peers = self.file("bench-peers.json", json.dumps(synthetic.PEERS))
        self.assertIn("no measurements", self.refused(peers))
        os.mkfifo(self.folder / "pipe.json")
        self.assertIn("not a regular file", self.refused(self.folder / "pipe.json"))

    def test_a_file_beyond_the_limit_is_not_read(self):
        path = self.folder / "huge.json"
        with open(path, "wb") as file:
            file.truncate(results.MAX_FILE_BYTES + 1)
        self.assertIn("67,108,864", self.refused(path))

    def test_protocol_names_are_recognised_however_they_are_written(self):
        rows = [synthetic.row(name, 64, 1) for name in ("WRITE/WRITE", "write-write", "Write_Write", "write/write")]
        view = support.one_view(rows)
        self.assertEqual(len(views.series_of(view)), 1)


class Views(unittest.TestCase):
    def test_what_differs_in_device_machine_or_commit_is_never_compared(self):
        rows = [synthetic.row("read", 64, 1)]
        loaded = support.load(
            synthetic.document(rows),
            synthetic.document([synthetic.row("read", 64, 1, device="mlx5_0")], device="mlx5_0"),
            synthetic.document(rows, commit="1" * 40),
            synthetic.document(rows, machine="another machine"),
        )
        labels = [view.label for view in views.make_views(loaded.measurements)]
        self.assertEqual(len(set(labels)), 4, labels)
        self.assertTrue(all(label.startswith(("soft0", "mlx5_0")) for label in labels))

    def test_builds_whose_files_differ_from_their_commit_are_told_from_the_others(self):
        rows = [synthetic.row("read", 64, 1)]
        loaded = support.load(*(synthetic.document(rows, commit="1" * 12 + end) for end in ("", "-dirty")))
        labels = [view.label for view in views.make_views(loaded.measurements)]
        self.assertEqual(labels, ["soft0 · commit 111111111111", "soft0 · commit 111111111111-dirty"])

    def test_changing_machine_facts_do_not_split_one_host(self):
        documents = [
            synthetic.document([synthetic.row("read", 64, depth)], machine={"hostname": "a", "load": depth})
            for depth in (1, 2)
        ]
        self.assertEqual(len(views.make_views(support.load(*documents).measurements)), 1)

    def test_repeats_merge_into_the_median_and_the_whole_spread(self):
        rows = [synthetic.row("read", 64, 1, rate_per_s=rate, spread=None) for rate in (90.0, 100.0, 140.0)]
        view = support.one_view(rows)
        self.assertEqual(view.merged, 1)
        self.assertEqual(len(view.valid), 1)
        self.assertEqual(view.valid[0].rate_per_s, 100)
        self.assertEqual((view.valid[0].rate_range.low, view.valid[0].rate_range.high), (90, 140))
        self.assertEqual(view.valid[0].runs, 15)

    def test_bands_merge_where_all_have_one(self):
        one = support.banded(synthetic.row("read", 64, 1), 1000, 500)
        other = support.banded(synthetic.row("read", 64, 1), 900, 1100)
        bands = support.one_view([one, other]).valid[0].bands
        self.assertEqual((bands.variants, bands.p50.low, bands.p50.high, bands.each), (2, 500, 1100, ()))
        bare = synthetic.row("read", 64, 1, device="sim:connectx3-fdr")
        self.assertIsNone(support.one_view([one, bare]).valid[0].bands)

    def test_choices_of_the_design_are_series_named_by_what_differs(self):
        rows = [
            synthetic.row("send/send", 64, 1, model=model, receive_queues=queues, wait="poll")
            for model in ("private", "dispatcher")
            for queues in ("shared", "per-connection")
        ]
        rows.append(synthetic.row("write/write", 64, 1, model="private", receive_queues="shared", wait="poll"))
        names = [series.name for series in views.series_of(support.one_view(rows))]
        self.assertEqual(names[0], "WRITE/WRITE")
        self.assertEqual(len(set(names)), 5)
        self.assertIn("SEND/SEND · dispatcher · per-connection receives", names)

    def test_mark_layouts_of_one_protocol_are_series_of_their_own(self):
        rows = [synthetic.row("write/write", 64, 1, mark_layout=layout) for layout in ("last-bit", "length-markers")]
        names = [series.name for series in views.series_of(support.one_view(rows))]
        self.assertEqual(names, ["WRITE/WRITE · last-bit", "WRITE/WRITE · length-markers"])


if __name__ == "__main__":
    unittest.main()
