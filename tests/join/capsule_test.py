"""verbena_join with tables that are made by hand, as any producer and consumer of the PyCapsule interface could."""

import ctypes
import unittest

import verbena_join

PTR = ctypes.c_void_p
INT = ctypes.c_int64


class Schema(ctypes.Structure):
    pass


class Array(ctypes.Structure):
    pass


class Stream(ctypes.Structure):
    pass


RELEASE_SCHEMA = ctypes.CFUNCTYPE(None, ctypes.POINTER(Schema))
RELEASE_ARRAY = ctypes.CFUNCTYPE(None, ctypes.POINTER(Array))
RELEASE_STREAM = ctypes.CFUNCTYPE(None, ctypes.POINTER(Stream))
Schema._fields_ = [
    ("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", PTR), ("flags", INT), ("n_children", INT),
    ("children", ctypes.POINTER(ctypes.POINTER(Schema))), ("dictionary", PTR), ("release", RELEASE_SCHEMA), ("data", PTR),
]
Array._fields_ = [
    ("length", INT), ("null_count", INT), ("offset", INT), ("n_buffers", INT), ("n_children", INT),
    ("buffers", ctypes.POINTER(PTR)), ("children", ctypes.POINTER(ctypes.POINTER(Array))), ("dictionary", PTR),
    ("release", RELEASE_ARRAY), ("data", PTR),
]
Stream._fields_ = [
    ("get_schema", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Stream), ctypes.POINTER(Schema))),
    ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Stream), ctypes.POINTER(Array))),
    ("get_last_error", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(Stream))),
    ("release", RELEASE_STREAM), ("data", PTR),
]

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [PTR, ctypes.c_char_p, PTR]
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype = PTR
capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

SCHEMA_NAME, ARRAY_NAME, STREAM_NAME = b"arrow_schema", b"arrow_array", b"arrow_array_stream"
released = []  # names of what was released


class Table:
    """Columns of 64-bit numbers, of which None is a null; it owns all that its capsules mean."""

    def __init__(self, **columns):
        self.columns, self.kept = columns, []
        self.release_schema = RELEASE_SCHEMA(self.on_release("schema", RELEASE_SCHEMA))
        self.release_array = RELEASE_ARRAY(self.on_release("array", RELEASE_ARRAY))

    @staticmethod
    def on_release(name, kind):
        def release(struct):
            released.append(name)
            struct.contents.release = kind()

        return release

    def keep(self, value):
        self.kept.append(value)
        return value

    def pointers(self, kind, values):
        return self.keep((ctypes.POINTER(kind) * len(values))(*(ctypes.pointer(self.keep(value)) for value in values)))

    def column(self, values):
        bits = sum(1 << i for i, value in enumerate(values) if value is not None)
        validity = self.keep(ctypes.create_string_buffer(bits.to_bytes(len(values) // 8 + 1, "little")))
        numbers = self.keep((INT * len(values))(*(value or 0 for value in values)))
        buffers = self.keep((PTR * 2)(ctypes.addressof(validity), ctypes.addressof(numbers)))
        return Array(length=len(values), null_count=-1, n_buffers=2, buffers=buffers, release=self.release_array)

    def __arrow_c_array__(self, requested_schema=None):
        fields = [Schema(format=b"l", name=name.encode(), release=self.release_schema) for name in self.columns]
        schema = self.keep(Schema(format=b"+s", n_children=len(fields), children=self.pointers(Schema, fields),
                                  release=self.release_schema))
        columns = [self.column(values) for values in self.columns.values()]
        array = self.keep(Array(length=columns[0].length, n_buffers=1, buffers=self.keep((PTR * 1)(None)),
                                n_children=len(columns), children=self.pointers(Array, columns),
                                release=self.release_array))
        return (new_capsule(ctypes.addressof(schema), SCHEMA_NAME, None),
                new_capsule(ctypes.addressof(array), ARRAY_NAME, None))


def rows(joined):
    """Names of columns, and sorted rows, of a result of 64-bit numbers."""
    capsule = joined.__arrow_c_stream__()
    stream = Stream.from_address(capsule_pointer(capsule, STREAM_NAME))
    schema, batch, found = Schema(), Array(), []
    assert stream.get_schema(stream, schema) == 0
    names = [schema.children[i].contents.name.decode() for i in range(schema.n_children)]
    schema.release(schema)
    while True:
        assert stream.get_next(stream, batch) == 0
        if not batch.release:
            break
        columns = []
        for i in range(batch.n_children):
            column = batch.children[i].contents
            numbers = ctypes.cast(column.buffers[1], ctypes.POINTER(INT))
            bits = ctypes.cast(column.buffers[0], ctypes.POINTER(ctypes.c_uint8))
            columns.append([numbers[row] if not bits or bits[row // 8] >> row % 8 & 1 else None
                            for row in range(column.length)])
        found += zip(*columns)
        batch.release(batch)
    del capsule
    return names, sorted(found, key=str)


class Capsules(unittest.TestCase):
    def setUp(self):
        released.clear()
        self.left = Table(k=[1, 2, 2, None], a=[10, 20, 21, 30])
        self.right = Table(k=[2, 3, None], b=[200, None, 400])

    def test_every_kind(self):
        expected = {
            "inner": [(2, 20, 200), (2, 21, 200)],
            "left": [(1, 10, None), (2, 20, 200), (2, 21, 200), (None, 30, None)],
            "semi": [(2, 20), (2, 21)],
            "anti": [(1, 10), (None, 30)],
        }
        for how, wanted in expected.items():
            joined = verbena_join.join(self.left, self.right, "k", how)
            self.assertEqual(joined.statistics["result_rows"], len(wanted))
            names, found = rows(joined)
            self.assertEqual(names, ["k", "a", "b"][: len(wanted[0])])
            self.assertEqual(found, wanted, how)

    def test_inputs_are_released_once(self):
        verbena_join.join(self.left, self.right, {"k": "k"})
        self.assertEqual(sorted(released), ["array"] * 2 + ["schema"] * 2)

    def test_a_result_is_handed_out_once(self):
        joined = verbena_join.join(self.left, self.right, ["k"])
        rows(joined)
        with self.assertRaisesRegex(ValueError, "handed out already"):
            joined.__arrow_c_stream__()

    def test_count(self):
        self.assertEqual(verbena_join.count(self.left, self.right, "k"), 2)

    def test_what_is_wrong_is_one_line(self):
        for error, text, call in [
            (ValueError, "no column 'x'; it has k, a", lambda: verbena_join.join(self.left, self.right, "x")),
            (ValueError, "there is no join 'outer'", lambda: verbena_join.join(self.left, self.right, "k", "outer")),
            (TypeError, "is no Arrow table", lambda: verbena_join.join([1, 2], self.right, "k")),
            (MemoryError, r"the limit is 10 \(memory_limit_bytes\)",
             lambda: verbena_join.join(self.left, self.right, "k", memory_limit_bytes=10)),
        ]:
            with self.assertRaisesRegex(error, text) as raised:
                call()
            self.assertNotIn("\n", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
