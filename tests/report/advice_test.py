"""The plain answer: who wins, by how much, and when the page must not claim a winner."""

import unittest

import support
from support import synthetic
from verbena_lab import advice, answer, figures, page, topologies, views
from verbena_lab.verdict import verdict


def answers(rows):
    return {answer.question.key: answer for answer in advice.answers(support.one_view(rows))}


def sentences(rows):
    return " ".join(verdict(advice.answers(support.one_view(rows))))


def latency_row(protocol, p50_ns, spread=None, **changes):
    """A row with this median; `spread` is the half width of its range as a share, None for no spread at all."""
    rate = 1e9 / p50_ns
    reach = None if spread is None else {"rate_min": rate * (1 - spread), "rate_max": rate * (1 + spread)}
    numbers = {
        "latency_ns": {"p50": p50_ns, "p99": p50_ns * 2, "p999": p50_ns * 3},
        "rate_per_s": rate,
        "spread": reach,
    }
    return synthetic.row(protocol, 64, 1, **(numbers | changes))


def names(candidates):
    return [candidate.series.name for candidate in candidates]


class Winner(unittest.TestCase):
    def test_the_lower_latency_wins_clearly_when_ranges_do_not_overlap(self):
        answer = answers([latency_row("send/send", 1000, 0.02), latency_row("write/write", 800, 0.02)])["latency"]
        self.assertEqual(names(answer.ranking), ["WRITE/WRITE", "SEND/SEND"])
        self.assertEqual(names(answer.tied), ["WRITE/WRITE"])
        self.assertEqual(answer.confidence, "clear")
        self.assertEqual(answer.comparison, "20\u00a0% less than second-placed SEND/SEND (1.00\u00a0µs).")
        self.assertIn("polls", answer.why)
        self.assertIn("mailbox", answer.why)

    def test_overlapping_ranges_are_a_tie_even_at_a_large_distance(self):
        answer = answers([latency_row("send/send", 1000, 0.2), latency_row("write/write", 800, 0.2)])["latency"]
        self.assertEqual(answer.confidence, "tie")
        self.assertEqual(set(names(answer.tied)), {"WRITE/WRITE", "SEND/SEND"})
        self.assertIn("Within the spread", answer.remark)

    def test_a_measured_latency_range_goes_before_the_one_from_the_rate(self):
        narrow = {"p50_min_ns": 795, "p50_max_ns": 805, "rate_min": 1e5, "rate_max": 9e6}
        rows = [latency_row("send/send", 1000, 0.02), latency_row("write/write", 800, spread=None) | {"spread": narrow}]
        self.assertEqual(answers(rows)["latency"].confidence, "clear")

    def test_without_a_spread_small_differences_decide_nothing_and_larger_ones_are_hedged(self):
        close = answers([latency_row("send/send", 1000), latency_row("write/write", 970)])["latency"]
        self.assertEqual(close.confidence, "tie")
        self.assertIn("Too close to call", close.remark)
        apart = answers([latency_row("send/send", 1000), latency_row("write/write", 800)])["latency"]
        self.assertEqual(apart.confidence, "single")
        self.assertIn("spread is not known", apart.remark)
        far = answers([latency_row("send/send", 2000), latency_row("write/write", 800)])["latency"]
        self.assertEqual(far.confidence, "far")
        self.assertTrue(far.comparison.startswith("40\u00a0% of second-placed"), far.comparison)

    def test_a_single_run_has_no_spread_by_which_anything_is_clear(self):
        for counted in ({"runs": 1}, {"runs": None}):
            rows = [latency_row("send/send", 1000, 0.0, **counted), latency_row("write/write", 970, 0.0, **counted)]
            rows = [{key: value for key, value in row.items() if value is not None} for row in rows]
            close = answers(rows)["latency"]
            self.assertEqual(close.confidence, "tie")
            self.assertIn("Too close to call", close.remark)

    def test_nothing_is_not_the_lowest_latency(self):
        nothing = {"latency_ns": {"p50": 0, "p99": 0, "p999": 0}, "rate_per_s": 0}
        answer = answers([latency_row("send/send", 1000), latency_row("read", 1) | nothing, latency_row("write/write", 800)])
        self.assertEqual(names(answer["latency"].ranking), ["WRITE/WRITE", "SEND/SEND"])

    def test_exactly_equal_values_are_a_tie(self):
        answer = answers([latency_row("send/send", 900, 0.0), latency_row("write/write", 900, 0.0)])["latency"]
        self.assertEqual(answer.confidence, "tie")
        self.assertTrue(answer.comparison.startswith("The same as"), answer.comparison)

    def test_only_equal_configurations_are_compared(self):
        rows = [latency_row("send/send", 1000), latency_row("write/write", 100, response_bytes=256)]
        answer = answers(rows)["latency"]
        self.assertEqual(names(answer.ranking), ["SEND/SEND"])
        self.assertEqual(answer.confidence, "alone")
        self.assertEqual(answer.absent, "Not measured in this configuration: WRITE/WRITE.")

    def test_the_configuration_with_most_protocols_is_chosen(self):
        rows = [latency_row("send/send", 1000), latency_row("send/send", 1010, response_bytes=256)]
        rows.append(latency_row("write/write", 800, response_bytes=256))
        self.assertEqual(answers(rows)["latency"].configuration, (64, 256, 1))

    def test_throughput_takes_the_deepest_queue_and_bandwidth_the_largest_response(self):
        found = answers(synthetic.full_sweep())
        self.assertEqual(found["throughput"].configuration, (64, 64, 64))
        self.assertEqual(found["bandwidth"].configuration[1], 4 << 20)
        self.assertEqual(names(found["throughput"].ranking)[0], "WRITE/WRITE")


