"""One-sided operations of random kinds, sizes and types between all ranks, checked against what they have to do: put, get,
accumulate, get-accumulate, fetch-and-op and compare-and-swap, with fences, locks and post/start/complete/wait, on windows of
every kind. VERBENA_SEED=N draws others. Run by scripts/test-mpi."""

import array
import os
import random
import struct

# On one host, Open MPI would use memory that the processes share. Read when MPI is imported.
os.environ.setdefault("OMPI_MCA_osc", "rdma")

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
ME = WORLD.rank
SEED = int(os.environ.get("VERBENA_SEED", "1"))
EPOCHS = int(os.environ.get("VERBENA_EPOCHS", "60"))

# Each rank has a part of every other one's memory, whose contents it alone decides.
SLOTS = 8
SLOT_BYTES = 40_000
ELEMENTS = 300
TYPES = [("b", MPI.INT8_T), ("B", MPI.UINT8_T), ("h", MPI.INT16_T), ("H", MPI.UINT16_T), ("i", MPI.INT32_T), ("I", MPI.UINT32_T),
         ("q", MPI.INT64_T), ("Q", MPI.UINT64_T), ("f", MPI.FLOAT), ("d", MPI.DOUBLE)]
TYPE_BYTES = ELEMENTS * 8
SWAPS_AT = SLOTS * SLOT_BYTES + len(TYPES) * TYPE_BYTES
PART_BYTES = SWAPS_AT + 64
COUNTER_AT = WORLD.size * PART_BYTES
WINDOW_BYTES = COUNTER_AT + 64


def wrapped(code, value):
    """What an integer of this type keeps of the value."""
    if code in "fd":
        return value
    bits = 8 * array.array(code).itemsize
    value &= (1 << bits) - 1
    return value - (1 << bits) if code.islower() and value >> (bits - 1) else value


OPERATIONS = {
    "SUM": lambda value, operand: value + operand,
    "MIN": min,
    "MAX": max,
    "PROD": lambda value, operand: value * operand,
    "REPLACE": lambda value, operand: operand,
    "BAND": lambda value, operand: value & operand,
    "BOR": lambda value, operand: value | operand,
    "BXOR": lambda value, operand: value ^ operand,
}
BITS = ("BAND", "BOR", "BXOR")


class Part:
    """What this rank's part of a target's memory has to be."""

    def __init__(self):
        self.bytes = bytearray(SLOTS * SLOT_BYTES)
        self.values = [array.array(code, [0] * ELEMENTS) for code, _ in TYPES]
        self.swap = 0

    def image(self):
        image = bytearray(self.bytes)
        for values in self.values:
            image += values.tobytes().ljust(TYPE_BYTES, b"\0")
        return image + struct.pack("q", self.swap)


