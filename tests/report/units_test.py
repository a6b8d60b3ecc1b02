"""Numbers as people read them."""

import unittest

from support import units


class Units(unittest.TestCase):
    def test_times_choose_their_unit_after_rounding(self):
        for time_ns, text in ((0, "0 ns"), (1, "1.00 ns"), (539.4, "539 ns"), (999.4, "999 ns"), (999.6, "1.00 µs"),
                              (1415, "1.42 µs"), (32_000, "32.0 µs"), (2.5e6, "2.50 ms"), (12e9, "12.0 s"),
                              (5e12, "5,000 s")):  # fmt: skip
            self.assertEqual(units.time_text(time_ns).replace("\u00a0", " "), text)

    def test_rates_and_bandwidths_are_decimal(self):
        self.assertEqual(units.bandwidth_text(8.6e9), "8.60\u00a0GB/s")
        self.assertEqual(units.bandwidth_text(999), "999\u00a0B/s")
        self.assertEqual(units.rate_text(5_190_000), "5.19\u00a0M/s")

    def test_sizes_are_binary_and_exact(self):
        for size_bytes, text in ((64, "64 B"), (365, "365 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1500, "1,500 B"),
                                 (4 << 20, "4 MiB"), (1 << 30, "1 GiB")):  # fmt: skip
            self.assertEqual(units.size_text(size_bytes).replace("\u00a0", " "), text)

    def test_axis_ticks_drop_zeros_at_the_end(self):
        self.assertEqual(units.time_text(1000, trim=True), "1\u00a0µs")
        self.assertEqual(units.bandwidth_text(200e6, trim=True), "200\u00a0MB/s")

    def test_small_shares_keep_a_digit(self):
        self.assertEqual(units.percent_text(0.0042), "0.4\u00a0%")
        self.assertEqual(units.percent_text(0.18), "18\u00a0%")


if __name__ == "__main__":
    unittest.main()