class Missing(unittest.TestCase):
    def test_questions_nobody_measured_say_what_to_run(self):
        found = answers([latency_row("send/send", 1000, cpu=None)])
        self.assertFalse(found["throughput"].answered)
        self.assertIn("--pending", found["throughput"].missing)
        self.assertIn("--response", found["bandwidth"].missing)
        self.assertIn("CPU", found["responder_cpu"].missing)

    def test_one_protocol_alone_is_no_winner(self):
        rows = [latency_row("send/send", 1000)]
        self.assertEqual(answers(rows)["latency"].confidence, "alone")
        self.assertIn("Only SEND/SEND was measured", sentences(rows))

    def test_rows_with_errors_count_nowhere_and_are_named(self):
        rows = [
            latency_row("send/send", 1000),
            latency_row("write/send", 1500),
            latency_row("write/write", 1, errors=7),
        ]
        view = support.one_view(rows)
        answer = advice.answers(view)[0]
        self.assertEqual(names(answer.ranking), ["SEND/SEND", "WRITE/SEND"])
        self.assertEqual(answer.absent, "Left out because of errors: WRITE/WRITE.")
        text = advice.excluded_text(view)
        self.assertIn("1 of 3 measurements", text)
        self.assertIn("WRITE/WRITE, 64\u00a0B request", text)
        self.assertIn("7 errors", text)
        drawn = {trace["name"] for plot in figures.figures(view) for v in plot["variants"] for trace in v["data"]}
        self.assertNotIn("WRITE/WRITE", drawn)
        self.assertIn("SEND/SEND", drawn)

    def test_many_failed_rows_are_counted_not_listed(self):
        rows = [latency_row("send/send", 1000, errors=1, response_bytes=size) for size in range(64, 84)]
        view = support.one_view(rows + [latency_row("read", 500)])
        self.assertIn("and 14 more", advice.excluded_text(view))

    def test_nothing_but_errors(self):
        rows = [latency_row("send/send", 1000, errors=1)]
        found = answers(rows)
        self.assertFalse(found["latency"].answered)
        self.assertIn("had errors", found["latency"].missing)
        self.assertIn("Nothing here can be compared", sentences(rows))
        self.assertEqual(figures.figures(support.one_view(rows)), [])

    def test_no_errors_no_remark(self):
        self.assertEqual(advice.excluded_text(support.one_view([latency_row("read", 1)])), "")


