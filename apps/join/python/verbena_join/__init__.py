"""Equi-joins of Arrow tables: pyarrow, polars, DuckDB and whatever else speaks the Arrow PyCapsule interface.

    import pyarrow as pa, verbena_join
    table = pa.table(verbena_join.join(orders, customers, on={"customer": "id"}, how="left"))

    verbena_join.join_parquet("orders.parquet", "customers.parquet", "joined.parquet", on={"customer": "id"})

Keys are integers, booleans, dates, times, decimals, strings and binaries; a null matches nothing. The result has the
columns of the left table, then those of the right one without its keys; the order of its rows is not defined. What is
wrong is one line: ValueError (a column, a type), MemoryError (more than the limit, with the numbers), OSError (a table
that could not be read).
"""

from . import _join

__all__ = ["count", "join", "join_parquet"]


def _pairs(on):
    """The keys as pairs of column names: from one name, a list of names, or a dict of left to right ones."""
    if isinstance(on, str):
        return [(on, on)]
    return list(on.items()) if hasattr(on, "items") else [(name, name) for name in on]


def join(left, right, on, how="inner", *, right_suffix="_right", memory_limit_bytes=0, threads=0):
    """Joins two tables. The result has __arrow_c_stream__, for pyarrow.table() and the like, and `statistics`, a dict.

    how: "inner", "left", "semi" (left rows that have a match) or "anti" (those that have none).
    right_suffix: appended to the name of a right column that the left table has, too.
    memory_limit_bytes: of input, working memory and result together; 0: four fifths of what is available.
    threads: 0: one for each CPU.
    """
    return _join.join(left, right, _pairs(on), how, right_suffix, memory_limit_bytes, threads, False)


def count(left, right, on, how="inner", *, memory_limit_bytes=0, threads=0):
    """How many rows the join would have."""
    joined = _join.join(left, right, _pairs(on), how, "_right", memory_limit_bytes, threads, True)
    return joined.statistics["result_rows"]


def join_parquet(left, right, result, on, how="inner", *, left_columns=None, right_columns=None, **options):
    """Joins two Parquet files into a third one; returns the statistics. Needs pyarrow.

    left_columns, right_columns: those to read; None: all. The others are as for join(). Files are read batch by batch,
    so one that is larger than memory is refused before the system runs out of it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def batches(path, columns):
        # Dictionaries are a matter of the file: values are what is joined.
        file = pq.ParquetFile(path)
        schema = file.schema_arrow if columns is None else pa.schema([file.schema_arrow.field(name) for name in columns])
        schema = pa.schema([(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in schema])
        return pa.RecordBatchReader.from_batches(
            schema, (batch.select(schema.names).cast(schema) for batch in file.iter_batches(columns=columns))
        )

    joined = join(batches(left, left_columns), batches(right, right_columns), on, how, **options)
    with pa.RecordBatchReader.from_stream(joined) as reader, pq.ParquetWriter(result, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
    return joined.statistics