class Traffic:
    def __init__(self, window, bases, draw):
        self.window = window
        self.bases = bases  # of each rank's memory, in the window's terms
        self.draw = draw
        self.parts = [Part() for _ in range(WORLD.size)]
        self.counted = []
        self.begin()

    def begin(self):
        """A new epoch: operations on the same bytes are not in order within one."""
        self.free_slots = [list(range(SLOTS)) for _ in range(WORLD.size)]
        self.operations = [[self.draw.choice([name for name in OPERATIONS if name not in BITS or code not in "fd"])
                            for code, _ in TYPES] for _ in range(WORLD.size)]
        self.swapped = [False] * WORLD.size
        self.checks = []  # what was read, and what it has to be
        self.kept = []  # memory of operations
        self.requests = []

    def at(self, target, offset):
        return self.bases[target] + ME * PART_BYTES + offset

    def end(self):
        for what, got, expected in self.checks:
            assert bytes(got) == bytes(expected), (what, bytes(got)[:40], bytes(expected)[:40])
        self.begin()

    def put_or_get(self, target, by_request):
        free = self.free_slots[target]
        if not free:
            return
        self.draw.shuffle(free)
        # At times all of what is left in a row.
        slot = free.pop()
        room = SLOT_BYTES
        while self.draw.random() < 0.3 and slot + room // SLOT_BYTES in free:
            free.remove(slot + room // SLOT_BYTES)
            room += SLOT_BYTES
        size = min(room, self.draw.choice([0, 1, 8, 100, 1000, 1024, 1025, 1888, 1889, 2048, 5000, room, self.draw.randrange(room)]))
        start = slot * SLOT_BYTES + self.draw.randrange(room - size + 1)
        place = (self.at(target, start), size, MPI.BYTE)
        reference = self.parts[target].bytes
        if self.draw.random() < 0.5:
            data = self.draw.randbytes(size)
            self.kept.append(data)
            if by_request:
                self.requests.append(self.window.Rput([data, MPI.BYTE], target, place))
            else:
                self.window.Put([data, MPI.BYTE], target, place)
            reference[start:start + size] = data
        else:
            buffer = bytearray(size)
            if by_request:
                self.requests.append(self.window.Rget([buffer, MPI.BYTE], target, place))
            else:
                self.window.Get([buffer, MPI.BYTE], target, place)
            self.checks.append((f"get of {size} bytes", buffer, bytes(reference[start:start + size])))

    def put_strided(self, target):
        """Every other byte of a slot."""
        if not self.free_slots[target]:
            return
        start = self.free_slots[target].pop() * SLOT_BYTES
        count = self.draw.choice([1, 7, 300, 5000])
        data = self.draw.randbytes(count)
        strided = MPI.BYTE.Create_vector(count, 1, 2).Commit()
        self.window.Put([data, MPI.BYTE], target, (self.at(target, start), 1, strided))
        strided.Free()
        self.kept.append(data)
        self.parts[target].bytes[start:start + 2 * count:2] = data

    def accumulate(self, target):
        number = self.draw.randrange(len(TYPES))
        code, datatype = TYPES[number]
        name = self.operations[target][number]
        operation = getattr(MPI, name)
        values = self.parts[target].values[number]
        count = self.draw.choice([1, 1, 3, 50, ELEMENTS])
        start = self.draw.randrange(ELEMENTS - count + 1)
        least = 0 if code.isupper() else -3
        # What floats hold exactly, however often, and no zero with a sign.
        operands = array.array(code, [self.draw.choice([-1, 1] if code in "bhiq" else [1]) if name == "PROD" else
                                      self.draw.randint(least, 3) for _ in range(count)])
        before = array.array(code, values[start:start + count])
        place = (self.at(target, SLOTS * SLOT_BYTES + number * TYPE_BYTES + start * values.itemsize), count, datatype)
        way = self.draw.choice(["accumulate", "get", "read"] + ["fetch"] * (count == 1))
        result = array.array(code, [0] * count)
        self.kept += [operands, result]
        if way == "accumulate":
            self.window.Accumulate([operands, datatype], target, place, operation)
        elif way == "get":
            self.window.Get_accumulate([operands, datatype], [result, datatype], target, place, operation)
        elif way == "read":
            self.window.Get_accumulate([operands, datatype], [result, datatype], target, place, MPI.NO_OP)
        else:
            self.window.Fetch_and_op([operands, datatype], [result, datatype], target, place[0], operation)
        if way != "accumulate":
            self.checks.append((f"{way} of {count} {datatype.name}", result, before))
        if way != "read":
            for i, operand in enumerate(operands):
                values[start + i] = wrapped(code, OPERATIONS[name](values[start + i], operand))

    def swap(self, target):
        if self.swapped[target]:
            return
        self.swapped[target] = True
        part = self.parts[target]
        compared = array.array("q", [part.swap if self.draw.random() < 0.6 else part.swap + 1])
        new = array.array("q", [self.draw.randrange(1 << 60)])
        result = array.array("q", [0])
        self.kept += [compared, new, result]
        self.window.Compare_and_swap([new, MPI.INT64_T], [compared, MPI.INT64_T], [result, MPI.INT64_T], target,
                                     self.at(target, SWAPS_AT))
        self.checks.append(("compare and swap", result, array.array("q", [part.swap])))
        if compared[0] == part.swap:
            part.swap = new[0]

    def count(self):
        """All ranks add to one word of rank 0."""
        one = array.array("q", [1])
        result = array.array("q", [0])
        self.kept += [one, result]
        self.window.Fetch_and_op([one, MPI.INT64_T], [result, MPI.INT64_T], 0, self.bases[0] + COUNTER_AT, MPI.SUM)
        self.counted.append(result)

    def operate(self, targets, passive=False):
        for _ in range(self.draw.randrange(1, 12)):
            target = self.draw.choice(targets)
            kind = self.draw.random()
            if kind < 0.5:
                self.put_or_get(target, passive and self.draw.random() < 0.3)
            elif kind < 0.6:
                self.put_strided(target)
            elif kind < 0.9:
                self.accumulate(target)
            else:
                self.swap(target)
        if 0 in targets:
            self.count()
        MPI.Request.Waitall(self.requests)
        self.requests.clear()


def epoch(traffic, kind):
    window = traffic.window
    everybody = list(range(WORLD.size))
    others = [rank for rank in everybody if rank != ME]
    if kind == "fence":
        window.Fence()
        traffic.operate(everybody)
        window.Fence(MPI.MODE_NOSUCCEED)
    elif kind == "pscw":
        group = WORLD.group.Incl(others)
        window.Post(group)
        window.Start(group)
        traffic.operate(others)
        window.Complete()
        window.Wait()
        group.Free()
    elif kind == "lock":
        for target in everybody:
            window.Lock(target, traffic.draw.choice([MPI.LOCK_SHARED, MPI.LOCK_EXCLUSIVE]))
            traffic.operate([target], passive=True)
            window.Unlock(target)
    else:
        window.Lock_all()
        for _ in range(3):
            traffic.operate(everybody, passive=True)
            if traffic.draw.random() < 0.5:
                window.Flush_all()
            else:
                for target in everybody:
                    window.Flush(target)
            traffic.end()
        window.Unlock_all()
    traffic.end()


def run(kind):
    memory = None
    if kind == "create":
        memory = bytearray(WINDOW_BYTES)
        window = MPI.Win.Create(memory, 1, comm=WORLD)
    elif kind == "allocate":
        window = MPI.Win.Allocate(WINDOW_BYTES, 1, comm=WORLD)
        memory = window.tomemory()
        memory[:] = bytes(WINDOW_BYTES)
    else:
        window = MPI.Win.Create_dynamic(comm=WORLD)
        memory = MPI.Alloc_mem(WINDOW_BYTES)
        memory[:] = bytes(WINDOW_BYTES)
        window.Attach(memory)
    bases = WORLD.allgather(MPI.Get_address(memory) if kind == "dynamic" else 0)
    traffic = Traffic(window, bases, random.Random(f"{SEED}/{kind}/{ME}"))
    shared = random.Random(f"{SEED}/{kind}")
    WORLD.Barrier()
    for _ in range(EPOCHS):
        epoch(traffic, shared.choice(["fence", "pscw", "lock", "lock all"]))
    WORLD.Barrier()
    # What others did to the memory here.
    window.Lock(ME, MPI.LOCK_SHARED)
    for source, image in enumerate(WORLD.alltoall([bytes(part.image()) for part in traffic.parts])):
        there = bytes(memory[source * PART_BYTES:][:len(image)])
        assert there == image, (kind, source, next(i for i in range(len(image)) if there[i] != image[i]))
    window.Unlock(ME)
    counted = sorted(value for values in WORLD.allgather([result[0] for result in traffic.counted]) for value in values)
    assert counted == list(range(len(counted))), (kind, "the counter")
    WORLD.Barrier()
    if kind == "dynamic":
        window.Detach(memory)
        MPI.Free_mem(memory)
    window.Free()
    return len(counted)


total = sum(run(kind) for kind in ["create", "allocate", "dynamic"])
if ME == 0:
    print(f"seed {SEED}: all right with {WORLD.size} ranks, {total} epochs, {MPI.Get_library_version().splitlines()[0]}")