class Read(unittest.TestCase):
    def test_a_win_of_read_names_the_best_protocol_that_runs_a_handler(self):
        rows = [
            latency_row("read", 500, 0.01),
            latency_row("write/write", 700, 0.01),
            latency_row("send/send", 900, 0.01),
        ]
        answer = answers(rows)["latency"]
        self.assertEqual(names(answer.tied), ["READ"])
        self.assertEqual(answer.alternative, "If the responder has to compute the answer: WRITE/WRITE, 700\u00a0ns.")
        text = sentences(rows)
        self.assertIn("Use WRITE/WRITE where the responder computes the answer: best in latency", text)
        self.assertIn("Use READ where the answer already lies at an address the requester knows", text)

    def test_a_tie_with_read_needs_no_alternative(self):
        rows = [latency_row("read", 800, 0.05), latency_row("write/write", 800, 0.05)]
        self.assertEqual(answers(rows)["latency"].alternative, "")

    def test_the_top_sentences_with_read_and_one_other(self):
        read, write = ("read", "write/write")
        for ahead, behind, text in (
            (read, write, "Use READ where the answer already lies at an address the requester knows: best in latency."),
            (write, read, "Use WRITE/WRITE where the responder computes the answer: best in latency."),
        ):
            rows = [latency_row(ahead, 500, 0.01, cpu=None), latency_row(behind, 700, 0.01, cpu=None)]
            self.assertEqual(sentences(rows), text)
        rows = [latency_row(read, 500, 0.1, cpu=None), latency_row(write, 500, 0.1, cpu=None)]
        self.assertEqual(sentences(rows), "In latency all are level.")

    def test_the_top_sentences_where_only_read_differs(self):
        for read_ns, text in ((900, "In latency all but READ are level."), (400, "In latency the others are level.")):
            rows = [latency_row("read", read_ns, 0.01, cpu=None)]
            rows += [latency_row(name, 600, 0.01, cpu=None) for name in ("write/write", "send/send")]
            self.assertTrue(sentences(rows).endswith(text), sentences(rows))

    def test_no_read_no_condition(self):
        rows = [latency_row("write/write", 700, 0.01), latency_row("send/send", 900, 0.01)]
        self.assertIn("Use WRITE/WRITE: best in latency", sentences(rows))


class Cpu(unittest.TestCase):
    @staticmethod
    def row(protocol, responder):
        return synthetic.row(
            protocol, 64, 16, cpu={"requester": {"instructions_per_message": 400}, "responder": responder}
        )

    def test_nothing_at_all_is_said_as_such(self):
        rows = [
            self.row("read", {"instructions_per_message": 0}),
            self.row("send/send", {"instructions_per_message": 600}),
        ]
        answer = answers(rows)["responder_cpu"]
        self.assertEqual(names(answer.tied), ["READ"])
        self.assertTrue(answer.comparison.startswith("Nothing at all, against second-placed SEND/SEND"))
        self.assertIn("takes no part", answer.why)

    def test_the_remark_says_what_bench_counts(self):
        rows = [self.row(name, {"instructions_per_message": count}) for name, count in (("read", 1), ("send/send", 9))]
        self.assertIn("found no request are not counted", answers(rows)["responder_cpu"].remark)
        caption = next(plot for plot in figures.figures(support.one_view(rows)) if plot["id"] == "cpu")["caption"]
        self.assertIn("polls that found nothing are left out", caption)

    def test_instructions_and_cycles_are_never_compared(self):
        rows = [
            self.row("read", {"cycles_per_message": 1}),
            self.row("write/write", {"instructions_per_message": 500}),
            self.row("send/send", {"instructions_per_message": 600}),
        ]
        answer = answers(rows)["responder_cpu"]
        self.assertEqual(names(answer.ranking), ["WRITE/WRITE", "SEND/SEND"])


