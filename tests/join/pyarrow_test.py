"""verbena_join against pyarrow's own join, on tables like those of TPC-H, and on Parquet files."""

import datetime
import decimal
import pathlib
import random
import tempfile
import unittest

import verbena_join

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    pa = None

KINDS = {"inner": "inner", "left": "left outer", "semi": "left semi", "anti": "left anti"}


def draw(rng, rows, key_of, prefix):
    """A table whose keys are skewed, have duplicates, and some nulls; with a column of each kind of type."""
    numbers = [min(int(rng.paretovariate(0.6)), 400) for _ in range(rows)]

    def some(value):
        return None if rng.random() < 0.1 else value

    return pa.table({
        "key": pa.array([some(key_of(n)) for n in numbers]),
        "second": pa.array([some(n % 3) for n in numbers], pa.int16()),
        prefix + "row": pa.array(range(rows), pa.int64()),
        prefix + "comment": pa.array([some("comment " * (n % 5)) for n in numbers]),
        prefix + "large": pa.array([some(f"{n}") for n in numbers], pa.large_string()),
        prefix + "price": pa.array([some(decimal.Decimal(n) / 100) for n in numbers], pa.decimal128(15, 2)),
        prefix + "discount": pa.array([some(n / 7) for n in numbers], pa.float64()),
        prefix + "flag": pa.array([some(n % 2 == 0) for n in numbers]),
        prefix + "shipped": pa.array([some(datetime.date(1992, 1, 1) + datetime.timedelta(n)) for n in numbers]),
        prefix + "at": pa.array([some(datetime.datetime(1992, 1, 1, n % 24)) for n in numbers], pa.timestamp("us")),
    })


def in_chunks(rng, table):
    """The same table in pieces of random length."""
    cuts = sorted({0, len(table), *(rng.randrange(len(table)) for _ in range(5))})
    return pa.concat_tables([table.slice(a, b - a) for a, b in zip(cuts, cuts[1:])])


@unittest.skipUnless(pa, "there is no pyarrow here (python3 -m pip install pyarrow)")
class Pyarrow(unittest.TestCase):
    def assert_same(self, ours, theirs):
        """Row by row, in an order that the row numbers define."""
        theirs = theirs.select(ours.column_names)
        order = [(name, "ascending") for name in ours.column_names if name.endswith("row")]
        self.assertEqual(ours.sort_by(order).to_pydict(), theirs.sort_by(order).to_pydict())

    def test_every_kind_and_type_of_key(self):
        rng = random.Random(1)
        day = datetime.date(2000, 1, 1)
        keys = {
            "int": lambda n: n,
            "string": lambda n: f"customer {n}",
            "date": lambda n: day + datetime.timedelta(n),
            "decimal": lambda n: decimal.Decimal(n) / 100,
        }
        for name, key_of in keys.items():
            left, right = draw(rng, 800, key_of, "l_"), draw(rng, 150, key_of, "r_")
            for on in ["key", ["key", "second"]]:
                right_part = right if on != "key" else right.drop_columns(["second"])
                for how, theirs in KINDS.items():
                    with self.subTest(key=name, on=on, how=how):
                        joined = verbena_join.join(in_chunks(rng, left), in_chunks(rng, right_part), on, how)
                        self.assert_same(pa.table(joined), left.join(right_part, on, join_type=theirs))

    def test_parquet(self):
        rng = random.Random(2)
        left, right = draw(rng, 5000, str, "l_"), draw(rng, 500, str, "r_")
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / name for name in ("left.parquet", "right.parquet", "joined.parquet")]
            encoded = left.set_column(0, "key", left["key"].dictionary_encode())
            pq.write_table(encoded, paths[0], row_group_size=700)
            pq.write_table(right, paths[1])
            statistics = verbena_join.join_parquet(*paths, "key", right_columns=["key", "r_row", "r_price"])
            expected = left.join(right.select(["key", "r_row", "r_price"]), "key", join_type="inner")
            self.assertEqual(statistics["result_rows"], len(expected))
            self.assert_same(pq.read_table(paths[2]), expected)
            with self.assertRaisesRegex(MemoryError, "batch 0 of the left table takes"):
                verbena_join.join_parquet(*paths, "key", memory_limit_bytes=1000)

    def test_a_producer_in_python_that_fails_is_quoted(self):
        def batches():
            yield pa.record_batch({"key": [1]})
            raise RuntimeError("the disk is gone")

        broken = pa.RecordBatchReader.from_batches(pa.schema([("key", pa.int64())]), batches())
        with self.assertRaisesRegex(OSError, "left table failed: .*the disk is gone"):
            verbena_join.join(broken, pa.table({"key": [1]}), "key")

    def test_types_that_are_refused_say_what_to_do(self):
        one = pa.table({"key": [1]})
        for column, text in [
            (pa.array([[1]]), "'c' of the right table is of type list.* leave it out"),
            (pa.array(["a"]).dictionary_encode(), "is a dictionary of string.* decode it first"),
            (pa.array(["a"], pa.string_view()), "string_view.* cast it to string"),
        ]:
            with self.assertRaisesRegex(ValueError, text):
                verbena_join.join(one, pa.table({"key": [1], "c": column}), "key")


if __name__ == "__main__":
    unittest.main()