class Verdict(unittest.TestCase):
    def test_each_strength_is_named_where_it_depends(self):
        rows = [
            latency_row("write/write", 700, 0.01, cpu=None),
            latency_row("send/send", 900, 0.01, cpu=None),
            latency_row("write/write", 900, 0.01, pending=16, cpu=None),
            latency_row("send/send", 600, 0.01, pending=16, cpu=None),
        ]
        text = sentences(rows)
        self.assertIn("Use WRITE/WRITE: best in latency.", text)
        self.assertIn("Prefer SEND/SEND for throughput.", text)

    def test_all_level_everywhere_recommends_nobody(self):
        rows = [latency_row("write/write", 900, 0.1, cpu=None), latency_row("send/send", 900, 0.1, cpu=None)]
        self.assertEqual(sentences(rows), "In latency all are level.")

    def test_level_variants_share_the_first_place_of_their_protocol(self):
        rows = [
            latency_row("write/write", 700, 0.01, cpu=None, mark_layout=layout) for layout in ("last-bit", "markers")
        ]
        rows.append(latency_row("send/send", 1000, 0.01, cpu=None))
        answer = answers(rows)["latency"]
        self.assertEqual(len(answer.tied), 2)
        self.assertEqual(answer.comparison, "30\u00a0% less than second-placed SEND/SEND (1.00\u00a0µs).")
        self.assertEqual(answer.remark, "Within the spread of the runs: take any of its variants.")
        self.assertEqual(sentences(rows), "Use WRITE/WRITE: best in latency.")

    def test_the_second_place_is_of_who_is_not_level(self):
        """A variant that spreads much may be level with the first, behind another protocol that is not."""
        rows = [
            latency_row("write/write", 700, 0.01, cpu=None, mark_layout="last-bit"),
            latency_row("send/send", 740, 0.005, cpu=None),
            latency_row("write/write", 770, 0.2, cpu=None, mark_layout="markers"),
        ]
        answer = answers(rows)["latency"]
        self.assertEqual(names(answer.tied), ["WRITE/WRITE · last-bit", "WRITE/WRITE · markers"])
        self.assertIn("second-placed SEND/SEND", answer.comparison)

    def test_writes_with_immediate_data_are_not_explained_by_polled_memory(self):
        rows = [latency_row("write/write", 700, 0.01, mark_layout="immediate"), latency_row("send/send", 1000, 0.01)]
        why = answers(rows)["latency"].why
        self.assertIn("immediate data", why)
        self.assertNotIn("memory it polls", why)

    def test_unknown_protocols_are_ranked_without_an_invented_reason(self):
        rows = [latency_row("teleport", 100, 0.01), latency_row("send/send", 900, 0.01)]
        answer = answers(rows)["latency"]
        self.assertEqual(names(answer.tied), ["TELEPORT"])
        self.assertEqual(answer.why, "")


class Designs(unittest.TestCase):
    """Connection model, receive queues and topology are ranked, as protocols and mark layouts are."""

    @staticmethod
    def sweep():
        return [
            latency_row("send/send", 1000 + 300 * (model == "dispatcher") + 50 * (queues == "shared"), 0.01,
                        model=model, receive_queues=queues, cpu=None)
            for model in ("private", "dispatcher") for queues in ("shared", "per-connection")
        ]  # fmt: skip

    def test_the_best_model_and_receive_queue_win(self):
        answer_ = answers(self.sweep())["latency"]
        self.assertEqual(names(answer_.ranking)[0], "SEND/SEND · private · per-connection receives")
        self.assertEqual(len(answer_.ranking), 4)
        self.assertIn("SEND/SEND · private · per-connection receives: best in latency", sentences(self.sweep()))

    def test_what_makes_no_difference_is_left_out_of_the_name(self):
        rows = [
            latency_row("write/write", 1000 + 300 * (model == "dispatcher"), 0.01, model=model, receive_queues=queues)
            for model in ("private", "dispatcher")
            for queues in ("shared", "per-connection")
        ]
        self.assertIn("Use WRITE/WRITE · private: best in latency", sentences(rows))

    def test_designs_that_lead_in_one_answer_stand_behind_it(self):
        rows = self.sweep() + [
            latency_row("send/send", 1000 + 300 * (model == "private"), 0.01, pending=16, cpu=None,
                        model=model, receive_queues="shared")
            for model in ("private", "dispatcher")
        ]  # fmt: skip
        text = sentences(rows)
        self.assertIn("best in latency (private · per-connection receives)", text)
        self.assertIn("throughput (dispatcher · shared receives)", text)

    def test_a_sweep_over_them_is_one_paragraph(self):
        text = answer.answer_text(support.load(synthetic.document(self.sweep())))
        self.assertEqual(text.count("best in latency"), 1)

    @staticmethod
    def topologies():
        rows = []
        for topology, requesters, responders, p50_ns in (("M:1", 4, 1, 4000), ("1:M", 1, 4, 2000), ("M:M", 4, 4, 1500)):
            for protocol in ("send/send", "write/write"):
                rows.append(
                    latency_row(protocol, p50_ns + 100 * (protocol == "send/send"), 0.01, cpu=None, topology=topology,
                                nodes=max(5, requesters), requester_nodes=requesters, responder_nodes=responders)
                )  # fmt: skip
                rows.append(rows[-1] | {"pending": 16})
        return rows

    def test_topologies_are_ranked_by_the_best_of_each(self):
        found = views.make_views(support.load(synthetic.document(self.topologies())).measurements)
        ((label, ranked),) = topologies.topology_answers(found)
        self.assertEqual(label, "")
        by_key = {one.question.key: [place.topology for place in one.places] for one in ranked}
        self.assertEqual(by_key["latency"], ["M:M", "1:M", "M:1"])
        # Of M:M's four nodes each has a quarter of the rate.
        self.assertEqual(by_key["throughput"], ["1:M", "M:1", "M:M"])
        text = topologies.sentence(ranked[0])
        self.assertTrue(text.startswith("Latency: M:M (WRITE/WRITE, 1.50\u00a0µs, 5 nodes"), text)

    @staticmethod
    def one_of_each(*p50s_and_spreads, pending=1):
        """A row of each topology; M:1 has one node of a role, 1:M too, M:M four of both."""
        shapes = (("M:1", 4, 1), ("1:M", 1, 4), ("M:M", 4, 4))
        return [
            latency_row("send/send", p50_ns, spread, cpu=None, pending=pending, topology=topology, nodes=5,
                        requester_nodes=requesters, responder_nodes=responders)
            for (topology, requesters, responders), (p50_ns, spread) in zip(shapes, p50s_and_spreads)
        ]  # fmt: skip

    @staticmethod
    def topology_sentences(rows):
        ((_, ranked),) = topologies.topology_answers(views.make_views(support.load(synthetic.document(rows)).measurements))
        return {one.question.key: topologies.sentence(one) for one in ranked}

    def test_level_topologies_stand_together_whoever_is_between_them(self):
        text = self.topology_sentences(self.one_of_each((1000, 0.01), (1060, 0.005), (1100, 0.2)))["latency"]
        self.assertRegex(text, r"^Latency: M:1 \(.*\) and M:M \(.*\) are level, then 1:M \(.*\)\.$")

    def test_variants_of_topologies_are_compared_by_node_too(self):
        """In all, M:M's four nodes do twice as much as M:1's one on each variant; by node it is half of that."""
        rows = self.one_of_each((1000, None), (4000, None), (500, None), pending=16)
        rows = [support.banded(row, *(p50 * share for share in (1, 0.9, 1.1)))
                for row, p50 in zip(rows, (1000, 4000, 500))]  # fmt: skip
        text = self.topology_sentences(rows)["throughput"]
        self.assertRegex(text, r"^Throughput: M:1 \(.*\) is best, then M:M \(.*\) and 1:M \(.*\)\.$")

    def test_terminal_and_page_have_them_and_equal_verdicts_stand_once(self):
        loaded = support.load(synthetic.document(self.topologies()))
        text = answer.answer_text(loaded)
        self.assertIn("Topologies:", text)
        self.assertEqual(text.count("Use WRITE/WRITE: best in"), 1)
        self.assertIn("On soft0 · M:1", text)
        self.assertIn("Which topology", page.render(loaded, ""))
        self.assertNotIn("Which topology", page.render(support.load(synthetic.document(self.sweep())), ""))


class Modelled(unittest.TestCase):
    DEVICE = "sim:connectx3-fdr"

    def loaded(self, **changes):
        rows = [latency_row(name, 900, 0.01, device=self.DEVICE) for name in ("read", "send/send")]
        return support.load(synthetic.document(rows, device=self.DEVICE, **changes))

    def test_the_page_and_the_terminal_say_so_and_how_much_is_assumed(self):
        counts = {"documented": 21, "calibrated": 21, "assumed": 23}
        loaded = self.loaded(models={self.DEVICE: {"title": "ConnectX-3", "parameters": counts}})
        for text in (page.render(loaded, ""), answer.answer_text(loaded)):
            text = " ".join(text.replace("\u00a0", " ").split())
            self.assertIn("sim:connectx3-fdr is modelled, not measured", text)
            self.assertIn("of the 65 parameters of its profile 21 documented (32 %), 21 calibrated (32 %), 23 assumed", text)

    def test_results_without_a_band_say_so(self):
        loaded = self.loaded()
        for text in (page.render(loaded, ""), answer.answer_text(loaded)):
            self.assertIn("No band measured: --variants 5", " ".join(text.split()))
        self.assertIn(" · no band measured", page.render(loaded, ""))

    def test_bands_stand_beside_the_numbers(self):
        rows = [support.banded(latency_row("read", 900), 900, 800, 1000), latency_row("read", 900, pending=4)]
        rows[1]["device"] = self.DEVICE
        text = page.render(support.load(synthetic.document(rows)), "").replace("\u00a0", " ")
        self.assertIn("over 3 variants of the profile", text)
        self.assertIn("Of 1 of 2 results no band measured", text)
        self.assertIn(" · band 800 ns to 1.00 µs", text)

    def test_measured_devices_have_no_word_about_bands(self):
        text = page.render(support.load(synthetic.document([latency_row("read", 900)])), "")
        self.assertNotIn("band measured", text)
        self.assertNotIn("· band", text)

    def test_who_is_ahead_on_the_same_variants_is_ahead(self):
        """However far the variants of both reach together: each is one device."""
        reach = {"rate_min": 1e5, "rate_max": 9e6}
        first = support.banded(latency_row("read", 1000, spread=None), 1000, 700, 1400, 900, 1200) | {"spread": reach}
        slower = support.banded(latency_row("send/send", 1200), 1200, 800, 1500, 1100, 1300) | {"spread": reach}
        found = answers([first, slower])["latency"]
        self.assertEqual((found.confidence, names(found.tied)), ("clear", ["READ"]))
        self.assertIn("ahead on 5 of 5 variants", found.remark)
        mostly = support.banded(latency_row("send/send", 1200), 1200, 800, 1500, 1100, 1100)
        self.assertIn("ahead on 4 of 5 variants", answers([first, mostly])["latency"].remark)
        by_luck = support.banded(latency_row("send/send", 1200), 1200, 800, 1500, 800, 1100)
        found = answers([first, by_luck])["latency"]
        self.assertEqual(found.confidence, "tie")
        self.assertIn("Ahead on 3 of 5 variants", found.remark)

    def test_files_that_do_not_know_say_so(self):
        for loaded in (self.loaded(), self.loaded(models=3), self.loaded(models={self.DEVICE: {"parameters": []}})):
            self.assertIn("the file does not say how much", page.render(loaded, ""))

    def test_devices_that_exist_are_not_modelled(self):
        text = page.render(support.load(synthetic.document([latency_row("read", 900)])), "")
        self.assertNotIn("modelled", text.split("<script")[0])  # behind it, the CSV file has a column for it


if __name__ == "__main__":
    unittest.main()
